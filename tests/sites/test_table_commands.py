"""The commands of sites and coordinator for tables at nodes, and errors before anything starts."""

import io
import pathlib

import numpy as np
import pandas
import pytest
import tomli_w

pytest.importorskip("starlette", reason="needs pip install 'fedax[deploy]'")

from typer.testing import CliRunner

import fedax
from fedax.cli import app
from fedax.cli.tables import _file, _fresh, _write_experiment
from fedax.errors import ConfigError
from fedax.experiments import read_toml
from fedax.sites.protocol.messages import Message
from fedax.sites.protocol.tables import Desk
from fedax.sites.service.deploy import _listen, with_nodes_data


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("ca.pem").touch()
    pathlib.Path("a.csv").write_text("age,ill\n" + "1,no\n2,yes\n" * 5)
    return tmp_path


def output_of(*arguments, code=0):
    result = CliRunner().invoke(app, ["deploy", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


BAD = {
    "Latin-1": ("age,name\n1,José\n".encode("latin-1"), {"encoding": "utf-8"}, "latin-1"),
    "no rows": (b"age,ill\n", {}, "it has no rows below the names of columns"),
    "empty": (b"", {}, "the file is empty"),
    "two of one name": (b"age,age\n1,2\n", {}, "two columns are called 'age'"),
    "nothing is left": (b"age\n1\n", {"drop": ["age"]}, "no column is left"),
    "no such column": (b"age,ill\n1,no\n", {"drop": ["agee"]}, "drop: there is no column 'agee'"),
    "decimal": (b"age\n1\n", {"decimal": ";"}, "decimal = ';'"),
    "encoding": (b"age\n1\n", {"encoding": "latin-99"}, "encoding = 'latin-99'"),
    "two names": (b"age\n1\n", {"clients": ["a", "b"]}, "there are 1 clients in bad.csv"),
    "held out": (b"age\n1\n", {"test": "bad.csv"}, "rows of a table are held out by [data.split]"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_table_is_one_error_before_anything_starts(name):
    content, settings, message = BAD[name]
    pathlib.Path("bad.csv").write_bytes(content)
    output = output_of("node", settings_of(data="bad.csv", **settings), code=2)
    assert output.startswith("error: ") and message in output and output.count("\n") == 1
    assert {path.name for path in pathlib.Path().iterdir()} == {"a.csv", "bad.csv", "ca.pem", "node.toml"}


def settings_of(**settings):
    """A file with the settings of a node."""
    given = {"link": "127.0.0.1:1", "key": "key"} | settings
    pathlib.Path("node.toml").write_text(tomli_w.dumps(given))
    return "node.toml"


def test_settings_of_tables_are_not_for_folders():
    fedax.FederatedData({"x": np.zeros((2, 1)), "y": np.zeros(2, int)}, sizes=[2]).save("arrays")
    for setting in ({"review": True}, {"drop": ["x"]}, {"encoding": "latin-1"}, {"drop_missing_labels": True}):
        output = output_of("node", settings_of(data="arrays", **setting), code=2)
        assert "and arrays is a folder of arrays" in output
    assert not pathlib.Path("key").exists()


def test_an_owner_says_yes_or_no_from_elsewhere():
    desk = Desk(pandas.read_csv("a.csv"), "a", "key.state", lambda data: None, review=True, say=lambda line: None)
    ask = Message({"kind": "summarize", "label": "ill"})
    assert output_of("review", "--key", "key", "--yes") == "Nothing waits.\n"
    assert desk.answer(ask).head == {"waits": "its owner"}
    assert "-first" not in output_of("review", "--key", "key") and output_of("review", "--key", "key").endswith(
        ".json: waits\n"
    )
    assert output_of("review", "--key", "key", "--no", "--why", "not today").endswith("does not leave: not today\n")
    assert desk.answer(ask).head["error"].endswith("let the summary leave (why = 'not today')")
    assert output_of("review", "--state", "key.state", "--yes").endswith(".json: may leave\n")
    assert desk.answer(ask).head["summary"]["rows"] == 10
    assert "this goes with --no" in output_of("review", "--key", "key", "--why", "x", code=2)
    assert "give --key, the node's private key, or --state" in output_of("review", code=2)
    assert "there is no such folder" in output_of("review", "--key", "other", code=2)


def test_an_owner_says_yes_or_no_at_the_terminal_of_the_node(monkeypatch):
    desk = Desk(pandas.read_csv("a.csv"), "a", "key.state", lambda data: None, review=True, say=lambda line: None)
    ask, lines = Message({"kind": "summarize", "label": "ill"}), []
    desk.answer(ask)
    monkeypatch.setattr("sys.stdin", io.StringIO("perhaps\nno not today\nYES\nyes\n"))
    _listen(pathlib.Path("key.state"), lines.append)
    assert [line.rpartition(".json: ")[2] for line in lines] == [
        "type yes, or no and why", "does not leave: not today", "may leave", "nothing waits",
    ]  # fmt: skip
    assert desk.answer(ask).head["summary"]["rows"] == 10


def test_what_was_agreed_before_is_kept_and_a_folder_of_others_is_left_alone():
    target = pathlib.Path("link", "tables")
    target.parent.mkdir()
    for k in range(3):
        assert _fresh(target, moved=True) == target
        target.mkdir()
        (target / "plan.json").write_text(str(k))
    assert [path.read_text() for path in sorted(pathlib.Path("link").glob("*/plan.json"))] == ["2", "0", "1"]
    with pytest.raises(ConfigError, match="it has to be new or empty"):
        _fresh(target, moved=False)
    with pytest.raises(ConfigError, match="there is no such folder"):
        _fresh(pathlib.Path("no", "where"), moved=False)


def test_no_client_is_called_so_that_a_file_lands_elsewhere():
    files: dict[str, str] = {}
    names = ["../x", "x", "/etc/passwd", "a b", "a-b", "../x"]
    assert [_file(name, files) for name in names] == ["x", "x-2", "etc-passwd", "a-b", "a-b-2", "x"]


def test_the_configuration_is_that_of_a_comparison_and_a_run_takes_it():
    _write_experiment(pathlib.Path("experiment.toml"), 522, 24)
    tables = with_nodes_data(read_toml("experiment.toml"), None)
    assert tables["data"]["split"] == {"val": 0.15, "test": 0.15, "stratify": "rare"} and tables["run"]["baselines"]
    assert [method["name"] for method in tables["methods"]] == ["fedavg", "fedprox", "fednova"]
    assert tables["run"]["seeds"] == 10 and tables["run"]["split_seeds"]
    _write_experiment(pathlib.Path("large.toml"), 10**8, 24)
    assert "split_seeds" not in read_toml("large.toml")["run"]
