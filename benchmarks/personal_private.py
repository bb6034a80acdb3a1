"""What is gained under privacy where a part of the model stays at the client, so that less is clipped and gets noise?

    FEDAX_DATA=~/data python benchmarks/personal_private.py   # ten minutes; the table of docs/study/personal.md

MNIST by writer, an MLP of 50,890 parameters, ε = 3 at δ = 0.001 for clients. Learning rates and clips are chosen on a
fifth of the writers, as if these were public, with noise that is as large on the mean of so few; the others train with
five seeds, each with a split, cohorts, batches and noise of its own. Each writer has 60 % of its rows for training.
"""

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import fedax
from fedax.columns import deciding
from fedax.experiments.chance import gap_of
from fedax.privacy import noise_for

EPSILON, DELTA, RATE, ROUNDS, PUBLIC = 3.0, 1e-3, 0.2, 60, 0.2
BASE = "FedAvg, fine-tuned"
LR, CLIPS, OWN_LR = (0.03, 0.1, 0.3), (0.1, 0.3, 1.0, 3.0), (0.03, 0.1, 0.3)


def _fine_tuned(lr: float, own_lr: float) -> Any:
    return fedax.FineTuned(fedax.create("fedavg", lr=lr), lr=own_lr, steps=10)


def _part(leaves: str) -> Callable[..., Any]:
    return lambda lr: fedax.PersonalPart(fedax.create("fedavg", lr=lr), leaves=leaves, order="together")


# Label -> how the method is made, what it uploads, and its settings beside the clip.
METHODS: dict[str, tuple[Callable[..., Any], str, dict[str, tuple[float, ...]]]] = {
    BASE: (_fine_tuned, "all", {"lr": LR, "own_lr": OWN_LR}),
    "FedAvg": (lambda lr: fedax.create("fedavg", lr=lr), "all", {"lr": LR}),
    "own head (FedPer)": (_part("1.*"), "50,240", {"lr": LR}),
    "own body (LG-FedAvg)": (_part("0.*"), "650", {"lr": LR}),
}


def federations() -> tuple[fedax.FederatedData, fedax.FederatedData]:
    """The writers that settings are chosen on, and those that train."""
    mnist = fedax.data.load("mnist")
    data = fedax.FederatedData.from_partition(mnist.train, fedax.data.by_column(mnist.groups["writer"]))
    order = np.random.default_rng(0).permutation(data.num_clients)
    parts = np.split(order, [round(PUBLIC * data.num_clients)])
    return tuple(fedax.FederatedData.from_clients([data.client(int(i)) for i in np.sort(part)]) for part in parts)


def last(method: Any, data: fedax.FederatedData, privacy: fedax.DP | None, seed: int) -> dict[str, float]:
    """The last row of a run, with the figures of the models that clients get; the split is the seed's."""
    train, val, test = fedax.data.split(data, train=0.6, val=0.2, test=0.2, seed=seed)
    uniform = train.with_weights(np.full(train.num_clients, 1 / train.num_clients))
    run = fedax.simulate(
        method, fedax.tasks.mlp(784, 10, hidden=(64,)), uniform, val=val, test=test, rounds=ROUNDS, seed=seed,
        work=fedax.Steps(5), batch_size=16, participation=fedax.Poisson(RATE), privacy=privacy, evaluate_every=ROUNDS,
        train_loss="none",
    )  # fmt: skip
    names, history = ("val_loss", "test_loss", "test_accuracy"), run.history
    return {name: float(history[deciding(name, history)][-1]) for name in names}


def main() -> None:
    """Choose, train, and print the table."""
    warnings.simplefilter("ignore", fedax.DivergedWarning)
    public, private = federations()
    noise = noise_for(EPSILON, DELTA, ROUNDS, private.num_clients, rate=RATE)
    smaller = noise * public.num_clients / private.num_clients
    print(f"{public.num_clients} writers to choose on, {private.num_clients} train; noise {noise:.4g}")
    found = {}
    for label, (make, uploads, axes) in METHODS.items():
        points = [
            dict(zip((*axes, "clip"), values, strict=True)) for values in itertools.product(*axes.values(), CLIPS)
        ]
        scores = []
        for point in points:
            clip = point["clip"]
            method = make(**{name: value for name, value in point.items() if name != "clip"})
            scores.append(last(method, public, fedax.DP(clip, smaller, DELTA), 1000)["val_loss"])
        best = points[int(np.nanargmin(scores))]
        method = make(**{name: value for name, value in best.items() if name != "clip"})
        rows = [last(method, private, fedax.DP(best["clip"], noise, DELTA), seed) for seed in range(5)]
        without = [last(method, private, None, seed) for seed in range(5)]
        found[label] = np.array([row["test_loss"] for row in rows])
        gap = "–"
        if label != BASE:
            each = gap_of(found[label], found[BASE])
            gap = f"{each.mean:.3f} ({each.interval()[0]:.3f} to {each.interval()[1]:.3f})"
        columns = itertools.product((rows, without), ("test_loss", "test_accuracy"))
        told = [np.array([row[name] for row in runs]) for runs, name in columns]
        cells = [f"{values.mean():.3f} ± {values.std(ddof=1):.3f}" for values in told]
        settings = ", ".join(f"{name} {value:g}" for name, value in best.items())
        print(f"| {label} | {uploads} | {settings} | {' | '.join(cells)} | {gap} |", flush=True)


if __name__ == "__main__":
    main()
