"""Sweeps: the points of a configuration, the best ones, the folder, the report, the command, bad input."""

import copy
import json
import re
import tomllib
import types

import jax
import numpy as np
import pytest

import fedax
from fedax.engine.saved import read_model
from fedax.errors import ConfigError
from fedax.experiments import MethodRun, Record, build, new_folder, plan, read, read_toml, summary, sweeps, tune
from fedax.experiments.report import render
from fedax.figures.series import Scale
from fedax.privacy import Ledger
from tests.experiments import run_cli

from .. import LAST_BITS

CONFIG = """
data = {name = "digits", clients = 3, partition = "dirichlet", alpha = 0.5}
work = {kind = "steps", steps = 2}
run = {rounds = 3, seeds = [3, 5], evaluate_every = 1}
methods = [{name = "fedavg"}, {name = "fedavg", label = "a <b>", momentum = 0.5}, {name = "fedavg", label = "gone"}]

[sweep]
last = 2

[sweep.grid]
"methods.*.lr" = [0.05, 0.5, 1e38]
"methods.gone.lr" = [1e38]
run.batch_size = [8, 16]
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory, plots):
    """A sweep: its folder and the output."""
    here = tmp_path_factory.mktemp("sweep")
    (here / "small.toml").write_text(CONFIG)
    with plots():
        result = run_cli("sweep", str(here / "small.toml"), "--out", str(here / "run"))
    assert result.exit_code == 1, result.output  # one method diverges wherever it is tried
    return here / "run", result.stdout


@pytest.fixture(scope="module")
def record(done):
    return read(done[0])


@pytest.fixture(scope="module")
def alone(record):
    """fedavg at every point with every seed by ``simulate``: (lr, batch size) -> runs."""
    base = build(record.config)
    options = {"rounds": 3, "work": fedax.Steps(2), "test": base.test, "evaluate_every": 1}

    def run(lr, batch_size, seed):
        method = fedax.create("fedavg", lr=lr)
        return fedax.simulate(method, base.task, base.data, batch_size=batch_size, seed=seed, **options)

    return {(lr, batch): [run(lr, batch, seed) for seed in (3, 5)] for lr in (0.05, 0.5) for batch in (8, 16)}


def test_the_best_is_the_best_by_single_runs(record, alone):
    losses = {at: np.array([np.mean(run.history["test_loss"][-2:]) for run in runs]) for at, runs in alone.items()}
    trials = record.trials("fedavg")
    order = sorted(losses, key=lambda at: losses[at].mean())
    assert [(t.point["lr"], t.point["run.batch_size"]) for t in trials[:4]] == order
    for trial, at in zip(trials, order, strict=False):
        np.testing.assert_allclose(trial.scores, losses[at], 1e-4)
        assert trial.mean == pytest.approx(losses[at].mean(), rel=1e-4)
        assert trial.std == pytest.approx(losses[at].std(ddof=1), rel=1e-2) and trial.failed == 0
    assert [(t.point["lr"], t.failed) for t in trials[4:]] == [(1e38, 2), (1e38, 2)]
    best, other, gone = summary.methods([record])
    np.testing.assert_allclose(best.final("test_loss"), [run.history["test_loss"][-1] for run in alone[order[0]]], 1e-4)
    assert best.hyper == {"lr": order[0][0], "run.batch_size": order[0][1]}
    assert other.hyper["momentum"] == 0.5 and gone.status == "diverged"


def test_the_models_are_those_of_the_best_point(record, alone):
    best = record.trials("fedavg")[0].point
    like = jax.eval_shape(build(record.config).task.init, jax.random.key(0))
    for seed, run in zip((3, 5), alone[best["lr"], best["run.batch_size"]], strict=True):
        model = read_model(record.folder / f"models/fedavg-seed{seed}.safetensors", like)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-5), model, run.params)
    assert len(list((record.folder / "models").iterdir())) == 6


def test_the_folder_has_the_table_and_the_best_settings(record):
    content = json.loads((record.folder / "sweep.json").read_text())
    assert (content["criterion"], content["better"], content["programs"]) == ("test_loss", "lower", 6)
    assert sorted(label for labels in content["best"].values() for label in labels) == ["a <b>", "fedavg"]
    for method in content["methods"][:2]:
        trials = record.trials(method["label"])
        assert method["points"] == 6 and method["best"] == trials[0].point
        assert [row["mean"] for row in method["table"][:4]] == [trial.mean for trial in trials[:4]]
        assert method["table"][4]["mean"] is None
    for file, labels in content["best"].items():
        config = build(tomllib.loads((record.folder / file).read_text())).config
        assert [method["label"] for method in config["methods"]] == labels
        for method in config["methods"]:
            best = record.trials(method["label"])[0].point
            assert (method["lr"], config["run"]["batch_size"]) == (best["lr"], best["run.batch_size"])
    again = plan(read_toml(record.folder / "config.toml"))
    assert again.config == record.config and len(again.points["a <b>"]) == 6


def test_the_command_shows_the_best_points(done, record):
    folder, printed = done
    best = record.trials("fedavg")[0]
    assert sweeps.settings(best.point) in printed and f"{best.mean:.4g}" in printed
    assert "28 runs in 6 compiled programs" in printed and f"fedax run {folder}/best" in printed
    assert f"Report: {folder}/report.html" in printed


def test_the_report_draws_the_table_and_the_maps(record):
    page = render([record])
    assert page == render([read(record.folder)])
    drawn = [json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', page, re.S)]
    of_lr, curves, *_ = drawn
    cells = re.findall(r'<td class="h(\d+)" title="(.*?)">(.*?)</td>', page)
    assert len(cells) == 2 * 6 and sum(text == "×" for *_, text in cells) == 2 * 2
    assert len({text for *_, text in cells if text.startswith("★ ")}) == 2
    for trial in record.trials("fedavg"):
        end = sweeps.failure(trial) if trial.failed else f"{trial.mean:.4g}"
        assert any(about.startswith(f"{sweeps.settings(trial.point)}: {end}") for _, about, _ in cells)
    assert "<b>a &lt;b&gt;</b>" in page
    assert [text.split(":")[0].split("\n") for each in of_lr["series"] for text in each["texts"]] == [
        ["gone", "run.batch_size 8"], ["gone", "run.batch_size 16"],
    ]  # fmt: skip
    assert page.count("<details>") == 3 and "a &lt;b&gt;: lr" in page and "the best of 6 points" in page
    assert page.count('<td data-name="Failed seeds">2</td>') == 6
    assert curves["charts"][0]["values"][0][0][-1] == pytest.approx(
        np.mean([run.history["test_loss"][-1] for run in record.trials("fedavg")[0].runs]), rel=1e-5
    )
    assert {path.name for path in (record.folder / "plots").iterdir()} >= {"sweep-fedavg.png", "sweep-a-b.png"}
    assert render([record, record]).count("Sweep of run") == 2


def test_a_sweep_that_was_stopped_has_its_finished_points(record, tmp_path):
    lines = (record.folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    for name in ("config.toml", "about.json"):
        (tmp_path / name).write_bytes((record.folder / name).read_bytes())
    (tmp_path / "metrics.jsonl").write_text("".join(lines[: len(lines) // 3]))
    part = read(tmp_path)
    trials = part.trials("fedavg")
    assert 0 < len(trials) < 6 and part.trials("a <b>") == []
    assert trials[0].point == min((t.point for t in trials), key=lambda p: [t.mean for t in trials if t.point == p])
    assert "Sweep" in render([part])
    (tmp_path / "metrics.jsonl").write_text(lines[0])
    assert read(tmp_path).trials("fedavg") == [] and "stopped at round 0" in render([read(tmp_path)])


def test_run_leaves_the_sweep_aside_and_diagnose_refuses_one(done, tmp_path):
    (tmp_path / "small.toml").write_text(CONFIG)
    config = build(read_toml(tmp_path / "small.toml")).config
    assert "sweep" not in config and "batch_size" not in config["run"]
    result = run_cli("diagnose", str(done[0]))
    assert result.exit_code == 2 and "best.toml" in result.stderr


def test_seeds_with_splits_of_their_own(tmp_path):
    tables = {
        "data": {"name": "quadratics", "clients": 3, "dimension": 2},
        "work": {"kind": "steps", "steps": 2},
        "run": {"rounds": 2, "evaluate_every": 1, "seeds": [4, 1], "split_seeds": True},
        "methods": [{"name": "fedavg"}],
    }
    swept, _ = tune(plan(tables, {"methods.*.lr": [0.05, 0.1]}), new_folder(tmp_path / "run", "small"))
    assert [run.seed for trial in swept.trials("fedavg") for run in trial.runs] == [4, 1, 4, 1]
    for trial in swept.trials("fedavg"):
        for run in trial.runs:
            data = fedax.data.quadratics(3, 2, seed=run.seed)
            alone = fedax.simulate(
                fedax.create("fedavg", **trial.point), fedax.tasks.quadratic(2), data, rounds=2, evaluate_every=1,
                work=fedax.Steps(2), seed=run.seed,
            )  # fmt: skip
            np.testing.assert_allclose(run.history["train_loss"], alone.history["train_loss"], 1e-5)
    assert len(list((swept.folder / "models").iterdir())) == 2
    assert "over 2 seeds that also redraw the data" in sweeps.about(swept)


def test_the_column_that_decides_is_the_criterion():
    psi = {"name": "l1", "weight": 0.1}
    grid = {"methods.*.regularizer": [psi, psi | {"weight": 0.2}]}
    assert planned(grid, methods=[{"name": "fedavg"}]).config["sweep"]["criterion"] == "test_loss"
    run = BASE["run"] | {"judge": "test_accuracy"}
    assert planned({"methods.*.lr": [0.1, 0.2]}, run=run).config["sweep"]["criterion"] == "test_accuracy"


# ---- points


BASE = {
    "data": {"name": "digits", "clients": 4, "partition": "iid"},
    "work": {"kind": "epochs", "epochs": 1},
    "run": {"rounds": 4, "batch_size": 16},
    "methods": [{"name": "fedavg"}, {"name": "fedavg-m", "label": "mine"}, {"name": "fedprox", "prox": 0.01}],
}


def planned(grid, **changes):
    sweep = changes.pop("sweep", {})
    return plan(copy.deepcopy(BASE) | changes | {"sweep": {"grid": grid, **sweep}})


def test_axes_go_where_they_belong():
    grid = {
        "work": {"steps": [1, 2], "kind": ["steps"]},
        "methods.*.lr": [0.1, 0.2],
        "methods.fedavg-m.lr": [0.3],
        "methods.*.beta": {"low": 0.1, "high": 0.4, "points": 3},
    }
    tuning = planned(grid)
    points = tuning.points
    assert points["fedavg"] == [
        {"lr": lr, "work.steps": steps, "work.kind": "steps"} for lr in (0.1, 0.2) for steps in (1, 2)
    ]
    assert len(points["mine"]) == 6 and {p["lr"] for p in points["mine"]} == {0.3}
    assert {p["beta"] for p in points["mine"]} == {0.1, 0.2, 0.4}
    for label, each in tuning.experiments.items():
        for point, experiment in zip(points[label], each, strict=True):
            assert list(experiment.methods) == [label] and experiment.work.steps == point["work.steps"]
            assert experiment.config["methods"][0]["lr"] == point["lr"] and experiment.data is each[0].data
    assert tuning.config["sweep"] == {
        "criterion": "test_loss", "better": "lower", "last": 1, "search": "grid",
        "grid": {"work.steps": [1, 2], "work.kind": ["steps"], **{k: v for k, v in grid.items() if k != "work"}},
    }  # fmt: skip


def test_random_points_are_as_many_for_each_method_and_all_different():
    grid = {"methods.*.lr": {"low": 0.01, "high": 1.0}, "methods.mine.beta": [0.1, 0.2], "run.batch_size": [8, 16]}
    results = [planned(grid, sweep={"search": "random", "points": 30, "seed": seed}).points for seed in (7, 7, 8)]
    assert results[0] == results[1] != results[2]
    for label, points in results[0].items():
        assert len(points) == 30 and all(point not in points[:i] for i, point in enumerate(points))
        assert all(0.01 <= point["lr"] <= 1 for point in points) and ("beta" in points[0]) == (label == "mine")
    few = planned({"methods.*.lr": [0.1, 0.2, 0.3]}, sweep={"search": "random", "points": 3})
    assert sorted(point["lr"] for point in few.points["fedavg"]) == [0.1, 0.2, 0.3]


@pytest.mark.parametrize(("high", "points"), [(0.011, 5), (0.011, 200), (0.0100000001, 30)])
def test_many_values_of_a_range_stay_apart(high, points):
    """Four digits are not enough for the 200, and eight not for the 30."""
    config = {"data": {"name": "quadratics", "clients": 2, "dimension": 1}, "run": {"rounds": 1}}
    column_plan = plan(
        config | {"methods": [{"name": "fedavg"}]}, {"methods.*.lr": {"low": 0.01, "high": high, "points": points}}
    )
    values = [point["lr"] for point in column_plan.points["fedavg"]]
    assert len({*values}) == points and values == sorted(values) and (values[0], values[-1]) == (0.01, high)
    assert points > 5 or values[1] == 0.01024


def test_the_criterion_and_its_direction():
    grid = {"methods.*.lr": [0.1, 0.2]}
    sweep = planned(grid, sweep={"criterion": "test_accuracy"}).config["sweep"]
    assert sweep["better"] == "higher"
    quadratics = {"data": {"name": "quadratics", "clients": 3, "dimension": 2}, "run": {"rounds": 2, "density": 0.1}}
    assert planned(grid, **quadratics).config["sweep"]["criterion"] == "train_loss"
    given = {"criterion": "density", "better": "lower"}
    assert planned(grid, **quadratics, sweep=given).config["sweep"]["better"] == "lower"
    psi = [{"name": "fedavg", "regularizer": {"name": "l1", "weight": 0.1}}]
    assert planned(grid, **quadratics, methods=psi).config["sweep"]["criterion"] == "objective"


@pytest.mark.parametrize(
    ("grid", "sweep", "message"),
    [
        ({}, {}, "sweep.grid = None"),
        ({"methods.*.lr": []}, {}, "sweep.grid.methods.*.lr = []"),
        ({"methods.*.lr": 0.1}, {}, "sweep.grid.methods.*.lr = 0.1"),
        ({"methods.*.lr": {}}, {}, "sweep.grid.methods.*.lr = {}"),
        ({"methods.*.lr": [0.1, 0.1]}, {}, "comes twice"),
        ({"methods.*.lr": [0.1, -1]}, {}, "methods.fedavg.lr = -1"),
        ({"methods.*.lrr": [0.1]}, {}, "did you mean 'lr'"),
        ({"methods.fedavg.beta": [0.1]}, {}, "sweep.grid.methods.fedavg.beta = 'beta'"),
        ({"methods.fedavgg.lr": [0.1]}, {}, "did you mean 'fedavg'"),
        ({"methods.fedavg": [0.1]}, {}, "name method and hyper-parameter"),
        ({"methods.fedavg.name": ["fedprox"]}, {}, "[[methods]]"),
        ({"methods.*.lr": {"low": 0, "high": 1}}, {}, "sweep.grid.methods.*.lr.low = 0"),
        ({"methods.*.lr": {"low": 1, "high": 1}}, {}, "sweep.grid.methods.*.lr.high = 1"),
        ({"methods.*.lr": {"low": 0.1, "high": 1, "points": 1}}, {}, "sweep.grid.methods.*.lr.points = 1"),
        ({"methods.*.lr": {"low": 0.1, "high": 1, "log": "no"}}, {}, "sweep.grid.methods.*.lr.log = 'no'"),
        ({"methods.*.lr": {"low": 0.1, "hihg": 1}}, {}, "did you mean 'high'"),
        ({"methods.*.lr": {"low": 0.1, "high": 1, "points": 10**9}}, {}, "3000000000 points"),
        ({"methods.*.lr": {"low": 0.1, "high": 1}}, {"search": "random", "points": 3334}, "10002 points"),
        ({"methods.*.lr": {"low": 0.1, "high": 1}}, {"search": "random", "points": 0}, "sweep.points = 0"),
        ({"methods.*.lr": {"low": 0.1, "high": 1}}, {"search": "random"}, "sweep.points = None"),
        ({"methods.*.lr": [0.1]}, {"points": 3}, "sweep.points = 3"),
        ({"methods.*.lr": [0.1]}, {"search": "random", "points": 2}, "only 1 combinations"),
        ({"methods.*.lr": {"low": 1, "high": 1.00001}}, {"search": "random", "points": 9}, "too narrow"),
        ({"methods.*.lr": [0.1]}, {"search": "optuna"}, "sweep.search = 'optuna'"),
        ({"methods.*.lr": [0.1]}, {"seeds": 3}, "did you mean 'seed'"),
        ({"methods.*.lr": [0.1]}, {"criterion": "accuracy"}, "did you mean 'test_accuracy'"),
        ({"methods.*.lr": [0.1]}, {"last": 9}, "sweep.last = 9"),
        ({"data.alpha": [0.1]}, {}, "another problem"),
        ({"task.l2": [0.1]}, {}, "another task"),
        ({"run.rounds": [1, 2]}, {}, "same budget"),
        ({"work.stepps": [1, 2]}, {}, "work.stepps"),
        ({"work": [1, 2]}, {}, "name one setting"),
        ({"run.batch_size": [8, 0]}, {}, "run.batch_size = 0"),
        ({"participation.kind": ["uniform"], "participation.size": [2, 9]}, {}, "participation.size = 9"),
        ({"mehtods.*.lr": [1]}, {}, "did you mean 'methods'"),
    ],
)
def test_bad_input_is_named_before_anything_runs(grid, sweep, message, monkeypatch):
    monkeypatch.setattr(fedax, "sweep", None)
    with pytest.raises(ConfigError, match=re.escape(message)):
        planned(grid, sweep=sweep)


COSINE = {"kind": "cosine", "value": 0.1, "rounds": 3}
CLIPPED = [{"name": "clip", "max_delta": 1.0}, {"name": "sgd"}]


def test_a_number_in_a_schedule_and_in_a_list_of_solvers_is_swept_in_one_program(tmp_path):
    methods = [{"name": name, "lr": COSINE, "solver": CLIPPED} for name in ("fedavg", "scaffold")]
    sweep = planned({"methods.*.lr.value": [0.1, 0.2], "methods.*.solver.clip.max_delta": [1e-3, 9.0]}, methods=methods)
    tune(sweep, new_folder(tmp_path / "run", "x"), drawn=False)
    record = read(tmp_path / "run")
    for label in ("fedavg", "scaffold"):
        found = {(t.point["lr.value"], t.point["solver.clip.max_delta"]): t.mean for t in record.trials(label)}
        assert len({*found.values()}) == 4  # each setting counts
        assert min(found.values()) == found[max(found)]
    for best in read_toml(tmp_path / "run" / "best.toml")["methods"]:
        assert best["lr"] == COSINE | {"value": 0.2} and best["solver"][0] == {"name": "clip", "max_delta": 9.0}


@pytest.mark.parametrize("axis", [[0.1, 0.2], [COSINE, 0.1], {"low": 0.1, "high": 1}])
def test_a_number_does_not_take_the_place_of_a_schedule_in_silence(axis):
    methods = [{"name": "fedavg", "lr": 0.1}, {"name": "scaffold", "lr": COSINE}]
    with pytest.raises(ConfigError, match=r"^sweep\.grid\.methods\.\*\.lr = .*methods\.scaffold\.lr\.value"):
        planned({"methods.*.lr": axis}, methods=methods)


def test_a_criterion_whose_name_does_not_tell_wants_a_direction():
    with pytest.raises(ConfigError, match=r"sweep\.better"):
        planned(
            {"methods.*.lr": [0.1]}, run={"rounds": 2, "batch_size": 8, "density": 0.1}, sweep={"criterion": "density"}
        )


def test_the_command_takes_axes_and_refuses_bad_ones(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = []
    monkeypatch.setattr(
        "fedax.experiments.plan", lambda tables, grid, *code: seen.append(grid) or plan(tables, grid, *code)
    )
    (tmp_path / "small.toml").write_text(CONFIG.partition("[sweep]")[0])
    axes = ["methods.*.lr=0.01, 0.1", "methods.*.momentum = 0.5", "run.batch_size=[8]", "work.kind=steps,epochs",
            "methods.*.prox={low = 0.1, high = 1.0}", "task.l2=1"]  # fmt: skip
    result = run_cli("sweep", "small.toml", *(part for axis in axes for part in ("--grid", axis)))
    assert result.exit_code == 2 and "sweep.grid.task.l2 = [1]" in result.stderr and result.stderr.count("\n") == 1
    assert seen == [
        {"methods.*.lr": [0.01, 0.1], "methods.*.momentum": [0.5], "run.batch_size": [8],
         "work.kind": ["steps", "epochs"], "methods.*.prox": {"low": 0.1, "high": 1.0}, "task.l2": [1]}
    ]  # fmt: skip
    assert "fedax sweep experiment.toml" in run_cli("sweep", "--help").stdout
    for arguments, message in ([["--grid", "lr"], "give KEY=VALUES"], [[], "sweep.grid = None"]):
        result = run_cli("sweep", "small.toml", *arguments)
        assert result.exit_code == 2 and message in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["small.toml"]


# ---- what is found


def made(folder, scores, better="lower", search="grid", seeds=1):
    """The record of a sweep; ``scores``: label -> pairs of a point and its final losses, one a seed."""
    runs = []
    for label, points in scores.items():
        for point, losses in points:
            for seed, loss in enumerate(losses):
                status = "diverged" if np.isnan(loss) else "finished"
                runs.append(MethodRun(label, "fedavg", seed, status, {"test_loss": np.array([2.0, loss])}, point))
    sweep = {"criterion": "test_loss", "better": better, "last": 1, "search": search, "seed": 0}
    return Record(folder, {"run": {"seeds": list(range(seeds))}, "sweep": sweep}, {}, runs, [])


NAN = float("nan")


def test_the_order_of_points_is_that_of_the_engine(tmp_path):
    losses = [[0.3, 0.5], [0.1, NAN], [0.2, 0.4], [NAN, NAN], [0.1, 0.9]]
    scores = [({"lr": i}, each) for i, each in enumerate(losses)]
    for better in ("lower", "higher"):
        record = made(tmp_path, {"m": scores}, better=better, seeds=2)
        runs = [types.SimpleNamespace(**vars(run), public_columns=None) for run in record.runs]
        result = fedax.Sweep([point for point, _ in scores], [0, 1], [runs[2 * i : 2 * i + 2] for i in range(5)], 1)
        rows = result.table("test_loss", higher=better == "higher")
        assert [trial.point["lr"] for trial in record.trials("m")] == [row["lr"] for row in rows]
        for trial, row in zip(record.trials("m"), rows, strict=True):
            np.testing.assert_array_equal(
                [trial.mean, trial.std, trial.failed], [row["mean"], row["std"], row["failed"]]
            )


def test_the_edge_of_an_axis_and_unequal_numbers_are_told(tmp_path):
    inner = [({"lr": lr, "kind": kind}, [loss]) for lr, kind, loss in [(0.1, "a", 1), (0.5, "b", 0.2), (1.0, "a", NAN)]]
    edge = [({"lr": lr, "one": 1}, [loss]) for lr, loss in [(0.1, 1), (0.5, 0.5), (1.0, 0.4), (0.7, 0.6)]]
    record = made(tmp_path, {"inner": inner, "edge": edge, "gone": [({"lr": 1.0}, [NAN])]})
    assert sweeps.edges(record.trials("inner")) == []
    assert sweeps.edges(record.trials("edge")) == [("lr", 1.0, "largest")]
    assert sweeps.edges(made(tmp_path, {"m": edge}, better="higher").trials("m")) == [("lr", 0.1, "smallest")]
    notes = sweeps.notes(record)
    assert "(inner 3, edge 4, gone 1)" in notes[0] and notes[1].startswith("gone diverged, ended worse")
    assert notes[2] == "edge: the best lr, 1.0, is the largest that was tried; larger ones may be better."
    assert "held-out" in notes[3] and len(notes) == 4


def test_a_map_has_the_two_axes_that_matter_and_the_best_over_the_others(tmp_path):
    loss = lambda lr, beta, k: 1 + np.log10(lr) ** 2 + 0.5 * abs(beta - 0.5) + 0.001 * k  # noqa: E731
    scores = [
        ({"k": k, "lr": lr, "beta": beta}, [loss(lr, beta, k)])
        for k in (1, 2)
        for lr in (0.1, 1.0, 10.0)
        for beta in (0.2, 0.5)
    ]
    record = made(tmp_path, {"m": scores})
    (drawn,) = sweeps.charts(record)
    (cells,) = drawn.series
    assert (cells.kind, drawn.x, drawn.y) == ("cells", Scale("lr", words=("0.1", "1.0", "10.0")),
                                              Scale("beta", words=("0.2", "0.5")))  # fmt: skip
    shown = zip(cells.x, cells.values[0], cells.texts, strict=True)
    assert drawn.note == "Each cell: the best over k." and {(x, y): text.split("\n")[0] for x, y, text in shown} == {
        (i, j): "★ " * ((i, j) == (1, 1)) + f"{loss(lr, beta, 1):.4g}"
        for i, lr in enumerate((0.1, 1.0, 10.0)) for j, beta in enumerate((0.2, 0.5))
    }  # fmt: skip
    assert cells.shade[0] == 1 and cells.shade.min() == 0
    (drawn,) = sweeps.charts(made(tmp_path, {"m": scores}, search="random"))
    assert drawn.series[0].kind == "dots" and len(drawn.series[0].x) == 12 and drawn.note == "Also varied: k."
    assert drawn.x == Scale("lr", log=True) and (drawn.series[0].x[0], drawn.series[0].values[0, 0]) == (1.0, 0.5)


def test_methods_with_one_axis_share_a_drawing(tmp_path):
    a = [({"lr": lr, "steps": 3}, [loss, loss + 1]) for lr, loss in [(1.0, 0.3), (0.01, 0.8), (0.1, 0.5), (9.0, NAN)]]
    record = made(
        tmp_path, {"a": a, "b": [({"lr": 0.2}, [1.0, 1.0]), ({"lr": 0.1}, [1.5, 1.5])], "c": [({}, [1, 1])]}, seeds=2
    )
    (drawn,) = sweeps.charts(record)
    first, failed, second = drawn.series
    assert (drawn.title, drawn.x) == ("lr", Scale("lr", log=True))
    assert (second.label, second.k, second.x.tolist()) == ("b", 1, [0.1, 0.2])
    assert first.x.tolist() == [0.01, 0.1, 1.0] and failed.x.tolist() == [9.0] and np.isnan(failed.shade).all()
    assert [part.tolist() for part in first.parts] == [[1.3, 1.0, 0.8], [0.8, 0.5, 0.3], [1.8, 1.5, 1.3]]


def test_the_scale_ends_at_the_initial_model(tmp_path):
    scores = [({"lr": lr}, [loss]) for lr, loss in enumerate([0.1, 0.2, 0.4, 1e9, NAN])]
    assert sweeps.scale(made(tmp_path, {"m": scores})) == (0.1, 2.0, True)
    assert sweeps.scale(made(tmp_path, {"m": scores}), 0.6) == (0.1, 0.4, True)
    assert sweeps.scale(made(tmp_path, {"m": scores}, better="higher")) == (2.0, 1e9, False)
    assert sweeps.scale(made(tmp_path, {"m": scores[:2]})) == (0.1, 0.2, False)
    assert sweeps.scale(made(tmp_path, {"m": scores[4:]})) == (0.0, 1.0, False)


# ---- privacy and compression

WIRED = {
    "data": {"name": "quadratics", "clients": 6, "dimension": 8},
    "work": {"kind": "steps", "steps": 2},
    "run": {"rounds": 3, "seeds": [3, 5], "evaluate_every": 1},
    "methods": [{"name": "fedavg", "lr": 0.1}],
}
DP = {"clip": 1.0, "noise": 1.0, "delta": 0.1, "noise_seed": 4}
UNIFORM = {"participation": {"kind": "poisson", "rate": 0.5}}


def test_the_report_tells_all_noises_and_shares(tmp_path):
    grid = {"privacy.noise": [0.0, 1.0], "privacy.clip": [0.5, 1.0], "run.compress.up.share": [0.5, 1.0]}
    compress = {"up": {"name": "random-k", "share": 0.5}}
    record, *_ = swept(tmp_path, grid, privacy=DP, run=WIRED["run"] | {"compress": compress, "seeds": 1}, **UNIFORM)
    page = render([record])
    facts = summary.facts(record.config, record.about["clients"]["sizes"], 8)
    assert facts["Privacy"] == "clip 0.5 or 1.0, noise 0.0 or 1.0, δ = 0.1"
    assert summary.varied(record.config)["run"]["compress"]["up"]["share"] == "0.5 or 1.0"
    assert "noise of 0.0 or 1.0 times the clip" in page and "ε is infinite" in page


def swept(tmp_path, grid, **changes):
    """A sweep: its record, the content of sweep.json, and its plan."""
    tuning = plan(copy.deepcopy(WIRED) | changes | {"sweep": {"grid": grid}})
    return *tune(tuning, new_folder(tmp_path / "run", "run"), drawn=False), tuning


def one_by_one(tuning):
    """The histories of the points of a sweep by ``simulate``: one list of seeds for each."""
    (label,) = tuning.points

    def alone(experiment, seed):
        options = {"work": experiment.work, "participation": experiment.participation, "seed": seed}
        options |= experiment.options
        return fedax.simulate(experiment.methods[label], experiment.task, experiment.data, **options).history

    return [[alone(each, seed) for seed in (3, 5)] for each in tuning.experiments[label]]


def test_noise_is_swept_in_one_program_and_each_lane_has_its_own_epsilon(tmp_path):
    grid = {"privacy.noise": [0.5, 1.0, 2.0], "privacy.clip": {"low": 0.5, "high": 1.0, "points": 2}}
    record, content, tuning = swept(tmp_path, grid, privacy=DP, **UNIFORM)
    assert content["programs"] == 1 and len(tuning.points["fedavg"]) == 6
    ends = {}
    for point, runs in zip(tuning.points["fedavg"], one_by_one(tuning), strict=True):
        for seed, history in zip((3, 5), runs, strict=True):
            (run,) = (each for each in record.runs if each.point == point and each.seed == seed)
            np.testing.assert_array_equal(run.history["epsilon"], history["epsilon"])
            np.testing.assert_allclose(run.history["train_loss"], history["train_loss"], rtol=LAST_BITS)
            ends.setdefault(point["privacy.noise"], set()).add(float(run.history["epsilon"][-1]))
    for noise, spent in ends.items():  # whatever the clip
        assert [*spent] == pytest.approx([Ledger(noise, 6, rate=0.5).epsilon(3, 0.1)], rel=1e-6)
    best, point = read_toml(tmp_path / "run" / "best.toml")["privacy"], record.trials("fedavg")[0].point
    assert (best["noise"], best["clip"]) == (point["privacy.noise"], point["privacy.clip"])


def test_a_budget_ends_each_point_where_its_noise_has_spent_it(tmp_path):
    privacy = DP | {"epsilon": Ledger(1.0, 6, rate=0.5).epsilon(2, 0.1) * 1.001}
    record, _, tuning = swept(tmp_path, {"privacy.noise": [1.0, 4.0]}, privacy=privacy, **UNIFORM)
    rounds = {run.point["privacy.noise"]: run.history["round"].tolist() for run in record.runs}
    assert rounds == {1.0: [0, 1, 2], 4.0: [0, 1, 2, 3]}
    assert [len(runs[0]["round"]) for runs in one_by_one(tuning)] == [3, 4]


def test_noise_of_a_secret_is_another_in_each_lane():
    """Else the difference of two models would have none."""
    data, task = fedax.data.quadratics(clients=6, dimension=8), fedax.tasks.quadratic(8)

    def make(noise):
        return {"algorithm": fedax.create("fedavg", lr=0.1), "privacy": fedax.DP(clip=1.0, noise=noise, delta=0.1)}

    sweep = fedax.sweep(make, {"noise": [1.0, 1.0 + 1e-6]}, task, data, rounds=1, participation=fedax.Poisson(0.5))
    first, second = (runs[0] for runs in sweep.runs)
    assert sweep.programs == 1 and np.abs(np.asarray(first.params) - second.params).max() > 1e-3
    assert first.history["epsilon"][1] > second.history["epsilon"][1]


def test_the_share_of_a_compressor_is_swept_in_one_program(tmp_path):
    compress = {"up": {"name": "error-feedback", "of": {"name": "top-k", "share": 0.5}}}
    grid = {"run.compress.up.of.share": [0.25, 0.5, 1.0]}
    record, content, tuning = swept(tmp_path, grid, run=WIRED["run"] | {"compress": compress})
    assert content["programs"] == 1
    alone = one_by_one(tuning)
    for point, runs in zip(tuning.points["fedavg"], alone, strict=True):
        for seed, history in zip((3, 5), runs, strict=True):
            (run,) = (each for each in record.runs if each.point == point and each.seed == seed)
            np.testing.assert_array_equal(run.history["bytes_up"], history["bytes_up"])
            np.testing.assert_allclose(run.history["train_loss"], history["train_loss"], rtol=LAST_BITS)
    sent = [runs[0]["bytes_up"][-1] for runs in alone]
    assert sent == sorted({*sent})
    best = read_toml(tmp_path / "run" / "best.toml")
    assert best["run"]["compress"]["up"]["of"]["share"] == record.trials("fedavg")[0].point["run.compress.up.of.share"]


def test_another_compressor_is_another_program(tmp_path):
    grid = {"run.compress": ["sign", "natural", {"name": "qsgd", "levels": 4}], "run.batch_size": [1]}
    record, content, tuning = swept(tmp_path, grid)
    assert content["programs"] == 3 and len(tuning.points["fedavg"]) == 3
    assert read(record.folder).config["sweep"]["grid"]["run.compress"] == grid["run.compress"]


PACED = {
    "clock": {"step": {"name": "lognormal", "median": 1.0, "sigma": 1.0}},
    "pace": {"concurrency": 4, "buffer": 2, "staleness": {"name": "polynomial", "exponent": 0.5}},
}


def test_pace_and_clock_are_swept_and_the_best_is_written(tmp_path):
    grid = {
        "pace.buffer": [1, 2],
        "pace.staleness.exponent": [0.0, 3.0],
        "clock.server": [0.0, 7.0],
    }
    changes = copy.deepcopy(PACED) | {"run": WIRED["run"] | {"rounds": 6, "seeds": [3]}}
    tuning = plan(copy.deepcopy(WIRED) | changes | {"sweep": {"grid": grid}})
    record, content = tune(tuning, new_folder(tmp_path / "run", "run"), drawn=False)
    assert content["programs"] == 2 and len(tuning.points["fedavg"]) == 8
    for point, experiment in zip(tuning.points["fedavg"], tuning.experiments["fedavg"], strict=True):
        options = {"work": experiment.work, "participation": experiment.participation, "seed": 3} | experiment.options
        history = fedax.simulate(experiment.methods["fedavg"], experiment.task, experiment.data, **options).history
        (run,) = (each for each in record.runs if each.point == point)
        for name in ("time", "staleness", "train_loss"):
            np.testing.assert_allclose(run.history[name], history[name], rtol=1e-5)
    best, point = read_toml(tmp_path / "run" / "best.toml"), record.trials("fedavg")[0].point
    assert (best["pace"]["buffer"], best["clock"]["server"]) == (point["pace.buffer"], point["clock.server"])
    assert best["pace"]["staleness"] == {"name": "polynomial", "exponent": point["pace.staleness.exponent"]}
    assert best["clock"]["step"] == PACED["clock"]["step"] and best["pace"]["concurrency"] == 4
    assert build(best).options["pace"].buffer == point["pace.buffer"]
    facts = summary.facts(record.config, record.about["clients"]["sizes"], 8)
    assert "answers a step: 1 or 2" in facts["Clients"] and "0.0 or 7.0" in facts["Clock"]
    render([record])


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"pace": [1.0]}, "name one setting, such as pace.buffer"),
        ({"clock": [1.0]}, "name one setting, such as clock.step"),
        ({"pace.bufer": [1]}, "pace.bufer = 1: did you mean 'buffer'"),
        ({"clock.speed": [1.0]}, "There are: available, down, latency, preset"),
        ({"pace.staleness.power": [1.0]}, "There are: exponent"),
        ({"pace.buffer": [9]}, "pace.buffer = 9"),
        ({"clock.step": [-1.0]}, "clock.step"),
    ],
)
def test_bad_axes_of_time_are_named(grid, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        plan(copy.deepcopy(WIRED) | copy.deepcopy(PACED) | {"sweep": {"grid": grid}})


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"privacy": [1.0]}, "name one setting, such as privacy.noise"),
        ({"privacy.noize": [1.0]}, "noize = 1.0: did you mean 'noise'"),
        ({"privacy.noise": [-1.0]}, "privacy.noise = -1.0"),
        ({"privacy.delta": [0.1, 0.2]}, "ε is told for one δ"),
        ({"privacy.noise_seed": [1, 2]}, "none is chosen by it"),
        ({"run.compress.share": [2.0]}, "share"),
        ({"run.compres.share": [0.5]}, "only run.batch_size and run.compress"),
    ],
)
def test_bad_axes_of_the_wire_are_named(grid, message):
    config = copy.deepcopy(WIRED) | UNIFORM | {"privacy": DP, "sweep": {"grid": grid}}
    config["run"]["compress"] = {"name": "random-k", "share": 0.5}
    with pytest.raises(ConfigError, match=re.escape(message)):
        plan(config)
