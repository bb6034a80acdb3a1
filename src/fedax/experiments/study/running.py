"""The jobs of a study as processes, side by side, each on one core."""

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
from fedax.experiments.study.parts import Job, Study
from fedax.experiments.study.results import keep, results_of

Watch = Callable[[str], None]

_POLL = 0.2  # seconds
_STOPPED = 143  # the exit code of a job that SIGTERM has ended, with a checkpoint


def carry_out(
    study: Study,
    folder: Path,
    jobs: int | None = None,
    hours: float = math.inf,
    watch: Watch = lambda text: None,
) -> bool:
    """Do all that is left of a study, ``jobs`` processes at a time, each on one core.

    Args:
        study: from :func:`read_study`.
        folder: of the study; what is there already is not done again.
        jobs: how many processes; default: as many as there are cores.
        hours: after them no job begins, and those under way are stopped, with a checkpoint each.
        watch: called with a sentence about each job that begins or ends.

    Returns:
        Whether all is done.

    Raises:
        ConfigError: jobs failed, with what each said last; all others are done.
    """
    share_gpu()
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        return _carry_out(study, folder, jobs, hours, watch)


class _Process(NamedTuple):
    job: Job
    process: "subprocess.Popen[bytes]"
    core: int
    began: float


def _carry_out(study: Study, folder: Path, jobs: int | None, hours: float, watch: Watch) -> bool:
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [*range(os.cpu_count() or 1)]
    free = [cores[i % len(cores)] for i in range(len(cores) if jobs is None else jobs)]
    until = time.monotonic() + 3600 * hours
    study.results = results_of(folder)
    (folder / "results").mkdir(exist_ok=True)
    under_way: dict[str, _Process] = {}
    failed: dict[str, str] = {}
    try:
        while time.monotonic() < until:
            if free:
                left = (job for job in study.jobs() if job.key not in under_way and job.key not in failed)
                for job in itertools.islice(left, len(free)):
                    core = free.pop(0)
                    under_way[job.key] = _Process(job, _start(folder, job, core), core, time.monotonic())
                    watch(f"{job.name} begins")
            if not under_way:
                break
            while all(each.process.poll() is None for each in under_way.values()) and time.monotonic() < until:
                time.sleep(_POLL)
            for each in [each for each in under_way.values() if each.process.poll() is not None]:
                del under_way[each.job.key]
                free.append(each.core)
                _ended(study, folder, each, failed, watch)
    finally:
        for each in under_way.values():
            each.process.terminate()
        for each in under_way.values():
            each.process.wait()
            _ended(study, folder, each, failed, watch)
    if failed:
        raise ConfigError("study", study.section.name, "; ".join(failed.values()))
    return not any(True for _ in study.jobs())


def _ended(study: Study, folder: Path, each: _Process, failed: dict[str, str], watch: Watch) -> None:
    """Keep what a process that has ended leaves."""
    job, code, seconds = each.job, each.process.returncode, time.monotonic() - each.began
    if code == 0:
        study.results[job.key] = keep(folder, job)
        watch(f"{job.name} took {seconds:.0f} s")
    elif code in (_STOPPED, -signal.SIGTERM):
        watch(f"{job.name} stopped after {seconds:.0f} s")
    else:
        log = folder / "jobs" / job.key / "log.txt"
        *_, said = ["nothing", *log.read_text(encoding="utf-8", errors="replace").strip().splitlines()]
        failed[job.key] = f"{job.name}: {said} ({log})"
        watch(f"{job.name} failed after {seconds:.0f} s: {said}")


def _start(folder: Path, job: Job, core: int) -> "subprocess.Popen[bytes]":
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
            start_new_session=True,  # Ctrl-C is for the study, which stops its jobs one by one
        )


def _stop(signum: int, frame: Any) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def work(place: Path, core: int) -> None:
    """The process of a job."""
    from fedax.experiments import build, execute, new_folder, plan, tune

    signal.signal(signal.SIGTERM, _stop)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    config = toml.loads((place / "job.toml").read_bytes())
    run = place / "run"
    folder = run if (run / "config.toml").exists() else new_folder(run, config["name"])
    try:
        with locked(folder):  # the study may have been killed, and begun again
            if "sweep" in config:
                tune(plan(config), folder, drawn=False)
            else:
                execute(build(config), folder, drawn=False)
    except KeyboardInterrupt:
        raise SystemExit(_STOPPED) from None
    except fedax.FedaxError as error:
        raise SystemExit(f"{error}") from None
    finally:  # of its core, those before it was stopped included
        spent = place / "seconds.txt"
        before = float(spent.read_text()) if spent.exists() else 0.0
        write_atomic(spent, f"{before + time.process_time():.1f}")
