"""Personal models: the model that each client would use, and how it does on the client's own examples."""

import dataclasses
import functools
import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedax.columns import PERSONAL, TRAIN
from fedax.contract.algorithm import Algorithm, layers_of
from fedax.contract.compression import decoded
from fedax.contract.schedule import resolve
from fedax.contract.types import Array, Number, Tree, Unknown
from fedax.contract.vector import Vector
from fedax.engine import by_client
from fedax.engine.clients import Client, ClientResult, SharedInputs, contribute, oracle_of
from fedax.engine.loop import (
    Clients,
    Counters,
    Federation,
    State,
    draw_rounds,
    exchange_key,
    round_of,
    stage_key,
)
from fedax.engine.memory import ClientMemory
from fedax.engine.plan import RunPlan
from fedax.engine.turns import LastTurn, PersonalPlan, Turned
from fedax.errors import unknown
from fedax.federation.participation import Full
from fedax.metrics.base import HostMetric, Metric
from fedax.numbers import check_count
from fedax.programs import compiled
from fedax.tasks.losses import each_once
from fedax.tasks.task import Task
from fedax.wire.sums import without_marks
from fedax.wire.wire import Wire

if TYPE_CHECKING:
    from fedax.engine.job import EvaluationPlan, Job

_OWN_TURN = 2**29  # far from the numbers of exchanges; see loop.py


def columns(task: Task, evaluation: "EvaluationPlan") -> list[str]:
    """The columns of personal models in a row of the history; the training loss where all of it is measured."""
    plan = evaluation.personal
    if plan is None:
        return []
    named = [f"{part}_{name}{PERSONAL}" for part in plan.rows for name in ("loss", *_on_device(task))]
    train = [f"train_loss{PERSONAL}"] if evaluation.train == TRAIN[0] else []
    unseen = [] if evaluation.unseen is None else columns(task, evaluation.unseen.evaluation)
    return [*train, *named, *(("turn_age", "newcomers") if plan.turns is not None else ()), *_renamed(unseen)]


def _renamed(names: Iterable[str]) -> dict[str, str]:
    """Columns of held-out examples of clients that take no part: as a run has them -> as those of unseen clients."""
    return {f"unseen_{name.removeprefix('test_')}": name for name in names if name.startswith("test_")}


def _on_device(task: Task) -> list[str]:
    """The metrics that are computed where the models are: those of each example, and those made of sums."""
    return [name for name, metric in task.metrics.items() if not isinstance(metric, HostMetric)]


class Evaluated(NamedTuple):
    """The figures of all clients' own models, leaves [N, ...].

    Attributes:
        train: F_i(v_i); ``None`` where the run does not measure it.
        parts: part -> name -> the sum over the client's examples; of a metric that is made of sums, these.
        last: the round of each client's last turn.
    """

    train: Array | None
    parts: dict[str, dict[str, Tree]]
    last: Array


def everyone(job: "Job", index: int) -> Clients:
    """All clients as they would be asked in a round with full participation, host leaves [N]."""
    hyper = job.hyper._replace(participation=Full())
    drawn, _ = draw_rounds(hyper, job.fed, job.key, np.array([index], np.int32), plan=job.plan, stage="exchanges")
    return Clients(*(leaf[0] for leaf in drawn))


def measured(job: "Job", state: State, index: int) -> dict[str, Unknown]:
    """The columns of personal models after ``index`` rounds; none of a method without. Memory is on the device."""
    plan = job.evaluation.personal
    if plan is None:
        return {}
    who = everyone(job, index)
    server, memory = inner_state(job.hyper.method, state.server), _rows(state.memory, who.ids)
    return row(job, who, evaluated(job, job.fed, server, memory, who, index), index) | unseen(job, state, index)


def unseen(job: "Job", state: State, index: int) -> dict[str, Unknown]:
    """The columns of clients that take no part: of the models that they make of the newest one, each for itself."""
    other = job.evaluation.unseen
    if other is None:
        return {}
    other = other._replace(key=job.key)
    who, server = everyone(other, index), inner_state(job.hyper.method, state.server)
    memory = _fresh(other.hyper.method, other.x, number=len(who.ids))
    found = row(other, who, evaluated(other, other.fed, server, memory, who, index), index)
    return {name: found[as_test] for name, as_test in _renamed(found).items()}


@compiled(static=["number"])
def _fresh(algorithm: Unknown, x: Vector, *, number: int) -> Tree:
    """The memory of so many clients that were never asked."""
    row = resolve(algorithm, 0).init_client(x)
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (number, *jnp.shape(leaf))), row)


def evaluated(job: "Job", fed: Federation, server: Tree, memory: Tree, who: Clients, index: int) -> Evaluated:
    """The figures of some clients' own models.

    Args:
        job: the run, with the held-out examples that are here.
        fed: the clients' examples.
        server: the server's :func:`inner_state`.
        memory: of these clients, leaves [S, ...]; results have the same order.
        who: the clients.
        index: the number of rounds so far.
    """
    plan = job.evaluation.personal
    assert plan is not None
    here = {part: rows for part, rows in plan.rows.items() if rows is not None}
    held = {part: (job.evaluation.held[part], *rows) for part, rows in here.items()}
    blocks = tuple(
        (part, _held_block(job.plan.task, job.x, fed.frozen, held[part][0], int(rows.sizes.max())))
        for part, rows in here.items()
    )
    method, turned = _turned(job.hyper.method, memory)
    static = {"plan": job.plan.of_clients, "blocks": blocks, "train": job.evaluation.train == TRAIN[0]}
    return _evaluated(method, fed, job.key, server, turned, who, held, plan.turns or 0, index, **static)


@compiled(static=["plan", "blocks", "train"])
def _evaluated(
    method: Algorithm,
    fed: Federation,
    key: Array,
    server: Tree,
    memory: Turned,
    who: Clients,
    held: dict[str, Tree],
    turns: Number,
    index: Number,
    *,
    plan: RunPlan,
    blocks: tuple[tuple[str, int], ...],
    train: bool,
) -> Evaluated:
    sizes = dict(blocks)
    model = resolve(method, index).model(server)
    loss = functools.partial(_loss, plan.task.bound(fed.frozen), model)
    block = _block(loss, fed.examples, plan.max_size) if train else 0

    def look(v: Vector, h: Tree, task: Task, last: Array, client: Clients, shared: SharedInputs) -> Evaluated:
        (_, held, *_), examples = shared.download, shared.fed.examples
        mean = None
        if train:
            loss = functools.partial(_loss, task, v)
            mean = by_client.sums(loss, examples, client.offsets, client.sizes, block) / client.sizes
        id_ = jnp.minimum(client.ids, plan.num_clients - 1)
        parts = {
            part: by_client.sums(functools.partial(_held_out, task, v), pool, offsets[id_], own[id_], sizes[part])
            for part, (pool, offsets, own) in held.items()
        }
        return Evaluated(mean, parts, last)

    shared = _inputs(method, (server, held, turns), fed, key, index)
    return _looked(look, shared, memory, who, plan)


@compiled(static=["plan"])
def _models(
    method: Algorithm, fed: Federation, key: Array, server: Tree, memory: Turned, who: Clients, turns: Number,
    index: Number, *, plan: RunPlan,
) -> Tree:  # fmt: skip
    """The own models of some clients, pytrees of leaves [S, ...], and the parts of the model that they keep."""
    shared = _inputs(method, (server, {}, turns), fed, key, index)
    return _looked(lambda v, h, *_: (v.tree, h), shared, memory, who, plan)


def _inputs(
    method: Algorithm, of: tuple[Tree, Tree, Number], fed: Federation, key: Array, index: Number
) -> SharedInputs:
    """What all clients' own models are made of: ``of`` is the server's state, held-out examples, newcomers' turns."""
    begun = resolve(method, 0)  # of turns: a rate that falls would leave later newcomers where they are
    return SharedInputs(resolve(method, index), Wire(), (*of, begun), fed, key, index)


def _looked(look: Callable[..., Tree], shared: SharedInputs, memory: Turned, who: Clients, plan: RunPlan) -> Tree:
    """What ``look(v, h, task, last, client, shared)`` finds of clients' own models v, for the task with their own part
    h; as their work in an exchange."""

    def make(shared: SharedInputs) -> Client:
        return functools.partial(_client, look, plan, shared)

    return contribute(make, shared, memory, who, plan)[1].memory


def _client(
    look: Callable[..., Tree], plan: RunPlan, shared: SharedInputs, turned: Turned, client: Clients
) -> tuple[Tree, ClientResult, Counters]:
    server, _, turns, begun = shared.download
    method = shared.method
    model = method.model(server)
    new = turned.last < 0

    def own_key(number: Number) -> Array:
        return jax.random.fold_in(stage_key(shared.key, shared.index, "exchanges"), _OWN_TURN + number)

    def turn(number: Array, own: Tree) -> Tree:
        """A round of this client alone, of which its memory is kept."""
        key = own_key(number)
        alone = Clients(*(leaf[None] for leaf in client))
        alone = alone._replace(weights=jnp.ones_like(alone.weights), data_weights=jnp.ones_like(alone.data_weights))
        state, every = server, begun.exchanges()
        for place, exchange in enumerate(every):
            oracle = oracle_of(client, shared.fed, exchange_key(key, place), shared.index, plan)
            upload, own = exchange.client(decoded((exchange.download or begun.download)(state)), own, oracle)
            if exchange.server is not None and place < len(every) - 1:
                round_ = round_of(alone, shared.index, key, plan)
                state = exchange.server(state, without_marks(decoded(upload)), round_)
        return own

    v, h = method.adapt(model, oracle_of(client, shared.fed, own_key(0), shared.index, plan)), None
    if v is None:
        first = method.init_client(model)
        own = jax.tree.map(lambda fresh, kept: jnp.where(new, fresh, kept), first, turned.own)
        own = jax.lax.fori_loop(0, jnp.where(new, turns, 0), turn, own)
        v, h = method.personal(method.download(server), own), method.own_part(own)
    task = plan.task.bound(shared.fed.frozen if h is None else h)
    nothing = Counters(*(jnp.zeros_like(client.present, jnp.int32) for _ in range(3)))
    return (), ClientResult(look(v, h, task, turned.last, client, shared), (), ()), nothing


class PersonalModels:
    """The clients' own models at the end of a run."""

    def __init__(self, job: "Job", state: State, index: int):
        self._job, self._state, self._index = job, state, index

    @property
    def names(self) -> list[str]:
        """The clients' names, or their numbers."""
        return [*(self._job.census.names or map(str, range(self._job.plan.num_clients)))]

    def numbers(self, names: Sequence[str]) -> np.ndarray:
        """The numbers of clients, by the names that :meth:`fedax.FederatedData.name` gives them, [S].

        Raises:
            ConfigError: the run has no such client.
        """
        own = self._job.census.names or [f"client {i}" for i in range(self._job.plan.num_clients)]
        places = {name: number for number, name in enumerate(own)}
        if others := [name for name in names if name not in places]:
            raise unknown("client", others[0], own)
        return np.array([places[name] for name in names])

    def of(self, client: int | str) -> Tree:
        """The model of a client, by number, or by name as :meth:`numbers` takes it.

        Raises:
            ConfigError: there is no such client.
        """
        if isinstance(client, str):
            client = int(self.numbers([client])[0])
        number = check_count("client", client, 0, self._job.plan.num_clients - 1)
        return jax.tree.map(lambda leaf: leaf[0], self.some(np.array([number])))

    def some(self, ids: np.ndarray) -> Tree:
        """The models of some clients, by their numbers [S]: leaves [S, ...]."""
        number, ids = len(ids), np.resize(ids, 1 << (len(ids) - 1).bit_length())  # few programs
        job = self._job
        who = Clients(*(leaf[ids] for leaf in self._everyone))
        fed = job.fed
        if job.data is not None:  # examples are on the host
            sizes = job.data.sizes[ids]
            rows = np.concatenate([np.arange(n) + at for n, at in zip(sizes, job.data.offsets[ids], strict=True)])
            rows = np.resize(rows, 1 << (len(rows) - 1).bit_length())  # few programs
            fed = fed._replace(examples=jax.tree.map(lambda leaf: leaf[rows], job.data.examples))
            who = who._replace(offsets=np.cumsum([0, *sizes[:-1]]).astype(np.int32))
        memory = jax.tree.map(np.asarray, _rows(self._state.memory, ids))
        server = inner_state(job.hyper.method, self._state.server)
        models = own_models(job, fed, server, memory, who, self._index)
        return jax.tree.map(lambda leaf: leaf[:number], models)

    @functools.cached_property
    def _everyone(self) -> Clients:
        """All clients, in their order."""
        drawn = everyone(self._job, self._index)
        order = np.argsort(np.asarray(drawn.ids))
        return Clients(*(np.asarray(leaf)[order] for leaf in drawn))


def own_models(job: "Job", fed: Federation, server: Tree, memory: Tree, who: Clients, index: int) -> Tree:
    """The whole models of some clients, leaves [S, ...]; arguments as of :func:`evaluated`."""
    plan = job.evaluation.personal
    assert plan is not None
    alone = dataclasses.replace(job.plan.of_clients, mesh=None)
    method, turned = _turned(job.hyper.method, memory)
    v, h = _models(method, fed, job.key, server, turned, who, plan.turns or 0, index, plan=alone)
    return jax.vmap(lambda v, h: job.delivered(Vector(v), h))(v, h)


def _rows(memory: Tree, ids: Array) -> Tree:
    """Rows of the memory of all clients, wherever it is."""
    return memory[ids] if isinstance(memory, ClientMemory) else _taken(memory, np.asarray(ids, np.int32))


@compiled()
def _taken(memory: Tree, ids: Array) -> Tree:
    return jax.tree.map(lambda leaf: leaf[ids], memory)


def inner(method: Algorithm) -> Algorithm:
    """The method inside of :class:`LastTurn`, whose state :func:`inner_state` is."""
    return next(layer.inner for layer in layers_of(method) if isinstance(layer, LastTurn))


def inner_state(method: Algorithm, server: Tree) -> Tree:
    """The part of the server's state of the method inside of :class:`LastTurn`, of which personal models are made."""
    for layer in layers_of(method):
        server = layer.own_state(server)
        if isinstance(layer, LastTurn):
            break
    return server


def _turned(method: Algorithm, memory: Tree) -> tuple[Algorithm, Turned]:
    """The method inside of :class:`LastTurn`, and of clients' memory what that layer keeps.

    What else a run puts around a method, such as compression, is no part of the programs about personal models.
    """
    for layer in layers_of(method):
        if isinstance(layer, LastTurn):
            break
        memory = layer.own_memory(memory)
    return inner(method), memory


_held_blocks: weakref.WeakKeyDictionary[Task, dict[Unknown, int]] = weakref.WeakKeyDictionary()


def _held_block(task: Task, x: Vector, frozen: Tree, examples: Tree, most: int) -> int:
    """:func:`_block` of held-out examples; it is traced once for all evaluations."""
    leaves, structure = jax.tree.flatten((x, frozen, examples))
    form = most, structure, tuple((np.shape(leaf), leaf.dtype) for leaf in leaves)
    known = _held_blocks.setdefault(task, {})
    if form not in known:
        known[form] = _block(functools.partial(_held_out, task.bound(frozen), x), examples, most)
    return known[form]


def _block(values: Callable[[Tree, Array], Tree], examples: Tree, most: int) -> int:
    """How many of these examples are evaluated at a time, of which no client has more than ``most``."""

    def of_some(batch: Tree) -> Tree:
        return values(batch, jnp.ones(jax.tree.leaves(batch)[0].shape[0], bool))

    return min(1 << (most - 1).bit_length(), by_client.at_a_time(of_some, examples))


def _loss(task: Task, v: Vector, batch: Tree, there: Array) -> Array:
    return jnp.sum(jnp.where(there, task.loss(v.tree, batch, None), 0))


def _held_out(task: Task, v: Vector, batch: Tree, there: Array) -> dict[str, Tree]:
    """Of some held-out examples the sums of the loss and of metrics of each, and those of metrics of the whole."""
    each = {name: metric for name, metric in task.metrics.items() if not isinstance(metric, Metric)}
    with each_once():
        found = {"loss": task.loss(v.tree, batch, None)} | {name: of(v.tree, batch) for name, of in each.items()}
        sums: dict[str, Tree] = task.metric_sums(v.tree, batch, there.astype(jnp.int32))
    return {name: jnp.sum(jnp.where(there, values, 0)) for name, values in found.items()} | sums


def row(job: "Job", who: Clients, found: Evaluated, index: int) -> dict[str, float]:
    """The columns of personal models, of all clients.

    ``*_personal``: as those of the shared model, but each example is answered by its client's own model.
    ``turn_age``: the mean, by the weights p_i, of how many rounds ago the clients' last turns were.
    ``newcomers``: how many clients never had one.
    """
    task, plan = job.plan.task, job.evaluation.personal
    assert plan is not None
    weights = np.asarray(who.data_weights, float)
    told = {}
    if found.train is not None:
        told[f"train_loss{PERSONAL}"] = float(np.sum(weights * np.asarray(found.train, float)))
    for part, rows in plan.rows.items():
        assert rows is not None
        total = int(rows.sizes.sum())
        for name, values in found.parts[part].items():
            sums = jax.tree.map(lambda leaf: np.asarray(leaf).sum(0), values)
            metric = task.metrics.get(name)
            labels = job.evaluation.labels[part].get(name, ())
            whole = metric.of_run(sums, labels) if isinstance(metric, Metric) else float(sums) / total
            told[f"{part}_{name}{PERSONAL}"] = whole
    return told | turns(plan, weights, np.asarray(found.last), index)


def turns(plan: PersonalPlan, weights: np.ndarray, last: np.ndarray, index: int) -> dict[str, float]:
    """The columns about clients' turns, where their models have any.

    ``weights``: [N] p; ``last``: [N] the rounds of their last ones, or −1.
    """
    if plan.turns is None:
        return {}
    there = last >= 0
    heard = float(weights[there].sum())
    age = float(np.sum(weights[there] * (index - 1 - last[there]))) / heard if heard else math.nan
    return {"turn_age": age, "newcomers": int((~there).sum())}
