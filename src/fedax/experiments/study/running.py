"""Runs the jobs of a study: as processes of this machine, each on one core, or by an executor."""

import itertools
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple, NoReturn

import fedax
from fedax._start import share_gpu
from fedax.errors import ConfigError
from fedax.experiments import cluster, toml
from fedax.experiments.runs import Path, locked
from fedax.experiments.study.parts import Study, StudyJob
from fedax.experiments.study.results import in_order, keep, results_of
from fedax.files import write_atomic

Watch = Callable[[str], None]

_POLL = 0.2  # seconds
_DONE = "done"  # a file in the folder of a job that is over
_STOPPED = 143  # the exit code of a job that SIGTERM has stopped, with a checkpoint


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
        executor: of ``concurrent.futures``, in the place of processes here. Jobs have no checkpoints there: one that is
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
            failed = _carry_out(study, folder, jobs, deadline, watch)
        else:
            failed = _carry_out_elsewhere(study, folder, executor, deadline, watch)
    if failed:
        raise ConfigError("study", study.section.name, "; ".join(failed.values()))
    return not any(True for _ in study.jobs())


class _Process(NamedTuple):
    jobs: list[StudyJob]
    process: "subprocess.Popen[bytes]"
    core: int
    began: float


def _carry_out(study: Study, folder: Path, jobs: int | None, deadline: float, watch: Watch) -> dict[str, str]:
    """Run jobs as processes; returns the key of each that failed -> its error."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [*range(os.cpu_count() or 1)]
    free_cores = [cores[i % len(cores)] for i in range(len(cores) if jobs is None else jobs)]
    under_way: list[_Process] = []
    failed: dict[str, str] = {}
    try:
        while time.monotonic() < deadline:
            if free_cores:
                busy = {job.key for running in under_way for job in running.jobs} | failed.keys()
                left = (job for job in study.jobs() if job.key not in busy)
                todo = [*itertools.islice(left, study.section.together * len(free_cores))]
                share = math.ceil(len(todo) / len(free_cores))
                while todo:
                    core, some, todo = free_cores.pop(0), todo[:share], todo[share:]
                    under_way.append(_Process(some, _start(folder, some, core), core, time.monotonic()))
                    watch(f"{_named(some)} begins")
            if not under_way:
                break
            while all(running.process.poll() is None for running in under_way) and time.monotonic() < deadline:
                time.sleep(_POLL)
            for running in [running for running in under_way if running.process.poll() is not None]:
                under_way.remove(running)
                free_cores.append(running.core)
                _finish(study, folder, running, failed, watch)
    finally:
        for running in under_way:
            running.process.terminate()
        for running in under_way:
            running.process.wait()
            _finish(study, folder, running, failed, watch)
    return failed


def _carry_out_elsewhere(
    study: Study, folder: Path, executor: Executor, deadline: float, watch: Watch
) -> dict[str, str]:
    """Run jobs by an executor; returns the key of each that failed -> its error."""
    given: dict[str, StudyJob] = {}  # key of the job that travels -> job
    known: set[str] = set()
    failed: dict[str, str] = {}
    try:
        with cluster.Crew(executor) as crew:
            choice_made = True
            while time.monotonic() < deadline:
                for job in study.jobs() if choice_made else ():  # only choices make more jobs possible
                    if job.key not in known:
                        known.add(job.key)
                        travels = cluster.Job.of(job.name, [job.config])
                        given[travels.key] = job
                        crew.give(travels)
                if not crew.under_way:
                    break
                arrived = crew.wait(None if deadline == math.inf else max(0.0, deadline - time.monotonic()))
                if arrived is None:
                    break
                outcome = arrived[1]
                job = given[outcome.key]
                choice_made = job.seed is None
                _take(study, folder, job, outcome, failed, watch)
    finally:
        in_order(study, folder)
    return failed


def _take(
    study: Study, folder: Path, job: StudyJob, outcome: cluster.Outcome, failed: dict[str, str], watch: Watch
) -> None:
    """Store the results of a job that an executor has done, or its error."""
    place, seconds = folder / "jobs" / job.key, f"{outcome.seconds:.0f} s at {outcome.host}"
    if outcome.error:
        place.mkdir(parents=True, exist_ok=True)
        write_atomic(place / "log.txt", outcome.log or outcome.error)
        failed[job.key] = f"{job.name}: {outcome.error} ({place / 'log.txt'})"
        watch(f"{job.name} failed: {outcome.error}")
        return
    cluster.deliver(outcome, place / "run")
    write_atomic(place / "job.toml", toml.dumps(job.config))
    write_atomic(place / "seconds.txt", f"{outcome.seconds:.1f}")
    study.results[job.key] = keep(folder, job)
    watch(f"{job.name} took {seconds}")


def _named(jobs: Sequence[StudyJob]) -> str:
    return jobs[0].name if len(jobs) == 1 else f"{jobs[0].name}, and {len(jobs) - 1} more"


def _finish(study: Study, folder: Path, ended: _Process, failed: dict[str, str], watch: Watch) -> None:
    """Store the results of a process that has ended, or its error."""
    code, seconds, name = ended.process.returncode, time.monotonic() - ended.began, _named(ended.jobs)
    done = [job for job in ended.jobs if code == 0 or (folder / "jobs" / job.key / _DONE).exists()]
    for job in done:
        study.results[job.key] = keep(folder, job)
    if len(done) == len(ended.jobs):
        watch(f"{name} took {seconds:.0f} s")
    elif code in (_STOPPED, -signal.SIGTERM):
        watch(f"{name} stopped after {seconds:.0f} s")
    else:
        job = next(job for job in ended.jobs if job not in done)
        log = folder / "jobs" / ended.jobs[0].key / "log.txt"
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last_line = lines[-1] if lines else f"it ended with exit code {code} and no word"  # killed, or the disk is full
        failed[job.key] = f"{job.name}: {last_line} ({log})"
        watch(f"{job.name} failed after {seconds:.0f} s: {last_line}")


def _start(folder: Path, jobs: Sequence[StudyJob], core: int) -> "subprocess.Popen[bytes]":
    places = [folder / "jobs" / job.key for job in jobs]
    for job, place in zip(jobs, places, strict=True):
        place.mkdir(parents=True, exist_ok=True)
        write_atomic(place / "job.toml", toml.dumps(job.config))
    log = (places[0] / "log.txt").open("ab")
    with log:
        return subprocess.Popen(
            [sys.executable, "-m", __package__, str(core), *map(str, places)],
            stdout=log,
            stderr=log,
            env=os.environ | {"JAX_NUM_CPU_DEVICES": "1"},
            start_new_session=True,  # Ctrl-C reaches only the study, which stops its jobs
        )


def _stop(signum: int, frame: Any) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def work(place: Path, core: int, began: float = 0.0) -> None:
    """Run a job in this process, which had taken ``began`` seconds of its core before it."""
    from fedax.experiments import build, execute, new_folder, plan, tune

    signal.signal(signal.SIGTERM, _stop)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    config = toml.loads((place / "job.toml").read_bytes())
    run = place / "run"
    folder = run if (run / "config.toml").exists() else new_folder(run, config["name"])
    try:
        with locked(folder):  # the study may have been killed and started again
            if "sweep" in config:
                tune(plan(config), folder, drawn=False)
            else:
                execute(build(config), folder, drawn=False)
    except KeyboardInterrupt:
        raise SystemExit(_STOPPED) from None
    except fedax.FedaxError as error:
        raise SystemExit(f"{error}") from None
    finally:  # CPU seconds, with those before an interruption
        spent = place / "seconds.txt"
        before = float(spent.read_text()) if spent.exists() else 0.0
        write_atomic(spent, f"{before + time.process_time() - began:.1f}")
    write_atomic(place / _DONE, "")
