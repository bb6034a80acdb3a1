"""Several processes that run one job: the same histories, whatever their number; and if one dies the others end."""

import itertools
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

import fedax
from fedax.engine import processes
from fedax.errors import ConfigError

from ..flower import LONG
from .problem import DATA
from .together import histories

ROOT = pathlib.Path(__file__).parents[2]
MORE = {
    "scaffold-m-vr": {"method": "scaffold-m-vr", "cohort": "uniform"},  # warm-up
    "fedda-mvr": {"method": "fedda-mvr", "median": True},
    "private": {"method": "scaffold", "private": True},
} | ({"compressed": {"method": "scaffold", "compress": True}} if os.environ.get("FEDAX_LONG") else {})
CASES = {
    "scaffold": {"method": "scaffold", "work": "unequal", "stream": True},
}
CONFIG = """
data = {name = "quadratics", clients = 4, dimension = 3}
run = {rounds = 1_000_000, evaluate_every = 200, seeds = 1}
participation = {kind = "uniform", size = 2}
work = {kind = "steps", steps = 2}
methods = [{name = "scaffold", lr = 0.001}]
"""


def port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def start(command, **options):
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "1", "PYTHONPATH": str(ROOT / "src")}
    kept = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT, "env": environment}
    return subprocess.Popen([sys.executable, *map(str, command)], **kept | options)


def together(number, cases, devices=1):
    at = port()
    module = ["-m", "tests.engine.together"]
    started = [start([*module, k, number, at, json.dumps(cases), devices]) for k in range(number)]
    ended = [process.communicate(timeout=300) for process in started]
    assert [process.returncode for process in started] == [0] * number, "\n".join(err[-2000:] for _, err in ended)
    return [json.loads(out.splitlines()[-1]) for out, _ in ended]


@pytest.fixture(scope="module")
def alone():
    return json.loads(json.dumps(histories(CASES | MORE)))


SECRET = MORE["private"] | {"secret": True, "rounds": 2}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The folder of the checkpoints of the private run whose secret the processes share."""
    return tmp_path_factory.mktemp("private")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, kept):
    """The histories by number of processes. Case "a" is resumed by one process after two, and then by three."""
    folder = tmp_path_factory.mktemp("checkpoints")
    case = MORE["scaffold-m-vr"] | {"checkpoint": str(folder)}
    secrets = {"memory": SECRET, "folder": SECRET | {"checkpoint": str(kept)}}
    results = {2: together(2, CASES | MORE | secrets | {"a": case | {"rounds": 2}}, devices=2)}
    assert sorted(path.name[16:] for path in folder.iterdir()) == ["0-of-2.safetensors", "1-of-2.safetensors"]
    histories({"a": case | {"rounds": 3}})
    results[3] = together(3, {"scaffold": CASES["scaffold"], "a": case})
    assert len(list(folder.glob("round-000000004.*-of-3.*"))) == 3
    return results


@pytest.mark.parametrize(("number", "labels"), [(2, [*CASES, *MORE]), (3, ["scaffold"])])
def test_the_number_of_processes_changes_nothing(number, labels, alone, runs):
    for label in labels:
        known = dict(alone[label])
        memory = known.pop("memory")
        owners = {}
        for each in runs[number]:
            for column, values in known.items():
                np.testing.assert_allclose(each[label][column], values, 1e-5, 1e-6, err_msg=f"{label} {column}")
            assert not owners.keys() & each[label]["memory"].keys()
            owners |= each[label]["memory"]
        assert sorted(owners) == sorted(memory)
        for i, rows in owners.items():
            for one, other in zip(memory[i], rows, strict=True):
                np.testing.assert_allclose(other, one, 1e-5, 1e-6, err_msg=f"{label}: memory of client {i}")


def test_processes_share_the_secret_of_a_private_run(kept, runs):
    """Else each would have cohorts and noise of its own, and another model."""
    one, other = runs[2]
    assert one["memory"]["params"] == other["memory"]["params"]
    assert one["folder"]["params"] == other["folder"]["params"] != one["memory"]["params"]
    for path in kept.glob("round-*"):
        path.unlink()
    (again,) = histories({"folder": SECRET | {"checkpoint": str(kept)}}).values()  # of the same key, by one process
    np.testing.assert_allclose(again["params"], one["folder"]["params"], rtol=1e-4, atol=1e-5)


def test_a_run_goes_on_with_another_number_of_processes(alone, runs):
    """Of two, then of one, then of three: their files are read by those to whom the clients belong now."""
    known = dict(alone["scaffold-m-vr"])
    memory = known.pop("memory")
    rows = [at in (0, 2, 4) for at in runs[3][0]["a"]["round"]]  # round 3 was an end, and has a row
    for each in runs[3]:
        for column, values in known.items():
            seen = each["a"][column] if column in ("params", "times") else np.array(each["a"][column])[rows]
            np.testing.assert_allclose(seen, values, 1e-5, 1e-6, err_msg=column)
        for i, leaves in each["a"]["memory"].items():
            for one, other in zip(memory[i], leaves, strict=True):
                np.testing.assert_allclose(other, one, 1e-5, 1e-6)


def test_one_that_dies_ends_the_others(tmp_path):
    """Which were at work; and only the first has written."""
    config, at = tmp_path / "config.toml", port()
    config.write_text(CONFIG)
    begin = [start(_run(config, tmp_path / f"out{k}", 2, k, at)) for k in range(2)]
    metrics = tmp_path / "out0" / "metrics.jsonl"
    try:
        _until(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, begin)
        begin[1].send_signal(signal.SIGKILL)
        _, error = begin[0].communicate(timeout=60)
    finally:
        for process in begin:
            process.kill()
            process.communicate()
    assert begin[0].returncode == 3
    assert "process 0 of 2 lost the others" in error
    assert json.loads(metrics.read_text().splitlines()[-1])["round"] > 0
    assert not (tmp_path / "out1").exists()


@pytest.mark.parametrize("signalled", [[1], pytest.param([0, 1], marks=LONG)])
def test_sigterm_to_any_ends_all_with_one_checkpoint(signalled, tmp_path):
    config, at = tmp_path / "config.toml", port()
    config.write_text(CONFIG)
    begin = [start(_run(config, tmp_path / "out", 2, k, at)) for k in range(2)]
    metrics = tmp_path / "out" / "metrics.jsonl"
    try:
        _until(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, begin)
        for k in signalled:
            begin[k].send_signal(signal.SIGTERM)
        ended = [process.communicate(timeout=60) for process in begin]
    finally:
        for process in begin:
            process.kill()
            process.communicate()
    assert [process.returncode for process in begin] == [143, 143], ended
    assert "stopped; report: " in ended[0][1] and "stopped; " not in ended[1][1]
    kept = sorted(path.name for path in (tmp_path / "out" / "checkpoints" / "scaffold-seed0").iterdir())
    assert [name[16:] for name in kept] == ["0-of-2.safetensors", "1-of-2.safetensors"]
    assert kept[0][:15] == kept[1][:15]
    assert "stopped at round" in (tmp_path / "out" / "report.html").read_text()


@LONG
def test_processes_that_were_given_different_jobs(tmp_path):
    config, at = tmp_path / "config.toml", port()
    config.write_text(CONFIG)
    more = (["--set", "run.rounds=5"], ["--set", "run.rounds=6"])
    begin = [start([*_run(config, tmp_path / f"out{k}", 2, k, at), *more[k]]) for k in range(2)]
    ended = [process.communicate(timeout=120) for process in begin]
    assert all("job = 'processes [1]'" in error for _, error in ended)
    assert [process.returncode for process in begin] == [2, 2]


def _run(config, out, number, k, at):
    where = ["--coordinator", f"localhost:{at}", "--num-processes", number, "--process-id", k]
    return ["-m", "fedax", "run", config, "--out", out, *where]


def _until(true, processes, seconds=120):
    end = time.monotonic() + seconds
    while not true():
        assert all(process.poll() is None for process in processes), [p.communicate()[1][-2000:] for p in processes]
        assert time.monotonic() < end
        time.sleep(0.1)


def test_shares():
    sizes = np.array([1, 1, 1, 1, 100, 1, 1])
    for of in (1, 2, 3, 7):
        shares = [processes.share(sizes, k, of) for k in range(of)]
        assert shares[0].start == 0 and shares[-1].stop == 7
        assert all(one.stop == other.start for one, other in itertools.pairwise(shares))
        assert all(each.stop > each.start for each in shares)
    even = [processes.share(np.full(1000, 3), k, 4) for k in range(4)]
    assert [each.stop - each.start for each in even] == [250] * 4
    # A client goes where its middle lies; and one with nearly all examples is alone.
    assert processes.share(np.array([3, 12, 5]), 0, 2) == slice(0, 2)
    assert [processes.share(np.array([100, 1, 1, 1, 1]), k, 3) for k in range(3)] == [
        slice(0, 1), slice(1, 2), slice(2, 5)
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="processes = 8"):
        processes.share(sizes, 0, 8)


def test_settings_that_name_one_process_only():
    from typer.testing import CliRunner

    from fedax.cli import app

    for some in (["--coordinator", "a:1"], ["--num-processes", "2", "--process-id", "1"]):
        result = CliRunner().invoke(app, ["run", "digits.toml", *some])
        assert result.exit_code == 2 and "together" in result.stderr


def test_a_sweep_is_refused(monkeypatch):
    monkeypatch.setattr(processes, "count", lambda: 2)
    with pytest.raises(ConfigError, match="processes = 2"):
        fedax.sweep(lambda lr: fedax.create("fedavg", lr=lr), {"lr": [0.1, 0.2]}, None, DATA, rounds=1)
