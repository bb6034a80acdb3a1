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
_Peer = tuple[str, int]


class Limits(NamedTuple):
    """Limits on the connections of a link.

    Attributes:
        total: simultaneous connections; further ones are closed at once.
        each: the same from one address.
        head: seconds for the handshake and the head of a request, and between two requests.
        body: seconds for the body of a request or a piece of a response, and as many more as it takes at ``rate``.
        rate: bytes a second.
    """

    total: int = 512
    each: int = 128
    head: float = 20.0
    body: float = 30.0
    rate: float = 10_000.0


def everywhere() -> str:
    """The address that stands for all of this machine: those of IPv6 and IPv4, or of IPv4 where it has no others."""
    try:
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True).close()
    except (OSError, ValueError):
        return "0.0.0.0"
    return "::"


class Listener(socket.socket):
    """A listening socket that accepts no more connections than the limits allow.

    Args:
        address: host and port.
        limits: of connections.

    Attributes:
        open: the connections, by the addresses of their peers.
        idle: since when those of them are without a request that have none under way.

    Raises:
        OSError: the port cannot be used.
    """

    def __init__(self, address: tuple[str, int], limits: Limits):
        # By the protocol, which connections have from here, asyncio knows that it is not to hold back small packets,
        # which takes 40 ms each.
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self.limits = limits
        self.open: dict[_Peer, socket.socket] = {}
        self.idle: dict[_Peer, float] = {}
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
            connection, address = super().accept()
            self._forget()
            taken = collections.Counter(host for host, _ in self.open)
            if len(self.open) < self.limits.total and taken[address[0]] < self.limits.each:
                self.open[address[:2]], self.idle[address[:2]] = connection, time.monotonic()
                return connection, address
            connection.close()

    def sweep(self) -> None:
        """End connections that have been without a request for too long."""
        self._forget()
        for peer, since in self.idle.items():
            if time.monotonic() - since > self.limits.head:
                with contextlib.suppress(OSError):
                    self.open[peer].shutdown(socket.SHUT_RDWR)

    def _forget(self) -> None:
        """Forget connections that were closed."""
        for peer in [peer for peer, each in self.open.items() if each.fileno() < 0]:
            del self.open[peer]
            self.idle.pop(peer, None)

    def noting(self, app: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        """ASGI middleware that notes which connections have a request under way."""

        async def noted(scope: Event, receive: Receive, send: Send) -> None:
            peer = tuple(scope.get("client") or ())
            self.idle.pop(peer, None)
            try:
                await app(scope, receive, send)
            finally:
                if peer in self.open:
                    self.idle[peer] = time.monotonic()

        return noted
