"""Timing: when the rounds of a run are over by its clock. It follows from cohorts and steps, and needs no round's work.

The exchanges of a round follow one another, and each lasts as long as its slowest client:
Σ_e max_i (latency_i + down_e/down_i + gradients_{e,i}·step_i + up_e/up_i) + server. A client that is off when a round
begins starts when it is on again. Clients that drop out say so, and nobody waits for them; those that a guard leaves
out have worked, and count, as they do in the other costs. For clients that miss a deadline by the clock the server
waits until it is over.
"""

import functools
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from fedax.contract.algorithm import Algorithm, without_layers
from fedax.contract.schedule import resolve
from fedax.contract.types import Array, Tree, Unknown
from fedax.engine.clients import oracle_of
from fedax.engine.job import Job
from fedax.engine.load import federation_of, on_devices
from fedax.engine.loop import Clients, Federation, Hyper, draw, draw_one, exchange_key, stage_key, without_method
from fedax.engine.places.device import first_state
from fedax.engine.plan import RunPlan
from fedax.errors import ConfigError
from fedax.federation.clock import BoundClock
from fedax.federation.participation import Full, WithoutLate, is_late
from fedax.programs import compiled

_DRAWN = 2**18  # clients that are drawn at a time
_ROUNDS = 64  # rounds that are drawn at a time, if they are small


class RoundTimes:
    """The simulated times of the rounds of one job, which has a clock.

    Args:
        job: made with ``clock``.

    Raises:
        ConfigError: how many gradients a client computes depends on the model or the data.

    Example:
        >>> import fedax
        >>> from fedax.engine.make import make_job
        >>> data, clock = fedax.data.quadratics(clients=3, dimension=2), fedax.Clock(step=[1, 2, 3], server=0.5)
        >>> options = {"rounds": 4, "work": fedax.Steps(2), "clock": clock}
        >>> times = RoundTimes(make_job(fedax.create("fedavg"), fedax.tasks.quadratic(2), data, **options))
        >>> times.after(0.0, 0, 1), times.after(0.0, 0, 4)
        (6.5, 26.0)
    """

    def __init__(self, job: Job):
        assert job.clock is not None
        self._job, self._clock = job, job.clock
        self._of: dict[str, _Stage] = {}

    def warmup(self) -> float:
        """How long the warm-up takes, 0 where the method has none."""
        return self._stage("warmup").after(0.0, 0, 1) if self._job.forms[0] else 0.0

    def after(self, time: float, start: int, stop: int) -> float:
        """When rounds start … stop − 1 are over, of which the first begins at ``time``."""
        return self._stage("exchanges").after(time, start, stop)

    def missed(self, start: int, stop: int) -> np.ndarray:
        """[N] how often clients that are late were drawn in rounds start … stop − 1, of a job with a deadline."""
        return self._stage("exchanges").missed(start, stop)

    def _stage(self, stage: str) -> "_Stage":
        if stage not in self._of:
            self._of[stage] = _Stage(self._job, self._clock, stage)
        return self._of[stage]


class _Block(NamedTuple):
    """Rounds that are drawn together.

    Attributes:
        ids: [rounds, S] who is asked; N at an empty place.
        late: [rounds, S] who of them is late.
        seconds: of each exchange, [rounds, S] how long the work of each client takes; 0 of who is not asked.
    """

    ids: np.ndarray
    late: np.ndarray
    seconds: list[np.ndarray]


class _Stage:
    """The times of one stage, ``"warmup"`` or ``"exchanges"``."""

    def __init__(self, job: Job, clock: BoundClock, stage: str):
        self._job, self._clock, self._stage = job, clock, stage
        self._forms = job.forms[stage == "exchanges"]
        plan, hyper = job.plan, job.hyper
        everyone = stage == "warmup" or plan.full
        places = plan.num_clients if everyone else hyper.participation.places(plan.num_clients)
        self._rounds = max(1, min(_ROUNDS, _DRAWN // places))
        participation = Full() if stage == "warmup" else hyper.participation
        self._late = np.zeros(plan.num_clients, bool)
        self._deadline = 0.0 if job.missed is None else job.missed.seconds
        if isinstance(participation, WithoutLate):
            self._late, participation = participation.late, participation.of
        self._hyper = without_method(hyper._replace(participation=participation))
        self._fed = on_devices(federation_of(job.census, None, job.own), None)
        counted = any(form.asked is None for form in self._forms)
        self._counts = _Counts(job, stage, self._fed) if counted else None
        # Whether no number of a block depends on the round.
        drawn = any(form.one for form in self._forms) or counted or clock.anew
        self._same = everyone and plan.steps is not None and not drawn
        self._block: tuple[int, _Block] | None = None

    def after(self, time: float, start: int, stop: int) -> float:
        """When rounds start … stop − 1 are over, of which the first begins at ``time``."""
        for block in self._blocks(start, stop):
            time = self._over(time, block)
        return time

    def missed(self, start: int, stop: int) -> np.ndarray:
        """See :meth:`RoundTimes.missed`."""
        found = np.zeros(self._job.plan.num_clients, int)
        if self._late.any():
            for block in self._blocks(start, stop):
                found += np.bincount(block.ids[block.late], minlength=len(found))
        return found

    def _blocks(self, start: int, stop: int) -> Iterator[_Block]:
        """Rounds start … stop − 1, some at a time."""
        while start < stop:
            first = start // self._rounds * self._rounds
            end = min(stop, first + self._rounds)
            if self._block is None or not (self._same or self._block[0] == first):
                self._block = first, self._drawn(np.arange(first, first + self._rounds, dtype=np.int32))
            rows = slice(start - first, end - first)
            ids, late, seconds = self._block[1]
            yield _Block(ids[rows], late[rows], [each[rows] for each in seconds])
            start = end

    def _over(self, time: float, block: _Block) -> float:
        """When some rounds are over; one after the other, whichever are drawn together."""
        (ids, late, seconds), server = block, self._clock.server
        if self._clock.periods is None:
            slowest = [each.max(axis=1) for each in seconds]
            if self._late.any():
                slowest.append(np.where(late.any(axis=1), np.maximum(self._deadline - sum(slowest), 0), 0.0))
            lasting = np.stack([*slowest, np.full(len(ids), server)], axis=1)
            return float(np.cumsum([time, *lasting.ravel()])[-1])
        for row, cohort in enumerate(ids):
            there = cohort < self._job.plan.num_clients
            begin = self._clock.on(cohort[there], time)
            if not np.isfinite(begin).all():
                who = int(cohort[there][np.argmax(begin)])
                name = self._job.census.names[who] if self._job.census.names else who
                hint = f"client {name} is off for good after {time:g} s; give more periods, or repeat"
                raise ConfigError("clock.available", f"no period after {time:g}", hint)
            for each in seconds:
                time = float(np.max(np.maximum(begin, time) + each[row][there], initial=time))
            time += server
        return time

    def _drawn(self, indices: np.ndarray) -> _Block:
        plan, sizes = self._job.plan, self._job.census.sizes
        at = np.zeros(0, int)  # of who works alone
        if self._same:
            ids = np.broadcast_to(np.arange(plan.num_clients), (len(indices), plan.num_clients))
            steps = np.broadcast_to(np.asarray(plan.steps), ids.shape)
        else:
            one = any(form.one for form in self._forms)
            given = (self._hyper, self._fed, self._job.key, indices)
            ids, steps, at = jax.tree.map(np.asarray, _cohorts(*given, one=one, stage=self._stage, plan=plan))
        there, known = ids < plan.num_clients, np.minimum(ids, plan.num_clients - 1)
        rounds = np.minimum(indices, len(self._late) - 1)[:, None]
        late = there & is_late(self._late, rounds, known)
        numbers = indices[:, None] if self._stage == "exchanges" else np.int64(-1)
        counts = None if self._counts is None else self._counts.of(indices, known, steps)
        seconds = []
        for number, form in enumerate(self._forms):
            asked = there & (np.arange(ids.shape[1]) == at[:, None]) if form.one else there
            if form.asked is not None:
                gradients = form.asked.gradients(steps, sizes[known], plan.batch_size)
            else:
                assert counts is not None
                gradients = counts[number]
            lasting = self._clock.durations(numbers, known, gradients, form.down, form.up)
            seconds.append(np.where(asked & ~late, lasting, 0.0))
        return _Block(ids, late, seconds)


@compiled(static=["one", "plan", "stage"])
def _cohorts(
    hyper: Hyper, fed: Federation, key: Array, indices: Array, *, one: bool, plan: RunPlan, stage: str
) -> tuple[Array, Array, Tree]:
    """[rounds, S] the clients of some rounds and their steps; where ``one`` works alone, [rounds] its position."""

    def draws(index: Array) -> tuple[Array, Array, Tree]:
        own = stage_key(key, index, stage)
        clients, _ = draw(hyper, fed, own, index, plan)
        return clients.ids, clients.steps, draw_one(clients, own) if one else ()

    together = min(len(indices), max(1, _DRAWN // plan.num_clients))
    return jax.lax.map(draws, indices, batch_size=together)


_Given = tuple[Algorithm, Federation, Array]  # the method, the data, the run's key


class _Counts:
    """The gradients of clients of a method in which a traced condition decides about them, such as the round's number.

    The clients' program is traced, and what it computes besides is dropped before it is compiled.
    """

    def __init__(self, job: Job, stage: str, fed: Federation):
        method = without_layers(job.hyper.method)
        self._given = (method, fed, job.key)
        self._plan, self._stage = job.plan, stage
        self._values = (job.census.examples(1), *jax.eval_shape(first_state, method, job.x))
        index, ids = jax.ShapeDtypeStruct((), np.int32), jax.ShapeDtypeStruct((), np.int32)
        count = functools.partial(_count, plan=self._plan, stage=stage)
        program = jax.make_jaxpr(count)(self._values, self._given, index, ids, ids)
        if needed(program) & {*program.invars[: len(jax.tree.leaves(self._values))]}:
            hint = f"whether {method.traits().name or type(method).__name__} asks for a gradient depends on values"
            raise ConfigError("clock", job.hyper.method, f"{hint}, which a clock cannot know; leave it out")

    def of(self, indices: np.ndarray, ids: np.ndarray, steps: np.ndarray) -> list[np.ndarray]:
        """For each exchange, [rounds, S] minibatch gradients."""
        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), self._values)
        found = _counted(zeros, self._given, indices, ids, steps, plan=self._plan, stage=self._stage)
        return list(map(np.asarray, found))


def _count(
    values: Tree, given: _Given, index: Array, id_: Array, steps: Array, *, plan: RunPlan, stage: str
) -> list[Array]:
    """The minibatch gradients of one client in each exchange; ``values``: examples, and first states."""
    examples, server, memory = values
    method, fed, key = given
    fed, method, key = fed._replace(examples=examples), resolve(method, index), stage_key(key, index, stage)
    one, start = jnp.ones(()), jnp.int32(0)
    client = Clients(id_, one, one, steps, jnp.bool_(True), start, fed.sizes[id_])
    found: list[Array] = []
    for number, exchange in enumerate(getattr(method, stage)()):
        oracle = oracle_of(client, fed, exchange_key(key, number), index, plan)
        _, memory = exchange.client((exchange.download or method.download)(server), memory, oracle)
        found.append(jnp.asarray(oracle.gradients))
    return found


@compiled(static=["plan", "stage"])
def _counted(
    values: Tree, given: _Given, indices: Array, ids: Array, steps: Array, *, plan: RunPlan, stage: str
) -> list[Array]:
    """:func:`_count` of some rounds, [rounds, S]."""
    count = functools.partial(_count, values, given, plan=plan, stage=stage)
    return jax.vmap(jax.vmap(count, in_axes=(None, 0, 0)))(indices, ids, steps)


def needed(program: Unknown) -> set[Tree]:
    """The variables on which the results of a traced program depend; each of its operations counts as a whole.

    Example:
        >>> program = jax.make_jaxpr(lambda a, b: (a + 1, a * b)[0])(1.0, 2.0)
        >>> [variable in needed(program) for variable in program.invars]
        [True, False]
    """
    found = {variable for variable in program.outvars if not isinstance(variable, Literal)}
    for equation in reversed(program.eqns):
        if found & {*equation.outvars}:
            found |= {variable for variable in equation.invars if not isinstance(variable, Literal)}
    return found
