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

from typing import Any

from fedax.algorithms.parts import GradientState, contractive
from fedax.contract.algorithm import Algorithm, Round, Traits
from fedax.contract.compression import Compressor, Message
from fedax.contract.compressors import TopK
from fedax.contract.hyper import hyper
from fedax.contract.oracle import Oracle
from fedax.contract.vector import Vector, zeros_like


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
    compress: Compressor = contractive("EF21", TopK(0.1))

    def traits(self) -> Traits:
        return Traits("EF21", "Richtárik et al. 2021, Algorithm 2", "all", limit="F", exact="always")

    def init(self, x: Vector) -> GradientState:
        return GradientState(x, zeros_like(x))

    def init_client(self, x: Vector) -> Vector:
        return zeros_like(x)

    def download(self, server: GradientState) -> Vector:
        return server.x

    def client(self, download: Vector, memory: Vector, oracle: Oracle) -> tuple[Message, Vector]:
        gradient = oracle.grad_batches(download, oracle.steps)
        message, _ = self.compress.encode(oracle.key, gradient - memory)
        return message, memory + message.decode()

    def server(self, server: GradientState, mean: Vector, round: Round) -> GradientState:
        g = server.g + mean
        return GradientState(server.x - self.lr * g, g)
