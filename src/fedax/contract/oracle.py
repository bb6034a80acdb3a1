"""Oracle: what a client may ask of its own data."""

import operator
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedax.contract.indices import independent, shuffled
from fedax.contract.types import Array, Number, Tree, Unknown
from fedax.contract.vector import Vector, zeros_like
from fedax.errors import ConfigError
from fedax.tasks.task import Task

_BLOCK = 256  # rows that a full gradient takes at a time


class Oracle:
    """One client's data, seen through gradients, in one exchange of one round.

    Made by the engine; a method receives it in ``client``. The gradients are means over examples. Asking twice with
    the same ``k`` gives the same minibatch, which variance reduction needs; each exchange has its own minibatches.

    Attributes:
        steps: τ_i, the local steps of this client in this round: a Python int where all clients take the same number,
            else a traced integer.
        round: the round's index r.
        key: a random key of this client, round and exchange.
        round_key: a random key that all clients of the round share (a shared coin).
        client: this client's number i, from 0; traced.
        num_clients: N.
        asked: the gradients and loops that were asked for so far.

    Example:
        >>> def client(self, download, memory, oracle):  # a method's: one step along the gradient of all data
        ...     return -self.lr * oracle.full_grad(download), memory
    """

    def __init__(
        self,
        task: Task,
        examples: Tree,
        *,
        offset: Number,
        size: Number,
        max_size: int,
        batch_size: int | None,
        epochs: bool,
        steps: Number,
        round: Number,
        start: Number,
        key: Array,
        round_key: Array,
        client: Number,
        num_clients: int,
    ):
        self.steps, self.round, self.key, self.round_key = steps, round, key, round_key
        self.client, self.num_clients = client, num_clients
        self._task, self._examples = task, examples
        self._offset, self._size, self._max_size = offset, size, max_size
        self._batch_size, self._epochs, self._start = batch_size, epochs, start
        self.asked = OracleCalls()
        if batch_size is None:
            # Gathered here, outside of any loop over local steps.
            self._all = self._rows(jnp.arange(max_size))

    def t(self, k: Number) -> Number:
        """The global step of local step ``k``, for schedules: r·K + k."""
        return self._start + k

    def grad(self, y: Vector, k: Number = 0) -> Vector:
        """∇ of the mean loss over this client's k-th minibatch of the exchange, k = 0, 1, ….

        With ``batch_size=None`` the minibatch is all of the client's data.
        """
        self.add(batches=1)
        if self._batch_size is None:
            return self._gradient(y, *self._all, k)
        return self._gradient(y, *self._minibatch(k), k)

    def grad_batches(self, y: Vector, b: Number) -> Vector:
        """The mean of ``grad(y, k)`` over the minibatches k = 0 … b − 1; ``b`` is a Python int ≥ 1, or ``steps``."""
        if self._batch_size is None:
            return self.grad(y)
        if isinstance(b, int):
            self.add(batches=b)
        elif b is self.steps:
            self.add(step_batches=1)
        else:
            raise TypeError("b is a Python int, or the oracle's steps")

        def add(k: Number, total: Vector) -> Vector:
            return total + self._gradient(y, *self._minibatch(k), k)

        mean: Vector = jax.lax.fori_loop(0, b, add, zeros_like(y)) / b
        return mean

    def full_grad(self, y: Vector) -> Vector:
        """∇F_i(y) over all of the client's examples; counted as n_i / batch_size minibatch gradients, rounded up."""
        if self._batch_size is None:
            return self.grad(y)
        self.add(passes=1)
        block = min(self._max_size, max(_BLOCK, self._batch_size))

        def add(i: Number, total: Vector) -> Vector:
            return total + self._gradient(y, *self._rows(i * block + jnp.arange(block)), i)

        total: Vector = jax.lax.fori_loop(0, -(-self._size // block), add, zeros_like(y))
        return total

    def cond(self, pred: Array, yes: Callable[[Tree], Tree], no: Callable[[Tree], Tree], operand: Tree) -> Tree:
        """``yes(operand)`` if ``pred`` else ``no(operand)``, counting only the gradients of the branch taken.

        Use it outside of the loop over local steps; ``lax.cond`` would count both branches.
        """
        branches = [CountedFunction(self, yes), CountedFunction(self, no)]
        out = jax.lax.cond(pred, *branches, operand)
        taken = (jnp.where(pred, a, b) for a, b in zip(branches[0].calls, branches[1].calls, strict=True))
        self.add(*taken)
        return out

    def equal_steps(self, field: str, hint: str) -> int:
        """τ, where all clients take the same number of steps in all rounds.

        Raises:
            ConfigError: about ``field``: they do not.
        """
        if not isinstance(self.steps, int):
            raise ConfigError(field, "unequal local steps", hint)
        return self.steps

    @property
    def gradients(self) -> Number:
        """Minibatch gradients so far; one pass over all data counts as n_i / batch_size of them, rounded up."""
        return self.asked.gradients(self.steps, self._size, self._batch_size)

    @property
    def local_steps(self) -> Number:
        """Local steps taken so far."""
        return self.asked.loops * self.steps

    def add(self, *more: Number, **named: Number) -> None:
        """Count more calls, by the fields of :class:`OracleCalls`."""
        self.asked = OracleCalls(*map(operator.add, self.asked, OracleCalls(*more, **named)))

    def _minibatch(self, k: Number) -> tuple[Tree, Tree]:
        """The k-th batch: B independent draws, or the next B of an endless stream of permutations, one an epoch."""
        assert self._batch_size is not None
        position = k * self._batch_size + jnp.arange(self._batch_size)
        if self._epochs:
            epoch, place = position // self._size, position % self._size
            rows = shuffled(place, self._size, self.key, epoch, max_size=self._max_size)
        else:
            rows = independent(position, self._size, self.key)
        return jax.tree.map(lambda leaf: leaf[self._offset + rows], self._examples), 1 / self._batch_size

    def _rows(self, rows: jax.Array) -> tuple[Tree, Tree]:
        """These rows of the client's data, with weight 1/n_i where there is such a row and 0 where there is none."""
        there = rows < self._size
        batch = jax.tree.map(lambda leaf: leaf[self._offset + jnp.where(there, rows, 0)], self._examples)
        return batch, there / jnp.asarray(self._size, float)  # else 32-bit whole numbers divide to float32

    def _gradient(self, y: Vector, batch: Tree, weights: Array, k: Number) -> Vector:
        return Vector(self._task.gradient(y.tree, batch, weights, jax.random.fold_in(self.key, k)))


class OracleCalls(NamedTuple):
    """How often a client called its oracle: Python integers while tracing, unless a traced predicate decides.

    Attributes:
        batches: minibatch gradients.
        passes: gradients over all of the client's data.
        step_batches, step_passes: those of one local step, to be multiplied by τ_i.
        loops: loops over local steps.
    """

    batches: Number = 0
    passes: Number = 0
    step_batches: Number = 0
    step_passes: Number = 0
    loops: Number = 0

    def gradients(self, steps: Number, size: Number, batch_size: int | None) -> Number:
        """How many minibatch gradients they are, of a client with ``size`` examples that takes so many ``steps``."""
        per_pass = -(-size // (batch_size or size))
        in_steps = self.step_batches + self.step_passes * per_pass
        return self.batches + self.passes * per_pass + in_steps * steps


class CountedFunction:
    """The body of a loop or a branch; it counts the oracle calls of one pass, however often JAX traces it."""

    def __init__(self, oracle: Oracle, function: Callable[..., Tree]):
        self._oracle, self._function, self.calls = oracle, function, OracleCalls()

    def __call__(self, *args: Unknown) -> Tree:
        before, self._oracle.asked = self._oracle.asked, OracleCalls()
        out = self._function(*args)
        self.calls, self._oracle.asked = self._oracle.asked, before
        if any(isinstance(number, jax.core.Tracer) for number in self.calls):
            raise TypeError("oracle.cond is asked outside of loops and other branches: hoist it out")
        return out
