"""Bad arguments and examples: one error that names the field, the value and the way out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import tasks
from fedax.errors import CodeError, ConfigError, DataError

X, Y = np.zeros((3, 4), np.float32), np.array([0, 1, 2])
IMAGES = np.zeros((3, 16, 16, 1), np.uint8)
SIGNS = np.array([1, -1, 1])
EYES = np.stack([np.eye(2)] * 2)


@pytest.mark.parametrize(
    ("task", "examples", "message"),
    [
        (tasks.mlp(4, 3), [X, Y], r"a list, not a dict .*\{'x': ..., 'y': ...\}"),
        (tasks.mlp(4, 3), {"x": X}, r"no 'y' \(there are: x\)"),
        (tasks.mlp(4, 3), {"x": X, "y": Y[:2]}, r"'x' \(3, 4\), 'y' \(2,\)"),
        (tasks.mlp(5, 3), {"x": X, "y": Y}, r"that is 4 features, .*features=4"),
        (tasks.mlp(4, 3), {"x": X.astype(int), "y": Y}, r"\['x'\]: int64 .*use .astype"),
        (tasks.mlp(4, 3), {"x": X, "y": Y + 1}, r"example 2 has label 3, .*0 to 2; .*classes=4"),
        (tasks.mlp(4, 3), {"x": X, "y": Y - 1}, r"example 0 has label -1"),
        (tasks.mlp(4, 3), {"x": X, "y": Y * 1.0}, r"\['y'\]: float64 where whole numbers"),
        (
            tasks.mlp(4, 3),
            {"x": X, "y": Y + 0.5},
            r"\['y'\]: float64 .*give each class a number",
        ),
        (tasks.mlp(4, 3), {"x": X, "y": Y[:, None]}, r"\['y'\]: .*shape \(1,\); .*y\[..., 0\]"),
        (tasks.mlp(4, 3), {"x": X, "y": np.eye(3)}, r"\['y'\]: shape \(3, 3\), .*argmax"),
        (tasks.cnn((16, 16, 3), 3), {"x": IMAGES, "y": Y}, r"\(16, 16, 1\), but .*\(16, 16, 3\)"),
        (tasks.cnn((16, 16, 1), 3, mean=(1, 2, 3)), {"x": IMAGES, "y": Y}, "but mean has 3 numbers"),
        (tasks.logistic_regression(4), {"x": X, "y": Y}, r"example 0 has label 0, .* 2 \* y - 1"),
        (tasks.logistic_regression(3), {"x": X, "y": SIGNS}, r"shape \(4,\), but the task is for \(3,\)"),
        (tasks.logistic_regression(4), {"x": X.astype(np.uint8), "y": SIGNS}, "uint8 where real numbers are due"),
        (tasks.linear_regression(4), {"x": X, "y": Y}, r"\['y'\]: int64 where real numbers"),
        (tasks.quadratic(2), {"H": EYES, "e": np.ones((2, 3))}, r"\['e'\]: each example .*\(3,\)"),
        (tasks.quadratic(2), {"H": np.triu(EYES + 1), "e": np.ones((2, 2))}, "example 0 is not symmetric"),
        (tasks.char_lstm(9), {"x": np.full((2, 5), 9), "y": np.zeros((2, 5), int)}, "character 9, .*vocabulary=10"),
        (tasks.char_lstm(9), {"x": np.zeros((2, 5), int), "y": np.zeros((2, 4), int)}, r"\(4,\), .*for \(5,\)"),
        (tasks.char_lstm(9), {"x": np.zeros(2, int), "y": np.zeros(2, int)}, r"give \[n, T\]"),
    ],
)
def test_examples_that_do_not_fit(task, examples, message):
    with pytest.raises(DataError, match=message):
        task.check(examples)


@pytest.mark.parametrize(
    ("name", "hyper", "message"),
    [
        ("mpl", {}, "task = 'mpl': did you mean 'mlp'?"),
        ("mlp", {"features": 4, "clases": 3}, "argument of mlp = 'clases': .*'classes'"),
        ("mlp", {"features": 4}, "classes = None: .*mlp takes features, classes"),
        ("mlp", {"features": 0, "classes": 3}, "features = 0: give .* at least 1"),
        ("mlp", {"features": 4, "classes": 1}, "classes = 1: give .* at least 2"),
        ("mlp", {"features": 4, "classes": 3, "hidden": [5, 0]}, "hidden = 0"),
        ("mlp", {"features": 4, "classes": 3, "l2": -0.1}, r"l2 = -0.1: give a number in \[0, ∞\)"),
        ("mlp", {"features": 4, "classes": 3, "l2": float("nan")}, "l2 = nan"),
        ("mlp", {"features": 4, "classes": 3, "std": [1.0, 0.0]}, r"std = \(1.0, 0.0\): give positive numbers"),
        ("mlp", {"features": 4, "classes": 3, "mean": float("inf")}, "mean = inf: give one finite number"),
        ("cnn", {"shape": (28, 28), "classes": 3}, r"shape = \(28, 28\): .*width, channels\)"),
        ("cnn", {"shape": (28, 28, 1), "classes": 3, "init": "uniform"}, 'init = \'uniform\': give "lecun", or "he"'),
        ("cnn", {"shape": (28, 8, 1), "classes": 3}, "shape's width = 8: .*at least 16"),
        ("vgg11", {"shape": (32, 32, 3), "classes": 3, "drop": 1.0}, r"drop = 1.0: give a number in \[0, 1\)"),
        ("resnet18", {"shape": (32, 32, 3), "classes": 3, "groups": 3}, "groups = 3: give a divisor of 64"),
        ("char_lstm", {"vocabulary": 1}, "vocabulary = 1: .*at least 2"),
    ],
)
def test_arguments_that_cannot_be_used(name, hyper, message):
    with pytest.raises(ConfigError, match=message):
        tasks.create(name, **hyper)


def test_the_same_arguments_give_the_same_task():
    task = tasks.mlp(4, 3, hidden=(5,))
    assert tasks.mlp(features=np.int64(4), classes=3, hidden=[5], l2=0.0) is task
    assert tasks.create("mlp", features=4, classes=3, hidden=np.array([5])) is task
    assert tasks.mlp(4, 3, hidden=(6,)) is not task


def test_every_task_has_one_line():
    lines = tasks.available()
    assert set(lines) == {
        *("quadratic", "linear_regression", "logistic_regression", "softmax_regression"),
        *("mlp", "mlp_regression", "cnn", "vgg11", "resnet18", "char_lstm"),
    }
    assert all(line.endswith((".", "xᵀw.")) and "\n" not in line for line in lines.values())


def zeros(*shape):
    return lambda params, x, key: jnp.zeros([len(x) if n == "b" else n for n in shape]) + params.sum()


@pytest.mark.parametrize(
    ("apply", "message"),
    [
        (zeros("b", 1), r"apply returned \[5, 1\]; classes = 2 needs \[5, 2\]"),
        (zeros("b"), r"apply returned \[5\]; classes = 2 needs \[5, 2\]"),
        (zeros("b", 3), r"apply returned \[5, 3\]; classes = 2 needs \[5, 2\]"),
        (zeros(2, "b"), r"apply returned \[2, 5\]; classes = 2 needs \[5, 2\]"),
        (zeros("b", 2, 1), r"apply returned \[5, 2, 1\]; classes = 2 needs \[5, 2\]"),
        (zeros(), r"apply returned \[\]; classes = 2 needs \[5, 2\]"),
        (lambda params, x, key: (jnp.zeros((len(x), 2)), {}), r"apply returned a tuple; classes = 2 needs \[5, 2\]"),
        (lambda params, x: x @ params, r"apply cannot take .*it is called as apply\(params, x, key\) -> logits"),
        (lambda params, x, key: x @ params["w"], r"apply raised .*; params are float32\[4, 2\]; x is float32\[5, 4\]"),
    ],
)
def test_models_that_do_not_return_logits(apply, message):
    task = tasks.classification(lambda key: jnp.zeros((4, 2)), apply, classes=2)
    batch = {"x": jnp.zeros((5, 4)), "y": jnp.zeros(5, int)}
    for measure in (
        lambda params: task.loss(params, batch, None),
        lambda params: task.metrics["accuracy"](params, batch),
    ):
        with pytest.raises(CodeError, match=rf"{message}.*test_bad_input.py:\d+\)"):
            jax.eval_shape(measure, jnp.zeros((4, 2)))


@pytest.mark.parametrize("classes", [2, 31, 32, 33])
def test_no_number_of_classes_is_taken_for_the_batch(classes):
    """The dry run's batch has an unusual length, so that transposed logits are found for any number of classes."""
    across = tasks.classification(lambda key: jnp.zeros((4, classes)), lambda p, x, key: (x @ p).T, classes)
    data = fedax.FederatedData({"x": np.zeros((32, 4), np.float32), "y": np.zeros(32, int)}, [16, 16])
    with pytest.raises(CodeError, match=rf"apply .*\[{classes}, \d+\]; classes = {classes}"):
        fedax.simulate(fedax.create("fedavg"), across, data, rounds=1, batch_size=32)


def images_of(dtype, *shape):
    x = np.random.default_rng(0).integers(0, 256 if dtype == np.uint8 else 2, (8, *shape)).astype(dtype)
    return fedax.FederatedData({"x": x, "y": np.arange(8) % 3}, [4, 4])


def own_task(prepared):
    """A task of the user's own, whose model gets ``prepared(x)``."""

    def loss(params, batch, key):
        x = prepared(batch["x"])
        scores = x.reshape(len(x), -1) @ params
        return -jax.nn.log_softmax(scores)[jnp.arange(len(x)), batch["y"]]

    return fedax.Task(lambda key: jnp.zeros((16 * 16, 3)), loss)


def convolved(x):
    kernel = jnp.ones((3, 3, 1, 1), jnp.float32)
    return jax.lax.conv_general_dilated(
        x.astype(jnp.float32), kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


@pytest.mark.parametrize("prepared", [lambda x: x, jax.jit(lambda x: x[:, ::-1].astype(jnp.float32)), convolved])
def test_uint8_images_that_reach_weights_as_they_are(prepared):
    with pytest.raises(CodeError, match=r"task.loss .*uint8 images.*255; divide by 255.*test_bad_input.py:\d+"):
        fedax.simulate(fedax.create("fedavg"), own_task(prepared), images_of(np.uint8, 16, 16, 1), rounds=1)


@pytest.mark.parametrize(
    ("prepared", "dtype", "shape"),
    [
        (lambda x: x / 255, np.uint8, (16, 16, 1)),
        (lambda x: (x.astype(jnp.float32) - 127) * (1 / 64), np.uint8, (16, 16)),
        (lambda x: x, np.bool_, (16, 16, 1)),
        (lambda x: x, np.float32, (16, 16, 1)),
        (lambda x: x, np.uint8, (256,)),  # a table, which no task of fedax scales either
        (lambda x: jnp.linspace(0, 1, 256)[x], np.uint8, (16, 16)),  # an embedding
    ],
)
def test_own_tasks_that_scale_images_or_have_none(prepared, dtype, shape):
    run = fedax.simulate(fedax.create("fedavg", lr=1e-6), own_task(prepared), images_of(dtype, *shape), rounds=1)
    assert np.isfinite(run.history["train_loss"]).all()
