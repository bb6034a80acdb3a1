"""A study: several experiments that belong together, each tuned on validation data and then run with all its seeds.

A study is cut into jobs: the tuning of one method, or one method with one seed. Each is a process on one core with a
run folder of its own, so that many run side by side, a job that was stopped goes on from its checkpoint, and the
numbers do not depend on how many ran together. What has to be kept of a job is one line of a file.

| in the folder of a study | what |
|---|---|
| results/<part>.jsonl | a line for each job that is over: its settings, its rows, what it took |
| jobs/<key>/ | the run folders; what is under way goes on from them, the others may be removed |
| report.html | all parts, as of :func:`fedax.experiments.write_report` |
"""

import copy
import hashlib
import itertools
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple, NoReturn

import numpy as np
import pydantic

import fedax
from fedax._start import share_gpu
from fedax.columns import better, show
from fedax.errors import ConfigError, DataError, unknown
from fedax.experiments import sweeps, toml
from fedax.experiments.chance import Gap
from fedax.experiments.config.codec import hyperparameters_of
from fedax.experiments.config.edit import put, read_toml
from fedax.experiments.config.experiment import check_settings
from fedax.experiments.config.sections import Count, MethodSection, Section, Seed, Table, check, clear, labels, seeds_of
from fedax.experiments.defaults import TASKS_OF
from fedax.experiments.own import code_of
from fedax.experiments.pooled import LEAST_METHODS, Pool, compare, least, pool_of
from fedax.experiments.report import write_report
from fedax.experiments.runs import MethodRun, Path, Record, Trial, finite, locked, read, slug, write_atomic, write_json
from fedax.experiments.summary import LEVEL, holm, problems

Watch = Callable[[str], None]

_STUDIES = pathlib.Path(__file__).parent / "studies"
_DIGITS = 6  # of the numbers that are kept
CLOSE = 0.1  # relative; of points that are closer another seed may turn the order around: seeds differ by 2 to 8 %
MORE = 1.5  # times the runs of another method: more than grids of four or five equal ones differ by that grow
_POLL = 0.2  # seconds
_STOPPED = 143  # the exit code of a job that SIGTERM has ended, with a checkpoint

_Pair = Annotated[list[str], pydantic.Field(min_length=2, max_length=2)]


class TuneSection(Section):
    """How a part is tuned; the axes are those of the recipe's section ``sweep``.

    All methods get the same number of runs: one whose grid has fewer points tries each with more seeds. A choice on
    fewer rounds than the runs have is another choice: a rate that is ahead at first may be behind in the end.
    """

    rounds: Count | None = None  # default: those of the runs
    seed: Seed = 1000  # the first
    extend: int = pydantic.Field(default=4, ge=0)  # how often a grid whose best point is at its edge grows
    again: int = pydantic.Field(default=1, ge=0)  # further seeds for the two best points, where they are close


class PartSection(Section):
    """One experiment of a study."""

    name: str
    recipe: str
    shows: list[str] = pydantic.Field(default=[])  # figures and tables of a paper
    text: str = ""  # what is claimed, in words
    claims: list[_Pair] = pydantic.Field(default=[])  # which method is better than which
    judge: str | None = None  # by which column; default: the one that decides
    set: Table = pydantic.Field(default={})
    methods: list[str] | None = None
    tune: TuneSection | None = None
    tuned_by: str | None = None
    hold: dict[str, Table] = pydantic.Field(default={})  # method -> {c = "lr^-2"}: what changes with what is tuned
    unfair: dict[str, str] = pydantic.Field(default={})  # method -> why pairs with it say nothing of the methods
    scope: str = ""  # what a verdict is about, where that is less than the claim: "for a network of 2,306 parameters"
    provisional: str = ""  # why nothing follows from the part yet


class StudySection(Section):
    """A study's file."""

    name: str
    title: str = ""
    parts: list[PartSection] = pydantic.Field(min_length=1)


@dataclass(frozen=True)
class Job:
    """The work of one process.

    Attributes:
        part: the part's name.
        label: the method's.
        seed: of a run; ``None`` where settings are chosen.
        config: the configuration, with this method and this seed alone.
        key: what tells jobs apart: a digest of all in ``config`` but names.
    """

    part: str
    label: str
    seed: int | None
    config: Table
    key: str

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.part}: {self.label}, " + ("tuning" if self.seed is None else f"seed {self.seed}")


@dataclass(frozen=True)
class Part:
    """One experiment of a study, with the configuration that it has before it is tuned."""

    section: PartSection
    config: Table

    @property
    def name(self) -> str:
        """As the study's file gives it."""
        return self.section.name

    @property
    def labels(self) -> list[str]:
        """Of the methods."""
        return [row["label"] for row in self.config["methods"]]

    def row(self, label: str) -> Table:
        """The settings of a method."""
        return next(row for row in self.config["methods"] if row["label"] == label)


@dataclass
class Study:
    """A study: from :func:`read_study`.

    Attributes:
        section: the file's content.
        parts: by name.
    """

    section: StudySection
    parts: dict[str, Part]
    results: dict[str, Table] = field(default_factory=dict)  # of the jobs that are over, by key

    def choice(self, part: Part, label: str) -> tuple[Table | None, Job | None]:
        """The settings chosen for a method, or where more has to be tried first, the job that tries it."""
        tune = part.section.tune
        if tune is None or not _grid(part, label):
            other = self.parts.get(part.section.tuned_by or "")
            return self.choice(other, label) if other is not None and label in other.labels else ({}, None)
        *_, last = self._choices(part, label)
        if last.key not in self.results:
            return None, last
        return self.tried(part, label)[0]["point"], None

    def choices(self, part: Part, label: str) -> list[Job]:
        """The jobs by which a method's settings were chosen, of those that are over; empty where none were chosen."""
        return [job for job in self._choices(part, label) if job.key in self.results]

    def tried(self, part: Part, label: str) -> list[Table]:
        """All points that were tried for a method, the best first, as in the results; one tried twice has all seeds."""
        lines = [self.results[job.key] for job in self.choices(part, label)]
        return _in_order([row for line in lines for row in line["points"]], lines[0]["better"]) if lines else []

    def _choices(self, part: Part, label: str) -> Iterator[Job]:
        """The jobs that choose, up to the first that has to be done.

        The points are the recipe's; where the best is at the smallest or largest value of an axis, the axis grows in
        its own proportion, with all values of the others that go with it, until the best is inside, a value is
        refused, or the grid has grown as often as it may. If then the two best points are close, both are tried with
        further seeds.
        """
        tune = part.section.tune
        grid: dict[str, list[Any]] | None = _grid(part, label) if tune is not None else None
        if tune is None or not grid:
            return
        table: list[Table] = []
        for _ in range(tune.extend + 1):
            # What is held with a value differs from point to point, so that each is a job of its own.
            for each in _points(grid) if part.section.hold.get(label) else [grid]:
                job = self._tuning(part, label, each)
                yield job
                if (line := self.results.get(job.key)) is None:
                    return
                table = _in_order([*table, *line["points"]], line["better"])
            if not (grid := self._wider(part, label, table)):
                break
        if tune.again and close(table):
            for row in table[:2]:
                point = {name: [value] for name, value in row["point"].items()}
                job = self._tuning(part, label, point, after=len(row["seeds"]))
                yield job
                if job.key not in self.results:
                    return

    def jobs(self) -> Iterator[Job]:
        """What can be done now, the first first: choices before runs, and runs seed by seed."""
        given: set[str] = set()
        for part in self.parts.values():
            chosen = {label: self.choice(part, label) for label in part.labels}
            for _, job in chosen.values():
                if job is not None and job.key not in given:
                    given.add(job.key)
                    yield job
            for seed in seeds_of("run.seeds", part.config["run"].get("seeds", 1)):
                for label, (point, _) in chosen.items():
                    if point is not None:
                        job = self.run(part, label, seed, point)
                        if job.key not in self.results and job.key not in given:
                            given.add(job.key)
                            yield job

    def run(self, part: Part, label: str, seed: int, point: Table) -> Job:
        """The job of one method with one seed, at the settings that were chosen."""
        config = _at(part, label, point)
        config.pop("sweep", None)
        config["run"]["seeds"] = [seed]
        return _job(part, label, seed, config)

    def _tuning(self, part: Part, label: str, grid: Table, after: int = 0) -> Job:
        """The job that tries the points of a grid; after so many seeds, with those that come next."""
        tune = part.section.tune
        assert tune is not None
        held = part.section.hold.get(label)
        config = _at(part, label, {name: values[0] for name, values in grid.items()} if held else {})
        rounds = tune.rounds or config["run"]["rounds"]
        numbers = {each: math.prod(map(len, _grid(part, each).values())) for each in part.labels}
        seeds = tune.again if after else max(numbers.values()) // numbers[label]
        config["run"] |= {"rounds": rounds, "seeds": [*range(tune.seed + after, tune.seed + after + seeds)]}
        config["run"].pop("evaluate_every", None)
        config["run"]["evaluate_every"] = max(1, rounds // 5)
        grid = {f"methods.*.{name}": values for name, values in grid.items()}
        config["sweep"] = {**config.get("sweep", {}), "grid": grid}
        return _job(part, label, None, config)

    def _wider(self, part: Part, label: str, table: list[Table]) -> dict[str, list[Any]] | None:
        """The points that come next, of some in order: those with one value more on an axis whose edge is the best."""
        best = table[0]["point"]
        for name, value, end in sweeps.edges([_as_trial(row) for row in table]):
            values = sorted({row["point"][name] for row in table})
            few = values[:2] if end == "smallest" else values[:-3:-1]
            if value <= 0 or few[1] <= 0:
                continue
            beyond = float(f"{few[0] * few[0] / few[1]:.4g}")
            beyond = type(value)(beyond)
            if beyond in values:
                continue
            wider = best | {name: beyond}
            if _accepted(part, label, wider):
                tried = {each: list(dict.fromkeys(row["point"][each] for row in table)) for each in best}
                tried[name] = [beyond]
                # A method may refuse some of them together with the new one: FedDyn asks that lr · alpha ≤ 1.
                return {
                    each: [value for value in values if _accepted(part, label, wider | {each: value})]
                    for each, values in tried.items()
                }
        return None


def read_study(source: str | Path, only: Sequence[str] = ()) -> Study:
    """A study by its name, or from a file.

    Args:
        source: one of :func:`studies`, or a TOML file.
        only: names of parts, if not all are wanted; those by which they are tuned belong to them.

    Raises:
        ConfigError: there is none, or something in it cannot be used; all parts are checked.

    Example:
        >>> study = read_study("momentum", only=["figure-1c"])
        >>> [job.name for job in study.jobs()][0]
        'figure-1c: scaffold, tuning'
    """
    path, known = pathlib.Path(source), studies()
    if str(source) in known and not path.is_file():
        path = _STUDIES / f"{source}.toml"
    try:
        given = toml.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(
            "study", str(source), f"cannot be read ({error.strerror}); give a file, or one of: {', '.join(known)}"
        ) from error
    except ValueError as error:
        raise ConfigError("study", str(source), f"is no TOML: {error}") from error
    try:
        section = StudySection.model_validate(given)
    except pydantic.ValidationError as error:
        raise clear(error.errors()[0]) from None
    parts: dict[str, Part] = {}
    for each in section.parts:
        if each.name in parts or slug(each.name) != each.name:
            way_out = "give each part a name of its own, of small letters, digits and hyphens"
            raise ConfigError("parts.name", each.name, way_out)
        if each.tuned_by is not None and each.tuned_by not in parts:
            raise unknown("parts.tuned_by", each.tuned_by, [*parts])
        parts[each.name] = _part(each, path.parent)
    for name in only:
        if name not in parts:
            raise unknown("part", name, [*parts])
    wanted = {*only, *(parts[name].section.tuned_by for name in only)} if only else parts.keys()
    return Study(section, {name: part for name, part in parts.items() if name in wanted})


def studies() -> dict[str, str]:
    """The studies that come with fedax: name -> title.

    Example:
        >>> "momentum" in studies()
        True
    """
    found = {}
    for path in sorted(_STUDIES.glob("*.toml")):
        found[path.stem] = toml.loads(path.read_bytes()).get("title", "")
    return found


def _part(section: PartSection, folder: Path) -> Part:
    near = folder / section.recipe
    config = copy.deepcopy(read_toml(near if near.is_file() else section.recipe))
    for path, value in section.set.items():
        put(config, path, value)
    names = labels(check(config).methods)
    for row, label in zip(config["methods"], names, strict=True):
        row["label"] = label
    if section.methods is not None:
        for label in section.methods:
            if label not in names:
                raise unknown("parts.methods", label, names)
        config["methods"] = [row for row in config["methods"] if row["label"] in section.methods]
    for label in itertools.chain.from_iterable(section.claims):
        if label not in names:
            raise unknown("parts.claims", label, names)
    for label in (*section.hold, *section.unfair):
        if label not in names:
            raise unknown(f"parts.{'hold' if label in section.hold else 'unfair'}", label, names)
    config["name"] = section.name
    check_settings(config)
    part = Part(section, config)
    for label in section.hold:
        _held(part, label)
    return part


def _grid(part: Part, label: str) -> dict[str, list[Any]]:
    """The axes of one method: those that name it come before those of all."""
    row = part.row(label)
    known = hyperparameters_of(MethodSection(**row), label, code_of(False))
    found: dict[str, list[Any]] = {}
    for path, values in part.config.get("sweep", {}).get("grid", {}).items():
        _, who, *rest = path.split(".")
        if rest[0] in known and who in ("*", row["name"], label) and (who != "*" or ".".join(rest) not in found):
            found[".".join(rest)] = values
    return found


def _at(part: Part, label: str, point: Table) -> Table:
    """The configuration of one method at one point, with what is held together with it."""
    config = copy.deepcopy(part.config)
    row = copy.deepcopy(part.row(label))
    config["methods"] = [row]
    for name, (other, power) in _held(part, label).items():
        if other in point:
            row[name] = float(f"{row[name] * (point[other] / row[other]) ** power:.6g}")
    for name, value in point.items():
        put(config, f"methods.*.{name}", value)
    return config


def _held(part: Part, label: str) -> dict[str, tuple[str, float]]:
    """name -> (other, power): a hyper-parameter that is the recipe's times this power of how another one has changed.

    FedDA's α is c lr²: a grid of lr with c = "lr^-2" has the same α at all its points.
    """
    found = {}
    for name, rule in part.section.hold.get(label, {}).items():
        other, _, power = str(rule).partition("^")
        row = part.row(label)
        try:
            found[name] = other, float(power)
        except ValueError:
            raise ConfigError(f"parts.hold.{label}.{name}", rule, "give a name and a power, such as lr^-2") from None
        for each in (name, other):
            if not isinstance(row.get(each), int | float):
                raise ConfigError(f"parts.hold.{label}.{name}", rule, f"the recipe gives no number for {each}")
    return found


def _points(grid: dict[str, list[Any]]) -> list[dict[str, list[Any]]]:
    """The points of a grid, each as a grid of one."""
    return [
        {name: [value] for name, value in zip(grid, values, strict=True)}
        for values in itertools.product(*grid.values())
    ]


def _accepted(part: Part, label: str, point: Table) -> bool:
    """Whether a method can have these settings."""
    try:
        check_settings(_at(part, label, point))
    except ConfigError:
        return False
    return True


def _job(part: Part, label: str, seed: int | None, config: Table) -> Job:
    told = copy.deepcopy(config)
    told.pop("name")
    for row in told["methods"]:
        row.pop("label")
    task = told.get("task", {})
    if task.get("name", TASKS_OF.get(told["data"]["name"])) == "cnn":
        # Once there was "he" only, and no word of it: those results stay, and the default's are others.
        told["task"] = {"init": "lecun", **task}
        if told["task"]["init"] == "he":
            del told["task"]["init"]
    text = json.dumps(told, sort_keys=True, ensure_ascii=False)
    return Job(part.name, label, seed, config, hashlib.sha256(text.encode()).hexdigest()[:16])


def _in_order(table: Sequence[Table], better: str) -> list[Table]:
    """The points of several tables, the best first; of those that did not fail, first those with the most seeds."""
    together: dict[str, Table] = {}
    for row in table:
        before = together.get(key := json.dumps(row["point"], sort_keys=True))
        together[key] = row if before is None else _both(before, row)
    sign = -1 if better == "higher" else 1
    return sorted(
        together.values(),
        key=lambda row: (row["mean"] is None, row["failed"], -len(row["seeds"]), sign * (row["mean"] or 0.0)),
    )


def _both(one: Table, other: Table) -> Table:
    """A point that was tried twice, with the seeds of both."""
    seeds = [*one["seeds"], *other["seeds"]]
    good = [score for score in seeds if score is not None]
    mean = _short(float(np.mean(good))) if good else None
    return {"point": one["point"], "mean": mean, "failed": len(seeds) - len(good), "seeds": seeds}


def close(table: Sequence[Table]) -> bool:
    """Whether other seeds may turn the two best points of some in order around, as far as one seed can say.

    Example:
        >>> points = [{"mean": 0.137, "failed": 0}, {"mean": 0.140, "failed": 0}]
        >>> close(points), close(points[:1]), close([points[0], {"mean": 0.16, "failed": 0}])
        (True, False, False)
    """
    if len(table) < 2 or any(row["failed"] for row in table[:2]):
        return False
    best, next_best = (float(row["mean"]) for row in table[:2])
    return abs(next_best - best) <= CLOSE * abs(best)


def _as_trial(row: Table) -> Trial:
    scores = np.array([math.nan if score is None else score for score in row["seeds"]])
    return Trial([MethodRun("", "", 0, "finished", {}, row["point"])] * len(scores), scores)


# ---- results


def results_of(folder: Path) -> dict[str, Table]:
    """The lines of all results of a study, by their job's key.

    Raises:
        DataError: a line that no study wrote.
    """
    found: dict[str, Table] = {}
    for path in sorted((folder / "results").glob("*.jsonl")):
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            try:
                row = json.loads(line)
                found[row["key"]] = row
            except (ValueError, LookupError, TypeError) as error:
                raise DataError(f"{path}, line {number}: not as a study writes it ({error})") from error
    return found


def _keep(folder: Path, job: Job) -> Table:
    """Make the line of a job that is over, from its run folder, and add it to the part's results."""
    record = read(folder / "jobs" / job.key / "run")
    seconds = float((folder / "jobs" / job.key / "seconds.txt").read_text())
    line: Table = {"key": job.key, "label": job.label, "seconds": round(seconds)}
    line |= {"versions": record.about["versions"], "device": record.about["device"]}
    if job.seed is None:
        swept = json.loads((record.folder / "sweep.json").read_text(encoding="utf-8"))
        (method,) = swept["methods"]
        line |= {"better": swept["better"], "criterion": swept["criterion"], "last": swept["last"]}
        line |= {"rounds": record.config["run"]["rounds"], "tuned_with": record.config["run"]["seeds"]}
        line["points"] = [
            {"point": row["point"], "mean": _short(row["mean"]), "failed": row["failed"], "seeds": _short(row["seeds"])}
            for row in method["table"]
        ]
    else:
        (run,) = record.runs
        line |= {"method": run.method, "seed": run.seed, "status": run.status, "settings": record.config["methods"][0]}
        line["settings"].pop("label")
        line["history"] = {name: _short(finite(values)) for name, values in run.history.items()}
        shared = {name: section for name, section in record.config.items() if name != "methods"}
        own = ("made_of", "versions", "device", "id")
        about = {name: value for name, value in record.about.items() if name not in own}
        write_json(folder / "results" / f"{job.part}.json", {"config": shared, "about": about})
    path = folder / "results" / f"{job.part}.jsonl"
    before = path.read_bytes() if path.exists() else b""
    text = json.dumps(finite(line), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    write_atomic(path, before + text.encode() + b"\n")
    return line


def _short(value: Any) -> Any:
    if isinstance(value, list):
        return [_short(each) for each in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def record_of(study: Study, part: Part, folder: Path) -> Record | None:
    """What is known of a part as the record of one run, for tables and reports; ``None`` before its first result."""
    runs: list[MethodRun] = []
    rows: list[Table] = []
    versions: Table = {}
    devices: set[str] = set()
    for label in part.labels:
        point, _ = study.choice(part, label)
        if point is None:
            continue
        for seed in seeds_of("run.seeds", part.config["run"].get("seeds", 1)):
            line = study.results.get(study.run(part, label, seed, point).key)
            if line is None:
                continue
            history = {
                name: np.array([math.nan if value is None else value for value in values])
                for name, values in line["history"].items()
            }
            versions = line["versions"]
            devices.add(line["device"])
            runs.append(MethodRun(label, line["method"], seed, line["status"], history))
            if label not in [row["label"] for row in rows]:
                rows.append({"label": label, **line["settings"]})
    if not runs:
        return None
    known = _shared(study, part, folder)
    known["config"]["run"]["seeds"] = list(dict.fromkeys(run.seed for run in runs))
    about = known["about"] | {"versions": versions, "device": ", ".join(sorted(devices))}
    return Record(folder / part.name, known["config"] | {"methods": rows}, about, runs, [])


def _shared(study: Study, part: Part, folder: Path) -> Table:
    """What the runs of a part have in common; of another part with the same runs, where they were done for that one."""

    def problem(part: Part) -> Table:
        return {name: section for name, section in part.config.items() if name not in ("name", "methods", "sweep")}

    alike = [each.name for each in study.parts.values() if problem(each) == problem(part)]
    paths = [folder / "results" / f"{name}.json" for name in (part.name, *alike)]
    known: Table = json.loads(next(path for path in paths if path.exists()).read_text(encoding="utf-8"))
    return known


# ---- what came out


@dataclass(frozen=True)
class Claim:
    """That one method is better than another, and what the runs say to it.

    Attributes:
        better, worse: labels, as claimed.
        gap: by how much the first is better in the column that decides, in its units, the mean over the seeds that both
            have; negative where it is worse. Infinite where one diverged with all seeds; not-a-number where both
            did, or one with some seeds, or they share none.
        low, high: the ends of its 95 % confidence interval; not-a-number with one seed.
        p: two-sided, of this pair alone; not-a-number with one seed.
        corrected: p corrected by Holm for all claims of the part.
        seeds: how many both have.
        pooled: whether the error is that of all methods together, as of :mod:`fedax.experiments.pooled`.
    """

    better: str
    worse: str
    gap: float
    low: float
    high: float
    p: float
    corrected: float
    seeds: int
    pooled: bool = False

    @property
    def told(self) -> str:
        """``"as claimed"``, ``"the other way"``, or where chance may explain it ``"not told"``; by the corrected p."""
        if not self.corrected < LEVEL and not math.isinf(self.gap):
            return "not told"
        return "as claimed" if self.gap > 0 else "the other way"


def column_of(part: Part, record: Record) -> str:
    """The column by which a part is judged."""
    (problem,) = problems([record])
    column = part.section.judge or problem.judge
    assert column is not None
    return column


def values_of(part: Part, record: Record) -> dict[str, dict[int, float]]:
    """Method -> seed -> the mean of the last evaluations of what decides, so that higher is better."""
    (problem,) = problems([record])
    column = column_of(part, record)
    sign = -1.0 if better(column) == "lower" else 1.0
    found: dict[str, dict[int, float]] = {}
    for run in record.runs:
        found.setdefault(run.label, {})[run.seed] = _late(run, column, problem.tail, sign)
    return found


def pool(part: Part, record: Record) -> Pool | None:
    """What the methods that have all seeds say of the error together."""
    found = values_of(part, record)
    seeds = sorted(set().union(*found.values()))
    return pool_of({
        label: np.array([each[seed] for seed in seeds]) for label, each in found.items() if {*each} == {*seeds}
    })  # fmt: skip


def claims(part: Part, record: Record) -> list[Claim]:
    """What the runs say to each of a part's claims, by the mean of the last evaluations."""
    found, together = values_of(part, record), pool(part, record)
    tested: list[tuple[Claim, Gap | None]] = []
    for one, other in part.section.claims:
        seeds = [seed for seed in found.get(one, {}) if seed in found.get(other, {})]
        values = {label: np.array([found[label][seed] for seed in seeds]) for label in (one, other) if seeds}
        with np.errstate(invalid="ignore"):  # of two that failed
            gaps = np.subtract(values[one], values[other]) if seeds else np.zeros(0)
        gap, pooled = compare(together, one, other, values) if _testable(gaps) else (None, False)
        mean = float(gaps.mean()) if len({*np.isfinite(gaps)}) == 1 else math.nan
        low, high = (math.nan, math.nan) if gap is None else gap.interval()
        p = math.nan if gap is None else gap.p
        tested.append((Claim(one, other, mean, low, high, p, math.nan, len(gaps), pooled), gap))
    corrected = holm([1.0 if gap is None else gap.p for _, gap in tested])
    return [
        claim if gap is None else replace(claim, corrected=p)
        for (claim, gap), p in zip(tested, corrected, strict=True)
    ]  # fmt: skip


def fair(part: Part, found: Sequence[Claim]) -> list[Claim]:
    """The claims without those about methods of which the part's file says that their pairs say nothing."""
    return [claim for claim in found if not {claim.better, claim.worse} & {*part.section.unfair}]


def verdict(found: Sequence[Claim]) -> str:
    """Of several claims together, all of which are claimed: holds, does not hold, or cannot be told.

    That all hold is an intersection-union test (Berger 1982): it is told if each pair is told by itself, and p needs no
    correction, since a single pair that is wrongly told does not make the others so. That one does not is told by p
    corrected for all, since any of them might be wrongly told.

    Example:
        >>> def claim(gap, p, corrected):
        ...     return Claim("x", "y", gap, gap - 0.5, gap + 0.5, p, corrected, 5)
        >>> sure, likely, against = claim(1.0, 0.001, 0.003), claim(1.0, 0.04, 0.08), claim(-1.0, 0.01, 0.03)
        >>> verdict([sure, likely]), verdict([sure, against]), verdict([sure, claim(-1.0, 0.04, 0.08)]), verdict([])
        ('holds', 'does not hold', 'cannot be told', 'cannot be told')
    """
    if any(claim.told == "the other way" for claim in found):
        return "does not hold"
    holds = all(claim.gap > 0 and (claim.p < LEVEL or math.isinf(claim.gap)) for claim in found)
    return "holds" if found and holds else "cannot be told"


def decisive(found: Sequence[Claim]) -> Claim | None:
    """The pair with the least gap, of those that are told to be the other way if there are any; of all others else."""
    there = [claim for claim in found if not math.isnan(claim.gap)]
    against = [claim for claim in there if claim.told == "the other way"]
    return min(against or there, key=lambda claim: claim.gap, default=None)


def effect(claim: Claim, column: str) -> str:
    """By how much the first method of a pair is better, in the units of the column, and the 95 % interval.

    Example:
        >>> effect(Claim("x", "y", -0.01, -0.03, 0.01, 0.3, 0.3, 5), "test_accuracy")
        'x against y -1.00 % (-3.00 % to 1.00 %)'
    """
    if math.isinf(claim.gap):
        return f"{claim.better} against {claim.worse}, which failed" if claim.gap > 0 else f"{claim.better} failed"
    between = "" if math.isnan(claim.low) else f" ({show(column, claim.low)} to {show(column, claim.high)})"
    return f"{claim.better} against {claim.worse} {show(column, claim.gap)}{between}"


def design(part: Part) -> str:
    """What a part can tell before it has run: the smallest difference that is told with 80 %.

    Its unit is the standard deviation of a run: what is left of it without its method's mean and its seed's.
    """
    seeds = len({*seeds_of("run.seeds", part.config["run"].get("seeds", 1))})
    pairs, methods = len(fair_pairs(part)), len(part.labels)
    if not pairs:
        return ""
    if seeds < 2:
        return "One seed tells no difference from chance."
    own, other = least(seeds, 2), least(seeds, 2, pairs)
    text = f"{seeds} seeds: a pair is told with 80 % if it differs by {own:.2g} standard deviations of a run"
    if pairs > 1:
        text += f", against the claim of {pairs} pairs by {other:.2g}"
    if methods >= LEAST_METHODS:
        text += f"; if the {methods} methods spread alike, by {least(seeds, methods):.2g}"
        text += f" and {least(seeds, methods, pairs):.2g}" if pairs > 1 else ""
    return f"{text}."


def fair_pairs(part: Part) -> list[tuple[str, str]]:
    """The pairs that a part claims, without those that say nothing."""
    return [(one, other) for one, other in part.section.claims if not {one, other} & {*part.section.unfair}]


def _late(run: MethodRun, column: str, tail: int, sign: float) -> float:
    """The mean of the last values, so that higher is better; of a run that has none, -∞."""
    if run.status not in ("finished", "worse"):
        return -math.inf
    return sign * float(np.mean(run.history[column][-max(tail, 1) :]))


def _testable(gaps: np.ndarray) -> bool:
    return len(gaps) > 1 and bool(np.isfinite(gaps).all())


def outcome(study: Study, folder: Path) -> list[str]:
    """What came out of each part that claims something and has results: the claim, the effect, the verdict."""
    said = []
    for part in study.parts.values():
        record = record_of(study, part, folder)
        if record is not None and part.section.claims:
            where = ", ".join(part.section.shows) or part.name
            claimed = f"{where}, claimed: “{part.section.text}”" if part.section.text else where
            said.append(f"{claimed} {conclusion(part, record)}")
    return said


def conclusion(part: Part, record: Record) -> str:
    """The effect with its interval, then the verdict, then what does not count, as sentences.

    Args:
        part: that claims something.
        record: its runs, as of :func:`record_of`.
    """
    found = claims(part, record)
    counted = fair(part, found)
    column, least_pair = column_of(part, record), decisive(counted)
    text = "No pair can be compared yet." if least_pair is None else f"Found: {effect(least_pair, column)}"
    if least_pair is not None:
        most = max((claim for claim in counted if not math.isnan(claim.gap)), key=lambda claim: claim.gap)
        text += "." if most is least_pair else f"; at most {effect(most, column)}."
    if part.section.provisional:
        return f"{text} Nothing follows from it yet: {part.section.provisional}"
    scope = f", {part.section.scope}" if part.section.scope else ""
    text += f" Verdict{scope}: {verdict(counted)}"
    if len(counted) > 1:
        text += f"; {_told(counted)}, beyond chance"
    text += "."
    if left_out := {label: why for label, why in part.section.unfair.items() if _has(label, found)}:
        because = "; ".join(f"{label} ({why})" for label, why in left_out.items())
        text += f" Pairs that say nothing of the methods: those with {because}."
    return text


def _told(found: Sequence[Claim]) -> str:
    """How many pairs are told, and which way."""
    counts = {way: sum(claim.told == way for claim in found) for way in ("as claimed", "the other way")}
    return f"of {len(found)} pairs {counts['as claimed']} as claimed and {counts['the other way']} the other way"


def _has(label: str, found: Sequence[Claim]) -> bool:
    return any(label in (claim.better, claim.worse) for claim in found)


def faults(study: Study, folder: Path) -> list[str]:
    """What breaks the rules of a study, as sentences; empty where nothing does.

    No choice by test data; no seed that both chooses and counts; no result at other settings than those that were
    chosen; where the run folders are still there, no score that is not in their rows. And what :func:`unsure` finds,
    but of the parts of which the study's file says that nothing follows from them yet.
    """
    found = []
    study.results = results_of(folder)
    known: set[str] = set()
    for part in study.parts.values():
        seeds = {*seeds_of("run.seeds", part.config["run"].get("seeds", 1))}
        for label in part.labels:
            point, _ = study.choice(part, label)
            known |= {study.run(part, label, seed, point).key for seed in seeds if point is not None}
            for job in study.choices(part, label):
                known.add(job.key)
                line = study.results[job.key]
                if line["criterion"].startswith("test"):
                    found.append(f"{job.name}: chosen by {line['criterion']}.")
                if both := sorted(seeds & {*line["tuned_with"]}):
                    found.append(f"{job.name}: chosen with the seeds {both}, which count.")
                if (run := folder / "jobs" / job.key / "run").exists():
                    trials = read(run).trials(line["label"])  # of the part that was first with this job
                    scores = {json.dumps(trial.point): _short(finite(trial.mean)) for trial in trials}
                    if scores != {json.dumps(row["point"]): row["mean"] for row in line["points"]}:
                        found.append(f"{job.name}: its scores are not those of {run}.")
        if not part.section.provisional:
            found += unsure(study, part)
    found += [
        f"{line['label']}, {key}: a result at settings that nobody chose."
        for key, line in study.results.items()
        if key not in known
    ]
    return found


def unsure(study: Study, part: Part) -> list[str]:
    """Choices of a part that another, as good, way to choose might turn around, as sentences.

    - Settings that were chosen on fewer rounds than the runs have, before a rate falls that falls in the runs, or on
      another problem.
    - One seed where the two best points are close.
    - A grid that leaves a method's domain, or along which something else changes that has a domain, as α does with lr.
    - More runs for one method than for another; or lr tuned for some and not for others.
    """
    chosen = {label: study.tried(part, label) for label in part.labels}
    origin = dict.fromkeys(part.labels, part)
    for label in part.labels:
        while not _grid(origin[label], label) or origin[label].section.tune is None:
            if (other := origin[label].section.tuned_by) is None or label not in study.parts[other].labels:
                break
            origin[label] = study.parts[other]
        chosen[label] = study.tried(origin[label], label)
    tuned = [label for label in part.labels if chosen[label]]
    if not tuned:
        return []
    found: list[str] = []
    few: dict[int, list[str]] = {}
    late: list[str] = []
    elsewhere: dict[str, list[str]] = {}
    rounds = part.config["run"]["rounds"]
    for label in tuned:
        lines = [study.results[job.key] for job in study.choices(origin[label], label)]
        tried = min(line["rounds"] for line in lines)
        if tried < rounds:
            few.setdefault(tried, []).append(label)
        falls = [int(at) for value in part.row(label).values() if isinstance(value, dict) for at in value.get("at", {})]
        if falls and min(falls) >= tried:
            late.append(label)
        if _problem(origin[label]) != _problem(part):
            elsewhere.setdefault(origin[label].name, []).append(label)
        found += _unsure_points(part, label, chosen[label])
    shared = []
    for tried, which in few.items():
        shared.append(f"{part.name}: chosen on {tried:,} of {rounds:,} rounds ({'; '.join(which)}).")
    if late:
        shared.append(f"{part.name}: a rate falls after the rounds that were tried ({', '.join(late)}).")
    for name, which in elsewhere.items():
        shared.append(f"{part.name}: chosen on another problem, that of {name} ({'; '.join(which)}).")
    return [*shared, *found, *_unequal(study, part, origin, tuned)]


def _unsure_points(part: Part, label: str, table: Sequence[Table]) -> list[str]:
    """Of the points that were tried for one method, the best first."""
    found, best = [], table[0]
    if len(best["seeds"]) == 1 and close(table):
        one, other = (f"{_written(row['point'])} ({row['mean']:.4g})" for row in table[:2])
        found.append(f"{part.name}: {label}: {one} is chosen over {other} by one seed.")
    outside = [row["point"] for row in table if not _accepted(part, label, row["point"])]
    if outside:
        points = "; ".join(map(_written, outside))
        found.append(f"{part.name}: {label}: points that the method refuses were tried ({points}).")
    row = part.row(label)
    if (
        isinstance(row.get("c"), int | float)
        and "lr" in best["point"]
        and "c" not in {*_held(part, label), *best["point"]}
    ):
        found.append(f"{part.name}: {label}: alpha, which is c lr², changes along the grid of lr.")
    return found


def _unequal(study: Study, part: Part, origin: dict[str, Part], tuned: Sequence[str]) -> list[str]:
    """Of the methods of a part together: how many runs chose, and what was tuned."""
    found, left = [], []
    planned, whole = dict[str, int](), dict[str, int]()
    for label in tuned:
        first: dict[str, int] = {}  # point -> seeds, without those that tried the two best again
        for job in study.choices(origin[label], label):
            for row in study.results[job.key]["points"]:
                first.setdefault(json.dumps(row["point"], sort_keys=True), len(row["seeds"]))
            planned.setdefault(label, sum(first.values()))
        whole[label] = sum(first.values())
    for numbers, more, when in ((planned, 1, ", before grids grew"), (whole, MORE, "")):
        if max(numbers.values()) > more * min(numbers.values()):
            most, fewest = max(numbers, key=numbers.__getitem__), min(numbers, key=numbers.__getitem__)
            found.append(f"{part.name}: {numbers[most]} runs chose for {most}, {numbers[fewest]} for {fewest}{when}.")
            break
    for label in tuned:
        names = {name.split(".")[0] for name in study.tried(origin[label], label)[0]["point"]}
        if "lr" not in names and "lr" in part.row(label):
            left.append(label)
    if left and len(left) < len(tuned):
        found.append(f"{part.name}: lr is tuned for other methods, and not for {'; '.join(left)}.")
    return found


def _problem(part: Part) -> Table:
    """What makes an experiment another one, apart from its methods and how long it runs."""
    return {name: part.config.get(name) for name in ("data", "task", "work", "participation")} | {
        "batch_size": part.config["run"].get("batch_size")
    }


def _written(point: Table) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in point.items())


def write_page(study: Study, folder: Path) -> Path | None:
    """Draw the page of a study, ``report.html``, from what is there; ``None`` where nothing is."""
    found = [record_of(study, part, folder) for part in study.parts.values()]
    records = [record for record in found if record is not None]
    if not records:
        return None
    path = folder / "report.html"
    write_report(records, path, said=outcome(study, folder))
    return path


# ---- processes


def carry_out(
    study: Study,
    folder: Path,
    jobs: int | None = None,
    hours: float = math.inf,
    watch: Watch = lambda text: None,
) -> bool:
    """Do all that is left of a study, ``jobs`` processes at a time, each on one core.

    Args:
        study: from :func:`read_study`.
        folder: of the study; what is there already is not done again.
        jobs: how many processes; default: as many as there are cores.
        hours: after them no job begins, and those under way are stopped, with a checkpoint each.
        watch: called with a sentence about each job that begins or ends.

    Returns:
        Whether all is done.

    Raises:
        ConfigError: jobs failed, with what each said last; all others are done.
    """
    share_gpu()
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        return _carry_out(study, folder, jobs, hours, watch)


class _Process(NamedTuple):
    job: Job
    process: "subprocess.Popen[bytes]"
    core: int
    began: float


def _carry_out(study: Study, folder: Path, jobs: int | None, hours: float, watch: Watch) -> bool:
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [*range(os.cpu_count() or 1)]
    free = [cores[i % len(cores)] for i in range(len(cores) if jobs is None else jobs)]
    until = time.monotonic() + 3600 * hours
    study.results = results_of(folder)
    (folder / "results").mkdir(exist_ok=True)
    under_way: dict[str, _Process] = {}
    failed: dict[str, str] = {}
    try:
        while time.monotonic() < until:
            if free:
                left = (job for job in study.jobs() if job.key not in under_way and job.key not in failed)
                for job in itertools.islice(left, len(free)):
                    core = free.pop(0)
                    under_way[job.key] = _Process(job, _start(folder, job, core), core, time.monotonic())
                    watch(f"{job.name} begins")
            if not under_way:
                break
            while all(each.process.poll() is None for each in under_way.values()) and time.monotonic() < until:
                time.sleep(_POLL)
            for each in [each for each in under_way.values() if each.process.poll() is not None]:
                del under_way[each.job.key]
                free.append(each.core)
                _ended(study, folder, each, failed, watch)
    finally:
        for each in under_way.values():
            each.process.terminate()
        for each in under_way.values():
            each.process.wait()
            _ended(study, folder, each, failed, watch)
    if failed:
        raise ConfigError("study", study.section.name, "; ".join(failed.values()))
    return not any(True for _ in study.jobs())


def _ended(study: Study, folder: Path, each: _Process, failed: dict[str, str], watch: Watch) -> None:
    """Keep what a process that has ended leaves."""
    job, code, seconds = each.job, each.process.returncode, time.monotonic() - each.began
    if code == 0:
        study.results[job.key] = _keep(folder, job)
        watch(f"{job.name} took {seconds:.0f} s")
    elif code in (_STOPPED, -signal.SIGTERM):
        watch(f"{job.name} stopped after {seconds:.0f} s")
    else:
        log = folder / "jobs" / job.key / "log.txt"
        *_, said = ["nothing", *log.read_text(encoding="utf-8", errors="replace").strip().splitlines()]
        failed[job.key] = f"{job.name}: {said} ({log})"
        watch(f"{job.name} failed after {seconds:.0f} s: {said}")


def _start(folder: Path, job: Job, core: int) -> "subprocess.Popen[bytes]":
    place = folder / "jobs" / job.key
    place.mkdir(parents=True, exist_ok=True)
    write_atomic(place / "job.toml", toml.dumps(job.config))
    log = (place / "log.txt").open("ab")
    with log:
        return subprocess.Popen(
            [sys.executable, "-m", __spec__.name, str(place), str(core)],
            stdout=log,
            stderr=log,
            env=os.environ | {"JAX_NUM_CPU_DEVICES": "1"},
            start_new_session=True,  # Ctrl-C is for the study, which stops its jobs one by one
        )


def _stop(signum: int, frame: Any) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _work(place: Path, core: int) -> None:
    """The process of a job."""
    from fedax.experiments import build, execute, new_folder, plan, tune

    signal.signal(signal.SIGTERM, _stop)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    config = toml.loads((place / "job.toml").read_bytes())
    run = place / "run"
    folder = run if (run / "config.toml").exists() else new_folder(run, config["name"])
    try:
        with locked(folder):  # the study may have been killed, and begun again
            if "sweep" in config:
                tune(plan(config), folder, drawn=False)
            else:
                execute(build(config), folder, drawn=False)
    except KeyboardInterrupt:
        raise SystemExit(_STOPPED) from None
    except fedax.FedaxError as error:
        raise SystemExit(f"{error}") from None
    finally:  # of its core, those before it was stopped included
        spent = place / "seconds.txt"
        before = float(spent.read_text()) if spent.exists() else 0.0
        write_atomic(spent, f"{before + time.process_time():.1f}")


if __name__ == "__main__":
    _work(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
