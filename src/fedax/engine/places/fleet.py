"""The nodes of a federation: which there are, which client is at which, and how they are asked."""

import contextlib
import getpass
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from fedax.contract.types import Tree, Unknown
from fedax.data.transform import Transform
from fedax.engine.places.nodes import Failure, Message, Transport, packed
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


class Observer:
    """What is told of the messages between a server and its nodes; this one does nothing with it."""

    def asked(self, heads: Mapping[int, dict[str, Unknown]], seconds: float) -> None:
        """Nodes are waited for: node -> the head of its message; for so many seconds at most."""

    def answered(self, which: int) -> None:
        """A node has answered."""

    def failed(self, which: int, why: str, final: bool) -> None:
        """A node has refused or failed; ``final``: it is not waited for any more."""


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
        waited: seconds that the server waited for answers so far.
        observer: is told who is waited for, and what nodes refuse or fail at.

    Raises:
        NodeError: too few nodes; a node of other versions, or with other examples, than the first; a client at two
            nodes.
    """

    def __init__(self, transport: Transport, timeout: float = 600.0, nodes: int | None = None, wait: float = 60.0):
        self.transport, self.timeout, self.waited = transport, timeout, 0.0
        self.observer = Observer()
        self._absent: set[int] = set()
        self._name = _who()
        found = self._gather(nodes, wait)
        self.census, self.classes, owners = _census(found)
        self._nodes = [
            _Node(number, about, np.array([owners[name] for name in about["names"]])) for number, about in found
        ]

    def __len__(self) -> int:
        return len(self._nodes)

    def clients(self, which: int) -> np.ndarray:
        """The clients of node ``which``, in its own order."""
        return self._nodes[which].clients

    def about(self, which: int) -> dict[str, Unknown]:
        """What node ``which`` said of itself, and in ``number`` the transport's number of it."""
        return self._nodes[which].about | {"number": self._nodes[which].number}

    def held(self, which: int) -> dict[str, int]:
        """How many held-out examples node ``which`` has."""
        return {part: n for part, n in self._nodes[which].about["held"].items() if n}

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
        self.observer.asked({which: each.head for which, each in left.items()}, timeout or self.timeout)
        try:
            for which in self._silent([which for which in left if which in self._absent]):
                del left[which]
                self.observer.failed(which, "it did not answer before, and has not come back", True)
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
                    if isinstance(answer, Failure) or "error" in answer.head:
                        gone = isinstance(answer, Failure) and answer.gone
                        why = answer.text if isinstance(answer, Failure) else str(answer.head["error"])
                        self.observer.failed(which, why, not gone)
                    else:
                        self.observer.answered(which)
                    if (heard := _heard(f"clients {self.names(which)}", answer)) is not None:
                        del left[which]
                        yield which, heard
                if len(left) == waiting:
                    time.sleep(min(_PAUSE, max(0.0, end - time.monotonic())))
            for which in left:
                self._absent.add(which)
                self.observer.failed(which, f"no answer in {timeout or self.timeout:g} s", True)
                yield which, None
        finally:
            self.observer.asked({}, 0.0)
            self.waited += time.monotonic() - began

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
            if problems := answer.head.get("problems"):
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
                return sorted(found.items(), key=lambda each: _natural(each[1]["names"][0]))
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
    if "error" in answer.head:
        raise NodeError(f"{who}: {answer.head['error']}")
    return answer


def _who() -> str:
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
    names = sorted(where, key=_natural)
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


def _transform(about: dict[str, Unknown]) -> Transform:
    try:
        return Transform.from_json(about["transform"])
    except DataError as error:
        raise NodeError(f"clients {_listed(about['names'])}: {error}") from error


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """By which names are sorted: numbers in them by their value, so that client 10 comes after client 9."""
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name)]


def _listed(names: Sequence[str]) -> str:
    few = ", ".join(map(repr, names[:5]))
    return f"{few}, … ({len(names)})" if len(names) > 5 else few
