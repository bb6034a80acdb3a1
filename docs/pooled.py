"""The error of a difference, pooled over methods, and what it would say of the pairs of a part of a study.

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
from dataclasses import dataclass, replace

import numpy as np

from fedax.columns import show
from fedax.experiments.chance import Gap, gap_of
from fedax.experiments.runs import Record
from fedax.experiments.study import StudyPart, claims, column_of, fair, values_of
from fedax.experiments.summary import holm

DOUBT = 0.2  # the level of the tests for unequal spreads
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


def remark(part: StudyPart, record: Record) -> str:
    """What an error pooled over methods that spread alike would say of the pairs; no verdict rests on it.

    It is empty where no error is pooled.
    """
    by_label = values_of(part, record)
    seeds = sorted(set().union(*by_label.values()))
    values = {label: np.array([of[seed] for seed in seeds]) for label, of in by_label.items() if {*of} == {*seeds}}
    pool = pool_of(values)
    if pool is None:
        return ""
    tested, p = claims(part, record), []
    for claim in tested:
        if {claim.better, claim.worse} <= {*pool.labels}:
            p.append(compare(pool, claim.better, claim.worse, values)[0].p)
        else:
            p.append(1.0 if math.isnan(claim.p) else claim.p)
    more: list[str] = []
    fewer: list[str] = []
    counted = fair(part, tested)
    for claim, corrected in zip(tested, holm(p), strict=True):
        pooled = replace(claim, corrected=corrected).result
        if claim in counted and claim.result != pooled:
            told = pooled if claim.result == "not told" else claim.result
            (more if claim.result == "not told" else fewer).append(f"{claim.better} > {claim.worse} ({told})")
    spread = show(column_of(part, record), math.sqrt(pool.variance))
    text = f"With an error pooled over all methods{' but ' * bool(pool.apart)}{', '.join(pool.apart)}, "
    text += f"a standard deviation of {spread}, "
    if not more and not fewer:
        return f"{text}the same pairs are beyond chance."
    parts = [f"{len(more)} more would be beyond chance: {'; '.join(more)}"] if more else []
    parts += [f"{len(fewer)} would not: {'; '.join(fewer)}"] if fewer else []
    return f"{text}{', and '.join(parts)}."
