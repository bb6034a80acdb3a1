"""Progress: bars and lines, on request or in notebooks, without an effect on the numbers."""

import io
import sys
import types

import numpy as np
import pytest
from rich.console import Console

import fedax
from fedax import progress
from fedax.progress import Progress

DATA, TASK = fedax.data.quadratics(clients=3, dimension=2), fedax.tasks.quadratic(2)


def run(**options):
    return fedax.simulate(fedax.create("fedavg", lr=0.05), TASK, DATA, rounds=6, **options)


def sweep(**options):
    make = lambda lr: fedax.create("fedavg", lr=lr)  # noqa: E731
    return fedax.sweep(make, {"lr": [0.01, 0.05]}, TASK, DATA, rounds=6, seeds=2, **options).runs[1][1]


def compare(**options):
    methods = {"[bold]a[/]": fedax.create("fedavg", lr=0.05), "b": "scaffold"}
    comparison = fedax.compare(methods, TASK, DATA, rounds=6, seeds=1, **options)
    return comparison.records[0].of("b")[0]


@pytest.fixture
def cells(monkeypatch):
    """A notebook: the successive states of each cell's display."""
    shown = []

    class Handle:
        def __init__(self, content, raw, display_id):
            assert raw and display_id
            self.seen = [content]
            shown.append(self.seen)

        def update(self, content, raw):
            assert raw
            self.seen.append(content)

    shell = types.SimpleNamespace(kernel=object())
    there = types.ModuleType("IPython")
    there.get_ipython = lambda: shell
    there.display = types.ModuleType("IPython.display")
    there.display.display = Handle
    monkeypatch.setitem(sys.modules, "IPython", there)
    monkeypatch.setitem(sys.modules, "IPython.display", there.display)
    return shown


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test advances."""
    now = [100.0]
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.mark.parametrize("call", [run, sweep, compare])
def test_the_numbers_are_the_same(call, cells, monkeypatch, capfd):
    with fedax.show_progress(False):
        plain = call()
    assert not cells
    shown = call()  # in a notebook by default
    assert len(cells) == 1
    monkeypatch.setattr(progress, "in_notebook", lambda: False)
    with fedax.show_progress():
        lines = call()
    assert capfd.readouterr().out == ""
    for other in (shown, lines):
        assert other.history.keys() == plain.history.keys()
        for name, column in plain.history.items():
            if name != "seconds":
                np.testing.assert_array_equal(column, other.history[name])


def test_nothing_is_shown_where_nobody_asked(capfd):
    for call in (run, sweep, compare):
        call()
    assert capfd.readouterr() == ("", "")


def test_lines_of_a_comparison_on_the_errors_stream(capfd, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with fedax.show_progress():
        comparison = compare()
    out, err = capfd.readouterr()
    figures = f"Train loss {comparison.history['train_loss'][-1]:.4g}"
    assert out == "" and err.splitlines()[-1] == f"b, seed 0: round 6, {figures}"
    assert err.splitlines()[0].startswith("[bold]a[/], seed 0: round 6, ")


def test_a_callback_is_called_as_before(cells):
    rounds = []
    run(callback=lambda row: rounds.append(row["round"]))
    assert rounds == [0, 1, 2, 3, 4, 5, 6]


def test_a_notebook_has_a_bar_and_in_the_end_nothing(cells, clock):
    with Progress(100) as bar:
        bar.at("a <b>", 0, "compiling")
        clock[0] += 1
        bar.at("a <b>", 10, "Loss 0.5")
        clock[0] += 5
        bar.at("a <b>", 20, "Loss 0.4")
        clock[0] += 0.01
        bar.at("a <b>", 21, "too soon to be drawn")
        bar.tell("stays in a log", 21)
    (seen,) = cells
    texts = [content["text/html"] for content in seen]
    assert texts[0] == texts[-1] == "" and len(texts) == 5
    assert 'value="0.1000"' in texts[2] and "10 % · a &lt;b&gt; · Loss 0.5" in texts[2]
    assert "20 % · about 40 s left · a &lt;b&gt; · Loss 0.4" in texts[3]  # 10 in 5 seconds, 80 to go
    assert "<b>" not in "".join(texts)


def test_time_left_is_said_when_it_is_known(clock):
    """Not while a method compiles, nor by the time that this took."""
    file = io.StringIO()
    with Progress(100, Console(file=file, width=100)) as lines:
        clock[0] += 60
        lines.at("a", 0, "compiling")
        clock[0] += 60
        lines.at("a", 0, "round 0")
        clock[0] += 20
        lines.at("a", 20, "round 20")
        lines.tell("a: round 50", 50)
        lines.at("b", 50, "compiling")
        clock[0] += 60
        lines.at("b", 50, "round 0")
        clock[0] += 30
        lines.at("b", 90, "round 40")
    assert file.getvalue().splitlines() == [
        "a: compiling", "a: round 0", "a: round 20, about 80 s left",
        "a: round 50", "b: round 0", "b: round 40, about 8 s left",
    ]  # fmt: skip


def test_a_terminal_has_a_bar_that_goes():
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100, color_system=None)
    with Progress(20, console) as bar:
        bar.at("[red]", 5, "Loss 0.5 [/]")
        bar.tell("[red]: round 5", 5, "; ended worse")
    text = file.getvalue()
    assert "--:--" not in text
    assert "[red] ━" in text and " 25 %" in text and "Loss 0.5 [/]" in text and "[red]: round 5; ended worse\n" in text
    assert text.rstrip().endswith("\x1b[2K")  # the bar's line is cleared


def test_a_run_that_stops_early_or_fails_leaves_no_bar(cells):
    run(until=lambda row: row["round"] == 2)
    with pytest.raises(ZeroDivisionError):
        run(callback=lambda row: 1 / 0)
    assert [seen[-1]["text/html"] for seen in cells] == ["", ""]


def test_what_a_comparison_runs_inside_shows_no_bars_of_its_own(cells):
    names = ["train", "test"]
    rows = {name: {"H": np.ones((2, 1, 1), np.float32), "e": np.ones((2, 1), np.float32)} for name in names}
    data = fedax.FederatedData.from_clients(rows)
    for seeds in (1, 2):  # one run, and several side by side
        fedax.compare(["fedavg"], fedax.tasks.quadratic(1), data, rounds=1, seeds=seeds, test=data, baselines=True)
        assert len(cells) == seeds


def test_it_is_shown_from_now_on_until_it_is_changed(cells):
    assert fedax.show_progress(False) is not None  # no context: it stays so
    run()
    assert not cells
    fedax.show_progress(None)
    run()
    assert len(cells) == 1
    with pytest.raises(fedax.ConfigError, match="progress = 'bar': give True, False, or None"):
        fedax.show_progress("bar")
    run()
    assert len(cells) == 2


def test_of_a_sweep_runs_that_end_early_are_done(monkeypatch):
    updates = []
    monkeypatch.setattr(Progress, "at", lambda self, name, done, figures, line="": updates.append((done, figures)))
    with fedax.show_progress():
        sweep(until=lambda row: row["round"] >= 2)
    assert updates[-1] == (24, "4 of 4 runs done")  # of six rounds each


def test_a_line_says_how_much_was_heard_where_that_is_not_all():
    row = {"round": 3, "train_loss": 0.25}
    assert progress.figures(row | {"heard": 1.0}) == progress.figures(row) == "Train loss 0.25"
    assert progress.figures(row | {"heard": 0.75}) == "Train loss 0.25, only 75.00 % of the weight heard"
