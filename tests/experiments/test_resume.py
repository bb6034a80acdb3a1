"""A run folder whose run was stopped: the same command resumes it, and ends with the same figures."""

import dataclasses
import json
import os
import shlex
import shutil
import signal

import filelock
import numpy as np
import pytest
from typer.testing import CliRunner

import fedax
from fedax.cli import app, exits
from fedax.engine import checkpoint, saved
from fedax.errors import DamagedWarning
from fedax.experiments import begun_folder, build, execute, locked, new_folder, plan, read, runner, runs, tune, tuning

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
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in row.items() if name not in ("seconds", "sha256")} for row in lines]


def stopped(experiment, folder, at):
    """Run until the row of a method, seed and round."""

    def watch(label, seed, row):
        if row is not None and (label, seed, row["round"]) == at:
            raise Stopped

    with pytest.raises(Stopped):
        execute(experiment, folder, watch, rounds=1)


def both_ways(test):
    """A decorator: seeds one by one are another path here. Else they are side by side only."""
    test.both_ways = True
    return test


def pytest_generate_tests(metafunc):
    ways = {"one by one": False, "side by side": True}
    if not hasattr(metafunc.function, "both_ways"):
        del ways["one by one"]
    metafunc.parametrize("together", ways.values(), ids=ways, indirect=True, scope="module")


@pytest.fixture(scope="module", autouse=True)
def together(request):
    """Whether the seeds of a method run side by side, set for any machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "worth_batching", lambda job, seeds: request.param)
        yield request.param


@pytest.fixture(scope="module")
def whole(together, tmp_path_factory):
    folder = new_folder(tmp_path_factory.mktemp("whole") / "run", "small")
    experiment = build(TABLES)
    execute(experiment, folder)
    return experiment, folder


@both_ways
def test_what_is_over_stays_and_what_was_under_way_goes_on(whole, together, tmp_path, monkeypatch):
    experiment, expected = whole
    folder = new_folder(tmp_path / "run", "small")
    stopped(experiment, folder, ("fedavg", 1, 4))
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"label": "fed')  # half a line of a process that was killed
    began = json.loads((folder / "about.json").read_text())["started"]
    stopped(experiment, folder, ("scaffold", 0, 4))
    started = []
    simulate, sweep = fedax.simulate, fedax.sweep

    def simulated(*args, **options):
        started.append((type(args[0]).__name__, options["seed"]))
        return simulate(*args, **options)

    def swept(*args, **options):
        started.append((type(args[0]()).__name__, options["seeds"]))
        return sweep(*args, **options)

    monkeypatch.setattr(fedax, "simulate", simulated)
    monkeypatch.setattr(fedax, "sweep", swept)
    record = execute(experiment, folder)
    assert started == ([("Scaffold", [0, 1])] if together else [("Scaffold", 0), ("Scaffold", 1)])
    assert rows(folder) == rows(expected)
    for model in (expected / "models").iterdir():
        assert (folder / "models" / model.name).read_bytes() == model.read_bytes()
    assert [run.status for run in record.runs] == ["finished"] * 4
    assert json.loads((folder / "about.json").read_text())["started"] == began
    assert not list((folder / "checkpoints").iterdir())


@both_ways
def test_a_run_whose_seeds_have_splits_of_their_own_goes_on(tmp_path, together):
    experiment = build(TABLES | {"run": TABLES["run"] | {"split_seeds": True}})
    expected, folder = (new_folder(tmp_path / name, "small") for name in ("whole", "part"))
    record = execute(experiment, expected)
    stopped(experiment, folder, ("scaffold", 1, 4))
    assert len(list((folder / "models").iterdir())) == (2 if together else 3)
    execute(experiment, folder)
    assert rows(folder) == rows(expected)
    for model in (expected / "models").iterdir():
        assert (folder / "models" / model.name).read_bytes() == model.read_bytes()
    alone = build(TABLES | {"data": TABLES["data"] | {"seed": 1}})
    options = {"rounds": 6, "evaluate_every": 2, "work": alone.work, "participation": alone.participation, "seed": 1}
    for label, method in alone.methods.items():
        run = fedax.simulate(method, alone.task, alone.data, **options)
        assert record.of(label)[1].history["train_loss"].tolist() == run.history["train_loss"].tolist()
    assert "2 seeds that also redraw the data" in (folder / "report.html").read_text()


@both_ways
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


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(CONFIG)
    return tmp_path / "run"


def watching(module, monkeypatch):
    """``at(label, seed, round, do)``: do something after that row is written."""
    append_metrics = runs.append_metrics

    def arrange(*arguments):
        *when, do = arguments

        def append(folder, label, method, seed, row, *point, **given):
            append_metrics(folder, label, method, seed, row, *point, **given)
            if [label, seed, row["round"]] == when:
                do()

        monkeypatch.setattr(module, "append_metrics", append)

    return arrange


@pytest.fixture
def at(monkeypatch):
    return watching(runner, monkeypatch)


@pytest.fixture
def at_sweep(monkeypatch):
    return watching(tuning, monkeypatch)


def command(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def copied(whole, folder):
    shutil.copytree(whole[1], folder)
    return folder


def test_not_a_number_is_the_same_as_before(here):
    faulty = ["--set", "run.seeds=1", "--set", "run.guard=true", "--set", "run.faults={clients = [1], sends = nan}"]
    assert command("run", "small.toml", "--out", "run", *faulty).exit_code == 0
    again = command("run", "small.toml", "--out", "run", *faulty, "--resume")
    assert again.exit_code == 0 and "Going on with run" in again.stdout
    faulty[-1] = "run.faults={clients = [1], sends = inf}"
    other = command("run", "small.toml", "--out", "run", *faulty)
    assert other.exit_code == 2 and "run.faults.sends was nan, is inf" in other.stderr


def test_a_run_that_is_refused_leaves_nothing(here):
    refused = command("run", "small.toml", "--out", "run", "--set", "run.aggregate=coordinate-median")
    assert refused.exit_code == 2 and "methods.scaffold.aggregate" in refused.stderr and not here.exists()
    tables = TABLES | {"methods": TABLES["methods"][1:], "run": TABLES["run"] | {"aggregate": "coordinate-median"}}
    with pytest.raises(fedax.ConfigError, match=r"methods.scaffold.aggregate"):
        execute(build(tables), here)
    assert not here.exists()


@pytest.mark.parametrize("files", [0, 1, 2])
def test_what_a_beginning_left_is_taken_over(files, whole, here, monkeypatch):
    """Ended between any two files; config.toml is the last."""
    written = iter(range(files))
    atomic = runner.write_atomic

    def dies(path, content):
        if next(written, None) is None:
            (path.parent / f".writing-{path.name}-a1b2c3d4").write_text("half")
            raise KeyboardInterrupt
        atomic(path, content)

    with monkeypatch.context() as patch:
        for module in (runs.folder, runner):
            patch.setattr(module, "write_atomic", dies)
        assert command("run", "small.toml", "--out", "run").exit_code == 130
    assert (here / "config.toml").exists() == (files == 2)
    resume = ["--resume"] if files else []  # either way
    assert command("run", "small.toml", "--out", "run", *resume).exit_code == 0
    assert rows(here) == rows(whole[1])
    assert not list(here.rglob(".writing-*"))


@pytest.mark.parametrize("name", ["about.json", "metrics.jsonl", "models/mine", "notes"])
def test_what_is_not_ours_is_not_taken_over(name, here):
    (here / name).parent.mkdir(parents=True)
    (here / name).write_text("mine")
    for resume in ([], ["--resume"]):
        result = command("run", "small.toml", "--out", "run", *resume)
        assert result.exit_code == 2 and "not empty" in result.stderr
    assert (here / name).read_text() == "mine" and len(list(here.iterdir())) == 1


@both_ways
def test_rows_and_models_that_are_lost_are_made_again(whole, tmp_path):
    experiment, expected = whole
    folder = copied(whole, tmp_path / "run")
    lines = (folder / "metrics.jsonl").read_text().splitlines(True)
    gone = [("fedavg", 0, 2), ("scaffold", 0, 0)]
    kept = [line for line, row in zip(lines, rows(folder), strict=True)
            if (row["label"], row["seed"], row["round"]) not in gone]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(kept))
    model = folder / "models" / "scaffold-seed1.safetensors"
    model.write_bytes(model.read_bytes()[:-1] + b"\x01")
    (folder / "models" / "fedavg-seed1.safetensors").unlink()
    sentences = [
        "fedavg, seed 0: rows of rounds 2 are missing",
        "fedavg, seed 1: its model, fedavg-seed1.safetensors, is missing",
        "scaffold, seed 0: rows of rounds 0 are missing",
        "scaffold, seed 1: its model, scaffold-seed1.safetensors, is damaged",
    ]
    for sentence, start in zip(runs.lost(read(folder)), sentences, strict=True):
        assert sentence.startswith(start)
    report = command("report", folder, "--out", tmp_path / "report.html")
    assert report.exit_code == 0 and all(f"warning: {folder}: {sentence}" in report.stderr for sentence in sentences)
    assert all(sentence in (tmp_path / "report.html").read_text() for sentence in sentences)
    with pytest.warns(DamagedWarning) as caught:
        execute(experiment, folder)
    assert [str(each.message).endswith("; it is run again") for each in caught] == [True] * 4
    assert rows(folder) == rows(expected) and runs.lost(read(folder)) == []
    for path in (expected / "models").iterdir():
        assert (folder / "models" / path.name).read_bytes() == path.read_bytes()


@both_ways
def test_rows_that_are_all_lost(whole, tmp_path):
    folder = copied(whole, tmp_path / "run")
    (folder / "metrics.jsonl").write_text("")
    with pytest.raises(fedax.ConfigError, match=r"rows are lost, .*has models; --resume"):
        read(folder)
    with pytest.warns(DamagedWarning, match="rows of rounds 0, 2, 4, 6 are missing"):
        execute(whole[0], folder)
    assert rows(folder) == rows(whole[1])


def test_rows_that_come_twice_are_refused(whole, tmp_path):
    folder = copied(whole, tmp_path / "run")
    lines = (folder / "metrics.jsonl").read_text().splitlines(True)
    (folder / "metrics.jsonl").write_text("".join(lines + lines[-1:]))
    with pytest.raises(fedax.DataError, match=f"line {len(lines) + 1}: a round .*before"):
        read(folder)


def test_without_about_json_it_is_refused(whole, tmp_path):
    folder = copied(whole, tmp_path / "run")
    (folder / "about.json").unlink()
    (folder / "models" / "scaffold-seed1.safetensors").unlink()
    with pytest.raises(fedax.ConfigError, match=r"its about\.json is lost"):
        execute(whole[0], folder)
    assert rows(folder) == rows(whole[1])


def test_a_run_of_another_problem_is_refused(whole, tmp_path):
    """The configuration is the same, but for instance its data file is another one; also if every run is finished."""
    folder = copied(whole, tmp_path / "run")
    data = whole[0].data
    other = fedax.FederatedData(data.examples | {"e": data.examples["e"] + 1}, data.sizes, data.weights)
    with pytest.raises(fedax.ConfigError, match=r"of another problem \(fedavg: data\['e'\] was"):
        execute(dataclasses.replace(whole[0], data=other), folder)
    about = json.loads((folder / "about.json").read_text())
    about = {name: value for name, value in about.items() if name not in ("sha256", "of", "run")}
    (folder / "about.json").write_text(json.dumps(about | {"made_of": None}))
    with pytest.raises(fedax.ConfigError, match="a run of an older version of fedax"):
        execute(whole[0], folder)


@both_ways
def test_killed_at_every_row(whole, tmp_path):
    """And after each model that is written: nothing is lost, and nothing comes twice."""
    experiment, expected = whole
    folder, number = new_folder(tmp_path / "run", "small"), 0
    while True:
        seen = iter(range(number))

        def watch(label, seed, row, seen=seen):
            if row is not None and next(seen, None) is None:
                raise Stopped

        try:
            execute(experiment, folder, watch, rounds=1)
            break
        except Stopped:
            number += 1
            assert number < 100
    assert rows(folder) == rows(expected)
    for model in (expected / "models").iterdir():
        assert (folder / "models" / model.name).read_bytes() == model.read_bytes()
    assert not list((folder / "checkpoints").iterdir())


@both_ways
@pytest.mark.parametrize("written", [0, 3])
def test_killed_between_the_models(written, whole, tmp_path, monkeypatch):
    experiment, expected = whole
    folder, left = new_folder(tmp_path / "run", "small"), iter(range(written))

    write_model = saved.write_model

    def dies(*given):
        if next(left, None) is None:
            raise Stopped
        write_model(*given)

    with monkeypatch.context() as patch:
        patch.setattr(saved, "write_model", dies)
        with pytest.raises(Stopped):
            execute(experiment, folder)
    execute(experiment, folder)
    assert rows(folder) == rows(expected)
    for model in (expected / "models").iterdir():
        assert (folder / "models" / model.name).read_bytes() == model.read_bytes()


@both_ways
def test_seeds_go_on_as_they_were_begun(whole, together, tmp_path, monkeypatch):
    """Side by side or one by one, also where the other way would be taken now; as in folders of earlier versions."""
    experiment, expected = whole
    folder = new_folder(tmp_path / "run", "small")
    stopped(experiment, folder, ("scaffold", 0, 4))
    monkeypatch.setattr(runner, "worth_batching", lambda job, seeds: not together)
    execute(experiment, folder)
    assert rows(folder) == rows(expected)


@both_ways
def test_side_by_side_or_one_by_one_the_figures_are_the_same(whole, together, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "worth_batching", lambda job, seeds: not together)
    record, other = read(whole[1]), execute(whole[0], new_folder(tmp_path / "other", "small"))
    assert [(run.label, run.seed) for run in record.runs] == [(run.label, run.seed) for run in other.runs]
    for one, two in zip(record.runs, other.runs, strict=True):
        assert one.history.keys() == two.history.keys() and one.status == two.status
        for column in one.history.keys() - {"seconds"}:
            np.testing.assert_allclose(one.history[column], two.history[column], 1e-5, err_msg=column)


@both_ways
def test_a_sweep_goes_on(tmp_path, together):
    """Killed at every eleventh row, and between the methods; finished runs are not repeated."""
    grid = {"methods.*.lr": [0.1, 0.2], "work.steps": [1, 2]}
    column_plan = plan(TABLES, grid)
    expected, folder = (new_folder(tmp_path / name, "small") for name in ("whole", "part"))
    tune(column_plan, expected)
    number = 0
    while True:
        seen = iter(range(number))

        def watch(label, point, seed, row, seen=seen):
            if next(seen, None) is None:
                raise Stopped

        try:
            tune(column_plan, folder, watch, rounds=1)
            break
        except Stopped:
            number += 11
            assert number < 200
    assert rows(folder) == rows(expected)
    for path in (*(expected / "models").iterdir(), expected / "best.toml"):
        assert (folder / path.relative_to(expected)).read_bytes() == path.read_bytes()
    whole, again = (json.loads((each / "sweep.json").read_text()) for each in (expected, folder))
    of_time = {"seconds": 0, "sha256": ""}
    assert whole | of_time == again | of_time
    assert not list((folder / "checkpoints").iterdir())
    before = (folder / "metrics.jsonl").read_bytes()
    assert tune(column_plan, folder)[1]["best"] == again["best"] and (folder / "metrics.jsonl").read_bytes() == before
    experiments = {
        label: [dataclasses.replace(each, data=each.data.with_weights([0.1, 0.2, 0.3, 0.4])) for each in several]
        for label, several in column_plan.experiments.items()
    }
    part = new_folder(tmp_path / "other", "small")
    with pytest.raises(Stopped):
        tune(
            column_plan, part, lambda *row: (_ for _ in ()).throw(Stopped) if row[-1]["round"] == 4 else None, rounds=1
        )
    with pytest.raises(fedax.errors.CheckpointError, match="sizes and weights was"):
        tune(dataclasses.replace(column_plan, experiments=experiments), part)


@both_ways
def test_the_command_goes_on_with_a_sweep(here, at_sweep):
    """Ended by a signal; the command that it prints resumes the run."""
    given = ["sweep", "small.toml", "--grid", "methods.*.lr=0.1,0.2"]
    assert command(*given, "--out", "expected").exit_code == 0
    at_sweep("scaffold", 0, 2, lambda: signal.raise_signal(signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        result = command(*given)
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.exit_code == 130 and "fedax sweep runs/small-sweep-1/config.toml" in result.stderr
    at_sweep(None, lambda: None)
    again = command(*shlex.split(result.stderr.partition("to go on: fedax ")[2]))
    assert again.exit_code == 0 and "Going on with runs/small-sweep-1" in again.stdout, again.stderr
    folder = here.parent / "runs" / "small-sweep-1"
    assert rows(folder) == rows(here.parent / "expected")
    over = command(*given, "--resume")
    assert over.exit_code == 0 and "runs done" not in over.stdout
    assert over.stdout.partition("The best again")[2] == again.stdout.partition("The best again")[2] != ""


@both_ways
def test_what_a_killed_process_left_goes(whole, tmp_path):
    """Killed while it wrote a model, and after that, before it removed the checkpoints."""
    folder = copied(whole, tmp_path / "run")
    (folder / "models" / ".writing-fedavg-seed0.safetensors-a1b2c3d4").write_bytes(b"half")
    place = folder / "checkpoints" / "fedavg-seed0"
    place.mkdir()
    for name in ("round-000000006.0-of-1.safetensors", "best.safetensors", ".writing-abc"):
        (place / name).write_bytes(b"")
    execute(whole[0], folder)
    assert {path.name for path in (folder / "models").iterdir()} == {p.name for p in (whole[1] / "models").iterdir()}
    assert not list((folder / "checkpoints").iterdir()) and rows(folder) == rows(whole[1])


LINKS = ["checkpoints", "models", "metrics.jsonl", ".lock", "models/x.safetensors", "checkpoints/scaffold-seed1"]


@pytest.mark.parametrize("name", LINKS)
def test_links_are_refused_and_nothing_is_removed_behind_them(name, whole, here):
    copied(whole, here)
    (here / "models" / "scaffold-seed1.safetensors").unlink()
    elsewhere = here.parent / "elsewhere"
    (elsewhere / "scaffold-seed1").mkdir(parents=True)
    (elsewhere / "scaffold-seed1" / "precious").write_text("mine")
    place = here / name
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.symlink_to(elsewhere)
    result = command("run", "small.toml", "--out", "run", "--resume")
    assert result.exit_code == 2 and f"run/{name}': this is a link" in result.stderr
    with pytest.raises(fedax.ConfigError, match="this is a link"):
        execute(whole[0], here)
    assert [path.name for path in elsewhere.rglob("*")] == ["scaffold-seed1", "precious"]


def test_what_is_not_ours_stays_among_the_checkpoints(whole, tmp_path):
    folder = copied(whole, tmp_path / "run")
    (folder / "models" / "scaffold-seed1.safetensors").unlink()
    mine = folder / "checkpoints" / "scaffold-seed1" / "mine" / "notes"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.warns(DamagedWarning, match="is missing"):
        execute(whole[0], folder)
    assert mine.read_text() == "mine" and [path.name for path in mine.parents[1].iterdir()] == ["mine"]


@both_ways
@pytest.mark.parametrize(
    ("which", "handler", "code"),
    [
        (signal.SIGINT, signal.default_int_handler, 130),
        (signal.SIGTERM, exits.terminate, 143),
        (signal.SIGHUP, exits.terminate, 129),
    ],
)
def test_signals_end_a_run_with_a_checkpoint_and_a_report(which, handler, code, whole, together, here, at):
    before = signal.signal(which, handler)
    at("scaffold", 0, 2, lambda: signal.raise_signal(which))
    try:
        result = command("run", "small.toml", "--out", "run")
    finally:
        assert signal.signal(which, before) is handler
    assert result.exit_code == code
    place = here / "checkpoints" / ("scaffold-seeds/batch-0" if together else "scaffold-seed0")
    assert (place / "round-000000002.0-of-1.safetensors").is_file()
    assert "stopped at round 2" in (here / "report.html").read_text()
    assert result.stderr.startswith("stopped; report: run/report.html; to go on: fedax run ")
    at(None, lambda: None)
    again = command(*shlex.split(result.stderr.partition("to go on: fedax ")[2]))
    assert again.exit_code == 0 and rows(here) == rows(whole[1])


def test_interrupted_before_there_is_a_row(here, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "begin", interrupted)
    result = command("run", "small.toml", "--out", "run")
    assert result.exit_code == 130 and "is in run; to go on: the same command" in result.stderr
    monkeypatch.setattr("fedax.experiments.tuning.begin", interrupted)
    result = command("sweep", "small.toml", "--grid", "methods.*.lr=0.1,0.2", "--out", "tried")
    assert result.exit_code == 130 and "in tried; to go on: the same command" in result.stderr


def full(*arguments, **options):
    raise OSError(28, "No space left on device")


@both_ways
@pytest.mark.parametrize(
    ("module", "name"),
    [(runner, "append_metrics"), (saved, "write_model"), (runner, "finish"), (checkpoint, "write_tensors")],
)
def test_a_disk_that_is_full(module, name, whole, here, monkeypatch):
    """One line of an error, and the run can still be resumed."""
    with monkeypatch.context() as patch:
        patch.setattr(module, name, full)
        result = command("run", "small.toml", "--out", "run")
    assert result.exit_code == 2 and result.stderr.count("\n") == 1
    assert result.stderr.startswith("error: ") and "(No space left on device)" in result.stderr
    assert command("run", "small.toml", "--out", "run", "--resume").exit_code == 0
    assert rows(here) == rows(whole[1])


@both_ways
@pytest.mark.parametrize("rounds", [1, 100])
def test_a_folder_that_is_removed(rounds, here, at):
    """Seen by the next checkpoint, or by the next row."""
    at("fedavg", 0, 2, lambda: shutil.rmtree(here))
    result = command("run", "small.toml", "--out", "run", "--checkpoint-rounds", rounds)
    assert result.exit_code == 2 and result.stderr.count("\n") == 1 and "No such file or directory" in result.stderr
    assert not here.exists()


def test_a_folder_that_may_be_read_only(whole, here, monkeypatch):
    def read_only(*arguments, **options):
        raise OSError(30, os.strerror(30))

    shutil.copytree(whole[1], here)
    for target, name in ((filelock.FileLock, "acquire"), (runner, "keep_rows")):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, read_only)
            result = command("run", "small.toml", "--out", "run")
        assert result.exit_code == 2 and result.stderr.count("\n") == 1 and "Read-only file system" in result.stderr
    assert rows(here) == rows(whole[1])


@both_ways
def test_the_best_model_is_among_the_models(here, at):
    result = command("run", "small.toml", "--out", "run", "--checkpoint-best", "train_los")
    assert result.exit_code == 2 and "'train_los': did you mean 'train_loss'" in result.stderr
    assert not here.exists()
    assert command("run", "small.toml", "--out", "run", "--checkpoint-best", "train_loss").exit_code == 0
    found = sorted(path.name for path in (here / "models").iterdir())
    assert found[:2] == ["fedavg-seed0-best.safetensors", "fedavg-seed0.safetensors"] and len(found) == 8
    best, last = (fedax.load_model(here / "models" / name).params for name in found[:2])
    assert best.tolist() == last.tolist()  # the loss falls here
