"""Constraints and regularisers, each with its proximal step in a diagonal metric."""

from collections.abc import Callable, Mapping

import jax
import jax.flatten_util
import jax.numpy as jnp

from fedax.contract.schedule import Schedule
from fedax.contract.settings import Settings
from fedax.contract.types import Array, Number, Tree, Unknown
from fedax.contract.vector import Vector, norm_of
from fedax.errors import ConfigError
from fedax.numbers import check_number
from fedax.registry import Registry


class Regularizer(Settings):
    """A convex function ψ on a closed convex set X; all leaves of the pytree together are one vector.

    Raises:
        ConfigError: numbers that cannot be used.

    Example:
        >>> class Ridge(Regularizer):  # ψ = ½ w ‖x‖²
        ...     weight: float
        ...
        ...     def value(self, x):
        ...         return 0.5 * self.weight * x.dot(x)
        ...
        ...     def step(self, u, h, s):
        ...         return u / (1 + s * self.weight / h)
        >>> Ridge(3.0).step(Vector(jnp.array([8.0])), 1.0, 1.0).tree.tolist()
        [2.0]
    """

    def __check_init__(self) -> None:
        self.validate()

    def value(self, x: Vector) -> jax.Array:
        """ψ(x); for a constraint 0 if x is in X up to rounding, which is where the step leaves it, else ∞."""
        raise NotImplementedError

    def step(self, u: Vector, h: Number, s: Number) -> Vector:
        """argmin over x in X of s ψ(x) + ½ Σ_j h_j (x_j − u_j)²; h > 0, a Vector like ``u`` or a number, and s ≥ 0."""
        raise NotImplementedError

    def validate(self) -> None:
        """Raise :class:`fedax.errors.ConfigError` for numbers that cannot be used."""


class Unconstrained(Regularizer):
    """ψ = 0 on the whole space: x = u.

    Example:
        >>> Unconstrained().step(Vector(jnp.array([3.0, -4.0])), 1.0, 1.0).tree.tolist()
        [3.0, -4.0]
    """

    def value(self, x: Vector) -> jax.Array:
        return _indicator(self, x)

    def step(self, u: Vector, h: Number, s: Number) -> Vector:
        return u


class L1(Regularizer):
    """ψ = w ‖x‖₁: soft thresholding, x_j = sign(u_j) max(|u_j| − s w / h_j, 0).

    Args:
        weight: w ≥ 0.

    Raises:
        ConfigError: a negative weight.

    Example:
        >>> L1(0.5).step(Vector(jnp.array([3.0, -4.0])), Vector(jnp.array([1.0, 0.25])), 2.0).tree.tolist()
        [2.0, -0.0]
    """

    weight: Number

    def value(self, x: Vector) -> jax.Array:
        return ElasticNet(self.weight, 0.0).value(x)

    def step(self, u: Vector, h: Number, s: Number) -> Vector:
        return ElasticNet(self.weight, 0.0).step(u, h, s)

    def validate(self) -> None:
        check_number("weight", self.weight, 0)


class ElasticNet(Regularizer):
    """ψ = l₁ ‖x‖₁ + (l₂/2) ‖x‖² (Zou and Hastie 2005): x_j = sign(u_j) max(|u_j| − s l₁/h_j, 0) / (1 + s l₂/h_j).

    Args:
        l1, l2: l₁ ≥ 0 and l₂ ≥ 0.

    Raises:
        ConfigError: a negative weight.

    Example:
        >>> ElasticNet(1.0, 3.0).step(Vector(jnp.array([9.0, 0.5])), 1.0, 1.0).tree.tolist()
        [2.0, 0.0]
    """

    l1: Number
    l2: Number

    def value(self, x: Vector) -> jax.Array:
        flat = _flat(x)
        l1, l2 = jnp.asarray(self.l1, flat.dtype), jnp.asarray(self.l2, flat.dtype)
        return jnp.sum(l1 * jnp.abs(flat) + 0.5 * l2 * flat * flat)

    def step(self, u: Vector, h: Number, s: Number) -> Vector:
        def shrink(leaf: Array, h: jax.Array) -> jax.Array:
            factor, l1, l2 = (jnp.asarray(number, h.dtype) for number in (s, self.l1, self.l2))
            return jnp.sign(leaf) * jnp.maximum(jnp.abs(leaf) - factor * l1 / h, 0) / (1 + factor * l2 / h)

        return u.map(shrink, _like(h, u))

    def validate(self) -> None:
        check_number("l1", self.l1, 0)
        check_number("l2", self.l2, 0)


class Box(Regularizer):
    """X = {low ≤ x_j ≤ high}: the components are clipped.

    Args:
        low, high: numbers, low ≤ high.

    Raises:
        ConfigError: ``low`` is above ``high``.

    Example:
        >>> Box(-1.0, 2.0).step(Vector(jnp.array([3.0, -4.0, 0.5])), 2.0, 1.0).tree.tolist()
        [2.0, -1.0, 0.5]
    """

    low: Number
    high: Number

    def value(self, x: Vector) -> jax.Array:
        return _indicator(self, x)

    def step(self, u: Vector, h: Number, s: Number) -> Vector:
        return u.map(lambda leaf: jnp.clip(leaf, *(jnp.asarray(end, leaf.dtype) for end in (self.low, self.high))))

    def validate(self) -> None:
        check_number("low", self.low)
        check_number("high", self.high)
        if not isinstance(self.low, Schedule | jax.core.Tracer):
            check_number("high", self.high, float(self.low))


class NonNegative(Regularizer):
    """X = {x_j ≥ 0}: x_j = max(u_j, 0).

    Example:
        >>> NonNegative().step(Vector(jnp.array([3.0, -4.0])), 1.0, 1.0).tree.tolist()
        [3.0, 0.0]
    """

    def value(self, x: Vector) -> jax.Array:
        return _indicator(self, x)

    def step(self, u: Vector, h: Number, s: Number) -> Vector:
        return u.map(lambda leaf: jnp.maximum(leaf, 0))


class L1Ball(Regularizer):
    """X = {‖x‖₁ ≤ ρ}: x_j = sign(u_j) max(|u_j| − θ/h_j, 0), θ by sorting the h_j |u_j| (Duchi et al. 2008).

    Args:
        radius: ρ > 0.

    Raises:
        ConfigError: a radius that is not positive.

    Example:
        >>> L1Ball(2.0).step(Vector(jnp.array([3.0, -1.0])), Vector(jnp.array([1.0, 3.0])), 1.0).tree.tolist()
        [1.5, -0.5]
    """

    radius: Number

    def value(self, x: Vector) -> jax.Array:
        return _indicator(self, x)

    def step(self, u: Vector, h: Number, s: Number) -> Vector:
        inside = lambda x, radius: jnp.sum(jnp.abs(x)) <= radius  # noqa: E731
        onto = lambda x, h, radius: jnp.sign(x) * _onto_simplex(jnp.abs(x), h, radius)  # noqa: E731
        return _project(u, h, self.radius, inside, onto)

    def validate(self) -> None:
        check_number("radius", self.radius, 0, open_low=True)


class L2Ball(Regularizer):
    """X = {‖x‖₂ ≤ ρ}: x_j = h_j u_j / (h_j + ζ), ζ by Newton on 1/‖x(ζ)‖ = 1/ρ (Moré and Sorensen 1983).

    The norm is met to rounding. Where components of very large h_j make up nearly all of ρ, the others share what
    is left of ρ² and are as precise as that difference is.

    Args:
        radius: ρ > 0.

    Raises:
        ConfigError: a radius that is not positive.

    Example:
        >>> L2Ball(5.0).step(Vector(jnp.array([6.0, -8.0])), 7.0, 1.0).tree.tolist()
        [3.0, -4.0]
    """

    radius: Number

    def value(self, x: Vector) -> jax.Array:
        return _indicator(self, x)

    def step(self, u: Vector, h: Number, s: Number) -> Vector:
        return _project(u, h, self.radius, lambda x, radius: norm_of([x]) <= radius, _onto_sphere)

    def validate(self) -> None:
        check_number("radius", self.radius, 0, open_low=True)


class Simplex(Regularizer):
    """X = {x_j ≥ 0, Σ_j x_j = ρ}: x_j = max(u_j − θ/h_j, 0), θ by sorting the h_j u_j (Duchi et al. 2008).

    Args:
        radius: ρ > 0.

    Raises:
        ConfigError: a radius that is not positive.

    Example:
        >>> Simplex().step(Vector(jnp.array([1.0, 0.5, -3.0])), 2.0, 1.0).tree.tolist()
        [0.75, 0.25, 0.0]
    """

    radius: Number = 1.0

    def value(self, x: Vector) -> jax.Array:
        return _indicator(self, x)

    def step(self, u: Vector, h: Number, s: Number) -> Vector:
        inside = lambda x, radius: jnp.all(x >= 0) & (jnp.sum(x) == radius)  # noqa: E731
        return _project(u, h, self.radius, inside, _onto_simplex)

    def validate(self) -> None:
        check_number("radius", self.radius, 0, open_low=True)


def penalty(regularizer: Regularizer | None, x: Vector) -> Number:
    """ψ(x), and 0 or ∞ for a constraint; ``None`` where the problem has neither.

    Example:
        >>> penalty(L1(0.5), Vector(jnp.array([2.0, -4.0]))).item(), penalty(Unconstrained(), Vector(jnp.ones(2)))
        (3.0, None)
    """
    return None if regularizer is None or isinstance(regularizer, Unconstrained) else regularizer.value(x)


REGULARIZERS = Registry("regularizer")
REGULARIZERS.add("none", Unconstrained)
REGULARIZERS.add("l1", L1)
REGULARIZERS.add("elastic-net", ElasticNet)
REGULARIZERS.add("l1-ball", L1Ball)
REGULARIZERS.add("l2-ball", L2Ball)
REGULARIZERS.add("box", Box)
REGULARIZERS.add("non-negative", NonNegative)
REGULARIZERS.add("simplex", Simplex)


def regularizer(given: Unknown) -> Regularizer:
    """A :class:`Regularizer` as it is; ``None`` for none; or from a table, as a configuration has it.

    Args:
        given: ``{"name": "l1", "weight": 0.01}``; the names are ``none``, ``l1``, ``elastic-net``, ``l1-ball``,
            ``l2-ball``, ``box``, ``non-negative``, ``simplex``, the other keys their arguments.

    Raises:
        ConfigError: an unknown name or key, a missing key, or something else.

    Example:
        >>> regularizer({"name": "l1-ball", "radius": 2.0})
        L1Ball(radius=2.0)
    """
    if given is None:
        return Unconstrained()
    if isinstance(given, Regularizer):
        return given
    if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
        raise ConfigError("regularizer", given, "give a fedax Regularizer, such as fedax.L1(0.01), or {name = 'l1', …}")
    table = dict(given)
    return REGULARIZERS.bind(table.pop("name"), table, section="regularizer")[0]


def _indicator(constraint: Regularizer, x: Vector) -> jax.Array:
    """0 where the step onto X leaves x where it is, up to rounding; else ∞."""
    flat = _flat(x)
    moved = jnp.max(jnp.abs(_flat(constraint.step(x, 1, 0)) - flat))
    rounding = 10 * flat.size**0.5 * jnp.finfo(flat.dtype).eps * jnp.max(jnp.abs(flat))
    return jnp.where(moved <= rounding, jnp.zeros((), flat.dtype), jnp.inf)


def _flat(x: Vector) -> jax.Array:
    return jax.flatten_util.ravel_pytree(x.tree)[0]


def _like(h: Number, u: Vector) -> Vector:
    if isinstance(h, Vector):
        return u.map(lambda leaf, metric: jnp.asarray(metric, jnp.result_type(leaf)), h)
    return u.map(lambda leaf: jnp.full(jnp.shape(leaf), h, jnp.result_type(leaf)))


def _project(u: Vector, h: Number, radius: Number, inside: Callable[..., Tree], onto: Callable[..., Tree]) -> Vector:
    """``u`` where it is inside, else ``onto(u, h, radius)``, of all leaves as one array."""
    flat, unravel = jax.flatten_util.ravel_pytree(u.tree)
    radius = jnp.asarray(radius, flat.dtype)
    return Vector(unravel(jnp.where(inside(flat, radius), flat, onto(flat, _flat(_like(h, u)), radius))))


def _onto_sphere(u: jax.Array, h: jax.Array, radius: jax.Array) -> jax.Array:
    """x_j = h_j u_j / (h_j + ζ) with ‖x‖₂ = ρ, for u outside of it."""

    def at(zeta: jax.Array) -> jax.Array:
        return u * (h / (h + zeta))

    def newton(zeta: jax.Array) -> jax.Array:
        x = at(zeta)
        return zeta + (norm_of([x]) / radius - 1) / jnp.sum((x / norm_of([x])) ** 2 / (h + zeta))

    # 1/‖x(ζ)‖ is concave and increasing: Newton's step from any ζ ends at or below the root, bisection bounds it.
    def narrow(state: Tree) -> Tree:
        low, high, _, count = state
        middle = jnp.sqrt(low) * jnp.sqrt(high)
        beyond = newton(middle)
        new = jnp.minimum(jnp.maximum(low, jnp.maximum(newton(low), beyond)), high)
        high = jnp.where(beyond > middle, high, middle)
        return new, high, new > low * (1 + 2 * jnp.finfo(u.dtype).eps), count + 1

    excess = jnp.maximum(norm_of([u]) / radius - 1, 0)
    start = (jnp.min(h) * excess, jnp.max(h) * excess, excess > 0, 0)
    x = at(jax.lax.while_loop(lambda state: state[2] & (state[3] < 100), narrow, start)[0])
    return x * jnp.minimum(radius / norm_of([x]), 1)


def _onto_simplex(u: jax.Array, h: jax.Array, radius: jax.Array) -> jax.Array:
    """x_j = max(u_j − θ/h_j, 0) with Σ_j x_j = ρ, written with sums of terms ≥ 0 only, so that nothing cancels.

    With κ_j = h_j u_j in descending order, Σ_j x_j is Σ_{j<m} (κ_j − κ_m)/h_j at θ = κ_m, which grows with m. The
    last m where it is below ρ is the last component that stays; what is left of ρ is shared in proportion to 1/h_j.
    """
    # By rank, not by κ_j ≥ κ_m: compilers may compute h_j u_j again, with another last digit.
    places = jnp.arange(u.size)
    descending, inverse, which = jax.lax.sort((-h * u, 1 / h, places), num_keys=1)
    reached = jnp.cumsum(jnp.diff(descending) * jnp.cumsum(inverse)[:-1])
    last = jnp.sum(reached < radius)
    stays = places <= last
    above = jnp.where(stays, (descending[last] - descending) * inverse, 0)
    left = radius - jnp.sum(above)
    share = jnp.where(stays, inverse, 0)
    return jnp.zeros_like(u).at[which].set(jnp.maximum(above + left * (share / jnp.sum(share)), 0))
