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

from fedax.algorithms import hyperparameters
from fedax.columns import EXCLUSIONS, better, describe, measures, show, show_parts
from fedax.data import FEDERATIONS
from fedax.engine.history import tail_of
from fedax.errors import ConfigError
from fedax.experiments import chance, examples
from fedax.experiments.chance import Gap, gap_of
from fedax.experiments.config.sections import PYTHON
from fedax.experiments.defaults import judge
from fedax.experiments.runs import MethodRun, Path, Record
from fedax.figures.axes import AXES, Axis
from fedax.theory.diagnostics import MATERIAL

WORDS = {"diverged": "diverged", "worse": "ended worse", "failed": "stopped by its guard", "unfinished": "unfinished"}
GONE = {status: WORDS[status] for status in ("diverged", "worse")}  # whose curves may leave the picture

LEVEL = 0.05  # of the paired test
_FEW = 10  # seeds: with fewer the test finds differences of about their standard deviation only, or larger ones


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

    def of_examples(self, column: str) -> examples.Values | None:
        """The values of held-out examples, means over the seeds; ``None`` where they are not known of all."""
        if self.folder is None:
            return None
        found = [examples.read(self.folder, self.own, run.seed, column) for run in self.runs]
        there = [each for each in found if each is not None]
        if not there or len(there) < len(found) or any(list(each.sizes) != list(there[0].sizes) for each in there):
            return None
        return examples.Values(np.mean([each.values for each in there], axis=0), there[0].sizes)

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


def judged(problem: Problem) -> dict[str, Any]:
    """How the methods compare, for programs; ``differences``: to the best, with their 95 % intervals."""
    return {
        "column": problem.judge,
        "better": problem.better,
        "over": over(problem.records[0].config, len(problem.seeds)),
        "seeds": problem.seeds,
        "test": f"{_test_of(problem)}, Holm over all pairs",
        "covered": problem.covered,
        "best": problem.best and problem.best.label,
        "differences": {
            label: dict(zip(("mean", "low", "high"), (gap.mean, *gap.interval()), strict=True))
            for label, gap in problem.gaps.items()
        },
        "p": problem.p,
        "star": problem.star and problem.star.label,
        "tied": [m.label for m in problem.tied],
        "too_small_to_matter": [label for label in problem.p if problem.small(label)],
        "tail_evaluations": problem.tail,
    }


def described(values: np.ndarray) -> dict[str, Any] | None:
    """Mean, standard deviation and single values of the seeds; ``None`` where there are none."""
    return {"mean": values.mean(), "std": spread(values), "seeds": values} if values.size else None


def verdict(problem: Problem) -> list[str]:
    """By how much methods differ, which is best, what that covers, and what became of those that did not finish."""
    return [*_ranking(problem), *_mishaps(problem)]


def _ranking(problem: Problem) -> list[str]:
    column, best, found = problem.judge, problem.best, problem.methods
    if column is None:
        return ["The methods minimise different objectives and there are no held-out data: none is called the best."]
    if best is None:
        apart = not problem.seeds and sum(m.status == "finished" for m in found) > 1
        return ["The methods have no seed in common: they are not compared."] if apart else []
    name = describe(column).label
    name, most = name[0].lower() + name[1:], {"lower": "Lowest", "higher": "Highest"}[problem.better or "lower"]
    sign = 1 if problem.better == "lower" else -1
    others = [m for m in found if m is not best and m.status == "finished"]
    others.sort(key=lambda m: sign * float(np.mean(m.final(column))))
    text = f"{most} {name}: {best.label}, {with_spread(column, best.final(column))}; "
    text += f"next {others[0].label}, {with_spread(column, others[0].final(column))}."
    if not problem.p:
        return [f"{text} One seed does not tell this from chance."]
    said = [_interval(problem, others[0].label, name), text]
    if problem.star is not None:
        which = "each other method" if len(others) > 1 else "it"
        p = f"p {'≤' if len(others) > 1 else '='} {max(problem.p.values()):.2g}"
        said.append(f"The difference to {which} is more than chance ({p}).")
    tied = [m.label for m in problem.tied if m is not best]
    small = [label for label in tied if problem.small(label)]
    chancy = [label for label in tied if label not in small]
    if chancy:
        said.append(f"But {_list(chancy)} {_tie(chancy, 'may be chance')}.")
    if small:
        said.append(f"But {_list(small)} {_tie(small, 'too small to matter')}, {_UNFELT}.")
    return [*said, *_covering(problem)]


_UNFELT = f"less than {100 * MATERIAL:g} % of what training gained"


def _tie(labels: Sequence[str], why: str) -> str:
    be = "" if why.startswith("may") else "is " if len(labels) == 1 else "are "
    return f"ties with it: the difference {be}{why}" if len(labels) == 1 else f"tie with it: the differences {be}{why}"


def _interval(problem: Problem, label: str, name: str) -> str:
    """The difference of a method to the best, with its interval."""
    assert problem.best is not None
    gap, unit = problem.gaps[label], describe(str(problem.judge)).unit
    values = [(100 if unit == "%" else 1) * value for value in (gap.mean, *gap.interval())]
    digits = 1 - math.floor(math.log10(most)) if (most := max(map(abs, values))) else 0
    mean, low, high = (f"{value:+.{max(digits, 0)}f}" for value in values)
    if most and not 1e-4 <= most < 1e5:
        mean, low, high = (f"{value:+.1e}" for value in values)
    what = f"{name} (percentage points)" if unit == "%" else name
    text = f"{label} less {problem.best.label}, {what}: {mean}, 95 % interval {low} to {high}."
    return text.replace("-", "−") if "-" not in f"{label}{problem.best.label}{what}" else text


def _covering(problem: Problem) -> list[str]:
    """What the interval and the verdict cover, and what they do not."""
    correct = ", corrected for all pairs of methods" if len(problem.p) > 1 else ""
    times = f"{len(problem.seeds)} {'splits' if chance.SPLIT in problem.covered else 'seeds'}"
    said = [f"This covers {_list(problem.covered)}: {_test_of(problem)} over {times}{correct}."]
    data, part = problem.records[0].config["data"], chance.part_of(problem.judge)
    if not problem.sure:
        way_out = ", and no method has a star; run.split_seeds = true covers them" if "split" in data else ""
        said.append(f"It does not cover the {'validation' if part == 'val' else part} examples{way_out}.")
    elif part is not None and "split" in data and chance.SPLIT not in problem.covered:
        said.append("Another split may say otherwise: run.split_seeds = true covers that too.")
    elif data.get("partition", "column") != "column" and chance.DEALT not in problem.covered:
        said.append("Clients that are dealt anew may say otherwise: run.split_seeds = true covers that too.")
    return said


def _test_of(problem: Problem) -> str:
    """The test's name."""
    if problem.judge is not None and chance.overlap(problem.records[0].config, problem.judge):
        return "a corrected resampled t-test"
    clustered = chance.EXAMPLES in problem.covered and problem.sure
    return "a paired t-test, its error clustered by seed and example," if clustered else "a paired t-test"


def _mishaps(problem: Problem) -> list[str]:
    sentences = []
    for m in problem.methods:
        if m.status != "finished":
            sentences.append(f"{m.label}: {m.status_text}.")
        if m.losses_text:
            sentences.append(f"{m.label}: {m.losses_text}.")
    return sentences


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def legend(problem: Problem) -> list[str]:
    """What a table of final figures shows: after which round, what ± is over, by what methods are judged, the marks."""
    config = problem.records[0].config
    seeds = len(problem.seeds) or max(len(m.runs) for m in problem.methods)
    spread = f"; ± is the standard deviation over {over(config, seeds)}" if seeds > 1 else ", one seed"
    most = "at most " if "patience" in config["run"] else ""
    said = [f"After {most}{config['run']['rounds']} rounds{spread}."]
    if problem.left_out:
        rest = "; ".join(f"{', '.join(map(str, seeds))} of {label}" for label, seeds in problem.left_out.items())
        said.append(f"Only seeds that all methods have are counted ({_seed_list(problem.seeds)}), not {rest}.")
    if problem.judge is not None:
        said.append(f"Judged by {describe(problem.judge).label} ({problem.better} is better).")
    if problem.star is not None:
        said.append(f"★: better than each other method, p < {LEVEL} (Holm).")
    elif problem.tied:
        said.append(f"≈: tied with the best, p ≥ {LEVEL} (Holm) or too close to matter.")
    if problem.p and len(problem.seeds) < _FEW:
        said.append("So few seeds show large differences only.")
    return said


def _seed_list(seeds: Sequence[int]) -> str:
    return f"seed{'s' * (len(seeds) > 1)} {_list([*map(str, seeds)])}"


def over(config: dict[str, Any], seeds: int) -> str:
    """What a standard deviation is over.

    Example:
        >>> over({"data": {"partition": "iid"}, "run": {"split_seeds": True}}, 3), over({"run": {}}, 3)
        ('3 seeds that also redraw the split', '3 seeds of training')
    """
    if not config["run"].get("split_seeds"):
        return f"{seeds} seeds of training"
    return f"{seeds} seeds that also redraw the {'split' if 'partition' in config['data'] else 'data'}"


def _at(settings: dict[str, Any], point: dict[str, Any]) -> dict[str, Any]:
    """A method's settings at a point of a sweep."""
    settings = copy.deepcopy(settings)
    for path, value in point.items():
        table, keys = settings, path.split(".")
        while len(keys) > 1 and isinstance(table.get(keys[0]), dict):
            table = table[keys.pop(0)]
        table[".".join(keys)] = value
    return settings


def telling(settings: dict[str, Any]) -> dict[str, Any]:
    """The hyper-parameters worth a line: numbers and schedules, and choices that are not the default."""
    try:
        default = hyperparameters(settings["name"])
    except ConfigError:  # one's own method, which a report does without
        default = {}
    hyper = {k: v for k, v in settings.items() if k not in ("name", "label")}
    return {k: v for k, v in hyper.items() if not isinstance(v, bool | str) or v != default.get(k)}


def facts(config: dict[str, Any], sizes: Sequence[int], parameters: int) -> dict[str, str]:
    """What was chosen, in a few words each.

    Args:
        config: a whole configuration; of a sweep, what varies is shown with all its values.
        sizes: [N] examples of each client.
        parameters: of the model.
    """
    config = varied(config)
    data, run, who = config["data"], config["run"], config["participation"]
    hidden = ("name", "clients", "seed", "weights")
    dealt = f"by {data['column']}" if "column" in data else None
    dealt = "as the sites have them" if data["name"] == "nodes" else dealt
    where = {"nodes": "at nodes", PYTHON: "given in Python"}.get(data["name"], data["name"])
    own = data["name"] in ("folder", "csv", "parquet", "arrow", "images", "hdf5")
    usual = "given" if own or data["name"] == PYTHON else "generated"
    if own:  # many have their default
        defaults = FEDERATIONS.get(data["name"]).arguments
        data = {name: value for name, value in data.items() if name == "name" or defaults.get(name) != value}
    if "split" in data:
        data = data | {"split": " / ".join(f"{data['split'][part]:g}" for part in ("train", "val", "test"))}
    dealt = dealt or _settings({k: v for k, v in data.items() if k not in hidden}, "partition", usual)
    cohort = f"{who['size']} a round, {who['kind']}" if "size" in who else "all in every round"
    if who["kind"] == "poisson":
        cohort = f"each with probability {who['rate']:g} a round"
    elif who["kind"] == "cyclic":
        cohort = f"{who['groups']} groups that take turns"
    elif "trace" in who["kind"]:
        cohort = "as in the trace"
    if "dropout" in who:
        rate = who["dropout"]
        cohort += f", of whom {'some' if isinstance(rate, list) else f'{100 * rate:g} %'} drop out"
    elif "available" in who:
        cohort += ", as far as available"
    asked = {name: run[name] for name in ("guard", "aggregate", "faults", "compress", "secure") if run.get(name)}
    uploads = "; ".join(f"{name} {'on' if what is True else short(what)}" for name, what in asked.items())
    private = config.get("privacy", {})
    hidden_by = ""
    if private:
        clip, noise = (
            value if isinstance(value, str) else f"{value:g}" for value in (private["clip"], private["noise"])
        )
        hidden_by = f"clip {clip}, noise {noise}, δ = {private['delta']:g}"
    return {
        "Data": f"{where}, {thousands(sum(sizes))} training examples",
        "Partition": dealt + (", all clients weigh the same" if data["weights"] == "uniform" else ""),
        "Clients": f"{len(sizes)}, {cohort}",
        "Task": f"{_settings(config['task'], 'name')}, {thousands(parameters)} parameters",
        "Local work": _settings(config["work"], "kind"),
        "Run": f"{run['rounds']} rounds, {_batch(run)}, {_seeds(config)}",
    } | {name: text for name, text in (("Uploads", uploads), ("Privacy", hidden_by)) if text}


def varied(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration; of a sweep with the values of its axes in words, but of methods, in the place of the first."""
    config = copy.deepcopy(config)
    for path, values in config.get("sweep", {}).get("grid", {}).items():
        section, _, name = path.partition(".")
        if section != "methods":
            *above, last = name.split(".")
            table = config[section]
            for key in above:  # above it may be an axis too
                table = table[key] if isinstance(table.get(key), dict) else {}
            table[last] = axis(values)
    return config


def in_words(value: Any) -> str:
    """A number, or the values of an axis that :func:`varied` has in its place."""
    return value if isinstance(value, str) else f"{value:g}"


def axis(values: Any) -> str:
    """The values of an axis of a sweep, in words.

    Example:
        >>> axis([5, 10]), axis({"low": 0.01, "high": 1.0, "points": 3})
        ('5 or 10', '0.01 to 1.0')
    """
    if isinstance(values, dict):
        return f"{values['low']} to {values['high']}"
    *some, last = map(short, values)
    return f"{', '.join(some)} or {last}" if some else last


def _settings(section: dict[str, Any], key: str, unnamed: str = "") -> str:
    rest = [f"{k.replace('_', ' ')} {short(v)}" for k, v in section.items() if k != key]
    return ", ".join([section.get(key, unnamed), *rest])


def _batch(run: dict[str, Any]) -> str:
    return f"batch {run['batch_size']}" if "batch_size" in run else "full gradients"


def _seeds(config: dict[str, Any]) -> str:
    seeds = config["run"]["seeds"]
    return over(config, len(seeds)) if len(seeds) > 1 else f"seed {seeds[0]}"


def short(value: Any) -> str:
    """A setting's value in words, cut off where it is long."""
    text = str(value)
    if isinstance(value, dict):  # a schedule, or a regularizer by its name
        rest = ", ".join(f"{key} {number}" for key, number in value.items() if key != "name")
        text = f"{value['name']} ({rest})" if "name" in value else rest
    return text if len(text) <= 40 else text[:39] + "…"


def thousands(number: int) -> str:
    """A whole number in groups of three digits."""
    return f"{number:,}".replace(",", "\u202f")


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


def with_spread(column: str, values: np.ndarray) -> str:
    """Mean and standard deviation over seeds, with their unit; a dash where there are none."""
    if not values.size:
        return "–"
    return " ".join(filter(None, show_parts(column, float(np.mean(values)), spread(values))))


NOT_PRIVATE = "Not private: the noise was made of a number that is in the configuration (noise_seed)."


def spending(problem: Problem) -> list[str]:
    """What the private runs have spent, a sentence for each method, or one where all have spent the same."""
    said: dict[str, list[str]] = {}
    ends = problem.records[0].config["run"]["rounds"]
    for m in problem.methods:
        if m.epsilon is not None:
            text = f"spent epsilon = {show('epsilon', m.epsilon)} at delta = {m.delta:g}"
            if any(run.spent for run in m.runs):
                last = max(int(run.history["round"][-1]) for run in m.runs if run.spent)
                text += f"; the budget ended the run after round {last} of {ends}"
            said.setdefault(text, []).append(m.label)
    sentences = [f"{_list(labels)}: {text}." for text, labels in said.items()]
    if said and problem.records[0].config["privacy"].get("noise_seed") is not None:
        sentences.append(NOT_PRIVATE)
    return sentences


def deltas(problem: Problem) -> list[str]:
    """What ε in a table stands for."""
    found = list(dict.fromkeys(f"{m.delta:g}" for m in problem.methods if m.delta is not None))
    return [f"ε: the privacy that a run has spent, at δ = {' or '.join(found)}, the most of its seeds."]


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
