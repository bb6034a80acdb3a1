"""Tuning: runs every method of a configuration at the points of a grid, or at random points.

Hyper-parameters of the methods, work, participation, privacy, clock and pace, compression and the batch size may vary.
All points have the same data, task, rounds and seeds, so that their figures can be compared.
"""

import contextlib
import copy
import itertools
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, NamedTuple

import fedax
from fedax.columns import better, choosing
from fedax.engine import secret
from fedax.engine.history import Row, save_run
from fedax.engine.load import Shared
from fedax.engine.options import OPTIONS, CommonOptions
from fedax.engine.saved import renamed
from fedax.engine.sweep import blocks, discard_sweep
from fedax.errors import ConfigError, unknown
from fedax.experiments import cluster, own, runner, sweeps, toml
from fedax.experiments.clients import report_shows
from fedax.experiments.config.codec import call, hyperparameters_of, is_schedule
from fedax.experiments.config.edit import put
from fedax.experiments.config.experiment import Experiment, build_all, columns, job_of
from fedax.experiments.config.sections import SELECTORS, ExperimentSection, SweepSection, Table, check, labels
from fedax.experiments.defaults import judge
from fedax.experiments.runner import begin, check_key, finish
from fedax.experiments.runs import (
    AnyTable,
    Path,
    Record,
    append_lines,
    append_metrics,
    begun,
    keep_rows,
    model_path,
    read,
    read_json,
    refuse_links,
    remove_unfinished,
    rows_in,
    said,
    slug,
    unsealed,
    write_json,
)
from fedax.files import write_atomic
from fedax.progress import show_progress

GridAxis = list[Any] | fedax.Range
Point = dict[str, Any]
Seeds = tuple[int, ...]
Watch = Callable[[str, Point, int, Mapping[str, Any]], None]

MOST_POINTS = 10_000  # of all methods together

# Options in which points may differ: sections with a setting as an example; settings of [run], and whether they have
# parts that may; and all of them, as arguments of a run.
_VARYING = {name: each for name, each in OPTIONS.items() if each.option.varies}
_EXAMPLES = {each.path[0]: each.option.varies for each in _VARYING.values() if len(each.path) == 1}
_OF_RUN = {each.path[1]: each.kinds[0] is not int for each in _VARYING.values() if len(each.path) > 1}
_SHARED = (*_EXAMPLES, "run")
_FIXED = {
    "data": "other data are another problem, and losses of two problems cannot be compared; sweep them one by one",
    "task": "another task has another loss, and two losses cannot be compared; sweep them one by one",
    "privacy.delta": "ε is told for one δ, and at two it cannot be compared; sweep them one by one",
    "privacy.noise_seed": "the noise of all points is drawn alike, and none is chosen by it; set it in [privacy]",
    "run": "all points have the same budget and measurements; "
    f"of [run] only {' and '.join(f'run.{name}' for name in _OF_RUN)} may vary",
}


@dataclass(frozen=True)
class Tuning:
    """A sweep that has passed every check.

    Attributes:
        config: the configuration with all defaults filled in, its section ``sweep``, and methods at their first point.
        points: label -> the points: hyper-parameters by name, settings of other sections by path.
        experiments: label -> the experiment of each point, with this method only.
    """

    config: Table
    points: dict[str, list[Point]]
    experiments: dict[str, list[Experiment]]


def plan(
    config: Mapping[str, Any], grid: Mapping[str, Any] | None = None, allow_code: bool | own.Code = False
) -> Tuning:
    """Check a configuration with a section ``sweep`` at all its points, and make all objects.

    Args:
        config: tables, from :func:`fedax.experiments.read_toml`.
        grid: more axes, or other values for an axis of the configuration.
        allow_code: as in :func:`fedax.experiments.build`.

    Raises:
        ConfigError, DataError: as :func:`fedax.experiments.build`, for any point; or an axis that cannot be used.

    Example:
        >>> tuning = plan({
        ...     "data": {"name": "digits", "clients": 4, "partition": "iid"},
        ...     "run": {"rounds": 2, "batch_size": 32},
        ...     "methods": [{"name": "fedavg"}, {"name": "fedprox"}],
        ...     "sweep": {"grid": {"methods.*.lr": [0.1, 0.5], "methods.fedprox.prox": [0.01, 0.1, 1.0]}},
        ... })
        >>> tuning.points["fedavg"], len(tuning.points["fedprox"]), tuning.config["sweep"]["criterion"]
        ([{'lr': 0.1}, {'lr': 0.5}], 6, 'test_loss')
    """
    tables = copy.deepcopy(dict(config))
    sections = check(tables)
    section = sections.sweep or SweepSection()
    grid_values = dict(_flat(section.grid)) | dict(grid or {})
    if not grid_values:
        hint = 'this is missing; add [sweep.grid] with "methods.*.lr" = [0.01, 0.1], or --grid methods.*.lr=0.01,0.1'
        raise ConfigError("sweep.grid", None, hint)
    if (section.points is None) == (section.search == "random"):
        hint = "a grid takes all combinations; leave it out, or take search = 'random'"
        raise ConfigError("sweep.points", section.points, hint if section.points else "give how many to draw")
    names = labels(sections.methods)
    for row, label in zip(tables["methods"], names, strict=True):
        row["label"] = label
    code = own.code_of(allow_code)
    spaces = spaces_of(sections, names, grid_values, code)
    _check_number(spaces, section.points, grid_values)
    points = {label: _points(label, space, section) for label, space in spaces.items()}
    rows = dict(zip(names, tables.pop("methods"), strict=True))
    configs = [_at_point(tables, rows[label], point) for label in names for point in points[label]]
    built = iter(build_all(configs, allow_code=code))
    experiments = {label: [next(built) for _ in points[label]] for label in names}
    firsts = [of_label[0] for of_label in experiments.values()]
    resolved = firsts[0].config | {"methods": [first.config["methods"][0] for first in firsts]}
    resolved["sweep"] = _criterion(section, [of_label for label in names for of_label in experiments[label]]) | {
        "grid": grid_values
    }
    return Tuning(resolved, points, experiments)


def tune(
    tuning: Tuning,
    folder: Path,
    watch: Watch | None = None,
    drawn: bool = True,
    executor: Executor | None = None,
    **kept: Any,
) -> tuple[Record, dict[str, Any]]:
    """Run a sweep and write its folder, as :func:`fedax.experiments.execute` does, with sweep.json and best.toml.

    A stopped sweep continues from its checkpoints, which are kept until all methods are done; a finished one is kept.

    Args:
        tuning: from :func:`plan`.
        folder: from :func:`fedax.experiments.new_folder`, or a folder with a sweep of the same configuration.
        watch: called as ``watch(label, point, seed, row)`` with each row of the histories.
        drawn: whether plots and report are drawn in the end.
        executor: of ``concurrent.futures``: what runs side by side on one core is a job of it, so that rows are those
            of a sweep on one core. Default: all points in this process.
        kept: arguments of :class:`fedax.Checkpoints`, without the folder.

    Returns:
        The run folder as a record, and the content of sweep.json. Only the models of the best points are written.

    Raises:
        ConfigError: the folder has a link in it, or files that no run writes; with an executor, jobs that failed, after
            all others, or a worker with other data or versions.
        CheckpointError: the folder has the sweep of another problem.
    """
    config, results = tuning.config, folder / "sweep.json"
    refuse_links(folder)
    remove_unfinished(folder)
    splits = _splits(config)
    places = {
        label: {seeds: folder / "checkpoints" / slug(label) / f"split-{k}" for k, seeds in enumerate(splits)}
        for label in tuning.points
    }
    if results.exists():
        record, content = read(folder), unsealed(read_json(results, AnyTable))
    else:
        experiments = [experiment for of_label in tuning.experiments.values() for experiment in of_label]
        if (about := begun(folder)) is None:
            begin(folder, config, experiments)
        else:
            own.check_same(folder, about.get("code", {}), experiments[0].code.values())
            check_key(folder, experiments[0])
            keep_rows(folder, ())  # the checkpoints have the rows
            (folder / "summary.json").unlink(missing_ok=True)  # which tells how many there were
        record, content = _tune(tuning, folder, watch, places, drawn, executor, kept)
        write_json(results, content)
    shutil.rmtree(_delivered(folder), ignore_errors=True)
    for of_label in places.values():
        for place in of_label.values():
            discard_sweep(place)
            with contextlib.suppress(OSError):  # other methods need it, or it is gone
                place.parent.rmdir()
    return record, content


def _tune(
    tuning: Tuning,
    folder: Path,
    watch: Watch | None,
    places: Mapping[str, Mapping[Seeds, Path]],
    drawn: bool,
    executor: Executor | None,
    kept: Table,
) -> tuple[Record, Table]:
    """Sweep all methods, one after another, or as jobs; returns the record and the content of sweep.json."""
    config = tuning.config
    began, programs = time.perf_counter(), 0
    compiled: dict[str, float] = {}
    if executor is not None:
        programs, compiled = _tune_elsewhere(tuning, folder, watch, executor)
    for method in config["methods"] if executor is None else ():
        label = method["label"]
        swept = _sweep(tuning, folder, method, watch, places[label], kept)
        programs += sum(sweep.programs for sweep in swept)
        compiled[label] = sum(run.compile_seconds for sweep in swept for runs in sweep.runs for run in runs)
        best = tuning.points[label].index(read(folder).trials(label)[0].point)
        for sweep in swept:
            for seed, run in zip(sweep.seeds, sweep.runs[best], strict=True):
                path = model_path(folder, label, seed)
                save_run(run, path, of=said(folder, path))
    seconds = time.perf_counter() - began
    record = finish(folder, compiled, drawn)
    files = _write_best(tuning, record)
    return record, {
        **{name: value for name, value in config["sweep"].items() if name != "grid"},
        "programs": programs,
        "seconds": seconds,
        "best": files,
        "notes": sweeps.notes(record),
        "methods": [_table(record, label) for label in tuning.points],
    }


def _splits(config: Table) -> list[Seeds]:
    """Groups of seeds that have the same data."""
    run = config["run"]
    return [(seed,) for seed in run["seeds"]] if run["split_seeds"] else [tuple(run["seeds"])]


def _sweep(
    tuning: Tuning, folder: Path, method: Table, watch: Watch | None, places: Mapping[Seeds, Path], kept: Table
) -> list[fedax.Sweep]:
    """Run one method at all its points: with all seeds at once, or one by one if each has its own split."""
    label = method["label"]
    experiments, points = tuning.experiments[label], tuning.points[label]
    shared = Shared()
    last_rounds = [_budget_end(experiment, label, shared) for experiment in experiments]

    def on_row(lane: dict[str, Any], seed: int, row: Row) -> None:
        point = points[lane["number"]]
        append_metrics(folder, label, method["name"], seed, row, point, last_rounds[lane["number"]])
        if watch is not None:
            watch(label, point, seed, row)

    sweeps_done = []
    for seeds, place in places.items():
        if experiments[0].keeps_noise:
            secret.derive(folder, place, slug(label))
        with report_shows(), show_progress(False):
            checkpoint = fedax.Checkpoints(place, **kept)
            swept = fedax.sweep(**_arguments(experiments, label, seeds), callback=on_row, checkpoint=checkpoint)
        sweeps_done.append(swept)
    return sweeps_done


def _arguments(experiments: list[Experiment], label: str, seeds: Seeds) -> dict[str, Any]:
    """The arguments of :func:`fedax.sweep` for one method at all its points, with seeds that have the same data."""

    def make(number: int) -> dict[str, Any]:
        experiment = experiments[number]
        return {
            "algorithm": experiment.methods[label],
            "work": experiment.work,
            "participation": experiment.participation,
            **{name: experiment.options[name] for name in _VARYING if name in experiment.options},
        }

    first = experiments[0]
    data, val, test = first.split(seeds[0])
    assert isinstance(data, fedax.FederatedData)  # real clients need a fleet
    return {
        "make": make,
        "grid": [{"number": i} for i in range(len(experiments))],
        "task": first.task,
        "data": data,
        "seeds": seeds,
        "val": val,
        "test": test,
        **{name: value for name, value in first.options.items() if name not in _VARYING},
    }


# ---- as jobs of an executor


def try_points(experiments: list[Experiment], points: list[Point], folder: Path) -> None:
    """Try a method at some points, which run side by side; the job of a worker.

    Args:
        experiments: of each point, with this method only, and with seeds that have the same data.
        points: as in :class:`Tuning`.
        folder: empty; it gets ``metrics.jsonl``, the models of all runs, and ``compiled.json``.
    """
    (method,) = experiments[0].config["methods"]
    label, seeds = method["label"], tuple(experiments[0].config["run"]["seeds"])
    if experiments[0].keeps_noise:
        secret.root(folder)
    tuning = Tuning(experiments[0].config, {label: points}, {label: experiments})
    (swept,) = _sweep(tuning, folder, method, None, {seeds: folder / "checkpoints"}, {})
    (folder / "models").mkdir()
    for i, runs in enumerate(swept.runs):
        for seed, run in zip(seeds, runs, strict=True):
            run.save(_model_of_job(folder, i, seed))
    seconds = sum(run.compile_seconds for runs in swept.runs for run in runs)
    write_atomic(folder / "compiled.json", json.dumps(seconds))


def _model_of_job(folder: Path, point: int, seed: int) -> Path:
    return folder / "models" / f"point{point}-seed{seed}.safetensors"


def _delivered(folder: Path) -> Path:
    """Where the results of jobs wait until all are there."""
    return folder / "checkpoints" / "jobs"


def perform(job: cluster.ClusterJob, folder: Path, code: Sequence[str]) -> None:
    """Do the job of a sweep, or of a run, at a worker: a :data:`fedax.experiments.cluster.jobs.Perform`."""
    if isinstance(job.problem, bytes) or not (job.points or "sweep" in job.problem[0]):
        runner.perform(job, folder, code)
    elif job.points:
        try_points(build_all(job.problem, allow_code=own.here(code)), list(job.points), folder)
    else:
        tune(plan(job.problem[0], allow_code=own.here(code)), folder, drawn=False)


class _Part(NamedTuple):
    """A job of a sweep: a method at some points, by their numbers, with some seeds."""

    job: cluster.ClusterJob
    label: str
    points: list[int]
    seeds: list[int]


def _tune_elsewhere(
    tuning: Tuning, folder: Path, watch: Watch | None, executor: Executor
) -> tuple[int, dict[str, float]]:
    """Sweep all methods by the jobs of an executor; returns the numbers of programs and seconds of compilation."""
    parts, programs = _parts(tuning)
    done = _delivered(folder)
    label_of = {part.job.key: part.label for part in parts}

    def take(job: cluster.ClusterJob, outcome: cluster.Outcome) -> None:
        cluster.deliver(outcome, done / job.key)
        for of, row in rows_in(outcome.files["metrics.jsonl"]):
            if watch is not None:
                watch(label_of[job.key], of["point"], of["seed"], row)

    left = [part.job for part in parts if not cluster.delivered(done / part.job.key)]
    try:
        cluster.carry_out(left, executor, perform, folder, take)
    finally:  # in the order of the points, whatever came first
        write_atomic(folder / "metrics.jsonl", b"")
        for part in parts:
            if (path := done / part.job.key / "metrics.jsonl").exists():
                append_lines(folder, path.read_bytes())
    compiled = dict.fromkeys(tuning.points, 0.0)
    for part in parts:
        compiled[part.label] += json.loads((done / part.job.key / "compiled.json").read_text())
    record = read(folder)
    for label, points in tuning.points.items():
        best = points.index(record.trials(label)[0].point)
        for part in parts:
            if part.label == label and best in part.points:
                for seed in part.seeds:
                    source = _model_of_job(done / part.job.key, part.points.index(best), seed)
                    path = model_path(folder, label, seed)
                    write_atomic(path, renamed(source.read_bytes(), said(folder, path)))
    return programs, compiled


def _parts(tuning: Tuning) -> tuple[list[_Part], int]:
    """The jobs of a sweep, in the order of their rows, and how many programs they need."""
    parts, programs = [], 0
    for label, experiments in tuning.experiments.items():
        for seeds in _splits(tuning.config):
            arguments = _arguments(experiments, label, seeds)
            make, points, task, data = (arguments.pop(name) for name in ("make", "grid", "task", "data"))
            arguments.pop("seeds")
            for block in blocks(make, points, task, data, CommonOptions(**arguments), seeds):
                chosen = [seeds[k] for k in block.seeds]
                configs = [
                    {**config, "run": {**config["run"], "seeds": chosen}}
                    for config in (experiments[i].config for i in block.points)
                ]
                points = [tuning.points[label][i] for i in block.points]
                name = f"{label} at {sweeps.settings(points[0])}" + f" and {len(points) - 1} more" * (len(points) > 1)
                name += f", seed {', '.join(map(str, chosen))}"
                job = cluster.ClusterJob.of(name, configs, points, experiments[0].code)
                parts.append(_Part(job, label, block.points, chosen))
                programs += block.new
    return parts, programs


def _budget_end(experiment: Experiment, label: str, shared: Shared) -> int | None:
    """The round after which the privacy budget ends a point's runs; ``None``: it does not."""
    dp = experiment.options.get("privacy")
    if dp is None or dp.epsilon is None:
        return None
    job = job_of(experiment, label, shared)
    return job.rounds if job.spent else None


def _write_best(tuning: Tuning, record: Record) -> dict[str, list[str]]:
    """Write the configurations of the best points, one for all methods whose other settings agree: file -> labels."""
    groups: dict[str, dict[str, Table]] = {}
    for label, points in tuning.points.items():
        best = record.trials(label)[0]
        if best.failed:
            continue
        config = tuning.experiments[label][points.index(best.point)].config
        shared = repr([config.get(section) for section in _SHARED])
        groups.setdefault(shared, {})[label] = config
    files = {}
    for group in groups.values():
        name = "best.toml" if len(groups) == 1 else f"best-{slug(next(iter(group)))}.toml"
        first = next(iter(group.values()))
        methods = [config["methods"][0] for config in group.values()]
        write_atomic(record.folder / name, toml.dumps(first | {"methods": methods}))
        files[name] = list(group)
    return files


def _table(record: Record, label: str) -> Table:
    rows = [
        {"point": t.point, "mean": t.mean, "std": t.std, "failed": t.failed, "seeds": t.scores}
        for t in record.trials(label)
    ]
    return {"label": label, "points": len(rows), "best": rows[0]["point"], "table": rows}


# ---- points


def _flat(grid: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Flatten a grid to (path, values); TOML reads ``work.steps = [1, 2]`` without quotes as nested tables."""
    for key, values in grid.items():
        if isinstance(values, Mapping) and values and "low" not in values:
            yield from _flat(values, f"{before}{key}.")
        else:
            yield f"{before}{key}", values


def _axis(path: str, values: Any) -> GridAxis:
    field = f"sweep.grid.{path}"
    first, *rest = path.split(".")
    if first == "methods":
        if len(rest) < 2 or not all(rest):
            raise ConfigError(
                field, values, "name method and hyper-parameter, such as methods.fedavg.lr or methods.*.lr"
            )
        if rest[1] in ("name", "label"):
            raise ConfigError(field, values, "list another method under [[methods]] instead")
    elif first == "run" and rest and rest[0] in _OF_RUN and (len(rest) == 1 or _OF_RUN[rest[0]]) and all(rest):
        pass
    elif path in _FIXED:
        raise ConfigError(field, values, _FIXED[path])
    elif first not in _EXAMPLES:
        if first in _FIXED:
            raise ConfigError(field, values, _FIXED[first])
        raise unknown(field, first, ["methods", *_SHARED])
    elif not rest or not all(rest) or (len(rest) > 1 and first in ("work", "participation")):
        raise ConfigError(field, values, f"name one setting, such as {first}.{_EXAMPLES[first]}")
    if isinstance(values, Mapping) and values:
        if not isinstance(values.get("log", True), bool):
            raise ConfigError(f"{field}.log", values["log"], "give true or false")
        return call(field, fedax.Range, dict(values))
    if not isinstance(values, list) or not values:
        raise ConfigError(field, values, "give a list of values, or {low = 0.01, high = 1.0, points = 5, log = true}")
    if len(values) > MOST_POINTS:
        raise ConfigError(field, len(values), f"a sweep has at most {MOST_POINTS} points")
    for i, value in enumerate(values):
        if value in values[:i]:
            raise ConfigError(field, values, f"{value!r} comes twice")
    return values


def spaces_of(
    sections: ExperimentSection, names: list[str], grid: Mapping[str, Any], code: own.Code
) -> dict[str, dict[str, GridAxis]]:
    """Label -> the axes of this method; an axis that names the method replaces one for all methods.

    Raises:
        ConfigError: a setting that no method has, or that is not swept; no values.
    """
    axes = {path: _axis(path, values) for path, values in grid.items()}
    spaces: dict[str, dict[str, GridAxis]] = {label: {} for label in names}
    known = {label: hyperparameters_of(m, label, code) for label, m in zip(names, sections.methods, strict=True)}
    # Axes of methods come first; an axis that names a method replaces one for all methods.
    ranks = {path: path.startswith("methods.") + path.startswith("methods.*.") for path in axes}
    for path in sorted(axes, key=lambda path: -ranks[path]):
        axis = axes[path]
        first, selector, *rest = path.split(".")
        if first != "methods":
            for space in spaces.values():
                space[path] = axis
            continue
        matched = [label for label, m in zip(names, sections.methods, strict=True) if selector in ("*", m.name, label)]
        if not matched:
            raise unknown(f"sweep.grid.{path}", selector, names)
        with_setting = [label for label in matched if rest[0] in known[label]]
        if not with_setting or (selector != "*" and with_setting != matched):
            without_setting = next(label for label in matched if label not in with_setting)
            raise unknown(f"sweep.grid.{path}", rest[0], known[without_setting])
        for label in with_setting:
            spaces[label][".".join(rest)] = axis
    for label, m in zip(names, sections.methods, strict=True):
        for name, axis in spaces[label].items():
            numbers = isinstance(axis, fedax.Range) or not all(isinstance(value, dict) for value in axis)
            if numbers and is_schedule(name, m.parameters.get(name)):
                hint = f"{label} has a schedule there: try methods.{label}.{name}.value, or give a list of schedules"
                raise ConfigError(f"sweep.grid.methods.*.{name}", axis, hint)
    return spaces


def _size(axis: GridAxis) -> int:
    return axis.points if isinstance(axis, fedax.Range) else len(axis)


def _check_number(spaces: Mapping[str, Mapping[str, GridAxis]], drawn: int | None, given: Table) -> None:
    if drawn is None:
        number = sum(math.prod(map(_size, space.values())) for space in spaces.values())
    else:
        number = drawn * len(spaces)
    if number > MOST_POINTS:
        hint = f"this makes {number} points of all methods together; at most {MOST_POINTS} are tried"
        raise ConfigError("sweep.grid" if drawn is None else "sweep.points", given if drawn is None else drawn, hint)


def _points(label: str, space: Mapping[str, GridAxis], section: SweepSection) -> list[Point]:
    if not space:
        return [{}]
    if section.points is None:
        return [dict(zip(space, point, strict=True)) for point in itertools.product(*map(values_of, space.values()))]
    combinations = math.prod(math.inf if isinstance(axis, fedax.Range) else len(axis) for axis in space.values())
    if combinations < section.points:
        hint = f"{label} has only {combinations} combinations; search = 'grid' takes them all"
        raise ConfigError("sweep.points", section.points, hint)
    drawn = section.points
    while drawn <= 64 * section.points:
        different: dict[str, Point] = {}
        for point in fedax.random_points(space, drawn, section.seed):
            rounded = {name: _rounded(value, space[name]) for name, value in point.items()}
            different.setdefault(repr(rounded), rounded)
        if len(different) >= section.points:
            return list(different.values())[: section.points]
        drawn *= 2  # drawing more points keeps the first ones
    raise ConfigError("sweep.points", section.points, f"the ranges of {label} are too narrow for so many points")


def values_of(axis: GridAxis) -> list[Any]:
    """The values of an axis of a grid; those of a range are rounded, but stay different."""
    if not isinstance(axis, fedax.Range):
        return axis
    for digits in (4, 8, 17):
        values = [_rounded(value, axis, digits) for value in axis.values()]
        if len({*values}) == len(values):
            return values
    raise ConfigError("sweep.grid", axis, "the range is too narrow for so many points")


def _rounded(value: Any, axis: GridAxis, digits: int = 4) -> Any:
    """Round a value of a range: four digits are precise enough, and can be copied."""
    return min(max(float(f"{value:.{digits}g}"), axis.low), axis.high) if isinstance(axis, fedax.Range) else value


def path_of(name: str) -> str:
    """Where a configuration of one method has a setting of a point.

    Example:
        >>> path_of("lr"), path_of("privacy.clip")
        ('methods.*.lr', 'privacy.clip')
    """
    return name if name.split(".")[0] in _SHARED else f"methods.*.{name}"


def _at_point(tables: Table, row: Table, point: Point) -> Table:
    """The configuration of one method at one point."""
    config = copy.deepcopy(tables | {"methods": [row]})
    # Selectors come first, because they drop the parameters of the old choice.
    for name in sorted(point, key=lambda name: (name not in SELECTORS, name.count("."))):
        put(config, path_of(name), copy.deepcopy(point[name]))
    return config


def _criterion(section: SweepSection, experiments: list[Experiment]) -> Table:
    """The section's settings with their defaults: the criterion and which way is better."""
    first, known = experiments[0].config, columns(experiments)
    run = first["run"]
    methods = [method for experiment in experiments for method in experiment.config["methods"]]
    usual = "val_loss" if "val_loss" in known else judge(first | {"methods": methods}, known) or choosing(known)
    criterion = section.criterion or usual
    if criterion not in known:
        raise unknown("sweep.criterion", criterion, known)
    public = next((experiment.public for experiment in experiments if experiment.public is not None), None)
    if public is not None and criterion not in public:
        hint = (
            "the choice among private runs must not depend on clients' data: name a column of held-out examples that "
            f"belong to no client ({', '.join(set(public) & set(known)) or 'there is none'}), or try settings on other "
            "data first"
        )
        raise ConfigError("sweep.criterion", criterion, hint)
    way = section.better or better(criterion, experiments[0].task.metrics)
    if way is None:
        raise ConfigError("sweep.better", None, f"the name {criterion} does not tell; give 'lower' or 'higher'")
    evaluations = math.ceil(run["rounds"] / run.get("evaluate_every", math.ceil(run["rounds"] / 50)))
    if section.last > evaluations:
        raise ConfigError("sweep.last", section.last, f"there are only {evaluations} evaluations after the start")
    drawn = {"points": section.points, "seed": section.seed} if section.search == "random" else {}
    return {"criterion": criterion, "better": way, "last": section.last, "search": section.search, **drawn}
