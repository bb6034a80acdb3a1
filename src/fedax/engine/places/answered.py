"""The record of a node's answers, on its disk: each exchange once, the number of questions, the privacy budget spent.

A server that requests one exchange of a run for two cohorts, or over two sets of nodes, learns more from the difference
of the two sums than from either. One that asks for a noisy figure again and again, each time a little differently,
averages the noise away. So a node records its answers in all runs in a file that is only appended to. A line is on the
disk before the answer leaves.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import time
from collections.abc import Iterable

import numpy as np

from fedax.contract.types import Unknown
from fedax.engine.places.policy import Policy
from fedax.errors import ConfigError, NodeError

FILE = "answered.jsonl"


class Repeated(NodeError):
    """Another question of the same name was answered before."""


class Answered:
    """The record of a node's answers.

    Args:
        folder: of the node; one process at a time.

    Raises:
        ConfigError: the record is damaged.

    Example:
        >>> import tempfile
        >>> answered = Answered(tempfile.mkdtemp())
        >>> answered.take("exchange 7/0", "of clients 1, 2", Policy())
        >>> answered.take("exchange 7/0", "of clients 1, 2", Policy())  # again the same
        >>> answered.take("exchange 7/0", "of client 1", Policy())
        Traceback (most recent call last):
        fedax.engine.places.answered.Repeated: exchange 7/0 was answered before, to another question
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self.path = pathlib.Path(folder) / FILE
        self._known: dict[str, str] = {}
        self.total, self.days, self.loss, self.tail = 0, {}, 0.0, 0.0  # type: int, dict[str, int], float, float
        for number, line in enumerate(self._lines(), 1):
            try:
                self._count(json.loads(line))
            except (ValueError, TypeError, LookupError) as error:
                text = f"line {number} of what was answered cannot be read ({error}); restore it from a copy"
                raise ConfigError("folder", str(self.path), text) from error

    def _lines(self) -> list[bytes]:
        """The lines that were written whole; the answer of an incomplete one has not left."""
        if not self.path.exists():
            return []
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            with self.path.open("r+b") as file:
                file.truncate(len(whole))
        return whole.splitlines()

    def _count(self, line: dict[str, Unknown]) -> None:
        name, digest, day, loss = line["name"], line["digest"], line["day"], float(line.get("loss", 0.0))
        if not (isinstance(name, str) and isinstance(digest, str) and isinstance(day, str) and loss >= 0):
            raise ValueError("it names no answer")
        tail = _tail(loss, int(line.get("numbers", 0)))
        self._known[name] = digest
        if line.get("counts", True):
            self.total += 1
            self.days[day] = self.days.get(day, 0) + 1
        self.loss += loss
        self.tail += tail

    def take(
        self, name: str, digest: str, policy: Policy, loss: float = 0.0, numbers: int = 0, counts: bool = True
    ) -> None:
        """Record that a question is answered; one that was answered before changes nothing.

        Args:
            name: the name of something that is answered once; for questions that may be asked in many ways, the digest.
            digest: the digest of the question.
            policy: the owner's.
            loss: Σ 1/z² of the noise on what leaves.
            numbers: how many numbers leave with noise.
            counts: whether the policy's limits count it as a question.

        Raises:
            Repeated: another question of this name was answered.
            NodeError: the owner does not allow so many questions, or the budget is spent.
        """
        known = self._known.get(name)
        if known is not None:
            if known != digest:
                raise Repeated(f"{name} was answered before, to another question")
            return
        day = time.strftime("%Y-%m-%d")
        if counts and policy.total is not None and self.total >= policy.total:
            raise NodeError(f"its owner's policy (messages.total = {policy.total}): that many questions were answered")
        if counts and policy.daily is not None and self.days.get(day, 0) >= policy.daily:
            raise NodeError(f"its owner's policy (messages.daily = {policy.daily}): that many were answered today")
        if loss and policy.spent(self.loss + loss, self.tail + _tail(loss, numbers)) > policy.budget:
            spent = f"ε = {policy.spent(self.loss, self.tail):.3g} in {self.total} answers"
            raise NodeError(f"its owner's budget (budget.epsilon = {policy.budget:g}) is spent: {spent}")
        line: dict[str, Unknown] = {"name": name, "digest": digest, "day": day}
        line |= ({"loss": loss, "numbers": numbers} if loss else {}) | ({} if counts else {"counts": False})
        with self.path.open("ab") as file:
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._count(line)


def counted(folder: str | os.PathLike[str], day: str) -> tuple[int, int]:
    """How many questions that a policy limits were answered, in all and on a day, without changing the record.

    Lines that cannot be read do not count.
    """
    path, days = pathlib.Path(folder) / FILE, list[Unknown]()
    for text in path.read_bytes().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            match json.loads(text):
                case {"counts": False}:
                    pass
                case {"name": str(), "digest": str(), "day": found}:
                    days.append(found)
    return len(days), days.count(day)


def _tail(loss: float, numbers: int) -> float:
    """The part of δ that the tail of an answer's noise costs."""
    from fedax.privacy import Ledger

    return Ledger(loss**-0.5, 1, numbers=numbers).tail(1) if loss else 0.0


def question_of(text: str, arrays: Iterable[Unknown]) -> str:
    """The digest of a question: of its text, and of the bytes of its arrays."""
    hasher = hashlib.sha256(text.encode())
    for leaf in arrays:
        array = np.ascontiguousarray(leaf)
        hasher.update(f"\n{array.dtype} {array.shape}\n".encode())
        hasher.update(array.reshape(-1).view(np.uint8).data)
    return hasher.hexdigest()[:32]
