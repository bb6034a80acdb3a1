"""Parameters for which FedAvg-M, SCAFFOLD-M and their variance-reduced forms are proved to converge.

FedAvg-M and FedAvg-M-VR want all N clients in every round, SCAFFOLD-M and SCAFFOLD-M-VR a uniform cohort of S.
All are for p_i = 1/N and the same number K of local steps at every client.
A method takes the result p as ``lr=p.lr, server_lr=p.server_lr, beta=p.beta``.

Each bounds (1/R) Σ_r E‖∇f(x^r)‖² for smooth, possibly non-convex losses, with no bound on heterogeneity. The conditions
on η hold up to a numeric constant that the paper leaves unnamed; ``scale`` is this constant. β and γ are as printed.

Units: with losses in ℓ and parameters in x, L is in ℓ/x², Δ in ℓ, σ² and G₀ in (ℓ/x)², γ and η in x²/ℓ; β has none.
At σ² = 0 and at G₀ = 0 the terms that divide by them are infinite, and each minimum ignores them.

Source: Cheng, Huang, Wu and Yuan 2024, "Momentum benefits non-IID federated learning simply and provably".
"""

import math
from typing import Any, NamedTuple

from fedax.errors import ConfigError
from fedax.numbers import check_count
from fedax.theory.checks import number


class MomentumParameters(NamedTuple):
    """What a theorem prescribes: β, γ, η, B, and the K that it was asked for.

    Args:
        beta: β in (0, 1], the weight of the new gradient in a local direction; with variance reduction 1 − β is that of
            the recursion.
        gamma: γ > 0, the step along the averaged direction: x ← x − γg.
        lr: η > 0, the local learning rate.
        warmup_batches: B ≥ 1, minibatches per client for the estimates at x⁰; None: no warm-up.
        steps: K, local steps per round.

    Example:
        >>> MomentumParameters(beta=0.5, gamma=0.2, lr=0.01, warmup_batches=None, steps=10).server_lr
        2.0
    """

    beta: float
    gamma: float
    lr: float
    warmup_batches: int | None
    steps: int

    @property
    def server_lr(self) -> float:
        """γ/(ηK), the factor of the mean update: the mean update is −ηKg, so x − γg = x + γ/(ηK)·⟨Δ⟩."""
        return self.gamma / (self.lr * self.steps)


def fedavg_m_parameters(
    *, smoothness: float, variance: float, gap: float, clients: int, steps: int,
    rounds: int, gradient_norm: float, constant: float = 1.0, scale: float = 1.0,
) -> MomentumParameters:  # fmt: skip
    """FedAvg-M, g⁰ = 0: E‖∇f‖² ≲ √(LΔσ²/(NKR)) + LΔ/R.

    β = min{c, √(NKLΔ/(σ²R))}, γ = min{1/(24L), β/(6L)},
    ηKL ≲ min{1, 1/(βγLR), (LΔ/(G₀β³R))^½, (βN)^−½, (β³NK)^−¼}.

    Args:
        smoothness: L > 0, of every client's loss.
        variance: σ² ≥ 0, of a minibatch gradient (squared norm).
        gap: Δ = f(x⁰) − f* > 0.
        clients: N ≥ 1.
        steps: K ≥ 1, local steps per round.
        rounds: R ≥ 1.
        gradient_norm: G₀ = (1/N) Σ_i ‖∇f_i(x⁰)‖² ≥ 0, the mean squared norm.
        constant: c in (0, 1].
        scale: > 0, instead of the unnamed constant: η = scale · (right side)/(KL).

    Raises:
        ConfigError: an argument outside its range.

    Source: Cheng et al. 2024, Theorems 1 and 11, eq. 5.

    Example:
        >>> fedavg_m_parameters(smoothness=2, variance=1, gap=1, clients=8, steps=4, rounds=100, gradient_norm=4)
        MomentumParameters(beta=0.8, gamma=0.0208..., lr=0.0123..., warmup_batches=None, steps=4)
    """
    L, s2, D, N, K, R = _problem(smoothness, variance, gap, clients, steps, rounds)
    G0, c = number("gradient_norm", gradient_norm, positive=False), number("constant", constant, 1)
    beta = min(c, _ratio(N * K * L * D, s2 * R) ** 0.5)
    gamma = min(1 / (24 * L), beta / (6 * L))
    drift = min(1.0, _ratio(1.0, beta * gamma * L * R), _ratio(L * D, G0 * beta**3 * R) ** 0.5)
    noise = min(_ratio(1.0, beta * N) ** 0.5, _ratio(1.0, beta**3 * N * K) ** 0.25)
    return _parameters(beta, gamma, min(drift, noise), None, L, K, scale)


def fedavg_m_vr_parameters(
    *, smoothness: float, variance: float, gap: float, clients: int, steps: int,
    rounds: int, gradient_norm: float, constant: float = 1.0, scale: float = 1.0,
) -> MomentumParameters:  # fmt: skip
    """FedAvg-M-VR, g⁰ the mean of B minibatch gradients per client: E‖∇f‖² ≲ (LΔσ/(NKR))^⅔ + LΔ/R.

    β = min{c, (NKL²Δ²/(σ⁴R²))^⅓}, γ = min{1/(24L), √(βNK/(54L²))},
    ηKL ≲ min{(LΔ/(G₀γLR))^½, (β/N)^½, (β/(NK))^¼}, B = ⌈K/(Rβ²)⌉.

    With ``constant=1/rounds`` this is the theorem's alternative, B = Θ(KR), whose bound has + σ²/(NKR), while c is the
    smaller term of β. Lemma 14
    of the proof also asks ηKL ≲ min{β/(1−β), 1/(γLR)}, which eq. 8 does not list: lower ``scale`` to meet it.

    Args:
        smoothness: L > 0, of the loss of every example.
        variance, gap, clients, steps, rounds, gradient_norm, constant, scale: as :func:`fedavg_m_parameters`.

    Raises:
        ConfigError: an argument outside its range.

    Source: Cheng et al. 2024, Theorems 2 and 15, eq. 8.

    Example:
        >>> fedavg_m_vr_parameters(smoothness=2, variance=4, gap=1, clients=8, steps=4, rounds=100, gradient_norm=4)
        MomentumParameters(beta=0.0928..., gamma=0.0208..., lr=0.0134..., warmup_batches=5, steps=4)
    """
    L, s2, D, N, K, R = _problem(smoothness, variance, gap, clients, steps, rounds)
    G0, c = number("gradient_norm", gradient_norm, positive=False), number("constant", constant, 1)
    signal = _ratio(L * D, s2 * R)
    beta = min(c, (N * K * signal * signal) ** (1 / 3))
    gamma = min(1 / (24 * L), math.sqrt(beta * N * K / 54) / L)
    bound = min(_ratio(L * D, G0 * gamma * L * R) ** 0.5, (beta / N) ** 0.5, (beta / (N * K)) ** 0.25)
    return _parameters(beta, gamma, bound, _ratio(K, R * beta**2), L, K, scale)


def scaffold_m_parameters(
    *, smoothness: float, variance: float, gap: float, clients: int, cohort: int, steps: int,
    rounds: int, gradient_norm: float, constant: float = 1.0, scale: float = 1.0,
) -> MomentumParameters:  # fmt: skip
    """SCAFFOLD-M, g⁰ = 0, c_i⁰ the mean of B minibatch gradients: E‖∇f‖² ≲ √(LΔσ²/(SKR)) + (LΔ/R)(1 + N^⅔/S).

    β = min{c, S/N^⅔, √(LΔSK/(σ²R)), √(LΔS²/(G₀N))}, γ = β/L,
    ηKL ≲ min{S^−½, 1/(βK^¼), S^½/N}, B = ⌈NK/(SR)⌉.

    Eq. 9 names c without a range; (0, 1] is that of eq. 5. The proof uses the G₀ term nowhere when c_i⁰ has its B
    minibatches (it is what c_i⁰ = 0 would need); ``gradient_norm=0`` drops it. The lemmas also ask
    γL ≤ min{1/24, β/12} (5 and 16) and ηK ≤ Nγ/(5S) (18), which eq. 9 as printed does not ensure.

    Args:
        cohort: S, clients per round, from 1 to N.
        smoothness, variance, gap, clients, steps, rounds, gradient_norm, constant, scale: as
            :func:`fedavg_m_parameters`.

    Raises:
        ConfigError: an argument outside its range.

    Source: Cheng et al. 2024, Theorems 3 and 19, eq. 9.

    Example:
        >>> scaffold_m_parameters(
        ...     smoothness=2, variance=1, gap=1, clients=8, cohort=4, steps=16, rounds=512, gradient_norm=1
        ... )
        MomentumParameters(beta=0.5, gamma=0.25, lr=0.0078125, warmup_batches=1, steps=16)
    """
    L, s2, D, N, K, R = _problem(smoothness, variance, gap, clients, steps, rounds)
    G0, c, S = (
        number("gradient_norm", gradient_norm, positive=False),
        number("constant", constant, 1),
        _cohort(cohort, N),
    )
    beta = min(c, S / N ** (2 / 3), _ratio(L * D * S * K, s2 * R) ** 0.5, _ratio(L * D * S * S, G0 * N) ** 0.5)
    bound = min(S**-0.5, _ratio(1.0, beta * K**0.25), S**0.5 / N)
    return _parameters(beta, beta / L, bound, N * K / (S * R), L, K, scale)


def scaffold_m_vr_parameters(
    *, smoothness: float, variance: float, gap: float, clients: int, cohort: int, steps: int,
    rounds: int, scale: float = 1.0,
) -> MomentumParameters:  # fmt: skip
    """SCAFFOLD-M-VR, g⁰ = c⁰, c_i⁰ of B minibatches: E‖∇f‖² ≲ (LΔσ/(S√K R))^⅔ + (LΔ/R)(1 + N^½/S).

    β = min{S/N, (KLΔ/(σ²R))^⅔ S^⅓}, γ = min{1/L, √(βS)/L},
    ηKL ≲ min{(β/S)^½, (β/(SK))^¼}, B = ⌈max{SK/(NRβ²), NK/(SR)}⌉.

    The lemmas also ask γL ≤ min{1/24, √(βS/126)} (5 and 20), which eq. 11 as printed does not ensure.

    Args:
        smoothness: L > 0, of the loss of every example.
        cohort: S, clients per round, from 1 to N.
        variance, gap, clients, steps, rounds, scale: as :func:`fedavg_m_parameters`.

    Raises:
        ConfigError: an argument outside its range.

    Source: Cheng et al. 2024, Theorems 4 and 22, eq. 11.

    Example:
        >>> scaffold_m_vr_parameters(smoothness=2, variance=1, gap=1, clients=8, cohort=2, steps=16, rounds=100)
        MomentumParameters(beta=0.25, gamma=0.3535..., lr=0.0092..., warmup_batches=1, steps=16)
    """
    L, s2, D, N, K, R = _problem(smoothness, variance, gap, clients, steps, rounds)
    S = _cohort(cohort, N)
    beta = min(S / N, _ratio(K * L * D, s2 * R) ** (2 / 3) * S ** (1 / 3))
    gamma = min(1.0, math.sqrt(beta * S)) / L
    bound = min((beta / S) ** 0.5, (beta / (S * K)) ** 0.25)
    batches = max(_ratio(S * K, N * R * beta**2), N * K / (S * R))
    return _parameters(beta, gamma, bound, batches, L, K, scale)


def _problem(L: Any, s2: Any, D: Any, *counts: Any) -> tuple[float, float, float, int, int, int]:
    N, K, R = (check_count(name, count) for name, count in zip(("clients", "steps", "rounds"), counts, strict=True))
    return number("smoothness", L), number("variance", s2, positive=False), number("gap", D), N, K, R


def _cohort(cohort: Any, clients: int) -> int:
    if check_count("cohort", cohort) > clients:
        raise ConfigError("cohort", cohort, f"give a whole number from 1 to the {clients} clients")
    return int(cohort)


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.inf


def _parameters(beta: float, gamma: float, bound: float, B: Any, L: float, K: int, scale: Any) -> MomentumParameters:
    lr = number("scale", scale) * bound / (K * L)
    for name, value in {"beta": beta, "gamma": gamma, "lr": lr, "warmup_batches": B or 1}.items():
        if not 0 < value < math.inf:
            raise ConfigError(name, value, "the arguments lead outside the range of floats; rescale the problem")
    whole = B and math.ceil(B * (1 - 1e-12))  # a rounding error adds no minibatch
    return MomentumParameters(beta, gamma, lr, whole, K)
