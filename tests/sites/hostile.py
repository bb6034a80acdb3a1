"""A link without a network, and hostile requests to every endpoint of it.

``python -m tests.sites.hostile 100000`` sends so many: unsigned, badly signed, and signed with a registered key but of
another form. It prints how many had which status. None may be an error of the link, none may leave memory behind, and
after them the link has to carry a question and its answer.
"""

import asyncio
import collections
import copy
import gc
import hashlib
import json
import random
import secrets
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx", reason="needs pip install 'fedax[deploy]'")
import httpx

from fedax.sites.protocol.messages import Message
from fedax.sites.protocol.roster import private_key
from fedax.sites.service import certificates, link, mailbox, messages, signature
from fedax.sites.service.connections import Limits, Listener
from fedax.sites.service.letters import Letter, packed, question, unpacked
from fedax.sites.service.signature import number_of, stamped
from tests import fuzz

MB = 1 << 20


class Bench:
    """A link's web service without a network; two nodes, ``a`` and ``b``, and a run."""

    listener: Listener  # where it has a network

    def __init__(self, folder: Path, room: int = 64 * MB, limits: Limits = Limits()):
        link.prepare(folder, ["127.0.0.1"])
        for name in "ab":
            certificates.make_node_key(folder / name)
            (folder / f"{name}.pub").rename(folder / "nodes" / f"{name}.pub")
        self.link = link.Link(folder, limits, room, say=lambda line: None)
        self.keys = {name: private_key(folder / name) for name in "ab"} | {"run": certificates.load_secret(folder)}
        self.process = {name: hashlib.md5(name.encode()).hexdigest() for name in self.keys}
        self.loop = asyncio.new_event_loop()
        self._http = httpx.AsyncClient(transport=httpx.ASGITransport(self.link.app), base_url="http://link")
        self.link.box.leave(self.link.box.enter(mailbox.RUN, self.process["run"]))

    def number(self, name: str) -> int:
        return number_of(self.keys[name].public_key())

    def request(
        self, who: str, path: str, body: bytes = b"", method: str = "POST", **changes: Any
    ) -> tuple[str, str, dict[str, str], bytes]:
        """A signed request; ``changes`` of its stamp, and of what is sent in its place."""
        target = changes.get(
            "target", f"{path}{'&' if '?' in path else '?'}as={changes.get('process', self.process[who])}"
        )
        stamp = stamped(self.keys[who], self.link.start, self.link.now(), hashlib.sha256(body).hexdigest())
        stamp = stamp._replace(**{name: changes[name] for name in changes if name in stamp._fields})
        header = stamp.header(self.keys[changes.get("signer", who)], f"{method} {changes.get('signed', target)}")
        return method, target, {"authorization": header}, changes.get("sent", body)

    def send(self, method: str, target: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        response = self.http(method, target, body, headers)
        return response.status_code, response.content

    def http(self, method: str, target: str, body: bytes, headers: Any = None) -> httpx.Response:
        return self.loop.run_until_complete(self._http.request(method, target, headers=headers, content=body))

    def close(self) -> None:
        self.loop.run_until_complete(self._http.aclose())
        self.loop.close()

    def call(self, who: str, path: str, table: dict[str, Any], parts: Any = (), **changes: Any) -> tuple[int, bytes]:
        return self.send(*self.request(who, path, packed(table, parts), **changes))

    def ask(self, name: str, head: dict[str, Any] | None = None, **changes: Any) -> Letter:
        """The run asks a node."""
        letter, parts = self.letter(name, head, **changes)
        status, content = self.call("run", "/questions", {"letters": [letter.sent]}, parts)
        assert (status, unpacked(content)[0]["refused"]) == (200, {}), content
        return letter

    def letter(self, name: str, head: dict[str, Any] | None = None, **changes: Any) -> tuple[Letter, list[bytes]]:
        parts = messages.closed(Message(head or {}))
        usual = {"run": self.process["run"], "start": self.link.start, "until": self.link.now() + 60} | changes
        return question(self.keys["run"], self.number(name), parts=parts, id=secrets.token_hex(16), **usual), parts

    def asked(self, name: str, has: tuple[str, ...] = ()) -> list[str]:
        """The questions that a node gets."""
        status, content = self.call(name, "/question", {"has": has, "seconds": 0})
        assert status == 200, content
        return [Letter.read(each).id for each in unpacked(content)[0]["letters"]]

    def answer(self, name: str, letter: Letter, signer: str | None = None, **changes: Any) -> tuple[int, bytes]:
        made = letter._replace(**changes).answered(self.keys[signer or name], [b"{}"])
        return self.call(name, "/answer", {"letter": made.sent}, [b"{}"])

    def answers(self) -> list[str]:
        status, content = self.call("run", "/answers", {"has": [], "got": [], "start": ""})
        assert status == 200, content
        return [Letter.read(each).id for each in unpacked(content)[0]["letters"]]

    def anew(self) -> None:
        """Forget who is there, what waits, and which requests came."""
        for held in (self.link._seen, self.link._counts, self.link.box.parties):
            held.clear()
        self.link.box.end()
        self.link.box.ended = ""

    def carries(self) -> bool:
        """Whether a question and its answer get through."""
        self.anew()
        letter = self.ask("a")
        return self.asked("a") == [letter.id] and self.answer("a", letter)[0] == 200 and self.answers() == [letter.id]

    def raw(self, method: str, target: str, headers: list[tuple[bytes, bytes]], body: bytes) -> tuple[int, bytes]:
        """The answer to a request as a web server hands it on, also one that no client would send."""
        path, _, query = target.partition("?")
        scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1"}
        scope |= {"method": method, "path": path, "query_string": query.encode("utf-8", "replace"), "headers": headers}
        scope |= {"scheme": "https", "server": ("link", 443), "client": ("there", 1)}
        half = len(body) // 2
        came = iter([{"body": body[:half], "more_body": True}, {"body": body[half:], "more_body": False}])
        sent: list[Any] = []

        async def receive() -> Any:
            piece = next(came, None)
            return {"type": "http.disconnect"} if piece is None else {"type": "http.request", **piece}

        async def send(event: Any) -> None:
            sent.append(event)

        self.loop.run_until_complete(self.link.app(scope, receive, send))
        return sent[0]["status"], b"".join(event.get("body", b"") for event in sent[1:])


def attack(bench: Bench, number: int, seed: int) -> collections.Counter[int]:
    """Send requests made from good ones by small changes; how many had which status."""
    rng, statuses = random.Random(seed), collections.Counter[int]()
    certificates.make_node_key(bench.link.folder / f"stranger{seed}")
    bench.keys["stranger"] = private_key(bench.link.folder / f"stranger{seed}")
    for k in range(number):
        if k % 50 == 0:  # something waits for every party
            bench.anew()
            waits = {name: bench.ask(name) for name in "ab"}
        request = hostile(bench, rng, waits)
        try:
            status, content = bench.raw(*request)
        except Exception as error:
            raise AssertionError(request) from error
        assert status < 500 or status in (503, 507), (request, content)  # start again; the memory is full
        assert len(content) < 10_000 and b"Traceback" not in content
        statuses[status] += 1
    assert bench.carries()
    return statuses


def hostile(bench: Bench, rng: random.Random, waits: dict[str, Letter]) -> tuple[str, str, Any, bytes]:
    """A request: a good one of any endpoint, with some changes."""
    who, other, digest = rng.choice("ab"), rng.choice(("a", "b", "run")), rng.choice([*waits.values()]).parts[0].digest
    asked, parts = bench.letter(rng.choice("ab"))
    answer = waits[who].answered(bench.keys[who], [b"{}"])
    who, method, path, table, content = copy.deepcopy(
        rng.choice(
            [
                (other, "POST", "/hello", {}, []),
                (other, "GET", "/health", {}, []),
                ("run", "POST", "/nodes", {}, []),
                ("run", "POST", "/questions", {"letters": [asked.sent]}, parts),
                ("run", "POST", "/answers", {"has": [], "got": [asked.id], "start": bench.link.start}, []),
                ("run", "POST", "/end", {}, []),
                (who, "POST", "/question", {"has": [asked.id], "seconds": 0}, []),
                (who, "POST", "/answer", {"letter": answer.sent}, [b"{}"]),
                (other, "GET", f"/parts/{digest}?at=0", {}, []),
                (other, "PUT", f"/parts/{hashlib.sha256(b'x').hexdigest()}?at=0&size=1", {}, []),
            ]
        )
    )
    changes = {rng.choice(CHANGES) for _ in range(rng.choice((0, 1, 1, 1, 2, 3)))}
    if "letter" in changes and ("letters" in table or "letter" in table):
        letter = table["letters"][0] if "letters" in table else table["letter"]
        about = json.loads(letter[0])
        fuzz.node(rng, about)
        letter[0] = json.dumps(about) if rng.random() < 0.6 else rng.choice(("[" * 4000, '{"a":' * 800, "9" * 4000))
        letter[1] = signature.sign(bench.keys[who], "answer" if "letter" in table else "question", letter[0])
    if "table" in changes:
        for _ in range(rng.choice((1, 2))):
            fuzz.node(rng, table)
        table |= {name: 10**400 for name in table if rng.random() < 0.3}
    body = b"x" if method == "PUT" else packed(table, content) if method == "POST" else b""
    if "body" in changes:
        body = fuzz.change(rng, body, [body, packed(table, [b"x", b"y"])])
    if "path" in changes:
        path = text(fuzz.change(rng, path.encode(), [path.encode()])) if rng.random() < 0.5 else rng.choice(PATHS)
    if "method" in changes:
        method = rng.choice(METHODS)
    given: dict[str, Any] = {}
    if "query" in changes:
        join = "&" if "?" in path else "?"
        given["target"] = text(fuzz.change(rng, f"{path}{join}as={bench.process[who]}".encode(), [b"at=1&size=7&as="]))
    if "signer" in changes:
        given["signer"] = rng.choice([*bench.keys])
    if "stamp" in changes:
        name = rng.choice([*STAMPS])
        given[name] = rng.choice(STAMPS[name])
    method, target, signed, body = bench.request(who, path, body, method, **given)
    header = signed["authorization"].encode("utf-8", "replace")
    headers = [(b"host", b"link"), (b"content-length", str(len(body)).encode()), (b"authorization", header)]
    if "header" in changes:
        headers[2] = (b"authorization", fuzz.change(rng, header, [header]).translate(None, b"\r\n\0"))
    if "unsigned" in changes:
        del headers[2]
    if "headers" in changes:
        headers.insert(rng.randrange(len(headers) + 1), rng.choice(HEADERS))
    if "host" in changes:
        headers[0] = (b"host", rng.choice(HOSTS))
    return method, target, headers, body


def text(content: bytes) -> str:
    """Of a path or a query what a web server makes of it."""
    return content.decode("utf-8", "replace")


CHANGES = ("letter", "letter", "table", "table", "body", "path", "method", "query", "signer", "stamp", "header")
CHANGES += ("unsigned", "headers", "host")
PATHS = ("/", "", "/health/", "/question/", "//question", "/questions", "/answers", "/answer", "/end", "/hello", "/é")
PATHS += ("/nodes", "/parts/", "/parts/0", "/parts/../nodes", "/question?as=x", f"/parts/{'0' * 64}?at=0", "/parts/?")
PATHS += (f"/parts/{'0' * 64}?at=0&size={16 * MB}", f"/parts/{'0' * 64}?at=0&size={17 * MB}", "/end#/hello")
METHODS = ("GET", "POST", "HEAD", "PUT", "OPTIONS", "DELETE", "TRACE", "PATCH", "post", "X" * 300)
HEADERS = [(b"transfer-encoding", b"chunked"), (b"content-length", b"-1"), (b"content-length", b"9" * 30)]
HEADERS += [(b"content-length", b"1"), (b"content-length", b"99999999"), (b"authorization", b"fedax"), (b"x", b"\xff")]
HEADERS += [(b"expect", b"100-continue"), (b"range", b"bytes=9-1"), (b"x" * 9000, b"y"), (b"x-http-method", b"PUT")]
STAMPS: dict[str, list[Any]] = {"number": [7], "start": ["-", "é"], "at": [1e300, float("nan"), -1.0]}
STAMPS |= {"nonce": ["0" * 32, "x"], "digest": ["0" * 64, ""]}
HOSTS = (b"x/hello#", b"x/hello?", b"", b"\xff", b"a@b", b"[::1", b"x:99999999", b"x/nodes#")


def memory() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def main(number: int, seed: int = 0) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bench, began = Bench(Path(folder) / "link"), time.monotonic()
        statuses = attack(bench, number // 10, seed)
        gc.collect()
        before = memory()
        for k in range(1, 10):
            statuses += attack(bench, number // 10, seed + k)
        gc.collect()
        grown = memory() - before
        bench.close()
    seconds = time.monotonic() - began
    print(f"{statuses.total()} requests in {seconds:.0f} s; after the first tenth {grown / MB:.1f} MB more memory")
    print("\n".join(f"{status}: {count}" for status, count in sorted(statuses.items())))
    assert grown < 32 * MB


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
