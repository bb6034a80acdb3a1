"""Experiments over nodes: the answering function of a node, and what ``fedax deploy run`` adds to ``fedax run``."""

import contextlib
import functools
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pydantic

from fedax.data import FederatedData, Overview, Transform, summarize
from fedax.data.tables import TABLES, read_table, stem
from fedax.errors import ConfigError, DataError, unknown
from fedax.experiments import own
from fedax.experiments.config.experiment import check_settings, problem_of
from fedax.experiments.config.sections import Section, Table, clear
from fedax.experiments.defaults import TASKS_OF
from fedax.files import name_of
from fedax.sites.protocol.agreement import Made
from fedax.sites.protocol.fleet import Fleet
from fedax.sites.protocol.messages import Message, Transport
from fedax.sites.protocol.policy import Policy
from fedax.sites.protocol.policy import read_table as read_toml
from fedax.sites.protocol.roster import Roster
from fedax.sites.protocol.site import Site
from fedax.sites.protocol.tables import Decision, Desk, decide
from fedax.sites.service import require
from fedax.sites.service.status import Status

Say = Callable[[str], None]

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
        roster: the folder with the public keys of the nodes with which secure sums are made, and the file of this
            node's private key; ``None``: no secure sums.

    Raises:
        ConfigError, DataError: these cannot be used.
    """
    held = [None if folder is None else FederatedData.open(folder).examples for folder in (test, val)]
    rules, known = Policy.of(policy or {}), None if roster is None else Roster(*roster)
    for file in rules.code:
        own.owned(file)
    make = functools.partial(make_problem, code=tuple(rules.code))
    site = lambda federation: Site(federation, make, state, names, held[0], rules, held[1], known)  # noqa: E731
    if table is None:
        return site(FederatedData.open(data)).answer
    options = {"least": rules.rows, **table}
    rows = read_rows(Path(data), **options.pop("read"))
    say = functools.partial(print, flush=True)
    if how := rows.attrs.get("written"):
        say(f"{names[0]}: {data} is read as {how}")
    return Desk(rows, names[0], Path(state).parent, site, say=say, **options).answer


def read_rows(path: Path, decimal: str | None = None, encoding: str | None = None, drop: Sequence[str] = ()) -> Any:
    """A node's table, checked: every column of it can be summarised.

    Args:
        path: as of :func:`fedax.data.tables.read_table`.
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


class NodeSettings(Section):
    """All settings of a node: the keys of ``node.toml``.

    Attributes:
        data: its table, or the folder of its clients' arrays, as ``FederatedData.save`` writes it.
        key: the file of its private key, which is made where it is missing, with ``KEY.pub``.
        link: ``host:port``.
        socket: in place of a link, the Unix socket at which Flower's ClientApp asks.
        ca: the file ``ca.pem`` of the link's folder.
        policy: what its owner allows, the tables of :meth:`fedax.sites.protocol.policy.Policy.of`; or their file.
        roster: a folder with the public keys of all nodes with which this one makes secure sums, its own among them.
        clients: their names; default: those of the data, or the key's file name, of several with their numbers. A table
            is one client, called by its file.
        decimal, encoding, drop: of a table, as of :func:`read_rows`.
        drop_missing_labels, review: of a table, as of :class:`fedax.sites.protocol.tables.Desk`.
        test, val: folders of held-out examples, to report and to choose by.
        state: its folder; default: ``KEY.state``.
        wait: seconds to wait for a link that is gone; default: for ever.
        log_level, log_size, log_keep: as of :func:`fedax.files.rotate`, in place of its environment variables.
    """

    data: Path
    key: Path
    link: str | None = None
    socket: Path | None = None
    ca: Path = Path("ca.pem")
    policy: Table = pydantic.Field({})
    roster: Path | None = None
    clients: list[str] | None = None
    decimal: str | None = None
    encoding: str | None = None
    drop: list[str] = pydantic.Field([])
    drop_missing_labels: bool = False
    review: bool = False
    test: Path | None = None
    val: Path | None = None
    state: Path | None = None
    wait: pydantic.NonNegativeFloat | None = None
    log_level: Literal["error", "warning", "info"] = "warning"
    log_size: float = pydantic.Field(10.0, ge=0.01, strict=False)
    log_keep: int = pydantic.Field(5, ge=1, strict=False)

    @classmethod
    def read(cls, file: Path | None, typed: Table, rules: Mapping[str, Any]) -> "NodeSettings":
        """Read a file; what was typed, and the environment's variables of logs, count more.

        Args:
            file: ``node.toml``, to whose folder its paths are relative; ``None``: no file.
            typed: settings.
            rules: rules of the policy, by section and name, such as ``figures.noise``.

        Raises:
            ConfigError: the file or a setting cannot be used.
        """
        folder = Path() if file is None else file.parent
        table: Table = {}
        if file is not None:
            table = {"ca": "ca.pem"} | read_toml(file, "file", "give that of a node's settings")
            table |= {name: str(folder / table[name]) for name in _PATHS if isinstance(table.get(name), str)}
        table |= {name: os.environ[variable] for name, variable in _VARIABLES.items() if variable in os.environ} | typed
        rules = dict(rules)
        code = rules.pop("runs.code", [])  # beside what a policy allows
        if rules and "policy" in table:
            place, value = next(iter(rules.items()))
            raise ConfigError(place, value, "all rules of the owner are in the policy: give it there")
        if isinstance(where := table.get("policy"), str):
            folder, table["policy"] = Path(where).parent, read_toml(Path(where))
        for place, value in rules.items():
            section, _, rule = place.partition(".")
            table.setdefault("policy", {}).setdefault(section, {})[rule] = value
        try:
            settings = cls.model_validate_json(json.dumps(table, default=str))
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0])
            if first["type"] == "extra_forbidden":
                raise unknown(str(file), name, cls.model_fields) from None
            if first["type"] == "missing":
                raise ConfigError(name, None, f"this is missing; give --{name}, or {name} in node.toml") from None
            raise clear(first) from None
        owned = [str(folder / each) if each.endswith(".py") else each for each in Policy.of(settings.policy).code]
        if owned or code:
            settings.policy.setdefault("runs", {})["code"] = [*owned, *code]
        return settings


_PATHS = ("data", "key", "socket", "ca", "policy", "roster", "test", "val", "state")
_VARIABLES = {name: f"FEDAX_{name.upper()}" for name in ("log_level", "log_size", "log_keep")}


def node(settings: NodeSettings, say: Say = print) -> None:
    """Run a node until SIGINT, SIGTERM or SIGHUP.

    Args:
        settings: of the node.
        say: is called with lines for people.

    Raises:
        ConfigError, DataError, NodeError: something cannot be used, before anything is started; the node cannot work.
    """
    require()
    from fedax.sites.service import certificates
    from fedax.sites.service import node as nodes

    key, ca, roster, link = settings.key, settings.ca, settings.roster, settings.link or settings.socket
    if link is None or (settings.link and settings.socket):
        hint = "give --link, or --socket for a node of Flower's ClientApp, and not both"
        raise ConfigError("link", settings.link, hint)
    if isinstance(link, str):
        certificates.split(link)
        if not ca.is_file():
            raise ConfigError("ca", str(ca), "no such file; it is ca.pem of the link's folder, ask its coordinator")
    names, table = _clients(settings)
    for each in settings.policy.get("runs", {}).get("code", ()):
        say(f"may run here: {own.owned(each)}")
    if roster is not None:
        if not roster.is_dir():
            raise ConfigError("roster", str(roster), "no such folder; put KEY.pub of each node into it")
        certificates.make_node_key(key)
        known = Roster(roster, key)
        say(f"roster {known.digest}: secure sums with {', '.join(sorted(known.names.values()))}")
    os.environ.update({variable: str(getattr(settings, name)) for name, variable in _VARIABLES.items()})
    state = settings.state or key.with_name(f"{key.name}.state")
    arguments = {name: getattr(settings, name) for name in ("data", "test", "val", "policy")}
    arguments |= {"state": state.absolute() / "site", "names": names, "table": table}
    arguments["roster"] = None if roster is None else (roster, key)
    if settings.review and sys.stdin is not None and sys.stdin.isatty():
        threading.Thread(target=_listen, args=(state, say), daemon=True, name="review").start()
    nodes.run(link=link, ca=ca, key=key, state=state, factory=FACTORY, arguments=arguments, wait=settings.wait, say=say)


def _clients(settings: NodeSettings) -> tuple[list[str], Table | None]:
    """The names of a node's clients; and of a table, how it is read and the options of its desk.

    Raises:
        ConfigError, DataError: the data cannot be used, or not so.
    """
    data, key = settings.data, name_of(settings.key.name)
    read = {name: value for name in ("decimal", "encoding", "drop") if (value := getattr(settings, name))}
    desk = {name: True for name in ("review", "drop_missing_labels") if getattr(settings, name)}
    held = {name: folder for name in ("test", "val") if (folder := getattr(settings, name)) is not None}
    is_table = data.name.lower().endswith(TABLES)
    if is_table:
        read_rows(data, **read)
        for name, folder in held.items():
            raise ConfigError(name, str(folder), "rows of a table are held out by [data.split]; leave it out")
        count, usual = 1, [name_of(stem(data))]
    else:
        for name, value in {**read, **desk}.items():
            reason = f"this is for tables, such as .csv, and {data} is a folder of arrays"
            raise ConfigError(name, value, reason)
        here, *_ = [FederatedData.open(folder) for folder in (data, *held.values())]
        count = here.num_clients
        usual = list(here.names or ([key] if count == 1 else [f"{key}-{i}" for i in range(count)]))
    names = settings.clients or usual
    if len({*names}) != count or not all(name.strip() and name.isprintable() for name in names):
        raise ConfigError("clients", names, f"there are {count} clients in {data}; give each its own name")
    return names, {"read": read, **desk} if is_table else None


def _listen(state: Path, say: Say) -> None:
    """Read from the node's terminal whether the owner lets summaries leave."""
    for line in sys.stdin:
        word, _, why = line.strip().partition(" ")
        if word.lower() not in ("yes", "no"):
            say("type yes, or no and why")
            continue
        decision = Decision(word.lower() == "yes", why.strip())
        decided = decide(state, *decision)
        for told in [decision_line(file, decision) for file in decided] or ["nothing waits"]:
            say(told)


def decision_line(file: Path, decision: Decision | None) -> str:
    """The owner's decision on a summary, as a line for people."""
    if decision is None:
        return f"{file}: waits"
    why = f": {decision.why}" if decision.why else ""
    return f"{file}: may leave" if decision.yes else f"{file}: does not leave{why}"


def with_nodes_data(tables: Table, test: Path | None, allow_code: bool | own.Code = False) -> Table:
    """A configuration with its section ``data``, which is for simulation, replaced by data at nodes.

    Kept are the task that is usual for the data set, the weights, and the split of each client's rows. The share for
    testing is left out if the server has a folder for that.

    Raises:
        ConfigError: something else in it cannot be used.
    """
    given = tables.get("data")
    given = given if isinstance(given, dict) else {}
    usual = TASKS_OF.get(str(given.get("name")))
    task = ({} if usual is None else {"name": usual}) | dict(tables.get("task", {}))
    data: Table = {"name": "nodes", "weights": given.get("weights", "sizes")}
    if (split := given.get("split")) is not None:
        # Without a split for testing, those rows stay with training.
        apart = () if test is None else ("test", "train")
        data["split"] = {k: v for k, v in split.items() if k not in apart} if isinstance(split, dict) else split
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
    link: str, folder: Path, timeout: float, nodes: int | None, say: Say, wait: float = 60.0
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


def _agreed(folder: Path, transform: Transform | None) -> Overview | None:
    """The overview that `fedax deploy tables` showed, if the nodes have the transform that it led to."""
    made, seen = (folder / "tables" / name for name in ("transform.json", "overview.json"))
    if transform is None or not (made.is_file() and seen.is_file()):
        return None
    return Overview.load(seen) if Transform.load(made).digest == transform.digest else None


@contextlib.contextmanager
def transport_at(link: str, folder: Path, say: Say, command: str = "run") -> Iterator[Transport]:
    """A transport to the nodes at a link, for as long as the context lasts.

    Args:
        link, folder, say: as of :func:`fleet_at`.
        command: as of :class:`Status`, which ``fedax deploy status`` shows.

    Raises:
        ConfigError, NodeError: the link cannot be used.
    """
    require()
    from fedax.sites.service import transport

    with transport.connect(link, folder, say) as carrier, Status(folder, link, carrier, command) as status:
        yield status
