"""The rate of false positives of tests with pooled errors of methods.

    python benchmarks/pooled.py

Runs are drawn from normal distributions, with an effect of the seed that all methods share, and no difference between
the methods. A method's residuals have a standard deviation of its own; the pair that is tested is that of the first
two. The table has how often its p is below 0.05, with the error that fedax takes (:mod:`fedax.experiments.pooled`),
with that of all methods whatever they are, and with that of the pair alone; and how often fedax takes the pooled one.
It is part of docs/study.md.
"""

import argparse

import numpy as np

from fedax.experiments.chance import gap_of
from fedax.experiments.pooled import compare, pool_of
from fedax.experiments.summary import LEVEL

SPREADS = {
    "ten alike": [1.0] * 10,
    "one of the pair twice as much": [2.0, 1.0] + [1.0] * 8,
    "both 1.5 times as much": [1.5, 1.5] + [1.0] * 8,
    "both twice as much": [2.0, 2.0] + [1.0] * 8,
    "both three times as much": [3.0, 3.0] + [1.0] * 8,
    "four, both twice as much": [2.0, 2.0, 1.0, 1.0],
    "both half as much": [0.5, 0.5] + [1.0] * 8,
}


def rates(spreads: list[float], seeds: int, draws: int) -> tuple[float, float, float, float]:
    """How often p < 0.05: with fedax's error, that of all methods, that of the pair; how often the first is pooled."""
    from scipy import special

    rng, result = np.random.default_rng(0), np.zeros(4)
    for _ in range(draws):
        y = rng.normal(size=(len(spreads), seeds)) * np.array(spreads)[:, None] + rng.normal(size=seeds)
        values = {str(k): row for k, row in enumerate(y)}
        gap, pooled = compare(pool_of(values), "0", "1", values)
        residuals = y - y.mean(1, keepdims=True) - y.mean(0) + y.mean()
        freedom = (len(spreads) - 1) * (seeds - 1)
        error = np.sqrt(2 * (residuals**2).sum() / freedom / seeds)
        plain = 2 * special.stdtr(freedom, -abs(gap.mean) / error)
        result += gap.p < LEVEL, plain < LEVEL, gap_of(y[1], y[0]).p < LEVEL, pooled
    own, plain, paired, share = (result / draws).tolist()
    return own, plain, paired, share


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=4000)
    draws = parser.parse_args().draws
    print("| residuals spread | seeds | told: fedax | all pooled | pair alone | pooled in |\n|---|---|---|---|---|---|")
    for name, spreads in SPREADS.items():
        for seeds in (3, 5):
            own, plain, paired, share = rates(spreads, seeds, draws)
            print(f"| {name} | {seeds} | {own:.1%} | {plain:.1%} | {paired:.1%} | {share:.0%} |".replace("%", " %"))


if __name__ == "__main__":
    main()
