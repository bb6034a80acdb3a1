"""MB-STORM, CE-LSGD, BVR-L-SGD, STEM, FedGLOMO, Mime and MimeMVR, client by client, in NumPy float64.

The arguments are those of `fedavg_family`, but a gradient is g_i(x, minibatch k, round r, exchange e=0):
- k=None is the full local gradient;
- the same (k, r, e) is the same minibatch at whatever point, and minibatches of different exchanges differ;
- r=−1 is the warm-up before round 0: the mean over `warmup_batches` minibatches per client and over all clients at x^0,
  or zeros where `warmup_batches` is None.
x^{−1} = x^0. Where nothing else is said, `lr` is η_r and `server_lr` multiplies the mean change of the model.
"""

from collections.abc import Callable, Sequence

import numpy as np

from .fedavg_family import Cohorts, Rate, Reference, Taus, _at, _cohort, _start, _steps, effective_steps

Grad = Callable[..., np.ndarray]


def _warm_up(grads: Sequence[Grad], p: Sequence[float], x: np.ndarray, batches: int | None) -> np.ndarray:
    """Σ_i p_i (1/B) Σ_{k<B} g_i(x^0; ξ_k) over all clients, at r = −1."""
    mean = np.zeros_like(x)
    if batches is None:
        return mean
    for i in range(len(p)):
        for k in range(batches):
            mean = mean + p[i] * grads[i](x, k, -1) / batches
    return mean


def _minibatch_mean(grad: Grad, x: np.ndarray, tau: int, r: int) -> np.ndarray:
    """ĝ_i(x) = (1/τ_i) Σ_{k<τ_i} g_i(x; ξ_k), exchange 0."""
    total = np.zeros_like(x)
    for k in range(int(tau)):
        total = total + grad(x, k, r, 0)
    return total / int(tau)


def _mean_steps(cohort: list[tuple[int, float]], steps: np.ndarray) -> float:
    """Σ ω_i τ_i / Σ ω_i."""
    return sum(w * steps[i] for i, w in cohort) / sum(w for _, w in cohort)


def _full_mean(grads: Sequence[Grad], cohort: list[tuple[int, float]], x: np.ndarray, r: int) -> np.ndarray:
    """⟨∇F_i(x)⟩ over the cohort, exchange 0."""
    mean = np.zeros_like(x)
    for i, w in cohort:
        mean = mean + w * grads[i](x, None, r, 0)
    return mean


def _storm(grads, cohort, steps, x, x_prev, v, r, beta) -> np.ndarray:
    """⟨ĝ_i(x^r)⟩ + (1−β)(v − ⟨ĝ_i(x^{r−1})⟩), both ĝ_i over the same τ_i minibatches."""
    new = np.zeros_like(x)
    old = np.zeros_like(x)
    for i, w in cohort:
        new = new + w * _minibatch_mean(grads[i], x, steps[i], r)
        old = old + w * _minibatch_mean(grads[i], x_prev, steps[i], r)
    return new + (1 - beta) * (v - old)


def _sarah(grad: Grad, x: np.ndarray, u: np.ndarray, tau: int, lr: float, r: int, e: int) -> np.ndarray:
    """y_τ from y_0 = x: for k = 0…τ−1, u ← u + g(y_k; ξ_k) − g(y_{k−1}; ξ_k), then y_{k+1} = y_k − ηu; y_{−1} = y_0.

    The correction made before step k has the k-th minibatch, and is zero at k = 0.
    """
    y = y_prev = x
    for k in range(int(tau)):
        u = u + grad(y, k, r, e) - grad(y_prev, k, r, e)
        y_prev = y
        y = y - lr * u
    return y


def _local_phase(grads, cohort, steps, x, v, r, lr, pick, chosen) -> np.ndarray:
    """x^{r+1} after SARAH steps from (x^r, v^r) in exchange 1, of one client or as x^r + ⟨y_{i,τ_i} − x^r⟩."""
    if pick == "random":
        i = int(chosen[r])
        return _sarah(grads[i], x, v, steps[i], lr, r, 1)
    if pick == "average":
        change = np.zeros_like(x)
        # All clients begin along v: −ητ_i v is known of their changes, and is kept apart from the sum of weights ω.
        for i, w in cohort:
            change = change + w * (_sarah(grads[i], x, v, steps[i], lr, r, 1) - x + lr * steps[i] * v)
        return x + change - lr * _mean_steps(cohort, steps) * v
    raise ValueError(f"pick {pick!r} is neither 'random' nor 'average'")


# Recursive variance reduction of the server's direction.


def mb_storm(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    beta: float,
    warmup_batches: int | None = None,
) -> Reference:
    """MB-STORM (Patel et al. 2022): v^0 = warm-up gradient, and for r ≥ 1

    v^r = ⟨ĝ_i(x^r)⟩ + (1−β)(v^{r−1} − ⟨ĝ_i(x^{r−1})⟩), ĝ_i over the same τ_i minibatches at both points;
    x^{r+1} = x^r − γ v^r with γ = lr. There are no local steps. Final states: v^{R−1}, x_prev = x^{R−1}.
    """
    x = x_prev = _start(x0)
    v = _warm_up(grads, p, x, warmup_batches)
    iterates = [x]
    for r in range(rounds):
        if r >= 1:
            v = _storm(grads, _cohort(cohorts, r), _steps(taus, r), x, x_prev, v, r, beta)
        x_prev = x
        x = x - _at(lr, r) * v
        iterates.append(x)
    return Reference(np.stack(iterates), {"v": v, "x_prev": x_prev})


def ce_lsgd(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    beta: float,
    pick: str = "random",
    chosen: Sequence[int] | None = None,
    warmup_batches: int | None = None,
) -> Reference:
    """CE-LSGD (Patel et al. 2022): the v^r of MB-STORM (exchange 0), then SARAH steps from it (exchange 1).

    y_0 = x^r, u = v^r; for k = 0…τ_i−1: u ← u + g_i(y_k; ξ_k) − g_i(y_{k−1}; ξ_k), y_{−1} = y_0; y_{k+1} = y_k − ηu.
    pick="random": x^{r+1} is y_τ of client chosen[r]; pick="average": x^{r+1} = x^r + ⟨y_{i,τ_i} − x^r⟩.
    Final states: v^{R−1}, x_prev = x^{R−1}.
    """
    x = x_prev = _start(x0)
    v = _warm_up(grads, p, x, warmup_batches)
    iterates = [x]
    for r in range(rounds):
        steps = _steps(taus, r)
        cohort = _cohort(cohorts, r)
        if r >= 1:
            v = _storm(grads, cohort, steps, x, x_prev, v, r, beta)
        x_prev = x
        x = _local_phase(grads, cohort, steps, x, v, r, _at(lr, r), pick, chosen)
        iterates.append(x)
    return Reference(np.stack(iterates), {"v": v, "x_prev": x_prev})


def bvr_l_sgd(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    period: int | None = None,
    pick: str = "random",
    chosen: Sequence[int] | None = None,
) -> Reference:
    """BVR-L-SGD (Murata and Suzuki 2021): SARAH over the rounds and within them.

    v^r = ⟨∇F_i(x^r)⟩ at r = 0 and every `period` rounds, else v^r = v^{r−1} + ⟨ĝ_i(x^r) − ĝ_i(x^{r−1})⟩, ĝ_i over the
    same τ_i minibatches at both points (exchange 0). Local phase (exchange 1) and pick: as in CE-LSGD.
    Final states: v^{R−1}, x_prev = x^{R−1}.
    """
    x = x_prev = _start(x0)
    v = np.zeros_like(x)
    iterates = [x]
    for r in range(rounds):
        steps = _steps(taus, r)
        cohort = _cohort(cohorts, r)
        if r == 0 or (period is not None and r % period == 0):
            v = _full_mean(grads, cohort, x, r)
        else:
            change = np.zeros_like(x)
            for i, w in cohort:
                new = _minibatch_mean(grads[i], x, steps[i], r)
                old = _minibatch_mean(grads[i], x_prev, steps[i], r)
                change = change + w * (new - old)
            v = v + change
        x_prev = x
        x = _local_phase(grads, cohort, steps, x, v, r, _at(lr, r), pick, chosen)
        iterates.append(x)
    return Reference(np.stack(iterates), {"v": v, "x_prev": x_prev})


def stem(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    alpha: Rate,
    prev: str = "averaged",
    warmup_batches: int | None = None,
) -> Reference:
    """STEM (Khanduri et al. 2021): x_{i,0} = x^r, d_{i,0} = d^r, and for k = 0…K−1, at the global step t = rK + k,

    x_{i,k+1} = x_{i,k} − η_t d_{i,k}; d_{i,k+1} = g_i(x_{i,k+1}; ξ_k) + (1 − a_{t+1})(d_{i,k} − g_i(x_{i,k}; ξ_k));
    then x and d become Σ ω_i x_{i,K} / Σ ω_i and Σ ω_i d_{i,K} / Σ ω_i. d^0 = warm-up gradient.
    `lr` and `alpha` are functions of t: η_t = lr(t), a_{t+1} = alpha(t). The correction after step k has minibatch k.
    prev="local": the old point of a round's first correction is x_{i,K} of the client's last round (x^0 before that).
    Final states: d, last [N, …] = the x_{i,K}.
    """
    if prev not in ("averaged", "local"):
        raise ValueError(f"prev {prev!r} is neither 'averaged' nor 'local'")
    x = _start(x0)
    d = _warm_up(grads, p, x, warmup_batches)
    last = [x for _ in p]
    K = int(_steps(taus, 0)[0])
    iterates = [x]
    for r in range(rounds):
        if any(tau != K for tau in _steps(taus, r)):
            raise ValueError(f"round {r}: STEM is defined for equal numbers of steps")
        cohort = _cohort(cohorts, r)
        total = sum(w for _, w in cohort)
        x_mean = np.zeros_like(x)
        d_mean = np.zeros_like(x)
        for i, w in cohort:
            y = x
            u = d
            for k in range(K):
                t = r * K + k
                old = last[i] if prev == "local" and k == 0 else y
                y = y - _at(lr, t) * u
                u = grads[i](y, k, r, 0) + (1 - _at(alpha, t)) * (u - grads[i](old, k, r, 0))
            last[i] = y
            x_mean = x_mean + w * y / total
            d_mean = d_mean + w * u / total
        x = x_mean
        d = d_mean
        iterates.append(x)
    return Reference(np.stack(iterates), {"d": d, "last": np.stack(last)})


def fedglomo(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    beta: float,
) -> Reference:
    """FedGLOMO without compression (Das et al. 2022). G_i(z) = z − y_τ of SARAH steps from z and the full gradient:

    y_0 = z, v_0 = ∇F_i(z); v_k = v_{k−1} + g_i(y_k; ξ_k) − g_i(y_{k−1}; ξ_k) for k ≥ 1, y_{k+1} = y_k − ηv_k.
    u = ⟨G_i(x^r)⟩ + (1−β)(u − ⟨G_i(x^{r−1})⟩), both with the same minibatches, and u = ⟨G_i(x^0)⟩ at r = 0; x ← x − u.
    For unequal τ_i, u is in units of one step: ⟨G_i/τ_i⟩ stands for ⟨G_i⟩, and x ← x − τ_eff u, τ_eff = Σ ω̂_i τ_i.
    Final states: u (of one step), x_prev = x^{R−1}.
    """
    x = x_prev = _start(x0)
    u = np.zeros_like(x)
    iterates = [x]
    for r in range(rounds):
        steps = _steps(taus, r)
        cohort = _cohort(cohorts, r)
        new = np.zeros_like(x)
        old = np.zeros_like(x)
        for i, w in cohort:
            y = _sarah(grads[i], x, grads[i](x, None, r, 0), steps[i], _at(lr, r), r, 0)
            new = new + w * (x - y) / steps[i]
            if r >= 1:
                y = _sarah(grads[i], x_prev, grads[i](x_prev, None, r, 0), steps[i], _at(lr, r), r, 0)
                old = old + w * (x_prev - y) / steps[i]
        u = new if r == 0 else new + (1 - beta) * (u - old)
        tau_eff = effective_steps("ptau", [w for _, w in cohort], [], [steps[i] for i, _ in cohort])
        x_prev = x
        x = x - tau_eff * u
        iterates.append(x)
    return Reference(np.stack(iterates), {"u": u, "x_prev": x_prev})


# The server's statistics, frozen in the clients' steps.


def mime(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    base: str = "sgd",
    lite: bool = False,
    server_lr: Rate = 1.0,
    momentum: float = 0.9,
    beta1: float = 0.9,
    beta2: float = 0.99,
    eps: float = 1e-3,
) -> Reference:
    """Mime, and MimeLite with lite=True (Karimireddy et al. 2020a).

    c = ⟨∇F_i(x^r)⟩; a client steps y ← y − ηU(g, s) with the server's statistics s frozen, and
    g = g_i(y; ξ_k) − g_i(x^r; ξ_k) + c (Mime), g = g_i(y; ξ_k) (MimeLite); x ← x + γ_m ⟨Δ_i⟩; then s ← V(c, s).
    sgd: U = g. momentum β: U = (1−β)g + βm; m ← (1−β)c + βm.
    adam: U = [(1−β₁)g + β₁m] / (ε + √v); m ← (1−β₁)c + β₁m, v ← (1−β₂)c² + β₂v. m and v start at zero.
    The full gradients are exchange 0; the local steps are exchange 1, in MimeLite 0. Final states: m, v.
    Where Σ ω_i is not 1: Mime's ⟨Δ_i⟩ has ω̂_i = ω_i/Σω; of MimeLite's, −ητ_i U(0, s) is kept apart from the sum.
    """
    x = _start(x0)
    m = np.zeros_like(x)
    v = np.zeros_like(x)
    iterates = [x]
    for r in range(rounds):
        steps = _steps(taus, r)
        cohort = _cohort(cohorts, r)
        c = _full_mean(grads, cohort, x, r)
        change = np.zeros_like(x)
        for i, w in cohort:
            y = x
            for k in range(int(steps[i])):
                g = grads[i](y, k, r, 0) if lite else grads[i](y, k, r, 1) - grads[i](x, k, r, 1) + c
                if base == "sgd":
                    direction = g
                elif base == "momentum":
                    direction = (1 - momentum) * g + momentum * m
                elif base == "adam":
                    direction = ((1 - beta1) * g + beta1 * m) / (eps + np.sqrt(v))
                else:
                    raise ValueError(f"base {base!r} is not 'sgd', 'momentum' or 'adam'")
                y = y - _at(lr, r) * direction
            if lite:
                known = {"sgd": 0.0 * m, "momentum": momentum * m, "adam": beta1 * m / (eps + np.sqrt(v))}[base]
                change = change + w * (y - x + _at(lr, r) * steps[i] * known)
            else:
                change = change + w / sum(w for _, w in cohort) * (y - x)
        if lite:
            change = change - _at(lr, r) * _mean_steps(cohort, steps) * known
        x = x + _at(server_lr, r) * change
        if base == "momentum":
            m = (1 - momentum) * c + momentum * m
        elif base == "adam":
            m = (1 - beta1) * c + beta1 * m
            v = (1 - beta2) * c**2 + beta2 * v
        iterates.append(x)
    return Reference(np.stack(iterates), {"m": m, "v": v})


def mime_mvr(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    alpha: float,
    lite: bool = False,
    server_lr: Rate = 1.0,
    ref: str = "previous",
) -> Reference:
    """MimeMVR, and MimeLiteMVR with lite=True (Karimireddy et al. 2020a).

    y ← y − η[a g + (1−a)(m + g_i(y; ξ_k) − g_i(x^{r−1}; ξ_k))] with m frozen, and the g of Mime or MimeLite;
    x ← x + γ_m ⟨Δ_i⟩; then m ← c + (1−a)(m − ⟨∇F_i(x^{r−1})⟩), c = ⟨∇F_i(x^r)⟩. m^0 = Σ p_i ∇F_i(x^0), at r = −1.
    ref="current" puts x^r for x^{r−1} in the client's step, not in m. Exchanges: as in Mime.
    Where Σ ω_i is not 1: MimeMVR's ⟨Δ_i⟩ has ω̂_i = ω_i/Σω; of MimeLiteMVR's, −ητ_i (1−a)m is kept apart from the sum.
    Final states: m, x_prev = x^{R−1}.
    """
    if ref not in ("previous", "current"):
        raise ValueError(f"ref {ref!r} is neither 'previous' nor 'current'")
    x = x_prev = _start(x0)
    m = np.zeros_like(x)
    for i in range(len(p)):
        m = m + p[i] * grads[i](x, None, -1, 0)
    e = 0 if lite else 1
    iterates = [x]
    for r in range(rounds):
        steps = _steps(taus, r)
        cohort = _cohort(cohorts, r)
        c = _full_mean(grads, cohort, x, r)
        c_prev = _full_mean(grads, cohort, x_prev, r)
        point = x_prev if ref == "previous" else x
        change = np.zeros_like(x)
        for i, w in cohort:
            y = x
            for k in range(int(steps[i])):
                raw = grads[i](y, k, r, e)
                g = raw if lite else raw - grads[i](x, k, r, e) + c
                y = y - _at(lr, r) * (alpha * g + (1 - alpha) * (m + raw - grads[i](point, k, r, e)))
            if lite:
                change = change + w * (y - x + _at(lr, r) * steps[i] * (1 - alpha) * m)
            else:
                change = change + w / sum(w for _, w in cohort) * (y - x)
        if lite:
            change = change - _at(lr, r) * _mean_steps(cohort, steps) * (1 - alpha) * m
        x_prev = x
        x = x + _at(server_lr, r) * change
        m = c + (1 - alpha) * (m - c_prev)
        iterates.append(x)
    return Reference(np.stack(iterates), {"m": m, "x_prev": x_prev})
