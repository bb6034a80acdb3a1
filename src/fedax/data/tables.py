"""Readers of clients' own tables: CSV, Parquet, Arrow, and tables in memory.

Libraries do the reading. Files are not trusted: the sizes that they declare are compared with their length before
memory is allocated.
"""

import dataclasses
import glob
import itertools
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedax.data import workbooks
from fedax.data.cells import (
    WIDE,
    Cells,
    alike_numbers,
    as_pandas,
    at_row,
    cells,
    column_name,
    few,
    naming,
    same_texts,
    series,
    shown,
)
from fedax.data.delimited import read_csv
from fedax.data.doubts import unread_of
from fedax.data.federated import FederatedData
from fedax.data.formats import parse_json, reading, room
from fedax.data.overview import Overview, overview
from fedax.data.pictures import decoded, stacked
from fedax.data.rows import notes_of_rows, one_client
from fedax.data.summaries import (
    Counts,
    Plan,
    Summary,
    UnreadLabel,
    check_coding,
    class_names,
    fit,
    kinds_of,
    plan,
    summarize,
    with_positive,
)
from fedax.data.transform import Label, Transform, labels_of
from fedax.errors import ConfigError, DataError, DoubtfulWarning, caller_level
from fedax.files import name_of, regular

_TEXTS = (".csv", ".tsv", ".txt")
TABLES = (*_TEXTS, *(f"{each}.gz" for each in _TEXTS), *workbooks.ENDINGS, ".parquet")  # of :func:`read_table`
# What may be tables; of .json are summaries, plans and transforms that fedax itself writes beside tables.
_LIKE_TABLES = (*TABLES, ".arrow", ".feather", ".jsonl", ".xls", ".sas7bdat", ".dta", ".csv.bz2", ".csv.xz", ".zip")
Task = Literal["classification", "regression"] | None
Scale = Literal["standard", "none"] | None
Target = Literal["log"] | None
Files = str | os.PathLike | Sequence[str | os.PathLike]


def from_frames(
    frames: Any,
    label: str | None = None,
    columns: Mapping[str, str] | None = None,
    task: Task = None,
    scale: Scale = "standard",
    max_categories: int = 50,
    drop_missing_labels: bool = False,
    transform: Transform | str | os.PathLike | None = None,
    drop: Sequence[str] = (),
    positive: str | float | None = None,
    client: str | None = None,
    target: Target = None,
    check_labels: bool = True,
) -> FederatedData:
    """Clients' tables as arrays, with a transform that is fitted as a federation would, from summaries.

    Args:
        frames: client's name -> its table: of pandas, Polars or pyarrow, or a data set of Hugging Face in memory. Or
            one table of all clients, and ``client`` the column that says whose each row is.
        label: the column to predict.
        columns, task, scale, max_categories, target: what columns are and what is learned: see
            :func:`fedax.data.plan`.
        drop_missing_labels: whether rows without a label are left out, in place of an error.
        transform: one that was fitted before, or its file; it has the label and all options with it.
        drop: columns that are left out, such as ``["patient"]``.
        positive: of two classes, the one that AUC, F1, precision and recall are about; ``y`` is 1 there. Default: the
            one that fewer rows have.
        client: the column that says whose each row is.
        check_labels: whether a label that looks coded in two ways is an error, as "yes" and "Yes", or yes and 1.

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
    columns_seen = None
    tables = _in_memory(frames, client, _chosen(label, client, columns, drop))
    if _pictures(tables):
        if target is not None:
            raise ConfigError("target", target, "this is for a label that is a number; pictures have classes")
        return _to_arrays(tables, label, drop_missing_labels, positive, check_labels)
    if transform is not None:
        given: dict[str, Any] = {"label": label, "columns": columns or None, "task": task, "drop": drop or None}
        given |= {"positive": positive, "target": target}
        if conflicting := {name: value for name, value in given.items() if value is not None}:
            name, value = next(iter(conflicting.items()))
            raise ConfigError(name, value, "the transform that is given has it already; leave it out")
        fitted = transform if isinstance(transform, Transform) else Transform.load(transform)
        labelled = fitted.label.name if fitted.label else None
    elif label is None:
        raise _without_label(tables)
    else:
        fitted, labelled = None, column_name(label)
    for name, table in tables.items():
        if not len(table):
            raise DataError(f"{name}: its table has no rows; leave it out")
        if labelled is not None and (fitted is None or labelled in table.columns):
            tables[name] = with_labels(name, table, labelled, drop_missing_labels)
    if fitted is None:
        first = {name: naming(name)(_summary)(table) for name, table in tables.items()}
        try:
            column_plan = plan(first, labelled, columns, task, scale, max_categories, drop, positive, target)
        except UnreadLabel as error:
            column = series(tables[error.client], str(labelled))
            row = int(np.flatnonzero(np.isnan(cells(column, str(labelled)).numbers))[0])
            raise DataError(f"{error}; {at_row(row)} is {shown(column.iloc[row])}") from None
        second = {name: naming(name)(_summary)(table, column_plan) for name, table in tables.items()}
        fitted = fit(column_plan, second, check_labels)
    arrays = {name: naming(name)(fitted)(table) for name, table in tables.items()}
    if transform is None:
        alone = [one_client(next(iter(first.values())), str(labelled))] if len(first) == 1 else []
        columns_seen = overview(column_plan, first, second, [*alone, *notes_of_rows(arrays, fitted)])
        columns_seen = _with_words(columns_seen, fitted, tables)
    return FederatedData.from_clients(arrays, transform=fitted, overview=columns_seen)


def _chosen(
    label: str | None, client: str | None, columns: Mapping[str, str] | None, drop: Sequence[str]
) -> dict[str, str]:
    """:func:`kinds_of`; label and client have to be two columns, and the label one that is not dropped."""
    kinds, name = kinds_of(columns, drop), None if label is None else column_name(label)
    if name is not None and client is not None and name == column_name(client):
        raise ConfigError("client", client, "this is the label, too; they have to be two columns")
    if name is not None and name in map(column_name, drop):
        raise ConfigError("drop", label, "this is the label, which is learned; leave it out of the list")
    return kinds


def _without_label(tables: Mapping[str, Any]) -> ConfigError:
    names = ", ".join(map(shown, next(iter(tables.values())).columns))
    return ConfigError("label", None, f"this is missing; name the column to predict, of: {names}")


def _with_words(columns: Overview, fitted: Transform, tables: Mapping[str, Any]) -> Overview:
    """The overview with the first few cells that cannot be read, for these tables are not those of others."""
    kinds = {column.name: column for column in fitted.columns}
    notes = []
    for note in columns.notes:
        if note.looks == "unread" and note.column in kinds:
            column = kinds[note.column]
            found = (unread_of(column.kind, series(table, column.name), column.name) for table in tables.values())
            words = few(dict.fromkeys(itertools.chain.from_iterable(found)))
            note = dataclasses.replace(note, why=f"{note.why}, such as {words}")
        notes.append(note)
    return dataclasses.replace(columns, notes=tuple(notes))


def _summary(table: Any, request: Plan | None = None) -> Summary:
    return summarize(table, request, least=1)  # all is in one process


def _cells_of(table: Any, name: str, field: str) -> Cells:
    return cells(series(table, name, field), name)


def with_labels(client: str, table: Any, label: str, drop: bool) -> Any:
    """The rows that have a label; rows without one are an error unless they are to be dropped."""
    with naming(client):
        missing = _cells_of(table, label, "label").missing
    if not missing.any():
        return table
    if missing.all():
        raise DataError(f"{client}: label {shown(label)} is missing in all {len(table)} rows; leave this client out")
    if not drop:
        row = int(np.flatnonzero(missing)[0])
        where = f"label {shown(label)} is missing in {missing.sum()} of its {len(table)} rows, first in {at_row(row)}"
        raise DataError(f"{client}: {where}; drop_missing_labels=True leaves them out")
    return table[~missing].reset_index(drop=True)


def from_csv(
    files: Files,
    label: str | None = None,
    client: str | None = None,
    columns: Mapping[str, str] | None = None,
    task: Task = None,
    scale: Scale = "standard",
    max_categories: int = 50,
    drop_missing_labels: bool = False,
    decimal: str | None = None,
    encoding: str | None = None,
    transform: Transform | str | os.PathLike | None = None,
    drop: Sequence[str] = (),
    positive: str | float | None = None,
    target: Target = None,
    check_labels: bool = True,
) -> FederatedData:
    """Clients' CSV files: one client a file, named by it, or by a column that says whose each row is.

    How each file is written is found: what separates its cells (commas, semicolons, tabs or bars), its encoding, and
    how its numbers are written. The first line has the names of columns. A file may be packed by gzip, as ``x.csv.gz``;
    or be a workbook, as ``x.xlsx``, of which the first sheet is read, with ``pip install 'fedax[excel]'``.

    Args:
        files: a pattern such as ``"hospitals/*.csv"``, a folder with ``*.csv``, a file, or a list of these.
        label: the column to predict.
        client: the column that says whose each row is. ``None``: each file is a client, called by its name.
        columns: column -> ``"number"``, ``"category"``, ``"date"``, ``"text"`` or ``"drop"``, where the values mislead.
        task: ``"classification"`` or ``"regression"``. Default: by the label.
        scale, max_categories, target: as of :func:`fedax.data.plan`.
        drop_missing_labels: whether rows without a label are left out, in place of an error.
        decimal: what decimals are written with, ``"."`` or ``","``. Default: found for each file.
        encoding: of the files, such as ``"latin-1"``. Default: for each file, UTF-16 if it is marked so, else UTF-8,
            else cp1252, which has the characters of Latin-1.
        transform: one that was fitted before, or its file: new rows become the same numbers.
        drop: columns that are left out.
        positive: as of :func:`fedax.data.from_frames`.
        check_labels: whether a label that looks coded in two ways is an error.

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
    written: dict[str, str] = {}
    dropped = [name for name, kind in _chosen(label, client, columns, drop).items() if kind == "drop"]
    whose = None if client is None else column_name(client)

    def read(path: Path) -> Any:
        frame = _read_rows(path, decimal, encoding, lambda name: name == whose, dropped)
        if how := frame.attrs.pop("written"):
            written["/".join(path.parts[-2:])] = how
        return frame

    frames = _by_client(files, "csv", client, read)
    options = (columns, task, scale, max_categories, drop_missing_labels, transform, drop, positive)
    data = from_frames(frames, label, *options, target=target, check_labels=check_labels)
    if data.overview is not None:
        data.overview = dataclasses.replace(data.overview, read=written)
    return data


def read_table(
    path: Path,
    decimal: str | None = None,
    encoding: str | None = None,
    as_written: Callable[[str], bool] = lambda name: False,
    drop: Sequence[str] = (),
) -> Any:
    """A file with one of the endings :data:`TABLES` as a table of pandas, without the columns ``drop``.

    The rest is as of :func:`fedax.data.delimited.read_csv`.

    Raises:
        DataError: as of ``read_csv``; a column of ``drop`` is not there.
    """
    if path.suffix.lower() == ".parquet":
        table = _arrow_to_pandas(_read_parquet(path), path, kinds_of(None, drop), None)
    else:
        table = _read_rows(path, decimal, encoding, as_written, drop)
    return table.drop(columns=[series(table, name, "drop").name for name in drop])


def _read_rows(
    path: Path,
    decimal: str | None,
    encoding: str | None,
    as_written: Callable[[str], bool],
    drop: Sequence[str],
) -> Any:
    """A CSV file or a workbook as a table of pandas."""
    if path.suffix.lower() in workbooks.ENDINGS:
        return workbooks.read_workbook(path, decimal, as_written, drop)
    return read_csv(path, decimal, encoding, as_written, drop)


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
    positive: str | float | None = None,
    target: Target = None,
    check_labels: bool = True,
) -> FederatedData:
    """Clients' Parquet files, read as :func:`fedax.data.from_csv` reads CSV files.

    A column of pictures, as Hugging Face writes them, becomes ``x``
    uint8 [n, height, width, channels]; other columns but label and client are then left aside.

    Args:
        files, label, client, columns, task, scale, max_categories, drop_missing_labels, transform, drop, positive,
            target, check_labels:
            as of :func:`fedax.data.from_csv`.
        size: (height, width) that pictures get; default: that which all have.

    Raises:
        ConfigError, DataError: as of :func:`fedax.data.from_csv`.

    Example:
        >>> from_parquet("nothing/*.parquet", label="y")
        Traceback (most recent call last):
        fedax.errors.ConfigError: files = 'nothing/*.parquet': no file fits this pattern
    """
    chosen = _chosen(label, client, columns, drop)
    frames = _by_client(
        files, "parquet", client, lambda path: _arrow_to_pandas(_read_parquet(path), path, chosen, size)
    )
    options = (columns, task, scale, max_categories, drop_missing_labels, transform, drop, positive)
    return from_frames(frames, label, *options, target=target, check_labels=check_labels)


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
    positive: str | float | None = None,
    target: Target = None,
    check_labels: bool = True,
) -> FederatedData:
    """Arrow files as Hugging Face's ``save_to_disk`` and ``flwr-datasets create`` write them.

    Nothing is fetched.

    Args:
        folders: one data set's folder, with ``*.arrow`` in it, and ``client`` the column that says whose each row is;
            or a folder of such folders, or a list of them, each of which is a client, called by its folder's name.
        label, client, columns, task, scale, max_categories, drop_missing_labels, size, transform, drop, positive,
            target, check_labels: as of :func:`fedax.data.from_parquet`.

    Raises:
        ConfigError, DataError: as of :func:`fedax.data.from_csv`.

    Example:
        >>> from_arrow("nothing", label="y")
        Traceback (most recent call last):
        fedax.errors.ConfigError: folders = 'nothing': there is no such folder
    """
    frames: dict[str, Any] = {}
    chosen = _chosen(label, client, columns, drop)
    given = [folders] if isinstance(folders, str | os.PathLike) else list(folders)
    places = [Path(each) for each in given]
    for place, each in zip(places, given, strict=True):
        if not place.is_dir():
            raise ConfigError("folders", str(each), "there is no such folder")
    places = [_only_split(place) for place in places]
    if len(places) == 1 and not _arrow_files(places[0]):
        inside = [each for each in places[0].iterdir() if each.is_dir() and not hidden(each)]
        places = sorted((each for each in map(_only_split, inside) if _arrow_files(each)), key=by_stem)
    if not places:
        raise ConfigError("folders", str(given[0]) if given else None, "no *.arrow is in it, nor in a folder below it")
    for place, name in zip(places, _names(places), strict=True):
        parts = [_arrow_to_pandas(_read_arrow(path), path, chosen, size) for path in _arrow_files(place)]
        if not parts:
            raise ConfigError("folders", str(place), "no *.arrow is in it")
        frames[name] = parts
    tables = _divided({name: _concatenated(name, parts) for name, parts in frames.items()}, client)
    options = (columns, task, scale, max_categories, drop_missing_labels, transform, drop, positive)
    return from_frames(tables, label, *options, target=target, check_labels=check_labels)


def _pictures(frames: Mapping[str, Any]) -> list[str]:
    """The columns that hold pictures, decoded from what Hugging Face wrote."""
    first = next(iter(frames.values()))
    objects = [name for name in first.columns if len(first) and first[name].dtype.kind == "O"]
    return [name for name in objects if getattr(first[name].iat[0], "ndim", 0) == 3]


def _to_arrays(
    frames: dict[str, Any], label: str | None, drop_missing_labels: bool, positive: Any, check_labels: bool
) -> FederatedData:
    """The pictures and their labels as arrays."""
    if len(pictures := _pictures(frames)) > 1:
        raise DataError(f"columns {few(pictures)}: more than one holds pictures; drop all but one")
    if label is None:
        raise _without_label(frames)
    label = column_name(label)
    frames = {name: with_labels(name, frame, label, drop_missing_labels) for name, frame in frames.items()}
    x = stacked({name: list(series(frame, pictures[0])) for name, frame in frames.items()})
    agreed = same_texts(_cells_of(frame, label, "label") for frame in frames.values())
    known = getattr(next(iter(frames.values()))[label].dtype, "categories", None)
    by_client: dict[str, Counter[str]] = {}
    for name, frame in frames.items():
        texts, codes = cells(frame[label], label, agreed).texts
        of_each = np.bincount(codes, minlength=len(texts)).tolist()
        by_client[name] = Counter(dict(zip(texts, of_each, strict=True)))
    if check_labels:
        check_coding(label, by_client)
    counts = sum(by_client.values(), Counter[str]())
    positive = None if positive is None else str(positive)
    if known is None:
        classes = class_names(label, [Counts(counts)], positive)
    else:
        classes = with_positive(label, known.tolist(), counts, positive)
    learned = Label(label, tuple(classes), agreed)
    arrays = {
        name: {"x": x[name], "y": naming(name)(labels_of)(frame[label], learned)[0]} for name, frame in frames.items()
    }
    return FederatedData.from_clients(arrays, transform=Transform((), learned))


def _only_split(folder: Path) -> Path:
    """The folder of the one split, if Hugging Face wrote this folder for several of them.

    Raises:
        ConfigError: there are more.
    """
    if not (folder / "dataset_dict.json").exists():
        return folder
    splits = _told(folder / "dataset_dict.json", "splits", str)
    if len(splits) != 1:
        hint = f"name the folder of one of them, such as {str(folder / splits[0])!r}" if splits else "it has none"
        raise ConfigError("folders", str(folder), f"its dataset_dict.json has the splits {few(splits)}; {hint}")
    return folder / splits[0]


def _arrow_files(folder: Path) -> list[Path]:
    """The files of a data set: those that its state.json names, or else all but what is kept from computations."""
    listed = _told(folder / "state.json", "_data_files", dict) if (folder / "state.json").exists() else []
    files = [folder / str(each.get("filename")) for each in listed]
    if any(file.parent != folder for file in files):
        raise DataError(f"{folder / 'state.json'}: it names a file outside of its folder")
    found = [each for each in _listed(folder, "arrow") if not each.name.startswith(("cache-", "tmp"))]
    return files or sorted(found, key=by_stem)


def _told(path: Path, field: str, kind: type) -> list[Any]:
    """A list of Hugging Face in a JSON file; empty if it is not there."""
    with reading(path, "JSON"):
        content = parse_json(path.read_bytes()) if regular(path) < 1 << 24 else None
    found = content.get(field, []) if isinstance(content, dict) else None
    if not isinstance(found, list) or not all(isinstance(each, kind) for each in found):
        raise DataError(f"{path}: cannot be read (it is not what Hugging Face writes)")
    return found


# ---- tables in memory


def _in_memory(frames: Any, client: str | None, chosen: Mapping[str, str]) -> dict[str, Any]:
    """Client's name -> its table of pandas, from all that :func:`from_frames` takes."""
    if not isinstance(frames, Mapping):
        if client is None:
            hint = "say whose each row is, client=COLUMN, or give client's name -> its table"
            raise DataError(f"frames: a {type(frames).__name__}; {hint}")
        return _divided({"table": table_of(frames, chosen)}, client)
    if type(frames).__name__ == "DatasetDict":
        raise DataError(f"frames: a DatasetDict of {few(frames)}; give one of them, dataset[{next(iter(frames))!r}]")
    if not frames:
        raise DataError("frames: there is none; give client's name -> its table, for one client at least")
    tables = {str(name): naming(name)(table_of)(each, chosen) for name, each in frames.items()}
    return _divided(tables, client)


def is_table(x: Any) -> bool:
    """Whether :func:`table_of` reads it."""
    package = type(x).__module__.partition(".")[0]
    arrow = (package == "pyarrow" and hasattr(x, "schema")) or (package == "datasets" and hasattr(x, "column_names"))
    return arrow or (hasattr(x, "columns") and (hasattr(x, "iloc") or package == "polars"))


def table_of(table: Any, chosen: Mapping[str, str]) -> Any:
    """A table of pandas, from one of pandas, Polars or pyarrow, or from a data set of Hugging Face.

    Args:
        table: the rows.
        chosen: column -> kind; a column that is to be dropped is not read.

    Raises:
        DataError: it is something else, or has cells that are no numbers, texts or dates.
    """
    kind = type(table).__module__.partition(".")[0]
    if kind == "datasets" and hasattr(table, "with_format") and hasattr(table, "__len__"):
        table = table.with_format("arrow")[:]  # the rows that are selected, in their order
        kind = "pyarrow"
    elif kind == "datasets":
        hint = "give one in memory: datasets.Dataset.from_list(list(stream))"
        raise DataError(f"table: {type(table).__name__} is read as a stream; {hint}")
    if kind == "pyarrow" and hasattr(table, "schema"):
        return as_pandas(_arrow_to_pandas(table, Path("table"), chosen, None))
    return as_pandas(table)


# ---- files and clients


def _by_client(files: Files, ending: str, client: str | None, read: Callable[[Path], Any]) -> dict[str, Any]:
    """Client's name -> its table."""
    paths = _paths_of(files, ending)
    return _divided(dict(zip(_names(paths), map(read, paths), strict=True)), client)


def _paths_of(files: Files, ending: str) -> list[Path]:
    paths = _found(files, ending)
    for each in [files] if isinstance(files, str | os.PathLike) else files:
        if os.path.isdir(each):
            note_unread(Path(each), paths)
    return paths


def _found(files: Files, ending: str) -> list[Path]:
    if isinstance(files, str | os.PathLike):
        text = os.fspath(files)
        place = Path(text)
        if place.is_dir():
            endings = ((ending, f"{ending}.gz"), ("xlsx",)) if ending == "csv" else ((ending,),)
            if paths := next(filter(None, (_listed(place, *each) for each in endings)), []):
                return sorted(paths, key=by_stem)
            raise ConfigError("files", text, f"no *.{ending} is in this folder")
        if place.exists():
            return [place]
        end = next((each for each in (ending, "xlsx") if text.endswith(f".{each}")), "")
        pattern = text.removesuffix(end) + re.sub(r"[a-z]", lambda each: f"[{each[0]}{each[0].upper()}]", end)
        found = [Path(each) for each in glob.glob(pattern, recursive=True)]
        if paths := sorted((each for each in found if not hidden(each)), key=by_stem):
            return paths
        what = "no file fits this pattern" if glob.has_magic(text) else "there is no such file"
        raise ConfigError("files", text, what)
    if not isinstance(files, Sequence) or not files or not all(isinstance(each, str | os.PathLike) for each in files):
        raise ConfigError("files", files, 'give a pattern such as "hospitals/*.csv", a folder, or a list of files')
    return [path for each in files for path in _found(each, ending)]


def _listed(folder: Path, *endings: str) -> list[Path]:
    """The files in a folder with one of these endings, in any case."""
    given = tuple(f".{each}" for each in endings)
    return [each for each in folder.iterdir() if each.name.lower().endswith(given) and not hidden(each)]


def note_unread(folder: Path, read: Sequence[Path]) -> None:
    """Warn of files in a folder that may be tables, and of tables in folders in it, that are not among those read."""
    inside = [file for file in folder.glob("*") if file.name.lower().endswith(_LIKE_TABLES)]
    below = [file for file in folder.glob("*/*") if file.name.lower().endswith(TABLES) and not hidden(file.parent)]
    left_out = {file for file in (*inside, *below) if file.is_file() and not hidden(file)}.difference(read)
    names = [str(file.relative_to(folder)) for file in left_out if not file.name.lower().startswith("readme")]
    if names:
        text = f"{folder}: not read: {few(sorted(names))}; name them, or move them away"
        warnings.warn(text, DoubtfulWarning, stacklevel=caller_level())


def hidden(path: Path) -> bool:
    """Whether a file is one that programs put beside those of a person, such as the lock of an open workbook."""
    return path.name.startswith((".", "~$"))


def stem(path: Path) -> str:
    """The name of a file without its ending; .csv.gz is one."""
    name = path.name[:-3] if path.name.lower().endswith(".gz") else path.name
    return column_name(Path(name).stem if Path(name).suffix else name)


def by_stem(path: Path) -> list[Any]:
    """Sorts client-2 before client-10, and files of one folder by what clients are called: without the ending."""
    return [by_value(str(path.parent)), by_value(stem(path)), path.name]


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
    stems = [stem(path) for path in paths]
    if len({*stems}) == len(stems):
        return stems
    above = Path(os.path.commonpath([path.absolute().parent for path in paths]))
    names = [(path.absolute().parent.relative_to(above) / stem(path)).as_posix() for path in paths]
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
    agreed = same_texts(naming(file)(_cells_of)(table, client, "client") for file, table in tables.items())
    for file, table in tables.items():
        texts, codes = cells(series(table, client), client, agreed).texts
        if (codes < 0).any():
            raise DataError(
                f"{file}: column {shown(client)}, {at_row(np.flatnonzero(codes < 0)[0])} does not say whose it is"
            )
        rest = table.drop(columns=series(table, client).name)
        order = np.argsort(codes, kind="stable")
        for text, rows in zip(texts, np.split(order, np.cumsum(np.bincount(codes))[:-1]), strict=True):
            parts.setdefault(text, []).append(rest.iloc[rows].reset_index(drop=True))
    for alike in alike_numbers(parts):
        warnings.warn(
            f"column {shown(client)}: {few(alike)} are clients of their own; write a client in one way, if it is one",
            DoubtfulWarning,
            stacklevel=caller_level(),
        )
    return {name: _concatenated(name, parts[name]) for name in sorted(parts, key=by_value)}


def _concatenated(name: str, parts: Sequence[Any]) -> Any:
    """The tables of one client as one table."""
    import pandas

    for part in parts[1:]:
        if {*part.columns} != {*parts[0].columns}:
            differ = {*part.columns} ^ {*parts[0].columns}
            raise DataError(f"{name}: its files have different columns ({few(sorted(differ))})")
    if len(parts) == 1:
        return parts[0]
    return pandas.DataFrame({column: _joined([part[column] for part in parts]) for column in parts[0].columns})


def _joined(parts: Sequence[Any]) -> Any:
    """The cells of one column in several files, each as it is."""
    import pandas

    if all(isinstance(part.dtype, pandas.CategoricalDtype) for part in parts):
        categories = [part.cat.set_categories(part.cat.categories.astype(object)) for part in parts]
        return pandas.Series(pandas.api.types.union_categoricals(categories))
    if any(part.dtype.name == "numbers and words" for part in parts):
        from fedax.data.mixed import NumbersAndWords

        if all(part.dtype.kind in "iuf" or part.dtype.name == "numbers and words" for part in parts):
            return pandas.concat([pandas.Series(NumbersAndWords.of(part)) for part in parts], ignore_index=True)
    kinds = {part.dtype.kind for part in parts}
    if "f" in kinds and any(part.dtype.kind in "iu" and part.abs().max() >= 2**53 for part in parts):
        parts = [part.astype(object) for part in parts]
    return pandas.concat(parts, ignore_index=True)


# ---- pyarrow


def _read_parquet(path: Path) -> Any:
    from pyarrow import parquet

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
    import pyarrow

    kept, taken = [], 0
    for batch in batches:
        batch.validate(full=True)
        taken += batch.nbytes
        if taken > room(stored):
            raise DataError(f"{path}: unpacks to more than {room(stored)} bytes, too many for its size")
        kept.append(batch)
    return pyarrow.Table.from_batches(kept, schema)


def _read_arrow(path: Path) -> Any:
    import pyarrow
    from pyarrow import ipc

    stored = regular(path)
    with reading(path, "an Arrow stream"), pyarrow.OSFile(str(path)) as source, ipc.open_stream(source) as stream:
        _check_columns(path, stream.schema)
        return _table_of_batches(path, stream, stream.schema, stored)


def _check_columns(path: Path, schema: Any) -> None:
    if not 0 < len(schema) <= WIDE:
        raise DataError(f"{path}: {len(schema)} columns; there have to be 1 to {WIDE}")
    if twice := [name for name, times in Counter(schema.names).items() if times > 1]:
        raise DataError(f"{path}: several columns are called {few(twice)}; rename one")


def _arrow_to_pandas(table: Any, path: Path, columns: Mapping[str, str], size: Sequence[int] | None) -> Any:
    """An Arrow table as one of pandas, with pictures as arrays."""
    import pandas

    columns_read: dict[str, Any] = {}
    names = _class_labels(table.schema.metadata or {}, path)
    with reading(path, "a table"):
        for field in table.schema:
            if columns.get(column_name(field.name)) == "drop":
                columns_read[field.name] = pandas.Series(np.full(table.num_rows, np.nan))
                continue
            column = table.column(field.name)
            kind = _plain_kind(field.type)
            if kind == "picture":
                cell = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
                content = cell.field("bytes").to_pylist()
                pictures = [
                    decoded(each, f"{path}: column {shown(field.name)}, {at_row(k)}", size)
                    for k, each in enumerate(content)
                ]
                values_read = np.empty(len(pictures), object)
                values_read[:] = pictures
                columns_read[field.name] = pandas.Series(values_read, dtype=object)
            elif kind is None:
                hint = f"drop=[{shown(field.name)}] leaves it out"
                raise DataError(f"{path}: column {shown(field.name)} holds {shown(str(field.type))}; {hint}")
            elif field.name in names:
                codes = column.cast("int64").to_pandas()
                numbers = codes.fillna(-1).to_numpy(np.int64)
                if len(numbers) and not -1 <= numbers.min() <= numbers.max() < len(names[field.name]):
                    raise DataError(f"{path}: column {shown(field.name)}: class {numbers.max()} has no name")
                values_read = pandas.Categorical.from_codes(numbers, categories=names[field.name])
                columns_read[field.name] = pandas.Series(values_read)
            else:
                columns_read[field.name] = _cells_of_arrow(column)
    if not columns_read or not table.num_rows:
        raise DataError(f"{path}: it has no rows, or no columns; leave it out")
    return pandas.DataFrame(columns_read)


def _cells_of_arrow(column: Any) -> Any:
    """The cells of a column; whole numbers with gaps are not rounded to floats."""
    import pandas
    from pyarrow import types

    if types.is_integer(column.type) and column.null_count:
        gaps = column.is_null().to_numpy()
        return pandas.Series(pandas.arrays.IntegerArray(column.fill_null(0).to_numpy(), gaps))
    values = column.to_pandas()
    return values.astype(object) if hasattr(values.dtype, "categories") else values


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
    with reading(f"{path}: what Hugging Face says of its columns", "JSON"):
        features = parse_json(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})
        names = {name: each["names"] for name, each in features.items() if each.get("_type") == "ClassLabel"}
    for name, classes in names.items():
        good = isinstance(classes, list) and classes and all(isinstance(each, str) for each in classes)
        if not good or len({*classes}) < len(classes):
            raise DataError(f"{path}: column {shown(name)}: its classes have to be different texts")
    return names
