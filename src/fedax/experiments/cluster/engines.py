"""Engines that run jobs, by what ``--on`` names, each as an executor of ``concurrent.futures``."""

import contextlib
import functools
import importlib.util
import pathlib
import pickle
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future, InvalidStateError, ThreadPoolExecutor
from typing import IO, Any

from fedax import children
from fedax._start import usable_cores
from fedax.errors import ConfigError, ProcessError, one_line

Opener = contextlib.AbstractContextManager[Executor]

FORMS = "processes[:N], dask:tcp://host:port, slurm[:partition] or ray"
_PACKAGES = {"dask": "distributed", "slurm": "submitit", "ray": "ray"}
_CONNECT = 10  # seconds until a scheduler has to answer
_POLL = 1.0  # seconds between two looks at the jobs of SLURM


def engine(on: str) -> Callable[[], Opener]:
    """The engine that ``--on`` names, which opens as a context manager; nothing is started or asked before.

    Args:
        on: ``processes`` (one a core) or ``processes:4``, ``dask:tcp://host:8786``, ``slurm`` or ``slurm:partition``,
            ``ray`` (that of ``RAY_ADDRESS``, or else one on this machine).

    Raises:
        ConfigError: no such engine, its package is not installed, or an argument that it cannot use; and, where it is
            opened, an engine that does not answer.

    Example:
        >>> from fedax.experiments.cluster import engine
        >>> with engine("processes:1")() as executor:
        ...     executor.submit(max, 2, 3).result()
        3
        >>> engine("processes:none")
        Traceback (most recent call last):
        fedax.errors.ConfigError: on = 'processes:none': give a number of processes of at least 1, such as processes:4
    """
    name, colon, argument = on.partition(":")
    if name not in ("processes", *_PACKAGES) or (colon and not argument):
        raise ConfigError("on", on, f"give {FORMS}")
    if name == "processes":
        if argument and not (argument.isascii() and argument.isdigit() and int(argument)):
            raise ConfigError("on", on, "give a number of processes of at least 1, such as processes:4")
        return lambda: Processes(int(argument or 0) or None)
    if name == "dask" and "://" not in argument:
        raise ConfigError("on", on, "give the address that the scheduler has printed, such as dask:tcp://host:8786")
    if name == "ray" and argument:
        raise ConfigError("on", on, "give ray alone; the variable RAY_ADDRESS names a cluster")
    if importlib.util.find_spec(_PACKAGES[name]) is None:
        raise ConfigError("on", on, f"it needs the package {_PACKAGES[name]}: pip install 'fedax[{name}]'")
    if name == "slurm" and shutil.which("sbatch") is None:
        raise ConfigError("on", on, "there is no sbatch here; give the command on a machine that submits to SLURM")
    openers: dict[str, Callable[[], Opener]] = {
        "dask": lambda: _dask(on, argument),
        "slurm": lambda: Slurm(argument),
        "ray": lambda: _ray(on),
    }
    return openers[name]


# ---- Dask


@contextlib.contextmanager
def _dask(on: str, address: str) -> Iterator[Executor]:
    import distributed

    try:
        client = distributed.Client(address, timeout=_CONNECT, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise ConfigError("on", on, f"no scheduler answers there ({one_line(str(error), 200)})") from None
    with client:
        yield _Dask(client)


class _Dask(Executor):
    """As ``client.get_executor()``, but results leave the workers' memory as soon as they are here."""

    def __init__(self, client: Any):
        self._client = client

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        there = self._client.submit(fn, *args, **kwargs, pure=False)
        future: Future[Any] = Future()

        def arrived(there: Any) -> None:
            _settle(future, there.result)
            there.release()

        there.add_done_callback(arrived)
        future.add_done_callback(lambda future: there.cancel() if future.cancelled() else None)
        return future


# ---- Ray


@contextlib.contextmanager
def _ray(on: str) -> Iterator[Executor]:
    import ray

    mine = not ray.is_initialized()
    try:
        if mine:
            ray.init(log_to_driver=False, configure_logging=False)
    except Exception as error:  # Ray has no error of its own for this
        raise ConfigError("on", on, f"no cluster answers ({one_line(str(error), 200)})") from None
    try:
        yield _Ray(ray)
    finally:
        if mine:
            ray.shutdown()


class _Ray(Executor):
    def __init__(self, ray: Any):
        self._run = ray.remote(_call).options(num_cpus=1, max_retries=0)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        found: Future[Any] = self._run.remote(fn, args, kwargs).future()
        return found


def _call(fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return fn(*args, **kwargs)


# ---- SLURM


class Slurm(Executor):
    """Jobs of SLURM by ``submitit``, one each; they need a folder that all nodes share: ``.fedax-slurm`` here.

    Options of ``sbatch``, such as ``SBATCH_ACCOUNT`` and ``SBATCH_TIMELIMIT``, are taken from the environment.

    Args:
        partition: ``""``: the cluster's default.
    """

    def __init__(self, partition: str = ""):
        import submitit

        above = pathlib.Path(".fedax-slurm")
        above.mkdir(exist_ok=True)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="jobs-", dir=above)).absolute()
        self._submitter = submitit.SlurmExecutor(self.folder, python=sys.executable)
        given = {"partition": partition} if partition else {}
        self._submitter.update_parameters(
            job_name="fedax", time=None, cpus_per_task=1, ntasks_per_node=1, stderr_to_stdout=True, **given
        )
        self._jobs: list[tuple[Any, Future[Any]]] = []
        self._closed = threading.Event()
        self._watch = threading.Thread(target=self._follow, daemon=True)
        self._watch.start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Hand a call to SLURM.

        Raises:
            ConfigError: ``sbatch`` refuses it.
        """
        try:
            job = self._submitter.submit(fn, *args, **kwargs)
        except Exception as error:  # of submitit, with what sbatch has said
            raise ConfigError("on", "slurm", f"sbatch takes no job ({one_line(str(error), 500)})") from None
        future: Future[Any] = Future()
        self._jobs.append((job, future))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the executor; jobs that are left are cancelled in SLURM."""
        self._closed.set()
        self._watch.join()
        for job, future in self._jobs:
            job.cancel(check=False)
            future.cancel()
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # another command uses it
            self.folder.parent.rmdir()

    def _follow(self) -> None:
        while not self._closed.wait(_POLL):
            known = self._in_queue() if self._jobs else set()
            for entry in list(self._jobs):
                job, future = entry
                if future.cancelled():
                    job.cancel(check=False)
                elif job.paths.result_pickle.exists():
                    _settle(future, job.result)
                elif known is not None and job.job_id not in known:
                    # It was seen neither in the queue nor, now, by a result: its node may have been slow to write.
                    time.sleep(_POLL)
                    _settle(future, job.result if job.paths.result_pickle.exists() else functools.partial(_lost, job))
                else:
                    continue
                self._jobs.remove(entry)

    def _in_queue(self) -> set[str] | None:
        """The numbers of all jobs that SLURM has under way; ``None``: it does not answer now."""
        asked = subprocess.run(["squeue", "--noheader", "--me", "--format=%i"], capture_output=True, text=True)
        return {*asked.stdout.split()} if asked.returncode == 0 else None


def _lost(job: Any) -> Any:
    log = (job.stdout() or "nothing in its log").strip().splitlines()[-1]
    raise ProcessError(f"job {job.job_id} of SLURM ended without a result: {one_line(log, 300)}")


def _settle(future: Future[Any], result: Callable[[], Any]) -> None:
    with contextlib.suppress(InvalidStateError):  # it was cancelled
        try:
            future.set_result(result())
        except InvalidStateError:
            raise
        except BaseException as error:  # asyncio's CancelledError is no Exception
            future.set_exception(error if isinstance(error, Exception) else ProcessError(repr(error)))


# ---- processes of this machine


class Processes(Executor):
    """An executor of ``number`` processes, whose jobs have one core each; if one dies, the others go on.

    Args:
        number: ≥ 1; default: one for each core.
        together: how many calls a process takes, one after another, before another is started in its place; ≥ 1.
    """

    def __init__(self, number: int | None = None, together: int = 1):
        self.number = number or usable_cores()
        self._threads = ThreadPoolExecutor(self.number)
        self._workers = [_Worker(together) for _ in range(self.number)]
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._closed, self._lock = False, threading.Lock()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run ``fn(*args, **kwargs)`` in a process; all of it has to be picklable."""
        return self._threads.submit(self._run, pickle.dumps((fn, args, kwargs)))

    def __exit__(self, *error: object) -> None:
        self.shutdown(cancel_futures=True)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the executor; with ``cancel_futures`` calls under way are stopped by SIGTERM."""
        if cancel_futures:
            with self._lock:
                self._closed = True
                for worker in self._workers:
                    worker.stop()
        self._threads.shutdown(wait, cancel_futures=cancel_futures)
        if wait:
            for worker in self._workers:
                worker.end()

    def _run(self, call: bytes) -> Any:
        worker = self._idle.get()
        try:
            with self._lock:
                if self._closed:
                    raise CancelledError
                worker.start()
            return worker.result(call)
        finally:
            self._idle.put(worker)


class _Worker:
    """Runs calls one after another, in a process that is replaced after a number of calls or if it dies."""

    def __init__(self, together: int):
        self._together, self._left = together, 0
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes]

    def start(self) -> None:
        """Start a process, if there is none."""
        if self._process is None:
            self._log, self._left = tempfile.TemporaryFile(), self._together  # noqa: SIM115
            # JAX has one device, and NumPy one thread, as in workers of Dask and Ray.
            alone = {"JAX_NUM_CPU_DEVICES": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            self._process = children.start(
                "fedax.experiments.cluster", [], alone,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
            )  # fmt: skip

    def stop(self) -> None:
        """Ask the process to end."""
        if (process := self._process) is not None:
            process.terminate()

    def result(self, call: bytes) -> Any:
        """What a pickled call has returned.

        Raises:
            ProcessError: the process has ended.
        """
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(call)
            process.stdin.flush()
            result = pickle.load(process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise ProcessError(f"its process {self.end()}") from error
        self._left -= 1
        if not self._left:
            self.end()
        return result

    def end(self) -> str:
        """Wait until the process has ended, which takes no more calls; returns how it did, and its last words."""
        process, self._process = self._process, None
        if process is None:
            return "has ended"
        with contextlib.suppress(OSError), process:  # closes its pipes
            pass
        code = process.wait()
        with self._log as log:
            log.seek(0)
            *_, last = ["nothing in its log", *log.read().decode(errors="replace").strip().splitlines()]
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        return f"{how}: {one_line(last, 300)}"
