"""The cells of a table, as numbers, dates and texts."""

import datetime
import difflib
import itertools
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedax.errors import DataError

LARGE = 1e100  # larger numbers are clipped, as their squares leave float64; no number beyond float32 becomes a feature
LARGEST = float(np.finfo(np.float32).max)
WIDE = 10_000  # columns of a table
_LONG = 200  # characters of a text that count
_DATE = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?")


def as_pandas(frame: Any) -> Any:
    """A table of pandas, from one of pandas or Polars.

    Raises:
        DataError: it is something else, is too wide, or two columns have one name.
    """
    import pandas

    if type(frame).__module__.partition(".")[0] == "polars" and hasattr(frame, "to_dict"):
        frame = pandas.DataFrame({name: column.to_numpy() for name, column in frame.to_dict().items()})
    if not isinstance(frame, pandas.DataFrame):
        raise DataError(f"table: a {type(frame).__name__}; give a DataFrame of pandas or Polars")
    if frame.columns.nlevels > 1 or len({*map(str, frame.columns)}) < len(frame.columns):
        raise DataError("table: two columns have the same name; rename one")
    if len(frame.columns) > WIDE:
        raise DataError(f"table: {len(frame.columns)} columns; at most {WIDE} are taken")
    return frame if all(type(name) is str for name in frame.columns) else frame.rename(columns=str)


def series(frame: Any, name: str, field: str = "column") -> Any:
    """The column of this name.

    Raises:
        DataError: there is none; with the nearest name.
    """
    if name not in frame.columns:
        raise no_column(field, name, list(frame.columns))
    return frame[name]


def no_column(field: str, name: str, names: Sequence[str]) -> DataError:
    """The error for a column that is not there, with the nearest one."""
    near = difflib.get_close_matches(name[:_LONG], [each[:_LONG] for each in names], n=1, cutoff=0.6)
    hint = f"did you mean {shown(near[0])}? " if near else ""
    return DataError(f"{field}: there is no column {shown(name)}. {hint}There are: {few(names)}")


def shown(name: Any) -> str:
    """A name or text of a table as a part of a message."""
    try:
        text = repr(name)
    except ValueError:  # a whole number of more than 4300 digits
        text = hex(name)
    return text if len(text) <= 60 else f"{text[:60]}…"


def few(names: Iterable[Any]) -> str:
    """The first of several names, as a part of a message."""
    first = list(itertools.islice(names, 11))
    return ", ".join(map(shown, first[:10])) + (", …" if len(first) > 10 else "")


class CellError(DataError):
    """A number that cannot be used as a feature or label.

    Args:
        outline: which column, and what is wrong, without a value: others than the owner of the table may read it.
        detail: the first row and its value, and the way out.
    """

    def __init__(self, outline: str, detail: str):
        self.outline, self.detail = outline, detail
        super().__init__(f"{outline}: {detail}")


def check_range(name: str, numbers: np.ndarray, given: Any) -> None:
    """Whether float32 can hold the numbers [n] of a column, or of what is made of it; NaN passes.

    Args:
        name: of the column.
        numbers: [n].
        given: the cells [n], a column of pandas.

    Raises:
        CellError: it cannot.

    Example:
        >>> import pandas
        >>> check_range("age", np.array([1.0, 1e39]), pandas.Series(["1", "1e39"]))
        Traceback (most recent call last):
        fedax.data.cells.CellError: column 'age' has 1 number beyond float32 (3.4e38): row 1 is '1e39'; ...
    """
    rows = np.flatnonzero(np.abs(numbers) > LARGEST)
    if len(rows):
        outline = f"column {shown(name)} has {len(rows)} number{'s' * (len(rows) > 1)} beyond float32 (3.4e38)"
        value = given.iloc[int(rows[0])]
        way_out = "correct it, leave the cell empty, or divide the column by a power of ten"
        raise CellError(outline, f"row {rows[0]} is {shown(getattr(value, 'item', lambda: value)())}; {way_out}")


class Cells(NamedTuple):
    """The cells of a column, read as numbers, dates and texts. A truth value is a number too, 0 or 1.

    Attributes:
        numbers: float64 [n] from −LARGE to LARGE, NaN where a cell is no number.
        days: float64 [n] since 1970-01-01, NaN where a cell is no date.
        missing: bool [n]; empty cells, NaN, infinities.
        words: how many cells are neither number, date nor missing.
        texts: the different texts, and for each cell which of them it is, or −1 where it is missing.
    """

    numbers: np.ndarray
    days: np.ndarray
    missing: np.ndarray
    words: int
    texts: tuple[list[str], np.ndarray]


def cells(column: Any, name: str) -> Cells:
    """Read the cells of a column of pandas.

    Raises:
        DataError: they hold lists, tables or other things without a text of their own.
    """
    import pandas

    if isinstance(column.dtype, pandas.CategoricalDtype):
        column = column.astype(object)
    kind = getattr(column.dtype, "kind", "O")
    if kind in "biuf":
        numbers = column.to_numpy(np.float64, na_value=np.nan)
        numbers = np.where(np.isinf(numbers), np.nan, numbers)
        missing = np.isnan(numbers)
        texts = _numbered(column if kind in "iu" else numbers, kind == "b")  # float64 would round whole numbers
        return Cells(np.clip(numbers, -LARGE, LARGE), np.full(len(numbers), np.nan), missing, 0, texts)
    if kind == "M":
        days = _days(column)
        missing = np.isnan(days)
        codes, texts = pandas.factorize(column)
        return Cells(np.full(len(days), np.nan), days, missing, 0, ([str(text) for text in texts], codes))
    try:
        codes, values = pandas.factorize(column)
    except TypeError:
        raise DataError(f"column {shown(name)}: it holds lists or tables; give numbers, texts and dates") from None
    return _of_values(list(values), codes, name)


def _numbered(numbers: Any, truths: bool) -> tuple[list[str], np.ndarray]:
    import pandas

    codes, values = pandas.factorize(numbers)
    return [str(bool(value)) if truths else _text(value) for value in values], codes


def _of_values(values: list[Any], codes: np.ndarray, name: str) -> Cells:
    """From the different values of a column, and the index of each cell's value (−1: missing)."""
    n = len(values)
    numbers, days = np.full(n + 1, np.nan), np.full(n + 1, np.nan)
    missing, words = np.zeros(n + 1, bool), np.zeros(n + 1, bool)
    missing[n] = True  # of code −1
    texts: list[str] = []
    dated = []
    for k, value in enumerate(values):
        text = value.strip() if isinstance(value, str) else value
        if isinstance(text, bool | np.bool_):
            numbers[k], text = text, str(text)
        elif isinstance(text, int | float | np.number):
            numbers[k] = number(text)
            missing[k], text = np.isnan(numbers[k]), _text(text)
        elif isinstance(text, str):
            numbers[k] = number(text) if text[:1] in "+-.0123456789" and text.isascii() else np.nan
            if np.isnan(numbers[k]):
                missing[k] = text == "" or text.lower().lstrip("+-") in ("inf", "infinity", "nan")
                if _DATE.fullmatch(text):
                    dated.append(k)
            else:
                text = _text(numbers[k]) if _plain(text) and abs(numbers[k]) < 2**53 else text
            words[k] = not missing[k] and np.isnan(numbers[k])
        elif hasattr(text, "isoformat") and hasattr(text, "year"):
            text = str(text)
            dated.append(k)
        elif hasattr(text, "as_tuple"):  # a Decimal
            numbers[k] = number(text)
            missing[k], text = np.isnan(numbers[k]), str(text)
        else:
            raise DataError(f"column {shown(name)}: it holds a {type(value).__name__}; give numbers, texts and dates")
        texts.append(text[:_LONG])
    for k in dated:
        days[k] = _day(texts[k])
        words[k] = np.isnan(days[k])
    text_numbers: dict[str, int] = {}
    of_value = [-1 if missing[k] else text_numbers.setdefault(text, len(text_numbers)) for k, text in enumerate(texts)]
    text_codes = np.array([*of_value, -1])[codes]
    return Cells(numbers[codes], days[codes], missing[codes], int(words[codes].sum()), (list(text_numbers), text_codes))


def number(value: Any) -> float:
    """The number, clipped to ±LARGE; NaN where it is none, or an infinity.

    Example:
        >>> [number(each) for each in ("1.5", "1e400", "-inf", "1_0")]
        [1.5, 1e+100, nan, nan]
    """
    if isinstance(value, str) and ("_" in value or "n" in value.lower()):  # inf, nan
        return math.nan
    try:
        parsed = float(value)
    except OverflowError:  # a whole number of more than 308 digits
        return LARGE if value > 0 else -LARGE
    except (ValueError, ArithmeticError):
        return math.nan
    if math.isnan(parsed) or (math.isinf(parsed) and value == parsed):
        return math.nan
    return min(max(parsed, -LARGE), LARGE)


def _plain(text: str) -> bool:
    """Whether a text is how a number is written, so that 1 and 1.0 are the same category, but not 007."""
    return re.fullmatch(r"-?(0|[1-9]\d*)(\.0*)?", text) is not None


def _text(number: Any) -> str:
    """A number as the text of a category, the same whether its column is read as whole numbers or as floats."""
    if isinstance(number, int | np.integer):
        return str(number) if abs(number) < 10**_LONG else hex(number)  # Python writes 4300 digits at most
    value = float(number)
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def _days(column: Any) -> np.ndarray:
    if getattr(column.dtype, "tz", None) is not None:
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
    stamps = column.to_numpy().astype("datetime64[s]")
    return np.where(np.isnat(stamps), np.nan, stamps.astype(np.int64) / 86400.0)


def _day(text: str) -> float:
    """Days since 1970-01-01 of a date as ISO 8601 writes it, or NaN; without a zone it is UTC."""
    try:
        moment = datetime.datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
        return (moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)).total_seconds() / 86400.0
    except (ValueError, OverflowError):
        return math.nan
