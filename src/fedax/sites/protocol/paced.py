"""Real clients of a server that does not wait: each is asked on its own, and the server steps when K have answered.

Who starts when, and whose answers make each step, follows from when the answers come: the schedule of a simulation
(:class:`fedax.federation.pace.LiveEventQueue`), whose queue is the nodes. So a simulation in which each piece of work
takes as long as it took here has the same arrivals, random numbers and weights. The answers, and when they came, are
written to a file, from which :meth:`fedax.Clock.from_csv` makes the clock of that simulation, and from which a run that
was stopped goes on.

While an evaluation waits for slow nodes, the server goes on taking answers, up to some steps ahead.
"""

import collections
import csv
import dataclasses
import functools
import io
import itertools
import os
import time
import zlib
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedax.columns import TIME
from fedax.contract.schedule import resolve
from fedax.contract.types import Tree, Unknown
from fedax.engine.asynchronous import heard_of
from fedax.engine.clients import summed
from fedax.engine.job import Job
from fedax.engine.loop import Clients, Counters, Request, Response, State, converse, exchanges
from fedax.engine.timetable import Timetable
from fedax.errors import CheckpointError, NodeError
from fedax.federation.pace import LiveEventQueue
from fedax.federation.recorded import COLUMNS
from fedax.files import write_atomic
from fedax.programs import compiled
from fedax.sites.protocol.fleet import Fleet
from fedax.sites.protocol.messages import Message
from fedax.sites.protocol.remote import NodeFigures, Remote, UnderWay, write_rows
from fedax.sites.protocol.summed import NodeAnswers, NodeMessages
from fedax.wire.sums import along

_AHEAD = 8  # steps that the server may take while an evaluation waits for slow nodes
_TICKS = 2.0**20  # a second, in the steps of time: sums of such times are exact
_now = time.monotonic


class _Step(NamedTuple):
    """The state after a step, as it is kept until it is asked for.

    Attributes:
        state: without its box.
        counters: of the step.
        older: by group, the downloads of older versions with which clients are under way.
        place: in the trace, after the last answer of the step.
    """

    state: State
    counters: Counters
    older: dict[int, Tree]
    place: tuple[int, int]


class ArrivalTrace:
    """A file of all answers in the order in which they came.

    Args:
        path: of the file; ``None``: there is none.
        names: of the clients.

    Attributes:
        place: how many answers there are, and a checksum of their lines.
    """

    def __init__(self, path: Path | None, names: Sequence[str]):
        self.path, self.names, self.place = path, names, (0, 0)
        self._lines: list[str] = []  # that are not in the file yet

    def restore(self, place: tuple[int, int]) -> list[tuple[int, float]]:
        """The numbers of the first answers and when they came; others are forgotten.

        Raises:
            CheckpointError: they are not there.
        """
        lines: list[str] = []
        if self.path is None:
            return []
        if place[0]:
            try:
                with self.path.open(encoding="utf-8") as file:
                    lines = [*itertools.islice(file, 1, place[0] + 1)]
            except (OSError, UnicodeDecodeError) as error:
                raise CheckpointError(f"{self.path}: cannot be read ({error}); restore it") from error
        if (len(lines), zlib.crc32("".join(lines).encode())) != place:
            raise CheckpointError(f"{self.path}: these are not the run's first {place[0]} answers; restore it")
        self.place = place
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.path, ",".join(COLUMNS) + "\n" + "".join(lines))
        return [(int(number), float(begun) + float(seconds)) for number, _, _, begun, seconds in csv.reader(lines)]

    def add(self, number: int, client: int, version: int, begun: float, seconds: float) -> None:
        """Add an answer."""
        name = self.names[client].replace("\n", " ").replace("\r", " ")
        row = io.StringIO()
        csv.writer(row, lineterminator="\n").writerow([number, name, version, begun, seconds])
        self.place = self.place[0] + 1, zlib.crc32(row.getvalue().encode(), self.place[1])
        self._lines.append(row.getvalue())

    def write(self) -> None:
        """See the answers so far on their way to the disk."""
        lines, self._lines = self._lines, []
        if self.path is not None and lines:
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(lines))
                file.flush()
                os.fsync(file.fileno())


class Paced(Remote):
    """The program of one job at nodes whose server does not wait.

    ``state.memory`` is as that of :class:`Remote`. ``state.box`` has what a run needs that goes on: the downloads of
    older versions with which clients are under way, leaves [M, ...], the numbers of their groups, and the place in the
    trace.

    Args:
        job, fleet, config, number, resumes: as there.
        arrivals: the file of the trace; ``None``: there is none, and no run goes on.

    Raises:
        NodeError: a node objects to the run.
    """

    def __init__(
        self, job: Job, fleet: Fleet, config: dict[str, Unknown], number: int, resumes: bool, arrivals: Path | None
    ):
        super().__init__(job, fleet, config, number, resumes)
        assert job.pacing is not None
        census = job.census
        self._schedule = LiveEventQueue(job.pacing.pace, census.num_clients, job.seed)
        self._table, self._local_steps = job.pacing.live(self._schedule, job.hyper.work, job.key, census, job.plan)
        self._trace = ArrivalTrace(arrivals, census.names or [str(i) for i in range(census.num_clients)])
        self._wire = dataclasses.replace(job.hyper.wire, apart=True)  # of the messages to a client
        self._newest: State  # after the last step
        self._steps: dict[int, _Step] = {}  # that nobody has asked for yet, by the number of steps
        self._goal = 0  # up to so many steps answers are taken
        self._kept: dict[int, np.ndarray] = {}  # steps -> [N] versions of memory to which a run may go back
        self._downloads: dict[int, Tree] = {}  # by group
        self._form_of_download: Tree = None
        self._uploads: dict[int, tuple[Tree, bool]] = {}  # that wait for a step, by job: with whether they count
        self._queues = [collections.deque[int]() for _ in range(len(fleet))]  # jobs that a node is not asked yet
        self._queued = 0  # jobs that were put into a queue so far
        self._busy: dict[int, Callable[[Message], None]] = {}  # by node that was asked: what takes its answer
        self._inbox: collections.deque[tuple[int, float, Message]] = collections.deque()  # answers to jobs, and when
        self._questions: NodeMessages = {}  # those of the evaluation that are not asked yet
        self._evaluated: NodeAnswers = {}
        self._silent: set[int] = set()  # nodes that were not heard in an evaluation, nor since
        self._last, self._origin = 0.0, 0.0  # when the last answer came, and when the run would have begun
        self._talk: Generator[list[tuple[int, Message]], Mapping[int, Message], None] = fleet.talk()

    # ---- what drive() asks

    def times(self, which: int) -> Timetable:
        return self._table

    def pace(self, index: int, which: int) -> dict[str, Unknown]:
        return self._table.late(index)

    def prepare(self) -> tuple[State, Counters]:
        """The state before the first answer; only its form, if a checkpoint replaces it."""
        self._newest, counters = super().prepare()
        return self._newest._replace(box=self._box({}, (0, 0))), counters

    def advance(self, state: State, start: int, stop: int) -> tuple[State, Counters]:
        """Take steps start … stop − 1: the new state, and the counters."""
        if start == stop:
            return state, Counters(0, 0, 0, 0)
        self._begin(state, start)
        self._goal = max(self._goal, stop)
        self._until(lambda: stop in self._steps)
        steps = [self._steps.pop(version) for version in range(start + 1, stop + 1)]
        self._kept = {version: each for version, each in self._kept.items() if version >= stop - 2}
        done = np.sum([step.counters[:3] for step in steps], axis=0)
        counters = Counters(*done.tolist())._replace(uploads=self._table.answers(start, stop))
        last = steps[-1]
        return last.state._replace(box=self._box(last.older, last.place)), counters

    def traffic(self) -> dict[str, Unknown]:
        """Bytes on the wire and seconds of waiting since the last call; the time is that of the schedule."""
        return {name: value for name, value in super().traffic().items() if name != TIME}

    def _last_turns(self, versions: np.ndarray) -> np.ndarray:
        return np.array([-1, *self._schedule.versions])[versions]

    def forget(self) -> None:
        self._talk.close()
        super().forget()

    def _evaluate_and_prefetch(
        self, evaluation: UnderWay[NodeFigures], state: State, index: int, model: Tree
    ) -> NodeFigures:
        """The figures of an evaluation; meanwhile the server goes on."""
        self._begin(state, index)
        messages, end = evaluation.messages, _now() + self.fleet.timeout
        self._goal = max(self._goal, min(index + _AHEAD, self.job.rounds))
        self._evaluated = dict.fromkeys(self._silent)
        self._questions = {which: message for which, message in messages.items() if which not in self._silent}
        self._until(lambda: len(self._evaluated) == len(messages) or _now() > end)
        evaluation.answers, self._questions = dict.fromkeys(messages) | self._evaluated, {}
        self._silent = {which for which, answer in evaluation.answers.items() if answer is None}
        evaluation.go_on()
        return evaluation.result

    # ---- the loop

    def _begin(self, state: State, index: int) -> None:
        """Begin, or go on from a checkpoint."""
        if self._kept:
            return
        self._newest, self._goal = state, index
        self._versions = state.memory[:, 1].copy()
        self._kept[index] = self._versions.copy()
        box = {"groups": [], "place": [0, 0]} if state.box == () else state.box
        for number, at in self._trace.restore((int(box["place"][0]), int(box["place"][1]))):
            self._schedule.hear(number, at)
            self._last = at
        if self._schedule.version != index:
            raise CheckpointError(f"{self._trace.path}: it has {self._schedule.version} steps, and the run {index}")
        self._origin = _now() - self._last
        next(self._talk)
        for k, group in enumerate(map(int, box["groups"])):
            if group >= 0:
                self._downloads[group] = jax.tree.map(lambda leaf, k=k: leaf[k], box["downloads"])
        self._enqueue()

    def _until(self, done: Callable[[], bool]) -> None:
        """Take answers until something is so."""
        heard = _now()
        while True:
            while self._inbox and self._schedule.version < self._goal and not done():
                self._hear(*self._inbox.popleft())
            if done():
                return
            if self._look():
                heard = _now()
            elif self._schedule.version < self._goal and _now() - heard > self.fleet.timeout:
                names = sorted({self._trace.names[self._schedule.clients[job]] for job in self._schedule.under_way})
                text = f"no node answered in {self.fleet.timeout:g} s, in step {self._schedule.version}"
                raise NodeError(f"{text}, of clients {', '.join(names)}; --resume goes on when they are back")

    def _look(self) -> bool:
        """Send what there is to send, and look whether something has come."""
        if self._schedule.version < self._goal:
            self._schedule.wait(self._time())
            self._enqueue()
        messages = {}
        for which, queue in enumerate(self._queues):
            if which in self._busy:
                continue
            if which in self._questions:
                messages[which] = self._questions.pop(which)
                self._busy[which] = functools.partial(self._evaluated.__setitem__, which)
            elif queue:
                job = queue.popleft()
                messages[which], self._busy[which] = self._message(job), functools.partial(self._arrived, job)
        came = self._talk.send(messages)
        for which, answer in came:
            self._silent.discard(which)
            self._busy.pop(which)(answer)
        return bool(came)

    def _arrived(self, job: int, answer: Message) -> None:
        """Note when the answer to a piece of work came."""
        self._last = max(self._time(), self._last + 1 / _TICKS)
        self._inbox.append((job, self._last, answer))

    def _time(self) -> float:
        """Seconds since the run began, without those in which it was stopped."""
        return round((_now() - self._origin) * _TICKS) / _TICKS

    # ---- a piece of work

    def _enqueue(self) -> None:
        """Put work that has begun into the queues of its nodes."""
        schedule, new = self._schedule, range(self._queued, len(self._schedule.clients))
        if schedule.version >= self.job.rounds:
            return
        for job in new:
            if job not in schedule.under_way:  # answered before the run was stopped
                continue
            group = schedule.under_way[job]
            if group not in self._downloads:
                self._downloads[group] = self._download(self._request(job), group)
            self._queues[self._at_node[schedule.clients[job]][0]].append(job)
        self._queued = new.stop

    def _request(self, job: int) -> Request:
        """The request of a piece of work: to its client, with ω = p = 1."""
        client, self.index = self._schedule.clients[job], self._schedule.versions[job]
        one, zero = np.ones(1, jnp.zeros(()).dtype), np.zeros(1, np.int32)
        steps = self._local_steps(client, self._schedule.under_way[job])
        clients = Clients(np.array([client], np.int32), one, one, zero + steps, np.ones(1, bool), zero, zero + 1)
        exchange = resolve(self.job.hyper.method, self.index).exchanges()[0]
        none: Tree = None  # what is asked of one client depends on nothing that the server knows of the round
        server = self._newest.server
        return Request("exchanges", 0, exchange, server, clients, None, none, np.ones(1, bool), self._wire)

    def _message(self, job: int) -> Message:
        """The message to the node of a piece of work."""
        row, group = self._at_node[self._schedule.clients[job]][1], self._schedule.under_way[job]
        self._kept_versions = np.stack([self._versions, *self._kept.values()], axis=1)
        return self._exchange_message(
            self._request(job), self._downloads[group], np.zeros(1, int), np.array([row]), group=group, work=job
        )

    def _hear(self, job: int, at: float, answer: Message) -> None:
        """Take an answer that came at a time, and the step that it makes."""
        schedule, client = self._schedule, self._schedule.clients[job]
        which, _ = self._at_node[client]
        if "repeated" in answer.head:
            raise NodeError(f"clients {self.fleet.names(which)}: {answer.head['repeated']}; begin a new run")
        schedule.wait(at)
        self._enqueue()  # whom a grace that is over has made start: with the model of before this answer
        upload, counts = self._upload(which, job, answer)
        self._trace.add(job, client, schedule.versions[job], schedule.begun[job], at - schedule.begun[job])
        steps = schedule.version
        schedule.hear(job, at)
        if counts:
            self._versions[client] = job + 1
        if job not in schedule.dropped:
            self._uploads[job] = upload, counts
        if schedule.version > steps:
            self._step()
        self._enqueue()  # before the next step: with the model of now

    def _upload(self, which: int, job: int, answer: Message) -> tuple[Tree, bool]:
        """An upload, leaves [1, ...], and whether it counts."""
        request = self._request(job)
        arrays = self._read(which, answer, request, 1)
        counts = self._plausible(arrays, 1) & arrays.get("accepted", True)
        if "uploads" in arrays:
            return arrays["uploads"], bool(counts)
        _, found = self._decoded(request, arrays["parts"], request.clients)
        return jax.tree.map(np.asarray, found.upload), bool(
            counts & (found.accepted if self._wire.guard is not None else True)
        )

    # ---- a step

    def _step(self) -> None:
        """Take the step whose answers are there."""
        job, schedule, before = self.job, self._schedule, self._newest
        self.index = version = schedule.version - 1
        groups = list(self._table.groups(version, version + 1))
        rows = self._table.stacked(groups, len(groups), job.fed.weights.dtype)
        last = jax.tree.map(lambda leaf: leaf[-1], rows)
        clients, round_ = _heard(job.fed, job.key, last, job.plan)
        heard, round_ = jax.tree.map(np.asarray, (clients, round_._replace(key=jnp.zeros(0))))
        method = resolve(job.hyper.method, version)
        end = converse(
            exchanges("exchanges", method, heard, round_, before.server, job.hyper.wire, job.plan.watched, self), self
        )
        memory = before.memory.copy()
        memory[:, 1] = self._versions
        exclusions = before.exclusions.after(heard, end) if before.exclusions else ()
        self._newest = State(end.server, memory, exclusions)
        self._kept[version + 1] = self._versions.copy()
        self._trace.write()
        begun = int(np.sum(rows.ids < job.plan.num_clients))
        under_way = {group: schedule.versions[number] for number, group in schedule.under_way.items()}
        self._downloads = {group: each for group, each in self._downloads.items() if group in under_way}
        older = {group: self._downloads[group] for group in sorted(under_way) if under_way[group] <= version}
        counters = self._tally()._replace(clients=begun)
        self._steps[version + 1] = _Step(self._newest, counters, older, self._trace.place)

    def answer(self, request: Request) -> Response:
        """The response to the request of a step: of the uploads that are there."""
        parts = [self._uploads.pop(number) for number in self._schedule.steps[self.index]]
        uploads = jax.tree.map(lambda *leaves: np.concatenate(leaves), *(upload for upload, _ in parts))
        accepted = np.array([counts for _, counts in parts])
        given = accepted if request.wire.excludes else ()
        if request.wire.gathers:
            return Response((), uploads, given)
        return Response(_sum(request.clients.only(accepted), uploads), (), given)

    def _box(self, older: Mapping[int, Tree], place: tuple[int, int]) -> Tree:
        """What a run that goes on needs besides the state."""
        if self._trace.path is None:
            return ()
        size = self._table.pace.concurrency
        if self._form_of_download is None:
            self._form_of_download = self._download(self._request(0), 0)
        empty = lambda leaf: np.zeros((size, *np.shape(leaf)), np.asarray(leaf).dtype)  # noqa: E731
        downloads = jax.tree.map(empty, self._form_of_download)
        for k, download in enumerate(older.values()):
            write_rows(downloads, k, download)
        numbers = np.full(size, -1)
        numbers[: len(older)] = [*older]
        return {"downloads": downloads, "groups": numbers, "place": np.array(place)}


_heard = compiled(static=["plan"])(heard_of)


@compiled()
def _sum(clients: Clients, uploads: Tree) -> Tree:
    """The weighted sum of uploads, leaves [K, ...]; one that does not count may hold any numbers."""
    there = lambda leaf: jnp.where(along(clients.data_weights > 0, leaf), leaf, 0)  # noqa: E731
    return summed(clients, jax.tree.map(there, uploads))
