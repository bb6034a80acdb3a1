"""What goes on at a link: a run writes it to ``status.json`` of the link's folder, and others read it there."""

import contextlib
import datetime
import json
import math
import os
import socket
import threading
import time
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedax.engine.checkpoint import write_atomic
from fedax.engine.places.fleet import Fleet, Observer
from fedax.errors import FedaxError
from fedax.experiments.config import Experiment

FILE = "status.json"
_PAUSE = 0.5  # seconds between two times that the file is written, at least
_BEAT = 2.0  # the same, at most
_STALE = 30.0  # seconds after which a file of another machine is that of a run that was killed
_LONGEST = 300  # characters of what a node says

Table = dict[str, Any]


class Status(Observer):
    """Writes what a run does and whom it waits for, until it is left.

    What goes wrong with the file never ends a run.

    Args:
        folder: the link's.
        link: ``host:port``.
        fleet: the nodes.
    """

    def __init__(self, folder: Path, link: str, fleet: Fleet):
        now = time.time()
        self._path, self._fleet = folder / FILE, fleet
        self._lock, self._wake, self._over = threading.Lock(), threading.Event(), threading.Event()
        self._runs: dict[tuple[str, int], Table] = {}
        self._waiting: dict[int, Table] = {}
        self._nodes = [_node(fleet.about(which)) for which in range(len(fleet))]
        self._known: Table = {
            "format": 1, "link": link, "pid": os.getpid(), "started": _started(os.getpid()),
            "host": socket.gethostname(), "began": now, "state": "running", "why": None, "ended": None, "run": None,
        }  # fmt: skip
        self._writer = threading.Thread(target=self._write_on, daemon=True)

    def __enter__(self) -> "Status":
        self._writer.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._over.set()
        self._wake.set()
        self._writer.join()
        with self._lock:
            self._waiting.clear()
            state = "finished" if error is None else "failed" if isinstance(error, Exception) else "stopped"
            code = getattr(error, "exit_code", None)
            if code is not None:  # of a command that was stopped and has said how to go on
                state = "stopped" if code else "finished"
            why = None
            if state != "finished" and code is None:
                why = str(error) if isinstance(error, FedaxError) else type(error).__name__
            self._known |= {"state": state, "why": why and clean(why), "ended": time.time()}
            for each in self._runs.values():
                each["state"] = state if each["state"] == "running" else each["state"]
        self._write()

    # ---- what the fleet tells

    def asked(self, heads: Mapping[int, Table], seconds: float) -> None:
        """Nodes are waited for."""
        now = time.time()
        with self._lock:
            self._waiting = {
                which: {"since": now, "until": now + seconds, "kind": clean(head.get("kind"))}
                for which, head in heads.items()
            }
        self._wake.set()

    def answered(self, which: int) -> None:
        """A node has answered."""
        with self._lock:
            self._waiting.pop(which, None)
            self._nodes[which]["answered"] = time.time()
        self._wake.set()

    def failed(self, which: int, why: str, final: bool) -> None:
        """A node has refused or failed."""
        with self._lock:
            during = self._waiting.get(which, {}).get("kind")
            if final:
                self._waiting.pop(which, None)
            self._nodes[which]["failed"] = {"time": time.time(), "during": during, "why": clean(why)}
        self._wake.set()

    # ---- what the run tells

    def follow(self, experiment: Experiment, folder: Path) -> Callable[[str, int, Mapping[str, Any] | None], None]:
        """What ``watch`` of :func:`fedax.experiments.execute` has to call."""
        config = experiment.config
        with self._lock:
            self._known["run"] = {
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
                      "of": self._known["run"]["rounds"], "at": now, "seconds": None, "train_loss": None},
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
        """What the file says."""
        with self._lock:
            waiting = [{"node": self._nodes[which]["number"], **each} for which, each in sorted(self._waiting.items())]
            found = self._known | {
                "written": time.time(), "runs": [*self._runs.values()], "waiting": waiting, "nodes": self._nodes,
            }  # fmt: skip
            copied: Table = json.loads(json.dumps(found))
        return copied

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            write_atomic(self._path, json.dumps(self.table()))

    def _write_on(self) -> None:
        while not self._over.is_set():
            self._wake.clear()
            self._write()
            self._over.wait(_PAUSE)
            self._wake.wait(_BEAT - _PAUSE)


def follow(experiment: Experiment, folder: Path, watch: Callable[..., None]) -> Callable[..., None]:
    """``watch``, which the status of the experiment's fleet follows, too, if it has one."""
    observer = None if experiment.fleet is None else experiment.fleet.observer
    if not isinstance(observer, Status):
        return watch
    also = observer.follow(experiment, folder)

    def both(label: str, seed: int, row: Mapping[str, Any] | None) -> None:
        also(label, seed, row)
        watch(label, seed, row)

    return both


def read_file(folder: Path) -> Table | None:
    """What the last run at a link wrote; its state is ``"killed"`` where it ended without a word.

    Returns:
        ``None`` where there is no file, or none that can be read.
    """
    try:
        found: Table = json.loads((folder / FILE).read_text())
        if found["format"] != 1:
            return None
        if found["state"] == "running":
            here = found["host"] == socket.gethostname()
            gone = _started(found["pid"]) != found["started"] if here else time.time() - found["written"] > _STALE
            if gone:
                found |= {"state": "killed", "why": "its process is gone", "ended": found["written"], "waiting": []}
                for each in found["runs"]:
                    each["state"] = "killed" if each["state"] == "running" else each["state"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return found


def registered(link: str, folder: Path) -> list[Table]:
    """The nodes that a link knows.

    Raises:
        NodeError, ConfigError: it cannot be reached.
    """
    from flwr.proto.control_pb2 import ListNodesRequest

    from fedax.errors import ConfigError, NodeError
    from fedax.flower import certificates
    from fedax.flower.calls import control

    for name in ("ca.pem", "secret"):
        if not (folder / name).is_file():
            raise ConfigError("folder", str(folder), f"it has no {name}; give the folder of `fedax deploy link`")
    if reason := certificates.greet(link, folder / "ca.pem"):
        raise NodeError(f"the link at {link} cannot be reached ({reason}); start it with `fedax deploy link`")
    client = control(link, (folder / "ca.pem").read_bytes(), (folder / "secret").read_text().strip(), 2.0)
    try:
        nodes = client.ListNodes(ListNodesRequest()).nodes_info
    finally:
        client.close()
    return [
        {"number": node.node_id, "name": clean(node.name), "status": clean(node.status),
         "registered": node.registered_at or None,
         "since": (node.last_activated_at if node.status == "online" else node.last_deactivated_at) or None}
        for node in nodes if not node.HasField("unregistered_at")
    ]  # fmt: skip


def joined(file: Table | None, nodes: list[Table] | None, problem: str | None = None) -> Table:
    """One object of what the file and the link say.

    Args:
        file: from :func:`read_file`.
        nodes: from :func:`registered`; ``None``: the link cannot be reached.
        problem: why.
    """
    said = {each["number"]: each for each in (file or {}).get("nodes", [])}
    waiting = {each["node"]: each for each in (file or {}).get("waiting", [])}
    none = {"clients": None, "examples": None, "versions": None, "answered": None, "failed": None}
    there = nodes if nodes is not None else [
        {"number": number, "name": None, "status": "unknown", "registered": None, "since": None} for number in said
    ]  # fmt: skip
    listed = [none | said.get(each["number"], {}) | each | {"waited_for": waiting.get(each["number"])}
              for each in there]  # fmt: skip
    run = None if file is None else {name: file[name] for name in ("state", "why", "began", "ended", "run", "runs")}
    return {"time": time.time(), "link": {"there": nodes is not None, "problem": problem}, "run": run, "nodes": listed}


def clean(text: object) -> str:
    """A text of others as a part of a line: nothing in it moves a cursor, and it is not long.

    Example:
        >>> clean("bad\\x1b[2J\\nnews")
        'bad?[2J news'
    """
    plain = "".join(" " if c in "\n\r\t" else "?" if unicodedata.category(c)[0] == "C" else c for c in str(text))
    return plain if len(plain) <= _LONGEST else plain[: _LONGEST - 1] + "…"


def here(node: Table, now: float) -> str:
    """How long a node is there, or that it is not."""
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


def _node(about: Table) -> Table:
    return {
        "number": about["number"], "clients": [clean(name) for name in about["names"]],
        "examples": sum(about["sizes"]), "held": about["held"], "answered": None, "failed": None,
        "versions": {name: clean(about["versions"].get(name)) for name in ("fedax", "jax")},
    }  # fmt: skip


def _started(process: int) -> str | None:
    """When a process of this machine started, in the clock of its kernel; ``None`` where there is none."""
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
