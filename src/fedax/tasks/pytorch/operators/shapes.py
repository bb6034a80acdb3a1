"""Operators that make arrays, and that move, cut and put together their entries."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedax.tasks.pytorch.operators.table import Image, dtype_of, is_array, operator, operators, plain

_MOST = 4096  # pieces that one operator may cut an array into
_CONSTANT = 1 << 20  # the most numbers of a constant that is made while tracing


@operator("aten.view.dtype")
def bits(self: Any, dtype: Any) -> Any:
    raise ValueError("an array read as another type of numbers")


@operator("aten.flatten", lay="image", view=True)
def flatten(self: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    first, last = start_dim % max(self.ndim, 1), end_dim % max(self.ndim, 1)
    if self.ndim == 0:
        return self.reshape(1)
    shape = (*self.shape[:first], math.prod(self.shape[first : last + 1]), *self.shape[last + 1 :])
    if isinstance(self, Image) and self.shape[2:] == (1, 1):  # no need to bring the channels to the front
        return self.array.reshape(shape)
    return plain(self).reshape(shape)


@operator("aten.unflatten", view=True)
def unflatten(self: Any, dim: int, sizes: Any) -> Any:
    dim %= self.ndim
    known = math.prod(n for n in sizes if n != -1)
    sizes = [self.shape[dim] // known if n == -1 else n for n in sizes]
    return self.reshape(*self.shape[:dim], *sizes, *self.shape[dim + 1 :])


@operator("aten.squeeze", view=True)
def squeeze(self: Any, dim: Any = None) -> Any:
    dims = range(self.ndim) if dim is None else dim if isinstance(dim, tuple) else (dim,)
    return self.squeeze(tuple(axis % self.ndim for axis in dims if self.shape[axis] == 1) if self.ndim else ())


@operator("aten.expand", "aten.broadcast_to", view=True)
def expand(self: Any, size: Any, implicit: bool = False) -> Any:
    grown = self.reshape((1,) * (len(size) - self.ndim) + self.shape)
    shape = tuple(side if wanted == -1 else wanted for side, wanted in zip(grown.shape, size, strict=True))
    return jnp.broadcast_to(grown, shape)


@operator("aten.cat", "aten.concat", "aten.concatenate", lay="image")
def concatenate(tensors: tuple[Any, ...], dim: int = 0) -> Any:
    # PyTorch lets an empty vector pass among arrays of other shapes.
    kept = [x for x in tensors if x.shape != (0,)] or list(tensors)
    if dim in (1, -3) and all(x.ndim == 4 for x in kept) and any(isinstance(x, Image) for x in kept):
        parts = [x.array if isinstance(x, Image) else jnp.moveaxis(x, 1, 3) for x in kept]
        return Image(jnp.concatenate(parts, 3))
    return jnp.concatenate([plain(x) for x in kept], dim)


def _cut(self: Any, sizes: list[int], dim: int) -> tuple[Any, ...]:
    if len(sizes) > _MOST:
        raise ValueError(f"cut into {len(sizes)} pieces, of at most {_MOST}")
    ends = np.cumsum(sizes)
    if ends[-1] != self.shape[dim] or min(sizes) < 0:
        raise ValueError(f"pieces of {sizes[:8]} do not make up {self.shape[dim]}")
    return tuple(jnp.split(self, [int(end) for end in ends[:-1]], dim))


@operator("aten.split.Tensor", "aten.split", view=True)
def split(self: Any, split_size: Any = None, dim: int = 0, split_sizes: Any = None) -> Any:
    size = split_size if split_sizes is None else split_sizes
    if isinstance(size, tuple):
        return _cut(self, list(size), dim)
    length = self.shape[dim]
    if length > _MOST * size:
        raise ValueError(f"cut into more than {_MOST} pieces")
    return _cut(self, [min(size, length - start) for start in range(0, length, size)] or [0], dim)


@operator("aten.unbind", view=True)
def unbind(self: Any, dim: int = 0) -> Any:
    if self.shape[dim] > _MOST:
        raise ValueError(f"cut into {self.shape[dim]} pieces, of at most {_MOST}")
    return tuple(x.squeeze(dim) for x in _cut(self, [1] * self.shape[dim], dim))


@operator("aten.select", view=True)
def select(self: Any, dim: int, index: int) -> Any:
    if not -self.shape[dim] <= index < self.shape[dim]:
        raise ValueError(f"entry {index} of an axis of {self.shape[dim]}")
    return jax.lax.index_in_dim(jnp.asarray(self), index, dim, keepdims=False)


@operator("aten.slice", lay="image", view=True)
def cut(self: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    if range(self.shape[dim])[slice(start, end, step)] == range(self.shape[dim]):
        return self
    x = plain(self)
    return x[(slice(None),) * (dim % x.ndim) + (slice(start, end, step),)]


@operator("aten.narrow", view=True)
def narrow(self: Any, dim: int, start: int, length: int) -> Any:
    if not 0 <= start <= start + length <= self.shape[dim]:
        raise ValueError(f"entries {start} to {start + length} of an axis of {self.shape[dim]}")
    return jax.lax.slice_in_dim(jnp.asarray(self), start, start + length, axis=dim % self.ndim)


@operator("aten.index")
def index(self: Any, indices: tuple[Any, ...]) -> Any:
    for given in indices:
        if given is not None and given.dtype == bool:
            raise ValueError("which rows a mask selects is known only when the program runs: use torch.where")
    return self[tuple(slice(None) if given is None else given for given in indices)]


@operator("aten.gather")
def gather(self: Any, dim: int, index: Any, sparse_grad: bool = False) -> Any:
    rows = self[tuple(slice(0, n) if axis != dim % self.ndim else slice(None) for axis, n in enumerate(index.shape))]
    return jnp.take_along_axis(rows, index, dim)


@operator("aten.roll")
def roll(self: Any, shifts: Any, dims: Any = ()) -> Any:
    axes = None if dims == () else dims
    return jnp.roll(self, shifts[0] if axes is None and isinstance(shifts, tuple) else shifts, axes)


@operator("aten.pad", "aten.constant_pad_nd")
def pad(self: Any, pad: tuple[int, ...], mode: str = "constant", value: Any = None) -> Any:
    sides = [(0, 0)] * (self.ndim - len(pad) // 2) + [(pad[i], pad[i + 1]) for i in range(len(pad) - 2, -1, -2)]
    if mode == "constant":
        fill = jnp.asarray(0 if value is None else value, self.dtype)
        return jax.lax.pad(jnp.asarray(self), fill, [(low, high, 0) for low, high in sides])
    return jnp.pad(self, sides, {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode])


@operator("aten.one_hot")
def one_hot(self: Any, num_classes: int = -1) -> Any:
    if num_classes < 0:
        raise ValueError("without num_classes")
    return jax.nn.one_hot(self, num_classes, dtype=int)


@operator("aten.pixel_shuffle")
def pixel_shuffle(self: Any, upscale_factor: int) -> Any:
    *lead, c, h, w = self.shape
    r = upscale_factor
    parts = self.reshape(*lead, c // r**2, r, r, h, w)
    n = len(lead)
    return parts.transpose(*range(n), n, n + 3, n + 1, n + 4, n + 2).reshape(*lead, c // r**2, h * r, w * r)


operators(
    {
        "view reshape _unsafe_view": lambda self, shape=None, size=None: self.reshape(shape if size is None else size),
        "view_as reshape_as": lambda self, other: self.reshape(other.shape),
        "permute": lambda self, dims: jnp.transpose(self, dims),
        "transpose swapaxes swapdims": lambda self, dim0, dim1: jnp.swapaxes(self, dim0, dim1) if self.ndim else self,
        "t numpy_T mT adjoint": lambda self: jnp.swapaxes(self, -1, -2) if self.ndim > 1 else self,
        "movedim moveaxis": lambda self, source, destination: jnp.moveaxis(self, source, destination),
        "unsqueeze": lambda self, dim: jnp.expand_dims(self, dim),
        "expand_as": lambda self, other: expand(self, other.shape),
        "split_with_sizes": lambda self, split_sizes, dim=0: _cut(self, list(split_sizes), dim),
        "chunk": lambda self, chunks, dim=0: split(self, max(1, -(-self.shape[dim] // chunks)), dim),
        "diagonal": lambda self, offset=0, dim1=0, dim2=1: jnp.diagonal(self, offset, dim1, dim2),
    },
    view=True,
)
operators(
    {
        "repeat tile": lambda self, repeats=None, dims=None: jnp.tile(self, dims if repeats is None else repeats),
        "repeat_interleave.self_int": lambda self, repeats, dim=None, output_size=None: jnp.repeat(self, repeats, dim),
        "stack": lambda tensors, dim=0: jnp.stack(tensors, dim),
        "index_select": lambda self, dim, index: jnp.take(self, index, dim),
        "take_along_dim": lambda self, indices, dim: jnp.take_along_axis(self, indices, dim),
        "flip": lambda self, dims: jnp.flip(self, dims),
        "tril": lambda self, diagonal=0: jnp.tril(self, diagonal),
        "triu": lambda self, diagonal=0: jnp.triu(self, diagonal),
    }
)


# ---- arrays from nothing; whole numbers in a row are known before the program runs


@operator("aten.arange")
def arange(end: Any, start: Any = 0, step: Any = 1, dtype: Any = None) -> Any:
    wanted = dtype_of(dtype)
    if wanted is None:
        wanted = jnp.result_type(int if all(isinstance(x, int) for x in (start, end, step)) else float)
    if (end - start) / step > _CONSTANT:
        return jnp.arange(start, end, step, wanted)
    return np.arange(start, end, step).astype(wanted)


@operator("aten.full", "aten.new_full")
def full(size: Any, fill_value: Any, dtype: Any = None, self: Any = None) -> Any:
    if dtype is None and self is None:
        kind = jnp.result_type(type(fill_value)) if not is_array(fill_value) else fill_value.dtype
        return jnp.full(size, fill_value, kind)
    return jnp.full(size, fill_value, _kind(dtype, self))


def _kind(dtype: Any, like: Any) -> Any:
    return dtype_of(dtype) if dtype is not None else jnp.float32 if like is None else like.dtype


operators(
    {
        "linspace": lambda start, end, steps, dtype=None: jnp.linspace(start, end, steps, dtype=_kind(dtype, None)),
        "zeros empty new_zeros new_empty": lambda size, dtype=None, self=None: jnp.zeros(size, _kind(dtype, self)),
        "ones new_ones": lambda size, dtype=None, self=None: jnp.ones(size, _kind(dtype, self)),
        "zeros_like empty_like": lambda self, dtype=None: jnp.zeros(self.shape, _kind(dtype, self)),
        "ones_like": lambda self, dtype=None: jnp.ones(self.shape, _kind(dtype, self)),
        "full_like": lambda self, fill_value, dtype=None: jnp.full(self.shape, fill_value, _kind(dtype, self)),
        "scalar_tensor": lambda s, dtype=None: jnp.asarray(s, dtype_of(dtype)),
        "eye": lambda n, m=None, dtype=None: jnp.eye(n, m, dtype=_kind(dtype, None)),
    }
)
