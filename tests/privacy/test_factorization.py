"""Banded Toeplitz strategies: against jax-privacy's coefficients, dense matrices, and other coefficients near by."""

import re

import numpy as np
import pytest

from fedax import ConfigError
from fedax.privacy import banded, noise_of, prefix_error

JAX_PRIVACY = {  # 2.0.0, toeplitz.optimize_banded_toeplitz(rounds, bands) in float64
    (2, 10): [0.8760242666776283, 0.4822670258186057],
    (4, 100): [0.682982576732649, 0.4828022135729521, 0.414457560569424, 0.3586945119952788],
    (8, 1000): [
        *(0.5004987386905996, 0.38678822025014625, 0.35632609898004336, 0.3380476499148509),
        *(0.3233950564353779, 0.3092971841993568, 0.29311908546832693, 0.26922755035707935),
    ],
}


@pytest.mark.parametrize(("bands", "rounds"), JAX_PRIVACY)
def test_the_coefficients_are_those_of_jax_privacy(bands, rounds):
    np.testing.assert_allclose(banded(bands, rounds), JAX_PRIVACY[bands, rounds], atol=1e-6)


def dense(coefficients, rounds):
    return sum(np.diag(np.full(rounds - j, c), -j) for j, c in enumerate(coefficients))


def test_noise_is_that_of_the_inverse_matrix():
    z = np.random.default_rng(0).normal(size=(60, 2, 3))
    for bands in (1, 2, 7, 60):
        c = banded(bands, 60)
        w = noise_of(c, z)
        expected = np.linalg.solve(dense(c, 60), z.reshape(60, -1)).reshape(z.shape)
        np.testing.assert_allclose(w, expected, atol=1e-7)
        for r in range(60):  # the recurrence of a run that goes on
            past = sum(c[j] * w[r - j] for j in range(1, min(bands, r + 1)))
            np.testing.assert_allclose(w[r], (z[r] - past) / c[0], atol=1e-12)
    np.testing.assert_array_equal(noise_of([1.0], z), z)


def test_errors_are_those_of_the_matrices():
    c = banded(5, 40)
    sums = np.tril(np.ones((40, 40))) @ np.linalg.inv(dense(c, 40))
    np.testing.assert_allclose(prefix_error(c, 40), (sums**2).sum(1), rtol=1e-10)


@pytest.mark.parametrize(("bands", "rounds"), [(2, 2), (3, 500), (8, 8), (20, 300), (2, 100_000)])
def test_no_other_coefficients_have_a_smaller_mean_error(bands, rounds):
    c = banded(bands, rounds)
    assert c.shape == (bands,) and np.linalg.norm(c) == pytest.approx(1, abs=1e-12) and (np.diff(c) < 0).all()
    least = prefix_error(c, rounds).mean()
    rng = np.random.default_rng(1)
    for size in (1e-4, 1e-3, 1e-2):
        for _ in range(5):
            other = c * (1 + size * rng.normal(size=bands))
            other /= np.linalg.norm(other)
            assert prefix_error(other, rounds).mean() >= least * (1 - 1e-10)


def test_more_bands_have_smaller_errors_and_one_is_independent_noise():
    assert banded(1, 50).tolist() == [1.0]
    errors = [prefix_error(banded(bands, 50), 50).mean() for bands in (1, 2, 4, 8, 16, 50)]
    assert errors[0] == pytest.approx(25.5) and (np.diff(errors) < 0).all()


def test_separated_participations_move_the_strategy_by_one_clip_each():
    # ‖C x‖² of a client that sends a vector of length 1 in each of its rounds, the worst over directions.
    c = banded(4, 40)
    columns = dense(c, 40)[:, [0, 4, 9, 13, 30]]
    assert np.linalg.norm(columns, 2) ** 2 <= 1 + 1e-12 and np.linalg.norm(columns) ** 2 <= 5 + 1e-12


def test_the_same_numbers_each_time_which_nobody_can_change():
    first = banded(6, 70)
    first[:] = 0
    np.testing.assert_array_equal(banded(6, 70), banded(np.int64(6), 70))
    assert banded(6, 70)[0] > 0


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: banded(0, 10), "bands = 0: give a whole number"),
        (lambda: banded(11, 10), "bands = 11: give at most"),
        (lambda: banded(1, 0), "rounds = 0"),
        (lambda: prefix_error([1.0], 0), "rounds = 0"),
        (lambda: prefix_error([0.0, 1.0], 3), "the first of them not 0"),
        (lambda: noise_of([], [1.0]), "coefficients = []"),
        (lambda: noise_of([1.0, np.nan], [1.0]), "finite numbers"),
        (lambda: noise_of("c", [1.0]), "coefficients = 'c'"),
    ],
)
def test_bad_input(ask, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        ask()
