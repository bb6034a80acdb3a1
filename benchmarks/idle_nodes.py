"""The cost of a link with many idle nodes, in CPU seconds a second.

The nodes are threads of this process with a key each. They do what a node does while there is no run: a request for
questions that waits at the link.

    python benchmarks/idle_nodes.py [--nodes 100] [--seconds 60]
"""

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path

from fedax.sites.protocol.roster import private_key
from fedax.sites.service import certificates
from fedax.sites.service.carry import Away, Caller
from fedax.sites.service.letters import Refused
from fedax.sites.service.link import POLL

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


class Idle(threading.Thread):
    """A node that asks the link for questions and gets none."""

    def __init__(self, federation: Federation, name: str, until: threading.Event) -> None:
        super().__init__(daemon=True)
        key = private_key(federation.folder / name)
        self.until, self.requests, self.failed = until, 0, 0
        self.caller = Caller(federation.address, federation.link / "ca.pem", lambda: key)

    def ask(self, seconds: float) -> bool:
        """Ask for questions; false if the link does not answer."""
        try:
            self.caller.call("/question", {"has": [], "seconds": seconds}, seconds=POLL + 15)
        except (Away, Refused):
            return False
        return True

    def run(self) -> None:
        while not self.until.is_set():
            self.failed += not self.ask(POLL)
            self.requests += 1


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
            for node in nodes:
                wait_for(lambda node=node: node.ask(0.0))
                node.start()
                time.sleep(POLL / given.nodes)  # not all at once
            process = federation.commands["link"].pid
            before, requests = cpu(process), sum(node.requests for node in nodes)
            time.sleep(given.seconds)
            used = (cpu(process) - before) / given.seconds
            requests, failed = sum(node.requests for node in nodes) - requests, sum(node.failed for node in nodes)
        finally:
            until.set()
            federation.end()
    print(
        f"{given.nodes} idle nodes, {requests / given.seconds:.1f} requests a second, {failed} failed: "
        f"the link {used:.3f} seconds of CPU a second"
    )


if __name__ == "__main__":
    main()
