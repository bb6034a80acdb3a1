"""Checkpoints of a run, or of several side by side: everything that is needed to continue as if they had never stopped.

A checkpoint is a safetensors file, one for each process, and holds no code: the server's state, the rows of client
memory, and as text the histories, the costs and the identity of the runs. The states of runs side by side have leading
axes [seeds, points], and the models of runs that have ended are there too. Files appear whole or not at all, and hold a
digest of themselves. The best models, where they are asked for, are files of their own.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import os
import pathlib
import re
import struct
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
import safetensors

from fedax.columns import (
    COSTS,
    EXCLUSIONS,
    HEARD,
    PACE,
    TIME,
    TRAFFIC,
    deciding,
    describe,
    heard_enough,
    higher_is_better,
    numbers,
)
from fedax.contract.types import Tree, Unknown
from fedax.contract.vector import tensor_name
from fedax.engine import processes, secret
from fedax.engine.clients import UploadBuffer
from fedax.engine.devices import placed_like
from fedax.engine.evaluate import columns, public_columns
from fedax.engine.fingerprint import differences, same_versions, settings_of, versions
from fedax.engine.job import Job, with_folder_secret
from fedax.engine.loop import State
from fedax.engine.memory import ClientMemory
from fedax.engine.signals import HeldSignals
from fedax.errors import CheckpointError, ConfigError, DamagedWarning, caller_level, unknown
from fedax.files import WRITING, damage, seal, writing
from fedax.numbers import check_count, check_number

_FORMAT = "fedax checkpoint 3"
_ROWS = 2**26  # bytes of client memory that are read at a time
_BEST = re.compile(r"best(-\d+)?\.safetensors")
_NAME = re.compile(r"round-(\d{9})\.(\d+)-of-(\d+)\.safetensors")
_KINDS = {"f": "F", "i": "I", "u": "U"}
_TENSORS = {
    "server": "server",
    "exclusions": "losses",
    "box": "box",
    "memory": "memory",
}  # part of the state -> its name in files
_ALL_DAMAGED = -2  # instead of a round: there are checkpoints, and all of them are damaged
_RESTORE = "restore it, or give another folder"
_START_AGAIN = "remove what is there to begin anew, or give another folder"


@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """Where a run keeps checkpoints, and when it makes them; a run that finds its own there goes on from the newest.

    One is made at the end of a run in any case, and before SIGINT (Ctrl-C), SIGHUP or SIGTERM ends it.

    Args:
        folder: of this run alone; made where it is not there.
        rounds: ≥ 1, a checkpoint after every so many rounds; ``None``: by time only.
        minutes: > 0, a checkpoint when so long has passed since the last one; ``None``: by rounds only.
        keep: how many of the newest stay, ≥ 1. With 2 and more, a run whose newest is damaged goes on from the one
            before.
        best: a column of the history that measures the model, such as ``"val_loss"``, of personal models where there
            are such: the model of the evaluated round at which it was best stays too, in ``best.safetensors``, and is
            the run's ``best``; of equals the first. Asked of a run that goes on, it is the best since then. Of real
            clients it is one of an evaluation in which ``min_heard`` of the weight was heard; where there was none in
            training, none is kept. ``None``: likewise.
        higher: whether higher is better; ``None``: as the metric or the column's name tells (:mod:`fedax.columns`).

    Raises:
        ConfigError: values out of range; by the run, before anything is compiled: no such column as ``best``, or one
            whose name does not tell which way is better, without ``higher``.

    Example:
        >>> Checkpoints("run-1", rounds=100, best="test_accuracy").upwards
        True
    """

    folder: str | os.PathLike[str]
    rounds: int | None = None
    minutes: float | None = 10.0
    keep: int = 2
    best: str | None = None
    higher: bool | None = None

    def __post_init__(self) -> None:
        if isinstance(self.folder, os.PathLike):
            object.__setattr__(self, "folder", os.fspath(self.folder))
        if not isinstance(self.folder, str):
            raise ConfigError("checkpoint.folder", self.folder, "give the path of a folder")
        if self.rounds is not None:
            check_count("checkpoint.rounds", self.rounds)
        if self.minutes is not None:
            check_number("checkpoint.minutes", self.minutes, 0, open_low=True)
        check_count("checkpoint.keep", self.keep)
        if self.best is not None and not isinstance(self.best, str):
            raise ConfigError("checkpoint.best", self.best, "give the name of a column, such as 'test_loss'")
        if self.higher is not None and not isinstance(self.higher, bool):
            raise ConfigError("checkpoint.higher", self.higher, "give True or False")

    @property
    def upwards(self) -> bool:
        """Whether higher is better, as far as the name of the column tells.

        Raises:
            ConfigError: ``higher`` is not given, and the name in ``best`` does not tell.
        """
        return self.upwards_of({})

    def upwards_of(self, metrics: Mapping[str, Unknown]) -> bool:
        """Whether higher is better in runs of a task with these metrics.

        Raises:
            ConfigError: as :attr:`upwards`.
        """
        if self.best is None or self.higher is not None:
            return bool(self.higher)
        return higher_is_better(self.best, "checkpoint.higher", metrics)


class Best(NamedTuple):
    """The model of the round at which a column was best, on the host."""

    round: int
    value: float
    params: Tree


class SavedRun(NamedTuple):
    """A run in a checkpoint: the rows of its history, its costs, its status and, once it has ended, its model."""

    rows: list[dict[str, Unknown]]
    costs: dict[str, Unknown]
    status: str
    model: Tree = None


class Snapshot(NamedTuple):
    """The content of a checkpoint: the state of runs side by side after ``done`` rounds, and the runs so far."""

    state: State
    done: int
    runs: list[SavedRun]


class Checkpointer:
    """Writes and finds the checkpoints of jobs that run side by side; restores the signal handlers when it exits.

    Args:
        wanted: where and when to make checkpoints.
        jobs: one, or seeds × points in this order.
        points: how many points there are of each seed.
        lasting: whether runs can continue from the last checkpoint, with more rounds; else it has the models only.
        places: the number of each job among those with its seed that share a secret; default: all 0.
        key_folder: the folder of the secret of private jobs, see :mod:`fedax.engine.secret`; default: that of the
            checkpoints.

    Attributes:
        jobs: the jobs, private ones with the secret of the folder.
        best: the best model of each job so far, where it is asked for.

    Raises:
        CheckpointError: those in the folder are of other jobs, or all are damaged.
    """

    def __init__(
        self,
        wanted: Checkpoints,
        jobs: Sequence[Job],
        points: int = 1,
        lasting: bool = True,
        places: Sequence[int] | None = None,
        key_folder: str | os.PathLike[str] | None = None,
    ):
        self.wanted, self.job, self.lasting = wanted, jobs[0], lasting
        # The leading axes of states; what is beyond them is padding.
        self._lanes = (len(jobs) // points, points) if len(jobs) > 1 else ()
        self.folder = pathlib.Path(wanted.folder)
        self._held = HeldSignals()
        self._time, self._round = time.monotonic(), 0  # of the last one
        known = [name for name in columns(self.job) if describe(name).kind == "measure"]
        if wanted.best is not None and wanted.best not in (by_number := numbers(known)):
            raise unknown("checkpoint.best", wanted.best, by_number)
        if wanted.best is not None and (public := public_columns(self.job)) is not None and wanted.best not in public:
            hint = "it is measured on clients, and which model was best would tell of them; name a public column"
            raise ConfigError("checkpoint.best", wanted.best, hint)
        self._judge = None if wanted.best is None else deciding(wanted.best, known)
        self._upwards = wanted.upwards_of(self.job.plan.task.metrics)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder, prefix=WRITING):
                pass
            self.jobs = self._with_secrets(jobs, places, pathlib.Path(key_folder or self.folder))
        except OSError as error:
            hint = f"cannot write there ({error.strerror}); give another folder"
            raise ConfigError("checkpoint.folder", str(self.folder), hint) from error
        self._settings = _settings_of_all(self.jobs, points)
        # Checkpoints of another job are refused before anything is compiled.
        self.best = [self._find_best(i) for i in range(len(jobs))]
        self._newest = self._find_newest()

    def _with_secrets(self, jobs: Sequence[Job], places: Sequence[int] | None, folder: pathlib.Path) -> list[Job]:
        """The jobs, private ones with the secret of a folder."""
        if secret.is_drawn(jobs[0].hyper.wire.privacy) and not (folder / secret.FILE).exists() and self._complete():
            raise CheckpointError(f"{folder / secret.FILE}: missing, and the noise cannot go on without it; {_RESTORE}")
        return [
            with_folder_secret(job, folder, place) for job, place in zip(jobs, places or [0] * len(jobs), strict=True)
        ]

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, *error: Unknown) -> None:
        self._held.release()

    @property
    def found(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return self._newest is not None

    def find(self, state: State) -> Snapshot | None:
        """The newest checkpoint that all processes have written and that is not damaged.

        Args:
            state: a state of these jobs; its arrays are replaced.

        Raises:
            CheckpointError: it is of a round after the last of these jobs, or does not fit them.
        """
        if self._newest is None:
            return None
        index, paths = self._newest
        runs, _ = self._runs(paths[0], index)
        dense = [name for name in _TENSORS if self._lanes or name != "memory"]
        with _opened(paths[0]) as file:
            parts = {name: self._state(paths[0], file, _TENSORS[name], self._kept(state, name)) for name in dense}
        if isinstance(state.box, UploadBuffer) and not self._lanes:
            parts["box"] = state.box.filled(parts["box"])
        memory = parts["memory"] if self._lanes else self._memory(state.memory, paths)
        self._time, self._round = time.monotonic(), index
        return Snapshot(State(parts["server"], memory, parts["exclusions"], parts["box"]), index, runs)

    def find_over(self) -> list[SavedRun] | None:
        """The runs, if all were over and the newest checkpoint has no state to continue from.

        Raises:
            CheckpointError: they are to have another number of rounds, or it does not fit these jobs.
        """
        if self._newest is None:
            return None
        index, paths = self._newest
        runs, over = self._runs(paths[0], index)
        if over and index != self.job.rounds and any(run.status == "finished" for run in runs):
            raise CheckpointError(
                f"{paths[0]}: these runs are over, at round {index}, and are to have {self.job.rounds}: "
                "ask for as many as before, or give another folder"
            )
        return runs if over else None

    def _runs(self, path: pathlib.Path, index: int) -> tuple[list[SavedRun], bool]:
        """The runs of a checkpoint after ``index`` rounds, and whether it has no state to continue from."""
        if index > self.job.rounds:
            raise CheckpointError(
                f"{path}: the run was at round {index} already, and is to have {self.job.rounds}: "
                "ask for at least as many, or give another folder"
            )
        with _opened(path) as file:
            meta = self._metadata(path, file, {"runs", "over"})
            runs = []
            for i, run in enumerate(meta["runs"]):
                rows, costs, status = run["rows"], run["costs"], run["status"]
                last = rows[-1]["round"]
                if last > index or (last < index and status != "finished" and not self._lanes):
                    raise CheckpointError(f"{path}: {status} with figures up to round {last}; remove it")
                watched = self.job.plan.watched or self.job.missed is not None
                expected = {"round", *costs, *columns(self.job), *(EXCLUSIONS if watched else ())}
                expected |= {HEARD} if self.job.memory == "nodes" else set()
                expected |= {*PACE} if self.job.pacing is not None else set()
                expected |= {"epsilon"} if self.job.ledger is not None else set()
                if differs := expected ^ rows[0].keys():
                    raise CheckpointError(
                        f"{self.folder}: only one of this run and the one that wrote it has the columns "
                        f"{', '.join(sorted(differs))}: ask for the same test, grad_norm and density, or give another "
                        "folder"
                    )
                model = self._model(path, file, f"model.{i}.") if run.get("ended") else None
                runs.append(SavedRun(rows, costs, status, model))
        return runs, meta["over"]

    def _kept(self, state: State, name: str) -> Tree:
        """A part of a state in the form of files: a single run may go on on other devices."""
        part = getattr(state, name)
        return part.kept() if isinstance(part, UploadBuffer) and not self._lanes else part

    def _state(self, path: pathlib.Path, file: Unknown, name: str, like: Tree) -> Tree:
        """A part of the state, placed like the one that it replaces; padding has copies of the last entry."""
        leaves, form = jax.tree.flatten(like)
        placed = []
        for k, leaf in enumerate(leaves):
            shape = (*self._lanes, *leaf.shape[len(self._lanes) :])
            values = _read(path, file, f"{name}.{k}", shape, leaf.dtype)
            if leaf.shape != shape:
                values = np.pad(
                    values,
                    [(0, size - stored_size) for size, stored_size in zip(leaf.shape, shape, strict=True)],
                    "edge",
                )
            placed.append(placed_like(values, leaf))
        return jax.tree.unflatten(form, placed)

    def _model(self, path: pathlib.Path, file: Unknown, before: str) -> Tree:
        leaves, form = jax.tree_util.tree_flatten_with_path(self.job.form)
        tensors = [_read(path, file, before + tensor_name(at), leaf.shape, leaf.dtype) for at, leaf in leaves]
        return jax.tree.unflatten(form, tensors)

    def _find_newest(self) -> tuple[int, list[pathlib.Path]] | None:
        """The round that :meth:`find` goes on from, and its files.

        Raises:
            CheckpointError: it is another job's, or all are damaged.
        """
        complete = self._complete()
        damaged: dict[int, list[str]] = {}
        index = -1
        if jax.process_index() == 0:
            for index in sorted(complete, reverse=True):
                found = {path: damage(path, path.name) for path in complete[index]}
                problems = [f"{path}: {wrong}" for path, wrong in found.items() if wrong is not None]
                if not problems:
                    break
                damaged[index] = problems
            index = _ALL_DAMAGED if damaged and index in damaged else index
        index, names = int(processes.from_first(np.int32(index))), "; ".join(itertools.chain(*damaged.values()))
        if index == _ALL_DAMAGED:
            raise CheckpointError(f"{names or self.folder}; there is no other one; {_START_AGAIN}")
        if index < 0:
            return None
        if damaged:
            text = f"{len(damaged)} of {len(complete)} checkpoints cannot be used ({names})"
            warnings.warn(
                f"{text}: going on from round {index}, to the same end", DamagedWarning, stacklevel=caller_level()
            )
        paths = complete.get(index, [])
        if not paths:
            raise CheckpointError(f"{self.folder}: process 0 has a checkpoint of round {index} there: share the folder")
        with _opened(paths[0]) as file:
            self._metadata(paths[0], file, set())
        return index, paths

    def hold(self) -> None:
        """From now on, hold signals back until a checkpoint is made."""
        self._held.hold()

    def stop(self, index: int, to: int) -> int:
        """The round at which the next checkpoint is due, at most ``to``."""
        rounds = self.wanted.rounds
        return to if rounds is None else min(to, index + rounds - index % rounds)

    def due(self, index: int) -> bool:
        """Whether a checkpoint is due: by rounds, by the time of the first process, or for a signal to any process."""
        by_time = self.wanted.minutes is not None and time.monotonic() - self._time >= self.wanted.minutes * 60
        reasons = np.append(self._held.votes(), np.int32(by_time and jax.process_index() == 0))
        by_rounds = self.wanted.rounds is not None and index % self.wanted.rounds == 0
        return bool(processes.total(reasons).any() or by_rounds) and index > self._round

    def compare(self, which: int, row: Mapping[str, Unknown], model: Callable[[], Tree]) -> None:
        """Keep the model of job ``which`` at the row, if it is the best so far.

        Raises:
            CheckpointError: it cannot be written; the one before is as it was.
        """
        column, best = self._judge, self.best[which]
        if column is None or not math.isfinite(row[column]) or not heard_enough(row, self.job.min_heard):
            return
        sign = -1 if self._upwards else 1
        if best is not None and sign * row[column] >= sign * best.value:
            return
        # Copies: the next rounds use up what the model may share with the server.
        self.best[which] = best = Best(row["round"], row[column], jax.tree.map(np.array, model()))
        if jax.process_index() == 0:
            about = {"of": [column, self._upwards], "round": best.round, "value": best.value}
            self._write(self._best_path(which), _model_tensors("", best.params), about)

    def save(self, saved: Snapshot) -> None:
        """Write a checkpoint, and remove those that are too old; then handle the signals that were held back.

        Raises:
            CheckpointError: it cannot be written; the newest that is there is named.
        """
        number, process = processes.count(), jax.process_index()
        over = not self.lasting and all(run.model is not None for run in saved.runs)
        tensors = {} if over else self._state_tensors(saved.state)
        runs = []
        for i, run in enumerate(saved.runs):
            ended = run.model is not None and (over or bool(self._lanes))
            tensors |= _model_tensors(f"model.{i}.", run.model) if ended else {}
            runs.append({"status": run.status, "ended": ended, "rows": run.rows, "costs": run.costs})
        path = self.folder / f"round-{saved.done:09}.{process}-of-{number}.safetensors"
        self._write(path, tensors, {"over": over, "runs": runs})
        with self._writing(path):
            if process == 0:
                self._clean(saved.done)
        self._time, self._round = time.monotonic(), saved.done
        self._held.deliver()

    def _state_tensors(self, state: State) -> dict[str, np.ndarray]:
        """The tensors of a state, without padding; for a single job client memory by rows, those of this process."""
        lanes = tuple(slice(0, number) for number in self._lanes)
        tensors: dict[str, np.ndarray] = {}
        for name, stored in _TENSORS.items():
            if name == "memory" and not self._lanes:
                continue
            if self._lanes or jax.process_index() == 0:
                leaves = jax.tree.leaves(self._kept(state, name))
                tensors |= {f"{stored}.{k}": np.asarray(leaf)[lanes] for k, leaf in enumerate(leaves)}
        if self._lanes:
            return tensors
        if isinstance(state.memory, ClientMemory):
            ids, rows = state.memory.kept()
        else:
            rows = [np.asarray(leaf) for leaf in jax.tree.leaves(state.memory)]
            ids = np.arange(self.job.plan.num_clients)
        return tensors | {"ids": ids} | {f"memory.{k}": leaf for k, leaf in enumerate(rows)}

    def _write(self, path: pathlib.Path, tensors: Mapping[str, np.ndarray], about: Mapping[str, Unknown]) -> None:
        meta = {"format": _FORMAT, "versions": versions(), "job": self._settings, **about}
        with self._writing(path):
            write_tensors(path, tensors, json.dumps(meta))

    @contextlib.contextmanager
    def _writing(self, path: pathlib.Path) -> Iterator[None]:
        """Turn a failure to write into an error that says what there is to go on from."""
        try:
            yield
        except OSError as error:
            found: list[pathlib.Path] = []
            with contextlib.suppress(OSError):  # the folder is gone
                if _NAME.fullmatch(path.name):
                    found = [files[0] for files in self._complete().values() if damage(files[0], files[0].name) is None]
                else:
                    found = [path] if path.exists() else []
            left = f"{found[-1]} is there, and whole" if found else "there is no other one"
            raise CheckpointError(f"{path}: cannot be written ({error.strerror}); {left}") from error

    def _clean(self, newest: int) -> None:
        """Remove old and damaged checkpoints, and the unfinished files of a process that was killed."""
        for left in self.folder.glob(f"{WRITING}*"):
            with contextlib.suppress(FileNotFoundError):  # another process is just giving it its name
                if time.time() - left.stat().st_mtime > 3600:
                    left.unlink()
        complete = sorted(index for index in self._complete() if index <= newest)
        oldest = complete[-self.wanted.keep :][0] if complete else 0
        for old in self.folder.iterdir():
            # Those of later rounds are damaged or incomplete: this run continued from an earlier one.
            if (found := _NAME.fullmatch(old.name)) and not oldest <= int(found[1]) <= newest:
                old.unlink(missing_ok=True)

    def _best_path(self, which: int) -> pathlib.Path:
        return self.folder / (f"best-{which}.safetensors" if self._lanes else "best.safetensors")

    def _find_best(self, which: int) -> Best | None:
        """The best model so far, where there is a file of it; it may be of a later round than the checkpoints."""
        path = self._best_path(which)
        if self.wanted.best is None or not path.exists():
            return None
        if (wrong := damage(path, path.name)) is not None:
            raise CheckpointError(f"{path}: {wrong}; remove it to go on, with the best model from then on")
        with _opened(path) as file:
            meta = self._metadata(path, file, {"of", "round", "value"})
            if meta["of"] != [self._judge, self._upwards]:
                return None
            if type(meta["round"]) is not int or type(meta["value"]) is not float or not math.isfinite(meta["value"]):
                raise CheckpointError(f"{path}: best {meta['value']!r} at round {meta['round']!r}; remove it")
            return Best(meta["round"], meta["value"], self._model(path, file, ""))

    def _complete(self) -> dict[int, list[pathlib.Path]]:
        """Round -> the files of its checkpoint, for complete ones, which all their processes have written."""
        files_of: dict[tuple[int, int], dict[int, pathlib.Path]] = {}
        for path in self.folder.iterdir():
            if match := _NAME.fullmatch(path.name):
                index, process, number = map(int, match.groups())
                files_of.setdefault((index, number), {})[process] = path
        whole = [key for key, files in files_of.items() if len(files) == key[1] and max(files) < key[1]]
        return {index: [files_of[index, number][k] for k in range(number)] for index, number in sorted(whole)}

    def _metadata(self, path: pathlib.Path, file: Unknown, wanted: set[str]) -> dict[str, Unknown]:
        """The metadata of a checkpoint; raises if it is another job's."""
        try:
            text = (file.metadata() or {})["fedax"]
            if text.count("[") + text.count("{") > 1000 + len(text) // 16:  # each takes 60 bytes and more
                raise ValueError("too many lists and tables for its length")
            meta: dict[str, Unknown] = json.loads(text)
            if not isinstance(writer := meta["versions"]["fedax"], str):
                raise ValueError(f"version {writer!r}")
            if writer != (version := versions()["fedax"]):
                raise CheckpointError(
                    f"{path}: fedax {writer[:40]} wrote it, and reads it; this is fedax {version}: go on with that "
                    "version, or give another folder"
                )
            if meta["format"] != _FORMAT or not isinstance(was := meta["job"], dict) or not wanted <= meta.keys():
                raise ValueError(f"format {meta['format']!r}")
            same = same_versions(meta["versions"])
            differs = differences(was, self._settings, same)
            if "runs" in wanted and not differs:
                if len(meta["runs"]) != len(self.jobs) or type(meta["over"]) is not bool:
                    raise ValueError(f"{len(meta['runs'])} runs")
                for run in meta["runs"]:
                    _check_figures(**{name: run[name] for name in ("status", "rows", "costs")})
                    if meta["over"] and not run["ended"]:
                        raise ValueError("over, and a run has not ended")
        except (LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"{path}: no checkpoint that this version can read ({error})") from error
        if differs:
            raise CheckpointError(
                f"{path}: of another run: give the same problem and settings, or another folder ({'; '.join(differs)})"
            )
        return meta

    def _memory(self, memory: Tree, paths: list[pathlib.Path]) -> Tree:
        """Client memory with the rows of a checkpoint for the clients of this process."""
        clients = self.job.own
        if isinstance(memory, ClientMemory):
            form = [(leaf.shape, leaf.dtype) for leaf in memory.first]
        else:
            leaves, structure = jax.tree.flatten(memory)
            whole, form = [np.array(leaf) for leaf in leaves], [(leaf.shape[1:], leaf.dtype) for leaf in leaves]
        if not form:
            return memory
        step = max(1, _ROWS // max(1, sum(int(np.prod(shape)) * kind.itemsize for shape, kind in form)))
        seen = np.zeros(self.job.plan.num_clients, bool)
        for path in paths:
            with _opened(path) as file:
                self._metadata(path, file, set())
                ids = _read(path, file, "ids", None, np.dtype(np.int64))
                if ids.ndim != 1 or ((ids < 0) | (ids >= len(seen))).any():
                    raise CheckpointError(f"{path}: its clients are not this run's")
                if seen[ids].any() or len(np.unique(ids)) < len(ids):
                    raise CheckpointError(f"{path}: it has a client that was there before; remove it")
                seen[ids] = True
                for start in range(0, len(ids), step):
                    rows = slice(start, min(start + step, len(ids)))
                    here = (ids[rows] >= clients.start) & (ids[rows] < clients.stop)
                    values = [
                        _read(path, file, f"memory.{k}", (len(ids), *shape), kind, rows)[here]
                        for k, (shape, kind) in enumerate(form)
                    ]
                    if isinstance(memory, ClientMemory):
                        memory.put(ids[rows][here], values)
                    else:
                        for leaf, new in zip(whole, values, strict=True):
                            leaf[ids[rows][here]] = new
        if isinstance(memory, ClientMemory):
            return memory
        return jax.tree.unflatten(structure, map(placed_like, whole, leaves))


def _settings_of_all(jobs: Sequence[Job], points: int) -> dict[str, str]:
    """The settings of jobs side by side: those of a single job; where several differ, the texts of all, joined."""
    settings = dict(jobs[0].settings())
    if len(jobs) > 1:
        by_seed = [job.settings() for job in jobs[::points]]  # each may have data of its own
        for name, text in settings.items():
            texts = [one.get(name, text) for one in by_seed]
            settings[name] = "; ".join(texts) if len({*texts}) > 1 else text
        by_point = [settings_of(job.hyper) for job in jobs[:points]]
        for name in dict.fromkeys(name for one in by_point for name in one):
            texts = [one.get(name, "None") for one in by_point]
            settings |= {name: "; ".join(texts)} if len({*texts}) > 1 else {}
    return settings


def _model_tensors(before: str, tree: Tree) -> dict[str, np.ndarray]:
    """The tensors of a model, by their paths in it."""
    return {before + tensor_name(at): np.asarray(leaf) for at, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def present(folder: pathlib.Path) -> bool:
    """Whether a folder has a checkpoint, or a part of one."""
    return folder.is_dir() and any(_NAME.fullmatch(path.name) for path in folder.iterdir())


def discard(folder: pathlib.Path) -> None:
    """Remove the checkpoints of runs that are over: their own files, and the folder if nothing else is in it."""
    with contextlib.suppress(FileNotFoundError):
        for path in folder.iterdir():
            ours = path.name == secret.FILE or path.name.startswith(WRITING)
            if ours or _NAME.fullmatch(path.name) or _BEST.fullmatch(path.name):
                path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # something else is in it, or it is gone
        folder.rmdir()


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> Iterator[Unknown]:
    if not path.is_file():
        raise CheckpointError(f"{path}: not a regular file; remove it")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            yield file
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path}: broken ({error}); {_START_AGAIN}") from error


def _check_figures(status: Unknown, rows: Tree, costs: Unknown) -> None:
    """Refuse a history that no run writes, with a ValueError, or with the error that its form leads to."""
    if status not in ("finished", "stopped", "diverged", "failed"):
        raise ValueError(f"status {status!r}")
    if costs.keys() - {*TRAFFIC, TIME} != {*COSTS} - {"round"} or not {"round", *costs} <= rows[0].keys():
        raise ValueError("columns are missing")
    for row in (*rows, costs):
        if row is not costs and row.keys() != rows[0].keys():
            raise ValueError("rows with other columns than the first")
        for name, value in row.items():
            known = describe(name)
            whole = known.type == "whole"
            if known.type in ("ids", "reals"):
                fits = (lambda each: type(each) is int and each >= 0) if known.type == "ids" else _is_float
                if not isinstance(value, list) or not all(map(fits, value)):
                    raise ValueError(f"{name} is {str(value)[:100]}")
                continue
            if type(value) is not (int if whole else float) or (whole and not 0 <= value < 2**63):
                raise ValueError(f"{name} is {value!r}")
        for name in ("seconds", TIME):
            if not 0 <= row.get(name, 0.0) < float("inf"):
                raise ValueError(f"{name} is {row[name]}")
        if not row.get("epsilon", 0.0) >= 0:
            raise ValueError(f"epsilon is {row['epsilon']}")
    rounds = [row["round"] for row in rows]
    if rounds[0] != 0 or rounds != sorted({*rounds}):
        raise ValueError("rounds that do not ascend from 0")


def _is_float(value: Unknown) -> bool:
    return type(value) is float


def _read(
    path: pathlib.Path,
    file: Unknown,
    name: str,
    shape: tuple[int, ...] | None,
    kind: np.dtype,
    rows: slice | None = None,
) -> np.ndarray:
    """A tensor, or rows of one, of a known shape and type; ``shape`` None: of any length, with one axis or none."""
    tensor = file.get_slice(name)
    stored, found_shape = stored_kind(kind), tensor.get_shape()
    expected = found_shape[:1] if shape is None else list(shape)  # NumPy has no arrays of more than 64 axes
    if tensor.get_dtype() != _label(stored) or found_shape != expected:
        should = f"{_label(stored)} {expected}"
        raise CheckpointError(f"{path}: {name} should be {should}, and is {tensor.get_dtype()} {found_shape}")
    values = file.get_tensor(name) if rows is None else tensor[rows]
    return np.asarray(values).view(kind) if kind != stored else np.asarray(values)


def stored_kind(kind: np.dtype) -> np.dtype:
    """The type in which a file stores numbers: types that are not NumPy's own are stored as whole numbers."""
    return kind if kind.kind in "fiub" and kind.isbuiltin == 1 else np.dtype(f"u{kind.itemsize}")


def _label(kind: np.dtype) -> str:
    return "BOOL" if kind.kind == "b" else f"{_KINDS[kind.kind]}{8 * kind.itemsize}"


def write_tensors(path: pathlib.Path, tensors: Mapping[str, np.ndarray], text: str, of: str | None = None) -> None:
    """Write a safetensors file whole or not at all; the library would hold a second copy of everything in memory.

    Args:
        path: the file.
        tensors: by their names.
        text: what else is to be in it.
        of: what the file is, see :func:`fedax.files.damage`; default: as it is called.
    """
    header: dict[str, Unknown] = {"__metadata__": seal(path.name if of is None else of) | {"fedax": text}}
    at = 0
    arrays = {name: np.ascontiguousarray(leaf).reshape(leaf.shape) for name, leaf in tensors.items()}
    for name, leaf in arrays.items():
        header[name] = {
            "dtype": _label(stored_kind(leaf.dtype)),
            "shape": list(leaf.shape),
            "data_offsets": [at, at + leaf.nbytes],
        }
        at += leaf.nbytes
    blank = with_head(header)
    digest = hashlib.sha256()
    with writing(path) as temporary, temporary.open("wb") as file:
        parts: list[Unknown] = [blank, *(leaf.reshape(-1).view(np.uint8).data for leaf in arrays.values())]
        for part in parts:
            digest.update(part)
            file.write(part)
        file.seek(blank.index(header["__metadata__"]["sha256"].encode()))
        file.write(digest.hexdigest().encode())
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def with_head(header: Mapping[str, Unknown], body: bytes = b"") -> bytes:
    """A safetensors file of a header and the bytes of its tensors."""
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + body
