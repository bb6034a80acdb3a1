"""Runs that are killed at random moments and started again, against runs that were left alone. See README.md."""

import argparse
import hashlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np

# One with client memory, one with two exchanges, one adaptive; each with two places for client memory or examples.
CASES = {
    "scaffold": ({"client_memory": "device"}, {"client_memory": "host"}),
    "mime": ({"stream": False}, {"stream": True}),
    "fedadam": ({"stream": False}, {"stream": True}),
}
ROUNDS = 400


def run(method: str, options: dict[str, object], folder: str) -> str:
    """The checksum of all that a run gives, but its seconds."""
    import jax

    import fedax

    rng = np.random.default_rng(0)
    data = fedax.FederatedData({"x": rng.normal(size=(400, 30)), "y": rng.integers(0, 10, 400)}, np.full(20, 20))
    run = fedax.simulate(
        fedax.create(method, lr=0.05),
        fedax.tasks.softmax_regression(30, 10),
        data,
        rounds=ROUNDS,
        work=fedax.Steps(3),
        batch_size=5,
        participation=fedax.Uniform(6),
        evaluate_every=7,
        checkpoint=fedax.Checkpoints(folder, rounds=2, minutes=None),
        # So that a run takes seconds, and is killed while it writes as well as while it computes.
        callback=lambda row: time.sleep(0.05),
        **options,
    )
    sums = hashlib.sha256(json.dumps({k: v.tolist() for k, v in run.history.items() if k != "seconds"}).encode())
    rows = run.memory[np.arange(20)] if hasattr(run.memory, "kept") else run.memory
    for leaf in jax.tree.leaves((run.params, run.state, rows)):
        sums.update(np.ascontiguousarray(leaf).tobytes())
    return sums.hexdigest()


def started(method: str, which: int, folder: pathlib.Path) -> subprocess.Popen:
    command = [sys.executable, __file__, "--one", method, str(which), str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one", nargs=3, metavar=("METHOD", "PLACE", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        method, which, folder = given.one
        print(run(method, CASES[method][int(which)], folder))
        return
    luck = random.Random(given.seed)
    each = -(-given.kills // (2 * len(CASES)))
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = f"{scratch}/compiled"
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        for method in CASES:
            for which, options in enumerate(CASES[method]):
                left_alone, _ = started(method, which, pathlib.Path(scratch, f"{method}-{which}")).communicate()
                begun = time.monotonic()
                started(method, which, pathlib.Path(scratch, f"{method}-{which}-timed")).communicate()
                whole = time.monotonic() - begun
                kills = runs = bad = 0
                while kills < each:
                    folder, runs = pathlib.Path(scratch, f"{method}-{which}-{runs}"), runs + 1
                    while True:
                        process = started(method, which, folder)
                        # From the time at which it begins to compute, to somewhat after its end.
                        limit = luck.uniform(0.2, 1.1) * whole if kills < each else None
                        try:
                            out, error = process.communicate(timeout=limit)
                        except subprocess.TimeoutExpired:
                            process.send_signal(signal.SIGKILL)
                            process.communicate()
                            kills += 1
                            continue
                        if process.returncode != 0 or out != left_alone:
                            bad += 1
                            print(error[-1000:], file=sys.stderr)
                        break
                found = f"{kills} kills in {runs} runs, {bad} ended otherwise than one left alone"
                print(f"{method}, {options}: {found}", flush=True)


if __name__ == "__main__":
    main()
