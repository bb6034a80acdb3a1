"""CompressedScaffnew: Scaffnew in which each coordinate is sent by s of the N clients, drawn by a key that all share.

Condat, Agarský and Richtárik 2022, "Provably doubly accelerated federated learning: the first theoretically successful
combination of local training and communication compression", Algorithm 1.

| paper | here |
|---|---|
| x_i, x̂_i; h_i | x, y; the client's memory |
| γ, p, η; s | lr, probability, ``damping``; senders |
| q^t, q_i^t | the pattern, a client's column of it |

    Client   x̂_i: τ_i steps x ← x − γ (g_i(x) − h_i);   q_i: its column of the pattern
    Server   x ← Σ p_i q_i x̂_i / Σ p_i q_i in each coordinate
    Client   h_i ← h_i + (p η/γ) q_i (x − x̂_i)

With a solver the sum of the client's directions g_i − h_i, which is sent and averaged in the same way, stands in the
place of −(x̂_i − x)/γ.

Row k of the template, k = 0 … d − 1, has ones in the columns sk, sk + 1, …, sk + s − 1 (mod N); its columns are
permuted at random in every round. So each coordinate has s senders, and each client sends ⌊sd/N⌋ or ⌈sd/N⌉ of them.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from fedax.algorithms.led import DualState, common_step
from fedax.algorithms.parts import OTHERS
from fedax.contract.algorithm import Exchange, Round, Traits
from fedax.contract.compression import ArrayForm, Compressor, Message
from fedax.contract.hyper import count, hyper
from fedax.contract.indices import shuffled
from fedax.contract.local import LocalMethod
from fedax.contract.oracle import Oracle
from fedax.contract.packing import packed, unpacked
from fedax.contract.settings import plain
from fedax.contract.vector import Vector, zeros_like
from fedax.errors import ConfigError


class Masked(NamedTuple):
    """A vector with zeros where its client sends nothing, and 1 where it sends, else 0."""

    vector: Vector
    sent: Vector

    def mean(self) -> Vector:
        """The mean over a coordinate's senders; 0 where there is none."""
        return self.vector.map(lambda total, sent: total / jnp.where(sent > 0, sent, 1), self.sent)


class Between(NamedTuple):
    """What a client holds until it hears the means: control variate, local model or sum of directions, its column."""

    h: Vector
    y: Vector
    column: Any


class Pattern(Compressor):
    """The coordinates of one column of a pattern in which each coordinate has s of N clients.

    A message has at most ⌈sd/N⌉ numbers, and 32 bits for the column.

    Args:
        senders: s, of each coordinate.
        clients: N.

    Source: Condat et al. 2022, Figure 1.

    Example:
        >>> [Pattern(2, 3).mask(column, 4).astype(int).tolist() for column in range(3)]
        [[1, 1, 0, 1], [1, 0, 1, 1], [0, 1, 1, 0]]
    """

    senders: int = eqx.field(static=True, converter=plain)
    clients: int = eqx.field(static=True, converter=plain)

    def mask(self, column: Any, d: int) -> Any:
        """[d] which coordinates a client with this column of the template sends."""
        first = (jnp.arange(d) % self.clients).astype(jnp.uint32) * self.senders % self.clients
        offset = (jnp.asarray(column, jnp.uint32) + self.clients - first) % self.clients
        return offset < self.senders

    def message(self, column: Any, x: Vector) -> Message:
        """The coordinates of ``x`` in this column."""
        form = ArrayForm.of(x)
        return Message((jnp.where(self.mask(column, form.size), form.vector(x), 0), column), self, form)

    def decode(self, message: Message) -> Masked:
        vector, column = message.parts
        tree = message.form.tree
        return Masked(tree(vector), tree(self.mask(column, vector.size).astype(vector.dtype)))

    def bits(self, form: ArrayForm) -> int:
        return self._most(form) * 8 * form.kind.itemsize + 32

    def pack(self, parts: Any, form: ArrayForm) -> np.ndarray:
        vector, column = parts
        numbers = np.zeros(self._most(form), form.kind)
        sent = np.asarray(vector)[np.asarray(self.mask(column, form.size))]
        numbers[: sent.size] = sent
        return packed([np.asarray(column, np.uint32), numbers])

    def unpack(self, file: np.ndarray, form: ArrayForm) -> Any:
        (column, numbers), _ = unpacked(file, [((), np.uint32), ((self._most(form),), form.kind)])
        if column >= self.clients:
            raise ValueError(f"a column of a message is {column}, of {self.clients}")
        mask = np.asarray(self.mask(column, form.size))
        vector = np.zeros(form.size, form.kind)
        vector[mask] = numbers[: mask.sum()]
        return vector, np.int32(column)

    def _most(self, form: ArrayForm) -> int:
        return -(-self.senders * form.size // self.clients)


class CompressedScaffnew(LocalMethod):
    """CompressedScaffnew: local steps between communications, of which each client sends a part; the optimum of F.

    A round here is what lies between two communications: ``work=GeometricSteps(1/p)`` is the published method, as in
    :class:`Scaffnew`. Published for p_i = 1/N and one number of steps for all clients, all of which take part.
    Extensions, which leave the optimum where it is: unequal p_i in the mean over a coordinate's senders, unequal steps.

    Args:
        lr: γ > 0, the local learning rate; the theory has less than 2/L.
        probability: p in (0, 1], of communicating after a step. ``None`` is 1/K, for equal steps only.
        senders: s in 2 … N, the clients that send a coordinate; each client sends s/N of the model. ``None`` is N:
            nothing is compressed, and the method is Scaffnew.

    Raises:
        ConfigError: numbers out of range, more senders than clients.

    Source: Condat et al. 2022, Algorithm 1, with its η = N(s−1)/(s(N−1)).

    Example:
        >>> CompressedScaffnew(lr=0.1, probability=0.2).senders
        2
    """

    lr: Any = hyper(0.05, "(0, ∞)")
    probability: Any = hyper(None, "(0, 1]", off=True)
    senders: int | None = count(2, 2, off=True)

    def traits(self) -> Traits:
        source = "Condat et al. 2022, Algorithm 1"
        return Traits("CompressedScaffnew", source, "all", limit="F", exact="always", corrects=OTHERS)

    def init(self, x: Vector) -> DualState:
        return DualState(x, () if self.solver is None else zeros_like(x))

    def init_client(self, x: Vector) -> Vector:
        return zeros_like(x)

    def pattern(self, clients: int) -> Pattern:
        """The rule by which the coordinates are shared out among so many clients."""
        senders = clients if self.senders is None or clients == 1 else self.senders
        if senders > clients:
            raise ConfigError("senders", senders, f"there are {clients} clients; give at most as many")
        return Pattern(senders, clients)

    def client(self, download: DualState, memory: Vector, oracle: Oracle) -> tuple[Any, Between]:
        x, direction = download.x, lambda y, k: oracle.grad(y, k) - memory
        y, total = (
            (self.descend(direction, x, oracle), None)
            if self.solver is None
            else self.descend_summed(direction, x, oracle)
        )
        pattern = self.pattern(oracle.num_clients)
        column = shuffled(oracle.client, pattern.clients, oracle.round_key, max_size=pattern.clients)
        if total is not None:
            return (pattern.message(column, y - x), pattern.message(column, total)), Between(memory, total, column)
        return pattern.message(column, y - x), Between(memory, y, column)

    def server(self, server: DualState, mean: Any, round: Round) -> DualState:
        if self.solver is not None:
            return DualState(server.x + mean[0].mean(), mean[1].mean())
        return DualState(server.x + mean.mean())

    def listen(self, download: DualState, memory: Between, oracle: Oracle) -> tuple[None, Vector]:
        """The client hears the new model and moves its control variate, in the coordinates that it sent."""
        p, pattern = common_step(self.probability, "probability", oracle), self.pattern(oracle.num_clients)
        if self.solver is not None:
            lacked = pattern.message(memory.column, memory.y - download.total).decode().vector
            return None, memory.h + (p * damping(pattern)) * lacked
        lacked = pattern.message(memory.column, download.x - memory.y).decode().vector
        return None, memory.h + (p * damping(pattern) / self.lr) * lacked

    def exchanges(self) -> tuple[Exchange, ...]:
        return (Exchange(self.client, self.server), Exchange(self.listen))


def damping(pattern: Pattern) -> float:
    """η = N(s−1)/(s(N−1)), between 1/2 and 1: that of all N clients is 1."""
    s, n = pattern.senders, pattern.clients
    return 1.0 if s == n else n * (s - 1) / (s * (n - 1))
