"""Experiments over nodes: what the commands ``fedax deploy run`` and ``fedax deploy local`` add to ``fedax run``."""

import contextlib
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

from fedax.data import FederatedData, Overview, Transform, summarize
from fedax.data.tables import read_table
from fedax.engine.places.fleet import Fleet
from fedax.engine.places.nodes import Message, Transport
from fedax.engine.places.policy import Policy
from fedax.engine.places.roster import Roster
from fedax.engine.places.site import Problem, Site
from fedax.engine.places.tables import Desk, Said, decide
from fedax.errors import ConfigError, DataError, NodeError
from fedax.experiments import own
from fedax.experiments.config.experiment import Experiment, check_settings, problem_of
from fedax.experiments.defaults import TASKS_OF
from fedax.federation.census import Census
from fedax.files import name_of
from fedax.flower import require
from fedax.flower.processes import Kept, free_port, options
from fedax.flower.status import Status

Say = Callable[[str], None]
Table = dict[str, Any]

_START = 120.0  # seconds in which the processes of a local deployment have to be there
_FACTORY = "fedax.flower.deploy:answering"


@functools.lru_cache(maxsize=64)
def _problem(text: str, code: tuple[str, ...]) -> Problem:
    """One object for one configuration, so that its programs are compiled once."""
    return problem_of(json.loads(text), code)


def _make(table: Table, code: Sequence[str] = ()) -> Problem:
    return _problem(json.dumps(table, sort_keys=True), tuple(code))


def answering(
    data: str,
    state: str,
    names: Sequence[str],
    table: Table | None = None,
    test: str | None = None,
    val: str | None = None,
    policy: Table | None = None,
    code: Sequence[str] = (),
    roster: tuple[str, str] | None = None,
) -> Callable[[Message], Message]:
    """What answers for the clients of a node, in the process of its worker.

    Args:
        data: the folder of their examples, as ``FederatedData.save`` writes it; or a client's table.
        state: a folder for what outlives the process.
        names: of the clients, in the order of ``data``.
        table: of a table, how it is read (:func:`read_rows`), and the options of
            :class:`fedax.engine.places.tables.Desk`.
        test: the folder of held-out examples, or ``None``.
        val: the same of those to choose by.
        policy: what the node's owner allows, the tables of :meth:`fedax.engine.places.policy.Policy.of`.
        code: files, and modules of packages, of methods and tasks that may run here.
        roster: the folder with the public keys of the nodes with which secure sums are made, and the file of this
            node's private key; ``None``: no secure sums.

    Raises:
        ConfigError, DataError: these cannot be used.
    """
    held = [None if folder is None else FederatedData.open(folder).examples for folder in (test, val)]
    for each in code:
        own.owned(each)
    make = functools.partial(_make, code=code)
    rules, known = Policy.of(policy or {}), None if roster is None else Roster(*roster)
    site = lambda found: Site(found, make, state, names, held[0], rules, held[1], known)  # noqa: E731
    if table is None:
        return site(FederatedData.open(data)).answer
    options = dict(table)
    rows = read_rows(pathlib.Path(data), **options.pop("read"))
    say = functools.partial(print, flush=True)
    return Desk(rows, names[0], pathlib.Path(state).parent, site, say=say, **options).answer


def read_rows(path: pathlib.Path, decimal: str = ".", encoding: str = "utf-8", drop: Sequence[str] = ()) -> Any:
    """A node's table, checked: every column of it can be summarised.

    Args:
        path: a .csv or .parquet file.
        decimal, encoding: as of :func:`fedax.data.from_csv`.
        drop: columns that are not used, and of which nothing leaves.

    Raises:
        ConfigError, DataError: it cannot be used.
    """
    if decimal not in (".", ","):
        raise ConfigError("decimal", decimal, 'give "." or ","')
    rows = read_table(path, decimal, encoding, drop=drop)
    if not len(rows.columns):
        raise DataError(f"{path}: no column is left")
    summarize(rows)
    return rows


def node(
    link: str,
    ca: pathlib.Path,
    key: pathlib.Path,
    data: pathlib.Path,
    *,
    state: pathlib.Path | None = None,
    names: Sequence[str] | None = None,
    table: Table | None = None,
    test: pathlib.Path | None = None,
    val: pathlib.Path | None = None,
    policy: Table | None = None,
    roster: pathlib.Path | None = None,
    trusted: Sequence[str] = (),
    code: Sequence[str] = (),
    poll: float = 3.0,
    wait: float | None = None,
    say: Say = print,
) -> None:
    """Run a node until SIGINT, SIGTERM or SIGHUP.

    Args:
        link, ca, key, trusted, poll, wait, say: as of :func:`fedax.flower.node.run`.
        data, test, val, policy, code: as of :func:`answering`.
        roster: a folder with the public keys of all nodes with which this one makes secure sums, its own among them.
        state: its folder; default: ``<key>.state``.
        names: of its clients; default: those of the data, or the key's file name, of several with their numbers. A
            table is one client, called by its file.
        table: options of a table: ``decimal``, ``encoding`` and ``drop`` as of :func:`read_rows`, ``review`` and
            ``drop_missing_labels`` as of :class:`fedax.engine.places.tables.Desk`.

    Raises:
        ConfigError, DataError, NodeError: something cannot be used, before anything is started; the node cannot work.
    """
    require()
    from fedax.flower import certificates
    from fedax.flower import node as nodes

    certificates.split(link)
    options = {name: value for name, value in (table or {}).items() if value}
    if data.suffix in (".csv", ".parquet"):
        read = {name: options.pop(name) for name in ("decimal", "encoding", "drop") if name in options}
        read_rows(data, **read)
        options, count, usual = {"read": read, **options}, 1, [name_of(data.stem)]
        for folder, field in ((test, "test"), (val, "val")):
            if folder is not None:
                raise ConfigError(field, str(folder), "rows of a table are held out by [data.split]; leave it out")
    else:
        if options:
            name, value = next(iter(options.items()))
            raise ConfigError(name, value, f"this is for tables, .csv or .parquet, and {data} is a folder of arrays")
        here = FederatedData.open(data)
        count = here.num_clients
        usual = [name_of(key.name)] if count == 1 else [f"{name_of(key.name)}-{i}" for i in range(count)]
        usual = list(here.names or usual)
    given = list(names or usual)
    if len({*given}) != count or not all(name.strip() and name.isprintable() for name in given):
        raise ConfigError("clients", given, f"there are {count} clients in {data}; give each its own name")
    for folder in (test, val):
        if folder is not None:
            FederatedData.open(folder)
    Policy.of(policy or {})
    for each in code:
        say(f"may run here: {own.owned(each)}")
    if roster is not None:
        certificates.make_node_key(key)
        known = Roster(roster, key)
        say(f"roster {known.digest}: secure sums with {', '.join(sorted(known.names.values()))}")
    for path, field in ((ca, "ca"),):
        if not path.is_file():
            raise ConfigError(field, str(path), "no such file; it is ca.pem of the link's folder, ask its coordinator")
    state = key.with_name(f"{key.name}.state") if state is None else state
    arguments = {
        "data": str(data.absolute()),
        "state": str((state / "site").absolute()),
        "names": given,
        "table": options or None,
        "test": None if test is None else str(test.absolute()),
        "val": None if val is None else str(val.absolute()),
        "policy": policy,
        "roster": None if roster is None else [str(roster.absolute()), str(key.absolute())],
        "code": [str(pathlib.Path(each).absolute()) if each.endswith(".py") else each for each in code],
    }
    if options.get("review") and sys.stdin is not None and sys.stdin.isatty():
        threading.Thread(target=_listen, args=(state, say), daemon=True, name="review").start()
    nodes.run(
        link=link, ca=ca, key=key, state=state, factory=_FACTORY, arguments=arguments,
        poll=poll, trusted=trusted, wait=wait, say=say,
    )  # fmt: skip


def _listen(state: pathlib.Path, say: Say) -> None:
    """What the owner types at the node's terminal: whether summaries may leave."""
    for line in sys.stdin:
        word, _, why = line.strip().partition(" ")
        if word.lower() not in ("yes", "no"):
            say("type yes, or no and why")
            continue
        yes = word.lower() == "yes"
        for file in (found := decide(state, yes, why.strip())):
            say(spoken(file, Said(yes, why.strip())))
        if not found:
            say("nothing waits")


def spoken(file: pathlib.Path, said: Said | None) -> str:
    """What the owner of a node said of a summary, as a line for people."""
    if said is None:
        return f"{file}: waits"
    return f"{file}: " + ("may leave" if said.yes else f"does not leave{f': {said.why}' if said.why else ''}")


def with_nodes_data(tables: Table, test: pathlib.Path | None, allow_code: bool | own.Code = False) -> Table:
    """A configuration whose data are at nodes; its section ``data`` was for simulation.

    The task that is usual for the data set stays, the weights, and how the rows of each client are split: but for the
    share for testing where the server has a folder for that.

    Raises:
        ConfigError: something else in it cannot be used.
    """
    given = tables.get("data", {})
    given = given if isinstance(given, dict) else {}
    task = dict(tables.get("task", {}))
    if "name" not in task and (usual := TASKS_OF.get(str(given.get("name")))) is not None:
        task["name"] = usual
    data: Table = {"name": "nodes", "weights": given.get("weights", "sizes")}
    if isinstance(split := given.get("split"), dict):
        # What the test part would have had stays with training.
        apart = () if test is None else ("test", "train")
        data["split"] = {name: value for name, value in split.items() if name not in apart}
    elif split is not None:
        data["split"] = split
    if test is not None:
        FederatedData.open(test)
        data["test"] = str(test.absolute())
    elif given.get("name") == "nodes" and "test" in given:
        data["test"] = given["test"]
    found = {**tables, "data": data, "task": task}
    check_settings(found, allow_code)
    return found


@contextlib.contextmanager
def fleet_at(
    link: str, folder: pathlib.Path, timeout: float, nodes: int | None, say: Say, wait: float = 60.0
) -> Iterator[Fleet]:
    """The nodes at a link, for as long as the context lasts.

    Args:
        link: ``host:port``.
        folder: the link's, with ``ca.pem`` and ``secret``.
        timeout, nodes, wait: as of :class:`Fleet`.
        say: is called with lines for people.

    Raises:
        ConfigError, NodeError: the link cannot be used, or its nodes do not fit together.
    """
    with transport_at(link, folder, say) as there:
        fleet = Fleet(there, timeout, nodes, wait)
        census = fleet.census
        say(f"{len(fleet)} nodes with {census.num_clients} clients and {int(census.sizes.sum())} examples")
        fleet.census = census._replace(overview=_agreed(folder, census.transform))
        yield fleet


def _agreed(folder: pathlib.Path, transform: Transform | None) -> Overview | None:
    """The columns that `fedax deploy tables` showed, where the nodes have the transform that came of it."""
    made, seen = (folder / "tables" / name for name in ("transform.json", "overview.json"))
    if transform is None or not (made.is_file() and seen.is_file()):
        return None
    return Overview.load(seen) if Transform.load(made).digest == transform.digest else None


@contextlib.contextmanager
def transport_at(link: str, folder: pathlib.Path, say: Say, command: str = "run") -> Iterator[Transport]:
    """Carries messages to the nodes at a link, for as long as the context lasts.

    Args:
        link, folder, say: as of :func:`fleet_at`.
        command: as of :class:`Status`, which ``fedax deploy status`` shows.

    Raises:
        ConfigError, NodeError: the link cannot be used.
    """
    require()
    from fedax.flower import transport
    from fedax.flower.calls import secret_of

    with (
        transport.connect(link, folder / "ca.pem", secret_of(folder), say=say) as there,
        Status(folder, link, there, command) as status,
    ):
        yield status


@contextlib.contextmanager
def local(experiment: Experiment, folder: pathlib.Path, nodes: int, timeout: float, say: Say) -> Iterator[Experiment]:
    """An experiment on clients behind a link and nodes on this machine, for as long as the context lasts.

    All of them are processes of their own, with TLS and keys made for them; what they need is in ``folder/deploy``, and
    of a run that ended without an error only the nodes' logs stay.

    Args:
        experiment: with its data, which are dealt to the nodes.
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
    code = _kept(experiment, place)
    address, link = f"127.0.0.1:{port}", place / "link"
    links.prepare(link, [])
    kept = [Kept("fedax.flower.link", options(folder=link, port=port, bind="127.0.0.1"), log=place / "link.log")]
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
        command += options(factory=_FACTORY, arguments=json.dumps(arguments))
        kept.append(Kept("fedax.flower.node", command, log=site / "node.log"))
    with _running(kept):
        _await(lambda: certificates.greet(address, link / "ca.pem"), "the link", place / "link.log")
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


def _kept(experiment: Experiment, place: pathlib.Path) -> list[str]:
    """What nodes on this machine may run of own code: copies of the files, and modules."""
    place.mkdir(parents=True, exist_ok=True)
    own.write(place, experiment.code.values())
    kept = experiment.code.values()
    return [each.name if each.module else str((place / own.FOLDER / each.name).absolute()) for each in kept]


def check_local(experiment: Experiment, nodes: int) -> None:
    """Refuse what :func:`local` cannot do.

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
def _running(kept: Sequence[Kept]) -> Iterator[None]:
    """Keep processes running."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.2):
            for each in kept:
                each.ended()
                if each.due:
                    each.start()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        for each in kept:
            if each.process is not None:
                each.process.terminate()  # all at once
        for each in kept:
            each.stop()


def _await(reason: Callable[[], str | None], what: str, log: pathlib.Path) -> None:
    end = time.monotonic() + _START
    while (why := reason()) is not None:
        if time.monotonic() > end:
            raise NodeError(f"{what} does not come up ({why}); see {log}")
        time.sleep(0.2)


# ---- Flower's simulation


def on_ray(experiment: Experiment, folder: pathlib.Path, timeout: float, say: Say) -> None:
    """Run an experiment in Flower's simulation: every client is a node of its own, and an actor of Ray answers for it.

    The run is written to its folder by a process of Flower's.

    Args:
        experiment: with its data; its run has begun in ``folder`` or begins there.
        folder, timeout, say: as of :func:`local`.

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
    job: Table = {"code": _kept(experiment, place)}
    job |= {"config": experiment.config, "data": str((place / "data").absolute()), "timeout": timeout}
    job |= {"state": str((place / "state").absolute()), "folder": str(folder.absolute())}
    arguments = options(insecure=True, simulation=True, host="127.0.0.1", port=port, database=place / "link.db")
    arguments += ["--disable-runtime-dependency-installation"]
    environment = {"FLWR_HOME": str((place / "flwr").absolute()), "FLWR_LOG_LEVEL": "WARNING"}
    # Flower calls its own commands by their names.
    environment["PATH"] = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", "")])
    link = Kept("fedax.flower.superlink", arguments, log=place / "ray.log", environment=environment)
    with _running([link]):
        _await(lambda: _refuses(port), "Flower's SuperLink", place / "ray.log")
        calls = control(f"127.0.0.1:{port}", None, "")
        fab = build()
        asked = StartRunRequest(
            fab=fab_to_proto(Fab(hashlib.sha256(fab).hexdigest(), fab, {})),
            override_config=user_config_to_proto({"job": json.dumps(job)}),
            override_federation_config=SimulationConfig(num_supernodes=data.num_clients, client_resources_num_cpus=1),
        )
        number = calls.StartRun(asked).run_id
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
    """What answers for the one client of a node of Flower's simulation."""
    job = json.loads(str(context.run_config["job"]))
    which = int(context.node_config["partition-id"])
    if (job["data"], which) not in _SITES:
        data = FederatedData.open(job["data"])
        one = FederatedData.from_clients([data.client(which)])
        make = functools.partial(_make, code=job["code"])
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
    # The files are copies that the process has made that began this one.
    experiment = build(job["config"], allow_code=own.here(job["code"]))
    data = experiment.undealt()
    fleet = Fleet(FlowerTransport(grid), float(job["timeout"]), data.num_clients, _START)
    fleet.census = fleet.census._replace(weights=data.weights)
    execute(experiment.over(fleet), pathlib.Path(job["folder"]))
