"""``python -m fedax.flower.superlink --secret-file FILE ...``: Flower's SuperLink with access control.

Flower serves nodes, commands and servers on one port, and authenticates only nodes. Here all paths but those for nodes
need the secret.
"""

import argparse
import importlib
import json
import os
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from flwr.supercore.routers.runtime.tracing import RuntimeTracingMiddleware
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import Response

from fedax._start import collect_rarely
from fedax.flower.access import NODES, AccessControl, Event, Receive, Send, SenderCheck
from fedax.flower.connections import Limits, Server

_UNSTREAMED = (NODES, "/v1/runtime/")  # requests under these paths are not answered by streams


class SelectiveMiddleware:
    """Applies a middleware of Flower's only to requests that it concerns, and without Starlette's task and streams.

    Starlette runs the application inside a middleware as a separate task, whose response comes through a stream. This
    takes longer than the middleware itself. Requests of nodes and servers have responses without streams, so here they
    are awaited like any coroutine. Other requests, some of which have streams, take Starlette's way.

    Args:
        app: the wrapped application.
        inner: the middleware.
        path: the middleware concerns requests under this path only.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], inner: Middleware, path: str):
        self._path, self._next = path, app
        self._wrapped: Any = inner.cls(app, *inner.args, **inner.kwargs)

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        path: str = scope["path"] if scope["type"] == "http" else ""  # of a lifespan
        if path and not path.startswith(self._path):
            await self._next(scope, receive, send)
        elif path.startswith(_UNSTREAMED) and isinstance(self._wrapped, BaseHTTPMiddleware):
            await self._without_stream(scope, receive, send)
        else:
            await self._wrapped(scope, receive, send)

    async def _without_stream(self, scope: Event, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)  # keeps the body that it has read

        async def call_next(_: Request) -> Response:
            response, parts = Response(), list[bytes]()

            async def again() -> Event:
                return {"type": "http.request", "body": await request.body(), "more_body": False}

            async def keep(event: Event) -> None:
                if event["type"] == "http.response.start":
                    response.status_code, response.raw_headers = event["status"], list(event["headers"])
                else:
                    parts.append(event.get("body", b""))

            await self._next(scope, again, keep)
            response.body = b"".join(parts)
            return response

        answer: Response = await self._wrapped.dispatch_func(request, call_next)
        await answer(scope, receive, send)


def selective(middleware: Sequence[Middleware]) -> list[Middleware]:
    """Flower's middleware, each applied only to requests that it concerns, and without Starlette's overhead.

    Middleware takes most of a link's time: each of the nine takes about a millisecond, and a message to a node and its
    answer are a dozen requests.
    """
    wrapped = []
    for each in middleware:
        if each.cls is RuntimeTracingMiddleware and os.getenv("FLWR_TRACING_ENABLED") != "1":
            continue  # it does nothing
        part = re.fullmatch(r"flwr\.superlink\.routers\.(control|fleet)\..*", each.cls.__module__)
        path = NODES if each.cls is SenderCheck else f"/v1/{part[1]}/" if part else "/"
        wrapped.append(Middleware(SelectiveMiddleware, each, path))
    return wrapped


def with_access_control(app: FastAPI, secret: str | None, limits: Limits = Limits()) -> AccessControl | FastAPI:
    """Flower's application, closed to all but registered nodes and holders of the secret.

    Args:
        app: Flower's application.
        secret: ``None``: without access control.
        limits: limits on connections.
    """
    given = app.user_middleware
    if secret is None:
        app.user_middleware = selective(given)
        return app
    # Flower's own check asks for the signature of a time only; AccessControl has checked more.
    app.user_middleware = selective(
        [Middleware(SenderCheck) if each.cls is NodeAuthMiddleware else each for each in given]
    )
    state = app.state.linkstate_factory.state()
    return AccessControl(app, secret, state.get_node_id_by_public_key, limits.largest)


def main(arguments: list[str]) -> None:
    """Run the SuperLink: ``--secret-file FILE``, ``--limits JSON`` of :class:`Limits`, then Flower's own arguments.

    Without a secret there is no access control: for a simulation, whose link nobody else can reach.
    """
    collect_rarely()
    parser = argparse.ArgumentParser(prog="python -m fedax.flower.superlink", allow_abbrev=False)
    parser.add_argument("--secret-file", type=Path)
    parser.add_argument("--limits", type=json.loads, default={})
    given, rest = parser.parse_known_args(arguments)
    for name in ("FLWR_INTERNAL_GRPC_CONTROL_API", "FLWR_INTERNAL_GRPC_FLEET_API"):
        os.environ.pop(name, None)  # they would open ports without access control
    from flwr.superlink.main import create_app

    superlink = importlib.import_module("flwr.superlink.cli.flower_superlink")
    sys.argv = ["flower-superlink", *rest]
    config = superlink._parse_superlink_lifespan_config()
    app, limits = create_app(config, superlink.SuperLinkLifespan), Limits(**given.limits)
    secret = None if given.secret_file is None else given.secret_file.read_text().strip()
    files = [Path(file) for file in (config.ssl_certfile, config.ssl_keyfile) if file is not None]
    Server(with_access_control(app, secret, limits), (config.host, config.port), files, limits).run()


if __name__ == "__main__":
    main(sys.argv[1:])
