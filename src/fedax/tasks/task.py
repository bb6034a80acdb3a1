"""Task: what is learned. A model's initial parameters, a loss per example, and metrics."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Params = Any
Examples = Any


@dataclass(frozen=True, eq=False)
class Task:
    """What the clients learn together: F_i(x) = mean of ``loss`` over client i's examples.

    Any JAX model fits: Equinox, Flax, a plain function. A task compares by identity, so make it once and pass the
    same object to every run: JAX then compiles once.

    Args:
        init: ``init(key) -> params``, a pytree of floating-point arrays.
        loss: ``loss(params, batch, key) -> [b]``, one loss per example of the batch (a pytree of arrays [b, ...]).
            ``key`` is a JAX random key for dropout and the like; it is ``None`` in evaluation.
        metrics: name -> ``fn(params, batch) -> [b]``, one value per example; their mean over held-out data is
            reported. Names are free, e.g. ``accuracy``.
        check: ``check(examples)`` raises :class:`fedax.errors.DataError` for examples that do not fit the task
            (NumPy arrays, before anything is compiled).
        name: for reports.

    Example:
        >>> import jax.numpy as jnp
        >>> task = Task(init=lambda key: jnp.zeros(3), loss=lambda w, batch, key: (batch["x"] @ w - batch["y"]) ** 2)
        >>> task.loss(jnp.zeros(3), {"x": jnp.ones((2, 3)), "y": jnp.array([1.0, 2.0])}, None).tolist()
        [1.0, 4.0]
    """

    init: Callable[[Any], Params]
    loss: Callable[[Params, Examples, Any], Any]
    metrics: Mapping[str, Callable[[Params, Examples], Any]] = field(default_factory=dict)
    check: Callable[[Examples], None] | None = None
    name: str = "task"
