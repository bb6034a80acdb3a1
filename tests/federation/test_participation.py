"""Cohorts and their weights: the declared properties of each participation, over many draws."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.federation.participation import _Proportional

DRAWS = 20_000
P = np.array([0.3, 0.02, 0.18, 0.1, 0.4, 0.0])
EQUAL = np.full(6, 1 / 6)
TRACE = fedax.Trace([[4, 1], [0, 3, 2], [5]])


@jax.jit
def _draw(participation, keys, p):
    return jax.vmap(lambda key: participation.draw(key, p, 0))(keys)


def draws(participation, p, count=DRAWS):
    """ids and weights [count, S] of independent draws."""
    keys = jax.random.split(jax.random.key(3), count)
    return tuple(map(np.asarray, _draw(participation.bind(p), keys, jnp.asarray(p, jnp.float32))))


def weights_by_client(ids, weights, clients=6):
    """ω_i of every client in every draw, 0 where it is absent: [count, N]."""
    table = np.zeros((len(ids), clients + 1))
    np.put_along_axis(table, ids, weights, axis=1)  # padding, if any, goes to column N with weight 0
    assert (table[:, clients] == 0).all()
    return table[:, :clients]


def within(sample, expected, errors=4):
    """The column means are the expected ones within so many standard errors."""
    error = sample.std(axis=0) / np.sqrt(len(sample))
    return np.abs(sample.mean(axis=0) - expected) <= errors * error + 1e-6


@pytest.mark.parametrize(
    ("participation", "p"),
    [
        (fedax.Full(), P),
        (fedax.Uniform(2), P),
        (fedax.Uniform(6), P),
        (fedax.Proportional(4), P),
        (fedax.Proportional(9), P),
        (fedax.Systematic(1), P),
        (fedax.Systematic(3), P),
        (fedax.Systematic(2), EQUAL),
        (fedax.UniformNormalized(2), EQUAL),
    ],
    ids=repr,
)
def test_mean_weight_is_the_clients_weight_and_nobody_comes_twice(participation, p):
    ids, weights = draws(participation, p)
    places = participation.places(6)
    assert ids.shape == weights.shape == (DRAWS, places) and weights.min() >= 0
    padded = np.sort(ids, axis=1)
    assert ((np.diff(padded, axis=1) > 0) | (padded[:, 1:] == 6)).all() and ids.min() >= 0 and ids.max() <= 6
    table = weights_by_client(ids, weights)
    assert within(table, p).all()
    assert (ids < 6).all() or isinstance(participation, fedax.Proportional)


def test_uniform_cohorts_are_uniform_over_clients_and_pairs_and_weigh_by_n_over_size():
    ids, weights = draws(fedax.Uniform(2), P)
    present = np.zeros((DRAWS, 6))
    np.put_along_axis(present, ids, 1.0, axis=1)
    assert within(present, 2 / 6).all()
    both = np.stack([present[:, a] * present[:, b] for a, b in itertools.combinations(range(6), 2)], axis=1)
    assert within(both, 1 / 15).all()
    np.testing.assert_allclose(weights, P[ids] * 3, rtol=1e-6)


def one_heavy(n: int) -> np.ndarray:
    return np.r_[0.9, np.full(n - 1, 0.1 / (n - 1))]


LOGNORMAL = np.random.default_rng(1).lognormal(sigma=2.0, size=50)


@pytest.mark.parametrize(
    ("p", "size"),
    [
        (np.full(10, 0.1), 3),
        (np.arange(1, 13) / 78, 4),
        (LOGNORMAL / LOGNORMAL.sum(), 5),
        (one_heavy(10), 3),
        (one_heavy(2), 1),
        (np.array([0.5, 0.0, 0.3, 0.2]), 3),
        (np.array([0.5, 0.0, 0.3, 0.2]), 4),
        (np.random.default_rng(2).lognormal(sigma=1.0, size=1500), 200),  # in blocks
    ],
    ids=["equal", "linear", "lognormal", "heavy", "two", "as many as have weight", "all", "many"],
)
def test_systematic_cohorts_have_weights_that_sum_to_one_and_the_inclusion_probabilities_that_are_promised(p, size):
    p = p / p.sum()
    count = DRAWS if size < 100 else DRAWS // 5  # a cohort of many tells more
    ids, weights = draws(fedax.Systematic(size), p, count)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)
    assert (np.diff(np.sort(ids, axis=1), axis=1) > 0).all() and ids.max() < len(p)  # each at most once
    chance = np.ones(len(p))  # π by its definition: cut what is above 1, share the rest out anew
    if size < len(p):
        chance = size * p
        while chance.max() > 1 + 1e-12:
            chance[chance > 1] = 1.0
            free = chance < 1
            chance[free] = p[free] * (size - np.sum(~free)) / max(p[free].sum(), 1e-300)
    frequency = np.bincount(ids.ravel(), minlength=len(p)) / count
    assert (np.abs(frequency - chance) <= 4 * np.sqrt(chance * (1 - chance) / count) + 1e-9).all()
    of_client = np.divide(p, chance, out=np.zeros_like(p), where=chance > 0)
    np.testing.assert_allclose(weights, of_client[ids], rtol=1e-5)


def test_systematic_cohorts_of_equal_clients_are_uniform_over_pairs():
    ids, _ = draws(fedax.Systematic(2), EQUAL)
    present = np.zeros((DRAWS, 6))
    np.put_along_axis(present, ids, 1.0, axis=1)
    both = np.stack([present[:, a] * present[:, b] for a, b in itertools.combinations(range(6), 2)], axis=1)
    assert within(both, 1 / 15).all()


def test_systematic_cohorts_need_enough_clients_that_weigh_something():
    with pytest.raises(fedax.ConfigError, match=r"size = 3: only 2 .*weight above 0"):
        fedax.Systematic(3).bind(np.array([0.5, 0.5, 0.0, 0.0]))


def test_uniform_normalized_has_exactly_its_documented_bias():
    ids, weights = draws(fedax.UniformNormalized(2), P)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(weights, P[ids] / P[ids].sum(axis=1, keepdims=True), rtol=1e-5)
    expected = np.zeros(6)
    subsets = list(itertools.combinations(range(6), 2))
    for subset in subsets:
        expected[list(subset)] += P[list(subset)] / P[list(subset)].sum() / len(subsets)
    table = weights_by_client(ids, weights)
    assert within(table, expected).all() and not within(table, P, errors=10).all()


def test_proportional_merges_repeated_clients_and_never_draws_weight_zero():
    ids, weights = draws(fedax.Proportional(4), P)
    counts = weights * 4
    np.testing.assert_allclose(counts, np.round(counts), atol=1e-5)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)
    assert ((ids == 6) == (weights == 0)).all()  # an empty place has no weight, and a client has some
    assert not (ids == 5).any()
    assert (weights.max(axis=1) == 1).mean() == pytest.approx(np.sum(P**4), abs=0.01)
    for position in (0, 3, 5):  # a weight of zero at the edges of the table
        p = np.insert(np.full(5, 0.2), position, 0.0)
        assert not (draws(fedax.Proportional(4), p)[0] == position).any()


def test_proportional_draws_of_many_clients_reach_all_of_them():
    n, size, cohorts = 2**20 + 5, 2**17, 8
    p = np.random.default_rng(0).exponential(size=n) * np.r_[np.zeros(3), np.ones(n - 5), np.zeros(2)]
    p *= 0.2 / p.sum()
    p[3] += 0.8  # beyond it float32's sums have steps of a third of what the others weigh
    bound, total = fedax.Proportional(size).bind(p), np.zeros(n)
    draw = jax.jit(lambda bound, key, p: bound.draw(key, p, 0))
    for key in jax.random.split(jax.random.key(5), cohorts):
        ids, weights = map(np.asarray, draw(bound, key, jnp.asarray(p, jnp.float32)))
        assert weights.sum() == pytest.approx(1, abs=1e-4) and ((ids < n) == (weights > 0)).all()
        total[ids[ids < n]] += np.round(weights[ids < n] * size)
    drawn = cohorts * size
    assert total.sum() == drawn and not total[p == 0].any()
    # Poisson counts of each client; neighbours would share their draws if sums were float32's.
    missed, expected = np.sum((total == 0) & (p > 0)), np.exp(-p[p > 0] * drawn)
    assert abs(missed - expected.sum()) < 4 * np.sqrt(np.sum(expected * (1 - expected)))
    spread = np.sum((total - p * drawn)[p > 0] ** 2 / (p * drawn)[p > 0]) / np.sum(p > 0)
    assert spread == pytest.approx(1, abs=0.02)
    few = np.random.default_rng(1).dirichlet(np.ones(40))
    counts = np.zeros(40)
    for key in jax.random.split(jax.random.key(6), 100):
        ids, weights = map(np.asarray, draw(_Proportional(1000, few), key, jnp.asarray(few, jnp.float32)))
        counts += np.bincount(ids, weights * 1000, minlength=41)[:40]
    assert (np.abs(counts - few * 1e5) < 4.5 * np.sqrt(few * 1e5)).all()


def test_a_trace_replays_ragged_cohorts():
    for index, cohort in enumerate([[4, 1], [0, 3, 2], [5]]):
        ids, weights = TRACE.draw(None, jnp.asarray(P, jnp.float32), index)
        there = np.asarray(ids) < 6
        assert np.asarray(ids)[there].tolist() == cohort and ids.shape == (3,) and (np.asarray(ids)[~there] == 6).all()
        total = P[cohort].sum()
        np.testing.assert_allclose(np.asarray(weights)[there], P[cohort] / (total or 1), rtol=1e-6)
        assert (np.asarray(weights)[~there] == 0).all()
    assert TRACE.places(6) == 3
    TRACE.validate(6, 3)


@pytest.mark.parametrize("kind", [fedax.Uniform, fedax.UniformNormalized, fedax.Systematic])
def test_a_cohort_larger_than_the_federation_is_refused(kind):
    kind(6).validate(6, 1)
    with pytest.raises(fedax.ConfigError, match="size = 7: a cohort has at most all 6 clients"):
        kind(7).validate(6, 1)


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("kind", [fedax.Uniform, fedax.UniformNormalized, fedax.Proportional, fedax.Systematic])
@pytest.mark.parametrize("size", [0, -1, 2.0, True, "2", None])
def test_a_size_that_is_no_count_is_refused(kind, size):
    with pytest.raises(fedax.ConfigError, match=r"^size = .*whole number of at least 1"):
        kind(size)


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("cohorts", "message"),
    [
        ([], r"cohorts = \[\]: give"),
        (5, "cohorts = 5"),
        ([[0], []], r"cohorts\[1\] = \[\]: give the numbers"),
        ([[0], 1], r"cohorts\[1\] = 1"),
        ([[0.0]], r"cohorts\[0\]"),
        ([[-1]], r"cohorts\[0\] = \[-1\]"),
        ([[True]], r"cohorts\[0\]"),
        ([["a"]], r"cohorts\[0\]"),
        ([[1, 2], [2, 0, 2]], r"cohorts\[1\] = \[2, 0, 2\]: .*once"),
    ],
)
def test_traces_that_name_no_clients_are_refused(cohorts, message):
    with pytest.raises(fedax.ConfigError, match=message):
        fedax.Trace(cohorts)


def test_traces_that_do_not_fit_the_run_are_refused():
    with pytest.raises(fedax.ConfigError, match=r"cohorts = .*each of the 4 rounds"):
        TRACE.validate(6, 4)
    with pytest.raises(fedax.ConfigError, match=r"cohorts = 5: .*5 clients, numbered"):
        TRACE.validate(5, 3)
