"""FedExP: FedAvg whose server step is extrapolated as far as the clients' updates differ.

Jhunjhunwala, Wang and Joshi 2023, "FedExP: speeding up federated averaging via extrapolation", Algorithm 1.

| paper | here |
|---|---|
| w^(t), w_i^(t,τ) | x, y |
| Δ_i = w^(t) − w_i^(t,τ) | −dx |
| η_l, τ | lr, ``oracle.steps`` |
| η_g | ``extrapolation`` |
| ε | eps |

    Client   y: τ_i steps y ← y − η g_i(y);   dx_i = y − x
    Server   Δ̄ = Σ ω̂_i dx_i;   η_g = max{1, Σ ω̂_i ‖dx_i‖² / (2 (‖Δ̄‖² + ε))};   x ← x + η_g Δ̄

ω̂ = ω/Σω, in both sums as in the authors' code. That the step does not overshoot where all clients have a common
optimum (projection onto convex sets) holds for weights that sum to 1 in every cohort.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from fedax.contract.algorithm import Round, Traits
from fedax.contract.hyper import flag, hyper
from fedax.contract.local import LocalMethod
from fedax.contract.oracle import Oracle
from fedax.contract.vector import Vector


class FedExPState(NamedTuple):
    """Server state: the last two models."""

    x: Vector
    x_last: Vector


class FedExPUpload(NamedTuple):
    """The update of the model, and its squared length."""

    dx: Vector
    square: Any


class FedExP(LocalMethod):
    """FedExP: the server's learning rate of each round from the lengths of the updates; at least 1, which is FedAvg.

    Published for equal τ_i and p_i = 1/N, with uniform cohorts. Unequal p_i weigh updates and squares alike, as in the
    authors' code; updates of unequal τ_i are averaged as they are (an extension), with FedAvg's bias.

    Args:
        lr: η > 0, the local learning rate.
        eps: ε > 0, in units of the squared length of the mean update; bounds η_g where that vanishes, which at a point
            where clients disagree it does. 0.001 is the authors' for CIFAR-10, 0.1 that for EMNIST; their code has S·ε
            in a cohort of S, and lets ε decay like η². Give a schedule for that.
        average_last: evaluate and deliver the mean of the last two models, as the authors do: large steps let the
            model oscillate. Clients begin at the last model in any case. (Their code leaves x^0 out of it.)

    Source: Jhunjhunwala et al. 2023, Algorithm 1; details from the authors' code, github.com/Divyansh03/FedExP.

    Example:
        >>> FedExP(lr=0.05).average_last
        True
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    eps: Any = hyper(1e-3, "(0, ∞)")
    average_last: bool = flag(True)

    def traits(self) -> Traits:
        return Traits("FedExP", "Jhunjhunwala et al. 2023, Algorithm 1", limit="steps")

    def init(self, x: Vector) -> FedExPState:
        return FedExPState(x, x)

    def download(self, server: FedExPState) -> Vector:
        return server.x

    def client(self, download: Vector, memory: Any, oracle: Oracle) -> tuple[FedExPUpload, Any]:
        x = download
        dx = self.descend(oracle.grad, x, oracle) - x
        return FedExPUpload(dx, dx.dot(dx)), memory

    def server(self, server: FedExPState, mean: FedExPUpload, round: Round) -> FedExPState:
        dx, square = mean.dx / round.total, mean.square / round.total
        extrapolation = jnp.maximum(1.0, square / (2 * (dx.dot(dx) + self.eps)))
        return FedExPState(server.x + extrapolation * dx, server.x)

    def model(self, server: FedExPState) -> Vector:
        return (server.x + server.x_last) / 2 if self.average_last else server.x
