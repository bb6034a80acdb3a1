"""Every method on one problem, for the figures of docs/methods. See README.md.

scikit-learn's digits at 16 clients, whose classes are dealt by Dir(0.1), so that clients are unlike in classes and in
size; a softmax regression. Each client makes three epochs a round with batches of 16, hence unequal numbers of local
steps. Methods that are defined for equal steps only take the clients' mean number each, and are drawn beside a FedAvg
that does the same. All clients take part in all of 100 rounds. Rates are those of a grid with the lowest loss in the
end on the clients' own validation examples. All else is the methods' default, but for :func:`_needed`. Three seeds.

``python benchmarks/reference.py`` writes docs/methods/reference.json; with names of methods it measures these anew.
"""

import argparse
import itertools
import json
import pathlib
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

import fedax
from fedax.data import dirichlet, split

FILE = pathlib.Path(__file__).parents[1] / "docs" / "methods" / "reference.json"
CLIENTS, ALPHA, ROUNDS, EVERY, EPOCHS, BATCH, SEEDS = 16, 0.1, 100, 4, 3, 16, 3
RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
SERVER_RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
ADAPTIVE = {"lr": (0.03, 0.1, 0.3, 1.0, 3.0), "server_lr": SERVER_RATES}  # a grid of both rates
GRIDS = {
    "fedadagrad": ADAPTIVE | {"server_lr": (0.1, 0.3, 1.0, 3.0, 10.0)},
    "fedadam": ADAPTIVE,
    "fedyogi": ADAPTIVE,
    **{
        name: {"lr": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3), "server_lr": SERVER_RATES}
        for name in ("fadas", "local-adapt")
    },
    # A step of the server, instead of many local ones.
    **{
        name: {"lr": tuple(10 * r for r in RATES)}
        for name in ("mb-storm", "ef21", "diana", "marina", "dasha", "ace", "ringmaster", "ringleader")
    },
}
CURVES = ("train_loss", "test_loss")
EQUAL = "fedavg, equal steps"
TASK = fedax.tasks.softmax_regression(64, 10)


def problem() -> tuple[Any, Any, Any, np.ndarray]:
    """What the clients train on, their validation examples, the test examples, and each client's steps a round."""
    digits = fedax.data.load("digits")
    parts = dirichlet(digits.train["y"], clients=CLIENTS, alpha=ALPHA, seed=0)
    clients = fedax.FederatedData.from_partition(digits.train, parts)
    train, val, _ = split(clients, train=0.8, val=0.2, test=0.0)
    return train, val, digits.test, fedax.Epochs(EPOCHS).usual(train.sizes, BATCH)


def measure(name: str) -> dict[str, Any]:
    """The curves of a method at the best point of its grid: ``{"work": …, "rates": …, "rounds": …, …}``."""
    train, val, test, steps = problem()
    method = EQUAL.partition(",")[0] if name == EQUAL else name
    equal = name == EQUAL or fedax.create(method, **_needed(method, 1.0, steps)).traits().steps == "equal"
    grid = GRIDS.get(method, {"lr": RATES})
    sweep = fedax.sweep(
        lambda **rates: fedax.create(method, **rates, **_needed(method, rates["lr"], steps)),
        [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())],
        TASK,
        train,
        seeds=SEEDS,
        rounds=ROUNDS,
        work=fedax.Steps(int(steps.mean())) if equal else fedax.Epochs(EPOCHS),
        batch_size=BATCH,
        val=val,
        test=test,
        evaluate_every=EVERY,
    )
    best = sweep.best()
    runs = sweep.runs[sweep.points.index(best)]
    costs = runs[0].history
    ends = {key: values for key, values in grid.items() if best[key] in (values[0], values[-1])}
    if ends:
        print(f"{name}: the best rate is at an end of the grid {ends}")
    return {
        "work": "equal" if equal else "unequal",
        "rates": best,
        "rounds": [int(r) for r in costs["round"]],
        **{key: [[_short(v) for v in run.history[key]] for run in runs] for key in CURVES},
        "test_accuracy": [_short(run.history["test_accuracy"][-1]) for run in runs],
        **{key: [int(v) for v in costs[key]] for key in ("bytes_down", "bytes_up", "gradients")},
    }


def _needed(method: str, lr: Any, steps: np.ndarray) -> dict[str, Any]:
    """What has no default that suits unequal steps (a dual step), or any problem (FedMaSS's second rate)."""
    longest = int(steps.max())
    local = {name: {"probability": 1 / longest} for name in ("scaffnew", "compressed-scaffnew", "locodl")}
    return ({"led": {"b": 1 / longest}, "fedmass": {"lr2": 0.05 * lr}} | local).get(method, {})


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def written(curves: Mapping[str, Any]) -> str:
    """The file: one line a method."""
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in curves.items())
    return f"{{\n{lines}\n}}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", help="default: all")
    given = parser.parse_args().methods
    warnings.simplefilter("ignore", fedax.DivergedWarning)
    names = [EQUAL, *fedax.available()]
    curves = json.loads(FILE.read_text(encoding="utf-8")) if given else {}
    for name in given or names:
        curves[name] = measure(name)
        print(
            f"{name:20} {curves[name]['rates']}  test loss {np.mean(curves[name]['test_loss'], 0)[-1]:.4f}", flush=True
        )
        FILE.parent.mkdir(exist_ok=True)
        FILE.write_text(written({key: curves[key] for key in names if key in curves}), encoding="utf-8")


if __name__ == "__main__":
    main()
