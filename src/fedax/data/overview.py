"""An overview of the columns of clients' tables, with notes on odd ones, from the summaries that clients send."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from fedax.data.cells import alike_numbers, few, number, shown, text_of
from fedax.data.spellings import Counted, alike_words, repaired, two_codings, unshared
from fedax.data.summaries import STAND_INS, Facts, Plan, Summary, as_number, merge, named, without_constant
from fedax.data.transform import Document, Strict, date_of
from fedax.errors import DataError, one_line

_SITES = 12  # the most sites in the table; of more, those that are most unlike the whole
_COLUMNS = 60  # the most columns in the table, those with a note first
_MOST_NOTES = 12  # notes of one kind that get a line each
_OFTEN = 5  # occurrences of a value that are no chance
_ENOUGH = 20  # rows, to conclude anything from
_ALIKE = 1e-6  # a standard deviation, in means, of numbers that are nearly constant
_PARTS = 3  # training, validation and test

_CLASSES = 60  # the most classes with counts by client
_UNITS = (2.2046, 2.54, 10.0, 18.02, 38.67, 88.4, 100.0, 1000.0)
# lb in kg, cm in inches; mg/dl in mmol/l of glucose and cholesterol, and in µmol/l of creatinine

Looks = Literal[
    "coding", "copy", "gaps", "unshared", "alone", "code", "units", "rows",
    "identifier", "date", "constant", "site", "spelling", "unread", "missing", "skewed", "log", "zeros", "rare",
]  # fmt: skip


@dataclass(frozen=True)
class Note(Strict):
    """A note on an odd column, or on all rows.

    Args:
        column: its name; empty: it is on all rows.
        looks: of a label: ``"coding"``: it looks coded in two ways; ``"unshared"``: no two clients have a class in
            common; ``"rare"``: a class has fewer rows than training, validation and test together need; ``"skewed"``:
            its logarithm may be the better target; ``"log"``: its logarithm is learned. Of a column: ``"copy"`` of the
            label, ``"identifier"``, ``"date"``: it looks like one; ``"gaps"``: where it is missing tells the label;
            ``"code"``: a number may stand for a missing value; ``"units"``: it may be in other units at a client;
            ``"constant"``: nearly; ``"site"``: it tells the site; ``"spelling"``: one value is written in several ways;
            ``"unread"``: cells cannot be read; ``"zeros"``: leading ones make it a category; ``"missing"``: in most
            rows of a site. Of all rows: ``"alone"``: they are one client's; ``"rows"``: some stand several times.
        why: what makes it look so.

    Example:
        >>> print(Note("patient", "identifier", "whole numbers, all 120 different"))
        'patient' looks like an identifier: whole numbers, all 120 different
    """

    column: str
    looks: Looks
    why: str

    def __str__(self) -> str:
        return f"{shown(self.column) + ' ' if self.column else ''}{_LOOKS[self.looks][0]}: {self.why}"


_LOOKS = {  # of one column, of several; the most serious first
    "coding": ("is coded in two ways", "are coded in two ways"),
    "copy": ("looks like a copy of the label", "look like copies of the label"),
    "gaps": ("tells the label by where it is missing", "tell the label by where they are missing"),
    "alone": ("there is one client only", ""),
    "unshared": ("has no class that two clients share", ""),
    "rare": ("has a class in hardly any row", ""),
    "code": ("has a number that may stand for a missing value", "have numbers that may stand for missing values"),
    "units": ("may be in two units", "may be in two units"),
    "rows": ("some rows stand several times", ""),
    "identifier": ("looks like an identifier", "look like identifiers"),
    "site": ("tells the site", "tell the site"),
    "unread": ("has cells that cannot be read", "have cells that cannot be read"),
    "spelling": ("has one value in several spellings", "have one value in several spellings"),
    "zeros": ("has leading zeros", "have leading zeros"),
    "missing": ("is missing in most rows of a site", "are missing in most rows of a site"),
    "date": ("looks like a date", "look like dates"),
    "constant": ("is nearly constant", "are nearly constant"),
    "skewed": ("is skewed", "are skewed"),
    "log": ("is learned as its logarithm", "are learned as their logarithms"),
}
_WAYS_OUT = {  # where it is another one than to leave the column out
    "coding": "write them in one way; data.check_labels=false trains with each text as a class of its own",
    "alone": "",
    "rare": "join it with another class, or leave its rows out",
    "code": "empty these cells, if it does",
    "units": "convert one of them, if it is",
    "rows": "they may be in training and in test; take them out, if they are one case",
    "spelling": "write it in one way, if it is one",
    "zeros": "",
}


@dataclass(frozen=True)
class Described(Strict):
    """A column at the sites of an :class:`Overview`.

    Args:
        name: its name.
        kind: what it is used as.
        missing: of all rows and of each site's, the share in which it is missing, 0 to 1.
        mean: of numbers, the mean over all rows and over each site's; of dates, in days since 1970-01-01. ``None``
            where there is none.
        commonest: of categories, the most frequent value of all and of each site.
        unread: as ``missing``, the share that is not empty, but no number or date; ``()``: not known.
    """

    name: str
    kind: Literal["label", "number", "category", "date", "text", "dropped"]
    missing: tuple[float, ...]
    mean: tuple[float | None, ...]
    commonest: tuple[str | None, ...]
    unread: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.missing) == len(self.mean) == len(self.commonest) == len(self.unread or self.missing):
            raise DataError("missing, mean, commonest and unread have to be of the same sites")
        if not all(0 <= share <= 1 for share in (*self.missing, *self.unread)):
            raise DataError("shares have to be from 0 to 1")


def _in_python(column: str) -> str:
    return f"drop=[{column!r}]"


@dataclass(frozen=True)
class Overview(Document):
    """The columns of clients' tables, and notes on those that a person should look at.

    Args:
        sites: the names of the clients in the table; of more than 12, those that are most unlike the whole.
        rows: of all clients together, and of each of ``sites``.
        of: how many clients there are.
        columns: at most 60, those with a note first.
        wide: how many columns there are.
        notes: what is odd, a few a column at most.
        dropped: columns that are left out -> why.
        read: files -> how they are written, where that was found and is not the usual way.
        classes: of a label with classes: each of at most 60 -> its rows, of all clients together and of each of
            ``sites``. Empty: they are not known.

    Raises:
        DataError: values that do not go together.

    Example:
        >>> import pandas
        >>> from fedax.data import plan, summarize
        >>> tables = [pandas.DataFrame({"patient": range(k, k + 60), "age": [40.5, 61.3] * 30}) for k in (0, 60)]
        >>> first = [summarize(table) for table in tables]
        >>> print(overview(plan(first), first))
        column   as      missing  mean or commonest  client 0  client 1
        patient  number  0 %      59.5               29.5      89.5
        age      number  0 %      50.9               50.9      50.9
        'patient' looks like an identifier: whole numbers, all 120 different; drop=['patient'] leaves it out
    """

    sites: tuple[str, ...]
    rows: tuple[int, ...]
    of: int
    columns: tuple[Described, ...]
    wide: int
    notes: tuple[Note, ...]
    dropped: dict[str, str]
    read: dict[str, str] = field(default_factory=dict)
    classes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    form: ClassVar[str] = "overview"

    def __post_init__(self) -> None:
        width = len(self.sites) + 1
        widths = {len(self.rows), *(len(each.missing) for each in self.columns), *map(len, self.classes.values())}
        if widths != {width}:
            raise DataError("overview: rows and columns have to be of all sites together, and of each")
        if self.of < len(self.sites) or self.wide < len(self.columns) or min(self.rows) < 0:
            raise DataError("overview: it has more sites or columns than there are")

    def table(self) -> tuple[list[str], list[list[str]]]:
        """The head and the rows of a table for people: a row for each column, and a cell for each site."""
        heads = ["column", "as", "missing", "mean or commonest", *self.sites]
        rows = []
        for each in self.columns:
            values = [_cell(each, k) for k in range(len(self.rows))]
            rows.append([each.name, each.kind, _gaps(each, 0) or "0 %", *values])
        return heads, rows

    def shortened(self) -> list[str]:
        """What the table leaves out, in sentences."""
        sentences = []
        if self.of > len(self.sites):
            sentences.append(f"Shown are the {len(self.sites)} of {self.of} clients that are most unlike the whole.")
        if self.wide > len(self.columns):
            sentences.append(f"Shown are {len(self.columns)} of {self.wide} columns, those with a note first.")
        return sentences

    def lines(self, hint: Callable[[str], str] | None = _in_python, most: int = _MOST_NOTES) -> list[str]:
        """The notes, a line for each column; where more than ``most`` are alike, one for all of them.

        Args:
            hint: gives the option that leaves out a column; default: that of Python. ``None``: no option is shown.
            most: at least 1.
        """

        def suggestion(note: Note, which: str) -> str:
            if note.looks in _WAYS_OUT:
                return f"; {_WAYS_OUT[note.looks]}" if _WAYS_OUT[note.looks] else ""
            return "" if hint is None or note.column in ("", *label) else f"; {hint(note.column)} {which}"

        label = {each.name for each in self.columns if each.kind == "label"}
        ways: dict[str, list[str]] = {}
        for file, way in self.read.items():
            ways.setdefault(way, []).append(file)
        lines = [f"read as {way}: {few(files)}" for way, files in ways.items()]
        for looks, (_, look) in _LOOKS.items():
            alike = [note for note in self.notes if note.looks == looks]
            if len(alike) > most:
                named = few(note.column for note in alike)
                if looks == "missing" and len(alike) <= 10:
                    named = "; ".join(f"{shown(note.column)} at {note.why}" for note in alike)
                lines.append(f"{len(alike)} columns {look}: {named}{suggestion(alike[0], 'leaves the first out')}")
            else:
                lines += [f"{note}{suggestion(note, 'leaves it out')}" for note in alike]
        return lines

    def about(self) -> list[str]:
        """Clients and rows, the label's classes with their rows, and what columns are used as: some six lines.

        Example:
            >>> import pandas
            >>> from fedax.data import from_frames
            >>> table = pandas.DataFrame({"age": [40, 60, 50], "name": ["A. B.", "C. D.", "E. F."], "ill": [0, 1, 0]})
            >>> print(*from_frames({"north": table, "south": table}, label="ill").overview.about(), sep="\\n")
            2 clients with 6 rows: north 3, south 3
            label 'ill': 0 in 4 rows (north 2, south 2); 1 in 2 rows (north 1, south 1)
            used as number: 'age'
            left out: 'name' (6 of 6 texts differ within their clients, so that they identify rows)
        """
        clients = _by_client(self.sites, self.rows, self.of)
        lines = [f"{self.of} client{'s' * (self.of != 1)} with {self.rows[0]} rows: {clients}"]
        lines += class_lines(next((each.name for each in self.columns if each.kind == "label"), ""),
                             self.sites, self.classes, self.of)  # fmt: skip
        for kind in ("number", "category", "date", "text"):
            if used := [each.name for each in self.columns if each.kind == kind]:
                lines.append(f"used as {kind}: {few(used)}")
        if self.dropped:
            parts = [f"{shown(name)} ({why})" for name, why in list(self.dropped.items())[:_FEW]]
            more = f"; and {len(self.dropped) - _FEW} more" * (len(self.dropped) > _FEW)
            lines.append(f"left out: {'; '.join(parts)}{more}")
        return lines

    def __str__(self) -> str:
        return "\n".join([self.text(), *self.lines()])

    def by_class(self) -> tuple[list[str], list[list[str]]]:
        """The head and the rows of a table of the classes: a row for each, with its rows at all clients and at each."""
        return ["class", "rows", *self.sites], [[name, *map(str, counts)] for name, counts in self.classes.items()]

    def text(self) -> str:
        """The table for a terminal."""
        return "\n".join([*in_columns(*self.table()), *self.shortened()])


def overview(
    plan: Plan,
    first: Mapping[str, Summary] | Sequence[Summary],
    second: Mapping[str, Summary] | Sequence[Summary] = (),
    more: Sequence[Note] = (),
) -> Overview:
    """The columns at each client, and notes on odd ones, from summaries alone.

    Args:
        plan: of :func:`fedax.data.plan`.
        first: the summaries of the first exchange, one a client, by its name or in a list.
        second: those that answered the plan, of the same clients. Without them, nothing is known of the categories, and
            of columns that say the label.
        more: notes on the rows, which summaries do not tell.

    Returns:
        The overview. A label looks coded in two ways, where :func:`fit` says so. A column looks like

        - an identifier, if it holds whole numbers that differ in more than 9 of 10 rows, and that coincide far more
          rarely than numbers drawn at random with the same spread would; or if there are 50 rows at least, all
          different. Also texts that differ in at least half of all rows, more than 20 of them;
        - a date, if it is one, or whole numbers as 20240131, years, or seconds since 1970;
        - a copy of the label, if it alone gets right 98 % of what the most frequent class of each client gets wrong;
          of a number, if their correlation is beyond ±0.9995;
        - nearly constant, if one value makes up 99 % of it, or its standard deviation is below a millionth of its mean;
        - nearly constant too, if it is a label of numbers with a standard deviation that small;
        - telling the site, if each client has one value in 99 % of its rows, but not all the same one; or if no two
          clients have a category in common, of which each has 5 rows on average;
        - to have a number for missing values, if one such as −999, 9999 or 0 occurs 5 times at a client, as far from
          the rest as the rest is wide, or 4 standard deviations from its mean, or if a client has nothing else;
        - to be in two units, if mean and standard deviation of some clients with 20 rows are those of the others times
          10, 100, 1000, 2.54 or another usual factor;
        - to have one value in several spellings, if categories such as 1 and 1.0 are there beside words or codes, or
          some that differ in case, spaces, accents or encoding alone; or if clients code it in two ways, as yes and ja,
          or numbers and words;
        - to have leading zeros, if a cell such as 01067 makes a category of a column of numbers, or classes of a label;
        - to have cells that cannot be read, if a number or date has words, which then count as missing, or if labels
          are marks of a missing value, such as NA, which then are classes;
        - to have a class in hardly any row, if it is a label, and a class has fewer than three rows in all;
        - skewed, if it is a label of numbers above 0 whose standard deviation is above their mean;
        - missing, if it is so in more than half the rows of a client with 20 rows or more.

    Source:
        Of all densities with standard deviation s the parabola has the least ∫f², 3√5 / (25 s) (Epanechnikov 1969); so
        n whole numbers drawn at random have at least n (n − 1) / 2 times as many equal pairs.

    Example:
        >>> import pandas
        >>> from fedax.data import plan, summarize
        >>> table = pandas.DataFrame({"ward": ["A", "B"] * 30, "result": [7, 3] * 30, "ill": ["yes", "no"] * 30})
        >>> first = {"north": summarize(table)}
        >>> agreed = plan(first, label="ill")
        >>> [(note.column, note.looks) for note in overview(agreed, first).notes]
        []
        >>> [(note.column, note.looks) for note in overview(agreed, first, {"north": summarize(table, agreed)}).notes]
        [('ward', 'copy'), ('result', 'copy')]
    """
    by_client, answers = named(first), named(second)
    if by_client.keys() == answers.keys():
        plan = without_constant(plan, answers)
    facts = {
        name: [summary.facts.get(name, Facts(missing=summary.rows)) for summary in by_client.values()]
        for name in [*([plan.label] if plan.label is not None else []), *plan.columns, *plan.dropped]
    }
    notes, known = [*more, *_on_label(plan, answers)], {note.column for note in more}
    if plan.label is not None and plan.task == "classification":
        notes += _marks_as_class(plan.label, facts[plan.label], by_client)
        notes += _leading_zeros(plan.label, "label", facts[plan.label])
    elif plan.label is not None:
        notes += _scale_of_label(plan, facts[plan.label])
    numbers = [plan.label] if plan.label is not None and plan.task == "regression" else []
    for name in plan.columns:
        note = None if name in known else _note(name, plan, facts[name], by_client, answers)
        notes += [] if note is None else [note]
        notes += _leading_zeros(name, plan.columns[name].kind, facts[name])
        notes += _cannot_be_read(name, plan.columns[name].kind, facts[name], by_client)
        numbers += (
            [name] if plan.columns[name].kind == "number" and (note is None or note.looks != "identifier") else []
        )
    for name in numbers:
        notes += _on_numbers(name, dict(zip(by_client, facts[name], strict=True)))
    marked = {note.column: k for k, note in enumerate(notes)}
    order = sorted(facts, key=lambda name: (name != plan.label, marked.get(name, len(marked))))
    described = [_described(name, plan, facts[name], by_client, answers) for name in order[:_COLUMNS]]
    shown_sites = _most_unlike(described, len(by_client))
    table = []
    for each in described:
        parts = [tuple(values[k] for k in (0, *(i + 1 for i in shown_sites))) for values in _values(each)]
        table.append(Described(each.name, each.kind, *parts))
    names, rows = list(by_client), [summary.rows for summary in by_client.values()]
    classes = {
        text: (sum(each), *(each[i] for i in shown_sites)) for text, each in classes_of(plan, answers, names).items()
    }
    sites, sizes = tuple(names[i] for i in shown_sites), (sum(rows), *(rows[i] for i in shown_sites))
    return Overview(sites, sizes, len(by_client), tuple(table), len(facts), tuple(notes), dict(plan.dropped),
                    classes=classes)  # fmt: skip


def notes_of_answers(plan: Plan, second: Mapping[str, Summary]) -> list[Note]:
    """The notes on which the summaries that answered the plan decide: on the label, and on copies of it."""
    whys = {name: _copies_label(name, plan, second) for name in plan.columns}
    return [*_on_label(plan, second), *(Note(name, "copy", why) for name, why in whys.items() if why)]


def classes_of(plan: Plan, answers: Mapping[str, Summary], clients: Sequence[str]) -> dict[str, list[int]]:
    """The 60 most frequent classes -> their rows at each of these clients, in the order of classes."""
    if plan.label is None or plan.task != "classification":
        return {}
    counts = [Counter(_texts(answers, client, plan.label)) for client in clients]
    total = sum(counts, Counter())
    texts = sorted(sorted(total, key=lambda text: (-total[text], text))[:_CLASSES])
    values = {text: number(text) for text in texts}
    if not any(map(math.isnan, values.values())):
        texts.sort(key=values.__getitem__)
    return {text: [each[text] for each in counts] for text in texts}


_FEW = 3  # classes with their clients, and columns that are left out, that get into a line


def class_lines(label: str, sites: Sequence[str], classes: Mapping[str, Sequence[int]], of: int) -> list[str]:
    """The classes of a label with their rows, as a line; of few classes those of each client, too."""
    if not classes:
        return []
    if len(classes) <= _FEW:
        parts = [
            f"{_plain(name)} in {counts[0]} row{'s' * (counts[0] != 1)} ({_by_client(sites, counts, of)})"
            for name, counts in classes.items()
        ]
        return [f"label {shown(label)}: {'; '.join(parts)}"]
    parts = [f"{_plain(name)} {counts[0]}" for name, counts in list(classes.items())[:12]]
    held = [sum(1 for counts in classes.values() if counts[k + 1]) for k in range(len(sites))]
    some = "" if min(held) == len(classes) else f"; clients have {min(held)} to {max(held)} of them"
    some = f"; clients have {min(held)} of them each" if min(held) == max(held) < len(classes) else some
    return [f"label {shown(label)}, {len(classes)} classes: {', '.join(parts)}{', …' * (len(classes) > 12)}{some}"]


def _by_client(sites: Sequence[str], counts: Sequence[int], of: int) -> str:
    first = zip(sites, counts[1:], strict=True)
    parts = [f"{_plain(site)} {count}" for site, count in itertools.islice(first, 8 if of <= 8 else 6)]
    return ", ".join(parts) + f" and {of - len(parts)} more" * (of > len(parts))


def in_columns(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table as the lines of a terminal."""
    cells = [[_plain(cell) for cell in row] for row in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    return [line.rstrip() for line in lines]


def _values(column: Described) -> tuple[tuple[Any, ...], ...]:
    return tuple(each for each in (column.missing, column.mean, column.commonest, column.unread) if each)


def _described(
    name: str, plan: Plan, facts: Sequence[Facts], given: Mapping[str, Summary], answers: Mapping[str, Summary]
) -> Described:
    kind: Any = "label" if name == plan.label else "dropped" if name in plan.dropped else plan.columns[name].kind
    numbers = kind == "number" or (kind == "label" and plan.task == "regression")
    mean: list[float | None] = [None] * (len(facts) + 1)
    if numbers or kind == "date":
        parts = [each.moments(kind) for each in facts]
        mean = [merged[1] if merged[0] else None for merged in (merge(parts), *parts)]
    commonest: list[str | None] = [None] * (len(facts) + 1)
    if kind == "category" or (kind == "label" and not numbers):
        counts = [Counter(_texts(answers, client, name)) for client in given]
        commonest = [_commonest(each) for each in (sum(counts, Counter()), *counts)]
    rows = [summary.rows for summary in given.values()]
    missing, unread = (
        tuple(min(gap / max(n, 1), 1.0) for gap, n in zip([sum(gaps), *gaps], [sum(rows), *rows], strict=True))
        for gaps in ([each.missing for each in facts], [_unread(kind, numbers, each) for each in facts])
    )
    return Described(name, kind, missing, tuple(mean), tuple(commonest), unread if any(unread) else ())


def _unread(kind: str, numbers: bool, facts: Facts) -> int:
    """How many cells are no number, or no date, and not missing either."""
    return facts.present - (facts.dates if kind == "date" else facts.numbers) if numbers or kind == "date" else 0


def _spellings(texts: str, counts: Sequence[Mapping[str, int]]) -> str:
    """Which texts are one number or word; empty if there are none."""
    every = dict.fromkeys(itertools.chain.from_iterable(counts))
    alike = alike_words(every)  # letters that one client has in both cases are an alphabet's
    alike = [each for each in alike if len(each[0]) > 1 or not any(texts.keys() >= {*each} for texts in counts)]
    alike += alike_numbers(every) if texts == "written" else []
    parts = [f"{few(each)} count as different" for each in alike]
    parts += [f"{shown(text)} may be {shown(repaired(text))} in another encoding" for text in every
              if repaired(text) != text and all(text not in each for each in alike)]  # fmt: skip
    return "; ".join(parts[:3]) + ("; …" if len(parts) > 3 else "")


def _texts(answers: Mapping[str, Summary], client: str, name: str) -> Mapping[str, int]:
    summary = answers.get(client)
    return summary.counts[name].by_text if summary is not None and name in summary.counts else {}


def _commonest(counts: Counter[str]) -> str | None:
    """The most frequent text; of several, the first."""
    return min(counts, key=lambda text: (-counts[text], text)) if counts else None


def _most_unlike(described: Sequence[Described], number: int) -> list[int]:
    """The clients that a table shows: all, or those that are most unlike the whole."""
    if number <= _SITES:
        return list(range(number))
    unlikeness = [0.0] * number
    for each in described:
        means = [value for value in each.mean[1:] if value is not None]
        spread = max(means, default=0.0) - min(means, default=0.0)
        for i in range(number):
            value, whole = each.mean[i + 1], each.mean[0]
            if value is not None and whole is not None and spread:
                unlikeness[i] += abs(value - whole) / spread
            unlikeness[i] += abs(each.missing[i + 1] - each.missing[0]) + (each.commonest[i + 1] != each.commonest[0])
    most = sorted(range(number), key=lambda i: (-unlikeness[i], i))[:_SITES]
    return sorted(most)


# ---- notes


def _on_label(plan: Plan, answers: Mapping[str, Summary]) -> list[Note]:
    """Notes on a label with classes, from the counts of its classes."""
    if plan.label is None or plan.task != "classification":
        return []
    counts: Counted = {client: _texts(answers, client, plan.label) for client in answers}
    if why := two_codings(counts):
        return [Note(plan.label, "coding", why)]
    notes = [Note(plan.label, "unshared", why)] if (why := unshared(counts)) else []
    total = sum(map(Counter, counts.values()), Counter[str]())
    if total.total() >= _ENOUGH and (few_rows := [text for text, rows in sorted(total.items()) if rows < _PARTS]):
        one = f"{few(few_rows)} {'have' if len(few_rows) > 1 else 'has'} fewer than {_PARTS} rows in all"
        notes.append(Note(plan.label, "rare", f"{one}, one for each of training, validation and test"))
    return notes + ([Note(plan.label, "spelling", why)] if (why := _spellings(plan.texts, [*counts.values()])) else [])


def _on_numbers(name: str, facts: Mapping[str, Facts]) -> list[Note]:
    """Notes on numbers that may stand for a missing value, and on clients with other units."""
    codes = {client: dict(each.codes) for client, each in facts.items()}
    n, mean, m2 = merge([each.without_codes() for each in facts.values() if each.m2 > 0])
    for client, each in facts.items():  # all of whose numbers are one, such as 0
        one = each.numbers >= _OFTEN and each.m2 == 0 and each.mean in STAND_INS
        if one and n >= _ENOUGH and abs(each.mean - mean) >= 4 * math.sqrt(m2 / n):
            codes[client] = {text_of(each.mean): each.numbers}
    notes = []
    if any(codes.values()):
        found: dict[str, list[str]] = {}
        for client, of_client in codes.items():
            for code, times in of_client.items():
                found.setdefault(code, []).append(f"{_plain(client)} ({times} of {facts[client].numbers})")
        parts = [f"{code} at {', '.join(at[:5])}{', …' * (len(at) > 5)}" for code, at in found.items()]
        notes.append(Note(name, "code", f"{'; '.join(parts)}, far from the rest"))
    kept = {client: each.without_codes() for client, each in facts.items() if codes[client] == each.codes}
    return notes + ([Note(name, "units", why)] if (why := _units(kept)) else [])


def _units(moments: Mapping[str, tuple[int, float, float]]) -> str:
    """Why some clients seem to have other units than the rest: mean and spread are as many times as large."""
    parts = sorted((abs(part[1]), client) for client, part in moments.items() if part[0] >= _ENOUGH and part[1])
    if len(parts) < 2 or len({moments[client][1] > 0 for _, client in parts}) > 1:
        return ""
    cut = max(range(1, len(parts)), key=lambda k: parts[k][0] / parts[k - 1][0])
    clients = [client for _, client in parts]
    (_, low, _), (_, high, _) = both = [merge([moments[c] for c in each]) for each in (clients[:cut], clients[cut:])]
    below, above = (math.sqrt(m2 / n) for n, _, m2 in both)
    if not (below and above):
        return ""
    factor = min(_UNITS, key=lambda each: abs(math.log(high / low / each)))
    off, spread = abs(math.log(high / low / factor)), abs(math.log(above / below / factor))
    if factor < 10:  # which other people may have, too: all means have to agree
        converted = [mean * (factor if k < cut else 1) for k, (mean, _) in enumerate(parts)]
        alike = off <= 0.05 and spread <= 0.2 and abs(high) - abs(low) >= 2 * (above + below)
        alike = alike and max(converted) <= 1.15 * min(converted)
    else:
        alike = off <= 0.1 and spread <= 0.4
    if not alike or above > abs(high) or below > abs(low):  # of counts and skewed numbers ten times as many is chance
        return ""
    groups = sorted([(clients[:cut], low), (clients[cut:], high)], key=lambda group: len(group[0]))
    means = [f"{_number(mean)} at {', '.join(map(_plain, at[:3]))}{', …' * (len(at) > 3)}" for at, mean in groups]
    return f"its mean is {means[0]} and {means[1]}: about {factor:.3g} times, and so is its spread"


def _note(
    name: str, plan: Plan, facts: Sequence[Facts], given: Mapping[str, Summary], answers: Mapping[str, Summary]
) -> Note | None:
    """A note on the most serious oddity of a column, if it has one."""
    kind = plan.columns[name].kind
    counts = [Counter(_texts(answers, client, name)) for client in given]
    if why := _copies_label(name, plan, answers):
        return Note(name, "copy", why)
    identifies = {"number": lambda: _numbers_identify(facts), "category": lambda: _texts_identify(counts)}
    if kind in identifies and (why := identifies[kind]()):
        return Note(name, "identifier", why)
    if why := _dated(kind, facts, counts):
        return Note(name, "date", why)
    if odd := _one_value(kind, facts, counts):
        return Note(name, *odd)
    if kind == "category" and (why := _spellings(plan.columns[name].texts, counts)):
        return Note(name, "spelling", why)
    if kind == "category" and (odd := _coded_by_site(dict(zip(given, counts, strict=True)))):
        return Note(name, *odd)
    gaps = {
        client: each.missing / summary.rows
        for (client, summary), each in zip(given.items(), facts, strict=True)
        if summary.rows >= _ENOUGH and each.missing > summary.rows / 2
    }
    if gaps:
        return Note(name, "missing", _by_site(gaps))
    return None


def _coded_by_site(counts: Mapping[str, Counter[str]]) -> tuple[Looks, str] | None:
    """How the clients write the categories of a column, if not all in one way."""
    rows = sum(each.total() for each in counts.values())
    if rows < _ENOUGH:
        return None
    if why := two_codings(counts):
        return "spelling", why
    if rows >= _OFTEN * len(set().union(*counts.values())) and (why := unshared(counts)):
        return "site", f"no two clients have a value in common: {why}"
    return None


def _scale_of_label(plan: Plan, facts: Sequence[Facts]) -> list[Note]:
    """Of a label that is a number: whether float32 rounds it too much, and its logarithm is learned, or might be."""
    if plan.label is None:
        return []
    if plan.target == "log":
        return [Note(plan.label, "log", "losses and metrics are of the logarithm, predictions in its units")]
    n, mean, m2 = merge([each.moments("number") for each in facts])
    std = math.sqrt(m2 / max(n, 1))
    if 0 < std <= _ALIKE * abs(mean):
        why = f"its standard deviation is {std:.2g}, its mean {mean:.6g}, and float32 rounds such differences"
        return [Note(plan.label, "constant", f"{why}; subtract a number near the mean from it")]
    if n < _ENOUGH or std <= mean or not all(each.above_zero for each in facts if each.numbers):
        return []
    why = f"all above 0, mean {mean:.3g}, standard deviation {std:.3g}"
    return [Note(plan.label, "skewed", f'{why}; target="log" (--set data.target=log) learns its logarithm')]


def _cannot_be_read(name: str, kind: str, facts: Sequence[Facts], given: Mapping[str, Summary]) -> list[Note]:
    counts = {client: _unread(kind, kind == "number", each) for client, each in zip(given, facts, strict=True)}
    shares = {client: n / max(given[client].rows, 1) for client, n in counts.items() if n}
    return [Note(name, "unread", f"no {kind} in {_by_site(shares)}")] if shares else []


def _leading_zeros(name: str, kind: str, facts: Sequence[Facts]) -> list[Note]:
    """Of what would be a number without them."""
    if kind not in ("label", "category") or not any(each.zeros for each in facts):
        return []
    if any(each.words or each.dates for each in facts):
        return []
    if kind == "label":
        return [Note(name, "zeros", 'used as classes; task="regression" takes them for numbers')]
    return [Note(name, "zeros", f"used as categories; {as_number(name)}")]


def _marks_as_class(label: str, facts: Sequence[Facts], given: Mapping[str, Summary]) -> list[Note]:
    marks = zip(given, facts, strict=True)
    shares = {client: each.marks / max(given[client].rows, 1) for client, each in marks if each.marks}
    why = "NA and other marks of a missing value are classes of their own"
    return [Note(label, "unread", f"{why} in {_by_site(shares)}")] if shares else []


def _by_site(shares: Mapping[str, float]) -> str:
    named = ", ".join(f"{_plain(client)} ({_percent(share)})" for client, share in list(shares.items())[:5])
    return named + f" and {len(shares) - 5} more" * (len(shares) > 5)


def _copies_label(name: str, plan: Plan, answers: Mapping[str, Summary]) -> str:
    parts = [summary.alone[name] for summary in answers.values() if name in summary.alone]
    rows = sum(each.rows for each in parts)
    if plan.task == "classification":
        wrong, left = rows - sum(each.most for each in parts), rows - sum(each.right for each in parts)
        if wrong >= 10 and left <= 0.02 * wrong:
            return f"it alone gets {rows - left} of {rows} labels right"
        return ""
    parts = [each for each in parts if each.rows >= _OFTEN]  # two points are always on a line
    n = sum(each.rows for each in parts)
    r = math.fsum(each.rows * each.r for each in parts) / max(n, 1)
    return f"their correlation is {r:.4f}" if n >= _ENOUGH and abs(r) >= 0.9995 else ""


def _numbers_identify(facts: Sequence[Facts]) -> str:
    """Why numbers look like identifiers: whole, and with fewer equal pairs than measured ones have; empty if not."""
    n, different = sum(each.numbers for each in facts), sum(each.different for each in facts)
    if not n or any(each.whole < each.numbers or each.dates or each.words for each in facts):
        return ""
    chance = sum(0.2683 * each.numbers * (each.numbers - 1) / 2 / _spread(each) for each in facts if each.m2 > 0)
    same = n - different
    given_out = different > 0.9 * n and chance >= 7 and same <= chance / 10
    if not given_out and not (n >= 50 and not same):
        return ""
    return f"whole numbers, {f'all {n}' if not same else f'{different} of {n}'} different"


def _spread(facts: Facts) -> float:
    """The standard deviation of whole numbers, at least that of two neighbours."""
    return max(math.sqrt(facts.m2 / facts.numbers), 0.5)


def _texts_identify(counts: Sequence[Counter[str]]) -> str:
    n, different = sum(sum(each.values()) for each in counts), len(set().union(*counts))
    if different > 20 and different >= 0.5 * n:
        return f"{different} of {n} texts differ"
    return ""


_DATED = re.compile(r"\d{1,4}([./-])\d{1,2}\1\d{1,4}([ T].*)?")


def _dated(kind: str, facts: Sequence[Facts], counts: Sequence[Counter[str]]) -> str:
    if kind == "text":
        return ""
    if kind == "date":
        return "used as days and the time of the year"
    if kind == "category":
        texts = sum(counts, Counter())
        dates = sum(times for text, times in texts.items() if _DATED.fullmatch(text))
        why = "its texts are used as categories, for a date is written 2024-01-31 or 31.1.2024"
        return why if dates > texts.total() / 2 else ""
    n, mean, m2 = merge([each.moments("number") for each in facts])
    if n < _ENOUGH or any(each.whole < each.numbers for each in facts):
        return ""
    std = math.sqrt(m2 / n)
    if 1.85e7 < mean < 2.1e7 and std < 3e5:
        return f"whole numbers near {mean:.0f}, as of {str(int(mean))[:4]}-01-31 without its dashes"
    if mean - 2 * std >= 1900 and mean + 2 * std <= 2100 and std <= 40:
        return f"whole numbers near {mean:.0f}, as years are"
    if 9e8 < mean < 2.5e9 and std < 3e8:
        return "whole numbers as of seconds since 1970"
    return ""


def _one_value(kind: str, facts: Sequence[Facts], counts: Sequence[Counter[str]]) -> tuple[Looks, str] | None:
    n = sum(each.numbers + each.dates + each.words for each in facts)
    most = sum(each.commonest for each in facts)
    if n < _ENOUGH:
        return None
    parts = [each.moments(kind) for each in facts]
    _, mean, m2 = merge(parts)
    if most >= 0.99 * n:
        share = f"one value makes up {100 * most / n:.3g} %"
        if kind == "category":
            if not any(counts):
                return "constant", f"{share} at each site"
            sites_differ = len({_commonest(each) for each in counts if each}) > 1
        else:
            sites_differ = math.fsum(part[2] for part in parts) < m2 / 2
        return ("site", f"{share} at each site, and not at all the same one") if sites_differ else ("constant", share)
    if kind == "number" and math.sqrt(m2 / n) <= _ALIKE * abs(mean):
        return "constant", f"its standard deviation is {math.sqrt(m2 / n):.2g}, its mean {mean:.6g}"
    return None


# ---- texts


def _cell(column: Described, k: int) -> str:
    mean, text = column.mean[k], column.commonest[k]
    if mean is None:
        value = "–" if text is None else _plain(text)
    elif column.kind == "date":
        value = date_of(mean)
    else:
        value = _number(mean)
    return f"{value} ({gaps})" if k and (gaps := _gaps(column, k, " missing", 0.005)) else value


def _number(mean: float) -> str:
    return (f"{mean:.0f}" if 100 <= abs(mean) < 1e15 else f"{mean:.3g}").replace("-", "−")


def _gaps(column: Described, k: int, word: str = "", least: float = 0.0) -> str:
    """Which share of a column is missing, and which cannot be read."""
    parts = [f"{_percent(column.missing[k])}{word}"] if column.missing[k] > least else []
    parts += [f"{_percent(column.unread[k])} unreadable"] if column.unread and column.unread[k] > least else []
    return ", ".join(parts)


def _percent(share: float) -> str:
    if share in (0.0, 1.0) or 0.005 <= share <= 0.995:
        return f"{100 * share:.0f} %"
    return "< 1 %" if share < 0.5 else "> 99 %"


def _plain(text: str) -> str:
    """A text of a table as a part of a line, printable and clipped."""
    return one_line(text, 40)
