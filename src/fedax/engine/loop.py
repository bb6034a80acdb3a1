"""The loop over the exchanges of a round: it makes requests, and the place where the clients are answers them.

There is one such loop. The device drives it while JAX traces a round, the host block by block of clients. Here is what
does not depend on where the clients are: who is asked, which uploads still count, the server's step of an exchange.
"""

from collections.abc import Generator
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedax.contract.algorithm import Algorithm, Exchange, Round
from fedax.contract.types import Array, Number, Tree
from fedax.engine.plan import RunPlan
from fedax.errors import ConfigError
from fedax.federation.participation import Participation
from fedax.federation.work import Work
from fedax.programs import compiled
from fedax.wire.privacy import Private, salted
from fedax.wire.wire import Wire, nonzero

# Branches of the tree of random keys; each number is folded into the key above it.
_COHORT, _WORK, _SERVER, _ONE, _EXCHANGE = range(5)
_DOWNLOAD = 2**30  # far from those of the exchanges


class Hyper(NamedTuple):
    """The values of a run that are traced: other values need no new compilation."""

    method: Algorithm
    work: Work
    participation: Participation
    wire: Wire


class Federation(NamedTuple):
    """The data of all clients on the device: pooled examples, and [N] offsets, sizes and weights.

    ``examples`` is ``None`` where they come to the device cohort by cohort. ``frozen``: the part of a model that is not
    learned.
    """

    examples: Tree
    offsets: Array
    sizes: Array
    weights: Array
    frozen: Tree = ()


class Clients(NamedTuple):
    """The clients of a round, [S] each; the most steps come first.

    Attributes:
        ids: their numbers; N at an empty place.
        weights, data_weights: ω_i and p_i; 0 at an empty place, and for clients that no longer count.
        steps: τ_i.
        present: whether the place holds a client.
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
        """The cohort with weight 0 for clients that do not count; ``counts``: [S] booleans."""
        return self._replace(weights=self.weights * counts, data_weights=self.data_weights * counts)

    def alone(self, at: Number) -> "Clients":
        """A cohort of the one client at a position, [1], with ω = 1."""
        one = Clients(*(leaf[at][None] for leaf in self))
        return one._replace(weights=one.present.astype(one.weights.dtype))


def empty_place(num_clients: int) -> tuple[int, ...]:
    """An empty place in a cohort: a number for each field of :class:`Clients`."""
    return num_clients, 0, 0, 0, False, 0, 1


class Exclusions(NamedTuple):
    """How often the uploads of each client were left out, [N], and how many rounds were skipped."""

    left_out: Array
    skipped: Number

    def after(self, clients: Clients, end: "RoundResult") -> "Exclusions":
        """The exclusions with those of another round."""
        excluded = clients.present & ~end.counts
        if isinstance(end.skipped, jax.Array):
            times: Array = jnp.asarray(self.left_out).at[clients.ids].add(excluded.astype(jnp.int32), mode="drop")
        else:
            times = np.array(self.left_out)
            np.add.at(times, clients.ids[excluded], 1)  # where the server does not wait, one may be there twice
        return Exclusions(times, self.skipped + end.skipped)


class State(NamedTuple):
    """The state between rounds: the server's, and the memory of all N clients, leaves [N, ...].

    ``exclusions`` is :class:`Exclusions`, or ``()`` where every upload counts. ``box``: uploads that are not yet part
    of a step, :class:`fedax.engine.clients.UploadBuffer`, where the server does not wait.
    """

    server: Tree
    memory: Tree
    exclusions: Tree = ()
    box: Tree = ()


class Counters(NamedTuple):
    """The amount of work done: clients that took part, local steps, minibatch gradients.

    ``uploads``: how many answers came; ``()``: as many as clients took part.
    """

    clients: Number
    local_steps: Number
    gradients: Number
    uploads: Tree = ()


class Request(NamedTuple):
    """The server's request to the clients of a round in one exchange.

    Attributes:
        stage, number: which exchange: of ``"exchanges"`` or of ``"warmup"``, and its position there.
        exchange: the method's functions for it.
        server: the server's state before it, from which the download is made.
        clients: the clients of the round; those of weight 0 are not asked any more.
        at: the position of the one client that is asked alone, with ω = 1; ``None``: all are asked.
        round: what the server knows about the round.
        counts: [S] whose uploads count so far.
        wire: the wire of the round.
    """

    stage: str
    number: int
    exchange: Exchange
    server: Tree
    clients: Clients
    at: Number | None
    round: Round
    counts: Array
    wire: Wire


class Response(NamedTuple):
    """The clients' response to a request.

    Attributes:
        total: Σ ω_i v_i and Σ p_i change_i over the clients that count.
        uploads: leaves [S, ...], where the server looks at them one by one; else ``()``.
        accepted: whose uploads were accepted, [S], or [1] for a client that was asked alone; ``()``: all.
        server: the server's state after the exchange, where its step was part of the same program; else ``None``.
    """

    total: Tree
    uploads: Tree
    accepted: Tree
    server: Tree = None


class Server(Protocol):
    """The server's computations in a round: a part of the round's program, or programs of their own on the host."""

    def draw_one(self, stage: str, clients: Clients) -> Number:
        """The position of one client, as :func:`draw_one` draws it."""

    def conclude(self, request: Request, response: Response) -> Tree:
        """The server's state after the exchange, as :func:`conclude` makes it."""


class Backend(Server, Protocol):
    """A server together with the place where the clients are."""

    def answer(self, request: Request) -> Response:
        """Run the clients that are asked."""


class RoundResult(NamedTuple):
    """The end of a round: the server's state, [S] whose uploads counted, and whether the round was skipped."""

    server: Tree
    counts: Array
    skipped: Number


def exchanges(
    stage: str,
    method: Algorithm,
    clients: Clients,
    round_: Round,
    server: Tree,
    wire: Wire,
    watched: bool,
    place: Server,
) -> Generator[Request, Response, RoundResult]:
    """The exchanges of a round, or of the warm-up; yields requests, and is sent the responses.

    A round is skipped, and changes nothing, if none of its clients counts, or if the client that was to work alone is
    left out. With privacy a round without clients is like any other, of noise alone: that nobody came is private.
    """
    before, counts, wire = server, clients.present, wire.of(round_)
    failed: Number = False
    for number, exchange in enumerate(getattr(method, stage)()):
        if exchange.who not in ("cohort", "one"):
            raise ConfigError("who", exchange.who, "an exchange is with 'cohort' or with 'one'")
        remaining = clients.only(counts) if wire.excludes else clients
        at = place.draw_one(stage, remaining) if exchange.who == "one" else None
        request = Request(stage, number, exchange, server, remaining, at, round_, counts, wire)
        response = yield request
        if wire.excludes and at is not None:
            failed = failed | ~response.accepted.all()
            response = response._replace(accepted=(np.arange(len(counts)) != at) | response.accepted)
        if response.server is not None:
            server = response.server
        elif exchange.server is not None:
            server = place.conclude(request, response)
        if wire.excludes:
            counts = counts & response.accepted
    if not watched:
        return RoundResult(server, counts, False)
    skipped = failed | (~counts.any() & (wire.privacy is None))
    return RoundResult(chosen_state(skipped, before, server), counts, skipped)


def converse(loop: Generator[Request, Response, RoundResult], place: Backend) -> RoundResult:
    """Run a loop to its end, with a place that answers its requests."""
    request = next(loop)
    while True:
        try:
            request = loop.send(place.answer(request))
        except StopIteration as stop:
            return stop.value


def chosen_state(skipped: Number, before: Tree, after: Tree) -> Tree:
    """``before`` if the round was skipped, else ``after``."""
    if not isinstance(skipped, jax.Array):
        return before if skipped else after
    return jax.tree.map(lambda old, new: jnp.where(skipped, old, new), before, after)


def conclude(request: Request, response: Response, plan: RunPlan) -> Tree:
    """The server's state after an exchange: the response becomes a mean, and the method's server takes its step."""
    counts = request.counts & response.accepted if request.wire.excludes else request.counts
    mean, round_ = request.wire.received(
        response.total, response.uploads, request.round, counts, plan.by_number, request.exchange.who == "one"
    )
    assert request.exchange.server is not None
    # In a program of its own the round's static fields came as arrays.
    return request.exchange.server(request.server, mean, round_._replace(num_clients=plan.num_clients))


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
        exchange, method, server, wire: those of the exchange.
        key: the round's.
        known: arrays that were sent in the round, as of :meth:`Wire.download`.
    """
    download = (exchange.download or method.download)(server)
    return wire.download(download, jax.random.fold_in(key, _DOWNLOAD), known)


def draw(hyper: Hyper, fed: Federation, key: Array, index: Array, plan: RunPlan) -> tuple[Clients, Round]:
    """The clients of a round with their steps, and what the server knows about the round. ``key`` is the round's."""
    ids, weights = draw_cohort(hyper, fed.weights, key, index)
    usual = jnp.int32(plan.max_steps if plan.steps is None else plan.steps)
    clients = placed(fed, ids, weights, usual, plan)
    if plan.steps is None:
        known = jnp.minimum(clients.ids, plan.num_clients - 1)
        steps = draw_steps(hyper.work.at(index), key, known, clients.sizes, plan.batch_size)
        steps = jnp.where(clients.present, steps, 0)
        order = jnp.argsort(-steps)  # a chunk of neighbours waits little for its slowest client
        clients = Clients(*(leaf[order] for leaf in clients._replace(steps=steps)))
    return clients, round_of(clients, index, key, plan)


def without_method(hyper: Hyper) -> Hyper:
    """What :func:`draw` needs: of the method a private one alone takes part, so that others share programs."""
    method = hyper.method if isinstance(hyper.method, Private) else None
    return Hyper(method, hyper.work, hyper.participation, None)  # type: ignore[arg-type]


def placed(fed: Federation, ids: Array, weights: Array, steps: Array, plan: RunPlan) -> Clients:
    """Clients by their numbers, [S]; a number from N on is an empty place."""
    present = ids < plan.num_clients
    ids = jnp.where(present, ids, plan.num_clients)
    known = jnp.minimum(ids, plan.num_clients - 1)  # an empty place runs as some client, with weight 0
    return Clients(
        ids=ids,
        weights=jnp.where(present, weights, 0),
        data_weights=jnp.where(present, fed.weights[known], 0),
        steps=jnp.where(present, steps, 0),
        present=present,
        offsets=fed.offsets[known],
        sizes=fed.sizes[known],
    )


def round_of(clients: Clients, index: Array, key: Array, plan: RunPlan) -> Round:
    """What the server knows about a round with these clients; ``key`` is the round's."""
    return Round(
        index=index,
        t=index * plan.max_steps,
        key=server_key(key),
        num_clients=plan.num_clients,
        weights=clients.weights,
        steps=clients.steps,
        present=clients.present,
        data_weights=clients.data_weights,
        total=nonzero(jnp.sum(clients.weights)),
        ids=clients.ids,
    )


def draw_cohort(hyper: Hyper, weights: Array, key: Array, index: Array) -> tuple[Array, Array]:
    """The cohort of a round by the participation; ``key`` is the round's."""
    cohort_key: Array = jax.random.fold_in(key, _COHORT)
    if isinstance(hyper.method, Private):  # sampling amplifies privacy only if nobody knows who was drawn
        cohort_key = salted(cohort_key, hyper.method.cohorts)
    return hyper.participation.draw(cohort_key, weights, index)


def draw_steps(work: Work, key: Array, ids: Array, sizes: Array, batch_size: int | None) -> Array:
    """The local steps of some clients; ``key`` is the round's."""
    return work.draw(jax.random.fold_in(key, _WORK), ids, sizes, batch_size)


def draw_one(clients: Clients, key: Array) -> Array:
    """The position of the client that works alone in an exchange, drawn by weight; ``key`` is the round's."""
    return jax.random.categorical(jax.random.fold_in(key, _ONE), jnp.log(clients.weights))


def stage_key(key: Array, index: Number, stage: str) -> Array:
    """The key of a round, from the run's ``key``; that of the warm-up is folded with a number that no round has."""
    return jax.random.fold_in(key, jnp.iinfo(jnp.int32).max if stage == "warmup" else index)


def exchange_key(key: Array, number: int) -> Array:
    """The key of an exchange, from its round's ``key``."""
    return jax.random.fold_in(key, _EXCHANGE + number)


def server_key(key: Array) -> Array:
    """The server's key, from its round's ``key``."""
    return jax.random.fold_in(key, _SERVER)


def draw_rounds(
    hyper: Hyper, fed: Federation, key: Array, indices: Array, *, plan: RunPlan, stage: str
) -> tuple[Clients, Round]:
    """:func:`draw` for some rounds, NumPy leaves [rounds, ...]; without the server's keys."""
    return jax.tree.map(np.asarray, _draw_rounds(without_method(hyper), fed, key, indices, plan=plan, stage=stage))


@compiled(static=["plan", "stage"])
def _draw_rounds(
    hyper: Hyper, fed: Federation, key: Array, indices: Array, *, plan: RunPlan, stage: str
) -> tuple[Clients, Round]:
    def one(index: Array) -> tuple[Clients, Round]:
        clients, round_ = draw(hyper, fed, stage_key(key, index, stage), index, plan)
        return clients, round_._replace(key=jnp.zeros(0))

    return jax.lax.map(one, indices)
