"""The base of all task factories: the same arguments give the same Task, and bad arguments a clear error."""

import functools
import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedax.errors import ConfigError
from fedax.numbers import check_count
from fedax.tasks.task import Task

Real = float | int
PerChannel = Real | Sequence[Real] | None
ClassWeights = Sequence[Real] | None


class Factory:
    """A function that makes a Task, made to return the same object whenever it is given the same arguments.

    A Task compares by identity, and JAX compiles anew for one it has not seen. Arguments by position, by name or
    left at their default count as the same; so do lists and tuples, Python's and NumPy's numbers.
    """

    __name__: str

    def __init__(self, make: Callable[..., Task]):
        self.signature = inspect.signature(make)
        self._cached = functools.lru_cache(maxsize=None)(make)
        functools.update_wrapper(self, make)

    def __call__(self, *args: Any, **kwargs: Any) -> Task:
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.__name__}(): {error}") from None
        bound.apply_defaults()
        given = {name: _hashable(value) for name, value in bound.arguments.items()}
        arguments = {name: value for name, value in given.items() if name not in _LATER or value not in _OFF}
        for name, value in arguments.items():
            try:
                hash(value)
            except TypeError:
                raise ConfigError(name, value, "give a number, a text, a list of them or a function") from None
        task = self._cached(**arguments)
        # A factory that calls another one is entered last, with the user's own arguments. The loss identifies the task,
        # so that a copy of it with other metrics is found too.
        _made_with[task.loss] = self.__name__, arguments
        return task


# Arguments that came later are left out while they are off, so that a run of before is still the same run.
_LATER, _OFF = ("augment", "class_weights", "crop", "flip"), (None, False, 0)

_made_with: weakref.WeakKeyDictionary[Callable[..., Any], tuple[str, dict[str, Any]]] = weakref.WeakKeyDictionary()


def made_with(task: Task) -> dict[str, Any]:
    """The arguments of the factory that made a task, without functions; of other tasks none.

    Example:
        >>> import fedax
        >>> made_with(fedax.tasks.linear_regression(3))
        {'features': 3, 'bias': True}
    """
    _, arguments = _made_with.get(task.loss, ("", {}))
    return {name: value for name, value in arguments.items() if not callable(value)}


def made_as(task: Task) -> dict[str, Any] | None:
    """The factory's name and its arguments, in plain JSON; ``None`` of a task that has functions of the user's.

    Example:
        >>> import fedax
        >>> made_as(fedax.tasks.linear_regression(3))
        {'name': 'linear_regression', 'features': 3, 'bias': True}
    """
    name, arguments = _made_with.get(task.loss, ("", {}))
    if not name or any(callable(value) for value in arguments.values()):
        return None
    return {"name": name, **arguments}


Origin = tuple[str, dict[str, Any]] | None


def origin_of(task: Task) -> Origin:
    """Which factory made a task, and with what, for a copy in another process; ``None``: no factory did."""
    return _made_with.get(task.loss)


def keep_origin(task: Task, origin: Origin) -> None:
    """Tell a task that came from another process its :func:`origin_of`, without which a saved model has no task."""
    if origin is not None:
        _made_with[task.loss] = origin


def _hashable(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    return tuple(_hashable(v) for v in value) if isinstance(value, (list, tuple)) else value


def image(shape: Any, smallest: int) -> tuple[int, int, int]:
    """``shape``, if it is (height, width, channels) with both sides at least ``smallest``."""
    if not isinstance(shape, tuple) or len(shape) != 3:
        raise ConfigError("shape", shape, "give (height, width, channels), such as (32, 32, 3)")
    height, width, channels = shape
    for field, value, low in (("height", height, smallest), ("width", width, smallest), ("channels", channels, 1)):
        check_count(f"shape's {field}", value, low)
    return height, width, channels
