"""Cohorts and their weights: what each participation promises, over many draws."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax

DRAWS = 20_000
P = np.array([0.3, 0.02, 0.18, 0.1, 0.4, 0.0])
EQUAL = np.full(6, 1 / 6)
TRACE = fedax.Trace([[4, 1], [0, 3, 2], [5]])


@jax.jit
def _draw(participation, keys, p):
    return jax.vmap(lambda key: participation.draw(key, p, 0))(keys)


def draws(participation, p):
    """ids, weights [DRAWS, S] and share of independent draws."""
    cohort = _draw(participation, jax.random.split(jax.random.key(3), DRAWS), jnp.asarray(p, jnp.float32))
    return tuple(None if leaf is None else np.asarray(leaf) for leaf in cohort)


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
        (fedax.UniformNormalized(2), EQUAL),
    ],
    ids=repr,
)
def test_mean_weight_is_the_clients_weight_and_nobody_comes_twice(participation, p):
    ids, weights, share = draws(participation, p)
    places = participation.places(6)
    assert ids.shape == weights.shape == (DRAWS, places) and weights.min() >= 0
    padded = np.sort(ids, axis=1)
    assert ((np.diff(padded, axis=1) > 0) | (padded[:, 1:] == 6)).all() and ids.min() >= 0 and ids.max() <= 6
    table = weights_by_client(ids, weights)
    assert within(table, p).all()
    proportional = isinstance(participation, fedax.Proportional)
    assert (ids < 6).all() or proportional
    if share is not None:  # Σ_S p_i v_i = share · Σ ω_i v_i for every v, so for every coordinate
        present = table > 0
        np.testing.assert_allclose(np.where(present, p, 0), share[:, None] * table, atol=1e-6)
    assert (share is None) == proportional


def test_uniform_cohorts_are_uniform_over_clients_and_pairs_and_weigh_by_n_over_size():
    ids, weights, share = draws(fedax.Uniform(2), P)
    present = np.zeros((DRAWS, 6))
    np.put_along_axis(present, ids, 1.0, axis=1)
    assert within(present, 2 / 6).all()
    both = np.stack([present[:, a] * present[:, b] for a, b in itertools.combinations(range(6), 2)], axis=1)
    assert within(both, 1 / 15).all()
    np.testing.assert_allclose(weights, P[ids] * 3, rtol=1e-6)
    np.testing.assert_allclose(share, 1 / 3, rtol=1e-6)


def test_uniform_normalized_has_exactly_its_documented_bias():
    ids, weights, share = draws(fedax.UniformNormalized(2), P)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(share, P[ids].sum(axis=1), rtol=1e-5)
    np.testing.assert_allclose(weights, P[ids] / P[ids].sum(axis=1, keepdims=True), rtol=1e-5)
    expected = np.zeros(6)
    subsets = list(itertools.combinations(range(6), 2))
    for subset in subsets:
        expected[list(subset)] += P[list(subset)] / P[list(subset)].sum() / len(subsets)
    table = weights_by_client(ids, weights)
    assert within(table, expected).all() and not within(table, P, errors=10).all()


def test_proportional_merges_repeated_clients_and_never_draws_weight_zero():
    ids, weights, _ = draws(fedax.Proportional(4), P)
    counts = weights * 4
    np.testing.assert_allclose(counts, np.round(counts), atol=1e-5)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)
    assert ((ids == 6) == (weights == 0)).all()  # an empty place has no weight, and a client has some
    assert not (ids == 5).any()
    assert (weights.max(axis=1) == 1).mean() == pytest.approx(np.sum(P**4), abs=0.01)
    for position in (0, 3, 5):  # a weight of zero at the edges of the table
        p = np.insert(np.full(5, 0.2), position, 0.0)
        assert not (draws(fedax.Proportional(4), p)[0] == position).any()


def test_a_trace_replays_ragged_cohorts():
    for index, cohort in enumerate([[4, 1], [0, 3, 2], [5]]):
        ids, weights, share = TRACE.draw(None, jnp.asarray(P, jnp.float32), index)
        there = np.asarray(ids) < 6
        assert np.asarray(ids)[there].tolist() == cohort and ids.shape == (3,) and (np.asarray(ids)[~there] == 6).all()
        total = P[cohort].sum()
        np.testing.assert_allclose(np.asarray(weights)[there], P[cohort] / (total or 1), rtol=1e-6)
        assert (np.asarray(weights)[~there] == 0).all() and float(share) == pytest.approx(total)
    assert TRACE.places(6) == 3
    TRACE.validate(6, 3)


@pytest.mark.parametrize("kind", [fedax.Uniform, fedax.UniformNormalized])
def test_a_cohort_larger_than_the_federation_is_refused(kind):
    kind(6).validate(6, 1)
    with pytest.raises(fedax.ConfigError, match="size = 7: a cohort has at most all 6 clients"):
        kind(7).validate(6, 1)


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("kind", [fedax.Uniform, fedax.UniformNormalized, fedax.Proportional])
@pytest.mark.parametrize("size", [0, -1, 2.0, True, "2", None])
def test_a_size_that_is_no_count_is_refused(kind, size):
    with pytest.raises(fedax.ConfigError, match=r"^size = .*: give a whole number of at least 1"):
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
        ([[1, 2], [2, 0, 2]], r"cohorts\[1\] = \[2, 0, 2\]: name each client once"),
    ],
)
def test_traces_that_name_no_clients_are_refused(cohorts, message):
    with pytest.raises(fedax.ConfigError, match=message):
        fedax.Trace(cohorts)


def test_traces_that_do_not_fit_the_run_are_refused():
    with pytest.raises(fedax.ConfigError, match=r"cohorts = .*: give one for each of the 4 rounds"):
        TRACE.validate(6, 4)
    with pytest.raises(fedax.ConfigError, match="cohorts = 5: there are 5 clients, numbered from 0"):
        TRACE.validate(5, 3)
