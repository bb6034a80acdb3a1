"""The split of each client's examples: shares, classes, names and weights."""

import numpy as np
import pytest

import fedax
from fedax import data
from fedax.data.split import part_sizes
from fedax.errors import ConfigError, DataError
from fedax.experiments import build

WEIGHTS = {4: np.array([0.4, 0.3, 0.2, 0.1])}


def federation(sizes=(40, 7, 1, 100), names=("A", "B", "C", "D"), classes=3, seed=0):
    y = np.random.default_rng(seed).integers(0, classes, sum(sizes))
    examples = {"x": np.arange(float(len(y)))[:, None], "y": y}
    return data.FederatedData(examples, sizes, weights=WEIGHTS.get(len(sizes)), names=names)


@pytest.mark.parametrize("stratify", [False, True, "rare"])
def test_every_example_once_in_its_clients_parts(stratify):
    whole = federation()
    parts = data.split(whole, 0.6, 0.25, 0.15, stratify=stratify, seed=3)
    for i, name in enumerate(whole.names):
        own = [part.client(part.names.index(name))["x"][:, 0] for part in parts if name in part.names]
        assert np.array_equal(np.sort(np.concatenate(own)), whole.client(i)["x"][:, 0])
    assert np.array_equal(parts.train.weights, whole.weights) and parts.train.names == whole.names
    assert parts.train.sizes.tolist() == [24, 4, 1, 60] and parts.val.sizes.tolist() == [10, 2, 25]
    assert parts.test.names == ("A", "B", "D") and parts.test.sizes.tolist() == [6, 1, 15]
    np.testing.assert_allclose(parts.val.weights, np.array([0.4, 0.3, 0.1]) / 0.8)
    again = data.split(whole, 0.6, 0.25, 0.15, stratify=stratify, seed=3)
    other = data.split(whole, 0.6, 0.25, 0.15, stratify=stratify, seed=4)
    assert all(np.array_equal(a.examples["x"], b.examples["x"]) for a, b in zip(parts, again, strict=True))
    assert not np.array_equal(parts.train.examples["x"], other.train.examples["x"])


def test_largest_remainders():
    rng = np.random.default_rng(0)
    for _ in range(500):
        shares = rng.dirichlet([2, 1, 1])
        n = int(rng.integers(1, 60))
        counts, exact = np.array(part_sizes(n, list(shares))), n * shares
        assert counts.sum() == n and counts[0] >= 1
        if exact[0] >= 1:
            assert (np.abs(counts - exact) < 1).all()
            up = counts > exact  # those with the largest remainders are rounded up
            if up.any() and not up.all():
                assert (exact % 1)[up].min() >= (exact % 1)[~up].max() - 1e-9


def test_stratified_parts_keep_the_classes():
    whole = federation(sizes=(1000, 60), names=("A", "B"), classes=4)
    y = np.where(np.random.default_rng(5).random(1060) < 0.07, 1, 0)  # few positives
    for classes in (whole.examples["y"], y):
        held = data.FederatedData({"y": classes}, [1000, 60], names=["A", "B"])
        shares = (0.7, 0.15, 0.15)
        for part, share in zip(data.split(held, *shares, stratify=True), shares, strict=True):
            for i in range(2):
                expected = share * np.bincount(held.client(i)["y"])
                assert np.abs(np.bincount(part.client(i)["y"], minlength=len(expected)) - expected).max() < 2
    texts = np.where(y == 1, "yes", "no")
    by_text = data.split(whole, stratify=texts)
    assert abs((texts[by_text.test.client(0)["x"][:, 0].astype(int)] == "yes").sum() - 0.15 * (y[:1000] == 1).sum()) < 2


def test_all_orders_are_as_likely():
    """Which example is held out is uniform, with classes of two and of eight too."""
    held = data.FederatedData({"x": np.arange(10.0), "y": np.array([0] * 8 + [1] * 2)}, [10])
    for stratify in (False, True):
        drawn = [data.split(held, 0.8, 0, 0.2, stratify=stratify, seed=seed).test.examples["x"] for seed in range(2000)]
        share = np.bincount(np.concatenate(drawn).astype(int), minlength=10) / 2000
        assert np.abs(share - 0.2).max() < 0.04  # four standard deviations


def test_clients_without_names_are_numbered():
    parts = data.split(federation(names=None), 0.6, 0.4, 0)
    assert parts.train.names is None and parts.val.names == ("client 0", "client 1", "client 3")
    assert parts.train.name(3) == "client 3" and parts.test is None


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"train": 0.7, "val": 0.7}, ConfigError, "the shares sum to 1.55"),
        ({"train": 0.0, "val": 0.5, "test": 0.5}, ConfigError, "train = 0"),
        ({"val": -0.1}, ConfigError, "val = -0.1"),
        ({"stratify": "z"}, ConfigError, "stratify = 'z': .*rare"),
        ({"stratify": np.zeros(3)}, DataError, "stratify: "),
        ({"stratify": np.zeros(3), "clients": [0]}, DataError, "stratify: "),
        ({"stratify": np.zeros(200), "clients": [0]}, DataError, "stratify: "),
        ({"stratify": np.linspace(0, 1, 148)}, DataError, "not whole"),
        ({"seed": -1}, ConfigError, "seed = -1"),
    ],
)
def test_refusals(arguments, error, message):
    with pytest.raises(error, match=message):
        data.split(federation(), **arguments)


def test_clients_that_take_no_part_are_kept_by_another_split():
    train, *_ = data.split(federation(), train=0.8, val=0, test=0.2, clients=[1])
    again, val, _ = data.split(train, train=0.5, val=0.5, test=0)
    assert again.unseen is train.unseen and val.unseen is None
    with pytest.raises(ConfigError, match=r"clients = \[0\].* take no part already"):
        data.split(train, clients=[0])


CONFIG = {"run": {"rounds": 1, "batch_size": 32}, "methods": [{"name": "fedavg", "lr": 0.1}]}


def test_a_configuration_splits_what_clients_have():
    experiment = build(CONFIG | {"data": {"name": "digits", "clients": 4, "split": {"val": 0.2, "stratify": True}}})
    assert experiment.val.num_clients == 4 and experiment.data.num_examples + experiment.val.num_examples == 1442
    assert experiment.test["x"].shape[0] == 355  # the data set's own
    assert experiment.config["data"]["split"] == {"train": 0.8, "val": 0.2, "test": 0.0, "stratify": True, "seed": 0}
    assert build(experiment.config).config == experiment.config
    made = build(CONFIG | {"data": {"name": "sparse_regression", "clients": 4, "split": {"test": 0.3}}})
    assert isinstance(made.test, fedax.FederatedData) and made.val is None
    assert made.split(0)[2] is made.test


def test_each_seed_may_have_its_own_split(tmp_path):
    federation().save(tmp_path / "own")
    given = {"name": "folder", "path": str(tmp_path / "own"), "split": {"test": 0.2}}
    config = CONFIG | {"data": given, "task": {"name": "softmax_regression"}}
    config["run"] = config["run"] | {"seeds": 2, "split_seeds": True}
    experiment = build(config)
    one, two = (experiment.split(seed)[2].examples["x"] for seed in (0, 1))
    assert not np.array_equal(one, two)
    alone = build(config | {"data": given | {"split": {"test": 0.2, "seed": 1}}, "run": CONFIG["run"]})
    assert np.array_equal(alone.test.examples["x"], two)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"valid": 0.2}, "data.split.valid = 0.2: did you mean 'val'"),
        ({"train": 0.5, "val": 0.2}, "data.split.train = 0.5: .*sum to 0.7"),
        ({"val": 1.0}, "data.split.train = 0"),
        ({"val": 0.6, "test": 0.6}, r"data\.split\.val = 0\.6: with data\.split\.test = 0\.6 .*1\.2"),
        ({"val": 0.2, "stratify": "z"}, "data.split.stratify = 'z'"),
        ({"val": "a"}, "data.split.val"),
        ({"val": 1e-4}, "split.val = 0.0001: .*the largest 361"),
    ],
)
def test_settings_that_cannot_be(split, message):
    with pytest.raises(ConfigError, match=message):
        build(CONFIG | {"data": {"name": "digits", "clients": 4, "split": split}})


def test_a_client_with_a_rare_class_is_stratified_by_its_own_rows():
    """Clients without one, and data without classes, are dealt as without stratification, bit for bit."""
    rare, common = np.repeat([0, 1], [190, 10]), np.arange(50) % 2
    held = data.FederatedData({"y": np.concatenate([rare, common])}, sizes=[200, 50], names=["rare", "common"])
    for seed in range(10):
        parts = data.split(held, 0.7, 0.15, 0.15, stratify="rare", seed=seed)
        assert [int(part.client(0)["y"].sum()) for part in parts] in ([7, 1, 2], [7, 2, 1])
        plain = data.split(held, 0.7, 0.15, 0.15, seed=seed)
        for one, other in zip(parts, plain, strict=True):
            assert one.sizes.tolist() == other.sizes.tolist()
            assert one.client(1)["y"].tolist() == other.client(1)["y"].tolist()
    assert {int(data.split(held, seed=seed)[2].client(0)["y"].sum()) for seed in range(10)} > {1, 2}
    for y in (np.arange(40.0), np.arange(40)[:, None], None):
        given = {"x": np.arange(40)} | ({} if y is None else {"y": y})
        whole = data.FederatedData(given, sizes=[40])
        for one, other in zip(data.split(whole, stratify="rare"), data.split(whole), strict=True):
            assert one.examples["x"].tolist() == other.examples["x"].tolist()
