"""FedAvg with fedax, through its public names only."""

import argparse
import time
from typing import Any

import jax
import numpy as np
from cases import RESNET18, Case, cases
from protocol import Contender, serve

import fedax

BLOCK = ("first", "second", "shortcut")


def task(case: Case) -> fedax.Task:
    if case.model == "logistic":
        return fedax.tasks.logistic_regression(*case.shape)
    if case.model == "softmax":
        return fedax.tasks.softmax_regression(*case.shape, case.classes)
    if case.model == "mlp":
        return fedax.tasks.mlp(*case.shape, case.classes, hidden=(200, 200))
    if case.model == "cnn":
        return fedax.tasks.cnn(case.shape, case.classes, filters=64, init="he")
    return fedax.tasks.resnet18(case.shape, case.classes)


def to_params(case: Case, arrays: list[np.ndarray]) -> Any:
    """Kernels, scales and biases as the task's parameters."""
    if case.model == "logistic":
        return {"w": arrays[0][:, 0]}
    if case.model == "resnet":
        rest = iter(arrays)
        stem, *blocks = [
            {part: {name: next(rest) for name in ("w", "scale", "offset")} for part in parts}
            for parts in [("stem",), *(BLOCK[: 2 + (stride > 1)] for _, stride in RESNET18)]
        ]
        return stem | {"blocks": blocks, "head": {"w": next(rest), "b": next(rest)}}
    layers = [{"w": w, "b": b} for w, b in zip(arrays[::2], arrays[1::2], strict=True)]
    if case.model == "softmax":
        return layers[0]
    if case.model == "mlp":
        return layers
    head = {"w": layers[-1]["w"].reshape(-1, case.classes), "b": layers[-1]["b"]}
    return {"convs": layers[:-1], "head": head}


def from_params(case: Case, params: Any) -> list[Any]:
    """The task's parameters as kernels, scales and biases."""
    if case.model in ("logistic", "softmax"):
        layers = [params]
    elif case.model == "mlp":
        layers = params
    elif case.model == "cnn":
        layers = [*params["convs"], params["head"]]
    else:
        blocks = [block[part] for block in params["blocks"] for part in BLOCK if part in block]
        layers = [params["stem"], *blocks, params["head"]]
    return [layer[name] for layer in layers for name in ("w", "scale", "offset", "b") if name in layer]


class Fedax(Contender):
    def __init__(self, case: Case):
        self.case = case
        x, y = case.examples()
        y = 2 * y.astype(np.float32) - 1 if case.model == "logistic" else y.astype(np.int32)
        self.data = fedax.FederatedData({"x": x, "y": y}, case.sizes, case.weights / case.weights.sum())
        self.task = task(case)
        self.params: Any = None

    def run(self, rounds: int) -> fedax.Run:
        case = self.case
        equal = len(set(case.steps.tolist())) == 1
        run = fedax.simulate(
            fedax.create("fedavg", lr=case.lr),
            self.task,
            self.data,
            rounds=rounds,
            work=fedax.Epochs(1) if case.epoch else fedax.Steps(int(case.steps[0]) if equal else case.steps),
            batch_size=case.batch,
            participation=fedax.Full() if case.cohort is None else fedax.UniformNormalized(case.cohort),
            evaluate_every=rounds,
            params=to_params(case, case.initial()),
        )
        self.params = run.params
        return run

    def train(self, rounds: int) -> dict[str, float]:
        """``seconds`` is training alone, by the run's own account. ``around`` is by a clock around the whole call, less
        compilation: also the checks of the input, the transfer of the data and an evaluation.
        """
        begin = time.perf_counter()
        run = self.run(rounds)
        around = time.perf_counter() - begin - run.compile_seconds
        return {
            "seconds": float(run.history["seconds"][-1]) / rounds,
            "steps": float(run.history["local_steps"][-1]) / rounds,
            "around": around / rounds,
        }

    def losses(self, rounds: int) -> list[float]:
        return self.run(rounds).history["train_loss"].tolist()

    def parameters(self) -> list[list[float]]:
        return [np.asarray(array).ravel().tolist() for array in from_params(self.case, self.params)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=list(cases()))
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    if jax.default_backend() == "gpu":
        jax.config.update("jax_default_matmul_precision", "float32")  # not TF32, in which the others do not compute
    case = cases()[options.case]
    serve(Fedax(case.small() if options.small else case))
