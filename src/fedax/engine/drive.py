"""drive: runs side by side, from evaluation to evaluation; their histories, their checkpoints, and how they end."""

import functools
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import jax
import numpy as np

from fedax.columns import PERSONAL, TRAIN, describe, diverged, heard_enough
from fedax.contract.types import Tree, Unknown
from fedax.engine import private, processes
from fedax.engine.checkpoint import Checkpointer, SavedRun, Snapshot
from fedax.engine.devices import in_precision
from fedax.engine.evaluate import check_until, public_columns
from fedax.engine.history import History, Row, Run, count, ended_worse
from fedax.engine.job import Job
from fedax.engine.loop import Counters, Exclusions, State
from fedax.engine.patience import Patience
from fedax.engine.personal import PersonalModels
from fedax.engine.timetable import Timetable
from fedax.engine.timing import RoundTimes
from fedax.errors import BadClientWarning, DivergedWarning, caller_level
from fedax.programs import compile_time

Watch = Callable[[int, Row], None]

_CALL = 2.0  # seconds that a call takes at most, by the pace so far: Python sees signals between calls only


class Times(Protocol):
    """When rounds are over, in simulated seconds."""

    def warmup(self) -> float:
        """How long the warm-up takes."""

    def after(self, time: float, start: int, stop: int) -> float:
        """When rounds start … stop − 1 are over, of which the first begins at ``time``."""


class Program(Protocol):
    """The compiled rounds of some jobs that run side by side, and differ in numbers only."""

    def times(self, which: int) -> Times | None:
        """When the rounds of job ``which`` are over, where the server does not wait; else ``None``."""

    def prepare(self) -> tuple[State, Counters]:
        """The state before round 0, and the counters of the warm-up."""

    def advance(self, state: State, start: int, stop: int) -> tuple[State, Counters]:
        """Run rounds start … stop − 1, if any: the new state, and the counters. ``state`` is donated."""

    def measure(self, state: State, index: int) -> list[dict[str, Unknown]]:
        """The figures of an evaluation after ``index`` rounds, for each job."""

    def exclusions(self, state: State) -> list[Tree]:
        """The uploads left out so far, for each job."""

    def outcome(self, state: State, index: int, which: int) -> tuple[State | None, Tree]:
        """What the run of job ``which`` returns in the end: the state, and the model."""

    def pace(self, index: int, which: int) -> dict[str, Unknown]:
        """How late answers of job ``which`` were in ``index`` rounds, by column; none where the server waits."""

    def traffic(self) -> dict[str, Unknown]:
        """The network traffic since the last call, by column; none in a simulation."""


def drive(program: Program, jobs: Sequence[Job], watch: Watch, checkpointer: Checkpointer | None = None) -> list[Run]:
    """Run jobs side by side, from their start or their last checkpoint to their ends.

    A job that diverged or stopped gets no more rows, though its numbers are still computed; the call returns when all
    are done. It warns of runs that ended badly.

    Args:
        watch: called with the number of a job and each row of its history, the last one with the run's status.
        checkpointer: of these jobs.
    """
    in_progress = [RunInProgress(job, program.times(which)) for which, job in enumerate(jobs)]
    seconds = 0.0
    if checkpointer is None or not _restore_finished(in_progress, watch, checkpointer):
        runs = _BatchInProgress(program, in_progress, watch, checkpointer)
        with in_precision(jobs[0].plan.precision):
            with compile_time() as compiling:
                runs.begin()
            seconds = compiling.seconds / len(jobs)
            for stop in runs.stops():
                runs.advance(stop)
                runs.record()
                runs.save()
    for one in in_progress:
        if (warning := one.conclude()[1]) is not None:
            warnings.warn(*warning, stacklevel=caller_level())
    return [one.run(seconds) for one in in_progress]


class RunInProgress:
    """One run: its history, and how it ended."""

    def __init__(self, job: Job, times: Times | None = None):
        self.job, self.history = job, History(job.forms, job.sent_once, None if job.ledger is None else job.epsilon)
        self.times = times if job.clock is None or times is not None else RoundTimes(job)
        self.missed = None if job.missed is None else np.zeros(job.plan.num_clients, int)  # how often a deadline was
        self.public = public_columns(job)  # of a private run
        check_until(job)
        self.until, self.patience = job.until, None
        if isinstance(job.until, Patience):
            self.until, self.patience = None, job.until.fresh(job.plan.task.metrics, job.min_heard)
        self.status = "finished"  # never "worse", which the next row may change
        self.result: tuple[State | None, Tree] | None = None  # the state and the model in the end

    def clocked(self, start: int, stop: int) -> None:
        """Count the time of rounds start … stop − 1; before round 0 that of the warm-up."""
        if self.times is not None:
            time = self.history.costs.time
            self.history.costs.time = self.times.warmup() if time is None else self.times.after(time, start, stop)
            if self.missed is not None and isinstance(self.times, RoundTimes):
                self.missed = self.missed + self.times.missed(start, stop)

    def with_missed(self, exclusions: Tree) -> Tree:
        """Exclusions, with clients that missed a deadline; of a run with one there are some, if only of nobody."""
        if self.missed is None:
            return exclusions
        found = exclusions or Exclusions(np.zeros_like(self.missed), np.zeros((), int))
        return found._replace(left_out=np.asarray(found.left_out) + self.missed)

    def judge(self, row: dict[str, Unknown]) -> None:
        """Set ``status`` if the run ends with its last row, whatever ``until`` says."""
        if diverged(row):
            self.status = "diverged"
        elif self.job.plan.stops and row["left_out"] > (0 if self.missed is None else self.missed.sum()):
            self.status = "failed"
        elif row["round"] == self.job.rounds:
            self.status = "stopped" if self.job.spent else "finished"
        elif self.patience is not None and self.patience(row):
            self.status = "stopped"

    def ask(self, row: dict[str, Unknown]) -> bool:
        """Whether the run ends with its last row, for ``until`` may say so."""
        if not self.over and self.until is not None and self.until(dict(row)):
            self.status = "stopped"
        return self.over

    def restore(self, saved: SavedRun, at: int | None) -> None:
        """Go on from a checkpoint after ``at`` rounds, or ``None``: take one that is over."""
        self.history.take(saved.rows, saved.costs)
        self.status = saved.status
        waited = self.patience is not None and [self.patience(row) for row in saved.rows][-1]
        if waited and not self.over and at == saved.rows[-1]["round"]:  # which was its last round then
            self.status = "stopped"

    @property
    def over(self) -> bool:
        """Whether nothing is left to do."""
        return self.status != "finished" or self._at_end

    def last_row(self) -> Row:
        """The last row, with the status of a run that is over, unless its ``until`` says so."""
        asked = self.status == "stopped" and self.until is not None and not self._at_end
        return Row(self.history.rows[-1], self.conclude()[0] if self.over and not asked else None)

    @property
    def _at_end(self) -> bool:
        return bool(self.history.rows[-1]["round"] == self.job.rounds)

    def conclude(self) -> tuple[str, tuple[str, type[Warning]] | None]:
        """The status of a run that is over, and the warning for its user, if there is one."""
        last, status = self.history.rows[-1], self.status
        if status == "failed":
            sent = "sent" if self.job.memory != "nodes" else "sent or did not send"
            left_out = f"what clients {last['bad_clients']} {sent} was left out by round {last['round']}"
            return status, (f"{left_out}: stopped, as asked", BadClientWarning)
        if status == "stopped" and (self.patience is None or self._at_end):  # by its user, or its budget
            return status, None
        if status == "diverged":
            name = next(name for name in (*TRAIN, "val_loss", "test_loss") if name in last)
            label = describe(name).label.lower().replace("train ", "training ")
            gone: str | None = f"the {label} is {last[name]} at round {last['round']}: stopped"
        elif (gone := self._worse()) is not None:
            status = "worse"
        return status, None if gone is None else (f"{gone}; try a smaller learning rate", DivergedWarning)

    def _worse(self) -> str | None:
        """In which way the run ended worse than it began; ``None``: it did not."""
        rows, judge = self.history.rows, private.judged(self.history.rows[0], self.public)
        last, counted = rows[-1], [row for row in rows if heard_enough(row, self.job.min_heard)]
        values = [row[judge] for row in counted] if judge is not None else []
        if values and ended_worse(values):
            name = judge if self.public is not None or str(judge).endswith(PERSONAL) else "objective"
            return f"the run ended worse than it began: its {name} was {values[0]:.4g}, is {values[-1]:.4g}"
        if self.public is not None or self.job.memory == "nodes":
            return None
        losses = [name for name in last if name.endswith(f"_loss{PERSONAL}") and not np.isfinite(last[name])]
        # A loss that never was finite may be undefined, that of training is not.
        defined = (n for n in losses if n.startswith(TRAIN[0]) or any(np.isfinite(row[n]) for row in rows))
        own = next(defined, None)
        return None if own is None else f"clients' own models are not finite: {own} is {last[own]}"

    def run(self, compile_seconds: float) -> Run:
        """What the user gets."""
        assert self.result is not None
        state, params = self.result
        models = None
        if state is not None:
            # Of several processes each has the memory of its own clients alone.
            here = self.job.memory != "nodes" and processes.count() == 1
            if self.job.evaluation.personal is not None and here:
                models = PersonalModels(self.job, state, int(self.history.rows[-1]["round"]))
            state = self.job.of_method(state._replace(exclusions=self.with_missed(state.exclusions)))
        rows, arrivals = self.history.rows, None
        if isinstance(self.times, Timetable):
            arrivals = self.times.arrivals(int(rows[-1]["round"]))
        status = self.conclude()[0]
        return Run(rows, state, params, status, compile_seconds, self.job.origin, self.public, arrivals, models)


class CallLength:
    """How many rounds the next call runs: those of about two seconds, by the pace of the call before; at first one.

    Example:
        >>> length = CallLength(most=100)
        >>> length.end(0, 50)
        1
        >>> length.took(0.5, rounds=1)
        >>> length.end(1, 50), length.end(1, 3)
        (5, 3)
    """

    def __init__(self, most: int):
        self.most = most
        self._pace: float | None = None

    def end(self, index: int, stop: int) -> int:
        """The round at which the next call from round ``index`` should end, at most ``stop``."""
        some = 1 if self._pace is None else max(1, int(_CALL / max(self._pace, 1e-9)))
        return min(stop, index + min(some, self.most))

    def took(self, seconds: float, rounds: int) -> None:
        """Note how long a call took."""
        self._pace = seconds / rounds


class _BatchInProgress:
    """Runs in progress: their common state after ``index`` rounds, and which of them are still active."""

    def __init__(
        self, program: Program, in_progress: list[RunInProgress], watch: Watch, checkpointer: Checkpointer | None
    ):
        self.program, self.in_progress, self.watch, self.checkpointer = program, in_progress, watch, checkpointer
        self.state: State = State((), ())
        self.index = 0
        self.active = list(range(len(in_progress)))
        self.length = CallLength(in_progress[0].job.rounds_a_call)

    def begin(self) -> None:
        """Compile, and make the first rows or restore the checkpoint."""
        state, counters = self.program.prepare()
        # A call that runs no round compiles the program and leaves the state as it is.
        self.state, _ = self.program.advance(state, 0, 0)
        jax.block_until_ready(self.state)
        self._count(counters, 1, warmup=True)
        for one in self.in_progress:
            one.clocked(0, 0)
        if self.checkpointer is None or (snapshot := self.checkpointer.find(self.state)) is None:
            self.record()
        else:
            self._restore(snapshot)
        if self.checkpointer is not None:
            self.checkpointer.hold()

    def _restore(self, snapshot: Snapshot) -> None:
        self.state, self.index = snapshot.state, snapshot.done
        _restore_runs(self.in_progress, snapshot.runs, self.index, self.watch)
        for i, (one, saved) in enumerate(zip(self.in_progress, snapshot.runs, strict=True)):
            if one.missed is not None and isinstance(one.times, RoundTimes):
                one.missed = one.times.missed(0, self.index)
            if one.over:
                self._end(i, saved.model)
        if self.index == self.in_progress[0].job.rounds:  # the run was to be longer, and was not evaluated here
            self.record()

    def stops(self) -> Iterator[int]:
        """The coming rounds after which to evaluate, as long as a run is active."""
        for stop in self.in_progress[0].job.evaluation.stops:
            if stop > self.index and self.active:
                yield stop

    def advance(self, stop: int) -> None:
        """To round ``stop``, call by call."""
        while self.index < stop and self.active:
            to = self.length.end(self.index, stop)
            to = to if self.checkpointer is None else self.checkpointer.stop(self.index, to)
            rounds = int(processes.from_first(np.int32(to))) - self.index
            began = time.perf_counter()
            self.state, counters = self.program.advance(self.state, self.index, self.index + rounds)
            self._count(jax.block_until_ready(counters), rounds)
            seconds = time.perf_counter() - began
            self.length.took(seconds, rounds)
            for i in self.active:
                self.in_progress[i].clocked(self.index, self.index + rounds)
            self.index += rounds
            for one in self.in_progress:
                one.history.costs.seconds += seconds / len(self.in_progress)
            if self.index < stop:
                self.record(self._failed())
                if self.active:
                    self.save()

    def _failed(self) -> list[int]:
        """The runs that end here, before the next evaluation, as a client's upload was left out."""
        if not self.in_progress[0].job.plan.stops:
            return []
        excluded = self.program.exclusions(self.state)
        return [i for i in self.active if np.any(excluded[i].left_out)]

    def record(self, which: list[int] | None = None) -> None:
        """Evaluate, and end the runs that are done; ``which``: these runs only, by default all active ones."""
        which = list(self.active) if which is None else which
        if not which:
            return
        excluded, figures = self.program.exclusions(self.state), self.program.measure(self.state, self.index)
        self._count_traffic()
        for i in which:
            if self.in_progress[i].public is not None:
                figures[i] = private.limited_losses(figures[i], self._model(i))
            missed = self.in_progress[i].with_missed(excluded[i])
            row = self.in_progress[i].history.add(self.index, figures[i], missed, self.program.pace(self.index, i))
            if self.checkpointer is not None:
                self.checkpointer.compare(i, row, functools.partial(self._model, i))
            self.in_progress[i].judge(row)
            self.watch(i, self.in_progress[i].last_row())
            if self.in_progress[i].ask(row):
                self._end(i)

    def _count(self, counters: Counters, rounds: int, warmup: bool = False) -> None:
        count([one.history for one in self.in_progress], counters, rounds, warmup)
        self._count_traffic()

    def _count_traffic(self) -> None:
        traffic = self.program.traffic()
        for one in self.in_progress:
            one.history.costs.add_traffic(traffic)

    def _model(self, i: int) -> Tree:
        return self.program.outcome(self.state, self.index, i)[1]

    def _end(self, i: int, model: Tree = None) -> None:
        self.active.remove(i)
        result = self.program.outcome(self.state, self.index, i) if model is None else (None, model)
        self.in_progress[i].result = result

    def save(self) -> None:
        """Make a checkpoint, if one is due or all are done."""
        if self.checkpointer is not None and (not self.active or self.checkpointer.due(self.index)):
            models = [None if one.result is None else one.result[1] for one in self.in_progress]
            runs = [
                SavedRun(one.history.rows, one.history.costs.row(), one.status, model)
                for one, model in zip(self.in_progress, models, strict=True)
            ]
            self.checkpointer.save(Snapshot(self.state, self.index, runs))


def _restore_finished(in_progress: list[RunInProgress], watch: Watch, checkpointer: Checkpointer) -> bool:
    """Restore runs that were all over when their checkpoint was made; returns whether that is so."""
    if (runs := checkpointer.find_over()) is None:
        return False
    _restore_runs(in_progress, runs, None, watch)
    for one, saved in zip(in_progress, runs, strict=True):
        one.result = (None, saved.model)
    return True


def _restore_runs(in_progress: list[RunInProgress], runs: list[SavedRun], at: int | None, watch: Watch) -> None:
    """Restore runs, of a checkpoint after ``at`` rounds, or that are over; ``watch`` gets their rows again."""
    rows: list[tuple[int, Row]] = []
    for i, (one, saved) in enumerate(zip(in_progress, runs, strict=True)):
        one.restore(saved, at)
        rows += [*((i, Row(row)) for row in saved.rows[:-1]), (i, one.last_row())]
    for i, row in sorted(rows, key=lambda at: at[1]["round"]):
        watch(i, row)
        one = in_progress[i]
        if row["round"] == one.history.rows[-1]["round"] == at:
            one.ask(row)
        elif one.until is not None:
            one.until(dict(row))  # which may count evaluations
