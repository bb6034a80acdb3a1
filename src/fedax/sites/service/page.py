"""The page of ``fedax deploy status --page``: for browsers of this machine only."""

import contextlib
import html
import importlib.resources
import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedax.errors import ConfigError, FedaxError
from fedax.experiments import charts, read, summary
from fedax.experiments.report import page, pictures
from fedax.sites.service.status import METRICS, cells, online, prometheus_text, span, title

Table = dict[str, Any]

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; "
    "style-src-attr 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def serve(look: Callable[[], Table], port: int, say: Callable[[str], None]) -> None:
    """Serve the page on 127.0.0.1 until Ctrl-C.

    Args:
        look: gives the status as :func:`fedax.sites.service.status.joined` does.
        port: 0: one that is free.
        say: is called with the address.

    Raises:
        ConfigError: the port is not free.
    """
    with server(look, port) as running:
        say(f"http://127.0.0.1:{running.server_port}")
        running.serve_forever()


def server(look: Callable[[], Table], port: int) -> ThreadingHTTPServer:
    """The server of :func:`serve`, which does not run yet."""
    drawn = _Curves()

    def health() -> tuple[int, str, str]:
        problem = look()["link"]["problem"]
        return 503 if problem else 200, "text/plain", problem or "the link is there"

    pages: dict[str, Callable[[], tuple[int, str, str]]] = {
        "/": lambda: (200, "text/html", _whole(body(look(), drawn))),
        "/now": lambda: (200, "text/html", body(look(), drawn)),
        "/status.json": lambda: (200, "application/json", json.dumps(look())),
        "/metrics": lambda: (200, METRICS, prometheus_text(look())),
        "/health": health,
        "/page.css": lambda: (200, "text/css", page.style() + _file("page.css")),
        "/page.js": lambda: (200, "text/javascript", page.script() + _file("page.js")),
    }

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "fedax", ""

        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):  # the browser has gone
                super().handle()

        def do_GET(self) -> None:
            own = [[f"{name}:{running.server_port}"] for name in ("127.0.0.1", "localhost")]
            if self.headers.get_all("Host") not in own:
                code, kind, text = 403, "text/plain", "this page is for browsers of its own machine"
            elif self.path in pages:
                code, kind, text = pages[self.path]()
            else:
                code, kind, text = 404, "text/plain", "there is no such page"
            content = text.encode(errors="backslashreplace")  # names of files need not be in UTF-8
            about = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(content))}
            self.send_response(code)
            for name, value in (_HEADERS | about).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """No line for each request."""

    try:
        running = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise ConfigError("port", port, f"cannot be used ({error.strerror}); give another with --port") from error
    return running


def _file(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _whole(now: str) -> str:
    return page.filled(_file("page.html"), {"now": now})


class _Curves:
    """The curves of a run folder, drawn again when its metrics file has changed."""

    def __init__(self) -> None:
        self._of: object = None
        self._text = ""

    def __call__(self, folder: Path) -> str:
        try:
            known = (folder / "metrics.jsonl").stat()
            of = (folder, known.st_size, known.st_mtime_ns)
            if of != self._of:
                problems = summary.problems([read(folder)])
                text = "".join(pictures.curves(charts.curves(each), k) for k, each in enumerate(problems))
                self._of, self._text = of, text
        except (OSError, FedaxError, ValueError, LookupError):  # there are none yet, or a line is half-written
            pass
        return self._text


def body(status: Table, drawn: Callable[[Path], str]) -> str:
    """The part of the page that is updated, as HTML."""
    now, run = status["time"], status["run"]
    text = _warning(status["link"]["problem"])
    if run is None:
        text += _section("No run has been at this link yet", "")
    else:
        folder = run["run"]["folder"] if run["run"] else "no folder yet"
        heads = ["method", "seed", "state", "round", "seconds a round"]
        rows = [
            [each["method"], str(each["seed"]), each["state"], f"{each['round']} of {each['of']}",
             "" if each["seconds"] is None else f"{each['seconds']:.2g}"]
            for each in run["runs"]
        ]  # fmt: skip
        inside = f'<p class="note">{html.escape(folder)}</p>{_warning(run["why"])}{page.table_of_texts(heads, rows)}'
        text += _section(title(status), inside)
        if run["run"] and (curves := drawn(Path(folder))):
            text += _section("Curves", f'<div id="curves">{curves}</div>')
    heads = ["node", "here for", "clients", "examples", "fedax", "JAX", "waited for", "last failure"]
    nodes = []
    for each in status["nodes"]:
        row, names, waited, failed = cells(each, now), each["clients"], each["waited_for"], each["failed"]
        row["clients"] = "?" if names is None else ", ".join(names[:5]) + f", … ({len(names)})" * (len(names) > 5)
        row["waited for"] = f"{row['waited for']} ({waited['kind']})" if waited else ""
        row["failed"] = f"{span(now - failed['time'])} ago, {failed['during']}: {failed['why']}" if failed else ""
        kinds = {"clients": "names", "failed": "why"}
        nodes.append(("", [(html.escape(cell), kinds.get(name, "")) for name, cell in row.items()]))
    return text + _section(online(status), page.tabular(heads, nodes))


def _section(name: str, inside: str) -> str:
    return f"<section><h2>{html.escape(name)}</h2>{inside}</section>"


def _warning(text: str | None) -> str:
    return f'<p class="missing">{html.escape(text)}</p>' if text else ""
