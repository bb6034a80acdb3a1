"""The cost of privacy in the time of a round of the benchmark ``unequal``. See README.md.

The ways take turns in one process, so that other work on the machine slows all of them. The ratios are of medians, and
of the fastest, which says more where the machine is busy.
"""

import argparse
import statistics

import numpy as np
from cases import cases
from with_fedax import task, to_params

import fedax

CASE = cases()["unequal"]
COHORT, DELTA = 100, 1e-4
PRIVATE = fedax.DP(clip=0.5, noise=1.0, delta=DELTA)
WAYS = {
    "Uniform(100)": {"participation": fedax.Uniform(COHORT)},
    "Uniform(100), clip and noise": {"participation": fedax.Uniform(COHORT), "privacy": PRIVATE},
    "Uniform(100), adaptive clip": {
        "participation": fedax.Uniform(COHORT),
        "privacy": fedax.DP(clip=0.5, noise=1.0, delta=DELTA, adaptive=fedax.AdaptiveClip()),
    },
    "Poisson(0.1)": {"participation": fedax.Poisson(COHORT / 1000)},
    "Poisson(0.1), clip and noise": {"participation": fedax.Poisson(COHORT / 1000), "privacy": PRIVATE},
    "Cyclic(10)": {"participation": fedax.Cyclic(10)},
    "Cyclic(10), clip and noise": {"participation": fedax.Cyclic(10), "privacy": PRIVATE},
    "Cyclic(10), clip and noise of 8 bands": {
        "participation": fedax.Cyclic(10),
        "privacy": fedax.DP(clip=0.5, noise=1.0, delta=DELTA, bands=8),
    },
}
BASES = ("Uniform(100)", "Poisson(0.1)", "Cyclic(10)")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=15)
    given = parser.parse_args()
    x, y = CASE.examples()
    clients = len(CASE.sizes)
    data = fedax.FederatedData({"x": x, "y": y.astype(np.int32)}, CASE.sizes, np.full(clients, 1 / clients))
    model, start = task(CASE), to_params(CASE, CASE.initial())

    def seconds(way: dict[str, object]) -> float:
        run = fedax.simulate(
            fedax.create("fedavg", lr=CASE.lr),
            model,
            data,
            rounds=given.rounds,
            work=fedax.Epochs(1),
            batch_size=CASE.batch,
            evaluate_every=given.rounds,
            params=start,
            **way,
        )
        return float(run.history["seconds"][-1]) / given.rounds

    taken: dict[str, list[float]] = {name: [] for name in WAYS}
    for repeat in range(given.repeats + 1):
        for name, way in WAYS.items():
            spent = seconds(way)
            if repeat:  # the first compiles
                taken[name].append(spent)
    print("| | ms a round, median | fastest | times without privacy: medians | fastest |\n|---|---|---|---|---|")
    base = (0.0, 0.0)
    for name, values in taken.items():
        middle, least = statistics.median(values), min(values)
        base = (middle, least) if name in BASES else base
        cells = (f"{1000 * middle:.2f}", f"{1000 * least:.2f}", f"{middle / base[0]:.3f}", f"{least / base[1]:.3f}")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
