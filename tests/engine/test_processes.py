"""Several processes that run one job: the same histories, whatever their number; and if one dies the others end."""

import contextlib
import functools
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

import fedax
from fedax.engine import processes
from fedax.errors import ConfigError
from fedax.sites.service.processes import free_port

from .. import long
from .problem import DATA
from .together import histories

ROOT = pathlib.Path(__file__).parents[2]
MORE = {
    "scaffold-m-vr": {"method": "scaffold-m-vr", "cohort": "uniform"},  # warm-up
    "fedda-mvr": {"method": "fedda-mvr", "median": True, "guard": True},
    "ditto": {"method": "ditto"},
}
PRIVATE = {"method": "scaffold", "private": True}
CASES = {
    "scaffold": {"method": "scaffold", "work": "unequal", "stream": True},
}
OTHERS = {
    "guard": {"method": "scaffold", "cohort": "uniform", "guard": True},
    "compressed": {"method": "scaffold", "compress": True},
}
FOUR = CASES | OTHERS | {"private": PRIVATE}
CONFIG = """
data = {name = "quadratics", clients = 4, dimension = 3}
run = {rounds = 1_000_000, evaluate_every = 200, seeds = 1}
participation = {kind = "uniform", size = 2}
work = {kind = "steps", steps = 2}
methods = [{name = "scaffold", lr = 0.001}]
"""


def start(command, launcher=(), **variables):
    # Of one machine's GPUs each belongs to one process; the tests have more of these.
    own = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", "PYTHONPATH": str(ROOT / "src")}
    environment = os.environ | own | variables
    kept = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT, "env": environment}
    return subprocess.Popen([*launcher, sys.executable, *map(str, command)], **kept)


def together(number, cases, devices=1):
    at = free_port()
    module = ["-m", "tests.engine.together"]
    started = [start([*module, k, number, at, json.dumps(cases), devices]) for k in range(number)]
    ended = [process.communicate(timeout=300) for process in started]
    assert [process.returncode for process in started] == [0] * number, "\n".join(err[-2000:] for _, err in ended)
    return [json.loads(out.splitlines()[-1]) for out, _ in ended]


@functools.cache
def alone(label):
    """The history of a case by one process."""
    return json.loads(json.dumps(histories({label: (FOUR | MORE)[label]})))[label]


SECRET = PRIVATE | {"secret": True}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The folder of the checkpoints of the private run whose secret the processes share."""
    return tmp_path_factory.mktemp("private")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, kept):
    """The histories by number of processes. Case "a" is resumed by one process after two; "b" by two after one."""
    folders = [tmp_path_factory.mktemp(label) for label in "ab"]
    a, b = (MORE["scaffold-m-vr"] | {"checkpoint": str(folder)} for folder in folders)
    secrets = {"memory": SECRET, "folder": SECRET | {"checkpoint": str(kept)}}
    histories({"b": b | {"rounds": 1}})
    results = {2: together(2, CASES | MORE | secrets | {"a": a | {"rounds": 2}, "b": b}, devices=2)}
    assert sorted(path.name[16:] for path in folders[0].iterdir()) == ["0-of-2.safetensors", "1-of-2.safetensors"]
    assert len(list(folders[1].glob("round-000000004.*-of-2.*"))) == 2
    shutil.copytree(folders[0], tmp_path_factory.getbasetemp() / "of two")
    results[1] = [json.loads(json.dumps(histories({"a": a})))]
    return results


@pytest.fixture(scope="module")
def longer(tmp_path_factory, runs):
    """As ``runs``, by more processes. Case "a" is resumed by one process after two, and then by three."""
    folder = tmp_path_factory.getbasetemp() / "of two"
    a = MORE["scaffold-m-vr"] | {"checkpoint": str(folder)}
    histories({"a": a | {"rounds": 3}})
    results = {2: together(2, OTHERS, devices=2), 3: together(3, {"scaffold": CASES["scaffold"], "a": a})}
    assert len(list(folder.glob("round-000000004.*-of-3.*"))) == 3
    return results | {4: together(4, FOUR)}


@pytest.mark.parametrize(
    ("number", "labels", "of"),
    [
        (2, [*CASES, *MORE], "runs"),
        *(pytest.param(n, each, "longer", marks=long) for n, each in ((2, OTHERS), (3, CASES), (4, FOUR))),
    ],
)
def test_the_number_of_processes_changes_nothing(number, labels, of, request):
    for label in labels:
        assert_same(label, alone(label), request.getfixturevalue(of)[number])


def assert_same(label, one, several, rtol=1e-5, atol=1e-6):
    """The history of one process, and the histories of several, each of which has the memory of its own clients."""
    known = dict(one)
    memory = known.pop("memory")
    owners = {}
    for each in several:
        for column, values in known.items():
            np.testing.assert_allclose(each[label][column], values, rtol, atol, err_msg=f"{label} {column}")
        assert not owners.keys() & each[label]["memory"].keys()
        owners |= each[label]["memory"]
    assert sorted(owners) == sorted(memory)
    for i, rows in owners.items():
        for mine, other in zip(memory[i], rows, strict=True):
            np.testing.assert_allclose(other, mine, rtol, atol, err_msg=f"{label}: memory of client {i}")


def test_processes_share_the_secret_of_a_private_run(kept, runs):
    """Else each would have cohorts and noise of its own, and another model."""
    one, other = runs[2]
    assert one["memory"]["params"] == other["memory"]["params"]
    assert one["folder"]["params"] == other["folder"]["params"] != one["memory"]["params"]
    for path in kept.glob("round-*"):
        path.unlink()
    (again,) = histories({"folder": SECRET | {"checkpoint": str(kept)}}).values()  # of the same key, by one process
    assert_same("folder", json.loads(json.dumps(again)), runs[2], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("label", "number", "of"), [("b", 2, "runs"), ("a", 1, "runs"), pytest.param("a", 3, "longer", marks=long)]
)
def test_a_run_goes_on_with_another_number_of_processes(label, number, of, request):
    """Of one, then of two; of two, then of one; or then of three: all read the files of the clients that are theirs."""
    known = dict(alone("scaffold-m-vr"))
    memory = known.pop("memory")
    for each in request.getfixturevalue(of)[number]:
        rows = [at in (0, 2, 4) for at in each[label]["round"]]  # rounds 1 and 3 were ends, and have rows
        for column, values in known.items():
            seen = each[label][column] if column in ("params", "times") else np.array(each[label][column])[rows]
            np.testing.assert_allclose(seen, values, 1e-5, 1e-6, err_msg=column)
        for i, leaves in each[label]["memory"].items():
            for one, other in zip(memory[i], leaves, strict=True):
                np.testing.assert_allclose(other, one, 1e-5, 1e-6)


def _under_slurm(k, number, at):
    """The variables that ``srun`` sets, by which JAX finds the others; its port would be that of the job's number."""
    told = {"JOB_ID": 7, "STEP_NODELIST": "localhost", "NTASKS": number, "PROCID": k, "LOCALID": k}
    return {f"SLURM_{name}": str(value) for name, value in told.items()} | {"JAX_COORDINATOR_PORT": str(at)}


def test_one_that_dies_ends_the_others(tmp_path):
    """Which were at work, and found each other as SLURM told them; and only the first has written."""
    config, at = tmp_path / "config.toml", free_port()
    config.write_text(CONFIG)
    commands = [["-m", "fedax", "run", config, "--out", tmp_path / f"out{k}", "--distributed"] for k in range(2)]
    begin = [start(command, **_under_slurm(k, 2, at)) for k, command in enumerate(commands)]
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


@long
@pytest.mark.parametrize(("which", "how"), [(0, signal.SIGKILL), (2, signal.SIGKILL), (2, signal.SIGSTOP)])
def test_of_four_that_lose_one_all_end_in_time(which, how, tmp_path):
    """JAX ends those that it tells before fedax sees it, by SIGABRT: where process 0 is lost, or one only hangs."""
    with _under_way(tmp_path, 4) as begin:
        begin[which].send_signal(how)
        others = [process for k, process in enumerate(begin) if k != which]
        errors = [process.communicate(timeout=60)[1] for process in others]
    assert {process.returncode for process in others} <= {3, -signal.SIGABRT}
    assert all("lost the others" in error or "another task died" in error for error in errors)


@long
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs Open MPI")
def test_mpirun_needs_no_addresses(tmp_path):
    config, out = tmp_path / "config.toml", tmp_path / "out"
    config.write_text(CONFIG)
    launcher = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "4"]
    command = ["-m", "fedax", "run", config, "--out", out, "--distributed", "--set", "run.rounds=400"]
    process = start(command, launcher)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 0, error[-2000:]
    assert json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])["round"] == 400


@pytest.mark.parametrize("there", [True, False])
def test_an_mpi_that_jax_does_not_know_is_asked_by_mpi4py(there, monkeypatch):
    asked = []

    def initialize(*given, cluster_detection_method=None, **options):
        if cluster_detection_method is None:
            raise ValueError("coordinator_address should be defined.")
        asked.append(cluster_detection_method)

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    monkeypatch.setattr(processes.importlib.util, "find_spec", lambda name: there or None)
    for variable in ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ConfigError, match=r"distributed = .*coordinator_address"):  # no MPI has started this process
        processes.connect()
    monkeypatch.setenv("PMI_RANK", "0")
    if there:
        processes.connect()
    else:
        with pytest.raises(ConfigError, match="another MPI with the package mpi4py"):
            processes.connect()
    assert asked == ["mpi4py"] * there
    with pytest.raises(ConfigError, match="distributed = 'a:1'"):
        processes.connect("a:1", 2, 2)


@pytest.mark.parametrize("signalled", [[1], pytest.param([0, 1], marks=long)])
def test_sigterm_to_any_ends_all_with_one_checkpoint(signalled, tmp_path):
    with _under_way(tmp_path, 2) as begin:
        for k in signalled:
            begin[k].send_signal(signal.SIGTERM)
        ended = [process.communicate(timeout=60) for process in begin]
    assert [process.returncode for process in begin] == [143, 143], ended
    assert "stopped; report: " in ended[0][1] and "stopped; " not in ended[1][1]
    kept = sorted(path.name for path in (tmp_path / "out" / "checkpoints" / "scaffold-seed0").iterdir())
    assert [name[16:] for name in kept] == ["0-of-2.safetensors", "1-of-2.safetensors"]
    assert kept[0][:15] == kept[1][:15]
    assert "stopped at round" in (tmp_path / "out" / "report.html").read_text()


@long
def test_processes_that_were_given_different_jobs(tmp_path):
    config, at = tmp_path / "config.toml", free_port()
    config.write_text(CONFIG)
    more = (["--set", "run.rounds=5"], ["--set", "run.rounds=6"])
    begin = [start([*_run(config, tmp_path / f"out{k}", 2, k, at), *more[k]]) for k in range(2)]
    ended = [process.communicate(timeout=120) for process in begin]
    assert all("job = 'processes [1]'" in error for _, error in ended)
    assert [process.returncode for process in begin] == [2, 2]


@contextlib.contextmanager
def _under_way(tmp_path, number):
    """So many processes of one run, after its first rows; what is left of them is killed in the end."""
    config, at = tmp_path / "config.toml", free_port()
    config.write_text(CONFIG)
    begin = [start(_run(config, tmp_path / "out", number, k, at)) for k in range(number)]
    metrics = tmp_path / "out" / "metrics.jsonl"
    try:
        _until(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, begin)
        yield begin
    finally:
        for process in begin:
            process.kill()
            process.communicate()


def _run(config, out, number, k, at):
    where = ["--coordinator", f"localhost:{at}", "--num-processes", number, "--process-id", k]
    return ["-m", "fedax", "run", config, "--out", out, *where]


def _until(true, processes, seconds=300):
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


def test_two_processes_on_one_gpu_are_told_so(monkeypatch):
    def sync(name):
        raise jax.errors.JaxRuntimeError(
            "INTERNAL: NCCL operation ncclCommInitRankConfig(…) failed: invalid usage. Last NCCL warning(error) "
            "log entry (may be unrelated) 'Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 60'."
        )

    monkeypatch.setattr(processes.jax.distributed, "initialize", lambda *args, **kwargs: None)
    monkeypatch.setattr(processes.multihost_utils, "sync_global_devices", sync)
    with pytest.raises(ConfigError, match=r"distributed = 'a:1': .*same GPU"):
        processes.connect("a:1", 2, 0)
