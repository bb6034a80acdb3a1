"""The losses of the zoo: cross-entropy and accuracy of each example, and the l2 term."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Integer


def cross_entropy(logits: Float[Array, "*b c"], y: Integer[Array, "*b"]) -> Float[Array, "*b"]:
    """−log softmax(logits)[y], of labels from 0 to c − 1.

    Example:
        >>> print(cross_entropy(jnp.log(jnp.array([[1.0, 3.0]])), jnp.array([1])).round(4))
        [0.2877]
    """
    below = logits - lax.stop_gradient(logits.max(axis=-1, keepdims=True))
    total = lax.platform_dependent(below, cpu=_exp_as_one_row, default=jnp.exp).sum(axis=-1)
    of_label = jnp.where(jax.nn.one_hot(y, logits.shape[-1], dtype=bool), below, 0).sum(axis=-1)
    return jnp.log(total) - of_label


def _exp_as_one_row(x: Array) -> Array:
    # On a CPU, XLA would take e to the power of ten scores, an example after the other, number by number.
    return jnp.exp(lax.optimization_barrier(x.reshape(-1))).reshape(x.shape)


def correct(logits: Float[Array, "*b c"], y: Integer[Array, "*b"]) -> Float[Array, "*b"]:
    """1 where the highest score is the label's, else 0; the mean over examples is the accuracy.

    Example:
        >>> correct(jnp.array([[0.0, 1.0], [1.0, 0.0]]), jnp.array([1, 1])).tolist()
        [1.0, 0.0]
    """
    return (jnp.argmax(logits, axis=-1) == y).astype(logits.dtype)


def ridge(params: Any, l2: float | int) -> Any:
    """(l2/2)‖params‖², over all leaves.

    Each example's loss holds it whole, so that F_i, the mean over client i's examples, holds it once, and its
    gradient is ``l2 * params`` (weight decay). The number 0 where l2 = 0: nothing is computed.

    Example:
        >>> print(ridge({"w": jnp.array([1.0, 2.0]), "b": jnp.array(2.0)}, l2=0.5))
        2.25
    """
    # The sum is float32 or wider whatever the parameters are.
    wide = [leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)) for leaf in jax.tree.leaves(params)] if l2 else []
    return 0.5 * l2 * sum(jnp.vdot(leaf, leaf) for leaf in wide) if l2 else 0.0
