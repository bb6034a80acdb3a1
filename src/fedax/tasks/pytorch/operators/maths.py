"""Operators entry by entry, comparisons, sums and products."""

import math
import operator as python
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedax.tasks.layers import dense, dropout
from fedax.tasks.pytorch.operators.table import Image, binary, dtype_of, is_array, operator, plain, unary

_UNARY: dict[str, Callable[..., Any]] = {
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "silu": jax.nn.silu,
    "mish": jax.nn.mish,
    "selu": jax.nn.selu,
    "hardsigmoid": jax.nn.hard_sigmoid,
    "hardswish": jax.nn.hard_silu,
    "log_sigmoid": jax.nn.log_sigmoid,
    "exp": jnp.exp,
    "exp2": jnp.exp2,
    "expm1": jnp.expm1,
    "log": jnp.log,
    "log1p": jnp.log1p,
    "log2": jnp.log2,
    "log10": jnp.log10,
    "sqrt": jnp.sqrt,
    "rsqrt": lax.rsqrt,
    "square": jnp.square,
    "abs": jnp.abs,
    "neg": jnp.negative,
    "sign": jnp.sign,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "tan": jnp.tan,
    "asin": jnp.arcsin,
    "acos": jnp.arccos,
    "atan": jnp.arctan,
    "sinh": jnp.sinh,
    "cosh": jnp.cosh,
    "erf": jax.scipy.special.erf,
    "floor": jnp.floor,
    "ceil": jnp.ceil,
    "round": jnp.round,
    "trunc": jnp.trunc,
    "reciprocal": jnp.reciprocal,
    "isnan": jnp.isnan,
    "isinf": jnp.isinf,
    "logical_not": jnp.logical_not,
    "bitwise_not": jnp.invert,
    "zero": jnp.zeros_like,
    "detach": lax.stop_gradient,
}
for _name, _function in _UNARY.items():
    unary(_function, f"aten.{_name}")

_BINARY: dict[tuple[str, ...], Callable[..., Any]] = {
    ("mul", "multiply"): jnp.multiply,
    ("div", "true_divide", "divide"): jnp.true_divide,
    ("floor_divide",): jnp.floor_divide,
    ("remainder",): jnp.remainder,
    ("fmod",): jnp.fmod,
    ("maximum", "max.other"): jnp.maximum,
    ("minimum", "min.other"): jnp.minimum,
    ("atan2",): jnp.arctan2,
    ("eq", "__eq__"): jnp.equal,
    ("ne",): jnp.not_equal,
    ("lt", "less"): jnp.less,
    ("le", "less_equal"): jnp.less_equal,
    ("gt", "greater"): jnp.greater,
    ("ge", "greater_equal"): jnp.greater_equal,
    ("logical_and",): jnp.logical_and,
    ("logical_or",): jnp.logical_or,
    ("logical_xor",): jnp.logical_xor,
    ("bitwise_and", "__and__"): jnp.bitwise_and,
    ("bitwise_or", "__or__"): jnp.bitwise_or,
    ("bitwise_xor", "__xor__"): jnp.bitwise_xor,
}
for _names, _binary in _BINARY.items():
    binary(_binary, *(f"aten.{_name}" for _name in _names))


@operator("aten.div.Tensor_mode", "aten.div.Scalar_mode", lay="alike")
def divide(self: Any, other: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return jnp.floor_divide(self, other)
    return jnp.trunc(self / other).astype(jnp.result_type(self, other)) if rounding_mode == "trunc" else self / other


@operator("aten.add", lay="alike")
def add(self: Any, other: Any, alpha: float | int = 1) -> Any:
    return self + (other if alpha == 1 else alpha * other)


@operator("aten.sub", "aten.subtract", lay="alike")
def subtract(self: Any, other: Any, alpha: float | int = 1) -> Any:
    return self - (other if alpha == 1 else alpha * other)


@operator("aten.rsub", lay="alike")
def subtract_from(self: Any, other: Any, alpha: float | int = 1) -> Any:
    return other - (self if alpha == 1 else alpha * self)


@operator("aten.pow", lay="alike")
def power(self: Any, exponent: Any) -> Any:
    whole = isinstance(exponent, float) and exponent.is_integer() and abs(exponent) <= 16
    return self ** (int(exponent) if whole and jnp.issubdtype(jnp.result_type(self), jnp.floating) else exponent)


@operator("aten.gelu", lay="alike")
def gelu(self: Any, approximate: str = "none") -> Any:
    return jax.nn.gelu(self, approximate=approximate == "tanh")


@operator("aten.leaky_relu", lay="alike")
def leaky_relu(self: Any, negative_slope: float = 0.01) -> Any:
    return jnp.where(self > 0, self, negative_slope * self)


@operator("aten.elu", lay="alike")
def elu(self: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    below = jnp.where(self > 0, 0, self)  # so that no gradient overflows where it does not count
    return scale * jnp.where(self > 0, self, alpha * jnp.expm1(input_scale * below))


@operator("aten.celu", lay="alike")
def celu(self: Any, alpha: float = 1.0) -> Any:
    return jax.nn.celu(self, alpha)


@operator("aten.softplus", lay="alike")
def softplus(self: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    return jnp.where(beta * self > threshold, self, jax.nn.softplus(beta * self) / beta)


@operator("aten.hardtanh", lay="alike")
def hardtanh(self: Any, min_val: float = -1.0, max_val: float = 1.0) -> Any:
    # No gradient from the ends on: PyTorch's rule.
    return jnp.where(self <= min_val, min_val, jnp.where(self >= max_val, max_val, self)).astype(self.dtype)


@operator("aten.clamp", "aten.clip", "aten.clamp_min", "aten.clamp_max", lay="alike")
def clamp(self: Any, min: Any = None, max: Any = None) -> Any:
    self = self if min is None else jnp.where(self < min, min, self)
    return self if max is None else jnp.where(self > max, max, self)


@operator("aten.hardshrink", lay="alike")
def hardshrink(self: Any, lambd: float = 0.5) -> Any:
    return jnp.where(jnp.abs(self) > lambd, self, 0)


@operator("aten.softshrink", lay="alike")
def softshrink(self: Any, lambd: float = 0.5) -> Any:
    return jnp.where(self > lambd, self - lambd, jnp.where(self < -lambd, self + lambd, 0))


@operator("aten.threshold", lay="alike")
def above(self: Any, threshold: float, value: float) -> Any:
    return jnp.where(self > threshold, self, value)


@operator("aten.prelu", "aten._prelu_kernel", lay="image")
def prelu(self: Any, weight: Any) -> Any:
    if isinstance(self, Image):
        slopes = plain(weight).reshape(1, 1, 1, -1)
        return Image(jnp.where(self.array > 0, self.array, slopes * self.array))
    slopes = plain(weight).reshape((1, -1) + (1,) * (self.ndim - 2) if self.ndim > 1 else (1,) * self.ndim)
    return jnp.where(self > 0, self, slopes * self)


@operator("aten.where", lay="alike")
def where(condition: Any, self: Any, other: Any) -> Any:
    return jnp.where(condition, self, other)


@operator("aten.masked_fill", lay="alike")
def masked_fill(self: Any, mask: Any, value: Any) -> Any:
    return jnp.where(mask, jnp.asarray(value, self.dtype), self)


@operator("aten.lerp", lay="alike")
def lerp(self: Any, end: Any, weight: Any) -> Any:
    return self + weight * (end - self)


@operator("aten.addcmul", lay="alike")
def add_product(self: Any, tensor1: Any, tensor2: Any, value: float | int = 1) -> Any:
    return self + value * (tensor1 * tensor2)


@operator("aten.addcdiv", lay="alike")
def add_quotient(self: Any, tensor1: Any, tensor2: Any, value: float | int = 1) -> Any:
    return self + value * (tensor1 / tensor2)


@operator("aten.nan_to_num", lay="alike")
def nan_to_num(self: Any, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Any:
    return jnp.nan_to_num(self, nan=0.0 if nan is None else nan, posinf=posinf, neginf=neginf)


@operator("aten.copy", lay="alike")
def copy(self: Any, src: Any) -> Any:
    return jnp.broadcast_to(src, self.shape).astype(self.dtype)


@operator("aten.fill", lay="alike")
def fill(self: Any, value: Any) -> Any:
    return jnp.full_like(self, value)


@operator(
    "aten.clone", "aten.lift_fresh_copy", "aten.contiguous", "aten.alias", "aten.lift_fresh", lay="alike", view=True
)
def same(self: Any) -> Any:
    return self


@operator("aten.to", "aten._to_copy", "aten.type_as", lay="alike", view=True)
def cast(self: Any, dtype: Any = None, other: Any = None, copy: bool = False) -> Any:
    wanted = other.dtype if other is not None else dtype_of(dtype)
    return self if wanted is None else self.astype(wanted)


@operator("aten.dropout", lay="alike")
def drop(input: Any, p: float, train: bool, rng: Any) -> Any:
    return dropout(input, _rate(p), rng if train else None)


@operator("aten.native_dropout", lay="alike")
def drop_and_mask(input: Any, p: float, train: bool | None, rng: Any) -> Any:
    return dropout(input, _rate(p), rng if train else None), jnp.ones(input.shape, bool)


@operator("aten.feature_dropout", lay="image")
def drop_channels(input: Any, p: float, train: bool, rng: Any) -> Any:
    if isinstance(input, Image):
        kept = jnp.ones((input.array.shape[0], 1, 1, input.array.shape[3]), input.dtype)
        return Image(input.array * dropout(kept, _rate(p), rng if train else None))
    kept = jnp.ones(input.shape[:2] + (1,) * (input.ndim - 2), input.dtype)
    return input * dropout(kept, _rate(p), rng if train else None)


def _rate(p: float) -> float:
    if not 0 <= p < 1:
        raise ValueError(f"dropout with probability {p}")
    return p


# ---- sums


def _axes(dim: Any, ndim: int) -> tuple[int, ...] | None:
    if dim is None or dim == ():
        return None
    axes = dim if isinstance(dim, tuple) else (dim,)
    return tuple(axis % ndim for axis in axes) if ndim else None


_AXIS = {0: 0, 1: 3, 2: 1, 3: 2}  # of [b, c, h, w], in [b, h, w, c]


@operator("aten.mean", lay="image")
def mean(self: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    axes = _axes(dim, self.ndim)
    if not isinstance(self, Image) or axes is None or 1 in axes:
        return jnp.mean(plain(self), axes, dtype_of(dtype), keepdims=keepdim)
    means = jnp.mean(self.array, tuple(_AXIS[axis] for axis in axes), dtype_of(dtype), keepdims=True)
    if keepdim:
        return Image(means)
    return plain(Image(means)).reshape([n for axis, n in enumerate(self.shape) if axis not in axes])


@operator("aten.sum")
def total(self: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    return jnp.sum(self, _axes(dim, self.ndim), dtype_of(dtype), keepdims=keepdim)


@operator("aten.prod")
def product(self: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    return jnp.prod(self, _axes(dim, self.ndim), dtype_of(dtype), keepdims=keepdim)


@operator("aten.amax")
def largest(self: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return jnp.max(self, _axes(dim, self.ndim), keepdims=keepdim)


@operator("aten.amin")
def smallest(self: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return jnp.min(self, _axes(dim, self.ndim), keepdims=keepdim)


@operator("aten.any")
def any_of(self: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return jnp.any(self, _axes(dim, self.ndim), keepdims=keepdim)


@operator("aten.all")
def all_of(self: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return jnp.all(self, _axes(dim, self.ndim), keepdims=keepdim)


@operator("aten.max", "aten.max.default")
def max_of(self: Any, dim: Any = None, keepdim: bool = False) -> Any:
    if dim is None:
        return jnp.max(self)
    at = jnp.argmax(self, dim, keepdims=True)
    return _taken(self, at, dim, keepdim)


@operator("aten.min", "aten.min.default")
def min_of(self: Any, dim: Any = None, keepdim: bool = False) -> Any:
    if dim is None:
        return jnp.min(self)
    at = jnp.argmin(self, dim, keepdims=True)
    return _taken(self, at, dim, keepdim)


def _taken(x: Any, at: Any, dim: int, keepdim: bool) -> tuple[Any, Any]:
    values = jnp.take_along_axis(x, at, dim)
    return (values, at) if keepdim else (values.squeeze(dim), at.squeeze(dim))


@operator("aten.argmax")
def argmax(self: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    return jnp.argmax(self, dim, keepdims=keepdim)


@operator("aten.argmin")
def argmin(self: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    return jnp.argmin(self, dim, keepdims=keepdim)


def _spread(self: Any, dim: Any, unbiased: bool | None, correction: Any, keepdim: bool) -> Any:
    less = (1 if unbiased in (None, True) else 0) if correction is None else correction
    return jnp.var(self, _axes(dim, self.ndim), ddof=less, keepdims=keepdim)


@operator("aten.var")
def variance(
    self: Any, dim: Any = None, unbiased: bool | None = None, correction: Any = None, keepdim: bool = False
) -> Any:
    return _spread(self, dim, unbiased, correction, keepdim)


@operator("aten.std")
def deviation(
    self: Any, dim: Any = None, unbiased: bool | None = None, correction: Any = None, keepdim: bool = False
) -> Any:
    return jnp.sqrt(_spread(self, dim, unbiased, correction, keepdim))


@operator("aten.var_mean")
def variance_and_mean(
    self: Any, dim: Any = None, unbiased: bool | None = None, correction: Any = None, keepdim: bool = False
) -> Any:
    return _spread(self, dim, unbiased, correction, keepdim), jnp.mean(self, _axes(dim, self.ndim), keepdims=keepdim)


@operator("aten.logsumexp")
def logsumexp(self: Any, dim: Any, keepdim: bool = False) -> Any:
    return jax.nn.logsumexp(self, _axes(dim, self.ndim), keepdims=keepdim)


@operator("aten.norm", "aten.linalg_vector_norm")
def norm(self: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, dtype: Any = None, p: Any = None) -> Any:
    order = 2 if ord is None and p is None else p if ord is None else ord
    axes = _axes(dim, self.ndim)
    if order == 2:
        # The root has no slope at 0, where PyTorch takes 0.
        squares = jnp.sum(self**2, axes, dtype_of(dtype), keepdims=keepdim)
        return jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1)), 0)
    if order == 1:
        return jnp.sum(jnp.abs(self), axes, dtype_of(dtype), keepdims=keepdim)
    if order == math.inf:
        return jnp.max(jnp.abs(self), axes, keepdims=keepdim)
    raise ValueError(f"the norm of order {order}")


@operator("aten.cumsum")
def cumsum(self: Any, dim: int, dtype: Any = None) -> Any:
    return jnp.cumsum(self, dim, dtype_of(dtype))


@operator("aten.cumprod")
def cumprod(self: Any, dim: int, dtype: Any = None) -> Any:
    return jnp.cumprod(self, dim, dtype_of(dtype))


@operator("aten.softmax", "aten._softmax")
def softmax(self: Any, dim: int, dtype: Any = None, half_to_float: bool = False) -> Any:
    return jax.nn.softmax(self if dtype is None else self.astype(dtype_of(dtype)), dim)


@operator("aten.log_softmax", "aten._log_softmax")
def log_softmax(self: Any, dim: int, dtype: Any = None, half_to_float: bool = False) -> Any:
    return jax.nn.log_softmax(self if dtype is None else self.astype(dtype_of(dtype)), dim)


@operator("aten.glu")
def glu(self: Any, dim: int = -1) -> Any:
    return jax.nn.glu(self, dim)


@operator("aten.sort")
def sort(self: Any, dim: int = -1, descending: bool = False, stable: bool | None = None) -> Any:
    at = jnp.argsort(self, dim, descending=descending)
    return jnp.take_along_axis(self, at, dim), at


@operator("aten.topk")
def topk(self: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    at = lax.slice_in_dim(jnp.argsort(self, dim, descending=largest), 0, k, axis=dim % self.ndim)
    return jnp.take_along_axis(self, at, dim), at


@operator("aten.cosine_similarity")
def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    lengths = [jnp.maximum(norm(x, dim=dim, keepdim=True), eps) for x in (x1, x2)]
    return jnp.sum((x1 / lengths[0]) * (x2 / lengths[1]), dim)


# ---- products


@operator("aten.linear")
def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    return dense(input, weight.T, jnp.zeros(weight.shape[0], weight.dtype) if bias is None else bias)


@operator("aten.matmul", "aten.mm", "aten.bmm", "aten.mv", "aten.dot")
def matmul(self: Any, other: Any = None, mat2: Any = None, vec: Any = None, tensor: Any = None) -> Any:
    other = next(given for given in (other, mat2, vec, tensor) if given is not None)
    if self.ndim > 2 and other.ndim == 2:  # one product, not one for each row of the batch
        return (self.reshape(-1, self.shape[-1]) @ other).reshape(*self.shape[:-1], other.shape[1])
    most = max(self.ndim, other.ndim)
    if min(self.ndim, other.ndim) > 1:
        self, other = (x.reshape((1,) * (most - x.ndim) + x.shape) for x in (self, other))
    elif most > 2:  # a vector
        return jnp.einsum("...ij,j->...i" if other.ndim == 1 else "j,...ji->...i", self, other)
    return self @ other


@operator("aten.addmm", "aten.baddbmm", "aten.addbmm", "aten.addmv")
def add_matmul(
    self: Any,
    mat1: Any = None,
    mat2: Any = None,
    batch1: Any = None,
    batch2: Any = None,
    beta: float | int = 1,
    alpha: float | int = 1,
) -> Any:
    left, right = (mat1, mat2) if batch1 is None else (batch1, batch2)
    result = alpha * matmul(left, right)
    return beta * self.reshape((1,) * (result.ndim - self.ndim) + self.shape) + result


@operator("aten.einsum")
def einsum(equation: str, tensors: tuple[Any, ...], path: Any = None) -> Any:
    if len(tensors) > 8:
        raise ValueError("more than 8 arrays")
    return jnp.einsum(equation, *tensors)


@operator("aten.outer", "aten.ger")
def outer(self: Any, vec2: Any) -> Any:
    return jnp.outer(self, vec2)


# ---- plain numbers: lengths of axes


def _of_lengths(function: Any, name: str) -> None:
    @operator(f"_operator.{name}")
    def apply(a: Any, b: Any) -> Any:
        return function(_checked(a), _checked(b))


for _name, _symbolic in {
    "mul": python.mul,
    "add": python.add,
    "sub": python.sub,
    "floordiv": python.floordiv,
    "truediv": python.truediv,
    "mod": python.mod,
    "eq": python.eq,
    "ne": python.ne,
    "lt": python.lt,
    "le": python.le,
    "gt": python.gt,
    "ge": python.ge,
}.items():
    _of_lengths(_symbolic, _name)


@operator("_operator.neg")
def negative(a: Any) -> Any:
    return -_checked(a)


def _checked(number: Any) -> Any:
    if is_array(number) or not -(2**62) < number < 2**62:
        raise ValueError("no length of an axis")
    return number


@operator("aten.sym_size", lay="image")
def size(self: Any, dim: int) -> Any:
    return self.shape[dim]


@operator("aten.sym_numel", lay="image")
def numel(self: Any) -> Any:
    return math.prod(self.shape)


@operator(
    "aten._assert_scalar",
    "aten._assert_tensor_metadata",
    "aten.sym_constrain_range_for_size",
    "aten.sym_constrain_range",
    lay="image",
)
def no_check(
    self: Any = None,
    assert_msg: Any = None,
    a: Any = None,
    size: Any = None,
    stride: Any = None,
    dtype: Any = None,
    min: Any = None,
    max: Any = None,
) -> Any:
    return None
