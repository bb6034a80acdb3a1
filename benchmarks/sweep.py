"""A sweep of 100 runs, side by side and one after another. See README.md."""

import argparse
import time

import numpy as np

import fedax

CLIENTS, EXAMPLES, FEATURES = 32, 1500, 300
GRID = {"lr": [0.01, 0.03, 0.1, 0.3, 1.0], "beta": [0.1, 0.2, 0.4, 0.8, 1.0]}
SEEDS = 4


def make(lr: float, beta: float) -> fedax.Algorithm:
    return fedax.create("fedavg-m", lr=lr, beta=beta)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(CLIENTS * EXAMPLES, FEATURES)).astype(np.float32)
    y = np.where(x @ rng.normal(size=FEATURES) > 0, 1.0, -1.0)
    data = fedax.FederatedData({"x": x, "y": y}, [EXAMPLES] * CLIENTS)
    task = fedax.tasks.logistic_regression(FEATURES)
    run = {"rounds": options.rounds, "work": fedax.Steps(4), "batch_size": 4}

    def one_by_one() -> np.ndarray:
        points = [(lr, beta) for lr in GRID["lr"] for beta in GRID["beta"]]
        runs = [[fedax.simulate(make(*p), task, data, seed=seed, **run) for seed in range(SEEDS)] for p in points]
        return np.array([[run.history["train_loss"] for run in each] for each in runs])

    def side_by_side() -> np.ndarray:
        swept = fedax.sweep(make, GRID, task, data, seeds=SEEDS, **run)
        return np.array([[run.history["train_loss"] for run in each] for each in swept.runs])

    first = [f() for f in (one_by_one, side_by_side)]  # compiles
    difference = np.max(np.abs(first[0] - first[1]) / first[0])
    seconds = np.zeros((options.repeats, 2))
    for repeat in range(options.repeats):
        for k, f in enumerate((one_by_one, side_by_side)):
            began = time.perf_counter()
            f()
            seconds[repeat, k] = time.perf_counter() - began
    single, sweep = np.median(seconds, axis=0)
    ratios = seconds[:, 0] / seconds[:, 1]
    print(f"{options.rounds} rounds, histories of 51 evaluations; largest relative difference {difference:.1e}")
    print(f"100 runs one after another {single:.2f} s, side by side {sweep:.2f} s")
    print(f"ratio {np.median(ratios):.1f} (lowest {ratios.min():.1f}, highest {ratios.max():.1f})")


if __name__ == "__main__":
    main()
