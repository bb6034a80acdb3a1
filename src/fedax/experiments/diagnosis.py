"""The diagnosis of an experiment: the theorems' constants at the models of a run folder, and how they are shown."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from fedax.experiments.config import Experiment
from fedax.experiments.runs import Record, finite, read_model, slug, write_json
from fedax.theory import diagnose

Found = dict[str, Any]


def diagnose_run(experiment: Experiment, record: Record, watch: Callable[[str], None] | None = None) -> list[Found]:
    """Diagnose every method at its initial model and at the final ones of the run folder; write diagnosis.json.

    Args:
        experiment: of the record's configuration.
        record: the run folder. Models that are not there, or not finite, are left out.
        watch: called with each method's label when its turn comes.

    Returns:
        One table a method: its label, which models, and the fields of :class:`fedax.theory.Diagnosis`.

    Raises:
        DataError: a model's file that cannot be read.
    """
    run = experiment.config["run"]
    like = experiment.task.form()
    methods = []
    for label, algorithm in experiment.methods.items():
        if watch is not None:
            watch(label)
        points: dict[str, Any] = {"the initial model": None}
        missing = []
        for seed in run["seeds"][:1] if run["split_seeds"] else run["seeds"]:  # the others have other data
            path = record.folder / "models" / f"{slug(label)}-seed{seed}.safetensors"
            model = read_model(path, like) if path.is_file() else None
            if model is not None and all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(model)):
                points[f"the final one of seed {seed}"] = model
            else:
                missing.append(seed)
        found = diagnose(
            algorithm,
            experiment.task,
            experiment.data,
            work=experiment.work,
            batch_size=run.get("batch_size"),
            participation=experiment.participation,
            points=list(points.values()),
            seed=run["seeds"][0],
        )
        table = {"label": label, "models": list(points), **dataclasses.asdict(found)}
        if missing:
            seeds = ", ".join(map(str, missing))
            table["unknown"] = [
                *found.unknown,
                f"{label} has no finite final model of seed {seeds}: what is there is not known.",
            ]
        methods.append(table)
    write_json(record.folder / "diagnosis.json", {"methods": methods})
    return [finite(table) for table in methods]


def rows(methods: Sequence[Found]) -> list[tuple[str, list[str]]]:
    """The table: a quantity and its value for each method, at the first model and the last where it is theirs."""
    quantities: dict[str, Callable[[Found], str]] = {
        "Local steps a round": lambda f: _steps(*f["steps"]),
        "L, a client's largest curvature": lambda f: _between(f, "smoothness"),
        "L of F": lambda f: _between(f, "objective_smoothness"),
        "σ², noise of minibatches": lambda f: _between(f, "variance"),
        "ζ², dissimilarity": lambda f: _between(f, "dissimilarity"),
        "κ² for β² = 1": lambda f: _number(f["constant"]),
        "or β², κ²": lambda f: f"{_number(f['line'][0])}, {_number(f['line'][1])}",
        "‖∇F‖²": lambda f: _between(f, "gradient"),
        "‖∇F̃‖² of the surrogate": lambda f: _between(f, "surrogate_gradient") if f["weights"] else "–",
        "χ²(p‖w)": lambda f: _weights(f["chi2"]),
        "Bias floor 2χ²κ²": lambda f: _weights(f["floor"]),
        "Client drift": lambda f: _between(f, "drift"),
        "Move of the mean": lambda f: _between(f, "move"),
        "lr": lambda f: _number(f["lr"]),
        "Theorems' largest lr": lambda f: _number(f["max_lr"]),
    }
    return [(name, [show(found) for found in methods]) for name, show in quantities.items()]


def unknown(methods: Sequence[Found]) -> list[str]:
    """What the figures of the methods cannot tell, each once."""
    return list(dict.fromkeys(text for found in methods for text in found["unknown"]))


def where(methods: Sequence[Found]) -> str:
    """The models at which something was measured."""
    names = list(dict.fromkeys(name for found in methods for name in found["models"]))
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _steps(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low} to {high}"


def _between(found: Found, name: str) -> str:
    values = [_number(point[name]) for point in found["points"]]
    return values[0] if len(values) == 1 or {*values} == {"–"} else f"{values[0]} → {values[-1]}"


def _weights(value: float | None) -> str:
    return "0" if value is not None and value < 1e-12 else _number(value)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
