"""The data sets that fedax knows by name, and readers of the files in which they are published."""

import importlib.metadata
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple, overload

import numpy as np

from fedax.data.federated import FederatedData
from fedax.data.formats import npz_names, read_cifar10, read_idx, read_leaf, read_libsvm, read_npz, room
from fedax.errors import DataError
from fedax.files import regular
from fedax.numbers import narrowed
from fedax.registry import Registry

Arrays = dict[str, np.ndarray]
Parts = tuple[Arrays, Arrays | None, Arrays]  # train, test, groups

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
"""What the numbers of a text data set mean: ``"".join(CHARACTERS[i] for i in x[0])``."""

_WINDOW = 80  # characters, as in LEAF


class _Pictures(NamedTuple):
    """The shape of a data set's pictures, [height, width, channels], and the number of classes."""

    shape: tuple[int, int, int]
    classes: int


_SMALL = _Pictures((8, 8, 1), 10)
_GREY = _Pictures((28, 28, 1), 10)
_COLOUR = _Pictures((32, 32, 3), 10)
_WRITTEN = _Pictures((28, 28, 1), 62)
_TISSUE = _Pictures((28, 28, 3), 9)


@dataclass(frozen=True, repr=False)
class Dataset:
    """Pooled examples, before they are dealt to clients.

    Args:
        name: as given to :func:`load`.
        train: ``{"x": [n, ...], "y": [n, ...]}``. Images are uint8 [n, height, width, channels], 0 to 255, their class
            labels int32 [n]. Text is uint8 [n, 80], numbers into ``fedax.data.CHARACTERS``, and ``y`` is ``x`` one
            character on. The LIBSVM sets are dense float32 [n, d] with labels −1 and 1 in float32 [n].
        test: held-out examples in the same form, or ``None``.
        classes: C where labels (or characters) are whole numbers from 0 to C − 1, else ``None``.
        groups: columns [n] of whole numbers: whose each training example is, e.g. ``{"writer": ids}``; for
            :func:`fedax.data.by_column`.

    Example:
        >>> digits = load("digits")
        >>> digits.classes, digits.test["x"].shape
        (10, (355, 8, 8, 1))
    """

    name: str
    train: Arrays
    test: Arrays | None
    classes: int | None
    groups: Arrays = field(default_factory=dict)

    def __repr__(self) -> str:
        test = "no" if self.test is None else len(self.test["y"])
        groups = "".join(f", {len(np.unique(column))} of {group}" for group, column in self.groups.items())
        return f"Dataset({self.name}: {len(self.train['y'])} training and {test} test examples{groups})"


@overload
def load(name: Literal["heart"], folder: str | os.PathLike | None = None) -> FederatedData: ...  # type: ignore[overload-overlap]
@overload
def load(name: str, folder: str | os.PathLike | None = None) -> Dataset: ...
def load(name: str, folder: str | os.PathLike | None = None) -> Dataset | FederatedData:
    """A data set by name, from files that you have; nothing is downloaded.

    Args:
        name: one of :func:`available`; ``digits`` needs no file.
        folder: where the files are. Default: the environment variable ``FEDAX_DATA``.

    Returns:
        The pooled examples; of ``heart``, which comes in clients, those of :func:`fedax.data.heart`.

    Raises:
        ConfigError: no such name.
        DataError: none of its files is there (the message says which would do, and who has them), or one is damaged.

    Example:
        >>> digits = load("digits")
        >>> digits
        Dataset(digits: 1442 training and 355 test examples)
        >>> digits.train["x"].shape, digits.train["x"].dtype
        ((1442, 8, 8, 1), dtype('uint8'))
    """
    name = SETS.get(name).name
    known = _SETS[name]
    if name == "digits":
        return Dataset(name, *_digits(), known.classes)
    if name == "heart":
        from fedax.data.heart import heart  # it imports from here

        return heart(folder)
    given = folder if folder is not None else os.environ.get("FEDAX_DATA")
    if given:
        for read in known.readers:
            try:
                parts = read(Path(given))
            except OSError as error:  # no permission, a name that is too long, a broken disk
                raise DataError(f"{name}: {given} cannot be read ({error.strerror or error})") from error
            if parts is not None:
                train, test, groups = parts
                return Dataset(name, train, test, known.classes, groups)
    raise nothing_of(name, given)


def nothing_of(name: str, given: str | os.PathLike | None) -> DataError:
    """The error for a data set whose files are not in the folder ``given``."""
    known = _SETS[name]
    looked = f"nothing of it in {Path(given).absolute()}" if given else "no folder given, and FEDAX_DATA is not set"
    return DataError(f"{name}: {looked}. These files there would do: {known.files}. Get them from {known.page}")


def available() -> dict[str, str]:
    """The names that :func:`load` knows, each with one line.

    Example:
        >>> available()["digits"]
        '8×8 grey digits, 10 classes, 1442 + 355; comes with scikit-learn'
    """
    return SETS.available()


def _digits() -> tuple[Arrays, Arrays]:
    """A fifth of each class, drawn at random but always the same, is held out."""
    pixels, y = _scikit_learns_digits()
    x = np.rint(pixels.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)  # values are 0 to 16
    generator = np.random.default_rng(0)
    held_out = np.zeros(len(y), bool)
    for c in range(10):
        rows = np.flatnonzero(y == c)
        held_out[generator.permutation(rows)[: len(rows) // 5]] = True
    where = "scikit-learn's digits"
    return _images(x[~held_out], y[~held_out], _SMALL, where), _images(x[held_out], y[held_out], _SMALL, where)


def _scikit_learns_digits() -> tuple[np.ndarray, np.ndarray]:
    """[1797, 64] pixels and [1797] labels, read from scikit-learn's file: to import scikit-learn takes a second."""
    try:
        file = importlib.metadata.distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
        table = np.loadtxt(str(file), np.int64, delimiter=",")
    except (OSError, importlib.metadata.PackageNotFoundError):  # it is elsewhere
        from sklearn.datasets import load_digits

        return load_digits(return_X_y=True)
    return table[:, :-1], table[:, -1]


def _image_npz(
    folder: Path, file: str, kind: _Pictures, keys: tuple[str, str, str, str], group: str | None = None
) -> Parts | None:
    """``keys`` are the names of the training images and labels and of the test images and labels."""
    path = folder / file
    if not path.exists():
        return None
    x, y, x_test, y_test = read_npz(path, keys).values()
    groups = {}
    if group is not None and (column := f"{group}_train") in npz_names(path):  # most copies do not have it
        groups[group] = _column(read_npz(path, [column])[column], len(x), f"{path}: {column}")
    return _images(x, y, kind, path), _images(x_test, y_test, kind, path), groups


def _image_idx(folder: Path, subfolders: tuple[str, ...]) -> Parts | None:
    """Only in folders of their own, since the files of MNIST and of Fashion-MNIST have the same names."""
    files = [f"{split}-{what}-ubyte" for split in ("train", "t10k") for what in ("images-idx3", "labels-idx1")]
    for place in (folder / name for name in subfolders):
        files_there = {file: path for file in files if (path := _first(place, file, f"{file}.gz"))}
        if not files_there:
            continue
        if missing := [file for file in files if file not in files_there]:
            raise DataError(f"{place}: {', '.join(missing)} not in it")
        x, y, x_test, y_test = map(read_idx, files_there.values())
        return _images(x, y, _GREY, place), _images(x_test, y_test, _GREY, place), {}
    return None


def _cifar10_npz(folder: Path) -> Parts | None:
    """Five parts, each with the places of its images in the original order."""
    paths = [folder / f"cifar10_part{i}.npz" for i in range(5)]
    if not any(path.exists() for path in paths):
        return None
    return _ordered(paths, "train"), _ordered(paths, "test"), {}


def _ordered(paths: Sequence[Path], split: str) -> Arrays:
    parts, indices = [], []
    for path in paths:
        x, y, index = read_npz(path, [f"x_{split}", f"y_{split}", f"index_{split}"]).values()
        parts.append(_images(x, y, _COLOUR, path))
        indices.append(_column(index, len(x), f"{path}: index_{split}"))
    index = np.concatenate(indices)
    order = np.argsort(index)
    if not np.array_equal(index[order], np.arange(len(index))):
        raise DataError(f"{paths[0]} and its other parts: index_{split} do not make one order")
    return {key: column[order] for key, column in _concatenated(parts).items()}


def _cifar10_original(folder: Path) -> Parts | None:
    path = _first(folder, "cifar-10-python.tar.gz", "cifar-10-binary.tar.gz")
    path = path or _first(folder, "cifar-10-batches-py", "cifar-10-batches-bin")
    if path is None:
        return None
    *train, (x_test, y_test) = read_cifar10(path).values()
    x, y = (np.concatenate(arrays) for arrays in zip(*train, strict=True))
    return _images(x, y, _COLOUR, path), _images(x_test, y_test, _COLOUR, path), {}


def _csr_npz(folder: Path, file: str, features: int) -> Parts | None:
    path = folder / file
    if not path.exists():
        return None
    train, test = (
        _dense(path, split, features) if f"{split}_y" in npz_names(path) else None for split in ("train", "test")
    )
    if train is None:
        raise DataError(f"{path}: no array 'train_y' in it")
    return train, test, {}


def _dense(path: Path, split: str, features: int) -> Arrays:
    """From compressed sparse rows: row i has ``data[k]`` in column ``indices[k]``, indptr[i] ≤ k < indptr[i + 1]."""
    names = [f"{split}_{key}" for key in ("y", "data", "indices", "indptr", "shape")]
    y, data, indices, ends, shape = read_npz(path, names).values()
    n = len(y) if y.ndim else 0
    ends = _column(ends, n + 1, f"{path}: {split}_indptr")
    indices = _column(indices, int(ends[-1]), f"{path}: {split}_indices")
    in_range = ends[0] == 0 and (np.diff(ends) >= 0).all() and (indices >= 0).all() and (indices < features).all()
    if not in_range or shape.tolist() != [n, features] or data.shape != indices.shape or data.dtype.kind not in "iuf":
        raise DataError(f"{path}: the {split} arrays are not a sparse matrix [{n}, {features}]")
    data = narrowed(data, np.float32, f"{path}: {split}_data")
    if 4 * n * features > (most := room(regular(path))):
        raise DataError(f"{path}: [{n}, {features}] takes more than {most} bytes, too many for a file of its size")
    x = np.zeros((n, features), np.float32)
    x[np.repeat(np.arange(n), np.diff(ends)), indices] = data
    return _signed(x, y, path)


def _libsvm_text(folder: Path, name: str, features: int) -> Parts | None:
    endings = ("", ".txt", ".gz", ".bz2")
    train = _first(folder, *(f"{name}{end}" for end in endings))
    test = _first(folder, *(f"{name}.t{end}" for end in endings))
    if train is None:
        return None
    held_out = None if test is None else _signed(*read_libsvm(test, features), test)
    return _signed(*read_libsvm(train, features), train), held_out, {}


def _shakespeare_npz(folder: Path) -> Parts | None:
    """Each role's lines in windows that do not overlap; of m windows the last ⌈m/5⌉ are held out.

    A role is a client. Roles of fewer than two windows (161 characters) are left out. McMahan et al. 2017 hold out the
    last fifth of each role's lines in the same way.
    """
    path = folder / "shakespeare_roles.npz"
    if not path.exists():
        return None
    text, ends = read_npz(path, ["text", "role_ptr"]).values()
    ends = _column(ends, ends.size, f"{path}: role_ptr")
    if text.ndim != 1 or text.dtype != np.uint8 or ends.size < 2:
        raise DataError(f"{path}: text must be uint8 [n], and role_ptr hold the ends of its roles")
    if ends[0] != 0 or ends[-1] != len(text) or (np.diff(ends) < 0).any():
        raise DataError(f"{path}: role_ptr does not cut up the text")
    train, test, roles = [], [], []
    for role, (start, end) in enumerate(pairwise(ends)):
        examples = windows(text[start:end], path)
        if (number := len(examples["y"])) < 2:
            continue
        cut = number - -(-number // 5)
        train.append({name: array[:cut] for name, array in examples.items()})
        test.append({name: array[cut:] for name, array in examples.items()})
        roles.append(np.full(cut, role))
    if not roles:
        raise DataError(f"{path}: no role speaks {2 * _WINDOW + 1} characters")
    return _concatenated(train), _concatenated(test), {"role": np.concatenate(roles)}


def _leaf(folder: Path, name: str, group: str, convert: Callable[[list, list, str], Arrays]) -> Parts | None:
    """A LEAF data set after its preprocessing; ``convert`` turns the examples of a user into arrays."""
    place = _first(folder, f"{name}/data/train", f"{name}/train")
    if place is None:
        return None
    train = [convert(x, y, f"{place}: user {user[:100]!r}") for user, x, y in read_leaf(place)]
    ids = np.repeat(np.arange(len(train)), [len(user["y"]) for user in train])
    held_out = place.with_name("test")
    if not held_out.is_dir():
        return _concatenated(train), None, {group: ids}
    test = [convert(x, y, f"{held_out}: user {user[:100]!r}") for user, x, y in read_leaf(held_out)]
    return _concatenated(train), _concatenated(test), {group: ids}


def _leaf_image(x: list, y: list, where: str) -> Arrays:
    """LEAF stores grey values, 0 to 255, divided by 255."""
    images = np.empty((len(x), 28, 28), np.uint8)
    for image, row in zip(images, x, strict=True):  # one by one, for as numbers they take four and eight times as much
        if not isinstance(row, list) or len(row) != 784 or not {*map(type, row)} <= {int, float}:
            raise DataError(f"{where}: x is not 784 numbers an example")
        if not (min(row) >= 0 and max(row) <= 1.0001):  # not-a-number passes neither here nor below
            raise DataError(f"{where}: x holds values that are not 0, 1, … 255 divided by 255")
        values = 255 * np.array(row, np.float64).reshape(28, 28)
        grey = np.rint(values)
        if not (np.abs(values - grey) < 0.01).all():
            raise DataError(f"{where}: x holds values that are not 0, 1, … 255 divided by 255")
        image[:] = grey
    if not all(type(label) is int and 0 <= label < _WRITTEN.classes for label in y):
        raise DataError(f"{where}: labels that are not whole numbers from 0 to {_WRITTEN.classes - 1}")
    return _images(images, np.array(y, np.int64), _WRITTEN, where)


def _leaf_text(x: list, y: list, where: str) -> Arrays:
    """LEAF gives 80 characters and the next one; the labels of the others are the characters themselves."""
    pairs = list(zip(x, y, strict=True))
    if not all(isinstance(a, str) and isinstance(b, str) and (len(a), len(b)) == (_WINDOW, 1) for a, b in pairs):
        raise DataError(f"{where}: an example is not {_WINDOW} characters and the next one")
    codes = np.frombuffer("".join(a + b for a, b in pairs).encode("utf-32-le", "surrogatepass"), "<u4")
    windows = _characters(codes, where).reshape(-1, _WINDOW + 1)
    return {"x": windows[:, :-1], "y": windows[:, 1:]}


def windows(codes: np.ndarray, where: object) -> Arrays:
    """A text's windows of 80 characters that do not overlap, ``x``, and the same one character on, ``y``.

    Example:
        >>> windows(np.full(200, ord("a")), "here")["y"].shape
        (2, 80)
    """
    numbers = _characters(codes, where)
    number = max(len(numbers) - 1, 0) // _WINDOW
    shape = (number, _WINDOW)
    length = number * _WINDOW
    return {"x": numbers[:length].reshape(shape), "y": numbers[1 : length + 1].reshape(shape)}


def _characters(codes: np.ndarray, where: object) -> np.ndarray:
    """Numbers into CHARACTERS of ASCII codes."""
    newline = codes == 10
    if (bad := ~(newline | (codes >= 32) & (codes < 127))).any():
        raise DataError(f"{where}: the character {chr(codes[bad][0])!r} is neither printable ASCII nor a line's end")
    return np.where(newline, 0, codes - 31).astype(np.uint8)


def _images(x: np.ndarray, y: np.ndarray, kind: _Pictures, where: object) -> Arrays:
    height, width, channels = kind.shape
    if x.dtype != np.uint8 or x.shape[1:] != (kind.shape if channels > 1 or x.ndim == 4 else (height, width)):
        raise DataError(f"{where}: images must be uint8 [n, {height}, {width}, {channels}], not {x.dtype} {x.shape}")
    y = y[:, 0] if y.shape == (len(x), 1) else y
    y = _column(y, len(x), f"{where}: labels")
    if y.size and not 0 <= y.min() <= y.max() < kind.classes:
        raise DataError(f"{where}: labels from {y.min()} to {y.max()}, not 0 to {kind.classes - 1}")
    return {"x": x.reshape(-1, *kind.shape), "y": y.astype(np.int32)}


def _signed(x: np.ndarray, y: np.ndarray, where: object) -> Arrays:
    if y.shape != x.shape[:1] or not np.isin(y, (-1, 1)).all():
        raise DataError(f"{where}: labels must be −1 or 1, one for each of the {len(x)} examples")
    return {"x": x, "y": y.astype(np.float32)}


def _column(values: np.ndarray, n: int, where: str) -> np.ndarray:
    if values.shape != (n,) or not np.issubdtype(values.dtype, np.integer):
        raise DataError(f"{where} must be {n} whole numbers, not {values.dtype} {values.shape}")
    return values.astype(np.int64)


def _concatenated(parts: Sequence[Arrays]) -> Arrays:
    return {key: np.concatenate([part[key] for part in parts]) for key in ("x", "y")}


def _first(folder: Path, *names: str) -> Path | None:
    return next((folder / name for name in names if (folder / name).exists()), None)


@dataclass(frozen=True)
class _Known:
    line: str
    classes: int | None
    readers: tuple[Callable[[Path], Parts | None], ...] = ()
    files: str = ""
    page: str = ""


_KERAS_KEYS = ("x_train", "y_train", "x_test", "y_test")
_MEDMNIST_KEYS = ("train_images", "train_labels", "test_images", "test_labels")
_IDX_FILES = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte (or .gz)"
_LIBSVM_PAGE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html"

_SETS = {
    "digits": _Known("8×8 grey digits, 10 classes, 1442 + 355; comes with scikit-learn", 10),
    "mnist": _Known(
        "28×28 grey digits, 10 classes, 60000 + 10000; by writer where the file says who wrote them",
        10,
        (
            partial(_image_npz, file="mnist.npz", kind=_GREY, keys=_KERAS_KEYS, group="writer"),
            partial(_image_idx, subfolders=("mnist", "MNIST/raw")),
        ),
        f"mnist.npz ({', '.join(_KERAS_KEYS)}); mnist/ or MNIST/raw/ with {_IDX_FILES}",
        "http://yann.lecun.com/exdb/mnist",
    ),
    "fashion_mnist": _Known(
        "28×28 grey pictures of clothes, 10 classes, 60000 + 10000",
        10,
        (
            partial(_image_npz, file="fashion_mnist.npz", kind=_GREY, keys=_KERAS_KEYS),
            partial(_image_idx, subfolders=("fashion_mnist", "FashionMNIST/raw")),
        ),
        f"fashion_mnist.npz ({', '.join(_KERAS_KEYS)}); fashion_mnist/ or FashionMNIST/raw/ with {_IDX_FILES}",
        "https://github.com/zalandoresearch/fashion-mnist",
    ),
    "cifar10": _Known(
        "32×32 colour pictures, 10 classes, 50000 + 10000",
        10,
        (_cifar10_npz, _cifar10_original),
        "cifar-10-python.tar.gz or its folder cifar-10-batches-py/; cifar-10-binary.tar.gz or its folder "
        "cifar-10-batches-bin/; cifar10_part0.npz to cifar10_part4.npz",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
    ),
    "femnist": _Known(
        "28×28 grey letters and digits by writer (LEAF), 62 classes",
        62,
        (partial(_leaf, name="femnist", group="writer", convert=_leaf_image),),
        "femnist/data/train/*.json and femnist/data/test/*.json (or without data/)",
        "https://github.com/TalwalkarLab/leaf",
    ),
    "pathmnist": _Known(
        "28×28 colour pictures of tissue (MedMNIST), 9 classes, 89996 + 7180",
        9,
        (partial(_image_npz, file="pathmnist.npz", kind=_TISSUE, keys=_MEDMNIST_KEYS),),
        "pathmnist.npz",
        "https://medmnist.com",
    ),
    "shakespeare": _Known(
        "plays by role, next-character prediction in windows of 80 characters",
        len(CHARACTERS),
        (_shakespeare_npz, partial(_leaf, name="shakespeare", group="role", convert=_leaf_text)),
        "shakespeare_roles.npz (text, role_ptr); shakespeare/data/train/*.json and shakespeare/data/test/*.json "
        "(or without data/)",
        "https://github.com/TalwalkarLab/leaf",
    ),
    "w8a": _Known(
        "300 binary features, labels −1 and 1, 49749 (+ 14951 where w8a.t is there)",
        None,
        (partial(_csr_npz, file="w8a.npz", features=300), partial(_libsvm_text, name="w8a", features=300)),
        "w8a (or .txt, .gz, .bz2), with w8a.t if there is one; w8a.npz",
        _LIBSVM_PAGE,
    ),
    "a9a": _Known(
        "123 binary features, labels −1 and 1, 32561 + 16281",
        None,
        (partial(_csr_npz, file="a9a.npz", features=123), partial(_libsvm_text, name="a9a", features=123)),
        "a9a (or .txt, .gz, .bz2), with a9a.t if there is one; a9a.npz",
        _LIBSVM_PAGE,
    ),
    "heart": _Known(
        "heart disease at four hospitals, each with its own gaps; 920 patients, 13 columns, 2 classes",
        2,
        files="heart/processed.cleveland.data, processed.hungarian.data, processed.switzerland.data, processed.va.data",
        page="https://archive.ics.uci.edu/dataset/45/heart+disease",
    ),
}

SETS = Registry("data set")
for _name, _known in _SETS.items():
    SETS.add(_name, partial(load, _name), _known.line)
