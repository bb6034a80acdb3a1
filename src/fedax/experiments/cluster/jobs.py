"""A job: what travels to a worker, what the worker does with it, and what travels back."""

import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import pathlib
import pickle
import shutil
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from fedax.data import FEDERATIONS, FederatedData
from fedax.engine import fingerprint
from fedax.errors import ConfigError, DataError, FedaxError, one_line
from fedax.experiments import own
from fedax.experiments.config.data import unsplit
from fedax.experiments.config.sections import DataSection, Table
from fedax.experiments.runs import locked
from fedax.files import WRITING, write_atomic
from fedax.tasks.factory import keep_origin, origin_of

Path = pathlib.Path

MOST_BYTES = 1 << 25  # of a problem of Python objects, which travels with each job
_LEFT_THERE = {".lock", "checkpoints", "noise.key"}  # files of a run folder that do not come back
_ARRIVED = ".digest"  # the file in a folder of results that says which they were
_TURN = threading.Lock()  # the jobs of one process take turns, each has all of it
_digests: dict[str, str] = {}  # of data sets that this process has looked at


@dataclass(frozen=True)
class ClusterJob:
    """A job as plain data: runs of one problem, which know nothing of other jobs.

    Attributes:
        name: to show.
        problem: a configuration; those of all points that run side by side, of a sweep; or a pickled experiment.
        points: of a sweep, the point of each configuration; else empty.
        run: label and seed, of a pickled experiment; else ``None``.
        sources: the files of the user's own methods and tasks.
        data: a digest of the data set that the worker has to have; ``""``: the data travel with the job.
        versions: of the packages that it has to have.
        best: the column by which the best model is kept, or ``None``.
        place: a folder of this machine, for a worker here: the job runs in its folder ``run``, goes on from the
            checkpoints there, and nothing travels back; ``""``: it runs in a temporary folder.
        key: a digest of all of this but the name and the place.
    """

    name: str
    problem: tuple[Table, ...] | bytes
    points: tuple[Table, ...] = ()
    run: tuple[str, int] | None = None
    sources: tuple[own.Source, ...] = ()
    data: str = ""
    versions: Mapping[str, str] = field(default_factory=fingerprint.versions)
    best: str | None = None
    place: str = ""
    key: str = field(init=False)

    def __post_init__(self) -> None:
        problem = self.problem if isinstance(self.problem, bytes) else _text([self.problem, self.points])
        about = _text([self.data, self.versions, self.best, self.run, [source.digest for source in self.sources]])
        object.__setattr__(self, "key", hashlib.sha256(problem + b"\0" + about).hexdigest()[:16])

    @classmethod
    def of(
        cls,
        name: str,
        configs: Sequence[Table],
        points: Sequence[Table] = (),
        code: Mapping[str, own.Source] | None = None,
        best: str | None = None,
    ) -> "ClusterJob":
        """A job of configurations, whose workers read the data from their own ``FEDAX_DATA``.

        Raises:
            ConfigError, DataError: these data are not here either, so that they cannot be compared.
        """
        sources = tuple((code or {}).values())
        data = digest_of(configs[0]["data"])
        return cls(name, tuple(configs), tuple(points), sources=sources, data=data, best=best)


@dataclass(frozen=True)
class Outcome:
    """What comes back of a job.

    Attributes:
        key: of the job.
        host: where it ran.
        files: of its run folder, by their path there.
        digest: of the key and all files, as the worker made them.
        seconds: of the processor.
        error: why it failed, in a line; ``""``: it did not.
        log: the whole of that.
        refused: why this worker can do no such job; ``""``: it can.
    """

    key: str
    host: str
    files: dict[str, bytes] = field(default_factory=dict)
    digest: str = ""
    seconds: float = 0.0
    error: str = ""
    log: str = ""
    refused: str = ""


def digest_of(data: Table) -> str:
    """A digest of the data set that a section ``data`` names, before it is dealt and split.

    Example:
        >>> digest_of({"name": "digits", "clients": 4}) == digest_of({"name": "digits", "clients": 9})
        True
    """
    section = DataSection(**{name: value for name, value in data.items() if name != "split"})
    pooled = section.name not in FEDERATIONS
    key = section.name if pooled else _text(data).decode()
    if key not in _digests:
        if pooled:
            import fedax

            loaded = fedax.data.load(section.name)
            trees: Table = {"train": loaded.train, "test": loaded.test, "groups": loaded.groups}
        else:
            _, clients, test, _ = unsplit(section)
            trees = {"data": clients.examples if isinstance(clients, FederatedData) else None, "sizes": clients.sizes}
            trees["test"] = test.examples if isinstance(test, FederatedData) else test
            unseen = getattr(clients, "unseen", None) or ()
            trees["unseen"] = [[each.examples, each.sizes] for each in unseen]
        _digests[key] = hashlib.sha256(_text(fingerprint.contents(trees))).hexdigest()[:16]
    return _digests[key]


def packed(experiment: Any) -> bytes:
    """An experiment made of Python objects, as it travels with jobs, data too.

    Raises:
        ConfigError: it takes more than ``MOST_BYTES``, or cannot be pickled.
    """
    pickler: Any = importlib.import_module("cloudpickle") if importlib.util.find_spec("cloudpickle") else pickle
    try:
        content: bytes = pickler.dumps((experiment, origin_of(experiment.task.entire)))
    except Exception as error:  # whatever an object of the user's raises
        hint = "" if pickler is not pickle else "; pip install cloudpickle, which takes functions too"
        hint = f"data, task and methods have to be pickled, to travel{hint}"
        raise ConfigError("executor", one_line(str(error), 200), hint) from error
    if len(content) > MOST_BYTES:
        hint = (
            f"data of at most {MOST_BYTES >> 20} MiB travel with a job; let workers read theirs from FEDAX_DATA, "
            "by a configuration: fedax.experiments.execute(…, executor=…)"
        )
        raise ConfigError("executor", f"{len(content) / 2**20:.0f} MiB", hint)
    return content


def sound(job: ClusterJob, outcome: object) -> bool:
    """Whether this is the outcome of that job, as its worker sent it."""
    if not isinstance(outcome, Outcome) or outcome.key != job.key:
        return False
    inside = all(not Path(name).is_absolute() and ".." not in Path(name).parts for name in outcome.files)
    return inside and outcome.digest == _digest(outcome.key, outcome.files)


def deliver(outcome: Outcome, folder: Path) -> None:
    """Write the files of an outcome as a new folder, all of them or none."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished = Path(tempfile.mkdtemp(prefix=WRITING, dir=folder.parent))
    for name, content in outcome.files.items():
        (unfinished / name).parent.mkdir(parents=True, exist_ok=True)
        (unfinished / name).write_bytes(content)
    (unfinished / _ARRIVED).write_text(_digest(outcome.key, outcome.files))
    unfinished.chmod(0o755)
    unfinished.replace(folder)


def delivered(folder: Path) -> bool:
    """Whether the files of an outcome are in a folder that has its job's key as name.

    Raises:
        DataError: they are others than were delivered.
    """
    if (mark := folder / _ARRIVED).exists():
        paths = [path for path in folder.rglob("*") if path.is_file() and path != mark]
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
        if _digest(folder.name, files) != mark.read_text():
            raise DataError(f"{folder}: moved, renamed or edited (its digest is another); remove it, to run it again")
    return folder.exists()


# ---- at the worker


Perform = Callable[[ClusterJob, Path, Sequence[str]], None]
"""Does a job in a run folder; the texts name the user's files that may run. It has to be importable by its name."""


def work(job: ClusterJob, perform: Perform) -> Outcome:
    """Do a job by a function, wherever this is; jobs of one process take turns.

    It has one core, if JAX has not started yet in this process: so its figures are the same on every machine, bit for
    bit, as far as JAX computes alike there.

    Returns:
        The files of its run folder, or why there are none. It raises nothing: what an executor raises is about the
        worker and not about the job.
    """
    with _TURN:
        began, host = time.process_time(), socket.gethostname()
        _on_one_core()
        try:
            if refused := _refused(job):
                return Outcome(job.key, host, digest=_digest(job.key, {}), refused=refused)
            with _folder_of(job) as folder:
                perform(job, folder, [*_copied(job.sources, folder.parent)])
                names = [] if job.place else [path for path in sorted(folder.rglob("*")) if path.is_file()]
                files = {
                    relative.as_posix(): path.read_bytes()
                    for path in names
                    if (relative := path.relative_to(folder)).parts[0] not in _LEFT_THERE
                }
            return Outcome(job.key, host, files, _digest(job.key, files), time.process_time() - began)
        except Exception as error:
            text = str(error) if isinstance(error, FedaxError) else f"{type(error).__name__}: {error}"
            return Outcome(
                job.key, host, digest=_digest(job.key, {}), error=one_line(text, 1000), log=traceback.format_exc()
            )


@contextlib.contextmanager
def _folder_of(job: ClusterJob) -> Iterator[Path]:
    """The run folder of a job. Beside one that stays, a file has its processor seconds so far."""
    if not job.place:
        with tempfile.TemporaryDirectory(prefix="fedax-") as place:
            (folder := Path(place) / "run").mkdir()
            yield folder
        return
    (folder := Path(job.place) / "run").mkdir(parents=True, exist_ok=True)
    began, spent = time.process_time(), folder.parent / "seconds.txt"
    try:
        with locked(folder):  # the command may have been killed and started again
            yield folder
    finally:
        before = float(spent.read_text()) if spent.exists() else 0.0
        write_atomic(spent, f"{before + time.process_time() - began:.1f}")


def _on_one_core() -> None:
    """Let JAX compute on one core, if it has not started in this process: on several it may round otherwise.

    Its threads then run on any core again, as several workers of a machine know nothing of each other.
    """
    try:
        jax.config.update("jax_num_cpu_devices", 1)
    except RuntimeError:  # it has started
        return
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = os.sched_getaffinity(0)
    one = {min(cores)}
    os.sched_setaffinity(0, one)
    try:
        jax.devices()
    finally:
        for thread in map(int, os.listdir("/proc/self/task")):
            with contextlib.suppress(OSError):  # it has ended
                if os.sched_getaffinity(thread) == one:
                    os.sched_setaffinity(thread, cores)


def _refused(job: ClusterJob) -> str:
    """Why this process cannot do such jobs, in a line; ``""``: it can."""
    here = fingerprint.versions()
    if differ := [
        f"{name} {here[name]} there and {was} here" for name, was in job.versions.items() if here[name] != was
    ]:
        return f"it has other versions, and rows would not be the same: {', '.join(differ)}; install the same"
    if not job.data or isinstance(job.problem, bytes):
        return ""
    section = job.problem[0]["data"]
    place = os.environ.get("FEDAX_DATA")
    where = f"FEDAX_DATA is {place} there" if place else "FEDAX_DATA is not set there"
    try:
        found = digest_of(section)
    except FedaxError as error:
        return f"it cannot read the data ({error}); {where}"
    if found == job.data:
        return ""
    return f"its data set {section['name']} is another one ({found} there, {job.data} here); {where}: copy this side's"


def _copied(sources: Sequence[own.Source], place: Path) -> Sequence[str]:
    """Copies of the user's files at the worker; of modules their names, which have to be installed here."""
    for source in sources:
        if source.module:
            if own.owned(source.name).digest != source.digest:
                raise ConfigError(
                    "code", source.name, "the worker has another version of this module; install the same"
                )
        else:
            (place / "code").mkdir(exist_ok=True)
            (place / "code" / source.name).write_bytes(source.content)
    return [source.name if source.module else str(place / "code" / source.name) for source in sources]


@functools.lru_cache(1)
def unpacked(content: bytes) -> Any:
    """The experiment that jobs of one comparison share, so that JAX compiles each method once."""
    experiment, origin = pickle.loads(content)
    keep_origin(experiment.task.entire, origin)
    return experiment


def _digest(key: str, files: Mapping[str, bytes]) -> str:
    hasher = hashlib.sha256(key.encode())
    for name, content in sorted(files.items()):
        hasher.update(f"\0{name}\0{len(content)}\0".encode() + content)
    return hasher.hexdigest()


def _text(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, ensure_ascii=False, default=_plain).encode()


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else repr(value)
