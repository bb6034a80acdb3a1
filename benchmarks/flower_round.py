"""Seconds of an exchange over Flower without any work of the clients.

Three nodes on this machine, in three ways: fedax's link and nodes, with TLS and keys, at a poll of 3 s (the default)
and of 0.1 s; and Flower as it comes, without TLS: a SuperLink and SuperNodes that start a process for each message, an
empty ClientApp, and a ServerApp that calls ``Grid.send_and_receive``.

    python benchmarks/flower_round.py [--nodes 3] [--rounds 5]
"""

import argparse
import contextlib
import hashlib
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import StartRunRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab

from fedax.engine.places.nodes import Message
from fedax.sites import app, certificates, link
from fedax.sites.processes import free_port, options
from fedax.sites.transport import connect

PROJECT = """\
[project]
name = "empty-app"
version = "1.0.0"
dependencies = []

[tool.flwr.app]
publisher = "fedax"

[tool.flwr.app.components]
serverapp = "empty_app.server:app"
clientapp = "empty_app.client:app"

[tool.flwr.app.config]
nodes = 0
rounds = 0
out = ""
"""

CLIENT = """\
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def query(message, context):
    return Message(RecordDict(), reply_to=message)
"""

SERVER = """\
import time
from pathlib import Path

from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    while len(nodes := list(grid.get_node_ids())) < config["nodes"]:
        time.sleep(0.2)
    for _ in range(config["rounds"]):
        began = time.perf_counter()
        replies = grid.send_and_receive([Message(RecordDict(), node, "query") for node in nodes])
        seconds = time.perf_counter() - began
        assert len(list(replies)) == len(nodes) and not any(reply.has_error() for reply in replies)
        with Path(config["out"]).open("a") as file:
            print(seconds, file=file)
"""


def answering() -> Callable[[Message], Message]:
    """The worker's factory: the answer is the question."""
    return lambda message: message


@contextlib.contextmanager
def running(commands: Sequence[Sequence[str]], folder: Path, **environment: str) -> Iterator[None]:
    started = []
    with (folder / "output.txt").open("ab") as output:
        try:
            for command in commands:
                started.append(
                    subprocess.Popen(
                        command,
                        stdout=output,
                        stderr=output,
                        env={**os.environ, **environment},
                        start_new_session=True,
                    )
                )
            yield
        finally:
            for process in started:
                process.terminate()
            for process in started:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def of_fedax(folder: Path, nodes: int, rounds: int, poll: float) -> list[float]:
    port = free_port()
    link.prepare(folder / "link", ["127.0.0.1"])
    ours = [sys.executable, "-m"]
    commands = [[*ours, "fedax.sites.link", *options(folder=folder / "link", port=port, bind="127.0.0.1")]]
    for k in range(nodes):
        certificates.make_node_key(folder / f"n{k}")
        (folder / f"n{k}.pub").rename(folder / "link" / "nodes" / f"n{k}.pub")
        given = options(link=f"127.0.0.1:{port}", ca=folder / "link" / "ca.pem", key=folder / f"n{k}", poll=poll)
        given += options(state=folder / f"s{k}", factory="flower_round:answering")
        commands.append([*ours, "fedax.sites.node", *given])
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    with running(commands, folder, PYTHONPATH=path):
        while certificates.connection_problem(f"127.0.0.1:{port}", folder / "link" / "ca.pem") is not None:
            time.sleep(0.2)
        secret = (folder / "link" / "secret").read_text()
        with connect(f"127.0.0.1:{port}", folder / "link" / "ca.pem", secret) as transport:
            while len(result := transport.nodes()) < nodes:
                time.sleep(0.2)
            list(transport.ask({node: Message({}) for node in result}, 60))  # the app itself goes to the nodes once
            taken = []
            for k in range(rounds):
                time.sleep(0.37 * k)  # so that rounds begin at different moments of the nodes' pauses
                began = time.perf_counter()
                answers = list(transport.ask({node: Message({}) for node in result}, 60))
                taken.append(time.perf_counter() - began)
                assert all(isinstance(answer, Message) for _, answer in answers)
    return taken


def of_flower(folder: Path, nodes: int, rounds: int) -> list[float]:
    here = Path(sys.executable).parent
    port = free_port()
    insecure = {"insecure": True}
    commands = [
        [str(here / "flower-superlink"), *options(port=port, disable_runtime_dependency_installation=True, **insecure)]
    ]
    for _ in range(nodes):
        given = options(superlink=f"127.0.0.1:{port}", port=free_port(), **insecure)
        commands.append([str(here / "flower-supernode"), *given])
    files = {"pyproject.toml": PROJECT, "empty_app/__init__.py": "", "empty_app/client.py": CLIENT}
    files["empty_app/server.py"] = SERVER
    fab = app.bundle({name: text.encode() for name, text in files.items()})
    out = folder / "seconds.txt"
    path = os.pathsep.join([str(here), os.environ["PATH"]])
    with running(commands, folder, FLWR_HOME=str(folder / "home"), PATH=path):
        config = user_config_to_proto({"nodes": nodes, "rounds": rounds, "out": str(out)})
        request = StartRunRequest(
            fab=fab_to_proto(Fab(hashlib.sha256(fab).hexdigest(), fab, {})), override_config=config
        )
        with ControlHttpClient.from_server_address(f"127.0.0.1:{port}", True, None, []) as control:
            for _ in range(100):
                try:
                    control.StartRun(request)
                    break
                except httpx.TransportError:  # it is starting
                    time.sleep(0.3)
        until = time.monotonic() + 60 + 30 * rounds
        while not out.exists() or len(out.read_text().splitlines()) < rounds:
            assert time.monotonic() < until, (folder / "output.txt").read_text()[-3000:]
            time.sleep(0.2)
    return [float(line) for line in out.read_text().splitlines()]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    ways: dict[str, Callable[[Path], list[float]]] = {
        "fedax, poll 0.1": lambda folder: of_fedax(folder, given.nodes, given.rounds, 0.1),
        "fedax, poll 3.0": lambda folder: of_fedax(folder, given.nodes, given.rounds, 3.0),
        "Flower as it comes": lambda folder: of_flower(folder, given.nodes, given.rounds),
    }
    print(f"{given.nodes} nodes, {given.rounds} rounds, {os.cpu_count()} cores, {platform.machine()}")
    for name, measure in ways.items():
        with tempfile.TemporaryDirectory() as folder:
            taken = measure(Path(folder))
        spread = f"{min(taken):.2f} to {max(taken):.2f}"
        print(f"{name}: median {statistics.median(taken):.2f} s a round ({spread})", flush=True)


if __name__ == "__main__":
    main()
