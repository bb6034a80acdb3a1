"""The loop over the exchanges of a round: it asks, and the place where the clients are answers.

There is one such loop. The device drives it while JAX traces a round, the host block by block of clients. What does not
depend on where the clients are is here: who is asked, which uploads still count, the server's step after an exchange.
"""

from collections.abc import Generator
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedax.contract.algorithm import Algorithm, Exchange, Round
from fedax.contract.types import Array, Tree
from fedax.engine.plan import Plan
from fedax.errors import ConfigError
from fedax.federation.participation import Participation
from fedax.federation.work import Work
from fedax.wire.privacy import Private, salted
from fedax.wire.wire import Wire, nonzero

# Branches of the tree of random keys; each number is folded into the key above it.
_COHORT, _WORK, _SERVER, _ONE, _EXCHANGE = range(5)
_DOWNLOAD = 2**30  # far from those of the exchanges


class Hyper(NamedTuple):
    """All of a run that is numbers to the compiler: other values compile nothing anew."""

    method: Algorithm
    work: Work
    participation: Participation
    wire: Wire


class Federation(NamedTuple):
    """The data of all clients on the device: pooled examples, and [N] offsets, sizes and weights.

    ``examples`` is ``None`` where they come to the device cohort by cohort. ``frozen``: of a task of which a part is
    learned, the rest.
    """

    examples: Tree
    offsets: Array
    sizes: Array
    weights: Array
    frozen: Tree = ()


class Clients(NamedTuple):
    """The clients of a round, [S] each; the most steps come first.

    Attributes:
        ids: who they are; N where nobody is.
        weights, data_weights: ω_i and p_i; 0 where nobody is, and for those that no longer count.
        steps: τ_i.
        present: whether somebody is there.
        offsets, sizes: where in the pool a client's examples are.
    """

    ids: Array
    weights: Array
    data_weights: Array
    steps: Array
    present: Array
    offsets: Array
    sizes: Array

    def only(self, counts: Array) -> "Clients":
        """The same with no weight for those that do not count; [S] truth values."""
        return self._replace(weights=self.weights * counts, data_weights=self.data_weights * counts)

    def alone(self, at: Array) -> "Clients":
        """A cohort of the one client at a position, [1], with ω = 1."""
        one = Clients(*(leaf[at][None] for leaf in self))
        return one._replace(weights=one.present.astype(one.weights.dtype))


def nobody(num_clients: int) -> Clients:
    """What stands where there is no client."""
    return Clients(num_clients, 0, 0, 0, False, 0, 1)


class Exclusions(NamedTuple):
    """How often the uploads of each client were left out, [N], and how many rounds were skipped."""

    left_out: Array
    skipped: Array

    def after(self, clients: Clients, end: "End") -> "Exclusions":
        """With those of another round."""
        gone = clients.present & ~end.counts
        if isinstance(end.skipped, jax.Array):
            times = self.left_out.at[clients.ids].add(gone.astype(jnp.int32), mode="drop")
        else:
            times = self.left_out.copy()
            times[clients.ids[gone]] += 1
        return Exclusions(times, self.skipped + end.skipped)


class State(NamedTuple):
    """What goes from round to round: the server's state, and the memory of all N clients, leaves [N, ...].

    ``exclusions`` is :class:`Exclusions`, or ``()`` where every upload counts.
    """

    server: Tree
    memory: Tree
    exclusions: Tree = ()


class Tally(NamedTuple):
    """What was done: clients that took part, local steps, minibatch gradients."""

    clients: Array
    local_steps: Array
    gradients: Array


class Ask(NamedTuple):
    """What the server asks of the clients of a round in one exchange.

    Attributes:
        stage, number: which exchange: of ``"exchanges"`` or of ``"warmup"``, and its position there.
        exchange: what the method says about it.
        server: the server's state before it, of which the clients receive a download.
        clients: those of the round; no longer those whose weight is 0.
        at: the position of the one client that is asked alone, with ω = 1; ``None``: all are asked.
        round: what the server knows about the round.
        counts: [S] whose uploads count so far.
        wire: of the round.
    """

    stage: str
    number: int
    exchange: Exchange
    server: Tree
    clients: Clients
    at: Array
    round: Round
    counts: Array
    wire: Wire


class Heard(NamedTuple):
    """What the clients answered.

    Attributes:
        total: Σ ω_i v_i and Σ p_i change_i over those that count.
        uploads: leaves [S, ...], where the server looks at them one by one; else ``()``.
        accepted: whose uploads were accepted, [S], or [1] of one client that was asked alone; ``()``: all.
        server: the server's state after the exchange, where its step was part of the same program; else ``None``.
    """

    total: Tree
    uploads: Tree
    accepted: Array
    server: Tree = None


class Server(Protocol):
    """What the server computes in a round: a part of the round's program, or programs of its own on the host."""

    def one_of(self, stage: str, clients: Clients) -> Array:
        """The position of one client, as :func:`one_of` draws it."""

    def conclude(self, ask: Ask, heard: Heard) -> Tree:
        """The server's state after the exchange, as :func:`conclude` makes it."""


class Place(Server, Protocol):
    """A server with the clients at hand."""

    def answer(self, ask: Ask) -> Heard:
        """Let the clients that are asked do their work."""


class End(NamedTuple):
    """The end of a round: the server's state, [S] whose uploads counted, and whether the round was skipped."""

    server: Tree
    counts: Array
    skipped: Array


def exchanges(
    stage: str,
    method: Algorithm,
    clients: Clients,
    round_: Round,
    server: Tree,
    wire: Wire,
    watched: bool,
    place: Server,
) -> Generator[Ask, Heard, End]:
    """The exchanges of a round, or of the warm-up; yields what it asks, and is sent what was heard.

    A round is skipped, and changes nothing, if none of its clients counts, or if the client that was to work alone is
    left out. With privacy a round of nobody is one like any other, of noise alone: that nobody came is private.
    """
    before, counts, failed, wire = server, clients.present, False, wire.of(round_)
    for number, exchange in enumerate(getattr(method, stage)()):
        if exchange.who not in ("cohort", "one"):
            raise ConfigError("who", exchange.who, "an exchange is with 'cohort' or with 'one'")
        asked = clients.only(counts) if wire.excludes else clients
        at = place.one_of(stage, asked) if exchange.who == "one" else None
        ask = Ask(stage, number, exchange, server, asked, at, round_, counts, wire)
        heard = yield ask
        if wire.excludes and at is not None:
            failed = failed | ~heard.accepted.all()
            heard = heard._replace(accepted=(np.arange(len(counts)) != at) | heard.accepted)
        if heard.server is not None:
            server = heard.server
        elif exchange.server is not None:
            server = place.conclude(ask, heard)
        if wire.excludes:
            counts = counts & heard.accepted
    if not watched:
        return End(server, counts, False)
    skipped = failed | (~counts.any() & (wire.privacy is None))
    return End(chosen_state(skipped, before, server), counts, skipped)


def converse(loop: Generator[Ask, Heard, End], place: Place) -> End:
    """Let a place answer all that a loop asks."""
    ask = next(loop)
    while True:
        try:
            ask = loop.send(place.answer(ask))
        except StopIteration as stop:
            end: End = stop.value
            return end


def chosen_state(skipped: Array, before: Tree, after: Tree) -> Tree:
    """The state before a round that was skipped, else that after it."""
    if not isinstance(skipped, jax.Array):
        return before if skipped else after
    return jax.tree.map(lambda old, new: jnp.where(skipped, old, new), before, after)


def conclude(ask: Ask, heard: Heard, plan: Plan) -> Tree:
    """The server's state after an exchange."""
    counts = ask.counts & heard.accepted if ask.wire.excludes else ask.counts
    mean, round_ = ask.wire.received(
        heard.total, heard.uploads, ask.round, counts, plan.by_number, ask.exchange.who == "one"
    )
    assert ask.exchange.server is not None
    # In a program of its own the round's static fields came as arrays.
    return ask.exchange.server(ask.server, mean, round_._replace(num_clients=plan.num_clients))


def download_of(
    exchange: Exchange,
    method: Algorithm,
    server: Tree,
    wire: Wire,
    key: Array,
    known: list[tuple[Array, Tree]] | None = None,
) -> Tree:
    """What goes to each client in an exchange, with messages where downloads are compressed.

    Args:
        exchange, method, server, wire: whose it is.
        key: the round's.
        known: arrays that were sent in the round, as of :meth:`Wire.download`.
    """
    download = (exchange.download or method.download)(server)
    return wire.download(download, jax.random.fold_in(key, _DOWNLOAD), known)


def draw(hyper: Hyper, fed: Federation, key: Array, index: Array, plan: Plan) -> tuple[Clients, Round]:
    """Who comes to a round and how much each works; and what the server knows about it. ``key`` is the round's."""
    cohort_key = jax.random.fold_in(key, _COHORT)
    if isinstance(hyper.method, Private):  # what is sampled is private only as long as nobody knows who was drawn
        cohort_key = salted(cohort_key, hyper.method.cohorts)
    ids, weights = hyper.participation.draw(cohort_key, fed.weights, index)
    present = ids < plan.num_clients
    ids = jnp.where(present, ids, plan.num_clients)
    known = jnp.minimum(ids, plan.num_clients - 1)  # an empty place runs as some client, with weight 0
    clients = Clients(
        ids=ids,
        weights=jnp.where(present, weights, 0),
        data_weights=jnp.where(present, fed.weights[known], 0),
        steps=jnp.where(present, jnp.int32(plan.max_steps if plan.steps is None else plan.steps), 0),
        present=present,
        offsets=fed.offsets[known],
        sizes=fed.sizes[known],
    )
    if plan.steps is None:
        steps = hyper.work.draw(jax.random.fold_in(key, _WORK), known, clients.sizes, plan.batch_size)
        steps = jnp.where(present, steps, 0)
        order = jnp.argsort(-steps)  # a chunk of neighbours waits little for its slowest client
        clients = Clients(*(leaf[order] for leaf in clients._replace(steps=steps)))
    return clients, Round(
        index=index,
        t=index * plan.max_steps,
        key=server_key(key),
        num_clients=plan.num_clients,
        weights=clients.weights,
        steps=clients.steps,
        present=clients.present,
        data_weights=clients.data_weights,
        total=nonzero(jnp.sum(clients.weights)),
    )


def one_of(clients: Clients, key: Array) -> Array:
    """The position of the one client that an exchange is with, drawn by weight; ``key`` is the round's."""
    return jax.random.categorical(jax.random.fold_in(key, _ONE), jnp.log(clients.weights))


def stage_key(key: Array, index: Array, stage: str) -> Array:
    """The key of a round, of the run's ``key``; the warm-up's is folded with a number that no round has."""
    return jax.random.fold_in(key, jnp.iinfo(jnp.int32).max if stage == "warmup" else index)


def exchange_key(key: Array, number: int) -> Array:
    """The key of an exchange, of its round's ``key``."""
    return jax.random.fold_in(key, _EXCHANGE + number)


def server_key(key: Array) -> Array:
    """The server's, of its round's ``key``."""
    return jax.random.fold_in(key, _SERVER)
