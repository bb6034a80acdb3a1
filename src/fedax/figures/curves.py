"""Curves of a measure against what training costs."""

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedax.columns import HEARD, describe, heard_enough
from fedax.errors import ConfigError
from fedax.figures.axes import axis
from fedax.figures.drawing import LINES, Drawing, canvas, legend, number, powers, style
from fedax.figures.series import Series
from fedax.figures.style import colour, dash, marker

_HEIGHT = 2.0  # inches, without the legend
_LETTERS = 26  # the most characters of the label along the axis


@np.errstate(all="ignore")  # means of numbers near the largest float overflow
def curves(
    series: Sequence[Series], *, x: str = "rounds", column: str = "test_loss", target: float | None = None
) -> Drawing:
    """The curves of several methods: lines are means over the seeds, bands go from the lowest to the highest seed.

    Args:
        series: the methods, in the order of the legend. At most 72 differ in colour or mark.
        x: what they are drawn against: ``"rounds"``, ``"bytes"``, ``"uploads"``, ``"seconds"``, ``"time"``,
            ``"gradients"``, ``"local_steps"``, or ``"epsilon"``.
        column: what was measured, which gives the label, the unit and the scale.
        target: a value of the column, drawn as a line across.

    Returns:
        A Matplotlib figure, 3.3 inches wide: one column of a paper. :func:`fedax.figures.write` writes it.

    Raises:
        ConfigError: no series, or no such axis.

    Example:
        >>> figure = curves([Series("fedavg", [0, 10], [[2.3, 0.9]]), Series("fednova", [0, 10], [[2.3, 0.7]])])
        >>> figure.axes[0].get_ylabel(), [text.get_text() for text in figure.legends[0].get_texts()]
        ('Test loss', ['fedavg', 'fednova'])
    """
    along, known = axis(x), describe(column)
    if not series:
        raise ConfigError("series", list(series), "give at least one")
    figure, axes = canvas(_HEIGHT)
    with style():
        handles = [_draw(axes, s, k, len(series)) for k, s in enumerate(series)]
        if target is not None:
            axes.axhline(target, color="#333333", linewidth=0.7, linestyle=(0, (1, 2)), zorder=1)
        _limit(axes, series, known.scale == "log", target)
        axes.set_xlabel(along.label)
        axes.set_ylabel(textwrap.fill(known.label, _LETTERS))
        number(axes.xaxis, along.unit, whole=along.whole)
        number(axes.yaxis, known.unit)
        if any(s.label for s in series):
            legend(figure, handles, [f"{s.label} ({s.gone})" if s.gone else s.label for s in series])
    return figure


def _draw(axes: Any, s: Series, k: int, number: int) -> Any:
    mean = s.values.mean(0)
    if len(s.values) > 1:
        axes.fill_between(s.x, s.values.min(0), s.values.max(0), color=colour(k), alpha=0.16, linewidth=0)
    # Marks are spread along the line, those of different methods in different places. The first lines are wider than
    # those that are drawn over them, so that equal curves are all visible.
    under = 1 - k / number
    (line,) = axes.plot(
        s.x, mean, linestyle=LINES[dash(k)], color=colour(k), marker=marker(k), markevery=_marks(s.x, k / number),
        linewidth=0.9 + 0.8 * under, markersize=3.2 + 2.0 * under, markeredgecolor="white", markeredgewidth=0.3,
    )  # fmt: skip
    if s.heard is not None and (away := ~heard_enough({HEARD: s.heard})).any():
        axes.plot(
            s.x[away], mean[away], "o", color=colour(k), markersize=5.0, markerfacecolor="white", markeredgewidth=0.9
        )
    if s.gone and s.x.size:
        axes.plot(s.x[-1], mean[-1], "x", color=colour(k), markersize=5.5, markeredgewidth=1.4)
    return line


def _marks(x: np.ndarray, shift: float) -> list[int]:
    """The evaluations that have a mark: those nearest to seven places along the axis, which are shifted by a share."""
    if not x.size:
        return []
    places = x[0] + (x[-1] - x[0]) * (np.arange(7) + shift) / 7
    return sorted({int(np.argmin(np.abs(x - place))) for place in places})


def _limit(axes: Any, series: Sequence[Series], may_log: bool, target: float | None) -> None:
    """Scale to the methods that stay; one that diverged or ended worse may leave the picture."""
    seen = np.concatenate([s.values.ravel() for s in series if not s.gone] or [np.zeros(0)])
    seen = seen[np.isfinite(seen)]
    if not seen.size:
        return
    if target is not None:
        seen = np.append(seen, target)
    low, high = float(seen.min()), float(seen.max())
    if may_log and low > 0 and high > 8 * low:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.2, high * 1.2)
        powers(axes.yaxis)
    else:
        pad = 0.05 * (high - low or 1.0)
        axes.set_ylim(low - pad, high + pad)
