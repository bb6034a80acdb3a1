"""``python -m fedax.flower.superlink --secret-file FILE ...``: Flower's SuperLink, closed to all without the secret.

Flower serves nodes, commands and servers on one port, and authenticates only nodes. Here everything but the nodes' part
needs the secret.
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

from fedax.flower.connections import Limits, Server
from fedax.flower.guard import NODES, Event, Guard, Receive, Send, Sender
from fedax.flower.processes import end_with_parent

_IN_ONE_PIECE = (NODES, "/v1/runtime/")  # requests under these paths are not answered by streams


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

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        path: str = scope["path"] if scope["type"] == "http" else ""  # of a lifespan
        if path and not path.startswith(self._path):
            await self._past(scope, receive, send)
        elif path.startswith(_IN_ONE_PIECE) and isinstance(self._through, BaseHTTPMiddleware):
            await self._directly(scope, receive, send)
        else:
            await self._through(scope, receive, send)

    async def _directly(self, scope: Event, receive: Receive, send: Send) -> None:
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
        path = NODES if each.cls is Sender else f"/v1/{part[1]}/" if part else "/"
        found.append(Middleware(Spared, each, path))
    return found


def guarded(app: FastAPI, secret: str | None, limits: Limits = Limits()) -> Guard | FastAPI:
    """Flower's application, closed to all but the nodes that it knows and those who have the secret.

    Args:
        app: which.
        secret: ``None``: all is open.
        limits: of connections.
    """
    given = app.user_middleware
    if secret is None:
        app.user_middleware = spared(given)
        return app
    # Flower's own check asks for the signature of a time only; the guard has asked for more.
    app.user_middleware = spared([Middleware(Sender) if each.cls is NodeAuthMiddleware else each for each in given])
    state = app.state.linkstate_factory.state()
    return Guard(app, secret, state.get_node_id_by_public_key, limits.largest)


def main(arguments: list[str]) -> None:
    """Run the SuperLink: ``--secret-file FILE``, ``--limits JSON`` of :class:`Limits`, then Flower's own arguments.

    Without a secret everything is open: for a simulation, whose link nobody else reaches.
    """
    end_with_parent()
    parser = argparse.ArgumentParser(prog="python -m fedax.flower.superlink", allow_abbrev=False)
    parser.add_argument("--secret-file", type=Path)
    parser.add_argument("--limits", type=json.loads, default={})
    given, rest = parser.parse_known_args(arguments)
    for name in ("FLWR_INTERNAL_GRPC_CONTROL_API", "FLWR_INTERNAL_GRPC_FLEET_API"):
        os.environ.pop(name, None)  # they would open ports without the guard
    from flwr.superlink.main import create_app

    superlink = importlib.import_module("flwr.superlink.cli.flower_superlink")
    sys.argv = ["flower-superlink", *rest]
    config = superlink._parse_superlink_lifespan_config()
    app, limits = create_app(config, superlink.SuperLinkLifespan), Limits(**given.limits)
    secret = None if given.secret_file is None else given.secret_file.read_text().strip()
    files = [Path(file) for file in (config.ssl_certfile, config.ssl_keyfile) if file is not None]
    Server(guarded(app, secret, limits), (config.host, config.port), files, limits).run()


if __name__ == "__main__":
    main(sys.argv[1:])
