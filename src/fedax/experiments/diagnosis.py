"""The diagnosis of an experiment: the theorems' constants at the models of a run folder, and their table."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from fedax.columns import describe
from fedax.data import FederatedData
from fedax.engine.saved import read_model
from fedax.experiments import summary
from fedax.experiments.config.experiment import Experiment, within_deadline
from fedax.experiments.runs import Record, finite, said, slug, write_json
from fedax.theory import diagnose
from fedax.theory.diagnostics import MATERIAL

DiagnosisTable = dict[str, Any]

_COLUMN = "train_loss"  # the column that is diagnosed
_LESS = 0.9  # a method is called cheaper if it costs less than 0.9 of what the other costs


def diagnose_run(
    experiment: Experiment, record: Record, watch: Callable[[str], None] | None = None
) -> list[DiagnosisTable]:
    """Diagnose every method at its initial model and at the final ones of the run folder; write diagnosis.json.

    Args:
        experiment: of the record's configuration.
        record: the run folder. Models that are missing or not finite are left out.
        watch: called with each method's label before it is diagnosed.

    Returns:
        A table for each method: its label, the models, and the fields of :class:`fedax.theory.Diagnosis`.

    Raises:
        DataError: the file of a model cannot be read.
    """
    run = experiment.config["run"]
    form = experiment.task.entire.form()
    methods = []
    for label, algorithm in experiment.methods.items():
        if watch is not None:
            watch(label)
        points: dict[str, Any] = {"the initial model": experiment.options.get("params")}
        missing = []
        for seed in run["seeds"][:1] if run["split_seeds"] else run["seeds"]:  # other seeds have other data
            path = record.folder / "models" / f"{slug(label)}-seed{seed}.safetensors"
            model = read_model(path, form, said(record.folder, path)) if path.is_file() else None
            if model is not None and all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(model)):
                points[f"the final one of seed {seed}"] = experiment.task.part_of(model)
            else:
                missing.append(seed)
        assert isinstance(experiment.data, FederatedData)  # real clients need a fleet
        work, participation = within_deadline(experiment, label)
        paced = experiment.options.get("pace") is not None  # then clients start as the pace says
        diagnosis = diagnose(
            algorithm,
            experiment.task,
            experiment.data,
            work=work,
            batch_size=run.get("batch_size"),
            participation=None if paced else participation,
            pace=experiment.options.get("pace"),
            clock=experiment.options.get("clock"),
            compress=experiment.options.get("compress"),
            points=list(points.values()),
            seed=run["seeds"][0],
        )
        table = {"label": label, "models": list(points), **dataclasses.asdict(diagnosis)}
        if missing:
            seeds = ", ".join(map(str, missing))
            table["unknown"] = [
                *diagnosis.unknown,
                f"{label} has no finite final model of seed {seeds}: what is there is not known.",
            ]
        methods.append(table)
    write_json(record.folder / "diagnosis.json", {"methods": methods})
    return [finite(table) for table in methods]


def verdict(record: Record) -> str:
    """Three sentences on a diagnosed run folder: which method to take and on what evidence, why, and the next step.

    One more sentence names the methods that diverged or ended worse than they began.
    """
    diagnoses = {table["label"]: table for table in record.diagnosis if table.get("verdict")}
    problem = summary.problems([record])[0]
    ended = {m.label: m for m in problem.methods if m.label in diagnoses and m.final("train_loss").size}
    ended = {label: m for label, m in ended.items() if m.status == "finished"}
    if len(ended) < 2 or len(ended) < len(diagnoses):
        gone = [label for label in diagnoses if label not in ended]
        text = f"{_and(gone)} did not come to a good end. " if gone and ended else ""
        return text + " ".join(str(diagnoses[label]["verdict"]) for label in ended or diagnoses)
    column = problem.judge if problem.p and problem.judge else "train_loss"
    equal = [
        m for m in (problem.tied if problem.p else _nearly_equal(list(ended.values()), diagnoses)) if m.label in ended
    ]
    star = problem.star or min(ended.values(), key=lambda m: float(m.final("train_loss")[0]))
    near = [m for m in equal if m is problem.best or not problem.p or problem.small(m.label)]
    chosen = _cheapest(near or equal or [star])
    if _cheaper(least := _cheapest(equal or [star]), chosen):
        chosen = least
    diagnosis, seeds = diagnoses[chosen.label], len(chosen.runs)
    ends = ", ".join(f"{label} {float(m.final(column).mean()):.4g}" for label, m in ended.items())
    figures = f"{describe(column).label} {ends}{f', means of {seeds} seeds' if seeds > 1 else ', of one seed'}"
    others = _and([m.label for m in equal if m is not chosen])
    noise = "as far as the seeds tell" if problem.p else "as far as one seed tells"
    if others and chosen is problem.best and not all(problem.small(m.label) for m in equal if m is not chosen):
        text = (
            f"Take {chosen.label}: it ended best and costs no more, though it ties with {others} {noise} ({figures}). "
        )
    elif others:
        text = f"Take {chosen.label}: it ties with {others} {noise}, and it is the cheapest of them ({figures}). "
    else:
        noise = "by more than seed noise" if problem.p else "though one seed does not tell by how much seeds differ"
        text = f"Take {chosen.label}: it ended better than the others, {noise} ({figures}). "
    names = {settings["label"]: settings["name"] for settings in record.config["methods"]}
    tried = [label for label in ended if label != chosen.label and names[label] == diagnosis.get("take")]
    if tried and diagnoses[tried[0]].get("take") == names[chosen.label]:
        return text + _reworded(str(diagnoses[tried[0]]["verdict"]))
    if tried:
        return text + (
            f"Its figures alone would speak for {tried[0]}, which was tried here and did not do better; repeat the "
            "comparison with more rounds before you pay for it."
        )
    return text + _reworded(str(diagnosis["verdict"]), str(diagnosis.get("method", "")))


def _costs(method: summary.Method) -> tuple[float, float]:
    """What a method costs: bytes of traffic, and gradients computed by the clients."""
    return method.cost("bytes_down") + method.cost("bytes_up"), method.cost("gradients")


def _cheapest(methods: Sequence[summary.Method]) -> summary.Method:
    return min(methods, key=_costs)


def _cheaper(one: summary.Method, other: summary.Method) -> bool:
    """Whether a method costs clearly less, so that it is preferred among tied ones."""
    (traffic, gradients), (most, others) = _costs(one), _costs(other)
    return traffic < _LESS * most or (traffic <= most and gradients < _LESS * others)


def _reworded(text: str, method: str = "") -> str:
    """The verdict on a method, reworded to follow a sentence that recommends it.

    Example:
        >>> _reworded("Keep FedAvg: noise costs it nothing.", "FedAvg")
        'Noise costs it nothing.'
        >>> _reworded("Keep FedAvg, with larger cohorts: noise keeps it above.", "FedAvg")
        'Run it with larger cohorts: noise keeps it above.'
        >>> _reworded("Take scaffold in place of FedAvg: its clients are unlike.", "FedAvg")
        'Next, try scaffold in place of FedAvg: its clients are unlike.'
    """
    if text.startswith("Take "):
        return f"Next, try {text.removeprefix('Take ')}"
    before, rest = f"Keep {method}", text.removeprefix(f"Keep {method}")
    if not method or not text.startswith(before):
        return text
    if rest.startswith(": "):
        return rest[2].upper() + rest[3:]
    return f"Run it {rest.removeprefix(',').strip()}"


def _nearly_equal(methods: Sequence[summary.Method], diagnoses: dict[str, DiagnosisTable]) -> list[summary.Method]:
    """With one seed: the methods whose final loss is within the material difference of the lowest."""
    ends = {m.label: float(m.final("train_loss")[0]) for m in methods}
    best = min(ends.values())
    close = [m for m in methods if ends[m.label] - best <= MATERIAL * (diagnoses[m.label].get("gained") or 0.0)]
    return close if len(close) > 1 else []


def _and(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}" if labels else ""


def rows(methods: Sequence[DiagnosisTable]) -> list[tuple[str, list[str]]]:
    """The rows of the table: a quantity, and its text for each method (at the first and the last model)."""
    quantities: dict[str, Callable[[DiagnosisTable], str]] = {
        "Local steps a round": lambda f: _steps(*f["steps"]),
        "L, a client's largest curvature": lambda f: _first_to_last(f, "smoothness"),
        "L of F": lambda f: _first_to_last(f, "objective_smoothness"),
        "σ², noise of minibatches": lambda f: _first_to_last(f, "variance"),
        "ζ², dissimilarity": lambda f: _first_to_last(f, "dissimilarity"),
        "κ² for β² = 1": lambda f: _number(f["constant"]),
        "or β², κ²": lambda f: f"{_number(f['line'][0])}, {_number(f['line'][1])}",
        "‖∇F‖²": lambda f: _first_to_last(f, "gradient"),
        "‖∇F̃‖² of the surrogate": lambda f: _first_to_last(f, "surrogate_gradient") if f["weights"] else "–",
        "χ²(p‖w)": lambda f: _weights(f["chi2"]),
        "Bias floor 2χ²κ²": lambda f: _weights(f["floor"]),
        "Mean update of a round": lambda f: _first_to_last(f, "move"),
        "its bias by drift": lambda f: _first_to_last(f, "bias"),
        "its noise, of minibatches": lambda f: _first_to_last(f, "noise"),
        "its noise, of cohorts": lambda f: _first_to_last(f, "cohort_noise"),
        "E(Σω)² of cohorts' weights": lambda f: "–" if f.get("weight_square") is None else f"{f['weight_square']:.4g}",
        "Loss still to be had": lambda f: _first_to_last(f, "left"),
        "Cost of another objective": lambda f: (
            "0" if (f["chi2"] or 0) < 1e-12 else _first_to_last(f, "inconsistency_cost")
        ),
        "Cost of drift": lambda f: _first_to_last(f, "drift_cost"),
        "Cost of minibatches' noise": lambda f: _first_to_last(f, "noise_cost"),
        "Cost of cohorts' noise": lambda f: _first_to_last(f, "cohort_cost"),
        "lr": lambda f: _number(f["lr"]),
        "Theorems' largest lr, β² as measured": lambda f: _number(f["max_lr"]),
        "with β² = 1, the loosest case": lambda f: _number(f.get("loosest_lr")),
    }
    shown = [(name, [show(method) for method in methods]) for name, show in quantities.items()]
    alone = {"of arrivals alone": "arrival_cost", "of unequal work alone": "work_cost"}
    if any(method.get("arrivals") for method in methods):
        at = next(k for k, (name, _) in enumerate(shown) if name == "Cost of another objective") + 1
        shown[at:at] = [(name, [_first_to_last(f, cost) for f in methods]) for name, cost in alone.items()]
    return shown


def unknown(methods: Sequence[DiagnosisTable]) -> list[str]:
    """Sentences on what the figures of the methods cannot tell, without repetitions."""
    return list(dict.fromkeys(text for method in methods for text in method["unknown"]))


def where(methods: Sequence[DiagnosisTable]) -> str:
    """The names of the models at which quantities were measured."""
    names = list(dict.fromkeys(name for method in methods for name in method["models"]))
    return _and(names)


def _steps(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low} to {high}"


def _first_to_last(method: DiagnosisTable, name: str) -> str:
    values = [_number(point.get(name)) for point in method["points"]]
    return values[0] if len(values) == 1 or {*values} == {"–"} else f"{values[0]} → {values[-1]}"


def _weights(value: float | None) -> str:
    return "0" if value is not None and value < 1e-12 else _number(value)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
