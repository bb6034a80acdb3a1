"""File formats of data sets: idx, CIFAR-10 (Python and binary), LIBSVM text, LEAF JSON, NumPy archives.

Libraries do the reading; this module adds checks, since files are not trusted. The sizes that a file declares are
checked against its length before memory is allocated, links in archives are not followed, and a pickle can make nothing
but plain containers. A file that cannot be read raises a DataError that names it.
"""

import bz2
import contextlib
import functools
import gzip
import importlib
import io
import json
import math
import pickle
import pickletools
import struct
import tarfile
import tokenize
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np

from fedax.errors import DataError, FedaxError
from fedax.files import regular
from fedax.numbers import narrowed

_DEFLATE = 1032  # the largest compression ratio of deflate
_BATCH = 1 << 26  # bytes; a batch of CIFAR-10 has 31 million
_DIRECTORY = 1 << 16  # bytes of a NumPy archive's table of contents, of which an array takes some sixty
_PLANES = (3, 32, 32)
_HEADER = 10_000  # bytes of the header of an array, of which NumPy writes 128


def room(stored: int) -> int:
    """The most bytes to which a file may unpack: 100 times its own, or 64 MiB.

    The known data sets unpack to 6 times their size, and the sparse w8a.npz, made dense, to 60 MB.
    """
    return max(1 << 26, 100 * stored)


def need(module: str, extra: str, what: str, package: str | None = None) -> Any:
    """A module that comes with an extra.

    Raises:
        DataError: it cannot be imported; with the line that installs it.

    Example:
        >>> need("no_such_module", "hdf5", "reading HDF5")
        Traceback (most recent call last):
        fedax.errors.DataError: reading HDF5 needs no_such_module, ...: pip install 'fedax[hdf5]'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = package or module.partition(".")[0]
        raise DataError(f"{what} needs {package}, which cannot be imported: pip install 'fedax[{extra}]'") from error


def unpacked(file: io.BufferedIOBase, path: Path, stored: int) -> bytes:
    """All that a file holds which may be packed, and takes ``stored`` bytes as it is.

    Raises:
        DataError: it holds more than :func:`room`.
    """
    content = bytearray()
    while chunk := file.read(1 << 16):  # of a larger number Python would take the memory before it reads
        content += chunk
        if len(content) > room(stored):
            raise DataError(f"{path}: unpacks to more than {room(stored)} bytes, too many for its size")
    return bytes(content)


@contextlib.contextmanager
def reading(path: Path | str, kind: str) -> Iterator[None]:
    """Turn whatever a library raises on a bad file into a DataError that names the file."""
    try:
        yield
    except FedaxError:
        raise
    except Exception as error:  # of many kinds: Python's, pyarrow's, HDF5's
        if why := getattr(error, "strerror", None):  # the operating system's; the file itself may be good
            raise DataError(f"{path}: cannot be read ({why})") from None
        first = str(error).strip().partition("\n")[0]
        raise DataError(f"{path}: cannot be read as {kind}: {type(error).__name__} {_clipped(first)}") from None


def parse_json(content: bytes) -> Any:
    """Strict JSON, in memory of a few times its length.

    Raises:
        ValueError: it is not, or holds too many things for its length.

    Example:
        >>> parse_json(b'{"a": [1, 2.5]}')
        {'a': [1, 2.5]}
    """
    # Python takes 50 bytes and more for a list, a table or a text, and 24 for a number, unless it is one of few.
    containers = content.count(b"[") + content.count(b"{") + content.count(b'"') // 2
    if containers > 10_000 + len(content) // 12:
        raise ValueError(f"{containers} lists, tables and texts in {len(content)} bytes are too many")
    try:
        text = content.decode("utf-8-sig")
        return json.loads(text, parse_float=_float, parse_int=_int, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deep") from None


_float, _int = functools.lru_cache(4096)(float), functools.lru_cache(4096)(int)


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def read_idx(path: Path) -> np.ndarray:
    """The array of an idx file of unsigned bytes, gzipped or not: uint8, in the shape that the file declares.

    Raises:
        DataError: another kind of file, or its length is not what its header says.

    Source:
        Format of MNIST (LeCun, Cortes, Burges): two zero bytes, the type 8, the number of axes, their lengths as
        big-endian 32-bit numbers, the bytes.
    """
    with reading(path, "an idx file"):
        stored = regular(path)
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as file:
            zeros, kind, axes = struct.unpack(">HBB", file.read(4))
            if zeros or kind != 8 or not 1 <= axes <= 4:
                start = f"{zeros:04x}{kind:02x}{axes:02x}"
                raise DataError(f"{path}: starts with {start}; an idx file of bytes starts with 000008 and its axes")
            shape = struct.unpack(f">{axes}I", file.read(4 * axes))
            declared = math.prod(shape)
            if declared > (min(stored * _DEFLATE, room(stored)) if packed else stored):
                raise DataError(f"{path}: declares {shape} bytes, but the file has only {stored}")
            content = file.read(declared + 1)
        if len(content) != declared:
            more = "more" if len(content) > declared else f"only {len(content)}"
            raise DataError(f"{path}: declares {shape} bytes, but holds {more}")
        return np.frombuffer(content, np.uint8).reshape(shape)  # of 0 × 2³² × … a ValueError


def read_cifar10(path: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The batches of CIFAR-10, by name: images uint8 [n, 32, 32, 3] and labels int64 [n].

    Args:
        path: ``cifar-10-python.tar.gz`` or ``cifar-10-binary.tar.gz``, or a folder with the files of one of them. The
            archive is read in place; the pickles of the Python version are read without running anything in them.

    Returns:
        ``data_batch_1`` to ``data_batch_5``, then ``test_batch``.

    Raises:
        DataError: a batch that is missing, cut off, or holds anything else.

    Source:
        Krizhevsky 2009; the format is that of https://www.cs.toronto.edu/~kriz/cifar.html.
    """
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    batches = {}
    with reading(path, "CIFAR-10"):
        for file, content in _cifar10_files(path, names):
            where = f"{path}: {file}"
            planes, labels = _binary_batch(content, where) if file.endswith(".bin") else _python_batch(content, where)
            if labels.size and not 0 <= labels.min() <= labels.max() <= 9:
                raise DataError(f"{where}: labels from {labels.min()} to {labels.max()}, not 0 to 9")
            batches[file.removesuffix(".bin")] = (np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels)
    if missing := [name for name in names if name not in batches]:
        raise DataError(f"{path}: {', '.join(missing)} not in it")
    return {name: batches[name] for name in names}


def read_libsvm(path: Path, features: int) -> tuple[np.ndarray, np.ndarray]:
    """Dense features float32 [n, ``features``] and labels float32 [n] of a LIBSVM text file, plain, .gz or .bz2.

    Args:
        path: lines ``label index:value index:value …``, indices from 1, ascending.
        features: d. Files seldom say it, and the last feature may be absent from a test file.

    Raises:
        DataError: another kind of file, an index above ``features``, values that are not finite.

    Source:
        Chang and Lin, LIBSVM.
    """
    from sklearn.datasets import load_svmlight_file  # here, since it takes a second to import

    with reading(path, f"LIBSVM text of {features} features"):
        stored = regular(path)
        opened: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open}
        with opened.get(path.suffix, open)(path, "rb") as file:
            content = unpacked(file, path, stored)
        most, lines = room(stored), content.count(b"\n") + 1
        if 4 * lines * features > most:
            raise DataError(
                f"{path}: {lines} lines of {features} features take more than {most} bytes, too many for it"
            )
        x, y = load_svmlight_file(io.BytesIO(content), n_features=features, zero_based=False)
    if not len(y):
        raise DataError(f"{path}: holds no example")
    x.data = narrowed(x.data, np.float32, f"{path}: value")
    return x.toarray(), narrowed(y, np.float32, f"{path}: label")


def read_leaf(folder: Path) -> Iterator[tuple[str, list, list]]:
    """The users of a LEAF data set who have examples: name, examples x and labels y, as the JSON files have them.

    Args:
        folder: with files ``*.json``, such as ``femnist/data/train``; read in the order of their names. Or one file.

    Raises:
        DataError: no such file, another structure, a user that occurs twice, or no example at all.

    Source:
        Caldas et al. 2018 (LEAF): ``{"users": […], "num_samples": […], "user_data": {user: {"x": […], "y": […]}}}``.
    """
    files = [folder] if folder.is_file() else sorted(folder.glob("*.json"))
    if not files:
        raise DataError(f"{folder}: no .json file in it")
    seen = set()
    for path in files:
        regular(path)
        with reading(path, "LEAF JSON"):
            for user, x, y in _leaf_users(parse_json(path.read_bytes()), path):
                if user in seen:
                    raise DataError(f"{path}: user {_clipped(user)} occurs twice")
                if x:  # a user without examples is no client
                    seen.add(user)
                    yield user, x, y
    if not seen:
        raise DataError(f"{folder}: no example in its files")


def _leaf_users(content: Any, path: Path) -> Iterator[tuple[str, list, list]]:
    names, counts, data = (content.get(k) if isinstance(content, dict) else None for k in _LEAF)
    if not (isinstance(names, list) and isinstance(counts, list) and isinstance(data, dict)):
        raise DataError(f"{path}: cannot be read as LEAF JSON: it needs {', '.join(_LEAF)}")
    if not all(isinstance(name, str) for name in names) or not all(type(count) is int for count in counts):
        raise DataError(f"{path}: users that are no texts, or num_samples that are no whole numbers")
    for user, count in zip(names, counts, strict=True):
        examples = data.get(user)
        x, y = (examples.get(k) if isinstance(examples, dict) else None for k in "xy")
        if not isinstance(x, list) or not isinstance(y, list) or not len(x) == len(y) == count:
            raise DataError(
                f"{path}: user {_clipped(user)} has not the {_clipped(count)} examples that num_samples says"
            )
        yield user, x, y


_LEAF = ("users", "num_samples", "user_data")


def read_npz(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The named arrays of a NumPy archive, of numbers or text.

    Raises:
        DataError: no such array, or two, an array of anything else, or sizes that do not fit the file.
    """
    arrays = {}
    with _archive(path) as archive:
        members = archive.namelist()
        for name in names:
            if members.count(f"{name}.npy") != 1:
                many = "two arrays" if f"{name}.npy" in members else "no array"
                raise DataError(f"{path}: {many} {name!r} in it; it has {_clipped(members)}")
            arrays[name] = _array(archive, name, path)
    return arrays


def _array(archive: zipfile.ZipFile, name: str, path: Path) -> np.ndarray:
    info, stored = archive.getinfo(f"{name}.npy"), regular(path)
    if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(f"{path}: {name} is encrypted or not packed as NumPy does it; write it again with np.savez")
    with archive.open(info) as file:
        head = io.BytesIO(file.read(_HEADER))
    shape, dtype = _array_header(head, f"{path}: {name}")
    declared, packed = math.prod(shape) * dtype.itemsize, min(info.compress_size, stored)
    most = min(packed * _DEFLATE, room(stored)) if info.compress_type == zipfile.ZIP_DEFLATED else packed
    if head.tell() + declared != info.file_size or declared > most:
        raise DataError(f"{path}: {name} declares {_clipped(shape)} of {dtype}, which is not what the file holds")
    with archive.open(info) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _array_header(head: BinaryIO, where: str) -> tuple[tuple[int, ...], np.dtype]:
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of headers that Python 2 wrote
            shape, _, dtype = readers[np.lib.format.read_magic(head)](head)
        if dtype.kind in "biufcSU" and dtype.itemsize and all(n >= 0 for n in shape):
            return shape, dtype
    except (ValueError, LookupError, TypeError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError):
        pass  # what NumPy raises on bad headers
    raise DataError(
        f"{where} has not the header of an array of numbers or text (Python objects, structures and dates are not "
        "read); write it again with np.savez"
    )


def npz_names(path: Path) -> list[str]:
    """The names of the arrays of a NumPy archive.

    Raises:
        DataError: another kind of file.
    """
    with _archive(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def mapped(path: Path) -> np.ndarray:
    """The array of an .npy file, mapped into memory.

    Raises:
        DataError: another kind of file.
    """
    regular(path)
    with reading(path, "an .npy file"):
        return np.lib.format.open_memmap(path, mode="r")


@contextlib.contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """The zip file, if its table of contents, which is read as a whole, is not too long."""
    stored = regular(path)
    with reading(path, "a NumPy archive"), path.open("rb") as file:
        file.seek(max(0, stored - 42))
        before, end = (tail := file.read(42))[:-22], tail[-22:]
        if len(end) < 22 or not end.startswith(b"PK\x05\x06") or not end.endswith(b"\x00\x00"):
            raise DataError(f"{path}: cannot be read as a NumPy archive: its table of contents is not at its end")
        if before.startswith(b"PK\x06\x07") or struct.unpack("<I", end[12:16])[0] > _DIRECTORY:
            raise DataError(f"{path}: more than 4 GB, or a table of contents of more than {_DIRECTORY} bytes")
        with zipfile.ZipFile(file) as archive:
            yield archive


def _clipped(value: Any) -> str:
    """A value of a file as a part of a message."""
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "…"


def _cifar10_files(path: Path, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """File name and content of each batch that is there; an archive is not unpacked on disk."""
    wanted = {*names, *(f"{name}.bin" for name in names)}
    if path.is_dir():
        for file in sorted(path.iterdir()):
            if file.name in wanted:
                _check_batch_size(file, regular(file))
                yield file.name, file.read_bytes()
        return
    regular(path)
    left = 6 * _BATCH
    with gzip.open(path) as packed, tarfile.open(fileobj=packed, mode="r|", tarinfo=_Member) as archive:
        for member in archive:
            name = PurePosixPath(member.name).name
            chosen = name in wanted and member.type in (tarfile.REGTYPE, tarfile.AREGTYPE)
            if chosen:
                _check_batch_size(f"{path}: {name}", member.size)
            left -= 512 + member.size
            if left < 0 or member.size < 0:
                raise DataError(f"{path}: unpacks to more than {6 * _BATCH} bytes; CIFAR-10 has 186 million")
            if chosen and (batch := archive.extractfile(member)) is not None:
                yield name, batch.read()
            archive.members.clear()  # type: ignore[attr-defined]  # it would keep them all


class _Member(tarfile.TarInfo):
    """A member without extension headers, which tarfile would read whole: here they are skipped like any member."""

    def _proc_member(self, archive: tarfile.TarFile) -> Any:
        return self._proc_builtin(archive)  # type: ignore[attr-defined]


def _check_batch_size(where: Any, size: int) -> None:
    if size > _BATCH:
        raise DataError(f"{where}: {size} bytes; a batch of CIFAR-10 has 31 million")


def _binary_batch(content: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    record = 1 + math.prod(_PLANES)
    if len(content) % record:
        raise DataError(f"{where}: {len(content)} bytes are not a multiple of the {record} of an example")
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    return records[:, 1:].reshape(-1, *_PLANES), records[:, 0].astype(np.int64)


def _python_batch(content: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    with reading(where, "CIFAR-10"):
        batch = _unpickled(content, where)
        if not all(isinstance(key, str | bytes) for key, _ in batch.items()):
            raise DataError(f"{where}: a table with keys that are no texts")
        batch = {key.decode("latin-1") if isinstance(key, bytes) else key: value for key, value in batch.items()}
        labels, (_, shape, dtype, fortran, pixels) = batch["labels"], batch["data"].state
        declared = (shape, dtype.args[0], fortran, len(pixels))
    n, width = len(labels), math.prod(_PLANES)
    if declared not in (((n, width), kind, False, n * width) for kind in ("u1", b"u1")) or type(pixels) is not bytes:
        raise DataError(f"{where}: the images are not one row of {width} bytes for each of its labels")
    if not all(type(label) is int for label in labels):
        raise DataError(f"{where}: labels that are not whole numbers")
    return np.frombuffer(pixels, np.uint8).reshape(-1, *_PLANES), np.array(labels, np.int64)


_PLAIN_OPERATIONS = {  # the operations of a pickle that make plain values and containers, and of arrays
    *("PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG1"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "UNICODE", "BINUNICODE"),
    *("SHORT_BINUNICODE", "LIST", "EMPTY_LIST", "APPEND", "APPENDS", "TUPLE", "EMPTY_TUPLE", "TUPLE1", "TUPLE2"),
    *("TUPLE3", "DICT", "EMPTY_DICT", "SETITEM", "SETITEMS", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET"),
    *("BINGET", "LONG_BINGET", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"),
}
_ARRAYS = {
    *("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct", "numpy.ndarray", "numpy.dtype"),
}


class _ArrayState:
    """Replaces NumPy's constructors in a pickle: holds the arguments and the state that they would get."""

    def __init__(self, *args: Any):
        self.args, self.state = args, None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, where: str):
        super().__init__(io.BytesIO(content), encoding="bytes")
        self.where = where

    def find_class(self, module: str, name: str) -> type:
        if f"{module}.{name}" not in _ARRAYS:
            raise DataError(f"{self.where}: it asks for {f'{module}.{name}'[:100]!a}, which is refused")
        return _ArrayState


def _unpickled(content: bytes, where: str) -> Any:
    """The content of a pickle, with arrays as :class:`_ArrayState`.

    Its operations are checked first, because Python's unpickler takes 64 bytes for a list of one byte, and as much
    memory as the largest index of a memo asks for. A valid batch has few operations and small indices.
    """
    most = 1000 + len(content) // 50
    with warnings.catch_warnings():  # of escapes in texts that Python does not know
        warnings.simplefilter("ignore")
        for count, (operation, value, _) in enumerate(pickletools.genops(content)):
            if operation.name not in _PLAIN_OPERATIONS:
                raise DataError(f"{where}: the operation {operation.name} of a pickle, which is refused")
            number = abs(value) if isinstance(value, int) else 0
            if max(count, number if "PUT" in operation.name else 0) > most or number >= 2**31:
                raise DataError(f"{where}: a pickle made to exhaust memory")
        return _Unpickler(content, where).load()
