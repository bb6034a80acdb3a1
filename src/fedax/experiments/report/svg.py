"""SVG drawings for the report: a frame with two axes, and curves, areas and marks in it.

A frame fills the width of the page without any script. So positions are relative to its sides: percentages, or units of
a stretched field of ``WIDTH`` by ``HEIGHT`` units from the upper left corner. Texts, marks and line widths keep their
size. The script of the page, page.js, draws curves again by the same rules when a reader changes an axis or zooms in.
"""

import html
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

WIDTH, HEIGHT = 2000, 1000  # units of a field

# By Matplotlib's names, about 8 units across; the sizes are chosen so that all seem equally large.
SYMBOLS = {
    "o": "M-4.2 0a4.2 4.2 0 1 0 8.4 0a4.2 4.2 0 1 0-8.4 0z",
    "s": "M-3.8-3.8h7.6v7.6h-7.6z",
    "^": "M0-4.9L4.6 3.6H-4.6z",
    "D": "M0-5.2L5.2 0 0 5.2-5.2 0z",
    "v": "M0 4.9L4.6-3.6H-4.6z",
    "P": "M-1.8-4.8h3.6v3h3v3.6h-3v3h-3.6v-3h-3v-3.6h3z",
    "X": "M-4.6-2.2l2.4-2.4L0-2.4l2.2-2.2 2.4 2.4L2.4 0l2.2 2.2-2.4 2.4L0 2.4l-2.2 2.2-2.4-2.4L-2.4 0z",
    "<": "M-4.9 0L3.6-4.6V4.6z",
    ">": "M4.9 0L-3.6-4.6V4.6z",
}
_OTHERS = {
    "gone": '<circle r="6.5"/><path d="M-3-3l6 6M-3 3l6-6"/>',
    "away": '<circle r="4.5"/>',
    "star": '<path d="M0-9l2.6 5.6 6.1.8-4.5 4.2 1.2 6.1L0 3.7l-5.4 3 1.2-6.1-4.5-4.2 6.1-.8z"/>',
}
_LARGEST = 1e300  # larger numbers are clipped before they are drawn
_NARROWEST = 1e-9  # the least length of an axis, relative to its values


@dataclass(frozen=True)
class Scale:
    """The scale of an axis: numbers from ``low`` to ``high``, or words at 0, 1, 2, …

    Attributes:
        low, high: the ends.
        log: whether it is logarithmic; both ends are then > 0.
        unit: ``"%"`` for shares, ``"B"``, or nothing.
        whole: whether the numbers are counts.
        words: the labels of an axis of words.

    Example:
        >>> Scale(0.0, 20.0).share(np.array([5.0, 20.0])), Scale(0.0, 20.0).ticks(4)
        (array([0.25, 1.  ]), [(0.0, '0'), (0.25, '5'), (0.5, '10'), (0.75, '15'), (1.0, '20')])
        >>> Scale(0.5, 200.0, log=True).ticks()[0][1], [text.split() for _, text in Scale(0, 3e6, unit="B").ticks(3)]
        ('1', [['0', 'MB'], ['1', 'MB'], ['2', 'MB'], ['3', 'MB']])
    """

    low: float
    high: float
    log: bool = False
    unit: str = ""
    whole: bool = False
    words: tuple[str, ...] = ()

    @classmethod
    def of_words(cls, words: Sequence[str]) -> "Scale":
        """A scale of words, at 0, 1, 2, …"""
        return cls(-0.5, len(words) - 0.5, words=tuple(words))

    def share(self, values: Any) -> np.ndarray:
        """The relative positions of values: 0 at the low end, 1 at the high end; not-a-number if undefined."""
        with np.errstate(all="ignore"):
            low, high, values = self.low, self.high, np.clip(np.asarray(values, float), -_LARGEST, _LARGEST)
            if self.log:
                low, high = math.log10(low), math.log10(high)
                values = np.log10(np.where(values > 0, values, np.nan))
            return (values - low) / (high - low)

    def ticks(self, number: int = 6) -> list[tuple[float, str]]:
        """About ``number`` round numbers on the axis, as (relative position, text)."""
        if self.words:
            return [(float(self.share(i)), word) for i, word in enumerate(self.words)]
        if self.log and self.high > 3 * self.low:
            values = _decades(self.low, self.high)
            return [
                (float(self.share(v)), _tick_text(v, 10.0 ** math.floor(math.log10(v)), v, self.unit)) for v in values
            ]
        step = _round_step((self.high - self.low) / number)
        step = max(step, 1.0) if self.whole else step
        values = [k * step for k in range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1)]
        top = max(map(abs, values), default=0.0)
        return [(float(self.share(v)), _tick_text(v, step, top, self.unit)) for v in values]


def around(values: Any, log: bool = False, unit: str = "") -> Scale | None:
    """A scale that holds all finite values, with a margin; ``None`` if there are none.

    Example:
        >>> around([1.0, 3.0, np.inf]), around([])
        (Scale(low=0.9, high=3.1, log=False, unit='', whole=False, words=()), None)
    """
    values = np.asarray(values, float)
    values = values[np.isfinite(values) & (np.abs(values) <= _LARGEST)]
    values = values[values > 0] if log else values
    if not values.size:
        return None
    low, high = float(values.min()), float(values.max())
    if log:
        low, high = math.log10(low), math.log10(high)
    length = high - low
    pad = 0.05 * (length if length > _NARROWEST * max(abs(low), abs(high)) else abs(high) or 1.0)
    low, high = low - pad, high + pad
    return Scale(max(10.0**low, 1e-307), 10.0**high, True, unit) if log else Scale(low, high, False, unit)


def _round_step(least: float) -> float:
    """The least of 1, 2 or 5 times a power of ten that is at least this number."""
    power = 10.0 ** math.floor(math.log10(least))
    return next((m * power for m in (1, 2, 5) if m * power >= least * (1 - 1e-9)), 10 * power)


def _decades(low: float, high: float) -> list[float]:
    """Round numbers for the ticks of a logarithmic axis."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, math.ceil((last - first) / 7))
    parts = (1, 2, 5) if math.log10(high / low) < 2.2 else (1,)
    values = [m * 10.0**e for e in range(first, last + 1) if e % every == 0 for m in parts]
    return [v for v in values if low <= v <= high]


def _tick_text(value: float, step: float, top: float, unit: str) -> str:
    """The text of a tick: with the digits that ``step`` needs, and the prefix that suits the largest number ``top``."""
    if unit == "%":
        return f"{_fixed(100 * value, 100 * step)}\u00a0%"
    if top >= (1e3 if unit == "B" else 1e4) and top < 1e15:
        power = math.floor(math.log10(top) / 3 + 1e-9)
        scale = 1000.0**power
        return f"{_fixed(value / scale, step / scale)}\u00a0{' kMGT'[power].strip()}{unit}"
    if value and not 1e-3 <= top < 1e15:
        digits = math.floor(math.log10(abs(value)) + 1e-9) - math.floor(math.log10(step) + 1e-9)
        mantissa, exponent = f"{value:.{min(max(digits, 0), 9)}e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{_fixed(value, step)}\u00a0{unit}" if unit == "B" else _fixed(value, step)


def _fixed(value: float, step: float) -> str:
    return f"{value:.{min(max(math.ceil(-math.log10(step) - 1e-9), 0), 12)}f}"


# ---- what lies in a field


def path(x: Any, y: Any) -> str:
    """A line through places, given as shares; it is broken where one is not-a-number.

    Example:
        >>> path([0, 0.5, 1], [1, 0, np.nan]), path([0.5], [0.5])
        ('M0 0l1000 1000', 'M1000 500h0')
    """
    text = ""
    for run in _unbroken(x, y):
        text += f"M{run[0][0]} {run[0][1]}{_relative_moves(run) or 'h0'}"
    return text


def band(x: Any, low: Any, high: Any) -> str:
    """The area between two lines.

    Example:
        >>> band([0, 1], [0, 0], [1, 0.5])
        'M0 0l2000 500 0 500-2000 0z'
    """
    x, low, high = (np.asarray(v, float) for v in (x, low, high))
    text = ""
    for above, below in zip(_unbroken(x, high + 0 * low), _unbroken(x, low + 0 * high), strict=True):
        edge = [*above, *below[::-1]]
        text += f"M{edge[0][0]} {edge[0][1]}{_relative_moves(edge)}z"
    return text


def dots(x: Any, y: Any) -> str:
    """Dots as a path, to be drawn with a round stroke as wide as a dot.

    Example:
        >>> dots([0, 1], [1, 0])
        'M0 0h0M2000 1000h0'
    """
    return "".join(f"M{u} {v}h0" for run in _unbroken(x, y) for u, v in run)


def bars(left: Any, right: Any, low: Any, high: Any) -> str:
    """Rectangles as one path, without those of no height.

    Example:
        >>> bars([0, 0.5], [0.25, 0.75], [0, 0], [1, 0])
        'M0 1000h500v-1000h-500z'
    """
    text = ""
    for (x, y), (u, v) in zip(_units(left, low), _units(right, high), strict=True):
        if v != y:
            text += f"M{x} {y}h{u - x}v{v - y}h{x - u}z"
    return text


def cells(values: np.ndarray, levels: int = 10) -> list[tuple[int, str]]:
    """A table of numbers in [0, 1] as areas: one path for each level above 0.

    Args:
        values: [rows, columns], the first row at the bottom; not-a-number for an empty cell.
        levels: how many levels are distinguished.

    Example:
        >>> cells(np.array([[0.0, 1.0], [1.0, 1.0]]))
        [(10, 'M1000 1000h1000v-500h-1000zM0 500h2000v-500h-2000z')]
    """
    rows, columns = values.shape
    level = np.ceil(np.nan_to_num(values, nan=0.0).clip(0, 1) * levels - 1e-9).astype(int)
    paths: dict[int, str] = {}
    for i in range(rows):
        cuts = [0, *(np.flatnonzero(np.diff(level[i])) + 1).tolist(), columns]
        for start, stop in itertools.pairwise(cuts):
            if k := int(level[i, start]):
                bar = bars([start / columns], [stop / columns], [i / rows], [(i + 1) / rows])
                paths[k] = paths.get(k, "") + bar
    return sorted(paths.items())


def mark(name: str, x: float, y: float) -> str:
    """A mark of fixed size; empty if it is outside of the frame."""
    if not (-1e-9 <= x <= 1 + 1e-9 and -1e-9 <= y <= 1 + 1e-9):
        return ""
    return f'<use href="#{name}" x="{percent(x)}" y="{percent(1 - y)}"/>'


def percent(share: float) -> str:
    """A share as an SVG percentage.

    Example:
        >>> percent(0.25), percent(1 / 3)
        ('25%', '33.33%')
    """
    return f"{math.floor(share * 1e4 + 0.5) / 100:g}%"


def symbols() -> str:
    """The definitions of the marks, once for a page: ``m0``, ``m1``, … for methods, ``gone``, ``away``, ``star``."""
    shapes = {f"m{k}": f'<path d="{d}"/>' for k, d in enumerate(SYMBOLS.values())} | _OTHERS
    inside = "".join(f'<symbol id="{name}" overflow="visible">{shape}</symbol>' for name, shape in shapes.items())
    return f'<svg width="0" height="0" aria-hidden="true" style="position:absolute">{inside}</svg>'


def frame(
    label: str,
    x: Scale,
    y: Scale,
    field: str,
    marks: str = "",
    *,
    height: int = 270,
    x_name: str = "",
    y_name: str = "",
    left: int = 52,
    slanted: bool = False,
) -> str:
    """A picture: grid, axes and content.

    Args:
        label: a description for screen readers.
        x, y: the scales of the axes. Words of a y-axis are at the left.
        field: paths in the units of the field; they are clipped at the frame.
        marks: elements with positions in percent, drawn on top.
        height: of the frame, in pixels.
        x_name, y_name: the names of the axes, under and over them.
        left: room for the numbers at the left, in pixels.
        slanted: write the words of the x-axis slantwise.
    """
    names = f'<text class="name" x="50%" y="100%" dy="{96 if slanted else 38}">{html.escape(x_name)}</text>' * bool(
        x_name
    )
    names += f'<text class="name over" x="{-left}" y="-9">{html.escape(y_name)}</text>' * bool(y_name)
    room = (20 if y_name else 10, 12, 104 if slanted else 46 if x_name else 26, left)
    margin = " ".join(f"{pixels}px" for pixels in room)
    style = f"margin:{margin};height:{height}px;width:calc(100% - {left + 12}px)"
    return (
        f'<svg class="frame" role="img" aria-label="{html.escape(label)}" style="{style}">'
        f'<g class="grid">{grid(x, y, slanted)}</g>{names}'
        f'<svg class="field" width="100%" height="100%" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none">'
        f'{field}</svg><g class="marks">{marks}</g></svg>'
    )


def grid(x: Scale, y: Scale, slanted: bool = False) -> str:
    """The grid lines and tick texts of a frame."""
    text = ""
    for k, (share, word) in enumerate(x.ticks()):
        at = percent(share)
        text += "" if x.words else f'<line x1="{at}" x2="{at}" y2="100%"/>'
        if slanted:
            turned = f'<text class="slant" transform="translate(4 12) rotate(-42)">{html.escape(word)}</text>'
            text += f'<svg x="{at}" y="100%" overflow="visible"{_hidden_if_narrow(k, x)}>{turned}</svg>'
        else:
            text += f'<text x="{at}" y="100%" dy="18"{_hidden_if_narrow(k, x)}>{html.escape(word)}</text>'
    for share, word in y.ticks():
        at = percent(1 - share)
        text += "" if y.words else f'<line y1="{at}" x2="100%" y2="{at}"/>'
        text += f'<text class="y" x="-8" y="{at}" dy=".33em">{html.escape(word)}</text>'
    return text


def _hidden_if_narrow(k: int, x: Scale) -> str:
    """The class of words that narrow pages hide."""
    number = len(x.words)
    return ' class="spare"' if k % (4 if number > 28 else 2 if number > 12 else 1) else ""


def _units(x: Any, y: Any) -> list[tuple[int, int]]:
    """Positions in units of the field; those far outside are clipped."""
    u = np.floor(np.clip(WIDTH * np.asarray(x, float), -9 * WIDTH, 10 * WIDTH) + 0.5)
    v = np.floor(np.clip(HEIGHT * (1 - np.asarray(y, float)), -9 * HEIGHT, 10 * HEIGHT) + 0.5)
    return list(zip(u.astype(int).tolist(), v.astype(int).tolist(), strict=True))


def _unbroken(x: Any, y: Any) -> list[list[tuple[int, int]]]:
    """Runs of consecutive finite positions."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    finite = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    pieces = np.split(finite, np.flatnonzero(np.diff(finite) > 1) + 1)
    return [_units(x[piece], y[piece]) for piece in pieces if piece.size]


def _relative_moves(places: Sequence[tuple[int, int]]) -> str:
    moves = (f"{u - x} {v - y}" for (x, y), (u, v) in itertools.pairwise(places))
    text = " ".join(moves).replace(" -", "-")
    return f"l{text}" if text else ""
