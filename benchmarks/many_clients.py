"""Seconds a round, and peak memory, from 1,000 to 1,000,000 clients with a cohort of 100. See README.md."""

import argparse
import json
import resource
import subprocess
import sys

import numpy as np

NUMBERS = (10**3, 10**4, 10**5, 10**6)
CLASSES, FEATURES = 100, 99  # softmax regression: 10,000 parameters
ROUNDS = 100


def measure(method: str, clients: int, repeats: int, place: str) -> dict[str, object]:
    import fedax

    rng = np.random.default_rng(0)
    x = rng.random((clients, FEATURES), dtype=np.float32)  # one example a client
    data = fedax.FederatedData({"x": x, "y": rng.integers(0, CLASSES, clients)}, np.ones(clients, int))
    task = fedax.tasks.softmax_regression(FEATURES, CLASSES)
    seconds = []
    for seed in range(repeats):
        run = fedax.simulate(
            fedax.create(method, lr=0.1),
            task,
            data,
            rounds=ROUNDS,
            work=fedax.Steps(5),
            batch_size=1,
            participation=fedax.Uniform(100),
            evaluate_every=ROUNDS,
            seed=seed,
            place=fedax.Place(client_memory=place),
        )
        seconds.append(run.history["seconds"][-1] / ROUNDS)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"method": method, "clients": clients, "seconds": seconds, "peak": peak, "place": type(run.memory).__name__}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--memory", default="auto", help="client_memory of the runs")
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "CLIENTS"), help="measure this one here and print JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], int(options.one[1]), options.repeats, options.memory)))
        return
    print(
        "| method | clients | ms a round, median | lowest to highest | peak memory of the process | client memory in |"
    )
    print("|---|---|---|---|---|---|")
    for method in ("fedavg", "scaffold"):
        for clients in NUMBERS:  # each in a process of its own, whose peak it is
            command = [sys.executable, __file__, "--one", method, str(clients), "--repeats", str(options.repeats)]
            out = subprocess.run([*command, "--memory", options.memory], check=True, capture_output=True, text=True)
            result = json.loads(out.stdout)
            ms = np.array(result["seconds"]) * 1e3
            print(
                f"| {method} | {clients:,} | {np.median(ms):.2f} | {ms.min():.2f} to {ms.max():.2f} "
                f"| {result['peak'] / 2**30:.2f} GiB | {result['place']} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
