"""The fewest units in any combination of sums: against all combinations, and where there are too many for that."""

import itertools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from fedax.sites.protocol import span
from fedax.sites.protocol.span import fewest


def brute(vectors: np.ndarray) -> int:
    """Of each set of units, from small ones: whether a combination is zero on all others and not on all of it."""
    n, rank = vectors.shape[1], np.linalg.matrix_rank(vectors)
    for size in range(1, n + 1):
        for units in itertools.combinations(range(n), size):
            rest = np.delete(vectors, units, axis=1)
            if (np.linalg.matrix_rank(rest) if rest.size else 0) < rank:
                return size
    return n


def subsets(number: int, of: int, seed: int = 0) -> np.ndarray:
    """[number, of] of random 70 % of all units each."""
    rng = np.random.default_rng(seed)
    return (rng.permuted(np.tile(np.arange(of), (number, 1)), axis=1) < 0.7 * of).astype(float)


small = st.integers(1, 4).flatmap(
    lambda m: st.integers(1, 8).flatmap(
        lambda n: st.lists(st.lists(st.integers(-2, 2), min_size=n, max_size=n), min_size=m, max_size=m)
    )
)


@hypothesis.given(small, st.integers(0, 2**31))
@hypothesis.settings(max_examples=400, deadline=None)
def test_all_combinations(rows, seed):
    """Exact; whatever the scale of the vectors and of the units, and with combinations of them beside them."""
    vectors = np.array(rows, float)
    expected = brute(vectors)
    assert fewest(vectors) == expected
    rng = np.random.default_rng(seed)
    more = np.concatenate([vectors, rng.normal(size=(2, len(vectors))) @ vectors])
    more *= 10.0 ** rng.integers(-8, 9, (len(more), 1))
    assert fewest(more * rng.uniform(0.1, 10, vectors.shape[1])) == expected


@hypothesis.given(small)
@hypothesis.settings(max_examples=200, deadline=None)
def test_the_bound_is_one(rows):
    vectors = np.array(rows, float)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(span, "_MOST", 0)
        assert 1 <= fewest(vectors) <= brute(vectors)


def test_what_a_server_could_ask():
    for vectors, expected in [
        ([[0.5, 0.5, 0], [0, 0.5, 0.5]], 2),
        ([[0.5, 0.5, 0], [0.5, 0, 0.5]], 2),
        ([[1, 1, 1, 1], [1, 1, 1, 0]], 1),
        ([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 1, 0]], 2),
        ([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1]], 1),  # all that there is
        ([[1, 2, 3], [2, 4, 6], [1, 2, 3]], 3),
        ([[1, 2, 3], [2, 4, 6 + 1e-5]], 1),
        ([[1, 2, 3], [2, 4, 6 + 1e-12]], 3),  # rounding
        ([[1, 1e-12, 3]], 2),
        ([[0, 0, 0]], 3),
        ([[0, 0, 0], [0, 2, 1]], 2),
    ]:
        assert fewest(np.array(vectors, float)) == expected, vectors
    assert fewest(np.zeros((0, 5))) == 5
    with pytest.raises(ValueError, match="finite"):
        fewest(np.array([[1, np.nan]]))


def test_five_of_120_rows():
    """Exact: no combination has fewer, and the signs of the sums of all others have not."""
    vectors = subsets(5, 120)
    found = fewest(vectors)
    assert 30 <= found <= 60
    weights = np.array(list(itertools.product(range(-3, 4), repeat=5)))[:, :, None]
    counts = np.concatenate([(part * vectors).sum(1).astype(bool).sum(1) for part in np.array_split(weights, 50)])
    assert found == counts[counts > 0].min()


def test_ten_of_1000_rows():
    """Too many hyperplanes: a bound that holds, and says enough."""
    vectors = subsets(10, 1000)
    found = fewest(vectors)
    pairs = [np.count_nonzero(a - b) for a, b in itertools.combinations(vectors, 2)]
    assert 60 <= found <= min(pairs)


@pytest.mark.parametrize(("m", "heavy"), [(2, 0), (3, 0), (3, 5000), (6, 300)])
def test_many_different_units(m, heavy):
    """Weights in general position: all but m − 1 units stay. ``heavy``: so many more units are one and the same."""
    rng = np.random.default_rng(m)
    columns = rng.normal(size=(m, 1000))
    vectors = np.concatenate([columns, np.repeat(columns[:, :1], heavy, axis=1)], axis=1)
    exact = 1000 - (m - 1)
    assert fewest(vectors) == exact if m == 2 else exact / m < fewest(vectors) <= exact


def test_one_sum_of_many_units():
    weights = np.random.default_rng(0).uniform(1, 2, 100_000)
    weights[:7] = 0
    assert fewest(weights[None]) == fewest(np.tile(weights, (20, 1))) == 99_993
