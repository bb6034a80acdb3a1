"""Secure aggregation, the arithmetic: uploads as whole numbers modulo 2^bits, so that masks cancel in their sum.

:mod:`fedax.engine.secured` checks a run with secure sums; :mod:`fedax.sites.protocol.masks` is the protocol by which
real nodes mask their sums.
"""

import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedax.contract.algorithm import Round
from fedax.contract.settings import Settings, plain
from fedax.contract.types import Array, Number, Tree, Unknown
from fedax.contract.vector import scale_of
from fedax.errors import ConfigError
from fedax.numbers import check_count, check_number
from fedax.wire.sums import by_kind

_BITS = (16, 24, 32)
_ROUNDING = 1e-6  # of norms in float32


class SecureSum(Settings):
    """Sum uploads as whole numbers modulo 2^bits, which can be masked so that the server learns their sum alone.

    Each upload is shortened to the norm ``clip``, all of its arrays together; one with a number that is not finite
    becomes 0. Its numbers, weighted, are rounded to the nearest multiple of a unit. With at most S clients in a round
    no client has more than m = ⌊(2^(bits−1) − 1)/S⌋ units, so no sum overflows, whatever clients send. The unit of the
    sum Σ ω_i v_i is max ω · clip/m, about max ω · clip · S · 2^(1−bits); that of changes has max p instead of
    max ω. Whole numbers add up to the same bits in every order: on any number of chunks, devices, processes and nodes.

    A simulation adds the same numbers without masks. At real nodes (``fedax deploy``) they are masked, by the protocol
    of Bonawitz et al. 2017, "Practical secure aggregation for privacy-preserving machine learning", Figure 4.

    Args:
        clip: the longest Euclidean norm of an upload, > 0. ``None``: the clip of ``privacy``.
        bits: of each number on the wire: 16, 24 or 32.
        threshold: of real nodes, how many have to stay until the end of an exchange, ≥ 2. ``None``: more than two
            thirds of those that are asked. More than half have to in any case. With t of n nodes, 2t − n − 1 may
            work with the server; nodes refuse a threshold that is too low for their owners.

    Raises:
        ConfigError: values out of range.

    Example:
        >>> SecureSum(clip=2.0, bits=16)
        SecureSum(clip=2.0, bits=16)
    """

    clip: Number = None
    bits: int = eqx.field(static=True, converter=plain, default=32)
    threshold: int | None = eqx.field(static=True, converter=plain, default=None)

    def __check_init__(self) -> None:
        if self.clip is not None:
            check_number("clip", self.clip, 0, open_low=True)
        if self.bits not in _BITS or isinstance(self.bits, bool):
            raise ConfigError("bits", self.bits, "give 16, 24 or 32")
        if self.threshold is not None:
            check_count("threshold", self.threshold, 2)

    def of(self, round_: Round, clip: Number = None) -> "FixedPoint":
        """The fixed-point format of a round; ``clip``: that of ``privacy``."""
        largest = round_.weights.max(), round_.data_weights.max()  # of NumPy's arrays without a program of JAX
        clip = jnp.asarray(self.clip if clip is None else clip, largest[0].dtype)
        return FixedPoint(clip, largest, round_.weights.shape[0], self.bits)

    def check(self, places: int, size: int) -> None:
        """Check that rounding changes the length of uploads of ``size`` numbers by a quarter at most.

        Args:
            places: the most clients of a round.
            size: d.

        Raises:
            ConfigError: there are too few bits.

        Example:
            >>> SecureSum(1.0, bits=16).check(100, 10**6)
            Traceback (most recent call last):
            fedax.errors.ConfigError: secure.bits = 16: 1000000 numbers of 100 clients need more; take 24 or 32, ...
        """
        if math.sqrt(size) / 2 > most(places, self.bits) / 4:
            larger = " or ".join(str(bits) for bits in _BITS if bits > self.bits)
            hint = f"take {larger}, or fewer clients in a round" if larger else "take fewer clients in a round"
            raise ConfigError("secure.bits", self.bits, f"{size} numbers of {places} clients need more; {hint}")


class WholeNumbers(eqx.Module):
    """An array as whole numbers.

    Attributes:
        value: uint32; they count modulo 2^32, and where fewer bits are sent modulo 2^bits.
        kind: the type of the numbers that they stand for.
    """

    value: Array
    kind: Unknown = eqx.field(static=True)


class FixedPoint(eqx.Module):
    """A fixed-point format: the real numbers that whole numbers stand for in a round.

    Args:
        clip: the longest norm of an upload.
        largest: the largest ω, and the largest p, of the round.
        places: S, the most clients of the round.
        bits: of the sum, its sign included.

    Example:
        >>> fixed = FixedPoint(2.0, (jnp.float32(0.5),) * 2, places=2, bits=16)
        >>> each = [fixed.integers({"w": jnp.array(v)}, 0.5, 0.5) for v in ([0.5, 1.0], [-0.25, jnp.nan])]
        >>> total = jax.tree.map(jnp.add, *each)
        >>> total["w"].value.tolist(), fixed.numbers(total)["w"].round(3).tolist()
        ([4096, 8192], [0.25, 0.5])
    """

    clip: Array
    largest: tuple[Array, Array]
    places: int = eqx.field(static=True)
    bits: int = eqx.field(static=True)

    def integers(self, upload: Tree, weight: Array, data_weight: Array) -> Tree:
        """ω v of the estimates of one upload, p v of its changes, in units: a pytree of :class:`WholeNumbers`."""
        leaves = jax.tree.leaves(upload)
        if not leaves:  # of a client that only listens
            return upload
        size, m = sum(jnp.size(leaf) for leaf in leaves), most(self.places, self.bits)
        fine = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))
        # Rounding may add half a unit to each number; so much shorter, none is longer than clip when it is rounded.
        room = 1 - math.sqrt(size) / 2 / m - _ROUNDING
        largest = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)).astype(_wide(leaf)) for leaf in leaves]))
        scale = scale_of(largest)
        norm = jnp.sqrt(sum(jnp.sum((leaf / scale) ** 2, dtype=scale.dtype) for leaf in leaves))
        # Products are kept apart, and nothing is divided but numbers that all clients have in common: compilers gather
        # products, and divide many numbers less exactly than one. The sum has to have the same bits everywhere.
        apart: Callable[[Array], Array] = jax.lax.optimization_barrier
        shorten = apart(jnp.minimum(apart(1 / self.clip), room / (scale * norm)))  # of a norm of 0, 1 / clip

        def whole(weight: Array, largest: Array, leaf: Array) -> WholeNumbers:
            kind = _wide(leaf)
            share = apart(apart(weight) * apart(jnp.where(largest > 0, 1 / largest, 0)))
            factor = apart(apart(shorten * share) * m)
            units = jnp.clip(jnp.round(leaf.astype(kind) * factor.astype(kind)), -m, m)
            units = jnp.where(fine & (share > 0), units, 0).astype(jnp.int32)
            return WholeNumbers(jax.lax.bitcast_convert_type(units, jnp.uint32), kind)

        of_estimates, of_changes = self.largest
        return by_kind(
            lambda leaf: whole(weight, of_estimates, leaf), lambda leaf: whole(data_weight, of_changes, leaf), upload
        )

    def numbers(self, total: Tree) -> Tree:
        """A sum of :meth:`integers` as real numbers."""
        unused, m = 32 - self.bits, most(self.places, self.bits)

        def number(largest: Array, whole: WholeNumbers) -> Array:
            signed = jax.lax.bitcast_convert_type(whole.value << unused, jnp.int32) >> unused
            return signed.astype(whole.kind) * (largest * self.clip / m).astype(whole.kind)

        of_estimates, of_changes = self.largest
        return by_kind(
            lambda whole: number(of_estimates, whole), lambda whole: number(of_changes, whole), total, is_whole
        )


def is_whole(part: Tree) -> bool:
    """Whether a part of a sum is a :class:`WholeNumbers`."""
    return isinstance(part, WholeNumbers)


def most(places: int, bits: int) -> int:
    """m, the most units of one of ``places`` clients, whose sums then stay below 2^(bits−1).

    It is a number of float32, so that nothing is rounded above it.

    Example:
        >>> most(1, 32), most(10, 16)
        (2147483520, 3276)
    """
    exact = (2 ** (bits - 1) - 1) // places
    found = np.float32(exact)
    return int(found if int(found) <= exact else np.nextafter(found, np.float32(0)))


def _wide(leaf: Array) -> Unknown:
    """The type in which a leaf is weighted."""
    return jnp.result_type(leaf, jnp.float32)
