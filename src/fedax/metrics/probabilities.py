"""Metrics of probabilities: means over examples, and calibration."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedax.metrics.base import (
    Array,
    Metric,
    Sums,
    are_classes,
    are_probabilities,
    as_outputs,
    checked,
    counters,
    each_weight,
    functions_of,
    log_odds,
    log_probabilities,
    of_two,
    probability,
    second,
    total,
)
from fedax.numbers import check_count


class _MeanOverExamples(Metric):
    """A mean over examples."""

    better = "lower"
    kind = "classification"

    def sums(self, outputs: Array, y: Array, weights: Array) -> Sums:
        """Σ over the labels, and how many they are."""
        weight = each_weight(weights, y)
        return {"sum": total(self._per_label(outputs, y), weight), "all": weight.sum()}

    def _per_label(self, outputs: Array, y: Array) -> Array:
        raise NotImplementedError

    def value(self, sums: Sums, labels: Sums = ()) -> float:
        """The mean."""
        return float(np.divide(sums["sum"], sums["all"]))


@dataclass(frozen=True)
class LogLoss(_MeanOverExamples):
    """Cross-entropy, −log of the probability of the true class, without any penalty; a mean over the labels.

    Called with probabilities, it clips them to [ε, 1 − ε], with ε that of their type, as scikit-learn's does.

    Example:
        >>> round(LogLoss()([0, 1], [0.2, 0.9]), 4), round(LogLoss()([1], [0.0]), 4)
        (0.1643, 36.0437)
    """

    def __call__(self, y_true: Any, y_score: Any, sample_weight: Any = None) -> float:
        """As in :class:`fedax.metrics.Metric`; probabilities of 0 and 1 are clipped."""
        y, score, weights = checked(self, y_true, y_score, sample_weight)
        outputs = as_outputs(y, score)
        if are_classes(y, score) or are_probabilities(y, score.astype(float)):
            most = -np.log(np.finfo(score.dtype if score.dtype.kind == "f" else float).eps)
            outputs = np.clip(outputs, -most, most)
        return self.exact(outputs, y, weights)

    def _per_label(self, outputs: Array, y: Array) -> Array:
        f = functions_of(outputs)
        if of_two(outputs, y):
            against = f.where(second(y) == 1, -1, 1) * log_odds(outputs, y)
            return f.logaddexp(against, f.zeros_like(against))
        of_true_class = f.take_along_axis(log_probabilities(outputs), y.astype(np.int32)[..., None], axis=-1)
        return -of_true_class[..., 0]


@dataclass(frozen=True)
class Perplexity(LogLoss):
    """e to the power of the cross-entropy of a label; of text, of a character or token.

    Example:
        >>> round(Perplexity()([0, 1, 2], [[1 / 3, 1 / 3, 1 / 3]] * 3), 4)
        3.0
    """

    def value(self, sums: Sums, labels: Sums = ()) -> float:
        """e to the power of the mean."""
        return float(np.exp(super().value(sums)))


@dataclass(frozen=True)
class Brier(_MeanOverExamples):
    """Mean squared error of probabilities: of two classes (p − y)², of more Σ_c (p_c − [y = c])².

    Example:
        >>> round(Brier()([0, 1], [0.2, 0.9]), 4)
        0.025
    """

    def _per_label(self, outputs: Array, y: Array) -> Array:
        if of_two(outputs, y):
            return (probability(outputs, y) - second(y)) ** 2
        f = functions_of(outputs)
        true = y[..., None] == f.arange(outputs.shape[-1])
        return ((f.exp(log_probabilities(outputs)) - true) ** 2).sum(axis=-1)


@dataclass(frozen=True)
class CalibrationError(Metric):
    """Expected calibration error: how far probabilities are from frequencies, by bins of equal width.

    ``Σ_b (n_b/n) |mean probability − frequency|`` over the bins b: of two classes, of the second one; of more, of the
    class that is predicted, as in the paper.

    Args:
        bins: ≥ 1.

    Raises:
        ConfigError: bins out of range.

    Source: Guo et al. 2017, "On calibration of modern neural networks".

    Example:
        >>> round(CalibrationError(bins=2)([0, 0, 1, 1], [0.1, 0.1, 0.8, 0.9]), 4)
        0.125
    """

    bins: int = 15
    better = "lower"
    kind = "classification"

    def __post_init__(self) -> None:
        object.__setattr__(self, "bins", check_count("bins", self.bins, 1, 10**6))  # of NumPy too

    def sums(self, outputs: Array, y: Array, weights: Array) -> Sums:
        """[bins] the number of examples, of correct ones, and the sum of the probabilities."""
        f = functions_of(outputs)
        if of_two(outputs, y):
            p, correct = probability(outputs, y), second(y) == 1
        else:
            probabilities = f.exp(log_probabilities(outputs))
            p, correct = probabilities.max(axis=-1), f.argmax(outputs, axis=-1) == y
        weight = each_weight(weights, y)
        bin_ = f.clip(f.where(p == p, p, 0) * self.bins, 0, self.bins - 1).astype(np.int32)
        confidences = f.where(weight != 0, p, 0) * weight.astype(p.dtype)
        return {
            "all": counters(bin_, weight, self.bins),
            "so": counters(bin_, f.where(correct, weight, 0), self.bins),
            "said": counters(bin_, confidences, self.bins),
        }

    def value(self, sums: Sums, labels: Sums = ()) -> float:
        """Σ |Σ probabilities − number of correct ones| / n."""
        return float(np.divide(np.abs(sums["said"] - sums["so"]).sum(), sums["all"].sum()))
