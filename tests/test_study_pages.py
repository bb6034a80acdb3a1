"""The pages of the study say what its results say."""

import importlib.util
import math
import re
from pathlib import Path

import numpy as np
import pytest

from docs import study
from fedax.experiments.study import faults

SPEC = importlib.util.spec_from_file_location(
    "linear_speedup", Path(__file__).parents[1] / "benchmarks" / "linear_speedup.py"
)
assert SPEC is not None and SPEC.loader is not None
speedup = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(speedup)

PAGES = [study.HERE.with_suffix(".md"), *sorted(study.HERE.glob("*.md"))]
STUDIES = sorted(path.parent.name for path in study.HERE.glob("*/results"))


def blocks():
    """Study and part of each figure on the pages."""
    return {found for path in PAGES for found in re.findall(r"figures/([a-z]+)-([a-z0-9-]+)\.svg", path.read_text())}


def test_tables_are_those_of_the_results():
    for path, text in study.written().items():
        assert path.read_text(encoding="utf-8") == text, f"python docs/study.py writes {path.name} anew"


def test_a_change_of_the_results_shows():
    name, part = min(blocks())
    found = study.load(name)
    before = study.block(found, name, part)
    for line in found.results.values():
        line["history"] = {column: [-1.0] * len(values) for column, values in line.get("history", {}).items()}
    assert study.block(found, name, part) != before


@pytest.mark.parametrize("name", STUDIES)
def test_no_choice_was_made_by_test_data(name):
    assert faults(study.load(name), study.HERE / name) == []


def test_figures_are_there_and_can_be_drawn_again():
    for name, part in blocks():
        assert (study.FIGURES / f"{name}-{part}.svg").is_file()
    name, part = min(blocks())
    drawn = study.figure(study.load(name), name, part)
    assert drawn.legends[0].get_texts()[0].get_text() in study.load(name).parts[part].labels


def test_results_are_small():
    kept = [*study.HERE.glob("*"), *study.HERE.glob("figures/*"), *study.HERE.glob("*/results/*")]
    assert sum(path.stat().st_size for path in kept if path.is_file()) < 4e6


def test_every_part_has_a_place():
    text = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    for name in STUDIES:
        for part in study.load(name).parts:
            assert f"<!-- {name}/{part}: python docs/study.py -->" in text


def test_the_table_of_the_speed_up_is_that_of_what_was_read():
    text = speedup.PAGE.read_text(encoding="utf-8")
    assert speedup.written(text, speedup.kept()) == text, "python benchmarks/linear_speedup.py writes it anew"
    fewer = [curve._replace(iterations=curve.iterations / 2) for curve in speedup.kept()]
    assert speedup.written(text, fewer) != text
    assert len(speedup.draw(speedup.kept()).axes) == 9


def test_a_slope_is_that_of_the_seeds_that_reached_the_target():
    at, exact = np.array([1, 2, 4]), np.array([[64.0, 64.0], [32.0, 32.0], [16.0, math.inf]])
    curve = speedup.Curve("convex", "full", "FedAvg", at, exact, [1.0, 1.0, 1.0])
    assert curve.slope() == pytest.approx((-1, -1, -1))
    assert curve.means().tolist() == pytest.approx([64, 32, math.inf])
    assert "never" in "".join(speedup.table([curve]))
