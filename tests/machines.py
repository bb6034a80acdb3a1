"""What fedax draws, as text, and a run with checkpoints: for processes that take themselves for other processors.

``python -m tests.machines ROUNDS FOLDER ...`` prints digests of all that is drawn, by name, and goes on with the runs
that have their checkpoints in the folders. See ``tests/engine/test_machines.py``.
"""

import hashlib
import json
import sys

import jax
import numpy as np
import pandas

import fedax
from fedax import data
from fedax.engine.make import make_job
from tests.data.test_partitions import PARTITIONS

SEEDS = range(1)


def digest(tree):
    """A digest of the bits of arrays."""
    hasher = hashlib.sha256()
    for leaf in map(np.asarray, jax.tree.leaves(tree)):
        hasher.update(f"{leaf.dtype}{leaf.shape}".encode() + leaf.tobytes())
    return hasher.hexdigest()[:16]


def drawn():
    """Name -> digest of what fedax draws or computes of data."""
    x = np.random.default_rng(0).random((1000, 30))
    makers = {
        "quadratics": lambda seed: data.quadratics(20, 30, mu=0.01, L=7.0, seed=seed).examples,
        "synthetic": lambda seed: [part.examples for part in data.synthetic(1.0, 1.0, seed=seed)],
        "sparse regression": lambda seed: data.sparse_regression(10, seed=seed).examples,
        "linear regression": lambda seed: data.linear_regression(x, seed=seed),
        "noiseless regression": lambda seed: data.noiseless_regression(3, features="digits", seed=seed).examples,
        **PARTITIONS,
        "by exponential size": lambda seed: data.growing(9000, clients=20, law="exponential", seed=seed),
        "by power": lambda seed: data.power_law(9000, clients=20, exponent=1.3, seed=seed),
    }
    results = {f"{name} {seed}": digest(make(seed)) for name, make in makers.items() for seed in SEEDS}
    whole = fedax.FederatedData({"x": x, "y": np.arange(1000) % 3}, sizes=[400, 600])
    parts = data.split(whole, train=0.7, val=0.1, test=0.2, stratify=True)
    results["split"] = digest([part.examples for part in parts])
    results["digits"] = digest(data.load("digits").train)
    day = pandas.Timestamp("1990-01-01") + pandas.to_timedelta(np.arange(9000), unit="D")
    table = pandas.DataFrame({"day": day, "size": np.arange(9000.0) ** 2, "ill": np.arange(9000) % 2})
    results["tables"] = digest(data.from_frames({"a": table, "b": table[:99]}, label="ill").examples)
    return results


def main(rounds, folders):
    """Print what is drawn, and how the runs end."""
    own = fedax.Task(
        lambda key: {"w": jax.random.normal(key, (30, 30)), "b": jax.numpy.zeros(30)},
        lambda p, batch, key: ((batch["x"] @ p["w"] + p["b"]) ** 2).sum(axis=1),
    )
    part = fedax.tasks.partial(own, "b")
    federation = fedax.FederatedData({"x": np.ones((90, 30), np.float32)}, sizes=[30, 60])
    method = fedax.create("scaffold", lr=0.01)
    job = make_job(method, part, federation, rounds=1)
    quadratics = data.quadratics(clients=6, dimension=20, mu=0.1, seed=1)
    runs = [
        fedax.simulate(
            method, fedax.tasks.quadratic(20), quadratics, rounds=rounds, evaluate_every=1, checkpoint=folder
        )
        for folder in folders
    ]
    blas = np.random.default_rng(0).random((99, 99)) @ np.random.default_rng(1).random((99, 99))
    same = drawn() | {f"identity: {name}": text for name, text in job.settings().items()}
    other = {"blas": digest(blas), "exp": digest(np.exp(np.linspace(-9, 9, 999))), "frozen": digest(part.frozen)}
    histories = [
        {name: np.asarray(values).tolist() for name, values in run.history.items() if name != "seconds"} for run in runs
    ]
    print(json.dumps({"same": same, "other": other, "histories": histories}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
