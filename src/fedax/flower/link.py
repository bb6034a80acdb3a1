"""The link, to which nodes and servers connect: its folder, and the process that supervises Flower's SuperLink."""

import argparse
import json
import math
import secrets
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, UnregisterNodeRequest

from fedax._start import reach_directly
from fedax.errors import UNSEEN, ConfigError, FedaxError, NodeError
from fedax.files import check_private, write_private
from fedax.flower import certificates, require
from fedax.flower.calls import control, secret_of
from fedax.flower.connections import Limits, everywhere, family
from fedax.flower.processes import SupervisedProcess, ending, log_level, options

_LOOK = 1.0  # seconds between looks into the folder of keys
_AGAIN = 10.0  # seconds until the link's list of nodes is compared again if no key was added or removed


def prepare(folder: Path, hosts: Sequence[str]) -> None:
    """Make what a link's folder needs, where it is missing.

    ``ca.pem``, ``ca.key``: an authority of its own; ``server.pem``, ``server.key``: its server's certificate;
    ``secret``: what commands that start runs need; ``nodes/``: for the nodes' public keys.

    Args:
        folder: is made where it is missing.
        hosts: names and IP addresses by which nodes and servers reach the link.

    Raises:
        ConfigError: others than its owner can read a private file in it, or ``ca.key`` is not the key of ``ca.pem``.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in ("ca.key", "server.key", "secret", "link.db"):
        if (folder / name).exists():
            check_private(folder / name, "folder")
    (folder / "nodes").mkdir(exist_ok=True)
    certificates.make_authority(folder)
    certificates.make_server(folder, [*dict.fromkeys([*hosts, "localhost", "127.0.0.1"])])
    if not (folder / "secret").exists():
        write_private(folder / "secret", secrets.token_urlsafe(32).encode())


def run(
    folder: str | Path,
    hosts: Sequence[str],
    port: int,
    *,
    bind: str | None = None,
    limits: Mapping[str, float] | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Run a link until SIGINT, SIGTERM or SIGHUP.

    Args:
        folder: see :func:`prepare`.
        hosts: names and IP addresses by which nodes and servers reach the link.
        port: 1 to 65535.
        bind: the address of this machine that it listens at, of IPv4 or IPv6; ``None``: all.
        limits: those of :class:`fedax.flower.connections.Limits` that are not the usual ones.
        say: is called with lines for people.

    Raises:
        ConfigError: the port is not free, or as of :func:`prepare`.
    """
    require()
    folder = Path(folder)
    # the supervisor itself talks to the link at this address, so the certificate has to name it
    bind = everywhere() if bind is None else bind.removeprefix("[").removesuffix("]")
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bind, bind)
    reach_directly(here)
    address = f"[{here}]:{port}" if ":" in here else f"{here}:{port}"
    try:
        socket.create_server((bind, port), family=family(bind)).close()
    except OSError as error:
        raise ConfigError("port", port, f"cannot be used ({error.strerror}); give another with --port") from error
    prepare(folder, [*hosts, here])
    bounds = dict(limits or {})
    if bind.startswith("127.") or bind == "::1":  # all come from one address, such as the nodes of a rehearsal
        bounds["each"] = bounds.get("total", Limits().total)
    superlink = SupervisedProcess(
        "fedax.flower.superlink",
        options(
            secret_file=folder / "secret",
            limits=json.dumps(bounds),
            host=bind,
            port=port,
            isolation="process",
            enable_supernode_auth=True,
            database=(folder / "link.db").resolve(),
            ssl_certfile=folder / "server.pem",
            ssl_keyfile=folder / "server.key",
            ssl_ca_certfile=folder / "ca.pem",
        ),
        log=folder / "link.log",
        environment={"FLWR_LOG_LEVEL": log_level()},
    )
    keys = _NodeKeys(folder, address, say)
    with ending() as end:
        try:
            ready, look = False, 0.0
            while not end.wait(0.2):
                if (status := superlink.ended()) is not None:
                    say(f"the SuperLink has ended (status {status}; see {folder / 'link.log'}); it is started again")
                    ready = False
                if superlink.due:
                    superlink.start()
                if time.monotonic() < look or not superlink.runs:
                    continue
                if not ready and certificates.connection_problem(address, folder / "ca.pem") is not None:
                    continue
                look = time.monotonic() + _LOOK
                try:
                    keys.reconcile(anyway=not ready)
                except NodeError:  # it is starting or ending
                    continue
                if not ready:
                    say(f"the link is ready at port {port}, with the nodes whose keys are in {folder / 'nodes'}")
                    ready = True
        finally:
            keys.close()
            superlink.stop()


class _NodeKeys:
    """Registers at the link the nodes whose public keys are in its folder, and unregisters all others."""

    def __init__(self, folder: Path, address: str, say: Callable[[str], None]):
        self.folder, self._say = folder / "nodes", say
        self._control = control(address, folder / "ca.pem", secret_of(folder), 2.0)
        self._printed: set[str] = set()
        self._last: tuple[frozenset[bytes], float] = (
            frozenset(),
            -math.inf,
        )  # the last keys, and when

    def reconcile(self, anyway: bool) -> None:
        """Register the nodes of new keys, and unregister those of removed ones.

        Args:
            anyway: even if the keys have not changed since the last time, a few seconds ago.

        Raises:
            NodeError: the SuperLink is not there.
        """
        if not self.folder.is_dir():  # a moved folder is no reason to unregister all nodes
            return
        wanted = {}
        for path in sorted(self.folder.glob("*.pub")):
            try:
                wanted[certificates.load_public(path)] = path
            except ConfigError as error:
                self._say_once(str(error))
        keys = frozenset(wanted)
        if not anyway and keys == self._last[0] and time.monotonic() < self._last[1] + _AGAIN:
            return
        known = {
            node.public_key: node.node_id
            for node in self._control.ListNodes(ListNodesRequest()).nodes_info
            if not node.HasField("unregistered_at")
        }
        for key in wanted.keys() - known.keys():
            name = wanted[key].stem
            try:
                number = self._control.RegisterNode(RegisterNodeRequest(public_key=key, name=name)).node_id
                self._say(f"node {name} is {number}")
            except NodeError as error:
                self._say_once(
                    f"{wanted[key]}: {error}; a key that was removed cannot come back: the node needs a new one"
                )
        for key in known.keys() - wanted.keys():
            self._control.UnregisterNode(UnregisterNodeRequest(node_id=known[key]))
            self._say(f"node {known[key]} is no longer known: its key was removed")
        self._last = keys, time.monotonic()

    def close(self) -> None:
        """End the connection."""
        self._control.close()

    def _say_once(self, line: str) -> None:
        if line not in self._printed:
            self._printed.add(line)
            self._say(line)


def main(arguments: Sequence[str]) -> int:
    """The command line of :func:`run`."""
    parser = argparse.ArgumentParser(prog="python -m fedax.flower.link")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--host", action="append", default=[], dest="hosts")
    parser.add_argument("--port", type=int, default=9443)
    parser.add_argument("--bind")
    given = parser.parse_args(arguments)
    try:
        run(
            given.folder,
            given.hosts,
            given.port,
            bind=given.bind,
            say=lambda line: print(line.translate(UNSEEN), flush=True),
        )
    except FedaxError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
