"""Held-out data: the same figures in every place, also by client, and the choice by validation."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
import sklearn.metrics as sk
from jax.sharding import Mesh

import fedax
from fedax import metrics as M
from fedax.engine import by_client, evaluate
from tests.engine import here

from .. import LAST_BITS

RANDOM = np.random.default_rng(1)
TRUE = RANDOM.normal(size=3)


def examples(n):
    x = RANDOM.normal(size=(n, 3)).astype(np.float32)
    return {"x": x, "y": np.where(x @ TRUE + RANDOM.normal(size=n) > 1, 1, -1).astype(np.float32)}


def clients(sizes):
    return fedax.FederatedData.from_clients({f"site {n}": examples(n) for n in sizes})


DATA, TEST, VAL = clients([11, 12, 13, 14]), clients([40, 41, 1, 150]), examples(50)
SUMMED = {"ap": M.AveragePrecision(), "brier": M.Brier(), "recall": M.Recall(), "ece": M.CalibrationError(4)}
NODES = fedax.tasks.logistic_regression(3).with_metrics(**SUMMED)
TASK = NODES.with_metrics(mcc=M.OnHost(sk.matthews_corrcoef))
BY_CLIENT = TASK.with_metrics(per_client=M.PerClient())
RUN = {"rounds": 4, "batch_size": 4, "work": fedax.Steps(3), "evaluate_every": 2}
HELD = {"val": VAL, "test": TEST}
METHOD = fedax.create("fedavg", lr=0.5)
COSTS = {"seconds", "time", "wire_up", "wire_down"}


@pytest.fixture(scope="module")
def run():
    return fedax.simulate(METHOD, BY_CLIENT, DATA, **RUN, **HELD)


def assert_same(run, other):
    for name in run.history.keys() & other.history.keys() - COSTS:
        one, two = (np.array(each.history[name].tolist(), float) for each in (run, other))
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=2e-6, err_msg=name)


def test_against_scikit_learn(run):
    for part, held in (("val", VAL), ("test", TEST.examples)):
        score, y = held["x"] @ np.asarray(run.params["w"]), held["y"]
        predicted, p = np.where(score > 0, 1, -1), 1 / (1 + np.exp(-score.astype(float)))
        last = {name: values[-1] for name, values in run.history.items() if name.startswith(part)}
        assert last[f"{part}_f1"] == pytest.approx(sk.f1_score(y, predicted), abs=1e-9)
        assert last[f"{part}_recall"] == pytest.approx(sk.recall_score(y, predicted), abs=1e-9)
        assert last[f"{part}_mcc"] == pytest.approx(sk.matthews_corrcoef(y, predicted), abs=1e-9)
        assert last[f"{part}_accuracy"] == pytest.approx(sk.accuracy_score(y, predicted), abs=1e-6)
        assert last[f"{part}_brier"] == pytest.approx(sk.brier_score_loss(y, p), abs=LAST_BITS)
        for name, metric, due in (
            ("auc", M.AUC(), sk.roc_auc_score(y, score)),
            ("ap", M.AveragePrecision(), sk.average_precision_score(y, score)),
        ):
            sums = M.base.wide(metric.sums(np.float32(score), y, np.ones(len(y))))
            assert abs(last[f"{part}_{name}"] - due) <= metric.bound(sums) + 1e-9


@pytest.mark.parametrize(
    "options",
    [
        {"place": fedax.Place(mesh=Mesh(np.array(jax.devices()[:2]), ("clients",)))},
        {"place": fedax.Place(stream=True)},
    ],
    ids=["2 devices", "streamed"],
)
def test_the_same_everywhere(run, options):
    assert_same(run, fedax.simulate(METHOD, BY_CLIENT, DATA, **RUN, **HELD, **options))


def test_the_same_in_blocks_of_another_size(run, monkeypatch):
    monkeypatch.setattr(by_client, "_BLOCK_ELEMENTS", 100)
    task = TASK.with_metrics()  # another object, for which nothing is compiled yet
    assert_same(run, fedax.simulate(METHOD, task, DATA, **RUN, **HELD))


def test_the_same_side_by_side(run):
    sweep = fedax.sweep(
        lambda lr: fedax.create("fedavg", lr=lr), {"lr": [0.1, 0.5]}, BY_CLIENT, DATA, seeds=2, **RUN, **HELD
    )
    assert_same(run, sweep.runs[1][0])
    assert sweep.runs[0][0].history["test_loss_per_client"][-1] != sweep.runs[1][0].history["test_loss_per_client"][-1]


def test_the_same_at_nodes():
    whole = TEST.examples
    tests = [{name: leaf[rows] for name, leaf in whole.items()} for rows in (slice(0, 70), slice(70, None))]
    where = [[3, 0], [2, 1]]  # of as many examples
    over, _ = here.run_at_sites(METHOD, NODES, DATA, where, None, tests, **RUN)
    assert_same(fedax.simulate(METHOD, NODES, DATA, test=whole, **RUN), over)
    with pytest.raises(fedax.ConfigError, match=r"task.metrics\['mcc'\] = .*at the nodes"):
        here.run_at_sites(METHOD, TASK, DATA, where, None, tests, **RUN)


def test_r2_of_labels_far_from_zero_here_and_at_nodes():
    data = [{"x": RANDOM.normal(size=(n, 2)).astype(np.float32)} for n in (30, 40)]
    data = [each | {"y": (each["x"].sum(1) + 2000).astype(np.float32)} for each in data]
    federation, task = fedax.FederatedData.from_clients(data), fedax.tasks.linear_regression(2)
    start = {"w": np.array([0.9, 0.8]), "b": np.array(2000.1)}
    options = {"rounds": 1, "params": start, "work": fedax.Steps(1), "batch_size": 4}
    method = fedax.create("fedavg", lr=1e-9)
    alone = fedax.simulate(method, task, federation, test=federation.examples, **options)
    f = federation.examples["x"].astype(float) @ start["w"] + start["b"]
    assert alone.history["test_r2"][0] == pytest.approx(sk.r2_score(federation.examples["y"], f), abs=2e-4)
    assert alone.history["test_mae"][0] == pytest.approx(sk.mean_absolute_error(federation.examples["y"], f), abs=2e-4)
    over, _ = here.run_at_sites(method, task, federation, [[0], [1]], None, data, **options)
    assert_same(alone, over)


def table_by_hand(params, data, task):
    rows = []
    for i in range(data.num_clients):
        own = data.client(i)
        score, y = own["x"] @ params[i], own["y"]
        both = len({*y}) == 2
        rows.append(
            {
                "loss": np.log1p(np.exp(-y * score)).mean(),
                "accuracy": ((score > 0) == (y > 0)).mean(),
                "auc": sk.roc_auc_score(y, score) if both else np.nan,
                "ap": sk.average_precision_score(y, score) if (y > 0).any() else np.nan,
                "f1": sk.f1_score(y, np.where(score > 0, 1, -1), zero_division=0),
            }
        )
    return rows


def test_a_table_of_clients(run):
    weights = TEST.with_weights(np.array([0.1, 0.2, 0.3, 0.4]))
    table = fedax.evaluate(TASK, run.params, weights)
    assert table["name"].tolist() == list(TEST.names) and table["n"].tolist() == TEST.sizes.tolist()
    by_hand = table_by_hand([np.asarray(run.params["w"])] * 4, TEST, TASK)
    for name in by_hand[0]:
        due = np.array([row[name] for row in by_hand])
        np.testing.assert_allclose(table[name], due, atol=LAST_BITS, err_msg=name)
        known = ~np.isnan(due)
        mean = np.average(due[known], weights=weights.weights[known])
        assert table.attrs["mean"][name] == pytest.approx(mean, abs=LAST_BITS)
        assert run.history[f"test_{name}_per_client"][-1] == pytest.approx(table[name].tolist(), nan_ok=True)
    assert np.isnan(table["auc"][2]) and np.isfinite(table["auc"][[0, 1, 3]]).all()
    several = {"w": RANDOM.normal(size=(4, 3)).astype(np.float32)}
    table, by_hand = fedax.evaluate(TASK, None, TEST, several), table_by_hand(several["w"], TEST, TASK)
    for name in by_hand[0]:
        np.testing.assert_allclose(table[name], [row[name] for row in by_hand], atol=LAST_BITS, err_msg=name)


def test_many_clients_of_all_sizes_with_their_own_models():
    """Those of like size are evaluated together, those with more examples than a block has one by one."""
    sizes = [*RANDOM.integers(1, 40, 70), 9000]
    data = fedax.FederatedData(examples(sum(sizes)), sizes)
    w = RANDOM.normal(size=(71, 3)).astype(np.float32)
    columns, each = by_client.measured(TASK.trained, None, data, lambda ids: {"w": w[ids]})
    margin = [b["y"] * (b["x"] @ w[i]) for i, b in enumerate(map(data.client, range(71)))]
    np.testing.assert_allclose(each["loss"], np.log1p(np.exp(-np.concatenate(margin))), rtol=1e-5, atol=1e-6)
    brier = [np.mean((1 / (1 + np.exp(m.astype(float)))) ** 2) for m in margin]
    np.testing.assert_allclose(columns["brier"], brier, atol=LAST_BITS)


def test_rounds_and_points_are_chosen_by_validation(tmp_path):
    upside_down = VAL | {"y": -VAL["y"]}
    held = {"val": upside_down, "test": TEST.examples}
    sweep = fedax.sweep(lambda lr: fedax.create("fedavg", lr=lr), {"lr": [0.01, 0.5]}, TASK, DATA, **RUN, **held)
    assert sweep.criterion == "val_loss" and sweep.best() == {"lr": 0.01}
    assert sweep.best("train_loss") == {"lr": 0.5} and sweep.best("test_mcc") == {"lr": 0.5}
    best = fedax.Checkpoints(tmp_path, best="val_mcc")
    run = fedax.simulate(METHOD, TASK, DATA, checkpoint=best, **RUN, **held)
    assert run.best.round == int(run.history["round"][np.argmax(run.history["val_mcc"])])


@pytest.mark.filterwarnings("ignore:.*best:fedax.errors.DivergedWarning")
def test_patience_counts_for_each_run_and_goes_on(tmp_path):
    upside_down = VAL | {"y": -VAL["y"]}
    options = RUN | {"rounds": 12, "evaluate_every": 1, "val": upside_down}
    stop = fedax.Patience("val_loss", evaluations=3)
    run = fedax.simulate(METHOD, TASK, DATA, until=stop, **options)
    assert run.status == "stopped" and run.history["round"].tolist() == [0, 1, 2, 3]
    sweep = fedax.sweep(
        lambda lr: fedax.create("fedavg", lr=lr), {"lr": [0.5, 1e-9]}, TASK, DATA, until=stop, **options
    )
    assert [runs[0].history["round"][-1] for runs in sweep.runs] == [3, 3]
    with pytest.raises(KeyboardInterrupt):
        fedax.simulate(METHOD, TASK, DATA, until=stop, callback=interrupt, checkpoint=each_round(tmp_path), **options)
    again = fedax.simulate(METHOD, TASK, DATA, until=stop, checkpoint=each_round(tmp_path), **options)
    assert again.history["round"].tolist() == [0, 1, 2, 3] and again.status == "stopped"
    waiting = fedax.Patience("test_auc", 2, least=0.1).fresh()
    assert [waiting({"test_auc": value}) for value in (0.5, 0.7, 0.75, 0.79, 0.9)] == [False, False, False, True, False]


def each_round(folder):
    return fedax.Checkpoints(folder, rounds=1)


def interrupt(row):
    if row["round"] == 2:
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"val": examples(3) | {"y": np.zeros(3, np.float32)}}, r"^val: examples\['y'\]: example 0 has label 0"),
        ({"test": clients([3]).with_weights([1.0]), "val": {"x": VAL["x"]}}, "^val: its structure"),
        (
            {"task": BY_CLIENT, "test": VAL},
            r"metrics\['per_client'\] = .*FederatedData",
        ),
        ({"until": fedax.Patience()}, "patience.column = 'val_loss': .*train_loss"),
        ({"until": fedax.Patience("train_lose")}, "did you mean 'train_loss'"),
    ],
)
def test_bad_input(options, match):
    with pytest.raises((fedax.ConfigError, fedax.DataError), match=match):
        fedax.simulate(METHOD, options.pop("task", TASK), DATA, rounds=1, **options)


def test_too_many_clients_for_a_history():
    many = fedax.FederatedData(examples(10_001), np.ones(10_001, int))
    with pytest.raises(fedax.ConfigError, match=r"10001 .*of test .*use fedax.evaluate"):
        fedax.simulate(METHOD, BY_CLIENT, DATA, rounds=1, test=many)


def test_a_client_of_the_test_part_is_named():
    bad = fedax.FederatedData.from_clients({"a": examples(2), "b": examples(2) | {"y": np.float32([1, 3])}})
    with pytest.raises(fedax.DataError, match=r"^client 'b', test: .*row 1 has label 3"):
        fedax.simulate(METHOD, TASK, DATA, rounds=1, test=bad)
    with pytest.raises(fedax.ConfigError, match=r"params_per_client = 4: .*\[4, ...\]"):
        fedax.evaluate(TASK, None, TEST, {"w": np.zeros((3, 3))})
    with pytest.raises(fedax.ConfigError, match=r"compare outputs with batch\['y'\]"):
        no_labels = fedax.Task(lambda key: np.zeros(2), lambda p, b, key: b["x"] @ p, {"auc": M.AUC()}, outputs=dot)
        fedax.simulate(METHOD, no_labels, fedax.FederatedData({"x": np.ones((2, 2))}, [2]), rounds=1)


def dot(params, batch):
    return batch["x"] @ params


def test_labels_may_be_a_column():
    """[n, 1], as PyTorch's binary cross-entropy takes them, in place of [n]."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)).astype(np.float32), rng.integers(0, 2, (40, 1))
    plain = fedax.Task(
        lambda key: np.ones(3, np.float32),
        lambda w, batch, key: jax.nn.softplus(batch["x"] @ w) - batch["y"].reshape(-1) * (batch["x"] @ w),
        {"auc": fedax.metrics.AUC(), "f1": fedax.metrics.F1()},
        outputs=lambda w, batch: batch["x"] @ w,
        kind="classification",
    )
    rows = []
    for labels in (y, y[:, 0]):
        data = fedax.FederatedData({"x": x, "y": labels}, sizes=[15, 25])
        run = fedax.simulate(fedax.create("fedavg", lr=0.1), plain, data, rounds=1, test=data)
        table = fedax.evaluate(plain, run.params, data)
        rows.append([run.history[name] for name in ("test_auc", "test_f1")] + [table[["auc", "f1"]]])
    for one, other in zip(*rows, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def counted(calls, dtype):
    """A network of two classes that says when it is traced."""

    def init(key):
        return {"w": jax.random.normal(key, (3, 2), dtype)}

    def apply(params, x, key):
        calls.append(x.shape)
        return x @ params["w"]

    return fedax.tasks.classification(init, apply, classes=2)


@pytest.mark.parametrize(
    ("part", "dtype"),
    [(None, "float32"), (None, "bfloat16"), ("w", "float32"), (fedax.tasks.LoRA(rank=1), "float32")],
    ids=["whole", "whole of bfloat16", "part", "LoRA"],
)
def test_the_network_is_traced_once_for_the_loss_and_all_metrics(part, dtype):
    calls = []
    task = counted(calls, dtype)
    task = (task if part is None else fedax.tasks.partial(task, part)).trained
    params, batch = task.init(jax.random.key(0)), {"x": np.ones((5, 3), np.float32), "y": np.arange(5) % 2}
    assert {"accuracy", "auc", "f1"} <= set(task.metrics)
    calls.clear()
    bound = task.bound(task.frozen)
    found = jax.jit(lambda params, batch: evaluate.held_out(bound, SimpleNamespace(tree=params), batch, None))
    assert {"loss", "accuracy"} <= set(found(params, batch)) and len(calls) == 2  # once for its memory
    by_client.each_example(task, params, batch)
    assert calls[2:] == [(2, 3), (5, 3), (5, 3)]  # that of two rows: how many numbers an example takes
    # Of another batch, or outside of an evaluation, it is traced anew.
    twice = {name: np.concatenate([values, values]) for name, values in batch.items()}
    assert found(params, twice)["loss"] == pytest.approx(found(params, batch)["loss"]) and len(calls) == 7
    bound.loss(params, batch, None), bound.metrics["accuracy"](params, batch)
    assert len(calls) == 9


def test_patience_waits_for_evaluations_in_which_enough_was_heard():
    rows = [
        {"val_loss": loss, "heard": heard} for loss, heard in [(1, 1), (0.2, 0.7), (0.9, 1), (2, 0.5), (3, 0.7), (2, 1)]
    ]
    stop = fedax.Patience("val_loss", 1).fresh()
    assert [stop(row) for row in rows] == [False] * 5 + [True]
    stop = fedax.Patience("val_loss", 1).fresh(min_heard=0.7)
    assert [stop(row) for row in rows[:3]] == [False, False, True]
    stop = fedax.Patience("val_loss", 1).fresh()
    assert [stop({"val_loss": row["val_loss"]}) for row in rows[:3]] == [False, False, True]
