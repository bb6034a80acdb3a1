"""A job: one run, with everything about it checked and made before anything is compiled."""

import dataclasses
import functools
import math
import numbers
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedax.contract.algorithm import Algorithm
from fedax.contract.compression import Compressor, decoded
from fedax.contract.schedule import resolve
from fedax.contract.types import Array, Tree, Unknown
from fedax.contract.vector import Vector, spelled
from fedax.data.federated import FederatedData
from fedax.engine import private, processes, secret, secured
from fedax.engine.devices import device_bytes
from fedax.engine.dry_run import Made, dry_run, same_structure
from fedax.engine.identity import FILES, identity
from fedax.engine.layers import Forms, inside, known_forms, layered, own_memory, own_state
from fedax.engine.loop import Federation, Hyper, State
from fedax.engine.memory import where
from fedax.engine.places.device import first_state
from fedax.engine.plan import Plan, is_small, make_plan
from fedax.errors import ConfigError, DataError, ExampleError
from fedax.federation.census import Census
from fedax.federation.participation import Full, Participation
from fedax.federation.work import Epochs, Work
from fedax.metrics.base import HostMetric
from fedax.numbers import MOST, check_count, check_number, check_room
from fedax.programs import compiled
from fedax.tasks.task import Task, check_params
from fedax.tasks.trainable import LoRA, Patterns, partial
from fedax.wire.averages import Aggregator
from fedax.wire.compressed import Compression
from fedax.wire.faults import Faults
from fedax.wire.guard import Guard
from fedax.wire.privacy import DP, Private
from fedax.wire.secure import SecureSum
from fedax.wire.sums import is_change
from fedax.wire.wire import Wire

if TYPE_CHECKING:
    from fedax.privacy import Ledger

_MOST_LISTED = 10_000  # clients of which each row of a history has a figure


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
        grad_norm, density, until: as of :func:`fedax.simulate`.
        form: shapes and types of the task's own parameters; those of ``x`` are wider where they are bfloat16.
        origin: what the model of the run belongs to.
        seed: as of :func:`fedax.simulate`.
        ledger: what the run spends of privacy; ``None``: uploads are not private.
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
    form: Tree
    seed: int
    origin: Origin
    ledger: "Ledger | None" = None
    spent: bool = False

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


def make_job(
    algorithm: Algorithm,
    task: Task,
    data: FederatedData | Census,
    *,
    rounds: int,
    work: Work | None = None,
    batch_size: int | None = None,
    participation: Participation | None = None,
    seed: int = 0,
    val: Tree = None,
    test: Tree = None,
    per_client: bool = False,
    evaluate_every: int | Sequence[int] | None = None,
    params: Tree = None,
    trainable: Patterns | LoRA | None = None,
    chunk_size: int | None = None,
    mesh: Mesh | None = None,
    client_memory: str = "auto",
    stream: bool | None = None,
    grad_norm: bool = False,
    density: float | None = None,
    until: Callable[[dict[str, Unknown]], bool] | None = None,
    guard: Guard | bool | None = None,
    aggregate: Aggregator | None = None,
    faults: Faults | None = None,
    privacy: DP | None = None,
    compress: Compressor | Mapping[str, Unknown] | None = None,
    secure: SecureSum | None = None,
    shared: dict[Unknown, Unknown] | None = None,
) -> Job:
    """Check what :func:`fedax.simulate` is given, and make a job of it.

    Args:
        data: as there; or the census of real clients, whose data are at their nodes. Their uploads may get lost, where
            the method allows that.
        shared: of several jobs, so that what they have in common is checked and made once.
    """
    shared = {} if shared is None else shared
    # What is shared is named by identity, which another object may have once these are gone.
    shared.setdefault("alive", []).append((task, data, val, test, params))
    work = Epochs(1) if work is None else work
    participation = Full() if participation is None else participation
    guard = Guard() if guard is True else None if guard is False else guard
    census = data if isinstance(data, Census) else None if not isinstance(data, FederatedData) else Census.of(data)
    _check(
        algorithm, task, census or data, rounds, work, participation, until, guard, aggregate, faults, privacy, secure
    )
    assert census is not None
    compression = Compression.of(compress)
    here = data if isinstance(data, FederatedData) else None
    if trainable is not None:
        task, params = partial(task, trainable, params), None
    form = _once(shared, ("form", id(task)), task.form)
    given, task = task, task.trained
    own = processes.own(census)
    parts = {part: each for part, each in (("val", val), ("test", test)) if each is not None}
    held_of = ("held", id(task), id(data), id(val), id(test))
    _once(shared, ("checked", *held_of), lambda: _check_examples(task, census, here, own, parts))
    by_client = _by_client(per_client, parts)
    _check_host_metrics(task, census, parts)
    rounds = int(rounds)
    density = None if density is None else check_number("density", density, 0)
    batch_size = None if batch_size is None else _batch_size(batch_size, census)
    stops = evaluation_rounds(rounds, evaluate_every)
    given_wire = Wire(faults, guard, aggregate, privacy, compression.down, secure=secure)
    private.check(given_wire, algorithm, participation, census, until, parts)
    secured.check(given_wire, algorithm, participation, census)
    algorithm, up, wire = one_type((algorithm, compression.up, given_wire))
    key, x = start(task, params, seed, shared)
    loses = here is None and algorithm.traits().cohorts == "any"
    sure = dataclasses.replace(wire, lossy=loses)
    plan = make_plan(census, task, x, work, batch_size, participation, sure, chunk_size, mesh)
    plan = dataclasses.replace(plan, mesh=None) if here is None else plan
    algorithm.traits().refuse(missing=plan.missing, unequal=plan.steps is None)
    stream = here is not None and streamed(stream, here, own, plan.devices)
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
    hyper = Hyper(algorithm, work, participation.bind(census.weights), wire)
    pool = fed._replace(examples=census.examples(2))
    _check_aggregator(aggregate, algorithm, x)
    # Neither the devices nor how many clients run side by side are part of what a round is. Tracing two at a time shows
    # what cannot have a batch axis; of large models it would take twice as long.
    side_by_side = min(2 if is_small(x.tree) else 1, participation.places(census.num_clients))
    plain = dataclasses.replace(plan, mesh=None, chunk_size=side_by_side)

    def trace(method: Algorithm, wire: Wire) -> Made:
        return dry_run(hyper._replace(method=method, wire=wire), pool, key, x, plain)

    own_forms = trace(algorithm, inside(wire)).forms
    _check_uploads(aggregate, algorithm, own_forms)
    asked_for, ledger = rounds, None
    if privacy is not None:
        drawn = private.numbers_of(privacy, own_forms)
        ledger = private.ledger(privacy, algorithm, participation, census.num_clients, drawn)
        rounds, stops = private.within(privacy, ledger, rounds, stops)
    if up is not None:
        _check_feedback(aggregate, up)
    layers = layered(
        algorithm, up, wire, trace, lambda layer: private.known(layer, census, participation, plan, rounds)
    )
    hyper, algorithm, made = hyper._replace(method=layers.method), layers.compressed, layers.made
    more = ""
    if isinstance(layers.method, Private) and layers.method.privacy.bands > 1:
        more = f" {layers.method.coefficients.tolist()}"  # another mechanism where it is meant for other rounds
    forms = known_forms(made.forms, hyper.method, wire)
    forms = secured.forms(wire, algorithm, participation, census, forms)
    row = jax.eval_shape(first_state, hyper.method, x)[1]
    hosted = stream or processes.count() > 1
    memory = "nodes"
    if here is not None:
        memory = where(client_memory, own.stop - own.start, row, plan.devices, plan.full, on_device=not hosted)
    hyper = hyper._replace(wire=sure)
    asked = Hyper(algorithm, work, participation, wire)
    settings = functools.cache(
        lambda: identity(asked, given, here, census, pooled, plan, seed, x, params, made.digest + more)
    )
    if processes.count() > 1:
        content = {name: text for name, text in settings().items() if name != FILES}
        processes.same("job", f"{content} {rounds} {stops} {grad_norm} {density} {by_client}")
        if FILES in settings():  # each host may have a copy of its own
            settings()[FILES] = processes.text_from_first(settings()[FILES])
    origin = Origin(given.entire, census.example, _labels(census, here), census.transform)
    return Job(
        hyper, fed, key, x, here if stream else None, census, own, plan, memory, forms, settings,
        rounds, stops, held, parts, labels, by_client, grad_norm, density, until, form, seed, origin,
        ledger, rounds < asked_for,
    )  # fmt: skip


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
    return secret.anew(job)._replace(key=key, x=x, seed=seed, settings=lambda: job.settings() | {"seed": str(seed)})


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


def _batch_size(asked: Unknown, census: Census) -> int:
    batch_size = check_count("batch_size", asked, high=MOST)
    each = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(census.example))
    check_room(batch_size * each, batch_size=batch_size)
    return batch_size


def evaluation_rounds(rounds: int, every: Unknown) -> tuple[int, ...]:
    """The rounds after which the model is evaluated, besides the start; ``every`` as of :func:`fedax.simulate`."""
    if isinstance(every, Sequence | np.ndarray) and not isinstance(every, str):
        stops = sorted({check_count("evaluate_every", int(r) if isinstance(r, np.integer) else r) for r in every})
        return (*(r for r in stops if r < rounds), rounds) if rounds else ()
    step = max(1, math.ceil(rounds / 50)) if every is None else check_count("evaluate_every", every)
    check_room(600 * (rounds // step), rounds=rounds)  # bytes of a row
    return (*range(step, rounds, step), rounds) if rounds else ()


def _check(
    algorithm: Unknown,
    task: Unknown,
    data: Unknown,
    rounds: Unknown,
    work: Unknown,
    participation: Unknown,
    until: Unknown,
    guard: Unknown,
    aggregate: Unknown,
    faults: Unknown,
    privacy: Unknown,
    secure: Unknown,
) -> None:
    """Everything that can be wrong with the input and be seen without compiling."""
    required = (
        ("algorithm", algorithm, Algorithm, "give a method, for instance fedax.create('fedavg', lr=0.1)"),
        ("task", task, Task, _task_of(task)),
        ("data", data, Census, _data_of(data)),
        ("work", work, Work, "give Steps, Epochs, RandomEpochs, RandomSteps, GeometricSteps or Deadline"),
        ("participation", participation, Participation, "give Full, Uniform, Proportional, ... or Trace"),
    )
    optional = (
        ("guard", guard, Guard, "give True or fedax.Guard(...)"),
        ("aggregate", aggregate, Aggregator, "give CoordinateMedian, TrimmedMean, ... or ClippedMean"),
        ("faults", faults, Faults, "give fedax.Faults(...)"),
        ("privacy", privacy, DP, "give fedax.DP(clip=..., noise=..., delta=...)"),
        ("secure", secure, SecureSum, "give fedax.SecureSum(...)"),
    )
    for name, value, kind, way_out in (*required, *(each for each in optional if each[1] is not None)):
        if not isinstance(value, kind):
            raise ConfigError(name, value, way_out)
    if until is not None and not callable(until):
        raise ConfigError("until", until, "give a function of one row of the history that tells whether to stop")
    algorithm.validate()
    work.validate(data.sizes)
    participation.validate(data.num_clients, check_count("rounds", rounds, 0, MOST))


def _task_of(given: Unknown) -> str:
    """How to make a task of what somebody took for one."""
    kind = given if isinstance(given, type) else type(given)
    libraries = {base.__module__.partition(".")[0] for base in kind.__mro__}
    if "torch" in libraries:
        return "of a PyTorch module make a task by fedax.tasks.from_torch(module, example, loss=…)"
    if found := {"flax", "equinox", "haiku"} & libraries:
        name = min(found).capitalize()
        return f"of a model of {name} make one by fedax.tasks.classification(init, apply, classes): see docs/tasks.md"
    return "give a fedax.Task, for instance one of fedax.tasks"


def _data_of(given: Unknown) -> str:
    """How to make federated data of what somebody took for it."""
    some = next(iter(given.values()), None) if isinstance(given, dict) else given
    libraries = {base.__module__.partition(".")[0] for base in type(some).__mro__}
    if {"pandas", "polars"} & libraries:
        return 'of tables make a fedax.FederatedData by fedax.data.from_frames({"name": table, …}, label=…)'
    if isinstance(given, str | os.PathLike):
        return "of files make a fedax.FederatedData, by fedax.data.from_csv(…) or FederatedData.open(folder)"
    return "give a fedax.FederatedData, such as FederatedData.from_clients makes it"


def _check_aggregator(aggregate: Aggregator | None, algorithm: Algorithm, x: Vector) -> None:
    """That the method's uploads are what an average that is no mean may be taken of."""
    if aggregate is None:
        return
    method = resolve(algorithm, 0)
    refused = functools.partial(ConfigError, "aggregate", type(aggregate).__name__)
    kind = f"{type(algorithm).__name__}: "
    if jax.tree.leaves(jax.eval_shape(method.init_client, x)):
        raise refused(kind + "its clients keep something between rounds that assumes that their uploads entered a mean")
    if any(exchange.who == "one" for exchange in method.exchanges()):
        raise refused(kind + "one client of the cohort moves the model alone, and there is nothing to average")


def _check_uploads(aggregate: Aggregator | None, algorithm: Algorithm, forms: Forms) -> None:
    """That the average can be taken of what clients send: of no change of memory; to clip, of one update alone."""
    if aggregate is None:
        return
    warmup, exchanges = forms
    for number, upload in [(k, form.upload) for stage in (warmup, exchanges) for k, form in enumerate(stage)]:
        upload = jax.eval_shape(decoded, upload)
        changes = any(map(is_change, jax.tree.leaves(upload, is_leaf=is_change)))
        if changes or (not aggregate.gathers and (not isinstance(upload, Vector) or number)):
            way_out = f"{type(algorithm).__name__} uploads more than an update of the model; use another, or none"
            raise ConfigError("aggregate", type(aggregate).__name__, way_out)


def _check_feedback(aggregate: Aggregator | None, up: Compressor) -> None:
    """That no average other than the mean is taken of messages that make up for what earlier ones lacked."""
    if up.keeps and aggregate is not None:
        why = f"{type(up).__name__} keeps what a client's messages lacked, which assumes that they entered a mean"
        raise ConfigError("aggregate", type(aggregate).__name__, f"{why}; leave one of both out")


def _check_examples(
    task: Task, census: Census, data: FederatedData | None, own: slice, parts: Mapping[str, Tree]
) -> None:
    if data is not None:
        data.check(task, own)
    for part, given in parts.items():
        try:
            if isinstance(given, FederatedData):
                given.check(task)
            _check_test(task, census, pooled_of(given))
        except ExampleError as error:
            whose = error.client if isinstance(given, FederatedData) else None
            raise ExampleError(f"{part}: {error.column}", error.example, error.what, whose) from None
        except DataError as error:
            raise DataError(f"{part}: {str(error).replace('clients[0]', 'it', 1)}") from None


def pooled_of(part: Tree) -> Tree:
    """All examples of a part of the held-out data."""
    return part.examples if isinstance(part, FederatedData) else part


def labels_of(task: Task, examples: Tree) -> dict[str, Tree]:
    """Metric -> the sums of the labels alone, of those that need them."""
    made = {name: metric for name, metric in task.whole_metrics.items() if not isinstance(metric, HostMetric)}
    if not made or not isinstance(examples, Mapping) or "y" not in examples:
        return {}
    found = {name: metric.labels(np.asarray(examples["y"])) for name, metric in made.items()}
    return {name: sums for name, sums in found.items() if jax.tree.leaves(sums)}


def _by_client(asked: Unknown, parts: Mapping[str, Tree]) -> tuple[str, ...]:
    """The parts whose clients are to have figures of their own."""
    if not isinstance(asked, bool):
        raise ConfigError("per_client", asked, "give True or False")
    found = [part for part, given in parts.items() if isinstance(given, FederatedData)] if asked else []
    if asked and not found:
        raise ConfigError("per_client", asked, "give val or test as a fedax.FederatedData, held-out examples by client")
    for part in found:
        if (n := parts[part].num_clients) > _MOST_LISTED:
            way_out = f"{n} clients of {part} are more than {_MOST_LISTED}: use fedax.evaluate when the run is over"
            raise ConfigError("per_client", asked, way_out)
    return tuple(found)


def _check_host_metrics(task: Task, census: Census, parts: Mapping[str, Tree]) -> None:
    """No metric that needs all answers in one place, where held-out examples are at the nodes of real clients."""
    for name, metric in task.whole_metrics.items():
        if isinstance(metric, HostMetric) and any(n and part not in parts for part, n in census.held.items()):
            way_out = (
                "it needs all answers on one host, and the held-out examples are at the nodes: take a metric that is "
                "made of sums, such as fedax.metrics.AUC(), or give the server held-out examples of its own"
            )
            raise ConfigError(f"task.metrics[{name!r}]", metric, way_out)


def _check_test(task: Task, census: Census, test: Tree) -> None:
    if not same_structure(test, census.example):
        raise DataError(
            f"its structure {jax.tree.structure(test)} is not that of the clients' examples, "
            f"{jax.tree.structure(census.example)}"
        )
    if all(np.shape(leaf)[:1] == (0,) for leaf in jax.tree.leaves(test)):
        raise DataError("there is no example in it; give None for no held-out data")
    # A federation of one client has the same demands on its examples.
    FederatedData.from_clients([test])
    for (path, got), own in zip(
        jax.tree_util.tree_leaves_with_path(test), jax.tree.leaves(census.example), strict=True
    ):
        if np.shape(got)[1:] != own.shape:
            name = f"examples{jax.tree_util.keystr(path)}"
            raise DataError(f"{name}: examples of shape {np.shape(got)[1:]}, the clients' have {own.shape}")
    task.check_examples(jax.tree.map(np.asarray, test))


def _initial_model(task: Task, params: Tree, key: Array) -> Vector:
    expected = jax.eval_shape(task.init, key)
    if params is None:
        x = _drawn(key, task)
        if not all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(x)):
            raise ConfigError("task.init", spelled(x), "the initial model holds values that are not finite")
        return Vector(x)
    check_params(params, expected)
    return Vector(jax.tree.map(lambda got, want: jnp.asarray(np.array(got, want.dtype)), params, expected))


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
    """Arrays on the default device, or on all of a mesh."""
    there = jax.tree.map(jnp.asarray, tree)
    return there if mesh is None else jax.device_put(there, NamedSharding(mesh, PartitionSpec()))
