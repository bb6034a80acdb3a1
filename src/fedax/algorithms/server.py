"""Server optimizers: what the server does with the mean update ⟨Δ_i⟩. The server adds: x ← x + step.

| here | papers | update |
|---|---|---|
| Plain | FedAvg | x + γ⟨Δ⟩ |
| Momentum | FedAvgM (Hsu et al. 2019) | v ← βv + ⟨Δ⟩;  x + γv |
| SlowMo | Wang et al. 2020 | u ← βu + ⟨Δ⟩/η;  x + αηu |
| DelayedNesterov | Liu et al. 2024 | the mean of N rounds moves the momentum, at every N-th; each round the model |
| Adagrad, Adam, Yogi | FedOpt (Reddi et al. 2021), Algorithm 2 | m ← β₁m + (1−β₁)⟨Δ⟩;  v by method;  x + γm/(√v + ε) |
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import optax

from fedax.algorithms.parts import named_part
from fedax.contract.hyper import check, choice, count, hyper
from fedax.contract.local import Transformation
from fedax.contract.settings import Settings
from fedax.contract.vector import Vector, zeros_like
from fedax.registry import Registry


class ServerOptimizer(Settings):
    """Turns the mean update of a round into a step of the model.

    Attributes:
        source: the paper; empty: none of its own.
    """

    source: ClassVar[str] = ""

    def init(self, x: Vector) -> Any:
        """The optimizer's state at round 0."""
        raise NotImplementedError

    def update(self, state: Any, dx: Vector, x: Vector, lr: Any) -> tuple[Vector, Any]:
        """``-> (step, state)`` for mean update ``dx`` at model ``x``; ``lr`` is the clients' η of this round."""
        raise NotImplementedError

    def validate(self) -> None:
        """Raise :class:`fedax.errors.ConfigError` for hyper-parameters that cannot be used."""
        check(self)


class Plain(ServerOptimizer):
    """x ← x + γ⟨Δ⟩.

    Args:
        server_lr: γ > 0; 1 is plain averaging.

    Raises:
        ConfigError: numbers out of range.

    Example:
        >>> step, _ = Plain(0.5).update((), Vector(jnp.array([2.0])), Vector(jnp.zeros(1)), 0.1)
        >>> step.tree.tolist()
        [1.0]
    """

    server_lr: Any = hyper(1.0, "(0, ∞)")

    def init(self, x: Vector) -> Any:
        return ()

    def update(self, state: Any, dx: Vector, x: Vector, lr: Any) -> tuple[Vector, Any]:
        return self.server_lr * dx, state


class Momentum(ServerOptimizer):
    """FedAvgM: v ← βv + ⟨Δ⟩; x ← x + γv.

    Not to be confused with FedAvg-M, whose momentum acts in every local step.

    Args:
        server_momentum: β in [0, 1).
        server_lr: γ > 0.

    Raises:
        ConfigError: numbers out of range.

    Source: Hsu, Qi and Brown 2019, "Measuring the effects of non-identical data distribution".

    Example:
        >>> v, dx, x = (Vector(jnp.array([value])) for value in (2.0, 1.0, 0.0))
        >>> step, v = Momentum(0.5).update(v, dx, x, 0.1)
        >>> step.tree.tolist()
        [2.0]
    """

    source: ClassVar[str] = "Hsu et al. 2019"
    server_momentum: Any = hyper(0.9, "[0, 1)")
    server_lr: Any = hyper(1.0, "(0, ∞)")

    def init(self, x: Vector) -> Any:
        return zeros_like(x)

    def update(self, state: Any, dx: Vector, x: Vector, lr: Any) -> tuple[Vector, Any]:
        v = self.server_momentum * state + dx
        return self.server_lr * v, v


class SlowMo(ServerOptimizer):
    """SlowMo: u ← βu + ⟨Δ⟩/η; x ← x + αηu. The buffer is in units of gradients, so it survives a change of η.

    With FedNova's update instead of ⟨Δ⟩ this is FedNova with server momentum (Wang et al. 2020, section 5).

    Args:
        server_momentum: β in [0, 1).
        server_lr: α > 0.

    Raises:
        ConfigError: numbers out of range.

    Source: Wang, Tantia, Ballas and Rabbat 2020, "SlowMo".

    Example:
        >>> u, dx, x = (Vector(jnp.array([value])) for value in (2.0, 1.0, 0.0))
        >>> step, u = SlowMo(0.5).update(u, dx, x, 0.5)
        >>> u.tree.tolist(), step.tree.tolist()
        ([3.0], [1.5])
    """

    source: ClassVar[str] = "Wang et al. 2020 (SlowMo), Algorithm 1"
    server_momentum: Any = hyper(0.9, "[0, 1)")
    server_lr: Any = hyper(1.0, "(0, ∞)")

    def init(self, x: Vector) -> Any:
        return zeros_like(x)

    def update(self, state: Any, dx: Vector, x: Vector, lr: Any) -> tuple[Vector, Any]:
        u = self.server_momentum * state + dx / lr
        return self.server_lr * lr * u, u


class DelayedState(NamedTuple):
    """The momentum, the sum of the updates since it moved, and how many these are."""

    m: Vector
    total: Vector
    taken: Any


class DelayedNesterov(ServerOptimizer):
    """Delayed Nesterov: each update moves the model at once, and the mean of N of them moves the momentum.

    D ← D + ⟨Δ⟩. At every N-th step m ← βm + D/N, x ← x + γ ((1 − s + s/N) βm + ⟨Δ⟩/N), D ← 0; at the others
    x ← x + γ (sβm/N + ⟨Δ⟩/N). With N = 1 it is Nesterov's momentum. Published for a server that does not wait,
    :class:`fedax.Async`, with N clients under way and a step at each answer.

    Args:
        server_lr: γ > 0.
        server_momentum: β in [0, 1).
        every: N ≥ 1.
        spread: s in [0, 1], cN of the source: the share of the momentum that is spread over N steps; 0: the N-th step
            takes all of it.

    Raises:
        ConfigError: numbers out of range.

    Source: Liu et al. 2024 (arXiv 2401.09135); c as in the code of HALoS.

    Example:
        >>> server, x, dx = DelayedNesterov(1.0, 0.5, every=2), Vector(jnp.zeros(1)), Vector(jnp.array([4.0]))
        >>> first, state = server.update(server.init(x), dx, x, 0.1)
        >>> second, state = server.update(state, dx, x, 0.1)
        >>> first.tree.tolist(), second.tree.tolist(), state.m.tree.tolist()
        ([2.0], [4.0], [4.0])
    """

    source: ClassVar[str] = "Liu et al. 2024"
    server_lr: Any = hyper(0.7, "(0, ∞)")
    server_momentum: Any = hyper(0.9, "[0, 1)")
    every: int = count(4)
    spread: Any = hyper(0.0, "[0, 1]")

    def init(self, x: Vector) -> DelayedState:
        return DelayedState(zeros_like(x), zeros_like(x), jnp.zeros((), jnp.int32))

    def update(self, state: DelayedState, dx: Vector, x: Vector, lr: Any) -> tuple[Vector, DelayedState]:
        n, total = self.every, state.total + dx
        taken = (state.taken + 1) % n
        last = taken == 0
        moved = self.server_momentum * state.m + total / n
        m = state.m.map(lambda old, new: jnp.where(last, new, old), moved)
        each = self.spread / n
        share = jnp.where(last, 1 - self.spread + each, each) * self.server_momentum
        rest = total.map(lambda leaf: jnp.where(last, 0, leaf))
        return self.server_lr * (share * m + dx / n), DelayedState(m, rest, taken)


class Adaptive(ServerOptimizer):
    """FedAdagrad, FedAdam and FedYogi: m ← β₁m + (1−β₁)⟨Δ⟩; x ← x + γ m/(√v + ε), elementwise, from v = ε².

    ``adagrad``: v ← v + ⟨Δ⟩²; ``adam``: v ← β₂v + (1−β₂)⟨Δ⟩²; ``yogi``: v ← v − (1−β₂)⟨Δ⟩² sign(v − ⟨Δ⟩²).
    There is no bias correction, and ε ("τ" in the source) is outside of the root.

    Args:
        kind: ``"adagrad"``, ``"adam"`` or ``"yogi"``.
        server_lr: γ > 0.
        beta1: β₁ in [0, 1); 0 is usual for adagrad.
        beta2: β₂ in [0, 1); unused by adagrad.
        eps: ε > 0, in units of the update.

    Raises:
        ConfigError: an unknown kind, or numbers out of range.

    Source: Reddi et al. 2021, "Adaptive federated optimization", Algorithm 2.

    Example:
        >>> adam, x = Adaptive("adam", server_lr=0.1, beta1=0.0, beta2=0.0), Vector(jnp.zeros(1))
        >>> step, _ = adam.update(adam.init(x), Vector(jnp.array([3.0])), x, 0.1)
        >>> round(step.tree.item(), 3)  # γ⟨Δ⟩/|⟨Δ⟩|
        0.1
    """

    source: ClassVar[str] = "Reddi et al. 2021, Algorithm 2"
    kind: str = choice(dataclasses.MISSING, "adagrad", "adam", "yogi")
    server_lr: Any = hyper(0.01, "(0, ∞)")
    beta1: Any = hyper(0.9, "[0, 1)")
    beta2: Any = hyper(0.99, "[0, 1)")
    eps: Any = hyper(1e-3, "(0, ∞)")

    def init(self, x: Vector) -> Any:
        return zeros_like(x), x.map(lambda leaf: jnp.full_like(leaf, self.eps) ** 2)

    def update(self, state: Any, dx: Vector, x: Vector, lr: Any) -> tuple[Vector, Any]:
        m, v = state
        m = self.beta1 * m + (1 - self.beta1) * dx
        square = dx * dx
        if self.kind == "adagrad":
            v = v + square
        elif self.kind == "adam":
            v = self.beta2 * v + (1 - self.beta2) * square
        else:
            v = v - (1 - self.beta2) * square * (v - square).map(jnp.sign)
        return self.server_lr * m / (v.map(jnp.sqrt) + self.eps), (m, v)


class OptaxServer(ServerOptimizer):
    """Any optax transformation at the server, fed with −⟨Δ⟩ instead of a gradient.

    Args:
        transformation: as of optax, with its learning rate, e.g. ``optax.adam(0.01)``, which is compiled in;
            ``optax.sgd(1.0)`` is averaging. Or a function that makes one, e.g. ``optax.adam``, whose floating-point
            arguments then sweep in one program.
        **given: the function's arguments, e.g. ``learning_rate=0.01``.

    Raises:
        ConfigError: it is no optax transformation; or the function does not take these arguments.

    Example:
        >>> server, x = OptaxServer(optax.sgd, learning_rate=0.5), Vector(jnp.zeros(1))
        >>> step, _ = server.update(server.init(x), Vector(jnp.array([2.0])), x, 0.1)
        >>> step.tree.tolist()
        [1.0]
    """

    of: Transformation

    def __init__(self, transformation: Any, **given: Any):
        self.of = Transformation(transformation, **given)

    def arguments(self) -> dict[str, Any]:
        return self.of.arguments()

    def init(self, x: Vector) -> Any:
        return self.of.made(x).init(x.tree)

    def update(self, state: Any, dx: Vector, x: Vector, lr: Any) -> tuple[Vector, Any]:
        step, state = self.of.made(x).update((-dx).tree, state, x.tree)
        return Vector(step), state


def server_optimizer(server: Any, **given: Any) -> ServerOptimizer:
    """The server optimizer that ``server`` names, with those of the hyper-parameters that are not ``None``.

    Args:
        server: ``"plain"``, ``"momentum"``, ``"slowmo"``, ``"delayed-nesterov"``, ``"adagrad"``, ``"adam"``,
            ``"yogi"``, a :class:`ServerOptimizer`, or an optax transformation.
        **given: ``server_lr``, ``server_momentum``, ``every``, ``spread``, ``beta1``, ``beta2``, ``eps``; ``None`` is
            not given.

    Raises:
        ConfigError: unknown name, or a hyper-parameter that this optimizer does not have.

    Example:
        >>> server_optimizer("momentum", server_momentum=0.8).server_momentum
        0.8
    """
    if isinstance(server, optax.GradientTransformation):
        server = OptaxServer(server)
    return named_part(SERVERS, server, ServerOptimizer, given)


SERVERS = Registry("server")
SERVERS.add("plain", Plain)
SERVERS.add("momentum", Momentum)
SERVERS.add("slowmo", SlowMo)
SERVERS.add("delayed-nesterov", DelayedNesterov)
for _kind in ("adagrad", "adam", "yogi"):
    SERVERS.add(_kind, Adaptive, f"{_kind.capitalize()} at the server, as published.", fixed={"kind": _kind})
