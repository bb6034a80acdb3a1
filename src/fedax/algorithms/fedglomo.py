"""FedGLOMO: global and local momentum, both of the recursive kind.

Das, Acharya, Hashemi, Sanghavi, Dhillon and Topcu 2022, "Faster non-convex federated learning via global and local
momentum".

| paper | here |
|---|---|
| w_k, w_{k−1} | x, ``server.x_last`` |
| u_k | ``server.u``, per local step |
| η_k, β_k | lr, beta |
| E | ``oracle.steps`` |

    Client   G_i(z) = (z − y)/τ_i: from y = z and v = ∇F_i(z), τ_i steps  v ← v + g_i(y) − g_i(y_last),  y ← y − η v
             for z = x and z = x_last with the same minibatches
    Server   u ← Σ ω_i [G_i(x) − (1−β) G_i(x_last)] + (1−β) u, u = Σ ω_i G_i(x) in round 0;   x ← x − τ̄ u,
             τ̄ = Σ ω̂_i τ_i

With compression a client sends C(G_i(x)) and C(G_i(x) − G_i(x_last)), and u ← β ⟨first⟩ + (1−β)(u + ⟨second⟩). As long
as C is off, both are one vector, as above.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedax.algorithms.parts import unbiased
from fedax.contract.algorithm import Round, Traits
from fedax.contract.compression import Compressor
from fedax.contract.hyper import hyper
from fedax.contract.local import LocalMethod, local_steps
from fedax.contract.oracle import Oracle
from fedax.contract.vector import Vector, zeros_like


class FedGLOMOState(NamedTuple):
    """Server state: the last two models, and the momentum per local step."""

    x: Vector
    x_last: Vector
    u: Vector


class FedGLOMO(LocalMethod):
    """FedGLOMO: variance reduction between rounds and between local steps. Two local runs a round.

    Published for equal steps and p_i = 1/N. Extensions: unequal p_i; clients that take unequal steps count by their
    mean update a step, times Σ ω̂_i τ_i.

    Args:
        lr: η > 0, the local learning rate.
        beta: β in (0, 1], weight of the new updates; 1 is no global momentum.
        compress: an unbiased compressor of the updates, such as ``QSGD(8)``; ``None`` is off.

    Raises:
        ConfigError: numbers out of range, a compressor that is not unbiased.

    Source: Das et al. 2022, Algorithms 1 and 2.

    Example:
        >>> FedGLOMO(lr=0.05).beta
        0.1
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    beta: Any = hyper(0.1, "(0, 1]")
    compress: Compressor | None = unbiased("FedGLOMO", None)

    def traits(self) -> Traits:
        return Traits("FedGLOMO", "Das et al. 2022, Algorithms 1 and 2", limit="F")

    def init(self, x: Vector) -> FedGLOMOState:
        return FedGLOMOState(x, x, zeros_like(x))

    def download(self, server: FedGLOMOState) -> Any:
        return server.x, server.x_last

    def client(self, download: Any, memory: Any, oracle: Oracle) -> tuple[Any, Any]:
        def progress(z: Vector) -> Vector:
            def step(state: Any, k: Any) -> Any:
                y_last, y, buffer, v = state
                v = v + oracle.grad(y, k) - oracle.grad(y_last, k)
                return y, *self.local_step(y, buffer, v, k, z), v

            _, y, *_ = local_steps(step, (z, z, self.begin(z), oracle.full_grad(z)), oracle)
            return (z - y) / oracle.steps

        x, x_last = download
        if self.compress is None:
            return progress(x) - self.keep(oracle.round) * progress(x_last), memory
        new = progress(x)
        keys = jax.random.split(oracle.key)
        sent = (self.compress.encode(keys[0], new), self.compress.encode(keys[1], new - progress(x_last)))
        return tuple(message for message, _ in sent), memory

    def server(self, server: FedGLOMOState, mean: Any, round: Round) -> FedGLOMOState:
        keep = self.keep(round.index)
        if self.compress is not None:
            new, change = mean
            mean = (1 - keep) * new + keep * change
        u = mean + keep * server.u
        return FedGLOMOState(server.x - round.mean_steps * u, server.x, u)

    def keep(self, index: Any) -> Any:
        """The weight of the past."""
        return jnp.where(jnp.asarray(index) == 0, 0.0, 1 - self.beta)
