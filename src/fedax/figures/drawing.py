"""Figures, and figures as files: PNG, SVG and PDF, with the same bytes whenever the same thing is drawn."""

import io
import math
import os
import pathlib
import textwrap
import warnings
from collections.abc import Sequence
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from fedax.columns import HEARD, heard_enough, raised
from fedax.errors import UNSEEN, ConfigError, unknown
from fedax.figures.axes import chart
from fedax.figures.series import CLASS_COLOURS, COLOURS, DASHES, WIDTH, Chart, Scale, Series, colour, dash, marker

LINES: dict[str, Any] = dict(zip(DASHES, ("-", (0, (4.5, 1.6)), (0, (1.2, 1.3)), (0, (5, 1.4, 1.2, 1.4))), strict=True))
FORMATS = ("png", "svg", "pdf")

_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with Matplotlib
    "font.size": 7.5,
    "axes.labelsize": 7.5,
    "axes.titlesize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.1,
    "lines.markersize": 4.0,
    "pdf.fonttype": 42,  # TrueType: many venues refuse Type 3
    "svg.hashsalt": "fedax",  # otherwise ids are random
}
_NO_DATE: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
_DPI = 300
_DECADES = 30  # an axis that goes further has powers of ten only
_LETTERS = 44  # the most characters of a label in a legend
_AXIS_LETTERS = 26  # and of one along an axis
_HEIGHT = 2.0  # inches, without the legend
_SHADES, _DARK = "Blues", 0.6  # letters are white on what is darker


class Drawing(Figure):
    """A Matplotlib figure that notebooks show by itself."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        width, height = (round(150 * inches) for inches in self.get_size_inches())
        return encode(self, "png"), {"width": width, "height": height}


def draw(chart: Chart) -> Drawing:
    """Draw a picture, with the legend below it."""
    with style():
        figure = Drawing(figsize=(WIDTH, _HEIGHT), layout="constrained")
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        if not any(s.kind == "cells" for s in chart.series):
            axes.grid(color="#e3e6ea", linewidth=0.5)
        axes.set_axisbelow(True)
        draws = {"line": _line, "bars": _bars, "dots": _dots, "cells": _cells}
        drawn = []
        for k, s in enumerate(chart.series):
            drawn.append(draws.get(s.kind, _line)(axes, s, k if s.k is None else s.k, 1 - k / len(chart.series)))
        if chart.target is not None:
            axes.axhline(chart.target, color="#333333", linewidth=0.7, linestyle=(0, (1, 2)), zorder=1)
        _scale(axes, "x", chart.x)
        _scale(axes, "y", chart.y)
        _limit(axes, chart)
        if chart.ramp:
            name, *ends = chart.ramp
            shades = figure.colorbar(matplotlib.cm.ScalarMappable(cmap=_SHADES), ax=axes, label=name, ticks=[0, 1])
            shades.set_ticklabels(ends, rotation=90)
            low, high = shades.ax.get_yticklabels()
            low.set_verticalalignment("bottom")
            high.set_verticalalignment("top")
            axes.set_title(chart.title, parse_math=False)
        named = {f"{s.label} ({s.gone})" if s.gone else s.label: handle
                 for s, handle in zip(chart.series, drawn, strict=True) if s.label and not chart.ramp}  # fmt: skip
        if named:
            legend(figure, list(named.values()), list(named))
    return figure


def _line(axes: Any, s: Series, k: int, under: float) -> Any:
    """A line, the wider the more are drawn over it (``under``, a share), so that equal ones all show."""
    line, *ends = s.parts
    if s.kind != "line":
        return axes.plot(s.x, line, color="#8c99a7", linewidth=9 if s.kind == "box" else 0.8)[0]
    if ends:
        axes.fill_between(s.x, *ends, color=colour(k), alpha=0.16, linewidth=0)
    (drawn,) = axes.plot(
        s.x, line, linestyle=LINES[dash(k)], color=colour(k), marker=marker(k), markevery=_marks(s.x, 1 - under),
        linewidth=0.9 + 0.8 * under, markersize=3.2 + 2.0 * under, markeredgecolor="white", markeredgewidth=0.3,
    )  # fmt: skip
    if s.heard is not None and (away := ~heard_enough({HEARD: s.heard})).any():
        axes.plot(
            s.x[away], line[away], "o", color=colour(k), markersize=5, markerfacecolor="white", markeredgewidth=0.9
        )
    if s.gone and s.x.size:
        axes.plot(s.x[-1], line[-1], "x", color=colour(k), markersize=5.5, markeredgewidth=1.4)
    return drawn


def _marks(x: np.ndarray, shift: float) -> list[int]:
    """The evaluations that have a mark: those nearest to seven places along the axis, which are shifted by a share."""
    if not x.size:
        return []
    places = x[0] + (x[-1] - x[0]) * (np.arange(7) + shift) / 7
    return sorted({int(np.argmin(np.abs(x - place))) for place in places})


def _bars(axes: Any, s: Series, k: int, under: float) -> Any:
    width = 0.85 * float(np.diff(s.x).min()) if len(s.x) > 1 else 0.85
    return axes.bar(s.x, s.parts[0], width=width, color=CLASS_COLOURS[k % len(CLASS_COLOURS)], zorder=1 + under)


def _dots(axes: Any, s: Series, k: int, under: float) -> Any:
    if s.shade is None:
        return axes.plot(s.x, s.parts[0], marker(k), color=colour(k), markersize=4)[0]
    crosses = np.isnan(s.shade)
    axes.plot(s.x[crosses], s.parts[0][crosses], "x", color=COLOURS[6])
    axes.plot(s.x[:1][~crosses[:1]], s.parts[0][:1][~crosses[:1]], "*", color=COLOURS[1], markersize=9, zorder=3)
    return axes.scatter(s.x[~crosses], s.parts[0][~crosses], c=s.shade[~crosses], cmap=_SHADES, vmin=0, vmax=1,
                        edgecolors="#8591a0")  # fmt: skip


def _cells(axes: Any, s: Series, k: int, under: float) -> Any:
    column, row = s.x.astype(int), s.values[0].astype(int)
    table = np.full((row.max() + 1, column.max() + 1), np.nan)
    table[row, column] = s.shade
    for i, j, text in zip(column, row, s.texts, strict=False):
        dark = table[j, i] > _DARK
        axes.text(
            i, j, text.partition("\n")[0], ha="center", va="center", color="white" if dark else "black", fontsize=6
        )
    return axes.imshow(table, vmin=0, vmax=1, cmap=_SHADES, origin="lower", aspect="auto")


def _scale(axes: Any, side: str, scale: Scale) -> None:
    """Name an axis, and write its numbers, or words."""
    axis = getattr(axes, f"{side}axis")
    getattr(axes, f"set_{side}label")(textwrap.fill(scale.label, _AXIS_LETTERS), parse_math=False)
    if scale.words:
        step = -(-len(scale.words) // 12) if side == "x" else 1
        places = range(0, len(scale.words), step)
        axis.set_ticks(places, [scale.words[i].translate(UNSEEN) for i in places], parse_math=False)
    elif scale.log:
        getattr(axes, f"set_{side}scale")("log")
        powers(axis)
    else:
        number(axis, scale.unit, whole=scale.whole)


def _limit(axes: Any, chart: Chart) -> None:
    """Scale to the series that stay; one that diverged or ended worse may leave the picture."""
    seen = chart.scaling
    if not seen.size or chart.y.words:
        return
    low, high = float(seen.min()), float(seen.max())
    if any(s.kind == "bars" for s in chart.series):
        axes.set_ylim(0, 1.05 * high or 1)
    elif chart.y.log:
        axes.set_ylim(low / 1.2, high * 1.2)
    else:
        pad = 0.05 * (high - low or 1.0)
        axes.set_ylim(low - pad, high + pad)


def style() -> Any:
    """A context in which what is drawn has the style of all figures, whatever the user has set."""
    return matplotlib.style.context(["default", _STYLE])


def legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Add a legend below the axes, where it hides no curve; the figure grows by its height.

    Args:
        figure: from :func:`draw`.
        handles: the lines.
        labels: of the lines; drawn as they are, no mathematics.
    """
    names = [textwrap.fill(label.translate(UNSEEN), _LETTERS) or " " for label in labels]
    widest = max(len(line) for name in names for line in name.split("\n"))
    columns = max(1, min(len(names), 4, int(WIDTH / (0.5 + 0.058 * widest))))  # inches: line and gaps, and a letter
    rows = -(-len(names) // columns)
    lines = sum(max(name.count("\n") + 1 for name in names[row::rows]) for row in range(rows))  # filled by columns
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 0.135 * lines)
    made = figure.legend(
        handles, names, loc="outside lower center", ncols=columns, frameon=False, handlelength=3.2, columnspacing=1.2,
        labelspacing=0.3, borderaxespad=0.2,
    )  # fmt: skip
    for text in made.get_texts():
        text.set_parse_math(False)


def number(axis: Any, unit: str, whole: bool = False) -> None:
    """Write the numbers of an axis in its unit.

    Args:
        axis: Matplotlib's, of a figure.
        unit: ``"%"``, ``"B"``, or another, which its label has to name.
        whole: numbers of things, which have no fractions.
    """
    if unit == "%":
        axis.set_major_formatter(lambda value, _: f"{100 * value:.6g} %".replace("-", "−"))
    elif whole:
        axis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
        axis.set_major_formatter(EngFormatter(unit))


def powers(axis: Any) -> None:
    """Write the numbers of a logarithmic axis in plain text, where it spans little those between powers of ten too.

    Matplotlib's own are formulas, which take a third of the time of a drawing.

    Args:
        axis: Matplotlib's, of a figure, with its limits.
    """

    def between(value: float, _: object) -> str:
        low, high = axis.get_view_interval()
        first = value / 10.0 ** math.floor(math.log10(value))
        return _power(value) if high < _DECADES * low and round(first) in (2, 5) else ""

    axis.set_major_formatter(lambda value, _: _power(value))
    axis.set_minor_formatter(between)


def _power(value: float) -> str:
    """
    Example:
        >>> _power(0.02), _power(1000.0), _power(1e-6), _power(2e7)
        ('0.02', '1000', '10⁻⁶', '2·10⁷')
    """
    if 0.9e-3 < value < 1e5:
        return f"{value:g}"
    digit, _, exponent = f"{value:.0e}".partition("e")
    return f"{digit}·"[: 2 * (digit != "1")] + raised(int(exponent))


def encode(figure: Figure, form: str) -> bytes:
    """A figure as the content of a file.

    Args:
        figure: any Matplotlib figure.
        form: ``"png"`` with 300 dots an inch, ``"svg"`` or ``"pdf"``. The same figure gives the same bytes.

    Raises:
        ConfigError: another format.

    Example:
        >>> from fedax.figures import Series, curves
        >>> encode(curves([Series("fedavg", [0, 1], [[1.0, 0.5]])]), "pdf")[:5]
        b'%PDF-'
    """
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    buffer = io.BytesIO()
    with style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a label may have any character
        figure.savefig(buffer, format=form, dpi=_DPI, metadata=_NO_DATE[form])
    return buffer.getvalue()


def write(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure to a file; a file that is there is replaced.

    Args:
        figure: any Matplotlib figure.
        path: ``*.png``, ``*.svg`` or ``*.pdf``. The same figure gives the same bytes.

    Raises:
        ConfigError: another ending.
        OSError: the file cannot be written.

    Example:
        >>> import pathlib, tempfile
        >>> from fedax.figures import Series, curves
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "loss.svg"
        >>> write(curves([Series("fedavg", [0, 1], [[1.0, 0.5]])]), path)
        >>> path.read_text()[:5]
        '<?xml'
    """
    path = pathlib.Path(path)
    form = path.suffix.lower().removeprefix(".")
    if form not in FORMATS:
        raise ConfigError("path", str(path), f"give a file name that ends in {', '.join('.' + f for f in FORMATS)}")
    path.write_bytes(encode(figure, form))


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
    return draw(chart(series, x, column, target))
