"""Mime and MimeLite: the statistics of a centralised optimizer, frozen during the local steps; and their MVR forms.

Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich and Suresh 2020, "Mime: mimicking centralized stochastic algorithms in
federated learning".

| paper | here |
|---|---|
| x, y_i | x, y |
| s, U, V | ``server.s``, ``base.direction``, ``base.statistics`` |
| c, the cohort's mean full gradient at x | c |
| β, momentum | momentum (Base); a, weight of the new gradient: alpha (MVR) |

    Client   y: τ_i steps y ← y − η U(g, s)
             Mime g = g_i(y) − g_i(x) + c, same minibatch twice;   MimeLite g = g_i(y)
    Server   x ← x + γ Σ ω_i (y_i − x)   (Mime: ω/Σω);   s ← V(c, s)

    SGD        U = g
    momentum   U = (1−β) g + β m;                       V: m ← (1−β) c + β m
    Adam       U = [(1−β₁) g + β₁ m]/(√v + ε);          V: m ← (1−β₁) c + β₁ m,  v ← (1−β₂) c² + β₂ v

    MVR        y ← y − η [a g + (1−a) (m + g_i(y) − g_i(x_last))];   m ← c + (1−a) (m − Σ ω_i ∇F_i(x_last))

Where Σ ω_i is not 1 (an extension), c and m are estimated with the weights ω, and so without bias. All of Mime's local
steps go along U(c, s), apart from drift, so that their mean has the weights ω/Σω. Those of MimeLite go along g_i, so
that their mean has the weights ω; but all contain U(0, s), or (1−a) m, which the server knows and need not estimate.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from fedax.contract.algorithm import Exchange, Round, Traits
from fedax.contract.hyper import check, choice, flag, hyper
from fedax.contract.local import LocalMethod, excess
from fedax.contract.oracle import Oracle
from fedax.contract.settings import Settings
from fedax.contract.vector import Vector, zeros_like
from fedax.registry import Registry


class Base(Settings):
    """A centralised optimizer, cut into its direction U and its statistics V."""

    def init(self, x: Vector) -> Any:
        """s at round 0."""
        raise NotImplementedError

    def direction(self, g: Vector, s: Any) -> Vector:
        """U(g, s), along which a local step goes."""
        raise NotImplementedError

    def statistics(self, c: Vector, s: Any) -> Any:
        """V(c, s), the new s."""
        raise NotImplementedError

    def validate(self) -> None:
        """Raise :class:`fedax.errors.ConfigError` for hyper-parameters that cannot be used."""
        check(self)


class BaseSGD(Base):
    """U = g; no statistics."""

    def init(self, x: Vector) -> Any:
        return ()

    def direction(self, g: Vector, s: Any) -> Vector:
        return g

    def statistics(self, c: Vector, s: Any) -> Any:
        return s


class BaseMomentum(Base):
    """U = (1−β) g + βm;  m ← (1−β) c + βm, from zero.

    Args:
        momentum: β in [0, 1).
    """

    momentum: Any = hyper(0.9, "[0, 1)")

    def init(self, x: Vector) -> Any:
        return zeros_like(x)

    def direction(self, g: Vector, s: Any) -> Vector:
        return (1 - self.momentum) * g + self.momentum * s

    def statistics(self, c: Vector, s: Any) -> Any:
        return self.direction(c, s)


class BaseAdam(Base):
    """U = [(1−β₁) g + β₁m]/(√v + ε);  m ← (1−β₁) c + β₁m,  v ← (1−β₂) c² + β₂v, from zero; no bias correction.

    Args:
        beta1: β₁ in [0, 1).
        beta2: β₂ in [0, 1).
        eps: ε > 0; the first round, when v is zero, goes by g/ε.
    """

    beta1: Any = hyper(0.9, "[0, 1)")
    beta2: Any = hyper(0.99, "[0, 1)")
    eps: Any = hyper(1e-3, "(0, ∞)")

    def init(self, x: Vector) -> Any:
        return zeros_like(x), zeros_like(x)

    def direction(self, g: Vector, s: Any) -> Vector:
        m, v = s
        return ((1 - self.beta1) * g + self.beta1 * m) / (v.map(jnp.sqrt) + self.eps)

    def statistics(self, c: Vector, s: Any) -> Any:
        m, v = s
        return (1 - self.beta1) * c + self.beta1 * m, (1 - self.beta2) * c * c + self.beta2 * v


class MimeState(NamedTuple):
    """Server state: the model and the base's statistics."""

    x: Vector
    s: Any


class Gathered(NamedTuple):
    """The server's state between Mime's two exchanges, with the cohort's mean full gradient."""

    x: Vector
    s: Any
    c: Vector


class Upload(NamedTuple):
    """MimeLite's upload: the update of the model, and the full gradient at x."""

    dx: Vector
    c: Vector


class Mime(LocalMethod):
    """Mime and MimeLite with SGD, momentum or Adam at their base; ``fedax.create`` has SGD, which has no momentum.

    With all clients and exact gradients Mime reaches the optimum with constant η; MimeLite keeps a bias of drift.
    Clients need no memory. Published for p_i = 1/N and equal steps; unequal p_i weigh updates and gradients alike (an
    extension, as in FedJAX), and updates of unequal τ_i are averaged as they are.

    Args:
        base: a :class:`Base`.
        lr: η > 0, the local learning rate.
        server_lr: γ > 0; 1 is plain averaging.
        lite: whether local steps go without the correction g_i(x) − c.

    Source: Karimireddy et al. 2020 (Mime), Algorithm 1.

    Example:
        >>> Mime(BaseMomentum(0.9), lr=0.05).lite
        False
    """

    base: Base  # type: ignore[misc]  # the solver is given by its name only
    lr: Any = hyper(0.05, "(0, ∞)")
    server_lr: Any = hyper(1.0, "(0, ∞)")
    lite: bool = flag()

    def traits(self) -> Traits:
        source = "Karimireddy et al. 2020 (Mime), Algorithm 1"
        if self.lite:
            return Traits("MimeLite", source)
        return Traits("Mime", source, limit="F", exact="all clients", corrects="the mean gradient of all")

    def init(self, x: Vector) -> MimeState:
        return MimeState(x, self.base.init(x))

    def gather(self, download: Vector, memory: Any, oracle: Oracle) -> tuple[Vector, Any]:
        """Mime's first exchange, client: the full gradient at x."""
        return oracle.full_grad(download), memory

    def gathered(self, server: MimeState, mean: Vector, round: Round) -> Gathered:
        """Mime's first exchange, server: c."""
        return Gathered(server.x, server.s, mean)

    def work(self, download: Gathered, memory: Any, oracle: Oracle) -> tuple[Vector, Any]:
        """Mime's second exchange, client: local steps on corrected gradients."""
        x, s, c = download

        def direction(y: Vector, k: Any) -> Vector:
            return self.base.direction(oracle.grad(y, k) - oracle.grad(x, k) + c, s)

        return self.descend(direction, x, oracle) - x, memory

    def move(self, server: Gathered, mean: Vector, round: Round) -> MimeState:
        """Mime's second exchange, server."""
        x, s, c = server
        return MimeState(x + (self.server_lr / round.total) * mean, self.base.statistics(c, s))

    def work_lite(self, download: MimeState, memory: Any, oracle: Oracle) -> tuple[Upload, Any]:
        """MimeLite, client."""
        x, s = download
        y = self.descend(lambda y, k: self.base.direction(oracle.grad(y, k), s), x, oracle)
        return Upload(y - x, oracle.full_grad(x)), memory

    def move_lite(self, server: MimeState, mean: Upload, round: Round) -> MimeState:
        """MimeLite, server."""
        known = self.base.direction(zeros_like(server.x), server.s)
        dx = mean.dx - excess(self, known, server.x, round)
        return MimeState(server.x + self.server_lr * dx, self.base.statistics(mean.c, server.s))

    def exchanges(self) -> tuple[Exchange, ...]:
        if self.lite:
            return (Exchange(self.work_lite, self.move_lite),)
        return (Exchange(self.gather, self.gathered, lambda server: server.x), Exchange(self.work, self.move))


class MimeMVRState(NamedTuple):
    """Server state: the last two models, and the momentum m."""

    x: Vector
    x_last: Vector
    m: Vector


class MVRGathered(NamedTuple):
    """The server's state between MimeMVR's two exchanges: the new m, the one the clients use, and c."""

    x: Vector
    x_last: Vector
    m: Vector
    c: Vector
    m_new: Vector


class Gradients(NamedTuple):
    """The full gradients at x and at x_last."""

    now: Vector
    last: Vector


class MVRUpload(NamedTuple):
    """MimeLiteMVR's upload: the update of the model, and the full gradients at x and at x_last."""

    dx: Vector
    gradients: Gradients


class MimeMVR(LocalMethod):
    """MimeMVR and MimeLiteMVR: momentum-based variance reduction across rounds.

    With all clients and exact gradients MimeMVR reaches the optimum with constant η; MimeLiteMVR keeps a bias in
    proportion to a. Weights, and unequal τ_i, as in :class:`Mime`.

    Args:
        lr: η > 0, the local learning rate.
        alpha: a in (0, 1], weight of the new gradient; 1 is Mime or MimeLite with SGD.
        server_lr: γ > 0; 1 is plain averaging.
        ref: the old point of the clients' correction, ``"previous"``, x of the round before; or ``"current"``, x.
        lite: whether g = g_i(y), without the correction g_i(x) − c.

    Schedules of η and a are of the global step t, and are evaluated where a round begins.

    m starts at the full gradient of all clients at x^0, in a warm-up exchange.

    Source: Karimireddy et al. 2020 (Mime), appendix on momentum-based variance reduction.

    Example:
        >>> MimeMVR(lr=0.05, alpha=0.2).ref
        'previous'
    """

    lr: Any = hyper(0.05, "(0, ∞)", by_step=True)
    alpha: Any = hyper(0.1, "(0, 1]", by_step=True)
    server_lr: Any = hyper(1.0, "(0, ∞)")
    ref: str = choice("previous", "previous", "current")
    lite: bool = flag()

    def traits(self) -> Traits:
        source = "Karimireddy et al. 2020 (Mime), appendix on momentum-based variance reduction"
        if self.lite:
            return Traits("MimeLiteMVR", source)
        return Traits("MimeMVR", source, limit="F", exact="all clients", corrects="the mean gradient of all")

    def init(self, x: Vector) -> MimeMVRState:
        return MimeMVRState(x, x, zeros_like(x))

    def gather(self, download: Any, memory: Any, oracle: Oracle) -> tuple[Gradients, Any]:
        """MimeMVR's first exchange, client: the full gradients at the last two models."""
        x, x_last = download
        return Gradients(oracle.full_grad(x), oracle.full_grad(x_last)), memory

    def gathered(self, server: MimeMVRState, mean: Gradients, round: Round) -> MVRGathered:
        """MimeMVR's first exchange, server: c, and the m of the next round."""
        return MVRGathered(*server, mean.now, self.momentum(server.m, mean, round))

    def work(self, download: Any, memory: Any, oracle: Oracle) -> tuple[Vector, Any]:
        """MimeMVR's second exchange, client."""
        x, x_last, m, c = download
        return self.steps(x, x_last, m, oracle, lambda k: c - oracle.grad(x, k)), memory

    def move(self, server: MVRGathered, mean: Vector, round: Round) -> MimeMVRState:
        """MimeMVR's second exchange, server."""
        return MimeMVRState(server.x + (self.server_lr / round.total) * mean, server.x, server.m_new)

    def work_lite(self, download: MimeMVRState, memory: Any, oracle: Oracle) -> tuple[MVRUpload, Any]:
        """MimeLiteMVR, client."""
        x, x_last, m = download
        gradients = Gradients(oracle.full_grad(x), oracle.full_grad(x_last))
        return MVRUpload(self.steps(x, x_last, m, oracle), gradients), memory

    def move_lite(self, server: MimeMVRState, mean: MVRUpload, round: Round) -> MimeMVRState:
        """MimeLiteMVR, server."""
        m = self.momentum(server.m, mean.gradients, round)
        known = (1 - self.alpha(round.t)) * server.m
        dx = mean.dx - excess(self, known, server.x, round)
        return MimeMVRState(server.x + self.server_lr * dx, server.x, m)

    def steps(self, x: Vector, x_last: Vector, m: Vector, oracle: Oracle, correction: Any = None) -> Vector:
        """y − x after the local steps."""
        old = x_last if self.ref == "previous" else x
        eta, a = self.lr(oracle.t(0)), self.alpha(oracle.t(0))

        def direction(y: Vector, k: Any) -> Vector:
            g_i = oracle.grad(y, k)
            g = g_i if correction is None else g_i + correction(k)
            return a * g + (1 - a) * (m + g_i - oracle.grad(old, k))

        return self.descend(direction, x, oracle, eta) - x

    def momentum(self, m: Vector, mean: Gradients, round: Round) -> Vector:
        """m ← c + (1−a) (m − ∇F(x_last))."""
        return mean.now + (1 - self.alpha(round.t)) * (m - mean.last)

    def exchanges(self) -> tuple[Exchange, ...]:
        if self.lite:
            return (Exchange(self.work_lite, self.move_lite),)
        return (
            Exchange(self.gather, self.gathered, lambda server: (server.x, server.x_last)),
            Exchange(self.work, self.move, lambda server: (server.x, server.x_last, server.m, server.c)),
        )

    def warmup(self) -> tuple[Exchange, ...]:
        def client(download: Vector, memory: Any, oracle: Oracle) -> tuple[Vector, Any]:
            return oracle.full_grad(download), memory

        return (Exchange(client, lambda server, mean, round: server._replace(m=mean), lambda server: server.x),)


BASES = Registry("base")
BASES.add("sgd", BaseSGD)
BASES.add("momentum", BaseMomentum)
BASES.add("adam", BaseAdam)
