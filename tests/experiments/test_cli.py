"""The command: what it prints, where it writes, and its exit codes."""

import errno
import inspect
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib
import types
from typing import get_type_hints

import numpy as np
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

import fedax
from fedax import cli, progress
from fedax.cli import exits, lookup, show, train
from fedax.engine.history import Row
from fedax.errors import ConfigError, ProcessError
from fedax.experiments import build, datasets, new_folder, plan, read, recipes, runner, tasks
from fedax.experiments.defaults import comparison
from fedax.experiments.following import Runs
from fedax.experiments.study import read_study
from fedax.sites.protocol.policy import Policy
from fedax.sites.service.deploy import NodeSettings
from tests.experiments import run_cli
from tests.test_pages import SAVED

ROOT = pathlib.Path(__file__).parents[2]

TINY = """
data = {name = "digits", clients = 3, partition = "iid"}
work = {kind = "steps", steps = 2}
run = {rounds = 2, batch_size = 8}
methods = [{name = "fedavg", lr = 0.1}]
"""
ALL = [
    (*group, name, command)
    for group, commands in {("",): cli.COMMANDS, ("deploy",): cli.deploy.COMMANDS, ("data",): cli.data.COMMANDS}.items()
    for name, command in commands.items()
]
SMALL = '"quadratics", clients = 3, dimension = 2'  # data whose programs are smaller
QUICK = TINY.replace('"digits", clients = 3, partition = "iid"', SMALL)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(TINY)
    return tmp_path


def test_run_writes_a_folder_and_says_where(here):
    result = run_cli("run", "tiny.toml")
    assert result.exit_code == 0, result.output
    assert "Report: runs/digits-1/report.html" in result.stdout
    assert "fedavg, seed 0: round 2" in result.stdout and "softmax_regression" in result.stdout
    assert read("runs/digits-1").runs[0].status == "finished"


def test_a_diverging_method_is_exit_code_1_and_the_others_are_finished(here, plots):
    (here / "two.toml").write_text(TINY.replace("]", ', {name = "fedavg", lr = 1e38, label = "wild"}]'))
    result = run_cli("run", "two.toml", "--out", "both", "--set", "methods.fedavg.lr=0.01")
    # Both methods have the name; the second is told by its label.
    assert result.exit_code == 0
    with plots():
        result = run_cli("run", "two.toml", "--out", "again")
    assert result.exit_code == 1, result.output
    assert "diverged by round" in result.stdout and "Report: again/report.html" in result.stdout
    assert [run.status for run in read("again").runs] == ["finished", "diverged"]
    assert "diverged by round" in (here / "again" / "report.html").read_text()


def test_a_method_that_ends_worse_than_it_began_is_exit_code_1(here, with_plots):
    (here / "two.toml").write_text(TINY.replace("]", ', {name = "fedavg", lr = 1e30, label = "wild"}]'))
    result = run_cli("run", "two.toml", "--out", "both")
    assert result.exit_code == 1, result.output
    assert "ended worse than it began" in result.stdout
    assert [run.status for run in read("both").runs] == ["finished", "worse"]
    (good, wild) = json.loads((here / "both" / "summary.json").read_text())["methods"]
    assert (good["status"], wild["status"]) == ("finished", "worse") and wild["final"]["train_loss"]["mean"] > 1e20
    assert run_cli("report", "both").exit_code == 0
    result = run_cli("sweep", "tiny.toml", "--grid", "methods.*.lr=1e29,1e30", "--out", "swept")
    assert result.exit_code == 1 and "ended worse than it began" in result.stdout, result.output
    assert not list((here / "swept").glob("best*.toml"))
    assert [trial.failed for trial in read("swept").trials("fedavg")] == [1, 1]


def test_a_method_that_its_guard_stopped_is_exit_code_1_and_an_unfinished_run_is_not(here):
    setting = ["--set", "run.faults={clients = [1], sends = 1e30}", "--set", "run.guard={largest = 1e6, stop = true}"]
    result = run_cli("run", "tiny.toml", "--out", "stopped", *setting)
    assert result.exit_code == 1 and "stopped by its guard at round" in result.stdout, result.output
    assert [run.status for run in read("stopped").runs] == ["failed"]
    assert run_cli("run", "tiny.toml", "--out", "half").exit_code == 0
    lines = (here / "half" / "metrics.jsonl").read_text().splitlines(keepends=True)
    (here / "half" / "metrics.jsonl").write_text("".join(lines[:-1]))
    assert [run.status for run in read("half").runs] == ["unfinished"]
    assert run_cli("diagnose", "half").exit_code == 0


def broken(error):
    def raising(*args, **kwargs):
        raise error

    return raising


def kept_traceback(line):
    """What the file has that a line on stderr names."""
    assert line.count("\n") == 1 and "Traceback" not in line
    assert line.endswith("; this is a defect of fedax, please report it\n")
    return pathlib.Path(re.search("the traceback is in (.*); this", line)[1])


def test_a_defect_wherever_it_shows_is_one_line_and_exit_code_70(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(cli, "app", broken(RuntimeError("a bug\nmore")))
    monkeypatch.setattr(exits, "listen", lambda: None)
    monkeypatch.setattr(sys, "argv", ["fedax", "run", "two words\n" + "x" * 300])
    results = []
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 70
        line = capsys.readouterr().err
        assert line.startswith("error: fedax run 'two words\\n") and ": RuntimeError: a bug; " in line
        assert len(line) < 600
        results.append(kept_traceback(line))
    assert results[0] != results[1]
    for path in results:
        assert path.parent == tmp_path and "RuntimeError: a bug\nmore" in path.read_text()
        assert f"fedax {fedax.__version__}" in path.read_text()


@pytest.mark.parametrize(
    "command",
    [["cite"], ["list", "methods"], ["deploy", "node", "--link=a:1", "--data=d", "--key=k"], ["deploy", "link"]],
    ids=" ".join,
)
def test_a_defect_in_any_command(command, monkeypatch, tmp_path):
    import fedax.citations
    from fedax.sites.service import deploy, link

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for place, name in ((fedax.citations, "cite"), (lookup, "two_columns"), (deploy, "node"), (link, "run")):
        monkeypatch.setattr(place, name, broken(KeyError("a bug")))
    result = run_cli(*command)
    assert (result.exit_code, result.stdout) == (70, "")
    assert "KeyError: 'a bug'" in kept_traceback(result.stderr).read_text()
    shown = run_cli("--debug", *command)
    assert shown.exit_code == 70 and "Traceback" in shown.stderr
    assert "Traceback" not in run_cli(*command).stderr  # only where it is asked for


def test_the_traceback_of_a_run_is_in_its_folder(here, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(runner, "train", broken(AssertionError))
        patch.setattr(runner._Execution, "_simulated", broken(AssertionError("a bug")))
        result = run_cli("run", "tiny.toml", "--out", "run")
    assert result.exit_code == 70
    path = kept_traceback(result.stderr)
    assert path.parent == here / "run" and "a bug" in path.read_text()
    assert run_cli("run", "tiny.toml", "--out", "run", "--resume").exit_code == 0 and path.exists()
    with monkeypatch.context() as patch:
        patch.setattr(runner, "begin", broken(AssertionError("a bug")))
        assert run_cli("run", "tiny.toml", "--out", "new").exit_code == 70
    assert run_cli("run", "tiny.toml", "--out", "new").exit_code == 0


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "there is not enough memory"),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 10 bytes"), "there is not enough memory"),
        (RecursionError("maximum recursion depth exceeded"), "nested too deep"),
        (OSError(errno.ENOSPC, "No space left on device", "a"), "No space left on device: a; make room on the disk"),
        (OSError(errno.EMFILE, "Too many open files", "a"), "ulimit"),
        (PermissionError(errno.EACCES, "Permission denied", "a\nb"), "Permission denied: a\\nb; get the permission"),
        (TimeoutError("timed out"), "timed out; see that the disk and the network work"),
    ],
)
def test_what_is_no_defect_is_an_error(error, message, monkeypatch, tmp_path):
    import fedax.citations

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(fedax.citations, "cite", broken(error))
    result = run_cli("cite")
    assert result.exit_code == 2 and message in result.stderr and result.stderr.count("\n") == 1
    assert "please report" not in result.stderr and not list(tmp_path.iterdir())
    assert "Traceback" in run_cli("--debug", "cite").stderr


def test_a_defect_in_one_of_several_processes(monkeypatch, capsys, tmp_path):
    """It ends at once, so that the others see it."""
    codes = []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(exits, "_debug", False)  # as the command before may have left it
    for error in (ValueError("a bug"), ProcessError("another is gone"), ConfigError("a", 1, "b"), typer.Exit(2)):
        exits.run_with_others(broken(error))
    first, second, third = capsys.readouterr().err.splitlines()
    assert codes == [70, 3, 2, 2]
    assert "ValueError: a bug" in kept_traceback(first + "\n").read_text()
    assert (second, third) == ("error: another is gone", "error: a = 1: b")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "absent.toml"], "config = 'absent.toml'"),
        (["run", "tiny.toml", "--set", "run.rounds=-3"], "run.rounds = -3"),
        (["run", "tiny.toml", "--set", "methods.fedavg.lr=0"], "methods.fedavg.lr = 0"),
        (["run", "tiny.toml", "--out", "."], "not empty"),
        (["run", "tiny.toml", "--out", "tiny.toml/x"], "cannot write there"),
        (["compare", "digitts"], "did you mean 'digits'"),
        (["compare", "digits", "--methods", "fedavg,fednovva"], "did you mean 'fednova'"),
        (["compare", "digits", "--methods", ","], "at least one method"),
        (["compare", "digits", "--clients", "100000"], "data.clients = 100000"),
        (["compare", "digits", "--by", "writer"], "no columns"),
        (["report", "absent"], "no run folder"),
    ],
)
def test_bad_input_is_exit_code_2_and_one_line(here, arguments, message):
    before = sorted(os.listdir(here))
    result = run_cli(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ") and message in result.stderr and result.stderr.count("\n") == 1
    assert not result.stdout
    assert sorted(os.listdir(here)) == before  # nothing was begun


def test_compare_digits(here):
    arguments = ["--methods", "fednova", "--rounds", "2", "--clients", "4", "--alpha", "0.7", "--seeds", "1"]
    result = run_cli("compare", "digits", *arguments, "--set", "work.kind=steps", "--set", "work.steps=1")
    assert result.exit_code == 0, result.output
    config = tomllib.loads((here / "runs/compare-digits-1/config.toml").read_text())
    assert config["data"]["clients"] == 4 and config["data"]["alpha"] == 0.7 and config["run"]["rounds"] == 2
    assert config["work"] == {"kind": "steps", "steps": 1} and config["run"]["seeds"] == [0]
    assert [method["name"] for method in config["methods"]] == ["fednova"]
    assert "dirichlet, alpha 0.7" in result.stdout and "fednova (lr 0.5)" in result.stdout


def test_some_methods_of_a_file_here_or_on_other_processes(here):
    three = ', {name = "fednova", label = "nova", lr = 0.1}, {name = "fedprox", lr = 0.1}]'
    sweep = '\n[sweep.grid]\n"methods.nova.lr" = [0.1, 0.2]\n"methods.fedprox.lr" = [0.1, 0.2]\n'
    (here / "three.toml").write_text(QUICK.replace("}]", "}" + three) + sweep)
    result = run_cli("run", "three.toml", "--methods", "fednova,fedavg", "--out", "run")
    assert result.exit_code == 0, result.output
    assert read("run").labels == ["fedavg", "nova"]
    result = run_cli("compare", "three.toml", "--methods", "nova", "--rounds", "1", "--seeds", "2", "--out", "compared")
    assert result.exit_code == 0, result.output
    assert read("compared").labels == ["nova"] and read("compared").config["run"]["seeds"] == [0, 1]
    result = run_cli("sweep", "three.toml", "--methods", "nova", "--out", "swept")
    assert result.exit_code == 0, result.output
    assert [run.point for run in read("swept").runs] == [{"lr": 0.1}, {"lr": 0.2}]
    result = run_cli("run", "three.toml", "--methods", "nova", "--on", "processes:2", "--out", "elsewhere")
    assert result.exit_code == 0, result.output
    there, here_ = (read(place).of("nova")[0].history["train_loss"] for place in ("elsewhere", "run"))
    np.testing.assert_allclose(there, here_, rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "tiny.toml", "--methods", "fedavgg"), "did you mean 'fedavg'"),
        (("run", "tiny.toml", "--methods", ","), "methods = ','"),
        (("run", "tiny.toml", "--on", "processes:2", "--distributed"), "--distributed"),
        (("compare", "tiny.toml", "--label", "ill"), "[data]"),
        (("run", "momentum"), "it is a study: fedax study momentum"),
        (("sweep", "study.toml"), "it is a study: fedax study study.toml"),
        (("run", "digits"), "it is a data set: fedax compare digits"),
        (("run", "table.csv"), "it is a table: fedax compare table.csv"),
        (("run", "done"), "it is a run folder: fedax report done"),
        (("compare", "done"), "fedax run done/config.toml"),
        (("compare", "fednova-figure-2-equal"), "it is a recipe: fedax run fednova-figure-2-equal"),
        (("compare", "momentum"), "it is a study"),
        (("study", "tiny.toml"), "it is a configuration: fedax run tiny.toml"),
        (("study", "digits"), "fedax compare digits"),
        (("report", "tiny.toml"), "it is a configuration: fedax run tiny.toml"),
    ],
)
def test_a_command_that_does_not_take_it_names_the_one_that_does(here, arguments, message):
    (here / "study.toml").write_text('name = "s"\n[[parts]]\nname = "a"\n')
    (here / "table.csv").write_text("a,b\n1,2\n")
    (here / "done").mkdir()
    for file in ("config.toml", "metrics.jsonl"):
        (here / "done" / file).touch()
    result = run_cli(*arguments)
    assert result.exit_code == 2 and message in " ".join(result.stderr.split()), result.output
    assert not (here / "runs").exists() and not (here / "studies").exists()


def test_report_draws_one_or_several(here):
    for out in ("one", "two"):
        assert run_cli("run", "tiny.toml", "--out", out).exit_code == 0
    page = here / "one" / "report.html"
    page.unlink()
    assert run_cli("report", "one").stdout.strip() == "one/report.html" and page.is_file()
    assert run_cli("report", "one", "two").stdout.strip() == "comparison.html"
    assert "fedavg · two" in (here / "comparison.html").read_text()
    result = run_cli("report", "one", "--out", "absent/x.html")
    assert result.exit_code == 2 and "cannot be written" in result.stderr
    assert run_cli("report", "one", "--judge", "train_loss", "--out", "by-train.html").exit_code == 0
    assert "Judged by Train loss, as this report was asked for." in (here / "by-train.html").read_text()
    shown = run_cli("report", "one", "--judge", "train_loss", "--format", "json")
    assert json.loads(shown.stdout)["problems"][0]["judged"]["column"] == "train_loss"
    result = run_cli("report", "one", "--judge", "los")
    assert result.exit_code == 2 and "judge = 'los'" in result.stderr and "test_loss" in result.stderr
    result = run_cli("report", "one", "--judge", "test_loss", "--public")
    assert result.exit_code == 2 and "judge = 'test_loss'" in result.stderr


@pytest.mark.usefixtures("with_plots")
def test_another_judge_gets_its_figures(here):
    assert run_cli("run", "tiny.toml", "--out", "one").exit_code == 0
    plots = here / "one" / "plots"
    assert (plots / "test_loss-bytes.png").is_file() and not (plots / "test_accuracy-bytes.png").exists()
    assert run_cli("report", "one", "--judge", "test_accuracy", "--out", "page.html").exit_code == 0
    assert not (plots / "test_accuracy-bytes.png").exists()  # a page elsewhere leaves the folder as it is
    (plots / "test_loss.png").unlink()
    assert run_cli("report", "one", "--judge", "test_accuracy").exit_code == 0
    assert {path.stem for path in plots.glob("test_*.png")} == {
        *("test_accuracy", "test_accuracy-bytes", "test_accuracy-seconds", "test_loss-bytes", "test_loss-seconds")
    }


def test_compare_takes_all_data_sets_that_are_listed(here):
    for name in datasets():
        assert comparison(name, ["fedavg"])["data"]["name"] == name
    features = {"x": np.ones((8, 2), np.float32), "y": np.arange(8) % 2}
    fedax.FederatedData.from_clients([features, features]).save("hospitals")
    for given, message in (([], "data.path = None"), (["--set", "data.path=hospitals"], "task.name = None")):
        result = run_cli("compare", "folder", *given)
        assert result.exit_code == 2 and message in result.stderr
    own = ["--set", "data.path=hospitals", "--set", "task.name=softmax_regression"]
    result = run_cli("compare", "folder", *own, "--methods", "fedavg", "--rounds", "1", "--seeds", "1")
    assert result.exit_code == 0 and "compare-folder-1/report.html" in result.stdout


def test_a_study_that_is_stopped_goes_on_by_the_same_command(here):
    (here / "quick.toml").write_text(QUICK)
    (here / "study.toml").write_text(
        'name = "mine"\nparts = [{name = "a", recipe = "quick.toml", methods = ["fedavg"]}]\n'
    )
    stopped = run_cli("study", "study.toml", "--hours", "0")
    assert (stopped.exit_code, stopped.stdout) == (1, "")
    done = run_cli("study", "study.toml")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1] == "studies/mine/report.html"
    assert run_cli("study", "study.toml").stdout.splitlines() == ["studies/mine/report.html"]
    (here / "pair.toml").write_text(TINY.replace("]", ', {name = "fedavg", lr = 0.2, label = "faster"}]'))
    (here / "two.toml").write_text(
        'name = "two"\nparts = [{name = "a", recipe = "pair.toml", claims = [["faster", "fedavg"]], '
        "set = {'run.seeds' = 3}}]\n"
    )
    before = run_cli("study", "two.toml", "--hours", "0").stdout
    assert before.startswith("a: 3 seeds: a pair is told with 80 % if it differs by 4.6 standard deviations of a run.")
    wrong = run_cli("study", "nope")
    assert wrong.exit_code == 2 and "study = 'nope'" in wrong.stderr
    assert sorted(os.listdir(here / "studies")) == ["mine", "two"]


@pytest.mark.parametrize(
    "command, first",
    [
        (["study", "momentum"], "fedax.experiments.study.read_study"),
        (["deploy", "local", "digits"], "fedax.cli.deploy.read_config"),
    ],
)
def test_commands_with_processes_leave_the_memory_of_a_gpu_to_them(command, first, monkeypatch):
    name, seen = "XLA_PYTHON_CLIENT_PREALLOCATE", []
    monkeypatch.setenv(name, "true")  # so that it is as before afterwards
    monkeypatch.delenv(name)

    def see(*_):
        seen.append(os.environ.get(name))
        raise fedax.ConfigError("name", "x", "this is enough")

    monkeypatch.setattr(first, see)
    assert "this is enough" in run_cli(*command).stderr
    assert seen == ["false"]


def test_list_has_all_names():
    result = run_cli("list")
    for name in (*fedax.available(), *datasets(), *tasks(), *recipes()):
        assert name in result.stdout
    methods = run_cli("list", "methods").stdout
    assert "fednova" in methods and "digits" not in methods
    assert run_cli("list", "method").exit_code == 2


def test_help_has_examples_and_the_version_is_told():
    assert "fedax compare digits" in run_cli("--help").stdout
    for command in ("run", "compare", "list", "report", "sweep", "study", "diagnose"):
        assert f"fedax {command}" in run_cli(command, "--help").stdout
    assert run_cli("--version").stdout.strip() == f"fedax {fedax.__version__}"


@pytest.mark.parametrize(("group", "name", "command"), ALL, ids=[f"{each[0]} {each[1]}" for each in ALL])
def test_help_says_all_that_is_written(group, name, command):
    """Of each command and of each of its arguments; also text in square brackets, which rich would take for markup."""
    words = [*group.split(), *name.split(), "--help"]
    shown = CliRunner().invoke(cli.app, words, env={"COLUMNS": "300"}).stdout
    help_text = " ".join(shown.replace("\N{BOX DRAWINGS LIGHT VERTICAL}", " ").split())
    for line in inspect.getdoc(command).splitlines():
        assert " ".join(line.strip("\b").split()) in help_text, line
    hints = get_type_hints(command, include_extras=True).values()
    for each in (each for hint in hints for each in getattr(hint, "__metadata__", ()) if not each.hidden):
        assert " ".join(each.help.split()) in help_text, each.help


def test_square_brackets_in_names_are_no_markup(here):
    settings = ["--set", "methods.fedavg.label=the [bold] one", "--set", "run.rounds=1"]
    result = run_cli("run", "tiny.toml", "--out", "folder [red]", *settings)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("the [bold] one") == 3  # what is chosen, the end of its seed, the table
    assert "Report: folder [red]/report.html" in result.stdout
    assert "Going on with folder [red]" in run_cli("run", "tiny.toml", "--out", "folder [red]", *settings).stdout


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """A run of methods with short and long names."""
    labels = ["scaffold-m-vr", "x", "a name of several words", "averylongname" * 2]
    methods = [{"name": "fedavg", "lr": 0.1, "label": label} for label in labels]
    folder = new_folder(tmp_path_factory.mktemp("tables") / "run", "tables")
    return runner.execute(build(tomllib.loads(TINY) | {"methods": methods}), folder)


@pytest.mark.parametrize("width", [120, 80, 60, 50])
def test_tables_of_any_width_have_whole_names_and_numbers(record, width):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    show.show_results(console, record)
    shown = console.file.getvalue()
    assert "…" not in shown and max(map(len, shown.splitlines())) <= width
    head, *rows = [
        line.split() for line in shown.splitlines() if line.startswith((" Method", " scaffold", " x", " averyl"))
    ]
    assert [row[0] for row in rows] == ["scaffold-m-vr", "x", "averylongname" * 2]
    values = [float(read_.history["train_loss"][-1]) for read_ in record.runs]
    assert ("Train" in head) == any(f"{values[0]:.4g}" in cell for cell in rows[0])
    assert ("Time" in head) == ("No room here for" not in shown) and ("Time" in head) == (width >= 80)
    for word in ("a", "name", "of", "several", "words"):
        assert word in shown.split()


def test_without_a_terminal_a_line_every_ten_seconds(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    console = Console(file=io.StringIO(), width=120)
    config = tomllib.loads(TINY)
    config["run"] |= {"rounds": 100, "seeds": 2}
    config["methods"][0]["label"] = "[a] b"
    with Runs(build(config), console) as watch:
        for seed in (0, 1):
            watch("[a] b", seed, None)
            for round_ in range(101):
                row = {"round": round_, "train_loss": 0.25, "test_loss": 0.3, "test_accuracy": 0.5, "seconds": 1.0}
                watch("[a] b", seed, Row(row, "finished" if round_ == 100 else None))
                now[0] += 0.5
    lines = [line for line in console.file.getvalue().splitlines() if line]
    figures = "Train loss 0.25, Test loss 0.3, Test accuracy 50.00 %"
    assert lines[0] == f"[a] b, seed 0: round 20 of 100, {figures}, about 90 s left"
    ends = [line for line in lines if "left" not in line]
    assert ends == [lines[4], lines[-1]] == [f"[a] b, seed {seed}: round 100, {figures}" for seed in (0, 1)]
    assert len(lines) == 11  # in 101 seconds, two of them at the ends


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        ("stopped", "ended early, round 3, Train loss 0.7, Test loss 0.7"),
        ("failed", "ended early, round 3, Train loss 0.7, Test loss 0.7; stopped by its guard"),
        ("diverged", "diverged by round 3"),
    ],
)
def test_a_run_that_ends_early_is_over(status, shown):
    console = Console(file=io.StringIO(), width=120)
    config = tomllib.loads(TINY)
    config["run"]["rounds"] = 9
    with Runs(build(config), console) as watch:
        watch("fedavg", 0, None)
        for round_, loss in enumerate([1.0, 0.5, 0.6, 0.7]):
            row = {"round": round_, "train_loss": loss, "test_loss": loss, "seconds": 1.0}
            watch("fedavg", 0, Row(row, status if round_ == 3 else None))
    assert console.file.getvalue().strip() == f"fedavg, seed 0: {shown}"


def test_a_run_that_ends_while_clients_are_away_says_so():
    console = Console(file=io.StringIO(), width=120)
    config = tomllib.loads(TINY)
    config["run"]["rounds"] = 2
    with Runs(build(config), console) as watch:
        watch("fedavg", 0, None)
        watch("fedavg", 0, Row({"round": 2, "train_loss": 0.7, "test_loss": 0.7, "heard": 0.75}, "worse"))
    (line,) = console.file.getvalue().strip().splitlines()
    assert "only 75.00 % of the weight heard" in line and line.endswith("; ended worse than it began")


def started(*arguments, **environment):
    """The command in a separate process with its own cache: JAX 0.10.0 warns when it reads cached programs."""
    own = {"XDG_CACHE_HOME": os.getcwd() + "-cache"}
    kept = {"env": os.environ | own | environment, "text": True, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-m", "fedax", *arguments], stdout=subprocess.PIPE, **kept)


def test_an_output_of_another_encoding_in_a_notebook_that_forces_colours(here):
    notebook = {"FORCE_COLOR": "1", "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    done = started("run", "tiny.toml", "--set", "run.seeds=2", PYTHONIOENCODING="ascii", **notebook)
    out, err = done.communicate(timeout=120)
    assert done.returncode == 0 and not err
    assert "1 442 training examples" in out and "+-" in out and "?" not in out and out.isascii()
    assert "\x1b" not in out and out.count("compiling") == 0  # no bars, no colours


def test_nobody_needs_to_read_the_output(here):
    (here / "small.toml").write_text(QUICK)
    done = started("run", "small.toml", "--out", "run")
    assert done.stdout.readline().startswith("Data")
    done.stdout.close()
    assert (done.wait(timeout=120), done.stderr.read()) == (0, "")
    done.stderr.close()
    assert read("run").runs[0].status == "finished" and (here / "run" / "report.html").exists()


@pytest.mark.parametrize(("name", "value"), [("JAX_PLATFORMS", "nonsense"), ("JAX_NUM_CPU_DEVICES", "abc")])
def test_an_environment_in_which_jax_does_not_start(here, name, value):
    done = started("run", "tiny.toml", **{name: value})
    out, err = done.communicate(timeout=120)
    assert (done.returncode, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("error: JAX does not start") and f"{name}={value}" in err
    assert os.listdir(here) == ["tiny.toml"]


STUDIED = """
data = {name = "digits", clients = 30, partition = "iid", split = {val = 0.1}}
participation = {kind = "uniform", size = 5}
run = {rounds = 2}
methods = [{name = "fedavg"}, {name = "fednova"}]

[sweep.grid]
"methods.*.lr" = [0.1, 0.2]
"""
PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if "```toml" in page.read_text()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_configurations_in_the_docs_can_be_run(page, here):
    """A piece that is no whole configuration goes with the one before it. tests/test_pages.py runs those in SAVED."""
    (here / "hospitals").mkdir()
    for name in ("north", "south"):
        (here / "hospitals" / f"{name}.csv").write_text("age,readmitted\n" + "40,no\n60,yes\n" * 20)
    tables = {}
    (here / "experiment.toml").write_text(STUDIED)
    for piece in re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL):
        if "[[parts]]" in piece:
            (here / "study.toml").write_text(piece)
            assert [*read_study("study.toml").jobs()]
            continue
        if "[updates]" in piece or piece.startswith("[figures]"):  # the rules of a node's owner
            assert Policy.of(tomllib.loads(piece)).noised
            continue
        if piece.startswith("link ="):  # a node.toml
            (here / "policy.toml").touch()
            (here / "node.toml").write_text(piece)
            assert NodeSettings.read(here / "node.toml", {}, {}).link == "fed.example.org:9443"
            continue
        before, tables = tables, (tables if "methods" in tables else {}) | tomllib.loads(piece)
        if any(page.stem == name and piece.startswith(start) for name, start in SAVED):
            tables = before if "sweep" in tables else tables  # it stands alone
            continue
        runner.check_methods(build({name: table for name, table in tables.items() if name != "sweep"}))
        for experiments in plan(tables, {}).experiments.values() if "sweep" in tables else ():
            for each in (experiments[0], experiments[-1]):
                runner.check_methods(each)


def test_so_can_the_one_that_the_help_shows():
    shown = re.findall(r"^ +((?:data|run|methods) = .*)", train.run.__doc__, re.MULTILINE)
    runner.check_methods(build(tomllib.loads("\n".join(shown))))


def test_python_m_fedax():
    done = subprocess.run([sys.executable, "-m", "fedax", "--version"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, f"fedax {fedax.__version__}\n"), done.stderr
