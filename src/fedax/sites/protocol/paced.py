"""Real clients of a server that does not wait: each is asked on its own, and the server steps when K have answered.

Who starts when, and whose answers make each step, follows from when the answers come: the schedule of a simulation
(:class:`fedax.federation.pace.LiveSchedule`), whose queue is the nodes. So a simulation in which each piece of work
takes as long as it took here has the same arrivals, random numbers and weights. The answers, and when they came, are
written to a file, from which :meth:`fedax.Clock.from_csv` makes the clock of that simulation, and from which a run that
was stopped goes on.

While an evaluation waits for slow nodes, the server goes on taking answers, up to some steps ahead.
"""

import collections
import dataclasses
import os
import pathlib
import time
import zlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedax.contract.algorithm import Round
from fedax.contract.schedule import resolve
from fedax.contract.types import Array, Tree, Unknown
from fedax.engine.clients import summed
from fedax.engine.job import Job
from fedax.engine.loop import (
    Clients,
    Federation,
    Request,
    Response,
    State,
    Tally,
    exchanges,
    placed,
    round_of,
)
from fedax.engine.places.host import read_encoded
from fedax.engine.places.layout import Layout
from fedax.engine.plan import Plan
from fedax.engine.timetable import Group, Timetable
from fedax.errors import CheckpointError, NodeError
from fedax.federation.pace import LiveSchedule
from fedax.federation.recorded import COLUMNS
from fedax.files import write_atomic
from fedax.programs import compiled
from fedax.sites.protocol.fleet import Fleet
from fedax.sites.protocol.messages import Message
from fedax.sites.protocol.remote import Figures, Remote
from fedax.sites.protocol.summed import NodeAnswers, NodeMessages
from fedax.wire.sums import along

_AHEAD = 8  # steps that the server may take while an evaluation waits for slow nodes
_TICKS = 2.0**20  # a second, in the steps of time: sums of such times are exact
_now = time.monotonic


class _Asked(NamedTuple):
    """The message that a node has; ``job``: the number of the piece of work, or ``None`` of an evaluation."""

    job: int | None
    message: Message


class _Came(NamedTuple):
    """The answer to a piece of work, that came at a time."""

    job: int
    time: float
    which: int
    answer: Message


class _Step(NamedTuple):
    """The state after a step, as it is kept until it is asked for.

    Attributes:
        state: without its box.
        tally: of the step.
        groups: the groups of older versions from which clients are under way.
        place: in the trace, after the last answer of the step.
    """

    state: State
    tally: Tally
    groups: list[int]
    place: tuple[int, int]


class Trace:
    """A file of all answers in the order in which they came.

    Args:
        path: of the file; ``None``: there is none.
        names: of the clients.

    Attributes:
        place: how many answers there are, and a checksum of their lines.
    """

    def __init__(self, path: pathlib.Path | None, names: Sequence[str]):
        self.path, self.names, self.place = path, names, (0, 0)
        self._lines: list[str] = []  # that are not in the file yet

    def restore(self, place: tuple[int, int]) -> list[tuple[int, float]]:
        """The numbers of the first answers and when they came; others are forgotten.

        Raises:
            CheckpointError: they are not there.
        """
        head, lines = ",".join(COLUMNS) + "\n", list[str]()
        if self.path is None:
            return []
        if place[0]:
            try:
                lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)[1 : place[0] + 1]
            except (OSError, UnicodeDecodeError) as error:
                raise CheckpointError(f"{self.path}: cannot be read ({error}); restore it") from error
        if (len(lines), zlib.crc32("".join(lines).encode())) != place:
            raise CheckpointError(f"{self.path}: these are not the run's first {place[0]} answers; restore it")
        self.place = place
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.path, head + "".join(lines))
        cells = [line.rsplit(",", 3) for line in lines]
        return [(int(each[0].partition(",")[0]), float(each[2]) + float(each[3])) for each in cells]

    def add(self, number: int, client: int, version: int, begun: float, seconds: float) -> None:
        """Add an answer."""
        name = self.names[client]
        if any(sign in name for sign in ',"\r\n'):
            name = '"' + name.replace('"', '""').replace("\n", " ").replace("\r", " ") + '"'
        line = f"{number},{name},{version},{begun!r},{seconds!r}\n"
        self.place = self.place[0] + 1, zlib.crc32(line.encode(), self.place[1])
        self._lines.append(line)

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
        self,
        job: Job,
        fleet: Fleet,
        config: dict[str, Unknown],
        number: int,
        resumes: bool = False,
        arrivals: pathlib.Path | None = None,
    ):
        super().__init__(job, fleet, config, number, resumes)
        assert job.pacing is not None
        census, self._concurrency = job.census, job.pacing.pace.concurrency
        self._schedule = LiveSchedule(job.pacing.pace, census.num_clients, job.seed)
        self._table, self._local_steps = job.pacing.live(self._schedule, job.hyper.work, job.key, census, job.plan)
        self._trace = Trace(arrivals, census.names or [str(i) for i in range(census.num_clients)])
        self._at_node = {
            int(client): (which, row) for which in range(len(fleet)) for row, client in enumerate(fleet.clients(which))
        }
        self._wire = dataclasses.replace(job.hyper.wire, apart=True)  # of the messages to a client
        self._newest: State | None = None  # after the last step
        self._steps: dict[int, _Step] = {}  # that nobody has asked for yet, by the number of steps
        self._goal = 0  # up to so many steps answers are taken
        self._kept: dict[int, np.ndarray] = {}  # steps -> [N] versions of memory to which a run may go back
        self._downloads: dict[int, Tree] = {}  # by group
        self._form_of_download: Tree = None
        self._uploads: dict[int, tuple[Tree, bool]] = {}  # that wait for a step, by job: with whether they count
        self._queues = [collections.deque[int]() for _ in range(len(fleet))]  # jobs that a node is not asked yet
        self._queued = 0  # jobs that were put into a queue so far
        self._busy: dict[int, _Asked] = {}  # by node
        self._inbox: collections.deque[_Came] = collections.deque()
        self._evaluation_asked: NodeMessages = {}
        self._questions: NodeMessages = {}  # those of the evaluation that are not asked yet
        self._evaluated: NodeAnswers = {}
        self._silent: set[int] = set()  # nodes that were not heard in an evaluation, nor since
        self._last, self._offset, self._origin = 0.0, 0.0, 0.0
        self._talk: Generator[list[tuple[int, Message]], Mapping[int, Message], None] = fleet.talk()

    # ---- what drive() asks

    def times(self, which: int) -> Timetable:
        return self._table

    def pace(self, index: int, which: int) -> dict[str, Unknown]:
        return self._table.late(index)

    def prepare(self) -> tuple[State, Tally]:
        """The state before the first answer; only its form, if a checkpoint replaces it."""
        state, tally = super().prepare()
        return state._replace(box=self._box(state, [], (0, 0))), tally

    def advance(self, state: State, start: int, stop: int) -> tuple[State, Tally]:
        """Take steps start … stop − 1: the new state, and the tally."""
        if start == stop:
            return state, Tally(0, 0, 0, 0)
        self._begin(state, start)
        self._goal = max(self._goal, stop)
        self._until(lambda: stop in self._steps)
        steps = [self._steps.pop(version) for version in range(start + 1, stop + 1)]
        for version in [version for version in self._kept if version < stop - 2]:
            del self._kept[version]
        done = np.sum([step.tally[:3] for step in steps], axis=0)
        tally = Tally(*done.tolist())._replace(uploads=self._table.answers(start, stop))
        last = steps[-1]
        state = last.state._replace(box=self._box(last.state, last.groups, last.place))
        needed = {*self._schedule.under_way.values()}.union(*(step.groups for step in self._steps.values()))
        self._downloads = {group: each for group, each in self._downloads.items() if group in needed}
        return state, tally

    def traffic(self) -> dict[str, Unknown]:
        """Bytes on the wire and seconds of waiting since the last call; the time is that of the schedule."""
        found = super().traffic()
        return {name: value for name, value in found.items() if name in ("wire_down", "wire_up", "waited")}

    def forget(self) -> None:
        self._talk.close()
        super().forget()

    def _evaluate_and_prefetch(
        self, evaluation: Generator[NodeMessages, NodeAnswers, Figures], state: State, index: int, model: Tree
    ) -> Figures:
        """The figures of an evaluation; meanwhile the server goes on."""
        messages = next(evaluation)
        self._begin(state, index)
        self._goal = max(self._goal, min(index + _AHEAD, self.job.rounds))
        self._evaluated = dict.fromkeys(self._silent)
        self._evaluation_asked = {which: message for which, message in messages.items() if which not in self._silent}
        self._questions, end = dict(self._evaluation_asked), _now() + self.fleet.timeout
        self._until(lambda: len(self._evaluated) == len(messages) or _now() > end)
        found, self._evaluation_asked, self._questions = dict.fromkeys(messages) | self._evaluated, {}, {}
        self._silent = {which for which, answer in found.items() if answer is None}
        try:
            evaluation.send(found)
        except StopIteration as finished:
            figures: Figures = finished.value
        return figures

    # ---- the loop

    def _begin(self, state: State, index: int) -> None:
        """Begin, or go on from a checkpoint."""
        if self._newest is not None:
            return
        self._newest, self._goal = state, index
        self._versions = state.memory[:, 1].copy()
        self._kept[index] = self._versions.copy()
        place = (0, 0) if state.box == () else tuple(state.box["place"].tolist())
        for number, at in self._trace.restore(place):
            self._schedule.hear(number, at)
            self._last = at
        if self._schedule.version != index:
            raise CheckpointError(f"{self._trace.path}: it has {self._schedule.version} steps, and the run {index}")
        self._offset, self._origin = self._last, _now()
        next(self._talk)
        if index:
            for k, group in enumerate(state.box["groups"].tolist()):
                if group >= 0:
                    self._downloads[group] = jax.tree.map(lambda leaf, k=k: leaf[k], state.box["downloads"])
        self._enqueue()

    def _until(self, done: Callable[[], bool]) -> None:
        """Take answers until something is so."""
        heard = _now()
        while True:
            while self._inbox and self._schedule.version < self._goal and not done():
                self._hear(self._inbox.popleft())
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
                self._busy[which] = _Asked(None, self._questions.pop(which))
            elif queue:
                self._busy[which] = self._asked(queue.popleft())
            else:
                continue
            messages[which] = self._busy[which].message
        came = self._talk.send(messages)
        for which, answer in came:
            asked = self._busy.pop(which)
            self._silent.discard(which)
            if asked.job is not None:
                self._last = max(self._time(), self._last + 1 / _TICKS)
                self._inbox.append(_Came(asked.job, self._last, which, answer))
            elif self._evaluation_asked.get(which) is asked.message:  # not of one that was given up
                self._evaluated[which] = answer
        return bool(came)

    def _time(self) -> float:
        """Seconds since the run began, without those in which it was stopped."""
        return round((self._offset + _now() - self._origin) * _TICKS) / _TICKS

    # ---- a piece of work

    def _enqueue(self) -> None:
        """Put work that has begun into the queues of its nodes."""
        schedule, new = self._schedule, range(self._queued, len(self._schedule.clients))
        assert self._newest is not None
        if schedule.version >= self.job.rounds:
            return
        for job in new:
            if job not in schedule.under_way:  # answered before the run was stopped
                continue
            group = schedule.under_way[job]
            if group not in self._downloads:
                self.index = schedule.version
                self._downloads[group] = self._download(self._request(self._alone(job), self._newest.server), group)
            self._queues[self._at_node[schedule.clients[job]][0]].append(job)
        self._queued = new.stop

    def _alone(self, job: int) -> Clients:
        """The client of a piece of work, with ω = p = 1."""
        client, one = self._schedule.clients[job], np.ones(1, jnp.zeros(()).dtype)
        steps = self._local_steps(client, self._schedule.under_way[job])
        zero = np.zeros(1, np.int32)
        return Clients(np.array([client], np.int32), one, one, zero + steps, np.ones(1, bool), zero, zero + 1)

    def _request(self, clients: Clients, server: Tree) -> Request:
        """A request to some clients, of version ``self.index``."""
        exchange = resolve(self.job.hyper.method, self.index).exchanges()[0]
        counts = np.ones(len(clients.ids), bool)
        none: Tree = None  # what is asked of one client depends on nothing that the server knows of the round
        return Request("exchanges", 0, exchange, server, clients, None, none, counts, self._wire)

    def _asked(self, job: int) -> _Asked:
        """The message to the node of a piece of work."""
        assert self._newest is not None
        _, row = self._at_node[self._schedule.clients[job]]
        group = self._schedule.under_way[job]
        self.index = self._schedule.versions[job]
        self._kept_versions = np.stack([self._versions, *self._kept.values()], axis=1)
        request = self._request(self._alone(job), self._newest.server)
        message = self._exchange_message(
            request, self._downloads[group], np.zeros(1, int), np.array([row], np.int32), group=group, work=job
        )
        return _Asked(job, message)

    def _hear(self, came: _Came) -> None:
        """Take an answer, and the step that it makes."""
        schedule, job, answer_head = self._schedule, came.job, came.answer.head
        if "repeated" in answer_head:
            raise NodeError(f"clients {self.fleet.names(came.which)}: {answer_head['repeated']}; begin a new run")
        schedule.wait(came.time)
        self._enqueue()  # whom a grace that is over has made start: with the model of before this answer
        client, version, begun = schedule.clients[job], schedule.versions[job], schedule.begun[job]
        upload, counts = self._upload(came, version)
        self._trace.add(job, client, version, begun, came.time - begun)
        steps = schedule.version
        schedule.hear(job, came.time)
        if counts:
            self._versions[client] = job + 1
        if job not in schedule.dropped:
            self._uploads[job] = upload, counts
        if schedule.version > steps:
            self._step()
        self._enqueue()  # before the next step: with the model of now

    def _upload(self, came: _Came, version: int) -> tuple[Tree, bool]:
        """An upload, leaves [1, ...], and whether it counts."""
        assert self._newest is not None
        self.index = version
        clients = self._alone(came.job)
        request = self._request(clients, self._newest.server)
        arrays = self._read(came.which, came.answer, request, 1)
        counts = self._plausible(arrays, 1) & arrays.get("accepted", True)
        form = self._form("exchanges", 0)
        layout = Layout.of(form.upload, form.first)
        if not layout.messages:
            return arrays["uploads"], bool(counts)
        parts = layout.unpacked(arrays["letters"], self._up, f"clients {self.fleet.names(came.which)}: the answer")
        _, read = read_encoded(self.inputs(request), parts, clients, layout=layout, **self.static(request))
        return jax.tree.map(np.asarray, read.upload), bool(counts & (read.accepted if self._wire.excludes else True))

    # ---- a step

    def _step(self) -> None:
        """Take the step whose answers are there."""
        job, schedule, before = self.job, self._schedule, self._newest
        assert before is not None
        self.index = version = schedule.version - 1
        groups = list(self._table.groups(version, version + 1))
        rows = self._table.stacked(groups, len(groups), job.fed.weights.dtype)
        last = jax.tree.map(lambda leaf: leaf[-1], rows)
        heard, round_ = jax.tree.map(np.asarray, _heard(job.fed, job.key, last, plan=job.plan))
        method = resolve(job.hyper.method, version)
        loop = exchanges("exchanges", method, heard, round_, before.server, job.hyper.wire, job.plan.watched, self)
        request = next(loop)
        parts = [self._uploads.pop(number) for number in schedule.steps[version]]
        uploads = jax.tree.map(lambda *leaves: np.concatenate(leaves), *(upload for upload, _ in parts))
        accepted = np.array([counts for _, counts in parts])
        total: Tree = () if request.wire.gathers else _sum(request.clients.only(accepted), uploads)
        uploads = uploads if request.wire.gathers else ()
        try:
            loop.send(Response(total, uploads, accepted if request.wire.excludes else ()))
        except StopIteration as finished:
            end = finished.value
        memory = before.memory.copy()
        memory[:, 1] = self._versions
        exclusions = before.exclusions.after(heard, end) if before.exclusions else ()
        self._newest = State(end.server, memory, exclusions)
        self._kept[version + 1] = self._versions.copy()
        self._trace.write()
        begun = int(np.sum(rows.ids < job.plan.num_clients))
        tally, self._done = Tally(begun, *self._done[1:].tolist()), np.zeros(3, np.int64)
        older = {group for number, group in schedule.under_way.items() if schedule.versions[number] <= version}
        self._steps[version + 1] = _Step(self._newest, tally, sorted(older), self._trace.place)

    def _box(self, state: State, groups: Sequence[int], place: tuple[int, int]) -> Tree:
        """What a run that goes on needs besides the state."""
        if self._trace.path is None:
            return ()
        numbers = np.full(self._concurrency, -1)
        numbers[: len(groups)] = groups
        if self._form_of_download is None:
            self.index = 0
            self._form_of_download = self._download(self._request(self._alone(0), state.server), 0)
        empty = lambda leaf: np.zeros((self._concurrency, *np.shape(leaf)), np.asarray(leaf).dtype)  # noqa: E731
        downloads = jax.tree.map(empty, self._form_of_download)
        for k, group in enumerate(groups):
            jax.tree.map(lambda all_, leaf, k=k: all_.__setitem__(k, leaf), downloads, self._downloads[group])
        return {"downloads": downloads, "groups": numbers, "place": np.array(place)}


@compiled(static=["plan"])
def _heard(fed: Federation, key: Array, group: Group, *, plan: Plan) -> tuple[Clients, Round]:
    """The clients whose answers make a step, and what the server knows of it; without the server's key."""
    steps = group.heard_steps if plan.steps is None else jnp.int32(plan.steps)
    heard = placed(fed, group.heard, group.weights.astype(fed.weights.dtype), steps, plan)
    return heard, round_of(heard, group.version, key, plan)._replace(staleness=group.staleness, key=jnp.zeros(0))


@compiled()
def _sum(clients: Clients, uploads: Tree) -> Tree:
    """The weighted sum of uploads, leaves [K, ...]; one that does not count may hold any numbers."""
    there = lambda leaf: jnp.where(along(clients.data_weights > 0, leaf), leaf, 0)  # noqa: E731
    return summed(clients, jax.tree.map(there, uploads))
