"""A cell of a table means the same wherever it stands: beside other rows, in other files, in any format."""

import datetime
import decimal
import gzip
import itertools
import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedax import data
from fedax.data import delimited
from fedax.data.cells import cells, text_of
from fedax.data.tables import read_table
from fedax.errors import ConfigError, DataError, DoubtfulWarning


@pytest.fixture
def folder(tmp_path):
    def write(**contents):
        for name, content in contents.items():
            (tmp_path / f"{name}.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
        return tmp_path

    return write


def csv(head, rows, separator=","):
    return "\n".join([head, *(separator.join(map(str, row)) for row in rows)]) + "\n"


def coded(codes, seed):
    rng = np.random.default_rng(seed)
    return csv(
        "code,age,ill", [(rng.choice(codes), rng.integers(20, 80), rng.choice(["no", "yes"])) for _ in range(60)]
    )


# ---- categories, classes and clients


def test_codes_are_one_category_at_all_sites(folder):
    place = folder(a=coded(["01", "02", "03"], 0), b=coded(["01", "02", "X9"], 1))
    for options in ({}, {"columns": {"code": "category"}}):
        read = data.from_csv(place, label="ill", **options)
        assert read.transform.columns[0].categories == ("01", "02", "03", "X9")
        assert read.transform.columns[0].texts == "written"
    tables = {name: read_table(place / f"{name}.csv") for name in "ab"}
    plan = data.plan({name: data.summarize(table, least=1) for name, table in tables.items()}, label="ill")
    assert data.fit(plan, [data.summarize(each, plan, least=1) for each in tables.values()]) == read.transform


def test_a_row_is_the_same_beside_other_rows(folder):
    read = data.from_csv(folder(a=coded(["01", "02", "X9"], 0), b=coded(["01", "03"], 1)), label="ill")
    new = folder(one="code,age\n01,50\n", two="code,age\n01,50\nX9,50\n")
    one, two = (read.transform(read_table(new / f"{name}.csv"))["x"] for name in ("one", "two"))
    assert one[0].tolist() == two[0].tolist() and one[0, 0] == 1


def test_clients_are_called_as_they_are_written(folder):
    with pytest.warns(DoubtfulWarning, match=r"'site': '01', '1', '001' are clients"):
        read = data.from_csv(folder(a="site,x,y\n01,1,a\n1,2,b\n001,3,a\n01,4,b\n"), label="y", client="site")
    assert sorted(read.names) == ["001", "01", "1"]
    place = folder(a="site,x,y\n01,1,a\n02,2,b\n", b="site,x,y\n01,1,a\nX1,4,b\nNA,5,a\n")
    read = data.from_csv(place, label="y", client="site")
    assert read.names == ("01", "02", "NA", "X1") and read.sizes.tolist() == [2, 1, 1, 1]
    place = folder(a="site,x,y\n1,1,a\n2,2,b\n", b="site,x,y\n1.0,1,a\n3.0,4,b\n")  # pandas writes gaps so
    assert data.from_csv(place, label="y", client="site").names == ("1", "2", "3")


def test_long_ids_with_gaps_stay_apart(folder):
    first = 1582218195625938945
    a = csv("user,x,y", [(first, 1, "a"), (first, 2, "b"), (first + 1, 3, "a"), (first + 1, 4, "b")])
    read = data.from_csv(folder(a=a), label="y", client="user")
    assert read.names == (str(first), str(first + 1))
    place = folder(b=csv("x,user,y", [(1.5, first, "a"), ("", first + 1, "b"), (0.5, "1.5", "a")]))
    assert {*data.from_csv(place, label="y", client="user").names} == {str(first), str(first + 1), "1.5"}


def test_long_ids_in_parquet_with_gaps_stay_apart(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    first = 1582218195625938945
    table = pa.table({"user": [first, first + 1, None, first], "x": [1, 2, 3, 4], "y": ["a", "b", "a", "b"]})
    parquet.write_table(table, tmp_path / "a.parquet")
    read = data.from_parquet(tmp_path, label="y", columns={"user": "category"})
    assert read.transform.columns[0].categories == (str(first), str(first + 1)) and read.transform.columns[0].missing


def test_truth_values_and_0_and_1_are_one_where_all_sites_have_them(folder):
    place = folder(a="x,y\n1,True\n2,FALSE\n3,true\n", b="x,y\n1,1\n2,0\n3,1\n")
    read = data.from_csv(place, label="y")
    assert read.transform.classes == ("True", "False") and read.examples["y"].tolist() == [0, 1, 0, 0, 1, 0]
    again = data.from_csv(place, label="y", positive=True)
    assert again.transform.classes == ("False", "True") and again.examples["y"].tolist() == [1, 0, 1, 1, 0, 1]
    place = folder(a="x,y,t\n1,a,True\n2,b,False\n3,a,True\n", b="x,y,t\n1,a,1\n2,b,0\n3,b,1\n")
    read = data.from_csv(place, label="y")
    assert read.transform.features == ("x", "t") and read.transform.columns[1].texts == "truth"
    place = folder(b="x,y,t\n1,a,1\n2,b,0\n3,b,unknown\n")  # not at all sites
    read = data.from_csv(place, label="y", columns={"t": "category"})
    assert read.transform.columns[1].categories == ("0", "1", "False", "True", "unknown")


def test_numbers_beside_codes_are_noted_with_all_spellings(folder):
    rows = [(code, k, "ab"[k % 3 == 0]) for k, code in enumerate(["1", "1.0", "X9", "2"] * 10)]
    read = data.from_csv(folder(a=csv("code,x,y", rows)), label="y", columns={"x": "number"})
    assert read.transform.columns[0].categories == ("1", "1.0", "2", "X9")
    (note,) = [note for note in read.overview.notes if note.looks == "spelling"]
    assert note.column == "code" and "'1', '1.0'" in note.why
    plain = csv("code,x,y", [(code.replace("X9", "9"), *rest) for code, *rest in rows])
    read = data.from_csv(folder(a=plain), label="y", columns={"code": "category"})
    assert read.transform.columns[0].categories == ("1", "2", "9")


def test_types_of_frames_have_one_text_for_each_value():
    moment = datetime.datetime(2024, 1, 31, 12)
    for values, texts in (
        ([1, 2], ["1", "2"]),
        ([1.0, np.nan, 2.5], ["1", "2.5"]),
        (np.array([0.1, 3], np.float32), ["0.1", "3"]),
        ([decimal.Decimal("1.00"), decimal.Decimal("2.50")], ["1", "2.5"]),
        ([True, False], ["True", "False"]),
        ([datetime.date(2024, 1, 31)], ["2024-01-31"]),
        (pd.Series([pd.Timestamp(2024, 1, 31), pd.Timestamp(moment)]), ["2024-01-31", "2024-01-31 12:00:00"]),
        (["2024-01-31T12:00:00Z", "2024-01-31 13:00:00+01:00"], ["2024-01-31 12:00:00"]),
        (["007", " 7 ", "7.50", "1e-5", "Zu\u0308rich"], ["007", "7", "7.50", "1e-05", "Zürich"]),
        (pd.Series([1582218195625938945, None], dtype="Int64"), ["1582218195625938945"]),
    ):
        assert cells(pd.Series(values), "x", "written").texts[0] == texts


def test_instants_are_the_same_with_fractions_of_seconds_in_other_zones():
    texts = ["2024-01-31 12:00:00.123+05:30", "2024-01-31T06:30:00.123Z", "2024-01-31 06:30:00.123", "2024-02-01"]
    texts += ["2024-01-31 12:00:00.123456789+05:30", "2024-01-31 06:30:00.123456789", "2024-01-31 06:30:00.123456"]
    column = cells(pd.Series(texts), "seen", "written")
    assert column.codes.tolist() == [0, 0, 0, 1, 2, 2, 2] and len({*column.days.tolist()}) == 3
    assert column.texts[0] == ["2024-01-31 06:30:00.123000", "2024-02-01", "2024-01-31 06:30:00.123456"]


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+05:00", "9999-12-31 23:59:59-05:00"])
def test_an_instant_outside_of_all_years_is_a_text(text):
    column = cells(pd.Series([text, "2024-01-31"]), "seen", "written")
    assert column.texts[0] == [text, "2024-01-31"] and column.words == 1
    table = pd.DataFrame({"seen": [text, *(f"2024-01-{1 + k % 28:02d}" for k in range(59))], "ill": ["no", "yes"] * 30})
    (note,) = [each for each in data.from_frames({"a": table}, label="ill").overview.notes if each.looks == "unread"]
    assert text in note.why


@pytest.mark.parametrize("kind", ["csv", "parquet", "frame", "xlsx"])
def test_codes_with_leading_zeros_are_categories(tmp_path, kind):
    codes = {"north": ["01067", "01069", "04103"], "south": ["10115", "10117", ""]}  # plain numbers in the south
    frames = {
        site: pd.DataFrame({"zip": three * 20, "dose": [f"0.{k}" for k in range(60)], "y": ["a", "b"] * 30})
        for site, three in codes.items()
    }
    if kind == "frame":
        read = data.from_frames(frames, label="y")
    else:
        for site, frame in frames.items():
            if kind == "xlsx":
                frame.to_excel(tmp_path / f"{site}.xlsx", index=False)
            else:
                getattr(frame, f"to_{kind}")(tmp_path / f"{site}.{kind}", index=False)
        read = (data.from_parquet if kind == "parquet" else data.from_csv)(tmp_path, label="y")
    number, postal = read.transform.columns[1], read.transform.columns[0]
    assert postal.categories == ("01067", "01069", "04103", "10115", "10117") and number.kind == "number"
    of_site, note = [note for note in read.overview.notes if note.column == "zip"]
    assert of_site.looks == "site" and note.looks == "zeros" and 'columns={zip="number"}' in note.why
    read = data.from_frames(frames, label="y", columns={"zip": "number"})
    assert read.transform.columns[0].kind == "number" and "zip" not in {note.column for note in read.overview.notes}


def test_many_codes_with_leading_zeros_identify_rows_and_a_label_of_them_has_classes():
    frame = pd.DataFrame({"who": [f"{7 * k:05d}" for k in range(60)], "x": range(60), "zip": ["01", "02", "3"] * 20})
    read = data.from_frames({"a": frame}, label="zip")
    assert "identify rows" in read.transform.dropped["who"]
    assert 'columns={who="number"}' in read.transform.dropped["who"]
    assert read.transform.classes == ("01", "02", "3")
    read = data.from_frames({"a": frame.assign(zip=[f"{k % 30:02d}" for k in range(60)])}, label="zip")
    assert len(read.transform.classes) == 30
    (note,) = [note for note in read.overview.notes if note.looks == "zeros"]
    assert note.column == "zip" and 'task="regression"' in note.why
    assert data.from_frames({"a": frame}, label="zip", task="regression").transform.classes is None


def test_summaries_of_older_versions_say_nothing_of_leading_zeros():
    first = data.summarize(pd.DataFrame({"zip": ["01", "02"] * 5, "x": range(10)}), least=1).to_json()
    assert first["facts"]["zip"].pop("zeros") is True
    assert "zeros" not in first["facts"]["x"] and "slashes" not in first["facts"]["zip"]
    assert data.plan([data.Summary.from_json(first)]).columns["zip"].kind == "number"


def test_a_date_with_dots_is_the_same_date(folder):
    dotted = [f"{1 + k % 28}.{1 + k % 12}.2024" for k in range(60)]
    iso = [f"2024-{1 + k % 12:02d}-{1 + k % 28:02d}" for k in range(60)]
    rows = {site: zip(days, range(60), "ab" * 30, strict=True) for site, days in {"a": dotted, "b": iso}.items()}
    read = data.from_csv(folder(**{site: csv("seen,x,y", rows[site]) for site in "ab"}), label="y")
    assert read.transform.columns[0].kind == "date"
    assert np.array_equal(read.examples["x"][:60, 0], read.examples["x"][60:, 0])
    texts = ["31.12.2024", "2024-12-31", "31.12.2024 00:00", "1.2.2024 08:30", "31.2.2024", "12.31.2024"]
    column = cells(pd.Series(texts), "seen", "written")
    assert column.texts[0] == ["2024-12-31", "2024-02-01 08:30:00", "31.2.2024", "12.31.2024"] and column.words == 2


def test_categories_of_dates_with_dots_in_old_transforms_are_found():
    from fedax.data.transform import Column, Transform

    transform = Transform((Column("seen", "category", fill="1.2.2024", categories=("1.2.2024", "3.2.2024")),))
    table = pd.DataFrame({"seen": ["3.2.2024", "1.2.2024", None]})
    assert transform(table)["x"].tolist() == [[0, 1], [1, 0], [1, 0]]
    assert [doubt.why for doubt in transform.doubts(table).found] == ["missing"]


def test_dates_with_slashes_are_dropped_with_the_way_out():
    days = [f"{1 + k // 28}/{1 + k % 28}/2024" for k in range(60)]
    read = data.from_frames({"a": pd.DataFrame({"seen": days, "x": range(60), "y": ["a", "b"] * 30})}, label="y")
    assert "2024-01-31" in read.transform.dropped["seen"]


# ---- columns without a name


@pytest.mark.parametrize("ending", ["csv", "xlsx"])
def test_a_column_without_name_is_left_out_where_it_says_nothing(tmp_path, ending):
    frame = pd.DataFrame({"age": [50, 60, 40, 30] * 5, "ill": [0, 1, 1, 0] * 5})
    write = (lambda table, **how: table.to_excel(tmp_path / "a.xlsx", **how)) if ending == "xlsx" else (
        lambda table, **how: table.to_csv(tmp_path / "a.csv", **how)
    )  # fmt: skip
    write(frame)
    read = data.from_csv(tmp_path / f"a.{ending}", label="ill")
    assert read.transform.features == ("age",) and read.num_examples == 20
    assert "index in column 1" in read.overview.lines()[0]
    write(frame[5:])
    with pytest.raises(DataError, match=r"column 1 has cells and no name.*index=False"):
        data.from_csv(tmp_path / f"a.{ending}", label="ill")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("age,ill,\n50,0,\n60,1,\n40,1,\n", "an empty column 3"),
        ('"age","ill",\n"50","0",\n"60","1",\n"40","1",\n', "an empty column 3"),
        ("age,ill,,\n50,0\n60,1\n40,1\n", "an empty column 3, which is left out, having an empty column 4"),
        ("age;;ill\n50;;0\n60;;1\n40;;1\n", "separated by ';', having an empty column 2"),
        ("age,ill\n50,0,\n60,1,\n40,1,\n", None),
    ],
)
def test_commas_at_the_end_of_lines_make_no_column(folder, content, said):
    read = data.from_csv(folder(a=content) / "a.csv", label="ill")
    assert read.transform.features == ("age",) and read.num_examples == 3
    assert [said in line for line in read.overview.read.values()] == ([True] if said else [])


@pytest.mark.parametrize("content", ["age,ill,\n50,0,\n60,1,x\n40,1,\n", ",\n1,2\n", "age,,ill\n1,0,0\n2,1,1\n"])
def test_cells_below_no_name_are_an_error(folder, content):
    with pytest.raises(DataError, match="name"):
        data.from_csv(folder(a=content) / "a.csv", label="ill")


def test_the_index_of_pandas_in_parquet_is_dropped_and_said(tmp_path):
    frame = pd.DataFrame({"age": range(40), "ill": [0, 1] * 20})
    frame.sample(20, random_state=0).to_parquet(tmp_path / "a.parquet")
    frame[:20].reset_index(drop=True).to_parquet(tmp_path / "b.parquet")
    read = data.from_parquet([tmp_path / "a.parquet", tmp_path / "b.parquet"], label="ill", columns={"age": "number"})
    assert read.transform.features == ("age",)
    assert "index of pandas" in read.overview.dropped["__index_level_0__"]
    kept = data.from_parquet(tmp_path / "a.parquet", label="age", columns={"__index_level_0__": "number"})
    assert "__index_level_0__" in kept.transform.features


# ---- what cannot be read is not missing


def test_numbers_with_words_are_numbers(folder):
    def site(seed):
        rng = np.random.default_rng(seed)
        values = rng.integers(100, 400, 80)
        words = ["?", "> 89", "NA", ""]
        return [(words[k % 4] if k % 5 == 0 else v, rng.integers(9), int(v > 250)) for k, v in enumerate(values)]

    read = data.from_csv(folder(a=csv("chol,z,y", site(1)), b=csv("chol,z,y", site(2))), label="y")
    chol = read.transform.columns[0]
    assert (chol.kind, chol.missing, read.transform.dropped) == ("number", True, {})
    seen = next(each for each in read.overview.columns if each.name == "chol")
    assert seen.missing == (4 / 80,) * 3 and seen.unread == (12 / 80,) * 3
    (note,) = [note for note in read.overview.notes if note.looks == "unread"]
    assert "a (15 %), b (15 %)" in note.why and "'?', '> 89', 'NA'" in note.why
    assert "5 %, 15 % unreadable" in str(read.overview)
    assert data.Overview.from_json(read.overview.to_json()) == read.overview


def test_marks_of_missing_values_make_no_categories(folder):
    rows = [("NA" if k % 2 else k % 7, k, "ab"[k % 3 == 0]) for k in range(60)]
    read = data.from_csv(folder(a=csv("score,x,y", rows)), label="y", drop=["x"])
    assert read.transform.features == ("score", "score is missing")


def test_a_label_of_numbers_with_a_word_is_an_error_with_its_row(folder):
    rows = [(k, 1.5 * k) for k in range(50)]
    place = folder(a=csv("x,crp", rows), b=csv("x,crp", [*rows[:7], (7, "<0.5"), *rows[8:]]))
    for task in (None, "regression"):
        with pytest.raises(DataError, match=r"b: label 'crp' .*row 7 \(from 0\) is '<0.5'"):
            data.from_csv(place, label="crp", task=task)
    assert len(data.from_csv(place, label="crp", task="classification").transform.classes) == 51
    read = data.from_csv(folder(a="x,crp\n1,NA\n2,b\n", b="x,crp\n1,NA\n2,None\n"), label="crp")
    assert read.transform.classes == ("NA", "None", "b")


@pytest.mark.parametrize("quoting", [0, 2])
def test_many_numbers_with_a_few_words_are_what_they_are_in_small_files(tmp_path, quoting):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"v": rng.normal(size=3000).round(5), "code": rng.integers(0, 9000, 3000), "y": [0, 1] * 1500})
    frame = frame.astype(object)
    frame.loc[rng.choice(3000, 200, replace=False), "v"] = "NA"
    frame.loc[rng.choice(3000, 100, replace=False), "v"] = ">89"
    frame.loc[rng.choice(3000, 100, replace=False), "v"] = None
    frame.loc[rng.choice(3000, 50, replace=False), "code"] = "007"
    frame.to_csv(tmp_path / "all.csv", index=False, quoting=quoting)
    for k in range(6):
        frame[500 * k : 500 * (k + 1)].to_csv(tmp_path / f"part-{k}.csv", index=False, quoting=quoting)
    whole = data.from_csv(tmp_path / "all.csv", label="y", columns={"code": "category"})
    parts = data.from_csv(tmp_path / "part-*.csv", label="y", columns={"code": "category"})
    assert read_table(tmp_path / "all.csv")["v"].dtype.name == "numbers and words"
    (v, *_), again = whole.transform.columns, parts.transform.columns[0]
    assert (v.mean, v.scale) == pytest.approx((again.mean, again.scale)) and v.missing
    described = {each.name: each for each in whole.overview.columns}
    gaps = (frame["v"].isna().sum(), frame["v"].isin(["NA", ">89"]).sum())
    assert (described["v"].missing[0], described["v"].unread[0]) == tuple(gap / 3000 for gap in gaps)
    assert np.array_equal(parts.transform(read_table(tmp_path / "all.csv"))["x"], parts.examples["x"])
    tables = [read_table(tmp_path / f"{name}.csv") for name in ("all", "part-0")]
    joined = data.from_csv([tmp_path / "all.csv", tmp_path / "part-0.csv"], label="code", client="y", task="regression")
    assert joined.num_examples == sum(map(len, tables))
    (note,) = [note for note in whole.overview.notes if note.looks == "unread"]
    assert "'NA'" in note.why and "'>89'" in note.why
    rows = cells(read_table(tmp_path / "all.csv")["v"], "v", "written")
    texts = [rows.texts[0][code] if code >= 0 else None for code in rows.codes]
    assert texts == [None if v is None else text_of(v) if isinstance(v, float) else v for v in frame["v"]]
    assert (rows.words, rows.marks, rows.odd > 0) == (gaps[1], (frame["v"] == "NA").sum(), True)


def test_many_clients_are_called_as_they_are_written(tmp_path):
    names = [*(f"{k}.5" for k in range(1000)), "0.50", "north"]
    frame = pd.DataFrame({"ward": names, "x": np.arange(len(names)) % 7 / 2, "y": np.arange(len(names)) % 2})
    frame.to_csv(tmp_path / "all.csv", index=False)
    with pytest.warns(DoubtfulWarning, match=r"'0.5', '0.50' are clients of their own"):
        read = data.from_csv(tmp_path / "all.csv", label="y", client="ward")
    assert {*read.names} == {*names}


# ---- how a file is written


def test_decimal_commas_before_an_exponent(folder):
    place = folder(a="x;y\n3,5e-07;no\n2E-05;yes\n-1,25E3;no\n", b="x,y\n3.5e-07,no\n2e-05,yes\n-1250,no\n")
    found = data.from_csv(place, label="y")
    assert found.transform.columns[0].kind == "number"
    np.testing.assert_array_equal(found.client(0)["x"], found.client(1)["x"])


def test_a_site_with_decimal_commas(folder):
    rng = np.random.default_rng(5)
    rows = [(round(x, 1), round(1000 * x, 2), k, "ab"[int(x > 5)]) for k, x in enumerate(rng.normal(5, 2, 60))]
    commas = [[str(cell).replace(".", ",") for cell in row] for row in rows]
    head = "crp,cost,age,y"
    usual = data.from_csv(folder(a=csv(head, rows), c=csv(head, rows)), label="y", drop=["age"])
    place = folder(c=csv(head.replace(",", ";"), commas, ";"))
    mixed = data.from_csv(place, label="y", drop=["age"])
    assert mixed.transform == usual.transform and np.array_equal(mixed.examples["x"], usual.examples["x"])
    assert list(mixed.overview.read.values()) == ["separated by ';', decimals with ','"]
    assert "c.csv" in mixed.overview.lines()[0]
    fixed = data.from_csv(place / "c.csv", label="y", decimal=".", task="classification", drop=["cost"])
    unread = next(each for each in fixed.overview.columns if each.name == "crp").unread  # the option overrules
    assert unread or "crp" not in fixed.transform.features


def test_marks_of_thousands(folder):
    place = folder(
        a="cost;lab;units;y\n" + "".join(f"{k}.{100 + k},5;{k},3;1.{200 + k};{k % 2}\n" for k in range(1, 40))
    )
    expected = [1000 * k + 100 + k + 0.5 for k in range(1, 40)]
    for options in ({}, {"decimal": ","}):
        read = data.from_csv(place, label="y", scale="none", **options)
        assert read.transform.features == ("cost", "lab", "units")
        assert read.examples["x"][:, 0].tolist() == expected
        assert read.examples["x"][:, 2].tolist() == [1200 + k for k in range(1, 40)]
    place = folder(a='cost,y\n"1,234.5",0\n"12,345,678",1\n7.25,0\n')
    assert data.from_csv(place, label="y", scale="none").examples["x"][:, 0].tolist() == [1234.5, 12345678, 7.25]


def test_what_can_be_read_in_two_ways_is_asked_for(folder):
    place = folder(a="cost;y\n1,234;0\n2,345;1\n")
    with pytest.raises(DataError, match=r"'cost' has '1,234', .*--decimal ,.*--decimal \."):
        data.from_csv(place, label="y")
    for sign, first in ((",", 1.234), (".", 1234)):
        read = data.from_csv(place, label="y", decimal=sign, scale="none", columns={"cost": "number"})
        assert read.examples["x"][0, 0] == pytest.approx(first)
    place = folder(a="cost;lab;y\n1,234;1,5;0\n2,345;2,5;1\n")  # another column tells
    assert data.from_csv(place, label="y", scale="none").examples["x"][0].tolist() == pytest.approx([1.234, 1.5])
    assert data.from_csv(folder(a="cost;x;y\n1,234;1;0\n2,345;2;1\n"), label="y", drop=["cost"]).num_examples == 2
    place = folder(a='who;y\n"Smith, 3,5";0\n"1,2 and 3";1\n')  # no numbers
    assert data.from_csv(place, label="y", columns={"who": "category"}).num_examples == 2


@pytest.mark.parametrize(
    ("content", "features", "written"),
    [
        ("ge;ill\n50;0\n60;1\n".encode("utf-16"), ("ge",), "separated by ';', text in UTF-16"),
        ("größe,ill\n50,0\n60,1\n".encode("cp1252"), ("größe",), "text in cp1252"),
        ("größe,ill\n50,0\n60,1\n".encode("utf-8-sig"), ("größe",), ""),
        ("gro\u0308ße,ill\n50,0\n60,1\n", ("größe",), ""),
        ("height, cm\tweight, kg\till\n1\t2\t0\n3\t4\t1\n", ("height, cm", "weight, kg"), "separated by '\\t'"),
        ("a|b|ill\n1|2|0\n3|4|1\n", ("a", "b"), "separated by '|'"),
        ("crp, mg;cost, eur;ill\n1,5;2,5;0\n3,5;4,5;1\n", ("crp, mg", "cost, eur"),
         "separated by ';', decimals with ','"),
        ('"a;b";"c;d";ill\n1;2;0\n3;4;1\n', ("a;b", "c;d"), "separated by ';'"),
        ('"age\n(years)",ill\n50,0\n60,1\n40,0\n', ("age (years)",), ""),
        ("a,b,ill\r\n1,2,0\r\n3,4,1\r\n", ("a", "b"), ""),
        ('"a","b","ill"\n"1","2","0"\n"3","4,5","1"\n', ("a", "b"), "decimals with ','"),
        ('x,z,ill\n1.5,"49,31",0\n2.5,"7,25",1\n', ("x", "z"), "decimals with ',' and '.'"),
        ("x,z,ill\n1.5,49.31,0\n2.5,7.25,1\n", ("x", "z"), ""),
        (gzip.compress(b"a,ill\n1,0\n2,1\n", mtime=0), ("a",), ""),
    ],
)  # fmt: skip
def test_how_a_file_is_written_is_found(folder, content, features, written):
    read = data.from_csv(folder(a=content) / "a.csv", label="ill")
    assert read.transform.features == features and read.transform.classes == ("0", "1")
    assert list(read.overview.read.values()) == ([written] if written else [])


def test_endings_in_upper_case_packed_files_and_hidden_ones(folder):
    place = folder(north="x,y\n1,0\n2,1\n")
    (place / "SOUTH.CSV").write_text("x,y\n1,0\n2,1\n3,1\n")
    (place / "west.csv.gz").write_bytes(gzip.compress(b"x,y\n5,0\n"))
    for name in (".~lock.north.csv", "._north.csv", "~$north.csv"):
        (place / name).write_bytes(b"\0\1")
    assert data.from_csv(place, label="y").names == ("SOUTH", "north", "west")
    assert data.from_csv(place / "*.csv", label="y").names == ("SOUTH", "north")


def test_names_in_both_forms_of_unicode_are_one(folder):
    place = folder(a="Größe,y\n1,0\n2,1\n", b="Gro\u0308ße,y\n1,0\n2,1\n")
    assert data.from_csv(place, label="y").transform.features == ("Größe",)
    place = folder(a="0,1\n0.5,0\n0.7,1\n", b="0,1\n0.5,0\n0.7,1\n")  # a configuration reads 1 as a number
    assert data.from_csv(place, label=1).transform.label.name == "1"
    frame = pd.DataFrame({"Gro\u0308ße": [1, 2], "x": [1, 3], "y": ["a", "b"]})
    assert data.from_frames({"a": frame}, label="y", drop=["Größe"]).transform.features == ("x",)
    assert data.from_frames({"a": frame}, label="y", drop=["Gro\u0308ße"]).transform.features == ("x",)


def test_the_list_of_a_folder_of_hugging_face_holds(tmp_path):
    import pyarrow as pa

    table = pa.table({"x": [1.0, 2.0, 3.0, 4.0], "site": ["a", "b", "a", "b"], "y": [0, 1, 1, 0]})

    def write(file, state=None):
        file.parent.mkdir(parents=True, exist_ok=True)
        with pa.ipc.new_stream(str(file), table.schema) as stream:
            stream.write_table(table)
        if state is not None:
            (file.parent / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in state]}))

    write(tmp_path / "d" / "data-0.arrow", ["data-0.arrow"])
    write(tmp_path / "d" / "cache-77d4.arrow")
    write(tmp_path / "d" / "other.arrow")
    assert data.from_arrow(tmp_path / "d", label="y", client="site").num_examples == 4
    (tmp_path / "d" / "state.json").unlink()
    assert data.from_arrow(tmp_path / "d", label="y", client="site").num_examples == 8
    (tmp_path / "d" / "state.json").write_text('{"_data_files": [{"filename": "../x.arrow"}]}')
    with pytest.raises(DataError, match="outside of its folder"):
        data.from_arrow(tmp_path / "d", label="y")
    for split in ("train", "test", "old"):
        write(tmp_path / "s" / split / "data-0.arrow", ["data-0.arrow"])
    (tmp_path / "s" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(ConfigError, match=r"splits 'train', 'test'.*train'"):
        data.from_arrow(tmp_path / "s", label="y", client="site")
    (tmp_path / "s" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    assert data.from_arrow(tmp_path / "s", label="y", client="site").num_examples == 4


PIECES = st.sampled_from(["a", "1", " ", '"', '""', ",", ";", "\n", "\r\n", "é", " 7", '"b,c"', '"d\n"', "NA"])


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=25).map("".join), st.sampled_from(",;"))
def test_the_fast_parser_of_csv_says_what_the_careful_one_says(body, separator):
    head = f"x{separator}y\n"
    content = f"{head}{body}\n".encode()
    fast = delimited._parsed(content, len(head), ["x", "y"], separator)
    if fast is not None:
        careful = delimited._checked("t.csv", content, ["x", "y"], separator)
        assert fast.equals(careful)


# ---- for any cells

CELLS = st.sampled_from(
    ["", "1", "01", "1.0", "1.50", "-0", "0", "-2.5", "1e-05", "1E5", "12E4", "+3", ".5", "5.", "123456789012345678",
     "1.234567890123456789", "0.00001", "A", "NA", "nan", "None", "True", "FALSE", "true", "2024-01-31",
     "2024-01-31T12:00", "?", "é", "X9", "-", " 7", "00", "-07", "31.1.2024", "31.01.2024",
     "31.2.2024", "31.1.2024 12:00", "1/2/2024"]
)  # fmt: skip
KINDS = ("number", "category", "date", "text")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(CELLS, CELLS), min_size=4, max_size=12), st.sampled_from(KINDS), st.randoms(), st.booleans())
def test_what_a_row_becomes_depends_on_the_plan_and_the_row_alone(tmp_path, rows, kind, random, quoted):
    """Not on the rows beside it, its file, the order of files, or their format."""
    import pyarrow as pa
    from pyarrow import parquet

    frame = pd.DataFrame(
        {"c": [row[0] for row in rows], "d": [row[1] for row in rows], "k": range(len(rows))}, dtype=str
    )
    frame["y"] = [str(k % 2) for k in range(len(rows))]
    try:
        whole = data.from_frames({"a": frame}, label="y", columns={"c": kind, "d": "category", "k": "number"})
    except DataError:  # for instance no number
        return
    transform, x = whole.transform, whole.examples["x"]
    cut, order = random.randrange(1, len(rows)), random.sample(range(len(rows)), len(rows))

    def write(name, part):
        part.to_csv(tmp_path / f"{name}.csv", index=False, quoting=1 if quoted else 0)
        parquet.write_table(pa.Table.from_pandas(part, preserve_index=False), tmp_path / f"{name}.parquet")

    for name, part, at in (
        ("first", frame[:cut], list(range(cut))),
        ("rest", frame[cut:], list(range(cut, len(rows)))),
        ("mixed", frame.iloc[order], order),
        ("one", frame[:1], [0]),
    ):
        write(name, part)
        for ending in ("csv", "parquet"):
            read = transform(read_table(tmp_path / f"{name}.{ending}"))
            assert np.array_equal(read["x"], x[at]) and read["y"].tolist() == [k % 2 for k in at], (name, ending)
    options = {"label": "y", "columns": {"c": kind, "d": "category", "k": "number"}}
    plans = [
        data.from_csv([tmp_path / f"{name}.csv" for name in names], **options).transform
        for names in itertools.permutations(["first", "rest"])
    ]
    assert plans[0] == plans[1]
    assert [column.categories for column in plans[0].columns] == [column.categories for column in transform.columns]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers()), min_size=1, max_size=9))
def test_numbers_and_their_texts_are_the_same_cells(values):
    frame = pd.Series(values, dtype=object)
    for texts in ("written", "numeric"):
        typed, written = cells(frame, "x", texts), cells(pd.Series([str(v) for v in values], dtype=object), "x", texts)
        assert np.array_equal(typed.numbers, written.numbers)
        if texts == "numeric" or all(float(v) % 1 for v in values):
            assert typed.texts[0] == written.texts[0]


def test_a_mark_of_a_missing_value_among_the_labels_is_a_class_that_is_noted():
    table = pd.DataFrame({"age": range(40), "ill": ["yes", "no", "NA", "no"] * 10})
    read = data.from_frames({"north": table, "south": table[table["ill"] != "NA"]}, label="ill")
    assert read.transform.classes == ("NA", "no", "yes")
    (note,) = (each for each in read.overview.notes if each.column == "ill")
    assert note.looks == "unread" and "north (25 %)" in note.why and "south" not in note.why


def test_whole_numbers_that_only_differ_beyond_a_float_s_digits_are_not_all_the_same(folder):
    few, many = [2**53, 2**53 + 1], [10**24 + k for k in range(30)]
    rows = "\n".join(f"{few[k % 2]},{many[k]},{k},{'ab'[k % 3 > 0]}" for k in range(30))
    read = data.from_csv(folder(a=f"insurer,person,x,y\n{rows}\n"), label="y")
    assert read.transform.features[:2] == ("insurer = 9007199254740992", "insurer = 9007199254740993")
    assert "identify rows" in read.transform.dropped["person"]
