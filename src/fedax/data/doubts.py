"""Cells of new rows unlike anything in training, which a model would still answer with confidence."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from fedax.data.cells import Cells, as_date, at_row, cells, few, shown
from fedax.errors import DataError, printable

_FEW = 5  # cells that are shown of those that cannot be read

Why = Literal["unread", "far", "category", "missing"]


class Doubt(NamedTuple):
    """The cells of a column with the same problem.

    Attributes:
        column: its name.
        why: ``"unread"``: no number, or no date, where there has to be one, so that it counts as missing; ``"far"``: a
            number or date far outside of training; ``"category"``: one that training did not have; ``"missing"``:
            empty, in a column that was never empty in training.
        rows: [k] their rows, from 0.
        more: what is due: a kind, or a range.
        values: the first few of the cells.
    """

    column: str
    why: Why
    rows: np.ndarray
    more: str
    values: str

    def __str__(self) -> str:
        words = _MESSAGES[self.why][len(self.rows) > 1].format(self.more)
        return f"{printable(self.column)}: {len(self.rows)} {words}" + (f" ({self.values})" if self.values else "")


_MESSAGES: dict[Why, tuple[str, str]] = {  # of one cell, and of several
    "unread": ("cannot be read as a {} and counts as missing", "cannot be read as a {} and count as missing"),
    "far": ("is far outside of training, beyond {}", "are far outside of training, beyond {}"),
    "category": ("is a category that training did not have", "are categories that training did not have"),
    "missing": ("is missing; none was in training", "are missing; none was in training"),
}
_OF_A_ROW: dict[Why, str] = {
    "unread": "cannot be read",
    "far": "is far outside of training",
    "category": "is an unknown category",
    "missing": "is missing",
}


@dataclass(frozen=True)
class Doubts:
    """The cells of a table that are unlike anything in training; false if there are none.

    Attributes:
        found: by column and by problem.
        rows: n, of the table.
        unknown: columns of numbers or dates whose range in training is not known, as of old files.

    Example:
        >>> import pandas
        >>> from fedax.data.transform import Column, Transform
        >>> transform = Transform((Column("age", "number", mean=50, scale=10, low=0, high=110),))
        >>> doubts = transform.doubts(pandas.DataFrame({"age": ["45", "9999", "old"]}))
        >>> print(*doubts.lines(), sep="\\n")
        age: 1 cannot be read as a number and counts as missing ('old')
        age: 1 is far outside of training, beyond 0 to 110 ('9999')
        >>> doubts.by_row()
        ['', 'age is far outside of training', 'age cannot be read']
    """

    found: tuple[Doubt, ...]
    rows: int
    unknown: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.found)

    @property
    def doubtful(self) -> int:
        """The number of rows with such a cell."""
        return len({row for each in self.found for row in each.rows.tolist()})

    def lines(self) -> list[str]:
        """A line for each column and problem, with counts."""
        return [str(each) for each in self.found]

    def by_row(self) -> list[str]:
        """[n] the problems of each row in words; empty if it has none."""
        problems: list[list[str]] = [[] for _ in range(self.rows)]
        for each in self.found:
            for row in each.rows.tolist():
                problems[row].append(f"{printable(each.column)} {_OF_A_ROW[each.why]}")
        return ["; ".join(parts) for parts in problems]


def doubts_of(columns: Iterable[tuple[Any, Cells, Any]], rows: int) -> Doubts:
    """The doubts about a table of so many rows.

    Args:
        columns: a column of the transform, its cells as they were read, and as they were given.
        rows: n, of the table.
    """
    found: list[Doubt] = []
    unknown = []
    for column, read, given in columns:
        name = column.name

        def add(why: Why, where: np.ndarray, more: str = "", name: str = name, given: Any = given) -> None:
            at = np.flatnonzero(where)
            if len(at):
                values = few(dict.fromkeys(str(value) for value in given.iloc[at[:1000]])) if why != "missing" else ""
                found.append(Doubt(name, why, at, more, values))

        if column.kind in ("number", "date"):
            values = read.numbers if column.kind == "number" else read.days
            unread = np.isnan(values) & ~read.missing
            add("unread", unread, column.kind)
            if column.low is None or column.high is None:
                unknown.append(name)
            else:
                with np.errstate(invalid="ignore"):
                    far = (values < column.low) | (values > column.high)
                add("far", far, column.limits)
        if column.kind == "category" and not column.other:
            texts, codes = read.texts
            known = {*map(as_date, column.categories)}
            strange = np.array([text not in known for text in texts] + [False])  # the last: of missing ones
            add("category", strange[codes])
        if not column.missing:
            add("missing", read.missing)
    return Doubts(tuple(found), rows, tuple(unknown))


def unread_of(kind: str, given: Any, name: str) -> list[str]:
    """The first few different cells of a column that are no number, or no date, and are not missing either."""
    read = cells(given, name)
    at = np.flatnonzero(np.isnan(read.days if kind == "date" else read.numbers) & ~read.missing)
    return list(dict.fromkeys(str(value) for value in given.iloc[at[:1000]]))[:_FEW]


def in_words(doubts: Doubts) -> str:
    """All doubts in words."""
    rows = f"{doubts.doubtful} of {doubts.rows} rows have"
    return f"{rows} cells unlike anything in training. {'; '.join(doubts.lines())}"


def refuse(doubts: Doubts) -> None:
    """Raise a DataError if there are doubts, or if the range in training of a column is unknown."""
    if doubts.unknown:
        hint = "train again to have them, or leave strict out"
        raise DataError(f"columns {few(doubts.unknown)}: their ranges in training are not known; {hint}")
    if doubts:
        first = doubts.found[0]
        where = f"first in column {shown(first.column)}, {at_row(first.rows[0])}"
        raise DataError(f"{in_words(doubts)} ({where}). Mend them, leave these rows out, or leave strict out")
