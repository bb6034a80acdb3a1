"""A worker's factory for tests: it answers with the message itself, or does what the message says."""

import itertools
import os
import time
from collections.abc import Callable

from fedax.errors import ConfigError
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
