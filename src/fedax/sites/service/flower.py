"""An app for a federation of Flower's: the run as a ServerApp, and a node's clients behind a ClientApp.

Needs ``pip install 'fedax[flower]'``. A message of fedax is a record with the bytes of its head and of small tensors;
large tensors are an array, which Flower cuts into pieces. JAX is not loaded by a ClientApp that hands on its message.
"""

import importlib.resources
import json
import shlex
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedax.errors import ConfigError, NodeError
from fedax.sites.service import require
from fedax.sites.service.processes import receive, send

if TYPE_CHECKING:
    from flwr.app import Context, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

_SMALL = 1 << 20  # bytes of tensors in the record of the head
_FORM = "safetensors"  # how Flower's array names its bytes, which it does not read

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
        project = importlib.resources.files(__package__).joinpath("flower.toml").read_text(encoding="utf-8")
        project = project.replace('"{runs}"', json.dumps(str(Path("runs").absolute())))
        (folder / "pyproject.toml").write_text(project, encoding="utf-8")
        (package / "__init__.py").write_text('"""An experiment of fedax."""\n')
        for side in ("client", "server"):
            (package / f"{side}.py").write_text(_SIDE.format(side=side))
        (package / "experiment.toml").write_text(toml.dumps(tables), encoding="utf-8")
    except OSError as error:
        raise ConfigError("folder", str(folder), f"cannot write there ({error.strerror})") from error


# ---- messages


def recorded(parts: Sequence[bytes]) -> "RecordDict":
    """Records with the parts of a message, its head and its tensors."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    head = ConfigRecord({"json": parts[0]})
    records = RecordDict({"head": head})
    for tensors in parts[1:]:
        if len(tensors) <= _SMALL:
            head["tensors"] = tensors
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


# ---- the apps


def server(experiment: Path) -> "ServerApp":
    """The ServerApp that runs an experiment over the nodes of its grid; its settings are in the app's pyproject.toml.

    Args:
        experiment: a configuration.

    Raises:
        ConfigError: Flower is not installed.
    """
    require("flwr", extra="flower")
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()
    def main(grid: "Grid", context: "Context") -> None:
        from fedax.sites.service.grid import GridTransport, run

        run(experiment, GridTransport(grid), context.run_config)

    return app


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
    require("flwr", extra="flower")
    from flwr.app import Message as FlowerMessage
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.query()
    def query(message: FlowerMessage, context: "Context") -> FlowerMessage:
        question, config = parts_of(message.content), context.node_config
        if "socket" in config:
            answer = handed_to(str(config["socket"]), question)
        else:
            from fedax.sites.service.grid import answer_here
            from fedax.sites.service.worker import answered

            answer = answered(lambda asked: answer_here(experiment, context, asked), question)
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
