"""Weighted sums of uploads: estimates count with the cohort's weights ω, changes of memory with the data's p."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedax.contract.algorithm import Change
from fedax.contract.types import Array, Number, Tree, Unknown
from fedax.contract.vector import norm_of


def is_change(part: Tree) -> bool:
    """Whether a part of an upload is a :class:`fedax.Change`."""
    return isinstance(part, Change)


def by_kind(
    estimate: Callable[[Unknown], Unknown],
    change: Callable[[Unknown], Unknown],
    upload: Tree,
    is_leaf: Callable[[Tree], bool] = lambda part: False,
) -> Tree:
    """``upload`` with one function applied to its estimates, leaf by leaf, and another to its changes."""
    apply = lambda part: jax.tree.map(change if is_change(part) else estimate, part, is_leaf=is_leaf)  # noqa: E731
    return jax.tree.map(apply, upload, is_leaf=lambda part: is_change(part) or is_leaf(part))


def without_marks(upload: Tree) -> Tree:
    """``upload`` with the value of each ``Change`` in its place: what a method's server receives."""
    return jax.tree.map(lambda part: part.value if is_change(part) else part, upload, is_leaf=is_change)


def weighted(upload: Tree, weights: Array, data_weights: Array) -> Tree:
    """ω v of the estimates, p v of the changes; of one client, or of several along the first axis."""
    return by_kind(lambda leaf: scaled(weights, leaf), lambda leaf: scaled(data_weights, leaf), upload)


def scaled(weight: Array, leaf: Array) -> Array:
    """ω v, and 0 where ω is 0: what an empty place computes, or a bad client sends, may not be finite."""
    kind = jnp.promote_types(jnp.result_type(leaf), jnp.float32)  # of a weak type, too: 1.0 is float64 where JAX has it
    weight = along(jnp.asarray(weight, kind), leaf)
    return jnp.where(weight == 0, 0, weight * leaf)


def along(values: Array, leaf: Array) -> Array:
    """One value for each client, in the shape that broadcasts against a leaf with more axes."""
    return values.reshape(values.shape + (1,) * (jnp.ndim(leaf) - values.ndim))


def shortening(norm: Array, most: Number) -> Array:
    """The factor by which a vector of this norm is shortened to one of at most ``most``; 1 where it is short."""
    return jnp.minimum(1, most / jnp.where(norm > 0, norm, 1))


def clipped(upload: Tree, most: Number, by_leaf: bool = False) -> tuple[Tree, Array]:
    """``upload`` shortened to a norm of at most ``most``, zero where it is not finite; and whether it was that short.

    ``by_leaf``: each of its L arrays for itself, to ``most``/√L.

    Example:
        >>> [leaf.tolist() for leaf in clipped((jnp.array([3.0, 4.0]),), 1.0)[0]]
        [[0.6000000238418579, 0.800000011920929]]
    """
    if not (leaves := jax.tree.leaves(upload)):
        return upload, jnp.ones((), bool)
    finite, norm = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves])), norm_of(leaves)

    def cut(leaf: Array) -> Array:
        factor = shortening(norm_of([leaf]), most / math.sqrt(len(leaves))) if by_leaf else shortening(norm, most)
        return leaf * factor.astype(leaf.dtype)

    short = jax.tree.map(cut, upload)
    return jax.tree.map(lambda leaf: jnp.where(finite, leaf, 0), short), finite & (norm <= most)
