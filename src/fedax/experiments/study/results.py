"""The results of a study: one line for each finished job, and the record of a part made of them."""

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedax.errors import DataError
from fedax.experiments.config.sections import Table, seeds_of
from fedax.experiments.runs import (
    SEAL,
    AnyTable,
    MethodRun,
    Path,
    Record,
    finite,
    read,
    read_json,
    unsealed,
    write_json,
)
from fedax.experiments.study.parts import Study, StudyJob, StudyPart, short
from fedax.files import damage, has_digest, seal, with_digest, write_atomic


def results_of(folder: Path) -> dict[str, Table]:
    """All lines of results of a study, by the key of their job; errors as of :func:`lines_of`."""
    return {line["key"]: line for _, line in lines_of(folder)}


def lines_of(folder: Path) -> Iterator[tuple[str, Table]]:
    """All lines of results of a study, each with the name of its part.

    Raises:
        DataError: a line that no study wrote, or a file of what the runs of a part share that is missing or damaged.
    """
    for path in sorted((folder / "results").glob("*.jsonl")):
        has_runs = False
        for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
            try:
                row = json.loads(line)
                key = row["key"]
                if has_digest(line) and (wrong := damage(line, key)) is not None:
                    raise ValueError(wrong)
                found = unsealed(row)
                has_runs |= "seed" in found
                if "history" in found:
                    found["history"] = _all_columns(found["history"])
            except (ValueError, LookupError, TypeError) as error:
                raise DataError(f"{path}, line {number}: not as a study writes it ({error})") from error
            yield path.stem, found
        if has_runs:
            _read_shared(path.with_suffix(".json"))


def keep(folder: Path, job: StudyJob) -> Table:
    """Make the line of a finished job from its run folder, and append it to the part's results."""
    record = read(folder / "jobs" / job.key / "run")
    seconds = float((folder / "jobs" / job.key / "seconds.txt").read_text())
    line: Table = {"key": job.key, "label": job.label, "seconds": round(seconds)}
    line |= {"versions": record.about["versions"], "device": record.about["device"]}
    if job.seed is None:
        swept = read_json(record.folder / "sweep.json", AnyTable)
        (method,) = swept["methods"]
        line |= {"better": swept["better"], "criterion": swept["criterion"], "last": swept["last"]}
        line |= {"rounds": record.config["run"]["rounds"], "tuned_with": record.config["run"]["seeds"]}
        line["points"] = [
            {"point": row["point"], "mean": short(row["mean"]), "failed": row["failed"], "seeds": short(row["seeds"])}
            for row in method["table"]
        ]
    else:
        (run,) = record.runs
        line |= {"method": run.method, "seed": run.seed, "status": run.status, "settings": record.config["methods"][0]}
        line["settings"].pop("label")
        line["history"] = {name: short(finite(values)) for name, values in run.history.items()}
        line["history"]["seconds"] = short(line["history"]["seconds"], 3)
        _keep_shared(folder, job.part, record)
    path = folder / "results" / f"{job.part}.jsonl"
    before = path.read_bytes() if path.exists() else b""
    stored = line | ({"history": _a_round(line["history"])} if "history" in line else {})
    sealed = finite(stored | seal(job.key))
    text = json.dumps(sealed, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    write_atomic(path, before + with_digest(text.encode() + b"\n"))
    return line


def _a_round(history: Table) -> Table:
    """A history in which a count that grows by the same number in every round is that number alone."""
    rounds = history["round"]

    def stored(name: str, values: list[Any]) -> list[Any] | int:
        if name == "round" or not values or not rounds[-1] or not isinstance(values[-1], int):
            return values
        each = values[-1] // rounds[-1]
        return each if values == [each * done for done in rounds] else values

    return {name: stored(name, values) for name, values in history.items()}


def _all_columns(history: Table) -> Table:
    """The history that :func:`_a_round` made smaller."""
    return {
        name: [values * done for done in history["round"]] if isinstance(values, int) else values
        for name, values in history.items()
    }


def floats(history: Table) -> dict[str, np.ndarray]:
    """The columns of a history; what was not finite is not-a-number."""
    return {name: np.array([math.nan if x is None else x for x in values]) for name, values in history.items()}


def _read_shared(path: Path) -> Table:
    """What :func:`_keep_shared` wrote."""
    try:
        content = path.read_bytes()
        shared: Table = json.loads(content)
        if has_digest(content) and (wrong := damage(content, path.name)) is not None:
            raise ValueError(wrong)
        return {"config": {**shared["config"]}, "about": {**shared["about"]}}
    except (OSError, ValueError, LookupError, TypeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        hint = f"bring it back, or delete {path.with_suffix('.jsonl').name} to run the part again"
        raise DataError(f"{path}: what the runs of a part share cannot be read ({why}); {hint}") from error


def _keep_shared(folder: Path, part: str, record: Record) -> None:
    """Write what the runs of a part share, as one of them has it."""
    shared = {name: section for name, section in record.config.items() if name != "methods"}
    of_one_run = ("made_of", "versions", "device", "id", "run", *SEAL)
    about = {name: value for name, value in record.about.items() if name not in of_one_run}
    write_json(folder / "results" / f"{part}.json", {"config": shared, "about": about}, indent=None)


def in_order(study: Study, folder: Path) -> None:
    """Sort the results of each part by method, tuning before runs, and seed, whatever came first."""
    for name, part in study.parts.items():
        path = folder / "results" / f"{name}.jsonl"
        if not path.exists():
            continue
        labels = {label: number for number, label in enumerate(part.labels)}
        lines = [(json.loads(line), line) for line in path.read_bytes().splitlines(keepends=True)]
        lines.sort(key=lambda pair: (labels.get(pair[0]["label"], -1), "seed" in pair[0], pair[0].get("seed", 0)))
        write_atomic(path, b"".join(line for _, line in lines))
        *_, last = [row["key"] for row, _ in lines if "seed" in row] or [""]
        if last and (run := folder / "jobs" / last / "run").is_dir():
            _keep_shared(folder, name, read(run))


def record_of(study: Study, part: StudyPart, folder: Path) -> Record | None:
    """The results of a part as the record of one run, for tables and reports; ``None`` before the first result."""
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
            versions = line["versions"]
            devices.add(line["device"])
            runs.append(MethodRun(label, line["method"], seed, line["status"], floats(line["history"])))
            if label not in [row["label"] for row in rows]:
                rows.append({"label": label, **line["settings"]})
    if not runs:
        return None
    shared = _shared(study, part, folder)
    shared["config"]["run"]["seeds"] = list(dict.fromkeys(run.seed for run in runs))
    about = shared["about"] | {"versions": versions, "device": ", ".join(sorted(devices))}
    return Record(folder / part.name, shared["config"] | {"methods": rows}, about, runs, [])


def _shared(study: Study, part: StudyPart, folder: Path) -> Table:
    """The configuration and facts that the runs of a part share; perhaps stored for another part with the same runs."""

    def problem(part: StudyPart) -> Table:
        return {name: section for name, section in part.config.items() if name not in ("name", "methods", "sweep")}

    same_problem = [each.name for each in study.parts.values() if problem(each) == problem(part)]
    paths = [folder / "results" / f"{name}.json" for name in (part.name, *same_problem)]
    return _read_shared(next((path for path in paths if path.exists()), paths[0]))
