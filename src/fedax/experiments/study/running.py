"""Runs the jobs of a study as processes, each on one core."""

import itertools
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import fedax
from fedax._start import share_gpu
from fedax.errors import ConfigError
from fedax.experiments import toml
from fedax.experiments.runs import Path, locked, write_atomic
from fedax.experiments.study.parts import Study, StudyJob
from fedax.experiments.study.results import keep, results_of

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
) -> bool:
    """Run all unfinished jobs of a study, ``jobs`` processes at a time, each on one core.

    Args:
        study: from :func:`read_study`.
        folder: of the study; jobs with results there are not run again.
        jobs: how many processes; default: one for each core.
        hours: after this time no job begins, and running jobs are stopped, each with a checkpoint.
        watch: called with a sentence about each job that begins or ends.

    Returns:
        Whether all jobs are done.

    Raises:
        ConfigError: jobs failed; it has the last line of each log. All other jobs are done.
    """
    share_gpu()
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        return _carry_out(study, folder, jobs, hours, watch)


class _Process(NamedTuple):
    jobs: list[StudyJob]
    process: "subprocess.Popen[bytes]"
    core: int
    began: float


def _carry_out(study: Study, folder: Path, jobs: int | None, hours: float, watch: Watch) -> bool:
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [*range(os.cpu_count() or 1)]
    free_cores = [cores[i % len(cores)] for i in range(len(cores) if jobs is None else jobs)]
    deadline = time.monotonic() + 3600 * hours
    study.results = results_of(folder)
    (folder / "results").mkdir(exist_ok=True)
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
    if failed:
        raise ConfigError("study", study.section.name, "; ".join(failed.values()))
    return not any(True for _ in study.jobs())


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
        *_, last_line = ["nothing", *log.read_text(encoding="utf-8", errors="replace").strip().splitlines()]
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
