"""A study: its parts, the jobs that it consists of, and the settings that they choose."""

import copy
import hashlib
import itertools
import json
import math
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import pydantic

from fedax.errors import ConfigError, unknown
from fedax.experiments import sweeps, toml, tuning
from fedax.experiments.config.edit import put, read_toml
from fedax.experiments.config.experiment import check_settings
from fedax.experiments.config.sections import Count, Section, Seed, Table, check, clear, labels, seeds_of
from fedax.experiments.defaults import TASKS_OF
from fedax.experiments.named import check_named
from fedax.experiments.own import code_of
from fedax.experiments.runs import MethodRun, Path, Trial, slug

_STUDIES = pathlib.Path(__file__).parents[1] / "studies"
_DIGITS = 6  # of the numbers in results
CLOSE = 0.1  # relative; another seed may reverse the order of closer points: seeds differ by 2 to 8 %

_LabelPair = Annotated[list[str], pydantic.Field(min_length=2, max_length=2)]


class TuneSection(Section):
    """How a part is tuned; the axes are those of the recipe's section ``sweep``.

    All methods get the same number of runs: if a grid has fewer points, each is tried with more seeds. A choice on
    fewer rounds than the runs have may be wrong: a learning rate that is ahead at first may be behind in the end.
    """

    rounds: Count | None = None  # default: the rounds of the runs
    seed: Seed = 1000  # the first seed of the tuning
    extend: int = pydantic.Field(default=4, ge=0)  # how often a grid is extended if its best point is at its edge
    again: int = pydantic.Field(default=1, ge=0)  # further seeds for the two best points if they are close


class PartSection(Section):
    """One experiment of a study."""

    name: str
    recipe: str
    shows: list[str] = pydantic.Field(default=[])  # figures and tables of a paper
    text: str = ""  # the paper's claim, in words
    claims: list[_LabelPair] = pydantic.Field(default=[])  # pairs: the first method is better than the second
    judge: str | None = None  # the judging column; default: that of a comparison
    use: list[str] = pydantic.Field(default=[])  # names of the study's ``sets``; ``set`` overrides them
    set: Table = pydantic.Field(default={})
    methods: list[str] | None = None
    tune: TuneSection | None = None
    tuned_by: str | None = None
    hold: dict[str, Table] = pydantic.Field(default={})  # method -> {c = "lr^-2"}: settings tied to tuned ones
    printed: Table | None = None  # the paper's grid, as in ``sweep.grid``; {}: it prints none; None: there is no paper
    holes: dict[str, list[str]] = pydantic.Field(default={})  # method -> known holes of its grid (docs/study_rules.py)
    unfair: dict[str, str] = pydantic.Field(default={})  # method -> why pairs with it do not count
    scope: str = ""  # what the verdict is limited to, such as "for a network of 2,306 parameters"
    provisional: str = ""  # why no conclusion is drawn from the part


class StudySection(Section):
    """A study's file."""

    name: str
    title: str = ""
    together: Count = 1  # so many jobs are one process, one after another: small ones share compiled programs
    sets: dict[str, Table] = pydantic.Field(default={})  # name -> settings that several parts use
    parts: list[PartSection] = pydantic.Field(min_length=1)


@dataclass(frozen=True)
class StudyJob:
    """The work of one process: the tuning of one method, or one method with one seed.

    Attributes:
        part: the name of the part.
        label: of the method.
        seed: of a run; ``None`` for tuning.
        config: the configuration, with only this method and this seed.
        key: identifies the job: a digest of ``config`` without names.
    """

    part: str
    label: str
    seed: int | None
    config: Table
    key: str

    @property
    def name(self) -> str:
        """A name to show."""
        return f"{self.part}: {self.label}, " + ("tuning" if self.seed is None else f"seed {self.seed}")


@dataclass(frozen=True)
class StudyPart:
    """One experiment of a study, with its configuration before tuning.

    Attributes:
        section: the content of the study's file.
        config: the recipe with the settings of the part.
        grids: of a part that is tuned: method -> the axes that are tuned for it, with their values.
        known: settings -> whether a method can have them, as far as :func:`accepted` was asked.
    """

    section: PartSection
    config: Table
    grids: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    known: dict[str, bool] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The name in the study's file."""
        return self.section.name

    @property
    def labels(self) -> list[str]:
        """The labels of the methods."""
        return [row["label"] for row in self.config["methods"]]

    def row(self, label: str) -> Table:
        """The settings of a method."""
        return next(row for row in self.config["methods"] if row["label"] == label)


@dataclass
class Study:
    """A study, from :func:`read_study`.

    Attributes:
        section: the content of its file.
        parts: name -> part.
    """

    section: StudySection
    parts: dict[str, StudyPart]
    results: dict[str, Table] = field(default_factory=dict)  # key -> line of results, of finished jobs

    def choice(self, part: StudyPart, label: str) -> tuple[Table | None, StudyJob | None]:
        """The settings chosen for a method, or the next job that is needed to choose them."""
        if not part.grids.get(label):
            other = self.parts.get(part.section.tuned_by or "")
            return self.choice(other, label) if other is not None and label in other.labels else ({}, None)
        *_, last = self._tuning_jobs(part, label)
        if last.key not in self.results:
            return None, last
        return self.tried(part, label)[0]["point"], None

    def choices(self, part: StudyPart, label: str) -> list[StudyJob]:
        """The finished jobs by which a method's settings were chosen; may be empty."""
        return [job for job in self._tuning_jobs(part, label) if job.key in self.results]

    def tried(self, part: StudyPart, label: str) -> list[Table]:
        """All points that were tried for a method, the best first; a point that was tried twice has all seeds."""
        lines = [self.results[job.key] for job in self.choices(part, label)]
        return _sorted_points([row for line in lines for row in line["points"]], lines[0]["better"]) if lines else []

    def _tuning_jobs(self, part: StudyPart, label: str) -> Iterator[StudyJob]:
        """The tuning jobs of a method, up to the first unfinished one.

        They begin with the points of the recipe. While the best point is at the smallest or largest value of an axis,
        the axis is extended by its own ratio, with all values of the other axes that the method accepts; this ends when
        the best is inside, a value is refused, or the grid was extended as often as it may be. If then the two best
        points are close, both are tried with further seeds.
        """
        tune = part.section.tune
        grid = part.grids.get(label)
        if tune is None or not grid:
            return
        table: list[Table] = []
        for _ in range(tune.extend + 1):
            # Tied settings differ from point to point, so that each point is a job.
            for points in _points(grid) if part.section.hold.get(label) else [grid]:
                job = self._tuning_job(part, label, points)
                yield job
                if (line := self.results.get(job.key)) is None:
                    return
                table = _sorted_points([*table, *line["points"]], line["better"])
            if not (grid := self._extended_grid(part, label, table)):
                break
        if tune.again and close(table):
            for row in table[:2]:
                point = {name: [value] for name, value in row["point"].items()}
                job = self._tuning_job(part, label, point, after=len(row["seeds"]))
                yield job
                if job.key not in self.results:
                    return

    def jobs(self) -> Iterator[StudyJob]:
        """The jobs that can be done now, in order: tuning before runs, and runs seed by seed."""
        keys: set[str] = set()
        for part in self.parts.values():
            chosen = {label: self.choice(part, label) for label in part.labels}
            for _, job in chosen.values():
                if job is not None and job.key not in keys:
                    keys.add(job.key)
                    yield job
            for seed in seeds_of("run.seeds", part.config["run"].get("seeds", 1)):
                for label, (point, _) in chosen.items():
                    if point is not None:
                        job = self.run(part, label, seed, point)
                        if job.key not in self.results and job.key not in keys:
                            keys.add(job.key)
                            yield job

    def run(self, part: StudyPart, label: str, seed: int, point: Table) -> StudyJob:
        """The job of one method with one seed, at the chosen settings."""
        config = at_point(part, label, point)
        config.pop("sweep", None)
        config["run"]["seeds"] = [seed]
        return job_of(part, label, seed, config)

    def _tuning_job(self, part: StudyPart, label: str, grid: Table, after: int = 0) -> StudyJob:
        """The job that tries the points of a grid; ``after``: how many seeds have tried them already."""
        tune = part.section.tune
        assert tune is not None
        held = part.section.hold.get(label)
        config = at_point(part, label, {name: values[0] for name, values in grid.items()} if held else {})
        rounds = tune.rounds or config["run"]["rounds"]
        numbers = {other: math.prod(map(len, part.grids[other].values())) for other in part.labels}
        seeds = tune.again if after else max(numbers.values()) // numbers[label]
        config["run"] |= {"rounds": rounds, "seeds": [*range(tune.seed + after, tune.seed + after + seeds)]}
        config["run"].pop("evaluate_every", None)
        config["run"]["evaluate_every"] = max(1, rounds // 5)
        grid = {tuning.path_of(name): values for name, values in grid.items()}
        config["sweep"] = {**config.get("sweep", {}), "grid": grid}
        return job_of(part, label, None, config)

    def _extended_grid(self, part: StudyPart, label: str, table: list[Table]) -> dict[str, list[Any]] | None:
        """The grid that extends an axis at whose edge the best point is, or ``None``. ``table``: sorted points."""
        best = table[0]["point"]
        for name, value, end in sweeps.edges([_as_trial(row) for row in table]):
            values = sorted({row["point"][name] for row in table})
            at_edge = values[:2] if end == "smallest" else values[:-3:-1]
            if value <= 0 or at_edge[1] <= 0:
                continue
            beyond = float(f"{at_edge[0] * at_edge[0] / at_edge[1]:.4g}")
            beyond = type(value)(beyond)
            if beyond in values:
                continue
            wider = best | {name: beyond}
            if accepted(part, label, wider):
                tried_values = {axis: list(dict.fromkeys(row["point"][axis] for row in table)) for axis in best}
                tried_values[name] = [beyond]
                # The method may refuse some of the other values together with the new one: FedDyn needs lr · alpha ≤ 1.
                return {
                    axis: [value for value in values if accepted(part, label, wider | {axis: value})]
                    for axis, values in tried_values.items()
                }
        return None


def read_study(source: str | Path, only: Sequence[str] = ()) -> Study:
    """Read a study by its name, or from a file.

    Args:
        source: one of :func:`studies`, or a TOML file.
        only: names of parts, if not all are wanted; parts by which they are tuned are included.

    Raises:
        ConfigError: there is no such study, or a setting cannot be used; all parts are checked.

    Example:
        >>> study = read_study("momentum", only=["figure-1c-again"])
        >>> [job.name for job in study.jobs()][0]
        'figure-1c-again: scaffold, tuning'
    """
    path, names = pathlib.Path(source), studies()
    if str(source) in names and not path.is_file():
        path = _STUDIES / f"{source}.toml"
    check_named("study", source, "study")
    try:
        given = toml.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(
            "study", str(source), f"cannot be read ({error.strerror}); give a file, or one of: {', '.join(names)}"
        ) from error
    except ValueError as error:
        raise ConfigError("study", str(source), f"is no TOML: {error}") from error
    try:
        section = StudySection.model_validate(given)
    except pydantic.ValidationError as error:
        raise clear(error.errors()[0]) from None
    parts: dict[str, StudyPart] = {}
    for part_section in section.parts:
        if part_section.name in parts or slug(part_section.name) != part_section.name:
            hint = "give each part a name of its own, of small letters, digits and hyphens"
            raise ConfigError("parts.name", part_section.name, hint)
        if part_section.tuned_by is not None and part_section.tuned_by not in parts:
            raise unknown("parts.tuned_by", part_section.tuned_by, [*parts])
        for name in part_section.use:
            if name not in section.sets:
                raise unknown("parts.use", name, [*section.sets])
        shared = [section.sets[name] for name in part_section.use]
        parts[part_section.name] = _part(part_section, [*shared, part_section.set], path.parent)
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
    return {path.stem: toml.loads(path.read_bytes()).get("title", "") for path in sorted(_STUDIES.glob("*.toml"))}


def _part(section: PartSection, changes: Sequence[Table], folder: Path) -> StudyPart:
    near = folder / section.recipe
    config = copy.deepcopy(read_toml(near if near.is_file() else section.recipe))
    for path, value in itertools.chain.from_iterable(table.items() for table in changes):
        put(config, path, copy.deepcopy(value))
    names = labels((sections := check(config)).methods)
    for row, label in zip(config["methods"], names, strict=True):
        row["label"] = label
    grids = {}
    if section.tune is not None:
        spaces = tuning.spaces_of(sections, names, config.get("sweep", {}).get("grid", {}), code_of(False))
        for label, space in spaces.items():
            grids[label] = {name: tuning.values_of(axis) for name, axis in space.items()}
    named: dict[str, Iterable[str]] = {
        "methods": section.methods or (),
        "claims": itertools.chain.from_iterable(section.claims),
        "hold": section.hold,
        "unfair": section.unfair,
        "holes": section.holes,
    }
    for field_name, given in named.items():
        for label in given:
            if label not in names:
                raise unknown(f"parts.{field_name}", label, names)
    if section.methods is not None:
        config["methods"] = [row for row in config["methods"] if row["label"] in section.methods]
    config["name"] = section.name
    check_settings(config)
    part = StudyPart(section, config, grids)
    for label in section.hold:
        held_of(part, label)
    return part


def at_point(part: StudyPart, label: str, point: Table) -> Table:
    """The configuration of one method at one point, with the settings that are tied to it."""
    row = copy.deepcopy(part.row(label))
    config = {name: [row] if name == "methods" else copy.deepcopy(value) for name, value in part.config.items()}
    for name, (other, power) in held_of(part, label).items():
        if other in point:
            row[name] = float(f"{row[name] * (point[other] / row[other]) ** power:.6g}")
    for name, value in point.items():
        put(config, tuning.path_of(name), value)
    return config


def held_of(part: StudyPart, label: str) -> dict[str, tuple[str, float]]:
    """Tied settings, name -> (other, power): the recipe's value times (new value / old value of other)^power.

    Example: FedDA's α is c lr², so a grid of lr with c = "lr^-2" has the same α at all its points.
    """
    tied = {}
    for name, rule in part.section.hold.get(label, {}).items():
        other, _, power = str(rule).partition("^")
        row = part.row(label)
        try:
            tied[name] = other, float(power)
        except ValueError:
            raise ConfigError(f"parts.hold.{label}.{name}", rule, "give a name and a power, such as lr^-2") from None
        for setting in (name, other):
            if not isinstance(row.get(setting), int | float):
                raise ConfigError(f"parts.hold.{label}.{name}", rule, f"the recipe gives no number for {setting}")
    return tied


def _points(grid: dict[str, list[Any]]) -> list[dict[str, list[Any]]]:
    """The points of a grid, each as a grid of one."""
    return [dict(zip(grid, ([value] for value in values), strict=True)) for values in itertools.product(*grid.values())]


def accepted(part: StudyPart, label: str, point: Table) -> bool:
    """Whether a method can have these settings."""
    config = at_point(part, label, point)
    key = json.dumps(config, sort_keys=True)
    if key not in part.known:
        try:
            check_settings(config)
            part.known[key] = True
        except ConfigError:
            part.known[key] = False
    return part.known[key]


def job_of(part: StudyPart, label: str, seed: int | None, config: Table) -> StudyJob:
    hashed = {name: value for name, value in config.items() if name != "name"}
    hashed["methods"] = [{name: value for name, value in row.items() if name != "label"} for row in config["methods"]]
    task = hashed.get("task", {})
    if task.get("name", TASKS_OF.get(hashed["data"]["name"])) == "cnn":
        # Old results had init = "he" without saying so: they keep their keys, and the new default gets other keys.
        hashed["task"] = {"init": "lecun", **task}
        if hashed["task"]["init"] == "he":
            del hashed["task"]["init"]
    text = json.dumps(hashed, sort_keys=True, ensure_ascii=False)
    return StudyJob(part.name, label, seed, config, hashlib.sha256(text.encode()).hexdigest()[:16])


def _sorted_points(table: Sequence[Table], better: str) -> list[Table]:
    """Merge and sort points, the best first; among points without failures those with most seeds come first."""
    merged: dict[str, Table] = {}
    for row in table:
        earlier = merged.get(key := json.dumps(row["point"], sort_keys=True))
        merged[key] = row if earlier is None else _merged_point(earlier, row)
    sign = -1 if better == "higher" else 1
    return sorted(
        merged.values(),
        key=lambda row: (row["mean"] is None, row["failed"], -len(row["seeds"]), sign * (row["mean"] or 0.0)),
    )


def _merged_point(one: Table, other: Table) -> Table:
    """A point that was tried twice, with the seeds of both."""
    seeds = [*one["seeds"], *other["seeds"]]
    good = [score for score in seeds if score is not None]
    mean = short(float(np.mean(good))) if good else None
    return {"point": one["point"], "mean": mean, "failed": len(seeds) - len(good), "seeds": seeds}


def close(table: Sequence[Table]) -> bool:
    """Whether other seeds may reverse the order of the two best of some sorted points.

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


def short(value: Any, digits: int = _DIGITS) -> Any:
    if isinstance(value, list):
        return [short(item, digits) for item in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value
