"""Nesterov-accelerated FedAvg, and FedMaSS.

Qu, Lin, Kalagnanam, Li, Zhou and Zhou 2020, "Federated learning's blessing: FedAvg has linear speedup", sections 4 and
G.2; FedMaSS after MaSS (Liu and Belkin 2020).

| paper | here |
|---|---|
| w_t^k; v_t^k (Nesterov); u_t^k (FedMaSS) | y; v; u |
| α_t, β_t (Nesterov); η₁, η₂, γ (FedMaSS) | ``lr(t)``, ``momentum(t)``; ``lr(t)``, ``lr2(t)``, ``momentum(t)`` |
| E | ``oracle.steps`` |

    Nesterov, client   v_new = y − α_t g_i(y);   y ← v_new + β_t (v_new − v);   v ← v_new
    FedMaSS, client    y_new = u − η₁ g_i(u);    u ← y_new + γ (y_new − y) + η₂ g_i(u);   y ← y_new
    Server             x ← x + Σ ω_i (y_i − x)

Three readings of what becomes of the second sequence where the models are averaged (``sync``): ``"paper"``, it stays
with its client (all clients take part); ``"both"``, it is averaged too; ``"restart"``, where the gradients are taken
(Nesterov's y, FedMaSS's u) is averaged, and both sequences begin there.
"""

from typing import Any, NamedTuple

from fedax.contract.algorithm import Algorithm, Exchange, Round, Traits
from fedax.contract.hyper import choice, hyper
from fedax.contract.local import LocalMethod, local_steps
from fedax.contract.oracle import Oracle
from fedax.contract.vector import Vector, zeros_like


class TwoSequences(NamedTuple):
    """Server state: the model, and the second sequence where it is averaged (else nothing)."""

    x: Vector
    second: Any


class NesterovFedAvg(LocalMethod):
    """FedAvg with Nesterov's momentum in the local steps.

    Published for equal steps; unequal ones are refused. Without momentum it is FedAvg, in every ``sync``.

    Args:
        lr: α_t > 0, a number or a schedule of the global step t.
        momentum: β_t in [0, 1), a number or a schedule of t; the paper's experiments have 0.1.
        sync: ``"paper"``, ``"both"`` or ``"restart"``.

    Source: Qu et al. 2020, section 4 and appendix I.5.

    Example:
        >>> NesterovFedAvg(lr=0.1).sync
        'paper'
    """

    lr: Any = hyper(0.05, "(0, ∞)", by_step=True)
    momentum: Any = hyper(0.1, "[0, 1)", by_step=True)
    sync: str = choice("paper", "paper", "both", "restart")

    def traits(self) -> Traits:
        return _traits("Nesterov FedAvg", "Qu et al. 2020, section 4", self.sync)

    def init(self, x: Vector) -> TwoSequences:
        return TwoSequences(x, x if self.sync == "both" else ())

    def init_client(self, x: Vector) -> Any:
        return x if self.sync == "paper" else ()

    def client(self, download: TwoSequences, memory: Any, oracle: Oracle) -> tuple[TwoSequences, Any]:
        x = download.x
        v = {"paper": memory, "both": download.second, "restart": x}[self.sync]

        def step(state: Any, k: Any) -> Any:
            y, v, buffer = state
            eta = self.lr(oracle.t(k))
            v_new, buffer = self.local_step(y, buffer, oracle.grad(y, k), k, x, eta)
            return v_new + self.momentum(oracle.t(k)) * (v_new - v), v_new, buffer

        y, v_new, _ = local_steps(step, (x, v, self.begin(x)), oracle)
        upload = TwoSequences(y - x, v_new - v if self.sync == "both" else ())
        return upload, v_new if self.sync == "paper" else ()

    def server(self, server: TwoSequences, mean: TwoSequences, round: Round) -> TwoSequences:
        return _move(self.sync, server, mean, round)


class FedMaSS(Algorithm):
    """FedMaSS: gradients at a second sequence, with a compensating step along them.

    For overparameterised least squares, with the rates of Theorem 7. Published for equal steps; unequal ones are
    refused. With η₂ = 0 it is Nesterov's FedAvg in ``"restart"``, and in ``"both"`` but for the
    model delivered, the mean v.

    Args:
        lr: η₁ > 0, a number or a schedule of the global step t.
        lr2: η₂ ≥ 0, likewise.
        momentum: the paper's γ in [0, 1), likewise.
        sync: ``"paper"``, ``"both"`` or ``"restart"``.

    Source: Qu et al. 2020, section G.2.

    Example:
        >>> FedMaSS(lr=0.1, lr2=0.05, momentum=0.8).sync
        'paper'
    """

    lr: Any = hyper(0.05, "(0, ∞)", by_step=True)
    lr2: Any = hyper(0.0, "[0, ∞)", by_step=True)
    momentum: Any = hyper(0.1, "[0, 1)", by_step=True)
    sync: str = choice("paper", "paper", "both", "restart")

    def traits(self) -> Traits:
        return _traits("FedMaSS", "Qu et al. 2020, section G.2", self.sync)

    def init(self, x: Vector) -> TwoSequences:
        return TwoSequences(x, x if self.sync == "both" else ())

    def init_client(self, x: Vector) -> Any:
        return x if self.sync == "paper" else ()

    def client(self, download: TwoSequences, memory: Any, oracle: Oracle) -> tuple[TwoSequences, Any]:
        x = download.x
        u = {"paper": memory, "both": download.second, "restart": x}[self.sync]

        def step(state: Any, k: Any) -> Any:
            y, u, _ = state
            t = oracle.t(k)
            g, gamma = oracle.grad(u, k), self.momentum(t)
            y_new = u - self.lr(t) * g
            own = self.lr2(t) * g - gamma * y
            return y_new, (1 + gamma) * y_new + own, own

        y, u_new, own = local_steps(step, (x, u, zeros_like(x)), oracle)
        if self.sync == "restart":
            return TwoSequences(u_new - x, ()), ()
        upload = TwoSequences(y - x, u_new - u if self.sync == "both" else ())
        return upload, own if self.sync == "paper" else ()

    def server(self, server: TwoSequences, mean: TwoSequences, round: Round) -> TwoSequences:
        return _move(self.sync, server, mean, round)

    def listen(self, download: TwoSequences, memory: Vector, oracle: Oracle) -> tuple[None, Vector]:
        """``sync="paper"``: the last step of u, around the mean model."""
        gamma = self.momentum(oracle.t(oracle.steps - 1))
        return None, (1 + gamma) * download.x + memory

    def exchanges(self) -> tuple[Exchange, ...]:
        first = Exchange(self.client, self.server)
        return (first, Exchange(self.listen)) if self.sync == "paper" else (first,)


def _move(sync: str, server: TwoSequences, mean: TwoSequences, round: Round) -> TwoSequences:
    """The server's part."""
    if sync == "both":  # both sequences are averaged; an average of models has weights that sum to 1
        return TwoSequences(server.x + mean.x / round.total, server.second + mean.second / round.total)
    return TwoSequences(server.x + mean.x, ())


def _traits(name: str, source: str, sync: str) -> Traits:
    if sync == "paper":
        return Traits(f"{name} with sync='paper'", source, "all", "equal", limit="F")
    return Traits(name, source, "any", "equal", limit="F")
