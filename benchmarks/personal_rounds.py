"""What a round of methods with personal models takes beside FedAvg's: equal steps and minibatches, in turns.

``python benchmarks/personal_rounds.py`` prints medians of ratios to FedAvg's round, and for 100,000 clients that of
heads kept off the device to heads kept on it.
"""

import argparse
import statistics
from typing import Any

import numpy as np

import fedax

LR = {"lr": 0.05}


def methods(head: str) -> dict[str, Any]:
    fedavg = fedax.create("fedavg", **LR)
    return {
        "fedavg": fedavg,
        "mr-mtl": fedax.create("mr-mtl", **LR),
        "ditto": fedax.create("ditto", **LR),
        "head, together": fedax.PersonalPart(fedavg, head, **LR, order="together"),
        "head, first": fedax.PersonalPart(fedavg, head, **LR),
    }


def seconds(method: Any, task: fedax.Task, data: fedax.FederatedData, rounds: int, **options: Any) -> float:
    """Of a round, without compilation and evaluation."""
    given = {"evaluate_every": rounds, "train_loss": "sample:64", "newcomer_turns": 0} | options
    run = fedax.simulate(method, task, data, rounds=rounds, **given)
    return float(run.history["seconds"][-1]) / rounds


def images(shape: tuple[int, ...], clients: int, each: int) -> fedax.FederatedData:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(clients * each, *shape)).astype(np.float32)
    return fedax.FederatedData({"x": x, "y": rng.integers(0, 10, clients * each)}, [each] * clients)


def beside_fedavg(repeats: int) -> None:
    cases = {
        "MLP of 199,210 numbers": (fedax.tasks.mlp(784, 10, hidden=(200, 200)), images((784,), 20, 100), "2.*", 40),
        "CNN": (fedax.tasks.cnn((28, 28, 1), 10), images((28, 28, 1), 10, 64), "head.*", 10),
    }
    print("| model | method | ratio to FedAvg's round, median | lowest to highest |\n|---|---|---|---|")
    for title, (task, data, head, rounds) in cases.items():
        contenders = methods(head)
        took: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(repeats + 1):  # the first warms up
            for name, method in contenders.items():
                took[name].append(seconds(method, task, data, rounds, work=fedax.Steps(10), batch_size=32))
        for name, values in took.items():
            ratios = [value / base for value, base in zip(values[1:], took["fedavg"][1:], strict=True)]
            print(f"| {title} | {name} | {statistics.median(ratios):.2f} | {min(ratios):.2f} to {max(ratios):.2f} |")


def off_the_device(repeats: int, clients: int = 100_000) -> None:
    rng = np.random.default_rng(0)
    x = rng.random((clients, 64), dtype=np.float32)  # one example a client
    data = fedax.FederatedData({"x": x, "y": rng.integers(0, 10, clients)}, np.ones(clients, int))
    task = fedax.tasks.mlp(64, 10, hidden=(64,))
    method = fedax.PersonalPart(fedax.create("fedavg", **LR), "1.*", **LR)
    print(f"| heads of {clients:,} clients | off the device, ratio to on it | lowest to highest |\n|---|---|---|")
    for cohort in (100, 1000):
        given: dict[str, Any] = {"work": fedax.Steps(5), "batch_size": 1, "participation": fedax.Uniform(cohort)}
        took: dict[str, list[float]] = {"device": [], "host": []}
        for _ in range(repeats + 1):
            for place, values in took.items():
                values.append(seconds(method, task, data, 100, place=fedax.Place(client_memory=place), **given))
        ratios = [host / device for host, device in zip(took["host"][1:], took["device"][1:], strict=True)]
        per_round = 1e3 * statistics.median(took["device"][1:])
        name = f"{cohort} a round, {per_round:.1f} ms on it"
        print(f"| {name} | {statistics.median(ratios):.2f} | {min(ratios):.2f} to {max(ratios):.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    beside_fedavg(options.repeats)
    off_the_device(options.repeats)


if __name__ == "__main__":
    main()
