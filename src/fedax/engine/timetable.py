"""The timetable of an asynchronous run: its schedule as arrays, group by group; and which runs can have one."""

import functools
import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedax.contract.algorithm import Algorithm, Pace
from fedax.contract.staleness import Staleness
from fedax.contract.types import Array, Number, Tree, Unknown
from fedax.engine.loop import draw_steps, stage_key
from fedax.engine.options import Options
from fedax.engine.plan import ExchangeForm, RunPlan
from fedax.errors import ConfigError
from fedax.federation.census import Census
from fedax.federation.clock import BoundClock
from fedax.federation.pace import Async, EventQueue, LiveEventQueue, Starts
from fedax.federation.participation import Full, Participation, Uniform
from fedax.federation.work import Work
from fedax.programs import compiled

_ROWS, _MOST = 2**16, 256  # of the groups that a program takes at a time: clients, about, and groups
_DRAWN, _KEPT = 2**16, 64  # local steps that are drawn at a time, and how often they are kept
_LONG = 200  # answers of each client, on average, by which weights are corrected


class Group(NamedTuple):
    """Groups of starts, each with the step after it, as arrays with an axis of the groups in front.

    A timetable keeps single ones until their step: numbers, and tuples of as many as there are, without weights.

    Attributes:
        number: the group's, from which its random numbers are.
        version: of the model that its clients begin with.
        ids, steps, slots: [K] its clients, their local steps, and where in the box their uploads go; N, 0 and a number
            beyond the box at an empty place.
        step: whether a step of the server follows.
        heard, heard_steps, heard_slots, weights, staleness: [K] of the answers that the step takes; N at an empty
            place.
    """

    number: Number
    version: Number
    ids: Tree
    steps: Tree
    slots: Tree
    step: Number
    heard: Tree
    heard_steps: Tree
    heard_slots: Tree
    weights: Tree
    staleness: Tree


def together(
    tables: Sequence["Timetable"], start: int, stop: int, dtype: np.dtype
) -> Iterator[tuple[list[Group], int]]:
    """The groups from versions start … stop − 1 of runs side by side, some at a time: for each run, and how many.

    Leaves have a first axis of the same length for all. After its own groups a run has empty ones. A schedule goes on
    only as far as it is asked for, so that the host finds the next groups while the device works on those before.
    """
    each = [table.groups(start, stop) for table in tables]
    size = min(max(1, _ROWS // tables[0].pace.buffer), _MOST)
    parts = [list(itertools.islice(rows, size)) for rows in each]
    while True:  # once at least, with empty groups
        number = max(map(len, parts))
        yield [table.stacked(part, size, dtype) for part, table in zip(parts, tables, strict=True)], number
        parts = [list(itertools.islice(rows, size)) for rows in each]
        if not any(parts):
            return


def slots_of(pace: Async) -> int:
    """How many uploads the box of a run holds."""
    return pace.concurrency + pace.buffer * (1 if pace.max_staleness is None else 2)


class Answers(NamedTuple):
    """Answers that steps took, [answers] each: whose they are, their staleness, and their weights."""

    clients: np.ndarray
    staleness: np.ndarray
    weights: np.ndarray


class Timetable:
    """A job's schedule as arrays, group by group.

    Args:
        pace: of the run.
        schedule: its event queue.
        steps: ``steps(client, group)``: the local steps of a client that starts in a group.
        data_weights: [N] p_i.
        staleness: how much late answers count; ``None``: all the same.
    """

    def __init__(
        self,
        pace: Async,
        schedule: EventQueue,
        steps: Callable[[int, int], int],
        data_weights: np.ndarray,
        staleness: Staleness | None,
    ):
        self.pace, self.schedule, self._steps = pace, schedule, steps
        # Those under way, and those that wait for a step; work that was thrown away is found with the next group.
        self.slots = slots_of(pace)
        self._weight = (lambda late: np.ones(len(late))) if staleness is None else staleness.weight
        self._p = np.asarray(data_weights, float)
        self._clients = self._p * len(self._p) / pace.buffer
        self._free = list(range(self.slots))
        self._slot_of: dict[int, int] = {}  # work under way -> its slot
        self._steps_of: dict[int, int] = {}  # work under way -> its local steps
        self._rows: dict[int, Group] = {}  # groups by number, from the first that is still needed
        self._made = 0  # how many there were so far
        self._first = [0]  # the first group of each version
        self._late: list[tuple[int, int]] = []  # of the answers up to each step the sum of the staleness, the largest

    def correct(self, steps: int) -> None:
        """Weights by which all clients count by p_i over the first so many steps."""
        heard = self.heard(steps)
        counted = np.bincount(heard.clients, self._weight(heard.staleness), len(self._p))
        if missing := np.flatnonzero((counted == 0) & (self._p > 0)).tolist():
            hint = f"in {steps} steps clients {missing[:5]} are never heard, and no weight makes up for that"
            raise ConfigError("pace.weights", self.pace.weights, hint)
        share = np.where(counted > 0, counted, 1) / (steps * self.pace.buffer)
        self._clients = self._p / share / self.pace.buffer

    def heard(self, steps: int) -> Answers:
        """The answers that so many steps take, in their order."""
        self.schedule.until(steps)
        taken = list(itertools.chain.from_iterable(self.schedule.steps[:steps]))
        clients, versions = np.array(self.schedule.clients)[taken], np.array(self.schedule.versions)[taken]
        late = np.repeat(np.arange(steps), self.pace.buffer) - versions
        return Answers(clients, late, self._clients[clients] * self._weight(late))

    def arrivals(self, steps: int) -> np.ndarray:
        """How many answers of each client so many steps take, [N]."""
        return np.bincount(self.heard(steps).clients, minlength=len(self._p))

    def until(self, version: int) -> None:
        """Go on to so many steps."""
        self.schedule.until(version)
        for starts in self.schedule.starts[self._made :]:
            if starts.version >= version:
                break
            self._rows[self._made] = self._row(self._made, starts)
            self._made += 1
            if starts.heard:
                self._first.append(self._made)

    def warmup(self) -> float:
        """There is none."""
        return 0.0

    def after(self, time: float, start: int, stop: int) -> float:
        """When steps start … stop − 1 are taken."""
        self.until(stop)
        return self.schedule.times[stop - 1] if stop > start else time

    def late(self, steps: int) -> dict[str, Unknown]:
        """How late the answers of so many steps were, by column."""
        self.until(steps)
        if not steps:
            return {"staleness": 0.0, "staleness_max": 0, "dropped": 0}
        total, largest = self._late[steps - 1]
        taken = steps * self.pace.buffer
        return {
            "staleness": total / taken,
            "staleness_max": largest,
            "dropped": self.schedule.arrived[steps - 1] - taken,
        }

    def _row(self, number: int, starts: Starts) -> Group:
        """The next group. What it costs comes with each answer, so it makes few objects."""
        schedule, heard, jobs = self.schedule, starts.heard, list(starts.jobs)
        clients, versions, free = schedule.clients, schedule.versions, self._free
        slot_of, steps_of = self._slot_of, self._steps_of
        if schedule.dropped:
            for job in [job for job in slot_of if schedule.dropped.get(job, number) < number]:
                heapq.heappush(free, slot_of.pop(job))
                del steps_of[job]
        ids = [clients[job] for job in jobs]
        steps = [self._steps(client, number) for client in ids]
        if len({*steps}) > 1:  # a chunk of neighbours waits little for its slowest client
            order = sorted(range(len(jobs)), key=lambda at: -steps[at])
            jobs, ids, steps = ([each[at] for at in order] for each in (jobs, ids, steps))
        slots = [heapq.heappop(free) for _ in jobs]
        slot_of.update(zip(jobs, slots, strict=True))
        steps_of.update(zip(jobs, steps, strict=True))
        late = [starts.version - versions[job] for job in heard]
        if late:
            total, largest = self._late[-1] if self._late else (0, 0)
            self._late.append((total + sum(late), max(largest, *late)))
        freed = [slot_of.pop(job) for job in heard]
        for slot in freed:
            heapq.heappush(free, slot)
        return Group(
            number=number,
            version=starts.version,
            ids=tuple(ids),
            steps=tuple(steps),
            slots=tuple(slots),
            step=bool(late),
            heard=tuple([clients[job] for job in heard]),
            heard_steps=tuple([steps_of.pop(job) for job in heard]),
            heard_slots=tuple(freed),
            weights=(),
            staleness=tuple(late),
        )

    def stacked(self, rows: Sequence[Group], size: int, dtype: np.dtype) -> Group:
        """Some groups, and after them empty ones, as one with leaves [size, …]; its weights of this type."""
        n, width, number = len(self._p), self.pace.buffer, len(rows)
        empty = {"ids": n, "heard": n, "slots": -1}

        def leaf(name: str, column: Sequence[Unknown]) -> np.ndarray:
            if name == "weights":
                return np.zeros((size, width), dtype)
            if name in ("number", "version", "step"):
                return np.array([*column, *[0] * (size - number)], bool if name == "step" else np.int32)
            rest = (empty.get(name, 0),) * width
            full = itertools.chain.from_iterable([each + rest[len(each) :] for each in column])
            found = np.full((size, width), empty.get(name, 0), np.int32)
            found[:number] = np.fromiter(full, np.int32, number * width).reshape(number, width)
            return found

        columns = zip(Group._fields, zip(*rows, strict=True) if rows else [()] * len(Group._fields), strict=True)
        group = Group(**{name: leaf(name, column) for name, column in columns})
        if rows:
            heard, late = group.heard[:number], group.staleness[:number]
            each = self._clients[np.minimum(heard, n - 1)] * self._weight(late.ravel()).reshape(late.shape)
            group.weights[:number] = np.where(heard < n, each, 0.0)
        return group

    def answers(self, start: int, stop: int) -> int:
        """How many answers came from step ``start`` to step ``stop``, with those that were thrown away."""
        arrived = [0, *self.schedule.arrived[max(start - 1, 0) : stop]]
        return arrived[-1] - (arrived[1] if start else 0) if stop > start else 0

    def groups(self, start: int, stop: int) -> Iterator[Group]:
        """The groups that start from versions start … stop − 1, as they are asked for; those before are let go."""
        self.until(start)
        for number in [number for number in self._rows if number < self._first[start]]:
            del self._rows[number]
        for version in range(start, stop):
            self.until(version + 1)
            yield from (self._rows[number] for number in range(self._first[version], self._first[version + 1]))


class Pacing(NamedTuple):
    """How a run is paced: what was given, with what its method asks for."""

    pace: Async
    staleness: Staleness | None

    @property
    def shape(self) -> tuple[int, int]:
        """What a program depends on: how many answers make a step, and how many uploads the box holds."""
        return self.pace.buffer, slots_of(self.pace)

    def timetable(
        self,
        clock: BoundClock,
        work: Work,
        key: Array,
        census: Census,
        plan: RunPlan,
        form: ExchangeForm,
        seed: int,
        rounds: int,
    ) -> Timetable:
        """The timetable of a run with this seed and clock."""
        steps, asked = steps_of(work, key, census, plan), form.asked
        assert asked is not None  # see pacing
        down, up = form.down, form.up

        def duration(number: int, client: int, group: int) -> float:
            gradients = asked.gradients(steps(client, group), census.sizes[client], plan.batch_size)
            return clock.duration(number, client, gradients, down, up)

        always = np.asarray(plan.steps) if plan.steps is not None else work.always(census.sizes, plan.batch_size)
        if always is not None and not clock.anew:  # each client always takes as long
            everyone = np.arange(census.num_clients)
            gradients = asked.gradients(always, census.sizes, plan.batch_size)
            seconds = np.broadcast_to(clock.durations(0, everyone, gradients, down, up), everyone.shape).tolist()
            duration = lambda number, client, group: seconds[client]  # noqa: E731

        def begins(client: int, time: float) -> float:
            begin = float(clock.on(client, time))
            if not math.isfinite(begin):
                name = census.names[client] if census.names else client
                hint = f"client {name} is off for good after {time:g} s; give more periods, or repeat"
                raise ConfigError("clock.available", f"no period after {time:g}", hint)
            return begin

        schedule = EventQueue(
            self.pace, census.num_clients, duration, clock.server, seed, begins if clock.periods else None
        )
        if clock.ends:  # an end that comes too soon is an error before the work, not after it
            schedule.until(rounds)
        table = Timetable(self.pace, schedule, steps, census.weights, self.staleness)
        if self.pace.weights == "corrected":
            table.correct(self.horizon(census.num_clients, rounds))
        return table

    def live(
        self, schedule: LiveEventQueue, work: Work, key: Array, census: Census, plan: RunPlan
    ) -> tuple[Timetable, Callable[[int, int], int]]:
        """The timetable of a run at nodes, and ``steps(client, group)`` of its clients."""
        steps = steps_of(work, key, census, plan)
        return Timetable(self.pace, schedule, steps, census.weights, self.staleness), steps

    def horizon(self, num_clients: int, rounds: int) -> int:
        """The number of steps over which weights are corrected: those of the run, or more for a short run."""
        return max(rounds, math.ceil(_LONG * num_clients / self.pace.buffer))

    def settings(self, num_clients: int, rounds: int) -> dict[str, str]:
        """Name -> text of what else defines the run."""
        if self.pace.weights != "corrected":
            return {}
        return {"pace.weights": f"corrected over {self.horizon(num_clients, rounds)} steps"}


def steps_of(work: Work, key: Array, census: Census, plan: RunPlan) -> Callable[[int, int], int]:
    """``steps(client, group)``: the local steps of a client that starts in a group."""
    if plan.steps is not None:
        return lambda client, group: plan.steps  # type: ignore[return-value]
    each = work.always(census.sizes, plan.batch_size)
    if each is not None:
        taken = [int(number) for number in each]
        return lambda client, group: taken[client]
    sizes, n = census.sizes.astype(np.int32), census.num_clients
    groups = max(1, _DRAWN // n)  # that are drawn at a time, for all clients where these are few

    @functools.lru_cache(maxsize=_KEPT)
    def block(first: int, ids: range) -> list[list[int]]:
        own = np.array(ids), sizes[ids.start : ids.stop]
        drawn = _draw_groups(work, key, np.int32(first), *own, batch_size=plan.batch_size, groups=groups)
        return np.asarray(drawn).tolist()

    if groups == 1:
        return lambda client, group: block(group, range(client, client + 1))[0][0]
    return lambda client, group: block(group - group % groups, range(n))[group % groups][client]


@compiled(static=["batch_size", "groups"])
def _draw_groups(
    work: Work, key: Array, first: Array, ids: Array, sizes: Array, *, batch_size: int | None, groups: int
) -> Array:
    """The local steps [groups, clients] of so many groups from the first on."""
    own = jax.vmap(lambda group: stage_key(key, group, "exchanges"))(first + jnp.arange(groups))
    return jax.vmap(lambda own: draw_steps(work, own, ids, sizes, batch_size))(own)


def participation_of(options: Options, method: Algorithm, census: Census, simulated: bool) -> Participation:
    """In whose place the pace has who starts: a cohort of K."""
    assert options.pace is not None
    if not isinstance(options.participation, Full | None):
        hint = "with pace=… clients start as the pace says, pace.start: leave it out"
        raise ConfigError("participation", options.participation, hint)
    if options.clock is None and simulated:
        hint = "give clock=fedax.Clock(step=…), the clients' speeds: they decide who answers when"
        raise ConfigError("clock", None, f"with pace=… {hint}")
    for name in ("privacy", "secure"):
        if (given := getattr(options, name)) is not None:
            why = "its guarantee is for cohorts that are drawn at random" if name == "privacy" else "it sums a cohort"
            raise ConfigError(name, given, f"{why}, and with pace=… who is heard follows from the clients' speeds")
    if options.pace.weights == "corrected" and not simulated:
        why = "at nodes nobody knows beforehand how often each will answer"
        hint = f"{why}: take a method that remembers, such as ca2fl, with start = 'idle'; or give 'given'"
        raise ConfigError("pace.weights", "corrected", hint)
    options.pace.validate(census.num_clients)
    size, asked = options.pace.buffer, method.pace().buffer
    if asked is not None and size != asked:
        hint = f"a step of {type(method).__name__} takes {asked} at a time: give {asked}"
        raise ConfigError("pace.buffer", size, hint)
    return Full() if size == census.num_clients else Uniform(size)


def pacing(options: Options, method: Algorithm, memory: Tree, form: ExchangeForm) -> Pacing | None:
    """How a run is paced; ``None``: the server waits for all clients of a round.

    Args:
        options: of the run.
        method: with its hyper-parameters.
        memory: what a client keeps.
        form: of the first exchange of a round.

    Raises:
        ConfigError: the method cannot be run like this.
    """
    given, name = options.pace, type(method).__name__
    if given is None:
        return None
    asked: Pace = method.pace()
    exchanges = method.exchanges()
    why = None
    if method.warmup():
        why = "begins with all clients"
    elif len(exchanges) > 1:
        why = "has several exchanges a round, and the later ones need all answers to the earlier ones"
    elif exchanges[0].who != "cohort" or exchanges[0].server is None:
        why = "has a client that works alone"
    elif form.asked is None:
        why = "decides by the round how many gradients a client computes, so that nobody knows how long it takes"
    if why is not None:
        raise ConfigError("pace", given, f"{name} {why}; take a method whose server takes one mean of uploads")
    if given.max_staleness is None and asked.max_staleness is not None:
        given = given.with_most(asked.max_staleness)
    if jax.tree.leaves(memory):
        keeps = f"a client of {name} keeps something between its answers"
        if given.start == "uniform":
            raise ConfigError("pace.start", given.start, f"{keeps}, and may be under way once only: give 'idle'")
        if given.max_staleness is not None:
            raise ConfigError(
                "pace.max_staleness", given.max_staleness, f"{keeps}, so that no answer may be thrown away"
            )
    return Pacing(given, asked.staleness if given.staleness is None else given.staleness)
