"""The link, to which nodes and runs connect: a web service that carries letters between them, and keeps nothing else.

Requests are signed, and taken once: by a node with its key, or by a run with the key in the link's file ``secret``. The
link looks at a request's head first, and reads the body of one that is signed. Nodes and runs ask for letters by
requests that wait until there are some.

A proxy that ends TLS, where a site adds its authority to ``ca.pem``, sees what goes through: who asks whom, when, and
the messages, which are models and sums. It can hold them back. It cannot make, change or repeat them: questions are
signed by the run and answers by the node, both look at the signatures themselves, and requests are signed too.
"""

import asyncio
import collections
import contextlib
import hashlib
import json
import os
import secrets
import ssl
import threading
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from fedax._start import collect_rarely, reach_directly
from fedax.errors import ConfigError
from fedax.files import check_private
from fedax.sites.service import certificates
from fedax.sites.service.connections import Event, Limits, Listener, Receive, Send, everywhere
from fedax.sites.service.letters import SMALL, Letter, Part, Refused, packed, unpacked
from fedax.sites.service.mailbox import RUN, Mailbox
from fedax.sites.service.processes import ending
from fedax.sites.service.signature import GREETING, REQUEST, Keys, RunKeys, Stamp, is_signed, request_text, sign

POLL = 25.0  # seconds for which a request waits for letters
_HELLO, _UNKNOWN = "/hello", "the key is not known here"
_LATE = 60.0  # seconds by which a request may be old, or ahead
_MOST = 6000  # requests of one key in that time
_PIECE = 1 << 18  # bytes that are sent or looked at at a time
_BODIES = {True: 48 << 20, False: 12 << 20}  # bytes of a request's body: of a run, and of a node
_TOGETHER = 32 << 20  # bytes of small parts in one response
_TICK = 0.5  # seconds between looks at keys, certificates and connections
_HEAD = 16 << 10  # bytes of a request's head
_TABLE = 64 << 10  # bytes of the JSON in a node's request: millions of small parts would take seconds

Table = dict[str, Any]
Parts = Mapping[str, bytes]
Handler = Callable[[Request, int, Table, Parts], Awaitable[Response]]


class Link:
    """The web service of a link.

    Args:
        folder: of the link, which :func:`prepare` has made.
        limits: of connections.
        room: bytes that the mailbox may hold; ``None``: half of this machine's memory.
        say: is called with lines for people.
    """

    def __init__(
        self, folder: Path, limits: Limits = Limits(), room: int | None = None, say: Callable[[str], None] = print
    ):
        self.folder, self.limits = folder, limits
        self.start, self._began = secrets.token_hex(16), time.time() - time.monotonic()
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4 << 30
        self.box = Mailbox(room or memory // 2, self.now)
        self.keys, self.run_keys = Keys(folder / "nodes", say), RunKeys(folder / "ca.pem")
        self._seen: dict[str, tuple[float, int]] = {}  # nonces -> when they are too old anyway, and whose they are
        self._counts = collections.Counter[int]()
        self.closing, self.looks = False, [self._look]
        routes = [Route("/health", self._health)]
        for path, handler, who in (
            (_HELLO, self._hello, "any"), ("/nodes", self._nodes, "run"), ("/questions", self._questions, "run"),
            ("/answers", self._answers, "run"), ("/end", self._end, "run"), ("/question", self._question, "node"),
            ("/answer", self._answer, "node"),
        ):  # fmt: skip
            routes.append(Route(path, _Endpoint(self, handler, who), methods=["POST"]))
        routes.append(Route("/parts/{digest}", _Endpoint(self, self._part, "any"), methods=["GET"]))
        routes.append(Route("/parts/{digest}", _Endpoint(self, self._put, "any"), methods=["PUT"]))
        refusals: Any = {HTTPException: _refuse, Refused: _refuse}
        self.app = Starlette(routes=routes, exception_handlers=refusals, lifespan=self._lifespan)

    def now(self) -> float:
        """The link's clock, in Unix time; it never goes back."""
        return self._began + time.monotonic()

    # ---- who asks

    def signer(self, request: Request) -> tuple[Stamp, bool]:
        """Who has signed a request, and whether it is a run; raises :class:`Refused` before the body is read."""
        given = request.headers.getlist("authorization")
        try:
            stamp, text, signature = Stamp.read(given[0] if len(given) == 1 else "")
        except ValueError as error:
            raise Refused(401, "the request is not signed, or not as fedax signs") from error
        known = self.keys.look().get(stamp.number)
        public = known.key if known else self.run_keys.look().get(stamp.number)
        if public is None:
            raise Refused(403, _UNKNOWN)
        path, query = request.scope["path"], request.scope["query_string"].decode("latin-1")
        if path != _HELLO:  # which asks for the time and the name of this start
            if stamp.start != self.start:
                raise Refused(401, "it was signed for another start of the link")
            if not abs(self.now() - stamp.at) < _LATE:
                raise Refused(401, f"it was signed {self.now() - stamp.at:.0f} s ago")
        target = f"{request.method} {path}{'?' if query else ''}{query}"
        if not is_signed(public, REQUEST, request_text(text, target), signature):
            raise Refused(401, "the signature is not of this request")
        now = self.now()
        while self._seen and (oldest := next(iter(self._seen.items())))[1][0] < now:
            del self._seen[oldest[0]]
            self._counts[oldest[1][1]] -= 1
        if stamp.nonce in self._seen:
            raise Refused(401, "it came a second time")
        if self._counts[stamp.number] >= _MOST:
            raise Refused(429, "there are too many requests with this key")
        self._counts[stamp.number] += 1
        self._seen[stamp.nonce] = now + 2 * _LATE, stamp.number
        return stamp, known is None

    async def pieces(self, request: Request, largest: int) -> AsyncIterator[bytes]:
        """A request's body as it comes, if it comes in time, and is neither too large nor longer than was said."""
        length, no_length = request.headers.get("content-length", ""), "a body needs its length, in the header"
        if "transfer-encoding" in request.headers:
            length = ""
        if (size := _number(length, Refused(411, f"{no_length} content-length"))) > largest:
            raise Refused(413, f"a body of {size} bytes is too large; {largest} are taken here")
        stream, began, came = request.stream(), time.monotonic(), 0
        while True:
            left = began + self.limits.body + came / self.limits.rate - time.monotonic()
            try:
                piece = await asyncio.wait_for(anext(stream, b""), max(left, 0.0))
            except TimeoutError:
                raise Refused(408, "the body comes too slowly") from None
            except ClientDisconnect:
                raise Refused(400, "the connection has ended before the body had") from None
            if not piece:
                return
            came += len(piece)
            if came > size:
                raise Refused(400, "the body is longer than its head says")
            yield piece

    # ---- what is asked

    async def _health(self, request: Request) -> Response:
        return PlainTextResponse("the link is there\n")

    async def _hello(self, request: Request, party: int, table: Table, parts: Parts) -> Response:
        key = certificates.load_secret(self.folder)
        text = json.dumps({"nonce": table["nonce"], "start": self.start, "now": self.now()})
        return _answered({"text": text, "signature": sign(key, GREETING, text)})

    async def _nodes(self, request: Request, party: int, table: Table, parts: Parts) -> Response:
        listed = []
        for number, known in self.keys.look().items():
            here, since = self.box.is_here(number), self.box.parties[number].changed or None
            listed.append({"number": number, "name": known.name, "here": here, "since": since, "known": known.since})
        return _answered({"nodes": listed})

    async def _questions(self, request: Request, party: int, table: Table, parts: Parts) -> Response:
        refused = {}
        for given in table["letters"]:
            letter = Letter.read(given)
            if letter.run != self.box.run:
                raise Refused(400, "it is a question of another run")
            if letter.start != self.start:
                raise Refused(503, "it was signed for another start of the link")  # the run signs it anew
            why = self.box.ask(letter, parts) if letter.node in self.keys.known else "the link does not know this node"
            if why:
                refused[letter.id] = why
        return _answered({"refused": refused})

    async def _answers(self, request: Request, party: int, table: Table, parts: Parts) -> Response:
        has, run = {*map(str, table["has"])}, request.query_params["as"]
        self.box.forget(map(str, table["got"]))
        seconds = POLL if table["start"] == self.start else 0.0  # it has not asked anything of this start yet
        await self._wait(request, party, lambda: bool(self.box.answers(has)) or self.box.run != run, seconds)
        found = self.box.answers(has)
        here = [number for number in self.keys.look() if self.box.is_here(number)]
        return self._posted([(each.answer, each.answered) for each in found if each.answer], {"here": here})

    async def _question(self, request: Request, party: int, table: Table, parts: Parts) -> Response:
        has, seconds = {*map(str, table["has"])}, min(POLL, float(table["seconds"]))
        removed = lambda: party not in self.keys.known  # noqa: E731
        await self._wait(request, party, lambda: removed() or self.box.question(party, has) is not None, seconds)
        if removed():
            raise Refused(403, _UNKNOWN)
        found = self.box.question(party, has)
        return self._posted([] if found is None else [(found.question, found.asked)], {})

    async def _answer(self, request: Request, party: int, table: Table, parts: Parts) -> Response:
        self.box.answer(party, Letter.read(table["letter"]), parts)
        return _answered({})

    async def _end(self, request: Request, party: int, table: Table, parts: Parts) -> Response:
        self.box.end()
        return _answered({})

    async def _wait(self, request: Request, party: int, found: Callable[[], bool], seconds: float) -> None:
        """Wait until there is something for a party, for as long as it is there."""
        bell = self.box.parties[party].bell
        left = asyncio.ensure_future(request.receive())  # comes when the party has gone
        left.add_done_callback(lambda _: bell.set())
        try:
            async with asyncio.timeout(seconds):
                while not (found() or left.done() or self.closing):
                    bell.clear()
                    await bell.wait()
        except TimeoutError:
            pass
        finally:
            left.cancel()
        if self.closing:
            raise Refused(503, "the link ends")

    # ---- parts

    def _posted(self, letters: Sequence[tuple[Letter, Sequence[bytes]]], table: dict[str, Any]) -> Response:
        """Letters with their small parts; the others are fetched."""
        small: dict[str, bytes] = {}
        for letter, contents in letters:
            for part, content in zip(letter.parts, contents, strict=True):
                if part.size <= SMALL and sum(map(len, small.values())) < _TOGETHER:
                    small[part.digest] = content
        return _answered({**table, "letters": [letter.sent for letter, _ in letters]}, small.values())

    async def _put(self, request: Request, party: int, table: Table, parts: Parts) -> Response:
        at, size = (_asked(request, name) for name in ("at", "size"))
        upload = self.box.upload(party, Part(request.path_params["digest"], size))
        async for piece in self.pieces(request, size):
            upload.add(at, piece)
            at += len(piece)
        return _answered({"have": len(upload.content)})

    async def _part(self, request: Request, party: int, table: Table, parts: Parts) -> Response:
        content = self.box.part(party, request.path_params["digest"])
        if content is None:
            raise Refused(404, "this part is not here")
        view = memoryview(content)[_asked(request, "at") :]

        async def pieces() -> AsyncIterator[bytes]:
            for begin in range(0, len(view), _PIECE):
                yield bytes(view[begin : begin + _PIECE])

        return StreamingResponse(pieces(), headers={"content-length": str(len(view))})

    # ---- what it looks after

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        async def watch() -> None:
            while True:
                for look in self.looks:
                    try:
                        look()
                    except Exception:  # a defect of one must not end the others
                        traceback.print_exc()
                await asyncio.sleep(_TICK)

        watching = asyncio.create_task(watch())
        yield
        watching.cancel()

    def _look(self) -> None:
        """Forget what is over, and look at the keys of nodes."""
        self.box.sweep()
        known = self.keys.look()
        for number, party in self.box.parties.items():
            if self.closing or number not in known:
                party.bell.set()


class _Endpoint:
    """An endpoint, as an ASGI app, for requests that are signed by ``"any"`` party, a ``"run"`` or a ``"node"``.

    The handler is called with the party, and what is in the body. The party is there until its answer has been sent.
    """

    def __init__(self, link: Link, handler: Handler, who: str):
        self._link, self._handler, self._who = link, handler, who

    def _in_time(self, send: Send) -> Send:
        """To send a response whose every piece has to be taken in time."""
        limits = self._link.limits

        async def sent(event: Event) -> None:
            async with asyncio.timeout(limits.body + len(event.get("body", b"")) / limits.rate):
                await send(event)

        return sent

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        stamp, is_run = self._link.signer(request)
        if self._who not in ("any", "run" if is_run else "node"):
            raise Refused(403, f"this is for {self._who}s")
        party, process = RUN if is_run else stamp.number, request.query_params.get("as", "")
        if scope["path"] in (_HELLO, "/nodes"):  # these do not say that somebody is there
            response = await self._handler(request, stamp.number, {"nonce": stamp.nonce}, {})
            return await response(scope, receive, send)
        if not (len(process) == 32 and process.isalnum()):
            raise Refused(400, "it does not say which process asks")
        present = self._link.box.enter(party, process)
        try:
            table, parts = dict[str, Any](), dict[str, bytes]()
            if request.method == "POST":
                body = b"".join([piece async for piece in self._link.pieces(request, _BODIES[is_run])])
                if hashlib.sha256(body).hexdigest() != stamp.digest:
                    raise Refused(401, "the body is not the one that was signed")
                if body:
                    table, parts = unpacked(body, len(body) if is_run else _TABLE)
            response = await self._handler(request, party, table, parts)
            with contextlib.suppress(TimeoutError, ClientDisconnect):  # nobody reads it: the connection is ended
                await response(scope, receive, self._in_time(send))
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
            raise Refused(400, f"this is not as fedax asks: {type(error).__name__}") from error
        finally:
            self._link.box.leave(present)


def _answered(table: dict[str, Any], parts: Any = ()) -> Response:
    return Response(packed(table, parts), media_type="application/octet-stream")


async def _refuse(request: Request, error: Exception) -> Response:
    """A refusal; what follows on the connection is not read."""
    status = error.status if isinstance(error, Refused) else getattr(error, "status_code", 500)
    return PlainTextResponse(str(error), status, headers={"connection": "close"})


def _asked(request: Request, name: str) -> int:
    return _number(request.query_params.get(name, ""), Refused(400, f"{name} is no number"))


def _number(text: str, refusal: Refused) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 20):
        raise refusal
    return int(text)


def prepare(folder: Path, hosts: Sequence[str]) -> None:
    """Make what a link's folder needs, where it is missing.

    ``secret``: the private key of runs; ``ca.pem``, ``ca.key``: an authority of its own, and in ``ca.pem`` also the
    public key of runs; ``server.pem``, ``server.key``: its server's certificate; ``nodes/``: for the keys of nodes.

    Args:
        folder: is made where it is missing.
        hosts: names and IP addresses by which nodes and runs reach the link.

    Raises:
        ConfigError: others than its owner can read a private file in it, ``ca.key`` is not the key of ``ca.pem``, or
            ``secret`` is none.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in ("ca.key", "server.key", "secret"):
        if (folder / name).exists():
            check_private(folder / name, "folder")
    (folder / "nodes").mkdir(exist_ok=True)
    certificates.make_authority(folder)
    certificates.make_server(folder, [*dict.fromkeys([*hosts, "localhost", "127.0.0.1"])])


def run(
    folder: Path,
    hosts: Sequence[str],
    port: int,
    *,
    bind: str | None = None,
    limits: Mapping[str, float] | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Run a link until SIGINT, SIGTERM or SIGHUP.

    Args:
        folder: see :func:`prepare`.
        hosts: names and IP addresses by which nodes and runs reach the link.
        port: 1 to 65535.
        bind: the address of this machine that it listens at, of IPv4 or IPv6; ``None``: all.
        limits: those of :class:`fedax.sites.service.connections.Limits` that are not the usual ones.
        say: is called with lines for people.

    Raises:
        ConfigError: the port is not free, or as of :func:`prepare`.
    """
    bind = everywhere() if bind is None else bind.removeprefix("[").removesuffix("]")
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bind, bind)
    reach_directly(here)
    bounds = Limits(**(limits or {}))  # type: ignore[arg-type]
    if bind.startswith("127.") or bind == "::1":  # all come from one address, such as the nodes of a rehearsal
        bounds = bounds._replace(each=bounds.total)
    try:
        listener = Listener((bind, port), bounds)
    except OSError as error:
        raise ConfigError("port", port, f"cannot be used ({error.strerror}); give another with --port") from error
    with listener, ending() as end:
        prepare(folder, [*hosts, here])
        collect_rarely()
        with serving(Link(folder, bounds, say=say), listener, (folder / "server.pem", folder / "server.key")):
            say(f"the link is ready at port {port}, with the nodes whose keys are in {folder / 'nodes'}")
            end.wait()


@contextlib.contextmanager
def serving(link: Link, listener: Listener, files: Sequence[Path] = ()) -> Iterator[None]:
    """Serve a link in a thread, for as long as the context lasts.

    Args:
        link: the web service.
        listener: where it listens.
        files: certificate and key in PEM form, which new connections have as they are then; nothing: without TLS.
    """
    context, loaded = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), list[tuple[int, int]]()

    def load() -> None:
        with contextlib.suppress(OSError):  # ssl.SSLError is one: the files are being written
            if (now := [(each.stat().st_mtime_ns, each.stat().st_ino) for each in files]) != loaded:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files[0], files[1])
                context.load_cert_chain(files[0], files[1])
                loaded[:] = now

    link.looks += [load, listener.sweep]
    load()
    server = uvicorn.Server(
        uvicorn.Config(
            listener.noting(link.app), http="h11", loop="asyncio", ws="none", access_log=False,
            log_level=os.environ.get("FEDAX_LOG_LEVEL", "warning"), proxy_headers=False, server_header=False,
            timeout_keep_alive=60, timeout_graceful_shutdown=3, h11_max_incomplete_event_size=_HEAD,
            ssl_context_factory=(lambda *_: context) if files else None,
        )
    )  # fmt: skip
    thread = threading.Thread(target=server.run, args=([listener],), name="link")
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield
    finally:
        link.closing = server.should_exit = True
        thread.join()
