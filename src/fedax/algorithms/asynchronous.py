"""Methods that were published for a server that does not wait; they run in synchronous rounds, too.

How often the server steps, and from which model a client began, is up to :class:`fedax.Async`. A method says
what is sent and what the server makes of it. Delayed Nesterov is an optimizer of the server:
:class:`fedax.algorithms.server.DelayedNesterov`.

| papers | here |
|---|---|
| x_t, y_i | x, y |
| Δ_i = y_i − x_{t−τ} | dx |
| h_i, z_i, the last gradient of a client | the client's memory |
| τ, s (staleness) | ``round.staleness`` |
| K, Z, M (the buffer) | ``fedax.Async(buffer=…)`` |
| 1/K times the weight of the staleness | ω_i, with N p_i in front; with all clients in a round p_i |

    FedAsync    x ← (1 − α Σ ω_i) x + α Σ ω_i y_i             (Xie, Koyejo and Gupta 2019, Algorithm 1, with K = 1)
    FedBuff     x ← x + γ Σ ω_i Δ_i                           (Nguyen et al. 2022, Algorithm 1)
    CA2FL       x ← x + γ (h + Σ ω_i (Δ_i − h_i));  h ← h + Σ p_i (Δ_i − h_i);  h_i ← Δ_i
                                                              (CA2FL: Wang et al. 2024, Algorithm 2)
    ACE         u ← u + Σ p_i (g_i − u_i);  u_i ← g_i;  x ← x − η u                   (Chang et al. 2025)
    AREA        x ← x + Σ p_i (y_i − z_i);  z_i ← y_i                                 (Iakovidou and Kim 2024)
    FADAS       AMSGrad on Σ ω_i Δ_i, with rate η/τ_max where the largest staleness τ_max is above τ_c
                                        (FADAS: Wang et al. 2024, by the authors' code; the text has min(η, 1/τ_max))
    Ringmaster  x ← x − η Σ ω_i g_i over the answers with τ < R                (Maranjyan, Tyurin and Richtárik 2025)
    Ringleader  x ← x − η Σ p_i G_i/b_i, once a client in turns of N steps            (Maranjyan and Richtárik 2025)
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from fedax.contract.algorithm import Algorithm, Change, Pace, Round, Traits
from fedax.contract.hyper import check, choice, count, flag, hyper
from fedax.contract.local import LocalMethod, check_pull, sgd_rate
from fedax.contract.oracle import Oracle
from fedax.contract.staleness import PolynomialStaleness, Staleness
from fedax.contract.staleness import staleness as make_staleness
from fedax.contract.vector import Vector, zeros_like


class MemoryState(NamedTuple):
    """Server state: the model, and the mean of what all clients keep, Σ p_i h_i."""

    x: Vector
    h: Vector


class FedAsync(LocalMethod):
    """FedAsync: the server mixes its model with each client's, which pulls it back to where that client began.

    Published for one answer at a time and p_i = 1/N. Unequal p_i, and the mean of several models, are extensions; a
    client with N p_i α > 1 is then given more than the whole weight. In synchronous rounds this is FedProx with a
    server learning rate of α.

    Args:
        lr: η > 0, the local learning rate.
        mixing: α in (0, 1].
        prox: ρ ≥ 0, pull of the local steps towards the model that they began from; lr · prox is at most 1.
        staleness: how much late answers count, where :class:`fedax.Async` does not say it; ``None``: all the same.

    Raises:
        ConfigError: numbers out of range, lr · prox above 1, something else than a :class:`fedax.Staleness`.

    Source: Xie, Koyejo and Gupta 2019, Algorithm 1.

    Example:
        >>> FedAsync(lr=0.1).mixing
        0.6
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    mixing: Any = hyper(0.6, "(0, 1]")
    prox: Any = hyper(0.005, "[0, ∞)")
    staleness: Staleness | None = eqx.field(default=PolynomialStaleness(0.5), converter=make_staleness)

    def traits(self) -> Traits:
        return Traits("FedAsync", "Xie, Koyejo and Gupta 2019, Algorithm 1", limit="steps")

    def pace(self) -> Pace:
        return Pace(self.staleness)

    def init(self, x: Vector) -> Vector:
        return x

    def client(self, download: Vector, memory: Any, oracle: Oracle) -> tuple[Vector, Any]:
        x = download
        return self.descend(lambda y, k: oracle.grad(y, k) + self.prox * (y - x), x, oracle), memory

    def server(self, server: Vector, mean: Vector, round: Round) -> Vector:
        total = 1 - round.shortfall  # Σ ω_i
        return server + self.mixing * (mean - total * server)

    def validate(self) -> None:
        check(self)
        check_pull("prox", self.prox, sgd_rate(self))


class FedBuff(LocalMethod):
    """FedBuff: FedAvg's updates, of which the server takes K at a time.

    Published for p_i = 1/N; unequal p_i are an extension. In synchronous rounds this is FedAvg.

    Args:
        lr: η > 0, the local learning rate.
        server_lr: γ > 0.
        staleness: how much late answers count, where :class:`fedax.Async` does not say it; ``None``: all the same. The
            published (1 + s)^−½ makes slow clients count for less, also in what is minimised.

    Raises:
        ConfigError: numbers out of range, something else than a :class:`fedax.Staleness`.

    Source: Nguyen et al. 2022, Algorithm 1: the sum is divided by K, and not by the sum of the weights.

    Example:
        >>> FedBuff(lr=0.1).pace().staleness
        PolynomialStaleness()
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    server_lr: Any = hyper(1.0, "(0, ∞)")
    staleness: Staleness | None = eqx.field(default=PolynomialStaleness(0.5), converter=make_staleness)

    def traits(self) -> Traits:
        return Traits("FedBuff", "Nguyen et al. 2022, Algorithm 1", limit="steps")

    def pace(self) -> Pace:
        return Pace(self.staleness)

    def init(self, x: Vector) -> Vector:
        return x

    def client(self, download: Vector, memory: Any, oracle: Oracle) -> tuple[Vector, Any]:
        return self.descend(oracle.grad, download, oracle) - download, memory

    def server(self, server: Vector, mean: Vector, round: Round) -> Vector:
        return server + self.server_lr * mean


class Calibrated(NamedTuple):
    """CA2FL's upload: Δ_i − h_i, for the mean over the buffer and for that over all clients. It is sent once."""

    difference: Vector
    change: Change


class CA2FL(LocalMethod):
    """CA2FL: clients that are not heard count by their last updates, so that speed does not decide who counts.

    A client keeps its last update h_i, at first 0, and sends Δ_i − h_i; the server keeps Σ p_i h_i. (The paper's server
    keeps all h_i, and clients send Δ_i, which gives the same numbers.) Published for p_i = 1/N; unequal p_i are an
    extension. With all clients in a round this is FedAvg.

    Args:
        lr: η > 0, the local learning rate.
        server_lr: γ > 0.

    Raises:
        ConfigError: numbers out of range.

    Source: Wang, Cao, Wu, Chen and Chen 2024, Algorithm 2.

    Example:
        >>> CA2FL(lr=0.1).server_lr
        1.0
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    server_lr: Any = hyper(1.0, "(0, ∞)")

    def traits(self) -> Traits:
        return Traits("CA2FL", "Wang et al. 2024 (CA2FL), Algorithm 2", limit="steps", fair=True)

    def init(self, x: Vector) -> MemoryState:
        return MemoryState(x, zeros_like(x))

    def init_client(self, x: Vector) -> Vector:
        return zeros_like(x)

    def download(self, server: MemoryState) -> Vector:
        return server.x

    def client(self, download: Vector, memory: Vector, oracle: Oracle) -> tuple[Calibrated, Vector]:
        dx = self.descend(oracle.grad, download, oracle) - download
        difference = dx - memory
        return Calibrated(difference, Change(difference)), dx

    def server(self, server: MemoryState, mean: Any, round: Round) -> MemoryState:
        return MemoryState(server.x + self.server_lr * (server.h + mean.difference), server.h + mean.change)


class ACE(Algorithm):
    """ACE: a step along the mean of all clients' last gradients, whenever one of them is new. No local steps.

    A client's gradient is the mean over its τ_i minibatches of the round; it keeps it, and sends the change. Published
    for p_i = 1/N, one minibatch and one answer at a time; other p_i and means over several answers are extensions. The
    paper begins with the gradients of all clients at x^0. Here the gradient of a client that was never heard counts
    as 0, so that the first steps are shorter.

    Args:
        lr: η > 0, the server's learning rate.

    Raises:
        ConfigError: numbers out of range.

    Source: Chang et al. 2025 (arXiv 2511.19066), "all-client engagement".

    Example:
        >>> ACE(lr=0.1).lr
        0.1
    """

    lr: Any = hyper(0.05, "(0, ∞)")

    def traits(self) -> Traits:
        return Traits("ACE", "Chang et al. 2025", limit="F", exact="always", fair=True)

    def init(self, x: Vector) -> MemoryState:
        return MemoryState(x, zeros_like(x))

    def init_client(self, x: Vector) -> Vector:
        return zeros_like(x)

    def download(self, server: MemoryState) -> Vector:
        return server.x

    def client(self, download: Vector, memory: Vector, oracle: Oracle) -> tuple[Change, Vector]:
        g = oracle.grad_batches(download, oracle.steps)
        return Change(g - memory), g

    def server(self, server: MemoryState, mean: Any, round: Round) -> MemoryState:
        h = server.h + mean
        return MemoryState(server.x - self.lr * h, h)


class AREA(LocalMethod):
    """AREA: the model is the mean of all clients' last models; each client sends by how much its own has changed.

    A client keeps the model z_i that it arrived at last, at first x^0, so that x = Σ p_i z_i at any time. Published for
    p_i = 1/N. In the authors' code a client's share of the data multiplies its learning rate; here p_i is its weight in
    the mean, which has the same limit for small rates. With all clients in a round this is FedAvg.

    Args:
        lr: η > 0, the local learning rate.

    Raises:
        ConfigError: numbers out of range.

    Source: Iakovidou and Kim 2024 (arXiv 2405.10123), and the authors' code, where a client keeps the trained model.

    Example:
        >>> AREA(lr=0.1).lr
        0.1
    """

    lr: Any = hyper(0.05, "(0, ∞)")

    def traits(self) -> Traits:
        return Traits("AREA", "Iakovidou and Kim 2024", limit="steps", fair=True)

    def init(self, x: Vector) -> Vector:
        return x

    def init_client(self, x: Vector) -> Vector:
        return x

    def client(self, download: Vector, memory: Vector, oracle: Oracle) -> tuple[Change, Vector]:
        y = self.descend(oracle.grad, download, oracle)
        return Change(y - memory), y

    def server(self, server: Vector, mean: Any, round: Round) -> Vector:
        return server + mean


class FADASState(NamedTuple):
    """Server state: the model, the moments, the largest second moment so far, and how many steps there were."""

    x: Vector
    m: Vector
    v: Vector
    largest: Vector
    steps: Any


class FADAS(LocalMethod):
    """FADAS: AMSGrad at the server on the buffer's mean update, with shorter steps where an answer is very late.

    m ← β₁m + (1−β₁)⟨Δ⟩; v ← β₂v + (1−β₂)⟨Δ⟩²; v̂ ← max(v̂, v); x ← x + γ m/(√v̂ + ε), elementwise, all from 0.
    In synchronous rounds no answer is late, and this is FedAMS.

    Args:
        lr: η > 0, the local learning rate.
        server_lr: γ > 0, the server's learning rate.
        beta1, beta2: in [0, 1).
        eps: ε > 0, in units of the update.
        threshold: τ_c ≥ 1, the largest staleness at which the step has its full length; ``None``: it always has.
        shorten: ``"divide"``: γ over the largest staleness, as in the authors' code; ``"cap"``: at most its inverse, as
            in the paper, which shortens nothing at the paper's learning rates.
        bias_correction: divide m by 1 − β₁^t and √v̂ by √(1 − β₂^t) in step t = 1, 2, …, as the authors' code does and
            the paper does not.

    Raises:
        ConfigError: numbers out of range, an unknown choice.

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
    threshold: int | None = count(1, off=True)
    shorten: str = choice("divide", "divide", "cap")
    bias_correction: bool = flag(False)

    def traits(self) -> Traits:
        return Traits("FADAS", "Wang et al. 2024 (FADAS)", limit="steps")

    def init(self, x: Vector) -> FADASState:
        zero = zeros_like(x)
        return FADASState(x, zero, zero, zero, jnp.zeros((), jnp.int32))

    def download(self, server: FADASState) -> Vector:
        return server.x

    def client(self, download: Vector, memory: Any, oracle: Oracle) -> tuple[Vector, Any]:
        return self.descend(oracle.grad, download, oracle) - download, memory

    def server(self, server: FADASState, mean: Vector, round: Round) -> FADASState:
        m = self.beta1 * server.m + (1 - self.beta1) * mean
        v = self.beta2 * server.v + (1 - self.beta2) * (mean * mean)
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
        divisor = jnp.maximum(latest, 1).astype(float)  # else 32-bit whole numbers divide to float32
        short = self.server_lr / divisor if self.shorten == "divide" else jnp.minimum(self.server_lr, 1 / divisor)
        return jnp.where(latest > self.threshold, short, self.server_lr)


class Ringmaster(Algorithm):
    """Ringmaster ASGD: a stochastic gradient from each client; those that are too late are thrown away. No local steps.

    A client's gradient is the mean over its τ_i minibatches of the round. Published for clients with the same data,
    one minibatch, one answer a step, and all clients under way: ``fedax.Async(N, start="idle")``. With unlike data,
    clients that are always too late do not count at all. In synchronous rounds no answer is late, and this is SGD.

    Args:
        lr: η > 0, the server's learning rate.
        threshold: R ≥ 1: gradients whose staleness is R or more are thrown away, and their clients start anew;
            ``None``: none are, which is asynchronous SGD. ``fedax.Async(max_staleness=…)`` goes before it.

    Raises:
        ConfigError: numbers out of range.

    Source: Maranjyan, Tyurin and Richtárik 2025 (arXiv 2501.16168).

    Example:
        >>> Ringmaster(lr=0.1, threshold=8).pace().max_staleness
        7
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    threshold: int | None = count(None, off=True)

    def traits(self) -> Traits:
        return Traits("Ringmaster ASGD", "Maranjyan, Tyurin and Richtárik 2025", limit="F", exact="always")

    def pace(self) -> Pace:
        return Pace(max_staleness=None if self.threshold is None else self.threshold - 1)

    def init(self, x: Vector) -> Vector:
        return x

    def client(self, download: Vector, memory: Any, oracle: Oracle) -> tuple[Vector, Any]:
        return oracle.grad_batches(download, oracle.steps), memory

    def server(self, server: Vector, mean: Vector, round: Round) -> Vector:
        return server - self.lr * mean


class MemoryTable(NamedTuple):
    """Gradients by client: their sums p_i G_i, leaves [N, ...], and how many there are, b_i, [N]."""

    sums: Vector
    counts: Any

    def put(self, i: Any, g: Vector) -> "MemoryTable":
        """With another one of client i; with none where that is N."""
        sums = self.sums.map(lambda rows, new: rows.at[i].add(new, mode="drop"), g)
        return MemoryTable(sums, self.counts.at[i].add(1, mode="drop"))

    def total(self) -> Vector:
        """Σ p_i G_i/b_i."""
        heard = jnp.maximum(self.counts, 1)
        return self.sums.map(lambda rows: jnp.tensordot(1 / heard.astype(rows.dtype), rows, 1, precision="highest"))


class RingleaderState(NamedTuple):
    """Server state: the model; where the server does not wait, the two tables, and [N] who was part of a step."""

    x: Vector
    table: Any = ()
    following: Any = ()
    served: Any = ()


class Ringleader(Algorithm):
    """Ringleader ASGD: steps along the mean over all clients of each one's mean gradient in a table. No local steps.

    The server collects gradients in a table, without a step, until it has one of every client. Then it steps, and once
    more whenever a client that was not yet part of a step has answered. Gradients of the others go into the next table,
    which takes the place of the first after all have been part of a step.

    A client's gradient is the mean over its τ_i minibatches of the round. Published for p_i = 1/N, one minibatch, one
    answer at a time, and all clients under way: ``fedax.Async(N, start="idle")``. Unequal p_i, fewer clients under way,
    and answers that come at the same instant, after which nobody starts before the last of them, are extensions. In
    synchronous rounds of all clients the table is complete at once, and this is SGD.

    Args:
        lr: η > 0, the server's learning rate.

    Raises:
        ConfigError: numbers out of range.

    Source: Maranjyan and Richtárik 2025 (arXiv 2509.22860).

    Example:
        >>> Ringleader(lr=0.1).pace().buffer
        1
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    counted: Any = eqx.field(init=False)  # [N] who has to be heard; None: the server waits for all

    def __post_init__(self) -> None:
        self.counted = None

    def traits(self) -> Traits:
        return Traits("Ringleader ASGD", "Maranjyan and Richtárik 2025", "all", limit="F", exact="always")

    def pace(self) -> Pace:
        return Pace(buffer=1)

    def paced(self, weights: Any) -> "Ringleader":
        return eqx.tree_at(lambda method: method.counted, self, weights > 0, is_leaf=lambda leaf: leaf is None)

    def init(self, x: Vector) -> RingleaderState:
        if self.counted is None:
            return RingleaderState(x)
        nobody = jnp.zeros(self.counted.shape, bool)
        empty = MemoryTable(
            x.map(lambda leaf: jnp.zeros((len(nobody), *leaf.shape), leaf.dtype)), nobody.astype(jnp.int32)
        )
        return RingleaderState(x, empty, empty, nobody)

    def download(self, server: RingleaderState) -> Vector:
        return server.x

    def client(self, download: Vector, memory: Any, oracle: Oracle) -> tuple[Vector, Any]:
        return oracle.grad_batches(download, oracle.steps), memory

    def server(self, server: RingleaderState, mean: Vector, round: Round) -> RingleaderState:
        if self.counted is None:
            return RingleaderState(server.x - self.lr * mean)
        x, table, following, served = server
        (i,), nowhere = round.ids, len(served)
        g = (round.heard / round.total) * mean  # p_i g_i, whatever weight the answer has
        late = served[i]
        table, following = table.put(jnp.where(late, nowhere, i), g), following.put(jnp.where(late, i, nowhere), g)
        steps = ~late & jnp.all((table.counts > 0) | ~self.counted)
        x = x - jnp.where(steps, self.lr, 0.0) * table.total()
        served = served.at[i].set(late | steps, mode="drop")
        over = jnp.all(served | ~self.counted)
        empty = jax.tree.map(jnp.zeros_like, following)
        table, following = (
            jax.tree.map(lambda old, new: jnp.where(over, new, old), *each)
            for each in ((table, following), (following, empty))
        )
        return RingleaderState(x, table, following, served & ~over)
