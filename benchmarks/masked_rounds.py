"""The cost of masks, signatures and a policy in a round over nodes in this process, without a network.

FedAvg on softmax regression, every client at a node of its own. The same rounds plain, with a strict policy and its
record on the disk, and in secure sums; all kinds in turn, the median of the ratios. Of a round with a policy, the share
of the time in which a node checks its rules, and writes its record.

    python benchmarks/masked_rounds.py [--nodes 3 20] [--size 10000] [--repeats 7]
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

import fedax
from fedax.sites.protocol.agreement import Made
from fedax.sites.protocol.answered import Answered
from fedax.sites.protocol.fleet import Fleet
from fedax.sites.protocol.messages import Message
from fedax.sites.protocol.policy import STRICT, Policy
from fedax.sites.protocol.roster import Roster
from fedax.sites.protocol.site import Site
from fedax.sites.protocol.train import train
from fedax.sites.service.certificates import make_node_key

CLASSES, EXAMPLES, ROUNDS = 10, 200, 10
OPTIONS = {"rounds": ROUNDS, "work": fedax.Steps(5), "batch_size": 20}


class Here:
    """Nodes in this process; messages go through JSON, as they do elsewhere."""

    def __init__(self, sites: Mapping[int, Site]):
        self.sites, self.sent, self.received = sites, 0, 0

    def nodes(self) -> list[int]:
        return list(self.sites)

    def ask(self, messages: Mapping[int, Message], timeout: float) -> Iterator[tuple[int, Message]]:
        for number, message in messages.items():
            self.sent += message.size
            answer = self.sites[number].answer(Message(json.loads(json.dumps(message.head)), message.tensors))
            self.received += answer.size
            yield number, Message(json.loads(json.dumps(answer.head)), answer.tensors)


spent = {"rules": 0.0, "record": 0.0}  # seconds


def timed(kind: type, name: str, part: str) -> None:
    """Count the seconds of a method."""
    inner = getattr(kind, name)

    def outer(self: Any, *given: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return inner(self, *given, **named)
        finally:
            spent[part] += time.perf_counter() - began

    setattr(kind, name, outer)


def main() -> None:
    for name in [name for name in vars(Policy) if name.startswith("check_")]:
        timed(Policy, name, "rules")
    timed(Answered, "take", "record")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[3, 20])
    parser.add_argument("--size", type=int, default=10_000, help="numbers of the model")
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    print("| nodes | rounds | seconds a round | against plain | rules | record | bytes a node and round, down | up |")
    print("|---|---|---|---|---|---|---|---|")
    for number in given.nodes:
        features = given.size // CLASSES - 1
        rng = np.random.default_rng(0)
        x = rng.normal(size=(number * EXAMPLES, features)).astype(np.float32)
        data = fedax.FederatedData({"x": x, "y": rng.integers(0, CLASSES, len(x))}, [EXAMPLES] * number)
        task, method = fedax.tasks.softmax_regression(features, CLASSES), fedax.create("fedavg", lr=0.01)
        folder = pathlib.Path(tempfile.mkdtemp())
        for k in range(number):
            make_node_key(folder / f"n{k}")
        # The rules that cost: all but those that this run would break by its names and by leaving masks out.
        open_ = {"methods": None, "tasks": None, "nodes": None, "total": 10**9, "daily": 10**9}
        strict = dataclasses.replace(Policy.of(tomllib.loads(STRICT)), **open_)
        kinds = {"plain": (None, Policy()), "with a policy": (None, strict)}
        kinds["in secure sums"] = (fedax.SecureSum(1.0), strict)
        seconds: dict[str, list[float]] = {}
        bytes_, parts = dict[str, tuple[int, int]](), dict[str, dict[str, float]]()
        for repeat in range(given.repeats + 1):
            for kind, (secure, policy) in kinds.items():
                run = Made(method, task, OPTIONS | ({"secure": secure} if secure else {}))
                made = {
                    k: Site(
                        fedax.FederatedData.from_clients([data.client(k)]), lambda _, run=run: run,
                        tempfile.mkdtemp(dir=folder), [str(k)], policy=policy, roster=Roster(folder, folder / f"n{k}"),
                    )
                    for k in range(number)
                }  # fmt: skip
                began = time.perf_counter()
                spent.update(rules=0.0, record=0.0)
                marks = _marks(Here(made), run)
                parts[kind] = {part: each / (time.perf_counter() - began) for part, each in spent.items()}
                if repeat:  # the first compiles
                    seconds.setdefault(kind, []).append((marks[-1][0] - marks[1][0]) / (ROUNDS - 1))
                down, up = ((marks[-1][i] - marks[1][i]) // (ROUNDS - 1) // number for i in (1, 2))
                bytes_[kind] = (down, up)
        for kind, own in seconds.items():
            ratio = statistics.median(a / b for a, b in zip(own, seconds["plain"], strict=True))
            down, up = bytes_[kind]
            share = " | ".join(f"{each:.2%}" for each in parts[kind].values())
            print(f"| {number} | {kind} | {statistics.median(own):.4f} | {ratio:.2f} | {share} | {down:,} | {up:,} |")
            sys.stdout.flush()


def _marks(at: Here, run: Made) -> list[tuple[float, int, int]]:
    """After each round the time, and the bytes so far."""
    marks: list[tuple[float, int, int]] = []
    train(
        run.method, run.task, Fleet(at, timeout=60.0), {}, **run.options,
        callback=lambda row: marks.append((time.perf_counter(), at.sent, at.received)),
    )  # fmt: skip
    return marks


if __name__ == "__main__":
    main()
