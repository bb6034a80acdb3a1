"""Clients whose memory, or examples, are in host memory or in a file; with several processes, each has its own clients.

The rounds are a loop on the host, which takes to the device what a cohort needs, block of clients by block. While a
block is at work, the rows of the one before it are written, and what the next one needs is read, over the end of a
round too. With several processes each runs the clients that belong to it, and the uploads are summed over all. The
random numbers are those of the compiled program of many rounds.
"""

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fedax.contract.algorithm import Exchange, Round
from fedax.contract.schedule import resolve
from fedax.contract.types import Array, Tree
from fedax.data.federated import FederatedData
from fedax.engine import processes
from fedax.engine.clients import Answer, Outside, client_program, contribute, of_one
from fedax.engine.evaluate import measured, model_after, train_sums
from fedax.engine.job import Job
from fedax.engine.loop import (
    Ask,
    Clients,
    Federation,
    Heard,
    Hyper,
    State,
    Tally,
    conclude,
    converse,
    draw,
    exchanges,
    nobody,
    one_of,
    server_key,
    stage_key,
)
from fedax.engine.memory import ClientMemory
from fedax.engine.places.device import first_state, none_missed
from fedax.engine.plan import Plan
from fedax.engine.programs import compiled
from fedax.federation.participation import Full

_AHEAD = 16  # rounds whose cohorts are drawn at a time, if they are small
_DRAWN = 2**18  # clients of all of these, at most
_BLOCK = 2**28  # bytes of client memory, or of examples, that go to the device at a time


class Hosted:
    """The program of one job whose rounds are a loop on the host."""

    def __init__(self, job: Job):
        self.job, self._examples, self._draws = job, _Examples(job), _Draws(job)
        self._place: _Host | None = None

    def prepare(self) -> tuple[State, Tally]:
        """The state before round 0, and what the warm-up did."""
        job = self.job
        server, row = _first_state(job.hyper.method, job.x)
        folder = None if job.memory == "host" else job.memory
        store = ClientMemory(job.plan.num_clients, row, folder, room=job.own.stop - job.own.start)
        state = State(server, store, jax.tree.map(np.array, none_missed(job.plan)))
        self._place = place = _Host(job, self._examples, self._draws, store)
        if resolve(job.hyper.method, 0).warmup():
            state = place.round(state, 0, "warmup")
        return state, place.finish()

    def advance(self, state: State, start: int, stop: int) -> tuple[State, Tally]:
        """Rounds start … stop − 1, and what they did; with none, programs are compiled and nothing changes."""
        if self.job.plan.mesh is not None:
            # Where a round leaves it: else the second one would be compiled anew.
            everywhere = NamedSharding(self.job.plan.mesh, P())
            state = state._replace(server=jax.device_put(state.server, everywhere))
        if start == stop:  # a round with a memory that is thrown away
            _Host(self.job, self._examples, self._draws, state.memory.blank()).round(state, 0)
        assert self._place is not None
        for index in range(start, stop):
            state = self._place.round(state, index)
        return state, self._place.finish()

    def measure(self, state: State, index: int) -> list[dict[str, Array]]:
        """What evaluation gives after ``index`` rounds."""
        job, model = self.job, model_after(self.job.hyper.method, state.server, index)[0]
        asked = {"task": job.plan.task, "grad_norm": job.grad_norm, "mesh": job.plan.mesh}
        found: Tree = None
        for piece in self._examples.pieces():
            part = jax.block_until_ready(_train_sums(model, piece, **asked))
            found = part if found is None else jax.tree.map(jnp.add, found, part)
        (row,) = measured(job, state.server, index, processes.total(found))
        words = np.array(list(row.values()), float).view(np.uint32)  # whole, for JAX would halve the floats
        return [dict(zip(row, processes.from_first(words).view(float).tolist(), strict=True))]

    def losses(self, state: State) -> list[Tree]:
        """How often uploads were left out so far."""
        return [state.losses]

    def outcome(self, state: State, index: int, which: int) -> tuple[State | None, Tree]:
        """What the run keeps: the state, and the model."""
        return state, self.job.delivered(model_after(self.job.hyper.method, state.server, index)[0])


class _Block:
    """Some clients of a round that go to the device together.

    Attributes:
        positions: [b] where they are among the round's clients; −1 where nobody is.
        clients: who they are, as at the beginning of the round.
        examples: theirs, where not all are on the device, from when they are fetched until they are at work.
        memory: theirs, while it cannot be in the store: between two exchanges it has another form, or it is not yet
            certain that the round counts.
        answer: what became of them in their last exchange.
    """

    def __init__(self, positions: np.ndarray, clients: Clients):
        self.positions, self.clients = positions, clients
        self.examples: Tree = None
        self.memory: Tree = None
        self.answer = Answer((), (), ())

    def now(self, clients: Clients, sliced: bool) -> Clients:
        """What is known of them now: all who count so far; ``sliced``: with offsets into ``examples``."""
        there = self.positions >= 0
        weights, data_weights = (np.where(there, leaf[self.positions], 0) for leaf in clients[1:3])
        found = self.clients._replace(weights=weights, data_weights=data_weights)
        if not sliced:
            return found
        sizes = np.where(found.present, found.sizes, 0)
        starts = np.cumsum(sizes) - sizes
        return found._replace(offsets=np.where(found.present, starts, 0).astype(np.int32))


class _Drawn(NamedTuple):
    """A round's clients, what the server knows of them, and the blocks of this process."""

    clients: Clients
    round: Round
    blocks: list[_Block]


class _Draws:
    """The cohorts of rounds, drawn many at a time: a program as small as this waits for the clients at work."""

    def __init__(self, job: Job):
        self.job, self._first = job, 0
        self._rounds: list[tuple[Clients, Round]] = []
        self._ahead = max(1, min(_AHEAD, _DRAWN // job.hyper.participation.places(job.plan.num_clients)))

    def __getitem__(self, index: int) -> tuple[Clients, Round]:
        job = self.job
        if not self._first <= index < self._first + len(self._rounds):
            indices = index + np.arange(self._ahead, dtype=np.int32)
            drawn = _drawn(job.hyper, job.fed, job.key, indices, plan=job.plan, stage="exchanges")
            drawn = jax.tree.map(np.asarray, drawn)
            self._rounds = [jax.tree.map(lambda leaf, k=k: leaf[k], drawn) for k in range(self._ahead)]
            self._first = index
        return self._rounds[index - self._first]

    def warmup(self) -> tuple[Clients, Round]:
        """Everyone, before round 0."""
        job = self.job
        everyone = job.hyper._replace(participation=Full())
        drawn = _drawn(everyone, job.fed, job.key, np.zeros(1, np.int32), plan=job.plan, stage="warmup")
        return jax.tree.map(lambda leaf: np.asarray(leaf[0]), drawn)


class _Examples:
    """The examples of this process's clients: on the device, or fetched by block."""

    def __init__(self, job: Job):
        self.job, self.streamed = job, job.data is not None
        self.bytes_a_client = _example_bytes(job.data) * float(np.mean(np.asarray(job.fed.sizes)))
        self._room = 0  # examples of the largest block so far: another number is another program

    def fetch(self, block: _Block) -> None:
        """Fetch a block's examples, unless all are on the device, or these are here."""
        data, clients = self.job.data, block.clients
        if data is None or block.examples is not None:
            return
        sizes = np.where(clients.present, clients.sizes, 0)
        ends = np.cumsum(sizes)
        first = data.offsets[np.minimum(clients.ids, data.num_clients - 1)]
        rows = np.arange(ends[-1]) + np.repeat(first - (ends - sizes), sizes)
        self._room = max(self._room, _rounded_up(len(rows)))
        block.examples = jax.tree.map(lambda leaf: _rows(leaf, rows, self._room), data.examples)

    def take(self, block: _Block) -> Federation:
        """The data for a block's work."""
        self.fetch(block)
        fed = self.job.fed if block.examples is None else self.job.fed._replace(examples=block.examples)
        block.examples = None  # or a round would gather all data
        return fed

    def pieces(self) -> Iterator[Federation]:
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
            rows = slice(data.offsets[a], ends[b - 1])
            examples = jax.tree.map(lambda leaf, rows=rows: _padded(leaf[rows], room), data.examples)
            # Clients that are not there have the rows that are not, and no weight.
            fill = np.full(clients - (b - a) + 1, room)
            yield Federation(
                examples,
                np.concatenate([data.offsets[a:b] - data.offsets[a], fill]).astype(np.int32),
                np.concatenate([data.sizes[a:b], np.ones_like(fill)]).astype(np.int32),
                np.concatenate([data.weights[a:b], np.zeros(len(fill))]).astype(job.fed.weights.dtype),
            )


class _Host:
    """The place: what is asked goes to the device block by block, and the sum over all processes comes back."""

    def __init__(self, job: Job, examples: _Examples, draws: _Draws, store: ClientMemory):
        self.job, self._examples, self._draws, self._rows = job, examples, draws, _Rows(store)
        self._clients = 0  # that took part
        self._index, self._stage = -1, "exchanges"  # of the round under way
        self._drawn: _Drawn = _Drawn(nobody(0), (), [])  # type: ignore[arg-type]
        self._next: tuple[int, _Drawn] | None = None  # a round, and what was drawn for it

    def round(self, state: State, index: int, stage: str = "exchanges") -> State:
        """The state after a round, or the warm-up."""
        job, wire = self.job, self.job.hyper.wire
        method = resolve(job.hyper.method, index)
        self._index, self._stage, self._drawn = index, stage, self._draw(index, stage)
        self._last = len(getattr(method, stage)()) - 1
        clients, round_, blocks = self._drawn
        # What clients keep is written when it is certain that they are not left out of a later exchange.
        self._rows.hold = job.plan.watched and self._last > 0
        loop = exchanges(stage, method, clients, round_, state.server, wire, job.plan.watched)
        end = converse(loop, self.answer)
        if self._rows.hold:
            self._rows.write()
            for block in blocks if not end.skipped else ():
                self._rows.put(block, end.counts)
        self._clients += int(clients.present.sum()) if jax.process_index() == 0 else 0
        missed = state.losses.after(clients, end) if state.losses else ()
        return State(end.server, state.memory, missed)

    def answer(self, ask: Ask) -> Heard:
        """Run the clients of this process, block by block; conclude with the sum over all processes."""
        job, plan, wire = self.job, self.job.plan, self.job.hyper.wire
        blocks = visited = self._drawn.blocks
        listens = ask.exchange.server is None
        whole = ask.exchange.who == "cohort" and len(blocks) == processes.count() == 1
        which = {"stage": ask.stage, "number": ask.number, "plan": plan}
        known = (job.hyper, ask.server, job.key, self._index)
        at = -1
        if ask.exchange.who == "one":
            at = int(_one_of(ask.clients, job.key, self._index, stage=ask.stage))
            # Where another process has that client any block runs, and its upload counts as zero.
            visited = [block for block in blocks if at in block.positions] or blocks[:1]
        total: Tree = None
        for block, after in itertools.zip_longest(visited, visited[1:]):
            fed = self._examples.take(block)
            clients, rows = block.now(ask.clients, self._examples.streamed), self._to_devices(self._rows.take(block))
            if at >= 0:
                mine = at in block.positions
                row = block.positions.tolist().index(at) if mine else 0
                part, block.answer, done = _alone(known, fed, rows, clients, row=row, mine=mine, **which)
            else:
                # The server's step is in the same program where nothing is waited for in between.
                heard = (ask.round, ask.counts) if whole and not listens else None
                part, block.answer, done = _contribute(known, fed, rows, clients, heard, **which)
            self._rows.at_work(block, done)
            total = part if total is None else jax.tree.map(jnp.add, total, part)
            self._look_ahead(ask, after)
        accepted = self._accepted(visited, at, len(ask.counts)) if wire.guard is not None else ()
        if whole or listens:
            return Heard(ask.server if listens else total, accepted)
        uploads: Tree = ()
        if wire.gathers:
            leaves = zip(*(jax.tree.leaves(block.answer.upload) for block in visited), strict=True)
            form = jax.tree.structure(visited[0].answer.upload)
            uploads = jax.tree.unflatten(form, [_assembled(visited, each, len(ask.counts)) for each in leaves])
        server = _conclude(known, processes.total(total), uploads, accepted, ask.round, ask.counts, **which)
        return Heard(server, accepted)

    def finish(self) -> Tally:
        """What was done by all processes, when all is written."""
        done = np.array([self._clients, *self._rows.finish()], np.int32)
        self._clients = 0
        return Tally(*np.asarray(processes.total(done)).tolist())

    def _look_ahead(self, ask: Ask, after: _Block | None) -> None:
        """Read what the next block needs, of the next round too, while this one is at work."""
        last = ask.number == self._last and ask.stage == "exchanges"
        if after is None and last:
            after = self._ahead(self._index + 1).blocks[0]
            if self._rows.hold:  # what this round leaves in memory is not certain yet
                self._examples.fetch(after)
                return
        if after is not None:
            self._examples.fetch(after)
            self._rows.read(after)

    def _draw(self, index: int, stage: str) -> _Drawn:
        if stage == "warmup":
            clients, round_ = self._draws.warmup()
            return _Drawn(clients, round_, self._blocks(clients))
        drawn = self._ahead(index)
        self._next = None
        return drawn

    def _ahead(self, index: int) -> _Drawn:
        if self._next is None or self._next[0] != index:
            clients, round_ = self._draws[index]
            self._next = index, _Drawn(clients, round_, self._blocks(clients))
        return self._next[1]

    def _blocks(self, clients: Clients) -> list[_Block]:
        """The clients that belong to this process, cut to fit."""
        job, plan, several = self.job, self.job.plan, processes.count()
        granule = plan.chunk_size * plan.devices
        bytes_a_client = max(self._rows.store.row_bytes, self._examples.bytes_a_client, 1)
        width = max(granule, int(_BLOCK / bytes_a_client) // granule * granule)
        positions = np.arange(len(clients.ids))
        if several > 1:
            positions = np.flatnonzero((clients.ids >= job.own.start) & (clients.ids < job.own.stop))
            # Their number is random; empty places make it one of a few, for each of which a program is compiled.
            step = max(granule, -(-len(clients.ids) // (4 * several)))
            empty = step * max(1, -(-len(positions) // step)) - len(positions)
            positions = np.concatenate([positions, np.full(empty, -1)])
        there = positions >= 0
        fill = nobody(plan.num_clients)
        mine = [np.where(there, leaf[positions], value) for leaf, value in zip(clients, fill, strict=True)]
        cuts = [slice(at, at + width) for at in range(0, len(positions), width)]
        return [_Block(positions[cut], Clients(*(leaf[cut] for leaf in mine))) for cut in cuts]

    def _to_devices(self, rows: Tree) -> Tree:
        """To each device the rows of its own clients alone, where these are known."""
        plan = self.job.plan
        if plan.mesh is None or plan.steps is None or any(len(leaf) % plan.devices for leaf in jax.tree.leaves(rows)):
            return rows
        return jax.device_put(rows, NamedSharding(plan.mesh, P(*plan.mesh.axis_names)))

    def _accepted(self, visited: list[_Block], at: int, size: int) -> np.ndarray:
        """[S] whose uploads were accepted, by all processes."""
        if at < 0:
            return _assembled(visited, [block.answer.accepted for block in visited], size) > 0
        fine = at in visited[0].positions and bool(visited[0].answer.accepted)
        accepted = np.ones(size, bool)
        accepted[at] = bool(processes.total(np.int32(fine)))
        return accepted


class _Rows:
    """Rows of client memory on their way: one block's read ahead, another's still at work and to be written.

    Attributes:
        store: where all rows are.
        hold: whether rows are kept with their blocks until the end of the round.
        done: local steps and gradients of all blocks that were written.
    """

    def __init__(self, store: ClientMemory):
        self.store, self.hold, self.done = store, False, [0, 0]
        self._at_work: tuple[_Block, Tally] | None = None
        self._ready: tuple[_Block, Tree, np.ndarray] | None = None

    def read(self, block: _Block) -> None:
        """Read a block's rows; those that the block at work will change have to be read again."""
        ids = block.clients.ids
        stale = np.zeros(len(ids), bool)
        if self._at_work is not None and jax.tree.leaves(self._at_work[0].answer.memory):
            working = self._at_work[0].clients
            stale = np.isin(ids, working.ids[working.present])
        self._ready = block, self.store[np.minimum(ids, len(self.store) - 1)], stale

    def take(self, block: _Block) -> Tree:
        """A block's rows as they are now."""
        if self._ready is None or self._ready[0] is not block:
            self.read(block)
        assert self._ready is not None
        (_, rows, stale), self._ready = self._ready, None
        if stale.any():
            self.write()
            fresh = self.store[block.clients.ids[stale]]
            jax.tree.map(lambda leaf, new: leaf.__setitem__(stale, new), rows, fresh)
        if block.memory is not None:
            rows, block.memory = block.memory, None
        return rows

    def at_work(self, block: _Block, done: Tally) -> None:
        """Note the block that is at work now; write the rows of the one before."""
        self.write()
        self._at_work = block, done

    def write(self) -> None:
        """Wait for the block at work, and write its rows, or keep them with it."""
        if self._at_work is None:
            return
        (block, done), self._at_work = self._at_work, None
        memory = block.answer.memory
        if self.hold or not self.store.fits(memory):
            block.memory = jax.tree.map(np.asarray, memory)
        else:
            block.memory = memory
            self.put(block)
        self.done[0] += int(done.local_steps)
        self.done[1] += int(done.gradients)

    def finish(self) -> list[int]:
        """Write all, and forget what was read ahead; what was done since the last time."""
        self.write()
        done, self.done, self._ready = self.done, [0, 0], None
        return done

    def put(self, block: _Block, counts: np.ndarray | None = None) -> None:
        """Write a block's rows: of the clients that count, [S] of the round; default: as it was answered."""
        memory, block.memory = block.memory, None
        there = block.clients.present
        if counts is not None:
            there = there & counts[block.positions]
        elif not isinstance(accepted := block.answer.accepted, tuple):
            there = there & np.asarray(accepted)
        if memory is not None and self.store.row_bytes:
            rows = memory if there.all() else jax.tree.map(lambda leaf: np.asarray(leaf)[there], memory)
            self.store.put(block.clients.ids[there], rows)


def _assembled(blocks: Sequence[_Block], parts: Sequence[Array], size: int) -> np.ndarray:
    """What blocks of all processes have of each client, in the order of the cohort."""
    whole: Array = None
    for block, part in zip(blocks, map(np.asarray, parts), strict=True):
        kind = np.int32 if part.dtype == bool else part.dtype
        whole = np.zeros((size, *part.shape[1:]), kind) if whole is None else whole
        there = block.clients.present
        whole[block.positions[there]] = part[there]
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


# ---- programs

Known = tuple[Hyper, Tree, Array, Array]  # numbers of the run, server state, the run's key, the round's index

_first_state = compiled()(first_state)
_train_sums = compiled(static=["task", "grad_norm", "mesh"])(train_sums)


@compiled(static=["plan", "stage"])
def _drawn(
    hyper: Hyper, fed: Federation, key: Array, indices: Array, *, plan: Plan, stage: str
) -> tuple[Clients, Round]:
    """:func:`draw` of some rounds, leaves [rounds, ...]; without the server's keys."""

    def one(index: Array) -> tuple[Clients, Round]:
        clients, round_ = draw(hyper, fed, stage_key(key, index, stage), index, plan)
        return clients, round_._replace(key=None)

    found: tuple[Clients, Round] = jax.lax.map(one, indices)
    return found


@compiled(static=["stage"])
def _one_of(clients: Clients, key: Array, index: Array, *, stage: str) -> Array:
    return one_of(clients, stage_key(key, index, stage))


def _exchange(known: Known, stage: str, number: int) -> tuple[Exchange, Outside]:
    """An exchange, and what its clients take from outside, but for the data."""
    hyper, server, key, index = known
    method = resolve(hyper.method, index)
    exchange: Exchange = getattr(method, stage)()[number]
    download = (exchange.download or method.download)(server)
    return exchange, Outside(method, hyper.wire, download, None, stage_key(key, index, stage), index)  # type: ignore[arg-type]


def _concluded(
    known: Known, total: Tree, uploads: Tree, accepted: Array, round_: Round, counts: Array,
    stage: str, number: int, plan: Plan,
) -> Tree:  # fmt: skip
    exchange, outside = _exchange(known, stage, number)
    round_ = round_._replace(key=server_key(outside.key))
    ask = Ask(stage, number, exchange, known[1], None, round_, counts)  # type: ignore[arg-type]
    return conclude(ask, total, uploads, accepted, known[0].wire, plan)


@compiled(static=["stage", "number", "plan"])
def _contribute(
    known: Known, fed: Federation, memory: Tree, clients: Clients, heard: tuple[Round, Array] | None, *,
    stage: str, number: int, plan: Plan,
) -> tuple[Tree, Answer, Tally]:  # fmt: skip
    """The sum of a block's uploads, what becomes of its clients, what they did.

    ``heard``: if the block is all of the cohort, what the server knows of the round, and who counts so far. Then the
    server's new state stands in the place of the sum.
    """
    _, outside = _exchange(known, stage, number)
    make = functools.partial(client_program, stage, number, plan, None)
    total, answer, done = contribute(make, outside._replace(fed=fed), memory, clients, plan)
    if heard is not None:
        total = _concluded(known, total, answer.upload, answer.accepted, *heard, stage, number, plan)
        answer = answer._replace(upload=())
    return total, answer, done


@compiled(static=["stage", "number", "plan"])
def _alone(
    known: Known, fed: Federation, memory: Tree, clients: Clients, *,
    row: Array, mine: Array, stage: str, number: int, plan: Plan,
) -> tuple[Tree, Answer, Tally]:  # fmt: skip
    """One client's upload, the block's memory with its own in it, what it did; 0 and nothing new unless ``mine``."""
    at = lambda leaf: leaf[row]  # noqa: E731
    _, outside = _exchange(known, stage, number)
    run, client = client_program(stage, number, plan, None, outside._replace(fed=fed)), jax.tree.map(at, clients)
    upload, new, done = run(jax.tree.map(at, memory), client)
    upload, done = jax.tree.map(lambda leaf: jnp.where(mine, leaf, 0), (of_one(upload, client), done))
    kept = jax.tree.map(lambda all_, leaf: all_.at[row].set(jnp.where(mine, leaf, all_[row])), memory, new.memory)
    return upload, Answer(kept, new.accepted, ()), done


_conclude = compiled(static=["stage", "number", "plan"])(_concluded)
