"""The losses of the zoo: cross-entropy and accuracy of each example, and the l2 term; and one pass for all of them.

A loss and a metric are functions of their own, and each calls the network. Inside of a loop XLA does not see that two
calls are the same where the network has convolutions: evaluation took twice as long as it had to.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
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


_results: ContextVar[dict[Any, Any] | None] = ContextVar("results", default=None)


@contextlib.contextmanager
def each_once() -> Iterator[None]:
    """While a program is traced: functions that :func:`once` made are traced once for the same arrays.

    Example:
        >>> calls = []
        >>> network = once(lambda params, x: calls.append("call") or params * x)
        >>> params, x = jax.numpy.ones(2), jax.numpy.ones(2)
        >>> with each_once():
        ...     same = network(params, x) is network(params, x)
        >>> same, len(calls)
        (True, 1)
    """
    token = _results.set({})
    try:
        yield
    finally:
        _results.reset(token)


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of pytrees, which inside of :func:`each_once` returns what it has returned for the same leaves."""

    @functools.wraps(function)
    def called(*args: Any) -> Any:
        return _result(function, args)

    return called


def _result(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    # Not inside of ``once``: what is made there is pickled with all that it names, when a task travels.
    results = _results.get()
    if results is None:
        return function(*args)
    leaves, form = jax.tree.flatten(args)
    key = (function, form, *map(id, leaves))
    if key not in results:
        results[key] = leaves, function(*args)  # the leaves too: an id is free for another array when they are gone
    return results[key][1]
