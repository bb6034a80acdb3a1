"""Asynchronous rounds as one compiled program: clients start group by group, and their answers wait in a box.

The schedule (:class:`fedax.federation.pace.Schedule`) says on the host who starts from which version and whose answers
make each step. Between two steps the model does not change, so clients that start then do their work side by side, as
a cohort does. Their uploads go into slots of a box until the step that they are part of.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedax.contract.compression import decoded
from fedax.contract.schedule import resolve
from fedax.contract.types import Array, Tree, Unknown
from fedax.contract.vector import Vector
from fedax.engine.evaluate import OneJob, measured
from fedax.engine.job import Job
from fedax.engine.loop import (
    Clients,
    Federation,
    Hyper,
    Request,
    Response,
    State,
    Tally,
    chosen_state,
    converse,
    exchanges,
    placed,
    round_of,
    stage_key,
)
from fedax.engine.places.device import Device, nothing, prepare, settle
from fedax.engine.plan import Plan, loops
from fedax.engine.timetable import Group, Timetable, together
from fedax.programs import compiled
from fedax.wire.sums import by_kind


class Box(NamedTuple):
    """Uploads under way or waiting for a step, leaves [slots + 1, ...], of which the last stays 0.

    ``accepted``: whether each counts, or ``()``.
    """

    uploads: Tree
    accepted: Tree


def summed(clients: Clients, uploads: Tree) -> Tree:
    """Σ ω_i v_i and Σ p_i change_i of uploads that are kept one by one, leaves [K, ...]."""
    return by_kind(
        lambda leaf: jnp.tensordot(clients.weights.astype(leaf.dtype), leaf, 1, precision="highest"),
        lambda leaf: jnp.tensordot(clients.data_weights.astype(leaf.dtype), leaf, 1, precision="highest"),
        uploads,
    )


class _Arrivals:
    """The place of a group: its clients start, and the answers of the step come out of the box."""

    def __init__(self, device: Device, starting: Clients, heard: Clients, group: Group, box: Box):
        self.device, self.box, self._starting, self._heard, self._group = device, box, starting, heard, group
        self._empty = jax.tree.leaves(box.uploads)[0].shape[0] - 1
        self.accepted: Tree = ()  # whether the uploads of those that started count

    def answer(self, request: Request) -> Response:
        wire = dataclasses.replace(request.wire, apart=True)
        asked = request._replace(clients=self._starting, counts=self._starting.present, wire=wire)
        begun = self.device.answer(asked)
        self.accepted = begun.accepted
        put = lambda all_, new: all_.at[self._group.slots].set(new, mode="drop")  # noqa: E731
        self.box = jax.tree.map(put, self.box, Box(begun.uploads, begun.accepted))
        accepted = jax.tree.map(lambda all_: all_[self._group.heard_slots], self.box.accepted)
        # The last slot stays empty. It is read for clients that do not count: 0 times what is not finite is no number.
        slots = jnp.where(self._heard.data_weights > 0, self._group.heard_slots, self._empty)
        uploads = jax.tree.map(lambda all_: all_[slots], self.box.uploads)
        if request.wire.gathers:
            return Response((), uploads, accepted)
        return Response(summed(request.clients, uploads), (), accepted)

    def draw_one(self, stage: str, clients: Clients) -> Array:
        raise AssertionError("asynchronous rounds have no exchange with one client")

    def conclude(self, request: Request, response: Response) -> Tree:
        return self.device.conclude(request, response)


def one_group(hyper: Hyper, fed: Federation, key: Array, state: State, group: Group, plan: Plan) -> tuple[State, Tally]:
    """Start the clients of a group, and take the step that follows it, if one does."""
    method = resolve(hyper.method, group.version)
    weights = group.weights.astype(fed.weights.dtype)
    steps = group.steps if plan.steps is None else jnp.int32(plan.steps)
    starting = placed(fed, group.ids, jnp.zeros_like(weights), steps, plan)
    heard = placed(fed, group.heard, weights, group.heard_steps, plan)
    round_ = round_of(heard, group.version, stage_key(key, group.version, "exchanges"), plan)
    round_ = round_._replace(staleness=group.staleness)
    before = jax.tree.map(lambda leaf: leaf.at[starting.ids].get(mode="clip"), state.memory)
    device = Device(hyper, method, fed, stage_key(key, group.number, "exchanges"), group.version, before, plan, None)
    place = _Arrivals(device, starting, heard, group, state.box)
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


def some_groups(
    hyper: Hyper, fed: Federation, key: Array, state: State, groups: Group, number: Array, plan: Plan
) -> tuple[State, Tally]:
    """Run the first ``number`` of some groups: the new state, and the tally."""

    def body(index: Array, carry: tuple[State, Tally]) -> tuple[State, Tally]:
        state, before = carry
        group = jax.tree.map(lambda leaf: leaf[index], groups)
        state, tally = one_group(hyper, fed, key, state, group, plan)
        return state, jax.tree.map(jnp.add, before, tally)

    state, tally = jax.lax.fori_loop(0, number, body, (state, nothing()))
    return settle(state, plan), tally


def begin(
    hyper: Hyper, fed: Federation, key: Array, x: Vector, upload: Tree, slots: int, plan: Plan
) -> tuple[State, Tally]:
    """The state before the first group, with an empty box; ``upload``: zeros in the form of an upload."""
    state, tally = prepare(hyper, fed, key, x, plan)
    uploads = jax.tree.map(lambda leaf: jnp.zeros((slots + 1, *leaf.shape), leaf.dtype), upload)
    accepted: Tree = jnp.zeros(slots + 1, bool) if hyper.wire.guard is not None else ()
    return settle(state._replace(box=Box(uploads, accepted)), plan), tally


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

    def prepare(self) -> tuple[State, Tally]:
        job, slots = self.job, self._times.slots
        found: tuple[State, Tally] = _begin(job.hyper, job.fed, job.key, job.x, no_upload(job), slots, job.plan)
        return found

    def advance(self, state: State, start: int, stop: int) -> tuple[State, Tally]:
        job, tallies = self.job, []
        for (rows,), number in together([self._times], start, stop, job.fed.weights.dtype):
            state, tally = _advance(job.hyper, job.fed, job.key, state, rows, number, job.plan)
            tallies.append(tally)
        self._times.until(min(2 * stop - start, job.rounds))  # what will be needed next, while the device works
        done = [np.array(jax.device_get(tally[:3])) for tally in tallies]
        tally = Tally(*np.sum(done, axis=0).tolist())._replace(uploads=self._times.answers(start, stop))
        return state, tally

    def measure(self, state: State, index: int) -> list[dict[str, Unknown]]:
        return measured(self.job, state.server, index)


@compiled(static=["slots", "plan"])
def _begin(hyper: Hyper, fed: Tree, key: Array, x: Vector, upload: Tree, slots: int, plan: Plan) -> tuple[State, Tally]:
    return begin(hyper, fed, key, x, upload, slots, plan)


_advance = compiled(static=["plan"], donate=["state"], options=loops)(some_groups)
