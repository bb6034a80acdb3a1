"""MB-STORM, CE-LSGD and BVR-L-SGD: recursive variance reduction between rounds, and within a client's local steps.

MB-STORM and CE-LSGD: Patel, Wang, Woodworth, Bullins and Srebro 2022, "Towards optimal communication complexity in
distributed non-convex optimization". BVR-L-SGD: Murata and Suzuki 2021, "Bias-variance reduced local SGD for less
heterogeneous federated learning".

| paper | here |
|---|---|
| x_r, x_{r−1} | ``server.x``, ``server.x_last`` |
| v_r | ``server.v`` |
| β_r (CE-LSGD), weight of the new gradient | beta |
| K minibatches, K local steps | ``oracle.steps`` |

    Client   ĝ_i: the mean over τ_i minibatches, the same at both points
    Server   MB-STORM, CE-LSGD   v ← Σ ω_i [ĝ_i(x) − (1−β) ĝ_i(x_last)] + (1−β) v;   in round 0 v is the warm-up's
             BVR-L-SGD           v ← Σ ω_i ∇F_i(x) in rounds 0, T, 2T, …; else v ← v + Σ ω_i [ĝ_i(x) − ĝ_i(x_last)]
    Then     MB-STORM            x ← x − γ v
             CE-LSGD, BVR-L-SGD  y: τ_i steps u ← u + g_i(y) − g_i(y_last), y ← y − η u, from u = v and y_last = y = x;
                                 x ← y of one client of the cohort, drawn by weight, or the mean of all

MB-STORM and the gradient part of the others take no notice of unequal τ_i: the batches are larger or smaller.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from fedax.algorithms.parts import OTHERS, first_gradients
from fedax.contract.algorithm import Algorithm, Exchange, Round, Traits
from fedax.contract.hyper import choice, count, hyper
from fedax.contract.local import LocalMethod, excess, local_steps
from fedax.contract.oracle import Oracle
from fedax.contract.vector import Vector, zeros_like


class StormState(NamedTuple):
    """Server state: the last two models, and the estimate v of the gradient."""

    x: Vector
    x_last: Vector
    v: Vector


class MBStorm(Algorithm):
    """Minibatch STORM: no local steps, the clients' minibatches of a round make one large batch.

    Args:
        lr: γ > 0, the server's step; K times a local learning rate compares with methods that take K local steps.
        beta: β in (0, 1], weight of the new gradient; 1 is minibatch SGD.
        warmup_batches: v starts at the mean of so many minibatch gradients of every client at x^0; ``None``: at zero.

    Source: Patel et al. 2022, Algorithm 2, after STORM (Cutkosky and Orabona 2019).

    Example:
        >>> MBStorm(lr=0.5, beta=0.2).warmup_batches
        1
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    beta: Any = hyper(0.1, "(0, 1]")
    warmup_batches: int | None = count(1, off=True)

    def traits(self) -> Traits:
        return Traits("MB-STORM", "Patel et al. 2022, Algorithm 2", limit="F", exact="always")

    def init(self, x: Vector) -> StormState:
        return StormState(x, x, zeros_like(x))

    def download(self, server: StormState) -> Any:
        return server.x, server.x_last

    def client(self, download: Any, memory: Any, oracle: Oracle) -> tuple[Vector, Any]:
        return _recursive(self.beta, download, oracle), memory

    def server(self, server: StormState, mean: Vector, round: Round) -> StormState:
        v = _keep(self.beta, round) * server.v + mean
        return StormState(server.x - self.lr * v, server.x, v)

    def warmup(self) -> tuple[Exchange, ...]:
        return first_gradients(self.warmup_batches, lambda server, g, _: server._replace(v=g))


class CELSGD(LocalMethod):
    """CE-LSGD: v as in MB-STORM, then local steps of recursive variance reduction at one client.

    Args:
        lr: η > 0, the local learning rate.
        beta: β in (0, 1], weight of the new gradient in v.
        pick: ``"random"``, one client of the cohort runs the local steps; ``"average"``, all do.
        warmup_batches: v starts at the mean of so many minibatch gradients of every client at x^0; ``None``: at zero.

    Source: Patel et al. 2022, Algorithm 1.

    Example:
        >>> CELSGD(lr=0.05).pick
        'random'
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    beta: Any = hyper(0.1, "(0, 1]")
    pick: str = choice("random", "random", "average")
    warmup_batches: int | None = count(1, off=True)

    def traits(self) -> Traits:
        return Traits("CE-LSGD", "Patel et al. 2022, Algorithm 1", limit="F", exact="always", corrects=OTHERS)

    def init(self, x: Vector) -> StormState:
        return StormState(x, x, zeros_like(x))

    def gradient(self, download: Any, memory: Any, oracle: Oracle) -> tuple[Vector, Any]:
        """First exchange, client: the recursive part of v."""
        return _recursive(self.beta, download, oracle), memory

    def estimate(self, server: StormState, mean: Vector, round: Round) -> StormState:
        """First exchange, server: v."""
        return server._replace(v=_keep(self.beta, round) * server.v + mean)

    def exchanges(self) -> tuple[Exchange, ...]:
        return _exchanges(self)

    def warmup(self) -> tuple[Exchange, ...]:
        return first_gradients(self.warmup_batches, lambda server, g, _: server._replace(v=g))


class BVRLSGD(LocalMethod):
    """BVR-L-SGD: v is exact every T rounds and recursive between them; then local steps at one client.

    Published for full participation; a cohort's mean instead of all clients' is an extension.

    Args:
        lr: η > 0, the local learning rate.
        period: T, whole number ≥ 1: v is the full gradient in rounds 0, T, 2T, …; ``None``: in round 0 only.
        pick: ``"random"``, one client of the cohort runs the local steps; ``"average"``, all do.

    Source: Murata and Suzuki 2021, Algorithm 1.

    Example:
        >>> BVRLSGD(lr=0.05, period=10).pick
        'random'
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    period: int | None = count(10, off=True)
    pick: str = choice("random", "random", "average")

    def traits(self) -> Traits:
        return Traits("BVR-L-SGD", "Murata and Suzuki 2021, Algorithm 1", limit="F", exact="always", corrects=OTHERS)

    def init(self, x: Vector) -> StormState:
        return StormState(x, x, zeros_like(x))

    def gradient(self, download: Any, memory: Any, oracle: Oracle) -> tuple[Vector, Any]:
        """First exchange, client: the full gradient, or the difference of two."""
        x, x_last = download
        change = lambda x: oracle.grad_batches(x, oracle.steps) - oracle.grad_batches(x_last, oracle.steps)  # noqa: E731
        return oracle.cond(self.exact(oracle.round), oracle.full_grad, change, x), memory

    def estimate(self, server: StormState, mean: Vector, round: Round) -> StormState:
        """First exchange, server: v."""
        return server._replace(v=jnp.where(self.exact(round.index), 0.0, 1.0) * server.v + mean)

    def exact(self, index: Any) -> Any:
        """Whether the round takes full gradients."""
        index = jnp.asarray(index)
        return index == 0 if self.period is None else index % self.period == 0

    def exchanges(self) -> tuple[Exchange, ...]:
        return _exchanges(self)


def _recursive(beta: Any, download: Any, oracle: Oracle) -> Vector:
    """ĝ_i(x) − (1−β) ĝ_i(x_last), and nothing in round 0, whose v is the warm-up's."""
    x, x_last = download

    def part(x: Vector) -> Vector:
        return oracle.grad_batches(x, oracle.steps) - (1 - beta) * oracle.grad_batches(x_last, oracle.steps)

    return oracle.cond(jnp.asarray(oracle.round) == 0, zeros_like, part, x)


def _keep(beta: Any, round: Round) -> Any:
    """The weight of the old v."""
    return jnp.where(jnp.asarray(round.index) == 0, 1.0, 1 - beta)


def _exchanges(method: Any) -> tuple[Exchange, ...]:
    """First v from the cohort, then the local steps."""

    def local(download: Any, memory: Any, oracle: Oracle) -> tuple[Vector, Any]:
        x, v = download

        def step(state: Any, k: Any) -> Any:
            y_last, y, buffer, u = state
            u = u + oracle.grad(y, k) - oracle.grad(y_last, k)
            return y, *method.local_step(y, buffer, u, k, x), u

        _, y, *_ = local_steps(step, (x, x, method.begin(x), v), oracle)
        return y - x, memory

    who = "one" if method.pick == "random" else "cohort"

    def move(server: StormState, mean: Vector, round: Round) -> StormState:
        if who == "cohort":  # all steps begin along v, which is exact whatever Σ ω_i is
            mean = mean - excess(method, server.v, server.x, round)
        return StormState(server.x + mean, server.x, server.v)

    return (
        Exchange(method.gradient, method.estimate, lambda server: (server.x, server.x_last)),
        Exchange(local, move, lambda server: (server.x, server.v), who),
    )
