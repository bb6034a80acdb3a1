"""SIGINT, SIGHUP and SIGTERM during a run: they wait for a checkpoint, and then have their usual effect."""

import importlib.util
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

import fedax
from fedax.engine import drive, signals, simulate

from .. import in_full, mostly_long
from .problem import DATA, TASK
from .test_checkpoint import identical

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def handlers():
    """As in a shell's foreground; pytest may have been started where SIGINT is ignored."""
    before = [signal.signal(signal.SIGINT, signal.default_int_handler), signal.getsignal(signal.SIGTERM)]
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler  # whatever happened
    for each, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
        signal.signal(each, handler)


def run(folder=None, at=None, which=signal.SIGINT, times=1, **options):
    def callback(row):
        if row["round"] == at:
            for _ in range(times):
                signal.raise_signal(which)

    options = {"rounds": 8, "work": fedax.Steps(2), "batch_size": 2, "evaluate_every": 4} | options
    participation = fedax.Uniform(3)
    kept = None if folder is None else fedax.Checkpoints(folder)
    method = fedax.create("scaffold", lr=0.05)
    return fedax.simulate(
        method, TASK, DATA, participation=participation, checkpoint=kept, callback=callback, **options
    )


@pytest.fixture(scope="module")
def whole():
    return run()


def names(folder):
    return sorted(path.name[:15] for path in folder.iterdir())


def test_ctrl_c_waits_for_a_checkpoint(whole, tmp_path):
    with pytest.raises(KeyboardInterrupt) as error:
        run(tmp_path, at=4)
    assert signals.kept(error.value) and "the same call goes on" in error.value.__notes__[0]
    assert names(tmp_path) == ["round-000000004"]
    identical(whole, run(tmp_path))


def test_so_does_a_terminal_that_is_closed(whole, tmp_path):
    class Closed(KeyboardInterrupt):
        pass

    def close(number, frame):
        raise Closed

    before = signal.signal(signal.SIGHUP, close)
    try:
        with pytest.raises(Closed) as error:
            run(tmp_path, at=4, which=signal.SIGHUP)
        assert signals.kept(error.value) and signal.getsignal(signal.SIGHUP) is close
    finally:
        signal.signal(signal.SIGHUP, before)
    assert names(tmp_path) == ["round-000000004"]
    identical(whole, run(tmp_path))


def test_in_the_middle_of_a_stretch(whole, tmp_path, monkeypatch):
    """Where a call ends, without an evaluation."""
    advance = simulate.SingleRun.advance

    def interrupted(self, state, start, stop):
        if start == 2:
            signal.raise_signal(signal.SIGINT)
        return advance(self, state, start, stop)

    monkeypatch.setattr(drive, "_CALL", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(simulate.SingleRun, "advance", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path)
    assert names(tmp_path) == ["round-000000003"]
    identical(whole, run(tmp_path))


def test_a_signal_at_the_end_comes_through(whole, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, at=8)
    identical(whole, run(tmp_path))


def test_a_handler_of_ones_own_decides(whole, tmp_path):
    """One that lets the run go on, twice."""
    seen = []
    signal.signal(signal.SIGTERM, lambda number, frame: seen.append((number, names(tmp_path))))
    identical(whole, run(tmp_path, at=4, which=signal.SIGTERM))
    assert seen == [(signal.SIGTERM, ["round-000000004"])]
    assert names(tmp_path) == ["round-000000004", "round-000000008"]


def test_before_the_first_round_and_without_checkpoints_nothing_waits(tmp_path):
    with pytest.raises(KeyboardInterrupt) as error:
        run(tmp_path, at=0)
    assert not signals.kept(error.value) and not names(tmp_path)
    rows = []
    with pytest.raises(KeyboardInterrupt):
        run(at=4, until=rows.append)
    assert [row["round"] for row in rows] == [0]  # until comes after the callback


def test_a_second_one_does_not_wait(tmp_path, monkeypatch):
    """But within half a second it is the first."""
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "one", at=4, times=2)
    assert names(tmp_path / "one")
    monkeypatch.setattr(signals, "ONE", 0.0)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "two", at=4, times=2)
    assert not names(tmp_path / "two")


def test_in_another_thread_and_where_they_are_ignored(whole, tmp_path):
    """Where Python cannot handle signals, runs run."""
    results = []
    thread = threading.Thread(target=lambda: results.append(run(tmp_path / "thread")))
    thread.start()
    thread.join()
    identical(whole, results[0])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    identical(whole, run(tmp_path / "ignored", at=4))
    assert signal.signal(signal.SIGINT, signal.default_int_handler) is signal.SIG_IGN


def test_calls_are_bounded_by_the_pace(whole, monkeypatch):
    calls, now = [], [0.0]

    class Watched(simulate.SingleRun):
        def advance(self, state, start, stop):
            if stop > start:
                calls.append(stop - start)
                now[0] += 0.25 * (stop - start)
            return super().advance(state, start, stop)

    monkeypatch.setattr(simulate, "SingleRun", Watched)
    monkeypatch.setattr(drive.time, "perf_counter", lambda: now[0])
    result = run(rounds=20, evaluate_every=20)
    assert calls == [1, 8, 8, 3]  # two seconds each, once the pace is known
    monkeypatch.setattr(drive, "_CALL", 1e9)
    calls.clear()
    identical(run(rounds=20, evaluate_every=20), result)
    assert calls == [1, 19]


@in_full
def test_runs_that_are_killed_or_terminated(tmp_path, monkeypatch, full):
    """A few of the kills of benchmarks/kills.py."""
    spec = importlib.util.spec_from_file_location("kills", ROOT / "benchmarks" / "kills.py")
    kills = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kills)
    for name, value in (
        ("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "compiled")),
        ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0"),
        ("PYTHONPATH", str(ROOT / "src")),
    ):
        monkeypatch.setenv(name, value)
    assert kills.case("scaffold", 0, 60, 3 if full else 1, tmp_path, random.Random(3)) == 0


BUSY = """
import hashlib, signal
from fedax.cli import exits
exits.listen()
for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(each, lambda number, frame: None)
print("at work", flush=True)
hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # minutes, in which Python handles no signal
"""


@pytest.mark.parametrize(
    "which", mostly_long([signal.SIGINT, signal.SIGTERM, signal.SIGHUP], signal.SIGINT, signal.SIGTERM)
)
def test_a_second_signal_ends_the_command_whatever_is_at_work(which):
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "at work\n"
        process.send_signal(which)
        process.send_signal(which)  # at once, as programs do that pass signals on
        assert process.stderr.readline() == "stopping; a second signal does it at once\n"
        time.sleep(0.8)
        assert process.poll() is None
        process.send_signal(which)
        process.wait(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 128 + which
