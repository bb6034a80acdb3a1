"""The heart disease of four hospitals: as tables of one's own, and as the published benchmark prepares it."""

import numpy as np
import pytest

import fedax
from fedax import data
from fedax.errors import DataError
from fedax.experiments import build, execute, new_folder, read_toml

ROWS = {  # age, sex, cp, trestbps, chol, fbs, restecg, thalach, exang, oldpeak, slope, ca, thal, num
    "cleveland": [
        "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0",
        "67,1,4,160,286,0,2,108,1,1.5,2,3,3,2",
    ],
    "hungarian": ["28,1,2,130,132,0,2,185,0,0,?,?,?,0", "54,1,2,120,238,0,0,154,0,0,?,?,?,1"],
    "switzerland": ["32,1,1,95,0,?,0,127,0,.7,1,?,?,1", "34,1,4,115,0,?,?,154,0,.2,1,?,?,1"],
    "va": ["63,1,4,140,260,0,1,112,1,3,2,?,?,2", "44,1,4,0,0,0,1,127,1,1.5,2,?,?,0"],
}


def written(folder, **changed):
    (folder / "heart").mkdir()
    for name, rows in (ROWS | changed).items():
        (folder / "heart" / f"processed.{name}.data").write_text("\n".join([*rows, ""]))
    return folder


def named(data, labels):
    return [data.transform.classes[label] for label in labels]


def test_four_hospitals_as_tables_of_one_s_own(tmp_path):
    heart = data.load("heart", written(tmp_path))
    assert heart.names == ("cleveland", "hungary", "switzerland", "va") and heart.sizes.tolist() == [2, 2, 2, 2]
    assert heart.transform.label.name == "disease"
    assert heart.transform.classes == ("no", "yes")  # the last is positive, though it is the more frequent one
    assert data.heart(tmp_path, positive="no").transform.classes == ("yes", "no")
    assert named(heart, heart.examples["y"]) == ["no", "yes", "no", "yes", "yes", "yes", "yes", "no"]
    columns = {each.name: each for each in heart.overview.columns}
    assert columns["chol"].missing == (3 / 8, 0, 0, 1, 0.5) and columns["trestbps"].missing == (1 / 8, 0, 0, 0, 0.5)
    assert columns["cp"].kind == "category" and columns["age"].kind == "number"
    assert {"cp = 1", "cp = 2", "cp = 4"} <= {*heart.transform.features}  # 1.0 and 1 are one


def test_what_was_not_measured_is_said(tmp_path):
    lines = data.load("heart", written(tmp_path)).overview.lines()
    assert any("missing: chol of 0 (2 of 2 rows)" in line and "switzerland" in line for line in lines)
    assert not any("cleveland" in line for line in lines)


def test_columns_can_be_left_out(tmp_path):
    heart = data.heart(written(tmp_path), drop=["slope", "ca", "thal"])
    assert not {each.partition(" ")[0] for each in heart.transform.features} & {"slope", "ca", "thal"}


@pytest.mark.parametrize(
    ("setting", "value"), [("drop", 3), ("drop", "slope"), ("folder", 3)], ids=["number", "text", "folder"]
)
def test_settings_of_another_type(tmp_path, setting, value):
    with pytest.raises(fedax.ConfigError, match=setting):
        data.heart(**{"folder": written(tmp_path), setting: value})


@pytest.mark.parametrize(
    ("rows", "message"),
    [(["63,1,1"], "line 1 has 3 of 14 cells"), ([ROWS["va"][0][:-1] + "7"], "num is '7'"), ([], "no rows")],
)
def test_damaged_files_are_named(tmp_path, rows, message):
    with pytest.raises(DataError, match=rf"processed\.va\.data.*{message}"):
        data.load("heart", written(tmp_path, va=rows))


def test_a_hospital_s_file_is_missing(tmp_path):
    (written(tmp_path) / "heart" / "processed.va.data").unlink()
    with pytest.raises(DataError, match=r"heart: .*processed\.va\.data"):
        data.load("heart", tmp_path)
    with pytest.raises(DataError, match=r"heart: .*archive\.ics\.uci\.edu"):
        data.load("heart", tmp_path / "heart")


def test_the_hospitals(data_folder):
    heart = data.load("heart")
    assert heart.sizes.tolist() == [303, 294, 123, 200]
    assert [named(heart, heart.client(i)["y"]).count("yes") for i in range(4)] == [139, 106, 115, 149]
    columns = {each.name: each for each in heart.overview.columns}
    assert columns["chol"].missing[3] == 1 and columns["ca"].missing[1] == 4 / 303
    assert [note.column for note in heart.overview.notes if note.looks == "missing"] == [
        "chol",
        "fbs",
        "slope",
        "ca",
        "thal",
    ]


def test_the_benchmark_s_rows_features_and_split(data_folder):
    train, test = data.fed_heart_disease(seed=43)
    assert train.names == test.names == ("cleveland", "hungary", "switzerland", "va")
    assert train.sizes.tolist() == [199, 172, 30, 85] and test.sizes.tolist() == [104, 89, 16, 45]
    x = np.asarray(train.examples["x"])
    assert x.shape == (486, 14) and (x[:, -1] == 1).all() and set(np.unique(train.examples["y"])) == {-1, 1}
    first = x[:199, :-1]
    np.testing.assert_allclose(first.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(first.std(0, ddof=1), 1, rtol=1e-5)


def test_test_rows_are_scaled_by_their_hospital_or_by_all(data_folder):
    of_hospital, of_all = (data.fed_heart_disease(scale_test=scale, seed=43) for scale in ("hospital", "pooled"))
    np.testing.assert_array_equal(of_hospital[0].examples["x"], of_all[0].examples["x"])
    assert np.abs(of_hospital[1].examples["x"] - of_all[1].examples["x"]).max() > 1
    pooled = data.fed_heart_disease(scale="pooled", scale_test="pooled", seed=43)
    np.testing.assert_allclose(pooled[0].examples["x"][:, :-1].mean(0), 0, atol=1e-5)
    for wrong in ({"scale": "none"}, {"scale_test": 3}, {"seed": -1}):
        with pytest.raises(fedax.ConfigError, match=next(iter(wrong))):
            data.fed_heart_disease(**wrong)


def test_another_seed_is_another_split(data_folder):
    parts = [data.fed_heart_disease(seed=seed)[0].examples["x"] for seed in (0, 1, 1)]
    assert not np.array_equal(parts[0], parts[1]) and np.array_equal(parts[1], parts[2])


def flamby(folder):
    """FLamby's dataset.py, transcribed: features scaled by hospital and by all, labels, hospitals, training rows."""
    import pandas as pd
    from sklearn.model_selection import train_test_split

    features, labels, hospitals, training = [], [], [], []
    for k, name in enumerate(ROWS):
        table = pd.read_csv(folder / "heart" / f"processed.{name}.data", header=None)
        table = table.replace("?", np.nan).drop([10, 11, 12], axis=1).dropna(axis=0).apply(pd.to_numeric)
        ill = (table.iloc[:, -1] > 0).to_numpy().astype(int)
        strata = ill if all((ill == level).sum() > 2 for level in np.unique(ill)) else None
        sizes = {"test_size": 1.0 - 0.66, "train_size": 0.66}
        chosen, _ = train_test_split(np.arange(len(ill)), **sizes, random_state=43, shuffle=True, stratify=strata)
        features.append(table.iloc[:, :-1])
        labels.append(ill)
        hospitals += [k] * len(ill)
        training.append(np.isin(np.arange(len(ill)), chosen))
    x = pd.get_dummies(pd.concat(features, ignore_index=True), columns=[2, 6], drop_first=True).to_numpy(float)
    y, hospitals, training = np.concatenate(labels), np.array(hospitals), np.concatenate(training)
    by_hospital = np.zeros_like(x)
    for k in range(4):
        rows = x[training & (hospitals == k)]
        by_hospital[hospitals == k] = (x[hospitals == k] - rows.mean(0)) / (rows.std(0, ddof=1) + 1e-9)
    by_all = (x - x[training].mean(0)) / (x[training].std(0, ddof=1) + 1e-9)
    return by_hospital, by_all, y, hospitals, training


def test_rows_are_those_of_the_benchmark(data_folder):
    by_hospital, by_all, _, hospitals, training = flamby(data_folder)
    train, test = data.fed_heart_disease(scale_test="pooled", seed=43)

    def rows(x):
        """In any order, and with the features in any order."""
        return {tuple(row) for row in np.sort(np.asarray(x, np.float64).round(3) + 0.0)}

    for k in range(4):
        at = hospitals == k
        assert rows(train.client(k)["x"][:, :13]) == rows(by_hospital[at & training])
        assert rows(test.client(k)["x"][:, :13]) == rows(by_all[at & ~training])


def test_the_recipe_is_as_good_as_the_benchmark_s_loop_from_the_same_start(data_folder, tmp_path):
    """From weights of 0; FLamby starts at random ones (docs/results/recipes.md)."""
    by_hospital, by_all, y, hospitals, training = flamby(data_folder)
    generator, w = np.random.default_rng(0), np.zeros(14)
    ones = np.ones((len(y), 1))
    order = {k: np.zeros(0, int) for k in range(4)}
    for _ in range(15):
        change = np.zeros(14)
        for k in range(4):
            x, labels = np.hstack([by_hospital, ones])[training & (hospitals == k)], y[training & (hospitals == k)]
            local = w.copy()
            for _ in range(100):
                order[k] = order[k] if len(order[k]) else generator.permutation(len(labels))
                at, order[k] = order[k][:4], order[k][4:]
                local -= 0.001 * x[at].T @ (1 / (1 + np.exp(-x[at] @ local)) - labels[at]) / len(at)
            change += len(labels) / training.sum() * (local - w)
        w += change
    right = ((np.hstack([by_all, ones]) @ w > 0) == y)[~training].mean()

    config = read_toml("flamby-heart")
    config["methods"] = [each for each in config["methods"] if each["name"] in ("fedavg", "fedadam")]
    config["run"]["seeds"] = 2
    record = execute(build(config), new_folder(tmp_path / "run", "flamby"))
    last = {run.label: run.history["test_accuracy"][-1] for run in record.runs}
    assert abs(last["fedavg"] - right) < 0.015 and 0.77 < last["fedadam"] < 0.805
