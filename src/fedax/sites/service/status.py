"""The status of a link: a run writes it to ``status.json`` in the link's folder, and other commands read it there."""

import contextlib
import datetime
import json
import math
import os
import socket
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic

from fedax.data.formats import parse_json
from fedax.errors import FedaxError
from fedax.experiments.config.experiment import Experiment
from fedax.files import regular, write_atomic
from fedax.sites.protocol.messages import Failure, Message, Talk, Transport, heads_of

FILE = "status.json"
_SHORTEST_INTERVAL = 0.5  # seconds between two times that the file is written, at least
_LONGEST_INTERVAL = 2.0  # the same, at most
_STALE = 30.0  # seconds without an update after which a run on another machine counts as killed
_LONGEST = 300  # characters of a text from a node

_NODE_FIELDS = ("clients", "examples", "held", "versions", "answered", "failed")  # of a node, besides its number

Table = dict[str, Any]


class Status:
    """A transport that also records to a file what the command does and which nodes it waits for.

    It is a :class:`fedax.sites.protocol.messages.Transport`. An error in writing the file never ends a command.

    Args:
        folder: the link's.
        link: ``host:port``.
        transport: the one that carries the messages.
        command: ``run`` or ``tables``.
    """

    def __init__(self, folder: Path, link: str, transport: Transport, command: str = "run"):
        now = time.time()
        self._path, self._transport = folder / FILE, transport
        self._lock, self._wake, self._closed = threading.Lock(), threading.Event(), threading.Event()
        self._runs: dict[tuple[str, int], Table] = {}
        self._waiting: dict[int, Table] = {}
        self._nodes: dict[int, Table] = {}
        self._status: Table = {
            "format": 1, "link": link, "command": command, "pid": os.getpid(), "started": _started(os.getpid()),
            "host": socket.gethostname(), "began": now, "state": "running", "why": None, "ended": None, "run": None,
        }  # fmt: skip
        self._writer = threading.Thread(target=self._write_on, daemon=True)

    def __enter__(self) -> "Status":
        self._writer.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._closed.set()
        self._wake.set()
        self._writer.join()
        with self._lock:
            self._waiting.clear()
            state = "finished" if error is None else "failed" if isinstance(error, Exception) else "stopped"
            code = getattr(error, "exit_code", None)
            if code is not None:  # of a command that was stopped and has printed how to resume
                state = "stopped" if code else "finished"
            why = None
            if state != "finished" and code is None:
                why = str(error) if isinstance(error, FedaxError) else type(error).__name__
            self._status |= {"state": state, "why": why and clean(why), "ended": time.time()}
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

    def ask(self, messages: Mapping[int, Message], timeout: float) -> Iterator[tuple[int, Message | Failure]]:
        """Ask some nodes, as the transport does."""
        self._note_request(messages, timeout)
        for number, answer in self._transport.ask(messages, timeout):
            self._note(number, answer)
            yield number, answer

    def talk(self, timeout: float) -> Talk:
        """Ask nodes without an end, as the transport does."""
        talk = self._transport.talk(timeout)
        came = next(talk)
        while True:
            messages = yield came
            if messages:
                self._note_request(messages, timeout, further=True)
            came = talk.send(messages)
            for number, answer in came:
                self._note(number, answer)

    def _note(self, number: int, answer: Message | Failure) -> None:
        if isinstance(answer, Message) and isinstance(table := answer.head.get("table"), dict):
            self._note_table(number, table, answer.head.get("versions"))
        if isinstance(answer, Failure):
            self._note_failure(number, answer.text, answer.gone)
        elif "error" in answer.head and "table" not in answer.head:  # with a table it only waits for its transform
            self._note_failure(number, str(answer.head["error"]), False)
        elif "waits" in answer.head:  # it is asked again
            self._note_wait(number, clean(answer.head["waits"]))
        else:
            self._note_answer(number)

    def _note_request(self, messages: Mapping[int, Message], timeout: float, further: bool = False) -> None:
        now = time.time()
        with self._lock:
            if (
                not further and not messages.keys() <= self._waiting.keys()
            ):  # else those that were gone are asked once more
                self._waiting.clear()
            for number, message in messages.items():
                kinds = dict.fromkeys(clean(head.get("kind")) for head in heads_of(message))
                waiting = {"since": now, "until": now + timeout, "kind": " and ".join(kinds)}
                self._waiting.setdefault(number, waiting)
        self._wake.set()

    def _note_answer(self, number: int) -> None:
        with self._lock:
            self._waiting.pop(number, None)
            self._node(number)["answered"] = time.time()
        self._wake.set()

    def _note_table(self, number: int, table: Mapping[str, Any], versions: object) -> None:
        """Note the table that a node has; a run knows more about the node later."""
        name, rows = table.get("name"), table.get("rows")
        with self._lock:
            node = self._node(number)
            if isinstance(name, str) and type(rows) is int:
                node |= {"clients": [clean(name)], "examples": rows}
            if isinstance(versions, dict):
                node["versions"] = _shown(versions)
        self._wake.set()

    def _note_wait(self, number: int, what: str) -> None:
        with self._lock:
            if number in self._waiting:
                self._waiting[number]["kind"] = what
        self._wake.set()

    def _note_failure(self, number: int, why: str, gone: bool) -> None:
        with self._lock:
            during = self._waiting.get(number, {}).get("kind")
            if not gone:
                self._waiting.pop(number, None)
            self._node(number)["failed"] = {"time": time.time(), "during": during, "why": clean(why)}
        self._wake.set()

    def _node(self, number: int) -> Table:
        return self._nodes.setdefault(number, {"number": number} | dict.fromkeys(_NODE_FIELDS))

    # ---- the progress of the run

    def follow(self, experiment: Experiment, folder: Path) -> Callable[[str, int, Mapping[str, Any] | None], None]:
        """Note what is run; returns the callback ``watch`` for :func:`fedax.experiments.execute`."""
        config, fleet = experiment.config, experiment.fleet
        assert fleet is not None
        with self._lock:
            for which in range(len(fleet)):
                about = fleet.about(which)
                self._node(about["number"]).update(_of_node(about))
            self._status["run"] = {
                "name": clean(config["name"]), "folder": str(folder.absolute()), "rounds": config["run"]["rounds"],
                "methods": [clean(label) for label in experiment.methods], "seeds": [*config["run"]["seeds"]],
            }  # fmt: skip
        self._wake.set()
        return self._watch

    def _watch(self, label: str, seed: int, row: Mapping[str, Any] | None) -> None:
        now, key = time.time(), (label, seed)
        with self._lock:
            known = self._runs.setdefault(
                key, {"method": clean(label), "seed": seed, "state": "running", "since": now, "round": 0,
                      "of": self._status["run"]["rounds"], "at": now, "seconds": None, "train_loss": None},
            )  # fmt: skip
            if row is not None:
                done = row["round"] - known["round"]
                loss = float(row["train_loss"])
                if done > 0:
                    known["seconds"] = (now - known["at"]) / done
                known |= {"round": row["round"], "at": now, "train_loss": loss if math.isfinite(loss) else None}
                if not math.isfinite(loss):
                    known["state"] = "diverged"
                elif row["round"] >= known["of"]:
                    known["state"] = "finished"
        self._wake.set()

    # ---- the file

    def table(self) -> Table:
        """The content of the file."""
        with self._lock:
            waiting = [{"node": number, **each} for number, each in sorted(self._waiting.items())]
            table = self._status | {
                "written": time.time(), "runs": [*self._runs.values()], "waiting": waiting,
                "nodes": [*self._nodes.values()], "sent": self.sent, "received": self.received,
            }  # fmt: skip
            copied: Table = json.loads(json.dumps(table))
        return copied

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            write_atomic(self._path, json.dumps(self.table()))

    def _write_on(self) -> None:
        while not self._closed.is_set():
            self._wake.clear()
            self._write()
            self._closed.wait(_SHORTEST_INTERVAL)
            self._wake.wait(_LONGEST_INTERVAL - _SHORTEST_INTERVAL)


def follow(experiment: Experiment, folder: Path, watch: Callable[..., None]) -> Callable[..., None]:
    """A callback that calls ``watch`` and updates the status of the experiment's fleet, if it has one."""
    status = None if experiment.fleet is None else experiment.fleet.transport
    if not isinstance(status, Status):
        return watch
    also = status.follow(experiment, folder)

    def both(label: str, seed: int, row: Mapping[str, Any] | None) -> None:
        also(label, seed, row)
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
    listed_nodes = nodes if nodes is not None else [
        {"number": number, "name": None, "status": "unknown", "registered": None, "since": None} for number in reported
    ]  # fmt: skip
    listed = [
        dict.fromkeys(_NODE_FIELDS)
        | reported.get(node["number"], {})
        | node
        | {"waited_for": waiting.get(node["number"])}
        for node in listed_nodes
    ]
    shown = ("command", "state", "why", "began", "ended", "sent", "received", "run", "runs")
    run = None if file is None else {name: file[name] for name in shown}
    about = {"there": nodes is not None, "problem": problem, "certificates": dict(ends or {})}
    return {"time": time.time(), "link": about, "run": run, "nodes": listed}


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


def here(node: Table, now: float) -> str:
    """For how long a node has been online, or its status if it is not."""
    if node["status"] == "online" and node["since"]:
        return span(now - datetime.datetime.fromisoformat(node["since"]).timestamp())
    return str(node["status"])


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


def _of_node(about: Table) -> Table:
    return {
        "clients": [clean(name) for name in about["names"]], "examples": sum(about["sizes"]), "held": about["held"],
        "versions": _shown(about["versions"]),
    }  # fmt: skip


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
