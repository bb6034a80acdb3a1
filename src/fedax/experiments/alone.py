"""Clients that train alone, by gradient descent on their own examples: from the initial model, or from a trained one.

The first is the baseline *local only*, the second the shared model *fine-tuned* at each client. It is written as a
method, so that it runs on every place, nodes included.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

import fedax
from fedax.columns import better
from fedax.contract.algorithm import Algorithm
from fedax.contract.local import local_steps
from fedax.contract.vector import Vector
from fedax.engine import by_client
from fedax.engine.by_client import Models
from fedax.engine.load import Shared, start
from fedax.progress import show_progress

LOCAL_ONLY = "local only"


class LocalOnly(Algorithm):
    """Each client trains alone: its model is its memory, and its uploads are zero.

    Args:
        lr: learning rate of stochastic gradient descent.
    """

    lr: Any

    def init(self, x: Vector) -> "_Server":
        return _Server(x)

    def init_client(self, x: Vector) -> Vector:
        return x

    def download(self, server: "_Server") -> tuple[()]:
        return ()

    def client(self, download: Any, memory: Vector, oracle: Any) -> tuple[Any, Vector]:
        y = local_steps(lambda y, k: y - self.lr * oracle.grad(y, k), memory, oracle)
        return 0.0 * y, y

    def server(self, server: "_Server", mean: Any, round: Any) -> "_Server":
        return server


class _Server(NamedTuple):
    x: Vector


def lengths(passes: int) -> Iterator[int]:
    """How many passes over its examples a client may stop after: all, half of them, … and one.

    Example:
        >>> list(lengths(20))
        [20, 10, 5, 2, 1]
    """
    while passes:
        yield passes
        passes //= 2


def trained(task: fedax.Task, data: fedax.FederatedData, lr: float, passes: int, **options: Any) -> Models:
    """The models of clients that went over their own examples so often, by the clients' numbers.

    Args:
        task, data: as of :func:`fedax.simulate`.
        lr: learning rate.
        passes: how often, at least once.
        options: of :func:`fedax.simulate`: ``params`` to start from, ``batch_size``, ``seed``, …
    """
    with show_progress(False):
        run = fedax.simulate(
            LocalOnly(lr), task, data, rounds=passes, evaluate_every=passes, work=fedax.Epochs(1), **options
        )
    memory: Any = run.memory
    if hasattr(memory, "kept"):  # it is not on the device
        return lambda ids: memory[ids].tree
    leaves = jax.tree.map(np.asarray, memory.tree)
    return lambda ids: jax.tree.map(lambda leaf: leaf[ids], leaves)


class Measured(NamedTuple):
    """How models do at N clients.

    Attributes:
        sizes: part of the data, "train", "val" or "test" -> [N] how many examples each client has there.
        figures: such as ``test_auc`` -> [N] at each client; not-a-number where it is not defined. Where the loss is not
            finite, as of a model that diverged, each is the worst that there could be: ∞, or −∞ where higher is better.
            Metrics that are no means over examples are there of test examples alone.
        rows: such as ``test_loss`` -> [n] at each held-out example, client after client; ∞ and −∞ as above.
    """

    sizes: dict[str, np.ndarray]
    figures: dict[str, np.ndarray]
    rows: dict[str, np.ndarray]


def measure(
    task: fedax.Task, params: Any, models: Models | None, data: fedax.FederatedData, **parts: fedax.FederatedData
) -> Measured:
    """How a model does at each client, or each client's own.

    Args:
        task: of which this is a model.
        params: the model.
        models: in its place one for each client, by their numbers in ``data``.
        data: the clients.
        parts: their examples, by name; what clients have that are not in ``data`` is left out.
    """
    if params is not None:
        params = start(task.trained, params, 0, Shared())[1].tree
    found, places = Measured({}, {}, {}), {data.name(i): i for i in range(data.num_clients)}
    for part, held in parts.items():
        whose = np.array([places.get(held.name(i), -1) for i in range(held.num_clients)])
        at = np.flatnonzero(whose >= 0)
        at = at[np.argsort(whose[at])]  # as in data
        ids = whose[at]
        if not np.array_equal(at, np.arange(held.num_clients)):
            rows = np.concatenate([np.arange(held.sizes[i]) + held.offsets[i] for i in at])
            examples = jax.tree.map(lambda leaf, rows=rows: leaf[rows], held.examples)
            held = fedax.FederatedData(examples, held.sizes[at], _finite=True)
        some = None if models is None else lambda each, ids=ids: models(ids[each])
        columns, each = by_client.measured(task.trained, params, held, some, whole=part == "test")
        failed = (held.sizes > 0) & ~np.isfinite(columns["loss"])
        found.sizes[part] = np.zeros(data.num_clients, int)
        found.sizes[part][ids] = held.sizes
        for name, values in columns.items():
            found.figures[f"{part}_{name}"] = np.full(data.num_clients, np.nan)
            found.figures[f"{part}_{name}"][ids] = np.where(failed, _worst(name, task), values)
        for name, values in each.items() if part != "train" else ():
            found.rows[f"{part}_{name}"] = np.where(np.repeat(failed, held.sizes), _worst(name, task), values)
    return found


def _worst(figure: str, task: fedax.Task) -> float:
    return {"lower": math.inf, "higher": -math.inf}.get(str(better(f"test_{figure}", task.metrics)), math.nan)
