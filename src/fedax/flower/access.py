"""Access control before Flower's SuperLink: requests signed by known nodes, and requests that hold the secret."""

import hashlib
import hmac
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple

from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
    UnregisterNodeFleetRequest,
)
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from starlette.concurrency import run_in_threadpool
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fedax.flower.signature import HEADERS, Signed

NODES = "/v1/fleet/"  # paths for nodes; all others need the secret
LARGEST = 32 << 20  # bytes of a request's body; Flower cuts arrays into pieces of 5 MB
_LARGEST_OF_NODE = 4 << 20  # the same for a node's request, unless it carries a piece of a message
_PIECE = f"{NODES}push-object"
_ENTRY = f"{NODES}activate-node"
_PIECES = 1024  # of a message
_EARLY, _LATE = 5.0, 60.0  # seconds by which a node's clock may be ahead of the link's, or its request be old
_HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]


class Node(NamedTuple):
    """The node that signed a request.

    Attributes:
        number: Flower's number of the node.
        key: its public key.
    """

    number: int
    key: bytes


class _Refused(Exception):
    def __init__(self, status: int, why: str):
        super().__init__(why)
        self.status = status


class AccessControl:
    """ASGI middleware that passes on requests that a known node has signed, and requests that hold the secret.

    A node's request is checked before its body is read, and accepted only once. A request is passed on when its whole
    body has arrived.

    Args:
        inner: the wrapped application. For a node's request, ``scope["state"]["node"]`` is a :class:`Node`.
        secret: what the header ``authorization: Bearer`` has to hold.
        node_of_key: gives the number of the node with a public key, or ``None``.
        largest: the largest body that is accepted, in bytes.
        clock: Unix time in seconds.
    """

    def __init__(
        self,
        inner: Callable[..., Awaitable[None]],
        secret: str,
        node_of_key: Callable[[bytes], int | None],
        largest: int = LARGEST,
        clock: Callable[[], float] = time.time,
    ):
        self.inner, self.header, self._node_of_key = inner, f"Bearer {secret}".encode(), node_of_key
        self._largest, self._clock, self._began = largest, clock, clock()
        self._seen: set[bytes] = set()  # digests of recent requests, against replays
        self._expiry: deque[tuple[float, bytes]] = deque()  # when each of them is too old to be accepted anyway

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] == "lifespan":
            await self.inner(scope, receive, send)
        elif scope["type"] == "http":
            try:
                body = await self._checked_body(scope, receive)
            except _Refused as refused:
                return await _refuse(send, refused)
            await self.inner(scope, _replayed(body, receive), send)

    async def _checked_body(self, scope: Event, receive: Receive) -> bytes:
        """The body of a request; raises :class:`_Refused` if it may not pass."""
        path, headers = scope["path"], _Headers(scope["headers"])
        signed = None
        if path == "/health":
            largest = 0
        elif path.startswith(NODES):
            largest = min(self._largest, self._largest if path == _PIECE else _LARGEST_OF_NODE)
            signed = await self._check_signature(scope, headers)
        else:
            largest = self._largest
            if not hmac.compare_digest(headers.one("authorization").encode("latin-1"), self.header):
                raise _Refused(403, "this needs the link's secret")
        if not _HOST.fullmatch(headers.one("host")):
            raise _Refused(400, "the header host is missing, there twice, or no name")
        if path != "/health" and (scope["method"], path) not in PROTOBUF_REQUEST_TYPES:
            raise _Refused(404, "there is nothing here")
        size = headers.one("content-length") or "0"
        if "transfer-encoding" in headers or not (size.isascii() and size.isdecimal()):
            raise _Refused(411, "a body needs its length, in the header content-length")
        if len(size) > 15 or int(size) > largest:
            raise _Refused(413, f"a body of {size[:15]} bytes is too large; {largest} are taken here")
        body = await _read(receive, int(size))
        if signed is not None and not hmac.compare_digest(hashlib.sha256(body).hexdigest(), signed.digest):
            raise _Refused(401, "the body is not the one that was signed")
        return body

    async def _check_signature(self, scope: Event, headers: "_Headers") -> Signed:
        """The signed fields of a node's request; raises :class:`_Refused` if they are bad, too old or a replay."""
        try:
            signed = Signed.read({name: headers.one(name) for name in HEADERS}, scope["path"])
            signed.digest.encode("ascii")
        except ValueError as error:
            raise _Refused(401, "the request of a node is not signed, or not as fedax signs") from error
        now = self._clock()
        if not -_EARLY < now - signed.at < _LATE:
            raise _Refused(401, f"it was signed {now - signed.at:.0f} s ago")
        if signed.at < self._began:  # the digests of requests before that are lost
            raise _Refused(503, "it was signed before the link was started; sign it again")
        number = await run_in_threadpool(self._node_number, signed, scope["path"])
        while self._expiry and self._expiry[0][0] < now:
            self._seen.discard(self._expiry.popleft()[1])
        request_digest = hashlib.sha256(signed.key + signed.text).digest()
        if request_digest in self._seen:
            raise _Refused(401, "it came a second time")
        self._seen.add(request_digest)
        self._expiry.append((now + _LATE + _EARLY, request_digest))
        scope.setdefault("state", {})["node"] = Node(number, signed.key)
        return signed

    def _node_number(self, signed: Signed, path: str) -> int:
        number = self._node_of_key(signed.key)
        if number is None:  # by 401 a SuperNode knows that it is not wanted any more
            raise _Refused(403 if path == _ENTRY else 401, "the key is not known here")
        if not signed.is_of_key():
            raise _Refused(401, "the signature is not of this request")
        return number


class _Headers(dict[str, list[str]]):
    """The headers of a request, which may be there several times."""

    def __init__(self, raw: list[tuple[bytes, bytes]]):
        super().__init__()
        for name, value in raw:
            self.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))

    def one(self, name: str) -> str:
        """The header of this name; empty if there is none, or several."""
        values = self.get(name, [])
        return values[0] if len(values) == 1 else ""


class SenderCheck(BaseHTTPMiddleware):
    """Replaces Flower's check of nodes: the sender that a request names has to be the node that signed it."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Handle one request, whose message has been read."""
        message = getattr(request.state, "protobuf_request", None)
        if request.url.path.startswith(NODES) and (why := _refusal_of(message, getattr(request.state, "node", None))):
            return JSONResponse({"detail": why}, 403)
        return await call_next(request)


def _refusal_of(message: Any, node: Node | None) -> str | None:
    """Why a request of this node is refused; ``None`` if it is not."""
    if node is None or message is None or isinstance(message, RegisterNodeFleetRequest | UnregisterNodeFleetRequest):
        return "this is not for nodes"
    if isinstance(message, ActivateNodeRequest):
        return None if message.public_key == node.key else "the node has another key"
    if (message.node.node_id if hasattr(message, "node") else message.node_id) != node.number:
        return "the key is of another node"
    if not isinstance(message, PushMessagesRequest):
        return None
    if len(message.messages_list) != 1 or len(message.message_object_trees) != 1:
        return "it has not one answer"
    about = message.messages_list[0].metadata
    if about.src_node_id != node.number or not about.reply_to_message_id:
        return "it is not this node's answer"
    if _count_pieces(message.message_object_trees[0]) > _PIECES:
        return f"an answer has more than {_PIECES} pieces"
    return None


def _count_pieces(tree: ObjectTree) -> int:
    count, left = 0, [tree]
    while left and count <= _PIECES:
        count += 1
        left += left.pop().children
    return count


async def _read(receive: Receive, size: int) -> bytes:
    body = bytearray()
    while True:
        event = await receive()
        if event["type"] != "http.request":
            raise _Refused(400, "the connection has ended before the body had")
        body += event.get("body", b"")
        if len(body) > size:
            raise _Refused(400, "the body is longer than its header says")
        if not event.get("more_body", False):
            return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that gives a body that was already read, then the events that follow it."""
    left: list[Event] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Event:
        return left.pop() if left else await receive()

    return receive_again


async def _refuse(send: Send, refused: _Refused) -> None:
    headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": str(refused).encode()})
