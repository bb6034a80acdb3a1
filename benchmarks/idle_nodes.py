"""The CPU load of a link with many idle nodes, in CPU seconds a second.

The nodes are threads of this process with a key each. They do what a SuperNode does while there is no run: a request
for messages every three seconds, and a heartbeat every thirty.

    python benchmarks/idle_nodes.py [--nodes 100] [--seconds 60]
"""

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient

from fedax.engine.places.roster import private_key
from fedax.sites import certificates
from fedax.sites.calls import over_tls
from fedax.sites.signature import Signer

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.deployed_rounds import cpu
from tests.sites.federation import Federation, wait_for

CONFIG = """
name = "idle"
data = {name = "digits", clients = 4, partition = "iid"}
task = {name = "softmax_regression"}
run = {rounds = 1, batch_size = 32, seeds = 1}
methods = [{name = "fedavg", lr = 0.1}]
"""
POLL = 3.0  # seconds between two requests of a node: the default of `fedax deploy node`


class Idle(threading.Thread):
    """A node that polls the link and gets no message."""

    def __init__(self, federation: Federation, name: str, until: threading.Event) -> None:
        super().__init__(daemon=True)
        private = private_key(federation.folder / name)
        self.key, self.until, self.requests, self.failed = private.public_key(), until, 0, 0
        signer = Signer(private, self.key)
        self.client = over_tls(FleetHttpClient, federation.address, federation.link / "ca.pem", [signer])

    def activate(self) -> bool:
        """Activate the node; false if the link does not know its key yet."""
        request = ActivateNodeRequest(
            public_key=public_key_to_bytes(self.key), heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
        )
        try:
            self.node = Node(node_id=self.client.ActivateNode(request).node_id)
        except httpx.HTTPError:
            return False
        return True

    def run(self) -> None:
        beat = time.monotonic()
        while not self.until.wait(POLL):
            try:
                self.client.PullMessages(PullMessagesRequest(node=self.node))
                self.requests += 1
                if time.monotonic() - beat > HEARTBEAT_DEFAULT_INTERVAL:
                    beat = time.monotonic()
                    self.client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=60))
            except httpx.HTTPError:
                self.failed += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        federation, until = Federation(Path(folder), CONFIG), threading.Event()
        try:
            federation.start_link()
            wait_for(lambda: certificates.connection_problem(federation.address, federation.link / "ca.pem") is None)
            names = [f"idle{k}" for k in range(given.nodes)]
            for name in names:
                federation.make_key(name)
            nodes = [Idle(federation, name, until) for name in names]
            for k, node in enumerate(nodes):
                wait_for(node.activate)
                node.start()
                time.sleep(POLL / given.nodes * (k < given.nodes))  # not all at once
            time.sleep(5)
            watched = [federation.superlink(), federation.commands["link"].pid]
            before, requests = [cpu(each) for each in watched], sum(node.requests for node in nodes)
            time.sleep(given.seconds)
            used = [(cpu(each) - then) / given.seconds for each, then in zip(watched, before, strict=True)]
            requests, failed = sum(node.requests for node in nodes) - requests, sum(node.failed for node in nodes)
        finally:
            until.set()
            federation.end()
    print(
        f"{given.nodes} idle nodes, {requests / given.seconds:.1f} requests a second, {failed} failed: the SuperLink "
        f"{used[0]:.3f}, its supervisor {used[1]:.3f} seconds of CPU a second"
    )


if __name__ == "__main__":
    main()
