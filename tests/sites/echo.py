"""A worker's factory for tests: it answers with the message itself, or does what the message says.

``python -m echo SETTINGS`` is a node with such a worker.
"""

import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fedax.errors import ConfigError, FedaxError
from fedax.sites.protocol.messages import Message


def make(name: str = "echo") -> Callable[[Message], Message]:
    if name == "bad":
        raise ConfigError("data", name, "give a folder")

    calls = itertools.count(1)

    def answer(message: Message) -> Message:
        count = next(calls)
        match message.head.get("do"):
            case "raise":
                raise ZeroDivisionError("on purpose")
            case "sleep":
                time.sleep(message.head["seconds"])
            case "die":
                os._exit(9)
        return Message({**message.head, "name": name, "pid": os.getpid(), "calls": count}, message.tensors)

    return answer


if __name__ == "__main__":
    from fedax.sites.service import node

    given = json.loads(sys.argv[1])
    try:
        node.run(**given | {name: Path(given[name]) for name in ("ca", "key", "state")}, factory="echo:make")
    except FedaxError as error:
        print(error)
        sys.exit(2)
