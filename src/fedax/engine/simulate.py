"""simulate: a whole run as one compiled program, with its history."""

import math
import os
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh

from fedax.contract.algorithm import Algorithm
from fedax.data.federated import FederatedData
from fedax.engine import processes
from fedax.engine.checkpoint import Best, Checkpoints, Keeper, Saved
from fedax.engine.evaluate import columns, measured, model_after, told
from fedax.engine.job import Job, make_job
from fedax.engine.loop import State, Tally
from fedax.engine.places.device import prepare, some_rounds
from fedax.engine.places.host import Hosted
from fedax.engine.plan import Form, Plan
from fedax.engine.programs import compiled
from fedax.errors import BadClientWarning, CheckpointError, ConfigError, DivergedWarning
from fedax.federation.participation import Participation
from fedax.federation.work import Work
from fedax.tasks.task import Task
from fedax.wire.averages import Aggregator
from fedax.wire.faults import Faults
from fedax.wire.guard import Guard

FAILED = ("diverged", "worse", "failed")  # the statuses of runs whose last model is of no use

_CALL = 2.0  # seconds that a call takes at most, by the pace so far: Python sees signals between calls only


class Run:
    """The outcome of :func:`simulate`.

    Attributes:
        params: the delivered model, a pytree as the task's ``init`` gives it.
        state: the server's state after the last round; ``None`` in a sweep.
        memory: what the clients keep, leaves [N, ...]; where it is not on the device a ``ClientMemory``, of which
            ``memory[ids]`` gives rows; ``None`` in a sweep.
        history: column -> array with one entry an evaluation, the first at round 0. Columns: ``round``;
            ``train_loss``, F(x) = Σ p_i F_i(x); ``objective``, F(x) + ψ(x), of methods that have a ψ; ``density``,
            where asked; ``grad_norm_sq``, ‖∇F(x)‖², where asked; ``test_loss`` and
            ``test_<metric>``, means over the held-out examples; and the cost so far: ``clients`` (participations),
            ``local_steps``, ``gradients`` (minibatch gradients), ``bytes_down``, ``bytes_up`` (over all clients) and
            ``seconds`` (of training; compilation and evaluation are not in it; of runs side by side, each one's
            share). With a guard, and where clients may drop out: ``left_out``, how many uploads have been left out so
            far; ``bad_clients``, a list of those whose they were, of the first hundred; ``skipped``, how many rounds
            changed nothing for want of clients.
        status: ``"finished"``; ``"worse"`` where it came to its last round, with an objective above that at the start
            (see :func:`ended_worse`); ``"stopped"`` where ``until`` was true before the last round; ``"diverged"``
            where the loss was no longer finite; ``"failed"`` where a guard stopped it.
        left_out: client -> how often its uploads were left out; ``None`` in a sweep.
        compile_seconds: time spent on tracing and compiling.
        best: with ``Checkpoints(best=…)``, the ``round`` at which that column was best, its ``value`` and the model
            then, ``params``; else ``None``.

    Example:
        >>> import fedax
        >>> data, task = fedax.data.quadratics(clients=3, dimension=2), fedax.tasks.quadratic(2)
        >>> run = fedax.simulate(fedax.create("fedavg", lr=0.1), task, data, rounds=4, evaluate_every=2)
        >>> run.status, run.history["round"].tolist()
        ('finished', [0, 2, 4])
    """

    best: Best | None = None

    def __init__(
        self, rows: list[dict[str, Any]], state: State | None, params: Any, status: str, compile_seconds: float
    ):
        self.params = params
        self.state = None if state is None else state.server
        self.memory = None if state is None else state.memory
        self.left_out = None if state is None else _often(state.losses)
        self.history = {name: column_of([row[name] for row in rows]) for name in rows[0]}
        self.status, self.compile_seconds = status, compile_seconds

    def to_pandas(self) -> Any:
        """The history as a ``pandas.DataFrame``; needs pandas."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError("Run.to_pandas needs pandas: pip install pandas (or use Run.history)") from error
        return pandas.DataFrame(self.history)

    def __repr__(self) -> str:
        last = {name: column[-1] for name, column in self.history.items()}
        return f"Run({self.status} at round {last['round']}, train_loss={last['train_loss']:.6g})"


def ended_worse(objective: Sequence[float] | np.ndarray) -> bool:
    """Whether a run ended worse than it began, by more than noise.

    That is by more than one percent of the first value; and where one of the last evaluations (a tenth of all, at least
    three) is not above the first, also by more than their standard deviation.

    Args:
        objective: at each evaluation, the first at round 0.

    Example:
        >>> ended_worse([2.3, 1e30, 4e28]), ended_worse([2.3, 2.301]), ended_worse([0.7, 0.75, 0.69, 0.72])
        (True, False, False)
    """
    values = np.asarray(objective, float)
    first, last, tail = values[0], values[-1], values[1:][-tail_of(len(values)) :]
    with np.errstate(all="ignore"):  # numbers near the largest there are
        noise = float(np.std(tail, ddof=1)) if tail.size > 1 and tail.min() <= first else 0.0
        return bool(last - first > max(0.01 * abs(first), noise))


def tail_of(evaluations: int) -> int:
    """How many of a run's evaluations are its last ones: a tenth, at least three."""
    return max(3, round(evaluations / 10))


def column_of(values: Sequence[Any]) -> np.ndarray:
    """A column of the history; of lists, an array of objects."""
    if not isinstance(values[0], list):
        return np.asarray(values)
    column = np.empty(len(values), object)
    column[:] = values
    return column


def _often(losses: Any) -> dict[int, int]:
    """Client -> how often its uploads were left out."""
    times = np.asarray(losses.left_out) if losses else np.zeros(0, np.int32)
    ids = np.flatnonzero(times)
    return dict(zip(ids.tolist(), times[ids].tolist(), strict=True))


def simulate(
    algorithm: Algorithm,
    task: Task,
    data: FederatedData,
    *,
    rounds: int,
    work: Work | None = None,
    batch_size: int | None = None,
    participation: Participation | None = None,
    seed: int = 0,
    test: Any = None,
    evaluate_every: int | Sequence[int] | None = None,
    params: Any = None,
    chunk_size: int | None = None,
    mesh: Mesh | None = None,
    client_memory: str = "auto",
    stream: bool | None = None,
    grad_norm: bool = False,
    density: float | None = None,
    until: Callable[[dict[str, Any]], bool] | None = None,
    guard: Guard | bool | None = None,
    aggregate: Aggregator | None = None,
    faults: Faults | None = None,
    callback: Callable[[dict[str, Any]], None] | None = None,
    checkpoint: Checkpoints | str | os.PathLike | None = None,
) -> Run:
    """Train ``task`` on ``data`` with ``algorithm`` for some rounds.

    All rounds between two evaluations are one call of one compiled program; another seed, another number of rounds or
    other numerical hyper-parameters of the same method compile nothing anew. On one machine two runs of one seed are
    bit-identical; the chunk size changes results by summation order only.

    Args:
        algorithm: a method, from :func:`fedax.create` or made by parts.
        task: what is learned; make it once and reuse the object.
        data: the clients' data; their weights p_i define the objective.
        rounds: R ≥ 0.
        work: local steps of each client; default ``Epochs(1)``.
        batch_size: B ≥ 1 examples a local step; ``None``: all local data, which makes gradients deterministic.
        participation: who takes part; default ``Full()``.
        seed: whole number ≥ 0; fixes the initial model, the cohorts, the local work and the minibatches.
        test: held-out examples, a pytree like ``data.examples``, evaluated at once for all.
        evaluate_every: rounds between evaluations, or the rounds themselves after which to evaluate; default: about
            fifty evaluations. The start and the last round are always among them.
        params: initial model; default ``task.init``.
        chunk_size: clients that run side by side on a device; default: chosen by the model's and the batch's size.
        mesh: a ``jax.sharding.Mesh`` of one axis, over whose devices each cohort is spread. Default: the machine's
            cores, where a round has enough work; elsewhere one device.
        client_memory: where the clients' memory is, of methods that have one: ``"device"``, ``"host"``, ``"file"`` (in
            the folder for temporary files) or a folder; ``"auto"``: the first of these three that has room for it. A
            file has no name and goes with the run. The results are the same.
        stream: whether the examples stay in host memory, or in the file that they are mapped from, and go to the device
            cohort by cohort; default: where they would take more than half of the device's memory. The results are the
            same.
        grad_norm: also record ‖∇F(x)‖², at the cost of a gradient over all data an evaluation.
        density: also record the share of parameters whose size is above this threshold, ≥ 0.
        until: called with each row of the history; where it is true the run ends, as at a target that is reached.
        guard: leave out uploads that are not finite or absurdly large: ``True``, or :class:`fedax.Guard`. Default: all
            count, as the papers have it, and a run whose model is no longer finite has diverged.
        aggregate: what stands in the place of the mean of the uploads, for instance :class:`fedax.CoordinateMedian`.
        faults: clients that send something else than they should, :class:`fedax.Faults`.
        callback: called with each row of the history as it is made, and by a run that goes on from a checkpoint with
            those that it had.
        checkpoint: a folder for checkpoints, or :class:`fedax.Checkpoints`. A run that finds its own there goes on from
            the newest, bit-identical to one that never stopped, on as many devices; on another number of devices or
            processes up to the order of summation. The number of rounds and the evaluations may be others than before.
            SIGINT and SIGTERM wait for the rounds under way, about two seconds or one round, and for a checkpoint; then
            they do what they do elsewhere, as ``KeyboardInterrupt`` for Ctrl-C. A second one does not wait.

    Returns:
        :class:`Run`; where the training loss stops being finite, the run ends there with status ``"diverged"``.

    Raises:
        ConfigError, DataError: input that cannot be used, before anything is compiled.
        CheckpointError: a checkpoint cannot be written, those that there are are all damaged, or are of another run:
            other data, another task, another method or other settings.
        ProcessError: of several processes another one is gone.

    Example:
        >>> import fedax
        >>> data = fedax.FederatedData({"H": np.ones((2, 1, 1)), "e": np.array([[1.0], [3.0]])}, sizes=[1, 1])
        >>> run = simulate(fedax.create("fedavg", lr=0.5), fedax.tasks.quadratic(1), data, rounds=30)
        >>> round(float(run.params[0]), 4), run.history["round"][-1].item()
        (2.0, 30)
    """
    if callback is not None and not callable(callback):
        raise ConfigError("callback", callback, "give a function of one row of the history")
    job = make_job(
        algorithm,
        task,
        data,
        rounds=rounds,
        work=work,
        batch_size=batch_size,
        participation=participation,
        seed=seed,
        test=test,
        evaluate_every=evaluate_every,
        params=params,
        chunk_size=chunk_size,
        mesh=mesh,
        client_memory=client_memory,
        stream=stream,
        grad_norm=grad_norm,
        density=density,
        until=until,
        guard=guard,
        aggregate=aggregate,
        faults=faults,
    )
    watch = callback or (lambda row: None)
    if checkpoint is not None and not isinstance(checkpoint, Checkpoints):
        checkpoint = Checkpoints(checkpoint)
    if checkpoint is None:
        return drive(program(job), [job], lambda _, row: watch(row))[0]
    with Keeper(checkpoint, job) as keeper:
        run = drive(program(job), [job], lambda _, row: watch(row), keeper)[0]
    run.best = keeper.best
    return run


class Program(Protocol):
    """Some jobs that run side by side, alike but for their numbers."""

    def prepare(self) -> tuple[State, Tally]:
        """The state before round 0, and what the warm-up did."""

    def advance(self, state: State, start: int, stop: int) -> tuple[State, Tally]:
        """Rounds start … stop − 1, and what they did; no round where they are equal. ``state`` is used up."""

    def measure(self, state: State, index: int) -> list[dict[str, Any]]:
        """What evaluation gives after ``index`` rounds, of each job."""

    def losses(self, state: State) -> list[Any]:
        """What was lost so far, of each job."""

    def outcome(self, state: State, index: int, which: int) -> tuple[State | None, Any]:
        """What a run keeps in the end of job ``which``: the state, and the model."""


def drive(
    program: Program,
    jobs: Sequence[Job],
    callback: Callable[[int, dict[str, Any]], None],
    keeper: Keeper | None = None,
) -> list[Run]:
    """Run jobs side by side: the rounds from evaluation to evaluation, the histories, and who is done.

    A job that diverged or stopped gets no more rows, whatever becomes of its numbers; when all are done, all end.
    ``keeper``: of a job alone.
    """
    began = time.perf_counter()
    state, tally = program.prepare()
    # A call that runs no round compiles the program and leaves the state as it is.
    state, _ = program.advance(state, 0, 0)
    jax.block_until_ready(state)
    costs = [_Costs(job.traffic) for job in jobs]
    _count(costs, tally, 1, warmup=True)

    rows: list[list[dict[str, Any]]] = [[] for _ in jobs]
    status = ["finished"] * len(jobs)
    going = dict.fromkeys(range(len(jobs)))
    kept: dict[int, tuple[State | None, Any]] = {}

    def record(index: int) -> None:
        losses = program.losses(state)
        for i, found in enumerate(program.measure(state, index)):
            if i not in going:
                continue
            row = {"round": index} | found | told(losses[i]) | costs[i].row()
            rows[i].append(row)
            if keeper is not None:
                keeper.compare(row, lambda: program.outcome(state, index, 0)[1])
            callback(i, dict(row))
            if not math.isfinite(row["train_loss"]):
                status[i] = "diverged"
            elif jobs[i].plan.stops and row["left_out"]:
                status[i] = "failed"
            elif index < jobs[i].rounds and (until := jobs[i].until) is not None and until(dict(row)):
                status[i] = "stopped"
            if status[i] != "finished" or index == jobs[i].rounds:
                del going[i]
                kept[i] = program.outcome(state, index, i)

    def save() -> None:
        if keeper is not None:
            keeper.save(Saved(state, index, rows[0], costs[0].row(), status[0]))

    index = 0
    if keeper is None or (found := keeper.find(state)) is None:
        record(0)
    else:
        state, index, rows[0], had, status[0] = found
        costs[0].take(had)
        if (asked := {"round", *had, *told(state.losses), *columns(jobs[0])}) != rows[0][0].keys():
            differs = ", ".join(sorted(asked ^ rows[0][0].keys()))
            raise CheckpointError(
                f"{keeper.folder}: only one of this run and the one that wrote it has the columns {differs}: "
                "ask for the same test, grad_norm and density, or give another folder"
            )
        for row in rows[0]:
            callback(0, dict(row))
            _ = (until := jobs[0].until) is not None and until(dict(row))  # it may count, for early stopping
        if status[0] != "finished" or rows[0][-1]["round"] == jobs[0].rounds:
            del going[0]
            kept[0] = program.outcome(state, index, 0)
        elif index == jobs[0].rounds:  # the run was to be longer, and was not evaluated here
            record(index)
    compile_seconds = (time.perf_counter() - began) / len(jobs)
    pace: float | None = None
    if keeper is not None:
        keeper.hold()
    for stop in [stop for stop in jobs[0].stops if stop > index]:
        if not going:
            break
        while index < stop:
            some = 1 if pace is None else max(1, int(_CALL / max(pace, 1e-9)))
            to = min(stop, index + min(some, jobs[0].rounds_a_call))
            to = int(processes.from_first(np.int32(to if keeper is None else keeper.stop(index, to))))
            start = time.perf_counter()
            state, tally = program.advance(state, index, to)
            _count(costs, jax.block_until_ready(tally), to - index)
            seconds = time.perf_counter() - start
            pace, index = seconds / (to - index), to
            for each in costs:
                each.seconds += seconds / len(jobs)
            if jobs[0].plan.stops and np.any(state.losses.left_out):
                break
            if index < stop and keeper is not None and keeper.due(index):
                save()
        record(index)
        if keeper is not None and (not going or keeper.due(index)):
            save()
    for i, word in enumerate(status):
        objective = [row.get("objective", row["train_loss"]) for row in rows[i]]
        if word == "finished" and ended_worse(objective):
            status[i] = "worse"
            warnings.warn(
                f"the run ended worse than it began: its objective was {objective[0]:.4g}, is {objective[-1]:.4g}; "
                "try a smaller learning rate",
                DivergedWarning,
                stacklevel=3,
            )
        if word == "diverged":
            last = rows[i][-1]
            warnings.warn(
                f"the training loss is {last['train_loss']} at round {last['round']}: stopped; "
                "try a smaller learning rate",
                DivergedWarning,
                stacklevel=3,
            )
        if word == "failed":
            last = rows[i][-1]
            warnings.warn(
                f"what clients {last['bad_clients']} sent was left out by round {last['round']}: stopped, as asked",
                BadClientWarning,
                stacklevel=3,
            )
    return [Run(rows[i], *kept[i], status[i], compile_seconds) for i in range(len(jobs))]


def program(job: Job) -> Program:
    """The program of one job."""
    return Hosted(job) if job.hosted else Alone(job)


class Alone:
    """The program of one job, with client memory on the device."""

    def __init__(self, job: Job):
        self.job = job

    def prepare(self) -> tuple[State, Tally]:
        job = self.job
        return _prepare(job.hyper, job.fed, job.key, job.x, job.plan)

    def advance(self, state: State, start: int, stop: int) -> tuple[State, Tally]:
        return _advance(self.job.hyper, self.job.fed, self.job.key, state, start, stop, self.job.plan)

    def measure(self, state: State, index: int) -> list[dict[str, Any]]:
        return measured(self.job, state.server, index)

    def losses(self, state: State) -> list[Any]:
        return [state.losses]

    def outcome(self, state: State, index: int, which: int) -> tuple[State | None, Any]:
        return state, self.job.delivered(model_after(self.job.hyper[0], state.server, index)[0])


@compiled(static=["plan"])
def _prepare(hyper: Any, fed: Any, key: Any, x: Any, plan: Plan) -> tuple[State, Tally]:
    return prepare(hyper, fed, key, x, plan)


_advance = compiled(static=["plan"], donate=["state"])(some_rounds)


class _Costs:
    """The cost so far, in whole numbers of any size."""

    def __init__(self, traffic: tuple[list[Form], list[Form]]):
        self.warmup, self.round = traffic
        self.clients = self.local_steps = self.gradients = self.bytes_down = self.bytes_up = 0
        self.seconds = 0.0

    def add(self, done: Tally, rounds: int, warmup: bool) -> None:
        """Add what some rounds did; ``rounds``: how many they were."""
        clients, local_steps, gradients = done
        self.clients += clients
        self.local_steps += local_steps
        self.gradients += gradients
        for exchange in self.warmup if warmup else self.round:
            answered = rounds if exchange.one else clients
            self.bytes_down += answered * exchange.down
            self.bytes_up += answered * exchange.up

    def take(self, row: dict[str, Any]) -> None:
        """Go on from what :meth:`row` gave."""
        for name, value in row.items():
            setattr(self, name, value)

    def row(self) -> dict[str, Any]:
        names = ("clients", "local_steps", "gradients", "bytes_down", "bytes_up", "seconds")
        return {name: getattr(self, name) for name in names}


def _count(costs: list[_Costs], tally: Tally, rounds: int, warmup: bool = False) -> None:
    """Add to each job's costs what some rounds did; leaves of ``tally``: one number, or one a job."""
    columns = [np.asarray(leaf).ravel().tolist() for leaf in tally]
    for each, done in zip(costs, zip(*columns, strict=True), strict=True):
        each.add(Tally(*done), rounds, warmup)
