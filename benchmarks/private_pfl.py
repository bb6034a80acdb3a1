"""FedAvg under privacy with fedax and with pfl-research: the same clients, clip, noise and steps. See README.md.

``python benchmarks/private_pfl.py --python-pfl pfl-env/bin/python`` trains softmax regression on the clients of the
recipe private-digits, in cohorts of 72 drawn without replacement, five steps each, and prints both accuracies.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np

CLIP, NOISE, LR, STEPS, BATCH, COHORT, ROUNDS = 1.0, 1.8167, 0.5, 5, 4, 72, 60


def with_fedax(seeds: int, file: Path) -> list[float]:
    """Accuracies; the federation is written to ``file``."""
    import fedax
    from fedax.experiments import build, read_toml

    experiment = build(read_toml("private-digits"))
    data, test = experiment.data, experiment.test
    x, test_x = (each["x"].reshape(len(each["x"]), -1) / 255 for each in (data.examples, test))
    np.savez(file, x=x, y=data.examples["y"], sizes=data.sizes, test_x=test_x, test_y=test["y"])
    sweep = fedax.sweep(
        lambda: fedax.create("fedavg", lr=LR),
        [{}],
        experiment.task,
        data,
        seeds=seeds,
        rounds=ROUNDS,
        work=fedax.Steps(STEPS),
        batch_size=BATCH,
        participation=fedax.Uniform(COHORT),
        privacy=fedax.DP(CLIP, NOISE, 1e-3),
        test=test,
        evaluate_every=ROUNDS,
    )
    return [float(run.history["test_accuracy"][-1]) for run in sweep.runs[0]]


def with_pfl(seeds: int, file: Path) -> list[float]:
    """The same in the environment of pfl-research, from ``file``."""
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByUser
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy.gaussian_mechanism import GaussianMechanism
    from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

    torch.set_num_threads(1)
    given = np.load(file)
    x, y = torch.tensor(given["x"], dtype=torch.float32), torch.tensor(given["y"], dtype=torch.int64)
    test_x, test_y = torch.tensor(given["test_x"], dtype=torch.float32), torch.tensor(given["test_y"].astype(np.int64))
    ends = np.cumsum(given["sizes"])

    class Client(Dataset):
        """Draws its minibatches with replacement, as fedax does."""

        def __init__(self, i: int, rng: np.random.Generator):
            own = slice(int(ends[i] - given["sizes"][i]), int(ends[i]))
            super().__init__(raw_data=(x[own], y[own]), user_id=str(i))
            self.rng = rng

        def iter(self, batch_size: int | None):
            for _ in range(STEPS):
                rows = self.rng.integers(len(self.raw_data[1]), size=BATCH)
                yield self.raw_data[0][rows], self.raw_data[1][rows]

    accuracies = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002, from which pfl-research draws the seeds of its noise
        model = torch.nn.Linear(x.shape[1], 10)
        with torch.no_grad():
            model.weight.zero_(), model.bias.zero_()
        model.loss = lambda x, y, model=model: torch.nn.functional.cross_entropy(model(x), y)
        model.metrics = lambda x, y: {}
        users = iter([int(i) for _ in range(ROUNDS) for i in rng.choice(len(ends), COHORT, replace=False)])
        clients = FederatedDataset(lambda i, rng=rng: Client(i, rng), lambda users=users: next(users))
        noise = CentrallyAppliedPrivacyMechanism(GaussianMechanism(CLIP, NOISE))
        FederatedAveraging().run(
            NNAlgorithmParams(ROUNDS, evaluation_frequency=ROUNDS + 1, train_cohort_size=COHORT, val_cohort_size=0),
            SimulatedBackend(clients, clients, [WeightByUser(), noise]),
            PyTorchModel(model, torch.optim.SGD, torch.optim.SGD(model.parameters(), lr=1.0)),
            NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=BATCH),
            send_metrics_to_platform=False,
        )
        with torch.no_grad():
            accuracies.append(float((model(test_x).argmax(1) == test_y).double().mean()))
    return accuracies


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python-pfl", help="the interpreter of an environment with pfl-research and PyTorch")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--pfl", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.pfl is not None:
        print(json.dumps(with_pfl(given.seeds, given.pfl)))
        return
    from scipy import stats

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "clients.npz"
        accuracies = {"fedax": with_fedax(given.seeds, file)}
        if given.python_pfl is not None:
            command = [given.python_pfl, __file__, "--pfl", str(file), "--seeds", str(given.seeds)]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            accuracies["pfl-research"] = json.loads(out.splitlines()[-1])
    for name, values in accuracies.items():
        print(f"{name}: {100 * np.mean(values):.2f} ± {100 * np.std(values, ddof=1):.2f} %", np.round(values, 3))
    if len(accuracies) == 2:
        print(f"Welch's test of equal means: p = {stats.ttest_ind(*accuracies.values(), equal_var=False).pvalue:.2f}")


if __name__ == "__main__":
    main()
