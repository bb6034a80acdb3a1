"""Federated data sets in HDF5, as TensorFlow Federated gives them: ``examples/<client>/<array>``."""

import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from fedax import children
from fedax.data.cells import naming
from fedax.data.federated import FederatedData
from fedax.data.formats import need, parse_json, reading, room
from fedax.data.readers import windows
from fedax.errors import DataError
from fedax.files import regular

_SECONDS = 60  # the time limit of reading, plus one second for each _BYTES of the file
_BYTES = 1 << 20


def from_tff_hdf5(path: str | os.PathLike) -> FederatedData:
    """A federated data set of TensorFlow Federated in an HDF5 file: EMNIST, CIFAR-100 or Shakespeare.

    Needs h5py: ``pip install 'fedax[hdf5]'``. Links to other files are not followed. The file is read in a process of
    its own, which is given a limited time, since a damaged one can hold up the HDF5 library for ever.

    Args:
        path: such as ``fed_emnist_train.h5``, with ``examples/<client>/pixels`` (or ``image``) and ``label``; or with
            ``snippets``, texts, which become windows of 80 characters as in :func:`fedax.data.load`.

    Returns:
        ``x`` [n, height, width, channels] of the type that the file has, or of text uint8 [n, 80]; ``y`` int32 [n],
        or of text uint8 [n, 80], one character on; with the clients' names. Clients without an example are left out,
        and so are those with less text than 81 characters.

    Raises:
        DataError: the file cannot be read, or holds something else.

    Example:
        >>> from_tff_hdf5("nothing.h5")
        Traceback (most recent call last):
        fedax.errors.DataError: nothing.h5: cannot be read (No such file or directory)
    """
    place = Path(path)
    stored = regular(place)
    need("h5py", "hdf5", "reading HDF5")
    with tempfile.TemporaryDirectory(prefix="fedax-") as scratch:
        folder = Path(scratch)
        _read_in_subprocess(place, folder, room(stored), _SECONDS + stored // _BYTES)
        return made_of(folder, place)


def _read_in_subprocess(path: Path, folder: Path, most: int, seconds: int) -> None:
    script = Path(__file__).with_name("hdf5_reading.py")
    arguments = [str(path.absolute()), str(folder), str(most), str(seconds + 1)]
    with children.start(str(script), arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            answer, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise DataError(f"{path}: not read in {seconds} s; it may be damaged") from None
        finally:
            process.kill()
    if process.returncode:
        message = answer.decode(errors="replace").strip()
        what = message if process.returncode == 3 else "the HDF5 library ended without an answer"
        raise DataError(f"{path}: cannot be read as HDF5: {what[:500]}")


def made_of(folder: Path, path: Path) -> FederatedData:
    """Federated data from the arrays that :mod:`fedax.data.hdf5_reading` wrote; ``path`` is named in errors."""
    with reading(path, "HDF5"):
        names, sizes = parse_json((folder / "names.json").read_bytes()), np.load(folder / "sizes.npy")
        if (folder / "text.npy").exists():
            text = np.load(folder / "text.npy")
            parts = [windows(client_text, path) for client_text in np.split(text, np.cumsum(sizes)[:-1])]
            examples = {key: np.concatenate([part[key] for part in parts]) for key in ("x", "y")}
            sizes = np.array([len(part["y"]) for part in parts])
        else:
            examples = {key: np.load(folder / f"{key}.npy") for key in ("x", "y")}
            x = examples["x"]
            examples["x"] = x[..., None] if x.ndim == 3 else x
    nonempty = np.flatnonzero(sizes)
    if not len(nonempty):
        raise DataError(f"{path}: no client has an example")
    with naming(path):
        return FederatedData(examples, sizes[nonempty], names=[names[i] for i in nonempty])
