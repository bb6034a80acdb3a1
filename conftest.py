"""What holds for all tests and doctests; those of what needs Flower or PyTorch are collected where it is installed."""

import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator

import pytest

# They have no doctests; mutants.py needs coverage.
collect_ignore_glob = ["tests/flower/kills.py", "tests/flower/federation.py", "tests/mutants.py"]
if not importlib.util.find_spec("flwr"):
    collect_ignore_glob += ["src/fedax/flower/*", "src/fedax/engine/places/masks.py"]
if not importlib.util.find_spec("torch"):
    collect_ignore_glob.append("tests/tasks/torch_models.py")
if not importlib.util.find_spec("griffe"):
    collect_ignore_glob.append("docs/website/*")
if not os.environ.get("FEDAX_LONG"):
    collect_ignore_glob.append("docs/methods/*")  # one program each; tests/test_method_pages.py runs some of them


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """What a test registers by name, the next one does not find."""
    modules = {"METHODS": sys.modules.get("fedax.algorithms"), "TASKS": sys.modules.get("fedax.tasks")}
    known = [getattr(module, name) for name, module in modules.items() if module is not None]
    before = [{key: dict(value) for key, value in vars(each).items() if isinstance(value, dict)} for each in known]
    yield
    for registry, tables in zip(known, before, strict=True):
        vars(registry).update(tables)


@contextlib.contextmanager
def _formats(*names: str) -> Iterator[None]:
    from fedax.experiments import plots

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "FORMATS", names)
        yield


@pytest.fixture(scope="session", autouse=True)
def png_only() -> Iterator[None]:
    """Plots take longer than most runs of tests: they are in one format, where a test does not ask for all."""
    with _formats("png"):
        yield


@pytest.fixture(scope="session")
def all_formats() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """``with all_formats():`` plots are drawn as for users."""
    return lambda: _formats("png", "svg", "pdf")
