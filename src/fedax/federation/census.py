"""Census: what a server knows of its clients without their data."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import jax
import numpy as np

from fedax.contract.types import Tree, Unknown


class Census(NamedTuple):
    """How many examples each client has, what it counts, and what an example looks like: all that a plan needs.

    Attributes:
        sizes: [N] n_i ≥ 1.
        weights: [N] p_i; they sum to 1.
        example: shapes and types of one example, a pytree of ``jax.ShapeDtypeStruct``.
        names: [N] what the clients are called; empty where they are numbered.
        digests: [N] of each real client's examples, as text that changes where they do.
        held: part of the held-out data, "val" or "test" -> how many examples of it real clients have, all together.
        transform: what made examples of their tables, a ``fedax.data.Transform``; ``None`` where they were no tables.
        overview: the columns of their tables by client, a ``fedax.data.Overview``; ``None`` where it is not known here.

    Example:
        >>> import fedax
        >>> data = fedax.FederatedData({"x": np.zeros((3, 2), np.float32)}, sizes=[1, 2])
        >>> census = Census.of(data)
        >>> census.num_clients, census.max_size, census.example["x"].shape
        (2, 2, (2,))
    """

    sizes: np.ndarray
    weights: np.ndarray
    example: Tree
    names: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    held: Mapping[str, int] = MappingProxyType({})
    transform: Unknown = None
    overview: Unknown = None

    @classmethod
    def of(cls, data: Tree) -> "Census":
        """The census of data that are here, a :class:`fedax.FederatedData`."""
        form = lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], jax.dtypes.canonicalize_dtype(leaf.dtype))  # noqa: E731
        examples = jax.tree.map(form, data.examples)
        return cls(
            data.sizes, data.weights, examples, data.names or (), transform=data.transform, overview=data.overview
        )

    @property
    def num_clients(self) -> int:
        """N."""
        return len(self.sizes)

    @property
    def max_size(self) -> int:
        """The largest n_i."""
        return int(self.sizes.max())

    def examples(self, number: int) -> Tree:
        """The form of ``number`` examples."""
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((number, *leaf.shape), leaf.dtype), self.example)
