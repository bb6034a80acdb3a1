"""What compressors share: numbers that may be traced, and seeds that travel in messages."""

import jax
import jax.numpy as jnp

from fedax.contract.types import Array, Number

SEED_BITS = 64


def is_known(number: Number) -> bool:
    """Whether a number has a value, and is not traced by JAX."""
    return not isinstance(number, jax.core.Tracer)


def seed_of(key: Array) -> Array:
    """64 bits that a message carries, [2]."""
    return jax.random.bits(key, (2,), jnp.uint32)


def key_of(seed: Array) -> Array:
    key: Array = jax.random.wrap_key_data(jnp.asarray(seed), impl="threefry2x32")
    return key
