"""The program of a job that does not fit one device, or one process.

The rounds are a loop on the host, which takes to the device what a cohort needs, block of clients by block: rows of
client memory, and examples where they are not there. While a block is at work, the rows of the one before it are
written, and what the next one needs is read, over the end of a round too. With several processes each runs the clients
that belong to it, and the uploads are summed over all. All else, the random numbers too, is that of the compiled
program.
"""

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fedax.contract.algorithm import Round
from fedax.contract.schedule import resolve
from fedax.data.federated import FederatedData
from fedax.engine import processes
from fedax.engine.evaluate import measured, model_after, train_sums
from fedax.engine.job import Job
from fedax.engine.memory import ClientMemory
from fedax.engine.programs import compiled
from fedax.engine.round import (
    Answer,
    Federation,
    Losses,
    Places,
    Plan,
    State,
    Tally,
    chosen,
    client_of,
    conclude,
    empty_place,
    first_state,
    gathering,
    no_losses,
    of_one,
    server_key,
    spread,
    warmup_key,
    weighing,
)
from fedax.federation.participation import Full

_AHEAD = 16  # rounds whose cohorts are drawn at a time, if they are small
_PLACES = 2**18  # of all of these
_BLOCK = 2**28  # bytes of client memory, or of examples, that go to the device at a time


class Hosted:
    """The program of one job whose rounds are a loop on the host."""

    def __init__(self, job: Job):
        self.job = job
        self._drawn: tuple[int, Any] = (0, None)  # a round, and the draws of it and of those that follow
        self._next: tuple[int, Any] = (-1, None)  # a round, and its cohort
        self._usual_size = float(np.mean(np.asarray(job.fed.sizes)))
        self._room = 0  # examples in the pool of a block: the most so far, for another number is another program

    def prepare(self) -> tuple[State, Tally]:
        job = self.job
        server, row = _first_state(job.hyper[0], job.x)
        folder = None if job.memory == "host" else job.memory
        store = ClientMemory(job.plan.num_clients, row, folder, room=job.own.stop - job.own.start)
        state, desk = State(server, store, jax.tree.map(np.array, no_losses(job.plan))), _Desk(store)
        if resolve(job.hyper[0], 0).warmup():
            state = self._stage("warmup", desk, state, 0)
        return state, desk.finish()

    def advance(self, state: State, start: int, stop: int) -> tuple[State, Tally]:
        if self.job.plan.mesh is not None:
            # Where a round leaves it: else the second one would be compiled anew.
            everywhere = NamedSharding(self.job.plan.mesh, P())
            state = State(jax.device_put(state.server, everywhere), state.memory, state.losses)
        if start == stop:  # to compile, a round with a memory that is thrown away
            self._stage("exchanges", _Desk(state.memory.blank()), state, 0)
        desk = _Desk(state.memory)
        for index in range(start, stop):
            state = self._stage("exchanges", desk, state, index)
        return state, desk.finish()

    def measure(self, state: State, index: int) -> list[dict[str, Any]]:
        job, model = self.job, model_after(self.job.hyper[0], state.server, index)[0]
        asked = {"task": job.plan.task, "grad_norm": job.grad_norm, "mesh": job.plan.mesh}
        found: Any = None
        for piece in self._pieces():
            part = jax.block_until_ready(_train_sums(model, piece, **asked))
            found = part if found is None else jax.tree.map(jnp.add, found, part)
        (row,) = measured(job, state.server, index, processes.total(found))
        words = np.array(list(row.values()), float).view(np.uint32)  # whole, for JAX would halve the floats
        return [dict(zip(row, processes.from_first(words).view(float).tolist(), strict=True))]

    def losses(self, state: State) -> list[Any]:
        return [state.losses]

    def outcome(self, state: State, index: int, which: int) -> tuple[State | None, Any]:
        return state, self.job.delivered(model_after(self.job.hyper[0], state.server, index)[0])

    def _stage(self, stage: str, desk: "_Desk", state: State, index: int) -> State:
        """A round, or the warm-up: exchange by exchange, and block of clients by block. The state after it."""
        plan, method, server = self.job.plan, self.job.hyper[0], state.server
        cohort = self._cohort(stage, desk, index)
        if jax.process_index() == 0:
            desk.total[0] += cohort.clients
        exchanges = getattr(resolve(method, index), stage)()
        # What clients keep is written when it is certain that they are not left out of a later exchange.
        desk.holds = plan.watched and len(exchanges) > 1
        good, failed = np.array(cohort.present), False
        for number, exchange in enumerate(exchanges):
            which = {"stage": stage, "number": number, "plan": plan}
            visited = cohort.blocks
            alone = exchange.who == "cohort" and len(visited) == processes.count() == 1
            at_once = alone and exchange.server is not None  # in one program, and nobody waits here for the uploads
            meeting: Any = functools.partial(_contribute, heard=(cohort.round, good) if at_once else None)
            if exchange.who == "one":
                at = int(_chosen(weighing(cohort.places, good, plan), self.job.key, index, stage=stage))
                found = [block for block in visited if at in block.positions]
                visited = found or visited[:1]  # another process's client: then any does, as one that says 0
                row = visited[0].positions.tolist().index(at) if found else 0
                meeting = functools.partial(_alone, row=row, mine=bool(found))
            total: Any = None
            for block, after in itertools.zip_longest(visited, visited[1:]):
                self._pool(block)
                outside: Any = (method, server, self._fed(block), self.job.key, index)
                places = weighing(block.places, block.good, plan)
                upload, block.answer, done = meeting(outside, self._cut(desk.take(block)), places, **which)
                block.pool = None  # or a round would gather all data
                desk.keep(block, done)
                total = upload if total is None else jax.tree.map(jnp.add, total, upload)
                if after is None and number + 1 == len(exchanges) and stage == "exchanges":
                    after = self._cohort(stage, desk, index + 1).blocks[0]
                    if desk.holds:
                        self._pool(after)
                        continue
                if after is not None:
                    self._pool(after)
                    desk.fetch(after)
            if plan.guard is not None and exchange.who == "one":
                fine = bool(processes.total(np.int32(bool(found) and bool(visited[0].answer.fine))))
                good[at] &= fine
                failed |= not fine
            elif plan.guard is not None:
                good &= _assembled(visited, [block.answer.fine for block in visited], len(good)) > 0
            for block in cohort.blocks if plan.guard is not None else ():
                block.good = good[block.positions] & block.places.present
            if at_once:
                server = total
            elif exchange.server is not None:
                uploads: Any = ()
                if plan.gathers:
                    leaves = zip(*(jax.tree.leaves(block.answer.upload) for block in visited), strict=True)
                    form = jax.tree.structure(visited[0].answer.upload)
                    uploads = jax.tree.unflatten(form, [_assembled(visited, each, len(good)) for each in leaves])
                outside = (method, server, None, self.job.key, index)
                server = _conclude(outside, processes.total(total), uploads, cohort.round, good, **which)
        skipped = plan.watched and (failed or not good.any())
        if desk.holds:
            desk.release(cohort.blocks, skipped)
        if not plan.watched:
            return State(server, state.memory)
        gone = np.array(state.losses.left_out)
        gone[np.asarray(cohort.places.ids)[cohort.present & ~good]] += 1
        losses = Losses(gone, state.losses.skipped + np.int32(skipped))
        return State(state.server if skipped else server, state.memory, losses)

    def _draw(self, stage: str, index: int) -> Any:
        """The places and what the server knows of a round, on the host."""
        job = self.job
        asked = functools.partial(_gathering, job.hyper[1], fed=job.fed, key=job.key, plan=job.plan, stage=stage)
        if stage == "warmup":
            return jax.tree.map(lambda leaf: np.asarray(leaf[0]), asked(Full(), indices=np.zeros(1, np.int32)))
        first, draws = self._drawn
        ahead = max(1, min(_AHEAD, _PLACES // job.hyper[2].places(job.plan.num_clients)))
        if draws is None or not first <= index < first + ahead:
            # Many at a time: a program as small as this waits for the clients that are at work.
            draws = jax.tree.map(np.asarray, asked(job.hyper[2], indices=index + np.arange(ahead, dtype=np.int32)))
            first, self._drawn = index, (index, draws)
        return jax.tree.map(lambda leaf: leaf[index - first], draws)

    def _cohort(self, stage: str, desk: "_Desk", index: int) -> "_Cohort":
        if stage == "exchanges" and self._next[0] == index:
            return self._next[1]
        here, round_ = self._draw(stage, index)
        cohort = _Cohort(here, round_, self._blocks(here, desk.store.row_bytes), here.present)
        if stage == "exchanges":
            self._next = index, cohort
        return cohort

    def _blocks(self, here: Places, row_bytes: int) -> list["_Block"]:
        """The clients that belong to this process, cut to fit."""
        job, plan, several = self.job, self.job.plan, processes.count()
        granule = plan.chunk_size * plan.devices
        examples = _example_bytes(job.data) * self._usual_size
        width = max(granule, int(_BLOCK / max(row_bytes, examples, 1)) // granule * granule)
        positions = np.arange(len(here.ids))
        if several > 1:
            positions = np.flatnonzero((here.ids >= job.own.start) & (here.ids < job.own.stop))
            # Their number is random; empty places make it one of a few, for each of which a program is compiled.
            step = max(granule, -(-len(here.ids) // (4 * several)))
            empty = step * max(1, -(-len(positions) // step)) - len(positions)
            positions = np.concatenate([positions, np.full(empty, -1)])
        there, nobody = positions >= 0, empty_place(plan)
        mine = [np.where(there, leaf[positions], fill) for leaf, fill in zip(here, nobody, strict=True)]
        cuts = [slice(at, at + width) for at in range(0, len(positions), width)]
        return [_Block(positions[cut], Places(*(leaf[cut] for leaf in mine))) for cut in cuts]

    def _pool(self, block: "_Block") -> None:
        """Fetch the examples of a block, unless all are on the device, or these are on their way."""
        data, places = self.job.data, block.places
        if data is None or block.pool is not None:
            return
        sizes = np.where(places.present, places.sizes, 0)
        ends = np.cumsum(sizes)
        first = data.offsets[np.minimum(places.ids, data.num_clients - 1)]
        rows = np.arange(ends[-1]) + np.repeat(first - (ends - sizes), sizes)
        self._room = max(self._room, _rounded_up(len(rows)))
        block.pool = jax.tree.map(lambda leaf: _rows(leaf, rows, self._room), data.examples)
        block.places = places._replace(offsets=np.where(places.present, ends - sizes, 0).astype(np.int32))

    def _cut(self, rows: Any) -> Any:
        """Client memory on its way to the devices: to each the rows of its own clients alone, where these are known."""
        plan = self.job.plan
        if plan.mesh is None or plan.steps is None or any(len(leaf) % plan.devices for leaf in jax.tree.leaves(rows)):
            return rows
        return jax.device_put(rows, NamedSharding(plan.mesh, P(*plan.mesh.axis_names)))

    def _fed(self, block: "_Block") -> Federation:
        return self.job.fed if block.pool is None else self.job.fed._replace(examples=block.pool)

    def _pieces(self) -> Iterator[Federation]:
        """The data of this process's clients, for evaluation: on the device as they are, or piece by piece."""
        job, data = self.job, self.job.data
        if data is None:
            fed = job.fed
            yield Federation(fed.examples, fed.offsets[job.own], fed.sizes[job.own], fed.weights[job.own])
            return
        most = max(1, _BLOCK // _example_bytes(data))
        ends = data.offsets + data.sizes
        cuts = [job.own.start]
        while cuts[-1] < job.own.stop:
            last = int(np.searchsorted(ends, data.offsets[cuts[-1]] + most, side="right"))
            cuts.append(min(max(last, cuts[-1] + 1), job.own.stop))
        clients = max(np.diff(cuts))
        room = int(max(ends[b - 1] - data.offsets[a] for a, b in itertools.pairwise(cuts)))
        for a, b in itertools.pairwise(cuts):
            start, n = data.offsets[a], ends[b - 1] - data.offsets[a]
            pool = jax.tree.map(lambda leaf, start=start, n=n: _padded(leaf[start : start + n], room), data.examples)
            # Clients that are not there have the rows that are not, and no weight.
            fill = np.full(clients - (b - a) + 1, room)
            yield Federation(
                pool,
                np.concatenate([data.offsets[a:b] - start, fill]).astype(np.int32),
                np.concatenate([data.sizes[a:b], np.ones_like(fill)]).astype(np.int32),
                np.concatenate([data.weights[a:b], np.zeros(len(fill))]).astype(job.fed.weights.dtype),
            )


class _Block:
    """Some clients of a cohort.

    Attributes:
        positions: [b] their places in it; −1 where there is none.
        places: what is known of them.
        good: [b] who of them counts.
        pool: their examples, where not all are on the device, until they are at work.
        memory: theirs, while between two exchanges it has another form than the store's, or is not to be written yet.
        answer: what became of them in their last exchange.
    """

    def __init__(self, positions: np.ndarray, places: Places):
        self.positions, self.places, self.good = positions, places, places.present
        self.pool: Any = None
        self.memory: Any = None
        self.answer: Any = None

    @property
    def ids(self) -> np.ndarray:
        """Who is there."""
        return self.places.ids[self.places.present]


class _Cohort(NamedTuple):
    places: Places
    round: Round
    blocks: list[_Block]
    present: np.ndarray

    @property
    def clients(self) -> int:
        return int(self.present.sum())


class _Desk:
    """The rows of client memory that are under way, and the count of what was done."""

    def __init__(self, store: ClientMemory):
        self.store, self.total, self.holds = store, np.zeros(3, np.int32), False
        self._at_work: tuple[_Block, Tally] | None = None
        self._ready: tuple[_Block, Any, np.ndarray] | None = None

    def fetch(self, block: _Block) -> None:
        """Read a block's rows; those that the block at work will change have to be read again."""
        ids = block.places.ids
        stale = np.zeros(len(ids), bool)
        if self._at_work is not None and jax.tree.leaves(self._at_work[0].answer.memory):
            stale = np.isin(ids, self._at_work[0].ids)
        self._ready = block, self.store[np.minimum(ids, len(self.store) - 1)], stale

    def take(self, block: _Block) -> Any:
        """A block's rows as they are now."""
        if self._ready is None or self._ready[0] is not block:
            self.fetch(block)
        assert self._ready is not None
        (_, rows, stale), self._ready = self._ready, None
        if stale.any():
            self.write()
            fresh = self.store[block.places.ids[stale]]
            jax.tree.map(lambda leaf, new: leaf.__setitem__(stale, new), rows, fresh)
        if block.memory is not None:
            rows, block.memory = block.memory, None
        return rows

    def keep(self, block: _Block, done: Tally) -> None:
        """Take note of what becomes of a block, which is at work now; write what became of the one before."""
        self.write()
        self._at_work = block, done

    def write(self) -> None:
        """Wait for the block at work, and write its rows."""
        if self._at_work is None:
            return
        (block, done), self._at_work = self._at_work, None
        memory, fine = block.answer.memory, jax.tree.map(np.asarray, block.answer.fine)
        if isinstance(fine, np.ndarray) and fine.ndim:
            block.good = block.good & fine
        if self.holds or not self.store.fits(memory):
            block.memory = jax.tree.map(np.asarray, memory)
        else:
            self._put(block, memory)
        self.total[1:] += int(done.local_steps), int(done.gradients)

    def release(self, blocks: list[_Block], skipped: bool) -> None:
        """Write the rows that were held back, unless nothing of the round counts."""
        self.write()
        for block in blocks:
            if not skipped:
                self._put(block, block.memory)
            block.memory = None

    def _put(self, block: _Block, memory: Any) -> None:
        if self.store.row_bytes:
            there, ids = block.good, block.places.ids
            self.store.put(
                ids[there], memory if there.all() else jax.tree.map(lambda leaf: np.asarray(leaf)[there], memory)
            )

    def finish(self) -> Tally:
        """What was done by all processes, when all is written."""
        self.write()
        return Tally(*np.asarray(processes.total(self.total)).tolist())


def _assembled(blocks: list[_Block], parts: Iterable[Any], size: int) -> np.ndarray:
    """What blocks of all processes have of each client, in the order of the cohort."""
    whole: Any = None
    for block, part in zip(blocks, map(np.asarray, parts), strict=True):
        kind = np.int32 if part.dtype == bool else part.dtype
        whole = np.zeros((size, *part.shape[1:]), kind) if whole is None else whole
        whole[block.positions[block.places.present]] = part[block.places.present]
    return processes.total(whole)


def _example_bytes(data: FederatedData | None) -> int:
    return 0 if data is None else sum(leaf[:1].nbytes for leaf in jax.tree.leaves(data.examples))


def _rounded_up(n: int) -> int:
    """To three binary digits."""
    unit = 1 << max(0, n.bit_length() - 3)
    return max(1, -(-n // unit) * unit)


def _rows(leaf: np.ndarray, rows: np.ndarray, room: int) -> np.ndarray:
    out = np.zeros((room, *leaf.shape[1:]), leaf.dtype)
    np.take(leaf, rows, axis=0, out=out[: len(rows)], mode="clip")  # in range; other modes make a copy
    return out


def _padded(leaf: np.ndarray, room: int) -> np.ndarray:
    if len(leaf) == room:
        return leaf
    out = np.zeros((room, *leaf.shape[1:]), leaf.dtype)
    out[: len(leaf)] = leaf
    return out


_first_state = compiled()(first_state)
_train_sums = compiled(static=["task", "grad_norm", "mesh"])(train_sums)


@compiled(static=["plan", "stage"])
def _gathering(
    work: Any, participation: Any, *, fed: Federation, key: Any, indices: Any, plan: Plan, stage: str
) -> Any:
    """The places and what the server knows, but its key, of some rounds; leaves [rounds, ...]."""

    def one(index: Any) -> tuple[Places, Round]:
        places, round_ = gathering(work, participation, fed, _key(key, index, stage), index, plan)
        return places, round_._replace(key=None)

    return jax.lax.map(one, indices)


@compiled(static=["stage"])
def _chosen(places: Places, key: Any, index: Any, *, stage: str) -> Any:
    return chosen(places, _key(key, index, stage))


def _key(key: Any, index: Any, stage: str) -> Any:
    """A round's, of the run's."""
    return warmup_key(key) if stage == "warmup" else jax.random.fold_in(key, index)


def _around(outside: Any, stage: str, number: int) -> tuple[Any, ...]:
    algorithm, server, fed, key, index = outside
    method = resolve(algorithm, index)
    exchange = getattr(method, stage)()[number]
    return method, (exchange.download or method.download)(server), fed, _key(key, index, stage), index


def _concluded(
    outside: Any, total: Any, uploads: Any, round_: Round, good: Any, stage: str, number: int, plan: Plan
) -> Any:
    algorithm, server, _, key, index = outside
    exchange = getattr(resolve(algorithm, index), stage)()[number]
    round_ = round_._replace(key=server_key(_key(key, index, stage)))
    return conclude(exchange, server, total, uploads, round_, good, plan)


@compiled(static=["stage", "number", "plan"])
def _contribute(
    outside: Any, memory: Any, places: Places, heard: Any = None, *, stage: str, number: int, plan: Plan
) -> Any:
    """The sum of a block's uploads, what becomes of its clients, what they did.

    ``heard``: if the block is all of the cohort, what the server knows, and who counts so far. Then the server's new
    state stands in the place of the sum.
    """
    around = _around(outside, stage, number)
    total, answer, done = spread(functools.partial(client_of, stage, number, {}, plan), around, memory, places, plan)
    if heard is not None:
        round_, good = heard
        good = good if plan.guard is None else good & answer.fine
        total = _concluded(outside, total, answer.upload, round_, good, stage, number, plan)
        answer = answer._replace(upload=())
    return total, answer, done


@compiled(static=["stage", "number", "plan"])
def _alone(
    outside: Any, memory: Any, places: Places, *, row: Any, mine: Any, stage: str, number: int, plan: Plan
) -> Any:
    """One client's upload, the block's memory with its own in it, what it did; 0 and nothing new unless ``mine``."""
    at = lambda leaf: leaf[row]  # noqa: E731
    client, place = client_of(stage, number, {}, plan, _around(outside, stage, number)), jax.tree.map(at, places)
    upload, new, done = client(jax.tree.map(at, memory), place)
    upload, done = jax.tree.map(lambda leaf: jnp.where(mine, leaf, 0), (of_one(upload, place), done))
    kept = jax.tree.map(lambda all_, leaf: all_.at[row].set(jnp.where(mine, leaf, all_[row])), memory, new.memory)
    return upload, Answer(kept, new.fine, ()), done


_conclude = compiled(static=["stage", "number", "plan"])(_concluded)
