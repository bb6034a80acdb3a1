"""Compressors that send some of the numbers: the largest ones, or those at random places."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from fedax.contract.compression import ArrayForm, Compressor
from fedax.contract.indices import shuffled
from fedax.contract.packing import SEED_BITS, codes_of, is_known, key_of, packed, seed_of, unpacked
from fedax.contract.types import Array, Number, Tree, Unknown
from fedax.numbers import check_number


class TopK(Compressor):
    """The k = ⌈share·d⌉ numbers that are largest in size, and 0 for the others: contractive, α = k/d.

    Of numbers that are equally large the first ones are sent. A message has k numbers and their places.

    Args:
        share: of all numbers, in (0, 1]; it counts in millionths, and k is at least 1.

    Raises:
        ConfigError: a share out of range.

    Source: Stich et al. 2018, "Sparsified SGD with memory", Definition 2.1.

    Example:
        >>> TopK(0.5).encode(None, jnp.array([1.0, -5.0, 2.0, 0.0]))[0].decode().tolist()
        [0.0, -5.0, 2.0, 0.0]
    """

    share: Number

    def __check_init__(self) -> None:
        check_number("share", self.share, 0, 1, open_low=True, fixed=True)

    def compress(self, key: Array, x: Array) -> Tree:
        return jnp.where(_largest(x, _count(self.share, x.size)), x, 0)

    def bits(self, form: ArrayForm) -> int:
        return int(_count(self.share, form.size)) * (8 * form.kind.itemsize + _place_bits(form.size))

    def alpha(self, d: int) -> Number:
        return _ratio(_count(self.share, d), d)

    def pack(self, parts: Tree, form: ArrayForm) -> np.ndarray:
        x = np.asarray(parts, form.kind)
        # Those that are not +0; were there fewer than k, zeros are among the largest.
        places = np.argsort(codes_of(x) == 0, kind="stable")[: _count(self.share, form.size)]
        places = np.sort(places)
        return packed([x[places]], places, _place_bits(form.size))

    def unpack(self, file: np.ndarray, form: ArrayForm) -> Tree:
        k = int(_count(self.share, form.size))
        (numbers,), places = unpacked(file, [((k,), form.kind)], k, _place_bits(form.size))
        if (np.diff(places) <= 0).any() or (places >= form.size).any():
            raise ValueError("the places of a message do not increase, or are too large")
        return _at(places, numbers, form)


class RandomK(Compressor):
    """k = ⌈share·d⌉ numbers at random places, times d/k, and 0 for the others: unbiased, ω = d/k − 1.

    A message has k numbers, and a seed of 64 bits from which their places are drawn again. If any of the d numbers is
    not finite, none of the k is.

    Args:
        share: of all numbers, in (0, 1]; it counts in millionths, and k is at least 1.

    Raises:
        ConfigError: a share out of range.

    Source: Stich et al. 2018, Definition 2.1, scaled as in Condat et al. 2022, equation (5).

    Example:
        >>> sorted(RandomK(0.5).encode(jax.random.key(0), jnp.ones(4))[0].decode().tolist())
        [0.0, 0.0, 2.0, 2.0]
    """

    share: Number

    def __check_init__(self) -> None:
        check_number("share", self.share, 0, 1, open_low=True, fixed=True)

    def compress(self, key: Array, x: Array) -> Tree:
        seed = seed_of(key)
        scale = jnp.where(jnp.all(jnp.isfinite(x)), _ratio(x.size, _count(self.share, x.size)), jnp.nan)
        return {"numbers": jnp.where(self._drawn(seed, x.size), x * scale.astype(x.dtype), 0), "seed": seed}

    def restore(self, parts: Tree, form: ArrayForm) -> Array:
        return parts["numbers"]

    def bits(self, form: ArrayForm) -> int:
        return int(_count(self.share, form.size)) * 8 * form.kind.itemsize + SEED_BITS

    def omega(self, d: int) -> Number:
        return _ratio(d, _count(self.share, d)) - 1

    def pack(self, parts: Tree, form: ArrayForm) -> np.ndarray:
        places = np.flatnonzero(self._drawn(parts["seed"], form.size))
        return packed([np.asarray(parts["seed"], np.uint32), np.asarray(parts["numbers"], form.kind)[places]])

    def unpack(self, file: np.ndarray, form: ArrayForm) -> Tree:
        k = int(_count(self.share, form.size))
        (seed, numbers), _ = unpacked(file, [((2,), np.uint32), ((k,), form.kind)])
        return {"numbers": _at(np.flatnonzero(self._drawn(seed, form.size)), numbers, form), "seed": seed}

    def _drawn(self, seed: Array, d: int) -> Array:
        """[d] which places are drawn."""
        return shuffled(jnp.arange(d), d, key_of(seed), max_size=d) < _count(self.share, d)


def _count(share: Number, d: int) -> Number:
    """⌈share·d⌉ ≥ 1 of a share in whole millionths: in integers, so that a program and its host agree."""
    if is_known(share):
        millionths: Number = int(np.rint(np.float32(share) * np.float32(1e6)))
        most: Number = max
    else:
        millionths = jnp.rint(jnp.asarray(share, jnp.float32) * jnp.float32(1e6)).astype(jnp.int32)
        most = jnp.maximum
    millions, rest = divmod(d, 10**6)
    # Of millionths · rest, which 32 bits do not hold: thousands, and what is left.
    thousands, left = divmod(rest, 1000)
    whole, part = millionths * thousands // 1000, millionths * thousands % 1000
    return most(1, millionths * millions + whole - (-(part * 1000 + millionths * left) // 10**6))


def _ratio(a: Number, b: Number) -> Number:
    """a/b of whole numbers, one of which may be traced: two of 32 bits would divide to float32, whatever JAX has."""
    return a / b if is_known(a) and is_known(b) else jnp.asarray(a, float) / jnp.asarray(b, float)


def _place_bits(d: int) -> int:
    return (d - 1).bit_length()


def _at(places: np.ndarray, numbers: np.ndarray, form: ArrayForm) -> np.ndarray:
    """[d] with numbers at places, and zeros."""
    x = np.zeros(form.size, form.kind)
    x[places] = numbers
    return x


def _largest(x: Array, k: Array) -> Array:
    """Which k numbers of [d] are largest in size; of equal ones the first."""
    whole = jnp.dtype(f"int{8 * x.dtype.itemsize}")
    size = jax.lax.bitcast_convert_type(jnp.abs(x), whole)  # of numbers ≥ 0 in the same order
    # Passes over the numbers, one a bit: many times faster than sorting them, or than a cumulative sum of equal ones.
    bound = _most(whole, 8 * whole.itemsize - 1, lambda bound: jnp.sum(size >= bound, dtype=jnp.int32) >= k)
    equal, rest = size == bound, k - jnp.sum(size > bound, dtype=jnp.int32)
    places = jnp.arange(x.size, dtype=jnp.int32)
    last = _most(places.dtype, x.size.bit_length(), lambda at: jnp.sum(equal & (places < at), dtype=jnp.int32) < rest)
    return (size > bound) | (equal & (places <= last))


def _most(kind: "np.dtype[Unknown]", bits: int, holds: Callable[[Array], Array]) -> Array:
    """Binary search: the largest number of so many bits that satisfies a monotone predicate."""

    def add(at: Array, low: Array) -> Array:
        bound = low | jnp.left_shift(jnp.ones((), kind), bits - 1 - at.astype(kind))
        return jnp.where(holds(bound), bound, low)

    return jax.lax.fori_loop(0, bits, add, jnp.zeros((), kind))
