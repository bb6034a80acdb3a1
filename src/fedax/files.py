"""Files: checks before one is read, digests, writing whole or not at all, private files, logs, CSV cells, and names.

A file that fedax reads back says what it is, under a digest of itself: ``"sha256": "…", "of": "…"`` in the head of a
safetensors file, and in JSON. So what was moved, renamed, damaged or edited is seen; not what somebody changed who also
made the digest anew.
"""

import contextlib
import csv
import hashlib
import io
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

from fedax.errors import ConfigError, DataError

if TYPE_CHECKING:
    import filelock

WRITING = ".writing-"  # the prefix of files that are not complete yet
_BLANK = "0" * 64  # stands for the digest while a file is hashed
# Quotation marks within texts are escaped.
_SEAL = re.compile(rb'"sha256": ?"([0-9a-f]{64})"(?:,\s*"of": ?("(?:[^"\\]|\\.)*"))?')
_OLD_FORMAT = b"fedax checkpoint 1"
_BLOCK = 2**16  # bytes that are hashed at a time
_FORMATS = {  # endings by which other programs tell what a file holds
    *(".arrow", ".bz2", ".csv", ".db", ".docx", ".feather", ".gz", ".h5", ".hdf5", ".htm", ".html", ".ipynb", ".json"),
    *(".jsonl", ".md", ".npy", ".npz", ".ods", ".onnx", ".orc", ".parquet", ".pdf", ".pkl", ".png", ".pt", ".rds"),
    *(".safetensors", ".sav", ".sqlite", ".svg", ".tex", ".toml", ".tsv", ".xls", ".xlsm", ".xlsx", ".xz", ".zip"),
}
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


def seal(of: str) -> dict[str, str]:
    """The entries that say in a file what it is; :func:`with_digest` puts the digest in.

    Args:
        of: what the file is: all that its name and its place say; empty: it may be moved and renamed.
    """
    return {"sha256": _BLANK} | ({"of": of} if of else {})


def with_digest(content: bytes) -> bytes:
    """A file with the entries of :func:`seal`, with its digest there.

    Example:
        >>> with_digest(b"")
        Traceback (most recent call last):
        ValueError: no place for a digest
    """
    place = _SEAL.search(content)
    if place is None:
        raise ValueError("no place for a digest")
    start, end = place.span(1)
    digest = hashlib.sha256(content[:start] + _BLANK.encode() + content[end:]).hexdigest().encode()
    return content[:start] + digest + content[end:]


def has_digest(content: bytes) -> bool:
    """Whether a file holds a digest of itself; those of fedax 0.9.0 and before are safetensors files only."""
    return _SEAL.search(content) is not None


def damage(source: Path | bytes, of: str | None = None) -> str | None:
    """What is wrong with a file that should hold a digest of itself, or ``None``.

    Args:
        source: its path, or its content.
        of: what it should be; ``None``: anything. Files of version 0.9.0 and before do not say it.

    Example:
        >>> row = with_digest(json.dumps({"loss": 0.5, **seal("a row")}).encode())
        >>> print(damage(row, "a row"))
        None
        >>> damage(row.replace(b"0.5", b"0.4")), damage(row, "another")
        ('damaged or edited (its digest is another)', 'moved or renamed (it is a row)')
    """
    if isinstance(source, bytes):
        return _damage(io.BytesIO(source), len(source), of)
    if not source.is_file():
        return "not a regular file"
    try:
        with source.open("rb") as file:
            return _damage(file, os.fstat(file.fileno()).st_size, of)
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def _damage(file: BinaryIO, size: int, of: str | None) -> str | None:
    start = file.read(8)
    head = start + file.read(min(int.from_bytes(start, "little"), size))  # of safetensors; of text all
    if (found := _SEAL.search(head)) is None:
        if _OLD_FORMAT in head:
            return "of an older version of fedax, which did not keep what its run is made of"
        return "damaged, or of an older version of fedax (it has no digest)"
    hasher = hashlib.sha256()
    for block in (head[: found.start(1)], _BLANK.encode(), head[found.end(1) :]):
        hasher.update(block)
    while block := file.read(_BLOCK):
        hasher.update(block)
    if hasher.hexdigest().encode() != found[1]:
        return "damaged or edited (its digest is another)"
    try:
        known = None if found[2] is None else json.loads(found[2])
    except ValueError:
        return "damaged (it does not say what it is)"
    return f"moved or renamed (it is {known[:200]})" if known is not None and of not in (None, known) else None


def check_ending(path: Path, *endings: str) -> str:
    """The ending of a file that will be written as ``endings`` say; the first one for an ending that means nothing.

    Raises:
        ConfigError: its ending means another format.

    Example:
        >>> check_ending(Path("p.CSV"), ".csv", ".parquet"), check_ending(Path("p.old"), ".csv")
        ('.csv', '.csv')
        >>> check_ending(Path("p.xlsx"), ".csv", ".parquet")
        Traceback (most recent call last):
        fedax.errors.ConfigError: out = 'p.xlsx': a .xlsx file is not written; name it .csv or .parquet
    """
    ending = path.suffix.lower()
    if ending in endings:
        return ending
    if ending in _FORMATS:
        raise ConfigError("out", str(path), f"a {ending} file is not written; name it {' or '.join(endings)}")
    return endings[0]


def write_atomic(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    """Write a file whole or not at all: first a temporary file in the same folder, which is then renamed.

    Raises:
        OSError: it names ``path``.
    """
    # A file's name that is not in UTF-8 may be quoted.
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    with writing(path) as temporary:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(mode)  # only its owner could read it so far


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A temporary file that gets the name ``path`` in the end; an error names ``path``, and leaves nothing."""
    temporary = None
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=WRITING)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        os.replace(temporary, path)
    except BaseException as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from error
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


def hold(path: Path, busy: ConfigError) -> "filelock.BaseFileLock":
    """Acquire the lock that a file is.

    Raises:
        ConfigError: ``busy``, where another process holds it.
    """
    import filelock

    lock = filelock.FileLock(path, timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise busy from None
    return lock


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
