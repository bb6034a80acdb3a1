"""Federated data sets in HDF5, as TensorFlow Federated gives them: ``examples/<client>/<array>``."""

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from fedax.data.cells import few, shown
from fedax.data.federated import FederatedData
from fedax.data.formats import need, reading, room
from fedax.data.readers import windows
from fedax.errors import DataError
from fedax.files import regular

_CLIENTS = 1_000_000
_ARRAYS = {"pixels": "label", "image": "label"}  # of a picture -> that of its label


def from_tff_hdf5(path: str | os.PathLike) -> FederatedData:
    """A federated data set of TensorFlow Federated in an HDF5 file: EMNIST, CIFAR-100 or Shakespeare.

    Needs h5py: ``pip install 'fedax[hdf5]'``. Links to other files are not followed.

    Args:
        path: such as ``fed_emnist_train.h5``, with ``examples/<client>/pixels`` (or ``image``) and ``label``; or with
            ``snippets``, texts, which become windows of 80 characters as in :func:`fedax.data.load`.

    Returns:
        ``x`` [n, height, width, channels] of the type that the file has, or of text uint8 [n, 80]; ``y`` int32 [n],
        or of text uint8 [n, 80], one character on; with the clients' names. Clients whose text is shorter than 81
        characters are left out.

    Raises:
        DataError: the file cannot be read, or holds something else.

    Example:
        >>> from_tff_hdf5("nothing.h5")
        Traceback (most recent call last):
        fedax.errors.DataError: nothing.h5: cannot be read (No such file or directory)
    """
    place = Path(path)
    stored = regular(place)
    h5py = need("h5py", "hdf5", "reading HDF5")
    arrays: dict[str, dict[str, np.ndarray]] = {}
    left = room(stored)
    with reading(place, "HDF5"), h5py.File(place, "r") as file:
        examples = _inside(h5py, file, "examples", h5py.Group, place)
        names = list(examples)
        if not 0 < len(names) <= _CLIENTS:
            raise DataError(f"{place}: {len(names)} clients in 'examples'")
        for name in names:
            where = f"{place}: examples/{shown(name)}"
            client = _inside(h5py, examples, name, h5py.Group, where)
            if (key := next((key for key in _ARRAYS if key in client), None)) is not None:
                x = _read(h5py, client, key, where, left)
                y = _read(h5py, client, _ARRAYS[key], where, left)
                found = _pictures(x, y, where)
            elif "snippets" in client:
                found = _texts(_read(h5py, client, "snippets", where, left), where)
            else:
                raise DataError(f"{where}: it has {few(client)}; it needs pixels or image with label, or snippets")
            left -= sum(array.nbytes for array in found.values())
            if len(found["y"]):
                arrays[name] = found
    if not arrays:
        raise DataError(f"{place}: no client has an example")
    try:
        return FederatedData.from_clients(arrays)
    except DataError as error:
        raise DataError(f"{place}: {error}") from None


def _inside(h5py: Any, group: Any, name: str, kind: Any, where: Any) -> Any:
    """What is in the file itself under this name."""
    if name not in group:
        raise DataError(f"{where}: there is no {shown(name)} in it")
    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise DataError(f"{where}: {shown(name)} is a link, which is not followed")
    found = group[name]
    if not isinstance(found, kind):
        raise DataError(f"{where}: {shown(name)} is no {kind.__name__.lower()}")
    return found


def _read(h5py: Any, client: Any, name: str, where: str, left: int) -> np.ndarray:
    """An array, if it takes no more than is left of what a file of this size may unpack to."""
    found = _inside(h5py, client, name, h5py.Dataset, where)
    if found.is_virtual or found.external:
        raise DataError(f"{where}: {shown(name)} lies in another file, which is not read")
    text = h5py.check_string_dtype(found.dtype) is not None
    if not text and (found.dtype.kind not in "biuf" or found.dtype.subdtype is not None):
        raise DataError(f"{where}: {shown(name)} holds {shown(str(found.dtype))}; numbers and texts are read")
    chunk = math.prod(found.chunks or (1,)) * found.dtype.itemsize
    if found.shape is None or max(found.size * max(found.dtype.itemsize, 16 if text else 1), chunk) > left:
        raise DataError(f"{where}: {shown(name)} declares {found.shape}, too much for the file's size")
    return found.asstr("latin-1")[()] if text else found[()]


def _pictures(x: np.ndarray, y: np.ndarray, where: str) -> dict[str, np.ndarray]:
    if x.ndim not in (3, 4) or y.shape != x.shape[:1] or y.dtype.kind not in "iu":
        raise DataError(f"{where}: pictures {x.dtype} {x.shape} and labels {y.dtype} {y.shape} do not go together")
    if len(y) and not 0 <= y.min() <= y.max() < 2**31:
        raise DataError(f"{where}: labels from {y.min()} to {y.max()}")
    return {"x": x[..., None] if x.ndim == 3 else x, "y": y.astype(np.int32)}


def _texts(snippets: np.ndarray, where: str) -> dict[str, np.ndarray]:
    text = "\n".join(map(str, np.ravel(snippets))).replace("\r", "")
    return windows(np.frombuffer(text.encode("utf-32-le"), "<u4"), where)
