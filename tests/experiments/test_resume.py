"""A run folder whose run was stopped: the same command goes on with it, and ends with the same figures."""

import json

import pytest
from typer.testing import CliRunner

import fedax
from fedax.cli import app
from fedax.experiments import begun_folder, build, execute, locked, new_folder

TABLES = {
    "name": "small",
    "data": {"name": "quadratics", "clients": 4, "dimension": 2},
    "run": {"rounds": 6, "evaluate_every": 2, "seeds": 2},
    "participation": {"kind": "uniform", "size": 2},
    "work": {"kind": "steps", "steps": 2},
    "methods": [{"name": "fedavg", "lr": 0.1}, {"name": "scaffold", "lr": 0.1}],
}
CONFIG = """
name = "small"
data = {name = "quadratics", clients = 4, dimension = 2}
run = {rounds = 6, evaluate_every = 2, seeds = 2}
participation = {kind = "uniform", size = 2}
work = {kind = "steps", steps = 2}
methods = [{name = "fedavg", lr = 0.1}, {name = "scaffold", lr = 0.1}]
"""


class Stopped(Exception):
    pass


def rows(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name != "seconds"} for line in lines]


def stopped(experiment, folder, at):
    """Run until the row of a method, seed and round."""

    def watch(label, seed, row):
        if row is not None and (label, seed, row["round"]) == at:
            raise Stopped

    with pytest.raises(Stopped):
        execute(experiment, folder, watch, rounds=1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = new_folder(tmp_path_factory.mktemp("whole") / "run", "small")
    experiment = build(TABLES)
    execute(experiment, folder)
    return experiment, folder


def test_what_is_over_stays_and_what_was_under_way_goes_on(whole, tmp_path, monkeypatch):
    experiment, expected = whole
    folder = new_folder(tmp_path / "run", "small")
    stopped(experiment, folder, ("fedavg", 1, 4))
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"label": "fed')  # half a line of a process that was killed
    began = json.loads((folder / "about.json").read_text())["started"]
    stopped(experiment, folder, ("scaffold", 0, 4))
    started = []
    simulate = fedax.simulate

    def watched(*args, **options):
        run = simulate(*args, **options)
        started.append((type(args[0]).__name__, options["seed"]))
        return run

    monkeypatch.setattr(fedax, "simulate", watched)
    record = execute(experiment, folder)
    assert started == [("Scaffold", 0), ("Scaffold", 1)]
    assert rows(folder) == rows(expected)
    for model in (expected / "models").iterdir():
        assert (folder / "models" / model.name).read_bytes() == model.read_bytes()
    assert [run.status for run in record.runs] == ["finished"] * 4
    assert json.loads((folder / "about.json").read_text())["started"] == began
    assert not list((folder / "checkpoints").iterdir())


def test_the_command_finds_the_run_again(whole, tmp_path, monkeypatch):
    experiment, expected = whole
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(CONFIG)
    call = CliRunner().invoke
    assert "no run of this configuration" in call(app, ["run", "small.toml", "--resume"]).stderr
    for number in (1, 2):
        folder = new_folder(None, "small")
        assert folder.name == f"small-{number}"
        stopped(experiment, folder, ("scaffold", 1, 2))
    assert begun_folder(None, experiment.config).name == "small-2"
    result = call(app, ["run", "small.toml", "--resume"])
    assert result.exit_code == 0 and "Going on with runs/small-2" in result.stdout
    assert rows(folder) == rows(expected)
    again = call(app, ["run", "small.toml", "--out", "runs/small-1"])
    assert again.exit_code == 0 and rows(tmp_path / "runs" / "small-1") == rows(expected)
    other = call(
        app, ["run", "small.toml", "--out", "runs/small-1", "--set", "run.rounds=7", "--set", "methods.*.lr=1"]
    )
    assert other.exit_code == 2
    for part in ("run.rounds was 6, is 7", "methods[0].lr was 0.1, is 1"):
        assert part in other.stderr
    assert rows(tmp_path / "runs" / "small-1") == rows(expected)


def test_two_cannot_write_one_folder(whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(CONFIG)
    folder = new_folder(tmp_path / "run", "small")
    (folder / "config.toml").write_bytes((whole[1] / "config.toml").read_bytes())
    with locked(folder):
        result = CliRunner().invoke(app, ["run", "small.toml", "--out", "run"])
    assert result.exit_code == 2 and "another process is writing" in result.stderr
    assert CliRunner().invoke(app, ["run", "small.toml", "--out", "run"]).exit_code == 0


def test_a_run_that_never_wrote_a_row_begins_anew(whole, tmp_path):
    experiment, expected = whole
    folder = new_folder(tmp_path / "run", "small")
    (folder / "config.toml").write_bytes((expected / "config.toml").read_bytes())
    assert begun_folder(folder, experiment.config) == folder
    execute(experiment, folder)
    assert rows(folder) == rows(expected)
