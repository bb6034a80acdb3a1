"""Nothing that was moved, renamed or edited in a run folder is believed: one line says so, and ``--trust`` shows it."""

import json
import re
import shutil

import pytest
from typer.testing import CliRunner

import fedax
from fedax.cli import app
from fedax.errors import DamagedWarning
from fedax.experiments import build, cluster, execute, new_folder, plan, read, runs, tune
from fedax.experiments.diagnosis import diagnose_run
from fedax.experiments.study import results
from fedax.files import seal, with_digest

from .folders.write import HERE

TABLES = {
    "name": "small",
    "data": {"name": "digits", "clients": 3, "partition": "iid"},
    "task": {"name": "softmax_regression"},
    "run": {"rounds": 4, "evaluate_every": 2, "seeds": 2, "batch_size": 32},
    "methods": [{"name": "fedavg", "lr": 0.1}, {"name": "fednova", "lr": 0.1}],
}


def command(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def refused(folder, name, *arguments):
    """The one line of a command that ends with exit code 2 and names a file."""
    result = command(*arguments or ("report", folder))
    assert result.exit_code == 2 and result.stderr.count("\n") == 1, result.output
    assert result.stderr.startswith("error: ") and str(folder / name) in result.stderr
    return result.stderr


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = new_folder(tmp_path_factory.mktemp("whole") / "run", "small")
    experiment = build(TABLES)
    diagnose_run(experiment, execute(experiment, folder, drawn=False))
    return folder


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A run with other rates, whose files have the same names."""
    folder = new_folder(tmp_path_factory.mktemp("other") / "run", "small")
    methods = [method | {"lr": 0.01} for method in TABLES["methods"]]
    experiment = build(TABLES | {"methods": methods})
    diagnose_run(experiment, execute(experiment, folder, drawn=False))
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


EDITS = [
    ("metrics.jsonl", '"train_loss": 2[.]', '"train_loss": 1.', "line 1: damaged or edited"),
    ("metrics.jsonl", '"of": "run ', '"of": "run 0', "line 1: damaged or edited"),
    ("metrics.jsonl", ', "sha256": "[^}]*', "", "line 1: damaged, or of an older"),
    ("config.toml", "lr = 0.1", "lr = 0.2", "edited"),
    ("about.json", '"parameters": 650', '"parameters": 6500', "edited"),
    ("about.json", '"sha256"', '"sha255"', "of an older"),
    ("summary.json", '"status": "finished"', '"status": "diverged"', "edited"),
    ("diagnosis.json", '"chi2": ', '"chi2": 1', "edited"),
]


@pytest.mark.parametrize(("name", "old", "new", "message"), EDITS, ids=range(len(EDITS)))
def test_what_was_edited(name, old, new, message, folder, whole):
    text = (folder / name).read_text()
    text, changes = re.subn(old, new, text, count=1)
    (folder / name).write_text(text)
    assert changes == 1
    line = refused(folder, name)
    assert message in line and "--trust" in line
    shown = command("report", folder, "--trust", "--out", folder / "shown.html")
    assert shown.exit_code == 0 and f"warning: {folder}: {folder / name}" in shown.stderr
    assert message.split()[-1] in (folder / "shown.html").read_text()
    if name in ("metrics.jsonl", "about.json", "config.toml"):
        again = command("run", whole / "config.toml", "--out", folder, "--resume")
        assert again.exit_code == 2 and again.stderr.count("\n") == 1 and str(folder) in again.stderr
    with pytest.raises(fedax.DataError, match=message):
        read(folder)


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.toml", "about.json", "diagnosis.json"])
def test_what_was_moved_from_another_run(name, folder, other):
    shutil.copy(other / name, folder / name)
    line = refused(folder, "config.toml" if name == "about.json" else name)
    assert "moved" in line or "another" in line


def test_models_that_were_swapped(folder, other, whole):
    models = folder / "models"
    one, two = models / "fedavg-seed0.safetensors", models / "fedavg-seed1.safetensors"
    kept = one.read_bytes()
    shutil.copy(two, one)
    shutil.copy(other / "models" / two.name, two)
    report = command("report", folder)
    assert report.exit_code == 0 and report.stderr.count("moved or renamed (it is models/fedavg-seed1") == 2
    assert "moved or renamed" in refused(folder, "models", "diagnose", folder)
    assert fedax.load_model(one).task.name == "softmax_regression"  # where nobody says what it should be
    with pytest.warns(DamagedWarning) as caught:
        record = execute(build(TABLES), folder, drawn=False)
    assert [str(each.message).split(": ")[0] for each in caught] == ["fedavg, seed 0", "fedavg, seed 1"]
    assert one.read_bytes() == kept and two.read_bytes() == (whole / "models" / two.name).read_bytes()
    assert [(run.label, run.seed) for run in record.runs] == [
        (label, seed) for label in ("fedavg", "fednova") for seed in (0, 1)
    ]
    summary = json.loads((folder / "summary.json").read_text())
    assert [[*method["seeds"]] for method in summary["methods"]] == [["0", "1"]] * 2


def test_seeds_are_in_order_after_one_was_trained_again(folder):
    (folder / "models" / "fedavg-seed0.safetensors").unlink()
    with pytest.warns(DamagedWarning, match="is missing"):
        execute(build(TABLES), folder, drawn=False)
    first, second = json.loads((folder / "summary.json").read_text())["methods"]
    assert [[*each["seeds"]] for each in (first, second)] == [["0", "1"]] * 2 and first["label"] == "fedavg"


def test_tables_of_clients(tmp_path):
    for name in ("north", "south"):
        (tmp_path / f"{name}.csv").write_text("a,ill\n" + "0.25,no\n1.5,yes\n" * 10)
    data = {"name": "csv", "files": f"{tmp_path}/*.csv", "label": "ill", "split": {"val": 0.0, "test": 0.3}}
    experiment = build({"data": data, "run": {"rounds": 2}, "methods": [{"name": "fedavg", "lr": 0.1}]})
    folder = new_folder(tmp_path / "run", "small")
    execute(experiment, folder, drawn=False)
    path = folder / "clients" / "fedavg-seed0.csv"
    good = path.read_bytes()
    path.write_bytes(good.replace(b"0.", b"0.1", 1))
    report = command("report", folder)
    assert report.exit_code == 0 and f"{path}: edited or moved" in report.stderr
    with pytest.warns(DamagedWarning, match=r"edited or moved.*; it is made again"):
        execute(experiment, folder, drawn=False)
    assert path.read_bytes() == good and "edited" not in command("report", folder).stderr


def test_an_older_folder_is_read_with_one_note(tmp_path):
    shutil.copytree(HERE / "0.9.0" / "comparison", tmp_path / "run")
    (sentence,) = runs.lost(read(tmp_path / "run"))
    assert "without digests" in sentence
    report = command("report", tmp_path / "run")
    assert report.exit_code == 0 and report.stderr.count("\n") == 1
    assert (tmp_path / "run" / "report.html").read_text().count("without digests") == 1


SWEEP = {
    "name": "sweep",
    "data": {"name": "quadratics", "clients": 3, "dimension": 2},
    "run": {"rounds": 2, "seeds": 1, "evaluate_every": 1},
    "methods": [{"name": "fedavg"}],
    "sweep": {"grid": {"methods.*.lr": [0.05, 0.1]}},
}


def test_a_sweep(tmp_path):
    sweep = plan(SWEEP)
    folder = new_folder(tmp_path / "run", "sweep")
    tune(sweep, folder, drawn=False)
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:-1]))
    assert "5 rows, and the sweep ended with 6" in refused(folder, "metrics.jsonl")
    (folder / "metrics.jsonl").write_text("".join(lines))
    text = (folder / "sweep.json").read_text()
    (folder / "sweep.json").write_text(text.replace('"failed": 0', '"failed": 1'))
    with pytest.raises(fedax.DataError, match=r"sweep\.json: damaged or edited"):
        tune(sweep, folder, drawn=False)


def test_results_of_a_study(tmp_path):
    (tmp_path / "results").mkdir()
    line = with_digest(json.dumps({"key": "k", "points": [{"mean": 0.5}], **seal("k")}).encode() + b"\n")
    path = tmp_path / "results" / "one.jsonl"
    path.write_bytes(line)
    assert results.results_of(tmp_path) == {"k": {"key": "k", "points": [{"mean": 0.5}]}}
    for wrong in (line.replace(b"0.5", b"0.4"), line.replace(b'"key": "k"', b'"key": "l"')):
        path.write_bytes(line + wrong)
        with pytest.raises(fedax.DataError, match=r"one\.jsonl, line 2: .*edited"):
            results.results_of(tmp_path)
    runs.write_json(tmp_path / "results" / "one.json", {"config": {}, "about": {}})
    (tmp_path / "results" / "one.json").rename(tmp_path / "results" / "two.json")
    with pytest.raises(fedax.DataError, match=r"two\.json: .*renamed \(it is one\.json\)"):
        results._read_shared(tmp_path / "results" / "two.json")


def test_results_of_jobs(tmp_path):
    cluster.deliver(cluster.Outcome("abc", "here", {"models/a": b"1", "models/b": b"2"}), tmp_path / "abc")
    assert cluster.delivered(tmp_path / "abc") and not cluster.delivered(tmp_path / "abd")
    shutil.copytree(tmp_path / "abc", tmp_path / "abd")
    (tmp_path / "abc" / "models" / "a").replace(tmp_path / "abc" / "models" / "b")
    for name in ("abc", "abd"):
        with pytest.raises(fedax.DataError, match=f"{name}: moved, renamed or edited"):
            cluster.delivered(tmp_path / name)
