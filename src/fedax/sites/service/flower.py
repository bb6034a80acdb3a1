"""An app for a federation of Flower's: the run as a ServerApp, and a node's clients behind a ClientApp.

Needs ``pip install 'fedax[flower]'``. A message of fedax is a record with the bytes of its head and of small tensors;
large tensors are an array, which Flower cuts into pieces. JAX is not loaded by a ClientApp that hands on its message.
"""

import functools
import importlib.util
import math
import shlex
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedax.errors import ConfigError, NodeError
from fedax.sites.service.processes import receive, send

if TYPE_CHECKING:
    from flwr.app import Context, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

    from fedax.sites.protocol.messages import Failure, Message, Talk
    from fedax.sites.protocol.site import Site

_SMALL = 1 << 20  # bytes of tensors in the record of the head
_FORM = "safetensors"  # how Flower's array names its bytes, which it does not read
_FIRST_LOOK, _LONGEST_LOOK = 0.05, 0.5  # seconds between looks for answers
_SPARE = 2.0  # seconds by which a message outlives the wait for its answer, so that this side gives up first

_PROJECT = """\
[project]
name = "fedax-app"
version = "1.0.0"
description = "An experiment of fedax, for flwr run"
license = "Apache-2.0"
dependencies = []  # fedax[flower] stands beside SuperLink and SuperNodes

[tool.flwr.app]
publisher = "fedax"

[tool.flwr.app.components]
serverapp = "fedax_app.server:app"
clientapp = "fedax_app.client:app"

[tool.flwr.app.config]
out = ""  # the run's folder, at the SuperLink; a run that began there is continued. "": a new one in runs
runs = {runs}  # where new folders are made
nodes = 0  # how many to wait for; 0: those that are there
timeout = 600.0  # seconds that a node has for an answer
"""

_SIDE = '''\
"""The {side} of an experiment of fedax."""

from pathlib import Path

from fedax.sites.service import flower

app = flower.{side}(Path(__file__).with_name("experiment.toml"))
'''


def write(folder: str | Path, tables: Mapping[str, Any]) -> None:
    """Write an app's folder, for ``flwr run FOLDER``.

    Args:
        folder: new or empty.
        tables: of an experiment, as of :func:`fedax.experiments.read_toml`.

    Raises:
        ConfigError: the experiment cannot be deployed, or the folder is not empty.
    """
    import json

    from fedax.experiments import toml
    from fedax.sites.service.deploy import with_nodes_data

    folder = Path(folder)
    with_nodes_data(dict(tables), None)
    package = folder / "fedax_app"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError("folder", str(folder), "this folder is not empty; name another")
        package.mkdir()
        runs = json.dumps(str(Path("runs").absolute()))
        (folder / "pyproject.toml").write_text(_PROJECT.format(runs=runs), encoding="utf-8")
        (package / "__init__.py").write_text('"""An experiment of fedax."""\n')
        for side in ("client", "server"):
            (package / f"{side}.py").write_text(_SIDE.format(side=side))
        (package / "experiment.toml").write_text(toml.dumps(tables), encoding="utf-8")
    except OSError as error:
        raise ConfigError("folder", str(folder), f"cannot write there ({error.strerror})") from error


def require() -> None:
    """Check that Flower is there.

    Raises:
        ConfigError: it is not installed.
    """
    if importlib.util.find_spec("flwr") is None:
        raise ConfigError("flwr", None, "Flower's apps need this package: pip install 'fedax[flower]'")


# ---- messages


def recorded(parts: Sequence[bytes]) -> "RecordDict":
    """Records with the parts of a message, its head and its tensors."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    record: dict[str, Any] = {"json": parts[0]}
    records = RecordDict({"head": ConfigRecord(record)})
    for tensors in parts[1:]:
        if len(tensors) <= _SMALL:
            records.config_records["head"]["tensors"] = tensors
        else:
            records["tensors"] = ArrayRecord({"0": Array("uint8", (len(tensors),), _FORM, tensors)})
    return records


def parts_of(records: "RecordDict") -> list[bytes]:
    """The parts of a message in records, which may be anything.

    Raises:
        ValueError: they are not of the form that :func:`recorded` makes.
    """
    try:
        record = records.config_records["head"]
        parts: list[Any] = [record["json"], *([record["tensors"]] if "tensors" in record else [])]
        if (arrays := records.array_records.get("tensors")) is not None:
            parts.append(arrays["0"].data)
    except KeyError as error:
        raise ValueError(f"no message of fedax: {error} is missing") from error
    if len(parts) > 2 or not all(isinstance(each, bytes) for each in parts):
        raise ValueError("no message of fedax: its parts are no bytes, or there twice")
    return parts


# ---- the run


class GridTransport:
    """A ``fedax.sites.protocol.messages.Transport`` over the grid of a ServerApp.

    Args:
        grid: of Flower's.

    Attributes:
        sent, received: bytes of messages, without what Flower adds.
    """

    def __init__(self, grid: "Grid"):
        self._grid = grid
        self.sent = self.received = 0

    def nodes(self) -> list[int]:
        """The nodes that are there now, in ascending order."""
        return sorted(self._grid.get_node_ids())

    def ask(self, messages: "Mapping[int, Message]", timeout: float) -> "Iterator[tuple[int, Message | Failure]]":
        """Ask some nodes.

        Args:
            messages: by the node's number.
            timeout: seconds from now, above 0.

        Yields:
            Of each node its answer as it comes, or a failure.
        """
        talk = self.talk(timeout)
        next(talk)
        came, waiting = talk.send(messages), len(messages)
        while True:
            yield from came
            waiting -= len(came)
            if not waiting:
                return
            came = talk.send({})

    def talk(self, timeout: float) -> "Talk":
        """Ask nodes without an end: it is sent messages, and yields answers and failures, look by look.

        Args:
            timeout: seconds that each message has from when it is sent, above 0.
        """
        from fedax.sites.protocol.messages import Failure

        waiting: dict[str, tuple[int, float]] = {}  # by the message's number: its node, and until when
        came: list[tuple[int, Message | Failure]] = []
        pause = _FIRST_LOOK
        while True:
            messages = yield came
            came = []
            if messages:
                came, pause = self._send(messages, timeout, waiting), _FIRST_LOOK
            if not came:
                until = min((until for _, until in waiting.values()), default=math.inf)
                time.sleep(max(0.0, min(pause, until - time.monotonic())))
            for reply in list(self._grid.pull_messages(list(waiting))) if waiting else []:
                node, _ = waiting.pop(reply.metadata.reply_to_message_id)
                came.append((node, self._answer(reply)))
            for number, (node, until) in list(waiting.items()):
                if time.monotonic() >= until:
                    del waiting[number]
                    came.append((node, Failure(f"no answer in {timeout:g} s", True)))
            pause = _FIRST_LOOK if came else min(1.3 * pause, _LONGEST_LOOK)

    def _send(
        self, messages: "Mapping[int, Message]", timeout: float, waiting: dict[str, tuple[int, float]]
    ) -> "list[tuple[int, Message | Failure]]":
        """Send messages, and note them as waiting; failures of those that cannot be sent."""
        from flwr.app import Message as FlowerMessage

        from fedax.sites.protocol.messages import Failure
        from fedax.sites.service.messages import closed

        until = time.monotonic() + timeout
        failures: list[tuple[int, Message | Failure]] = []
        for node, message in messages.items():
            request = FlowerMessage(recorded(closed(message)), node, "query", ttl=timeout + _SPARE)
            number = next(iter(self._grid.push_messages([request])), "")
            if number:
                self.sent += message.size
                waiting[number] = node, until
            else:
                failures.append((node, Failure("the SuperLink does not take messages for this node", True)))
        return failures

    def _answer(self, reply: Any) -> "Message | Failure":
        from fedax.sites.protocol.messages import Failure
        from fedax.sites.service.messages import opened

        if reply.has_error():  # of Flower's: what fedax could not answer is in the head of an answer
            return Failure((reply.error.reason or f"Flower's error {reply.error.code}").strip(), True)
        try:
            answer = opened(parts_of(reply.content))
        except ValueError as error:
            return Failure(str(error), False)
        self.received += answer.size
        return answer


def server(experiment: Path) -> "ServerApp":
    """The ServerApp that runs an experiment over the nodes of its grid; its settings are in the app's pyproject.toml.

    Args:
        experiment: a configuration.

    Raises:
        ConfigError: Flower is not installed.
    """
    require()
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()
    def main(grid: "Grid", context: "Context") -> None:
        _run(experiment, GridTransport(grid), context.run_config)

    return app


def _run(experiment: Path, transport: GridTransport, settings: Mapping[str, Any]) -> None:
    """Run an experiment as ``fedax deploy run`` does."""
    from fedax.experiments import build, execute, read_toml
    from fedax.experiments.runner import check_methods, run_folder, writing
    from fedax.files import slug
    from fedax.sites.protocol.fleet import Fleet
    from fedax.sites.service.deploy import with_nodes_data

    say = functools.partial(print, flush=True)
    tables = with_nodes_data(read_toml(experiment), None)
    fleet = Fleet(transport, float(settings["timeout"]), int(settings["nodes"]) or None)
    say(f"{len(fleet)} nodes with {fleet.census.num_clients} clients and {int(fleet.census.sizes.sum())} examples")
    built = build(tables, fleet)
    checked, name = check_methods(built), built.config["name"]
    out = Path(settings["out"] or _numbered(Path(settings["runs"]), slug(name)))
    folder = run_folder(out, built.config, name)
    say(f"the run is written to {folder.absolute()}")
    with writing(folder, lambda error: say(f"stopped; what was done is in {folder.absolute()}")):
        execute(built, folder, checked=checked)
    say(f"report: {folder.absolute() / 'report.html'}")


def _numbered(runs: Path, name: str) -> Path:
    """The first folder ``name-1``, ``name-2``, … that is not there."""
    number = 1
    while (folder := runs / f"{name}-{number}").exists():
        number += 1
    return folder


# ---- the nodes


def client(experiment: Path) -> "ClientApp":
    """The ClientApp of a node, by its SuperNode's ``--node-config``.

    ``socket="PATH"``: it hands each message to ``fedax deploy node --socket PATH``. ``data="FOLDER"``: it answers
    itself, for the clients in a folder of ``FederatedData.save``, with ``policy="FILE"``, ``clients="A,B"`` and
    ``state="FOLDER"`` (default: ``DATA.state``) as of ``fedax deploy node``. In Flower's simulation it is one of the
    experiment's own clients.

    Args:
        experiment: a configuration, whose data are those of simulated clients.

    Raises:
        ConfigError: Flower is not installed.
    """
    require()
    from flwr.app import Message as FlowerMessage
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.query()
    def query(message: FlowerMessage, context: "Context") -> FlowerMessage:
        question, config = parts_of(message.content), context.node_config
        if "socket" in config:
            answer = handed_to(str(config["socket"]), question)
        else:
            from fedax.sites.service.worker import answered

            answer = answered(lambda asked: _answer_here(experiment, context, asked), question)
        return FlowerMessage(recorded(answer), reply_to=message)

    return app


def handed_to(path: str, question: Sequence[bytes]) -> list[bytes]:
    """The parts of the answer of the node that listens at a Unix socket.

    Raises:
        NodeError: nobody listens there, or the node has ended before it had answered.
    """
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            with connection.makefile("rwb") as file:
                send(file, question)
                return receive(file)
    except OSError as error:
        start = f"fedax deploy node --socket {shlex.quote(path)}"
        raise NodeError(f"no node listens at {path} ({error}); start it: {start}") from error
    except EOFError:
        raise NodeError(f"the node at {path} has ended before it had answered") from None


def _answer_here(experiment: Path, context: "Context", asked: "Message") -> "Message":
    """An answer of this process; between two of them the node's folder is free for the next one."""
    config = context.node_config
    if "data" in config:
        given = {name: str(config[name]) for name in ("data", "state", "clients", "policy") if name in config}
        site = _site_of(**given)
    elif "partition-id" in config:
        state = Path(str(context.run_config["runs"])) / "sites" / str(config["partition-id"])
        site = _simulated(experiment, int(config["partition-id"]), state)
    else:
        way_out = "name what the node has: --node-config 'socket=\"PATH\"' or 'data=\"FOLDER\"'"
        raise ConfigError("node-config", dict(config), way_out)
    site.open()
    try:
        return site.answer(asked)
    finally:
        site.close()


@functools.lru_cache(maxsize=64)
def _site_of(data: str, state: str = "", clients: str = "", policy: str = "") -> "Site":
    """The site of a folder of arrays, closed."""
    from fedax.data import FederatedData
    from fedax.data.tables import TABLES, stem
    from fedax.files import name_of
    from fedax.sites.protocol.policy import Policy, read_table
    from fedax.sites.protocol.site import Site
    from fedax.sites.service.deploy import make_problem

    if data.lower().endswith(TABLES):
        raise ConfigError("data", data, "a table needs a node that stays: fedax deploy node --socket, and its socket")
    here, name = FederatedData.open(data), name_of(stem(Path(data)))
    usual = here.names or ([name] if here.num_clients == 1 else [f"{name}-{i}" for i in range(here.num_clients)])
    names = [each.strip() for each in clients.split(",")] if clients else list(usual)
    rules = Policy.of(read_table(Path(policy)) if policy else {})
    site = Site(here, make_problem, state or f"{data}.state", names, policy=rules)
    site.close()
    return site


@functools.lru_cache(maxsize=64)
def _simulated(experiment: Path, which: int, state: Path) -> "Site":
    """The site of one of the experiment's own clients, closed."""
    from fedax.data import FederatedData
    from fedax.sites.protocol.site import Site
    from fedax.sites.service.deploy import make_problem

    data = _clients(experiment)
    if which >= data.num_clients:
        way_out = f"the experiment has {data.num_clients} clients: flwr run --federation-config 'num-supernodes=…'"
        raise ConfigError("num-supernodes", which + 1, way_out)
    site = Site(FederatedData.from_clients([data.client(which)]), make_problem, state, [str(which)])
    site.close()
    return site


@functools.cache
def _clients(experiment: Path) -> Any:
    from fedax.experiments import build, read_toml

    return build(read_toml(experiment)).undealt()
