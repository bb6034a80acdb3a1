"""FedDA: local adaptive gradient steps as restarted dual averaging; and its form without local steps.

"FedDA: faster framework of local adaptive gradient methods via restarted dual averaging", Algorithms 1 to 3.

| paper | here |
|---|---|
| x_τ; x_t^(k), z_t^(k), ν_t^(k) | x; y, z, ν |
| μ_τ; H_τ = diag(√μ + ε) or (μ + ε) I | q; h = H/λ, which is all that a step needs |
| H_0, λ (neither is given a value) | H_0 = (h0 + ε) I, or ``"warmup"``; lam |
| η_t, α_{t+1} | ``lr(t)``, ``alpha(t)``: weight of the gradient taken after step t |
| U, eq. 5 and 6; V, eq. 7 and 8 | gradient: ``"mvr"``, ``"momentum"``; metric: ``"coordinate"``, ``"norm"`` |
| β, ε ("τ" in the experiments) | 1 − b, eps |

    Client   y = x, z = 0, s = 0; for t = rK + k:   z ← z − η_t ν,  s ← s + η_t
             y_new = argmin_X s ψ(y) − ⟨y, z⟩ + (1/2λ) (y − x)ᵀH(y − x)
             mvr: ν ← g_i(y_new) + (1−α) (ν − g_i(y)), same minibatch;   momentum: ν ← α g_i(y_new) + (1−α) ν
    Server   z̄ = Σ ω̂_i z_i,  ν ← Σ ω̂_i ν_i;   x ← argmin_X s ψ(x) − ⟨x, z̄⟩ + (1/2λ) (x − x_old)ᵀH(x − x_old)
             coordinate: q ← b q + (1−b) (z̄/η)²;   norm: q ← b q + (1−b) ‖z̄‖/η     η of the last local step
    Start    coordinate: q = h0², or (ν^0)² after the warm-up;   norm: q = h0, or ‖ν^0‖

The paper never says what H_0 and λ are, apart from μ_0 = 0, so both are hyper-parameters: h0 and lam. λ acts like a
factor on every η_t, except that α and z̄/η do not change with it. Equation 7 prints β as the weight of the new value;
b is the weight of the old one, so that the experiments' 0.999 is b = 0.999 if it means a long memory, and b = 0.001 if
the equation is taken at its word.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp

from fedax.algorithms.parts import first_gradients
from fedax.contract.algorithm import Algorithm, Exchange, Round, Traits
from fedax.contract.hyper import check, choice, count, hyper
from fedax.contract.local import local_steps
from fedax.contract.oracle import Oracle
from fedax.contract.regularizers import Regularizer, penalty, regularizer
from fedax.contract.schedule import Schedule
from fedax.contract.vector import Vector, zeros_like
from fedax.errors import ConfigError
from fedax.numbers import check_number


class FromWarmup(eqx.Module):
    """What h0 = ``"warmup"`` becomes in a method: a choice that the program is compiled for, and no number."""


def _start_of_metric(given: Any) -> Any:
    return FromWarmup() if isinstance(given, str) and given == "warmup" else given


class FedDAState(NamedTuple):
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
    unequal steps are refused. Near a stationary point H → ε I, so that the effective learning rate becomes λη/ε:
    ληK/ε should be at most about 1/L.

    Args:
        lr: η_t > 0, a number or a schedule of the global step t.
        alpha: α_{t+1} in (0, 1] of step t, weight of the new gradient; a number or a schedule.
        gradient: ``"mvr"``, eq. 5; or ``"momentum"``, eq. 6.
        metric: ``"coordinate"``, eq. 7; or ``"norm"``, eq. 8.
        b: in [0, 1], weight of the old second moment.
        eps: ε > 0.
        h0: the start of the metric, H_0 = (h0 + ε) I; ≥ 0. Or ``"warmup"``: H_0 = diag(|ν_0| + ε), by the norm
            (‖ν_0‖ + ε) I. The default, 0, is the paper's μ_0 = 0: the first rounds step by λη/ε.
        lam: λ > 0 of the proximal term (1/2λ)(x − x_τ)ᵀH(x − x_τ), a number or a schedule of the round.
        regularizer: ψ and X, a :class:`fedax.contract.regularizers.Regularizer`. The algorithms have X alone; ψ with
            the weight s is how the paper's "L1 constraint" is read here.
        warmup_batches: ν starts at the mean of so many minibatch gradients of every client at x^0; ``None``: at zero.

    Source: FedDA, Algorithms 1 and 2, eq. 5 to 8.

    Example:
        >>> FedDA(lr=0.01, gradient="momentum", metric="norm").b
        0.999
    """

    lr: Any = hyper(0.05, "(0, ∞)", by_step=True)
    alpha: Any = hyper(0.1, "(0, 1]", by_step=True)
    gradient: str = choice("mvr", "mvr", "momentum")
    metric: str = choice("coordinate", "coordinate", "norm")
    b: Any = hyper(0.999, "[0, 1]")
    eps: Any = hyper(0.01, "(0, ∞)")
    h0: Any = eqx.field(default=0.0, converter=_start_of_metric)
    lam: Any = hyper(1.0, "(0, ∞)")
    regularizer: Regularizer = eqx.field(default=None, converter=regularizer)
    warmup_batches: int | None = count(1, off=True)

    def traits(self) -> Traits:
        return Traits("FedDA", "FedDA, Algorithms 1 and 2", steps="equal", limit="F")

    def init(self, x: Vector) -> FedDAState:
        return _start(self, x)

    def download(self, server: FedDAState) -> Any:
        return server.x, server.nu, _metric(self, server.q)

    def client(self, download: Any, memory: Any, oracle: Oracle) -> tuple[Upload, Any]:
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

    def server(self, server: FedDAState, mean: Upload, round: Round) -> FedDAState:
        z, s, eta = mean.z / round.total, mean.total / round.total, mean.last / round.total
        h = _metric(self, server.q)
        x = self.regularizer.step(server.x + z / h, h, s)
        per_step = z / jnp.where(eta > 0, eta, 1.0)  # 0 where nobody of weight took part
        return FedDAState(x, mean.nu / round.total, _moment(self, server.q, per_step))

    def penalty(self, x: Vector) -> Any:
        return penalty(self.regularizer, x)

    def warmup(self) -> tuple[Exchange, ...]:
        return first_gradients(self.warmup_batches, lambda server, g, _: _warm(self, server, g))

    def validate(self) -> None:
        _validate(self)


class FedDADistributed(Algorithm):
    """FedDA-Distributed: one server step a round, the clients send gradients only.

    Equal to FedDA with one local step. The minibatches of a round's local steps make one large batch.

    Args:
        lr: η > 0, a number or a schedule of the round.
        alpha: α in (0, 1], weight of the new gradient; a number or a schedule of the round.
        gradient, metric, b, eps, h0, lam, regularizer, warmup_batches: as in :class:`FedDA`.

    Source: FedDA, Algorithm 3. Published for full participation; a cohort's mean is an extension.

    Example:
        >>> FedDADistributed(lr=0.01, metric="norm").gradient
        'mvr'
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    alpha: Any = hyper(0.1, "(0, 1]")
    gradient: str = choice("mvr", "mvr", "momentum")
    metric: str = choice("coordinate", "coordinate", "norm")
    b: Any = hyper(0.999, "[0, 1]")
    eps: Any = hyper(0.01, "(0, ∞)")
    h0: Any = eqx.field(default=0.0, converter=_start_of_metric)
    lam: Any = hyper(1.0, "(0, ∞)")
    regularizer: Regularizer = eqx.field(default=None, converter=regularizer)
    warmup_batches: int | None = count(1, off=True)

    def traits(self) -> Traits:
        return Traits("FedDA-Distributed", "FedDA, Algorithm 3", limit="F", exact="always")

    def init(self, x: Vector) -> FedDAState:
        return _start(self, x)

    def next(self, server: FedDAState) -> Vector:
        """x of the next round, which the clients need already."""
        h = _metric(self, server.q)
        return self.regularizer.step(server.x - self.lr * server.nu / h, h, self.lr)

    def download(self, server: FedDAState) -> Any:
        x_new = self.next(server)
        return (x_new, server.x) if self.gradient == "mvr" else (x_new,)

    def client(self, download: Any, memory: Any, oracle: Oracle) -> tuple[Vector, Any]:
        g = oracle.grad_batches(download[0], oracle.steps)
        if self.gradient == "momentum":
            return self.alpha * g, memory
        return g - (1 - self.alpha) * oracle.grad_batches(download[1], oracle.steps), memory

    def server(self, server: FedDAState, mean: Vector, round: Round) -> FedDAState:
        nu = mean / round.total + (1 - self.alpha) * server.nu
        return FedDAState(self.next(server), nu, _moment(self, server.q, server.nu))

    def penalty(self, x: Vector) -> Any:
        return penalty(self.regularizer, x)

    def warmup(self) -> tuple[Exchange, ...]:
        return first_gradients(self.warmup_batches, lambda server, g, _: _warm(self, server, g))

    def validate(self) -> None:
        _validate(self)


def _start(method: Any, x: Vector) -> FedDAState:
    """x^0 in X, and the second moment at its start."""
    x = method.regularizer.step(x, 1.0, 0.0)
    h0 = 0.0 if isinstance(method.h0, FromWarmup) else jnp.asarray(method.h0, float)
    return FedDAState(x, zeros_like(x), zeros_like(x) + h0 * h0 if method.metric == "coordinate" else h0)


def _warm(method: Any, server: FedDAState, g: Vector) -> FedDAState:
    """The server after the warm-up, in which all clients' mean gradient at x^0 was g."""
    return server._replace(nu=g, q=_size(method, g) if isinstance(method.h0, FromWarmup) else server.q)


def _metric(method: Any, q: Any) -> Any:
    """h = H/λ, a Vector or a number."""
    h = q.map(jnp.sqrt) + method.eps if method.metric == "coordinate" else q + method.eps
    return h / method.lam


def _moment(method: Any, q: Any, d: Vector) -> Any:
    """q with the new direction d, a sum over local steps."""
    return method.b * q + (1 - method.b) * _size(method, d)


def _size(method: Any, d: Vector) -> Any:
    """d² by coordinate, or ‖d‖."""
    return d * d if method.metric == "coordinate" else jnp.sqrt(d.dot(d))


def _validate(method: Any) -> None:
    check(method)
    if isinstance(method.h0, str | Schedule):
        raise ConfigError("h0", method.h0, "give a number of at least 0, or 'warmup'")
    if not isinstance(method.h0, FromWarmup):
        check_number("h0", method.h0, 0)
    elif method.warmup_batches is None:
        raise ConfigError("h0", "warmup", "there is no warm-up; give warmup_batches = 1, or h0 as a number")
