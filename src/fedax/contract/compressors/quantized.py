"""Compressors that send each number with fewer bits."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedax.contract.compression import ArrayForm, Compressor
from fedax.contract.packing import codes_of, is_known, numbers_of, packed, unpacked
from fedax.contract.types import Array, Number, Tree
from fedax.contract.vector import norm_of
from fedax.errors import ConfigError
from fedax.numbers import check_number


class QSGD(Compressor):
    """Each number as a whole multiple of ‖x‖/s, rounded at random: unbiased, ω = min(d/(4s²), √d/s).

    A number between two multiples becomes either, in such a way that its mean is right. A message has the norm of all
    numbers together, and one of 2s + 1 values for each.

    Args:
        levels: s, a whole number in [1, 65536].

    Raises:
        ConfigError: levels out of range.

    Source: Alistarh et al. 2017, "QSGD", Section 3.1. Its Lemma 3.1 has d/s² in place of d/(4s²), which the variance
    p(1 − p) ≤ 1/4 of rounding gives.

    Example:
        >>> QSGD(5).encode(jax.random.key(0), jnp.array([3.0, -4.0, 0.0]))[0].decode().round(4).tolist()
        [3.0, -4.0, 0.0]
    """

    levels: Number

    def __check_init__(self) -> None:
        check_number("levels", self.levels, 1, 2**16, fixed=True)
        if is_known(self.levels) and float(self.levels) % 1:
            raise ConfigError("levels", self.levels, "give a whole number")

    def compress(self, key: Array, x: Array) -> Tree:
        norm = norm_of([x])
        known = jnp.isfinite(norm) & (norm > 0)
        s = jnp.asarray(self.levels, x.dtype)
        size = jnp.where(known, jnp.minimum(jnp.abs(x) / jnp.where(known, norm, 1) * s, s), 0)
        low = jnp.floor(size)
        level = low + (jax.random.uniform(key, x.shape, x.dtype) < size - low)
        return {"norm": norm, "levels": jnp.where(x < 0, -level, level).astype(jnp.int32)}

    def restore(self, parts: Tree, form: ArrayForm) -> Array:
        norm: Array = parts["norm"]
        levels: Array = parts["levels"]
        return norm * (levels.astype(norm.dtype) / jnp.asarray(self.levels, norm.dtype))

    def bits(self, form: ArrayForm) -> int:
        return form.size * self._width + 8 * form.kind.itemsize

    def omega(self, d: int) -> Number:
        least = min if is_known(self.levels) else jnp.minimum
        return least(d / (4 * self.levels**2), math.sqrt(d) / self.levels)

    def pack(self, parts: Tree, form: ArrayForm) -> np.ndarray:
        codes = np.asarray(parts["levels"], np.int64) + int(self.levels)
        return packed([np.asarray(parts["norm"], form.kind)], codes, self._width)

    def unpack(self, file: np.ndarray, form: ArrayForm) -> Tree:
        (norm,), codes = unpacked(file, [((), form.kind)], form.size, self._width)
        if norm < 0 or (codes > 2 * int(self.levels)).any():
            raise ValueError("the norm of a message is below 0, or there is no such level")
        return {"norm": norm, "levels": (codes - int(self.levels)).astype(np.int32)}

    @property
    def _width(self) -> int:
        return (2 * int(self.levels)).bit_length()


class Natural(Compressor):
    """Each number rounded at random to one of the two powers of two around it: unbiased, ω = 1/8.

    A message has the sign and the exponent of each number, 9 bits of one of 32.

    Source: Horváth et al. 2022, "Natural compression for distributed deep learning", Definition 1 and Theorem 1.

    Example:
        >>> Natural().encode(jax.random.key(0), jnp.array([1.0, -4.0, 0.0, 3.0]))[0].decode()[:3].tolist()
        [1.0, -4.0, 0.0]
    """

    def compress(self, key: Array, x: Array) -> Tree:
        # The exponent goes up where random bits below it carry over: with a probability that is the mantissa.
        whole = jnp.dtype(f"uint{8 * x.dtype.itemsize}")
        below = whole.type((1 << jnp.finfo(x.dtype).nmant) - 1)
        infinite = jax.lax.bitcast_convert_type(jnp.asarray(jnp.inf, x.dtype), whole)
        size = jax.lax.bitcast_convert_type(jnp.abs(x), whole)
        rounded = (size + (jax.random.bits(key, x.shape, whole) & below)) & ~below
        power = jax.lax.bitcast_convert_type(jnp.where(size >= infinite, infinite, rounded), x.dtype)
        return jnp.where(jnp.signbit(x), -power, power)

    def bits(self, form: ArrayForm) -> int:
        return form.size * _sign_and_exponent(form)

    def omega(self, d: int) -> float:
        return 1 / 8

    def pack(self, parts: Tree, form: ArrayForm) -> np.ndarray:
        codes = codes_of(np.asarray(parts, form.kind)) >> jnp.finfo(form.kind).nmant
        return packed([], codes, _sign_and_exponent(form))

    def unpack(self, file: np.ndarray, form: ArrayForm) -> Tree:
        _, codes = unpacked(file, [], form.size, _sign_and_exponent(form))
        return numbers_of(codes.astype(np.uint64) << np.uint64(jnp.finfo(form.kind).nmant), form.kind)


class Sign(Compressor):
    """The sign of each number, times the mean of their sizes, ‖x‖₁/d: contractive, α = 1/d for the worst x.

    For a given x it is α = ‖x‖₁²/(d‖x‖₂²), which is 2/π for many normal numbers. The sign of 0 is +.

    Source: Seide et al. 2014, "1-bit stochastic gradient descent", scaled as in Karimireddy et al. 2019, "Error
    feedback fixes SignSGD", Lemma 8.

    Example:
        >>> Sign().encode(None, jnp.array([1.0, -3.0]))[0].decode().tolist()
        [2.0, -2.0]
    """

    def compress(self, key: Array, x: Array) -> Tree:
        return {"size": jnp.mean(jnp.abs(x)), "negative": x < 0}

    def restore(self, parts: Tree, form: ArrayForm) -> Array:
        return jnp.where(parts["negative"], -parts["size"], parts["size"])

    def bits(self, form: ArrayForm) -> int:
        return form.size + 8 * form.kind.itemsize

    def alpha(self, d: int) -> float:
        return 1 / d

    def pack(self, parts: Tree, form: ArrayForm) -> np.ndarray:
        return packed([np.asarray(parts["size"], form.kind)], parts["negative"], 1)

    def unpack(self, file: np.ndarray, form: ArrayForm) -> Tree:
        (size,), codes = unpacked(file, [((), form.kind)], form.size, 1)
        if size < 0:
            raise ValueError("the size in a message is below 0")
        return {"size": size, "negative": codes == 1}


class Cast(Compressor):
    """Each number in a type of 16 bits: contractive while it is in the type's normal range.

    α = 1 − 2⁻¹⁶ for bfloat16, which has the range of float32, and 1 − 2⁻²² for float16, whose normal range is 6.1e-5 to
    65504: larger numbers become infinite, and smaller ones lose digits.

    Args:
        to: ``"bfloat16"`` or ``"float16"``.

    Raises:
        ConfigError: another type.

    Example:
        >>> Cast("bfloat16").encode(None, jnp.array([1.0, 3.14159]))[0].decode().tolist()
        [1.0, 3.140625]
    """

    to: str = eqx.field(static=True, default="bfloat16")

    def __check_init__(self) -> None:
        if self.to not in ("bfloat16", "float16"):
            raise ConfigError("to", self.to, "give 'bfloat16' or 'float16'")

    def compress(self, key: Array, x: Array) -> Tree:
        # Rounded by an operation of its own: compilers leave out a cast there and back.
        kind = jnp.finfo(self.to)
        return jax.lax.reduce_precision(x, kind.nexp, kind.nmant).astype(self.to)

    def restore(self, parts: Tree, form: ArrayForm) -> Array:
        numbers: Array = parts
        return numbers.astype(form.kind)

    def bits(self, form: ArrayForm) -> int:
        return 16 * form.size

    def alpha(self, d: int) -> float:
        return 1 - 2.0 ** (-2 * (jnp.finfo(self.to).nmant + 1))


def _sign_and_exponent(form: ArrayForm) -> int:
    return 8 * form.kind.itemsize - int(jnp.finfo(form.kind).nmant)
