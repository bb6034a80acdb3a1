"""Hyper-parameters as data: a field's default, and what it may be. :func:`check` refuses everything else.

A method declares its fields by these functions and needs no check of its own, unless one depends on two fields.
"""

import dataclasses
import math
import numbers
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx

from fedax.contract.schedule import stepwise
from fedax.contract.settings import plain
from fedax.contract.types import Unknown
from fedax.errors import ConfigError, unknown
from fedax.numbers import check_count, check_number


class HyperRule(NamedTuple):
    """What a hyper-parameter may be.

    Attributes:
        check: ``(field, value)``, which raises a ConfigError.
        allowed: the same in words or as an interval.
        choices: all values, where these are few.
        off: whether it may be ``None``.
    """

    check: Callable[[str, Unknown], Unknown]
    allowed: str
    choices: tuple[Unknown, ...] = ()
    off: bool = False


def hyper(default: Unknown, within: str, *, off: bool = False, by_step: bool = False) -> Unknown:
    """Declare a number or schedule.

    Args:
        default: of the field.
        within: an interval, such as ``"(0, ∞)"`` or ``"[0, 1)"``.
        off: whether it may be ``None``.
        by_step: whether it may vary inside a round, as :func:`fedax.stepwise` declares it.

    Example:
        >>> class Method(eqx.Module):
        ...     lr: float = hyper(0.05, "(0, ∞)")
        >>> check(Method(lr=-1.0))
        Traceback (most recent call last):
        fedax.errors.ConfigError: lr = -1.0: give a number in (0, ∞)
    """
    low, high = (float(end.replace("∞", "inf")) for end in within[1:-1].split(","))
    open_low, open_high = within[0] == "(", within[-1] == ")" and high < math.inf  # as check_number writes infinity

    def check(field: str, value: Unknown) -> None:
        check_number(field, value, low, high, open_low=open_low, open_high=open_high)

    rule = HyperRule(check, within, (), off)
    return (stepwise if by_step else eqx.field)(**_keywords(default, rule))


def choice(default: Unknown, *choices: Unknown, off: bool = False) -> Unknown:
    """Declare a name, or a number, out of a few; it is static, and decides what is compiled.

    Example:
        >>> class Method(eqx.Module):
        ...     option: int = choice(2, 1, 2)
        >>> check(Method(option=3))
        Traceback (most recent call last):
        fedax.errors.ConfigError: option = 3: give 1 or 2
    """

    def check(field: str, value: Unknown) -> None:
        plain = isinstance(value, str | numbers.Integral)
        if plain and any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in choices):
            return
        if all(isinstance(each, str) for each in choices):
            raise unknown(field, value, choices)
        raise ConfigError(field, value, f"give {' or '.join(_written(each) for each in choices)}")

    return _static(default, HyperRule(check, " or ".join(map(repr, choices)), choices, off))


def flag(default: bool = False) -> Unknown:
    """Declare a switch; it is static, and decides what is compiled."""
    return choice(default, True, False)


def count(default: Unknown, low: int = 1, *, off: bool = False) -> Unknown:
    """Declare a whole number of at least ``low``; it is static, and decides what is compiled."""
    rule = HyperRule(lambda field, value: check_count(field, value, low), f"a whole number of at least {low}", (), off)
    return _static(default, rule)


def rules(kind: Unknown) -> dict[str, HyperRule]:
    """The declared hyper-parameters of a class or object: field -> rule.

    Example:
        >>> from fedax.algorithms import Scaffold
        >>> rules(Scaffold)["lr"].allowed, rules(Scaffold)["option"].choices
        ('(0, ∞)', (1, 2))
    """
    return {field.name: field.metadata["rule"] for field in dataclasses.fields(kind) if "rule" in field.metadata}


def check(module: Unknown) -> None:
    """Raise a ConfigError for the first field whose value its declaration does not allow; parts check themselves."""
    declared, fields = rules(module), dataclasses.fields(module)
    replaced = {each.metadata.get("instead_of") for each in fields if getattr(module, each.name) is not None}
    for field in fields:
        if field.name in replaced:
            continue
        value, rule = getattr(module, field.name), declared.get(field.name)
        if rule is not None:
            if not (rule.off and value is None):
                rule.check(field.name, value)
        elif isinstance(value, eqx.Module) and hasattr(value, "validate"):
            value.validate()


def _static(default: Unknown, rule: HyperRule) -> Unknown:
    return eqx.field(static=True, converter=plain, **_keywords(default, rule))  # of NumPy too


def _keywords(default: Unknown, rule: HyperRule) -> dict[str, Unknown]:
    given = {} if default is dataclasses.MISSING else {"default": default}
    return given | {"metadata": {"rule": rule}}


def _written(value: Unknown) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)
