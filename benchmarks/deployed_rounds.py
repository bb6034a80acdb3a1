"""Seconds a round of ``fedax deploy run``, at the defaults that a user has: a link and three nodes on this machine.

FedAvg on digits, four clients, an evaluation after every round. First one method with one seed, then three methods with
three seeds each, which share messages. Between them the link is idle; its CPU time then is what idle nodes cost it.

    python benchmarks/deployed_rounds.py [--rounds 40]
"""

import argparse
import itertools
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.sites.federation import Federation, rows_of

CONFIG = """
name = "rounds"
data = {{name = "digits", clients = 4, partition = "iid"}}
task = {{name = "softmax_regression"}}
run = {{rounds = {rounds}, batch_size = 32, seeds = {seeds}, evaluate_every = 1}}
methods = [{methods}]
"""
METHODS = ["fedavg", "fedprox", "scaffold"]
IDLE = 20.0  # seconds


def config(rounds: int, methods: list[str], seeds: int) -> str:
    """The configuration of some runs."""
    each = ", ".join(f'{{name = "{name}", lr = 0.1}}' for name in methods)
    return CONFIG.format(rounds=rounds, methods=each, seeds=seeds)


def cpu(process: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rounds_of(federation: Federation, out: Path) -> tuple[list[float], float]:
    """Seconds between the rows of one run, but for the first two, and the link's CPU seconds a round."""
    command = federation.start_run(out)
    history, size = out / "metrics.jsonl", 0
    seen: list[float] = []
    first = used = 0.0
    while command.poll() is None:
        time.sleep(0.02)
        if not history.exists() or history.stat().st_size == size:
            continue  # to read the rows takes time from the others
        size, now = history.stat().st_size, time.monotonic()
        rows = rows_of(out)
        done = len([row for row in rows if (row["label"], row["seed"]) == (rows[0]["label"], rows[0]["seed"])])
        if done > len(seen):
            seen += [now] * (done - len(seen))
            used = cpu(federation.commands["link"].pid)
            first = first or (used if len(seen) >= 3 else 0.0)
    assert command.returncode == 0, federation.output("run")
    gaps = [after - before for before, after in itertools.pairwise(seen[2:])]
    return gaps, (used - first) / len(gaps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        federation = Federation(Path(folder), config(given.rounds, METHODS[:1], 1))
        federation.start_all()
        try:
            results = []
            for what, methods, seeds in (("one run", METHODS[:1], 1), ("nine runs", METHODS, 3)):
                federation.config.write_text(config(given.rounds, methods, seeds))
                seconds, used = rounds_of(federation, Path(folder) / what.replace(" ", "-"))
                low, middle, high = statistics.quantiles(seconds, n=4)
                print(
                    f"{what}: {middle:.3f} s a round of all (quartiles {low:.3f} to {high:.3f}); link {used:.3f} s CPU"
                )
                results.append(middle)
                time.sleep(30)  # until the nodes ask seldom again
                before = cpu(federation.commands["link"].pid)
                time.sleep(IDLE)
                used = (cpu(federation.commands["link"].pid) - before) / IDLE
                print(f"idle after it: link {used:.4f} s of CPU a second, with three nodes")
            print(f"nine runs one after another would take {9 * results[0] / results[1]:.1f} times as long")
        finally:
            federation.end()


if __name__ == "__main__":
    main()
