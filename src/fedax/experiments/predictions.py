"""Predicts for the rows of a file with a saved model."""

import pathlib
import re
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np

import fedax
from fedax.data.cells import column_name, naming, shown
from fedax.data.doubts import Doubts, refuse
from fedax.data.formats import mapped
from fedax.data.tables import TABLES, read_table
from fedax.data.transform import labels_of
from fedax.engine.history import MOST_SAVED
from fedax.engine.saved import Model, client_file
from fedax.errors import ConfigError, DataError, printable, unknown
from fedax.experiments.runs.files import read_config
from fedax.files import cell, check_ending, write_atomic

Path = pathlib.Path


class Predicted(NamedTuple):
    """The result of :func:`predict_file`.

    Attributes:
        rows: how many rows were predicted.
        measured: the loss and the metrics of the task, of the rows that have a label; empty where none is known.
        doubts: cells unlike all that the model was trained on; ``None`` for arrays.
        written: how a .csv file is written, where that was found and is not the usual way.
        labelled: how many rows have a label.
        unmeasured: why there are no figures although the rows have labels; empty if there are.
    """

    rows: int
    measured: dict[str, float]
    doubts: Doubts | None
    written: str = ""
    labelled: int = 0
    unmeasured: str = ""


def model_of_client(folder: Path, client: str) -> Path:
    """The file of a client's own model.

    Args:
        folder: a run folder; or at a site, the folder of its node.
        client: its name, or its number where clients have none.

    Raises:
        ConfigError: there is none, or there are several.
    """
    if not folder.is_dir():
        raise ConfigError("model", str(folder), "with --client give a run folder, or at a site the folder of its node")
    files = [path for path in sorted(folder.rglob("*.safetensors")) if _is_own(path.absolute())]
    found = [path for path in files if path.name == client_file(client)]
    if len(found) > 1:
        hint = "it has several models here: give one of these files in place of the folder, without --client: "
        raise ConfigError("client", client, hint + ", ".join(map(str, found)))
    if found:
        return found[0]
    config = folder / "config.toml"
    if not files and config.is_file() and read_config(config)["data"]["name"] == "nodes":
        hint = "its own model is at its site alone: run fedax predict there, with the folder of its node"
        raise ConfigError("client", client, f"{hint} (state in node.toml)")
    if not files:
        hint = f"there are no clients' own models: methods with some save them, of up to {MOST_SAVED} clients; "
        raise ConfigError("client", client, f"{hint}run.personal(client) in Python gives those of more")
    raise unknown("client", client, [*dict.fromkeys(unquote(path.stem) for path in files)])


def _is_own(path: Path) -> bool:
    """Whether a file is a client's own model: models/RUN/CLIENT.safetensors, of a node models/RUN/round-N/…"""
    place = path.parent.parent if re.fullmatch(r"round-\d+", path.parent.name) else path.parent
    return place.parent.name == "models"


def predict_file(
    model: Model,
    source: str | Path,
    out: str | Path,
    decimal: str | None = None,
    encoding: str | None = None,
    strict: bool = False,
) -> Predicted:
    """Predict for each row of a file, and write a table of the predictions.

    The table has a row for each row of ``source``, in its order: all columns of the source but features and label, such
    as an id; ``prediction``; of a classification ``p <class>``, the probability of each class; where one was
    chosen with the model, the ``threshold`` of the last of two classes, and ``decision``, the class by it; and of a
    table ``doubts``, which cells of the row are unlike anything in training (:meth:`fedax.Model.doubts`). In names of
    columns and classes control characters are spelled out, and ``'`` is put before what a spreadsheet would take for a
    formula. The cells of unused columns are copied as they are.

    Args:
        model: from :func:`fedax.load_model`.
        source: a table (.csv, .tsv, .txt, these also as .gz, .xlsx or .parquet) of a model that was trained on tables;
            else an array [n, …], .npy.
        out: the .csv or .parquet file to write; there may be none of this name.
        decimal, encoding: as of :func:`fedax.data.from_csv`.
        strict: whether a table with doubts is refused, before anything is written.

    Raises:
        ConfigError: ``out`` is there already, cannot be written, or is called as a file of another kind; the task does
            not say what its model answers; ``strict`` of an array.
        DataError: ``source`` cannot be read, is not what the model was trained on, or has doubts under ``strict``.

    Example:
        >>> import tempfile
        >>> import pandas
        >>> data = fedax.data.from_frames(
        ...     {"north": pandas.DataFrame({"age": [20, 60, 70], "id": ["a", "b", "c"], "ill": ["no", "yes", "yes"]})},
        ...     label="ill",
        ... )
        >>> task = fedax.tasks.softmax_regression(data.examples["x"].shape[1], classes=2)
        >>> run = fedax.simulate(fedax.create("fedavg", lr=1.0), task, data, rounds=50)
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "new.csv").write_text("id,age\\n007,19\\n008,80\\n")
        >>> predict_file(run.model, folder / "new.csv", folder / "predicted.csv").rows
        2
        >>> [line.rsplit(",", 3)[0] for line in (folder / "predicted.csv").read_text().splitlines()]
        ['id,prediction', '007,no', '008,yes']
    """
    import pandas

    source, out = Path(source), Path(out)
    if out.exists():
        raise ConfigError("out", str(out), "this is there already; name a new file")
    if not out.parent.is_dir():
        raise ConfigError("out", str(out), "there is no such folder; make it first")
    ending = check_ending(out, ".csv", ".parquet")
    unused_columns: dict[str, Any] = {}
    batch: Any
    doubts, written, unmeasured = None, "", ""
    labels, labelled = np.zeros(0), np.zeros(0, bool)
    if source.name.lower().endswith(TABLES):
        if model.transform is None:
            raise DataError(f"{source}: the model was trained on arrays and not on a table; give an .npy file")
        label = model.transform.label
        used = {column.name for column in model.transform.columns} | ({label.name} if label is not None else set())
        table = read_table(source, decimal, encoding, lambda name: name not in used)
        unused_columns = {name: table[name].to_numpy() for name in table.columns if column_name(name) not in used}
        written = table.attrs.get("written", "")
        with naming(source):
            doubts = model.doubts(table)
            if strict:
                refuse(doubts)
            batch = {"x": model.transform.apply(table)}
        if label is not None and label.name in table.columns:
            try:
                labels, missing = labels_of(table[label.name], label)
                labelled = ~missing
            except DataError as error:  # predicting needs none
                unmeasured = str(error)
    elif source.suffix == ".npy":
        if strict:
            raise ConfigError("strict", strict, "only models of tables know the ranges of training; leave it out")
        batch = {"x": mapped(source)}
    else:
        raise DataError(f"{source}: give a .csv, .tsv, .txt, .xlsx, .parquet or .npy file")
    columns: dict[str, Any] = {"prediction": model.predict(batch)}
    if model.task.kind == "classification" and columns["prediction"].ndim == 1:
        probabilities = model.predict_proba(batch)
        names = model.labels or range(probabilities.shape[1])
        columns |= {f"p {name}": probabilities[:, k].astype(np.float32) for k, name in enumerate(names)}
        if model.threshold is not None and probabilities.shape[1] == 2:
            negative, positive = (names[0], names[1])
            decided = np.where(probabilities[:, 1] >= model.threshold, positive, negative)
            columns |= {"threshold": np.full(len(decided), model.threshold), "decision": decided}
    elif columns["prediction"].ndim > 1:
        flat = columns.pop("prediction").reshape(len(batch["x"]), -1)
        columns |= {f"prediction {k}": flat[:, k] for k in range(flat.shape[1])}
    for name, answer in columns.items():
        if answer.dtype.kind in "OUT":  # names of classes
            columns[name] = np.array([_safe(text) for text in answer], object)
    if doubts is not None:
        columns["doubts"] = [_safe(text) for text in doubts.by_row()]  # doubts contain names of columns
    out_columns = {_safe(name): column for name, column in unused_columns.items()}
    for name, column in columns.items():
        if _safe(name) in out_columns:
            raise DataError(f"{source}: its column {shown(name)} is called as one of the predictions; rename it")
        out_columns[_safe(name)] = column
    try:
        write_atomic(out, _content(pandas.DataFrame(out_columns), ending))
    except OSError as error:
        raise ConfigError("out", str(out), f"cannot be written ({error.strerror or error})") from error
    measured: dict[str, float] = {}
    if labelled.any():
        held = fedax.FederatedData({"x": batch["x"][labelled], "y": labels[labelled]}, sizes=[labelled.sum()])
        (row,) = fedax.evaluate(model.task, model.params, held).drop(columns=["name", "n"]).to_dict("records")
        measured = {str(name): float(value) for name, value in row.items()}
    return Predicted(len(batch["x"]), measured, doubts, written, int(labelled.sum()), unmeasured)


def _content(table: Any, ending: str) -> str | bytes:
    """A table as the content of a file."""
    if ending == ".csv":
        return str(table.to_csv(index=False))
    mixed = [name for name in table.columns if table[name].dtype.kind == "O"]  # Parquet has one type a column
    return bytes(table.assign(**{name: table[name].map(str, na_action="ignore") for name in mixed}).to_parquet())


def _safe(name: Any) -> str:
    """A name of a column or class as a CSV cell that neither a terminal nor a spreadsheet obeys."""
    return cell(printable(str(name)))
