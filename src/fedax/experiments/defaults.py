"""Defaults: the task for a data set, the experiment of ``fedax compare``, the number of seeds, the judging column."""

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedax.columns import PERSONAL, TRAIN, deciding
from fedax.federation.census import Census

TASKS_OF = {
    "digits": "softmax_regression",
    "mnist": "softmax_regression",
    "fashion_mnist": "softmax_regression",
    "cifar10": "cnn",
    "femnist": "cnn",
    "pathmnist": "cnn",
    "w8a": "logistic_regression",
    "a9a": "logistic_regression",
    "heart": "softmax_regression",
    "fed_heart_disease": "logistic_regression",
    "shakespeare": "char_lstm",
    "synthetic": "softmax_regression",
    "quadratics": "quadratic",
    "sparse_regression": "linear_regression",
    "noiseless_regression": "linear_regression",
}

# FedNova's experiments: 16 clients, classes dealt by Dir(0.1), 2 to 5 epochs drawn anew for each client and round.
_DIRICHLET = {"clients": 16, "partition": "dirichlet", "alpha": 0.1}
_EPOCHS = {"kind": "random-epochs", "low": 2, "high": 5}
_USER_DATA: dict[str, Any] = {"data": {}, "run": {"rounds": 50, "batch_size": 32}, "lr": 0.1}
_HELD_OUT = {"split": {"val": 0.15, "test": 0.15, "stratify": "rare"}}
_COMPARISONS: dict[str, dict[str, Any]] = {
    "digits": {"data": _DIRICHLET, "run": {"rounds": 100, "batch_size": 32}, "lr": 0.5},
    "mnist": {"data": _DIRICHLET, "run": {"rounds": 30, "batch_size": 32}, "lr": 0.05},
    "fashion_mnist": {"data": _DIRICHLET, "run": {"rounds": 30, "batch_size": 32}, "lr": 0.05},
    "cifar10": {"data": _DIRICHLET, "run": {"rounds": 20, "batch_size": 32, "seeds": 1}, "lr": 0.05},
    "femnist": {
        "data": {"partition": "column", "column": "writer"},
        "participation": {"kind": "uniform-normalized", "size": 10},
        "run": {"rounds": 30, "batch_size": 20, "seeds": 1},
        "lr": 0.05,
    },
    "pathmnist": {"data": _DIRICHLET, "run": {"rounds": 20, "batch_size": 32, "seeds": 1}, "lr": 0.05},
    "w8a": {"data": _DIRICHLET | {"alpha": 0.5}, "run": {"rounds": 30, "batch_size": 32}, "lr": 0.1},
    "a9a": {"data": _DIRICHLET | {"alpha": 0.5}, "run": {"rounds": 30, "batch_size": 32}, "lr": 0.1},
    "shakespeare": {
        "data": {"partition": "column", "column": "role"},
        "work": {"kind": "random-epochs", "low": 1, "high": 3},
        "participation": {"kind": "uniform-normalized", "size": 10},
        "run": {"rounds": 30, "batch_size": 10, "seeds": 1},
        "lr": 0.8,
    },
    "synthetic": {
        "data": {"clients": 30, "alpha": 1.0, "beta": 1.0},
        "run": {"rounds": 50, "batch_size": 20},
        "lr": 0.02,
    },
    "sparse_regression": {
        "data": {"clients": 16},
        "run": {"rounds": 50, "batch_size": 10},
        "lr": 0.005,
    },
    "noiseless_regression": {
        "data": {"clients": 16},
        "run": {"rounds": 30, "batch_size": 32},
        "lr": 0.05,
    },
    "heart": _USER_DATA | {"data": _HELD_OUT},
    "fed_heart_disease": {
        "data": {"seed": 43},
        "work": {"kind": "steps", "steps": 100},
        "run": {"rounds": 15, "batch_size": 4},
        "lr": 0.001,
    },
    "folder": _USER_DATA,
    "csv": _USER_DATA | {"data": _HELD_OUT},
    "parquet": _USER_DATA | {"data": _HELD_OUT},
    "arrow": _USER_DATA | {"data": _HELD_OUT},
    "images": _USER_DATA | {"data": _HELD_OUT, "lr": 0.05},
    "hdf5": _USER_DATA | {"data": _HELD_OUT, "lr": 0.05},
    "leaf": _USER_DATA | {"data": _HELD_OUT, "lr": 0.05},
    "quadratics": {
        "data": {"clients": 30, "dimension": 10},
        "work": {"kind": "random-steps", "mean": 30.0, "std": 20.0, "low": 1, "high": 96},
        "run": {"rounds": 100, "grad_norm": True},
        "lr": 0.05,
    },
}


# Data of the user's own, or like it: clients are given, not drawn.
OWN_TABLES = ("folder", "csv", "parquet", "arrow", "images", "hdf5", "leaf", "heart")
_SMALL = 2**25  # examples × parameters; an epoch of ten splits takes a second or so
_SPLITS, _SEEDS = 10, 3


def are_small(examples: int, parameters: int) -> bool:
    """Whether runs are so quick that a comparison repeats the split too, unless the user says otherwise.

    Example:
        >>> are_small(569, 62), are_small(60_000, 1_000_000)
        (True, False)
    """
    return examples * parameters <= _SMALL


def usual_seeds(repeated: bool, methods: int = 2) -> int:
    """The number of seeds for the user's own tables with a split, where the configuration does not say.

    Args:
        repeated: whether each seed has its own split.
        methods: how many methods are compared.

    Example:
        >>> usual_seeds(repeated=True), usual_seeds(repeated=False), usual_seeds(repeated=False, methods=1)
        (10, 3, 1)
    """
    return _SPLITS if repeated else _SEEDS if methods > 1 else 1


def usual_task(name: str, census: Census | None) -> str | None:
    """The task for a data set; for the user's own data the one that fits their shapes and labels; ``None``: unknown.

    Args:
        name: of the data set.
        census: of the clients; ``None``: nothing is known of their examples.

    Example:
        >>> usual_task("digits", None), usual_task("folder", None)
        ('softmax_regression', None)
    """
    of_user = (name in OWN_TABLES and name != "folder") or (census is not None and census.transform is not None)
    if name in TASKS_OF or not of_user or census is None:
        return TASKS_OF.get(name)
    x, y = census.example["x"], census.example["y"]
    if len(y.shape) > 0:
        return "char_lstm"
    if len(x.shape) > 1:
        return "cnn"
    return "linear_regression" if np.issubdtype(y.dtype, np.floating) else "softmax_regression"


def comparison(name: str, methods: Sequence[str], title: str | None = None) -> dict[str, Any]:
    """The configuration of ``fedax compare`` for one of :func:`fedax.experiments.datasets`, before its options.

    Args:
        name: of the data set.
        methods: their names.
        title: what the data are called; default: their name.

    Example:
        >>> config = comparison("digits", ["fedavg"])
        >>> config["methods"], config["work"]
        ([{'name': 'fedavg', 'lr': 0.5}], {'kind': 'random-epochs', 'low': 2, 'high': 5})
    """
    preset = copy.deepcopy(_COMPARISONS[name])
    return {
        "name": f"compare-{title or name}",
        "data": {"name": name, **preset["data"]},
        "work": preset.get("work", dict(_EPOCHS)),
        "participation": preset.get("participation", {"kind": "full"}),
        "run": {**({"baselines": True} if "split" in preset["data"] else {"seeds": _SEEDS}), **preset["run"]},
        "methods": [{"name": method, "lr": preset["lr"]} for method in methods],
    }


def judge(config: Mapping[str, Any], columns: Sequence[str]) -> str | None:
    """The column by which methods are compared: ``run.judge``, or a default that suits the problem.

    The objective F + ψ where all methods have the same ψ; ‖∇F‖² of quadratics, whose F has an arbitrary offset; else
    the test loss, or without a test part that of validation, or without held-out data F. Where all methods have
    personal models, it is a column of these. (Rounds and hyper-parameters
    are chosen by validation, where there is such a part; methods are compared by the test.)

    Args:
        config: a whole configuration.
        columns: those that were measured for all methods.

    Returns:
        ``None`` where methods have unequal ψ and there are no held-out data: then no column can decide.

    Example:
        >>> config = {"data": {"name": "digits"}, "run": {}, "methods": [{"name": "fedavg"}]}
        >>> judge(config, ["train_loss", "test_loss"]), judge(config, ["train_loss"])
        ('test_loss', 'train_loss')
    """
    configured = config["run"].get("judge")
    if configured in columns:
        return deciding(str(configured), columns)
    personal = (f"{name}{PERSONAL}" for name in ("test_loss", "val_loss", "train_loss"))
    if (found := next((name for name in personal if name in columns), None)) is not None:
        return found
    held_out = next((name for name in ("test_loss", "val_loss") if name in columns), None)
    if unequal_penalties(config):
        return held_out
    if "objective" in columns:
        return "objective"
    if config["data"]["name"] == "quadratics" and "grad_norm_sq" in columns:
        return "grad_norm_sq"
    return held_out or next((name for name in TRAIN if name in columns), TRAIN[0])


def unequal_penalties(config: Mapping[str, Any]) -> bool:
    """Whether the methods minimise different objectives: F + ψ with different ψ, or some of them F alone."""
    return len({json.dumps(method.get("regularizer"), sort_keys=True) for method in config["methods"]}) > 1
