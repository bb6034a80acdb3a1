"""The convex tasks: quadratics, linear, logistic and softmax regression. All start at zero."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedax.errors import ExampleError
from fedax.numbers import check_count, check_number
from fedax.tasks import checks
from fedax.tasks.classification import OF_NUMBERS, OF_TWO_CLASSES, classification, weighing
from fedax.tasks.factory import ClassWeights, Factory, PerChannel, Real
from fedax.tasks.layers import dense
from fedax.tasks.losses import ridge
from fedax.tasks.task import Task


@Factory
def quadratic(d: int) -> Task:
    """Quadratics, the problems whose every fixed point is known in closed form.

    ``f(x) = ½ xᵀHx − eᵀx``, minimised at x = H⁻¹e. One example a client makes F_i a quadratic of its own. The
    parameters are one array of shape [d].

    Args:
        d: dimension, at least 1.

    Examples are ``{"H": [n, d, d] symmetric, "e": [n, d]}``.

    Raises:
        ConfigError: arguments out of range.
        DataError: by a run, examples that do not fit.

    Source: Wang et al. 2020, "Tackling the objective inconsistency problem", equation 13, without its constant; with
    H = I it is equation 3.

    Example:
        >>> import fedax
        >>> task = fedax.tasks.quadratic(2)
        >>> task.loss(jnp.array([1.0, 2.0]), {"H": jnp.eye(2)[None], "e": jnp.ones((1, 2))}, None).tolist()
        [-0.5]
    """
    check_count("d", d)

    def loss(x: Any, batch: Any, key: Any) -> Any:
        # "highest": an accelerator's default may round the products to ten bits, and closed forms would not hold.
        Hx = jnp.einsum("bij,j->bi", batch["H"], x, precision="highest")
        return jnp.einsum("bi,i->b", 0.5 * Hx - batch["e"], x, precision="highest")

    def check(examples: Any) -> None:
        H, e = checks.columns(examples, "H", "e")
        for name, array, shape in (("H", H, (d, d)), ("e", e, (d,))):
            checks.real(name, array)
            checks.shaped(name, array, shape)
        skew = np.abs(H - H.swapaxes(1, 2)).max(axis=(1, 2))
        if (bad := np.flatnonzero(skew > 1e-5 * np.abs(H).max(axis=(1, 2)))).size:
            what = "is not symmetric; give (H + H.T) / 2, the same quadratic"
            raise ExampleError("examples['H']", int(bad[0]), what)

    return Task(lambda key: jnp.zeros(d), loss, check=check, name="quadratic")


@Factory
def linear_regression(features: int, bias: bool = True) -> Task:
    """Least squares.

    ``f(w, b) = (xᵀw + b − y)²``: without the ½, so gradients are twice those of the ½ form. The parameters are
    ``{"w": [features], "b": []}``, or without "b" where there is no bias. The metrics are ``r2`` and ``mae``.

    Args:
        features: length of an x, at least 1.
        bias: whether b is learnt.

    Examples are ``{"x": [n, features], "y": [n]}``, real numbers.

    Raises:
        ConfigError: arguments out of range.
        DataError: by a run, examples that do not fit.

    Source: "Federated learning's blessing: FedAvg has linear speedup", section 5, case 3.

    Example:
        >>> import fedax
        >>> task = fedax.tasks.linear_regression(2)
        >>> task.loss(task.init(None), {"x": jnp.ones((1, 2)), "y": jnp.array([3.0])}, None).tolist()
        [9.0]
    """
    check_count("features", features)

    def init(key: Any) -> Any:
        return {"w": jnp.zeros(features)} | ({"b": jnp.zeros(())} if bias else {})

    def outputs(params: Any, batch: Any) -> Any:
        return batch["x"] @ params["w"] + params.get("b", 0.0)

    def loss(params: Any, batch: Any, key: Any) -> Any:
        return (outputs(params, batch) - batch["y"]) ** 2

    def check(examples: Any) -> None:
        x, y = checks.columns(examples, "x", "y")
        checks.real("x", x)
        checks.shaped("x", x, (features,))
        checks.real("y", y)
        checks.shaped("y", y, ())

    return Task(init, loss, OF_NUMBERS, check, "linear_regression", outputs, "regression")


@Factory
def logistic_regression(features: int, l2: Real = 0.0, class_weights: ClassWeights = None) -> Task:
    """Two classes, labelled −1 and +1, separated by the sign of xᵀw.

    ``f(w) = log(1 + exp(−y xᵀw)) + (l2/2)‖w‖²``. There is no bias, as in the paper: append a column of ones to x
    for one. The parameters are ``{"w": [features]}``, the metrics are ``accuracy``, ``auc`` and ``f1``.

    Args:
        features: length of an x, at least 1.
        l2: λ ≥ 0, part of each example's loss; 1/n in the paper.
        class_weights: of −1 and of +1; see :func:`fedax.tasks.classification`.

    Examples are ``{"x": [n, features], "y": [n]}``.

    Raises:
        ConfigError: arguments out of range.
        DataError: by a run, examples that do not fit.

    Source: "Federated learning's blessing: FedAvg has linear speedup", section 5, cases 1 and 2.

    Example:
        >>> import fedax
        >>> task = fedax.tasks.logistic_regression(2)
        >>> print(task.loss(task.init(None), {"x": jnp.ones((1, 2)), "y": jnp.array([-1.0])}, None).round(4))
        [0.6931]
    """
    check_count("features", features)
    check_number("l2", l2, 0, fixed=True)
    weighed = weighing(class_weights, 2)

    def outputs(params: Any, batch: Any) -> Any:
        return batch["x"] @ params["w"]

    def loss(params: Any, batch: Any, key: Any) -> Any:
        each = jax.nn.softplus(-batch["y"] * outputs(params, batch))
        return weighed(each, batch["y"]) + ridge(params, l2)

    def accuracy(params: Any, batch: Any) -> Any:
        scores = outputs(params, batch)
        return ((scores > 0) == (batch["y"] > 0)).astype(scores.dtype)

    def check(examples: Any) -> None:
        x, y = checks.columns(examples, "x", "y")
        checks.real("x", x)
        checks.shaped("x", x, (features,))
        checks.signs(y)

    def init(key: Any) -> Any:
        return {"w": jnp.zeros(features)}

    metrics = {"accuracy": accuracy, **OF_TWO_CLASSES}
    return Task(init, loss, metrics, check, "logistic_regression", outputs, "classification")


@Factory
def softmax_regression(
    features: int,
    classes: int,
    l2: Real = 0.0,
    mean: PerChannel = None,
    std: PerChannel = None,
    class_weights: ClassWeights = None,
) -> Task:
    """Multinomial logistic regression.

    ``f(W, b) = −log softmax(xᵀW + b)[y] + (l2/2)(‖W‖² + ‖b‖²)``. The parameters are ``{"w": [features, classes],
    "b": [classes]}``, the metric is ``accuracy``, of two classes also ``auc`` and ``f1``.

    Args:
        features: numbers in an x, at least 1; images are flattened.
        classes: at least 2.
        l2: ≥ 0, part of each example's loss.
        mean, std: subtracted and divided by; see :func:`fedax.tasks.classification`.
        class_weights: of each class; see there.

    Examples are ``{"x": [n, ...] real, uint8 or bool, "y": [n] whole numbers from 0 to classes − 1}``.

    Raises:
        ConfigError: arguments out of range.
        DataError: by a run, examples that do not fit.

    Source: Li et al. 2020, FedProx, the model of the Synthetic(α, β) experiments.

    Example:
        >>> import fedax
        >>> task = fedax.tasks.softmax_regression(2, 10)
        >>> print(task.loss(task.init(None), {"x": jnp.ones((1, 2)), "y": jnp.array([3])}, None).round(4))
        [2.3026]
    """
    check_count("features", features)

    def init(key: Any) -> Any:
        return {"w": jnp.zeros((features, classes)), "b": jnp.zeros(classes)}

    def apply(params: Any, x: Any, key: Any) -> Any:
        return dense(x.reshape(x.shape[0], -1), params["w"], params["b"])

    check = functools.partial(checks.features, count=features)
    return classification(init, apply, classes, mean, std, l2, check, "softmax_regression", class_weights)
