"""A guard: uploads that are not finite, or absurdly large, do not count."""

import equinox as eqx
import jax
import jax.numpy as jnp

from fedax.contract.settings import Settings
from fedax.contract.types import Array, Number, Tree
from fedax.errors import ConfigError
from fedax.numbers import check_number


class Guard(Settings):
    """Leave out uploads that hold a number that is not finite, or one larger than ``largest``.

    The weights of the clients that are left are scaled so that the estimate keeps its scale, and a client that is left
    out keeps the memory that it had. The history says how many uploads were left out, and whose. A round in which none
    is left changes nothing. Bad values within ``largest`` are not found; see :class:`CoordinateMedian` and the other
    robust averages for those.

    Args:
        largest: the largest absolute value that an upload may hold, > 0.
        stop: end the run after the first round in which an upload is left out.

    Raises:
        ConfigError: ``largest`` is not a positive number, or ``stop`` is neither True nor False.

    Example:
        >>> bool(Guard().accepts({"w": jnp.array([0.1, jnp.nan])})), bool(Guard().accepts(jnp.array([0.1, -2.0])))
        (False, True)
    """

    largest: Number = 1e10
    stop: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        check_number("largest", self.largest, 0, open_low=True)
        if not isinstance(self.stop, bool):
            raise ConfigError("stop", self.stop, "give True or False")

    def accepts(self, upload: Tree) -> Array:
        """Whether one client's upload counts."""
        fine = [jnp.all(jnp.abs(leaf) <= self.largest) for leaf in jax.tree.leaves(upload)]  # NaN is not ≤ anything
        return jnp.all(jnp.stack(fine)) if fine else jnp.ones((), bool)
