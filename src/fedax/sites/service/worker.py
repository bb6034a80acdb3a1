"""``python -m fedax.sites.service.worker``: answers a node's questions one by one, in a process that keeps running."""

import json
import os
import pkgutil
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress

from fedax._start import collect_rarely
from fedax.errors import FedaxError
from fedax.sites.protocol.messages import Message
from fedax.sites.service.messages import closed, opened
from fedax.sites.service.processes import receive, send


def answered(answer: Callable[[Message], Message], parts: Sequence[bytes]) -> list[bytes]:
    """The parts of the answer to a question; what the answering function raises becomes an answer with an ``error``.

    Example:
        >>> answered(lambda message: message, [b'{"k": 1}', b"abc"])
        [b'{"k": 1}', b'abc']
        >>> answered(lambda message: message, [b"[]"])
        [b'{"error": "ValueError: no message of fedax: its head is no JSON object"}']
    """
    try:
        return closed(answer(opened(parts)))
    except Exception as error:
        if not isinstance(error, FedaxError):
            traceback.print_exc(file=sys.stderr)
        return closed(Message({"error": f"{type(error).__name__}: {error}"}))


def main(factory: str, arguments: str) -> int:
    """Make the answering function, and answer what comes from the standard input, at the standard output.

    Args:
        factory: ``MODULE:NAME`` of what makes it.
        arguments: its keywords, a JSON object.
    """
    collect_rarely()
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed goes where errors go
    try:
        answer = pkgutil.resolve_name(factory)(**json.loads(arguments))
    except FedaxError as error:
        print(error, file=sys.stderr)
        return 2
    with suppress(EOFError):  # the node has ended
        while True:
            send(answers, answered(answer, receive(questions)))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
