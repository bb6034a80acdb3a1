"""Flower's ClientApp: hands each message to the answering function of this process."""

import sys
import traceback
from collections.abc import Callable

import flwr.app
from flwr.clientapp import ClientApp

from fedax.engine.places.nodes import Message
from fedax.errors import FedaxError
from fedax.flower.records import FlowerMessage, pack, unpack

app = ClientApp()

answer: Callable[[Message], Message] | None = None  # the worker sets it; None: under Flower's simulation


@app.query()
def query(message: flwr.app.Message, context: flwr.app.Context) -> flwr.app.Message:
    """Answer a message; what the answering function raises becomes an answer with an ``error``."""
    request = unpack(message.content)
    try:
        reply = _answering(context)(request)
    except Exception as error:
        if not isinstance(error, FedaxError):
            traceback.print_exc(file=sys.stderr)
        reply = Message({"error": f"{type(error).__name__}: {error}"})
    return FlowerMessage(pack(reply), reply_to=message)


def _answering(context: flwr.app.Context) -> Callable[[Message], Message]:
    if answer is not None:
        return answer
    from fedax.flower import local

    return local.ray_node(context)
