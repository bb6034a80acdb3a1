"""Attacks on a link: requests that are unsigned, in another's name, replayed, too large or slow; letters of others."""

import contextlib
import gc
import json
import socket
import ssl
import struct
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs pip install 'fedax[deploy]'")

from fedax.sites.service import carry, link, mailbox, messages, signature
from fedax.sites.service.connections import Limits, Listener
from fedax.sites.service.letters import Letter, Part, packed, unpacked
from fedax.sites.service.processes import free_port
from tests import in_full
from tests.processes import wait_for

from .hostile import MB, Bench, attack


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "link")
    yield made
    made.close()


def test_a_question_and_its_answer(bench: Bench) -> None:
    letter = bench.ask("a")
    assert bench.asked("a") == [letter.id] and bench.asked("a", (letter.id,)) == bench.asked("b") == []
    assert bench.answers() == [] and bench.answer("a", letter)[0] == 200 and bench.asked("a") == []
    assert bench.answers() == [letter.id]
    bench.call("run", "/answers", {"has": [], "got": [letter.id], "start": ""})
    assert bench.answers() == [] and not bench.link.box.exchanges


def test_a_node_does_not_answer_for_another(bench: Bench) -> None:
    letter = bench.ask("b")
    for changes in ({}, {"node": bench.number("a")}):
        assert bench.answer("a", letter, **changes)[0] == 404
    assert bench.answer("a", letter, signer="b")[0] == 404  # as a proxy at a's site could
    assert bench.asked("b") == [letter.id] and bench.answer("b", letter)[0] == 200


def test_an_answer_that_was_not_asked_for_comes_late_or_twice_or_is_of_another_run(bench: Bench) -> None:
    letter, other = bench.ask("a"), bench.letter("a")[0]
    assert bench.answer("a", other)[0] == 404
    assert bench.answer("a", letter)[0] == 200 and bench.answer("a", letter)[0] == 404
    late = bench.ask("a", until=bench.link.now() + 0.3)
    time.sleep(0.4)
    assert bench.asked("a") == []
    bench.link.box.sweep()
    assert bench.answer("a", late)[0] == 404
    old = bench.ask("b")
    bench.call("run", "/end", {})
    assert bench.answer("b", old)[0] == 404 and not bench.link.box.exchanges
    assert bench.call("run", "/answers", {"has": [], "got": [], "start": ""})[0] == 409  # it has ended


def test_a_key_is_good_for_its_part_only(bench: Bench) -> None:
    letter, parts = bench.letter("b")
    assert bench.call("a", "/questions", {"letters": [letter.sent]}, parts)[0] == 403
    for path in ("/answers", "/end", "/nodes"):
        assert bench.call("a", path, {"has": [], "got": [], "start": ""})[0] == 403
    for path in ("/question", "/answer"):
        assert bench.call("run", path, {"has": [], "seconds": 0})[0] == 403
    assert bench.call("a", "/question", {"has": [], "seconds": 0}, number=bench.number("b"))[0] == 401
    assert bench.call("a", "/question", {"has": [], "seconds": 0}, number=7)[0] == 403
    other = bench.letter("b", run="0" * 32)[0]
    assert bench.call("run", "/questions", {"letters": [other.sent]}, parts)[0] == 400
    old = bench.letter("b", start="0" * 32)[0]
    assert bench.call("run", "/questions", {"letters": [old.sent]}, parts)[0] == 503  # it is to be signed anew


def test_a_request_is_taken_once_and_for_what_it_is(bench: Bench) -> None:
    asks = packed({"has": [], "seconds": 0})
    first = bench.request("a", "/question", asks)
    assert bench.send(*first)[0] == 200
    assert bench.send(*first) == (401, b"it came a second time")
    for changes, why in (
        ({"signed": f"/answer?as={bench.process['a']}"}, b"the signature is not of this request"),
        ({"signer": "b"}, b"the signature is not of this request"),
        ({"sent": packed({"has": ["x"], "seconds": 0})}, b"the body is not the one that was signed"),
        ({"start": "0" * 32}, b"it was signed for another start of the link"),
        ({"at": bench.link.now() - 61}, b"it was signed 61 s ago"),
        ({"at": bench.link.now() + 61}, b"it was signed -61 s ago"),
    ):
        assert bench.send(*bench.request("a", "/question", asks, **changes)) == (401, why)
    method, target, headers, body = bench.request("a", "/question", asks)
    assert bench.http(method, target, body, [("authorization", headers["authorization"])] * 2).status_code == 401
    assert bench.http(method, target, body).status_code == 401
    for bad in ("fedax", "fedax 1 2", "Bearer x", headers["authorization"] + " x", "\xff" * 9):
        assert bench.http(method, target, body, {"authorization": bad.encode("latin-1")}).status_code == 401


def test_what_was_taken_is_forgotten_when_it_is_too_old(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(5):
        bench.asked("a")
    assert len(bench.link._seen) == 5 == bench.link._counts[bench.number("a")]
    bench.link._began += 200
    bench.asked("a")
    assert len(bench.link._seen) == 1 == bench.link._counts[bench.number("a")]
    monkeypatch.setattr(link, "_MOST", 3)
    bench.asked("a")
    bench.asked("a")
    assert bench.call("a", "/question", {"has": [], "seconds": 0})[0] == 429
    assert bench.asked("b") == []  # others are not concerned


def test_two_processes_with_one_key(bench: Bench) -> None:
    bench.asked("a")
    refused = bench.call("a", "/question", {"has": [], "seconds": 0}, process="f" * 32)
    assert refused == (409, b"another node with this key is running")
    bench.link.box.parties[bench.number("a")].last -= 10  # it has gone
    assert bench.call("a", "/question", {"has": [], "seconds": 0}, process="f" * 32)[0] == 200
    assert bench.call("run", "/answers", {"has": [], "got": [], "start": ""}, process="f" * 32)[0] == 409


def test_bodies_are_looked_at_before_they_are_read(bench: Bench) -> None:
    read = []

    def body() -> Iterator[bytes]:
        read.append(1)
        yield b"x"

    for headers, status in (
        ({"content-length": str(10**10)}, 413),
        ({"transfer-encoding": "chunked"}, 411),
        ({"content-length": "-1"}, 411),
        ({"content-length": "9" * 20}, 413),
    ):
        _, target, signed, _ = bench.request("a", "/question")
        query = target.partition("?")[2].encode()
        scope = {"type": "http", "method": "POST", "path": "/question", "query_string": query}
        scope["headers"] = [(k.encode(), v.encode()) for k, v in {**signed, **headers}.items()]
        assert _status(bench, scope, read) == status and not read
        del signed["authorization"]
        scope["headers"] = [(k.encode(), v.encode()) for k, v in headers.items()]
        assert _status(bench, scope, read) == 401 and not read
    assert bench.send(*bench.request("a", "/question", packed({}), sent=b"x" * 5000))[0] in (400, 401)


def _status(bench: Bench, scope: dict[str, Any], read: list[int]) -> int:
    sent: list[Any] = []

    async def receive() -> Any:
        read.append(1)
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(event: Any) -> None:
        sent.append(event)

    bench.loop.run_until_complete(bench.link.app(scope, receive, send))
    assert (b"connection", b"close") in sent[0]["headers"]
    return int(sent[0]["status"])


def test_large_parts_have_their_bounds(bench: Bench) -> None:
    def have(who: str, size: object, at: object = 0, body: bytes = b"", digit: str = "0") -> tuple[int, bytes]:
        return bench.send(*bench.request(who, f"/parts/{digit * 64}?at={at}&size={size}", body, "PUT"))

    assert have("a", 10)[0] == 404  # it was not asked anything
    bench.ask("a")
    assert have("a", 10) == (200, packed({"have": 0}))
    assert have("a", 10, 0, b"xyz") == (200, packed({"have": 3}))
    assert have("a", 9) == have("a", 10) == (200, packed({"have": 0}))  # of another total it begins anew
    assert have("a", 17 * MB)[0] == 413 and have("a", -1)[0] in (400, 413) and have("a", "x")[0] == 400
    assert [have("run", 16 * MB - k)[0] for k in range(3)][-1] == 200
    for digit in "123":
        have("run", 16 * MB, digit=digit)
    assert have("run", 16 * MB, digit="f")[0] == 507
    assert have("a", 10, 5, b"x")[0] == 409 and have("a", 10, "x", b"x")[0] == 400
    assert have("a", 10, 0, b"x" * 11)[0] == 413 and have("a", 10, 0, b"y" * 10)[0] == 200
    letter = bench.ask("a")
    forged = json.loads(letter.text) | {"parts": [["0" * 64, 10]]}
    text = json.dumps(forged)
    posted = bench.call("a", "/answer", {"letter": [text, signature.sign(bench.keys["a"], "answer", text)]})
    assert posted[0] == 409  # what came is not what its name says
    assert have("a", 10) == (200, packed({"have": 0}))


def test_no_more_questions_than_may_wait(bench: Bench) -> None:
    for _ in range(mailbox.MOST):
        bench.ask("a")
    letter, parts = bench.letter("a")
    _, content = bench.call("run", "/questions", {"letters": [letter.sent]}, parts)
    assert "questions wait for the node already" in unpacked(content)[0]["refused"][letter.id]


def test_a_removed_node_is_nobody(bench: Bench) -> None:
    bench.ask("a")
    (bench.link.folder / "nodes" / "a.pub").unlink()
    bench.link.keys._next = 0.0
    assert bench.call("a", "/question", {"has": [], "seconds": 0}) == (403, b"the key is not known here")


def test_a_file_of_keys_that_is_being_replaced(bench: Bench) -> None:
    """Copied over, it is empty for a moment, and then cut off."""
    ca = bench.link.folder / "ca.pem"
    caller, content = carry.Caller("127.0.0.1:1", ca, lambda: bench.keys["a"]), ca.read_bytes()
    signed = "question", "text", signature.sign(bench.keys["run"], "question", "text")
    for part in (b"", content[:-40], content.replace(b"PUBLIC KEY-----\n", b"PUBLIC KEY-----\n!")):
        ca.write_bytes(part)
        assert caller.trusts(*signed) and bench.call("run", "/nodes", {})[0] == 200
    ca.unlink()
    assert caller.trusts(*signed) and bench.call("run", "/nodes", {})[0] == 200
    caller.close()


def test_a_greeting_is_good_for_nothing_else(bench: Bench) -> None:
    """A proxy that held it back could name another path in the header ``host``."""
    bench.call("run", "/questions", {"letters": []})
    for host in (b"link/hello#", b"link/hello?"):
        _, _, signed, _ = bench.request("run", "/hello", target="/hello")
        headers = [(b"host", host), (b"content-length", b"0"), (b"authorization", signed["authorization"].encode())]
        assert bench.raw("POST", "/end", headers, b"")[0] == 401 and bench.link.box.run == bench.process["run"]


def test_a_request_of_millions_of_parts_is_not_read(bench: Bench) -> None:
    head = b'{"has": [], "seconds": 0, "sizes": [' + b"0," * 5_000_000 + b"0]}"
    began = time.process_time()
    assert bench.send(*bench.request("a", "/question", struct.pack("<I", len(head)) + head))[0] == 400
    assert time.process_time() - began < 1  # the link does nothing else meanwhile


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 65 + "]" * 65, "nested more than 64 deep"),
        ("[" * 100_000 + "]" * 100_000, "lists, tables and texts"),
        ('{"a": ' * 3000 + "1" + "}" * 3000, "RecursionError|nested more than 64|recursion"),
        ("[" + "[], " * MB + "[]]", "lists, tables and texts"),
        ('"' + "x" * 9 * MB + '"', "characters"),
        ("9" * 5000, "digits"),
        ("[]", "no JSON object"),
        ("\udcff", "decode"),
    ],
)
def test_heads_that_are_made_to_do_harm(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"no message of fedax: .*({why})"):
        messages.opened([text.encode(errors="surrogateescape")])
    assert messages.opened([('{"a": ' + "[" * 62 + "1" + "]" * 62 + "}").encode()])


def test_letters_that_are_none(bench: Bench) -> None:
    good = bench.letter("a")[0]
    about = json.loads(good.text)
    for changed in (
        {"id": 7}, {"id": "x"}, {"node": "7"}, {"until": "x"}, {"parts": []}, {"parts": [["0" * 64, -1]]},
        {"start": None}, {"parts": [["0" * 64, 9 << 20]]}, {"parts": [["0" * 64, 1.5]]}, {"parts": [[[], 1]]},
        {"parts": about["parts"] * 3},
    ):  # fmt: skip
        with pytest.raises(ValueError, match="no letter"):
            Letter.read([json.dumps(about | changed), good.signature])
    for bad in (None, [], [good.text], [good.text, 7], ["[]", ""], ["x" * 5000, ""], ["[" * 4000, ""]):
        with pytest.raises(ValueError):
            Letter.read(bad)


# ---- the fuzzer


@in_full
def test_hostile_requests_do_no_harm(bench: Bench, full: bool) -> None:
    number = 10_000 if full else 1000
    outcomes = attack(bench, number, 1)
    assert min(outcomes[status] for status in (200, 400, 401, 403, 404, 405, 409)) > number / 100, outcomes
    tracemalloc.start()
    sizes = []
    for seed in (2, 3):
        attack(bench, number // 3, seed)
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert sizes[1] - sizes[0] < MB


# ---- connections

FAST = Limits(total=6, each=4, head=0.8, body=0.4, rate=1000.0)


@contextlib.contextmanager
def serving(folder: Path, limits: Limits = FAST) -> Iterator[tuple[int, Bench]]:
    """A link at a port of this machine, without TLS."""
    bench, port = Bench(folder, limits=limits), free_port()
    with Listener(("127.0.0.1", port), limits) as listener, link.serving(bench.link, listener):
        bench.listener = listener
        yield port, bench
    bench.close()


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


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"", b""),  # nothing at all
        (b"POST / HT", b""),
        (b"POST / HTTP/1.1\r\n", b"x: y\r\n"),  # a head that does not end
        (b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n", b""),  # one request, then none
        (b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n", b"G"),
        (b"SIGNED", b""),
        (b"SIGNED", b"x"),  # a body that comes byte by byte
    ],
)  # fmt: skip
def test_slow_connections_are_ended(tmp_path: Path, begin: bytes, more: bytes) -> None:
    with serving(tmp_path / "link") as (port, bench):
        if begin == b"SIGNED":
            _, target, headers, _ = bench.request("a", "/question", b"x" * 10_000)
            head = f"POST {target} HTTP/1.1\r\nhost: a\r\ncontent-length: 10000\r\nauthorization: "
            begin = f"{head}{headers['authorization']}\r\n\r\n".encode()
        assert dribble(port, begin, more) < 1000


def test_answers_are_not_held_back(tmp_path: Path) -> None:
    """asyncio lets small packets go at once where it knows that a connection is of TCP; else each takes 40 ms."""
    with serving(tmp_path / "link") as (port, bench), socket.create_connection(("127.0.0.1", port)):
        deadline = time.monotonic() + 20
        option = socket.IPPROTO_TCP, socket.TCP_NODELAY
        while not any(each.getsockopt(*option) for each in bench.listener.open.values()):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_head_without_end_is_ended_by_its_size(tmp_path: Path) -> None:
    with serving(tmp_path / "link", FAST._replace(head=60.0)) as (port, _):
        assert dribble(port, b"GET / HTTP/1.1\r\nx: ", b"y" * 10_000) < 30


def test_an_answer_that_is_not_read_is_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Else a node whose machine is gone would be there for as long as its connection is."""
    fast = FAST._replace(rate=1e6)
    with serving(tmp_path / "link", fast) as (port, bench), socket.create_connection(("127.0.0.1", port)) as made:
        letter, parts = bench.letter("a")
        letter = letter._replace(parts=(letter.parts[0], Part(digest := "0" * 64, 16 * MB)))
        bench.link.box.exchanges[letter.id] = mailbox.Correspondence(letter, [*parts, bytes(16 * MB)])
        _, target, headers, _ = bench.request("a", f"/parts/{digest}?at=0", method="GET")
        made.sendall(f"GET {target} HTTP/1.1\r\nhost: a\r\nauthorization: {headers['authorization']}\r\n\r\n".encode())
        party, deadline = bench.link.box.parties[bench.number("a")], time.monotonic() + 20
        while not party.last or party.open or bench.listener.open:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert "Traceback" not in caplog.text


def test_a_body_that_comes_at_its_rate_is_taken(tmp_path: Path) -> None:
    with serving(tmp_path / "link") as (port, bench), socket.create_connection(("127.0.0.1", port)) as made:
        body = packed({"has": [], "seconds": 0, "more": "x" * 10_000})
        _, target, headers, _ = bench.request("a", "/question", body)
        head = f"POST {target} HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\nauthorization: "
        made.sendall(f"{head}{headers['authorization']}\r\n\r\n".encode())
        for at in range(0, len(body), 1000):  # longer than the limit without a rate
            made.sendall(body[at : at + 1000])
            time.sleep(0.1)
        assert made.recv(100).startswith(b"HTTP/1.1 200")


def test_no_more_connections_than_may_be(tmp_path: Path) -> None:
    with serving(tmp_path / "link", FAST._replace(head=60.0)) as (port, _):
        held = [socket.create_connection(("127.0.0.1", port)) for _ in range(9)]
        wait_for(lambda: [_ended(each) for each in held].count(True) == 5)  # of one address four may be there
        others = [socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0)) for _ in range(4)]
        wait_for(lambda: [_ended(each) for each in others] == [False, False, True, True])  # six of all
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


def test_a_handshake_that_does_not_end(tmp_path: Path) -> None:
    bench, port = Bench(tmp_path / "link", limits=FAST), free_port()
    files = (tmp_path / "link" / "server.pem", tmp_path / "link" / "server.key")
    with Listener(("127.0.0.1", port), FAST) as listener, link.serving(bench.link, listener, files):
        assert dribble(port, b"\x16\x03\x01", b"") < 1000
        context = ssl.create_default_context(cafile=str(tmp_path / "link" / "ca.pem"))
        with socket.create_connection(("127.0.0.1", port)) as plain:
            context.wrap_socket(plain, server_hostname="127.0.0.1").close()
    bench.close()
