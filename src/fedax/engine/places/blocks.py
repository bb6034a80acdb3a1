"""Blocks of clients on their way to the device and back: their examples, and the rows of their memory."""

import itertools
from collections.abc import Iterator

import jax
import numpy as np

from fedax.contract.types import Array, Tree
from fedax.data.federated import FederatedData
from fedax.engine.clients import ClientResult
from fedax.engine.loop import Clients, Federation, Tally
from fedax.engine.memory import ClientMemory

MOST_BYTES = 2**28  # of client memory, or of examples, that go to the device at a time


class Block:
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
        self.answer = ClientResult((), (), ())

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


class Examples:
    """The examples of this process's clients: on the device, or fetched by block."""

    def __init__(self, data: FederatedData | None, fed: Federation, own: slice):
        self.data, self.fed, self.own, self.streamed = data, fed, own, data is not None
        self.bytes_a_client = _example_bytes(data) * float(np.mean(np.asarray(fed.sizes)))
        self._room = 0  # examples of the largest block so far: another number is another program

    def fetch(self, block: Block) -> None:
        """Fetch a block's examples, unless all are on the device, or these are here."""
        data, clients = self.data, block.clients
        if data is None or block.examples is not None:
            return
        sizes = np.where(clients.present, clients.sizes, 0)
        ends = np.cumsum(sizes)
        first = data.offsets[np.minimum(clients.ids, data.num_clients - 1)]
        rows = np.arange(ends[-1]) + np.repeat(first - (ends - sizes), sizes)
        self._room = max(self._room, _rounded_up(len(rows)))
        block.examples = jax.tree.map(lambda leaf: _rows(leaf, rows, self._room), data.examples)

    def take(self, block: Block) -> Federation:
        """The data for a block's work."""
        self.fetch(block)
        fed = self.fed if block.examples is None else self.fed._replace(examples=block.examples)
        block.examples = None  # or a round would gather all data
        return fed

    def pieces(self, weights: Array = None) -> Iterator[Federation]:
        """The data of this process's clients, for evaluation: on the device as they are, or piece by piece.

        ``weights``: of these clients, in the place of their own.
        """
        fed, data, own = self.fed, self.data, self.own
        if data is None:
            weights = fed.weights[own] if weights is None else weights
            yield fed._replace(offsets=fed.offsets[own], sizes=fed.sizes[own], weights=weights)
            return
        weights = data.weights[own] if weights is None else weights
        most = max(1, MOST_BYTES // _example_bytes(data))
        ends = data.offsets + data.sizes
        cuts = [own.start]
        while cuts[-1] < own.stop:
            last = int(np.searchsorted(ends, data.offsets[cuts[-1]] + most, side="right"))
            cuts.append(min(max(last, cuts[-1] + 1), own.stop))
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
                np.concatenate([weights[a - own.start : b - own.start], np.zeros(len(fill))]).astype(fed.weights.dtype),
                fed.frozen,
            )


class Rows:
    """Rows of client memory on their way: one block's read ahead, another's still at work and to be written.

    Attributes:
        store: where all rows are.
        hold: whether rows are kept with their blocks until the end of the round.
        done: local steps and gradients of all blocks that were written.
    """

    def __init__(self, store: ClientMemory):
        self.store, self.hold, self.done = store, False, [0, 0]
        self._at_work: tuple[Block, Tally] | None = None
        self._ready: tuple[Block, Tree, np.ndarray] | None = None

    def read(self, block: Block) -> None:
        """Read a block's rows; those that the block at work will change have to be read again."""
        ids = block.clients.ids
        stale = np.zeros(len(ids), bool)
        if self._at_work is not None and jax.tree.leaves(self._at_work[0].answer.memory):
            working = self._at_work[0].clients
            stale = np.isin(ids, working.ids[working.present])
        self._ready = block, self.store[np.minimum(ids, len(self.store) - 1)], stale

    def take(self, block: Block) -> Tree:
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

    def at_work(self, block: Block, done: Tally) -> None:
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

    def release(self, blocks: list[Block], counts: np.ndarray) -> None:
        """Write the rows that were held back: of the clients that count, [S] of the round."""
        self.write()
        for block in blocks:
            self.put(block, counts)

    def finish(self) -> list[int]:
        """Write all, and forget what was read ahead; what was done since the last time."""
        self.write()
        done, self.done, self._ready = self.done, [0, 0], None
        return done

    def put(self, block: Block, counts: np.ndarray | None = None) -> None:
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
