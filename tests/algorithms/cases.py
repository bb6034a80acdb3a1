"""Every registered method beside its NumPy reference; a new method adds its cases here."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tests.references import fedavg_family as fed


class Case(NamedTuple):
    """A method by its registered name, and the reference with the same hyper-parameters.

    ``own`` are hyper-parameters of :func:`fedax.create` that the reference is not given. ``partial`` is false where
    part of the clients would show nothing new, or is not defined.
    """

    method: str
    reference: Callable[..., fed.Reference]
    hyper: dict[str, Any] = {}  # noqa: RUF012  (never changed)
    own: dict[str, Any] = {}  # noqa: RUF012
    partial: bool = True


SOLVERS = {
    "sgd": {},
    "momentum": {"momentum": 0.6},
    "nesterov": {"momentum": 0.6, "nesterov": True},
    "prox": {"prox": 2.0},
    "decay": {"decay": 0.8},
    "all": {"momentum": 0.5, "nesterov": True, "prox": 1.0, "decay": 0.9},
}
_MOMENTUM = {"server_momentum": 0.7, "server_lr": 0.8}
_ADAPTIVE = {"server_lr": 0.3, "beta1": 0.5, "beta2": 0.9, "eps": 0.1}


def vrl_sgd(
    grads: Any, p: Any, taus: Any, cohorts: Any, x0: np.ndarray, rounds: int, *, lr: Callable[[int], float] | float
) -> fed.Reference:
    """VRL-SGD (Liang et al. 2019), all clients: y ← y − η(g − Λ_i), Λ_i ← Λ_i + (⟨Δ_j⟩ − Δ_i)/(ητ_i)."""
    x, duals = x0, np.zeros((len(p), *x0.shape))
    iterates = [x]
    for r in range(rounds):
        change = np.zeros_like(duals)
        for i, tau in enumerate(taus):
            y = x
            for k in range(tau):
                y = y - lr * (grads[i](y, k, r) - duals[i])
            change[i] = y - x
        mean = np.tensordot(p, change, axes=1)
        duals = duals + (mean - change) / (lr * np.asarray(taus)[:, None])
        x = x + mean
        iterates.append(x)
    return fed.Reference(np.stack(iterates), {"duals": duals})


def _solvers(method: str, reference: Callable[..., fed.Reference], **hyper: Any) -> dict[str, Case]:
    return {
        f"{method}-{name}": Case(method, reference, solver | hyper, partial=name in ("sgd", "all"))
        for name, solver in SOLVERS.items()
    }


CASES = {
    **_solvers("fedavg", fed.fedavg, server_lr=0.9),
    **_solvers("fednova", fed.fednova),
    "fedprox": Case("fedprox", fed.fedavg, {"prox": 3.0}),
    "fednova-ptau": Case("fednova", fed.fednova, {"tau_eff": "ptau", "prox": 2.0}),
    "fednova-mean": Case("fednova", fed.fednova, {"tau_eff": "mean", "prox": 2.0}),
    "fednova-number": Case("fednova", fed.fednova, {"tau_eff": 2.5, "prox": 2.0, "server_lr": 0.8}),
    "fednova-vr": Case("fednova-vr", fed.fednova_vr),
    "fednova-vr-momentum": Case("fednova-vr", fed.fednova_vr, {"momentum": 0.6}),
    "fednova-vr-all": Case("fednova-vr", fed.fednova_vr, SOLVERS["all"] | {"tau_eff": "ptau", "server_lr": 0.9}),
    "vrl-sgd": Case("vrl-sgd", vrl_sgd, partial=False),
    "server-momentum": Case("server-momentum", fed.fedavgm, _MOMENTUM),
    "slowmo": Case("slowmo", fed.slowmo, _MOMENTUM),
    "fedadagrad": Case("fedadagrad", fed.fedadagrad, {"server_lr": 0.3, "beta1": 0.2, "eps": 0.1}),
    "fedadam": Case("fedadam", fed.fedadam, _ADAPTIVE),
    "fedyogi": Case("fedyogi", fed.fedyogi, _ADAPTIVE),
    "fednova-server-momentum": Case("fednova", fed.fednova_server_momentum, _MOMENTUM, {"server": "slowmo"}, False),
    "fednova-hybrid": Case("fednova", fed.fednova_server_momentum, _MOMENTUM | {"momentum": 0.6}, {"server": "slowmo"}),
    "fednova-fedavgm": Case("fednova", fed.fedavgm, _MOMENTUM | {"tau_eff": "default"}, {"server": "momentum"}, False),
    "fednova-adam": Case("fednova", fed.fedadam, _ADAPTIVE | {"tau_eff": "default"}, {"server": "adam"}),
}
