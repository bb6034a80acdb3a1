"""Clients that take no part in training: they never influence it, and are evaluated beside."""

import jax
import numpy as np
import pytest

import fedax
from fedax.errors import ConfigError

N, D = 6, 3
TASK = fedax.tasks.linear_regression(D)
METHODS = {
    "fedavg": fedax.create("fedavg", lr=0.1),
    "scaffold": fedax.create("scaffold", lr=0.1),
    "mr-mtl": fedax.create("mr-mtl", lr=0.1, lam=0.1),
    "ditto": fedax.create("ditto", lr=0.1),
    "ifca": fedax.create("ifca", lr=0.1, clusters=2),
}


def data(other=None, seed=3):
    """Clients with a slope each; ``other``: the rows of these clients are drawn anew."""
    clients = []
    for i in range(N):
        rng = np.random.default_rng([seed, i, i in (other or ())])
        slope, x = rng.normal(size=D), rng.normal(size=(12 + i, D)).astype(np.float32)
        clients.append({"x": x, "y": (x @ slope).astype(np.float32)})
    return fedax.FederatedData.from_clients(clients)


def parts(given, clients=(1, 4), **more):
    return fedax.data.split(given, train=0.5, val=0.25, test=0.25, clients=clients, **more)


def run(method, split, **more):
    options = {"rounds": 6, "work": fedax.Steps(4), "seed": 2, "evaluate_every": 2} | more
    return fedax.simulate(method, TASK, split.train, val=split.val, test=split.test, **options)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("place", [fedax.Place(), fedax.Place(client_memory="host", stream=True)])
def test_a_client_that_takes_no_part_never_influences_training(name, place):
    given, other = parts(data()), parts(data(other=(1, 4)))
    one, two = (run(METHODS[name], split, place=place) for split in (given, other))
    jax.tree.map(np.testing.assert_array_equal, (one.params, one.state), (two.params, two.state))
    unseen = [column for column in one.history if column.startswith("unseen_")]
    assert unseen[0] == "unseen_loss"
    for column in one.history.keys() - {"seconds"}:
        same = np.array_equal(one.history[column], two.history[column], equal_nan=True)
        assert same != (column in unseen), column


def test_figures_of_unseen_clients_are_those_of_the_model_on_their_test_rows():
    split = parts(data())
    assert split.train.names == ("client 0", "client 2", "client 3", "client 5")
    unseen = split.train.unseen
    assert unseen.train.names == unseen.test.names == ("client 1", "client 4")
    whole = fedax.data.split(data(), train=0.5, val=0.25, test=0.25)  # each client's rows are split alike
    np.testing.assert_array_equal(unseen.test.client(1)["x"], whole.test.client(4)["x"])
    found = run(METHODS["fedavg"], split)
    w, b = (np.asarray(found.params[name], float) for name in ("w", "b"))
    residuals = unseen.test.examples["x"] @ w + b - unseen.test.examples["y"]
    np.testing.assert_allclose(found.history["unseen_loss"][-1], np.mean(residuals**2), rtol=1e-5)


@pytest.mark.parametrize(("turns", "rate"), [(0, 0.1), (3, 0.1), (3, fedax.Piecewise(0.1, {1: 1e-3}))])
def test_own_models_of_unseen_clients_are_of_turns_from_the_newest_model(turns, rate):
    """MR-MTL of full batches: v ← v − η (∇F_i(v) + λ (v − x)), so many turns of τ steps from v = x, at η of round 0."""
    split, lr, lam, steps = parts(data()), 0.1, 0.3, 4
    found = run(fedax.create("mr-mtl", lr=rate, lam=lam), split, newcomer_turns=turns)
    unseen, losses = split.train.unseen, []
    start = np.append(found.params["w"], found.params["b"]).astype(float)
    for i in range(2):
        rows, held = ({name: np.asarray(each, float) for name, each in part.client(i).items()} for part in unseen)
        z, v = np.c_[rows["x"], np.ones(len(rows["y"]))], start.copy()
        for _ in range(turns * steps):
            v -= lr * (2 * z.T @ (z @ v - rows["y"]) / len(z) + lam * (v - start))
        losses += [*((np.c_[held["x"], np.ones(len(held["y"]))] @ v - held["y"]) ** 2)]
    np.testing.assert_allclose(found.history["unseen_loss_personal"][-1], np.mean(losses), rtol=2e-4)
    if turns == 0:
        np.testing.assert_allclose(found.history["unseen_loss_personal"], found.history["unseen_loss"], rtol=1e-6)


def test_personal_parts_of_unseen_clients_are_trained_before_they_are_evaluated():
    given = data()  # with a level of each client's own
    examples = given.examples | {"y": given.examples["y"] + np.repeat(np.arange(N, dtype=np.float32), given.sizes)}
    split = parts(fedax.FederatedData(examples, given.sizes))
    method = fedax.PersonalPart(fedax.create("scaffold", lr=0.1), "b", lr=0.5)
    options = {"rounds": 3, "work": fedax.Steps(5), "test": split.test}
    found = fedax.simulate(method, TASK, split.train, **options)
    other = fedax.simulate(method, TASK, split.train, newcomer_turns=0, **options)
    assert found.history["unseen_loss_personal"][-1] < other.history["unseen_loss_personal"][-1]


def test_a_share_is_drawn_by_the_seed_and_never_takes_all():
    counts = {share: parts(data(), clients=share).train.num_clients for share in (0.01, 0.34, 0.5, 0.99 - 1 / N)}
    assert list(counts.values()) == [5, 4, 3, 1]
    left = [parts(data(), clients=0.34, seed=seed).train.unseen.test.names for seed in range(8)]
    assert len({*left}) > 3 and left[0] == parts(data(), clients=0.34, seed=0).train.unseen.test.names
    weights = np.arange(1, N + 1) / 21
    split = parts(data().with_weights(weights))
    np.testing.assert_allclose(split.train.weights, np.array([1, 3, 4, 6]) / 14)


@pytest.mark.parametrize(
    ("clients", "field"),
    [(0.0, "clients"), (1.0, "clients"), (0.99, "clients"), ([], "clients"), ([6], "clients"), (range(6), "clients"),
     ("each", "clients")],
)  # fmt: skip
def test_shares_that_leave_no_client_here_or_there_are_refused(clients, field):
    with pytest.raises(ConfigError) as caught:
        parts(data(), clients=clients)
    assert caught.value.field == field


def test_work_of_each_client_is_not_guessed_for_unseen_ones():
    split = parts(data())
    steps = fedax.Steps(list(range(1, split.train.num_clients + 1)))
    with pytest.raises(ConfigError, match=r"work\.steps.*takes no part has none"):
        run(fedax.create("mr-mtl"), split, work=steps)


def test_unseen_clients_without_test_rows_are_refused():
    with pytest.raises(ConfigError, match="test"):
        fedax.data.split(data(), train=0.9, val=0.1, test=0.0, clients=[0])


def test_a_checkpoint_of_other_unseen_clients_is_refused_and_a_run_goes_on_with_its_own(tmp_path):
    split, place = parts(data()), fedax.Checkpoints(tmp_path, rounds=2)
    run(METHODS["ditto"], split, rounds=4, checkpoint=place)
    later, whole = run(METHODS["ditto"], split, checkpoint=place), run(METHODS["ditto"], split)
    np.testing.assert_array_equal(later.history["unseen_loss_personal"], whole.history["unseen_loss_personal"])
    with pytest.raises(fedax.errors.CheckpointError, match="unseen"):
        run(METHODS["ditto"], parts(data(other=(1, 4))), checkpoint=place)


def test_side_by_side_runs_have_the_figures_too():
    split = parts(data())
    found = fedax.sweep(
        lambda lr: fedax.create("fedavg", lr=lr), {"lr": [0.1, 0.2]}, TASK, split.train, test=split.test, rounds=6,
        work=fedax.Steps(4), seeds=[2], evaluate_every=2,
    )  # fmt: skip
    same = run(METHODS["fedavg"], split)
    np.testing.assert_allclose(found.runs[0][0].history["unseen_loss"], same.history["unseen_loss"], rtol=1e-5)


def test_figures_of_unseen_clients_are_not_public():
    split = parts(data(), seed=0)
    open_test = {name: each[:5] for name, each in data(seed=9).examples.items()}
    train = split.train.with_weights(np.full(4, 1 / 4))
    dp = fedax.DP(clip=1.0, noise=1.0, delta=1e-3)
    found = fedax.simulate(METHODS["fedavg"], TASK, train, test=open_test, rounds=2, privacy=dp)
    assert "unseen_loss" in found.history and "unseen_loss" not in found.public_columns
    assert "test_loss" in found.public_columns
