"""The submitting side: hands jobs to an executor, and takes what comes back, in the order of arrival."""

import functools
import pathlib
import queue
import time
from concurrent.futures import Executor, Future

from fedax.errors import ConfigError, FedaxError, one_line
from fedax.experiments.cluster.jobs import ClusterJob, Outcome, Perform, sound, work
from fedax.experiments.runs import TRACEBACK
from fedax.files import write_atomic

Path = pathlib.Path

ATTEMPTS = 3  # how often a job runs whose worker is gone

Arrived = tuple[ClusterJob, Outcome]


class Crew:
    """Jobs under way at an executor, as a context manager that cancels what is left.

    A job whose worker is gone, or whose results arrived damaged, runs again, ``ATTEMPTS`` times in all.

    Args:
        executor: of ``concurrent.futures``, or of another library with ``submit``.
        perform: does a job, at a worker.
    """

    def __init__(self, executor: Executor, perform: Perform):
        if not isinstance(executor, Executor):
            hint = "give a concurrent.futures.Executor, such as ProcessPoolExecutor(), or client.get_executor()"
            raise ConfigError("executor", executor, hint)
        self.executor, self.perform = executor, perform
        self.under_way: dict[str, tuple[ClusterJob, Future[Outcome]]] = {}
        self._ended: queue.SimpleQueue[tuple[ClusterJob, Future[Outcome]]] = queue.SimpleQueue()
        self._attempts: dict[str, int] = {}

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *error: object) -> None:
        for _, future in self.under_way.values():
            future.cancel()

    def give(self, job: ClusterJob) -> None:
        """Hand a job on.

        Raises:
            ConfigError: the executor takes none any more.
        """
        self._attempts[job.key] = self._attempts.get(job.key, 0) + 1
        try:
            future = self.executor.submit(functools.partial(work, perform=self.perform), job)
        except FedaxError:
            raise
        except Exception as error:
            hint = f"it takes no more jobs ({_text_of(error)}); what is done is kept, and the same call goes on with it"
            raise ConfigError("executor", type(self.executor).__name__, hint) from error
        self.under_way[job.key] = job, future
        future.add_done_callback(lambda future: self._ended.put((job, future)))

    def wait(self, seconds: float | None = None) -> Arrived | None:
        """The next job that is over, with its outcome; ``None`` where there is none after so many seconds.

        Raises:
            ConfigError: a worker that cannot do these jobs: with other data or other versions.
        """
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            try:
                left = None if until is None else max(0.0, until - time.monotonic())
                job, future = self._ended.get(timeout=left)
            except queue.Empty:
                return None
            try:
                outcome = future.result()
                if not sound(job, outcome):
                    raise FedaxError("its results arrived damaged")
            except Exception as error:
                if self._attempts[job.key] < ATTEMPTS:
                    self.give(job)
                    continue
                outcome = Outcome(job.key, "", error=f"given up after {ATTEMPTS} attempts ({_text_of(error)})")
            del self.under_way[job.key]
            if outcome.refused:
                raise ConfigError("worker", outcome.host, outcome.refused)
            return job, outcome


class Failures:
    """Jobs that failed while the others went on: name -> why."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def raise_any(self, jobs: int) -> None:
        """Raise one error that names them all.

        Args:
            jobs: how many there were.

        Raises:
            ConfigError: a job failed.
        """
        if self.found:
            texts = "; ".join(f"{name}: {why}" for name, why in self.found.items())
            hint = f"{texts}. The others are done and kept: the same call runs only these again"
            raise ConfigError("jobs", f"{len(self.found)} of {jobs} failed", hint)


def reason(outcome: Outcome, folder: Path) -> str:
    """Why a job failed, and in which file of a folder the whole of it is."""
    if not outcome.log:
        return outcome.error
    path = folder / f"{TRACEBACK}{outcome.key}.txt"
    write_atomic(path, outcome.log)
    return f"{outcome.error} ({outcome.host}; {path})"


def _text_of(error: BaseException) -> str:
    return one_line(f"{type(error).__name__}: {error}".rstrip(": "), 300)
