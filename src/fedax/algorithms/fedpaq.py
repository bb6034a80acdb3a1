"""FedPAQ: FedAvg whose clients send their updates quantised.

Reisizadeh, Mokhtari, Hassani, Jadbabaie and Pedarsani 2020, "FedPAQ: a communication-efficient federated learning
method with periodic averaging and quantization", Algorithm 1.

| paper | here |
|---|---|
| x_k, x_{k,τ}^(i) | x, y |
| η, τ | lr, ``oracle.steps`` |
| S_k, r | the cohort, its size |
| Q | compress |

    Client   y: τ_i steps y ← y − η g_i(y);   sends Q(y − x)
    Server   x ← x + Σ ω_i Q(y_i − x)

The paper averages with ω_i = 1/r over cohorts drawn uniformly.
"""

from typing import Any

from fedax.algorithms.parts import unbiased
from fedax.contract.algorithm import Round, Traits
from fedax.contract.compression import Compressor, Message
from fedax.contract.compressors import QSGD
from fedax.contract.hyper import hyper
from fedax.contract.local import LocalMethod
from fedax.contract.oracle import Oracle
from fedax.contract.vector import Vector


class FedPAQ(LocalMethod):
    """FedPAQ: FedAvg with an unbiased compressor of the updates, in cohorts of any kind.

    Published for equal τ_i and p_i = 1/N, with uniform cohorts. Unequal weights and unequal τ_i are extensions, the
    latter with FedAvg's bias.

    Args:
        lr: η > 0, the local learning rate.
        compress: Q, unbiased, such as ``QSGD(8)``, the paper's quantiser; with ``Identity()`` this is FedAvg.

    Raises:
        ConfigError: numbers out of range, a compressor that is not unbiased.

    Source: Reisizadeh et al. 2020, Algorithm 1.

    Example:
        >>> FedPAQ(lr=0.1, compress=QSGD(4)).compress.levels
        4
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    compress: Compressor = unbiased("FedPAQ", QSGD(8))

    def traits(self) -> Traits:
        return Traits("FedPAQ", "Reisizadeh et al. 2020, Algorithm 1", limit="steps")

    def init(self, x: Vector) -> Vector:
        return x

    def client(self, download: Vector, memory: Any, oracle: Oracle) -> tuple[Message, Any]:
        y = self.descend(oracle.grad, download, oracle)
        message, _ = self.compress.encode(oracle.key, y - download)
        return message, memory

    def server(self, server: Vector, mean: Vector, round: Round) -> Vector:
        return server + mean
