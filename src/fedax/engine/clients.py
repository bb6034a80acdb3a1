"""The clients' work in one exchange: of one client, and of all of them in chunks and over the devices."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from fedax.contract.algorithm import Algorithm, Exchange
from fedax.contract.oracle import Oracle, OracleCalls
from fedax.contract.types import Array, Number, Tree
from fedax.engine.loop import Clients, Federation, Tally, empty_place, exchange_key
from fedax.engine.plan import Plan
from fedax.wire.wire import Wire


class SharedInputs(NamedTuple):
    """The inputs that all clients of an exchange share, the same on every device; ``key`` is the round's."""

    method: Algorithm
    wire: Wire
    download: Tree
    fed: Federation
    key: Array
    index: Number


class ClientResult(NamedTuple):
    """What one client's work gives, besides the upload that is summed.

    Attributes:
        memory: its new memory.
        accepted: whether its upload counts; ``()``: it does.
        upload: its upload, where the server looks at uploads one by one; else ``()``.
    """

    memory: Tree
    accepted: Tree
    upload: Tree


Client = Callable[[Tree, Clients], tuple[Tree, ClientResult, Tally]]
Watch = Callable[[Tree, Tree, OracleCalls], None]


def client_program(stage: str, number: int, plan: Plan, watch: Watch | None, shared: SharedInputs) -> Client:
    """``run(memory, client) -> (upload, result, tally)`` for one client in exchange ``number`` of a stage.

    ``watch`` is called with the upload, the memory and what was asked of the oracle while JAX traces them.
    """
    method, wire, download, fed, key, index = shared
    exchange: Exchange = getattr(method, stage)()[number]
    key = exchange_key(key, number)

    def run(memory: Tree, client: Clients) -> tuple[Tree, ClientResult, Tally]:
        oracle = oracle_of(client, fed, key, index, plan)
        upload, memory = exchange.client(download, memory, oracle)
        if watch is not None:
            watch(upload, memory, oracle.asked)
        upload, accepted = wire.sent(upload, oracle.client, plan.num_clients, download)
        upload, gathered = ((), upload) if wire.gathers else (upload, ())
        present = client.present.astype(jnp.int32)
        tally = Tally(jnp.zeros_like(present), oracle.local_steps * present, oracle.gradients * present)
        return upload, ClientResult(memory, accepted, gathered), tally

    return run


def oracle_of(client: Clients, fed: Federation, key: Array, index: Array, plan: Plan) -> Oracle:
    """What one client may ask of its data in an exchange; ``key`` is the exchange's."""
    id_ = jnp.minimum(client.ids, plan.num_clients - 1)
    return Oracle(
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


def contribute(
    make: Callable[[SharedInputs], Client], shared: SharedInputs, memory: Tree, clients: Clients, plan: Plan
) -> tuple[Tree, ClientResult, Tally]:
    """The weighted sum of the clients' uploads, the result of each, and the tally of their work, over all devices."""
    if plan.mesh is None:
        return _in_chunks(make(shared), shared.wire, memory, clients, plan)
    size, (axis,) = clients.ids.shape[0], plan.mesh.axis_names
    places = None if plan.steps is not None else _deal(clients.steps, plan)  # else all stay where they are
    padded_size = -(-size // plan.devices) * plan.devices if places is None else places.shape[0]
    xs = _padded(memory, clients, padded_size, plan)
    if places is not None:
        order = jnp.zeros_like(places).at[places].set(jnp.arange(padded_size))
        xs = jax.tree.map(lambda leaf: leaf[order], xs)

    def local(shared: SharedInputs, memory: Tree, clients: Clients) -> tuple[tuple[Tree, Tally], ClientResult]:
        total, results, tally = _in_chunks(make(shared), shared.wire, memory, clients, plan)
        return jax.lax.psum((total, tally), axis), results

    # Without the check of replication: with it, the gradient at a model that all devices have in common would be summed
    # over the devices in every local step.
    spread = jax.shard_map(
        local, mesh=plan.mesh, in_specs=(P(), P(axis), P(axis)), out_specs=(P(), P(axis)), check_vma=False
    )
    (total, tally), results = spread(shared, *xs)
    return total, jax.tree.map(lambda leaf: leaf[:size] if places is None else leaf[places[:size]], results), tally


def alone(
    make: Callable[[SharedInputs], Client], shared: SharedInputs, memory: Tree, at: Array, client: Clients, plan: Plan
) -> tuple[Tree, ClientResult, Tally]:
    """As :func:`contribute`, of one client, [1], whose row of ``memory`` is at a position; the other rows stay."""
    total, result, tally = _in_chunks(
        make(shared), shared.wire, jax.tree.map(lambda leaf: leaf[at][None], memory), client, plan
    )
    present = client.present[0]
    kept = jax.tree.map(lambda all_, new: all_.at[at].set(jnp.where(present, new[0], all_[at])), memory, result.memory)
    return total, result._replace(memory=kept), tally


def _in_chunks(
    client: Client, wire: Wire, memory: Tree, clients: Clients, plan: Plan
) -> tuple[Tree, ClientResult, Tally]:
    """All clients of one device: chunk after chunk, those of a chunk side by side."""
    size = clients.ids.shape[0]
    chunk = min(plan.chunk_size, size)
    chunks = -(-size // chunk)
    xs = _padded(memory, clients, chunks * chunk, plan)

    def one(memory: Tree, client_: Clients) -> tuple[Tree, ClientResult, Tally]:
        upload, result, tally = client(memory, client_)
        return wire.weighted(upload, client_.weights, client_.data_weights), result, tally

    def many(memory: Tree, clients: Clients) -> tuple[Tree, ClientResult, Tally]:
        upload, results, tally = jax.vmap(client)(memory, clients)
        total = wire.weighted(upload, clients.weights, clients.data_weights)
        total = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0, dtype=leaf.dtype), total)
        return total, results, jax.tree.map(lambda leaf: jnp.sum(leaf, dtype=jnp.int32), tally)

    if chunks == 1 and chunk > 1:
        return many(*xs)
    # One client alone runs without a batch axis: batched products of batch one are slower than plain ones. The jit is
    # there so that the clients' work is traced once, for the shapes of the sums and for the loop.
    run = jax.jit(one if chunk == 1 else many)
    if chunk > 1:
        xs = jax.tree.map(lambda leaf: leaf.reshape(chunks, chunk, *leaf.shape[1:]), xs)

    def step(total: Tree, x: Tree) -> tuple[Tree, ClientResult]:
        part, results, tally = run(*x)
        return jax.tree.map(jnp.add, total, (part, tally)), results

    part, _, tally = jax.eval_shape(run, *jax.tree.map(lambda leaf: leaf[0], xs))
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (part, tally))
    (total, tally), results = jax.lax.scan(step, zero, xs)
    if chunk > 1:
        results = jax.tree.map(lambda leaf: leaf.reshape(chunks * chunk, *leaf.shape[2:]), results)
    return total, jax.tree.map(lambda leaf: leaf[:size], results), tally


def _deal(steps: Array, plan: Plan) -> Array:
    """The place of each client, counted over the devices in turn; [n] with n ≥ S, as the last places may be empty.

    Clients are sorted by their steps, the most first. Chunks of neighbours, whose steps are alike, go one by one to the
    device with the least work so far; all devices get equally many.
    """
    per_device = -(-steps.shape[0] // plan.devices)
    width = min(plan.chunk_size, per_device)
    quota = -(-per_device // width)
    slowest = jnp.zeros(quota * width * plan.devices, steps.dtype).at[: steps.shape[0]].set(steps)[::width]

    def assign(so_far: tuple[jax.Array, jax.Array], steps_: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        load, chunks = so_far
        device = jnp.argmin(jnp.where(chunks < quota, load, jnp.iinfo(load.dtype).max))
        return (load.at[device].add(steps_), chunks.at[device].add(1)), device * quota + chunks[device]

    nothing = jnp.zeros(plan.devices, steps.dtype)
    _, chunk = jax.lax.scan(assign, (nothing, nothing), slowest)
    return (chunk[:, None] * width + jnp.arange(width)[None]).reshape(-1)


def _padded(memory: Tree, clients: Clients, size: int, plan: Plan) -> tuple[Tree, Clients]:
    """Memory and clients with empty places at the end, [size]."""
    extra = size - clients.ids.shape[0]
    if not extra:
        return memory, clients
    last = lambda leaf: jnp.concatenate([leaf, jnp.broadcast_to(leaf[-1:], (extra, *leaf.shape[1:]))])  # noqa: E731
    fill = [
        jnp.full(extra, value, leaf.dtype) for leaf, value in zip(clients, empty_place(plan.num_clients), strict=True)
    ]
    return jax.tree.map(last, memory), Clients(*map(jnp.concatenate, zip(clients, fill, strict=True)))
