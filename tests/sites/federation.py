"""A federation of real commands on this machine: a link, nodes and runs, each a separate process."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from safetensors.numpy import load_file

from fedax.columns import TIME, TRAFFIC
from fedax.data import FederatedData
from fedax.experiments import build, execute, new_folder
from fedax.sites.service import certificates, link, processes
from tests.processes import SOON, children, is_running, options, wait_for

PLACES = {"n0": ["0"], "n1": ["1"], "n2": ["2", "3"]}  # node -> its clients
TIMES = ("seconds", "sha256", TIME, *TRAFFIC)  # the columns in which two equal runs may differ


class Federation:
    """A link and some nodes with the data of a configuration, in a folder: ``config.toml``, and all that they write.

    Args:
        folder: empty.
        config: of four clients, as TOML; a simulation of it has the same data and the same held-out examples.
        places: the clients of each node, by its name.
    """

    def __init__(self, folder: Path, config: str, places: Mapping[str, list[str]] = PLACES):
        self.folder, self.port, self.places = folder, processes.free_port(), places
        self.address, self.link, self.config = f"127.0.0.1:{self.port}", folder / "link", folder / "config.toml"
        self.commands: dict[str, subprocess.Popen[bytes]] = {}
        self.config.write_text(config)
        experiment = build(tomllib.loads(config))
        data: Any = experiment.data
        FederatedData.from_clients([experiment.test]).save(folder / "test")
        link.prepare(self.link, ["127.0.0.1"])
        for name, clients in places.items():
            FederatedData.from_clients([data.client(int(i)) for i in clients]).save(folder / f"{name}.data")
            self.make_key(name)

    def make_key(self, name: str) -> None:
        """Make a node's key pair, register it at the link, and copy the link's ``ca.pem``."""
        shutil.copy(self.link / "ca.pem", self.folder / f"{name}.ca")
        certificates.make_node_key(self.folder / name)
        shutil.copy(self.folder / f"{name}.pub", self.link / "nodes")

    def start(self, name: str, *arguments: object, **variables: str) -> subprocess.Popen[bytes]:
        """Start ``fedax deploy ...``, whose output goes to ``<name>.txt``."""
        path = os.pathsep.join([*variables.pop("PYTHONPATH", "").split(os.pathsep), *filter(None, sys.path)])
        with (self.folder / f"{name}.txt").open("ab") as output:
            self.commands[name] = subprocess.Popen(
                [sys.executable, "-m", "fedax", "deploy", *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.folder,
                env={**os.environ, **variables, "PYTHONPATH": path.strip(os.pathsep)},
            )
        return self.commands[name]

    def start_link(self) -> None:
        """``fedax deploy link``."""
        self.start("link", "link", *options(folder=self.link, port=self.port, bind="127.0.0.1"))

    def start_node(self, name: str, variables: Mapping[str, str] | None = None, **given: Any) -> None:
        """``fedax deploy node``, with a file of its settings."""
        settings = {"link": self.address, "ca": f"{name}.ca", "key": name, "data": f"{name}.data"}
        settings |= {"clients": self.places.get(name, [name])} | given
        if name in self.places:
            settings["roster"] = "link/nodes"
        (self.folder / f"{name}.toml").write_text(tomli_w.dumps(settings))
        self.start(name, "node", f"{name}.toml", **(variables or {}))

    def start_all(self) -> None:
        """The link and the nodes."""
        self.start_link()
        for name in self.places:
            self.start_node(name)
        wait_for(lambda: all("this is node" in self.output(name) for name in self.places))

    def arguments(self, out: Path, *more: str, nodes: int | None = None) -> list[str]:
        """The arguments of ``deploy run``."""
        nodes = len(self.places) if nodes is None else nodes
        given = options(link=self.address, folder=self.link, test=self.folder / "test", out=out, nodes=nodes)
        return ["run", str(self.config), *given, *more]

    def start_run(self, out: Path, *more: str, **variables: str) -> subprocess.Popen[bytes]:
        """``fedax deploy run``, whose output is appended to ``run.txt``."""
        return self.start("run", *self.arguments(out, *more), **variables)

    def output(self, name: str) -> str:
        """What a command printed so far."""
        return (self.folder / f"{name}.txt").read_text()

    def log(self, name: str) -> list[dict[str, Any]]:
        """The lines of a node's log so far that are written whole."""
        path = self.folder / f"{name}.state" / "site" / "log.jsonl"
        whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
        return [json.loads(line) for line in whole.splitlines()]

    def worker(self, name: str) -> int:
        """The process of a node's worker."""
        return children(self.commands[name].pid, "fedax.sites.service.worker")[0]

    def kill(self, name: str) -> None:
        """Send SIGKILL to a command, and wait until its child processes have ended too."""
        started = children(self.commands[name].pid, "fedax.sites.")
        self.commands[name].kill()
        self.commands[name].wait()
        wait_for(lambda: not any(is_running(process) for process in started))

    def end(self) -> dict[str, int]:
        """Send SIGTERM to all running commands; returns their exit codes."""
        for command in self.commands.values():
            command.send_signal(signal.SIGTERM)
        return {name: command.wait(SOON) for name, command in self.commands.items()}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The whole rows of a run's ``metrics.jsonl``."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def same_rows(folder: Path, other: Path) -> bool:
    """Whether two runs have the same history, but for :data:`TIMES`; methods side by side write in any order."""
    rows = [sorted(rows_of(each), key=lambda row: (row["label"], row["seed"])) for each in (folder, other)]
    plain = [[{k: v for k, v in row.items() if k not in TIMES} for row in each] for each in rows]
    return plain[0] == plain[1]


def same_models(folder: Path, other: Path) -> bool:
    """Whether two runs have the same models, byte by byte."""
    models = [{path.name: path.read_bytes() for path in (each / "models").iterdir()} for each in (folder, other)]
    return models[0] == models[1] and bool(models[0])


SLOWED = """
import os, sys, time

if "fedax.sites.service.worker" in sys.orig_argv and os.environ.get("FEDAX_TEST_SECONDS"):
    from fedax.sites.protocol import site

    exchange = site.Site._exchange

    def slow(self, run, received):
        time.sleep(float(os.environ["FEDAX_TEST_SECONDS"]))
        return exchange(self, run, received)

    site.Site._exchange = slow
"""


DYING = """
import itertools, os, signal, sys

if "run" in sys.argv and os.environ.get("FEDAX_TEST_DIES"):
    from fedax.sites.service import carry

    call, left = carry.Caller.call, itertools.count(int(os.environ["FEDAX_TEST_DIES"]), -1)

    def dying(self, path, *args, **kwargs):
        if path == "/questions" and next(left) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(self, path, *args, **kwargs)

    carry.Caller.call = dying
"""


KNOWN = """
import sys, types

if "run" in sys.argv:
    from fedax.engine import secret

    secret.secrets = types.SimpleNamespace(token_bytes=bytes)
"""


def slowed(folder: Path, seconds: float) -> dict[str, str]:
    """The variables of a node whose clients take so many seconds more for a piece of work."""
    return {**_customized(folder / "slowed", SLOWED), "FEDAX_TEST_SECONDS": str(seconds)}


def dying(folder: Path, times: int) -> dict[str, str]:
    """The variables of a run that kills itself when it asks for the so manieth time."""
    return {**_customized(folder / "dying", DYING), "FEDAX_TEST_DIES": str(times)}


def known(folder: Path) -> dict[str, str]:
    """The variables of a private run whose secret is zeros, if it draws it."""
    return _customized(folder / "known", KNOWN)


def _customized(folder: Path, code: str) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(code)
    return {"PYTHONPATH": str(folder)}


def assert_replayed(federation: Federation, out: Path) -> list[str]:
    """That simulations of what a run recorded whose server does not wait have its numbers; returns the arrivals.

    Args:
        federation: whose nodes it was at.
        out: of the run.
    """
    config, lines, folder = tomllib.loads(federation.config.read_text()), [], out.with_name(f"{out.name}-replayed")
    for method in config["methods"]:
        (trace,) = (out / "arrivals").glob(f"{method['name']}-seed*.csv")
        given = config | {"methods": [method], "clock": {"trace": str(trace)}}
        record = execute(build(given), new_folder(folder / method["name"], "replayed"), drawn=False)
        assert record is not None
        rows = [row for row in rows_of(out) if row["label"] == method["name"]]
        wanted = rows_of(record.folder)
        assert [row["round"] for row in rows] == [row["round"] for row in wanted]
        for row, want in zip(rows, wanted, strict=True):
            for name in ("clients", "bytes_up", "bytes_down", "time", "staleness", "staleness_max", "dropped"):
                assert row[name] == want[name], name
            for name in ("test_loss", *(["train_loss"] if row["heard"] == 1 else [])):
                np.testing.assert_allclose(row[name], want[name], 1e-5, 1e-6)
        got, want = (
            load_file(each / "models" / f"{method['name']}-seed0.safetensors") for each in (out, record.folder)
        )
        for name in want:
            np.testing.assert_allclose(got[name], want[name], 1e-5, 1e-5, err_msg=name)
        lines += trace.read_text().splitlines()[1:]
    return lines
