"""Checks of a study: broken rules, and choices that another way of choosing might reverse."""

import itertools
import json
import math
from collections.abc import Sequence
from typing import Any

from fedax.experiments.config.codec import hyperparameters_of
from fedax.experiments.config.sections import MethodSection, Table, seeds_of
from fedax.experiments.own import code_of
from fedax.experiments.runs import Path, finite, read
from fedax.experiments.study.parts import Study, StudyPart, accepted, close, held_of, short
from fedax.experiments.study.results import results_of

WIDE, NEAR = 10 / 3, 2.0  # the largest ratio of neighbouring rates; of those next to the best
MORE = 1.5  # the largest fair ratio of tuning runs: extended grids of four or five values differ by less


def faults(study: Study, folder: Path) -> list[str]:
    """Sentences about broken rules of a study; empty if there are none.

    The rules: no choice by test data; no seed both for tuning and for results; no result at settings that were not
    chosen; scores equal to the rows of the run folders, where these still exist. The findings of :func:`unsure` are
    included, except for parts that are marked as provisional, and those of :func:`holes` that a part does not name.
    """
    sentences = []
    study.results = results_of(folder)
    expected: set[str] = set()
    for part in study.parts.values():
        seeds = {*seeds_of("run.seeds", part.config["run"].get("seeds", 1))}
        for label in part.labels:
            point, _ = study.choice(part, label)
            expected |= {study.run(part, label, seed, point).key for seed in seeds if point is not None}
            for job in study.choices(part, label):
                expected.add(job.key)
                line = study.results[job.key]
                if line["criterion"].startswith("test"):
                    sentences.append(f"{job.name}: chosen by {line['criterion']}.")
                if both := sorted(seeds & {*line["tuned_with"]}):
                    sentences.append(f"{job.name}: chosen with the seeds {both}, which count.")
                if (run := folder / "jobs" / job.key / "run").exists():
                    trials = read(run).trials(line["label"])  # the label in the part that ran this job first
                    scores = {json.dumps(trial.point): short(finite(trial.mean)) for trial in trials}
                    if scores != {json.dumps(row["point"]): row["mean"] for row in line["points"]}:
                        sentences.append(f"{job.name}: its scores are not those of {run}.")
        if not part.section.provisional:
            sentences += unsure(study, part)
            found, named = holes(study, part), part.section.holes
            for label, which in found.items():
                known = {*named.get(label, [])}
                sentences += [f"{part.name}: {label}: {hole} was not tried." for hole in which if hole not in known]
                gone = [hole for hole in named.get(label, []) if hole not in which]
                sentences += [f"{part.name}: {label}: {hole} is called a hole and is none." for hole in gone]
    sentences += [
        f"{line['label']}, {key}: a result at settings that nobody chose."
        for key, line in study.results.items()
        if key not in expected
    ]
    return sentences


def holes(study: Study, part: StudyPart) -> dict[str, list[str]]:
    """What the grid of each method of a part leaves out; empty lists if nothing.

    - ``"lr 0.005"``: the paper prints this value, and it was neither tried nor is it the one of all runs.
    - ``"lr 0.002 to 0.01"``: a step of a learning rate, from one value that was tried to the next, of more than a
      factor of 3 (grids of 1, 3, 10 count as 3), or of more than 2 next to the best.

    Parts that say nothing of a paper's grid, and methods that are not tuned, have none.
    """
    found: dict[str, list[str]] = {}
    for label in part.labels:
        table = study.tried(part, label)
        if not table or part.section.printed is None:
            continue
        found[label] = []
        printed = _axes_of(part, label, part.section.printed)
        for axis, best in ({axis: part.row(label).get(axis) for axis in printed} | table[0]["point"]).items():
            name, values = axis.removesuffix(".value"), {row["point"].get(axis, best) for row in table}
            tried = sorted(values - {None})
            left = [value for value in printed.get(axis, []) if not any(math.isclose(value, at) for at in tried)]
            found[label] += [f"{name} {value:g}" for value in left]
            if name in ("lr", "server_lr"):
                for low, high in itertools.pairwise(tried):
                    if high / low > 1.001 * (NEAR if best in (low, high) else WIDE):
                        found[label].append(f"{name} {low:g} to {high:g}")
    return found


def _axes_of(part: StudyPart, label: str, grid: Table) -> dict[str, list[Any]]:
    """The axes of one method in a grid; an axis that names it replaces one for all methods."""
    row = part.row(label)
    known = hyperparameters_of(MethodSection(**row), label, code_of(False))
    axes: dict[str, list[Any]] = {}
    for path, values in grid.items():
        section, selector, *rest = path.split(".")
        if section != "methods":
            axes[path] = values
        elif (
            rest[0] in known
            and selector in ("*", row["name"], label)
            and (selector != "*" or ".".join(rest) not in axes)
        ):
            axes[".".join(rest)] = values
    return axes


def unsure(study: Study, part: StudyPart) -> list[str]:
    """Sentences about choices of a part that another, equally good, way of choosing might reverse.

    - Settings chosen on fewer rounds than the runs have, before a learning rate decays that decays in the runs, or on
      another problem.
    - A choice by one seed between two close points.
    - A grid that leaves a method's domain, or along which another restricted quantity changes, as α does with lr.
    - More tuning runs for one method than for another; or lr tuned for some methods only.
    """
    chosen = {label: study.tried(part, label) for label in part.labels}
    origin = dict.fromkeys(part.labels, part)
    for label in part.labels:
        while not origin[label].grids.get(label):
            if (other := origin[label].section.tuned_by) is None or label not in study.parts[other].labels:
                break
            origin[label] = study.parts[other]
        chosen[label] = study.tried(origin[label], label)
    tuned = [label for label in part.labels if chosen[label]]
    if not tuned:
        return []
    about_points: list[str] = []
    on_fewer_rounds: dict[int, list[str]] = {}
    before_decay: list[str] = []
    on_other_problem: dict[str, list[str]] = {}
    rounds = part.config["run"]["rounds"]
    for label in tuned:
        lines = [study.results[job.key] for job in study.choices(origin[label], label)]
        tried = min(line["rounds"] for line in lines)
        if tried < rounds:
            on_fewer_rounds.setdefault(tried, []).append(label)
        falls = [int(at) for value in part.row(label).values() if isinstance(value, dict) for at in value.get("at", {})]
        if falls and min(falls) >= tried:
            before_decay.append(label)
        if _problem(origin[label]) != _problem(part):
            on_other_problem.setdefault(origin[label].name, []).append(label)
        about_points += _unsure_points(part, label, chosen[label])
    shared = []
    for tried, which in on_fewer_rounds.items():
        shared.append(f"{part.name}: chosen on {tried:,} of {rounds:,} rounds ({'; '.join(which)}).")
    if before_decay:
        shared.append(f"{part.name}: a rate falls after the rounds that were tried ({', '.join(before_decay)}).")
    for name, which in on_other_problem.items():
        shared.append(f"{part.name}: chosen on another problem, that of {name} ({'; '.join(which)}).")
    return [*shared, *about_points, *_unequal(study, part, origin, tuned)]


def _unsure_points(part: StudyPart, label: str, table: Sequence[Table]) -> list[str]:
    """The sentences about the points that were tried for one method; ``table``: the best first."""
    sentences, best = [], table[0]
    if len(best["seeds"]) == 1 and close(table):
        one, other = (f"{_point_text(row['point'])} ({row['mean']:.4g})" for row in table[:2])
        sentences.append(f"{part.name}: {label}: {one} is chosen over {other} by one seed.")
    outside = [row["point"] for row in table if not accepted(part, label, row["point"])]
    if outside:
        points = "; ".join(map(_point_text, outside))
        sentences.append(f"{part.name}: {label}: points that the method refuses were tried ({points}).")
    row = part.row(label)
    if (
        isinstance(row.get("c"), int | float)
        and "lr" in best["point"]
        and "c" not in {*held_of(part, label), *best["point"]}
    ):
        sentences.append(f"{part.name}: {label}: alpha, which is c lr², changes along the grid of lr.")
    return sentences


def _unequal(study: Study, part: StudyPart, origin: dict[str, StudyPart], tuned: Sequence[str]) -> list[str]:
    """The sentences about unequal tuning: numbers of runs, and lr tuned for some methods only."""
    sentences, untuned = [], []
    planned, whole = dict[str, int](), dict[str, int]()
    for label in tuned:
        first: dict[str, int] = {}  # point -> number of seeds, without the second try of the two best
        came: dict[str, int] = {}  # point -> the job that tried it first
        for number, job in enumerate(study.choices(origin[label], label)):
            for row in study.results[job.key]["points"]:
                first.setdefault(at := json.dumps(row["point"], sort_keys=True), len(row["seeds"]))
                came.setdefault(at, number)
        grid = origin[label].grids[label]  # as it was planned; where a setting follows lr each point is a job
        of_grid = [at for at in first if all(value in grid[name] for name, value in json.loads(at).items())]
        planned[label] = sum(first[at] for at in of_grid)
        # Where a grid grew on without bringing one of the two best, the choice is the one without that growth.
        two_best = [json.dumps(row["point"], sort_keys=True) for row in study.tried(origin[label], label)[:2]]
        last = max(came[at] for at in two_best)
        whole[label] = sum(first[at] for at in first if came[at] <= last)
    for numbers, limit, suffix in ((planned, 1, ", before grids grew"), (whole, MORE, "")):
        if max(numbers.values()) > limit * min(numbers.values()):
            most, fewest = max(numbers, key=numbers.__getitem__), min(numbers, key=numbers.__getitem__)
            sentences.append(
                f"{part.name}: {numbers[most]} runs chose for {most}, {numbers[fewest]} for {fewest}{suffix}."
            )
            break
    for label in tuned:
        names = {name.split(".")[0] for name in study.tried(origin[label], label)[0]["point"]}
        if "lr" not in names and "lr" in part.row(label):
            untuned.append(label)
    if untuned and len(untuned) < len(tuned):
        sentences.append(f"{part.name}: lr is tuned for other methods, and not for {'; '.join(untuned)}.")
    return sentences


def _problem(part: StudyPart) -> Table:
    """The settings that identify a problem, without methods and rounds."""
    return {name: part.config.get(name) for name in ("data", "task", "work", "participation")} | {
        "batch_size": part.config["run"].get("batch_size")
    }


def _point_text(point: Table) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in point.items())
