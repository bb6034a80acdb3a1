"""DIANA: what is compressed is the difference between a client's gradient and what the client learnt of it.

Mishchenko, Gorbunov, Takáč and Richtárik 2019, "Distributed learning with compressed gradient differences", Algorithm
1, here without momentum (β = 0) and without a regulariser; for any unbiased compressor: Horváth, Kovalev, Mishchenko,
Stich and Richtárik 2019, "Stochastic distributed learning with gradient quantization and variance reduction".

| paper | here |
|---|---|
| x^k, h^k | ``server.x``, ``server.h`` |
| h_i^k | the client's memory, which starts at zero |
| γ, α | lr, alpha |
| Δ̂_i^k | the upload |

    Client   Δ̂_i = C(g_i(x) − h_i);   h_i ← h_i + α Δ̂_i
    Server   x ← x − γ (h + Σ p_i Δ̂_i);   h ← h + α Σ p_i Δ̂_i
"""

from typing import Any, NamedTuple

from fedax.algorithms.parts import unbiased, variance
from fedax.contract.algorithm import Algorithm, Round, Traits
from fedax.contract.compression import Compressor, Message
from fedax.contract.compressors import RandomK
from fedax.contract.hyper import hyper
from fedax.contract.oracle import Oracle
from fedax.contract.vector import Vector, zeros_like


class DIANAState(NamedTuple):
    """Server state: the model, and the mean of what the clients learnt of their gradients, h = Σ p_i h_i."""

    x: Vector
    h: Vector


class DIANA(Algorithm):
    """DIANA: gradient descent with unbiased compression whose noise dies out. There are no local steps.

    Published for p_i = 1/N; unequal p_i in the means are an extension. All clients take part. The gradient is the mean
    over the client's τ_i minibatches of the round.

    Args:
        lr: γ > 0, the server's step. With full gradients the theory has 1/((1 + 6ω/N) max L_i).
        alpha: α in (0, 1], how fast h_i follows the gradient; the theory has at most 1/(1 + ω). ``None`` is
            1/(1 + ω), by the compressor's ω.
        compress: C, unbiased, such as ``RandomK(0.1)``; with ``Identity()`` this is gradient descent.

    Raises:
        ConfigError: numbers out of range, a compressor that is not unbiased.

    Source: Mishchenko et al. 2019, Algorithm 1.

    Example:
        >>> DIANA(lr=0.1, compress=RandomK(0.2)).compress.share
        0.2
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    alpha: Any = hyper(None, "(0, 1]", off=True)
    compress: Compressor = unbiased("DIANA", RandomK(0.1))

    def traits(self) -> Traits:
        return Traits("DIANA", "Mishchenko et al. 2019, Algorithm 1", "all", limit="F", exact="always")

    def init(self, x: Vector) -> DIANAState:
        return DIANAState(x, zeros_like(x))

    def init_client(self, x: Vector) -> Vector:
        return zeros_like(x)

    def download(self, server: DIANAState) -> Vector:
        return server.x

    def client(self, download: Vector, memory: Vector, oracle: Oracle) -> tuple[Message, Vector]:
        gradient = oracle.grad_batches(download, oracle.steps)
        message, _ = self.compress.encode(oracle.key, gradient - memory)
        return message, memory + self.follow(download) * message.decode()

    def server(self, server: DIANAState, mean: Vector, round: Round) -> DIANAState:
        return DIANAState(server.x - self.lr * (server.h + mean), server.h + self.follow(server.x) * mean)

    def follow(self, x: Vector) -> Any:
        """α."""
        return 1 / (1 + variance(self.compress, x.size)) if self.alpha is None else self.alpha
