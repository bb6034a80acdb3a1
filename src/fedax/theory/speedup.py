"""Step sizes that theorems prescribe, their error bounds with all constants, and the speed-up in clients they predict.

Two analyses. Normalised averaging counts rounds r and bounds gradients (Wang et al. 2020, "Tackling the objective
inconsistency problem in heterogeneous federated optimization"; :mod:`fedax.theory.nova` has its symbols, units and
errors). FedAvg and its Nesterov form for convex losses count iterations t, E to a round, and bound F − F* (Qu et al.
2020, "Federated learning's blessing: FedAvg has linear speedup"): there N clients, S of them in a round or None for
all, ν_max = max Np_i, μ the strong convexity, σ² = Σ p_iσ_i², G² a bound on E‖g‖², and D₀ = ‖w_0 − w*‖².
"""

import bisect
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from fedax.contract.schedule import PowerDecay
from fedax.errors import ConfigError, DataError
from fedax.numbers import check_count
from fedax.theory.checks import number
from fedax.theory.nova import UpdateRule, fedprox_rule


class SurrogateBound(NamedTuple):
    """The terms of eq. 97: of the start, of noise, of noise through drift, of dissimilarity through drift.

    Example:
        >>> SurrogateBound(start=1.0, noise=0.5, drift_noise=0.25, drift=0.0).total
        1.75
    """

    start: float
    noise: float
    drift_noise: float
    drift: float

    @property
    def total(self) -> float:
        """Their sum, the bound on min_r E‖∇F̃(x^r)‖²."""
        return sum(self)


class ObjectiveBound(NamedTuple):
    """The terms of eq. 10; ``floor`` = 2χ²κ² stays however long the run.

    Example:
        >>> ObjectiveBound(vanishing=0.5, floor=0.25).floor
        0.25
    """

    vanishing: float
    floor: float


def nova_lr(*, clients: int, mean_steps: float, rounds: int) -> float:
    """η = √(N/(τ̄R)), τ̄ the mean of τ_i over clients, and over rounds where it varies.

    With cohorts, which Corollary 3 draws with replacement by p_i, N is their size S, and τ̄ the mean over those drawn:
    Σ p_iτ_i in expectation.
    Wang et al. 2020, Theorems 1 and 3, Corollary 3.

    Raises:
        ConfigError: numbers out of range.

    Example:
        >>> nova_lr(clients=16, mean_steps=4, rounds=100)
        0.2
    """
    N, R = check_count("clients", clients), check_count("rounds", rounds)
    return math.sqrt(N / (number("mean_steps", mean_steps) * R))


def max_lr(rules: UpdateRule | Iterable[UpdateRule], *, smoothness: float, dissimilarity_factor: float = 1.0) -> float:
    """The largest η of Theorems 1 to 3: ηL ≤ ½ min{1/(max_i‖a_i‖₁ √(2β² + 1)), 1/τ_eff}, β² ≥ 1, in every round.

    All clients take part in all rounds. With cohorts of q the proof of Corollary 3 asks for more:
    6τ_eff ηL(1 + β²/q) ≤ ½, and 4η²L² max_i‖a_i‖₁(‖a_i‖₁ − a_{i,−1}) ≤ 1/(12β² + 1).
    Wang et al. 2020, eq. 101, 152.

    Raises:
        ConfigError: numbers out of range.

    Example:
        >>> max_lr(fedprox_rule([5], 0), smoothness=0.1, dissimilarity_factor=4.0)
        0.333...
    """
    L, b2 = number("smoothness", smoothness), _factor(dissimilarity_factor)
    return min(min(1 / (r.longest * math.sqrt(2 * b2 + 1)), 1 / r.tau_eff) for r in _rules(rules)) / (2 * L)


def surrogate_bound(
    rules: UpdateRule | Iterable[UpdateRule], *, smoothness: float, variance: float, gap: float,
    dissimilarity: float, rounds: int, lr: float | None = None,
) -> SurrogateBound:  # fmt: skip
    """min_r E‖∇F̃(x^r)‖² ≤ 4(F̃⁰ − F̃_inf)/(ητ_eff R) + 4ηLσ²A/N + 6η²L²σ²B + 12η²L²κ²C, for η ≤ :func:`max_lr`.

    Of several rules, which is FedNova with varying work, τ_eff and τ̄ are averaged, and A, B and C with weights τ_eff,
    so that the sum over rounds telescopes. For a constant τ_eff these are Theorem 3's plain averages.

    Args:
        rules: of :func:`update_rule`; one, or one per round.
        smoothness, variance: L > 0 of every client's loss; σ² ≥ 0 of a minibatch gradient (squared norm).
        gap, dissimilarity, rounds: F̃(x⁰) − inf F̃ ≥ 0; κ² ≥ 0; R ≥ 1.
        lr: η > 0; None: √(N/(τ̄R)). Above :func:`max_lr` the result is no bound.

    Raises:
        ConfigError: numbers out of range.

    Source: Wang et al. 2020, Theorems 1 and 3, eq. 8, 97, 147.

    Example:
        >>> rule = fedprox_rule([4] * 4, 0)
        >>> surrogate_bound(rule, smoothness=1, variance=1, gap=1, dissimilarity=0, rounds=200)
        SurrogateBound(start=0.070..., noise=0.070..., drift_noise=0.09, drift=0.0)
    """
    kept = _rules(rules)
    L, s2 = number("smoothness", smoothness), number("variance", variance, positive=False)
    D, k2 = number("gap", gap, positive=False), number("dissimilarity", dissimilarity, positive=False)
    N, R, tau = len(kept[0].weights), check_count("rounds", rounds), np.array([r.tau_eff for r in kept])
    A, B, C = tau @ np.array([(r.A, r.B, r.C) for r in kept]) / tau.sum()
    mean_steps = float(np.mean([r.mean_steps for r in kept]))
    eta = nova_lr(clients=N, mean_steps=mean_steps, rounds=R) if lr is None else number("lr", lr)
    drift = 6 * (eta * L) ** 2
    return SurrogateBound(
        *map(float, (4 * D / (eta * tau.mean() * R), 4 * eta * L * s2 * A / N, drift * s2 * B, 2 * drift * k2 * C))
    )


def objective_bound(
    chi2: float, optimization_error: float, *, dissimilarity: float, dissimilarity_factor: float = 1.0
) -> ObjectiveBound:
    """min_r ‖∇F(x^r)‖² ≤ 2[χ²(β² − 1) + 1] ε_opt + 2χ²κ²; ε_opt is such as ``surrogate_bound(…).total``.
    Wang et al. 2020, Theorem 2, eq. 10.

    Raises:
        ConfigError: numbers out of range.

    Example:
        >>> objective_bound(0.5, 0.1, dissimilarity=2.0, dissimilarity_factor=3.0)
        ObjectiveBound(vanishing=0.4, floor=2.0)
    """
    chi2, k2 = number("chi2", chi2, positive=False), number("dissimilarity", dissimilarity, positive=False)
    vanishing = 2 * (chi2 * (_factor(dissimilarity_factor) - 1) + 1)
    return ObjectiveBound(vanishing * number("optimization_error", optimization_error, positive=False), 2 * chi2 * k2)


def best_alpha(steps: Any, weights: Any = None, **constants: Any) -> tuple[float, float]:
    """The α = ημ of FedProx in [0, 1] with the least bound on min_r E‖∇F̃(x^r)‖², and that bound.

    F̃ moves with α; the bound is compared at one ``gap`` for all α, and does not count the bias 2χ²κ².
    Wang et al. 2020, eq. 128–132, Corollary 2.

    Args:
        steps: τ_i ≥ 1, one per client.
        weights: in proportion to p_i.
        **constants: of :func:`surrogate_bound`.

    Example:
        >>> alpha, bound = best_alpha([5, 50], smoothness=1, variance=1, gap=1, dissimilarity=1, rounds=1000)
        >>> 0 < alpha < 1
        True
    """

    def bound(alpha: float) -> float:
        return surrogate_bound(fedprox_rule(steps, alpha, weights), **constants).total

    grid = [0.0, *np.geomspace(1e-6, 1, 241).tolist()]
    values = [bound(alpha) for alpha in grid]
    best = int(np.argmin(values))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    from scipy import optimize  # slow to import

    found = optimize.minimize_scalar(bound, bounds=(low, high), method="bounded", options={"xatol": 1e-9 * high})
    value, alpha = min((float(found.fun), float(found.x)), (values[best], grid[best]))
    return alpha, value


def asymptotic_alpha(*, clients: int, mean_steps: float, rounds: int) -> float:
    """The order of the best α of FedProx for p_i = 1/N and τ_i ≫ 1: N^½ τ̄^−½ R^−⅙, at most 1.
    Wang et al. 2020, Corollary 2, eq. 139.

    Raises:
        ConfigError: numbers out of range.

    Example:
        >>> asymptotic_alpha(clients=4, mean_steps=100, rounds=64)
        0.1
    """
    N, R = check_count("clients", clients), check_count("rounds", rounds)
    return min(1.0, math.sqrt(N / number("mean_steps", mean_steps)) / R ** (1 / 6))


def strongly_convex_lr(*, smoothness: float, curvature: float, period: int, every: int = 1) -> PowerDecay:
    """FedAvg's α_t = 4/(μ(γ + t)), γ = max{32L/μ, E}. Qu et al. 2020, Theorem 1.

    Args:
        smoothness, curvature, period: L ≥ μ > 0; E ≥ 1 local steps per round.
        every: iterations per count of the schedule: 1 for one of t, E for one of the round, at its first step.

    Example:
        >>> float(strongly_convex_lr(smoothness=1, curvature=0.5, period=10)(0))
        0.125
    """
    return _decay(4.0, 0.0, smoothness, curvature, period, every)


def nesterov_strongly_convex(
    *, smoothness: float, curvature: float, period: int, every: int = 1
) -> tuple[PowerDecay, PowerDecay]:
    """Nesterov FedAvg's α_t = 6/(μ(t + γ)) and β_t, β_{t−1} = 3/[14(t + γ)(1 − 6/(t + γ)) max{μ, 1}].
    Qu et al. 2020, Lemma 7 and Theorem 3, whose main text prints 3 for the 6 in the bracket.

    Args:
        smoothness, curvature, period, every: as :func:`strongly_convex_lr`, γ too.

    Example:
        >>> alpha, beta = nesterov_strongly_convex(smoothness=1, curvature=1, period=1)
        >>> float(alpha(0)), round(float(beta(0)) * 14 * 27, 6)
        (0.1875, 3.0)
    """
    alpha = _decay(6.0, 0.0, smoothness, curvature, period, every)
    return alpha, _decay(3 / 14 * min(curvature, 1.0), -5.0, smoothness, curvature, period, every)


def convex_lr(*, clients: int, iterations: int, smoothness: float | None = None, scale: float = 1.0) -> float:
    """α = scale · √(N/T), of FedAvg and, with β = c√(N/T) ≤ ½, of Nesterov FedAvg; S for N with a cohort.
    Qu et al. 2020, Theorems 2 and 4.

    Args:
        clients, iterations: N or S; T ≥ 1.
        smoothness: L; if given, 4αL ≤ 1 is checked, which the proof asks for; with Nesterov's β it asks 4αL ≤ 1 − β.
        scale: > 0, the constant of the order √(N/T).

    Raises:
        ConfigError: numbers out of range.

    Example:
        >>> convex_lr(clients=4, iterations=10_000, smoothness=1.0)
        0.02
    """
    N, T = check_count("clients", clients), check_count("iterations", iterations)
    lr = number("scale", scale) * math.sqrt(N / T)
    if smoothness is not None and 4 * lr * number("smoothness", smoothness) > 1:
        need = math.ceil(N * (4 * scale * smoothness) ** 2)
        raise ConfigError("iterations", iterations, f"4αL ≤ 1 asks for at least {need}, or for a smaller scale")
    return lr


def strongly_convex_bound(
    iterations: int, *, clients: int, smoothness: float, curvature: float, period: int, variance: float,
    gradient: float, distance: float, cohort: int | None = None, replacement: bool = True, nu_max: float = 1.0,
) -> float:  # fmt: skip
    """E F(w̄_T) − F* ≤ (L/2) D_T, where D_{t+1} = (1 − μα_t) D_t + α_t² V + 6α_t³ L E²G², V = ν_max²σ²/N + sampling.

    This recursion is Lemma 3 with α of :func:`strongly_convex_lr`; D_T is its exact value. The theorem's proof bounds
    D_T by c D₀ (4/μ)(α_T V + 6α_T² L E²G²), with a constant c that it does not give. For large T its noise term is
    three times that of D_T, for small T more. Sampling is 4E²G²/S for
    draws with replacement, times (N − S)/(N − 1) without, and 0 for all clients. The square on ν_max is as printed, and
    slack: Σ p_i²σ_i² ≤ ν_maxσ²/N.

    Args:
        iterations, clients, smoothness, curvature, period: T ≥ 1, N, L, μ, E.
        variance, gradient, distance: σ², G² and D₀, ≥ 0.
        cohort, replacement, nu_max: S or None; whether drawn with replacement; ν_max ≥ 1.

    Raises:
        ConfigError: numbers out of range.

    Source: Qu et al. 2020, Theorem 1, Lemma 3, eq. 5–9.

    Example:
        >>> constants = dict(clients=4, smoothness=1, curvature=0.5, period=1, variance=1, gradient=1, distance=1)
        >>> strongly_convex_bound(10**6, **constants) < strongly_convex_bound(10**4, **constants)
        True
    """
    V, drift, L = _noise(clients, cohort, replacement, nu_max, variance, period, gradient, smoothness)
    alpha = strongly_convex_lr(smoothness=smoothness, curvature=curvature, period=period)
    T, u, top = check_count("iterations", iterations), alpha.offset, alpha.value  # α_t = top/(u + t)
    from scipy import special  # slow to import

    # Π_s (1 − 4/(u + s)) from s = t + 1 on telescopes to (v − 1)(v − 2)(v − 3)v / Π_j (u + T − j), with v = u + t.
    sums = {  # Σ_t v^k
        2: T * u**2 + u * T * (T - 1) + (T - 1) * T * (2 * T - 1) / 6,
        1: T * u + T * (T - 1) / 2,
        0: float(T),
        -1: float(special.digamma(u + T) - special.digamma(u)),
        -2: float(special.polygamma(1, u) - special.polygamma(1, u + T)),
    }
    noise, drifts = (sums[k] - 6 * sums[k - 1] + 11 * sums[k - 2] - 6 * sums[k - 3] for k in (2, 1))
    end = math.prod(u + T - j for j in range(1, 5))
    start = number("distance", distance, positive=False) * math.prod((u - j) / (u + T - j) for j in range(1, 5))
    return L / 2 * (start + (top**2 * V * noise + top**3 * drift * drifts) / end)


def convex_bound(
    iterations: int, *, clients: int, smoothness: float, period: int, variance: float, gradient: float,
    distance: float, cohort: int | None = None, replacement: bool = True, nu_max: float = 1.0, scale: float = 1.0,
) -> float:  # fmt: skip
    """min_t F(w̄_t) − F* ≤ D₀/(αT) + αV + 6α²LE²G², with α of :func:`convex_lr`; ∞ where 4αL > 1.

    Args: as :func:`strongly_convex_bound` and :func:`convex_lr`.

    Raises:
        ConfigError: numbers out of range.

    Source: Qu et al. 2020, Theorem 2, Lemma 6.

    Example:
        >>> constants = dict(clients=4, smoothness=1, period=1, variance=1, gradient=1, distance=1)
        >>> convex_bound(10**6, **constants) < convex_bound(10**4, **constants)
        True
    """
    V, drift, L = _noise(clients, cohort, replacement, nu_max, variance, period, gradient, smoothness)
    alpha = convex_lr(clients=cohort or clients, iterations=iterations, scale=scale)
    D = number("distance", distance, positive=False)
    return math.inf if 4 * alpha * L > 1 else D / (alpha * iterations) + alpha * V + alpha**2 * drift


def geometric_bound(iterations: int, *, smoothness: float, factor: float, distance: float) -> float:
    """E F(w̄_T) − F* ≤ (L/2) factor^T D₀, with the factor of :mod:`fedax.theory.conditioning`, in [0, 1).
    Qu et al. 2020, Theorems 5 and 6.

    Raises:
        ConfigError: numbers out of range.

    Example:
        >>> geometric_bound(2, smoothness=2.0, factor=0.5, distance=4.0)
        1.0
    """
    rate = number("factor", factor, 1 - 1e-16, positive=False) ** check_count("iterations", iterations)
    return number("smoothness", smoothness) / 2 * rate * number("distance", distance, positive=False)


def iterations_to(epsilon: float, bound: Callable[[int], float], *, most: int = 10**15) -> int:
    """The least T ≥ 1 with bound(T) ≤ ε, for a bound that falls with T.

    The speed-up that a theorem predicts for N clients is its number at one client over that at N.

    Args:
        epsilon: ε > 0, in the units of the bound.
        bound: a function of T, iterations or rounds.
        most: the largest T to try.

    Raises:
        ConfigError: no T up to ``most``; the bound may have a floor.

    Example:
        >>> def steps(n):
        ...     bound = lambda t: convex_bound(
        ...         t, clients=n, smoothness=1, period=1, variance=1, gradient=0, distance=1
        ...     )
        ...     return iterations_to(0.01, bound)
        >>> steps(1), steps(8)
        (40000, 5000)
    """
    low, high = 0, 1
    while not bound(high) <= number("epsilon", epsilon):
        low, high = high, 2 * high
        if high > most:
            raise ConfigError("epsilon", epsilon, f"the bound is not reached in {most} iterations; give a larger one")
    between = range(low + 1, high)
    return low + 1 + bisect.bisect_left(between, True, key=lambda t: bound(t) <= epsilon)


def _decay(top: float, shift: float, smoothness: Any, curvature: Any, period: Any, every: Any) -> PowerDecay:
    L, mu, E = number("smoothness", smoothness), number("curvature", curvature), check_count("period", period)
    if mu > L:
        raise ConfigError("curvature", mu, f"give a number of at most the smoothness, {L:g}")
    count = check_count("every", every)
    return PowerDecay(top / (mu * count), (max(32 * L / mu, float(E)) + shift) / count, 1.0)


def _noise(N: Any, S: Any, replacement: bool, nu: Any, s2: Any, E: Any, G2: Any, L: Any) -> tuple[float, float, float]:
    """V, 6LE²G² and L."""
    N, L, E = check_count("clients", N), number("smoothness", L), check_count("period", E)
    work = E**2 * number("gradient", G2, positive=False)
    V = number("nu_max", nu) ** 2 * number("variance", s2, positive=False) / N
    if S is not None:
        if check_count("cohort", S) > N:
            raise ConfigError("cohort", S, f"give a whole number from 1 to the {N} clients, or None for all")
        V += 4 * work / S * (1.0 if replacement else (N - S) / max(N - 1, 1))
    return V, 6 * L * work, L


def _rules(rules: Any) -> list[UpdateRule]:
    kept = [rules] if isinstance(rules, UpdateRule) else list(rules)
    if not kept or any(not isinstance(r, UpdateRule) or len(r.weights) != len(kept[0].weights) for r in kept):
        raise DataError("rules: give one UpdateRule, or one per round for the same clients; update_rule makes them")
    return kept


def _factor(value: Any) -> float:
    if number("dissimilarity_factor", value) < 1:
        raise ConfigError("dissimilarity_factor", value, "give β² of at least 1")
    return float(value)
