"""``python -m fedax.flower.supernode --poll SECONDS ...``: Flower's SuperNode, with our pauses in the place of its own.

Flower's SuperNode asks the link every three seconds whether there is a message, and looks every half second whether the
worker has answered. While a run goes on that would be most of a round. So here it asks often after a message has come,
and the less often the longer none came, down to once in ``SECONDS``.

Flower's SuperNode also drops an answer that it cannot hand over whole, as when the link is restarted meanwhile, and the
link waits three minutes for the rest: here it ends instead, which the link and the server see as it is started again.
"""

import argparse
import importlib
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedax.flower.processes import end_with_parent

_FLOWERS_POLL, _FLOWERS_LOOK, _LOOK = 3, 0.5, 0.05  # seconds
_SOONEST = 0.1  # seconds between two questions while a run goes on
_SHARE = 8  # a pause is this share of the time since the last message
_BUSY = 4  # and at least so many times as long as the last question took


def pause(idle: float, took: float, longest: float) -> float:
    """Seconds until the next question for a message.

    Args:
        idle: seconds since a message was answered; infinite where none was.
        took: seconds that the last question took: a link with much to do is asked less often.
        longest: seconds between two questions where nothing goes on.

    Example:
        >>> [pause(idle, 0.01, longest=3.0) for idle in (0.1, 2.0, 60.0)], pause(0.1, 0.2, longest=3.0)
        ([0.1, 0.25, 3.0], 0.8)
    """
    return min(longest, max(_SOONEST, idle / _SHARE, _BUSY * took))


class _Clock:
    """In the place of the module ``time`` in Flower's loop."""

    def __init__(self, longest: float):
        self._longest = longest
        self._answered, self._began = -math.inf, time.monotonic()

    def answered(self) -> None:
        """A message was answered."""
        self._answered = self._began = time.monotonic()

    def sleep(self, seconds: float) -> None:
        now = time.monotonic()
        if seconds == _FLOWERS_POLL:
            seconds = pause(now - self._answered, now - self._began, self._longest)
        time.sleep(_LOOK if seconds == _FLOWERS_LOOK else seconds)
        self._began = time.monotonic()


def _whole(push: Callable[..., None], clock: _Clock) -> Callable[..., None]:
    """Flower's function that hands over the parts of an answer; where it cannot, this process ends."""

    import httpx
    from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

    def pushed(*args: Any, **kwargs: Any) -> None:
        try:
            push(*args, **kwargs)
            clock.answered()
        except (ObjectPushError, httpx.HTTPError) as error:
            print(f"an answer could not be handed over: {error}", file=sys.stderr, flush=True)
            os._exit(1)

    return pushed


def _trusting(ca: Path) -> Any:
    """Flower's client of a link, whose new connections trust what a file holds then."""
    from flwr.supernode.fleet_http_client import FleetHttpClient

    from fedax.flower.calls import over_tls

    class Client(FleetHttpClient):
        @classmethod
        def from_server_address(cls, server_address: str, *_: Any, interceptors: Sequence[Any]) -> Any:  # type: ignore[override]
            return over_tls(cls, server_address, ca, interceptors)

    return Client


def main(arguments: list[str]) -> None:
    """Run the SuperNode: ``--poll SECONDS --root-certificates FILE``, then Flower's own arguments."""
    end_with_parent()
    parser = argparse.ArgumentParser(prog="python -m fedax.flower.supernode", allow_abbrev=False)
    parser.add_argument("--poll", type=float, required=True)
    parser.add_argument("--root-certificates", type=Path, required=True)
    given, rest = parser.parse_known_args(arguments)
    from flwr.supernode.cli.flower_supernode import flower_supernode

    from fedax.flower.calls import look_often
    from fedax.flower.signature import Signer

    look_often()
    link = importlib.import_module("flwr.supernode.fleet_http_connection").__dict__
    link["NodeAuthHttpInterceptor"], link["FleetHttpClient"] = Signer, _trusting(given.root_certificates)
    flowers = importlib.import_module("flwr.supernode.start_client_internal").__dict__
    flowers["time"] = clock = _Clock(given.poll)
    flowers["push_object_contents_from_iterable"] = _whole(flowers["push_object_contents_from_iterable"], clock)
    sys.argv = ["flower-supernode", f"--root-certificates={given.root_certificates}", *rest]
    flower_supernode()


if __name__ == "__main__":
    main(sys.argv[1:])
