"""The error of a difference, pooled over methods, and the smallest difference that a design can detect.

The value of method m with seed s is the method's mean, plus an effect of the seed on all methods, plus a residual.
With three seeds the difference of two methods has an error with two degrees of freedom, so that only huge differences
are significant. If the residuals of all M methods have the same variance, it can be estimated from all runs together,
with (M − 1)(S − 1) degrees of freedom: the two-way analysis of variance. Two tests check whether they do:

- A method leaves the pool if its residuals spread more than those of the others: Cochran's test (1941) of the largest
  variance, again and again until none does.
- A pair has its own error, that of the paired t-test, if its differences spread more than those of the pool: an F test.
  Otherwise it has the larger of the two variances, so that a pair that spreads a little more is not flattered.

Both tests are at the level of 20 %, because pooling unequal variances does more harm than not pooling equal ones. With
few seeds they still miss some unequal variances; ``python benchmarks/pooled.py`` says how often a test is then wrong.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedax.experiments.chance import Gap, gap_of

DOUBT = 0.2  # the level of the tests for unequal spreads
POWER = 0.8
LEAST_METHODS = 4  # with fewer, a method that spreads more cannot be recognised by its residuals


@dataclass(frozen=True)
class Pool:
    """The residual variance of several methods together.

    Attributes:
        labels: the methods in the pool, whose residuals spread alike.
        apart: the methods whose residuals spread more, which are not in the pool.
        variance: of a residual.
        freedom: the degrees of freedom of the variance.
    """

    labels: tuple[str, ...]
    apart: tuple[str, ...]
    variance: float
    freedom: int


def pool_of(values: Mapping[str, np.ndarray]) -> Pool | None:
    """The pool of the methods whose residuals spread alike; ``None`` if there are fewer than four.

    Args:
        values: method -> [S] values with the same seeds in the same order; methods with a non-finite value stay out.

    Example:
        >>> a, noise = np.array([1.0, 2.0, 4.0]), np.array([0.1, -0.1, 0.0])
        >>> alike = {"a": a, "b": a + noise, "c": a - noise, "d": a + 1}
        >>> pool = pool_of(alike | {"wild": 50 * noise, "failed": a * math.nan})
        >>> pool.labels, pool.apart, round(pool.variance, 4), pool.freedom
        (('a', 'b', 'c', 'd'), ('wild',), 0.0067, 6)
    """
    from scipy import special  # slow to import

    left = {label: of_method for label, of_method in values.items() if np.isfinite(of_method).all()}
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
    """By how much a method is above another, and whether the error is the pooled one.

    Args:
        pool: from :func:`pool_of` with these values; may be ``None``.
        one, other: methods; both have the same S ≥ 2 seeds.
        values: as in :func:`pool_of`.

    Example:
        >>> rng = np.random.default_rng(1)
        >>> values = {label: shift + rng.normal(size=3) for label, shift in zip("abcd", (6, 0, 0, 0))}
        >>> gap, pooled = compare(pool_of(values), "a", "b", values)
        >>> pooled, gap.freedom, gap.p < compare(None, "a", "b", values)[0].p
        (True, 6, True)
    """
    from scipy import special

    paired = gap_of(values[other], values[one])
    if pool is None or one not in pool.labels or other not in pool.labels or paired.same:
        return paired, False
    seeds = len(values[one])
    pair_variance, pooled_variance = paired.error**2 * seeds, 2 * pool.variance
    if special.fdtrc(seeds - 1, pool.freedom, pair_variance / pooled_variance) < DOUBT:
        return paired, False
    return Gap(paired.mean, math.sqrt(max(pair_variance, pooled_variance) / seeds), pool.freedom), True


def least(seeds: int, tests: int = 1, level: float = 0.05) -> float:
    """The smallest difference that a paired t-test detects with a power of 80 %, in standard deviations of a residual.

    Args:
        seeds: S ≥ 2 of each method.
        tests: the number of tests for which a p-value is corrected, by Bonferroni's bound on Holm's correction.
        level: of the two-sided test.

    Example:
        >>> round(least(3), 1), round(least(10), 1), round(least(3, tests=29), 1)
        (4.6, 1.4, 24.9)
    """
    from scipy import special

    freedom = seeds - 1
    critical = special.stdtrit(freedom, 1 - level / tests / 2)
    low, high = 0.0, 10.0 * critical + 10.0
    for _ in range(60):  # the power grows with the difference
        middle = (low + high) / 2
        low, high = (low, middle) if special.nctdtr(freedom, middle, critical) < 1 - POWER else (middle, high)
    return float(high * math.sqrt(2 / seeds))
