"""Seconds in which the server, and a node, derive a run from its agreement, and a node the cohort of a round.

Of each the first time, which compiles, and the median of later ones. FedAvg on softmax regression with cohorts of a
tenth, over nodes of one client each in this process. One node is real; the others only agree. The server's time is
without theirs.

    python benchmarks/agreements.py [--nodes 1000] [--runs 9]
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping

import numpy as np

import fedax
from fedax.engine.make import make_job
from fedax.sites.protocol.agreement import Made, cohort_of, digest_of_text
from fedax.sites.protocol.fleet import Fleet
from fedax.sites.protocol.messages import Message
from fedax.sites.protocol.remote import Remote
from fedax.sites.protocol.site import Site

FEATURES, CLASSES = 100, 10


class Nodes:
    """A real node, number 0, and others that agree to everything."""

    def __init__(self, site: Site, number: int):
        self.site, self.number, self.sent, self.received = site, number, 0, 0
        self.about = site.answer(Message({"kind": "hello"})).head
        self.real = self.others = 0.0  # seconds

    def nodes(self) -> list[int]:
        return list(range(self.number))

    def ask(self, messages: Mapping[int, Message], timeout: float) -> Iterator[tuple[int, Message]]:
        for number, message in messages.items():
            began = time.perf_counter()
            if number == 0:
                answer = self.site.answer(Message(json.loads(json.dumps(message.head)), message.tensors))
            elif message.head["kind"] == "hello":
                answer = Message(self.about | {"names": [str(number)], "sizes": [10 + number % 50]})
            else:
                answer = Message({"to": digest_of_text([message.head])})
            if number == 0:
                self.real += time.perf_counter() - began
            else:
                self.others += time.perf_counter() - began
            yield number, answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=9, help="after the first")
    given = parser.parse_args()
    task, method = fedax.tasks.softmax_regression(FEATURES, CLASSES), fedax.create("fedavg", lr=0.1)
    options = {"rounds": 100, "work": fedax.Epochs(1), "batch_size": 10}
    options["participation"] = fedax.Uniform(max(1, given.nodes // 10))
    rng = np.random.default_rng(0)
    examples = {"x": rng.normal(size=(10, FEATURES)).astype(np.float32), "y": rng.integers(0, CLASSES, 10)}
    examples["y"][-1] = CLASSES - 1
    data = fedax.FederatedData(examples, [10])
    nodes = Nodes(Site(data, lambda _: Made(method, task, options), tempfile.mkdtemp(), ["0"]), given.nodes)
    fleet = Fleet(nodes)
    server, node, cohort = list[float](), list[float](), list[float]()
    for seed in range(1 + given.runs):
        nodes.real = nodes.others = 0.0
        began = time.perf_counter()
        job = make_job(method, task, fleet.census, seed=seed, **options)
        Remote(job, fleet, {}, seed)
        server.append(time.perf_counter() - began - nodes.real - nodes.others)
        node.append(nodes.real)
        began = time.perf_counter()
        cohort_of(job, "exchanges", seed)
        cohort.append(time.perf_counter() - began)
    print(f"{given.nodes} nodes; seconds of the first run, and the median of {given.runs} later ones (the longest)")
    for name, seconds in {"server": server, "node": node, "cohort": cohort}.items():
        later = seconds[1:]
        print(f"{name}: {seconds[0]:.3f}, {statistics.median(later):.3f} ({max(later):.3f})")


if __name__ == "__main__":
    main()
