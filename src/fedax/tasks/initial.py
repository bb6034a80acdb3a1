"""Initial parameters: a model declares the distribution of each array, and one draw fills them all.

One draw, because XLA compiles a generator for each: a network of twenty layers would take ten seconds to start.
"""

import dataclasses
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from fedax.numbers import check_room


@dataclasses.dataclass(frozen=True)
class UniformInit:
    """An array of this shape, to be drawn uniformly from ±bound."""

    shape: tuple[int, ...]
    bound: float


def he(*shape: int) -> UniformInit:
    """Weights [..., i, o] of a layer before a ReLU: variance 2/fan_in (He et al. 2015)."""
    return UniformInit(shape, math.sqrt(6 / math.prod(shape[:-1])))


def lecun(*shape: int) -> UniformInit:
    """Weights [..., i, o] before a ReLU and 2×2 max-pooling: variance 1/fan_in (LeCun et al. 1998).

    A ReLU halves the second moment, and the largest of four makes about twice as much of it again. So the layer passes
    on what comes in, whereas :func:`he`, which makes up for the ReLU alone, would double it.
    """
    return UniformInit(shape, math.sqrt(3 / math.prod(shape[:-1])))


def glorot(i: int, o: int) -> UniformInit:
    """Weights of a recurrent layer: variance 2/(i + o) (Glorot and Bengio 2010)."""
    return UniformInit((i, o), math.sqrt(6 / (i + o)))


def readout(i: int, o: int) -> UniformInit:
    """Weights of a last layer: ±1/√i, PyTorch's rule; small, so that a fresh model is unsure."""
    return UniformInit((i, o), 1 / math.sqrt(i))


def draw(key: Any, plan: PyTree[Any]) -> PyTree[Any]:
    """``plan`` with each :class:`UniformInit` drawn, in the default float dtype; its other leaves stay.

    Args:
        key: a JAX random key.
        plan: pytree of UniformInit and arrays.

    Example:
        >>> params = draw(jax.random.key(0), {"w": he(24, 2), "b": 0.0})
        >>> params["w"].shape, bool((abs(params["w"]) <= 0.5).all()), params["b"]
        ((24, 2), True, 0.0)
    """
    leaves, tree = jax.tree.flatten(plan)
    drawn = [leaf for leaf in leaves if isinstance(leaf, UniformInit)]
    ends = list(itertools.accumulate(math.prod(leaf.shape) for leaf in drawn))
    check_room(8 * ends[-1], parameters=ends[-1])
    values = jax.random.uniform(key, (ends[-1],), minval=-1.0)
    pieces = iter(jnp.split(values, ends[:-1]))
    filled = [
        leaf.bound * next(pieces).reshape(leaf.shape) if isinstance(leaf, UniformInit) else leaf for leaf in leaves
    ]
    return jax.tree.unflatten(tree, filled)
