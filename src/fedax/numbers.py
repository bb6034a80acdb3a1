"""Checks of the numbers that a user gives, each ending in one clear error."""

import math
import numbers
import os
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedax.contract.schedule import Schedule, Stepwise
from fedax.errors import ConfigError, DataError, call

MOST = (
    10**9 - 1
)  # the most rounds, steps and draws: devices count in 32 bits, and names of checkpoints have nine digits


def check_number(
    field: str,
    value: Any,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
    fixed: bool = False,
) -> Any:
    """Return ``value`` if it is a real number within the range, else raise a ConfigError.

    Of a schedule the largest value has to be within the range, where it is known. Arrays that JAX is tracing pass.

    Args:
        field: the name to put into the error.
        value: a number, an array of shape (), or a schedule.
        low: smallest value, included unless ``open_low``.
        high: largest value, included unless ``open_high``.
        fixed: refuse schedules.

    Example:
        >>> check_number("lr", 0.1, 0, open_low=True)
        0.1
        >>> check_number("momentum", 1.5, 0, 1, open_high=True)
        Traceback (most recent call last):
        fedax.errors.ConfigError: momentum = 1.5: give a number in [0, 1)
    """
    if fixed and isinstance(value, Schedule):
        raise ConfigError(field, value, "give a number; this does not follow a schedule")
    if isinstance(value, Stepwise):
        check_number(field, value.schedule, low, high, open_low=open_low, open_high=open_high)
        return value
    if isinstance(value, jax.core.Tracer):
        return value
    bounds = f"{'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"
    hint = f"give a number in {bounds}".replace("[-inf", "(-∞").replace(", inf]", ", ∞)")
    if isinstance(value, Schedule):
        for reached in value.reached() if hasattr(value, "reached") else ():
            if reached > high or (open_high and reached == high):
                raise ConfigError(field, value, f"it reaches {reached:.4g}; {hint.replace('a number', 'values')}")
        return value
    scalar_array = isinstance(value, np.ndarray | jax.Array) and value.ndim == 0 and value.dtype != bool
    if not scalar_array and (isinstance(value, bool) or not isinstance(value, numbers.Real)):
        raise ConfigError(field, value, hint)
    try:
        given = float(value)
    except OverflowError:  # of a whole number or a fraction
        given = math.inf
    below = given <= low if open_low else given < low
    above = given >= high if open_high else given > high
    if not math.isfinite(given) or below or above:
        raise ConfigError(field, value, hint)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ConfigError(field, value, "a whole number has at most 64 bits; give it with a decimal point")
    return value


def check_count(field: str, value: Any, low: int = 1, high: int | None = None) -> int:
    """Return ``value`` as an int if it is a whole number from ``low`` to ``high``, else raise a ConfigError.

    Example:
        >>> check_count("rounds", 2.5)
        Traceback (most recent call last):
        fedax.errors.ConfigError: rounds = 2.5: give a whole number of at least 1
    """
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or value < low or (high is not None and value > high):
        most = "" if high is None else f" and at most {high}"
        raise ConfigError(field, value, f"give a whole number of at least {low}{most}")
    return int(value)


def has_truth_values(given: Any) -> bool:
    """Whether something that should be numbers, or lists of them, has a truth value in it; NumPy makes a number of it.

    Example:
        >>> has_truth_values([[1, True]]), has_truth_values([1.0, 2])
        (True, False)
    """
    if isinstance(given, list | tuple):
        return any(map(has_truth_values, given))
    return isinstance(given, bool | np.bool_) or getattr(given, "dtype", None) == np.dtype(bool)


def check_answers(
    field: str, value: Any, function: Callable[[np.ndarray], Any], given: np.ndarray, finite: bool = True
) -> None:
    """Raise unless a function of ``value``, which the user may have written, answers each of ``given`` by a number ≥ 0.

    ``finite``: whether these may not be infinite.

    Raises:
        ConfigError: it answers something else.
        CodeError: it raises an error.

    Example:
        >>> check_answers("clock.step", "mine", np.log, np.array([0.5, 2.0]))
        Traceback (most recent call last):
        fedax.errors.ConfigError: clock.step = 'mine': log(0.5) is -0.693147; it has to be a finite number of at least 0
    """
    name = getattr(function, "__name__", "its function")
    answers = np.asarray(call(field, f"{name}(array)", function, given))
    if answers.shape != given.shape or answers.dtype.kind not in "iuf":
        what = f"an array {list(answers.shape)} of {answers.dtype}"
        raise ConfigError(field, value, f"{name}(array of {len(given)}) is {what}; give one number for each")
    if len(bad := np.flatnonzero(~((answers >= 0) & (np.isfinite(answers) | (not finite))))):
        what = f"{name}({given[bad[0]]:g}) is {answers[bad[0]]:g}"
        raise ConfigError(field, value, f"{what}; it has to be a {'finite ' * finite}number of at least 0")


def misfit(array: np.ndarray, kind: Any) -> tuple[int, ...] | None:
    """The place of the first number that a dtype would turn into an infinity or another whole number; ``None``: none.

    Rounding is no misfit, nor is a number so small that it becomes 0.

    Example:
        >>> misfit(np.array([1.5, 1e39]), np.float32), misfit(np.array([[2**40]]), np.int32)
        ((1,), (0, 0))
    """
    kind = np.dtype(kind)
    if array.dtype == kind or array.dtype.kind not in "iufc" or not array.size:
        return None
    low = float(jnp.iinfo(kind).min) if kind.kind in "iu" else -largest(kind)
    bad = np.zeros(array.shape, bool)
    for part in (array.real, array.imag) if array.dtype.kind == "c" else (array,):
        bad |= np.isfinite(part) & ((part < low) | (part > largest(kind)))
    return tuple(np.argwhere(bad)[0].tolist()) if bad.any() else None


def largest(kind: Any) -> float:
    """The largest number of a dtype.

    Example:
        >>> f"{largest(np.float32):.2g}", largest(np.int32)
        ('3.4e+38', 2147483647.0)
    """
    kind = np.dtype(kind)
    return float(jnp.iinfo(kind).max if kind.kind in "iu" else jnp.finfo(kind).max)


def narrowed(array: np.ndarray, kind: Any, where: str) -> np.ndarray:
    """The array as another dtype, rounded.

    Raises:
        DataError: a number is not finite, or beyond the dtype; its index follows ``where`` in the message.

    Example:
        >>> narrowed(np.array([1.5, 1e39]), np.float32, "x: example")
        Traceback (most recent call last):
        fedax.errors.DataError: x: example 1 has 1e+39, beyond float32 (3.4e+38); correct it, or ...
    """
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        at = tuple(np.argwhere(~np.isfinite(array))[0].tolist())
        raise DataError(f"{where} {at[0]} has {array[at]}; numbers have to be finite")
    if (place := misfit(array, kind)) is not None:
        raise DataError(f"{where} {place[0]} has {array[place]}, {beyond(kind)}")
    return array.astype(kind, copy=False)


def beyond(kind: Any) -> str:
    """What is wrong with a number that is a :func:`misfit`, and the way out."""
    whole = np.dtype(kind).kind in "iu"
    hint = "give it a smaller number, from 0 on" if whole else "correct it, or divide all by a power of ten"
    return f"beyond {np.dtype(kind)} ({largest(kind):.2g}); {hint}"


def check_room(size: int, /, **asked: int) -> None:
    """Raise a ConfigError if ``size`` bytes, which these settings ask for, are more than the machine's memory.

    The largest setting is the one that is named.

    Example:
        >>> check_room(8 * 10**6, clients=10**6)
    """
    if size > host_bytes():
        field = max(asked, key=lambda name: asked[name])
        room = f"the {host_bytes() / 2**30:.0f} GiB of memory that this machine has"
        raise ConfigError(field, asked[field], f"this would take more than {room}; choose less")


def host_bytes() -> int:
    """The machine's memory; where the system does not say it, no bound."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return sys.maxsize
