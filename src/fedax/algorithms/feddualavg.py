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

from fedax.contract.algorithm import Algorithm, Round
from fedax.contract.local import local_steps
from fedax.contract.oracle import Oracle
from fedax.contract.regularizers import Regularizer, Unconstrained, penalty
from fedax.contract.vector import Vector
from fedax.numbers import check_number


class Server(NamedTuple):
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

    lr: Any = 0.05
    server_lr: Any = 1.0
    regularizer: Regularizer = Unconstrained()

    def init(self, x: Vector) -> Server:
        return Server(x, 0.0)

    def client(self, download: Server, memory: Any, oracle: Oracle) -> tuple[Server, Any]:
        def step(state: Any, k: Any) -> Any:
            y, s = state
            w = self.regularizer.step(y, 1.0, s)
            return y - self.lr * oracle.grad(w, k), s + self.lr

        y, s = local_steps(step, (download.z, download.s), oracle)
        return Server(y - download.z, s - download.s), memory

    def server(self, server: Server, mean: Server, round: Round) -> Server:
        return Server(server.z + self.server_lr * mean.z, server.s + self.server_lr * mean.s)

    def model(self, server: Server) -> Vector:
        return self.regularizer.step(server.z, 1.0, server.s)

    def penalty(self, x: Vector) -> Any:
        return penalty(self.regularizer, x)

    def validate(self) -> None:
        check_number("lr", self.lr, 0, open_low=True)
        check_number("server_lr", self.server_lr, 0, open_low=True)
        self.regularizer.validate()
