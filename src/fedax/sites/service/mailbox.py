"""The link's mailbox: questions that wait for nodes, answers that wait for the run, and parts of both; all in memory.

What it holds is bounded. Nothing of it outlives the link: after a restart the run asks again, and nodes answer again.
"""

import asyncio
import collections
import dataclasses
import hashlib
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping

from fedax.sites.service.letters import Letter, Part, Refused

RUN = -1  # the party that is the run; the others are nodes, by their numbers
MOST = 16  # questions that may wait for one node
_KEPT = 60.0  # seconds for which an upload that no letter names is kept, and a run that is gone
_NO_QUESTION = "no question waits for this answer of this node"
_GONE = 3.0  # seconds without an open request after which a party is gone


class PartUpload:
    """A part that arrives piece by piece."""

    def __init__(self, part: Part):
        self.part, self.content, self.touched = part, bytearray(), time.monotonic()
        self._hasher = hashlib.sha256()

    def add(self, at: int, piece: bytes) -> None:
        """Add a piece that begins at byte ``at``; one over a connection that another has replaced is refused."""
        if at != len(self.content):
            raise Refused(409, f"{len(self.content)} bytes are here")
        if at + len(piece) > self.part.size:
            raise Refused(413, "it is longer than was said")
        self.content += piece
        self._hasher.update(piece)
        self.touched = time.monotonic()

    @property
    def whole(self) -> bool:
        """Whether all is there, and is what was said."""
        return len(self.content) == self.part.size and self._hasher.hexdigest() == self.part.digest


@dataclasses.dataclass
class Party:
    """A node, or the run: whether it is there.

    Attributes:
        process: the random name of its process.
        open: how many requests of it are under way.
        changed: when it came or went, in Unix time.
        bell: is set when something waits for it.
    """

    process: str = ""
    open: int = 0
    here: bool = False
    last: float = 0.0
    changed: float = 0.0
    bell: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)


@dataclasses.dataclass
class Correspondence:
    """A question, and its answer once that is there."""

    question: Letter
    asked: list[bytes]
    answer: Letter | None = None
    answered: list[bytes] = dataclasses.field(default_factory=list)


class Mailbox:
    """What waits at the link.

    Args:
        room: bytes that it may hold in all; one part may take a quarter.
        now: the link's clock, in Unix time.
    """

    def __init__(self, room: int, now: Callable[[], float] = time.time):
        self.room, self.now = room, now
        self.run = self.ended = ""
        self.exchanges: dict[str, Correspondence] = {}
        self.uploads: dict[tuple[int, str], PartUpload] = {}
        self.parties = collections.defaultdict[int, Party](Party)

    # ---- who is there

    def enter(self, party: int, process: str) -> Party:
        """A request of a party begins.

        Raises:
            Refused: another process of it is there.
        """
        known = self.parties[party]
        if known.process != process:
            if process == self.ended:
                raise Refused(409, "this run has ended")
            if self.is_here(party):
                what = "another run is under way" if party == RUN else "another node with this key is running"
                raise Refused(409, what)
            if party == RUN:
                self.end()
                self.run = process
            known.process = process
        known.open += 1
        if not known.here:
            known.here, known.changed = True, self.now()
        return known

    def leave(self, party: Party) -> None:
        """A request of it has ended."""
        party.open -= 1
        party.last = time.monotonic()

    def is_here(self, party: int) -> bool:
        """Whether it has a request under way, or had until a moment ago."""
        known = self.parties[party]
        return bool(known.process) and (known.open > 0 or time.monotonic() - known.last < _GONE)

    # ---- questions and answers

    def ask(self, letter: Letter, given: Mapping[str, bytes]) -> str:
        """Put a question in; once is enough. Returns why not, or nothing."""
        if letter.id in self.exchanges:
            return ""
        if sum(each.question.node == letter.node for each in self.exchanges.values()) >= MOST:
            return f"{MOST} questions wait for the node already"
        self.exchanges[letter.id] = Correspondence(letter, self._parts(RUN, letter, given))
        self.parties[letter.node].bell.set()
        return ""

    def question(self, node: int, has: Container[str]) -> Correspondence | None:
        """The first question for a node that it has not."""
        for each in self._unanswered(node):
            if each.question.id not in has and each.question.until > self.now():
                return each
        return None

    def _unanswered(self, node: int) -> Iterator[Correspondence]:
        return (each for each in self.exchanges.values() if each.question.node == node and each.answer is None)

    def answer(self, node: int, letter: Letter, given: Mapping[str, bytes]) -> None:
        """Put an answer in.

        Raises:
            Refused: the question is not there, is another node's, or is answered.
        """
        exchange = self.exchanges.get(letter.id)
        if exchange is None or exchange.answer is not None or not exchange.question.node == letter.node == node:
            raise Refused(404, _NO_QUESTION)
        exchange.answered = self._parts(node, letter, given)
        exchange.answer, exchange.asked = letter, []
        for each in [each for each in self.uploads if each[0] == node]:
            del self.uploads[each]
        self.parties[RUN].bell.set()

    def answers(self, has: Container[str]) -> list[Correspondence]:
        """The exchanges with an answer that the run has not."""
        return [each for id, each in self.exchanges.items() if each.answer is not None and id not in has]

    def forget(self, ids: Iterable[str]) -> None:
        """The run has these answers."""
        for id in ids:
            self.exchanges.pop(id, None)

    def end(self) -> None:
        """The run is over: nothing of it is left, and the next one may begin."""
        self.ended, self.run = self.run or self.ended, ""
        self.parties[RUN].process = ""
        self.parties[RUN].bell.set()
        self.exchanges.clear()
        self.uploads.clear()

    def sweep(self) -> None:
        """Forget what nobody comes for any more."""
        now = time.monotonic()
        for number, party in self.parties.items():
            if party.here and not self.is_here(number):
                party.here, party.changed = False, self.now()
        run = self.parties[RUN]
        if self.run and not run.open and now - run.last > _KEPT:
            self.end()
        for id in [id for id, each in self.exchanges.items() if each.question.until < self.now()]:
            del self.exchanges[id]
        for key in [key for key, each in self.uploads.items() if now - each.touched > _KEPT]:
            del self.uploads[key]

    # ---- parts

    def upload(self, party: int, part: Part) -> PartUpload:
        """The upload of a part, which is begun where there is none.

        Raises:
            Refused: there is no room for it, or the node has no question to answer.
        """
        if party != RUN and not any(self._unanswered(party)):
            raise Refused(404, _NO_QUESTION)
        known = self.uploads.get((party, part.digest))
        if known is None or known.part != part or (len(known.content) == part.size and not known.whole):
            self._check_room(part.size)
            known = self.uploads[party, part.digest] = PartUpload(part)
        return known

    def part(self, party: int, digest: str) -> bytes | None:
        """The bytes of a part that waits for a party."""
        for each in self.exchanges.values():
            letter, parts = (each.answer, each.answered) if party == RUN else (each.question, each.asked)
            if letter is not None and party in (RUN, letter.node):
                for part, content in zip(letter.parts, parts, strict=False):
                    if part.digest == digest:
                        return content
        return None

    def _parts(self, party: int, letter: Letter, given: Mapping[str, bytes]) -> list[bytes]:
        found = []
        for part in letter.parts:
            content = given.get(part.digest)
            if content is None and (upload := self.uploads.get((party, part.digest))) is not None and upload.whole:
                upload.touched = time.monotonic()
                content = upload.content  # type: ignore[assignment]
            if content is None or len(content) != part.size:
                raise Refused(409, f"the part {part.digest} is not here")
            found.append(content)
        self._check_room(sum(map(len, given.values())))
        return found

    def _check_room(self, size: int) -> None:
        if not 0 <= size <= self.room // 4:
            raise Refused(413, f"{size} bytes are too many; {self.room // 4} are taken here")
        held = {
            id(each): len(each)
            for exchange in self.exchanges.values()
            for each in (*exchange.asked, *exchange.answered)
        }
        held |= {id(each.content): each.part.size for each in self.uploads.values()}
        if sum(held.values()) + size > self.room:
            raise Refused(507, "the link's memory is full; try again later")
