"""FedDualAvg: clients step in the dual space, so that averaging keeps what the regulariser does.

Yuan, Zaheer and Reddi 2021, "Federated composite optimization".

| paper | here |
|---|---|
| w, z; z̄ | the primal and dual local model; ``server.z`` |
| η_c, η_s | lr, server_lr |
| ψ | regularizer |
| η̃ = η_s η_c r K + η_c k | s, the total weight of ψ in a primal model |

    Client   y = z, τ_i steps:  w = argmin_X s ψ(w) + ½‖w − y‖²,  y ← y − η g_i(w),  s ← s + η
    Server   z ← z + γ Σ ω_i (y_i − z);   s ← s + γ Σ ω_i η τ_i;   x = argmin_X s ψ(x) + ½‖x − z‖²

The distance-generating function is ½‖·‖². Without a regulariser it is FedAvg.
"""

from typing import Any, NamedTuple

import equinox as eqx

from fedax.contract.algorithm import Algorithm, Round, Traits
from fedax.contract.hyper import hyper
from fedax.contract.local import local_steps
from fedax.contract.oracle import Oracle
from fedax.contract.regularizers import Regularizer, penalty, regularizer
from fedax.contract.vector import Vector


class DualAveragingState(NamedTuple):
    """Server state and download: the dual model, and the weight that ψ has in it. Uploads are changes of both."""

    z: Vector
    s: Any


class FedDualAvg(Algorithm):
    """FedDualAvg: federated dual averaging for an objective F + ψ.

    Published for equal τ_i. For unequal ones each client's accumulated learning rate is averaged with the weights of
    its update, as the authors' code does; then FedAvg's bias of unequal work is there too.

    Args:
        lr: η > 0, the paper's η_c.
        server_lr: γ > 0, the paper's η_s; 1 is plain averaging.
        regularizer: ψ and X, a :class:`fedax.contract.regularizers.Regularizer`.

    Source: Yuan et al. 2021, Algorithm 3.

    Example:
        >>> FedDualAvg(lr=0.1).server_lr
        1.0
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    server_lr: Any = hyper(1.0, "(0, ∞)")
    regularizer: Regularizer = eqx.field(default=None, converter=regularizer)

    def traits(self) -> Traits:
        return Traits("FedDualAvg", "Yuan et al. 2021, Algorithm 3", limit="steps")

    def init(self, x: Vector) -> DualAveragingState:
        return DualAveragingState(x, 0.0)

    def client(self, download: DualAveragingState, memory: Any, oracle: Oracle) -> tuple[DualAveragingState, Any]:
        def step(state: Any, k: Any) -> Any:
            y, s = state
            w = self.regularizer.step(y, 1.0, s)
            return y - self.lr * oracle.grad(w, k), s + self.lr

        y, s = local_steps(step, (download.z, download.s), oracle)
        return DualAveragingState(y - download.z, s - download.s), memory

    def server(self, server: DualAveragingState, mean: DualAveragingState, round: Round) -> DualAveragingState:
        return DualAveragingState(server.z + self.server_lr * mean.z, server.s + self.server_lr * mean.s)

    def model(self, server: DualAveragingState) -> Vector:
        return self.regularizer.step(server.z, 1.0, server.s)

    def penalty(self, x: Vector) -> Any:
        return penalty(self.regularizer, x)
