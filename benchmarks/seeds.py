"""Three seeds of a method side by side, and one after another, with evaluation and checkpoints. See README.md."""

import argparse
import pathlib
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from cases import cases
from with_fedax import Fedax

import fedax
from fedax import programs
from fedax.engine.batch import on_one_core, worth_batching
from fedax.engine.make import make_job
from fedax.experiments import build
from fedax.experiments.defaults import comparison

SEEDS = [0, 1, 2]
ROUNDS = {"digits": 100, "logistic": 2000, "unequal": 100}


def problem(name: str) -> tuple[list[fedax.Algorithm], fedax.Task, fedax.FederatedData, dict[str, Any]]:
    """Methods, task, data, and what else a run is given."""
    if name == "digits":  # as ``fedax compare digits`` has it
        experiment = build(comparison("digits", ["fedavg", "fedprox", "fednova"]))
        data, test = experiment.split(0)
        parts = {"work": experiment.work, "participation": experiment.participation, "test": test}
        return list(experiment.methods.values()), experiment.task, data, parts | experiment.options
    case = cases()[name]
    made = Fedax(case)
    run = {"rounds": ROUNDS[name], "batch_size": case.batch}
    run["work"] = fedax.Epochs(1) if case.epoch else fedax.Steps(int(case.steps[0]))
    run["participation"] = fedax.Full() if case.cohort is None else fedax.UniformNormalized(case.cohort)
    return [fedax.create("fedavg", lr=case.lr)], made.task, made.data, run


def forget() -> None:
    """Let go of all compiled programs."""
    programs._program.cache_clear()
    jax.clear_caches()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", choices=list(ROUNDS), default=list(ROUNDS))
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    for name in options.cases:
        methods, task, data, run = problem(name)
        taken = [worth_batching(make_job(method, task, data, **run), len(SEEDS)) for method in methods]

        def one_by_one() -> list[list[fedax.Run]]:
            with tempfile.TemporaryDirectory() as folder:
                at = lambda k, seed: pathlib.Path(folder, f"{k}-{seed}")  # noqa: E731
                return [
                    [fedax.simulate(m, task, data, seed=s, checkpoint=at(k, s), **run) for s in SEEDS]  # noqa: B023
                    for k, m in enumerate(methods)  # noqa: B023
                ]

        def side_by_side() -> list[list[fedax.Run]]:
            with tempfile.TemporaryDirectory() as folder:
                results = []
                for k, m in enumerate(methods):  # noqa: B023
                    kept = {"seeds": SEEDS, "checkpoint": pathlib.Path(folder, str(k))}
                    results.append(
                        fedax.sweep(lambda m=m: m, [{}], task, data, **kept, **on_one_core(run)).runs[0]  # noqa: B023
                    )
                return results

        ways: list[Callable[[], list[list[fedax.Run]]]] = [one_by_one, side_by_side]
        seconds = np.zeros((2, options.repeats, 2))  # with compilation and without
        for repeat in range(options.repeats):
            results = []
            for k, way in enumerate(ways):
                forget()
                for again in range(2):
                    began = time.perf_counter()
                    runs = way()
                    seconds[again, repeat, k] = time.perf_counter() - began
                results.append(np.array([[each.history["train_loss"] for each in of] for of in runs]))
        difference = np.max(np.abs(results[0] - results[1]) / np.abs(results[0]))
        print(f"{name}, {len(methods)} methods, {run['rounds']} rounds; taken by fedax run: {taken}")
        for words, each in zip(("with compilation", "compiled before"), seconds, strict=True):
            ratios, (alone, together) = each[:, 0] / each[:, 1], np.median(each, axis=0)
            print(
                f"  {words}: {alone:.2f} s one after another, {together:.2f} s side by side; "
                f"ratio {np.median(ratios):.2f} ({ratios.min():.2f} to {ratios.max():.2f})"
            )
        print(f"  largest relative difference of the histories {difference:.1e}", flush=True)


if __name__ == "__main__":
    main()
