"""Partitions: the properties of all of them, and the distribution of each."""

import itertools

import numpy as np
import pytest

from fedax import data
from fedax.errors import ConfigError, DataError
from fedax.experiments import build

LABELS = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 300))
PARTITIONS = {
    "iid": lambda seed: data.iid(3000, clients=7, seed=seed),
    "dirichlet": lambda seed: data.dirichlet(LABELS, clients=16, alpha=0.1, seed=seed),
    "dirichlet_labels": lambda seed: data.dirichlet_labels(LABELS, clients=7, alpha=0.1, seed=seed),
    "shards": lambda seed: data.shards(LABELS, clients=20, seed=seed),
    "dominant": lambda seed: data.dominant(LABELS, clients=10, share=0.8, seed=seed),
    "power_law": lambda seed: data.power_law(3000, clients=7, seed=seed),
    "pathological": lambda seed: data.pathological(LABELS, clients=25, classes=3, seed=seed),
    "pathological, random": lambda seed: data.pathological(LABELS, clients=25, classes=3, seed=seed, balanced=False),
    "inner_dirichlet": lambda seed: data.inner_dirichlet(LABELS, [500, 1500, 1000], alpha=0.3, seed=seed),
    "by_size": lambda seed: data.by_size(3000, [1, 999, 2000], seed=seed),
    "growing": lambda seed: data.growing(3000, clients=7, seed=seed),
    "by_value": lambda seed: data.by_value(np.arange(3000.0), clients=7, strictness=0.5, seed=seed),
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
    with pytest.raises(ConfigError, match=r"min_size = 301: .*at most 300"):
        data.dirichlet(LABELS, clients=10, alpha=0.1, min_size=301)
    with pytest.raises(ConfigError, match=r"min_size = 10: .*smallest client got \d"):
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


def test_pathological_clients_hold_so_many_classes():
    for clients, classes in ((25, 3), (10, 1), (4, 10), (13, 2)):
        held = counts(data.pathological(LABELS, clients, classes))
        assert ((held > 0).sum(axis=1) == classes).all()
        holders = (held > 0).sum(axis=0)
        assert holders.max() - holders.min() <= 1
        for c in range(10):  # a class is cut evenly
            own = held[held[:, c] > 0, c]
            assert own.max() - own.min() <= 1


def test_pathological_clients_hold_random_classes_as_in_niid_bench():
    """Client i holds class i mod 10, and another that is drawn: 9 of 10 a class by chance, so that sizes differ."""
    drawn = np.zeros((10, 10))
    for seed in range(300):
        held = counts(data.pathological(LABELS, 10, 2, seed=seed, balanced=False))
        assert ((held > 0).sum(axis=1) == 2).all() and (np.diagonal(held) > 0).all()
        drawn += held > 0
        for c in range(10):
            own = held[held[:, c] > 0, c]
            assert own.max() - own.min() <= 1
    assert held.sum(axis=1).max() > 1.5 * held.sum(axis=1).min()
    off = drawn[~np.eye(10, dtype=bool)]
    assert abs(off - 300 / 9).max() < 6 * np.sqrt(300 / 9 * 8 / 9)


def test_inner_dirichlet_has_the_sizes_and_the_ratios():
    labels = np.repeat(np.arange(10), 5000)
    sizes = [1000, 3000] * 10 + [10_000]
    parts = data.inner_dirichlet(labels, sizes, alpha=0.1)
    assert [len(part) for part in parts] == sizes
    most = (counts(parts, labels).max(axis=1) / sizes)[:20]
    draws = np.random.default_rng(5).dirichlet(np.full(10, 0.1), size=4000).max(axis=1)
    assert np.median(most) == pytest.approx(np.median(draws), abs=0.15)
    equal = data.inner_dirichlet(LABELS, [429] * 4 + [428] * 3, alpha=0.1, seed=2)
    same = data.dirichlet_labels(LABELS, clients=7, alpha=0.1, seed=2)
    assert all(np.array_equal(a, b) for a, b in zip(equal, same, strict=True))


def test_sizes_grow_by_their_law():
    laws = {"linear": lambda i: i, "square": lambda i: i**2, "exponential": np.exp}
    for law, f in laws.items():
        sizes = np.array([len(part) for part in data.growing(10_000, clients=8, law=law, min_size=20)])
        shares = f(np.arange(1.0, 9)) / f(np.arange(1.0, 9)).sum()
        assert sizes.sum() == 10_000 and np.abs(sizes - (20 + 9840 * shares)).max() <= 1
    assert len(data.growing(5000, clients=1000, law="exponential")) == 1000  # exp(1000) is no number
    assert [len(part) for part in data.by_size(3000, [1, 999, 2000])] == [1, 999, 2000]


def test_by_value_from_random_to_sorted():
    values = np.random.default_rng(2).normal(50, 10, 3000)
    spread = []
    for strictness in (0.0, 0.5, 1.0):
        parts = data.by_value(values, clients=5, strictness=strictness)
        assert {len(part) for part in parts} == {600}
        spread.append(np.std([values[part].mean() for part in parts]) / 10)
    assert spread[0] < 0.1 and spread[0] < spread[1] < spread[2]
    # The means of the fifths of a standard normal are -1.40, -.53, 0, .53, 1.40; blended by half, 1/sqrt(2) of it.
    assert spread[2] == pytest.approx(0.947, abs=0.03) and spread[1] == pytest.approx(0.947 / np.sqrt(2), abs=0.05)
    ends = [(values[part].min(), values[part].max()) for part in parts]
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ends))
    assert len(data.by_value(np.zeros(9), clients=2)) == 2


def test_values_of_a_column_in_groups():
    column = np.array([40, 7, 40, 2154, 7, 8])
    assert [part.tolist() for part in data.by_column(column, group_size=3)] == [[0, 1, 2, 4, 5], [3]]
    assert [part.tolist() for part in data.by_column(column, group_size=2)] == [[1, 4, 5], [0, 2, 3]]


@pytest.mark.parametrize(
    "partition",
    [
        {"partition": "pathological", "clients": 6, "classes": 2},
        {"partition": "pathological", "clients": 12, "classes": 2, "balanced": False},
        {"partition": "inner-dirichlet", "sizes": [1000, 400, 42], "alpha": 0.5},
        {"partition": "size", "sizes": [1000, 400, 42]},
        {"partition": "growing", "clients": 6, "law": "square"},
        {"partition": "value", "clients": 6, "strictness": 0.9},
    ],
)
def test_in_a_configuration(partition):
    tables = {"run": {"rounds": 1}, "methods": [{"name": "fedavg", "lr": 0.1}]}
    experiment = build(tables | {"data": {"name": "digits", **partition}})
    assert experiment.data.num_examples == 1442 and experiment.data.num_clients == partition.get("clients", 3)
    assert build(experiment.config).config == experiment.config
    for more in ({"clients": None} if "clients" in partition else {"clients": 3}, {"colour": 1}):
        with pytest.raises(ConfigError, match=r"data\.(clients|colour)"):
            build(tables | {"data": {"name": "digits", **partition, **more}})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: data.pathological(LABELS, 4, 2), "classes = 2: .*cannot hold 10"),
        (lambda: data.pathological(LABELS, 4, 11), "classes = 11: there are 10"),
        (lambda: data.pathological(LABELS, 9, 2, balanced=False), "clients = 9: .*take 10 clients or more"),
        (lambda: data.pathological(np.repeat([0, 1], [3, 60]), 6, 2), "clients = 6: a class has 3 examples"),
        (lambda: data.by_size(10, [5, 4]), "sizes = .*there are 10 examples"),
        (lambda: data.by_size(10, [10, 0]), "sizes = "),
        (lambda: data.growing(100, 5, law="cubic"), "law = 'cubic'"),
        (lambda: data.growing(100, 5, min_size=30), "min_size = 30"),
        (lambda: data.by_value(np.arange(4.0), 2, strictness=1.5), "strictness = 1.5"),
        (lambda: data.by_column(np.arange(4), group_size=0), "group_size = 0"),
        (lambda: data.iid(3, clients=4), "clients = 4: there are 3 examples"),
        (lambda: data.iid(3, clients=0), "clients = 0"),
        (lambda: data.iid(3, clients=1, seed=-1), "seed = -1"),
        (lambda: data.dirichlet(LABELS, clients=2, alpha=0.0), "alpha = 0"),
        (lambda: data.dirichlet(LABELS, clients=2, alpha=0.1, min_size=0), "min_size = 0"),
        (lambda: data.dirichlet_labels(LABELS[:3], clients=4, alpha=0.1), "clients = 4"),
        (lambda: data.dirichlet_labels(LABELS, clients=4, alpha=float("nan")), "alpha = nan"),
        (lambda: data.shards(LABELS[:7], clients=4), "per_client = 2: .*give at most 1"),
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
