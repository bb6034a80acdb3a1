"""The status of a link: a run writes it to ``status.json`` in the link's folder, and other commands read it there."""

import contextlib
import copy
import datetime
import json
import math
import os
import socket
import threading
import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic

from fedax.data.formats import parse_json
from fedax.engine.history import Row
from fedax.errors import FedaxError
from fedax.experiments.config.experiment import Experiment
from fedax.files import regular, write_atomic
from fedax.sites.protocol.fleet import Fleet
from fedax.sites.protocol.messages import Failure, Message, Talk, Transport, heads_of
from fedax.sites.service.messages import Asking

FILE = "status.json"
_EVERY = 1.0  # seconds between two times that the file is written
_STALE = 30.0  # seconds without an update after which a run on another machine counts as killed
_LONGEST = 300  # characters of a text from a node

Table = dict[str, Any]


class Status(Asking):
    """A transport that also records to a file what the command does and which nodes it waits for.

    It is a :class:`fedax.sites.protocol.messages.Transport`. An error in writing the file never ends a command.

    Args:
        folder: the link's.
        link: ``host:port``.
        transport: the one that carries the messages.
        command: ``run`` or ``tables``.
    """

    def __init__(self, folder: Path, link: str, transport: Transport, command: str = "run"):
        self._path, self._transport = folder / FILE, transport
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._runs: dict[tuple[str, int], Table] = {}
        self._waiting: dict[int, Table] = {}
        self._nodes: dict[int, Table] = {}
        self._status: Table = {
            "format": 1, "link": link, "command": command, "pid": os.getpid(), "started": _started(os.getpid()),
            "host": socket.gethostname(), "began": time.time(), "state": "running", "why": None, "ended": None,
            "run": None,
        }  # fmt: skip
        self._writer = threading.Thread(target=self._write_on, daemon=True)

    def __enter__(self) -> "Status":
        self._writer.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._closed.set()
        self._writer.join()
        code = getattr(error, "exit_code", None)  # of a command that was stopped and has printed how to resume
        state, why = "stopped", None
        if error is None or code == 0:
            state = "finished"
        elif code is None:
            state = "failed" if isinstance(error, Exception) else "stopped"
            why = clean(error if isinstance(error, FedaxError) else type(error).__name__)
        self._waiting.clear()
        self._status |= {"state": state, "why": why, "ended": time.time()}
        for each in self._runs.values():
            each["state"] = state if each["state"] == "running" else each["state"]
        self._write()

    # ---- the messages

    @property
    def sent(self) -> int:
        """Bytes on the wire to the nodes so far."""
        return self._transport.sent

    @property
    def received(self) -> int:
        """Bytes on the wire from the nodes so far."""
        return self._transport.received

    def nodes(self) -> list[int]:
        """The nodes that are there now."""
        return self._transport.nodes()

    def talk(self, timeout: float) -> Talk:
        """Ask nodes without an end, as the transport does."""
        talk, first = self._transport.talk(timeout), True
        came = next(talk)
        while True:
            messages = yield came
            if messages:
                self._note_request(messages, timeout, first)
                first = False
            came = talk.send(messages)
            for number, answer in came:
                self._note(number, answer)

    def _note_request(self, messages: Mapping[int, Message], timeout: float, first: bool) -> None:
        now = time.time()
        with self._lock:
            if first and not messages.keys() <= self._waiting.keys():  # else those that were gone are asked once more
                self._waiting.clear()
            for number, message in messages.items():
                kinds = dict.fromkeys(clean(head.get("kind")) for head in heads_of(message))
                waiting = {"since": now, "until": now + timeout, "kind": " and ".join(kinds)}
                self._waiting.setdefault(number, waiting)

    def _note(self, number: int, answer: Message | Failure) -> None:
        head = {"error": answer.text} if isinstance(answer, Failure) else answer.head
        over = not (isinstance(answer, Failure) and answer.gone)
        with self._lock:
            node, waiting = self._node(number), self._waiting.get(number, {})
            if isinstance(table := head.get("table"), dict):  # a run knows more about the node later
                name, rows, versions = table.get("name"), table.get("rows"), head.get("versions")
                if isinstance(name, str) and type(rows) is int and 0 <= rows < 2**63:
                    node |= {"clients": [clean(name)], "examples": rows}
                if isinstance(versions, dict):
                    node["versions"] = _shown(versions)
            if "error" in head and "table" not in head:  # with a table it only waits for its transform
                node["failed"] = {"time": time.time(), "during": waiting.get("kind"), "why": clean(head["error"])}
            elif "waits" in head:  # it is asked again
                waiting["kind"], over = clean(head["waits"]), False
            else:
                node["answered"] = time.time()
            if over:
                self._waiting.pop(number, None)

    def _node(self, number: int) -> Table:
        return self._nodes.setdefault(number, dict.fromkeys(_Node.model_fields) | {"number": number})

    # ---- the progress of the run

    def note_run(self, experiment: Experiment, fleet: Fleet, folder: Path) -> None:
        """Note what is run, and what its nodes have."""
        config = experiment.config
        with self._lock:
            for about in map(fleet.about, range(len(fleet))):
                self._node(about["number"]).update({
                    "clients": [clean(name) for name in about["names"]], "examples": sum(about["sizes"]),
                    "held": about["held"], "versions": _shown(about["versions"]),
                })  # fmt: skip
            self._status["run"] = {
                "name": clean(config["name"]), "folder": str(folder.absolute()), "rounds": config["run"]["rounds"],
                "methods": [clean(label) for label in experiment.methods], "seeds": [*config["run"]["seeds"]],
            }  # fmt: skip

    def note_row(self, label: str, seed: int, row: Row | None) -> None:
        """Note that a method's run with a seed begins, or a row of its history."""
        now, key = time.time(), (label, seed)
        with self._lock:
            known = self._runs.setdefault(
                key, {"method": clean(label), "seed": seed, "state": "running", "since": now, "round": 0,
                      "of": self._status["run"]["rounds"], "at": now, "seconds": None, "train_loss": None},
            )  # fmt: skip
            if row is None:
                return
            if (done := row["round"] - known["round"]) > 0:
                known["seconds"] = (now - known["at"]) / done
            known |= {"round": row["round"], "at": now, "train_loss": float(row["train_loss"])}
            if not math.isfinite(known["train_loss"]):
                known["train_loss"] = None
            known["state"] = {None: "running", "stopped": "finished"}.get(row.status, row.status)

    # ---- the file

    def table(self) -> Table:
        """The content of the file."""
        with self._lock:
            waiting = [{"node": number, **each} for number, each in sorted(self._waiting.items())]
            return copy.deepcopy(
                self._status | {
                    "written": time.time(), "runs": [*self._runs.values()], "waiting": waiting,
                    "nodes": [*self._nodes.values()], "sent": self.sent, "received": self.received,
                }
            )  # fmt: skip

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            write_atomic(self._path, json.dumps(self.table()))

    def _write_on(self) -> None:
        self._write()
        while not self._closed.wait(_EVERY):
            self._write()


def follow(experiment: Experiment, folder: Path, watch: Callable[..., None]) -> Callable[..., None]:
    """A callback that calls ``watch`` and updates the status of the experiment's fleet, if it has one."""
    if experiment.fleet is None or not isinstance(status := experiment.fleet.transport, Status):
        return watch
    status.note_run(experiment, experiment.fleet, folder)

    def both(label: str, seed: int, row: Row | None) -> None:
        status.note_row(label, seed, row)
        watch(label, seed, row)

    return both


def read_file(folder: Path) -> Table | None:
    """The status that the last run at a link wrote; its state is ``"killed"`` if the run was killed.

    Returns:
        ``None`` if there is no file, or it cannot be read.
    """
    try:
        regular(folder / FILE)
        status = _File.model_validate(parse_json((folder / FILE).read_bytes())).model_dump()
    except (OSError, ValueError):
        return None
    if status["state"] == "running":
        here = status["host"] == clean(socket.gethostname())
        gone = _started(status["pid"]) != status["started"] if here else time.time() - status["written"] > _STALE
        if gone:
            status |= {"state": "killed", "why": "its process is gone", "ended": status["written"], "waiting": []}
            for run in status["runs"]:
                run["state"] = "killed" if run["state"] == "running" else run["state"]
    return status


def registered(link: str, folder: Path) -> list[Table]:
    """The nodes that a link knows.

    Raises:
        NodeError, ConfigError: it cannot be reached.
    """
    from fedax.sites.service.transport import connect

    with connect(link, folder, run=False) as carrier:
        nodes = carrier.registered()
    return [
        {"number": node["number"], "name": clean(node["name"]), "status": "online" if node["here"] else "offline",
         "registered": _moment(node["known"]), "since": _moment(node["since"])}
        for node in nodes
    ]  # fmt: skip


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat()


def joined(
    file: Table | None, nodes: list[Table] | None, problem: str | None = None, ends: Mapping[str, float] | None = None
) -> Table:
    """The file's and the link's information in one object.

    Args:
        file: from :func:`read_file`.
        nodes: from :func:`registered`; ``None``: the link cannot be reached.
        problem: why.
        ends: from :func:`fedax.sites.service.certificates.until`.
    """
    reported = {each["number"]: each for each in (file or {}).get("nodes", [])}
    waiting = {each["node"]: each for each in (file or {}).get("waiting", [])}
    unknown = {"name": None, "status": "unknown", "registered": None, "since": None}
    listed = [{"number": number, **unknown} for number in reported] if nodes is None else nodes
    merged = [
        dict.fromkeys(_Node.model_fields)
        | reported.get(node["number"], {})
        | node
        | {"waited_for": waiting.get(node["number"])}
        for node in listed
    ]
    shown = ("command", "state", "why", "began", "ended", "sent", "received", "run", "runs")
    run = None if file is None else {name: file[name] for name in shown}
    about = {"there": nodes is not None, "problem": problem, "certificates": dict(ends or {})}
    return {"time": time.time(), "link": about, "run": run, "nodes": merged}


def clean(text: object) -> str:
    """An untrusted text as a part of a line: without control characters, and clipped.

    Example:
        >>> clean("bad\\x1b[2J\\nnews")
        'bad?[2J news'
    """
    plain = "".join(" " if c in "\n\r\t" else "?" if unicodedata.category(c)[0] == "C" else c for c in str(text))
    return plain if len(plain) <= _LONGEST else plain[: _LONGEST - 1] + "…"


def title(status: Table) -> str:
    """A line on the command that runs, or last ran, at the link; ``status`` is from :func:`joined`, and has a run."""
    run = status["run"]
    what = {"run": "A run", "tables": "fedax deploy tables"}[run["command"]]
    what = run["run"]["name"] if run["run"] else what
    since = span(status["time"] - (run["ended"] or run["began"]))
    return f"{what}: {run['state']} {'for' if run['state'] == 'running' else 'since'} {since}"


def online(status: Table) -> str:
    """A line on how many nodes are at the link."""
    here = sum(each["status"] == "online" for each in status["nodes"])
    return f"{here} of {len(status['nodes'])} nodes are here"


def _since(node: Table) -> float | None:
    """When a node came or went, in Unix time."""
    return datetime.datetime.fromisoformat(node["since"]).timestamp() if node["since"] else None


def cells(node: Table, now: float) -> dict[str, str]:
    """The cells of a node in a table for people."""
    versions, waited, here = node["versions"] or {}, node["waited_for"], node["status"]
    if here == "online" and (began := _since(node)):
        here = span(now - began)
    return {
        "node": str(node["name"] or node["number"]),
        "here": here,
        "clients": "?" if node["clients"] is None else str(len(node["clients"])),
        "examples": "?" if node["examples"] is None else str(node["examples"]),
        "fedax": versions.get("fedax", "?"),
        "jax": versions.get("jax", "?"),
        "waited for": span(now - waited["since"]) if waited else "-",
    }


def span(seconds: float) -> str:
    """A time in short.

    Example:
        >>> span(3.2), span(200), span(7300), span(200000)
        ('3 s', '3 min', '2 h', '2 days')
    """
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= (2 if unit == "days" else 1) * size:
            return f"{int(seconds / size)} {unit}"
    return f"{max(0, int(seconds))} s"


# ---- for other programs

METRICS = "text/plain; version=0.0.4"
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def prometheus_text(status: Table) -> str:
    """The metrics of a status, from :func:`joined`, in the text format of Prometheus.

    Example:
        >>> there = {"there": True, "problem": None, "certificates": {"ca.pem": 2e9}}
        >>> print(prometheus_text({"time": 1e9, "link": there, "run": None, "nodes": []}), end="")
        # HELP fedax_link_up Whether the link answers.
        # TYPE fedax_link_up gauge
        fedax_link_up 1
        # HELP fedax_certificate_end_seconds When a certificate ends, as Unix time.
        # TYPE fedax_certificate_end_seconds gauge
        fedax_certificate_end_seconds{file="ca.pem"} 2000000000
    """
    link, run, lines = status["link"], status["run"], list[str]()

    def add(name: str, help: str, samples: Iterable[tuple[Table, float | None]]) -> None:
        found = [(labels, float(value)) for labels, value in samples if value is not None]
        if found:
            kind = "counter" if name.endswith("_total") else "gauge"
            lines.extend([f"# HELP fedax_{name} {help}", f"# TYPE fedax_{name} {kind}"])
        for labels, value in found:
            inside = ",".join(f'{key}="{str(text).translate(_ESCAPED)}"' for key, text in labels.items())
            number = int(value) if value.is_integer() else value
            lines.append(f"fedax_{name}{f'{{{inside}}}' if inside else ''} {number!r}")

    def of_nodes(value: Callable[[Table], float | None]) -> list[tuple[Table, float | None]]:
        return [({"node": each["name"] or each["number"]}, value(each)) for each in status["nodes"]]

    def of_runs(field: str) -> list[tuple[Table, float | None]]:
        return [({"method": each["method"], "seed": each["seed"]}, each[field]) for each in run["runs"]]

    add("link_up", "Whether the link answers.", [({}, link["there"])])
    ends = [({"file": file}, end) for file, end in link["certificates"].items()]
    add("certificate_end_seconds", "When a certificate ends, as Unix time.", ends)
    add("node_up", "Whether a node is at the link.", of_nodes(lambda node: node["status"] == "online"))
    add("node_since_seconds", "When a node came or went, as Unix time.", of_nodes(_since))
    add("node_answered_seconds", "When a node last answered, as Unix time.", of_nodes(lambda node: node["answered"]))
    waited = lambda node: status["time"] - node["waited_for"]["since"] if node["waited_for"] else 0.0  # noqa: E731
    add("node_waited_for_seconds", "For how long the run waits for a node.", of_nodes(waited))
    if run is not None:
        add("run_up", "Whether a run is under way.", [({"state": run["state"]}, run["state"] == "running")])
        add("run_round", "The rounds that are over.", of_runs("round"))
        add("run_rounds", "The rounds that there will be.", of_runs("of"))
        add("run_train_loss", "The training loss, last.", of_runs("train_loss"))
        for way in ("sent", "received"):
            add(f"run_{way}_bytes_total", f"Bytes of messages that the run has {way}.", [({}, run[way])])
    return "\n".join(lines) + "\n"


# ---- the schema of the file, which may be damaged, or written by someone else

_Text = Annotated[str, pydantic.AfterValidator(clean)]
_Count = Annotated[int, pydantic.Field(ge=0, lt=2**63)]
_Number = Annotated[int, pydantic.Field(ge=0, lt=2**64)]  # of a node
_Seconds = Annotated[float, pydantic.Field(ge=0, le=1e11, allow_inf_nan=False)]  # a time or a duration


class _StrictModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)


class _RunInfo(_StrictModel):
    name: _Text
    folder: str
    rounds: _Count
    methods: list[_Text]
    seeds: list[_Count]


class _Run(_StrictModel):
    method: _Text
    seed: _Count
    state: _Text
    since: _Seconds
    round: _Count
    of: _Count
    at: _Seconds
    seconds: _Seconds | None
    train_loss: Annotated[float, pydantic.Field(allow_inf_nan=False)] | None


class _Waiting(_StrictModel):
    node: _Number
    since: _Seconds
    until: _Seconds
    kind: _Text


class _Failed(_StrictModel):
    time: _Seconds
    during: _Text | None
    why: _Text


class _Node(_StrictModel):
    number: _Number
    clients: list[_Text] | None
    examples: _Count | None
    held: dict[str, Any] | None
    versions: dict[str, _Text] | None
    answered: _Seconds | None
    failed: _Failed | None


class _File(_StrictModel):
    format: Literal[1]
    link: _Text
    command: Literal["run", "tables"]
    pid: Annotated[int, pydantic.Field(ge=1, lt=2**31)]
    started: str | None
    host: _Text
    began: _Seconds
    state: _Text
    why: _Text | None
    ended: _Seconds | None
    run: _RunInfo | None
    written: _Seconds
    runs: list[_Run]
    waiting: list[_Waiting]
    nodes: list[_Node]
    sent: _Count
    received: _Count


def _shown(versions: Mapping[str, Any]) -> Table:
    return {name: clean(versions.get(name, "?")) for name in ("fedax", "jax")}


def _started(process: int) -> str | None:
    """When a process of this machine started, in the clock of its kernel; ``None`` where there is none."""
    if os.name != "posix":  # os.kill would end it there
        return "unknown"
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[19]
    return "unknown"  # of a system without /proc
