"""Finds what data set files and folders are that somebody names: by their endings."""

import glob
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedax.data.tables import TABLES, by_stem, hidden, note_unread, stem
from fedax.errors import ConfigError
from fedax.files import name_of

# Ending -> the data set that is read from such files.
_KINDS = {
    **dict.fromkeys(TABLES, "csv"),
    ".parquet": "parquet",
    ".arrow": "arrow",
    **dict.fromkeys((".png", ".jpg", ".jpeg"), "images"),
}
_SETTINGS = {"csv": "files", "parquet": "files", "arrow": "folders", "images": "root", "folder": "path"}
_OF_READERS = {".csv", ".parquet"}  # of a folder the readers find these by themselves
_WHAT = "give .csv, .tsv, .txt, .xlsx or .parquet files, or a folder of them, or of .arrow"


def data_at(paths: Sequence[str], field: str = "data") -> dict[str, Any]:
    """The section data of a configuration for these files or folders: the name of the data set, and where it is.

    Args:
        paths: files, folders and patterns: tables, Arrow data sets, pictures, what :meth:`FederatedData.save` wrote.
        field: what errors call them; "data": it may also be the name of a data set.

    Raises:
        ConfigError: nothing is there; nothing that fedax reads; files of several kinds.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     for name in ("north.csv", "SOUTH.CSV", "readme.txt"):
        ...         Path(place, name).touch()
        ...     found = data_at([place])
        ...     found["name"], found["files"] == place
        ('csv', True)
    """
    files = [file for path in paths for file in _files_at(path, field)]
    first = {str(_kind(file)): file for file in reversed(files)}
    if len(first) > 1:
        which = ", ".join(name_of(str(first[kind])) for kind in sorted(first))
        raise ConfigError(field, " ".join(paths), f"files of several kinds: {which}; name those of one kind")
    (name,) = first
    if name in ("csv", "parquet"):
        alone = len(paths) == 1 and (not os.path.isdir(paths[0]) or {_ending(file) for file in files} <= _OF_READERS)
        places = list(paths) if alone else [str(file) for file in files]
        for folder in [] if alone else filter(os.path.isdir, paths):  # else the readers say it
            note_unread(Path(folder), files)
    else:
        places = [*dict.fromkeys(map(_folder_of, paths))] if name == "arrow" else list(paths)
        if len(places) > 1 and name != "arrow":
            raise ConfigError(field, " ".join(paths), f"of {name} give one folder")
    return {"name": name, _SETTINGS[name]: places[0] if len(places) == 1 else places}


def title_of(paths: Sequence[str]) -> str:
    """What these files or folders are called together: by the file, or by the folder that they are in.

    Example:
        >>> title_of(["hospitals/north.csv", "hospitals/south.csv"]), title_of(["cost.csv"]), title_of(["hospitals/"])
        ('hospitals', 'cost', 'hospitals')
    """
    places = [Path(path).absolute() for path in paths]
    if len(places) == 1 and not glob.has_magic(paths[0]):
        return name_of(places[0].resolve().name if places[0].is_dir() else stem(places[0]))
    above = [next(part for part in (place, *place.parents) if not glob.has_magic(str(part))) for place in places]
    folders = [place if place.is_dir() else place.parent for place in above]
    return name_of(Path(os.path.commonpath(folders)).name) or "tables"


def _files_at(path: str, field: str) -> list[Path]:
    """The files that a path names; of a folder those that fedax reads, the text files only if there are no others.

    An Arrow data set, pictures and saved examples stand for themselves: one file of each.
    """
    place = Path(path)
    if place.is_dir():
        if (place / "examples").is_dir() and (place / "sizes.npy").exists():
            return [place / "sizes.npy"]
        files = sorted((file for file in place.iterdir() if file.is_file() and not hidden(file)), key=by_stem)
        tables = [file for file in files if _kind(file) in ("csv", "parquet")]
        texts = [file for file in tables if _ending(file) == ".txt"]  # one may say what the others are
        if found := [file for file in tables if file not in texts] or [*itertools.islice(_below(place), 1)] or texts:
            return found
        raise ConfigError(field, path, f"nothing that fedax reads is in this folder; {_WHAT}")
    files = [place] if place.exists() else [Path(each) for each in sorted(glob.glob(path, recursive=True))]
    files = sorted((file for file in files if file == place or not hidden(file)), key=by_stem)
    if not files:
        what = "no file fits this pattern" if glob.has_magic(path) else "there is no such file or folder"
        set_too = ", or the name of a data set (fedax list data)" if field == "data" else ""
        raise ConfigError(field, path, f"{what}; {_WHAT}{set_too}")
    for file in files:
        if file.is_dir() or _kind(file) is None:
            hint = "it is a configuration: fedax run runs it" if file.suffix.lower() == ".toml" else _WHAT
            raise ConfigError(field, str(file), hint)
    return files


def _below(folder: Path) -> Iterator[Path]:
    """The Arrow files in a folder and two folders below it, and pictures in <client>/<class>."""
    for pattern, kind in (("*", "arrow"), ("*/*", "arrow"), ("*/*/*", "arrow"), ("*/*/*", "images")):
        yield from (file for file in folder.glob(pattern) if _kind(file) == kind and not hidden(file))


def _folder_of(path: str) -> str:
    return path if os.path.isdir(path) else str(Path(path).parent)


def _ending(file: Path) -> str:
    return Path(file.name.lower().removesuffix(".gz")).suffix


def _kind(file: Path) -> str | None:
    if file.name == "sizes.npy":
        return "folder"
    return next((kind for ending, kind in _KINDS.items() if file.name.lower().endswith(ending)), None)
