"""Seconds of an exchange over a link in which no client computes anything, from the question to the last answer.

A link and nodes on this machine, with TLS and keys.

    python benchmarks/link_round.py [--nodes 3] [--rounds 50] [--size 0]
"""

import argparse
import contextlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

from fedax.sites.protocol.messages import Message
from fedax.sites.service import certificates, link
from fedax.sites.service.processes import SupervisedProcess, free_port
from fedax.sites.service.transport import connect

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.deployed_rounds import cpu
from tests.processes import options, wait_for


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--size", type=int, default=0, help="bytes of arrays, there and back")
    given = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1] / "tests" / "sites"), *sys.path])
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as ends:
        folder, port = Path(name), free_port()
        address, place = f"127.0.0.1:{port}", folder / "link"
        link.prepare(place, [])
        of_link = options(folder=place, port=port, host="127.0.0.1", bind="127.0.0.1")
        commands = [SupervisedProcess("fedax", ["deploy", "link", *of_link])]
        for k in range(given.nodes):
            certificates.make_node_key(folder / f"n{k}")
            (folder / f"n{k}.pub").rename(place / "nodes" / f"n{k}.pub")
            node = {"link": address, "ca": place / "ca.pem", "key": folder / f"n{k}", "state": folder / f"s{k}"}
            commands.append(SupervisedProcess("echo", [json.dumps({**node, "arguments": {}}, default=str)]))
        for command in commands:
            ends.callback(command.stop)
            command.start()
        wait_for(lambda: certificates.connection_problem(address, place / "ca.pem") is None)
        carrier = ends.enter_context(connect(address, place))
        wait_for(lambda: len(carrier.nodes()) == given.nodes)
        messages = dict.fromkeys(carrier.nodes(), Message({}, bytes(given.size)))
        list(carrier.ask(messages, 60.0))
        processes = [os.getpid(), *(each.process.pid for each in commands if each.process)]
        seconds, before = [], [cpu(each) for each in processes]
        for _ in range(given.rounds):
            began = time.perf_counter()
            assert all(isinstance(answer, Message) for _, answer in carrier.ask(messages, 60.0))
            seconds.append(time.perf_counter() - began)
        used = [(cpu(each) - then) / given.rounds for each, then in zip(processes, before, strict=True)]
    low, middle, high = statistics.quantiles(seconds, n=4)
    print(f"{middle:.4f} s an exchange (quartiles {low:.4f} to {high:.4f})")
    print(f"CPU seconds an exchange: run {used[0]:.4f}, link {used[1]:.4f}, a node {statistics.mean(used[2:]):.4f}")


if __name__ == "__main__":
    main()
