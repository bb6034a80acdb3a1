"""Control variates, primal-dual methods and client momentum, client by client, in NumPy float64.

SCAFFOLD, FedGATE, LED, Scaffnew, FedDyn, FedPD, and the four methods of Cheng et al. 2024. The arguments are those of
`fedavg_family`, and a gradient has two more: grads[i](x, k, r, e=0) is the gradient of client i at x on minibatch k of
exchange e of round r, k=None the full local gradient. The warm-up before the first round is r=-1, e=0.

Means over a cohort are Σ_{S_r} ω_i v_i, or with ω̂_i = ω_i / Σ ω_j, Σ_{S_r} ω̂_i v_i: an extension, where Σ ω_j is not 1.
A mean over all clients is Σ p_i v_i; it changes by Σ_{S_r} p_i δ_i.
`server_lr` multiplies the mean change of the model: γ/(ηK) where the source writes x ← x − γ g.
"""

from collections.abc import Callable, Sequence

import numpy as np

from .fedavg_family import Cohorts, Rate, Reference, Taus, _at, _cohort, _start, _steps

Grad = Callable[..., np.ndarray]


def _warmup(grads: Sequence[Grad], x: np.ndarray, batches: int | None) -> list[np.ndarray]:
    """(1/B) Σ_b g_i(x^0; ξ_i^b) of all clients (Cheng et al. 2024, Theorems 2 to 4); zeros where B is None."""
    if batches is None:
        return [np.zeros_like(x) for _ in grads]
    return [sum(grad(x, b, -1) for b in range(batches)) / batches for grad in grads]


def _mean(p: Sequence[float], v: Sequence[np.ndarray]) -> np.ndarray:
    """Σ p_i v_i over all clients."""
    return sum(p_i * v_i for p_i, v_i in zip(p, v, strict=True))


def _effective_steps(cohort: list[tuple[int, float]], steps: np.ndarray) -> float:
    """τ_eff = Σ ω_i τ_i / Σ ω_i."""
    return sum(w * steps[i] for i, w in cohort) / _total(cohort)


def _total(cohort: list[tuple[int, float]]) -> float:
    """Σ ω_i."""
    return sum(w for _, w in cohort)


def _check_form(form: str) -> None:
    if form not in ("published", "reparameterised"):
        raise ValueError(f'form is "published" or "reparameterised", not {form!r}')


# Control variates.


def scaffold(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    option: int = 2,
    server_lr: Rate = 1.0,
    warmup_batches: int | None = None,
) -> Reference:
    """SCAFFOLD, options I and II (Karimireddy et al. 2020, Algorithm 1).

    y ← y − η(g_i(y) − c_i + c) for τ_i steps from y = x^r; then
    c_i⁺ = ∇F_i(x^r) (option I) or c_i − c + (x^r − y)/(ητ_i) (option II);
    x ← x + γ_m Σ ω̂_i (y_i − x^r); c ← c + Σ_{S_r} p_i (c_i⁺ − c_i).
    c_i starts at zero, or at its warm-up, and c at Σ p_i c_i. Final states: c_i [N, …], c.
    """
    if option not in (1, 2):
        raise ValueError(f"option is 1 or 2, not {option}")
    x = _start(x0)
    c_i = _warmup(grads, x, warmup_batches)
    c = _mean(p, c_i)
    iterates = [x]
    for r in range(rounds):
        eta = _at(lr, r)
        steps = _steps(taus, r)
        change = np.zeros_like(x)
        c_change = np.zeros_like(x)
        cohort = _cohort(cohorts, r)
        for i, w in cohort:
            y = x
            for k in range(int(steps[i])):
                y = y - eta * (grads[i](y, k, r) - c_i[i] + c)
            new = grads[i](x, None, r) if option == 1 else c_i[i] - c + (x - y) / (eta * steps[i])
            change = change + w / _total(cohort) * (y - x)
            c_change = c_change + p[i] * (new - c_i[i])
            c_i[i] = new
        x = x + _at(server_lr, r) * change
        c = c + c_change
        iterates.append(x)
    return Reference(np.stack(iterates), {"c_i": np.stack(c_i), "c": c})


def fedgate(
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
    """FedGATE (Haddadpour et al. 2021); VRL-SGD (Liang et al. 2019) with server_lr=1.

    y ← y − η(g_i(y) − Λ_i) for τ_i steps from y = x^r, Δ_i = y − x^r; x ← x + γ_m Σ ω_j Δ_j;
    Λ_i ← Λ_i + (Σ ω_j Δ_j − Δ_i)/(ητ_i), Λ_i = 0 at first.
    Defined for all clients and one number of steps; else the cohort's Λ_i alone change, with their own τ_i.
    Final state: Lambda [N, …].
    """
    x = _start(x0)
    Lambda = [np.zeros_like(x) for _ in p]
    iterates = [x]
    for r in range(rounds):
        eta = _at(lr, r)
        steps = _steps(taus, r)
        cohort = _cohort(cohorts, r)
        changes = {}
        for i, _ in cohort:
            y = x
            for k in range(int(steps[i])):
                y = y - eta * (grads[i](y, k, r) - Lambda[i])
            changes[i] = y - x
        mean = sum(w * changes[i] for i, w in cohort)
        for i, _ in cohort:
            Lambda[i] = Lambda[i] + (mean - changes[i]) / (eta * steps[i])
        x = x + _at(server_lr, r) * mean
        iterates.append(x)
    return Reference(np.stack(iterates), {"Lambda": np.stack(Lambda)})


def led(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    b: float,
) -> Reference:
    """LED, Local Exact-Diffusion, with a server (Alghunaim 2023).

    φ_i ← φ_i − ηg_i(φ_i) − b y_i for τ_i steps from φ_i = x^r; x^{r+1} = x^r + Σ ω_i (φ_i − x^r);
    y_i ← y_i + φ_i − x^{r+1}, y_i = 0 at first. Defined for all clients. Final state: y [N, …].
    """
    x = _start(x0)
    y = [np.zeros_like(x) for _ in p]
    iterates = [x]
    for r in range(rounds):
        eta = _at(lr, r)
        steps = _steps(taus, r)
        cohort = _cohort(cohorts, r)
        phi = {}
        for i, _ in cohort:
            phi[i] = x
            for k in range(int(steps[i])):
                phi[i] = phi[i] - eta * grads[i](phi[i], k, r) - b * y[i]
        x = x + sum(w * (phi[i] - x) for i, w in cohort)
        for i, _ in cohort:
            y[i] = y[i] + phi[i] - x
        iterates.append(x)
    return Reference(np.stack(iterates), {"y": np.stack(y)})


def scaffnew(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    probability: float,
) -> Reference:
    """Scaffnew (Mishchenko et al. 2022), where the coin says "communicate" in the last iteration of each round.

    Each iteration x̂_i = x_i − η(g_i(x_i) − h_i). In the last of the round's τ_i iterations
    x_i ← x̄ = x^r + Σ ω_j (x̂_j − x^r) and h_i ← h_i + (p_c/η)(x̄ − x̂_i); in the others x_i ← x̂_i. h_i = 0 at first.
    `probability` is p_c, whatever the number of iterations. Defined for all clients and one number of iterations.
    Final state: h [N, …].
    """
    x_bar = _start(x0)
    h = [np.zeros_like(x_bar) for _ in p]
    iterates = [x_bar]
    for r in range(rounds):
        eta = _at(lr, r)
        steps = _steps(taus, r)
        cohort = _cohort(cohorts, r)
        x_hat = {}
        for i, _ in cohort:
            x_i = x_bar
            for k in range(int(steps[i])):
                x_hat[i] = x_i - eta * (grads[i](x_i, k, r) - h[i])
                x_i = x_hat[i]
        x_bar = x_bar + sum(w * (x_hat[i] - x_bar) for i, w in cohort)
        for i, _ in cohort:
            h[i] = h[i] + (probability / eta) * (x_bar - x_hat[i])
        iterates.append(x_bar)
    return Reference(np.stack(iterates), {"h": np.stack(h)})


# Primal-dual methods.


def feddyn(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    alpha: float,
) -> Reference:
    """FedDyn with local SGD (Acar et al. 2021, Algorithm 1).

    y ← y − η[g_i(y) − λ_i + α(y − x^r)] for τ_i steps from y = x^r; λ_i ← λ_i − α(y_i − x^r);
    h ← h − α Σ_{S_r} p_i (y_i − x^r); x ← Σ ω̂_i y_i − h/α. λ_i = 0 and h = 0 at first.
    Final states: lambda [N, …], h.
    """
    x = _start(x0)
    lam = [np.zeros_like(x) for _ in p]
    h = np.zeros_like(x)
    iterates = [x]
    for r in range(rounds):
        eta = _at(lr, r)
        steps = _steps(taus, r)
        mean = np.zeros_like(x)
        share = np.zeros_like(x)
        cohort = _cohort(cohorts, r)
        for i, w in cohort:
            y = x
            for k in range(int(steps[i])):
                y = y - eta * (grads[i](y, k, r) - lam[i] + alpha * (y - x))
            lam[i] = lam[i] - alpha * (y - x)
            mean = mean + w / _total(cohort) * y
            share = share + p[i] * (y - x)
        h = h - alpha * share
        x = mean - h / alpha
        iterates.append(x)
    return Reference(np.stack(iterates), {"lambda": np.stack(lam), "h": h})


def fedpd(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    alpha: float,
    phases: Sequence[int] | None = None,
) -> Reference:
    """FedPD with local SGD (Zhang et al. 2021, Algorithm 1), η_pd = 1/α.

    A phase of client i: τ_i steps x_i ← x_i − η[g_i(x_i) + λ_i + α(x_i − x_{0,i})] from x_i = x_{0,i};
    λ_i ← λ_i + α(x_i − x_{0,i}); x⁺_i = x_i + λ_i/α; x_{0,i} ← x⁺_i.
    Round r has phases[r] of them (1 unless given), on minibatches jτ_i, …, (j + 1)τ_i − 1 in phase j. Then the clients
    communicate: x^{r+1} = x^r + Σ ω_i (x⁺_i − x^r), and x_{0,i} ← x^{r+1}. λ_i = 0 at first.
    Defined for all clients. Final state: lambda [N, …].
    """
    x = _start(x0)
    lam = [np.zeros_like(x) for _ in p]
    iterates = [x]
    for r in range(rounds):
        eta = _at(lr, r)
        steps = _steps(taus, r)
        mean = np.zeros_like(x)
        for i, w in _cohort(cohorts, r):
            tau = int(steps[i])
            x_0i = x
            for j in range(1 if phases is None else int(phases[r])):
                x_i = x_0i
                for k in range(tau):
                    x_i = x_i - eta * (grads[i](x_i, j * tau + k, r) + lam[i] + alpha * (x_i - x_0i))
                lam[i] = lam[i] + alpha * (x_i - x_0i)
                x_0i = x_i + lam[i] / alpha
            mean = mean + w * (x_0i - x)
        x = x + mean
        iterates.append(x)
    return Reference(np.stack(iterates), {"lambda": np.stack(lam)})


# Client momentum.


def fedavg_m(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    beta: float,
    server_lr: Rate = 1.0,
    form: str = "published",
) -> Reference:
    """FedAvg-M (Cheng et al. 2024, Algorithm 1 and eq. 1), also known as FedCM (Xu et al. 2021).

    y ← y − ηv for τ_i steps from y = x^r, with v = βg_i(y) + (1 − β)g^r;
    g^{r+1} = −Σ ω_i Δ_i/(ητ_i); x ← x + γ_m τ_eff Σ ω_i Δ_i/τ_i, τ_eff = Σ ω_i τ_i / Σ ω_i. g^0 = 0.
    Reparameterised (section D.2): v = g_i(y) + (1 − β)g^r, where lr is η̂ = βη and g is ĝ = g/β. Final state: g.
    Of each Δ_i/τ_i the part −η(1 − β)g^r is known; where Σ ω_i is not 1 it is kept apart from the sum.
    """
    _check_form(form)
    x = _start(x0)
    g = np.zeros_like(x)
    iterates = [x]
    for r in range(rounds):
        eta = _at(lr, r)
        steps = _steps(taus, r)
        cohort = _cohort(cohorts, r)
        per_step = np.zeros_like(x)
        for i, w in cohort:
            y = x
            for k in range(int(steps[i])):
                if form == "published":
                    v = beta * grads[i](y, k, r) + (1 - beta) * g
                else:
                    v = grads[i](y, k, r) + (1 - beta) * g
                y = y - eta * v
            per_step = per_step + w * ((y - x) / steps[i] + eta * (1 - beta) * g)
        per_step = per_step - eta * (1 - beta) * g
        g = -per_step / eta
        x = x + _at(server_lr, r) * _effective_steps(cohort, steps) * per_step
        iterates.append(x)
    return Reference(np.stack(iterates), {"g": g})


def fedavg_m_vr(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    beta: float,
    server_lr: Rate = 1.0,
    warmup_batches: int | None = None,
) -> Reference:
    """FedAvg-M-VR (Cheng et al. 2024, Algorithm 3 and eq. 2).

    y ← y − ηv for τ_i steps from y = x^r, with v = g_i(y) + (1 − β)(g^r − g_i(x^{r−1})) on one minibatch;
    g^{r+1} = −Σ ω̂_i Δ_i/(ητ_i); x ← x + γ_m τ_eff Σ ω̂_i Δ_i/τ_i, τ_eff = Σ ω_i τ_i / Σ ω_i.
    x^{−1} = x^0; g^0 is zero, or the mean over all clients of their warm-up. Final states: g, x_previous = x^{R−1}.
    """
    x = _start(x0)
    x_previous = x
    g = _mean(p, _warmup(grads, x, warmup_batches))
    iterates = [x]
    for r in range(rounds):
        eta = _at(lr, r)
        steps = _steps(taus, r)
        cohort = _cohort(cohorts, r)
        per_step = np.zeros_like(x)
        for i, w in cohort:
            y = x
            for k in range(int(steps[i])):
                v = grads[i](y, k, r) + (1 - beta) * (g - grads[i](x_previous, k, r))
                y = y - eta * v
            per_step = per_step + w / _total(cohort) * (y - x) / steps[i]
        g = -per_step / eta
        x_previous = x
        x = x + _at(server_lr, r) * _effective_steps(cohort, steps) * per_step
        iterates.append(x)
    return Reference(np.stack(iterates), {"g": g, "x_previous": x_previous})


def scaffold_m(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    beta: float,
    server_lr: Rate = 1.0,
    form: str = "published",
    warmup_batches: int | None = None,
) -> Reference:
    """SCAFFOLD-M (Cheng et al. 2024, Algorithm 2 and eq. 3).

    y ← y − ηv for τ_i steps from y = x^r, with v = β(g_i(y) − c_i + c) + (1 − β)g^r;
    c_i⁺ = (1/τ_i) Σ_k g_i(y_k); c ← c + Σ_{S_r} p_i (c_i⁺ − c_i);
    g^{r+1} = −Σ ω̂_i Δ_i/(ητ_i); x ← x + γ_m τ_eff Σ ω̂_i Δ_i/τ_i, τ_eff = Σ ω_i τ_i / Σ ω_i.
    g^0 = 0; c_i starts at zero, or at its warm-up, and c at Σ p_i c_i.
    Reparameterised (section D.2): v = g_i(y) − c_i + c + (1 − β)g^r, where lr is η̂ = βη and g is ĝ = g/β.
    Final states: g, c_i [N, …], c.
    """
    _check_form(form)
    x = _start(x0)
    g = np.zeros_like(x)
    c_i = _warmup(grads, x, warmup_batches)
    c = _mean(p, c_i)
    iterates = [x]
    for r in range(rounds):
        eta = _at(lr, r)
        steps = _steps(taus, r)
        cohort = _cohort(cohorts, r)
        per_step = np.zeros_like(x)
        c_change = np.zeros_like(x)
        for i, w in cohort:
            y = x
            raw = np.zeros_like(x)
            for k in range(int(steps[i])):
                gradient = grads[i](y, k, r)
                raw = raw + gradient
                if form == "published":
                    v = beta * (gradient - c_i[i] + c) + (1 - beta) * g
                else:
                    v = gradient - c_i[i] + c + (1 - beta) * g
                y = y - eta * v
            per_step = per_step + w / _total(cohort) * (y - x) / steps[i]
            c_change = c_change + p[i] * (raw / steps[i] - c_i[i])
            c_i[i] = raw / steps[i]
        g = -per_step / eta
        x = x + _at(server_lr, r) * _effective_steps(cohort, steps) * per_step
        c = c + c_change
        iterates.append(x)
    return Reference(np.stack(iterates), {"g": g, "c_i": np.stack(c_i), "c": c})


def scaffold_m_vr(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    beta: float,
    server_lr: Rate = 1.0,
    warmup_batches: int | None = None,
) -> Reference:
    """SCAFFOLD-M-VR (Cheng et al. 2024, Algorithm 4).

    y ← y − ηv for τ_i steps from y = x^r, with v = g_i(y) − β(c_i − c) + (1 − β)(g^r − g_i(x^{r−1})) on one minibatch;
    c_i⁺ = (1/τ_i) Σ_k g_i(y_k); c ← c + Σ_{S_r} p_i (c_i⁺ − c_i);
    g^{r+1} = −Σ ω̂_i Δ_i/(ητ_i); x ← x + γ_m τ_eff Σ ω̂_i Δ_i/τ_i, τ_eff = Σ ω_i τ_i / Σ ω_i.
    x^{−1} = x^0; c_i starts at zero, or at its warm-up, c at Σ p_i c_i, and g^0 = c^0.
    Final states: g, c_i [N, …], c, x_previous = x^{R−1}.
    """
    x = _start(x0)
    x_previous = x
    c_i = _warmup(grads, x, warmup_batches)
    c = _mean(p, c_i)
    g = c
    iterates = [x]
    for r in range(rounds):
        eta = _at(lr, r)
        steps = _steps(taus, r)
        cohort = _cohort(cohorts, r)
        per_step = np.zeros_like(x)
        c_change = np.zeros_like(x)
        for i, w in cohort:
            y = x
            raw = np.zeros_like(x)
            for k in range(int(steps[i])):
                gradient = grads[i](y, k, r)
                raw = raw + gradient
                v = gradient - beta * (c_i[i] - c) + (1 - beta) * (g - grads[i](x_previous, k, r))
                y = y - eta * v
            per_step = per_step + w / _total(cohort) * (y - x) / steps[i]
            c_change = c_change + p[i] * (raw / steps[i] - c_i[i])
            c_i[i] = raw / steps[i]
        g = -per_step / eta
        x_previous = x
        x = x + _at(server_lr, r) * _effective_steps(cohort, steps) * per_step
        c = c + c_change
        iterates.append(x)
    return Reference(np.stack(iterates), {"g": g, "c_i": np.stack(c_i), "c": c, "x_previous": x_previous})
