"""What a run with personal models keeps beside: each client's last turn, and whose held-out examples are whose."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from fedax.contract.algorithm import Exchange, Layer
from fedax.contract.types import Array, Tree, Unknown
from fedax.contract.vector import Vector
from fedax.data.federated import FederatedData

_NEVER = -1  # the last turn of a client that never took part


class Turned(NamedTuple):
    """A client's memory: the method's own, and the round of the client's last turn, −1 before the first."""

    own: Tree
    last: Array


class LastTurn(Layer):
    """A method with personal models, whose clients also remember the round of their last turn.

    What becomes of that number is what becomes of the memory: it stays where an upload is left out, and a checkpoint
    has it.
    """

    def init_client(self, x: Vector) -> Turned:
        return Turned(self.inner.init_client(x), jnp.int32(_NEVER))

    def own_memory(self, memory: Turned) -> Tree:
        return memory.own

    def _around(self, stage: str, number: int, exchange: Exchange) -> Exchange:
        def client(download: Tree, memory: Turned, oracle: Unknown) -> tuple[Tree, Turned]:
            upload, own = exchange.client(download, memory.own, oracle)
            return upload, Turned(own, memory.last if stage == "warmup" else jnp.asarray(oracle.round, jnp.int32))

        return exchange._replace(client=client)


class OwnRows(NamedTuple):
    """Which held-out examples are whose.

    Attributes:
        offsets, sizes: [N] where in the pool a client's are, and how many; 0 of a client that has none.
    """

    offsets: np.ndarray
    sizes: np.ndarray


class PersonalPlan(NamedTuple):
    """How the personal models of a run are evaluated.

    Attributes:
        turns: how many turns a client that never took part takes first, for its own model alone; ``None``: own models
            are made of the shared one whenever they are used, without a turn.
        rows: part of the held-out data -> which examples are whose; ``None`` of a part that is at the nodes.
    """

    turns: int | None
    rows: Mapping[str, OwnRows | None]


def own_rows(held: Tree, names: Sequence[str]) -> OwnRows | None:
    """Which held-out examples are whose; ``None``: none belongs to any of the clients of these names."""
    if not isinstance(held, FederatedData):
        return None
    places = {name: i for i, name in enumerate(names)}
    whose = [places.get(held.name(i), -1) for i in range(held.num_clients)]
    known = [i for i, client in enumerate(whose) if client >= 0]
    if not known:
        return None
    offsets, sizes = np.zeros(len(names), np.int32), np.zeros(len(names), np.int32)
    at = [whose[i] for i in known]
    offsets[at], sizes[at] = held.offsets[known], held.sizes[known]
    return OwnRows(offsets, sizes)
