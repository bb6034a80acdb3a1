"""What a picture shows: one structure, which Matplotlib draws as a figure and uPlot in the report; and its colours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fedax.errors import ConfigError

WIDTH = 3.3  # inches, of one column of a paper

# Each differs from each other by 27 units of CIELAB or more, as people see them who lack one kind of cones too (Machado
# et al. 2009), and from white by a contrast of 3.
COLOURS = ("#0667c6", "#d77b05", "#8c0c72", "#829a5e", "#5b4b40", "#b982a7", "#ae1607", "#810dff")
DASHES = ("solid", "dash", "dot", "dashdot")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")  # nine markers and eight colours, so that pairs repeat late
CLASS_COLOURS = (
    "#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#edc948", "#76b7b2", "#9c755f", "#ff9da7", "#8a8f98",
)  # fmt: skip


def colour(k: int) -> str:
    """The colour of method k, as ``#rrggbb``.

    Example:
        >>> colour(0), colour(8) == colour(0)
        ('#0667c6', True)
    """
    return COLOURS[k % len(COLOURS)]


def dash(k: int) -> str:
    """The line of method k, one of ``DASHES``; neighbours differ, and so do methods of one colour.

    Example:
        >>> [dash(k) for k in (0, 1, 8)]
        ['solid', 'dash', 'dash']
    """
    return DASHES[(k + k // len(COLOURS)) % len(DASHES)]


def marker(k: int) -> str:
    """The mark of method k, as Matplotlib calls it.

    Example:
        >>> marker(0), marker(8)
        ('o', '>')
    """
    return MARKERS[k % len(MARKERS)]


@dataclass(frozen=True, eq=False)
class Series:
    """One method over its seeds.

    Args:
        label: its name in the legend; drawn as it is, no mathematics. A curve alone needs none, ``""``.
        x: [n] where it was measured: rounds, or what they cost in the mean over the seeds.
        values: [seeds, n] what was measured.
        gone: why it left the others, such as ``"diverged"``; it does not scale the picture then. Empty: it did not.
        heard: [n] the share of the weight of real clients that was heard; a ring is drawn where not all were. ``None``:
            all were.
        kind: ``"line"`` with marks, and a band over the seeds; ``"dots"``; ``"bars"`` from 0, the first in front;
            ``"cells"`` of a table; or a plain ``"rule"``, ``"whisker"``, ``"box"``.
        k: the method whose colour, dash and mark it has; ``None``: by its place in the picture; −1: grey.
        middle: [n] the line, in place of the mean of the values.
        texts: [n] what is said of each point where a reader points at it.
        shade: [n] how dark dots and cells are, from 0 to 1; not-a-number: a cross. The first dot, if dark, is a star.

    Raises:
        ConfigError: shapes that do not fit.

    Example:
        >>> Series("fedavg", [0, 10, 20], [[2.3, 0.9, 0.7], [2.3, 1.1, 0.6]]).values.shape
        (2, 3)
    """

    label: str
    x: np.ndarray
    values: np.ndarray
    gone: str = ""
    heard: np.ndarray | None = None
    kind: str = field(default="line", kw_only=True)
    k: int | None = field(default=None, kw_only=True)
    middle: np.ndarray | None = field(default=None, kw_only=True)
    texts: Sequence[str] = field(default=(), kw_only=True)
    shade: np.ndarray | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        x, values = np.asarray(self.x, float), np.asarray(self.values, float)
        if x.ndim != 1:
            raise ConfigError("series.x", x.shape, f"give one number for each evaluation of {self.label}")
        if values.ndim != 2 or not len(values) or values.shape[1] != len(x):
            hint = f"give [seeds, {len(x)}] numbers for {self.label}; of one seed, [values]"
            raise ConfigError("series.values", values.shape, hint)
        if self.heard is not None:
            heard = np.asarray(self.heard, float)
            if heard.shape != x.shape:
                raise ConfigError("series.heard", heard.shape, f"give one share for each evaluation of {self.label}")
            object.__setattr__(self, "heard", heard)
        object.__setattr__(self, "x", x)
        object.__setattr__(self, "values", values)

    @property
    def parts(self) -> list[np.ndarray]:
        """The line; with several seeds also the lower and the upper edge of the band."""
        line = self.values.mean(0) if self.middle is None else np.asarray(self.middle, float)
        return [line, self.values.min(0), self.values.max(0)] if len(self.values) > 1 else [line]


class Scale(NamedTuple):
    """An axis of a picture.

    Attributes:
        label: its name.
        unit: ``"%"`` for shares, ``"B"``, ``"s"``, or nothing.
        whole: whether its numbers are counts.
        log: whether it is logarithmic.
        words: the labels at 0, 1, 2, …, where it has words in place of numbers.
    """

    label: str = ""
    unit: str = ""
    whole: bool = False
    log: bool = False
    words: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Chart:
    """A picture.

    Args:
        title: what it shows.
        x, y: its axes.
        series: what lies in it, in the order of the legend.
        note: a sentence about it.
        ramp: of shades: what they measure, and the texts of the worst and the best.
        along: other x-axes that a reader of the report can choose: name -> the axis, and the x of each series.
        target: a value of y, drawn as a line across.
    """

    title: str
    x: Scale
    y: Scale
    series: Sequence[Series]
    note: str = ""
    ramp: tuple[str, str, str] | None = None
    along: Mapping[str, tuple[Scale, Sequence[np.ndarray]]] = field(default_factory=dict)
    target: float | None = None

    @property
    def scaling(self) -> np.ndarray:
        """The finite values by which y is scaled: of the series that stay, and the target."""
        seen = np.concatenate([np.zeros(0), *(s.values.ravel() for s in self.series if not s.gone)])
        seen = seen[np.isfinite(seen)]
        return seen if self.target is None or not seen.size else np.append(seen, self.target)


def wide(values: np.ndarray) -> bool:
    """Whether finite values need a logarithmic scale: the highest is more than eight times the lowest."""
    return values.size > 0 and bool(values.min() > 0 and values.max() > 8 * values.min())
