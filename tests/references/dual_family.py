"""FedDualAvg, FedDA, FedDA-Distributed, Local-Adapt, Local-AMSGrad and proximal FedAvg, client by client, in float64.

The arguments are those of `recursive_family`: a gradient is g_i(x, minibatch k, round r, exchange e=0), the same
(k, r, e) is the same minibatch at whatever point, and r=−1 is the warm-up. There is one exchange a round, e=0.
In FedDA and FedDA-Distributed `lr` and `alpha` are functions of the global step, elsewhere `lr` is one of the round.

A regularizer ψ over a convex set X has ψ(x), and step(u, h, s) = argmin over X of s ψ(x) + ½ Σ_j h_j (x_j − u_j)², with
h > 0 an array or a number. ψ of a set is 0 in it and ∞ outside. regularizer=None: no ψ, X is the whole space.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.optimize import brentq

from .fedavg_family import Cohorts, Rate, Reference, Taus, _at, _cohort, _start, _steps
from .recursive_family import Grad, _warm_up

# Regularizers.


class Regularizer(Protocol):
    def psi(self, x: np.ndarray) -> float: ...

    def step(self, u: np.ndarray, h: np.ndarray | float, s: float) -> np.ndarray: ...


def _indicator(violation: float) -> float:
    """0 in the set, up to rounding errors, and ∞ outside."""
    return 0.0 if violation <= 1e-9 else np.inf


def _soft(u: np.ndarray, threshold: np.ndarray) -> np.ndarray:
    return np.sign(u) * np.maximum(np.abs(u) - threshold, 0)


def _root(decreasing: Callable[[float], float], low: float, high: float) -> float:
    """The zero of a decreasing function between low and high, as exact as numbers are."""
    return brentq(decreasing, low, high, xtol=1e-300, rtol=4 * np.finfo(float).eps)


@dataclass(frozen=True)
class L1:
    """ψ(x) = w ‖x‖₁: x_j = sign(u_j) max(|u_j| − s w / h_j, 0)."""

    weight: float

    def psi(self, x):
        return self.weight * float(np.abs(x).sum())

    def step(self, u, h, s):
        return _soft(u, s * self.weight / np.broadcast_to(h, u.shape))


@dataclass(frozen=True)
class ElasticNet:
    """ψ(x) = w₁ ‖x‖₁ + (w₂/2) ‖x‖²: x_j = sign(u_j) max(h_j |u_j| − s w₁, 0) / (h_j + s w₂)."""

    l1: float
    l2: float

    def psi(self, x):
        return self.l1 * float(np.abs(x).sum()) + self.l2 / 2 * float((x**2).sum())

    def step(self, u, h, s):
        return _soft(h * u, np.full(u.shape, s * self.l1)) / (h + s * self.l2)


@dataclass(frozen=True)
class L1Ball:
    """‖x‖₁ ≤ ρ: u if it is inside, else x_j = sign(u_j) max(|u_j| − θ / h_j, 0) with ‖x‖₁ = ρ."""

    radius: float

    def psi(self, x):
        return _indicator(float(np.abs(x).sum()) - self.radius)

    def step(self, u, h, s):
        if np.abs(u).sum() <= self.radius:
            return u
        theta = _root(lambda t: np.abs(_soft(u, t / h)).sum() - self.radius, 0.0, float(np.max(h * np.abs(u))))
        return _soft(u, theta / h)


@dataclass(frozen=True)
class L2Ball:
    """‖x‖₂ ≤ ρ: u if it is inside, else x_j = h_j u_j / (h_j + ζ) with ‖x‖₂ = ρ."""

    radius: float

    def psi(self, x):
        return _indicator(float(np.sqrt((x**2).sum())) - self.radius)

    def step(self, u, h, s):
        def excess(zeta):
            return np.sqrt(((h * u / (h + zeta)) ** 2).sum()) - self.radius

        if excess(0.0) <= 0:
            return u
        high = 1.0
        while excess(high) > 0:
            high = 2 * high
        return h * u / (h + _root(excess, 0.0, high))


@dataclass(frozen=True)
class Box:
    """low ≤ x_j ≤ high."""

    low: float | np.ndarray
    high: float | np.ndarray

    def psi(self, x):
        return _indicator(float(np.max(np.maximum(self.low - x, x - self.high))))

    def step(self, u, h, s):
        return np.minimum(np.maximum(u, self.low), self.high)


@dataclass(frozen=True)
class NonNegative:
    """x_j ≥ 0."""

    def psi(self, x):
        return _indicator(float(np.max(-x)))

    def step(self, u, h, s):
        return np.maximum(u, 0)


@dataclass(frozen=True)
class Simplex:
    """x_j ≥ 0 and Σ_j x_j = ρ: x_j = max(u_j − θ / h_j, 0), θ of either sign."""

    total: float = 1.0

    def psi(self, x):
        return _indicator(max(float(np.max(-x)), abs(float(x.sum()) - self.total)))

    def step(self, u, h, s):
        low, high = float(np.min(h * (u - self.total))), float(np.max(h * u))
        theta = _root(lambda t: np.maximum(u - t / h, 0).sum() - self.total, low, high)
        return np.maximum(u - theta / h, 0)


def _prox(regularizer: Regularizer | None, u: np.ndarray, h: np.ndarray | float, s: float) -> np.ndarray:
    return u if regularizer is None else regularizer.step(u, h, s)


def _primal(regularizer, z, s, x, h, lam) -> np.ndarray:
    """argmin over X of −⟨x', z⟩ + s ψ(x') + (1/2λ) Σ_j h_j (x'_j − x_j)² = step(x + λz/h, h, λs)."""
    return _prox(regularizer, x + lam * z / h, h, lam * s)


# Dual averaging and proximal steps.


def proximal_fedavg(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    server_lr: Rate = 1.0,
    regularizer: Regularizer | None = None,
) -> Reference:
    """FedAvg with proximal local steps: y ← step(y − η g_i(y; ξ_k), 1, η); x ← x + γ_m ⟨Δ_i⟩.

    A mean of models in X is in X, but without the zeros that ψ gives to each of them.
    """
    x = _start(x0)
    iterates = [x]
    for r in range(rounds):
        steps = _steps(taus, r)
        eta = _at(lr, r)
        change = np.zeros_like(x)
        for i, w in _cohort(cohorts, r):
            y = x
            for k in range(int(steps[i])):
                y = _prox(regularizer, y - eta * grads[i](y, k, r, 0), 1.0, eta)
            change = change + w * (y - x)
        x = x + _at(server_lr, r) * change
        iterates.append(x)
    return Reference(np.stack(iterates), {})


def feddualavg(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    server_lr: Rate = 1.0,
    regularizer: Regularizer | None = None,
) -> Reference:
    """FedDualAvg (Yuan et al. 2021): z^0 = x^0 and s^0 = 0; the state averaged is z, and x = step(z, 1, s).

    z_{i,0} = z^r; for k = 0…τ_i−1: y = step(z_{i,k}, 1, s^r + η_c k), z_{i,k+1} = z_{i,k} − η_c g_i(y; ξ_k);
    z ← z + η_s Σ ω_i (z_{i,τ_i} − z^r); s ← s + η_s Σ ω_i η_c τ_i; x^{r+1} = step(z, 1, s).
    η_c = lr(r), η_s = server_lr(r). For constant rates, equal τ_i = K and Σ ω_i = 1, s^r = η_s η_c r K.
    Final states: z, s.
    """
    x = z = _start(x0)
    s = 0.0
    iterates = [x]
    for r in range(rounds):
        steps = _steps(taus, r)
        eta = _at(lr, r)
        z_change = np.zeros_like(x)
        s_change = 0.0
        for i, w in _cohort(cohorts, r):
            u = z
            for k in range(int(steps[i])):
                y = _prox(regularizer, u, 1.0, s + eta * k)
                u = u - eta * grads[i](y, k, r, 0)
            z_change = z_change + w * (u - z)
            s_change = s_change + w * eta * int(steps[i])
        z = z + _at(server_lr, r) * z_change
        s = s + _at(server_lr, r) * s_change
        x = _prox(regularizer, z, 1.0, s)
        iterates.append(x)
    return Reference(np.stack(iterates), {"z": z, "s": np.array(s)})


def _estimate(gradient: str, new: np.ndarray, old: np.ndarray, v: np.ndarray, a: float) -> np.ndarray:
    """U of eq. 5 ("mvr"): g_new + (1−α)(ν − g_old), and of eq. 6 ("momentum"): α g_new + (1−α) ν."""
    if gradient == "mvr":
        return new + (1 - a) * (v - old)
    if gradient == "momentum":
        return a * new + (1 - a) * v
    raise ValueError(f"gradient {gradient!r} is neither 'mvr' nor 'momentum'")


def _second_moment(metric: str, q: np.ndarray, z: np.ndarray, b: float) -> np.ndarray:
    """q of eq. 7 ("coordinate"): b q + (1−b) z², and of eq. 8 ("norm"): b q + (1−b) ‖z‖₂ in every coordinate."""
    if metric == "coordinate":
        return b * q + (1 - b) * z**2
    if metric == "norm":
        return b * q + (1 - b) * np.sqrt((z**2).sum()) * np.ones_like(z)
    raise ValueError(f"metric {metric!r} is neither 'coordinate' nor 'norm'")


def _first_moment(metric: str, v: np.ndarray, h0: float | str) -> np.ndarray:
    """q of H_0 = (h0 + ε) I; "warmup": of H_0 = diag(|ν^0| + ε) by coordinate, and (‖ν^0‖₂ + ε) I by the norm."""
    if h0 == "warmup":
        start = np.abs(v) if metric == "coordinate" else np.sqrt((v**2).sum()) * np.ones_like(v)
    else:
        start = h0 * np.ones_like(v)
    return start**2 if metric == "coordinate" else start


def _scale(metric: str, q: np.ndarray, eps: float) -> np.ndarray:
    """The diagonal h of H: √q + ε of eq. 7, q + ε of eq. 8."""
    return (np.sqrt(q) if metric == "coordinate" else q) + eps


def fedda(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    alpha: Rate,
    gradient: str = "mvr",
    metric: str = "coordinate",
    b: float = 0.999,
    eps: float = 0.01,
    h0: float | str = 0.0,
    lam: float = 1.0,
    regularizer: Regularizer | None = None,
    warmup_batches: int | None = None,
) -> Reference:
    """FedDA (FedDA, Algorithms 1 and 2; FedDA-MVR with "mvr" and "coordinate"). ν^0 = warm-up gradient.

    The paper says μ_0 = 0 and leaves H_0 and λ open: h0 and lam. h0 = 0 is q^0 = 0, h = ε.

    y_0 = x^r, ν_i = ν^r, z_0 = 0, s_0 = 0; for k = 0…K−1, at the global step t = rK + k, h frozen in the round:
    z_{k+1} = z_k − η_t ν_i; s_{k+1} = s_k + η_t; y_{k+1} = step(x^r + λ z_{k+1}/h, h, λ s_{k+1});
    "mvr": ν_i ← g_i(y_{k+1}; ξ_k) + (1−α_{t+1})(ν_i − g_i(y_k; ξ_k)); "momentum": ν_i ← α_{t+1} g_i(y_{k+1}; ξ_k) +
    (1−α_{t+1}) ν_i. Then z̄ = Σ ω_i z_i / Σ ω_i; x^{r+1} = step(x^r + λ z̄/h, h, λ s_K); ν^{r+1} = Σ ω_i ν_i / Σ ω_i;
    "coordinate": q ← b q + (1−b)(z̄/η)², h = √q + ε; "norm": q ← b q + (1−b) ‖z̄‖₂/η, h = q + ε; η of the last step.
    b is the weight of the old q. η_t = lr(t), α_{t+1} = alpha(t).
    Final states: v (ν), q and h of x's shape.
    """
    x = _start(x0)
    v = _warm_up(grads, p, x, warmup_batches)
    q = _first_moment(metric, v, h0)
    K = int(_steps(taus, 0)[0])
    iterates = [x]
    for r in range(rounds):
        if any(tau != K for tau in _steps(taus, r)):
            raise ValueError(f"round {r}: FedDA is defined for equal numbers of steps")
        cohort = _cohort(cohorts, r)
        total = sum(w for _, w in cohort)
        h = _scale(metric, q, eps)
        s = sum(_at(lr, r * K + k) for k in range(K))
        z_mean = np.zeros_like(x)
        v_mean = np.zeros_like(x)
        for i, w in cohort:
            y = x
            u = v
            z = np.zeros_like(x)
            s_k = 0.0
            for k in range(K):
                t = r * K + k
                y_old = y
                z = z - _at(lr, t) * u
                s_k = s_k + _at(lr, t)
                y = _primal(regularizer, z, s_k, x, h, lam)
                u = _estimate(gradient, grads[i](y, k, r, 0), grads[i](y_old, k, r, 0), u, _at(alpha, t))
            z_mean = z_mean + w * z / total
            v_mean = v_mean + w * u / total
        x = _primal(regularizer, z_mean, s, x, h, lam)
        v = v_mean
        q = _second_moment(metric, q, z_mean / _at(lr, r * K + K - 1), b)
        iterates.append(x)
    return Reference(np.stack(iterates), {"v": v, "q": q, "h": _scale(metric, q, eps)})


def fedda_distributed(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    alpha: Rate,
    gradient: str = "mvr",
    metric: str = "coordinate",
    b: float = 0.999,
    eps: float = 0.01,
    h0: float | str = 0.0,
    lam: float = 1.0,
    regularizer: Regularizer | None = None,
    warmup_batches: int | None = None,
) -> Reference:
    """FedDA-Distributed (FedDA, Algorithm 3): the server steps, the clients estimate. `taus` is not read.

    x^{r+1} = argmin over X of η ⟨x, ν^r⟩ + η ψ(x) + (1/2λ) Σ_j h_j (x_j − x^r_j)²; ν_i = U of ν^r, x^{r+1}, x^r and
    minibatch 0; ν^{r+1} = Σ ω_i ν_i / Σ ω_i; h ← V(h, ν^r). η = lr(r), α = alpha(r).
    Final states: v (ν), q and h of x's shape.
    """
    x = _start(x0)
    v = _warm_up(grads, p, x, warmup_batches)
    q = _first_moment(metric, v, h0)
    iterates = [x]
    for r in range(rounds):
        cohort = _cohort(cohorts, r)
        h = _scale(metric, q, eps)
        x_old = x
        x = _prox(regularizer, x - lam * _at(lr, r) * v / h, h, lam * _at(lr, r))
        q = _second_moment(metric, q, v, b)
        v_mean = np.zeros_like(x)
        for i, w in cohort:
            v_i = _estimate(gradient, grads[i](x, 0, r, 0), grads[i](x_old, 0, r, 0), v, _at(alpha, r))
            v_mean = v_mean + w * v_i
        v = v_mean / sum(w for _, w in cohort)
        iterates.append(x)
    return Reference(np.stack(iterates), {"v": v, "q": q, "h": _scale(metric, q, eps)})


# Adaptive steps at the clients.


def local_adapt(
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
    correction: str | None = None,
) -> Reference:
    """Local-Adapt (Wang et al. 2021): Adam at the clients, from m = v = 0 in every round, and Adam at the server.

    Client: m ← β₁m + (1−β₁)g, v ← β₂v + (1−β₂)g², P = 1/(√v + ε), y ← y − ηmP; a ← β₁a + (1−β₁)P, C_i ← C_i + a.
    Δ̄ = ⟨Δ_i⟩, or ⟨Δ_i/C_i⟩ ("local"), or ⟨Δ_i/C_i⟩ / ⟨1/C_i⟩ ("joint"), coordinate by coordinate.
    Server: m ← β₁m + (1−β₁)Δ̄, v ← β₂v + (1−β₂)Δ̄², x ← x + γ m/(√v + ε), from m = 0 and v = ε².
    Neither corrects the bias of m and v. Final states: m, v.
    """
    if correction not in (None, "local", "joint"):
        raise ValueError(f"correction {correction!r} is not None, 'local' or 'joint'")
    x = _start(x0)
    m = np.zeros_like(x)
    v = np.full_like(x, eps**2)
    iterates = [x]
    for r in range(rounds):
        steps = _steps(taus, r)
        change = np.zeros_like(x)
        inverse = np.zeros_like(x)
        for i, w in _cohort(cohorts, r):
            y = x
            m_i, v_i, a, C = (np.zeros_like(x) for _ in range(4))
            for k in range(int(steps[i])):
                g = grads[i](y, k, r, 0)
                m_i = beta1 * m_i + (1 - beta1) * g
                v_i = beta2 * v_i + (1 - beta2) * g**2
                P = 1 / (np.sqrt(v_i) + eps)
                y = y - _at(lr, r) * m_i * P
                a = beta1 * a + (1 - beta1) * P
                C = C + a
            change = change + w * (y - x) / (1 if correction is None else C)
            inverse = inverse + w / C
        if correction == "joint":
            change = change / inverse
        m = beta1 * m + (1 - beta1) * change
        v = beta2 * v + (1 - beta2) * change**2
        x = x + _at(server_lr, r) * m / (np.sqrt(v) + eps)
        iterates.append(x)
    return Reference(np.stack(iterates), {"m": m, "v": v})


def local_amsgrad(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    beta1: float,
    beta2: float,
    eps: float,
    lag: bool = False,
) -> Reference:
    """Local-AMSGrad (Chen et al. 2020b): m_i and v_i of the clients persist, v̂ is shared and frozen; v̂⁰ = ε.

    m_i ← β₁m_i + (1−β₁)g, v_i ← β₂v_i + (1−β₂)g², y ← y − ηm_i/√v̂. Before the last step of the round's τ_i,
    v̂ ← max(v̂, Σ ω_i v_i / Σ ω_i); then x ← x + ⟨y_i − ηm_i/√v̂ − x⟩.
    lag=True: the last step has the old v̂, and v̂ changes after it.
    Final states: v_hat, m [N, …], v [N, …].
    """
    x = _start(x0)
    v_hat = np.full_like(x, eps)
    m = [np.zeros_like(x) for _ in p]
    v = [np.zeros_like(x) for _ in p]
    iterates = [x]
    for r in range(rounds):
        steps = _steps(taus, r)
        cohort = _cohort(cohorts, r)
        total = sum(w for _, w in cohort)
        before_last = []
        v_mean = np.zeros_like(x)
        for i, w in cohort:
            y = x
            for k in range(int(steps[i])):
                g = grads[i](y, k, r, 0)
                m[i] = beta1 * m[i] + (1 - beta1) * g
                v[i] = beta2 * v[i] + (1 - beta2) * g**2
                if k < int(steps[i]) - 1:
                    y = y - _at(lr, r) * m[i] / np.sqrt(v_hat)
            before_last.append(y)
            v_mean = v_mean + w * v[i] / total
        v_new = np.maximum(v_hat, v_mean)
        last = v_hat if lag else v_new
        change = np.zeros_like(x)
        for (i, w), y in zip(cohort, before_last, strict=True):
            change = change + w * (y - _at(lr, r) * m[i] / np.sqrt(last) - x)
        v_hat = v_new
        x = x + change
        iterates.append(x)
    return Reference(np.stack(iterates), {"v_hat": v_hat, "m": np.stack(m), "v": np.stack(v)})
