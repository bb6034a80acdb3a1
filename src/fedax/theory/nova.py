"""What the average of unequal local work optimises, and how fast.

A linear local solver changes client i's model by Δ_i = −η Σ_k a_i[k] g_{i,k}. Every average of such changes reads

    x ← x − τ_eff η Σ_i w_i d_i,   d_i = Σ_k a_i[k] g_{i,k} / ‖a_i‖₁,

and goes to a stationary point of the surrogate F̃ = Σ w_i F_i, not of F = Σ p_i F_i. FedAvg and FedProx have
τ_eff = Σ p_i‖a_i‖₁ and w_i = p_i‖a_i‖₁/τ_eff; FedNova has w_i = p_i.

``weights`` are numbers > 0 in proportion to p_i, such as the clients' sizes; None: all equal. Units: with losses in ℓ
and parameters in x, L is in ℓ/x², η in x²/ℓ, σ² and κ² in (ℓ/x)²; a, τ_eff, A, B, C, χ² and β² have none. A number
out of its range raises a ConfigError, a wrong array of vectors or weights a DataError.

Source: Wang et al. 2020, "Tackling the objective inconsistency problem in heterogeneous federated optimization".
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedax.contract.local import Solver, check_linear
from fedax.contract.schedule import resolve
from fedax.contract.vector import Vector
from fedax.errors import ConfigError, DataError
from fedax.numbers import check_count, check_number
from fedax.programs import compiled
from fedax.theory.checks import normalised, number


class Norms(NamedTuple):
    """‖a‖₁, ‖a‖₂ and a[−1], the last entry.

    Example:
        >>> Norms(l1=3.0, l2=1.5, last=1.0).l1
        3.0
    """

    l1: float
    l2: float
    last: float


class UpdateRule(NamedTuple):
    """An averaging method as Theorem 1 sees it.

    Example:
        >>> rule = update_rule([np.ones(2), np.ones(6)])
        >>> rule.tau_eff, rule.weights.tolist()
        (4.0, [0.25, 0.75])
    """

    weights: np.ndarray  #: w_i of the surrogate objective, Σ w_i = 1
    tau_eff: float  #: effective steps per round
    chi2: float  #: χ²(p‖w)
    A: float  #: A, B and C of eq. 9
    B: float
    C: float
    mean_steps: float  #: τ̄ = (1/N) Σ τ_i
    longest: float  #: max_i ‖a_i‖₁

    @property
    def slowdown(self) -> float:
        """τ̄/τ_eff, which multiplies the first term of the bound of eq. 8."""
        return self.mean_steps / self.tau_eff


class LowerBound(NamedTuple):
    """lim x, lim ‖∇F(x)‖², χ² and κ².

    Example:
        >>> lower_bound_example(3.0, (2, 6)).limit
        -1.5
    """

    limit: float
    gradient: float
    chi2: float
    dissimilarity: float


def accumulation_vector(solver: Solver, steps: int, *, round_: int = 0) -> np.ndarray:
    """a in float64, by impulses: a[k] is the change that a gradient 1 in step k alone causes, over −η.
    Wang et al. 2020, section 4.1, eq. 34, 43.

    Args:
        solver: a linear one: SGD in all its variants, or an Optax transformation that is linear in the gradients.
        steps: τ ≥ 1.
        round_: at which the solver's schedules, if any, are taken; a is relative to the η of this round.

    Raises:
        ConfigError: a solver that is not linear, or numbers out of range.

    Example:
        >>> from fedax.contract.local import SGD
        >>> accumulation_vector(SGD(0.1, momentum=0.5), 3).round(3).tolist()
        [1.75, 1.5, 1.0]
    """
    tau, solver = check_count("steps", steps), _linear(solver, round_)
    return accumulation_vectors(solver, [tau])[tau]


def accumulation_vectors(solver: Solver, lengths: Any) -> dict[int, np.ndarray]:
    """τ -> a for many τ, as :func:`accumulation_vector` gives them, from one program.

    The unit impulses of all steps run side by side through the longest round; the state is read after each τ.

    Args:
        solver: linear, with schedules already replaced by numbers.
        lengths: the τ ≥ 1.

    Example:
        >>> from fedax.contract.local import SGD
        >>> {t: a.round(9).tolist() for t, a in accumulation_vectors(SGD(0.1, momentum=0.5), [1, 3]).items()}
        {1: [1.0], 3: [1.75, 1.5, 1.0]}
    """
    ends = sorted({int(t) for t in lengths})
    with jax.enable_x64(True):
        x = Vector(jnp.zeros(ends[-1]))
        state, vectors = (x, solver.init(x)), {}
        for start, end in zip([0, *ends], ends, strict=False):
            state = _impulses(solver, x, state, start, end)
            vectors[end] = -np.asarray(state[0].tree)[:end] / float(solver.rate())
    return vectors


@compiled()
def _impulses(solver: Solver, x: Vector, state: Any, start: Any, end: Any) -> Any:
    """Steps start … end − 1 of a model whose k-th component has a gradient, 1, in step k alone."""

    def step(k: Any, state: Any) -> Any:
        y, buffer = state
        return solver.step(y, buffer, x.map(lambda leaf: (jnp.arange(len(leaf)) == k).astype(leaf.dtype)), k, x)

    return jax.lax.fori_loop(start, end, step, state)


def accumulation_norms(vector: Any) -> Norms:
    """‖a‖₁, ‖a‖₂ and a[−1] of one client; the entries of a are ≥ 0 and not all 0.

    Raises:
        DataError: entries that are negative, not finite, or all 0.

    Example:
        >>> accumulation_norms([2.0, 2.0, 1.0])
        Norms(l1=5.0, l2=3.0, last=1.0)
    """
    a = np.asarray(vector, np.float64)
    if a.ndim != 1 or not a.size or not np.isfinite(a).all() or a.min() < -1e-12 * a.max() or a.max() <= 0:
        raise DataError("an accumulation vector has entries of at least 0, not all 0; give one vector per client")
    return Norms(float(a.sum()), float(np.linalg.norm(a)), float(a[-1]))


def chi_square(p: Any, w: Any) -> float:
    """χ²(p‖w) = Σ (p_i − w_i)²/w_i of weights > 0, one per client; Wang et al. 2020, Theorem 2.

    Raises:
        DataError: weights or arrays of another form.

    Example:
        >>> round(chi_square([0.5, 0.5], [0.25, 0.75]), 6)
        0.333333
    """
    w = normalised(w)
    return float(np.sum((normalised(p, len(w)) - w) ** 2 / w))


def update_rule(
    vectors: Sequence[Any], weights: Any = None, *, normalized: bool = False, tau_eff: float | None = None
) -> UpdateRule:
    """w, τ_eff, χ², A, B and C of an averaging method.

    A = N τ_eff Σ w_i²‖a_i‖₂²/‖a_i‖₁²,  B = Σ w_i(‖a_i‖₂² − a_i[−1]²),  C = max_i ‖a_i‖₁(‖a_i‖₁ − a_i[−1]).
    Wang et al. 2020, eq. 6, 9, 12 (93–95 in the appendix).

    Args:
        vectors: a_i, one per client, of length τ_i.
        weights: in proportion to p_i.
        normalized: FedNova's average, w_i = p_i; otherwise w_i ∝ p_i‖a_i‖₁.
        tau_eff: FedNova's τ_eff > 0; None: Σ p_i‖a_i‖₁.

    Raises:
        ConfigError: ``tau_eff`` out of range.
        DataError: vectors or weights that cannot be used.

    Example:
        >>> rule = update_rule([np.ones(2), np.ones(6)])
        >>> rule.weights.tolist(), rule.tau_eff, rule.A, rule.C
        ([0.25, 0.75], 4.0, 1.0, 30.0)
    """
    if tau_eff is not None and not normalized:
        raise ConfigError("tau_eff", tau_eff, "only normalised averaging chooses it; give normalized=True or None")
    vectors = list(vectors)
    l1, l2, last = np.array([accumulation_norms(a) for a in vectors]).reshape(-1, 3).T
    given = None if tau_eff is None else number("tau_eff", tau_eff)
    return _rule(l1, l2**2, last, [len(a) for a in vectors], weights, normalized, given)


def fedprox_rule(steps: Any, alpha: float, weights: Any = None) -> UpdateRule:
    """FedProx as a rule for τ_i and α = ημ in [0, 1]: a_i = [(1 − α)^{τ_i−1}, …, 1 − α, 1]; FedAvg at α = 0.
    Wang et al. 2020, eq. 7, 121–131.

    Raises:
        ConfigError: numbers out of range.

    Example:
        >>> round(fedprox_rule([2, 6], 0.5).tau_eff, 4), fedprox_rule([2, 6], 1.0).chi2
        (1.7344, 0.0)
    """
    tau = _steps(steps)
    powers = (1 - number("alpha", alpha, 1, positive=False)) ** np.arange(tau.max())
    l1, l2_squared = (np.cumsum(powers**n)[tau - 1] for n in (1, 2))
    return _rule(l1, l2_squared, np.ones(len(tau)), tau, weights, False, None)


def fixed_point(
    hessians: Any, linear: Any, solver: Solver, steps: Any, weights: Any = None,
    *, normalized: bool = False, round_: int = 0,
) -> np.ndarray:  # fmt: skip
    """Where an averaging method stays on F_i(x) = ½xᵀH_i x − e_iᵀx: x̃ = (Σ ϖ_i Q_i H_i)⁻¹ Σ ϖ_i Q_i e_i.

    Full gradients, all clients; Q_i, with −Δ_i = Q_i∇F_i(x), is found by running the solver on unit vectors. For SGD
    with FedProx's μ it is [I − (I − ηH_i − ημI)^τ_i](H_i + μI)⁻¹, so that x̃ is eq. 28.

    | method | call |
    |---|---|
    | FedAvg, FedProx, with any server optimizer | as it is: ϖ_i = p_i |
    | FedNova, any solver, τ_eff and server optimizer | ``normalized=True``: ϖ_i = p_i/‖a_i‖₁ |
    | FedAvg-M | ``SGD(β · lr)``; ``normalized=True`` where it averages Δ_i/τ_i |
    | FedAvg-M-VR | ``SGD(lr)``, whatever β |
    | VRL-SGD, constant τ_i | :func:`weighted_optimum` with weights p_iτ_i |

    Args:
        hessians, linear: H_i, N × d × d and symmetric; e_i, N × d.
        solver: linear, as :func:`accumulation_vector`; ``round_`` is where its schedules are taken.
        steps: τ_i ≥ 1, one per client.
        weights: in proportion to p_i.
        normalized: FedNova's average.

    Raises:
        DataError: weights or arrays of another form.

    Source: Wang et al. 2020, eq. 12, 26, 28; for FedAvg-M and FedAvg-M-VR derived here in the same way.

    Example:
        >>> from fedax.contract.local import SGD
        >>> fixed_point(np.ones((2, 1, 1)), [[3.0], [-3.0]], SGD(0.5), [1, 2]).round(6).tolist()
        [-0.6]
    """
    H, e = _quadratics(hessians, linear)
    tau, p, solver = _steps(steps, len(H)), normalised(weights, len(H)), _linear(solver, round_)
    with jax.enable_x64(True):

        def response(hessian: Any, steps: Any, unit: Any) -> Any:
            x = Vector(jnp.zeros_like(unit))

            def step(k: Any, state: Any) -> Any:
                y, buffer = state
                return solver.step(y, buffer, Vector(hessian @ y.tree + unit), k, x)

            return -jax.lax.fori_loop(0, steps, step, (x, solver.init(x)))[0].tree

        columns = jax.vmap(jax.vmap(response, (None, None, 0)), (0, 0, None))(H, tau, np.eye(H.shape[1]))
        lengths = jax.vmap(response, (None, 0, None))(np.zeros((1, 1)), tau, np.ones(1))  # η‖a_i‖₁
    Q = np.asarray(columns).swapaxes(1, 2)
    p = p / np.asarray(lengths)[:, 0] if normalized else p
    return _solve(np.einsum("i,ijk,ikl->jl", p, Q, H), np.einsum("i,ijk,ik->j", p, Q, e))


def weighted_optimum(hessians: Any, linear: Any, weights: Any = None) -> np.ndarray:
    """argmin Σ w_i F_i of F_i(x) = ½xᵀH_i x − e_iᵀx: x* for w = p, and the optimum of F̃ for implicit weights.

    For w_i = p_iτ_i it is VRL-SGD's fixed point for constant τ_i, and FedAvg's for η → 0.
    Wang et al. 2020, appendix A, eq. 26; eq. 30 where H_i = I.

    Raises:
        DataError: weights or arrays of another form.

    Example:
        >>> weighted_optimum(np.ones((2, 1, 1)), [[3.0], [-3.0]], [1, 2]).round(6).tolist()
        [-1.0]
    """
    H, e = _quadratics(hessians, linear)
    w = normalised(weights, len(H))
    return _solve(np.einsum("i,ijk->jk", w, H), w @ e)


def unit_fixed_point(centres: Any, steps: Any, weights: Any = None, *, lr: float = 0.0) -> np.ndarray:
    """FedAvg's limit for F_i(x) = ½‖x − e_i‖²: Σ p_i[1 − (1 − η)^τ_i] e_i / Σ p_i[1 − (1 − η)^τ_i].
    Wang et al. 2020, eq. 29, 30.

    Args:
        centres: e_i, N × d.
        steps: τ_i ≥ 1, one per client.
        weights: in proportion to p_i.
        lr: η in [0, 1]; 0 is the limit η → 0, Σ p_iτ_i e_i / Σ p_iτ_i.

    Raises:
        DataError: weights or arrays of another form.

    Example:
        >>> unit_fixed_point([[3.0], [-3.0]], [2, 6]).tolist()
        [-1.5]
    """
    _, e = _quadratics(np.ones(1), centres, square=False)
    rule = fedprox_rule(_steps(steps, len(e)), number("lr", lr, 1, positive=False), weights)  # both: Σ_k (1 − η)^k
    return rule.weights @ e


def lower_bound_example(a: float, steps: tuple[int, int]) -> LowerBound:
    """FedAvg with η → 0 on F_{1,2}(x) = ½(x ∓ a)², p = ½: ‖∇F‖² goes to (w₁ − w₂)²a² = χ²κ² exactly, β² = 1.

    w_i = τ_i/(τ₁ + τ₂), χ² = (τ₁ − τ₂)²/(4τ₁τ₂) and κ² = 4w₁w₂a², where the paper prints 2w₁w₂a².
    Wang et al. 2020, Lemma 4, eq. 115–120.

    Raises:
        ConfigError: numbers out of range.

    Example:
        >>> lower_bound_example(3.0, (2, 6))
        LowerBound(limit=-1.5, gradient=2.25, chi2=0.333..., dissimilarity=6.75)
    """
    tau, a = _steps(steps, 2), float(check_number("a", a))
    w = tau / tau.sum()
    limit = a * (w[0] - w[1])
    return LowerBound(*map(float, (limit, limit**2, chi_square([1, 1], w), 4 * w[0] * w[1] * a**2)))


def _linear(solver: Any, round_: int) -> Any:
    if not isinstance(solver, Solver):
        raise ConfigError("solver", solver, "give a local solver, such as SGD(0.1)")
    check_linear(solver)
    return resolve(solver, check_count("round_", round_, 0))


def _rule(l1: Any, l2_squared: Any, last: Any, steps: Any, weights: Any, normalized: bool, tau: Any) -> UpdateRule:
    p = normalised(weights, len(l1))
    default = float(p @ l1)
    w, tau = p if normalized else p * l1 / default, default if tau is None else tau
    A, B, C = len(p) * tau * np.sum(w**2 * l2_squared / l1**2), w @ (l2_squared - last**2), np.max(l1 * (l1 - last))
    return UpdateRule(w, tau, *map(float, (np.sum((p - w) ** 2 / w), A, B, C, np.mean(steps), l1.max())))


def _steps(steps: Any, number: int | None = None) -> np.ndarray:
    tau = np.asarray(steps)
    if tau.ndim != 1 or not tau.size or (number is not None and len(tau) != number):
        raise ConfigError("steps", steps, f"give one whole number per client{'' if number is None else f', {number}'}")
    return np.array([check_count("steps", step) for step in tau])


def _quadratics(hessians: Any, linear: Any, square: bool = True) -> tuple[np.ndarray, np.ndarray]:
    H, e = np.asarray(hessians, np.float64), np.asarray(linear, np.float64)
    if e.ndim != 2 or not e.size or (square and H.shape != (*e.shape, e.shape[1])):
        raise DataError(f"shapes {H.shape} and {e.shape}: give H as clients × d × d, and e or centres as clients × d")
    if not (np.isfinite(H).all() and np.isfinite(e).all()):
        raise DataError("H, e or centres are not finite: give finite numbers")
    return H, e


def _solve(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    if np.linalg.matrix_rank(matrix) < len(vector):
        raise DataError("the mean of the Hessians is singular, there is no single fixed point: add curvature")
    return np.linalg.solve(matrix, vector)
