"""Metrics of predicted classes: their sums are counts, so they are exact."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedax.errors import ConfigError
from fedax.metrics.base import Array, Metric, Sums, classes_of, counters, each_weight, functions_of, number_of

Average = Literal["binary", "macro", "micro"]


@dataclass(frozen=True)
class Accuracy(Metric):
    """Share of the examples whose class is the predicted one.

    Example:
        >>> Accuracy()([0, 1, 1, 1], [0.2, 0.9, 0.4, 0.6])
        0.75
    """

    better = "higher"
    kind = "classification"

    def sums(self, outputs: Array, y: Array, weights: Array) -> Sums:
        """The number of correct predictions, and of all."""
        predicted, true = classes_of(outputs, y)
        weight = each_weight(weights, y)
        return {"right": functions_of(weight).where(predicted == true, weight, 0).sum(), "all": weight.sum()}

    def value(self, sums: Sums, labels: Sums = ()) -> float:
        """Their ratio."""
        return float(np.divide(sums["right"], sums["all"]))


class _ClassCounts(Metric):
    """A metric of three counts of each class: predicted correctly, predicted, true."""

    better = "higher"
    kind = "classification"

    def sums(self, outputs: Array, y: Array, weights: Array) -> Sums:
        """[C] counts of each class: predicted correctly, predicted, true."""
        predicted, true = classes_of(outputs, y)
        weight, size = each_weight(weights, y), number_of(outputs, y)
        right = functions_of(weight).where(predicted == true, weight, 0)
        return {
            "right": counters(true, right, size),
            "said": counters(predicted, weight, size),
            "true": counters(true, weight, size),
        }


@dataclass(frozen=True)
class _AveragedOverClasses(_ClassCounts):
    """A metric of one class, or a mean over classes."""

    average: Average = "binary"

    def __post_init__(self) -> None:
        if self.average not in ("binary", "macro", "micro"):
            raise ConfigError("average", self.average, "give 'binary', 'macro' or 'micro'")

    @property
    def name(self) -> str:
        """The name of the class, with the average unless it is ``"binary"``."""
        return super().name + ("" if self.average == "binary" else f"_{self.average}")

    def sums(self, outputs: Array, y: Array, weights: Array) -> Sums:
        """The counts of each class; ``average="binary"`` needs two classes."""
        if self.average == "binary" and number_of(outputs, y) > 2:
            hint = f"this is for two classes, and there are {number_of(outputs, y)}: take 'macro' or 'micro'"
            raise ConfigError(f"{type(self).__name__}.average", self.average, hint)
        return super().sums(outputs, y, weights)

    def value(self, sums: Sums, labels: Sums = ()) -> float:
        """The value for the second of two classes; the mean over the classes that occur; or that of all counts."""
        right, predicted, true = (np.asarray(sums[name], float) for name in ("right", "said", "true"))
        if self.average == "micro":
            return self._ratio(right.sum(), predicted.sum(), true.sum())
        if self.average == "binary":
            return self._ratio(right[1], predicted[1], true[1])
        occurring = np.flatnonzero((predicted > 0) | (true > 0))
        return (
            float(np.mean([self._ratio(right[c], predicted[c], true[c]) for c in occurring]))
            if occurring.size
            else np.nan
        )

    def _ratio(self, right: Any, predicted: Any, true: Any) -> float:
        raise NotImplementedError


def _share(part: Any, whole: Any) -> float:
    return float(part / whole) if whole else 0.0


class Precision(_AveragedOverClasses):
    """Of the examples that are called a class, the share that are of it; 0 where none is.

    Args:
        average: ``"binary"``, of the second of two classes; ``"macro"``, the mean over the classes that occur;
            ``"micro"``, of all together.

    Raises:
        ConfigError: another average; where it is used, ``"binary"`` of more than two classes.

    Example:
        >>> Precision()([0, 1, 1, 0], [1, 1, 0, 0]), Precision("macro").name
        (0.5, 'precision_macro')
    """

    def _ratio(self, right: Any, predicted: Any, true: Any) -> float:
        return _share(right, predicted)


class Recall(_AveragedOverClasses):
    """Of the examples of a class, the share that are called so; 0 where there are none.

    Args:
        average: as of :class:`Precision`.

    Raises:
        ConfigError: as there.

    Example:
        >>> Recall()([0, 1, 1, 1], [1, 1, 0, 1])
        0.6666666666666666
    """

    def _ratio(self, right: Any, predicted: Any, true: Any) -> float:
        return _share(right, true)


class F1(_AveragedOverClasses):
    """Harmonic mean of precision and recall; 0 where the class neither occurs nor is predicted.

    Args:
        average: as of :class:`Precision`.

    Raises:
        ConfigError: as there.

    Example:
        >>> F1()([0, 1, 1, 1], [0.9, 0.9, 0.1, 0.9]), F1("macro")([0, 1, 2], [0, 1, 1]).__round__(4)
        (0.6666666666666666, 0.5556)
    """

    def _ratio(self, right: Any, predicted: Any, true: Any) -> float:
        return _share(2 * right, predicted + true)


@dataclass(frozen=True)
class BalancedAccuracy(_ClassCounts):
    """Mean over the classes that occur of the share of a class that is called so.

    Example:
        >>> BalancedAccuracy()([0, 0, 0, 1], [0, 0, 0, 0])
        0.5
    """

    def value(self, sums: Sums, labels: Sums = ()) -> float:
        """The mean of the recalls."""
        right, true = np.asarray(sums["right"], float), np.asarray(sums["true"], float)
        return float(np.mean(right[true > 0] / true[true > 0])) if (true > 0).any() else np.nan
