"""The link's connections: limits on their number and duration, and the TLS certificate of new ones."""

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

from fedax.flower.access import LARGEST

_HEAD = 64 << 10  # bytes of a request's head
_TICKS = 10  # uvicorn's ticks, 0.1 s each, between two checks whether the certificate file has changed


class Limits(NamedTuple):
    """Limits on the connections of a link.

    Attributes:
        total: simultaneous connections; further ones are closed at once.
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


def family(host: str) -> socket.AddressFamily:
    """The kind of sockets for an address of this machine, or a name of it.

    Example:
        >>> family("::1").name, family("127.0.0.1").name
        ('AF_INET6', 'AF_INET')
    """
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def everywhere() -> str:
    """The address that stands for all of this machine: those of IPv6 and IPv4, or of IPv4 where it has no others."""
    try:
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True).close()
    except (OSError, ValueError):
        return "0.0.0.0"
    return "::"


class Listener(socket.socket):
    """A listening socket that accepts no more connections than the limits allow."""

    def __init__(self, address: tuple[str, int], limits: Limits):
        super().__init__(family(address[0]), socket.SOCK_STREAM)
        self.limits, self.taken = limits, collections.Counter[str]()
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if address[0] == "::":
            self.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.bind(address)

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection within the limits; others are closed."""
        while True:
            number, address = self._accept()  # type: ignore[attr-defined]
            if self.taken.total() < self.limits.total and self.taken[address[0]] < self.limits.each:
                return _CountedConnection(self.taken, address[0], number, self.family), address
            socket.close(number)


class _CountedConnection(socket.socket):
    """A connection that is counted in ``taken`` as long as it is open."""

    def __init__(self, taken: collections.Counter[str], host: str, number: int, family: int):
        super().__init__(family, socket.SOCK_STREAM, 0, number)
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
    """uvicorn's protocol class, whose objects handle one connection each, with limits on time and on header size."""

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
            self._check_rate()
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

        def _check_rate(self) -> None:
            """Close a connection whose body arrives too slowly; else check again when its time would be over."""
            assert self._body is not None
            left = self._body[0] + limits.body + self._body[1] / limits.rate - self.loop.time()
            if left <= 0:
                self.transport.abort()
            else:
                self._wait(self.loop.call_later(left, self._check_rate))

        def _wait(self, due: asyncio.TimerHandle | None) -> None:
            if self._due is not None:
                self._due.cancel()
            self._due = due

    return Bounded


class Server(uvicorn.Server):
    """uvicorn's server with limits on connections; it reloads the certificate when its files change.

    Args:
        app: an ASGI application.
        address: host and port where it listens.
        files: certificate and key in PEM form; nothing: without TLS.
        limits: of connections.
    """

    def __init__(self, app: Any, address: tuple[str, int], files: Sequence[Path], limits: Limits = Limits()):
        self._limits, self._address, self._files = limits, address, files
        self._loaded = self._file_states()
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
        if self._files and counter % _TICKS == 0 and (now := self._file_states()) != self._loaded:
            certificate, key = self._files
            with contextlib.suppress(OSError):  # ssl.SSLError is one: the files are being written
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
                assert self.config.ssl is not None
                self.config.ssl.load_cert_chain(certificate, key)
                self._loaded = now
        return await super().on_tick(counter)

    def _file_states(self) -> list[tuple[int, int]]:
        states = []
        for file in self._files:
            with contextlib.suppress(OSError):
                status = file.stat()
                states.append((status.st_mtime_ns, status.st_ino))
        return states


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose servers give up on a TLS handshake after ``handshake`` seconds."""

    def __init__(self, handshake: float):
        super().__init__()
        self._handshake = handshake

    async def create_server(self, *args: Any, **kwargs: Any) -> asyncio.Server:
        if kwargs.get("ssl") is not None:
            kwargs |= {"ssl_handshake_timeout": self._handshake, "ssl_shutdown_timeout": self._handshake}
        return await super().create_server(*args, **kwargs)
