"""FedAsync, FedBuff, CA2FL, ACE, AREA, FADAS, Ringmaster, Ringleader, Delayed Nesterov in synchronous rounds, in NumPy.

These methods were published for a server that does not wait. Here it waits: a step takes in the answers of one cohort,
which all began from the server's model, so that no answer is stale. The arguments are those of `fedavg_family`. A mean
of the papers over the answers of a step is Σ ω_i; a mean over all N clients is Σ p_i.
"""

from collections.abc import Sequence

import numpy as np

from .fedavg_family import Cohorts, Grad, Rate, Reference, Taus, _at, _cohort, _start, _steps


def _local(grad: Grad, x: np.ndarray, tau: int, lr: float, r: int, rho: float = 0.0) -> np.ndarray:
    """y after τ steps y ← y − lr (g(y) + ρ (y − x)) from y = x."""
    y = x
    for k in range(int(tau)):
        y = y - lr * (grad(y, k, r) + rho * (y - x))
    return y


def _gradient(grad: Grad, x: np.ndarray, tau: int, r: int) -> np.ndarray:
    """The mean of the gradients of τ minibatches at x."""
    return sum(grad(x, k, r) for k in range(int(tau))) / int(tau)


def fedasync(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    mixing: Rate = 0.6,
    prox: Rate = 0.005,
) -> Reference:
    """x ← x + α Σ ω_i (y_i − x), the y_i by steps with a pull ρ to x (Xie et al. 2019, Algorithm 1)."""
    x = _start(x0)
    iterates = [x]
    for r in range(rounds):
        steps, change = _steps(taus, r), np.zeros_like(x)
        for i, omega in _cohort(cohorts, r):
            y = _local(grads[i], x, steps[i], _at(lr, r), r, _at(prox, r))
            change = change + omega * (y - x)
        x = x + _at(mixing, r) * change
        iterates.append(x)
    return Reference(np.stack(iterates), {})


def fedbuff(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    server_lr: Rate = 1.0,
) -> Reference:
    """x ← x + γ Σ ω_i Δ_i (Nguyen et al. 2022, Algorithm 1)."""
    x = _start(x0)
    iterates = [x]
    for r in range(rounds):
        steps, buffer = _steps(taus, r), np.zeros_like(x)
        for i, omega in _cohort(cohorts, r):
            buffer = buffer + omega * (_local(grads[i], x, steps[i], _at(lr, r), r) - x)
        x = x + _at(server_lr, r) * buffer
        iterates.append(x)
    return Reference(np.stack(iterates), {})


def ca2fl(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    server_lr: Rate = 1.0,
) -> Reference:
    """v = Σ_all p_i h_i + Σ ω_i (Δ_i − h_i), x ← x + γ v, h_i ← Δ_i of the cohort (Wang et al. 2024, Algorithm 2).

    The server has all h_i, from 0. Final state: h, [N, …].
    """
    x = _start(x0)
    h = np.zeros((len(p), *x.shape))
    iterates = [x]
    for r in range(rounds):
        steps = _steps(taus, r)
        v = sum(p[i] * h[i] for i in range(len(p)))
        new = h.copy()
        for i, omega in _cohort(cohorts, r):
            new[i] = _local(grads[i], x, steps[i], _at(lr, r), r) - x
            v = v + omega * (new[i] - h[i])
        x, h = x + _at(server_lr, r) * v, new
        iterates.append(x)
    return Reference(np.stack(iterates), {"h": h})


def ace(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
) -> Reference:
    """x ← x − η Σ_all p_i u_i, u_i client i's last gradient, 0 before its first one (Chang et al. 2025).

    Final state: u, [N, …].
    """
    x = _start(x0)
    u = np.zeros((len(p), *x.shape))
    iterates = [x]
    for r in range(rounds):
        steps, u = _steps(taus, r), u.copy()
        for i, _ in _cohort(cohorts, r):
            u[i] = _gradient(grads[i], x, steps[i], r)
        x = x - _at(lr, r) * sum(p[i] * u[i] for i in range(len(p)))
        iterates.append(x)
    return Reference(np.stack(iterates), {"u": u})


def area(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
) -> Reference:
    """x ← Σ_all p_i z_i, z_i the model that client i arrived at last, from x^0 (Iakovidou and Kim 2024).

    Final state: z, [N, …].
    """
    x = _start(x0)
    z = np.stack([x] * len(p))
    iterates = [x]
    for r in range(rounds):
        steps, z = _steps(taus, r), z.copy()
        for i, _ in _cohort(cohorts, r):
            z[i] = _local(grads[i], x, steps[i], _at(lr, r), r)
        x = sum(p[i] * z[i] for i in range(len(p)))
        iterates.append(x)
    return Reference(np.stack(iterates), {"z": z})


def fadas(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    server_lr: Rate = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.99,
    eps: float = 1e-8,
    bias_correction: bool = False,
) -> Reference:
    """FedAMS, to which FADAS comes down where no answer is stale (Wang et al. 2024).

    Δ = Σ ω_i Δ_i; m ← β₁ m + (1 − β₁) Δ; v ← β₂ v + (1 − β₂) Δ²; v̂ ← max(v̂, v); x ← x + γ m/(√v̂ + ε).
    bias_correction, in round t = 1, 2, …: m/(1 − β₁^t) and √v̂/√(1 − β₂^t) in the last one.
    """
    x = _start(x0)
    m, v, top = np.zeros_like(x), np.zeros_like(x), np.zeros_like(x)
    iterates = [x]
    for r in range(rounds):
        steps, delta = _steps(taus, r), np.zeros_like(x)
        for i, omega in _cohort(cohorts, r):
            delta = delta + omega * (_local(grads[i], x, steps[i], _at(lr, r), r) - x)
        m = beta1 * m + (1 - beta1) * delta
        v = beta2 * v + (1 - beta2) * delta**2
        top = np.maximum(top, v)
        first, second = (1 - beta1 ** (r + 1), 1 - beta2 ** (r + 1)) if bias_correction else (1, 1)
        x = x + _at(server_lr, r) * (m / first) / (np.sqrt(top) / np.sqrt(second) + eps)
        iterates.append(x)
    return Reference(np.stack(iterates), {"m": m, "v": v, "top": top})


def ringmaster(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
) -> Reference:
    """x ← x − η Σ ω_i g_i(x): no delay reaches R ≥ 1 (Maranjyan, Tyurin, Richtárik 2025)."""
    x = _start(x0)
    iterates = [x]
    for r in range(rounds):
        steps, g = _steps(taus, r), np.zeros_like(x)
        for i, omega in _cohort(cohorts, r):
            g = g + omega * _gradient(grads[i], x, steps[i], r)
        x = x - _at(lr, r) * g
        iterates.append(x)
    return Reference(np.stack(iterates), {})


def ringleader(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
) -> Reference:
    """x ← x − η Σ_all p_i G_i/b_i (Maranjyan and Richtárik 2025) with all clients in a round.

    They answer at once. So the table has one gradient of each, all are part of the step, and the next table is empty.
    """
    x = _start(x0)
    iterates = [x]
    for r in range(rounds):
        steps = _steps(taus, r)
        table = {i: [_gradient(grads[i], x, steps[i], r)] for i, _ in _cohort(cohorts, r)}
        assert len(table) == len(p)
        x = x - _at(lr, r) * sum(p[i] * sum(gs) / len(gs) for i, gs in table.items())
        iterates.append(x)
    return Reference(np.stack(iterates), {})


def delayed_nesterov(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    server_lr: Rate = 0.7,
    server_momentum: float = 0.9,
    every: int = 4,
    spread: float = 0.0,
) -> Reference:
    """The pseudo-gradient g = −Σ ω_i Δ_i of round t = 0, 1, … joins D; N = every, cN = spread (Liu et al. 2024).

    (t + 1) mod N = 0: m ← β m + D/N; x ← x − ε ((1 − cN + c) β m + g/N); D ← 0. Else: x ← x − ε (c β m + g/N).
    """
    c = spread / every
    x = _start(x0)
    m, D = np.zeros_like(x), np.zeros_like(x)
    iterates = [x]
    for t in range(rounds):
        steps, g = _steps(taus, t), np.zeros_like(x)
        for i, omega in _cohort(cohorts, t):
            g = g + omega * (x - _local(grads[i], x, steps[i], _at(lr, t), t))
        D = D + g
        if (t + 1) % every == 0:
            m = server_momentum * m + D / every
            look_ahead = (1 - c * every + c) * server_momentum * m
            D = np.zeros_like(x)
        else:
            look_ahead = c * server_momentum * m
        x = x - _at(server_lr, t) * (look_ahead + g / every)
        iterates.append(x)
    return Reference(np.stack(iterates), {"m": m, "D": D})
