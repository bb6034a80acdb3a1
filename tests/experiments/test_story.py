"""From forty CSV files to predictions for new patients, as their owner does it; and as well as with all rows pooled."""

import html
import re

import numpy as np
import pandas
import pytest
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from typer.testing import CliRunner

import fedax
from fedax.cli import app

from . import hospitals

STORY = """
data.name = "csv"
data.files = "hospitals/*.csv"
data.label = "readmitted"
data.split = {val = 0.15, test = 0.15, stratify = true}
run = {rounds = 40, batch_size = 32, seeds = 1}
methods = [{name = "fedavg", lr = 0.2}, {name = "fednova", lr = 0.2}]
"""


def command(*arguments):
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def story(tmp_path_factory, plots):
    """The folder after the run, and all patients."""
    place = tmp_path_factory.mktemp("story")
    pool = hospitals.write(place / "hospitals")
    (place / "story.toml").write_text(STORY)
    with plots(), pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        output = command("run", "story.toml", "--out", "run")
    return place, pool, output


def held_out(pool):
    """Which rows of all are in the test part: the split of rows that carry their numbers."""
    sizes = pool.groupby("hospital", sort=False).size()
    rows = {"x": np.arange(len(pool)), "y": (pool["readmitted"] == "yes").to_numpy(int)}
    parts = fedax.data.split(fedax.FederatedData(rows, sizes.to_numpy()), train=0.7, val=0.15, test=0.15, stratify=True)
    return parts.train.examples["x"], parts.test.examples["x"]


def test_as_well_as_all_rows_in_one_place(story):
    place, pool, output = story
    train, test = held_out(pool)
    numbers = ["age", "pressure", "glucose", "visits", "day"]
    table = pool.assign(day=pandas.to_datetime(pool["admitted"]).astype("int64") / 8.64e13)
    scaled = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    encoded = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder())
    columns = make_column_transformer((scaled, numbers), (encoded, ["ward", "sex"]))
    pooled = make_pipeline(columns, LogisticRegression(max_iter=1000))
    pooled.fit(table.iloc[train], table["readmitted"].iloc[train])
    truth = table["readmitted"].iloc[test] == "yes"
    wanted = roc_auc_score(truth, pooled.predict_proba(table.iloc[test])[:, 1])
    model = fedax.load_model(place / "run" / "models" / "fedavg-seed0.safetensors")
    result = roc_auc_score(truth, model.predict_proba(pool.iloc[test])[:, 1])
    assert abs(result - wanted) < 0.005 and wanted > 0.8
    assert model.labels == ("no", "yes") and set(model.transform.dropped) == {"patient"}
    row = [line for line in output.splitlines() if line.strip().startswith("fedavg ") and "%" in line][-1]
    assert f"{result:.4f}".rstrip("0") in row  # what the run says is what scikit-learn says of its model
    assert "Majority baseline, always class no" in output and f"{100 * (1 - truth.mean()):.2f} %" in output


def test_the_worst_hospital_stands_in_the_report_by_name(story):
    place, pool, _ = story
    table = pandas.read_csv(place / "run" / "clients" / "fedavg-seed0.csv")
    assert sorted(table["name"]) == sorted(pool["hospital"].unique())
    worst = table.sort_values("loss")["name"].iloc[-1]
    report = html.unescape((place / "run" / "report.html").read_text(encoding="utf-8"))
    assert re.search(rf"Worst clients.*{worst} \(", report, re.DOTALL)


def test_new_patients(story, tmp_path):
    place, pool, _ = story
    model = place / "run" / "models" / "fednova-seed0.safetensors"
    new = pool.drop(columns=["hospital", "readmitted"]).iloc[:50].copy()
    new.loc[3, ["age", "ward"]] = np.nan
    new.loc[4, "ward"] = "a ward that nobody has seen"
    new["patient"] = [f"{k:05d}" for k in range(50)]
    new.to_csv(tmp_path / "new.csv", index=False)
    assert "50 predictions" in command("predict", model, tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    found = pandas.read_csv(tmp_path / "p.csv", dtype={"patient": str})
    assert list(found.columns) == ["patient", "prediction", "p no", "p yes", "threshold", "decision", "doubts"]
    assert found["doubts"][4] == "ward is an unknown category"
    assert found["patient"].tolist() == new["patient"].tolist()  # as they were written
    with pytest.warns(fedax.DoubtfulWarning, match="ward: 1 is a category"):
        shares = fedax.load_model(model).predict_proba(new)
    np.testing.assert_allclose(found[["p no", "p yes"]], shares, atol=1e-6)
    assert found["prediction"].tolist() == np.where(shares[:, 1] > 0.5, "yes", "no").tolist()
    with_labels = new.assign(readmitted=pool["readmitted"].iloc[:50])
    with_labels.assign(readmitted=[None, "yes"] * 25).to_csv(tmp_path / "some.csv", index=False)
    result = command("predict", model, tmp_path / "some.csv", "--out", tmp_path / "r.csv")
    decided_yes = (found["prediction"][1::2] == "yes").mean()
    assert "Of the 25 rows with labels: loss" in result and f"accuracy {100 * decided_yes:.2f} %" in result
    assert (tmp_path / "r.csv").read_bytes() == (tmp_path / "p.csv").read_bytes()
    with pytest.warns(fedax.DoubtfulWarning):
        assert (fedax.load_model(model).predict(with_labels.assign(readmitted=None)) == found["prediction"]).all()
    with_labels.to_csv(tmp_path / "labels.csv", index=False)
    result = command("predict", model, tmp_path / "labels.csv", "--out", tmp_path / "q.csv")
    accuracy = (found["prediction"] == with_labels["readmitted"]).mean()
    assert f"accuracy {100 * accuracy:.2f} %" in result


@pytest.mark.parametrize(
    ("name", "out", "message"),
    [
        ("new.csv", "there.csv", "this is there already; name a new file"),
        ("new.csv", "none/p.csv", "there is no such folder"),
        ("short.csv", "p.csv", "there is no column 'glucose'"),
        ("none.csv", "p.csv", "none.csv: cannot be read"),
        ("new.doc", "p.csv", "give a .csv"),
        ("new.npy", "p.csv", "x: examples of shape"),
    ],
)
def test_what_cannot_be_predicted(name, out, message, story, tmp_path):
    place, pool, _ = story
    pool.iloc[:5].to_csv(tmp_path / "new.csv", index=False)
    pool.iloc[:5].drop(columns="glucose").to_csv(tmp_path / "short.csv", index=False)
    (tmp_path / "new.doc").write_text("a")
    np.save(tmp_path / "new.npy", np.ones((3, 2), np.float32))
    (tmp_path / "there.csv").write_text("mine")
    model = place / "run" / "models" / "fedavg-seed0.safetensors"
    result = CliRunner().invoke(app, ["predict", str(model), str(tmp_path / name), "--out", str(tmp_path / out)])
    assert result.exit_code == 2 and message in result.output and result.output.count("\n") == 1
    assert (tmp_path / "there.csv").read_text() == "mine" and not (tmp_path / "p.csv").exists()
