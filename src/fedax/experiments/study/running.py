"""Runs the jobs of a study: as processes of this machine, each on one core, or by an executor."""

import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor

from fedax._start import share_gpu
from fedax.errors import ConfigError
from fedax.experiments import cluster, toml, tuning
from fedax.experiments.runs import Path, locked
from fedax.experiments.study.parts import Study, StudyJob
from fedax.experiments.study.results import in_order, keep, results_of
from fedax.files import write_atomic

Watch = Callable[[str], None]


def carry_out(
    study: Study,
    folder: Path,
    jobs: int | None = None,
    hours: float = math.inf,
    watch: Watch = lambda text: None,
    executor: Executor | None = None,
) -> bool:
    """Run all unfinished jobs of a study, each on one core: ``jobs`` processes at a time, or by an executor.

    Args:
        study: from :func:`read_study`.
        folder: of the study; jobs with results there are not run again.
        jobs: how many processes; default: one for each core.
        hours: after this time no job begins, and running jobs are stopped, each with a checkpoint.
        watch: called with a sentence about each job that begins or ends.
        executor: of ``concurrent.futures``, instead of processes here. Jobs have no checkpoints there: one that is
            under way when ``hours`` are over begins anew the next time.

    Returns:
        Whether all jobs are done.

    Raises:
        ConfigError: jobs failed; it has the last line of each log. All other jobs are done. Or a worker of the executor
            has other data or versions.
    """
    share_gpu()
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        study.results = results_of(folder)
        (folder / "results").mkdir(exist_ok=True)
        deadline = time.monotonic() + 3600 * hours
        if executor is None:
            with cluster.Processes(jobs, study.section.together) as here:
                failed = _carry_out(study, folder, here, deadline, watch)
        else:
            failed = _carry_out(study, folder, executor, deadline, watch)
    if failed:
        raise ConfigError("study", study.section.name, "; ".join(failed.values()))
    return not any(True for _ in study.jobs())


def _carry_out(study: Study, folder: Path, executor: Executor, deadline: float, watch: Watch) -> dict[str, str]:
    """Run jobs by an executor; returns the key of each that failed -> its error.

    Processes of this machine run them in their folders, and are given no more than they can begin.
    """
    at_once = executor.number if isinstance(executor, cluster.Processes) else math.inf
    given: dict[str, StudyJob] = {}  # key of the job that travels -> job
    known: set[str] = set()
    failed: dict[str, str] = {}
    with cluster.Crew(executor, tuning.perform) as crew:
        try:
            left = deque(study.jobs())
            while time.monotonic() < deadline:
                while left and len(crew.under_way) < at_once:
                    if (job := left.popleft()).key in known:
                        continue
                    known.add(job.key)
                    if at_once < math.inf:
                        place = str((folder / "jobs" / job.key).absolute())
                        travels = cluster.ClusterJob(job.name, (job.config,), place=place)
                        watch(f"{job.name} begins{_extent(job)}")
                    else:
                        travels = cluster.ClusterJob.of(job.name, [job.config])
                    given[travels.key] = job
                    crew.give(travels)
                if not crew.under_way:
                    break
                arrived = crew.wait(None if deadline == math.inf else max(0.0, deadline - time.monotonic()))
                if arrived is None:
                    break
                job = given[arrived[0].key]
                _take(study, folder, job, *arrived, failed, watch)
                if job.seed is None:  # only choices make more jobs possible
                    left = deque(study.jobs())
        finally:
            for stopped, _ in crew.under_way.values():
                watch(f"{stopped.name} is stopped")
            in_order(study, folder)
    return failed


def _extent(job: StudyJob) -> str:
    """How much work the tuning of a method is, to show."""
    if job.seed is not None:
        return ""
    run, grid = job.config["run"], job.config["sweep"]["grid"]
    number = math.prod(map(len, grid.values())) * len(run["seeds"])
    return f": {number} run{'s' * (number > 1)} of {run['rounds']} rounds"


def _take(
    study: Study,
    folder: Path,
    job: StudyJob,
    travelled: cluster.ClusterJob,
    outcome: cluster.Outcome,
    failed: dict[str, str],
    watch: Watch,
) -> None:
    """Store the results of a job that a worker has done, or its error."""
    place = folder / "jobs" / job.key
    place.mkdir(parents=True, exist_ok=True)
    write_atomic(place / "job.toml", toml.dumps(job.config))
    if outcome.error:
        write_atomic(place / "log.txt", outcome.log or outcome.error)
        failed[job.key] = f"{job.name}: {outcome.error} ({place / 'log.txt'})"
        watch(f"{job.name} failed: {outcome.error}")
        return
    if not travelled.place:
        cluster.deliver(outcome, place / "run")
        write_atomic(place / "seconds.txt", f"{outcome.seconds:.1f}")
    study.results[job.key] = keep(folder, job)
    watch(f"{job.name} took {outcome.seconds:.0f} s" + f" at {outcome.host}" * (not travelled.place))
