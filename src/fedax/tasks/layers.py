"""The layers of the model zoo: plain functions of arrays, images as [batch, height, width, channels].

They are here because XLA's own convolution is slow in a loop on a CPU, and every local step runs in a loop: there the
gradient with respect to the weights is not rewritten to its fast form (30 times slower). Any model may use them.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedax.errors import ConfigError

Pads = tuple[tuple[int, int], tuple[int, int]]

_LAYOUT = ("NHWC", "HWIO", "NHWC")
_PRODUCTS_UP_TO = 9  # kernel entries, on a CPU


def conv2d(
    x: Float[Array, "b h w i"], weights: Float[Array, "kh kw i o"], stride: int = 1, padding: str = "SAME"
) -> Float[Array, "b oh ow o"]:
    """Two-dimensional convolution, fast on every platform, inside loops too.

    ``out[b, p, q, o] = Σ_{r, s, i} x[b, stride·p + r, stride·q + s, i] weights[r, s, i, o]``, with x padded by zeros.

    Args:
        x: images.
        weights: one kernel [kh, kw] for each pair of an input and an output channel.
        stride: at least 1, the same in both directions.
        padding: "SAME" (oh = ⌈h/stride⌉) or "VALID" (no padding).

    On a CPU kernels up to 3×3 become one matrix product over shifted copies of x, which stays fast with many channels
    and when clients with weights of their own are vectorised; larger ones, whose copies would be too many, become a
    convolution with both gradients written out. Elsewhere it is XLA's own.

    Example:
        >>> conv2d(jnp.ones((1, 3, 3, 1)), jnp.ones((3, 3, 1, 1)))[0, :, :, 0].tolist()
        [[4.0, 6.0, 4.0], [6.0, 9.0, 6.0], [4.0, 6.0, 4.0]]
    """
    if padding not in ("SAME", "VALID"):
        raise ConfigError("padding", padding, "give 'SAME' or 'VALID'")
    dtype = jnp.result_type(x, weights)
    x, weights = x.astype(dtype), weights.astype(dtype)
    (top, bottom), (left, right) = lax.padtype_to_pads(x.shape[1:3], weights.shape[:2], (stride, stride), padding)
    pads = ((int(top), int(bottom)), (int(left), int(right)))
    by_products = weights.shape[0] * weights.shape[1] <= _PRODUCTS_UP_TO
    on_cpu = functools.partial(_shift_and_multiply if by_products else _convolve_in_loop, stride, pads)
    return lax.platform_dependent(x, weights, cpu=on_cpu, default=functools.partial(_convolve, stride, pads))


def _convolve(stride: int, pads: Pads, x: Array, weights: Array) -> Array:
    return lax.conv_general_dilated(x, weights, (stride, stride), pads, dimension_numbers=_LAYOUT)


def _shift_and_multiply(stride: int, pads: Pads, x: Array, weights: Array) -> Array:
    kh, kw, i, o = weights.shape
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    b, h, w, _ = x.shape
    oh, ow = (h - kh) // stride + 1, (w - kw) // stride + 1
    last_row, last_column = stride * (oh - 1) + 1, stride * (ow - 1) + 1
    shifted = [
        lax.slice(x, (0, r, s, 0), (b, r + last_row, s + last_column, i), (1, stride, stride, 1))
        for r in range(kh)
        for s in range(kw)
    ]
    # Flattened to a matrix first: a product over three axes is transposed by copying, which takes thrice as long.
    columns = jnp.concatenate(shifted, axis=-1).reshape(b * oh * ow, kh * kw * i)
    return (columns @ weights.reshape(kh * kw * i, o)).reshape(b, oh, ow, o)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _convolve_in_loop(stride: int, pads: Pads, x: Array, weights: Array) -> Array:
    return _convolve(stride, pads, x, weights)


def _forward(stride: int, pads: Pads, x: Array, weights: Array) -> tuple[Array, tuple[Array, Array]]:
    return _convolve(stride, pads, x, weights), (x, weights)


def _backward(stride: int, pads: Pads, saved: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    # Both gradients are convolutions in the layout of the forward one: XLA calls its fast routine for that layout
    # alone. Each padding ends where the result has the size of x, or of the kernel; an end is negative where the
    # stride leaves the last rows of x unread.
    x, weights = saved
    sides = list(zip(pads, weights.shape, x.shape[1:3], g.shape[1:3], strict=False))
    reach = [stride * (steps - 1) + 1 for *_, steps in sides]  # of g, its rows ``stride`` apart
    # dx[b, m, n, i] = Σ g[b, p, q, o] weights[m − stride·p, n − stride·q, i, o]: g spread out, the kernel reversed.
    dx = lax.conv_general_dilated(
        g,
        weights[::-1, ::-1].swapaxes(2, 3),
        (1, 1),
        [(k - 1 - low, length - r + low) for ((low, _), k, length, _), r in zip(sides, reach, strict=True)],
        lhs_dilation=(stride, stride),
        dimension_numbers=_LAYOUT,
    )
    # dweights[r, s, i, o] = Σ x[b, stride·p + r, stride·q + s, i] g[b, p, q, o]: examples and channels change places.
    dweights = lax.conv_general_dilated(
        x.transpose(3, 1, 2, 0),
        g.transpose(1, 2, 0, 3),
        (1, 1),
        [(low, k - 1 - low - length + r) for ((low, _), k, length, _), r in zip(sides, reach, strict=True)],
        rhs_dilation=(stride, stride),
        dimension_numbers=_LAYOUT,
    )
    return dx, dweights.transpose(1, 2, 0, 3)


_convolve_in_loop.defvjp(_forward, _backward)


def max_pool(x: Float[Array, "b h w c"], size: int = 2) -> Float[Array, "b oh ow c"]:
    """The largest value of each ``size`` × ``size`` window; windows do not overlap, incomplete ones are left out.

    Example:
        >>> max_pool(jnp.arange(20.0).reshape(1, 4, 5, 1))[0, :, :, 0].tolist()
        [[6.0, 8.0], [16.0, 18.0]]
    """
    b, h, w, c = x.shape
    oh, ow = h // size, w // size
    # Reshape and max: the gradient of XLA's window reduction is several times slower on a CPU.
    return x[:, : oh * size, : ow * size].reshape(b, oh, size, ow, size, c).max(axis=(2, 4))


def group_norm(
    x: Float[Array, "b h w c"], scale: Float[Array, " c"], offset: Float[Array, " c"], groups: int
) -> Float[Array, "b h w c"]:
    """Each example's channels, in ``groups`` equal groups, brought to mean 0 and variance 1; then scale and offset.

    An example is treated alone, so that the loss stays a mean over examples (Wu and He 2018, "Group normalization").

    Example:
        >>> out = group_norm(jnp.arange(4.0).reshape(1, 2, 1, 2), jnp.ones(2), jnp.zeros(2), groups=2)
        >>> print(out[0, :, 0].round(3))
        [[-1. -1.]
         [ 1.  1.]]
    """
    each = x.shape[-1] // groups

    def mean(x: Array) -> Array:
        # Over the image first, then over a group's channels: alone on a CPU, one sum over both is seven times slower.
        means = x.mean(axis=(1, 2)).reshape(-1, groups, each).mean(axis=2)
        return jnp.repeat(means, each, axis=1)[:, None, None]

    centred = x - mean(x)
    return centred * (lax.rsqrt(mean(centred**2) + 1e-5) * scale[None, None, None]) + offset[None, None, None]


def dense(x: Float[Array, "*b i"], weights: Float[Array, "i o"], offset: Float[Array, " o"]) -> Float[Array, "*b o"]:
    """``x @ weights + offset``."""
    return x @ weights + offset.reshape((1,) * (x.ndim - 1) + (-1,))


def dropout(x: Array, rate: float, key: Any) -> Array:
    """Each entry set to zero with probability ``rate``, the others divided by 1 − rate; nothing where key is None.

    Example:
        >>> sorted(set(dropout(jnp.ones(100), 0.5, jax.random.key(0)).tolist()))
        [0.0, 2.0]
    """
    if key is None or rate == 0:
        return x
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


def lstm(x: Float[Array, "b t i"], params: dict[str, Array]) -> Float[Array, "b t h"]:
    """One LSTM layer over time, from a state of zeros.

    With z = x_t W + h V + offset cut into i, f, g, o: ``c ← σ(f) c + σ(i) tanh(g)``, ``h ← σ(o) tanh(c)``.

    Args:
        x: T steps of inputs.
        params: {"input": W [i, 4h], "state": V [h, 4h], "offset": [4h]}.

    Returns:
        h after each step.

    Source: Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000.

    Example:
        >>> zeros = {"input": jnp.zeros((2, 12)), "state": jnp.zeros((3, 12)), "offset": jnp.zeros(12)}
        >>> lstm(jnp.ones((1, 5, 2)), zeros).shape
        (1, 5, 3)
    """
    z_input = dense(x, params["input"], params["offset"])  # all steps in one product

    def step(carry: Any, z: Array) -> Any:
        c, h = carry
        i, f, g, o = jnp.split(z + h @ params["state"], 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (c, h), h

    # Zeros like z, not new ones: under ``shard_map`` the state must be known to differ between devices, as z does.
    zeros = jnp.zeros_like(z_input[:, 0, : params["state"].shape[0]])
    return lax.scan(step, (zeros, zeros), z_input.swapaxes(0, 1))[1].swapaxes(0, 1)
