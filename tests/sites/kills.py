"""Kill the processes of a run over nodes at random moments, and check that its results are the same, bit for bit.

``python -m tests.sites.kills --times 5`` kills twenty of each kind of run. It is no test of the suite.
"""

import argparse
import collections
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.sites.federation import (
    PLACES,
    Federation,
    assert_replayed,
    is_running,
    known,
    rows_of,
    same_models,
    same_rows,
    wait_for,
)

ROUNDS = 8
CONFIG = f"""
data = {{name = "digits", clients = 4, partition = "dirichlet", alpha = 0.5}}
work = {{kind = "random-epochs", low = 1, high = 3}}
participation = {{kind = "uniform", size = 3}}
run = {{rounds = {ROUNDS}, batch_size = 16, seeds = 1}}
methods = [{{name = "scaffold", lr = 0.1}}]
"""
PRIVATE = "privacy = {clip = 1.0, noise = 0.1, delta = 1e-3}"
KINDS = {  # kind of run -> a pattern in its configuration, and what stands there in its place
    "plain": ("", ""),
    "private": (r"alpha = 0\.5}", f'alpha = 0.5, weights = "uniform"}}\n{PRIVATE}'),
    "secure": ("seeds = 1", "seeds = 1, secure = {clip = 10.0}"),
    "paced": ("participation = .*", "pace = {concurrency = 3, buffer = 2, start = 'idle'}"),
    "personal": ("scaffold", "ditto"),
}
LONG = 300.0  # seconds that a run may take
WHAT = ("node", "worker", "link", "server")


class Row(NamedTuple):
    """A line of the table."""

    kind: str
    what: str
    when: str
    then: str
    lost: float
    equal: bool


class Trial:
    """One run in which one process is killed.

    Args:
        federation: a running one.
        what: the process to kill, one of ``WHAT``.
        between: whether to kill it between two rounds.
        usual: seconds of a run without kills.
        pace: seconds of a round.
        kind: of ``KINDS``; one whose server does not wait is compared with the simulation of its arrivals.
    """

    def __init__(self, federation: Federation, what: str, between: bool, usual: float, pace: float, kind: str):
        self.kind = kind
        self.federation, self.what, self.between = federation, what, between
        self.usual, self.pace, self.node = usual, pace, random.choice([*PLACES])
        self.out = federation.folder / "runs" / f"{what}-{time.monotonic_ns()}"

    def run(self, reference: Path) -> Row:
        """Run, kill, and compare with the run in ``reference``."""
        federation, after = self.federation, random.randrange(1, ROUNDS - 1)
        began = time.monotonic()
        command = federation.start_run(self.out, **known(federation.folder))
        wait_for(lambda: not is_running(command.pid) or self._rounds() >= after, LONG)
        if not self.between:
            time.sleep(random.uniform(0.0, self.pace))
        when = self._when()
        self._kill()
        reactions = []
        while command.wait(LONG) != 0 and len(reactions) < 3:
            line = (federation.output("run").strip().splitlines() or ["nothing said"])[-1]
            killed = command.returncode == -signal.SIGKILL
            reactions.append("resumed" if killed else f"exit code {command.returncode} ({line[:100]}), resumed")
            command = federation.start_run(self.out, "--resume")  # a private one has its secret from its folder
        lost = time.monotonic() - began - self.usual
        equal = command.returncode == 0
        if self.kind == "paced" and equal:
            try:
                assert_replayed(self.federation, self.out)
            except AssertionError as error:
                print(error, flush=True)
                equal = False
        elif equal:
            equal = same_rows(self.out, reference) and same_models(self.out, reference)
        name = f"{self.what} {self.node}" if self.what in ("node", "worker") else self.what
        return Row(self.kind, name, when, "; ".join(reactions) or "waited", lost, equal)

    def _rounds(self) -> int:
        rows = rows_of(self.out)
        return rows[-1]["round"] if rows else -1

    def _when(self) -> str:
        """The time of the kill as text: the rounds that are over, and the kinds of the nodes' last answers."""
        logs = [(self.federation.log(name) or [{}])[-1] for name in PLACES]
        kinds = [f"{last.get('kind', 'nothing')} {last.get('round', '')}".strip() for last in logs]
        counted = collections.Counter(kinds)
        last = ", ".join(f"{n}x {text}" for text, n in sorted(counted.items()))
        return f"{'between' if self.between else 'in'}, {self._rounds()} over; answered last: {last}"

    def _kill(self) -> None:
        federation, node = self.federation, self.node
        pause = random.uniform(0.0, 2.0)
        if self.what == "server":
            federation.commands["run"].kill()
        elif self.what == "worker":
            os.kill(federation.worker(node), signal.SIGKILL)
        elif self.what == "node":
            federation.kill(node)
            time.sleep(pause)
            federation.start_node(node)
        else:
            federation.kill("link")
            time.sleep(pause)
            federation.start_link()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=1, help="how often each is killed")
    parser.add_argument("--what", nargs="*", default=WHAT, choices=WHAT)
    parser.add_argument("--kind", nargs="*", default=[*KINDS], choices=KINDS)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    random.seed(given.seed)
    folder = Path(tempfile.mkdtemp(prefix="fedax-kills-"))
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder / "compiled")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.05"
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")
    federation, rows = Federation(folder, CONFIG), list[Row]()
    (folder / "runs").mkdir()
    try:
        federation.start_all()
        for kind in given.kind:
            federation.config.write_text(re.sub(*KINDS[kind], CONFIG, count=1))
            usual, reference, warm = 0.0, *(folder / "runs" / f"{kind}-{name}" for name in ("reference", "warm"))
            for out in (warm, reference):
                began = time.monotonic()
                assert federation.start_run(out, **known(folder)).wait(LONG) == 0, federation.output("run")
                usual = time.monotonic() - began
            assert kind == "paced" or (same_rows(warm, reference) and same_models(warm, reference))
            pace = rows_of(reference)[-1]["time"] / ROUNDS
            print(f"\n{kind}: a run takes {usual:.1f} s, a round {pace:.2f} s; {folder}", flush=True)
            print("| killed | when | what happened | seconds lost | equal |\n|---|---|---|---|---|", flush=True)
            for k in range(given.times):
                for what in given.what:
                    row = Trial(federation, what, k % 3 == 2, usual, pace, kind).run(reference)
                    rows.append(row)
                    print(f"| {row.what} | {row.when} | {row.then} | {row.lost:.1f} | {row.equal} |", flush=True)
    finally:
        federation.end()
        print("\n| kind | killed | bit-identical |\n|---|---|---|", flush=True)
        for kind in given.kind:
            equal = [row.equal for row in rows if row.kind == kind]
            print(f"| {kind} | {len(equal)} | {sum(equal)} |", flush=True)
    good = bool(rows) and all(row.equal for row in rows)
    if good:
        shutil.rmtree(folder)
    return not good


if __name__ == "__main__":
    sys.exit(main())
