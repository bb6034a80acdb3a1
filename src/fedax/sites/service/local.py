"""Deployments on this machine, to try one: a link and nodes as processes."""

import contextlib
import dataclasses
import json
import pathlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from fedax.data import FederatedData
from fedax.errors import ConfigError, NodeError
from fedax.experiments import own
from fedax.experiments.config.experiment import Experiment
from fedax.federation.census import Census
from fedax.federation.clock import Clock
from fedax.sites.service import require
from fedax.sites.service.deploy import FACTORY, Say, Table, fleet_at
from fedax.sites.service.processes import SupervisedProcess, free_port, options

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
    from fedax.sites.service import certificates
    from fedax.sites.service import link as links

    data, place, port = experiment.undealt(), folder / "deploy", free_port()
    code = _copy_code(experiment, place)
    address, link = f"127.0.0.1:{port}", place / "link"
    links.prepare(link, [])
    processes = [
        SupervisedProcess(
            "fedax.sites.service.link", options(folder=link, port=port, bind="127.0.0.1"), log=place / "link.log"
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
        command = options(link=address, ca=link / "ca.pem", key=site / "key", state=site / "state")
        command += options(factory=FACTORY, arguments=json.dumps(arguments))
        processes.append(SupervisedProcess("fedax.sites.service.node", command, log=site / "node.log"))
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
        ConfigError: a package is missing; more nodes than clients; other clients for each seed.
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
