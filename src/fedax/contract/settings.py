"""Settings: the base of what a user configures, whose repr can be pasted back."""

import inspect
import sys

import equinox as eqx
import jax
import numpy as np

from fedax.contract.types import Unknown


class Settings(eqx.Module):
    """A frozen dataclass of settings. An attribute has the name of the argument that it was made from.

    Example:
        >>> class Rate(Settings):
        ...     value: object
        ...     factor: float = 1.0
        >>> Rate(np.array([0.1, 0.2]))
        Rate(value=[0.1, 0.2])
    """

    def arguments(self) -> dict[str, Unknown]:
        """Name -> value of the arguments with which an equal object is made."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def __repr__(self) -> str:
        defaults = {name: parameter.default for name, parameter in inspect.signature(type(self)).parameters.items()}
        given = {name: _written(plain(value)) for name, value in self.arguments().items()}
        usual = {name: _written(defaults[name]) for name in given.keys() & defaults.keys()}
        text = ", ".join(f"{name}={value}" for name, value in given.items() if value != usual.get(name))
        return f"{type(self).__name__}({text})"


def _written(value: Unknown) -> str:
    """The value's repr, or the name by which a function or a class is imported."""
    name, module = getattr(value, "__qualname__", None), getattr(value, "__module__", None)
    if name is not None and module is not None:
        for each in (module.partition(".")[0], module):
            if getattr(sys.modules.get(each), name, None) is value:
                return name if each == "__main__" else f"{each}.{name}"
    return repr(value)


def plain(value: Unknown) -> Unknown:
    """``value`` with the numbers and lists of Python in place of arrays; arrays that JAX is tracing stay."""
    if isinstance(value, np.ndarray | np.generic | jax.Array) and not isinstance(value, jax.core.Tracer):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    return value
