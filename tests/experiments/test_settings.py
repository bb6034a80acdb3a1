"""Settings of another type than theirs: one line that names the setting, exit code 2, and no file is written."""

import copy
import datetime
import inspect
from functools import partial

import pandas
import pytest
from typer.testing import CliRunner

import fedax
from fedax.cli import app
from fedax.data import FEDERATIONS, PARTITIONS
from fedax.errors import FedaxError
from fedax.experiments import build, toml
from tests import settings

REST = {
    "work": {"kind": "epochs", "epochs": 1},
    "run": {"rounds": 1, "batch_size": 8},
    "methods": [{"name": "fedavg", "lr": 0.1}],
}
# Of each type that TOML has.
VALUES = [True, 1, -1.5, "", "x", "a\0b", [], [1], [["x"]], {}, {"x": 1}, {"x": {"y": "z"}}, datetime.date(2026, 1, 2)]
USEFUL = {  # those of them that a setting of data may have; a column is called by the digits of a number
    "label": [1], "positive": [1], "max_categories": [1], "drop_missing_labels": [True],
    "check_labels": [True], "columns": [{}], "drop": [[]],
    "encoding": [""], "clients": [1], "seed": [1], "split": [{}], "size": VALUES,  # these have no pictures
}  # fmt: skip
DATA = ("csv", "parquet", "arrow", "folder", "images", "hdf5", "leaf")
EVERYWHERE = ("name", "clients", "partition", "seed", "weights", "split")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The sections data of a CSV file's kind, by their names."""
    place = tmp_path_factory.mktemp("tables")
    for name in ("a", "b"):  # a folder for each kind of files
        frame = pandas.DataFrame({"0": [0.1, 0.2, 0.7] * 9, "1": [0, 1, 1] * 9, "ward": ["A", "B", "B"] * 9})
        for kind, write in {"csv": partial(frame.to_csv, index=False), "parquet": frame.to_parquet}.items():
            (place / kind).mkdir(exist_ok=True)
            write(place / kind / f"{name}.{kind}")
    fedax.data.from_csv(place / "csv", label="1").save(place / "saved")
    sections = {"folder": {"name": "folder", "path": str(place / "saved")}}
    for name in DATA:
        first = next(iter(FEDERATIONS.get(name).arguments))
        label = {"label": "1"} if name in ("csv", "parquet") else {}
        sections.setdefault(name, {"name": name, first: str(place / name if label else place), **label})
    return sections


def passes(tables):
    """Whether a configuration passes all checks; if not, one line says why."""
    try:
        build(tables)
    except FedaxError as error:
        assert str(error).isprintable() and len(str(error)) < 1500
        return False
    return True


@pytest.mark.parametrize("name", DATA)
def test_data_of_another_type(data, name):
    assert passes({**REST, "data": data[name]}) == (name in ("csv", "parquet", "folder"))
    for setting in (*FEDERATIONS.get(name).arguments, *EVERYWHERE):
        for value in VALUES:
            useful = any(type(value) is type(each) and value == each for each in USEFUL.get(setting, ()))
            assert useful or not passes({**REST, "data": {**data[name], setting: value}}), (setting, value)


@pytest.mark.parametrize("name", list(PARTITIONS))
def test_partitions_of_another_type(name):
    arguments = {
        key: each for key, each in PARTITIONS.get(name).arguments.items() if key not in ("n", "labels", "values")
    }
    section = {"name": "digits", "partition": name}
    section |= {key: 2 for key, default in arguments.items() if default is inspect.Parameter.empty}
    for setting in arguments:
        for value in (True, "x", [], [["x"]], {"x": 1}, datetime.date(2026, 1, 2)):
            assert not passes({**REST, "data": {**section, setting: value}}), (setting, value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("config", settings.CONFIGS, ids=lambda config: config["name"])
def test_sections_of_another_type(config):
    """Of all sections; python -m tests.settings tries numbers of all sizes too."""
    assert passes(copy.deepcopy(config))
    for at in settings.leaves(config):
        for value in (True, "x", [], [["x"]], {"x": 1}, datetime.date(2026, 1, 2)):
            tables = settings.changed(config, at, value)
            assert not passes(tables) or settings.sensible(at, value), (at, value)


@pytest.mark.parametrize(
    "setting",
    [
        "drop_missing_labels=1.5",
        "drop_missing_labels=3",
        "check_labels=maybe",
        "drop=patient",
        "columns=[1]",
        "label=[1]",
        "client=true",
    ],
)
def test_a_command_says_it_in_one_line_and_writes_nothing(data, tmp_path, monkeypatch, setting):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tables.toml").write_text(toml.dumps({**REST, "data": data["csv"]}), encoding="utf-8")
    ran = CliRunner().invoke(app, ["run", "tables.toml", "--set", f"data.{setting}"])
    assert ran.exit_code == 2 and ran.stderr.count("\n") == 1 and ran.stdout == ""
    assert f"data.{setting.partition('=')[0]} = " in ran.stderr and "give " in ran.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["tables.toml"]
