"""DASHA: compressed differences of gradients in every round; no round is synchronised.

Tyurin and Richtárik 2022, "DASHA: distributed nonconvex optimization with communication compression, optimal oracle
complexity, and no client synchronization", Algorithm 1 in two forms: DASHA, with exact gradients, and DASHA-MVR.

| paper | here |
|---|---|
| x^t, g^t | ``server.x``, ``server.g`` |
| h_i^t, g_i^t; x^{t−1} | the client's memory |
| γ, a, b | lr, alpha, beta |
| C_i, m_i^t | compress, the upload |

    Client   DASHA       h_i⁺ = ∇F_i(x)
             DASHA-MVR   h_i⁺ = ĝ_i(x) + (1 − b)(h_i − ĝ_i(x_last)), with the same minibatches
             m_i = C(h_i⁺ − h_i − a (g_i − h_i));   g_i ← g_i + m_i;   h_i ← h_i⁺
    Server   g ← g + Σ p_i m_i;   x ← x − γ g

Before round 0 the clients send gradients at x^0, whole: g_i = h_i.
"""

from typing import Any, NamedTuple

from fedax.algorithms.parts import GradientState, unbiased, variance
from fedax.contract.algorithm import Algorithm, Exchange, Round, Traits
from fedax.contract.compression import Compressor, Message
from fedax.contract.compressors import RandomK
from fedax.contract.hyper import count, hyper
from fedax.contract.oracle import Oracle
from fedax.contract.vector import Vector, zeros_like


class DASHAMemory(NamedTuple):
    """A client's memory: its gradient's estimate h, what the server has of it, g, and the last model (MVR only)."""

    h: Vector
    g: Vector
    x: Any


class DASHA(Algorithm):
    """DASHA, and DASHA-MVR with ``beta``: unbiased compression, without rounds of whole gradients. No local steps.

    Published for p_i = 1/N; unequal p_i in the means are an extension. All clients take part. DASHA's gradients are
    exact: each round takes a pass over a client's data. DASHA-MVR takes the client's τ_i minibatches at two models.

    Args:
        lr: γ > 0, the server's step. DASHA's theory has 1/(L + L̃ √(16ω(2ω + 1)/N)) with L̃² = Σ p_i L_i².
        alpha: a in (0, 1], the paper's momentum; ``None`` is 1/(1 + 2ω), by the compressor's ω.
        beta: b in (0, 1], weight of the new gradient in DASHA-MVR; ``None`` is DASHA.
        warmup_batches: g_i and h_i start at the mean of so many minibatch gradients at x^0; ``None``: at zero.
        compress: C_i, unbiased, such as ``RandomK(0.1)``; with ``Identity()`` DASHA is gradient descent.

    Raises:
        ConfigError: numbers out of range, a compressor that is not unbiased.

    Source: Tyurin and Richtárik 2022, Algorithm 1.

    Example:
        >>> DASHA(lr=0.1, compress=RandomK(0.2)).beta is None
        True
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    alpha: Any = hyper(None, "(0, 1]", off=True)
    beta: Any = hyper(None, "(0, 1]", off=True)
    warmup_batches: int | None = count(1, off=True)
    compress: Compressor = unbiased("DASHA", RandomK(0.1))

    def traits(self) -> Traits:
        return Traits("DASHA", "Tyurin & Richtárik 2022, Algorithm 1", "all", limit="F", exact="always")

    def init(self, x: Vector) -> GradientState:
        return GradientState(x, zeros_like(x))

    def init_client(self, x: Vector) -> DASHAMemory:
        return DASHAMemory(zeros_like(x), zeros_like(x), () if self.beta is None else x)

    def download(self, server: GradientState) -> Vector:
        return server.x

    def client(self, download: Vector, memory: DASHAMemory, oracle: Oracle) -> tuple[Message, DASHAMemory]:
        (h, g, x_last), x = memory, download
        if self.beta is None:
            h_new, x_last = oracle.full_grad(x), ()
        else:
            old = h - oracle.grad_batches(x_last, oracle.steps)
            h_new, x_last = oracle.grad_batches(x, oracle.steps) + (1 - self.beta) * old, x
        alpha = 1 / (1 + 2 * variance(self.compress, x.size)) if self.alpha is None else self.alpha
        message, _ = self.compress.encode(oracle.key, h_new - h - alpha * (g - h))
        return message, DASHAMemory(h_new, g + message.decode(), x_last)

    def server(self, server: GradientState, mean: Vector, round: Round) -> GradientState:
        g = server.g + mean
        return GradientState(server.x - self.lr * g, g)

    def warmup(self) -> tuple[Exchange, ...]:
        if self.warmup_batches is None:
            return ()

        def client(download: Vector, memory: DASHAMemory, oracle: Oracle) -> tuple[Vector, DASHAMemory]:
            gradient = oracle.grad_batches(download, self.warmup_batches)
            return gradient, memory._replace(h=gradient, g=gradient)

        return (Exchange(client, lambda server, mean, round: server._replace(g=mean)),)
