"""A job: one run, with everything about it checked and made before anything is compiled."""

import dataclasses
import functools
import numbers
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedax.contract.algorithm import Algorithm
from fedax.contract.compression import Compressor
from fedax.contract.types import Array, Tree, Unknown
from fedax.contract.vector import Vector, spelled
from fedax.data.federated import FederatedData
from fedax.engine import private, processes, secret, secured
from fedax.engine.checks import (
    by_client_of,
    check_aggregator,
    check_batch_size,
    check_examples,
    check_feedback,
    check_host_metrics,
    check_parts,
    check_uploads,
    evaluation_rounds,
    labels_of,
    pooled_of,
)
from fedax.engine.deadline import steps_within
from fedax.engine.declared import takes
from fedax.engine.devices import device_bytes
from fedax.engine.dry_run import DryRun, dry_run
from fedax.engine.identity import FILES, identity
from fedax.engine.layers import Forms, inside, known_forms, layered, own_memory, own_state
from fedax.engine.loop import Federation, Hyper, State
from fedax.engine.memory import where
from fedax.engine.options import Options
from fedax.engine.places.device import first_state
from fedax.engine.plan import Plan, is_small, make_plan
from fedax.engine.timetable import Pacing, pacing, participation_of
from fedax.errors import ConfigError
from fedax.federation.census import Census
from fedax.federation.clock import BoundClock
from fedax.federation.participation import Full, WithoutLate
from fedax.federation.work import Deadline, GeometricSteps, Steps, StepsByRound
from fedax.numbers import check_count, check_number
from fedax.programs import compiled
from fedax.tasks.task import Task, check_params
from fedax.wire.compressed import Compression
from fedax.wire.privacy import Private
from fedax.wire.wire import Wire

if TYPE_CHECKING:
    from fedax.privacy import Ledger


class Origin(NamedTuple):
    """What the model of a run belongs to.

    Attributes:
        task: the user's own.
        example: the form of one example, a pytree of ``jax.ShapeDtypeStruct``.
        labels: what the classes are called, in the order of the outputs; ``None``: by their numbers, or there are none.
        transform: makes examples of tables; ``None`` where they were no tables.
    """

    task: Task
    example: Tree
    labels: tuple[str | int, ...] | None
    transform: Unknown


class Job(NamedTuple):
    """What a run needs.

    Attributes:
        hyper: the method, the work, the participation and the wire, pytrees of numbers.
        fed, key, x: the data on the device, the run's random key, the initial model.
        data: the data where they are on the host, and come to the device cohort by cohort, or ``None``.
        census: of the clients.
        own: the clients that belong to this process.
        plan: what is fixed before compilation.
        memory: where client memory is: "device", "host", or the folder of its file; on the device only of a job
            whose rounds are compiled, those of a job of one process whose data are there; or "nodes", with the data.
        forms: forms of the exchanges of the warm-up, and of a round.
        settings: gives what makes the run, by name, as text: the same for the same run. Made when it is first asked
            for, as all examples are read for it.
        rounds: R.
        stops: the rounds after which the model is evaluated, in order; the last is R.
        held: part of the held-out data, "val" or "test" -> its examples on the device.
        parts: part -> the same as it was given: a pytree of examples, or those of clients.
        labels: part -> metric -> sums of the labels alone, where a metric needs them.
        by_client: the parts whose clients have figures of their own.
        grad_norm, density, until, min_heard: as of :func:`fedax.simulate`.
        form: shapes and types of the task's own parameters; those of ``x`` are wider where they are bfloat16.
        origin: what the model of the run belongs to.
        seed: as of :func:`fedax.simulate`.
        ledger: what the run spends of privacy; ``None``: uploads are not private.
        pacing: how it is paced; ``None``: the server waits for all clients of a round.
        clock: how long clients take, of this run; ``None``: no time is counted.
        late: with a deadline by the clock who misses it, [N] in every round or [R, N] in each; else ``None``.
        deadline: that deadline, seconds.
        spent: whether ``rounds`` are all that the budget of privacy allows, and more were asked for.
    """

    hyper: Hyper
    fed: Federation
    key: Array
    x: Vector
    data: FederatedData | None
    census: Census
    own: slice
    plan: Plan
    memory: str
    forms: Forms
    settings: Callable[[], dict[str, str]]
    rounds: int
    stops: tuple[int, ...]
    held: dict[str, Tree]
    parts: dict[str, Tree]
    labels: dict[str, dict[str, Tree]]
    by_client: tuple[str, ...]
    grad_norm: bool
    density: float | None
    until: Callable[[dict[str, Unknown]], bool] | None
    min_heard: float
    form: Tree
    seed: int
    origin: Origin
    ledger: "Ledger | None" = None
    spent: bool = False
    pacing: Pacing | None = None
    clock: BoundClock | None = None
    late: np.ndarray | None = None
    deadline: float = 0.0

    def delivered(self, x: Vector) -> Tree:
        """A model as the run gives it away: whole, its parameters of the types that the task's ``init`` gives them."""
        return self.plan.task.whole_of(jax.tree.map(lambda leaf, own: leaf.astype(own.dtype), x.tree, self.form))

    def of_method(self, state: State) -> State:
        """The method's own part of a state: of what the server and the clients keep, that of no layer."""
        method = self.hyper.method  # with its layers; at nodes there is no memory but its versions
        memory = state.memory if self.memory == "nodes" else own_memory(method, state.memory)
        return state._replace(server=own_state(method, state.server), memory=memory)

    def epsilon(self, rounds: int) -> float:
        """The privacy that so many rounds spend, of uploads that are private."""
        dp = self.hyper.wire.privacy
        assert self.ledger is not None and dp is not None
        return self.ledger.epsilon(rounds, dp.delta)

    @property
    def sent_once(self) -> int:
        """Bytes that every client is sent once: what is frozen of the model."""
        return self.plan.num_clients * sum(int(leaf.nbytes) for leaf in jax.tree.leaves(self.plan.task.frozen))

    @property
    def hosted(self) -> bool:
        """Whether its rounds are a loop on the host."""
        return self.memory != "device"

    def has(self, part: str) -> bool:
        """Whether there are held-out examples of a part, here or at the clients."""
        return part in self.held or self.census.held.get(part, 0) > 0

    @property
    def rounds_a_call(self) -> int:
        """So many rounds that counts of 32 bits hold what they do (a step asks some gradients, a full one more).

        One where the run may have to end after any.
        """
        if self.plan.stops:
            return 1
        places = self.hyper.participation.places(self.plan.num_clients)
        return max(1, 2**31 // (places * max(self.plan.max_steps, self.plan.max_size) * 64))


@dataclasses.dataclass(frozen=True)
class _Asked(Options):
    """The arguments of :func:`make_job`.

    Args:
        algorithm: as of :func:`fedax.simulate`.
        task: as there.
        data: as there; or the census of real clients, whose data are at their nodes. Their uploads may get lost, where
            the method allows that.
        shared: of several jobs, so that what they have in common is checked and made once.
    """

    algorithm: Algorithm
    task: Task
    data: FederatedData | Census
    _: dataclasses.KW_ONLY
    shared: dict[Unknown, Unknown] | None = None


@takes(_Asked)
def make_job(asked: _Asked) -> Job:
    """Check what :func:`fedax.simulate` is given, and make a job of it.

    Raises:
        ConfigError, DataError: as of :func:`fedax.simulate`.
    """
    return _made(asked)


def _made(asked: _Asked) -> Job:
    given, algorithm, task, data = asked.with_defaults(), asked.algorithm, asked.task, asked.data
    shared = {} if asked.shared is None else asked.shared
    # What is shared is named by identity, which another object may have once these are gone.
    shared.setdefault("alive", []).append((task, data, given.val, given.test, given.params))
    census = data if isinstance(data, Census) else None if not isinstance(data, FederatedData) else Census.of(data)
    check_parts(algorithm, task, census or data, given)
    if given.pace is not None and census is not None:
        simulated = isinstance(data, FederatedData)
        given = dataclasses.replace(given, participation=participation_of(given, algorithm, census, simulated))
        algorithm = algorithm.paced(census.weights)
    assert census is not None and given.work is not None and given.participation is not None and given.place is not None
    if isinstance(given.work, Deadline) and given.work.speed is None:
        return _with_deadline(dataclasses.replace(asked, algorithm=algorithm, shared=shared), given.work)
    compression = Compression.of(given.compress)
    here = data if isinstance(data, FederatedData) else None
    form = _once(shared, ("form", id(task)), task.form)
    whole, task = task, task.trained
    own, parts = processes.own(census), given.parts
    held_of = ("held", id(task), id(data), id(given.val), id(given.test))
    _once(shared, ("checked", *held_of), lambda: check_examples(task, census, here, own, parts))
    by_client = by_client_of(whole.run_metrics.get("per_client"), parts)
    check_host_metrics(task, census, parts)
    grad_norm, density = "grad_norm" in whole.run_metrics, whole.run_metrics.get("density")
    density = None if density is None else density.threshold
    batch_size = None if given.batch_size is None else check_batch_size(given.batch_size, census)
    min_heard = check_number("min_heard", given.min_heard, 0, 1, open_low=True, fixed=True)
    stops = evaluation_rounds(int(given.rounds), given.evaluate_every)
    wire = given.wire(compression)
    private.check(wire, algorithm, given.participation, census, given.until, parts)
    secured.check(wire, algorithm, given.participation, census)
    algorithm, up, wire = one_type((algorithm, compression.up, wire))
    key, x = start(task, given.params, given.seed, shared)
    lost = here is None and given.pace is None and algorithm.traits().cohorts == "any"  # with a pace they are late
    lossy = dataclasses.replace(wire, lossy=lost)
    plan = make_plan(census, task, x, given.work, batch_size, given.participation, lossy, given.place)
    plan = dataclasses.replace(plan, mesh=None) if here is None else plan
    if given.pace is not None:
        missing = "clients that answer when they are done" if algorithm.pace().buffer is None else None
        plan = dataclasses.replace(plan, full=False, missing=missing)
    algorithm.traits().refuse(missing=plan.missing, unequal=plan.steps is None)
    stream = here is not None and streamed(given.place.stream, here, own, plan.devices)
    fed = _once(
        shared,
        ("data", id(data), plan.mesh, stream),
        lambda: on_devices(federation_of(census, None if stream else here, own), plan.mesh),
    )
    frozen = _once(shared, ("frozen", id(task), plan.mesh), lambda: on_devices(task.frozen, plan.mesh))
    # One object for all jobs, for those with another one do not run side by side.
    fed = _once(shared, ("federation", id(fed), id(frozen)), functools.partial(fed._replace, frozen=frozen))
    pooled = {part: pooled_of(each) for part, each in parts.items()}
    held = _once(shared, (*held_of, plan.mesh), lambda: on_devices(pooled, plan.mesh))
    labels = _once(
        shared, ("labels", *held_of), lambda: {part: labels_of(task, examples) for part, examples in pooled.items()}
    )
    check_aggregator(given.aggregate, algorithm, x)
    hyper = Hyper(algorithm, given.work, given.participation.bind(census.weights), wire)
    traced = _traced(hyper, up, given, census, fed._replace(examples=census.examples(2)), key, x, plan, stops)
    row = jax.eval_shape(first_state, traced.method, x)[1]
    paced = pacing(given, algorithm, row, traced.forms[1][0])
    memory = "nodes"
    if here is not None:
        on_device = not stream and processes.count() == 1
        memory = where(
            given.place.client_memory, own.stop - own.start, row, plan.devices, plan.full, on_device=on_device
        )
    if paced is not None and here is not None and (memory != "device" or stream):
        way_out = "asynchronous rounds are simulated, in one process, with client memory and examples on the device"
        raise ConfigError("pace", given.pace, way_out)
    named = Hyper(traced.compressed, given.work, given.participation, wire)
    # At nodes time is measured.
    given = dataclasses.replace(given, clock=None if here is None else given.clock, pace=paced and paced.pace)
    settings = functools.cache(
        lambda: (
            identity(given, named, whole, here, census, pooled, plan, x, traced.program())
            | ({} if paced is None else paced.settings(census.num_clients, rounds))
        )
    )
    rounds, stops = traced.rounds, traced.stops
    if processes.count() > 1:
        content = {name: text for name, text in settings().items() if name != FILES}
        processes.same("job", f"{content} {rounds} {stops} {grad_norm} {density} {by_client}")
        if FILES in settings():  # each host may have a copy of its own
            settings()[FILES] = processes.text_from_first(settings()[FILES])
    return Job(
        hyper=hyper._replace(method=traced.method, wire=lossy),
        fed=fed,
        key=key,
        x=x,
        data=here if stream else None,
        census=census,
        own=own,
        plan=plan,
        memory=memory,
        forms=traced.forms,
        settings=settings,
        rounds=rounds,
        stops=stops,
        held=held,
        parts=parts,
        labels=labels,
        by_client=by_client,
        grad_norm=grad_norm,
        density=density,
        until=given.until,
        min_heard=min_heard,
        form=form,
        seed=given.seed,
        origin=Origin(whole.entire, census.example, _labels(census, here), census.transform),
        ledger=traced.ledger,
        spent=rounds < int(given.rounds),
        pacing=paced,
        clock=None if given.clock is None else given.clock.bind(census, given.seed),
    )


def _with_deadline(asked: _Asked, work: Deadline) -> Job:
    """The job with the steps that clients manage within a deadline by its clock, and without clients that manage none.

    How long transfers take follows from the exchanges, whose forms a first job has: they do not depend on the steps.
    """
    if asked.clock is None or isinstance(asked.data, Census):
        raise ConfigError("work.speed", None, "give local steps a second; or, in a simulation, clock=fedax.Clock(...)")
    first = _made(dataclasses.replace(asked, work=GeometricSteps(1.0)))
    assert first.clock is not None
    sizes = first.census.sizes
    waits = asked.pace is None
    rounds = first.rounds if waits and first.clock.anew else None
    steps = steps_within(float(work.time), first.clock, first.forms[1], sizes, first.plan.batch_size, rounds)
    late, taken = steps < 1, np.maximum(steps, 1)
    timed = dataclasses.replace(asked, work=Steps(taken) if rounds is None else StepsByRound(taken))
    if late.any() and not waits:
        way_out = f"client {np.argmax(late)} manages no step, and without rounds nobody can miss one: give more time"
        raise ConfigError("work.time", work.time, way_out)
    if late.any():
        timed = dataclasses.replace(timed, participation=WithoutLate(asked.participation or Full(), late))
    job = _made(timed)
    known = {"work": "Deadline", "work.time": str(work.time)}
    if rounds is not None:  # the steps of all of them are known beforehand, and with them the largest, K
        known["work.rounds"] = str(rounds)
    tables = ("work.table", "work.index")
    settings = functools.cache(
        lambda: {name: job.settings()[name] for name in job.settings() if name not in tables} | known
    )
    return job._replace(settings=settings, late=late if waits else None, deadline=float(work.time))


class _Traced(NamedTuple):
    """A method with the layers of its run, traced; and how many rounds its budget of privacy allows.

    Attributes:
        method: with all layers.
        compressed: without noise.
        forms: of the exchanges, as they are sent.
        program: gives a digest of what a round is made of.
        ledger: what the run spends of privacy, or ``None``.
        rounds, stops: as of :class:`Job`.
    """

    method: Algorithm
    compressed: Algorithm
    forms: Forms
    program: Callable[[], str]
    ledger: "Ledger | None"
    rounds: int
    stops: tuple[int, ...]


def _traced(
    hyper: Hyper,
    up: Compressor | None,
    given: Options,
    census: Census,
    fed: Federation,
    key: Array,
    x: Vector,
    plan: Plan,
    stops: tuple[int, ...],
) -> _Traced:
    """Trace a round, with each layer that is put around the method, and check what it sends."""
    wire, participation = hyper.wire, given.participation
    assert participation is not None
    # Neither the devices nor how many clients run side by side are part of what a round is. Tracing two at a time shows
    # what cannot have a batch axis; of large models it would take twice as long.
    side_by_side = min(2 if is_small(x.tree) else 1, participation.places(census.num_clients))
    plain = dataclasses.replace(plan, mesh=None, chunk_size=side_by_side)

    def trace(method: Algorithm, wire: Wire) -> DryRun:
        return dry_run(hyper._replace(method=method, wire=wire), fed, key, x, plain)

    alone = trace(hyper.method, inside(wire))
    check_uploads(given.aggregate, hyper.method, alone.forms)
    rounds, ledger = int(given.rounds), None
    if given.privacy is not None:
        drawn = private.numbers_of(given.privacy, alone.forms)
        ledger = private.ledger(given.privacy, hyper.method, participation, census.num_clients, drawn)
        rounds, stops = private.within(given.privacy, ledger, rounds, stops)
    if up is not None:
        check_feedback(given.aggregate, up)
    with_numbers = functools.partial(
        private.known, census=census, participation=participation, plan=plan, rounds=rounds
    )
    layers = layered(hyper.method, alone, up, wire, trace, with_numbers)
    noise = ""
    if isinstance(layers.method, Private) and layers.method.privacy.bands > 1:
        noise = f" {layers.method.coefficients.tolist()}"  # another mechanism where it is meant for other rounds
    forms = known_forms(layers.made.forms, layers.method, wire)
    forms = secured.forms(wire, layers.compressed, participation, census, forms)
    return _Traced(layers.method, layers.compressed, forms, lambda: layers.made.digest + noise, ledger, rounds, stops)


def _labels(census: Census, data: FederatedData | None) -> tuple[str | int, ...] | None:
    """What the classes are called: texts of tables, or −1 and +1; ``None``: numbers from 0 on, or there are none."""
    if census.transform is not None:
        named: tuple[str, ...] | None = census.transform.classes
        return named
    y = data.examples.get("y") if data is not None and isinstance(data.examples, dict) else None
    return (-1, 1) if y is not None and y.ndim == 1 and y.size and y.min() == -1 and y.max() == 1 else None


def one_type(tree: Tree) -> Tree:
    """With one type for all numbers: whether 1, 1.0 or np.float64(1.0) is given, the program is the same."""
    return jax.tree.map(lambda leaf: float(leaf) if isinstance(leaf, numbers.Real) else leaf, tree)


def with_seed(job: Job, params: Tree, seed: int, shared: dict[Unknown, Unknown]) -> Job:
    """The same job with another seed, and with noise of its own."""
    key, x = start(job.plan.task, params, seed, shared)
    return job._replace(
        hyper=secret.anew(job.hyper),
        key=key,
        x=x,
        seed=seed,
        settings=lambda: job.settings() | {"seed": str(seed)},
        clock=None if job.clock is None else job.clock._replace(seed=seed),
    )


def with_folder_secret(job: Job, folder: pathlib.Path, place: int) -> Job:
    """A private job with the secret that a folder keeps for it, :func:`secret.of_folder`; any other job as it is."""
    if not secret.is_drawn(job.hyper.wire.privacy):
        return job
    hyper, entry = secret.of_folder(job.hyper, job.seed, folder, place)
    return job._replace(hyper=hyper, settings=functools.cache(lambda: job.settings() | entry))


def start(task: Task, params: Tree, seed: int, shared: dict[Unknown, Unknown]) -> tuple[Array, Vector]:
    """The key of a run with this seed, and its initial model."""
    seed = check_count("seed", seed, 0)
    if seed >= 2**32:
        raise ConfigError("seed", seed, "give a whole number below 2**32")
    key = jax.random.key(seed)
    # The initial model has a key that no round has: rounds fold in their index, this one the largest but one.
    own = jax.random.fold_in(key, jnp.iinfo(jnp.int32).max - 1)
    return key, _once(shared, ("model", id(task), id(params), seed), lambda: _initial_model(task, params, own))


def _once(shared: dict[Unknown, Unknown], name: Unknown, make: Callable[[], Unknown]) -> Unknown:
    if name not in shared:
        shared[name] = make()
    return shared[name]


def _initial_model(task: Task, params: Tree, key: Array) -> Vector:
    expected = jax.eval_shape(task.init, key)
    if params is None:
        x = _drawn(key, task)
        if not all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(x)):
            raise ConfigError("task.init", spelled(x), "the initial model holds values that are not finite")
        return Vector(x)
    check_params(params, expected)
    return Vector(jax.tree.map(lambda got, want: jax.device_put(np.array(got, want.dtype)), params, expected))


@compiled(static=["task"])
def _drawn(key: Array, task: Task) -> Tree:
    return task.init(key)


def _examples(data: FederatedData, own: slice) -> Tree:
    """The examples of some clients that are neighbours."""
    rows = slice(data.offsets[own.start], data.offsets[own.stop - 1] + data.sizes[own.stop - 1])
    return jax.tree.map(lambda leaf: leaf[rows], data.examples)


def streamed(asked: Unknown, data: FederatedData, own: slice, devices: int) -> bool:
    """Whether examples come to the device cohort by cohort: where asked, and where all of them have no room there."""
    if asked not in (None, True, False):
        raise ConfigError("stream", asked, "give True, False, or None for: where the examples do not fit the device")
    leaves = jax.tree.leaves(_examples(data, own))
    if asked is None:
        copies = devices if jax.default_backend() == "cpu" else 1  # of which each is in a memory of its own
        return bool(sum(leaf.nbytes for leaf in leaves) * copies > device_bytes() / 2)
    if not asked and len(leaves[0]) >= 2**31:
        raise ConfigError("stream", asked, f"{len(leaves[0])} examples are more than a device can number: give True")
    return bool(asked)


def federation_of(census: Census, data: FederatedData | None, own: slice) -> Federation:
    """What goes to the devices of a census, and of the examples of some clients where they are to be there."""
    dtype = jnp.zeros(()).dtype
    offsets = np.zeros(census.num_clients) if data is None else data.offsets - data.offsets[own.start]
    return Federation(
        None if data is None else _examples(data, own),
        offsets.astype(np.int32),  # of other processes: not used
        census.sizes.astype(np.int32),
        census.weights.astype(dtype),
    )


def on_devices(tree: Tree, mesh: Mesh | None) -> Tree:
    """Arrays on the default device, or on all of a mesh.

    A CPU's would share memory with the caller's if these were not copied; ``jnp.asarray`` compiles a program to copy.
    """
    own = np.array if jax.default_backend() == "cpu" else np.asarray
    there = jax.tree.map(lambda leaf: leaf if isinstance(leaf, jax.Array) else jax.device_put(own(leaf)), tree)
    return there if mesh is None else jax.device_put(there, NamedSharding(mesh, PartitionSpec()))
