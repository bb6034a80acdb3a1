"""The card of a model: what it was trained on and how, its figures, and what these do not say."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from fedax.columns import PARTS, PERSONAL, describe, show
from fedax.engine.saved import Model
from fedax.errors import printable
from fedax.experiments import summary
from fedax.experiments.report.privacy import guaranteed
from fedax.experiments.runs import MethodRun, Path, Record, model_path, read
from fedax.experiments.statistics import interval
from fedax.experiments.typeset import md
from fedax.tasks.factory import made_with

_MOST = 60  # clients, columns and categories that are named one by one

_USE = {
    "numpy": "`python model.py new.csv`, or `from model import predict_proba`; it needs NumPy.",
    "sklearn": "`joblib.load('model.joblib')` is an estimator of scikit-learn. It takes the features that "
    "`encode(rows)` of `model.py` makes; `python model.py new.csv` does both. A .joblib file can run code: load "
    "it only from whom you trust.",
    "onnx": "`model.onnx` takes `features` float32 [n, F], which `encode(rows)` of `model.py` makes; `python model.py "
    "new.csv` does both, with onnxruntime.",
}


def card(source: Path, model: Model, to: str) -> str:
    """The text of ``MODEL_CARD.md``.

    Args:
        source: the model's file; of one in a run folder the card tells of its run.
        model: what the file holds.
        to: the form of the export.

    Raises:
        ConfigError: its run folder cannot be read.
        DataError: a file of it is damaged, or was edited or moved.
    """
    sections = {"Model": _model(model, to), "Columns that it needs": _columns(model)}
    found = _run(source)
    if found is None:
        unknown = "The file lies in no run folder: the data, the method and the figures of its training are not known."
        sections["Training"] = [unknown]
    else:
        record, method, run = found
        sections |= {
            "Data": _data(record),
            "Training": _training(record, method),
            "Figures": _figures(record, method, run),
        }
    sections["What it may not be used for"] = [*map(_item, _limits(model, found))]
    parts = [f"# Model card: {md(printable(source.stem))}"]
    for name, lines in sections.items():
        parts += ["", f"## {name}", "", *lines] if lines else []
    return "\n".join(parts) + "\n"


def _run(source: Path) -> tuple[Record, summary.Method, MethodRun | None] | None:
    """The run folder of a model's file, its method, and its run; of the best model of a run ``None`` in its place."""
    folder = source.absolute().parent.parent
    if source.absolute().parent.name != "models" or not (folder / "config.toml").is_file():
        return None
    record = read(folder)
    for method in summary.methods([record]):
        for run in method.runs:
            if source.name in [model_path(folder, run.label, run.seed, best).name for best in (False, True)]:
                return record, method, run if source.name == model_path(folder, run.label, run.seed).name else None
    return None


def _model(model: Model, to: str) -> list[str]:
    label = None if model.transform is None else model.transform.label
    what = "classes" if model.task.kind == "classification" else "a number"
    if model.labels is not None:
        what = f"one of the classes {_listed(model.labels)}"
    lines = [f"Predicts {'' if label is None else f'{printable(label.name)}: '}{what}."]
    if (threshold := getattr(model, "threshold", None)) is not None and model.labels is not None:
        positive = f"{printable(str(model.labels[-1]))} from a probability of {threshold:.3g} on"
        lines.append(f"Chosen on validation rows: {positive}. predict takes the likelier class.")
    made = {name: value for name, value in made_with(model.task).items() if value is not None}
    settings = ", ".join(f"{name} {summary.short(value)}" for name, value in made.items())
    lines.append(f"Kind: {model.task.name} ({settings}).")
    by = " and ".join(f"{name} {version}" for name, version in (model.versions or {}).items())
    lines.append(f"Trained with {by}." if by else "")
    return [*map(_item, filter(None, lines)), _item(f"Use: {_USE[to]}", escaped=True)]


def _columns(model: Model) -> list[str]:
    """The columns of a table that the model takes, with what its training had in them."""
    if model.transform is None or not model.transform.columns:
        shapes = model.example or {}
        texts = [f"{name}: an array [n{''.join(f', {size}' for size in shape)}]" for name, (shape, _) in shapes.items()]
        return [_item(f"{text} of numbers, as at the training") for text in texts]
    lines = []
    for column in model.transform.columns[:_MOST]:
        had = _listed(column.categories) + ", others" * column.other
        had = f"far outside of training beyond {column.limits}" if column.kind in ("number", "date") else had
        empty = "may be missing" if column.missing else "was never missing in training"
        lines.append(_item(f"{printable(column.name)}: a {column.kind}; {f'{had}; ' if had else ''}{empty}"))
    if (more := len(model.transform.columns) - _MOST) > 0:
        lines.append(_item(f"and {more} more, which model.json lists"))
    if model.transform.dropped:
        lines.append(_item(f"Not used: {_listed(model.transform.dropped)}"))
    return lines


def _data(record: Record) -> list[str]:
    about, data = record.about["clients"], record.config["data"]
    lines = [f"{name}: {text}." for name, text in _facts(record, "Data", "Partition", "Clients")]
    if "split" in data:
        shares = ", ".join(f"{part} {data['split'][part]:g}" for part in ("train", *PARTS) if part in data["split"])
        lines.append(f"Split of each client's rows: {shares}.")
    names = about.get("names") or []
    if names and record.about.get("public") is None:  # of a private run sizes and names stay in its folder
        rows = [f"{name} {size}" for name, size in zip(names, about["sizes"], strict=False)]
        lines.append(f"Training examples of each client: {_listed(rows)}.")
    return [*map(_item, filter(None, lines))]


def _training(record: Record, method: summary.Method) -> list[str]:
    hyper = ", ".join(f"{name} {summary.short(value)}" for name, value in method.hyper.items())
    lines = [f"Method: {method.label}" + (f" ({hyper})." if hyper else ".")]
    lines += [
        f"{name}: {text}." for name, text in _facts(record, "Task", "Local work", "Run", "Uploads", "Pace", "Clock")
    ]
    rounds = sorted({int(run.history["round"][-1]) for run in method.runs})
    lines.append(f"Rounds: {' or '.join(map(str, rounds))}; {method.status_text}.")
    lines.append(f"Begun: {record.about['started']}." if "started" in record.about else "")
    if method.epsilon is None:
        lines.append("Privacy: no noise was added; what the model reveals of its training examples is not bounded.")
    else:
        outlook = (record.about.get("privacy") or {}).get(method.label, {})
        lines.append(f"Privacy spent: ε = {show('epsilon', method.epsilon)} at δ = {method.delta:g}, of one run.")
        lines.append(guaranteed(outlook["relation"], outlook["accountant"]) if outlook else "")
        lines += summary.weaknesses(record)
        lines.append(summary.NOT_PRIVATE if record.config["privacy"].get("noise_seed") is not None else "")
    return [*map(_item, filter(None, lines))]


def _facts(record: Record, *names: str) -> list[tuple[str, str]]:
    facts = summary.facts(record.config, record.about["clients"]["sizes"], record.about["parameters"])
    return [(name, facts[name]) for name in names if name in facts]


def _figures(record: Record, method: summary.Method, run: MethodRun | None) -> list[str]:
    """A table of held-out figures: of this model, and means over the seeds with their intervals."""
    public, method = record.about.get("public"), method.measured
    named = (name for name in summary.metrics([method]) if not name.endswith(PERSONAL))  # those are other models
    held_out = [name for name in named if name.partition("_")[0] in PARTS]
    rows = []
    for name in held_out if public is None else [name for name in held_out if name in public]:
        values = method.final(name)
        low, high = interval(values) if len(values) > 2 else (math.nan, math.nan)  # two seeds tell nothing of a spread
        own = "–" if run is None else show(name, float(run.history[name][-1]))
        mean = show(name, float(np.mean(values))) if values.size else "–"
        ends = "–" if math.isnan(low) else f"{show(name, low)} to {show(name, high)}"
        rows.append([describe(name).label, own, mean, ends])
    if not rows:
        return [
            "There are no figures of held-out examples" + (" that may be published." if public is not None else ".")
        ]
    seeds = len(method.runs)
    heads = ["Figure", "This model", f"Mean of {seeds} seed{'s' * (seeds > 1)}", "95 % interval of the mean"]
    table = [heads, ["---", *["---:"] * 3], *([md(cell) for cell in row] for row in rows)]
    return [*(f"| {' | '.join(row)} |" for row in table), "", _of_what(seeds, run)]


def _of_what(seeds: int, run: MethodRun | None) -> str:
    text = "" if run is not None else "This model is that of its best round; the means are those of the last round. "
    if seeds < 3:
        return f"{text}For an interval there are too few seeds."
    return f"{text}Intervals are Student's t over the seeds; they do not cover other clients."


def _limits(model: Model, found: tuple[Record, summary.Method, MethodRun | None] | None) -> list[str]:
    lines = []
    if found is not None:
        record, method, _ = found
        others = len(record.about["clients"]["sizes"])
        who = f"the {others} clients" if others > 1 else "the one client"
        lines.append(f"Elsewhere than at {who} of its training without a test: it was not validated on any other.")
        if method.status != "finished":
            lines.append(f"Before somebody has looked at its training, which {method.status_text}.")
    else:
        lines.append("Anywhere without a test: its figures are not known.")
    lines.append("On data of another time, or collected in another way, without a test: they may differ from these.")
    if model.transform is not None and model.transform.columns:
        lines.append("For rows with cells unlike anything in training: it answers all the same, with a warning.")
    if model.task.kind == "classification":
        lines.append("As a risk in per cent, before its user has checked that its probabilities are calibrated.")
    lines.append("To say what causes what: it was trained to predict.")
    return lines


def _item(text: str, escaped: bool = False) -> str:
    return f"- {text if escaped else md(text)}"


def _listed(names: Iterable[Any]) -> str:
    """The first of several names."""
    texts = [printable(str(name)) for name in names]
    return ", ".join(texts[:_MOST]) + (f" and {len(texts) - _MOST} more" if len(texts) > _MOST else "")
