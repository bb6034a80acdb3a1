"""Footprint: what a method sends, keeps and computes in a round, found by tracing it on a small model."""

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
from fedax.engine.loop import Ask, Clients, Heard, converse, exchanges
from fedax.tasks.task import Task
from fedax.wire.sums import without_marks
from fedax.wire.wire import Wire

_SIZE = 97  # parameters of the small model, more than any method sends numbers


class Amount(NamedTuple):
    """So many arrays of the model's size, and so many further numbers."""

    models: int = 0
    numbers: int = 0


class Footprint(NamedTuple):
    """What one client sends, receives and computes in one exchange, or in several.

    Attributes:
        down, up: what it receives and sends; what comes twice counts once, and a message as what it stands for.
        asked: the gradients and the loops over local steps.
        messages: how many of what it sends are messages, in place of arrays.
    """

    down: Amount = Amount()
    up: Amount = Amount()
    asked: OracleCalls = OracleCalls()
    messages: int = 0

    def plus(self, other: "Footprint") -> "Footprint":
        """Both together."""
        added: Footprint = jax.tree.map(operator.add, self, other)
        return added


class Footprints(NamedTuple):
    """What a method needs: ``warmup``, before round 0; ``cohort``, each client of a round; ``one``, further, a single
    client of the cohort; ``memory``, what a client keeps between rounds."""

    warmup: Footprint
    cohort: Footprint
    one: Footprint
    memory: Amount


def footprints(method: Algorithm) -> Footprints:
    """What a method needs in a usual round of equal local steps; of a method's rare rounds nothing is said.

    Example:
        >>> from fedax.algorithms import Scaffold
        >>> found = footprints(Scaffold())
        >>> found.cohort.down, found.cohort.up, found.memory, found.cohort.asked.step_batches
        (Amount(models=2, numbers=0), Amount(models=2, numbers=0), Amount(models=1, numbers=0), 1)
    """
    found: list[Footprints] = []
    jax.eval_shape(lambda x: found.append(_trace(resolve(method, 0), Vector(x))), jnp.zeros(_SIZE))
    return found[0]


class _Usual(Oracle):
    """An oracle that takes the second branch of every choice between rounds, which is the usual one."""

    def cond(self, pred: Array, yes: Callable[[Tree], Tree], no: Callable[[Tree], Tree], operand: Tree) -> Tree:
        return no(operand)


def _trace(method: Algorithm, x: Vector) -> Footprints:
    one, key = jnp.ones(1), jax.random.key(0)
    clients = Clients(jnp.zeros(1, int), one, one, 3 * one, one > 0, one, one)
    round_ = Round(jnp.int32(1), jnp.int32(3), key, 1, one, 3 * one, one > 0, one, jnp.sum(one))
    server, memory = method.init(x), method.init_client(x)
    place = _Traced(method, memory)
    for stage in ("warmup", "exchanges"):
        # Of a later round: what was one array at the start, such as the last two models, is two.
        server, place.memory = jax.tree.map(lambda leaf: jnp.asarray(leaf) + 0, (server, place.memory))
        place.sent = []
        if getattr(method, stage)():
            loop = exchanges(stage, method, clients, round_, server, Wire(), False, place)
            server = converse(loop, place).server
    return Footprints(**place.totals, memory=_amount(jax.tree.leaves(memory)))


class _Traced:
    """A place with one client, in which what is sent and asked is noted."""

    def __init__(self, method: Algorithm, memory: Tree):
        self.method, self.memory = method, memory
        self.sent: list[Array] = []
        self.totals = {"warmup": Footprint(), "cohort": Footprint(), "one": Footprint()}
        self._task = Task(lambda key: jnp.zeros(_SIZE), lambda params, batch, key: batch["z"] @ params)

    def answer(self, ask: Ask) -> Heard:
        key, exchange = jax.random.key(0), ask.exchange
        oracle = _Usual(
            self._task, {"z": jnp.zeros((4, _SIZE))}, offset=0, size=4, max_size=4, batch_size=1, epochs=False,
            steps=3, round=1, start=3, key=key, round_key=key, client=jnp.int32(0), num_clients=3,
        )  # fmt: skip
        download = (exchange.download or self.method.download)(ask.server)
        upload, self.memory = exchange.client(download, self.memory, oracle)
        fresh = [leaf for leaf in _distinct(download) if not any(leaf is old for old in self.sent)]
        listens = exchange.server is None  # to what a client that is always there would be sent next
        if exchange.who == "cohort":
            self.sent += fresh
        part = "warmup" if ask.stage == "warmup" else exchange.who
        up = _distinct(upload)
        cost = Footprint(Amount() if listens else _amount(fresh), _amount(up), oracle.asked, sum(map(is_message, up)))
        self.totals[part] = self.totals[part].plus(cost)
        return Heard(upload, (), ())

    def one_of(self, stage: str, clients: Clients) -> Array:
        """The only client."""
        return 0

    def conclude(self, ask: Ask, heard: Heard) -> Tree:
        """The server's state after its step with the one upload as it is, so that it shows which arrays are kept."""
        assert ask.exchange.server is not None
        return ask.exchange.server(ask.server, without_marks(decoded(heard.total)), ask.round)


def _distinct(tree: Tree) -> list[Array]:
    leaves: list[Array] = []
    for leaf in jax.tree.leaves(tree, is_leaf=is_message):
        if not any(leaf is other for other in leaves):
            leaves.append(leaf)
    return leaves


def _amount(leaves: list[Array]) -> Amount:
    return Amount(*divmod(sum(leaf.form.size if is_message(leaf) else jnp.size(leaf) for leaf in leaves), _SIZE))
