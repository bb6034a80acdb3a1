"""``python -m fedax.flower.superlink --secret-file FILE ...``: Flower's SuperLink, closed to all without the secret.

Flower serves nodes, commands and servers on one port, and authenticates only nodes. Here everything but the nodes' part
needs the secret.
"""

import argparse
import hmac
import importlib
import os
import re
import sys
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from flwr.supercore.routers.runtime.tracing import RuntimeTracingMiddleware
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import Response

from fedax.flower.processes import end_with_parent

_OPEN = "/v1/fleet/"  # the nodes' part: each request is signed with a registered key
_IN_ONE_PIECE = ("/v1/fleet/", "/v1/runtime/")  # requests under these paths are not answered by streams
_Event = MutableMapping[str, Any]


class Guard:
    """An ASGI application that lets through what is for nodes, and what has the secret.

    Args:
        inner: the application behind it.
        secret: what the header ``authorization: Bearer`` has to hold.
    """

    def __init__(self, inner: Callable[..., Awaitable[None]], secret: str):
        self.inner, self.header = inner, f"Bearer {secret}".encode()

    async def __call__(
        self, scope: _Event, receive: Callable[[], Awaitable[_Event]], send: Callable[[_Event], Awaitable[None]]
    ) -> None:
        """Handle one connection."""
        if scope["type"] == "lifespan" or self._may_pass(scope):
            await self.inner(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"this needs the link's secret"})

    def _may_pass(self, scope: _Event) -> bool:
        path: str = scope.get("path", "")
        if path.startswith(_OPEN) or path == "/health":
            return True
        given = [value for name, value in scope.get("headers", ()) if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self.header)


class Spared:
    """A middleware of Flower's for those requests that it does something for, and without Starlette's task and streams.

    Starlette runs what is behind a middleware as a task of its own, whose answer comes through a stream, which takes
    longer than all that the middleware does. Nodes' and servers' requests are answered in one piece: here they are
    awaited as any coroutine is. Others, some of which are streams, go the usual way.

    Args:
        app: the application behind it.
        inner: the middleware.
        path: all that it does concerns requests under this path.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], inner: Middleware, path: str):
        self._path, self._past = path, app
        self._through: Any = inner.cls(app, *inner.args, **inner.kwargs)

    async def __call__(
        self, scope: _Event, receive: Callable[[], Awaitable[_Event]], send: Callable[[_Event], Awaitable[None]]
    ) -> None:
        """Handle one connection."""
        path: str = scope["path"] if scope["type"] == "http" else ""  # of a lifespan
        if path and not path.startswith(self._path):
            await self._past(scope, receive, send)
        elif path.startswith(_IN_ONE_PIECE) and isinstance(self._through, BaseHTTPMiddleware):
            await self._directly(scope, receive, send)
        else:
            await self._through(scope, receive, send)

    async def _directly(
        self, scope: _Event, receive: Callable[[], Awaitable[_Event]], send: Callable[[_Event], Awaitable[None]]
    ) -> None:
        request = Request(scope, receive)  # keeps the body that it has read

        async def call_next(_: Request) -> Response:
            response, parts = Response(), list[bytes]()

            async def again() -> _Event:
                return {"type": "http.request", "body": await request.body(), "more_body": False}

            async def keep(event: _Event) -> None:
                if event["type"] == "http.response.start":
                    response.status_code, response.raw_headers = event["status"], list(event["headers"])
                else:
                    parts.append(event.get("body", b""))

            await self._past(scope, again, keep)
            response.body = b"".join(parts)
            return response

        answer: Response = await self._through.dispatch_func(request, call_next)
        await answer(scope, receive, send)


def spared(middleware: Sequence[Middleware]) -> list[Middleware]:
    """Flower's middleware, which all requests go through, where it does something, and as fast as it can be had.

    Most of a link's time goes into it: each of the nine takes about a millisecond, and a message to a node and its
    answer are a dozen requests.
    """
    found = []
    for each in middleware:
        if each.cls is RuntimeTracingMiddleware and os.getenv("FLWR_TRACING_ENABLED") != "1":
            continue  # it does nothing
        part = re.fullmatch(r"flwr\.superlink\.routers\.(control|fleet)\..*", each.cls.__module__)
        found.append(Middleware(Spared, each, f"/v1/{part[1]}/" if part else "/"))
    return found


def main(arguments: list[str]) -> None:
    """Run the SuperLink: ``--secret-file FILE``, then Flower's own arguments.

    Without a secret everything is open: for a simulation, whose link nobody else reaches.
    """
    end_with_parent()
    parser = argparse.ArgumentParser(prog="python -m fedax.flower.superlink", allow_abbrev=False)
    parser.add_argument("--secret-file", type=Path)
    given, rest = parser.parse_known_args(arguments)
    for name in ("FLWR_INTERNAL_GRPC_CONTROL_API", "FLWR_INTERNAL_GRPC_FLEET_API"):
        os.environ.pop(name, None)  # they would open ports without the guard
    import uvicorn
    from flwr.superlink.main import create_app

    superlink = importlib.import_module("flwr.superlink.cli.flower_superlink")
    sys.argv = ["flower-superlink", *rest]
    config = superlink._parse_superlink_lifespan_config()
    app = create_app(config, superlink.SuperLinkLifespan)
    app.user_middleware = spared(app.user_middleware)
    uvicorn.run(
        app if given.secret_file is None else Guard(app, given.secret_file.read_text().strip()),
        host=config.host,
        port=config.port,
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
        access_log=False,
        log_level="warning",
    )


if __name__ == "__main__":
    main(sys.argv[1:])
