"""LoCoDL: local training and any unbiased compression, of how far each local model is from one that all share.

Condat, Maranjyan and Richtárik 2024, "LoCoDL: communication-efficient distributed learning with local training and
compression", Algorithm 1.

| paper | here |
|---|---|
| x_i, u_i; y, v | ``y + memory.x``, ``v + memory.u``; ``server.x``, ``server.v`` |
| γ, p, ρ, χ | lr, probability, rho, ``rho`` |
| C_i^t, d_i^t | compress, the upload |
| g | m/2 ‖·‖², m is ``convexity``; f_i is F_i − g |

    All      ŷ: as many steps y ← y − γ (∇g(y) − v)
    Client   x̂_i: τ_i steps x ← x − γ (∇f_i(x) − u_i), from its own x_i;   d_i = C(x̂_i − ŷ)
    Server   d̄ = ½ Σ p_i d_i;   y ← ŷ + ρ d̄;   v ← v + c d̄,   c = p χ/(γ(1 + 2ω))
    Client   x_i ← (1 − ρ) x̂_i + ρ (ŷ + d̄);   u_i ← u_i + c (d̄ − d_i)

A client keeps (1 − ρ)(x̂_i − ŷ) and u_i − v − c d_i. With the next y and v these are its x_i and u_i: it hears of d̄
through them.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedax.algorithms.led import common_step
from fedax.algorithms.parts import OTHERS, unbiased, variance
from fedax.contract.algorithm import Algorithm, Round, Traits
from fedax.contract.compression import Compressor, Message
from fedax.contract.compressors import RandomK
from fedax.contract.hyper import hyper
from fedax.contract.local import local_steps
from fedax.contract.oracle import Oracle
from fedax.contract.vector import Vector, zeros_like


class LoCoDLState(NamedTuple):
    """Server state: the model y that all share, and its control variate v."""

    x: Vector
    v: Vector


class Apart(NamedTuple):
    """A client's memory: its model but for the server's, and its control variate but for the server's."""

    x: Vector
    u: Vector


class LoCoDL(Algorithm):
    """LoCoDL: local steps between communications, with any unbiased compressor; the optimum of F.

    A round here is what lies between two communications: ``work=GeometricSteps(1/p)`` is the published method, as in
    :class:`Scaffnew`. Published for p_i = 1/N and one number of steps for all clients, all of which take part.
    Extensions, which leave the optimum where it is: unequal p_i in the means; unequal steps, of which the server's y
    takes the most. The paper sends d̄ to the clients; here they receive y and v.

    Args:
        lr: γ > 0, the local learning rate; the theory has less than 2/L.
        probability: p in (0, 1], of communicating after a step. ``None`` is 1/K, for equal steps only.
        rho: ρ in (0, 1], how far models move towards each other, and χ, which is the same number. ``None`` is
            1/(1 + ω/N), by the compressor's ω: for compressors that draw independently at each client.
        convexity: m ≥ 0: of the loss, m/2 ‖x‖² is what the server's model descends on, the paper's g. For its theorem
            m is above 0 and below the strong convexity of the clients' losses; half of that makes both equally convex.
        compress: C, unbiased, such as ``RandomK(0.1)``.

    Raises:
        ConfigError: numbers out of range, a compressor that is not unbiased.

    Source: Condat et al. 2024, Algorithm 1 and Theorem 3.1.

    Example:
        >>> LoCoDL(lr=0.1, probability=0.2).convexity
        0.0
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    probability: Any = hyper(None, "(0, 1]", off=True)
    rho: Any = hyper(None, "(0, 1]", off=True)
    convexity: Any = hyper(0.0, "[0, ∞)")
    compress: Compressor = unbiased("LoCoDL", RandomK(0.1))

    def traits(self) -> Traits:
        source = "Condat et al. 2024, Algorithm 1"
        return Traits("LoCoDL", source, "all", limit="F", exact="always", corrects=OTHERS)

    def init(self, x: Vector) -> LoCoDLState:
        return LoCoDLState(x, zeros_like(x))

    def init_client(self, x: Vector) -> Apart:
        return Apart(zeros_like(x), zeros_like(x))

    def client(self, download: LoCoDLState, memory: Apart, oracle: Oracle) -> tuple[Message, Apart]:
        (y, v), m = download, self.convexity
        u = v + memory.u
        x = local_steps(lambda x, k: x - self.lr * (oracle.grad(x, k) - m * x - u), y + memory.x, oracle)
        apart = x - self.shared(download, oracle.steps)
        message, _ = self.compress.encode(oracle.key, apart)
        rho, c = self.rates(y, common_step(self.probability, "probability", oracle), oracle.num_clients)
        return message, Apart((1 - rho) * apart, memory.u - c * message.decode())

    def server(self, server: LoCoDLState, mean: Vector, round: Round) -> LoCoDLState:
        steps = jnp.max(round.steps).astype(jnp.int32)
        p = 1 / jnp.asarray(steps, float) if self.probability is None else self.probability
        rho, c = self.rates(server.x, p, round.num_clients)
        return LoCoDLState(self.shared(server, steps) + (rho / 2) * mean, server.v + (c / 2) * mean)

    def shared(self, server: LoCoDLState, steps: Any) -> Vector:
        """ŷ, after so many steps of what the server and all clients know."""
        (y, v), m = server, self.convexity
        return jax.lax.fori_loop(0, steps, lambda k, y: y - self.lr * (m * y - v), y)

    def rates(self, x: Vector, p: Any, clients: int) -> tuple[Any, Any]:
        """ρ, and c of the control variates."""
        omega = variance(self.compress, x.size)
        rho = 1 / (1 + omega / clients) if self.rho is None else self.rho
        return rho, p * rho / (self.lr * (1 + 2 * omega))
