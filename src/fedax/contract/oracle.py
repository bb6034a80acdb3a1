"""Oracle: what a client may ask of its own data."""

import copy
import itertools
import operator
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedax.contract.indices import independent, shuffled
from fedax.contract.types import Array, Number, Tree, Unknown
from fedax.contract.vector import Vector, spelled, zeros_like
from fedax.errors import CodeError, ConfigError, call, place_of, unknown
from fedax.tasks.task import Task

Loss = Callable[[Array, Tree], Array]  # of the outputs and examples of a batch, one number an example

_OF_GRADIENTS = 5  # the fields of OracleCalls that are of gradients and loops
_FOR_METHODS = ("batch", "client", "cond", "full_grad", "full_loss", "grad", "grad_batches", "key", "loss",
                "num_clients", "outputs", "round", "round_key", "steps", "t", "value_and_grad")  # fmt: skip
_BLOCK = 256  # rows that a full gradient takes at a time
_AUGMENT = 0x61756701  # of the keys for augmentation, which are others than those for dropout


class Oracle:
    """One client's data, seen through gradients, losses and outputs, in one exchange of one round.

    Made by the engine; a method receives it in ``client``. Gradients and losses are means over examples. Asking twice
    with the same ``k`` gives the same minibatch, which variance reduction needs; each exchange has its own minibatches.
    A loss or outputs are a forward pass, which counts as a third of a gradient.

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
        unbound: Task | None = None,
    ):
        self.steps, self.round, self.key, self.round_key = steps, round, key, round_key
        self.client, self.num_clients = client, num_clients
        self._task, self._examples, self._unbound = task, examples, unbound or task
        self._offset, self._size, self._max_size = offset, size, max_size
        self._batch_size, self._epochs, self._start = batch_size, epochs, start
        self.asked = OracleCalls()
        if batch_size is None:
            # Gathered here, outside of any loop over local steps.
            self._all = self._rows(jnp.arange(max_size))

    def t(self, k: Number) -> Number:
        """The global step of local step ``k``, for schedules: r·K + k."""
        return self._start + k

    def __getattr__(self, name: str) -> Unknown:
        raise AttributeError(f"an oracle has no {name!r}; {unknown('oracle', name, _FOR_METHODS).hint}")

    def grad(self, y: Vector, k: Number = 0, loss: Loss | None = None) -> Vector:
        """∇ of the mean loss over this client's k-th minibatch of the exchange, k = 0, 1, ….

        With ``batch_size=None`` the minibatch is all of the client's data.

        Args:
            y: the model.
            k: which minibatch.
            loss: another loss, ``loss(outputs, batch) -> [b]``, of the task's outputs for the minibatch; it may close
                over other vectors and other models' :meth:`outputs`. Default: the task's.

        Raises:
            ConfigError: another loss, and the task has no ``outputs``.
            CodeError: a loss that does not return one number an example.
        """
        if loss is not None:
            return self.value_and_grad(y, k, loss)[1]
        self.add(batches=1)
        return self._gradient(y, *self._batch(k), k)

    def value_and_grad(self, y: Vector, k: Number = 0, loss: Loss | None = None) -> tuple[Array, Vector]:
        """The mean loss and its gradient in one pass, counted as one gradient; arguments as of :meth:`grad`."""
        self.add(batches=1)
        batch, weights = self._batch(k)
        value, gradient = jax.value_and_grad(self._objective(batch, weights, k, loss))(y.tree)
        return value, Vector(gradient)

    def loss(self, y: Vector, k: Number = 0, loss: Loss | None = None) -> Array:
        """The mean loss over the k-th minibatch, whose gradient is :meth:`grad`; counted as a forward pass."""
        self.add(forwards=1)
        batch, weights = self._batch(k)
        return self._objective(batch, weights, k, loss)(y.tree)

    def full_loss(self, y: Vector) -> Array:
        """F_i(y) over all of the client's examples; counted as n_i / batch_size forward passes, rounded up."""
        if self._batch_size is None:
            return self.loss(y)
        self.add(forward_passes=1)
        block = min(self._max_size, max(_BLOCK, self._batch_size))

        def add(i: Number, total: Array) -> Array:
            return total + self._objective(*self._block(i, block), i, None)(y.tree)

        zero = jax.eval_shape(add, jnp.int32(0), jnp.zeros(()))
        return jax.lax.fori_loop(0, -(-self._size // block), add, jnp.zeros((), zero.dtype))

    def outputs(self, y: Vector, k: Number = 0) -> Array:
        """What the model answers for the k-th minibatch, [b, …], without the noise of training; a forward pass.

        Raises:
            ConfigError: the task has no ``outputs``.
        """
        self.add(forwards=1)
        return self._outputs(y.tree, self._batch(k)[0])

    def batch(self, k: Number = 0) -> Tree:
        """The examples of the k-th minibatch, leaves [b, …], as the task augments them; nothing is counted.

        With ``batch_size=None`` these are as many rows as the largest client has. Those beyond this client's own are
        copies, which count as 0 in means of the oracle.
        """
        return self._batch(k)[0]

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
            return total + self._gradient(y, *self._batch(k), k)

        return jax.lax.fori_loop(0, b, add, zeros_like(y)) / b

    def full_grad(self, y: Vector) -> Vector:
        """∇F_i(y) over all of the client's examples; counted as n_i / batch_size minibatch gradients, rounded up."""
        if self._batch_size is None:
            return self.grad(y)
        self.add(passes=1)
        block = min(self._max_size, max(_BLOCK, self._batch_size))

        def add(i: Number, total: Vector) -> Vector:
            return total + self._gradient(y, *self._block(i, block), i)

        return jax.lax.fori_loop(0, -(-self._size // block), add, zeros_like(y))

    def cond(self, pred: Array, yes: Callable[[Tree], Tree], no: Callable[[Tree], Tree], operand: Tree) -> Tree:
        """``yes(operand)`` if ``pred`` else ``no(operand)``, counting only the gradients of the branch taken.

        Use it outside of the loop over local steps; ``lax.cond`` would count both branches.
        """
        branches = [CountedFunction(self, yes), CountedFunction(self, no)]
        out = jax.lax.cond(pred, *branches, operand)
        one, other = (branch.calls for branch in branches)
        self.add(*(jnp.where(pred, a, b) for a, b in itertools.zip_longest(one.fields, other.fields, fillvalue=0)))
        return out

    def task_with(self, frozen: Tree) -> Task:
        """The task with other values in place of what is frozen of its model."""
        return self._unbound.bound(frozen)

    def about(self, task: Task) -> "Oracle":
        """This oracle, asked about another task of the same examples; it counts in an ``asked`` of its own."""
        other = copy.copy(self)
        other._task = task
        return other

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

    def _batch(self, k: Number) -> tuple[Tree, Tree]:
        """The k-th minibatch, augmented, and the weights of its examples."""
        batch, weights = self._all if self._batch_size is None else self._minibatch(k)
        return self._augmented(batch, k), weights

    def _block(self, i: Number, rows: int) -> tuple[Tree, Tree]:
        """The i-th block of so many rows, augmented, and their weights."""
        batch, weights = self._rows(i * rows + jnp.arange(rows))
        return self._augmented(batch, i), weights

    def _augmented(self, batch: Tree, k: Number) -> Tree:
        if self._unbound.augment is None:
            return batch
        return self._unbound.augment(batch, jax.random.fold_in(jax.random.fold_in(self.key, k), _AUGMENT))

    def _outputs(self, params: Tree, batch: Tree) -> Array:
        if self._task.outputs is None:
            hint = "the method asks for the model's outputs: give the task outputs=fn(params, batch)"
            raise ConfigError("task.outputs", None, hint)
        return self._task.outputs(params, batch)

    def _objective(self, batch: Tree, weights: Array, k: Number, loss: Loss | None) -> Callable[[Tree], Array]:
        """The weighted sum of the losses of a batch, of a model's parameters."""

        def losses(params: Tree) -> Array:
            if loss is None:
                return self._task.loss(params, batch, jax.random.fold_in(self.key, k))
            found: Array = call("loss", "loss(outputs, batch) -> [b]", loss, self._outputs(params, batch), batch)
            b = jax.tree.leaves(batch)[0].shape[:1]
            if getattr(found, "shape", None) != b:
                what, hint = f"returned {spelled(found)}", f"return one number an example, here {list(b)}"
                raise CodeError("loss", what, hint, place_of(loss))
            return found

        def objective(params: Tree) -> Array:
            each = losses(params)
            return jnp.sum(each * jnp.asarray(weights, each.dtype))

        return objective

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
        forwards, forward_passes, step_forwards, step_forward_passes: the same of forward passes.
    """

    batches: Number = 0
    passes: Number = 0
    step_batches: Number = 0
    step_passes: Number = 0
    loops: Number = 0
    forwards: Number = 0
    forward_passes: Number = 0
    step_forwards: Number = 0
    step_forward_passes: Number = 0

    def gradients(self, steps: Number, size: Number, batch_size: int | None) -> Number:
        """How many minibatch gradients they are, of a client with ``size`` examples that takes so many ``steps``.

        Three forward passes are one gradient, rounded up: a gradient is a forward pass, and a backward pass of twice
        the work.
        """
        per_pass = -(-size // (batch_size or size))
        in_steps = self.step_batches + self.step_passes * per_pass
        gradients = self.batches + self.passes * per_pass + in_steps * steps
        if not self.has_forwards:
            return gradients
        forwards_in_steps = self.step_forwards + self.step_forward_passes * per_pass
        forwards = self.forwards + self.forward_passes * per_pass + forwards_in_steps * steps
        return gradients - (-forwards // 3)

    @property
    def has_forwards(self) -> bool:
        """Whether there may be forward passes."""
        return not all(isinstance(number, int) and number == 0 for number in self[_OF_GRADIENTS:])

    @property
    def fields(self) -> tuple[Number, ...]:
        """The numbers, without those of forward passes where there are none."""
        return tuple(self) if self.has_forwards else tuple(self[:_OF_GRADIENTS])

    @property
    def without_forwards(self) -> "OracleCalls":
        """The gradients and loops alone."""
        return OracleCalls(*self[:_OF_GRADIENTS])

    @property
    def of_step(self) -> "OracleCalls":
        """The calls in one local step as those of each of τ_i steps."""
        return OracleCalls(
            step_batches=self.batches,
            step_passes=self.passes,
            step_forwards=self.forwards,
            step_forward_passes=self.forward_passes,
        )


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
