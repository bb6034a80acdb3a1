"""Jobs on other processes and machines: what is lost, damaged or out of order, what is refused, what is the same."""

import importlib.util
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor

import jax
import numpy as np
import pytest
import tomli_w
from typer.testing import CliRunner

import fedax
from fedax.cli import app
from fedax.errors import ConfigError, ProcessError
from fedax.experiments import build, plan, read, runner, tune
from fedax.experiments.cluster import ClusterJob, Crew, Outcome, crew, engines, jobs
from fedax.experiments.study import carry_out, read_study
from tests import long
from tests.data.test_heart import written

from .. import LAST_BITS

SWEEP = {
    "data": {"name": "digits", "clients": 3, "partition": "iid"},
    "run": {"rounds": 2, "batch_size": 64, "seeds": [0, 1], "evaluate_every": 1},
    "work": {"kind": "steps", "steps": 1},
    "methods": [{"name": "fedavg"}, {"name": "fednova"}],
    "sweep": {"grid": {"methods.*.lr": [0.1, 0.2]}},
}


class Wild(Executor):
    """Runs jobs at once, and tells their ends later, in a random order; ``spoil`` may change an outcome or raise."""

    def __init__(self, spoil=lambda attempt, outcome: outcome, seed=0):
        self.spoil, self.attempts, self.waiting = spoil, {}, []
        self.random, self.calls = random.Random(seed), []

    def submit(self, fn, /, job):
        future = Future()
        attempt = self.attempts[job.key] = self.attempts.get(job.key, 0) + 1
        self.calls.append(job.name)

        def end():
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(self.spoil(attempt, pickle.loads(pickle.dumps(fn(pickle.loads(pickle.dumps(job)))))))
            except Exception as error:
                future.set_exception(error)

        self.waiting.append(end)
        threading.Timer(0.05, self.tell).start()
        return future

    def tell(self):
        waiting, self.waiting = self.waiting, []
        self.random.shuffle(waiting)
        for end in waiting:
            end()


def done(job, perform=None, files=None):
    files = {"a.txt": b"a"} if files is None else files
    return Outcome(job.key, "node", files, jobs._digest(job.key, files))


def of_one(executor, monkeypatch, work=done):
    """The outcome of one job that does nothing."""
    monkeypatch.setattr(crew, "work", work)
    with Crew(executor, runner.perform) as hands:
        hands.give(ClusterJob("nothing", b"x"))
        return hands.wait(20)[1]


def test_a_job_whose_worker_is_gone_runs_again(monkeypatch):
    def gone(times):
        def spoil(attempt, outcome):
            if attempt <= times:
                raise ConnectionError("the worker is gone")
            return outcome

        return spoil

    wild = Wild(gone(2))
    assert of_one(wild, monkeypatch).files == {"a.txt": b"a"} and len(wild.calls) == 3
    outcome = of_one(Wild(gone(3)), monkeypatch)
    assert outcome.error == "given up after 3 attempts (ConnectionError: the worker is gone)"


@pytest.mark.parametrize(
    "damaged",
    [
        lambda outcome: Outcome(outcome.key, "node", {"a.txt": b"b"}, outcome.digest),
        lambda outcome: done(ClusterJob("another", b"y")),
        lambda outcome: done(outcome, files={"../a.txt": b"a"}),
        lambda outcome: done(outcome, files={"/tmp/a.txt": b"a"}),
        lambda outcome: None,
    ],
)
def test_results_that_arrive_damaged_are_not_taken(monkeypatch, damaged):
    wild = Wild(lambda attempt, outcome: damaged(outcome) if attempt == 1 else outcome)
    assert of_one(wild, monkeypatch).files == {"a.txt": b"a"} and len(wild.calls) == 2


def test_an_executor_that_takes_no_job_and_what_is_none(monkeypatch):
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(ConfigError, match=r"'ThreadPoolExecutor': .*\(RuntimeError"):
        of_one(pool, monkeypatch)
    with pytest.raises(ConfigError, match=r"executor = 4: .*futures\.Executor"):
        Crew(4, runner.perform)


def test_a_worker_with_other_data_or_versions_is_refused(monkeypatch):
    config = SWEEP | {"methods": SWEEP["methods"][:1]}
    other = ClusterJob("x", (config,), data="0" * 16)
    monkeypatch.setenv("FEDAX_DATA", "/nowhere")
    assert jobs.work(other, runner.perform).refused.startswith("its data set digits is another one (")
    assert jobs.work(other, runner.perform).refused.endswith("FEDAX_DATA is /nowhere there: copy this side's")
    mnist = ClusterJob("x", (config | {"data": {"name": "mnist", "clients": 3}},), data="0" * 16)
    assert "(mnist: nothing of it in /nowhere" in jobs.work(mnist, runner.perform).refused
    old = ClusterJob("x", (config,), versions={"fedax": "0.0.1"})
    here = f"other versions, and rows would not be the same: fedax {fedax.__version__} there and 0.0.1 here"
    assert here in jobs.work(old, runner.perform).refused
    with (
        Crew(ThreadPoolExecutor(1), runner.perform) as hands,
        pytest.raises(ConfigError, match=r"worker = '.*': its data set digits"),
    ):
        hands.give(other)
        hands.wait(20)


@pytest.mark.parametrize(
    ("on", "message"),
    [
        ("dusk:tcp://x:1", "give processes[:N], dask:tcp://host:port, slurm[:partition] or ray"),
        ("processes:", "give processes[:N]"),
        ("processes:0x", "give a number of processes of at least 1"),
        ("processes:0", "give a number of processes of at least 1"),
        ("dask:node1", "give the address that the scheduler has printed"),
        ("dask", "give the address that the scheduler has printed"),
        ("ray:x", "the variable RAY_ADDRESS names a cluster"),
        ("dask:tcp://x:1", "it needs the package distributed: pip install 'fedax[dask]'"),
        ("slurm", "it needs the package submitit: pip install 'fedax[slurm]'"),
        ("ray", "it needs the package ray: pip install 'fedax[ray]'"),
    ],
)
def test_an_engine_that_cannot_be_is_refused_before_any_work(on, message, monkeypatch, tmp_path):
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: None)
    monkeypatch.chdir(tmp_path)
    for command in (["compare", "digits"], ["sweep", "nowhere.toml"], ["study", "speedup"]):
        result = CliRunner().invoke(app, [*command, "--on", on])
        assert result.exit_code == 2 and f"error: on = '{on}': " in result.output and message in result.output
    assert not [*tmp_path.iterdir()]


def test_a_study_has_one_word_on_where_it_runs(tmp_path):
    result = CliRunner().invoke(app, ["study", "speedup", "--jobs", "2", "--on", "ray", "--out", str(tmp_path / "x")])
    assert result.exit_code == 2 and "jobs = 2: --on ray says where" in result.output


def rows(folder):
    """metrics.jsonl without times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in ("seconds", "sha256")} for line in lines]


def quadratics(**given):
    data, task = fedax.data.quadratics(clients=3, dimension=2), fedax.tasks.quadratic(2)
    return fedax.compare(["fedavg", "fednova"], task, data, rounds=3, seeds=2, **given)


def test_a_tracker_is_told_how_a_run_ended_wherever_it_was(tmp_path):
    stop, ends = fedax.Patience("train_loss", evaluations=1, least=1e9), {}
    for name, where in (("here", {}), ("elsewhere", {"executor": Wild()})):

        class Ends:
            def row(self, row):
                pass

            def end(self, status, of=name):
                ends.setdefault(of, []).append(status)

        quadratics(until=stop, evaluate_every=1, track=lambda *run: Ends(), out=tmp_path / name, **where)
    assert ends == {"here": ["stopped"] * 4, "elsewhere": ["stopped"] * 4}


def test_a_comparison_is_the_same_whatever_comes_first(tmp_path):
    def lossy(attempt, outcome):
        if attempt == 1:
            raise ConnectionError
        return outcome

    started = []
    wild = quadratics(executor=Wild(lossy), out=tmp_path / "wild", track=lambda *run: started.append(run) or Log())
    with ThreadPoolExecutor(3) as pool:
        quadratics(executor=pool, out=tmp_path / "pool")
    assert rows(tmp_path / "wild") == rows(tmp_path / "pool")
    assert len(started) == 4
    here = quadratics(out=tmp_path / "here")
    order = [(row["label"], row["seed"], row["round"]) for row in rows(tmp_path / "wild")]
    assert order == [(label, seed, t) for label in ("fedavg", "fednova") for seed in (0, 1) for t in range(4)]
    assert here.labels == wild.labels
    for one, other in zip(here.records[0].runs, wild.records[0].runs, strict=True):
        np.testing.assert_allclose(one.history["train_loss"], other.history["train_loss"], rtol=LAST_BITS)
    assert {path.relative_to(tmp_path / "here") for path in (tmp_path / "here").rglob("*")} == {
        path.relative_to(tmp_path / "wild") for path in (tmp_path / "wild").rglob("*")
    }


PERSONAL = {
    "task": {"name": "mlp", "hidden": [4]},
    "run": {"rounds": 2, "batch_size": 16},
    "methods": [
        {"name": "ditto"},
        {"name": "fedavg", "label": "head", "personal": "1.*"},
        {"name": "fedavg", "label": "tuned", "fine_tune": {"lr": 0.05, "steps": 3}},
    ],
}


def contents(folder):
    """What is in the files of models, clients and examples, by their paths."""
    paths = [path for place in ("models", "clients", "examples") for path in sorted((folder / place).rglob("*.*"))]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@pytest.fixture
def hospitals(tmp_path):
    """The section data of four tables."""
    for name in ("cleveland", "hungary", "switzerland", "va"):
        rng = np.random.default_rng(len(name))
        lines = "".join(f"{a:.3f},{b:.3f},{'yes' if c > 0 else 'no'}\n" for a, b, c in rng.normal(size=(40, 3)))
        (tmp_path / f"{name}.csv").write_text(f"a,b,y\n{lines}")
    return {"name": "csv", "files": f"{tmp_path}/*.csv", "label": "y", "split": {"val": 0.15, "test": 0.15}}


@pytest.mark.parametrize("configured", [True, False])
def test_personal_models_come_back_as_they_are_made_in_this_process(tmp_path, hospitals, configured):
    """As a configuration; and in Python with one method that keeps a part and one that tunes all."""
    methods = PERSONAL["methods"] if configured else PERSONAL["methods"][1:]
    experiment = build(PERSONAL | {"data": hospitals, "methods": methods})
    given = {"rounds": 2, "batch_size": 16, "seeds": 1, "test": experiment.test, "val": experiment.val}
    texts = {}
    for place, executor in {"here": None, "wild": Wild()}.items():
        folder = tmp_path / place
        if configured:
            folder.mkdir()
            runner.execute(experiment, folder, drawn=False, executor=executor)
        else:
            parts = experiment.methods, fedax.tasks.mlp(2, 2, hidden=(4,)), experiment.data
            fedax.compare(*parts, out=folder, executor=executor, **given)
        out, model = tmp_path / place / "predicted.csv", str(folder / "models" / "head-seed0")
        given_rows = [str(tmp_path / "va.csv"), "--client", "va", "--out", str(out)]
        found = CliRunner().invoke(app, ["predict", model, *given_rows])
        assert found.exit_code == 0, found.output
        texts[place] = out.read_text()
    one, other = contents(tmp_path / "here"), contents(tmp_path / "wild")
    assert {f"models/{label}-seed0/va.safetensors" for label in experiment.methods} <= one.keys()
    assert one.keys() == other.keys() and all(one[name] == other[name] for name in one)
    assert texts["here"] == texts["wild"]


def test_a_job_of_a_study_keeps_personal_models(tmp_path, hospitals):
    (tmp_path / "small.toml").write_text(tomli_w.dumps({"name": "small"} | PERSONAL | {"data": hospitals}))
    (tmp_path / "study.toml").write_text('name = "mine"\n[[parts]]\nname = "one"\nrecipe = "small.toml"\n')
    assert carry_out(read_study(tmp_path / "study.toml"), tmp_path / "out", executor=Wild())
    lines = [json.loads(line) for line in (tmp_path / "out" / "results" / "one.jsonl").read_text().splitlines()]
    here = tmp_path / "here"
    here.mkdir()
    runner.execute(build(PERSONAL | {"data": hospitals}), here, drawn=False)
    assert [line["label"] for line in lines] == ["ditto", "head", "tuned"]
    for line in lines:
        name = f"models/{line['label']}-seed0/va.safetensors"
        one, other = (
            fedax.load_model(place / name).params for place in (here, tmp_path / "out" / "jobs" / line["key"] / "run")
        )
        jax.tree.map(np.testing.assert_array_equal, one, other)
        assert line["history"]["test_loss_personal"]


def test_heart_disease_travels_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAX_DATA", str(written(tmp_path)))
    assert jobs.digest_of({"name": "heart"}) == jobs.digest_of({"name": "heart", "split": {"test": 0.2}})


class Log:
    def row(self, row):
        assert "train_loss" in row and "label" not in row

    def end(self, status):
        assert status == "finished"


def failing(name):
    """What performs a job, with a defect that one job meets."""
    perform = runner.perform

    def fails(job, folder, code):
        if job.name == name:
            raise ValueError("a defect")
        perform(job, folder, code)

    return fails


def test_a_job_that_fails_stops_no_other_and_is_named(tmp_path, monkeypatch):
    perform = runner.perform
    monkeypatch.setattr(runner, "perform", failing("fedavg, seed 1"))
    with pytest.raises(ConfigError, match=r"1 of 4 failed': .*seed 1: ValueError: a defect \(.*traceback-"):
        quadratics(executor=Wild(), out=tmp_path / "run")
    assert {(row["label"], row["seed"]) for row in rows(tmp_path / "run")} == {
        ("fedavg", 0), ("fednova", 0), ("fednova", 1),
    }  # fmt: skip
    monkeypatch.setattr(runner, "perform", perform)
    again = Wild()
    quadratics(executor=again, out=tmp_path / "run")
    assert again.calls == ["fedavg, seed 1"] and len(rows(tmp_path / "run")) == 16


def test_what_travels_has_a_limit(monkeypatch):
    monkeypatch.setattr(jobs, "MOST_BYTES", 1000)
    with pytest.raises(ConfigError, match=r"executor = '0 MiB': data of at most 0"):
        quadratics(executor=Wild())


def test_a_sweep_is_the_same_after_a_stop_and_whatever_comes_first(tmp_path):
    for name in ("here", "wild"):
        (tmp_path / name).mkdir()
    here, content = tune(plan(SWEEP), tmp_path / "here", drawn=False)

    def stop(*row):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(plan(SWEEP), tmp_path / "wild", stop, drawn=False, executor=Wild())
    kept = rows(tmp_path / "wild")
    assert 0 < len(kept) < len(rows(tmp_path / "here"))
    again, seen = Wild(), []
    wild, jobs_content = tune(
        plan(SWEEP), tmp_path / "wild", lambda *row: seen.append(row), drawn=False, executor=again
    )
    assert len(again.calls) == 1 and len(seen) == 12
    one, other = rows(tmp_path / "here"), rows(tmp_path / "wild")
    assert len(one) == len(other) == 24 and [row for row in other if row in kept] == kept
    assert {(r["label"], str(r["point"]), r["seed"], r["round"]) for r in one} == {
        (r["label"], str(r["point"]), r["seed"], r["round"]) for r in other
    }
    for label in ("fedavg", "fednova"):
        assert here.trials(label)[0].point == wild.trials(label)[0].point
    assert jobs_content["programs"] == content["programs"] and jobs_content["best"] == content["best"]
    assert not (tmp_path / "wild" / "checkpoints" / "jobs").exists()
    assert {path.name for path in (tmp_path / "here" / "models").iterdir()} == {
        path.name for path in (tmp_path / "wild" / "models").iterdir()
    }


STUDY = """
name = "mine"

[[parts]]
name = "one"
recipe = "small.toml"
tune = {rounds = 2, again = 0, extend = 0}
"""
RECIPE = """
name = "small"
data = {name = "digits", clients = 3, split = {val = 0.2}}
work = {kind = "steps", steps = 1}
run = {rounds = 2, batch_size = 64, seeds = [3, 4], evaluate_every = 1}
methods = [{name = "fedavg", lr = 0.1}, {name = "fednova", lr = 0.1}]
sweep = {grid = {"methods.*.lr" = [0.1, 0.2]}}
"""


def test_a_study_by_an_executor(tmp_path, monkeypatch):
    (tmp_path / "small.toml").write_text(RECIPE)
    (tmp_path / "study.toml").write_text(STUDY)
    study = lambda: read_study(tmp_path / "study.toml")  # noqa: E731
    perform = runner.perform
    monkeypatch.setattr(runner, "perform", failing("one: fednova, seed 3"))
    with pytest.raises(ConfigError, match=r"study = 'mine': .*seed 3: ValueError: a defect \(.*log\.txt\)"):
        carry_out(study(), tmp_path / "out", executor=Wild())
    monkeypatch.setattr(runner, "perform", perform)
    assert not carry_out(study(), tmp_path / "out", hours=0.0, executor=Wild())
    again, said = Wild(), []
    assert carry_out(study(), tmp_path / "out", executor=again, watch=said.append)
    assert again.calls == ["one: fednova, seed 3"] and "one: fednova, seed 3 took" in said[0]
    lines = [json.loads(line) for line in (tmp_path / "out" / "results" / "one.jsonl").read_text().splitlines()]
    assert [(line["label"], line.get("seed")) for line in lines] == [
        ("fedavg", None), ("fedavg", 3), ("fedavg", 4), ("fednova", None), ("fednova", 3), ("fednova", 4),
    ]  # fmt: skip
    (run,) = read(tmp_path / "out" / "jobs" / lines[1]["key"] / "run").runs
    assert run.seed == 3 and run.status == "finished"


def test_a_process_that_dies_takes_no_other_with_it():
    with engines.engine("processes:2")() as pool:
        dies, lives = pool.submit(os._exit, 3), pool.submit(os.getpid)
        with pytest.raises(ProcessError, match="its process ended with 3"):
            dies.result()
        assert lives.result() != os.getpid()


def test_a_process_takes_so_many_calls_and_none_after_its_death():
    with engines.Processes(1, together=2) as pool:
        one, two, three = (pool.submit(os.getpid).result() for _ in range(3))
        assert one == two != three
        with pytest.raises(ProcessError, match="was killed by SIGKILL"):
            pool.submit(signal.raise_signal, signal.SIGKILL).result()
        assert pool.submit(os.getpid).result() not in (one, three)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system does not bind processes to cores")
def test_workers_of_two_commands_do_not_share_a_core():
    with engines.Processes(1, together=2) as pool:
        pool.submit(jobs.work, ClusterJob("nothing", b"x"), runner.perform).result()
        assert pool.submit(os.sched_getaffinity, 0).result() == os.sched_getaffinity(0)


def test_calls_under_way_are_stopped_when_an_executor_ends():
    began = time.monotonic()
    with engines.Processes(1) as pool:
        under_way, waiting = pool.submit(time.sleep, 300), pool.submit(os.getpid)
        while not under_way.running():
            time.sleep(0.01)
    assert time.monotonic() - began < 60 and waiting.cancelled()
    with pytest.raises((ProcessError, CancelledError)):
        under_way.result()


dask = pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="needs fedax[dask]")


@dask
@pytest.mark.filterwarnings("ignore")
def test_dask_takes_jobs(tmp_path):
    import distributed

    with (
        distributed.LocalCluster(1, processes=False, threads_per_worker=2, dashboard_address=None) as here,
        engines.engine(f"dask:{here.scheduler_address}")() as executor,
    ):
        quadratics(executor=executor, out=tmp_path / "dask")
    with ThreadPoolExecutor(1) as pool:
        quadratics(executor=pool, out=tmp_path / "pool")
    assert rows(tmp_path / "dask") == rows(tmp_path / "pool")


@dask
@pytest.mark.filterwarnings("ignore")
def test_a_scheduler_that_is_not_there(monkeypatch):
    monkeypatch.setattr(engines, "_CONNECT", 0.3)
    with pytest.raises(ConfigError, match="no scheduler answers there"), engines.engine("dask:tcp://127.0.0.1:9")():
        pass


@dask
@long
def test_workers_and_the_submitting_side_are_killed(tmp_path):
    """Three worker processes, two of which die, and a command that dies too and is given again."""
    (tmp_path / "small.toml").write_text(RECIPE)
    (tmp_path / "study.toml").write_text(STUDY)
    started = []

    def start(*arguments):
        started.append(subprocess.Popen([sys.executable, "-m", *arguments], cwd=tmp_path, start_new_session=True))
        return started[-1]

    try:
        start("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", "at.json")
        while not (tmp_path / "at.json").exists():
            time.sleep(0.2)
        address = json.loads((tmp_path / "at.json").read_text())["address"]
        worker = ("distributed.cli.dask_worker", address, "--nthreads", "1", "--no-dashboard")
        workers = [start(*worker) for _ in range(3)]
        command = ("fedax", "study", "study.toml", "--out", "out", "--on", f"dask:{address}")
        results = tmp_path / "out" / "results" / "one.jsonl"
        first = start(*command)
        while not results.exists() or not results.read_text():
            time.sleep(0.1)
        first.kill()
        second = start(*command)
        for each in workers[:2]:
            os.killpg(each.pid, signal.SIGKILL)
        assert second.wait(500) == 0
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    with ThreadPoolExecutor(1) as pool:
        assert carry_out(read_study(tmp_path / "study.toml"), tmp_path / "pool", executor=pool)
    one, other = (tmp_path / name / "results" / "one.jsonl" for name in ("out", "pool"))
    one, other = ([json.loads(line) for line in path.read_text().splitlines()] for path in (one, other))
    assert [line["key"] for line in one] == [line["key"] for line in other]
