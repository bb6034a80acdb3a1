"""The results of a sweep as sentences and pictures: for the report, the plots and the command."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedax.columns import PARTS, deciding, describe, show, show_parts
from fedax.experiments.runs import Record, Trial
from fedax.experiments.summary import over, short
from fedax.figures.series import Chart, Scale, Series, wide

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


def charts(record: Record) -> list[Chart]:
    """The pictures: the criterion over the axis of methods with one, and a map over two axes for each other method."""
    curves: dict[str, list[tuple[int, list[Trial]]]] = {}
    maps = []
    for k, label in enumerate(record.labels):
        trials = record.trials(label)
        axes = [name for name in (trials[0].point if trials else ()) if len(_values(trials, name)) > 1]
        if len(axes) == 1:
            curves.setdefault(axes[0], []).append((k, trials))
        elif axes:
            maps.append(_map(record, label, trials, axes))
    return [*(_curve(record, name, lines) for name, lines in curves.items()), *maps]


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
    histories = [run.history for trial in trials for run in trial.runs]
    start = float(np.mean([history[deciding(sweep["criterion"], history)][0] for history in histories]))
    sign = -1 if sweep["better"] == "higher" else 1
    values = np.sort([sign * trial.mean for trial in trials])
    best, worst = float(values[0]), float(np.quantile(values, share, method="higher"))
    if best < sign * start < worst:
        worst = sign * start
    low, high = sorted((sign * best, sign * worst))
    return low, high, sweep["better"] == "lower" and 0 < 3 * low < high  # good points should be distinguishable


def _curve(record: Record, name: str, lines: list[tuple[int, list[Trial]]]) -> Chart:
    """A line for each method; what is worse than its model at the start is drawn like it, what failed as a cross."""
    x, at = _axis(name, [trial.point[name] for _, trials in lines for trial in trials])
    column, lower = record.config["sweep"]["criterion"], record.config["sweep"]["better"] == "lower"
    low, high, log = scale(record)
    series = []
    for k, trials in lines:
        label = record.labels[k]
        for failed in (False, True):
            here = sorted((t for t in trials if bool(t.failed) == failed), key=lambda t: at(t.point[name]))
            if not here:
                continue
            texts = [f"{label}\n{name} {short(t.point[name])}: {score(record, t)}" for t in here]
            places = np.array([at(t.point[name]) for t in here], float)
            if failed:
                top, crosses = np.full((1, len(here)), high if lower else low), np.full(len(here), np.nan)
                series.append(Series("", places, top, kind="dots", k=k, texts=texts, shade=crosses))
            else:
                values = [t.scores if low <= t.mean <= high else t.scores.clip(low, high) for t in here]
                series.append(Series(label, places, np.stack(values, axis=1), k=k, texts=texts))
    return Chart(name, x, Scale(describe(column).label, describe(column).unit, log=log), series)


def _map(record: Record, label: str, trials: list[Trial], axes: list[str]) -> Chart:
    """A map over the two axes that matter most; a cell of a grid shows the best over the other axes."""
    if len(axes) > 2:
        axes = sorted(sorted(axes, key=lambda name: -_importance(trials, name))[:2], key=axes.index)
    grid, column = record.config["sweep"]["search"] == "grid", record.config["sweep"]["criterion"]
    (x, at_x), (y, at_y) = (_axis(name, [trial.point[name] for trial in trials], words=grid) for name in axes)
    shown: dict[Any, Trial] = {}
    for trial in trials:  # the best first
        shown.setdefault((at_x(trial.point[axes[0]]), at_y(trial.point[axes[1]])) if grid else len(shown), trial)
    low, high, log = scale(record, SHOWN)
    higher = record.config["sweep"]["better"] == "higher"
    heights = np.array([trial.mean if not trial.failed else np.nan for trial in shown.values()])
    best, worst = (high, low) if higher else (low, high)
    ramp = (describe(column).label, f"{show(column, worst)} or worse", show(column, best))
    if log and low > 0:
        best, worst, heights = math.log(best), math.log(worst), np.log(heights)
    shade = np.clip((heights - worst) / (best - worst), 0, 1) if best != worst else np.sign(np.abs(heights) + 1)
    texts = []
    for i, t in enumerate(shown.values()):
        cell = "×" if t.failed else "★ " * (not i) + show(column, t.mean)
        texts.append(f"{cell}\n" * grid + f"{settings(t.point)}: {score(record, t)}")
    at = np.array([[at_x(t.point[axes[0]]), at_y(t.point[axes[1]])] for t in shown.values()], float).T
    points = Series("", at[0], at[1:], kind="cells" if grid else "dots", texts=texts, shade=shade)
    others = " and ".join(name for name in trials[0].point if name not in axes and len(_values(trials, name)) > 1)
    note = f"Each cell: the best over {others}." if grid else f"Also varied: {others}."
    return Chart(label, x, y, [points], note if others else "", ramp)


def _axis(name: str, values: list[Any], words: bool = False) -> tuple[Scale, Callable[[Any], float]]:
    """An axis of numbers, logarithmic if they differ much, or of words; and the place of a value on it."""
    places = list(dict.fromkeys(map(_place, values)))
    numeric = all(map(_is_number, places))
    if numeric and not words:
        return Scale(name, log=wide(np.array(places, float))), float
    places = sorted(places) if numeric else places
    return Scale(name, words=tuple(cut(str(place)) for place in places)), lambda value: places.index(_place(value))


def cut(text: str, most: int = 16) -> str:
    """A text of at most so many letters; of a longer one the beginning."""
    return text if len(text) <= most else text[: most - 1] + "…"


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
