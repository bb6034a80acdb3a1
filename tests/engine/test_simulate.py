"""simulate: the history, reproducibility, evaluation, divergence, and no compilation without need."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.engine import load, make
from fedax.federation.census import Census

from . import methods
from .problem import (
    DATA,
    MEASURED,
    SIZES,
    TASK,
    TAUS,
    UNEQUAL,
    X0,
    P,
    federation,
    flat,
    losses,
    objective,
    objective_gradient,
    residual,
)

TEST = federation([11], [1.0], seed=5)
COSTS = ["clients", "local_steps", "gradients", "bytes_down", "bytes_up", "seconds"]


def run(method=None, **options):
    """The run that most tests vary, by numbers only, so that it is compiled once."""
    method = fedax.create("fedavg", lr=0.05) if method is None else method
    options = {"rounds": 7, "work": fedax.Steps(2), "batch_size": 2, "test": TEST.examples} | options
    return fedax.simulate(method, options.pop("task", TASK), options.pop("data", DATA), **options)


def same(one, two, but=("seconds",)):
    assert list(one.history) == list(two.history)
    for name in one.history:
        if name not in but:
            assert one.history[name].tolist() == two.history[name].tolist(), name
    for a, b in zip(jax.tree.leaves((one.params, one.memory)), jax.tree.leaves((two.params, two.memory)), strict=True):
        assert (np.asarray(a) == np.asarray(b)).all()


def test_history_has_one_row_an_evaluation_and_the_callback_sees_each():
    rows = []
    got = run(task=MEASURED, evaluate_every=3, callback=rows.append)
    assert list(got.history) == ["round", "train_loss", "grad_norm_sq", "test_loss", "test_error", *COSTS]
    assert got.history["round"].tolist() == [0, 3, 6, 7] and got.status == "finished"
    assert [list(row.values()) for row in rows] == np.stack(list(got.history.values()), axis=1).tolist()
    assert all(type(value) in (int, float) for row in rows for value in row.values())
    for name in COSTS:
        assert got.history[name][0] == 0 and (np.diff(got.history[name]) > 0).all()
    assert got.history["clients"].tolist() == [0, 15, 30, 35] and got.history["local_steps"].tolist() == [0, 30, 60, 70]
    assert got.history["train_loss"][0] == pytest.approx(objective(X0), rel=1e-5)
    assert got.history["train_loss"][-1] == pytest.approx(objective(flat(got.params).astype(float)), rel=1e-5)
    assert got.compile_seconds > 0 and "finished at round 7" in repr(got)
    same(got, run(task=MEASURED, evaluate_every=3))


@pytest.mark.parametrize(
    ("rounds", "every", "expected"),
    [
        (0, None, [0]),
        (0, 5, [0]),
        (2, 5, [0, 2]),
        (4, 2, [0, 2, 4]),
        (120, None, [*range(0, 121, 3)]),
        (50, None, [*range(51)]),
    ],
)
def test_rounds_that_are_evaluated(rounds, every, expected):
    got = run(rounds=rounds, evaluate_every=every, test=None)
    assert got.history["round"].tolist() == expected
    assert list(got.history) == ["round", "train_loss", *COSTS]


def test_how_often_one_evaluates_changes_nothing_else():
    often, seldom = run(evaluate_every=1), run(evaluate_every=7)
    assert (flat(often.params) == flat(seldom.params)).all()
    for name, column in often.history.items():
        if name != "seconds":
            assert column[[0, -1]].tolist() == seldom.history[name].tolist()


def test_one_seed_is_one_run_and_another_is_another():
    one, two = run(seed=3), run(seed=3)
    same(one, two)
    other = run(seed=4)
    assert (flat(one.params) != flat(other.params)).all()
    assert one.state.x.tree["w"].shape == (3,)  # the state of an earlier run is still there


UNIFORM = {"participation": fedax.Uniform(7), "work": fedax.Steps([2, 5, 1, 3, 4, 1, 6, 2]), "batch_size": 2}
EIGHT = federation([3, 1, 4, 2, 6, 5, 2, 7], None)


@pytest.fixture(scope="module")
def whole():
    return run(methods.Scaffold(0.03), data=EIGHT, **UNIFORM, evaluate_every=2, seed=2, place=fedax.Place(chunk_size=8))


@pytest.mark.parametrize("chunk_size", [1, 3, 7])
def test_the_chunk_size_changes_results_by_rounding_only(whole, chunk_size):
    got = run(
        methods.Scaffold(0.03),
        data=EIGHT,
        **UNIFORM,
        evaluate_every=2,
        seed=2,
        place=fedax.Place(chunk_size=chunk_size),
    )
    for name in set(got.history) - {"seconds"}:
        np.testing.assert_allclose(got.history[name], whole.history[name], rtol=1e-5)
    np.testing.assert_allclose(flat(got.memory), flat(whole.memory), atol=1e-5)
    assert np.abs(flat(whole.memory)).max() > 0.1 and whole.history["clients"].tolist() == [0, 14, 28, 42, 49]


LARGE = federation([3000, 1, 1500, 600], [0.1, 0.4, 0.3, 0.2], seed=7)  # 5101 rows: more than a block, and no multiple
HELD_OUT = federation([4500], [1.0], seed=8)


def test_evaluation_is_exact_over_blocks_weights_and_test_data():
    start = np.array([0.3, -1.0, 2.0, 0.5])
    params = {"w": jnp.asarray(start[:3]), "b": jnp.asarray(start[3])}
    options = {
        "rounds": 0,
        "test": HELD_OUT.examples,
        "params": params,
        "task": MEASURED,
        "place": fedax.Place(chunk_size=1),
    }
    got = run(methods.Drawing(), data=LARGE, **options).history
    assert got["train_loss"][0] == pytest.approx(objective(start, LARGE), rel=1e-5)
    assert got["grad_norm_sq"][0] == pytest.approx(np.sum(objective_gradient(start, LARGE) ** 2), rel=1e-5)
    residual = np.sqrt(2 * losses(start, HELD_OUT))
    assert got["test_loss"][0] == pytest.approx(np.mean(residual**2) / 2, rel=1e-5)
    assert got["test_error"][0] == pytest.approx(np.mean(residual), rel=1e-5)


def test_examples_of_weight_zero_are_not_in_the_objective():
    data = federation(SIZES, [0.5, 0.0, 0.3, 0.2, 0.0])
    broken = {name: column.copy() for name, column in data.examples.items()}
    broken["x"][3] = 1e30  # client 1: its loss overflows
    data = fedax.FederatedData(broken, SIZES, data.weights)
    got = run(task=MEASURED, data=data, rounds=0)
    assert got.history["train_loss"][0] == pytest.approx(objective(X0, data), rel=1e-5) and got.status == "finished"


def test_a_run_that_diverges_stops_warns_and_keeps_its_rows():
    with pytest.warns(fedax.DivergedWarning, match=r"round \d+: stopped; try a smaller"):
        got = run(fedax.create("fedavg", lr=5.0), rounds=100, evaluate_every=2)
    rounds, finite = got.history["round"].tolist(), np.isfinite(got.history["train_loss"]).tolist()
    assert got.status == "diverged" and rounds == [*range(0, rounds[-1] + 1, 2)] and 4 < rounds[-1] < 100
    assert finite == [True] * (len(rounds) - 1) + [False]
    assert f"diverged at round {rounds[-1]}" in repr(got)


def test_a_run_that_ends_worse_than_it_began_says_so():
    with pytest.warns(fedax.DivergedWarning, match="worse than it began: .*try a smaller"):
        got = run(fedax.create("fedavg", lr=5.0), rounds=3, evaluate_every=1)
    losses = got.history["train_loss"]
    assert got.status == "worse" and np.isfinite(losses).all() and losses[-1] > 2 * losses[0], losses


def test_a_run_that_was_worse_goes_on(tmp_path):
    method = fedax.create("fedavg", lr=5.0)
    kept = fedax.Checkpoints(tmp_path, rounds=1)
    assert run(method, rounds=2, evaluate_every=2, checkpoint=kept).status == "worse"
    longer = run(method, rounds=3, evaluate_every=2, checkpoint=kept)
    assert longer.status == "worse"
    same(longer, run(method, rounds=3, evaluate_every=2))


def test_given_parameters_are_where_the_run_begins_and_stay_usable():
    params = {"w": jnp.array([0.5, -1.0, 2.0]), "b": jnp.array(0.25)}
    got = run(params=params)
    assert got.history["train_loss"][0] == pytest.approx(objective(flat(params)), rel=1e-5)
    same(got, run(params={"w": [0.5, -1, 2], "b": 0.25} | {"w": np.array([0.5, -1.0, 2.0])}))
    assert flat(params).tolist() == [0.5, -1.0, 2.0, 0.25]
    assert jax.tree.structure(got.params) == jax.tree.structure(params)


def test_an_initialiser_may_return_an_array_that_it_keeps():
    kept = {"w": jnp.ones(3), "b": jnp.zeros(())}
    task = fedax.Task(lambda key: kept, TASK.loss)
    one = run(task=task, test=None)
    same(one, run(task=task, test=None))
    assert flat(kept).tolist() == [1, 1, 1, 0]


def test_random_initial_models_follow_the_seed_and_not_the_rounds():
    task = fedax.Task(lambda key: {"w": jax.random.normal(key, (3,)), "b": jnp.zeros(())}, TASK.loss)
    one, two, three = (flat(run(task=task, test=None, rounds=r, seed=s).params) for r, s in [(0, 0), (0, 0), (0, 1)])
    assert (one == two).all() and (one[:3] != three[:3]).all()


def test_the_history_becomes_a_data_frame():
    frame = run().to_pandas()
    assert list(frame["round"]) == list(range(8)) and list(frame.columns) == list(run().history)


def test_other_numbers_compile_nothing(compilations):
    method = lambda **hyper: fedax.create("fedprox", **({"lr": 0.05, "prox": 0.5, "server_lr": 0.9} | hyper))  # noqa: E731
    run(method(), rounds=5)
    run(method(), params={"w": np.zeros(3), "b": 1.0})  # given models are copied by small programs of their own
    assert compilations() > 0
    for change in (
        {"seed": 9},
        {"rounds": 11},
        {"rounds": np.int64(4)},
        {"batch_size": np.int64(2)},
        {"evaluate_every": 2},
        {"params": {"w": np.zeros(3), "b": 1.0}},
        {"data": federation(seed=3)},
        {"data": federation(weights=np.full(5, 0.2))},
    ):
        run(method(), **change)
        assert compilations() == 0, change
    for hyper in (
        {"lr": 0.01},
        {"prox": 2.0},
        {"lr": np.float64(0.02)},
        {"lr": 1, "prox": 1},
        {"server_lr": np.float32(0.5)},
    ):
        run(method(**hyper))
        assert compilations() == 0, hyper
    run(method(), batch_size=3)
    assert compilations() > 0  # the count does see what is compiled


def test_the_rounds_of_a_run_are_compiled_once(compilations):
    """Also where the server's state begins with a Python number, whose type is weak."""
    run(fedax.create("fedavg-m", lr=0.01), rounds=4, evaluate_every=2)
    assert compilations("some_rounds") == 1


def test_other_steps_of_the_clients_compile_nothing(compilations):
    one = run(
        work=UNEQUAL, place=fedax.Place(chunk_size=4)
    )  # which nobody else takes: else the program may be there already
    assert compilations() > 0
    other = run(work=fedax.Steps(TAUS[::-1].copy()), place=fedax.Place(chunk_size=4))
    assert compilations() == 0
    assert one.history["local_steps"].tolist() == other.history["local_steps"].tolist()
    assert (flat(one.params) != flat(other.params)).any()


def test_relabelling_the_clients_changes_nothing_under_full_gradients():
    order = np.array([3, 0, 4, 2, 1])
    data = fedax.FederatedData.from_clients([DATA.client(i) for i in order], P[order])
    one = run(batch_size=None, work=UNEQUAL)
    other = run(batch_size=None, work=fedax.Steps(TAUS[order]), data=data)
    for name in set(one.history) - {"seconds"}:
        np.testing.assert_allclose(one.history[name], other.history[name], rtol=1e-5)


# bfloat16.

MIXED = fedax.Task(
    init=lambda key: {"w": jnp.ones(3, jnp.bfloat16), "b": jnp.zeros(())},
    loss=lambda params, batch, key: (0.5 * residual(params, batch) ** 2).astype(jnp.bfloat16),
    metrics={"error": lambda params, batch: jnp.abs(residual(params, batch)).astype(jnp.bfloat16)},
)


def types(tree):
    return jax.tree.map(lambda leaf: str(leaf.dtype), tree)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A run that keeps its best model and checkpoints, and their folder."""
    folder = tmp_path_factory.mktemp("mixed")
    return run(task=MIXED, checkpoint=fedax.Checkpoints(folder, rounds=1, keep=9, best="test_loss")), folder


def test_a_bfloat16_model_computes_in_bfloat16_and_is_kept_in_float32(mixed):
    got, wide = mixed[0], run()
    assert types(got.params) == types(got.best.params) == {"w": "bfloat16", "b": "float32"}
    assert types(got.state.x.tree) == {"w": "float32", "b": "float32"}
    np.testing.assert_array_equal(got.params["w"], got.state.x.tree["w"].astype(jnp.bfloat16))
    assert (got.params["w"].astype(np.float32) != got.state.x.tree["w"]).any()  # float32 is no mere container
    for name in set(wide.history) - {"seconds"}:
        np.testing.assert_allclose(got.history[name], wide.history[name], rtol=0.02, err_msg=name)
    assert got.history["bytes_up"].tolist() == wide.history["bytes_up"].tolist()


def test_a_bfloat16_run_goes_on_from_a_checkpoint(mixed, tmp_path):
    got, folder = mixed
    (tmp_path / "best.safetensors").write_bytes((folder / "best.safetensors").read_bytes())
    (at,) = folder.glob("round-000000004.*")
    (tmp_path / at.name).write_bytes(at.read_bytes())
    again = run(task=MIXED, checkpoint=fedax.Checkpoints(tmp_path, best="test_loss"))
    same(got, again)
    assert types(again.best.params) == types(got.params) and again.best.round == got.best.round
    assert again.best.params["w"].tolist() == got.best.params["w"].tolist()


def test_a_bfloat16_task_in_a_sweep_and_in_a_diagnosis(mixed):
    options = {"rounds": 7, "work": fedax.Steps(2), "batch_size": 2, "test": TEST.examples}
    sweep = fedax.sweep(lambda lr: fedax.create("fedavg", lr=lr), {"lr": [0.05, 0.02]}, MIXED, DATA, **options)
    first = sweep.runs[0][0]
    assert types(first.params) == {"w": "bfloat16", "b": "float32"}
    # On a GPU XLA leaves out casts to bfloat16 within a fused operation, and fuses the sweep's in another way.
    close = 1e-5 if jax.default_backend() == "cpu" else 2**-8
    np.testing.assert_allclose(first.history["train_loss"], mixed[0].history["train_loss"], rtol=close)
    points = [None, mixed[0].params]
    narrow, wide = (fedax.theory.diagnose(fedax.create("fedavg"), task, DATA, points=points) for task in (MIXED, TASK))
    for a, b in zip(narrow.points, wide.points, strict=True):
        assert a.client_gradients == pytest.approx(b.client_gradients, rel=0.03)
        assert a.loss == pytest.approx(b.loss, rel=0.01)


def test_bfloat16_losses_are_summed_in_float32():
    """A share of 1/600 is no bfloat16 number: their sum would be 1.0016."""

    def ones(params, batch):
        nothing = 0 * (params["w"].sum() + params["b"]).astype(jnp.bfloat16)
        return jnp.ones(len(batch["y"]), jnp.bfloat16) + nothing

    task = fedax.Task(TASK.init, lambda params, batch, key: ones(params, batch), {"ones": ones})
    many = federation([600], [1.0])
    got = run(task=task, data=many, test=many.examples, rounds=0)
    results = [got.history[name][0] for name in ("train_loss", "test_loss", "test_ones")]
    assert results == pytest.approx([1, 1, 1], abs=1e-6)


def test_a_given_model_is_not_rounded_first():
    start = {"w": np.full(3, 1.0009765, np.float32), "b": 0.0}
    got = run(task=MIXED, params=start, rounds=0)
    assert got.state.x.tree["w"].tolist() == start["w"].tolist() and got.params["w"].tolist() == [1.0] * 3
    more = run(task=MIXED, params=got.params, rounds=0)  # what a run delivers is a start for another
    assert more.state.x.tree["w"].tolist() == [1.0] * 3
    assert got.history["train_loss"][0] == more.history["train_loss"][0]  # the loss sees the rounded one
    assert MIXED.trained.loss(start, TEST.examples, None).tolist() != TASK.loss(start, TEST.examples, None).tolist()


def test_bfloat16_and_float16_examples():
    want = run(data=fedax.FederatedData({k: np.round(v * 4) / 4 for k, v in DATA.examples.items()}, SIZES, P), rounds=0)
    for kind in (jnp.bfloat16, np.float16):
        quarters = {name: (np.round(leaf * 4) / 4).astype(kind) for name, leaf in DATA.examples.items()}
        got = run(data=fedax.FederatedData(quarters, SIZES, P), test=None, rounds=0)
        assert got.history["train_loss"][0] == pytest.approx(want.history["train_loss"][0], rel=1e-5)


def test_rounds_of_evaluation_are_those_of_the_run_and_each_once():
    results = [fedax.simulate(fedax.create("fedavg", lr=0.05), TASK, DATA, rounds=4, evaluate_every=each)
             for each in ([2, 4, 9], [2, 2], 2)]  # fmt: skip
    assert [run.history["round"].tolist() for run in results] == [[0, 2, 4]] * 3


@pytest.mark.parametrize("seed", [64, 2**32 - 1])
def test_large_seeds_are_seeds(seed):
    runs = [fedax.simulate(fedax.create("fedavg", lr=0.05), TASK, DATA, rounds=1, batch_size=2, seed=each)
            for each in (seed, seed, 0)]  # fmt: skip
    one, same, other = (run.history["train_loss"][-1] for run in runs)
    assert one == same != other


@pytest.mark.parametrize("number", [4096, 5000, 9000])
def test_many_held_out_examples_are_weighed_alike(number):
    """They are evaluated in blocks of 4,096, of which the last is filled up."""
    many = federation([number], [1.0], seed=3)
    run = fedax.simulate(fedax.create("fedavg", lr=0.05), TASK, DATA, rounds=0, test=many.examples)
    np.testing.assert_allclose(run.history["test_loss"], [losses(X0, many).mean()], 1e-5)


@pytest.mark.parametrize("labels, named", [([-1, 1], (-1, 1)), ([0, 1], None), ([-1, 2], None), ([-1, 0], None)])
def test_labels_of_plus_and_minus_one_keep_their_names(labels, named):
    data = fedax.FederatedData({"x": np.ones((4, 1)), "y": np.array(labels * 2)}, [4])
    assert make.names_of_classes(Census.of(data), data) == named


def test_examples_are_copied_and_no_program_is_compiled_for_it(compilations):
    """Aligned as it takes to share them: what the caller writes later would change the run."""
    numbers = np.zeros(116, np.float32)
    numbers = numbers[-numbers.ctypes.data % 64 // 4 :][:100]
    (there,) = load.on_devices([numbers], None)
    numbers[:] = 1
    assert not np.asarray(there).any() and compilations() == 0


def test_seconds_of_compilation_have_no_evaluation_in_them():
    """Of a run whose programs are all there it is none, however long the first evaluation takes."""
    run()
    assert run().compile_seconds == 0
