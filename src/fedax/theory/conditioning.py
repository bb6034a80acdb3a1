"""Condition numbers of federated least squares, and the step sizes that follow where one model fits all data.

Client i has features ξ and the loss F_i(w) = mean ½(ξᵀw − z)² over its samples; without the ½, double L, μ and l. One
w* has loss 0 on every sample, gradients are of single samples, and the rates are geometric. Features may be
rank-deficient: eigenvalues and inverses are those on the range. Units: with features in x, L, μ, l and λ are in
x², step sizes in 1/x².

Source: Qu et al. 2020, "Federated learning's blessing: FedAvg has linear speedup", appendices G and H.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedax.errors import ConfigError, DataError
from fedax.numbers import check_count
from fedax.theory.checks import normalised, number


class ConditionNumbers(NamedTuple):
    """The constants of the features that the theorems need.

    Example:
        >>> c = condition_numbers([np.diag([1.0, 2.0]), np.diag([3.0, 1.0])])
        >>> c.clients, round(c.lambda_max, 9), round(c.lambda_min, 9)
        (2, 2.5, 1.25)
    """

    clients: int  #: N
    nu_max: float  #: ν_max = max_i Np_i
    nu_min: float  #: ν_min = min_i Np_i
    smoothness: float  #: L, the largest eigenvalue of the H_i = E ξξᵀ
    curvature: float  #: μ, the smallest non-zero eigenvalue of the H_i
    sample_smoothness: float  #: l, the least with E‖ξ‖²ξξᵀ ⪯ l H_i for all i
    lambda_max: float  #: the largest eigenvalue of H = Σ p_i H_i
    lambda_min: float  #: the smallest non-zero eigenvalue of H
    kappa_tilde: float  #: κ̃, the statistical condition number: the least with Σ p_i E(ξᵀH⁻¹ξ)ξξᵀ ⪯ κ̃ H

    @property
    def kappa(self) -> float:
        """κ = L/μ."""
        return self.smoothness / self.curvature

    @property
    def kappa_1(self) -> float:
        """κ₁ = l/μ, at least κ. At least κ̃ where all H_i have the same range; l/λ_min is so always."""
        return self.sample_smoothness / self.curvature


class Geometric(NamedTuple):
    """A constant step size α, and the factor per iteration of E‖w̄_t − w*‖².

    Example:
        >>> step = interpolation_lr(condition_numbers([np.eye(2)]))
        >>> round(step.lr, 6), round(step.factor, 6)
        (0.5, 0.75)
    """

    lr: float
    factor: float


class FedMaSSRates(NamedTuple):
    """w' = u − η₁g, u' = w' + γ(w' − w) + η₂g, g the gradient at u.

    Example:
        >>> fedmass_from_sequences(0.1, 0.5, 0.2)._fields
        ('eta_1', 'eta_2', 'gamma')
    """

    eta_1: float
    eta_2: float
    gamma: float


def condition_numbers(
    features: Sequence[Any], weights: Any = None, *, dense: bool = True, tolerance: float = 1e-8, seed: int = 0
) -> ConditionNumbers:
    """ν_max, ν_min, L, μ, l, κ̃ (and so κ and κ₁) of least squares with the clients' features.
    Qu et al. 2020, appendix H.2.

    Args:
        features: per client an n_i × d array; with ``dense=False`` also a sparse matrix or operator (shape, @, .T).
        weights: in proportion to p_i; None: n_i.
        dense: by singular value decompositions; else with products alone, O(n + d) numbers beside the features: SciPy's
            ``eigsh``, with inverses by ``lsqr``.
        tolerance: of an eigenvalue without ``dense``: its residual relative to it, in (0, 1); the error is its square
            over the relative gap to the next, at most itself.
        seed: of the start of Lanczos' method.

    Raises:
        DataError: features that are not finite, all zero or of different widths; eigenvalues that are not found.

    Example:
        >>> c = condition_numbers([np.diag([1.0, 2.0]), np.diag([3.0, 1.0])])
        >>> [round(value, 6) for value in (c.kappa, c.kappa_1, c.kappa_tilde)]
        [9.0, 18.0, 3.28]
    """
    features = list(features)
    if dense and any(map(_is_operator, features)):
        raise ConfigError("dense", dense, "sparse matrices and operators need dense=False, or give arrays")
    blocks = [x if _is_operator(x) else np.asarray(x, np.float64) for x in features]
    if not blocks or any(len(x.shape) != 2 or 0 in x.shape or x.shape[1] != blocks[0].shape[1] for x in blocks):
        raise DataError(
            f"features of shapes {[x.shape for x in blocks]}: give one n × d array per client, of the same d"
        )
    for i, x in enumerate(blocks):
        if isinstance(x, np.ndarray) and not (np.isfinite(x).all() and x.any()):
            raise DataError(f"features of client {i}: give finite numbers, not all 0")
    sizes = np.array([x.shape[0] for x in blocks])
    p = normalised(sizes if weights is None else weights, len(blocks))
    tol, rng = number("tolerance", tolerance, 1), np.random.default_rng(seed)

    def spectrum(stack: "_Stack", squares: bool) -> Any:
        return _dense(stack, squares) if dense else _by_products(stack, squares, tol, rng)

    each = np.array([spectrum(_Stack([x], np.array([1 / n])), True) for x, n in zip(blocks, sizes, strict=True)])
    high, low, kappa_tilde = spectrum(_Stack(blocks, p / sizes), False)
    nu = len(blocks) * p
    L, mu, l = each[:, 0].max(), each[:, 1].min(), each[:, 2].max()
    return ConditionNumbers(len(blocks), *map(float, (nu.max(), nu.min(), L, mu, l, high, low, kappa_tilde)))


def interpolation_lr(c: ConditionNumbers, *, period: int = 1) -> Geometric:
    """FedAvg for convex losses, l-smooth per sample, with a common minimiser: ᾱ = N/(2E(lν_max + L(N − ν_min))).

    For least squares with E = 1 the l of :func:`condition_numbers`, at most max‖ξ‖², is enough: all that the proof asks
    is E‖g‖² ≤ 2l(F_i − F_i*). All clients take part; with cohorts the constant in ᾱ is smaller, and not given. The
    factor is 1 − μᾱ, and 1 − λ_minᾱ where that is less sharp: the theorem wants each F_i μ-strongly convex, which H_i
    of different ranges are not. For E > 1 both hold up to a small constant in ᾱ.
    Qu et al. 2020, Theorem 5; the text before appendix H leaves out μ in the factor.

    Args:
        c: of :func:`condition_numbers`, or of the losses at hand.
        period: E ≥ 1, local steps per round.

    Raises:
        ConfigError: a period that is no whole number of at least 1.

    Example:
        >>> round(interpolation_lr(condition_numbers([np.eye(2)]), period=2).lr, 6)
        0.25
    """
    lr = c.clients / (2 * check_count("period", period) * _spread(c, c.smoothness))
    return Geometric(lr, 1 - min(c.curvature, c.lambda_min) * lr)


def least_squares_lr(c: ConditionNumbers, *, period: int = 1) -> Geometric:
    """FedAvg for least squares: ᾱ = N/(4E(lν_max + λ_min(N − ν_min))), with the factor 1 − ᾱλ_min/2.

    All clients take part; with cohorts the constant in ᾱ is smaller, and not given. So the printed rate with κ₁ =
    l/λ_min. For E = 1 it is the minimum over ᾱ of the largest of 1 − ᾱλ + 2ᾱ²(lν_max λ + (N − ν_min)λ²)/N over the
    eigenvalues of H as long as N − ν_min ≤ lν_max/(λ_max − λ_min); beyond, the minimum is at
    ᾱ = N/(2(lν_max + (N − ν_min)(λ_max + λ_min))), which is then given, with its factor. For E > 1 both hold up to a
    small constant in ᾱ.
    Qu et al. 2020, Theorem 6 and appendix H.2, which prints four times this range of N.

    Args:
        c: of :func:`condition_numbers`.
        period: E ≥ 1, local steps per round.

    Raises:
        ConfigError: a period that is no whole number of at least 1.

    Example:
        >>> round(least_squares_lr(condition_numbers([np.eye(2)])).lr, 6)
        0.25
    """
    best = c.clients / (4 * _spread(c, c.lambda_min))
    lr = min(best, c.clients / (2 * _spread(c, c.lambda_max + c.lambda_min))) / check_count("period", period)
    return Geometric(lr, 1 - c.lambda_min * lr * (1 - lr * period / (2 * best)))


def fedmass_parameters(
    c: ConditionNumbers, *, period: int = 1, scale: float = 1.0, form: str = "proof"
) -> FedMaSSRates:
    """FedMaSS's η₁, η₂ and γ.

    ``"proof"``: η = N/(lν_max + L(N − ν_min)), α = [2((κ₁ν_max + κ(N − ν_min))/N)((κ̃ν_max + N − ν_min)/N)]^−½,
    both times scale/E, and δ = α/μ; then :func:`fedmass_from_sequences`.
    ``"theorem"``: η₁ = scale · ᾱ of :func:`least_squares_lr`, η₂ = η₁(1 − 1/κ̃)/(1 + s), γ = (1 − s)/(1 + s),
    s = 1/√(κ₁κ̃); N is in η₁ alone, and more clients gain less than with the proof's.
    μ, here and in κ and κ₁, is λ_min: the proof asks δμ ≥ α of the smallest eigenvalue of H, which lies below those of
    the H_i where their ranges differ.
    Qu et al. 2020, Theorem 7 and appendix H.3, where δ = α/μ is half of the second form that is printed.

    Args:
        c: of :func:`condition_numbers`.
        period: E ≥ 1, local steps per round.
        scale: in (0, 1], the small constant that E > 1 asks for.
        form: ``"proof"`` or ``"theorem"``; for one client they agree up to constants.

    Raises:
        ConfigError: numbers out of range, or an unknown form.

    Example:
        >>> fedmass_parameters(condition_numbers([np.eye(2)]), form="theorem").gamma  # κ₁ = κ̃ = 2
        0.333...
    """
    share, low = number("scale", scale, 1) / check_count("period", period), c.lambda_min
    if form == "theorem":
        s, eta_1 = math.sqrt(low / (c.sample_smoothness * c.kappa_tilde)), scale * least_squares_lr(c, period=period).lr
        return FedMaSSRates(eta_1, eta_1 * (1 - 1 / c.kappa_tilde) / (1 + s), (1 - s) / (1 + s))
    if form != "proof":
        raise ConfigError("form", form, "give 'proof' or 'theorem'")
    eta = c.clients / _spread(c, c.smoothness)
    alpha = math.sqrt(eta * low * c.clients / (2 * (c.kappa_tilde * c.nu_max + c.clients - c.nu_min)))
    return fedmass_from_sequences(share * eta, share * alpha, share * alpha / low)


def fedmass_from_sequences(lr: float, alpha: float, delta: float) -> FedMaSSRates:
    """The same method from v' = (1 − α)v + αu − δg, w' = u − ηg, u' = (αv' + w')/(1 + α).

    η₁ = η, η₂ = (η − αδ)/(1 + α), γ = (1 − α)/(1 + α); δ = η/α is Nesterov's method, η₂ = 0.
    Qu et al. 2020, appendix H.3.

    Args:
        lr, alpha, delta: η > 0; α in (0, 1]; δ ≥ 0.

    Raises:
        ConfigError: numbers out of range.

    Example:
        >>> fedmass_from_sequences(0.5, 0.25, 1.0)
        FedMaSSRates(eta_1=0.5, eta_2=0.2, gamma=0.6)
    """
    eta, a, d = number("lr", lr), number("alpha", alpha, 1), number("delta", delta, positive=False)
    return FedMaSSRates(eta, (eta - a * d) / (1 + a), (1 - a) / (1 + a))


def _spread(c: ConditionNumbers, eigenvalue: float) -> float:
    return c.sample_smoothness * c.nu_max + eigenvalue * (c.clients - c.nu_min)


def _is_operator(x: Any) -> bool:
    return not hasattr(x, "__array__") and all(hasattr(x, name) for name in ("shape", "T", "__matmul__"))


class _Stack:
    """X̃ of all samples: the rows √c_i ξ, so that H = X̃ᵀX̃."""

    def __init__(self, blocks: Sequence[Any], scales: np.ndarray):
        self.blocks, self.roots = blocks, np.sqrt(scales)
        self.ends = np.cumsum([x.shape[0] for x in blocks])
        self.scales = np.repeat(scales, [x.shape[0] for x in blocks])

    def times(self, v: np.ndarray) -> np.ndarray:
        return np.concatenate([root * np.asarray(x @ v) for root, x in zip(self.roots, self.blocks, strict=True)])

    def transposed(self, z: np.ndarray) -> np.ndarray:
        parts = np.split(z, self.ends[:-1])
        return sum(root * np.asarray(x.T @ part) for root, x, part in zip(self.roots, self.blocks, parts, strict=True))

    def inverse(self, z: np.ndarray, *, transposed: bool = False) -> np.ndarray:
        """X̃⁺z, or (X̃ᵀ)⁺z, by least squares with products alone (LSQR)."""
        from scipy.sparse import linalg  # slow to import

        shape = (len(self.scales), self.blocks[0].shape[1])
        x = linalg.LinearOperator(shape, self.times, self.transposed, dtype=float)
        # Up to rounding, or the limit of iterations.
        return linalg.lsqr(x.T if transposed else x, z, atol=0, btol=1e-15, conlim=0, iter_lim=50 + 4 * min(shape))[0]


def _dense(stack: _Stack, squares: bool) -> tuple[float, float, float]:
    """λ_max and λ_min of H, and the largest eigenvalue of UᵀDU, U the left singular vectors of X̃."""
    x = stack.times(np.eye(stack.blocks[0].shape[1]))
    u, s, _ = np.linalg.svd(x, full_matrices=False)
    rank = int(np.sum(s > s[0] * max(x.shape) * np.finfo(float).eps))
    u, s = u[:, :rank], s[:rank]
    lengths = np.sum(x * x if squares else u * u, axis=1) / stack.scales
    return s[0] ** 2, s[-1] ** 2, np.linalg.eigvalsh(u.T @ (lengths[:, None] * u))[-1]


def _by_products(stack: _Stack, squares: bool, tol: float, rng: np.random.Generator) -> tuple[float, float, float]:
    """The spectrum by products alone; U(Uᵀz) = X̃(X̃⁺z), and the squared rows of U are ‖(X̃ᵀ)⁺x̃‖² of the rows x̃ of X̃."""
    n, start = len(stack.scales), stack.transposed(rng.normal(size=len(stack.scales)))
    rows = (stack.transposed(np.eye(1, n, k)[0]) for k in range(n))
    lengths = [row @ row if squares else np.sum(stack.inverse(row, transposed=True) ** 2) for row in rows]
    d = np.array(lengths) / stack.scales

    def project(z: np.ndarray) -> np.ndarray:
        return stack.times(stack.inverse(z))

    def inverse_hessian(v: np.ndarray) -> np.ndarray:
        return stack.inverse(stack.inverse(v, transposed=True))

    low = 1 / _largest(inverse_hessian, start, tol)
    top = _largest(lambda z: project(d * project(z)), rng.normal(size=n), tol)
    return _largest(lambda v: stack.transposed(stack.times(v)), start, tol), low, top


def _largest(product: Callable[[np.ndarray], np.ndarray], v: np.ndarray, tol: float) -> float:
    """λ_max of a symmetric operator, by Lanczos' method (ARPACK)."""
    from scipy.sparse import linalg

    if len(v) == 1:
        return float(product(v)[0] / v[0])
    operator = linalg.LinearOperator((len(v), len(v)), product, dtype=float)
    try:
        return float(linalg.eigsh(operator, 1, which="LA", v0=v, tol=tol, return_eigenvectors=False)[0])
    except linalg.ArpackNoConvergence as error:
        raise DataError("Lanczos' method does not end: raise the tolerance, or use dense=True") from error
