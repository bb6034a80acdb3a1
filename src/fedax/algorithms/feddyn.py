"""FedDyn and FedPD: every client minimises an augmented Lagrangian of its own.

FedDyn: Acar, Zhao, Matas, Mattina, Whatmough and Saligrama 2021, "Federated learning based on dynamic regularization".
FedPD: Zhang, Hong, Dhople, Yin and Liu 2021, "FedPD: a federated learning framework with adaptivity to non-IID data".

| paper | here |
|---|---|
| FedDyn: θ, θ_k; ∇L_k(θ_k); h; α | x, y; λ_i, the client's memory, which goes to ∇F_i(x*); h; alpha |
| FedPD: x_{0,i}, x_i; λ_i; η; p | x, y; the client's memory, which goes to −∇F_i(x*); 1/alpha; skip |

    FedDyn, client   y: τ_i steps y ← y − η (g_i(y) − λ_i + α (y − x));   λ_i ← λ_i − α (y − x)
    FedDyn, server   h ← h − α Σ_S p_i (y_i − x);   x ← Σ ω̂_i y_i − h/α, ω̂ = ω/Σω: a mean of models

    FedPD, client    y: τ_i steps y ← y − η (g_i(y) + λ_i + α (y − x));   λ_i ← λ_i + α (y − x);   x ← y + λ_i/α
                     and again from the client's own x, until a coin that all share says to communicate
    FedPD, server    x ← Σ p_i x_i

Under full participation and with skip off they are one method.
"""

from typing import Any, NamedTuple

import jax

from fedax.algorithms.parts import OTHERS
from fedax.contract.algorithm import Change, Round, Traits
from fedax.contract.hyper import check, choice, hyper
from fedax.contract.local import LocalMethod, check_pull, phases, sgd_rate
from fedax.contract.oracle import Oracle
from fedax.contract.vector import Vector, zeros_like


class FedDynState(NamedTuple):
    """FedDyn's server state: the model, the mean dual variable, and the cohort's mean model."""

    x: Vector
    h: Vector
    mean: Vector


class Upload(NamedTuple):
    """FedDyn's upload: the update of the model, and the same update as a change, for −λ_i moves by α (y − x)."""

    dx: Vector
    change: Any


class FedDyn(LocalMethod):
    """FedDyn: dynamic regularisation; with exact gradients the optimum of F, whatever the local work and the cohorts.

    Published for p_i = 1/N. For unequal p_i all means have the data's weights and α is common.

    Args:
        lr: η > 0, the local learning rate; ηα has to be at most 1.
        alpha: α > 0, strength of the regulariser; the paper tries 0.001 to 0.1.
        deliver: ``"server"``, the server's x; or ``"mean"``, the mean of the cohort's local models, which the authors
            report.

    Source: Acar et al. 2021, Algorithm 1, with local SGD.

    Example:
        >>> FedDyn(lr=0.05, alpha=0.01).deliver
        'server'
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    alpha: Any = hyper(0.1, "(0, ∞)")
    deliver: str = choice("server", "server", "mean")

    def traits(self) -> Traits:
        return Traits("FedDyn", "Acar et al. 2021, Algorithm 1", limit="F", exact="always", corrects=OTHERS, fair=True)

    def init(self, x: Vector) -> FedDynState:
        return FedDynState(x, zeros_like(x), x)

    def init_client(self, x: Vector) -> Vector:
        return zeros_like(x)

    def download(self, server: FedDynState) -> Vector:
        return server.x

    def client(self, download: Vector, memory: Vector, oracle: Oracle) -> tuple[Upload, Vector]:
        x, dual = download, memory
        dx = self.descend(lambda y, k: oracle.grad(y, k) - dual + self.alpha * (y - x), x, oracle) - x
        return Upload(dx, Change(dx)), dual - self.alpha * dx

    def server(self, server: FedDynState, mean: Upload, round: Round) -> FedDynState:
        h = server.h - self.alpha * mean.change
        y = server.x + mean.dx / round.total
        return FedDynState(y - h / self.alpha, h, y)

    def model(self, server: FedDynState) -> Vector:
        return server.x if self.deliver == "server" else server.mean

    def validate(self) -> None:
        check(self)
        check_pull("alpha", self.alpha, sgd_rate(self))


class FedPD(LocalMethod):
    """FedPD: primal-dual steps at every client, which communicate now and then. With exact gradients and
    skip off it reaches the optimum of F.

    A round here is what lies between two communications. Published for p_i = 1/N; unequal p_i in the mean are an
    extension. All clients take part.

    Args:
        lr: η > 0, the local learning rate; ηα has to be at most 1.
        alpha: α > 0, the inverse of the paper's η.
        skip: probability in [0, 1) that a communication is skipped; ``None`` is off. With skips and unlike clients the
            method does not converge exactly.

    Source: Zhang et al. 2021, Algorithm 1, with local SGD (their Oracle I).

    Example:
        >>> FedPD(lr=0.05, alpha=0.01).skip is None
        True
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    alpha: Any = hyper(0.1, "(0, ∞)")
    skip: Any = hyper(None, "[0, 1)", off=True)

    def traits(self) -> Traits:
        source = "Zhang et al. 2021, Algorithm 1"
        if self.skip is None:
            return Traits("FedPD", source, "all", limit="F", exact="always", corrects=OTHERS)
        return Traits("FedPD", source, "all")

    def init(self, x: Vector) -> Vector:
        return x

    def init_client(self, x: Vector) -> Vector:
        return zeros_like(x)

    def client(self, download: Vector, memory: Vector, oracle: Oracle) -> tuple[Vector, Vector]:
        number = 1 if self.skip is None else jax.random.geometric(oracle.round_key, 1 - self.skip)

        def phase(state: Any, j: Any) -> Any:
            x, dual = state
            first = j * oracle.steps
            y = self.descend(lambda y, k: oracle.grad(y, first + k) + dual + self.alpha * (y - x), x, oracle)
            dual = dual + self.alpha * (y - x)
            return y + dual / self.alpha, dual

        x, dual = phases(phase, (download, memory), number, oracle)
        return x - download, dual

    def server(self, server: Vector, mean: Vector, round: Round) -> Vector:
        return server + mean

    def validate(self) -> None:
        check(self)
        check_pull("alpha", self.alpha, sgd_rate(self))
