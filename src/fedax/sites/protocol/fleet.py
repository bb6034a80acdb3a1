"""The nodes of a federation: which nodes there are, which clients each has, and requests to them."""

import contextlib
import copy
import getpass
import json
import socket
import time
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import jax
import numpy as np

from fedax.contract.types import Tree, Unknown
from fedax.data.tables import by_value
from fedax.data.transform import Transform
from fedax.errors import DataError, NodeError
from fedax.federation.census import Census
from fedax.metrics.base import Metric
from fedax.sites.protocol.agreement import PARTS, Agreement, digest_of_text, other_versions, train_sizes
from fedax.sites.protocol.messages import Failure, Message, Transport, asked_together, heads_of, packed, unpacked

_PAUSE = 0.5  # seconds before missing nodes are looked for again
_LONG = 86400.0  # seconds that a message to a node may be under way where nobody waits for it
_SIGN = 10.0  # seconds that a node that timed out has to show that it is back


class _FleetNode(NamedTuple):
    """A node of a fleet.

    Attributes:
        number: its number in the transport; it changes if the node comes back under another one.
        about: its description of itself.
        clients: [k] the numbers of its clients in the federation, in the node's own order.
    """

    number: int
    about: dict[str, Unknown]
    clients: np.ndarray


class Figures(NamedTuple):
    """Figures of single clients: client -> figure -> value; and why some nodes withhold them, by their clients."""

    values: dict[int, dict[str, float]]
    withheld: dict[str, str]


class Fleet:
    """The nodes of a federation, and which client is at which.

    Args:
        transport: carries the messages.
        timeout: seconds that a node has for an answer, > 0.
        nodes: how many nodes to wait for; ``None``: those that are there.
        wait: seconds to wait for them.

    Attributes:
        census: of the clients, in the order of their names, numbers in them by their value. They count by their sizes,
            unless it is replaced by one with other weights.
        classes: one more than the largest label, where the examples have whole numbers as labels.
        split: how each client splits its rows, as arguments of :func:`fedax.data.split`; ``None``: it does not.
        agreements: the agreements so far, by a digest of what was asked for.
        waited: seconds for which answers were waited for so far.
        tested: the number of a client -> how many test examples it has, where the nodes have dealt them; else empty.

    Raises:
        NodeError: too few nodes; a node of other versions, or with other examples, than the first; a client at two
            nodes.
    """

    def __init__(self, transport: Transport, timeout: float = 600.0, nodes: int | None = None, wait: float = 60.0):
        self.transport, self.timeout, self.waited = transport, timeout, 0.0
        self._absent: set[int] = set()
        found = self._gather(nodes, wait)
        self.census, self.classes = _census([about for _, about in found])
        places = {name: i for i, name in enumerate(self.census.names)}
        self._nodes = [
            _FleetNode(number, about, np.array([places[name] for name in about["names"]])) for number, about in found
        ]
        self._held = [{part: int(n) for part, n in about["held"].items()} for _, about in found]
        self.whole: Fleet = self
        self.split: dict[str, Unknown] | None = None
        self.agreements: dict[str, Agreement] = {}
        self.tested: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def by(self, transport: Transport) -> "Fleet":
        """A fleet of the same nodes with another transport, which finds out for itself which of them are gone."""
        fleet = copy.copy(self)
        fleet.transport, fleet._absent, fleet._nodes = transport, set(), list(self._nodes)
        return fleet

    def clients(self, which: int) -> np.ndarray:
        """The clients of node ``which``, in its own order."""
        return self._nodes[which].clients

    def about(self, which: int) -> dict[str, Unknown]:
        """The description of node ``which`` by itself, and in ``number`` its number in the transport."""
        return self._nodes[which].about | {"number": self._nodes[which].number}

    def held(self, which: int) -> dict[str, int]:
        """How many held-out examples node ``which`` has."""
        return {part: n for part, n in self._held[which].items() if n}

    def names(self, which: int) -> str:
        """The names of its clients, for people."""
        return _listed(self._nodes[which].about["names"])

    def ask(
        self, messages: Mapping[int, Message], timeout: float | None = None
    ) -> Iterator[tuple[int, Message | None]]:
        """The answers of some nodes as they come; ``None`` for those that do not answer in time.

        A node that is gone is asked again when it is back. One that timed out before is not waited for again until it
        has shown a sign of life. ``timeout``: seconds, instead of the fleet's own.

        Raises:
            NodeError: a node answered that it cannot, or to another question.
        """
        start, pending = time.monotonic(), dict(messages)
        try:
            for which in self._silent(pending.keys() & self._absent):
                del pending[which]
                yield which, None
            end = time.monotonic() + (timeout or self.timeout)  # of the others, who have not been asked yet
            while pending:
                online = {*self.transport.nodes()}
                by_number = {self._find(which, online): which for which in pending}
                ready = {number: pending[which] for number, which in by_number.items() if number in online}
                remaining, waiting = end - time.monotonic(), len(pending)
                if remaining <= 0:
                    break
                for number, answer in self.transport.ask(ready, remaining) if ready else ():
                    which = by_number[number]
                    if (message := _received(f"clients {self.names(which)}", answer, pending[which])) is not None:
                        del pending[which]
                        yield which, message
                if len(pending) == waiting:
                    time.sleep(min(_PAUSE, max(0.0, end - time.monotonic())))
            for which in pending:
                self._absent.add(which)
                yield which, None
        finally:
            self.waited += time.monotonic() - start

    def ask_together(
        self, questions: Sequence[Mapping[int, Message]]
    ) -> tuple[list[dict[int, Message | None]], np.ndarray]:
        """:meth:`ask` several questions at once: the answers to each, and [questions, 2] its share of the bytes."""
        found, shares = asked_together(questions, self.ask)
        names = [f"clients {self.names(which)}" for which in range(len(self))]
        return [
            {which: None if answer is None else _received(names[which], answer) for which, answer in answers.items()}
            for answers in found
        ], shares

    def talk(self) -> Generator[list[tuple[int, Message]], Mapping[int, Message], None]:
        """Ask nodes without an end: it is sent messages, by node, and yields the answers there are at its next look.

        A node has one message at a time. One that is gone is asked again when it is back, however long that takes.

        Raises:
            NodeError: a node answered that it cannot, or to another question.
        """
        talk = self.transport.talk(_LONG)
        next(talk)
        pending: dict[int, Message] = {}  # by node
        away: set[int] = set()  # those of them that cannot be reached
        look = 0.0  # when those are looked for again
        messages = yield []
        while True:
            pending |= messages
            ready = [*messages]
            if away and time.monotonic() >= look:
                online, look = {*self.transport.nodes()}, time.monotonic() + _PAUSE
                ready += [which for which in sorted(away) if self._find(which, online) in online]
            away -= {*ready}
            began = time.monotonic()
            came = talk.send({self._nodes[which].number: pending[which] for which in ready})
            self.waited += time.monotonic() - began
            answers = []
            for number, answer in came:
                which = next(which for which in pending if self._nodes[which].number == number)
                if (message := _received(f"clients {self.names(which)}", answer, pending[which])) is None:
                    away.add(which)
                else:
                    del pending[which]
                    answers.append((which, message))
            messages = yield answers

    def dealt(self, split: Mapping[str, Unknown]) -> "Fleet":
        """The same nodes, where each client splits its rows into training, validation and test.

        The split is that of :func:`fedax.data.split` on all clients in one place: a client's place is that in the
        census, and the clients' weights stay those of all their rows.

        Args:
            split: ``train``, ``val``, ``test``, ``stratify`` and ``seed``, as there.

        Returns:
            A fleet with the census of the training rows. The other stays as it is, for other splits.

        Raises:
            NodeError: no client has an example of a part.
        """
        whole, split = self.whole, dict(split)
        census = whole.census
        text = json.dumps([split, census.names], sort_keys=True)
        fleet = copy.copy(whole)
        fleet.split, parts = split, train_sizes(census.sizes, split)
        fleet.tested = {i: int(n) for i, n in enumerate(parts["test"]) if n} if split["test"] else {}
        fleet._held = [
            {part: int(parts[part][self.clients(which)].sum()) if split[part] else held[part] for part in PARTS}
            for which, held in enumerate(whole._held)
        ]
        totals = {part: sum(held[part] for held in fleet._held) for part in PARTS}
        for part, n in totals.items():
            if split[part] and not n:
                raise NodeError(f"data.split.{part} = {split[part]:g}: no client has enough examples for one")
        digests = tuple(f"{digest} {digest_of_text(text)}" for digest in census.digests)
        fleet.census = census._replace(sizes=parts["train"].astype(np.int64), digests=digests, held=totals)
        return fleet

    def withheld(self, metrics: Mapping[str, Unknown], parts: Collection[str]) -> dict[str, str]:
        """Metrics that an owner does not let leave its node -> the clients there, for people.

        Args:
            metrics: of the task, by name.
            parts: the held-out parts that are at the nodes.
        """
        found: dict[str, str] = {}
        for which, node in enumerate(self._nodes):
            columns, noise = node.about["figures"]["columns"], node.about["figures"]["noise"]
            for name, metric in metrics.items():
                refused = columns is not None and any(f"{part}_{name}" not in columns for part in parts)
                if refused or (noise and isinstance(metric, Metric)):
                    found.setdefault(name, self.names(which))
        return found

    def figures(self, agreement: Agreement, model: Tree, kind: Literal["clients", "alone"] = "clients") -> "Figures":
        """The figures of a whole model on the test examples of each client, which it has split off.

        Args:
            agreement: of the run, which the nodes know.
            model: its parameters as they are trained, a ``Vector``.
            kind: ``"alone"``: of models that the clients train alone from this one, each on its own examples; a round
                is a pass of each client over these.

        Raises:
            NodeError: the answer of a node does not fit the question.
        """
        message = Message({"kind": kind, "agreement": agreement.digest}, packed({"model": model}))
        values_of: dict[int, dict[str, float]] = {}
        withheld: dict[str, str] = {}
        for which, answer in self.ask(dict.fromkeys(range(len(self)), message)):
            tested = [i for i in self.clients(which).tolist() if i in self.tested]
            head = {"withheld": f"no answer in {self.timeout:g} s"} if answer is None else answer.head
            if not tested:
                continue
            if answer is None or head.keys() & {"withheld", "repeated"}:
                withheld[self.names(which)] = str(head.get("withheld") or head["repeated"])
                continue
            answer_name, columns = f"clients {self.names(which)}: the answer", head.get("columns")
            if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
                raise NodeError(f"{answer_name} names {columns!r} as figures")
            form = jax.ShapeDtypeStruct((len(tested),), np.float64)
            values = unpacked(answer.tensors, dict.fromkeys(columns, form), answer_name)
            values_of |= {i: {each: float(values[each][k]) for each in columns} for k, i in enumerate(tested)}
        return Figures(dict(sorted(values_of.items())), withheld)

    @property
    def lost(self) -> bool:
        """Whether all nodes have timed out."""
        return len(self._absent) == len(self)

    def agree(self, agreement: Agreement, frozen: Tree = ()) -> dict[int, dict[str, Unknown]]:
        """Send all nodes the agreement of a run, which each checks against its owner's rules.

        Args:
            agreement: the agreement.
            frozen: the frozen part of the model; nodes are sent it here, and only here.

        Returns:
            Node -> the head of its answer.

        Raises:
            NodeError: a node objects, or does not answer.
        """
        head = {"kind": "agreement", "text": agreement.text, "server": who()}
        message = Message(head, packed({"frozen": frozen}) if jax.tree.leaves(frozen) else b"")
        answers = {}
        for which, answer in self.ask(dict.fromkeys(range(len(self)), message)):
            if answer is None:
                raise NodeError(f"clients {self.names(which)}: no answer in {self.timeout:g} s")
            answers[which] = answer.head
        key = digest_of_text(dict(agreement.config), agreement.seed, agreement.split)
        self.whole.agreements[key] = agreement
        return answers

    def _gather(self, nodes: int | None, wait: float) -> list[tuple[int, dict[str, Unknown]]]:
        found: dict[int, dict[str, Unknown]] = {}
        end = time.monotonic() + wait
        while True:
            new = [number for number in self.transport.nodes() if number not in found]
            found |= self._greet(new, max(1.0, end - time.monotonic()))
            if len(found) >= (nodes or 1):
                return sorted(found.items(), key=lambda each: by_value(each[1]["names"][0]))
            if time.monotonic() > end:
                raise NodeError(f"{len(found)} nodes are there after {wait:g} s, and {nodes or 1} should be")
            time.sleep(_PAUSE)

    def _greet(self, numbers: Sequence[int], timeout: float) -> dict[int, dict[str, Unknown]]:
        """The descriptions of the nodes that answer."""
        found = {}
        for number, answer in self.transport.ask(dict.fromkeys(numbers, Message({"kind": "hello"})), timeout):
            if (message := _received(f"node {number}", answer)) is not None:
                found[number] = _checked(number, message.head)
        return found

    def _silent(self, absent: Collection[int]) -> Collection[int]:
        """Those of the nodes that have timed out that still show no sign of life."""
        if not absent:
            return ()
        online = {*self.transport.nodes()}
        by_number = {number: which for which in absent if (number := self._find(which, online)) in online}
        hello = dict.fromkeys(by_number, Message({"kind": "hello"}))
        for number, answer in self.transport.ask(hello, min(_SIGN, self.timeout)):
            if isinstance(answer, Message):
                self._absent.discard(by_number[number])
        return sorted(self._absent.intersection(absent))

    def _find(self, which: int, online: set[int]) -> int:
        """The number of a node, which may have come back under another one."""
        node = self._nodes[which]
        if node.number in online:
            return node.number
        for number in sorted(online - {each.number for each in self._nodes}):
            with contextlib.suppress(NodeError):  # a node that does not belong to the fleet
                if any(about["mark"] == node.about["mark"] for about in self._greet([number], 30.0).values()):
                    self._nodes[which] = node._replace(number=number)
                    return number
        return node.number


def _received(who: str, answer: Message | Failure, question: Message | None = None) -> Message | None:
    """An answer; ``None`` if the node is gone and may come back.

    Raises:
        NodeError: it names ``who`` failed, or answered another question than this.
    """
    if isinstance(answer, Failure):
        if not answer.gone:
            raise NodeError(f"{who}: {answer.text}")
        return None
    for head in heads_of(answer):
        if "error" in head:
            raise NodeError(f"{who}: {head['error']}")
    to = [digest_of_text([head]) for head in heads_of(question)] if question is not None else []
    if to and [head.get("to") for head in heads_of(answer)] != to:
        raise NodeError(f"{who}: the answer is to another question")
    return answer


def who() -> str:
    """The user and host of the server, for the logs of the nodes."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError, ImportError):  # a user without a name
        return socket.gethostname()


def _checked(number: int, about: dict[str, Unknown]) -> dict[str, Unknown]:
    """The description of a node, after a check of its form."""
    try:
        names, sizes, digests, figures = (about[entry] for entry in ("names", "sizes", "digests", "figures"))
        counts = [(size, 1) for size in sizes] + [(about["held"][part], 0) for part in PARTS]
        kinds = [
            *[(text, str) for text in (*names, *digests, about["mark"])], (about["classes"], int | None),
            (figures["noise"], bool), (figures["columns"], list | None), (about["versions"], dict),
            (about["transform"], dict | None),
        ]  # fmt: skip
        example = [(np.dtype(kind), [*map(int, shape)]) for kind, shape in about["example"].values()]
        valid = len(names) == len(sizes) == len(digests) > 0 and len(about["held"]) == len(PARTS)
        valid = valid and all(type(n) is int and least <= n < 2**31 for n, least in counts)
        if not (valid and example) or not all(isinstance(entry, kind) for entry, kind in kinds):
            raise ValueError("no clients")
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise NodeError(f"node {number}: it does not say who is there ({type(error).__name__}: {error})") from error
    return about


def _census(nodes: Sequence[dict[str, Unknown]]) -> tuple[Census, int | None]:
    """The census of all nodes together, by their descriptions, and the number of classes."""
    first = nodes[0]
    of_client: dict[str, tuple[int, str]] = {}  # size and digest
    for about in nodes:
        clients = f"clients {_listed(about['names'])}"
        if differing := other_versions(about["versions"]):
            raise NodeError(f"{clients}: their node has {differing}")
        if about["example"] != first["example"]:
            raise NodeError(
                f"{clients}: an example is {about['example']}, and that of clients "
                f"{_listed(first['names'])} {first['example']}; bring all to one form"
            )
        for name, size, digest in zip(about["names"], about["sizes"], about["digests"], strict=True):
            if name in of_client:
                raise NodeError(f"client {name!r} is at two nodes; give every client a name of its own, or stop one")
            of_client[name] = size, digest
        if about["transform"] != first["transform"]:
            raise NodeError(
                f"{clients}: another transform made examples of their tables "
                f"than of those of {_listed(first['names'])}; fit one from the summaries of all"
            )
    names = sorted(of_client, key=by_value)
    sizes = np.array([of_client[name][0] for name in names], np.int64)
    example = {
        name: jax.ShapeDtypeStruct(tuple(shape), np.dtype(kind)) for name, (kind, shape) in first["example"].items()
    }
    labels = [about["classes"] for about in nodes]
    classes: int | None = None if None in labels else max(labels)
    transform = None
    if first["transform"] is not None:
        try:
            transform = Transform.from_json(first["transform"])
        except DataError as error:
            raise NodeError(f"clients {_listed(first['names'])}: {error}") from error
        if transform.classes is not None:
            classes = len(transform.classes)  # a node may have none of the last
    held = {part: sum(about["held"][part] for about in nodes) for part in PARTS}
    digests = tuple(of_client[name][1] for name in names)
    return Census(sizes, sizes / sizes.sum(), example, tuple(names), digests, held, transform), classes


def _listed(names: Sequence[str]) -> str:
    few = ", ".join(map(repr, names[:5]))
    return f"{few}, … ({len(names)})" if len(names) > 5 else few
