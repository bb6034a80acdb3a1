"""Arithmetic whose results are the same bits on every machine, for data that are drawn.

NumPy's ``exp``, ``log``, ``sin``, ``**``, matrix products and ``linalg`` differ in their last bits between processors
and libraries. Sums, products, quotients and roots of single numbers do not, so everything here is made of these, in a
fixed order.
"""

import math

import numpy as np

_TAIL = 3.6541528853610088  # NumPy draws normal numbers beyond it by log1p, all others by products
_LN2 = (
    6.93147180369123816490e-01,
    1.90821492927058770002e-10,
)  # their sum; the first has 32 bits, so that n·ln 2 is exact


def exp(x: np.ndarray | float) -> np.ndarray:
    """eˣ of float64 below 709, to about one unit in the last place.

    Example:
        >>> bool(np.allclose(exp(np.array([-3.0, 0.0, 1.0])), [0.049787068367863944, 1.0, math.e], rtol=4e-16, atol=0))
        True
    """
    n = np.rint(np.asarray(x, np.float64) / _LN2[0])
    rest = x - n * _LN2[0] - n * _LN2[1]
    return np.ldexp(_polynomial(rest, [1 / math.factorial(k) for k in range(15)]), n.astype(np.int32))


def log(x: np.ndarray | float) -> np.ndarray:
    """The natural logarithm of float64 above 0, to three units in the last place.

    Example:
        >>> bool(np.allclose(log(np.array([0.1, 1.0, math.e])), [-2.302585092994046, 0.0, 1.0], rtol=4e-16, atol=0))
        True
    """
    fraction, n = np.frexp(np.asarray(x, np.float64))
    small = fraction < math.sqrt(0.5)
    fraction, n = np.where(small, 2 * fraction, fraction), n - small
    s = (fraction - 1) / (fraction + 1)  # log of the fraction is 2·artanh(s)
    return n * _LN2[0] + (n * _LN2[1] + 2 * s * _polynomial(s * s, [1 / (2 * k + 1) for k in range(13)]))


def sin_cos(turns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """sin(2πt) and cos(2πt), to about 2e-16.

    Example:
        >>> bool(np.allclose(sin_cos(np.array([0.25, -7.125])), [[1.0, -(0.5**0.5)], [0.0, 0.5**0.5]], atol=3e-16))
        True
    """
    t = np.asarray(turns, np.float64)
    t = t - np.rint(t)
    quarter = np.rint(4 * t)
    angle = 2 * math.pi * (t - quarter / 4)
    square = angle * angle
    sine = angle * _polynomial(square, [(-1) ** k / math.factorial(2 * k + 1) for k in range(9)])
    cosine = _polynomial(square, [(-1) ** k / math.factorial(2 * k) for k in range(10)])
    which = quarter.astype(np.int64) % 4
    return np.choose(which, [sine, cosine, -sine, -cosine]), np.choose(which, [cosine, -sine, -cosine, sine])


def normal(generator: np.random.Generator, shape: int | tuple[int, ...] = ()) -> np.ndarray:
    """Draws of N(0, 1): those of NumPy's generator, with the few beyond ±3.65 rounded to float32.

    Example:
        >>> normal(np.random.default_rng(0), 3).round(3).tolist()
        [0.126, -0.132, 0.64]
    """
    z = np.asarray(generator.standard_normal(shape))
    far = (z > _TAIL) | (z < -_TAIL)
    z[far] = z[far].astype(np.float32)
    return z


def product(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """[…, n] Σ_j x_ij·w_j, added up from the first j to the last.

    Args:
        x: [… , n, d].
        w: [… , d].

    Example:
        >>> product(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, -1.0])).tolist()
        [-1.0, -1.0]
    """
    total = np.zeros(np.broadcast_shapes(x.shape[:-1], (*w.shape[:-1], 1)), np.result_type(x, w))
    for j in range(x.shape[-1]):
        total += x[..., j] * w[..., j, None]
    return total


def orthonormal(matrices: np.ndarray) -> np.ndarray:
    """Q of the QR decompositions of [N, d, d] regular matrices, where R has a positive diagonal.

    By Gram and Schmidt's method, twice: the second time removes what rounding left.

    Example:
        >>> q = orthonormal(np.random.default_rng(0).normal(size=(3, 9, 9)))
        >>> bool(np.allclose(q.transpose(0, 2, 1) @ q, np.eye(9), atol=1e-14))
        True
    """
    rows = matrices.transpose(0, 2, 1).astype(np.float64)  # the columns of the matrices
    for _ in range(2):
        for k in range(rows.shape[1]):
            rows[:, k] /= np.sqrt(product(rows[:, k : k + 1], rows[:, k]))
            later = rows[:, k + 1 :]
            later -= product(later, rows[:, k])[..., None] * rows[:, None, k]
    return rows.transpose(0, 2, 1)


def _polynomial(x: np.ndarray, coefficients: list[float]) -> np.ndarray:
    total = np.full(np.shape(x), coefficients[-1])
    for each in coefficients[-2::-1]:
        total = total * x + each
    return total
