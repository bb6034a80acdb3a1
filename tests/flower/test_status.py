"""What the status of a link and of a node says, of files that a run and a node write."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs pip install 'fedax[flower]'")

from typer.testing import CliRunner

from fedax.cli import app
from fedax.engine.places.fleet import Fleet
from fedax.errors import NodeError
from fedax.flower.status import FILE, Status, joined, read_file

EVIL = "a\x1b[2J\nb"


class Nodes(Fleet):
    """Two nodes, of which nothing is asked."""

    def __init__(self) -> None:
        pass

    def __len__(self) -> int:
        return 2

    def about(self, which: int) -> dict[str, Any]:
        return {"number": 10 + which, "names": [EVIL], "sizes": [3, 4], "held": {"val": 0, "test": 2},
                "versions": {"fedax": EVIL, "jax": "0.10"}}  # fmt: skip


def test_the_file_says_who_is_waited_for_and_what_failed(tmp_path: Path) -> None:
    with Status(tmp_path, "127.0.0.1:1", Nodes()) as status:
        status.asked({0: {"kind": "exchange"}, 1: {"kind": "exchange"}}, 60.0)
        status.answered(0)
        assert [(each["node"], each["kind"]) for each in status.table()["waiting"]] == [(11, "exchange")]
        status.failed(1, EVIL, True)
        assert status.table()["waiting"] == []
    found = read_file(tmp_path)
    assert found is not None and found["state"] == "finished"
    assert found["nodes"][0]["examples"] == 7 and found["nodes"][0]["failed"] is None
    assert found["nodes"][1]["failed"]["why"] == "a?[2J b" and found["nodes"][1]["failed"]["during"] == "exchange"
    assert found["nodes"][0]["clients"] == ["a?[2J b"] and found["nodes"][0]["versions"]["fedax"] == "a?[2J b"


def test_how_a_run_ended(tmp_path: Path) -> None:
    with pytest.raises(NodeError), Status(tmp_path, "127.0.0.1:1", Nodes()):
        raise NodeError("no more nodes")
    found = read_file(tmp_path)
    assert found is not None and (found["state"], found["why"]) == ("failed", "no more nodes")


def test_a_killed_run_is_not_running(tmp_path: Path) -> None:
    status = Status(tmp_path, "127.0.0.1:1", Nodes())
    status.asked({0: {"kind": "check"}}, 60.0)
    table = status.table()
    (tmp_path / FILE).write_text(json.dumps(table))
    assert (read_file(tmp_path) or {})["state"] == "running"
    for change in ({"started": "1"}, {"host": "elsewhere", "written": time.time() - 1000}):
        (tmp_path / FILE).write_text(json.dumps(table | change))
        found = read_file(tmp_path)
        assert found is not None and found["state"] == "killed" and found["waiting"] == []


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 2}', "\x00"])
def test_a_file_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert read_file(tmp_path) is None


def test_the_link_and_the_file_together(tmp_path: Path) -> None:
    file = Status(tmp_path, "127.0.0.1:1", Nodes()).table()
    known = [{"number": n, "name": f"k{n}", "status": "online", "registered": None, "since": None} for n in (11, 12)]
    found = joined(file, known)
    assert [(each["name"], each["examples"]) for each in found["nodes"]] == [("k11", 7), ("k12", None)]
    assert [each["number"] for each in joined(file, None, "gone")["nodes"]] == [10, 11]


def test_a_link_that_is_gone(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["deploy", "status", "--folder", str(tmp_path), "--format", "json"])
    assert result.exit_code == 2 and json.loads(result.stdout)["run"] is None
    assert result.stderr.startswith("error: folder") and result.stderr.count("\n") == 1


def test_a_node_tells_its_owner(tmp_path: Path) -> None:
    site, today = tmp_path / "n.state" / "site", time.strftime("%Y-%m-%dT00:00:00+0000")
    site.mkdir(parents=True)
    (site / "rounds.json").write_text('{"5": 2, "6": 1}')
    lines = [
        {"time": "2020-01-01T00:00:00+0000", "kind": "exchange", "run": 5, "server": "a@b", "came": 1, "left": 10},
        {"time": today, "kind": "exchange", "run": 5, "server": "a@b", "came": 2, "left": 20},
        {"time": today, "kind": "evaluate", "run": 6, "server": EVIL, "came": 4, "left": 40, "error": EVIL},
    ]
    (site / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"half')
    given = ["deploy", "node", "status", "--key", str(tmp_path / "n")]
    found = json.loads(CliRunner().invoke(app, [*given, "--format", "json"]).stdout)
    assert {name: found[name] for name in ("rounds", "messages", "came", "left", "unreadable")} == {
        "rounds": 3, "messages": 3, "came": 7, "left": 70, "unreadable": 1,
    }  # fmt: skip
    assert found["left_today"] == {"sums": 20, "figures": 40} and found["runs"]["6"]["servers"] == ["a?[2J b"]
    shown = CliRunner().invoke(app, given)
    assert shown.exit_code == 0 and "\x1b" not in shown.stdout and "a?[2J b" in shown.stdout


def test_the_command_of_a_node_stays() -> None:
    result = CliRunner().invoke(app, ["deploy", "node", "--key", "k"])
    assert result.exit_code == 2 and "--link" in result.output
