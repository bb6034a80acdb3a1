"""FederatedData: what the clients hold, and what it refuses."""

import numpy as np
import pytest

from fedax import data
from fedax.errors import DataError

POOLED = {"x": np.arange(12.0).reshape(6, 2), "y": np.arange(6)}


def test_a_partition_gives_each_client_its_own_examples():
    federation = data.FederatedData.from_partition(POOLED, [np.array([5, 0]), np.array([1]), np.array([2, 3, 4])])
    assert federation.sizes.tolist() == [2, 1, 3] and federation.max_size == 3
    assert federation.num_clients == 3 and federation.num_examples == 6
    assert federation.client(0)["y"].tolist() == [5, 0] and federation.client(0)["x"].tolist() == [[10, 11], [0, 1]]
    assert federation.client(2)["y"].tolist() == [2, 3, 4]
    assert np.allclose(federation.weights, [2 / 6, 1 / 6, 3 / 6])


def test_partitions_of_this_package_fit():
    labels = np.random.default_rng(0).integers(0, 3, 90)
    parts = data.dirichlet(labels, clients=3, alpha=0.5)
    federation = data.FederatedData.from_partition({"y": labels}, parts, weights=np.full(3, 1 / 3))
    for i, part in enumerate(parts):
        assert np.array_equal(federation.client(i)["y"], labels[part])
    assert np.allclose(federation.weights, 1 / 3)


def test_clients_and_partition_agree():
    parts = [np.array([0, 3]), np.array([1, 2, 4])]
    one = data.FederatedData.from_partition(POOLED, parts)
    two = data.FederatedData.from_clients([{key: column[part] for key, column in POOLED.items()} for part in parts])
    assert np.array_equal(one.examples["x"], two.examples["x"]) and np.array_equal(one.sizes, two.sizes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: data.FederatedData({}, [1]), "examples: there is no array"),
        (lambda: data.FederatedData(POOLED, [2, 3]), "sum to 5"),
        (lambda: data.FederatedData(POOLED, [6, 0]), "client 1 has 0 examples"),
        (lambda: data.FederatedData(POOLED, np.array([2.0, 4.0])), "sizes: need one whole number"),
        (lambda: data.FederatedData({"x": np.array([1.0, np.nan])}, [2]), r"client 0, examples\['x'\], row 1 is NaN"),
        (lambda: data.FederatedData(POOLED, [2, 4], weights=np.array([0.5, 0.6])), "sum to 1.1"),
        (lambda: data.FederatedData(POOLED, [2, 4], weights=np.array([1.5, -0.5])), "client 1 has weight -0.5"),
        (lambda: data.FederatedData.from_partition(POOLED, [np.array([0, 6])]), r"parts\[0\]"),
        (lambda: data.FederatedData.from_partition(POOLED, []), "parts: the list is empty"),
        (lambda: data.FederatedData.from_clients([{"x": np.ones(2)}, {"z": np.ones(2)}]), r"clients\[1\]"),
        (lambda: data.FederatedData.from_clients([{"x": np.ones((2, 3))}, {"x": np.ones((2, 4))}]), r"clients\[1\]"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(DataError, match=message):
        make()
