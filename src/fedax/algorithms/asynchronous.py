"""Methods that were published for a server that does not wait; they run in synchronous rounds, too.

How often the server steps, and from which model a client began, is the affair of :class:`fedax.Async`. A method says
what is sent and what the server makes of it. Answers are averaged with ω_i, N p_i/K times the weight of the staleness.

| papers | here |
|---|---|
| x_t, y_i | x, y |
| Δ_i = y_i − x_{t−τ} | dx |
| τ, s | ``round.staleness`` |
| K, Z, M (the buffer) | ``fedax.Async(buffer=…)`` |

    FedAsync   x ← (1 − α w) x + α w y_i                     (Xie, Koyejo and Gupta 2019, Algorithm 1)
    FedBuff    x ← x + γ (1/K) Σ w_i Δ_i                     (Nguyen et al. 2022, Algorithm 1)
    CA2FL      v = h + (1/K) Σ (Δ_i − h_i);  x ← x + γ v;  h ← Σ p_i h_i      (Wang et al. 2024, Algorithm 2)
    ACE        u ← u + Σ p_i (g_i − g_i of before);  x ← x − η u               (Chang et al. 2025)
    AREA       x ← x + Σ p_i (y_i − y_i of before)                              (Iakovidou and Kim 2024)
    FADAS      AMSGrad on (1/K) Σ Δ_i;  η/τ_max where the largest staleness is above τ_c   (Wang et al. 2024)
    Ringmaster x ← x − η g_i if τ < R, else nothing          (Maranjyan, Tyurin and Richtárik 2025)
    Delayed Nesterov: see the class                          (Liu et al. 2024)
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from fedax.algorithms.parts import part
from fedax.contract.algorithm import Algorithm, Change, Pace, Round, Traits
from fedax.contract.hyper import choice, count, flag, hyper
from fedax.contract.local import SGD, Solver, local_steps
from fedax.contract.oracle import Oracle
from fedax.contract.staleness import PolynomialStaleness, Staleness
from fedax.contract.vector import Vector, zeros_like


class ModelState(NamedTuple):
    """Server state: the model alone."""

    x: Vector


class MemoryState(NamedTuple):
    """Server state: the model, and the mean of what the clients keep, Σ p_i h_i."""

    x: Vector
    h: Vector


def _late(value: Any) -> Staleness | None:
    return None if value is None else PolynomialStaleness(value)


class FedAsync(Algorithm):
    """FedAsync: the server's model is mixed with each client's, which pulls it back to where that client began.

    Args:
        lr: η > 0, the local learning rate.
        mixing: α in (0, 1].
        prox: ρ ≥ 0, pull of the local steps towards the model that they began from.
        exponent: a ≥ 0 of the weight (1 + s)^−a of an answer of staleness s, where ``fedax.Async`` gives none;
            ``None``: all the same.

    Source: Xie, Koyejo and Gupta 2019, Algorithm 1.

    Example:
        >>> FedAsync(lr=0.1).mixing
        0.6
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    mixing: Any = hyper(0.6, "(0, 1]")
    prox: Any = hyper(0.005, "[0, ∞)")
    exponent: Any = hyper(0.5, "[0, ∞)", off=True)

    def traits(self) -> Traits:
        return Traits("FedAsync", "Xie, Koyejo and Gupta 2019, Algorithm 1", limit="steps")

    def pace(self) -> Pace:
        return Pace(_late(self.exponent))

    def init(self, x: Vector) -> ModelState:
        return ModelState(x)

    def download(self, server: ModelState) -> Vector:
        return server.x

    def client(self, download: Vector, memory: Any, oracle: Oracle) -> tuple[Vector, Any]:
        x = download
        return local_steps(lambda y, k: y - self.lr * (oracle.grad(y, k) + self.prox * (y - x)), x, oracle), memory

    def server(self, server: ModelState, mean: Vector, round: Round) -> ModelState:
        share = 1 - round.shortfall  # Σ ω_i w_i
        return ModelState(server.x + self.mixing * (mean - share * server.x))


class FedBuff(Algorithm):
    """FedBuff: FedAvg's updates, of which the server takes K at a time.

    Args:
        lr: η > 0, the local learning rate.
        server_lr: γ > 0.
        exponent: a ≥ 0 of the weight (1 + s)^−a of an answer of staleness s, where ``fedax.Async`` gives none;
            ``None``: all the same. The published .5 makes slow clients count for less, in the objective, too.

    Source: Nguyen et al. 2022, Algorithm 1: divided by K, and not by the sum of the weights.

    Example:
        >>> FedBuff(lr=0.1).pace().staleness
        PolynomialStaleness()
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    server_lr: Any = hyper(1.0, "(0, ∞)")
    exponent: Any = hyper(0.5, "[0, ∞)", off=True)

    def traits(self) -> Traits:
        return Traits("FedBuff", "Nguyen et al. 2022, Algorithm 1", limit="steps")

    def pace(self) -> Pace:
        return Pace(_late(self.exponent))

    def init(self, x: Vector) -> ModelState:
        return ModelState(x)

    def download(self, server: ModelState) -> Vector:
        return server.x

    def client(self, download: Vector, memory: Any, oracle: Oracle) -> tuple[Vector, Any]:
        x = download
        return local_steps(lambda y, k: y - self.lr * oracle.grad(y, k), x, oracle) - x, memory

    def server(self, server: ModelState, mean: Vector, round: Round) -> ModelState:
        return ModelState(server.x + self.server_lr * mean)


class Calibrated(NamedTuple):
    """CA2FL's upload: Δ_i − h_i, for the mean over the buffer and for that over all clients; it is sent once."""

    difference: Vector
    change: Change


class CA2FL(Algorithm):
    """CA2FL: the clients that are not heard count by their last updates, so that speed does not decide who counts.

    A client keeps its last update h_i and sends Δ_i − h_i; the server keeps Σ p_i h_i. (The paper's server keeps all
    h_i; that is the same on paper.)

    Args:
        lr: η > 0, the local learning rate.
        server_lr: γ > 0.

    Source: Wang, Cao, Wu, Chen and Chen 2024, Algorithm 2.

    Example:
        >>> CA2FL(lr=0.1).server_lr
        1.0
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    server_lr: Any = hyper(1.0, "(0, ∞)")

    def traits(self) -> Traits:
        return Traits("CA2FL", "Wang et al. 2024, Algorithm 2", limit="steps")

    def init(self, x: Vector) -> MemoryState:
        return MemoryState(x, zeros_like(x))

    def init_client(self, x: Vector) -> Vector:
        return zeros_like(x)

    def download(self, server: MemoryState) -> Vector:
        return server.x

    def client(self, download: Vector, memory: Vector, oracle: Oracle) -> tuple[Calibrated, Vector]:
        x = download
        dx = local_steps(lambda y, k: y - self.lr * oracle.grad(y, k), x, oracle) - x
        difference = dx - memory
        return Calibrated(difference, Change(difference)), dx

    def server(self, server: MemoryState, mean: Any, round: Round) -> MemoryState:
        return MemoryState(server.x + self.server_lr * (server.h + mean.difference), server.h + mean.change)


class ACE(Algorithm):
    """ACE: a step along the mean of all clients' last gradients, whenever one is new. No local steps.

    Until a client was heard its gradient counts as 0.

    Args:
        lr: η > 0, the server's learning rate.

    Source: Chang et al. 2025, "all-client engagement"; the order of a first round with all clients is left out.

    Example:
        >>> ACE(lr=0.1).lr
        0.1
    """

    lr: Any = hyper(0.05, "(0, ∞)")

    def traits(self) -> Traits:
        return Traits("ACE", "Chang et al. 2025", limit="F", exact="always")

    def init(self, x: Vector) -> MemoryState:
        return MemoryState(x, zeros_like(x))

    def init_client(self, x: Vector) -> Vector:
        return zeros_like(x)

    def download(self, server: MemoryState) -> Vector:
        return server.x

    def client(self, download: Vector, memory: Vector, oracle: Oracle) -> tuple[Change, Vector]:
        g = oracle.grad(download, 0)
        return Change(g - memory), g

    def server(self, server: MemoryState, mean: Any, round: Round) -> MemoryState:
        h = server.h + mean
        return MemoryState(server.x - self.lr * h, h)


class AREA(Algorithm):
    """AREA: the model is the mean of all clients' last models; each client sends what its own has changed.

    Args:
        lr: η > 0, the local learning rate.

    Source: Iakovidou and Kim 2024 (arXiv 2405.10123); the authors' code keeps the trained model, as here.

    Example:
        >>> AREA(lr=0.1).lr
        0.1
    """

    lr: Any = hyper(0.05, "(0, ∞)")

    def traits(self) -> Traits:
        return Traits("AREA", "Iakovidou and Kim 2024", limit="steps")

    def init(self, x: Vector) -> ModelState:
        return ModelState(x)

    def init_client(self, x: Vector) -> Vector:
        return x

    def download(self, server: ModelState) -> Vector:
        return server.x

    def client(self, download: Vector, memory: Vector, oracle: Oracle) -> tuple[Change, Vector]:
        y = local_steps(lambda y, k: y - self.lr * oracle.grad(y, k), download, oracle)
        return Change(y - memory), y

    def server(self, server: ModelState, mean: Any, round: Round) -> ModelState:
        return ModelState(server.x + mean)


class FADASState(NamedTuple):
    """Server state: the model, the moments, the largest second moment so far, and how many steps there were."""

    x: Vector
    m: Vector
    v: Vector
    largest: Vector
    steps: Any


class FADAS(Algorithm):
    """FADAS: AMSGrad at the server on the buffer's mean update, with shorter steps where an answer is very late.

    Args:
        lr: η > 0, the local learning rate.
        server_lr: the server's learning rate > 0.
        beta1, beta2: in [0, 1).
        eps: ε > 0.
        threshold: τ_c ≥ 0, the largest staleness at which the step is not shortened; ``None``: it never is.
        shorten: ``"divide"``: by the largest staleness, as the authors' code does; ``"cap"``: to at most its inverse,
            as in the paper, which shortens nothing at the paper's learning rates.
        bias_correction: Adam's, as the authors' code has it and the paper does not.

    Source: Wang, Wang, Lu and Chen 2024 (arXiv 2407.18365), and the authors' code.

    Example:
        >>> FADAS(lr=0.1).shorten
        'divide'
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    server_lr: Any = hyper(1e-3, "(0, ∞)")
    beta1: Any = hyper(0.9, "[0, 1)")
    beta2: Any = hyper(0.99, "[0, 1)")
    eps: Any = hyper(1e-8, "(0, ∞)")
    threshold: int | None = count(1, low=0, off=True)
    shorten: str = choice("divide", "divide", "cap")
    bias_correction: bool = flag(False)

    def traits(self) -> Traits:
        return Traits("FADAS", "Wang et al. 2024 (FADAS), Algorithm 2")

    def init(self, x: Vector) -> FADASState:
        zero = zeros_like(x)
        return FADASState(x, zero, zero, zero, jnp.zeros((), jnp.int32))

    def download(self, server: FADASState) -> Vector:
        return server.x

    def client(self, download: Vector, memory: Any, oracle: Oracle) -> tuple[Vector, Any]:
        x = download
        return local_steps(lambda y, k: y - self.lr * oracle.grad(y, k), x, oracle) - x, memory

    def server(self, server: FADASState, mean: Vector, round: Round) -> FADASState:
        m = self.beta1 * server.m + (1 - self.beta1) * mean
        v = self.beta2 * server.v + (1 - self.beta2) * mean.map(jnp.square)
        largest, steps = server.largest.map(jnp.maximum, v), server.steps + 1
        first: Any = 1.0
        second: Any = 1.0
        if self.bias_correction:
            first, second = 1 - self.beta1**steps, jnp.sqrt(1 - self.beta2**steps)
        direction = (m / first).map(lambda a, b: a / (jnp.sqrt(b) / second + self.eps), largest)
        return FADASState(server.x + self._rate(round) * direction, m, v, largest, steps)

    def _rate(self, round: Round) -> Any:
        if self.threshold is None:
            return self.server_lr
        latest = jnp.max(jnp.where(round.present, round.staleness, 0))
        inverse = 1 / jnp.maximum(latest, 1)
        short = self.server_lr * inverse if self.shorten == "divide" else jnp.minimum(self.server_lr, inverse)
        return jnp.where(latest > self.threshold, short, self.server_lr)


class Ringmaster(Algorithm):
    """Ringmaster ASGD: a stochastic gradient a client; those that are too late are thrown away. No local steps.

    Args:
        lr: η > 0, the server's learning rate.
        most: R ≥ 1: gradients whose staleness is R or more are thrown away, and their clients start anew; ``None``:
            none are, which is asynchronous SGD. ``fedax.Async(max_staleness=…)`` goes before it.

    Published for clients with the same data, one answer a step and all clients under way
    (``fedax.Async(N, start="idle")``). With unlike data those that are always too late do not count at all.

    Source: Maranjyan, Tyurin and Richtárik 2025 (arXiv 2501.16168).

    Example:
        >>> Ringmaster(lr=0.1, most=8).pace().max_staleness
        7
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    most: int | None = count(None, off=True)

    def traits(self) -> Traits:
        return Traits("Ringmaster ASGD", "Maranjyan, Tyurin and Richtárik 2025", limit="F", exact="always")

    def pace(self) -> Pace:
        return Pace(max_staleness=None if self.most is None else self.most - 1)

    def init(self, x: Vector) -> ModelState:
        return ModelState(x)

    def download(self, server: ModelState) -> Vector:
        return server.x

    def client(self, download: Vector, memory: Any, oracle: Oracle) -> tuple[Vector, Any]:
        return oracle.grad(download, 0), memory

    def server(self, server: ModelState, mean: Vector, round: Round) -> ModelState:
        return ModelState(server.x - self.lr * mean)


class DelayedState(NamedTuple):
    """Server state: the model, the momentum, and the sum of the updates since it moved."""

    x: Vector
    m: Vector
    total: Vector


class DelayedNesterov(Algorithm):
    """Delayed Nesterov: momentum moves at every N-th step, by the mean of N; the model moves at each.

    With g = −Δ, at step t = 0, 1, …: total ← total + g; at each ``every``-th step, N,
    m ← β m + total/N, x ← x − ε ((1 − c N + c) β m + g/N), total ← 0; at the others x ← x − ε (c β m + g/N).

    Args:
        lr: η > 0, the local learning rate of SGD; not used where there is a ``solver``.
        server_lr: ε > 0.
        momentum: β in [0, 1).
        every: N ≥ 1.
        spread: c in [0, 1/N], the share of the momentum that each step takes; 0: all of it at the N-th.
        solver: what the clients do, such as ``fedax.Optax(optax.adamw, learning_rate=1e-3)``; ``None``: SGD.

    Source: Liu et al. 2024 (arXiv 2401.09135), as in the code of HALoS.

    Example:
        >>> DelayedNesterov(lr=0.1, every=4).momentum
        0.9
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    server_lr: Any = hyper(0.7, "(0, ∞)")
    momentum: Any = hyper(0.9, "[0, 1)")
    every: int = count(4)
    spread: Any = hyper(0.0, "[0, 1]")
    solver: Solver | None = None

    def traits(self) -> Traits:
        return Traits("Delayed Nesterov", "Liu et al. 2024, Algorithm 3", limit="steps")

    def init(self, x: Vector) -> DelayedState:
        return DelayedState(x, zeros_like(x), zeros_like(x))

    def download(self, server: DelayedState) -> Vector:
        return server.x

    def client(self, download: Vector, memory: Any, oracle: Oracle) -> tuple[Vector, Any]:
        solver = SGD(self.lr) if self.solver is None else part("solver", self.solver, Solver)
        return solver.run(download, oracle) - download, memory

    def server(self, server: DelayedState, mean: Vector, round: Round) -> DelayedState:
        total, n = server.total - mean, self.every
        last = (round.index + 1) % n == 0
        m = server.m.map(lambda old, new: jnp.where(last, new, old), self.momentum * server.m + total / n)
        share = jnp.where(last, 1 - self.spread * n + self.spread, self.spread) * self.momentum
        x = server.x - self.server_lr * (share * m - mean / n)
        return DelayedState(x, m, total.map(lambda leaf: jnp.where(last, 0, leaf)))
