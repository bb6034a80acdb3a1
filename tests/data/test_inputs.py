"""Data as people have them: text, skewed numbers, tables in memory, workbooks, LEAF, other libraries' objects."""

import datetime
import json
import pathlib
import sys

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import fedax
from fedax import data
from fedax.cli import app
from fedax.data.tables import read_table
from fedax.errors import ConfigError, DataError
from fedax.experiments.config.experiment import build
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
    assert "used as text: 'note'" in read.overview.about()
    assert data.Transform.from_json(read.transform.to_json()) == read.transform


def test_text_that_is_dropped_says_how_to_use_it():
    read = data.from_frames({"north": with_notes(0), "south": with_notes(1)}, label="ill")
    assert read.transform.dropped["note"].endswith('columns={note="text"} (--column note=text) uses its words')
    names = pd.DataFrame({"age": range(24), "name": [f"N. N. {k}" for k in range(24)], "ill": ["no", "yes"] * 12})
    assert "its words" not in data.from_frames({"north": names}, label="ill").transform.dropped["name"]


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
    plan = data.plan([data.summarize(table, least=1)], label="ill", columns={"note": "text"})
    second = data.summarize(table, plan, least=1)
    assert "note" not in second.counts and second.alone["note"].rows == 25
    assert "pain" not in json.dumps([data.summarize(table, least=1).to_json(), plan.to_json(), second.to_json()])


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


def test_a_label_whose_differences_float32_rounds_is_noted():
    table = costs(0).assign(cost=lambda each: 1e9 + 20 * each["age"])
    (note, *_) = data.from_frames({"north": table, "south": table[::2]}, label="cost").overview.notes
    assert (note.column, note.looks) == ("cost", "constant") and "subtract" in note.why
    table["cost"] -= 1e9
    notes = data.from_frames({"north": table, "south": table[::2]}, label="cost").overview.notes
    assert "constant" not in [each.looks for each in notes]


def test_the_logarithm_needs_numbers_above_0():
    tables = {"north": costs(0), "south": costs(1)}
    tables["south"].loc[7, "cost"] = 0.0
    assert not data.from_frames(tables, label="cost").overview.notes
    with pytest.raises(DataError, match=r"south: label 'cost' has 1 number .*row 7 \(from 0\) is 0\.0"):
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


# ---- one table of all clients


def test_one_table_with_a_column_of_clients():
    table = pd.concat([with_notes(0).assign(site="01"), with_notes(1).assign(site="X9")], ignore_index=True)
    read = data.from_frames(table, label="ill", client="site", drop=["note"])
    assert read.names == ("01", "X9") and read.transform.features == ("age",)
    with pytest.raises(DataError, match="client=COLUMN"):
        data.from_frames(table, label="ill")
    with pytest.raises(DataError, match=r"collect\(\)"):
        data.from_frames(type("LazyFrame", (), {"collect": None})(), label="ill", client="site")


def test_tables_of_pyarrow(tmp_path):
    pa = pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"site": ["a", "b"] * 4, "id": [1582218195625938945, None] * 4, "ill": [0, 1, 1, 0] * 2})
    frame["id"] = frame["id"].astype("Int64")
    table = pa.Table.from_pandas(frame).append_column("dose", pa.array([0.5, 1.0] * 4, pa.float32()))
    read = data.from_frames(table, label="ill", client="site", columns={"id": "category"})
    assert read.names == ("a", "b") and read.transform.classes == ("0", "1")
    assert data.from_frames({"a": table}, label="site").transform.classes == ("a", "b")


def test_a_data_set_of_hugging_face():
    datasets = pytest.importorskip("datasets", reason="Hugging Face's datasets are not installed")
    features = {"site": datasets.Value("string"), "age": datasets.Value("int64")}
    features["ill"] = datasets.ClassLabel(names=["no", "yes"])
    columns = {"site": ["a", "b"] * 20, "age": range(40), "ill": [0, 1, 1, 0] * 10}
    given = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    read = data.from_frames(given.select(range(30)), label="ill", client="site")
    assert read.names == ("a", "b") and read.num_examples == 30 and read.transform.classes == ("no", "yes")
    for other, hint in (
        (datasets.DatasetDict({"train": given}), "train"),
        (given.to_iterable_dataset(), "in memory"),
    ):
        with pytest.raises(DataError, match=hint):
            data.from_frames(other, label="ill", client="site")


# ---- workbooks

DAY = datetime.datetime(2024, 1, 31)
MIXED = [
    ["id", "age", "code", "dose", "seen", "ok", "ill"],
    [7, 61, "007", 1.5, DAY, True, "no"],
    [8, "61,5", 12, 0.1 + 0.2, DAY.replace(hour=12), False, "yes"],
    [9, None, "X9", "#N/A", "2024-02-01", True, "no"],
    [None] * 7,
    [10, 3.0, 12.0, 2, DAY, None, "yes"],
]


@pytest.fixture
def workbook(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")

    def write(rows, name="north.xlsx", change=None):
        book = openpyxl.Workbook()
        for row in rows:
            book.active.append(row)
        if change:
            change(book)
        book.save(tmp_path / name)
        return tmp_path / name

    return write


def test_a_workbook_is_what_its_csv_file_is(workbook, tmp_path):
    table = read_table(workbook(MIXED))
    lines = ["id;age;code;dose;seen;ok;ill", "7;61;007;1.5;2024-01-31;True;no"]
    lines += ["8;61,5;12;0.30000000000000004;2024-01-31 12:00:00;False;yes", "9;;X9;#N/A;2024-02-01;True;no"]
    (tmp_path / "same.csv").write_text("\n".join([*lines, "10;3;12;2;2024-01-31;;yes", ""]))
    expected = read_table(tmp_path / "same.csv")
    options = {"label": "ill", "columns": dict.fromkeys(["code"], "category") | {"dose": "number", "seen": "date"}}
    ours, csvs = (data.from_frames({"north": each}, **options) for each in (table, expected))
    assert ours.transform == csvs.transform and np.array_equal(ours.examples["x"], csvs.examples["x"])
    assert [column.categories for column in ours.transform.columns if column.name == "code"] == [("007", "12", "X9")]


CELLS = ["", "1", "01", "1.0", "1.50", "-0", "1e-05", "12E4", "+3", "1,5", "A", "NA", "TRUE", "2024-01-31", "é", " 7"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(CELLS), min_size=4, max_size=9), st.sampled_from(["number", "category", "text"]))
def test_texts_of_a_workbook_are_those_of_a_csv_file(workbook, tmp_path, texts, kind):
    n = len(texts)
    frame = pd.DataFrame({"c": texts, "k": [str(k) for k in range(n)], "y": ["a", "b"] * 2 + ["a"] * (n - 4)})
    frame.to_csv(tmp_path / "same.csv", index=False, quoting=1)
    rows = workbook([list(frame), *frame.to_numpy().tolist()])
    try:
        expected = data.from_csv(tmp_path / "same.csv", label="y", columns={"c": kind})
    except DataError as error:
        with pytest.raises(DataError, match=str(error).partition(": ")[2][:20].partition("(")[0]):
            data.from_csv(rows, label="y", columns={"c": kind})
        return
    read = data.from_csv(rows, label="y", columns={"c": kind})
    assert read.transform == expected.transform and np.array_equal(read.examples["x"], expected.examples["x"])


def test_workbooks_are_files_of_clients(workbook, tmp_path):
    rows = [["age", "ill"], *([k, "yes" if k % 2 else "no"] for k in range(6))]
    workbook(rows, "north.xlsx")
    workbook(rows, "south.XLSX")
    (tmp_path / "~$north.xlsx").write_text("a lock")
    for files in (tmp_path, tmp_path / "*.xlsx", [tmp_path / "north.xlsx", tmp_path / "south.XLSX"]):
        read = data.from_csv(files, label="ill")
        assert (read.names, read.num_examples) == (("north", "south"), 12)
    transform = data.from_csv(tmp_path, label="ill").transform
    new = pd.DataFrame({"age": [1, 2]})
    assert np.array_equal(transform(read_table(tmp_path / "north.xlsx"))["x"][1:3], transform(new)["x"])


def test_the_first_sheet_is_read_and_said(workbook):
    def more(book):
        book.create_sheet("Codes", 0).sheet_state = "hidden"
        book.create_sheet("Notes").append(["read me"])
        book["Sheet"].title = "Patients"
        book["Patients"]["A2"].number_format = "00000"

    path = workbook([["zip", "ill"], [1067, "no"], ["X9", "yes"], [12345, "no"]], change=more)
    table = read_table(path)
    assert table["zip"].tolist() == ["01067", "X9", "12345"]
    read = data.from_csv(path, label="ill", columns={"zip": "category"})
    assert "the first of 2 sheets, 'Patients'" in "".join(read.overview.lines())


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([["Hospital North"], ["age", "ill"], [1, "no"]], r"column 2 has cells and no name.*titles"),
        ([["age", None, "ill"], [1, 2, "no"]], r"column 2 has cells and no name"),
        ([["age", "age"], [1, 2]], r"two columns are called 'age'"),
        ([["age", "ill"]], r"no rows"),
        ([], r"no rows"),
        ([["age", "ill"], ["=1+1", "no"]], r"A2 is a formula.*open it in Excel"),
        ([["age", "ill"], ["1,234", "no"]], r"1\.234 or 1234; give decimal"),
    ],
)
def test_workbooks_that_are_no_tables(workbook, rows, message):
    with pytest.raises(DataError, match=rf"north\.xlsx: .*{message}"):
        read_table(workbook(rows))


def test_what_is_no_workbook(tmp_path, monkeypatch):
    pytest.importorskip("openpyxl")
    for name, content, message in (
        ("old.xlsx", b"\xd0\xcf\x11\xe0 old", "save it as .xlsx"),
        ("bad.xlsx", b"PK\x03\x04 nothing", "cannot be read as an Excel workbook"),
        ("text.xlsx", b"age,ill\n1,no\n", "cannot be read as an Excel workbook"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=rf"{name}: .*{message}"):
            read_table(tmp_path / name)
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(DataError, match=r"pip install 'fedax\[excel\]'"):
        read_table(tmp_path / "bad.xlsx")


# ---- LEAF


@pytest.fixture
def leaf(tmp_path):
    def write(name, **users):
        content = {"users": [*users], "num_samples": [len(y) for _, y in users.values()]}
        content["user_data"] = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "all_data.json").write_text(json.dumps(content))
        return tmp_path / name

    return write


def test_leaf_of_any_numbers(leaf, tmp_path):
    train = leaf("train", ann=([[0.5, 1], [2, 3]], [1, 0]), bob=([[1, 1]], [2]), none=([], []))
    test = leaf("test", bob=([[4, 4]], [1]))
    given = data.from_leaf(train)
    assert given.names == ("ann", "bob") and given.client(0)["x"].tolist() == [[0.5, 1.0], [2.0, 3.0]]
    assert given.examples["x"].dtype == np.float32 and given.examples["y"].tolist() == [1, 0, 2]
    assert data.from_leaf(train, test)[1].client(0)["x"].tolist() == [[4.0, 4.0]]
    assert data.from_leaf(train / "all_data.json").num_examples == 3
    with pytest.raises(DataError, match=r"give '.*train', and test='.*test'"):
        data.from_leaf(tmp_path)
    read = {"name": "leaf", "path": str(train), "test": str(test)}
    experiment = build({"data": read, "run": {"rounds": 1}, "methods": [{"name": "fedavg", "lr": 0.1}]})
    assert experiment.config["task"]["name"] == "softmax_regression" and experiment.model["classes"] == 3


def test_leaf_of_classes_real_labels_pictures_and_tokens(leaf):
    texts = data.from_leaf(leaf("a", ann=([[1.0]], ["cat"]), bob=([[2.0], [3.0]], ["dog", "ant"])))
    assert texts.transform.classes == ("ant", "cat", "dog") and texts.examples["y"].tolist() == [1, 2, 0]
    real = data.from_leaf(leaf("b", ann=([1.0, 2.0], [1, 2]), bob=([3.0], [0.5])))
    assert real.examples["y"].dtype == np.float32 and real.examples["x"].shape == (3, 1)
    pictures = data.from_leaf(leaf("c", ann=([[[0.1, 0.2], [0.3, 0.4]]], [0])))
    assert pictures.examples["x"].shape == (1, 2, 2)
    tokens = data.from_leaf(leaf("d", ann=([[5, 6, 7]], [[6, 7, 8]])))
    assert (tokens.examples["x"].dtype, tokens.examples["y"].tolist()) == (np.int32, [[6, 7, 8]])


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (["what a day"], [1], r"user 'ann': x is text.*from_frames\(tables"),
        ([[1, 2], [1]], [1, 0], r"different shapes"),
        ([[1, None]], [1], r"neither numbers nor texts"),
        ([[1e39]], [1], r"beyond float32"),
        ([[1.0]], [2**40], r"beyond int32"),
        ([[1.0]], [["a", "b"]], r"several texts"),
    ],
)
def test_leaf_that_cannot_be_read(leaf, x, y, message):
    with pytest.raises(DataError, match=message):
        data.from_leaf(leaf("train", ann=(x, y)))


def test_the_lines_that_make_tables_of_leaf_run(leaf):
    place = leaf("train", ann=(["what a day", "no", "a day"], [1, 0, 1]), bob=(["no day", "well"], [0, 1]))
    with pytest.raises(DataError) as caught:
        data.from_leaf(place)
    lines = str(caught.value).partition("count its words: ")[2].replace("FILE", repr(str(place / "all_data.json")))
    names = {"json": json, "pandas": pd, "pathlib": pathlib, "from_frames": data.from_frames}
    *first, last = lines.split("; ")
    exec("; ".join(first), names)
    assert eval(last, names).transform.columns[0].kind == "text"


# ---- other libraries' objects in place of arrays


class Pairs:
    """What a Dataset of PyTorch is: pairs by their index."""

    def __len__(self):
        return 4

    def __getitem__(self, k):
        if k >= 4:
            raise IndexError(k)
        return np.full((1, 2, 2), k, np.float32), k % 2


class Loader:
    dataset = Pairs()

    def __iter__(self):
        return iter([])


def makers(given):
    return [
        lambda: fedax.FederatedData(given, sizes=[2, 2]),
        lambda: fedax.FederatedData.from_clients([given]),
        lambda: fedax.FederatedData.from_clients({"a": {"x": given, "y": np.zeros(4)}}),
        lambda: fedax.FederatedData.from_partition(given, [[0, 1], [2, 3]]),
    ]


def test_a_data_set_of_pytorch_names_the_lines_that_convert():
    for make in makers(Pairs()):
        with pytest.raises(DataError, match=r"a Pairs, not arrays: x, y =") as caught:
            make()
    first, second, _ = str(caught.value).partition("not arrays: ")[2].split("; ")
    names = {"np": np, "dataset": Pairs()}
    exec(f"{first}\n{second}\nx = np.moveaxis(x, 1, -1)", names)
    assert names["x"].shape == (4, 2, 2, 1)
    assert fedax.FederatedData.from_partition(names["data"], [[0, 1], [2, 3]]).examples["y"].tolist() == [0, 1, 0, 1]
    assert fedax.FederatedData({"y": range(4)}, sizes=[4]).num_examples == 4
    with pytest.raises(DataError, match=r"a Loader; .*\.dataset"):
        fedax.FederatedData(Loader(), sizes=[4])


def test_a_data_set_of_pytorch_itself():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    given = torch.utils.data.TensorDataset(torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]))
    for make in makers(given):
        with pytest.raises(DataError, match="a TensorDataset, not arrays"):
            make()


def test_sparse_matrices_say_what_they_would_take():
    for sparse in (scipy.sparse.csr_matrix((4, 250_000)), scipy.sparse.csr_array((4, 250_000))):
        for make in makers(sparse):
            with pytest.raises(DataError, match=r"sparse csr_(matrix|array) of shape .*toarray\(\), which takes 4 MB"):
                make()
    arrays = {"x": np.eye(4, dtype=np.float32), "y": np.array([0, 1, 0, 1])}
    task = fedax.tasks.softmax_regression(4, classes=2)
    data_ = fedax.FederatedData(arrays, sizes=[4])
    model = fedax.simulate(fedax.create("fedavg", lr=0.1), task, data_, rounds=1).model
    with pytest.raises(DataError, match="sparse"):
        model.predict(scipy.sparse.eye_array(4))


def test_sparse_tables():
    x = scipy.sparse.csr_array(np.eye(6)[:, :3])
    with pytest.raises(DataError, match="from_spmatrix"):
        data.from_frames(x, label="y", client="site")
    table = pd.DataFrame.sparse.from_spmatrix(x).assign(y=["no", "yes"] * 3, site=list("aabbab"))
    dense = pd.DataFrame(x.toarray()).assign(y=["no", "yes"] * 3, site=list("aabbab"))
    first, second = (data.from_frames(each, label="y", client="site") for each in (table, dense))
    assert first.transform == second.transform and np.array_equal(first.examples["x"], second.examples["x"])


def test_tables_in_place_of_arrays():
    pa = pytest.importorskip("pyarrow")
    for make in makers(pa.table({"x": [1.0, 2.0]})):
        with pytest.raises(DataError, match="from_frames"):
            make()
