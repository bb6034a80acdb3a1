"""Doubts that need the rows of all tables, and not only summaries of them: in a simulation, or at one site."""

import math
import re
from collections.abc import Mapping

import numpy as np

from fedax.data.cells import few
from fedax.data.overview import Note
from fedax.data.summaries import Summary, right_alone
from fedax.data.transform import Transform, features_of

_ROWS = 20_000  # rows of all clients together on which columns are tested, evenly taken
_GROUP = 20  # rows of one class without exception; where that class has half of the others, chance has one in a million

Arrays = Mapping[str, Mapping[str, np.ndarray]]


def notes_of_rows(arrays: Arrays, transform: Transform) -> list[Note]:
    """Columns that tell the label over all clients together, and rows that stand several times.

    What a column tells is measured against the most frequent class of each client, so that a column that tells no more
    than the client is none. It is noted as by :func:`fedax.data.overview`, where its values, or whether it is missing,
    get right 98 % of what those classes get wrong; and where 20 rows in which it is missing, or is not, all have one
    class, which at most half of the other rows of their clients have.

    Rows stand several times where 5 of them, and 1 % of all, are the same in all features and the label, and pairs of
    them are ten times as many as chance would make of columns that know half of what they seem to by the rows that
    differ: columns depend on each other.

    Args:
        arrays: client -> ``x`` float32 [n, features] and ``y`` [n].
        transform: made ``x``.

    Example:
        >>> import pandas
        >>> from fedax.data import from_frames
        >>> days = [None, None, 3, None, 5, None] * 10
        >>> table = pandas.DataFrame({"age": range(60), "days": days, "ill": [day is not None for day in days]})
        >>> data = from_frames({"north": table}, label="ill")
        >>> arrays = {"north": {"x": data.examples["x"], "y": data.examples["y"]}}
        >>> print(*notes_of_rows(arrays, data.transform))
        'days' tells the label by where it is missing: that alone gets 60 of 60 labels right
    """
    n = sum(len(each["y"]) for each in arrays.values())
    step, taken, at = -(-n // _ROWS) or 1, [], 0
    for k, each in enumerate(arrays.values()):
        x, y = each["x"][-at % step :: step], each["y"][-at % step :: step]
        taken.append((x, y, np.full(len(y), k)))
        at += len(each["y"])
    x, y, client = (np.concatenate(each) for each in zip(*taken, strict=True))
    notes = []
    repeated = [] if transform.label is None else [y]
    for column, features in features_of(transform.columns, x):
        missing = features[:, -1] > 0.5 if column.missing else np.zeros(len(x), bool)
        category = column.kind == "category"
        values = features[:, : len(features[0]) - column.missing].argmax(1) if category else features[:, 0]
        values = np.where(missing, np.nan, values) if column.kind != "flag" else missing.astype(float)
        repeated.append(values)
        if transform.classes is not None:
            notes += _telling(column.name, values, missing, y, client, category)
    return notes + _repeated(arrays, repeated)


def _telling(
    name: str, values: np.ndarray, missing: np.ndarray, y: np.ndarray, client: np.ndarray, category: bool
) -> list[Note]:
    """A note on a column whose values, or whose gaps, tell the label."""
    good = ~missing
    if good.any():
        wrong = _wrong(y[good], client[good])
        _, right = right_alone(values[good], y[good], category)
        if wrong >= 10 and good.sum() - right <= 0.02 * wrong:
            return [Note(name, "copy", f"it alone gets {right} of {good.sum()} labels right")]
    if not missing.any() or good.sum() == 0:
        return []
    wrong, (_, right) = _wrong(y, client), right_alone(missing.astype(float), y, True)
    if wrong >= 10 and len(y) - right <= 0.02 * wrong:
        return [Note(name, "gaps", f"that alone gets {right} of {len(y)} labels right")]
    gaps, given = (np.bincount(client, weights=each) for each in (missing, good))
    there = ((gaps > 0) & (given > 0))[client]  # elsewhere gaps tell no more than the client
    for group, words in ((missing, "it is missing"), (good, "it is given")):
        inside, outside = y[there & group], y[there & ~group]
        if len(inside) >= _GROUP and len(np.unique(inside)) == 1 and (outside == inside[0]).mean() <= 0.5:
            return [Note(name, "gaps", f"all {len(inside)} rows in which {words} have one class")]
    return []


def _wrong(y: np.ndarray, client: np.ndarray) -> int:
    """How many labels the most frequent class of each client gets wrong."""
    _, codes = np.unique(y, return_inverse=True)
    _, clients = np.unique(client, return_inverse=True)
    width = int(codes.max()) + 1
    keys, times = np.unique(clients * width + codes, return_counts=True)
    most = np.zeros(int(clients.max()) + 1, int)
    np.maximum.at(most, keys // width, times)
    return int(len(y) - most.sum())


def _repeated(arrays: Arrays, columns: list[np.ndarray]) -> list[Note]:
    width = next(iter(arrays.values()))["x"].shape[1]
    weights = np.random.default_rng(0).integers(0, 2**63, width + 1, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    hashes = [_hashes(each, weights) for each in arrays.values()]
    values, times = np.unique(np.concatenate(hashes), return_counts=True)
    n = int(times.sum())
    repeats, pairs = n - len(values), float((times * (times - 1.0)).sum() / 2)
    if repeats < max(5, 0.01 * n):
        return []
    codes = np.stack([np.unique(each, return_inverse=True)[1] for each in columns], axis=1)
    different = np.unique(codes, axis=0)
    if len(different) < 2:
        return []
    known = -sum(math.log(_collision(*each)) for each in zip(codes.T, different.T, strict=True)) / 2
    if pairs < 10 * (n * (n - 1) / 2 * math.exp(-known)):
        return []
    several = values[times > 1]
    clients = np.zeros(len(several), int)
    for each in hashes:
        clients += np.isin(several, each)
    elsewhere = int((clients > 1).sum())
    at = f", {elsewhere} of them at several clients" if elsewhere else ""
    return [Note("", "rows", f"{repeats} of {n} rows repeat another one{at}")]


def _collision(codes: np.ndarray, different: np.ndarray) -> float:
    """How probably two rows have the same value, at least that of one pair.

    Args:
        codes: [n] the rows' values, from 0 on.
        different: [m] those of the rows without copies, which alone count where most have a value of their own.
    """
    codes = different if len(different) < 2 * len(np.unique(different)) else codes
    times = np.bincount(codes)
    return float(max((times * (times - 1)).sum(), 1) / (len(codes) * (len(codes) - 1)))


def _hashes(arrays: Mapping[str, np.ndarray], weights: np.ndarray) -> np.ndarray:
    """[n] numbers that are the same for the same rows: sums of their bits, each with a random odd weight."""
    x = np.ascontiguousarray(arrays["x"]).view(np.uint32)
    total = arrays["y"].view(np.uint32).astype(np.uint64) * weights[-1]
    for bits, weight in zip(x.T, weights, strict=False):
        total += bits.astype(np.uint64) * weight
    return total


_WHOSE = re.compile(
    r"(?:^|[^a-z])(site|hospital|clinic|cent(?:er|re)|client|user|station|branch|institution|practice|owner|writer"
    r"|device|bank|school|klinik|krankenhaus|standort|zentrum|filiale|hopital|hospitals|centro)s?(?:$|[^a-z])"
)


def one_client(first: Summary, label: str) -> Note:
    """The note on tables that are all of one client, with the columns that may say whose each row is.

    Example:
        >>> import pandas
        >>> from fedax.data import summarize
        >>> table = pandas.DataFrame({"site_id": [1, 1, 2, 2], "age": [40, 60, 50, 70], "ill": [0, 1, 0, 1]})
        >>> print(one_client(summarize(table, least=1), "ill"))
        there is one client only: --client COLUMN (client= in Python) says whose a row is: 'site_id'?
    """
    may = [
        name
        for name, facts in first.facts.items()
        if name != label and _WHOSE.search(name.lower()) and 2 <= facts.different <= first.rows / 2
    ]
    why = "--client COLUMN (client= in Python) says whose a row is"
    return Note("", "alone", f"{why}: {few(may)}?" if may else why)
