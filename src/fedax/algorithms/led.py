"""LED and Scaffnew: a dual variable at each client that moves by one step common to all.

LED: Alghunaim 2023, "Local exact-diffusion for decentralized optimization and learning", with a server.
Scaffnew: Mishchenko, Malinovsky, Stich and Richtárik 2022, "ProxSkip: yes! local gradient steps provably lead to
communication acceleration!".

| paper | here |
|---|---|
| LED: x, φ_i; y_i; α; β | x, y; the client's memory; lr; b |
| Scaffnew: x_i, x̂_i; h_i; γ; p | x, y; the client's memory; lr; probability |

    LED, client        φ_i: τ_i steps φ ← φ − η g_i(φ) − b y_i
    Scaffnew, client   x̂_i: τ_i steps x ← x − η (g_i(x) − h_i)
    Server             x ← Σ p_i φ_i
    Client             LED: y_i ← y_i + φ_i − x;   Scaffnew: h_i ← h_i + (p_c/η) (x − x̂_i)

For constant η they are one method with b = p_c and b y_i = −η h_i. With b = 1/K both are VRL-SGD.

With a solver the sum D_i of a client's directions g_i − h_i, which is sent too, replaces −Δ_i/η in
Scaffnew: h_i ← h_i + p_c (D_i − Σ p_j D_j).
"""

from typing import Any, NamedTuple

from fedax.algorithms.parts import OTHERS
from fedax.contract.algorithm import Algorithm, Exchange, Round, Traits
from fedax.contract.hyper import hyper
from fedax.contract.local import LocalMethod, local_steps
from fedax.contract.oracle import Oracle
from fedax.contract.vector import Vector, zeros_like


class DualState(NamedTuple):
    """Server state: the model; with a solver also the mean of the clients' sums of directions."""

    x: Vector
    total: Any = ()


class Between(NamedTuple):
    """What a client holds until it hears the means: its dual variable, and its local model or sum of directions."""

    dual: Vector
    y: Vector


class LED(Algorithm):
    """LED, local exact diffusion: with equal steps and exact gradients it reaches the optimum of F; all clients take
    part.

    Published for equal τ_i = K. As b is the same for all clients, the optimum stays where it is for unequal steps and
    for steps that change from round to round (an extension; b up to 1/max τ_i is safe).

    Args:
        lr: η > 0, the local learning rate.
        b: step of the dual variable, in (0, 2/K); ``None`` is 1/K, for equal steps only.

    Example:
        >>> LED(lr=0.05, b=0.1).b
        0.1
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    b: Any = hyper(None, "(0, ∞)", off=True)

    def traits(self) -> Traits:
        return Traits("LED", "Alghunaim 2023", "all", limit="F", exact="always", corrects=OTHERS)

    def init(self, x: Vector) -> DualState:
        return DualState(x)

    def init_client(self, x: Vector) -> Vector:
        return zeros_like(x)

    def client(self, download: DualState, memory: Vector, oracle: Oracle) -> tuple[Vector, Between]:
        x, b = download.x, common_step(self.b, "b", oracle)
        y = local_steps(lambda y, k: y - self.lr * oracle.grad(y, k) - b * memory, x, oracle)
        return y - x, Between(memory, y)

    def server(self, server: DualState, mean: Vector, round: Round) -> DualState:
        return DualState(server.x + mean)

    def listen(self, download: DualState, memory: Between, oracle: Oracle) -> tuple[None, Vector]:
        """The client hears the new model and moves its dual variable."""
        return None, memory.dual + (memory.y - download.x)

    def exchanges(self) -> tuple[Exchange, ...]:
        return (Exchange(self.client, self.server), Exchange(self.listen))


class Scaffnew(LocalMethod):
    """Scaffnew (ProxSkip): clients communicate when a coin that all share says so. With exact gradients it
    reaches the optimum of F.

    A round here is what lies between two communications, so that its local steps are the tosses of the coin:
    ``work=GeometricSteps(1/p_c)`` is the published method, ``Steps(K)`` communicates every K steps instead. All
    clients take part. Unequal steps are an extension; the optimum stays where it is.

    Args:
        lr: η > 0, the local learning rate; the theory, for μ-strongly convex F_i, has 1/L.
        probability: p_c in (0, 1], of communicating after a step; the theory has √(μ/L). ``None`` is 1/K, for equal
            steps only.

    Example:
        >>> Scaffnew(lr=0.05, probability=0.1).probability
        0.1
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    probability: Any = hyper(None, "(0, 1]", off=True)

    def traits(self) -> Traits:
        return Traits(
            "Scaffnew", "Mishchenko et al. 2022, Algorithm 2", "all", limit="F", exact="always", corrects=OTHERS
        )

    def init(self, x: Vector) -> DualState:
        return DualState(x, () if self.solver is None else zeros_like(x))

    def init_client(self, x: Vector) -> Vector:
        return zeros_like(x)

    def client(self, download: DualState, memory: Vector, oracle: Oracle) -> tuple[Any, Between]:
        x, direction = download.x, lambda y, k: oracle.grad(y, k) - memory
        if self.solver is not None:
            y, total = self.descend_summed(direction, x, oracle)
            return (y - x, total), Between(memory, total)
        y = self.descend(direction, x, oracle)
        return y - x, Between(memory, y)

    def server(self, server: DualState, mean: Any, round: Round) -> DualState:
        dx, total = (mean, ()) if self.solver is None else mean
        return DualState(server.x + dx, total)

    def listen(self, download: DualState, memory: Between, oracle: Oracle) -> tuple[None, Vector]:
        """The client hears the new model and moves its dual variable."""
        p_c = common_step(self.probability, "probability", oracle)
        if self.solver is not None:
            return None, memory.dual + p_c * (memory.y - download.total)
        return None, memory.dual + p_c * (download.x - memory.y) / self.lr

    def exchanges(self) -> tuple[Exchange, ...]:
        return (Exchange(self.client, self.server), Exchange(self.listen))


def common_step(step: Any, field: str, oracle: Oracle) -> Any:
    """The dual step: as given, or 1/K."""
    return 1 / oracle.equal_steps(field, "give one number for all clients, at most 1/max τ_i") if step is None else step
