"""Accuracy under privacy on the problems of two recipes. See README.md.

``python benchmarks/private.py private-digits`` prints the table of docs/results/privacy.md.
``python benchmarks/private.py private-digits --choose`` tries pairs of clip and learning rate in its place, with
ε = 3 and seed 1000, without a fifth of the clients, on whose examples the accuracy decides.
"""

import argparse
import itertools
import math
import warnings
from typing import Any

import numpy as np
from scipy import stats

import fedax
from fedax.experiments import build, read_toml
from fedax.experiments.config.experiment import Experiment
from fedax.privacy import noise_for

SEED, HELD_OUT, EPSILON = 1000, 0.2, 3.0
BUDGETS = (1.0, 3.0, 8.0, math.inf)
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fednova": {"tau_eff": 5.0},  # a number: else each client's number of steps is uploaded, and clipped with it
    "scaffold": {},
    "fedavg-m": {"beta": 0.5},
}
# Recipe -> learning rates and clips that are tried; FedNova and FedAvg-M upload updates per step, five times smaller.
TRIED = {
    "private-digits": ((0.02, 0.05, 0.1, 0.2, 0.5), (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)),
    "private-writers": ((0.02, 0.05, 0.1), (0.02, 0.05, 0.1, 0.2, 0.5)),
}
# Recipe -> method -> the best of them: learning rate and clip.
CHOSEN = {
    "private-digits": {
        "fedavg": (0.5, 1.0),
        "fednova": (0.5, 0.2),
        "scaffold": (0.2, 0.2),
        "fedavg-m": (0.5, 0.1),
    },
    "private-writers": {
        "fedavg": (0.1, 0.5),
        "fednova": (0.1, 0.1),
        "scaffold": (0.1, 0.5),
        "fedavg-m": (0.05, 0.02),
    },
}


def parted(data: fedax.FederatedData) -> tuple[fedax.FederatedData, dict[str, np.ndarray]]:
    """The clients to train with, and the examples of the others."""
    order = np.random.default_rng(SEED).permutation(data.num_clients)
    out, left = np.split(order, [round(HELD_OUT * data.num_clients)])
    train = fedax.FederatedData.from_clients([data.client(int(i)) for i in np.sort(left)])
    held = [data.client(int(i)) for i in out]
    return train.with_weights(np.full(len(left), 1 / len(left))), {
        name: np.concatenate([each[name] for each in held]) for name in held[0]
    }


def accuracies(experiment: Experiment, data: Any, test: Any, points: list[dict[str, Any]], seeds: Any) -> np.ndarray:
    """[points, seeds] after the last round; a point has ``method``, ``lr`` and, if private, ``clip`` and ``noise``."""
    delta, rounds = experiment.config["privacy"]["delta"], experiment.config["run"]["rounds"]

    def run(method: str, lr: float, clip: float | None = None, noise: float = 0.0) -> dict[str, Any]:
        privacy = None if clip is None else fedax.DP(clip, noise, delta)
        return {"algorithm": fedax.create(method, lr=lr, **METHODS[method]), "privacy": privacy}

    sweep = fedax.sweep(
        run,
        points,
        experiment.task,
        data,
        seeds=seeds,
        rounds=rounds,
        work=experiment.work,
        batch_size=experiment.config["run"]["batch_size"],
        participation=experiment.participation,
        test=test,
        evaluate_every=rounds,
    )
    return np.array([[run.history["test_accuracy"][-1] for run in runs] for runs in sweep.runs])


def choose(recipe: str, experiment: Experiment, noise: float) -> None:
    """Print the best pairs of every method."""
    train, held = parted(experiment.data)
    noise *= train.num_clients / experiment.data.num_clients  # as large on the mean of fewer clients
    for method in METHODS:
        pairs = list(itertools.product(*TRIED[recipe]))
        points = [{"method": method, "lr": lr, "clip": clip, "noise": noise} for lr, clip in pairs]
        scores = accuracies(experiment, train, held, points, [SEED])[:, 0]
        best = [f"{scores[k]:.3f} (lr {pairs[k][0]:g}, clip {pairs[k][1]:g})" for k in np.argsort(-scores)[:5]]
        print(f"{method}: {', '.join(best)}", flush=True)


def table(recipe: str, experiment: Experiment, noises: dict[float, float], seeds: int) -> None:
    """Print mean and standard deviation over seeds, and p of paired t-tests against FedAvg, with Holm's correction."""
    results = {}
    for method, (lr, clip) in CHOSEN[recipe].items():
        points = [{"method": method, "lr": lr, "clip": clip, "noise": noise} for noise in noises.values()]
        private = accuracies(experiment, experiment.data, experiment.test, points, seeds)
        open_ = accuracies(experiment, experiment.data, experiment.test, [{"method": method, "lr": lr}], seeds)
        results[method] = 100 * np.concatenate([private, open_])
    print("| method | lr, clip | " + " | ".join(f"ε = {e:g}" if e < math.inf else "clip only" for e in noises), end="")
    print(" | neither |\n|---|---|" + "---|" * (len(noises) + 1))
    others = [values for method, values in results.items() if method != "fedavg"]
    corrected = [
        _holm(np.array([_p(base, values[k]) for values in others])) for k, base in enumerate(results["fedavg"])
    ]
    for number, (method, values) in enumerate(results.items()):
        cells = []
        for k, row in enumerate(values):
            p = "" if method == "fedavg" else f" (p = {corrected[k][number - 1]:.2g})"
            cells.append(f"{row.mean():.1f} ± {row.std(ddof=1):.1f}{p}")
        lr, clip = CHOSEN[recipe][method]
        print(f"| `{method}` | {lr:g}, {clip:g} | {' | '.join(cells)} |", flush=True)


def _p(a: np.ndarray, b: np.ndarray) -> float:
    return 1.0 if np.ptp(a - b) == 0 else float(stats.ttest_rel(a, b).pvalue)


def _holm(raw: np.ndarray) -> np.ndarray:
    order = np.argsort(raw)
    stepped = np.maximum.accumulate(raw[order] * np.arange(len(raw), 0, -1))
    corrected = np.empty_like(raw)
    corrected[order] = np.minimum(stepped, 1)
    return corrected


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", choices=list(TRIED))
    parser.add_argument("--choose", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore", fedax.DivergedWarning)
    config = read_toml(given.recipe)
    experiment = build(config)
    rate, rounds, delta = config["participation"]["rate"], config["run"]["rounds"], config["privacy"]["delta"]
    clients = experiment.data.num_clients
    noises = {
        epsilon: 0.0 if epsilon == math.inf else noise_for(epsilon, delta, rounds, clients, rate=rate)
        for epsilon in BUDGETS
    }
    print(", ".join(f"ε = {epsilon:g}: noise {noise:.3f}" for epsilon, noise in noises.items()))
    if given.choose:
        choose(given.recipe, experiment, noises[EPSILON])
    else:
        table(given.recipe, experiment, noises, config["run"]["seeds"])


if __name__ == "__main__":
    main()
