"""THE round: every method, every mode of running, goes through it."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedax.contract.algorithm import Algorithm, Change, Exchange, Round
from fedax.contract.oracle import Oracle
from fedax.contract.schedule import resolve
from fedax.contract.vector import Vector
from fedax.errors import ConfigError
from fedax.federation.participation import Cohort, Full, Participation, left
from fedax.federation.work import Work
from fedax.tasks.task import Task
from fedax.wire.averages import Aggregator, Faults, Guard, along, scaled

# Branches of the tree of random keys; each number is folded into the key above it.
_COHORT, _WORK, _SERVER, _ONE, _EXCHANGE = range(5)


@dataclass(frozen=True)
class Plan:
    """What is fixed before a run is compiled.

    Attributes:
        task: what is learned.
        num_clients: N.
        max_size: the largest n_i.
        batch_size: B, or ``None`` for all local data.
        epochs: whether minibatches run through permutations.
        steps: τ where it is the same for all clients in all rounds, else ``None``.
        max_steps: the most steps that a client takes.
        chunk_size: clients that run side by side, on each device.
        full: whether all clients take part in every round.
        mesh: the devices over which cohorts are spread, along its only axis; ``None``: there is one.
        missing: why a round may lack some of the clients, or ``None``.
        counts: whether the weights of those that are left grow by their number, or by their weight.
        may_fail: whether nobody may be left of a cohort.
        guard: which uploads count; ``None``: all.
        aggregator: what stands in the place of the mean; ``None``: nothing.
        faulty: clients that send something else, in order, and what: ``faults.send``.
    """

    task: Task
    num_clients: int
    max_size: int
    batch_size: int | None
    epochs: bool
    steps: int | None
    max_steps: int
    chunk_size: int
    full: bool
    mesh: Mesh | None = None
    missing: str | None = None
    counts: bool = False
    may_fail: bool = False
    guard: Guard | None = None
    aggregator: Aggregator | None = None
    faulty: tuple[tuple[int, ...], Faults] | None = None

    @property
    def devices(self) -> int:
        """How many there are."""
        return 1 if self.mesh is None else self.mesh.size

    @property
    def gathers(self) -> bool:
        """Whether the server looks at the uploads one by one."""
        return self.aggregator is not None and self.aggregator.gathers

    @property
    def stops(self) -> bool:
        """Whether the run ends where an upload is left out."""
        return self.guard is not None and self.guard.stop

    @property
    def watched(self) -> bool:
        """Whether clients may be left out, or rounds be skipped."""
        return self.may_fail or self.guard is not None


class Federation(NamedTuple):
    """The data of all clients on the device: pooled examples, and [N] offsets, sizes and weights.

    ``examples`` is ``None`` where they come to the device cohort by cohort.
    """

    examples: Any
    offsets: Any
    sizes: Any
    weights: Any


class Losses(NamedTuple):
    """How often the uploads of each client were left out, [N], and how many rounds were skipped."""

    left_out: Any
    skipped: Any


class State(NamedTuple):
    """What goes from round to round: the server's state, and the memory of all N clients, leaves [N, ...].

    ``losses``: what was lost, :class:`Losses`; ``()`` where nothing can be.
    """

    server: Any
    memory: Any
    losses: Any = ()


class Tally(NamedTuple):
    """What was done: clients that took part, local steps, minibatch gradients."""

    clients: Any
    local_steps: Any
    gradients: Any


class Traffic(NamedTuple):
    """Bytes of one exchange for each client that takes part; ``one``: a single client of the cohort does."""

    down: int
    up: int
    one: bool


def prepare(
    algorithm: Algorithm, work: Work, fed: Federation, key: Any, x: Any, plan: Plan, ledger: list[Traffic] | None = None
) -> tuple[State, Tally]:
    """Server state and client memory at round 0, after the method's warm-up over all clients."""
    server, row = first_state(algorithm, x)
    memory = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (plan.num_clients, *leaf.shape)), row)
    state, tally = State(server, memory, no_losses(plan)), _nothing()
    method = resolve(algorithm, 0)
    if method.warmup():
        state, tally = _exchanges("warmup", method, work, Full(), fed, warmup_key(key), state, 0, plan, ledger)
    return settle(state, plan), tally


def first_state(algorithm: Algorithm, x: Any) -> tuple[Any, Any]:
    """The server's state, and the memory of any one client, before everything."""
    method = resolve(algorithm, 0)
    # Strong types: a Python number's weak one would change after the first rounds, and compile them a second time.
    strong = lambda tree: jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), tree)  # noqa: E731
    return strong(method.init(x)), strong(method.init_client(x))


def no_losses(plan: Plan) -> Any:
    """Before everything."""
    return Losses(jnp.zeros(plan.num_clients, jnp.int32), jnp.zeros((), jnp.int32)) if plan.watched else ()


def warmup_key(key: Any) -> Any:
    """The warm-up has a key that no round has: rounds fold in their index, which is never the largest integer."""
    return jax.random.fold_in(key, jnp.iinfo(jnp.int32).max)


def server_key(key: Any) -> Any:
    """The server's, in a round whose key is ``key``."""
    return jax.random.fold_in(key, _SERVER)


def settle(state: State, plan: Plan) -> State:
    """Where the state lives between rounds: the server's on every device; memory where its client's work is, if known.

    Left to the compiler, it might be elsewhere after the first rounds, and the next ones be compiled anew.
    """
    if plan.mesh is None:
        return state
    everywhere = NamedSharding(plan.mesh, P())
    by_client = NamedSharding(plan.mesh, P(*plan.mesh.axis_names))
    own = by_client if plan.full and plan.num_clients % plan.devices == 0 else everywhere
    put = jax.lax.with_sharding_constraint
    return State(
        jax.tree.map(lambda leaf: put(leaf, everywhere), state.server),
        jax.tree.map(lambda leaf: put(leaf, own), state.memory),
        jax.tree.map(lambda leaf: put(leaf, everywhere), state.losses),
    )


def one_round(
    algorithm: Algorithm,
    work: Work,
    participation: Participation,
    fed: Federation,
    key: Any,
    state: State,
    index: Any,
    plan: Plan,
    ledger: list[Traffic] | None = None,
) -> tuple[State, Tally]:
    """Round ``index`` of ``algorithm``: draw the cohort, run its exchanges, keep the cohort's memory.

    ``key`` is the run's: every random number is a function of it, the round, the exchange, the client and the step.
    While JAX traces, the bytes of each exchange are appended to ``ledger``.
    """
    method = resolve(algorithm, index)
    key = jax.random.fold_in(key, index)
    return _exchanges("exchanges", method, work, participation, fed, key, state, index, plan, ledger)


class Places(NamedTuple):
    """The cohort, place by place: leaves [S].

    Attributes:
        ids, present: who is there, if anybody.
        weights, data_weights: ω_i and p_i.
        steps: τ_i.
        offsets, sizes: where in the pool a client's examples are.
    """

    ids: Any
    weights: Any
    data_weights: Any
    steps: Any
    present: Any
    offsets: Any
    sizes: Any


class Answer(NamedTuple):
    """What becomes of a client: its memory; whether its upload counts, ``()`` if it must; the upload, if looked at."""

    memory: Any
    fine: Any
    upload: Any


def weighing(places: Places, good: Any, plan: Plan) -> Places:
    """Without the weights of those that a guard has left out."""
    if plan.guard is None:
        return places
    counts = lambda weights: jnp.where(good, weights, 0)  # noqa: E731
    return places._replace(weights=counts(places.weights), data_weights=counts(places.data_weights))


def empty_place(plan: Plan) -> Places:
    """A place that nobody has."""
    return Places(plan.num_clients, 0, 0, 0, False, 0, 1)


def _exchanges(
    stage: str,
    method: Algorithm,
    work: Work,
    participation: Participation,
    fed: Federation,
    key: Any,
    state: State,
    index: Any,
    plan: Plan,
    ledger: list[Traffic] | None,
) -> tuple[State, Tally]:
    """The exchanges of a stage, the name of a method's own: "exchanges" or "warmup"."""
    places, round_ = gathering(work, participation, fed, key, index, plan)
    full = isinstance(participation, Full)
    # Under full participation memory is taken and put back whole, in the order of the places.
    memory = before = jax.tree.map(lambda leaf: leaf.at[places.ids].get(mode="clip"), state.memory)
    server, tally = state.server, _nothing()
    good, failed = places.present, jnp.zeros((), bool)
    sent: list[Any] = []
    for number, exchange in enumerate(getattr(method, stage)()):
        if exchange.who not in ("cohort", "one"):
            raise ConfigError("who", exchange.who, "an exchange is with 'cohort' or with 'one'")
        download = (exchange.download or method.download)(server)
        wire: dict[str, int] = {}
        around = (method, download, fed, key, index)
        make = functools.partial(client_of, stage, number, wire, plan)
        if exchange.who == "one":
            at = chosen(places, key)
            total, answers, done = _one(make(around), memory, places, at)
            if plan.guard is not None:
                good, failed = good.at[at].set(good[at] & answers.fine), failed | ~answers.fine
        else:
            total, answers, done = spread(make, around, memory, places, plan)
            if plan.guard is not None:
                good = good & answers.fine
        memory = answers.memory
        if ledger is not None:
            free = full and exchange.server is None
            fresh = [] if free else [leaf for leaf in jax.tree.leaves(download) if not any(leaf is s for s in sent)]
            if exchange.who == "cohort":
                sent += fresh
            ledger.append(Traffic(_bytes(fresh), wire["up"], exchange.who == "one"))
        if exchange.server is not None:
            server = conclude(exchange, server, total, answers.upload, round_, good, plan)
        places = weighing(places, good, plan)
        tally = Tally(*(a + b for a, b in zip(tally, done, strict=True)))
    _check_memory(method, state.memory, memory)
    tally = tally._replace(clients=jnp.sum(places.present, dtype=jnp.int32))
    losses = state.losses
    if plan.watched:
        skipped = failed | ~jnp.any(good)
        server = jax.tree.map(lambda old, new: jnp.where(skipped, old, new), state.server, server)
        stays = good & ~skipped
        memory = jax.tree.map(lambda old, new: jnp.where(along(stays, new), new, old), before, memory)
        gone = losses.left_out.at[places.ids].add((places.present & ~good).astype(jnp.int32), mode="drop")
        losses = Losses(gone, losses.skipped + skipped)
    kept = jax.tree.map(lambda all_, part: all_.at[places.ids].set(part, mode="drop"), state.memory, memory)
    return State(server, kept, losses), tally


def conclude(exchange: Exchange, server: Any, total: Any, uploads: Any, round_: Round, good: Any, plan: Plan) -> Any:
    """The server's state after an exchange.

    ``total``: Σ ω_i v_i and Σ p_i change_i over those that are ``good``, [S]; or the one upload of an exchange with one
    client.
    ``uploads``: leaves [S, ...], where the server looks at them one by one.
    """
    mean = total
    if plan.guard is not None:
        grow = left(round_.weights, good, round_.present, plan.counts)
        weights = jnp.where(good, round_.weights * grow, 0)
        if exchange.who == "cohort":
            mean = by_kind(lambda leaf: leaf * grow.astype(leaf.dtype), lambda leaf: leaf, total)
        round_ = round_._replace(
            weights=weights,
            steps=jnp.where(good, round_.steps, 0),
            present=round_.present & good,
            data_weights=jnp.where(good, round_.data_weights, 0),
            total=_nonzero(jnp.sum(weights)),
        )
    if plan.gathers:
        assert plan.aggregator is not None
        average = plan.aggregator.average(uploads, round_.weights)
        mean = jax.tree.map(lambda leaf: leaf * round_.total.astype(leaf.dtype), average)
    assert exchange.server is not None
    mean = jax.tree.map(lambda part: part.value if _is_change(part) else part, mean, is_leaf=_is_change)
    # What a program of its own was given as arrays is static again.
    return exchange.server(server, mean, round_._replace(num_clients=plan.num_clients, missing=plan.missing))


def gathering(
    work: Work, participation: Participation, fed: Federation, key: Any, index: Any, plan: Plan
) -> tuple[Places, Round]:
    """Who comes to a round and how much each works; and what the server knows about it."""
    cohort = participation.draw(jax.random.fold_in(key, _COHORT), fed.weights, index)
    places = _places(cohort, work, fed, key, plan)
    return places, Round(
        index=index,
        t=index * plan.max_steps,
        key=server_key(key),
        num_clients=plan.num_clients,
        weights=places.weights,
        steps=places.steps,
        present=places.present,
        data_weights=places.data_weights,
        total=_nonzero(jnp.sum(places.weights)),
    )


def _places(cohort: Cohort, work: Work, fed: Federation, key: Any, plan: Plan) -> Places:
    """The cohort with its local steps; sorted by them, so that a chunk waits little for its slowest client."""
    present = cohort.ids < plan.num_clients
    ids = jnp.where(present, cohort.ids, plan.num_clients)
    weights = jnp.where(present, cohort.weights, 0)
    known = jnp.minimum(ids, plan.num_clients - 1)  # an empty place runs as some client, with weight 0
    offsets, sizes = fed.offsets[known], fed.sizes[known]
    data_weights = jnp.where(present, fed.weights[known], 0)
    if plan.steps is not None:
        steps = jnp.where(present, jnp.int32(plan.steps), 0)
        return Places(ids, weights, data_weights, steps, present, offsets, sizes)
    steps = work.draw(jax.random.fold_in(key, _WORK), known, sizes, plan.batch_size)
    steps = jnp.where(present, steps, 0)
    order = jnp.argsort(-steps)
    return Places(*(leaf[order] for leaf in (ids, weights, data_weights, steps, present, offsets, sizes)))


def client_of(stage: str, number: int, wire: dict[str, int], plan: Plan, around: Any) -> Callable[..., Any]:
    """``run(memory, place) -> (upload, answer, tally)`` for one client in exchange ``number`` of a stage.

    ``around``: method, download, data, the round's key and index. While JAX traces it, ``wire["up"]`` becomes the bytes
    of the upload.
    """
    method, download, fed, key, index = around
    exchange: Exchange = getattr(method, stage)()[number]
    key = jax.random.fold_in(key, _EXCHANGE + number)

    def run(memory: Any, place: Places) -> Any:
        id_ = jnp.minimum(place.ids, plan.num_clients - 1)
        oracle = Oracle(
            plan.task,
            fed.examples,
            offset=place.offsets,
            size=place.sizes,
            max_size=plan.max_size,
            batch_size=plan.batch_size,
            epochs=plan.epochs,
            steps=place.steps if plan.steps is None else plan.steps,
            round=index,
            start=index * plan.max_steps,
            key=jax.random.fold_in(key, id_),
            round_key=key,
        )
        upload, memory = exchange.client(download, memory, oracle)
        wire["up"] = _bytes(list({id(leaf): leaf for leaf in jax.tree.leaves(upload)}.values()))  # each array once
        fine: Any = ()
        if plan.faulty is not None:
            ids, faults = jnp.asarray(plan.faulty[0], jnp.int32), plan.faulty[1]
            lies = ids.at[jnp.searchsorted(ids, id_)].get(mode="clip") == id_
            upload = jax.tree.map(lambda bad, own: jnp.where(lies, bad, own), faults.send(upload), upload)
        if plan.guard is not None:
            fine = plan.guard.accepts(upload)
            upload = jax.tree.map(lambda leaf: jnp.where(fine, leaf, 0), upload)
        if plan.aggregator is not None:
            changes = any(_is_change(part) for part in jax.tree.leaves(upload, is_leaf=_is_change))
            if changes or (not plan.gathers and (not isinstance(upload, Vector) or number)):
                way_out = f"{type(method).__name__} uploads more than an update of the model; use another, or none"
                raise ConfigError("aggregate", type(plan.aggregator).__name__, way_out)
            upload = plan.aggregator.each(upload)
        upload, shown = ((), upload) if plan.gathers else (upload, ())
        there = place.present.astype(jnp.int32)
        return (
            upload,
            Answer(memory, fine, shown),
            Tally(jnp.zeros_like(there), oracle.local_steps * there, oracle.gradients * there),
        )

    return run


def spread(
    make: Callable[[Any], Callable[..., Any]], around: Any, memory: Any, places: Places, plan: Plan
) -> tuple[Any, Any, Tally]:
    """The cohort over the devices, each of which sums its own clients' uploads; then the sum over all.

    ``around``: all that the clients' work takes from outside, the same on every device.
    """
    if plan.mesh is None:
        return _cohort(make(around), memory, places, plan)
    size, (axis,) = places.ids.shape[0], plan.mesh.axis_names
    at = None if plan.steps is not None else _deal(places.steps, plan)  # else all stay where they are
    whole = -(-size // plan.devices) * plan.devices if at is None else at.shape[0]
    xs = (memory, places)
    if whole > size:
        xs = (jax.tree.map(lambda leaf: _pad(leaf, whole), memory), _pad_places(places, whole, plan))
    if at is not None:
        order = jnp.zeros_like(at).at[at].set(jnp.arange(whole))
        xs = jax.tree.map(lambda leaf: leaf[order], xs)

    def local(around: Any, memory: Any, places: Places) -> Any:
        total, answers, done = _cohort(make(around), memory, places, plan)
        return jax.lax.psum((total, done), axis), answers

    # Without the check of replication: with it, the gradient at a model that all devices have in common would be summed
    # over the devices in every local step.
    over = jax.shard_map(
        local, mesh=plan.mesh, in_specs=(P(), P(axis), P(axis)), out_specs=(P(), P(axis)), check_vma=False
    )
    (total, done), answers = over(around, *xs)
    return total, jax.tree.map(lambda leaf: leaf[:size] if at is None else leaf[at[:size]], answers), done


def _deal(steps: Any, plan: Plan) -> Any:
    """Where each place goes, one device after another; [n] with n ≥ S, for the last may be empty.

    Places are sorted by their steps, the most first. Chunks of neighbours, whose steps are alike, go one by one to the
    device that has the least to do yet; all get as many.
    """
    each = -(-steps.shape[0] // plan.devices)
    width = min(plan.chunk_size, each)
    number = -(-each // width)
    slowest = jnp.zeros(number * width * plan.devices, steps.dtype).at[: steps.shape[0]].set(steps)[::width]

    def give(given: Any, slow: Any) -> Any:
        load, chunks = given
        to = jnp.argmin(jnp.where(chunks < number, load, jnp.iinfo(load.dtype).max))
        return (load.at[to].add(slow), chunks.at[to].add(1)), to * number + chunks[to]

    nothing = jnp.zeros(plan.devices, steps.dtype)
    _, chunk = jax.lax.scan(give, (nothing, nothing), slowest)
    return (chunk[:, None] * width + jnp.arange(width)[None]).reshape(-1)


def _cohort(client: Callable[..., Any], memory: Any, places: Places, plan: Plan) -> tuple[Any, Any, Tally]:
    """All clients of the cohort, chunk by chunk: the weighted sum of their uploads, their answers, their work."""
    size = places.ids.shape[0]
    chunk = min(plan.chunk_size, size)
    chunks = -(-size // chunk)
    xs = (memory, places)
    if chunks * chunk > size:
        xs = (jax.tree.map(lambda leaf: _pad(leaf, chunks * chunk), memory), _pad_places(places, chunks * chunk, plan))

    def one(memory: Any, place: Places) -> Any:
        upload, answer, done = client(memory, place)
        return weighted(upload, place), answer, done

    def many(memory: Any, place: Places) -> Any:
        upload, answers, done = jax.vmap(client)(memory, place)
        total = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), weighted(upload, place))
        return total, answers, jax.tree.map(lambda leaf: jnp.sum(leaf, dtype=jnp.int32), done)

    if chunks == 1 and chunk > 1:
        return many(*xs)
    # One client alone runs without a batch axis: batched products of batch one are slower than plain ones. The jit is
    # there so that the clients' work is traced once, for the shapes of the sums and for the loop.
    run = jax.jit(one if chunk == 1 else many)
    if chunk > 1:
        xs = jax.tree.map(lambda leaf: leaf.reshape(chunks, chunk, *leaf.shape[1:]), xs)

    def step(total: Any, x: Any) -> Any:
        part, answers, done = run(*x)
        return jax.tree.map(jnp.add, total, (part, done)), answers

    part, _, done = jax.eval_shape(run, *jax.tree.map(lambda leaf: leaf[0], xs))
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (part, done))
    (total, done), answers = jax.lax.scan(step, zero, xs)
    if chunk > 1:
        answers = jax.tree.map(lambda leaf: leaf.reshape(chunks * chunk, *leaf.shape[2:]), answers)
    return total, jax.tree.map(lambda leaf: leaf[:size], answers), done


def _is_change(part: Any) -> bool:
    return isinstance(part, Change)


def by_kind(estimate: Callable[[Any], Any], change: Callable[[Any], Any], upload: Any) -> Any:
    """``upload`` with one function applied to its estimates, leaf by leaf, and another to its changes."""
    apply = lambda part: jax.tree.map(change if _is_change(part) else estimate, part)  # noqa: E731
    return jax.tree.map(apply, upload, is_leaf=_is_change)


def weighted(upload: Any, place: Places) -> Any:
    """ω_i v_i of the estimates, p_i v_i of the changes; of one client, or of some along the first axis."""
    return by_kind(lambda leaf: scaled(place.weights, leaf), lambda leaf: scaled(place.data_weights, leaf), upload)


def of_one(upload: Any, place: Places) -> Any:
    """The upload of a client that is heard alone: its estimates as they are, p_i v_i of its changes."""
    return by_kind(lambda leaf: leaf, lambda leaf: scaled(place.data_weights, leaf), upload)


def chosen(places: Places, key: Any) -> Any:
    """The place of the one client that an exchange is with, drawn by weight; ``key`` is the round's."""
    return jax.random.categorical(jax.random.fold_in(key, _ONE), jnp.log(places.weights))


def _one(client: Callable[..., Any], memory: Any, places: Places, at: Any) -> tuple[Any, Any, Tally]:
    """One client of the cohort: its upload is the mean."""
    old, place = jax.tree.map(lambda leaf: leaf[at], (memory, places))
    upload, new, done = client(old, place)
    memory = jax.tree.map(lambda all_, leaf: all_.at[at].set(leaf), memory, new.memory)
    return of_one(upload, place), new._replace(memory=memory), done


def _check_memory(method: Algorithm, before: Any, after: Any) -> None:
    """What the clients keep has the form in which they found it."""
    form = lambda memory: [(path, leaf.shape[1:], leaf.dtype) for path, leaf in _leaves(memory)]  # noqa: E731
    same_tree: Any = jax.tree.structure(before)
    if same_tree != jax.tree.structure(after) or form(before) != form(after):
        raise ConfigError(
            "algorithm",
            type(method).__name__,
            f"a round changes a client's memory from {form(before)} to {form(after)}; "
            "the last exchange has to return memory in the form of init_client()",
        )


def _leaves(tree: Any) -> list[tuple[str, Any]]:
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def _nonzero(total: Any) -> Any:
    """A cohort whose clients all have weight 0 moves nothing; dividing by 1 keeps it finite."""
    return jnp.where(total > 0, total, 1.0)


def _nothing() -> Tally:
    return Tally(*(jnp.zeros((), jnp.int32) for _ in Tally._fields))


def _pad(leaf: Any, size: int) -> Any:
    return jnp.concatenate([leaf, jnp.broadcast_to(leaf[-1:], (size - leaf.shape[0], *leaf.shape[1:]))])


def _pad_places(places: Places, size: int, plan: Plan) -> Places:
    extra = size - places.ids.shape[0]
    fill = [jnp.full(extra, value, leaf.dtype) for leaf, value in zip(places, empty_place(plan), strict=True)]
    return Places(*(jnp.concatenate(pair) for pair in zip(places, fill, strict=True)))


def _bytes(leaves: list[Any]) -> int:
    return sum(jnp.size(leaf) * jnp.result_type(leaf).itemsize for leaf in leaves)
