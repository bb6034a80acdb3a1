"""Predicts with a model that fedax trained, without fedax: ``python model.py new.csv > predicted.csv``.

In Python: ``from model import predict, predict_proba``. MODEL_CARD.md says what the model is.
"""

import csv
import functools
import json
import pathlib
import sys
import warnings
from typing import Any

import numpy as np

from fedax.data.cells import cells_of, column_name

HERE = pathlib.Path(__file__).parent


@functools.cache
def about() -> Any:
    """What the model is: its labels, and how columns become numbers."""
    return json.loads((HERE / "model.json").read_text("utf-8"))


@functools.cache
def loaded() -> Any:
    """The dense layers: of each its weights [i, o] and offsets [o]."""
    with np.load(HERE / "weights.npz") as file:
        return [(file[f"w{k}"], file[f"b{k}"]) for k in range(len(file.files) // 2)]


def answers(x: Any) -> Any:
    """Of features [n, F] the probability of each class [n, C], or numbers [n]."""
    *hidden, (w, b) = loaded()
    for weights, offsets in hidden:
        x = np.maximum(x @ weights + offsets, 0)
    x = x @ w + b
    if not about()["labels"]:
        return x[:, 0]
    x = np.exp(x - x.max(axis=1, keepdims=True))
    return x / x.sum(axis=1, keepdims=True)


def encode(rows: Any) -> Any:
    """Features [n, F] of a list of dictionaries, or of a table: of pandas, or a dictionary of columns."""
    if about()["columns"] is None:  # the model takes arrays
        return np.asarray(rows, np.float32).reshape(len(rows), -1)
    if not len(rows):
        raise ValueError("there are no rows")
    if isinstance(rows, dict) and any(np.ndim(column) == 0 for column in rows.values()):
        raise ValueError("this is one row; give a list of rows, [row]")
    needed = {column["name"] for column in about()["columns"]}
    if isinstance(rows, list):
        names = {name: None for row in rows for name in row}
        features = [name for name in names if column_name(name) in needed]
        for k, row in enumerate(rows):
            if lacking := [name for name in features if name not in row]:
                raise ValueError(f"row {k} (from 0) has no {lacking[0]!r}; give None where a cell is empty")
        rows = {name: [row.get(name) for row in rows] for name in names}
    given = {name: rows[each] for name, each in zip(_names(rows), rows, strict=True)}
    if lacking := [column["name"] for column in about()["columns"] if column["name"] not in given]:
        raise ValueError(f"there are no columns {lacking}; there are {list(given)}")
    parts = [_features(column, given[column["name"]]) for column in about()["columns"]]
    x = np.concatenate(parts, axis=1).astype(np.float32)
    if not np.isfinite(x).all():
        raise ValueError("a number is beyond float32 (3.4e38); correct it, or leave its cell empty")
    return x


def _names(given: Any) -> list[str]:
    """Names of columns as training had them; each may occur once."""
    names = [column_name(name) for name in given]
    if twice := next((name for k, name in enumerate(names) if name and name in names[:k]), None):
        raise ValueError(f"two columns are called {twice!r}; rename one")
    return names


def _features(column: Any, given: Any) -> Any:
    """The features [n, …] of a column; cells unlike all in training are counted in a warning."""
    name, kind, array = column["name"], column["kind"], np.asarray(given, None if hasattr(given, "dtype") else object)
    values = array.astype("datetime64[us]").tolist() if array.dtype.kind == "M" else list(array)
    read = cells_of(values, name, column["texts"])
    missing, strange, parts = read.missing, {}, []
    if kind in ("number", "date"):
        numbers = read.numbers if kind == "number" else read.days
        missing = np.isnan(numbers)
        strange[f"cannot be read as a {kind} and count as missing"] = missing & ~read.missing
        if column["low"] is not None:
            strange["are far outside of training"] = (numbers < column["low"]) | (numbers > column["high"])
        numbers = np.where(missing, column["mean"] if column["fill"] is None else column["fill"], numbers)
        parts.append((numbers - column["mean"]) / column["scale"])
        if kind == "date":
            parts += [wave(2 * np.pi * numbers / 365.2425) for wave in (np.sin, np.cos)]
    elif kind == "category":
        cells = np.array([*read.texts[0], column["fill"]], object)[read.texts[1]]
        parts += [cells == category for category in column["categories"]]
        unknown = ~np.any(parts, axis=0) & ~missing
        strange["are categories that training did not have"] = unknown & (not column["other"])
        parts += [unknown] if column["other"] else []
    parts += [missing] if column["missing"] else []
    strange["are missing; none was in training"] = read.missing & (not column["missing"])
    for what, where in strange.items():
        if where.any():
            warnings.warn(f"{name!r}: {where.sum()} cells {what}, as {values[where.argmax()]!r}", stacklevel=3)
    return np.stack(parts, 1) if parts else np.zeros((len(values), 0))


def answered(rows: Any) -> Any:
    """Of rows the probability of each class [n, C], or numbers [n] in the units of the label."""
    found = answers(encode(rows))
    return np.exp(found) if about()["log"] else found


def predict_proba(rows: Any) -> Any:
    """The probability of each class, [n, C], in the order of ``about()["labels"]``."""
    return answered(rows)


def predict(rows: Any) -> Any:
    """The class of each row by its label, [n]; of regression the number."""
    found = answered(rows)
    return np.array(about()["labels"])[_chosen(found)] if about()["labels"] else found


def _chosen(found: Any) -> Any:
    """Which class is taken [n], of probabilities [n, C]."""
    return found.argmax(axis=1)


def main(path: str) -> None:
    """Print a prediction for each row of a CSV file: in UTF-8, with commas between cells and decimal points."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        try:
            rows = list(csv.reader(file, skipinitialspace=True, strict=True))
        except csv.Error as error:
            raise ValueError(f"a quote is not closed, or stands inside of a cell ({error})") from None
    rows = [line for line in rows if len(line) > 1 or any(line)]  # all but empty ones
    if not rows:
        raise ValueError("the file is empty")
    head, *lines = rows
    names = _names(" ".join(name.split()) for name in head)
    if other := [line for line in lines if len(line) != len(names)]:
        what = f"a row has {len(other[0])} cells and the first line {len(names)} names"
        raise ValueError(f"{what}; write cells with commas between them, and decimal points")
    found = answered([dict(zip(names, line, strict=True)) for line in lines])
    table = [["prediction", *(f"p {name}" for name in about()["names"])]]
    if about()["labels"]:
        table += [[about()["names"][k], *each] for k, each in zip(_chosen(found), found, strict=True)]
    else:
        table += [[number] for number in found]
    csv.writer(sys.stdout, lineterminator="\n").writerows(table)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python model.py new.csv")
    try:
        main(sys.argv[1])
    except (OSError, ValueError) as error:
        sys.exit(f"error: {sys.argv[1]}: {error}")
