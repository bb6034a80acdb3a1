"""FedAvg with Flower's simulation: clients in Ray actors, one a core, that train as the PyTorch loop does."""

import argparse
import functools
import logging
import os
import time
from pathlib import Path

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # for the actors

import numpy as np
import torch
from cases import Case, cases
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from protocol import serve
from with_torch import Loop


def chosen(name: str, small: bool) -> Case:
    return cases()[name].small() if small else cases()[name]


@functools.cache
def worker(name: str, small: bool) -> Loop:
    """All examples and a model, once an actor."""
    torch.set_num_threads(1)
    return Loop(chosen(name, small))


def train(name: str, small: bool, message: Message, context: Context) -> Message:
    loop, client = worker(name, small), int(context.node_config["partition-id"])
    loop.model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loop.local(client)
    metrics = {"num-examples": int(loop.case.weights[client]), "steps": int(loop.case.steps[client])}
    arrays = ArrayRecord(loop.model.state_dict())
    return Message(content=RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)}), reply_to=message)


class Flower(Loop):
    def __init__(self, name: str, small: bool):
        super().__init__(chosen(name, small))
        self.name, self.small = name, small

    def train(self, rounds: int) -> dict[str, float]:
        """A simulation of its own, with a round more than asked for: the first, in which actors start, is not timed."""
        self.restart()
        clients = len(self.case.sizes)
        cohort = self.case.cohort or clients
        name, small, ends, steps = self.name, self.small, [], []  # what the functions below hold goes to the actors

        def total(records: list[RecordDict], _: str) -> MetricRecord:
            steps.append(sum(record["metrics"]["steps"] for record in records))
            return MetricRecord({"steps": steps[-1]})

        def after_round(number: int, arrays: ArrayRecord) -> None:
            ends.append(time.perf_counter())
            if number == rounds:
                self.model.load_state_dict(arrays.to_torch_state_dict())

        strategy = FedAvg(
            fraction_train=cohort / clients,
            fraction_evaluate=0.0,
            min_train_nodes=cohort,
            min_available_nodes=clients,
            train_metrics_aggr_fn=total,
        )
        client_app, server_app = ClientApp(), ServerApp()

        @client_app.train()
        def local(message: Message, context: Context) -> Message:
            from with_flower import train  # in the actor, where it finds the module's cache

            return train(name, small, message, context)

        @server_app.main()
        def main(grid: object, context: Context) -> None:
            strategy.start(grid, ArrayRecord(self.model.state_dict()), rounds + 1, evaluate_fn=after_round)

        actors = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
        run_simulation(server_app, client_app, clients, backend_config=actors)
        return {"seconds": (ends[-1] - ends[1]) / rounds, "steps": float(np.mean(steps[1:]))}

    def warm_up(self, seconds: float) -> int:
        return max(1, round(seconds / self.train(3)["seconds"]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=list(cases()))
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    serve(Flower(options.case, options.small))
