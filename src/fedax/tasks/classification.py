"""A classification task around any model: input scaling, cross-entropy, accuracy, checks."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedax.contract.vector import spelled
from fedax.errors import CodeError, ConfigError, call, place_of
from fedax.metrics import AUC, F1, MAE, R2
from fedax.metrics.base import second
from fedax.numbers import check_count, check_number
from fedax.tasks import checks
from fedax.tasks.factory import ClassWeights, Factory, PerChannel, Real
from fedax.tasks.losses import correct, cross_entropy, once, ridge
from fedax.tasks.task import Task

OF_TWO_CLASSES: dict[str, Any] = {"auc": AUC(), "f1": F1()}  # besides the accuracy, which a majority makes high
OF_NUMBERS: dict[str, Any] = {"r2": R2(), "mae": MAE()}


@Factory
def classification(
    init: Callable[[Any], Any],
    apply: Callable[[Any, Any, Any], Any],
    classes: int,
    mean: PerChannel = None,
    std: PerChannel = None,
    l2: Real = 0.0,
    check: Callable[[np.ndarray], None] | None = None,
    name: str = "classification",
    class_weights: ClassWeights = None,
    augment: Callable[[Any, Any], Any] | None = None,
) -> Task:
    """Classification by anyone's model: Equinox, Flax or a plain function.

    ``f(params) = −log softmax(apply(params, x))[y] + (l2/2)‖params‖²``; the metric is ``accuracy``, of two classes also
    ``auc`` and ``f1`` of the second one.

    Args:
        init: ``init(key) -> params``, a pytree of floating-point arrays.
        apply: ``apply(params, x, key) -> logits [b, classes]``. ``key`` is None in evaluation: no dropout then. The
            loss takes logits of a narrower type as float32.
        classes: at least 2.
        mean, std: x becomes (x − mean)/std, in the units of x after scaling. A number, or one a channel (the last
            axis of x). Default: as it is.
        l2: ≥ 0, part of each example's loss, over all parameters (what is called weight decay elsewhere).
        check: ``check(x)`` raises :class:`fedax.errors.DataError` for inputs (NumPy) that the model cannot take.
        name: for reports.
        class_weights: a number ≥ 0 for each class, by which the cross-entropy of its examples is multiplied, in
            training and in every loss that is reported; other metrics are as without. Default: 1 each.
        augment: of minibatches in training, as of :class:`fedax.Task`; of images
            ``fedax.tasks.CropAndFlip(crop=4)``.

    Examples are ``{"x": [n, ...], "y": [n] whole numbers from 0 to classes − 1}``. x of uint8 or bool becomes
    floating-point numbers here, so that the data stay small in memory; uint8 images, [n, h, w] or [n, h, w, c], are
    divided by 255. Tables, [n, features], are not: if theirs are pixels, give ``std=255``. Any other x reaches the
    model as it is.

    Raises:
        ConfigError: fewer than 2 classes, a negative l2, a std that is not positive, no such class weights; when it is
            used, an ``apply`` that fails or returns anything but [b, classes].

    Example:
        >>> import fedax, jax
        >>> def init(key):
        ...     return jax.random.normal(key, (4, 3))
        >>> def apply(params, x, key):
        ...     return x @ params
        >>> task = fedax.tasks.classification(init, apply, classes=3)
        >>> batch = {"x": jnp.zeros((2, 4)), "y": jnp.array([0, 2])}
        >>> print(task.loss(task.init(jax.random.key(0)), batch, None).round(4))
        [1.0986 1.0986]
    """
    check_count("classes", classes, low=2)
    check_number("l2", l2, 0, fixed=True)
    scale, weighed = scaling(mean, std), weighing(class_weights, classes)

    @once
    def logits(params: Any, x: Any, key: Any) -> Any:
        x = scale(x)
        about = f"params are {spelled(params)}; x is {spelled(x)}"
        scores = call("apply", "apply(params, x, key) -> logits [b, classes]", apply, params, x, key, about=about)
        if (due := (x.shape[0], classes)) != getattr(scores, "shape", None):
            returned = list(scores.shape) if hasattr(scores, "shape") else f"a {type(scores).__name__}"
            raise CodeError("apply", f"returned {returned}", f"classes = {classes} needs {list(due)}", place_of(apply))
        return scores.astype(jnp.promote_types(scores.dtype, jnp.float32))

    def loss(params: Any, batch: Any, key: Any) -> Any:
        each = cross_entropy(logits(params, batch["x"], key), batch["y"])
        return weighed(each, batch["y"]) + ridge(params, l2)

    def outputs(params: Any, batch: Any) -> Any:
        return logits(params, batch["x"], None)

    def accuracy(params: Any, batch: Any) -> Any:
        return correct(outputs(params, batch), batch["y"])

    def check_examples(examples: Any) -> None:
        x, y = checks.columns(examples, "x", "y")
        if check is not None:
            check(x)
        checks.scaled(x, mean, std)
        checks.labels(y, classes)

    metrics = {"accuracy": accuracy} | (OF_TWO_CLASSES if classes == 2 else {})
    return Task(init, loss, metrics, check_examples, name, outputs, "classification", augment)


def weighing(class_weights: ClassWeights, classes: int) -> Callable[[Any, Any], Any]:
    """``weighed(losses, y)``: the losses of examples times the weights of their classes y.

    Raises:
        ConfigError: weights that cannot be used.
    """
    if class_weights is None:
        return lambda losses, y: losses
    if not isinstance(class_weights, tuple) or len(class_weights) != classes:
        raise ConfigError("class_weights", class_weights, f"give {classes} numbers, one for each class")
    for weight in class_weights:
        check_number("class_weights", weight, 0, fixed=True)
    if not any(class_weights):
        raise ConfigError("class_weights", class_weights, "give a positive number for a class at least")
    return lambda losses, y: losses * jnp.asarray(class_weights, losses.dtype)[second(y) if classes == 2 else y]


def scaling(mean: PerChannel, std: PerChannel) -> Callable[[Any], Any]:
    """The scaling of x before the model: whole numbers to real ones, then (x − mean)/std; see :func:`classification`.

    Raises:
        ConfigError: a mean or std that cannot be used.
    """
    for field, value in (("mean", mean), ("std", std)):
        numbers = value is None or np.asarray(value).dtype.kind in "iuf"
        if not numbers or (value is not None and (np.ndim(value) > 1 or not np.isfinite(value).all())):
            raise ConfigError(field, value, "give one finite number, or one for each channel")
    if std is not None and not (np.asarray(std) > 0).all():
        raise ConfigError("std", std, "give positive numbers")

    def per_channel(value: Any, x: Any) -> Any:
        return jnp.reshape(jnp.asarray(value, x.dtype), (1,) * (x.ndim - 1) + (-1,))

    def scale(x: Any) -> Any:
        x = jnp.asarray(x)
        if x.dtype in (jnp.uint8, jnp.bool_):
            x = x.astype(float) / (255 if x.dtype == jnp.uint8 and x.ndim >= 3 else 1)
        if mean is not None:
            x = x - per_channel(mean, x)
        if std is not None:
            x = x / per_channel(std, x)
        return x

    return scale
