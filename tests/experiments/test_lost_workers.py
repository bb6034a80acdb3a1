"""Workers that are killed, whoever started them, and workers whose command is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.experiments import run_cli
from tests.processes import children, descendants, is_running, wait_for

STUDY = """
name = "mine"
together = TOGETHER

[[parts]]
name = "one"
recipe = "small.toml"
set = {"run.seeds" = [3]}
"""
ENDLESS = """
name = "mine"
parts = [{name = "one", recipe = "small.toml", set = {"run.rounds" = 100000, "run.evaluate_every" = 1000}}]
"""
PLAIN = """
name = "mine"
parts = [{name = "one", recipe = "small.toml", methods = ["fedavg"], set = {"run.seeds" = [3]}}]
"""
RECIPE = """
name = "small"
data = {name = "quadratics", clients = 3, dimension = 2}
work = {kind = "steps", steps = 1}
run = {rounds = 60, batch_size = 64, seeds = [3, 4], evaluate_every = 1}
methods = [{name = "fedavg", lr = 0.1}, {name = "fednova", lr = 0.1}]
"""
LONG = ["--set", "run.rounds=100000", "--set", "run.evaluate_every=1000"]


@pytest.fixture
def started(tmp_path):
    """Starts commands of fedax in a folder with a study, and ends them with all that they started."""
    (tmp_path / "small.toml").write_text(RECIPE)
    (tmp_path / "endless.toml").write_text(ENDLESS)
    (tmp_path / "plain.toml").write_text(PLAIN)
    commands, known = [], []

    def start(*arguments):
        with (tmp_path / "output.txt").open("ab") as output:
            commands.append(
                subprocess.Popen(
                    [sys.executable, "-m", "fedax", *arguments],
                    cwd=tmp_path,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                )
            )
        return commands[-1]

    yield start, known
    for command in commands:
        for process in [*known, *descendants(command.pid), *([command.pid] if command.poll() is None else [])]:
            if is_running(process):
                os.kill(process, signal.SIGKILL)
        command.wait()


def lines_of(folder):
    """The results of a study, without what is measured."""
    lines = [json.loads(line) for line in (folder / "results" / "one.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("seconds"), line.pop("sha256", None)
        line.get("history", {}).pop("seconds", None)
    return lines


def worker(command):
    """A worker of a command, once there is one."""
    found = []
    wait_for(lambda: found.extend(children(command.pid, "fedax.")) or found or command.poll() is not None)
    return found[0] if found else None


def study(folder, *where):
    """Carry out a study by a command in this process, whose children its workers are."""
    result = run_cli("study", str(folder.parent / f"{folder.name}.toml"), "--out", str(folder), *where)
    assert result.exit_code == 0, result.output


def killed_at_work(folder, number):
    """Kill the first worker of this process once a job in the folder has rows, of so many workers."""
    wait_for(lambda: any(path.stat().st_size for path in (folder / "jobs").glob("*/run/metrics.jsonl")))
    workers, results = children(os.getpid(), "fedax."), folder / "results" / "one.jsonl"
    done = len(results.read_text().splitlines()) if results.exists() else 0
    os.kill(workers[0], signal.SIGKILL)
    assert len(workers) == number and done < 2  # there was work


def test_a_study_ends_alike_when_a_worker_is_killed(tmp_path):
    """With a process for each of two jobs, and with one process for both."""
    (tmp_path / "small.toml").write_text(RECIPE)
    for name, together in (("whole", 9), ("each", 1), ("all", 9)):
        (tmp_path / f"{name}.toml").write_text(STUDY.replace("TOGETHER", str(together)))
    study(tmp_path / "whole", "--jobs", "1")
    for name, number, *where in (("each", 2, "--on", "processes:2"), ("all", 1, "--jobs", "1")):
        with ThreadPoolExecutor(1) as pool:
            killed = pool.submit(killed_at_work, tmp_path / name, number)
            study(tmp_path / name, *where)
            killed.result()
        assert lines_of(tmp_path / name) == lines_of(tmp_path / "whole")
        assert len(lines_of(tmp_path / name)) == 2


def test_a_job_that_loses_three_workers_is_named(started, tmp_path):
    start, _ = started
    command, killed = start("study", "plain.toml", "--out", "out", "--jobs", "1"), 0
    while (process := worker(command)) is not None:
        os.kill(process, signal.SIGKILL)
        killed += 1
        wait_for(lambda process=process: not is_running(process))
    assert (command.wait(60), killed) == (2, 3)
    errors = [line for line in (tmp_path / "output.txt").read_text().splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "fedavg, seed 3: given up after 3" in errors[0] and "SIGKILL" in errors[0]


@pytest.mark.parametrize(
    ("arguments", "processes"),
    [
        (["study", "endless.toml", "--on", "processes:2"], 2),
        (["deploy", "local", "small.toml", "--nodes", "2", *LONG], 5),
    ],
)
def test_workers_end_within_three_seconds_of_a_command_that_is_killed(started, tmp_path, arguments, processes):
    """Once as soon as they are there, while they import, and once at work."""
    if arguments[0] == "deploy":
        pytest.importorskip("starlette", reason="needs fedax[deploy]")
    start, known = started
    for out in ("import", "work"):
        command = start(*arguments, "--out", out)
        wait_for(lambda command=command: len(descendants(command.pid)) >= processes)
        if out == "work":
            wait_for(lambda: any(path.stat().st_size for path in (tmp_path / "work").glob("**/metrics.jsonl")))
        known += (workers := descendants(command.pid))
        assert len(workers) >= processes, (tmp_path / "output.txt").read_text()
        command.kill()
        wait_for(lambda workers=workers: not any(map(is_running, workers)), 3.0)


def test_the_process_that_reads_hdf5_ends_with_its_parent(tmp_path):
    pytest.importorskip("h5py", reason="needs fedax[hdf5]")
    (tmp_path / "h5py.py").write_text("import time\n\ndef File(*given):\n    time.sleep(100)\n")  # as one that hangs
    (tmp_path / "any.h5").write_bytes(b"\x89HDF")
    script = "import fedax; fedax.data.from_tff_hdf5('any.h5')"
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, env=os.environ | {"PYTHONPATH": path})
    reader = None
    try:
        wait_for(lambda: children(parent.pid, "hdf5_reading"))
        (reader,) = children(parent.pid, "hdf5_reading")
        time.sleep(1.0)
        parent.kill()
        wait_for(lambda: not is_running(reader), 3.0)
    finally:
        parent.kill()
        parent.wait()
        if reader is not None and is_running(reader):
            os.kill(reader, signal.SIGKILL)
