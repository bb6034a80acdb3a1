"""The diagnosis of an experiment: the theorems' constants at the models of a run folder, and their table."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedax.columns import TRAIN, deciding, describe
from fedax.data import FederatedData
from fedax.engine.saved import read_model
from fedax.experiments import summary
from fedax.experiments.clients import finite_model
from fedax.experiments.config.experiment import Experiment, within_deadline
from fedax.experiments.runs import MethodRun, Record, finite, model_path, said, write_json
from fedax.theory import diagnose
from fedax.theory.advice import MOST

DiagnosisTable = dict[str, Any]

_SHOWN = 3  # so many seeds that came to no good end are named


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
        ends = {each.seed: float(each.history[_column(each)][-1]) for each in record.of(label)}
        models, missing = {}, []
        for seed in sorted(run["seeds"], key=lambda seed: ends.get(seed, np.inf)):  # the worst end is looked at last
            path = model_path(record.folder, label, seed)
            model = read_model(path, form, said(record.folder, path)) if path.is_file() else None
            if model is not None and finite_model(model):
                models[seed] = experiment.task.part_of(model)
            else:
                missing.append(seed)
        data, first = experiment.data, run["seeds"][0]
        if run["split_seeds"] and models:  # each seed has data of its own: that which ended worst is looked at
            first = [*models][-1]
            data, models = experiment.split(first)[0], {first: models[first]}
        worst = f", of {len(run['seeds'])} the one that ended worst" if len(run["seeds"]) > len(models) else ""
        points |= {f"the final one of seed {seed}{worst}": model for seed, model in models.items()}
        assert isinstance(data, FederatedData)  # real clients need a fleet
        work, participation = within_deadline(experiment, label)
        paced = experiment.options.get("pace") is not None  # then clients start as the pace says
        diagnosis = diagnose(
            algorithm,
            experiment.task,
            data,
            work=work,
            batch_size=run.get("batch_size"),
            participation=None if paced else participation,
            pace=experiment.options.get("pace"),
            clock=experiment.options.get("clock"),
            compress=experiment.options.get("compress"),
            points=list(points.values()),
            seed=first,
        )
        table = {"label": label, "models": list(points), **dataclasses.asdict(diagnosis)}
        if lost := [each for each in record.of(label) if each.status not in ("finished", "unfinished")]:
            table["advice"] = [_lost(lost, len(run["seeds"]), _number(diagnosis.lr)), *diagnosis.advice]
        if missing:
            seeds = ", ".join(map(str, sorted(missing)))
            table["unknown"] = [
                *diagnosis.unknown,
                f"{label} has no finite final model of seed {seeds}: what is there is not known.",
            ]
        methods.append(table)
    write_json(record.folder / "diagnosis.json", {"methods": methods})
    return [finite(table) for table in methods]


def _lost(runs: Sequence[MethodRun], of: int, lr: str) -> str:
    """A sentence on seeds that came to no good end."""
    ends = [
        f"seed {run.seed} ({describe(_column(run)).label.lower()} {_number(float(run.history[_column(run)][0]))} → "
        f"{_number(float(run.history[_column(run)][-1]))})"
        for run in runs[:_SHOWN]
    ]
    more = f" and {len(runs) - _SHOWN} more" if len(runs) > _SHOWN else ""
    text = f"{len(runs)} of {of} seeds came to no good end at lr = {lr}: {', '.join(ends)}{more}."
    return f"{text} Lower lr, and look at every seed again, before you take it."


def verdict(record: Record) -> str:
    """What a diagnosed run folder says: which method to take, as in the report, on what evidence, and why."""
    (problem,) = summary.problems([record])
    answer = summary.verdict(problem)[:1] if len(problem.methods) > 1 or problem.against else []
    return " ".join(filter(None, [*answer, summary.recommendation(problem), why(record)]))


def why(record: Record) -> str:
    """What the diagnosis adds to the verdict of a comparison: why, and the next step; and which methods failed."""
    diagnoses = {table["label"]: table for table in record.diagnosis if table.get("verdict")}
    (problem,) = summary.problems([record])
    chosen = problem.chosen
    if chosen is None and summary.recommendation(problem):  # the rates come first; figures of what diverged say nothing
        return ""
    if chosen is None or chosen.label not in diagnoses:
        return " ".join(dict.fromkeys(str(table["verdict"]) for table in diagnoses.values()))
    diagnosis, text = diagnoses[chosen.label], ""
    lost = [m.label for m in problem.methods if m.label in diagnoses and m.status != "finished"]
    if lost:
        be = "is" if len(lost) == 1 else "are"
        text = f"{summary.listed(lost)} did not come to a good end with every seed, and {be} not to be taken so. "
    if len(problem.methods) == 1:
        return text + str(diagnosis["verdict"])
    if summary.alone_is_better(problem) and not chosen.has_personal:
        text += f"If it has to be a common model, take {chosen.label}. "
    names = {settings["label"]: settings["name"] for settings in record.config["methods"]}
    ended = [m.label for m in problem.methods if m.label in diagnoses and m.status == "finished"]
    tried = [label for label in ended if label != chosen.label and names[label] == diagnosis.get("take")]
    if tried and diagnoses[tried[0]].get("take") == names[chosen.label]:
        return text + _reworded(str(diagnoses[tried[0]]["verdict"]))
    if tried:
        return text + (
            f"The figures of {chosen.label} would speak for {tried[0]}, which was tried here and did not do better; "
            "repeat the comparison with more rounds before you pay for it."
        )
    return text + _reworded(str(diagnosis["verdict"]), str(diagnosis.get("method", "")))


def _reworded(text: str, method: str = "") -> str:
    """The verdict on a method, reworded to follow a sentence that recommends it.

    Example:
        >>> _reworded("Keep FedAvg: noise costs it nothing.", "FedAvg")
        'Noise costs it nothing.'
        >>> _reworded("Keep FedAvg, with larger cohorts: noise keeps it above.", "FedAvg")
        'Run it with larger cohorts: noise keeps it above.'
        >>> _reworded("Take scaffold in place of FedAvg: its clients are unlike.", "FedAvg")
        'Next, try scaffold in place of FedAvg: its clients are unlike.'
        >>> _reworded(f"First of all, train longer: that is {MOST} Keep FedAvg: noise costs it nothing.", "FedAvg")
        'First of all, train longer: that is more than by anything else. Noise costs it nothing.'
    """
    first, most, remedy = text.partition(f"{MOST} ")
    if most:
        return f"{first}{most}{_reworded(remedy, method)}"
    if text.startswith("Take "):
        return f"Next, try {text.removeprefix('Take ')}"
    before, rest = f"Keep {method}", text.removeprefix(f"Keep {method}")
    if not method or not text.startswith(before):
        return text
    if rest.startswith(": "):
        return rest[2].upper() + rest[3:]
    return f"Run it {rest.removeprefix(',').strip()}"


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


def advice(methods: Sequence[DiagnosisTable]) -> list[tuple[str, list[str]]]:
    """The reasons of the methods; what holds of several is said once, of all of them."""
    labels_of: dict[str, list[str]] = {}
    for method in methods:
        for sentence in method["advice"]:
            labels_of.setdefault(sentence, []).append(method["label"])
    groups: dict[str, list[str]] = {}
    for sentence, labels in labels_of.items():
        groups.setdefault(summary.listed(labels), []).append(sentence)
    return [*groups.items()]


def unknown(methods: Sequence[DiagnosisTable]) -> list[str]:
    """Sentences on what the figures of the methods cannot tell, without repetitions."""
    return list(dict.fromkeys(text for method in methods for text in method["unknown"]))


def where(methods: Sequence[DiagnosisTable]) -> str:
    """The names of the models at which quantities were measured."""
    names = list(dict.fromkeys(name for method in methods for name in method["models"]))
    return summary.listed(names)


def _steps(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low} to {high}"


def _first_to_last(method: DiagnosisTable, name: str) -> str:
    values = [_number(point.get(name)) for point in method["points"]]
    return values[0] if len(values) == 1 or {*values} == {"–"} else f"{values[0]} → {values[-1]}"


def _weights(value: float | None) -> str:
    return "0" if value is not None and value < 1e-12 else _number(value)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _column(run: MethodRun) -> str:
    """The column by which seeds are told apart: the training loss, or else a held-out one."""
    return deciding(next(name for name in (*TRAIN, "val_loss", "test_loss") if name in run.history), run.history)
