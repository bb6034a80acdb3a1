"""Figures as files: PNG, SVG and PDF, with the same bytes whenever the same thing is drawn."""

import io
import math
import os
import pathlib
import textwrap
import warnings
from collections.abc import Sequence
from typing import Any

import matplotlib.style
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from fedax.columns import raised
from fedax.errors import UNSEEN, ConfigError, unknown
from fedax.figures.style import DASHES, WIDTH

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


class Drawing(Figure):
    """A Matplotlib figure that notebooks show by itself."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        width, height = (round(150 * inches) for inches in self.get_size_inches())
        return encode(self, "png"), {"width": width, "height": height}


def canvas(height: float, width: float = WIDTH) -> tuple[Drawing, Any]:
    """An empty figure, in inches, and its axes."""
    with style():
        figure = Drawing(figsize=(width, height), layout="constrained")
        axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e3e6ea", linewidth=0.5)
    axes.set_axisbelow(True)
    return figure, axes


def style() -> Any:
    """A context in which what is drawn has the style of all figures, whatever the user has set."""
    return matplotlib.style.context(["default", _STYLE])


def legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Add a legend below the axes, where it hides no curve; the figure grows by its height.

    Args:
        figure: from :func:`canvas`.
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
