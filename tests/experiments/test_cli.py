"""The command: what it prints, where it writes, and its exit codes."""

import json
import os
import subprocess
import sys
import tomllib

import pytest
from typer.testing import CliRunner

import fedax
from fedax import cli
from fedax.cli import app
from fedax.experiments import datasets, read, recipes, tasks

TINY = """
data = {name = "digits", clients = 3, partition = "iid"}
work = {kind = "steps", steps = 2}
run = {rounds = 2, batch_size = 8}
methods = [{name = "fedavg", lr = 0.1}]
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(TINY)
    return tmp_path


def fedax_(*arguments):
    return CliRunner().invoke(app, arguments)


def test_run_writes_a_folder_and_says_where(here):
    result = fedax_("run", "tiny.toml")
    assert result.exit_code == 0, result.output
    assert "Report: runs/digits-1/report.html" in result.stdout
    assert "fedavg, seed 0: round 2" in result.stdout and "softmax_regression" in result.stdout
    assert read("runs/digits-1").runs[0].status == "finished"


def test_a_diverging_method_is_exit_code_1_and_the_others_are_finished(here):
    (here / "two.toml").write_text(TINY.replace("]", ', {name = "fedavg", lr = 1e38, label = "wild"}]'))
    result = fedax_("run", "two.toml", "--out", "both", "--set", "methods.fedavg.lr=0.01")
    # Both methods have the name; the second is told by its label.
    assert result.exit_code == 0
    result = fedax_("run", "two.toml", "--out", "again")
    assert result.exit_code == 1, result.output
    assert "diverged by round" in result.stdout and "Report: again/report.html" in result.stdout
    assert [run.status for run in read("again").runs] == ["finished", "diverged"]
    assert "diverged by round" in (here / "again" / "report.html").read_text()


def test_a_method_that_ends_worse_than_it_began_is_exit_code_1(here):
    (here / "two.toml").write_text(TINY.replace("]", ', {name = "fedavg", lr = 1e30, label = "wild"}]'))
    result = fedax_("run", "two.toml", "--out", "both")
    assert result.exit_code == 1, result.output
    assert "ended worse than it began" in result.stdout
    assert [run.status for run in read("both").runs] == ["finished", "worse"]
    (good, wild) = json.loads((here / "both" / "summary.json").read_text())["methods"]
    assert (good["status"], wild["status"]) == ("finished", "worse") and wild["final"]["train_loss"]["mean"] > 1e20
    assert fedax_("report", "both").exit_code == 0
    result = fedax_("sweep", "tiny.toml", "--grid", "methods.*.lr=1e29,1e30", "--out", "swept")
    assert result.exit_code == 1 and "ended worse than it began" in result.stdout, result.output
    assert not list((here / "swept").glob("best*.toml"))
    assert [trial.failed for trial in read("swept").trials("fedavg")] == [1, 1]


def test_a_method_that_its_guard_stopped_is_exit_code_1_and_an_unfinished_run_is_not(here):
    setting = ["--set", "run.faults={clients = [1], sends = 1e30}", "--set", "run.guard={largest = 1e6, stop = true}"]
    result = fedax_("run", "tiny.toml", "--out", "stopped", *setting)
    assert result.exit_code == 1 and "stopped by its guard at round" in result.stdout, result.output
    assert [run.status for run in read("stopped").runs] == ["failed"]
    assert fedax_("run", "tiny.toml", "--out", "half").exit_code == 0
    lines = (here / "half" / "metrics.jsonl").read_text().splitlines(keepends=True)
    (here / "half" / "metrics.jsonl").write_text("".join(lines[:-1]))
    assert [run.status for run in read("half").runs] == ["unfinished"]
    assert fedax_("diagnose", "half").exit_code == 0


def test_an_error_of_any_kind_is_exit_code_2(monkeypatch, capsys):
    def broken():
        raise RuntimeError("a bug")

    monkeypatch.setattr(cli, "app", broken)
    monkeypatch.setattr(cli, "_listen", lambda: None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2 and "RuntimeError: a bug" in capsys.readouterr().err


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
    result = fedax_(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ") and message in result.stderr and result.stderr.count("\n") == 1
    assert not result.stdout
    assert sorted(os.listdir(here)) == before  # nothing was begun


def test_compare_digits(here):
    arguments = ["--methods", "fednova", "--rounds", "2", "--clients", "4", "--alpha", "0.7", "--seeds", "1"]
    result = fedax_("compare", "digits", *arguments, "--set", "work.kind=steps", "--set", "work.steps=1")
    assert result.exit_code == 0, result.output
    config = tomllib.loads((here / "runs/compare-digits-1/config.toml").read_text())
    assert config["data"]["clients"] == 4 and config["data"]["alpha"] == 0.7 and config["run"]["rounds"] == 2
    assert config["work"] == {"kind": "steps", "steps": 1} and config["run"]["seeds"] == [0]
    assert [method["name"] for method in config["methods"]] == ["fednova"]
    assert "dirichlet, alpha 0.7" in result.stdout and "fednova (lr 0.5)" in result.stdout


def test_report_draws_one_or_several(here):
    for out in ("one", "two"):
        assert fedax_("run", "tiny.toml", "--out", out).exit_code == 0
    page = here / "one" / "report.html"
    page.unlink()
    assert fedax_("report", "one").stdout.strip() == "one/report.html" and page.is_file()
    assert fedax_("report", "one", "two").stdout.strip() == "comparison.html"
    assert "fedavg · two" in (here / "comparison.html").read_text()
    result = fedax_("report", "one", "--out", "absent/x.html")
    assert result.exit_code == 2 and "cannot be written" in result.stderr


def test_list_has_all_names():
    result = fedax_("list")
    for name in (*fedax.available(), *datasets(), *tasks(), *recipes()):
        assert name in result.stdout
    methods = fedax_("list", "methods").stdout
    assert "fednova" in methods and "digits" not in methods
    assert fedax_("list", "method").exit_code == 2


def test_help_has_examples_and_the_version_is_told():
    assert "fedax compare digits" in fedax_("--help").stdout
    for command in ("run", "compare", "list", "report"):
        assert f"fedax {command}" in fedax_(command, "--help").stdout
    assert fedax_("--version").stdout.strip() == f"fedax {fedax.__version__}"


def test_python_m_fedax():
    done = subprocess.run([sys.executable, "-m", "fedax", "--version"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, f"fedax {fedax.__version__}\n"), done.stderr
