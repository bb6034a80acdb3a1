"""The link's connections: how many there may be, and for how long one may be there without a request."""

import collections
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]


class Limits(NamedTuple):
    """Limits on the connections of a link.

    Attributes:
        total: simultaneous connections; further ones are closed at once.
        each: the same from one address.
        head: seconds for the handshake and the head of a request, and between two requests.
        body: seconds for the body of a request, and as many more as it takes at ``rate``.
        rate: bytes a second.
    """

    total: int = 512
    each: int = 128
    head: float = 20.0
    body: float = 30.0
    rate: float = 10_000.0


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


class Connection(socket.socket):
    """A connection that its listener counts as long as it is open.

    Attributes:
        idle: since when no request of it is under way; ``None``: one is.
    """

    listener: "Listener | None" = None
    idle: float | None = None

    def close(self) -> None:
        """End it."""
        if self.listener is not None:
            self.listener.open.pop(self.peer, None)
            self.listener = None
        super().close()

    peer: tuple[str, int] = ("", 0)


class Listener(socket.socket):
    """A listening socket that accepts no more connections than the limits allow.

    Args:
        address: host and port.
        limits: of connections.

    Attributes:
        open: the connections, by the addresses of their peers.

    Raises:
        OSError: the port cannot be used.
    """

    def __init__(self, address: tuple[str, int], limits: Limits):
        super().__init__(family(address[0]), socket.SOCK_STREAM)
        self.limits = limits
        self.open: dict[tuple[str, int], Connection] = {}
        try:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if address[0] == "::":
                self.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            self.bind(address)
        except OSError:
            self.close()
            raise

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection within the limits; others are closed."""
        while True:
            plain, address = super().accept()
            taken = collections.Counter(host for host, _ in self.open)
            if len(self.open) < self.limits.total and taken[address[0]] < self.limits.each:
                # By the protocol asyncio knows that small packets are not to be held back, which takes 40 ms each.
                made = Connection(self.family, socket.SOCK_STREAM, socket.IPPROTO_TCP, plain.detach())
                made.listener, made.peer, made.idle = self, (address[0], address[1]), time.monotonic()
                self.open[made.peer] = made
                return made, address
            plain.close()

    def sweep(self) -> None:
        """End connections that have been without a request for too long."""
        for each in [*self.open.values()]:
            if each.idle is not None and time.monotonic() - each.idle > self.limits.head:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def noting(self, app: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        """ASGI middleware that notes which connections have a request under way."""

        async def noted(scope: Event, receive: Receive, send: Send) -> None:
            connection = self.open.get(tuple(scope.get("client") or ()))
            if connection is not None:
                connection.idle = None
            try:
                await app(scope, receive, send)
            finally:
                if connection is not None:
                    connection.idle = time.monotonic()

        return noted
