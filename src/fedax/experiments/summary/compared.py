"""From the rows of single runs to what is shown: means over seeds, spreads, comparisons, the words for a number.

Methods are compared within a problem only: the same data, task, work, participation, rounds and batch. The seeds of two
methods are paired, since a seed fixes the initial model, the cohorts and the minibatches of both; so differences are
judged by a paired t-test over the seeds, whose error covers the split and the test examples too
(:mod:`fedax.experiments.chance`). The best is chosen by the same figures, hence all pairs count in Holm's correction:
with the comparisons to the best alone, ten equal methods give a false difference in 12 % of all cases. A difference of
less than :data:`fedax.theory.diagnostics.MATERIAL` of what training gained is a tie, however sure it is.
"""

import copy
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from fedax.columns import EXCLUSIONS, better, measures
from fedax.engine.history import tail_of
from fedax.experiments import chance, examples
from fedax.experiments.chance import Gap, gap_of
from fedax.experiments.config.sections import PYTHON
from fedax.experiments.defaults import judge
from fedax.experiments.runs import MethodRun, Path, Record
from fedax.experiments.summary.settings import telling, varied
from fedax.figures.axes import AXES, Axis
from fedax.theory.diagnostics import MATERIAL

LEVEL = 0.05  # of the paired test


@dataclass(frozen=True)
class Method:
    """One method over its seeds.

    Attributes:
        label: its name in the report.
        hyper: its hyper-parameters, as configured.
        runs: one a seed.
        names: of the clients, where they are real; else empty.
        delta: δ, for which the history tells ε; ``None``: the runs are not private.
        folder: the run folder.
        own: the label there.
    """

    label: str
    hyper: dict[str, Any]
    runs: list[MethodRun]
    names: Sequence[str] = ()
    delta: float | None = None
    folder: Path | None = None
    own: str = ""

    @property
    def status(self) -> str:
        """The worst of its seeds; see :class:`fedax.experiments.MethodRun`."""
        found = {run.status for run in self.runs}
        return next(status for status in ("diverged", "worse", "failed", "unfinished", "finished") if status in found)

    @property
    def status_text(self) -> str:
        """The status in words, with the round of the first divergence."""
        if self.status == "finished":
            return "finished"
        at = [int(run.history["round"][-1]) for run in self.runs if run.status == self.status]
        seeds = f" ({len(at)} of {len(self.runs)} seeds)" if len(self.runs) > 1 else ""
        if self.status == "worse":
            return f"ended worse than it began{seeds}"
        text = {"diverged": "diverged by", "failed": "stopped by its guard at"}.get(self.status, "stopped at")
        return f"{text} round {min(at)}{seeds}"

    @property
    def losses_text(self) -> str:
        """Which uploads were left out of all runs, and how many rounds were skipped; empty where none."""
        last = [{name: run.history[name][-1] for name in EXCLUSIONS if name in run.history} for run in self.runs]
        left_out, skipped = (sum(int(row.get(name, 0)) for row in last) for name in ("left_out", "skipped"))
        ids = sorted({id_ for row in last for id_ in row.get("bad_clients", ())})
        called = [self.names[id_] if id_ < len(self.names) else str(id_) for id_ in ids[:10]]
        whose = f"client{'s' * (len(ids) > 1)} {', '.join(called)}{', …' * (len(ids) > 10)}"
        said = [f"{left_out} upload{'s' * (left_out > 1)} of {whose} left out"] if left_out else []
        said += [f"{skipped} round{'s' * (skipped > 1)} skipped for want of clients"] if skipped else []
        return "; ".join(said)

    def values(self, column: str) -> np.ndarray:
        """[seeds, evaluations] as far as all seeds have come before one diverged."""
        length = min(len(run.history["round"]) - (run.status == "diverged") for run in self.runs)
        return np.stack([run.history[column][:length].astype(float) for run in self.runs])

    def final(self, column: str) -> np.ndarray:
        """[seeds] last values; empty unless all seeds came to their last round."""
        return self.tail(column, 1)

    def tail(self, column: str, evaluations: int) -> np.ndarray:
        """[seeds] means of the last values; empty unless all seeds came to their last round."""
        if self.status not in ("finished", "worse"):
            return np.zeros(0)
        return np.array([np.mean(run.history[column][-evaluations:]) for run in self.runs], dtype=float)

    def cost(self, column: str) -> float:
        """What a run cost in the end, the mean over seeds."""
        return float(np.mean([run.history[column][-1] for run in self.runs]))

    def of_examples(self, column: str) -> examples.ExampleValues | None:
        """The values of held-out examples, means over the seeds; ``None`` where they are not known of all."""
        if self.folder is None:
            return None
        found = [examples.read(self.folder, self.own, run.seed, column) for run in self.runs]
        there = [each for each in found if each is not None]
        if not there or len(there) < len(found) or any(list(each.sizes) != list(there[0].sizes) for each in there):
            return None
        return examples.ExampleValues(np.mean([each.values for each in there], axis=0), there[0].sizes)

    @property
    def epsilon(self) -> float | None:
        """The privacy that a run has spent, the most of its seeds; ``None``: the runs are not private."""
        spent = [float(run.history["epsilon"][-1]) for run in self.runs if "epsilon" in run.history]
        return max(spent) if spent else None


def methods(records: Sequence[Record], names: Sequence[str] = ()) -> list[Method]:
    """The methods of run folders, of sweeps at their best points; ``names``: of the folders, for the labels."""
    found = []
    for record, name in zip(records, names or [""] * len(records), strict=True):
        for settings in record.config["methods"]:
            runs = record.of(settings["label"])
            if runs:
                label = f"{settings['label']} · {name}" if name else settings["label"]
                clients = record.about["clients"].get("names") or ()
                delta = record.config.get("privacy", {}).get("delta")
                hyper = telling(_at(settings, runs[0].point))
                found.append(Method(label, hyper, runs, clients, delta, record.folder, settings["label"]))
    return found


def _at(settings: dict[str, Any], point: dict[str, Any]) -> dict[str, Any]:
    """A method's settings at a point of a sweep."""
    settings = copy.deepcopy(settings)
    for path, value in point.items():
        table, keys = settings, path.split(".")
        while len(keys) > 1 and isinstance(table.get(keys[0]), dict):
            table = table[keys.pop(0)]
        table[".".join(keys)] = value
    return settings


@dataclass(frozen=True)
class Problem:
    """Methods that were run on one problem, and how they compare.

    Attributes:
        records: their run folders.
        methods: with the seeds that all have who finished; where there is no such seed, with all of their own.
        differs: the settings in which this problem differs from the others of a report.
        seeds: those by which methods are compared; empty where they have none in common.
        left_out: seeds that are therefore left out, by label.
        judge: the column that decides; ``None`` where nothing tells which method is better.
        better: ``"lower"`` or ``"higher"``.
        tail: of how many last evaluations a mean stands beside the last value; 0 where there are too few.
        best: the method with the best mean of those that finished; ``None`` if there are not two.
        p: label -> corrected p-value of the difference to the best; empty where there are not two seeds.
        gaps: label -> the difference, that method less the best; of the same.
        covered: the sources of chance that these cover, in words.
        sure: whether they cover the held-out examples, where these decide.
        gained: by how much the best has changed the column that decides since the start; 0 where not known.
    """

    records: list[Record]
    methods: list[Method]
    differs: dict[str, str]
    seeds: list[int]
    left_out: dict[str, list[int]]
    judge: str | None
    better: str | None
    tail: int
    best: Method | None
    p: dict[str, float]
    gaps: dict[str, Gap] = field(default_factory=dict)
    covered: list[str] = field(default_factory=list)
    sure: bool = True
    gained: float = 0.0

    def small(self, label: str) -> bool:
        """Whether a method's difference to the best is too small to matter."""
        return abs(self.gaps[label].mean) < MATERIAL * self.gained

    @property
    def star(self) -> Method | None:
        """The best, where its difference to each other method matters and is more than chance."""
        told = self.sure and self.p and max(self.p.values()) < LEVEL and not any(map(self.small, self.p))
        return self.best if told else None

    @property
    def tied(self) -> list[Method]:
        """The best and those of which the test does not tell it, or too close to matter; empty where there is none."""
        equal = [label for label, p in self.p.items() if p >= LEVEL or self.small(label)]
        return [m for m in self.methods if m is self.best or m.label in equal] if equal else []

    def mark(self, m: Method) -> str:
        """``"★"``, ``"≈"`` for a tie, or nothing."""
        return "★" if m is self.star else "≈" if any(m is tied for tied in self.tied) else ""


def problems(records: Sequence[Record]) -> list[Problem]:
    """The methods of one or several run folders, grouped by what they were run on."""
    settings = [_problem(record) for record in records]
    names = list(dict.fromkeys(name for each in settings for name in each))
    differ = [name for name in names if len({each.get(name) for each in settings}) > 1]
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, each in enumerate(settings):
        groups.setdefault(tuple(each.get(name) for name in names), []).append(i)
    found = []
    folders = _folders(records)
    for members in groups.values():
        first = settings[members[0]]
        differs = {name: first.get(name, "none") for name in differ}
        if differs.pop(_DEALT, None) and not any(name.startswith("data.") for name in differs):
            differs[_DEALT] = f"as in {folders[members[0]]}"
        found.append(_compared([records[i] for i in members], differs, [folders[i] for i in members]))
    return found


def _folders(records: Sequence[Record]) -> list[str]:
    """A name for each of several folders, none twice; of a single one nothing, for it needs none."""
    if len(records) == 1:
        return [""]
    names = [record.folder.name for record in records]
    if len({*names}) < len(names):
        names = [str(record.folder) for record in records]
    return [f"{name} ({names[:i].count(name) + 1})" if name in names[:i] else name for i, name in enumerate(names)]


_DEALT = "clients' data"
_DIGESTED = re.compile(r"(data|val|test)\W|sizes and weights|params|program of task|(work|participation)\b")


def _problem(record: Record) -> dict[str, str]:
    """What makes a problem: setting -> value, in words."""
    config, clients = varied(record.config), record.about["clients"]
    asked = ("rounds", "batch_size", "faults", "split_seeds")
    sections = {name: config[name] for name in ("data", "task", "work", "participation")}
    sections["run"] = {name: value for name, value in config["run"].items() if name in asked and value is not False}
    settings = {f"{name}.{key}": repr(value) for name, table in sections.items() for key, value in table.items()}
    if config["data"]["name"] == PYTHON:  # of what no configuration tells, the digests
        made_of: dict[str, str] = next(iter((record.about.get("made_of") or {}).values()), {})
        settings |= {name: text for name, text in made_of.items() if _DIGESTED.match(name)}
    return settings | {_DEALT: json.dumps([clients["sizes"], clients["counts"]])}


def _compared(records: list[Record], differs: dict[str, str], folders: list[str]) -> Problem:
    found = methods(records, folders)
    finished = [m for m in found if m.status == "finished"]
    own = {m.label: [run.seed for run in m.runs] for m in found}
    seeds = [seed for seed in own[finished[0].label] if all(seed in own[m.label] for m in finished)] if finished else []
    left_out = {}
    if seeds:
        left_out = {m.label: rest for m in finished if (rest := [seed for seed in own[m.label] if seed not in seeds])}
        found = [_with_seeds(m, seeds) for m in found]
        finished = [m for m in found if m.status == "finished"]
    config = records[0].config | {"methods": [row for record in records for row in record.config["methods"]]}
    asked = {record.config["run"].get("judge") for record in records}
    if len(asked) > 1:
        config["run"] = {**config["run"], "judge": None}
    column, way = judge(config, metrics(found)), None
    if len(records) == 1 and "sweep" in config:
        column, way = config["sweep"]["criterion"], config["sweep"]["better"]
    length = min((len(run.history["round"]) for m in finished for run in m.runs), default=0)
    tested = _Tested(None, {}, {}, [], True, 0.0)
    if column is not None:
        way = way or better(column)
        tested = _paired(finished if seeds else [], column, way, records[0].config)
    tail = tail_of(length) if length > 4 else 0
    return Problem(records, found, differs, seeds, left_out, column, way, tail, *tested)


def _with_seeds(m: Method, seeds: list[int]) -> Method:
    runs = {run.seed: run for run in m.runs}
    return replace(m, runs=[runs[seed] for seed in seeds]) if all(seed in runs for seed in seeds) else m


class _Tested(NamedTuple):
    """As in :class:`Problem`."""

    best: Method | None
    p: dict[str, float]
    gaps: dict[str, Gap]
    covered: list[str]
    sure: bool
    gained: float


def _paired(found: list[Method], column: str, way: str | None, config: Mapping[str, Any]) -> _Tested:
    """The method with the best mean, and how each other one differs from it."""
    finals = {m.label: m.final(column) for m in found}
    found = [m for m in found if np.isfinite(finals[m.label]).all()]
    if len(found) < 2 or way is None:
        return _Tested(None, {}, {}, [], True, 0.0)
    best = (min if way == "lower" else max)(found, key=lambda m: float(np.mean(finals[m.label])))
    gained = float(np.mean([abs(run.history[column][0] - run.history[column][-1]) for run in best.runs]))
    gained = gained if math.isfinite(gained) else 0.0
    if len(finals[best.label]) < 2:
        return _Tested(best, {}, {}, [], True, gained)
    part = chance.fixed_part(config, column)
    values = {} if part is None else {m.label: m.of_examples(column) for m in found}
    there = {label: each for label, each in values.items() if each is not None}
    sizes = [list(each.sizes) for each in there.values()]
    known = len(there) == len(found) and all(each == sizes[0] for each in sizes)
    overlap = chance.overlap(config, column)

    def gap(one: str, other: str) -> Gap:
        if not known:
            return gap_of(finals[one], finals[other], overlap)
        return gap_of(finals[one], finals[other], overlap, (there[one].values, there[other].values), there[one].sizes)

    pairs = list(itertools.combinations([m.label for m in found], 2))
    corrected = dict(zip(pairs, holm([gap(*pair).p for pair in pairs]), strict=True))
    others = {label: pair for pair in pairs for label in pair if best.label in pair and label != best.label}
    return _Tested(
        best,
        {label: corrected[pair] for label, pair in others.items()},
        {label: gap(best.label, label) for label in others},
        chance.covered(config, column, known, len(sizes[0]) if known else 0),
        part is None or known,
        gained,
    )


def holm(p: Sequence[float]) -> list[float]:
    """P-values of several tests, corrected so that any false difference is as unlikely as in one test (Holm 1979).

    Example:
        >>> holm([0.04, 0.01, 0.03])
        [0.06, 0.03, 0.06]
    """
    corrected, least = [0.0] * len(p), 0.0
    for rank, i in enumerate(np.argsort(p, kind="stable")):
        least = corrected[i] = min(1.0, max(least, (len(p) - rank) * float(p[i])))
    return corrected


def order(clients: dict[str, Any]) -> np.ndarray:
    """The clients in the order of the drawings: the largest first."""
    return np.argsort(-np.asarray(clients["sizes"]), kind="stable")


def wide(values: np.ndarray) -> bool:
    """Whether finite values want a logarithmic scale: more than a factor of eight from lowest to highest."""
    return values.size > 0 and bool(values.min() > 0 and values.max() > 8 * values.min())


def table_order(problem: Problem) -> list[str]:
    """The columns as a table has them: first what decides, then what is measured on held-out data.

    Where there is a test part, it is what tables report; validation is for choosing.
    """
    found = metrics(problem.methods)
    tested = "test_loss" in found
    shown = [column for column in found if column == problem.judge or not (tested and column.startswith("val_"))]
    return sorted(shown, key=lambda column: column != problem.judge)


def curve_order(problem: Problem) -> list[str]:
    """The columns of which curves are drawn: those of a table, and the validation loss."""
    found = table_order(problem)
    there = "val_loss" in metrics(problem.methods) and "val_loss" not in found
    return [*found, "val_loss"] if there else found


def axes_of(found: Sequence[Method]) -> dict[str, Axis]:
    """What curves of these methods can be drawn against, by name: ε where all have one, and it is finite."""
    histories = [run.history for m in found for run in m.runs]
    private = all("epsilon" in each and np.isfinite(each["epsilon"]).all() for each in histories)
    return {name: axis for name, axis in AXES.items() if private or name != "epsilon"}


def axes(problem: Problem) -> dict[str, Axis]:
    """What a report draws against and compares by: uploads by themselves only where they are compressed."""
    asked = [table for record in problem.records for table in (record.config["run"], *record.config["methods"])]
    compressed = any(table.get("compress") for table in asked)
    return {name: axis for name, axis in axes_of(problem.methods).items() if compressed or name != "uploads"}


def metrics(found: Sequence[Method]) -> list[str]:
    """The columns to compare: the measures that all methods have, in the order of a table."""
    first = found[0].runs[0].history
    return measures([column for column in first if all(column in run.history for m in found for run in m.runs)])


def spread(values: np.ndarray) -> float | None:
    """Sample standard deviation over seeds; ``None`` of a single one."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None
