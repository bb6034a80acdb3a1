"""Run folders read again: the runs with their rows, and what is lost of them."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fedax.columns import COSTS, PER_CLIENT, TIME, heard_enough
from fedax.data.formats import parse_json
from fedax.engine.checks import evaluation_rounds
from fedax.engine.history import Row, column_of, ended_worse
from fedax.engine.private import judged
from fedax.errors import ConfigError, DataError
from fedax.experiments import toml
from fedax.experiments.named import check_named
from fedax.experiments.runs.files import (
    SEAL,
    About,
    Diagnoses,
    RunSummary,
    doubt,
    lines_of,
    read_config,
    read_json,
    row_of,
    run_of,
    said,
)
from fedax.experiments.runs.folder import model_path
from fedax.experiments.runs.record import MethodRun, Path, Record
from fedax.files import damage, has_digest

_NULL_VALUES = {"epsilon": math.inf}  # column -> the value of null in a row; not-a-number for all others
OF_A_RUN = ("label", "method", "point", "seed", "status", *SEAL)
_ENDS = ("spent", "stopped", "worse", "diverged", "failed")  # the statuses of a row that is the last one, else "ok"
_OLD = "An older version of fedax wrote it, without digests: what was edited since is not seen."


def read(folder: str | Path, trust: bool = False) -> Record:
    """Read a run folder; the run may have been stopped, or still be running.

    Args:
        folder: of a run.
        trust: whether what was edited or moved is read all the same; sentences on it are the record's ``doubts``.

    Raises:
        ConfigError: no run folder, or one without any evaluation.
        DataError: a file cannot be read, has content that no run writes, or was edited or moved.
    """
    folder, doubts = Path(folder), list[str]()
    noted = doubts if trust else None
    check_named("run", folder, "run folder")
    try:
        for file in ("config.toml", "about.json", "metrics.jsonl"):
            if not (folder / file).is_file():
                hint = f"no run folder, for it has no {file}; name one that fedax run wrote"
                raise ConfigError("run", str(folder), hint)
        config = read_config(folder / "config.toml")
        about = read_json(folder / "about.json", About, noted)
        if about.get("run", "") not in ("", run_of((folder / "config.toml").read_bytes(), about)):
            doubt(f"{folder / 'config.toml'}: edited, or moved from another run (its digest is another)", noted)
        diagnosis_file = folder / "diagnosis.json"
        diagnosis = read_json(diagnosis_file, Diagnoses, noted)["methods"] if diagnosis_file.exists() else []
        runs = _runs(folder / "metrics.jsonl", config, about, noted)
        rows, were = sum(len(run.history["round"]) for run in runs), at_end(folder, noted).get("rows")
        if "sweep" in config and were not in (None, rows):  # of other runs it is known which rows there have to be
            doubt(f"{folder / 'metrics.jsonl'}: {rows} rows, and the sweep ended with {were}", noted)
        if "sha256" not in about:
            doubts.append(_OLD)
    except OSError as error:
        raise ConfigError("run", str(folder), f"cannot be read ({error.strerror})") from error
    if not runs:
        lost = any((folder / "models").glob("*.safetensors"))
        hint = "its rows are lost, for it has models; --resume makes them again"
        hint = hint if lost else "it has no evaluation yet; wait for the first, or run it again"
        raise ConfigError("run", str(folder), hint)
    return Record(folder, config, about, runs, diagnosis, doubts)


def rows_in(lines: bytes) -> Iterator[tuple[dict[str, Any], Row]]:
    """Each row of a metrics.jsonl of runs that are over: all of it, and as a run gave it to its callback."""
    rows = [json.loads(line) for line in lines.splitlines()]
    last = {json.dumps([row["label"], row["seed"], row.get("point")]): number for number, row in enumerate(rows)}
    ends = {*last.values()}
    for number, row in enumerate(rows):
        row |= {name: math.nan for name, value in row.items() if value is None}
        ended = {"ok": "finished", "spent": "stopped"}.get(row["status"], row["status"])
        columns = {name: value for name, value in row.items() if name not in OF_A_RUN}
        yield row, Row(columns, ended if number in ends else None)


def rows_of(folder: Path, config: Mapping[str, Any]) -> dict[tuple[str, int], MethodRun]:
    """The runs in metrics.jsonl, by label and seed; empty if the file is missing.

    Raises:
        DataError: a row that no run writes, or that was edited or moved.
    """
    path, about = folder / "metrics.jsonl", folder / "about.json"
    if not path.exists():
        return {}
    known = read_json(about, About) if about.exists() else {}
    return {(run.label, run.seed): run for run in _runs(path, dict(config), known)}


def lost(record: Record) -> list[str]:
    """Sentences about rows, models and other files of a run that are missing, damaged or moved.

    Of a sweep, rows of single runs count as missing only if later rows of the same run exist.
    """
    run, swept = record.config["run"], "sweep" in record.config
    runs: dict[tuple[str, int], list[MethodRun]] = {}
    for method_run in record.runs:
        runs.setdefault((method_run.label, method_run.seed), []).append(method_run)
    over, sentences = (record.folder / "summary.json").exists() and not swept, [*record.doubts]
    for label in [method["label"] for method in record.config["methods"]]:
        for seed in run["seeds"]:
            path, runs_of_seed = model_path(record.folder, label, seed), runs.get((label, seed), [])
            ended = (over or path.is_file()) and not swept
            gaps = [missing_rounds(method_run, record.config, ended) for method_run in runs_of_seed]
            rounds = {
                index for method_run in gaps or [missing_rounds(None, record.config, ended)] for index in method_run
            }
            if rounds:
                sentences.append(
                    f"{label}, seed {seed}: rows of rounds {few(sorted(rounds))} are missing in metrics.jsonl."
                )
            if ended and not path.is_file():
                sentences.append(f"{label}, seed {seed}: its model, {path.name}, is missing.")
            files = {path: "model", model_path(record.folder, label, seed, best=True): "model"}
            files |= {record.folder / "examples" / path.name: "values of held-out examples"}
            files |= {record.folder / "classes" / path.name: "decisions for held-out examples"}
            for file, what in files.items():
                if file.is_file() and (wrong := damage(file, said(record.folder, file))) is not None:
                    sentences.append(f"{label}, seed {seed}: its {what}, {file.name}, is {wrong}.")
    return sentences


def at_end(folder: Path, doubts: list[str] | None = None) -> dict[str, Any]:
    """What summary.json says of the other files: how many rows there are, and digests of tables.

    ``doubts``: as of :func:`read_json`.
    """
    path = folder / "summary.json"
    return read_json(path, RunSummary, doubts) if path.is_file() else {}


def missing_rounds(run: MethodRun | None, config: Mapping[str, Any], over: bool) -> list[int]:
    """The rounds whose rows are missing from a run.

    Args:
        run: its rows, or ``None`` if there are none.
        config: the whole configuration.
        over: whether the run has ended; if not, only rows up to its last one are expected.
    """
    settings = config["run"]
    due = [0, *evaluation_rounds(settings["rounds"], settings.get("evaluate_every"))]
    present = set() if run is None else {*run.history["round"].tolist()}
    early = run is not None and run.status != "unfinished"
    last = due[-1] if over and not early else max(present, default=-1)
    return [index for index in due if index <= last and index not in present]


def few(rounds: list[int]) -> str:
    """A short list of rounds: the first ones and the last.

    Example:
        >>> few([1, 2]), few([0, 2, 4, 6, 8, 10, 12])
        ('1, 2', '0, 2, 4, 6, 8 … 12')
    """
    return ", ".join(map(str, rounds[:5])) + (f" … {rounds[-1]}" if len(rounds) > 5 else "")


def _runs(
    path: Path, config: dict[str, Any], about: Mapping[str, Any], doubts: list[str] | None = None
) -> list[MethodRun]:
    """The runs in a file of rows, by method and seed as in the configuration; ``doubts`` as of :func:`read_json`."""
    told = "better" in about  # version 0.9 did not write how a run ended, nor this
    of = row_of(path.parent)
    labels, seeds = {method["label"] for method in config["methods"]}, {*config["run"]["seeds"]}
    sweep = config.get("sweep")
    rows: dict[tuple[str, str, int], tuple[dict[str, Any], list[str], list[tuple]]] = {}
    axes: dict[str, set[str]] = {}
    for number, line in lines_of(path):
        try:
            row = parse_json(line)
            toml.check_plain(row)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: not JSON ({error})") from error
        if (has_digest(line) or of) and (wrong := damage(line, of)) is not None:
            doubt(f"{path}, line {number}: {wrong}", doubts)
        if wrong := _error_in(row, labels, seeds, sweep):
            raise DataError(f"{path}, line {number}: {wrong}; no run writes that")
        key = (row["label"], json.dumps(row.get("point")), row["seed"])
        columns = [name for name in row if name not in OF_A_RUN]
        first, names, values = rows.setdefault(key, (row, columns, []))
        if names != columns or axes.setdefault(key[0], {*row.get("point", ())}) != {*row.get("point", ())}:
            raise DataError(f"{path}, line {number}: other columns than in the rows before; no run writes that")
        if values and first["status"] in _ENDS:
            raise DataError(f"{path}, line {number}: a row after the end; no run writes that")
        if values and row["round"] <= values[-1][names.index("round")]:
            raise DataError(f"{path}, line {number}: a round that was there before; no run writes that")
        values.append(tuple(_NULL_VALUES.get(name, math.nan) if row[name] is None else row[name] for name in names))
        first["status"] = row["status"]
    runs = []
    for first, names, values in rows.values():
        history = {name: column_of(each) for name, each in zip(names, zip(*values, strict=True), strict=True)}
        spent = first["status"] == "spent"
        who = first["label"], first["method"], first["seed"]
        status = {"stopped": "finished"}.get(first["status"], first["status"])
        if status in ("ok", "spent"):
            last = path.parent / "summary.json" if sweep else model_path(path.parent, first["label"], first["seed"])
            over = spent or (not told and last.is_file())  # what is written when all else is
            status = _status(history, config, over, about.get("public"))
        runs.append(MethodRun(*who, status, history, first.get("point", {}), spent))
    order = [method["label"] for method in config["methods"]], config["run"]["seeds"]
    # Of a sweep the points have the order of their rows.
    return sorted(runs, key=lambda run: (order[0].index(run.label), 0 if sweep else order[1].index(run.seed)))


def _status(history: dict[str, np.ndarray], config: dict[str, Any], over: bool, public: list[str] | None) -> str:
    """The status of a run whose last row does not tell: it goes on, or came to its last round, or spent its budget.

    Args:
        history, config: the history, and the whole configuration.
        over: whether it is known to have ended.
        public: the columns of a private run that reveal nothing about clients; else ``None``.
    """
    run, guard = config["run"], config["run"].get("guard")
    if history["round"][-1] != run["rounds"] and not over:
        return "unfinished"
    late = config["work"]["kind"] == "deadline"  # who misses it is left out, and no guard minds
    if isinstance(guard, dict) and guard.get("stop") and history.get("left_out", [0])[-1] and not late:
        return "failed"
    judge = judged(history, public)
    counted = np.broadcast_to(heard_enough(history, run.get("min_heard") or 1.0), history["round"].shape)
    return "worse" if judge is not None and counted.any() and ended_worse(history[judge][counted]) else "finished"


def _error_in(row: Any, labels: set[str], seeds: set[int], sweep: dict[str, Any] | None) -> str | None:
    """What is wrong with a row of metrics.jsonl; ``None``: nothing."""
    if not isinstance(row, dict) or not {"label", "method", "seed", "status", *COSTS} <= {*row}:
        return "a column is missing"
    if not isinstance(row["label"], str) or row["label"] not in labels or not isinstance(row["method"], str):
        return "a method that is not in config.toml"
    if type(row["seed"]) is not int or row["seed"] not in seeds or row["status"] not in ("ok", *_ENDS):
        return "a seed that is not in config.toml, or no status"
    if "point" in row and (sweep is None or not isinstance(row["point"], dict)):
        return "a point, but config.toml has no sweep"
    for name, value in row.items():
        if name in OF_A_RUN:
            continue
        if name.endswith(PER_CLIENT):
            if not isinstance(value, list) or not all(item is None or type(item) in (int, float) for item in value):
                return f"{name[:100]!r} is no list of numbers"
            continue
        if name == "bad_clients":
            if not isinstance(value, list) or not all(type(id_) is int and id_ >= 0 for id_ in value):
                return f"{name!r} is no list of clients"
            continue
        good = type(value) is int or (type(value) is float and math.isfinite(value))
        never = (name in (*COSTS, TIME) and value is None) or (name in (*COSTS, TIME, "epsilon") and good and value < 0)
        if not (value is None or good) or never:
            return f"{name[:100]!r} is no number"
    if sweep is not None and sweep["criterion"] not in {*row} - {*OF_A_RUN}:
        return f"the criterion {sweep['criterion'][:100]!r} is missing"
    return None
