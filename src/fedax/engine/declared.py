"""How an option of a run is declared: once, as a field with its lines of docs; all else is made of that."""

import dataclasses
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import NamedTuple, ParamSpec, TypeVar

from fedax.contract.types import Unknown
from fedax.errors import ConfigError

_SECTIONS = re.compile(r"^(?=(?:Returns|Raises|Example):$)", re.MULTILINE)
_ARGUMENT = re.compile(r"^    (\w+): .*(?:\n      .*)*", re.MULTILINE)
_P = ParamSpec("_P")
_Given = TypeVar("_Given")
_Result = TypeVar("_Result")


class Option(NamedTuple):
    """What a field's type and default do not say of an option, or of an argument.

    Attributes:
        hint: what to give. Where there is one, a value of another type is refused with it.
        setting: where a configuration has it, ``"run.guard"`` or a section, ``"privacy"``; ``None``: no file has it.
        fingerprint: whether a run is another one with another value: ``"given"``, unless it is ``None``, or
            ``"always"``; ``""`` where it is not, or where what is made of it says so: the method, the work, the wire,
            the data.
        of_wire: whether it is a stage of the wire, the field of its name. Such are part of a run's fingerprint, and
            nodes of real clients are told of them.
        at_nodes: whether nodes are told of it though it is none of the wire.
        of_problem: whether runs in which it differs are not compared.
        varies: where points of a sweep may differ in it, a setting that may vary, as an example.
    """

    hint: str = ""
    setting: str | None = None
    fingerprint: str = ""
    of_wire: bool = False
    at_nodes: bool = False
    of_problem: bool = False
    varies: str = ""


def option(default: Unknown, **about: Unknown) -> Unknown:
    """A field with this default and the entries of an :class:`Option`."""
    return dataclasses.field(default=default, metadata={"option": Option(**about)})


class Declared(NamedTuple):
    """A declared option: the :class:`Option`, the types of its values but for ``None``, and its name in a file."""

    option: Option
    kinds: tuple[Unknown, ...]

    @property
    def path(self) -> list[str]:
        """Where a configuration has it, the names from the outermost on; empty: nowhere."""
        return [] if self.option.setting is None else self.option.setting.split(".")

    def within(self, config: Mapping[str, Unknown]) -> Unknown:
        """What a configuration has of it; ``None``: nothing, or there is no such setting."""
        found: Unknown = config if self.path else None
        for name in self.path:
            found = None if found is None else found.get(name)
        return found


def declared(kind: Unknown) -> dict[str, Declared]:
    """The declared options of a class, by name; ``place.precision`` is one of the class of ``place``.

    Example:
        >>> @dataclasses.dataclass
        ... class Oven:
        ...     minutes: int | None = option(None, hint="give minutes")
        >>> declared(Oven)["minutes"].kinds
        (<class 'int'>,)
    """
    found: dict[str, Declared] = {}
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if (about := field.metadata.get("option")) is None:
            continue
        hint = hints[field.name]
        members = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
        members = tuple(each for each in members if each is not types.NoneType)
        origins = [typing.get_origin(each) for each in members]
        kinds = tuple(
            each if origin in (None, typing.Literal) else origin for each, origin in zip(members, origins, strict=True)
        )
        found[field.name] = Declared(about, kinds)
        if dataclasses.is_dataclass(kinds[0]):
            found |= {f"{field.name}.{part}": each for part, each in declared(kinds[0]).items()}
    return found


def value_of(options: Unknown, name: str) -> Unknown:
    """The value of an option by its name in :func:`declared`; ``None`` where a part's whole is not given."""
    for part in name.split("."):
        options = None if options is None else getattr(options, part)
    return options


def check_kinds(options: Unknown) -> None:
    """Raise a ConfigError for the first option whose value is of another type than it is declared to have."""
    for name, each in declared(type(options)).items():
        if each.option.hint and (value := value_of(options, name)) is not None and not isinstance(value, each.kinds):
            raise ConfigError(name, value, each.option.hint)


def takes(
    arguments: Callable[_P, _Given], check: Callable[[Mapping[str, Unknown]], None] | None = None
) -> Callable[[Callable[[_Given], _Result]], Callable[_P, _Result]]:
    """A function of the arguments that are declared in a dataclass: it has their signature and their docs.

    Args:
        arguments: the dataclass; the function gets an object of it.
        check: is called with the keywords of a call before that is made.

    Example:
        >>> @dataclasses.dataclass
        ... class Oven:
        ...     '''Arguments.
        ...
        ...     Args:
        ...         minutes: how long.
        ...     '''
        ...
        ...     minutes: int | None = None
        >>> @takes(Oven)
        ... def bake(given: Oven) -> str:
        ...     'Bake.'
        ...     return f"{given.minutes} minutes"
        >>> bake(minutes=3), bake.__doc__, inspect.signature(bake)
        ('3 minutes', 'Bake.\\n\\nArgs:\\n    minutes: how long.\\n', <Signature (minutes: int | None = None) -> str>)
    """

    def decorate(function: Callable[[_Given], _Result]) -> Callable[_P, _Result]:
        @functools.wraps(function)
        def called(*args: _P.args, **keywords: _P.kwargs) -> _Result:
            if check is not None:
                check(keywords)
            try:
                signature.bind(*args, **keywords)
            except TypeError as error:
                raise TypeError(f"{function.__name__}(): {error}") from None
            return function(arguments(*args, **keywords))

        made: Unknown = arguments
        result = inspect.signature(function).return_annotation
        signature = inspect.signature(made).replace(return_annotation=result)
        called.__signature__ = signature  # type: ignore[attr-defined]
        docs = docs_of(made)
        about = "\n".join(docs[name] for name in signature.parameters)
        head, *rest = _SECTIONS.split(inspect.cleandoc(function.__doc__ or ""), maxsplit=1)
        called.__doc__ = "\n".join([head.rstrip(), "", "Args:", about, "", *rest])
        return called

    return decorate


def docs_of(kind: type) -> dict[str, str]:
    """Argument -> its lines in the section ``Args`` of the docstring of a class, or of the nearest base that has it."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        section = inspect.cleandoc(vars(base).get("__doc__") or "").partition("\nArgs:\n")[2]
        found |= {lines[1]: lines[0] for lines in _ARGUMENT.finditer(section)}
    return found
