"""q-FedAvg: clients with a greater loss count for more.

Li, Sanjabi, Beirami and Smith 2020, "Fair resource allocation in federated learning", Algorithm 2.

| paper | here |
|---|---|
| w^t, w̄_k | x, y |
| q, L | q, 1/lr |
| Δw_k = L (w^t − w̄_k) | −(y − x)/lr |
| Δ_k, h_k | −``u``, ``h`` |

    Client   y: τ_i steps y ← y − η g_i(y);   d = (y − x)/η;   F = F_i(x)
             u = F^q d;   h = q F^(q−1) ‖d‖² + F^q/η
    Server   x ← x + Σ ω_i u_i / Σ ω_i h_i
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from fedax.contract.algorithm import Round, Traits
from fedax.contract.hyper import hyper
from fedax.contract.local import LocalMethod
from fedax.contract.oracle import Oracle
from fedax.contract.vector import Vector

_LEAST = 1e-10  # of a loss, as F^(q−1) has no value at 0; the authors' code adds it to every loss


class QFedAvgUpload(NamedTuple):
    """F^q (y − x)/η, and h, the client's part of the divisor."""

    u: Vector
    h: Any


class QFedAvg(LocalMethod):
    """q-FedAvg: minimises Σ p_i F_i^(q+1)/(q + 1), so that no client is left far behind.

    For losses that are at least 0 everywhere. With q = 0 it is FedAvg, where the weights of a cohort sum to 1.

    Args:
        lr: η > 0, the local learning rate; 1/η is the paper's L.
        q: q ≥ 0, how much more clients with a greater loss count.

    Source: Li et al. 2020, Algorithm 2.

    Example:
        >>> QFedAvg(lr=0.1, q=2.0).q
        2.0
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    q: Any = hyper(1.0, "[0, ∞)")

    def traits(self) -> Traits:
        return Traits("q-FedAvg", "Li et al. 2020, Algorithm 2")

    def init(self, x: Vector) -> Vector:
        return x

    def client(self, download: Vector, memory: Any, oracle: Oracle) -> tuple[QFedAvgUpload, Any]:
        x = download
        loss = jnp.maximum(oracle.full_loss(x), _LEAST)
        y = self.descend(oracle.grad, x, oracle)
        lr = self.lr if self.solver is None else self.solver.rate()
        d = (y - x) / lr
        h = self.q * loss ** (self.q - 1) * d.dot(d) + loss**self.q / lr
        return QFedAvgUpload(loss**self.q * d, h), memory

    def server(self, server: Vector, mean: QFedAvgUpload, round: Round) -> Vector:
        heard = jnp.sum(round.weights) > 0  # else both are 0
        return server + mean.u / jnp.where(heard, mean.h, 1)
