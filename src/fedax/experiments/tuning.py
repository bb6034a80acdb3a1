"""The search for good settings: every method of a configuration at the points of a grid, or at random ones.

What may vary are hyper-parameters of the methods, the work, the participation, the privacy, what compresses uploads and
downloads, and the batch size. All points have the same data, task, rounds and seeds: their figures can be compared.
"""

import contextlib
import copy
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import fedax
from fedax.columns import better
from fedax.engine import secret
from fedax.engine.sweep import discard_sweep
from fedax.errors import BadClientWarning, ConfigError, DivergedWarning, unknown
from fedax.experiments import own, sweeps, toml
from fedax.experiments.config.codec import call, hyperparameters_of
from fedax.experiments.config.edit import put
from fedax.experiments.config.experiment import Experiment, build_all, columns
from fedax.experiments.config.sections import SELECTORS, ExperimentSection, SweepSection, Table, check, labels
from fedax.experiments.defaults import judge
from fedax.experiments.runner import begin, check_key, finish, job_of
from fedax.experiments.runs import (
    Path,
    Record,
    append_metrics,
    begun,
    keep_rows,
    model_path,
    read,
    refuse_links,
    remove_unfinished,
    slug,
    write_atomic,
    write_json,
)

Axis = list[Any] | fedax.Range
Point = dict[str, Any]
Seeds = tuple[int, ...]
Watch = Callable[[str, Point, int, Mapping[str, Any]], None]

MOST_POINTS = 10_000  # of all methods together

_FIXED = {
    "data": "other data are another problem, and losses of two problems cannot be compared; sweep them one by one",
    "task": "another task has another loss, and two losses cannot be compared; sweep them one by one",
    "privacy.delta": "ε is told for one δ, and at two it cannot be compared; sweep them one by one",
    "privacy.noise_seed": "the noise of all points is drawn alike, and none is chosen by it; set it in [privacy]",
    "run": "all points have the same budget and measurements; of [run] only run.batch_size and run.compress may vary",
}
_SHARED = ("work", "participation", "run", "privacy")
_OWN = ("privacy", "compress")  # arguments of :func:`fedax.simulate` that each point has for itself


@dataclass(frozen=True)
class Tuning:
    """A sweep that has passed every check.

    Attributes:
        config: the configuration with its section ``sweep``, all defaults filled in, every method at its first point.
        points: label -> the points: hyper-parameters by their name, settings of other sections by their path.
        experiments: label -> the experiment of each point, with this method alone.
    """

    config: Table
    points: dict[str, list[Point]]
    experiments: dict[str, list[Experiment]]


def plan(
    config: Mapping[str, Any], grid: Mapping[str, Any] | None = None, allow_code: bool | own.Code = False
) -> Tuning:
    """Check a configuration with a section ``sweep`` wholly, at all its points, and make all objects.

    Args:
        config: tables, as of :func:`fedax.experiments.read_toml`.
        grid: more axes; of one that the configuration has, other values.
        allow_code: as of :func:`fedax.experiments.build`.

    Raises:
        ConfigError, DataError: as :func:`fedax.experiments.build`, of any point; and axes that cannot be.

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
    given = dict(_flat(section.grid)) | dict(grid or {})
    if not given:
        way_out = 'this is missing; add [sweep.grid] with "methods.*.lr" = [0.01, 0.1], or --grid methods.*.lr=0.01,0.1'
        raise ConfigError("sweep.grid", None, way_out)
    if (section.points is None) == (section.search == "random"):
        way_out = "a grid takes all combinations; leave it out, or take search = 'random'"
        raise ConfigError("sweep.points", section.points, way_out if section.points else "give how many to draw")
    names = labels(sections.methods)
    for row, label in zip(tables["methods"], names, strict=True):
        row["label"] = label
    code = own.code_of(allow_code)
    spaces = _spaces(sections, names, {path: _axis(path, values) for path, values in given.items()}, code)
    _check_number(spaces, section.points, given)
    points = {label: _points(label, space, section) for label, space in spaces.items()}
    rows = dict(zip(names, tables.pop("methods"), strict=True))
    configs = [_at(tables, rows[label], point) for label in names for point in points[label]]
    built = iter(build_all(configs, allow_code=code))
    experiments = {label: [next(built) for _ in points[label]] for label in names}
    firsts = [each[0] for each in experiments.values()]
    resolved = firsts[0].config | {"methods": [first.config["methods"][0] for first in firsts]}
    resolved["sweep"] = _judge(section, [each for label in names for each in experiments[label]]) | {"grid": given}
    return Tuning(resolved, points, experiments)


def tune(
    tuning: Tuning, folder: Path, watch: Watch | None = None, drawn: bool = True, **kept: Any
) -> tuple[Record, dict[str, Any]]:
    """Run a sweep and fill its folder: as :func:`fedax.experiments.execute`, and sweep.json and best.toml.

    A sweep that was stopped goes on from its checkpoints, which stay until all methods are done; one that is over stays
    as it is.

    Args:
        tuning: from :func:`plan`.
        folder: from :func:`fedax.experiments.new_folder`, or that of the same configuration.
        watch: called as ``watch(label, point, seed, row)`` with each row of the histories.
        drawn: whether plots and report are drawn in the end.
        kept: settings of the :class:`fedax.Checkpoints`, but their folder.

    Returns:
        The run folder, read again, and the content of sweep.json. Of the models, those of the best points are written.

    Raises:
        ConfigError: a folder with a link in it, or with files that no run writes.
        CheckpointError: a folder with the sweep of another problem.
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
        record, content = read(folder), json.loads(results.read_text())
    else:
        experiments = [experiment for each in tuning.experiments.values() for experiment in each]
        if (about := begun(folder)) is None:
            begin(folder, config, experiments)
        else:
            own.check_same(folder, about.get("code", {}), experiments[0].code.values())
            check_key(folder, experiments[0])
            keep_rows(folder, ())  # checkpoints have them
        record, content = _tune(tuning, folder, watch, places, drawn, kept)
        write_json(results, content)
    for each in places.values():
        for place in each.values():
            discard_sweep(place)
            with contextlib.suppress(OSError):  # there are others, or it is gone
                place.parent.rmdir()
    return record, content


def _tune(
    tuning: Tuning,
    folder: Path,
    watch: Watch | None,
    places: Mapping[str, Mapping[Seeds, Path]],
    drawn: bool,
    kept: Table,
) -> tuple[Record, Table]:
    """All methods, one after another, and what becomes sweep.json."""
    config = tuning.config
    began, programs, compiled = time.perf_counter(), 0, {}
    for method in config["methods"]:
        label = method["label"]
        swept = _sweep(tuning, folder, method, watch, places[label], kept)
        programs += sum(found.programs for found in swept)
        compiled[label] = sum(run.compile_seconds for found in swept for runs in found.runs for run in runs)
        best = tuning.points[label].index(read(folder).trials(label)[0].point)
        for found in swept:
            for seed, run in zip(found.seeds, found.runs[best], strict=True):
                run.save(model_path(folder, label, seed))
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
    """The seeds that have the same data."""
    run = config["run"]
    return [(seed,) for seed in run["seeds"]] if run["split_seeds"] else [tuple(run["seeds"])]


def _sweep(
    tuning: Tuning, folder: Path, method: Table, watch: Watch | None, places: Mapping[Seeds, Path], kept: Table
) -> list[fedax.Sweep]:
    """One method at all its points with all seeds: at once, or where each has a split of its own, one by one."""
    label = method["label"]
    experiments, points = tuning.experiments[label], tuning.points[label]

    def make(number: int) -> dict[str, Any]:
        experiment = experiments[number]
        return {
            "algorithm": experiment.methods[label],
            "work": experiment.work,
            "participation": experiment.participation,
            "batch_size": experiment.config["run"].get("batch_size"),
            **{name: experiment.options[name] for name in _OWN if name in experiment.options},
        }

    shared = dict[Any, Any]()
    most = [_ended(experiment, label, shared) for experiment in experiments]

    def on_row(at: dict[str, Any], seed: int, row: dict[str, Any]) -> None:
        point = points[at["number"]]
        append_metrics(folder, label, method["name"], seed, row, point, most[at["number"]])
        if watch is not None:
            watch(label, point, seed, row)

    found, apart = [], ("batch_size", *_OWN)
    for seeds, place in places.items():
        if experiments[0].keeps_noise:
            secret.derive(folder, place, slug(label))
        data, val, test = experiments[0].split(seeds[0])
        assert isinstance(data, fedax.FederatedData)  # real clients need a fleet
        with warnings.catch_warnings():
            for said in (DivergedWarning, BadClientWarning):  # by the table
                warnings.simplefilter("ignore", said)
            swept = fedax.sweep(
                make,
                [{"number": i} for i in range(len(points))],
                experiments[0].task,
                data,
                seeds=seeds,
                callback=on_row,
                val=val,
                test=test,
                checkpoint=fedax.Checkpoints(place, **kept),
                progress=False,
                **{name: value for name, value in experiments[0].options.items() if name not in apart},
            )
        found.append(swept)
    return found


def _ended(experiment: Experiment, label: str, shared: dict[Any, Any]) -> int | None:
    """The round with which a budget of privacy ends a point's runs, where that is before their last one."""
    dp = experiment.options.get("privacy")
    if dp is None or dp.epsilon is None:
        return None
    job = job_of(experiment, label, shared)
    return job.rounds if job.spent else None


def _write_best(tuning: Tuning, record: Record) -> dict[str, list[str]]:
    """Configurations of the best points: one for all methods whose other settings agree; file -> labels."""
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
    """Path -> values; TOML reads ``work.steps = [1, 2]`` without quotation marks as a table in a table."""
    for key, values in grid.items():
        if isinstance(values, Mapping) and values and "low" not in values:
            yield from _flat(values, f"{before}{key}.")
        else:
            yield f"{before}{key}", values


def _axis(path: str, values: Any) -> Axis:
    field = f"sweep.grid.{path}"
    first, *rest = path.split(".")
    if first == "methods":
        if len(rest) < 2 or not all(rest):
            raise ConfigError(
                field, values, "name method and hyper-parameter, such as methods.fedavg.lr or methods.*.lr"
            )
        if rest[1] in ("name", "label"):
            raise ConfigError(field, values, "list another method under [[methods]] instead")
    elif first == "run" and (rest == ["batch_size"] or rest[:1] == ["compress"]) and all(rest):
        pass
    elif path in _FIXED:
        raise ConfigError(field, values, _FIXED[path])
    elif first not in ("work", "participation", "privacy"):
        if first in _FIXED:
            raise ConfigError(field, values, _FIXED[first])
        raise unknown(field, first, ["methods", *_SHARED])
    elif not rest or not all(rest) or (len(rest) > 1 and first != "privacy"):
        example = {"work": "steps", "participation": "size", "privacy": "noise"}[first]
        raise ConfigError(field, values, f"name one setting, such as {first}.{example}")
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


def _spaces(
    sections: ExperimentSection, names: list[str], axes: Mapping[str, Axis], code: own.Code
) -> dict[str, dict[str, Axis]]:
    """Label -> the axes of this method; the axis that names it is taken before that of all methods."""
    found: dict[str, dict[str, Axis]] = {label: {} for label in names}
    known = {label: hyperparameters_of(m, label, code) for label, m in zip(names, sections.methods, strict=True)}
    # The methods' own come first; what names a method replaces what is for all.
    ranks = {path: path.startswith("methods.") + path.startswith("methods.*.") for path in axes}
    for path in sorted(axes, key=lambda path: -ranks[path]):
        axis = axes[path]
        first, who, *rest = path.split(".")
        if first != "methods":
            for space in found.values():
                space[path] = axis
            continue
        matched = [label for label, m in zip(names, sections.methods, strict=True) if who in ("*", m.name, label)]
        if not matched:
            raise unknown(f"sweep.grid.{path}", who, names)
        having = [label for label in matched if rest[0] in known[label]]
        if not having or (who != "*" and having != matched):
            lacking = next(label for label in matched if label not in having)
            raise unknown(f"sweep.grid.{path}", rest[0], known[lacking])
        for label in having:
            found[label][".".join(rest)] = axis
    return found


def _size(axis: Axis) -> int:
    return axis.points if isinstance(axis, fedax.Range) else len(axis)


def _check_number(spaces: Mapping[str, Mapping[str, Axis]], drawn: int | None, given: Table) -> None:
    if drawn is None:
        number = sum(math.prod(map(_size, space.values())) for space in spaces.values())
    else:
        number = drawn * len(spaces)
    if number > MOST_POINTS:
        way_out = f"this makes {number} points of all methods together; at most {MOST_POINTS} are tried"
        raise ConfigError("sweep.grid" if drawn is None else "sweep.points", given if drawn is None else drawn, way_out)


def _points(label: str, space: Mapping[str, Axis], section: SweepSection) -> list[Point]:
    if not space:
        return [{}]
    if section.points is None:
        lists = {name: _values(axis) for name, axis in space.items()}
        points: list[Point] = [{}]
        for name, values in lists.items():
            points = [point | {name: value} for point in points for value in values]
        return points
    combinations = math.prod(math.inf if isinstance(axis, fedax.Range) else len(axis) for axis in space.values())
    if combinations < section.points:
        way_out = f"{label} has only {combinations} combinations; search = 'grid' takes them all"
        raise ConfigError("sweep.points", section.points, way_out)
    drawn = section.points
    while drawn <= 64 * section.points:
        different: dict[str, Point] = {}
        for point in fedax.random_points(space, drawn, section.seed):
            rounded = {name: _round(value, space[name]) for name, value in point.items()}
            different.setdefault(repr(rounded), rounded)
        if len(different) >= section.points:
            return list(different.values())[: section.points]
        drawn *= 2  # the first ones stay as they are
    raise ConfigError("sweep.points", section.points, f"the ranges of {label} are too narrow for so many points")


def _values(axis: Axis) -> list[Any]:
    """The values of an axis of a grid; of a range with as many digits as tell them apart."""
    if not isinstance(axis, fedax.Range):
        return axis
    for digits in (4, 8, 17):
        found = [_round(value, axis, digits) for value in axis.values()]
        if len({*found}) == len(found):
            return found
    raise ConfigError("sweep.grid", axis, "the range is too narrow for so many points")


def _round(value: Any, axis: Axis, digits: int = 4) -> Any:
    """Four digits are enough of what is drawn in a range, and can be copied."""
    return min(max(float(f"{value:.{digits}g}"), axis.low), axis.high) if isinstance(axis, fedax.Range) else value


def _at(tables: Table, row: Table, point: Point) -> Table:
    """The configuration of one method at one point."""
    config = copy.deepcopy(tables | {"methods": [row]})
    # What chooses among parameters comes before them.
    for name in sorted(point, key=lambda name: (name not in SELECTORS, name != "run.compress")):
        path = name if name.split(".")[0] in _SHARED else f"methods.*.{name}"
        put(config, path, copy.deepcopy(point[name]))
    return config


def _judge(section: SweepSection, experiments: list[Experiment]) -> Table:
    """The section's settings with their defaults: by which column points are judged, and which way."""
    first, there = experiments[0].config, columns(experiments)
    run = first["run"]
    methods = [method for each in experiments for method in each.config["methods"]]
    usual = "val_loss" if "val_loss" in there else judge(first | {"methods": methods}, there) or "train_loss"
    criterion = section.criterion or usual
    if criterion not in there:
        raise unknown("sweep.criterion", criterion, there)
    public = next((each.public for each in experiments if each.public is not None), None)
    if public is not None and criterion not in public:
        way_out = (
            "the choice among private runs must not depend on clients' data: name a column of held-out examples that "
            f"belong to no client ({', '.join(set(public) & set(there)) or 'there is none'}), or try settings on other "
            "data first"
        )
        raise ConfigError("sweep.criterion", criterion, way_out)
    way = section.better or better(criterion, experiments[0].task.metrics)
    if way is None:
        raise ConfigError("sweep.better", None, f"the name {criterion} does not tell; give 'lower' or 'higher'")
    evaluations = math.ceil(run["rounds"] / run.get("evaluate_every", math.ceil(run["rounds"] / 50)))
    if section.last > evaluations:
        raise ConfigError("sweep.last", section.last, f"there are only {evaluations} evaluations after the start")
    drawn = {"points": section.points, "seed": section.seed} if section.search == "random" else {}
    return {"criterion": criterion, "better": way, "last": section.last, "search": section.search, **drawn}
