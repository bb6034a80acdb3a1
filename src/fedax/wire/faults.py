"""Faults: clients that send wrong uploads, to study the effect."""

import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedax.contract.settings import Settings
from fedax.contract.types import Array, Number, Tree
from fedax.errors import ConfigError
from fedax.numbers import check_count, check_number


class Faults(Settings):
    """Some clients send something else than the method computes.

    Args:
        clients: their numbers; or their share of all N, in (0, 1], of which ⌈share·N⌉ are then drawn by ``seed``.
        sends: a number, which replaces every number of an upload; ``nan`` and ``inf`` are numbers too.
        times: in place of ``sends``: what an upload is multiplied by; −1 turns it around.
        seed: ≥ 0.

    Raises:
        ConfigError: values out of range, or both or neither of ``sends`` and ``times``.

    Example:
        >>> Faults([3], times=-1.0).of(10)
        (3,)
        >>> len(Faults(0.2, sends=math.nan).of(11))
        3
    """

    clients: float | tuple[int, ...] = eqx.field(static=True)
    sends: Number
    times: Number
    seed: int = eqx.field(static=True)

    def __init__(
        self, clients: float | Sequence[int], sends: float | None = None, times: float | None = None, seed: int = 0
    ):
        if isinstance(clients, Sequence | np.ndarray) and not isinstance(clients, str):
            self.clients = tuple(sorted({check_count("clients", id_, 0) for id_ in clients}))
        else:
            self.clients = float(check_number("clients", clients, 0, 1, open_low=True))
        if (sends is None) == (times is None):
            raise ConfigError("sends", (sends, times), "give either sends or times")
        for name, value in (("sends", sends), ("times", times)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise ConfigError(name, value, "give a number")
        self.sends, self.times, self.seed = sends, times, check_count("seed", seed, 0)

    def of(self, num_clients: int) -> tuple[int, ...]:
        """The numbers of the faulty clients among N, in order.

        Raises:
            ConfigError: a client's number is N or more.
        """
        if isinstance(self.clients, tuple):
            if self.clients and self.clients[-1] >= num_clients:
                raise ConfigError("clients", self.clients[-1], f"there are {num_clients} clients, from 0")
            return self.clients
        number = math.ceil(self.clients * num_clients - 1e-9) or 1  # .07 · 100 is a little above 7
        drawn = np.random.default_rng(self.seed).choice(num_clients, number, replace=False)
        return tuple(sorted(drawn.tolist()))

    def send(self, upload: Tree) -> Tree:
        """What a faulty client sends instead of ``upload``."""
        if (number := self.sends) is not None:
            return jax.tree.map(lambda leaf: jnp.full_like(leaf, number), upload)
        return jax.tree.map(lambda leaf: leaf * jnp.asarray(self.times, jnp.result_type(leaf)), upload)

    def applied(self, upload: Tree, client: Array, num_clients: int) -> Tree:
        """What client number ``client`` of N sends: ``upload``, unless the client is faulty."""
        if not (numbers := self.of(num_clients)):  # an empty list, or a share of 0
            return upload
        ids = jnp.asarray(numbers, jnp.int32)
        faulty = ids.at[jnp.searchsorted(ids, client)].get(mode="clip") == client
        return jax.tree.map(lambda bad, good: jnp.where(faulty, bad, good), self.send(upload), upload)
