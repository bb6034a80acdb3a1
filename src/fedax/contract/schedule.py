"""Schedules: hyper-parameters that change with the round or with the global step."""

import itertools
import math
import numbers
import operator
from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedax.contract.settings import Settings, plain
from fedax.contract.types import Number, Tree, Unknown
from fedax.errors import ConfigError
from fedax.registry import Registry


class Schedule(Settings):
    """A hyper-parameter as a function of a counter; give it wherever a method takes a number.

    The engine evaluates it before each round, with the round's index r = 0, 1, …; fields that a method declares
    :func:`stepwise` are evaluated inside the round, with the global step t = r·K + k. A schedule is a pytree, so its
    constants can be swept like any other number.

    Example:
        >>> class Linear(Schedule):
        ...     value: float
        ...     rounds: int
        ...
        ...     def __call__(self, t):
        ...         return self.value * (1 - t / self.rounds)
        >>> Linear(0.1, 100)(50)
        0.05
    """

    def __call__(self, t: Number) -> Number:
        """The value at counter ``t`` (a number or a traced array of shape ())."""
        raise NotImplementedError


class Piecewise(Schedule):
    """A constant, multiplied by a factor at each of some rounds: ``value · Π_{r_j ≤ t} factor_j``.

    Args:
        value: the value from round 0 on.
        at: round -> factor from that round on; rounds are whole numbers ≥ 0, factors > 0.

    Raises:
        ConfigError: numbers out of range.

    Example:
        >>> lr = Piecewise(0.05, {600: 0.2, 900: 0.2})
        >>> [round(float(lr(r)), 4) for r in (0, 599, 600, 899, 900)]
        [0.05, 0.05, 0.01, 0.01, 0.002]
    """

    value: Number
    at: dict[int, Number]

    def __init__(self, value: Number, at: Mapping[int, float]):
        if not isinstance(at, Mapping):
            raise ConfigError("at", at, "give factors by round, such as {600: 0.2, 900: 0.2}")
        factors = {_check_whole("at", round_, 0): _check_positive(f"at[{round_}]", each) for round_, each in at.items()}
        self.value = _check_positive("value", value)
        self.at = dict(sorted(factors.items()))

    def __call__(self, t: Number) -> Number:
        value = jnp.asarray(self.value, float)
        for round_, factor in self.at.items():
            value = value * jnp.where(t >= round_, factor, 1.0)
        return value

    def reached(self) -> tuple[float, ...]:
        """Values that it takes, its largest among them; empty where its constants are swept."""
        if not _known(self.value, *self.at.values()):
            return ()
        values = itertools.accumulate(map(float, (self.value, *self.at.values())), operator.mul)
        return tuple(values)[1 if 0 in self.at else 0 :]  # a factor from round 0 on leaves no round to the value itself


class PowerDecay(Schedule):
    """``value / (offset + t)^power``, at most ``cap``: inverse-time, inverse-root and the like.

    Args:
        value: numerator, > 0.
        offset: > 0, in units of the counter.
        power: > 0; 1 is inverse time, 1/3 the schedule of FedDA and STEM.
        cap: > 0, the largest value; ``None``: there is none.

    Raises:
        ConfigError: numbers out of range.

    Example:
        >>> float(PowerDecay(1.0, offset=2.0, power=1.0)(2))
        0.25
        >>> [float(PowerDecay(8.0, power=1.0, cap=2.0)(t)) for t in (0, 3, 7)]
        [2.0, 2.0, 1.0]
    """

    value: Number
    offset: Number
    power: Number
    cap: Number | None

    def __init__(self, value: Number, offset: Number = 1.0, power: Number = 0.5, cap: Number | None = None):
        self.value = _check_positive("value", value)
        self.offset = _check_positive("offset", offset)
        self.power = _check_positive("power", power)
        self.cap = None if cap is None else _check_positive("cap", cap)

    def __call__(self, t: Number) -> Number:
        value = jnp.asarray(self.value, float) / (self.offset + jnp.asarray(t, float)) ** self.power
        return value if self.cap is None else jnp.minimum(value, self.cap)

    def reached(self) -> tuple[float, ...]:
        """Values that it takes, its largest among them; empty where its constants are swept."""
        if not _known(self.value, self.offset, self.power, 1.0 if self.cap is None else self.cap):
            return ()
        first = float(self.value) / float(self.offset) ** float(self.power)
        return (first if self.cap is None else min(first, float(self.cap)),)

    def arguments(self) -> dict[str, Unknown]:
        """The arguments; no cap is left out, so that runs from before there was one can resume."""
        return {name: value for name, value in super().arguments().items() if value is not None}


class Cosine(Schedule):
    """Half a cosine from ``value`` in round ``warmup`` to ``end`` in round ``rounds``, where it stays.

    Args:
        value: where the half cosine begins, > 0.
        rounds: where it ends, a whole number above ``warmup``; often the rounds of the run.
        end: the last value, ≥ 0.
        warmup: so many rounds at the start climb to it, in equal steps: the first has value/(warmup + 1).

    Raises:
        ConfigError: numbers out of range.

    Source: Loshchilov & Hutter 2017, eq. 5, without restarts; the warm-up: Goyal et al. 2017, section 2.2.

    Example:
        >>> lr = Cosine(0.4, rounds=103, warmup=3)
        >>> [round(float(lr(t)), 3) for t in (0, 1, 2, 3, 53, 103, 200)]
        [0.1, 0.2, 0.3, 0.4, 0.2, 0.0, 0.0]
    """

    value: Number
    rounds: Number
    end: Number
    warmup: Number

    def __init__(self, value: Number, rounds: Number, end: Number = 0.0, warmup: Number = 0):
        self.value = _check_positive("value", value)
        self.end = _check_positive("end", end, zero=True)
        self.warmup = _check_whole("warmup", warmup, 0)
        low = self.warmup if _known(self.warmup) else 0
        self.rounds = _check_whole("rounds", rounds, low + 1)

    def __call__(self, t: Number) -> Number:
        passed = jnp.clip((t - self.warmup) / jnp.asarray(self.rounds - self.warmup, float), 0, 1)
        return _warmed(self.end + (self.value - self.end) * (1 + jnp.cos(jnp.pi * passed)) / 2, t, self.warmup)

    def reached(self) -> tuple[float, ...]:
        """Values that it takes, its largest among them; empty where its constants are swept."""
        return (float(self.value), float(self.end)) if _known(self.value, self.end) else ()


class StepDecay(Schedule):
    """``value · factor^⌊t/every⌋``: a step down after every so many rounds.

    Args:
        value: the value of the first rounds, > 0.
        every: rounds from step to step, a whole number ≥ 1.
        factor: of each step, in (0, 1]; 1 is a constant, which may have a warm-up.
        warmup: so many rounds at the start climb to it, in equal steps: the first has value/(warmup + 1).

    Raises:
        ConfigError: numbers out of range.

    Example:
        >>> lr = StepDecay(0.4, every=10, factor=0.5, warmup=3)
        >>> [round(float(lr(t)), 3) for t in (0, 1, 2, 3, 9, 10, 20)]
        [0.1, 0.2, 0.3, 0.4, 0.4, 0.2, 0.1]
    """

    value: Number
    every: Number
    factor: Number
    warmup: Number

    def __init__(self, value: Number, every: Number, factor: Number, warmup: Number = 0):
        self.value = _check_positive("value", value)
        self.every = _check_whole("every", every, 1)
        if _known(_check_positive("factor", factor)) and factor > 1:
            raise ConfigError("factor", factor, "give a number in (0, 1]")
        self.factor = factor
        self.warmup = _check_whole("warmup", warmup, 0)

    def __call__(self, t: Number) -> Number:
        return _warmed(jnp.asarray(self.value, float) * self.factor ** (t // self.every), t, self.warmup)

    def reached(self) -> tuple[float, ...]:
        """Its largest value; empty where its constants are swept."""
        return (float(self.value),) if _known(self.value) else ()


class FromFunction(Schedule):
    """Any function of the counter, for instance one of optax's schedules.

    Args:
        function: ``function(t) -> value``; its constants are not swept.

    Raises:
        ConfigError: it is no function.

    Example:
        >>> import optax
        >>> float(FromFunction(optax.linear_schedule(1.0, 0.0, 10))(5))
        0.5
    """

    function: Callable[[Number], Number] = eqx.field(static=True)

    def __check_init__(self) -> None:
        if not callable(self.function):
            raise ConfigError("function", self.function, "give a function of the counter")

    def __call__(self, t: Number) -> Number:
        return self.function(t)


class Stepwise(eqx.Module):
    """What a field declared :func:`stepwise` holds: always a function of the global step."""

    schedule: Unknown

    def __call__(self, t: Number) -> Number:
        """The value at global step ``t``."""
        return self.schedule(t) if isinstance(self.schedule, Schedule) else self.schedule

    def __repr__(self) -> str:
        return repr(plain(self.schedule))  # as it was given: the field makes this of it again


def stepwise(**keywords: Unknown) -> Unknown:
    """Declare a method's field that varies inside a round: in the method, ``self.lr(t)`` is its value at step t.

    Example:
        >>> class Method(eqx.Module):
        ...     lr: float = stepwise()
        >>> float(Method(lr=PowerDecay(1.0, power=1.0)).lr(1)), Method(lr=0.5).lr(7)
        (0.5, 0.5)
    """
    return eqx.field(converter=lambda v: v if isinstance(v, Stepwise) else Stepwise(v), **keywords)


def resolve(method: Tree, round_: Number) -> Tree:
    """``method`` with every schedule replaced by its value at this round; stepwise fields stay functions.

    Example:
        >>> resolve({"lr": Piecewise(1.0, {2: 0.5}), "momentum": 0.9}, 3)["lr"].item()
        0.5
    """
    varies = lambda node: isinstance(node, Schedule | Stepwise)  # noqa: E731
    return jax.tree.map(lambda node: node(round_) if isinstance(node, Schedule) else node, method, is_leaf=varies)


SCHEDULES = Registry("schedule")
SCHEDULES.add("piecewise", Piecewise)
SCHEDULES.add("power", PowerDecay)
SCHEDULES.add("cosine", Cosine)
SCHEDULES.add("step", StepDecay)


def _warmed(value: Number, t: Number, warmup: Number) -> Number:
    """The value, of which the first ``warmup`` rounds have a growing share."""
    return value * jnp.minimum(1.0, (t + 1) / jnp.asarray(warmup + 1, float))


def _known(*values: Number) -> bool:
    """Whether these are plain numbers, and no arrays of a sweep."""
    return all(isinstance(value, numbers.Real) for value in values)


def _check_positive(field: str, value: Number, zero: bool = False) -> Number:
    """Numbers > 0 pass, or ≥ 0, and arrays of a sweep, which are checked where they come from."""
    if isinstance(value, jax.Array | np.ndarray):
        return value
    real = not isinstance(value, bool) and isinstance(value, numbers.Real)
    if not real or not 0 <= float(value) < math.inf or (value == 0 and not zero):
        raise ConfigError(field, value, f"give a number {'of at least' if zero else 'greater than'} 0")
    return value


def _check_whole(field: str, value: Number, low: int) -> Number:
    """Whole numbers of at least ``low`` pass, and arrays of a sweep."""
    if isinstance(value, jax.Array | np.ndarray):
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not low <= int(value) < 2**31:
        raise ConfigError(field, value, f"give a whole number of at least {low} and less than 2**31")
    return int(value)
