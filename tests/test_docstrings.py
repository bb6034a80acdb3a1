"""Public classes and functions have an example that runs as a doctest, and name their errors; pages are wrapped."""

import doctest
import inspect
import pathlib
import re

import pytest

import fedax
from fedax import data, metrics, privacy, tasks, theory, tracking

PUBLIC = {
    f"{place.__name__}.{name}": getattr(place, name)
    for place in (fedax, data, metrics, privacy, tasks, theory, tracking)
    for name in place.__all__
    if callable(getattr(place, name))
}
ERRORS = {name for name, member in PUBLIC.items() if inspect.isclass(member) and issubclass(member, Exception)}
CHECKS = re.compile(
    r"raise (Config|Data|Example|Checkpoint)Error|raise unknown\(|\b(check_\w+|whole|number|image|normalised)\("
)


def raises(*functions):
    """Whether the code of these functions raises one of fedax's errors, or calls a check that does."""
    written = [f for f in functions if inspect.isfunction(f) and f.__code__.co_filename.endswith(".py")]
    return any(CHECKS.search(inspect.getsource(f)) for f in written)


def made_by(kind):
    """The code that runs when an object is made."""
    return [vars(kind).get(name) for name in ("__init__", "__post_init__", "__check_init__", "validate")]


def members(kind):
    """The public functions of a class, those of class methods and properties too."""
    for name, member in vars(kind).items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if not name.startswith("_") and inspect.isfunction(function):
            yield name, function


MEMBERS = {
    f"{place}.{name}": (kind, name, function)
    for place, kind in PUBLIC.items()
    if inspect.isclass(kind) and place not in ERRORS
    for name, function in members(kind)
}


def test_errors_are_the_only_exceptions():
    assert {name.removeprefix("fedax.") for name in ERRORS} == {
        *("BadClientWarning", "CheckpointError", "ConfigError", "DataError"),
        *("DivergedWarning", "DoubtfulWarning", "FedaxError", "NodeError", "ProcessError", "TrackingWarning"),
    }


@pytest.mark.parametrize("name", sorted(PUBLIC.keys() - ERRORS))
def test_an_example_that_runs(name):
    """What doctest runs is what stands in a docstring of the module; here is checked that something does."""
    text = inspect.cleandoc(PUBLIC[name].__doc__ or "")
    assert re.search(r"^Example:$", text, re.MULTILINE) and doctest.DocTestParser().get_examples(text)


@pytest.mark.parametrize("name", sorted(PUBLIC.keys() - ERRORS))
def test_the_errors(name):
    member = PUBLIC[name]
    if raises(*made_by(member)) if inspect.isclass(member) else raises(inspect.unwrap(member)):
        assert re.search(r"^Raises:$", inspect.cleandoc(member.__doc__), re.MULTILINE)


@pytest.mark.parametrize("name", sorted(MEMBERS))
def test_functions_of_a_class_that_raise_say_so(name):
    kind, own, function = MEMBERS[name]
    if raises(function):
        text = inspect.getdoc(getattr(kind, own)) or inspect.getdoc(function) or ""  # or that of the base
        assert re.search(r"\bRaises?\b", text)


ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_of_prose_are_short(page):
    """At most 120 characters; tables, code and links that cannot be broken may be longer."""
    prose = re.sub(r"^( *)```.*?^\1```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in prose.splitlines() if not line.startswith("|") and " " in line.strip("-* ")]
    assert [line for line in lines if len(line) > 120] == []


def test_the_list_for_tools_names_every_guide():
    named = set(re.findall(r"\]\(([^)]+)\)", (ROOT / "llms.txt").read_text(encoding="utf-8")))
    guides = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} - {"docs/references.md"}
    assert guides <= named and all((ROOT / path).is_file() for path in named)
