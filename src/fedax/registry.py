"""Registries of components by name: they make objects from names and arguments, with clear errors."""

import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Union, get_args, get_origin

from fedax.errors import CodeError, ConfigError, DataError, unknown

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@functools.lru_cache(maxsize=256)  # to look at a signature takes as long as to make the object
def _parameters(make: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(make).parameters


class Component(NamedTuple):
    """A named component.

    Attributes:
        name: its canonical spelling.
        make: what makes it, a class or a function.
        summary: one line about it.
        aliases: other names.
        defaults: arguments with another default than ``make`` has.
        fixed: arguments that a user does not set.
        refuses: arguments of others that it does not take: name -> why, and what to do.
    """

    name: str
    make: Callable[..., Any]
    summary: str
    aliases: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = {}
    fixed: Mapping[str, Any] = {}
    refuses: Mapping[str, str] = {}

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments that a user may set: name -> default, or ``inspect.Parameter.empty`` if required."""
        fields = _parameters(self.make).items()
        return {name: self.defaults.get(name, field.default) for name, field in fields if name not in self.fixed}

    def bind(self, given: Mapping[str, Any], *first: Any, section: str | None = None) -> tuple[Any, dict[str, Any]]:
        """Make the object from a table of arguments.

        Args:
            given: arguments by name.
            first: positional arguments, which no user sets.
            section: the section of a configuration that the table is: a prefix for the fields in errors. Texts, truth
                values, and lists and tables of texts then have to be such, as ``make`` is annotated.

        Returns:
            The object, and all arguments that have a value, given or by default.

        Raises:
            ConfigError: an unknown or missing argument, or the error of the class or function.
        """
        arguments = dict(list(self.arguments.items())[len(first) :])
        self.check(given, arguments, None if section is None else f"{section}.")
        if section is not None:
            kinds = {name: _parameters(self.make)[name].annotation for name in given}
            given = {name: _typed(f"{section}.{name}", value, kinds[name]) for name, value in given.items()}
        call = functools.partial(self.make, *first, **{**self.fixed, **self.defaults, **given})
        has = {name for name, default in arguments.items() if default is not None} | set(given)
        made = call() if section is None else within(section, call)
        return made, {name: given.get(name, default) for name, default in arguments.items() if name in has}

    def check(self, given: Mapping[str, Any], arguments: Mapping[str, Any], prefix: str | None = None) -> None:
        """Raise a ConfigError for a given argument that is not among ``arguments``, or one of these that is missing."""
        for name, value in given.items():
            if name not in arguments:
                if name in self.refuses:
                    raise ConfigError(f"{prefix or ''}{name}", value, f"{self.name}: {self.refuses[name]}")
                field = f"argument of {self.name}" if prefix is None else f"{prefix}{name}"
                if not arguments:
                    raise ConfigError(field, value, "there is nothing to set here; leave it out")
                raise unknown(field, name, arguments, name if prefix is None else value)
        for name, default in arguments.items():
            if default is inspect.Parameter.empty and name not in given:
                hint = f"this is missing; {self.name} takes {', '.join(arguments)}"
                raise ConfigError(f"{prefix or ''}{name}", None, hint)


class Registry:
    """The components of one kind. Case does not matter in a name, and ``_`` and ``-`` are the same.

    Args:
        kind: what the components are, as errors call them.
        group: entry points of installed packages by which these add components; ``None``: they cannot.
        check: ``(field, object)``, which raises a ConfigError for what no package or user can add.

    Example:
        >>> shapes = Registry("shape")
        >>> shapes.add("circle", lambda radius, colour="red": (radius, colour), "all points at one distance")
        >>> shapes.make("Circle", radius=2)
        (2, 'red')
        >>> shapes.make("circel", radius=2)
        Traceback (most recent call last):
        fedax.errors.ConfigError: shape = 'circel': did you mean 'circle'? There are: circle
    """

    def __init__(self, kind: str, group: str | None = None, check: Callable[[str, Any], None] | None = None):
        self.kind, self.group, self.check = kind, group, check or (lambda field, made: None)
        self._components: dict[str, Component] = {}
        self._names: dict[str, str] = {}  # normalised spelling of a name or alias -> name
        self._loaded: dict[str, str] = {}  # spelling -> the value of its entry point

    def add(
        self,
        name: str,
        make: Callable[..., Any],
        summary: str | None = None,
        *,
        aliases: Sequence[str] = (),
        defaults: Mapping[str, Any] | None = None,
        fixed: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a component; the arguments are those of :class:`Component`.

        Args:
            summary: default: the first line of the docstring of ``make``.

        Raises:
            ValueError: a component has this name already.
        """
        line = summary if summary is not None else (inspect.getdoc(make) or "").partition("\n")[0].replace("``", "")
        for spelling in (name, *aliases):
            if _key(spelling) in self._names:
                raise ValueError(f"there is a {self.kind} {spelling!r} already")
        self._names |= {_key(spelling): name for spelling in (name, *aliases)}
        self._components[name] = Component(name, make, line, tuple(aliases), defaults or {}, fixed or {})

    def refuse(self, argument: str, reasons: Mapping[str, str]) -> None:
        """Say why some components do not take an argument that others take: name of the component -> why."""
        for name, why in reasons.items():
            component = self._components[name]
            self._components[name] = component._replace(refuses={**component.refuses, argument: why})

    def register(self, name: str, make: Callable[..., Any], aliases: Sequence[str] = ()) -> None:
        """Add a component of a user's. The same class or function once more, as of a notebook's cell, replaces it.

        Raises:
            ConfigError: a name that is taken, or that cannot be written in a configuration.
            CodeError: no component of this kind.
        """
        self.check(name, make)
        for spelling in (name, *aliases):
            if not isinstance(spelling, str) or not re.fullmatch(r"\w[\w+-]*", spelling):
                raise ConfigError(f"name of a {self.kind}", spelling, "give letters, digits, - and _")
            known = self._names.get(_key(spelling))
            same = known is not None and _origin(self._components[known].make) == _origin(make)
            if not same and (known is not None or _key(spelling) in self._installed()):
                raise ConfigError(f"name of a {self.kind}", spelling, "there is one of this name already; take another")
            if known is not None:
                del self._components[known]
                self._names = {key: each for key, each in self._names.items() if each != known}
        self.add(name, make, aliases=aliases)

    def _installed(self) -> "dict[str, EntryPoint]":
        """Spelling -> the entry point of an installed package, of those that are not loaded yet."""
        if self.group is None:
            return {}
        from importlib.metadata import entry_points

        entries: dict[str, EntryPoint] = {}
        for entry in entry_points(group=self.group):
            key = _key(entry.name)
            if self._loaded.get(key) == entry.value:
                continue
            if key in self._names or key in entries:
                hint = f"the package {_package(entry)} gives this name too, which is taken; remove that package"
                raise ConfigError(self.kind, entry.name, hint)
            entries[key] = entry
        return entries

    def _load(self, entry: "EntryPoint") -> None:
        field = f"{self.kind} {entry.name} of the package {_package(entry)}"
        try:
            made = entry.load()
        except Exception as error:
            what = f"cannot be loaded ({type(error).__name__}: {error})"
            raise CodeError(field, what, "update that package, or remove it") from error
        self.check(field, made)
        self._loaded[_key(entry.name)] = entry.value
        if _key(entry.name) not in self._names:  # else the package has registered it itself
            self.add(entry.name, made)

    def __iter__(self) -> Iterator[str]:
        return iter([*self._components, *(entry.name for entry in self._installed().values())])

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (_key(name) in self._names or _key(name) in self._installed())

    def get(self, name: Any, field: str | None = None) -> Component:
        """The component of this name or alias, in any spelling.

        Args:
            name: the name.
            field: what the error calls the setting; default: the kind.

        Raises:
            ConfigError: no such name, or no name at all.
        """
        field = self.kind if field is None else field
        if not isinstance(name, str):
            raise ConfigError(field, name, f"give a name: {', '.join(sorted(self))}")
        if _key(name) not in self._names:
            if (entry := self._installed().get(_key(name))) is None:
                aliases = [alias for each in self._components.values() for alias in each.aliases]
                raise unknown(field, name, [*self, *aliases])
            self._load(entry)
        return self._components[self._names[_key(name)]]

    def name_of(self, made: Any) -> str | None:
        """The name of the first component that is the class of ``made``; ``None`` where there is none.

        Example:
            >>> kinds = Registry("number")
            >>> kinds.add("whole", int, "whole numbers")
            >>> kinds.name_of(3), kinds.name_of(0.5)
            ('whole', None)
        """
        return next((name for name in self if self.get(name).make is type(made)), None)

    def available(self) -> dict[str, str]:
        """All names, each with one line, in which its aliases are too."""
        broken = {}
        for entry in self._installed().values():
            try:
                self._load(entry)
            except ConfigError as error:  # an error in one package does not affect the others
                broken[entry.name] = str(error)
        return broken | {
            each.name: each.summary + "".join(f" [alias {alias}]" for alias in each.aliases)
            for each in self._components.values()
        }

    def make(self, name: str, /, **given: Any) -> Any:
        """The component of this name, made with these arguments.

        Raises:
            ConfigError: no such name; an argument that it does not have, or that is missing; and what making it raises.
        """
        return self.bind(name, given)[0]

    def bind(
        self, name: str, given: Mapping[str, Any], *first: Any, section: str | None = None, key: str = "name"
    ) -> tuple[Any, dict[str, Any]]:
        """:meth:`make` from a table, such as a section of a configuration.

        Args:
            name, given: the component, and its arguments by name.
            first: arguments before these, which no user sets.
            section: in front of the fields that errors name; ``None``: errors name the component.
            key: the key of the section that has the name.

        Returns:
            What was made; and the table with the canonical name and with the arguments that have a value by default.
        """
        component = self.get(name, None if section is None else f"{section}.{key}")
        made, arguments = component.bind(given, *first, section=section)
        return made, {key: component.name, **arguments}

    def read(self, table: Any, section: str, hint: str) -> Any:
        """The component that a table with its ``name`` and its arguments describes, as a configuration has it.

        Args:
            table: what was given.
            section: in front of the fields that errors name.
            hint: what the error says of something else than such a table.

        Raises:
            ConfigError: as of :meth:`bind`, or no such table.
        """
        if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
            raise ConfigError(section, table, hint)
        arguments = {key: value for key, value in table.items() if key != "name"}
        return self.bind(table["name"], arguments, section=section)[0]


def within(section: str, call: Callable[[], Any]) -> Any:
    """The call's result; an error's field gets the section's name in front.

    Example:
        >>> within("run", lambda: Registry("work").make("steps"))
        Traceback (most recent call last):
        fedax.errors.ConfigError: run.work = 'steps': no such name. There are:
    """
    try:
        return call()
    except CodeError:  # the error names code and not a setting
        raise
    except ConfigError as error:
        raise ConfigError(f"{section}.{error.field}", error.value, error.hint) from error
    except DataError as error:
        raise DataError(f"{section}: {error}") from error


def _typed(field: str, value: Any, kind: Any) -> Any:
    """A value of a configuration by its annotation, if that is of texts and truth values; a whole number is its digits.

    Numbers are checked where they are used, for they have ranges.

    Example:
        >>> _typed("data.drop", ["patient", 1], Sequence[str]), _typed("run.rounds", "x", int)
        (['patient', '1'], 'x')
        >>> _typed("data.label", True, str | None)
        Traceback (most recent call last):
        fedax.errors.ConfigError: data.label = True: give a text
    """
    kinds = [each for each in _alternatives(kind) if get_origin(each) is not os.PathLike]
    words = [_in_words(each) for each in kinds]
    if None in words:
        return value
    for each in kinds:
        if (read := _read(value, each)) is not None:
            return read
    raise ConfigError(field, value, f"give {' or '.join(map(str, words))}")


def _alternatives(kind: Any) -> list[Any]:
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return [each for each in kinds if each not in (NoneType, os.PathLike)]


def _in_words(kind: Any) -> str | None:
    """A type in a user's words; ``None`` of what is not of texts and truth values."""
    if kind is str or kind is bool:
        return "a text" if kind is str else "true or false"
    if get_origin(kind) is Literal and all(isinstance(each, str) for each in get_args(kind)):
        return " or ".join(map(repr, get_args(kind)))
    parts = get_args(kind)
    if get_origin(kind) is Sequence and _alternatives(parts[0]) == [str]:
        return 'a list of texts, ["…"]'
    if get_origin(kind) is Mapping and parts == (str, str):
        return 'a table of texts, {name = "…"}'
    return None


def _read(value: Any, kind: Any) -> Any:
    """The value as this type of :func:`_in_words`; ``None`` if it is of another."""
    if kind is bool:
        return value if isinstance(value, bool) else None
    if kind is str or get_origin(kind) is Literal:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return str(value) if is_whole else value if isinstance(value, str | os.PathLike) else None
    if get_origin(kind) is Sequence:
        texts = [_read(each, str) for each in value] if isinstance(value, list | tuple) else [None]
        return None if None in texts else type(value)(texts)
    table = {key: _read(each, str) for key, each in value.items()} if isinstance(value, Mapping) else {"": None}
    return None if None in table.values() else table


def _package(entry: "EntryPoint") -> str:
    return entry.value if entry.dist is None else str(entry.dist.name)


def _origin(make: Any) -> tuple[Any, ...]:
    """Identifies a class or function, also if it is defined once more."""
    module = getattr(make, "__module__", None)
    file = getattr(sys.modules.get(str(module)), "__file__", None)
    return (file or module, getattr(make, "__qualname__", repr(make)))


def _key(name: str) -> str:
    return name.lower().replace("_", "-")
