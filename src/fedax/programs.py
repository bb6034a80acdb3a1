"""Compiled programs; only those used last are kept in memory."""

import contextlib
import functools
import inspect
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax
import numpy as np

_MOST = 128  # a program takes 40 to 80 memory maps, of which Linux allows a process 65,530, and 3 to 5 MiB

_TIMED = "/jax/core/compile/"  # of JAX's events: tracing, lowering, and compiling or reading what was compiled
_timing = threading.local()


class CompileTime:
    """The seconds that JAX spent on tracing and compiling; a program that is traced inside another counts once."""

    def __init__(self) -> None:
        self._intervals: list[tuple[float, float]] = []

    def took(self, seconds: float) -> None:
        """Note that ``seconds`` have just been spent."""
        end = time.perf_counter()
        start = end - seconds
        while self._intervals and self._intervals[-1][1] > start:  # what was traced inside
            start = min(start, self._intervals.pop()[0])
        self._intervals.append((start, end))

    @property
    def seconds(self) -> float:
        """The seconds so far."""
        return sum(end - start for start, end in self._intervals)


@contextlib.contextmanager
def compile_time() -> Iterator[CompileTime]:
    """Measure what this thread spends on tracing and compiling.

    Example:
        >>> with compile_time() as found:
        ...     _ = jax.jit(lambda x: x + 2)(np.ones(3))
        >>> found.seconds > 0
        True
    """
    _listen()
    before, found = getattr(_timing, "found", None), CompileTime()
    _timing.found = found
    try:
        yield found
    finally:
        _timing.found = before


@functools.cache
def _listen() -> None:
    def took(event: str, duration_secs: float, **_: Any) -> None:
        found = getattr(_timing, "found", None)
        if found is not None and event.startswith(_TIMED):
            found.took(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(took)


class Compiled(Protocol):
    """A function that :func:`compiled` made."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Its result."""

    def form(self, *args: Any, **kwargs: Any) -> Any:
        """The form of its result, of ``jax.ShapeDtypeStruct``; traced once for the same forms of arguments."""


def compiled(
    *,
    static: Sequence[str] = (),
    donate: Sequence[str] = (),
    options: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> Callable[[Callable[..., Any]], Compiled]:
    """A decorator like ``jax.jit``, but all functions together keep only the 128 programs that were used last.

    ``jax.jit`` keeps the programs of a function as long as the function exists, which is forever for one of a module,
    and with them the tasks and plans that they were compiled for.

    Args:
        static: names of the arguments that are part of the program: hashable, compared by ``==``.
        donate: names of the arguments whose memory the program may use up.
        options: the compiler's, of the static arguments by name.

    Example:
        >>> @compiled(static=["power"])
        ... def raised(x, power):
        ...     return x**power
        >>> raised(3.0, 2).item(), raised(3.0, power=3).item()
        (9.0, 27.0)
        >>> raised.form(np.ones(3), 2).shape
        (3,)
    """

    def decorate(function: Callable[..., Any]) -> Any:
        names = list(inspect.signature(function).parameters)

        def program_of(args: Any, kwargs: Any) -> tuple[Any, dict[str, Any]]:
            given = dict(zip(names, args, strict=False)) | kwargs
            fixed = tuple((name, given.pop(name)) for name in static)
            leaves, structure = jax.tree.flatten(given)
            form = tuple((np.shape(leaf), getattr(leaf, "dtype", type(leaf))) for leaf in leaves)
            choices = () if options is None else tuple(options(dict(fixed)).items())
            return _program(function, tuple(donate), choices, fixed, structure, form), given

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            program, given = program_of(args, kwargs)
            return program(**given)

        def form(*args: Any, **kwargs: Any) -> Any:
            program, given = program_of(args, kwargs)
            return program.eval_shape(**given)

        call.form = form  # type: ignore[attr-defined]
        return call

    return decorate


@functools.lru_cache(maxsize=_MOST)
def _program(
    function: Callable[..., Any], donate: tuple[str, ...], options: Any, fixed: Any, structure: Any, form: Any
) -> Any:
    """A new jitted function for one program; when the cache drops it, JAX frees what it has compiled."""
    program = functools.partial(function, **dict(fixed))
    program.__name__ = function.__name__  # type: ignore[attr-defined]
    return jax.jit(program, donate_argnames=donate, compiler_options=dict(options) or None)
