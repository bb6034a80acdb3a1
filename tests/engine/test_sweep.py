"""sweep: the same runs as simulate's, side by side; its grids, groups, tables, and bad input."""

import dataclasses
import importlib
import itertools
import math
import time
import types
import warnings

import jax
import numpy as np
import pytest
import safetensors.numpy

import fedax
from fedax.engine.make import make_job
from fedax.errors import CheckpointError, ConfigError, DivergedWarning

from .. import in_full, long, mostly_long
from .problem import DATA, MEASURED, TASK, UNEQUAL, P, federation, flat

batch = importlib.import_module("fedax.engine.batch")
TEST = federation([11], [1.0], seed=5)
OPTIONS = {"rounds": 4, "work": fedax.Steps(2), "batch_size": 2, "test": TEST.examples, "evaluate_every": 2}
LRS = [0.01, 0.05]


def fedavg(lr, **hyper):
    return fedax.create("fedavg", lr=lr, **hyper)


def check(make, grid, seeds=(3, 0), **options):
    """Every run of a sweep is simulate's: history, model, status."""
    options = OPTIONS | options
    sweep = fedax.sweep(make, grid, TASK, DATA, seeds=seeds, **options)
    for point, runs in zip(sweep.points, sweep.runs, strict=True):
        for seed, run in zip(sweep.seeds, runs, strict=True):
            made = make(**point)
            own = made if isinstance(made, dict) else {"algorithm": made}
            given = options | own
            alone = fedax.simulate(given.pop("algorithm"), TASK, DATA, seed=seed, **given)
            assert list(run.history) == list(alone.history) and run.status == alone.status
            for name in set(alone.history) - {"seconds"}:
                if name == "bad_clients":
                    assert run.history[name].tolist() == alone.history[name].tolist()
                    continue
                np.testing.assert_allclose(run.history[name], alone.history[name], 1e-5, 1e-6, err_msg=name)
            np.testing.assert_allclose(flat(run.params), flat(alone.params), 1e-5, 1e-6)
    return sweep


COHORT = {"participation": fedax.Uniform(3)}
METHODS = {
    "fedavg": {"work": fedax.RandomEpochs(1, 4), "participation": fedax.Proportional(3)},
    "fednova-vr": {"work": UNEQUAL, "place": fedax.Place(chunk_size=2), **COHORT},
    "fedadam": {"work": fedax.RandomSteps(3, 2, 1, 6), "participation": fedax.Trace([[4, 1], [0, 3, 2], [2], [3]])},
    "fedpd": {},
    "scaffold-m-vr": COHORT,
    "bvr-l-sgd": {},
    "fedda-mvr": COHORT,
    "nesterov-fedavg": {},
}


@pytest.mark.parametrize("name", mostly_long(METHODS, "fedavg", "fedadam", "scaffold-m-vr"))
def test_every_run_is_that_of_simulate(name):
    sweep = check(lambda lr: fedax.create(name, lr=lr), {"lr": LRS}, seeds=2, **METHODS[name])
    assert sweep.programs == 1
    assert not np.array_equal(flat(sweep.runs[0][0].params), flat(sweep.runs[1][0].params))


def test_the_start_of_feddas_metric_and_its_lambda_are_numbers_of_one_program():
    grid = {"h0": [0.0, 0.5], "lam": [0.5, 2.0]}
    sweep = check(lambda h0, lam: fedax.create("fedda", h0=h0, lam=lam, metric="norm", eps=1.0), grid, seeds=1)
    assert sweep.programs == 1
    ends = [flat(runs[0].params) for runs in sweep.runs]
    assert all(not np.array_equal(a, b) for a, b in itertools.combinations(ends, 2))


def test_initial_models_that_differ_by_seed():
    task = fedax.tasks.mlp(3, 2, hidden=(4,))
    data = fedax.FederatedData({"x": DATA.examples["x"], "y": (DATA.examples["y"] > 0).astype(int)}, DATA.sizes, P)
    options = {"rounds": 2, "work": fedax.Steps(2), "batch_size": 2}
    sweep = fedax.sweep(fedavg, {"lr": LRS}, task, data, seeds=[7, 8], **options)
    for k, seed in enumerate(sweep.seeds):
        alone = fedax.simulate(fedavg(LRS[1]), task, data, seed=seed, **options)
        np.testing.assert_allclose(sweep.runs[1][k].history["train_loss"], alone.history["train_loss"], 1e-5)
    assert sweep.runs[0][0].history["train_loss"][0] != sweep.runs[0][1].history["train_loss"][0]


@in_full
def test_what_differs_in_shape_is_another_program(full):
    def make(lr, steps, momentum):
        return {"algorithm": fedavg(lr, momentum=momentum), "work": fedax.Steps(steps)}

    sweep = check(make, {"lr": LRS, "steps": [1, 2] if full else [1], "momentum": [None, 0.9]}, seeds=1)
    number = len(sweep.points) // 2
    assert sweep.programs == number == (4 if full else 2)
    assert [p["momentum"] for p in sweep.points] == [None, 0.9] * number
    assert [p["steps"] for p in sweep.points] == ([1, 1, 2, 2] * 2 if full else [1] * 4)


def paced(step=1.0, std=2.0, **pace):
    given = {"concurrency": 3, "buffer": 2, **pace}
    return {
        "algorithm": fedavg(0.05),
        "clock": fedax.Clock(step=step * np.arange(1.0, 6.0), latency=1.0),
        "pace": fedax.Async(**given),
        "work": fedax.RandomSteps(3.0, std, 1, 6),
    }


@in_full
def test_each_point_has_the_timetable_of_its_pace_clock_and_work(full, compilations):
    """Timetables of one shape have one program; another buffer, concurrency or work another one."""
    late = fedax.PolynomialStaleness(2.0)
    points = [{}, {"step": 9.0}, {"std": 0.5}, {"staleness": late}, {"grace": 4.0}, {"buffer": 1}]
    points += [{"concurrency": 4}] if full else []
    swept = check(paced, points, seeds=(3,), rounds=12, work=None)
    assert swept.programs == (4 if full else 3)
    assert compilations("_draw_groups") == 1  # of the local steps of all
    last = [[float(runs[0].history[name][-1]) for name in ("time", "staleness", "train_loss")] for runs in swept.runs]
    assert len({*map(tuple, last)}) == len(points)


def test_schedules_steps_and_weights_of_several_points():
    def make(lr, steps):
        return {"algorithm": fedavg(fedax.PowerDecay(lr, 2.0)), "work": fedax.Steps(steps)}

    assert check(make, [{"lr": 0.1, "steps": [1, 2, 3, 4, 5]}, {"lr": 0.2, "steps": [5, 4, 3, 2, 1]}]).programs == 1


@in_full
def test_blocks_of_any_width_give_the_same(full):
    """Blocks of one form share a program; of five points at most four at a time go as three and two."""
    lrs = [0.01, 0.02, 0.03, 0.04, 0.05]
    whole = fedax.sweep(fedavg, {"lr": lrs}, TASK, DATA, seeds=3, **OPTIONS)
    assert whole.programs == 1 and len(np.unique(whole.scores())) == 15
    for width, programs in ((1, 1), (4, 2), *([(5, 1), (12, 1), (100, 1)] if full else [])):
        cut = fedax.sweep(fedavg, {"lr": lrs}, TASK, DATA, seeds=3, width=width, **OPTIONS)
        assert cut.programs == programs
        np.testing.assert_allclose(whole.scores(), cut.scores(), 1e-5)


def test_seeds_of_one_point_are_spread_over_the_cores():
    """The same bits for any number of cores, and no more compiled programs for more cores."""
    swept = check(lambda: fedavg(0.05), {}, seeds=5, **COHORT)
    assert swept.programs == 1 and len(np.unique(swept.scores())) == 5
    for seed, run in zip(swept.seeds, swept.runs[0], strict=True):
        alone = fedax.simulate(fedavg(0.05), TASK, DATA, seed=seed, **batch.on_one_core(OPTIONS | COHORT))
        if len(jax.local_devices()) > 1:
            assert run.history["train_loss"].tolist() == alone.history["train_loss"].tolist()


@pytest.mark.parametrize(
    ("seeds", "cores", "spread", "worth"),
    [(1, 2, 0, False), (3, 2, 0, True), (3, 1, 0, False), (3, 2, 2, True), (2, 16, 16, False), (12, 16, 16, True)],
)
def test_when_seeds_go_side_by_side(seeds, cores, spread, worth, monkeypatch):
    job = make_job(fedavg(0.05), TASK, DATA, rounds=1)
    mesh = types.SimpleNamespace(size=spread) if spread else None
    job = job._replace(plan=dataclasses.replace(job.plan, mesh=mesh))
    monkeypatch.setattr(jax, "local_devices", lambda: [None] * cores)
    assert batch.worth_batching(job, seeds) is worth
    assert not batch.worth_batching(job._replace(memory="host"), seeds)
    monkeypatch.setattr(batch, "is_small", lambda x: False)
    assert not batch.worth_batching(job, seeds)


def test_initial_models_that_differ_by_point():
    def make(start):
        return {"algorithm": fedavg(0.05), "params": {"w": np.full(3, start), "b": 0.0}}

    sweep = check(make, {"start": [0.5, 2.0]}, seeds=2)
    assert sweep.runs[0][0].history["train_loss"][0] != sweep.runs[1][0].history["train_loss"][0]


def test_a_lane_that_its_guard_stops_ends_alone():
    """Between two evaluations, while the others get no row that they would not have alone."""
    bad = fedax.Faults([1], sends=float("nan"))
    options = {"rounds": 8, "evaluate_every": 4, "guard": fedax.Guard(stop=True), "faults": bad}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fedax.BadClientWarning)
        sweep = check(lambda: fedavg(0.05), {}, seeds=4, participation=fedax.Uniform(1), **options)
    ends = [run.history["round"].tolist() for run in sweep.runs[0]]
    assert any(end[-1] % 4 for end in ends) and all(index % 4 == 0 for end in ends for index in end[:-1])
    assert len({end[-1] for end in ends}) > 1 and {run.status for run in sweep.runs[0]} == {"failed", "finished"}


def test_a_run_that_diverges_leaves_the_others_alone():
    with pytest.warns(DivergedWarning):
        sweep = check(fedavg, {"lr": [0.05, 1e6, 0.01]}, seeds=2, rounds=12, evaluate_every=3)
    assert [run.status for run in sweep.runs[1]] == ["diverged", "diverged"]
    assert sweep.runs[0][0].history["round"][-1] == 12 and len(sweep.runs[1][0].history["round"]) < 5
    assert np.isnan(sweep.scores()[1]).all() and np.isfinite(sweep.scores()[[0, 2]]).all()
    rows = sweep.table()
    assert [row["lr"] for row in rows][2] == 1e6 and rows[2]["failed"] == 2 and math.isnan(rows[2]["mean"])
    assert sweep.best()["lr"] != 1e6


def test_a_run_that_ends_worse_than_it_began_comes_last():
    with pytest.warns(DivergedWarning, match="ended worse"):
        sweep = fedax.sweep(fedavg, {"lr": [0.05, 0.9]}, TASK, DATA, seeds=2, rounds=8, work=fedax.Steps(3))
    assert [run.status for run in sweep.runs[1]] == ["worse", "worse"], sweep.runs
    assert np.isnan(sweep.scores()[1]).all() and sweep.table()[1]["failed"] == 2 and sweep.best()["lr"] == 0.05


def test_until_ends_each_run_by_itself():
    goal = fedax.simulate(fedavg(0.05), TASK, DATA, **OPTIONS).history["train_loss"][1]
    sweep = check(fedavg, {"lr": [0.05, 1e-5]}, until=lambda row: row["train_loss"] <= goal, rounds=8)
    assert [run.status for run in sweep.runs[0]][1] == "stopped" and sweep.runs[0][1].history["round"][-1] == 2
    assert sweep.runs[1][0].status == "finished" and sweep.runs[1][0].history["round"][-1] == 8


def test_the_table_has_means_and_spreads_and_the_best_first():
    sweep = fedax.sweep(fedavg, {"lr": [1e-4, 0.05]}, TASK, DATA, seeds=3, **OPTIONS)
    rows = sweep.table("test_error")
    values = np.array([[run.history["test_error"][-1] for run in runs] for runs in sweep.runs])
    assert [row["lr"] for row in rows] == [0.05, 1e-4]
    assert rows[0]["mean"] == pytest.approx(values[1].mean()) and rows[0]["std"] == pytest.approx(values[1].std(ddof=1))
    assert sweep.best("test_error", higher=True) == {"lr": 1e-4}
    last = sweep.table("test_error", last=2)[0]["mean"]
    assert last == pytest.approx(np.mean([run.history["test_error"][-2:] for run in sweep.runs[1]]))
    assert sweep.best(lambda run: float(run.history["round"][-1] - run.params["b"])) == {"lr": 0.05}
    with pytest.raises(ConfigError, match="train_loss"):
        sweep.table("accuracy")


def test_the_callback_sees_every_row_of_every_run():
    seen = []
    sweep = fedax.sweep(
        fedavg, {"lr": LRS}, TASK, DATA, seeds=[5, 6], callback=lambda *row: seen.append(row), **OPTIONS
    )
    for i, point in enumerate(sweep.points):
        for k, seed in enumerate([5, 6]):
            rows = [row for p, s, row in seen if p == point and s == seed]
            assert [row["train_loss"] for row in rows] == sweep.runs[i][k].history["train_loss"].tolist()
    assert sweep.runs[0][0].state is None and sweep.runs[0][0].memory is None


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


class Killed(Exception):
    pass


LANES = {"lr": [0.05, 1e6, 0.01], "steps": [1, 2]}  # of the second all diverge; two blocks


def kept(folder, at=None, grid=LANES, **options):
    """A sweep that is killed at its row number ``at``."""
    rows = []

    def callback(point, seed, row):
        rows.append((point, seed, row))
        if len(rows) == at:
            raise Killed

    def make(lr, steps):
        return {"algorithm": fedax.create("scaffold", lr=lr), "work": fedax.Steps(steps)}

    checkpoint = None if folder is None else fedax.Checkpoints(folder, 2, None, best="test_error")
    options = {"rounds": 8, "batch_size": 2, "test": TEST.examples, "evaluate_every": 3, "seeds": 2} | options
    options["participation"] = fedax.Uniform(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergedWarning)
        task = options.pop("task", TASK)
        sweep = fedax.sweep(make, grid, task, DATA, checkpoint=checkpoint, callback=callback, **options)
    return sweep, rows


def the_same(one, other):
    for mine, theirs in zip(itertools.chain(*one.runs), itertools.chain(*other.runs), strict=True):
        assert mine.status == theirs.status and mine.history.keys() == theirs.history.keys()
        for column in mine.history.keys() - {"seconds"}:
            np.testing.assert_array_equal(mine.history[column], theirs.history[column], err_msg=column)
        np.testing.assert_array_equal(flat(mine.params), flat(theirs.params))


@in_full
@pytest.mark.parametrize(("seeds", "width"), [(2, 1), (3, None)])  # 3: blocks are padded
def test_a_sweep_goes_on_as_if_it_had_never_stopped(seeds, width, tmp_path, full):
    options = {"seeds": seeds, "width": width}
    whole, rows = kept(None, **options)
    for at in (1, len(rows) // 3, len(rows) // 2 + 1, len(rows)) if full else (len(rows) // 2 + 1, len(rows)):
        with pytest.raises(Killed):
            kept(tmp_path, at, **options)
    again, seen = kept(tmp_path, **options)
    the_same(whole, again)
    without = lambda row: {name: value for name, value in row.items() if name != "seconds"}  # noqa: E731
    assert str([(p, s, without(r)) for p, s, r in seen]) == str([(p, s, without(r)) for p, s, r in rows])
    for run in itertools.chain(*again.runs):
        if run.status == "finished":
            errors = run.history["test_error"]
            assert run.best.value == errors.min() and run.best.round == run.history["round"][errors.argmin()]


def test_one_point_with_seeds_on_cores_goes_on(tmp_path):
    grid = [{"lr": 0.05, "steps": 2}]
    whole, _ = kept(None, grid=grid, seeds=3)
    for at in (4, 8):
        with pytest.raises(Killed):
            kept(tmp_path, at, grid=grid, seeds=3)
    the_same(whole, kept(tmp_path, grid=grid, seeds=3)[0])


@pytest.mark.parametrize(
    "cohorts",
    [pytest.param(fedax.Systematic(3), marks=long), fedax.Dropout(fedax.Systematic(3), 0.5)],
    ids=["Systematic", "Dropout of Systematic"],
)
def test_a_checkpoint_tells_cohorts_drawn_by_weights(cohorts, tmp_path):
    options = OPTIONS | {"participation": cohorts, "evaluate_every": 1}
    made = [fedax.sweep(fedavg, {"lr": LRS}, TASK, DATA, checkpoint=tmp_path, **options) for _ in range(2)]
    the_same(*made)
    with pytest.raises(CheckpointError, match="participation"):
        fedax.sweep(
            fedavg, {"lr": LRS}, TASK, DATA, checkpoint=tmp_path, **options | {"participation": fedax.Systematic(2)}
        )


def test_what_is_over_is_neither_compiled_nor_run_again(tmp_path, monkeypatch):
    whole, _ = kept(tmp_path)
    names = safetensors.numpy.load_file(max((tmp_path / "batch-0").glob("round-*"))).keys()
    assert len(names) == 12 and all(name.startswith("model.") for name in names)  # 6 runs of two tensors; no state
    monkeypatch.setattr(batch, "_advance", lambda *args, **given: pytest.fail("it ran"))
    monkeypatch.setattr(batch, "_prepare", lambda *args, **given: pytest.fail("it ran"))
    the_same(whole, kept(tmp_path)[0])


def test_another_sweep_is_refused_by_name_before_it_begins(tmp_path, monkeypatch):
    kept(tmp_path)
    monkeypatch.setattr(batch, "_prepare", lambda *args, **given: pytest.fail("it ran"))
    for options, differs in (
        ({"seeds": 3}, "seed was 0; 1, is 0; 1; 2"),
        ({"grid": LANES | {"lr": [0.05, 1e6, 0.02]}}, "method.lr was 0.05; 1000000.0; 0.01, is 0.05; 1000000.0; 0.02"),
        ({"grid": LANES | {"steps": [1, 3]}}, "work.steps was 2, is 3"),
        ({"batch_size": 3}, "batch_size was 2, is 3"),
        ({"rounds": 9}, "these runs are over, at round 8, and are to have 9"),
        ({"rounds": 6}, "round 8 already, and is to have 6"),
        ({"task": MEASURED}, "has the columns grad_norm_sq"),
    ):
        with pytest.raises(fedax.CheckpointError) as error:
            kept(tmp_path, **options)
        assert differs in str(error.value)


@pytest.mark.parametrize(("sizes", "programs"), [([3, 5], 1), ([4, 4], 3)])
def test_seeds_with_data_of_their_own_are_lanes_where_these_have_equal_shapes(sizes, programs):
    """Also with a metric that needs the labels' sums, which are each seed's own."""
    task = fedax.tasks.logistic_regression(2)

    def parts(seed, sizes):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(12, 2)).astype(np.float32)
        examples = {"x": x, "y": np.where(rng.random(12) < 0.2 + 0.3 * seed, 1, -1).astype(np.int32)}
        examples["y"][-2:] = 1, -1
        return {
            "data": fedax.FederatedData({name: leaf[:8] for name, leaf in examples.items()}, sizes),
            "test": {name: leaf[8:] for name, leaf in examples.items()},
        }

    own = {0: parts(0, [3, 5]), 2: parts(2, sizes), 1: parts(1, [3, 5])}
    options = {"rounds": 4, "evaluate_every": 2, "batch_size": 2, "work": fedax.Steps(2)}
    swept = fedax.sweep(lambda: fedavg(0.05), [{}], task, own[0]["data"], seeds=[*own], by_seed=own, width=8, **options)
    assert swept.programs == programs
    for seed, run in zip(swept.seeds, swept.runs[0], strict=True):
        alone = fedax.simulate(fedavg(0.05), task, seed=seed, **own[seed], **batch.on_one_core(options))
        for column in ("train_loss", "test_loss", "test_auc"):
            assert run.history[column].tolist() == alone.history[column].tolist()


def test_data_of_seeds_that_are_not_there_are_refused():
    for given in ({5: {"data": DATA}}, {0: {"task": TASK}}):
        with pytest.raises(fedax.ConfigError, match="by_seed"):
            fedax.sweep(lambda: fedavg(0.05), [{}], TASK, DATA, seeds=[0, 1], by_seed=given, rounds=1)


def test_points_of_which_some_have_personal_models_are_ranked_by_what_clients_get():
    for names in (["ditto", "fedavg"], ["fedavg", "ditto"]):
        found = fedax.sweep(lambda name: fedax.create(name, lr=0.05), {"name": names}, TASK, DATA, **OPTIONS)
        ends = {name: runs[0].history for name, runs in zip(names, found.runs, strict=True)}
        due = {"ditto": ends["ditto"]["train_loss_personal"][-1], "fedavg": ends["fedavg"]["train_loss"][-1]}
        assert {row["name"]: row["mean"] for row in found.table()} == pytest.approx(due)
        assert found.best() == {"name": min(due, key=due.get)}


def test_columns_of_lists_rank_nothing_and_end_nothing():
    guarded = check(fedavg, {"lr": [0.05]}, guard=fedax.Guard())
    for column in ("bad_clients", "density"):
        with pytest.raises(ConfigError, match=f"criterion = '{column}': the history has: round, train_loss"):
            guarded.table(column, higher=False)
    with pytest.raises(ConfigError, match=r"patience\.column = 'bad_clients'"):
        check(fedavg, {"lr": [0.05]}, guard=fedax.Guard(), until=fedax.Patience("bad_clients", higher=False))


def test_patience_is_checked_at_all_points_before_any_runs():
    """The second has no regularizer, and so no objective; it belongs to another program."""
    rows = []

    def run(names):
        more = {"fedda": {"regularizer": fedax.L1(0.1)}, "fedavg": {}}
        given = {"until": fedax.Patience("objective"), "callback": lambda *row: rows.append(row)}
        make = lambda name: fedax.create(name, lr=1e-3, **more[name])  # noqa: E731
        return fedax.sweep(make, {"name": names}, TASK, DATA, **given, **OPTIONS)

    with pytest.raises(ConfigError, match=r"patience\.column = 'objective'"):
        run(["fedda", "fedavg"])
    assert not rows
    assert run(["fedda"]).runs[0][0].history["objective"].size == len(rows) == 3


def test_runs_side_by_side_share_the_time_of_their_compilation():
    began = time.perf_counter()
    found = fedax.sweep(fedavg, {"lr": LRS}, TASK, DATA, seeds=7, **OPTIONS)  # as no other test has
    passed = time.perf_counter() - began
    each = [run.compile_seconds for runs in found.runs for run in runs]
    assert found.programs == 1 and 0 < sum(each) <= passed and len({*each}) == 1
