"""Asynchronous rounds as one compiled program: clients start group by group, and their answers wait in a box.

The event queue (:class:`fedax.federation.pace.EventQueue`) says on the host who starts from which version and whose
answers make each step. Between two steps the model does not change, so clients that start then do their work side by
side, as a cohort does. Their uploads go into slots of a buffer until the step that they are part of.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fedax.contract.algorithm import Round
from fedax.contract.compression import decoded
from fedax.contract.schedule import resolve
from fedax.contract.types import Array, Tree, Unknown
from fedax.contract.vector import Vector
from fedax.engine.clients import BufferUse, UploadBuffer
from fedax.engine.evaluate import OneJob
from fedax.engine.job import Job
from fedax.engine.loop import (
    Clients,
    Counters,
    Federation,
    Hyper,
    Request,
    Response,
    State,
    chosen_state,
    converse,
    exchanges,
    placed,
    round_of,
    stage_key,
)
from fedax.engine.places.device import Device, nothing, prepare, settle
from fedax.engine.plan import RunPlan, loops
from fedax.engine.timetable import Group, Timetable, together
from fedax.programs import compiled


class _Arrivals:
    """The place of a group: its clients start, and the answers of the step come out of the box."""

    def __init__(self, device: Device, starting: Clients, group: Group, box: UploadBuffer):
        self.device, self.box, self._starting, self._group = device, box, starting, group
        self.accepted: Tree = ()  # whether the uploads of those that started count

    def answer(self, request: Request) -> Response:
        wire = dataclasses.replace(request.wire, apart=True)
        asked = request._replace(clients=self._starting, counts=self._starting.present, wire=wire)
        group = self._group
        begun = self.device.answer(asked, BufferUse(self.box, group.slots, request.clients, group.heard_slots))
        self.accepted, taken = begun.accepted, begun.total
        all_ = jax.tree.map(lambda all_, new: all_.at[group.slots].set(new), self.box.accepted, self.accepted)
        self.box = taken.box._replace(accepted=all_)
        return Response(taken.total, taken.uploads, jax.tree.map(lambda leaf: leaf[group.heard_slots], all_))

    def draw_one(self, stage: str, clients: Clients) -> Array:
        raise AssertionError("asynchronous rounds have no exchange with one client")

    def conclude(self, request: Request, response: Response) -> Tree:
        return self.device.conclude(request, response)


def one_group(
    hyper: Hyper, fed: Federation, key: Array, state: State, group: Group, plan: RunPlan
) -> tuple[State, Counters]:
    """Start the clients of a group, and take the step that follows it, if one does."""
    method = resolve(hyper.method, group.version)
    steps = group.steps if plan.steps is None else jnp.int32(plan.steps)
    starting = placed(fed, group.ids, jnp.zeros(group.ids.shape, fed.weights.dtype), steps, plan)
    heard, round_ = heard_of(fed, key, group, plan)
    before = jax.tree.map(lambda leaf: leaf.at[starting.ids].get(mode="clip"), state.memory)
    device = Device(hyper, method, fed, stage_key(key, group.number, "exchanges"), group.version, before, plan, None)
    place = _Arrivals(device, starting, group, state.box)
    loop = exchanges("exchanges", method, heard, round_, state.server, hyper.wire, plan.watched, place)
    end = converse(loop, place)
    memory, exclusions = device.memory, state.exclusions
    if hyper.wire.excludes:
        stays = lambda old, new: jnp.where(place.accepted.reshape(-1, *[1] * (new.ndim - 1)), new, old)  # noqa: E731
        memory = jax.tree.map(stays, before, memory)
    if exclusions:
        exclusions = chosen_state(group.step, exclusions.after(heard, end), exclusions)
    kept = jax.tree.map(lambda all_, part: all_.at[starting.ids].set(part, mode="drop"), state.memory, memory)
    done = device.done._replace(clients=jnp.sum(starting.present, dtype=jnp.int32))
    server = chosen_state(group.step, end.server, state.server)
    return State(server, kept, exclusions, place.box), done


def heard_of(fed: Federation, key: Array, group: Group, plan: RunPlan) -> tuple[Clients, Round]:
    """The clients whose answers make the step after a group, and what the server knows of it; ``key``: the run's."""
    heard = placed(fed, group.heard, group.weights.astype(fed.weights.dtype), group.heard_steps, plan)
    round_ = round_of(heard, group.version, stage_key(key, group.version, "exchanges"), plan)
    return heard, round_._replace(staleness=group.staleness)


def some_groups(
    hyper: Hyper, fed: Federation, key: Array, state: State, groups: Group, number: Array, plan: RunPlan
) -> tuple[State, Counters]:
    """Run the first ``number`` of some groups: the new state, and the counters."""

    def body(index: Array, carry: tuple[State, Counters]) -> tuple[State, Counters]:
        state, before = carry
        group = jax.tree.map(lambda leaf: leaf[index], groups)
        state, counters = one_group(hyper, fed, key, state, group, plan)
        return state, jax.tree.map(jnp.add, before, counters)

    state, counters = jax.lax.fori_loop(0, number, body, (state, nothing()))
    return _settled(state, plan), counters


def begin(
    hyper: Hyper, fed: Federation, key: Array, x: Vector, upload: Tree, slots: int, plan: RunPlan
) -> tuple[State, Counters]:
    """The state before the first group, with an empty box; ``upload``: zeros in the form of an upload."""
    state, counters = prepare(hyper, fed, key, x, plan)
    uploads = jax.tree.map(lambda leaf: jnp.zeros((plan.devices, slots + 1, *leaf.shape), leaf.dtype), upload)
    accepted: Tree = jnp.zeros(slots + 1, bool) if hyper.wire.guard is not None else ()
    box = UploadBuffer(uploads, jnp.zeros(slots + 1, jnp.int32), accepted)
    return _settled(state._replace(box=box), plan), counters


def _settled(state: State, plan: RunPlan) -> State:
    """The state with its sharding fixed."""
    uploads, state = state.box.uploads, settle(state._replace(box=state.box._replace(uploads=())), plan)
    if plan.mesh is not None:
        by_device = NamedSharding(plan.mesh, P(*plan.mesh.axis_names))
        uploads = jax.lax.with_sharding_constraint(uploads, jax.tree.map(lambda _: by_device, uploads))
    return state._replace(box=state.box._replace(uploads=uploads))


def timetable_of(job: Job) -> Timetable:
    """The timetable of a job whose server does not wait."""
    assert job.pacing is not None and job.clock is not None
    form = job.forms[1][0]
    return job.pacing.timetable(job.clock, job.hyper.work, job.key, job.census, job.plan, form, job.seed, job.rounds)


def no_upload(job: Job) -> Tree:
    """Zeros in the form of an upload."""
    form = jax.eval_shape(decoded, job.forms[1][0].upload)
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), form)


class Asynchronous(OneJob):
    """The program of one job whose server does not wait."""

    def __init__(self, job: Job):
        super().__init__(job)
        self._times = timetable_of(job)

    def times(self, which: int) -> Timetable:
        return self._times

    def pace(self, index: int, which: int) -> dict[str, Unknown]:
        return self._times.late(index)

    def prepare(self) -> tuple[State, Counters]:
        job, slots = self.job, self._times.slots
        return _begin(job.hyper, job.fed, job.key, job.x, no_upload(job), slots, job.plan)

    def advance(self, state: State, start: int, stop: int) -> tuple[State, Counters]:
        job, all_counters = self.job, []
        for (rows,), number in together([self._times], start, stop, job.fed.weights.dtype):
            state, counters = _advance(job.hyper, job.fed, job.key, state, rows, number, job.plan)
            all_counters.append(counters)
        self._times.until(min(2 * stop - start, job.rounds))  # what will be needed next, while the device works
        done = [np.array(jax.device_get(counters[:3])) for counters in all_counters]
        counters = Counters(*np.sum(done, axis=0).tolist())._replace(uploads=self._times.answers(start, stop))
        return state, counters


_begin = compiled(static=["slots", "plan"])(begin)
_advance = compiled(static=["plan"], donate=["state"], options=loops)(some_groups)
