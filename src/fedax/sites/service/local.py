"""Deployments on this machine, to try one: a link and nodes as processes."""

import contextlib
import dataclasses
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import tomli_w

from fedax.data import FederatedData
from fedax.errors import ConfigError, NodeError
from fedax.experiments import own
from fedax.experiments.config.experiment import Experiment
from fedax.federation.census import Census
from fedax.federation.clock import Clock
from fedax.sites.service import require
from fedax.sites.service.deploy import Say, fleet_at
from fedax.sites.service.processes import SupervisedProcess, free_port

_START = 120.0  # seconds in which the processes of a local deployment have to be there


@contextlib.contextmanager
def local_deployment(
    experiment: Experiment, folder: Path, nodes: int, timeout: float, say: Say
) -> Iterator[Experiment]:
    """Deploy an experiment on this machine: a link and nodes as local processes, for as long as the context lasts.

    Each is a separate process, with TLS and keys made for it; a node is ``fedax deploy node`` with a ``node.toml``.
    Their files are in ``folder/deploy``; after a run without an error the nodes' logs and the clients' own models
    remain.

    Args:
        experiment: with its data, which are distributed among the nodes.
        folder: of the run.
        nodes: how many, 1 to N.
        timeout: as of :class:`Fleet`.
        say: is called with lines for people.

    Raises:
        NodeError: the processes do not come up.
    """
    from fedax.sites.service import certificates
    from fedax.sites.service import link as links

    data, place, port = experiment.undealt(), (folder / "deploy").absolute(), free_port()
    address, link = f"127.0.0.1:{port}", place / "link"
    links.prepare(link, [])
    own.write(place, experiment.code.values())
    code = [each.name if each.module else str(place / own.FOLDER / each.name) for each in experiment.code.values()]
    given = ["deploy", "link", f"--folder={link}", f"--port={port}", "--host=127.0.0.1", "--bind=127.0.0.1"]
    processes = [SupervisedProcess("fedax", given, log=place / "link.log")]
    for k, clients in enumerate(np.array_split(np.arange(data.num_clients), nodes)):
        site = place / f"node-{k}"
        site.mkdir(exist_ok=True)
        if not (site / "data").exists():
            FederatedData.from_clients([data.client(i) for i in clients]).save(site / "data")
        certificates.make_node_key(site / "key")
        shutil.copy(site / "key.pub", link / "nodes" / f"node-{k}.pub")
        settings = {"data": "data", "key": "key", "state": "state", "clients": [str(i) for i in clients]}
        settings |= {"link": address, "ca": "../link/ca.pem", "roster": "../link/nodes"}
        file = site / "node.toml"
        file.write_text(tomli_w.dumps(settings | {"policy": {"runs": {"code": code}}}), encoding="utf-8")
        processes.append(SupervisedProcess("fedax", ["deploy", "node", str(file)], log=site / "node.log"))
    with _supervised(processes):
        end = time.monotonic() + _START
        while (why := certificates.connection_problem(address, link / "ca.pem")) is not None:
            if time.monotonic() > end:
                raise NodeError(f"the link does not come up ({why}); see {place / 'link.log'}")
            time.sleep(0.2)
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
        site = place / f"node-{k}" / "state" / "site"
        shutil.move(site / "log.jsonl", place / f"node-{k}.jsonl")
        if (site / "models").exists():
            shutil.copytree(site / "models", place / "models", dirs_exist_ok=True)
        shutil.rmtree(place / f"node-{k}")
    for each in (link, place / own.FOLDER):
        shutil.rmtree(each, ignore_errors=True)


def prepared(experiment: Experiment, nodes: int) -> Experiment:
    """The experiment as :func:`local_deployment` takes it: time is measured, so that a pace needs no clock.

    Raises:
        ConfigError: a package is missing; more nodes than clients; other clients for each seed.
    """
    require()
    data = experiment.data
    if not 1 <= nodes <= data.num_clients:
        raise ConfigError("nodes", nodes, f"give 1 to {data.num_clients}: every node has a client")
    if experiment.config["run"]["split_seeds"] and "seed" in experiment.config["data"]:
        hint = "each seed would deal the data set to other clients, and those of nodes have the data that they have"
        raise ConfigError("run.split_seeds", True, f"{hint}; leave it out")
    if "pace" not in experiment.options:
        return experiment
    return dataclasses.replace(experiment, options={"clock": Clock()} | experiment.options)


@contextlib.contextmanager
def _supervised(processes: Sequence[SupervisedProcess]) -> Iterator[None]:
    """Start processes, and start each again when it ends, until the context is left."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.2):
            for process in processes:
                process.keep()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        with ThreadPoolExecutor(len(processes)) as pool:  # all at once
            list(pool.map(SupervisedProcess.stop, processes))
