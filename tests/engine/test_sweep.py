"""sweep: the same runs as simulate's, side by side; its grids, groups, tables, and bad input."""

import itertools
import math

import numpy as np
import pytest

import fedax
from fedax.errors import ConfigError, DivergedWarning

from .problem import DATA, TASK, UNEQUAL, P, federation, flat

TEST = federation([11], [1.0], seed=5)
OPTIONS = {"rounds": 4, "work": fedax.Steps(2), "batch_size": 2, "test": TEST.examples, "evaluate_every": 2}
LRS = [0.01, 0.05]


def fedavg(lr, **hyper):
    return fedax.create("fedavg", lr=lr, **hyper)


def check(make, grid, seeds=(3, 0), **options):
    """Every run of a sweep is simulate's: history, model, status."""
    options = OPTIONS | options
    found = fedax.sweep(make, grid, TASK, DATA, seeds=seeds, **options)
    for point, runs in zip(found.points, found.runs, strict=True):
        for seed, run in zip(found.seeds, runs, strict=True):
            made = make(**point)
            own = made if isinstance(made, dict) else {"algorithm": made}
            given = options | own
            alone = fedax.simulate(given.pop("algorithm"), TASK, DATA, seed=seed, **given)
            assert list(run.history) == list(alone.history) and run.status == alone.status
            for name in set(alone.history) - {"seconds"}:
                np.testing.assert_allclose(run.history[name], alone.history[name], 1e-5, 1e-6, err_msg=name)
            np.testing.assert_allclose(flat(run.params), flat(alone.params), 1e-5, 1e-6)
    return found


COHORT = {"participation": fedax.Uniform(3)}
METHODS = {
    "fedavg": {"work": fedax.RandomEpochs(1, 4), "participation": fedax.Proportional(3)},
    "fednova-vr": {"work": UNEQUAL, "chunk_size": 2, **COHORT},
    "fedadam": {"work": fedax.RandomSteps(3, 2, 1, 6), "participation": fedax.Trace([[4, 1], [0, 3, 2], [2], [3]])},
    "fedpd": {},
    "scaffold-m-vr": COHORT,
    "bvr-l-sgd": {},
    "fedda-mvr": COHORT,
    "nesterov-fedavg": {},
}


@pytest.mark.parametrize("name", METHODS)
def test_every_run_is_that_of_simulate(name):
    found = check(lambda lr: fedax.create(name, lr=lr), {"lr": LRS}, seeds=2, **METHODS[name])
    assert found.programs == 1
    assert not np.array_equal(flat(found.runs[0][0].params), flat(found.runs[1][0].params))


def test_the_start_of_feddas_metric_and_its_lambda_are_numbers_of_one_program():
    grid = {"h0": [0.0, 0.5], "lam": [0.5, 2.0]}
    found = check(lambda h0, lam: fedax.create("fedda", h0=h0, lam=lam, metric="norm", eps=1.0), grid, seeds=1)
    assert found.programs == 1
    ends = [flat(runs[0].params) for runs in found.runs]
    assert all(not np.array_equal(a, b) for a, b in itertools.combinations(ends, 2))


def test_initial_models_that_differ_by_seed():
    task = fedax.tasks.mlp(3, 2, hidden=(4,))
    data = fedax.FederatedData({"x": DATA.examples["x"], "y": (DATA.examples["y"] > 0).astype(int)}, DATA.sizes, P)
    options = {"rounds": 2, "work": fedax.Steps(2), "batch_size": 2}
    found = fedax.sweep(fedavg, {"lr": LRS}, task, data, seeds=[7, 8], **options)
    for k, seed in enumerate(found.seeds):
        alone = fedax.simulate(fedavg(LRS[1]), task, data, seed=seed, **options)
        np.testing.assert_allclose(found.runs[1][k].history["train_loss"], alone.history["train_loss"], 1e-5)
    assert found.runs[0][0].history["train_loss"][0] != found.runs[0][1].history["train_loss"][0]


def test_what_differs_in_shape_is_another_program():
    def make(lr, steps, momentum):
        return {"algorithm": fedavg(lr, momentum=momentum), "work": fedax.Steps(steps)}

    found = check(make, {"lr": LRS, "steps": [1, 2], "momentum": [None, 0.9]}, seeds=1)
    assert len(found.points) == 8 and found.programs == 4
    assert [p["steps"] for p in found.points[:4]] == [1, 1, 2, 2]


def test_schedules_steps_and_weights_of_several_points():
    def make(lr, steps):
        return {"algorithm": fedavg(fedax.PowerDecay(lr, 2.0)), "work": fedax.Steps(steps)}

    assert check(make, [{"lr": 0.1, "steps": [1, 2, 3, 4, 5]}, {"lr": 0.2, "steps": [5, 4, 3, 2, 1]}]).programs == 1


@pytest.mark.parametrize(("width", "programs"), [(1, 1), (4, 1), (5, 1), (100, 1)])
def test_blocks_of_any_width_give_the_same(width, programs):
    lrs = [0.01, 0.02, 0.03, 0.04]
    whole = fedax.sweep(fedavg, {"lr": lrs}, TASK, DATA, seeds=3, **OPTIONS)
    cut = fedax.sweep(fedavg, {"lr": lrs}, TASK, DATA, seeds=3, width=width, **OPTIONS)
    np.testing.assert_allclose(whole.scores(), cut.scores(), 1e-5)
    assert len(np.unique(whole.scores())) == 12


def test_a_run_that_diverges_leaves_the_others_alone():
    with pytest.warns(DivergedWarning):
        found = check(fedavg, {"lr": [0.05, 1e6, 0.01]}, seeds=2, rounds=12, evaluate_every=3)
    assert [run.status for run in found.runs[1]] == ["diverged", "diverged"]
    assert found.runs[0][0].history["round"][-1] == 12 and len(found.runs[1][0].history["round"]) < 5
    assert np.isnan(found.scores()[1]).all() and np.isfinite(found.scores()[[0, 2]]).all()
    rows = found.table()
    assert [row["lr"] for row in rows][2] == 1e6 and rows[2]["failed"] == 2 and math.isnan(rows[2]["mean"])
    assert found.best()["lr"] != 1e6


def test_a_run_that_ends_worse_than_it_began_comes_last():
    with pytest.warns(DivergedWarning, match="ended worse"):
        found = fedax.sweep(fedavg, {"lr": [0.05, 0.9]}, TASK, DATA, seeds=2, rounds=8, work=fedax.Steps(3))
    assert [run.status for run in found.runs[1]] == ["worse", "worse"], found.runs
    assert np.isnan(found.scores()[1]).all() and found.table()[1]["failed"] == 2 and found.best()["lr"] == 0.05


def test_until_ends_each_run_by_itself():
    goal = fedax.simulate(fedavg(0.05), TASK, DATA, **OPTIONS).history["train_loss"][1]
    found = check(fedavg, {"lr": [0.05, 1e-5]}, until=lambda row: row["train_loss"] <= goal, rounds=8)
    assert [run.status for run in found.runs[0]][1] == "stopped" and found.runs[0][1].history["round"][-1] == 2
    assert found.runs[1][0].status == "finished" and found.runs[1][0].history["round"][-1] == 8


def test_the_table_has_means_and_spreads_and_the_best_first():
    found = fedax.sweep(fedavg, {"lr": [1e-4, 0.05]}, TASK, DATA, seeds=3, **OPTIONS)
    rows = found.table("test_error")
    values = np.array([[run.history["test_error"][-1] for run in runs] for runs in found.runs])
    assert [row["lr"] for row in rows] == [0.05, 1e-4]
    assert rows[0]["mean"] == pytest.approx(values[1].mean()) and rows[0]["std"] == pytest.approx(values[1].std(ddof=1))
    assert found.best("test_error", higher=True) == {"lr": 1e-4}
    last = found.table("test_error", last=2)[0]["mean"]
    assert last == pytest.approx(np.mean([run.history["test_error"][-2:] for run in found.runs[1]]))
    assert found.best(lambda run: float(run.history["round"][-1] - run.params["b"])) == {"lr": 0.05}
    with pytest.raises(ConfigError, match="train_loss"):
        found.table("accuracy")


def test_the_callback_sees_every_row_of_every_run():
    seen = []
    found = fedax.sweep(
        fedavg, {"lr": LRS}, TASK, DATA, seeds=[5, 6], callback=lambda *row: seen.append(row), **OPTIONS
    )
    for i, point in enumerate(found.points):
        for k, seed in enumerate([5, 6]):
            rows = [row for p, s, row in seen if p == point and s == seed]
            assert [row["train_loss"] for row in rows] == found.runs[i][k].history["train_loss"].tolist()
    assert found.runs[0][0].state is None and found.runs[0][0].memory is None


def test_random_points_and_ranges():
    points = fedax.random_points({"lr": fedax.Range(1e-4, 1.0), "k": [1, 2], "m": fedax.Range(0, 1, log=False)}, 400, 1)
    lrs, ks, ms = (np.array([p[name] for p in points]) for name in ("lr", "k", "m"))
    assert lrs.min() > 1e-4 and lrs.max() < 1 and abs(np.mean(lrs < 1e-2) - 0.5) < 0.1
    assert abs(np.mean(ks == 1) - 0.5) < 0.1 and abs(ms.mean() - 0.5) < 0.1
    assert points == fedax.random_points(
        {"lr": fedax.Range(1e-4, 1.0), "k": [1, 2], "m": fedax.Range(0, 1, log=False)}, 400, 1
    )
    assert fedax.Range(0, 1, points=3, log=False).values() == [0, 0.5, 1]


def never(**point):
    raise AssertionError("the grid was not checked first")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"grid": {}, "make": lambda: None}, "algorithm"),
        ({"grid": []}, "grid"),
        ({"grid": 3}, "grid"),
        ({"grid": [1, 2]}, "grid"),
        ({"grid": {"lr": 0.1}}, "lr"),
        ({"grid": {"lr": []}}, "lr"),
        ({"grid": {"lr": "0.1"}}, "lr"),
        ({"seeds": 0}, "seeds"),
        ({"seeds": [1, 1]}, "seeds"),
        ({"seeds": [-1]}, "seeds"),
        ({"seeds": "12"}, "seeds"),
        ({"width": 0}, "width"),
        ({"make": 3}, "make"),
        ({"make": lambda lr: {"work": fedax.Steps(1)}}, "make"),
        ({"make": lambda lr: fedavg(lr if lr < 0.05 else -1)}, "lr"),
        ({"seed": 1}, "seed"),
        ({"until": 3}, "until"),
        ({"evaluate_every": [0]}, "evaluate_every"),
        ({"evaluate_every": "abc"}, "evaluate_every"),
    ],
)
def test_bad_input_is_named_before_anything_runs(change, field):
    options = {"make": fedavg, "grid": {"lr": LRS}} | OPTIONS | change
    with pytest.raises(ConfigError, match=field):
        fedax.sweep(options.pop("make"), options.pop("grid"), TASK, DATA, **options)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: fedax.Range(0, 1), "low"),
        (lambda: fedax.Range(1, 1), "high"),
        (lambda: fedax.Range(1, 2, points=1), "points"),
        (lambda: fedax.random_points({"lr": []}, 2), "lr"),
        (lambda: fedax.random_points({"lr": [1]}, 0), "number"),
        (lambda: fedax.random_points([1], 1), "grid"),
    ],
)
def test_bad_ranges(make, field):
    with pytest.raises(ConfigError, match=field):
        make()


def test_evaluation_after_given_rounds():
    run = fedax.simulate(fedavg(0.05), TASK, DATA, **(OPTIONS | {"evaluate_every": [3, 1, 9], "rounds": 5}))
    assert run.history["round"].tolist() == [0, 1, 3, 5]
    every = fedax.simulate(fedavg(0.05), TASK, DATA, **(OPTIONS | {"evaluate_every": 1, "rounds": 5}))
    assert run.history["train_loss"].tolist() == every.history["train_loss"][[0, 1, 3, 5]].tolist()
