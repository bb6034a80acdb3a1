"""drive: runs side by side, from evaluation to evaluation; their histories, their checkpoints, and who is done."""

import functools
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import jax
import numpy as np

from fedax.contract.types import Tree, Unknown
from fedax.engine import private, processes
from fedax.engine.checkpoint import Keeper, Past, Saved
from fedax.engine.evaluate import columns, public_columns
from fedax.engine.history import History, Run, count, ended_worse
from fedax.engine.job import Job
from fedax.engine.loop import State, Tally
from fedax.engine.patience import Patience
from fedax.errors import BadClientWarning, DivergedWarning, caller_level, unknown

Watch = Callable[[int, dict[str, Unknown]], None]

_CALL = 2.0  # seconds that a call takes at most, by the pace so far: Python sees signals between calls only


class Program(Protocol):
    """Some jobs that run side by side, alike but for their numbers."""

    def prepare(self) -> tuple[State, Tally]:
        """The state before round 0, and what the warm-up did."""

    def advance(self, state: State, start: int, stop: int) -> tuple[State, Tally]:
        """Rounds start … stop − 1, and what they did; no round where they are equal. ``state`` is used up."""

    def measure(self, state: State, index: int) -> list[dict[str, Unknown]]:
        """What evaluation gives after ``index`` rounds, of each job."""

    def exclusions(self, state: State) -> list[Tree]:
        """What was left out so far, of each job."""

    def outcome(self, state: State, index: int, which: int) -> tuple[State | None, Tree]:
        """What a run keeps in the end of job ``which``: the state, and the model."""

    def traffic(self) -> dict[str, Unknown]:
        """What went over a network since the last time, by column; nothing in a simulation."""


def drive(program: Program, jobs: Sequence[Job], watch: Watch, keeper: Keeper | None = None) -> list[Run]:
    """Run jobs side by side, from their start or their last checkpoint to their ends.

    A job that diverged or stopped gets no more rows, whatever becomes of its numbers; when all are done, all end. Those
    that ended badly are warned of.

    Args:
        watch: called with the number of a job and each row of its history.
        keeper: of these jobs.
    """
    lanes = [Lane(job) for job in jobs]
    seconds = 0.0
    if keeper is None or not _were_over(lanes, watch, keeper):
        going = _Going(program, lanes, watch, keeper)
        seconds = going.begin() / len(jobs)
        for stop in going.stops():
            going.advance(stop)
            going.record()
            going.save()
    for lane in lanes:
        if (said := lane.conclude()) is not None:
            warnings.warn(*said, stacklevel=caller_level())
    return [lane.run(seconds) for lane in lanes]


class Lane:
    """One run: its history, and how it ended."""

    def __init__(self, job: Job):
        self.job, self.history = job, History(job.forms, job.sent_once, None if job.ledger is None else job.epsilon)
        self.public = public_columns(job)  # of a private run
        self.until = job.until
        if isinstance(job.until, Patience):
            if job.until.column not in (known := columns(job)):
                raise unknown("patience.column", job.until.column, known)
            self.until = job.until.fresh(job.plan.task.metrics)
        self.status = "finished"
        self.kept: tuple[State | None, Tree] | None = None  # the state and the model in the end

    def judge(self, row: dict[str, Unknown]) -> bool:
        """Whether the run ends with its last row; ``status`` says how."""
        if not math.isfinite(row["train_loss"]):
            self.status = "diverged"
        elif self.job.plan.stops and row["left_out"]:
            self.status = "failed"
        elif row["round"] == self.job.rounds:
            self.status = "stopped" if self.job.spent else "finished"
        elif self.until is not None and self.until(dict(row)):
            self.status = "stopped"
        return self.over

    def take(self, past: Past) -> None:
        """Go on from a checkpoint."""
        self.history.take(past.rows, past.costs)
        self.status = past.status

    @property
    def over(self) -> bool:
        """Whether nothing is left to do."""
        return self.status != "finished" or self.history.rows[-1]["round"] == self.job.rounds

    def conclude(self) -> tuple[str, type[Warning]] | None:
        """Whether a run that came to its end is worse than it began; and what its user has to be told."""
        last, judge = self.history.rows[-1], private.judged(self.history.rows[0], self.public)
        values = [row[judge] for row in self.history.rows] if judge is not None else []
        if self.status == "finished" and values and ended_worse(values):
            self.status = "worse"
            name = "objective" if self.public is None else judge
            text = f"the run ended worse than it began: its {name} was {values[0]:.4g}, is {values[-1]:.4g}"
            return f"{text}; try a smaller learning rate", DivergedWarning
        if self.status == "diverged":
            text = f"the training loss is {last['train_loss']} at round {last['round']}: stopped"
            return f"{text}; try a smaller learning rate", DivergedWarning
        if self.status == "failed":
            text = f"what clients {last['bad_clients']} sent was left out by round {last['round']}: stopped, as asked"
            return text, BadClientWarning
        return None

    def run(self, compile_seconds: float) -> Run:
        """What the user gets."""
        assert self.kept is not None
        state, params = self.kept
        state = None if state is None else self.job.of_method(state)
        return Run(self.history.rows, state, params, self.status, compile_seconds, self.job.origin, self.public)


class Clock:
    """How many rounds the next call runs: those of about two seconds, by the pace of the call before; at first one.

    Example:
        >>> clock = Clock(most=100)
        >>> clock.end(0, 50)
        1
        >>> clock.took(0.5, rounds=1)
        >>> clock.end(1, 50), clock.end(1, 3)
        (5, 3)
    """

    def __init__(self, most: int):
        self.most = most
        self._pace: float | None = None

    def end(self, index: int, stop: int) -> int:
        """Up to which round, at most ``stop``, to go from round ``index``."""
        some = 1 if self._pace is None else max(1, int(_CALL / max(self._pace, 1e-9)))
        return min(stop, index + min(some, self.most))

    def took(self, seconds: float, rounds: int) -> None:
        """So long a call took."""
        self._pace = seconds / rounds


class _Going:
    """Lanes under way: their state after ``index`` rounds, and those that still go on."""

    def __init__(self, program: Program, lanes: list[Lane], watch: Watch, keeper: Keeper | None):
        self.program, self.lanes, self.watch, self.keeper = program, lanes, watch, keeper
        self.state: State = State((), ())
        self.index = 0
        self.going = list(range(len(lanes)))
        self.clock = Clock(lanes[0].job.rounds_a_call)

    def begin(self) -> float:
        """Compile, and make the first rows or find the checkpoint; how many seconds it took."""
        began = time.perf_counter()
        state, tally = self.program.prepare()
        # A call that runs no round compiles the program and leaves the state as it is.
        self.state, _ = self.program.advance(state, 0, 0)
        jax.block_until_ready(self.state)
        self._count(tally, 1, warmup=True)
        if self.keeper is None or (found := self.keeper.find(self.state)) is None:
            self.record()
        else:
            self._go_on_from(found)
        seconds = time.perf_counter() - began
        if self.keeper is not None:
            self.keeper.hold()
        return seconds

    def _go_on_from(self, found: Saved) -> None:
        self.state, self.index = found.state, found.done
        _take(self.lanes, found.runs, self.watch)
        for i, (lane, past) in enumerate(zip(self.lanes, found.runs, strict=True)):
            if lane.over:
                self._end(i, past.model)
        if self.index == self.lanes[0].job.rounds:  # the run was to be longer, and was not evaluated here
            self.record()

    def stops(self) -> Iterator[int]:
        """The rounds to come after which to evaluate, as long as a lane goes on."""
        for stop in self.lanes[0].job.stops:
            if stop > self.index and self.going:
                yield stop

    def advance(self, stop: int) -> None:
        """To round ``stop``, call by call."""
        while self.index < stop and self.going:
            to = self.clock.end(self.index, stop)
            to = to if self.keeper is None else self.keeper.stop(self.index, to)
            rounds = int(processes.from_first(np.int32(to))) - self.index
            began = time.perf_counter()
            self.state, tally = self.program.advance(self.state, self.index, self.index + rounds)
            self._count(jax.block_until_ready(tally), rounds)
            seconds = time.perf_counter() - began
            self.clock.took(seconds, rounds)
            self.index += rounds
            for lane in self.lanes:
                lane.history.costs.seconds += seconds / len(self.lanes)
            if self.index < stop:
                self.record(self._failed())
                if self.going:
                    self.save()

    def _failed(self) -> list[int]:
        """The lanes that end here, though no evaluation is due, for a client's upload was left out."""
        if not self.lanes[0].job.plan.stops:
            return []
        excluded = self.program.exclusions(self.state)
        return [i for i in self.going if np.any(excluded[i].left_out)]

    def record(self, which: list[int] | None = None) -> None:
        """Evaluate, and end those that are done; ``which``: of these lanes, by default of all that go on."""
        which = list(self.going) if which is None else which
        if not which:
            return
        excluded, figures = self.program.exclusions(self.state), self.program.measure(self.state, self.index)
        self._count_traffic()
        for i in which:
            if self.lanes[i].public is not None:
                figures[i] = private.seen(figures[i], self._model(i))
            row = self.lanes[i].history.add(self.index, figures[i], excluded[i])
            if self.keeper is not None:
                self.keeper.compare(i, row, functools.partial(self._model, i))
            self.watch(i, dict(row))
            if self.lanes[i].judge(row):
                self._end(i)

    def _count(self, tally: Tally, rounds: int, warmup: bool = False) -> None:
        count([lane.history for lane in self.lanes], tally, rounds, warmup)
        self._count_traffic()

    def _count_traffic(self) -> None:
        found = self.program.traffic()
        for lane in self.lanes:
            lane.history.costs.add_traffic(found)

    def _model(self, i: int) -> Tree:
        return self.program.outcome(self.state, self.index, i)[1]

    def _end(self, i: int, model: Tree = None) -> None:
        self.going.remove(i)
        kept = self.program.outcome(self.state, self.index, i) if model is None else (None, model)
        self.lanes[i].kept = kept

    def save(self) -> None:
        """Make a checkpoint, if one is due or all are done."""
        if self.keeper is not None and (not self.going or self.keeper.due(self.index)):
            ended = [None if lane.kept is None else lane.kept[1] for lane in self.lanes]
            runs = [
                Past(lane.history.rows, lane.history.costs.row(), lane.status, model)
                for lane, model in zip(self.lanes, ended, strict=True)
            ]
            self.keeper.save(Saved(self.state, self.index, runs))


def _were_over(lanes: list[Lane], watch: Watch, keeper: Keeper) -> bool:
    """Whether all runs were over when their checkpoint was made, and it has all that is left of them."""
    if (runs := keeper.find_over()) is None:
        return False
    _take(lanes, runs, watch)
    for lane, past in zip(lanes, runs, strict=True):
        lane.kept = (None, past.model)
    return True


def _take(lanes: list[Lane], runs: list[Past], watch: Watch) -> None:
    """Go on from a checkpoint: rows are seen again in the order in which they came."""
    for lane, past in zip(lanes, runs, strict=True):
        lane.take(past)
    for i, row in sorted(((i, row) for i, past in enumerate(runs) for row in past.rows), key=lambda at: at[1]["round"]):
        watch(i, dict(row))
        _ = (until := lanes[i].until) is not None and until(dict(row))  # it may count, for early stopping
