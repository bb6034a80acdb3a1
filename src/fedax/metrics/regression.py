"""Metrics of regression; with several numbers for each example, the mean over them."""

from dataclasses import dataclass

import numpy as np

from fedax.errors import ConfigError
from fedax.metrics.base import Array, Direction, Metric, Sums, total


class _ErrorMetric(Metric):
    """A metric of a sum of errors, one for each example."""

    better: Direction = "lower"
    kind = "regression"

    def sums(self, outputs: Array, y: Array, weights: Array) -> Sums:
        """[...] Σ of the errors, and how many examples there are."""
        if outputs.size != y.size:
            hint = f"the model answers {list(outputs.shape)}: an answer for each number of a label is due"
            raise ConfigError("y", list(y.shape), hint)
        errors = self._error(outputs.reshape(y.shape) - y)
        broadcast_weights = weights.reshape(weights.shape + (1,) * (y.ndim - 1))
        return {"sum": total(errors, broadcast_weights, axis=0), "all": weights.sum()}

    def _error(self, gap: Array) -> Array:
        raise NotImplementedError


@dataclass(frozen=True)
class MAE(_ErrorMetric):
    """Mean absolute error.

    Example:
        >>> MAE()([1.0, 2.0, 3.0], [1.0, 2.5, 2.0])
        0.5
    """

    def _error(self, gap: Array) -> Array:
        return abs(gap)

    def value(self, sums: Sums, labels: Sums = ()) -> float:
        """The mean."""
        return float(np.mean(np.divide(sums["sum"], sums["all"])))


@dataclass(frozen=True)
class RMSE(_ErrorMetric):
    """Root of the mean squared error.

    Example:
        >>> RMSE()([1.0, 2.0], [1.0, 4.0])
        1.4142135623730951
    """

    def _error(self, gap: Array) -> Array:
        return gap**2

    def value(self, sums: Sums, labels: Sums = ()) -> float:
        """The root of the mean."""
        return float(np.mean(np.sqrt(np.divide(sums["sum"], sums["all"]))))


@dataclass(frozen=True)
class R2(_ErrorMetric):
    """Share of the variance that is explained: 1 − Σ(y − f)² / Σ(y − mean of y)².

    Undefined for fewer than two examples; of labels that are all the same 0, or 1 where all are met.

    Example:
        >>> round(R2()([1.0, 2.0, 3.0], [1.1, 1.9, 3.2]), 4)
        0.97
    """

    better = "higher"

    def _error(self, gap: Array) -> Array:
        return gap**2

    def labels(self, y: np.ndarray, weights: Array = None) -> Sums:
        """Count, mean and Σ(y − mean)², in float64: sums of squares would lose the variance of labels far from zero."""
        y = np.asarray(y, float)
        weights = np.ones(len(y)) if weights is None else np.asarray(weights, float)
        counted = np.flatnonzero(weights)
        y, each = y[counted], weights[counted].reshape(-1, *(1,) * (y.ndim - 1))
        first = y[0] if len(y) else np.zeros(y.shape[1:])  # so that labels that are all the same give exactly 0
        shift = np.divide((each * (y - first)).sum(axis=0), max(each.sum(), np.finfo(float).tiny))
        return {
            "all": each.sum(),
            "number": np.asarray(len(counted), np.int64),
            "mean": first + shift,
            "m2": (each * (y - first - shift) ** 2).sum(axis=0),
        }

    def joined(self, one: Sums, other: Sums) -> Sums:
        """Moments of both together (Chan, Golub and LeVeque 1979)."""
        if not one["number"] or not other["number"]:
            return other if not one["number"] else one
        gap, both = other["mean"] - one["mean"], one["all"] + other["all"]
        return {
            "all": both,
            "number": one["number"] + other["number"],
            "mean": one["mean"] + gap * (other["all"] / both),
            "m2": one["m2"] + other["m2"] + gap**2 * (one["all"] * other["all"] / both),
        }

    def value(self, sums: Sums, labels: Sums = ()) -> float:
        """The value from the sums of errors and the moments of labels."""
        if labels["number"] < 2:
            return np.nan
        left, spread = np.asarray(sums["sum"], float), np.asarray(labels["m2"])
        explained = 1 - left / np.where(spread > 0, spread, 1)
        return float(np.mean(np.where(spread > 0, explained, (left == 0).astype(float))))
