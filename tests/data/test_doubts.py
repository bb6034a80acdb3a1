"""Cells of new rows unlike anything in training are counted and named, by every function that reads rows."""

import pathlib

import numpy as np
import pandas
import pytest

import fedax
from fedax import data
from fedax.cli import app
from fedax.data import workbooks
from fedax.data.paths import data_at
from fedax.errors import ConfigError, DataError, DoubtfulWarning
from fedax.experiments.named import check_named
from fedax.experiments.predictions import predict_file
from fedax.sites.service.deploy import read_rows

typer_testing = pytest.importorskip("typer.testing")


def hospitals(n=60):
    rng = np.random.default_rng(0)
    results = {}
    for name in ("north", "south"):
        admitted = pandas.Timestamp("2024-01-01") + pandas.to_timedelta(rng.integers(0, 300, n), "D")
        results[name] = pandas.DataFrame(
            {
                "id": [f"{name}-{i}" for i in range(n)],
                "age": rng.integers(18, 95, n),
                "crp": np.where(rng.random(n) < 0.2, np.nan, np.exp(rng.normal(1, 1, n)).round(2)),
                "rare": np.arange(n) == 7,  # 30 deviations from its mean, and known all the same
                "ward": rng.choice(["A", "B", "C"], n),
                "admitted": admitted.strftime("%Y-%m-%d"),
                "ill": rng.choice(["no", "yes"], n),
            }
        )
    return results


TABLES = hospitals()
NEW = pandas.DataFrame(
    {
        "id": list("abcdefgh"),
        "age": ["40", "9999", "forty", "", "-300", "50", "97", "18"],
        "crp": ["1.5", "", "9", "?", "5000", "1", "2", "0.1"],
        "rare": [True, False, False, True, False, False, False, True],
        "ward": ["A", "B", "Z", "", "C", "Y", "A", "B"],
        "admitted": ["2024-05-01", "soon", "2024-06-01", "2024-06-31", "2124-01-01", "2024-12-31", "", "45000"],
    }
)
DUE = {
    ("age", "unread"): [2],
    ("age", "far"): [1, 4],
    ("age", "missing"): [3],
    ("crp", "unread"): [3],
    ("crp", "far"): [4],  # where it is missing, as in training, there is no doubt
    ("ward", "category"): [2, 5],
    ("ward", "missing"): [3],
    ("admitted", "unread"): [1, 3, 7],
    ("admitted", "far"): [4],
    ("admitted", "missing"): [6],
}


def found_in(doubts):
    return {(each.column, each.why): each.rows.tolist() for each in doubts.found}


@pytest.fixture(scope="module")
def model():
    clients = data.from_frames(TABLES, label="ill")
    task = fedax.tasks.softmax_regression(clients.examples["x"].shape[1], classes=2)
    return fedax.simulate(fedax.create("fedavg", lr=0.1), task, clients, rounds=1).model


def read(kind, table, folder):
    """The table as each reader gives it."""
    if kind == "csv":
        table.to_csv(folder / "t.csv", index=False)
        return data.tables.read_table(folder / "t.csv")
    if kind == "decimal comma":
        table.assign(crp=table["crp"].str.replace(".", ",")).to_csv(folder / "t.csv", index=False, sep=";")
        return data.tables.read_table(folder / "t.csv", decimal=",")
    if kind == "parquet":
        table.to_parquet(folder / "t.parquet")
        return data.tables.read_table(folder / "t.parquet")
    return table.assign(ward=table["ward"].astype("category")) if kind == "categorical" else table


@pytest.mark.parametrize("kind", ["csv", "decimal comma", "parquet", "frame", "categorical"])
def test_every_reader_and_every_kind_of_column(model, tmp_path, kind):
    doubts = model.doubts(read(kind, NEW, tmp_path))
    assert found_in(doubts) == DUE and doubts.doubtful == 7 and doubts.unknown == ()
    by_row = doubts.by_row()
    assert by_row[0] == "" and by_row[3].split("; ") == [
        "age is missing", "crp cannot be read", "ward is missing", "admitted cannot be read"
    ]  # fmt: skip
    lines = "\n".join(doubts.lines())
    assert "age: 2 are far outside of training, beyond -" in lines and "'9999'" in lines
    assert "admitted: 3 cannot be read as a date and count as missing ('soon', '2024-06-31', '45000')" in lines
    assert "ward: 2 are categories that training did not have ('Z', 'Y')" in lines


def test_real_dates_and_numbers_are_as_their_texts(model):
    table = NEW[["id", "rare", "ward", "crp"]].assign(
        age=[40.0, 9999, 41, np.nan, -300, 50, 97, 18],
        admitted=pandas.to_datetime(["2024-05-01"] * 4 + ["2124-01-01"] + ["2024-05-01"] * 3),
    )
    doubts = found_in(model.doubts(table))
    assert doubts["age", "far"] == [1, 4] and doubts["age", "missing"] == [3] and doubts["admitted", "far"] == [4]
    assert ("age", "unread") not in doubts and ("admitted", "unread") not in doubts
    doubts = found_in(model.doubts(table.assign(admitted=20240501, age=pandas.Timestamp("2024-05-01"))))
    assert doubts["admitted", "unread"] == doubts["age", "unread"] == [*range(8)]


def test_nothing_of_training_is_in_doubt(model):
    for table in TABLES.values():
        assert not model.doubts(table)
        model.predict(table, strict=True)


def test_swapped_columns(model):
    table = TABLES["north"].rename(columns={"age": "ward", "ward": "age", "admitted": "crp", "crp": "admitted"})
    doubts = found_in(model.doubts(table))
    assert len(doubts["age", "unread"]) == len(doubts["ward", "category"]) == len(doubts["crp", "unread"]) == 60
    assert len(doubts["admitted", "unread"]) == TABLES["north"]["crp"].notna().sum()


@pytest.mark.parametrize("scale", ["standard", "none"])
def test_far_is_twice_what_training_reaches(scale):
    """Mean 50 and deviation 10: 45 to 85 reach one deviation below and four above."""
    values = np.array([45.0] * 8 + [50.0] * 4 + [85.0])
    values = (values - values.mean()) / values.std() * 10 + 50
    halves = {"a": pandas.DataFrame({"v": values[:6]}), "b": pandas.DataFrame({"v": values[6:]})}
    first = {name: data.summarize(table, least=1) for name, table in halves.items()}
    request = data.plan(first, scale=scale)
    second = {name: data.summarize(table, request, least=1) for name, table in halves.items()}
    low, high = second["b"].reach["v"]  # in steps of half its own standard deviation from its own mean
    step = values[6:].std() / 2
    assert low <= values[6:].min() < low + step and high - step < values[6:].max() <= high
    assert second["a"].reach["v"] == pytest.approx((values[0], values[0]))
    transform = data.fit(request, second)
    (column,) = transform.columns
    assert (column.low, column.high) == pytest.approx((30, 130))
    doubts = transform.doubts(pandas.DataFrame({"v": [29.9, 30.1, 129.9, 130.1, np.inf, 1e300]}))
    assert found_in(doubts) == {("v", "far"): [0, 3, 5], ("v", "missing"): [4]}
    assert data.Transform.from_json(transform.to_json()) == transform


def test_categories_that_share_a_feature_are_known():
    frames = {"a": pandas.DataFrame({"w": list("AAABBC") * 3})}
    first = {name: data.summarize(table, least=1) for name, table in frames.items()}
    request = data.plan(first, max_categories=2)
    transform = data.fit(request, {"a": data.summarize(frames["a"], request, least=1)})
    assert not transform.doubts(pandas.DataFrame({"w": ["C", "D", "A"]}))


def test_an_older_transform_says_that_it_knows_no_ranges(model, tmp_path):
    content = model.transform.to_json()
    older = {
        **content,
        "columns": [{k: v for k, v in each.items() if k not in ("low", "high")} for each in content["columns"]],
    }
    transform = data.Transform.from_json(older)
    doubts = transform.doubts(NEW)
    assert doubts.unknown == ("age", "crp", "rare", "admitted")
    assert found_in(doubts) == {key: rows for key, rows in DUE.items() if key[1] != "far"}
    import dataclasses

    before = dataclasses.replace(model, transform=transform)
    with pytest.raises(DataError, match=r"columns 'age', 'crp', .*not known"):
        before.predict(TABLES["north"], strict=True)
    assert (before.predict(TABLES["north"]) == model.predict(TABLES["north"])).all()
    # A client's summary of before is refused by name.
    old = data.summarize(TABLES["south"], least=1).to_json()
    del old["version"]
    with pytest.raises(DataError, match="summary: of another version of fedax; make it anew"):
        data.Summary.from_json(old)


def test_ranges_that_cannot_be():
    for low, high in ((1.0, None), (None, 1.0), (2.0, 1.0)):
        with pytest.raises(DataError, match="low"):
            data.Column("age", "number", low=low, high=high)
    with pytest.raises(DataError, match="reach"):
        data.Summary(3, reach={"age": (65.0, 0.0)})


def test_in_python(model):
    for call in (model.predict, model.predict_proba, model.outputs):
        with pytest.warns(DoubtfulWarning, match=r"7 of 8 rows have cells .* age: 1 cannot"):
            usual = call(NEW)
        with pytest.raises(DataError, match=r"7 of 8 rows.*first in column 'age', row 2 \(from 0\)"):
            call(NEW, strict=True)
        assert len(usual) == 8 and len(call(NEW[:1])) == 1  # without a warning
    with pytest.raises(ConfigError, match="trained on tables"):
        model.predict(np.zeros((1, 8), np.float32), strict=True)


def test_a_model_takes_all_tables_that_training_takes(model):
    pyarrow = pytest.importorskip("pyarrow")
    table = TABLES["north"].drop(columns="ill")
    due = model.predict_proba(table)
    np.testing.assert_array_equal(model.predict_proba(pyarrow.Table.from_pandas(table)), due)
    for rows, what in ((table.to_dict("records"), "list"), (data.from_frames(TABLES, label="ill"), "FederatedData")):
        with pytest.raises(DataError, match=rf"x: a {what}; give .*DataFrame"):
            model.predict(rows)
    with pytest.raises(DataError, match=r"object.*the table itself"):
        model.predict(model.transform.apply(table).astype(object))


def test_the_command(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model.save("m.safetensors")
    NEW.to_csv("new.csv", index=False)
    run = lambda *words: typer_testing.CliRunner().invoke(app, ["predict", "m.safetensors", *words])  # noqa: E731
    result = run("new.csv", "--out", "strict.csv", "--strict")
    assert result.exit_code == 2 and not (tmp_path / "strict.csv").exists()
    assert "new.csv: 7 of 8 rows have cells" in " ".join(result.output.split())
    result = run("new.csv", "--out", "p.csv")
    assert result.exit_code == 0, result.output
    assert "7 of 8 rows have cells unlike" in result.output
    assert "  age: 2 are far outside of training, beyond" in result.output
    table = pandas.read_csv("p.csv", keep_default_na=False)
    assert table["doubts"].tolist() == model.doubts(NEW).by_row() and list(table.columns)[-1] == "doubts"
    TABLES["north"].to_csv("old.csv", index=False)
    result = run("old.csv", "--out", "q.csv", "--strict")
    assert result.exit_code == 0 and "training" not in result.output
    np.save("x.npy", np.zeros((2, 9), np.float32))
    result = run("x.npy", "--out", "r.csv", "--strict")
    assert result.exit_code == 2 and "strict" in result.output


ESC = chr(27)


def test_names_with_control_characters(tmp_path, monkeypatch):
    """Neither the file nor the screen has them: of columns, classes, and the label."""
    monkeypatch.chdir(tmp_path)
    ages, more = f"age{ESC}[2J", f"=more{ESC}[31m"
    table = TABLES["north"].rename(columns={"age": ages, "id": more})
    table["ill"] = table["ill"].map({"no": "=no", "yes": f"yes{ESC}]0;a\x07"})
    trained = data.from_frames({"a": table}, label="ill")
    run = fedax.simulate(
        fedax.create("fedavg", lr=0.1), fedax.tasks.softmax_regression(10, classes=2), trained, rounds=1
    )
    run.save("m.safetensors")
    table.assign(**{ages: "old"}).to_csv("new.csv", index=False)
    result = typer_testing.CliRunner().invoke(app, ["predict", "m.safetensors", "new.csv", "--out", "p.csv"])
    assert result.exit_code == 0 and "age\\x1b[2J: 60 cannot be read" in result.output
    written = (tmp_path / "p.csv").read_text()
    assert ESC not in written + result.output and "\x07" not in written + result.output
    predicted = pandas.read_csv("p.csv")
    assert [*predicted.columns] == [
        "'=more\\x1b[31m", "prediction", "p =no", "p yes\\x1b]0;a\\x07", "doubts",
    ]  # fmt: skip
    assert {*predicted["prediction"]} <= {"'=no", "yes\\x1b]0;a\\x07"}
    assert predicted["'=more\\x1b[31m"].tolist() == table[more].tolist()  # cells are copied as they are


def test_a_column_that_is_called_as_a_prediction(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = TABLES["north"].rename(columns={"id": "prediction"})
    trained = data.from_frames({"a": table}, label="ill")
    task = fedax.tasks.softmax_regression(trained.examples["x"].shape[1], classes=2)
    fedax.simulate(fedax.create("fedavg", lr=0.1), task, trained, rounds=1).save("m.safetensors")
    table.to_csv("new.csv", index=False)
    result = typer_testing.CliRunner().invoke(app, ["predict", "m.safetensors", "new.csv", "--out", "p.csv"])
    assert result.exit_code == 2 and "'prediction'" in result.output and not (tmp_path / "p.csv").exists()


def test_numbers_beyond_float32_are_refused(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model.save("m.safetensors")
    bad = NEW.assign(crp=["1", "2", "1e39", "", "3", "4", "5", "6"])
    bad.to_csv("new.csv", index=False)
    result = typer_testing.CliRunner().invoke(app, ["predict", "m.safetensors", "new.csv", "--out", "p.csv"])
    assert result.exit_code == 2 and not (tmp_path / "p.csv").exists()
    assert "new.csv: column 'crp' has 1 number" in " ".join(result.output.split())
    with pytest.warns(DoubtfulWarning), pytest.raises(DataError, match=r"row 2 \(from 0\) is '1e39'"):
        model.predict(bad)
    width = len(model.transform.features)
    with pytest.raises(DataError, match=r"x: example 1 has 1e\+39, beyond float32"):
        model.predict(np.array([[0.0] * width, [1e39] * width]))


@pytest.mark.parametrize(
    "ending", [".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz", ".xlsx", ".xlsm", ".parquet"]
)
def test_every_file_that_training_reads_can_be_predicted_for(tmp_path, monkeypatch, ending):
    monkeypatch.chdir(tmp_path)
    name = f"north{ending.upper() if ending == '.txt' else ending}"
    if ending in workbooks.ENDINGS:
        TABLES["north"].to_excel(f"{name}.xlsx", index=False)
        pathlib.Path(f"{name}.xlsx").rename(name)
    elif ending == ".parquet":
        TABLES["north"].to_parquet(name)
    else:
        TABLES["north"].to_csv(name, sep="\t", index=False, compression="gzip" if ending.endswith(".gz") else None)
    trained = (data.from_parquet if ending == ".parquet" else data.from_csv)(name, label="ill")
    assert data_at([name])["files"] == name
    task = fedax.tasks.softmax_regression(trained.examples["x"].shape[1], classes=2)
    model = fedax.simulate(fedax.create("fedavg", lr=0.1), task, trained, rounds=1).model
    found = predict_file(model, name, "p.csv")
    assert found.rows == found.labelled == 60 and len(read_rows(tmp_path / name)) == 60
    with pytest.raises(ConfigError, match="it is a table"):
        check_named("config", name, "configuration")


@pytest.mark.parametrize("ending", ["csv", "xlsx", "parquet"])
def test_columns_that_the_model_does_not_use_are_copied_as_written(model, tmp_path, ending):
    more = {"zip": ["007", "01067"] * 30, "dose": ["1,50", "2.0"] * 30, "note": ["", "late"] * 30}
    table = TABLES["north"].assign(**more)
    write = {"csv": table.to_csv, "xlsx": table.to_excel, "parquet": table.to_parquet}[ending]
    write(tmp_path / f"new.{ending}", index=False)
    predict_file(model, tmp_path / f"new.{ending}", tmp_path / "p.csv")
    predicted = pandas.read_csv(tmp_path / "p.csv", dtype=str, keep_default_na=False)
    assert [*predicted.columns] == ["id", *more, "prediction", "p no", "p yes", "doubts"]
    assert {name: predicted[name].tolist() for name in more} == more and predicted["id"][0] == "north-0"


def test_predicting_needs_no_label(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model.save("m.safetensors")
    table = TABLES["north"]
    classes = model.predict(table)
    cases = {
        "all": (table["ill"].tolist(), "The rows have labels: ", 60),
        "some": (["yes"] * 6 + [""] * 54, "Of the 6 rows with labels: ", 6),
        "none": ([""] * 60, None, 0),
        "other": (
            ["yes", "NA"] * 30,
            "no figures: label 'ill', row 1 (from 0) is 'NA'; the classes are 'no', 'yes'",
            0,
        ),
    }
    for name, (labels, line, labelled) in cases.items():
        table.assign(ill=labels).to_csv(f"{name}.csv", index=False)
        found = predict_file(model, tmp_path / f"{name}.csv", tmp_path / f"{name}-p.csv")
        assert found.labelled == labelled and bool(found.unmeasured) == (name == "other")
        if labelled:
            right = [given == answer for given, answer in zip(labels, classes, strict=True) if given]
            assert found.measured["accuracy"] == pytest.approx(np.mean(right))
        assert pandas.read_csv(f"{name}-p.csv")["prediction"].tolist() == classes.tolist()
        words = ["predict", "m.safetensors", f"{name}.csv", "--out", f"{name}-q.csv"]
        output = " ".join(typer_testing.CliRunner().invoke(app, words).output.split())
        assert line in output if line else "labels" not in output and "figures" not in output


def test_predicting_needs_no_number_as_label(tmp_path):
    tables = {name: table.assign(cost=table["age"] * 2.5) for name, table in TABLES.items()}
    trained = data.from_frames(tables, label="cost", drop=["ill", "id"])
    task = fedax.tasks.linear_regression(trained.examples["x"].shape[1])
    model = fedax.simulate(fedax.create("fedavg", lr=0.1), task, trained, rounds=1).model
    for k, (cost, labelled, why) in enumerate(
        [("1.5", 59, ""), ("unknown", 0, "label 'cost', row 3 (from 0) is no finite")]
    ):
        new = tables["north"].assign(cost=["", "2", "3", cost, *["4"] * 56])
        new.to_csv(tmp_path / f"{k}.csv", index=False)
        found = predict_file(model, tmp_path / f"{k}.csv", tmp_path / f"{k}-p.csv")
        assert found.rows == 60 and found.labelled == labelled and found.unmeasured.startswith(why)
        assert bool(found.measured) == bool(labelled)
