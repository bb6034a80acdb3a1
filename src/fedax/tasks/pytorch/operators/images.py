"""Convolutions, pooling, resizing and normalisation: images as [b, h, w, c], sequences as images one row high."""

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from fedax.tasks.layers import conv2d, group_norm, max_pool
from fedax.tasks.pytorch.operators.table import Image, Kernel, image, operator, pair, plain

_COPIES_UP_TO = 25  # kernel entries of a grouped convolution, on a CPU


def _of_rows(function: Callable[..., Any]) -> Callable[..., Any]:
    """The operator for [b, c, t], of the one for [b, h, w, c]: an image one row high."""

    def apply(x: Any, *args: Any, **kwargs: Any) -> Any:
        return jnp.swapaxes(function(jnp.swapaxes(x, 1, 2)[:, None], *args, **kwargs)[:, 0], 1, 2)

    return apply


# What an argument is along the row of a sequence; the stride is the same on both axes.
_ALONG_ROW = {"kernel_size": 1, "padding": 0, "output_padding": 0, "dilation": 1, "output_size": 1}


def _sequences(target: str, images: Callable[..., Any]) -> Callable[..., Any]:
    """Enter the operator for sequences [b, c, t] that is, of images one row high, the one for images."""
    signature = inspect.signature(images)

    @functools.wraps(images)
    def apply(*args: Any, **kwargs: Any) -> Any:
        (of, x), *given = signature.bind(*args, **kwargs).arguments.items()
        wide = {of: Image(jnp.swapaxes(x, 1, 2)[:, None])}
        for name, value in given:
            if name in _ALONG_ROW and not isinstance(value, str):
                value = (_ALONG_ROW[name], pair(value)[0])
            wide[name] = value[:, :, None] if name == "weight" else value
        y = images(**wide)
        first = jnp.swapaxes((y[0] if isinstance(y, tuple) else y).array[:, 0], 1, 2)
        return (first, *y[1:]) if isinstance(y, tuple) else first

    return operator(target)(apply)


# ---- convolutions


def _convolve(
    x: Any,
    weight: Any,
    bias: Any,
    stride: tuple[int, int],
    padding: Any,
    dilation: tuple[int, int],
    groups: int,
) -> Any:
    """[b, h, w, i] and [o, i / groups, kh, kw]."""
    weight = weight.array if isinstance(weight, Kernel) else weight.transpose(2, 3, 1, 0)
    if padding in ("same", "valid"):
        rows, columns = (d * (k - 1) * (padding == "same") for d, k in zip(dilation, weight.shape[:2], strict=True))
        pads = ((rows // 2, rows - rows // 2), (columns // 2, columns - columns // 2))
    else:
        rows, columns = pair(padding)
        pads = ((rows, rows), (columns, columns))
    if groups == 1 and dilation == (1, 1) and stride[0] == stride[1]:
        y = conv2d(x, weight, stride[0], pads)
    else:
        native = functools.partial(_native, stride, pads, dilation, groups)
        few = math.prod(weight.shape[:2]) <= _COPIES_UP_TO
        copies = functools.partial(_by_copies, stride, pads, dilation, groups) if few else native
        y = lax.platform_dependent(x, weight, cpu=copies, default=native)
    return y if bias is None else y + bias.reshape(1, 1, 1, -1)


def _native(stride: Any, pads: Any, dilation: Any, groups: int, x: Any, weight: Any) -> Any:
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, weight, stride, pads, None, dilation, layout, groups)


def _by_copies(stride: Any, pads: Any, dilation: Any, groups: int, x: Any, weight: Any) -> Any:
    """A product of weights and shifted copies of x, group by group: on a CPU fast in loops, as XLA's own is not."""
    kh, kw, each, o = weight.shape
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    b, h, w, i = x.shape
    oh, ow = ((n - d * (k - 1) - 1) // s + 1 for n, d, k, s in zip((h, w), dilation, (kh, kw), stride, strict=True))
    total = None
    for r in range(kh):
        for s in range(kw):
            top, left = r * dilation[0], s * dilation[1]
            ends = (b, top + stride[0] * (oh - 1) + 1, left + stride[1] * (ow - 1) + 1, i)
            shifted = lax.slice(x, (0, top, left, 0), ends, (1, *stride, 1))
            if each == 1:  # depthwise
                spread = shifted if o == i else jnp.repeat(shifted, o // i, axis=3)
                product = spread * weight[r, s, 0].reshape(1, 1, 1, o)
            else:
                parts = shifted.reshape(b * oh * ow, groups, each)
                kernel = weight[r, s].reshape(each, groups, o // groups)
                product = jnp.einsum("ngi,igo->ngo", parts, kernel).reshape(b, oh, ow, o)
            total = product if total is None else total + product
    return total


@operator("aten.conv2d", lay="image")
def convolve_images(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Any:
    padding = padding if isinstance(padding, str) else pair(padding)
    return Image(_convolve(image(input), weight, bias, pair(stride), padding, pair(dilation), groups))


convolve_sequences = _sequences("aten.conv1d", convolve_images)


@operator("aten.conv_transpose2d", lay="image")
def spread_images(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """x with zeros between its pixels, and the kernel reversed."""
    x, weight, steps = image(input), plain(weight), pair(dilation)
    i, each, kh, kw = weight.shape
    kernel = weight.reshape(groups, i // groups, each, kh, kw).swapaxes(1, 2)
    kernel = kernel.reshape(groups * each, i // groups, kh, kw)[:, :, ::-1, ::-1]
    sides = [
        (d * (k - 1) - p, d * (k - 1) - p + extra, s - 1)
        for d, k, p, extra, s in zip(steps, (kh, kw), pair(padding), pair(output_padding), pair(stride), strict=True)
    ]
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *sides, (0, 0, 0)])
    return Image(_convolve(x, kernel, bias, (1, 1), (0, 0), steps, groups))


spread_sequences = _sequences("aten.conv_transpose1d", spread_images)


@operator("aten.convolution", lay="image")
def convolution(
    input: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Any:
    rows = input.ndim == 3
    if transposed:
        apply = spread_sequences if rows else spread_images
        return apply(input, weight, bias, stride, padding, output_padding, groups, dilation)
    apply = convolve_sequences if rows else convolve_images
    return apply(input, weight, bias, stride, padding, dilation, groups)


# ---- pooling


def _windows(
    x: Any, combine: Any, fill: float, kernel: Any, stride: Any, pads: Any, dilation: Any = (1, 1), ceil: bool = False
) -> Any:
    """``combine`` over the windows of each channel: first over rows, then over columns, by shifted copies."""
    for axis, k, s, (low, high), d in zip((1, 2), kernel, stride, pads, dilation, strict=True):
        length, reach = x.shape[axis], d * (k - 1) + 1
        n = (length + low + high - reach) // s + 1
        if ceil:
            n = -((length + low + high - reach) // -s) + 1
            n -= (n - 1) * s >= length + low  # a window begins inside
        if n < 1:
            raise ValueError(f"windows of {reach} pixels do not fit into {length}")
        high = max(high, (n - 1) * s + reach - length - low)
        sides = [(0, 0, 0)] * 4
        sides[axis] = (low, high, 0)
        x = lax.pad(x, jnp.asarray(fill, x.dtype), sides)
        parts = [lax.slice_in_dim(x, d * r, d * r + s * (n - 1) + 1, s, axis) for r in range(k)]
        x = functools.reduce(combine, parts)
    return x


@operator("aten.max_pool2d", lay="image")
def max_pool_images(
    self: Any, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Any:
    x, kernel, pads, spacing = image(self), pair(kernel_size), pair(padding), pair(dilation)
    steps = pair(stride) if stride != () else kernel
    if kernel == steps and kernel[0] == kernel[1] and (pads, spacing) == ((0, 0), (1, 1)) and not ceil_mode:
        return Image(max_pool(x, kernel[0]))
    if max(kernel) > 64:
        raise ValueError("windows of more than 64 pixels")
    return Image(_windows(x, jnp.maximum, -jnp.inf, kernel, steps, [(p, p) for p in pads], spacing, ceil_mode))


@operator("aten.max_pool2d_with_indices", lay="image")
@functools.wraps(max_pool_images)
def max_pool_and_indices(**given: Any) -> Any:
    return max_pool_images(**given), None


_sequences("aten.max_pool1d", max_pool_images)


@operator("aten.avg_pool2d", lay="image")
def mean_pool_images(
    self: Any,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    x, kernel, padded = image(self), pair(kernel_size), pair(padding)
    steps, sides = pair(stride) if stride != () else kernel, x.shape[1:3]
    if ceil_mode and any((n + 2 * p - k) % s for n, p, k, s in zip(sides, padded, kernel, steps, strict=True)):
        raise ValueError("ceil_mode with windows that reach out of the image")
    if kernel == sides and padded == (0, 0) and divisor_override is None:
        return Image(x.mean(axis=(1, 2), keepdims=True))
    if max(kernel) > 64:
        raise ValueError("windows of more than 64 pixels")
    pads = [(p, p) for p in padded]
    sums = _windows(x, jnp.add, 0, kernel, steps, pads)
    if divisor_override is not None or count_include_pad or padded == (0, 0):
        return Image(sums / (math.prod(kernel) if divisor_override is None else divisor_override))
    return Image(sums / _windows(jnp.ones((1, *sides, 1), x.dtype), jnp.add, 0, kernel, steps, pads))


_sequences("aten.avg_pool1d", mean_pool_images)


def _shares(n: int, m: int) -> np.ndarray:
    """[m, n]: the weights of n pixels in the m windows of adaptive pooling."""
    i, j = np.arange(m)[:, None], np.arange(_some(n))[None]
    starts, ends = i * n // m, -(-(i + 1) * n // m)
    return ((starts <= j) & (j < ends)) / (ends - starts)


def _some(n: int) -> int:
    """Check that a side is small enough for the matrix of weights."""
    if n > 8192:
        raise ValueError(f"an image of {n} pixels a side")
    return n


def _resize(x: Any, rows: np.ndarray | None, columns: np.ndarray | None) -> Any:
    """Images whose rows and columns are weighted sums of the old ones; ``None``: unchanged."""
    if rows is not None:
        x = jnp.einsum("bhwc,oh->bowc", x, jnp.asarray(rows, x.dtype))
    return x if columns is None else jnp.einsum("bhwc,ow->bhoc", x, jnp.asarray(columns, x.dtype))


@operator("aten.adaptive_avg_pool2d", "aten._adaptive_avg_pool2d", lay="image")
def adaptive_mean_images(self: Any, output_size: Any) -> Any:
    x, size = image(self), _small(pair(output_size))
    h, w = (side if wanted is None else wanted for side, wanted in zip(x.shape[1:3], size, strict=True))
    if (h, w) == (1, 1):
        return Image(x.mean(axis=(1, 2), keepdims=True))
    pairs = zip(x.shape[1:3], (h, w), strict=True)
    return Image(_resize(x, *(None if side == wanted else _shares(side, wanted) for side, wanted in pairs)))


@operator("aten.adaptive_max_pool2d", lay="image")
def adaptive_max_images(self: Any, output_size: Any) -> Any:
    x = image(self)
    for axis, m in zip((1, 2), _small(pair(output_size)), strict=True):
        n = x.shape[axis]
        windows = [(i * n // m, -(-(i + 1) * n // m)) for i in range(m)] if m is not None else []
        parts = [lax.slice_in_dim(x, a, b, axis=axis).max(axis=axis, keepdims=True) for a, b in windows]
        x = jnp.concatenate(parts, axis) if m not in (None, n) else x
    return Image(x), None


_sequences("aten.adaptive_avg_pool1d", adaptive_mean_images)
_sequences("aten.adaptive_max_pool1d", adaptive_max_images)


def _small(size: tuple[int, int]) -> tuple[int, int]:
    if any(side is not None and not 1 <= side <= 1024 for side in size):
        raise ValueError(f"an image of {size[0]} × {size[1]}")
    return size


# ---- resizing


def _target(x: Any, output_size: Any, factors: Any) -> tuple[tuple[int, int], tuple[float, float]]:
    """The new sides, and for each how many old pixels a new one spans."""
    sides = x.shape[1:3]
    if output_size is None:
        output_size = tuple(math.floor(n * factor) for n, factor in zip(sides, factors, strict=True))
    size = _small(pair(output_size))
    steps = tuple(n / m if f is None else 1 / f for n, m, f in zip(sides, size, factors or (None, None), strict=True))
    return size, steps


def _nearest(x: Any, output_size: Any, factors: Any) -> Any:
    size, steps = _target(x, output_size, factors)
    for axis, m, step in zip((1, 2), size, steps, strict=True):
        n = x.shape[axis]
        # Each pixel several times: its gradient is a sum, where that of a gather would be a scatter.
        if m % n == 0 and step == n / m:
            x = jnp.repeat(x, m // n, axis)
        else:
            at = np.minimum((np.arange(m) * np.float32(step)).astype(int), n - 1)
            x = jnp.take(x, at, axis)
    return x


def _linear(x: Any, output_size: Any, align_corners: bool, factors: Any) -> Any:
    size, steps = _target(x, output_size, factors)
    sides = []
    for n, m, step in zip(x.shape[1:3], size, steps, strict=True):
        if align_corners:
            at = np.arange(m) * ((n - 1) / (m - 1) if m > 1 else 0)
        else:
            at = np.maximum((np.arange(m) + 0.5) * step - 0.5, 0)
        low = np.minimum(at.astype(int), n - 1)
        share, matrix = at - low, np.zeros((m, _some(n)))
        np.add.at(matrix, (np.arange(m), low), 1 - share)
        np.add.at(matrix, (np.arange(m), np.minimum(low + 1, n - 1)), share)
        sides.append(matrix)
    return _resize(x, *sides)


@operator("aten.upsample_nearest2d", lay="image")
def nearest_images(
    input: Any = None,
    output_size: Any = None,
    scale_factors: Any = None,
    self: Any = None,
    scales_h: Any = None,
    scales_w: Any = None,
) -> Any:
    factors = (scales_h, scales_w) if input is None else scale_factors
    return Image(_nearest(image(self if input is None else input), output_size, factors))


@operator("aten.upsample_nearest1d")
def nearest_sequences(
    input: Any = None, output_size: Any = None, scale_factors: Any = None, self: Any = None, scales: Any = None
) -> Any:
    factors = (None, scales) if input is None else None if scale_factors is None else (1.0, *scale_factors)
    size = None if output_size is None else (1, *output_size)
    return _of_rows(_nearest)(self if input is None else input, size, factors)


@operator("aten.upsample_bilinear2d", lay="image")
def linear_images(
    input: Any = None,
    output_size: Any = None,
    align_corners: bool = False,
    scale_factors: Any = None,
    self: Any = None,
    scales_h: Any = None,
    scales_w: Any = None,
) -> Any:
    factors = (scales_h, scales_w) if input is None else scale_factors
    return Image(_linear(image(self if input is None else input), output_size, align_corners, factors))


# ---- normalisation


@operator("aten.group_norm", lay="image")
def normalise_groups(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    c = input.shape[1]
    scale = jnp.ones(c, input.dtype) if weight is None else weight
    offset = jnp.zeros(c, input.dtype) if bias is None else bias
    if num_groups < 1 or c % num_groups:
        raise ValueError(f"{c} channels in {num_groups} groups")
    if input.ndim == 4:
        return Image(group_norm(image(input), scale, offset, num_groups, eps))
    rows = input.reshape(*input.shape[:2], -1)
    normalised = _of_rows(group_norm)(rows, scale, offset, num_groups, eps)
    return normalised.reshape(input.shape)


@operator("aten.native_group_norm", lay="image")
def normalise_groups_native(
    input: Any, weight: Any, bias: Any, N: Any, C: Any, HxW: Any, group: int, eps: float
) -> Any:
    return normalise_groups(input, group, weight, bias, eps), None, None


@operator("aten.layer_norm")
def normalise_layers(input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    centred = input - input.mean(axes, keepdims=True)
    y = centred * lax.rsqrt((centred**2).mean(axes, keepdims=True) + eps)
    lead = (1,) * (input.ndim - len(axes))
    y = y if weight is None else y * weight.reshape(lead + weight.shape)
    return y if bias is None else y + bias.reshape(lead + bias.shape)


@operator("aten.native_layer_norm")
def normalise_layers_native(input: Any, normalized_shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    return normalise_layers(input, normalized_shape, weight, bias, eps), None, None


@operator("aten.rms_norm")
def normalise_by_squares(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    least = jnp.finfo(input.dtype).eps if eps is None else eps
    y = input * lax.rsqrt((input**2).mean(axes, keepdims=True) + least)
    return y if weight is None else y * weight.reshape((1,) * (y.ndim - weight.ndim) + weight.shape)


@operator("aten.batch_norm", lay="image")
def normalise_batch(
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if training or running_mean is None:
        raise ValueError(BATCH_STATISTICS)
    scale = lax.rsqrt(running_var + eps) * (1 if weight is None else weight)
    offset = (0 if bias is None else bias) - running_mean * scale
    if isinstance(input, Image):
        return Image(input.array * scale.reshape(1, 1, 1, -1) + offset.reshape(1, 1, 1, -1))
    shape = (1, -1) + (1,) * (input.ndim - 2)
    return input * scale.reshape(shape) + offset.reshape(shape)


BATCH_STATISTICS = (
    "BatchNorm in training takes the mean over the batch, so that an example's loss depends on the others: call "
    "module.eval() before, so that its running statistics are constants, or use GroupNorm or LayerNorm"
)


@operator("aten._native_batch_norm_legit_no_training", lay="image")
def normalise_batch_native(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float, eps: float
) -> Any:
    return normalise_batch(input, weight, bias, running_mean, running_var, False, momentum, eps), None, None


@operator("aten.instance_norm", lay="image")
def normalise_instances(
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    use_input_stats: bool,
    momentum: float,
    eps: float,
) -> Any:
    if use_input_stats:
        if running_mean is not None:
            raise ValueError("running statistics of InstanceNorm in training; call module.eval()")
        return normalise_groups(input, input.shape[1], weight, bias, eps)
    return normalise_batch(input, weight, bias, running_mean, running_var, False, momentum, eps)
