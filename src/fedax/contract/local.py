"""The local loop, the local solvers, and the methods that take their steps by one.

A *linear* solver changes the model by Δ_i = −η Σ_k a_i[k] g_{i,k} with an accumulation vector a_i that depends on the
solver and on τ_i alone (Wang et al. 2020, section 4.1). Its length ‖a_i‖₁ is found here by running the solver itself
on the gradient 1, so that it is right for every combination of options.
"""

import abc
import inspect
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedax.contract.algorithm import Algorithm, Round
from fedax.contract.oracle import CountedFunction, Oracle
from fedax.contract.regularizers import Regularizer
from fedax.contract.schedule import Schedule, Stepwise, resolve
from fedax.contract.settings import Settings
from fedax.contract.types import Number, Tree, Unknown
from fedax.contract.vector import Vector, zeros_like
from fedax.errors import ConfigError
from fedax.numbers import check_number

IN_SOLVER = "the solver is given as an object; set it there"


def local_steps(step: Callable[[Tree, Tree], Tree], start: Tree, oracle: Oracle) -> Tree:
    """Run ``state = step(state, k)`` for k = 0 … τ_i − 1 and return the last state.

    Args:
        step: one local step; ``state`` is any pytree of Vectors and arrays that keeps its structure and dtypes.
        start: the state before step 0, usually the server's model.
        oracle: gives τ_i, and counts the gradients that ``step`` asks of it.

    Raises:
        TypeError: a step that runs local steps itself.

    Example:
        >>> def client(self, download, memory, oracle):  # a method's: SGD
        ...     y = local_steps(lambda y, k: y - self.lr * oracle.grad(y, k), download, oracle)
        ...     return y - download, memory
    """
    body = CountedFunction(oracle, step)
    end = _repeat(body, start, oracle.steps)
    if body.calls.loops:
        raise TypeError("a local step runs no loop over local steps itself")
    oracle.add(*body.calls.of_step._replace(loops=1))
    return end


def phases(phase: Callable[[Tree, Tree], Tree], start: Tree, number: Number, oracle: Oracle) -> Tree:
    """Run ``state = phase(state, j)`` for j = 0 … number − 1 and return the last state.

    Args:
        phase: local work that may hold whole loops over local steps; see :func:`local_steps` for ``state``.
        start: the state before phase 0.
        number: how many; a Python int, or drawn from ``oracle.round_key`` for all clients of the round alike.
        oracle: counts the gradients that the phases ask of it.
    """
    body = CountedFunction(oracle, phase)
    end = _repeat(body, start, number)
    oracle.add(*(number * calls for calls in body.calls.fields))
    return end


class Solver(Settings):
    """A client's optimizer. It starts anew in every round.

    Raises:
        ConfigError: hyper-parameters that cannot be used.

    Example:
        >>> class Sign(Solver):  # signSGD: y ← y − η sign(g)
        ...     lr: float
        ...
        ...     def init(self, x):
        ...         return ()
        ...
        ...     def step(self, y, buffer, g, k, x):
        ...         return y - self.lr * g.map(jnp.sign), buffer
        ...
        ...     def rate(self):
        ...         return self.lr
        >>> float(Sign(0.1).norm(3).round(4))
        3.0
    """

    def __check_init__(self) -> None:
        self.validate()

    @abc.abstractmethod
    def init(self, x: Vector) -> Tree:
        """The solver's buffers before step 0."""

    @abc.abstractmethod
    def step(self, y: Vector, buffer: Tree, g: Vector, k: Number, x: Vector) -> tuple[Vector, Tree]:
        """Local step k from ``y`` with gradient ``g``; ``x`` is where the round began. ``-> (y, buffer)``."""

    def rate(self) -> Number:
        """η, the local learning rate."""
        raise NotImplementedError

    def validate(self) -> None:
        """Raise :class:`fedax.errors.ConfigError` for hyper-parameters that cannot be used."""

    def run(self, x: Vector, oracle: Oracle, correction: Vector | None = None) -> Vector:
        """The local model after τ_i steps from ``x``; ``correction`` is added to every gradient."""

        def step(state: Tree, k: Number) -> Tree:
            y, buffer = state
            g = oracle.grad(y, k)
            return self.step(y, buffer, g if correction is None else g + correction, k, x)

        end: tuple[Vector, Tree] = local_steps(step, (x, self.init(x)), oracle)
        return end[0]

    def norm(self, steps: Number) -> Number:
        """‖a_i‖₁ of ``steps`` local steps (a number or a traced integer): −Δ/η for the constant gradient 1.

        Exact for linear solvers only; :func:`check_linear` tells them from the others.
        """
        return _response(self, steps) / -jnp.asarray(self.rate(), float)


class SGD(Solver):
    """Stochastic gradient descent with the options that federated learning uses, in any combination.

    d = u or g + ρu, with u ← ρu + g;   y ← y − η (δᵏ d + μ (y − x)).

    Args:
        lr: η > 0, the local learning rate; a number or a schedule of the round.
        momentum: ρ in [0, 1); the buffer starts at zero in every round. ``None`` is off.
        nesterov: Nesterov's form of the momentum, d = g + ρu, as in PyTorch.
        prox: μ ≥ 0, pull towards the round's starting point x (FedProx); outside of the momentum buffer. Its effect
            on the accumulation vector has α = ημ, which has to be in [0, 1]. ``None`` is off.
        decay: δ in (0, 1], factor of the learning rate per local step. ``None`` is off.
        regularizer: ψ and X of a proximal step after each local step, y ← argmin_X ηψ(y) + ½‖y − u‖²: projected or
            proximal SGD, which is not linear. ``None`` is off.

    Raises:
        ConfigError: numbers out of range, Nesterov's form without a momentum, lr · prox above 1.

    Source: Wang et al. 2020, section 4.1 and appendix B.

    Example:
        >>> round(float(SGD(0.1, momentum=0.9).norm(3)), 4)  # 1 + 1.9 + 2.71
        5.61
        >>> float(SGD(0.1, prox=10.0).norm(7))  # α = 1: the pull undoes all steps but the last
        1.0
    """

    lr: Number
    momentum: Number = None
    nesterov: bool = eqx.field(static=True, default=False)
    prox: Number = None
    decay: Number = None
    regularizer: Regularizer | None = None

    def init(self, x: Vector) -> Tree:
        return None if self.momentum is None else zeros_like(x)

    def step(self, y: Vector, buffer: Tree, g: Vector, k: Number, x: Vector) -> tuple[Vector, Tree]:
        d = g
        if self.momentum is not None:
            buffer = self.momentum * buffer + g
            d = g + self.momentum * buffer if self.nesterov else buffer
        if self.decay is not None:
            d = jnp.asarray(self.decay, float) ** k * d
        if self.prox is not None:
            d = d + self.prox * (y - x)
        y = y - self.lr * d
        return (y if self.regularizer is None else self.regularizer.step(y, 1.0, self.lr)), buffer

    def rate(self) -> Number:
        return self.lr

    def validate(self) -> None:
        check_number("lr", self.lr, 0, open_low=True)
        if self.momentum is not None:
            check_number("momentum", self.momentum, 0, 1, open_high=True)
        if not isinstance(self.nesterov, bool):
            raise ConfigError("nesterov", self.nesterov, "give true or false")
        if self.nesterov and self.momentum is None:
            raise ConfigError("nesterov", True, "give a momentum too")
        if self.decay is not None:
            check_number("decay", self.decay, 0, 1, open_low=True)
        if self.prox is not None:
            check_number("prox", self.prox, 0)
            check_pull("prox", self.prox, self.lr)
        if not isinstance(self.regularizer, Regularizer | None):
            raise ConfigError("regularizer", self.regularizer, "give a fedax Regularizer, such as fedax.L1(0.01)")


class Transformation(Settings):
    """An optax transformation: ready, or one of optax's functions and its arguments.

    Floating-point arguments of a function are leaves, as with ``optax.inject_hyperparams``: runs that differ only in
    them share a program. A ready transformation is compiled in, with its numbers: another one compiles anew.

    Args:
        transformation: as of optax, with its learning rate and sign, e.g. ``optax.sgd(0.1, momentum=0.9)``; or a
            function that makes one, e.g. ``optax.sgd``.
        **given: the function's arguments, e.g. ``learning_rate=0.1, momentum=0.9``.

    Raises:
        ConfigError: it is no optax transformation; or the function does not take these arguments.
    """

    transformation: Callable[..., optax.GradientTransformation] | optax.GradientTransformation = eqx.field(static=True)
    numbers: dict[str, Number]
    others: tuple[tuple[str, Unknown], ...] = eqx.field(static=True)

    def __init__(self, transformation: Unknown, **given: Unknown):
        real = {name for name, value in given.items() if _is_real(value) or isinstance(value, Schedule)}
        self.transformation = transformation
        self.numbers = {name: given[name] for name in sorted(real)}
        self.others = tuple((name, given[name]) for name in sorted(given.keys() - real))

    def arguments(self) -> dict[str, Unknown]:
        return {"transformation": self.transformation, **self.numbers, **dict(self.others)}

    def made(self, x: Vector) -> optax.GradientTransformation:
        """The transformation of models like ``x``, of whose type its numbers are."""
        if isinstance(self.transformation, optax.GradientTransformation):
            return self.transformation
        kind = jnp.result_type(*jax.tree.leaves(x.tree))
        numbers = {name: jnp.asarray(value, kind) for name, value in self.numbers.items()}
        return self.transformation(**numbers, **dict(self.others))

    def __check_init__(self) -> None:
        given = {**self.numbers, **dict(self.others)}
        if isinstance(self.transformation, optax.GradientTransformation):
            if given:
                hint = "its arguments are in it already: give the function, as Optax(optax.sgd, learning_rate=0.1)"
                raise ConfigError("transformation", self.transformation, hint)
            return
        hint = "give one of optax, such as optax.sgd(0.1), or optax.sgd and its arguments, learning_rate=0.1"
        try:
            made = self.transformation(**given)
        except (TypeError, ValueError) as error:
            raise ConfigError("transformation", self.transformation, f"{hint} ({error})") from error
        if not isinstance(made, optax.GradientTransformation):
            raise ConfigError("transformation", self.transformation, hint)


class Optax(Solver):
    """Any optax transformation as the local optimizer, begun anew in every round: y ← y + update.

    Its η, where a method needs one, is the length of its first step on the gradient 1; with Nesterov's momentum ρ that
    is (1 + ρ) times the learning rate given to optax.

    Args:
        transformation: as of optax, with its learning rate and sign, e.g. ``optax.sgd(0.1, momentum=0.9)``, which is
            compiled in; or a function that makes one, e.g. ``optax.sgd``, whose floating-point arguments then sweep in
            one program, and may be a :class:`fedax.Schedule` of the round.
        **given: the function's arguments, e.g. ``learning_rate=0.1, momentum=0.9``.

    Raises:
        ConfigError: it is no optax transformation; or the function does not take these arguments.

    Example:
        >>> round(float(Optax(optax.sgd(0.1, momentum=0.9)).norm(3)), 4)
        5.61
        >>> round(float(Optax(optax.sgd, learning_rate=0.1, momentum=0.9).norm(3)), 4)
        5.61
    """

    of: Transformation

    def __init__(self, transformation: Unknown, **given: Unknown):
        self.of = Transformation(transformation, **given)

    def arguments(self) -> dict[str, Unknown]:
        return self.of.arguments()

    def init(self, x: Vector) -> Tree:
        return self.of.made(x).init(x.tree)

    def step(self, y: Vector, buffer: Tree, g: Vector, k: Number, x: Vector) -> tuple[Vector, Tree]:
        updates, buffer = self.of.made(x).update(g.tree, buffer, y.tree)
        return y + Vector(updates), buffer

    def rate(self) -> Number:
        return -_response(self, 1)


def checked_solver(solver: Unknown) -> Solver:
    """``solver``; a ConfigError if it is none."""
    if not isinstance(solver, Solver):
        raise ConfigError("solver", solver, "give a fedax Solver: SGD(...), or Optax(transformation)")
    return solver


class LocalMethod(Algorithm):
    """A method whose clients take local steps along its own directions d: y ← y − η d, or the step of a solver.

    Whatever is a gradient to the method stays one with a solver: where a paper has (x − y)/(ητ) for the mean direction
    of a client's τ steps, :meth:`descend_summed` gives their sum.

    Args:
        solver: takes the steps instead of ``lr``, begun anew in every round, for instance
            ``Optax(optax.adamw, learning_rate=1e-3)`` or ``SGD(0.1, momentum=0.9)``; ``None``: plain SGD.

    Raises:
        ConfigError: no solver, one with a regularizer, or a learning rate besides.

    Example:
        >>> class Anchored(LocalMethod):  # FedProx by any solver
        ...     lr: float = 0.05
        ...     pull: float = 0.1
        ...
        ...     def client(self, download, memory, oracle):
        ...         x = download
        ...         return self.descend(lambda y, k: oracle.grad(y, k) + self.pull * (y - x), x, oracle) - x, memory
        >>> Anchored(pull=0.2, solver=SGD(0.1, momentum=0.9))
        Anchored(pull=0.2, solver=SGD(lr=0.1, momentum=0.9))
    """

    lr: eqx.AbstractVar[Number]
    solver: Solver | None = eqx.field(default=None, kw_only=True, metadata={"instead_of": "lr"})

    def __post_init__(self) -> None:
        solver, lr = self.solver, self.lr.schedule if isinstance(self.lr, Stepwise) else self.lr
        if solver is None:
            return
        checked_solver(solver)
        if isinstance(solver, SGD) and solver.regularizer is not None:
            hint = "a proximal step moves where the method's directions vanish; use fedavg, fedda or feddualavg"
            raise ConfigError("solver.regularizer", solver.regularizer, f"{type(self).__name__}: {hint}")
        if lr is not None and not (
            isinstance(lr, float) and lr == inspect.signature(type(self)).parameters["lr"].default
        ):
            raise ConfigError("lr", lr, IN_SOLVER)
        self.lr = None

    def arguments(self) -> dict[str, Unknown]:
        """As of all settings; ``lr`` and the solver stand for each other."""
        other = "solver" if self.solver is None else "lr"
        return {name: value for name, value in Settings.arguments(self).items() if name != other}

    def begin(self, x: Vector) -> Tree:
        """The solver's buffers before the first step from ``x``."""
        return () if self.solver is None else self.solver.init(x)

    def local_step(
        self, y: Vector, buffer: Tree, d: Vector, k: Number, x: Vector, lr: Number = None
    ) -> tuple[Vector, Tree]:
        """Local step k from ``y`` along ``d``; ``x`` is where the round began. ``-> (y, buffer)``.

        Args:
            y, buffer: of the step before; at first ``x`` and :meth:`begin`.
            d: the direction.
            k: from 0.
            x: where the first step began.
            lr: η of this step of plain SGD; ``None``: that of the method.
        """
        if self.solver is not None:
            return self.solver.step(y, buffer, d, k, x)
        return y - (self.lr if lr is None else lr) * d, buffer

    def descend(
        self, direction: Callable[[Vector, Number], Vector], x: Vector, oracle: Oracle, lr: Number = None
    ) -> Vector:
        """The local model after τ_i steps from ``x``, each along ``direction(y, k)``."""

        def step(state: Tree, k: Number) -> Tree:
            y, buffer = state
            return self.local_step(y, buffer, direction(y, k), k, x, lr)

        end: tuple[Vector, Tree] = local_steps(step, (x, self.begin(x)), oracle)
        return end[0]

    def descend_summed(
        self, direction: Callable[[Vector, Number], Vector], x: Vector, oracle: Oracle
    ) -> tuple[Vector, Vector]:
        """Take the steps; also return the sum of the directions, which is (x − y)/η for plain SGD."""

        def step(state: Tree, k: Number) -> Tree:
            y, buffer, total = state
            d = direction(y, k)
            return *self.local_step(y, buffer, d, k, x), total + d

        y, _, total = local_steps(step, (x, self.begin(x), zeros_like(x)), oracle)
        return y, total


def sgd_rate(method: LocalMethod) -> Number:
    """η where the local steps are those of SGD, else ``None``."""
    return method.solver.lr if isinstance(method.solver, SGD) else method.lr


def excess(method: LocalMethod, d: Vector, x: Vector, round: Round) -> Vector:
    """What is to be subtracted from Σ ω_i Δ_i where Σ ω_i is not 1 and all steps contain ``d``, which is known."""
    if isinstance(round.shortfall, float):  # of private uploads, 0
        return zeros_like(x)
    if method.solver is not None:
        step, _ = method.solver.step(x, method.solver.init(x), d, 0, x)
        return Vector(((round.shortfall * round.mean_steps) * (x - step)).tree)
    shortfall, lr = round.shortfall, method.lr(round.t) if isinstance(method.lr, Stepwise) else method.lr
    return Vector(((shortfall * lr * round.mean_steps) * d).tree)


def _is_real(value: Unknown) -> bool:
    """Whether an argument is one floating-point number."""
    if not hasattr(value, "dtype"):
        return isinstance(value, float)
    return np.ndim(value) == 0 and bool(jnp.issubdtype(value.dtype, jnp.floating))


def check_linear(solver: Solver) -> None:
    """Raise a ConfigError unless the solver is linear: Δ = −η Σ a[k] g_k whatever the gradients and the start.

    Example:
        >>> check_linear(Optax(optax.adam(0.1)))
        Traceback (most recent call last):
        fedax.errors.ConfigError: solver = 'Optax': normalised averaging needs a linear solver, ...
    """
    if isinstance(solver, SGD) and solver.regularizer is None:
        return  # SGD is linear in all its variants
    if isinstance(solver, SGD):
        raise ConfigError("regularizer", solver.regularizer, "normalised averaging needs a linear solver; use fedavg")
    gradients = (0.7, -1.3, 0.2, 2.1)

    def change(start: float, scale: float) -> float:
        x = Vector(jnp.asarray(start, float))
        y, buffer = x, solver.init(x)
        for k, g in enumerate(gradients):
            y, buffer = solver.step(y, buffer, Vector(jnp.asarray(scale * g, float)), k, x)
        return float((y - x).tree)

    solver = resolve(solver, 0)  # its schedules, if any
    base = change(0.0, 1.0)
    for start, scale in ((0.0, 100.0), (0.0, -0.01), (3.0, 1.0), (3.0, 0.0)):
        if not np.allclose(change(start, scale), scale * base, rtol=1e-3, atol=1e-6 * abs(scale)):
            raise ConfigError(
                "solver",
                type(solver).__name__,
                "normalised averaging needs a linear solver, whose change is a fixed weighted sum of its gradients: "
                "SGD in all its variants, not Adam, clipping or weight decay; or average as FedAvg does",
            )


def is_linear(solver: Solver) -> bool:
    """Whether :func:`check_linear` accepts the solver."""
    try:
        check_linear(solver)
    except ConfigError:
        return False
    return True


def check_pull(field: str, value: Number, lr: Number) -> None:
    """Raise a ConfigError where a pull of strength ``value`` overshoots in one step of length ``lr`` in round 0.

    ``lr`` is ``None`` where the steps are not those of SGD.
    """
    if lr is None:
        return
    lr, strength = resolve((lr, value), 0)
    if not isinstance(lr, jax.core.Tracer) and not isinstance(strength, jax.core.Tracer) and lr * strength > 1:
        raise ConfigError(field, value, f"lr · {field} must be at most 1, so at most {1 / lr:g} here")


def _response(solver: Solver, steps: Number) -> jax.Array:
    """Δ of a one-dimensional model at 0 all of whose gradients are 1."""
    x = Vector(jnp.zeros((), float))

    def step(state: Tree, k: Number) -> Tree:
        y, buffer = state
        return solver.step(y, buffer, Vector(jnp.asarray(1.0, float)), k, x)

    y, _ = _repeat(step, (x, solver.init(x)), steps)
    return (y - x).tree


def _repeat(step: Callable[[Tree, Tree], Tree], start: Tree, steps: Number) -> Tree:
    if isinstance(steps, int):
        end, _ = jax.lax.scan(lambda state, k: (step(state, k), None), start, jnp.arange(steps))
        return end
    return jax.lax.fori_loop(0, steps, lambda k, state: step(state, k), start)
