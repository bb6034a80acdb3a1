"""Reads a federated HDF5 file in a process of its own, given FILE FOLDER BYTES SECONDS.

A damaged file can keep the HDF5 library busy for ever, or make it crash; so fedax runs this and waits for a limited
time. It writes plain arrays and names.json into the folder. What is wrong with the file goes to standard output, with
exit code 3. It imports nothing of fedax.
"""

import contextlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

_CLIENTS = 1_000_000
_ARRAYS = {"pixels": "label", "image": "label"}  # name of the array of pictures -> name of that of their labels


def read(file: Path, folder: Path, left: int) -> None:
    """Write ``x.npy`` and ``y.npy``, or ``text.npy``, with ``names.json`` and ``sizes.npy``.

    Args:
        file: with ``examples/<client>/<array>``.
        folder: where to write.
        left: bytes that the arrays may take.

    Raises:
        ValueError: the file holds something else, or declares more than it may.
    """
    import h5py

    with h5py.File(file, "r") as opened:
        examples = _member(opened, "examples", h5py.Group, "the file")
        names = list(examples)
        if not 0 < len(names) <= _CLIENTS:
            raise ValueError(f"{len(names)} clients in 'examples'")
        clients = {name: _member(examples, name, h5py.Group, "examples") for name in names}
        first = clients[names[0]]
        key = next((key for key in (*_ARRAYS, "snippets") if key in first), None)
        if key is None:
            raise ValueError(f"examples/{names[0]!r} has {', '.join(map(repr, first)) or 'nothing'}; {_WANTED}")
        texts = key == "snippets"
        sizes = _write_texts(clients, folder, left) if texts else _write_pictures(clients, key, folder, left)
    np.save(folder / "sizes.npy", np.array(sizes, np.int64))
    (folder / "names.json").write_text(json.dumps(names), encoding="utf-8")


_WANTED = "it needs pixels or image with label, or snippets"


def _write_texts(clients: dict[str, Any], folder: Path, left: int) -> list[int]:
    texts = []
    for name, client in clients.items():
        where = f"examples/{name!r}"
        column = _dataset(client, "snippets", where, left)
        if not _is_text(column):
            raise ValueError(f"{where}: snippets hold {column.dtype}, no texts")
        text = "\n".join(map(str, np.ravel(column.asstr("latin-1")[()]))).replace("\r", "")
        texts.append(np.frombuffer(text.encode("latin-1"), np.uint8))
        left -= 16 * len(text)
        if left < 0:
            raise ValueError(f"{where}: its texts are too much for the file's size")
    np.save(folder / "text.npy", np.concatenate(texts))
    return [len(each) for each in texts]


def _write_pictures(clients: dict[str, Any], key: str, folder: Path, left: int) -> list[int]:
    columns = []
    for name, client in clients.items():
        where = f"examples/{name!r}"
        x = _dataset(client, key, where, left)
        y = _dataset(client, _ARRAYS[key], where, left)
        if x.ndim not in (3, 4) or y.shape != x.shape[:1] or x.dtype.kind not in "buf" or y.dtype.kind not in "iu":
            raise ValueError(f"{where}: {key} {x.dtype} {x.shape} and labels {y.dtype} {y.shape} do not go together")
        left -= x.size * x.dtype.itemsize + 8 * y.size
        columns.append((where, x, y))
        like = columns[0][1]
        if x.shape[1:] != like.shape[1:] or x.dtype != like.dtype:
            raise ValueError(f"{where}: {key} {x.dtype} {x.shape}, of the first client {like.dtype} {like.shape}")
    sizes = [len(y) for _, _, y in columns]
    labels = np.zeros(sum(sizes), np.int32)
    pictures: Any = np.lib.format.open_memmap(
        folder / "x.npy", "w+", columns[0][1].dtype, (sum(sizes), *columns[0][1].shape[1:])
    )
    at = 0
    for where, x, y in columns:
        client_labels = y[()].astype(np.int64)
        if len(client_labels) and not 0 <= client_labels.min() <= client_labels.max() < 2**31:
            raise ValueError(f"{where}: labels from {client_labels.min()} to {client_labels.max()}")
        pictures[at : at + len(client_labels)], labels[at : at + len(client_labels)] = x[()], client_labels
        at += len(client_labels)
    pictures.flush()
    np.save(folder / "y.npy", labels)
    return sizes


def _is_text(column: Any) -> bool:
    import h5py

    return h5py.check_string_dtype(column.dtype) is not None


def _member(group: Any, name: str, kind: Any, where: str) -> Any:
    """The member of a group, which has to be in this file and of this kind."""
    import h5py

    if name not in group:
        raise ValueError(f"there is no {name!r} in {where}")
    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise ValueError(f"{name!r} in {where} is a link, which is not followed")
    member = group[name]
    if not isinstance(member, kind):
        raise ValueError(f"{name!r} in {where} is no {kind.__name__.lower()}")
    return member


def _dataset(client: Any, name: str, where: str, left: int) -> Any:
    """An array that takes at most ``left`` bytes, the rest of what a file of this size may unpack to."""
    import h5py

    dataset = _member(client, name, h5py.Dataset, where)
    if dataset.is_virtual or dataset.external:
        raise ValueError(f"{where}: {name} lies in another file, which is not read")
    text = _is_text(dataset)
    if not text and (dataset.dtype.kind not in "biuf" or dataset.dtype.subdtype is not None):
        raise ValueError(f"{where}: {name} holds {str(dataset.dtype)[:60]}; numbers and texts are read")
    wide = max(dataset.dtype.itemsize, 16 if text else 1)
    if dataset.shape is None or max(dataset.size, math.prod(dataset.chunks or ())) * wide > left:
        raise ValueError(f"{where}: {name} declares {dataset.shape}, too much for the file's size")
    return dataset


if __name__ == "__main__":
    with contextlib.suppress(ImportError):  # not on Windows
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[4]), int(sys.argv[4])))  # also if nobody waits any more
    try:
        read(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
    except Exception as error:  # of many kinds, by HDF5's library
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        print(f"{kind}{error}"[:500].replace("\n", " ").encode("ascii", "backslashreplace").decode())
        sys.exit(3)
