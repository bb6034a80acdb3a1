"""Exports a model: files that predict without fedax and JAX, with a card that says what the model is."""

import dataclasses
import importlib
import inspect
import io
import json
import tempfile
from typing import Any, Literal, get_args

import numpy as np

import fedax
from fedax.data import cells
from fedax.engine.saved import Label, Model
from fedax.errors import ConfigError, printable
from fedax.experiments.exported import model as template
from fedax.experiments.exported.card import card
from fedax.experiments.runs import Path
from fedax.files import WRITING, cell
from fedax.tasks.factory import made_as

Form = Literal["numpy", "sklearn", "onnx"]
Layers = list[tuple[np.ndarray, np.ndarray]]

_DENSE = ("linear_regression", "logistic_regression", "softmax_regression", "mlp", "mlp_regression")
_KINDS = ("number", "date", "category", "flag")


def export(source: str | Path, to: Form, out: str | Path | None = None) -> Path:
    """Write a model as a folder that predicts without fedax and JAX.

    The folder has ``model.py``, which needs NumPy alone: ``python model.py new.csv`` prints predictions, and
    ``predict_proba(rows)`` of it gives those of :meth:`fedax.Model.predict_proba` to about 1e-6. It reads cells by the
    copy of fedax's own ``cells.py`` beside it. The model itself is ``weights.npz`` (``"numpy"``), an estimator of
    scikit-learn in ``model.joblib`` (``"sklearn"``), or ``model.onnx`` (``"onnx"``). ``MODEL_CARD.md`` says what it is.

    Args:
        source: a model's file; of one in a run folder the card has the figures of its run.
        to: ``"numpy"``, ``"sklearn"`` or ``"onnx"``; the last needs ``pip install 'fedax[onnx]'``.
        out: the folder to make; default: ``<model>-<to>`` in the current folder.

    Raises:
        ConfigError: there is no such form; the folder is there already, or cannot be written; the model is of none of
            the tasks with dense layers, or takes a column of texts; skl2onnx is not installed.
        DataError: the file is damaged, or no model.

    Example:
        >>> import pathlib, tempfile
        >>> data = fedax.FederatedData({"x": np.ones((3, 2)), "y": np.ones(3)}, sizes=[2, 1])
        >>> task = fedax.tasks.linear_regression(2)
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> fedax.simulate(fedax.create("fedavg", lr=0.01), task, data, rounds=1).save(folder / "m.safetensors")
        >>> sorted(file.name for file in export(folder / "m.safetensors", "numpy", folder / "m").iterdir())
        ['MODEL_CARD.md', 'cells.py', 'model.json', 'model.py', 'weights.npz']
    """
    if to not in get_args(Form):
        raise ConfigError("to", to, f"give {', '.join(get_args(Form))}")
    source = Path(source)
    model = fedax.load_model(source)
    layers, labels = dense_layers(model)
    columns = _columns(model)
    folder = Path(f"{source.stem}-{to}" if out is None else out)
    if folder.exists():
        raise ConfigError("out", str(folder), "this is there already; name a new folder")
    if not folder.absolute().parent.is_dir():
        raise ConfigError("out", str(folder), "there is no such folder to make it in; make that first")
    names = [cell(printable(str(label))) for label in labels]  # that neither a terminal nor a spreadsheet obeys
    log = getattr(getattr(model.transform, "label", None), "target", None) == "log"
    about = {"fedax": fedax.__version__, "labels": labels, "names": names, "log": log, "columns": columns}
    files = {
        "MODEL_CARD.md": card(source, model, to).encode(),
        "cells.py": _alone(inspect.getsource(cells)).encode(),
        "model.json": json.dumps(about, indent=1, ensure_ascii=False).encode(),
        "model.py": _alone(_program(to)).encode(),
    } | {"numpy": _numpy, "sklearn": _sklearn, "onnx": _onnx}[to](layers, labels)
    try:
        with tempfile.TemporaryDirectory(dir=folder.absolute().parent, prefix=WRITING) as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            for name, content in files.items():
                (made / name).write_bytes(content)
            made.rename(folder)
    except OSError as error:
        raise ConfigError("out", str(folder), f"cannot be written ({error.strerror}); name another") from error
    return folder


def dense_layers(model: Model) -> tuple[Layers, list[Label]]:
    """The layers of a model, ReLU between them, and its labels, ``[]`` of regression.

    Of each layer its weights float64 [i, o] and its offsets [o]. The scaling of examples and of numbers that are
    predicted is in them, and two classes have two outputs.

    Raises:
        ConfigError: the model has other layers.
    """
    made = made_as(model.task) or {}
    name = made.get("name", "")
    if name not in _DENSE:
        hint = f"exported are {', '.join(_DENSE)}; load_model(file) and fedax predict take all models"
        raise ConfigError("model", model.task.name, hint)
    params = model.params if isinstance(model.params, list) else [model.params]
    layers = [(_real(each["w"]), _real(each.get("b", 0.0))) for each in params]
    if name in ("linear_regression", "logistic_regression"):
        w, b = layers[0][0][:, None], layers[0][1].reshape(1)
        layers = [(np.pad(w, ((0, 0), (1, 0))), np.pad(b, (1, 0))) if name == "logistic_regression" else (w, b)]
    shape, kind = (model.example or {}).get("x", ((len(layers[0][0]),), "float32"))
    mean, std = (_real(default if made.get(key) is None else made[key]) for key, default in (("mean", 0), ("std", 1)))
    (w, b), channels = layers[0], np.ones(shape)  # means and deviations are those of channels
    mean, std = (np.ravel(each * channels)[:, None] for each in (mean, std))
    layers[0] = (w / (255 * std if kind == "uint8" and len(shape) > 1 else std), b - (w * mean / std).sum(0))
    w, b = layers[-1]
    layers[-1] = (w * made.get("y_std", 1.0), b * made.get("y_std", 1.0) + made.get("y_mean", 0.0))
    if model.task.kind == "regression":
        return layers, []
    return layers, list(range(layers[-1][0].shape[1]) if model.labels is None else model.labels)


def _real(numbers: Any) -> np.ndarray:
    return np.asarray(numbers).astype(np.float64)


def _columns(model: Model) -> list[dict[str, Any]] | None:
    """The columns of the transform as plain values; ``None`` where the model takes arrays."""
    if model.transform is None or not model.transform.columns:
        return None
    for column in model.transform.columns:
        if column.kind not in _KINDS:
            hint = f"a column of kind {column.kind!r} cannot be exported; train without it, or take fedax predict"
            raise ConfigError("model", column.name, hint)
    return [dataclasses.asdict(column) for column in model.transform.columns]


def _program(to: Form) -> str:
    """The text of ``model.py``."""
    text = inspect.getsource(template)
    if to != "numpy":
        other = importlib.import_module(f"{__name__}.by_{to}")
        for name in ("loaded", "answers"):
            text = text.replace(inspect.getsource(getattr(template, name)), inspect.getsource(getattr(other, name)))
    return text


def _alone(text: str) -> str:
    """A module of fedax as one that needs no fedax."""
    text = text.replace("from fedax.errors import DataError\n", "DataError = ValueError\n")
    return text.replace("from fedax.data.cells import", "from cells import")


def _numpy(layers: Layers, labels: list[Label]) -> dict[str, bytes]:
    file = io.BytesIO()
    arrays = {f"{name}{k}": each for k, layer in enumerate(layers) for name, each in zip("wb", layer, strict=True)}
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return {"weights.npz": file.getvalue()}


def _sklearn(layers: Layers, labels: list[Label]) -> dict[str, bytes]:
    import joblib

    file = io.BytesIO()
    joblib.dump(estimator(layers, labels), file)
    return {"model.joblib": file.getvalue()}


def _onnx(layers: Layers, labels: list[Label]) -> dict[str, bytes]:
    try:
        from skl2onnx import to_onnx
        from skl2onnx.common.data_types import FloatTensorType
    except ImportError as error:
        raise ConfigError("to", "onnx", f"{error.name} is not installed: pip install 'fedax[onnx]'") from error
    made, features = estimator(layers, labels), FloatTensorType([None, len(layers[0][0])])
    options = {id(made): {"zipmap": False}} if labels else {}
    model = to_onnx(made, initial_types=[("features", features)], options=options)
    return {"model.onnx": model.SerializeToString()}


def estimator(layers: Layers, labels: list[Label]) -> Any:
    """These layers as a fitted estimator of scikit-learn: linear, logistic, or a multilayer perceptron."""
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.preprocessing import LabelBinarizer

    (w, b), classes = layers[-1], np.array(labels)
    if len(labels) == 2:  # one output, the log-odds of the second
        w, b = w[:, 1:] - w[:, :1], b[1:] - b[:1]
    hidden = [each.shape[1] for each, _ in layers[:-1]]
    made: Any
    if not hidden:
        made = LogisticRegression() if labels else LinearRegression()
        made.coef_, made.intercept_ = (w.T, b) if labels else (w[:, 0], float(b[0]))
        made.n_iter_ = np.zeros(1, np.int32)
    else:
        made = (MLPClassifier if labels else MLPRegressor)(hidden)
        made.coefs_ = [*(each for each, _ in layers[:-1]), w]
        made.intercepts_ = [*(each for _, each in layers[:-1]), b]
        made.n_layers_, made.n_outputs_ = len(layers) + 1, w.shape[1]
        made.out_activation_ = "identity" if not labels else "logistic" if len(labels) == 2 else "softmax"
    if labels:
        made.classes_ = classes
    if labels and hidden:
        made._label_binarizer = LabelBinarizer().fit(classes)
        made._label_binarizer.classes_ = classes  # in the model's own order
    made.n_features_in_ = len(layers[0][0])
    return made
