"""The rate of false positives of tests with pooled errors of methods.

    python benchmarks/pooled.py

Runs are drawn from normal distributions, with an effect of the seed that all methods share, and no difference between
the methods. A method's residuals have a standard deviation of its own; the pair that is tested is that of the first
two. The table has how often its p is below 0.05, with the error that fedax takes (``docs/pooled.py``),
with that of all methods whatever they are, and with that of the pair alone; and how often fedax takes the pooled one.
The second table has how often any of many pairs is called different, after Holm's correction: four of ten methods
against the six others, and five of these against the sixth. It is part of docs/study.md.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from fedax.experiments.chance import gap_of
from fedax.experiments.summary import LEVEL
from fedax.experiments.summary.compared import holm

sys.path.insert(0, str(Path(__file__).parents[1]))
from docs.pooled import compare, pool_of

SPREADS = {
    "ten alike": [1.0] * 10,
    "one of the pair twice as much": [2.0, 1.0] + [1.0] * 8,
    "both 1.5 times as much": [1.5, 1.5] + [1.0] * 8,
    "both twice as much": [2.0, 2.0] + [1.0] * 8,
    "both three times as much": [3.0, 3.0] + [1.0] * 8,
    "four, both twice as much": [2.0, 2.0, 1.0, 1.0],
    "both half as much": [0.5, 0.5] + [1.0] * 8,
}
PARTS = {
    "ten alike": [1.0] * 10,
    "two of the six 5 and 12 times as much": [5.0, 12.0] + [1.0] * 8,
    "those, and three of the four 2 to 3 times as much": [5.0, 12.0] + [1.0] * 4 + [2.0, 2.0, 3.0, 1.0],
}
PAIRS = [(one, other) for one in range(6, 10) for other in range(6)] + [(one, 5) for one in range(5)]


def drawn(rng: np.random.Generator, spreads: list[float], seeds: int) -> dict[str, np.ndarray]:
    """Runs without differences: by the number of the method, a value for each seed."""
    y = rng.normal(size=(len(spreads), seeds)) * np.array(spreads)[:, None] + rng.normal(size=seeds)
    return {str(k): row for k, row in enumerate(y)}


def rates(spreads: list[float], seeds: int, draws: int) -> tuple[float, float, float, float]:
    """How often p < 0.05: with fedax's error, that of all methods, that of the pair; how often the first is pooled."""
    from scipy import special

    rng, result = np.random.default_rng(0), np.zeros(4)
    for _ in range(draws):
        values = drawn(rng, spreads, seeds)
        y = np.array([*values.values()])
        gap, pooled = compare(pool_of(values), "0", "1", values)
        residuals = y - y.mean(1, keepdims=True) - y.mean(0) + y.mean()
        freedom = (len(spreads) - 1) * (seeds - 1)
        error = np.sqrt(2 * (residuals**2).sum() / freedom / seeds)
        plain = 2 * special.stdtr(freedom, -abs(gap.mean) / error)
        result += gap.p < LEVEL, plain < LEVEL, gap_of(y[1], y[0]).p < LEVEL, pooled
    own, plain, paired, share = (result / draws).tolist()
    return own, plain, paired, share


def any_of_many(spreads: list[float], seeds: int, draws: int) -> tuple[float, float]:
    """How often any of the pairs has a corrected p < 0.05; and any of those without the first two methods."""
    rng, result = np.random.default_rng(0), np.zeros(2)
    for _ in range(draws):
        values = drawn(rng, spreads, seeds)
        pool = pool_of(values)
        p = np.array(holm([compare(pool, str(one), str(other), values)[0].p for one, other in PAIRS]))
        calm = [min(pair) > 1 for pair in PAIRS]
        result += (p < LEVEL).any(), (p[calm] < LEVEL).any()
    every, others = (result / draws).tolist()
    return every, others


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
    print(f"\n| of {len(PAIRS)} pairs | seeds | any told | without the first two methods |\n|---|---|---|---|")
    for name, spreads in PARTS.items():
        for seeds in (3, 5):
            every, others = any_of_many(spreads, seeds, draws)
            print(f"| {name} | {seeds} | {every:.1%} | {others:.1%} |".replace("%", " %"))


if __name__ == "__main__":
    main()
