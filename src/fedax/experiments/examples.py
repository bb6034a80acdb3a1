"""The loss and metrics of a run's final model at each held-out example: files in the run folder, for the tests."""

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fedax
from fedax.engine import by_client
from fedax.engine.checkpoint import write_tensors
from fedax.engine.devices import in_precision
from fedax.engine.saved import read_model
from fedax.errors import DamagedWarning
from fedax.experiments.chance import part_of, redrawn
from fedax.experiments.clients import finite_model, whole_task
from fedax.experiments.config.experiment import Experiment, columns
from fedax.experiments.defaults import judge
from fedax.experiments.runs import model_path, said, tensors_of
from fedax.files import slug

ALL = "all"  # in files of all measures; those of earlier versions have the one that decided
_MOST_BYTES = 1 << 30


class ExampleValues(NamedTuple):
    """Values of held-out examples.

    Attributes:
        values: [n] a measure at each example.
        sizes: [N] how many of the examples each client has; [1] where the clients are not known.
    """

    values: np.ndarray
    sizes: np.ndarray


def path_of(folder: Path, label: str, seed: int) -> Path:
    """The path of the file with the values of a run."""
    return folder / "examples" / f"{slug(label)}-seed{seed}.safetensors"


def measured(experiment: Experiment) -> tuple[str, list[str]] | None:
    """The held-out part, and its measures that are means over examples; ``None`` where seeds do not share a part.

    It is the part of the column that decides, else the test; the others can decide afterwards.
    """
    if experiment.fleet is not None:
        return None
    decides = part_of(judge(experiment.config, columns([experiment])))
    parts = [part for part in (decides, "test", "val") if part and getattr(experiment, part, None) is not None]
    if not parts or redrawn(experiment.config, parts[0]):
        return None
    task = whole_task(experiment.task)
    return parts[0], ["loss", *(name for name in task.metrics if name not in task.whole_metrics)]


def add(experiment: Experiment, folder: Path, label: str, seed: int, params: Any) -> None:
    """Write the values of a finished run, unless its model is not finite or there is nothing to store."""
    if (stored := measured(experiment)) is None or not finite_model(params):
        return
    part, measures = stored
    held = getattr(experiment, part)
    with in_precision(experiment.config["run"].get("precision")):
        values = by_client.each_example(whole_task(experiment.task), params, held)
    sizes = held.sizes if isinstance(held, fedax.FederatedData) else [len(values["loss"])]
    path = path_of(folder, label, seed)
    path.parent.mkdir(exist_ok=True)
    tensors = {f"{part}_{measure}": np.asarray(values[measure], np.float32) for measure in measures}
    tensors |= {"sizes": np.asarray(sizes, np.int64), ALL: np.zeros(0, np.int64)}
    write_tensors(path, tensors, "values of held-out examples", said(folder, path))


def mend(experiment: Experiment, folder: Path, label: str, seed: int) -> None:
    """Write the values of a finished run anew if they are missing or damaged, or are those of fewer measures."""
    if (stored := measured(experiment)) is None:
        return
    part, measures = stored
    path, known = path_of(folder, label, seed), names(folder, label, seed)
    if known >= {ALL, *(f"{part}_{measure}" for measure in measures)}:
        return
    if path.exists() and not known:
        warnings.warn(f"{path} is damaged; it is made again", DamagedWarning, stacklevel=3)
    model = model_path(folder, label, seed)
    params = read_model(model, experiment.task.entire.form(), said(folder, model))
    add(experiment, folder, label, seed, params)


def names(folder: Path, label: str, seed: int) -> set[str]:
    """The columns whose values a run has at single examples; empty if the file is missing or cannot be used."""
    return {*tensors_of(folder, path_of(folder, label, seed), _MOST_BYTES)} - {"sizes"}


def read(folder: Path, label: str, seed: int, column: str) -> ExampleValues | None:
    """The values of a run; ``None`` if the file is missing or cannot be used."""
    tensors = tensors_of(folder, path_of(folder, label, seed), _MOST_BYTES)
    if not tensors.keys() >= {column, "sizes"}:
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


def mean_of(folder: Path, label: str, seeds: Iterable[int], column: str) -> ExampleValues | None:
    """The means over the runs with some seeds; ``None`` unless all have values, of clients of the same sizes."""
    stored = [read(folder, label, seed, column) for seed in seeds]
    known = [each for each in stored if each is not None]
    if not known or len(known) < len(stored) or any(list(each.sizes) != list(known[0].sizes) for each in known):
        return None
    return ExampleValues(np.mean([each.values for each in known], axis=0), known[0].sizes)
