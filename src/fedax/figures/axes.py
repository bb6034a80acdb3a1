"""Curves against what training costs, or the privacy spent: what they show, without drawing them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedax.columns import describe
from fedax.errors import ConfigError, unknown
from fedax.figures.series import Chart, Scale, Series, wide


class Axis(NamedTuple):
    """A cost as an axis.

    Attributes:
        label: the name to show.
        columns: of a history; the axis is their sum.
        unit: ``"B"``, ``"s"``, or nothing.
    """

    label: str
    columns: tuple[str, ...]
    unit: str = ""

    @property
    def scale(self) -> Scale:
        """It as the axis of a picture."""
        return Scale(self.label, self.unit, all(describe(column).type == "whole" for column in self.columns))


AXES = {
    "rounds": Axis("Rounds", ("round",)),
    "local_steps": Axis("Local steps, all clients", ("local_steps",)),
    "gradients": Axis("Gradients, all clients", ("gradients",)),
    "bytes": Axis("Traffic, down and up", ("bytes_down", "bytes_up"), "B"),
    "uploads": Axis("Traffic, up only", ("bytes_up",), "B"),
    "seconds": Axis("Seconds of training", ("seconds",), "s"),
    "time": Axis("Clock time", ("time",), "s"),  # of runs with a clock only
    "epsilon": Axis("Privacy spent, ε", ("epsilon",)),  # of private runs only
}


def axis(x: str) -> Axis:
    """The axis of this name.

    Raises:
        ConfigError: no such axis.

    Example:
        >>> axis("bytes").columns
        ('bytes_down', 'bytes_up')
    """
    if x not in AXES:
        raise unknown("x", x, AXES)
    return AXES[x]


def along(history: Mapping[str, Any], x: str) -> np.ndarray:
    """[evaluations] the values of an axis in a run's history.

    Args:
        history: column -> [evaluations], as in :attr:`fedax.Run.history`.
        x: one of ``AXES``.

    Raises:
        ConfigError: no such axis; privacy, of a run that is not private; or costs, of what is public of one that is.

    Example:
        >>> along({"bytes_down": [0, 8], "bytes_up": [0, 4]}, "bytes").tolist()
        [0.0, 12.0]
    """
    if not {*axis(x).columns} <= history.keys():
        ways_out = {
            "epsilon": "this run was not private; give privacy=fedax.DP(...)",
            "time": "this run had no clock, or does not make it public; give clock=fedax.Clock(...)",
        }
        raise ConfigError(
            "x", x, ways_out.get(x, "what is public of a run does not tell it; take 'rounds' or 'epsilon'")
        )
    return np.sum([np.asarray(history[column], float) for column in axis(x).columns], axis=0)


def chart(series: Sequence[Series], x: str, column: str, target: float | None = None) -> Chart:
    """The picture of curves; arguments and errors as of :func:`fedax.figures.drawing`."""
    along, known = axis(x), describe(column)
    if not series:
        raise ConfigError("series", list(series), "give at least one")
    plain = Chart(known.label, along.scale, Scale(known.label, known.unit), series, target=target)
    return replace(plain, y=plain.y._replace(log=known.scale == "log" and wide(plain.scaling)))
