"""The errors of fedax: each names the field, the value and the way out."""

import difflib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

# A frame of a traceback outside of these libraries is the user's own code.
_LIBRARIES = {"equinox", "fedax", "flax", "jax", "jaxlib", "jaxtyping", "ml_dtypes", "numpy", "optax", "pandas"}

# Invisible characters that change how text is shown: escapes, and marks that change the direction of the text.
_CODES = [*(code for code in range(32) if code not in (9, 10)), *range(127, 160), 0x61C, 0x200E, 0x200F]
UNSEEN = dict.fromkeys([*_CODES, *range(0x2028, 0x202F), *range(0x2066, 0x206A)], "\N{REPLACEMENT CHARACTER}")


class FedaxError(Exception):
    """Base of every error that fedax raises on purpose."""


class ConfigError(FedaxError, ValueError):
    """A setting that cannot be used.

    Args:
        field: the setting's name, dotted where it is nested.
        value: what was given.
        hint: what is allowed, as a sentence.

    Example:
        >>> raise ConfigError("rounds", -1, "give a whole number of at least 1")
        Traceback (most recent call last):
        fedax.errors.ConfigError: rounds = -1: give a whole number of at least 1
    """

    def __init__(self, field: str, value: object, hint: str):
        self.field, self.value, self.hint = field, value, hint
        super().__init__(f"{one_line(field, 200)} = {one_line(_spelled(value), 200)}: {one_line(hint, 1000)}")


class CodeError(ConfigError):
    """A function of the user's own task or method that does not do what fedax needs.

    Args:
        field: the function, such as ``task.loss``.
        what: what it did, beginning with a verb.
        hint: what to do, as a sentence.
        place: the file and line, from :func:`place_of`; ``""`` where they are not known.

    Example:
        >>> raise CodeError("apply", "returned [32, 1]", "classes = 2 needs [32, 2]", "net.py:7")
        Traceback (most recent call last):
        fedax.errors.CodeError: apply returned [32, 1]; classes = 2 needs [32, 2] (net.py:7)
    """

    def __init__(self, field: str, what: str, hint: str, place: str = ""):
        self.field, self.value, self.hint, self.place = field, what, hint, place
        where = f" ({one_line(place, 300)})" if place else ""
        Exception.__init__(self, f"{field} {one_line(what, 400)}; {one_line(hint, 600)}{where}")


class DataError(FedaxError, ValueError):
    """Examples, sizes, weights or files that cannot be used; the message names which and where.

    Example:
        >>> raise DataError(f"there is no column 'a{chr(27)}[2J'")  # control characters of files are spelled out
        Traceback (most recent call last):
        fedax.errors.DataError: there is no column 'a\\x1b[2J'
    """

    def __init__(self, text: str):
        super().__init__(one_line(text, 5000))


class ExampleError(DataError):
    """A single example that cannot be used.

    Args:
        column: the array, such as ``examples['y']``.
        example: its index in that array.
        what: what is wrong with it, beginning with a verb, and the way out.
        client: whose it is, by number or name; ``example`` is then the index among its own. ``None``: not known.

    Example:
        >>> raise ExampleError("examples['age']", 12, "is NaN; clean the data first", client=7)
        Traceback (most recent call last):
        fedax.errors.ExampleError: client 7, examples['age'], row 12 is NaN; clean the data first
    """

    def __init__(self, column: str, example: int, what: str, client: int | str | None = None):
        self.column, self.example, self.what, self.client = column, example, what, client
        where = f"{column}: example {example}" if client is None else f"client {client!r}, {column}, row {example}"
        super().__init__(f"{where} {what}")


class CheckpointError(FedaxError, RuntimeError):
    """A checkpoint that cannot be written, cannot be read, or is of another run."""

    def __init__(self, text: str):
        super().__init__(one_line(text, 1500))


class ProcessError(FedaxError, RuntimeError):
    """Another process of the same job has died."""


class NodeError(FedaxError, RuntimeError):
    """Real clients, their node or the link to them: one did not answer, answered something else, or does not fit."""

    def __init__(self, text: str):
        super().__init__(one_line(text, 1500))


class DivergedWarning(UserWarning):
    """A run was stopped because its training loss was no longer finite, or it ended worse than it began."""


class DamagedWarning(UserWarning):
    """Something that a run goes on from was damaged or lost, and what is done about it."""


class BadClientWarning(UserWarning):
    """A run was stopped by its guard, because of what clients sent."""


class DoubtfulWarning(UserWarning):
    """Data to look at: cells of a file that span lines, cells of new rows unlike any in training, files not read."""


class TrackingWarning(UserWarning):
    """A tracker failed; the run goes on without it."""


def _spelled(value: object) -> str:
    try:
        text = repr(value)
        return text if "\n" not in text else f"a {type(value).__name__}"  # a table, an array, a model
    except ValueError:  # a whole number of more than 4300 digits
        return f"of type {type(value).__name__}, too long to show"


def one_line(text: str, most: int) -> str:
    """A text that may be from a file: not too long, and without control characters for the terminal.

    Example:
        >>> one_line("a\\nb" + "c" * 100, 6)
        'a\\\\nbcc…'
    """
    shown = printable(text[:most])
    return shown if len(text) <= most and len(shown) <= most else f"{shown[:most]}…"


def printable(text: str) -> str:
    """A text without control characters, which a terminal would obey: they are written as Python does.

    Example:
        >>> print(printable(f"ward{chr(27)}[2J"))
        ward\\x1b[2J
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def unknown(field: str, name: str, choices: Iterable[str], value: Any = None) -> ConfigError:
    """The error for a name that is not among ``choices``, with the nearest one; ``value``: of a setting of this name.

    Example:
        >>> print(unknown("method", "fedavgg", ["fedavg", "fedprox"]))
        method = 'fedavgg': did you mean 'fedavg'? There are: fedavg, fedprox
    """
    names = sorted(choices)
    near = difflib.get_close_matches(str(name).lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else "no such name. "
    return ConfigError(field, name if value is None else value, f"{hint}There are: {', '.join(names)}")


def call(field: str, called_as: str, function: Callable[..., Any], *args: Any, about: str = "") -> Any:
    """Call ``function(*args)``, which the user may have written; its errors name the user's line.

    Args:
        field: the name of the function in errors.
        called_as: its signature, such as ``loss(params, batch, key)``.
        function, args: the call.
        about: details for the error, such as the shapes of the arguments.

    Raises:
        CodeError: the user's code raised something. What fedax itself raises on purpose passes unchanged.

    Example:
        >>> call("task.loss", "loss(params, batch, key)", lambda params, batch: 0.0, 1, 2, 3)
        Traceback (most recent call last):
        fedax.errors.CodeError: task.loss cannot take its arguments (...); it is called as loss(params, batch, key)
    """
    try:
        inspect.signature(function).bind(*args)
    except TypeError as error:
        what = f"cannot take its arguments ({error})"
        raise CodeError(field, what, f"it is called as {called_as}", place_of(function)) from error
    except ValueError:  # a built-in function without a signature
        pass
    try:
        return function(*args)
    except FedaxError:
        raise
    except Exception as error:
        if (place := _raised_at(error)) is None:
            raise  # no line of the user's code is involved
        kinds = [kind.__name__ for kind in type(error).__mro__]
        what = f"raised {type(error).__name__}"
        if hint := next((hint for name, hint in _HINTS.items() if name in kinds), None):
            raise CodeError(field, what, hint, place) from error
        first = str(error).strip().partition("\n")[0].rstrip(".")
        raise CodeError(field, f"{what}: {first}", about or "the whole error is above", place) from error


# By name, so that errors need not import JAX. What each means is a mistake that most newcomers make once.
_HINTS = {
    "TracerBoolConversionError": "Python's if, while, and, or need values that are known before compilation: "
    "use jnp.where, jnp.logical_and or jax.lax.cond",
    "TracerIntegerConversionError": "Python needs a whole number that is known before compilation, and oracle.steps "
    "is not where clients take different numbers of steps: use fedax.local_steps(step, x, oracle) in place of "
    "a loop over range(oracle.steps), jax.lax.fori_loop in place of another",
    "TracerArrayConversionError": "NumPy cannot work on values that are known only when the program runs: "
    "use jax.numpy in place of numpy",
    "NonConcreteBooleanIndexError": "the number of rows that a mask selects is not known before compilation: "
    "use jnp.where(mask, values, 0)",
    "ConcretizationTypeError": "Python's int(), float() and .item() need values that are known before compilation: "
    "keep them as arrays",
    "FrozenInstanceError": "a method holds no state: what changes goes into the server's state or the client's memory",
}


def place_of(function: Any) -> str:
    """``file:line`` where a function or class of the user's is defined; ``""`` for a library's, or where not known."""
    while isinstance(function, functools.partial) or hasattr(function, "__wrapped__"):
        function = function.func if isinstance(function, functools.partial) else function.__wrapped__
    if isinstance(function, type):
        try:
            file, line = inspect.getsourcefile(function), inspect.getsourcelines(function)[1]
        except (OSError, TypeError):  # typed interactively
            return ""
        return f"{_short(str(file))}:{line}"
    if not inspect.isroutine(function):
        function = type(function).__call__
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None or of_a_library(getattr(function, "__module__", None) or ""):
        return ""
    return f"{_short(code.co_filename)}:{code.co_firstlineno}"


def _raised_at(error: BaseException) -> str | None:
    """``file:line`` of the innermost frame that is the user's."""
    found, at = None, error.__traceback__
    while at is not None:
        if not of_a_library(str(at.tb_frame.f_globals.get("__name__", ""))):
            found = f"{_short(at.tb_frame.f_code.co_filename)}:{at.tb_lineno}"
        at = at.tb_next
    return found


def of_a_library(module: str) -> bool:
    """Whether a module is of fedax, of a library that it works with, or of Python, and so not the user's own code."""
    top = module.partition(".")[0]
    return top in _LIBRARIES or top in sys.stdlib_module_names


def caller_level() -> int:
    """The ``stacklevel`` at which a warning names the line outside of fedax that led to it.

    Example:
        >>> caller_level() >= 1
        True
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "fedax":
        level, frame = level + 1, frame.f_back
    return level


def _short(file: str) -> str:
    """The path of a file relative to the current folder, if it is below."""
    below = os.path.relpath(file) if os.path.isabs(file) else file
    return file if below.startswith("..") else below
