"""Data as people have them: text, skewed numbers, tables in memory, workbooks, LEAF's JSON, other libraries' objects."""

import datetime
import json

import numpy as np
import pandas as pd
import pytest
import tomli_w
from typer.testing import CliRunner

import fedax
from fedax import data
from fedax.cli import app
from fedax.data.tables import read_table
from fedax.errors import ConfigError, DataError
from fedax.experiments.predictions import predict_file

LONG = "no change since the last visit; " * 20  # more than 200 characters
NOTES = ["chest pain at night", "no pain at all today", "", f"{LONG}pain", f"{LONG}fever", "fever and a bad cough"]


def with_notes(k):
    notes = [f"{i}{k} {NOTES[i % 6]}" if i % 6 != 2 else "" for i in range(30)]
    return pd.DataFrame({"age": range(30), "note": notes, "ill": ["no", "yes"] * 15})


# ---- text


def test_text_is_the_counts_of_its_words():
    from sklearn.feature_extraction.text import HashingVectorizer

    tables = {"north": with_notes(0), "south": with_notes(1)}
    read = data.from_frames(tables, label="ill", columns={"note": "text"})
    names = read.transform.features
    assert names[1:3] == ("note (words 0)", "note (words 1)") and names[-1] == "note is missing" and len(names) == 258
    expected = HashingVectorizer(n_features=256).transform(tables["south"]["note"]).toarray()
    assert np.array_equal(read.client(1)["x"][:, 1:257], expected.astype(np.float32))
    assert read.client(0)["x"][2, 1:].tolist() == [0.0] * 256 + [1.0]
    (about,) = (each for each in read.overview.columns if each.name == "note")
    assert about.kind == "text" and about.missing[0] == 1 / 6
    assert data.Transform.from_json(read.transform.to_json()) == read.transform


def test_text_that_is_dropped_says_how_to_use_it():
    read = data.from_frames({"north": with_notes(0), "south": with_notes(1)}, label="ill")
    assert read.transform.dropped["note"].endswith('columns={note="text"} uses hashed words')
    names = pd.DataFrame({"age": range(24), "name": [f"N. N. {k}" for k in range(24)], "ill": ["no", "yes"] * 12})
    assert "hashed" not in data.from_frames({"north": names}, label="ill").transform.dropped["name"]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_text_is_the_same_beside_other_rows_and_in_other_formats(tmp_path, ending):
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    whole = with_notes(0).assign(note=[*NOTES, "1.50", "2024-01-31", "True", *with_notes(0)["note"][9:]])
    transform = data.from_frames({"north": whole}, label="ill", columns={"note": "text"}).transform
    for k in range(10):
        one = whole[k : k + 1]
        write = {"csv": one.to_csv, "parquet": one.to_parquet}[ending]
        write(tmp_path / f"{k}.{ending}", index=False)
        assert np.array_equal(transform(read_table(tmp_path / f"{k}.{ending}"))["x"], transform(whole)["x"][k : k + 1])


def test_no_text_leaves_a_site():
    table = with_notes(0)
    plan = data.plan([data.summarize(table)], label="ill", columns={"note": "text"})
    second = data.summarize(table, plan)
    assert "note" not in second.counts and second.alone["note"].rows == 25
    assert "pain" not in json.dumps([data.summarize(table).to_json(), plan.to_json(), second.to_json()])


# ---- the logarithm of the label


def costs(seed, n=60):
    rng = np.random.default_rng(seed)
    age = rng.normal(size=n)
    return pd.DataFrame({"age": age, "cost": np.exp(3 * age + 5 + rng.normal(size=n) / 5)})


def test_a_skewed_label_is_noted_and_its_logarithm_learned(tmp_path):
    tables = {"north": costs(0), "south": costs(1)}
    (note,) = data.from_frames(tables, label="cost").overview.notes
    assert (note.column, note.looks) == ("cost", "skewed") and 'target="log"' in note.why
    read = data.from_frames(tables, label="cost", target="log")
    assert [each.looks for each in read.overview.notes] == ["log"]
    assert np.allclose(read.client(1)["y"], np.log(tables["south"]["cost"]), rtol=1e-6)
    task = fedax.tasks.linear_regression(1)
    model = fedax.simulate(fedax.create("fedavg", lr=0.5), task, read, rounds=60).model
    model.save(tmp_path / "model.safetensors")
    loaded = fedax.load_model(tmp_path / "model.safetensors")
    logarithm = loaded.outputs(tables["north"])
    assert np.allclose(logarithm, np.log(tables["north"]["cost"]), atol=1) and logarithm.max() > 8
    assert np.allclose(loaded.predict(tables["north"]), np.exp(logarithm))
    tables["north"].to_csv(tmp_path / "new.csv", index=False)
    found = predict_file(loaded, tmp_path / "new.csv", tmp_path / "out.csv")
    assert found.measured["loss"] < 0.1  # of the logarithm
    assert np.allclose(pd.read_csv(tmp_path / "out.csv")["prediction"], np.exp(logarithm), rtol=1e-4)


def test_the_logarithm_needs_numbers_above_0():
    tables = {"north": costs(0), "south": costs(1)}
    tables["south"].loc[7, "cost"] = 0.0
    assert not data.from_frames(tables, label="cost").overview.notes
    with pytest.raises(DataError, match=r"south: label 'cost' has 1 number .*row 7 is 0\.0"):
        data.from_frames(tables, label="cost", target="log")
    for target, label in (("log", "ill"), ("log10", "cost")):
        with pytest.raises(ConfigError, match=r"^target"):
            data.from_frames({"north": costs(0).assign(ill=["no", "yes"] * 30)}, label=label, target=target)


def test_the_logarithm_in_a_configuration(tmp_path):
    for name, table in (("north", costs(0)), ("south", costs(1))):
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    read = {"name": "csv", "files": str(tmp_path / "*.csv"), "label": "cost", "target": "log"}
    config = {"data": read, "run": {"rounds": 2}, "methods": [{"name": "fedavg", "lr": 0.1}]}
    (tmp_path / "costs.toml").write_text(tomli_w.dumps(config))
    result = CliRunner().invoke(app, ["run", str(tmp_path / "costs.toml"), "--out", str(tmp_path / "run")])
    assert result.exit_code == 0 and "is learned as its logarithm" in result.stdout
    assert 'target = "log"' in (tmp_path / "run" / "config.toml").read_text()
    assert "is learned as its logarithm" in (tmp_path / "run" / "report.html").read_text()
