"""Partitions: what every one of them promises, and the law of each."""

import numpy as np
import pytest

from fedax import data
from fedax.errors import ConfigError, DataError

LABELS = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 300))
PARTITIONS = {
    "iid": lambda seed: data.iid(3000, clients=7, seed=seed),
    "dirichlet": lambda seed: data.dirichlet(LABELS, clients=16, alpha=0.1, seed=seed),
    "dirichlet_labels": lambda seed: data.dirichlet_labels(LABELS, clients=7, alpha=0.1, seed=seed),
    "shards": lambda seed: data.shards(LABELS, clients=20, seed=seed),
    "dominant": lambda seed: data.dominant(LABELS, clients=10, share=0.8, seed=seed),
    "power_law": lambda seed: data.power_law(3000, clients=7, seed=seed),
}


def counts(parts, labels=LABELS):
    """[N, C] examples of each class at each client."""
    return np.array([np.bincount(labels[part], minlength=10) for part in parts])


@pytest.mark.parametrize("make", PARTITIONS.values(), ids=PARTITIONS)
def test_every_index_once_and_a_function_of_the_seed(make):
    parts = make(0)
    assert all(part.dtype == np.int64 and len(part) for part in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(3000))
    assert all(np.array_equal(a, b) for a, b in zip(parts, make(0), strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(parts, make(1), strict=True))


def test_iid_is_even_and_mixed():
    parts = data.iid(3000, clients=7)
    assert sorted(map(len, parts)) == [428, 428, 428, 429, 429, 429, 429]
    # 43 of each class expected, with a standard deviation of about 6.
    assert counts(parts).min() > 15
    assert counts(parts).max() < 75


def test_dirichlet_keeps_the_least_size_and_stops_serving_full_clients():
    for seed in range(5):
        parts = data.dirichlet(LABELS, clients=16, alpha=0.1, min_size=25, seed=seed)
        sizes = np.array([len(part) for part in parts])
        assert sizes.min() >= 25
        # A client is served until it holds n/N, so that one class at most comes on top.
        assert sizes.max() < 3000 / 16 + 300
        assert len(set(sizes)) > 1


def test_dirichlet_follows_the_published_procedure_from_the_same_draws():
    """A plain transcription, fed with the same proportions, gives the same counts."""
    clients, alpha, sizes = 5, 0.5, np.array([300, 40, 100])
    labels = np.repeat(np.arange(3), sizes)
    generator = np.random.default_rng(3)
    held = [0] * clients
    expected = []
    for size in sizes:
        q = generator.dirichlet(np.repeat(alpha, clients))
        q = np.array([p * (n < sizes.sum() / clients) for p, n in zip(q, held, strict=True)])
        cuts = (np.cumsum(q / q.sum()) * size).astype(int)[:-1]
        expected.append([len(piece) for piece in np.split(np.arange(size), cuts)])
        held = [a + b for a, b in zip(held, expected[-1], strict=True)]
    assert min(held) >= 10, "the first draw must do, or the transcription would have to draw again"
    parts = data.dirichlet(labels, clients, alpha, seed=3)
    assert np.array_equal(np.array([np.bincount(labels[part], minlength=3) for part in parts]).T, expected)


def test_alpha_sets_how_much_clients_differ():
    def distance(make, alpha):
        held = counts(make(LABELS, 10, alpha))
        return np.abs(held / held.sum(axis=1, keepdims=True) - 0.1).sum(axis=1).mean()

    for make in (data.dirichlet, data.dirichlet_labels):
        assert distance(make, 0.1) > distance(make, 1.0) + 0.2 > distance(make, 1e4) + 0.5
        assert distance(make, 1e4) < 0.2  # drawing 300 examples one by one gives 0.14


def test_a_tiny_alpha_underflows_to_one_client_a_class_and_not_to_nan():
    held = counts(data.dirichlet(LABELS, clients=10, alpha=1e-6, seed=0))
    assert np.array_equal(held, 300 * (held > 0))
    held = counts(data.dirichlet_labels(LABELS, clients=10, alpha=1e-6, seed=0))
    assert np.array_equal(held.sum(axis=1), np.full(10, 300))


def test_dirichlet_labels_are_drawn_per_client_in_equal_sizes():
    parts = data.dirichlet_labels(LABELS, clients=7, alpha=0.5)
    assert sorted(map(len, parts)) == [428, 428, 428, 429, 429, 429, 429]
    # With many more examples of each class than a client takes, no class runs out, and the mean ratio of the most
    # frequent label is that of the Dirichlet law: 0.8 to 0.9 for ten classes and α = 0.1 (0.1 for equal ratios).
    labels = np.repeat(np.arange(10), 2000)
    held = counts(data.dirichlet_labels(labels, clients=200, alpha=0.1), labels)
    draws = np.random.default_rng(5).dirichlet(np.full(10, 0.1), size=4000).max(axis=1)
    assert np.median(held.max(axis=1) / 100) == pytest.approx(np.median(draws), abs=0.12)


def test_min_size_that_cannot_be_met_ends_in_an_error():
    with pytest.raises(ConfigError, match=r"min_size = 301: 10 clients, 3000 examples: give at most 300"):
        data.dirichlet(LABELS, clients=10, alpha=0.1, min_size=301)
    with pytest.raises(ConfigError, match=r"min_size = 10: in 1000 draws the smallest client got \d examples"):
        data.dirichlet(LABELS % 2, clients=16, alpha=0.01)
    with pytest.raises(ConfigError, match="min_size = 10: 301 clients"):
        data.power_law(3000, clients=301)


def test_shards_hold_neighbouring_labels():
    parts = data.shards(LABELS, clients=10, per_client=3)
    assert [len(part) for part in parts] == [300] * 10
    held = counts(parts)
    assert np.array_equal(held % 100, np.zeros_like(held))  # whole shards of one class
    assert (held > 0).sum(axis=1).max() <= 3
    # Which examples of a class are in a shard is random too: no shard is a third of its class in the order of the data.
    for client, label in np.argwhere(held == 100):
        shard = parts[client][LABELS[parts[client]] == label]
        assert not (np.flatnonzero(label == LABELS).reshape(3, 100) == shard).all(axis=1).any()


def test_dominant_is_the_published_share():
    held = counts(data.dominant(LABELS, clients=10, share=0.8))
    assert np.array_equal(np.diag(held), np.full(10, 240))
    others = held[~np.eye(10, dtype=bool)]
    assert set(others) == {6, 7}  # 60 over nine clients
    assert np.array_equal(counts(data.dominant(LABELS, clients=10, share=1.0)), 300 * np.eye(10))
    # Two clients a class share its ρ.
    twice = counts(data.dominant(LABELS, clients=20, share=0.8))
    assert np.array_equal(twice[np.arange(20), np.arange(20) % 10], np.full(20, 120))


def test_by_column_goes_in_the_order_of_the_ids():
    column = np.array([40, 7, 40, 2154, 7], np.int16)
    assert [part.tolist() for part in data.by_column(column)] == [[1, 4], [0, 2], [3]]
    assert all(part.dtype == np.int64 for part in data.by_column(column))


def test_power_law_sizes():
    sizes = np.array([len(part) for part in data.power_law(10_000, clients=20, exponent=1.5, min_size=5)])
    shares = np.arange(1.0, 21) ** -1.5 / (np.arange(1.0, 21) ** -1.5).sum()
    assert sizes.sum() == 10_000
    assert np.abs(sizes - (5 + 9900 * shares)).max() <= 1
    assert {len(part) for part in data.power_law(100, clients=10, exponent=0.0)} == {10}
    assert min(counts(data.power_law(3000, clients=2, exponent=0.0))[0]) > 100  # alike in contents


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: data.iid(3, clients=4), "clients = 4: there are 3 examples"),
        (lambda: data.iid(3, clients=0), "clients = 0"),
        (lambda: data.iid(3, clients=1, seed=-1), "seed = -1"),
        (lambda: data.dirichlet(LABELS, clients=2, alpha=0.0), "alpha = 0"),
        (lambda: data.dirichlet(LABELS, clients=2, alpha=0.1, min_size=0), "min_size = 0"),
        (lambda: data.dirichlet_labels(LABELS[:3], clients=4, alpha=0.1), "clients = 4"),
        (lambda: data.dirichlet_labels(LABELS, clients=4, alpha=float("nan")), "alpha = nan"),
        (lambda: data.shards(LABELS[:7], clients=4), "per_client = 2: 4 clients, 7 examples: give at most 1"),
        (lambda: data.dominant(LABELS, clients=9, share=0.8), "clients = 9: there are 10 classes"),
        (lambda: data.dominant(LABELS, clients=10, share=1.1), "share = 1.1"),
        (lambda: data.dominant(np.repeat([0, 1], 30), clients=60, share=0.02), "share = 0.02: .* would have no"),
        (lambda: data.power_law(100, clients=4, exponent=-1.0), "exponent = -1"),
    ],
)
def test_impossible_arguments(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_bad_labels():
    for labels in (np.zeros((3, 2)), np.array([]), np.array([None, 1]), np.array([0.0, np.nan])):
        with pytest.raises(DataError, match="labels: "):
            data.shards(labels, clients=1, per_client=1)
    with pytest.raises(DataError, match="column: "):
        data.by_column(np.zeros((3, 2)))
    with pytest.raises(DataError, match="one class only"):
        data.dominant(np.zeros(10), clients=2, share=0.8)
