"""SCAFFOLD: control variates at the server and at every client.

Karimireddy, Kale, Mohri, Reddi, Stich and Suresh 2020, "SCAFFOLD: stochastic controlled averaging for federated
learning".

| paper | here |
|---|---|
| x, y_i | x, y |
| c, c_i | c, the client's memory |
| η_l, η_g | lr, server_lr |
| K | ``oracle.steps`` |

    Client   y: τ_i steps y ← y − η (g_i(y) − c_i + c)
             option 1:  c_i⁺ = ∇F_i(x);   option 2:  c_i⁺ = c_i − c + (x − y)/(η τ_i), the mean of the g_i(y)
    Server   x ← x + γ Σ ω̂_i (y_i − x);   c ← c + Σ_S p_i (c_i⁺ − c_i)

ω̂ = ω/Σω: at the optimum every client's corrected step is 0, whoever is in the cohort, so that the updates need no
weights that are unbiased; they need weights that sum to 1, or the steps are too long in some rounds.
"""

from typing import Any, NamedTuple

from fedax.algorithms.parts import OTHERS, first_gradients
from fedax.contract.algorithm import Change, Exchange, Round, Traits
from fedax.contract.hyper import choice, count, hyper
from fedax.contract.local import LocalMethod
from fedax.contract.oracle import Oracle
from fedax.contract.vector import Vector, zeros_like


class ScaffoldState(NamedTuple):
    """Server state: the model, and the mean control variate c = Σ p_i c_i."""

    x: Vector
    c: Vector


class Upload(NamedTuple):
    """The update of the model, and the change of the client's control variate."""

    dx: Vector
    dc: Any


class Scaffold(LocalMethod):
    """SCAFFOLD: with exact gradients it reaches the optimum with constant η, with any cohorts.

    Published for equal τ_i and p_i = 1/N. Extensions: unequal τ_i, each in its own divisor, which leaves the optimum
    in place (a client that takes more steps moves the model more on the way there); unequal p_i in the mean of the
    updates and of the control variates alike.

    Args:
        lr: η > 0, the local learning rate.
        server_lr: γ > 0, the paper's η_g; 1 is plain averaging.
        option: 2, the mean of the round's own gradients at no further cost; 1, the full gradient at x.
        warmup_batches: control variates start at the mean of so many minibatch gradients of every client at x^0;
            ``None``: at zero, as published.

    Example:
        >>> Scaffold(lr=0.05, option=1).server_lr
        1.0
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    server_lr: Any = hyper(1.0, "(0, ∞)")
    option: int = choice(2, 1, 2)
    warmup_batches: int | None = count(None, off=True)

    def traits(self) -> Traits:
        return Traits(
            "SCAFFOLD", "Karimireddy et al. 2020, Algorithm 1", limit="F", exact="always", corrects=OTHERS, fair=True
        )

    def init(self, x: Vector) -> ScaffoldState:
        return ScaffoldState(x, zeros_like(x))

    def init_client(self, x: Vector) -> Vector:
        return zeros_like(x)

    def client(self, download: ScaffoldState, memory: Vector, oracle: Oracle) -> tuple[Upload, Vector]:
        (x, c), c_i = download, memory
        direction = lambda y, k: oracle.grad(y, k) - c_i + c  # noqa: E731
        if self.solver is None or self.option == 1:
            y = self.descend(direction, x, oracle)
            c_new = oracle.full_grad(x) if self.option == 1 else c_i - c + (x - y) / (self.lr * oracle.steps)
        else:
            y, total = self.descend_summed(direction, x, oracle)
            c_new = c_i - c + total / oracle.steps
        return Upload(y - x, Change(c_new - c_i)), c_new

    def server(self, server: ScaffoldState, mean: Upload, round: Round) -> ScaffoldState:
        return ScaffoldState(server.x + (self.server_lr / round.total) * mean.dx, server.c + mean.dc)

    def warmup(self) -> tuple[Exchange, ...]:
        return first_gradients(self.warmup_batches, lambda server, g, c: server._replace(c=c), remember=True)
