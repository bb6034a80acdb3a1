"""The contract of a metric: sums over examples, and a value computed from the sums; and how model outputs are read.

A metric of a whole data set, such as AUC, is no mean over examples. But every place that holds examples (a block, a
device, a process, a client) can compute sums over its own examples; the sums are added, and the value is computed from
the total. The program that evaluates the model computes the sums, on its devices; the host computes the value, in
float64. Outside of a run both are computed in float64 on the host, by the same formulas.
"""

import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedax.errors import CodeError, ConfigError, ExampleError, place_of
from fedax.numbers import check_number

Array = Any
Sums = Any

Direction = Literal["lower", "higher"]
Kind = Literal["classification", "regression"]


class Metric:
    """A measure of a whole data set; subclasses are frozen dataclasses.

    To write one: ``better``, and ``sums`` and ``value``, where ``sums`` may use NumPy's functions under ``jax.numpy``
    alone if it is used in runs only. ``fedax.metrics.Accuracy`` is a short one to follow.

    Attributes:
        better: ``"higher"`` or ``"lower"``.
        kind: of tasks that it is for, ``"classification"`` or ``"regression"``; ``None``: for all.

    Example:
        >>> import fedax
        >>> auc = fedax.metrics.AUC()
        >>> auc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]), auc.name, auc.better
        (0.75, 'auc', 'higher')
    """

    better: Direction
    kind: Kind | None = None
    ranks = False  # whether [n] whole numbers are scores as all others, and no classes

    @property
    def name(self) -> str:
        """The default name of its column: made of the name of the class and its arguments."""
        return name_of(type(self))

    def __call__(self, y_true: Any, y_score: Any, sample_weight: Any = None) -> float:
        """The value, as scikit-learn's function of that name has it.

        Args:
            y_true: [n] labels: 0 and 1, −1 and +1, or classes from 0; of regression real numbers, [n] or [n, k].
            y_score: what the model says. Of classification: probabilities, [n] of the second class or [n, C]; or
                classes, [n] whole numbers; or else log-odds [n] or logits [n, C]. Of regression: like ``y_true``.
            sample_weight: [n], what each example counts, ≥ 0; default: all the same.

        Returns:
            Not-a-number where the metric is undefined.

        Raises:
            ConfigError: arrays that do not fit together; labels that are no classes, where there have to be; values
                that are not a number.
        """
        y, score, weights = checked(self, y_true, y_score, sample_weight)
        outputs = score.astype(float) if self.kind == "regression" else as_outputs(y, score)
        return self.exact(outputs, y, weights)

    def exact(self, outputs: Array, y: Array, weights: Array = None) -> float:
        """The value of what a task's ``outputs`` gave for some examples, in float64 on the host.

        Args:
            outputs: as of :class:`fedax.Task`.
            y: [n, ...] labels.
            weights: [n] what each counts; default: 1.
        """
        outputs, y = np.asarray(outputs, float), np.asarray(y)
        weights = np.ones(len(y)) if weights is None else np.asarray(weights, float)
        with np.errstate(all="ignore"):
            return float(self.value(self.sums(outputs, y, weights), self.labels(y, weights)))

    def sums(self, outputs: Array, y: Array, weights: Array) -> Sums:
        """Sums over some examples, a pytree of arrays.

        Args:
            outputs, y: as of :meth:`exact`; in a run, arrays that JAX traces.
            weights: [n] what each example counts; 0 where it is none. Of whole numbers in a run, so that sums of them
                are exact.
        """
        raise NotImplementedError

    def labels(self, y: np.ndarray, weights: Array = None) -> Sums:
        """Sums of the labels alone, which no model changes: made once, on the host, in float64. Default: none."""
        return ()

    def joined(self, one: Sums, other: Sums) -> Sums:
        """What :meth:`labels` gave at two places, as one. Default: their sum."""
        return added(one, other)

    def value(self, sums: Sums, labels: Sums = ()) -> float:
        """The value of a total of sums, NumPy arrays of float64 and int64; not-a-number where it is undefined."""
        raise NotImplementedError

    def bound(self, sums: Sums) -> float:
        """The largest error of the value of these sums; 0 if it is exact."""
        return 0.0

    def of_run(self, sums: Sums, labels: Sums = ()) -> float:
        """:meth:`value` of what a run's program gave."""
        with np.errstate(all="ignore"):
            return float(self.value(wide(sums), labels))


class HostMetric(Metric):
    """A metric of which there are no sums: it needs all outputs in one place, on the host."""

    def exact(self, outputs: Array, y: Array, weights: Array = None, kind: Kind | None = "classification") -> float:
        """As in :class:`Metric`; ``kind``: of the task, for metrics of all kinds of tasks."""
        raise NotImplementedError


def wide(sums: Sums) -> Sums:
    """Sums as NumPy arrays of float64 and int64, which can be added without loss."""
    return jax.tree.map(lambda leaf: _widened(np.asarray(leaf)), sums)


def _widened(leaf: np.ndarray) -> np.ndarray:
    return leaf.astype(np.int64 if leaf.dtype.kind in "iub" else np.float64)


def name_of(kind: type) -> str:
    """The name of a metric's class in small letters, with an underscore between words."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.__name__).lower()


def added(one: Sums, other: Sums) -> Sums:
    """The sum of two."""
    return jax.tree.map(np.add, wide(one), wide(other))


def check_metrics(metrics: Mapping[str, Any], outputs: Callable[..., Any] | None, kind: str | None) -> None:
    """Check that a task with these outputs can have these metrics.

    Raises:
        ConfigError: one needs outputs and there are none, is for tasks of another kind, or has another ``value``.
    """
    for name, metric in metrics.items():
        if not isinstance(metric, Metric):
            continue
        try:
            inspect.signature(metric.value).bind({}, ())
        except TypeError as error:
            what = f"cannot take its arguments ({error})"
            hint = "it is called as value(sums, labels); give labels the default ()"
            raise CodeError(f"{type(metric).__name__}.value", what, hint, place_of(metric.value)) from None
        if outputs is None:
            hint = "a metric of a whole data set needs what the model answers: give the task outputs and kind too"
            raise ConfigError(f"metrics[{name!r}]", metric, hint)
        if metric.kind is not None and kind is not None and metric.kind != kind:
            raise ConfigError(f"metrics[{name!r}]", metric, f"this is for {metric.kind}, and the task is one of {kind}")


def check_labels(metrics: Mapping[str, Any], kind: str | None, examples: Any) -> None:
    """Check that labels are classes, if a metric compares them with classes.

    Raises:
        ExampleError: one has a fraction, or is not finite.
    """
    y = examples.get("y") if isinstance(examples, Mapping) else None
    if y is None or np.asarray(y).dtype.kind != "f":
        return
    y = np.asarray(y).reshape(len(y), -1)
    for name, metric in metrics.items():
        if not isinstance(metric, Metric) or (metric.kind or kind) != "classification":
            continue
        if (bad := np.flatnonzero((y != np.rint(y)).any(axis=1) | ~np.isfinite(y).all(axis=1))).size:
            hint = f"and the metric {name} is for classes; give whole numbers, or take r2, mae or rmse"
            raise ExampleError("examples['y']", int(bad[0]), f"has label {y[bad[0]].tolist()}, {hint}")


# ---- reading outputs


def functions_of(array: Array) -> Any:
    """``numpy`` for its own arrays, else ``jax.numpy``."""
    return np if isinstance(array, np.ndarray) else jnp


def fitting(y: Array, outputs: Array) -> Array:
    """The labels; [n] in place of [n, 1] where the outputs are [n]."""
    return y[..., 0] if y.ndim == outputs.ndim + 1 and y.shape[-1] == 1 else y


def of_two(outputs: Array, y: Array) -> bool:
    """Whether there are two classes: log-odds, or two logits an example."""
    return bool(outputs.ndim == y.ndim or outputs.shape[-1] == 2)


def log_odds(outputs: Array, y: Array) -> Array:
    """The log-odds of the second of two classes, shaped as y."""
    return outputs if outputs.ndim == y.ndim else outputs[..., 1] - outputs[..., 0]


def second(y: Array) -> Array:
    """Whether a label is the second of two, 1 of 0 and 1 or +1 of −1 and +1; whole numbers 0 and 1."""
    return (y > 0).astype(np.int32)


def classes_of(outputs: Array, y: Array) -> tuple[Array, Array]:
    """The predicted and the true classes, counted from 0."""
    if of_two(outputs, y):
        # Of two equal logits the first is taken, as argmax does.
        return (log_odds(outputs, y) > 0).astype(np.int32), second(y)
    return functions_of(outputs).argmax(outputs, axis=-1).astype(np.int32), y.astype(np.int32)


def number_of(outputs: Array, y: Array) -> int:
    """The number of classes."""
    return 2 if outputs.ndim == y.ndim else int(outputs.shape[-1])


def log_probabilities(logits: Array) -> Array:
    """log softmax over the last axis."""
    f = functions_of(logits)
    below = logits - logits.max(axis=-1, keepdims=True)
    return below - f.log(f.exp(below).sum(axis=-1, keepdims=True))


def probability(outputs: Array, y: Array) -> Array:
    """The probability of the second of two classes."""
    f, s = functions_of(outputs), log_odds(outputs, y)
    small = f.exp(-f.abs(s))  # never too large
    return f.where(s >= 0, 1, small) / (1 + small)


def each_weight(weights: Array, y: Array) -> Array:
    """The weight of each label; if labels are lists, all labels of an example have its weight."""
    return functions_of(y).broadcast_to(weights.reshape(weights.shape + (1,) * (y.ndim - 1)), y.shape)


def total(values: Array, weights: Array, axis: int | None = None) -> Array:
    """Σ of values times weights; values of weight 0 may be anything, even NaN."""
    f = functions_of(values)
    return f.where(weights != 0, values * weights.astype(values.dtype), 0).sum(axis=axis)


def counters(places: Array, weights: Array, size: int) -> Array:
    """[size] the sums of weights at each place; integer weights give integers."""
    places, weights = places.reshape(-1), weights.reshape(-1)
    if isinstance(places, np.ndarray):
        return np.bincount(places, weights, size)
    return jnp.zeros(size, weights.dtype).at[places].add(weights)


# ---- outside of a run


def checked(metric: Metric, y_true: Any, y_score: Any, sample_weight: Any) -> tuple[np.ndarray, np.ndarray, Any]:
    """Labels, scores and weights as arrays, checked as scikit-learn does.

    Raises:
        ConfigError: they cannot be used or do not fit together.
    """
    y, score = _array("y_true", y_true), _array("y_score", y_score)
    y = fitting(y, score)
    if score.shape[: y.ndim] != y.shape or score.ndim > y.ndim + 1:
        swapped = y.ndim == score.ndim + 1 and y.shape[:-1] == score.shape
        hint = "y_true comes first, then y_score" if swapped else "give an array [n], or [n, C] of C classes"
        raise ConfigError("y_score", list(score.shape), f"y_true has shape {list(y.shape)}; {hint}")
    if not np.isfinite(y).all():
        raise ConfigError("y_true", _first(y, ~np.isfinite(y)), "labels have to be finite; leave such examples out")
    if metric.kind == "regression":
        if not np.isfinite(score).all():
            value = _first(score, ~np.isfinite(score))
            raise ConfigError("y_score", value, "predictions have to be finite; leave such examples out")
    else:
        _check_classes(metric, y, score)
    if sample_weight is None:
        return y, score, None
    weights = _array("sample_weight", sample_weight).astype(float)
    if weights.shape != y.shape[:1] or not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
        raise ConfigError("sample_weight", sample_weight, f"give {len(y)} numbers of at least 0, not all 0")
    return y, score, weights


def _array(field: str, given: Any) -> np.ndarray:
    try:
        array = np.asarray(given)
    except ValueError:  # lists of unequal lengths
        array = np.zeros(0)
    if array.ndim == 0 or not len(array) or array.dtype.kind not in "biuf":
        raise ConfigError(field, given, "give an array of numbers, of at least one example")
    return array


def _first(values: np.ndarray, where: np.ndarray) -> Any:
    return values[where].flat[0].item()


def _check_classes(metric: Metric, y: np.ndarray, score: np.ndarray) -> None:
    """Check that labels are classes, and that the scores have a class for each."""
    if (fractions := y != np.rint(y)).any():
        numbers = "for predicted numbers take fedax.metrics.R2, MAE or RMSE"
        if metric.kind is None:
            numbers = "for predicted numbers call exact(y_score, y_true, kind='regression')"
            if not isinstance(metric, HostMetric):
                numbers = f"for predicted numbers {type(metric).__name__} needs kind = 'regression'"
        raise ConfigError(
            "y_true", _first(y, fractions), f"this is no class; y_true comes first, y_score next; {numbers}"
        )
    if np.isnan(score).any():
        raise ConfigError("y_score", math.nan, "scores have to be numbers; leave such examples out")
    if score.ndim > y.ndim:
        classes = score.shape[-1]
        if classes == 1:
            raise ConfigError("y_score", list(score.shape), "this is one column; give y_score[..., 0]")
        if classes == 2:
            _check_two("y_true", y, "y_score has two columns")
        elif y.min() < 0 or y.max() >= classes:
            value = _first(y, (y < 0) | (y >= classes))
            raise ConfigError("y_true", value, f"y_score has {classes} columns; give labels from 0 to {classes - 1}")
    elif metric.ranks:
        _check_two("y_true", y, "y_score has one number an example; of more classes give [n, C]")
    elif not are_classes(y, score):
        _check_two("y_true", y, "y_score has one number an example; of more classes give [n, C], or predicted classes")
    elif max(y.max(), score.max()) <= 1:
        for field, values in (("y_true", y), ("y_score", score)):
            _check_two(field, values, "whole numbers are classes; log-odds have to be real numbers")
    else:
        for field, values in (("y_true", y), ("y_score", score)):
            if values.min() < 0:
                hint = "whole numbers are classes, counted from 0; log-odds have to be real numbers"
                raise ConfigError(field, _first(values, values < 0), hint)
    if y.ndim == 2 and y.shape == score.shape and y.shape[1] > 1 and _one_hot(y) and are_probabilities(y[:, 0], score):
        raise ConfigError("y_true", list(y.shape), "one-hot? Give the class itself: y_true.argmax(axis=-1)")


def _one_hot(y: np.ndarray) -> bool:
    return bool(((y == 0) | (y == 1)).all() and (y.sum(axis=-1) == 1).all())


def _check_two(field: str, values: np.ndarray, why: str) -> None:
    """Check that values are 0 and 1, or −1 and +1."""
    outside = abs(values) != 1 if values.min() < 0 else values > 1
    if outside.any():
        raise ConfigError(field, _first(values, outside), f"give labels 0 and 1, or -1 and +1; {why}")


def as_outputs(y: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Scores (probabilities, classes or log-odds) as a task's ``outputs``: log-odds or logits."""
    if score.ndim == y.ndim and are_classes(y, score):
        most = int(max(score.max(), y.max()))
        if most <= 1:
            return np.where(score > 0, np.inf, -np.inf)
        return np.where(score[..., None] == np.arange(most + 1), 0.0, -np.inf)
    score = score.astype(float)
    with np.errstate(divide="ignore"):
        if not are_probabilities(y, score):
            return score
        return np.log(score) if score.ndim > y.ndim else np.log(score) - np.log1p(-score)


def are_classes(y: np.ndarray, score: np.ndarray) -> bool:
    """Whether [n] scores are predicted classes: whole numbers, which real ones may be where there are more than two."""
    return score.dtype.kind in "biu" or bool(y.max() > 1 and (score == np.rint(score)).all())


def are_probabilities(y: np.ndarray, score: np.ndarray) -> bool:
    """Whether scores are from 0 to 1 and, of all classes, sum to 1."""
    inside = bool(((score >= 0) & (score <= 1)).all())
    return inside and (score.ndim == y.ndim or bool(np.allclose(score.sum(axis=-1), 1, atol=1e-3)))


class RunMetric:
    """A measure of a run that is not one number of held-out examples; it goes where metrics go.

    Attributes:
        better: ``"higher"`` or ``"lower"``; ``None``: neither.

    Example:
        >>> isinstance(GradNorm(), RunMetric), GradNorm().better
        (True, 'lower')
    """

    better: Direction | None = None
    kind = None

    @property
    def name(self) -> str:
        """The name under which :func:`fedax.metrics.create` makes it."""
        return name_of(type(self))


@dataclass(frozen=True)
class GradNorm(RunMetric):
    """Squared norm of the objective's gradient, ‖∇F(x)‖², in the column ``grad_norm_sq``.

    It costs a gradient over all training data at each evaluation.

    Example:
        >>> import fedax
        >>> task = fedax.tasks.quadratic(1).with_metrics(grad_norm=GradNorm())
        >>> data = fedax.data.quadratics(clients=2, dimension=1)
        >>> "grad_norm_sq" in fedax.simulate(fedax.create("fedavg", lr=0.1), task, data, rounds=1).history
        True
    """

    better = "lower"


@dataclass(frozen=True)
class Density(RunMetric):
    """Share of the parameters whose size is above a threshold, in the column ``density``.

    Args:
        threshold: ≥ 0; with 0 all count that are not exactly 0.

    Raises:
        ConfigError: a threshold below 0, or no number.

    Example:
        >>> Density(0.01)
        Density(threshold=0.01)
    """

    threshold: float = 0.0

    def __post_init__(self) -> None:
        check_number("density.threshold", self.threshold, 0)


@dataclass(frozen=True)
class PerClient(RunMetric):
    """Loss and metrics of each client, as lists ``test_<metric>_per_client``, of held-out data given by client.

    At most 10,000 clients; :func:`fedax.evaluate` makes a table of them for one model.

    Example:
        >>> PerClient().name
        'per_client'
    """
