"""Personal models in a run: what is evaluated of them, at every place, and what the user is given."""

import numpy as np
import pytest
import sklearn.metrics

import fedax
from fedax.errors import ConfigError

NAMES = ["north", "east", "south", "west", "centre"]
SIZES = [7, 3, 12, 3, 12]
COHORTS = [[0, 1], [1, 2], [0], [4]]  # without west
WORK = {"work": fedax.Steps(3), "batch_size": 2}


def clients(sizes, names, seed):
    rng = np.random.default_rng(seed)
    found = {}
    for name, n in zip(names, sizes, strict=True):
        w = np.random.default_rng(NAMES.index(name)).normal(size=3)
        x = rng.normal(size=(n, 3)).astype(np.float32)
        found[name] = {"x": x, "y": np.where(x @ w + rng.normal(size=n) > 0, 1, -1).astype(np.float32)}
    return fedax.FederatedData.from_clients(found)


TRAIN = clients(SIZES, NAMES, 10)
TEST = clients([4, 9, 6, 2], ["west", "north", "centre", "south"], 11)  # another order, and one client has none
TASK = fedax.tasks.logistic_regression(3).with_metrics(auc=fedax.metrics.AUC())


def run(method="ditto", rounds=4, **options):
    hyper = {"lr": 0.2} if method == "ifca" else {"lr": 0.2, "lam": 0.3}
    options = WORK | {"test": TEST, "evaluate_every": 2, "participation": fedax.Uniform(2)} | options
    return fedax.simulate(fedax.create(method, **hyper), TASK, TRAIN, rounds=rounds, **options)


def losses(w, batch):
    return np.log1p(np.exp(-batch["y"] * (batch["x"] @ w)))


def test_columns_are_of_each_clients_own_model_on_its_own_examples():
    found = run()
    own = {name: np.asarray(found.personal(name)["w"], float) for name in NAMES}
    last = {name: column[-1] for name, column in found.history.items()}
    each = [losses(own[name], TRAIN.client(i)).mean() for i, name in enumerate(NAMES)]
    assert last["train_loss_personal"] == pytest.approx(np.average(each, weights=SIZES), rel=1e-5)
    held = [(own[TEST.name(i)], TEST.client(i)) for i in range(TEST.num_clients)]
    loss = np.concatenate([losses(w, batch) for w, batch in held])
    scores = np.concatenate([batch["x"] @ w for w, batch in held])
    y = np.concatenate([batch["y"] for _, batch in held])
    assert last["test_loss_personal"] == pytest.approx(loss.mean(), rel=1e-5)
    assert last["test_accuracy_personal"] == pytest.approx(np.mean((scores > 0) == (y > 0)))
    assert last["test_auc_personal"] == pytest.approx(sklearn.metrics.roc_auc_score(y, scores), abs=1e-3)
    assert last["train_loss_personal"] != pytest.approx(last["train_loss"], rel=1e-3)


def test_a_run_that_measures_no_training_loss_does_not_compute_it_of_personal_models_either(monkeypatch):
    whole = run()

    def refused(*_):
        raise AssertionError("the training loss of personal models is computed")

    monkeypatch.setattr("fedax.engine.personal._loss", refused)
    found = run(train_loss="none")
    assert found.history.keys() == whole.history.keys() - {"train_loss", "train_loss_personal"}
    np.testing.assert_array_equal(found.history["test_loss_personal"], whole.history["test_loss_personal"])
    with pytest.raises(AssertionError, match="is computed"):
        run(test=None)


def test_how_old_models_are_and_who_never_had_a_turn():
    found = run(participation=fedax.Trace(COHORTS), evaluate_every=1).history
    assert found["newcomers"].tolist() == [5, 3, 2, 2, 1]
    p = np.array(SIZES) / sum(SIZES)
    ages = [np.nan]
    for now in range(1, 5):
        last = {i: r for r in range(now) for i in COHORTS[r]}
        ages.append(sum(p[i] * (now - 1 - r) for i, r in last.items()) / sum(p[i] for i in last))
    np.testing.assert_allclose(found["turn_age"], ages)


def test_newcomers_start_from_the_newest_model_and_leave_no_trace():
    with_turns, without = (run(participation=fedax.Trace(COHORTS), newcomer_turns=turns) for turns in (2, 0))
    np.testing.assert_array_equal(with_turns.history["train_loss"], without.history["train_loss"])
    np.testing.assert_allclose(without.personal("west")["w"], without.params["w"])  # no turn: the model as it is
    assert np.abs(np.asarray(with_turns.personal("west")["w"] - with_turns.params["w"])).max() > 1e-3
    np.testing.assert_array_equal(with_turns.personal("east")["w"], without.personal("east")["w"])
    # A turn is one of the method: pulled to the model that it begins from, with its own rate.
    one = run(participation=fedax.Trace(COHORTS), newcomer_turns=1, batch_size=None)
    x = np.asarray(one.params["w"], float)
    batch, v = TRAIN.client(3), np.asarray(one.params["w"], float)
    for _ in range(3):
        slope = -batch["y"] / (1 + np.exp(batch["y"] * (batch["x"] @ v)))
        v = v - 0.2 * ((slope[:, None] * batch["x"]).mean(0) + 0.3 * (v - x))
    np.testing.assert_allclose(one.personal("west")["w"], v, rtol=1e-4)


@pytest.mark.parametrize("method", ["ditto", "mr-mtl", "ifca"])
@pytest.mark.parametrize(
    "place",
    [fedax.Place(client_memory="host"), fedax.Place(stream=True), fedax.Place(chunk_size=2)],
    ids=["host", "streamed", "side by side"],
)
def test_places_agree(method, place):
    here, there = (run(method, seed=1, newcomer_turns=2, **more) for more in ({}, {"place": place}))
    assert method == "ifca" or here.history["newcomers"][-1] > 0
    assert here.history.keys() == there.history.keys()
    for name, column in here.history.items():
        if name != "seconds":
            np.testing.assert_allclose(column, there.history[name], rtol=2e-6, err_msg=name)
    for name in NAMES:
        np.testing.assert_allclose(here.personal(name)["w"], there.personal(name)["w"], rtol=1e-5, atol=1e-6)


def test_a_sweep_and_a_server_that_does_not_wait():
    alone = run(seed=1)
    found = fedax.sweep(
        lambda lr: fedax.create("ditto", lr=lr, lam=0.3), {"lr": [0.1, 0.2]}, TASK, TRAIN, rounds=4, seeds=[0, 1],
        test=TEST, evaluate_every=2, participation=fedax.Uniform(2), **WORK,
    ).runs[1][1]  # fmt: skip
    np.testing.assert_array_equal(found.history["test_loss_personal"], alone.history["test_loss_personal"])
    paced = run(participation=None, clock=fedax.Clock(step=1.0), pace=fedax.Async(2, 1, start="idle"))
    assert np.isfinite(paced.history["test_loss_personal"]).all() and paced.history["newcomers"][-1] < 5


def test_a_run_goes_on_from_its_checkpoint(tmp_path):
    whole = run(rounds=4)
    run(rounds=2, checkpoint=tmp_path)
    rest = run(rounds=4, checkpoint=tmp_path)
    for name in ("train_loss_personal", "test_auc_personal", "turn_age", "newcomers"):
        np.testing.assert_array_equal(whole.history[name], rest.history[name])
    np.testing.assert_array_equal(whole.personal("west")["w"], rest.personal("west")["w"])


def test_nothing_of_a_personal_model_is_uploaded():
    """The bytes of Ditto's rounds are FedAvg's: its personal models stay."""
    ditto, options = run(rounds=3).history, {"rounds": 3, "participation": fedax.Uniform(2), "evaluate_every": 2}
    fedavg = fedax.simulate(fedax.create("fedavg"), TASK, TRAIN, **options, **WORK).history
    for way in ("bytes_up", "bytes_down"):
        np.testing.assert_array_equal(ditto[way], fedavg[way])
    np.testing.assert_array_equal(ditto["gradients"], 2 * fedavg["gradients"])


def test_layers_keep_personal_models():
    plain = run(rounds=2)
    compressed = run(rounds=2, compress=fedax.ErrorFeedback(fedax.TopK(1.0)))
    np.testing.assert_allclose(compressed.personal(0)["w"], plain.personal(0)["w"], rtol=1e-6)
    dp = fedax.DP(clip=1.0, noise=1.0, delta=1e-3)
    data = TRAIN.with_weights(np.full(5, 0.2))
    private = fedax.simulate(fedax.create("ditto", lr=0.2), TASK, data, rounds=2, privacy=dp, test=TEST, **WORK)
    assert np.isfinite(private.personal(0)["w"]).all()
    assert not [name for name in private.public_columns if name.endswith("_personal")]


def test_bad_input_is_named():
    found = run(rounds=1)
    with pytest.raises(ConfigError, match=r"client = 'wset'.*west"):
        found.personal("wset")
    with pytest.raises(ConfigError, match="client = 5"):
        found.personal(5)
    with pytest.raises(ConfigError, match=r"run\.personal.*ditto"):
        fedax.simulate(fedax.create("fedavg"), TASK, TRAIN, rounds=1).personal(0)
    with pytest.raises(ConfigError, match="newcomer_turns = -1"):
        run(newcomer_turns=-1)
    # Else a method without personal models would be judged by other rows.
    more = fedax.FederatedData.from_clients({"west": TEST.client(0), "nowhere": TEST.client(1)})
    with pytest.raises(ConfigError, match=r"test = 'nowhere'.*in no training data"):
        run(test=more)
    assert "test_loss" in fedax.simulate(fedax.create("fedavg"), TASK, TRAIN, test=more, rounds=1).history
