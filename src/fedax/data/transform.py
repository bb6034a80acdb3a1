"""The transform of a table into arrays: the meaning of its columns, as a JSON file that goes with a model."""

import dataclasses
import functools
import hashlib
import json
import math
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

import numpy as np

from fedax.data.cells import (
    LARGE,
    CellError,
    Cells,
    Texts,
    as_date,
    as_pandas,
    at_row,
    cells,
    check_range,
    few,
    naming,
    series,
    shown,
)
from fedax.data.doubts import Doubts, doubts_of
from fedax.data.formats import parse_json, reading
from fedax.data.portable import sin_cos
from fedax.errors import DataError
from fedax.files import regular, write_atomic

_FILE = 1 << 26  # bytes
_YEAR = 365.2425  # days
_HASHED = 4096  # rows of text that are hashed at a time


class Strict:
    """A dataclass that pydantic reads as it stands: no further fields, no conversion, finite numbers."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "strict": True, "allow_inf_nan": False}


_LATER: dict[str, Any] = {"texts": "numeric", "marks": 0, "odd": False, "truth": "", "unread": (), "read": {},
                          "positive": None, "prose": 0, "hashed": 0, "above_zero": False, "target": None,
                          "codes": {}, "classes": {}, "slashes": 0, "zeros": False}  # fmt: skip


def _without_later(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """Without fields that later versions added, where they say nothing: the file and its digest stay what they were."""
    return {name: value for name, value in fields if name not in _LATER or value != _LATER[name]}


class Document(Strict):
    """A frozen dataclass of plain values that is a JSON file."""

    form: ClassVar[str]
    _version: ClassVar[int] = 1  # of the form; others are refused

    def to_json(self) -> dict[str, Any]:
        """As a table of plain values, which :meth:`from_json` reads."""
        instance: Any = self
        version = {} if self._version == 1 else {"version": self._version}
        return {"fedax": self.form, **version, **dataclasses.asdict(instance, dict_factory=_without_later)}

    @classmethod
    def from_json(cls, given: Mapping[str, Any] | str | bytes) -> Self:
        """From what :meth:`to_json` gave, or its JSON text.

        Raises:
            DataError: it is something else.
        """
        import pydantic

        kind: Any = cls
        try:
            content = given.encode() if isinstance(given, str) else given
            table = dict(content) if isinstance(content, Mapping) else parse_json(content)
            if not isinstance(table, dict) or table.pop("fedax", None) != cls.form:
                raise ValueError(f"it is no {cls.form} of fedax")
            if table.pop("version", 1) != cls._version:
                raise DataError(f"{cls.form}: of another version of fedax; make it anew with this one, at all sites")
            return _checked_by(kind).validate_json(json.dumps(table))
        except DataError:
            raise
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            what = str(first["msg"]).removeprefix("Value error, ")[:300]
            raise DataError(f"{cls.form}: {shown(where)}: {what if what.isprintable() else ascii(what)}") from None
        except (ValueError, TypeError, RecursionError) as error:
            raise DataError(f"{cls.form}: cannot be read ({shown(str(error))})") from None

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of its content, 64 hexadecimal digits: the same of a file and of what it was written from."""
        content = type(self).from_json(self.to_json()).to_json()  # 1 and 1.0 are the same
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def save(self, path: str | os.PathLike) -> None:
        """Write it to a file, a line for each column, which appears whole or not at all.

        Raises:
            DataError: it cannot be written.
        """
        place = pathlib.Path(path)
        try:
            write_atomic(place, _in_lines(self.to_json()))
        except OSError as error:
            raise DataError(f"{place}: cannot be written ({error.strerror})") from error

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """What :meth:`save` wrote.

        Raises:
            DataError: the file cannot be read, or holds something else.
        """
        place = pathlib.Path(path)
        if regular(place) > _FILE:
            raise DataError(f"{place}: more than {_FILE} bytes, too many for a {cls.form}")
        with reading(place, f"a {cls.form}"), naming(place):
            return cls.from_json(place.read_bytes())


def _in_lines(table: Mapping[str, Any]) -> str:
    """JSON that a person can read: a line for each value of a table or list that is in this one.

    Example:
        >>> print(_in_lines({"rows": 2, "ages": {"a": [1, 2], "b": []}, "none": {}}))
        {
        "rows": 2,
        "ages": {
          "a": [1, 2],
          "b": []
        },
        "none": {}
        }
        <BLANKLINE>
    """
    text = functools.partial(json.dumps, allow_nan=False)
    parts = []
    for name, value in table.items():
        inner = text(value)
        if value and isinstance(value, dict):
            inner = "{\n  " + ",\n  ".join(f"{text(key)}: {text(each)}" for key, each in value.items()) + "\n}"
        elif value and isinstance(value, list | tuple):
            inner = "[\n  " + ",\n  ".join(map(text, value)) + "\n]"
        parts.append(f"{text(name)}: {inner}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


@functools.cache
def _checked_by(cls: Any) -> Any:
    import pydantic

    return pydantic.TypeAdapter(cls)


# ---- the transform


@dataclass(frozen=True)
class Column(Strict):
    """How one column of a table becomes numbers.

    Args:
        name: the column's.
        kind: ``"number"``: (value − mean) / scale. ``"date"``: the same of its days since 1970-01-01, then sine and
            cosine of the time of the year. ``"category"``: 1 in the feature of its category, else 0. ``"flag"``: it has
            a single value, so all that it says is where it is missing. ``"text"``: how often words occur in it, each
            counted in one of ``hashed`` features that its hash value tells, by scikit-learn's ``HashingVectorizer``.
        mean, scale: of numbers and dates.
        fill: what a missing value counts as: the median, the most frequent category; ``None``: zeros.
        missing: whether a feature says where values are missing.
        categories: those with a feature, in its order.
        other: whether one more feature stands for all other categories.
        low, high: of numbers and dates (in days): what is beyond is far outside of training; ``None``: not known.
        texts: when two cells are the same. ``"written"``: if they are written alike. ``"numeric"``: also if they are
            plain numbers of one value, as 1 and 1.0 are. ``"truth"``: also if both are true, as True and 1 are.
            ``"whole"``: as ``"numeric"``, of texts of any length.
        hashed: of texts: how many features they have.

    Raises:
        DataError: values that do not go together.

    Example:
        >>> Column("ward", "category", fill="A", missing=True, categories=("A", "B")).features
        ['ward = A', 'ward = B', 'ward is missing']
    """

    name: str
    kind: Literal["number", "date", "category", "flag", "text"]
    mean: float = 0.0
    scale: float = 1.0
    fill: float | str | None = None
    missing: bool = False
    categories: tuple[str, ...] = ()
    other: bool = False
    low: float | None = None
    high: float | None = None
    texts: Texts = "numeric"
    hashed: int = 0

    def __post_init__(self) -> None:
        numbers = [self.mean, self.scale] + ([self.fill] if isinstance(self.fill, float) else [])
        if not all(abs(number) <= LARGE for number in numbers) or self.scale <= 0:
            raise DataError(f"column {shown(self.name)}: mean, scale and fill have to be finite, scale above 0")
        if (self.low is None) != (self.high is None) or (self.low is not None and not self.low <= self.high):  # type: ignore[operator]
            raise DataError(f"column {shown(self.name)}: low and high go together, and low is not above high")
        if len({*self.categories}) < len(self.categories):
            raise DataError(f"column {shown(self.name)}: a category occurs twice")
        if self.kind == "category" and (not self.categories or self.fill not in {None, *self.categories}):
            raise DataError(f"column {shown(self.name)}: it needs categories, one of them to fill with")
        if self.kind in ("number", "date") and isinstance(self.fill, str):
            raise DataError(f"column {shown(self.name)}: {self.fill!r} does not fill a {self.kind}")
        if not (self.hashed == 0 if self.kind != "text" else 1 <= self.hashed <= 1 << 16):
            raise DataError(f"column {shown(self.name)}: hashed has to be from 1 to 65536 of a text, else 0")

    @property
    def features(self) -> list[str]:
        """The names of its features."""
        names = {
            "number": [self.name],
            "date": [self.name, f"{self.name} (sine of the year)", f"{self.name} (cosine of the year)"],
            "category": [f"{self.name} = {category}" for category in self.categories],
            "flag": [],
            "text": [f"{self.name} (words {k})" for k in range(self.hashed)],
        }[self.kind]
        names += [f"{self.name} = other"] if self.other else []
        return names + ([f"{self.name} is missing"] if self.missing else [])

    @property
    def limits(self) -> str:
        """From ``low`` to ``high``, as a person reads it."""
        if self.low is None or self.high is None:
            return "unknown"
        if self.kind == "date":
            return f"{date_of(self.low)} to {date_of(self.high)}"
        return f"{self.low:.4g} to {self.high:.4g}"


def date_of(days: float) -> str:
    """The date of a day since 1970-01-01, as far as there are dates.

    Example:
        >>> date_of(0.5), date_of(-0.5), date_of(1e9)
        ('1970-01-01', '1969-12-31', '9999-12-31')
    """
    return str(np.datetime64(math.floor(np.clip(days, -719162, 2932896)), "D"))


@dataclass(frozen=True)
class Label(Strict):
    """What is predicted.

    Args:
        name: its column.
        classes: their texts, in the order of their numbers, of two the positive one last; ``None``: the label is a
            number.
        texts: when two cells are the same class, as of :class:`Column`.
        target: ``"log"``: the natural logarithm of a number above 0 is learned, and predictions are in its own units.

    Raises:
        DataError: values that do not go together.

    Example:
        >>> Label("ill", ("no", "yes"))
        Label(name='ill', classes=('no', 'yes'), texts='numeric', target=None)
    """

    name: str
    classes: tuple[str, ...] | None = None
    texts: Texts = "numeric"
    target: Literal["log"] | None = None

    def __post_init__(self) -> None:
        if self.classes is not None and self.target is not None:
            raise DataError(f"label {shown(self.name)}: target {self.target!r} is of a number, and it has classes")
        if self.classes is not None and not 2 <= len({*self.classes}) == len(self.classes):
            raise DataError(f"label {shown(self.name)}: it needs at least two classes, all different")

    @property
    def positive(self) -> str | None:
        """Of two classes the one that AUC, F1, precision and recall are about: the last one."""
        return self.classes[-1] if self.classes is not None and len(self.classes) == 2 else None


@dataclass(frozen=True)
class Transform(Document):
    """Turns a table into arrays, the same for all clients and for new rows. It is a JSON file that goes with a model.

    A missing number or date counts as the median and a missing category as the most frequent one; where values were
    missing when it was fitted, a feature says so. A category that was not there then has 0 in all features of its
    column, or 1 in that of the others.

    Args:
        columns: how each column becomes numbers. There may be none, of data that come from no table.
        label: what is predicted, or ``None``.
        dropped: columns that are left out -> why.

    Raises:
        DataError: values that do not go together.

    Example:
        >>> import pandas
        >>> age, ward = Column("age", "number", mean=50, scale=10), Column("ward", "category", categories=("A", "B"))
        >>> transform = Transform((age, ward), Label("ill", ("no", "yes")))
        >>> transform.features
        ('age', 'ward = A', 'ward = B')
        >>> arrays = transform(pandas.DataFrame({"ward": ["B", "A"], "age": [45, 70], "ill": ["yes", "no"]}))
        >>> arrays["x"].tolist(), arrays["y"].tolist()
        ([[-0.5, 0.0, 1.0], [2.0, 1.0, 0.0]], [1, 0])
    """

    columns: tuple[Column, ...]
    label: Label | None = None
    dropped: dict[str, str] = field(default_factory=dict)
    form: ClassVar[str] = "transform"

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns] + ([self.label.name] if self.label else [])
        if len({*names}) < len(names):
            raise DataError("transform: a column occurs twice")

    @property
    def features(self) -> tuple[str, ...]:
        """[F] names of the numbers of an example."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """[C] texts of the classes; ``None`` where the label is a number, or where there is none."""
        return self.label.classes if self.label else None

    def __call__(self, frame: Any) -> dict[str, np.ndarray]:
        """Features and labels of a table.

        Args:
            frame: of pandas or Polars; further columns are left aside.

        Returns:
            ``x`` float32 [n, F]; and where the label's column is there, ``y`` [n], int32 from 0 to C − 1 or float32.

        Raises:
            DataError: a column is missing; a number is beyond float32; a label is missing or is none of the classes.
        """
        frame = as_pandas(frame)
        arrays = {"x": self.apply(frame)}
        if self.label is not None and self.label.name in frame.columns:
            arrays["y"], missing = labels_of(frame[self.label.name], self.label)
            if missing.any():
                where = f"label {shown(self.label.name)}, {at_row(np.flatnonzero(missing)[0])}"
                raise DataError(f"{where} is missing ({missing.sum()} such rows)")
        return arrays

    def apply(self, frame: Any) -> np.ndarray:
        """Features float32 [n, F] of a table, whether it has labels or not.

        Raises:
            DataError: a column is missing; a number is beyond float32.
        """
        if not self.columns:
            raise DataError("transform: it describes classes only, and no columns; give arrays to the model")
        frame = as_pandas(frame)
        out = np.zeros((len(frame), len(self.features)), np.float32)
        for column, features in features_of(self.columns, out):
            given = series(frame, column.name)
            _fill(features, cells(given, column.name, column.texts), column, given)
        return out

    def doubts(self, frame: Any) -> Doubts:
        """The cells of a table unlike anything in training: cells that cannot be read, numbers far outside, and so on.

        A number or date is far outside if it is more than twice as far from the mean as the values of training reach,
        where they reach a power of two of the standard deviation: see :func:`fedax.data.summarize`.

        Args:
            frame: of pandas or Polars.

        Raises:
            DataError: a column is missing.
        """
        frame = as_pandas(frame)
        given = ((column, series(frame, column.name)) for column in self.columns)
        return doubts_of(((column, cells(each, column.name, column.texts), each) for column, each in given), len(frame))


def features_of(columns: Sequence[Column], x: np.ndarray) -> Iterator[tuple[Column, np.ndarray]]:
    """Each column with its features, which are views of ``x`` [n, F]."""
    ends = np.cumsum([len(column.features) for column in columns], dtype=int)
    return zip(columns, np.split(x, ends, axis=1), strict=False)  # after the last column nothing is left


def _fill(out: np.ndarray, read: Cells, column: Column, given: Any) -> None:
    """Write the features [n, …] of a column, which are zero; ``given``: the cells as they stand in the table."""
    if column.kind in ("number", "date"):
        values = read.numbers if column.kind == "number" else read.days
        missing = np.isnan(values)
        filled = np.where(missing, column.mean if column.fill is None else float(column.fill), values)
        with np.errstate(over="ignore"):
            scaled = (filled - column.mean) / column.scale
        check_range(column.name, np.fmax(np.abs(values), np.abs(scaled)), given)
        out[:, 0] = scaled
        if column.kind == "date":
            out[:, 1], out[:, 2] = sin_cos(filled / _YEAR)
    else:
        missing = read.missing
    if column.kind == "text":
        _hash(out[:, : column.hashed], *read.texts)
    if column.kind == "category":
        feature_of = {as_date(category): k for k, category in enumerate(column.categories)}  # of old files: 31.1.2024
        rest = len(column.categories) if column.other else -1
        of_missing = -1 if column.fill is None else column.categories.index(str(column.fill))
        texts, codes = read.texts
        where = np.array([feature_of.get(text, rest) for text in texts] + [of_missing])[codes]
        rows = np.flatnonzero(where >= 0)
        out[rows, where[rows]] = 1
    if column.missing:
        out[:, -1] = missing


def _hash(out: np.ndarray, texts: list[str], codes: np.ndarray) -> None:
    """Write how often words occur in each cell, a row of length 1, or of zeros without a word."""
    from sklearn.feature_extraction.text import HashingVectorizer  # here, since it takes a second to import

    counts = HashingVectorizer(n_features=out.shape[1]).transform([*texts, ""])  # the last is of missing cells
    codes = np.where(codes < 0, len(texts), codes)
    for start in range(0, len(codes), _HASHED):
        out[start : start + _HASHED] = counts[codes[start : start + _HASHED]].toarray()


def to_scale(numbers: np.ndarray, name: str, target: str | None, given: Any) -> np.ndarray:
    """The numbers [n] of a label on the scale on which they are learned; ``given``: as they stand in the table.

    Raises:
        CellError: a number has no logarithm.
    """
    if target is None:
        return numbers
    rows = np.flatnonzero(numbers <= 0)
    if len(rows):
        outline = f"label {shown(name)} has {len(rows)} number{'s' * (len(rows) > 1)} not above 0, without a logarithm"
        value = given.iloc[int(rows[0])]
        what = f"{at_row(rows[0])} is {shown(getattr(value, 'item', lambda: value)())}"
        raise CellError(outline, f'{what}; correct it, leave the row out, or leave target="log" out')
    return np.log(numbers)


def labels_of(column: Any, label: Label) -> tuple[np.ndarray, np.ndarray]:
    """The labels [n] of a column of a table, and where they are missing [n].

    Raises:
        DataError: one is none of the classes, no number, or beyond float32.
    """
    read = cells(column, label.name, label.texts)
    if label.classes is None:
        if len(rows := np.flatnonzero(np.isnan(read.numbers) & ~read.missing)):
            raise DataError(f"label {shown(label.name)}, {at_row(rows[0])} is no finite number ({len(rows)} such rows)")
        check_range(label.name, read.numbers, column)
        return to_scale(read.numbers, label.name, label.target, column).astype(np.float32), read.missing
    class_of = {name: k for k, name in enumerate(label.classes)}
    texts, codes = read.texts
    if (bad := next((text for text in texts if text not in class_of), None)) is not None:
        row = int(np.flatnonzero(codes == texts.index(bad))[0])
        where = f"label {shown(label.name)}, {at_row(row)}"
        raise DataError(f"{where} is {shown(bad)}; the classes are {few(label.classes)}")
    return np.array([*(class_of[text] for text in texts), 0], np.int32)[codes], read.missing
