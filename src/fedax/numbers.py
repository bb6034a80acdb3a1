"""Checks of the numbers that a user gives, each ending in one clear error."""

import math
import numbers
import os
from typing import Any

import jax
import numpy as np

from fedax.contract.schedule import Schedule, Stepwise
from fedax.errors import ConfigError

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
    way_out = f"give a number in {bounds}".replace("-inf", "-∞").replace(", inf]", ", ∞)")
    if isinstance(value, Schedule):
        for reached in value.reached() if hasattr(value, "reached") else ():
            if reached > high or (open_high and reached == high):
                raise ConfigError(field, value, f"it reaches {reached:.4g}; {way_out.replace('a number', 'values')}")
        return value
    scalar_array = isinstance(value, np.ndarray | jax.Array) and value.ndim == 0 and value.dtype != bool
    if not scalar_array and (isinstance(value, bool) or not isinstance(value, numbers.Real)):
        raise ConfigError(field, value, way_out)
    try:
        given = float(value)
    except OverflowError:  # of a whole number or a fraction
        given = math.inf
    below = given <= low if open_low else given < low
    above = given >= high if open_high else given > high
    if not math.isfinite(given) or below or above:
        raise ConfigError(field, value, way_out)
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
    """The machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
