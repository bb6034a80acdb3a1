"""FedAvg by parts: a local solver, a rule of averaging, a server optimizer.

McMahan et al. 2017; FedProx: Li et al. 2020; FedNova and the common view of all: Wang et al. 2020.

| paper | here |
|---|---|
| x^(t,0), x_i^(t,τ_i) | x, y |
| Δ_i = x_i^(t,τ_i) − x^(t,0) | dx |
| η, η d_i | lr, −dx/‖a_i‖₁ |
| ‖a_i‖₁ | ``solver.norm(steps)`` |
| τ_eff | ``Normalized.tau_eff`` |

Weighted (FedAvg, eq. 2):      ⟨Δ⟩ = Σ ω_i Δ_i
Normalised (FedNova, eq. 12):  ⟨Δ⟩ = τ_eff Σ ω_i Δ_i/‖a_i‖₁ = −τ_eff η Σ ω_i d_i
Server:                        x ← x + step(⟨Δ⟩)
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp

from fedax.algorithms.parts import part
from fedax.algorithms.server import Plain, ServerOptimizer
from fedax.contract.algorithm import Algorithm, Round, Traits
from fedax.contract.local import SGD, Solver, check_linear
from fedax.contract.oracle import Oracle
from fedax.contract.regularizers import penalty
from fedax.contract.settings import Settings
from fedax.contract.vector import Vector
from fedax.errors import unknown
from fedax.numbers import check_number


class FedNovaUpload(NamedTuple):
    """FedNova's upload: the update in units of one step, and ‖a_i‖₁, the length of the client's work, or ``()``."""

    dx: Vector
    norm: Any


class Averaging(Settings):
    """What the clients send, and what the server makes of the mean of it."""

    def upload(self, dx: Vector, solver: Solver, steps: Any) -> Any:
        """What a client sends after ``steps`` local steps that changed the model by ``dx``."""
        raise NotImplementedError

    def update(self, mean: Any, solver: Solver, round: Round) -> Vector:
        """⟨Δ⟩, from the mean of the uploads."""
        raise NotImplementedError

    def validate(self, solver: Solver) -> None:
        """Raise :class:`fedax.errors.ConfigError` for what cannot be used, or not with this solver."""


class Weighted(Averaging):
    """⟨Δ⟩ = Σ ω_i Δ_i. Clients that take more steps pull harder: for small η the limit minimises
    Σ p_i‖a_i‖₁ F_i, not F.

    Example:
        >>> from fedax.contract.local import SGD
        >>> FedAvg(SGD(0.1), averaging=Weighted()).averaging
        Weighted()
    """

    def upload(self, dx: Vector, solver: Solver, steps: Any) -> Vector:
        return dx

    def update(self, mean: Vector, solver: Solver, round: Round) -> Vector:
        return mean


class Normalized(Averaging):
    """FedNova's ⟨Δ⟩ = τ_eff Σ ω_i Δ_i/‖a_i‖₁: every client counts by its weight, however much it worked.

    Args:
        tau_eff: length of the common step, in local steps. ``"default"`` Σ ω̂_i‖a_i‖₁; ``"ptau"`` Σ ω̂_i τ_i (the
            paper's choice for proximal solvers); ``"mean"`` the cohort's mean of τ_i; or a number > 0. ω̂ = ω/Σω.
            It scales the step and leaves the fixed point alone.

    Raises:
        ConfigError: an unknown rule, or a number that is not positive; a solver that is not linear.

    Source: Wang et al. 2020, eq. 12, and its supplement's Algorithm 1.

    Example:
        >>> from fedax.contract.local import SGD
        >>> method = FedAvg(SGD(0.1), averaging=Normalized(tau_eff=5.0))
        >>> method.averaging.tau_eff
        5.0
    """

    tau_eff: Any = "default"  # a name is made static in __init__, a number can be swept
    rule: str = eqx.field(static=True, default="default")

    def __init__(self, tau_eff: Any = "default"):
        named = isinstance(tau_eff, str)
        self.tau_eff = None if named else tau_eff
        self.rule = tau_eff if named else "number"

    def arguments(self) -> dict[str, Any]:
        return {"tau_eff": self.tau_eff if self.rule == "number" else self.rule}

    def upload(self, dx: Vector, solver: Solver, steps: Any) -> FedNovaUpload:
        norm = solver.norm(steps)
        # A server that is told the length of its step does not need it.
        return FedNovaUpload(dx / norm, norm if self.rule == "default" else ())

    def update(self, mean: FedNovaUpload, solver: Solver, round: Round) -> Vector:
        return self.effective_steps(mean.norm, round) * mean.dx

    def effective_steps(self, mean_norm: Any, round: Round) -> Any:
        """τ_eff, where ``mean_norm`` is Σ ω_i‖a_i‖₁."""
        if self.rule == "default":
            return mean_norm / round.total
        if self.rule == "ptau":
            return round.mean_steps
        if self.rule == "mean":
            return jnp.sum(jnp.where(round.present, round.steps, 0)) / jnp.sum(round.present)
        return self.tau_eff

    def validate(self, solver: Solver) -> None:
        if self.rule == "number":
            check_number("tau_eff", self.tau_eff, 0, open_low=True)
        elif self.rule not in ("default", "ptau", "mean"):
            raise unknown("tau_eff", self.rule, ("default", "ptau", "mean", "a number"))
        check_linear(solver)


class FedAvgState(NamedTuple):
    """Server state: the model, and the server optimizer's."""

    x: Vector
    optimizer: Any


class FedAvg(Algorithm):
    """FedAvg, FedProx, FedNova, FedAvgM, SlowMo, FedAdam, …: they differ in the three parts only.

    Args:
        solver: what the clients do, e.g. ``SGD(0.1, momentum=0.9)``.
        averaging: ``Weighted()`` (FedAvg) or ``Normalized()`` (FedNova).
        server: a :class:`fedax.algorithms.server.ServerOptimizer`; default plain averaging.

    Unequal steps are allowed in both; with ``Weighted()`` the limit is then, for small η, the optimum of another
    objective (Wang et al. 2020, Theorem 1; on quadratics for any η eq. 28). Unequal weights and all kinds of
    participation are allowed.

    Example:
        >>> from fedax.contract.local import SGD
        >>> fednova = FedAvg(SGD(0.1), averaging=Normalized())
        >>> fednova.solver.lr
        0.1
    """

    solver: Solver
    averaging: Averaging
    optimizer: ServerOptimizer

    def __init__(self, solver: Solver, averaging: Averaging | None = None, server: ServerOptimizer | None = None):
        self.solver = part("solver", solver, Solver)
        self.averaging = part("averaging", Weighted() if averaging is None else averaging, Averaging)
        self.optimizer = part("server", Plain() if server is None else server, ServerOptimizer)

    def arguments(self) -> dict[str, Any]:
        return {"solver": self.solver, "averaging": self.averaging, "server": self.optimizer}

    def traits(self) -> Traits:
        if isinstance(self.averaging, Normalized):
            return Traits("FedNova", "Wang et al. 2020, eq. 12", limit="F")
        proximal = isinstance(self.solver, SGD) and self.solver.prox is not None
        clients = "Li et al. 2020, Algorithm 2" if proximal else "McMahan et al. 2017, Algorithm 1"
        name, weighted = "FedProx" if proximal else "FedAvg", isinstance(self.averaging, Weighted)
        return Traits(name, self.optimizer.source or clients, limit="steps" if weighted else "")

    def init(self, x: Vector) -> FedAvgState:
        return FedAvgState(x, self.optimizer.init(x))

    def download(self, server: FedAvgState) -> Vector:
        return server.x

    def client(self, download: Vector, memory: Any, oracle: Oracle) -> tuple[Any, Any]:
        x = download
        return self.upload(self.train(x, oracle) - x, oracle), memory

    def train(self, x: Vector, oracle: Oracle) -> Vector:
        """The local model y after τ_i steps from x."""
        return self.solver.run(x, oracle)

    def upload(self, dx: Vector, oracle: Oracle) -> Any:
        """What a client sends of y − x."""
        return self.averaging.upload(dx, self.solver, oracle.steps)

    def server(self, server: FedAvgState, mean: Any, round: Round) -> FedAvgState:
        dx = self.averaging.update(mean, self.solver, round)
        step, optimizer = self.optimizer.update(server.optimizer, dx, server.x, self.solver.rate())
        return FedAvgState(server.x + step, optimizer)

    def penalty(self, x: Vector) -> Any:
        return penalty(self.solver.regularizer if isinstance(self.solver, SGD) else None, x)

    def validate(self) -> None:
        self.solver.validate()
        self.averaging.validate(self.solver)
        self.optimizer.validate()
