"""Footprint: what a method communicates, stores and computes in a round, found by tracing it on a small model."""

import operator
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedax.contract.algorithm import Algorithm, Round
from fedax.contract.compression import decoded, is_message
from fedax.contract.oracle import Oracle, OracleCalls
from fedax.contract.schedule import resolve
from fedax.contract.types import Array, Tree
from fedax.contract.vector import Vector
from fedax.engine.loop import Clients, Request, Response, converse, exchanges
from fedax.tasks.task import Task
from fedax.wire.sums import without_marks
from fedax.wire.wire import Wire

_SIZE = 97  # parameters of the small model, more than any method sends numbers


class Amount(NamedTuple):
    """An amount of data: a number of arrays of the model's size, and a number of further scalars."""

    models: int = 0
    numbers: int = 0


class Footprint(NamedTuple):
    """What one client receives, sends and computes in one exchange, or in several.

    Attributes:
        down, up: what it receives and sends; an array that occurs twice counts once, and a message as its arrays.
        asked: the gradients and the loops over local steps.
        messages: how many messages it sends instead of arrays.
    """

    down: Amount = Amount()
    up: Amount = Amount()
    asked: OracleCalls = OracleCalls()
    messages: int = 0

    def plus(self, other: "Footprint") -> "Footprint":
        """The sum of both."""
        return jax.tree.map(operator.add, self, other)


class Footprints(NamedTuple):
    """The footprints of a method: ``warmup``, before round 0; ``cohort``, of each client of a round; ``one``, in
    addition, of a single client of the cohort; ``memory``, what a client keeps between rounds."""

    warmup: Footprint
    cohort: Footprint
    one: Footprint
    memory: Amount


def footprints(method: Algorithm) -> Footprints:
    """The footprints of a method in a usual round of equal local steps; rare rounds are not covered.

    Example:
        >>> from fedax.algorithms import Scaffold
        >>> found = footprints(Scaffold())
        >>> found.cohort.down, found.cohort.up, found.memory, found.cohort.asked.step_batches
        (Amount(models=2, numbers=0), Amount(models=2, numbers=0), Amount(models=1, numbers=0), 1)
    """
    found: list[Footprints] = []
    jax.eval_shape(lambda x: found.append(_trace(resolve(method, 0), Vector(x))), jnp.zeros(_SIZE))
    return found[0]


class _SecondBranchOracle(Oracle):
    """An oracle whose ``cond`` takes the second branch, which is that of usual rounds."""

    def cond(self, pred: Array, yes: Callable[[Tree], Tree], no: Callable[[Tree], Tree], operand: Tree) -> Tree:
        return no(operand)


def _trace(method: Algorithm, x: Vector) -> Footprints:
    one, key = jnp.ones(1), jax.random.key(0)
    clients = Clients(jnp.zeros(1, int), one, one, 3 * one, one > 0, one, one)
    round_ = Round(jnp.int32(1), jnp.int32(3), key, 1, one, 3 * one, one > 0, one, jnp.sum(one))
    server, memory = method.init(x), method.init_client(x)
    place = _TracedClient(method, memory)
    for stage in ("warmup", "exchanges"):
        # As in a later round, where arrays that are the same at the start, such as the last two models, differ.
        server, place.memory = jax.tree.map(lambda leaf: jnp.asarray(leaf) + 0, (server, place.memory))
        place.sent = []
        if getattr(method, stage)():
            loop = exchanges(stage, method, clients, round_, server, Wire(), False, place)
            server = converse(loop, place).server
    return Footprints(**place.totals, memory=_amount(jax.tree.leaves(memory)))


def _answer(params: Array, batch: dict[str, Array]) -> Array:
    return batch["z"] @ params


class _TracedClient:
    """A place with one client, which records what is sent and computed."""

    def __init__(self, method: Algorithm, memory: Tree):
        self.method, self.memory = method, memory
        self.sent: list[Array] = []
        self.totals = {"warmup": Footprint(), "cohort": Footprint(), "one": Footprint()}
        self._task = Task(lambda key: jnp.zeros(_SIZE), lambda *given: _answer(*given[:2]), outputs=_answer)

    def answer(self, request: Request) -> Response:
        key, exchange = jax.random.key(0), request.exchange
        oracle = _SecondBranchOracle(
            self._task, {"z": jnp.zeros((4, _SIZE)), "y": jnp.zeros(4)}, offset=0, size=4, max_size=4, batch_size=1,
            epochs=False, steps=3, round=1, start=3, key=key, round_key=key, client=jnp.int32(0), num_clients=3,
        )  # fmt: skip
        download = (exchange.download or self.method.download)(request.server)
        upload, self.memory = exchange.client(download, self.memory, oracle)
        fresh = [leaf for leaf in _distinct(download) if not any(leaf is old for old in self.sent)]
        only_receives = exchange.server is None  # a client that is in every round would be sent this next anyway
        if exchange.who == "cohort":
            self.sent += fresh
        part = "warmup" if request.stage == "warmup" else exchange.who
        up = _distinct(upload)
        cost = Footprint(
            Amount() if only_receives else _amount(fresh), _amount(up), oracle.asked, sum(map(is_message, up))
        )
        self.totals[part] = self.totals[part].plus(cost)
        return Response(upload, (), ())

    def draw_one(self, stage: str, clients: Clients) -> int:
        """The only client."""
        return 0

    def conclude(self, request: Request, response: Response) -> Tree:
        """The server's state after a step with one unchanged upload, which shows which arrays are kept."""
        assert request.exchange.server is not None
        return request.exchange.server(request.server, without_marks(decoded(response.total)), request.round)


def _distinct(tree: Tree) -> list[Array]:
    leaves: list[Array] = []
    for leaf in jax.tree.leaves(tree, is_leaf=is_message):
        if not any(leaf is other for other in leaves):
            leaves.append(leaf)
    return leaves


def _amount(leaves: list[Tree]) -> Amount:
    sizes = [leaf.form.size if is_message(leaf) else jnp.size(leaf) for leaf in leaves]
    return Amount(*divmod(sum(sizes), _SIZE))
