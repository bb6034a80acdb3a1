"""The commands ``fedax deploy status`` and ``fedax deploy node status``."""

import collections
import contextlib
import itertools
import json
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from fedax.cli.console import echo, output_fails
from fedax.errors import ConfigError, FedaxError

Table = dict[str, Any]
_EVERY = 2.0  # seconds between two updates of --watch


def _is_json(text: str) -> bool:
    if text not in ("text", "json"):
        raise ConfigError("format", text, "give text or json")
    return text == "json"


def status(
    folder: Annotated[pathlib.Path, typer.Option(help="The link's folder.")] = pathlib.Path("link"),
    link: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The link.", show_default="that of the last run, or 9443")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every 2 seconds, until Ctrl-C.")] = False,
    format: Annotated[str, typer.Option(metavar="text|json", help="How it is printed.")] = "text",
    metrics: Annotated[bool, typer.Option("--metrics", help="Print it as metrics for Prometheus.")] = False,
    page: Annotated[
        bool, typer.Option("--page", help="Serve it, with the curves, as a page for browsers of this machine.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the page; 0: one that is free.")] = 9490,
) -> None:
    """Show who is at the link, what the run does, and whom it waits for.

    \b
    Examples:
      fedax deploy status
      fedax deploy status --watch
      fedax deploy status --format json
      fedax deploy status --metrics
      fedax deploy status --page

    Exit code 2: the link cannot be reached; what the last run wrote is shown all the same.
    """
    from fedax.sites.service import require

    as_json = _is_json(format)
    require()
    if not folder.is_dir():
        raise ConfigError("folder", str(folder), "there is no such folder; give that of `fedax deploy link`")
    if page:
        from fedax.sites.service.page import serve

        say = lambda address: echo(f"{address}  (Ctrl-C ends it)")  # noqa: E731
        return serve(lambda: _current_status(folder, link), port, say)
    from fedax.sites.service.status import prometheus_text

    while True:
        table = _current_status(folder, link)
        shown = json.dumps(table) if as_json else prometheus_text(table).rstrip() if metrics else _as_text(table)
        if watch and not as_json and not metrics and sys.stdout.isatty():
            typer.echo("\x1b[H\x1b[2J", nl=False)  # clears the screen
        echo(shown)
        if not watch or output_fails():
            break
        time.sleep(_EVERY)
    if not table["link"]["there"]:
        echo(f"error: {table['link']['problem']}", err=True)
        raise typer.Exit(2)


def _current_status(folder: pathlib.Path, link: str | None) -> Table:
    from fedax.sites.service.certificates import until
    from fedax.sites.service.status import joined, read_file, registered

    file, ends = read_file(folder), until(folder)
    try:
        return joined(file, registered(link or (file or {}).get("link") or "127.0.0.1:9443", folder), ends=ends)
    except FedaxError as error:
        return joined(file, None, str(error), ends)


def _as_text(table: Table) -> str:
    """The status as text for a terminal of 80 columns."""
    from fedax.sites.service.status import cells, clean, online, span, title

    now, lines = table["time"], []
    run = table["run"]
    if run is None:
        lines.append("No run has been at this link yet.")
    else:
        lines.append(title(table))
        lines += [f"  {clean(run['run']['folder'])}"] if run["run"] else []
        if run["why"]:
            lines.append(f"  {run['why']}")
        for entry in run["runs"]:
            pace = "" if entry["seconds"] is None else f", {entry['seconds']:.2g} s a round"
            where = f"round {entry['round']} of {entry['of']}"
            lines.append(f"  {entry['method']}, seed {entry['seed']}: {entry['state']}, {where}{pace}")
    lines += ["", online(table) if table["link"]["there"] else "The link is gone."]
    form = "{:16} {:>8} {:>8} {:>9} {:>10} {:>8}  {}"
    lines.append(form.format("node", "here", "clients", "examples", "fedax", "jax", "waited for"))
    for entry in table["nodes"]:
        name, here, clients, examples, fedax, jax, waited = cells(entry, now).values()
        lines.append(form.format(name[:16], here, clients, examples, fedax[:10], jax[:8], waited))
        if failed := entry["failed"]:
            lines.append(f"  failed {span(now - failed['time'])} ago at {failed['during']}: {failed['why']}")
    return "\n".join(lines)


_LEAVES = {  # kind of question -> kind of data in a site's answer
    "exchange": "updates", "evaluate": "figures", "clients": "figures", "alone": "figures", "summarize": "summaries",
}  # fmt: skip


def node_status(
    key: Annotated[
        pathlib.Path | None, typer.Option(help="The node's private key; its folder is KEY.state.", show_default=False)
    ] = None,
    state: Annotated[pathlib.Path | None, typer.Option(help="Or the folder itself.", show_default="KEY.state")] = None,
    format: Annotated[str, typer.Option(metavar="text|json", help="How it is printed.")] = "text",
) -> None:
    """Show a node's owner what it did: rounds, bytes, what left today, who asked, what its noise has spent.

    \b
    Examples:
      fedax deploy node status --key node7
      fedax deploy node status --key node7 --format json
    """
    as_json, table = _is_json(format), node_table(state_of(key, state))
    if as_json:
        return echo(json.dumps(table))
    echo(f"{table['messages']} messages, the last at {table['last'] or '-'}")
    echo(f"{table['rounds']} rounds in {len(table['runs'])} runs")
    echo(f"{table['came']} bytes came, {table['left']} bytes left")
    today = ", ".join(f"{kind}: {count} bytes" for kind, count in table["left_today"].items())
    echo(f"left today: {today or 'nothing'}")
    echo(f"{table['questions']} questions answered, {table['questions_today']} of them today")
    if table["epsilon"] is not None:
        echo(f"the noise of its answers has spent ε = {table['epsilon']:g}")
    for run, about in [*table["runs"].items()][-10:]:
        echo(f"  run {run}, asked by {', '.join(about['servers'])}: {about['messages']} messages")
    for error in table["errors"]:
        echo(f"  failed at {error['time']}, {error['kind']}: {error['why']}")


def state_of(key: pathlib.Path | None, state: pathlib.Path | None) -> pathlib.Path:
    """A node's folder: ``state``, or the one next to its private key."""
    if state is None:
        if key is None:
            raise ConfigError("key", None, "give --key, the node's private key, or --state, its folder")
        state = key.with_name(f"{key.name}.state")
    if not state.is_dir():
        raise ConfigError("state", str(state), "there is no such folder; a node makes it when it first starts")
    return state


def node_table(folder: pathlib.Path) -> Table:
    """Summarise the log in a node's folder; lines that cannot be read are counted in ``unreadable``."""
    from fedax.data.formats import parse_json
    from fedax.files import rotated
    from fedax.sites.protocol import answered
    from fedax.sites.protocol.store import read_rounds
    from fedax.sites.service.status import clean

    today, last, epsilon = time.strftime("%Y-%m-%d"), None, None
    totals = collections.Counter(messages=0, unreadable=0, came=0, left=0)
    left, runs, errors = collections.Counter[str](), dict[str, Table](), collections.deque[Table](maxlen=5)
    with contextlib.ExitStack() as files:
        logs = [files.enter_context(path.open("rb")) for path in rotated(folder / "site" / "log.jsonl")]
        for text in itertools.chain.from_iterable(logs):
            try:
                line = parse_json(text)
            except ValueError:
                line = None
            match line:
                case {"time": str(when), "came": int(came), "left": int(out)} if min(came, out) >= 0:
                    totals.update(messages=1, came=came, left=out)
                case _:
                    totals["unreadable"] += 1
                    continue
            kind, last = clean(line.get("kind")), clean(when)
            if when.startswith(today):
                left[_LEAVES.get(kind, "other")] += out
            match line:
                case {"epsilon": float(spent)} if spent >= 0:
                    epsilon = spent
            if "run" in line:
                about = runs.setdefault(clean(line["run"]), {"messages": 0, "servers": [], "first": last})
                about |= {"messages": about["messages"] + 1, "last": last}
                server = clean(line.get("server"))
                if server not in about["servers"] and len(about["servers"]) < 10:
                    about["servers"].append(server)
            if "error" in line:
                errors.append({"time": last, "kind": kind, "why": clean(line["error"])})
    rounds, questions = read_rounds(folder / "site" / "rounds.json"), answered.counted(folder / "site", today)
    return {
        "rounds": sum(rounds.values()), **totals, "last": last, "questions": questions[0],
        "questions_today": questions[1], "epsilon": epsilon, "left_today": left, "runs": runs, "errors": [*errors],
    }  # fmt: skip


COMMANDS: dict[str, Callable[..., None]] = {"status": status, "node status": node_status}
