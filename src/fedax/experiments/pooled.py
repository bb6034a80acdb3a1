"""The error of a difference, pooled over methods, and how small a difference a design can tell.

Run m, s is one of method m with seed s: its value is the method's mean, plus what the seed does to all methods, plus a
residual. Three seeds give the difference of two methods an error with two degrees of freedom, with which nothing but a
huge difference is told. If residuals spread alike with all M methods, their variance can be estimated from all runs
together, with (M − 1)(S − 1) degrees of freedom: the two-way analysis of variance. Whether they do is looked at, twice:

- A method leaves the pool if its residuals spread more than those of the others: Cochran's test (1941) of the largest
  variance, again and again until none does.
- A pair has its own error, that of the paired t-test, if its differences spread more than those of the pool: an F test.
  Otherwise it has the larger of the two variances, so that a pair that spreads a little more is not flattered.

Both are at 20 %: what goes wrong if unequal spreads are missed is worse than what is lost if equal ones are not used.
With few seeds they miss some all the same; ``python benchmarks/pooled.py`` says how often a test is then wrong.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedax.experiments.chance import Gap, gap_of

DOUBT = 0.2  # the level of the tests for unequal spreads
POWER = 0.8
LEAST_METHODS = 4  # of three, one that spreads more hides in the residuals of the others; of two it is the pair's error


@dataclass(frozen=True)
class Pool:
    """What the residuals of several methods say together.

    Attributes:
        labels: the methods whose residuals spread alike.
        apart: those that spread more, which are not in it.
        variance: of a residual.
        freedom: the degrees of freedom of the variance.
    """

    labels: tuple[str, ...]
    apart: tuple[str, ...]
    variance: float
    freedom: int


def pool_of(values: Mapping[str, np.ndarray]) -> Pool | None:
    """The methods whose residuals spread alike, with their common variance; ``None`` where there are not four.

    Args:
        values: method -> [S] its values with the same seeds in the same order; those that are not all finite stay out.

    Example:
        >>> a, noise = np.array([1.0, 2.0, 4.0]), np.array([0.1, -0.1, 0.0])
        >>> alike = {"a": a, "b": a + noise, "c": a - noise, "d": a + 1}
        >>> pool = pool_of(alike | {"wild": 50 * noise, "failed": a * math.nan})
        >>> pool.labels, pool.apart, round(pool.variance, 4), pool.freedom
        (('a', 'b', 'c', 'd'), ('wild',), 0.0067, 6)
    """
    from scipy import special  # slow to import

    left = {label: each for label, each in values.items() if np.isfinite(each).all()}
    apart: list[str] = []
    while len(left) >= LEAST_METHODS:
        y = np.array([*left.values()])
        number, seeds = y.shape
        if seeds < 2:
            return None
        residuals = y - y.mean(1, keepdims=True) - y.mean(0) + y.mean()
        squares = (residuals**2).sum(1)
        total = float(squares.sum())
        largest = int(np.argmax(squares))
        share = float(squares[largest]) / total if total else 0.0
        odds = (number - 1) * share / (1 - share)
        if number * special.fdtrc(seeds - 1, (number - 1) * (seeds - 1), odds) >= DOUBT:
            freedom = (number - 1) * (seeds - 1)
            return Pool(tuple(left), tuple(apart), total / freedom, freedom)
        apart.append([*left][largest])
        del left[apart[-1]]
    return None


def compare(pool: Pool | None, one: str, other: str, values: Mapping[str, np.ndarray]) -> tuple[Gap, bool]:
    """How far a method is above another, and whether the error is the pooled one.

    Args:
        pool: of these values, or ``None``.
        one, other: methods; both have the same S ≥ 2 seeds.
        values: as of :func:`pool_of`.

    Example:
        >>> rng = np.random.default_rng(1)
        >>> values = {label: shift + rng.normal(size=3) for label, shift in zip("abcd", (6, 0, 0, 0))}
        >>> gap, pooled = compare(pool_of(values), "a", "b", values)
        >>> pooled, gap.freedom, gap.p < compare(None, "a", "b", values)[0].p
        (True, 6, True)
    """
    from scipy import special

    own = gap_of(values[other], values[one])
    if pool is None or one not in pool.labels or other not in pool.labels or own.same:
        return own, False
    seeds = len(values[one])
    mine, common = own.error**2 * seeds, 2 * pool.variance
    if special.fdtrc(seeds - 1, pool.freedom, mine / common) < DOUBT:
        return own, False
    return Gap(own.mean, math.sqrt(max(mine, common) / seeds), pool.freedom), True


def least(seeds: int, methods: int, tests: int = 1, level: float = 0.05) -> float:
    """The smallest difference that is told with 80 %, in standard deviations of a residual.

    Args:
        seeds: S ≥ 2 of each method.
        methods: M whose errors are pooled; 2: a pair with its own error.
        tests: among how many a p-value is corrected, by Bonferroni's bound of Holm's correction.
        level: of the two-sided test.

    Example:
        >>> [round(least(3, methods), 1) for methods in (2, 10)], round(least(3, 10, tests=29), 1)
        ([4.6, 2.4], 3.8)
    """
    from scipy import special

    freedom = (methods - 1) * (seeds - 1)
    critical = special.stdtrit(freedom, 1 - level / tests / 2)
    low, high = 0.0, 10.0 * critical + 10.0
    for _ in range(60):  # the power grows with the difference
        middle = (low + high) / 2
        low, high = (low, middle) if special.nctdtr(freedom, middle, critical) < 1 - POWER else (middle, high)
    return float(high * math.sqrt(2 / seeds))
