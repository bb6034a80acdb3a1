"""``python -m fedax.flower.superlink --secret-file FILE ...``: Flower's SuperLink, closed to all without the secret.

Flower serves nodes, commands and servers on one port, and authenticates only nodes. Here everything but the nodes' part
needs the secret.
"""

import argparse
import hmac
import importlib
import os
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from fedax.flower.processes import end_with_parent

_OPEN = "/v1/fleet/"  # the nodes' part: each request is signed with a registered key
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
