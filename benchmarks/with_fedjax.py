"""FedAvg with FedJAX: its ``fed_avg`` and its clients' batches, the model a plain function."""

import argparse
import os
import time

from cases import RESNET18, Case, cases
from protocol import Contender, serve

parser = argparse.ArgumentParser()
parser.add_argument("backend", choices=["jit", "pmap"], help="of fedjax.for_each_client; pmap has a device a core")
parser.add_argument("case", choices=list(cases()))
parser.add_argument("--small", action="store_true")
options = parser.parse_args()
if options.backend == "pmap":
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={len(os.sched_getaffinity(0))}"

import fedjax  # noqa: E402, as JAX takes the number of its devices from the environment
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from fedjax.algorithms import fed_avg  # noqa: E402


def conv(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def max_pool(x: jax.Array) -> jax.Array:
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def normed(x: jax.Array, layer: tuple[jax.Array, ...], stride: int = 1) -> jax.Array:
    kernel, scale, offset = layer
    x = conv(x, kernel, stride)
    groups = x.reshape(*x.shape[:3], 32, -1)
    groups = groups - groups.mean(axis=(1, 2, 4), keepdims=True)
    groups = groups / jnp.sqrt((groups**2).mean(axis=(1, 2, 4), keepdims=True) + 1e-5)
    return groups.reshape(x.shape) * scale + offset


def logits(case: Case, params: list[jax.Array], x: jax.Array) -> jax.Array:
    if case.model == "logistic":
        return x @ params[0][:, 0]
    *below, kernel, bias = params
    if case.model == "resnet":
        layers = iter(zip(below[::3], below[1::3], below[2::3], strict=True))
        x = jax.nn.relu(normed(x, next(layers)))
        for _, stride in RESNET18:
            y = normed(jax.nn.relu(normed(x, next(layers), stride)), next(layers))
            x = jax.nn.relu(y + (normed(x, next(layers), stride) if stride > 1 else x))
        x = x.mean(axis=(1, 2))
    else:
        for w, b in zip(below[::2], below[1::2], strict=True):
            x = max_pool(jax.nn.relu(conv(x, w) + b)) if case.model == "cnn" else jax.nn.relu(x @ w + b)
    return x.reshape(len(x), -1) @ kernel.reshape(-1, case.classes) + bias


class Client:
    """What ``fed_avg`` asks of a client: its weight as a number of examples, and its batches."""

    def __init__(self, case: Case, dataset: fedjax.ClientDataset, weight: int, steps: int):
        self.weight = weight
        length = {"num_epochs": 1, "drop_remainder": True} if case.epoch else {"num_epochs": None, "num_steps": steps}
        self.batches = dataset.shuffle_repeat_batch(batch_size=case.batch or len(dataset), **length)

    def __len__(self) -> int:
        return self.weight

    def shuffle_repeat_batch(self, _: object) -> object:
        return self.batches


class FedJax(Contender):
    def __init__(self, case: Case):
        self.case = case
        x, y = case.examples()
        y = y.astype(np.float32 if case.model == "logistic" else np.int32)
        self.x, self.y = x, y
        ends = np.cumsum(case.sizes)
        datasets = [
            fedjax.ClientDataset({"x": x[end - size : end], "y": y[end - size : end]})
            for end, size in zip(ends, case.sizes, strict=True)
        ]
        self.clients = [
            Client(case, dataset, int(weight), int(steps))
            for dataset, weight, steps in zip(datasets, case.weights, case.steps, strict=True)
        ]
        self.rng = np.random.default_rng(3)
        fedjax.set_for_each_client_backend(options.backend)
        sgd = fedjax.optimizers.sgd
        gradient = jax.grad(lambda params, batch, key: self.loss(params, batch["x"], batch["y"]))
        hparams = fedjax.ShuffleRepeatBatchHParams(batch_size=case.batch or 1)  # each Client has its own
        self.algorithm = fed_avg.federated_averaging(gradient, sgd(case.lr), sgd(1.0), hparams)
        self.objective = jax.jit(self.loss)
        self.state = self.restart()

    def loss(self, params: list[jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
        out = logits(self.case, params, x)
        if self.case.model == "logistic":
            return jnp.mean(jax.nn.softplus(out) - y * out)
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(out), y[:, None], axis=1))

    def restart(self) -> fed_avg.ServerState:
        return self.algorithm.init([jnp.asarray(array) for array in self.case.initial()])

    def train(self, rounds: int) -> dict[str, float]:
        self.state = self.restart()
        clients, steps = len(self.clients), 0
        begin = time.perf_counter()
        for r in range(rounds):
            chosen = self.rng.choice(clients, self.case.cohort, False) if self.case.cohort else range(clients)
            keys = jax.random.split(jax.random.PRNGKey(r), len(chosen))
            steps += sum(int(self.case.steps[i]) for i in chosen)
            self.state, _ = self.algorithm.apply(
                self.state, [(int(i), self.clients[i], key) for i, key in zip(chosen, keys, strict=True)]
            )
        jax.block_until_ready(self.state.params)
        return {"seconds": (time.perf_counter() - begin) / rounds, "steps": steps / rounds}

    def losses(self, rounds: int) -> list[float]:
        def objective() -> float:
            pieces = [slice(start, start + 500) for start in range(0, len(self.x), 500)]
            parts = [float(self.objective(self.state.params, self.x[p], self.y[p])) * len(self.x[p]) for p in pieces]
            return sum(parts) / len(self.x)

        self.state = self.restart()
        start = objective()
        self.train(rounds)
        return [start, objective()]

    def parameters(self) -> list[list[float]]:
        return [np.asarray(array).ravel().tolist() for array in self.state.params]


if __name__ == "__main__":
    case = cases()[options.case]
    serve(FedJax(case.small() if options.small else case))
