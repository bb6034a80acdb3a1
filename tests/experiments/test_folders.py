"""What earlier versions have written is read by this one: see :mod:`tests.experiments.folders.write`."""

import csv
import json
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

import fedax
from fedax.cli import app
from fedax.engine import checkpoint
from fedax.errors import CheckpointError
from fedax.experiments import build, read
from fedax.experiments.study import outcome, read_study, record_of, results_of

from .folders.write import HERE, checkpointed, figures

WRITTEN = sorted(path.parent.name for path in HERE.glob("*/expected.json"))


@pytest.fixture(scope="module", params=WRITTEN)
def written(request, tmp_path_factory):
    """A copy of the folders that one version wrote, and their expected figures."""
    folder = tmp_path_factory.mktemp("written") / request.param
    shutil.copytree(HERE / request.param, folder)
    return folder, json.loads((folder / "expected.json").read_text())


def fedax_(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def same_rows(record, expected):
    assert [(run.label, run.seed, run.status, run.point) for run in record.runs] == [
        (run["label"], run["seed"], run["status"], run["point"]) for run in expected
    ]
    for run, was in zip(record.runs, expected, strict=True):
        assert figures(run.history) == was["history"]


def test_this_version_has_written_its_own():
    assert fedax.__version__ in WRITTEN


def test_a_run(written):
    folder, expected = written
    record = read(folder / "run")
    assert record.config == expected["run"]["config"] and len(record.runs) == 2
    for run in record.runs:
        rows = [row for row in expected["run"]["rows"] if row["label"] == run.label]
        for name in rows[0].keys() - {"label", "seed"}:
            assert np.asarray(run.history[name]).tolist() == [row[name] for row in rows], name
    assert [each["advice"] for each in record.diagnosis] == expected["diagnosis"]
    again = build(record.config)  # fedax run config.toml
    assert again.config == record.config


def test_a_comparison(written):
    folder, expected = written
    record = fedax.load(folder / "comparison")
    assert expected["comparison"]["verdict"] in record.verdict  # it says how the methods ended
    assert record.records[0].config == expected["comparison"]["config"]
    same_rows(record.records[0], expected["comparison"]["rows"])


def test_a_sweep_and_what_it_chose(written):
    folder, expected = written
    record = read(folder / "sweep")
    same_rows(record, expected["sweep"]["rows"])
    for label, best in expected["sweep"]["best"].items():
        trial = record.trials(label)[0]
        assert (trial.point, trial.scores.tolist()) == (best["point"], best["scores"])
    same_rows(read(folder / "tuned"), expected["tuned"]["rows"])


def test_a_study(written):
    folder, expected = written
    study = read_study(folder / "study" / "study.toml")
    study.results = results_of(folder / "study" / "done")
    assert study.results == expected["study"]["results"]
    assert not [*study.jobs()]  # all are known again by their keys
    record = record_of(study, study.parts["one"], folder / "study" / "done")
    assert [(run.label, run.seed) for run in record.runs] == [
        (label, seed) for label in ("fedavg", "fedavg-m") for seed in (3, 4)
    ]
    (line,) = outcome(study, folder / "study" / "done")
    assert line == expected["study"]["outcome"]
    for job in (folder / "study" / "done" / "jobs").iterdir():
        assert read(job / "run").runs


def test_a_run_of_other_data_names_the_version_that_began_it(written):
    """0.9.0 drew quadratics with other last bits."""
    folder, expected = written
    if expected["version"] != "0.9.0":
        pytest.skip("its data are those of this version, or it kept nothing of them")
    command = ["run", str(folder / "run" / "config.toml"), "--out", str(folder / "run"), "--resume"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2 and "or go on with fedax 0.9.0, which began it" in " ".join(result.output.split())


@pytest.mark.parametrize("kind", ["run", "comparison", "sweep", "tuned"])
def test_their_reports(written, kind):
    folder, _ = written
    fedax_("report", folder / kind)
    page = (folder / kind / "report.html").read_text()
    assert all(label.replace("&", "&amp;").replace("<", "&lt;")[:5] in page for label in read(folder / kind).labels)
    assert fedax_("report", folder / kind, "--format", "csv").count("\n") > 1


def test_a_model_predicts(written):
    folder, expected = written
    expected, out = expected["model"], folder / "predicted.csv"
    model = fedax.load_model(folder / "model.safetensors")
    assert {name: np.asarray(leaf).tolist() for name, leaf in model.params.items()} == expected["params"]
    assert "6 predictions" in fedax_("predict", folder / "model.safetensors", folder / "new.csv", "--out", out)
    with out.open() as file:
        rows = [*csv.DictReader(file)]
    assert [row["prediction"] for row in rows] == expected["labels"]
    results = [[float(row[f"p {label}"]) for label in model.labels] for row in rows]
    np.testing.assert_allclose(results, expected["chances"], rtol=1e-5)
    for path in (folder / "run" / "models").iterdir():
        assert fedax.load_model(path).task is fedax.tasks.quadratic(2)


@pytest.mark.filterwarnings("ignore:the run was begun with another version")
def test_a_checkpoint_goes_on_where_it_was_written_by_this_version(written, monkeypatch):
    folder, expected = written
    if expected["version"] != fedax.__version__:
        with pytest.raises(CheckpointError, match=f"fedax {expected['version']} wrote it"):
            checkpointed(folder / "checkpoint")
        return
    # Programs are compared with those of the same code only, and code has changed since.
    monkeypatch.setattr(checkpoint, "same_versions", lambda was: False)
    was, end = expected["checkpoint"]["history"], expected["checkpoint"]["end"]
    assert figures(checkpointed(folder / "checkpoint").history) == was
    result = figures(checkpointed(folder / "checkpoint", 4).history)
    assert result.keys() == end.keys() and {name: values[:3] for name, values in result.items()} == was
    for name, values in end.items():
        np.testing.assert_allclose(result[name], values, rtol=1e-5, err_msg=name)


def test_a_checkpoint_of_another_version_is_refused(tmp_path, monkeypatch):
    now = checkpoint.versions()
    monkeypatch.setattr(checkpoint, "versions", lambda: now | {"fedax": "0.0.9"})
    checkpointed(tmp_path)
    monkeypatch.setattr(checkpoint, "versions", lambda: now)
    with pytest.raises(CheckpointError) as refused:
        checkpointed(tmp_path, 4)
    text = f"fedax 0.0.9 wrote it, and reads it; this is fedax {fedax.__version__}: go on with that version, or give"
    assert text in str(refused.value)
    (path,) = tmp_path.iterdir()  # which is as it was
    monkeypatch.setattr(checkpoint, "versions", lambda: now | {"fedax": 9})
    checkpointed(path.parent / "other")
    monkeypatch.setattr(checkpoint, "versions", lambda: now)
    with pytest.raises(CheckpointError, match="no checkpoint that this version can read"):
        checkpointed(path.parent / "other")
