"""The results of a sweep as sentences and panels to draw: for the report, the plots and the command."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedax.columns import PARTS, describe, show, show_parts
from fedax.experiments.runs import Record, Trial
from fedax.experiments.summary import over, short, wide

Panel = dict[str, Any]

SHOWN = 0.75  # the share of the points that the colours of a map distinguish; the worst ones look alike

_BINS = 4  # bins for an axis with more than twice as many values, when the importance of axes is compared


def settings(point: dict[str, Any]) -> str:
    """The settings of a point in one line.

    Example:
        >>> settings({"lr": 0.1, "work.steps": 5})
        'lr 0.1 · work.steps 5'
    """
    return " · ".join(f"{name} {short(value)}" for name, value in point.items()) or "as configured"


def score(record: Record, trial: Trial) -> str:
    """The criterion at a point: mean and standard deviation over the seeds."""
    column = record.config["sweep"]["criterion"]
    if math.isnan(trial.mean):
        return failure(trial)
    return " ".join(filter(None, show_parts(column, trial.mean, trial.std)))


def failure(trial: Trial) -> str:
    """How the failed seeds of a point ended, in words."""
    statuses = {run.status for run in trial.runs}
    words = {"diverged": "diverged", "worse": "ended worse than it began", "failed": "stopped by its guard"}
    return " or ".join(text for status, text in words.items() if status in statuses)


def about(record: Record) -> str:
    """Two sentences: what was tried, and the criterion."""
    sweep, run = record.config["sweep"], record.config["run"]
    points = {label: len(record.trials(label)) for label in record.labels}
    search = "grid search" if sweep["search"] == "grid" else f"random search (seed {sweep['seed']})"
    last = "after the last round" if sweep["last"] == 1 else f"as the mean of the last {sweep['last']} evaluations"
    number = len(run["seeds"])
    seeds = f", mean ± standard deviation over {over(record.config, number)}" if number > 1 else ""
    judged = f"{describe(sweep['criterion']).label} {last}{seeds}; {sweep['better']} is better."
    return f"{sum(points.values())} points by {search}. {judged}"


def notes(record: Record) -> list[str]:
    """Sentences with caveats about the best points."""
    trials = {label: record.trials(label) for label in record.labels}
    sentences = []
    counts = {label: len(tried) for label, tried in trials.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{label} {count}" for label, count in counts.items())
        sentences.append(f"The methods had unequal numbers of points ({listed}); more points find a better best.")
    sentences += [
        f"{label} diverged, ended worse than it began or was stopped at every point, with one seed or more."
        for label, tried in trials.items()
        if tried and tried[0].failed
    ]
    alike: dict[tuple[str, float, str], list[str]] = {}
    for label, tried in trials.items():
        for edge in edges(tried):
            alike.setdefault(edge, []).append(label)
    for (name, value, end), names in alike.items():
        text = f"the best {name}, {short(value)}, is the {end} that was tried"
        beyond = {"largest": "larger", "smallest": "smaller"}[end]
        sentences.append(f"{', '.join(names)}: {text}; {beyond} ones may be better.")
    if record.config["sweep"]["criterion"].startswith(PARTS):
        part = "validation" if record.config["sweep"]["criterion"].startswith("val") else "held-out"
        sentences.append(f"Points were chosen by {part} data: the best points' own figures on these data flatter them.")
    return sentences


def edges(trials: Sequence[Trial]) -> list[tuple[str, float, str]]:
    """The settings of the best point that are at an edge of the grid: name, value, ``"smallest"`` or ``"largest"``."""
    if not trials or trials[0].failed:
        return []
    at_edge = []
    for name, value in trials[0].point.items():
        values = [trial.point[name] for trial in trials]
        if all(map(_is_number, values)) and min(values) < max(values) and value in (min(values), max(values)):
            at_edge.append((name, value, "smallest" if value == min(values) else "largest"))
    return at_edge


def panels(record: Record) -> list[Panel]:
    """The panels to draw: curves of the criterion for methods with one axis, a map over two axes for the others.

    Each is a dictionary: ``kind`` (``"curve"``, ``"grid"``, ``"scatter"``), ``title``, ``note``, the axes ``x`` (and
    ``y``) with name, values and whether they are logarithmic, and its ``lines`` or ``points``.
    """
    drawn: list[Panel] = []
    curves: dict[str, Panel] = {}
    for k, label in enumerate(record.labels):
        trials = record.trials(label)
        axes = [name for name in (trials[0].point if trials else ()) if len(_values(trials, name)) > 1]
        if len(axes) == 1:
            name = axes[0]
            panel = curves.setdefault(name, {"kind": "curve", "title": name, "note": "", "lines": []})
            panel["lines"].append(_line(label, k, trials, name))
            if panel not in drawn:
                drawn.append(panel)
        elif axes:
            drawn.append(_map(record, label, trials, axes))
    for name, panel in curves.items():
        panel["x"] = _axis(name, [x for line in panel["lines"] for x in line["x"] + line["failed"]])
    return drawn


def scale(record: Record, share: float = 1.0) -> tuple[float, float, bool]:
    """The range of the criterion in drawings, ``(low, high, logarithmic)``.

    Points that are worse than the initial model are drawn like it: a single far point would hide all differences.

    Args:
        record: the sweep.
        share: the share of the points that the range covers, beginning with the best.
    """
    sweep = record.config["sweep"]
    trials = [trial for label in record.labels for trial in record.trials(label) if not trial.failed]
    if not trials:
        return 0.0, 1.0, False
    start = float(np.mean([run.history[sweep["criterion"]][0] for trial in trials for run in trial.runs]))
    sign = -1 if sweep["better"] == "higher" else 1
    values = np.sort([sign * trial.mean for trial in trials])
    best, worst = float(values[0]), float(np.quantile(values, share, method="higher"))
    if best < sign * start < worst:
        worst = sign * start
    low, high = sorted((sign * best, sign * worst))
    return low, high, sweep["better"] == "lower" and 0 < 3 * low < high  # good points should be distinguishable


def _map(record: Record, label: str, trials: list[Trial], axes: list[str]) -> Panel:
    """A panel over the two axes that matter most; a cell of a grid shows the best over the other axes."""
    if len(axes) > 2:
        axes = sorted(sorted(axes, key=lambda name: -_importance(trials, name))[:2], key=axes.index)
    x, y = axes
    panel: Panel = {"title": label, "x": _axis(x, _values(trials, x)), "y": _axis(y, _values(trials, y))}
    others = [name for name in trials[0].point if name not in axes and len(_values(trials, name)) > 1]
    names = " and ".join(others)
    if record.config["sweep"]["search"] == "random":
        panel["note"] = f"Also varied: {names}." if others else ""
        panel |= {"kind": "scatter", "points": [_spot(record, trial, x, y) for trial in trials]}
        return panel
    cells: dict[tuple[Any, Any], Panel] = {}
    for trial in trials:  # the best first
        spot = _spot(record, trial, x, y)
        cells.setdefault((spot["x"], spot["y"]), spot)
    panel["note"] = f"Each cell: the best over {names}." if others else ""
    panel |= {"kind": "grid", "points": list(cells.values())}
    return panel


def _spot(record: Record, trial: Trial, x: str, y: str) -> Panel:
    return {
        "x": _place(trial.point[x]),
        "y": _place(trial.point[y]),
        "value": None if trial.failed else trial.mean,
        "text": failure(trial) if trial.failed else show(record.config["sweep"]["criterion"], trial.mean),
        "about": f"{settings(trial.point)}: {score(record, trial)}",
    }


def _line(label: str, k: int, trials: list[Trial], name: str) -> Panel:
    successful = [trial for trial in trials if not trial.failed]
    if all(_is_number(trial.point[name]) for trial in successful):
        successful.sort(key=lambda trial: trial.point[name])
    return {
        "label": label,
        "k": k,
        "x": [_place(trial.point[name]) for trial in successful],
        "mean": [trial.mean for trial in successful],
        "low": [float(trial.scores.min()) for trial in successful],
        "high": [float(trial.scores.max()) for trial in successful],
        "failed": [_place(trial.point[name]) for trial in trials if trial.failed],
    }


def _axis(name: str, values: list[Any]) -> Panel:
    """An axis of a panel: numbers, logarithmic if they differ much, or words."""
    places = list(dict.fromkeys(map(_place, values)))
    numeric = all(map(_is_number, places))
    if numeric:
        places.sort()
    return {"name": name, "values": places, "numeric": numeric, "log": numeric and wide(np.array(places, float))}


def _place(value: Any) -> Any:
    return value if _is_number(value) else short(value)


def _values(trials: Sequence[Trial], name: str) -> list[Any]:
    """The different values of an axis, in the order of their best points."""
    values: list[Any] = []
    for trial in trials:
        if trial.point[name] not in values:
            values.append(trial.point[name])
    return values


def _importance(trials: Sequence[Trial], name: str) -> float:
    """The importance of an axis: how much the best criterion changes along it."""
    values = [trial.point[name] for trial in trials]
    if all(map(_is_number, values)) and len(set(values)) > 2 * _BINS:
        ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable")
        values = (ranks * _BINS // len(values)).tolist()
    best: dict[str, float] = {}
    for value, trial in zip(values, trials, strict=True):
        if not trial.failed:
            best.setdefault(repr(value), trial.mean)  # the best first
    return max(best.values()) - min(best.values()) if best else 0.0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
