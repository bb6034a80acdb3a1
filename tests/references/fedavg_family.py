"""FedAvg, FedProx, FedNova, FedNova-VR, FedAvgM, SlowMo and FedOpt, client by client, in NumPy float64.

Every method has the arguments (grads, p, taus, cohorts, x0, rounds, *, hyper-parameters) and returns a `Reference`:
- grads: N callables g_i(x, step k, round r) -> gradient at x;
- p: [N], the weights of the objective Σ p_i F_i;
- taus: local steps by client id: [N], [R, N], or a callable of the round -> [N];
- cohorts: R pairs (ids, omegas); the ids of a round differ, the omegas need not sum to one;
- x0: an array of any shape; rounds: R.
`lr` (η_r) and `server_lr` are numbers or callables of the round. **solver: momentum, nesterov, prox and decay of
`local_solver`.

Omegas weigh differences and gradients as they are; a mean number of steps is divided by their sum (τ_eff below).
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Grad = Callable[[np.ndarray, int, int], np.ndarray]
Taus = Callable[[int], Sequence[int]] | Sequence[int] | Sequence[Sequence[int]] | np.ndarray
Cohorts = Sequence[tuple[Sequence[int], Sequence[float]]]
Rate = float | Callable[[int], float]


class Reference(NamedTuple):
    """What a transcription returns."""

    iterates: np.ndarray  # x^0 … x^R: [R + 1, *x0.shape]
    state: dict[str, np.ndarray]  # the server's and clients' final states, by name


def trace_cohorts(p: Sequence[float], cohorts: Sequence[Sequence[int]]) -> list[tuple[list[int], np.ndarray]]:
    """Given cohorts with weights ω_i = p_i / Σ_S p_j (Nova supplement, Algorithm 1)."""
    p = np.asarray(p, dtype=np.float64)
    return [([int(i) for i in ids], p[list(ids)] / p[list(ids)].sum()) for ids in cohorts]


def full_cohorts(p: Sequence[float], rounds: int) -> list[tuple[list[int], np.ndarray]]:
    """All clients in every round, ω = p."""
    return [(list(range(len(p))), np.asarray(p, dtype=np.float64))] * rounds


def _start(x0: np.ndarray) -> np.ndarray:
    return np.array(x0, dtype=np.float64)


def _at(value: Rate, r: int) -> float:
    return value(r) if callable(value) else value


def _steps(taus: Taus, r: int) -> np.ndarray:
    """τ_i of round r for all N clients."""
    if callable(taus):
        return np.asarray(taus(r))
    taus = np.asarray(taus)
    return taus if taus.ndim == 1 else taus[r]


def _cohort(cohorts: Cohorts, r: int) -> list[tuple[int, float]]:
    """The pairs (id, ω) of round r."""
    ids, omegas = cohorts[r]
    if len(set(ids)) != len(ids):
        raise ValueError(f"round {r}: clients are drawn twice in {ids}; sum their weights")
    return list(zip((int(i) for i in ids), (float(w) for w in omegas), strict=True))


# Local work.


def local_solver(
    grad: Callable[[np.ndarray, int], np.ndarray],
    x: np.ndarray,
    tau: int,
    lr: float,
    momentum: float = 0.0,
    nesterov: bool = False,
    prox: float = 0.0,
    decay: float = 1.0,
) -> np.ndarray:
    """τ local steps from x: u ← ρu + g, y ← y − η[δ^k s + μ(y − x)], s = u or g + ρu (Nova eq. 31, 35–36)."""
    y = x
    u = np.zeros_like(x)
    for k in range(int(tau)):
        g = grad(y, k)
        u = momentum * u + g
        s = g + momentum * u if nesterov else u
        y = y - lr * (decay**k * s + prox * (y - x))
    return y


@functools.cache
def _accumulation(tau: int, lr: float, solver: tuple[tuple[str, float], ...]) -> tuple[float, ...]:
    def impulse(j: int) -> Callable[[np.ndarray, int], np.ndarray]:
        return lambda y, k: np.float64(k == j)

    return tuple(float(-local_solver(impulse(j), np.float64(0), tau, lr, **dict(solver)) / lr) for j in range(tau))


def accumulation(tau: int, lr: float, **solver: float) -> np.ndarray:
    """a ∈ R^τ of Δ = −η Σ_k a[k] g_k (Nova eq. 4): a[j] is the answer to a single gradient 1 at step j."""
    return np.array(_accumulation(int(tau), float(lr), tuple(sorted(solver.items()))))


def accumulation_norm(tau: int, lr: float, **solver: float) -> float:
    """‖a‖₁ (Nova section 4.1)."""
    return float(np.abs(accumulation(tau, lr, **solver)).sum())


def effective_steps(
    tau_eff: str | float, omegas: Sequence[float], norms: Sequence[float], steps: Sequence[int]
) -> float:
    """τ_eff: "default" Σ ω̂_i ‖a_i‖₁, "ptau" Σ ω̂_i τ_i, "mean" (1/S) Σ τ_i, or the number; ω̂ = ω / Σω."""
    if tau_eff == "default":
        return sum(w * a for w, a in zip(omegas, norms, strict=True)) / sum(omegas)
    if tau_eff == "ptau":
        return sum(w * t for w, t in zip(omegas, steps, strict=True)) / sum(omegas)
    if tau_eff == "mean":
        return sum(steps) / len(steps)
    return float(tau_eff)


def _averaged_change(grads, taus, cohorts, x, r, lr, solver) -> np.ndarray:
    """⟨Δ_i⟩ = Σ_{S_r} ω_i (x_{i,τ_i} − x^r) (Nova eq. 2)."""
    steps = _steps(taus, r)
    change = np.zeros_like(x)
    for i, w in _cohort(cohorts, r):
        y = local_solver(lambda z, k, i=i: grads[i](z, k, r), x, steps[i], lr, **solver)
        change = change + w * (y - x)
    return change


def _normalized_mean(grads, taus, cohorts, x, r, lr, tau_eff, solver) -> tuple[float, np.ndarray]:
    """τ_eff and Σ_{S_r} ω_i d_i with d_i = (x^r − x_{i,τ_i}) / (η‖a_i‖₁) (Nova eq. 12, Algorithm 1)."""
    steps = _steps(taus, r)
    cohort = _cohort(cohorts, r)
    norms = []
    d_mean = np.zeros_like(x)
    for i, w in cohort:
        y = local_solver(lambda z, k, i=i: grads[i](z, k, r), x, steps[i], lr, **solver)
        norms.append(accumulation_norm(steps[i], lr, **solver))
        d_mean = d_mean + w * (x - y) / (lr * norms[-1])
    return effective_steps(tau_eff, [w for _, w in cohort], norms, [steps[i] for i, _ in cohort]), d_mean


def _normalized_change(grads, taus, cohorts, x, r, lr, tau_eff, solver) -> np.ndarray:
    """−τ_eff η Σ_{S_r} ω_i d_i (Nova eq. 12)."""
    effective, d_mean = _normalized_mean(grads, taus, cohorts, x, r, lr, tau_eff, solver)
    return -effective * lr * d_mean


def _change(grads, taus, cohorts, x, r, lr, tau_eff, solver) -> np.ndarray:
    """The cohort's change of the model: plain averaging where tau_eff is None, else normalized averaging."""
    if tau_eff is None:
        return _averaged_change(grads, taus, cohorts, x, r, lr, solver)
    return _normalized_change(grads, taus, cohorts, x, r, lr, tau_eff, solver)


# Methods.


def fedavg(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    server_lr: Rate = 1.0,
    **solver: float,
) -> Reference:
    """FedAvg with any local solver, FedProx with prox=μ: x ← x + γ_m ⟨Δ_i⟩ (Nova eq. 2, 16, 22)."""
    x = _start(x0)
    iterates = [x]
    for r in range(rounds):
        x = x + _at(server_lr, r) * _averaged_change(grads, taus, cohorts, x, r, _at(lr, r), solver)
        iterates.append(x)
    return Reference(np.stack(iterates), {})


def fednova(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    tau_eff: str | float = "default",
    server_lr: Rate = 1.0,
    **solver: float,
) -> Reference:
    """FedNova with any local solver: x ← x − γ_m τ_eff η Σ ω_i d_i (Nova eq. 12, Algorithm 1)."""
    x = _start(x0)
    iterates = [x]
    for r in range(rounds):
        x = x + _at(server_lr, r) * _normalized_change(grads, taus, cohorts, x, r, _at(lr, r), tau_eff, solver)
        iterates.append(x)
    return Reference(np.stack(iterates), {})


def fednova_server_momentum(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    server_momentum: float,
    tau_eff: str | float = "default",
    server_lr: Rate = 1.0,
    **solver: float,
) -> Reference:
    """m ← β_s m + τ_eff Σ ω_i d_i, x ← x − γ_m η m; hybrid momentum with momentum=ρ (Nova sections 5–6)."""
    x = _start(x0)
    m = np.zeros_like(x)
    iterates = [x]
    for r in range(rounds):
        eta = _at(lr, r)
        effective, d_mean = _normalized_mean(grads, taus, cohorts, x, r, eta, tau_eff, solver)
        m = server_momentum * m + effective * d_mean
        x = x - _at(server_lr, r) * eta * m
        iterates.append(x)
    return Reference(np.stack(iterates), {"m": m})


def fednova_vr(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    tau_eff: str | float = "default",
    server_lr: Rate = 1.0,
    h0: Sequence[np.ndarray] | None = None,
    **solver: float,
) -> Reference:
    """FedNova with cross-client variance reduction, with or without momentum (Nova Algorithm 2, corrected).

    c_i = h̄ − h_i is added to each local gradient; d_i = (x^r − x_{i,τ_i}) / (η‖a_i‖₁); h_i ← d_i − c_i;
    x ← x − γ_m τ_eff η Σ ω_i d_i / Σ ω_i; h̄ ← h̄ + Σ_{S_r} p_i (d_i − h̄), h̄ being the old one on the right.
    h_i starts at zero, or at h0[i], and h̄ at Σ p_i h_i. Final states: h [N, …], h_mean.
    """
    x = _start(x0)
    h = [np.zeros_like(x) if h0 is None else _start(h0[i]) for i in range(len(p))]
    h_mean = sum(p_i * h_i for p_i, h_i in zip(p, h, strict=True))
    iterates = [x]
    for r in range(rounds):
        eta = _at(lr, r)
        steps = _steps(taus, r)
        cohort = _cohort(cohorts, r)
        norms = []
        d_mean = np.zeros_like(x)
        h_mean_change = np.zeros_like(x)
        for i, w in cohort:
            c = h_mean - h[i]
            y = local_solver(lambda z, k, i=i, c=c, r=r: grads[i](z, k, r) + c, x, steps[i], eta, **solver)
            norms.append(accumulation_norm(steps[i], eta, **solver))
            d = (x - y) / (eta * norms[-1])
            h[i] = d - c
            d_mean = d_mean + w * d
            h_mean_change = h_mean_change + p[i] * (d - h_mean)
        effective = effective_steps(tau_eff, [w for _, w in cohort], norms, [steps[i] for i, _ in cohort])
        x = x - _at(server_lr, r) * effective * eta * d_mean / sum(w for _, w in cohort)
        h_mean = h_mean + h_mean_change
        iterates.append(x)
    return Reference(np.stack(iterates), {"h": np.stack(h), "h_mean": h_mean})


def fednova_vr_literal(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    momentum: float = 0.0,
) -> Reference:
    """Nova Algorithm 2 to the letter: c_i = Σ_j p_j d_j − d_i of the last round; it loses its own correction.

    A negative test: it does not reach the optimum. All clients take part in every round.
    """
    x = _start(x0)
    d = [np.zeros_like(x) for _ in p]
    iterates = [x]
    for r in range(rounds):
        eta = _at(lr, r)
        steps = _steps(taus, r)
        if sorted(i for i, _ in _cohort(cohorts, r)) != list(range(len(p))):
            raise ValueError(f"round {r}: Algorithm 2 is defined for all clients, not for {cohorts[r][0]}")
        d_mean = sum(p_i * d_i for p_i, d_i in zip(p, d, strict=True))
        a = []
        for i in range(len(p)):
            c = -d[i] + d_mean
            y = x
            u = np.zeros_like(x)
            for k in range(int(steps[i])):
                u = momentum * u + grads[i](y, k, r) + c
                y = y - eta * u
            a.append((steps[i] - momentum * (1 - momentum ** steps[i]) / (1 - momentum)) / (1 - momentum))
            d[i] = (x - y) / (eta * a[i])
        tau_eff = sum(p_i * a_i for p_i, a_i in zip(p, a, strict=True))
        x = x - tau_eff * eta * sum(p_i * d_i for p_i, d_i in zip(p, d, strict=True))
        iterates.append(x)
    return Reference(np.stack(iterates), {"d": np.stack(d)})


def fedavgm(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    server_momentum: float,
    server_lr: Rate = 1.0,
    tau_eff: str | float | None = None,
    **solver: float,
) -> Reference:
    """FedAvgM: v ← βv − ⟨Δ_i⟩, x ← x − γ_m v (Hsu et al. 2019); with tau_eff, on FedNova's change."""
    x = _start(x0)
    v = np.zeros_like(x)
    iterates = [x]
    for r in range(rounds):
        v = server_momentum * v - _change(grads, taus, cohorts, x, r, _at(lr, r), tau_eff, solver)
        x = x - _at(server_lr, r) * v
        iterates.append(x)
    return Reference(np.stack(iterates), {"v": v})


def slowmo(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    server_momentum: float,
    server_lr: Rate = 1.0,
    tau_eff: str | float | None = None,
    **solver: float,
) -> Reference:
    """SlowMo: u ← βu − ⟨Δ_i⟩/η_r, x ← x − α η_r u, α = server_lr (Wang et al. 2020b); with tau_eff, on FedNova's."""
    x = _start(x0)
    u = np.zeros_like(x)
    iterates = [x]
    for r in range(rounds):
        eta = _at(lr, r)
        u = server_momentum * u - _change(grads, taus, cohorts, x, r, eta, tau_eff, solver) / eta
        x = x - _at(server_lr, r) * eta * u
        iterates.append(x)
    return Reference(np.stack(iterates), {"u": u})


def fedexp(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    eps: float,
    average_last: bool = True,
) -> Reference:
    """FedExP with the paper's sign, Δ_i = w − w_i: η_g = max{1, Σ ω̂‖Δ_i‖² / 2(‖Δ̄‖² + ε)}, w ← w − η_g Δ̄, ω̂ = ω/Σω;
    evaluated at (w^t + w^{t−1})/2 (Jhunjhunwala et al. 2023, Algorithm 1)."""
    w = _start(x0)
    models, rates = [w], []
    for r in range(rounds):
        cohort, steps = _cohort(cohorts, r), _steps(taus, r)
        local = [local_solver(lambda z, k, i=i, r=r: grads[i](z, k, r), w, steps[i], _at(lr, r)) for i, _ in cohort]
        weights = np.array([omega for _, omega in cohort])
        weights = weights / weights.sum()
        deltas = np.stack([w - w_i for w_i in local])
        mean = np.tensordot(weights, deltas, 1)
        lengths = (deltas.reshape(len(deltas), -1) ** 2).sum(axis=1)
        rates.append(max(1.0, float(weights @ lengths) / (2 * (float((mean**2).sum()) + eps))))
        w = w - rates[-1] * mean
        models.append(w)
    means = [models[0], *((a + b) / 2 for a, b in zip(models[1:], models[:-1], strict=True))]
    return Reference(np.stack(means if average_last else models), {"rates": np.array(rates)})


def _fedopt(grads, taus, cohorts, x0, rounds, lr, server_lr, beta1, eps, tau_eff, solver, second_moment) -> Reference:
    """m ← β₁m + (1−β₁)Δ̄, v by its rule, x ← x + γ m/(√v + ε), m⁰ = 0, v⁰ = ε² (Reddi et al. 2021, Algorithm 2)."""
    x = _start(x0)
    m = np.zeros_like(x)
    v = np.full_like(x, eps**2)
    iterates = [x]
    for r in range(rounds):
        change = _change(grads, taus, cohorts, x, r, _at(lr, r), tau_eff, solver)
        m = beta1 * m + (1 - beta1) * change
        v = second_moment(v, change**2)
        x = x + _at(server_lr, r) * m / (np.sqrt(v) + eps)
        iterates.append(x)
    return Reference(np.stack(iterates), {"m": m, "v": v})


def fedadagrad(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    server_lr: Rate,
    beta1: float,
    eps: float,
    tau_eff: str | float | None = None,
    **solver: float,
) -> Reference:
    """FedAdagrad: v ← v + Δ̄² (Reddi et al. 2021, Algorithm 2)."""

    def second_moment(v: np.ndarray, square: np.ndarray) -> np.ndarray:
        return v + square

    return _fedopt(grads, taus, cohorts, x0, rounds, lr, server_lr, beta1, eps, tau_eff, solver, second_moment)


def fedadam(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    server_lr: Rate,
    beta1: float,
    beta2: float,
    eps: float,
    tau_eff: str | float | None = None,
    **solver: float,
) -> Reference:
    """FedAdam: v ← β₂v + (1−β₂)Δ̄²; no bias correction (Reddi et al. 2021, Algorithm 2)."""

    def second_moment(v: np.ndarray, square: np.ndarray) -> np.ndarray:
        return beta2 * v + (1 - beta2) * square

    return _fedopt(grads, taus, cohorts, x0, rounds, lr, server_lr, beta1, eps, tau_eff, solver, second_moment)


def fedyogi(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    server_lr: Rate,
    beta1: float,
    beta2: float,
    eps: float,
    tau_eff: str | float | None = None,
    **solver: float,
) -> Reference:
    """FedYogi: v ← v − (1−β₂)Δ̄² sign(v − Δ̄²); no bias correction (Reddi et al. 2021, Algorithm 2)."""

    def second_moment(v: np.ndarray, square: np.ndarray) -> np.ndarray:
        return v - (1 - beta2) * square * np.sign(v - square)

    return _fedopt(grads, taus, cohorts, x0, rounds, lr, server_lr, beta1, eps, tau_eff, solver, second_moment)
