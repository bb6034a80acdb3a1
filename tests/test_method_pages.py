"""The pages of methods: generated parts are current, all methods have one, and the examples work."""

import doctest
import inspect
import pathlib
import re
import runpy

import matplotlib.pyplot as plt
import numpy as np
import pytest

import fedax
from fedax.algorithms import METHODS
from fedax.engine.footprint import footprints

from . import mostly_long

DOCS = pathlib.Path(__file__).parents[1] / "docs"
TABLES = runpy.run_path(str(DOCS / "tables.py"))
NAMES = list(METHODS)
SIMULATE = inspect.signature(fedax.simulate)
HEADINGS = [
    "## The method",
    "## Parameters",
    "## What is kept and sent",
    "## Conditions and limit",
    "## When to use it",
    "## Example",
    "## In the reference experiment",
]


def page(name: str) -> str:
    return (DOCS / "methods" / f"{name}.md").read_text(encoding="utf-8")


def test_generated_parts_are_current():
    for path, text in TABLES["written"]().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run python docs/tables.py"


def test_the_readme_counts_the_methods():
    assert f"| methods | **{len(NAMES)}** |" in (DOCS.parent / "README.md").read_text()


def test_every_method_has_a_page_and_every_page_a_method():
    results = {path.stem for path in (DOCS / "methods").glob("*.md")}
    assert results == {*NAMES, "notation", "reference-experiment"}


@pytest.mark.parametrize("name", NAMES)
def test_a_page_says_all_that_a_page_says(name):
    text = page(name)
    assert [line for line in text.splitlines() if line.startswith("## ")] == HEADINGS
    formulas = re.findall(r"^\$\$\n(.*?)\n\$\$$", text, re.DOTALL | re.MULTILINE)
    assert formulas and not any(re.search(r"^\s*[-+*#>]", each, re.MULTILINE) for each in formulas)  # else it is a list
    assert TABLES["FIGURE"] in text and f'fedax.create("{name}"' in text
    for part in ("facts", "parameters", "results"):
        assert f"<!-- {part}: python docs/tables.py -->" in text


def listed(name: str) -> set[str]:
    """The arguments that a page has a row for."""
    table = page(name).split("<!-- parameters: python docs/tables.py -->\n")[1].split("<!-- end")[0]
    return {line.split("|")[2].strip().strip("`") for line in table.splitlines()[2:]}


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_on_the_page_or_on_that_of_fedavg(name):
    known = set(METHODS.get(name).arguments)
    if "(fedavg.md#parameters)" in page(name) or "(fednova.md#parameters)" in page(name):
        known -= listed("fedavg") - listed(name)
    assert listed(name) == known


class _Traced:
    """Replaces a run: the method is traced, and the work is validated."""

    status = "finished"

    def __init__(self, *given, **named):
        call = SIMULATE.bind(*given, **named).arguments
        method, data = call["algorithm"], call["data"]
        footprints(method)
        unequal = call["work"].equal(data.sizes, None) is None
        method.traits().refuse(unequal=unequal)


@pytest.mark.parametrize("name", NAMES)
def test_the_example_can_run(name, monkeypatch):
    monkeypatch.setattr(fedax, "simulate", _Traced)
    test_the_example_does_what_it_shows(name)


@pytest.mark.parametrize("name", mostly_long(NAMES, "scaffnew"))
def test_the_example_does_what_it_shows(name):
    example = doctest.DocTestParser().get_doctest(page(name), {}, name, f"{name}.md", 0)
    assert len(example.examples) == 6
    assert doctest.DocTestRunner().run(example).failed == 0


def test_the_reference_experiment_has_every_method():
    result = TABLES["measured"]()
    assert list(result) == ["fedavg, equal steps", *NAMES]
    for name, each in result.items():
        curves = np.array(each["test_loss"])
        assert curves.shape == (3, len(each["rounds"])) and each["rounds"][-1] == 100, name
        assert np.isfinite(curves).all(), name
    equal = {name for name in NAMES if result[name]["work"] == "equal"}
    assert equal == {name for name in NAMES if fedax.create(name).traits().steps == "equal"}


def test_a_figure_has_the_method_and_its_fedavg():
    for name, labels in {"stem": ["stem", "fedavg"], "fedavg": ["fedavg"]}.items():
        figure = TABLES["figure"](name)
        assert [text.get_text() for text in figure.legends[0].get_texts()] == labels
        plt.close(figure)


def test_a_method_without_a_rate_that_reaches_fedavg_says_so():
    one = {"rounds": [0, 4, 8], "test_loss": [[3.0, 2.0, 1.0], [1.0, 2.0, 1.0]]}
    assert [TABLES["_reached"](one, goal) for goal in (2.0, 1.5, 0.5)] == ["0", "8", "not in 100"]
