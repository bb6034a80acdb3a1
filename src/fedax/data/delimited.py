"""Reads CSV files. How each is written is found: its encoding, what separates cells, and how numbers are written."""

import codecs
import csv
import gzip
import io
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedax.data.cells import column_name, number, plain_numbers, shown, text_of
from fedax.data.formats import room
from fedax.errors import ConfigError, DataError, DoubtfulWarning, caller_level
from fedax.files import regular

_NO_TEXT = {  # how files begin that are no text
    b"PK\x03\x04": "it is a ZIP archive or an Excel workbook; unpack it, or name it .xlsx",
    b"\xd0\xcf\x11\xe0": "it is an old Excel workbook; save it as .xlsx",
    b"PAR1": "it is a Parquet file; read it as such",
}
_BEGIN = 65_536  # characters of a file that tell what separates its cells; the names of its columns are in them
_BLOCK = 1 << 18  # bytes that are looked at together, so few that they stay in the cache
_END = "\0"
_SEPARATORS = ("\t", ";", "|", ",")  # of two that fit, the first: commas may be decimal
_SAMPLE = 1000  # numbers of a column that tell whether their points are decimal; the most that may be categories

_COMMA = re.compile(r"[+-]?(?:\d+|[1-9]\d{0,2}(?:\.\d{3})+),\d+")  # 1,5 and 1.234,5
_POINT = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")  # 1,234 and 1,234.5
_DOTS = re.compile(r"[+-]?[1-9]\d{0,2}(?:\.\d{3})+")  # 1.234, a number below 2 or above 1000
_DECIMAL = re.compile(r"[+-]?\d*\.\d+")


def read_csv(
    path: Path,
    decimal: str | None = None,
    encoding: str | None = None,
    texts: Sequence[str] = (),
    drop: Sequence[str] = (),
) -> Any:
    """A CSV file as a table of pandas, with the names of its first line.

    A column is stored as its texts, each of them once; or as numbers, where there are more than 1000 of them (so that
    they are no categories), or where they say how they are written.

    Args:
        path: the file, which gzip may have packed.
        decimal, encoding: as of :func:`fedax.data.from_csv`.
        texts: columns whose cells stay as they are written, such as 007.
        drop: columns that will be dropped, in which no number has to be understood.

    Returns:
        The table; its ``attrs["written"]`` says how the file is written, where that is not the usual way.

    Raises:
        ConfigError: another decimal sign; there is no such encoding.
        DataError: another kind of file; no rows; a line with more cells than names, or a last one with fewer; a quote
            that is not closed; a byte 0; the first line once more; numbers that can be read in two ways.

    Warns:
        DoubtfulWarning: a quoted cell spans lines, as it does where a closing quote is missing; lines have fewer cells.
    """
    if decimal not in (None, ".", ","):
        raise ConfigError("decimal", decimal, 'give "." or ","')
    content, found = _utf8(path, _content(path), encoding)
    if (zero := content.find(b"\0")) >= 0:
        line = content.count(b"\n", 0, zero) + 1
        raise DataError(f"{path}: line {line} has a character 0; the file is damaged, or in another encoding")
    content = content if content.endswith(b"\n") else content + b"\n"
    names, separator, begin = _header(path, content)
    scanned = _scan(content, begin, len(names), separator)
    if scanned is None:
        _check_lines(path, content, names, separator)
        scanned = _Scan.of(len(names))
        scanned.text[:] = True
    exact = {*map(column_name, texts)} & {*names}
    as_text = exact | {name for name, text in zip(names, scanned.text, strict=True) if text}
    words = {name: each for name, each in zip(names, scanned.words, strict=True) if each.rows and name not in as_text}
    table = _by_pandas(path, content, separator, names, as_text, {name: each.marks for name, each in words.items()})
    if not len(table):
        raise DataError(f"{path}: it has no rows below the names of columns; leave it out")
    columns = {name: table[name] for name in names}
    del table
    again = []  # columns that do not say how their numbers are written
    for name, zeros, long in zip(names, scanned.zeros, scanned.long, strict=True):
        if name not in as_text and not _kept(columns[name], zeros or name in words, long):
            again.append(name)
    if again:
        texts_again = _by_pandas(path, content, separator, names, {*again}, {}, again)
        columns |= {name: texts_again[name] for name in again}
    del content
    vote = read_numbers(path, columns, exact.union(map(column_name, drop)), decimal)
    import pandas

    from fedax.data.mixed import with_words

    for name in words.keys() - {*again}:
        columns[name] = with_words(columns[name], np.concatenate(words[name].rows), words[name].texts)
    read = pandas.DataFrame({name: column if name in exact else stored(column) for name, column in columns.items()})
    usual = {"separated by {!r}": ",", "decimals with {!r}": ".", "text in {}": "UTF-8"}
    ways = zip(usual.items(), (separator, vote, found), strict=True)
    read.attrs["written"] = ", ".join(way.format(this) for (way, other), this in ways if this != other)
    return read


def _kept(column: Any, zeros: bool, long: bool) -> bool:
    """Whether the numbers of a column, as pandas read them, are all that its cells say."""
    if column.dtype.kind != "f":
        return column.dtype.kind in "iu"
    if long or np.isinf(column).any():
        return False
    return not zeros or column.nunique() > _SAMPLE


# ---- from bytes to text in UTF-8


def _content(path: Path) -> bytes:
    stored = regular(path)
    if not stored:
        raise DataError(f"{path}: the file is empty; leave it out")
    try:
        content = path.read_bytes()
        if content.startswith(b"\x1f\x8b"):
            with gzip.open(io.BytesIO(content)) as packed:
                content = packed.read(room(stored) + 1)
            if len(content) > room(stored):
                raise DataError(f"{path}: unpacks to more than {room(stored)} bytes, too many for its size")
    except (OSError, EOFError) as error:
        raise DataError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if kind := next((kind for bytes_, kind in _NO_TEXT.items() if content.startswith(bytes_)), None):
        raise DataError(f"{path}: {kind}")
    return content


def _utf8(path: Path, content: bytes, encoding: str | None) -> tuple[bytes, str]:
    """The text in UTF-8, and the encoding that it had: a given one, or that of its mark; else UTF-8, or cp1252."""
    marked = content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    known = encoding or ("utf-16" if marked else "utf-8" if _is_utf8(content) else "cp1252")
    try:
        if codecs.lookup(known).name in ("utf-8", "utf-8-sig"):
            if not _is_utf8(content):
                content.decode()
        else:
            content = content.decode(known).encode()
    except LookupError:
        raise ConfigError("encoding", encoding, 'there is none of this name; give "utf-8" or "latin-1"') from None
    except UnicodeDecodeError as error:
        what = f"not text in {known}" if encoding is not None else "text neither in UTF-8 nor in cp1252"
        byte = f"byte {error.object[error.start]:#04x}"
        raise DataError(f"{path}: {what} ({byte}); try encoding='latin-1', --encoding latin-1") from None
    name = codecs.lookup(known).name.removesuffix("-sig")
    return content.removeprefix(codecs.BOM_UTF8), name.upper() if name.startswith("utf") else name


def _is_utf8(content: bytes) -> bool:
    if content.isascii():
        return True
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for at in range(0, len(content), _BLOCK):
            decoder.decode(content[at : at + _BLOCK])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


# ---- lines


def _header(path: Path, content: bytes) -> tuple[list[str], str, int]:
    """The names of columns, what separates cells, and the byte at which the rows begin."""
    start = content[: 4 * _BEGIN].decode(errors="ignore")
    whole = len(content) <= 4 * _BEGIN and len(start) <= _BEGIN
    if not whole:
        start = start[:_BEGIN]
        start = start[: start.rfind("\n") + 1] or start
    first = len(start) - len(start.lstrip("\r\n"))
    lines = io.StringIO(start[first:], newline="").readlines()
    try:
        parsed = {each: _rows(lines, each) for each in _SEPARATORS}
    except csv.Error as error:
        raise DataError(f"{path}: its first line is not that of a CSV file ({error})") from None
    fits = {each: _fit(rows) for each, rows in parsed.items()}
    separator = max(_SEPARATORS, key=lambda each: fits[each]) if any(fits.values()) else ","
    (row, end), *_ = parsed[separator] or [([""], 0)]
    if not whole and (end >= len(lines) or "\n" not in start):
        raise DataError(f"{path}: its first line is too long for the names of columns; is it a CSV file?")
    if row and row[-1].endswith(_END):
        raise DataError(f"{path}: line 1: a quote is not closed, and its cell runs to the end of the file; close it")
    if len(row) > 10_000:
        raise DataError(f"{path}: its first line is too long for the names of columns; is it a CSV file?")
    return names_of(path, row), separator, len((start[:first] + "".join(lines[:end])).encode())


def names_of(path: Path, row: Sequence[str]) -> list[str]:
    """The names of columns, from the cells of the first row."""
    names = [column_name(" ".join(name.split())) for name in row]
    if "" in names or len({*names}) < len(names):
        twice = next((name for k, name in enumerate(names) if name in names[:k]), "")
        what = f"two columns are called {shown(twice)}" if twice else f"column {names.index('') + 1} has no name"
        raise DataError(f"{path}: {what}; the first line has to name each column")
    return names


def _rows(lines: Sequence[str], separator: str) -> list[tuple[list[str], int]]:
    """The first rows, and after how many lines each ends. The cell of a quote that is not closed ends in 0."""
    reader = csv.reader([*lines, _END], delimiter=separator, skipinitialspace=True)
    rows: list[tuple[list[str], int]] = []
    for row in reader:
        if row == [_END] or len(rows) > 100:
            break
        if row:
            rows.append((row, reader.line_num))
    return rows


def _fit(rows: Sequence[tuple[list[str], int]]) -> float:
    """How well a separator fits: the share of the first rows with as many cells as names, if there are several."""
    sizes = [len(row) for row, _ in rows] or [0]
    return sizes.count(sizes[0]) / len(sizes) if sizes[0] > 1 else 0.0


class _Words:
    """The cells of a column that are no numbers: their rows, in parts; their texts; and how they stand in the file."""

    def __init__(self) -> None:
        self.rows: list[np.ndarray] = []
        self.texts: list[str] = []
        self.marks: set[str] = set()

    def add(self, rows: np.ndarray, cells: Iterable[bytes]) -> bool:
        """Whether there are few different ones, and none that may be a number in another notation."""
        texts = [cell.decode().lstrip(" ") for cell in cells]
        new = {*texts} - self.marks
        self.rows.append(rows)
        self.texts += [text.strip() for text in texts]
        self.marks |= new
        return len(self.marks) <= _SAMPLE and not any('"' in text or _is_number(text) for text in new)


class _Scan(NamedTuple):
    """Of each column: whether it has cells that are no plain numbers, such as 007; whether it has numbers such as 1.50,
    which do not say how they are written; whether it has whole numbers with too many digits for float64; and its words,
    if most of its cells are numbers."""

    text: np.ndarray
    zeros: np.ndarray
    long: np.ndarray
    words: list[_Words]

    @classmethod
    def of(cls, width: int) -> "_Scan":
        """Before a line has been looked at."""
        text, zeros, long = np.zeros((3, width), bool)
        return cls(text, zeros, long, [_Words() for _ in range(width)])


def _table_of(characters: bytes) -> np.ndarray:
    found = np.zeros(256, np.uint8)
    found[list(characters)] = 1
    return found


_DIGITS, _STRANGE = _table_of(b"0123456789"), 1 - _table_of(b'0123456789.-+eE\r\n"')  # in a number


def _scan(content: bytes, begin: int, width: int, separator: str) -> _Scan | None:
    """What the cells of each column look like; ``None`` where a line has not one cell for each column, or is odd.

    It looks at bytes alone, and so takes a fraction of the time of a parser.
    """
    head = content[:begin].strip(b"\r\n")
    lone = content.count(b"\r") != content.count(b"\r\n")
    if width == 1 or lone or content.find(b"\n" + head, begin - 1) >= 0 or len(content) == begin:
        return None
    data, mark = np.frombuffer(content, np.uint8), ord(separator)
    scan = _Scan.of(width)
    rows = 0
    while begin < len(data):
        end = content.rfind(b"\n", begin, begin + _BLOCK) + 1
        if not end or not (here := _scan_block(data[begin:end], mark, scan, rows)):
            return None
        begin, rows = end, rows + here
    return scan


def _scan_block(block: np.ndarray, separator: int, scan: _Scan, rows: int) -> int:
    """Look at whole lines after so many rows; how many there are, or 0 if not each has one cell for each column."""
    newline, quote, width = 10, 34, len(scan.text)
    is_newline = block == newline
    ends = np.flatnonzero(is_newline | (block == separator))
    quotes, inside = np.flatnonzero(block == quote), np.empty(0, np.int64)
    if len(quotes):
        if len(quotes) % 2:
            return 0
        opening, closing = quotes[::2], quotes[1::2]
        before, after = block[opening[opening > 0] - 1], block[closing + 1]  # a newline is last
        if not np.isin(before, [separator, newline, quote]).all():
            return 0
        if not np.isin(after, [separator, newline, quote, 13]).all():
            return 0
        quoted = np.searchsorted(quotes, ends) % 2 == 1
        ends, inside = ends[~quoted], ends[quoted]
    if len(ends) % width or len(ends) // width != np.count_nonzero(is_newline):
        return 0
    ends = ends.reshape(-1, width)  # type: ignore[assignment]
    if not is_newline[ends[:, -1]].all():
        return 0
    starts = np.empty_like(ends)
    starts.flat[0], starts.flat[1:] = 0, ends.flat[:-1] + 1
    ends[:, -1] -= block[ends[:, -1] - 1] == 13
    ends = np.maximum(ends, starts)
    if (ends - starts).max() > csv.field_size_limit():
        return 0
    if len(quotes):
        quoted = (block[starts] == quote) & (ends > starts)
        if len(quotes) != 2 * np.count_nonzero(quoted):  # a quote in a cell
            return 0
        starts, ends = starts + quoted, ends - quoted

    flat = ends.ravel()

    def has(characters: np.ndarray) -> np.ndarray:
        """Which cells have some of these bytes, given by their places."""
        found = np.zeros(flat.size + 1, bool)  # one more for what follows the last cell
        found[np.searchsorted(flat, characters, side="right")] = True
        return found[:-1].reshape(ends.shape)

    filled = ends > starts
    negative = block[starts] == ord("-")
    digits = starts + negative
    first, second = block[digits], block[np.minimum(digits + 1, len(block) - 1)]
    last, size = block[ends - 1], ends - digits
    point = has(np.flatnonzero(block == ord(".")))
    letters = np.flatnonzero((block | 32) == ord("e"))  # E, too
    exponent = has(letters)
    strange = _STRANGE.copy()
    strange[separator] = 0
    words = has(np.flatnonzero(strange[block])) | has(inside)
    scan.text[:] |= 2 * np.count_nonzero(words, axis=0) > len(words)
    for k in np.flatnonzero(words.any(0) & ~scan.text):
        at = np.flatnonzero(words[:, k])
        cells = (block[i:j].tobytes() for i, j in zip(starts[at, k].tolist(), ends[at, k].tolist(), strict=True))
        scan.text[k] |= not scan.words[k].add(rows + at, cells)
    odd = (first == ord("0")) & (size > 1) & (_DIGITS[second] == 1) & ~words  # 007
    odd |= negative & (size == 1) & (first == ord("0"))
    odd |= (first == ord("+")) & ~words
    zeros = point & ~exponent & ((last == ord("0")) | (last == ord(".")) | (first == ord(".")))  # 1.50
    scan.text[:] |= (odd & filled).any(0)
    scan.zeros[:] |= (zeros & filled).any(0)
    scan.long[:] |= (filled & ~point & ~exponent & (size > 15)).any(0)
    if len(letters):  # 12E4 may be a code
        at = np.searchsorted(flat, letters[~np.isin(block[letters + 1], [ord("+"), ord("-")])])
        scan.text[at[~words.ravel()[at]] % width] = True
    return len(ends)


def _check_lines(path: Path, content: bytes, names: Sequence[str], separator: str) -> None:
    """Refuse lines that pandas would take for the rest of a cell; warn of cells that span lines, and of short lines."""
    spans: list[tuple[int, int]] = []  # lines of a row, and its first
    short: list[str] = []
    with io.TextIOWrapper(io.BytesIO(content), "utf-8", newline="") as file:
        rows = csv.reader(_lines(file), delimiter=separator, skipinitialspace=True)
        begin, header, cut = 1, True, ""
        try:
            for row in rows:
                at, span = f"line {begin}", rows.line_num - begin + 1
                if row == [_END]:
                    break
                if row and row[-1].endswith(_END):
                    raise DataError(
                        f"{path}: {at}: a quote is not closed, and its cell runs to the end of the file; close it"
                    )
                if len(row) > 1 or any(row):  # not an empty line
                    sizes = f"{at} has {len(row)} of {len(names)} cells"
                    if any(row[len(names) :]):
                        raise DataError(f"{path}: {sizes}; give each line as many as the first line has names")
                    if not header and [cell.strip() for cell in row[: len(names)]] == names:
                        raise DataError(f"{path}: {at} has the names of columns once more; leave it out")
                    spans += [(span, begin)] if span > 1 and not header else []
                    header, cut = False, sizes if len(row) < len(names) else ""
                    short += [cut] if cut else []
                begin = rows.line_num + 1
        except csv.Error:  # more characters than csv takes
            way_out = f"has a cell of more than {csv.field_size_limit()} characters; is its quote closed?"
            raise DataError(f"{path}: line {begin} {way_out}") from None
    if cut:
        raise DataError(f"{path}: {cut}, and is the last; is the file cut off?")
    notes = []
    if short:
        notes.append(f"{short[0]}, the first of {len(short)} lines with fewer; their other cells count as missing")
    if spans:
        longest, where = max(spans, key=lambda each: each[0])
        notes.append(
            f"rows with a quoted cell that spans lines: {len(spans)}; line {where} begins one of {longest}. If that is "
            "not meant, a quote is not closed"
        )
    for note in notes:
        warnings.warn(f"{path}: {note}", DoubtfulWarning, stacklevel=caller_level())


def _lines(file: Iterable[str]) -> Iterator[str]:
    """The lines of a CSV file, none of which has a character 0; then one more, which is nothing else."""
    yield from file
    yield _END


def _by_pandas(
    path: Path,
    content: bytes,
    separator: str,
    names: list[str],
    texts: set[str],
    words: Mapping[str, set[str]],
    only: list[str] | None = None,
) -> Any:
    """The table; the columns ``texts`` as texts, in which an empty cell is missing; the ``words`` of others, too."""
    import pandas

    exactly: dict[str, Any] = {} if pandas.__version__ >= "3" else {"float_precision": "round_trip"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # rows with more cells than names
            warnings.simplefilter("ignore", pandas.errors.DtypeWarning)
            return pandas.read_csv(
                io.BytesIO(content),
                sep=separator,
                encoding="utf-8",
                header=0,
                names=names,
                usecols=only,
                index_col=False,
                skipinitialspace=True,
                dtype=dict.fromkeys(texts, str),
                keep_default_na=False,
                na_values={name: ["", *words.get(name, ())] for name in names} if words else [""],
                **exactly,
            )
    except (ValueError, OSError, OverflowError, MemoryError, Warning) as error:
        text = str(error).removeprefix("Error tokenizing data. C error: ")
        raise DataError(f"{path}: cannot be read as CSV ({shown(text)}); separator {separator!r}") from None


# ---- numbers


class _Numbers(NamedTuple):
    """The numbers of a column of texts.

    Attributes:
        commas, points: whether a number has decimals after a comma, after a point, for certain.
        unsure: a number such as 1,234.
        marked: whether there are commas, or several points in a number.
    """

    commas: bool
    points: bool
    unsure: str | None
    marked: bool


def _numbers_of(texts: list[str]) -> _Numbers | None:
    """How the numbers of a column are written, if at least half of its texts are numbers with such marks."""
    commas = [text for text in texts if "," in text]
    dots = [text for text in texts if text.count(".") > 1]
    some = texts[:: -(-len(texts) // _SAMPLE) or 1]
    if 2 * sum(map(_is_number, some)) < len(some) or not (commas or dots or any("." in text for text in texts)):
        return None
    commas, points = ([text for text in commas if kind.fullmatch(text.strip())] for kind in (_COMMA, _POINT))
    both = {*commas} & {*points}
    has_commas = len(commas) > len(both) or any(_DOTS.fullmatch(text.strip()) for text in dots)
    decimals = any(_DECIMAL.fullmatch(text.strip()) and not _DOTS.fullmatch(text.strip()) for text in texts)
    return _Numbers(
        has_commas, len(points) > len(both) or decimals, next(iter(sorted(both)), None), bool(commas or points or dots)
    )


def _is_number(text: str) -> bool:
    text = text.strip()
    return any(kind.fullmatch(text) for kind in (_COMMA, _POINT, _DOTS)) or not np.isnan(number(text))


def read_numbers(path: Path, columns: dict[str, Any], but: set[str], decimal: str | None) -> str:
    """Write the numbers of all columns ``but`` some with a decimal point and without marks of thousands.

    A number such as 1,5 or 1.234,5 tells what its marks are, one such as 1,234 does not: others of its column do, then
    those of the file, then the option.

    Returns:
        What decimals are written with in this file.
    """
    found: dict[str, _Numbers] = {}

    def look(name: str, texts: list[str]) -> None:
        if (numbers := _numbers_of(texts)) is not None:
            found[name] = numbers

    for name, column in columns.items():
        if name not in but and column.dtype.kind not in "iuf":
            columns[name] = _few_texts(column)
            look(name, _different(columns[name]))
    if decimal != "," and not any(each.marked for each in found.values()):
        return decimal or "."
    for name, column in columns.items():
        if name not in but and column.dtype.kind == "f":
            values = column.dropna().drop_duplicates()
            look(name, [text_of(value) for value in values[values % 1 != 0][:_SAMPLE]])
    votes = {"," for each in found.values() if each.commas} | {"." for each in found.values() if each.points}
    vote = decimal or (votes.pop() if len(votes) == 1 else None)
    for name, numbers in found.items():
        own = {mark for mark, has in ((",", numbers.commas), (".", numbers.points)) if has}
        marks = decimal or (own.pop() if len(own) == 1 else None) or vote
        if numbers.unsure is not None and marks is None:
            cell = shown(numbers.unsure)
            what = f"column {shown(name)} has {cell}, which is {numbers.unsure.replace(',', '.')} or "
            way_out = 'give decimal="," (--decimal ,) or decimal="." (--decimal .)'
            raise DataError(f"{path}: {what}{numbers.unsure.replace(',', '')}; {way_out}")
        dotted = marks == "," and not numbers.points  # 1.234 is above 1000
        column = columns[name]
        if column.dtype.kind == "f":
            columns[name] = column.where(column % 1 == 0, (column * 1000).round()) if dotted else column
            continue
        if not (numbers.marked or dotted):
            continue
        texts = _different(column)
        changed = {text: _with_point(text.strip(), marks, dotted, decimal) for text in texts}
        if any(text.strip() != new for text, new in changed.items()):
            columns[name] = column.astype(object).map(changed)
    return vote or "."


def _with_point(text: str, marks: str | None, dotted: bool, decimal: str | None) -> str:
    """A number in the notation of Python; other texts as they are."""
    comma, point = _COMMA.fullmatch(text), _POINT.fullmatch(text)
    if comma and (marks == "," if point else decimal != "."):
        return text.replace(".", "").replace(",", ".")
    if point and (marks == "." if comma else decimal != ","):
        return text.replace(",", "")
    if _DOTS.fullmatch(text) and (dotted or text.count(".") > 1):
        return text.replace(".", "")
    return text


def _different(column: Any) -> list[str]:
    """The different texts of a column."""
    values = column.cat.categories if hasattr(column, "cat") else column.dropna().unique()
    return list(values)


def _few_texts(column: Any) -> Any:
    """A column of texts, with each text there once if there are few of them."""
    import pandas

    codes, values = pandas.factorize(column)
    if len(values) > _SAMPLE:
        return column
    return pandas.Series(pandas.Categorical.from_codes(codes, list(values)))


def stored(column: Any) -> Any:
    """A column that takes little memory: each text once, or numbers, where these say how they are written."""
    import pandas

    if column.dtype.kind in "iuf" or column.dtype.name == "numbers and words":
        return column
    column = column if hasattr(column, "cat") else _few_texts(column)
    if hasattr(column, "cat"):
        return column
    codes, values = pandas.factorize(column)
    numbers = plain_numbers(list(values))
    if numbers is None:
        few = len(values) <= len(codes) // 4
        return pandas.Series(pandas.Categorical.from_codes(codes, list(values))) if few else column
    return pandas.Series(numbers[codes] if (codes >= 0).all() else np.append(numbers, np.nan)[codes])
