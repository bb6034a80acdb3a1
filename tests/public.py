"""What is public: names and their arguments, of Python, of configurations and of the command.

``python -m tests.public > tests/public.txt`` writes the list that :mod:`tests.test_public_names` compares with.
"""

import importlib
import inspect
import sys
from collections.abc import Iterator
from typing import Any

import typer

from docs.website.reference import MODULES
from fedax.cli import app
from fedax.columns import _TABLE
from fedax.registry import Registry


def lines() -> list[str]:
    """One for each public name, sorted."""
    found = {*_of_module("fedax"), *_of_registries(), *_of_command(typer.main.get_command(app), "$ fedax")}
    for module in (*MODULES, "errors"):
        found |= {*_of_module(f"fedax.{module}")}
    return sorted(found | {f"| {column}" for column in _TABLE})


def _of_module(path: str) -> Iterator[str]:
    module = importlib.import_module(path)
    names = getattr(module, "__all__", None) or [
        name
        for name, member in vars(module).items()
        if not name.startswith("_") and getattr(member, "__module__", None) == path
    ]
    for name in names:
        member = getattr(module, name)
        if not inspect.ismodule(member):
            yield f"{path}.{name}{_arguments(member)}"
            yield from _members(f"{path}.{name}", member)


def _members(path: str, kind: Any) -> Iterator[str]:
    """What an object of a class of fedax has."""
    for name, member in inspect.getmembers(kind) if inspect.isclass(kind) else ():
        owner = next((each for each in kind.__mro__ if name in vars(each)), object)
        if not name.startswith("_") and owner.__module__.startswith("fedax"):
            yield f"{path}.{name}{_arguments(member)}"


def _arguments(member: Any) -> str:
    """The names of what a function or a class takes: ``=`` where there is a default."""
    if not callable(member):
        return ""
    try:
        parameters = inspect.signature(member).parameters.values()
    except ValueError:
        return "(…)"
    named = [
        f"{'*' * (each.kind - 1) if each.kind in (2, 4) else ''}{each.name}{'=' * (each.default is not each.empty)}"
        for each in parameters
        if each.name != "self"
    ]
    return f"({', '.join(named)})"


def _of_registries() -> Iterator[str]:
    """What a configuration names, with its settings; and what else it is called."""
    for module in [module for name, module in sys.modules.items() if name.startswith("fedax.")]:
        for name, registry in vars(module).items():
            if isinstance(registry, Registry) and not name.startswith("_"):
                for each in registry.available():
                    component = registry.get(each)
                    settings = ", ".join(component.arguments)
                    other = f" = {', '.join(component.aliases)}" if component.aliases else ""
                    yield f"[{registry.kind}] {each}({settings}){other}"


def _of_command(command: Any, path: str) -> Iterator[str]:
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from _of_command(inner, f"{path} {name}")
    given = [option for each in command.params for option in each.opts if each.name != "help"]
    yield f"{path} {' '.join(sorted(given))}".rstrip()


if __name__ == "__main__":
    print("\n".join(lines()))
