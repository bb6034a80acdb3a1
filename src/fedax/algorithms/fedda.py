"""FedDA: local adaptive gradient steps as restarted dual averaging; and its form without local steps.

"FedDA: faster framework of local adaptive gradient methods via restarted dual averaging", Algorithms 1 to 3.

| paper | here |
|---|---|
| x_τ; x_t^(k), z_t^(k), ν_t^(k) | x; y, z, ν |
| H_τ = diag(h) | h = √q + ε or q + ε |
| η_t, α_{t+1} | ``lr(t)``, ``alpha(t)``: weight of the gradient taken after step t |
| U, eq. 5 and 6; V, eq. 7 and 8 | gradient: ``"mvr"``, ``"momentum"``; metric: ``"coordinate"``, ``"norm"`` |
| β, ε ("τ" in the experiments) | 1 − b, eps |

    Client   y = x, z = 0, s = 0; for t = rK + k:   z ← z − η_t ν,  s ← s + η_t
             y_new = argmin_X s ψ(y) − ⟨y, z⟩ + ½ (y − x)ᵀH(y − x)
             mvr: ν ← g_i(y_new) + (1−α) (ν − g_i(y)), same minibatch;   momentum: ν ← α g_i(y_new) + (1−α) ν
    Server   z̄ = Σ ω̂_i z_i,  ν ← Σ ω̂_i ν_i;   x ← argmin_X s ψ(x) − ⟨x, z̄⟩ + ½ (x − x_old)ᵀH(x − x_old)
             coordinate: q ← b q + (1−b) (z̄/η)²;   norm: q ← b q + (1−b) ‖z̄‖/η     η of the last local step

The paper's λ is 1 here: it multiplies every η_t, and α does not know of it. Equation 7 prints β as the weight of the
new value, where the 0.999 of the experiments makes sense for the old one: b is the weight of the old.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp

from fedax.algorithm import Algorithm, Exchange, Round
from fedax.algorithms.warmup import check_batches, first_gradients
from fedax.errors import unknown
from fedax.local import local_steps
from fedax.numbers import check_number
from fedax.oracle import Oracle
from fedax.regularizers import Regularizer, Unconstrained, penalty
from fedax.schedule import stepwise
from fedax.vector import Vector, zeros_like

_GRADIENTS = ("mvr", "momentum")
_METRICS = ("coordinate", "norm")


class Server(NamedTuple):
    """Server state: the model, the direction ν, and the second moment q."""

    x: Vector
    nu: Vector
    q: Any


class Upload(NamedTuple):
    """The dual change, the direction, and the sum and the last of the learning rates in it."""

    z: Vector
    nu: Vector
    total: Any
    last: Any


class FedDA(Algorithm):
    """FedDA-i-j: gradient rule i (1 mvr, 2 momentum) and metric j (1 coordinate, 2 norm).

    Published for equal steps and p_i = 1/N, uniform cohorts included. Unequal p_i in all means are an extension;
    unequal steps are refused. Near a stationary point h → ε, so that the effective learning rate becomes η/ε: ηK/ε
    should be at most about 1/L.

    Args:
        lr: η_t > 0, a number or a schedule of the global step t.
        alpha: α_{t+1} in (0, 1] of step t, weight of the new gradient; a number or a schedule.
        gradient: ``"mvr"``, eq. 5; or ``"momentum"``, eq. 6.
        metric: ``"coordinate"``, eq. 7; or ``"norm"``, eq. 8.
        b: in [0, 1], weight of the old second moment.
        eps: ε > 0.
        regularizer: ψ and X, a :class:`fedax.regularizers.Regularizer`.
        warmup_batches: ν starts at the mean of so many minibatch gradients of every client at x^0; ``None``: at zero.

    Source: FedDA, Algorithms 1 and 2, eq. 5 to 8.

    Example:
        >>> FedDA(lr=0.01, gradient="momentum", metric="norm").b
        0.999
    """

    lr: Any = stepwise(default=0.05)
    alpha: Any = stepwise(default=0.1)
    gradient: str = eqx.field(static=True, default="mvr")
    metric: str = eqx.field(static=True, default="coordinate")
    b: Any = 0.999
    eps: Any = 0.01
    regularizer: Regularizer = Unconstrained()
    warmup_batches: int | None = eqx.field(static=True, default=1)

    def init(self, x: Vector) -> Server:
        return _start(self, x)

    def download(self, server: Server) -> Any:
        return server.x, server.nu, _metric(self, server.q)

    def client(self, download: Any, memory: Any, oracle: Oracle) -> tuple[Upload, Any]:
        oracle.equal_steps("work", "FedDA is defined for equal local steps; use Steps(K)")
        x, nu, h = download

        def step(state: Any, k: Any) -> Any:
            y, z, s, _, nu = state
            t = oracle.t(k)
            eta, alpha = jnp.asarray(self.lr(t), float), self.alpha(t)
            z, s = z - eta * nu, s + eta
            y_new = self.regularizer.step(x + z / h, h, s)
            g = oracle.grad(y_new, k)
            if self.gradient == "momentum":
                return y_new, z, s, eta, alpha * g + (1 - alpha) * nu
            return y_new, z, s, eta, g + (1 - alpha) * (nu - oracle.grad(y, k))

        nothing = jnp.zeros((), float)
        _, z, s, eta, nu = local_steps(step, (x, zeros_like(x), nothing, nothing, nu), oracle)
        return Upload(z, nu, s, eta), memory

    def server(self, server: Server, mean: Upload, round: Round) -> Server:
        z, s, eta = mean.z / round.total, mean.total / round.total, mean.last / round.total
        h = _metric(self, server.q)
        x = self.regularizer.step(server.x + z / h, h, s)
        per_step = z / jnp.where(eta > 0, eta, 1.0)  # 0 where nobody of weight took part
        return Server(x, mean.nu / round.total, _moment(self, server.q, per_step))

    def penalty(self, x: Vector) -> Any:
        return penalty(self.regularizer, x)

    def warmup(self) -> tuple[Exchange, ...]:
        return first_gradients(self.warmup_batches, lambda server, g, _: server._replace(nu=g))

    def validate(self) -> None:
        _validate(self)


class FedDADistributed(Algorithm):
    """FedDA-Distributed: one server step a round, the clients send gradients only.

    Equal to FedDA with one local step. The minibatches of a round's local steps make one large batch.

    Args:
        lr: η > 0, a number or a schedule of the round.
        alpha: α in (0, 1], weight of the new gradient; a number or a schedule of the round.
        gradient, metric, b, eps, regularizer, warmup_batches: as in :class:`FedDA`.

    Source: FedDA, Algorithm 3. Published for full participation; a cohort's mean is an extension.

    Example:
        >>> FedDADistributed(lr=0.01, metric="norm").gradient
        'mvr'
    """

    lr: Any = 0.05
    alpha: Any = 0.1
    gradient: str = eqx.field(static=True, default="mvr")
    metric: str = eqx.field(static=True, default="coordinate")
    b: Any = 0.999
    eps: Any = 0.01
    regularizer: Regularizer = Unconstrained()
    warmup_batches: int | None = eqx.field(static=True, default=1)

    def init(self, x: Vector) -> Server:
        return _start(self, x)

    def next(self, server: Server) -> Vector:
        """x of the next round, which the clients need already."""
        h = _metric(self, server.q)
        return self.regularizer.step(server.x - self.lr * server.nu / h, h, self.lr)

    def download(self, server: Server) -> Any:
        x_new = self.next(server)
        return (x_new, server.x) if self.gradient == "mvr" else (x_new,)

    def client(self, download: Any, memory: Any, oracle: Oracle) -> tuple[Vector, Any]:
        g = oracle.grad_batches(download[0], oracle.steps)
        if self.gradient == "momentum":
            return self.alpha * g, memory
        return g - (1 - self.alpha) * oracle.grad_batches(download[1], oracle.steps), memory

    def server(self, server: Server, mean: Vector, round: Round) -> Server:
        nu = mean / round.total + (1 - self.alpha) * server.nu
        return Server(self.next(server), nu, _moment(self, server.q, server.nu))

    def penalty(self, x: Vector) -> Any:
        return penalty(self.regularizer, x)

    def warmup(self) -> tuple[Exchange, ...]:
        return first_gradients(self.warmup_batches, lambda server, g, _: server._replace(nu=g))

    def validate(self) -> None:
        _validate(self)


def _start(method: Any, x: Vector) -> Server:
    """x^0 in X, with no second moment."""
    x = method.regularizer.step(x, 1.0, 0.0)
    return Server(x, zeros_like(x), zeros_like(x) if method.metric == "coordinate" else 0.0)


def _metric(method: Any, q: Any) -> Any:
    """h, a Vector or a number."""
    return q.map(jnp.sqrt) + method.eps if method.metric == "coordinate" else q + method.eps


def _moment(method: Any, q: Any, d: Vector) -> Any:
    """q with the new direction d, a sum over local steps."""
    new = d * d if method.metric == "coordinate" else jnp.sqrt(d.dot(d))
    return method.b * q + (1 - method.b) * new


def _validate(method: Any) -> None:
    check_number("lr", method.lr, 0, open_low=True)
    check_number("alpha", method.alpha, 0, 1, open_low=True)
    check_number("b", method.b, 0, 1)
    check_number("eps", method.eps, 0, open_low=True)
    if method.gradient not in _GRADIENTS:
        raise unknown("gradient", method.gradient, _GRADIENTS)
    if method.metric not in _METRICS:
        raise unknown("metric", method.metric, _METRICS)
    check_batches(method.warmup_batches)
    method.regularizer.validate()
