"""Blocks of clients and what moves to the device and back with them: examples, and rows of client memory."""

import itertools
from collections.abc import Iterator

import jax
import numpy as np

from fedax.contract.types import Array, Tree
from fedax.data.federated import FederatedData
from fedax.engine.clients import ClientResult
from fedax.engine.loop import Clients, Counters, Federation
from fedax.engine.memory import ClientMemory

MOST_BYTES = 2**28  # the most bytes of client memory, or of examples, that go to the device at a time


class Block:
    """Some clients of a round that go to the device together.

    Attributes:
        positions: [b] their positions among the round's clients; −1 at an empty place.
        clients: the clients, as at the beginning of the round.
        examples: their examples from when they are fetched until the block runs; unless all are on the device.
        memory: their memory, while it cannot be in the store: between two exchanges it has another form, or it is not
            yet certain that the round counts.
        result: their results in their last exchange.
    """

    def __init__(self, positions: np.ndarray, clients: Clients):
        self.positions, self.clients = positions, clients
        self.examples: Tree = None
        self.memory: Tree = None
        self.result = ClientResult((), (), ())

    def now(self, clients: Clients, sliced: bool) -> Clients:
        """The block's clients, with the weights in ``clients``; ``sliced``: with offsets into the block's examples."""
        present = self.positions >= 0
        weights, data_weights = (np.where(present, leaf[self.positions], 0) for leaf in clients[1:3])
        block_clients = self.clients._replace(weights=weights, data_weights=data_weights)
        if not sliced:
            return block_clients
        sizes = np.where(block_clients.present, block_clients.sizes, 0)
        starts = np.cumsum(sizes) - sizes
        return block_clients._replace(offsets=np.where(block_clients.present, starts, 0).astype(np.int32))


class Examples:
    """The examples of this process's clients: on the device, or fetched by block."""

    def __init__(self, data: FederatedData | None, fed: Federation, own: slice):
        self.data, self.fed, self.own, self.streamed = data, fed, own, data is not None
        self.bytes_a_client = _example_bytes(data) * float(np.mean(np.asarray(fed.sizes)))
        self._room = 0  # examples of the largest block so far: another size would be another program

    def fetch(self, block: Block) -> None:
        """Fetch a block's examples, unless all are on the device, or they are here already."""
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
        block.examples = None  # else a round would gather all data
        return fed

    def pieces(self, weights: Array | None = None) -> Iterator[Federation]:
        """The data of this process's clients, for evaluation: at once if on the device, else piece by piece.

        ``weights``: other weights for these clients.
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
            # Empty places have padding rows, and weight 0.
            fill = np.full(clients - (b - a) + 1, room)
            yield Federation(
                examples,
                np.concatenate([data.offsets[a:b] - data.offsets[a], fill]).astype(np.int32),
                np.concatenate([data.sizes[a:b], np.ones_like(fill)]).astype(np.int32),
                np.concatenate([weights[a - own.start : b - own.start], np.zeros(len(fill))]).astype(fed.weights.dtype),
                fed.frozen,
            )


class MemoryRows:
    """Rows of client memory in transfer: those of one block read ahead, those of the running one still to be written.

    Attributes:
        store: the memory of all clients.
        hold: whether rows stay with their blocks until the end of the round.
        done: local steps and gradients of all blocks that were written.
    """

    def __init__(self, store: ClientMemory):
        self.store, self.hold, self.done = store, False, [0, 0]
        self._running: tuple[Block, Counters] | None = None
        self._ready: tuple[Block, Tree, np.ndarray] | None = None

    def read(self, block: Block) -> None:
        """Read a block's rows; those that the running block will change have to be read again."""
        ids = block.clients.ids
        stale = np.zeros(len(ids), bool)
        if self._running is not None and jax.tree.leaves(self._running[0].result.memory):
            working = self._running[0].clients
            stale = np.isin(ids, working.ids[working.present])
        self._ready = block, self.store[np.minimum(ids, len(self.store) - 1)], stale

    def take(self, block: Block) -> Tree:
        """A block's current rows."""
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

    def running(self, block: Block, done: Counters) -> None:
        """Note the block that now runs; write the rows of the one before."""
        self.write()
        self._running = block, done

    def write(self) -> None:
        """Wait for the running block, and write its rows, or keep them with it."""
        if self._running is None:
            return
        (block, done), self._running = self._running, None
        memory = block.result.memory
        if self.hold or not self.store.fits(memory):
            block.memory = jax.tree.map(np.asarray, memory)
        else:
            block.memory = memory
            self.put(block)
        self.done[0] += int(done.local_steps)
        self.done[1] += int(done.gradients)

    def release(self, blocks: list[Block], counts: np.ndarray) -> None:
        """Write the rows that were held back, for the clients that count; ``counts``: [S] of the round."""
        self.write()
        for block in blocks:
            self.put(block, counts)

    def finish(self) -> list[int]:
        """Write all rows and drop those read ahead; returns the work done since the last call."""
        self.write()
        done, self.done, self._ready = self.done, [0, 0], None
        return done

    def put(self, block: Block, counts: np.ndarray | None = None) -> None:
        """Write a block's rows for the clients that count, [S] of the round; default: those that were accepted."""
        memory, block.memory = block.memory, None
        kept = block.clients.present
        if counts is not None:
            kept = kept & counts[block.positions]
        elif not isinstance(accepted := block.result.accepted, tuple):
            kept = kept & np.asarray(accepted)
        if memory is not None and self.store.row_bytes:
            rows = memory if kept.all() else jax.tree.map(lambda leaf: np.asarray(leaf)[kept], memory)
            self.store.put(np.asarray(block.clients.ids)[kept], rows)


def _example_bytes(data: FederatedData | None) -> int:
    return 0 if data is None else sum(leaf[:1].nbytes for leaf in jax.tree.leaves(data.examples))


def _rounded_up(n: int) -> int:
    """``n`` rounded up to three binary digits."""
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
