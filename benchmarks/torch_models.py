"""A round of FedAvg with PyTorch's ResNet-18 and with fedax's own, in turns. See README.md."""

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

import fedax

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.tasks import torch_models

CLASSES = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--examples", type=int, default=32, help="of each client")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    n = options.clients * options.examples
    x, y = rng.normal(size=(n, 32, 32, 3)).astype(np.float32), rng.integers(0, CLASSES, n)
    module = torch_models.ResNet18(width=64, groups=32, classes=CLASSES)
    tasks = {
        "fedax": (fedax.tasks.resnet18((32, 32, 3), CLASSES), x),
        "torch": (
            fedax.tasks.from_torch(module, torch.zeros(2, 3, 32, 32)),
            np.ascontiguousarray(np.moveaxis(x, 3, 1)),
        ),
    }
    method, sizes = fedax.create("fedavg", lr=0.001), [options.examples] * options.clients
    run = {"rounds": 1, "work": fedax.Steps(options.steps), "batch_size": options.batch}

    def round_of(name: str) -> tuple[float, float]:
        """Seconds by the clock and of the processors, which other programs do not lengthen."""
        task, images = tasks[name]
        data = fedax.FederatedData({"x": images, "y": y}, sizes)
        began = time.perf_counter(), time.process_time()
        fedax.simulate(method, task, data, **run)
        return time.perf_counter() - began[0], time.process_time() - began[1]

    for name in tasks:
        print(f"{name}: {round_of(name)[0]:.1f} s with compiling", flush=True)
    seconds = {name: [] for name in tasks}
    for i in range(options.repeats):
        for name in list(tasks)[:: 1 if i % 2 else -1]:
            seconds[name].append(round_of(name))
    for kind, which in (("by the clock", 0), ("of the processors", 1)):
        own, other = ([result[which] for result in seconds[name]] for name in ("fedax", "torch"))
        ratios = [a / b for a, b in zip(own, other, strict=True)]
        print(f"seconds a round {kind}: fedax {statistics.median(own):.2f}, module {statistics.median(other):.2f}")
        middle = statistics.median(ratios)
        print(f"speed of PyTorch's module: {middle:.3f} of fedax's own, {min(ratios):.3f} to {max(ratios):.3f}")


if __name__ == "__main__":
    main()
