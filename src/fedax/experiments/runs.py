"""A run on disk: what a run folder holds, how it is written and how it is read again.

| file | what |
|---|---|
| config.toml | the whole configuration, defaults included; ``fedax run config.toml`` runs it again |
| about.json | versions, device, start; the clients: sizes, weights, classes, local steps; their tables' columns |
| code/ | own methods and tasks, as they were when the run began |
| noise.key | of private runs the secret of their noise, see :mod:`fedax.engine.secret`; for nobody else to read |
| metrics.jsonl | one line an evaluation, as the run goes |
| checkpoints/ | of runs that are not over, what they go on from; see :class:`fedax.Checkpoints` |
| models/ | the final models, one ``<label>-seed<k>.safetensors`` a run; where asked, the best, ``…-best.safetensors`` |
| clients/ | where each client holds examples out, a table of them a run: ``<label>-seed<k>.csv`` |
| baselines/ | the same of the baselines, ``local-only`` and ``pooled``, where asked |
| summary.json | status and final figures of every method |
| diagnosis.json | what :mod:`fedax.experiments.diagnosis` measured, where asked |
| sweep.json | of a sweep: the figures of every point |
| plots/, report.html | the pictures |
| public.html | where asked, what may be published of private runs |

The configuration of a sweep has a section ``sweep``, and the rows of its metrics.jsonl tell their point.

All files but metrics.jsonl, which only grows, are written whole or not at all. Of a run that begins, config.toml is the
last: a folder without it holds nothing that has to be kept. Models hold a digest of themselves. Nothing in a run folder
may be a link, for what a run writes or removes has to be its own.
"""

import contextlib
import itertools
import json
import math
import os
import pathlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

import filelock
import numpy as np
import pydantic

from fedax.columns import COSTS, PER_CLIENT
from fedax.data import Overview
from fedax.data.formats import parse_json
from fedax.engine import secret
from fedax.engine.checkpoint import WRITING, damage, write_atomic
from fedax.engine.history import FAILED, column_of, ended_worse
from fedax.engine.job import evaluation_rounds
from fedax.engine.patience import Patience
from fedax.engine.private import judged
from fedax.errors import ConfigError, DataError
from fedax.experiments import own, toml
from fedax.experiments.config.sections import WRITTEN, check
from fedax.files import regular, slug

Path = pathlib.Path

LOCK = ".lock"
KEY = secret.FILE
TRACEBACK = "traceback-"  # what the names of files begin with that an unexpected error leaves
FOLDERS = ("models", "plots", "checkpoints", "clients", "baselines", "examples")
_LONGEST_LINE = 1 << 20  # bytes, of metrics.jsonl
_MISSING = {"epsilon": math.inf}  # what stands for null in a row; of all others not-a-number
_OF_A_RUN = ("label", "method", "point", "seed", "status")


@dataclass(frozen=True)
class MethodRun:
    """One method with one seed.

    Attributes:
        label: the method's name in this experiment.
        method: its registered name.
        seed: of initial model, minibatches, cohorts.
        status: ``"finished"``; ``"worse"`` where it ended worse than it began; ``"diverged"``; ``"failed"`` where its
            guard stopped it; or ``"unfinished"`` (the run was stopped, or still goes on).
        spent: whether it ended before its last round, because its budget of privacy was spent.
        history: column -> [evaluations], not-a-number where a value was not finite.
        point: of a sweep, the settings that were tried: hyper-parameters by their name, settings of other sections by
            their path.
    """

    label: str
    method: str
    seed: int
    status: str
    history: dict[str, np.ndarray]
    point: dict[str, Any] = field(default_factory=dict)
    spent: bool = False


@dataclass(frozen=True)
class Trial:
    """One point of a sweep at which all seeds are over.

    Attributes:
        runs: one a seed.
        scores: [seeds] the criterion in the end, not-a-number where the run failed: where it diverged, ended worse than
            it began, or was stopped by its guard.
    """

    runs: list[MethodRun]
    scores: np.ndarray

    @property
    def point(self) -> dict[str, Any]:
        """The settings that were tried."""
        return self.runs[0].point

    @property
    def failed(self) -> int:
        """How many seeds failed."""
        return int(np.isnan(self.scores).sum())

    @property
    def mean(self) -> float:
        """Over the seeds that did not fail."""
        good = self.scores[~np.isnan(self.scores)]
        return float(good.mean()) if good.size else math.nan

    @property
    def std(self) -> float:
        """Sample standard deviation over the seeds that did not fail; not-a-number if there are not two."""
        good = self.scores[~np.isnan(self.scores)]
        return float(good.std(ddof=1)) if good.size > 1 else math.nan


@dataclass(frozen=True)
class Record:
    """A run folder, read.

    Attributes:
        folder: where.
        config: the configuration, as in config.toml.
        about: as in about.json.
        runs: every method with every seed (and of a sweep, at every point) that has begun, in the order in which they
            began.
        diagnosis: as in diagnosis.json, one table a method; empty where there is none.
    """

    folder: Path
    config: dict[str, Any]
    about: dict[str, Any]
    runs: list[MethodRun]
    diagnosis: list[dict[str, Any]]

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self.config["name"]

    @property
    def labels(self) -> list[str]:
        """The methods' labels, in the order of the configuration."""
        return list(dict.fromkeys(run.label for run in self.runs))

    def of(self, label: str) -> list[MethodRun]:
        """All seeds of one method; of a sweep, at its best point, or where none is done, at the first."""
        runs = [run for run in self.runs if run.label == label]
        done = self.trials(label)
        return done[0].runs if done else [run for run in runs if run.point == runs[0].point]

    def trials(self, label: str) -> list[Trial]:
        """The points of a sweep at which all seeds of a method are over, the best first; empty where none was asked.

        Points of which a seed failed come after all others, as in the table of :func:`fedax.sweep`.
        """
        sweep = self.config.get("sweep")
        if sweep is None:
            return []
        points: dict[str, list[MethodRun]] = {}
        for run in self.runs:
            if run.label == label:
                points.setdefault(json.dumps(run.point), []).append(run)
        done = [
            Trial(runs, np.array([_score(run, sweep["criterion"], sweep["last"]) for run in runs]))
            for runs in points.values()
            if len(runs) == len(self.config["run"]["seeds"]) and all(run.status != "unfinished" for run in runs)
        ]
        sign = -1 if sweep["better"] == "higher" else 1
        return sorted(done, key=lambda trial: (math.isnan(trial.mean), trial.failed, sign * trial.mean))


def _score(run: MethodRun, criterion: str, last: int) -> float:
    return math.nan if run.status in FAILED else float(np.mean(run.history[criterion][-last:]))


def new_folder(out: str | Path | None, name: str) -> Path:
    """Make the folder of a run, and try that it can be written to.

    Args:
        out: the folder; it must be new or empty, or hold what is left of a run that ended before it began. ``None``:
            ``runs/<name>-<number>``, the first number that is free.
        name: the experiment's name.

    Raises:
        ConfigError: the folder holds something, or cannot be written to.
    """
    folder = Path("runs") if out is None else Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if out is None:
            folder = _numbered(folder, slug(name))
        if not _unused(folder):
            raise ConfigError("out", str(folder), "this folder is not empty; name another with --out, or empty it")
        for name in FOLDERS:
            (folder / name).mkdir(exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError("out", str(folder), f"cannot write there ({reason}); name another with --out") from error
    return folder


def _numbered(above: Path, name: str) -> Path:
    """Make the folder of the first number that is free, also where another process does so at the same moment."""
    for number in itertools.count(1):
        folder = above / f"{name}-{number}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            break
    return folder


def _unused(folder: Path) -> bool:
    """Whether a folder is empty, or holds only what a run writes before it begins."""
    for path in folder.iterdir():
        if path.is_symlink():
            return False
        if path.name in FOLDERS:
            if not path.is_dir() or any(path.iterdir()):
                return False
        elif path.name in ("about.json", own.FOLDER):
            try:
                known = _json(folder / "about.json", _About).get("code", {})  # else it is somebody's own
            except DataError:
                return False
            if path.name == own.FOLDER and not {each.name for each in path.iterdir()} <= {*known}:
                return False
        elif path.name == "metrics.jsonl":
            if not path.is_file() or path.stat().st_size:
                return False
        elif path.name not in (LOCK, KEY) and not path.name.startswith((WRITING, TRACEBACK)):
            return False
    return True


def refuse_links(folder: Path) -> None:
    """Refuse a run folder in which something that a run writes or removes is a link to elsewhere.

    Raises:
        ConfigError: the first such link.
    """
    files = ("config.toml", "about.json", "metrics.jsonl", "summary.json", "diagnosis.json", LOCK, KEY)
    places = [folder / name for name in (*files, "report.html", "public.html", *FOLDERS, own.FOLDER)]
    if not any(path.is_symlink() for path in places):
        for name in (*FOLDERS, own.FOLDER):
            for above, folders, inside in os.walk(folder / name):
                places += [Path(above) / each for each in (*folders, *inside)]
    for path in places:
        if path.is_symlink():
            raise ConfigError("out", str(path), "this is a link, and a run writes in its own folder only; remove it")


def begun_folder(out: str | Path | None, config: Mapping[str, Any], name: str | None = None) -> Path | None:
    """The folder in which the run of this configuration has begun, if there is one; where it is tracked may differ.

    Args:
        out: the folder; ``None``: the last of ``runs/<name>-<number>`` with this configuration.
        config: the whole configuration, as :func:`fedax.experiments.build` gives it.
        name: of the folders, as :func:`new_folder` was given it; default: the experiment's.

    Raises:
        ConfigError: ``out`` holds the run of another configuration.
    """
    begun = [] if out is None else [Path(out)]
    if out is None:
        first = re.escape(slug(name or config["name"]))
        numbered = ((re.fullmatch(rf"{first}-(\d+)", p.name), p) for p in Path("runs").glob("*"))
        begun = [path for _, path in sorted(((int(m[1]), path) for m, path in numbered if m), reverse=True)]
    wanted = toml.loads(toml.dumps(config).encode())
    for folder in begun:
        if not (folder / "config.toml").exists():
            continue
        differ = list(_differences("", wanted, {**_config(folder / "config.toml"), "track": wanted.get("track")}))
        if not differ:
            return folder
        if out is not None:
            few = "; ".join(differ[:5]) + ("; …" if len(differ) > 5 else "")
            raise ConfigError("out", str(folder), f"it holds another run ({few}); name another folder with --out")
    return None


def _differences(path: str, new: Any, old: Any) -> Iterator[str]:
    if isinstance(new, dict) and isinstance(old, dict):
        for key in dict.fromkeys([*new, *old]):
            yield from _differences(f"{path}.{key}" if path else key, new.get(key), old.get(key))
    elif isinstance(new, list) and isinstance(old, list) and len(new) == len(old):
        for i, (one, other) in enumerate(zip(new, old, strict=True)):
            yield from _differences(f"{path}[{i}]", one, other)
    elif new != old and not (new != new and old != old):  # not-a-number is what a faulty client may send
        yield f"{path} was {old!r}, is {new!r}"


def locked(folder: Path) -> filelock.BaseFileLock:
    """Held while a run writes its folder.

    Raises:
        ConfigError: another process does, or the folder cannot be written to.
    """
    refuse_links(folder)
    lock = filelock.FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise ConfigError("out", str(folder), "another process is writing this run; wait for it, or stop it") from None
    except OSError as error:
        raise ConfigError("out", str(folder), f"cannot write there ({error.strerror or error})") from error
    return lock


def rows_of(folder: Path, config: Mapping[str, Any]) -> dict[tuple[str, int], MethodRun]:
    """The runs in metrics.jsonl, by label and seed; none where it is not there."""
    path, about = folder / "metrics.jsonl", folder / "about.json"
    if not path.exists():
        return {}
    public = _json(about, _About).get("public") if about.exists() else None
    return {(run.label, run.seed): run for run in _runs(path, dict(config), public)}


def keep_rows(folder: Path, over: Collection[tuple[str, int]]) -> None:
    """Leave in metrics.jsonl only the rows of runs that are over, named by label and seed; others are written again."""
    kept = []
    for number, line in _lines(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else ():
        try:
            row = parse_json(line)
            if (row["label"], row["seed"]) in over:
                kept.append(line)
        except (ValueError, LookupError, TypeError) as error:
            raise DataError(f"{folder / 'metrics.jsonl'}, line {number}: not as a run writes it ({error})") from error
    write_atomic(folder / "metrics.jsonl", b"".join(kept))


def remove_unfinished(folder: Path) -> None:
    """Remove what :func:`write_atomic` was writing in a run folder when its process was killed."""
    for place in (folder, *(folder / name for name in FOLDERS)):
        for path in place.glob(f"{WRITING}*"):
            path.unlink()


def model_path(folder: Path, label: str, seed: int, best: bool = False) -> Path:
    """Where the final model of a run is, or its best one."""
    return folder / "models" / f"{slug(label)}-seed{seed}{'-best' * best}.safetensors"


def lost(record: Record) -> list[str]:
    """What a run has written and is not there any more, or not as it was written, as sentences.

    Of the rows of a sweep only those are missed that have later ones.
    """
    run, swept = record.config["run"], "sweep" in record.config
    found: dict[tuple[str, int], list[MethodRun]] = {}
    for each in record.runs:
        found.setdefault((each.label, each.seed), []).append(each)
    over = (record.folder / "summary.json").exists() and not swept
    told = []
    for label in [method["label"] for method in record.config["methods"]]:
        for seed in run["seeds"]:
            path, there = model_path(record.folder, label, seed), found.get((label, seed), [])
            ended = (over or path.is_file()) and not swept
            gaps = [missing_rounds(each, record.config, ended) for each in there]
            rounds = {index for each in gaps or [missing_rounds(None, record.config, ended)] for index in each}
            if rounds:
                told.append(f"{label}, seed {seed}: rows of rounds {few(sorted(rounds))} are missing in metrics.jsonl.")
            if ended and not path.is_file():
                told.append(f"{label}, seed {seed}: its model, {path.name}, is missing.")
            for model in (path, model_path(record.folder, label, seed, best=True)):
                if model.is_file() and (wrong := damage(model)) is not None:
                    told.append(f"{label}, seed {seed}: its model, {model.name}, is {wrong}.")
    return told


def missing_rounds(run: MethodRun | None, config: Mapping[str, Any], over: bool) -> list[int]:
    """The rounds whose rows a run should have and has not.

    Args:
        run: its rows, or ``None`` where there are none.
        config: the whole configuration.
        over: whether it has come to its end; else the rows are all up to its last one.
    """
    asked = config["run"]
    due = [0, *evaluation_rounds(asked["rounds"], asked.get("evaluate_every"))]
    there = set() if run is None else {*run.history["round"].tolist()}
    early = run is not None and run.status != "unfinished"
    last = due[-1] if over and not early else max(there, default=-1)
    return [index for index in due if index <= last and index not in there]


def few(rounds: list[int]) -> str:
    """The first of some rounds, and the last.

    Example:
        >>> few([1, 2]), few([0, 2, 4, 6, 8, 10, 12])
        ('1, 2', '0, 2, 4, 6, 8 … 12')
    """
    return ", ".join(map(str, rounds[:5])) + (f" … {rounds[-1]}" if len(rounds) > 5 else "")


def write_json(path: Path, content: Any) -> None:
    """Strict JSON, atomically: numbers that are not finite become null."""
    write_atomic(path, json.dumps(finite(content), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def finite(content: Any) -> Any:
    """Plain Python values of any nested content, ``None`` for numbers that are not finite.

    Example:
        >>> finite({"loss": float("nan"), "steps": np.arange(2)})
        {'loss': None, 'steps': [0, 1]}
    """
    if isinstance(content, Mapping):
        return {str(k): finite(v) for k, v in content.items()}
    if isinstance(content, np.ndarray | np.generic):
        return finite(content.tolist())
    if isinstance(content, list | tuple):
        return [finite(v) for v in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content


def append_metrics(
    folder: Path,
    label: str,
    method: str,
    seed: int,
    row: Mapping[str, Any],
    point: Mapping[str, Any] | None = None,
    most: int | None = None,
) -> None:
    """Add one evaluation to metrics.jsonl, and see it on its way to the disk.

    ``most``: the round with which a budget of privacy ends the run, where that is before its last one.
    """
    status = "spent" if row["round"] == most else "ok"
    status = status if math.isfinite(row["train_loss"]) else "diverged"
    at = {} if point is None else {"point": point}
    line = finite({"label": label, "method": method, **at, "seed": seed, "status": status, **row})
    with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")


def begun(folder: Path) -> dict[str, Any] | None:
    """The about.json of a run that has begun in a folder, or ``None`` where none has.

    Raises:
        ConfigError: one has, and about.json is lost.
        DataError: it cannot be read.
    """
    if not (folder / "config.toml").exists():
        return None
    if (folder / "about.json").exists():
        return _json(folder / "about.json", _About)
    rows = folder / "metrics.jsonl"
    if (rows.exists() and rows.stat().st_size) or any(any((folder / name).glob("*")) for name in FOLDERS):
        way_out = "its about.json is lost, which tells what the run was made of; restore it, or name another folder"
        raise ConfigError("out", str(folder), way_out)
    return None


def read(folder: str | Path) -> Record:
    """Read a run folder; the run may have been stopped half-way, or still go on.

    Raises:
        ConfigError: no run folder, or one without a single evaluation.
        DataError: a file of it that cannot be read, or holds what no run writes.
    """
    folder = Path(folder)
    try:
        for file in ("config.toml", "about.json", "metrics.jsonl"):
            if not (folder / file).is_file():
                way_out = f"no run folder, for it has no {file}; name one that fedax run wrote"
                raise ConfigError("run", str(folder), way_out)
        config = _config(folder / "config.toml")
        about = _json(folder / "about.json", _About)
        found = folder / "diagnosis.json"
        diagnosis = _json(found, _Diagnoses)["methods"] if found.exists() else []
        runs = _runs(folder / "metrics.jsonl", config, about.get("public"))
    except OSError as error:
        raise ConfigError("run", str(folder), f"cannot be read ({error.strerror})") from error
    if not runs:
        lost = any((folder / "models").glob("*.safetensors"))
        way_out = "its rows are lost, for it has models; --resume makes them again"
        way_out = way_out if lost else "it has no evaluation yet; wait for the first, or run it again"
        raise ConfigError("run", str(folder), way_out)
    return Record(folder, config, about, runs, diagnosis)


def _config(path: Path) -> dict[str, Any]:
    regular(path)
    try:
        config = toml.loads(path.read_bytes())
        sections = check(config, WRITTEN)
    except ValueError as error:
        raise DataError(f"{path}: no configuration of a run: {error}") from error
    if sections.sweep is not None:
        if sections.sweep.search == "random" and "seed" not in config["sweep"]:
            raise DataError(f"{path}: no configuration of a run: sweep.seed is missing")
        for name, values in sections.sweep.grid.items():
            section, _, key = name.partition(".")
            ends = isinstance(values, dict) and {"low", "high"} <= {*values}
            known = section in ("methods", "work", "participation", "run", "privacy")
            if not (key and known and (ends or isinstance(values, list))):
                raise DataError(f"{path}: no configuration of a run: sweep.grid.{name[:100]!r} is no axis")
            if not values:
                raise DataError(f"{path}: no configuration of a run: sweep.grid.{name[:100]!r} has no values")
    return config


def _json(path: Path, form: type[pydantic.BaseModel]) -> dict[str, Any]:
    regular(path)
    try:
        content = parse_json(path.read_bytes())
        toml.check_plain(content)
        form.model_validate(content)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))[:100]
        raise DataError(f"{path}: not as a run writes it: {place!r}: {first['msg'][:200]}") from None
    except ValueError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    return content


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    left, number = regular(path), 0  # what is written meanwhile is left for the next time
    with path.open("rb") as file:
        # The last line of a run that was killed may be half written.
        while (line := file.readline(min(left, _LONGEST_LINE))).endswith(b"\n"):
            left, number = left - len(line), number + 1
            yield number, line
    if len(line) == _LONGEST_LINE:
        raise DataError(f"{path}, line {number + 1}: longer than {_LONGEST_LINE} bytes; no run writes that")


def _runs(path: Path, config: dict[str, Any], public: list[str] | None) -> list[MethodRun]:
    labels, seeds = {method["label"] for method in config["methods"]}, {*config["run"]["seeds"]}
    sweep = config.get("sweep")
    rows: dict[tuple[str, str, int], tuple[dict[str, Any], list[str], list[tuple]]] = {}
    axes: dict[str, set[str]] = {}
    for number, line in _lines(path):
        try:
            row = parse_json(line)
            toml.check_plain(row)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: not JSON ({error})") from error
        if wrong := _wrong(row, labels, seeds, sweep):
            raise DataError(f"{path}, line {number}: {wrong}; no run writes that")
        at = (row["label"], json.dumps(row.get("point")), row["seed"])
        columns = [name for name in row if name not in _OF_A_RUN]
        first, names, values = rows.setdefault(at, (row, columns, []))
        if names != columns or axes.setdefault(at[0], {*row.get("point", ())}) != {*row.get("point", ())}:
            raise DataError(f"{path}, line {number}: other columns than in the rows before; no run writes that")
        if values and row["round"] <= values[-1][names.index("round")]:
            raise DataError(f"{path}, line {number}: a round that was there before; no run writes that")
        values.append(tuple(_MISSING.get(name, math.nan) if row[name] is None else row[name] for name in names))
        first["status"] = row["status"]
    runs = []
    for first, names, values in rows.values():
        history = {name: column_of(each) for name, each in zip(names, zip(*values, strict=True), strict=True)}
        spent = first["status"] == "spent"
        status = "diverged" if first["status"] == "diverged" else _status(history, config["run"], spent, public)
        of = first["label"], first["method"], first["seed"]
        runs.append(MethodRun(*of, status, history, first.get("point", {}), spent))
    return runs


def _status(history: dict[str, np.ndarray], run: dict[str, Any], spent: bool, public: list[str] | None) -> str:
    """Of a run whose loss is finite.

    Args:
        history, run: its own, and the section of the configuration.
        spent: whether its budget of privacy has ended it.
        public: of a private run the columns that tell nothing of clients, else ``None``.
    """
    guard = run.get("guard")
    if isinstance(guard, dict) and guard.get("stop") and history.get("left_out", [0])[-1]:
        return "failed"
    if history["round"][-1] != run["rounds"] and not spent and not _stopped(history, run):
        return "unfinished"
    judge = judged(history, public)
    return "worse" if judge is not None and ended_worse(history[judge]) else "finished"


def _stopped(history: dict[str, np.ndarray], run: dict[str, Any]) -> bool:
    """Whether a run ended with its last row because nothing got better."""
    if (asked := run.get("patience")) is None:
        return False
    waiting = Patience(**(asked if isinstance(asked, dict) else {"evaluations": asked})).fresh()
    if waiting.asked.column not in history:
        return False
    found = [waiting({waiting.asked.column: value}) for value in history[waiting.asked.column].tolist()]
    return found[-1]


def _wrong(row: Any, labels: set[str], seeds: set[int], sweep: dict[str, Any] | None) -> str | None:
    """What is wrong with a row of metrics.jsonl."""
    if not isinstance(row, dict) or not {"label", "method", "seed", "status", "train_loss", *COSTS} <= {*row}:
        return "a column is missing"
    if not isinstance(row["label"], str) or row["label"] not in labels or not isinstance(row["method"], str):
        return "a method that is not in config.toml"
    if type(row["seed"]) is not int or row["seed"] not in seeds or row["status"] not in ("ok", "diverged", "spent"):
        return "a seed that is not in config.toml, or no status"
    if "point" in row and (sweep is None or not isinstance(row["point"], dict)):
        return "a point, but config.toml has no sweep"
    for name, value in row.items():
        if name in _OF_A_RUN:
            continue
        if name.endswith(PER_CLIENT):
            if not isinstance(value, list) or not all(each is None or type(each) in (int, float) for each in value):
                return f"{name[:100]!r} is no list of numbers"
            continue
        if name == "bad_clients":
            if not isinstance(value, list) or not all(type(id_) is int and id_ >= 0 for id_ in value):
                return f"{name!r} is no list of clients"
            continue
        good = type(value) is int or (type(value) is float and math.isfinite(value))
        never = (name in COSTS and value is None) or (name in (*COSTS, "epsilon") and good and value < 0)
        if not (value is None or good) or never:
            return f"{name[:100]!r} is no number"
    if sweep is not None and sweep["criterion"] not in {*row} - {*_OF_A_RUN}:
        return f"the criterion {sweep['criterion'][:100]!r} is missing"
    return None


Whole = Annotated[int, pydantic.Field(ge=0, lt=2**53)]
Number = Annotated[float, pydantic.Field(allow_inf_nan=False)]


class _Form(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)


class _Steps(_Form):
    draws: Whole
    low: list[Whole]
    mean: list[Annotated[Number, pydantic.Field(ge=0)]]
    high: list[Whole]


class _Clients(_Form):
    names: list[str] | None = None  # of real clients
    sizes: list[Annotated[Whole, pydantic.Field(ge=1)]] = pydantic.Field(min_length=1)
    uniform: bool
    classes: list[str] | None
    counts: list[list[Whole]] | None
    steps: _Steps

    @pydantic.model_validator(mode="after")
    def _fit(self) -> Self:
        clients, classes = len(self.sizes), len(self.classes or ())
        lengths = {len(self.steps.low), len(self.steps.mean), len(self.steps.high)}
        if self.counts is not None:
            lengths.add(len(self.counts))
            if not classes or {*map(len, self.counts)} != {classes}:
                raise ValueError("counts must have a number for each client and class")
        if lengths != {clients}:
            raise ValueError("steps and counts must have a row for each client")
        return self


class _Majority(_Form):
    class_: str = pydantic.Field(alias="class")
    accuracy: Number
    f1: Number
    auc: Number


class _Drawn(_Form):
    rate: Number | None
    places: Whole | None
    cohort: Whole | None
    apart: Whole


class _Outlook(_Form):
    relation: str
    accountant: str
    exchanges: Whole
    warmup: Whole
    rounds: Whole
    epsilon: Number | None  # none: infinite
    one: Number | None
    drawn: _Drawn | None = None


def _overview(table: dict[str, Any]) -> dict[str, Any]:
    return Overview.from_json(table).to_json()


class _About(_Form):
    privacy: dict[str, _Outlook] | None = None  # label -> what was known of its privacy before it began; not of a sweep
    public: list[str] | None = None  # of private runs the columns that tell nothing of clients
    majority: _Majority | None = None  # of two classes, what the commoner one alone has
    made_of: dict[str, dict[str, str]] | None = None  # label -> what makes its runs; not of a sweep
    code: dict[str, str] = {}  # file -> its digest
    id: str | None = None  # by which trackers know the run again
    started: str
    device: str
    versions: dict[str, str]
    parameters: Whole
    clients: _Clients
    columns: Annotated[dict[str, Any], pydantic.AfterValidator(_overview)] | None = None  # of tables, by client


class _Point(_Form):
    smoothness: Number | None
    objective_smoothness: Number | None
    variance: Number | None
    dissimilarity: Number | None
    gradient: Number | None
    surrogate_gradient: Number | None
    move: Number | None = None
    bias: Number | None = None
    noise: Number | None = None
    cohort_noise: Number | None = None
    left: Number | None = None
    inconsistency_cost: Number | None = None
    drift_cost: Number | None = None
    noise_cost: Number | None = None
    cohort_cost: Number | None = None


class _Diagnosis(_Form):
    label: str
    models: list[str] = pydantic.Field(min_length=1)
    steps: list[Whole] = pydantic.Field(min_length=2, max_length=2)
    points: list[_Point] = pydantic.Field(min_length=1)
    constant: Number | None
    line: list[Number | None] = pydantic.Field(min_length=2, max_length=2)
    weights: Any
    chi2: Number | None
    floor: Number | None
    lr: Number | None
    max_lr: Number | None
    loosest_lr: Number | None = None
    weight_square: Number | None = None
    gained: Number | None = None
    verdict: str = ""
    take: str = ""
    advice: list[str]
    unknown: list[str]


class _Diagnoses(_Form):
    methods: list[_Diagnosis]
