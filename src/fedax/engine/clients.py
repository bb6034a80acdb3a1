"""The clients' work in one exchange: of one client, and of all of them in chunks and over the devices."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from fedax.contract.algorithm import Algorithm, Exchange
from fedax.contract.oracle import Oracle, OracleCalls
from fedax.contract.types import Array, Number, Tree
from fedax.engine.devices import placed_like
from fedax.engine.loop import Clients, Counters, Federation, empty_place, exchange_key
from fedax.engine.plan import RunPlan
from fedax.wire.sums import along, by_kind
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


class UploadBuffer(NamedTuple):
    """Uploads under way or waiting for a step of a server that does not wait.

    Attributes:
        uploads: leaves [devices, slots + 1, ...]. Each device has a box, in which is what its own clients sent; the
            last slot is for empty places.
        device: [slots + 1] in whose box the upload of a slot is.
        accepted: [slots + 1] whether it counts, or ``()``.
    """

    uploads: Tree
    device: Array
    accepted: Tree

    def kept(self) -> "UploadBuffer":
        """The buffer on the host, one for all devices, leaves [1, slots + 1, ...]."""
        device = np.asarray(self.device)
        one = lambda leaf: np.asarray(leaf)[device, np.arange(len(device))][None]  # noqa: E731
        return UploadBuffer(jax.tree.map(one, self.uploads), device, jax.tree.map(np.asarray, self.accepted))

    def filled(self, kept: "UploadBuffer") -> "UploadBuffer":
        """The buffer filled with saved uploads, of as many devices or others."""
        devices = jax.tree.leaves(self.uploads)[0].shape[0]
        every = jax.tree.map(lambda leaf, like: np.broadcast_to(leaf, like.shape), kept.uploads, self.uploads)
        box = UploadBuffer(every, kept.device % devices, kept.accepted)
        return jax.tree.map(placed_like, box, self)


class BufferUse(NamedTuple):
    """What an exchange does with a box: the uploads of its clients go in, and after that those of a step come out.

    Attributes:
        box: the box.
        slots: [S] where the uploads of the exchange's clients go; -1 at an empty place.
        heard: the clients of the step, [K].
        heard_slots: [K] where their uploads are.
    """

    box: UploadBuffer
    slots: Array
    heard: Clients
    heard_slots: Array


class BufferOutput(NamedTuple):
    """The box after an exchange, and what came out of it.

    Attributes:
        box: the box.
        total: Σ ω_i v_i and Σ p_i change_i of what came out; ``()`` where the server looks at uploads one by one.
        uploads: these, leaves [K, ...]; else ``()``.
    """

    box: UploadBuffer
    total: Tree
    uploads: Tree


Client = Callable[[Tree, Clients], tuple[Tree, ClientResult, Counters]]
Watch = Callable[[Tree, Tree, OracleCalls], None]


def client_program(stage: str, number: int, plan: RunPlan, watch: Watch | None, shared: SharedInputs) -> Client:
    """``run(memory, client) -> (upload, result, counters)`` for one client in exchange ``number`` of a stage.

    ``watch`` is called with the upload, the memory and what was asked of the oracle while JAX traces them.
    """
    method, wire, download, fed, key, index = shared
    exchange: Exchange = getattr(method, stage)()[number]
    key = exchange_key(key, number)

    def run(memory: Tree, client: Clients) -> tuple[Tree, ClientResult, Counters]:
        oracle = oracle_of(client, fed, key, index, plan)
        upload, memory = exchange.client(download, memory, oracle)
        if watch is not None:
            watch(upload, memory, oracle.asked)
        upload, accepted = wire.sent(upload, oracle.client, plan.num_clients, download)
        upload, gathered = ((), upload) if wire.gathers else (upload, ())
        present = client.present.astype(jnp.int32)
        counters = Counters(jnp.zeros_like(present), oracle.local_steps * present, oracle.gradients * present)
        return upload, ClientResult(memory, accepted, gathered), counters

    return run


def oracle_of(client: Clients, fed: Federation, key: Array, index: Array, plan: RunPlan) -> Oracle:
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
        unbound=plan.task,
    )


def contribute(
    make: Callable[[SharedInputs], Client],
    shared: SharedInputs,
    memory: Tree,
    clients: Clients,
    plan: RunPlan,
    post: BufferUse | None = None,
) -> tuple[Tree, ClientResult, Counters]:
    """The weighted sum of the clients' uploads, the result of each, and the counters of their work, over all devices.

    With a ``post`` the uploads go into its box, and :class:`BufferOutput` replaces the sum.
    """
    if plan.mesh is None:
        return _on_device(make(shared), shared.wire, memory, clients, plan, post)
    size, (axis,) = clients.ids.shape[0], plan.mesh.axis_names
    places = None if plan.steps is not None else _deal(clients.steps, plan)  # else all stay where they are
    padded_size = -(-size // plan.devices) * plan.devices if places is None else places.shape[0]
    each = padded_size // plan.devices
    xs = _padded(memory, clients, () if post is None else post.slots, padded_size, plan)
    if places is not None:
        order = jnp.zeros_like(places).at[places].set(jnp.arange(padded_size))
        xs = jax.tree.map(lambda leaf: leaf[order], xs)
    memory, clients, slots = xs
    uploads: Tree = ()
    if post is not None:
        uploads, device = post.box.uploads, jnp.asarray(post.box.device).at[slots].set(jnp.arange(padded_size) // each)
        post = post._replace(box=post.box._replace(uploads=(), device=device), slots=slots)

    def local(
        shared: SharedInputs, post: BufferUse | None, memory: Tree, clients: Clients, uploads: Tree
    ) -> tuple[tuple[Tree, Counters], ClientResult, Tree]:
        here = jax.lax.axis_index(axis)
        if post is not None:  # this device's part
            slots = jax.lax.dynamic_slice_in_dim(post.slots, here * each, each)
            post = post._replace(box=post.box._replace(uploads=uploads), slots=slots)
        total, results, counters = _on_device(make(shared), shared.wire, memory, clients, plan, post, here)
        if post is not None:
            uploads, total = total.box.uploads, total[1:]
        return jax.lax.psum((total, counters), axis), results, uploads

    # Without the check of replication: with it, the gradient at a model that all devices have in common would be summed
    # over the devices in every local step.
    specs = (P(), P(axis), P(axis))
    spread = jax.shard_map(local, mesh=plan.mesh, in_specs=(P(), *specs, P(axis)), out_specs=specs, check_vma=False)
    (total, counters), results, uploads = spread(shared, post, memory, clients, uploads)
    if post is not None:
        total = BufferOutput(post.box._replace(uploads=uploads), *total)
    return total, jax.tree.map(lambda leaf: leaf[:size] if places is None else leaf[places[:size]], results), counters


def _on_device(
    client: Client,
    wire: Wire,
    memory: Tree,
    clients: Clients,
    plan: RunPlan,
    post: BufferUse | None,
    device: Number = 0,
) -> tuple[Tree, ClientResult, Counters]:
    """One device's part of :func:`contribute`: its share of the sum."""
    if post is None:
        total, _, results, counters = _in_chunks(client, wire, memory, clients, plan)
        return total, results, counters
    rows = jax.tree.map(lambda leaf: leaf[0], post.box.uploads)
    _, rows, results, counters = _in_chunks(client, wire, memory, clients, plan, rows, post.slots)
    box = post.box._replace(uploads=jax.tree.map(lambda leaf: leaf[None], rows))
    # Of a client that does not count 0 is read: 0 times what is not finite is no number.
    counts = (box.device[post.heard_slots] == device) & (post.heard.data_weights > 0)
    slots = jnp.where(counts, post.heard_slots, -1)

    def read(counts: Array, slots: Array) -> Tree:
        return jax.tree.map(lambda leaf: jnp.where(along(counts, leaf[slots]), leaf[slots], 0), rows)

    if dataclasses.replace(wire, apart=False).gathers:
        return BufferOutput(box, (), read(counts, slots)), results, counters
    if jax.default_backend() != "cpu":
        return BufferOutput(box, summed(post.heard, read(counts, slots)), ()), results, counters

    def add(total: Tree, x: Tree) -> tuple[Tree, None]:
        one, counts, slot = jax.tree.map(lambda leaf: leaf[None], x)
        return jax.tree.map(jnp.add, total, summed(one, read(counts, slot))), None

    form = jax.eval_shape(lambda: summed(post.heard, read(counts, slots)))
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), form)
    # A CPU reads eight at a time where they are: to gather them all first took up to three times as long.
    total, _ = jax.lax.scan(add, zero, (post.heard, counts, slots), unroll=8)
    return BufferOutput(box, total, ()), results, counters


def summed(clients: Clients, uploads: Tree) -> Tree:
    """Σ ω_i v_i and Σ p_i change_i of uploads that are kept one by one, leaves [K, ...]."""
    return by_kind(
        lambda leaf: jnp.tensordot(clients.weights.astype(leaf.dtype), leaf, 1, precision="highest"),
        lambda leaf: jnp.tensordot(clients.data_weights.astype(leaf.dtype), leaf, 1, precision="highest"),
        uploads,
    )


def alone(
    make: Callable[[SharedInputs], Client],
    shared: SharedInputs,
    memory: Tree,
    at: Array,
    client: Clients,
    plan: RunPlan,
) -> tuple[Tree, ClientResult, Counters]:
    """As :func:`contribute`, of one client, [1], whose row of ``memory`` is at a position; the other rows stay."""
    total, _, result, counters = _in_chunks(
        make(shared), shared.wire, jax.tree.map(lambda leaf: leaf[at][None], memory), client, plan
    )
    present = client.present[0]
    kept = jax.tree.map(lambda all_, new: all_.at[at].set(jnp.where(present, new[0], all_[at])), memory, result.memory)
    return total, result._replace(memory=kept), counters


def _in_chunks(
    client: Client, wire: Wire, memory: Tree, clients: Clients, plan: RunPlan, rows: Tree = (), slots: Tree = ()
) -> tuple[Tree, Tree, ClientResult, Counters]:
    """All clients of one device: chunk after chunk, those of a chunk side by side; ``rows`` with their uploads, too."""
    size = clients.ids.shape[0]
    chunk = min(plan.chunk_size, size)
    chunks = -(-size // chunk)
    xs = _padded(memory, clients, slots, chunks * chunk, plan)

    def one(memory: Tree, client_: Clients) -> tuple[Tree, ClientResult, Counters]:
        upload, result, counters = client(memory, client_)
        return wire.weighted(upload, client_.weights, client_.data_weights), result, counters

    def many(memory: Tree, clients: Clients) -> tuple[Tree, ClientResult, Counters]:
        upload, results, counters = jax.vmap(client)(memory, clients)
        total = wire.weighted(upload, clients.weights, clients.data_weights)
        total = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0, dtype=leaf.dtype), total)
        return total, results, jax.tree.map(lambda leaf: jnp.sum(leaf, dtype=jnp.int32), counters)

    if chunks == 1 and chunk > 1:
        total, results, counters = many(*xs[:2])
        return total, *_put(rows, xs[2], results), counters
    # One client alone runs without a batch axis: batched products of batch one are slower than plain ones. The jit is
    # there so that the clients' work is traced once, for the shapes of the sums and for the loop.
    run = jax.jit(one if chunk == 1 else many)
    if chunk > 1:
        xs = jax.tree.map(lambda leaf: leaf.reshape(chunks, chunk, *leaf.shape[1:]), xs)

    def step(carry: Tree, x: Tree) -> tuple[Tree, ClientResult]:
        total, rows = carry
        part, results, counters = run(*x[:2])
        rows, results = _put(rows, x[2], results)
        return (jax.tree.map(jnp.add, total, (part, counters)), rows), results

    part, _, counters = jax.eval_shape(run, *jax.tree.map(lambda leaf: leaf[0], xs[:2]))
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (part, counters))
    ((total, counters), rows), results = jax.lax.scan(step, (zero, rows), xs)
    if chunk > 1:
        results = jax.tree.map(lambda leaf: leaf.reshape(chunks * chunk, *leaf.shape[2:]), results)
    return total, rows, jax.tree.map(lambda leaf: leaf[:size], results), counters


def _put(rows: Tree, slots: Tree, results: ClientResult) -> tuple[Tree, ClientResult]:
    """The rows of a box with the uploads of some clients, or of one; the results are then without."""
    if isinstance(slots, tuple):
        return rows, results
    rows = jax.tree.map(lambda all_, new: all_.at[slots].set(new), rows, results.upload)
    return rows, results._replace(upload=())


def _deal(steps: Array, plan: RunPlan) -> Array:
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


def _padded(memory: Tree, clients: Clients, slots: Tree, size: int, plan: RunPlan) -> tuple[Tree, Clients, Tree]:
    """Memory, clients and their slots with empty places at the end, [size]."""
    extra = size - clients.ids.shape[0]
    if not extra:
        return memory, clients, slots
    last = lambda leaf: jnp.concatenate([leaf, jnp.broadcast_to(leaf[-1:], (extra, *leaf.shape[1:]))])  # noqa: E731
    fill = [
        jnp.full(extra, value, leaf.dtype) for leaf, value in zip(clients, empty_place(plan.num_clients), strict=True)
    ]
    none = lambda leaf: jnp.concatenate([leaf, jnp.full(extra, -1, leaf.dtype)])  # noqa: E731
    padded = Clients(*map(jnp.concatenate, zip(clients, fill, strict=True)))
    return jax.tree.map(last, memory), padded, jax.tree.map(none, slots)
