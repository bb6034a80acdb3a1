"""The pooled error of methods: which methods share it, its value, and its false positives."""

import numpy as np
import pytest

from docs.pooled import Pool, compare, pool_of
from fedax.experiments.chance import gap_of


def drawn(rng, spreads, seeds, **gaps):
    """Methods a, b, … with residuals of these standard deviations, and an effect of the seed that all share."""
    shared = rng.normal(scale=3.0, size=seeds)
    return {
        label: gaps.get(label, 0.0) + shared + rng.normal(size=seeds) * spread
        for label, spread in zip("abcdefghij", spreads, strict=False)
    }


def test_the_variance_is_that_of_a_two_way_analysis():
    values = drawn(np.random.default_rng(0), [1.0] * 6, 4)
    y = np.array([*values.values()])
    pool = pool_of(values)
    assert pool.labels == tuple(values) and pool.apart == () and pool.freedom == 5 * 3
    total = ((y - y.mean()) ** 2).sum()
    rest = total - 4 * ((y.mean(1) - y.mean()) ** 2).sum() - 6 * ((y.mean(0) - y.mean()) ** 2).sum()
    assert pool.variance == pytest.approx(rest / 15)
    gap, pooled = compare(pool, "a", "b", values)
    own = gap_of(values["b"], values["a"])
    assert pooled and gap.mean == own.mean == pytest.approx(y[0].mean() - y[1].mean())
    assert gap.error == pytest.approx(np.sqrt(max(2 * pool.variance / 4, own.error**2))) and gap.freedom == 15


def test_those_that_spread_more_leave_the_pool():
    values = drawn(np.random.default_rng(1), [1.0] * 5 + [30.0, 10.0], 3)
    pool = pool_of(values)
    assert pool.apart == ("f", "g") and pool.labels == tuple("abcde")
    gap, pooled = compare(pool, "a", "f", values)
    assert not pooled and gap == gap_of(values["f"], values["a"])
    assert pool_of({label: values[label] for label in "abc"}) is None  # too few to see who spreads more
    assert pool_of({label: value[:1] for label, value in values.items()}) is None  # one seed
    failed = values | {"a": np.array([1.0, -np.inf, 1.0])}
    assert "a" not in pool_of(failed).labels + pool_of(failed).apart


def test_a_pair_that_spreads_more_than_the_pool_keeps_its_own_error():
    pool = Pool(("a", "b"), (), variance=1.0, freedom=28)
    noise = np.array([1.0, -1.0, 0.5, -0.5, 0.0])  # of variance 0.625
    for wide, expected in ((1.0, True), (2.0, True), (3.0, False)):  # against 2: 0.625, 2.5 and 5.6
        values = {"a": 7.0 + wide * noise, "b": np.zeros(5)}
        gap, pooled = compare(pool, "a", "b", values)
        assert pooled is expected and gap.freedom == (28 if expected else 4)
        variance = max(2.0, 0.625 * wide**2)
        assert gap.error == pytest.approx(np.sqrt(variance / 5))


def test_nothing_is_told_much_more_often_than_said_where_nothing_is():
    """A pair of ten methods without a difference: some 5 % where all spread alike, under 12 % where they do not."""
    rng = np.random.default_rng(4)
    for spreads, most in (([1.0] * 10, 0.065), ([2.0, 1.0] + [1.0] * 8, 0.115)):
        p = []
        for _ in range(500):
            values = drawn(rng, spreads, 3)
            p.append(compare(pool_of(values), "a", "b", values)[0].p)
        assert 0.015 < np.mean(np.array(p) < 0.05) < most
