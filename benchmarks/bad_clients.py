"""Accuracy where some clients send wrong uploads: with and without a guard, and with robust averages. See README.md."""

import argparse
import math
import warnings

import numpy as np

import fedax
from fedax.data import load, partitions

CLIENTS = 100
SAME, UNEQUAL = fedax.Steps(5), fedax.RandomSteps(5, 2, 2, 9)
METHODS = {
    "fedavg": ({"lr": 0.3}, SAME),
    "fednova": ({"lr": 0.3}, UNEQUAL),
    "scaffold-m": ({"lr": 0.3, "beta": 0.5}, SAME),
    "fedda-mvr": ({"lr": 0.03}, SAME),
}
NONSENSE = {"NaN": math.nan, "inf": math.inf, "1e30": 1e30}


def accuracies(method: str, seeds: int, rounds: int, **options: object) -> np.ndarray:
    """[seeds] on held-out digits, after the last round; NaN where the run diverged."""
    hyper, work = METHODS[method]
    digits = load("digits")
    parts = partitions.dirichlet(digits.train["y"], clients=CLIENTS, alpha=1.0, min_size=2, seed=0)
    sweep = fedax.sweep(
        lambda: fedax.create(method, **hyper),
        [{}],
        fedax.tasks.softmax_regression(64, 10),
        fedax.FederatedData.from_partition(digits.train, parts),
        seeds=seeds,
        rounds=rounds,
        work=work,
        batch_size=8,
        participation=fedax.Uniform(50),
        test=digits.test,
        evaluate_every=rounds,
        **options,
    )
    last = [run.history for run in sweep.runs[0]]
    return np.array([h["test_accuracy"][-1] if math.isfinite(h["train_loss"][-1]) else math.nan for h in last])


def shown(values: np.ndarray) -> str:
    if np.isnan(values).any():
        return "diverged"
    return f"{100 * values.mean():.2f} ± {100 * values.std(ddof=1):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    given = parser.parse_args()
    warnings.simplefilter("ignore", fedax.DivergedWarning)
    run = {"seeds": given.seeds, "rounds": given.rounds}
    print("| method | bad clients | send | with a guard | without |\n|---|---|---|---|---|")
    for method in given.methods:
        clean = [shown(accuracies(method, **run, guard=guard)) for guard in (True, None)]
        print(f"| {method} | none | | {clean[0]} | {clean[1]} |", flush=True)
        for share in (0.01, 0.05, 0.2):
            for name, number in NONSENSE.items():
                faults = fedax.Faults(share, sends=number)
                cells = [shown(accuracies(method, **run, faults=faults, guard=guard)) for guard in (True, None)]
                print(f"| {method} | {share:.0%} | {name} | {cells[0]} | {cells[1]} |", flush=True)
    print("\n| FedAvg, bad clients | send | guard | median | trimmed 25 % | geometric median | clipped |")
    print("|---|---|---|---|---|---|---|")
    averages = (fedax.CoordinateMedian(), fedax.TrimmedMean(0.25), fedax.GeometricMedian(), fedax.ClippedMean(1.0))
    for share in (0.01, 0.05, 0.2):
        for name, what in {"−10 times their own": {"times": -10.0}, "1e9": {"sends": 1e9}}.items():
            each = [{"guard": True}, *({"aggregate": one} for one in averages)]
            cells = [shown(accuracies("fedavg", **run, faults=fedax.Faults(share, **what), **how)) for how in each]
            print(f"| {share:.0%} | {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
