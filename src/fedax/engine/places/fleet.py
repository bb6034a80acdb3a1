"""The nodes of a federation: which there are, which client is at which, and how they are asked."""

import contextlib
import copy
import getpass
import hashlib
import json
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from fedax.contract.types import Tree, Unknown
from fedax.data.tables import by_value
from fedax.data.transform import Transform
from fedax.engine.places.nodes import Failure, Message, Transport, heads_of, packed, unpacked
from fedax.engine.places.site import precise_versions
from fedax.errors import DataError, NodeError
from fedax.federation.census import Census

_PAUSE = 0.5  # seconds before nodes that are not there are looked for again
_SIGN = 10.0  # seconds that a node that was waited for in vain has to show that it is back


class _Node(NamedTuple):
    """A node as it was found.

    Attributes:
        number: of the transport; another one where the node comes back under another.
        about: what it said of itself.
        clients: [k] the numbers of its clients in the federation, in the node's own order.
    """

    number: int
    about: dict[str, Unknown]
    clients: np.ndarray


class Figures(NamedTuple):
    """Figures of single clients: its number -> figure -> value; and why some nodes give none, by their clients."""

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
        deal: the name of the deal by which the nodes have dealt their rows; ``None``: they have not.
        tested: the number of a client -> how many test examples it has, where the nodes have dealt them; else empty.

    Raises:
        NodeError: too few nodes; a node of other versions, or with other examples, than the first; a client at two
            nodes.
    """

    def __init__(self, transport: Transport, timeout: float = 600.0, nodes: int | None = None, wait: float = 60.0):
        self.transport, self.timeout = transport, timeout
        self._waited = [0.0]  # of all that are dealt from it, too
        self._absent: set[int] = set()
        self._name = who()
        found = self._gather(nodes, wait)
        self.census, self.classes, owners = _census(found)
        self._nodes = [
            _Node(number, about, np.array([owners[name] for name in about["names"]])) for number, about in found
        ]
        self._held = [{part: int(n) for part, n in about["held"].items()} for _, about in found]
        self.whole: Fleet = self
        self.deal: str | None = None
        self.tested: dict[int, int] = {}
        self._dealt: dict[tuple[str, bytes], Fleet] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def by(self, transport: Transport) -> "Fleet":
        """The same nodes, asked by another transport to them; which of them are gone it finds out for itself."""
        found = copy.copy(self)
        found.transport, found._waited, found._absent, found._nodes = transport, [0.0], set(), list(self._nodes)
        return found

    def clients(self, which: int) -> np.ndarray:
        """The clients of node ``which``, in its own order."""
        return self._nodes[which].clients

    def about(self, which: int) -> dict[str, Unknown]:
        """What node ``which`` said of itself, and in ``number`` the transport's number of it."""
        return self._nodes[which].about | {"number": self._nodes[which].number}

    def held(self, which: int) -> dict[str, int]:
        """How many held-out examples node ``which`` has."""
        return {part: n for part, n in self._held[which].items() if n}

    def names(self, which: int) -> str:
        """Its clients, for people."""
        return _listed(self._nodes[which].about["names"])

    def ask(
        self, messages: Mapping[int, Message], timeout: float | None = None
    ) -> Iterator[tuple[int, Message | None]]:
        """The answers of some nodes as they come; ``None`` of those that do not answer in time; ``timeout``: another.

        A node that is gone is asked again when it is back. One that was waited for in vain is not waited for again
        before it has shown a sign of life.

        Raises:
            NodeError: a node answered that it cannot.
        """
        began, left = time.monotonic(), dict(messages)
        try:
            for which in self._silent([which for which in left if which in self._absent]):
                del left[which]
                yield which, None
            end = time.monotonic() + (timeout or self.timeout)  # of the others, who have not been asked yet
            while left:
                there = {self._nodes[which].number: which for which in left}
                online = {*self.transport.nodes()}
                if any(number not in online for number in there):
                    there = {self._find(which, online): which for which in left}
                ready = {number: left[which] for number, which in there.items() if number in online}
                rest, waiting = end - time.monotonic(), len(left)
                if rest <= 0:
                    break
                for number, answer in self.transport.ask(ready, rest) if ready else ():
                    which = there[number]
                    if (heard := _heard(f"clients {self.names(which)}", answer)) is not None:
                        del left[which]
                        yield which, heard
                if len(left) == waiting:
                    time.sleep(min(_PAUSE, max(0.0, end - time.monotonic())))
            for which in left:
                self._absent.add(which)
                yield which, None
        finally:
            self._waited[0] += time.monotonic() - began

    @property
    def waited(self) -> float:
        """Seconds that the server waited for answers so far."""
        return self._waited[0]

    def dealt(self, split: Mapping[str, Unknown]) -> "Fleet":
        """The same nodes, each of whose clients has dealt its rows to training, validation and test.

        They are dealt as :func:`fedax.data.split` deals those of all clients in one place: a client's place is that in
        the census, and the clients' weights stay those of all their rows.

        Args:
            split: ``train``, ``val``, ``test``, ``stratify`` and ``seed``, as there.

        Returns:
            A fleet with the census of the training rows. The other stays as it is, for other splits.

        Raises:
            NodeError: an owner does not allow it; a node does not answer, or no client has an example of a part.
        """
        whole, split = self.whole, dict(split)
        census = whole.census
        text = json.dumps([split, census.names], sort_keys=True)
        deal = hashlib.sha256(text.encode()).hexdigest()[:32]
        if (known := whole._dealt.get((deal, census.weights.tobytes()))) is not None:
            return known
        found = copy.copy(whole)
        found.deal, found.tested = deal, {}
        found._held = [dict(held) for held in whole._held]
        sizes, by_client = census.sizes.copy(), bool(split["test"])
        for which, answer in whole.ask(
            {
                which: whole.message(
                    which, {"kind": "deal", "split": split, "deal": deal, "places": self.clients(which).tolist()}
                )
                for which in range(len(whole))
            }
        ):
            who, mine = f"clients {whole.names(which)}", whole.clients(which)
            if answer is None:
                raise NodeError(f"{who}: no answer in {whole.timeout:g} s")
            own, held = _parts(who, answer.head, census.sizes[mine].tolist())
            sizes[mine] = own
            found._held[which] = {part: sum(n) if isinstance(n, list) else n for part, n in held.items()}
            if isinstance(held["test"], list):
                found.tested |= {i: n for i, n in zip(mine.tolist(), held["test"], strict=True) if n}
        together = {part: sum(held[part] for held in found._held) for part in ("val", "test")}
        for part, n in together.items():
            if split[part] and not n:
                raise NodeError(f"data.split.{part} = {split[part]:g}: no client has enough examples for one")
        found.tested = found.tested if by_client else {}
        digests = tuple(f"{digest} {deal}" for digest in census.digests)
        found.census = census._replace(sizes=sizes, digests=digests, held=together)
        whole._dealt[deal, census.weights.tobytes()] = found
        return found

    def figures(self, problem: dict[str, Unknown], model: Tree) -> "Figures":
        """The figures of a whole model on the test examples of each client, which its node has dealt.

        Args:
            problem: the configuration in plain JSON, of which nodes make the task.
            model: its parameters as they are trained, a ``Vector``.

        Raises:
            NodeError: a node answers something else than it was asked.
        """
        return self._told({"kind": "figures", "problem": problem, "deal": self.deal}, model)

    def alone(self, asked: dict[str, Unknown], rounds: int, model: Tree) -> "Figures":
        """:meth:`figures` of models that the clients have trained alone, each on its own examples.

        Args:
            asked: what messages say of the job.
            rounds: how often each goes over its examples.
            model: the initial one, a ``Vector``.
        """
        return self._told({"kind": "alone", "job": asked, "rounds": rounds}, model)

    def _told(self, head: dict[str, Unknown], model: Tree) -> "Figures":
        tensors = packed({"model": model})
        found: dict[int, dict[str, float]] = {}
        withheld: dict[str, str] = {}
        for which, answer in self.ask({which: self.message(which, head, tensors) for which in range(len(self))}):
            there = [i for i in self.clients(which).tolist() if i in self.tested]
            if not there:
                continue
            if answer is None or answer.head.get("withheld") is not None:
                why = f"no answer in {self.timeout:g} s" if answer is None else str(answer.head["withheld"])
                withheld[self.names(which)] = why
                continue
            who, columns = f"clients {self.names(which)}: the answer", answer.head.get("columns")
            if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
                raise NodeError(f"{who} names {columns!r} as figures")
            form = jax.ShapeDtypeStruct((len(there),), np.float64)
            values = unpacked(answer.tensors, dict.fromkeys(columns, form), who)
            found |= {i: {each: float(values[each][k]) for each in columns} for k, i in enumerate(there)}
        return Figures(dict(sorted(found.items())), withheld)

    @property
    def lost(self) -> bool:
        """Whether all nodes were waited for in vain."""
        return len(self._absent) == len(self)

    def check(
        self, asked: dict[str, Unknown], columns: Sequence[str], rounds: int, frozen: Tree = ()
    ) -> dict[int, dict[str, Unknown]]:
        """Ask all nodes whether anything speaks against a run.

        Args:
            asked: what messages say of the job.
            columns: the measures to which nodes contribute.
            rounds: that are to come.
            frozen: what is frozen of the model; nodes are sent it here, and only here.

        Returns:
            Node -> what it answered.

        Raises:
            NodeError: something does, or a node does not answer.
        """
        given = {"kind": "check", "job": asked, "columns": list(columns), "rounds": rounds}
        tensors, found = packed({"frozen": frozen}) if jax.tree.leaves(frozen) else b"", {}
        for which, answer in self.ask({which: self.message(which, given, tensors) for which in range(len(self))}):
            if answer is None:
                raise NodeError(f"clients {self.names(which)}: no answer in {self.timeout:g} s")
            if not isinstance(problems := answer.head.get("problems"), list):
                raise NodeError(f"clients {self.names(which)}: the answer does not say what speaks against the run")
            if problems:
                raise NodeError(f"clients {self.names(which)}: {'; '.join(map(str, problems))}")
            found[which] = answer.head
        return found

    def message(self, which: int, head: dict[str, Unknown], tensors: bytes = b"") -> Message:
        """A message to node ``which``."""
        return Message({**head, "mark": self._nodes[which].about["mark"], "server": self._name}, tensors)

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
        """What nodes say of themselves, of those that answer."""
        found = {}
        for number, answer in self.transport.ask(dict.fromkeys(numbers, Message({"kind": "hello"})), timeout):
            if (heard := _heard(f"node {number}", answer)) is not None:
                found[number] = _checked(number, heard.head)
        return found

    def _silent(self, absent: list[int]) -> list[int]:
        """Those of some nodes that were waited for in vain that still show no sign of life."""
        if not absent:
            return []
        online = {*self.transport.nodes()}
        asked = {number: which for which in absent if (number := self._find(which, online)) in online}
        for number, answer in self.transport.ask(
            dict.fromkeys(asked, Message({"kind": "hello"})), min(_SIGN, self.timeout)
        ):
            if isinstance(answer, Message):
                self._absent.discard(asked[number])
        return [which for which in absent if which in self._absent]

    def _find(self, which: int, online: set[int]) -> int:
        """The number of a node that may have come back under another one."""
        node = self._nodes[which]
        if node.number in online:
            return node.number
        for number in sorted(online - {each.number for each in self._nodes}):
            with contextlib.suppress(NodeError):  # it is another one, which nobody waits for
                if any(about["mark"] == node.about["mark"] for about in self._greet([number], 30.0).values()):
                    self._nodes[which] = node._replace(number=number)
                    return number
        return node.number


def _heard(who: str, answer: Message | Failure) -> Message | None:
    """An answer; ``None`` of a node that is gone and may come back; an error that names ``who`` where it cannot."""
    if isinstance(answer, Failure):
        if not answer.gone:
            raise NodeError(f"{who}: {answer.text}")
        return None
    for head in heads_of(answer):
        if "error" in head:
            raise NodeError(f"{who}: {head['error']}")
    return answer


def who() -> str:
    """Who asks, for the logs of the nodes."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError, ImportError):  # a user without a name
        return socket.gethostname()


def _checked(number: int, about: dict[str, Unknown]) -> dict[str, Unknown]:
    """What a node said of itself, if it is of the form in which nodes say it."""
    try:
        names, sizes, digests = about["names"], about["sizes"], about["digests"]
        good = len(names) == len(sizes) == len(digests) > 0 and all(type(n) is int and 0 < n < 2**31 for n in sizes)
        good = good and all(isinstance(text, str) for text in (*names, *digests, about["mark"]))
        good = good and about["held"].keys() == {"val", "test"} and isinstance(about["classes"], int | None)
        good = good and all(type(n) is int and 0 <= n < 2**31 for n in about["held"].values())
        good = good and isinstance(about["versions"], dict) and isinstance(about["transform"], dict | None)
        example = {name: (np.dtype(kind), [*map(int, shape)]) for name, (kind, shape) in about["example"].items()}
        if not good or not example:
            raise ValueError("no clients")
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise NodeError(f"node {number}: it does not say who is there ({type(error).__name__}: {error})") from error
    return about


def _census(found: list[tuple[int, dict[str, Unknown]]]) -> tuple[Census, int | None, dict[str, int]]:
    """The census of all nodes together, the number of classes, and the number of each client."""
    _, first = found[0]
    mine = precise_versions()
    where: dict[str, int] = {}
    for number, about in found:
        others = [f"{name} {about['versions'].get(name)}, and the server has {mine[name]}"
                  for name in mine if about["versions"].get(name) != mine[name]]  # fmt: skip
        if others:
            raise NodeError(f"clients {_listed(about['names'])}: their node has {'; '.join(others)}")
        if about["example"] != first["example"]:
            raise NodeError(
                f"clients {_listed(about['names'])}: an example is {about['example']}, and that of clients "
                f"{_listed(first['names'])} {first['example']}; bring all to one form"
            )
        for name in about["names"]:
            if name in where:
                raise NodeError(f"client {name!r} is at two nodes; give every client a name of its own, or stop one")
            where[name] = number
        if about["transform"] != first["transform"]:
            raise NodeError(
                f"clients {_listed(about['names'])}: another transform made examples of their tables "
                f"than of those of {_listed(first['names'])}; fit one from the summaries of all"
            )
    names = sorted(where, key=by_value)
    each = {name: (size, digest) for _, about in found
            for name, size, digest in zip(about["names"], about["sizes"], about["digests"], strict=True)}  # fmt: skip
    sizes = np.array([each[name][0] for name in names], np.int64)
    example = {
        name: jax.ShapeDtypeStruct(tuple(shape), np.dtype(kind)) for name, (kind, shape) in first["example"].items()
    }
    classes = [about["classes"] for _, about in found]
    transform = None if first["transform"] is None else _transform(first)
    census = Census(
        sizes, sizes / sizes.sum(), example, tuple(names), tuple(each[name][1] for name in names),
        {part: sum(about["held"][part] for _, about in found) for part in ("val", "test")}, transform,
    )  # fmt: skip
    classes_of_all: int | None = None if None in classes else max(classes)
    if transform is not None and transform.classes is not None:
        classes_of_all = len(transform.classes)  # a node may have none of the last
    return census, classes_of_all, {name: i for i, name in enumerate(names)}


def _parts(who: str, answer: dict[str, Unknown], sizes: list[int]) -> tuple[list[int], dict[str, Unknown]]:
    """What a node said of the parts that it has dealt, if it is of the form in which nodes say it."""
    try:
        own, held, good = answer["sizes"], answer["held"], True
        for each in (own, *(n for n in held.values() if isinstance(n, list))):
            good = good and len(each) == len(sizes)
            good = good and all(type(n) is int and 0 <= n <= most for n, most in zip(each, sizes, strict=True))
        good = good and all(own) and held.keys() == {"val", "test"}
        if not good or not all(isinstance(n, list) or (type(n) is int and 0 <= n < 2**31) for n in held.values()):
            raise ValueError("numbers that cannot be")
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise NodeError(f"{who}: how it dealt its rows is none ({type(error).__name__}: {error})") from error
    return own, held


def _transform(about: dict[str, Unknown]) -> Transform:
    try:
        return Transform.from_json(about["transform"])
    except DataError as error:
        raise NodeError(f"clients {_listed(about['names'])}: {error}") from error


def _listed(names: Sequence[str]) -> str:
    few = ", ".join(map(repr, names[:5]))
    return f"{few}, … ({len(names)})" if len(names) > 5 else few
