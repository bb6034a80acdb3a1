"""The table of operators, how their arguments are laid out, and images whose channels come last."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Arguments for PyTorch's device and memory layout, which are ignored.
_IGNORED = frozenset(
    ("device", "layout", "pin_memory", "memory_format", "non_blocking", "cudnn_enabled", "cudnn_enable", "generator")
)


@dataclass(frozen=True)
class Operator:
    """A function of JAX that replaces an operator of PyTorch, with the same argument names.

    Attributes:
        function: what does it.
        lay: "plain" (arrays as PyTorch has them), "alike" (all arrays get the same number of axes, and images stay as
            they are), "image" (the function takes care of images itself) or "known" (as plain; arrays that are
            known before the program runs stay NumPy's).
        view: in PyTorch the result shares its numbers with the first argument.
        random: the function gets a random key as ``rng``, ``None`` where nothing is random.
    """

    function: Callable[..., Any]
    lay: str
    view: bool
    random: bool
    parameters: Mapping[str, bool]  # name -> whether it has to be given

    def misfit(self, names: Mapping[str, Any]) -> str | None:
        """What is wrong with the names of the arguments; ``None`` if nothing is."""
        for name in names:
            if name not in self.parameters and name not in _IGNORED:
                return f"fedax has this operator without the argument {name!r}"
        absent = [name for name, needed in self.parameters.items() if needed and name not in names]
        return f"the argument {absent[0]!r} is not given" if absent else None

    def __call__(self, arguments: Mapping[str, Any], key: Any) -> Any:
        given = {name: value for name, value in arguments.items() if name not in _IGNORED}
        if self.random:
            given["rng"] = key
        if self.lay != "known":  # NumPy's rules for types of numbers are others
            given = {name: jnp.asarray(x) if isinstance(x, np.ndarray) else x for name, x in given.items()}
        if self.lay in ("plain", "known"):
            given = {name: plain(value) for name, value in given.items()}
        elif self.lay == "alike":
            return _alike(self.function, given)
        return self.function(**given)


_TABLE: dict[str, Operator] = {}


def operator(*targets: str, lay: str = "plain", view: bool = False) -> Callable[[Callable], Callable]:
    """Enter a function into the table: ``"aten.sum"`` for all overloads, ``"aten.pow.Scalar"`` for one."""

    def enter(function: Callable) -> Callable:
        parameters = {
            name: parameter.default is inspect.Parameter.empty
            for name, parameter in inspect.signature(function).parameters.items()
        }
        random = parameters.pop("rng", None) is not None
        for target in targets:
            _TABLE[target] = Operator(function, lay, view, random, parameters)
        return function

    return enter


def operators(table: Mapping[str, Callable[..., Any]], lay: str = "plain", view: bool = False) -> None:
    """Enter functions by their names in ``aten``, several with blanks between them."""
    for names, function in table.items():
        operator(*(f"aten.{name}" for name in names.split()), lay=lay, view=view)(function)


def find(target: str) -> Operator | None:
    """The operator of this name; ``None`` where fedax has none."""
    return _TABLE.get(target) or _TABLE.get(target.rpartition(".")[0])


def available() -> list[str]:
    """The names of all operators.

    Example:
        >>> "aten.conv2d" in available()
        True
    """
    return sorted(_TABLE)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Image:
    """An array that is [b, c, h, w] to PyTorch and is kept as [b, h, w, c], which fedax's convolutions take."""

    array: Any

    @property
    def shape(self) -> tuple[int, int, int, int]:
        b, h, w, c = self.array.shape
        return b, c, h, w

    ndim = 4

    @property
    def dtype(self) -> Any:
        return self.array.dtype


@dataclass(frozen=True)
class Kernel:
    """A convolution's weights, [o, i, kh, kw] to PyTorch and kept as [kh, kw, i, o]: to bring them into this order in
    each step would cost a tenth of the time of a ResNet."""

    array: Any


def plain(value: Any) -> Any:
    """The array as PyTorch has it, of an image or in a tuple too."""
    if isinstance(value, Image):
        return jnp.moveaxis(value.array, 3, 1)
    if isinstance(value, Kernel):
        return value.array.transpose(3, 2, 0, 1)
    return tuple(map(plain, value)) if type(value) is tuple else value


def image(value: Any) -> Any:
    """[b, h, w, c] of an image or of an array [b, c, h, w]."""
    if isinstance(value, Image):
        return value.array
    if value.ndim != 4:
        raise ValueError(f"an image batch has 4 axes, this has {value.ndim}")
    return jnp.moveaxis(value, 1, 3)


def is_array(value: Any) -> bool:
    return isinstance(value, (jax.Array, np.ndarray, np.generic, Image))


def _alike(function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Apply to arrays of the same number of axes; to images, if there is one and the others fit."""
    arrays = [value for value in given.values() if is_array(value)]
    if not arrays:
        raise ValueError("no array")
    most = max((value.ndim for value in arrays), default=0)
    as_images = most == 4 and any(isinstance(value, Image) for value in arrays)

    def laid(value: Any) -> Any:
        if not is_array(value):
            return value
        if as_images and isinstance(value, Image):
            return value.array
        value = plain(value)
        spread = value if value.ndim in (0, most) else value.reshape((1,) * (most - value.ndim) + value.shape)
        return jnp.moveaxis(spread, 1, 3) if as_images and spread.ndim else spread

    result = function(**{name: laid(value) for name, value in given.items()})
    if not as_images:
        return result
    return tuple(map(Image, result)) if isinstance(result, tuple) else Image(result)


def dtype_of(name: Any) -> Any:
    """JAX's type of numbers for PyTorch's: 64 bits only where JAX has them enabled."""
    return None if name is None else jax.dtypes.canonicalize_dtype(jnp.dtype(name.name))


def pair(value: Any) -> tuple[int, int]:
    """Two numbers, of one or two."""
    numbers = tuple(value) if isinstance(value, tuple) else (value,)
    first, second = numbers * 2 if len(numbers) == 1 else numbers
    return first, second
