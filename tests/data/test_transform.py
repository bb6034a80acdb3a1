"""The transform of a table: fitted from summaries, the same as from pooled rows, and no row leaves a client."""

import json
import math
import re

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fedax import data
from fedax.data.summaries import CELLS, merge
from fedax.errors import ConfigError, DataError


def hospitals(number=7, seed=0, rows=(20, 90)):
    rng = np.random.default_rng(seed)
    results = {}
    for k in range(number):
        n = int(rng.integers(*rows))
        results[f"hospital-{k}"] = pd.DataFrame(
            {
                "patient": [f"P{k}-{i:04d}" for i in range(n)],
                "age": rng.normal(60 + 3 * k, 15, n),
                "crp": np.where(rng.random(n) < 0.2, np.nan, np.exp(rng.normal(2, 1, n))),
                "year": rng.integers(1990, 2024, n),
                "ward": np.where(
                    rng.random(n) < 0.1, None, rng.choice(["A", "B", "C", "D"], n, p=[0.5, 0.3, 0.15, 0.05])
                ),
                "admitted": (pd.Timestamp("2023-01-01") + pd.to_timedelta(rng.integers(0, 500, n), "D")).strftime(
                    "%Y-%m-%d"
                ),
                "smoker": rng.random(n) < 0.3,
                "country": "X",
                "note": np.nan,
                "ill": np.where(rng.random(n) < 0.3, "yes", "no"),
            }
        )
    return results


def fitted(tables, least=1, **options):
    """The transform, and all that passed between clients and server, as text."""
    first = {name: data.summarize(table, least=least) for name, table in tables.items()}
    request = data.plan(first, **options)
    second = {name: data.summarize(table, request, least=least) for name, table in tables.items()}
    passed = [each.to_json() for each in (*first.values(), request, *second.values())]
    return data.fit(request, second), json.dumps(passed)


def column(transform, name):
    (result,) = (each for each in transform.columns if each.name == name)
    return result


def test_federated_is_pooled():
    tables = hospitals()
    pooled = pd.concat(tables.values())
    transform, _ = fitted(tables, label="ill")
    assert transform.classes == ("no", "yes")
    for name in ("age", "crp", "year", "smoker"):
        scaler = StandardScaler().fit(pooled[[name]].astype(float))
        assert column(transform, name).mean == pytest.approx(scaler.mean_[0], rel=1e-12)
        assert column(transform, name).scale == pytest.approx(scaler.scale_[0], rel=1e-12)
        assert column(transform, name).missing == pooled[name].isna().any()
    median = column(transform, "crp").fill
    assert abs(median - pooled["crp"].median()) <= pooled["crp"].std(ddof=0) / 250
    ward = column(transform, "ward")
    counts = pooled["ward"].value_counts()
    assert ward.categories == tuple(sorted(counts.index)) and ward.fill == counts.index[0] and ward.missing
    assert set(transform.dropped) == {"patient", "country", "note"}
    # The arrays are those of scikit-learn on the pooled rows.
    x, y = (np.concatenate([transform(table)[key] for table in tables.values()]) for key in "xy")
    names = list(transform.features)
    wards = OneHotEncoder(sparse_output=False).fit_transform(pooled[["ward"]].fillna(ward.fill))
    np.testing.assert_allclose(x[:, [names.index(f"ward = {c}") for c in "ABCD"]], wards)
    numbers = pooled[["age", "crp"]].fillna({"crp": median})
    scaled = (numbers - [pooled["age"].mean(), pooled["crp"].mean()]) / pooled[["age", "crp"]].std(ddof=0).to_numpy()
    np.testing.assert_allclose(x[:, [names.index("age"), names.index("crp")]], scaled, rtol=1e-5, atol=1e-6)
    assert np.array_equal(x[:, names.index("crp is missing")], pooled["crp"].isna())
    assert np.array_equal(y, pooled["ill"] == "yes") and y.dtype == np.int32 and x.dtype == np.float32
    days = (pd.to_datetime(pooled["admitted"]) - pd.Timestamp(0)).dt.days
    np.testing.assert_allclose(x[:, names.index("admitted")], (days - days.mean()) / days.std(ddof=0), atol=1e-5)
    angle = 2 * np.pi * days / 365.2425
    np.testing.assert_allclose(x[:, names.index("admitted (sine of the year)")], np.sin(angle), atol=1e-5)


def test_how_rows_are_dealt_does_not_matter():
    whole = pd.concat(hospitals(4).values(), ignore_index=True)
    one, _ = fitted({"all": whole}, label="ill")
    many, _ = fitted({str(k): part.reset_index(drop=True) for k, part in whole.groupby(whole.index % 5)}, label="ill")
    assert one.features == many.features
    filled = np.zeros((len(whole), len(one.features)), bool)  # by a median, which bins of each client tell
    filled[:, one.features.index("crp")] = whole["crp"].isna()
    np.testing.assert_allclose(one.apply(whole)[~filled], many.apply(whole)[~filled], atol=1e-5)
    np.testing.assert_allclose(one.apply(whole)[filled], many.apply(whole)[filled], atol=1 / 125)


def test_the_median_is_within_its_bound():
    rng = np.random.default_rng(1)
    for values in (
        rng.normal(size=301),
        np.exp(3 * rng.normal(size=400)),
        np.array([0.0, 1.0] * 50),
        rng.integers(0, 3, 99),
    ):
        values = 1e6 + np.concatenate([values, [np.nan]])
        transform, _ = fitted({"a": pd.DataFrame({"v": values[::2]}), "b": pd.DataFrame({"v": values[1::2]})})
        assert abs(transform.columns[0].fill - np.nanmedian(values)) <= np.nanstd(values) / 250


def test_no_row_leaves_a_client():
    tables = hospitals()
    tables["hospital-0"]["age"] = tables["hospital-0"]["age"].round(7)  # numbers that tell who they are
    transform, passed = fitted(tables, least=5, label="ill")
    numbers = {float(each) for each in re.findall(r"-?\d+\.?\d*(?:e[+-]\d+)?", passed)}
    for table in tables.values():
        for name in ("patient", "admitted"):
            assert not any(f'"{value}' in passed for value in table[name])
        for name in ("age", "crp"):
            assert not any(value in numbers for value in table[name].dropna())
    assert "P0-0001" not in json.dumps(transform.to_json())


def test_ids_of_few_rows_do_not_leave():
    few = {k: pd.DataFrame({"patient": [f"P{k}-{i}" for i in range(4)], "ward": list("AABB")}) for k in "abc"}
    transform, passed = fitted(few)
    assert "Pa-" not in passed and list(transform.dropped) == ["patient"]
    assert transform.features == ("ward = A", "ward = B")


def test_repeated_ids_do_not_leave_either():
    visits = {k: pd.DataFrame({"patient": [f"P{k}-{i // 2}" for i in range(80)], "age": np.arange(80.0)}) for k in "ab"}
    transform, passed = fitted(visits)
    assert "Pa-" not in passed and "rows" in transform.dropped["patient"]
    kept, passed = fitted(visits, columns={"patient": "category"}, max_categories=5)  # the owner said so
    assert "Pa-" in passed and len(kept.columns[0].categories) == 5 and kept.columns[0].other


def test_a_summary_does_not_grow_with_the_rows():
    sizes = []
    for rows in (2_000, 40_000):
        rng = np.random.default_rng(0)
        frame = pd.DataFrame({"x": rng.normal(size=rows), "t": rng.integers(0, 10**9, rows).astype(str)})
        frame["t"] = "t" + frame["t"]
        frame.loc[0, "x"] = np.nan
        first = data.summarize(frame, least=1)
        request = data.plan([first], columns={"t": "category"})
        second = data.summarize(frame, request, least=1)
        assert len(second.counts["x"].bins) < CELLS and len(second.counts["t"].by_text) == 1000
        sizes.append(len(json.dumps(first.to_json())) + len(json.dumps(second.to_json())))
    assert max(sizes) < 50_000


def test_moments_of_parts_are_those_of_the_whole():
    rng = np.random.default_rng(2)
    parts = [1e8 + rng.normal(size=n) for n in (1, 5, 300)]
    n, mean, m2 = merge([(len(each), each.mean(), np.square(each - each.mean()).sum()) for each in parts])
    pooled = np.concatenate(parts)
    assert (n, mean) == (306, pytest.approx(pooled.mean(), rel=1e-14)) and m2 / n == pytest.approx(
        pooled.var(), rel=1e-6
    )


def test_cells_are_read_as_what_they_are():
    frame = pd.DataFrame(
        {
            "spaced": [" 12 ", "13", "7.5", None],
            "mostly": ["1", "2", "3", "unknown"],
            "inf": [1.0, np.inf, -np.inf, 3.0],
            "commas": ["1,234", "5", "1,234", "5"],
            "zeros": ["007", "7", "007", "7"],
            "moment": ["2024-01-01T12:00:00Z", "2024-01-02", "", None],
            "gap": ["x", None, None, "x"],
            "truth": [True, False, None, True],
        }
    )
    frame = pd.concat(
        [frame] * 3 + [pd.DataFrame({"mostly": ["4"] * 30}).reindex(columns=frame.columns)], ignore_index=True
    )
    transform, _ = fitted({"a": frame}, columns={"zeros": "category"})
    kinds = {each.name: each.kind for each in transform.columns}
    assert kinds == {
        "spaced": "number", "mostly": "number", "inf": "number", "commas": "category", "zeros": "category",
        "moment": "date", "gap": "flag", "truth": "number",
    }  # fmt: skip
    assert column(transform, "spaced").mean == pytest.approx((12 + 13 + 7.5) / 3)
    assert column(transform, "inf").mean == 2 and column(transform, "inf").missing
    assert column(transform, "zeros").categories == ("007", "7")
    assert column(transform, "moment").mean == pytest.approx(19723.75)  # 2024-01-01 is day 19723
    assert transform.columns[kinds_index(transform, "gap")].features == ["gap is missing"]
    x = transform.apply(frame)
    assert np.isfinite(x).all() and x[3, list(transform.features).index("mostly is missing")] == 1


def kinds_index(transform, name):
    return [each.name for each in transform.columns].index(name)


def test_unknown_categories_are_zeros_or_the_others():
    frame = pd.DataFrame({"w": list("aaabbbc" * 5)})
    few, _ = fitted({"a": frame}, max_categories=2)
    all_, _ = fitted({"a": frame})
    new = pd.DataFrame({"w": ["c", "z", None, "b"]})
    assert few.features == ("w = a", "w = b", "w = other") and all_.features == ("w = a", "w = b", "w = c")
    assert few.apply(new).tolist() == [[0, 0, 1], [0, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert all_.apply(new).tolist() == [[0, 0, 1], [0, 0, 0], [0, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize(
    ("labels", "task", "classes"),
    [
        (["b", "a", "b"], None, ("b", "a")),  # of two the rarer one is last
        (["b", "a", "b", "a"], None, ("a", "b")),
        (["b", "a", "b", "c"], None, ("a", "b", "c")),
        ([2, 10, 2], None, ("2", "10")),
        ([True, False, True], None, ("True", "False")),
        ([0.5, 1.0, 2.0], None, None),
        ([2, 10, 2], "regression", None),
        (list(range(30)), None, None),
    ],
)
def test_labels(labels, task, classes):
    """Classes in the order of their numbers; of two the positive one is last."""
    frame = pd.DataFrame({"x": np.arange(len(labels)), "y": labels})
    transform, _ = fitted({"a": frame}, label="y", task=task)
    assert transform.classes == classes
    result = transform(frame)["y"]
    assert result.dtype == (np.float32 if classes is None else np.int32)
    back = result.tolist() if classes is None else [classes[k] for k in result]
    assert back == (list(map(float, labels)) if classes is None else list(map(str, labels)))
    assert "y" not in transform(frame.drop(columns="y"))


def test_the_positive_class_is_the_rarer_one_of_all_clients_unless_it_is_said():
    tables = {"a": pd.DataFrame({"x": range(3), "y": [0, 1, 1]}), "b": pd.DataFrame({"x": range(4), "y": [0.0] * 4})}
    transform, _ = fitted(tables, label="y")
    assert transform.classes == ("0", "1") and transform.label.positive == "1"  # not the rarer one at a
    for said in (0, 0.0, "0", "0.0"):
        transform, _ = fitted(tables, label="y", positive=said)
        assert transform.classes == ("1", "0") and transform.label.positive == "0"
        assert data.Transform.from_json(transform.to_json()) == transform
    frames = data.from_frames(tables, label="y", positive=0)
    assert frames.transform == transform and frames.examples["y"].tolist() == [1, 0, 0, 1, 1, 1, 1]
    agreed = data.plan({name: data.summarize(table, least=1) for name, table in tables.items()}, label="y", positive=0)
    assert data.Plan.from_json(agreed.to_json()) == agreed and agreed.positive == "0"
    assert "positive" not in data.plan({"a": data.summarize(tables["a"], least=1)}, label="y").to_json()
    of_three = {"a": pd.DataFrame({"x": range(3), "y": list("abc")})}
    for given, said, task, match in [
        (tables, "yes", None, "positive = 'yes': the classes of 'y' are '0', '1'"),
        (of_three, "a", None, "positive = 'a': the classes of 'y' are 'a', 'b', 'c'; this is for two"),
        (tables, 1, "regression", "positive = 1: this is for a label of two classes"),
        (tables, ["0"], None, "positive = .*give the text"),
    ]:
        with pytest.raises(ConfigError, match=match):
            data.from_frames(given, label="y", task=task, positive=said)
    with pytest.raises(ConfigError, match=r"positive = '0': the transform that is given has it"):
        data.from_frames(tables, transform=transform, positive="0")


def test_it_is_a_file(tmp_path):
    transform, _ = fitted(hospitals(3), label="ill")
    transform.save(tmp_path / "t.json")
    assert data.Transform.load(tmp_path / "t.json") == transform
    from fedax.data import Column, Label, Transform  # noqa: F401  (the names that its repr has)

    assert eval(repr(transform)) == transform
    held = data.FederatedData({"x": np.zeros((2, 1))}, sizes=[1, 1], transform=transform)
    held.save(tmp_path / "d")
    assert data.FederatedData.open(tmp_path / "d").transform == transform
    assert held.with_weights([0.1, 0.9]).transform is transform


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t | {"fedax": "plan"}, "no transform"),
        (lambda t: t | {"more": 1}, "more"),
        (lambda t: t | {"columns": [{"name": "a", "kind": "code"}]}, "kind"),
        (lambda t: t | {"columns": [{"name": "a", "kind": "number", "scale": 0.0}]}, "scale above 0"),
        (lambda t: t | {"columns": [{"name": "a", "kind": "number", "mean": "0"}]}, "mean"),
        (lambda t: t | {"columns": [{"name": "a", "kind": "category"}]}, "needs categories"),
        (lambda t: t | {"columns": t["columns"] * 2}, "occurs twice"),
        (lambda t: [t], "no transform"),
        (lambda t: t | {"label": {"name": "y", "classes": ["a"]}}, "two classes"),
    ],
)
def test_other_files_are_refused(tmp_path, change, message):
    transform = data.Transform((data.Column("a", "number", 1.0, 2.0),), data.Label("y", ("n", "j")))
    (tmp_path / "t.json").write_text(json.dumps(change(transform.to_json())))
    with pytest.raises(DataError, match=message) as caught:
        data.Transform.load(tmp_path / "t.json")
    assert str(tmp_path) in str(caught.value)


FRAME = pd.DataFrame({"age": [40.0, 50.0, 60.0], "ward": ["A", "A", "B"], "ill": ["no", "yes", "no"]})


@pytest.mark.parametrize(
    ("tables", "options", "message"),
    [
        ({"a": FRAME}, {"label": "il"}, "label: .*column 'il'. did you mean 'ill'"),
        ({"a": FRAME}, {"columns": {"agee": "drop"}}, "columns.agee: .*did you mean 'age'"),
        ({"a": FRAME}, {"drop": ["age, ward"]}, "drop: .*'age, ward'. these are 2: name each by itself"),
        ({"a": FRAME}, {"columns": {"age": "numeric"}}, "columns.age = 'numeric': .*number, category"),
        ({"a": FRAME}, {"task": "ranking"}, "task = 'ranking'"),
        ({"a": FRAME}, {"scale": "minmax"}, "scale = 'minmax'"),
        ({"a": FRAME}, {"max_categories": 0}, "max_categories = 0"),
        ({"a": FRAME, "b": FRAME.drop(columns="age")}, {}, "b: it has no column 'age', which a has"),
        ({"a": FRAME, "b": FRAME.iloc[:0]}, {}, "b: its table has no rows"),
        ({"a": FRAME[["ill"]]}, {"label": "ill"}, "none is left"),
        ({"a": FRAME.assign(ill="no")}, {"label": "ill"}, "one class only, 'no'"),
        (
            {"a": FRAME, "b": FRAME.assign(ill=[None, "no", "yes"])},
            {"label": "ill"},
            "b: label 'ill' is missing .* 1 of 3",
        ),
        ({"a": FRAME}, {"label": "ill", "task": "regression"}, "no number in 3 of 3 rows|missing or no number"),
        ({"a": FRAME.assign(age=[[1], [2], [3]])}, {}, "column 'age': it holds lists"),
        ({"a": [1, 2]}, {}, "give a DataFrame"),
        ({}, {}, "there is none"),
    ],
)
def test_what_cannot_be_fitted(tables, options, message):
    with pytest.raises((ConfigError, DataError), match=message):
        fitted(tables, **options)


def test_summaries_of_another_plan_are_refused():
    first = data.summarize(FRAME, least=1)
    request = data.plan([first], label="ill")
    with pytest.raises(DataError, match="client 0: a summary of the other exchange"):
        data.fit(request, [first])
    with pytest.raises(DataError, match="client 0: its summary answers another plan"):
        data.fit(request, [data.summarize(FRAME, data.plan([first], label="ill", columns={"ward": "drop"}), least=1)])


def test_applied_to_other_tables():
    transform, _ = fitted({"a": FRAME}, label="ill")
    with pytest.raises(DataError, match="column: there is no column 'ward'"):
        transform.apply(FRAME.drop(columns="ward"))
    with pytest.raises(DataError, match=r"row 1 \(from 0\) is 'maybe'; .*'no', 'yes'"):
        transform(FRAME.assign(ill=["no", "maybe", "yes"]))
    with pytest.raises(DataError, match=r"row 2 \(from 0\) is missing"):
        transform(FRAME.assign(ill=["no", "yes", None]))
    assert np.array_equal(transform.apply(FRAME[["ward", "age"]].assign(more=1)), transform(FRAME)["x"])
    huge = transform.apply(FRAME.assign(age=[np.inf, -1e38, 50]))  # the first counts as missing
    assert np.isfinite(huge).all() and huge[0, 0] == 0


def test_polars_and_pandas_give_the_same():
    polars = pytest.importorskip("polars")
    tables = hospitals(2)
    for table in tables.values():
        table["admitted"] = pd.to_datetime(table["admitted"])
    others = {
        name: polars.DataFrame({c: [None if v is None or v != v else v for v in table[c].tolist()] for c in table})
        for name, table in tables.items()
    }
    one, two = (data.from_frames(each, label="ill", columns={"note": "drop"}) for each in (tables, others))
    assert one.transform == two.transform and np.array_equal(one.examples["x"], two.examples["x"])


def test_nullable_types_and_categoricals():
    frame = pd.DataFrame(
        {
            "i": pd.array([1, None, 3, 5], dtype="Int64"),
            "b": pd.array([True, None, False, True], dtype="boolean"),
            "c": pd.Categorical(["u", "v", None, "u"]),
            "d": pd.to_datetime(["2024-01-01", "2024-01-03", None, "2024-01-05"], utc=True),
        }
    )
    transform, _ = fitted({"a": frame})
    assert [each.kind for each in transform.columns] == ["number", "number", "category", "date"]
    assert all(each.missing for each in transform.columns) and math.isclose(transform.columns[0].mean, 3)


def test_a_summary_that_answers_a_plan_of_other_bins_is_refused():
    """The same columns are asked for; only the numbers in the plan tell."""
    table = pd.DataFrame({"age": [40.0, 60.0, np.nan], "ill": ["no", "yes", "no"]})
    request, other = (
        data.plan([data.summarize(each, least=1)], label="ill") for each in (table, table.assign(age=[1, 2, None]))
    )
    assert request.columns.keys() == other.columns.keys() and request.digest != other.digest
    with pytest.raises(DataError, match="client 0: its summary answers another plan"):
        data.fit(request, [data.summarize(table, other, least=1)])


def test_a_digest_is_of_the_content(tmp_path):
    transform, _ = fitted({"a": FRAME}, label="ill")
    transform.save(tmp_path / "transform.json")
    assert data.Transform.load(tmp_path / "transform.json").digest == transform.digest
    whole, real = (data.Transform((data.Column("age", "number", mean=mean),)) for mean in (50, 50.0))
    assert whole.digest == real.digest != data.Transform((data.Column("age", "number", mean=51.0),)).digest
    assert (tmp_path / "transform.json").read_text().count("\n") > len(transform.columns)  # a line each


def test_columns_are_dropped_by_name():
    transform, _ = fitted({"a": FRAME}, label="ill", drop=["age"])
    assert transform.dropped["age"] == "you said so" and "age" not in transform.features
    for drop, message in (("age", "drop = 'age': give a list"), (["agee"], "drop: there is no column 'agee'")):
        with pytest.raises((ConfigError, DataError), match=message):
            fitted({"a": FRAME}, label="ill", drop=drop)
    with pytest.raises(ConfigError, match=r"columns.age = 'number': drop names"):
        fitted({"a": FRAME}, label="ill", drop=["age"], columns={"age": "number"})
