"""``python -m fedax.flower.supernode --poll SECONDS ...``: Flower's SuperNode, with our pauses in the place of its own.

Flower's SuperNode asks the link every three seconds whether there is a message, and looks every half second whether the
worker has answered. It drops an answer that it cannot hand over whole, as when the link is restarted meanwhile, and the
link waits three minutes for the rest: here it ends instead, which the link and the server see as it is started again.
"""

import argparse
import importlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from fedax.flower.processes import end_with_parent

_FLOWERS_POLL, _FLOWERS_LOOK, _LOOK = 3, 0.5, 0.05  # seconds


class _Clock:
    """In the place of the module ``time`` in Flower's loop."""

    def __init__(self, poll: float):
        self._pauses = {_FLOWERS_POLL: poll, _FLOWERS_LOOK: _LOOK}

    def sleep(self, seconds: float) -> None:
        time.sleep(self._pauses.get(seconds, seconds))


def _whole(push: Callable[..., None]) -> Callable[..., None]:
    """Flower's function that hands over the parts of an answer; where it cannot, this process ends."""

    import httpx
    from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

    def pushed(*args: Any, **kwargs: Any) -> None:
        try:
            push(*args, **kwargs)
        except (ObjectPushError, httpx.HTTPError) as error:
            print(f"an answer could not be handed over: {error}", file=sys.stderr, flush=True)
            os._exit(1)

    return pushed


def main(arguments: list[str]) -> None:
    """Run the SuperNode: ``--poll SECONDS``, then Flower's own arguments."""
    end_with_parent()
    parser = argparse.ArgumentParser(prog="python -m fedax.flower.supernode", allow_abbrev=False)
    parser.add_argument("--poll", type=float, required=True)
    given, rest = parser.parse_known_args(arguments)
    from flwr.supernode.cli.flower_supernode import flower_supernode

    from fedax.flower.calls import look_often

    look_often()
    flowers = importlib.import_module("flwr.supernode.start_client_internal").__dict__
    flowers["time"] = _Clock(given.poll)
    flowers["push_object_contents_from_iterable"] = _whole(flowers["push_object_contents_from_iterable"])
    sys.argv = ["flower-supernode", *rest]
    flower_supernode()


if __name__ == "__main__":
    main(sys.argv[1:])
