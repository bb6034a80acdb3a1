"""The effect of the design of cohorts on each method where clients' weights differ much. See README.md.

Synthetic(1,1) with 30 clients, whose largest weight p is .27; S = 3 of them a round; 10 local steps of .02 with batches
of 20; 200 rounds; ten seeds. Each cell is the training loss F in the end: the median over seeds, and the largest one
where it is more than one and a half times as large.
"""

import argparse
import warnings

import numpy as np

import fedax
from fedax.data import synthetic

CLIENTS, SIZE, STEPS = 30, 3, 10
LR = 0.02
HYPER = {  # beside lr = 0.02, and beta or alpha = 0.1, the defaults
    "mb-storm": {"lr": STEPS * LR},  # a step of the server
    **{
        name: {"lr": 0.002} for name in ("fedda", "fedda-mvr", "fedda-distributed")
    },  # divided by the square root of a second moment
    "local-adapt": {"lr": 0.001},
    "local-amsgrad": {"lr": 0.001},
    "fedprox": {"prox": 0.1},
}
DESIGNS = {
    "Full": fedax.Full(),
    "Uniform": fedax.Uniform(SIZE),
    "UniformNormalized": fedax.UniformNormalized(SIZE),
    "Proportional": fedax.Proportional(SIZE),
    "Systematic": fedax.Systematic(SIZE) if hasattr(fedax, "Systematic") else None,
    "Dropout": fedax.Dropout(fedax.Full(), 0.5),
}


def losses(method: str, design: fedax.Participation, data: fedax.FederatedData, rounds: int, seeds: int) -> np.ndarray:
    """[seeds] the training loss after the last round; infinite where the run diverged."""
    hyper = {"lr": LR} | HYPER.get(method, {})
    result = fedax.sweep(
        lambda: fedax.create(method, **hyper),
        [{}],
        TASK,
        data,
        seeds=seeds,
        rounds=rounds,
        work=fedax.Steps(STEPS),
        batch_size=20,
        participation=design,
        evaluate_every=rounds,
    )
    last = np.array([run.history["train_loss"][-1] for run in result.runs[0]])
    return np.where(np.isfinite(last), last, np.inf)


TASK = fedax.tasks.softmax_regression(60, 10)


def shown(values: np.ndarray) -> str:
    middle, worst = np.median(values), values.max()
    if not np.isfinite(middle):
        return "diverges"
    return f"{middle:.3g}" + (f" (to {worst:.2g})" if worst > 1.5 * middle else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--methods", nargs="+", choices=fedax.available(), default=list(fedax.available()))
    parser.add_argument("--designs", nargs="+", choices=DESIGNS, default=list(DESIGNS))
    given = parser.parse_args()
    warnings.simplefilter("ignore", fedax.DivergedWarning)
    data, _ = synthetic(1.0, 1.0, clients=CLIENTS, seed=3)
    print(f"largest weight {data.weights.max():.3f}, Σp² {np.sum(data.weights**2):.3f}")
    print(f"| method | {' | '.join(given.designs)} |\n|---|{'---|' * len(given.designs)}")
    for method in given.methods:
        cells = []
        for name in given.designs:
            try:
                cells.append(shown(losses(method, DESIGNS[name], data, given.rounds, given.seeds)))
            except fedax.ConfigError:
                cells.append("–")
        print(f"| `{method}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
