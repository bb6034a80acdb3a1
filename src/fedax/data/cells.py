"""The cells of a table, as numbers, dates and texts."""

import contextlib
import datetime
import difflib
import functools
import itertools
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedax.errors import DataError

Texts = Literal["written", "numeric", "truth", "whole"]  # when two cells are the same: see :func:`cells`
Truth = Literal["", "digits", "words"]
LARGE = 1e100  # larger numbers are clipped, as their squares leave float64; no number beyond float32 becomes a feature
LARGEST = float(np.finfo(np.float32).max)
WIDE = 10_000  # columns of a table
_LONG = 200  # characters of a text that count
_PLAIN = re.compile(r"-?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][+-]\d+)?")  # no code such as 007 or 12E4
_WHOLE = re.compile(r"0|-?[1-9]\d{0,17}")
_TRUTHS = {"true": 1.0, "false": 0.0}
_MARKS = {
    "?",
    ".",
    "-",
    "--",
    "*",
    "na",
    "n/a",
    "#n/a",
    "nan",
    "nat",
    "null",
    "none",
    "missing",
    "inf",
    "-inf",
    "infinity",
}
_DATE = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?")
_DOTTED = re.compile(r"(\d\d?)\.(\d\d?)\.(\d{4})( \d\d:\d\d(?::\d\d)?)?")  # 31.1.2024: the day comes first
_SLASHED = re.compile(r"\d{1,4}/\d\d?/\d{1,4}( .*)?")  # 1/2/2024: of January or of February
_ZEROS = re.compile(r"-?0\d+")


def as_pandas(frame: Any) -> Any:
    """A table of pandas, from one of pandas or Polars.

    Raises:
        DataError: it is something else, is too wide, or two columns have one name.
    """
    import pandas

    if type(frame).__module__.partition(".")[0] == "polars" and hasattr(frame, "to_dict"):
        frame = pandas.DataFrame({name: _of_polars(column) for name, column in frame.to_dict().items()})
    if not isinstance(frame, pandas.DataFrame):
        calls = {"collect": ".collect()", "compute": ".compute()", "toPandas": ".toPandas()"}
        calls["nnz"] = "pandas.DataFrame.sparse.from_spmatrix(x)"
        makes = next((f", such as {call} makes" for name, call in calls.items() if hasattr(frame, name)), "")
        raise DataError(f"table: {type(frame).__name__}; give a DataFrame of pandas or Polars{makes}")
    names = [column_name(name) for name in frame.columns]
    if frame.columns.nlevels > 1 or len({*names}) < len(names):
        raise DataError("table: two columns have the same name; rename one")
    if len(frame.columns) > WIDE:
        raise DataError(f"table: {len(frame.columns)} columns; at most {WIDE} are taken")
    return frame if list(frame.columns) == names else frame.set_axis(names, axis=1)


def _of_polars(column: Any) -> Any:
    """The cells of a column; whole numbers with gaps are not rounded to floats."""
    import pandas

    whole_with_gaps = str(column.dtype).startswith(("Int", "UInt")) and column.null_count()
    as_objects = whole_with_gaps or str(column.dtype).startswith("Struct")
    return pandas.Series(column.to_list(), dtype=object) if as_objects else column.to_numpy()


def column_name(name: Any) -> str:
    """A name as text, with each letter as one character: ö may also be written as o and dots."""
    return unicodedata.normalize("NFC", str(name))


def series(frame: Any, name: str, field: str = "column") -> Any:
    """The column of this name.

    Raises:
        DataError: there is none; with the nearest name.
    """
    if name not in frame.columns and (name := column_name(name)) not in frame.columns:
        raise no_column(field, name, list(frame.columns))
    return frame[name]


def no_column(field: str, name: str, names: Sequence[str]) -> DataError:
    """The error for a column that is not there, with the nearest one."""
    near = difflib.get_close_matches(name[:_LONG], [each[:_LONG] for each in names], n=1, cutoff=0.6)
    hint = f"did you mean {shown(near[0])}? " if near else ""
    if len(several := [each.strip() for each in name.split(",")]) > 1 and {*several} <= {*names}:
        hint = f"these are {len(several)}: name each by itself. "
    return DataError(f"{field}: there is no column {shown(name)}. {hint}There are: {few(names)}")


def shown(name: Any) -> str:
    """A name or text of a table as a part of a message."""
    try:
        text = repr(name)
    except ValueError:  # a whole number of more than 4300 digits
        text = hex(name)
    return text if len(text) <= 60 else f"{text[:60]}…"


def at_row(row: Any) -> str:
    """Where a row is in its client's table, as a part of a message."""
    return f"row {row} (from 0)"


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


@contextlib.contextmanager
def naming(where: Any) -> Iterator[None]:
    """A DataError in this block, or in a function that this decorates, begins with ``where``: a client, a file.

    Example:
        >>> with naming("north"):
        ...     raise DataError("label: there is no column 'ill'")
        Traceback (most recent call last):
        fedax.errors.DataError: north: label: there is no column 'ill'
    """
    try:
        yield
    except CellError as error:
        raise CellError(f"{where}: {error.outline}", error.detail) from None
    except DataError as error:
        raise DataError(f"{where}: {error}") from None


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
        fedax.data.cells.CellError: column 'age' has 1 number beyond float32 (3.4e38): row 1 (from 0) is '1e39'; ...
    """
    rows = np.flatnonzero(np.abs(numbers) > LARGEST)
    if len(rows):
        outline = f"column {shown(name)} has {len(rows)} number{'s' * (len(rows) > 1)} beyond float32 (3.4e38)"
        value = given.iloc[int(rows[0])]
        hint = "correct it, leave the cell empty, or divide the column by a power of ten"
        raise CellError(outline, f"{at_row(rows[0])} is {shown(getattr(value, 'item', lambda: value)())}; {hint}")


@dataclass(eq=False)
class Cells:
    """The cells of a column, read as numbers, dates and texts. A truth value is a number too, 0 or 1.

    Attributes:
        numbers: float64 [n] from −LARGE to LARGE, NaN where a cell is no number.
        days: float64 [n] since 1970-01-01, NaN where a cell is no date.
        missing: bool [n]; empty cells, and NaN and infinities of columns of numbers.
        words: how many cells are neither number, date nor missing.
        marks: how many of these are a usual mark of a missing value, such as ``?`` and ``NA``.
        prose: how many of these are text of four words or more.
        slashes: how many of these look like a date such as 1/31/2024, which can be read in two ways.
        zeros: how many cells have leading zeros, as 007.
        codes: [n] the number of each cell's text, or −1 where it is missing.
        different: how many texts there are.
        odd: how many cells are not written as numbers are: words, and numbers such as 007 or 1e5.
        truth: ``"words"``: all cells are truth values, some of them as words; ``"digits"``: all are 0 or 1; or ``""``.
    """

    numbers: np.ndarray
    days: np.ndarray
    missing: np.ndarray
    _coded: Callable[[], tuple[np.ndarray, Any]]
    _texts: Callable[[Any], list[str]]
    words: int = 0
    marks: int = 0
    odd: int = 0
    truth: Truth = ""
    prose: int = 0
    slashes: int = 0
    zeros: int = 0

    @functools.cached_property
    def _codes_and_values(self) -> tuple[np.ndarray, Any]:
        return self._coded()

    @property
    def codes(self) -> np.ndarray:
        return self._codes_and_values[0]

    @property
    def different(self) -> int:
        return len(self._codes_and_values[1])

    @functools.cached_property
    def texts(self) -> tuple[list[str], np.ndarray]:
        """The different texts, and for each cell which of them it is, or −1 where it is missing."""
        return self._texts(self._codes_and_values[1]), self.codes


def cells(column: Any, name: str, texts: Texts = "numeric") -> Cells:
    """Read the cells of a column of pandas.

    Args:
        column: the cells.
        name: of the column, for errors.
        texts: when two cells are the same. ``"written"``: if they are written alike. ``"numeric"``: also if they are
            plain numbers of one value, as 1 and 1.0 are. ``"truth"``: also if both are true, or both false, as True,
            true and 1 are. ``"whole"``: as ``"numeric"``, and not only the first 200 characters count.

    Raises:
        DataError: they hold lists, tables or other things without a text of their own.
    """
    import pandas

    if isinstance(column.dtype, pandas.SparseDtype):
        column = column.sparse.to_dense()
    if column.dtype.name == "numbers and words" and texts != "truth":
        return _with_words(column.array, name, texts)
    kind = getattr(column.dtype, "kind", "O")
    if kind in "iuf":
        numbers = column.to_numpy(np.float64, na_value=np.nan)
        numbers = np.where(np.isinf(numbers), np.nan, numbers)
        missing, given = np.isnan(numbers), numbers
        if kind in "iu" or column.dtype.itemsize < 8:  # float64 would round whole numbers, and write 0.1f at length
            given = column
        bits = bool(((numbers == 0) | (numbers == 1) | missing).all())
        if texts == "truth":
            codes, values = _factorized(given, missing)
            return _of_values(list(values), codes, name, texts)
        return Cells(
            np.clip(numbers, -LARGE, LARGE),
            np.full(len(numbers), np.nan),
            missing,
            lambda: _factorized(given, missing),
            lambda values: [text_of(value) for value in np.asarray(values)],
            truth="digits" if bits else "",
        )
    if kind == "M":
        days = _days(column)
        missing = np.isnan(days)
        return Cells(
            np.full(len(days), np.nan),
            days,
            missing,
            lambda: pandas.factorize(column),
            lambda values: [instant(value) for value in values],
            odd=int((~missing).sum()),
            truth="digits" if missing.all() else "",
        )
    try:
        codes, values = pandas.factorize(column)
    except TypeError:
        raise DataError(f"column {shown(name)}: it holds lists or tables; give numbers, texts and dates") from None
    return _of_values(list(values), codes, name, texts)


def cells_of(values: Sequence[Any], name: str, texts: Texts = "numeric") -> Cells:
    """:func:`cells` of Python's own values, without pandas; ``None`` and NaN are missing.

    Example:
        >>> cells_of(["1.5", 2, None, "old"], "age").numbers.tolist()
        [1.5, 2.0, nan, nan]
    """
    there = [not (value is None or type(value).__name__ == "NAType" or value != value) for value in values]
    codes = np.where(np.array(there, bool), np.arange(len(there)), -1)
    return _of_values([value if known else "" for value, known in zip(values, there, strict=True)], codes, name, texts)


def _with_words(column: Any, name: str, texts: Texts) -> Cells:
    """From a :class:`fedax.data.mixed.NumbersAndWords`."""
    import pandas

    codes, used = pandas.factorize(pandas.Categorical.from_codes(column.codes, column.words))
    words, at = _of_values(list(used), codes, name, texts), codes >= 0
    numbers = np.where(at, words.numbers, column.numbers)

    def coded() -> tuple[np.ndarray, list[Any]]:
        codes, values = pandas.factorize(column.numbers)
        return np.where(at & ~words.missing, len(values) + words.codes, codes), [*values.tolist(), *words.texts[0]]

    return Cells(
        np.clip(numbers, -LARGE, LARGE),
        words.days,
        np.where(at, words.missing, np.isnan(column.numbers)),
        coded,
        lambda values: [value if isinstance(value, str) else text_of(value) for value in values],
        words.words,
        words.marks,
        words.odd,
        prose=words.prose,
        slashes=words.slashes,
        zeros=words.zeros,
    )


def _factorized(given: Any, missing: np.ndarray) -> tuple[np.ndarray, Any]:
    import pandas

    return pandas.factorize(given.mask(missing) if hasattr(given, "mask") else given)


def _of_values(values: list[Any], codes: np.ndarray, name: str, same: Texts) -> Cells:
    """From the different values of a column, and the index of each cell's value (−1: missing)."""
    n = len(values)
    texts = [_written(value, name) for value in values]
    numbers, days = np.full(n + 1, np.nan), np.full(n + 1, np.nan)
    missing, words, marks, prose, slashes, odd, zeros = np.zeros((7, n + 1), bool)
    missing[n] = True  # of code −1
    truth_words, truths = False, True
    for k, text in enumerate(texts):
        if _PLAIN.fullmatch(text):
            numbers[k] = value = float(text)
            truths = truths and value in (0.0, 1.0)
            continue
        odd[k] = text != ""
        if text == "":
            missing[k] = True
        elif (said := _TRUTHS.get(text.lower())) is not None:
            numbers[k], truth_words = said, True
        else:
            truths = False
            if text[0] in "+-.0123456789" and text.isascii():
                numbers[k] = number(values[k] if isinstance(values[k], int) else text)  # which may be hexadecimal
                days[k] = _day(_iso(text))
                zeros[k] = _ZEROS.fullmatch(text) is not None
            words[k] = np.isnan(numbers[k]) and np.isnan(days[k])
            marks[k] = words[k] and text.lower() in _MARKS
            prose[k] = words[k] and text.count(" ") >= 3
            slashes[k] = words[k] and _SLASHED.fullmatch(text) is not None
    numbers = np.clip(numbers, -LARGE, LARGE)

    def coded() -> tuple[np.ndarray, list[str]]:
        found: dict[str, int] = {}
        most = None if same == "whole" else _LONG
        keys = [_key(text, number, same)[:most] for text, number in zip(texts, numbers.tolist(), strict=False)]
        of_value = [found.setdefault(key, len(found)) if key else -1 for key in keys]
        return np.array([*of_value, -1])[codes], list(found)

    return Cells(
        numbers[codes],
        days[codes],
        missing[codes],
        coded,
        lambda different: different,
        int(words[codes].sum()),
        int(marks[codes].sum()),
        int(odd[codes].sum()),
        ("words" if truth_words else "digits") if truths else "",
        int(prose[codes].sum()),
        int(slashes[codes].sum()),
        int(zeros[codes].sum()),
    )


def _key(text: str, value: float, same: Texts) -> str:
    """The one text of all cells that are the same, of which ``text`` is one, with its number."""
    if _PLAIN.fullmatch(text):
        if same == "truth" and value in (0.0, 1.0):
            return str(bool(value))
        return (_as_written if same == "written" else _normal)(text, value)
    if same != "written" and text.lower() in _TRUTHS:
        return str(bool(value))
    return as_date(text)


def _written(value: Any, name: str) -> str:
    """The text of a value, empty where it is missing: as it is written, or the one way that a value of a type has."""
    if isinstance(value, str):
        text = value.strip()
        return text if text.isascii() else unicodedata.normalize("NFC", text)
    if isinstance(value, bool | np.bool_):
        return str(value)
    if isinstance(value, int | float | np.number):
        return text_of(value) if isinstance(value, int | np.integer) or math.isfinite(value) else ""
    if hasattr(value, "isoformat") and hasattr(value, "year"):
        return instant(value)
    if hasattr(value, "as_tuple"):  # a Decimal
        return _normal(f"{value:f}", float(value)) if value.is_finite() else ""
    raise DataError(f"column {shown(name)}: it holds a {type(value).__name__}; give numbers, texts and dates")


def alike_numbers(texts: Iterable[str]) -> list[list[str]]:
    """Texts that are one number, written in several ways.

    Example:
        >>> alike_numbers(["1", "X9", "1.0", "2"])
        [['1', '1.0']]
    """
    of_value: dict[float, list[str]] = {}
    for text in texts:
        if text.isascii() and not math.isnan(value := number(text)):
            of_value.setdefault(value, []).append(text)
    return [each for each in of_value.values() if len(each) > 1 and abs(number(each[0])) < 2**53]


def same_texts(columns: Iterable[Any]) -> Texts:
    """When two cells of a column are the same, from its cells at all clients, or from the facts about them.

    Example:
        >>> import pandas
        >>> read = [cells(pandas.Series(each), "code") for each in (["01", "2"], ["2.0", "3"])]
        >>> same_texts(read), same_texts(read[1:])
        ('written', 'numeric')
    """
    columns = list(columns)
    truths = [each.truth for each in columns]
    if "words" in truths and all(truths):
        return "truth"
    return "written" if any(each.odd or each.words for each in columns) else "numeric"


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


def text_of(number: Any) -> str:
    """A number as a text, the same whether its column is read as whole numbers or as floats."""
    if isinstance(number, int | np.integer):
        return str(number) if abs(number) < 10**_LONG else hex(number)  # Python writes 4300 digits at most
    value = float(number)
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else str(number)


def plain_numbers(texts: Sequence[str]) -> np.ndarray | None:
    """The numbers [n] of these texts; ``None`` if one is no plain number, or has too many digits for float64.

    Example:
        >>> plain_numbers(["1", "2.50"]), plain_numbers(["1", "007"])
        (array([1. , 2.5]), None)
    """
    if all(map(_WHOLE.fullmatch, texts)):
        return np.array(texts).astype(np.int64)
    if not all(_PLAIN.fullmatch(text) and (len(text) < 17 or "." in text or "e" in text.lower()) for text in texts):
        return None
    return np.array([number(text) for text in texts])


def _as_written(text: str, value: float) -> str:
    """A plain number as it is written, but for what float64 writes in another way: as 1e-05, or with 17 digits."""
    fraction = "." in text and text[-1] != "0" and (len(text) > 16 or 0 < abs(value) < 1e-4)
    return text_of(value) if fraction or "e" in text or "E" in text else text


def _normal(text: str, value: float) -> str:
    """The one text for all plain numbers of this value: 1 for 1.0, without a detour through float64.

    Example:
        >>> [_normal(text, float(text)) for text in ("1.50", "-0.0", ".5", "1582218195625938945", "1e-5")]
        ['1.5', '0', '0.5', '1582218195625938945', '1e-05']
    """
    if "." in text and "e" not in text and "E" not in text:
        text = text.rstrip("0").rstrip(".")
        text = text.replace(".", "0.", 1) if text.removeprefix("-").startswith(".") else text
    return "0" if value == 0 else _as_written(text, value)


def instant(value: Any) -> str:
    """A date or an instant as the text that :func:`as_date` makes of how it is written."""
    return _date_text(value.isoformat()) or value.isoformat()


def as_date(text: str) -> str:
    """The one text of a date or an instant, however it is written; other texts as they are.

    Example:
        >>> as_date("31.1.2024"), as_date("2024-01-31T12:00"), as_date("1/31/2024")
        ('2024-01-31', '2024-01-31 12:00:00', '1/31/2024')
    """
    return _date_text(_iso(text)) or text


def _date_text(iso: str) -> str:
    """2024-01-31, and where the time is not midnight 2024-01-31 12:00:00; empty if there is no such day."""
    moment = _moment(iso)
    if moment is None:
        return ""
    return str(moment.date()) if moment.time() == datetime.time() else str(moment)


def _moment(iso: str) -> datetime.datetime | None:
    """The instant in UTC, to microseconds; without a zone it is UTC. ``None`` if there is none from year 1 to 9999."""
    try:
        moment = datetime.datetime.fromisoformat(iso)
        return moment if moment.tzinfo is None else moment.astimezone(datetime.UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return None


def _iso(text: str) -> str:
    """A date or an instant as ISO 8601 writes it; empty of other texts."""
    if dotted := _DOTTED.fullmatch(text):
        day, month, year, time = dotted.groups("")
        return f"{year}-{month:0>2}-{day:0>2}{time}"
    return text if _DATE.fullmatch(text) else ""


def _days(column: Any) -> np.ndarray:
    if getattr(column.dtype, "tz", None) is not None:
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
    stamps = column.to_numpy().astype("datetime64[s]")
    return np.where(np.isnat(stamps), np.nan, stamps.astype(np.int64) / 86400.0)


def _day(iso: str) -> float:
    """Days since 1970-01-01, or NaN."""
    moment = _moment(iso)
    return math.nan if moment is None else (moment - datetime.datetime(1970, 1, 1)).total_seconds() / 86400.0
