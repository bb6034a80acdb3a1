"""FedAvg with pfl-research: its FederatedAveraging and SimulatedBackend, on PyTorch."""

import time

import torch
from cases import Case
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from protocol import serve
from with_torch import Loop, arguments, finish


class Client(Dataset):
    """A client whose batches are drawn anew in each round, as many as it takes steps.

    pfl-research cuts a client's examples into batches once, in their order, and goes through them epoch by epoch.
    """

    def __init__(self, loop: Loop, client: int):
        own = slice(loop.offsets[client], loop.offsets[client + 1])
        super().__init__(raw_data=(loop.x[own], loop.y[own]), user_id=str(client))
        self.draw = lambda: loop.minibatches(client)
        self.weight = int(loop.case.weights[client])
        self.whole = loop.case.batch is None

    def __len__(self) -> int:
        return self.weight

    def iter(self, batch_size: int | None):
        x, y = self.raw_data
        for rows in self.draw():
            yield (x, y) if self.whole else (x[rows], y[rows])


class Pfl(Loop):
    def __init__(self, case: Case):
        super().__init__(case)
        self.model.loss = lambda x, y: self.loss(self.model(x), y)
        self.model.metrics = lambda x, y: {}
        self.pfl = PyTorchModel(self.model, torch.optim.SGD, torch.optim.SGD(self.model.parameters(), lr=1.0))
        clients = [Client(self, client) for client in range(len(case.sizes))]
        users = iter(lambda: next(self.users), None)
        data = FederatedDataset(clients.__getitem__, lambda: next(users))
        self.backend = SimulatedBackend(data, data, [WeightByDatapoints()])

    def train(self, rounds: int) -> dict[str, float]:
        self.restart()
        case = self.case
        cohorts = [self.cohort() for _ in range(rounds)]
        self.users = iter([int(client) for cohort in cohorts for client in cohort])
        begin = time.perf_counter()
        FederatedAveraging().run(
            NNAlgorithmParams(
                rounds, evaluation_frequency=rounds + 1, train_cohort_size=len(cohorts[0]), val_cohort_size=0
            ),
            self.backend,
            self.pfl,
            NNTrainHyperParams(local_num_epochs=1, local_learning_rate=case.lr, local_batch_size=case.batch),
            send_metrics_to_platform=False,
        )
        finish()
        seconds = time.perf_counter() - begin
        return {"seconds": seconds / rounds, "steps": sum(int(case.steps[cohort].sum()) for cohort in cohorts) / rounds}


if __name__ == "__main__":
    options = arguments()
    torch.set_num_threads(options.threads)
    serve(Pfl(options.case))
