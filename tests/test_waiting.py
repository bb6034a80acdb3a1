"""The study of time: its analysis, on results whose answer is known, and its page."""

import importlib.util
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from fedax.experiments.runs import MethodRun
from fedax.experiments.study import read_study

SPEC = importlib.util.spec_from_file_location("waiting", Path(__file__).parents[1] / "benchmarks" / "waiting.py")
assert SPEC is not None and SPEC.loader is not None
waiting = importlib.util.module_from_spec(SPEC)
sys.modules["waiting"] = waiting
SPEC.loader.exec_module(waiting)

SEEDS = np.array([1.0, 1.1, 0.9, 1.05, 0.95])


def cell(method, score=1.0, time=100.0, end=0.2, clock="wide", problem="own", **changes):
    times = dict.fromkeys(waiting.TARGETS, time * SEEDS)
    made = waiting.Cell(problem, clock, method, score, times, end + 0.01 * SEEDS, end + 0.01 * SEEDS, {"lr": 0.1}, [])
    return made._replace(**changes)


def cells(**better):
    names = [name for family in waiting.FAMILIES.values() for name in family]
    return [better.get(name) or cell(name) for name in names]


def run(losses, times, status="finished"):
    history = {"test_loss": np.array(losses), "time": np.array(times), "train_loss": np.array(losses)}
    return MethodRun("x", "fedavg", 0, status, history)


def test_a_target_is_reached_at_the_first_evaluation_that_is_there():
    falls = run([2.0, 1.2, 0.9, 1.1, 0.5], [0.0, 10.0, 20.0, 30.0, 40.0])
    assert waiting._until(falls, 0.5, 0.0, "wide") == 20.0
    assert waiting._until(falls, 0.99, 0.5, "wide") == 40.0
    assert waiting._until(falls, 0.9, 0.0, "wide") == math.inf
    late = run([2.0, 0.1], [0.0, 1421.0])
    assert waiting._until(late, 0.5, 0.0, "wide") == math.inf
    assert waiting._end(late, "test_loss", "wide") == 2.0
    assert waiting._end(run([2.0, 0.1], [0.0, 1.0], "diverged"), "test_loss", "wide") == math.inf


def test_methods_are_chosen_by_validation_and_compared_seed_by_seed():
    fast = cell("CA2FL", score=0.5, time=25.0, end=0.3)
    lucky = cell("ACE", score=0.9, time=1.0)
    made = cells(CA2FL=fast, ACE=lucky, SCAFFOLD=cell("SCAFFOLD", score=0.8))
    (row,) = waiting.outcomes(made)
    assert (row.waits.method, row.free.method) == ("SCAFFOLD", "CA2FL")
    assert row.times["near"] == pytest.approx((0.25, 0.25, 0.25))
    assert row.end[0] == pytest.approx(0.1)
    assert "| SCAFFOLD | CA2FL | 0.25 (0.25 to 0.25) |" in waiting.main_table(made)[-1]
    (beside,) = waiting.outcomes(made, "a deadline")
    assert beside.waits.method == "FedAvg, deadline"
    faster, _, ends, *_ = waiting.summary(made)[11:]
    assert "| a synchronous one | time to 90 % | 1 | 0 | 0 | 0 |" in faster
    assert "| test loss at the end | 0 | 0 | 1 | 0 |" in ends


def test_a_seed_that_never_arrives_is_no_time():
    never = {target: np.where(SEEDS > 1.04, math.inf, SEEDS) for target in waiting.TARGETS}
    made = cells(CA2FL=cell("CA2FL", score=0.5, times=never))
    (row,) = waiting.outcomes(made)
    assert math.isnan(row.times["near"][0])
    assert "reached by 3 of 5, the other by 5 of 5" in waiting.main_table(made)[-1]
    assert "| time to 90 % | 0 | 0 | 0 | 1 | – |" in waiting.summary(made)[11]


def test_rates_at_an_end_of_what_was_tried_are_counted():
    tried = [{"point": {"lr": lr, "server_lr": server}} for lr, server in ((0.32, 3.2), (0.1, 1.0), (1.0, 0.32))]
    assert [name for name in ("lr", "server_lr") if waiting._at_end(name, tried)] == ["server_lr"]
    one = cell("FedBuff", settings={"lr": 0.1, "server_lr": 10.0}, edges=["server_lr"])
    other = cell("FedBuff", settings={"lr": 0.4, "server_lr": 0.1}, problem="alike")
    rows = {line.split(" | ")[0]: line for line in waiting.rates_table([one, other, cell("FedAsync")])}
    assert rows["| FedBuff"] == "| FedBuff | – | – | 0.2 | 1 | – | – | 1 of 2 |"
    mixed = cell("FedAsync", settings={"lr": 0.1, "mixing": 0.6})
    assert "| 0.1 | 0.6 |" in waiting.rates_table([mixed])[-3]


def test_what_is_read_is_what_the_parts_are():
    study = read_study("time")
    kinds = {part.name.split("-", 2)[2] for part in study.parts.values()}
    assert kinds == {
        "wait",
        "deadline",
        "uniform",
        "idle",
        "corrected",
        "single",
        "cohort",
        "buffer-1",
        "buffer-20",
    }
    for clock in waiting.CLOCKS:
        problems = [name.split("-")[0] for name in study.parts if name.endswith(f"-{clock}-wait")]
        assert len(problems) == 8
        for family, kind in (("waits", "wait"), ("deadline", "deadline")):
            assert study.parts[f"own-{clock}-{kind}"].labels == waiting.FAMILIES[family]


def test_the_page_is_that_of_what_was_read():
    text = waiting.PAGE.read_text(encoding="utf-8")
    read, about = waiting.kept()
    assert waiting.written(text, read, about) == text, "python benchmarks/waiting.py writes it anew"
    one = next(each for each in read if (each.method, each.problem) == ("CA2FL", "alike"))
    slower = one._replace(times={name: 2 * values for name, values in one.times.items()})
    assert waiting.written(text, [slower if each is one else each for each in read], about) != text
    assert len(waiting.draw(read).axes) == 3
