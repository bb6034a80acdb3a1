"""Real processes on this machine: a link, two nodes with an echo worker, and the transport, with TLS and keys."""

import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs pip install 'fedax[deploy]'")

import httpx
import jax.numpy as jnp

from fedax.errors import FedaxError, NodeError
from fedax.sites.protocol.messages import Failure, Message, packed, unpacked
from fedax.sites.protocol.roster import private_key
from fedax.sites.service import carry, certificates, link, processes, transport
from fedax.sites.service import node as nodes
from fedax.sites.service.signature import number_of
from tests import long
from tests.processes import options

from .federation import SOON, children, is_running, wait_for

PATH = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])  # of processes; it has the module echo


class Network:
    """A link's folder, and the commands that run."""

    def __init__(self, folder: Path):
        self.folder, self.port = folder, processes.free_port()
        self.commands: dict[str, subprocess.Popen[bytes]] = {}
        self.address, self.link = f"127.0.0.1:{self.port}", folder / "link"
        self.ca = self.link / "ca.pem"

    def start(self, name: str, module: str, *given: str, path: str = PATH) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.txt").open("ab") as output:
            self.commands[name] = subprocess.Popen(
                [sys.executable, "-u", "-m", module, *given],
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": path},
            )
        return self.commands[name]

    def start_link(self, path: str = PATH) -> None:
        given = options(folder=self.link, port=self.port, host="127.0.0.1", bind="127.0.0.1")
        self.start("link", "fedax", "deploy", "link", *given, path=path)

    def of_node(self, name: str, **given: Any) -> dict[str, Any]:
        """The arguments of a node, but for those of its worker."""
        values = {"link": self.address, "ca": self.ca, "key": self.folder / name}
        return {**values, "state": self.folder / f"{name}.state", **given}

    def start_node(self, name: str, path: str = PATH, **given: Any) -> subprocess.Popen[bytes]:
        settings = self.of_node(name, **given) | {"arguments": {"name": name}}
        return self.start(name, "echo", json.dumps(settings, default=str), path=path)

    def number(self, name: str) -> int:
        return int((self.folder / f"{name}.state" / "number").read_text())

    def worker(self, name: str) -> int:
        return children(self.commands[name].pid, "fedax.sites.service.worker")[0]

    def output(self, name: str) -> str:
        return (self.folder / f"{name}.txt").read_text()

    def connect(self, folder: Path | None = None) -> contextlib.AbstractContextManager[transport.LinkTransport]:
        return transport.connect(self.address, folder or self.link, say=lambda line: None)


def kill(command: subprocess.Popen[bytes]) -> None:
    command.kill()
    command.wait()


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    made = Network(tmp_path_factory.mktemp("network"))
    link.prepare(made.link, ["127.0.0.1"])
    for name in ("n0", "n1"):
        certificates.make_node_key(made.folder / name)
        (made.folder / f"{name}.pub").rename(made.link / "nodes" / f"{name}.pub")
    try:
        made.start_link()
        made.start_node("n0")
        made.start_node("n1")
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
def carrier(network: Network) -> Iterator[transport.LinkTransport]:
    with network.connect() as made:
        wait_for(lambda: len(made.nodes()) == 2)
        yield made


def answers(carrier: transport.LinkTransport, messages: dict[int, Message], timeout: float = SOON) -> dict[int, Any]:
    result = list(carrier.ask(messages, timeout))
    assert sorted(node for node, _ in result) == sorted(messages)  # each node once
    return dict(result)


@pytest.mark.parametrize("size", [0, 3, 5_300_001])
def test_messages_come_back_bit_for_bit(carrier: transport.LinkTransport, size: int) -> None:
    tree = {"raw": np.frombuffer(np.random.default_rng(size).bytes(size), np.uint8)}
    file = packed(tree) if size else b""
    head = {"k": [1, 2.5, None, True, "ä"], "nested": {"a": {}}}
    numbers = carrier.nodes()
    replies = answers(carrier, {node: Message(head, file) for node in numbers})
    for node in numbers:
        assert replies[node].tensors == file
        assert {name: replies[node].head[name] for name in head} == head
    assert sorted(replies[node].head["name"] for node in numbers) == ["n0", "n1"]
    for total in (carrier.sent, carrier.received):
        assert 0 < total / len(numbers) - len(file) < 2000


def test_every_type_of_number_survives(carrier: transport.LinkTransport) -> None:
    tree = {"up": {"h": jnp.arange(3, dtype=jnp.bfloat16), "n": np.float32("nan"), "i": np.arange(2)}}
    node = carrier.nodes()[0]
    reply = answers(carrier, {node: Message({}, packed(tree))})[node]
    back = unpacked(reply.tensors, tree, "the answer")
    assert back["up"]["h"].dtype == jnp.bfloat16 and packed(back) == packed(tree)


def test_an_exception_is_an_answer_with_an_error(carrier: transport.LinkTransport) -> None:
    node = carrier.nodes()[0]
    reply = answers(carrier, {node: Message({"do": "raise"})})[node]
    assert reply == Message({"error": "ZeroDivisionError: on purpose"})


def test_a_node_that_does_not_answer_in_time(network: Network, carrier: transport.LinkTransport) -> None:
    slow, quick = network.number("n0"), network.number("n1")
    began = time.monotonic()
    replies = answers(carrier, {slow: Message({"do": "sleep", "seconds": 20}), quick: Message({})}, 1.5)
    assert time.monotonic() - began < 10
    assert replies[slow] == Failure("no answer in 1.5 s", True)
    assert replies[quick].head["name"] == "n1"


def test_a_node_that_no_one_knows(carrier: transport.LinkTransport) -> None:
    assert answers(carrier, {5: Message({})})[5] == Failure("the link does not know this node", True)


def test_work_for_a_run_that_is_over_does_not_disturb_the_next(network: Network) -> None:
    node = network.number("n0")
    with network.connect() as first:
        answers(first, {node: Message({"do": "sleep", "seconds": 2})}, 0.5)
    with network.connect() as second:
        assert answers(second, {node: Message({"k": 7})})[node].head["k"] == 7


def test_one_run_at_a_time(network: Network, carrier: transport.LinkTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_OTHERS", 0.5)
    with pytest.raises(NodeError, match=r"another run is under way"), network.connect():
        pass
    assert carrier.nodes()
    with transport.connect(network.address, network.link, run=False) as looks:  # as `fedax deploy status` does
        assert {each["name"]: each["here"] for each in looks.registered()} == {"n0": True, "n1": True}


def test_a_killed_run_does_not_stand_in_the_way(network: Network) -> None:
    script = f"""
import pathlib, time
from fedax.sites.service import transport
with transport.connect("{network.address}", pathlib.Path("{network.link}")) as made:
    print("begun", flush=True)
    time.sleep(1000)
"""
    command = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": PATH}
    )
    assert command.stdout is not None and command.stdout.readline() == b"begun\n"
    kill(command)
    command.stdout.close()
    began = time.monotonic()
    with network.connect():
        assert time.monotonic() - began < 15  # the link sees its connection end


def test_a_killed_worker_comes_back(network: Network, carrier: transport.LinkTransport) -> None:
    node = network.number("n0")
    before = answers(carrier, {node: Message({})})[node].head["pid"]
    assert answers(carrier, {node: Message({"do": "die"})})[node] == Failure("the node's worker is gone", True)
    assert answers(carrier, {node: Message({})})[node].head["pid"] != before


def test_a_killed_node_is_asked_again_when_it_is_back(network: Network, carrier: transport.LinkTransport) -> None:
    command, node = network.commands["n1"], network.number("n1")
    worker = network.worker("n1")

    def killed() -> None:
        kill(command)
        wait_for(lambda: not is_running(worker))
        network.start_node("n1")

    thread = threading.Timer(0.5, killed)
    thread.start()
    reply = answers(carrier, {node: Message({"do": "sleep", "seconds": 1.5})})[node]
    thread.join()
    assert reply.head["pid"] not in (worker, None) and network.number("n1") == node


def test_a_link_that_is_killed_is_waited_for(network: Network, carrier: transport.LinkTransport) -> None:
    """It comes back while nodes work; nothing is asked twice of a node that has done it."""

    def killed() -> None:
        kill(network.commands["link"])
        time.sleep(1.0)
        network.start_link()

    thread = threading.Timer(0.3, killed)
    thread.start()
    replies = answers(carrier, {node: Message({"do": "sleep", "seconds": 0.8}) for node in carrier.nodes()})
    thread.join()
    assert sorted(reply.head["name"] for reply in replies.values()) == ["n0", "n1"]
    again = answers(carrier, {node: Message({}) for node in replies})
    assert [again[node].head["calls"] - replies[node].head["calls"] for node in replies] == [1, 1]


@long
def test_a_link_that_stays_away(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_PATIENCE", 1.0)
    with pytest.raises(NodeError, match=r"cannot be reached .* --resume"), network.connect() as made:
        numbers = made.nodes()
        kill(network.commands["link"])
        list(made.ask({node: Message({}) for node in numbers}, SOON))
    network.start_link()
    monkeypatch.undo()
    wait_for(lambda: certificates.connection_problem(network.address, network.ca) is None)
    with network.connect() as again:
        wait_for(lambda: again.nodes() == numbers)
        assert len(answers(again, {node: Message({}) for node in numbers})) == 2


def test_a_run_without_the_links_key(network: Network, tmp_path: Path) -> None:
    link.prepare(tmp_path, ["127.0.0.1"])
    for name in ("ca.key", "server.key", "server.pem"):
        (tmp_path / name).unlink()
    own = (tmp_path / "ca.pem").read_text()
    (tmp_path / "ca.pem").write_text(network.ca.read_text() + own)
    with pytest.raises(NodeError, match="refuses the secret"), network.connect(tmp_path):
        pass


def test_a_node_whose_worker_cannot_work_says_why_and_ends(network: Network) -> None:
    network.start_node("bad", key=network.folder / "n0")
    assert network.commands.pop("bad").wait(SOON) == 2
    assert "data = 'bad': give a folder" in network.output("bad") and "Traceback" not in network.output("bad")


def test_a_second_node_with_the_same_key_is_refused(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "_TAKEN", 1.0)
    monkeypatch.setenv("PYTHONPATH", PATH)
    with pytest.raises(NodeError, match=r"another node with the key .*n0 is at the link .*: end it, or give"):
        nodes.run(**network.of_node("second", key=network.folder / "n0"), factory="echo:make", arguments={})
    with network.connect() as made:
        assert answers(made, {network.number("n0"): Message({})})[network.number("n0")].head["name"] == "n0"


def test_a_node_that_cannot_work(network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", PATH)
    link.prepare(other := tmp_path / "other", ["127.0.0.1"])
    make_server_anew(other, ["127.0.0.1"], -1)
    with listening(other) as late:
        cases: dict[str, tuple[dict[str, Any], str]] = {
            "unknown": ({"wait": 1.0}, "does not know the key"),
            "mistaken": ({"ca": other / "ca.pem"}, "is not signed by"),
            "lonely": ({"link": f"127.0.0.1:{processes.free_port()}", "wait": 1.0}, "cannot be reached .*, for 1 s"),
            "second": ({"key": network.folder / "n0", "state": network.folder / "n0.state"}, "another node uses this"),
            "late": ({"link": late, "ca": other / "ca.pem"}, "has expired"),
        }
        for name, (given, line) in cases.items():
            works = threading.Timer(SOON, signal.raise_signal, [signal.SIGINT])  # ends a node that works all the same
            works.start()
            try:
                with pytest.raises(FedaxError, match=line):
                    nodes.run(**network.of_node(name, **given), factory="echo:make", arguments={"name": name})
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


def test_a_removed_key_is_no_longer_known_and_may_come_back(network: Network) -> None:
    key = network.link / "nodes" / "n1.pub"
    text = key.read_bytes()
    key.unlink()
    assert network.commands.pop("n1").wait(SOON) == 2
    assert "does not know the key" in network.output("n1") and "has removed it" in network.output("n1")
    assert "is no longer known: its key was removed" in network.output("link")
    key.write_bytes(text)
    network.start_node("n1")
    with network.connect() as made:
        wait_for(lambda: len(made.nodes()) == 2)


def test_keys_that_are_none_are_told(network: Network) -> None:
    (path := network.link / "nodes" / "bad.pub").write_text("no key")
    try:
        wait_for(lambda: f"nodes = '{path}': no public key" in network.output("link"))
    finally:
        path.unlink()


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


def test_files_that_are_secret_are_their_owners(network: Network) -> None:
    private = [network.link / name for name in ("ca.key", "server.key", "secret")]
    for path in [*private, network.folder / "n0"]:
        assert path.stat().st_mode & 0o777 == 0o600, path


def test_only_health_is_answered_without_a_signature(network: Network) -> None:
    context = ssl.create_default_context(cafile=str(network.ca))
    with httpx.Client(base_url=f"https://{network.address}", verify=context) as http:
        assert http.get("/health").status_code == 200
        for path in ("/questions", "/answers", "/question", "/answer", "/hello", "/nodes", "/end"):
            assert http.post(path, content=b"{}").status_code == 401, path
        assert http.put("/parts/abc", content=b"x").status_code == http.get("/parts/abc").status_code == 401
        for path in ("/", "/docs", "/parts", "//question", "/openapi.json"):
            assert http.get(path).status_code == 404, path


def test_what_only_passes_messages_on_has_no_jax() -> None:
    """The link and the node's first process, which run for as long as the federation does; a worker without a site."""
    look = "import sys, fedax.sites.service.link, fedax.sites.service.node; print(*sys.modules)\n"
    look += "import fedax.sites.service.worker; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", look], check=True, capture_output=True, text=True)
    first, worker = (set(line.split()) for line in out.stdout.splitlines())
    assert not {"jax", "equinox", "pandas", "scipy", "numpy"} & first
    assert not {"jax", "equinox", "pandas", "scipy"} & worker


def test_behind_a_proxy_that_ends_tls(network: Network, tmp_path: Path) -> None:
    """Its authority is added to the site's file; it sees the messages, and what it makes up is not taken."""
    link.prepare(proxys := tmp_path / "proxy", ["127.0.0.1"])
    ca = tmp_path / "ca.pem"
    only = (proxys / "ca.pem").read_text().partition("-----BEGIN PUBLIC KEY")[0]
    ca.write_text(network.ca.read_text() + only)
    certificates.make_node_key(tmp_path / "far")
    with ending_tls(proxys, network) as (address, seen):
        network.start_node("far", link=address, ca=ca, key=tmp_path / "far")
        try:
            shutil.copy(tmp_path / "far.pub", network.link / "nodes" / "far.pub")
            wait_for(lambda: "this is node" in network.output("far"))
            with network.connect() as made:
                node = network.number("far")
                wait_for(lambda: node in made.nodes())
                assert answers(made, {node: Message({"k": 7}, b"model")})[node].head["k"] == 7
                assert b"model" in b"".join(seen)  # it sees what goes through
        finally:
            network.commands["far"].terminate()
            assert network.commands.pop("far").wait(SOON) == 0
            (network.link / "nodes" / "far.pub").unlink()


def test_a_proxy_that_forges(network: Network, tmp_path: Path) -> None:
    """What it makes of a link's answers is no message; the node asks again, and works once."""
    link.prepare(proxys := tmp_path / "proxy", ["127.0.0.1"])
    ca = tmp_path / "ca.pem"
    ca.write_text(network.ca.read_text() + (proxys / "ca.pem").read_text().partition("-----BEGIN PUBLIC KEY")[0])
    forged, content = list[bytes](), np.random.default_rng(0).bytes(3 << 20)
    words = {b'"letters"': b'"lettuce"', b"until": b"untie", b'"have"': b'"hate"', content[:9]: b"x" * 9}

    def forge(piece: bytes) -> bytes:
        for word in [word for word in words if word in piece and forged.count(word) < 2]:
            forged.append(word)
            piece = piece.replace(word, words[word])
        return piece

    network.commands["n1"].terminate()
    assert network.commands.pop("n1").wait(SOON) == 0
    told = network.output("n1").count("this is node")
    try:
        with ending_tls(proxys, network, forge) as (address, _), network.connect() as made:
            command, node = network.start_node("n1", link=address, ca=ca), network.number("n1")
            wait_for(lambda: node in made.nodes() and network.output("n1").count("this is node") > told)
            reply = answers(made, {node: Message({}, content)})[node]
            assert isinstance(reply, Message), reply
            assert reply.tensors == content and reply.head["calls"] == 1  # the worker was asked once
            assert sorted(forged) == sorted([*words] * 2) and command.poll() is None
            command.terminate()
            assert command.wait(SOON) == 0
    finally:
        network.start_node("n1")


def test_a_question_that_the_run_has_not_signed_is_not_answered(network: Network) -> None:
    """As a proxy that ends TLS, or a link in other hands, could make one."""
    with network.connect() as made:
        node = network.number("n0")
        wait_for(lambda: node in made.nodes())
        before = answers(made, {node: Message({})})[node].head["calls"]
        made._secret = private_key_of(network, "n1")
        reply = answers(made, {node: Message({})})[node]
        assert "does not know the key that signed the question" in reply.head["error"]
        made._secret = lambda: certificates.load_secret(network.link)
        assert answers(made, {node: Message({})})[node].head["calls"] == before + 1  # the worker was not asked


def test_an_answer_that_the_node_has_not_signed_is_not_taken(network: Network) -> None:
    certificates.make_node_key(network.folder / "liar")
    shutil.copy(network.folder / "liar.pub", network.link / "nodes")
    key, other = private_key_of(network, "liar"), private_key_of(network, "n0")
    caller = carry.Caller(network.address, network.ca, key)
    node, came = number_of(key().public_key()), list[Any]()

    def here() -> bool:
        with contextlib.suppress(carry.Refused):
            caller.call("/question", {"has": [], "seconds": 0})
            return True
        return False

    try:
        wait_for(here)
        with network.connect() as made:
            wait_for(lambda: here() and node in made.nodes())
            thread = threading.Thread(target=lambda: came.extend(made.ask({node: Message({})}, SOON)))
            thread.start()
            table, _ = caller.call("/question", {"has": [], "seconds": 20})
            caller.call("/answer", {"letter": table["letters"][0].answered(other(), [b"{}"]).sent}, [b"{}"])
            thread.join()
        assert came == [(node, Failure("the answer is not signed by the node", False))]
    finally:
        caller.close()
        (network.link / "nodes" / "liar.pub").unlink()


def private_key_of(network: Network, name: str) -> Any:
    key = private_key(network.folder / name)
    return lambda: key


def test_a_greeting_of_another_is_none(network: Network, tmp_path: Path) -> None:
    """A site whose file has the link's certificate, but not its key, does not take its time from anybody."""
    link.prepare(other := tmp_path / "other", ["127.0.0.1"])
    cut = "-----BEGIN PUBLIC KEY"
    ca = tmp_path / "ca.pem"
    ca.write_text(network.ca.read_text().partition(cut)[0] + cut + (other / "ca.pem").read_text().partition(cut)[2])
    caller = carry.Caller(network.address, ca, private_key_of(network, "n0"))
    with pytest.raises(NodeError, match=r"is not the link of .*: its greeting is not signed"):
        caller.hello()
    caller.close()


@contextlib.contextmanager
def ending_tls(
    folder: Path, network: Network, forge: Callable[[bytes], bytes] = bytes
) -> Iterator[tuple[str, list[bytes]]]:
    """A proxy with a certificate of its own, which may change what the link sends; its address, and what it sees."""
    front = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    front.load_cert_chain(folder / "server.pem", folder / "server.key")
    back, seen = ssl.create_default_context(cafile=str(network.ca)), list[bytes]()

    def carry(one: ssl.SSLSocket, other: ssl.SSLSocket) -> None:
        with contextlib.suppress(OSError):
            while piece := one.recv(1 << 16):
                seen.append(piece)
                other.sendall(piece if one.server_side else forge(piece))
        end(one, other)

    with proxied(network.port, carry, front, back) as address:
        yield address, seen


def end(*connections: socket.socket) -> None:
    for each in connections:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


@contextlib.contextmanager
def proxied(port: int, carry: Any, front: Any = None, back: Any = None) -> Iterator[str]:
    """A proxy before a port of this machine; ``carry`` passes on what comes from one side to the other."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    plain, _ = server.accept()
                    one = other = plain
                    try:
                        one = front.wrap_socket(plain, server_side=True) if front else plain
                        other = socket.create_connection(("127.0.0.1", port))
                        other = back.wrap_socket(other, server_hostname="127.0.0.1") if back else other
                    except OSError:  # the link is away
                        end(one, other)
                        continue
                    for pair in ((one, other), (other, one)):
                        threading.Thread(target=carry, args=pair, daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("megabytes", [40, pytest.param(300, marks=pytest.mark.long)])
def test_large_messages_over_a_line_that_breaks(network: Network, megabytes: int) -> None:
    """A proxy cuts every connection after some pieces, and the link is started anew in the middle of the answer."""
    cut, passed, lock = (megabytes << 20) // 7, [0], threading.Lock()
    cuts = [0]

    def carry(one: socket.socket, other: socket.socket) -> None:
        carried = 0
        with contextlib.suppress(OSError):
            while piece := one.recv(1 << 16):
                other.sendall(piece)
                carried += len(piece)
                with lock:
                    passed[0] += len(piece)
                if carried > cut:
                    cuts[0] += 1
                    break
        end(one, other)

    network.commands["n0"].terminate()
    assert network.commands.pop("n0").wait(SOON) == 0
    content = np.random.default_rng(0).bytes(megabytes << 20)

    def restart() -> None:
        wait_for(lambda: passed[0] > 1.4 * len(content))  # the question has come, and a part of the answer
        kill(network.commands["link"])
        network.start_link()

    try:
        with proxied(network.port, carry) as address, network.connect() as made:
            network.start_node("n0", link=address)
            node = network.number("n0")
            wait_for(lambda: node in made.nodes())
            before = answers(made, {node: Message({})})[node].head["calls"]
            thread = threading.Thread(target=restart)
            thread.start()
            reply = answers(made, {node: Message({}, content)}, 3 * SOON)[node]
            thread.join()
            assert isinstance(reply, Message), reply
            assert reply.tensors == content and reply.head["calls"] == before + 1  # the worker was asked once
            assert cuts[0] >= 10 and passed[0] < 3.5 * len(content)  # what had come did not come again
            network.commands["n0"].terminate()
            assert network.commands["n0"].wait(SOON) == 0
    finally:
        told = network.output("n0").count("this is node")
        network.start_node("n0")
        wait_for(lambda: network.output("n0").count("this is node") > told)


@pytest.mark.parametrize(("lives", "megabytes"), [(0.6, 3), pytest.param(20.0, 200, marks=pytest.mark.long)])
def test_over_a_proxy_that_ends_every_connection_soon(
    network: Network, monkeypatch: pytest.MonkeyPatch, lives: float, megabytes: int
) -> None:
    """Of the node and of the run, also those that wait for an answer, for longer than a link may be away."""
    monkeypatch.setattr(transport, "_PATIENCE", min(2 * lives, 30.0))
    ends, content = list[float](), np.random.default_rng(0).bytes(megabytes << 20)

    def carry(one: socket.socket, other: socket.socket) -> None:
        timer = threading.Timer(lives, end, (one, other))
        timer.start()
        with contextlib.suppress(OSError):
            while piece := one.recv(1 << 16):
                other.sendall(piece)
                time.sleep(len(piece) / (8 << 20))
        ends.append(time.monotonic())
        timer.cancel()
        end(one, other)

    network.commands["n0"].terminate()
    assert network.commands.pop("n0").wait(SOON) == 0
    told, node = network.output("n0").count("this is node"), network.number("n0")
    try:
        with proxied(network.port, carry) as address, transport.connect(address, network.link, say=print) as made:
            command = network.start_node("n0", link=address)
            wait_for(lambda: node in made.nodes() and network.output("n0").count("this is node") > told)
            before = answers(made, {node: Message({})})[node].head["calls"]
            waits, began = 4 * lives, time.monotonic()
            reply = answers(made, {node: Message({"do": "sleep", "seconds": waits}, content)}, 6 * SOON)[node]
            assert isinstance(reply, Message), reply
            assert reply.tensors == content and reply.head["calls"] == before + 1  # the worker was asked once
            assert len([each for each in ends if each > began]) >= 8
            command.terminate()
            assert command.wait(SOON) == 0
    finally:
        kill(network.commands["n0"])
        told = network.output("n0").count("this is node")
        network.start_node("n0")
        wait_for(lambda: network.output("n0").count("this is node") > told)


@pytest.mark.parametrize("hours", [-1, pytest.param(1, marks=pytest.mark.long)])
def test_a_node_and_a_link_whose_clocks_are_an_hour_wrong(network: Network, hours: int) -> None:
    """First that of the node, then also that of the link, which jumps when it is started again."""
    (folder := network.folder / "clock").mkdir(exist_ok=True)
    code = f"import time\n\nright = time.time\ntime.time = lambda: right() + {3600 * hours}\n"
    (folder / "sitecustomize.py").write_text(code)
    wrong, told = f"{folder}{os.pathsep}{PATH}", network.output("n0").count("this is node")
    network.commands["n0"].terminate()
    assert network.commands.pop("n0").wait(SOON) == 0
    network.start_node("n0", path=wrong)
    wait_for(lambda: network.output("n0").count("this is node") > told)
    try:
        with network.connect() as made:
            nodes = {network.number(name): Message({}) for name in ("n0", "n1")}
            for path, off in ((None, 0), (wrong, 3600 * hours), (PATH, 0)):
                if path is not None:
                    kill(network.commands["link"])
                    network.start_link(path)
                wait_for(lambda: len(made.nodes()) == 2)
                replies = answers(made, nodes)
                assert all(isinstance(each, Message) for each in replies.values()), replies
                assert abs(made._caller.now() - time.time() - off) < 5
    finally:
        network.commands["n0"].terminate()
        assert network.commands.pop("n0").wait(SOON) == 0
        network.start_node("n0")
        wait_for(lambda: network.output("n0").count("this is node") > told + 1)


def test_a_clock_that_is_an_hour_wrong(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's clock is wrong, and jumps; it has the link's."""
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() - 3600)
    with network.connect() as made:
        node = network.number("n0")
        wait_for(lambda: node in made.nodes())
        assert isinstance(answers(made, {node: Message({})})[node], Message)
        monkeypatch.setattr(time, "time", lambda: right() + 3600)
        assert isinstance(answers(made, {node: Message({})})[node], Message)
        assert abs(made._caller.now() - right()) < 5
