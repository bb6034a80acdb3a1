"""What an app of Flower's computes: a run over the grid of a ServerApp, and answers of a ClientApp by itself."""

import functools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedax.data import FederatedData
from fedax.data.tables import TABLES, stem
from fedax.errors import ConfigError
from fedax.experiments import build, execute, read_toml
from fedax.experiments.runner import check_methods, run_folder, writing
from fedax.files import name_of, slug
from fedax.sites.protocol.fleet import Fleet
from fedax.sites.protocol.messages import Failure, Message
from fedax.sites.protocol.policy import Policy, read_table
from fedax.sites.protocol.site import Site
from fedax.sites.service.deploy import make_problem, with_nodes_data
from fedax.sites.service.flower import parts_of, recorded
from fedax.sites.service.messages import Answer, SentQuestion, Talking, opened

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid

_FIRST_LOOK, _LONGEST_LOOK = 0.05, 0.5  # seconds between looks for answers
_SPARE = 2.0  # seconds by which a message outlives the wait for its answer, so that this side gives up first


class GridTransport(Talking):
    """A ``fedax.sites.protocol.messages.Transport`` over the grid of a ServerApp.

    Args:
        grid: of Flower's.

    Attributes:
        sent, received: bytes of messages, without what Flower adds.
    """

    def __init__(self, grid: "Grid"):
        self._grid, self._pause = grid, _FIRST_LOOK
        self.sent = self.received = 0

    def nodes(self) -> list[int]:
        """The nodes that are there now, in ascending order."""
        return sorted(self._grid.get_node_ids())

    def send(
        self, questions: Sequence[SentQuestion], timeout: float, waiting: dict[str, SentQuestion]
    ) -> list[tuple[int, Answer]]:
        """Send messages, as of :class:`Talking`."""
        from flwr.app import Message as FlowerMessage

        failures: list[tuple[int, Answer]] = []
        for each in questions:
            request = FlowerMessage(recorded(each.parts), each.node, "query", ttl=timeout + _SPARE)
            if number := next(iter(self._grid.push_messages([request])), ""):
                self.sent += sum(map(len, each.parts))
                waiting[number] = each
            else:
                failures.append((each.node, Failure("the SuperLink does not take messages for this node", True)))
        self._pause = _FIRST_LOOK
        return failures

    def look(self, waiting: Mapping[str, SentQuestion], seconds: float) -> Sequence[tuple[str, Answer]]:
        """The answers that are there after a pause, as of :class:`Talking`."""
        time.sleep(min(self._pause, seconds))
        replies = list(self._grid.pull_messages([*waiting])) if waiting else []
        self._pause = _FIRST_LOOK if replies else min(1.3 * self._pause, _LONGEST_LOOK)
        return [(reply.metadata.reply_to_message_id, self._answer(reply)) for reply in replies]

    def _answer(self, reply: Any) -> Answer:
        if reply.has_error():  # of Flower's: what fedax could not answer is in the head of an answer
            return Failure((reply.error.reason or f"Flower's error {reply.error.code}").strip(), True)
        try:
            answer = opened(parts_of(reply.content))
        except ValueError as error:
            return Failure(str(error), False)
        self.received += answer.size
        return answer


def run(experiment: Path, transport: GridTransport, settings: Mapping[str, Any]) -> None:
    """Run an experiment as ``fedax deploy run`` does; ``settings``: the app's."""
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


def answer_here(experiment: Path, context: "Context", asked: Message) -> Message:
    """An answer of this process; between two of them the node's folder is free for the next one."""
    config = context.node_config
    if "data" in config:
        site = _site_of(*(str(config.get(name, "")) for name in ("data", "state", "clients", "policy")))
    elif "partition-id" in config:
        state = Path(str(context.run_config["runs"])) / "sites" / str(config["partition-id"])
        site = _simulated(experiment, int(config["partition-id"]), state)
    else:
        hint = "name what the node has: --node-config 'socket=\"PATH\"' or 'data=\"FOLDER\"'"
        raise ConfigError("node-config", dict(config), hint)
    site.open()
    try:
        return site.answer(asked)
    finally:
        site.close()


@functools.lru_cache(maxsize=64)
def _site_of(data: str, state: str, clients: str, policy: str) -> Site:
    """The site of a folder of arrays, closed."""
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
def _simulated(experiment: Path, which: int, state: Path) -> Site:
    """The site of one of the experiment's own clients, closed."""
    data = _clients(experiment)
    if which >= data.num_clients:
        hint = f"the experiment has {data.num_clients} clients: flwr run --federation-config 'num-supernodes=…'"
        raise ConfigError("num-supernodes", which + 1, hint)
    site = Site(FederatedData.from_clients([data.client(which)]), make_problem, state, [str(which)])
    site.close()
    return site


@functools.cache
def _clients(experiment: Path) -> Any:
    return build(read_toml(experiment)).undealt()
