"""Metrics of a whole data set: called like scikit-learn's, and in runs made of sums that any number of places add."""

from typing import Any

from fedax.metrics.base import Density, GradNorm, Metric, PerClient, RunMetric, name_of
from fedax.metrics.counts import F1, Accuracy, BalancedAccuracy, Precision, Recall
from fedax.metrics.host import OnHost
from fedax.metrics.probabilities import Brier, CalibrationError, LogLoss, Perplexity
from fedax.metrics.ranking import AUC, AveragePrecision
from fedax.metrics.regression import MAE, R2, RMSE
from fedax.registry import Registry

__all__ = [
    "AUC",
    "F1",
    "MAE",
    "METRICS",
    "R2",
    "RMSE",
    "Accuracy",
    "AveragePrecision",
    "BalancedAccuracy",
    "Brier",
    "CalibrationError",
    "Density",
    "GradNorm",
    "LogLoss",
    "Metric",
    "OnHost",
    "PerClient",
    "Perplexity",
    "Precision",
    "Recall",
    "RunMetric",
    "available",
    "create",
]

METRICS = Registry("metric")
for _metric in (
    Accuracy, BalancedAccuracy, AUC, AveragePrecision, F1, Precision, Recall, LogLoss, Perplexity, Brier,
    CalibrationError, R2, MAE, RMSE, GradNorm, Density, PerClient,
):  # fmt: skip
    METRICS.add(name_of(_metric), _metric)


def available() -> dict[str, str]:
    """The metrics that :func:`create` makes, each with one line about it.

    Example:
        >>> available()["mae"]
        'Mean absolute error.'
    """
    return METRICS.available()


def create(name: str, **settings: Any) -> Metric | RunMetric:
    """The metric of this name, for instance from a configuration.

    Args:
        name: one of :func:`available`.
        settings: the arguments of its class.

    Raises:
        ConfigError: unknown name or argument, or a bad value.

    Example:
        >>> create("f1", average="macro")
        F1(average='macro')
    """
    made: Metric | RunMetric = METRICS.make(name, **settings)
    return made
