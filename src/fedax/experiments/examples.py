"""The loss or metric of a run's final model at each held-out example: files in the run folder, for the tests."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors

import fedax
from fedax.engine import by_client
from fedax.engine.checkpoint import write_tensors
from fedax.engine.devices import in_precision
from fedax.engine.saved import read_model
from fedax.errors import DamagedWarning
from fedax.experiments.chance import fixed_part
from fedax.experiments.clients import finite_model, whole_task
from fedax.experiments.config.experiment import Experiment, columns
from fedax.experiments.defaults import judge
from fedax.experiments.runs import model_path, said
from fedax.files import damage, regular, slug

_MOST_BYTES = 1 << 30


class ExampleValues(NamedTuple):
    """Values of held-out examples.

    Attributes:
        values: [n] the deciding measure at each example.
        sizes: [N] how many of the examples each client has; [1] where the clients are not known.
    """

    values: np.ndarray
    sizes: np.ndarray


def path_of(folder: Path, label: str, seed: int) -> Path:
    """The path of the file with the values of a run."""
    return folder / "examples" / f"{slug(label)}-seed{seed}.safetensors"


def measured(experiment: Experiment) -> tuple[str, str] | None:
    """The held-out part and the measure to store; ``None`` where it is no mean over examples that all seeds share."""
    if experiment.fleet is not None:
        return None
    column = judge(experiment.config, columns([experiment]))
    part = fixed_part(experiment.config, column)
    if part is None or getattr(experiment, part) is None:
        return None
    measure = str(column).removeprefix(f"{part}_")
    task = whole_task(experiment.task)
    return (
        (part, measure)
        if measure == "loss" or (measure in task.metrics and measure not in task.whole_metrics)
        else None
    )


def add(experiment: Experiment, folder: Path, label: str, seed: int, params: Any) -> None:
    """Write the values of a finished run, unless its model is not finite or there is nothing to store."""
    if (stored := measured(experiment)) is None or not finite_model(params):
        return
    part, measure = stored
    held = getattr(experiment, part)
    with in_precision(experiment.config["run"].get("precision")):
        values = by_client.each_example(whole_task(experiment.task), params, held)[measure]
    sizes = held.sizes if isinstance(held, fedax.FederatedData) else [len(values)]
    path = path_of(folder, label, seed)
    path.parent.mkdir(exist_ok=True)
    tensors: dict[str, np.ndarray] = {
        f"{part}_{measure}": np.asarray(values, np.float32),
        "sizes": np.asarray(sizes, np.int64),
    }
    write_tensors(path, tensors, "values of held-out examples", said(folder, path))


def mend(experiment: Experiment, folder: Path, label: str, seed: int) -> None:
    """Write the values of a finished run anew if they are missing or damaged."""
    if (stored := measured(experiment)) is None:
        return
    path = path_of(folder, label, seed)
    if read(folder, label, seed, "_".join(stored)) is None:
        if path.exists():
            warnings.warn(f"{path} is damaged; it is made again", DamagedWarning, stacklevel=3)
        model = model_path(folder, label, seed)
        params = read_model(model, experiment.task.entire.form(), said(folder, model))
        add(experiment, folder, label, seed, params)


def read(folder: Path, label: str, seed: int, column: str) -> ExampleValues | None:
    """The values of a run; ``None`` if the file is missing or cannot be used."""
    path = path_of(folder, label, seed)
    try:
        if not path.is_file() or regular(path) > _MOST_BYTES or damage(path, said(folder, path)) is not None:
            return None
        with safetensors.safe_open(path, framework="numpy") as file:
            tensors: Mapping[str, np.ndarray] = {name: file.get_tensor(name) for name in (column, "sizes")}
    except (OSError, ValueError, KeyError, safetensors.SafetensorError):
        return None
    values, sizes = tensors[column], tensors["sizes"]
    well_formed = values.ndim == sizes.ndim == 1 and values.dtype.kind == "f" and sizes.dtype.kind == "i"
    if (
        not well_formed
        or len(values) < 2
        or (sizes < 1).any()
        or (sizes > len(values)).any()
        or sizes.sum() != len(values)
    ):
        return None
    return ExampleValues(values.astype(float), sizes) if np.isfinite(values).all() else None
