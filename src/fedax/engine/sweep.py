"""sweep: many runs, alike but for numbers, side by side in one compiled program."""

import contextlib
import dataclasses
import itertools
import math
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import jax
import numpy as np

from fedax.columns import PERSONAL, choosing, deciding, higher_is_better, numbers
from fedax.contract.types import Tree, Unknown
from fedax.data.federated import FederatedData
from fedax.engine import processes
from fedax.engine.batch import Batch, BatchPlan, blocks_of, on_one_core
from fedax.engine.checkpoint import Checkpointer, Checkpoints, discard, present
from fedax.engine.declared import takes
from fedax.engine.drive import drive
from fedax.engine.evaluate import check_until
from fedax.engine.history import FAILED, Row, Run, tidy
from fedax.engine.job import Job, with_seed
from fedax.engine.load import Shared
from fedax.engine.make import make_job
from fedax.engine.options import CommonOptions
from fedax.engine.plan import is_small
from fedax.engine.simulate import program as alone
from fedax.errors import ConfigError
from fedax.federation.work import Deadline
from fedax.numbers import check_count, check_number
from fedax.progress import Progress, wanted
from fedax.tasks.task import Task

Point = dict[str, Unknown]


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
        object.__setattr__(self, "points", check_count("points", self.points, 2))

    def values(self) -> list[float]:
        """The points of a grid."""
        space = np.geomspace if self.log else np.linspace
        return [float(value) for value in space(self.low, self.high, self.points)]

    def draw(self, rng: np.random.Generator) -> float:
        """A random value."""
        if self.log:
            return float(np.exp(rng.uniform(math.log(self.low), math.log(self.high))))
        return float(rng.uniform(self.low, self.high))


def random_points(space: Mapping[str, Unknown], number: int, seed: int = 0) -> list[Point]:
    """Random search: ``number`` independent draws, to be given to :func:`sweep` instead of a grid.

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
    axes = {name: axis(name, values) for name, values in named(space).items()}

    def draw(values: Tree) -> Tree:
        return values.draw(rng) if isinstance(values, Range) else values[rng.integers(len(values))]

    return [{name: draw(values) for name, values in axes.items()} for _ in range(check_count("number", number))]


def points_of(grid: Unknown) -> list[Point]:
    if isinstance(grid, Mapping):
        axes = {name: axis(name, values) for name, values in named(grid).items()}
        lists = [axis.values() if isinstance(axis, Range) else axis for axis in axes.values()]
        return [dict(zip(axes, values, strict=True)) for values in itertools.product(*lists)]
    points = list(grid) if isinstance(grid, Iterable) and not isinstance(grid, str) else []
    if not points or not all(isinstance(point, Mapping) for point in points):
        raise ConfigError("grid", grid, "give name -> values, or a list of points, each a dictionary")
    return [dict(point) for point in points]


def named(space: Unknown) -> Mapping[str, Unknown]:
    if not isinstance(space, Mapping) or not all(isinstance(name, str) for name in space):
        raise ConfigError("grid", space, "give a dictionary: name -> values")
    return space


def axis(name: str, values: Tree) -> Tree:
    if isinstance(values, Range):
        return values
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise ConfigError(f"grid[{name!r}]", values, "give a list of values, or a Range")
    listed = list(values)
    if not listed:
        raise ConfigError(f"grid[{name!r}]", values, "give at least one value")
    return listed


BATCH = "batch-"  # how the folders of those that run side by side begin


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
        """The column by which points are chosen where none is named: ``val_loss``, or without it ``train_loss``; of a
        method with personal models theirs."""
        return choosing(self.runs[0][0].history)

    def scores(self, criterion: str | Callable[[Run], float] | None = None, last: int = 1) -> np.ndarray:
        """[points, seeds] values of a criterion at the end of each run; not-a-number where it failed.

        A run fails that diverges, ends worse than it began, or is stopped by its guard.

        Args:
            criterion: a column of the history, of which the personal models' is taken where a method has them; or a
                function of a :class:`Run`; default: :attr:`criterion`.
            last: the mean of so many last evaluations, where the criterion is a column.

        Raises:
            ConfigError: there is no such column of numbers.
        """

        by = self.criterion.removesuffix(PERSONAL) if criterion is None else criterion  # not each may have its own
        every = (run.public_columns for runs in self.runs for run in runs)
        public = next((columns for columns in every if columns is not None), None)
        if public is not None and isinstance(by, str) and by in self.runs[0][0].history and by not in public:
            hint = (
                "it is measured on clients, and the choice among private runs must not depend on them: give val= of "
                "no client; or a function of a run, whose choice ε does not cover"
            )
            raise ConfigError("criterion", by, hint)

        def score(run: Run) -> float:
            if run.status in FAILED:
                return math.nan
            if not isinstance(by, str):
                return float(by(run))
            if (column := deciding(by, run.history)) not in (known := numbers(run.history)):
                raise ConfigError("criterion", by, f"the history has: {', '.join(known)}")
            return float(np.mean(run.history[column][-check_count("last", last) :]))

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
        scores = self.scores(criterion, last)
        criterion = self.criterion if criterion is None else criterion
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

    def rows(self) -> Unknown:
        """All histories as a ``pandas.DataFrame``, a value in each row.

        Returns:
            The values of the point, by their names; ``seed``, ``round``, ``column``, ``value``.
        """
        pairs = ((point, seed, run) for point, runs in zip(self.points, self.runs, strict=True)
                 for seed, run in zip(self.seeds, runs, strict=True))  # fmt: skip
        return tidy(({**point, "seed": seed}, run.history) for point, seed, run in pairs)

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
        callback: called as ``callback(point, seed, row)`` with each row of the histories, which are as those of
            :func:`simulate`; by a sweep that goes on from checkpoints with those that it had, too.
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
    callback: Callable[[Point, int, Row], None] | None = None
    checkpoint: Checkpoints | str | os.PathLike[str] | None = None


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
    points, chosen = points_of(given.grid), _seeds(given.seeds)
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
    for job in (job for row in jobs for job in row):
        check_until(job)
    blocks = blocks_of(jobs, len(chosen), given.width)
    places = [[(i, k) for k in block.seeds for i in block.points] for block in blocks]
    checkpointers: list[Checkpointer | None] = []
    for number, block in enumerate(blocks):  # what is of another sweep is refused before anything runs
        checkpointer = None
        if given.checkpoint is not None:
            kept = given.checkpoint if isinstance(given.checkpoint, Checkpoints) else Checkpoints(given.checkpoint)
            above = kept.folder
            kept = dataclasses.replace(kept, folder=pathlib.Path(kept.folder, f"{BATCH}{number}"))
            points_in = [i for i, _ in places[number]]
            together = [jobs[i][k] for i, k in places[number]]
            checkpointer = Checkpointer(
                kept, together, len(block.points), lasting=False, places=points_in, key_folder=above
            )
            for (i, k), job in zip(places[number], checkpointer.jobs, strict=True):
                jobs[i][k] = job
        checkpointers.append(checkpointer)
    runs: dict[tuple[int, int], Run] = {}
    with Progress(sum(job.rounds for row in jobs for job in row)) if wanted() else contextlib.nullcontext() as shown:
        follow = None if shown is None else _Follower(shown, jobs)
        for block, at, checkpointer in zip(blocks, places, checkpointers, strict=True):

            def watch(which: int, row: Row, at: list[tuple[int, int]] = at) -> None:
                i, k = at[which]
                if given.callback is not None:
                    given.callback(dict(points[i]), chosen[k], row)
                if follow is not None:
                    follow((i, k), row)

            rows = [[jobs[i][k] for i in block.points] for k in block.seeds]
            program = Batch(rows) if len(at) > 1 else alone(rows[0][0])
            with checkpointer or contextlib.nullcontext():
                found = drive(program, [job for row in rows for job in row], watch, checkpointer)
            for number, run in enumerate(found):
                run.best = checkpointer.best[number] if checkpointer is not None else None
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

    def __call__(self, run: tuple[int, int], row: Row) -> None:
        i, k = run
        self.done[run] = row["round"] if row.status is None else self.jobs[i][k].rounds
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


def blocks(
    make: Callable[..., Tree],
    points: Sequence[Point],
    task: Task,
    data: FederatedData,
    options: CommonOptions,
    seeds: Sequence[int],
) -> list[BatchPlan]:
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
        [BatchPlan(points=[0, 1], seeds=[0], new=True)]
    """
    jobs = _jobs(
        make, list(points), list(seeds), task, data, dataclasses.replace(options, place=on_one_core(options.place)), {}
    )
    return blocks_of(jobs, len(seeds), None)
