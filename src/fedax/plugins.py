"""Registration of the user's own methods and tasks.

An installed package registers them by entry points, ``fedax.methods`` for classes and ``fedax.tasks`` for functions.
"""

from collections.abc import Sequence
from typing import Any

from fedax.algorithms import METHODS
from fedax.contract.algorithm import Algorithm
from fedax.errors import ConfigError
from fedax.tasks import TASKS


def register(what: Any = None, /, *, aliases: Sequence[str] = ()) -> Any:
    """Register your own method or task under a name, for :func:`fedax.create`, configurations and the command.

    Use it as a decorator, with or without a name. A class has to be a :class:`fedax.Algorithm`; its fields are the
    method's hyper-parameters. A function has to make a :class:`fedax.Task`; its arguments are the task's settings.
    Arguments called ``features``, ``shape`` or ``classes`` come from the data in a configuration.

    Args:
        what: the class or function; or the name to register, by default that of the class or function.
        aliases: other names.

    Raises:
        ConfigError: the name is taken.

    Example:
        >>> import fedax
        >>> @fedax.register("descent", aliases=["gd"])
        ... class Descent(fedax.Algorithm):
        ...     'Gradient descent.'
        ...     lr: float = 0.1
        ...     def init(self, x):
        ...         return x
        ...     def client(self, download, memory, oracle):
        ...         return oracle.full_grad(download), memory
        ...     def server(self, server, mean, round):
        ...         return server - self.lr * mean / round.total
        >>> fedax.create("gd", lr=0.5), fedax.available()["descent"]
        (Descent(lr=0.5), 'Gradient descent. [alias gd]')
    """
    if what is None or isinstance(what, str):
        return lambda made: _register(made, made.__name__ if what is None else what, aliases)
    return _register(what, getattr(what, "__name__", ""), aliases)


def _register(made: Any, name: str, aliases: Sequence[str]) -> Any:
    is_method = isinstance(made, type) and issubclass(made, Algorithm)
    if not is_method and (isinstance(made, type) or not callable(made)):
        hint = "give a class that is a fedax.Algorithm, or a function that makes a fedax.Task"
        raise ConfigError("register", made, hint)
    registry: Any = METHODS if is_method else TASKS
    registry.register(name, made, aliases)
    return made
