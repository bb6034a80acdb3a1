"""Numbers as bytes of a real wire, and back: whole arrays, then codes of a few bits each; and seeds of 64 bits."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fedax.contract.types import Array, Number, Unknown


def packed(arrays: Sequence[np.ndarray], codes: np.ndarray | None = None, width: int = 0) -> np.ndarray:
    """Bytes of arrays, one after another, little end first; then of codes below 2^``width``, high bit first.

    Example:
        >>> packed([np.array([1], np.uint16)], np.array([1, 0, 3]), 3).tolist()
        [1, 0, 33, 128]
    """
    parts = [np.frombuffer(_little(np.asarray(array)).tobytes(), np.uint8) for array in arrays]
    if codes is not None:
        places = np.arange(width - 1, -1, -1)
        bits = (np.asarray(codes, np.int64).reshape(-1, 1) >> places) & 1
        parts.append(np.packbits(bits.astype(np.uint8)))
    return np.concatenate([*parts, np.zeros(0, np.uint8)])


def unpacked(
    file: Unknown, forms: Sequence[tuple[tuple[int, ...], Unknown]], count: int = 0, width: int = 0
) -> tuple[list[np.ndarray], np.ndarray]:
    """Arrays of these shapes and types, and ``count`` codes, out of bytes from elsewhere.

    Raises:
        ValueError: bytes that :func:`packed` does not write.

    Example:
        >>> arrays, codes = unpacked(np.array([1, 0, 33, 128], np.uint8), [((1,), np.uint16)], 3, 3)
        >>> arrays[0].tolist(), codes.tolist()
        ([1], [1, 0, 3])
    """
    file = np.asarray(file)
    sizes = [math.prod(shape) * np.dtype(kind).itemsize for shape, kind in forms]
    length = sum(sizes) + -(-count * width // 8)
    if file.dtype != np.uint8 or file.shape != (length,):
        raise ValueError(f"a message of {length} bytes is expected, not {file.dtype} of shape {file.shape}")
    arrays, at = [], 0
    for (shape, kind), size in zip(forms, sizes, strict=True):
        kind = np.dtype(kind)
        arrays.append(_little(np.frombuffer(file[at : at + size].tobytes(), kind)).reshape(shape))
        at += size
    bits = np.unpackbits(file[at:])
    if bits[count * width :].any():
        raise ValueError("bits after the end of a message are not 0")
    powers = np.left_shift(np.int64(1), np.arange(width - 1, -1, -1))
    return arrays, bits[: count * width].reshape(count, width) @ powers


def codes_of(numbers: np.ndarray) -> np.ndarray:
    """The bits of floating-point numbers as whole numbers without a sign."""
    numbers = np.ascontiguousarray(numbers)
    return numbers.view(f"uint{8 * numbers.dtype.itemsize}")


def numbers_of(codes: np.ndarray, kind: Unknown) -> np.ndarray:
    """The floating-point numbers that have these bits."""
    kind = np.dtype(kind)
    return codes.astype(f"uint{8 * kind.itemsize}").view(kind)


def _little(array: np.ndarray) -> np.ndarray:
    """With the little end first, from or for this machine."""
    return array if np.little_endian else array.byteswap()


SEED_BITS = 64


def is_known(number: Number) -> bool:
    """Whether a number has a value, and is not traced by JAX."""
    return not isinstance(number, jax.core.Tracer)


def seed_of(key: Array) -> Array:
    """64 bits that a message carries, [2]."""
    return jax.random.bits(key, (2,), jnp.uint32)


def key_of(seed: Array) -> Array:
    return jax.random.wrap_key_data(jnp.asarray(seed), impl="threefry2x32")
