"""``python -m fedax.flower.supernode --poll SECONDS ...``: Flower's SuperNode with shorter polling intervals.

Flower's SuperNode polls the link every three seconds for a message, and every half second for the worker's answer.
During a run that would be most of a round. So here it polls often after a message, and less often the longer none
comes, down to once in ``SECONDS``.

Flower's SuperNode also drops an answer that it cannot deliver completely, such as when the link is restarted meanwhile,
and the link waits three minutes for the rest. Here it ends instead. It is then started again, which the link and the
server notice.

Where a server is killed between a message and its parts, Flower's SuperNode leaves the message's task open when the run
is declared over, and the worker waits for the parts for ever. Here the task fails.
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

from fedax._start import collect_rarely

_FLOWERS_POLL, _FLOWERS_LOOK, _LOOK = 3, 0.5, 0.05  # seconds
_SOONEST = 0.1  # seconds between two requests during a run
_SHARE = 8  # a pause is the time since the last message divided by this
_BUSY = 4  # and at least this many times the duration of the last request


def pause(idle: float, took: float, longest: float) -> float:
    """Seconds until the next request for a message.

    Args:
        idle: seconds since a message was answered; infinite if none was.
        took: seconds that the last request took: a busy link is polled less often.
        longest: seconds between two requests when there is no run.

    Example:
        >>> [pause(idle, 0.01, longest=3.0) for idle in (0.1, 2.0, 60.0)], pause(0.1, 0.2, longest=3.0)
        ([0.1, 0.25, 3.0], 0.8)
    """
    return min(longest, max(_SOONEST, idle / _SHARE, _BUSY * took))


class _Clock:
    """Replaces the module ``time`` in Flower's loop, to choose its pauses."""

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


def _push_or_exit(push: Callable[..., None], clock: _Clock) -> Callable[..., None]:
    """Flower's function that sends the parts of an answer; if it fails, this process ends."""

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


def _pull_or_fail(pull: Callable[..., dict[str, bytes]]) -> Callable[..., dict[str, bytes]]:
    """Flower's function that gets the parts of a message; that the run is over is a failure like others."""

    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
    from flwr.supercore.run import RunNotRunningException

    def pulled(object_ids: list[str], *args: Any, **kwargs: Any) -> dict[str, bytes]:
        try:
            return pull(object_ids, *args, **kwargs)
        except RunNotRunningException as error:  # no Exception: Flower would not close the task
            raise ObjectPullError(object_ids[0], "the run is over") from error

    return pulled


def _trusting(ca: Path) -> Any:
    """Flower's client of a link; each new connection trusts the certificates that the file holds at that time."""
    from flwr.supernode.fleet_http_client import FleetHttpClient

    from fedax.flower.calls import over_tls

    class Client(FleetHttpClient):
        @classmethod
        def from_server_address(cls, server_address: str, *_: Any, interceptors: Sequence[Any]) -> Any:  # type: ignore[override]
            return over_tls(cls, server_address, ca, interceptors)

    return Client


def main(arguments: list[str]) -> None:
    """Run the SuperNode: ``--poll SECONDS --root-certificates FILE``, then Flower's own arguments."""
    collect_rarely()
    parser = argparse.ArgumentParser(prog="python -m fedax.flower.supernode", allow_abbrev=False)
    parser.add_argument("--poll", type=float, required=True)
    parser.add_argument("--root-certificates", type=Path, required=True)
    given, rest = parser.parse_known_args(arguments)
    from flwr.supernode.cli.flower_supernode import flower_supernode

    from fedax.flower.calls import poll_often
    from fedax.flower.signature import Signer

    poll_often()
    link = importlib.import_module("flwr.supernode.fleet_http_connection").__dict__
    link["NodeAuthHttpInterceptor"], link["FleetHttpClient"] = Signer, _trusting(given.root_certificates)
    flowers = importlib.import_module("flwr.supernode.start_client_internal").__dict__
    flowers["time"] = clock = _Clock(given.poll)
    flowers["push_object_contents_from_iterable"] = _push_or_exit(flowers["push_object_contents_from_iterable"], clock)
    flowers["pull_objects"] = _pull_or_fail(flowers["pull_objects"])
    sys.argv = ["flower-supernode", f"--root-certificates={given.root_certificates}", *rest]
    flower_supernode()


if __name__ == "__main__":
    main(sys.argv[1:])
