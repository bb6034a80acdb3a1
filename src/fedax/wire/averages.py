"""Robust averages, which a server may take instead of the weighted mean of the uploads; and the guard."""

import contextlib
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from fedax.contract.settings import Settings, plain
from fedax.contract.types import Array, Number, Tree
from fedax.contract.vector import norm_of
from fedax.errors import ConfigError
from fedax.numbers import check_count, check_number
from fedax.wire.sums import scaled, shortening

_ROUNDING = 1e-6  # of sums of weights in float32


class Aggregator(Settings):
    """An average of uploads instead of the weighted mean Σ ω_i v_i.

    A robust average estimates Σ ω_i v_i / Σ ω_i, and is then multiplied by Σ ω_i. All of them are for methods whose
    clients keep nothing between rounds: what clients keep assumes that their uploads entered a mean.

    A row of weight 0 is nobody's upload: of an empty place in a cohort, or of a client that is left out. It may hold
    anything.

    Example:
        >>> class Maximum(Aggregator):
        ...     def average(self, uploads, weights):
        ...         largest = lambda row, weight: jnp.where(weight > 0, row, -jnp.inf)
        ...         return jax.tree.map(lambda leaf: jax.vmap(largest)(leaf, weights).max(0), uploads)
        >>> Maximum().average(jnp.array([1.0, 3.0, 2.0, 9.0]), jnp.array([1 / 3, 1 / 3, 1 / 3, 0.0])).tolist()
        3.0
    """

    gathers: ClassVar[bool] = True  # whether it needs the uploads of a cohort at once; they have to fit in memory

    def each(self, upload: Tree) -> Tree:
        """One client's upload as the average takes it, such as a clipped one; default: as it is."""
        return upload

    def average(self, uploads: Tree, weights: Array) -> Tree:
        """Of uploads, leaves [S, ...], with weights ω [S] ≥ 0: the robust average of those whose ω is above 0."""
        raise NotImplementedError


class CoordinateMedian(Aggregator):
    """The weighted median of each number: half of the weight is on either side of it.

    Where a half ends between two values it is their mean, as usual. Right while bad clients have less than half of the
    weight. Source: Yin et al. 2018, "Byzantine-robust distributed learning", Definition 1.

    Example:
        >>> CoordinateMedian().average(jnp.array([1.0, 2.0, 9.0, 1e30]), jnp.full(4, 0.25)).tolist()
        5.5
    """

    def average(self, uploads: Tree, weights: Array) -> Tree:
        def median(values: Array, _: Array, ends: Array) -> Array:
            low = jnp.argmax(ends >= 0.5 - _ROUNDING, axis=0, keepdims=True)
            high = jnp.argmax(ends > 0.5 + _ROUNDING, axis=0, keepdims=True)
            both = [jnp.take_along_axis(values, at, axis=0)[0] for at in (low, high)]
            return both[0] / 2 + both[1] / 2

        return jax.tree.map(lambda leaf: median(*_in_order(leaf, weights)), uploads)


class TrimmedMean(Aggregator):
    """The weighted mean of each number, without the smallest and the largest values.

    Where the cut goes through a client's weight, the rest of it counts. Right while bad clients have at most ``share``
    of the weight. Source: Yin et al. 2018, Definition 2.

    Args:
        share: of the weight that is cut off at either end, 0 < share < 1/2; above 0.4999 take the coordinate median.

    Raises:
        ConfigError: numbers out of range.

    Example:
        >>> round(TrimmedMean(0.25).average(jnp.array([1.0, 2.0, 9.0, 1e30]), jnp.full(4, 0.25)).item(), 4)
        5.5
    """

    share: Number = 0.1

    def __check_init__(self) -> None:
        check_number("share", self.share, 0, 0.5, open_low=True, open_high=True)
        with contextlib.suppress(TypeError):  # of a schedule, or a number that is traced
            if float(self.share) > 0.4999:
                hint = "next to one half nothing is left; take fedax.CoordinateMedian()"
                raise ConfigError("share", self.share, hint)

    def average(self, uploads: Tree, weights: Array) -> Tree:
        def mean(values: Array, shares: Array, ends: Array) -> Array:
            counts = jnp.minimum(ends, 1 - self.share) - jnp.maximum(ends - shares, self.share)
            counts = jnp.where(counts > jnp.minimum(_ROUNDING, shares / 2), counts, 0)  # the rest is rounding
            return jnp.sum(jnp.where(counts > 0, counts * values, 0), axis=0) / jnp.sum(counts, axis=0)

        return jax.tree.map(lambda leaf: mean(*_in_order(leaf, weights)), uploads)


class GeometricMedian(Aggregator):
    """The point to which the weighted sum of the distances from the uploads is least.

    An upload counts as a whole, with all that is in it; ``z ← Σ (ω_i/d_i) v_i / Σ (ω_i/d_i)``, d_i = max(ε, ‖v_i − z‖),
    from the coordinate median. Right while bad clients have less than half of the weight. Source: Pillutla et al. 2022,
    "Robust aggregation for federated learning" (RFA), Algorithm 2.

    Args:
        steps: how often, ≥ 1.
        eps: ε > 0.

    Raises:
        ConfigError: numbers out of range.

    Example:
        >>> points = jnp.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1e9, 1e9]])
        >>> GeometricMedian(steps=100).average(points, jnp.full(4, 0.25)).round(3).tolist()
        [0.5, 0.5]
    """

    steps: int = eqx.field(static=True, converter=plain, default=10)
    eps: Number = 1e-6

    def __check_init__(self) -> None:
        check_count("steps", self.steps)
        check_number("eps", self.eps, 0, open_low=True)

    def average(self, uploads: Tree, weights: Array) -> Tree:
        def nearer(_: Array, z: Tree) -> Tree:
            squares = jax.tree.map(
                lambda leaf, at: jnp.sum((leaf - at[None]) ** 2, axis=range(1, leaf.ndim)), uploads, z
            )
            far = jnp.sqrt(sum(jax.tree.leaves(squares)))
            pull = jnp.where(jnp.isfinite(far), weights / jnp.maximum(far, self.eps), 0)
            pull = pull / jnp.sum(pull)
            return jax.tree.map(lambda leaf: jnp.sum(scaled(pull, leaf), axis=0), uploads)

        return jax.lax.fori_loop(0, self.steps, nearer, CoordinateMedian().average(uploads, weights))


class ClippedMean(Aggregator):
    """The weighted mean of updates none of which is longer than ``norm``: longer ones are shortened.

    This bounds the influence of a client, but not the direction of its update. For methods whose upload is one update
    of the model.

    Args:
        norm: the longest Euclidean norm, > 0.

    Raises:
        ConfigError: numbers out of range.

    Source: Sun et al. 2019, "Can you really backdoor federated learning?", norm thresholding.

    Example:
        >>> ClippedMean(2.5).each(jnp.array([3.0, 4.0])).tolist()
        [1.5, 2.0]
    """

    norm: Number

    gathers: ClassVar[bool] = False

    def __check_init__(self) -> None:
        check_number("norm", self.norm, 0, open_low=True)

    def each(self, upload: Tree) -> Tree:
        factor = shortening(norm_of(jax.tree.leaves(upload)), self.norm)
        return jax.tree.map(lambda leaf: leaf * factor, upload)


def _in_order(leaf: Array, weights: Array) -> tuple[Array, Array, Array]:
    """The clients' values sorted, number by number; their weights, which sum to 1, and the cumulative weights."""
    values = jnp.asarray(leaf, jnp.result_type(leaf, jnp.float32))
    order = jnp.argsort(values, axis=0)  # NaN is last
    shares = jnp.asarray(weights, values.dtype) / jnp.sum(weights)
    shares = shares[order]
    return jnp.take_along_axis(values, order, axis=0), shares, jnp.cumsum(shares, axis=0)


class Guard(Settings):
    """Leave out uploads that hold a number that is not finite, or one larger than ``largest``.

    The weights of the clients that are left are scaled so that the estimate keeps its scale, and a client that is left
    out keeps the memory that it had. The history says how many uploads were left out, and whose. A round in which none
    is left changes nothing. Bad values within ``largest`` are not found; see :class:`CoordinateMedian` and the other
    robust averages for those.

    Args:
        largest: the largest absolute value that an upload may hold, > 0.
        stop: end the run after the first round in which an upload is left out; of real clients also where one is
            missing, as its node is away.

    Raises:
        ConfigError: ``largest`` is not a positive number, or ``stop`` is neither True nor False.

    Example:
        >>> bool(Guard().accepts({"w": jnp.array([0.1, jnp.nan])})), bool(Guard().accepts(jnp.array([0.1, -2.0])))
        (False, True)
    """

    largest: Number = 1e10
    stop: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        check_number("largest", self.largest, 0, open_low=True)
        if not isinstance(self.stop, bool):
            raise ConfigError("stop", self.stop, "give True or False")

    def accepts(self, upload: Tree) -> Array:
        """Whether one client's upload counts."""
        fine = [jnp.all(jnp.abs(leaf) <= self.largest) for leaf in jax.tree.leaves(upload)]  # NaN is not ≤ anything
        return jnp.all(jnp.stack(fine)) if fine else jnp.ones((), bool)
