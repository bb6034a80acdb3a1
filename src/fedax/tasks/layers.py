"""The layers of the model zoo: plain functions of arrays, images as [batch, height, width, channels].

They are here because XLA's own convolution is slow in a loop on a CPU, and every local step runs in a loop: there the
gradient with respect to the weights is not rewritten to its fast form (30 times slower). So is the gradient of a dense
layer with few outputs (3 times). Any model may use them.
"""

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from fedax.errors import ConfigError

Pads = tuple[tuple[int, int], tuple[int, int]]

_LAYOUT = ("NHWC", "HWIO", "NHWC")
_PRODUCTS_UP_TO = 9  # kernel entries, on a CPU
_COPIES_UP_TO = 25  # the same on a GPU
_CHANNELS = 32  # with at least so many channels of x and of the result, tiles are faster than shifted copies
_SEPARATE = 32  # from so many channels of the result, the pixels of a window have products of their own
_FEW = 32  # up to so many outputs, a dense layer computes its gradient in a special way
_TILES = 256  # tiles at a time: with 64 channels of float32 they take 1 MiB, a core's cache

# Two neighbouring outputs of a correlation with 3 weights, from 4 inputs by 4 products:
# ``_OUTPUT ((_KERNEL weights) * (_INPUT inputs))``.
_INPUT = ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1))
_KERNEL = ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1))
_OUTPUT = ((1, 1, 1, 0), (0, 1, -1, -1))


def conv2d(
    x: Float[Array, "b h w i"], weights: Float[Array, "kh kw i o"], stride: int = 1, padding: str | Pads = "SAME"
) -> Float[Array, "b oh ow o"]:
    """Two-dimensional convolution, fast on every platform, inside loops too.

    ``out[b, p, q, o] = Σ_{r, s, i} x[b, stride·p + r, stride·q + s, i] weights[r, s, i, o]``, with x padded by zeros.

    Args:
        x: images.
        weights: one kernel [kh, kw] for each pair of an input and an output channel.
        stride: at least 1, the same in both directions.
        padding: "SAME" (oh = ⌈h/stride⌉), "VALID" (no padding), or the rows of zeros above and below and the columns
            left and right, ((top, bottom), (left, right)).

    On a CPU kernels up to 3×3 become one matrix product over shifted copies of x, which stays fast with many channels
    and when clients with weights of their own are vectorised; larger ones, whose copies would be too many, become a
    convolution with both gradients written out. 3×3 kernels of stride 1 between many channels take tiles of 4×4 pixels
    to 2×2 outputs each by 16 products, where the definition has 36 (Lavin and Gray 2016, "Fast algorithms for
    convolutional neural networks", F(2×2, 3×3), which rounds no worse). On a GPU kernels up to 5×5 are products over
    shifted copies, too: clients with weights of their own make a batch of products, where cuDNN's grouped convolutions
    took up to three times as long. Elsewhere it is XLA's own.

    Example:
        >>> conv2d(jnp.ones((1, 3, 3, 1)), jnp.ones((3, 3, 1, 1)))[0, :, :, 0].tolist()
        [[4.0, 6.0, 4.0], [6.0, 9.0, 6.0], [4.0, 6.0, 4.0]]
    """
    if isinstance(padding, str):
        if padding not in ("SAME", "VALID"):
            raise ConfigError("padding", padding, "give 'SAME' or 'VALID', or ((top, bottom), (left, right))")
        (top, bottom), (left, right) = lax.padtype_to_pads(x.shape[1:3], weights.shape[:2], (stride, stride), padding)
    else:
        (top, bottom), (left, right) = padding
    dtype = jnp.result_type(x, weights)
    x, weights = x.astype(dtype), weights.astype(dtype)
    pads = ((int(top), int(bottom)), (int(left), int(right)))
    if stride == 1 and _tiles_are_faster(x, weights):
        on_cpu = functools.partial(_convolve_tiles, pads)
    elif weights.shape[0] * weights.shape[1] <= _PRODUCTS_UP_TO:
        on_cpu = functools.partial(_shift_and_multiply, stride, pads)
    else:
        on_cpu = functools.partial(_convolve_in_loop, stride, pads)
    native = functools.partial(_convolve, stride, pads)
    copies = weights.shape[0] * weights.shape[1] <= _COPIES_UP_TO
    on_gpu = functools.partial(_shift_and_multiply, stride, pads) if copies else native
    return lax.platform_dependent(x, weights, cpu=on_cpu, cuda=on_gpu, rocm=on_gpu, default=native)


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


def _tiles_are_faster(x: Array, weights: Array) -> bool:
    (b, h, w, i), (*kernel, _, o) = x.shape, weights.shape
    # With fewer tiles than channels, most of the time would go to the 16 transformed kernels. Half precision would lose
    # digits in the sums of pixels.
    enough = b * h * w // 4 >= max(i, o) and min(i, o) >= _CHANNELS
    return kernel == [3, 3] and min(h, w) >= 3 and enough and x.dtype in (jnp.float32, jnp.float64)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _convolve_tiles(pads: Pads, x: Array, weights: Array) -> Array:
    return _forward_tiles(pads, x, weights)[0]


def _forward_tiles(pads: Pads, x: Array, weights: Array) -> tuple[Array, tuple[Array, Array]]:
    (top, bottom), (left, right) = pads
    size = x.shape[1] + top + bottom - 2, x.shape[2] + left + right - 2
    return _by_tiles((top, left), size, x, weights), (x, weights)


def _backward_tiles(pads: Pads, saved: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    x, weights = saved
    (top, _), (left, _) = pads
    dx = _by_tiles((2 - top, 2 - left), x.shape[1:3], g, weights[::-1, ::-1].swapaxes(2, 3))

    def add(total: Any, block: Any) -> Any:
        x, g = block
        tiles = -(-g.shape[1] // 2), -(-g.shape[2] // 2)
        spread = _transform(_transposed(_OUTPUT), _pixels(_padded(g, (0, 0), tiles, 2), 2))
        seen = _transform(_INPUT, _pixels(_padded(x, (top, left), tiles, 4), 4))
        return jax.tree.map(lambda sum_, v, d: sum_ + v.T @ d, total, seen, spread), None

    # The tiles of x are made again: to write and read four times as many numbers as x has takes longer. Zeros like
    # both: under ``shard_map`` the sum must be known to differ between devices, as they do.
    zero = jnp.zeros_like(jnp.outer(x[0, 0, 0], g[0, 0, 0]))
    products, _ = lax.scan(add, [[zero] * 4] * 4, _blocks(g.shape[1:3], x, g))
    return dx, jnp.stack([jnp.stack(row) for row in _transform(_transposed(_KERNEL), products)])


_convolve_tiles.defvjp(_forward_tiles, _backward_tiles)


def _by_tiles(low: tuple[int, int], size: tuple[int, ...], x: Array, weights: Array) -> Array:
    """The convolution of x, padded by ``low`` in front, with a result of ``size``; a few examples at a time."""
    kernels = _transform(_KERNEL, weights)
    tiles = -(-size[0] // 2), -(-size[1] // 2)

    def some(x: Array) -> Array:
        seen = _transform(_INPUT, _pixels(_padded(x, low, tiles, 4), 4))
        out = _transform(_OUTPUT, jax.tree.map(jnp.matmul, seen, kernels))
        out = [[entry.reshape(-1, *tiles, entry.shape[-1]) for entry in row] for row in out]
        grid = jnp.stack([jnp.stack(row, axis=3) for row in out], axis=2)  # [b, row, 2, column, 2, o]
        return grid.reshape(-1, 2 * tiles[0], 2 * tiles[1], grid.shape[-1])[:, : size[0], : size[1]]

    (blocks,) = _blocks(size, x)
    return lax.map(some, blocks).reshape(-1, *size, weights.shape[-1])


def _blocks(size: tuple[int, ...], *xs: Array) -> tuple[Array, ...]:
    """The examples cut into equal blocks of up to ``_TILES`` tiles, or of one example."""
    at_most = max(1, 4 * _TILES // math.prod(size))
    together = max(n for n in range(1, at_most + 1) if len(xs[0]) % n == 0)
    return tuple(x.reshape(-1, together, *x.shape[1:]) for x in xs)


def _padded(x: Array, low: tuple[int, int], tiles: tuple[int, int], side: int) -> Array:
    """x padded with zeros on all sides to a whole number of tiles of ``side`` pixels, 2 apart."""
    ends = [(low, 2 * (n - 1) + side - low - length) for low, n, length in zip(low, tiles, x.shape[1:3], strict=True)]
    return jnp.pad(x, ((0, 0), *ends, (0, 0)))


def _pixels(x: Array, side: int) -> list[list[Array]]:
    """Pixel (r, s) of all tiles of ``side`` × ``side``, 2 apart, each [tiles, channels]."""
    b, h, w, c = x.shape
    last_row, last_column = h - side + 1, w - side + 1
    return [
        [
            lax.slice(x, (0, r, s, 0), (b, r + last_row, s + last_column, c), (1, 2, 2, 1)).reshape(-1, c)
            for s in range(side)
        ]
        for r in range(side)
    ]


def _transform(matrix: Any, grid: Any) -> list[list[Array]]:
    """``matrix @ grid @ matrix.T``, where the entries of the grid are arrays."""

    def combine(entries: Sequence[Array]) -> list[Array]:
        return [
            functools.reduce(operator.add, [c * entry for c, entry in zip(row, entries, strict=True) if c])
            for row in matrix
        ]

    columns = [combine(column) for column in _transposed(grid)]
    return [combine(row) for row in _transposed(columns)]


def _transposed(grid: Any) -> list[Any]:
    return list(zip(*grid, strict=True))


def max_pool(x: Float[Array, "b h w c"], size: int = 2) -> Float[Array, "b oh ow c"]:
    """The largest value of each ``size`` × ``size`` window; windows do not overlap, incomplete ones are left out.

    Example:
        >>> max_pool(jnp.arange(20.0).reshape(1, 4, 5, 1))[0, :, :, 0].tolist()
        [[6.0, 8.0], [16.0, 18.0]]
    """
    b, h, w, c = x.shape
    oh, ow = h // size, w // size
    rows = x[:, : oh * size, : ow * size].reshape(b, oh, size, ow * size, c)
    columns = _largest([rows[:, :, r] for r in range(size)]).reshape(b, oh, ow, size, c)
    return _largest([columns[:, :, :, s] for s in range(size)])


def _largest(xs: Sequence[Array]) -> Array:
    """The largest of arrays, entry by entry.

    By pairs: on a CPU the gradient of a maximum over an axis takes up to three times as long, and that of XLA's window
    reduction longer still.
    """
    return functools.reduce(jnp.maximum, xs)


def conv_and_pool(
    x: Float[Array, "b h w i"], weights: Float[Array, "3 3 i o"], offset: Float[Array, " o"]
) -> Float[Array, "b oh ow o"]:
    """``max_pool(relu(conv2d(x, weights) + offset))``: a 3×3 convolution, and the largest of each 2×2 of its pixels.

    Offset and ReLU follow the maximum, which they do not change, and so have a quarter of the pixels. On a CPU, for few
    channels, the four pixels of a window come from one product with their common 4×4 pixels of x: copies of x have
    4/9 of the size that those of each pixel alone would have, and products four times as many columns.

    Example:
        >>> conv_and_pool(jnp.ones((1, 4, 4, 1)), jnp.ones((3, 3, 1, 1)), -jnp.ones(1))[0, :, :, 0].tolist()
        [[8.0, 8.0], [8.0, 8.0]]
    """
    dtype = jnp.result_type(x, weights)
    x, weights = x.astype(dtype), weights.astype(dtype)

    def one_after_the_other(x: Array, weights: Array) -> Array:
        return max_pool(conv2d(x, weights))

    if _tiles_are_faster(x, weights):
        largest = one_after_the_other(x, weights)
    else:
        largest = lax.platform_dependent(x, weights, cpu=_multiply_and_pool, default=one_after_the_other)
    return jax.nn.relu(largest + offset[None, None, None])


def _multiply_and_pool(x: Array, weights: Array) -> Array:
    (b, h, w, i), o = x.shape, weights.shape[-1]
    oh, ow = h // 2, w // 2
    x = jnp.pad(x, ((0, 0), (1, 2 * oh + 1 - h), (1, 2 * ow + 1 - w), (0, 0)))
    # Squares of 2×2 pixels; a window sees 2×2 squares.
    squares = x.reshape(b, oh + 1, 2, ow + 1, 2 * i).swapaxes(2, 3).reshape(b, oh + 1, ow + 1, 4 * i)
    seen = [squares[:, r : r + oh, s : s + ow] for r in range(2) for s in range(2)]
    columns = jnp.concatenate(seen, axis=-1).reshape(b * oh * ow, 16 * i)
    # The kernel of pixel (r, s) of the window lies r rows down and s columns right in the 4×4 pixels.
    placed = [jnp.pad(weights, ((r, 1 - r), (s, 1 - s), (0, 0), (0, 0))) for r in range(2) for s in range(2)]
    kernels = jnp.stack(placed, axis=3).reshape(2, 2, 2, 2, i, 4 * o).swapaxes(1, 2).reshape(16 * i, 4 * o)
    if o < _SEPARATE:
        return (columns @ kernels).reshape(b, oh, ow, 4, o).max(axis=3)
    return _largest([columns @ k for k in jnp.split(kernels, 4, axis=1)]).reshape(b, oh, ow, o)


def group_norm(
    x: Float[Array, "b h w c"], scale: Float[Array, " c"], offset: Float[Array, " c"], groups: int, eps: float = 1e-5
) -> Float[Array, "b h w c"]:
    """Each example's channels, in ``groups`` equal groups, brought to mean 0 and variance 1; then scale and offset.

    ``eps`` is added to the variance.
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
    return centred * (lax.rsqrt(mean(centred**2) + eps) * scale[None, None, None]) + offset[None, None, None]


def dense(x: Float[Array, "*b i"], weights: Float[Array, "i o"], offset: Float[Array, " o"]) -> Float[Array, "*b o"]:
    """``x @ weights + offset``; with few outputs, as in a classifier's last layer, local steps are fast on a CPU too.

    Example:
        >>> dense(jnp.ones((1, 3)), jnp.ones((3, 2)), jnp.array([0.0, 1.0])).tolist()
        [[3.0, 4.0]]
    """
    if weights.shape[1] <= _FEW:
        product = lax.platform_dependent(x, weights, cpu=_few_outputs, default=jnp.matmul)
    else:
        product = x @ weights
    return product + offset.reshape((1,) * (x.ndim - 1) + (-1,))


@jax.custom_jvp
def _few_outputs(x: Array, weights: Array) -> Array:
    return x @ weights


@functools.partial(_few_outputs.defjvp, symbolic_zeros=True)
def _few_outputs_jvp(at: tuple[Array, Array], tangents: tuple[Any, Any]) -> tuple[Array, Any]:
    (x, weights), (dx, dweights) = at, tangents
    parts = [] if isinstance(dx, SymbolicZero) else [dx @ weights]
    if not isinstance(dweights, SymbolicZero):
        # The transpose of this is the gradient with respect to the weights, g.T @ x and that transposed. Without the
        # barriers XLA would make it x.T @ g, for which it calls a routine that is slow for few columns.
        rows = lax.optimization_barrier(dweights.T)
        product = lax.dot_general(rows, x.reshape(-1, x.shape[-1]), (((1,), (1,)), ((), ())))
        parts.append(lax.optimization_barrier(product).T.reshape(*x.shape[:-1], -1))
    return x @ weights, functools.reduce(operator.add, parts)


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
