"""A run folder: its content, and that it is never half written."""

import json
import math
import os
import pathlib
import tomllib

import jax
import numpy as np
import pytest
import safetensors.numpy

import fedax
from fedax.experiments import build, execute, new_folder, read, summary
from fedax.experiments.runs.files import row_of
from fedax.experiments.runs.folder import sealed_row, write_json
from fedax.experiments.runs.reading import lost
from fedax.files import seal, with_digest, write_atomic

CONFIG = {
    "name": "tiny",
    "data": {"name": "digits", "clients": 3, "partition": "iid"},
    "work": {"kind": "steps", "steps": 2},
    "run": {"rounds": 4, "batch_size": 8, "seeds": 2, "evaluate_every": 2},
    "methods": [{"name": "fedavg", "lr": 0.1, "label": "good"}, {"name": "fedavg", "lr": 1e38, "label": "too fast"}],
}


@pytest.fixture(scope="module")
def done(tmp_path_factory, plots):
    experiment = build(CONFIG)
    seen = []
    folder = new_folder(tmp_path_factory.mktemp("runs") / "tiny", "tiny")
    with plots("png", "svg", "pdf"):
        record = execute(experiment, folder, lambda label, seed, row: seen.append((label, seed, row)))
    return experiment, record, seen


def test_the_folder_is_complete(done):
    _, record, _ = done
    files = {str(path.relative_to(record.folder)) for path in record.folder.rglob("*") if path.is_file()}
    metrics = ("train_loss", "test_loss", "test_accuracy")
    judged = ("test_loss-bytes", "test_loss-seconds")
    assert files == {
        "config.toml",
        "about.json",
        "metrics.jsonl",
        "summary.json",
        "report.html",
        *(f"models/{label}-seed{seed}.safetensors" for label in ("good", "too-fast") for seed in (0, 1)),
        *(f"examples/good-seed{seed}.safetensors" for seed in (0, 1)),  # the other has no finite model
        *(f"plots/{name}.{form}" for name in (*metrics, *judged, "clients") for form in ("png", "svg", "pdf")),
    }


def test_the_configuration_is_the_resolved_one(done):
    experiment, record, _ = done
    assert tomllib.loads((record.folder / "config.toml").read_text()) == experiment.config == record.config


def strict(line):
    def no_constants(word):
        raise AssertionError(f"{word} is no JSON")

    return json.loads(line, parse_constant=no_constants)


def test_metrics_are_strict_json_with_null_and_a_status_where_the_loss_is_not_finite(done):
    _, record, seen = done
    lines = [strict(line) for line in (record.folder / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == sum(row is not None for _, _, row in seen)
    bad = [line for line in lines if line["label"] == "too fast" and line["round"] > 0]
    assert bad and all(line["train_loss"] is None and line["status"] == "diverged" for line in bad)
    good = [line for line in lines if line["label"] == "good"]
    results = [(line["seed"], line["round"]) for line in good]  # of seeds side by side they come in turns
    assert sorted(results) == [(s, r) for s in (0, 1) for r in (0, 2, 4)] and results[0] == (0, 0)
    assert all(line["status"] == "ok" and line["method"] == "fedavg" for line in good)
    assert {"test_accuracy", "bytes_up", "seconds", "local_steps", "gradients", "clients"} < set(good[0])


def test_what_was_left_out_is_told(tmp_path):
    run = {"guard": True, "faults": {"clients": [1], "sends": float("inf")}, "seeds": 2}
    config = CONFIG | {"run": CONFIG["run"] | run, "methods": [{"name": "fedavg", "lr": 0.1}]}
    record = execute(build(config), new_folder(tmp_path / "bad", "bad"))
    history = record.runs[0].history
    assert history["left_out"].tolist() == [0, 2, 4]
    assert history["bad_clients"].tolist() == [[], [1], [1]]
    (method,) = summary.methods([record])
    assert method.losses_text == "8 uploads of client 1 left out"
    assert "8 uploads of client 1 left out" in (record.folder / "report.html").read_text()
    assert summary.metrics([method]) == ["test_accuracy", "test_loss", "train_loss"]


def test_a_method_that_cannot_is_refused_before_another_one_runs(tmp_path):
    methods = [{"name": "fedavg", "lr": 0.1}, {"name": "scaffold", "lr": 0.1, "label": "second"}]
    config = CONFIG | {"run": CONFIG["run"] | {"aggregate": "coordinate-median"}, "methods": methods}
    with pytest.raises(fedax.ConfigError, match=r"second.aggregate = 'CoordinateMedian': Scaffold"):
        execute(build(config), tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_history_is_that_of_simulate(done):
    experiment, record, _ = done
    run = fedax.simulate(
        experiment.methods["good"], experiment.task, experiment.data, rounds=4, batch_size=8, work=fedax.Steps(2),
        seed=1, evaluate_every=2, test=experiment.test,
    )  # fmt: skip
    stored = record.of("good")[1]
    assert stored.seed == 1 and stored.status == "finished"
    np.testing.assert_array_equal(stored.history["train_loss"], run.history["train_loss"])
    model = safetensors.numpy.load_file(record.folder / "models/good-seed1.safetensors")
    leaves = jax.tree_util.tree_leaves_with_path(run.params)
    assert len(model) == len(leaves)
    for path, leaf in leaves:
        np.testing.assert_array_equal(model[jax.tree_util.keystr(path, simple=True, separator=".")], leaf)


def test_the_summary_has_means_and_states(done):
    _, record, _ = done
    good, bad = strict((record.folder / "summary.json").read_text())["methods"]
    last = [run.history["test_accuracy"][-1] for run in record.of("good")]
    assert good["status"] == "finished" and good["final"]["test_accuracy"]["mean"] == pytest.approx(np.mean(last))
    assert good["final"]["test_accuracy"]["std"] == pytest.approx(np.std(last, ddof=1))
    assert good["cost"]["local_steps"] == 4 * 3 * 2 and 0 <= good["compile_seconds"] < 600
    assert bad["status"] == "diverged" and bad["final"]["train_loss"] is None
    assert bad["status_text"] == "diverged by round 2 (2 of 2 seeds)"


def test_the_clients_are_told(done):
    experiment, record, _ = done
    clients = strict((record.folder / "about.json").read_text())["clients"]
    assert clients["sizes"] == experiment.data.sizes.tolist()
    own = experiment.data.client(1)["y"]
    assert clients["counts"][1] == np.bincount(own, minlength=10).tolist()
    assert clients["steps"]["low"] == clients["steps"]["high"] == [2, 2, 2]


def test_a_run_that_was_stopped_half_way_can_be_read(done, tmp_path):
    _, record, _ = done
    for name in ("config.toml", "about.json"):
        (tmp_path / name).write_bytes((record.folder / name).read_bytes())
    lines = (record.folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    lines = [line for line in lines if strict(line)["seed"] == 0]
    (tmp_path / "metrics.jsonl").write_text(lines[0] + lines[1] + lines[2][:30])
    (run,) = read(tmp_path).runs
    assert run.status == "unfinished" and run.history["round"].tolist() == [0, 2]


def test_damaged_and_foreign_folders(done, tmp_path):
    _, record, _ = done
    with pytest.raises(fedax.ConfigError, match="no run folder"):
        read(tmp_path)
    for name in ("config.toml", "about.json"):
        (tmp_path / name).write_bytes((record.folder / name).read_bytes())
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(fedax.ConfigError, match="no evaluation yet"):
        read(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("{}}\n")
    with pytest.raises(fedax.DataError, match="line 1"):
        read(tmp_path)


def test_a_folder_that_holds_something_is_refused_and_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(fedax.ConfigError, match=r"not empty.*--out"):
        new_folder(tmp_path, "x")
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_a_folder_that_cannot_be_written_is_an_error_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(fedax.ConfigError, match="cannot write there"):
        new_folder(tmp_path / "file" / "run", "x")


def test_folders_are_numbered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [str(new_folder(None, "my run")) for _ in range(2)] == ["runs/my-run-1", "runs/my-run-2"]
    monkeypatch.setattr(pathlib.Path, "exists", lambda path: False)  # another process makes it just now
    assert str(new_folder(None, "my run")) == "runs/my-run-3"


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file.json"
    write_atomic(path, "old")

    def crash(*args):
        raise OSError("power cut")

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(OSError, match="power cut"):
        write_atomic(path, "new")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file.json"]


TASK, DATA = fedax.tasks.quadratic(2), fedax.data.quadratics(clients=3, dimension=2)
SLOW = fedax.Clock(step=1.0, up=[1e6, 1e6, 1.0])  # the last client never makes it
ENDS = {
    "finished": ({}, "finished"),
    "late": ({"work": fedax.Deadline(5.0), "clock": SLOW, "guard": fedax.Guard(stop=True)}, "finished"),
    "guarded": ({"guard": fedax.Guard(stop=True), "faults": fedax.Faults([1], sends=math.nan)}, "failed"),
    "worse": ({"lr": 3.0}, "worse"),
    "waited": ({"lr": 3.0, "rounds": 40, "until": fedax.Patience("train_loss", evaluations=3)}, "worse"),
    "patient": ({"lr": 1.0, "rounds": 90, "until": fedax.Patience("train_loss", evaluations=2)}, "stopped"),
    "diverged": ({"lr": 1e9, "rounds": 20}, "diverged"),
    "own": ({"tuned": 1e30}, "worse"),
}


@pytest.mark.filterwarnings("ignore::fedax.DivergedWarning", "ignore::fedax.BadClientWarning")
@pytest.mark.parametrize("case", ENDS)
def test_a_folder_says_how_a_run_ended_as_simulate_does(case, tmp_path):
    given, status = ENDS[case]
    options = {"rounds": 6, "evaluate_every": 1, "work": fedax.Steps(2)} | given
    method = fedax.create("fedavg", lr=options.pop("lr", 0.1))
    if (lr := options.pop("tuned", None)) is not None:
        method = fedax.FineTuned(method, lr=lr, steps=30)
    seen = []
    run = fedax.simulate(method, TASK, DATA, callback=seen.append, **options)
    assert run.status == status == seen[-1].status and {row.status for row in seen[:-1]} == {None}
    fedax.compare({"mine": method}, TASK, DATA, out=tmp_path / "run", seeds=1, **options)
    (found,) = read(tmp_path / "run").runs
    assert found.status == ("finished" if status == "stopped" else status)
    assert found.history["round"].tolist() == run.history["round"].tolist()
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["status"] for line in lines] == ["ok"] * (len(lines) - 1) + ["ok" if status == "finished" else status]


@pytest.mark.filterwarnings("ignore::fedax.BadClientWarning")
@pytest.mark.parametrize("case", ["late", "guarded", "patient"])
def test_a_folder_that_does_not_say_how_its_runs_ended_is_read_by_its_models(case, tmp_path):
    """As version 0.9 wrote it."""
    given, status = ENDS[case]
    options = {"rounds": 6, "evaluate_every": 1, "work": fedax.Steps(2)} | given
    method = fedax.create("fedavg", lr=options.pop("lr", 0.1))
    fedax.compare({"mine": method}, TASK, DATA, out=tmp_path / "run", seeds=1, **options)
    path = tmp_path / "run" / "metrics.jsonl"
    about = json.loads((path.parent / "about.json").read_bytes())
    assert about.pop("better") is None
    write_json(path.parent / "about.json", about)
    rows = [json.loads(line) | {"status": "ok"} for line in path.read_bytes().splitlines()]
    path.write_bytes(b"".join(sealed_row(path.parent, row) for row in rows))
    record = read(path.parent)
    assert record.runs[0].status == ("finished" if status == "stopped" else status) and not lost(record)
    (path.parent / "models" / "mine-seed0.safetensors").unlink()
    early = len(rows) - 1 < options["rounds"]
    assert read(path.parent).runs[0].status == ("unfinished" if early else "finished")


def test_a_row_after_the_end_is_no_row_of_a_run(done, tmp_path):
    _, record, _ = done
    for name in ("config.toml", "about.json"):
        (tmp_path / name).write_bytes((record.folder / name).read_bytes())
    lines = (record.folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    lines = [line for line in lines if (json.loads(line)["label"], json.loads(line)["seed"]) == ("good", 0)]
    of = row_of(tmp_path)
    for wrong, message in (("stopped", "line 2: a row after the end"), ("soon", "line 1: a seed .*, or no status")):
        first = json.loads(lines[0]) | {"status": wrong}
        text = json.dumps({k: v for k, v in first.items() if k not in ("sha256", "of")} | seal(of))
        (tmp_path / "metrics.jsonl").write_bytes(with_digest(f"{text}\n".encode()) + lines[1])
        with pytest.raises(fedax.DataError, match=message):
            read(tmp_path)
