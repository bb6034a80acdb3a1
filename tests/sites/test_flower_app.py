"""An app that Flower runs: its folder, messages over its grid, nodes at sockets, and a whole run by Flower's tools."""

import importlib.metadata
import importlib.util
import json
import os
import socket as sockets
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs pip install 'fedax[deploy]'")

from fedax.data import FederatedData
from fedax.errors import ConfigError, NodeError
from fedax.experiments import build, execute, new_folder
from fedax.sites.protocol.messages import Failure, Message
from fedax.sites.service import flower, node, processes
from fedax.sites.service.grid import GridTransport
from fedax.sites.service.messages import closed, opened
from tests.experiments import run_cli
from tests.processes import is_listening, wait_for

VERSION = importlib.metadata.version("flwr") if importlib.util.find_spec("flwr") else "0"
needs_flower = pytest.mark.skipif(
    tuple(map(int, VERSION.split(".")[:2])) < (1, 42), reason="needs flwr 1.42 or newer: .ci/run has it"
)
CONFIG = """
name = "tiny"
[data]
name = "digits"
clients = 4
partition = "iid"
[run]
rounds = 2
batch_size = 32
[[methods]]
name = "fedavg"
lr = 0.1
"""


def question(**head: Any) -> list[bytes]:
    return closed(Message(head, b"abc"))


@contextmanager
def at_socket(path: Path) -> Iterator[node.Worker]:
    """A node with an echo worker, which is started again when it has ended."""
    worker, over = node.Worker("tests.sites.echo:make", {}), Event()
    door = node.Door(path, worker, lambda line: None)

    def watch() -> None:
        while not over.wait(0.02):
            worker.process.keep()

    door.start()
    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield worker
    finally:
        door.stop()
        over.set()
        watcher.join()
        worker.process.stop(0)


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes have the modules that are here."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)]))


def test_a_node_at_a_socket(tmp_path: Path, modules: None) -> None:
    path = tmp_path / "node"
    path.touch()
    with pytest.raises(ConfigError, match="no socket can be made"), at_socket(path):  # some other file, which is kept
        pass
    path.unlink()
    with at_socket(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        first, second = (opened(flower.handed_to(str(path), question(k=k))) for k in (1, 2))
        assert (first.head["k"], first.tensors) == (1, b"abc")
        assert (second.head["k"], second.head["calls"], second.head["pid"]) == (2, 2, first.head["pid"])
        with pytest.raises(NodeError, match="ended before"):
            flower.handed_to(str(path), question(do="die"))
        again = opened(flower.handed_to(str(path), question(k=3)))
        assert again.head["k"] == 3 and again.head["pid"] != first.head["pid"]
        assert "ZeroDivisionError" in opened(flower.handed_to(str(path), question(do="raise"))).head["error"]
        with pytest.raises(ConfigError, match="socket = "), at_socket(path):  # taken
            pass
        assert path.is_socket()
    assert not path.exists()
    with pytest.raises(NodeError, match="fedax deploy node --socket"):
        flower.handed_to(str(path), question())


def test_a_socket_of_a_killed_node_is_taken_over(tmp_path: Path, modules: None) -> None:
    path = tmp_path / "node"
    with closing(sockets.socket(sockets.AF_UNIX)) as left:
        left.bind(str(path))
    with at_socket(path):
        assert opened(flower.handed_to(str(path), question(k=1))).head["k"] == 1


def test_a_folder_of_an_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("experiment.toml").write_text(CONFIG)
    result = run_cli("deploy", "flower", "app", "experiment.toml", "--set", "run.rounds=3")
    assert result.exit_code == 0 and "flwr run app" in result.output
    project = tomllib.loads(Path("app/pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert project["config"]["runs"] == str(tmp_path / "runs")
    assert project["components"] == {"serverapp": "fedax_app.server:app", "clientapp": "fedax_app.client:app"}
    expected = tomllib.loads(CONFIG)
    expected["run"]["rounds"] = 3
    assert tomllib.loads(Path("app/fedax_app/experiment.toml").read_text()) == expected
    for side in ("client", "server"):
        compile(Path(f"app/fedax_app/{side}.py").read_text(), side, "exec")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["flower", "full", "experiment.toml"], "folder = 'full'"),
        (["flower", "app", "absent.toml"], "config = 'absent.toml'"),
        (["flower", "app", "experiment.toml", "--set", "methods.fedavg.lr=-1"], "lr = -1"),
        (["node", "--data", "d", "--key", "k"], "--socket"),
        (["node", "--data", "d", "--key", "k", "--link", "localhost:1", "--socket", "s"], "--socket"),
    ],
)
def test_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("experiment.toml").write_text(CONFIG)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    result = run_cli("deploy", *arguments)
    assert result.exit_code == 2 and message in result.stderr and result.stderr.count("\n") == 1, result.output
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(VERSION != "0", reason="Flower is here")
@pytest.mark.parametrize("side", [flower.client, flower.server])
def test_without_flower(side: Callable[[Path], Any]) -> None:
    with pytest.raises(ConfigError, match=r"fedax\[flower\]"):
        side(Path("experiment.toml"))


@needs_flower
@pytest.mark.parametrize("size", [0, 3, 2 << 20])
def test_messages_as_records(size: int) -> None:
    message = Message({"kind": "train", "k": [1, "é"]}, bytes(size))
    assert opened(flower.parts_of(flower.recorded(closed(message)))) == message


@needs_flower
def test_records_that_are_no_message() -> None:
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    array = ArrayRecord({"0": Array("uint8", (1,), "safetensors", b"a")})
    for records in (
        RecordDict(), RecordDict({"head": ConfigRecord({"text": b"{}"})}), RecordDict({"head": array}),
        RecordDict({"head": ConfigRecord({"json": "{}"})}), RecordDict({"head": ConfigRecord({"json": 3})}),
        RecordDict({"head": ConfigRecord({"json": b"{}", "tensors": b"a"}), "tensors": array}),
        RecordDict({"head": ConfigRecord({"json": b"{}"}), "tensors": ArrayRecord()}),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="no message of fedax"):
            flower.parts_of(records)


class Asked(NamedTuple):
    """A message as a grid takes and gives it."""

    content: Any
    node: int
    kind: str
    ttl: float
    number: str = ""
    error: Any = None

    @property
    def metadata(self) -> Any:
        return SimpleNamespace(reply_to_message_id=self.number)

    def has_error(self) -> bool:
        return self.error is not None


class Grid:
    """A grid of nodes that answer at the second look: 1 and 2 do, 3 never, 4 by an error, 5 cannot be asked, 6 lies."""

    def __init__(self) -> None:
        self.asked: dict[str, Asked] = {}
        self.looks = 0

    def get_node_ids(self) -> list[int]:
        return [2, 1]

    def push_messages(self, messages: list[Asked]) -> list[str]:
        new = {str(each.node) if each.node != 5 else "": each for each in messages}
        self.asked |= new
        return [*new]

    def pull_messages(self, numbers: list[str]) -> Iterator[Asked]:
        from flwr.app import ConfigRecord, RecordDict

        self.looks += 1
        for number in numbers if self.looks > 1 else ():
            reply = self.asked[number]._replace(number=number)
            if reply.node == 4:
                yield reply._replace(error=SimpleNamespace(code=1, reason="the ClientApp raised"))
            elif reply.node == 6:
                yield reply._replace(content=RecordDict({"head": ConfigRecord({"json": b"[]"})}))
            elif reply.node != 3:
                yield reply


@needs_flower
def test_what_comes_over_a_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flwr.app.Message", Asked)  # Flower's own is made in a run only
    grid = Grid()
    transport = GridTransport(grid)
    assert transport.nodes() == [1, 2]
    message = Message({"k": 1}, b"abc")
    came = dict(transport.ask(dict.fromkeys(range(1, 7), message), 0.5))
    assert came[1] == came[2] == message
    assert came[3] == Failure("no answer in 0.5 s", True)
    assert came[4] == Failure("the ClientApp raised", True)
    assert isinstance(came[5], Failure) and came[5].gone
    assert isinstance(came[6], Failure) and not came[6].gone and "no JSON object" in came[6].text
    assert (transport.sent, transport.received) == (5 * message.size, 2 * message.size)
    assert {(each.kind, each.ttl) for each in grid.asked.values()} == {("query", 2.5)}


@needs_flower
def test_a_client_app_that_hands_on_its_message_does_not_load_jax(tmp_path: Path) -> None:
    code = "import sys; from fedax.sites.service import flower; flower.client(None); assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@needs_flower
def test_a_run_by_flower_is_the_simulation(tmp_path: Path, modules: None) -> None:
    (tmp_path / "experiment.toml").write_text(CONFIG)
    flower.write(tmp_path / "app", tomllib.loads(CONFIG))
    project = tmp_path / "app" / "pyproject.toml"
    project.write_text(project.read_text().replace('out = ""', f"out = {json.dumps(str(tmp_path / 'run'))}"))
    simulated = execute(build(tomllib.loads(CONFIG)), new_folder(tmp_path / "simulated", "tiny"))
    assert simulated is not None
    data = build(tomllib.loads(CONFIG)).undealt()
    for k in (0, 1):
        FederatedData.from_clients([data.client(i) for i in (2 * k, 2 * k + 1)]).save(tmp_path / f"n{k}")
    link, socket = processes.free_port(), tmp_path / "n0.sock"
    bin_ = str(Path(sys.executable).parent)
    variables = {"PATH": os.pathsep.join([bin_, os.environ["PATH"]]), "FLWR_HOME": str(tmp_path / "home")}
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{link}"\ninsecure = true\n'
    )
    (tmp_path / "node.toml").write_text('socket = "n0.sock"\ndata = "n0"\nkey = "key"\nclients = ["0", "1"]\n')
    configs = [f'socket="{socket}"', f'data="{tmp_path / "n1"}" clients="2,3"']
    supernode = ["flower-supernode", "--insecure", f"--superlink=127.0.0.1:{link}", "--node-config"]
    commands = [
        ["flower-superlink", "--insecure", "--host=127.0.0.1", f"--port={link}"],
        ["fedax", "deploy", "node", str(tmp_path / "node.toml")],
        *([*supernode, config, f"--port={processes.free_port()}"] for config in configs),
    ]  # fmt: skip
    started = []
    try:
        for k, command in enumerate(commands):
            with (tmp_path / f"{k}.txt").open("wb") as log:
                started.append(
                    subprocess.Popen(
                        [f"{bin_}/{command[0]}", *command[1:]],
                        env=os.environ | variables,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
        wait_for(lambda: socket.is_socket() and is_listening(link))
        told = ["--stream", "--run-config", "nodes=2"]
        run = subprocess.run([f"{bin_}/flwr", "run", str(tmp_path / "app"), *told], env=os.environ | variables,
                             capture_output=True, text=True, timeout=600)  # fmt: skip
    finally:
        for each in reversed(started):
            each.terminate()
        for each in started:
            each.wait(30)
    assert "2 nodes with 4 clients" in run.stdout, run.stdout + run.stderr
    losses = [
        [json.loads(line)["train_loss"] for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("run", "simulated")
    ]
    assert len(losses[0]) == 3
    np.testing.assert_allclose(*losses, rtol=1e-6)
