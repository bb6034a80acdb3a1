"""What fedax raises for bad input: one error that names the field, the value and the way out."""

import difflib
from collections.abc import Iterable


class FedaxError(Exception):
    """Base of every error that fedax raises on purpose."""


class ConfigError(FedaxError, ValueError):
    """A setting that cannot be used.

    Args:
        field: the setting's name, dotted where it is nested.
        value: what was given.
        way_out: what is allowed, as a sentence.

    Example:
        >>> raise ConfigError("rounds", -1, "give a whole number of at least 1")
        Traceback (most recent call last):
        fedax.errors.ConfigError: rounds = -1: give a whole number of at least 1
    """

    def __init__(self, field: str, value: object, way_out: str):
        self.field, self.value, self.way_out = field, value, way_out
        super().__init__(f"{_shown(field, 200)} = {_shown(_spelled(value), 200)}: {_shown(way_out, 1000)}")


class DataError(FedaxError, ValueError):
    """Examples, sizes, weights or files that cannot be used; the message names which and where."""


class CheckpointError(FedaxError, RuntimeError):
    """A checkpoint that cannot be written, cannot be read, or is of another run."""

    def __init__(self, text: str):
        super().__init__(_shown(text, 1500))


class ProcessError(FedaxError, RuntimeError):
    """Of several processes that run one job together, another one is gone."""


class DivergedWarning(UserWarning):
    """A run was stopped because its training loss was no longer finite."""


class DamagedWarning(UserWarning):
    """Something that a run goes on from was damaged or lost, and what is done about it."""


class BadClientWarning(UserWarning):
    """A run was stopped by its guard, because of what clients sent."""


def _spelled(value: object) -> str:
    try:
        return repr(value)
    except ValueError:  # a whole number of more than 4300 digits
        return f"of type {type(value).__name__}, too long to show"


def _shown(text: str, most: int) -> str:
    """A text that may be from a file: not too long, and without control characters for the terminal."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:most])
    return shown if len(text) <= most and len(shown) <= most else f"{shown[:most]}…"


def unknown(field: str, name: str, choices: Iterable[str]) -> ConfigError:
    """The error for a name that is not among ``choices``, with the nearest one.

    Example:
        >>> print(unknown("method", "fedavgg", ["fedavg", "fedprox"]))
        method = 'fedavgg': did you mean 'fedavg'? There are: fedavg, fedprox
    """
    names = sorted(choices)
    near = difflib.get_close_matches(str(name).lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else "no such name. "
    return ConfigError(field, name, f"{hint}There are: {', '.join(names)}")
