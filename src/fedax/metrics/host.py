"""Any function of labels and answers as a metric: it is called on the host, with all examples at once."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedax.errors import ConfigError, call, place_of
from fedax.metrics.base import (
    Array,
    Direction,
    HostMetric,
    Kind,
    classes_of,
    log_probabilities,
    of_two,
    probability,
)


@dataclass(frozen=True)
class OnHost(HostMetric):
    """A metric of scikit-learn, or a function of your own.

    In a run, all outputs for the held-out examples come to the host at each evaluation. Where these are at the nodes of
    real clients, it is refused, for their rows would leave them.

    Args:
        function: ``function(y_true, y)`` gives a number; with weights it is called with ``sample_weight=`` too.
        of: what ``y`` is. ``"labels"``: the predicted classes, written like ``y_true``; ``"scores"``: probabilities,
            of two classes [n] of the second one, of more [n, C]. Of regression it is the predictions, either way.
        better: ``"higher"`` or ``"lower"``.

    Raises:
        ConfigError: values out of range; when it is used, a function that fails or returns no number.

    Example:
        >>> import sklearn.metrics
        >>> mcc = OnHost(sklearn.metrics.matthews_corrcoef, better="higher")
        >>> mcc([0, 0, 1, 1], [0.1, 0.2, 0.7, 0.9]), mcc.name
        (1.0, 'matthews_corrcoef')
    """

    function: Callable[..., Any]
    of: Literal["labels", "scores"] = "labels"
    better: Direction = "higher"

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigError("function", self.function, "give a function, function(y_true, y) -> a number")
        if self.of not in ("labels", "scores"):
            raise ConfigError("of", self.of, "give 'labels' or 'scores'")
        if self.better not in ("lower", "higher"):
            raise ConfigError("better", self.better, "give 'lower' or 'higher'")

    @property
    def name(self) -> str:
        """The name of the function."""
        return str(getattr(self.function, "__name__", "on_host"))

    def exact(self, outputs: Array, y: Array, weights: Array = None, kind: Kind | None = "classification") -> float:
        """The function's value for what a task's ``outputs`` gave; ``kind``: of the task.

        Raises:
            ConfigError: the function fails, or returns no number.
        """
        outputs, y = np.asarray(outputs, float), np.asarray(y)
        function = self.function
        if weights is not None:
            function = functools.partial(function, sample_weight=np.asarray(weights, float))
        answer = self._answer(outputs, y) if kind == "classification" else outputs
        value = call("metric", "function(y_true, y) -> a number", function, y, answer)
        if np.shape(value) != () or np.asarray(value).dtype.kind not in "biuf":
            hint = f"return one number ({place_of(self.function)})"
            raise ConfigError(f"metric {self.name}", value, hint)
        return float(value)

    def _answer(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The second argument of the function: predicted classes or probabilities."""
        with np.errstate(all="ignore"):
            if self.of == "scores":
                return probability(outputs, y) if of_two(outputs, y) else np.exp(log_probabilities(outputs))
        predicted, _ = classes_of(outputs, y)
        return np.where(predicted == 1, 1, -1).astype(y.dtype) if (y < 0).any() else predicted.astype(y.dtype)
