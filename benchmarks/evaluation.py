"""An evaluation of fedax beside PyTorch's loop in ``eval`` mode, on a CPU; both libraries in one environment.

``python benchmarks/evaluation.py`` evaluates the networks of the benchmark of rounds on random images. They take turns;
seconds are medians, and the ratio that of fedax's to the best of PyTorch's batch sizes. See README.md.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import with_fedax
import with_torch
from cases import Case, cases

import fedax
from fedax.engine.evaluate import measured
from fedax.engine.make import make_job

IMAGES = {"cnn": 2000, "resnet": 320}
BATCHES = (64, 128, 256, 512)


def of_fedax(case: Case, x: np.ndarray, y: np.ndarray) -> Callable[[], float]:
    """The training loss of a run's evaluation."""
    data = fedax.FederatedData({"x": x, "y": y.astype("i4")}, [len(x) // 10] * 10)
    params = with_fedax.to_params(case, case.initial())
    given: dict[str, Any] = {"rounds": 1, "work": fedax.Steps(1), "batch_size": 16, "params": params}
    job = make_job(fedax.create("fedavg"), with_fedax.task(case), data, **given)
    server = job.hyper.method.init(job.x)
    return lambda: measured(job, server, 0)[0]["train_loss"]


def of_torch(case: Case, x: np.ndarray, y: np.ndarray, batch: int) -> Callable[[], float]:
    """The mean loss over batches of so many."""
    network = with_torch.network(case).eval()
    images, labels = torch.from_numpy(x).movedim(-1, 1).contiguous(), torch.from_numpy(y)

    def evaluate() -> float:
        total = 0.0
        with torch.inference_mode():
            for at in range(0, len(x), batch):
                outputs = network(images[at : at + batch])
                total += torch.nn.functional.cross_entropy(outputs, labels[at : at + batch], reduction="sum").item()
        return total / len(x)

    return evaluate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name, number in IMAGES.items():
        case, rng = cases()[name], np.random.default_rng(1)
        x, y = rng.standard_normal((number, *case.shape), dtype=np.float32), rng.integers(0, 10, number)
        ways = {"fedax": of_fedax(case, x, y)} | {f"torch {n}": of_torch(case, x, y, n) for n in BATCHES if n <= number}
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        losses = {way: evaluate() for way, evaluate in ways.items()}  # compiles
        assert np.allclose(list(losses.values()), losses["fedax"], rtol=1e-4), losses
        for _ in range(options.repeats):
            for way, evaluate in ways.items():
                began = time.perf_counter()
                evaluate()
                seconds[way].append(time.perf_counter() - began)
        found = {way: statistics.median(each) for way, each in seconds.items()}
        best = min(value for way, value in found.items() if way != "fedax")
        print(
            name, number, {way: round(value, 3) for way, value in found.items()}, f"ratio {found['fedax'] / best:.2f}"
        )


if __name__ == "__main__":
    main()
