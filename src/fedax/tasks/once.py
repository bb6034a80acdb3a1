"""One pass through the network for all that is measured of a batch.

A loss and a metric are functions of their own, and each calls the network. Inside of a loop XLA does not see that two
calls are the same where the network has convolutions: evaluation took twice as long as it had to.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import jax

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
