"""What breaks the rules of a study, and choices that another way to choose might turn around."""

import json
from collections.abc import Sequence

from fedax.experiments.config.sections import Table, seeds_of
from fedax.experiments.runs import Path, finite, read
from fedax.experiments.study.parts import Part, Study, accepted, close, grid_of, held_of, short
from fedax.experiments.study.results import results_of

MORE = 1.5  # times the runs of another method: more than grids of four or five equal ones differ by that grow


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
                    scores = {json.dumps(trial.point): short(finite(trial.mean)) for trial in trials}
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
        while not grid_of(origin[label], label) or origin[label].section.tune is None:
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
    outside = [row["point"] for row in table if not accepted(part, label, row["point"])]
    if outside:
        points = "; ".join(map(_written, outside))
        found.append(f"{part.name}: {label}: points that the method refuses were tried ({points}).")
    row = part.row(label)
    if (
        isinstance(row.get("c"), int | float)
        and "lr" in best["point"]
        and "c" not in {*held_of(part, label), *best["point"]}
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
