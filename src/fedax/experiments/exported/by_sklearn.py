"""In place of ``loaded`` and ``answers`` of the program, where the model is an estimator of scikit-learn."""

import functools
from typing import Any

from fedax.experiments.exported.model import HERE, about


@functools.cache
def loaded() -> Any:
    """The estimator of scikit-learn, which takes what :func:`encode` makes."""
    import joblib

    return joblib.load(HERE / "model.joblib")


def answers(x: Any) -> Any:
    """Of features [n, F] the probability of each class [n, C], or numbers [n]."""
    return loaded().predict_proba(x) if about()["labels"] else loaded().predict(x)
