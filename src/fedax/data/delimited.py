"""Reads CSV files. How each is written is found: its encoding, what separates cells, and how numbers are written."""

import codecs
import csv
import gzip
import io
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedax.data.cells import WIDE, column_name, number, shown, text_of
from fedax.data.formats import reading, unpacked
from fedax.errors import ConfigError, DataError, DoubtfulWarning, caller_level
from fedax.files import regular

_NO_TEXT = {  # how files begin that are no text
    b"PK\x03\x04": "it is a ZIP archive or an Excel workbook; unpack it, or name it .xlsx",
    b"\xd0\xcf\x11\xe0": "it is an old Excel workbook; save it as .xlsx",
    b"PAR1": "it is a Parquet file; read it as such",
}
_BEGIN = 65_536  # characters of a file that tell what separates its cells; the names of its columns are in them
_BLOCK = 1 << 18  # bytes that are decoded together
_END = "\0"
_SEPARATORS = ("\t", ";", "|", ",")  # of two that fit, the first: commas may be decimal
_SAMPLE = 1000  # numbers of a column that tell whether their points are decimal; the most that may be categories

_COMMA = re.compile(r"[+-]?(?:\d+|[1-9]\d{0,2}(?:\.\d{3})+),\d+(?:[eE][+-]?\d+)?")  # 1,5 and 1.234,5 and 1,5e-07
_POINT = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")  # 1,234 and 1,234.5
_DOTS = re.compile(r"[+-]?[1-9]\d{0,2}(?:\.\d{3})+")  # 1.234, a number below 2 or above 1000
_DECIMAL = re.compile(r"[+-]?\d*\.\d+(?:[eE][+-]?\d+)?")
# As float64 has them: whole numbers without a detour; numbers that are written in the one way that Python writes them;
# and those that say their value but not how they are written, such as 1.50, of which none is a code, such as 007.
_WHOLE = r"^(?:0|-?[1-9]\d{0,17})$"
_CANONICAL = r"^(?:0|-?[1-9]\d{0,14}|-?(?:0|[1-9]\d*)\.\d*[1-9])$"
_PLAIN = r"^(?:0|-?[1-9]\d{0,14}|-?(?:(?:0|[1-9]\d*)\.\d*|\.\d+)(?:[eE][+-]\d+)?|-?[1-9]\d*[eE][+-]\d+)$"


def read_csv(
    path: Path,
    decimal: str | None = None,
    encoding: str | None = None,
    as_written: Callable[[str], bool] = lambda name: False,
    drop: Sequence[str] = (),
) -> Any:
    """A CSV file as a table of pandas, with the names of its first line.

    A column is stored as its texts, each of them once; or as numbers, where there are more than 1000 of them (so that
    they are no categories), or where they say how they are written.

    Args:
        path: the file, which gzip may have packed.
        decimal, encoding: as of :func:`fedax.data.from_csv`.
        as_written: whether the cells of a column stay as they are written, such as 007, by its name.
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
    if for_excel := re.match(rb'"?sep=."?(?=\r?\n)', content):  # what separates cells is found here
        content = content[for_excel.end() :]
    names, separator, begin = _header(path, content)
    rows = _parsed(content, begin, names, separator)
    if rows is None:
        rows = _checked(path, content, names, separator)
    del content
    if not rows.num_rows:
        raise DataError(f"{path}: it has no rows below the names of columns; leave it out")
    exact = {*filter(as_written, names)}
    rows, left_out = _named(path, rows)
    names = rows.column_names
    columns = {name: rows[name].to_pandas() if name in exact else stored(rows[name]) for name in names}
    del rows
    vote = read_numbers(path, columns, exact.union(map(column_name, drop)), decimal)
    import pandas
    import pyarrow

    for name in names:
        if name not in exact and columns[name].dtype == object:
            columns[name] = stored(pyarrow.array(columns[name], pyarrow.string(), from_pandas=True))
    read = pandas.DataFrame(columns)
    usual = {"separated by {!r}": ",", "decimals with {}": "'.'", "text in {}": "UTF-8"}
    ways = zip(usual.items(), (separator, vote, found), strict=True)
    read.attrs["written"] = ", ".join([*(way.format(this) for (way, other), this in ways if this != other), *left_out])
    return read


# ---- from bytes to text in UTF-8


def _content(path: Path) -> bytes:
    stored = regular(path)
    if not stored:
        raise DataError(f"{path}: the file is empty; leave it out")
    with reading(path, "a CSV file"):
        content = path.read_bytes()
        if content.startswith(b"\x1f\x8b"):
            with gzip.open(io.BytesIO(content)) as packed:
                content = unpacked(packed, path, stored)
    if kind := next((kind for bytes_, kind in _NO_TEXT.items() if content.startswith(bytes_)), None):
        raise DataError(f"{path}: {kind}")
    return content


def _utf8(path: Path, content: bytes, encoding: str | None) -> tuple[bytes, str]:
    """The text in UTF-8, and the encoding that it had: a given one, or that of its mark; else UTF-8, or cp1252."""
    ends, marked = b"\n" in content, content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    known = encoding or ("utf-16" if marked else "utf-8" if _is_utf8(content) else "cp1252")
    try:
        if codecs.lookup(known).name in ("utf-8", "utf-8-sig"):
            if not _is_utf8(content):
                content.decode()
        else:
            content = content.decode(known).encode()
    except UnicodeDecodeError as error:
        what = f"not text in {known}" if encoding is not None else "text neither in UTF-8 nor in cp1252"
        byte = f"byte {error.object[error.start]:#04x}"
        raise DataError(f"{path}: {what} ({byte}); try encoding='latin-1', --encoding latin-1") from None
    except (LookupError, ValueError):  # also of one that is no encoding of texts, or none for files
        raise ConfigError("encoding", encoding, 'there is none of this name; give "utf-8" or "latin-1"') from None
    if ends and b"\n" not in content:
        raise DataError(f"{path}: not text in {known}, where it is one line; leave encoding out to have it found")
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
    if len(row) > WIDE or (not whole and (end >= len(lines) or "\n" not in start)):
        raise DataError(f"{path}: its first line is too long for the names of columns; is it a CSV file?")
    if row and row[-1].endswith(_END):
        raise DataError(f"{path}: line 1: a quote is not closed, and its cell runs to the end of the file; close it")
    return names_of(path, row), separator, len((start[:first] + "".join(lines[:end])).encode())


def names_of(path: Path, row: Sequence[str]) -> list[str]:
    """The names of columns, from the cells of the first row; empty where there is none: see :func:`unnamed`."""
    names = [column_name(" ".join(name.split())) for name in row]
    if twice := next((name for k, name in enumerate(names) if name and name in names[:k]), None):
        raise DataError(f"{path}: two columns are called {shown(twice)}; the first line has to name each column")
    return names


def unnamed(path: Path, at: int, cells: Sequence[str | None]) -> str:
    """How a column without a name is left out, the index that pandas writes, and one without cells.

    Args:
        path: its file, for errors.
        at: which column it is, from 0.
        cells: [n] its texts.

    Raises:
        DataError: it has other cells.

    Example:
        >>> unnamed(Path("a.csv"), 0, ["0", "1"]), unnamed(Path("a.csv"), 4, [None, ""])
        ('having an index in column 1, which is left out', 'having an empty column 5, which is left out')
    """
    if not any(cells):
        return f"having an empty column {at + 1}, which is left out"
    if at == 0 and all(cell == str(k) for k, cell in enumerate(cells)):
        return "having an index in column 1, which is left out"
    hint = "the first line has to name each column"
    index = "; pandas leaves its index out by to_csv(index=False)" if at == 0 else ""
    raise DataError(f"{path}: column {at + 1} has cells and no name; {hint}{index}")


def _named(path: Path, rows: Any) -> tuple[Any, list[str]]:
    """The columns that have a name, and how others are left out."""
    kept, left_out = [], []
    for k, name in enumerate(rows.column_names):
        if name:
            kept.append(k)
        else:
            left_out.append(unnamed(path, k, rows.column(k).to_pylist()))
    if not kept:
        raise DataError(f"{path}: no column has a name; the first line has to name each column")
    return rows.select(kept), left_out


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


def _parsed(content: bytes, begin: int, names: list[str], separator: str) -> Any:
    """The rows as a table of texts of Arrow; ``None`` where a line has not one cell for each column, or is odd."""
    import pyarrow
    from pyarrow import compute
    from pyarrow import csv as parser

    head, lone = content[:begin].strip(b"\r\n"), content.count(b"\r") != content.count(b"\r\n")
    if len(names) == 1 or lone or begin == len(content) or content.find(b"\n" + head, begin - 1) >= 0:
        return None
    quotes, mark = b'"' in content, re.escape(separator).encode()
    if quotes and b'"' in re.sub(b'(?<=[%b\n])"(?:[^"]|"")*"(?=[%b\r\n])' % (mark, mark), b"", content[begin - 1 :]):
        return None  # a quote in a cell, or one that is not closed
    try:
        table = parser.read_csv(
            pyarrow.BufferReader(pyarrow.py_buffer(memoryview(content)[begin:])),
            parser.ReadOptions(column_names=names),
            parser.ParseOptions(delimiter=separator, newlines_in_values=quotes),
            parser.ConvertOptions(
                check_utf8=False,
                column_types=dict.fromkeys(names, pyarrow.string()),
                null_values=[""],
                strings_can_be_null=True,
            ),
        )
    except pyarrow.ArrowInvalid:
        return None
    longest = max(compute.max(compute.binary_length(column)).as_py() or 0 for column in table.columns)
    if table.num_rows != content.count(b"\n", begin) or longest > csv.field_size_limit():  # a quote is not closed?
        return None
    spaces = f"{separator} ".encode() in content or b"\n " in content
    return table if not spaces else pyarrow.table([_trimmed(column) for column in table.columns], names)


def _trimmed(column: Any) -> Any:
    """Texts of Arrow without spaces before them; of nothing else is missing."""
    from pyarrow import compute

    texts = compute.utf8_ltrim(column, " ")
    return compute.if_else(compute.equal(texts, ""), None, texts)


def _checked(path: Path, content: bytes, names: list[str], separator: str) -> Any:
    """As :func:`_parsed`, row by row: refuses odd lines, and warns of cells that span lines and of short lines."""
    import pyarrow

    table: list[list[str]] = []
    least = max((k + 1 for k, name in enumerate(names) if name), default=1)  # cells of a line
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
                    header, cut = False, sizes if len(row) < least else ""
                    short += [cut] if cut else []
                    table.append(row[: len(names)] + [""] * (len(names) - len(row)))
                begin = rows.line_num + 1
        except csv.Error:  # more characters than csv takes
            hint = f"has a cell of more than {csv.field_size_limit()} characters; is its quote closed?"
            raise DataError(f"{path}: line {begin} {hint}") from None
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
    del table[:1]  # the names, if the file has any
    columns = zip(*table, strict=True) if table else [()] * len(names)
    return pyarrow.table([pyarrow.array([cell or None for cell in each], pyarrow.string()) for each in columns], names)


def _lines(file: Iterable[str]) -> Iterator[str]:
    """The lines of a CSV file, none of which has a character 0; then one more, which is nothing else."""
    yield from file
    yield _END


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
        What decimals are written with in this file, as words.
    """
    found: dict[str, _Numbers] = {}

    def look(name: str, texts: list[str]) -> None:
        if (numbers := _numbers_of(texts)) is not None:
            found[name] = numbers

    for name, column in columns.items():
        if name not in but and _floats(column) is None:
            look(name, _different(column))
    if decimal != "," and not any(each.marked for each in found.values()):
        return repr(decimal or ".")
    for name, column in columns.items():
        if name not in but and (numbers := _floats(column)) is not None:
            values = np.unique(numbers[numbers % 1 > 0])
            look(name, [text_of(value) for value in values[:_SAMPLE]])
    votes = {"," for each in found.values() if each.commas} | {"." for each in found.values() if each.points}
    vote = decimal or (next(iter(votes)) if len(votes) == 1 else None)
    for name, numbers in found.items():
        own = {mark for mark, has in ((",", numbers.commas), (".", numbers.points)) if has}
        marks = decimal or (own.pop() if len(own) == 1 else None) or vote
        if numbers.unsure is not None and marks is None:
            cell = shown(numbers.unsure)
            what = f"column {shown(name)} has {cell}, which is {numbers.unsure.replace(',', '.')} or "
            hint = 'give decimal="," (--decimal ,) or decimal="." (--decimal .)'
            raise DataError(f"{path}: {what}{numbers.unsure.replace(',', '')}; {hint}")
        dotted = marks == "," and not numbers.points  # 1.234 is above 1000
        column = columns[name]
        if (values := _floats(column)) is not None and dotted:
            columns[name] = _with_floats(column, np.where(values % 1 > 0, (1000 * values).round(), values))
        if values is not None or not (numbers.marked or dotted):
            continue
        texts = _different(column)
        changed = {text: _with_point(text.strip(), marks, dotted, decimal) for text in texts}
        if any(text.strip() != new for text, new in changed.items()):
            columns[name] = column.astype(object).map(changed)
    return " and ".join(map(repr, sorted(votes if len(votes) > 1 and not decimal else {vote or "."})))


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


def _floats(column: Any) -> Any:
    """The numbers [n] of a column that holds numbers as such; of texts ``None``."""
    if column.dtype.name == "numbers and words":
        return column.array.numbers
    return column.to_numpy() if column.dtype.kind in "iuf" else None


def _with_floats(column: Any, numbers: np.ndarray) -> Any:
    """The column with other numbers [n]."""
    mixed = column.array if column.dtype.name == "numbers and words" else None
    return type(column)(numbers if mixed is None else type(mixed)(numbers, mixed.codes, mixed.words))


def stored(texts: Any) -> Any:
    """A column of pandas that takes little memory, from texts of Arrow: numbers, where these say how they are written,
    or are more than 1000, so that they are no categories; numbers and a few words; or each text once."""
    import pandas
    from pyarrow import compute

    coded = getattr(texts, "combine_chunks", lambda: texts)().dictionary_encode()
    different, codes = coded.dictionary, coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    many, gaps = len(different) > _SAMPLE, bool(texts.null_count)
    if not gaps and compute.all(compute.match_substring_regex(different, _WHOLE)).as_py():
        return pandas.Series(different.cast("int64").to_numpy()[codes])
    plain = compute.match_substring_regex(different, _PLAIN if many else _CANONICAL)
    numbers = compute.if_else(plain, different, None).cast("float64").to_numpy(zero_copy_only=False)
    is_word = ~plain.to_numpy(zero_copy_only=False) | np.isinf(numbers)
    words = different.filter(is_word).to_pylist()
    if not words:
        return pandas.Series(np.append(numbers, np.nan)[codes])
    if many and len(words) <= _SAMPLE and 2 * len(words) < len(different) and not any(map(_is_number, words)):
        from fedax.data.mixed import NumbersAndWords

        word = np.where(is_word, np.cumsum(is_word) - 1, -1)
        return pandas.Series(NumbersAndWords(np.append(numbers, np.nan)[codes], np.append(word, -1)[codes], words))
    if len(different) <= max(_SAMPLE, len(codes) // 4):
        return pandas.Series(pandas.Categorical.from_codes(codes, different.to_pylist()))
    return texts.to_pandas()
