"""Files: what all readers of files that are not trusted ask first, and names for new ones."""

import csv
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from fedax.errors import ConfigError, DataError

_LONGEST = 120  # bytes of a slug: a file system takes names of 255, and endings are added


def regular(path: Path) -> int:
    """The size of a regular file in bytes.

    Raises:
        DataError: there is none, or it is a folder, a pipe or a device, which may have no end.
    """
    try:
        status = path.stat()
    except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
        raise DataError(f"{path}: cannot be read ({getattr(error, 'strerror', error)})") from error
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{path}: not a regular file, but a folder, pipe or device; give a file")
    return status.st_size


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read; it is there whole or not at all."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.unlink(missing_ok=True)
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    scratch.rename(path)


def open_to_others(path: Path) -> str:
    """Which rights others than its owner have to a file or folder, as its mode; nothing where they have none."""
    mode = stat.S_IMODE(path.stat().st_mode) if os.name == "posix" else 0
    return f"{mode:o}" if mode & 0o077 else ""


def check_private(path: Path, field: str) -> None:
    """Refuse a file or folder that others than its owner can read.

    Args:
        path: is there.
        field: what the command that reads it calls it.

    Raises:
        ConfigError: others can.
    """
    if mode := open_to_others(path):
        raise ConfigError(field, str(path), f"others can read it (mode {mode}), and it is private: chmod go= {path}")


def rotate(path: Path, held: bool = False) -> None:
    """Give a log that has grown too large another name: ``log`` becomes ``log.1``, ``log.1`` becomes ``log.2``.

    Two variables of the environment say when: ``FEDAX_LOG_SIZE`` is the size in MB, 10 where it is not set, and
    ``FEDAX_LOG_KEEP`` how many older files are kept, 5 where it is not set.

    Args:
        path: of the log; nothing happens where there is none.
        held: whether a process has it open and goes on writing at its end; then it is copied, and emptied.
    """
    largest, keep = float(os.environ.get("FEDAX_LOG_SIZE", 10)), int(os.environ.get("FEDAX_LOG_KEEP", 5))
    if not path.exists() or path.stat().st_size < largest * 1e6:
        return
    for k in range(keep - 1, 0, -1):
        if (older := path.with_name(f"{path.name}.{k}")).exists():
            older.replace(path.with_name(f"{path.name}.{k + 1}"))
    last = path.with_name(f"{path.name}.1")
    if held:
        shutil.copy2(path, last)
        os.truncate(path, 0)
    else:
        path.replace(last)


def rotated(path: Path) -> list[Path]:
    """A log and those that had its name before, the oldest first; only those that are there."""
    older = [each for each in path.parent.glob(f"{path.name}.*") if each.suffix[1:].isdecimal()]
    older.sort(key=lambda each: -int(each.suffix[1:]))
    return [*older, *([path] if path.exists() else [])]


def cell(text: str) -> str:
    """A text for a CSV file that a spreadsheet does not take for a formula: ``'`` goes before it where it would.

    Example:
        >>> [cell(text) for text in ("=cmd()", "-1", "north", "'=a")]
        ["'=cmd()", '-1', 'north', "''=a"]
    """
    return f"'{text}" if _is_formula(text) else text


def text_of(cell: str) -> str:
    """The text that :func:`cell` was given.

    Example:
        >>> [text_of(each) for each in ("'=cmd()", "-1", "north", "'north'", "''=a")]
        ['=cmd()', '-1', 'north', "'north'", "'=a"]
    """
    return cell[1:] if cell.startswith("'") and _is_formula(cell) else cell


def quoting_of(texts: Iterable[str]) -> Literal[0, 1]:
    """What :mod:`csv` has to put into quotes: it leaves a carriage return bare, and other programs end a row there."""
    return csv.QUOTE_ALL if any("\r" in text for text in texts) else csv.QUOTE_MINIMAL


def _is_formula(text: str) -> bool:
    start = text.lstrip("'")
    if not start.startswith(("=", "+", "-", "@", "\t", "\r")):
        return False
    try:
        float(start)
    except ValueError:
        return True
    return start[0] in "\t\r"


def slug(label: str) -> str:
    """A label as a part of a file name; of a long one the beginning, and a digest.

    Example:
        >>> slug("FedProx μ=0.01 (2)"), len(slug("x" * 1000))
        ('FedProx-μ-0.01-2', 120)
    """
    name = re.sub(r"[^\w.]+", "-", label).strip("-.") or "run"
    if len(name.encode()) <= _LONGEST:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:10]
    return f"{name.encode()[: _LONGEST - 11].decode(errors='ignore')}-{digest}"


def name_of(name: str) -> str:
    r"""A file's name as a text that can be written, whatever bytes it has and whatever the locale is.

    Example:
        >>> name_of("Zürich"), name_of("Z\udcfcrich")  # the second is not in UTF-8
        ('Zürich', 'Z\\xfcrich')
    """
    try:
        name.encode()
    except UnicodeEncodeError:  # Python has kept the bytes that are not in the locale's encoding
        return os.fsencode(name).decode("utf-8", "backslashreplace")
    return name
