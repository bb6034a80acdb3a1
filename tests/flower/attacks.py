"""A link within this process, and a fuzzer that sends it forged and malformed requests.

``python -m tests.flower.attacks 100000`` sends so many requests, made from good ones by small changes, to Flower's
whole application behind the access control. It prints the outcomes. It ends with an error if a request came through
that no known node had signed and that did not hold the secret, if one raised an exception, or if memory grew.
"""

import asyncio
import base64
import collections
import contextlib
import datetime
import hashlib
import io
import logging
import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import flwr.app
import httpx
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, SUPERLINK_NODE_ID
from flwr.common.serde import fab_to_proto, message_to_proto
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushAppMessagesRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.main import create_app
from flwr.supernode.fleet_http_client import FleetHttpClient

from fedax.engine.places.nodes import Message
from fedax.flower import app
from fedax.flower.calls import Secret
from fedax.flower.connections import Limits
from fedax.flower.records import FlowerMessage, pack
from fedax.flower.signature import Signer
from fedax.flower.superlink import with_access_control
from tests import fuzz

SECRET = "a-secret-of-the-link"
NODES = "/v1/fleet/"
HEALTH = "/health"
ADDRESS = "https://127.0.0.1"


class Sent(NamedTuple):
    """A request as it was sent, and the answer."""

    request: httpx.Request
    status: int
    text: bytes


class Link(httpx.BaseTransport):
    """Flower's application behind the access control, without a network; two nodes ``a`` and ``b``, and a run.

    Args:
        limits: of connections.
    """

    def __init__(self, limits: Limits = Limits()):
        self._loop = asyncio.new_event_loop()
        self.flowers = create_app()
        self.flowers.state.enable_supernode_auth = True
        self.passed: list[dict[str, Any]] = []  # what has passed the access control
        self.access: Any = with_access_control(self.flowers, SECRET, limits)
        application = self.access.inner

        async def inner(scope: Any, receive: Any, send: Any) -> None:
            self.passed.append(scope)
            await application(scope, receive, send)

        self.access.inner = inner
        self.sent: list[Sent] = []
        self.commands = self.client(ControlHttpClient, Secret(SECRET))
        self.keys = {name: ec.generate_private_key(ec.SECP384R1()) for name in "ab"}
        self.public = {name: public_key_to_bytes(key.public_key()) for name, key in self.keys.items()}
        self.numbers = {
            name: self.commands.RegisterNode(RegisterNodeRequest(public_key=key, name=name)).node_id
            for name, key in self.public.items()
        }
        for name, key in self.public.items():
            enter = ActivateNodeRequest(public_key=key, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
            self.node(name).ActivateNode(enter)
        self._begin()

    def _begin(self) -> None:
        fab = app.build()
        given = fab_to_proto(Fab(hashlib.sha256(fab).hexdigest(), fab, {}))
        self.run = self.commands.StartRun(StartRunRequest(fab=given)).run_id
        request = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
        token = self.client(RuntimeHttpClient, Secret(SECRET)).AcquireTask(request).token
        self.server = self.client(RuntimeHttpClient, Secret(SECRET), RuntimeTokenHttpInterceptor(token))
        self.server.PullTaskInput(PullTaskInputRequest())

    def client(self, kind: Any, *interceptors: Any) -> Any:
        """One of Flower's clients."""
        made = kind(ADDRESS, interceptors=interceptors)
        made._client = httpx.Client(transport=self)
        return made

    def close(self) -> None:
        """End it."""
        self._loop.close()

    def node(self, name: str) -> Any:
        """A client with the key of a node."""
        return self.client(FleetHttpClient, Signer(self.keys[name], self.keys[name].public_key()))

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Called by httpx."""
        path = request.url.raw_path.decode()
        raw = [(name.lower(), value) for name, value in request.headers.raw]
        status, text = self.send(request.method, path, raw, [request.read()])
        self.sent.append(Sent(request, status, text))
        return httpx.Response(status, content=text, headers={"content-type": "application/json"}, request=request)

    def send(
        self, method: str, path: str, headers: list[tuple[bytes, bytes]], body: list[bytes], kind: str = "http"
    ) -> tuple[int, bytes]:
        """The status and the text of the response; status 0 if there is none. ``body``: the parts in which it comes."""
        scope = {
            "type": kind, "method": method, "path": path, "raw_path": path.encode("utf-8", "replace"),
            "headers": headers, "query_string": b"", "scheme": "https", "server": ("127.0.0.1", 9443),
            "client": ("127.0.0.1", 50_000), "http_version": "1.1", "root_path": "", "state": {},
            "asgi": {"version": "3.0", "spec_version": "2.3"},
        }  # fmt: skip
        left, status, parts = list(body), 0, list[bytes]()

        async def receive() -> dict[str, Any]:
            if not left:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

        async def send(event: dict[str, Any]) -> None:
            nonlocal status
            status = event.get("status", status)
            parts.append(event.get("body", b""))

        self._loop.run_until_complete(self.access(scope, receive, send))
        return status, b"".join(parts)

    def again(self, sent: Sent, path: str | None = None, body: bytes | None = None) -> tuple[int, bytes]:
        """Send the headers of a request once more, with its path and body, or with others."""
        body = sent.request.content if body is None else body
        raw = [(name.lower(), value) for name, value in sent.request.headers.raw if name.lower() != b"content-length"]
        raw.append((b"content-length", str(len(body)).encode()))
        return self.send("POST", path or sent.request.url.path, raw, [body])

    def ask(self, name: str, head: dict[str, Any]) -> flwr.app.Message:
        """The server asks a node."""
        made = self.message(name, head)
        given = PushAppMessagesRequest(
            messages_list=[message_to_proto(made)], message_object_trees=[get_object_tree(made)]
        )
        assert list(self.server.PushMessages(given).message_ids) == [made.metadata.message_id]
        return made

    def message(self, name: str, head: dict[str, Any]) -> flwr.app.Message:
        """A message to a node, with the server as its sender."""
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = self.run, SUPERLINK_NODE_ID, 1
        made = FlowerMessage(pack(Message(head)), self.numbers[name], "query", ttl=100.0)
        made.metadata.__dict__["_message_id"] = made.object_id
        return made

    def answer(self, name: str, request: flwr.app.Message, head: dict[str, Any]) -> flwr.app.Message:
        """An answer with a node as its sender."""
        made = flwr.app.Message(pack(Message(head)), reply_to=request)
        made.metadata.__dict__["_src_node_id"] = self.numbers[name]
        made.metadata.__dict__["_message_id"] = made.object_id
        return made

    def push(self, name: str, message: flwr.app.Message) -> Any:
        """A node hands a message over."""
        return self.node(name).PushMessages(
            PushMessagesRequest(
                node=self.at(name),
                messages_list=[message_to_proto(message)],
                message_object_trees=[get_object_tree(message)],
            )
        )

    def pull(self, name: str) -> list[str]:
        """The numbers of the messages that a node gets."""
        result = self.node(name).PullMessages(PullMessagesRequest(node=self.at(name)))
        return [each.metadata.message_id for each in result.messages_list]

    def at(self, name: str) -> Node:
        """A node as Flower names it."""
        return Node(node_id=self.numbers[name])


def refused(call: Callable[..., Any], *given: Any) -> tuple[int, str]:
    """The status and the reason with which a call is refused."""
    try:
        call(*given)
    except httpx.HTTPStatusError as error:
        return error.response.status_code, error.response.text
    return 0, "it was not refused"


# ---- the fuzzer


class Input(NamedTuple):
    """A request to send."""

    method: str
    path: str
    headers: list[tuple[bytes, bytes]]
    body: list[bytes]
    kind: str = "http"


def good(link: Link, rng: random.Random) -> Input:
    """A valid request, signed by a node or with the secret."""
    from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

    method, path = rng.choice([*PROTOBUF_REQUEST_TYPES, ("GET", HEALTH), ("POST", f"{NODES}pull-messages")])
    kind = PROTOBUF_REQUEST_TYPES.get((method, path))
    message = None if kind is None else kind()
    name = rng.choice("ab")
    if message is not None and "node" in message.DESCRIPTOR.fields_by_name:
        message.node.node_id = link.numbers[name]
    elif message is not None and "node_id" in message.DESCRIPTOR.fields_by_name and path.startswith(NODES):
        message.node_id = link.numbers[name]
    body = b"" if message is None else message.SerializeToString()
    headers = [(b"host", b"127.0.0.1:9443"), (b"content-type", b"application/protobuf")]
    headers.append((b"content-length", str(len(body)).encode()))
    if path.startswith(NODES):
        headers += signature(link, name, path, body)
    elif path != HEALTH:
        headers.append((b"authorization", f"Bearer {SECRET}".encode()))
    return Input(method, path, headers, [body])


def signature(link: Link, name: str, path: str, body: bytes) -> list[tuple[bytes, bytes]]:
    """The headers by which a node signs a request."""
    results: list[tuple[bytes, bytes]] = []

    def keep(context: Any) -> Any:
        results.extend((key.lower(), value) for key, value in context.request.headers.raw)

    request = httpx.Request("POST", f"{ADDRESS}{path}", content=body)
    context: Any = type("Context", (), {"request": request})
    Signer(link.keys[name], link.keys[name].public_key()).intercept(context, keep)
    return [(key, value) for key, value in results if key.startswith((b"flwr-", b"fedax-"))]


PATHS = (
    "/", "", "*", "/docs", "/openapi.json", "/health/", "/HEALTH", "//health", "/health/../v1/control/list-nodes",
    "/v1/fleet", "/v1/fleet/", "/v1/fleet/x", "/v1/fleet/../control/list-nodes", "/v1/fleet/pull-messages/",
    "/v1//fleet/pull-messages", "/v1/fleet/pull-messages\0", "/v1/control/list-nodes", "/v1/runtime/get-nodes",
    "/V1/control/list-nodes", "/v1/fleet/register-node", "/v1/responses", "\ud800", "/v1/fleet/\udfff", "/é",
)  # fmt: skip
METHODS = ("GET", "POST", "HEAD", "PUT", "OPTIONS", "CONNECT", "post", "")


def changed(rng: random.Random, given: Input, other: Input) -> Input:
    """A request with one to three changes."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        headers, body = list(given.headers), list(given.body)
        what = rng.randrange(10)
        at = rng.randrange(len(headers)) if headers else -1
        if what == 0:
            given = given._replace(method=rng.choice(METHODS))
        elif what == 1:
            given = given._replace(path=rng.choice((*PATHS, other.path)))
        elif what == 2 and at >= 0:
            del headers[at]
        elif what == 3 and at >= 0:
            headers.insert(rng.randrange(len(headers) + 1), headers[at])
        elif what in (4, 5) and at >= 0:
            headers[at] = (
                headers[at][0],
                fuzz.change(rng, headers[at][1], [value for _, value in other.headers] or [b""]),
            )
        elif what == 6 and other.headers:
            headers.append(rng.choice(other.headers))
        elif what == 7:
            names = dict(other.headers)
            headers = [(name, names.get(name, value)) for name, value in headers]
        elif what == 8:
            whole = fuzz.change(rng, b"".join(body), other.body)
            cut = rng.randrange(len(whole) + 1)
            body = [whole[:cut], whole[cut:]] if rng.random() < 0.5 else [whole]
            if rng.random() < 0.7:  # the length that belongs to it
                headers = [each for each in headers if each[0] != b"content-length"]
                headers.append((b"content-length", str(len(whole)).encode()))
        elif rng.random() < 0.2:
            given = given._replace(kind=rng.choice(("websocket", "websocket", "mqtt", "")))
        given = given._replace(headers=headers, body=body)
    return given


def may_pass(link: Link, scope: dict[str, Any], body: bytes, known: set[bytes]) -> bool:
    """Whether a request may come through, decided independently of the access control."""
    headers = collections.defaultdict(list)
    for name, value in scope["headers"]:
        headers[name.lower()].append(value)
    if scope["path"] == HEALTH:
        return not body
    if not scope["path"].startswith(NODES):
        return headers[b"authorization"] == [f"Bearer {SECRET}".encode()]
    names = (b"flwr-public-key", b"flwr-timestamp", b"fedax-signature", b"fedax-digest")
    if any(len(headers[name]) != 1 for name in names):
        return False
    key, at, made, digest = (headers[name][0] for name in names)
    text = b"\n".join([b"fedax request", at, scope["path"].encode(), digest])
    pem = base64.b64decode(key)
    if pem not in link.public.values() or digest.decode() != hashlib.sha256(body).hexdigest() or text in known:
        return False
    known.add(text)
    public: Any = load_pem_public_key(pem)
    with contextlib.suppress(InvalidSignature):
        public.verify(base64.b64decode(made), text, ec.ECDSA(hashes.SHA256()))
        signed_at = datetime.datetime.fromisoformat(at.decode())
        return -5 < (datetime.datetime.now(datetime.UTC) - signed_at).total_seconds() < 60
    return False


def inputs(link: Link, number: int, seed: int) -> Iterator[Input]:
    """Changed requests."""
    rng = random.Random(seed)
    last = good(link, rng)
    for i in range(number):
        now = good(link, rng) if i % 4 else last
        yield changed(rng, now, last)
        last = now


def attack(link: Link, number: int, seed: int = 0) -> collections.Counter[int]:
    """Send changed requests; how many had which status.

    Raises:
        AssertionError: one came through and may not; or is in no form in which an answer may be.
    """
    result, known = collections.Counter[int](), set[bytes]()
    for i, each in enumerate(inputs(link, number, seed)):
        link.passed.clear()
        stderr = io.StringIO()
        with contextlib.redirect_stderr(stderr):
            status, text = link.send(each.method, each.path, each.headers, each.body, each.kind)
        for scope in link.passed:
            assert may_pass(link, scope, b"".join(each.body), known), (i, each)
        assert len(text) < 10_000 and SECRET.encode() not in text and "Traceback" not in stderr.getvalue(), (i, each)
        assert status or each.kind != "http", (i, each)
        result[status] += 1
    return result


def main(number: int) -> int:
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    link, began = Link(), time.monotonic()
    part = number // 4
    total = attack(link, part)
    tracemalloc.start()
    sizes = []
    for seed in (1, 2, 3):
        total += attack(link, part, seed)
        sizes.append(tracemalloc.get_traced_memory()[0] / 1e6)
    seconds = time.monotonic() - began
    print(f"{total.total()} requests in {seconds:.0f} s; by status: {dict(sorted(total.items()))}")
    print(f"memory after each later quarter, MB: {', '.join(f'{size:.2f}' for size in sizes)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
