"""Real processes on this machine: a link, two nodes with an echo worker, and the transport, with TLS and keys."""

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs pip install 'fedax[flower]'")

import flwr.app
import httpx
import jax.numpy as jnp
from flwr.app.error import Error
from flwr.common.constant import NOOP_FLWR_AID
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.serverapp import Grid
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_id
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    inflate_object_from_contents,
    validate_object_content,
)
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import InMemoryGrid
from starlette.middleware import Middleware

from fedax import flower
from fedax.engine.places.nodes import Failure, Message, packed, unpacked
from fedax.errors import ConfigError, FedaxError, NodeError
from fedax.flower import app, certificates, client_app, link, processes, records, superlink, supernode, transport
from fedax.flower import node as nodes
from tests import long

from . import echo
from .federation import SOON, children, is_running, wait_for

PATH = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])  # of processes; it has the module echo

FOREIGN = """\
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.query()
def query(message, context):
    text = message.content["head"]["json"]
    if "rubbish" in text:
        return Message(RecordDict(), reply_to=message)
    return Message(RecordDict({"head": ConfigRecord({"json": '{"foreign": true}'})}), reply_to=message)
"""


def foreign_app() -> bytes:
    project = app.files()["pyproject.toml"].replace(b"fedax-app", b"other-app").replace(b"fedax_app", b"other_app")
    files = {"pyproject.toml": project, "other_app/__init__.py": b"", "other_app/client.py": FOREIGN.encode()}
    return app.bundle({**files, "other_app/server.py": b"app = None\n"})


class Network:
    """A link's folder, and the commands that run."""

    def __init__(self, folder: Path):
        self.folder, self.port = folder, processes.free_port()
        self.commands: dict[str, subprocess.Popen[bytes]] = {}
        self.address = f"127.0.0.1:{self.port}"
        self.ca, self.secret = folder / "link" / "ca.pem", ""

    def start(self, name: str, module: str, **given: Any) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.txt").open("ab") as output:
            self.commands[name] = subprocess.Popen(
                [sys.executable, "-m", module, *processes.options(**given)],
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": PATH},
            )
        return self.commands[name]

    def start_link(self) -> None:
        self.start("link", "fedax.flower.link", folder=self.folder / "link", port=self.port, bind="127.0.0.1")

    def of_node(self, name: str, **given: Any) -> dict[str, Any]:
        """The arguments of a node, but for those of its worker."""
        values = {"link": self.address, "ca": self.ca, "key": self.folder / name, "poll": 0.5}
        return {**values, "state": self.folder / f"{name}.state", "factory": "echo:make", **given}

    def start_node(self, name: str, **given: Any) -> subprocess.Popen[bytes]:
        return self.start(name, "fedax.flower.node", arguments=f'{{"name": "{name}"}}', **self.of_node(name, **given))

    def number(self, name: str) -> int:
        return int((self.folder / f"{name}.state" / "number").read_text())

    def output(self, name: str) -> str:
        return (self.folder / f"{name}.txt").read_text()

    @contextlib.contextmanager
    def commanding(self) -> Iterator[Any]:
        with transport.control(self.address, self.ca, self.secret) as made:
            yield made

    def connect(self) -> contextlib.AbstractContextManager[transport.FlowerTransport]:
        return transport.connect(self.address, self.ca, self.secret, say=lambda line: None)


def answer_of(carrier: transport.FlowerTransport, node: int) -> Message:
    """The first answer of a restarted node: requests fail until the link has noticed that the old one is gone."""
    results: list[Any] = []

    def answered() -> bool:
        if node in carrier.nodes():
            results[:] = [answers(carrier, {node: Message({})})[node]]
        return bool(results) and isinstance(results[0], Message)

    wait_for(answered)
    return results[0]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    made = Network(tmp_path_factory.mktemp("flower"))
    link.prepare(made.folder / "link", ["127.0.0.1"])
    made.secret = (made.folder / "link" / "secret").read_text()
    for name in ("n0", "n1"):
        certificates.make_node_key(made.folder / name)
        (made.folder / f"{name}.pub").rename(made.folder / "link" / "nodes" / f"{name}.pub")
    try:
        made.start_link()
        made.start_node("n0")
        made.start_node("n1", trusted=app.app_hash(foreign_app()))
        wait_for(lambda: certificates.connection_problem(made.address, made.ca) is None)
        with made.connect() as first:
            wait_for(lambda: len(first.nodes()) == 2)
        yield made
    finally:
        for command in made.commands.values():
            command.send_signal(signal.SIGTERM)
        ends = {name: command.wait(SOON) for name, command in made.commands.items()}
        assert not any(ends.values()), {name: made.output(name)[-500:] for name in ends if ends[name]}


@pytest.fixture
def carrier(network: Network) -> Iterator[transport.FlowerTransport]:
    with network.connect() as made:
        wait_for(lambda: len(made.nodes()) == 2)
        yield made


def answers(carrier: transport.FlowerTransport, messages: dict[int, Message], timeout: float = SOON) -> dict[int, Any]:
    result = list(carrier.ask(messages, timeout))
    assert sorted(node for node, _ in result) == sorted(messages)  # each node once
    return dict(result)


@pytest.mark.parametrize("size", [0, 3, 5_300_001])
def test_messages_come_back_bit_for_bit(carrier: transport.FlowerTransport, size: int, record_property: Any) -> None:
    rng = np.random.default_rng(size)
    tree = {"raw": np.frombuffer(rng.bytes(size), np.uint8)}
    file = packed(tree) if size else b""
    head = {"k": [1, 2.5, None, True, "ä"], "nested": {"a": {}}}
    numbers = carrier.nodes()
    replies = answers(carrier, {node: Message(head, file) for node in numbers})
    for node in numbers:
        assert replies[node].tensors == file
        assert {name: replies[node].head[name] for name in head} == head
    assert sorted(replies[node].head["name"] for node in numbers) == ["n0", "n1"]
    for way, total in (("sent", carrier.sent), ("received", carrier.received)):
        over = total / len(numbers) - len(file)
        record_property(f"bytes {way} over the payload", over)
        print(f"{size} bytes: {over:g} over the payload {way}")
        assert 0 < over < 10_000


def test_every_type_of_number_survives(carrier: transport.FlowerTransport) -> None:
    tree = {"up": {"h": jnp.arange(3, dtype=jnp.bfloat16), "n": np.float32("nan"), "i": np.arange(2)}}
    node = carrier.nodes()[0]
    reply = answers(carrier, {node: Message({}, packed(tree))})[node]
    back = unpacked(reply.tensors, tree, "the answer")
    assert back["up"]["h"].dtype == jnp.bfloat16 and packed(back) == packed(tree)


def test_an_exception_is_an_answer_with_an_error(carrier: transport.FlowerTransport) -> None:
    node = carrier.nodes()[0]
    assert answers(carrier, {node: Message({"do": "raise"})})[node] == Message(
        {"error": "ZeroDivisionError: on purpose"}
    )


def test_a_node_that_does_not_answer_in_time(network: Network, carrier: transport.FlowerTransport) -> None:
    slow, quick = network.number("n0"), network.number("n1")
    began = time.monotonic()
    replies = answers(carrier, {slow: Message({"do": "sleep", "seconds": 3}), quick: Message({})}, 1.5)
    assert time.monotonic() - began < 2.5
    assert replies[slow] == Failure("no answer in 1.5 s", True)
    assert replies[quick].head["name"] == "n1"


def test_a_node_that_no_one_knows(carrier: transport.FlowerTransport) -> None:
    assert answers(carrier, {5: Message({})})[5].gone


def test_work_for_a_run_that_is_over_does_not_disturb_the_next(network: Network) -> None:
    node = network.number("n0")
    with network.connect() as first:
        answers(first, {node: Message({"do": "sleep", "seconds": 2})}, 0.5)
    with network.connect() as second:
        assert answers(second, {node: Message({"k": 7})})[node].head["k"] == 7


def test_a_task_that_was_never_taken_is_cleared(network: Network) -> None:
    with network.commanding() as commands:
        fab = transport.fab_to_proto(transport.Fab("", app.build(), {}))
        old = commands.StartRun(transport.StartRunRequest(fab=fab)).run_id
        with network.connect() as made:
            made.nodes()
        runs = commands.ListRuns(transport.ListRunsRequest(limit=5)).run_dict
        assert runs[old].status.sub_status == "failed"
        assert all(run.status.status == "finished" for run in runs.values())


def test_one_run_at_a_time(
    network: Network, carrier: transport.FlowerTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_EXPIRY", 0.5)
    with pytest.raises(NodeError, match=r"another run .* is under way"), network.connect():
        pass
    assert carrier.nodes()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_run_ends_with_its_command(network: Network, error: type[BaseException]) -> None:
    with pytest.raises(error), network.connect():
        raise error("so")
    with network.commanding() as commands:
        runs = commands.ListRuns(transport.ListRunsRequest()).run_dict.values()
    assert all(run.status.status == "finished" for run in runs)
    assert f"{error.__name__}: so" in [run.status.details for run in runs if run.status.sub_status == "failed"]


def test_only_trusted_apps_run(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "build", foreign_app)
    careful, trusting = network.number("n0"), network.number("n1")
    with network.connect() as made:
        replies = answers(made, {careful: Message({}), trusting: Message({})})
        rubbish = answers(made, {trusting: Message({"say": "rubbish"})})[trusting]
    assert not replies[careful].gone
    assert f"--trusted {app.app_hash(foreign_app())}" in replies[careful].text
    assert replies[trusting] == Message({"foreign": True})
    assert not rubbish.gone and "no message of fedax" in rubbish.text


def test_a_killed_worker_comes_back(network: Network, carrier: transport.FlowerTransport) -> None:
    node = network.number("n0")
    before = answers(carrier, {node: Message({})})[node].head["pid"]
    began = time.monotonic()
    replies = answers(carrier, {node: Message({"do": "die"})})[node]
    assert isinstance(replies, Failure) and replies.gone
    assert time.monotonic() - began < SOON - 10  # it is noticed, not waited for
    assert answer_of(carrier, node).head["pid"] != before


@long
def test_a_killed_supernode_comes_back_as_the_same_node(network: Network, carrier: transport.FlowerTransport) -> None:
    node = network.number("n1")
    before = answers(carrier, {node: Message({})})[node].head["pid"]
    (process,) = children(network.commands["n1"].pid, "fedax.flower.supernode")
    threading.Timer(1.0, os.kill, (process, signal.SIGKILL)).start()
    replies = answers(carrier, {node: Message({"do": "sleep", "seconds": 3})})[node]
    assert isinstance(replies, Failure) and replies.gone
    assert answer_of(carrier, node).head["pid"] == before  # the worker stayed warm
    assert network.number("n1") == node


def test_parts_that_never_come_are_a_failure_that_closes_the_task() -> None:
    """Flower's own error is no Exception, and would leave the task open and the worker waiting."""

    def over(object_ids: list[str]) -> dict[str, bytes]:
        raise RunNotRunningException

    with pytest.raises(ObjectPullError, match="the run is over"):
        supernode._pull_or_fail(over)(["a"])
    assert not issubclass(RunNotRunningException, Exception)  # else the module no longer needs this
    assert supernode._pull_or_fail(lambda object_ids: dict.fromkeys(object_ids, b"x"))(["a"]) == {"a": b"x"}


def test_a_link_that_comes_back_soon_is_waited_for(network: Network, carrier: transport.FlowerTransport) -> None:
    (process,) = children(network.commands["link"].pid, "fedax.flower.superlink")
    threading.Timer(0.5, os.kill, (process, signal.SIGKILL)).start()
    replies = answers(carrier, {node: Message({"do": "sleep", "seconds": 1.5}) for node in carrier.nodes()})
    assert sorted(reply.head["name"] for reply in replies.values()) == ["n0", "n1"]


@long
def test_a_link_that_is_killed_and_started_again(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_PATIENCE", 1.0)
    (process,) = children(network.commands["link"].pid, "fedax.flower.superlink")
    with pytest.raises(NodeError, match=r"cannot be reached .* --resume"), network.connect() as made:
        numbers = made.nodes()
        network.commands["link"].kill()
        network.commands["link"].wait()
        wait_for(lambda: not is_running(process))  # it ends with its supervisor
        list(made.ask({node: Message({}) for node in numbers}, SOON))
    network.start_link()
    monkeypatch.setattr(transport, "_PATIENCE", 30.0)
    wait_for(lambda: certificates.connection_problem(network.address, network.ca) is None)
    with network.commanding() as commands:  # the run of before counts as under way for a minute
        runs = commands.ListRuns(transport.ListRunsRequest()).run_dict
        (run,) = [number for number, run in runs.items() if run.status.status == "running"]
        commands.StopRun(transport.StopRunRequest(run_id=run))
    with network.connect() as again:
        wait_for(lambda: again.nodes() == numbers)
        assert len(answers(again, {node: Message({}) for node in numbers})) == 2


def test_a_run_that_was_stopped_at_the_link(network: Network) -> None:
    with pytest.raises(NodeError, match="has ended this run"), network.connect() as made:
        with network.commanding() as commands:
            runs = commands.ListRuns(transport.ListRunsRequest()).run_dict
            (run,) = [number for number, run in runs.items() if run.status.status == "running"]
            commands.StopRun(transport.StopRunRequest(run_id=run))
        made.nodes()


def test_nothing_but_the_nodes_part_without_the_secret(network: Network) -> None:
    context = ssl.create_default_context(cafile=str(network.ca))
    with httpx.Client(base_url=f"https://{network.address}", verify=context) as http:
        closed = ["/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task", "/docs", "/"]
        closed += ["/v1/fleet/../control/list-runs", "//v1/fleet/x", "/v1/Fleet/x"]
        wrong = [{}, {"authorization": "Bearer no"}, {"authorization": network.secret}]
        for path in closed:
            for headers in wrong:
                assert http.post(path, headers=headers).status_code == 403, (path, headers)
        assert http.get("/health").status_code == 200
        right = {"authorization": f"Bearer {network.secret}"}
        assert http.post("/v1/control/list-federations", headers=right).status_code == 415  # Flower has it
    with pytest.raises(NodeError, match="refuses the secret"), transport.connect(network.address, network.ca, "no"):
        pass


def test_a_node_whose_worker_cannot_work_says_why_and_ends(network: Network) -> None:
    network.start_node("bad", key=network.folder / "n0")
    assert network.commands.pop("bad").wait(SOON) == 2
    assert "data = 'bad': give a folder" in network.output("bad") and "Traceback" not in network.output("bad")


def test_a_node_that_cannot_work(network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", PATH)
    link.prepare(other := tmp_path / "other", ["127.0.0.1"])
    make_server_anew(other, ["127.0.0.1"], -1)
    with listening(other) as late:
        cases: dict[str, tuple[dict[str, Any], str]] = {
            "unknown": ({"wait": 1.0}, "does not know the key"),
            "mistaken": ({"ca": other / "ca.pem"}, "is not signed by"),
            "lonely": ({"link": f"127.0.0.1:{processes.free_port()}", "wait": 1.0}, "could not be reached for 1 s"),
            "second": ({"key": network.folder / "n0", "state": network.folder / "n0.state"}, "another node uses this"),
            "late": ({"link": late, "ca": other / "ca.pem"}, "has expired"),
        }
        for name, (given, line) in cases.items():
            works = threading.Timer(SOON, signal.raise_signal, [signal.SIGINT])  # ends a node that works all the same
            works.start()
            try:
                with pytest.raises(FedaxError, match=line):
                    nodes.run(**network.of_node(name, **given), arguments={"name": name})
            finally:
                works.cancel()


def test_a_certificate_that_is_over_or_for_another_host(tmp_path: Path) -> None:
    link.prepare(tmp_path, ["127.0.0.1"])
    for hosts, days, line in ((["127.0.0.1"], -1, "has expired"), (["elsewhere"], 1, "is not for 127.0.0.1")):
        make_server_anew(tmp_path, hosts, days)
        with listening(tmp_path) as address, pytest.raises(NodeError, match=line):
            certificates.connection_problem(address, tmp_path / "ca.pem")


def make_server_anew(folder: Path, hosts: list[str], days: float) -> None:
    for file in ("server.pem", "server.key"):
        (folder / file).unlink()
    certificates.make_server(folder, hosts, days)


@contextlib.contextmanager
def listening(folder: Path) -> Iterator[str]:
    """A TLS server with the certificate in a folder."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    plain, _ = server.accept()
                    with contextlib.suppress(OSError), context.wrap_socket(plain, server_side=True):
                        pass

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def test_a_removed_key_is_no_longer_known(network: Network) -> None:
    key = network.folder / "link" / "nodes" / "n1.pub"
    text = key.read_bytes()
    key.unlink()
    assert network.commands.pop("n1").wait(SOON) == 2
    assert "does not know the key" in network.output("n1")
    key.write_bytes(text)
    wait_for(lambda: "a key that was removed cannot come back" in network.output("link"))
    (network.folder / "n1").unlink()
    certificates.make_node_key(network.folder / "n1")
    (network.folder / "n1.pub").rename(key)
    network.start_node("n1")
    with network.connect() as made:
        wait_for(lambda: len(made.nodes()) == 2)


@long
def test_nothing_is_left_of_a_node_that_was_killed(network: Network) -> None:
    command, node = network.commands["n1"], network.number("n1")
    left = children(command.pid, "fedax.flower.")
    assert len(left) == 2
    command.kill()
    command.wait()
    wait_for(lambda: not any(is_running(process) for process in left))
    line = f"this is node {node} at"
    before = network.output("n1").count(line)
    network.start_node("n1")
    wait_for(lambda: network.output("n1").count(line) > before)  # well before Flower notices that it is gone
    with network.connect() as made:
        wait_for(lambda: node in made.nodes())
        assert answers(made, {node: Message({})})[node].head["pid"] not in left


def test_a_clock_that_is_wrong(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() - 3600)  # what this process believes
    with network.connect() as made:
        assert -1 < made._ahead - 3600 < 1
    monkeypatch.undo()
    made = transport.FlowerTransport(grid := Late(), ahead=3600.0)
    transport.TaskIdentity.run_id = transport.TaskIdentity.node_id = transport.TaskIdentity.task_id = 1
    list(made.ask({7: Message({})}, 0.1))
    assert 3500 < grid.pushed[0].metadata.created_at - time.time() < 3700
    assert 0.1 < grid.pushed[0].metadata.ttl < 5


class Late(Grid):
    """A grid whose nodes never answer."""

    def __init__(self) -> None:
        self.pushed: list[flwr.app.Message] = []

    run = create_message = get_nodes = send_and_receive = set_run = None

    def get_node_ids(self) -> list[int]:
        return [9, 7]

    def push_messages(self, messages: list[flwr.app.Message]) -> list[str]:
        self.pushed += messages
        return ["a"]

    def pull_messages(self, message_ids: list[str]) -> list[flwr.app.Message]:
        return []


def in_memory() -> tuple[list[int], InMemoryGrid, threading.Event]:
    factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory())
    state = factory.state()
    given = ("fedax/app", "1.0.0", "", {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP)
    run = state.create_run(*given)
    numbers = [state.create_node(NOOP_FLWR_AID, "", bytes([k]), 1e9) for k in range(3)]
    assert all(state.acknowledge_node_heartbeat(number, 1e9) for number in numbers)
    grid = InMemoryGrid(factory)
    grid.set_run(state.get_run_info(run_ids=[run])[0])
    transport.TaskIdentity.task_id = transport.TaskIdentity.node_id = 1
    transport.TaskIdentity.run_id = run
    return numbers, grid, threading.Event()


def test_in_flowers_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grid of Flower's simulation, without Ray: a thread in the place of the clients."""
    numbers, grid, ended = in_memory()
    monkeypatch.setattr(client_app, "answer", echo.make("here"))

    def work() -> None:
        while not ended.wait(0.02):
            for number in numbers:
                for message in grid.state.get_message_ins(number, limit=1):
                    context = flwr.app.Context(1, number, {}, flwr.app.RecordDict(), {})
                    reply = client_app.app(message=message, context=context)
                    reply.metadata.__dict__["_message_id"] = f"reply to {message.metadata.message_id}"
                    grid.state.store_message_res(reply)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        made = transport.FlowerTransport(grid)
        assert made.nodes() == sorted(numbers)
        result = dict(made.ask({number: Message({"k": number % 7}, b"x" * 9) for number in numbers}, SOON))
    finally:
        ended.set()
        thread.join()
    assert {number: reply.head["k"] for number, reply in result.items()} == {n: n % 7 for n in numbers}
    assert all(reply.tensors == b"x" * 9 for reply in result.values())
    assert made.sent > 100 and made.received > 100


def test_records_of_others_are_no_messages() -> None:
    good = records.pack(Message({"a": 1}, b"abc"))
    assert records.unpack(good) == Message({"a": 1}, b"abc")
    head = flwr.app.ConfigRecord({"json": "[1]"})
    numpy_array = flwr.app.ArrayRecord({"0": flwr.app.Array(np.zeros(3))})
    for bad in (
        flwr.app.RecordDict(),
        flwr.app.RecordDict({"head": head}),
        flwr.app.RecordDict({"head": flwr.app.ConfigRecord({"json": "{"})}),
        flwr.app.RecordDict({"head": flwr.app.ConfigRecord({"other": "{}"})}),
        flwr.app.RecordDict({"head": flwr.app.ConfigRecord({"json": "{}"}), "tensors": numpy_array}),
        flwr.app.RecordDict({"head": flwr.app.ConfigRecord({"json": "{}"}), "tensors": flwr.app.ArrayRecord()}),
    ):
        with pytest.raises(ValueError, match="no message of fedax"):
            records.unpack(bad)


@pytest.mark.parametrize("tensors", [b"", b"abc", bytes((1 << 20) + 1)])
def test_a_small_message_travels_in_one_piece(tensors: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every part of a message costs a link two requests, which are most of a round."""
    for name, number in (("_run_id", 1), ("_task_id", 2), ("_node_id", 3)):
        monkeypatch.setattr(TaskIdentity, name, number)
    sent = Message({"a": "\N{SNOWMAN}"}, tensors)
    made = records.FlowerMessage(records.pack(sent), 7, "query", ttl=9.0)
    parts = get_all_nested_objects(made)
    assert len(parts) == 1 if len(tensors) < 1 << 20 else len(parts) > 4
    contents = {number: part.deflate() for number, part in parts.items()}
    for content in contents.values():
        validate_object_content(content)
    assert {get_object_id(content) for content in contents.values()} == set(contents)
    came = inflate_object_from_contents(made.object_id, contents)
    assert isinstance(came, flwr.app.Message) and records.unpack(came.content) == sent
    assert vars(came.metadata) == vars(made.metadata) and came.metadata.dst_node_id == 7

    failed = records.FlowerMessage(Error(3, "why"), reply_to=made)
    came = inflate_object_from_contents(failed.object_id, {failed.object_id: failed.deflate()})
    assert isinstance(came, flwr.app.Message) and came.has_error() and came.error.reason == "why"


def test_an_apps_hash_is_of_its_files() -> None:
    assert app.own_hash() == app.app_hash(app.build())
    assert app.app_hash(foreign_app()) != app.own_hash()
    with pytest.raises(ValueError, match="no zip file"):
        app.app_hash(b"abc")


def test_files_that_are_secret_are_their_owners(network: Network) -> None:
    private = [network.folder / "link" / name for name in ("ca.key", "server.key", "secret")]
    for path in [*private, network.folder / "n0", network.folder / "n0.state" / "secret"]:
        assert path.stat().st_mode & 0o777 == 0o600, path


def test_certificates_are_kept_and_renewed(tmp_path: Path) -> None:
    link.prepare(tmp_path, ["a.example"])
    first = {name: (tmp_path / name).read_bytes() for name in ("ca.pem", "server.pem", "secret")}
    link.prepare(tmp_path, ["a.example"])
    assert first == {name: (tmp_path / name).read_bytes() for name in first}
    link.prepare(tmp_path, ["b.example"])
    assert (tmp_path / "server.pem").read_bytes() != first["server.pem"]
    assert (tmp_path / "ca.pem").read_bytes() == first["ca.pem"]
    certificates.make_server(tmp_path, ["b.example"], 5)
    kept = (tmp_path / "server.pem").read_bytes()
    (tmp_path / "server.pem").unlink()
    certificates.make_server(tmp_path, ["b.example"], 5)
    soon_over = (tmp_path / "server.pem").read_bytes()
    certificates.make_server(tmp_path, ["b.example"])
    assert (tmp_path / "server.pem").read_bytes() not in (kept, soon_over)


def test_another_version_of_flower_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower.importlib.metadata, "version", lambda name: "1.0.0")
    with pytest.raises(ConfigError, match=r"flwr = '1.0.0': .*'fedax\[flower\]'"):
        flower.require()


def test_fedax_does_not_import_flower() -> None:
    script = "import sys, fedax, fedax.cli, fedax.flower; sys.exit('flwr' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_the_guard_takes_one_header_only() -> None:
    went: list[str] = []
    results: list[Any] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        went.append(scope["path"])

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(event: Any) -> None:
        results.append(event.get("status"))

    access = superlink.AccessControl(inner, "s", lambda key: None)
    header, host = (b"authorization", b"Bearer s"), (b"host", b"localhost")
    for headers in ([host, header], [host, header, header], [host, host, header]):
        scope = {"type": "http", "method": "POST", "path": "/v1/control/list-nodes", "headers": headers}
        asyncio.run(access(scope, receive, send))
    assert went == ["/v1/control/list-nodes"] and results == [403, None, 400, None]


def test_requests_pass_the_middleware_that_concerns_them() -> None:
    """Access control of the nodes' part or the commands' part of a link still sees every request to it."""
    from flwr.superlink.main import _get_middleware

    given = _get_middleware()
    middleware = superlink.selective(given)
    assert [each.args[0].cls for each in middleware] == [
        each.cls for each in given if each.cls.__name__ != "RuntimeTracingMiddleware"
    ]
    paths = {each.args[0].cls.__name__: each.args[1] for each in middleware}
    control = ("ControlSensitiveResponse", "ControlAuthentication", "ControlLicense", "ControlEventLog")
    fleet = ("NodeAuth", "FleetEventLog")
    assert {name: path for name, path in paths.items() if path != "/"} == {
        f"{name}Middleware": "/v1/control/" for name in control
    } | {f"{name}Middleware": "/v1/fleet/" for name in fleet}

    went: list[str] = []

    class Inner:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            went.append(scope["path"])
            await self.app(scope, receive, send)

    async def past(scope: Any, receive: Any, send: Any) -> None:
        went.append("app")

    only = superlink.SelectiveMiddleware(past, Middleware(Inner), "/v1/fleet/")
    for path in ("/v1/fleet/pull", "/v1/control/x", "/v1/fleets"):
        asyncio.run(only({"type": "http", "path": path}, None, None))  # type: ignore[arg-type]
    assert went == ["/v1/fleet/pull", "app", "app", "app"]
    for each in middleware:  # a link's start and end go through all of them
        went.clear()
        (kind, *given), requests = each.args, {"type": "lifespan"}
        asyncio.run(superlink.SelectiveMiddleware(past, kind, *given)(requests, None, None))  # type: ignore[arg-type]
        assert went == ["app"]


def test_a_link_answers_with_its_middleware_spared_as_it_does_with_all_of_it() -> None:
    """All responses, refusals among them, are the same as with Flower's own middleware, byte for byte."""
    from flwr.proto.fleet_pb2 import PullMessagesRequest, RegisterNodeFleetRequest
    from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
    from flwr.proto.node_pb2 import Node
    from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
    from flwr.superlink.main import create_app

    form = {"content-type": PROTOBUF_MEDIA_TYPE}
    heartbeat = SendNodeHeartbeatRequest(node=Node(node_id=7), heartbeat_interval=30.0).SerializeToString()
    requests = [
        ("GET", "/health", b"", {}),
        ("GET", "/v1/fleet/pull-messages", b"", {}),
        ("POST", "/v1/fleet/no-such-thing", b"", form),
        ("POST", "/v1/fleet/pull-messages", b"{}", {"content-type": "application/json"}),
        ("POST", "/v1/fleet/pull-messages", b"\xff\xff\xff", form),
        ("POST", "/v1/fleet/pull-messages", PullMessagesRequest(node=Node(node_id=7)).SerializeToString(), form),
        ("POST", "/v1/fleet/register-node", RegisterNodeFleetRequest(public_key=b"k").SerializeToString(), form),
        ("POST", "/v1/fleet/send-node-heartbeat", heartbeat, form),
        ("POST", "/v1/runtime/get-nodes", b"", form),
        ("POST", "/v1/control/list-federations", b"", form),
    ]

    async def answers(app: Any) -> list[tuple[int, bytes, str | None]]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://link") as client:
            results = [await client.request(how, path, content=body, headers=h) for how, path, body, h in requests]
        return [(each.status_code, each.content, each.headers.get("content-type")) for each in results]

    apps = [create_app(), create_app()]
    apps[1].user_middleware = superlink.selective(apps[1].user_middleware)
    plain, spared = (asyncio.run(answers(each)) for each in apps)
    assert spared == plain
    assert [status for status, _, _ in plain] == [200, 405, 404, 415, 400, 401, 401, 401, 401, 200]


def test_what_only_passes_messages_on_has_no_jax():
    """The link, the node's first process and its SuperNode, which run for as long as the federation does."""
    names = ("link", "node", "supernode", "superlink", "calls", "signature")
    look = f"import sys, {', '.join(f'fedax.flower.{name}' for name in names)}; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", look], check=True, capture_output=True, text=True)
    assert not {"jax", "equinox", "pandas", "scipy"} & set(out.stdout.split())
