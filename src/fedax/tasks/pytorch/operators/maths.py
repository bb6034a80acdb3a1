"""Operators entry by entry, comparisons, sums and products."""

import math
import operator as python
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedax.tasks.layers import dense, dropout
from fedax.tasks.pytorch.operators.table import Image, dtype_of, is_array, operator, operators, plain

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
_BINARY: dict[str, Callable[..., Any]] = {
    "mul multiply": jnp.multiply,
    "div true_divide divide": jnp.true_divide,
    "floor_divide": jnp.floor_divide,
    "remainder": jnp.remainder,
    "fmod": jnp.fmod,
    "maximum max.other": jnp.maximum,
    "minimum min.other": jnp.minimum,
    "atan2": jnp.arctan2,
    "eq __eq__": jnp.equal,
    "ne": jnp.not_equal,
    "lt less": jnp.less,
    "le less_equal": jnp.less_equal,
    "gt greater": jnp.greater,
    "ge greater_equal": jnp.greater_equal,
    "logical_and": jnp.logical_and,
    "logical_or": jnp.logical_or,
    "logical_xor": jnp.logical_xor,
    "bitwise_and __and__": jnp.bitwise_and,
    "bitwise_or __or__": jnp.bitwise_or,
    "bitwise_xor __xor__": jnp.bitwise_xor,
}


def _unary(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self: function(self)


def _binary(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: function(self, other)


operators({name: _unary(function) for name, function in _UNARY.items()}, lay="alike")
operators({names: _binary(function) for names, function in _BINARY.items()}, lay="alike")
operators(
    {
        "add": lambda self, other, alpha=1: self + (other if alpha == 1 else alpha * other),
        "sub subtract": lambda self, other, alpha=1: self - (other if alpha == 1 else alpha * other),
        "rsub": lambda self, other, alpha=1: other - (self if alpha == 1 else alpha * self),
        "gelu": lambda self, approximate="none": jax.nn.gelu(self, approximate=approximate == "tanh"),
        "leaky_relu": lambda self, negative_slope=0.01: jnp.where(self > 0, self, negative_slope * self),
        "celu": lambda self, alpha=1.0: jax.nn.celu(self, alpha),
        "hardshrink": lambda self, lambd=0.5: jnp.where(jnp.abs(self) > lambd, self, 0),
        "threshold": lambda self, threshold, value: jnp.where(self > threshold, self, value),
        "where": lambda condition, self, other: jnp.where(condition, self, other),
        "masked_fill": lambda self, mask, value: jnp.where(mask, jnp.asarray(value, self.dtype), self),
        "lerp": lambda self, end, weight: self + weight * (end - self),
        "addcmul": lambda self, tensor1, tensor2, value=1: self + value * (tensor1 * tensor2),
        "addcdiv": lambda self, tensor1, tensor2, value=1: self + value * (tensor1 / tensor2),
        "copy": lambda self, src: jnp.broadcast_to(src, self.shape).astype(self.dtype),
        "fill": lambda self, value: jnp.full_like(self, value),
        "dropout": lambda input, p, train, rng: _dropped(input, p, train, rng),
        "native_dropout": lambda input, p, train, rng: (_dropped(input, p, train, rng), jnp.ones(input.shape, bool)),
    },
    lay="alike",
)
operators({"clone lift_fresh_copy contiguous alias lift_fresh": lambda self: self}, lay="alike", view=True)


@operator("aten.div.Tensor_mode", "aten.div.Scalar_mode", lay="alike")
def divide(self: Any, other: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return jnp.floor_divide(self, other)
    return jnp.trunc(self / other).astype(jnp.result_type(self, other)) if rounding_mode == "trunc" else self / other


@operator("aten.pow", lay="alike")
def power(self: Any, exponent: Any) -> Any:
    whole = isinstance(exponent, float) and exponent.is_integer() and abs(exponent) <= 16
    return self ** (int(exponent) if whole and jnp.issubdtype(jnp.result_type(self), jnp.floating) else exponent)


@operator("aten.elu", lay="alike")
def elu(self: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    below = jnp.where(self > 0, 0, self)  # so that no gradient overflows where it does not count
    return scale * jnp.where(self > 0, self, alpha * jnp.expm1(input_scale * below))


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


@operator("aten.softshrink", lay="alike")
def softshrink(self: Any, lambd: float = 0.5) -> Any:
    return jnp.where(self > lambd, self - lambd, jnp.where(self < -lambd, self + lambd, 0))


@operator("aten.prelu", "aten._prelu_kernel", lay="image")
def prelu(self: Any, weight: Any) -> Any:
    if isinstance(self, Image):
        slopes = plain(weight).reshape(1, 1, 1, -1)
        return Image(jnp.where(self.array > 0, self.array, slopes * self.array))
    slopes = plain(weight).reshape((1, -1) + (1,) * (self.ndim - 2) if self.ndim > 1 else (1,) * self.ndim)
    return jnp.where(self > 0, self, slopes * self)


@operator("aten.nan_to_num", lay="alike")
def nan_to_num(self: Any, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Any:
    return jnp.nan_to_num(self, nan=0.0 if nan is None else nan, posinf=posinf, neginf=neginf)


@operator("aten.to", "aten._to_copy", "aten.type_as", lay="alike", view=True)
def cast(self: Any, dtype: Any = None, other: Any = None, copy: bool = False) -> Any:
    wanted = other.dtype if other is not None else dtype_of(dtype)
    return self if wanted is None else self.astype(wanted)


@operator("aten.feature_dropout", lay="image")
def drop_channels(input: Any, p: float, train: bool, rng: Any) -> Any:
    if isinstance(input, Image):
        kept = jnp.ones((input.array.shape[0], 1, 1, input.array.shape[3]), input.dtype)
        return Image(input.array * _dropped(kept, p, train, rng))
    kept = jnp.ones(input.shape[:2] + (1,) * (input.ndim - 2), input.dtype)
    return input * _dropped(kept, p, train, rng)


def _dropped(x: Any, p: float, train: bool | None, rng: Any) -> Any:
    if not 0 <= p < 1:
        raise ValueError(f"dropout with probability {p}")
    return dropout(x, p, rng if train else None)


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


def _reduced(reduce: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, dim=None, keepdim=False: reduce(self, _axes(dim, self.ndim), keepdims=keepdim)


def _added(reduce: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, dim=None, keepdim=False, dtype=None: reduce(
        self, _axes(dim, self.ndim), dtype_of(dtype), keepdims=keepdim
    )


def _extreme(value: Callable[..., Any], place: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if dim is None:
            return value(self)
        at = place(self, dim, keepdims=True)
        values = jnp.take_along_axis(self, at, dim)
        return (values, at) if keepdim else (values.squeeze(dim), at.squeeze(dim))

    return apply


def _spread(result: Callable[..., Any]) -> Callable[..., Any]:
    """``result`` of the variance, the array, the axes and whether they are kept."""

    def apply(self: Any, dim: Any = None, unbiased: Any = None, correction: Any = None, keepdim: bool = False) -> Any:
        less = (1 if unbiased in (None, True) else 0) if correction is None else correction
        axes = _axes(dim, self.ndim)
        return result(jnp.var(self, axes, ddof=less, keepdims=keepdim), self, axes, keepdim)

    return apply


def _soft(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, dim, dtype=None, half_to_float=False: function(
        self if dtype is None else self.astype(dtype_of(dtype)), dim
    )


operators(
    {
        "sum": _added(jnp.sum),
        "prod": _added(jnp.prod),
        "amax": _reduced(jnp.max),
        "amin": _reduced(jnp.min),
        "any": _reduced(jnp.any),
        "all": _reduced(jnp.all),
        "max max.default": _extreme(jnp.max, jnp.argmax),
        "min min.default": _extreme(jnp.min, jnp.argmin),
        "argmax": lambda self, dim=None, keepdim=False: jnp.argmax(self, dim, keepdims=keepdim),
        "argmin": lambda self, dim=None, keepdim=False: jnp.argmin(self, dim, keepdims=keepdim),
        "var": _spread(lambda variance, *_: variance),
        "std": _spread(lambda variance, *_: jnp.sqrt(variance)),
        "var_mean": _spread(lambda variance, x, axes, keepdim: (variance, jnp.mean(x, axes, keepdims=keepdim))),
        "logsumexp": lambda self, dim, keepdim=False: jax.nn.logsumexp(self, _axes(dim, self.ndim), keepdims=keepdim),
        "cumsum": lambda self, dim, dtype=None: jnp.cumsum(self, dim, dtype_of(dtype)),
        "cumprod": lambda self, dim, dtype=None: jnp.cumprod(self, dim, dtype_of(dtype)),
        "softmax _softmax": _soft(jax.nn.softmax),
        "log_softmax _log_softmax": _soft(jax.nn.log_softmax),
        "glu": lambda self, dim=-1: jax.nn.glu(self, dim),
        "outer ger": lambda self, vec2: jnp.outer(self, vec2),
    }
)


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


# ---- plain numbers: lengths of axes


def _checked(number: Any) -> Any:
    if is_array(number) or not -(2**62) < number < 2**62:
        raise ValueError("no length of an axis")
    return number


def _of_lengths(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b: function(_checked(a), _checked(b))


for _name in ("mul", "add", "sub", "floordiv", "truediv", "mod", "eq", "ne", "lt", "le", "gt", "ge"):
    operator(f"_operator.{_name}")(_of_lengths(getattr(python, _name)))
operator("_operator.neg")(lambda a: -_checked(a))
operators(
    {
        "sym_size": lambda self, dim: self.shape[dim],
        "sym_numel": lambda self: math.prod(self.shape),
        "_assert_scalar _assert_tensor_metadata sym_constrain_range_for_size sym_constrain_range": (
            lambda self=None, assert_msg=None, a=None, size=None, stride=None, dtype=None, min=None, max=None: None
        ),
    },
    lay="image",
)
