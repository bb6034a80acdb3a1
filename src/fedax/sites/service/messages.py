"""The messages in letters: a head of JSON, and tensors; a head that is made to do harm is not parsed."""

import json
from collections.abc import Sequence

from fedax.sites.protocol.messages import Message
from fedax.sites.service.letters import LONGEST

_DEEPEST = 64  # levels of nesting in a head


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
