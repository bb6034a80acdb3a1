"""Random indices, evaluated at one position at a time: nothing is stored or sorted, and no generator is carried along.

Inside a loop over local steps a few integer operations a number are many times cheaper than JAX's own generators, and
need no table of the length of the longest client. They choose minibatches and cohorts; they are no cryptography.

The permutation is the swap-or-not shuffle of Hoang, Morris and Rogaway (CRYPTO 2012): in each pass a position x and
its mirror image K − x (mod n) change places or not, by a coin that both share. Every pass is a bijection, so the
result is a permutation whatever the quality of the coins; after r passes one position is uniform up to 2⁻ʳ.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Int, Key

from fedax.contract.types import Array, Number

_FEW = 2**24  # numbers that a float32 holds exactly


def independent(position: Int[Array, "*shape"], size: Number, key: Key[Array, ""]) -> Int[Array, "*shape"]:
    """Independent draws from 0 … size − 1, with replacement: one for each position.

    ``%`` favours small indices by less than size / 2³².

    Args:
        position: integer array of any shape; the same position is the same draw.
        size: n ≥ 1, an integer (traced or not).
        key: a JAX random key of shape ().

    Example:
        >>> draws = independent(jnp.arange(1000), 3, jax.random.key(0))
        >>> jnp.bincount(draws, length=3).tolist()
        [341, 314, 345]
    """
    word = _hash(key, position)
    return (word % jnp.asarray(size, jnp.uint32)).astype(jnp.int32)


def shuffled(
    position: Int[Array, "*shape"], size: Number, key: Key[Array, ""], epoch: Number = 0, *, max_size: int
) -> Int[Array, "*shape"]:
    """π(position), for a random permutation π of 0 … size − 1 drawn by ``key`` and ``epoch``.

    Args:
        position: integer array of any shape, 0 ≤ position < size.
        size: n, an integer (traced or not), 1 ≤ n ≤ ``max_size`` < 2³¹.
        key: a JAX random key of shape ().
        epoch: integer array that broadcasts against ``position``; each value has its own permutation.
        max_size: static upper bound of ``size``; sets the number of passes.

    Example:
        >>> order = shuffled(jnp.arange(5), 5, jax.random.key(0), max_size=5)
        >>> sorted(order.tolist())
        [0, 1, 2, 3, 4]
    """
    passes = 6 + 2 * math.ceil(math.log2(max(max_size, 2)))
    n, seed = jnp.asarray(size, jnp.int32), _hash(key, epoch)
    x = jnp.broadcast_to(jnp.asarray(position, jnp.int32), jnp.broadcast_shapes(*map(jnp.shape, (position, n, seed))))

    def one(i: Number, x: Number) -> Number:
        return _swap_or_not(x, n, seed + jnp.asarray(i, jnp.uint32) * jnp.uint32(0x85EBCA6B), few=max_size < _FEW)

    def all_passes(unroll: int) -> Callable[[Number], Number]:
        return lambda x: jax.lax.fori_loop(0, passes, one, x, unroll=unroll)

    # On a GPU each pass of a loop would be a kernel of its own. On a CPU the loop is inside one kernel, and as fast as
    # unrolled if it takes two passes at a time. Unrolled takes as long to compile as all else in a round; minutes where
    # XLA fuses it with more.
    return jax.lax.platform_dependent(x, cpu=all_passes(2), default=all_passes(passes))


@functools.partial(jax.jit, static_argnames="few")  # traced once, not for each kind of platform
def _swap_or_not(x: Number, n: Number, seed: Number, few: bool) -> Number:
    word = _mix(seed)
    if few:
        scale = n.astype(jnp.float32) * jnp.float32(2.0**-24)
        turn = jnp.minimum(((word >> 8).astype(jnp.float32) * scale).astype(jnp.int32), n - 1)
    else:
        turn = _scaled(word, n.astype(jnp.uint32)).astype(jnp.int32)
    mirror = turn - x
    mirror = jnp.where(mirror < 0, mirror + n, mirror)
    coin = _mix(jnp.maximum(x, mirror).astype(jnp.uint32) ^ word) & 1
    return jnp.where(coin == 1, mirror, x)


def _scaled(word: Number, n: Number) -> Number:
    """⌊word · n / 2³²⌋ of two words, from products of 16 bits."""
    word_high, word_low, n_high, n_low = word >> 16, word & 0xFFFF, n >> 16, n & 0xFFFF
    one = word_high * n_low + (word_low * n_low >> 16)
    other = word_low * n_high + (one & 0xFFFF)
    return word_high * n_high + (one >> 16) + (other >> 16)


def _hash(key: Number, counter: Number) -> Number:
    """32 bits for each counter, which depend on all bits of the key."""
    words = jax.random.key_data(key).astype(jnp.uint32).reshape(-1)
    return _mix(words[0] ^ _mix(words[-1] + (jnp.asarray(counter, jnp.uint32) + 1) * jnp.uint32(0x9E3779B9)))


def _mix(word: Number) -> Number:
    """A 32-bit finalizer: every bit of the input reaches every bit of the output."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x7FEB352D)
    word = (word ^ (word >> 15)) * jnp.uint32(0x846CA68B)
    return word ^ (word >> 16)
