"""VRL-SGD: local SGD whose steps are corrected by what the client's last round lacked of the mean.

Liang, Shen, Liu, Pan, Chen and Cheng 2019, "Variance reduced local SGD with lower communication complexity".

| paper | here |
|---|---|
| x̂, x_i | x, y |
| γ (learning rate), k (local steps) | lr, ``oracle.steps`` |
| Δ_i | the client's memory, minus its correction |

    Client   y: τ_i steps y ← y − η (g_i(y) − Λ_i)
    Server   x ← x + Σ p_i (y_i − x)
    Client   Λ_i ← Λ_i + (x_new − y_i)/(η τ_i)
"""

from typing import Any, NamedTuple

from fedax.algorithm import Algorithm, Exchange, Round
from fedax.local import local_steps
from fedax.numbers import check_number
from fedax.oracle import Oracle
from fedax.vector import Vector, zeros_like


class Server(NamedTuple):
    """Server state: the model."""

    x: Vector


class Between(NamedTuple):
    """What a client holds until it hears the new model: its correction, and its local model."""

    correction: Vector
    y: Vector


class VRLSGD(Algorithm):
    """VRL-SGD. With equal steps it reaches the exact optimum of F; all clients take part in every round.

    Published for equal τ_i. With unequal ones τ_i stands in the place of the common number, as Wang et al. 2020 do:
    fixed τ_i lead exactly to the optimum of Σ p_i τ_i F_i instead, and τ_i that change from round to round diverge.

    Args:
        lr: η > 0, the local learning rate.

    Example:
        >>> VRLSGD(lr=0.05).lr
        0.05
    """

    lr: Any = 0.05

    def init(self, x: Vector) -> Server:
        return Server(x)

    def init_client(self, x: Vector) -> Vector:
        return zeros_like(x)

    def client(self, download: Server, memory: Vector, oracle: Oracle) -> tuple[Vector, Between]:
        y = local_steps(lambda y, k: y - self.lr * (oracle.grad(y, k) - memory), download.x, oracle)
        return y - download.x, Between(memory, y)

    def server(self, server: Server, mean: Vector, round: Round) -> Server:
        round.require_full("VRL-SGD")
        return Server(server.x + mean)

    def listen(self, download: Server, memory: Between, oracle: Oracle) -> tuple[None, Vector]:
        """The client hears the new model and corrects its memory."""
        return None, memory.correction + (download.x - memory.y) / (self.lr * oracle.steps)

    def exchanges(self) -> tuple[Exchange, ...]:
        return (Exchange(self.client, self.server), Exchange(self.listen))

    def validate(self) -> None:
        check_number("lr", self.lr, 0, open_low=True)
