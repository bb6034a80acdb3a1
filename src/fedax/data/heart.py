"""Heart disease at four hospitals (UCI): as clients' own tables, and as the published benchmark prepares it."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from fedax.data.cells import LARGE, number, shown
from fedax.data.federated import FederatedData
from fedax.data.formats import reading
from fedax.data.readers import nothing_of
from fedax.data.summaries import kinds_of
from fedax.data.tables import from_frames
from fedax.errors import ConfigError, DataError
from fedax.files import regular
from fedax.numbers import check_count

HOSPITALS = {"cleveland": "cleveland", "hungary": "hungarian", "switzerland": "switzerland", "va": "va"}  # -> file
MEASURED = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak")
COLUMNS = (*MEASURED, "slope", "ca", "thal", "num")
_CODES = ("cp", "restecg", "slope", "thal")  # numbers that stand for kinds
_POSITIVE = ("trestbps", "chol")  # nobody has 0: it was not measured
_LARGEST = 1 << 20  # bytes of a file; the largest of the four has 18461

Scaling = Literal["hospital", "pooled"]


def heart(folder: str | os.PathLike | None = None, drop: Sequence[str] = (), positive: str = "yes") -> FederatedData:
    """Heart disease at four hospitals (UCI), each a client with its own gaps, prepared as tables of your own.

    ``?`` is missing, and so is a ``chol`` or ``trestbps`` of 0, which nobody has: Switzerland did not measure ``chol``.
    The label is ``disease``, ``no`` where the published ``num`` is 0, else ``yes``.

    Args:
        folder: with ``heart/processed.cleveland.data`` and three more. Default: the environment variable
            ``FEDAX_DATA``.
        drop: columns that are left out, such as ``["slope", "ca", "thal"]``, which are missing for most outside of
            Cleveland.
        positive: the class that AUC, F1, precision and recall are about, ``"yes"`` or ``"no"``.

    Returns:
        Clients cleveland, hungary, switzerland and va with 303, 294, 123 and 200 patients; as of
        :func:`fedax.data.from_frames`, with a transform and an overview.

    Raises:
        ConfigError: no such column.
        DataError: files that are not there, or are damaged.

    Source: Janosi, Steinbrunn, Pfisterer, Detrano 1989, UCI Machine Learning Repository; CC BY 4.0.

    Example:
        >>> heart("nowhere")
        Traceback (most recent call last):
        fedax.errors.DataError: heart: nothing of it in ...
    """
    import pandas

    frames: dict[str, pandas.DataFrame] = {}
    said: dict[str, str] = {}
    for name, (path, rows) in _hospitals(folder).items():
        table = pandas.DataFrame(rows, columns=list(COLUMNS)).replace("?", "")
        for column in _POSITIVE:
            zero = table[column].map(lambda cell: cell != "" and float(cell) == 0)
            if zero.any():
                way = f"{column} of 0 ({zero.sum()} of {len(table)} rows)"
                said[path.name] = f"{said[path.name]}, {way}" if path.name in said else f"missing: {way}"
                table[column] = table[column].mask(zero, "")
        table["disease"] = np.where(table.pop("num") == "0", "no", "yes")
        frames[name] = table
    kinds = dict.fromkeys(_CODES, "category") | kinds_of(None, drop)
    data = from_frames(frames, "disease", columns=kinds, drop=drop, positive=positive)
    assert data.overview is not None
    data.overview = replace(data.overview, read=said)
    return data


def fed_heart_disease(
    folder: str | os.PathLike | None = None,
    scale: Scaling = "hospital",
    scale_test: Scaling = "hospital",
    seed: int = 0,
) -> tuple[FederatedData, FederatedData]:
    """Heart disease at four hospitals as FLamby's Fed-Heart-Disease prepares it: complete rows, and its split.

    The columns slope, ca and thal are left out, then rows with a gap; a ``chol`` of 0 stays. ``cp`` and ``restecg``
    become one feature for each kind but the first. A third of each hospital's rows, stratified, is the test. A column
    that is constant in the rows that scale it becomes 0.

    Args:
        folder: as of :func:`heart`.
        scale: whose training rows give mean and standard deviation of the training rows: each hospital's own
            (``"hospital"``), or those of all (``"pooled"``).
        scale_test: the same for the test rows.
        seed: of the split, ≥ 0; FLamby's is 43.

    Returns:
        Training and test rows, 486 and 254: ``{"x": float32 [n, 14], "y": float32 [n]}`` of each client; the last
        feature is 1, as a bias; y is 1 for disease, else −1.

    Raises:
        ConfigError: another word for a scaling.
        DataError: files that are not there, or are damaged.

    Source: Ogier du Terrail et al. 2022, "FLamby", Fed-Heart-Disease.

    Example:
        >>> fed_heart_disease("nowhere")
        Traceback (most recent call last):
        fedax.errors.DataError: heart: nothing of it in ...
    """
    for field, given in {"scale": scale, "scale_test": scale_test}.items():
        if given not in ("hospital", "pooled"):
            raise ConfigError(field, given, 'give "hospital" or "pooled"')
    check_count("seed", seed, 0)
    used = [*range(len(MEASURED)), -1]
    tables: list[np.ndarray] = []
    for _, rows in _hospitals(folder).values():
        cells = [[row[k] for k in used] for row in rows]
        tables.append(np.array([row for row in cells if "?" not in row], np.float64))
    pooled = np.concatenate(tables)
    features = [
        (pooled[:, [k]] == np.unique(pooled[:, k])[1:]) if name in _CODES else pooled[:, [k]]
        for k, name in enumerate(MEASURED)
    ]
    ends = np.cumsum([len(table) for table in tables])[:-1]
    xs, ys = np.split(np.concatenate(features, axis=1).astype(np.float64), ends), np.split(pooled[:, -1] > 0, ends)
    places = [_split(y, seed) for y in ys]
    own = [x[train] for x, (train, _) in zip(xs, places, strict=True)]
    of_scale = {"hospital": own, "pooled": [np.concatenate(own)] * len(own)}
    parts: list[dict[str, dict[str, np.ndarray]]] = [{}, {}]
    for part, chosen, which in zip(parts, (scale, scale_test), (0, 1), strict=True):
        for name, x, y, place, rows in zip(HOSPITALS, xs, ys, places, of_scale[chosen], strict=True):
            deviation = rows.std(0, ddof=1)
            scaled = (x - rows.mean(0)) / np.where(deviation > 0, deviation, np.inf)
            part[name] = {
                "x": np.insert(scaled, x.shape[1], 1.0, axis=1)[place[which]].astype(np.float32),
                "y": np.where(y, 1, -1)[place[which]].astype(np.float32),
            }
    return FederatedData.from_clients(parts[0]), FederatedData.from_clients(parts[1])


def _split(ill: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The training and the test rows of a hospital; stratified where both classes have three rows."""
    from sklearn.model_selection import train_test_split

    strata = ill if min(ill.sum(), (~ill).sum()) > 2 else None
    train, test = train_test_split(
        np.arange(len(ill)), test_size=0.34, train_size=0.66, random_state=seed, stratify=strata
    )
    return train, test


def _hospitals(folder: str | os.PathLike | None) -> dict[str, tuple[Path, list[list[str]]]]:
    """Hospital -> its file and the cells of its rows."""
    if not isinstance(folder, str | os.PathLike | None):
        raise ConfigError("folder", folder, "give the folder that has the folder heart in it")
    given = folder if folder is not None else os.environ.get("FEDAX_DATA")
    place = Path(given or "", "heart")
    if not given or not place.is_dir():
        raise nothing_of("heart", given)
    found = {name: place / f"processed.{file}.data" for name, file in HOSPITALS.items()}
    if missing := [path.name for path in found.values() if not path.exists()]:
        raise DataError(f"heart: {', '.join(missing)} not in {place}")
    return {name: (path, _rows(path)) for name, path in found.items()}


def _rows(path: Path) -> list[list[str]]:
    if regular(path) > _LARGEST:
        raise DataError(f"{path}: more than {_LARGEST} bytes; the published file has less than 20000")
    with reading(path, "ASCII text"):
        lines = path.read_text(encoding="ascii").splitlines()
    rows = [[cell.strip() for cell in line.split(",")] for line in lines if line.strip()]
    if not rows:
        raise DataError(f"{path}: it has no rows")
    for at, row in enumerate(rows, 1):
        if len(row) != len(COLUMNS):
            raise DataError(f"{path}: line {at} has {len(row)} of {len(COLUMNS)} cells")
        if row[-1] not in ("0", "1", "2", "3", "4"):
            raise DataError(f"{path}: line {at}: num is {shown(row[-1])}, and has to be 0 to 4")
        if bad := next((cell for cell in row if cell != "?" and not abs(number(cell)) < LARGE), None):
            raise DataError(f"{path}: line {at} has {shown(bad)}, which is no number")
    return rows
