"""The pages of the studies agree with the results."""

import importlib.util
import json
import math
import re
import shutil
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import fedax
from docs import study
from docs.study_rules import faults, unsure
from fedax.figures import encode

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
    return {result for path in PAGES for result in re.findall(r"figures/([a-z]+)-([a-z0-9-]+)\.svg", path.read_text())}


def test_tables_are_those_of_the_results():
    for path, text in study.written().items():
        assert path.read_text(encoding="utf-8") == text, f"python docs/study.py writes {path.name} anew"


def test_a_change_of_the_results_shows():
    name, part = min(blocks())
    loaded = study.load(name)
    before = study.block(loaded, name, part)
    for line in loaded.results.values():
        line["history"] = {column: [-1.0] * len(values) for column, values in line.get("history", {}).items()}
    assert study.block(loaded, name, part) != before


@pytest.mark.parametrize("name", STUDIES)
def test_holes_of_grids_are_named_in_the_study_and_on_its_page(name):
    """Of every part with a verdict; a hole that nobody names is a fault, as is a printed value left out."""
    loaded, page = study.load(name), (study.HERE / f"{name}.md").read_text(encoding="utf-8")
    unnamed = set()
    for part in loaded.parts.values():
        if part.section.tune is None or part.section.provisional:
            continue
        assert part.section.printed is not None, f"{part.name} does not say what grid the paper prints"
        for label, which in part.section.holes.items():
            assert all(hole in " ".join(page.split()) for hole in which)
            part.section.holes[label] = which[1:]
            unnamed.add(f"{part.name}: {label}: {which[0]} was not tried.")
    assert not unnamed or unnamed <= {*faults(loaded, study.HERE / name)}


@pytest.mark.parametrize("name", STUDIES)
def test_parts_from_which_nothing_follows_have_a_reason_and_no_verdict(name):
    loaded = study.load(name)
    for part in loaded.parts.values():
        if part.section.provisional:
            assert unsure(loaded, part), f"{part.name} is called provisional, and nothing is wrong with it"
            assert f"`{name}/{part.name}`" in study.HERE.with_suffix(".md").read_text(encoding="utf-8")
            text = study.block(loaded, name, part.name)
            assert "Verdict" not in text and "beyond chance" not in text and "Nothing follows from it:" in text
            assert study.said(loaded, name, part.name) == "none: tuned on too few rounds"


def test_the_findings_on_what_was_first_done_are_named():
    """What led to wrong conclusions: settings of another problem, and FedNova's before the rate falls."""
    broken, known = study.checked([study.HERE / name for name in STUDIES])
    assert broken == []
    for line_start in (
        "table-1-random: chosen on another problem, that of table-1-equal",
        "table-1-equal: a rate falls after the rounds that were tried",
    ):
        assert any(line.startswith(line_start) for line in known), line_start


@pytest.mark.parametrize("name", STUDIES)
def test_a_scope_names_as_many_parameters_as_the_network_has(name):
    for part in study.load(name).parts.values():
        of_part = study.HERE / name / "results" / f"{part.name}.json"  # once it has run
        if of_part.exists() and (named := re.search(r"([\d,]+) parameters", part.section.scope)):
            shared = json.loads(of_part.read_text(encoding="utf-8"))
            assert shared["about"]["parameters"] == int(named[1].replace(",", "")), part.name


def test_sizes_of_the_papers_networks_are_those_of_the_tasks():
    """The table of figures.md names them; the counts are made here."""
    page = (study.HERE / "figures.md").read_text(encoding="utf-8")
    table = page[page.index("## Sizes of networks") : page.index("## Wang et al. 2020")]
    of = {
        "Synthetic": fedax.tasks.softmax_regression(60, 10),
        "VGG-11": fedax.tasks.vgg11((32, 32, 3), 10),
        "FedDA, Figures 1 and 4": fedax.tasks.cnn((28, 28, 3), 9, filters=32),
        "8 filters of that": fedax.tasks.cnn((28, 28, 1), 10, filters=8),
        "FedDA, Figures 2, 5, 7 to 11": fedax.tasks.cnn((32, 32, 3), 10, filters=64),
        "8 filters": fedax.tasks.cnn((32, 32, 3), 10, filters=8),
        "32 filters": fedax.tasks.cnn((32, 32, 3), 10, filters=32),
        "FedDA, Figures 3 and 6": fedax.tasks.cnn((28, 28, 1), 62, filters=64),
        "Momentum, Figure 1": fedax.tasks.mlp(features=3072, hidden=(64, 64), classes=10),
        "ResNet-18": fedax.tasks.resnet18((32, 32, 3), 10),
        "Momentum, Figures 5 to 8": fedax.tasks.mlp(features=784, hidden=(100,), classes=10),
    }
    for network, task in of.items():
        shapes = jax.eval_shape(task.init, jax.random.key(0))
        count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
        assert f" {count:,}" in table, network


def test_other_folders_are_looked_through_too(tmp_path, monkeypatch, capsys):
    def check(folder):
        monkeypatch.setattr(sys, "argv", ["study.py", "--check", str(folder)])
        with pytest.raises(SystemExit) as ended:
            study.main()
        output = capsys.readouterr()
        return ended.value.code, output.out + output.err

    folder = tmp_path / "momentum"
    shutil.copytree(study.HERE / "momentum" / "results", folder / "results")
    code, output = check(folder)
    assert code == 0 and output == "No choice breaks the rules.\n"
    for path in folder.glob("results/*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows:
            row.pop("sha256", None)  # as of rows that were written before they had one
            if "criterion" in row:
                row["criterion"] = "test_loss"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    code, output = check(folder)
    assert code == 1 and "figure-1c-again: scaffold, tuning: chosen by test_loss." in output
    code, output = check(tmp_path)
    assert code == 2 and "has no folder results" in output
    code, output = check(folder.rename(tmp_path / "momentun"))
    assert code == 2 and "study = 'momentun'" in output and "Traceback" not in output


def test_the_table_of_local_steps_by_rounds_is_that_of_the_results():
    """It is written by hand: mean test accuracies at rounds 800 and 1,000, over the seeds that all three have."""
    lines = (study.HERE / "fedda.md").read_text(encoding="utf-8").splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("| local steps |"))
    methods = [cell.strip() for cell in lines[at].strip("|").split("|")][1:]
    of = {5: ["figure-2", "figure-5"], 10: ["figure-7-10"], 20: ["figure-7-20"]}
    result, runs = study.load("fedda"), {}
    for steps, parts in of.items():
        for part in parts:
            record = study.studies.record_of(result, result.parts[part], study.HERE / "fedda")
            for run in record.runs:
                accuracy = dict(zip(run.history["round"], run.history["test_accuracy"], strict=True))
                runs[steps, run.label, run.seed] = (accuracy[800] + accuracy[1000]) / 2
    for line, steps in zip(lines[at + 2 : at + 5], of, strict=True):
        means = [np.mean([runs[steps, method, seed] for seed in range(3)]) for method in methods]
        assert line == f"| {steps} | {' | '.join(f'{100 * mean:.1f} %' for mean in means)} |"


def test_figures_are_there_and_can_be_drawn_again():
    for name, part in blocks():
        assert (study.FIGURES / f"{name}-{part}.svg").is_file()
    name, part = min(blocks())
    drawn = study.figure(study.load(name), name, part)
    assert drawn.legends[0].get_texts()[0].get_text() in study.load(name).parts[part].labels


def test_figures_say_what_was_drawn():
    """They are made smaller by shorter coordinates; the numbers at their axes stay."""
    drawn = study.figure(study.load("fednova"), "fednova", "figure-2-fixed")
    said = re.findall(r"<text [^>]*>([^<]*)</text>", study.svg(drawn))
    named = re.findall(r"<!-- (.*?) -->", encode(drawn, "svg").decode())  # what its outlines of letters stand for
    assert {"0.001", "fednova"} <= set(said) <= set(named)


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
