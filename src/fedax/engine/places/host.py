"""Clients whose memory, or examples, are in host memory or in a file; with several processes, each has its own clients.

The rounds are a loop on the host, which moves to the device what a cohort needs, block of clients by block. While a
block runs, the rows of the one before it are written, and what the next one needs is read, also across the end of a
round. With several processes each runs the clients that belong to it, and the uploads are summed over all. The random
numbers are those of the compiled program of many rounds.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fedax.contract.algorithm import Exchange, Round
from fedax.contract.compression import Identity, decoded
from fedax.contract.schedule import resolve
from fedax.contract.types import Array, Number, Tree, Unknown
from fedax.engine import personal, processes
from fedax.engine.clients import ClientResult, SharedInputs, alone, client_program, contribute
from fedax.engine.evaluate import OneJob, measured, model_after, train_sums
from fedax.engine.job import Job
from fedax.engine.layers import compressors_of
from fedax.engine.loop import (
    Clients,
    Counters,
    Federation,
    Hyper,
    Request,
    Response,
    State,
    conclude,
    converse,
    download_of,
    draw_one,
    draw_rounds,
    empty_place,
    exchanges,
    server_key,
    stage_key,
)
from fedax.engine.memory import ClientMemory
from fedax.engine.places import blocks
from fedax.engine.places.blocks import Block, Examples, MemoryRows
from fedax.engine.places.device import first_states, no_exclusions, nothing
from fedax.engine.places.layout import Layout
from fedax.engine.plan import RunPlan
from fedax.federation.participation import Full
from fedax.programs import compiled

_AHEAD = 16  # rounds whose cohorts are drawn at a time, if they are small
_DRAWN = 2**18  # the most clients that are drawn at a time


class _Drawn(NamedTuple):
    """A round's clients, what the server knows of them, and the blocks of this process."""

    clients: Clients
    round: Round
    blocks: list[Block]


class HostServer(OneJob):
    """A server on the host: its part of the rounds of one job, exchange by exchange in programs of their own.

    Attributes:
        job: the job.
        index: the number of the current round.
    """

    def __init__(self, job: Job):
        super().__init__(job)
        self.index = 0

    def inputs(self, request: Request) -> "ExchangeInputs":
        """The traced inputs of the programs of an exchange."""
        return self.job.hyper._replace(wire=request.wire), request.server, self.job.key, self.index

    def static(self, request: Request) -> dict[str, Unknown]:
        """The static arguments of the programs of an exchange."""
        return {"stage": request.stage, "number": request.number, "plan": self.job.plan}

    def draw_one(self, stage: str, clients: Clients) -> int:
        """The position of a client that is drawn by weight."""
        return int(_position_of_one(clients, self.job.key, self.index, stage=stage))

    def conclude(self, request: Request, response: Response) -> Tree:
        """The server's state after the exchange."""
        return _conclude(self.inputs(request), response, request.round, request.counts, **self.static(request))


class Hosted(HostServer):
    """The program of one job whose rounds are a loop on the host, and the place that answers their requests."""

    def __init__(self, job: Job):
        super().__init__(job)
        self._examples = Examples(job.data, job.fed, job.own)
        self._clients = 0  # the clients that took part since the last counters
        self._draws: dict[int, tuple[Clients, Round]] = {}  # of the coming rounds
        self._drawn: dict[int, _Drawn] = {}  # of the current round, and the next one
        self._last = 0  # the number of the last exchange of the current round

    def prepare(self) -> tuple[State, Counters]:
        """The state before round 0, and the counters of the warm-up."""
        job = self.job
        server, row = first_states(job.hyper.method, job.x)
        folder = None if job.memory == "host" else job.memory
        store = ClientMemory(job.plan.num_clients, row, folder, room=job.own.stop - job.own.start)
        state, self._rows = State(server, store, jax.tree.map(np.array, no_exclusions(job.plan))), MemoryRows(store)
        if resolve(job.hyper.method, 0).warmup():
            everyone = job.hyper._replace(participation=Full())
            (drawn,) = self._draw(everyone, np.zeros(1, np.int32), "warmup")
            state = self._round(state, 0, "warmup", _Drawn(*drawn, self._cut(drawn[0])))
        return state, self._done()

    def advance(self, state: State, start: int, stop: int) -> tuple[State, Counters]:
        """Run rounds start … stop − 1; if there are none, only compile. The new state, and the counters."""
        if self.job.plan.mesh is not None:
            # Where a round leaves it: else the second one would be compiled again.
            everywhere = NamedSharding(self.job.plan.mesh, P())
            state = state._replace(server=jax.device_put(state.server, everywhere))
        if start == stop:  # a round whose memory and costs are thrown away
            rows, self._rows = self._rows, MemoryRows(state.memory.blank())
            self._round(state, 0, "exchanges", self._round_drawn(0))
            self._done()
            self._rows = rows
        for index in range(start, stop):
            state = self._round(state, index, "exchanges", self._round_drawn(index))
        return state, self._done()

    def measure(self, state: State, index: int) -> list[dict[str, Unknown]]:
        """The figures of an evaluation after ``index`` rounds."""
        job, model = self.job, model_after(self.job.hyper.method, state.server, index)[0]
        options = {"task": job.plan.task, "grad_norm": job.evaluation.grad_norm, "mesh": job.plan.mesh}
        total: Tree = None
        whole = job.evaluation.train and job.evaluation.sample is None
        for piece in self._examples.pieces() if whole else ():
            part = jax.block_until_ready(sums_of(model, piece, **options))
            total = part if total is None else jax.tree.map(jnp.add, total, part)
        train = processes.total(total) if whole else None
        (row,) = measured(job, state.server, index, train, more=self._personal(state, index))
        flat = np.concatenate([np.atleast_1d(np.asarray(value, float)) for value in row.values()])
        bits = flat.view(np.uint32)  # whole, for JAX would halve the floats
        numbers, figures = iter(processes.from_first(bits).view(float).tolist()), {}
        for name, value in row.items():
            figures[name] = [next(numbers) for _ in value] if isinstance(value, list) else type(value)(next(numbers))
        return [figures]

    def _personal(self, state: State, index: int) -> dict[str, Unknown]:
        """The columns of personal models, of the clients of all processes."""
        if self.job.evaluation.personal is None:
            return {}
        who, parts, visited = personal.everyone(self.job, index), [], []
        server = personal.inner_state(self.job.hyper.method, state.server)
        for block in self._cut(who):
            fed = self._examples.take(block)
            clients = block.now(who, self._examples.streamed)
            memory = self._to_devices(state.memory[np.minimum(clients.ids, len(state.memory) - 1)])
            parts.append(personal.evaluated(self.job, fed, server, memory, clients, index))
            visited.append(block)
        leaves = zip(*map(jax.tree.leaves, parts), strict=True)
        whole = [_assembled(visited, each, len(who.ids)) for each in leaves]
        found = personal.row(self.job, who, jax.tree.unflatten(jax.tree.structure(parts[0]), whole), index)
        return found | personal.unseen(self.job, state, index)

    def _round(self, state: State, index: int, stage: str, drawn: _Drawn) -> State:
        """The state after a round, or the warm-up."""
        job, watched = self.job, self.job.plan.watched
        method = resolve(job.hyper.method, index)
        last = len(getattr(method, stage)()) - 1
        self.index, self._last, self._now = index, last, drawn
        # Client memory is written when it is certain that the client is not left out of a later exchange.
        self._rows.hold = watched and last > 0
        loop = exchanges(stage, method, drawn.clients, drawn.round, state.server, job.hyper.wire, watched, self)
        end = converse(loop, self)
        if self._rows.hold:
            self._rows.release(drawn.blocks, np.asarray(end.counts & ~end.skipped))
        self._clients += int(drawn.clients.present.sum()) if jax.process_index() == 0 else 0
        exclusions = state.exclusions.after(drawn.clients, end) if state.exclusions else ()
        return State(end.server, state.memory, exclusions)

    def answer(self, request: Request) -> Response:
        """Run the clients of this process, block by block; the sum is that over all processes."""
        visited, only_receive = self._now.blocks, request.exchange.server is None
        # The server's step is in the same program if it waits for nothing else.
        fused = request.at is None and not only_receive and len(visited) == processes.count() == 1
        conclude_with = (request.round, request.counts) if fused else None
        row = None
        if request.at is not None:
            # If another process has that client, a block with empty places runs here.
            visited = [block for block in visited if request.at in block.positions] or visited[:1]
            row = next(iter(np.flatnonzero(visited[0].positions == request.at)), 0)
        total: Tree = None
        for block, following in itertools.zip_longest(visited, visited[1:]):
            fed = self._examples.take(block)
            clients = block.now(request.clients, self._examples.streamed)
            if row is not None:
                clients = clients._replace(present=clients.present & (block.positions == request.at)).alone(row)
            rows = self._to_devices(self._rows.take(block))
            part, block.result, counters = _contribute(
                self.inputs(request), fed, rows, (clients, row), conclude_with, **self.static(request)
            )
            self._rows.running(block, counters)
            total = part if total is None else jax.tree.map(jnp.add, total, part)
            self._look_ahead(request, following)
        accepted = self._accepted(visited, request) if request.wire.guard is not None else ()
        if fused or only_receive:
            return Response((), (), accepted, total if fused else None)
        uploads: Tree = ()
        if request.wire.gathers:
            leaves = zip(*(jax.tree.leaves(block.result.upload) for block in visited), strict=True)
            form = jax.tree.structure(visited[0].result.upload)
            uploads = jax.tree.unflatten(
                form, [_assembled(visited, leaf_parts, len(request.counts)) for leaf_parts in leaves]
            )
        return Response(processes.total(total), uploads, accepted)

    def _look_ahead(self, request: Request, following: Block | None) -> None:
        """Read what the next block needs, also that of the next round, while this one runs."""
        if following is None and request.number == self._last and request.stage == "exchanges":
            following = self._round_drawn(self.index + 1).blocks[0]
            if self._rows.hold:  # what this round leaves in memory is not certain yet
                self._examples.fetch(following)
                return
        if following is not None:
            self._examples.fetch(following)
            self._rows.read(following)

    def _accepted(self, visited: list[Block], request: Request) -> np.ndarray:
        """Whose uploads were accepted, over all processes: [S], or [1] for the one client that was asked."""
        if request.at is None:
            return np.asarray(
                _assembled(visited, [block.result.accepted for block in visited], len(request.counts)) > 0
            )
        fine = request.at in visited[0].positions and bool(visited[0].result.accepted[0])
        return np.array([processes.total(np.int32(fine)) > 0])

    def _done(self) -> Counters:
        """Write all rows; the counters of all processes since the last call."""
        done = np.array([self._clients, *self._rows.finish()], np.int32)
        self._clients = 0
        return Counters(*np.asarray(processes.total(done)).tolist())

    def _round_drawn(self, index: int) -> _Drawn:
        """The cohort of round ``index``; many are drawn at a time, as each call has to wait for the running clients."""
        if index not in self._draws:
            ahead = max(1, min(_AHEAD, _DRAWN // self.job.hyper.participation.places(self.job.plan.num_clients)))
            indices = range(index, index + ahead)
            drawn = self._draw(self.job.hyper, np.array(indices, np.int32), "exchanges")
            self._draws = dict(zip(indices, drawn, strict=True))
        if index not in self._drawn:
            former = {k: each for k, each in self._drawn.items() if k == index - 1}
            self._drawn = former | {index: _Drawn(*self._draws[index], self._cut(self._draws[index][0]))}
        return self._drawn[index]

    def _draw(self, hyper: Hyper, indices: np.ndarray, stage: str) -> list[tuple[Clients, Round]]:
        job = self.job
        drawn = draw_rounds(hyper, job.fed, job.key, indices, plan=job.plan, stage=stage)
        return [jax.tree.map(lambda leaf, k=k: leaf[k], drawn) for k in range(len(indices))]

    def _cut(self, clients: Clients) -> list[Block]:
        """The clients that belong to this process, cut into blocks that fit."""
        job, plan, several = self.job, self.job.plan, processes.count()
        granule = plan.chunk_size * plan.devices
        bytes_a_client = max(self._rows.store.row_bytes, self._examples.bytes_a_client, 1)
        width = max(granule, int(blocks.MOST_BYTES / bytes_a_client) // granule * granule)
        positions = np.arange(len(clients.ids))
        if several > 1:
            positions = np.flatnonzero((clients.ids >= job.own.start) & (clients.ids < job.own.stop))
            # Their number is random; empty places make it one of a few, for each of which a program is compiled.
            step = max(granule, -(-len(clients.ids) // (4 * several)))
            empty = step * max(1, -(-len(positions) // step)) - len(positions)
            positions = np.concatenate([positions, np.full(empty, -1)])
        present, fill = positions >= 0, empty_place(plan.num_clients)
        padded = [np.where(present, leaf[positions], value) for leaf, value in zip(clients, fill, strict=True)]
        cuts = [slice(at, at + width) for at in range(0, len(positions), width)]
        return [Block(positions[cut], Clients(*(leaf[cut] for leaf in padded))) for cut in cuts]

    def _to_devices(self, rows: Tree) -> Tree:
        """Send each device the rows of its own clients only, where it is known which these are."""
        plan = self.job.plan
        if plan.mesh is None or plan.steps is None or any(len(leaf) % plan.devices for leaf in jax.tree.leaves(rows)):
            return rows
        return jax.device_put(rows, NamedSharding(plan.mesh, P(*plan.mesh.axis_names)))


def _assembled(blocks: Sequence[Block], parts: Sequence[Array], size: int) -> np.ndarray:
    """Arrays with an entry for each client, from the blocks of all processes, in the order of the cohort."""
    whole: np.ndarray | None = None
    for block, part in zip(blocks, map(np.asarray, parts), strict=True):
        kind = np.int32 if part.dtype == bool else part.dtype
        whole = np.zeros((size, *part.shape[1:]), kind) if whole is None else whole
        present = block.clients.present
        whole[block.positions[present]] = part[present]
    return np.asarray(processes.total(whole))


# ---- programs

ExchangeInputs = tuple[Hyper, Tree, Array, Number]  # the run's values, server state, the run's key, the round's index

sums_of = compiled(static=["task", "grad_norm", "mesh"])(train_sums)


@compiled(static=["stage"])
def _position_of_one(clients: Clients, key: Array, index: Array, *, stage: str) -> Array:
    return draw_one(clients, stage_key(key, index, stage))


def _exchange(inputs: ExchangeInputs, stage: str, number: int) -> tuple[Exchange, SharedInputs]:
    """An exchange, and the inputs that its clients share, without the data."""
    hyper, server, key, index = inputs
    method = resolve(hyper.method, index)
    exchange: Exchange = getattr(method, stage)()[number]
    key = stage_key(key, index, stage)
    download = decoded(download_of(exchange, method, server, hyper.wire, key))
    return exchange, SharedInputs(method, hyper.wire, download, None, key, index)  # type: ignore[arg-type]


@compiled(static=["stage", "number"])
def downloaded(inputs: ExchangeInputs, *, stage: str, number: int) -> Tree:
    """The download of an exchange, with its messages."""
    hyper, server, key, index = inputs
    method = resolve(hyper.method, index)
    exchange = getattr(method, stage)()[number]
    return download_of(exchange, method, server, hyper.wire, stage_key(key, index, stage))


@compiled(static=["stage", "number", "plan", "layout"])
def read_encoded(
    inputs: ExchangeInputs, parts: Tree, clients: Clients, *, layout: Layout, stage: str, number: int, plan: RunPlan
) -> tuple[Tree, ClientResult]:
    """Decode uploads that have messages: their weighted sum, as places of clients make it, and the result of each.

    ``parts``: the parts of the uploads, arrays [S, ...].
    """
    _, shared = _exchange(inputs, stage, number)
    compressor = compressors_of(shared.method, shared.wire)[1] or Identity()

    def run(parts: Tree, client: Clients) -> tuple[Tree, ClientResult, Counters]:
        id_ = jnp.minimum(client.ids, plan.num_clients - 1)
        upload, accepted = shared.wire.sent(layout.whole(parts, compressor), id_, plan.num_clients, shared.download)
        upload, gathered = ((), upload) if shared.wire.gathers else (upload, ())
        return upload, ClientResult((), accepted, gathered), nothing()

    total, result, _ = contribute(lambda _: run, shared, parts, clients, plan)
    return total, result


def _concluded(
    inputs: ExchangeInputs, response: Response, round_: Round, counts: Array, *, stage: str, number: int, plan: RunPlan
) -> Tree:
    exchange, shared = _exchange(inputs, stage, number)
    round_ = round_._replace(key=server_key(shared.key))
    request = Request(stage, number, exchange, inputs[1], None, None, round_, counts, shared.wire)  # type: ignore[arg-type]
    return conclude(request, response, plan)


_conclude = compiled(static=["stage", "number", "plan"])(_concluded)


@compiled(static=["stage", "number", "plan"])
def _contribute(
    inputs: ExchangeInputs, fed: Federation, memory: Tree, who: tuple[Clients, Array],
    conclude_with: tuple[Round, Array] | None, *, stage: str, number: int, plan: RunPlan,
) -> tuple[Tree, ClientResult, Counters]:  # fmt: skip
    """The sum of a block's uploads, the results of its clients, and the counters.

    ``who``: the clients; and the row of ``memory``, if that is one client that works alone. ``conclude_with``: if the
    block is the whole cohort, what the server knows of the round, and who counts so far; then the server's new state is
    returned instead of the sum.
    """
    clients, row = who
    _, shared = _exchange(inputs, stage, number)
    shared, make = shared._replace(fed=fed), functools.partial(client_program, stage, number, plan, None)
    if row is not None:
        return alone(make, shared, memory, row, clients, plan)
    total, result, counters = contribute(make, shared, memory, clients, plan)
    if conclude_with is not None:
        response = Response(total, result.upload, result.accepted)
        total = _concluded(inputs, response, *conclude_with, stage=stage, number=number, plan=plan)
        result = result._replace(upload=())
    return total, result, counters
