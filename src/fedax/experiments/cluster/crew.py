"""The submitting side: hands jobs to an executor, and takes what comes back, in the order of arrival."""

import functools
import pathlib
import queue
import time
from collections.abc import Callable, Sequence
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


def carry_out(
    jobs: Sequence[ClusterJob],
    executor: Executor,
    perform: Perform,
    folder: Path,
    take: Callable[[ClusterJob, Outcome], None],
) -> None:
    """Have jobs done; where one fails the others go on.

    Args:
        jobs: all of them.
        executor, perform: as of :class:`Crew`.
        folder: gets the tracebacks of jobs that fail.
        take: is called with each job that is done, as it comes.

    Raises:
        ConfigError: after all others, jobs that failed; it names them all. Or at once, as :class:`Crew`.
    """
    failed = []
    with Crew(executor, perform) as crew:
        for job in jobs:
            crew.give(job)
        while crew.under_way and (arrived := crew.wait()):
            job, outcome = arrived
            if outcome.error:
                failed.append(f"{job.name}: {_reason(outcome, folder)}")
            else:
                take(job, outcome)
    if failed:
        hint = f"{'; '.join(failed)}. The others are done and kept: the same call runs only these again"
        raise ConfigError("jobs", f"{len(failed)} of {len(jobs)} failed", hint)


def _reason(outcome: Outcome, folder: Path) -> str:
    """Why a job failed, and in which file of a folder the whole of it is."""
    if not outcome.log:
        return outcome.error
    path = folder / f"{TRACEBACK}{outcome.key}.txt"
    write_atomic(path, outcome.log)
    return f"{outcome.error} ({outcome.host}; {path})"


def _text_of(error: BaseException) -> str:
    return one_line(f"{type(error).__name__}: {error}".rstrip(": "), 300)
