"""Attacks on a link: requests that are unsigned, in another node's name, replayed, too large or too slow."""

import contextlib
import gc
import logging
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs pip install 'fedax[flower]'")

from flwr.app import ConfigRecord, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.control_pb2 import UnregisterNodeRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
    UnregisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedax.engine.places.nodes import Message
from fedax.flower.connections import Limits, Server
from fedax.flower.processes import free_port
from fedax.flower.records import unpack
from tests import in_full
from tests.flower.attacks import SECRET, Link, attack, refused

MB = 1 << 20


@pytest.fixture(scope="module")
def link() -> Iterator[Link]:
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    made = Link()
    yield made
    made.close()


@in_full
def test_changed_requests_do_not_come_through(link: Link, full: bool) -> None:
    number = 3000 if full else 1000
    outcomes = attack(link, number, seed=1)
    assert outcomes[200] > number / 60
    assert min(outcomes[400], outcomes[401], outcomes[403], outcomes[404]) > number / 30
    tracemalloc.start()
    sizes = []
    for seed in (2, 3):
        attack(link, 300, seed)
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert sizes[1] - sizes[0] < MB


def test_a_node_does_not_answer_for_another(link: Link) -> None:
    request = link.ask("b", {"kind": "hello"})
    for sender, name in (("a", "b"), ("a", "a")):  # a message of b's, in b's name and in its own
        status, why = refused(link.push, sender, link.answer(name, request, {"forged": True}))
        assert (status, "not this node's answer" in why) == ((403, True) if name == "b" else (0, False))
    assert link.pull("b") == [request.metadata.message_id]
    pushed = link.push("b", link.answer("b", request, {"good": True}))
    assert len(pushed.objects_to_push) > 0  # a's were not taken: the first answer to a message is the only one


def test_a_node_does_not_ask_others(link: Link) -> None:
    for name in "ab":
        status, why = refused(link.push, "a", link.message(name, {"kind": "forget"}))
        assert status == 403 and "not this node's answer" in why
    assert link.pull("b") == []


def test_a_key_is_good_for_its_node_only(link: Link) -> None:
    asked = link.ask("b", {"kind": "hello"})
    a, of_b = link.node("a"), link.at("b")
    for call, request in (
        (a.PullMessages, PullMessagesRequest(node=of_b)),
        (a.SendNodeHeartbeat, SendNodeHeartbeatRequest(node=of_b, heartbeat_interval=30.0)),
        (a.DeactivateNode, DeactivateNodeRequest(node_id=of_b.node_id)),
        (a.ActivateNode, ActivateNodeRequest(public_key=link.public["b"], heartbeat_interval=30.0)),
        (a.RegisterNode, RegisterNodeFleetRequest(public_key=link.public["a"])),
        (a.UnregisterNode, UnregisterNodeFleetRequest(node_id=link.numbers["a"])),
        (a.PushMessages, PushMessagesRequest(node=link.at("a"))),
    ):
        assert refused(call, request)[0] == 403, request
    assert link.pull("b") == [asked.metadata.message_id]


def test_a_request_is_taken_once_and_for_what_it_is(link: Link) -> None:
    link.sent.clear()
    link.node("b").SendNodeHeartbeat(SendNodeHeartbeatRequest(node=link.at("b"), heartbeat_interval=30.0))
    request = link.ask("b", {"kind": "hello"})
    pull = PullMessagesRequest(node=link.at("b")).SerializeToString()
    beat = link.sent[0]
    assert link.again(beat) == (401, b"it came a second time")

    def again(**other: Any) -> tuple[int, bytes]:
        """Another request with its signature, as if the link had not taken that yet."""
        link.access._seen.clear()
        return link.again(beat, **other)

    path = "/v1/fleet/pull-messages"
    assert again(path=path) == again(path=path, body=pull) == (401, b"the signature is not of this request")
    assert again(body=pull) == (401, b"the body is not the one that was signed")
    assert link.pull("b") == [request.metadata.message_id]  # nobody has had it
    link.sent.clear()
    link.push("b", link.answer("b", request, {"good": True}))
    assert link.again(link.sent[0]) == (401, b"it came a second time")


def test_flowers_own_signature_is_not_enough(link: Link) -> None:
    key = link.keys["a"]
    flowers = link.client(FleetHttpClient, NodeAuthHttpInterceptor(key, key.public_key()))
    status, why = refused(flowers.PullMessages, PullMessagesRequest(node=link.at("a")))
    assert status == 401 and "not as fedax signs" in why


def test_old_requests_and_those_of_before_a_restart(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    pull = PullMessagesRequest(node=link.at("a"))
    for clock, status, why in ((now + 70, 401, "s ago"), (now - 70, 401, "s ago"), (now, 0, "")):
        monkeypatch.setattr(link.access, "_clock", lambda clock=clock: clock)
        outcome = refused(link.node("a").PullMessages, pull)
        assert outcome[0] == status and why in outcome[1]
    monkeypatch.setattr(link.access, "_clock", time.time)
    monkeypatch.setattr(link.access, "_began", time.time() + 1)
    assert refused(link.node("a").PullMessages, pull)[0] == 503  # nodes ask again


def test_what_was_taken_is_forgotten_when_it_is_too_old() -> None:
    made = Link()
    made.pull("a")
    access = made.access
    assert len(access._seen) == len(access._expiry) > 1
    access._expiry = type(access._expiry)((when - 100, what) for when, what in access._expiry)
    made.pull("a")
    assert len(access._seen) == len(access._expiry) == 1
    made.close()


def test_a_removed_node_is_nobody() -> None:
    made = Link()
    made.commands.UnregisterNode(UnregisterNodeRequest(node_id=made.numbers["a"]))
    assert refused(made.node("a").PullMessages, PullMessagesRequest(node=made.at("a")))[0] == 401
    enter = ActivateNodeRequest(public_key=made.public["a"], heartbeat_interval=30.0)
    assert refused(made.node("a").ActivateNode, enter)[0] == 403
    assert made.pull("b") == []
    made.close()


def test_large_requests_are_refused_before_they_are_read(link: Link) -> None:
    read = []

    def sent(headers: list[tuple[bytes, bytes]], path: str) -> tuple[int, str]:
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "state": {}}
        results: list[Any] = []

        async def receive() -> Any:
            read.append(path)
            return {"type": "http.request", "body": b"x" * MB, "more_body": True}

        async def send(event: Any) -> None:
            results.append(event)

        link._loop.run_until_complete(link.access(scope, receive, send))
        return results[0]["status"], results[1]["body"].decode()

    host, bearer = (b"host", b"127.0.0.1"), (b"authorization", f"Bearer {SECRET}".encode())
    long = (b"content-length", str(10**10).encode())
    assert sent([host, long], "/v1/fleet/push-object")[0] == 401
    assert sent([host, long], "/v1/control/start-run")[0] == 403
    assert sent([host, long], "/health")[0] == 413
    status, why = sent([host, long, bearer], "/v1/control/start-run")
    assert status == 413 and why == f"a body of 10000000000 bytes is too large; {32 * MB} are taken here"
    assert sent([host, bearer, (b"transfer-encoding", b"chunked")], "/v1/control/start-run")[0] == 411
    assert not read
    # one that says less than it sends ends with the first part that is too much
    assert sent([host, bearer, (b"content-length", b"10")], "/v1/control/start-run")[0] == 400 and len(read) == 1


def test_an_answer_of_too_many_pieces(link: Link) -> None:
    asked = link.ask("b", {"kind": "hello"})
    answer = link.answer("b", asked, {})
    tree = ObjectTree(object_id=answer.metadata.message_id, children=[ObjectTree(object_id="0" * 64)] * 1024)
    request = PushMessagesRequest(
        node=link.at("b"), messages_list=[message_to_proto(answer)], message_object_trees=[tree]
    )
    status, why = refused(link.node("b").PushMessages, request)
    assert status == 403 and "more than 1024 pieces" in why


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 65 + "]" * 65, "nested more than 64 deep"),
        ("[" * 100_000 + "]" * 100_000, "lists, tables and texts"),
        ('{"a": ' * 3000 + "1" + "}" * 3000, "RecursionError|nested more than 64"),
        ("[" + "[], " * MB + "[]]", "lists, tables and texts"),
        ('"' + "x" * 9 * MB + '"', "characters"),
        ("9" * 5000, "ValueError"),
        ("[]", "no JSON object"),
    ],
)
def test_heads_that_are_made_to_do_harm(text: str, why: str) -> None:
    records = RecordDict({"head": ConfigRecord({"json": text})})
    with pytest.raises(ValueError, match=f"no message of fedax: .*({why})"):
        unpack(records)


def test_a_head_of_the_deepest_form() -> None:
    text = '{"a": ' + "[" * 62 + "1" + "]" * 62 + "}"
    assert isinstance(unpack(RecordDict({"head": ConfigRecord({"json": text})})), Message)


# ---- connections

FAST = Limits(total=6, each=4, head=0.4, body=0.4, rate=1000.0, largest=20_000)


@contextlib.contextmanager
def serving(limits: Limits = FAST) -> Iterator[tuple[int, list[int]]]:
    """A server whose application counts the bodies that it has read whole."""
    whole: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (event := await receive())["type"] != "lifespan.shutdown":
                await send({"type": f"{event['type']}.complete"})
            return await send({"type": "lifespan.shutdown.complete"})
        size = 0
        while (event := await receive())["type"] == "http.request":
            size += len(event["body"])
            if not event["more_body"]:
                whole.append(size)
                await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
                return await send({"type": "http.response.body"})

    port = free_port()
    server = Server(app, ("127.0.0.1", port), (), limits)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield port, whole
    finally:
        server.should_exit = True
        thread.join(20)


def dribble(port: int, begin: bytes, more: bytes, pause: float = 0.02) -> int:
    """How many times something can be sent until the connection is ended; 1000: as long as one likes."""
    with socket.create_connection(("127.0.0.1", port)) as made:
        made.sendall(begin)
        made.settimeout(pause)
        for sent in range(1000):
            try:
                if more:
                    made.sendall(more)
                if not made.recv(1000):
                    return sent
            except TimeoutError:
                continue
            except OSError:
                return sent
    return 1000


HEAD = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10000\r\n\r\n"


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"", b""),  # nothing at all
        (b"", b"\r\n"),
        (b"POST / HT", b""),
        (b"POST / HTTP/1.1\r\n", b"x: y\r\n"),  # a head that does not end
        (b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", b"\r\n"),  # one request, then none
        (b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", b"G"),
        (HEAD, b""),
        (HEAD, b"x"),  # a body that comes byte by byte
        (HEAD.replace(b"content-length: 10000", b"transfer-encoding: chunked"), b"1\r\nx\r\n"),
    ],
)  # fmt: skip
def test_slow_connections_are_ended(begin: bytes, more: bytes) -> None:
    with serving() as (port, whole):
        assert dribble(port, begin, more) < 1000
        assert whole == ([0] if begin.startswith(b"GET") else [])


def test_a_head_without_end_is_ended_by_its_size() -> None:
    with serving(FAST._replace(head=60.0)) as (port, _):
        assert dribble(port, b"GET / HTTP/1.1\r\nx: ", b"y" * 10_000) < 30


def test_a_body_that_comes_at_its_rate_is_taken() -> None:
    with serving() as (port, whole), socket.create_connection(("127.0.0.1", port)) as made:
        made.sendall(HEAD)
        for _ in range(10):  # longer than the limit without a rate
            made.sendall(b"x" * 1000)
            time.sleep(0.1)
        assert made.recv(100).startswith(b"HTTP/1.1 200") and whole == [10_000]


def test_no_more_connections_than_may_be() -> None:
    with serving(FAST._replace(head=60.0)) as (port, _):
        held = [socket.create_connection(("127.0.0.1", port)) for _ in range(9)]
        closed = [each for each in held if _ended(each)]
        assert len(closed) == 5  # of one address four may be there
        others = [socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0)) for _ in range(4)]
        assert [_ended(each) for each in others] == [False, False, True, True]  # six of all
        for each in (*held, *others):
            each.close()
        deadline = time.monotonic() + 20
        while _ended(again := socket.create_connection(("127.0.0.1", port))):  # there is room again
            again.close()
            assert time.monotonic() < deadline
        again.close()


def _ended(connection: socket.socket) -> bool:
    connection.settimeout(0.3)
    try:
        return not connection.recv(1)
    except TimeoutError:
        return False
    except OSError:
        return True
