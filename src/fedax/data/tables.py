"""Readers of clients' own tables: CSV, Parquet, Arrow, and tables in memory.

Libraries do the reading. Files are not trusted: the sizes that they declare are compared with their length before
memory is allocated.
"""

import csv
import functools
import glob
import importlib
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedax.data.cells import CellError, Cells, as_pandas, cells, few, series, shown
from fedax.data.federated import FederatedData
from fedax.data.formats import need, parse_json, reading, room
from fedax.data.overview import overview
from fedax.data.pictures import decoded, stacked
from fedax.data.summaries import Counts, class_names, fit, kinds_of, plan, summarize
from fedax.data.transform import Label, Transform
from fedax.errors import ConfigError, DataError, DoubtfulWarning, caller_level, complete
from fedax.files import name_of, regular

Task = Literal["classification", "regression"] | None
Scale = Literal["standard", "none"] | None
Files = str | os.PathLike | Sequence[str | os.PathLike]

_END = "\0"
_NO_TEXT = {  # how files begin that are no text
    b"\x1f\x8b": "it is packed by gzip; unpack it first",
    b"PK\x03\x04": "it is a ZIP archive or an Excel workbook; unpack it, or save the sheet as CSV",
    b"\xd0\xcf\x11\xe0": "it is an Excel workbook; save the sheet as CSV",
    b"PAR1": "it is a Parquet file; read it as such",
}
_FIRST_LINE = 65_536  # the most characters of a file's first line


@complete
def from_frames(
    frames: Mapping[str, Any],
    label: str | None = None,
    columns: Mapping[str, str] | None = None,
    task: Task = None,
    scale: Scale = "standard",
    max_categories: int = 50,
    drop_missing_labels: bool = False,
    transform: Transform | str | os.PathLike | None = None,
    drop: Sequence[str] = (),
) -> FederatedData:
    """Clients' tables as arrays, with a transform that is fitted as a federation would, from summaries.

    Args:
        frames: client's name -> its table, of pandas or Polars.
        label: the column to predict.
        columns, task, scale, max_categories: what columns are; see :func:`fedax.data.plan`.
        drop_missing_labels: whether rows without a label are left out, in place of an error.
        transform: one that was fitted before, or its file; it has the label and all options with it.
        drop: columns that are left out, such as ``["patient"]``.

    Returns:
        Examples ``x`` float32 [n, features] and ``y``, int32 classes or float32, with the clients' names, the
        transform, and the overview of the columns, which says what to look at; none where a transform is given.

    Raises:
        ConfigError: an option that cannot be used.
        DataError: tables that cannot be used; the message has client, column and row.

    Example:
        >>> import pandas
        >>> north = pandas.DataFrame({"age": [40, 60], "ward": ["A", "A"], "ill": ["no", "yes"]})
        >>> south = pandas.DataFrame({"age": [80, 20], "ward": ["B", "A"], "ill": ["no", "no"]})
        >>> data = from_frames({"north": north, "south": south}, label="ill")
        >>> data.names, data.transform.features, data.transform.classes
        (('north', 'south'), ('age', 'ward = A', 'ward = B'), ('no', 'yes'))
    """
    if not isinstance(frames, Mapping) or not frames:
        raise DataError(f"frames: {type(frames).__name__}; give client's name -> its table, for one client at least")
    columns_seen = None
    tables = {str(name): _naming_client(str(name), as_pandas, table) for name, table in frames.items()}
    if transform is not None:
        given = {"label": label, "columns": columns or None, "task": task, "drop": drop or None}
        if conflicting := {name: value for name, value in given.items() if value is not None}:
            name, value = next(iter(conflicting.items()))
            raise ConfigError(name, value, "the transform that is given has it already; leave it out")
        fitted = transform if isinstance(transform, Transform) else Transform.load(transform)
        target = fitted.label.name if fitted.label else None
    elif label is None:
        raise ConfigError("label", None, "this is missing; name the column to predict")
    else:
        fitted, target = None, label
    for name, table in tables.items():
        if not len(table):
            raise DataError(f"{name}: its table has no rows; leave it out")
        if target is not None and (fitted is None or target in table.columns):
            tables[name] = with_labels(name, table, target, drop_missing_labels)
    if fitted is None:
        first = {name: _naming_client(name, summarize, table) for name, table in tables.items()}
        column_plan = plan(first, label, columns, task, scale, max_categories, drop)
        second = {name: _naming_client(name, summarize, table, column_plan) for name, table in tables.items()}
        fitted, columns_seen = fit(column_plan, second), overview(column_plan, first, second)
    arrays = {name: _naming_client(name, fitted, table) for name, table in tables.items()}
    return FederatedData.from_clients(arrays, transform=fitted, overview=columns_seen)


def _naming_client(client: str, call: Callable[..., Any], *args: Any) -> Any:
    """``call(*args)``; an error names the client."""
    try:
        return call(*args)
    except CellError as error:
        raise CellError(f"{client}: {error.outline}", error.detail) from None
    except DataError as error:
        raise DataError(f"{client}: {error}") from None


def _cells_of(table: Any, name: str, field: str) -> Cells:
    return cells(series(table, name, field), name)


def with_labels(client: str, table: Any, label: str, drop: bool) -> Any:
    """The rows that have a label; rows without one are an error unless they are to be dropped."""
    missing = _naming_client(client, _cells_of, table, label, "label").missing
    if not missing.any():
        return table
    if missing.all():
        raise DataError(f"{client}: label {shown(label)} is missing in all {len(table)} rows; leave this client out")
    if not drop:
        row = int(np.flatnonzero(missing)[0])
        where = f"label {shown(label)} is missing in {missing.sum()} of {len(table)} rows, first in row {row}"
        raise DataError(f"{client}: {where}; drop_missing_labels=True leaves them out")
    return table[~missing].reset_index(drop=True)


@complete
def from_csv(
    files: Files,
    label: str | None = None,
    client: str | None = None,
    columns: Mapping[str, str] | None = None,
    task: Task = None,
    scale: Scale = "standard",
    max_categories: int = 50,
    drop_missing_labels: bool = False,
    decimal: str = ".",
    encoding: str = "utf-8",
    transform: Transform | str | os.PathLike | None = None,
    drop: Sequence[str] = (),
) -> FederatedData:
    """Clients' CSV files: one client a file, named by it, or by a column that says whose each row is.

    Columns are separated by commas, semicolons or tabs, whichever the first line has most of; it has the names.

    Args:
        files: a pattern such as ``"hospitals/*.csv"``, a folder with ``*.csv``, a file, or a list of files.
        label: the column to predict.
        client: the column that says whose each row is. ``None``: each file is a client, called by its name.
        columns: column -> ``"number"``, ``"category"``, ``"date"`` or ``"drop"``, where the values mislead.
        task: ``"classification"`` or ``"regression"``. Default: by the label.
        scale, max_categories: as of :func:`fedax.data.plan`.
        drop_missing_labels: whether rows without a label are left out, in place of an error.
        decimal: what decimals are written with, ``"."`` or ``","``.
        encoding: of the files, such as ``"latin-1"``; a byte-order mark of UTF-8 is understood.
        transform: one that was fitted before, or its file: new rows become the same numbers.
        drop: columns that are left out.

    Returns:
        As of :func:`fedax.data.from_frames`.

    Raises:
        ConfigError: an option that cannot be used; no file fits.
        DataError: a file that cannot be read or used; the message has file, column and row.

    Example:
        >>> import pathlib, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> for name, rows in {"north": "40,A,no\\n60,A,yes", "south": "80,B,no\\n,A,no"}.items():
        ...     _ = pathlib.Path(folder.name, f"{name}.csv").write_text(f"age,ward,ill\\n{rows}\\n")
        >>> data = from_csv(folder.name, label="ill")
        >>> data, data.transform.features
        (FederatedData(2 clients, 4 examples, 2 to 2 a client), ('age', 'age is missing', 'ward = A', 'ward = B'))
        >>> folder.cleanup()
    """
    if decimal not in (".", ","):
        raise ConfigError("decimal", decimal, 'give "." or ","')
    frames = _by_client(files, "csv", client, lambda path: read_csv(path, decimal, encoding))
    return from_frames(frames, label, columns, task, scale, max_categories, drop_missing_labels, transform, drop)


def read_table(
    path: Path, decimal: str = ".", encoding: str = "utf-8", texts: Sequence[str] = (), drop: Sequence[str] = ()
) -> Any:
    """A .csv or .parquet file as a table of pandas, without the columns ``drop``; the rest as of :func:`read_csv`.

    Raises:
        DataError: as of :func:`read_csv`; a column of ``drop`` is not there.
    """
    if path.suffix == ".parquet":
        table = _arrow_to_pandas(_read_parquet(path), path, kinds_of(None, drop), None)
    else:
        table = read_csv(path, decimal, encoding, texts)
    for name in drop:
        series(table, name, "drop")
    return table.drop(columns=list(drop))


def read_csv(path: Path, decimal: str = ".", encoding: str = "utf-8", texts: Sequence[str] = ()) -> Any:
    """A CSV file as a table of pandas, with the names of its first line.

    Args:
        path: the file.
        decimal, encoding: as of :func:`from_csv`.
        texts: columns whose cells stay as they are written, such as 007.

    Raises:
        ConfigError: there is no such encoding.
        DataError: another kind of file; no rows; a line with more cells than names, or a last one with fewer; a quote
            that is not closed; a byte 0; the first line once more.

    Warns:
        DoubtfulWarning: a quoted cell spans lines, as it does where a closing quote is missing; lines have fewer cells.
    """
    import pandas

    if not regular(path):
        raise DataError(f"{path}: the file is empty; leave it out")
    try:
        with path.open("rb") as raw:
            start = raw.read(4)
        if kind := next((kind for bytes_, kind in _NO_TEXT.items() if start.startswith(bytes_)), None):
            raise DataError(f"{path}: {kind}")
        if start[:2] in (b"\xff\xfe", b"\xfe\xff") and "16" not in encoding:
            raise DataError(f"{path}: it is text in UTF-16; give encoding='utf-16', --encoding utf-16")
        encoding = "utf-8-sig" if encoding.lower().replace("_", "-") in ("utf-8", "utf8") else encoding
        with path.open(encoding=encoding, newline="") as file:
            lines = iter(lambda: file.readline(_FIRST_LINE), "")
            head = next((line for line in lines if line.strip()), "")
            names, separator = _header(head, decimal)
    except LookupError:
        raise ConfigError("encoding", encoding, 'there is none of this name; give "utf-8" or "latin-1"') from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: {_not_text(error, encoding)}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except csv.Error as error:
        raise DataError(f"{path}: its first line is not that of a CSV file ({error})") from None
    if len(head) >= _FIRST_LINE or len(names) > 10_000:
        raise DataError(f"{path}: its first line is too long for the names of columns; is it a CSV file?")
    if "" in names or len({*names}) < len(names):
        twice = next((name for k, name in enumerate(names) if name in names[:k]), "")
        what = f"two columns are called {shown(twice)}" if twice else f"column {names.index('') + 1} has no name"
        raise DataError(f"{path}: {what}; the first line has to name each column")
    _check_lines(path, encoding, names, separator)
    exact = [name for name in texts if name in names]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # rows with more cells than names
            read = functools.partial(
                pandas.read_csv,
                path,
                sep=separator,
                decimal=decimal,
                encoding=encoding,
                header=0,
                names=names,
                index_col=False,
                skipinitialspace=True,
                low_memory=False,
                compression=None,
            )
            table = read(dtype=dict.fromkeys(exact, str))
            infinite = [name for name in names if table[name].dtype.kind == "f" and np.isinf(table[name]).any()]
            if infinite:  # pandas takes 1e400 for an infinity, and it has to be refused
                table = read(dtype=dict.fromkeys([*exact, *infinite], str))
    except (ValueError, OSError, OverflowError, MemoryError, Warning) as error:
        text = str(error).removeprefix("Error tokenizing data. C error: ")
        raise DataError(f"{path}: cannot be read as CSV ({shown(text)}); separator {separator!r}") from None
    if not len(table):
        raise DataError(f"{path}: it has no rows below the names of columns; leave it out")
    if decimal == ",":
        return table.apply(_with_decimal_points)
    return table


def _check_lines(path: Path, encoding: str, names: Sequence[str], separator: str) -> None:
    """Refuse lines that pandas would take for the rest of a cell; warn of cells that span lines, and of short lines."""
    spans: list[tuple[int, int]] = []  # lines of a row, and its first
    short: list[str] = []
    with path.open(encoding=encoding, newline="") as file:
        rows = csv.reader(_lines(path, file), delimiter=separator, skipinitialspace=True)
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
                if header and span > 1:
                    raise DataError(f"{path}: {at}: the name of a column spans lines; write each name in one line")
                if len(row) > 1 or any(row):  # not an empty line
                    sizes = f"{at} has {len(row)} of {len(names)} cells"
                    if any(row[len(names) :]):
                        raise DataError(f"{path}: {sizes}; give each line as many as the first line has names")
                    if not header and [cell.strip() for cell in row[: len(names)]] == names:
                        raise DataError(f"{path}: {at} has the names of columns once more; leave it out")
                    header, cut = False, sizes if len(row) < len(names) else ""
                    short += [cut] if cut else []
                if span > 1:
                    spans.append((span, begin))
                begin = rows.line_num + 1
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: {_not_text(error, encoding)}") from None
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


def _lines(path: Path, file: Iterable[str]) -> Iterator[str]:
    """The lines of a CSV file, none of which has a character 0; then one more, which is nothing else."""
    for number, line in enumerate(file, 1):
        if _END in line:
            raise DataError(f"{path}: line {number} has a character 0; the file is damaged, or in another encoding")
        yield line
    yield _END


def _with_decimal_points(column: Any) -> Any:
    """A column of texts with a decimal point in its numbers: pandas leaves the comma if other cells are words."""
    if column.dtype.kind != "O":
        return column
    return column.str.replace(r"^\s*([+-]?\d+),(\d+)\s*$", r"\1.\2", regex=True)


def _header(line: str, decimal: str) -> tuple[list[str], str]:
    """The names of columns, and what separates them."""
    outside = re.sub(r'"[^"]*"', "", line)
    candidates = [each for each in (",", ";", "\t") if each != decimal]
    separator = max(candidates, key=outside.count)
    return [name.strip() for name in next(csv.reader([line], delimiter=separator, skipinitialspace=True))], separator


def _not_text(error: UnicodeDecodeError, encoding: str) -> str:
    encoding = encoding.removesuffix("-sig")
    return f"not text in {encoding} (byte {error.object[error.start]:#04x}); try encoding='latin-1', --encoding latin-1"


@complete
def from_parquet(
    files: Files,
    label: str | None = None,
    client: str | None = None,
    columns: Mapping[str, str] | None = None,
    task: Task = None,
    scale: Scale = "standard",
    max_categories: int = 50,
    drop_missing_labels: bool = False,
    size: Sequence[int] | None = None,
    transform: Transform | str | os.PathLike | None = None,
    drop: Sequence[str] = (),
) -> FederatedData:
    """Clients' Parquet files, read as :func:`fedax.data.from_csv` reads CSV files.

    Needs pyarrow: ``pip install 'fedax[parquet]'``. A column of pictures, as Hugging Face writes them, becomes ``x``
    uint8 [n, height, width, channels]; other columns but label and client are then left aside.

    Args:
        files, label, client, columns, task, scale, max_categories, drop_missing_labels, transform, drop:
            as of :func:`fedax.data.from_csv`.
        size: (height, width) that pictures get; default: that which all have.

    Raises:
        ConfigError, DataError: as of :func:`fedax.data.from_csv`.

    Example:
        >>> from_parquet("nothing/*.parquet", label="y")
        Traceback (most recent call last):
        fedax.errors.ConfigError: files = 'nothing/*.parquet': no file fits this pattern
    """
    chosen = kinds_of(columns, drop)
    frames = _by_client(
        files, "parquet", client, lambda path: _arrow_to_pandas(_read_parquet(path), path, chosen, size)
    )
    return _to_arrays(frames, label, columns, task, scale, max_categories, drop_missing_labels, transform, drop)


@complete
def from_arrow(
    folders: Files,
    label: str | None = None,
    client: str | None = None,
    columns: Mapping[str, str] | None = None,
    task: Task = None,
    scale: Scale = "standard",
    max_categories: int = 50,
    drop_missing_labels: bool = False,
    size: Sequence[int] | None = None,
    transform: Transform | str | os.PathLike | None = None,
    drop: Sequence[str] = (),
) -> FederatedData:
    """Arrow files as Hugging Face's ``save_to_disk`` and ``flwr-datasets create`` write them.

    Needs pyarrow: ``pip install 'fedax[parquet]'``. Nothing is fetched.

    Args:
        folders: one data set's folder, with ``*.arrow`` in it, and ``client`` the column that says whose each row is;
            or a folder of such folders, or a list of them, each of which is a client, called by its folder's name.
        label, client, columns, task, scale, max_categories, drop_missing_labels, size, transform, drop: as of
            :func:`fedax.data.from_parquet`.

    Raises:
        ConfigError, DataError: as of :func:`fedax.data.from_csv`.

    Example:
        >>> from_arrow("nothing", label="y")
        Traceback (most recent call last):
        fedax.errors.ConfigError: folders = 'nothing': there is no such folder
    """
    frames: dict[str, Any] = {}
    chosen = kinds_of(columns, drop)
    given = [folders] if isinstance(folders, str | os.PathLike) else list(folders)
    places = [Path(each) for each in given]
    for place, each in zip(places, given, strict=True):
        if not place.is_dir():
            raise ConfigError("folders", str(each), "there is no such folder")
    if len(places) == 1 and not list(places[0].glob("*.arrow")):
        places = sorted(
            (each for each in places[0].iterdir() if each.is_dir() and list(each.glob("*.arrow"))), key=_sort_key
        )
    if not places:
        raise ConfigError("folders", str(given[0]) if given else None, "no *.arrow is in it, nor in a folder below it")
    for place, name in zip(places, _names(places), strict=True):
        parts = [
            _arrow_to_pandas(_read_arrow(path), path, chosen, size)
            for path in sorted(place.glob("*.arrow"), key=_sort_key)
        ]
        if not parts:
            raise ConfigError("folders", str(place), "no *.arrow is in it")
        frames[name] = parts
    tables = _divided({name: _concatenated(name, parts) for name, parts in frames.items()}, client)
    return _to_arrays(tables, label, columns, task, scale, max_categories, drop_missing_labels, transform, drop)


def _to_arrays(frames: dict[str, Any], label: str | None, columns: Any, *rest: Any) -> FederatedData:
    """Arrays by :func:`from_frames`, or if a column holds pictures, the pictures and their labels."""
    first = next(iter(frames.values()))
    pictures = [
        name for name in first.columns if first[name].dtype.kind == "O" and isinstance(first[name].iat[0], np.ndarray)
    ]
    if not pictures:
        return from_frames(frames, label, columns, *rest)
    if len(pictures) > 1:
        raise DataError(f"columns {few(pictures)}: more than one holds pictures; drop all but one")
    if label is None:
        raise ConfigError("label", None, "this is missing; name the column to predict")
    x = stacked({name: list(series(frame, pictures[0])) for name, frame in frames.items()})
    labels = {name: cells(series(frame, label, "label"), label) for name, frame in frames.items()}
    for name, column in labels.items():
        if column.missing.any():
            raise DataError(f"{name}: label {shown(label)}, row {np.flatnonzero(column.missing)[0]} is missing")
    known = first[label].dtype.categories.tolist() if hasattr(first[label].dtype, "categories") else None
    classes = known or class_names(label, [Counts(dict.fromkeys(column.texts[0], 1)) for column in labels.values()])
    place = {text: k for k, text in enumerate(classes)}
    arrays = {}
    for name, (texts, codes) in ((name, column.texts) for name, column in labels.items()):
        if bad := [text for text in texts if text not in place]:
            raise DataError(f"{name}: label {shown(label)} is {shown(bad[0])}; the classes are {few(classes)}")
        arrays[name] = {"x": x[name], "y": np.array([place[text] for text in texts], np.int32)[codes]}
    return FederatedData.from_clients(arrays, transform=Transform((), Label(label, tuple(classes))))


# ---- files and clients


def _by_client(files: Files, ending: str, client: str | None, read: Callable[[Path], Any]) -> dict[str, Any]:
    """Client's name -> its table."""
    paths = _paths_of(files, ending)
    return _divided(dict(zip(_names(paths), map(read, paths), strict=True)), client)


def _paths_of(files: Files, ending: str) -> list[Path]:
    if isinstance(files, str | os.PathLike):
        text = os.fspath(files)
        place = Path(text)
        if place.is_dir():
            if paths := sorted(place.glob(f"*.{ending}"), key=_sort_key):
                return paths
            raise ConfigError("files", text, f"no *.{ending} is in this folder")
        if paths := [place] if place.exists() else sorted(map(Path, glob.glob(text, recursive=True)), key=_sort_key):
            return paths
        what = "no file fits this pattern" if glob.has_magic(text) else "there is no such file"
        raise ConfigError("files", text, what)
    if not isinstance(files, Sequence) or not files or not all(isinstance(each, str | os.PathLike) for each in files):
        raise ConfigError("files", files, 'give a pattern such as "hospitals/*.csv", a folder, or a list of files')
    return [Path(each) for each in files]


def _sort_key(path: Path) -> list[Any]:
    """Sorts client-2 before client-10, and files of one folder by what clients are called: without the ending."""
    return [by_value(str(path.parent)), by_value(path.stem), path.name]


def by_value(text: str) -> list[Any]:
    """By which names are sorted: numbers in them by their value.

    Example:
        >>> sorted(["client 10", "client 9", "client"], key=by_value)
        ['client', 'client 9', 'client 10']
    """
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]


def _names(paths: Sequence[Path]) -> list[str]:
    """The names of the files' clients: of the file, with its folder if two files have the same name."""
    return [name_of(name) for name in _unique(paths)]


def _unique(paths: Sequence[Path]) -> list[str]:
    stems = [path.stem if path.suffix else path.name for path in paths]
    if len({*stems}) == len(stems):
        return stems
    above = Path(os.path.commonpath([path.absolute().parent for path in paths]))
    names = [path.absolute().relative_to(above).with_suffix("").as_posix() for path in paths]
    if len({*names}) < len(names):
        twice = next(name for k, name in enumerate(names) if name in names[:k])
        raise ConfigError("files", twice, "this file is given twice, or with two endings; each is one client")
    if len({Path(name).name for name in names}) == 1 and all("/" in name for name in names):
        return [Path(name).parent.as_posix() for name in names]  # hospital-1/data.csv, hospital-2/data.csv
    return names


def _divided(tables: dict[str, Any], client: str | None) -> dict[str, Any]:
    """The tables divided into clients by the column ``client``, if there is one."""
    if client is None:
        return tables
    parts: dict[str, list[Any]] = {}
    for file, table in tables.items():
        texts, codes = _naming_client(file, _cells_of, table, client, "client").texts
        if (codes < 0).any():
            raise DataError(
                f"{file}: column {shown(client)}, row {np.flatnonzero(codes < 0)[0]} does not say whose it is"
            )
        rest = table.drop(columns=client)
        order = np.argsort(codes, kind="stable")
        for text, rows in zip(texts, np.split(order, np.cumsum(np.bincount(codes))[:-1]), strict=True):
            parts.setdefault(text, []).append(rest.iloc[rows].reset_index(drop=True))
    return {name: _concatenated(name, parts[name]) for name in sorted(parts, key=by_value)}


def _concatenated(name: str, parts: Sequence[Any]) -> Any:
    """The tables of one client as one table."""
    import pandas

    for part in parts[1:]:
        if {*part.columns} != {*parts[0].columns}:
            differ = {*part.columns} ^ {*parts[0].columns}
            raise DataError(f"{name}: its files have different columns ({few(sorted(differ))})")
    return parts[0] if len(parts) == 1 else pandas.concat(parts, ignore_index=True)


# ---- pyarrow


def _read_parquet(path: Path) -> Any:
    parquet = need("pyarrow.parquet", "parquet", "reading Parquet")
    stored = regular(path)
    limits = {"thrift_string_size_limit": 1 << 24, "thrift_container_size_limit": 1 << 20}
    with reading(path, "Parquet"):
        schema = parquet.read_schema(path)
        _check_columns(path, schema)
        texts = [field.name for field in schema if str(field.type) in ("string", "large_string", "string_view")]
        # As dictionaries, as in the file, so that a text that occurs a million times is in memory once.
        with parquet.ParquetFile(path, read_dictionary=texts, **limits) as file:
            about = file.metadata
            groups = [about.row_group(k) for k in range(about.num_row_groups)]  # their columns may make pyarrow abort
            rows, taken = (
                sum(max(getattr(each, what), 0) for each in groups) for what in ("num_rows", "total_byte_size")
            )
            if 8 * max(rows, about.num_rows) * about.num_columns > room(stored) or taken > room(stored):
                raise DataError(f"{path}: declares {about.num_rows} rows, too many for a file of {stored} bytes")
            if not any(_plain_kind(field.type) == "picture" for field in schema):
                table = file.read(use_threads=False)
                table.validate(full=True)
                return table
            return _table_of_batches(
                path, file.iter_batches(batch_size=16, use_threads=False), file.schema_arrow, stored
            )


def _table_of_batches(path: Path, batches: Iterable[Any], schema: Any, stored: int) -> Any:
    """A table of batches, whose total size is checked against the size of the file."""
    kept, taken = [], 0
    for batch in batches:
        batch.validate(full=True)
        taken += batch.nbytes
        if taken > room(stored):
            raise DataError(f"{path}: unpacks to more than {room(stored)} bytes, too many for its size")
        kept.append(batch)
    return importlib.import_module("pyarrow").Table.from_batches(kept, schema)


def _read_arrow(path: Path) -> Any:
    arrow = need("pyarrow", "parquet", "reading Arrow")
    stored = regular(path)
    opened, streamed = arrow.OSFile, arrow.ipc.open_stream
    with reading(path, "an Arrow stream"), opened(str(path)) as source, streamed(source) as stream:
        _check_columns(path, stream.schema)
        return _table_of_batches(path, stream, stream.schema, stored)


def _check_columns(path: Path, schema: Any) -> None:
    if not 0 < len(schema) <= 10_000 or len({*schema.names}) < len(schema):
        raise DataError(f"{path}: {len(schema)} columns; there have to be 1 to 10000, with different names")


def _arrow_to_pandas(table: Any, path: Path, columns: Any, size: Sequence[int] | None) -> Any:
    """An Arrow table as one of pandas, with pictures as arrays."""
    import pandas

    columns_read: dict[str, Any] = {}
    names = _class_labels(table.schema.metadata or {}, path)
    with reading(path, "a table"):
        for field in table.schema:
            if (columns or {}).get(field.name) == "drop":
                columns_read[field.name] = pandas.Series(np.full(table.num_rows, np.nan))
                continue
            column = table.column(field.name)
            kind = _plain_kind(field.type)
            if kind == "picture":
                cell = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
                content = cell.field("bytes").to_pylist()
                pictures = [
                    decoded(each, f"{path}: column {shown(field.name)}, row {k}", size)
                    for k, each in enumerate(content)
                ]
                values_read = np.empty(len(pictures), object)
                values_read[:] = pictures
                columns_read[field.name] = pandas.Series(values_read, dtype=object)
            elif kind is None:
                way_out = f"drop=[{shown(field.name)}] leaves it out"
                raise DataError(f"{path}: column {shown(field.name)} holds {shown(str(field.type))}; {way_out}")
            elif field.name in names:
                codes = column.cast("int64").to_pandas()
                numbers = codes.fillna(-1).to_numpy(np.int64)
                if len(numbers) and not -1 <= numbers.min() <= numbers.max() < len(names[field.name]):
                    raise DataError(f"{path}: column {shown(field.name)}: class {numbers.max()} has no name")
                values_read = pandas.Categorical.from_codes(numbers, categories=names[field.name])
                columns_read[field.name] = pandas.Series(values_read)
            else:
                values = column.to_pandas()
                columns_read[field.name] = values.astype(object) if hasattr(values.dtype, "categories") else values
    if not columns_read or not table.num_rows:
        raise DataError(f"{path}: it has no rows, or no columns; leave it out")
    return pandas.DataFrame(columns_read)


def _plain_kind(kind: Any) -> str | None:
    """``"plain"`` of numbers, truth values, texts and dates; ``"picture"``; ``None`` of anything else."""
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    plain = [types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null]
    plain += [types.is_string, types.is_large_string, types.is_string_view, types.is_date, types.is_timestamp]
    if any(test(kind) for test in plain):
        return "plain"
    if types.is_struct(kind) and {kind.field(i).name for i in range(kind.num_fields)} == {"bytes", "path"}:
        return "picture" if types.is_binary(kind.field("bytes").type) else None
    return None


def _class_labels(metadata: Mapping[bytes, bytes], path: Path) -> dict[str, list[str]]:
    """Column -> the names of its classes, where Hugging Face wrote them."""
    try:
        features = parse_json(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})
        names = {name: each["names"] for name, each in features.items() if each.get("_type") == "ClassLabel"}
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise DataError(f"{path}: what Hugging Face says of its columns cannot be read ({shown(str(error))})") from None
    for name, classes in names.items():
        good = isinstance(classes, list) and classes and all(isinstance(each, str) for each in classes)
        if not good or len({*classes}) < len(classes):
            raise DataError(f"{path}: column {shown(name)}: its classes have to be different texts")
    return names
