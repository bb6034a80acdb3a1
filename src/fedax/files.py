"""Files: checks before one is read, writing whole or not at all, private files, logs, safe CSV cells, and names."""

import csv
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from fedax.errors import ConfigError, DataError

WRITING = ".writing-"  # the prefix of files that are not complete yet
_LONGEST = 120  # bytes of a slug; file systems allow names of 255, and endings are added


def regular(path: Path) -> int:
    """The size of a regular file in bytes.

    Raises:
        DataError: no such file; or a folder, a pipe or a device, which may have no end.
    """
    try:
        status = path.stat()
    except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
        raise DataError(f"{path}: cannot be read ({getattr(error, 'strerror', error)})") from error
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{path}: not a regular file, but a folder, pipe or device; give a file")
    return status.st_size


def write_atomic(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    """Write a file whole or not at all: first a temporary file in the same folder, which is then renamed."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{WRITING}{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            # A file's name that is not in UTF-8 may be quoted.
            file.write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)  # only its owner could read it so far
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, completely or not at all."""
    write_atomic(path, content, 0o600)


def open_to_others(path: Path) -> str:
    """The mode of a file or folder, as octal digits, if users other than its owner have rights to it; else empty."""
    mode = stat.S_IMODE(path.stat().st_mode) if os.name == "posix" else 0
    return f"{mode:o}" if mode & 0o077 else ""


def check_private(path: Path, field: str) -> None:
    """Refuse a file or folder that others than its owner can read.

    Args:
        path: an existing file or folder.
        field: the name of the option, for the error.

    Raises:
        ConfigError: others can read it.
    """
    if mode := open_to_others(path):
        raise ConfigError(field, str(path), f"others can read it (mode {mode}), and it is private: chmod go= {path}")


def rotate(path: Path, held: bool = False) -> None:
    """Rotate a log that has grown too large: ``log`` becomes ``log.1``, ``log.1`` becomes ``log.2``.

    Two environment variables control this: ``FEDAX_LOG_SIZE``, the largest size in MB (default 10), and
    ``FEDAX_LOG_KEEP``, how many older files are kept (default 5).

    Args:
        path: of the log, which need not exist.
        held: whether a process has the log open and appends to it; then it is copied and truncated.
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
    """The existing files of a rotated log, the oldest first."""
    older = [file for file in path.parent.glob(f"{path.name}.*") if file.suffix[1:].isdecimal()]
    older.sort(key=lambda file: -int(file.suffix[1:]))
    return [*older, *([path] if path.exists() else [])]


def cell(text: str) -> str:
    """A text as a safe CSV cell: ``'`` is put before a text that a spreadsheet would take for a formula.

    Example:
        >>> [cell(text) for text in ("=cmd()", "-1", "north", "'=a")]
        ["'=cmd()", '-1', 'north', "''=a"]
    """
    return f"'{text}" if _is_formula(text) else text


def text_of(cell: str) -> str:
    """The inverse of :func:`cell`.

    Example:
        >>> [text_of(each) for each in ("'=cmd()", "-1", "north", "'north'", "''=a")]
        ['=cmd()', '-1', 'north', "'north'", "'=a"]
    """
    return cell[1:] if cell.startswith("'") and _is_formula(cell) else cell


def quoting_of(texts: Iterable[str]) -> Literal[0, 1]:
    """The quoting for :mod:`csv`: all cells if one has a carriage return, which other programs take for a row's end."""
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
    """A label as a part of a file name; a long one is cut off, and gets a digest.

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
    r"""The name of a file as printable text, whatever bytes it has and whatever the locale is.

    Example:
        >>> name_of("Zürich"), name_of("Z\udcfcrich")  # the second is not in UTF-8
        ('Zürich', 'Z\\xfcrich')
    """
    try:
        name.encode()
    except UnicodeEncodeError:  # Python has kept the bytes that are not in the locale's encoding
        return os.fsencode(name).decode("utf-8", "backslashreplace")
    return name
