"""What the clients of a round do in one exchange: one client, then all of them in chunks and over the devices."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from fedax.contract.algorithm import Algorithm, Exchange
from fedax.contract.oracle import Oracle
from fedax.contract.types import Array, Tree
from fedax.engine.loop import Clients, Federation, Tally, exchange_key, nobody
from fedax.engine.plan import Plan
from fedax.wire.wire import Wire


class Outside(NamedTuple):
    """All that the clients' work takes from outside, the same on every device; ``key`` is the round's."""

    method: Algorithm
    wire: Wire
    download: Tree
    fed: Federation
    key: Array
    index: Array


class Answer(NamedTuple):
    """What becomes of a client.

    Attributes:
        memory: what it keeps.
        accepted: whether its upload counts; ``()``: it must.
        upload: what it sent, where the server looks at uploads one by one; else ``()``.
    """

    memory: Tree
    accepted: Array
    upload: Tree


Client = Callable[[Tree, Clients], tuple[Tree, Answer, Tally]]
Watch = Callable[[Tree, Tree], None]


def client_program(stage: str, number: int, plan: Plan, watch: Watch | None, outside: Outside) -> Client:
    """``run(memory, client) -> (upload, answer, tally)`` for one client in exchange ``number`` of a stage.

    ``watch`` is called with the upload and the memory while JAX traces them.
    """
    method, wire, download, fed, key, index = outside
    exchange: Exchange = getattr(method, stage)()[number]
    key = exchange_key(key, number)

    def run(memory: Tree, client: Clients) -> tuple[Tree, Answer, Tally]:
        id_ = jnp.minimum(client.ids, plan.num_clients - 1)
        oracle = Oracle(
            plan.task.bound(fed.frozen),
            fed.examples,
            offset=client.offsets,
            size=client.sizes,
            max_size=plan.max_size,
            batch_size=plan.batch_size,
            epochs=plan.epochs,
            steps=client.steps if plan.steps is None else plan.steps,
            round=index,
            start=index * plan.max_steps,
            key=jax.random.fold_in(key, id_),
            round_key=key,
            client=id_,
            num_clients=plan.num_clients,
        )
        upload, memory = exchange.client(download, memory, oracle)
        if watch is not None:
            watch(upload, memory)
        upload, accepted = wire.sent(upload, id_, plan.num_clients, download)
        upload, shown = ((), upload) if wire.gathers else (upload, ())
        there = client.present.astype(jnp.int32)
        done = Tally(jnp.zeros_like(there), oracle.local_steps * there, oracle.gradients * there)
        return upload, Answer(memory, accepted, shown), done

    return run


def contribute(
    make: Callable[[Outside], Client], outside: Outside, memory: Tree, clients: Clients, plan: Plan
) -> tuple[Tree, Answer, Tally]:
    """The weighted sum of the clients' uploads, what becomes of each, and what they did: over all devices."""
    if plan.mesh is None:
        return _in_chunks(make(outside), outside.wire, memory, clients, plan)
    size, (axis,) = clients.ids.shape[0], plan.mesh.axis_names
    at = None if plan.steps is not None else _deal(clients.steps, plan)  # else all stay where they are
    whole = -(-size // plan.devices) * plan.devices if at is None else at.shape[0]
    xs = _padded(memory, clients, whole, plan)
    if at is not None:
        order = jnp.zeros_like(at).at[at].set(jnp.arange(whole))
        xs = jax.tree.map(lambda leaf: leaf[order], xs)

    def local(outside: Outside, memory: Tree, clients: Clients) -> tuple[tuple[Tree, Tally], Answer]:
        total, answers, done = _in_chunks(make(outside), outside.wire, memory, clients, plan)
        return jax.lax.psum((total, done), axis), answers

    # Without the check of replication: with it, the gradient at a model that all devices have in common would be summed
    # over the devices in every local step.
    over = jax.shard_map(
        local, mesh=plan.mesh, in_specs=(P(), P(axis), P(axis)), out_specs=(P(), P(axis)), check_vma=False
    )
    (total, done), answers = over(outside, *xs)
    return total, jax.tree.map(lambda leaf: leaf[:size] if at is None else leaf[at[:size]], answers), done


def alone(
    make: Callable[[Outside], Client], outside: Outside, memory: Tree, at: Array, client: Clients, plan: Plan
) -> tuple[Tree, Answer, Tally]:
    """As :func:`contribute`, of one client, [1], whose row of ``memory`` is at a position; the other rows stay."""
    total, answer, done = _in_chunks(
        make(outside), outside.wire, jax.tree.map(lambda leaf: leaf[at][None], memory), client, plan
    )
    there = client.present[0]
    kept = jax.tree.map(lambda all_, own: all_.at[at].set(jnp.where(there, own[0], all_[at])), memory, answer.memory)
    return total, answer._replace(memory=kept), done


def _in_chunks(client: Client, wire: Wire, memory: Tree, clients: Clients, plan: Plan) -> tuple[Tree, Answer, Tally]:
    """All clients of one device: chunk after chunk, those of a chunk side by side."""
    size = clients.ids.shape[0]
    chunk = min(plan.chunk_size, size)
    chunks = -(-size // chunk)
    xs = _padded(memory, clients, chunks * chunk, plan)

    def one(memory: Tree, client_: Clients) -> tuple[Tree, Answer, Tally]:
        upload, answer, done = client(memory, client_)
        return wire.weighted(upload, client_.weights, client_.data_weights), answer, done

    def many(memory: Tree, clients: Clients) -> tuple[Tree, Answer, Tally]:
        upload, answers, done = jax.vmap(client)(memory, clients)
        total = wire.weighted(upload, clients.weights, clients.data_weights)
        total = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0, dtype=leaf.dtype), total)
        return total, answers, jax.tree.map(lambda leaf: jnp.sum(leaf, dtype=jnp.int32), done)

    if chunks == 1 and chunk > 1:
        return many(*xs)
    # One client alone runs without a batch axis: batched products of batch one are slower than plain ones. The jit is
    # there so that the clients' work is traced once, for the shapes of the sums and for the loop.
    run = jax.jit(one if chunk == 1 else many)
    if chunk > 1:
        xs = jax.tree.map(lambda leaf: leaf.reshape(chunks, chunk, *leaf.shape[1:]), xs)

    def step(total: Tree, x: Tree) -> tuple[Tree, Answer]:
        part, answers, done = run(*x)
        return jax.tree.map(jnp.add, total, (part, done)), answers

    part, _, done = jax.eval_shape(run, *jax.tree.map(lambda leaf: leaf[0], xs))
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (part, done))
    (total, done), answers = jax.lax.scan(step, zero, xs)
    if chunk > 1:
        answers = jax.tree.map(lambda leaf: leaf.reshape(chunks * chunk, *leaf.shape[2:]), answers)
    return total, jax.tree.map(lambda leaf: leaf[:size], answers), done


def _deal(steps: Array, plan: Plan) -> Array:
    """Where each client goes, one device after another; [n] with n ≥ S, for the last may be empty.

    Clients are sorted by their steps, the most first. Chunks of neighbours, whose steps are alike, go one by one to the
    device that has the least to do yet; all get as many.
    """
    each = -(-steps.shape[0] // plan.devices)
    width = min(plan.chunk_size, each)
    number = -(-each // width)
    slowest = jnp.zeros(number * width * plan.devices, steps.dtype).at[: steps.shape[0]].set(steps)[::width]

    def give(given: tuple[Array, Array], slow: Array) -> tuple[tuple[Array, Array], Array]:
        load, chunks = given
        to = jnp.argmin(jnp.where(chunks < number, load, jnp.iinfo(load.dtype).max))
        return (load.at[to].add(slow), chunks.at[to].add(1)), to * number + chunks[to]

    nothing = jnp.zeros(plan.devices, steps.dtype)
    _, chunk = jax.lax.scan(give, (nothing, nothing), slowest)
    return (chunk[:, None] * width + jnp.arange(width)[None]).reshape(-1)


def _padded(memory: Tree, clients: Clients, size: int, plan: Plan) -> tuple[Tree, Clients]:
    """Memory and clients with empty places at the end, [size]."""
    extra = size - clients.ids.shape[0]
    if not extra:
        return memory, clients
    last = lambda leaf: jnp.concatenate([leaf, jnp.broadcast_to(leaf[-1:], (extra, *leaf.shape[1:]))])  # noqa: E731
    fill = [jnp.full(extra, value, leaf.dtype) for leaf, value in zip(clients, nobody(plan.num_clients), strict=True)]
    return jax.tree.map(last, memory), Clients(*map(jnp.concatenate, zip(clients, fill, strict=True)))
