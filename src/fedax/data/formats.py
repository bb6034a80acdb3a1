"""File formats of data sets: idx, CIFAR-10 (Python and binary), LIBSVM text, LEAF JSON, NumPy archives.

A file is not trusted: what it declares is checked against its length before memory is taken for it, and no pickle is
run. What cannot be read raises a DataError that names the file.
"""

import contextlib
import gzip
import io
import json
import math
import pickle
import pickletools
import struct
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from fedax.errors import DataError

_DEFLATE = 1032  # deflate packs no more than so many bytes into one
_BATCH = 1 << 26  # bytes; a batch of CIFAR-10 has 31 million
_PLANES = (3, 32, 32)


def read_idx(path: Path) -> np.ndarray:
    """The array of an idx file of unsigned bytes, gzipped or not: uint8, in the shape that the file declares.

    Raises:
        DataError: another kind of file, or its length is not what its header says.

    Source:
        Format of MNIST (LeCun, Cortes, Burges): two zero bytes, the type 8, the number of axes, their lengths as
        big-endian 32-bit numbers, the bytes.
    """
    with _reading(path, "an idx file"):
        stored = path.stat().st_size
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as file:
            zeros, kind, axes = struct.unpack(">HBB", file.read(4))
            if zeros or kind != 8 or not 1 <= axes <= 4:
                start = f"{zeros:04x}{kind:02x}{axes:02x}"
                raise DataError(f"{path}: starts with {start}; an idx file of bytes starts with 000008 and its axes")
            shape = struct.unpack(f">{axes}I", file.read(4 * axes))
            declared = math.prod(shape)
            if declared > stored * (_DEFLATE if packed else 1):
                raise DataError(f"{path}: declares {shape} bytes, but the file has only {stored}")
            content = file.read(declared + 1)
        if len(content) != declared:
            more = "more" if len(content) > declared else f"only {len(content)}"
            raise DataError(f"{path}: declares {shape} bytes, but holds {more}")
    return np.frombuffer(content, np.uint8).reshape(shape)


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
    with _reading(path, "CIFAR-10"):
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

    with _reading(path, f"LIBSVM text of {features} features"):
        x, y = load_svmlight_file(str(path), n_features=features, dtype=np.float32, zero_based=False)
    if not len(y):
        raise DataError(f"{path}: holds no example")
    if not (np.isfinite(x.data).all() and np.isfinite(y).all()):
        raise DataError(f"{path}: holds values that are not finite")
    return x.toarray(), y.astype(np.float32)


def read_leaf(folder: Path) -> Iterator[tuple[str, list, list]]:
    """The users of a LEAF data set who have examples: name, examples x and labels y, as the JSON files have them.

    Args:
        folder: with files ``*.json``, such as ``femnist/data/train``; read in the order of their names.

    Raises:
        DataError: no such file, another structure, a user that occurs twice, or no example at all.

    Source:
        Caldas et al. 2018 (LEAF): ``{"users": […], "num_samples": […], "user_data": {user: {"x": […], "y": […]}}}``.
    """
    files = sorted(folder.glob("*.json"))
    if not files:
        raise DataError(f"{folder}: no .json file in it")
    seen = set()
    for path in files:
        with _reading(path, "LEAF JSON"):
            content = json.loads(path.read_text(encoding="utf-8"))
            users, counts, data = content["users"], content["num_samples"], content["user_data"]
            for user, count in zip(users, counts, strict=True):
                x, y = data[user]["x"], data[user]["y"]
                if not isinstance(x, list) or not isinstance(y, list) or not len(x) == len(y) == count:
                    raise DataError(f"{path}: user {user!r} has not the {count} examples that num_samples says")
                if user in seen:
                    raise DataError(f"{path}: user {user!r} occurs twice")
                if count:  # a user without examples is no client
                    seen.add(user)
                    yield user, x, y
    if not seen:
        raise DataError(f"{folder}: no example in its files")


def read_npz(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The named arrays of a NumPy archive.

    Raises:
        DataError: no such array, an array of Python objects, or sizes that do not fit the file.
    """
    arrays = {}
    with _reading(path, "a NumPy archive"), zipfile.ZipFile(path) as archive:
        for name in names:
            if f"{name}.npy" not in archive.namelist():
                raise DataError(f"{path}: no array {name!r} in it; it has {', '.join(archive.namelist())}")
            info = archive.getinfo(f"{name}.npy")
            with archive.open(info) as file:
                version = np.lib.format.read_magic(file)
                read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
                shape, fortran, dtype = read_header[version](file)
                if dtype.hasobject:
                    raise DataError(f"{path}: {name} holds Python objects, which are not read")
                declared = math.prod(shape) * dtype.itemsize
                stored = min(info.compress_size, path.stat().st_size)
                if file.tell() + declared != info.file_size or declared > stored * _DEFLATE:
                    raise DataError(f"{path}: {name} declares {shape} of {dtype}, which is not what the file holds")
                flat = np.frombuffer(file.read(), dtype)
            arrays[name] = flat.reshape(shape, order="F" if fortran else "C")
    return arrays


def npz_names(path: Path) -> list[str]:
    """The names of the arrays of a NumPy archive.

    Raises:
        DataError: another kind of file.
    """
    with _reading(path, "a NumPy archive"), zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


@contextlib.contextmanager
def _reading(path: Path, kind: str) -> Iterator[None]:
    """Turn whatever a decoder raises on bad input, which can be nearly anything, into a DataError naming the file."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{path}: cannot be read as {kind}: {error!r}") from error


def _cifar10_files(path: Path, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """File name and content of each batch that is there; an archive is not unpacked on disk."""
    wanted = {*names, *(f"{name}.bin" for name in names)}
    if path.is_dir():
        for file in sorted(path.iterdir()):
            if file.name in wanted:
                _check_batch_size(file, file.stat().st_size)
                yield file.name, file.read_bytes()
        return
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            name = PurePosixPath(member.name).name
            if member.isfile() and name in wanted and (content := archive.extractfile(member)) is not None:
                _check_batch_size(f"{path}: {name}", member.size)
                yield name, content.read()


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
    # The unpickler takes memory up to the largest number of a memo before it has seen that many objects.
    if any(
        "PUT" in opcode.name and int(number or 0) > len(content) for opcode, number, _ in pickletools.genops(content)
    ):
        raise DataError(f"{where}: a pickle made to exhaust memory")
    batch = _InertUnpickler(io.BytesIO(content), encoding="bytes").load()
    _, shape, dtype, fortran, pixels = batch[b"data"].state
    labels = batch[b"labels"]
    declared = (shape, dtype.args[0], fortran, type(pixels))
    if declared != ((len(labels), math.prod(_PLANES)), b"u1", False, bytes):
        raise DataError(f"{where}: the images are not one row of {math.prod(_PLANES)} bytes for each of its labels")
    if not all(type(label) is int for label in labels):
        raise DataError(f"{where}: labels that are not whole numbers")
    return np.frombuffer(pixels, np.uint8).reshape(-1, *_PLANES), np.array(labels, np.int64)


class _Inert:
    """Stands in for NumPy's constructors while a pickle is read: keeps what they would get, does nothing with it."""

    def __init__(self, *args: Any):
        self.args = args

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _InertUnpickler(pickle.Unpickler):
    """Reads plain containers and NumPy arrays (as :class:`_Inert`); every other name in a pickle is refused."""

    def find_class(self, module: str, name: str) -> type[_Inert]:
        if (module, name) in {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
        }:
            return _Inert
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is refused")
