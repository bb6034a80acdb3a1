"""The record of a node's answers, on its disk: each exchange once, the number of questions, the privacy budget spent.

A server that requests one exchange of a run for two cohorts, or two sums for one model, learns more from the difference
than from either. One that asks for a noisy figure again and again, each time a little differently,
averages the noise away. So a node records its answers in all runs in a file that is only appended to. A line is on the
disk before the answer leaves; an answer without a line does not leave. Lines of answers that leave together are brought
to the disk together.
"""

import contextlib
import json
import os
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedax.contract.types import Unknown
from fedax.errors import ConfigError, NodeError
from fedax.sites.protocol.policy import Policy
from fedax.sites.protocol.refusals import Refusal, Rule

FILE = "answered.jsonl"


class Repeated(NodeError):
    """Another question of the same name was answered before."""


class Share(NamedTuple):
    """What enters an answer, and with which weight.

    Attributes:
        of: the digest of what is summed: of the kind of answer and of the model. Sums of the same can be subtracted.
        part: ``"train"``, ``"val"`` or ``"test"``; or ``"nodes"``, of a secure sum.
        weights: client, or node -> its weight, > 0.
        split: how rows are split, as plain JSON.
    """

    of: str
    part: str
    weights: Mapping[str, float]
    split: Unknown = None


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
        fedax.sites.protocol.answered.Repeated: exchange 7/0 was answered before, to another question
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self.path = pathlib.Path(folder) / FILE
        content = self.path.read_bytes() if self.path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            print(f"{self.path}: its last line was not written whole, and its answer has not left; it is removed")
            os.truncate(self.path, len(whole))
        self._read(whole)

    def _read(self, content: bytes) -> None:
        self._known: dict[str, str] = {}
        self._shares: dict[str, list[Share]] = {}
        self.total, self.days, self.loss, self.tail = 0, {}, 0.0, 0.0  # type: int, dict[str, int], float, float
        self._size = self._safe = len(content)  # bytes of the lines, and of those that are on the disk for certain
        for number, line in enumerate(content.splitlines(), 1):
            try:
                self._count(json.loads(line))
            except (ValueError, TypeError, LookupError) as error:
                text = f"line {number} of what was answered cannot be read ({error}); restore it from a copy"
                raise ConfigError("folder", str(self.path), text) from error

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
        for given in line.get("shares", ()):
            share = Share(*given)
            if share not in (known := self._shares.setdefault(share.of, [])):
                known.append(share)

    def known(self, name: str, digest: str) -> bool:
        """Whether this question was answered before.

        Raises:
            Repeated: another question of this name was.
        """
        found = self._known.get(name)
        if found not in (None, digest):
            raise Repeated(f"{name} was answered before, to another question")
        return found is not None

    def shares(self, of: str) -> list[Share]:
        """What entered the answers so far whose sums can be subtracted."""
        return list(self._shares.get(of, ()))

    def take(
        self,
        name: str,
        digest: str,
        policy: Policy,
        loss: float = 0.0,
        numbers: int = 0,
        counts: bool = True,
        shares: Sequence[Share] = (),
    ) -> None:
        """Record that a question is answered; one that was answered before changes nothing. :meth:`sync` comes next.

        Args:
            name: the name of something that is answered once; for questions that may be asked in many ways, the digest.
            digest: the digest of the question, and of the data.
            policy: the owner's.
            loss: Σ 1/z² of the noise on what leaves.
            numbers: how many numbers leave with noise.
            counts: whether the policy's limits count it as a question.
            shares: what enters the answer.

        Raises:
            Repeated: another question of this name was answered.
            Refusal: the owner does not allow so many questions, the budget is spent, or the disk is full.
        """
        if self.known(name, digest):
            return
        day = time.strftime("%Y-%m-%d")
        if counts and policy.total is not None and self.total >= policy.total:
            raise Refusal(Rule.TOTAL, policy.total)
        if counts and policy.daily is not None and self.days.get(day, 0) >= policy.daily:
            raise Refusal(Rule.DAILY, policy.daily)
        if loss and policy.spent(self.loss + loss, self.tail + _tail(loss, numbers)) > policy.budget:
            raise Refusal(Rule.BUDGET, policy.budget)
        line: dict[str, Unknown] = {"name": name, "digest": digest, "day": day}
        line |= ({"loss": loss, "numbers": numbers} if loss else {}) | ({} if counts else {"counts": False})
        line |= {"shares": shares} if shares else {}
        text = json.dumps(line).encode() + b"\n"
        try:
            with self.path.open("ab") as file:
                file.truncate(self._size)  # what an earlier attempt left of its line is removed
                file.write(text)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.truncate(self.path, self._size)
            raise Refusal(Rule.DISK) from error
        self._size += len(text)
        self._count(json.loads(text))

    def sync(self) -> None:
        """Bring the new lines to the disk, before their answers leave.

        Raises:
            Refusal: that failed; the questions count as not answered.
        """
        if self._safe == self._size:
            return
        try:
            with self.path.open("ab") as file:
                os.fsync(file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                os.truncate(self.path, self._safe)
            self._read(self.path.read_bytes()[: self._safe])
            raise Refusal(Rule.DISK) from error
        self._safe = self._size


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
