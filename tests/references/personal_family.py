"""Ditto, MR-MTL, IFCA and q-FedAvg, client by client, in NumPy float64; arguments as of `fedavg_family`.

IFCA and q-FedAvg ask for losses. Those of quadratics follow from gradients, F(x) = ½ x·(∇F(x) + ∇F(0)) + c, with c in
the attribute `constant` of a client's gradient, 0 where it has none.
"""

from typing import Any

import numpy as np

from .fedavg_family import Cohorts, Grad, Rate, Reference, Taus, _at, _cohort, _start, _steps, local_solver


def _loss(grad: Any, x: np.ndarray, r: int) -> float:
    return float(0.5 * x @ (grad(x, None, r) + grad(np.zeros_like(x), None, r))) + getattr(grad, "constant", 0.0)


def _alone(grad: Grad, x: np.ndarray, tau: int, lr: float, r: int) -> np.ndarray:
    return local_solver(lambda y, k: grad(y, k, r), x, tau, lr)


def ditto(
    grads: list[Grad], p: Any, taus: Taus, cohorts: Cohorts, x0: Any, rounds: int, *, lr: Rate, personal_lr: float,
    lam: float,
) -> Reference:  # fmt: skip
    """Li et al. 2021, Algorithm 1; as many personal steps as shared ones, on the same minibatches."""
    x = _start(x0)
    v = np.stack([x] * len(grads))
    path = [x]
    for r in range(rounds):
        steps, dx = _steps(taus, r), np.zeros_like(x)
        for i, omega in _cohort(cohorts, r):
            dx = dx + omega * (_alone(grads[i], x, steps[i], _at(lr, r), r) - x)
            for k in range(steps[i]):
                v[i] = v[i] - personal_lr * (grads[i](v[i], k, r) + lam * (v[i] - x))
        x = x + dx
        path.append(x)
    return Reference(np.stack(path), {"v": v})


def mr_mtl(
    grads: list[Grad], p: Any, taus: Taus, cohorts: Cohorts, x0: Any, rounds: int, *, lr: Rate, lam: float
) -> Reference:
    """Liu et al. 2022; x = Σ p_i v_i over all clients, also those that were not drawn."""
    x = _start(x0)
    v = np.stack([x] * len(grads))
    path = [x]
    for r in range(rounds):
        steps = _steps(taus, r)
        for i, _ in _cohort(cohorts, r):
            for k in range(steps[i]):
                v[i] = v[i] - _at(lr, r) * (grads[i](v[i], k, r) + lam * (v[i] - x))
        x = np.asarray(p) @ v
        path.append(x)
    return Reference(np.stack(path), {"v": v})


def ifca(
    grads: list[Grad], p: Any, taus: Taus, cohorts: Cohorts, x0: Any, rounds: int, *, lr: Rate, clusters: int,
    starts: Any = None,
) -> Reference:  # fmt: skip
    """Ghosh et al. 2020, Algorithm 1, option II. ``starts``: [C, d]; ``iterates``: the model that most of Σω chose."""
    thetas = np.stack([_start(x0)] * clusters) if starts is None else np.array(starts, dtype=np.float64)
    path, chosen = [thetas[0].copy()], np.zeros(len(grads), int)
    for r in range(rounds):
        steps, sums, counts = _steps(taus, r), np.zeros_like(thetas), np.zeros(clusters)
        for i, omega in _cohort(cohorts, r):
            j = chosen[i] = int(np.argmin([_loss(grads[i], theta, r) for theta in thetas]))
            sums[j] += omega * (_alone(grads[i], thetas[j], steps[i], _at(lr, r), r) - thetas[j])
            counts[j] += omega
        for j in range(clusters):
            if counts[j]:
                thetas[j] = thetas[j] + sums[j] / counts[j]
        path.append(thetas[int(np.argmax(counts))].copy())
    return Reference(np.stack(path), {"thetas": thetas, "chosen": chosen})


def q_fedavg(
    grads: list[Grad], p: Any, taus: Taus, cohorts: Cohorts, x0: Any, rounds: int, *, lr: Rate, q: float
) -> Reference:
    """Li et al. 2020, Algorithm 2, with L = 1/η, and its code's 10⁻¹⁰ as the least loss."""
    x = _start(x0)
    path = [x]
    for r in range(rounds):
        steps, top, bottom = _steps(taus, r), np.zeros_like(x), 0.0
        smooth = 1 / _at(lr, r)
        for i, omega in _cohort(cohorts, r):
            loss = max(_loss(grads[i], x, r), 1e-10)
            delta = smooth * (x - _alone(grads[i], x, steps[i], _at(lr, r), r))  # the paper's Δw
            top = top + omega * loss**q * delta
            bottom += omega * (q * loss ** (q - 1) * float(delta @ delta) + smooth * loss**q)
        x = x - top / bottom
        path.append(x)
    return Reference(np.stack(path), {})
