"""EF21: each client's estimate of its own gradient, which messages move there.

Richtárik, Sokolov and Fatkhullin 2021, "EF21: a new, simpler, theoretically better, and practically faster error
feedback", Algorithm 2; with minibatches it is EF21-SGD of Fatkhullin, Sokolov, Gorbunov, Li and Richtárik 2021, "EF21
with bells & whistles".

| paper | here |
|---|---|
| x^t, g^t | ``server.x``, ``server.g`` |
| g_i^t | the client's memory, which starts at zero |
| γ | lr |
| C, c_i^t | compress, the upload |

    Client   c_i = C(∇F_i(x) − g_i);   g_i ← g_i + c_i
    Server   g ← g + Σ p_i c_i;   x ← x − γ g

From g_i = 0 the first message is C(∇F_i(x^0)), the paper's choice of g_i^0.
"""

from typing import Any, NamedTuple

import equinox as eqx

from fedax.algorithms.parts import check_contractive
from fedax.contract.algorithm import Algorithm, Round, Traits
from fedax.contract.compression import Compressor, Message
from fedax.contract.compressors import TopK, compressor
from fedax.contract.hyper import check, hyper
from fedax.contract.oracle import Oracle
from fedax.contract.vector import Vector, zeros_like


class EF21State(NamedTuple):
    """Server state: the model, and the mean of the clients' estimates, g = Σ p_i g_i."""

    x: Vector
    g: Vector


class EF21(Algorithm):
    """EF21: gradient descent with contractive compression that still reaches the optimum. There are no local steps.

    Published for p_i = 1/N; unequal p_i in the means are an extension. All clients take part. The gradient is the mean
    over the client's τ_i minibatches of the round.

    Args:
        lr: γ > 0, the server's step. The theory has 1/(L + L̃ √(β/θ)) with θ = 1 − √(1−α), β = (1−α)/θ and
            L̃² = Σ p_i L_i².
        compress: C, contractive, such as ``TopK(0.1)``; with ``Identity()`` this is gradient descent.

    Raises:
        ConfigError: numbers out of range, a compressor that is not contractive.

    Source: Richtárik et al. 2021, Algorithm 2 and Theorem 1.

    Example:
        >>> EF21(lr=0.1, compress=TopK(0.2)).compress.share
        0.2
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    compress: Compressor = eqx.field(default=TopK(0.1), converter=compressor)

    def traits(self) -> Traits:
        return Traits("EF21", "Richtárik et al. 2021, Algorithm 2", "all", limit="F", exact="always")

    def init(self, x: Vector) -> EF21State:
        return EF21State(x, zeros_like(x))

    def init_client(self, x: Vector) -> Vector:
        return zeros_like(x)

    def download(self, server: EF21State) -> Vector:
        return server.x

    def client(self, download: Vector, memory: Vector, oracle: Oracle) -> tuple[Message, Vector]:
        gradient = oracle.grad_batches(download, oracle.steps)
        message, _ = self.compress.encode(oracle.key, gradient - memory)
        return message, memory + message.decode()

    def server(self, server: EF21State, mean: Vector, round: Round) -> EF21State:
        g = server.g + mean
        return EF21State(server.x - self.lr * g, g)

    def validate(self) -> None:
        check(self)
        check_contractive("EF21", self.compress)
