"""Noise that is correlated over rounds, by a banded Toeplitz matrix (matrix factorisation, DP-FTRL).

The server adds w = C⁻¹ z instead of the independent noise z: w_r for round r, so that the sums over rounds, which
are what the model is made of, are less noisy. C is lower triangular with C_{r,r−j} = c_j for j < bands. An upload of
round r enters C x in ``bands`` rows; those of two rounds that are at least ``bands`` apart enter different rows. So a
client moves C x by the clip times ‖c‖ = 1 for each participation, as it moves a sum.
"""

import functools
import math
from typing import Any

import numpy as np

from fedax.errors import ConfigError
from fedax.numbers import MOST, check_count


def banded(bands: int, rounds: int) -> np.ndarray:
    """The coefficients c with the least mean squared error of all sums over the first 1, 2, …, ``rounds`` rounds.

    Minimises ‖c‖² · mean over r of E‖Σ_{s≤r} w_s‖² with w = C⁻¹ z, by L-BFGS from the coefficients of the square root
    of the matrix of sums; the same numbers each time.

    Args:
        bands: number of coefficients, 1 to ``rounds``; 1 is independent noise. A client has to take part at most once
            in so many rounds in a row.
        rounds: for which the sums are taken, ≥ 1.

    Returns:
        c of shape [bands], c_0 > 0, of norm 1.

    Raises:
        ConfigError: numbers out of range.

    Example:
        >>> banded(1, 100).tolist()
        [1.0]
        >>> banded(4, 100).round(3).tolist()
        [0.683, 0.483, 0.414, 0.359]
        >>> float((prefix_error(banded(4, 100), 100).mean() / prefix_error(banded(1, 100), 100).mean()).round(3))
        0.304

    Sources: Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization"; McKenna 2024, "Scaling up the banded
    matrix factorization mechanism", Section 4.
    """
    check_count("rounds", rounds, 1, MOST)
    check_count("bands", bands)
    if bands > rounds:
        raise ConfigError("bands", bands, f"give at most the number of rounds, {rounds}")
    return _banded(int(bands), int(rounds)).copy()


@functools.lru_cache(maxsize=64)
def _banded(bands: int, rounds: int) -> np.ndarray:
    from scipy.optimize import minimize
    from scipy.signal import lfilter

    left = np.arange(rounds, 0, -1) / rounds  # the share of the sums in which b_i² counts

    def error(rest: np.ndarray) -> tuple[float, np.ndarray]:
        """Its logarithm for c = (1, rest), as it does not change with c's length; and the gradient."""
        c = np.concatenate([[1.0], rest])
        b = lfilter([1.0], c, np.ones(rounds))  # of B = A C⁻¹
        back = lfilter([1.0], c, (left * b)[::-1])[::-1]
        total, norm = left @ b**2, c @ c
        by_c = np.array([c[j] / norm - back[j:] @ b[: rounds - j] / total for j in range(1, bands)])
        return math.log(norm * total), 2 * by_c

    if bands == 1:
        return np.ones(1)
    k = np.arange(1, bands)
    options = {"ftol": 1e-15, "gtol": 1e-9, "maxcor": 20}
    start, limits = np.cumprod((2 * k - 1) / (2 * k)), [(0.0, 1.0)] * (bands - 1)  # beyond, the filter is unstable
    found = minimize(error, start, jac=True, method="L-BFGS-B", bounds=limits, options=options).x
    c = np.concatenate([[1.0], found])
    return c / np.linalg.norm(c)


def noise_of(coefficients: Any, z: Any) -> np.ndarray:
    """The correlated noise w = C⁻¹ z: w_r = (z_r − Σ_{j≥1} c_j w_{r−j}) / c_0.

    Args:
        coefficients: c of shape [bands], c_0 ≠ 0.
        z: independent noise of shape [rounds, ...].

    Returns:
        w of the shape of z.

    Raises:
        ConfigError: coefficients that are not such.

    Example:
        >>> noise_of([1.0, 0.5], [1.0, 0.0, 0.0]).tolist()
        [1.0, -0.5, 0.25]
    """
    from scipy.signal import lfilter

    return np.asarray(lfilter([1.0], _checked(coefficients), np.asarray(z, float), axis=0))


def prefix_error(coefficients: Any, rounds: int) -> np.ndarray:
    """The expected squared error of each sum of noise over the first rounds, E(Σ_{s≤r} w_s)² for z of variance 1.

    Args:
        coefficients: c of shape [bands], c_0 ≠ 0.
        rounds: ≥ 1.

    Returns:
        Shape [rounds], not falling; independent noise has 1, 2, 3, ….

    Raises:
        ConfigError: numbers out of range, or coefficients that are not such.

    Example:
        >>> prefix_error([1.0], 3).tolist()
        [1.0, 2.0, 3.0]
    """
    check_count("rounds", rounds, 1, MOST)
    return np.cumsum(noise_of(coefficients, np.ones(rounds)) ** 2)


def _checked(coefficients: Any) -> np.ndarray:
    c = np.asarray(coefficients)
    if c.ndim != 1 or c.dtype.kind not in "fiu" or not np.isfinite(c).all() or not c.size or c[0] == 0:
        raise ConfigError("coefficients", coefficients, "give a list of finite numbers, the first of them not 0")
    return c.astype(float)
