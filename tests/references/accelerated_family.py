"""Nesterov accelerated FedAvg and FedMaSS (Qu et al. 2020), client by client, in NumPy float64.

The arguments are those of `fedavg_family`, with equal numbers K of steps. `lr`, `lr2` and `momentum` are numbers or
functions of the global step t = rK + k, k = 0…K−1. The models are averaged by the last step of a round, t + 1 = (r+1)K.

sync says what becomes of a client's second sequence (v of Nesterov, u of FedMaSS) there:
- "paper": it stays with the client, for its next round; all clients take part in every round;
- "both": it is averaged as the first one is, and the server keeps the two;
- "restart": where the gradients are taken is averaged (w of Nesterov, u of FedMaSS), and the other is set to it.
Averages are of differences to the server's: w ← w + Σ ω_i (w_i − w). Both sequences start at x^0.
"""

from collections.abc import Sequence

import numpy as np

from .fedavg_family import Cohorts, Grad, Rate, Reference, Taus, _at, _cohort, _start, _steps


def _equal_steps(taus: Taus, rounds: int) -> int:
    """K, which is the same for all clients and rounds."""
    K = int(_steps(taus, 0)[0])
    for r in range(rounds):
        if any(tau != K for tau in _steps(taus, r)):
            raise ValueError(f"round {r}: the method is defined for equal numbers of steps")
    return K


def _check_sync(sync: str, cohorts: Cohorts, rounds: int, clients: int) -> None:
    if sync not in ("paper", "both", "restart"):
        raise ValueError(f"sync {sync!r} is not 'paper', 'both' or 'restart'")
    for r in range(rounds):
        if sync == "paper" and sorted(i for i, _ in _cohort(cohorts, r)) != list(range(clients)):
            raise ValueError(f"round {r}: sync 'paper' is defined for all clients, not for {cohorts[r][0]}")


def nesterov_fedavg(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    momentum: Rate,
    sync: str = "paper",
) -> Reference:
    """Nesterov accelerated FedAvg (Qu et al. 2020, section 4): in each step of client i, with α_t = lr, β_t = momentum,

    v_{t+1,i} = w_{t,i} − α_t g_i(w_{t,i}; ξ_k); w_{t+1,i} = v_{t+1,i} + β_t (v_{t+1,i} − v_{t,i});
    in the last step of a round all w_{t+1,i} become w^{r+1} = Σ ω_j [v_{t+1,j} + β_t (v_{t+1,j} − v_{t,j})].
    The v_{t,i} of a round's first step is, by sync: "paper" the client's last v_{t+1,i}; "both" v^r = Σ ω_j v_{t+1,j};
    "restart" w^r. Iterates: w^r. Final states: v, [N, …] for "paper", else of x's shape.
    """
    _check_sync(sync, cohorts, rounds, len(p))
    K = _equal_steps(taus, rounds)
    w = v = _start(x0)
    v_local = [w for _ in p]
    iterates = [w]
    for r in range(rounds):
        w_change = np.zeros_like(w)
        v_change = np.zeros_like(w)
        cohort = _cohort(cohorts, r)
        total = sum(omega for _, omega in cohort) if sync == "both" else 1.0  # two sequences are averaged: ω/Σω
        for i, omega in cohort:
            w_i = w
            v_i = v_local[i] if sync == "paper" else v
            for k in range(K):
                t = r * K + k
                v_old = v_i
                v_i = w_i - _at(lr, t) * grads[i](w_i, k, r)
                w_i = v_i + _at(momentum, t) * (v_i - v_old)
            v_local[i] = v_i
            w_change = w_change + omega / total * (w_i - w)
            v_change = v_change + omega / total * (v_i - v)
        w = w + w_change
        v = w if sync == "restart" else v + v_change
        iterates.append(w)
    return Reference(np.stack(iterates), {"v": np.stack(v_local) if sync == "paper" else v})


def fedmass(
    grads: Sequence[Grad],
    p: Sequence[float],
    taus: Taus,
    cohorts: Cohorts,
    x0: np.ndarray,
    rounds: int,
    *,
    lr: Rate,
    lr2: Rate,
    momentum: Rate,
    sync: str = "paper",
) -> Reference:
    """FedMaSS (Qu et al. 2020, section G.2): in each step of client i, with η₁ = lr, η₂ = lr2, γ = momentum,

    w_{t+1,i} = u_{t,i} − η₁ g_i(u_{t,i}; ξ_k); u_{t+1,i} = w_{t+1,i} + γ (w_{t+1,i} − w_{t,i}) + η₂ g_i(u_{t,i}; ξ_k);
    in the last step of a round all w_{t+1,i} become w^{r+1} = Σ ω_j [u_{t,j} − η₁ g_j(u_{t,j}; ξ_k)].
    The u_{t,i} of a round's first step is, by sync: "paper" the client's own w^r + γ (w^r − w_{t−1,i}) + η₂ g_i of the
    step before; "both" u^r = Σ ω_j u_{t,j} with u_{t,j} from the client's own w_{t,j} before averaging; "restart" the
    same, and w^r is set to it, as Nesterov's method sets v to the mean of what it steps from.
    Iterates: w^r. Final states: u, [N, …] for "paper", else of x's shape.
    """
    _check_sync(sync, cohorts, rounds, len(p))
    K = _equal_steps(taus, rounds)
    w = u = _start(x0)
    u_local = [w for _ in p]
    iterates = [w]
    for r in range(rounds):
        w_change = np.zeros_like(w)
        u_change = np.zeros_like(w)
        last = {}
        cohort = _cohort(cohorts, r)
        total = sum(omega for _, omega in cohort) if sync == "both" else 1.0  # two sequences are averaged: ω/Σω
        for i, omega in cohort:
            w_i = w
            u_i = u_local[i] if sync == "paper" else u
            for k in range(K):
                t = r * K + k
                g = grads[i](u_i, k, r)
                w_old = w_i
                w_i = u_i - _at(lr, t) * g
                u_i = w_i + _at(momentum, t) * (w_i - w_old) + _at(lr2, t) * g
            last[i] = w_old, g
            w_change = w_change + omega / total * (w_i - w)
            u_change = u_change + omega / total * (u_i - u)
        w, u = w + w_change, u + u_change
        if sync == "restart":
            w = u
        t = r * K + K - 1
        for i, (w_old, g) in last.items():
            u_local[i] = w + _at(momentum, t) * (w - w_old) + _at(lr2, t) * g
        iterates.append(w)
    return Reference(np.stack(iterates), {"u": np.stack(u_local) if sync == "paper" else u})
