"""Every setting of several configurations at values of other types and sizes: ``python -m tests.settings``.

Each of some 6,000 changed configurations has to be refused by an error of fedax's own, or to be sensible by the rules
of :func:`sensible`. It takes some minutes, and ends with the counts.
"""

import copy
import math
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

from fedax.errors import FedaxError
from fedax.experiments import build, toml
from fedax.experiments.runner import check_methods

Path = tuple[Any, ...]

DIGITS = {
    "name": "digits",
    "data": {
        "name": "digits", "clients": 4, "partition": "dirichlet", "alpha": 0.5, "seed": 0, "weights": "uniform",
        "min_size": 1, "split": {"val": 0.1, "stratify": True, "seed": 1},
    },
    "task": {"name": "mlp", "hidden": [4], "l2": 0.01},
    "work": {"kind": "random-epochs", "low": 1, "high": 2},
    "participation": {"kind": "uniform", "size": 2, "dropout": 0.1},
    "run": {
        "rounds": 4, "batch_size": 8, "seeds": [0, 1], "evaluate_every": 2, "grad_norm": False, "split_seeds": False,
        "guard": {"largest": 1e6, "stop": False}, "faults": {"clients": [1], "sends": 1.0}, "judge": "test_loss",
        "min_heard": 0.5,
        "train_loss": "sample:20",
        "patience": {"column": "val_loss", "evaluations": 2},
    },
    "methods": [
        {"name": "fedavg", "label": "a", "lr": {"value": 0.5, "at": {"2": 0.1}}, "server_lr": 1.0},
        {"name": "fedprox", "label": "b", "lr": 0.1, "prox": 0.01},
        {"name": "scaffold", "lr": 0.1, "option": 2},
        {"name": "fedadam", "lr": 0.1, "server_lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-3},
    ],
}  # fmt: skip
PRIVATE = {
    "name": "private",
    "data": {"name": "quadratics", "clients": 8, "dimension": 2, "seed": 0, "weights": "uniform"},
    "work": {"kind": "steps", "steps": 2},
    "participation": {"kind": "poisson", "rate": 0.5},
    "privacy": {"clip": 1.0, "noise": 1.0, "delta": 0.01, "epsilon": 100.0, "adaptive": {"noise": 2.0}},
    "run": {"rounds": 3, "seeds": 1},
    "methods": [{"name": "fedavg", "lr": 0.1}],
}
ROBUST = {
    "name": "robust",
    "data": {"name": "synthetic", "alpha": 1.0, "beta": 1.0, "clients": 4, "seed": 0},
    "work": {"kind": "deadline", "time": 5.0, "speed": [1.0, 1.0, 2.0, 2.0]},
    "participation": {"kind": "cyclic", "groups": 2},
    "run": {"rounds": 3, "seeds": 2, "aggregate": {"name": "clipped-mean", "norm": 1.0}},
    "methods": [{"name": "fedavg", "lr": 0.1, "momentum": 0.5}],
}
TIMED = {
    "name": "timed",
    "data": {
        "name": "synthetic", "alpha": 1.0, "beta": 1.0, "clients": 4, "seed": 0, "weights": "sizes",
        "split": {"val": 0.2, "seed": 0},
    },
    "task": {"name": "mlp", "hidden": [4], "lora": {"rank": 1}},
    "work": {"kind": "steps", "steps": 2},
    "run": {
        "rounds": 3, "seeds": 2, "batch_size": 4, "metrics": ["auc", {"name": "f1", "average": "macro"}],
        "density": 0.1, "chunk_size": 2, "compress": {"name": "top-k", "share": 0.5}, "baselines": {"lr": 0.1},
    },
    "clock": {"step": 0.1, "up": 1e6, "down": 1e6, "latency": 0.1, "server": 0.1, "available": [[[0.0, 9.0]]] * 4},
    "pace": {
        "concurrency": 2, "buffer": 1, "staleness": {"name": "polynomial", "exponent": 0.5}, "max_staleness": 3,
    },
    "methods": [{"name": "fedavg", "lr": 0.1, "regularizer": {"name": "l1", "weight": 0.1}}],
}  # fmt: skip
CONFIGS = (DIGITS, PRIVATE, ROBUST, TIMED)
VALUES = [
    True, False, math.nan, math.inf, -math.inf, 1e308, 1e-320, -1, -1.5, 0, 0.0, 1, 2.5, 2**31, 2**62, 10**30,
    "", "x", "1", "../x", "a\nb", [], [True], [1], [[1]], {}, {"a": {"b": 1}}, {"value": 1},
]  # fmt: skip
SWITCHES = {"stratify", "grad_norm", "split_seeds", "guard", "stop", "adaptive", "baselines", "available"}
TEXTS = {"name", "label"}  # that are free
BELOW_ZERO = {"sends"}


def leaves(tree: Any, at: Path = ()) -> Iterator[Path]:
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield (*at, key)
        if isinstance(value, dict | list):
            yield from leaves(value, (*at, key))


def changed(config: dict[str, Any], at: Path, value: Any) -> dict[str, Any]:
    result = copy.deepcopy(config)
    inner: Any = result
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = copy.deepcopy(value)
    return result


def written(tables: dict[str, Any]) -> bool:
    """Whether a TOML file can hold the configuration, as a run checks before it begins: integers have 64 bits."""
    try:
        toml.loads(toml.dumps(tables).encode())
    except ValueError:
        return False
    return True


def sensible(at: Path, value: Any) -> bool:
    """Whether an accepted value is plausible by type and sign; ranges are checked by other tests."""
    key = next(each for each in reversed(at) if isinstance(each, str) and not each.isdigit())
    if isinstance(value, bool):
        return key in SWITCHES or key == "hidden"  # a task that was made with 1 is found again by True, which is equal
    if isinstance(value, str):
        return (key in TEXTS and len(at) != 2) or at == ("name",)
    if isinstance(value, list):
        return not any(isinstance(each, bool | list) for each in value)
    if isinstance(value, dict):
        return value in ({}, {"value": 1})  # a table with its defaults, a schedule
    if not math.isfinite(value) or value < 0:
        return key in BELOW_ZERO
    return abs(value) < 2**63 or isinstance(value, float)


def main() -> None:
    warnings.simplefilter("ignore")
    tried = accepted = bad = 0
    for config in CONFIGS:
        check_methods(build(copy.deepcopy(config)))
        for at in leaves(config):
            for value in VALUES:
                began, tried, wrong = time.monotonic(), tried + 1, ""
                try:
                    tables = changed(config, at, value)
                    if not written(tables):
                        continue
                    check_methods(build(tables))
                    accepted += 1
                    wrong = "" if sensible(at, value) else "accepted"
                except FedaxError as error:
                    if len(str(error)) > 1500 or not str(error).isprintable():
                        wrong = f"message {str(error)[:100]!r}"
                except Exception as error:
                    wrong = f"{type(error).__name__}: {str(error)[:100]}"
                if time.monotonic() - began > 60:
                    wrong += " slow"
                if wrong:
                    bad += 1
                    print(config["name"], ".".join(map(str, at)), repr(value), wrong, flush=True)
    print(
        f"{tried} configurations: {accepted} accepted, {tried - accepted} refused, {bad} otherwise than they should be"
    )
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
