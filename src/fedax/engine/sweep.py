"""sweep: many runs, alike but for numbers, side by side in one compiled program."""

import contextlib
import dataclasses
import functools
import itertools
import math
import os
import pathlib
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedax.columns import choosing, higher_is_better
from fedax.contract.types import Array, Number, Tree, Unknown
from fedax.contract.vector import Vector
from fedax.data.federated import FederatedData
from fedax.engine import processes, secret
from fedax.engine.asynchronous import begin, no_upload, some_groups, timetable_of
from fedax.engine.checkpoint import Checkpoints, Keeper, discard, present
from fedax.engine.declared import takes
from fedax.engine.devices import Place, in_precision
from fedax.engine.drive import drive
from fedax.engine.evaluate import model_after, of_model, on_host, rows, with_objective
from fedax.engine.history import FAILED, Run
from fedax.engine.job import Job, with_seed
from fedax.engine.load import Shared
from fedax.engine.loop import State, Tally
from fedax.engine.make import make_job
from fedax.engine.options import CommonOptions
from fedax.engine.places.device import prepare, some_rounds
from fedax.engine.plan import Plan, fitting, is_small, loops
from fedax.engine.simulate import program as alone
from fedax.engine.timetable import Group, together
from fedax.errors import ConfigError, complete
from fedax.federation.work import Deadline
from fedax.metrics.base import HostMetric
from fedax.numbers import check_count, check_number
from fedax.programs import compiled
from fedax.progress import Progress, wanted
from fedax.tasks.task import Task

Point = dict[str, Unknown]

BATCH = "batch-"  # how the folders of those that run side by side begin
_WAITING = 4 / 3  # so much of the time that cohorts take on all cores may seeds take that are spread over them
_NUMBERS = 300_000  # floating-point numbers of models at work side by side on a CPU: they stay in the cache


@dataclasses.dataclass(frozen=True)
class Range:
    """Values from ``low`` to ``high``, both included.

    Args:
        low, high: low < high; both > 0 where ``log``.
        points: how many a grid takes, at least 2.
        log: evenly spaced, and drawn, on a logarithmic scale.

    Raises:
        ConfigError: values out of range.

    Example:
        >>> [round(value, 6) for value in Range(0.001, 0.1, points=3).values()]
        [0.001, 0.01, 0.1]
    """

    low: float
    high: float
    points: int = 5
    log: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.log, bool):
            raise ConfigError("log", self.log, "give True or False")
        check_number("low", self.low, 0 if self.log else -math.inf, open_low=self.log, fixed=True)
        check_number("high", self.high, self.low, open_low=True, fixed=True)
        check_count("points", self.points, 2)

    def values(self) -> list[float]:
        """The points of a grid."""
        space = np.geomspace if self.log else np.linspace
        return [float(value) for value in space(self.low, self.high, self.points)]

    def draw(self, rng: np.random.Generator) -> float:
        """A random value."""
        if self.log:
            return float(np.exp(rng.uniform(math.log(self.low), math.log(self.high))))
        return float(rng.uniform(self.low, self.high))


@complete
def random_points(space: Mapping[str, Unknown], number: int, seed: int = 0) -> list[Point]:
    """Random search: ``number`` independent draws, to be given to :func:`sweep` in the place of a grid.

    Args:
        space: name -> :class:`Range`, or a sequence of values, all as likely.
        number: how many points.
        seed: of the draws.

    Raises:
        ConfigError: an axis without values, or numbers out of range.

    Example:
        >>> points = random_points({"lr": Range(0.01, 1), "momentum": [0.0, 0.9]}, 3)
        >>> len(points), sorted(points[0])
        (3, ['lr', 'momentum'])
    """
    rng = np.random.default_rng(check_count("seed", seed, 0))
    axes = {name: _axis(name, values) for name, values in _named(space).items()}

    def draw(values: Tree) -> Tree:
        return values.draw(rng) if isinstance(values, Range) else values[rng.integers(len(values))]

    return [{name: draw(values) for name, values in axes.items()} for _ in range(check_count("number", number))]


class Sweep:
    """The outcome of :func:`sweep`.

    Attributes:
        points: the hyper-parameters of each point.
        seeds: the seeds; every point has a run with each.
        runs: ``runs[i][k]``, the :class:`Run` of point i with seed number k.
        programs: how many compiled programs it took.

    Example:
        >>> import fedax
        >>> data, task = fedax.data.quadratics(clients=3, dimension=2), fedax.tasks.quadratic(2)
        >>> found = fedax.sweep(lambda lr: fedax.create("fedavg", lr=lr), {"lr": [0.001, 0.1]}, task, data, rounds=4)
        >>> found.best()
        {'lr': 0.1}
    """

    def __init__(
        self,
        points: list[Point],
        seeds: list[int],
        runs: list[list[Run]],
        programs: int,
        metrics: Mapping[str, Unknown] | None = None,
    ):
        self.points, self.seeds, self.runs, self.programs = points, seeds, runs, programs
        self._metrics = metrics

    @property
    def criterion(self) -> str:
        """The column by which points are chosen where none is named: ``val_loss``, or without it ``train_loss``."""
        return choosing(self.runs[0][0].history)

    def scores(self, criterion: str | Callable[[Run], float] | None = None, last: int = 1) -> np.ndarray:
        """[points, seeds] values of a criterion at the end of each run; not-a-number where it failed.

        A run fails that diverges, ends worse than it began, or is stopped by its guard.

        Args:
            criterion: a column of the history, or a function of a :class:`Run`; default: :attr:`criterion`.
            last: the mean of so many last evaluations, where the criterion is a column.

        Raises:
            ConfigError: there is no such column.
        """

        by = self.criterion if criterion is None else criterion
        every = (run.public_columns for runs in self.runs for run in runs)
        public = next((columns for columns in every if columns is not None), None)
        if public is not None and isinstance(by, str) and by in self.runs[0][0].history and by not in public:
            way_out = (
                "it is measured on clients, and the choice among private runs must not depend on them: give val= of "
                "no client; or a function of a run, whose choice ε does not cover"
            )
            raise ConfigError("criterion", by, way_out)

        def score(run: Run) -> float:
            if run.status in FAILED:
                return math.nan
            if not isinstance(by, str):
                return float(by(run))
            if by not in run.history:
                raise ConfigError("criterion", by, f"the history has: {', '.join(run.history)}")
            return float(np.mean(run.history[by][-check_count("last", last) :]))

        return np.array([[score(run) for run in runs] for runs in self.runs])

    def table(
        self, criterion: str | Callable[[Run], float] | None = None, *, higher: bool | None = None, last: int = 1
    ) -> list[dict[str, Unknown]]:
        """A row for each point, the best first: its values, ``mean`` and ``std`` over the seeds, ``failed`` runs.

        Args:
            criterion, last: as of :meth:`scores`.
            higher: whether higher is better; ``None``: as the metric or the column's name tells
                (:mod:`fedax.columns`), and for a function it is not. A point of which a run failed comes after all
                others.

        Raises:
            ConfigError: there is no such column, or its name does not tell which way is better.
        """
        criterion = self.criterion if criterion is None else criterion
        scores = self.scores(criterion, last)
        if higher is None:
            higher = isinstance(criterion, str) and higher_is_better(criterion, "higher", self._metrics)
        found = []
        for point, values in zip(self.points, scores, strict=True):
            good = values[~np.isnan(values)]
            mean = float(good.mean()) if good.size else math.nan
            std = float(good.std(ddof=1)) if good.size > 1 else math.nan
            found.append(point | {"mean": mean, "std": std, "failed": int(np.isnan(values).sum())})
        sign = -1 if higher else 1
        return sorted(found, key=lambda row: (math.isnan(row["mean"]), row["failed"], sign * row["mean"]))

    def best(
        self, criterion: str | Callable[[Run], float] | None = None, *, higher: bool | None = None, last: int = 1
    ) -> Point:
        """The point that comes first in :meth:`table`."""
        first = self.table(criterion, higher=higher, last=last)[0]
        return {name: value for name, value in first.items() if name not in ("mean", "std", "failed")}

    def __repr__(self) -> str:
        return f"Sweep({len(self.points)} points × {len(self.seeds)} seeds, {self.programs} compiled programs)"


_ELSEWHERE = {"algorithm": "make(**point) returns it", "seed": "seeds=…"}


def _check_names(given: Mapping[str, Unknown]) -> None:
    for name, elsewhere in _ELSEWHERE.items():
        if name in given:
            raise ConfigError(name, given[name], f"sweep has it by another way: {elsewhere}")


@dataclasses.dataclass(frozen=True)
class _Swept(CommonOptions):
    """The arguments of :func:`sweep`.

    Args:
        make: ``make(**point)`` gives a method, or a dictionary of arguments of :func:`simulate`, of which
            ``"algorithm"`` is one, for what else depends on the point: ``work``, ``batch_size``, ``participation``,
            ``privacy``, ``compress``, ``clock``, ``pace``, ``guard``, ``faults``, ``aggregate``, ``secure``.
        grid: name -> sequence of values or :class:`Range`, of which all combinations are tried; or the points
            themselves, dictionaries, for instance of :func:`random_points` or of a tuner such as Optuna. The names are
            those of the arguments of ``make``, whatever it makes of them. (In a configuration they are settings:
            ``methods.<name>.<setting>``, ``work.…``, ``participation.…``, ``privacy.…``, ``clock.…``, ``pace.…``,
            ``run.compress.…`` and ``run.batch_size``.) Of private runs each has noise and a ledger, ε, of its own.
        task: what is learned.
        data: the clients' data.
        seeds: how many (0, 1, …), or which. They share nothing; all points have the same.
        by_seed: seed -> ``data``, ``val``, ``test`` of its own, in place of those of all: another split of the same
            examples, say. Seeds whose data have the same shapes, client by client, run side by side.
        width: most runs side by side; default: by the model's size.
        callback: called as ``callback(point, seed, row)`` with each row of the histories; by a sweep that goes on from
            checkpoints with those that it had, too.
        checkpoint: a folder for checkpoints, or :class:`fedax.Checkpoints`, as of :func:`simulate`. Runs that go side
            by side have one together, in ``batch-<k>``; of those that are over, histories and models stay there and are
            not made again. The same call goes on, bit-identical, on as many cores.
    """

    make: Callable[..., Tree]
    grid: Mapping[str, Unknown] | Iterable[Point]
    task: Task
    data: FederatedData
    _: dataclasses.KW_ONLY
    seeds: int | Sequence[int] = 1
    by_seed: Mapping[int, Mapping[str, Unknown]] | None = None
    width: int | None = None
    callback: Callable[[Point, int, dict[str, Unknown]], None] | None = None
    checkpoint: Checkpoints | str | os.PathLike[str] | None = None


@complete
@takes(_Swept, _check_names)
def sweep(given: _Swept) -> Sweep:
    """Train at every point of a grid with every seed, side by side.

    Points that differ in numbers only are more batch axes of one compiled program; what differs in shape (local steps,
    batch size, cohort, another method) becomes another program by itself. Each run has the same random numbers as
    :func:`simulate` gives it, and the same history up to rounding.

    Returns:
        :class:`Sweep`. Its runs keep models and histories, but no client memory. Their ``seconds`` are shares of the
        time of those that ran side by side.

    Raises:
        ConfigError, DataError, CheckpointError: as :func:`simulate`, for all points before any of them runs.

    Example:
        >>> import fedax
        >>> data = fedax.FederatedData({"H": np.ones((2, 1, 1)), "e": np.array([[1.0], [3.0]])}, sizes=[1, 1])
        >>> found = sweep(
        ...     lambda lr: fedax.create("fedavg", lr=lr),
        ...     {"lr": [0.01, 0.1]},
        ...     fedax.tasks.quadratic(1),
        ...     data,
        ...     rounds=5,
        ...     seeds=2,
        ... )
        >>> found, found.best()
        (Sweep(2 points × 2 seeds, 1 compiled programs), {'lr': 0.1})
    """
    points, chosen = _points(given.grid), _seeds(given.seeds)
    by_seed = given.by_seed or {}
    if not callable(given.make):
        raise ConfigError("make", given.make, "give a function of a point's values that returns a method")
    if given.width is not None:
        check_count("width", given.width)
    for seed, own in by_seed.items():
        if seed not in chosen or own.keys() - {"data", "val", "test"}:
            raise ConfigError("by_seed", {seed: [*own]}, f"give data, val and test of some of the seeds {chosen}")
    if processes.count() > 1:
        raise ConfigError("processes", processes.count(), "a sweep runs in one process; give each some of the points")
    if not isinstance(given.task, Task):
        raise ConfigError("task", given.task, "give a fedax.Task, for instance one of fedax.tasks")
    options: CommonOptions = given
    if (len(points) > 1 or len(chosen) >= len(jax.local_devices())) and is_small(given.task.form()):
        options = dataclasses.replace(given, place=on_one_core(given.place))  # points or seeds are spread instead
    jobs = _jobs(given.make, points, chosen, given.task, given.data, options, by_seed)
    blocks = _blocks(jobs, len(chosen), given.width)
    places = [[(i, k) for k in block.seeds for i in block.points] for block in blocks]
    keepers: list[Keeper | None] = []
    for number, block in enumerate(blocks):  # what is of another sweep is refused before anything runs
        keeper = None
        if given.checkpoint is not None:
            kept = given.checkpoint if isinstance(given.checkpoint, Checkpoints) else Checkpoints(given.checkpoint)
            above = kept.folder
            kept = dataclasses.replace(kept, folder=pathlib.Path(kept.folder, f"{BATCH}{number}"))
            points_of = [i for i, _ in places[number]]
            together = [jobs[i][k] for i, k in places[number]]
            keeper = Keeper(kept, together, len(block.points), lasting=False, places=points_of, key_folder=above)
            for (i, k), job in zip(places[number], keeper.jobs, strict=True):
                jobs[i][k] = job
        keepers.append(keeper)
    runs: dict[tuple[int, int], Run] = {}
    with Progress(sum(job.rounds for row in jobs for job in row)) if wanted() else contextlib.nullcontext() as shown:
        follow = None if shown is None else _Follower(shown, jobs)
        for block, at, keeper in zip(blocks, places, keepers, strict=True):

            def watch(which: int, row: dict[str, Unknown], at: list[tuple[int, int]] = at) -> None:
                i, k = at[which]
                if given.callback is not None:
                    given.callback(dict(points[i]), chosen[k], row)
                if follow is not None:
                    follow((i, k), row)

            lanes = [[jobs[i][k] for i in block.points] for k in block.seeds]
            program = Lanes(lanes) if len(at) > 1 else alone(lanes[0][0])
            with keeper or contextlib.nullcontext():
                found = drive(program, [job for row in lanes for job in row], watch, keeper)
            for number, run in enumerate(found):
                run.best = keeper.best[number] if keeper is not None else None
                runs[at[number]] = run
            if follow is not None:
                follow.over(at)
    programs = sum(block.new for block in blocks)
    table = [[runs[i, k] for k in range(len(chosen))] for i in range(len(points))]
    return Sweep(points, chosen, table, programs, given.task.metrics)


class _Follower:
    """Shows how far the runs of a sweep are, by point and seed."""

    def __init__(self, progress: Progress, jobs: list[list[Job]]):
        self.progress, self.jobs = progress, jobs
        self.done: dict[tuple[int, int], int] = {}
        progress.at("sweep", 0, "compiling")

    def __call__(self, run: tuple[int, int], row: dict[str, Unknown]) -> None:
        i, k = run
        over = not math.isfinite(row["train_loss"])
        self.done[run] = self.jobs[i][k].rounds if over else row["round"]
        self._show()

    def over(self, runs: Sequence[tuple[int, int]]) -> None:
        """These are over, those that ended before their last round too."""
        self.done |= {(i, k): self.jobs[i][k].rounds for i, k in runs}
        self._show()

    def _show(self) -> None:
        ended = sum(self.jobs[i][k].rounds == done for (i, k), done in self.done.items())
        self.progress.at("sweep", sum(self.done.values()), f"{ended} of {sum(map(len, self.jobs))} runs done")


def discard_sweep(folder: pathlib.Path) -> None:
    """Remove the checkpoints of a sweep that is over, as :func:`fedax.engine.checkpoint.discard` does."""
    for place in folder.glob(f"{BATCH}*"):
        discard(place)
    discard(folder)


def was_begun(folder: pathlib.Path) -> bool:
    """Whether checkpoints of a sweep are in a folder."""
    return any(present(place) for place in folder.glob(f"{BATCH}*"))


def _points(grid: Unknown) -> list[Point]:
    if isinstance(grid, Mapping):
        axes = {name: _axis(name, values) for name, values in _named(grid).items()}
        lists = [axis.values() if isinstance(axis, Range) else axis for axis in axes.values()]
        return [dict(zip(axes, values, strict=True)) for values in itertools.product(*lists)]
    points = list(grid) if isinstance(grid, Iterable) and not isinstance(grid, str) else []
    if not points or not all(isinstance(point, Mapping) for point in points):
        raise ConfigError("grid", grid, "give name -> values, or a list of points, each a dictionary")
    return [dict(point) for point in points]


def _named(space: Unknown) -> Mapping[str, Unknown]:
    if not isinstance(space, Mapping) or not all(isinstance(name, str) for name in space):
        raise ConfigError("grid", space, "give a dictionary: name -> values")
    return space


def _axis(name: str, values: Tree) -> Tree:
    if isinstance(values, Range):
        return values
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise ConfigError(f"grid[{name!r}]", values, "give a list of values, or a Range")
    listed = list(values)
    if not listed:
        raise ConfigError(f"grid[{name!r}]", values, "give at least one value")
    return listed


def _seeds(seeds: Unknown) -> list[int]:
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        return list(range(check_count("seeds", seeds)))
    chosen = [check_count("seeds", seed, 0) for seed in seeds] if isinstance(seeds, Sequence | range) else []
    if not chosen or len(set(chosen)) != len(chosen):
        raise ConfigError("seeds", seeds, "give how many, or a list of different ones")
    return chosen


def _jobs(
    make: Callable[..., Tree],
    points: list[Point],
    seeds: list[int],
    task: Task,
    data: Tree,
    options: CommonOptions,
    by_seed: Mapping[int, Mapping[str, Unknown]],
) -> list[list[Job]]:
    """The jobs of each point with each seed; an error names the point."""
    there = Shared()
    jobs: list[list[Job]] = []
    for point in points:
        made = make(**point)
        own = dict(made) if isinstance(made, Mapping) else {"algorithm": made}
        if "algorithm" not in own:
            raise ConfigError("make", made, "of a dictionary, 'algorithm' is the method")
        given = {"task": task, "data": data} | options.keywords | own
        work = given.get("work")
        if by_seed or (isinstance(work, Deadline) and work.speed is None):  # a clock draws other speeds for each seed
            jobs.append([make_job(**given | dict(by_seed.get(seed, {})), seed=seed, shared=there) for seed in seeds])
            continue
        job = make_job(**given, seed=seeds[0], shared=there)
        others = (with_seed(job, given.get("params"), seed, there) for seed in seeds[1:])
        jobs.append([job, *others])
    return jobs


class Block(NamedTuple):
    """Points and seeds that run side by side, all combinations; ``new``: whether it needs a program of its own."""

    points: list[int]
    seeds: list[int]
    new: bool


def blocks(
    make: Callable[..., Tree],
    points: Sequence[Point],
    task: Task,
    data: FederatedData,
    options: CommonOptions,
    seeds: Sequence[int],
) -> list[Block]:
    """What of a sweep runs side by side on one core; each of these can be a sweep of its own, with the same rows.

    Args:
        make, task, data: as of :func:`sweep`.
        points: dictionaries.
        options: of all of them.
        seeds: which; blocks number them.

    Example:
        >>> import fedax
        >>> data, task = fedax.data.quadratics(clients=3, dimension=2), fedax.tasks.quadratic(2)
        >>> points = [{"lr": 0.1}, {"lr": 0.2}]
        >>> blocks(lambda lr: fedax.create("fedavg", lr=lr), points, task, data, CommonOptions(rounds=4), seeds=[0])
        [Block(points=[0, 1], seeds=[0], new=True)]
    """
    jobs = _jobs(
        make, list(points), list(seeds), task, data, dataclasses.replace(options, place=on_one_core(options.place)), {}
    )
    return _blocks(jobs, len(seeds), None)


def _blocks(jobs: list[list[Job]], seeds: int, width: int | None) -> list[Block]:
    """Points that differ in numbers only, cut so that they fit; blocks of one group have one form where possible."""
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
            job.pacing and job.pacing.shape,
        )
        groups.setdefault(((structure, form, shared), _paced(job)), []).append(i)
    blocks, extents = [], set()  # points with timetables of one shape have one program, one after the other
    for (form, _), members in groups.items():
        job = jobs[members[0]][0]
        alike = all(like(job, other) for other in jobs[members[0]][1:])
        most = 1 if job.hosted or not alike else _width(job) if width is None else width
        # Points first: they share a seed's minibatches.
        across = _even(len(members), most)
        along = _even(seeds, max(1, most // across))
        for first in range(0, len(members), across):
            for start in range(0, seeds, along):
                block = Block(members[first : first + across], list(range(seeds))[start : start + along], False)
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
    """Whether two jobs may be lanes of one program: all that they have is of the same form, and so are their plans."""

    def form(each: Job) -> tuple[Unknown, ...]:
        leaves, structure = jax.tree.flatten((each.fed, each.evaluation.held))
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


def worth_lanes(job: Job, seeds: int) -> bool:
    """Whether so many seeds of a job gain from running side by side; on a CPU on a core each (:func:`on_one_core`).

    There they do unless cohorts that are spread over the cores keep these busier: the cores that have one seed less
    wait, and were measured to lose less by that than cohorts lose by waiting for each other, at up to a third.
    """
    if seeds < 2 or job.hosted or processes.count() > 1:
        return False
    if jax.default_backend() != "cpu":
        return _width(job) >= seeds
    cores = len(jax.local_devices())
    return cores > 1 and is_small(job.x) and -(-seeds // cores) * job.plan.devices <= _WAITING * seeds


def on_one_core(place: Place | None) -> Place | None:
    """The place that keeps a run's cohorts on one core, of several, unless it says where; on accelerators as it is."""
    asked = place or Place()
    if jax.default_backend() != "cpu" or not isinstance(asked, Place) or asked.mesh is not None:
        return place
    return dataclasses.replace(asked, mesh=Mesh(np.array(jax.local_devices()[:1]), ("clients",)))


class Lanes:
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
        data = (first.fed, first.evaluation.held)
        # Which of the axes the data have: with a split of each seed that of the seeds.
        one_for_all = all(row[0].fed is first.fed and row[0].evaluation.held is first.evaluation.held for row in jobs)
        self.data_axes = "none" if one_for_all else "seeds"
        if not one_for_all:
            data = jax.tree.map(
                lambda *leaves: np.stack(leaves), *((row[0].fed, row[0].evaluation.held) for row in rows)
            )
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
        self.fed, self.held = data
        self.keys, self.x, self.plan = keys, x, first.plan
        self.timetables = [] if first.pacing is None else [timetable_of(row[0]) for row in jobs]
        self._last_models: tuple[list[weakref.ref[Array]], int, Tree] = ([], -1, None)

    def prepare(self) -> tuple[State, Tally]:
        if self.timetables:
            state, tally = _begin(
                self.varying, self.common, self.fed, self.keys, self.x, no_upload(self.jobs[0][0]),
                slots=self.timetables[0].slots, plan=self.plan, mesh=self.mesh, data_axes=self.data_axes,
            )  # fmt: skip
            return state, self._own(tally)
        state, tally = _prepare(
            self.varying, self.common, self.fed, self.keys, self.x, self.secrets, plan=self.plan, mesh=self.mesh,
            data_axes=self.data_axes,
        )  # fmt: skip
        return state, self._own(tally)

    def advance(self, state: State, start: int, stop: int) -> tuple[State, Tally]:
        if self.timetables:
            return self._advance_groups(state, start, stop)
        state, tally = _advance(
            self.varying, self.common, self.fed, self.keys, state, start, stop, plan=self.plan, mesh=self.mesh,
            data_axes=self.data_axes,
        )  # fmt: skip
        return state, self._own(tally)

    def _advance_groups(self, state: State, start: int, stop: int) -> tuple[State, Tally]:
        tallies = []
        for groups, number in together(self.timetables, start, stop, self.jobs[0][0].fed.weights.dtype):
            groups += groups[-1:] * (len(self.keys) - len(groups))  # padding
            rows = jax.tree.map(lambda *leaves: np.stack(leaves), *groups)
            state, tally = _some_groups(
                self.varying, self.common, self.fed, self.keys, state, rows, number,
                plan=self.plan, mesh=self.mesh, data_axes=self.data_axes,
            )  # fmt: skip
            tallies.append(tally)
        clients, steps, gradients = (
            sum(leaves) for leaves in zip(*(self._own(tally[:3]) for tally in tallies), strict=True)
        )
        answers = np.repeat([table.answers(start, stop) for table in self.timetables], self.points)
        return state, Tally(clients, steps, gradients)._replace(uploads=answers)

    def measure(self, state: State, index: int) -> list[dict[str, Unknown]]:
        models, penalties = _models(self.varying, self.common, state.server, index, mesh=self.mesh)
        first = self.jobs[0][0]
        found = _figures(
            models, self.fed, self.held, self.density,
            task=self.plan.task, grad_norm=first.evaluation.grad_norm, inner=self.plan.mesh, mesh=self.mesh,
            data_axes=self.data_axes,
        )  # fmt: skip
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
        """The models of all lanes on the host, where a part of an array is no program; each lane asks for its own."""
        leaves, (seen, at, models) = jax.tree.leaves(state.server), self._last_models
        if at != index or any(ref() is not leaf for ref, leaf in zip(seen, leaves, strict=True)):
            models, _ = _models(self.varying, self.common, state.server, index, mesh=self.mesh)
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


def _over_lanes(f: Callable[..., Tree], mesh: Mesh | None, each: Sequence[str], *arguments: Unknown) -> Tree:
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

    def lane(own: dict[int, Tree]) -> Tree:
        given = list({**dict(enumerate(arguments)), **own}.values())
        for k, axes in enumerate(each):
            if axes in ("points", "both"):  # of which there is one
                given[k] = jax.tree.map(lambda leaf: leaf[0], given[k])
        return jax.tree.map(lambda leaf: leaf[None], f(*given))

    return jax.lax.map(lane, of_seeds)


@compiled(static=["plan", "mesh", "data_axes"])
def _prepare(
    varying: Tree, common: Tree, fed: Tree, keys: Array, x: Array, secrets: Array, *,
    plan: Plan, mesh: Mesh | None, data_axes: str,
) -> Tree:  # fmt: skip
    def lane(varying: Tree, common: Tree, fed: Tree, key: Array, x: Vector, own: Array) -> Tree:
        return prepare(secret.with_noise(eqx.combine(varying[1], common), own), fed, key, x, plan)

    each = ("points", "none", data_axes, "seeds", "seeds", "both")
    return _over_lanes(lane, mesh, each, varying, common, fed, keys, x, secrets)


@compiled(static=["plan", "mesh", "data_axes"], donate=["state"], options=loops)
def _advance(
    varying: Tree, common: Tree, fed: Tree, keys: Array, state: State, start: Tree, stop: Array, *,
    plan: Plan, mesh: Mesh | None, data_axes: str,
) -> tuple[State, Tally]:  # fmt: skip
    def lane(varying: Tree, common: Tree, fed: Tree, key: Array, state: State, start: Tree, stop: Array) -> Tree:
        return some_rounds(eqx.combine(varying[1], common), fed, key, state, start, stop, plan)

    each = ("points", "none", data_axes, "seeds", "both", "none", "none")
    out: tuple[State, Tally] = _over_lanes(lane, mesh, each, varying, common, fed, keys, state, start, stop)
    return out


@compiled(static=["slots", "plan", "mesh", "data_axes"])
def _begin(
    varying: Tree, common: Tree, fed: Tree, keys: Array, x: Array, upload: Tree, *,
    slots: int, plan: Plan, mesh: Mesh | None, data_axes: str,
) -> Tree:  # fmt: skip
    def lane(varying: Tree, common: Tree, fed: Tree, key: Array, x: Vector, upload: Tree) -> Tree:
        return begin(eqx.combine(varying[1], common), fed, key, x, upload, slots, plan)

    each = ("points", "none", data_axes, "seeds", "seeds", "none")
    return _over_lanes(lane, mesh, each, varying, common, fed, keys, x, upload)


@compiled(static=["plan", "mesh", "data_axes"], donate=["state"], options=loops)
def _some_groups(
    varying: Tree, common: Tree, fed: Tree, keys: Array, state: State, groups: Group, number: Array, *,
    plan: Plan, mesh: Mesh | None, data_axes: str,
) -> tuple[State, Tally]:  # fmt: skip
    def lane(
        varying: Tree, common: Tree, fed: Tree, key: Array, state: State, groups: Group, number: Array
    ) -> tuple[State, Tally]:
        return some_groups(eqx.combine(varying[1], common), fed, key, state, groups, number, plan)

    each = ("points", "none", data_axes, "seeds", "both", "seeds", "none")
    out: tuple[State, Tally] = _over_lanes(lane, mesh, each, varying, common, fed, keys, state, groups, number)
    return out


@compiled(static=["mesh"])
def _models(varying: Tree, common: Tree, server: Tree, index: Number, *, mesh: Mesh | None) -> tuple[Tree, Tree]:
    def lane(varying: Tree, common: Tree, server: Tree, index: Number) -> Tree:
        return model_after(eqx.combine(varying[1], common)[0], server, index)

    out: tuple[Tree, Tree] = _over_lanes(lane, mesh, ("points", "none", "both", "none"), varying, common, server, index)
    return out


@compiled(static=["task", "grad_norm", "inner", "mesh", "data_axes"])
def _figures(
    models: Array, fed: Tree, held: Tree, density: Number, *, task: Task, grad_norm: bool, inner: Mesh | None,
    mesh: Mesh | None, data_axes: str,
) -> dict[str, Unknown]:  # fmt: skip
    """What needs no method, so that methods that are compared have one program for it."""

    def lane(model: Tree, fed: Tree, held: Tree, density: Number) -> Tree:
        return of_model(model, fed, held, density, None, task=task, grad_norm=grad_norm, mesh=inner)

    each = ("both", data_axes, data_axes, "none")
    found: dict[str, Unknown] = _over_lanes(lane, mesh, each, models, fed, held, density)
    return found
