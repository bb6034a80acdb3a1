"""What holds for all tests and doctests; those of what needs Flower or PyTorch are collected where it is installed."""

import contextlib
import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator

import pytest

# They have no doctests; mutants.py needs coverage.
collect_ignore_glob = ["tests/flower/kills.py", "tests/flower/federation.py", "tests/mutants.py"]
collect_ignore_glob.append("docs/methods/*")  # tests/test_method_pages.py runs them
if not importlib.util.find_spec("flwr"):
    collect_ignore_glob += ["src/fedax/flower/*", "src/fedax/engine/places/masks.py", "tests/flower/attacks.py"]
if not importlib.util.find_spec("torch"):
    collect_ignore_glob.append("tests/tasks/torch_models.py")
if not importlib.util.find_spec("griffe"):
    collect_ignore_glob.append("docs/website/*")

# What pyproject.toml says of these markers, by where it stands; and what stands for it in the default suite.
MARKED = {
    "deploy": ("tests/flower/", "tests/engine/test_secure.py"),
    "docs": (
        "docs/", "README.md", "tests/experiments/test_notebook.py", "tests/test_method_pages.py", "tests/test_pages.py",
        "tests/test_site.py", "tests/test_study_pages.py",
    ),
    "study": ("tests/experiments/", "tests/test_choosing.py"),
    "hostile": ("tests/test_hostile.py", "tests/flower/test_attacks.py"),
    "cluster": ("tests/engine/test_processes.py", "tests/experiments/test_cluster.py", "tests/flower/test_ray.py"),
}  # fmt: skip
SMOKE = (
    "README.md",
    "tests/engine/test_processes.py::test_processes_share_the_secret_of_a_private_run",
    "tests/experiments/test_runs.py",
    "tests/flower/test_deploy.py::test_it_is_the_simulation_of_the_same_data",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests by where they stand."""
    for item in items:
        for name, places in MARKED.items():
            if item.nodeid.startswith(places):
                item.add_marker(name)
        if item.nodeid.startswith(SMOKE):
            item.add_marker("smoke")


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """What a test registers by name, the next one does not find."""
    modules = {"METHODS": sys.modules.get("fedax.algorithms"), "TASKS": sys.modules.get("fedax.tasks")}
    known = [getattr(module, name) for name, module in modules.items() if module is not None]
    before = [{key: dict(value) for key, value in vars(each).items() if isinstance(value, dict)} for each in known]
    yield
    for registry, tables in zip(known, before, strict=True):
        vars(registry).update(tables)


@pytest.fixture(scope="session", autouse=True)
def plots() -> Iterator[Callable[..., contextlib.AbstractContextManager[None]]]:
    """Plots take longer than most runs of tests: run folders have none, where a test does not ask for them.

    ``with plots():`` they are drawn as PNG, ``with plots("png", "svg", "pdf"):`` as for users.
    """
    from fedax.experiments import plots as module

    write_plots = module.write_plots

    @contextlib.contextmanager
    def drawn(*formats: str) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "FORMATS", formats or ("png",))
            patch.setattr(module, "write_plots", write_plots)
            yield

    with drawn(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "write_plots", lambda record: None)
        yield drawn


@pytest.fixture
def with_plots(plots: Callable[..., contextlib.AbstractContextManager[None]]) -> Iterator[None]:
    """The run folders of a test have plots, as PNG."""
    with plots():
        yield


@pytest.fixture(scope="session", autouse=True)
def one_parser() -> Iterator[None]:
    """Typer makes the parser of the command anew for each call, and it is the same."""
    import typer

    made = functools.cache(typer.main.get_command)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", made)
        patch.setattr("typer.testing._get_command", made)
        yield
