"""What holds for all tests and doctests."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """What a test registers by name, the next one does not find."""
    modules = {"METHODS": sys.modules.get("fedax.algorithms"), "TASKS": sys.modules.get("fedax.tasks")}
    known = [getattr(module, name) for name, module in modules.items() if module is not None]
    before = [{key: dict(value) for key, value in vars(each).items() if isinstance(value, dict)} for each in known]
    yield
    for registry, tables in zip(known, before, strict=True):
        vars(registry).update(tables)
