"""The comparison of methods: means and spreads over seeds, groups of comparable methods, tests, ties.

Methods are compared within a problem only: the same data, task, work, participation, rounds and batch. The runs of two
methods with one seed are a pair, since a seed fixes the initial model, the cohorts and the minibatches of both. So
differences are judged by a paired t-test over the seeds, whose error covers the split and the test examples too
(:mod:`fedax.experiments.chance`). The best method is chosen by the same figures, so the correction counts all pairs: if
it counted only the pairs with the best, ten equal methods would give a false difference in 12 % of all cases. It is
Bonferroni's, for p and for the interval alike, so that both always say the same, and all intervals hold together; those
that fit Holm's p, which are narrower, do not. A difference of less than :data:`fedax.theory.diagnostics.MATERIAL` of
what training gained does not count, even if it is significant.
"""

import copy
import functools
import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedax.columns import (
    COSTS,
    EXCLUSIONS,
    HEARD,
    PERSONAL,
    TIME,
    deciding,
    ever_heard,
    heard_enough,
    measures,
    show,
)
from fedax.engine.history import tail_of
from fedax.engine.options import OPTIONS
from fedax.errors import ConfigError, unknown
from fedax.experiments import chance, examples
from fedax.experiments.chance import Gap, gap_of
from fedax.experiments.config.sections import PYTHON
from fedax.experiments.defaults import judge
from fedax.experiments.runs import MethodRun, Path, Record
from fedax.experiments.summary.settings import telling, varied
from fedax.experiments.summary.worth import LEVEL, Versus, versus
from fedax.figures.axes import AXES, Axis
from fedax.theory.diagnostics import MATERIAL


@dataclass(frozen=True)
class Method:
    """One method over its seeds.

    Attributes:
        label: its name in the report.
        hyper: its hyper-parameters, as configured.
        runs: one for each seed.
        names: of the clients, where they are real; else empty.
        delta: the δ of the history's ε; ``None``: the runs are not private.
        folder: the run folder.
        label_in_folder: its label in that folder, where ``label`` also names the folder.
        min_heard: evaluations of real clients count if at least this share of the weight was heard in them.
        personal: whether its figures are those of its personal models, as others here have none.
    """

    label: str
    hyper: dict[str, Any]
    runs: list[MethodRun]
    names: Sequence[str] = ()
    delta: float | None = None
    folder: Path | None = None
    label_in_folder: str = ""
    min_heard: float = 1.0
    personal: bool = False

    @property
    def has_personal(self) -> bool:
        """Whether it gives each client a model of its own."""
        return any(name.endswith(PERSONAL) for name in self.runs[0].history)

    def column(self, name: str) -> str:
        """The column of the history from which a figure of this name is."""
        return deciding(name, self.runs[0].history) if self.personal else name

    @property
    def measured(self) -> "Method":
        """The same with all its columns as they are in its history."""
        return replace(self, personal=False)

    @property
    def status(self) -> str:
        """The worst status of its seeds; see :class:`fedax.experiments.MethodRun`."""
        statuses = {run.status for run in self.runs}
        return next(
            status for status in ("diverged", "worse", "failed", "unfinished", "finished") if status in statuses
        )

    @property
    def status_text(self) -> str:
        """The status in words, with the first and the last round at which a seed got it."""
        if self.status == "finished":
            return "finished"
        at = [int(run.history["round"][-1]) for run in self.runs if run.status == self.status]
        seeds = f" ({len(at)} of {len(self.runs)} seeds)" if len(self.runs) > 1 else ""
        if self.status == "worse":
            return f"ended worse than it began{seeds}"
        text = {"diverged": "diverged by", "failed": "stopped by its guard at"}.get(self.status, "stopped at")
        return f"{text} round {min(at)}{f' to {max(at)}' * (max(at) > min(at))}{seeds}"

    @property
    def losses_text(self) -> str:
        """How many uploads of which clients were left out, and how many rounds were skipped; empty if none."""
        last = [{name: run.history[name][-1] for name in EXCLUSIONS if name in run.history} for run in self.runs]
        left_out, skipped = (sum(int(row.get(name, 0)) for row in last) for name in ("left_out", "skipped"))
        ids = sorted({id_ for row in last for id_ in row.get("bad_clients", ())})
        names = [self.names[id_] if id_ < len(self.names) else str(id_) for id_ in ids[:10]]
        whose = f"client{'s' * (len(ids) > 1)} {', '.join(names)}{', …' * (len(ids) > 10)}"
        parts = [f"{left_out} upload{'s' * (left_out > 1)} of {whose} left out"] if left_out else []
        parts += [f"{skipped} round{'s' * (skipped > 1)} skipped for want of clients"] if skipped else []
        return "; ".join(parts)

    @property
    def heard(self) -> np.ndarray:
        """[evaluations] the share of the real clients' weight that was heard, the least of the seeds; else ones."""
        ones = self.values("round") * 0 + 1
        return (self.values(HEARD) if all(HEARD in run.history for run in self.runs) else ones).min(0)

    @functools.cached_property
    def heard_counts(self) -> dict[str, Any] | None:
        """Over the seeds: evaluations, those without all real clients, and what was heard; ``None``: a simulation."""
        shares = [np.asarray(run.history[HEARD], float) for run in self.runs if HEARD in run.history]
        if not shares:
            return None
        every, ends = np.concatenate(shares), [float(each[-1]) for each in shares]
        away = every[~heard_enough({HEARD: every})]
        return {
            "evaluations": every.size,
            "not_all": away.size,
            "too_few": int((~heard_enough({HEARD: every}, self.min_heard)).sum()),
            "least": float(every.min()),
            "most_of_those": float(away.max()) if away.size else None,
            "at_the_end": min(ends),
            "seeds_at_the_end": sum(not heard_enough({HEARD: end}) for end in ends),
        }

    @property
    def heard_text(self) -> str:
        """In how many evaluations not all real clients were heard, and what follows; empty if in none."""
        counts = self.heard_counts
        if counts is None or not counts["not_all"]:
            return ""
        away, few, ends = counts["not_all"], counts["too_few"], counts["seeds_at_the_end"]
        low, high = (show(HEARD, counts[name]) for name in ("least", "most_of_those"))
        text = f"in {away} of {counts['evaluations']} evaluations of {self.label} "
        text += f"only {low if low == high else f'{low} to {high}'} of the weight was heard"
        who = f"{few} of them count{'s' * (few == 1)}" if few < away else "it counts" if few == 1 else "they count"
        text += f"; {who} for no target and no best model" * (few > 0)
        if not all(ever_heard(run.history, self.min_heard) for run in self.runs):
            text += ". Of a run without one in training that counts, the last model is kept, and no best one"
        if ends:
            text += f". Its figures at the end are those of {show(HEARD, counts['at_the_end'])} of the weight"
            text += f", with {ends} of {len(self.runs)} seeds" * (ends < len(self.runs))
        return text

    def values(self, column: str) -> np.ndarray:
        """[seeds, evaluations] up to the last evaluation that all seeds have, without those that diverged."""
        length = min(len(run.history["round"]) - (run.status == "diverged") for run in self.runs)
        return np.stack([run.history[self.column(column)][:length].astype(float) for run in self.runs])

    def final(self, column: str) -> np.ndarray:
        """[seeds] last values; empty unless all seeds reached their last round."""
        return self.tail(column, 1)

    def tail(self, column: str, evaluations: int) -> np.ndarray:
        """[seeds] means of the last values; empty unless all seeds reached their last round."""
        if self.status not in ("finished", "worse"):
            return np.zeros(0)
        return np.array([np.mean(run.history[self.column(column)][-evaluations:]) for run in self.runs], dtype=float)

    def cost(self, column: str) -> float:
        """The final value of a cost column, the mean over the seeds."""
        return float(np.mean([run.history[column][-1] for run in self.runs]))

    def of_examples(self, column: str) -> examples.ExampleValues | None:
        """The values of held-out examples, means over the seeds; ``None`` unless all seeds have them."""
        if self.folder is None or self.column(column).endswith(PERSONAL):  # stored are those of shared models
            return None
        return examples.mean_of(self.folder, self.label_in_folder, [run.seed for run in self.runs], column)

    @property
    def epsilon(self) -> float | None:
        """The ε that a run has spent, the largest over the seeds; ``None``: the runs are not private."""
        spent = [float(run.history["epsilon"][-1]) for run in self.runs if "epsilon" in run.history]
        return max(spent) if spent else None


def methods(records: Sequence[Record], names: Sequence[str] = ()) -> list[Method]:
    """The methods of run folders (of sweeps, at their best points); ``names``: names of the folders, for the labels."""
    result = []
    for record, name in zip(records, names or [""] * len(records), strict=True):
        for settings in record.config["methods"]:
            runs = record.of(settings["label"])
            if runs:
                label = f"{settings['label']} · {name}" if name else settings["label"]
                clients = record.about["clients"].get("names") or ()
                delta = record.config.get("privacy", {}).get("delta")
                hyper = telling(_at_point(settings, runs[0].point))
                least = record.config["run"].get("min_heard") or 1.0
                about = clients, delta, record.folder, settings["label"], least
                result.append(Method(label, hyper, runs, *about))
    if all(m.has_personal for m in result):
        return result
    return [replace(m, personal=m.has_personal) for m in result]


def _at_point(settings: dict[str, Any], point: dict[str, Any]) -> dict[str, Any]:
    """A method's settings at a point of a sweep."""
    settings = copy.deepcopy(settings)
    for path, value in point.items():
        table, keys = settings, path.split(".")
        while len(keys) > 1 and isinstance(table.get(keys[0]), dict):
            table = table[keys.pop(0)]
        table[".".join(keys)] = value
    return settings


@dataclass(frozen=True)
class ProblemResults:
    """Methods that were run on one problem, and how they compare.

    Attributes:
        records: their run folders.
        methods: with the seeds that all finished methods share; if they share none, with all their seeds.
        differs: the settings in which this problem differs from the others of a report.
        seeds: the shared seeds, by which methods are compared; may be empty.
        left_out: label -> seeds that are not shared.
        judge: the column that decides; ``None`` if no column can.
        better: ``"lower"`` or ``"higher"``.
        tail: how many last evaluations are averaged beside the last value; 0 if there are too few.
        best: the finished method with the best mean; ``None`` if fewer than two finished.
        gaps: label -> the difference, that method less the best, corrected for all pairs; empty with fewer than two
            seeds.
        covered: the sources of chance that the tests cover, in words.
        sure: whether they cover the held-out examples, if these decide.
        gained: by how much the best has changed the deciding column since the start; 0 if not known.
    """

    records: list[Record]
    methods: list[Method]
    differs: dict[str, str]
    seeds: list[int]
    left_out: dict[str, list[int]]
    judge: str | None
    better: str | None
    tail: int
    best: Method | None = None
    gaps: dict[str, Gap] = field(default_factory=dict)
    covered: list[str] = field(default_factory=list)
    sure: bool = True
    gained: float = 0.0

    @property
    def p(self) -> dict[str, float]:
        """label -> corrected p-value of the difference to the best; empty with fewer than two seeds."""
        return {label: gap.p for label, gap in self.gaps.items()}

    def small(self, label: str) -> bool:
        """Whether the difference of a method to the best is too small to matter."""
        return abs(self.gaps[label].mean) < MATERIAL * self.gained

    @property
    def star(self) -> Method | None:
        """The best method, if its difference to each other one matters and is significant; else ``None``."""
        significant = self.sure and self.p and max(self.p.values()) < LEVEL and not any(map(self.small, self.p))
        return self.best if significant else None

    @property
    def tied(self) -> list[Method]:
        """The best and those not distinguished from it: not significant, or too close to matter; empty if all are."""
        equal = [label for label, p in self.p.items() if p >= LEVEL or self.small(label)]
        return [m for m in self.methods if m is self.best or m.label in equal] if equal else []

    def mark(self, m: Method) -> str:
        """``"★"`` for the best, ``"≈"`` for methods that are not distinguished, or nothing."""
        return "★" if m is self.star else "≈" if any(m is tied for tied in self.tied) else ""

    @property
    def unmeasured(self) -> list[Method]:
        """The methods that finished, but whose deciding column is not finite with every seed; they are not compared."""
        finished = [m for m in self.methods if m.status == "finished"] if self.judge is not None else []
        return [m for m in finished if not np.isfinite(m.final(str(self.judge))).all()]

    @functools.cached_property
    def chosen(self) -> Method | None:
        """The method to take; ``None`` where none came to a good end with all seeds, or nothing decides.

        The cheapest of those that are not distinguished from the best where it costs clearly less, else the cheapest of
        those whose difference to it does not matter. Every place that recommends a method names this one.
        """
        finished = [m for m in self.methods if m.status == "finished"]
        if self.judge is None or not self.seeds:
            return None
        if self.best is None:
            return finished[0] if len(finished) == 1 else None
        equal = self.tied or [self.best]
        if not self.gaps:  # one seed
            ends = {m.label: float(np.mean(m.final(self.judge))) for m in finished}
            least = MATERIAL * self.gained
            equal = [m for m in finished if abs(ends[m.label] - ends[self.best.label]) <= least]
        near = [m for m in equal if m is self.best or not self.gaps or self.small(m.label)]
        chosen, cheapest = min(near, key=costs), min(equal, key=costs)
        return cheapest if _cheaper(cheapest, chosen) else chosen

    @functools.cached_property
    def against(self) -> dict[str, Versus]:
        """Baseline -> the method to take (else the best of those that failed with some seeds) against it."""
        if self.better is None or not self.seeds:
            return {}
        ended = [m for m in self.methods if str(self.judge) in m.runs[0].history and m.final(str(self.judge)).size]
        sign = 1 if self.better == "lower" else -1
        front = self.chosen or min(ended, key=lambda m: sign * float(np.mean(m.final(str(self.judge)))), default=None)
        record = next((record for record in self.records if front and record.folder == front.folder), None)
        if front is None or record is None:
            return {}
        return versus(record, front, self.seeds, str(self.judge), len(self.methods))

    @functools.cached_property
    def falling(self) -> bool:
        """Whether the deciding column of the method to take still gets better in its last fifth of rounds."""
        if self.chosen is None or self.judge is None:
            return False
        values = self.chosen.values(self.judge)
        values = values[:, heard_enough({HEARD: self.chosen.heard}, self.chosen.min_heard)]
        last = max(1, values.shape[1] // 5)
        if values.shape[1] < _CURVE:
            return False
        sign = 1 if self.better == "lower" else -1
        gains = sign * (values[:, -1 - last] - values[:, -1])
        whole = float(np.mean(sign * (values[:, 0] - values[:, -1])))
        error = float(np.std(gains, ddof=1)) / math.sqrt(len(gains)) if len(gains) > 1 else 0.0
        return bool(gains.mean() > max(_FALLS * whole, 2 * error) and whole > 0)


_CURVE = 6  # with fewer evaluations a curve does not tell whether it still falls
_FALLS = 0.02  # the share of all that was gained that the last fifth of a falling curve gains
_LESS = 0.9  # a method is called cheaper if it costs less than 0.9 of what the other costs


def costs(method: Method) -> tuple[float, float]:
    """What a method costs: bytes of traffic, and gradients computed by the clients."""
    return method.cost("bytes_down") + method.cost("bytes_up"), method.cost("gradients")


def _cheaper(one: Method, other: Method) -> bool:
    """Whether a method is clearly cheaper, and so preferred among methods that are not distinguished."""
    (traffic, gradients), (most, others) = costs(one), costs(other)
    return traffic < _LESS * most or (traffic <= most and gradients < _LESS * others)


def problems(records: Sequence[Record]) -> list[ProblemResults]:
    """The methods of one or several run folders, grouped by what they were run on."""
    settings = [_problem_settings(record) for record in records]
    names = list(dict.fromkeys(name for table in settings for name in table))
    differ = [name for name in names if len({table.get(name) for table in settings}) > 1]
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, table in enumerate(settings):
        groups.setdefault(tuple(table.get(name) for name in names), []).append(i)
    grouped = []
    folders = _folders(records)
    for members in groups.values():
        first = settings[members[0]]
        differs = {name: first.get(name, "none") for name in differ}
        if differs.pop(_CLIENTS_DATA, None) and not any(name.startswith("data.") for name in differs):
            differs[_CLIENTS_DATA] = f"as in {folders[members[0]]}"
        grouped.append(_problem_of([records[i] for i in members], differs, [folders[i] for i in members]))
    return grouped


def judged_by(records: Sequence[Record], column: str) -> list[Record]:
    """The run folders, with another column that decides than they were run with.

    Raises:
        ConfigError: no column of all methods, or one that cannot decide; a sweep; or values of single examples, which
            the tests need, are not stored.
    """
    if column not in (known := metrics(methods(records))):
        raise unknown("judge", column, known)
    if records[0].better(column) is None:
        raise ConfigError("judge", column, "neither its metric nor its name says which way is better; take another")
    for record in records:
        if "sweep" in record.config:
            chosen = f"the best points of {record.folder} were chosen by {record.config['sweep']['criterion']}"
            raise ConfigError("judge", column, f"{chosen}; run its best.toml, and judge that run")
        part = chance.fixed_part(record.config, column)
        if part is None or record.config["data"]["name"] == "nodes":  # real clients keep their examples
            continue
        for run in (run for run in record.runs if run.status == "finished"):
            stored, decides = examples.names(record.folder, run.label, run.seed), deciding(column, run.history)
            if decides.endswith(PERSONAL) or column in stored:
                continue
            if {f"{part}_loss", examples.ALL} <= stored:  # it is no mean over examples, as AUC
                continue
            folder = str(record.folder)
            how = f"fedax run {shlex.quote(f'{folder}/config.toml')} --out {shlex.quote(folder)} --resume"
            how = f"fedax.compare(…, out={folder!r})" if record.config["data"]["name"] == PYTHON else how
            how = f"a new run with run.judge = {column!r}" if examples.ALL in stored else how
            text = f"what the tests need, its values at single examples, is not stored of {run.label}"
            raise ConfigError("judge", column, f"{text}; {how} stores it")
    return [
        replace(record, config=record.config | {"run": record.config["run"] | {"judge": column}}) for record in records
    ]


def _folders(records: Sequence[Record]) -> list[str]:
    """A unique name for each of several folders; the empty name for a single one."""
    if len(records) == 1:
        return [""]
    names = [record.folder.name for record in records]
    if len({*names}) < len(names):
        names = [str(record.folder) for record in records]
    return [f"{name} ({names[:i].count(name) + 1})" if name in names[:i] else name for i, name in enumerate(names)]


_CLIENTS_DATA = "clients' data"
_DIGESTED = re.compile(r"(data|val|test)\W|sizes and weights|params|program of task|(work|participation)\b")


def _problem_settings(record: Record) -> dict[str, str]:
    """The settings that identify a problem: name -> value, as text."""
    config, clients = varied(record.config), record.about["clients"]
    paths = [each.path for each in OPTIONS.values() if each.option.of_problem]
    compared = {"split_seeds", *(path[1] for path in paths if path[0] == "run")}
    sections = {name: config[name] for name in ("data", "task", *(path[0] for path in paths if len(path) == 1))}
    sections["run"] = {name: value for name, value in config["run"].items() if name in compared and value is not False}
    settings = {f"{name}.{key}": repr(value) for name, table in sections.items() for key, value in table.items()}
    if config["data"]["name"] == PYTHON:  # objects that no configuration describes are compared by digests
        made_of: dict[str, str] = next(iter((record.about.get("made_of") or {}).values()), {})
        settings |= {name: text for name, text in made_of.items() if _DIGESTED.match(name)}
    return settings | {_CLIENTS_DATA: json.dumps([clients["sizes"], clients["counts"]])}


def _problem_of(records: list[Record], differs: dict[str, str], folders: list[str]) -> ProblemResults:
    compared = methods(records, folders)
    finished = [m for m in compared if m.status == "finished"]
    seeds_of = {m.label: [run.seed for run in m.runs] for m in compared}
    every = [seeds_of[m.label] for m in finished] or [[]]
    seeds = [seed for seed in every[0] if all(seed in of_method for of_method in every)]
    left_out = {}
    if seeds:
        left_out = {
            m.label: rest for m in finished if (rest := [seed for seed in seeds_of[m.label] if seed not in seeds])
        }
        compared = [_with_seeds(m, seeds) for m in compared]
        finished = [m for m in compared if m.status == "finished"]
    config = records[0].config | {"methods": [row for record in records for row in record.config["methods"]]}
    judges = {record.config["run"].get("judge") for record in records}
    if len(judges) > 1:
        config["run"] = {**config["run"], "judge": None}
    column, way = judge(config, metrics(compared)), None
    if len(records) == 1 and "sweep" in config:
        column, way = deciding(config["sweep"]["criterion"], metrics(compared)), config["sweep"]["better"]
    length = min((len(run.history["round"]) for m in finished for run in m.runs), default=0)
    way = way or (None if column is None else records[0].better(column))
    tested = {} if column is None else _test_differences(finished if seeds else [], column, way, records[0].config)
    tail = tail_of(length) if length > 4 else 0
    return ProblemResults(records, compared, differs, seeds, left_out, column, way, tail, **tested)


def _with_seeds(m: Method, seeds: list[int]) -> Method:
    runs = {run.seed: run for run in m.runs}
    return replace(m, runs=[runs[seed] for seed in seeds]) if all(seed in runs for seed in seeds) else m


def _test_differences(methods: list[Method], column: str, way: str | None, config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of :class:`ProblemResults` that tests give: the best mean, and the difference of each other to it."""
    finals = {m.label: m.final(column) for m in methods}
    methods = [m for m in methods if np.isfinite(finals[m.label]).all()]
    if len(methods) < 2 or way is None:
        return {}
    best = (min if way == "lower" else max)(methods, key=lambda m: float(np.mean(finals[m.label])))
    curves = [run.history[best.column(column)] for run in best.runs]
    gained = float(np.mean([abs(curve[0] - curve[-1]) for curve in curves]))
    gained = gained if math.isfinite(gained) else 0.0
    if len(finals[best.label]) < 2:
        return {"best": best, "gained": gained}
    part = chance.fixed_part(config, column)
    values = {} if part is None else {m.label: m.of_examples(column) for m in methods}
    known_values = {label: each for label, each in values.items() if each is not None}
    sizes = [list(each.sizes) for each in known_values.values()]
    complete = len(known_values) == len(methods) and all(each == sizes[0] for each in sizes)
    overlap = chance.overlap(config, column)

    def gap(one: str, other: str) -> Gap:
        of = finals[one], finals[other], overlap
        examples = (known_values[one].values, known_values[other].values) if complete else None
        return gap_of(*of, examples, known_values[one].sizes if complete else None, math.comb(len(methods), 2))

    return {
        "best": best,
        "gaps": {m.label: gap(best.label, m.label) for m in methods if m is not best},
        "covered": chance.covered(config, column, complete, len(sizes[0]) if complete else 0),
        "sure": part is None or complete,
        "gained": gained,
    }


def holm(p: Sequence[float]) -> list[float]:
    """Correct the p-values of several tests, so that a false difference is as unlikely as in one test (Holm 1979).

    Example:
        >>> holm([0.04, 0.01, 0.03])
        [0.06, 0.03, 0.06]
    """
    corrected, least = [0.0] * len(p), 0.0
    for rank, i in enumerate(np.argsort(p, kind="stable")):
        least = corrected[i] = min(1.0, max(least, (len(p) - rank) * float(p[i])))
    return corrected


def order(clients: dict[str, Any]) -> np.ndarray:
    """The indices of the clients in the order of the drawings: the largest first."""
    return np.argsort(-np.asarray(clients["sizes"]), kind="stable")


def table_order(problem: ProblemResults) -> list[str]:
    """The columns in the order of a table: first the deciding one.

    Where there is a test part, validation columns are left out, because they serve to choose settings.
    """
    columns = metrics(problem.methods)
    tested = "test_loss" in columns
    shown = [column for column in columns if column == problem.judge or not (tested and column.startswith("val_"))]
    return sorted(shown, key=lambda column: column != problem.judge)


def curve_order(problem: ProblemResults) -> list[str]:
    """The columns that are drawn as curves: those of a table, and the validation loss."""
    columns, known = table_order(problem), metrics(problem.methods)
    validation = deciding("val_loss", known)
    return [*columns, validation] if validation in known and validation not in columns else columns


def axes_of(methods: Sequence[Method]) -> dict[str, Axis]:
    """The axes against which these methods can be drawn; ε is among them if all have a finite one, time if all have."""
    histories = [run.history for m in methods for run in m.runs]
    there = {"epsilon": all("epsilon" in history and np.isfinite(history["epsilon"]).all() for history in histories)}
    there["time"] = TIME in costs_of(methods)
    return {name: axis for name, axis in AXES.items() if there.get(name, True)}


def costs_of(methods: Sequence[Method]) -> tuple[str, ...]:
    """The columns of costs that all runs have: time is among them if all had a clock."""
    return (*COSTS, TIME) if all(TIME in run.history for m in methods for run in m.runs) else COSTS


def axes(problem: ProblemResults) -> dict[str, Axis]:
    """The axes of a report; uploads have an axis of their own only if they are compressed."""
    tables = [table for record in problem.records for table in (record.config["run"], *record.config["methods"])]
    compressed = any(table.get("compress") for table in tables)
    return {name: axis for name, axis in axes_of(problem.methods).items() if compressed or name != "uploads"}


def metrics(methods: Sequence[Method]) -> list[str]:
    """The columns to compare: the measures that all methods have, in the order of a table.

    Where some methods have personal models, and others none, these are the measures of the models that clients get.
    """

    def there(m: Method, column: str) -> bool:
        return all((f"{column}{PERSONAL}" if m.personal else column) in run.history for run in m.runs)

    return measures([column for column in methods[0].runs[0].history if all(there(m, column) for m in methods)])


def spread(values: np.ndarray) -> float | None:
    """The sample standard deviation over seeds; ``None`` with a single seed."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None
