"""Statistics for tables of results: intervals, differences to the best method, and the cost of reaching a target.

Values are those of the last evaluation. Methods are compared as in :mod:`fedax.experiments.summary`: within a problem,
by the seeds that all have, with a paired t-test and Bonferroni's correction. With n seeds of mean x̄ and sample
standard deviation s, an interval is x̄ ± t s/√n, where t is the quantile of Student's distribution with n − 1 degrees of
freedom. That of a difference covers the split and the test examples too, as :mod:`fedax.experiments.chance` says. It is
corrected for all pairs, as p is.

A seed has reached a target at its first evaluation that is as good or better, of real clients the first in which enough
of their weight was heard (``run.min_heard``). What that cost is averaged over the seeds that reached it; how many did
stands beside it, for a mean over a few lucky seeds flatters a method.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedax.columns import deciding, heard_enough
from fedax.errors import ConfigError, unknown
from fedax.experiments import summary
from fedax.experiments.chance import ROUNDING, Gap
from fedax.experiments.summary import Method, ProblemResults
from fedax.figures import along
from fedax.numbers import check_number

Aim = float | Mapping[str, float]  # a value of the column that decides, or {column: value}


@dataclass(frozen=True)
class Target:
    """A value that a run has to reach.

    Attributes:
        column: the measure.
        value: of it.
        better: ``"lower"``: the measure has to be at most the value; ``"higher"``: at least.
    """

    column: str
    value: float
    better: str


@dataclass(frozen=True)
class Reached:
    """The cost of reaching a target, for the seeds of a method.

    Attributes:
        seeds: those that reached it.
        of: how many seeds there are.
        costs: name of an axis of ``fedax.figures.AXES`` -> [seeds that reached it] the cost until then.
    """

    seeds: list[int]
    of: int
    costs: dict[str, np.ndarray]


@dataclass(frozen=True)
class Difference:
    """The value of a method less that of the best one, over the seeds that both have.

    Attributes:
        mean: over the seeds; 0 of the best itself, not-a-number where there is nothing to compare.
        low, high: the ends of its confidence interval, corrected by Bonferroni for all pairs; not-a-number with one
            seed, and of the best itself.
        p: of the paired t-test, likewise corrected; not-a-number likewise.
    """

    mean: float
    low: float
    high: float
    p: float


def interval(values: np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    """The confidence interval of a mean by Student's t.

    Args:
        values: [n] of the seeds.
        confidence: in (0, 1).

    Returns:
        Its ends; not-a-number where there are not two values.

    Example:
        >>> [round(end, 3) for end in interval(np.array([1.0, 2.0, 3.0]))]
        [-0.484, 4.484]
    """
    if len(values) < 2:
        return math.nan, math.nan
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Gap(mean, error, len(values) - 1).interval(confidence)


class Paired(NamedTuple):
    """The difference of two models at each client, [N].

    Attributes:
        mean: over the client's rows.
        low, high: the ends of its confidence interval; not-a-number where rows do not tell it.
    """

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def paired(
    one: Sequence[np.ndarray], other: Sequence[np.ndarray], sizes: Sequence[np.ndarray], confidence: float = 0.95
) -> Paired:
    """The difference of two models at each client, ``other`` less ``one``, by the paired t-test over the client's rows.

    Of several seeds the rows of all make the mean and the deviation, but count as those of one seed: seeds share rows.
    Where all rows differ by the same, the sign test tells, from six rows on for 95 %. A figure that is infinite, of a
    model that diverged, needs no test.

    Args:
        one, other: of each seed [n] a figure at each row, client after client.
        sizes: of each seed [N] how many rows each client has there.
        confidence: of the interval of each client alone, in (0, 1).

    Returns:
        An interval of no width where one of these two tells, and none where rows are too few for any test.

    Example:
        >>> found = paired([np.zeros(5)], [np.array([1.0, 2.0, 3.0, 4.0, 4.0])], [np.array([3, 2])])
        >>> found.mean.tolist(), found.low.round(3).tolist()
        ([2.0, 4.0], [-0.484, nan])
    """
    from scipy import special

    clients = len(sizes[0])
    owner = np.concatenate([np.repeat(np.arange(clients), each) for each in sizes])
    a, b = np.concatenate(one), np.concatenate(other)
    number = np.bincount(owner, minlength=clients)
    with np.errstate(all="ignore"):
        size = np.maximum(np.abs(a), np.abs(b))
        gap = np.where((a == b) | (np.isfinite(size) & (np.abs(b - a) <= ROUNDING * size)), 0.0, b - a)
        mean = np.bincount(owner, gap, clients) / number
        variance = np.bincount(owner, (gap - mean[owner]) ** 2, clients) / (number - 1)
        rows = number / np.sum([np.asarray(each) > 0 for each in sizes], axis=0)
        spread = variance > (ROUNDING * mean) ** 2
        told = (rows >= 2) & (spread | (mean == 0))
        alike = np.isinf(mean) | (~spread & (mean != 0) & (2 * 0.5**rows <= 1 - confidence))
        half = special.stdtrit(np.where(told, rows - 1, 1), (1 + confidence) / 2) * np.sqrt(variance / rows)
    half = np.where(alike, 0, np.where(told, half, np.nan))
    return Paired(mean, mean - half, mean + half)


def difference(problem: ProblemResults, m: Method, confidence: float = 0.95) -> Difference:
    """The difference of a method to the best one in the deciding column, at the last evaluation."""
    undefined = Difference(math.nan, math.nan, math.nan, math.nan)
    if problem.best is None or problem.judge is None:
        return undefined
    if m is problem.best:
        return Difference(0.0, math.nan, math.nan, math.nan)
    if (gap := problem.gaps.get(m.label)) is not None:
        return Difference(gap.mean, *gap.interval(confidence), problem.p[m.label])
    values, best = m.final(problem.judge), problem.best.final(problem.judge)
    if m.status != "finished" or not np.isfinite(values).all():
        return undefined
    return Difference(float(np.mean(values - best)), math.nan, math.nan, math.nan)


def target_of(problem: ProblemResults, aim: Aim) -> Target:
    """The target that a value stands for.

    Args:
        problem: the methods that are to reach it.
        aim: a value of the column that decides; or another column with its value, ``{"test_accuracy": 0.9}``.

    Raises:
        ConfigError: no number, no such column, or a column that does not say which way is better.
    """
    known = summary.metrics(problem.methods)
    if isinstance(aim, Mapping):
        if len(aim) != 1:
            raise ConfigError("target", dict(aim), "give one column with its value, such as {'test_accuracy': 0.9}")
        ((column, value),) = aim.items()
        if column not in known:
            raise unknown("target", column, known)
        column = deciding(column, known)
    elif problem.judge is None:
        raise ConfigError("target", aim, f"nothing decides here; give a column with its value ({', '.join(known)})")
    else:
        column, value = problem.judge, aim
    way = problem.better if column == problem.judge else problem.records[0].better(column)
    if way is None:
        raise ConfigError("target", column, "its name does not tell which way is better; give another column")
    return Target(column, check_number("target", value), way)


def reached(m: Method, target: Target) -> Reached:
    """The cost of reaching a target, for each seed of a method."""
    seeds: list[int] = []
    costs: dict[str, list[float]] = {name: [] for name in summary.axes_of([m])}
    for run in m.runs:
        values = np.asarray(run.history[m.column(target.column)], float)
        hits = values <= target.value if target.better == "lower" else values >= target.value
        hits &= heard_enough(run.history, m.min_heard)
        if hits.any():
            seeds.append(run.seed)
            for name in costs:
                costs[name].append(along(run.history, name)[int(np.argmax(hits))])
    return Reached(seeds, len(m.runs), {name: np.array(values) for name, values in costs.items()})
