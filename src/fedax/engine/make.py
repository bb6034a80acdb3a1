"""A run's job in four steps, each with a result of its own: check, plan, trace, bind."""

import dataclasses
import functools
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from fedax.contract.algorithm import Algorithm
from fedax.contract.compression import Compressor
from fedax.contract.personal import PersonalPart, adapts, has_personal, model_in
from fedax.contract.types import Array, Tree, Unknown
from fedax.contract.vector import Vector
from fedax.data.federated import FederatedData
from fedax.engine import private, processes, secured
from fedax.engine.checks import (
    by_client_of,
    check_aggregator,
    check_batch_size,
    check_draws,
    check_examples,
    check_feedback,
    check_host_metrics,
    check_parts,
    check_uploads,
    evaluation_rounds,
    labels_of,
    pooled_of,
    sampled_rows,
    train_loss_of,
)
from fedax.engine.deadline import steps_within
from fedax.engine.declared import takes
from fedax.engine.devices import Place
from fedax.engine.dry_run import DryRun, dry_run
from fedax.engine.fingerprint import FILES, fingerprint
from fedax.engine.job import EvaluationPlan, Job, Missed, Origin
from fedax.engine.layers import Forms, inside, known_forms, layered
from fedax.engine.load import Shared, federation_of, on_devices, one_type, start, streamed
from fedax.engine.loop import Federation, Hyper
from fedax.engine.memory import where
from fedax.engine.options import Options
from fedax.engine.places.device import first_state
from fedax.engine.plan import RunPlan, is_small, make_plan
from fedax.engine.timetable import Pacing, pacing, participation_of
from fedax.engine.turns import PersonalPlan, own_rows
from fedax.errors import ConfigError, caller_level
from fedax.federation.census import Census
from fedax.federation.participation import Participation, WithoutLate
from fedax.federation.work import Deadline, GeometricSteps, Steps, StepsByRound, Work
from fedax.numbers import check_count, check_number
from fedax.tasks.task import Task
from fedax.tasks.trainable import apart
from fedax.wire.compressed import Compression
from fedax.wire.privacy import Private
from fedax.wire.wire import Wire

if TYPE_CHECKING:
    from fedax.privacy import Ledger


_NAMED = 10  # parameters that a warning names

_warned: weakref.WeakSet[Task] = weakref.WeakSet()


@dataclasses.dataclass(frozen=True)
class JobOptions(Options):
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
    shared: Shared = dataclasses.field(default_factory=Shared)

    @property
    def parts(self) -> dict[str, Tree]:
        """Of the data, too, the test examples of clients that take no part."""
        unseen = self.data.unseen if isinstance(self.data, FederatedData) else None
        return super().parts | ({} if unseen is None else {"unseen": unseen.test})


class CheckedInput(NamedTuple):
    """What is given for a run, checked, with defaults filled in.

    Attributes:
        asked: with its defaults.
        algorithm: with a pace, as it is paced.
        task: what is trained of ``asked.task``.
        census: of the clients.
        data: ``None`` where they are at nodes.
        own: the clients that belong to this process.
        work, participation, place: as of :func:`fedax.simulate`; with a pace, the participation says who starts.
        batch_size, min_heard: in their types.
        up, wire: what becomes of uploads and downloads.
        deadline, missed: where the work was a deadline by the clock, that, and who misses it; else ``None``.
    """

    asked: JobOptions
    algorithm: Algorithm
    task: Task
    census: Census
    data: FederatedData | None
    own: slice
    work: Work
    participation: Participation
    place: Place
    batch_size: int | None
    min_heard: float
    up: Compressor | None
    wire: Wire
    deadline: Deadline | None = None
    missed: Missed | None = None


class PlannedRun(NamedTuple):
    """A checked run with what is fixed before anything is traced.

    Attributes:
        plan: as of :class:`Job`.
        hyper: as of :class:`Job`, before the run's layers are around the method.
        key, x: the run's random key, the initial model.
        stops: the rounds after which to evaluate.
        lossy: the wire, with uploads that may get lost at real nodes.
        stream: whether examples come to the device cohort by cohort.
    """

    plan: RunPlan
    hyper: Hyper
    key: Array
    x: Vector
    stops: tuple[int, ...]
    lossy: Wire
    stream: bool


class Traced(NamedTuple):
    """A method with the layers of its run, traced; and how many rounds its budget of privacy allows.

    Attributes:
        method: with all layers.
        compressed: without noise.
        forms: of the exchanges, as they are sent.
        program: gives a digest of what a round is made of.
        ledger: what the run spends of privacy, or ``None``.
        rounds, stops: as of :class:`Job`.
        told: whether the server works with unequal local steps, of which privacy lets it know the largest number alone.
    """

    method: Algorithm
    compressed: Algorithm
    forms: Forms
    program: Callable[[], str]
    ledger: "Ledger | None"
    rounds: int
    stops: tuple[int, ...]
    told: bool


@takes(JobOptions)
def make_job(asked: JobOptions) -> Job:
    """Check what :func:`fedax.simulate` is given, and make a job of it.

    Raises:
        ConfigError, DataError: as of :func:`fedax.simulate`.
    """
    checked = within_deadline(check(asked))
    planned = plan(checked)
    return bind(checked, planned, trace(checked, planned))


def check(asked: JobOptions) -> CheckedInput:
    """Check everything that needs neither a trace nor a device."""
    given = with_own_parts(asked.with_defaults())
    algorithm, task, data = given.algorithm, given.task, given.data
    here = data if isinstance(data, FederatedData) else None
    census: Unknown = data if here is None else Census.of(here)
    check_parts(algorithm, task, census, given)
    work, participation, place = given.work, given.participation, given.place
    assert work is not None and participation is not None and place is not None
    if given.pace is not None:
        participation = participation_of(given, algorithm, census, here is not None)
        algorithm = algorithm.paced(census.weights)
    compression, own, parts, trained = Compression.of(given.compress), processes.own(census), given.parts, task.trained
    given.shared.once("checked", lambda: check_examples(trained, census, here, own, parts), *_held_of(given, trained))
    by_client_of(task.run_metrics.get("per_client"), parts)
    check_host_metrics(trained, census, parts)
    train_loss_of(given, task, census, here is not None)
    batch_size = None if given.batch_size is None else check_batch_size(given.batch_size, census)
    min_heard = check_number("min_heard", given.min_heard, 0, 1, open_low=True, fixed=True)
    wire = given.wire(compression)
    private.check(wire, algorithm, participation, census, given.until, parts)
    secured.check(wire, algorithm, participation, census)
    algorithm, up, wire = one_type((algorithm, compression.up, wire))
    return CheckedInput(
        given, algorithm, trained, census, here, own, work, participation, place, batch_size, min_heard, up, wire
    )


def with_own_parts(given: JobOptions) -> JobOptions:
    """The options of a run, with :func:`own_parts`."""
    method, task = own_parts(given.algorithm, given.task, given.params)
    if task is given.task:
        return given
    x = None if given.params is None else task.init(jax.random.key(0))
    return dataclasses.replace(given, algorithm=method, task=task, params=x)


def own_parts(method: Algorithm, task: Task, params: Tree = None) -> tuple[Algorithm, Task]:
    """Where clients keep a part of the model: the method with where they begin, and the task that learns the rest."""
    if not isinstance(method, PersonalPart) or not isinstance(task, Task) or method.start is not None:
        return method, task
    part = apart(task, method.leaves, params)
    x = Vector(part.trained.form())
    if jax.eval_shape(lambda x: model_in(method.download(method.init(x))).tree, x) != x.tree:
        hint = f"clients of {method.traits().name} get several models, and there is one part of their own for them"
        raise ConfigError("leaves", method.leaves, hint)
    return begun_at(method, part.frozen), part


def begun_at(method: Algorithm, frozen: Tree) -> Algorithm:
    """The method; where clients keep a part of the model, with the values at which that part begins."""
    if not isinstance(method, PersonalPart):
        return method
    own = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32 if leaf.dtype.itemsize < 4 else None), frozen)
    return dataclasses.replace(method, start=own)


def _held_of(given: JobOptions, task: Task) -> tuple[Unknown, ...]:
    """The objects that held-out examples on a device depend on."""
    return task, given.data, given.val, given.test


def within_deadline(checked: CheckedInput) -> CheckedInput:
    """With the steps that clients manage within a deadline by the clock, and without clients that manage none.

    How long transfers take follows from the exchanges, which do not depend on the steps: they are traced with others.
    """
    asked, work = checked.asked, checked.work
    if not isinstance(work, Deadline) or work.speed is not None:
        return checked
    if asked.clock is None or checked.data is None:
        raise ConfigError("work.speed", None, "give local steps a second; or, in a simulation, clock=fedax.Clock(...)")
    first = checked._replace(work=GeometricSteps(1.0))
    traced = trace(first, plan(first))
    clock = asked.clock.bind(checked.census, asked.seed)
    rounds = traced.rounds if asked.pace is None and clock.anew else None
    time, sizes = float(work.time), checked.census.sizes
    steps = steps_within(time, clock, traced.forms[1], sizes, checked.batch_size, rounds)
    late, taken = steps < 1, np.maximum(steps, 1)
    timed = dataclasses.replace(asked, work=Steps(taken) if rounds is None else StepsByRound(taken))
    if asked.pace is not None:
        if late.any():
            hint = f"client {np.argmax(late)} manages no step, and without rounds nobody can miss one: give more time"
            raise ConfigError("work.time", work.time, hint)
        return check(timed)._replace(deadline=work)
    if late.any():
        if checked.wire.privacy is not None:
            slow = np.argmax(late if late.ndim == 1 else late.any(0))
            hint = f"client {slow} misses it, and no guarantee is known of clients that answer by their speed"
            raise ConfigError("work.time", work.time, f"{hint}; give more time, or local steps a second, speed")
        timed = dataclasses.replace(timed, participation=WithoutLate(checked.participation, late))
    return check(timed)._replace(deadline=work, missed=Missed(late, time))


def plan(checked: CheckedInput) -> PlannedRun:
    """Fix what does not change during a run, and draw its first model."""
    asked, task, census, here = checked.asked, checked.task, checked.census, checked.data
    work, participation, place = checked.work, checked.participation, checked.place
    stops = evaluation_rounds(int(asked.rounds), asked.evaluate_every)
    key, x = start(task, asked.params, asked.seed, asked.shared)
    # With a pace clients are late.
    lost = here is None and asked.pace is None and checked.algorithm.traits().cohorts == "any"
    lossy = dataclasses.replace(checked.wire, lossy=lost)
    made = make_plan(census, task, x, work, checked.batch_size, participation, lossy, place)
    made = dataclasses.replace(made, mesh=None) if here is None else made
    if asked.pace is not None:
        missing = "clients that answer when they are done" if checked.algorithm.pace().buffer is None else None
        made = dataclasses.replace(made, full=False, missing=missing)
    checked.algorithm.traits().refuse(missing=made.missing, unequal=made.steps is None)
    check_aggregator(asked.aggregate, checked.algorithm, x)
    hyper = Hyper(checked.algorithm, work, participation.bind(census.weights), checked.wire)
    look = functools.partial(check_draws, hyper, census, made, key, int(asked.rounds))
    known = int(asked.rounds), checked.batch_size, repr(asked.work)  # a default is another object at each point
    asked.shared.once("draws", look, asked.data, asked.participation, type(asked.work), of=known)
    stream = here is not None and streamed(place.stream, here, checked.own, made.devices)
    return PlannedRun(made, hyper, key, x, stops, lossy, stream)


def trace(checked: CheckedInput, planned: PlannedRun) -> Traced:
    """Trace a round, with each layer that is put around the method, and check what it sends."""
    asked, census, plan, stops = checked.asked, checked.census, planned.plan, planned.stops
    hyper, key, x, up = planned.hyper, planned.key, planned.x, checked.up
    fed = federation_of(census, None, checked.own)._replace(examples=census.examples(2), frozen=checked.task.frozen)
    wire, participation = hyper.wire, checked.participation
    # Neither the devices nor how many clients run side by side are part of what a round is. Tracing two at a time shows
    # what cannot have a batch axis; of large models it would take twice as long.
    side_by_side = min(2 if is_small(x.tree) else 1, participation.places(census.num_clients))
    plain = dataclasses.replace(plan, mesh=None, chunk_size=side_by_side)

    def traced(method: Algorithm, wire: Wire) -> DryRun:
        return dry_run(hyper._replace(method=method, wire=wire), fed, key, x, plain)

    alone = traced(hyper.method, inside(wire))
    _warn_of(checked.task, alone.idle, len(jax.tree.leaves(x.tree)))
    check_uploads(asked.aggregate, hyper.method, alone.forms)
    rounds, ledger = int(asked.rounds), None
    if asked.privacy is not None:
        drawn = private.numbers_of(asked.privacy, alone.forms)
        ledger = private.ledger(asked.privacy, hyper.method, participation, census.num_clients, drawn)
        rounds, stops = private.within(asked.privacy, ledger, rounds, stops)
    if up is not None:
        check_feedback(asked.aggregate, up)
    with_numbers = functools.partial(
        private.known, census=census, participation=participation, plan=plan, rounds=rounds
    )
    layers = layered(hyper.method, alone, up, wire, traced, with_numbers)
    noise = ""
    if isinstance(layers.method, Private) and layers.method.privacy.bands > 1:
        noise = f" {layers.method.coefficients.tolist()}"  # another mechanism where it is meant for other rounds
    forms = known_forms(layers.made.forms, layers.method, wire)
    forms = secured.forms(wire, layers.compressed, participation, census, forms)
    told = layers.made.uses_steps and plan.steps is None
    digest = lambda: layers.made.digest + noise  # noqa: E731
    return Traced(layers.method, layers.compressed, forms, digest, ledger, rounds, stops, told)


def _warn_of(task: Task, idle: list[str], number: int) -> None:
    """Warn of parameters that no gradient reaches; once of a task, for it may be in many runs."""
    if idle and task not in _warned:
        _warned.add(task)
        few = ", ".join(idle[:_NAMED]) + (", …" if len(idle) > _NAMED else "")
        text = f"{len(idle)} of {number} arrays of parameters never get a gradient; they stay as they are and are sent"
        hint = "Keep constants out of what init returns, or learn the rest alone: fedax.tasks.partial(task, …). "
        hint += "If these are statistics of BatchNorm: fedax keeps none, use GroupNorm or LayerNorm"
        warnings.warn(f"{text}: {few}. {hint}", UserWarning, stacklevel=caller_level())


def bind(checked: CheckedInput, planned: PlannedRun, traced: Traced) -> Job:
    """Put the data where the run needs them, and make the job."""
    asked, census, here, own = checked.asked, checked.census, checked.data, checked.own
    plan, x, whole = planned.plan, planned.x, asked.task
    # At nodes time is measured.
    clock = None if here is None or asked.clock is None else asked.clock.bind(census, asked.seed)
    _check_start(checked, planned)
    if traced.told:
        text = f"privacy: the server works with local steps, and is told that all clients take {plan.max_steps}, "
        text += "the most that one may. Give all equally many; "
        text += "where it steps too far, a smaller server_lr makes up for it"
        warnings.warn(text, UserWarning, stacklevel=caller_level())
    row = jax.eval_shape(first_state, traced.method, x)[1]
    paced = pacing(asked, planned.hyper.method, row, traced.forms[1][0])
    memory = "nodes"
    if here is not None:
        on_device = not planned.stream and processes.count() == 1
        memory = where(
            checked.place.client_memory, own.stop - own.start, row, plan.devices, plan.full, on_device=on_device
        )
    if paced is not None and here is not None and (memory != "device" or planned.stream):
        hint = "asynchronous rounds are simulated, in one process, with client memory and examples on the device"
        raise ConfigError("pace", asked.pace, hint)
    fed = _on_devices(checked, planned)
    job = Job(
        hyper=planned.hyper._replace(method=traced.method, wire=planned.lossy),
        fed=fed,
        key=planned.key,
        x=x,
        data=here if planned.stream else None,
        census=census,
        own=own,
        plan=plan,
        memory=memory,
        forms=traced.forms,
        settings=_settings(checked, planned, traced, paced),
        rounds=traced.rounds,
        evaluation=_evaluation(checked, planned, traced, fed),
        until=asked.until,
        min_heard=checked.min_heard,
        seed=asked.seed,
        form=asked.shared.once("form", whole.form, whole),
        origin=Origin(
            whole.entire, census.example, names_of_classes(census, here), census.transform, whole, asked.params
        ),
        ledger=traced.ledger,
        spent=traced.rounds < int(asked.rounds),
        pacing=paced,
        clock=clock,
        missed=checked.missed,
    )
    return job if processes.count() == 1 else _of_all_processes(job)


def _on_devices(checked: CheckedInput, planned: PlannedRun) -> Federation:
    """The data and what is frozen of the model; one object for all jobs, for others do not run side by side."""
    shared, mesh, task = checked.asked.shared, planned.plan.mesh, checked.task
    there = None if planned.stream else checked.data
    made = lambda: on_devices(federation_of(checked.census, there, checked.own), mesh)  # noqa: E731
    fed = shared.once("data", made, checked.asked.data, of=(mesh, planned.stream))
    frozen = shared.once("frozen", lambda: on_devices(task.frozen, mesh), task, of=mesh)
    return shared.once("federation", lambda: fed._replace(frozen=frozen), fed, frozen)


def _evaluation(checked: CheckedInput, planned: PlannedRun, traced: Traced, fed: Federation) -> EvaluationPlan:
    """When the model is evaluated, and on what."""
    asked, task, mesh, metrics = checked.asked, checked.task, planned.plan.mesh, checked.asked.task.run_metrics
    shared, held_of, density = asked.shared, _held_of(asked, task), metrics.get("density")
    pooled = {part: pooled_of(each) for part, each in asked.parts.items()}
    labels = lambda: {part: labels_of(task, examples) for part, examples in pooled.items()}  # noqa: E731
    column, rows = train_loss_of(asked, asked.task, checked.census, checked.data is not None)

    def sample() -> Federation:
        assert checked.data is not None
        at = sampled_rows(checked.data, rows)
        examples = jax.tree.map(lambda leaf: leaf[at], checked.data.examples)
        made = Federation(examples, np.zeros(1, np.int32), np.full(1, rows, np.int32), np.ones_like(fed.weights[:1]))
        there: Federation = on_devices(made, mesh)
        return there._replace(frozen=fed.frozen)

    return EvaluationPlan(
        stops=traced.stops,
        held=shared.once("held", lambda: on_devices(pooled, mesh), *held_of, of=mesh),
        parts=asked.parts,
        labels=shared.once("labels", labels, *held_of),
        by_client=by_client_of(metrics.get("per_client"), asked.parts),
        grad_norm="grad_norm" in metrics,
        density=None if density is None else density.threshold,
        personal=_personal(checked, planned),
        unseen=_unseen(checked, planned),
        train=column,
        sample=shared.once("sample", sample, fed, checked.data, of=(mesh, rows)) if rows else None,
    )


def _personal(checked: CheckedInput, planned: PlannedRun) -> PersonalPlan | None:
    """How personal models are evaluated; ``None``: the method has none."""
    given, data, parts = checked.asked.newcomer_turns, checked.data, checked.asked.parts
    asked = 1 if given is None else check_count("newcomer_turns", given, 0)
    if not has_personal(planned.hyper.method):
        return None
    turns = None if adapts(planned.hyper.method) else asked  # a new client's model is fine-tuned as all others
    if data is None:
        at_nodes = [part for part, number in checked.census.held.items() if number and part not in parts]
        return PersonalPlan(turns, dict.fromkeys(at_nodes))
    names = [data.name(i) for i in range(data.num_clients)]
    found = {part: own_rows(held, names) for part, held in parts.items()}
    for part, held in parts.items():
        of = [held.name(i) for i, n in enumerate(held.sizes) if n] if isinstance(held, FederatedData) else []
        others = sorted({*of} - {*names})
        if others and found[part] is not None:  # methods without personal models would be judged by more rows
            hint = "is in no training data, so that it has no model of its own: leave its rows out, or leave the client"
            raise ConfigError(part, others[0], f"{hint} out of training by fedax.data.split(data, clients=...)")
    return PersonalPlan(turns, {part: rows for part, rows in found.items() if rows is not None})


def _check_start(checked: CheckedInput, planned: PlannedRun) -> None:
    """Refuse an initial model that nodes cannot know, where their clients keep something of it from the beginning."""
    if checked.data is not None or checked.asked.params is None:
        return
    method, x = planned.hyper.method, planned.x
    kept, other = (first_state(method, each)[1] for each in (x, x.map(lambda leaf: leaf + 1)))
    if not jax.tree.all(jax.tree.map(lambda a, b: bool(np.array_equal(a, b)), kept, other)):
        hint = f"clients of {method.traits().name} at nodes begin from the model that the task draws; leave it out"
        raise ConfigError("params", "a model", f"{hint} (task.start)")


def _unseen(checked: CheckedInput, planned: PlannedRun) -> Job | None:
    """The clients that take no part, as those of a run of their own without rounds: for their personal models."""
    asked, data = checked.asked, checked.data
    if data is None or data.unseen is None or not has_personal(planned.hyper.method):
        return None
    if processes.count() > 1:
        hint = "personal models of clients that take no part are measured in a run of one process"
        raise ConfigError("data.unseen", processes.count(), hint)
    if asked.pace is not None:
        hint = "a server that does not wait does not measure personal models of clients that take no part"
        raise ConfigError("pace", asked.pace, hint)
    numbers = next((name for name in ("steps", "speed") if np.ndim(getattr(asked.work, name, 0))), None)
    if numbers is not None or isinstance(asked.work, Deadline):
        hint = "a client that takes no part has none of its own: give all clients the same steps or epochs"
        raise ConfigError(f"work.{numbers or 'deadline'}", "one for each client", hint)
    given = {name: getattr(asked, name) for name in ("work", "batch_size", "params", "newcomer_turns", "seed")}
    given |= {"rounds": 0, "train_loss": "none", "test": data.unseen.test}
    return make_job(asked.algorithm, asked.task, data.unseen.train, **given)


def _settings(
    checked: CheckedInput, planned: PlannedRun, traced: Traced, paced: Pacing | None
) -> Callable[[], dict[str, str]]:
    """What makes the run, by name, as text."""
    asked, census = checked.asked, checked.census
    named = planned.hyper._replace(method=traced.compressed, participation=checked.participation)
    given = dataclasses.replace(
        asked,
        batch_size=checked.batch_size,
        clock=None if checked.data is None else asked.clock,
        pace=None if paced is None else paced.pace,
    )
    rows = None if checked.data is None or checked.data.unseen is None else checked.data.unseen.train
    pooled = {
        part: pooled_of(each)
        for part, each in ({"data": checked.data, "unseen rows": rows} | asked.parts).items()
        if each is not None
    }

    def settings() -> dict[str, str]:
        about = planned.plan.precision, planned.x, traced.program()
        found = fingerprint(given, named, asked.task, census, pooled, *about)
        if paced is not None:
            found |= paced.settings(census.num_clients, traced.rounds)
        if checked.deadline is not None:
            found = {name: text for name, text in found.items() if name not in ("work.table", "work.index")}
            found |= {"work": "Deadline", "work.time": str(checked.deadline.time)}
            if isinstance(checked.work, StepsByRound):  # the steps of all rounds are known, and their largest, K
                found["work.rounds"] = str(traced.rounds)
        return found

    return functools.cache(settings)


def _of_all_processes(job: Job) -> Job:
    """The job, which has to be the same in all processes; files may be copies of their own."""
    settings, evaluation = job.settings(), job.evaluation
    content = {name: text for name, text in settings.items() if name != FILES}
    about = evaluation.stops, evaluation.grad_norm, evaluation.density, evaluation.by_client
    processes.same("job", f"{content} {job.rounds} {about}")
    if FILES in settings:
        settings[FILES] = processes.text_from_first(settings[FILES])
    return job


def names_of_classes(census: Census, data: FederatedData | None) -> tuple[str | int, ...] | None:
    """What the classes are called: texts of tables, or −1 and +1; ``None``: numbers from 0 on, or there are none."""
    if census.transform is not None:
        return census.transform.classes
    y = data.examples.get("y") if data is not None and isinstance(data.examples, dict) else None
    return (-1, 1) if y is not None and y.ndim == 1 and y.size and y.min() == -1 and y.max() == 1 else None
