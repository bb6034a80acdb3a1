"""Deployments on this machine, to try one: a link and nodes as processes, or Flower's simulation, on Ray."""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import json
import os
import pathlib
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedax.data import FederatedData
from fedax.engine.places.fleet import Fleet
from fedax.engine.places.nodes import Message
from fedax.engine.places.site import Site
from fedax.errors import ConfigError, NodeError
from fedax.experiments import own
from fedax.experiments.config.experiment import Experiment
from fedax.federation.census import Census
from fedax.federation.clock import Clock
from fedax.flower import require
from fedax.flower.deploy import FACTORY, Say, Table, fleet_at, make_problem
from fedax.flower.processes import SupervisedProcess, free_port, options

_START = 120.0  # seconds in which the processes of a local deployment have to be there


@contextlib.contextmanager
def local_deployment(
    experiment: Experiment, folder: pathlib.Path, nodes: int, timeout: float, say: Say
) -> Iterator[Experiment]:
    """Deploy an experiment on this machine: a link and nodes as local processes, for as long as the context lasts.

    Each is a separate process, with TLS and keys made for it. Their files are in ``folder/deploy``; after a run without
    an error only the nodes' logs remain.

    Args:
        experiment: with its data, which are distributed among the nodes.
        folder: of the run.
        nodes: how many, 1 to N.
        timeout: as of :class:`Fleet`.
        say: is called with lines for people.

    Raises:
        ConfigError: the experiment cannot be run so.
        NodeError: the processes do not come up.
    """
    require()
    from fedax.flower import certificates
    from fedax.flower import link as links

    data, place, port = experiment.undealt(), folder / "deploy", free_port()
    code = _copy_code(experiment, place)
    address, link = f"127.0.0.1:{port}", place / "link"
    links.prepare(link, [])
    processes = [
        SupervisedProcess(
            "fedax.flower.link", options(folder=link, port=port, bind="127.0.0.1"), log=place / "link.log"
        )
    ]
    for k, clients in enumerate(np.array_split(np.arange(data.num_clients), nodes)):
        site = place / f"node-{k}"
        site.mkdir(parents=True, exist_ok=True)
        if not (site / "data").exists():
            FederatedData.from_clients([data.client(i) for i in clients]).save(site / "data")
        certificates.make_node_key(site / "key")
        shutil.copy(site / "key.pub", link / "nodes" / f"node-{k}.pub")
        arguments: Table = {"data": str((site / "data").absolute()), "state": str((site / "site").absolute())}
        arguments |= {"names": [str(i) for i in clients], "code": code}
        arguments |= {"roster": [str((link / "nodes").absolute()), str((site / "key").absolute())]}
        command = options(link=address, ca=link / "ca.pem", key=site / "key", state=site / "state", poll=0.25)
        command += options(factory=FACTORY, arguments=json.dumps(arguments))
        processes.append(SupervisedProcess("fedax.flower.node", command, log=site / "node.log"))
    with _supervised(processes):
        _wait_until(lambda: certificates.connection_problem(address, link / "ca.pem"), "the link", place / "link.log")
        with fleet_at(address, link, timeout, nodes, say, _START) as fleet:
            known = Census.of(data)  # nodes call the clients by their numbers
            fleet.census = fleet.census._replace(
                weights=data.weights,
                names=known.names or fleet.census.names,
                transform=known.transform,
                overview=known.overview,
            )
            yield experiment.over(fleet)
    for k in range(nodes):
        shutil.move(place / f"node-{k}" / "site" / "log.jsonl", place / f"node-{k}.jsonl")
        shutil.rmtree(place / f"node-{k}")
    for each in (link, place / own.FOLDER):
        shutil.rmtree(each, ignore_errors=True)


def _copy_code(experiment: Experiment, place: pathlib.Path) -> list[str]:
    """The user's code that nodes on this machine may run: paths of copies of its files, and names of its modules."""
    place.mkdir(parents=True, exist_ok=True)
    sources = experiment.code.values()
    own.write(place, sources)
    return [code.name if code.module else str((place / own.FOLDER / code.name).absolute()) for code in sources]


def measured(experiment: Experiment) -> Experiment:
    """The same experiment; a pace needs no clock, as time is measured, and only the checks of a simulation ask for one.

    Args:
        experiment: that is to be deployed.
    """
    if "pace" not in experiment.options:
        return experiment
    return dataclasses.replace(experiment, options={"clock": Clock()} | experiment.options)


def check_local(experiment: Experiment, nodes: int) -> None:
    """Refuse what :func:`local_deployment` cannot do.

    Raises:
        ConfigError: Flower is not installed; more nodes than clients; other clients for each seed.
    """
    require()
    data = experiment.data
    if not 1 <= nodes <= data.num_clients:
        raise ConfigError("nodes", nodes, f"give 1 to {data.num_clients}: every node has a client")
    if experiment.config["run"]["split_seeds"] and "seed" in experiment.config["data"]:
        way_out = "each seed would deal the data set to other clients, and those of nodes have the data that they have"
        raise ConfigError("run.split_seeds", True, f"{way_out}; leave it out")


@contextlib.contextmanager
def _supervised(processes: Sequence[SupervisedProcess]) -> Iterator[None]:
    """Start processes, and start each again when it ends, until the context is left."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.2):
            for process in processes:
                process.ended()
                if process.due:
                    process.start()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        for supervised in processes:
            if supervised.process is not None:
                supervised.process.terminate()  # all at once
        for supervised in processes:
            supervised.stop()


def _wait_until(reason: Callable[[], str | None], what: str, log: pathlib.Path) -> None:
    end = time.monotonic() + _START
    while (why := reason()) is not None:
        if time.monotonic() > end:
            raise NodeError(f"{what} does not come up ({why}); see {log}")
        time.sleep(0.2)


def run_on_ray(experiment: Experiment, folder: pathlib.Path, timeout: float, say: Say) -> None:
    """Run an experiment in Flower's simulation: every client is a separate node, simulated by a Ray actor.

    A process started by Flower writes the run to its folder.

    Args:
        experiment: with its data; its run has begun in ``folder`` or begins there.
        folder, timeout, say: as of :func:`local_deployment`.

    Raises:
        ConfigError: Ray is not installed, or the run needs nodes whose processes last.
        NodeError: the run ended with an error.
    """
    require()
    if (secure := experiment.config["run"].get("secure")) is not None:
        way_out = "masks of an exchange live in the process of a node, and Ray's come and go; leave --ray out"
        raise ConfigError("run.secure", secure, way_out)
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("ray", None, "Flower's simulation needs it: pip install 'flwr[simulation]==1.41.0'")
    from flwr.common.serde import fab_to_proto, user_config_to_proto
    from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest
    from flwr.proto.federation_config_pb2 import SimulationConfig
    from flwr.supercore.fab import Fab

    from fedax.flower.app import build
    from fedax.flower.calls import control

    data, place, port = experiment.undealt(), folder / "deploy", free_port()
    place.mkdir(exist_ok=True)
    if not (place / "data").exists():
        data.save(place / "data")
    job: Table = {"code": _copy_code(experiment, place)}
    job |= {"config": experiment.config, "data": str((place / "data").absolute()), "timeout": timeout}
    job |= {"state": str((place / "state").absolute()), "folder": str(folder.absolute())}
    arguments = options(insecure=True, simulation=True, host="127.0.0.1", port=port, database=place / "link.db")
    arguments += ["--disable-runtime-dependency-installation"]
    environment = {"FLWR_HOME": str((place / "flwr").absolute()), "FLWR_LOG_LEVEL": "WARNING"}
    # Flower calls its own commands by their names.
    environment["PATH"] = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", "")])
    link = SupervisedProcess("fedax.flower.superlink", arguments, log=place / "ray.log", environment=environment)
    with _supervised([link]):
        _wait_until(lambda: _refuses(port), "Flower's SuperLink", place / "ray.log")
        calls = control(f"127.0.0.1:{port}", None, "")
        fab = build()
        request = StartRunRequest(
            fab=fab_to_proto(Fab(hashlib.sha256(fab).hexdigest(), fab, {})),
            override_config=user_config_to_proto({"job": json.dumps(job)}),
            override_federation_config=SimulationConfig(num_supernodes=data.num_clients, client_resources_num_cpus=1),
        )
        number = calls.StartRun(request).run_id
        say(f"{data.num_clients} clients in Flower's simulation; its log is {place / 'ray.log'}")
        while (run := calls.ListRuns(ListRunsRequest(run_id=number)).run_dict[number]).status.status != "finished":
            time.sleep(0.5)
        calls.close()
        if run.status.sub_status != "completed":
            raise NodeError(f"Flower's simulation ended with: {run.status.details or run.status.sub_status}")
    shutil.rmtree(place)


def _refuses(port: int) -> str | None:
    """Why nobody listens at a port of this machine, or ``None``."""
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError as error:
        return str(error)
    return None


_SITES: dict[tuple[str, int], Site] = {}


def ray_node(context: Any) -> Callable[[Message], Message]:
    """The answering function of a node of Flower's simulation, which has one client."""
    job = json.loads(str(context.run_config["job"]))
    which = int(context.node_config["partition-id"])
    if (job["data"], which) not in _SITES:
        data = FederatedData.open(job["data"])
        one = FederatedData.from_clients([data.client(which)])
        make = functools.partial(make_problem, code=job["code"])
        _SITES[job["data"], which] = Site(one, make, pathlib.Path(job["state"]) / str(which), [str(which)])
        _SITES[job["data"], which].close()
    site = _SITES[job["data"], which]

    def answer(message: Message) -> Message:
        site.open()  # the next message may come to another process
        try:
            return site.answer(message)
        finally:
            site.close()

    return answer


def serve(grid: Any, run_config: Mapping[str, Any]) -> None:
    """Run the experiment of a run of Flower's simulation; its folder is there already."""
    from fedax.experiments import build, execute
    from fedax.flower.transport import FlowerTransport

    job = json.loads(str(run_config["job"]))
    # The files are copies, made by the process that started this one.
    experiment = build(job["config"], allow_code=own.here(job["code"]))
    data = experiment.undealt()
    fleet = Fleet(FlowerTransport(grid), float(job["timeout"]), data.num_clients, _START)
    fleet.census = fleet.census._replace(weights=data.weights)
    execute(experiment.over(fleet), pathlib.Path(job["folder"]))
