"""Pictures: PNG and JPEG files in folders of clients and classes, and pictures in tables."""

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedax.data.cells import few
from fedax.data.federated import FederatedData
from fedax.data.formats import need
from fedax.data.transform import Label, Transform
from fedax.errors import ConfigError, DataError
from fedax.files import name_of, regular

_ENDINGS = (".png", ".jpg", ".jpeg")
_SIDE = 8192  # pixels
_PIXELS = 1 << 26  # of one picture, at most; and no more than 1000 for a byte of its file


def from_image_folders(root: str | os.PathLike, size: Sequence[int] | None = None) -> FederatedData:
    """Pictures in folders, ``root/<client>/<class>/*.png`` or ``.jpg``.

    Needs Pillow: ``pip install 'fedax[images]'``.

    Args:
        root: the folder of the clients' folders.
        size: (height, width) that all get. Default: that which all have.

    Returns:
        ``x`` uint8 [n, height, width, channels], one channel where all are grey, else three; ``y`` int32 classes, in
        the order of their names; with the clients' names, and the classes' in ``.transform.classes``.

    Raises:
        ConfigError: no such folder, or a size that is none.
        DataError: a picture that cannot be read, or has another size than the first; fewer than two classes.

    Example:
        >>> from_image_folders("nothing")
        Traceback (most recent call last):
        fedax.errors.ConfigError: root = 'nothing': there is no such folder
    """
    place = Path(root)
    if not place.is_dir():
        raise ConfigError("root", str(root), "there is no such folder")
    clients = sorted(each for each in place.iterdir() if each.is_dir() and not each.name.startswith("."))
    folders = {
        name_of(client.name): sorted(
            each for each in client.iterdir() if each.is_dir() and not each.name.startswith(".")
        )
        for client in clients
    }
    classes = sorted({name_of(folder.name) for each in folders.values() for folder in each})
    if len(classes) < 2:
        raise DataError(f"{place}: {len(classes)} classes; it needs folders <client>/<class>/ of at least two classes")
    by_client: dict[str, tuple[list[np.ndarray], list[int]]] = {}
    for client, class_folders in folders.items():
        pictures, labels = by_client[client] = ([], [])
        for folder in class_folders:
            for path in sorted(each for each in folder.iterdir() if each.suffix.lower() in _ENDINGS):
                regular(path)
                pictures.append(decoded(path.read_bytes(), str(path), size))
                labels.append(classes.index(name_of(folder.name)))
        if not pictures:
            raise DataError(f"{place / client}: no {few(_ENDINGS)} in its folders of classes; leave it out")
    x = stacked({name: pictures for name, (pictures, _) in by_client.items()})
    arrays = {name: {"x": x[name], "y": np.array(labels, np.int32)} for name, (_, labels) in by_client.items()}
    return FederatedData.from_clients(arrays, transform=Transform((), Label("class", tuple(classes))))


def decoded(content: Any, where: str, size: Sequence[int] | None = None) -> np.ndarray:
    """A PNG or JPEG file's picture: uint8 [height, width, 1] if it is grey, else [height, width, 3].

    Raises:
        ConfigError: ``size`` is none.
        DataError: another kind of file, or one that is damaged or too large; the message begins with ``where``.
    """
    if size is not None:
        whole = isinstance(size, Sequence) and len(size) == 2 and all(type(side) is int for side in size)
        if not whole or not all(1 <= side <= _SIDE for side in size):
            raise ConfigError("size", size, f"give (height, width), whole numbers from 1 to {_SIDE}")
    images = need("PIL.Image", "images", "reading pictures", "Pillow")
    if not isinstance(content, bytes):
        raise DataError(f"{where}: there is no picture in it, only where one was")
    try:
        with images.open(io.BytesIO(content), formats=("PNG", "JPEG")) as picture:
            width, height = picture.size
            if not (1 <= width * height <= min(_PIXELS, max(1 << 20, 1000 * len(content)))):
                raise DataError(f"{where}: {height} × {width} pixels, too many for {len(content)} bytes")
            if picture.mode[0] == "I":
                raise DataError(f"{where}: its values have 16 bits; save it with 8")
            plain = picture.convert("L" if picture.mode in ("1", "L", "LA") else "RGB")
        if size is not None and (height, width) != tuple(size):
            plain = plain.resize((size[1], size[0]), images.Resampling.BILINEAR)
        array = np.asarray(plain, np.uint8)
    except DataError:
        raise
    except Exception as error:  # of many kinds, by the decoder
        raise DataError(f"{where}: not a PNG or JPEG picture that can be read ({type(error).__name__})") from None
    return array.reshape(*array.shape[:2], -1)


def stacked(pictures: Mapping[str, Sequence[np.ndarray]]) -> dict[str, np.ndarray]:
    """Each client's pictures as one array; grey ones among coloured ones get three equal channels.

    Raises:
        DataError: they have different sizes.
    """
    shapes = sorted({picture.shape for each in pictures.values() for picture in each})
    if len({shape[:2] for shape in shapes}) > 1:
        raise DataError(f"pictures: they have different sizes, {few(shapes)}; size=(height, width) makes them one")
    form = shapes[-1]
    return {name: np.stack([np.broadcast_to(picture, form) for picture in each]) for name, each in pictures.items()}
