"""Momentum inside of the local steps: FedAvg-M (FedCM), SCAFFOLD-M, and their variance-reduced forms.

Cheng, Huang, Wu and Yuan 2024, "Momentum benefits non-IID federated learning simply and provably", Algorithms 1 to 4.
FedAvg-M is FedCM (Xu, Wang, Wang and Yao 2021). It is not FedAvgM, whose momentum is at the server only.

| paper | here |
|---|---|
| x^r, x_i^{r,k} | x, y |
| g^r | ``server.g``, a mean gradient |
| c^r, c_i^r | ``server.c``, the client's memory |
| β, weight of the new gradient | beta |
| η; γ | lr; ``server_lr · lr · K``: the paper's γ = ηK is server_lr = 1 |
| x^{r−1} | x + ``server.gamma`` · g, with the γ that led to x (0 at first) |

    Client   y: τ_i steps y ← y − ηv on
             FedAvg-M        v = β g_i(y) + (1−β) g
             FedAvg-M-VR     v = g_i(y) + (1−β) (g − g_i(x^{r−1}))                       same minibatch twice
             SCAFFOLD-M      v = β (g_i(y) − c_i + c) + (1−β) g
             SCAFFOLD-M-VR   v = g_i(y) − β (c_i − c) + (1−β) (g − g_i(x^{r−1}))         same minibatch twice
             c_i⁺ = the mean of the round's g_i(y)
    Server   g ← −Σ ω_i Δ_i/(η τ_i);   x ← x − γ g;   c ← c + Σ_S p_i (c_i⁺ − c_i)

Where Σ ω_i is not 1 (an extension) the server must not multiply its own momentum by it in every round. FedAvg-M stays
unbiased: all v contain (1−β) g, which the server knows and need not estimate. The others have ω̂ = ω/Σω instead of
ω: SCAFFOLD-M and its VR form because every corrected step is 0 at the optimum, whoever takes part; FedAvg-M-VR because
its recursion is far less noisy so. FedAvg-M-VR's limit is then that of :class:`fedax.UniformNormalized`.

With a solver a client sends the mean of its v too, which replaces −Δ_i/(η τ_i) in g. The model moves by
server_lr · Σ ω̂_i τ_i times the mean of Δ_i/τ_i, and x^{r−1} is sent.

In the reparameterised form (appendix D.2) g/β replaces g, and η means the paper's βη: the new gradient
has weight 1, as in most implementations of momentum. Both forms give the same models.

Published for equal τ_i and p_i = 1/N, the first two for full participation. Extensions here: clients that take unequal
steps count by their mean update a step, and γ = server_lr · η · Σ ω̂_i τ_i, so that FedAvg-M with β = 1 is FedNova;
unequal p_i in all means; in the first two a cohort's mean instead of all clients'.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from fedax.algorithms.parts import OTHERS, first_gradients
from fedax.contract.algorithm import Change, Exchange, Round, Traits
from fedax.contract.hyper import choice, count, hyper
from fedax.contract.local import LocalMethod, excess, local_steps
from fedax.contract.oracle import Oracle
from fedax.contract.vector import Vector, zeros_like

_NO_STEP = 0.0  # γ before the first step: x^{−1} = x^0


class MomentumState(NamedTuple):
    """Server state: the model, the momentum g, and γ of the last step; with a solver the last model in its place."""

    x: Vector
    g: Vector
    gamma: Any
    x_last: Any = ()


class ControlledState(NamedTuple):
    """Server state: as :class:`MomentumState`, and the mean control variate."""

    x: Vector
    g: Vector
    gamma: Any
    c: Vector
    x_last: Any = ()


class Directed(NamedTuple):
    """What a client with a solver sends: the update of the model and the direction, means over its local steps."""

    dx: Vector
    d: Vector


class Upload(NamedTuple):
    """The update of the model per local step, or :class:`Directed`; and the change of the client's control variate."""

    dx: Any
    dc: Any


class FedAvgWithMomentum(LocalMethod):
    """FedAvg-M, also called FedCM: every local step goes along β g_i + (1−β) g.

    With constant η it ends where FedAvg with the local learning rate βη does.

    Args:
        lr: η > 0, the local learning rate; in the reparameterised form the paper's βη.
        beta: β in (0, 1], weight of the new gradient; 1 is FedAvg.
        server_lr: γ/(ηK) > 0; 1 is plain averaging.
        form: ``"published"`` or ``"reparameterised"``.

    Source: Cheng et al. 2024, Algorithm 1, eq. 1, and appendix D.2.

    Example:
        >>> FedAvgWithMomentum(lr=0.05, beta=0.2).form
        'published'
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    beta: Any = hyper(0.1, "(0, 1]")
    server_lr: Any = hyper(1.0, "(0, ∞)")
    form: str = choice("published", "published", "reparameterised")

    def traits(self) -> Traits:
        return Traits("FedAvg-M", "Cheng et al. 2024, Algorithm 1", limit="F", own=self.beta)

    def init(self, x: Vector) -> MomentumState:
        return MomentumState(x, zeros_like(x), _NO_STEP if self.solver is None else ())

    def download(self, server: MomentumState) -> Any:
        return server.x, server.g

    def client(self, download: Any, memory: Any, oracle: Oracle) -> tuple[Any, Any]:
        (x, g), new = download, _weight(self)
        return _work(self, lambda y, k: new * oracle.grad(y, k) + (1 - self.beta) * g, x, oracle), memory

    def server(self, server: MomentumState, mean: Any, round: Round) -> MomentumState:
        if self.solver is not None:
            known = (1 - self.beta) * server.g
            dx = round.mean_steps * mean.dx - excess(self, known, server.x, round)
            return MomentumState(server.x + self.server_lr * dx, mean.d + round.shortfall * known, ())
        g = mean / -self.lr + (round.shortfall * (1 - self.beta)) * server.g
        return MomentumState(*_step(self, server.x, g, round))


class FedAvgWithMomentumVR(LocalMethod):
    """FedAvg-M-VR: recursive variance reduction between the last two models, in every local step.

    With constant η it ends where FedAvg does, for every β: β tunes the noise. Two gradients a local step.

    Args:
        lr: η > 0, the local learning rate.
        beta: β in (0, 1]; 1 is FedAvg.
        server_lr: γ/(ηK) > 0; 1 is plain averaging.
        warmup_batches: g starts at the mean of so many minibatch gradients of every client at x^0; ``None``: at zero.

    Source: Cheng et al. 2024, Algorithm 3, eq. 2.

    Example:
        >>> FedAvgWithMomentumVR(lr=0.05, warmup_batches=8).beta
        0.1
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    beta: Any = hyper(0.1, "(0, 1]")
    server_lr: Any = hyper(1.0, "(0, ∞)")
    warmup_batches: int | None = count(1, off=True)

    def traits(self) -> Traits:
        return Traits("FedAvg-M-VR", "Cheng et al. 2024, Algorithm 3", limit="F")

    def init(self, x: Vector) -> MomentumState:
        if self.solver is not None:
            return MomentumState(x, zeros_like(x), (), x)
        return MomentumState(x, zeros_like(x), _NO_STEP)

    def client(self, download: MomentumState, memory: Any, oracle: Oracle) -> tuple[Any, Any]:
        x, g = download.x, download.g
        x_last = _last(self, download)

        def direction(y: Vector, k: Any) -> Vector:
            return oracle.grad(y, k) + (1 - self.beta) * (g - oracle.grad(x_last, k))

        return _work(self, direction, x, oracle), memory

    def server(self, server: MomentumState, mean: Any, round: Round) -> MomentumState:
        x, g, gamma = _next(self, server.x, mean, round)
        return MomentumState(x, g, gamma, () if self.solver is None else server.x)

    def warmup(self) -> tuple[Exchange, ...]:
        return first_gradients(self.warmup_batches, lambda server, g, _: server._replace(g=g))


class ScaffoldWithMomentum(LocalMethod):
    """SCAFFOLD-M: SCAFFOLD whose local steps go along β (g_i − c_i + c) + (1−β) g.

    With exact gradients it reaches the optimum with constant η, with any cohorts.

    Args:
        lr: η > 0, the local learning rate; in the reparameterised form the paper's βη.
        beta: β in (0, 1], weight of the new gradient; 1 is SCAFFOLD, option II.
        server_lr: γ/(ηK) > 0; 1 is plain averaging.
        form: ``"published"`` or ``"reparameterised"``.
        warmup_batches: control variates start at the mean of so many minibatch gradients of every client at x^0;
            ``None``: at zero.

    Source: Cheng et al. 2024, Algorithm 2, eq. 3, and appendix D.2.

    Example:
        >>> ScaffoldWithMomentum(lr=0.05, beta=0.2).warmup_batches
        1
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    beta: Any = hyper(0.1, "(0, 1]")
    server_lr: Any = hyper(1.0, "(0, ∞)")
    form: str = choice("published", "published", "reparameterised")
    warmup_batches: int | None = count(1, off=True)

    def traits(self) -> Traits:
        source = "Cheng et al. 2024, Algorithm 2"
        return Traits("SCAFFOLD-M", source, limit="F", exact="always", corrects=OTHERS)

    def init(self, x: Vector) -> ControlledState:
        return ControlledState(x, zeros_like(x), _NO_STEP if self.solver is None else (), zeros_like(x))

    def init_client(self, x: Vector) -> Vector:
        return zeros_like(x)

    def download(self, server: ControlledState) -> Any:
        return server.x, server.g, server.c

    def client(self, download: Any, memory: Vector, oracle: Oracle) -> tuple[Upload, Vector]:
        (x, g, c), c_i, new = download, memory, _weight(self)

        def step(state: Any, k: Any) -> Any:
            y, buffer, total = state
            g_i = oracle.grad(y, k)
            v = new * (g_i - c_i + c) + (1 - self.beta) * g
            return *self.local_step(y, buffer, v, k, x), total + g_i

        y, _, total = local_steps(step, (x, self.begin(x), zeros_like(x)), oracle)
        c_new = total / oracle.steps
        dx: Any = (y - x) / oracle.steps
        if self.solver is not None:
            dx = Directed(dx, new * (c_new - c_i + c) + (1 - self.beta) * g)
        return Upload(dx, Change(c_new - c_i)), c_new

    def server(self, server: ControlledState, mean: Upload, round: Round) -> ControlledState:
        return ControlledState(*_next(self, server.x, mean.dx, round), server.c + mean.dc)

    def warmup(self) -> tuple[Exchange, ...]:
        return first_gradients(self.warmup_batches, lambda server, g, c: server._replace(c=c), remember=True)


class ScaffoldWithMomentumVR(LocalMethod):
    """SCAFFOLD-M-VR: control variates and recursive variance reduction in every local step.

    With exact gradients it reaches the optimum with constant η, with any cohorts. Two gradients a local step.

    Args:
        lr: η > 0, the local learning rate.
        beta: β in (0, 1]; 1 is SCAFFOLD, option II.
        server_lr: γ/(ηK) > 0; 1 is plain averaging.
        warmup_batches: control variates and g start at the means of so many minibatch gradients of every client at
            x^0; ``None``: at zero.

    Source: Cheng et al. 2024, Algorithm 4.

    Example:
        >>> ScaffoldWithMomentumVR(lr=0.05).beta
        0.1
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    beta: Any = hyper(0.1, "(0, 1]")
    server_lr: Any = hyper(1.0, "(0, ∞)")
    warmup_batches: int | None = count(1, off=True)

    def traits(self) -> Traits:
        source = "Cheng et al. 2024, Algorithm 4"
        return Traits("SCAFFOLD-M-VR", source, limit="F", exact="always", corrects=OTHERS)

    def init(self, x: Vector) -> ControlledState:
        if self.solver is not None:
            return ControlledState(x, zeros_like(x), (), zeros_like(x), x)
        return ControlledState(x, zeros_like(x), _NO_STEP, zeros_like(x))

    def init_client(self, x: Vector) -> Vector:
        return zeros_like(x)

    def client(self, download: ControlledState, memory: Vector, oracle: Oracle) -> tuple[Upload, Vector]:
        (x, g, _, c, _), c_i = download, memory
        x_last, directed = _last(self, download), self.solver is not None

        def step(state: Any, k: Any) -> Any:
            y, buffer, total, direction = state
            g_i = oracle.grad(y, k)
            v = g_i - self.beta * (c_i - c) + (1 - self.beta) * (g - oracle.grad(x_last, k))
            return *self.local_step(y, buffer, v, k, x), total + g_i, direction + v if directed else ()

        start = (x, self.begin(x), zeros_like(x), zeros_like(x) if directed else ())
        y, _, total, direction = local_steps(step, start, oracle)
        c_new = total / oracle.steps
        dx: Any = (y - x) / oracle.steps
        if directed:
            dx = Directed(dx, direction / oracle.steps)
        return Upload(dx, Change(c_new - c_i)), c_new

    def server(self, server: ControlledState, mean: Upload, round: Round) -> ControlledState:
        x, g, gamma = _next(self, server.x, mean.dx, round)
        return ControlledState(x, g, gamma, server.c + mean.dc, () if self.solver is None else server.x)

    def warmup(self) -> tuple[Exchange, ...]:
        return first_gradients(self.warmup_batches, lambda server, g, c: server._replace(g=g, c=c), remember=True)


def _work(method: LocalMethod, direction: Any, x: Vector, oracle: Oracle) -> Any:
    """A client's update of the model per local step; with a solver also its mean direction."""
    if method.solver is None:
        return (method.descend(direction, x, oracle) - x) / oracle.steps
    y, total = method.descend_summed(direction, x, oracle)
    return Directed((y - x) / oracle.steps, total / oracle.steps)


def _last(method: LocalMethod, server: Any) -> Vector:
    """x^{r−1}."""
    return server.x + server.gamma * server.g if method.solver is None else server.x_last


def _next(method: Any, x: Vector, mean: Any, round: Round) -> tuple[Vector, Vector, Any]:
    """The server's step by means with the weights ω/Σω: the new x, g and γ."""
    if method.solver is None:
        return _step(method, x, mean / (-method.lr * round.total), round)
    return x + (method.server_lr * round.mean_steps / round.total) * mean.dx, mean.d / round.total, ()


def _step(method: Any, x: Vector, g: Vector, round: Round) -> tuple[Vector, Vector, Any]:
    """The server's step along the new momentum: x ← x − γ g."""
    gamma = jnp.asarray(method.server_lr * method.lr * round.mean_steps, float)
    return x - gamma * g, g, gamma


def _weight(method: Any) -> Any:
    """The weight of the new gradient."""
    return method.beta if method.form == "published" else 1.0
