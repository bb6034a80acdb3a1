"""A node: the process that supervises Flower's SuperNode and the worker that answers its messages."""

import argparse
import json
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import filelock
import httpx
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient

from fedax.engine.places.roster import private_key
from fedax.errors import UNSEEN, ConfigError, FedaxError, NodeError
from fedax.files import check_private, write_private
from fedax.flower import certificates, require
from fedax.flower.calls import by_proxy, over_tls
from fedax.flower.processes import SupervisedProcess, ending, free_port, log_level, options
from fedax.flower.signature import Signer

_LOOK = 15.0  # seconds between looks whether the link is still there
_AGAIN = 2.0  # the same if it was not there
_REMIND = 60.0  # seconds between lines that say that the link is not there
_UNKNOWN = 3.0  # seconds for which a key that was registered before may be unknown


def run(
    *,
    link: str,
    ca: str | Path,
    key: str | Path,
    state: str | Path,
    factory: str,
    arguments: Mapping[str, Any],
    poll: float = 3.0,
    trusted: Sequence[str] = (),
    wait: float | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Run a node until SIGINT, SIGTERM or SIGHUP.

    Args:
        link: ``host:port``.
        ca: the file ``ca.pem`` of the link's folder.
        key: the node's private key; it and ``key.pub`` are made where they are missing.
        state: a folder for what the node keeps; of one node only.
        factory: ``module:name`` of a function that makes the answering function, in the worker's process.
        arguments: its keyword arguments, plain JSON.
        poll: seconds between two times that the node asks the link for messages; above 0.
        trusted: hashes of apps that are not fedax's own and that may run code here.
        wait: seconds after which the node ends without a link, or with a key that no link knew before; ``None``: it
            waits for ever.
        say: is called with lines for people.

    Raises:
        NodeError: the link's certificate or the node's key is not good, the link could not be reached for ``wait``
            seconds, or the worker cannot work.
        ConfigError: an argument cannot be used, or others than its owner can read the key or the state.
    """
    require()
    ca, key, state = Path(ca), Path(key), Path(state)
    if not poll > 0:
        raise ConfigError("poll", poll, "give a number of seconds above 0")
    if certificates.make_node_key(key):
        say(f"made the key {key}; give {key}.pub to the coordinator, who puts it into the link's folder nodes")
    check_private(key, "key")
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    check_private(state, "state")
    lock = filelock.FileLock(state / "lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise ConfigError("state", str(state), "another node uses this folder; give each node its own") from None
    write_private(state / "secret", secrets.token_bytes(32))
    runtime = free_port()
    supernode = SupervisedProcess(
        "fedax.flower.supernode",
        options(
            poll=poll,
            superlink=link,
            root_certificates=ca,
            auth_supernode_private_key=key,
            isolation="process",
            host="127.0.0.1",
            port=runtime,
            superexec_auth_secret_file=state / "secret",
        ),
        log=state / "supernode.log",
        environment={"FLWR_LOG_LEVEL": log_level()},
    )
    worker = SupervisedProcess(
        "fedax.flower.worker",
        [
            *options(runtime=f"127.0.0.1:{runtime}", secret_file=state / "secret", factory=factory),
            *options(arguments=json.dumps(dict(arguments))),
            *(f"--trusted={one}" for one in trusted),
        ],
        environment={"FLWR_HOME": str((state / "flwr").resolve()), "FLWR_LOG_LEVEL": "ERROR"},
    )
    connection = _LinkClient(link, ca, key, state, wait, say)
    with lock, ending() as end:
        try:
            while not end.wait(0.2):
                if (status := worker.ended()) is not None:
                    if status == 2:
                        raise NodeError("the worker cannot work; its own line above says why")
                    say(f"the worker has ended (status {status}); it is started again")
                    supernode.stop(0)  # it holds the message that was being answered; the link notices its end
                if (status := supernode.ended()) is not None:
                    say(f"the SuperNode has ended (status {status}; see {state / 'supernode.log'})")
                reachable = connection.reachable()  # first: with a bad certificate there is nothing to start
                if worker.due:
                    worker.start()
                if reachable and supernode.due and (number := connection.activate()) is not None:
                    supernode.start()
                    say(f"this is node {number} at {link}")
        finally:
            worker.stop(0)
            supernode.stop()


class _LinkClient:
    """A node's view of the link: whether it can be reached, and the node's activation before its SuperNode runs."""

    def __init__(self, link: str, ca: Path, key: Path, state: Path, wait: float | None, say: Callable[[str], None]):
        self.link, self.ca, self.key, self.wait, self.say = link, ca, key, wait, say
        self._private = private_key(key)
        self._number_file = state / "number"
        self._next = self._next_line = 0.0
        self._missing: float | None = None
        self._refused: float | None = None
        self._next_try = self._next_reminder = 0.0

    def reachable(self) -> bool:
        """Whether the link could be reached at the last check, which is repeated every few seconds."""
        now = time.monotonic()
        if now < self._next:
            return self._missing is None
        reason = certificates.connection_problem(self.link, self.ca)
        if reason is None:
            if self._missing is not None:
                self.say(f"the link at {self.link} is there")
            self._missing, self._next, self._next_line = None, now + _LOOK, 0.0
            return True
        self._missing, self._next = now if self._missing is None else self._missing, now + _AGAIN
        if self.wait is not None and now - self._missing >= self.wait:
            raise NodeError(f"the link at {self.link} could not be reached for {self.wait:g} s ({reason})")
        if now >= self._next_line:
            self._next_line = now + _REMIND
            self.say(f"the link at {self.link} cannot be reached ({reason}); waiting for it")
        return False

    def activate(self) -> int | None:
        """Make the link ready for a new SuperNode of this node, and return the node's number.

        The link takes a SuperNode that was killed for alive for up to a minute, and refuses another one. So the node is
        deactivated first.

        Returns:
            ``None`` if it failed this time: a new key may still be registered.

        Raises:
            NodeError: the link does not know the key any more, or did not come to know it in time.
        """
        if time.monotonic() < self._next_try:
            return None
        public = self._private.public_key()
        with over_tls(FleetHttpClient, self.link, self.ca, [Signer(self._private, public)]) as client:
            try:
                if self._number_file.exists():
                    with suppress(httpx.HTTPStatusError, ValueError):  # deactivated, or it has another number now
                        client.DeactivateNode(DeactivateNodeRequest(node_id=int(self._number_file.read_text())))
                activated = client.ActivateNode(
                    ActivateNodeRequest(
                        public_key=public_key_to_bytes(public), heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
                    )
                )
                client.DeactivateNode(DeactivateNodeRequest(node_id=activated.node_id))
            except httpx.TransportError as error:
                self._next = 0.0
                if proxy := by_proxy(self.link):
                    self._wait_for_proxy(f"the link at {self.link} cannot be reached ({error}{proxy})")
                return None
            except httpx.HTTPStatusError as error:
                self._refuse(error)
                return None
        self._refused = None
        self._number_file.write_text(str(activated.node_id))
        return int(activated.node_id)

    def _wait_for_proxy(self, text: str) -> None:
        now = time.monotonic()
        self._refused = now if self._refused is None else self._refused
        self._next_try = now + _AGAIN
        if self.wait is not None and now - self._refused >= self.wait:
            raise NodeError(text)
        if now >= self._next_reminder:
            self._next_reminder = now + _REMIND
            self.say(f"{text}; waiting for it")

    def _refuse(self, error: httpx.HTTPStatusError) -> None:
        now = time.monotonic()
        self._refused = now if self._refused is None else self._refused
        if error.response.status_code == httpx.codes.UNAUTHORIZED:
            raise NodeError(
                f"the link at {self.link} refuses this node's signature ({error.response.text[:200]}): set the clock "
                "of this machine; and link and node need the same fedax"
            ) from error
        self._next_try = now + _AGAIN
        if error.response.status_code >= 500:
            return
        new = not self._number_file.exists()
        patience = self.wait if new else _UNKNOWN
        text = f"the link at {self.link} does not know the key {self.key}.pub"
        if patience is not None and now - self._refused >= patience:
            raise NodeError(
                f"{text}: the coordinator has to put it into the link's folder nodes (or another node with this key is "
                "running, or was killed in the last minute)"
            ) from error
        if new and now >= self._next_reminder:
            self._next_reminder = now + _REMIND
            self.say(f"{text} yet; waiting until it is in the link's folder nodes")


def main(arguments: Sequence[str]) -> int:
    """The command line of :func:`run`."""
    parser = argparse.ArgumentParser(prog="python -m fedax.flower.node")
    for name in ("link", "ca", "key", "state", "factory"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--arguments", type=json.loads, default={})
    parser.add_argument("--poll", type=float, default=3.0)
    parser.add_argument("--trusted", action="append", default=[])
    parser.add_argument("--wait", type=float)
    given = parser.parse_args(arguments)
    try:
        run(**vars(given), say=lambda line: print(line.translate(UNSEEN), flush=True))
    except FedaxError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
