"""A transform from summaries that clients send, never from pooled rows.

There are two exchanges. Each client sends a first :func:`summarize`, with counts and moments of its columns, from which
:func:`plan` decides what each column is. Each client answers the plan with a second :func:`summarize`, with counts by
category and in bins, from which :func:`fit` makes the :class:`Transform`. It does not depend on how the rows are
distributed over the clients.

A client does not trust the plan. Which numbers leave follows from its own rows: the plan says what a column is, and its
mean and standard deviation are for :func:`fit` alone. Each count is 0 or of ``least`` rows, and so are those it leaves.
"""

import itertools
import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np

from fedax.data.cells import (
    LARGE,
    WIDE,
    CellError,
    Cells,
    Texts,
    as_pandas,
    cells,
    check_range,
    column_name,
    few,
    no_column,
    number,
    same_texts,
    series,
    shown,
    text_of,
)
from fedax.data.spellings import Counted, two_codings
from fedax.data.transform import Column, Document, Label, Strict, Transform, to_scale
from fedax.errors import ConfigError, DataError
from fedax.numbers import check_count

_SQUARES = 1e-150  # the squares of smaller numbers are 0 in float64
_SMALLEST = float(np.finfo(np.float32).tiny)
LEAST = 5  # the fewest rows that a count is of, where the rows are to be hidden
BINS = 50  # the most of a column that leave a site: enough for a median, within less than its error of sampling
_PARTS = 256  # into which a wide bin is divided
_TO = " to "  # in the name of a wide bin
CELLS = 2048  # in which values are counted, of 1/256 to 1/128 standard deviation, around the mean
_DIFFERENT = 1000  # texts of a column that a client counts; a column with more of them at a client holds no categories
_FEW = 20  # so many different texts at a client count as categories even if most of its rows differ
_HANDFUL = 5  # so many different texts count as categories of a small table even if all of them differ
_ROWS = 2_000  # rows of a client that are used to measure how well a column alone predicts the label
_OFTEN = 5  # occurrences of a value that are needed for this; with fewer a prediction would be chance
_NEAR = (0.0, -1.0)
_FAR = {32767.0, -32768.0, 65535.0}.union(
    sign * float(str(digit) * k) for digit in (7, 8, 9) for k in range(1, 7) for sign in (1, -1)
)
STAND_INS = _FAR.union(_NEAR)  # numbers that often stand for a missing value
_CLASSES = 20  # the most different whole numbers of a label that are taken for classes

WORDS = 256  # features of a column of text

_INDEX = "__index_level_0__"  # how pandas calls an index without a name in Parquet, which it does not read as a column

KINDS = ("number", "category", "date", "text", "drop")
Kind = Literal["number", "category", "date", "text"]


class UnreadLabel(DataError):
    """A label is a number but for a few cells, at a client."""

    def __init__(self, client: str, message: str):
        self.client = client
        super().__init__(f"{client}: {message}")


@dataclass(frozen=True)
class Facts(Strict):
    """A client's statistics of a column, in the first exchange.

    Args:
        missing, numbers, dates, words: cells of each kind.
        whole: numbers that are whole.
        different: texts that differ, of all cells.
        commonest: cells that have the most frequent text, whichever it is.
        mean, m2: of the numbers, their mean and Σ(value − mean)².
        day, day_m2: the same of the dates, in days.
        marks: of the words, those that usually mark a missing value, such as ? and NA.
        odd: whether cells are not written as numbers are: words, and numbers such as 007.
        truth: ``"words"``: all cells are truth values, some of them as words; ``"digits"``: all are 0 or 1; or ``""``.
        prose: of the words, those with text of four words or more.
        slashes: of the words, those that look like a date such as 1/31/2024, which can be read in two ways.
        zeros: whether cells have leading zeros, as 007.
        above_zero: whether all numbers are above 0.
        codes: numbers such as −999 that stand far outside of the rest, in at least 5 rows each, and how often: of a
            fixed list of numbers that often stand for a missing value, so that no measured value is said.
    """

    missing: int = 0
    numbers: int = 0
    dates: int = 0
    words: int = 0
    whole: int = 0
    different: int = 0
    commonest: int = 0
    mean: float = 0.0
    m2: float = 0.0
    day: float = 0.0
    day_m2: float = 0.0
    marks: int = 0
    odd: bool = False
    truth: Literal["", "digits", "words"] = ""
    prose: int = 0
    above_zero: bool = False
    codes: dict[str, int] = field(default_factory=dict)
    slashes: int = 0
    zeros: bool = False

    def __post_init__(self) -> None:
        counts = [self.missing, self.numbers, self.dates, self.words, self.whole, self.different, self.commonest]
        if not all(number(code) in STAND_INS and times >= _OFTEN for code, times in self.codes.items()):
            raise DataError("codes have to be numbers that often stand for a missing value, in 5 rows at least")
        counts += [self.numbers - sum(self.codes.values())]
        counts += [part for each in (self.marks, self.prose, self.slashes) for part in (each, self.words - each)]
        moments = [self.mean, self.m2, self.day, self.day_m2]
        if min(counts) < 0 or max(counts) > 2**53 or min(self.m2, self.day_m2) < 0:
            raise DataError("counts and squares have to be at least 0")
        if not all(abs(value) <= 1e230 for value in moments) or max(abs(self.mean), abs(self.day)) > LARGE:
            raise DataError("means and squares have to be finite")

    @property
    def present(self) -> int:
        """Cells that are not missing."""
        return self.numbers + self.dates + self.words

    def moments(self, kind: str) -> tuple[int, float, float]:
        """Count, mean and Σ(value − mean)² of the dates, if the column is used as such, or else of the numbers."""
        return (self.dates, self.day, self.day_m2) if kind == "date" else (self.numbers, self.mean, self.m2)

    def without_codes(self) -> tuple[int, float, float]:
        """Count, mean and Σ(value − mean)² of the numbers without ``codes``."""
        n, mean, m2 = self.numbers, self.mean, self.m2
        for code, times in self.codes.items():
            left = n - times
            if left <= 0:
                return 0, 0.0, 0.0
            rest = mean + (mean - number(code)) * times / left
            m2, mean, n = max(m2 - times * left / n * (rest - number(code)) ** 2, 0.0), rest, left
        return n, mean, m2


@dataclass(frozen=True)
class Counts(Strict):
    """A client's counts of a column, in the second exchange.

    Args:
        by_text: cells of each of its most frequent texts, 1000 at most, and 200 characters of each.
        rest: cells with another text.
        bins: of numbers or dates: a bin -> how many are in it, a fiftieth of them at least, or of 2048 bins at most
            where nothing is withheld. It is called by its middle, or,
            where it is wider than 1/128 of the client's own standard deviation, by its ends, as "56 to 64".
    """

    by_text: dict[str, int] = field(default_factory=dict)
    rest: int = 0
    bins: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = [self.rest, *self.by_text.values(), *self.bins.values()]
        if min(counts) < 0 or max(counts) > 2**53 or len(self.bins) > CELLS or len(self.by_text) > _DIFFERENT:
            raise DataError(f"counts have to be at least 0, of at most {_DIFFERENT} texts and in {CELLS} bins")
        if any(math.isnan(end) for each in self.bins for end in _ends(each)):
            raise DataError("the ends of bins have to be numbers")


@dataclass(frozen=True)
class Alone(Strict):
    """How well a column alone predicts the label at a client, in the second exchange; from at most 2,000 rows.

    Args:
        rows: rows in which neither is missing.
        most: for classes: rows of the most frequent class.
        right: for classes: rows that are predicted by the best threshold, or by the most frequent class of each value
            that occurs at least 5 times.
        r: for a label that is a number: their correlation, to four digits.
    """

    rows: int = 0
    most: int = 0
    right: int = 0
    r: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.most <= self.right <= self.rows <= _ROWS and abs(self.r) <= 1):
            raise DataError("of a column alone: 0 ≤ most ≤ right ≤ rows ≤ 2000 and −1 ≤ r ≤ 1 have to hold")


@dataclass(frozen=True)
class Summary(Document):
    """A client's statistics for fitting a :class:`Transform`: no single row, and of a size independent of the rows.

    Args:
        rows: how many rows it has.
        facts: of the first exchange: statistics of each column.
        counts: of the second exchange.
        alone: of the second exchange: how well each column alone predicts the label.
        plan: the digest of the plan that the second exchange answers.
        reach: of the second exchange: from where to where the numbers and dates go, in steps of half a standard
            deviation from the mean, both of the client alone.

    Raises:
        DataError: values that do not go together.

    Example:
        >>> import pandas
        >>> summary = summarize(pandas.DataFrame({"ward": ["A", "B", None] * 5}))
        >>> Summary.from_json(summary.to_json()) == summary
        True
    """

    rows: int
    facts: dict[str, Facts] = field(default_factory=dict)
    counts: dict[str, Counts] = field(default_factory=dict)
    alone: dict[str, Alone] = field(default_factory=dict)
    plan: str | None = None
    reach: dict[str, tuple[float, float]] = field(default_factory=dict)
    form: ClassVar[str] = "summary"
    _version: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if self.rows < 0 or max(len(self.facts), len(self.counts), len(self.alone), len(self.reach)) > WIDE:
            raise DataError(f"summary: rows have to be at least 0, columns at most {WIDE}")
        if not all(-1e230 <= low <= high <= 1e230 for low, high in self.reach.values()):
            raise DataError("summary: reach has to be from a number to one that is not below it")


@dataclass(frozen=True)
class Planned(Strict):
    """A column in a plan; numbers and dates have their mean and standard deviation over all clients.

    ``texts`` says when two cells are the same: see :class:`Column`.
    """

    kind: Kind
    mean: float = 0.0
    std: float = 1.0
    missing: bool = False
    texts: Texts = "numeric"

    def __post_init__(self) -> None:
        if not (abs(self.mean) <= LARGE and 0 <= self.std <= LARGE):
            raise DataError("mean and std have to be finite, std at least 0")
        if self.texts == "whole" and self.kind != "text":
            raise DataError("texts = 'whole' is of a column of text")

    @property
    def counted(self) -> bool:
        """Whether clients count its texts, or its values in bins."""
        return self.kind == "category" or (self.missing and self.kind != "text")


@dataclass(frozen=True)
class Plan(Document):
    """What each column is, as the server concludes from the first summaries; clients answer it with the second.

    Args:
        columns: those that are used.
        label: the label's column, or ``None``.
        task: ``"classification"`` or ``"regression"``.
        dropped: columns that are left out -> why.
        scale: ``"standard"`` or ``None``.
        max_categories: the most categories of a column that get a feature.
        texts: when two labels are the same class: see :class:`Column`.
        positive: of two classes that which comes last, if it is said.
        target: ``"log"``: the logarithm of the label is learned: see :class:`Label`.

    Raises:
        DataError: values that do not go together.

    Example:
        >>> agreed = Plan({"ward": Planned("category")}, label="ill")
        >>> Plan.from_json(agreed.to_json()) == agreed
        True
    """

    columns: dict[str, Planned]
    label: str | None = None
    task: Literal["classification", "regression"] = "classification"
    dropped: dict[str, str] = field(default_factory=dict)
    scale: Literal["standard"] | None = "standard"
    max_categories: int = 50
    texts: Texts = "numeric"
    positive: str | None = None
    target: Literal["log"] | None = None
    form: ClassVar[str] = "plan"

    def __post_init__(self) -> None:
        if self.max_categories < 1 or self.label in self.columns:
            raise DataError("plan: max_categories has to be at least 1, and the label is none of the columns")
        if self.texts == "whole":
            raise DataError("plan: texts = 'whole' is of a column of text")
        if self.target is not None and self.task != "regression":
            raise DataError(f"plan: target {self.target!r} is of a regression")


def summarize(frame: Any, plan: Plan | None = None, least: int = LEAST) -> Summary:
    """The summary that a client sends of its table.

    Args:
        frame: its rows, a table of pandas or Polars.
        plan: ``None`` in the first exchange; then what :func:`plan` made of the first summaries.
        least: at least 1: the fewest rows that a number of it may be of. 1: nothing is withheld, where all is in one
            process. Fewer cells of a kind, missing ones too, count as those of the most frequent kind; fewer rows of a
            category as other categories; fewer rows of a bin, or than a fiftieth, in the next one.

    Returns:
        First, of each column: how many cells are missing, numbers, whole numbers, dates, words, and different; mean and
        sum of squares of numbers and dates; and of a fixed list of numbers that often stand for a missing value, such
        as −999, those that occur 5 times at least, far outside of the rest. Then of the columns that the plan takes for
        categories, and of a label with classes: how often each text occurs, of at most 1000; of numbers and dates,
        from where to where they go, and where the plan says that some are missing, counts in bins; and of each column,
        how many labels it alone gets right, or its correlation with a label that is a number.

    Raises:
        DataError: it is no table, or has fewer than ``least`` rows; a column of the plan is missing, or has a number
            beyond float32.

    Example:
        >>> import pandas
        >>> first = summarize(pandas.DataFrame({"age": [40, 60] * 5 + [None] * 5, "weight": [70.0] * 14 + [None]}))
        >>> first.rows, first.facts["age"].mean, first.facts["age"].m2, first.facts["age"].missing
        (15, 50.0, 1000.0, 5)
        >>> first.facts["weight"].missing, first.facts["weight"].numbers  # a single one is not told
        (0, 15)
    """
    frame, rows = as_pandas(frame), len(frame)
    check_count("least", least)
    if 0 < rows < least:
        raise DataError(f"its table has fewer than {least} rows, too few for a summary that hides single ones")
    if plan is None:
        return Summary(rows, facts={name: _facts(cells(frame[name], name), least) for name in frame.columns})
    label = None if plan.label is None else cells(series(frame, plan.label, "label"), plan.label, plan.texts)
    if label is not None and plan.label is not None and plan.task == "regression":
        check_range(plan.label, label.numbers, frame[plan.label])
        label.numbers = to_scale(label.numbers, plan.label, plan.target, frame[plan.label])
    counts, alone, reach = {}, {}, {}
    for name, planned in plan.columns.items():
        column = cells(series(frame, name), name, planned.texts)
        if planned.kind == "number":
            check_range(name, column.numbers, frame[name])
        if planned.kind in ("number", "date") and (ends := _reach(_values(column, planned), least)) is not None:
            reach[name] = ends
        if planned.counted:
            counts[name] = _counts(column, planned, rows, least)
        if label is not None:
            alone[name] = _alone(column, planned.kind, label, plan.task, least)
    if label is not None and plan.label is not None and plan.task == "classification":
        counts[plan.label] = _counts(label, Planned("category"), rows, least)
    return Summary(rows, counts=counts, alone=alone, plan=plan.digest, reach=reach)


def _snapped(times: int, of: int, least: int) -> int:
    """A count such that neither it nor what it leaves of all is of fewer than ``least``: then it is 0, or all.

    Example:
        >>> [_snapped(times, 20, 5) for times in (1, 4, 5, 15, 16, 20)]
        [0, 0, 5, 15, 20, 20]
    """
    return 0 if times < least else of if of - times < least else times


def _facts(column: Cells, least: int = 1) -> Facts:
    numbers, days = column.numbers[~np.isnan(column.numbers)], column.days[~np.isnan(column.days)]
    found = {"missing": int(column.missing.sum()), "numbers": len(numbers), "dates": len(days), "words": column.words}
    most = max(found, key=found.__getitem__)
    said = {kind: times if times >= least else 0 for kind, times in found.items()}
    said[most if said[most] else "missing"] += sum(found.values()) - sum(said.values())
    numbers, days = numbers[: said["numbers"]], days[: said["dates"]]  # none where too few are
    (mean, m2), (day, day_m2) = _moments(numbers), _moments(days)
    present = sum(said.values()) - said["missing"]
    codes = {code: times for code, times in _stand_ins(numbers).items() if times >= least}
    return Facts(
        **said,
        whole=_snapped(int((numbers == np.rint(numbers)).sum()), said["numbers"], least),
        different=column.different if present else 0,
        commonest=_snapped(int(np.bincount(column.codes[~column.missing], minlength=1).max()), present, least),
        mean=mean,
        m2=m2 * said["numbers"] / max(len(numbers), 1),
        day=day,
        day_m2=day_m2 * said["dates"] / max(len(days), 1),
        marks=_snapped(column.marks, said["words"], least),
        odd=column.odd >= least,
        truth=column.truth,
        prose=_snapped(column.prose, said["words"], least),
        above_zero=len(numbers) > 0 and int((numbers <= 0).sum()) < least,
        codes=codes if len(numbers) - sum(codes.values()) >= least else {},
        slashes=_snapped(column.slashes, said["words"], least),
        zeros=column.zeros >= least,
    )


def _stand_ins(numbers: np.ndarray) -> dict[str, int]:
    """Numbers that may stand for a missing value, and how often: they occur 5 times at least, far outside of the rest.

    That is as far from the rest as the rest is wide. A height or a pressure of 0 is nearer; so 0 and −1 have to be four
    standard deviations from the mean of the rest, and one from all of it, and the rest has to be measured: to have
    more than 20 different values.
    """
    found: dict[float, int] = {}
    rest = numbers
    while len(rest) and (ends := {float(rest.min()), float(rest.max())} & _FAR):
        for end in ends:
            there = rest == end
            found[end], rest = int(there.sum()), rest[~there]
    for near in _NEAR:
        there = rest == near
        others, times = rest[~there], int(there.sum())
        if times < _OFTEN or len(others) <= _FEW or others.min() - near < max(others.std(), 1e-300):
            continue
        if others.mean() - near >= 4 * others.std() and len(np.unique(others)) > _FEW:
            found[near], rest = times, others
    if len(rest) < _FEW:
        return {}
    low, high = float(rest.min()), float(rest.max())
    far = {value for value in found if max(low - value, value - high) >= high - low > 0 or value in _NEAR}
    return {text_of(value): found[value] for value in sorted(far) if found[value] >= _OFTEN}


def _moments(values: np.ndarray) -> tuple[float, float]:
    if not len(values):
        return 0.0, 0.0
    mean = float(values.mean())
    return mean, float(np.square(values - mean).sum())


def _values(column: Cells, planned: Planned) -> np.ndarray:
    """The numbers of a column, or its dates."""
    values = column.numbers if planned.kind == "number" else column.days
    return values[~np.isnan(values)]


def _counts(column: Cells, planned: Planned, rows: int, least: int) -> Counts:
    """Counts of which none is of fewer than ``least`` rows, nor what they leave of all rows."""
    if planned.kind != "category":
        values = _values(column, planned)
        bins = _bins(values, 1 if least == 1 else max(least, -(-len(values) // BINS)))
        if bins and rows - len(values) < least:
            bins[max(bins, key=bins.__getitem__)] += rows - len(values)
        return Counts(bins=bins)
    texts, codes = column.texts
    times = np.bincount(codes[codes >= 0], minlength=len(texts)).tolist()
    every = sorted(zip(texts, times, strict=True), key=lambda each: (-each[1], each[0]))
    by_text = {text: count for text, count in every[:_DIFFERENT] if count >= least}
    rest, gap = sum(times) - sum(by_text.values()), rows - sum(times)
    few = (rest if rest < least else 0) + (gap if gap < least else 0)
    rest = rest if rest >= least else 0
    if by_text:
        by_text[every[0][0]] += few
    elif rest:
        rest += few
    return Counts(by_text, rest)


def _bins(values: np.ndarray, least: int) -> dict[str, int]:
    """A bin -> how many of the values are in it.

    2048 cells around the mean, whose ends are multiples of a power of two, are halved again and again. Where a half has
    fewer than ``least`` values, these count in the other half, next to it; where both have, it ends.
    """
    if len(values) < least:
        return {}
    mean, std = _spread(values)
    if not std:
        return {text_of(mean): len(values)}
    width = 2.0 ** (math.floor(math.log2(std)) - 7)
    first = math.floor(mean / width) - CELLS // 2
    keys = np.sort(np.clip(np.floor(values / width) - first, 0, CELLS - 1)).astype(np.int64)
    bins: Counter[str] = Counter()

    def halve(keys: np.ndarray, low: int, size: int) -> None:
        middle = low + size // 2
        below = int(np.searchsorted(keys, middle))
        above = len(keys) - below
        if size == 1 or (0 < below < least and 0 < above < least):
            ends = [(first + low + k) * width for k in ((0.5,) if size == 1 else (0, size))]
            bins[_TO.join(map(text_of, ends))] += len(keys)
        elif below < least:
            halve(np.maximum(keys, middle), middle, size // 2)
        elif above < least:
            halve(np.minimum(keys, middle - 1), low, size // 2)
        else:
            halve(keys[:below], low, size // 2)
            halve(keys[below:], middle, size // 2)

    halve(keys, 0, CELLS)
    return dict(bins)


def _spread(values: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation, which is 0 where float64 hardly tells the values apart."""
    mean, m2 = _moments(values)
    std = math.sqrt(m2 / len(values))
    return mean, std if std > 1e-12 * abs(mean) else 0.0


def _reach(values: np.ndarray, least: int) -> tuple[float, float] | None:
    """From where to where the values go, but for fewer than ``least`` at each end.

    In steps of half a standard deviation from the mean.
    """
    if len(values) < least:
        return None
    mean, std = _spread(values)
    if not std:
        return mean, mean
    at = [least - 1, len(values) - least]
    below, above = (np.partition(values, at)[at] - mean) / std * [-1, 1]
    return tuple(mean + sign * std * math.ceil(2 * max(far, 0.0)) / 2 for sign, far in ((-1, below), (1, above)))


def _alone(column: Cells, kind: Kind, label: Cells, task: str, least: int) -> Alone:
    texts = kind in ("category", "text")
    values = column.codes.astype(float) if texts else column.numbers if kind == "number" else column.days
    good = ~(column.missing if texts else np.isnan(values))
    good &= label.codes >= 0 if task == "classification" else ~np.isnan(label.numbers)
    step = -(-len(good) // _ROWS) or 1
    rows = np.flatnonzero(good)[::step]
    count = _snapped(len(rows), -(-len(good) // step), least)
    if not count or (task == "regression" and texts):
        return Alone(count)
    x = values[rows]
    if task == "regression":
        y = label.numbers[rows]
        (mean, xx), (target, yy) = _moments(x), _moments(y)
        if not (xx > 0 and yy > 0):
            return Alone()
        r = float(((x - mean) / math.sqrt(xx) * ((y - target) / math.sqrt(yy))).sum())
        return Alone(count, r=round(min(max(r, -1.0), 1.0), 4))
    most, right = right_alone(x, label.codes[rows], texts)
    return Alone(count, _snapped(most, count, least), _snapped(right, count, least))


def right_alone(x: np.ndarray, labels: np.ndarray, category: bool) -> tuple[int, int]:
    """How many labels [n] the most frequent class gets right, and how many the values ``x`` [n] of a column do.

    By the most frequent class of each value that occurs 5 times at least, or, of numbers, by the best threshold.

    Example:
        >>> right_alone(np.array([1.0, 2, 3, 7, 8, 9]), np.array([0, 0, 0, 1, 1, 1]), category=False)
        (3, 6)
    """
    classes, y = np.unique(labels, return_inverse=True)
    each, codes = np.unique(x, return_inverse=True)
    most = int(np.bincount(y).max())
    right = most
    if category or len(each) <= max(_CLASSES, 2 * len(classes)):
        times = np.bincount(codes * len(classes) + y, minlength=len(each) * len(classes)).reshape(len(each), -1)
        often = times.sum(1) >= _OFTEN
        right = int(times[often].max(1, initial=0).sum() + times[~often].sum(0).max())
    if not category and len(classes) <= _CLASSES:
        order = np.argsort(x, kind="stable")
        below = np.cumsum(y[order][:, None] == np.arange(len(classes)), axis=0)  # [rows, classes], up to each row
        at = np.flatnonzero(np.diff(x[order]))
        if len(at):
            right = max(right, int((below[at].max(1) + (below[-1] - below[at]).max(1)).max()))
    return most, max(right, most)


# ---- at the server


Summaries = Mapping[str, Summary] | Sequence[Summary]


def plan(
    summaries: Summaries,
    label: str | None = None,
    columns: Mapping[str, str] | None = None,
    task: Literal["classification", "regression"] | None = None,
    scale: Literal["standard", "none"] | None = "standard",
    max_categories: int = 50,
    drop: Sequence[str] = (),
    positive: str | float | None = None,
    target: Literal["log"] | None = None,
) -> Plan:
    """What each column is, from the clients' first summaries.

    A column where nine of ten values are numbers is a number, or a date; others there count as missing. Else, or if a
    cell has leading zeros, as postal codes have, it holds categories, unless they identify rows: more than 9 of 10
    texts differ within their clients, or at least half where a client has more than 20, or a client has more than 1000.
    Such columns are dropped, and their texts never sent. So are columns with one value, or none.

    Args:
        summaries: one a client, by its name or in a list.
        label: the column to predict. ``None``: there is none.
        columns: column -> ``"number"``, ``"category"``, ``"date"``, ``"text"`` or ``"drop"``, where you know better.
            Text becomes the counts of its words, in 256 features that their hash values choose.
        task: default: classes, where the label has texts, or whole numbers of which no client has more than 20.
        scale: ``"standard"``: numbers and dates get mean 0 and standard deviation 1 over all clients' rows. ``None``:
            numbers stay as they are; so does ``"none"``, for configurations.
        max_categories: of a column with more, the most frequent so many get a feature, and all others one together.
        drop: columns that are left out: the same as ``"drop"`` in ``columns``.
        positive: of two classes, the one that metrics are about. Default: the one that fewer rows have; the last one
            where both have as many.
        target: ``"log"``: learn the logarithm of a label that is a number above 0; predictions are in its own units.

    Raises:
        ConfigError: an option that cannot be used.
        DataError: clients with other columns than the first; no such label; no column is left.

    Example:
        >>> import pandas
        >>> north = pandas.DataFrame({"age": [40, 60], "ill": ["no", "yes"]})
        >>> south = pandas.DataFrame({"age": [80], "ill": ["no"]})
        >>> agreed = plan([summarize(north, least=1), summarize(south, least=1)], label="ill")
        >>> agreed.columns["age"].mean, agreed.task
        (60.0, 'classification')
    """
    by_client = _by_name(summaries, "facts")
    chosen = kinds_of(columns, drop)
    label = None if label is None else column_name(label)
    if task not in (None, "classification", "regression"):
        raise ConfigError("task", task, 'give "classification" or "regression"')
    if scale not in (None, "none", "standard"):
        raise ConfigError("scale", scale, 'give "standard", or "none" for numbers as they are')
    if target not in (None, "log"):
        raise ConfigError("target", target, 'give "log" for the logarithm of the label, or leave it out')
    check_count("max_categories", max_categories)
    for name, kind in chosen.items():
        if kind not in KINDS:
            raise ConfigError(f"columns.{name}", kind, f"give one of: {', '.join(KINDS)}")
    has_index = _INDEX not in {label, *chosen} and any(_INDEX in each.facts for each in by_client.values())
    index = _INDEX if has_index else ""
    chosen |= {index: "drop"} if index else {}
    names = _same_columns({client: summary.facts for client, summary in by_client.items()}, chosen)
    to_drop = {*map(column_name, drop)}
    for name in chosen:
        if name not in names:
            raise no_column("drop" if name in to_drop else f"columns.{name}", name, names)
    if label is not None and label not in names:
        raise no_column("label", label, names)
    if label in chosen:
        raise ConfigError(f"columns.{label}", chosen[label], 'this is the label; say task = "classification"')
    used: dict[str, Planned] = {}
    texts: Texts = "numeric"
    dropped = {name: "you said so" for name, kind in chosen.items() if kind == "drop"}
    dropped |= {index: f"it is an index of pandas; {as_number(index)}"} if index else {}
    for name in names:
        if name == label or name in dropped:
            continue
        facts = [summary.facts[name] for summary in by_client.values()]
        decided = _decide(name, facts, chosen.get(name), scaled=scale == "standard")
        if isinstance(decided, str):
            dropped[name] = decided
        else:
            used[name] = decided
    if not used:
        notes = "; ".join(f"{shown(name)}: {why}" for name, why in itertools.islice(dropped.items(), 10))
        raise DataError(f"columns: none is left to learn from ({notes or 'there is none but the label'})")
    if label is not None:
        of_label = {client: summary.facts[label] for client, summary in by_client.items()}
        task, texts = _task(label, of_label, task), same_texts(of_label.values())
        if task == "regression":
            _, mean, m2 = merge([summary.facts[label].moments("number") for summary in by_client.values()])
            _check_size(label, mean, math.sqrt(m2 / max(1, sum(each.rows for each in by_client.values()))), False)
    if positive is not None:
        positive = _class_text(positive, label, task, texts)
    if target is not None and task != "regression":
        raise ConfigError(
            "target", target, "this is for a label that is a number, and here it has classes; leave it out"
        )
    scaled = "standard" if scale == "standard" else None
    task = task or "classification"
    return Plan(used, label, task, dropped, scaled, max_categories, texts, positive, target)  # type: ignore[arg-type]


def _class_text(positive: Any, label: str | None, task: str | None, texts: Texts) -> str:
    """The text of a class that is given, as the label's cells have it."""
    import pandas

    if not isinstance(positive, str | bool | int | float):
        raise ConfigError("positive", positive, "give the text of a class")
    if label is None or task == "regression":
        raise ConfigError("positive", positive, "this is for a label of two classes; leave it out")
    found, _ = cells(pandas.Series([positive], dtype=object), label, texts).texts
    return found[0] if found else str(positive)


def _check_size(name: str, mean: float, std: float, scaled: bool) -> None:
    """Refuse a column of numbers all of which are clipped, or become 0 in float32; one of them alone has a row."""
    size = max(abs(mean), std)
    if size > 0.999 * LARGE or 0 < size < (_SQUARES if scaled else _SMALLEST):
        outline = f"column {shown(name)} has numbers too {'large' if size > 1 else 'small'} for float32"
        raise CellError(outline, f"about {size:.2g} in size; give it in another unit, or leave it out")


def kinds_of(columns: Mapping[str, str] | None, drop: Sequence[str]) -> dict[str, str]:
    """Column -> its kind, from the two options that say so.

    Raises:
        ConfigError: ``drop`` is no list of names, or ``columns`` says something else of one of them.
    """
    if isinstance(drop, str) or not isinstance(drop, Sequence) or not all(isinstance(name, str) for name in drop):
        raise ConfigError("drop", drop, 'give a list of columns, such as ["patient"]')
    if not isinstance(columns, Mapping | None):
        raise ConfigError("columns", columns, 'give column -> kind, such as {"zip": "category"}')
    chosen = {column_name(name): kind for name, kind in (columns or {}).items()}
    for name in map(column_name, drop):
        if chosen.setdefault(name, "drop") != "drop":
            raise ConfigError(f"columns.{name}", chosen[name], "drop names this column too; leave it out of one")
    return chosen


def named(summaries: Summaries) -> dict[str, Summary]:
    """The summaries by client; those in a list are of "client 0" and so on."""
    return dict(summaries) if isinstance(summaries, Mapping) else {f"client {i}": s for i, s in enumerate(summaries)}


def _by_name(summaries: Summaries, part: str) -> dict[str, Summary]:
    by_client = named(summaries)
    if not by_client:
        raise DataError("summaries: there is none; give one a client")
    for client, summary in by_client.items():
        if not isinstance(summary, Summary):
            raise DataError(f"{client}: a {type(summary).__name__}; give what summarize(table) returns")
        if summary.rows == 0:
            raise DataError(f"{client}: its table has no rows; leave it out")
        other = "counts" if part == "facts" else "facts"
        if not getattr(summary, part) and getattr(summary, other):
            ask = "summarize(table)" if part == "facts" else "summarize(table, plan)"
            raise DataError(f"{client}: a summary of the other exchange; give what {ask} returns")
    return by_client


def _same_columns(by_client: Mapping[str, Mapping[str, Any]], chosen: Mapping[str, str]) -> list[str]:
    """The columns of all clients, those to be dropped aside, in the order of the first."""
    (first, like), *_ = by_client.items()
    for client, has in by_client.items():
        for lacks, has_it, missing in ((client, first, like.keys() - has), (first, client, has.keys() - like)):
            if left := sorted(name for name in missing if chosen.get(name) != "drop"):
                every = {*like}.union(*by_client.values()) - {*like}.intersection(*by_client.values())
                few = sorted(name for name in every if chosen.get(name) != "drop")[:20]  # that not all have
                hint = f"drop=[{', '.join(map(shown, few))}] leaves {'it' if len(few) == 1 else 'them'} out"
                options = " ".join(f"--drop {shlex.quote(name)}" for name in few)
                what = f"it has no column {shown(left[0])}, which {has_it} has"
                raise DataError(f"{lacks}: {what}; {hint}, or {options}")
    extra = [name for has in by_client.values() for name in has if name not in like]
    return [*like, *dict.fromkeys(extra)]


def _decide(name: str, facts: Sequence[Facts], chosen: str | None, scaled: bool) -> Planned | str:
    """The plan of a column, or the reason why it is dropped."""
    kinds = ("missing", "numbers", "dates", "marks")
    total = {name: sum(getattr(each, name) for each in facts) for name in kinds}
    present = sum(each.present for each in facts)
    texts = same_texts(facts)
    if not present:
        return "all values are missing"
    kind = chosen
    if kind is None:
        likely = "numbers" if total["numbers"] >= total["dates"] else "dates"
        said = present - total["marks"]
        truths = texts != "truth" and any(each.truth == "words" for each in facts)  # at some clients only
        many = max(each.different for each in facts) > _FEW and total[likely] >= 0.5 * said
        kind = likely.removesuffix("s") if (total[likely] >= 0.9 * said or many) and said and not truths else "category"
        if kind == "number" and (_differ_beyond_floats(facts) or any(each.zeros for each in facts)):
            kind = "category"
    if kind == "text":
        return Planned("text", missing=total["missing"] > 0, texts="whole")
    if kind == "category":
        if chosen is None and (why := identifying(facts)):
            if 2 * sum(each.prose for each in facts) >= present:
                option = shlex.quote(f"{name}=text")
                return f'{why}; columns={{{_bare(name)}="text"}} (--column {option}) uses its words'
            if 2 * sum(each.slashes for each in facts) >= present:
                return f"{why}; write dates as 2024-01-31"
            return f"{why}; {as_number(name)}" if likely == "numbers" and any(each.zeros for each in facts) else why
        return Planned("category", missing=total["missing"] > 0, texts=texts)
    texts = "truth" if texts == "truth" else "numeric"
    n, mean, m2 = merge([each.moments(kind) for each in facts])
    if not n:
        return f"none of its values is a {kind}"
    std = math.sqrt(m2 / n)
    if kind == "number":
        _check_size(name, mean, std, scaled)
    missing = n < present + total["missing"]
    if std <= 1e-12 * abs(mean):
        return Planned(kind, mean, 0.0, True, texts) if missing else "all values are the same"  # type: ignore[arg-type]
    return Planned(kind, mean, std, missing, texts)  # type: ignore[arg-type]


def _differ_beyond_floats(facts: Sequence[Facts]) -> bool:
    """Whether these are whole numbers of more digits than a float has, and differ in those alone: names of things."""
    n, mean, m2 = merge([each.moments("number") for each in facts])
    return n > 0 and abs(mean) >= 2**53 and m2 <= (1e-12 * mean) ** 2 * n and any(each.different > 1 for each in facts)


def as_number(name: str) -> str:
    """How a column of codes with leading zeros becomes a number."""
    return f'columns={{{_bare(name)}="number"}} makes it a number'


def _bare(name: str) -> str:
    """A key of TOML."""
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name)


def identifying(facts: Sequence[Facts]) -> str | None:
    """Why a column of texts holds no categories, from its clients' statistics; ``None`` if it does.

    Example:
        >>> identifying([Facts(words=10, different=10)]), identifying([Facts(words=10, different=3)])
        ('10 of 10 texts differ within their clients, so that they identify rows', None)
    """
    present = sum(each.present for each in facts)
    most, differ = max(each.different for each in facts), sum(each.different for each in facts)
    if differ > 0.9 * present or (differ >= 0.5 * present and most > _FEW):
        return f"{differ} of {present} texts differ within their clients, so that they identify rows"
    return f"a client has more than {_DIFFERENT} different texts" if most > _DIFFERENT else None


def refused(frame: Any, plan: Plan) -> str | None:
    """Why the answer to a plan should not leave a client before its owner has seen it; ``None``: it may.

    A plan asks for the texts of the columns that it takes for categories. Those of a column that identify the client's
    rows are not for others, whatever the plan says. Five different texts are categories of a small table.

    Args:
        frame: the client's rows, a table of pandas or Polars.
        plan: what the coordinator asks.

    Raises:
        DataError: it is no table; a column of the plan is missing.

    Example:
        >>> import pandas
        >>> table = pandas.DataFrame({"name": [f"N. N. {i}" for i in range(6)], "ill": ["no", "yes"] * 3})
        >>> refused(table, Plan({"name": Planned("category")}, label="ill"))
        "column 'name': 6 of 6 texts differ within their clients, so that they identify rows"
        >>> refused(table, Plan({"ill": Planned("category")}))
    """
    frame = as_pandas(frame)
    texts = {name: column.texts for name, column in plan.columns.items() if column.kind == "category"}
    if plan.label is not None and plan.task == "classification":
        texts[plan.label] = plan.texts
    for name, same in texts.items():
        facts = _facts(cells(series(frame, name), name, same))
        if facts.different > _HANDFUL and (why := identifying([facts])):
            return f"column {shown(name)}: {why}"
    return None


def merge(moments: Sequence[tuple[Any, ...]]) -> tuple[int, float, float]:
    """Count n, mean, and Σ(value − mean)² of a union of sets, from those of each set.

    Source:
        Chan, Golub and LeVeque 1979.

    Example:
        >>> merge([(2, 1.0, 2.0), (1, 4.0, 0.0)])  # of 0, 2 and of 4
        (3, 2.0, 8.0)
    """
    n = sum(count for count, _, _ in moments)
    if not n:
        return 0, 0.0, 0.0
    mean = math.fsum(count * value for count, value, _ in moments) / n
    within = math.fsum(m2 for _, _, m2 in moments)
    return n, mean, within + math.fsum(count * (value - mean) ** 2 for count, value, _ in moments)


def _task(label: str, facts: Mapping[str, Facts], task: Any) -> Any:
    for client, each in facts.items():
        present = each.present
        lacking = each.missing if task != "regression" else each.missing + each.dates + each.words
        if lacking and present:
            rows = f"{lacking} of {present + each.missing} rows"
            raise UnreadLabel(client, f"label {shown(label)} is missing or no number in {rows}; leave these rows out")
        if not present:
            raise DataError(f"{client}: label {shown(label)} is missing in all rows; leave this client out")
    if task is not None:
        return task
    present, numbers = (sum(getattr(each, name) for each in facts.values()) for name in ("present", "numbers"))
    if numbers < present <= 2 * numbers and max(each.different for each in facts.values()) > _CLASSES:
        client, each = next((client, each) for client, each in facts.items() if each.numbers < each.present)
        what = f"label {shown(label)} is a number in {numbers} of {present} rows, but not in {present - numbers}"
        hint = "correct these cells, leave their rows out, or say task='classification'"
        raise UnreadLabel(client, f"{what}, {each.present - each.numbers} of them here; {hint}")
    numbers = all(each.numbers and not (each.words or each.dates or each.zeros) for each in facts.values())
    whole = numbers and all(each.whole == each.numbers for each in facts.values())
    few = max(each.different for each in facts.values()) <= _CLASSES
    return "regression" if numbers and not (whole and few) else "classification"


def fit(plan: Plan, summaries: Summaries, check_labels: bool = True) -> Transform:
    """The transform, from the clients' second summaries.

    Means, variances and counts are those of all rows together, up to rounding, and the median is within 1/250 of a
    client's standard deviation of it, if clients withhold nothing (``least = 1`` of :func:`summarize`). Else up to the
    rows that a client does not tell apart, fewer than ``least`` of each kind and bin.

    Args:
        plan: as :func:`plan` gave it, and as the clients answered it.
        summaries: one a client, by its name or in a list.
        check_labels: whether a label that looks coded in two ways is an error.

    Raises:
        ConfigError: the plan's ``positive`` is none of two classes.
        DataError: summaries that do not answer the plan; a label with one class, or too many, or coded in two ways, as
            "yes" and "Yes", or yes and 1.

    Example:
        >>> import pandas
        >>> tables = [pandas.DataFrame({"ward": ["A", "A", "B"]}), pandas.DataFrame({"ward": ["A", None, "B"]})]
        >>> agreed = plan([summarize(table, least=1) for table in tables])
        >>> transform = fit(agreed, [summarize(table, agreed, least=1) for table in tables])
        >>> transform.features, transform.columns[0].fill
        (('ward = A', 'ward = B', 'ward is missing'), 'A')
    """
    by_client = _by_name(summaries, "counts")
    classes = [plan.label] if plan.label is not None and plan.task == "classification" else []
    wanted = [name for name, column in plan.columns.items() if column.counted] + classes
    for client, summary in by_client.items():
        if {*summary.counts} != {*wanted} or summary.plan not in (None, plan.digest):
            raise DataError(f"{client}: its summary answers another plan; make it anew: summarize(table, plan)")
    columns = []
    plan = without_constant(plan, by_client)
    for name, planned in plan.columns.items():
        counts = [summary.counts[name] for summary in by_client.values() if name in summary.counts]
        reach = [summary.reach[name] for summary in by_client.values() if name in summary.reach]
        columns.append(_fitted(name, planned, counts, plan, reach))
    if not columns:
        raise DataError("columns: none is left to learn from; all values of each are the same")
    label = None
    if plan.label is not None:
        by_class = {client: summary.counts[plan.label] for client, summary in by_client.items()} if classes else {}
        if check_labels:
            check_coding(plan.label, {client: each.by_text for client, each in by_class.items()})
        names = class_names(plan.label, [*by_class.values()], plan.positive) if classes else None
        label = Label(plan.label, names, plan.texts, plan.target)
    return Transform(tuple(columns), label, plan.dropped)


def without_constant(plan: Plan, answers: Mapping[str, Summary]) -> Plan:
    """The plan without the columns of categories that have one value and no gap, or none that a client names."""
    left_out = {}
    for name, planned in plan.columns.items():
        counts = [summary.counts[name] for summary in answers.values() if name in summary.counts]
        if planned.kind != "category" or not counts:
            continue
        named, rest = set().union(*(each.by_text for each in counts)), any(each.rest for each in counts)
        if not named:
            left_out[name] = "each of its values is in too few rows of a client to be named"
        elif len(named) == 1 and not planned.missing and not rest:
            left_out[name] = "all values are the same"
    kept = {name: planned for name, planned in plan.columns.items() if name not in left_out}
    return replace(plan, columns=kept, dropped=plan.dropped | left_out)


def _fitted(
    name: str, planned: Planned, counts: Sequence[Counts], plan: Plan, reach: Sequence[tuple[float, float]]
) -> Column:
    if planned.kind == "category":
        return _categories(name, planned, counts, plan.max_categories)
    if planned.kind == "text":
        return Column(name, "text", missing=planned.missing, texts=planned.texts, hashed=WORDS)
    if planned.std == 0:
        return Column(name, "flag", missing=True, texts=planned.texts)
    fill = _median(counts) if planned.missing else None
    mean, scale = (0.0, 1.0) if plan.scale is None and planned.kind == "number" else (planned.mean, planned.std)
    low, high = _limits(planned, reach)
    return Column(name, planned.kind, mean, scale, fill, planned.missing, low=low, high=high, texts=planned.texts)


def _limits(planned: Planned, reach: Sequence[tuple[float, float]]) -> tuple[float, float] | tuple[None, None]:
    """Twice as far from the mean as the least power of two of the standard deviation that all clients' values reach."""
    if not reach:
        return None, None
    low, high = min(low for low, _ in reach), max(high for _, high in reach)
    far = (max(each / planned.std, 1.0) for each in (planned.mean - low, high - planned.mean))
    below, above = (2 * planned.std * 2.0 ** math.ceil(math.log2(each)) for each in far)
    return max(planned.mean - below, -LARGE), min(planned.mean + above, LARGE)


def _categories(name: str, planned: Planned, counts: Sequence[Counts], most: int) -> Column:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each.by_text)
    rest = sum(each.rest for each in counts)
    ranked = sorted(total, key=lambda text: (-total[text], text))
    if len(ranked) == 1 and not rest:
        return Column(name, "flag", missing=True, texts=planned.texts)
    other = rest > 0 or len(ranked) > most
    kept = tuple(sorted(ranked[:most]))
    return Column(
        name,
        "category",
        fill=ranked[0] if planned.missing else None,
        missing=planned.missing,
        categories=kept,
        other=other,
        texts=planned.texts,
    )


def _ends(name: str) -> tuple[float, float]:
    """From where to where a bin goes, by its name; where it is narrow, its middle."""
    low, _, high = name.partition(_TO)
    return number(low), number(high or low)


def _median(counts: Sequence[Counts]) -> float:
    """The mean of the two middle values, each taken as the middle of its bin; in a wide bin they are evenly spaced."""
    bins: list[tuple[float, int]] = []
    for name, times in (each for one in counts for each in one.bins.items()):
        low, high = _ends(name)
        parts = 1 if low == high else min(times, _PARTS)
        share = np.diff(np.arange(parts + 1) * times // max(parts, 1))
        bins += [(low + (high - low) * (k + 0.5) / parts, int(each)) for k, each in enumerate(share)]
    bins.sort()
    ends = np.cumsum([times for _, times in bins])
    if not len(ends) or not ends[-1]:
        raise DataError("summaries: they hold no counts in bins; make them anew: summarize(table, plan)")
    middle = np.searchsorted(ends, [(ends[-1] + 1) // 2, ends[-1] // 2 + 1])
    return float(np.mean([bins[k][0] for k in middle]))


def check_coding(label: str, counts: Counted) -> None:
    """Raise a DataError if the classes of a label look coded in two ways."""
    if how := two_codings(counts):
        hint = "write them in one way in the files, or go on with each text as a class of its own by check_labels="
        hint += "False (data.check_labels=false in a configuration, --no-check-labels of fedax data and deploy)"
        raise DataError(f"label {shown(label)} looks coded in two ways: {how}; {hint}")


def class_names(label: str, counts: Sequence[Counts], positive: str | None = None) -> tuple[str, ...]:
    """The classes of a label with these counts at the clients, sorted as numbers if all are, else as texts.

    Of two classes the last is the positive one: ``positive``, or by default the rarer one.
    """
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each.by_text)
    if any(each.rest and len(each.by_text) == _DIFFERENT for each in counts) or len(total) > _DIFFERENT:
        raise DataError(
            f"label {shown(label)}: more than {_DIFFERENT} different values; say task='regression' if it is a number"
        )
    if len(total) < 2:
        only = next(iter(total), "")
        more = " (a class of too few rows at each client is not named)" if any(each.rest for each in counts) else ""
        raise DataError(f"label {shown(label)}: one class only, {shown(only)}; it needs two at least{more}")
    numbers = {text: number(text) for text in total}
    texts = any(map(math.isnan, numbers.values()))
    return with_positive(label, sorted(total, key=lambda text: (0 if texts else numbers[text], text)), total, positive)


def with_positive(label: str, names: Sequence[str], counts: Mapping[str, int], positive: str | None) -> tuple[str, ...]:
    """The classes of a label, two of them with the positive one last: by default the rarer, else as they are.

    Raises:
        ConfigError: ``positive`` is none of two classes.

    Example:
        >>> with_positive("ill", ["ja", "nein"], {"ja": 9, "nein": 91}, None)
        ('nein', 'ja')
    """
    if positive is not None and (positive not in names or len(names) != 2):
        what = f"the classes of {shown(label)} are {few(names)}"
        more = "give one of them" if len(names) == 2 else "this is for two classes; leave it out"
        raise ConfigError("positive", positive, f"{what}; {more}")
    if len(names) != 2:
        return tuple(names)
    first, last = names
    chosen = positive or (first if counts.get(first, 0) < counts.get(last, 0) else last)
    return (last, first) if chosen == first else (first, last)
