"""Messages as transports carry them: their parts, a head of JSON and tensors, and how nodes are asked.

A head that is made to do harm is not parsed.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from fedax.sites.protocol.messages import Failure, Message, Talk
from fedax.sites.service import LONGEST

_DEEPEST = 64  # levels of nesting in a head
_LOOK = 0.5  # seconds that a look for answers takes at most

Answer = Message | Failure


def closed(message: Message) -> list[bytes]:
    """The parts of a message."""
    head = json.dumps(message.head).encode()
    return [head, message.tensors] if message.tensors else [head]


def opened(parts: Sequence[bytes]) -> Message:
    """The message of parts, which may be anything.

    Raises:
        ValueError: they are not of the form that :func:`closed` makes.

    Example:
        >>> opened(closed(Message({"kind": "hello"}, b"abc")))
        Message(head={'kind': 'hello'}, tensors=b'abc')
        >>> opened([b"[" * 100_000])
        Traceback (most recent call last):
        ValueError: no message of fedax: its head has 100000 lists, tables and texts in 100000 characters
    """
    try:
        head = _head(parts[0].decode())
    except (LookupError, ValueError, RecursionError) as error:
        raise ValueError(f"no message of fedax: {error or type(error).__name__}") from error
    return Message(head, *parts[1:2])


def _head(text: str) -> dict[str, object]:
    """The JSON of a head; a head that would take too much memory, or is nested too deep, is an error."""
    if len(text) > LONGEST:
        raise ValueError(f"its head has {len(text)} characters, and {LONGEST} are taken")
    inner = text.count("[") + text.count("{") + text.count('"') // 2
    if inner > 10_000 + len(text) // 5:  # each takes 50 bytes and more
        raise ValueError(f"its head has {inner} lists, tables and texts in {len(text)} characters")
    head = json.loads(text)
    layer = [head]
    for _ in range(_DEEPEST):
        layer = [inner for each in layer if isinstance(each, dict | list)
                 for inner in (each.values() if isinstance(each, dict) else each)]  # fmt: skip
    if layer:
        raise ValueError(f"its head is nested more than {_DEEPEST} deep")
    if not isinstance(head, dict):
        raise ValueError("its head is no JSON object")
    return head


class Asking:
    """A transport that asks as it talks: until all have answered."""

    def ask(self, messages: Mapping[int, Message], timeout: float) -> Iterator[tuple[int, Answer]]:
        """Ask some nodes.

        Args:
            messages: by the node's number.
            timeout: seconds from now, above 0.

        Yields:
            Of each node its answer as it comes, or a failure.

        Raises:
            NodeError: nodes cannot be asked.
        """
        talk = self.talk(timeout)
        next(talk)
        came, waiting = talk.send(messages), len(messages)
        while True:
            yield from came
            waiting -= len(came)
            if not waiting:
                return
            came = talk.send({})

    def talk(self, timeout: float) -> Talk:
        """As of :class:`fedax.sites.protocol.messages.Transport`."""
        raise NotImplementedError


class SentQuestion(NamedTuple):
    """A question on its way: the node's number, the message's parts, and when it is given up, in monotonic time."""

    node: int
    parts: Sequence[bytes]
    until: float


class Talking(Asking):
    """A transport that sends questions, and looks for their answers."""

    def talk(self, timeout: float) -> Talk:
        """Ask nodes without an end: it is sent messages, and yields answers and failures, look by look.

        Args:
            timeout: seconds that each message has from when it is sent, above 0.

        Raises:
            NodeError: nodes cannot be asked.
        """
        waiting: dict[str, SentQuestion] = {}
        came: list[tuple[int, Answer]] = []
        try:
            while True:
                messages = yield came
                until = time.monotonic() + timeout
                asked = [SentQuestion(node, closed(message), until) for node, message in messages.items()]
                came = self.send(asked, timeout, waiting) if asked else []
                soonest = min((each.until for each in waiting.values()), default=math.inf) - time.monotonic()
                answers = self.look(waiting, 0.0 if came else max(0.0, min(_LOOK, soonest)))
                came += [(waiting.pop(id).node, answer) for id, answer in answers]
                for id in [id for id, each in waiting.items() if time.monotonic() >= each.until]:
                    self.forget(id)
                    came.append((waiting.pop(id).node, Failure(f"no answer in {timeout:g} s", True)))
        finally:
            for id in waiting:
                self.forget(id)

    def send(
        self, questions: Sequence[SentQuestion], timeout: float, waiting: dict[str, SentQuestion]
    ) -> list[tuple[int, Answer]]:
        """Send questions and note them as waiting, by their ids; failures of those that cannot be sent."""
        raise NotImplementedError

    def look(self, waiting: Mapping[str, SentQuestion], seconds: float) -> Sequence[tuple[str, Answer]]:
        """Wait some seconds for answers; those that are there, by the question's id."""
        raise NotImplementedError

    def forget(self, id: str) -> None:
        """Nobody waits for this answer any more."""
