"""What a server makes of uploads where clients cannot be trusted: a guard, and averages that are robust."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fedax.errors import ConfigError
from fedax.numbers import check_count, check_number

_ROUNDING = 1e-6  # of sums of weights in float32


@dataclass(frozen=True)
class Guard:
    """Uploads that cannot be meant do not count: those with a number that is not finite, or larger than ``largest``.

    Such a client is left out of its round: the weights of the others are scaled so that the estimate keeps its scale,
    and what it keeps is as it was before. The history has how many uploads were left out, and whose. A round of which
    nothing is left changes nothing. A client that lies within ``largest`` is not found; see :class:`CoordinateMedian`
    and the others for that.

    Args:
        largest: the largest absolute value that an upload may hold, > 0.
        stop: end the run after the first round in which an upload is left out.

    Example:
        >>> bool(Guard().accepts({"w": jnp.array([0.1, jnp.nan])})), bool(Guard().accepts(jnp.array([0.1, -2.0])))
        (False, True)
    """

    largest: float = 1e10
    stop: bool = False

    def __post_init__(self) -> None:
        check_number("largest", self.largest, 0, open_low=True)
        if not isinstance(self.stop, bool):
            raise ConfigError("stop", self.stop, "give True or False")

    def accepts(self, upload: Any) -> Any:
        """Whether one client's upload counts."""
        fine = [jnp.all(jnp.abs(leaf) <= self.largest) for leaf in jax.tree.leaves(upload)]  # NaN is not ≤ anything
        return jnp.all(jnp.stack(fine)) if fine else jnp.ones((), bool)


@dataclass(frozen=True)
class Faults:
    """Clients that send something else than they should, for studies of what that does.

    Args:
        clients: their numbers; or their share of all N, in (0, 1], of which ⌈share·N⌉ are then drawn by ``seed``.
        sends: a number, which stands in the place of every number of an upload; ``nan`` and ``inf`` are numbers too.
        times: in place of ``sends``: what an upload is multiplied by; −1 turns it around.
        seed: ≥ 0.

    Example:
        >>> Faults([3], times=-1.0).of(10)
        (3,)
        >>> len(Faults(0.2, sends=math.nan).of(11))
        3
    """

    clients: float | Sequence[int]
    sends: float | None = None
    times: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.clients, Sequence | np.ndarray) and not isinstance(self.clients, str):
            ids = tuple(check_count("clients", id_, 0) for id_ in self.clients)
            object.__setattr__(self, "clients", tuple(sorted({*ids})))
        else:
            check_number("clients", self.clients, 0, 1, open_low=True)
        if (self.sends is None) == (self.times is None):
            raise ConfigError("sends", (self.sends, self.times), "give either sends or times")
        for name, value in (("sends", self.sends), ("times", self.times)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise ConfigError(name, value, "give a number")
        check_count("seed", self.seed, 0)

    def of(self, num_clients: int) -> tuple[int, ...]:
        """Who they are among N clients, in order."""
        if isinstance(self.clients, tuple):
            if self.clients and self.clients[-1] >= num_clients:
                raise ConfigError("clients", self.clients[-1], f"there are {num_clients} clients, from 0")
            return self.clients
        number = math.ceil(self.clients * num_clients)  # type: ignore[operator]
        drawn = np.random.default_rng(self.seed).choice(num_clients, number, replace=False)
        return tuple(sorted(drawn.tolist()))

    def send(self, upload: Any) -> Any:
        """What such a client sends in place of ``upload``."""
        if (number := self.sends) is not None:
            return jax.tree.map(lambda leaf: jnp.full_like(leaf, number), upload)
        return jax.tree.map(lambda leaf: leaf * jnp.asarray(self.times, jnp.result_type(leaf)), upload)


class Aggregator:
    """What stands in the place of the weighted mean Σ ω_i v_i of the uploads.

    A robust one gives an estimate of the average Σ ω_i v_i / Σ ω_i, which is multiplied by Σ ω_i. All of them are for
    methods whose clients keep nothing between rounds, for what such clients keep assumes that they were heard.
    """

    gathers: ClassVar[bool] = True  # whether it needs the uploads of a cohort at once; they have to fit in memory

    def each(self, upload: Any) -> Any:
        """What counts of one client's upload."""
        return upload

    def average(self, uploads: Any, weights: Any) -> Any:
        """Of uploads, leaves [S, ...], with weights ω [S] ≥ 0: the robust average."""
        raise NotImplementedError


@dataclass(frozen=True)
class CoordinateMedian(Aggregator):
    """The weighted median of each number: half of the weight is on either side of it.

    Where a half ends between two values it is their mean, as usual. Right while bad clients have less than half of the
    weight. Source: Yin et al. 2018, "Byzantine-robust distributed learning", Definition 1.

    Example:
        >>> CoordinateMedian().average(jnp.array([1.0, 2.0, 9.0, 1e30]), jnp.full(4, 0.25)).tolist()
        5.5
    """

    def average(self, uploads: Any, weights: Any) -> Any:
        def median(values: Any, _: Any, ends: Any) -> Any:
            low = jnp.argmax(ends >= 0.5 - _ROUNDING, axis=0, keepdims=True)
            high = jnp.argmax(ends > 0.5 + _ROUNDING, axis=0, keepdims=True)
            both = [jnp.take_along_axis(values, at, axis=0)[0] for at in (low, high)]
            return both[0] / 2 + both[1] / 2

        return jax.tree.map(lambda leaf: median(*_in_order(leaf, weights)), uploads)


@dataclass(frozen=True)
class TrimmedMean(Aggregator):
    """The weighted mean of each number, without the smallest and the largest values.

    Where the cut goes through a client's weight, the rest of it counts. Right while bad clients have at most ``share``
    of the weight. Source: Yin et al. 2018, Definition 2.

    Args:
        share: of the weight that is cut off at either end, 0 < share < 1/2.

    Example:
        >>> round(TrimmedMean(0.25).average(jnp.array([1.0, 2.0, 9.0, 1e30]), jnp.full(4, 0.25)).item(), 4)
        5.5
    """

    share: float = 0.1

    def __post_init__(self) -> None:
        check_number("share", self.share, 0, 0.5, open_low=True, open_high=True)

    def average(self, uploads: Any, weights: Any) -> Any:
        def mean(values: Any, own: Any, ends: Any) -> Any:
            counts = jnp.minimum(ends, 1 - self.share) - jnp.maximum(ends - own, self.share)
            counts = jnp.where(counts > _ROUNDING, counts, 0)
            return jnp.sum(jnp.where(counts > 0, counts * values, 0), axis=0) / jnp.sum(counts, axis=0)

        return jax.tree.map(lambda leaf: mean(*_in_order(leaf, weights)), uploads)


@dataclass(frozen=True)
class GeometricMedian(Aggregator):
    """The point to which the weighted sum of the distances from the uploads is least.

    An upload counts as a whole, with all that is in it; ``z ← Σ (ω_i/d_i) v_i / Σ (ω_i/d_i)``, d_i = max(ε, ‖v_i − z‖),
    from the coordinate median. Right while bad clients have less than half of the weight. Source: Pillutla et al. 2022,
    "Robust aggregation for federated learning" (RFA), Algorithm 2.

    Args:
        steps: how often, ≥ 1.
        eps: ε > 0.

    Example:
        >>> points = jnp.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1e9, 1e9]])
        >>> GeometricMedian(steps=100).average(points, jnp.full(4, 0.25)).round(3).tolist()
        [0.5, 0.5]
    """

    steps: int = 10
    eps: float = 1e-6

    def __post_init__(self) -> None:
        check_count("steps", self.steps)
        check_number("eps", self.eps, 0, open_low=True)

    def average(self, uploads: Any, weights: Any) -> Any:
        def nearer(_: Any, z: Any) -> Any:
            squares = jax.tree.map(
                lambda leaf, at: jnp.sum((leaf - at[None]) ** 2, axis=range(1, leaf.ndim)), uploads, z
            )
            far = jnp.sqrt(sum(jax.tree.leaves(squares)))
            pull = jnp.where(jnp.isfinite(far), weights / jnp.maximum(far, self.eps), 0)
            pull = pull / jnp.sum(pull)
            return jax.tree.map(lambda leaf: jnp.sum(scaled(pull, leaf), axis=0), uploads)

        return jax.lax.fori_loop(0, self.steps, nearer, CoordinateMedian().average(uploads, weights))


@dataclass(frozen=True)
class ClippedMean(Aggregator):
    """The weighted mean of updates none of which is longer than ``norm``: longer ones are shortened.

    Bounds what a client can do, and does nothing to direction. For methods whose upload is one update of the model.
    Source: Sun et al. 2019, "Can you really backdoor federated learning?", norm thresholding.

    Args:
        norm: the longest Euclidean norm, > 0.

    Example:
        >>> ClippedMean(2.5).each(jnp.array([3.0, 4.0])).tolist()
        [1.5, 2.0]
    """

    norm: float

    gathers: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_number("norm", self.norm, 0, open_low=True)

    def each(self, upload: Any) -> Any:
        leaves = jax.tree.leaves(upload)
        # Scaled by the largest number first: the square of 1e30 is no number in float32.
        most = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in leaves]))
        scale = jnp.where(most > 0, most, 1)
        norm = scale * jnp.sqrt(sum(jnp.sum((leaf / scale) ** 2) for leaf in leaves))
        factor = jnp.minimum(1, self.norm / jnp.where(norm > 0, norm, 1))
        return jax.tree.map(lambda leaf: leaf * factor, upload)


def _in_order(leaf: Any, weights: Any) -> tuple[Any, Any, Any]:
    """Values of clients in order, number by number; the weight of each, and the sum up to and with it, of 1 in all."""
    values = jnp.asarray(leaf, jnp.result_type(leaf, jnp.float32))
    order = jnp.argsort(values, axis=0)  # NaN is last
    own = jnp.asarray(weights, values.dtype) / jnp.sum(weights)
    own = own[order]
    return jnp.take_along_axis(values, order, axis=0), own, jnp.cumsum(own, axis=0)


def scaled(weight: Any, leaf: Any) -> Any:
    """ω v, and 0 where ω is: what an empty place computes, or a bad client sends, may not be finite."""
    weight = along(jnp.asarray(weight, jnp.result_type(leaf, jnp.float32)), leaf)
    return jnp.where(weight == 0, 0, weight * leaf)


def along(places: Any, leaf: Any) -> Any:
    """Values of places, for leaves that have more axes."""
    return places.reshape(places.shape + (1,) * (jnp.ndim(leaf) - places.ndim))
