"""Tracking: what each tool's own library reads of a run is its history, of one that was stopped and went on too."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import fedax
from fedax import tracking
from fedax.errors import TrackingWarning
from fedax.experiments import build, execute, new_folder, read

TABLES = {
    "name": "small & <fast>",
    "data": {"name": "quadratics", "clients": 4, "dimension": 2},
    "run": {"rounds": 6, "evaluate_every": 2, "seeds": [0, 7]},
    "participation": {"dropout": 0.2},
    "work": {"kind": "steps", "steps": 2},
    "methods": [
        {"name": "fedavg", "label": "Ours, μ=0 (½)", "lr": 0.1},
        {"name": "fedavg", "label": "diverges", "lr": 1e30},
    ],
}


def needs(*packages):
    missing = [package for package in packages if not importlib.util.find_spec(package)]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}: pip install 'fedax[track]'")


def tracked(tmp_path, section, monkeypatch, tables=TABLES):
    """An experiment with this section, stopped in its third run, and gone on with; in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    experiment, folder = build(tables | {"track": section}), new_folder("run", "small")

    def stop(label, seed, row):
        if row is not None and (label, seed, row["round"]) == ("diverges", 0, 0):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(experiment, folder, stop, rounds=1)
    return execute(experiment, folder)


def agrees(record, result, rtol=0.0):
    """``found``: (label, seed) -> column -> (rounds, values)."""
    assert {*result} == {(run.label, run.seed) for run in record.runs}
    for run in record.runs:
        there = result[run.label, run.seed]
        columns = {name for name, values in run.history.items() if values.dtype != object} - {"round"}
        assert {*there} == columns and "bytes_up" in columns
        for name in columns:
            rounds, values = there[name]
            np.testing.assert_array_equal(rounds, run.history["round"], name)
            finite = np.nan_to_num(values, nan=np.nan, posinf=np.nan, neginf=np.nan)
            np.testing.assert_allclose(finite, run.history[name], rtol=rtol, err_msg=name)


@needs("tensorboardX")
def test_event_files_hold_the_history(tmp_path, monkeypatch):
    record = tracked(tmp_path, {"name": "tensorboard", "folder": "board"}, monkeypatch)
    results = {}
    for run, name in zip(
        record.runs, ["Ours-μ-0-½-seed0", "Ours-μ-0-½-seed7", "diverges-seed0", "diverges-seed7"], strict=True
    ):
        (path,) = (tmp_path / "board" / "run" / name).iterdir()
        results[run.label, run.seed] = scalars = {}
        for step, tag, value in events(path):
            steps, values = scalars.setdefault(tag, ([], []))
            steps.append(step)
            values.append(value)
    agrees(record, results, rtol=1e-6)


def events(path):
    """Scalars in an event file, by the format's own description: TFRecord, and Event messages in it."""
    from tensorboardX.proto.event_pb2 import Event

    data, at = path.read_bytes(), 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 8], "little")
        event = Event.FromString(data[at + 12 : at + 12 + length])
        at += 16 + length
        for value in event.summary.value:
            if value.WhichOneof("value") == "simple_value":
                yield event.step, value.tag, value.simple_value


@needs("tensorboardX", "tensorboard")
def test_tensorboard_reads_curves_and_parameters(tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    record = tracked(tmp_path, {"name": "tensorboard"}, monkeypatch)
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(tmp_path / "tensorboard"))
    multiplexer.Reload()
    results = {}
    for name, tags in multiplexer.Runs().items():
        (content,) = (multiplexer.SummaryMetadata(name, "_hparams_/session_start_info").plugin_data.content,)
        start = HParamsPluginData.FromString(content).session_start_info.hparams
        run = start["label"].string_value, int(start["seed"].number_value)
        assert start["method.lr"].number_value == (1e30 if run[0] == "diverges" else 0.1)
        each = {tag: multiplexer.Scalars(name, tag) for tag in tags["scalars"]}
        results[run] = {tag: ([e.step for e in list_], [e.value for e in list_]) for tag, list_ in each.items()}
    agrees(record, results, rtol=1e-6)


@needs("mlflow", "sqlalchemy")
@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_the_history(tmp_path, monkeypatch):
    from mlflow import MlflowClient

    record = tracked(tmp_path, {"name": "mlflow", "uri": "sqlite:///runs.db"}, monkeypatch)
    client = MlflowClient("sqlite:///runs.db")
    (experiment,) = (each for each in client.search_experiments() if each.name != "Default")
    assert experiment.name == "small & <fast>"
    results = {}
    for run in client.search_runs([experiment.experiment_id]):
        given = run.data.params
        assert run.data.tags["status"] == ("diverged" if given["label"] == "diverges" else "finished")
        assert run.info.status == ("FAILED" if given["label"] == "diverges" else "FINISHED")
        assert given["method.lr"] == ("1e+30" if given["label"] == "diverges" else "0.1")
        results[given["label"], int(given["seed"])] = each = {}
        for name in run.data.metrics:
            past = sorted(client.get_metric_history(run.info.run_id, name), key=lambda metric: metric.step)
            each[name] = [metric.step for metric in past], [metric.value for metric in past]
    agrees(record, results)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "runs.db"]


PRIVATE = TABLES | {
    "data": TABLES["data"] | {"weights": "uniform"},
    "participation": {"kind": "poisson", "rate": 0.5},
    "privacy": {"clip": 1.0, "noise": 4.0, "delta": 1e-3},
    "methods": [{"name": "fedavg", "label": label, "lr": 0.1} for label in ("ours", "diverges")],
}


@needs("mlflow", "sqlalchemy", "dp_accounting")
@pytest.mark.filterwarnings("ignore")
def test_a_private_run_goes_on_in_mlflow_by_what_is_public_of_it(tmp_path, monkeypatch):
    from mlflow import MlflowClient

    record = tracked(tmp_path, {"name": "mlflow", "uri": "sqlite:///private.db"}, monkeypatch, PRIVATE)
    client = MlflowClient("sqlite:///private.db")
    (experiment,) = (each for each in client.search_experiments() if each.name != "Default")
    runs = client.search_runs([experiment.experiment_id])
    assert len(runs) == len(record.runs) == 4
    of_all = (record.runs[0].history[name].tolist() for name in ("round", "epsilon"))
    spent = [*zip(*of_all, strict=True)]
    for run in runs:
        assert {*run.data.metrics} == {"epsilon"} and {*run.data.tags} == {"fedax.run", "mlflow.runName", "status"}
        past = client.get_metric_history(run.info.run_id, "epsilon")
        assert [(metric.step, metric.value) for metric in past] == spent
        assert {"data.clients", "data.dimension"}.isdisjoint(run.data.params)


@needs("wandb")
@pytest.mark.filterwarnings("ignore")
def test_files_of_wandb_hold_the_history_and_stay(tmp_path, monkeypatch):
    from wandb.proto.wandb_internal_pb2 import Record

    record = tracked(tmp_path, {"name": "wandb"}, monkeypatch)
    results = {}
    for path in (tmp_path / "wandb").glob("offline-run-*/*.wandb"):
        about, rows = {}, {}
        for entry in map(Record.FromString, records(path)):
            for item in entry.run.config.update:
                about[item.key or item.nested_key[0]] = json.loads(item.value_json)
            if entry.HasField("history"):
                row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in entry.history.item}
                for name, value in row.items():
                    if not name.startswith("_"):
                        steps, values = rows.setdefault(name, ([], []))
                        steps.append(row["_step"])
                        values.append(float(value))
        run = about["label"], about["seed"]
        assert run not in results and about["method.lr"] == (1e30 if run[0] == "diverges" else 0.1)
        results[run] = rows
    agrees(record, results)


@needs("wandb", "dp_accounting")
@pytest.mark.filterwarnings("ignore")
def test_files_of_wandb_hold_what_is_public_of_private_runs(tmp_path, monkeypatch):
    from wandb.proto.wandb_internal_pb2 import Record

    tracked(tmp_path, {"name": "wandb", "folder": str(tmp_path)}, monkeypatch, PRIVATE)
    paths = [*(tmp_path / "wandb").glob("offline-run-*/*.wandb")]
    assert len(paths) == 4
    for path in paths:
        for entry in map(Record.FromString, records(path)):
            if entry.HasField("history"):
                names = {item.key or item.nested_key[0] for item in entry.history.item}
                assert {name for name in names if not name.startswith("_")} == {"epsilon"}
        content = path.read_bytes()
        for name in (b"train_loss", b"local_steps", b"bytes_up", b"data.clients"):
            assert name not in content


def records(path):
    """Records of W&B's file: a log of LevelDB, in blocks of 32 kB, after seven bytes that say what it is."""
    data, at, record = path.read_bytes(), 7, b""
    while at < len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


@needs("tensorboardX")
def test_a_log_follows_simulate(tmp_path):
    data, task = fedax.data.quadratics(clients=3, dimension=2), fedax.tasks.quadratic(2)
    board = tracking.TensorBoard(tmp_path)
    for _ in range(2):  # another run, in a place of its own
        with board("mine", seed=3, params={"lr": 0.1}) as log:
            run = fedax.simulate(fedax.create("fedavg", lr=0.1), task, data, rounds=3, callback=log)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine-seed3", "mine-seed3-2"]
    (path,) = (tmp_path / "mine-seed3-2").iterdir()
    losses = [value for _, tag, value in events(path) if tag == "train_loss"]
    np.testing.assert_allclose(losses, run.history["train_loss"], rtol=1e-6)


@needs("tensorboardX")
def test_a_folder_that_cannot_be_written_does_not_end_the_run(tmp_path):
    (tmp_path / "file").write_text("")
    tables = TABLES | {"track": {"name": "tensorboard", "folder": str(tmp_path / "file")}}
    with pytest.warns(TrackingWarning, match="tracking by TensorBoard failed") as caught:
        record = execute(build(tables), new_folder(tmp_path / "run", "small"))
    assert len(caught) == 1 and len(record.runs) == 4


@needs("tensorboardX")
def test_where_a_run_is_tracked_is_not_what_it_is(tmp_path, monkeypatch):
    from fedax.experiments import begun_folder

    record = tracked(tmp_path, {"name": "tensorboard"}, monkeypatch)
    assert record.config["track"] == {"name": "tensorboard", "folder": "tensorboard"}
    for tables in (TABLES, TABLES | {"track": {"name": "tensorboard", "folder": "other"}}):
        assert begun_folder(record.folder, build(tables).config) == record.folder
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert read(record.folder).config == record.config  # on a machine without the package


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"name": "tensorbord"}, "'tensorbord': did you mean 'tensorboard'"),
        ({"name": "tensorboard", "dir": "x"}, "track.dir = 'x'"),
        ({"name": "tensorboard", "folder": 3.5}, "track.folder = 3.5: give a text"),
        ({"name": "mlflow", "uri": "runs.db"}, "track.uri = 'runs.db': give sqlite:///"),
        ({"name": "mlflow", "experiment": ""}, "track.experiment = '': give a name"),
        ({"name": "wandb", "mode": "on"}, "track.mode = 'on': give \"offline\""),
        ({"folder": "x"}, "track.name"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_begins(section, message, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    with pytest.raises(fedax.ConfigError, match=re.escape(message)):
        build(TABLES | {"track": section})


@pytest.mark.parametrize("tracker", [*tracking.TRACKERS])
def test_a_package_that_is_missing_is_named(tracker, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(fedax.ConfigError, match=rf"track = '{tracker}': .*'fedax\[track\]'"):
        tracking.TRACKERS.make(tracker)


@needs("trackio")
def test_the_tracker_of_the_docs_follows_an_experiment(tmp_path):
    """In a process of its own, for Trackio reads where to write when it is imported."""
    page = (Path(__file__).parents[1] / "docs" / "tracking.md").read_text(encoding="utf-8")
    (code,) = (block for block in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S) if "class Trackio" in block)
    rest = f"""
        from fedax.experiments import build, execute, new_folder
        import numpy as np
        from trackio.sqlite_storage import SQLiteStorage
        tables = {TABLES | {"name": "small"}!r}
        record = execute(build(tables), new_folder("run", "small"), track=Trackio)
        for run in record.runs:
            rows = SQLiteStorage.get_logs("small", f"{{run.label}}, seed {{run.seed}}")
            assert [row["step"] for row in rows] == run.history["round"].tolist()
            for name, values in run.history.items():
                if values.dtype == object:
                    continue
                found = np.array([row[name] for row in rows], float)
                np.testing.assert_array_equal(np.where(np.isfinite(found), found, np.nan), values)
        print("read", len(record.runs))
    """
    (tmp_path / "code.py").write_text(code + textwrap.dedent(rest))
    environment = os.environ | {"TRACKIO_DIR": str(tmp_path / "trackio")}
    done = subprocess.run([sys.executable, "code.py"], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert "read 4\n" in done.stdout, done.stderr
