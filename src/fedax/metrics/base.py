"""What a metric is: sums over examples, and a value that is made of the sums; and how answers of a model are read.

A metric of a whole data set, such as AUC, is no mean of examples. What every place where examples are, a block, a
device, a process or a client, can give is a sum over its own examples; all that is left is to add the sums and to take
the value of the total. Sums are made by the program that evaluates the model, on its devices; values on the host, in
float64. Outside of a run all is done in float64 on the host, by the same formulas.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedax.errors import ConfigError

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

    @property
    def name(self) -> str:
        """What its column is called by default: the name of the class, and what it was made with."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()

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
            ConfigError: arrays that do not fit together.
        """
        y, score = np.asarray(y_true), np.asarray(y_score)
        weights = checked(y, score, sample_weight)
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

    def value(self, sums: Sums, labels: Sums = ()) -> float:
        """The value of a total of sums, NumPy arrays of float64 and int64; not-a-number where it is undefined."""
        raise NotImplementedError

    def bound(self, sums: Sums) -> float:
        """By how much a value of a total of sums may be wrong; 0 where sums suffice for an exact one."""
        return 0.0

    def of_run(self, sums: Sums, labels: Sums = ()) -> float:
        """:meth:`value` of what a run's program gave."""
        with np.errstate(all="ignore"):
            return float(self.value(wide(sums), labels))


class HostMetric(Metric):
    """A metric of which there are no sums: it needs all outputs in one place, on the host."""

    def exact(self, outputs: Array, y: Array, weights: Array = None, kind: Kind | None = "classification") -> float:
        """As of :class:`Metric`; ``kind``: of the task, for metrics that are for all."""
        raise NotImplementedError


def wide(sums: Sums) -> Sums:
    """Sums as NumPy arrays of float64 and int64, which can be added without loss."""
    return jax.tree.map(lambda leaf: _wide(np.asarray(leaf)), sums)


def _wide(leaf: np.ndarray) -> np.ndarray:
    return leaf.astype(np.int64 if leaf.dtype.kind in "iub" else np.float64)


def added(one: Sums, other: Sums) -> Sums:
    """The total of two."""
    return jax.tree.map(np.add, wide(one), wide(other))


def check_metrics(metrics: Mapping[str, Any], outputs: Callable[..., Any] | None, kind: str | None) -> None:
    """That a task with these outputs can have these metrics.

    Raises:
        ConfigError: one needs outputs and there are none, or is for tasks of another kind.
    """
    for name, metric in metrics.items():
        if not isinstance(metric, Metric):
            continue
        if outputs is None:
            way_out = "a metric of a whole data set needs what the model answers: give the task outputs and kind too"
            raise ConfigError(f"metrics[{name!r}]", metric, way_out)
        if metric.kind is not None and kind is not None and metric.kind != kind:
            raise ConfigError(f"metrics[{name!r}]", metric, f"this is for {metric.kind}, and the task is one of {kind}")


# ---- how answers are read


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
    """Of the second of two classes, shaped as y."""
    return outputs if outputs.ndim == y.ndim else outputs[..., 1] - outputs[..., 0]


def second(y: Array) -> Array:
    """Whether a label is the second of two, 1 of 0 and 1 or +1 of −1 and +1; whole numbers 0 and 1."""
    return (y > 0).astype(np.int32)


def classes_of(outputs: Array, y: Array) -> tuple[Array, Array]:
    """The classes that are predicted, and those that are true, counted from 0."""
    if of_two(outputs, y):
        # Of two equal logits the first is taken, as argmax does.
        return (log_odds(outputs, y) > 0).astype(np.int32), second(y)
    return functions_of(outputs).argmax(outputs, axis=-1).astype(np.int32), y.astype(np.int32)


def number_of(outputs: Array, y: Array) -> int:
    """How many classes there are."""
    return 2 if outputs.ndim == y.ndim else int(outputs.shape[-1])


def log_probabilities(logits: Array) -> Array:
    """log softmax over the last axis."""
    f = functions_of(logits)
    below = logits - logits.max(axis=-1, keepdims=True)
    return below - f.log(f.exp(below).sum(axis=-1, keepdims=True))


def probability(outputs: Array, y: Array) -> Array:
    """Of the second of two classes."""
    f, s = functions_of(outputs), log_odds(outputs, y)
    small = f.exp(-f.abs(s))  # never too large
    return f.where(s >= 0, 1, small) / (1 + small)


def each_weight(weights: Array, y: Array) -> Array:
    """What each label counts: of labels that are lists, all of an example's the same."""
    return functions_of(y).broadcast_to(weights.reshape(weights.shape + (1,) * (y.ndim - 1)), y.shape)


def total(values: Array, weights: Array, axis: int | None = None) -> Array:
    """Σ of values times weights; what counts nothing may be anything."""
    f = functions_of(values)
    return f.where(weights != 0, values * weights.astype(values.dtype), 0).sum(axis=axis)


def tally(places: Array, weights: Array, size: int) -> Array:
    """[size] the weights at each place; of whole numbers, whole numbers."""
    places, weights = places.reshape(-1), weights.reshape(-1)
    if isinstance(places, np.ndarray):
        return np.bincount(places, weights, size)
    return jnp.zeros(size, weights.dtype).at[places].add(weights)


# ---- outside of a run


def checked(y: np.ndarray, score: np.ndarray, sample_weight: Any) -> np.ndarray | None:
    """The weights of some examples, if all arrays fit together."""
    if y.ndim == 0 or not len(y) or y.dtype.kind not in "biuf" or score.dtype.kind not in "biuf":
        raise ConfigError("y_true", y, "give arrays of numbers, at least one example")
    if score.shape[: y.ndim] != y.shape or score.ndim > y.ndim + 1:
        raise ConfigError("y_score", score.shape, f"give an array [n] or [n, C] for labels of shape {y.shape}")
    if sample_weight is None:
        return None
    weights = np.asarray(sample_weight, float)
    if weights.shape != y.shape[:1] or not (np.isfinite(weights) & (weights >= 0)).all():
        raise ConfigError("sample_weight", sample_weight, f"give {len(y)} numbers of at least 0")
    return weights


def as_outputs(y: np.ndarray, score: np.ndarray) -> np.ndarray:
    """What a task's ``outputs`` would be: log-odds or logits, of scores that may be probabilities or classes."""
    if score.ndim == y.ndim and score.dtype.kind in "biu":
        most = int(max(score.max(), y.max()))
        if most <= 1:
            return np.where(score > 0, np.inf, -np.inf)
        return np.where(score[..., None] == np.arange(most + 1), 0.0, -np.inf)
    score = score.astype(float)
    with np.errstate(divide="ignore"):
        if not are_probabilities(y, score):
            return score
        return np.log(score) if score.ndim > y.ndim else np.log(score) - np.log1p(-score)


def are_probabilities(y: np.ndarray, score: np.ndarray) -> bool:
    """Whether scores are from 0 to 1 and, of all classes, sum to 1."""
    inside = bool(((score >= 0) & (score <= 1)).all())
    return inside and (score.ndim == y.ndim or bool(np.allclose(score.sum(axis=-1), 1, atol=1e-3)))
