"""Runs the jobs of a study as processes, each on one core."""

import itertools
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
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
    job: StudyJob
    process: "subprocess.Popen[bytes]"
    core: int
    began: float


def _carry_out(study: Study, folder: Path, jobs: int | None, hours: float, watch: Watch) -> bool:
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [*range(os.cpu_count() or 1)]
    free_cores = [cores[i % len(cores)] for i in range(len(cores) if jobs is None else jobs)]
    deadline = time.monotonic() + 3600 * hours
    study.results = results_of(folder)
    (folder / "results").mkdir(exist_ok=True)
    under_way: dict[str, _Process] = {}
    failed: dict[str, str] = {}
    try:
        while time.monotonic() < deadline:
            if free_cores:
                left = (job for job in study.jobs() if job.key not in under_way and job.key not in failed)
                for job in itertools.islice(left, len(free_cores)):
                    core = free_cores.pop(0)
                    under_way[job.key] = _Process(job, _start(folder, job, core), core, time.monotonic())
                    watch(f"{job.name} begins")
            if not under_way:
                break
            while all(running.process.poll() is None for running in under_way.values()) and time.monotonic() < deadline:
                time.sleep(_POLL)
            for running in [running for running in under_way.values() if running.process.poll() is not None]:
                del under_way[running.job.key]
                free_cores.append(running.core)
                _finish(study, folder, running, failed, watch)
    finally:
        for running in under_way.values():
            running.process.terminate()
        for running in under_way.values():
            running.process.wait()
            _finish(study, folder, running, failed, watch)
    if failed:
        raise ConfigError("study", study.section.name, "; ".join(failed.values()))
    return not any(True for _ in study.jobs())


def _finish(study: Study, folder: Path, ended: _Process, failed: dict[str, str], watch: Watch) -> None:
    """Store the results of a process that has ended, or its error."""
    job, code, seconds = ended.job, ended.process.returncode, time.monotonic() - ended.began
    if code == 0:
        study.results[job.key] = keep(folder, job)
        watch(f"{job.name} took {seconds:.0f} s")
    elif code in (_STOPPED, -signal.SIGTERM):
        watch(f"{job.name} stopped after {seconds:.0f} s")
    else:
        log = folder / "jobs" / job.key / "log.txt"
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last_line = said[-1] if said else f"it ended with exit code {code} and no word"  # killed, or the disk is full
        failed[job.key] = f"{job.name}: {last_line} ({log})"
        watch(f"{job.name} failed after {seconds:.0f} s: {last_line}")


def _start(folder: Path, job: StudyJob, core: int) -> "subprocess.Popen[bytes]":
    place = folder / "jobs" / job.key
    place.mkdir(parents=True, exist_ok=True)
    write_atomic(place / "job.toml", toml.dumps(job.config))
    log = (place / "log.txt").open("ab")
    with log:
        return subprocess.Popen(
            [sys.executable, "-m", __package__, str(place), str(core)],
            stdout=log,
            stderr=log,
            env=os.environ | {"JAX_NUM_CPU_DEVICES": "1"},
            start_new_session=True,  # Ctrl-C reaches only the study, which stops its jobs
        )


def _stop(signum: int, frame: Any) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def work(place: Path, core: int) -> None:
    """Run a job in this process."""
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
        write_atomic(spent, f"{before + time.process_time():.1f}")
