"""``python -m fedax.flower.supernode --poll SECONDS ...``: Flower's SuperNode, with our pauses in the place of its own.

Flower's SuperNode asks the link every three seconds whether there is a message, and looks every half second whether the
worker has answered.
"""

import argparse
import importlib
import sys
import time

from fedax.flower.processes import end_with_parent

_FLOWERS_POLL, _FLOWERS_LOOK, _LOOK = 3, 0.5, 0.05  # seconds


class _Clock:
    """In the place of the module ``time`` in Flower's loop."""

    def __init__(self, poll: float):
        self._pauses = {_FLOWERS_POLL: poll, _FLOWERS_LOOK: _LOOK}

    def sleep(self, seconds: float) -> None:
        time.sleep(self._pauses.get(seconds, seconds))


def main(arguments: list[str]) -> None:
    """Run the SuperNode: ``--poll SECONDS``, then Flower's own arguments."""
    end_with_parent()
    parser = argparse.ArgumentParser(prog="python -m fedax.flower.supernode", allow_abbrev=False)
    parser.add_argument("--poll", type=float, required=True)
    given, rest = parser.parse_known_args(arguments)
    from flwr.supernode.cli.flower_supernode import flower_supernode

    from fedax.flower.calls import look_often

    look_often()
    importlib.import_module("flwr.supernode.start_client_internal").__dict__["time"] = _Clock(given.poll)
    sys.argv = ["flower-supernode", *rest]
    flower_supernode()


if __name__ == "__main__":
    main(sys.argv[1:])
