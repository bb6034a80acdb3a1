"""Nodes in this process: the engine's messages to real clients, without a network."""

import functools
import hashlib
import heapq
import itertools
import json
import math
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
import safetensors

import fedax
from fedax.sites.protocol.agreement import Made, digest_of_text
from fedax.sites.protocol.fleet import Fleet
from fedax.sites.protocol.messages import SEVERAL, Failure, Message, joined, parted
from fedax.sites.protocol.roster import Roster
from fedax.sites.protocol.site import Site
from fedax.sites.protocol.train import train

SURE = 1e-9  # less likely is not chance: keys, and with them what nodes draw, are others in each run of the tests


class Here:
    """A transport to sites in this process; messages go through JSON, as over a network.

    ``spy`` gets each message and its answer, and returns the answer that the server gets. Sites keep their memory when
    a run is over, unless the transport ``forgets``.
    """

    def __init__(
        self, sites: Mapping[int, Site], spy: Callable[[int, Message, Any], Any] | None = None, forgets: bool = False
    ):
        self.sites, self.spy, self.forgets, self.sent, self.received = dict(sites), spy, forgets, 0, 0

    def nodes(self) -> list[int]:
        return list(self.sites)

    def ask(self, messages: Mapping[int, Message], timeout: float) -> Iterator[tuple[int, Message | Failure]]:
        for number, message in messages.items():
            message = Message(json.loads(json.dumps(message.head)), message.tensors)
            self.sent += len(message.tensors)
            answer = self._answer(number, message)
            self.received += len(answer.tensors) if isinstance(answer, Message) else 0
            yield number, answer

    def _answer(self, number: int, message: Message) -> Message | Failure:
        if message.head["kind"] == SEVERAL:
            answers = [self._answer(number, part) for part in parted(message, 0)]
            if failed := [each for each in answers if isinstance(each, Failure)]:
                return failed[0]
            there = [each for each in answers if isinstance(each, Message)]
            try:
                return joined(there)
            except safetensors.SafetensorError:  # a spy spoiled the arrays of one
                parts = [{"head": each.head, "arrays": {}} for each in there]
                return Message({"kind": SEVERAL, "parts": parts}, b"spoiled")
        forgotten = message.head["kind"] == "forget" and not self.forgets
        kept = Message({"to": digest_of_text([message.head])})
        answer = kept if forgotten else self.sites[number].answer(message)
        answer = Message(json.loads(json.dumps(answer.head)), answer.tensors)
        return answer if self.spy is None else self.spy(number, message, answer)


def part_of(data: fedax.FederatedData, clients: list[int]) -> fedax.FederatedData:
    """Some of the clients."""
    return fedax.FederatedData.from_clients([data.client(i) for i in clients])


@functools.cache
def rosters(number: int) -> list[Roster]:
    """The rosters of nodes that know one another's keys."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    folder = pathlib.Path(tempfile.mkdtemp())
    for k in range(number):
        key = ec.generate_private_key(ec.SECP384R1())
        private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        (folder / f"n{k}").write_bytes(private)
        (folder / f"n{k}.pub").write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    return [Roster(folder, folder / f"n{k}") for k in range(number)]


def sites(
    data: fedax.FederatedData,
    where: list[list[int]],
    made: Made | None = None,
    tests: list[Any] | None = None,
    known: list[Roster] | None = None,
    **more: Any,
) -> dict[int, Site]:
    """A site for each list of clients; they are called by their numbers.

    ``made``: what each makes of every configuration; default: what the server has, see :func:`told`. ``known``: the
    rosters of their nodes.
    """
    return {
        7 + k: Site(
            part_of(data, clients), lambda config: made or TOLD[config["told"]], tempfile.mkdtemp(),
            [str(i) for i in clients], None if tests is None else tests[k],
            roster=None if known is None else known[k], **more,
        )
        for k, clients in enumerate(where)
    }  # fmt: skip


TOLD: dict[str, Made] = {}  # what the configurations of this process describe
OPTIONS = ("rounds", "work", "batch_size", "participation", "evaluate_every", "guard", "aggregate", "faults", "privacy",
           "compress", "secure", "pace")  # fmt: skip


def told(algorithm: Any, task: Any, **options: Any) -> dict[str, Any]:
    """A configuration in plain JSON, of which sites in this process make the same run; the same for the same run."""
    given = {name: options[name] for name in OPTIONS if name in options}
    key = hashlib.sha256(f"{algorithm!r} {id(task)} {sorted(given.items())!r}".encode()).hexdigest()
    TOLD.setdefault(key, Made(algorithm, task, given))
    return {"told": key}


def trained(
    algorithm: Any, task: Any, data: fedax.FederatedData, here: Any, timeout: float = 5.0, **options: Any
) -> fedax.Run:
    """A run over the nodes of a transport, with the clients' weights in ``data``."""
    fleet = Fleet(here, timeout=timeout)
    fleet.census = fleet.census._replace(weights=data.weights)
    return train(algorithm, task, fleet, told(algorithm, task, **options), **options)


def run_at_sites(
    algorithm: Any, task: Any, data: fedax.FederatedData, where: list[list[int]], spy: Any = None, tests: Any = None,
    **options: Any,
) -> tuple[fedax.Run, Here]:  # fmt: skip
    """A run over sites in this process, and the transport with them."""
    here = Here(sites(data, where, tests=tests), spy)
    return trained(algorithm, task, data, here, **options), here


def memory_of(run: fedax.Run, here: Here) -> Any:
    """The memory of all clients, leaves [N, ...], from the folders of their sites."""
    rows: dict[int, Any] = {}
    for site in here.sites.values():
        ready = [each for each in site._runs.values() if each.agreement.run == run.memory[0, 0]][-1]
        for row, name in enumerate(site.names):
            version = int(run.memory[int(name), 1])
            rows[int(name)] = site.store.recall(ready.agreement.memory, row, version, ready.row, ready.row)
    return jax.tree.map(lambda *leaves: np.stack(leaves), *(rows[i] for i in sorted(rows)))


class Timed(Here):
    """The same in a time of its own, ``now``: a node's answer takes ``takes(number, message)`` seconds.

    ``away(number)`` tells whether a node is gone now; what it was asked is lost.
    """

    def __init__(self, sites: Any, takes: Any, away: Callable[[int], bool] = lambda number: False, **more: Any):
        super().__init__(sites, **more)
        self.takes, self.away, self.now = takes, away, 0.0

    def nodes(self) -> list[int]:
        return [number for number in self.sites if not self.away(number)]

    def talk(self, timeout: float) -> Iterator[Any]:
        queue: list[Any] = []  # of answers under way
        numbers = itertools.count()
        came: list[Any] = []
        while True:
            messages = yield came
            for number, message in messages.items():
                end = self.now + self.takes(number, message)
                heapq.heappush(queue, (end, next(numbers), number, message))
            came = [(each[2], Failure("it is gone", True)) for each in queue if self.away(each[2])]
            queue = sorted(each for each in queue if not self.away(each[2]))
            self.now = min(self.now + 0.25, queue[0][0] if queue else math.inf)
            while queue and queue[0][0] <= self.now:
                _, _, number, message = heapq.heappop(queue)
                came += self.ask({number: message}, timeout)
