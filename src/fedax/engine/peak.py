"""Peak: the memory that a gradient or an evaluation takes, estimated from its traced program. Nothing is compiled."""

import math
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from fedax.contract.types import Tree, Unknown
from fedax.engine.fingerprint import is_program
from fedax.federation.census import Census
from fedax.tasks.task import Task

_TRACED = 32  # examples; of fewer, layers may compute in another way, and what is made of the model counts more


def gradient_bytes(task: Task, params: Tree, census: Census, batch_size: int | None) -> int:
    """Bytes that a client's minibatch gradient takes: the parameters, the minibatch, and the most that is alive then.

    Args:
        task: what is learned.
        params: the parameters, or their shapes and types.
        census: of the clients.
        batch_size: B, or ``None`` for all local data, of which the largest client's count.

    Example:
        >>> import fedax
        >>> census = Census.of(fedax.data.quadratics(clients=3, dimension=100))
        >>> task = fedax.tasks.quadratic(100).trained
        >>> gradient_bytes(task, task.form(), census, 1) > 100 * 100 * 4  # an example is a matrix
        True
    """
    batch = census.examples(census.max_size if batch_size is None else batch_size)
    rows = jax.ShapeDtypeStruct((census.max_size,), jnp.zeros(()).dtype)
    # The arguments have the types that a client gives: JAX then traces the gradient once, for this and for the rounds.
    given = (params, batch, rows if batch_size is None else 1 / batch_size, jax.eval_shape(lambda: jax.random.key(0)))
    traced = jax.make_jaxpr(task.gradient)(*given)
    return sum(map(_bytes, traced.invars)) + _peak(traced)


def example_bytes(f: Callable[[Tree], Tree], examples: Tree) -> int:
    """Bytes that a function of a block of examples takes for each: the most that is alive at once of what it computes.

    Args:
        f: the function.
        examples: arrays [n, ...], or their shapes and types.

    Example:
        >>> example_bytes(lambda x: jnp.sin(x[:, None] * jnp.arange(10.0)[None]).sum(), jnp.ones(50))
        80
    """
    n: int = min(_TRACED, jax.tree.leaves(examples)[0].shape[0])
    kind = jax.dtypes.canonicalize_dtype  # as JAX would have it, without a warning
    some = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((n, *leaf.shape[1:]), kind(leaf.dtype)), examples)
    return _peak(jax.make_jaxpr(f)(some)) // n


def _peak(program: Unknown) -> int:
    """The most bytes that are alive at once of what a program computes, if its operations run in order.

    A loop holds what one pass does. Of branches the largest counts: those of ``platform_dependent`` are such, too.
    """
    last_use = {variable: k for k, each in enumerate(program.eqns) for variable in _variables(each.invars)}
    last_use |= dict.fromkeys(_variables(program.outvars), len(program.eqns))
    alive: dict[Unknown, int] = {}
    most = 0
    for k, equation in enumerate(program.eqns):
        inside = max(map(_peak, _inner(equation)), default=0)
        before = sum(alive.values())
        alive |= {variable: _bytes(variable) for variable in equation.outvars}
        most = max(most, before + inside, sum(alive.values()))
        for variable in {*equation.outvars, *_variables(equation.invars)}:
            if last_use.get(variable, -1) <= k:
                alive.pop(variable, None)
    return most


def _variables(of: Unknown) -> Iterator[Unknown]:
    return (variable for variable in of if not isinstance(variable, Literal))


def _inner(equation: Unknown) -> Iterator[Unknown]:
    """The programs in an operation."""
    for value in equation.params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            if is_program(each):
                yield each


def _bytes(variable: Unknown) -> int:
    form = variable.aval
    return math.prod(form.shape) * form.dtype.itemsize if hasattr(form, "shape") else 0
