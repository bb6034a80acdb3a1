"""FedAvg with BlazeFL: its thread pool of clients, on PyTorch."""

import copy
import queue
import threading

import numpy as np
import torch
from blazefl.core import ThreadPoolClientTrainer
from blazefl.core.utils import deserialize_model, serialize_model
from cases import Case
from protocol import serve
from with_torch import DEVICE, Loop, arguments


class Trainer(ThreadPoolClientTrainer):
    """Clients in threads, each with a model of its own while it runs; their packages are flat models."""

    def __init__(self, loop: Loop, threads: int):
        self.num_parallels, self.device, self.device_count = threads, DEVICE, 1
        self.cache: list[tuple[int, torch.Tensor]] = []
        self.stop_event = threading.Event()
        self.loops: queue.SimpleQueue[Loop] = queue.SimpleQueue()
        for _ in range(threads):
            own = copy.copy(loop)  # the data in common
            own.model = copy.deepcopy(loop.model)
            self.loops.put(own)

    def worker(self, cid: int, device: str, payload: torch.Tensor, stop_event: threading.Event):
        loop = self.loops.get()
        try:
            deserialize_model(loop.model, payload)
            loop.local(cid)
            return cid, serialize_model(loop.model, cpu=False)
        finally:
            self.loops.put(loop)

    def uplink_package(self) -> list[tuple[int, torch.Tensor]]:
        packages, self.cache = self.cache, []
        return packages


class BlazeFL(Loop):
    def __init__(self, case: Case, threads: int):
        super().__init__(case)
        self.trainer = Trainer(self, threads)

    def round(self, cohort: np.ndarray) -> None:
        self.trainer.local_process(serialize_model(self.model, cpu=False), cohort.tolist())
        packages = self.trainer.uplink_package()
        weights = self.case.weights[[cid for cid, _ in packages]]
        weights = torch.from_numpy(weights / weights.sum()).float().to(DEVICE)
        mean = torch.stack([package for _, package in packages]).mul_(weights[:, None]).sum(0)
        deserialize_model(self.model, mean)


if __name__ == "__main__":
    options = arguments()
    torch.set_num_threads(1)
    serve(BlazeFL(options.case, options.threads))
