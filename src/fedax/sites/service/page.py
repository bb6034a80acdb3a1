"""The page of ``fedax deploy status --page``: for browsers of this machine only."""

import contextlib
import html
import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedax.errors import ConfigError, FedaxError
from fedax.experiments import read, summary
from fedax.experiments.report import charts, page, svg
from fedax.sites.service.metrics import FORMAT, prometheus_text
from fedax.sites.service.status import here, span, title

Table = dict[str, Any]

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; "
    "style-src-attr 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_SCRIPT = """
async function again() {
  try {
    const answer = await fetch("/now");
    if (answer.ok) document.getElementById("now").innerHTML = await answer.text();
  } catch { document.getElementById("gone").hidden = false; return; }
  setTimeout(again, 2000);
}
setTimeout(again, 2000);
"""
_STYLE = """
.live { display: none !important; } td, th { vertical-align: top; } .wide { overflow-x: auto; }
td.why { text-align: left; white-space: normal; min-width: 220px; overflow-wrap: anywhere; }
"""


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

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "fedax", ""

        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):  # the browser has gone
                super().handle()

        def do_GET(self) -> None:
            assert isinstance(self.server, ThreadingHTTPServer)
            own_port = self.server.server_port
            if self.headers.get_all("Host") not in ([f"127.0.0.1:{own_port}"], [f"localhost:{own_port}"]):
                return self._send(403, "text/plain", "this page is for browsers of its own machine")
            if self.path == "/":
                return self._send(200, "text/html", _whole(body(look(), drawn)))
            if self.path == "/now":
                return self._send(200, "text/html", body(look(), drawn))
            if self.path == "/status.json":
                return self._send(200, "application/json", json.dumps(look()))
            if self.path == "/metrics":
                return self._send(200, FORMAT, prometheus_text(look()))
            if self.path == "/health":
                problem = look()["link"]["problem"]
                return self._send(503 if problem else 200, "text/plain", problem or "the link is there")
            if self.path == "/page.css":
                return self._send(200, "text/css", page.style() + _STYLE)
            if self.path == "/page.js":
                return self._send(200, "text/javascript", _SCRIPT)
            return self._send(404, "text/plain", "there is no such page")

        def _send(self, code: int, kind: str, text: str) -> None:
            content = text.encode(errors="backslashreplace")  # names of files need not be in UTF-8
            self.send_response(code)
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """No line for each request."""

    try:
        return ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise ConfigError("port", port, f"cannot be used ({error.strerror}); give another with --port") from error


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
                text = "".join(charts.curves(each, k) for k, each in enumerate(summary.problems([read(folder)])))
                self._of, self._text = of, text
        except (OSError, FedaxError, ValueError, LookupError):  # there are none yet, or a line is half-written
            return self._text if self._of else ""
        return self._text


def body(status: Table, drawn: Callable[[Path], str]) -> str:
    """The part of the page that is updated, as HTML."""
    e, now, run, parts = lambda text: html.escape(str(text)), status["time"], status["run"], []
    if not status["link"]["there"]:
        parts.append(f'<p class="missing">{e(status["link"]["problem"])}</p>')
    if run is None:
        parts.append("<section><h2>No run has been at this link yet</h2></section>")
    else:
        folder = run["run"]["folder"] if run["run"] else "no folder yet"
        rows = "".join(
            f"<tr><td>{e(each['method'])}</td><td>{each['seed']}</td><td>{e(each['state'])}</td>"
            f"<td>{each['round']} of {each['of']}</td>"
            f"<td>{'' if each['seconds'] is None else format(each['seconds'], '.2g')}</td></tr>"
            for each in run["runs"]
        )
        why = f'<p class="missing">{e(run["why"])}</p>' * bool(run["why"])
        parts.append(
            f'<section><h2>{e(title(status))}</h2><p class="note">{e(folder)}</p>'
            f"{why}<table><thead><tr><th>method</th><th>seed</th><th>state</th><th>round</th><th>seconds a round</th>"
            f"</tr></thead><tbody>{rows}</tbody></table></section>"
        )
    rows = ""
    for each in status["nodes"]:
        versions, clients, failed, waited = each["versions"] or {}, each["clients"], each["failed"], each["waited_for"]
        why = f"{span(now - failed['time'])} ago, {failed['during']}: {failed['why']}" if failed else ""
        rows += (
            f"<tr><td>{e(each['name'] or each['number'])}</td><td>{e(here(each, now))}</td>"
            f'<td class="names">{"?" if clients is None else e(_some(clients))}</td>'
            f"<td>{'?' if each['examples'] is None else each['examples']}</td>"
            f"<td>{e(versions.get('fedax', '?'))}</td><td>{e(versions.get('jax', '?'))}</td>"
            f"<td>{e(_waited(waited, now))}</td>"
            f'<td class="why">{e(why)}</td></tr>'
        )
    online = sum(each["status"] == "online" for each in status["nodes"])
    parts.append(
        f"<section><h2>{online} of {len(status['nodes'])} nodes are here</h2>"
        '<div class="wide"><table><thead><tr><th>node</th><th>here for</th>'
        "<th>clients</th><th>examples</th><th>fedax</th><th>JAX</th><th>waited for</th><th>last failure</th></tr>"
        f"</thead><tbody>{rows}</tbody></table></div></section>"
    )
    if run is not None and run["run"] is not None and (text := drawn(Path(run["run"]["folder"]))):
        parts.insert(-1, f"<section><h2>Curves</h2>{text}</section>")
    return "".join(parts)


def _waited(waited: Table | None, now: float) -> str:
    return f"{span(now - waited['since'])} ({waited['kind']})" if waited else ""


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + f", … ({len(names)})" * (len(names) > 5)


def _whole(inside: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>Deployment · fedax</title>'
        f'<link rel="stylesheet" href="/page.css"></head><body>{svg.symbols()}<main><header><h1>Deployment</h1>'
        '<p class="missing" id="gone" hidden>The command that serves this page has ended.</p></header>'
        f'<div id="now">{inside}</div></main><script src="/page.js"></script></body></html>'
    )
