"""The points of a sweep: of a grid, or drawn at random."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping

import numpy as np

from fedax.contract.types import Tree, Unknown
from fedax.errors import ConfigError
from fedax.numbers import check_count, check_number

Point = dict[str, Unknown]


@dataclasses.dataclass(frozen=True)
class Range:
    """Values from ``low`` to ``high``, both included.

    Args:
        low, high: low < high; both > 0 where ``log``.
        points: how many a grid takes, at least 2.
        log: evenly spaced, and drawn, on a logarithmic scale.

    Raises:
        ConfigError: values out of range.

    Example:
        >>> [round(value, 6) for value in Range(0.001, 0.1, points=3).values()]
        [0.001, 0.01, 0.1]
    """

    low: float
    high: float
    points: int = 5
    log: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.log, bool):
            raise ConfigError("log", self.log, "give True or False")
        check_number("low", self.low, 0 if self.log else -math.inf, open_low=self.log, fixed=True)
        check_number("high", self.high, self.low, open_low=True, fixed=True)
        check_count("points", self.points, 2)

    def values(self) -> list[float]:
        """The points of a grid."""
        space = np.geomspace if self.log else np.linspace
        return [float(value) for value in space(self.low, self.high, self.points)]

    def draw(self, rng: np.random.Generator) -> float:
        """A random value."""
        if self.log:
            return float(np.exp(rng.uniform(math.log(self.low), math.log(self.high))))
        return float(rng.uniform(self.low, self.high))


def random_points(space: Mapping[str, Unknown], number: int, seed: int = 0) -> list[Point]:
    """Random search: ``number`` independent draws, to be given to :func:`sweep` in the place of a grid.

    Args:
        space: name -> :class:`Range`, or a sequence of values, all as likely.
        number: how many points.
        seed: of the draws.

    Raises:
        ConfigError: an axis without values, or numbers out of range.

    Example:
        >>> points = random_points({"lr": Range(0.01, 1), "momentum": [0.0, 0.9]}, 3)
        >>> len(points), sorted(points[0])
        (3, ['lr', 'momentum'])
    """
    rng = np.random.default_rng(check_count("seed", seed, 0))
    axes = {name: axis(name, values) for name, values in named(space).items()}

    def draw(values: Tree) -> Tree:
        return values.draw(rng) if isinstance(values, Range) else values[rng.integers(len(values))]

    return [{name: draw(values) for name, values in axes.items()} for _ in range(check_count("number", number))]


def points_of(grid: Unknown) -> list[Point]:
    if isinstance(grid, Mapping):
        axes = {name: axis(name, values) for name, values in named(grid).items()}
        lists = [axis.values() if isinstance(axis, Range) else axis for axis in axes.values()]
        return [dict(zip(axes, values, strict=True)) for values in itertools.product(*lists)]
    points = list(grid) if isinstance(grid, Iterable) and not isinstance(grid, str) else []
    if not points or not all(isinstance(point, Mapping) for point in points):
        raise ConfigError("grid", grid, "give name -> values, or a list of points, each a dictionary")
    return [dict(point) for point in points]


def named(space: Unknown) -> Mapping[str, Unknown]:
    if not isinstance(space, Mapping) or not all(isinstance(name, str) for name in space):
        raise ConfigError("grid", space, "give a dictionary: name -> values")
    return space


def axis(name: str, values: Tree) -> Tree:
    if isinstance(values, Range):
        return values
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise ConfigError(f"grid[{name!r}]", values, "give a list of values, or a Range")
    listed = list(values)
    if not listed:
        raise ConfigError(f"grid[{name!r}]", values, "give at least one value")
    return listed
