"""--out of commands that write a file: as its ending says, or an error before any work."""

import pathlib

import pandas
import pytest

import fedax
from tests.experiments import run_cli

ROWS = "age,note,ill\n" + "40,007,no\n60,,yes\n55,=a,no\n70,b,yes\n" * 6


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("north", "south"):
        (tmp_path / f"{name}.csv").write_text(ROWS, encoding="utf-8")
    data = fedax.data.from_csv([tmp_path / f"{name}.csv" for name in ("north", "south")], label="ill", drop=["note"])
    task = fedax.tasks.softmax_regression(data.examples["x"].shape[1], 2)
    fedax.simulate(fedax.create("fedavg", lr=0.1), task, data, rounds=1).save("model")
    return tmp_path


def test_predictions_as_csv_and_as_parquet(here):
    for ending in ("csv", "parquet"):
        assert run_cli("predict", "model", "north.csv", "--out", f"p.{ending}").exit_code == 0
    text, table = pandas.read_csv("p.csv", dtype={"note": str}), pandas.read_parquet("p.parquet")
    assert set(table.pop("doubts")) == {""} and text.pop("doubts").isna().all()
    pandas.testing.assert_frame_equal(table, text, check_dtype=False, rtol=1e-6)
    assert [*table["note"][[0, 2]]] == ["007", "=a"] and table["note"].isna()[1] and table["p yes"].dtype == "float32"


def test_other_endings_are_refused_before_any_work(here):
    fedax.compare(["fedavg"], *_problem(), rounds=1, out="ran")
    before = sorted(here.rglob("*"))
    for arguments, ways in (
        (["predict", "model", "north.csv"], ".csv or .parquet"),
        (["report", "ran"], ".html"),
        (["report", "ran", "--format", "csv"], ".csv"),
        (["report", "ran", "--format", "latex"], ".tex"),
        (["report", "ran", "--format", "markdown"], ".md"),
        (["data", "summarize", "north.csv"], ".json"),
        (["data", "plan", "north-first.json", "--label", "ill"], ".json"),
    ):
        for ending in ("xlsx", "CSV.GZ", "docx"):
            result = run_cli(*arguments, "--out", f"new.{ending}")
            assert result.exit_code == 2 and result.stderr.count("\n") == 1, (arguments, result.output)
            assert f"out = 'new.{ending}': a .{ending.lower().split('.')[-1]} file" in result.stderr
            assert ways in result.stderr
    policy = run_cli("deploy", "policy", "policy.json")
    assert policy.exit_code == 2 and ".toml" in policy.stderr
    assert sorted(here.rglob("*")) == before


def test_an_ending_without_a_meaning_is_as_the_user_likes_it(here):
    found = fedax.compare(["fedavg"], *_problem(), rounds=1, out="ran")
    assert run_cli("report", "ran", "--format", "csv", "--out", "a.txt").exit_code == 0
    assert pathlib.Path("a.txt").read_text() == found.to_csv()
    with pytest.raises(fedax.ConfigError, match=r"\.parquet file is not written; name it \.csv"):
        found.to_csv("a.parquet")


def _problem():
    return fedax.tasks.quadratic(1), fedax.data.quadratics(clients=2, dimension=1)
