"""The cost of masks and a policy in a round over nodes in this process, without a network; or of deployed nodes.

FedAvg on softmax regression, every client at a node of its own. The same rounds plain, with a strict policy and its
record on the disk, and in secure sums; all kinds in turn, the median of the ratios. Of a round with a policy, the share
of the time in which a node checks its rules, and writes its record.

    python benchmarks/masked_rounds.py [--nodes 3 20] [--size 10000] [--bits 32] [--repeats 7]

``--deployed``: the same kinds by ``fedax deploy run``, with a link and three nodes in processes of their own.
"""

import argparse
import copy
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

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from deployed_rounds import rounds_of

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
from tests.sites.federation import Federation, wait_for

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
    for name in ("take", "sync"):
        timed(Answered, name, "record")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[3, 20])
    parser.add_argument("--size", type=int, default=10_000, help="numbers of the model")
    parser.add_argument("--bits", type=int, default=32, help="of each number of a secure sum")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--deployed", action="store_true", help="nodes in processes of their own")
    given = parser.parse_args()
    if given.deployed:
        return deployed(given.repeats)
    print("| nodes | rounds | seconds a round | against plain | with the policy | rules | record "
          "| bytes a node and round, down | up |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|")
    for number in given.nodes:
        features = given.size // CLASSES - 1
        rng = np.random.default_rng(0)
        x = rng.normal(size=(number * EXAMPLES, features)).astype(np.float32)
        data = fedax.FederatedData({"x": x, "y": rng.integers(0, CLASSES, len(x))}, [EXAMPLES] * number)
        task, method = fedax.tasks.softmax_regression(features, CLASSES), fedax.create("fedavg", lr=0.01)
        folder = pathlib.Path(tempfile.mkdtemp())
        for k in range(number):
            make_node_key(folder / f"n{k}")
        strict = Policy.of(rules())
        kinds = {"plain": (None, Policy()), "with a policy": (None, strict)}
        kinds["in secure sums"] = (fedax.SecureSum(1.0, bits=given.bits), strict)
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
            of = ("plain", "with a policy")
            ratios = [statistics.median(a / b for a, b in zip(own, seconds[each], strict=True)) for each in of]
            down, up = bytes_[kind]
            share = " | ".join(f"{each:.2%}" for each in parts[kind].values())
            against = " | ".join(f"{each:.2f}" for each in ratios)
            print(f"| {number} | {kind} | {statistics.median(own):.4f} | {against} | {share} | {down:,} | {up:,} |")
            sys.stdout.flush()


def rules() -> dict[str, Any]:
    """The rules that cost: all but those that a run would break by its names and by leaving masks out."""
    table = copy.deepcopy(tomllib.loads(STRICT))
    del table["runs"]["methods"], table["runs"]["tasks"], table["secure"]["nodes"]
    return table | {"messages": {"total": 10**9, "daily": 10**9}}


CONFIG = """
name = "rounds"
data = {{name = "digits", clients = 3, partition = "iid"}}
task = {{name = "softmax_regression"}}
run = {{rounds = 40, batch_size = 20, evaluate_every = 1, metrics = []{more}}}
work = {{kind = "steps", steps = 5}}
methods = [{{name = "fedavg", lr = 0.01}}]
"""


def deployed(repeats: int) -> None:
    """The kinds in turn: a run of 40 rounds of each, the medians of all rounds, and of the ratios of runs."""
    kinds = {"plain": ("", {}), "with a policy": ("", rules()), "in secure sums": (", secure = {clip = 1.0}", rules())}
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    federations = dict[str, Federation]()
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name, policy in (("open", {}), ("strict", rules())):
                (at := pathlib.Path(folder) / name).mkdir()
                places = {f"n{k}": [str(k)] for k in range(3)}
                there = federations[name] = Federation(at, CONFIG.format(more=""), places)
                there.start_link()
                for node in there.places:
                    there.start_node(node, **({"policy": policy} if policy else {}))
                wait_for(lambda there=there: all("this is node" in there.output(node) for node in there.places))
            for repeat in range(repeats):
                for kind, (more, policy) in kinds.items():
                    there = federations["strict" if policy else "open"]
                    there.config.write_text(CONFIG.format(more=more))
                    gaps, _ = rounds_of(there, there.folder / f"{kind} {repeat}".replace(" ", "-"))
                    seconds[kind].append(statistics.median(gaps))
        finally:
            for there in federations.values():
                there.end()
    print("| three deployed nodes | seconds a round | against plain | with the policy |\n|---|---|---|---|")
    for kind, own in seconds.items():
        ratios = [statistics.median(a / b for a, b in zip(own, seconds[of], strict=True)) for of in [*kinds][:2]]
        print(f"| {kind} | {statistics.median(own):.4f} | {ratios[0]:.2f} | {ratios[1]:.2f} |")


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
