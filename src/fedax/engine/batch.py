"""A batch: runs that differ in numbers only, as more batch axes of one compiled program."""

import dataclasses
import functools
import inspect
import itertools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedax.contract.types import Array, Number, Tree, Unknown
from fedax.contract.vector import Vector
from fedax.engine import processes, secret
from fedax.engine.asynchronous import begin, no_upload, some_groups, timetable_of
from fedax.engine.devices import Place, in_precision
from fedax.engine.evaluate import model_after, of_model, on_host, rows, with_objective
from fedax.engine.job import Job
from fedax.engine.loop import Counters, Federation, Hyper, State
from fedax.engine.places.device import prepare, some_rounds
from fedax.engine.plan import RunPlan, fitting, is_small, loops
from fedax.engine.timetable import Group, together
from fedax.metrics.base import HostMetric
from fedax.programs import compiled
from fedax.tasks.task import Task

_NUMBERS = 300_000  # floating-point numbers of models at work side by side on a CPU: they stay in the cache
_WAITING = 4 / 3  # so much of the time that cohorts take on all cores may seeds take that are spread over them


class BatchPlan(NamedTuple):
    """Points and seeds that run side by side, all combinations; ``new``: whether it needs a program of its own."""

    points: list[int]
    seeds: list[int]
    new: bool


def blocks_of(jobs: list[list[Job]], seeds: int, width: int | None) -> list[BatchPlan]:
    """Group points that differ in numbers only, and cut the groups into blocks that fit, if possible of one size."""
    groups: dict[Tree, list[int]] = {}
    for i, (job, *_) in enumerate(jobs):
        leaves, structure = jax.tree.flatten(job.hyper)
        form = tuple((np.shape(leaf), np.result_type(leaf)) for leaf in leaves)
        objects = tuple(map(id, (job.fed, job.evaluation.held, job.x, job.until)))
        shared = (
            objects,
            job.plan,
            job.memory,
            job.evaluation.stops,
            job.evaluation.grad_norm,
            job.evaluation.density,
            job.evaluation.train,
            job.pacing and job.pacing.shape,
        )
        groups.setdefault(((structure, form, shared), _paced(job)), []).append(i)
    blocks, extents = [], set()  # points with timetables of one shape have one program, one after the other
    for (form, _), members in groups.items():
        job = jobs[members[0]][0]
        alike = all(like(job, other) for other in jobs[members[0]][1:])
        most = 1 if job.alone or not alike else _width(job) if width is None else width
        # Points first: they share a seed's minibatches.
        across = _even(len(members), most)
        along = _even(seeds, max(1, most // across))
        for first in range(0, len(members), across):
            for start in range(0, seeds, along):
                block = BatchPlan(members[first : first + across], list(range(seeds))[start : start + along], False)
                extent = (form, len(block.points), len(block.seeds))
                blocks.append(block._replace(new=extent not in extents or not alike))
                extents.add(extent)
    return blocks


def _paced(job: Job) -> Unknown:
    """What decides who answers when, beside the seed, where the server does not wait."""
    if job.pacing is None:
        return None
    assert job.clock is not None
    form = job.forms[1][0]
    numbers, structure = jax.tree.flatten((job.clock._replace(seed=0), job.hyper.work))
    return repr(job.pacing), form.down, form.up, job.rounds, structure, tuple(np.asarray(n).tobytes() for n in numbers)


def like(job: Job, other: Job) -> bool:
    """Whether two jobs may be in one batch: all that they have is of the same form, and so are their plans."""

    def form(each: Job) -> tuple[Unknown, ...]:
        leaves, structure = jax.tree.flatten((each.fed, each.evaluation.held, each.evaluation.sample))
        return structure, [(leaf.shape, leaf.dtype) for leaf in leaves], each.plan, each.memory, each.evaluation.stops

    if job.fed is other.fed and job.evaluation.held is other.evaluation.held and job.missed is None:
        return True
    others: list[Tree]
    another: Unknown
    numbers, method = jax.tree.flatten(secret.with_noise(job.hyper, np.zeros(0)))
    others, another = jax.tree.flatten(secret.with_noise(other.hyper, np.zeros(0)))
    # The method's numbers are those of the first seed: such as weights of clients, which no seed may have otherwise.
    return form(job) == form(other) and another == method and all(map(np.array_equal, numbers, others))


def _even(number: int, most: int) -> int:
    """The size of the parts into which ``number`` things are cut, at most ``most``: all alike if that costs little."""
    size = math.ceil(number / math.ceil(number / most))
    return next((d for d in range(size, (size + 1) // 2 - 1, -1) if number % d == 0), size)


def _width(job: Job) -> int:
    """How many runs go side by side: as many as keep their models in the cache; on accelerators, in the memory."""
    size = job.x.size
    if jax.default_backend() != "cpu":
        held = job.plan.chunk_size + 4 * (
            1 + len(jax.tree.leaves(job.hyper.method.init_client(job.x))) * job.plan.num_clients
        )
        plan = job.plan
        with in_precision(plan.precision):
            fit = fitting(plan.task, job.x, job.census, plan.batch_size) // plan.chunk_size
        return max(1, min(2**30 // (size * held), fit))
    if not is_small(job.x):
        return 1
    devices = 1 if job.plan.mesh else len(jax.local_devices())
    return max(1, devices * _NUMBERS // (size * job.plan.chunk_size))


def worth_batching(job: Job, seeds: int) -> bool:
    """Whether so many seeds of a job gain from running side by side; on a CPU on a core each (:func:`on_one_core`).

    There they do unless cohorts that are spread over the cores keep these busier: the cores that have one seed less
    wait, and were measured to lose less by that than cohorts lose by waiting for each other, at up to a third.
    """
    if seeds < 2 or job.alone or processes.count() > 1:
        return False
    if jax.default_backend() != "cpu":
        return _width(job) >= seeds
    cores = len(jax.local_devices())
    return cores > 1 and is_small(job.x) and -(-seeds // cores) * job.plan.devices <= _WAITING * seeds


def on_one_core(place: Place | None) -> Place | None:
    """The place for a run of a batch: one core unless the user chose otherwise; on accelerators unchanged."""
    asked = place or Place()
    if jax.default_backend() != "cpu" or not isinstance(asked, Place) or asked.mesh is not None:
        return place
    return dataclasses.replace(asked, mesh=Mesh(np.array(jax.local_devices()[:1]), ("clients",)))


def _data_of(job: Job) -> tuple[Tree, ...]:
    return job.fed, job.evaluation.held, job.evaluation.sample


class Batch:
    """The program of several jobs: seeds × points, two batch axes.

    Points are the inner one, along which neither minibatches nor cohorts differ: they are drawn and gathered once. On a
    CPU the points, or where there is one the seeds, are spread over the cores, which then have nothing to tell each
    other. Seeds have nothing in common that is worth a wider operation: a core runs its own one after another, by a
    program that takes no longer to compile than that of a run alone.
    """

    def __init__(self, jobs: list[list[Job]]):
        self.jobs, self.seeds, self.points, first = jobs, len(jobs), len(jobs[0]), jobs[0][0]
        cores = jax.local_devices() if jax.default_backend() == "cpu" and first.plan.mesh is None else []
        axis, number = ("points", self.points) if self.points > 1 else ("seeds", self.seeds)
        self.mesh = Mesh(np.array(cores[:number]), (axis,)) if min(number, len(cores)) > 1 else None
        padding = 0 if self.mesh is None else -number % self.mesh.size  # by copies of the last
        more = {"points": 0, "seeds": 0} | {axis: padding}
        hypers = [job.hyper for job in jobs[0]]
        same = jax.tree.map(lambda *leaves: all(np.array_equal(leaves[0], leaf) for leaf in leaves), *hypers)
        varying = [eqx.partition(hyper, same)[1] for hyper in hypers]
        varying += varying[-1:] * more["points"]
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *varying)
        rows = jobs + jobs[-1:] * more["seeds"]
        # The axis of the points has a leaf of its own: points that differ in nothing that is a number have no other.
        self.varying = (np.arange(len(varying)), stacked)
        everywhere = (eqx.partition(first.hyper, same)[0], first.evaluation.density)
        data = _data_of(first)
        # Which of the axes the data have: with a split of each seed that of the seeds.
        one_for_all = all(row[0].fed is first.fed and row[0].evaluation.held is first.evaluation.held for row in jobs)
        self.data_axes = "none" if one_for_all else "seeds"
        if not one_for_all:
            data = jax.tree.map(lambda *leaves: np.stack(leaves), *(_data_of(row[0]) for row in rows))
        keys = jnp.stack([row[0].key for row in rows])
        # Of private runs what their noise depends on, [seeds, points, 4].
        width = self.points + more["points"]
        self.secrets = np.stack([[secret.of(job.hyper) for job in [*row, *row[-1:] * width][:width]] for row in rows])
        x = jax.tree.map(lambda *leaves: np.stack(leaves), *(row[0].x for row in rows))
        if self.mesh is not None:
            everywhere = jax.device_put(everywhere, NamedSharding(self.mesh, P()))
            spread = NamedSharding(self.mesh, P("seeds") if axis == "seeds" else P())
            keys, x = jax.device_put((keys, x), spread)
            both = P("seeds") if axis == "seeds" else P(None, "points")
            self.secrets = jax.device_put(self.secrets, NamedSharding(self.mesh, both))
            data = jax.device_put(data, NamedSharding(self.mesh, P()) if one_for_all else spread)
        self.common, self.density = everywhere
        self.fed, self.held, sample = data
        self.measured = self.fed if sample is None else sample
        self.keys, self.x, self.plan = keys, x, first.plan
        self.shared = self.varying, self.common, self.fed, self.keys
        self.axes = {"mesh": self.mesh, "data_axes": self.data_axes}
        self.timetables = [] if first.pacing is None else [timetable_of(row[0]) for row in jobs]
        self._last_models: tuple[list[weakref.ref[Array]], int, Tree] = ([], -1, None)

    def prepare(self) -> tuple[State, Counters]:
        if self.timetables:
            upload, slots = no_upload(self.jobs[0][0]), self.timetables[0].slots
            state, counters = _begin(*self.shared, self.x, upload, slots=slots, plan=self.plan, **self.axes)
        else:
            state, counters = _prepare(*self.shared, self.x, self.secrets, plan=self.plan, **self.axes)
        return state, self._own(counters)

    def advance(self, state: State, start: int, stop: int) -> tuple[State, Counters]:
        if self.timetables:
            return self._advance_groups(state, start, stop)
        state, counters = _advance(*self.shared, state, start, stop, plan=self.plan, **self.axes)
        return state, self._own(counters)

    def _advance_groups(self, state: State, start: int, stop: int) -> tuple[State, Counters]:
        all_counters = []
        for groups, number in together(self.timetables, start, stop, self.jobs[0][0].fed.weights.dtype):
            groups += groups[-1:] * (len(self.keys) - len(groups))  # padding
            rows = jax.tree.map(lambda *leaves: np.stack(leaves), *groups)
            state, counters = _some_groups(*self.shared, state, rows, number, plan=self.plan, **self.axes)
            all_counters.append(counters)
        clients, steps, gradients = (
            sum(leaves) for leaves in zip(*(self._own(counters[:3]) for counters in all_counters), strict=True)
        )
        answers = np.repeat([table.answers(start, stop) for table in self.timetables], self.points)
        return state, Counters(clients, steps, gradients)._replace(uploads=answers)

    def measure(self, state: State, index: int) -> list[dict[str, Unknown]]:
        models, penalties = _models(self.varying, self.common, state.server, index, **self.axes)
        first = self.jobs[0][0]
        asked = first.evaluation
        about = {"task": self.plan.task, "column": asked.train, "grad_norm": asked.grad_norm, "inner": self.plan.mesh}
        found = _figures(models, self.measured, self.held, self.density, **about, **self.axes)
        figures = self._own(with_objective(found, penalties))
        more: list[dict[str, Unknown]] = [{} for _ in range(self.seeds * self.points)]
        if first.evaluation.by_client or any(
            isinstance(metric, HostMetric) for metric in self.plan.task.metrics.values()
        ):
            every = self._own(models)
            jobs = [job for row in self.jobs for job in row]
            more = [on_host(job, jax.tree.map(lambda leaf, i=i: leaf[i], every)) for i, job in enumerate(jobs)]
        return rows(first, figures, [row[0].evaluation.labels for row in self.jobs for _ in row], more)

    def exclusions(self, state: State) -> list[Tree]:
        every = jax.tree.map(np.asarray, state.exclusions)
        places = itertools.product(range(self.seeds), range(self.points))
        return [jax.tree.map(lambda leaf, at=at: leaf[at], every) for at in places]

    def outcome(self, state: State, index: int, which: int) -> tuple[None, Tree]:
        at = divmod(which, self.points)
        model = jax.tree.map(lambda leaf: leaf[at], self._models_of(state, index))
        return None, jax.tree.map(np.array, self.jobs[0][0].delivered(model))

    def _models_of(self, state: State, index: int) -> Tree:
        """The models of all runs on the host, where a part of an array is no program; each run asks for its own."""
        leaves, (seen, at, models) = jax.tree.leaves(state.server), self._last_models
        if at != index or any(ref() is not leaf for ref, leaf in zip(seen, leaves, strict=True)):
            models, _ = _models(self.varying, self.common, state.server, index, **self.axes)
            models = jax.tree.map(np.asarray, models)
            self._last_models = [*map(weakref.ref, leaves)], index, models
        return models

    def times(self, which: int) -> Unknown:
        return self.timetables[which // self.points] if self.timetables else None

    def pace(self, index: int, which: int) -> dict[str, Unknown]:
        return self.timetables[which // self.points].late(index) if self.timetables else {}

    def traffic(self) -> dict[str, Unknown]:
        return {}

    def _own(self, tree: Tree) -> Tree:
        """Leaves [seeds, points] as [jobs], without the padding."""

        def own(leaf: Array) -> np.ndarray:
            there = np.asarray(leaf)[: self.seeds, : self.points]
            return there.reshape(-1, *there.shape[2:])

        return jax.tree.map(own, tree)


def _over_runs(f: Callable[..., Tree], mesh: Mesh | None, each: Sequence[str], *arguments: Unknown) -> Tree:
    """``f`` over seeds × points, one of them over the devices.

    ``each`` says what an argument has: "points" or "seeds" as its first axis, "both", or "none".
    """
    by_point = [0 if axes in ("points", "both") else None for axes in each]
    by_seed = [0 if axes in ("seeds", "both") else None for axes in each]
    over = jax.vmap(jax.vmap(f, in_axes=by_point), in_axes=by_seed)
    if mesh is None:
        return over(*arguments)
    (axis,) = mesh.axis_names
    if axis == "seeds":
        over = functools.partial(_one_after_another, f, each)
    spec = {axis: P(axis), "both": P(axis) if axis == "seeds" else P(None, axis)}
    specs = tuple(spec.get(axes, P()) for axes in each)
    return jax.shard_map(over, mesh=mesh, in_specs=specs, out_specs=spec["both"], check_vma=False)(*arguments)


def _one_after_another(f: Callable[..., Tree], each: Sequence[str], *arguments: Unknown) -> Tree:
    """``f`` over the seeds of one point, on one core: the program of a run alone, in a loop."""
    of_seeds = {k: argument for k, argument in enumerate(arguments) if each[k] in ("seeds", "both")}

    def one(own: dict[int, Tree]) -> Tree:
        given = list({**dict(enumerate(arguments)), **own}.values())
        for k, axes in enumerate(each):
            if axes in ("points", "both"):  # of which there is one
                given[k] = jax.tree.map(lambda leaf: leaf[0], given[k])
        return jax.tree.map(lambda leaf: leaf[None], f(*given))

    return jax.lax.map(one, of_seeds)


def _batched(
    *each: str,
    static: Sequence[str] = ("plan",),
    donate: Sequence[str] = (),
    options: Callable[[dict[str, Unknown]], dict[str, Unknown]] | None = None,
) -> Callable[[Callable[..., Tree]], Callable[..., Unknown]]:
    """A decorator that compiles a function of one run for all runs of a batch.

    Args:
        each: which axes its arguments have, of the batch: as of :func:`_over_runs`, or "data" for those of the data.
        static, donate, options: as of :func:`compiled`.
    """

    def decorate(one: Callable[..., Tree]) -> Callable[..., Unknown]:
        signature = inspect.signature(one)
        names = list(signature.parameters)[: len(each)]

        def program(*, mesh: Mesh | None, data_axes: str, **given: Unknown) -> Tree:
            arguments = [given.pop(name) for name in names]
            axes = [data_axes if axis == "data" else axis for axis in each]
            return _over_runs(functools.partial(one, **given), mesh, axes, *arguments)

        named: Unknown = functools.wraps(one)(program)
        axes = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in ("mesh", "data_axes")]
        named.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *axes])
        return compiled(static=[*static, "mesh", "data_axes"], donate=donate, options=options)(named)

    return decorate


def _hyper(varying: Tree, common: Tree) -> Hyper:
    """The hyper-parameters of one run."""
    return eqx.combine(varying[1], common)


@_batched("points", "none", "data", "seeds", "seeds", "both")
def _prepare(
    varying: Tree, common: Tree, fed: Federation, key: Array, x: Vector, own: Array, *, plan: RunPlan
) -> tuple[State, Counters]:
    return prepare(secret.with_noise(_hyper(varying, common), own), fed, key, x, plan)


@_batched("points", "none", "data", "seeds", "both", "none", "none", donate=["state"], options=loops)
def _advance(
    varying: Tree, common: Tree, fed: Federation, key: Array, state: State, start: Tree, stop: Array, *, plan: RunPlan
) -> tuple[State, Counters]:
    return some_rounds(_hyper(varying, common), fed, key, state, start, stop, plan)


@_batched("points", "none", "data", "seeds", "seeds", "none", static=["slots", "plan"])
def _begin(
    varying: Tree, common: Tree, fed: Federation, key: Array, x: Vector, upload: Tree, *, slots: int, plan: RunPlan
) -> tuple[State, Counters]:
    return begin(_hyper(varying, common), fed, key, x, upload, slots, plan)


@_batched("points", "none", "data", "seeds", "both", "seeds", "none", donate=["state"], options=loops)
def _some_groups(
    varying: Tree,
    common: Tree,
    fed: Federation,
    key: Array,
    state: State,
    groups: Group,
    number: Array,
    *,
    plan: RunPlan,
) -> tuple[State, Counters]:
    return some_groups(_hyper(varying, common), fed, key, state, groups, number, plan)


@_batched("points", "none", "both", "none", static=())
def _models(varying: Tree, common: Tree, server: Tree, index: Number) -> tuple[Tree, Tree]:
    return model_after(_hyper(varying, common).method, server, index)


@_batched("both", "data", "data", "none", static=["task", "column", "grad_norm", "inner"])
def _figures(
    model: Tree,
    fed: Federation,
    held: Tree,
    density: Number,
    *,
    task: Task,
    column: str,
    grad_norm: bool,
    inner: Mesh | None,
) -> dict[str, Unknown]:
    """The figures that need no method: compared methods share their program."""
    asked: Unknown = {"task": task, "column": column, "grad_norm": grad_norm, "mesh": inner}
    return of_model(model, fed, held, density, None, **asked)
