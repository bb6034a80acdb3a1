"""Experiments over nodes: the answering function of a node, and what ``fedax deploy run`` adds to ``fedax run``."""

import contextlib
import functools
import json
import pathlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fedax.data import FederatedData, Overview, Transform, summarize
from fedax.data.tables import TABLES, read_table, stem
from fedax.errors import ConfigError, DataError
from fedax.experiments import own
from fedax.experiments.config.experiment import check_settings, problem_of
from fedax.experiments.defaults import TASKS_OF
from fedax.files import name_of
from fedax.sites.protocol.agreement import Made
from fedax.sites.protocol.fleet import Fleet
from fedax.sites.protocol.messages import Message, Transport
from fedax.sites.protocol.policy import Policy
from fedax.sites.protocol.roster import Roster
from fedax.sites.protocol.site import Site
from fedax.sites.protocol.tables import Decision, Desk, decide
from fedax.sites.service import require
from fedax.sites.service.status import Status

Say = Callable[[str], None]
Table = dict[str, Any]

FACTORY = "fedax.sites.service.deploy:answering"


@functools.lru_cache(maxsize=64)
def _problem(text: str, code: tuple[str, ...]) -> Made:
    """The problem of a configuration, cached so that its programs are compiled once."""
    return problem_of(json.loads(text), code)


def make_problem(table: Table, code: Sequence[str] = ()) -> Made:
    """The problem that a site works on, from the tables of a configuration; ``code``: the user's code that may run."""
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
    """The answering function for the clients of a node, in the process of its worker.

    Args:
        data: the folder of their examples, as ``FederatedData.save`` writes it; or a client's table.
        state: a folder for what outlives the process.
        names: of the clients, in the order of ``data``.
        table: of a table, how it is read (:func:`read_rows`), and the options of
            :class:`fedax.sites.protocol.tables.Desk`.
        test: the folder of held-out examples, or ``None``.
        val: the same of those to choose by.
        policy: what the node's owner allows, the tables of :meth:`fedax.sites.protocol.policy.Policy.of`.
        code: files, and modules of packages, of methods and tasks that may run here.
        roster: the folder with the public keys of the nodes with which secure sums are made, and the file of this
            node's private key; ``None``: no secure sums.

    Raises:
        ConfigError, DataError: these cannot be used.
    """
    held = [None if folder is None else FederatedData.open(folder).examples for folder in (test, val)]
    for file in code:
        own.owned(file)
    make = functools.partial(make_problem, code=code)
    rules, known = Policy.of(policy or {}), None if roster is None else Roster(*roster)
    site = lambda federation: Site(federation, make, state, names, held[0], rules, held[1], known)  # noqa: E731
    if table is None:
        return site(FederatedData.open(data)).answer
    options = {"least": rules.rows, **table}
    rows = read_rows(pathlib.Path(data), **options.pop("read"))
    say = functools.partial(print, flush=True)
    if how := rows.attrs.get("written"):
        say(f"{names[0]}: {data} is read as {how}")
    return Desk(rows, names[0], pathlib.Path(state).parent, site, say=say, **options).answer


def read_rows(
    path: pathlib.Path, decimal: str | None = None, encoding: str | None = None, drop: Sequence[str] = ()
) -> Any:
    """A node's table, checked: every column of it can be summarised.

    Args:
        path: a .csv, .xlsx or .parquet file.
        decimal, encoding: as of :func:`fedax.data.from_csv`.
        drop: columns that are not used, and of which nothing leaves.

    Raises:
        ConfigError, DataError: it cannot be used.
    """
    rows = read_table(path, decimal, encoding, drop=drop)
    if not len(rows.columns):
        raise DataError(f"{path}: no column is left")
    summarize(rows, least=1)  # here, to see that it can be
    return rows


def node(
    link: str | None,
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
    code: Sequence[str] = (),
    wait: float | None = None,
    socket: pathlib.Path | None = None,
    say: Say = print,
) -> None:
    """Run a node until SIGINT, SIGTERM or SIGHUP.

    Args:
        link, ca, key, wait, socket, say: as of :func:`fedax.sites.service.node.run`.
        data, test, val, policy, code: as of :func:`answering`.
        roster: a folder with the public keys of all nodes with which this one makes secure sums, its own among them.
        state: its folder; default: ``<key>.state``.
        names: of its clients; default: those of the data, or the key's file name, of several with their numbers. A
            table is one client, called by its file.
        table: options of a table: ``decimal``, ``encoding`` and ``drop`` as of :func:`read_rows`, ``review`` and
            ``drop_missing_labels`` as of :class:`fedax.sites.protocol.tables.Desk`.

    Raises:
        ConfigError, DataError, NodeError: something cannot be used, before anything is started; the node cannot work.
    """
    require()
    from fedax.sites.service import certificates
    from fedax.sites.service import node as nodes

    if (link is None) == (socket is None):
        raise ConfigError("link", link, "give --link, or --socket for a node of Flower's ClientApp, and not both")
    if link is not None:
        certificates.split(link)
    options = {name: value for name, value in (table or {}).items() if value}
    if data.name.lower().endswith(TABLES):
        read = {name: options.pop(name) for name in ("decimal", "encoding", "drop") if name in options}
        read_rows(data, **read)
        options, count, usual = {"read": read, **options}, 1, [name_of(stem(data))]
        for folder, field in ((test, "test"), (val, "val")):
            if folder is not None:
                raise ConfigError(field, str(folder), "rows of a table are held out by [data.split]; leave it out")
    else:
        if options:
            name, value = next(iter(options.items()))
            raise ConfigError(
                name, value, f"this is for tables, {', '.join(TABLES[:-1])}, and {data} is a folder of arrays"
            )
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
    if link is not None and not ca.is_file():
        raise ConfigError("ca", str(ca), "no such file; it is ca.pem of the link's folder, ask its coordinator")
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
        link=link, ca=ca, key=key, state=state, factory=FACTORY, arguments=arguments, wait=wait, socket=socket, say=say
    )


def _listen(state: pathlib.Path, say: Say) -> None:
    """Read from the node's terminal whether the owner lets summaries leave."""
    for line in sys.stdin:
        word, _, why = line.strip().partition(" ")
        if word.lower() not in ("yes", "no"):
            say("type yes, or no and why")
            continue
        yes = word.lower() == "yes"
        for file in (decided := decide(state, yes, why.strip())):
            say(decision_line(file, Decision(yes, why.strip())))
        if not decided:
            say("nothing waits")


def decision_line(file: pathlib.Path, decision: Decision | None) -> str:
    """The owner's decision on a summary, as a line for people."""
    if decision is None:
        return f"{file}: waits"
    return f"{file}: " + (
        "may leave" if decision.yes else f"does not leave{f': {decision.why}' if decision.why else ''}"
    )


def with_nodes_data(tables: Table, test: pathlib.Path | None, allow_code: bool | own.Code = False) -> Table:
    """A configuration with its section ``data``, which is for simulation, replaced by data at nodes.

    Kept are the task that is usual for the data set, the weights, and the split of each client's rows. The share for
    testing is left out if the server has a folder for that.

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
        # Without a split for testing, those rows stay with training.
        apart = () if test is None else ("test", "train")
        data["split"] = {name: value for name, value in split.items() if name not in apart}
    elif split is not None:
        data["split"] = split
    if test is not None:
        FederatedData.open(test)
        data["test"] = str(test.absolute())
    elif given.get("name") == "nodes" and "test" in given:
        data["test"] = given["test"]
    configuration = {**tables, "data": data, "task": task}
    check_settings(configuration, allow_code)
    return configuration


@contextlib.contextmanager
def fleet_at(
    link: str, folder: pathlib.Path, timeout: float, nodes: int | None, say: Say, wait: float = 60.0
) -> Iterator[Fleet]:
    """The nodes at a link, for as long as the context lasts.

    Args:
        link: ``host:port``.
        folder: the link's, with ``ca.pem``, ``secret`` and ``nodes``.
        timeout, nodes, wait: as of :class:`Fleet`.
        say: is called with lines for people.

    Raises:
        ConfigError, NodeError: the link cannot be used, or its nodes do not fit together.
    """
    with transport_at(link, folder, say) as carrier:
        fleet = Fleet(carrier, timeout, nodes, wait)
        census = fleet.census
        say(f"{len(fleet)} nodes with {census.num_clients} clients and {int(census.sizes.sum())} examples")
        fleet.census = census._replace(overview=_agreed(folder, census.transform))
        yield fleet


def _agreed(folder: pathlib.Path, transform: Transform | None) -> Overview | None:
    """The overview that `fedax deploy tables` showed, if the nodes have the transform that it led to."""
    made, seen = (folder / "tables" / name for name in ("transform.json", "overview.json"))
    if transform is None or not (made.is_file() and seen.is_file()):
        return None
    return Overview.load(seen) if Transform.load(made).digest == transform.digest else None


@contextlib.contextmanager
def transport_at(link: str, folder: pathlib.Path, say: Say, command: str = "run") -> Iterator[Transport]:
    """A transport to the nodes at a link, for as long as the context lasts.

    Args:
        link, folder, say: as of :func:`fleet_at`.
        command: as of :class:`Status`, which ``fedax deploy status`` shows.

    Raises:
        ConfigError, NodeError: the link cannot be used.
    """
    require()
    from fedax.sites.service import transport

    with (
        transport.connect(link, folder, say) as carrier,
        Status(folder, link, carrier, command) as status,
    ):
        yield status
