"""What the status of a link and of a node says, of files that a run and a node write."""

import http.client
import json
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs pip install 'fedax[deploy]'")

from typer.testing import CliRunner

from fedax.cli import app
from fedax.engine.history import Row
from fedax.errors import ConfigError, NodeError
from fedax.sites.protocol.messages import Failure, Message, Talk, joined
from fedax.sites.service.page import server
from fedax.sites.service.status import FILE, Status, prometheus_text, read_file
from fedax.sites.service.status import joined as status_of

EVIL = "a\x1b[2J\nb"
LARGE = 2**64 - 1  # a number as Flower may give to a node


class Wire:
    """A transport with prepared answers."""

    sent, received = 5, 7

    def __init__(self, *answers: tuple[int, Message | Failure]) -> None:
        self.answers = answers

    def nodes(self) -> list[int]:
        return [10, 11]

    def talk(self, timeout: float) -> Talk:
        yield []
        yield from ([answer] for answer in self.answers)
        while True:
            yield []


def test_the_file_says_who_is_waited_for_and_what_failed(tmp_path: Path) -> None:
    wire = Wire((10, Message({})), (LARGE, Failure(EVIL, True)))
    both = joined([Message({"kind": "evaluate"}), Message({"kind": "exchange"})])
    waits = lambda: {each["node"]: each["kind"] for each in status.table()["waiting"]}  # noqa: E731
    with Status(tmp_path, "127.0.0.1:1", wire) as status:
        seen = [(number, waits()) for number, _ in status.ask({10: both, LARGE: Message({"kind": "exchange"})}, 60.0)]
        # One that was gone may come back, and is waited for until it has answered or another question is asked.
        assert seen == [(10, {LARGE: "exchange"}), (LARGE, {LARGE: "exchange"})]
        since = status.table()["waiting"][0]["since"]
        wire.answers = ((LARGE, Message({"error": "it cannot"})),)
        assert [waits() for _ in status.ask({LARGE: Message({"kind": "exchange"})}, 60.0)] == [{}]
        wire.answers = ((LARGE, Failure("gone", True)),)
        list(status.ask({LARGE: both}, 60.0))
        assert waits() == {LARGE: "evaluate and exchange"} and status.table()["waiting"][0]["since"] >= since
        wire.answers = ((10, Message({"waits": "its owner"})),)
        list(status.ask({10: Message({"kind": "summarize"})}, 60.0))
        assert waits() == {10: "its owner"}
    result = read_file(tmp_path)
    assert result is not None and result["state"] == "finished" and (result["sent"], result["received"]) == (5, 7)
    first, second = result["nodes"]
    assert first["failed"] is None and second["answered"] is None
    assert second["failed"]["why"] == "gone" and second["failed"]["during"] == "evaluate and exchange"


def test_a_table_without_a_transform_is_known_by_its_rows(tmp_path: Path) -> None:
    head = {"error": "it waits", "table": {"name": EVIL, "rows": 60, "transform": None}, "versions": {"fedax": "1"}}
    strange = {"table": {"name": 3, "rows": True}, "versions": "1"}
    impossible = {"table": {"name": "a", "rows": -1}}
    answers = ((10, Message(head)), (11, Message(strange)), (12, Message(impossible)))
    with Status(tmp_path, "127.0.0.1:1", Wire(*answers), "tables") as status:
        list(status.ask({number: Message({"kind": "about"}) for number in (10, 11, 12)}, 60.0))
    result = read_file(tmp_path)
    assert result is not None  # what one node says does not hide the others
    first, second, third = result["nodes"]
    assert first["clients"] == ["a?[2J b"] and first["examples"] == 60
    assert first["versions"] == {"fedax": "1", "jax": "?"} and first["failed"] is None
    assert second["clients"] is second["examples"] is second["versions"] is third["examples"] is None


def test_what_a_node_says_moves_no_cursor(tmp_path: Path) -> None:
    with Status(tmp_path, "127.0.0.1:1", Wire((11, Failure(EVIL, False)))) as status:
        list(status.ask({11: Message({"kind": EVIL})}, 60.0))
    result = read_file(tmp_path)
    assert result is not None
    assert result["nodes"][0]["failed"]["why"] == result["nodes"][0]["failed"]["during"] == "a?[2J b"


def test_how_a_run_ended(tmp_path: Path) -> None:
    with pytest.raises(NodeError), Status(tmp_path, "127.0.0.1:1", Wire()):
        raise NodeError("no more nodes")
    status = read_file(tmp_path)
    assert status is not None and (status["state"], status["why"]) == ("failed", "no more nodes")


def test_a_killed_run_is_not_running(tmp_path: Path) -> None:
    status = Status(tmp_path, "127.0.0.1:1", Wire())
    talk = status.talk(60.0)
    next(talk)
    talk.send({10: Message({"kind": "check"})})
    table = status.table()
    (tmp_path / FILE).write_text(json.dumps(table))
    assert (read_file(tmp_path) or {})["state"] == "running"
    for change in ({"started": "1"}, {"host": "elsewhere", "written": time.time() - 1000}):
        (tmp_path / FILE).write_text(json.dumps(table | change))
        result = read_file(tmp_path)
        assert result is not None and result["state"] == "killed" and result["waiting"] == []


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 2}', "\x00"])
def test_a_file_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert read_file(tmp_path) is None


NONSENSE = [
    {"command": "rm"}, {"pid": -1}, {"pid": 10**400}, {"began": float("nan")}, {"began": "now"}, {"began": 1e300},
    {"runs": [{"round": 1}]}, {"runs": {}}, {"nodes": [7]}, {"waiting": None}, {"sent": -1}, {"run": {"name": 3}},
    {"state": ["running"]},
]  # fmt: skip


@pytest.mark.parametrize("change", NONSENSE, ids=range(len(NONSENSE)))
def test_a_file_that_says_nonsense(tmp_path: Path, change: dict[str, object]) -> None:
    table = Status(tmp_path, "127.0.0.1:1", Wire()).table()
    (tmp_path / FILE).write_text(json.dumps(table))
    assert read_file(tmp_path) is not None
    (tmp_path / FILE).write_text(json.dumps(table | change))
    assert read_file(tmp_path) is None


def test_what_the_file_says_moves_no_cursor_either(tmp_path: Path) -> None:
    table = Status(tmp_path, "127.0.0.1:1", Wire()).table()
    (tmp_path / FILE).write_text(json.dumps(table | {"state": EVIL, "why": EVIL}))
    status = read_file(tmp_path)
    assert status is not None and status["state"] == status["why"] == "a?[2J b"


def test_the_link_and_the_file_together(tmp_path: Path) -> None:
    file = Status(tmp_path, "127.0.0.1:1", Wire()).table()
    file["nodes"] = [{"number": 10}, {"number": 11, "examples": 7}]
    file["waiting"] = [{"node": 12, "since": 1.0}]
    known = [{"number": n, "name": f"k{n}", "status": "online", "registered": None, "since": None} for n in (11, 12)]
    result = status_of(file, known)["nodes"]
    assert [(each["name"], each["examples"]) for each in result] == [("k11", 7), ("k12", None)]
    assert [each["waited_for"] for each in result] == [None, {"node": 12, "since": 1.0}]
    assert [each["number"] for each in status_of(file, None, "gone")["nodes"]] == [10, 11]


@pytest.mark.parametrize(
    ("status", "state"),
    [
        (None, "running"),
        ("stopped", "finished"),
        *((each, each) for each in ("finished", "worse", "diverged", "failed")),
    ],
)
def test_a_run_ended_as_its_last_row_says(status: str | None, state: str, tmp_path: Path) -> None:
    link = Status(tmp_path, "127.0.0.1:1", Wire())
    link._status["run"] = {"name": "a", "folder": "f", "rounds": 9, "methods": ["m"], "seeds": [0]}
    link.note_row("m", 0, None)
    link.note_row("m", 0, Row({"round": 0, "train_loss": 1.0}))
    assert link.table()["runs"][0]["state"] == "running"
    link.note_row("m", 0, Row({"round": 5, "train_loss": float("nan") if status == "diverged" else 2.0}, status))
    (run,) = link.table()["runs"]
    assert (run["state"], run["round"], run["train_loss"]) == (state, 5, None if status == "diverged" else 2.0)


def test_a_link_that_is_gone(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["deploy", "status", "--folder", str(tmp_path), "--format", "json"])
    assert result.exit_code == 2 and json.loads(result.stdout)["run"] is None
    assert result.stderr.startswith("error: folder") and result.stderr.count("\n") == 1


def test_a_node_tells_its_owner(tmp_path: Path) -> None:
    site, today = tmp_path / "n.state" / "site", time.strftime("%Y-%m-%dT00:00:00+0000")
    site.mkdir(parents=True)
    one, other = "5" * 32, "6" * 32  # digests of agreements
    (site / "rounds.json").write_text(json.dumps({one: 2, other: 1}))
    lines = [
        {"time": "2020-01-01T00:00:00+0000", "kind": "exchange", "run": one, "server": "a@b", "came": 1, "left": 10},
        {"time": today, "kind": "exchange", "run": one, "server": "a@b", "came": 2, "left": 20, "epsilon": 0.5},
        {
            "time": today,
            "kind": "evaluate",
            "run": other,
            "server": EVIL,
            "epsilon": "9",
            "came": 4,
            "left": 40,
            "error": EVIL,
        },
        {"time": today, "kind": "clients", "run": one, "server": "a@b", "came": 0, "left": 5},
    ]
    (site / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"half')
    given = ["deploy", "node", "status", "--key", str(tmp_path / "n")]
    question = {"name": "exchange 5/0", "digest": "d", "day": "2020-01-01"}
    answers = [question, question | {"counts": False}, question | {"day": today[:10]}, {"name": 3}]
    record = "".join(json.dumps(each) + "\n" for each in answers) + '{"half'
    (site / "answered.jsonl").write_text(record)
    content = json.loads(CliRunner().invoke(app, [*given, "--format", "json"]).stdout)
    assert {name: content[name] for name in ("rounds", "messages", "came", "left", "unreadable")} == {
        "rounds": 3, "messages": 4, "came": 7, "left": 75, "unreadable": 1,
    }  # fmt: skip
    assert (content["questions"], content["questions_today"], content["epsilon"]) == (2, 1, 0.5)
    assert (site / "answered.jsonl").read_text() == record  # a node may be writing it
    assert content["left_today"] == {"updates": 20, "figures": 45} and content["runs"][other]["servers"] == ["a?[2J b"]
    shown = CliRunner().invoke(app, given)
    assert shown.exit_code == 0 and "\x1b" not in shown.stdout and "a?[2J b" in shown.stdout
    assert "2 questions answered, 1 of them today\nthe noise of its answers has spent ε = 0.5" in shown.stdout


def test_the_command_of_a_node_stays() -> None:
    result = CliRunner().invoke(app, ["deploy", "node", "--key", "k"])
    assert result.exit_code == 2 and "--data" in result.output


EVERYTHING = "<script>alert(1)</script>&\"'"


def of_a_run(folder: Path) -> dict[str, Any]:
    """What a link may tell, all texts of it made to do harm."""
    node = {
        "number": 10, "name": EVERYTHING, "status": EVERYTHING, "registered": None, "since": None,
        "clients": [EVERYTHING], "examples": 3, "held": None, "versions": {"fedax": EVERYTHING, "jax": EVERYTHING},
        "answered": None, "failed": {"time": 1.0, "during": EVERYTHING, "why": EVERYTHING},
        "waited_for": {"since": 1.0, "until": 2.0, "kind": EVERYTHING},
    }  # fmt: skip
    one = {"method": EVERYTHING, "seed": 0, "state": EVERYTHING, "round": 1, "of": 2, "seconds": None,
           "train_loss": None}  # fmt: skip
    run = {
        "command": "run", "state": EVERYTHING, "why": EVERYTHING, "began": 1.0, "ended": None, "sent": 5, "received": 7,
        "run": {"name": EVERYTHING, "folder": str(folder / EVERYTHING), "rounds": 2, "methods": [], "seeds": [0]},
        "runs": [one],
    }  # fmt: skip
    about = {"there": False, "problem": EVERYTHING, "certificates": {EVERYTHING: 3.0}}
    return {"time": 2.0, "link": about, "run": run, "nodes": [node]}


def test_the_page_is_for_its_own_machine_and_runs_no_text_of_others(tmp_path: Path) -> None:
    with server(lambda: of_a_run(tmp_path), 0) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            own = f"127.0.0.1:{running.server_port}"

            def get(path: str, host: str = own) -> tuple[int, str, str]:
                connection = http.client.HTTPConnection("127.0.0.1", running.server_port, timeout=5)
                connection.request("GET", path, headers={"Host": host})
                answer = connection.getresponse()
                result = answer.status, answer.headers["Content-Security-Policy"], answer.read().decode()
                connection.close()
                return result

            code, policy, text = get("/")
            assert code == 200 and "<script>alert" not in text and text.count("&lt;script&gt;alert(1)") >= 12
            assert text.count("<script") == 1 and "default-src 'none'" in policy and "unsafe-inline" not in policy[:100]
            assert get("/now")[2] in text and json.loads(get("/status.json")[2]) == of_a_run(tmp_path)
            assert get("/health")[0::2] == (503, EVERYTHING)
            assert get("/metrics")[2] == prometheus_text(of_a_run(tmp_path))
            assert get("/page.js")[0] == get("/page.css")[0] == 200 and get("/secret")[0] == 404
            assert running.server_address[0] == "127.0.0.1"
            for host in ("evil.example", f"evil.example:{running.server_port}", "127.0.0.1"):
                assert get("/status.json", host)[0] == 403  # a name that leads here is not enough
            with pytest.raises(ConfigError, match=f"port = {running.server_port}: .*--port"):
                server(lambda: of_a_run(tmp_path), running.server_port)
        finally:
            running.shutdown()
            thread.join()


def test_a_browser_that_goes_and_a_folder_that_is_not_in_utf_8_do_no_harm(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    asked, gone, status = threading.Event(), threading.Event(), of_a_run(tmp_path)
    status["run"]["run"]["folder"] = "Z\udcfcrich"

    def look() -> dict[str, Any]:
        asked.set()
        gone.wait()
        return status

    with server(look, 0) as running:
        running.daemon_threads = False  # server_close waits for the answers
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            with socket.create_connection(("127.0.0.1", running.server_port)) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close resets it
                connection.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{running.server_port}\r\n\r\n".encode())
                assert asked.wait(60)
            gone.set()
            connection = http.client.HTTPConnection("127.0.0.1", running.server_port, timeout=60)
            connection.request("GET", "/")
            assert "Z\\udcfcrich" in connection.getresponse().read().decode()
            connection.close()
        finally:
            running.shutdown()
            thread.join()
    assert capfd.readouterr() == ("", "")


def test_metrics() -> None:
    node = {"number": 10, "name": 'a"\\\nb', "status": "online", "since": "1970-01-01T00:00:09+00:00", "answered": 8.5}
    node |= {"waited_for": {"since": 1.0}}
    gone = node | {"name": None, "status": "offline", "since": None, "answered": None, "waited_for": None}
    one = {"method": "fedavg", "seed": 3, "round": 1, "of": 2, "train_loss": 0.25}
    run = {"state": "running", "runs": [one], "sent": 5, "received": 2**60}
    about = {"there": True, "problem": None, "certificates": {"server.pem": 3.0}}
    text = prometheus_text({"time": 2.5, "link": about, "nodes": [node, gone], "run": run})
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert samples == [
        "fedax_link_up 1",
        'fedax_certificate_end_seconds{file="server.pem"} 3',
        r'fedax_node_up{node="a\"\\\nb"} 1',
        'fedax_node_up{node="10"} 0',
        r'fedax_node_since_seconds{node="a\"\\\nb"} 9',
        r'fedax_node_answered_seconds{node="a\"\\\nb"} 8.5',
        r'fedax_node_waited_for_seconds{node="a\"\\\nb"} 1.5',
        'fedax_node_waited_for_seconds{node="10"} 0',
        'fedax_run_up{state="running"} 1',
        'fedax_run_round{method="fedavg",seed="3"} 1',
        'fedax_run_rounds{method="fedavg",seed="3"} 2',
        'fedax_run_train_loss{method="fedavg",seed="3"} 0.25',
        "fedax_run_sent_bytes_total 5",
        f"fedax_run_received_bytes_total {2**60}",
    ]
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names)) == len({line.split("{")[0].split()[0] for line in samples})


def test_metrics_of_a_link_that_is_gone(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["deploy", "status", "--folder", str(tmp_path), "--metrics"])
    assert result.exit_code == 2 and result.stdout.splitlines()[2] == "fedax_link_up 0"


def test_a_node_tells_of_logs_that_were_rotated_too(tmp_path: Path) -> None:
    site = tmp_path / "n.state" / "site"
    site.mkdir(parents=True)
    for ending, left in (("", 4), (".1", 3), (".2", 2), (".10", 1)):
        line = {"time": f"2020-01-0{left}T00:00:00+0000", "kind": "exchange", "came": 0, "left": left}
        (site / f"log.jsonl{ending}").write_text(json.dumps(line) + "\n")
    given = ["deploy", "node", "status", "--key", str(tmp_path / "n"), "--format", "json"]
    content = json.loads(CliRunner().invoke(app, given).stdout)
    assert (content["messages"], content["left"], content["last"]) == (4, 10, "2020-01-04T00:00:00+0000")
