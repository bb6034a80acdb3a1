"""Reads the JSON of LEAF, whatever its examples are."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from fedax.data.cells import shown
from fedax.data.federated import FederatedData
from fedax.data.formats import read_leaf
from fedax.data.transform import Label, Transform
from fedax.errors import DataError
from fedax.numbers import narrowed

_AS_TABLES = (
    "users = json.loads(pathlib.Path(FILE).read_text())['user_data']; "
    "tables = {user: pandas.DataFrame(rows) for user, rows in users.items()}; "
    "from_frames(tables, label='y', columns={'x': 'text'})"
)


def from_leaf(path: str | os.PathLike, test: str | os.PathLike | None = None) -> Any:
    """Clients' examples in LEAF's JSON, a client for each user.

    Args:
        path: a file, or a folder of files, ``{"users": […], "num_samples": […], "user_data": {user: {"x": […],
            "y": […]}}}``, such as ``data/train``.
        test: the same of held-out examples, such as ``data/test``; ``None``: there are none.

    Returns:
        ``x`` float32 [n, …], and ``y``: int32 of whole numbers, float32 of others; or of texts int32 classes, sorted,
        with their names in ``.transform.classes``. Where an example has several labels, whole numbers stay int32 in
        ``x``, too. The clients' data, or the pair of it and the held-out data.

    Raises:
        DataError: another structure; texts as ``x`` (the error has the lines that make tables of them); examples of
            different shapes.

    Source:
        Caldas et al. 2018 (LEAF).

    Example:
        >>> import json, tempfile
        >>> users = {"ann": {"x": [[0.5, 1.0]], "y": [1]}, "bob": {"x": [[2.0, 0.0], [1.0, 1.0]], "y": [0, 1]}}
        >>> content = {"users": [*users], "num_samples": [1, 2], "user_data": users}
        >>> with tempfile.TemporaryDirectory() as place:
        ...     _ = Path(place, "all.json").write_text(json.dumps(content))
        ...     from_leaf(place)
        FederatedData(2 clients, 3 examples, 1 to 2 a client)
    """
    places = [Path(each) for each in (path, test) if each is not None]
    parts = [_arrays(place) for place in places]
    every = [user for part in parts for user in part.values()]
    transform = None
    if any(user["y"].dtype.kind == "U" for user in every):
        classes, codes = np.unique(np.concatenate([user["y"] for user in every]), return_inverse=True)
        for user, labels in zip(every, np.split(codes, np.cumsum([len(user["y"]) for user in every])), strict=False):
            user["y"] = labels
        transform = Transform((), Label("y", tuple(map(str, classes))))
    tokens = every[0]["y"].ndim > 1 and all(user["x"].dtype.kind == "i" for user in every)
    real = any(user["y"].dtype.kind == "f" for user in every)
    kinds = {"x": np.int32 if tokens else np.float32, "y": np.float32 if real else np.int32}
    for place, part in zip(places, parts, strict=True):
        for name, user in part.items():
            user |= {
                each: narrowed(user[each], kind, f"{place}: user {shown(name)}: {each}") for each, kind in kinds.items()
            }
    data, *held_out = (FederatedData.from_clients(part, transform=transform) for part in parts)
    return (data, *held_out) if held_out else data


def _arrays(place: Path) -> dict[str, dict[str, np.ndarray]]:
    """User -> its examples, of numbers, and labels, of numbers or texts."""
    train = next((each for each in (place / "data" / "train", place / "train") if each.is_dir()), None)
    if train is not None:
        raise DataError(f"{place}: give {str(train)!r}, and test={str(train.with_name('test'))!r}")
    users: dict[str, dict[str, np.ndarray]] = {}
    for user, x, y in read_leaf(place):
        where = f"{place}: user {shown(user)}"
        examples, labels = _array(x, f"{where}: x"), _array(y, f"{where}: y")
        if examples.dtype.kind == "U":
            what = f"x is text, such as {shown(str(examples.flat[0]))}"
            raise DataError(f"{where}: {what}; make tables, and count its words: {_AS_TABLES}")
        if labels.dtype.kind == "U" and labels.ndim > 1:
            raise DataError(f"{where}: y has several texts an example; give one class each")
        users[user] = {"x": examples.reshape(len(examples), -1) if examples.ndim == 1 else examples, "y": labels}
    kinds = {user["y"].dtype.kind == "U" for user in users.values()}
    if len(kinds) > 1:
        raise DataError(f"{place}: y is text of some users and numbers of others; write all in one way")
    return users


def _array(values: list[Any], where: str) -> np.ndarray:
    try:
        array = np.array(values)
    except (ValueError, OverflowError):
        raise DataError(f"{where}: its examples have different shapes, or text beside numbers; give all one") from None
    if array.dtype.kind not in "ifbU" or array.size == 0:
        raise DataError(f"{where}: it holds neither numbers nor texts; give lists of numbers")
    return array.astype(np.int64) if array.dtype.kind == "b" else array
