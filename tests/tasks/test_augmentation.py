"""Augmentation of minibatches, and weights of classes: what they compute, where they apply, what stays as it was."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import experiments, tasks
from fedax.engine.make import make_job
from fedax.errors import CheckpointError, CodeError, ConfigError, DataError
from fedax.tasks.factory import made_as, made_with

from ..contract.probe import oracle_answers
from ..engine.here import run_at_sites

RNG = np.random.default_rng(0)
SIZES = [5, 3, 8]
X = RNG.integers(1, 256, (sum(SIZES), 6, 5, 2)).astype(np.uint8)
Y = RNG.integers(0, 3, len(X))
DATA = fedax.FederatedData({"x": X, "y": Y}, SIZES)
AUGMENT = tasks.CropAndFlip(crop=2)
FEDAVG = fedax.create("fedavg", lr=0.05)
OPTIONS = {"rounds": 4, "batch_size": 3, "work": fedax.Epochs(1)}


@functools.cache
def softmax(augment=AUGMENT):
    """A linear model, whose gradient is linear in the images."""
    return tasks.classification(
        lambda key: jnp.zeros((60, 3)), lambda w, x, key: x.reshape(len(x), -1) @ w, 3, augment=augment
    )


# ---- images


def variants(image, crop):
    """All images that one may become, by place and side."""
    h, w = image.shape[:2]
    padded = np.pad(image, ((crop, crop), (crop, crop), (0, 0)))
    sides = {False: padded, True: padded[:, ::-1]}
    places = itertools.product(range(2 * crop + 1), range(2 * crop + 1), sides)
    return {(i, j, flip): sides[flip][i : i + h, j : j + w] for i, j, flip in places}


def test_every_place_and_both_sides_come_equally_often():
    many = np.broadcast_to(X[0], (18_000, *X[0].shape))
    made = np.asarray(jax.jit(tasks.CropAndFlip(crop=1))({"x": many}, jax.random.key(1))["x"])
    assert made.dtype == np.uint8
    counts = [int((made == variant).all(axis=(1, 2, 3)).sum()) for variant in variants(X[0], 1).values()]
    assert len(counts) == 18 and sum(counts) == len(many)
    assert min(counts) > 880 and max(counts) < 1120  # 1000 ± 4 standard deviations


def test_each_image_has_its_own_place_and_each_key_others():
    batch = {"x": X, "y": Y}
    one, same, other = (AUGMENT(batch, jax.random.key(seed)) for seed in (0, 0, 1))
    assert one["y"] is Y
    np.testing.assert_array_equal(one["x"], same["x"])
    assert not np.array_equal(one["x"], other["x"])
    found = [
        next(at for at, v in variants(x, 2).items() if np.array_equal(v, got))
        for x, got in zip(X, one["x"], strict=True)
    ]
    assert len(set(found)) > len(X) / 2


def test_images_without_channels_and_with_channels_first():
    key = jax.random.key(0)
    made = np.asarray(AUGMENT({"x": X}, key)["x"])
    np.testing.assert_array_equal(AUGMENT({"x": X[..., 0]}, key)["x"], made[..., 0])
    first = tasks.CropAndFlip(crop=2, channels_first=True)
    np.testing.assert_array_equal(first({"x": np.moveaxis(X, 3, 1)}, key)["x"], np.moveaxis(made, 3, 1))


@pytest.mark.parametrize(("crop", "flip"), [(0, True), (2, False)])
def test_only_one_of_both(crop, flip):
    made = np.asarray(tasks.CropAndFlip(crop=crop, flip=flip)({"x": X}, jax.random.key(0))["x"])
    for image, got in zip(X, made, strict=True):
        allowed = {at: v for at, v in variants(image, crop).items() if flip or not at[2]}
        assert any(np.array_equal(got, v) for v in allowed.values())
    assert not np.array_equal(made, X)


# ---- in a run


def test_the_oracle_gives_gradient_loss_and_outputs_of_the_augmented_examples():
    """As FedNTD and MOON need them: what the client sees is what the gradient is of; the same k, the same images."""
    task = softmax()

    def ask(x, oracle):
        seen = oracle.batch(1)
        there = jnp.arange(len(seen["y"])) < jnp.array(SIZES)[oracle.client] if len(seen["y"]) > 3 else jnp.ones(3)
        mean = lambda w: jnp.average(task.loss(w, seen, None), weights=there)  # noqa: E731
        own = mean(x.tree)
        answers = jnp.abs(oracle.outputs(x, 1) - task.outputs(x.tree, seen)).max()
        by_hand = jax.grad(mean)(x.tree)
        apart = jnp.abs(by_hand - oracle.grad(x, 1).tree).max()
        numbers = [own - oracle.loss(x, 1), own - oracle.value_and_grad(x, 1)[0], answers, apart]
        return jnp.concatenate([jnp.stack(numbers), seen["x"].ravel().astype(float), seen["y"].astype(float)])

    params = RNG.normal(size=(60, 3)).astype(np.float32)
    for batch_size, width in ((3, 3), (None, max(SIZES))):
        answers, _ = oracle_answers(ask, (4 + width * 61,), task, DATA, batch_size=batch_size, params=params)
        for i, answer in enumerate(answers):
            np.testing.assert_allclose(answer[:4], 0, atol=1e-5)
            images, labels = answer[4 : 4 + width * 60].reshape(width, 6, 5, 2), answer[4 + width * 60 :]
            own, there = DATA.client(i), 0
            for image, label in zip(images, labels, strict=True):
                rows = own["x"][own["y"] == label]
                assert any(np.array_equal(image, v) for row in rows for v in variants(row, 2).values())
                there += any(np.array_equal(image, row) for row in rows)
            assert there < width


@pytest.mark.parametrize("batch_size", [3, None])
def test_steps_rounds_clients_and_full_gradients_are_augmented_apart(batch_size):
    def ask(x, oracle):
        steps = [oracle.grad(x, k) for k in range(3)]
        return jnp.stack([each.tree.ravel() for each in (*steps, oracle.full_grad(x), oracle.grad(x, 0))])

    run = functools.partial(oracle_answers, ask, (5, 180), data=DATA, batch_size=batch_size)
    answers, later = run(task=softmax())[0], run(task=softmax(), rounds=2)[0]
    plain = run(task=softmax(None))[0]
    np.testing.assert_array_equal(answers[:, 0], answers[:, 4])
    for step in range(4):
        assert not np.allclose(answers[:, step], plain[:, step])
        assert not np.allclose(answers[:, step], later[:, step])
    if batch_size is None:  # the same examples in each step, and others of augmentation
        np.testing.assert_array_equal(plain[:, 0], plain[:, 1])
        assert not np.allclose(answers[:, 0], answers[:, 1])


def test_no_evaluation_is_augmented():
    task = softmax().with_metrics(grad_norm=fedax.metrics.GradNorm())
    params = RNG.normal(size=(60, 3)).astype(np.float32)
    plain = softmax(None).with_metrics(grad_norm=fedax.metrics.GradNorm())
    one, other = (
        fedax.simulate(FEDAVG, each, DATA, rounds=0, params=params, test={"x": X, "y": Y}) for each in (task, plain)
    )
    for name in ("train_loss", "test_loss", "test_accuracy", "grad_norm_sq"):
        assert one.history[name].tolist() == other.history[name].tolist(), name


def test_the_same_in_every_place():
    run = functools.partial(fedax.simulate, FEDAVG, softmax(), DATA, **OPTIONS)
    device = run()
    assert not np.allclose(device.params, fedax.simulate(FEDAVG, softmax(None), DATA, **OPTIONS).params)
    for place in (fedax.Place(chunk_size=1), fedax.Place(stream=True), fedax.Place(client_memory="host", chunk_size=2)):
        np.testing.assert_allclose(run(place=place).params, device.params, rtol=1e-5, atol=1e-6)
    nodes, _ = run_at_sites(FEDAVG, softmax(), DATA, [[2], [0, 1]], **OPTIONS)
    np.testing.assert_allclose(nodes.params, device.params, rtol=1e-5, atol=1e-6)
    swept = fedax.sweep(lambda lr: fedax.create("fedavg", lr=lr), {"lr": [0.05, 0.1]}, softmax(), DATA, **OPTIONS)
    np.testing.assert_allclose(swept.runs[0][0].params, device.params, rtol=1e-5, atol=1e-6)


def test_a_resumed_run_is_the_same_bit_for_bit(tmp_path):
    class Killed(Exception):
        pass

    def kill(row):
        if row["round"] == 2:
            raise Killed

    run = functools.partial(fedax.simulate, FEDAVG, softmax(), DATA, evaluate_every=1, **OPTIONS)
    checkpoint = fedax.Checkpoints(tmp_path, rounds=1)
    with pytest.raises(Killed):
        run(checkpoint=checkpoint, callback=kill)
    np.testing.assert_array_equal(run(checkpoint=checkpoint).params, run().params)
    other = tasks.CropAndFlip(crop=1)
    with pytest.raises(CheckpointError, match=r"task\.augment"):
        fedax.simulate(FEDAVG, softmax(other), DATA, evaluate_every=1, checkpoint=checkpoint, **OPTIONS)


@pytest.mark.parametrize(
    "make", [lambda task: tasks.partial(task, "*"), lambda task: tasks.partial(task, tasks.LoRA(2))]
)
def test_a_part_of_a_model_is_augmented_as_the_whole(make):
    one, other = (fedax.simulate(FEDAVG, make(softmax(each)), DATA, **OPTIONS) for each in (AUGMENT, None))
    assert not np.allclose(one.params, other.params)


def test_an_augmentation_of_ones_own_for_any_task():
    """By ``dataclasses.replace``, for a task that has none, such as one of a PyTorch module."""
    noisy = lambda batch, key: {**batch, "x": batch["x"] + jax.random.normal(key, batch["x"].shape)}  # noqa: E731
    data = fedax.FederatedData({"x": X[:, 0, :, 0] / np.float32(255), "y": Y}, SIZES)
    plain = tasks.softmax_regression(5, 3)
    task = dataclasses.replace(plain, augment=noisy)
    one, other = (fedax.simulate(FEDAVG, each, data, **OPTIONS) for each in (task, plain))
    assert not np.allclose(one.params["w"], other.params["w"])
    assert one.history["train_loss"][0] == other.history["train_loss"][0]


@pytest.mark.parametrize(
    ("augment", "kind", "message"),
    [
        (lambda batch, key: batch["x"], CodeError, r"task.augment returned .*as \{\*\*batch.*test_augmentation.py:\d+"),
        (lambda batch, key: {**batch, "x": batch["x"][:1]}, CodeError, "task.augment returned .*other values"),
        (lambda batch: batch, CodeError, r"task.augment cannot take .*augment\(batch, key\) -> batch"),
        (tasks.CropAndFlip(), DataError, r"\('n', 60\); crop and flip are for images \[n, h, w\]"),
    ],
)
def test_augmentations_that_do_not_fit(augment, kind, message):
    data = DATA if kind is CodeError else fedax.FederatedData({"x": X.reshape(-1, 60) / np.float32(255), "y": Y}, SIZES)
    with pytest.raises(kind, match=message):
        fedax.simulate(FEDAVG, softmax(augment), data, **OPTIONS)


def test_arguments_of_crop_and_flip():
    assert repr(tasks.CropAndFlip(crop=np.int64(2))) == repr(tasks.CropAndFlip(crop=2))
    for given, message in (({"crop": -1}, "crop = -1"), ({"crop": 1.5}, "crop = 1.5"), ({"flip": 1}, "flip = 1")):
        with pytest.raises(ConfigError, match=message):
            tasks.cnn((16, 16, 1), 3, **given)
    with pytest.raises(ConfigError, match="augment = 3"):
        fedax.Task(lambda key: 0.0, lambda *given: 0.0, augment=3)


# ---- weights of classes


def test_weights_multiply_the_losses_of_their_classes():
    batch = {"x": RNG.normal(size=(7, 4)).astype(np.float32), "y": np.array([0, 1, 2, 2, 1, 0, 2])}
    weights = np.float32([0.5, 0.0, 3.0])
    for make in (tasks.softmax_regression, functools.partial(tasks.mlp, hidden=(5,))):
        plain, ridge = make(4, 3), make(4, 3, l2=0.2)
        weighed = make(4, 3, l2=0.2, class_weights=weights)
        params = jax.tree.map(lambda leaf: leaf + 0.3, plain.init(jax.random.key(0)))
        losses, extra, got = (np.asarray(jax.jit(each.loss)(params, batch, None)) for each in (plain, ridge, weighed))
        np.testing.assert_allclose(got, losses * weights[batch["y"]] + extra - losses, rtol=1e-5)
        accuracies = [jax.jit(each.metrics["accuracy"])(params, batch).tolist() for each in (plain, weighed)]
        assert accuracies[0] == accuracies[1]


def test_weights_of_minus_one_and_plus_one():
    signs = {"x": RNG.normal(size=(5, 3)).astype(np.float32), "y": np.float32([1, -1, -1, 1, -1])}
    params = {"w": jnp.ones(3)}
    plain, weighed = (
        np.asarray(tasks.logistic_regression(3, class_weights=given).loss(params, signs, None))
        for given in (None, (1, 4))
    )
    np.testing.assert_allclose(weighed, plain * np.where(signs["y"] > 0, 4, 1), rtol=1e-6)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ((1, 2), r"class_weights = \(1, 2\): give 3 numbers, one for each class"),
        (2.0, "class_weights = 2.0: give 3 numbers"),
        ((1, -1, 1), "class_weights = -1"),
        ((1, np.inf, 1), "class_weights = inf"),
        ((0, 0, 0), "a positive number"),
    ],
)
def test_weights_that_cannot_be_used(weights, message):
    with pytest.raises(ConfigError, match=message):
        tasks.softmax_regression(4, 3, class_weights=weights)


# ---- without them all is as before


def test_a_task_without_them_is_called_as_before():
    plain = tasks.cnn((16, 16, 1), 3)
    assert tasks.cnn((16, 16, 1), 3, class_weights=None, crop=0, flip=False) is plain
    assert tasks.cnn((16, 16, 1), 3, crop=None, flip=None) is plain and plain.augment is None
    assert not {"class_weights", "crop", "flip", "augment"} & made_with(plain).keys()
    settings = make_job(FEDAVG, tasks.softmax_regression(60, 3), DATA, **OPTIONS).settings()
    assert settings["task"] == "softmax_regression(features=60, classes=3, l2=0.0, mean=None, std=None)"
    assert "program of task.augment" not in settings


def test_a_task_with_them_is_made_again_from_its_description():
    task = tasks.cnn((16, 16, 1), 3, class_weights=[1, 2, 3], crop=2, flip=True)
    made = made_as(task)
    assert (made["crop"], made["flip"], made["class_weights"]) == (2, True, (1, 2, 3))
    assert tasks.create(**made) is task and task.augment == tasks.CropAndFlip(2)


def test_in_a_configuration():
    """Settings that are off are in no run folder, so that those of before can go on."""
    config = {
        "data": {"name": "digits", "clients": 2},
        "task": {"name": "softmax_regression"},
        "run": {"rounds": 1},
        "methods": [{"name": "fedavg", "lr": 0.1}],
    }
    built = experiments.build(config)
    assert built.config["task"] == {"name": "softmax_regression", "l2": 0.0}
    config["task"] |= {"class_weights": [1, 1, 1, 1, 1, 1, 1, 1, 1, 2]}
    assert experiments.build(config).task is tasks.softmax_regression(64, 10, class_weights=[1] * 9 + [2])
    found = tasks.create("cnn", shape=(16, 16, 1), classes=10, crop=2)
    assert found.augment == tasks.CropAndFlip(2, flip=False)
