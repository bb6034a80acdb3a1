"""The losses, metrics and initial parameters of the tasks, against NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import tasks

RNG = np.random.default_rng(0)


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@functools.cache
def fresh(task, seed=0):
    """The task's parameters; compiled as a whole, which is quicker than draw by draw."""
    return jax.jit(task.init)(jax.random.key(seed))


def losses_of(task, params, batch):
    """The examples' losses; compiled as a whole."""
    return jax.jit(task.loss)(params, batch, None)


def loss_and_jacobian(task, params, batch):
    """The examples' losses, and their gradients."""
    return jax.jit(lambda *at: (task.loss(*at), jax.jacobian(task.loss)(*at)))(params, batch, None)


def batch_of(shape, classes, n=5):
    return {"x": RNG.normal(size=(n, *shape)).astype(np.float32), "y": RNG.integers(0, classes, n).astype(np.int32)}


def test_quadratic_is_minimal_at_the_solution_of_its_equations():
    root, e = RNG.normal(size=(2, 3, 3)), RNG.normal(size=(2, 3))
    H = root @ root.swapaxes(1, 2) + np.eye(3)
    task, x = tasks.quadratic(3), np.float32(RNG.normal(size=3))
    batch = {"H": H.astype(np.float32), "e": e.astype(np.float32)}
    task.check(batch)
    losses, gradient = loss_and_jacobian(task, x, batch)
    np.testing.assert_allclose(losses, [0.5 * x @ H[i] @ x - e[i] @ x for i in range(2)], rtol=1e-5)
    np.testing.assert_allclose(gradient, [H[i] @ x - e[i] for i in range(2)], rtol=1e-4)
    assert task.init(None).tolist() == [0, 0, 0]


@pytest.mark.parametrize("bias", [True, False])
def test_linear_regression(bias):
    task = tasks.linear_regression(3, bias=bias)
    batch = {"x": RNG.normal(size=(4, 3)).astype(np.float32), "y": RNG.normal(size=4).astype(np.float32)}
    task.check(batch)
    w, b = RNG.normal(size=3).astype(np.float32), np.float32(0.7 if bias else 0)
    params = {"w": w} | ({"b": b} if bias else {})
    assert jax.tree.map(np.shape, task.init(None)) == jax.tree.map(np.shape, params)
    errors = batch["x"] @ w + b - batch["y"]
    losses, gradient = loss_and_jacobian(task, params, batch)
    np.testing.assert_allclose(losses, errors**2, rtol=1e-4)
    np.testing.assert_allclose(gradient["w"].sum(0), 2 * errors @ batch["x"], rtol=1e-4)


def test_logistic_regression():
    task = tasks.logistic_regression(3, l2=0.1)
    batch = {"x": RNG.normal(size=(6, 3)).astype(np.float32), "y": np.array([-1, 1, 1, -1, 1, -1], np.float32)}
    task.check(batch)
    w = RNG.normal(size=3).astype(np.float32)
    margins = batch["y"] * (batch["x"] @ w)
    losses, gradient = loss_and_jacobian(task, {"w": w}, batch)
    np.testing.assert_allclose(losses, np.log1p(np.exp(-margins)) + 0.05 * w @ w, rtol=1e-5)
    assert task.metrics["accuracy"]({"w": w}, batch).tolist() == (margins > 0).tolist()
    expected = -(batch["y"] / (1 + np.exp(margins)))[:, None] * batch["x"] + 0.1 * w
    np.testing.assert_allclose(gradient["w"], expected, rtol=1e-4, atol=1e-6)
    far = {"x": np.array([[1e4, 0, 0], [-1e4, 0, 0]], np.float32), "y": np.ones(2, np.float32)}
    assert tasks.logistic_regression(3).loss({"w": np.float32([1, 0, 0])}, far, None).tolist() == [0, 1e4]


def test_softmax_regression_scales_pixels_by_channel_and_flattens_images():
    mean, std, l2 = (0.1, 0.2, 0.3), (0.5, 1.0, 2.0), 0.01
    task = tasks.softmax_regression(12, 4, l2=l2, mean=mean, std=std)
    batch = {"x": RNG.integers(0, 256, (5, 2, 2, 3)).astype(np.uint8), "y": np.array([0, 1, 2, 3, 3])}
    task.check(batch)
    params = jax.tree.map(lambda leaf: jnp.asarray(np.float32(RNG.normal(size=leaf.shape))), task.init(None))
    values = jax.tree.map(np.asarray, params)
    x = ((batch["x"] / 255 - np.array(mean)) / np.array(std)).reshape(5, 12)
    logits = x @ values["w"] + values["b"]
    ridge = l2 / 2 * ((values["w"] ** 2).sum() + (values["b"] ** 2).sum())
    np.testing.assert_allclose(
        losses_of(task, params, batch), -log_softmax(logits)[np.arange(5), batch["y"]] + ridge, rtol=1e-5
    )
    assert task.metrics["accuracy"](params, batch).tolist() == (logits.argmax(1) == batch["y"]).tolist()
    assert not any(leaf.any() for leaf in jax.tree.leaves(task.init(None)))


def test_mlp_is_products_and_relus():
    task = tasks.mlp(6, 3, hidden=(5, 4), l2=0.1)
    params, batch = fresh(task), batch_of((2, 3), 3)
    *hidden, head = jax.tree.map(np.asarray, params)
    x = batch["x"].reshape(5, 6)
    for layer in hidden:
        x = np.maximum(x @ layer["w"] + layer["b"], 0)
    logits = x @ head["w"] + head["b"]
    ridge = 0.05 * sum((leaf**2).sum() for leaf in jax.tree.leaves((hidden, head)))
    np.testing.assert_allclose(
        losses_of(task, params, batch), -log_softmax(logits)[np.arange(5), batch["y"]] + ridge, rtol=1e-5
    )


def test_initial_weights_have_the_variance_of_their_rule():
    task = tasks.mlp(400, 300, hidden=(500,))
    hidden, head = fresh(task)
    assert float(hidden["w"].var()) == pytest.approx(2 / 400, rel=0.02)
    assert float(head["w"].var()) == pytest.approx(1 / (3 * 500), rel=0.02)
    assert not hidden["b"].any()
    assert abs(float(np.corrcoef(np.ravel(hidden["w"])[:150_000], np.ravel(head["w"]))[0, 1])) < 0.02
    assert not np.allclose(hidden["w"], fresh(task, seed=1)[0]["w"])
    kernel = fresh(tasks.cnn((16, 16, 1), 2, filters=64))["convs"][1]["w"]
    assert float(kernel.var()) == pytest.approx(1 / (9 * 64), rel=0.02)
    kernel = fresh(tasks.cnn((16, 16, 1), 2, filters=64, init="he"))["convs"][1]["w"]
    assert float(kernel.var()) == pytest.approx(2 / (9 * 64), rel=0.02)


def test_a_fresh_cnn_is_unsure():
    x = np.float32(RNG.normal(size=(64, 16, 16, 3)))
    batch = {"x": x, "y": np.arange(64) % 10}
    losses = {}
    for init in ("lecun", "he"):
        task = tasks.cnn((16, 16, 3), 10, filters=32, init=init)
        loss = jax.jit(lambda key, task=task: task.loss(task.init(key), batch, None).mean())
        losses[init] = np.mean([loss(jax.random.key(seed)) for seed in range(3)])
    assert losses["lecun"] == pytest.approx(np.log(10), abs=0.3) and losses["he"] > np.log(10) + 0.6


ZOO = {
    "cnn": (tasks.cnn((17, 16, 2), 5, filters=16), batch_of((17, 16, 2), 5, n=3)),
    "vgg11": (tasks.vgg11((32, 32, 1), 5), batch_of((32, 32, 1), 5, n=2)),
    "resnet18": (tasks.resnet18((8, 8, 3), 5), batch_of((8, 8, 3), 5, n=2)),
    "char_lstm": (
        tasks.char_lstm(7, hidden=8),
        {"x": RNG.integers(0, 7, (3, 6)), "y": RNG.integers(0, 7, (3, 6))},
    ),
}


@pytest.mark.parametrize("name", ZOO)
def test_an_example_s_loss_is_its_own(name):
    task, batch = ZOO[name]
    task.check(batch)
    params = fresh(task)
    loss = jax.jit(lambda params, batch: task.loss(params, batch, None))
    classes = 7 if name == "char_lstm" else 5
    assert np.abs(loss(params, batch) - np.log(classes)).max() < 3  # a fresh model is not too sure of itself
    params = jax.tree.map(
        lambda leaf: np.where(np.asarray(leaf) == 0, np.float32(0.3), leaf), params
    )  # no part is switched off
    together = loss(params, batch)
    assert together.shape == batch["x"].shape[:1]
    assert np.ptp(together) > 0
    twice = loss(params, jax.tree.map(lambda a: np.concatenate([a[:1]] * len(a)), batch))
    np.testing.assert_allclose(twice, np.repeat(together[:1], len(twice)), rtol=1e-4)


def test_dropout_is_a_function_of_the_key():
    task, batch = ZOO["vgg11"]
    params = fresh(task)
    loss = jax.jit(task.loss)
    one, other = (loss(params, batch, jax.random.key(i)) for i in range(2))
    assert np.abs(one - other).min() > 1e-4
    assert loss(params, batch, jax.random.key(0)).tolist() == one.tolist()


def test_char_lstm_remembers_and_averages_over_time():
    task = tasks.char_lstm(5, embedding=4, hidden=16, layers=1)

    def echo(n):
        x = RNG.integers(0, 5, (n, 8))
        return {"x": x, "y": np.concatenate([np.zeros((n, 1), int), x[:, :-1]], axis=1)}  # the character before

    batch, new = echo(64), echo(4)

    @jax.jit
    def train(params):
        def step(params, _):
            gradient = jax.grad(lambda p: task.loss(p, batch, None).mean())(params)
            return jax.tree.map(lambda p, g: p - 2.0 * g, params, gradient), None

        return jax.lax.scan(step, params, length=300)[0]

    params = train(fresh(task))
    measure = jax.jit(lambda batch: (task.loss(params, batch, None), task.metrics["accuracy"](params, batch)))
    losses, accuracies = measure(new)
    assert losses.max() < 0.2
    assert accuracies.tolist() == [1.0] * 4
    wrong_from_the_third = (new["y"] + (np.arange(8) >= 2)[None]) % 5
    assert measure(new | {"y": wrong_from_the_third})[1].tolist() == [0.25] * 4


@pytest.mark.parametrize(
    ("task", "x"),
    [
        (tasks.softmax_regression(4, 3, mean=0.5), RNG.normal(size=(2, 4)).astype(np.float32)),
        (tasks.mlp(4, 3, hidden=[5], std=[2.0, 3.0]), RNG.integers(0, 256, (2, 2, 1, 2)).astype(np.uint8)),
        (tasks.cnn([16, 16, 1], 3, filters=2), RNG.normal(size=(2, 16, 16, 1)).astype(np.float32)),
    ],
)
def test_parameters_follow_the_default_float_dtype(task, x):
    batch = {"x": x, "y": np.array([0, 2])}
    loss = jax.jit(task.loss)
    with jax.enable_x64(True):
        params = jax.jit(task.init)(jax.random.key(0))
        wide = loss(params, batch, None)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {wide.dtype} == {np.dtype(np.float64)}
    narrow = loss(jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params), batch, None)
    assert narrow.dtype == np.float32
    np.testing.assert_allclose(narrow, wide, rtol=1e-4)


def as_the_model_gets_it(x, **options):
    """x [n, ...] as ``apply`` receives it."""
    seen = []

    def apply(params, x, key):
        seen.append(np.asarray(x))
        return jnp.zeros((len(x), 2)) + params[None]

    task = tasks.classification(lambda key: jnp.zeros(2), apply, classes=2, **options)
    task.loss(jnp.zeros(2), {"x": x, "y": np.zeros(len(x), int)}, None)
    return seen[0]


def test_images_are_scaled_and_tables_are_not():
    table = RNG.integers(0, 256, (4, 6)).astype(np.uint8)
    same, by_hand = as_the_model_gets_it(table), as_the_model_gets_it(table, std=255)
    assert same.dtype == np.float32 and same.tolist() == table.tolist()
    np.testing.assert_allclose(by_hand, table / 255, rtol=1e-6)
    for shape in ((4, 3, 2), (4, 3, 2, 1)):
        np.testing.assert_allclose(as_the_model_gets_it(table.reshape(shape)), table.reshape(shape) / 255, rtol=1e-6)
    flags = as_the_model_gets_it(table > 9)
    assert flags.dtype == np.float32 and flags.tolist() == (table > 9).tolist()
    assert as_the_model_gets_it((table > 9).reshape(4, 3, 2)).max() == 1.0
    tokens = as_the_model_gets_it(table.astype(np.int32))
    assert tokens.dtype == np.int32 and tokens.tolist() == table.tolist()
    wide = as_the_model_gets_it(table.astype(np.float16))
    assert wide.dtype == np.float16


@pytest.mark.parametrize("kind", [np.uint8, bool, np.float32])
def test_the_flat_models_take_tables_of_any_such_type(kind):
    x = RNG.integers(0, 2, (3, 4)).astype(kind)
    task = tasks.mlp(4, 2, hidden=())
    task.check({"x": x, "y": np.zeros(3, int)})
    params = [{"w": jnp.ones((4, 2)).at[:, 0].set(0.0), "b": jnp.zeros(2)}]
    loss = task.loss(params, {"x": x, "y": np.zeros(3, int)}, None)
    np.testing.assert_allclose(loss, np.logaddexp(0, x.astype(float).sum(axis=1)), rtol=1e-5)


def test_bfloat16_logits_and_parameters_have_losses_in_float32():
    make = lambda dtype: tasks.classification(  # noqa: E731
        lambda key: jnp.ones((4, 3), dtype), lambda p, x, key: x.astype(p.dtype) @ p, 3, l2=0.5
    )
    batch = {"x": RNG.normal(size=(5, 4)).astype(np.float32), "y": np.zeros(5, int)}
    one, other = (make(dtype).loss(jnp.ones((4, 3), dtype), batch, None) for dtype in (jnp.bfloat16, jnp.float32))
    assert one.dtype == np.float32
    np.testing.assert_allclose(one, other, rtol=1e-5)


def test_the_same_metrics_give_the_same_task():
    """JAX then compiles once, however often a configuration with metrics is made into a task."""
    task, own = fedax.tasks.softmax_regression(2, 3), lambda params, batch: batch["y"]
    made = task.with_metrics(f1=fedax.metrics.F1("macro"), own=own)
    assert made is task.with_metrics(f1=fedax.metrics.F1("macro"), own=own)
    for other in ({"f1": fedax.metrics.F1("micro"), "own": own}, {"f1": fedax.metrics.F1("macro")}):
        assert task.with_metrics(**other) is not made and task.with_metrics(**other).metrics["f1"] == other["f1"]
    assert fedax.tasks.softmax_regression(2, 4).with_metrics(f1=fedax.metrics.F1("macro"), own=own) is not made
