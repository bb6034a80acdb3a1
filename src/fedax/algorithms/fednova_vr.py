"""FedNova with cross-client variance reduction (Wang et al. 2020, section 5; supplement, Algorithm 2).

| paper | here |
|---|---|
| d_i = (x − x_i^(τ_i))/(η a_i) | ``−upload.dx / lr`` |
| c_i | ``correction`` |
| – | h_i, the client's normalised gradient without correction; h̄ = Σ p_i h_i at the server |

    Client   c_i = h̄ − h_i;   y: τ_i steps of the solver on g_i + c_i;   d_i = (x − y)/(η‖a_i‖₁);   h_i ← d_i − c_i
    Server   x ← x − τ_eff η Σ ω_i d_i;   h̄ ← h̄ + Σ_S p_i (d_i − h̄)

The paper's Algorithm 2 stores d_i itself. As that contains the old correction, the correction cancels in every other
round, and the method stalls half-way to the optimum; with d_i − c_i it reaches the optimum of Σ p_i F_i with exact
gradients, also with steps that change from round to round (both are tested). Under partial participation, which the
paper leaves undefined, clients that are absent keep their h_i, and the updates have the weights ω/Σω, both as in
SCAFFOLD.
"""

from typing import Any, NamedTuple

from fedax.algorithms.fedavg import FedNovaUpload, Normalized
from fedax.algorithms.parts import OTHERS, part
from fedax.algorithms.server import Plain, ServerOptimizer
from fedax.contract.algorithm import Algorithm, Change, Round, Traits
from fedax.contract.local import Solver
from fedax.contract.oracle import Oracle
from fedax.contract.vector import Vector, zeros_like


class Download(NamedTuple):
    """The model and the mean normalised gradient h̄."""

    x: Vector
    h: Vector


class Upload(NamedTuple):
    """FedNova's upload, and the same update as a change: h_i moves by d_i − h̄."""

    update: FedNovaUpload
    change: Any


class FedNovaVRState(NamedTuple):
    """Server state: the model, h̄, and the server optimizer's."""

    x: Vector
    h: Vector
    optimizer: Any


class FedNovaVR(Algorithm):
    """FedNova with cross-client variance reduction: with exact gradients the optimum of F, under any local work.

    Published for full participation and SGD with or without momentum; any linear solver and all kinds of cohorts are
    extensions. Momentum ρ needs η scaled by about 1 − ρ.

    Args:
        solver: a linear solver.
        averaging: FedNova's, with its ``tau_eff``.
        server: a server optimizer; default plain.

    Example:
        >>> from fedax.contract.local import SGD
        >>> FedNovaVR(SGD(0.05, momentum=0.9)).averaging.rule
        'default'
    """

    solver: Solver
    averaging: Normalized
    optimizer: ServerOptimizer

    def __init__(self, solver: Solver, averaging: Normalized | None = None, server: ServerOptimizer | None = None):
        self.solver = part("solver", solver, Solver)
        self.averaging = part("averaging", Normalized() if averaging is None else averaging, Normalized)
        self.optimizer = part("server", Plain() if server is None else server, ServerOptimizer)

    def arguments(self) -> dict[str, Any]:
        return {"solver": self.solver, "averaging": self.averaging, "server": self.optimizer}

    def traits(self) -> Traits:
        source = "Wang et al. 2020, supplement's Algorithm 2"
        return Traits("FedNova-VR", source, limit="F", exact="always", corrects=OTHERS)

    def init(self, x: Vector) -> FedNovaVRState:
        return FedNovaVRState(x, zeros_like(x), self.optimizer.init(x))

    def init_client(self, x: Vector) -> Vector:
        return zeros_like(x)

    def download(self, server: FedNovaVRState) -> Download:
        return Download(server.x, server.h)

    def client(self, download: Download, memory: Vector, oracle: Oracle) -> tuple[Upload, Vector]:
        x, correction = download.x, download.h - memory
        y = self.solver.run(x, oracle, correction)
        upload = self.averaging.upload(y - x, self.solver, oracle.steps)
        return Upload(upload, Change(upload.dx)), upload.dx / -self.solver.rate() - correction

    def server(self, server: FedNovaVRState, mean: Upload, round: Round) -> FedNovaVRState:
        lr = self.solver.rate()
        dx = self.averaging.update(mean.update, self.solver, round) / round.total
        step, optimizer = self.optimizer.update(server.optimizer, dx, server.x, lr)
        h = server.h + (mean.change / -lr - round.heard * server.h)
        return FedNovaVRState(server.x + step, h, optimizer)

    def validate(self) -> None:
        self.solver.validate()
        self.averaging.validate(self.solver)
        self.optimizer.validate()
