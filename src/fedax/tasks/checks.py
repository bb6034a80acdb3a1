"""Checks that examples fit a task: on the host, in NumPy, before anything is compiled."""

import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedax.errors import DataError, ExampleError


def columns(examples: Any, *names: str) -> tuple[np.ndarray, ...]:
    """The named arrays of ``examples``, which must all hold the same number of examples.

    Example:
        >>> columns({"x": np.zeros((2, 3))}, "x", "y")
        Traceback (most recent call last):
        fedax.errors.DataError: examples: there is no 'y' (there are: x); give {'x': ..., 'y': ...}
    """
    wanted = "give {" + ", ".join(f"'{name}': ..." for name in names) + "}"
    if not isinstance(examples, Mapping):
        raise DataError(f"examples: a {type(examples).__name__}, not a dict of arrays; {wanted}")
    for name in names:
        if name not in examples:
            raise DataError(f"examples: there is no '{name}' (there are: {', '.join(map(str, examples))}); {wanted}")
    arrays = tuple(np.asarray(examples[name]) for name in names)
    if len({array.shape[:1] for array in arrays}) != 1 or arrays[0].ndim == 0:
        shapes = ", ".join(f"'{name}' {array.shape}" for name, array in zip(names, arrays, strict=True))
        raise DataError(f"examples: shapes {shapes}; the first axis counts the examples and must be the same")
    return arrays


def shaped(name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    """Each example of ``array`` must have this shape."""
    if array.shape[1:] != shape:
        raise DataError(f"examples['{name}']: each example has shape {array.shape[1:]}, but the task is for {shape}")


def real(name: str, array: np.ndarray) -> None:
    """``array`` must hold floating-point numbers."""
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise DataError(f"examples['{name}']: {array.dtype} where real numbers are due; use .astype(np.float32)")


def pixels(x: np.ndarray) -> None:
    """``x`` must hold floating-point numbers, or uint8 or bool, of which the task makes them."""
    if x.dtype not in (np.uint8, np.bool_) and not jnp.issubdtype(x.dtype, jnp.floating):
        raise DataError(
            f"examples['x']: {x.dtype} is neither real numbers nor uint8 nor bool; "
            "use .astype(np.float32) for features, .astype(np.uint8) for images of pixels from 0 to 255"
        )


def images(x: np.ndarray, shape: tuple[int, int, int]) -> None:
    """Each example of ``x`` must be an image of pixels of this shape, [h, w, c]."""
    pixels(x)
    shaped("x", x, shape)


def features(x: np.ndarray, count: int) -> None:
    """Each example of ``x``, flattened, must have ``count`` numbers, such as a task takes (see :func:`pixels`)."""
    pixels(x)
    if (got := math.prod(x.shape[1:])) != count:
        raise DataError(
            f"examples['x']: each example has shape {x.shape[1:]}, that is {got} features, but the task is for "
            f"{count}; make the task with features={got}"
        )


def scaled(x: np.ndarray, mean: Any, std: Any) -> None:
    """A mean and a std of several numbers must have one for each channel of ``x``, its last axis."""
    for setting, value in (("mean", mean), ("std", std)):
        if np.ndim(value) and (not x.shape[1:] or x.shape[-1] != np.size(value)):
            raise DataError(
                f"examples['x']: shape {x.shape}, but {setting} has {np.size(value)} numbers, one for each "
                "channel; the channels are the last axis"
            )


def labels(y: np.ndarray, classes: int, each: tuple[int, ...] = ()) -> None:
    """Whole numbers from 0 to ``classes`` − 1, of shape ``each`` per example (default: one label).

    Example:
        >>> labels(np.array([0, 3, 1]), classes=3)
        Traceback (most recent call last):
        fedax.errors.ExampleError: examples['y']: example 1 has label 3, but 3 classes are labelled 0 to 2; ...
    """
    if y.shape[1:] == (*each, classes):
        raise DataError(f"examples['y']: shape {y.shape}, one-hot? Give the class itself: y.argmax(axis=-1)")
    if y.shape[1:] == (*each, 1):
        raise DataError(f"examples['y']: each example has shape {y.shape[1:]}; give one label each: y[..., 0]")
    whole("y", y)
    shaped("y", y, each)
    _in_range("y", "label", "classes", y, classes)


def tokens(name: str, array: np.ndarray, vocabulary: int) -> None:
    """Whole numbers from 0 to ``vocabulary`` − 1, [n, T]."""
    whole(name, array)
    if array.ndim != 2:
        raise DataError(f"examples['{name}']: shape {array.shape}; give [n, T], T characters an example")
    _in_range(name, "character", "vocabulary", array, vocabulary)


def whole(name: str, array: np.ndarray) -> None:
    """``array`` must hold whole numbers of an integer dtype."""
    if not np.issubdtype(array.dtype, np.integer):
        fraction = jnp.issubdtype(array.dtype, jnp.floating) and bool((array % 1 != 0).any())
        hint = "these have fractions: give each class a number, from 0" if fraction else "use .astype(np.int32)"
        raise DataError(f"examples['{name}']: {array.dtype} where whole numbers are due; {hint}")


def signs(y: np.ndarray) -> None:
    """One label, −1 or +1, an example."""
    shaped("y", y, ())
    if (bad := np.flatnonzero(np.abs(y) != 1)).size:
        hint = "logistic regression is for -1 and +1; turn labels 0 and 1 into 2 * y - 1"
        raise ExampleError("examples['y']", int(bad[0]), f"has label {y[bad[0]]}, but {hint}")


def _in_range(name: str, noun: str, setting: str, array: np.ndarray, count: int) -> None:
    outside = (array < 0) | (array >= count)
    if outside.any():
        where = tuple(np.argwhere(outside)[0])
        problem = f"has {noun} {array[where]}, but {count} classes are labelled 0 to {count - 1}"
        most = int(array.max()) + 1
        hint = "count from 0" if array[where] < 0 else f"count from 0, or make the task with {setting}={most}"
        raise ExampleError(f"examples['{name}']", int(where[0]), f"{problem}; {hint}")
