"""The program of a job whose client memory is not on the device.

The rounds are a loop on the host, which takes the cohort's rows to the device and brings them back; all else, the
random numbers too, is that of the compiled program.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedax.algorithm import Round
from fedax.engine.evaluate import measured
from fedax.engine.job import Job
from fedax.engine.memory import ClientMemory
from fedax.engine.round import (
    Places,
    Plan,
    State,
    Tally,
    chosen,
    client_of,
    first_state,
    gathering,
    spread,
    warmup_key,
)
from fedax.participation import Full
from fedax.schedule import resolve

_BLOCK = 2**28  # bytes of client memory that go to the device at a time


class Stored:
    """The program of one job whose client memory is not on the device."""

    def __init__(self, job: Job):
        self.job = job

    def prepare(self) -> tuple[State, Tally]:
        job = self.job
        server, row = _first_state(job.hyper[0], job.x)
        state = State(server, ClientMemory(job.plan.num_clients, row, None if job.memory == "host" else job.memory))
        if not resolve(job.hyper[0], 0).warmup():
            return state, Tally(0, 0, 0)
        return self._stage("warmup", state, 0, warmup_key(job.key), Full())

    def advance(self, state: State, start: int, stop: int) -> tuple[State, Tally]:
        job, total = self.job, np.zeros(3, int)
        if start == stop:  # to compile, a round with a memory that is thrown away
            scratch = state.memory.blank()
            self._stage("exchanges", State(state.server, scratch), 0, jax.random.fold_in(job.key, 0), job.hyper[2])
        for index in range(start, stop):
            state, done = self._stage("exchanges", state, index, jax.random.fold_in(job.key, index), job.hyper[2])
            total += done
        return state, Tally(*total.tolist())

    def measure(self, state: State, index: int) -> list[dict[str, Any]]:
        return measured(self.job, state.server, index)

    def outcome(self, state: State, index: int, which: int) -> tuple[State | None, Any]:
        return state, resolve(self.job.hyper[0], index).model(state.server).tree

    def _stage(self, stage: str, state: State, index: int, key: Any, participation: Any) -> tuple[State, Tally]:
        """A round, or the warm-up: exchange by exchange, and block of clients by block."""
        fed, plan, (method, work, _) = self.job.fed, self.job.plan, self.job.hyper
        server, store = state
        places, round_ = _gathering(work, participation, fed, key, index, plan=plan)
        here = jax.tree.map(np.asarray, places)
        ids, total = here.ids, np.zeros(3, int)
        there = ids < plan.num_clients
        total[0] = there.sum()
        width = max(plan.chunk_size * plan.devices, _BLOCK // max(store.row_bytes, 1))
        blocks = [slice(at, at + width) for at in range(0, len(ids), width)]
        waiting: dict[int, Any] = {}  # memory that between two exchanges has another form than the store's

        def take(b: int) -> Any:
            return waiting.pop(b) if b in waiting else store[np.minimum(ids[blocks[b]], plan.num_clients - 1)]

        def keep(b: int, memory: Any) -> None:
            memory, mine = jax.tree.map(np.asarray, memory), there[blocks[b]]
            if store.fits(memory):
                store.put(ids[blocks[b]][mine], memory if mine.all() else jax.tree.map(lambda leaf: leaf[mine], memory))
            else:
                waiting[b] = memory

        def part(rows: Any) -> Any:
            return jax.tree.map(lambda leaf: leaf[rows], here)

        for number, exchange in enumerate(getattr(resolve(method, index), stage)()):
            outside = (method, server, fed, key, index)
            which = {"stage": stage, "number": number, "plan": plan}
            mean: Any = None
            if exchange.who == "one":
                b, i = divmod(at := int(_chosen(places, key)), width)
                memory = take(b)
                mean, row, done = _alone(outside, jax.tree.map(lambda leaf, i=i: leaf[i], memory), part(at), **which)
                keep(b, jax.tree.map(lambda leaf, new, i=i: _with_row(leaf, i, new), memory, row))
                total[1:] += int(done.local_steps), int(done.gradients)
            else:
                for b, block in enumerate(blocks):
                    upload, memory, done = _contribute(outside, take(b), part(block), **which)
                    mean = upload if mean is None else jax.tree.map(jnp.add, mean, upload)
                    keep(b, memory)
                    total[1:] += int(done.local_steps), int(done.gradients)
            if exchange.server is not None:
                server = _conclude(method, server, mean, round_, index, **which)
        return State(server, store), Tally(*total.tolist())


def _with_row(leaf: np.ndarray, i: int, row: Any) -> np.ndarray:
    leaf = np.array(leaf)
    leaf[i] = row
    return leaf


_first_state = jax.jit(first_state)
_gathering = jax.jit(gathering, static_argnames="plan")
_chosen = jax.jit(chosen)


def _around(outside: Any, stage: str, number: int) -> tuple[Any, ...]:
    algorithm, server, fed, key, index = outside
    method = resolve(algorithm, index)
    exchange = getattr(method, stage)()[number]
    return method, (exchange.download or method.download)(server), fed, key, index


@functools.partial(jax.jit, static_argnames=("stage", "number", "plan"))
def _contribute(outside: Any, memory: Any, places: Places, *, stage: str, number: int, plan: Plan) -> Any:
    make = functools.partial(client_of, stage, number, {}, plan)
    return spread(make, _around(outside, stage, number), memory, places, plan)


@functools.partial(jax.jit, static_argnames=("stage", "number", "plan"))
def _alone(outside: Any, memory: Any, place: Places, *, stage: str, number: int, plan: Plan) -> Any:
    return client_of(stage, number, {}, plan, _around(outside, stage, number))(memory, place)


@functools.partial(jax.jit, static_argnames=("stage", "number", "plan"))
def _conclude(
    algorithm: Any, server: Any, mean: Any, round_: Round, index: Any, *, stage: str, number: int, plan: Plan
) -> Any:
    round_ = round_._replace(num_clients=plan.num_clients)  # a Python number in a method, that came as an array
    return getattr(resolve(algorithm, index), stage)()[number].server(server, mean, round_)
