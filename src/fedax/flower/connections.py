"""The link's connections: how many there may be, how long each may take, and the certificate of new ones."""

import asyncio
import collections
import contextlib
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fedax.flower.guard import LARGEST

_HEAD = 64 << 10  # bytes of a request's head
_TICKS = 10  # of uvicorn's, 0.1 s each, between two looks whether the certificate is another one


class Limits(NamedTuple):
    """What a link bears of connections.

    Attributes:
        total: connections at a time; more are closed as they come.
        each: the same from one address.
        head: seconds for the handshake, and for the head of a request.
        body: seconds for the body of a request, and as many more as it takes at ``rate``.
        rate: bytes a second.
        largest: bytes of the body of a request.
    """

    total: int = 512
    each: int = 128
    head: float = 20.0
    body: float = 30.0
    rate: float = 10_000.0
    largest: int = LARGEST


class Listener(socket.socket):
    """A socket that listens, and takes no more connections than it may."""

    def __init__(self, address: tuple[str, int], limits: Limits):
        super().__init__(socket.AF_INET, socket.SOCK_STREAM)
        self.limits, self.taken = limits, collections.Counter[str]()
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.bind(address)

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection that may be; others are closed."""
        while True:
            number, address = self._accept()  # type: ignore[attr-defined]
            if self.taken.total() < self.limits.total and self.taken[address[0]] < self.limits.each:
                return _Counted(self.taken, address[0], number), address
            socket.close(number)


class _Counted(socket.socket):
    """A connection, which counts as long as it is open."""

    def __init__(self, taken: collections.Counter[str], host: str, number: int):
        super().__init__(socket.AF_INET, socket.SOCK_STREAM, 0, number)
        self._taken, self._host, self._open = taken, host, True
        taken[host] += 1

    def close(self) -> None:
        if self._open:
            self._open = False
            self._taken[self._host] -= 1
            if not self._taken[self._host]:
                del self._taken[self._host]
        super().close()


def protocol(limits: Limits) -> type[HttpToolsProtocol]:
    """uvicorn's protocol, of which one object handles a connection, with limits of time and of a head's size."""

    class Bounded(HttpToolsProtocol):
        _due: asyncio.TimerHandle | None = None
        _size = 0  # bytes since a head began
        _body: tuple[float, int] | None = None  # when the body began, and bytes of it so far

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._await_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._wait(None)
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._body is None:
                self._size += len(data)
                busy = self.cycle is not None and not self.cycle.response_complete
                if self._due is None and not busy:
                    self._await_head()
            super().data_received(data)
            if self._body is None and self._size > _HEAD:
                self.transport.abort()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            if self._due is None:
                self._await_head()

        def on_headers_complete(self) -> None:
            self._wait(None)
            self._size, self._body = 0, (self.loop.time(), 0)
            self._look()
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            if self._body is not None:
                self._body = self._body[0], self._body[1] + len(body)
            super().on_body(body)

        def on_message_complete(self) -> None:
            self._body = None
            self._wait(None)
            super().on_message_complete()

        def _await_head(self) -> None:
            self._wait(self.loop.call_later(limits.head, self.transport.abort))

        def _look(self) -> None:
            """End a connection whose body comes too slowly; else look again when it may be too late."""
            assert self._body is not None
            left = self._body[0] + limits.body + self._body[1] / limits.rate - self.loop.time()
            if left <= 0:
                self.transport.abort()
            else:
                self._wait(self.loop.call_later(left, self._look))

        def _wait(self, due: asyncio.TimerHandle | None) -> None:
            if self._due is not None:
                self._due.cancel()
            self._due = due

    return Bounded


class Server(uvicorn.Server):
    """uvicorn's server with limits of connections, whose new ones have the certificate that its files hold then.

    Args:
        app: an ASGI application.
        address: where it listens.
        files: certificate and key in PEM form; nothing: without TLS.
        limits: of connections.
    """

    def __init__(self, app: Any, address: tuple[str, int], files: Sequence[Path], limits: Limits = Limits()):
        self._limits, self._address, self._files = limits, address, files
        self._times = self._changed()
        certificate, key = files or (None, None)
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol(limits),
                ws="none",
                ssl_certfile=certificate,
                ssl_keyfile=key,
                access_log=False,
                log_level="warning",
            )
        )

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until SIGINT or SIGTERM."""
        with (
            Listener(self._address, self._limits) as listener,
            asyncio.Runner(loop_factory=lambda: _Loop(self._limits.head)) as runner,
        ):
            runner.run(self.serve(sockets=[listener]))

    async def on_tick(self, counter: int) -> bool:
        """uvicorn's, ten times a second."""
        if self._files and counter % _TICKS == 0 and (now := self._changed()) != self._times:
            certificate, key = self._files
            with contextlib.suppress(OSError):  # ssl.SSLError is one: the files are being written
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
                assert self.config.ssl is not None
                self.config.ssl.load_cert_chain(certificate, key)
                self._times = now
        return await super().on_tick(counter)

    def _changed(self) -> list[tuple[int, int]]:
        found = []
        for file in self._files:
            with contextlib.suppress(OSError):
                status = file.stat()
                found.append((status.st_mtime_ns, status.st_ino))
        return found


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose servers do not wait for ever for a handshake."""

    def __init__(self, handshake: float):
        super().__init__()
        self._handshake = handshake

    async def create_server(self, *args: Any, **kwargs: Any) -> asyncio.Server:
        if kwargs.get("ssl") is not None:
            kwargs |= {"ssl_handshake_timeout": self._handshake, "ssl_shutdown_timeout": self._handshake}
        return await super().create_server(*args, **kwargs)
