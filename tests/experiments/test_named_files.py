"""fedax compare FILES: which data set they are, what the run is called, and what the options set."""

import json
import os
import pathlib
import re
import shutil

import pandas
import pytest
from typer.testing import CliRunner

import fedax
from fedax.cli import app, train
from fedax.data.paths import data_at, title_of
from fedax.errors import ConfigError, DoubtfulWarning
from fedax.experiments import read

ROWS = "age,ward,patient,ill\n" + "40,A,P1,no\n60,B,P2,yes\n55,A,P3,no\n70,B,P4,yes\n" * 6
QUICK = ["--rounds", "1", "--seeds", "1", "--methods", "fedavg", "--no-tune", "--set", "run.baselines=false"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("north", "south"):
        put(f"hospitals/{name}.csv")
    return tmp_path


def put(path):
    pathlib.Path(path).parent.mkdir(exist_ok=True, parents=True)
    pathlib.Path(path).write_text(ROWS, encoding="utf-8")


def compare(*arguments):
    return CliRunner().invoke(app, ["compare", *arguments])


@pytest.fixture
def configured(monkeypatch):
    """The configuration that a command would run."""

    def call(*arguments):
        seen = []
        monkeypatch.setattr(train, "run_experiment", lambda tables, *rest, **kept: seen.append(tables))
        result = compare(*arguments)
        assert result.exit_code == 0, result.output
        return seen[0]

    return call


@pytest.mark.parametrize(
    ("files", "given", "expected"),
    [
        (["h/a.csv", "h/b.CSV", "h/c.csv.gz", "h/.hidden.csv"], ["h"], "h"),
        (["h/a.csv", "h/readme.txt"], ["h/"], "h/"),
        (["h/a.csv", "h/b.tsv", "h/readme.txt"], ["h"], ["h/a.csv", "h/b.tsv"]),
        (["h/a10.txt", "h/a9.txt"], ["h"], ["h/a9.txt", "h/a10.txt"]),
        (["h/a.XLSX", "h/~$a.xlsx"], ["h"], "h/a.XLSX"),
        (["h/a.tsv.gz"], ["h/a.tsv.gz"], "h/a.tsv.gz"),
        (["h/a.csv", "h/b.csv"], ["h/b.csv", "h/a.csv"], ["h/b.csv", "h/a.csv"]),
        (["h/a.csv", "h/b.csv"], ["h/*.csv"], "h/*.csv"),
        (["h/a.csv", "i/b.txt"], ["h", "i/b.txt"], ["h/a.csv", "i/b.txt"]),
        (["digits"], ["./digits"], None),
    ],
)
def test_tables_by_their_endings(files, given, expected):
    for file in files:
        put(file)
    if expected is None:
        with pytest.raises(ConfigError, match=r"data = 'digits': give \.csv"):
            data_at(given)
    else:
        assert data_at(given) == {"name": "csv", "files": expected}


def test_files_of_a_folder_that_are_not_read_are_named_once(here):
    for file in ("east.txt", "east.csv.zip", "e.jsonl", "old/south.csv", "plan.json", ".git/x.csv", "ReadMe.txt"):
        put(f"hospitals/{file}")
    left_out = r"hospitals: not read: 'e\.jsonl', 'east\.csv\.zip', 'east\.txt', 'old/south\.csv'; name"
    assert data_at(["hospitals"])["files"] == "hospitals"  # without a warning, for the reader gives it
    with pytest.warns(DoubtfulWarning, match=left_out):
        fedax.data.from_csv("hospitals", label="ill")
    for listed in (False, True):
        if listed:  # then the reader gets no folder
            put("hospitals/west.tsv")
            with pytest.warns(DoubtfulWarning, match=left_out):
                files = data_at(["hospitals"])["files"]
            assert files == [f"hospitals/{name}" for name in ("north.csv", "south.csv", "west.tsv")]
        for words in (["compare", "hospitals", *QUICK], ["data", "check", "hospitals"]):
            with pytest.warns(DoubtfulWarning, match=left_out) as caught:
                result = CliRunner().invoke(app, [*words, "--label", "ill", "--drop", "patient"])
            assert result.exit_code == 0 and len(caught) == 1


def test_other_kinds_of_folders(here):
    put("p/a.parquet")
    put("arrow/train/data-0.arrow")
    put("pictures/north/cat/1.PNG")
    fedax.data.from_csv("hospitals", label="ill").save("saved")
    assert data_at(["p"]) == {"name": "parquet", "files": "p"}
    assert data_at(["arrow"]) == data_at(["arrow/"]) | {"folders": "arrow"} == {"name": "arrow", "folders": "arrow"}
    assert data_at(["arrow/train/data-0.arrow"]) == {"name": "arrow", "folders": "arrow/train"}
    assert data_at(["pictures"]) == {"name": "images", "root": "pictures"}
    assert data_at(["saved"]) == {"name": "folder", "path": "saved"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["hospitals/north.csv", "p/a.parquet"], r"several kinds: hospitals/north\.csv, p/a\.parquet"),
        (["mixed"], "several kinds"),
        (["empty"], "data = 'empty': nothing that fedax reads is in this folder"),
        (["nowhere.csv"], "there is no such file or folder"),
        (["nowhere/*.csv"], "no file fits this pattern"),
        ([""], "data = '': there is no such file"),
        (["xyz"], "no such file, folder or data set; There are: .*digits"),
        (["experiment.toml"], r"change its section \[data\]"),
        (["hospitals/north.csv", "digits"], r"one data set, or files alone; .* \./digits"),
        (["digitts"], "did you mean 'digits'"),
        (["hospitals", "--by", "ward"], "--client ward"),
        (["hospitals", "--column", "ward"], "give COLUMN=KIND"),
    ],
)
def test_what_cannot_be_compared(here, given, message):
    for file in ("p/a.parquet", "mixed/a.csv", "mixed/b.parquet", "experiment.toml"):
        put(file)
    (here / "empty").mkdir()
    result = compare(*given, "--label", "ill")
    assert result.exit_code == 2 and result.stderr.count("\n") == 1 and not (here / "runs").exists()
    assert re.search(message, result.stderr), result.stderr


def test_a_name_that_no_configuration_can_hold(here):
    shutil.copy("hospitals/north.csv", b"hospitals/z\xff.csv")
    result = compare("hospitals/north.csv", os.fsdecode(b"hospitals/z\xff.csv"), "--label", "ill")
    assert result.exit_code == 2 and "not in UTF-8" in result.stderr and not (here / "runs").exists()
    assert data_at(["hospitals"]) == {"name": "csv", "files": "hospitals"}


def test_without_a_label_the_error_names_the_columns(here):
    result = compare("hospitals/")
    assert result.exit_code == 2 and result.stderr.count("\n") == 1 and not (here / "runs").exists()
    assert "--label" in result.stderr and "'age', 'ward', 'patient', 'ill'" in result.stderr


def test_what_a_run_is_called(here, monkeypatch):
    assert title_of(["hospitals"]) == title_of(["hospitals/*.csv"]) == title_of(["./hospitals/"]) == "hospitals"
    assert title_of(["hospitals/north.csv", "hospitals/south.csv"]) == "hospitals"
    assert title_of(["hospitals/north.csv"]) == "north" and title_of(["x/cost.csv.gz"]) == "cost"
    for each in "xy":
        put(f"a/{each}/1.csv")
    assert title_of(["a/x", "a/y"]) == title_of(["a/*/1.csv"]) == "a"
    monkeypatch.chdir(here / "hospitals")
    assert title_of(["."]) == title_of(["*.csv"]) == title_of(["north.csv", "south.csv"]) == "hospitals"


def test_options_set_what_the_configuration_says(configured):
    options = ["--label", "1", "--drop", "patient", "--drop", "id", "--client", "site", "--positive", "0"]
    tables = configured("hospitals", *options, "--column", "zip=category", "--set", "data.client=ward")
    assert tables["name"] == "compare-hospitals"
    assert {key: value for key, value in tables["data"].items() if key != "split"} == {
        "name": "csv", "files": "hospitals", "label": "1", "drop": ["patient", "id"], "client": "ward",
        "positive": "0", "columns": {"zip": "category"},
    }  # fmt: skip
    assert tables["run"]["baselines"] is True
    assert configured()["data"]["name"] == configured("Digits")["data"]["name"] == "digits"


def test_files_give_the_run_that_their_configuration_gives(here):
    assert compare("hospitals/", "--label", "ill", "--drop", "patient", *QUICK).exit_code == 0
    old = ["csv", "--set", "data.files=hospitals", "--set", "data.label=ill", "--set", 'data.drop=["patient"]']
    assert compare(*old, *QUICK).exit_code == 0
    new, old = read("runs/compare-hospitals-1"), read("runs/compare-csv-1")
    assert new.config["data"] == old.config["data"] | {"files": "hospitals/"}
    pandas.testing.assert_frame_equal(
        *(pandas.DataFrame(each.runs[0].history).drop(columns="seconds") for each in (new, old))
    )


def test_a_default_cohort_is_all_clients_where_they_are_fewer(here, monkeypatch):
    """A file of LEAF with two writers, of whom ten a round would be drawn."""
    (here / "femnist" / "data" / "train").mkdir(parents=True)
    users = {name: {"x": [[0.0] * 784] * 4, "y": [0, 1, 2, 3]} for name in ("f0", "f1")}
    leaf = {"users": [*users], "num_samples": [4, 4], "user_data": users}
    (here / "femnist" / "data" / "train" / "a.json").write_text(json.dumps(leaf))
    monkeypatch.setenv("FEDAX_DATA", str(here))
    arguments = ["femnist", "--by", "writer", *QUICK, "--set", "task.name=softmax_regression"]
    assert compare(*arguments).exit_code == 0
    assert read("runs/compare-femnist-1").config["participation"] == {"kind": "full"}
    given = compare(*arguments, "--set", "participation.size=3")
    assert given.exit_code == 2 and "participation.size = 3" in given.stderr


def test_the_shell_completes_commands_and_options():
    for words, expected in (("fedax comp", "compare"), ("fedax compare --positi", "--positive")):
        asked = {"_FEDAX_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        assert CliRunner().invoke(app, [], prog_name="fedax", env=asked).stdout.split() == [expected]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["task.name=logistic_regression"], r"^error: task\.name = 'logistic_regression': .*softmax_regression"),
        (["task.name=linear_regression"], r"^error: task\.name = 'linear_regression': .*data\.task.*softmax_reg"),
        (["task.name=softmax_regression"], None),
        (["task.name=linear_regression", "data.task=regression"], None),
    ],
)
def test_a_task_that_cannot_learn_the_label_names_one_that_can(here, settings, message):
    for name in ("north", "south"):
        put(f"hospitals/{name}.csv")
        text = pathlib.Path(f"hospitals/{name}.csv").read_text()
        pathlib.Path(f"hospitals/{name}.csv").write_text(text.replace("yes", "1").replace("no", "0"))
    sets = [word for each in settings for word in ("--set", each)]
    result = compare("hospitals", "--label", "ill", "--drop", "patient", *QUICK, *sets)
    if message is None:
        assert result.exit_code == 0, result.output
    else:
        assert result.exit_code == 2 and result.stderr.count("\n") == 1 and re.search(message, result.stderr)
