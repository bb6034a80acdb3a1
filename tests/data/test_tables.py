"""Readers of clients' own tables and pictures: their results, and one clear error for each bad file."""

import datetime
import gzip
import io
import json
import os
import pathlib

import numpy as np
import pandas as pd
import pytest

import fedax
from fedax import data
from fedax.data import hdf5
from fedax.data import tables as tables_
from fedax.data.hdf5_reading import read
from fedax.errors import ConfigError, DataError, DoubtfulWarning
from fedax.experiments import build, override
from fedax.experiments.defaults import comparison, usual_task
from fedax.federation.census import Census

NORTH = "age;ward;ill\n40;A;no\n60;A;yes\n 50 ;B;no\n"
SOUTH = "age,ward,ill\n80,B,no\n,A,no\n70,A,yes\n"


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(**contents):
        for name, content in contents.items():
            path = tmp_path / "hospitals" / f"{name}.csv"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return write


def test_files_are_clients(files):
    files(south=SOUTH, north=NORTH, east=b"\xef\xbb\xbf" + SOUTH.replace(",", "\t").encode())
    federated = data.from_csv("hospitals/*.csv", label="ill")
    assert federated.names == ("east", "north", "south") and federated.sizes.tolist() == [3, 3, 3]
    assert federated.transform.features == ("age", "age is missing", "ward = A", "ward = B")
    assert federated.transform.columns[0].mean == pytest.approx((80 + 70 + 40 + 60 + 50 + 80 + 70) / 7)
    assert federated.client(1)["y"].tolist() == [0, 1, 0] and federated.client(1)["x"][:, 2].tolist() == [1, 1, 0]
    for given in ("hospitals", ["hospitals/east.csv", "hospitals/north.csv", "hospitals/south.csv"]):
        again = data.from_csv(given, label="ill")
        assert np.array_equal(again.examples["x"], federated.examples["x"]) and again.names == federated.names
    federated.transform.save("transform.json")
    files(west="ward,age\nA,60\nZ,\n")
    new = data.from_csv("hospitals/west.csv", transform="transform.json")
    assert list(new.examples) == ["x"] and new.examples["x"][1].tolist()[1:] == [1, 0, 0]


def test_what_a_list_names_beside_a_folder_is_not_missed(files, tmp_path):
    files(north=NORTH)
    (tmp_path / "hospitals" / "south.tsv").write_text(SOUTH.replace(",", "\t"))
    with pytest.warns(DoubtfulWarning, match=r"not read: 'south\.tsv'"):
        assert data.from_csv("hospitals", label="ill").names == ("north",)
    named = data.from_csv(["hospitals", "hospitals/south.tsv"], label="ill")  # without a warning
    assert named.names == ("north", "south")


def test_a_column_says_whose_each_row_is(files):
    files(one="site,age,ill\nb-10,1,0\nb-2,2,1\nb-10,3,1\n", two="age,site,ill\n9,b-2,0\n8,c,1\n7,c,0\n")
    federated = data.from_csv("hospitals/*.csv", label="ill", client="site")
    assert federated.names == ("b-2", "b-10", "c") and federated.sizes.tolist() == [2, 2, 2]
    assert federated.transform.features == ("age",) and federated.client(0)["y"].tolist() == [1, 0]
    with pytest.raises(DataError, match=r"client: .*'sit'\. did you mean 'site'"):
        data.from_csv("hospitals/one.csv", label="ill", client="sit")
    files(two="age,site,ill\n9,,0\n")
    with pytest.raises(DataError, match=r"two: column 'site', row 0 \(from 0\) does not say"):
        data.from_csv("hospitals/*.csv", label="ill", client="site")


def test_files_of_one_name_are_called_by_their_folders(files, tmp_path):
    for name in ("h2", "h10"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.csv").write_text(SOUTH)
    assert data.from_csv("*/rows.csv", label="ill").names == ("h2", "h10")
    with pytest.raises(ConfigError, match="given twice"):
        data.from_csv(["h2/rows.csv", "h2/rows.csv"], label="ill")


def test_decimal_commas_and_other_encodings(files):
    files(a="größe;art;y\n1,5;ä;0,5\n2,5;ö;1,5\n3;ä;2\nunbekannt;ö;1,25\n".encode("latin-1") + b"4;\xe4;1\n" * 20)
    federated = data.from_csv("hospitals/a.csv", label="y", decimal=",", encoding="latin-1", task="regression")
    assert federated.transform.features[0] == "größe" and federated.examples["y"][:4].tolist() == [0.5, 1.5, 2.0, 1.25]
    assert federated.transform.columns[0].mean == pytest.approx((1.5 + 2.5 + 3 + 80) / 23)
    found = data.from_csv("hospitals/a.csv", label="y", task="regression")
    assert found.transform == federated.transform and np.array_equal(found.examples["x"], federated.examples["x"])
    with pytest.raises(DataError, match=r"a.csv: .*utf-8 .*encoding='latin-1'"):
        data.from_csv("hospitals/a.csv", label="y", encoding="utf-8")


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (SOUTH, {"label": "il"}, r"north: label: .*'il'\. did you mean 'ill'"),
        (SOUTH, {}, "label = None: this is missing"),
        (b"", {"label": "ill"}, "south.csv: the file is empty"),
        ("age,ward,ill\n", {"label": "ill"}, "south.csv: it has no rows"),
        ("\n", {"label": "ill"}, "south.csv: it has no rows"),
        (b"\xef\xbb\xbf", {"label": "ill"}, "south.csv: it has no rows"),
        ("age,age,ill\n1,2,0\n", {"label": "ill"}, "two columns are called 'age'"),
        ("age,,ill\n1,2,0\n", {"label": "ill"}, "column 2 has cells and no name"),
        ("age,ill\n1,2,3\n1,2\n", {"label": "ill"}, "south.csv: line 2 has 3 of 2 cells"),
        ("age,ill\n1,0\n1,2,3\n", {"label": "ill"}, "south.csv: line 3 has 3 of 2 cells"),
        ("age,ward,ill\n1,A,no\n2,B,\n", {"label": "ill"}, "south: label 'ill' .*1 of its 2 rows, first in row 1"),
        ("age,ward,ill\n1,A,\n2,B,\n", {"label": "ill"}, "south: label 'ill' is missing in all 2 rows"),
        ("age,ill\n1,0\n", {"label": "ill"}, "has no column 'ward', which"),
        (SOUTH, {"label": "ill", "decimal": ";"}, "decimal = ';'"),
        (SOUTH, {"label": "ill", "encoding": "utf-99"}, "encoding = 'utf-99'"),
        (SOUTH, {"label": "ward", "columns": {"ill": "drop", "age": "drop"}}, "columns: none is left"),
        (SOUTH.replace("yes", "no"), {"label": "ill", "columns": {"age": "number"}, "files": "hospitals/south.csv"},
         "label 'ill': one class only, 'no'"),
    ],
)  # fmt: skip
def test_errors_name_file_and_way_out(files, content, options, message):
    files(north=NORTH, south=content)
    given = dict(options)
    with pytest.raises((ConfigError, DataError), match=message):
        data.from_csv(given.pop("files", "hospitals/*.csv"), **given)


def test_no_file():
    for given, message in (
        ("nowhere/*.csv", "files = 'nowhere/.*no file fits"),
        ("nowhere.csv", "there is no such file"),
        ([], "files = .*give a pattern"),
    ):
        with pytest.raises(ConfigError, match=message):
            data.from_csv(given, label="y")


def test_rows_without_a_label_can_be_left_out(files):
    files(north=NORTH, south="age,ward,ill\n1,A,no\n2,B,\n3,A,yes\n")
    federated = data.from_csv("hospitals/*.csv", label="ill", drop_missing_labels=True)
    assert federated.sizes.tolist() == [3, 2] and federated.client(1)["y"].tolist() == [0, 1]
    files(one="site,age,ill\nq,1,no\np,2,yes\nq,3,\nq,4,no\n")
    with pytest.raises(DataError, match=r"q: label 'ill' is missing in 1 of its 3 rows, first in row 1 \(from 0\)"):
        data.from_csv("hospitals/one.csv", label="ill", client="site")
    with pytest.raises(ConfigError, match=r"columns = .*transform that is given"):
        data.from_frames({"a": pd.DataFrame({"age": [1]})}, columns={"age": "number"}, transform=federated.transform)


# ---- in a configuration

RUN = {"run": {"rounds": 2, "batch_size": 2}, "methods": [{"name": "fedavg", "lr": 0.1}]}


def test_in_a_configuration(files):
    files(north=NORTH * 1, south=SOUTH)
    given = {"name": "csv", "files": "hospitals/*.csv", "label": "ill", "columns": {"ward": "category"}}
    experiment = build(RUN | {"data": given})
    assert experiment.classes == ["no", "yes"] and experiment.config["task"]["name"] == "softmax_regression"
    assert (
        experiment.model["features"] == 4
        and experiment.model["classes"] == 2
        and experiment.data.names == ("north", "south")
    )
    assert build(experiment.config).config == experiment.config
    regression = build(RUN | {"data": given | {"label": "age", "task": "regression", "drop_missing_labels": True}})
    assert regression.classes is None and regression.config["task"]["name"] == "linear_regression"
    with pytest.raises(ConfigError, match=r"not fit csv; try 'linear_regression'"):
        build(regression.config | {"task": {"name": "softmax_regression"}})
    with pytest.raises(ConfigError, match=r"data\.label = None: this is missing"):
        build(RUN | {"data": {"name": "csv", "files": "hospitals/*.csv"}})
    with pytest.raises(ConfigError, match=r"data\.fles"):
        build(RUN | {"data": given | {"fles": 1}})


def test_classes_that_no_training_example_has_still_count(files):
    files(north=NORTH, south=SOUTH)
    held = data.from_csv("hospitals/*.csv", label="ill")
    rows = np.flatnonzero(held.examples["y"] == 0)
    only = data.FederatedData({k: v[rows] for k, v in held.examples.items()}, [len(rows)], transform=held.transform)
    only.save("only")
    experiment = build(RUN | {"data": {"name": "folder", "path": "only"}})
    assert experiment.model["classes"] == 2 and experiment.classes == ["no", "yes"]


def test_the_hospitals_story(files, tmp_path):
    rng = np.random.default_rng(0)
    for k in range(4):
        age, ward = rng.normal(60, 15, 80), rng.choice(["A", "B"], 80)
        ill = np.where(rng.random(80) < 1 / (1 + np.exp(-(age - 75) / 8)), "yes", "no")
        table = pd.DataFrame({"age": np.where(rng.random(80) < 0.1, np.nan, age), "ward": ward, "ill": ill})
        files(**{f"hospital-{k}": table.to_csv(index=False)})
    config = comparison("csv", ["fedavg"])
    for setting in ("data.files=hospitals/*.csv", "data.label=ill", "run.rounds=5", "run.seeds=1"):
        override(config, setting)
    experiment = build(config)
    assert experiment.val.names == experiment.test.names == experiment.data.names
    (run,) = [
        fedax.simulate(m, experiment.task, experiment.data, rounds=5, batch_size=32)
        for m in experiment.methods.values()
    ]
    assert run.history["train_loss"][-1] < run.history["train_loss"][0]


def test_sites_do_the_same_by_files(files):
    """docs/deploy.md: each site sends two summaries, and gets a plan and the transform."""
    files(north=NORTH, south=SOUTH)
    read = {"north": pd.read_csv("hospitals/north.csv", sep=";"), "south": pd.read_csv("hospitals/south.csv")}
    for name, table in read.items():
        data.summarize(table, least=1).save(f"{name}-1.json")
    plan = data.plan({name: data.Summary.load(f"{name}-1.json") for name in read}, label="ill")
    plan.save("plan.json")
    for name, table in read.items():
        data.summarize(table, data.Plan.load("plan.json"), least=1).save(f"{name}-2.json")
    data.fit(plan, {name: data.Summary.load(f"{name}-2.json") for name in read}).save("transform.json")
    together = data.from_csv("hospitals", label="ill")
    assert data.Transform.load("transform.json") == together.transform
    for k, name in enumerate(read):
        site = data.from_csv(f"hospitals/{name}.csv", transform="transform.json")
        site.save(f"site-{name}")
        kept = data.FederatedData.open(f"site-{name}")
        assert np.array_equal(kept.examples["x"], together.client(k)["x"]) and kept.names == (name,)


# ---- Parquet and Arrow


def picture(value, size=(4, 5), mode="L", kind="PNG"):
    images = pytest.importorskip("PIL.Image")
    content = io.BytesIO()
    images.new(mode, (size[1], size[0]), value).save(content, kind)
    return content.getvalue()


def tables():
    rng = np.random.default_rng(0)
    return {
        name: pd.DataFrame(
            {
                "age": rng.normal(60, 10, n),
                "ward": rng.choice(["A", None, "B"], n),
                "day": [datetime.date(2024, 1, 1) + datetime.timedelta(int(k)) for k in rng.integers(0, 90, n)],
                "ill": rng.integers(0, 2, n).astype(bool),
            }
        )
        for name, n in (("north", 30), ("south", 20))
    }


def test_parquet_is_what_the_frames_are(tmp_path):
    for name, table in tables().items():
        table.to_parquet(tmp_path / f"{name}.parquet")
    result, expected = data.from_parquet(tmp_path, label="ill"), data.from_frames(tables(), label="ill")
    assert result.transform == expected.transform and np.array_equal(result.examples["x"], expected.examples["x"])
    (tmp_path / "south.parquet").write_bytes((tmp_path / "south.parquet").read_bytes()[:-9])
    with pytest.raises(DataError, match=r"south.parquet: cannot be read as Parquet"):
        data.from_parquet(tmp_path, label="ill")


def test_columns_that_are_no_values_are_named(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet

    pyarrow.parquet.write_table(pa.table({"a": [1, 2, 3], "b": [[1], [2], []], "y": [0, 1, 0]}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"x.parquet: column 'b' .*drop=\['b'\] leaves"):
        data.from_parquet(tmp_path / "x.parquet", label="y")
    federated = data.from_parquet(tmp_path / "x.parquet", label="y", columns={"b": "drop"})
    assert federated.transform.features == ("a",)


def test_a_parquet_file_cannot_ask_for_more_than_it_has(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet

    table = pa.table({"a": np.zeros(10_000_000, np.int8), "y": np.zeros(10_000_000, np.int8)})
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet", row_group_size=10_000_000)
    with pytest.raises(DataError, match="declares 10000000 rows, too many"):
        data.from_parquet(tmp_path / "x.parquet", label="y")


def test_what_a_parquet_file_says_once_is_in_memory_once(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet

    text = "x" * 50_000
    rows = {"a": [text, "b"] * 1000, "y": [0, 1] * 1000}
    pyarrow.parquet.write_table(pa.table(rows), tmp_path / "x.parquet")
    assert tables_._read_parquet(tmp_path / "x.parquet").nbytes < 10**6  # as plain texts 50 million
    assert data.from_parquet(tmp_path / "x.parquet", label="y").transform.columns[0].categories == ("b", text[:200])
    image = {"bytes": np.random.default_rng(0).bytes(200_000), "path": "x.png"}  # 500 times are 100 MB
    pyarrow.parquet.write_table(pa.table({"image": [image] * 500, "y": [0, 1] * 250}), tmp_path / "i.parquet")
    with pytest.raises(DataError, match=r"i.parquet: unpacks to more than"):
        data.from_parquet(tmp_path / "i.parquet", label="y")


def arrow(folder, table, classes=None):
    import pyarrow as pa

    folder.mkdir(parents=True)
    if classes:
        features = {"label": {"names": classes, "_type": "ClassLabel"}, "image": {"_type": "Image"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    with pa.ipc.new_stream(str(folder / "data-00000-of-00001.arrow"), table.schema) as stream:
        stream.write_table(table)
    (folder / "state.json").write_text("{}")


def test_arrow_as_hugging_face_writes_it(tmp_path):
    import pyarrow as pa

    images = [{"bytes": picture(10 * k), "path": None} for k in range(3)]
    whole = pa.table({"image": images, "label": [0, 2, 0], "writer": [7, 5, 7]})
    arrow(tmp_path / "whole", whole, ["cat", "cow", "dog"])
    federated = data.from_arrow(tmp_path / "whole", label="label", client="writer")
    assert federated.names == ("5", "7") and federated.transform.classes == ("cat", "cow", "dog")
    assert federated.examples["x"].shape == (3, 4, 5, 1) and federated.examples["x"][:, 0, 0, 0].tolist() == [10, 0, 20]
    assert federated.client(0)["y"].tolist() == [2]
    # One folder a client, as flwr-datasets create writes them; grey and coloured pictures.
    for k in (10, 2):
        colour = [{"bytes": picture((1, 2, 3), mode="RGB"), "path": "x.png"}] if k == 2 else []
        part = images[: 3 - len(colour)] + colour
        arrow(tmp_path / "parts" / f"partition_{k}", pa.table({"image": part, "label": [0, 1, 1]}))
    federated = data.from_arrow(tmp_path / "parts", label="label")
    assert federated.names == ("partition_2", "partition_10") and federated.examples["x"].shape == (6, 4, 5, 3)
    assert federated.examples["x"][2, 0, 0].tolist() == [1, 2, 3] and federated.transform.classes == ("1", "0")
    assert data.from_arrow(tmp_path / "parts", label="label", positive=1).transform.classes == ("0", "1")
    with pytest.raises(DataError, match="label: there is no column 'labell'"):
        data.from_arrow(tmp_path / "parts", label="labell")


def test_pictures_without_a_label_can_be_left_out():
    def site(*labels):
        shown = pd.Series([np.full((2, 2, 1), k, np.uint8) for k in range(len(labels))], dtype=object)
        return pd.DataFrame({"image": shown, "label": labels})

    tables = {"north": site("cat", None, "dog", ""), "south": site("dog", "cat", "cat")}
    with pytest.raises(DataError, match=r"north: label 'label' is missing in 2 of its 4 rows, .*drop_mi"):
        data.from_frames(tables, label="label")
    read = data.from_frames(tables, label="label", drop_missing_labels=True)
    assert read.sizes.tolist() == [2, 3] and read.examples["x"][:, 0, 0, 0].tolist() == [0, 2, 0, 1, 2]
    assert [read.transform.classes[k] for k in read.examples["y"]] == ["cat", "dog", "dog", "cat", "cat"]
    with pytest.raises(DataError, match="east: label 'label' is missing in all 2 rows"):
        data.from_frames(tables | {"east": site("", None)}, label="label", drop_missing_labels=True)


def test_arrow_tables_are_columns_too(tmp_path):
    import pyarrow as pa

    for name, table in tables().items():
        arrow(tmp_path / name, pa.Table.from_pandas(table))
    result, expected = data.from_arrow(tmp_path, label="ill"), data.from_frames(tables(), label="ill")
    assert result.transform == expected.transform and np.array_equal(result.examples["x"], expected.examples["x"])
    with pytest.raises(ConfigError, match=r"no \*.arrow is in it"):
        data.from_arrow(os.path.dirname(__file__), label="ill")


# ---- pictures and HDF5


def test_folders_of_pictures(tmp_path):
    for client, kind, value in (("b", "cat", 1), ("b", "dog", 2), ("a", "dog", 3)):
        place = tmp_path / client / kind
        place.mkdir(parents=True)
        (place / "1.png").write_bytes(picture(value))
        (place / "2.jpg").write_bytes(picture(value, kind="JPEG"))
    federated = data.from_image_folders(tmp_path)
    assert federated.names == ("a", "b") and federated.transform.classes == ("cat", "dog")
    assert federated.examples["x"].dtype == np.uint8 and federated.examples["x"].shape == (6, 4, 5, 1)
    assert federated.examples["y"].tolist() == [1, 1, 0, 0, 1, 1] and federated.client(0)["x"].max() == 3
    (tmp_path / "a" / "dog" / "3.png").write_bytes(picture(9, (7, 7)))
    with pytest.raises(DataError, match=r"\(4, 5, 1\), \(7, 7, 1\); size="):
        data.from_image_folders(tmp_path)
    assert data.from_image_folders(tmp_path, size=[6, 8]).examples["x"].shape == (7, 6, 8, 1)
    config = build(RUN | {"data": {"name": "images", "root": str(tmp_path), "size": [16, 16]}, "run": {"rounds": 1}})
    assert config.config["task"]["name"] == "cnn" and config.classes == ["cat", "dog"]
    (tmp_path / "a" / "dog" / "3.png").write_bytes(picture(9)[:50])
    with pytest.raises(DataError, match=r"3.png: not a PNG or JPEG picture"):
        data.from_image_folders(tmp_path)
    for size in ([0, 3], 7, [1.5, 2]):
        with pytest.raises(ConfigError, match="size = "):
            data.from_image_folders(tmp_path, size=size)


def emnist(path, change=None):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for name, n in (("f1", 3), ("f0", 2)):
            file[f"examples/{name}/pixels"] = np.full((n, 28, 28), 0.5, np.float32)
            file[f"examples/{name}/label"] = np.arange(n, dtype=np.int32)
        if change is not None:
            change(h5py, file)
    return path


def test_federated_hdf5(tmp_path):
    federated = data.from_tff_hdf5(emnist(tmp_path / "emnist.h5"))
    assert federated.names == ("f0", "f1") and federated.sizes.tolist() == [2, 3]
    assert federated.examples["x"].shape == (5, 28, 28, 1) and federated.examples["y"].tolist() == [0, 1, 0, 1, 2]
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "plays.h5", "w") as file:
        file["examples/LEAR/snippets"] = ["To be, " * 20, "or not. " * 5]
        file["examples/MUTE/snippets"] = ["Ha."]
    plays = data.from_tff_hdf5(tmp_path / "plays.h5")
    text = "".join(data.CHARACTERS[k] for k in plays.examples["x"].ravel())
    assert plays.names == ("LEAR",) and text == ("To be, " * 20 + "\n" + "or not. " * 5)[:160]
    assert np.array_equal(plays.examples["y"][0, :-1], plays.examples["x"][0, 1:])
    assert usual_task("hdf5", Census.of(federated)) == "cnn" and usual_task("hdf5", Census.of(plays)) == "char_lstm"


def linked(h5py, file):
    file["examples/f9"] = h5py.ExternalLink("/etc/passwd", "/")


def outside(h5py, file):
    group = file.create_group("examples/f9")
    group.create_dataset("label", data=np.zeros(1, np.int32))
    group.create_dataset("pixels", (1, 28, 28), np.uint8, external=[("/etc/passwd", 0, 784)])


def huge(h5py, file):
    group = file.create_group("examples/f9")
    group.create_dataset("pixels", (10**7, 28, 28), np.uint8, chunks=(1, 28, 28))
    group.create_dataset("label", (10**7,), np.int32, chunks=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (linked, "'f9' in examples is a link"),
        (outside, "pixels lies in another file"),
        (huge, "pixels declares .*file's size"),
        (lambda h5py, file: file.create_group("examples/f9"), "there is no 'pixels' in examples/'f9'"),
        (lambda h5py, file: file.create_group("examples/a"), "'a' has nothing; it needs pixels"),
        (lambda h5py, file: file.pop("examples"), "there is no 'examples'"),
    ],
)
def test_hdf5_that_asks_for_more_than_it_holds(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        read(emnist(tmp_path / "x.h5", change), tmp_path, 1 << 26)


def test_the_process_that_reads_hdf5(tmp_path, monkeypatch):
    path = emnist(tmp_path / "x.h5", linked)
    with pytest.raises(DataError, match=r"x.h5: .*'f9' in examples is a link"):
        data.from_tff_hdf5(path)
    monkeypatch.setattr(hdf5, "_SECONDS", 0)
    with pytest.raises(DataError, match=r"x.h5: not read in 0 s; it may be damaged"):
        data.from_tff_hdf5(path)


def test_an_extra_that_is_missing_is_named(tmp_path, monkeypatch):
    import sys

    (tmp_path / "x.h5").write_bytes(b"x")
    (tmp_path / "c" / "k").mkdir(parents=True)
    (tmp_path / "c" / "l").mkdir()
    (tmp_path / "c" / "k" / "x.png").write_bytes(b"x")
    for module in ("h5py", "PIL.Image"):
        monkeypatch.setitem(sys.modules, module, None)
    for call, line in (
        (lambda: data.from_tff_hdf5(tmp_path / "x.h5"), r"h5py.*pip install 'fedax\[hdf5\]'"),
        (lambda: data.from_image_folders(tmp_path), r"Pillow.*pip install 'fedax\[images\]'"),
    ):
        with pytest.raises(DataError, match=line):
            call()


# ---- damaged files, and numbers that float32 cannot hold

ROWS = [f"{20 + i},{0.1 * i:.1f},{'AB'[i % 2]},{('no', 'yes')[i % 3 == 0]}" for i in range(40)]


def damaged(at=None, line="", rows=ROWS, head="age,crp,ward,ill"):
    """A good file with the line of row ``at`` replaced."""
    return "\n".join([head, *(line if i == at else row for i, row in enumerate(rows))]) + "\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (damaged(4, "24,1e39,A,no"), r"a: column 'crp' .*float32 .*row 4 \(from 0\) is '1e39'"),
        (damaged(4, "24,-1e300,A,no"), r"row 4 \(from 0\) is '-1e300'"),
        (damaged(4, "24,1e400,A,no"), r"row 4 \(from 0\) is '1e400'"),
        (damaged(4, f"24,{'9' * 400},A,no"), r"row 4 \(from 0\) is '9999"),
        (damaged(4, '24,0.4,"A,no'), "a.csv: line 6: a quote is not closed"),
        (damaged(39, '24,0.4,"A,no'), "a.csv: line 41: a quote is not closed"),
        (damaged(head='age,"crp,ward,ill'), "a.csv: line 1: a quote is not closed"),
        (damaged(4, "24,0.4,A,no,1"), "a.csv: line 6 has 5 of 4 cells; give"),
        (damaged()[:-5], "a.csv: line 41 has 3 of 4 cells, .*cut off"),
        (damaged(4, "24,0.4,A\0,no"), "a.csv: line 6 has a character 0"),
        (damaged(4, "age,crp,ward,ill"), "a.csv: line 6 has the names of columns"),
        (damaged(4, f'24,0.4,"{"A" * 200_000}",no'), "a.csv: line 6 has a cell of more than"),
        (gzip.compress(damaged().encode(), mtime=0)[:99], "a.csv: cannot be read .*ended before"),
        (damaged().encode("utf-16-le"), "a.csv: line 1 has a character 0; .*encoding"),
        (b"PK\x03\x04\x14\0", "a.csv: .*ZIP archive or an Excel"),
    ],
)
def test_damage_is_named(files, content, message):
    files(a=content)
    with pytest.raises(DataError, match=message):
        data.from_csv("hospitals/a.csv", label="ill")


def test_a_packed_file_is_named_wherever_it_is_damaged(files, tmp_path):
    packed = gzip.compress(damaged().encode(), mtime=0)
    (tmp_path / "hospitals").mkdir()
    for at in range(10, len(packed)):  # the header has the time of writing, which is not read
        (tmp_path / "hospitals" / "a.csv.gz").write_bytes(packed[:at] + bytes([packed[at] ^ 255]) + packed[at + 1 :])
        with pytest.raises(DataError, match=r"a\.csv\.gz: "):
            data.from_csv("hospitals/a.csv.gz", label="ill")


def test_a_file_that_may_not_be_read_says_so(files, monkeypatch):
    files(a=damaged())

    def refuse(path):
        raise PermissionError(13, "not yours")

    monkeypatch.setattr(pathlib.Path, "read_bytes", refuse)
    with pytest.raises(DataError, match=r"a\.csv: cannot be read \(not yours\)"):
        data.from_csv("hospitals/a.csv", label="ill")


def test_lines_with_fewer_cells_are_noted(files):
    """Excel leaves empty cells at the end of lines out."""
    head, rows = "age,ill,ward,crp", [f"{20 + i},{'no' if i % 3 else 'yes'},A,0.{i}" for i in range(9)]
    rows[2], rows[5] = "22,no,A", "25,no"
    files(a="\n".join([head, *rows]) + "\n")
    with pytest.warns(DoubtfulWarning, match="a.csv: line 4 has 3 of 4 cells, .*2 lines"):
        read = data.from_csv("hospitals", label="ill")
    assert read.num_examples == 9 and [each.name for each in read.transform.columns if each.missing] == ["ward", "crp"]


def test_what_is_no_damage(files):
    files(a="\n" + damaged().replace("\n", ",\n\n").replace("ill,", "ill"), b=damaged().encode("utf-16"))
    assert data.from_csv("hospitals/a.csv", label="ill").num_examples == 40
    assert data.from_csv("hospitals/b.csv", label="ill", encoding="utf-16").num_examples == 40
    files(a=damaged(4, "24,inf,A,no"), b=damaged(4, "24,,A,no"))
    infinite, empty = (data.from_csv(f"hospitals/{name}.csv", label="ill") for name in "ab")
    assert np.array_equal(infinite.examples["x"], empty.examples["x"])  # infinities count as missing


def test_a_cell_that_spans_lines_is_noted(files):
    files(a=damaged(4, '24,0.4,"A,no').replace("30,1.0,A,no", '30,1.0,A",no'))
    with pytest.warns(DoubtfulWarning, match=r"a.csv: .*spans lines: 1; line 6 begins"):
        federated = data.from_csv("hospitals/a.csv", label="ill")
    assert federated.num_examples < 40


@pytest.mark.parametrize("scale", ["standard", "none"])
def test_numbers_beyond_float32_in_tables(scale):
    frame = pd.DataFrame({"v": [1.0, 2.0, 3.0, 4.0] * 5, "y": [0.1, 0.5, 0.7, 1.9] * 5})
    good = data.from_frames({"a": frame}, label="y", scale=scale, task="regression")
    for column in ("v", "y"):
        bad = frame.assign(**{column: [1e39, *frame[column][1:]]})
        for options in ({"label": "y", "scale": scale, "task": "regression"}, {"transform": good.transform}):
            with pytest.raises(DataError, match=rf"south: .*'{column}' has 1 .*row 0 \(from 0\) is 1e\+39"):
                data.from_frames({"north": frame, "south": bad}, **options)
    narrow = data.Transform((data.Column("v", "number", mean=0, scale=1e-20),))
    with pytest.raises(DataError, match=r"column 'v' has 2 numbers .*row 1 \(from 0\) is 1e\+30"):  # after scaling
        narrow.apply(pd.DataFrame({"v": [1.0, 1e30, -1e30]}))


def test_numbers_too_small_for_float32():
    frame = pd.DataFrame({"v": np.arange(1, 21) * 1e-50, "y": ["a", "b"] * 10})
    scaled = data.from_frames({"a": frame}, label="y").examples["x"]
    assert np.unique(scaled).size == 20 and scaled.std() == pytest.approx(1)
    with pytest.raises(DataError, match="column 'v' has numbers too small for float32"):
        data.from_frames({"a": frame}, label="y", scale="none")
    with pytest.raises(DataError, match="column 'v' has numbers too small"):  # their squares are 0 in float64
        data.from_frames({"a": frame.assign(v=frame["v"] * 1e-150)}, label="y")
    with pytest.raises(DataError, match="column 'v' has numbers too small"):
        data.from_frames({"a": frame}, label="v", task="regression", columns={"y": "category"})
    mixed = frame.assign(v=[1e-50, *range(1, 20)])  # one that rounds to 0 among others
    assert data.from_frames({"a": mixed}, label="y", scale="none").examples["x"][0] == 0


def test_long_whole_numbers_stay_apart(files):
    for first in (2**53, 10**25):  # float64 has these and their neighbours as one number
        rows = [f"{k},{first + k % 2},{'ab'[k % 3 == 0]}" for k in range(20)]
        files(a="\n".join(["v,site,y", *rows]))
        federated = data.from_csv("hospitals/a.csv", label="y", client="site")
        assert federated.names == (str(first), str(first + 1))
        federated = data.from_csv("hospitals/a.csv", label="site", task="classification")
        assert federated.transform.classes == (str(first), str(first + 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["los"]}, r"^columns = \['los'\]: .*column -> kind"),
        ({"drop": ["ill"]}, r"^drop = 'ill': this is the label"),
        ({"client": "ill"}, r"^client = 'ill': .*label.*two columns"),
        ({"files": ["hospitals/*.csv", "nowhere/*.csv"]}, r"^files = 'nowhere/\*\.csv': no file fits"),
    ],
)
def test_options_that_cannot_be_are_named(files, tmp_path, options, message):
    files(north=NORTH, south=SOUTH)
    given = {"files": "hospitals/*.csv", "label": "ill"} | options
    with pytest.raises(ConfigError, match=message):
        data.from_csv(given.pop("files"), **given)
    if "files" not in options:
        tables = {name: pd.read_csv(f"hospitals/{name}.csv") for name in ("north", "south")}
        with pytest.raises(ConfigError, match=message):
            data.from_frames(tables, **given)


def test_lists_take_patterns_and_folders(files):
    files(north=NORTH, south=SOUTH)
    assert data.from_csv(["hospitals/n*.csv", "hospitals/south.csv"], label="ill").names == ("north", "south")
    assert data.from_csv(["hospitals"], label="ill").names == ("north", "south")


def test_the_line_that_names_the_separator_for_excel_is_no_row(files):
    files(north="sep=;\r\n" + NORTH.replace(",", ";").replace("\n", "\r\n"), south=SOUTH)
    assert data.from_csv("hospitals/*.csv", label="ill").transform.features[0] == "age"
    files(north="sep=;\n" + NORTH.replace(",", ";") + "1;A;no;4\n")
    with pytest.raises(DataError, match=rf"line {2 + NORTH.count(chr(10))} has 4 of 3 cells"):
        data.from_csv("hospitals/*.csv", label="ill")


def test_an_encoding_in_which_no_line_ends_does_not_fit(files):
    text = NORTH if len(NORTH) % 2 == 0 else NORTH + "\n"
    files(north=text)
    with pytest.raises(DataError, match=r"north\.csv: not text in utf-16"):
        data.from_csv("hospitals/north.csv", label="ill", encoding="utf-16")
    files(north=text.encode("utf-16"))
    assert data.from_csv("hospitals/north.csv", label="ill", encoding="utf-16").num_examples == text.strip().count("\n")


def test_parquet_with_one_name_twice_says_which(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    twice = pyarrow.table([pyarrow.array([1, 2])] * 3, ["age", "ill", "age"])
    parquet.write_table(twice, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: .*called 'age'"):
        data.from_parquet(tmp_path / "a.parquet", label="ill")
