"""Federations on which the methods are tried, and runs that keep every iterate."""

import dataclasses
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np

import fedax
from tests.references import fedavg_family as fed
from tests.references import quadratics as quad

BED = quad.test_bed()
GRADS = BED.grads()
X0 = np.array([1.0, -2.0, 0.5, 3.0])
LR = float(0.1 / BED.L)
ROUNDS = 5
COHORTS = [[4, 1, 6], [0, 3], [5], [2, 6, 0, 4], [1, 3]]  # every client at least once
UNEQUAL = fedax.Steps(BED.tau)
ORDER = np.array([3, 0, 6, 1, 5, 2, 4])  # new place -> old number


def recorded(task: fedax.Task, parameters: int) -> fedax.Task:
    """The task with its parameters as metrics, so that a history holds the iterates."""

    def component(j: int) -> Any:
        def metric(params: Any, batch: Any) -> Any:
            flat, _ = jax.flatten_util.ravel_pytree(params)
            return jnp.broadcast_to(flat[j], len(jax.tree.leaves(batch)[0]))

        return metric

    return dataclasses.replace(task, metrics={f"x{j}": component(j) for j in range(parameters)})


QUADRATIC = recorded(fedax.tasks.quadratic(4), 4)
SCALAR = recorded(fedax.tasks.quadratic(1), 1)


def federation(H: np.ndarray, e: np.ndarray, p: np.ndarray) -> fedax.FederatedData:
    """Clients F_i(x) = ½ xᵀH_i x − e_iᵀx with weights p."""
    return fedax.FederatedData({"H": H, "e": e}, np.ones(len(p), int), p)


DATA = federation(BED.H, BED.e, BED.p)
RELABELLED = federation(BED.H[ORDER], BED.e[ORDER], BED.p[ORDER])


def path(
    method: fedax.Algorithm, *, task: fedax.Task = QUADRATIC, data: Any = DATA, x0: Any = X0, **options: Any
) -> np.ndarray:
    """The iterates x^0 … x^R of a run: [R + 1, parameters]."""
    options = {"rounds": ROUNDS, "work": UNEQUAL} | options
    one = jax.tree.map(lambda leaf: leaf[:1], data.examples)
    run = fedax.simulate(method, task, data, params=x0, test=one, evaluate_every=1, **options)
    return np.stack([run.history[f"test_x{j}"] for j in range(len(task.metrics))], axis=1)


def limit(method: fedax.Algorithm, rounds: int, **options: Any) -> np.ndarray:
    """x^R of a run in float64."""
    options = {"task": QUADRATIC, "data": DATA, "work": UNEQUAL, "params": X0} | options
    task, data = options.pop("task"), options.pop("data")
    with jax.enable_x64(True):
        run = fedax.simulate(method, task, data, rounds=rounds, evaluate_every=max(1, rounds), **options)
        return np.asarray(run.params)


def transcribed(reference: Any, cohorts: Any = None, *, taus: Any = BED.tau, x0: Any = X0, **hyper: Any) -> np.ndarray:
    """The iterates of a NumPy reference on the test bed; cohorts None is full participation."""
    drawn = fed.full_cohorts(BED.p, ROUNDS) if cohorts is None else fed.trace_cohorts(BED.p, cohorts)
    return reference(GRADS, BED.p, taus, drawn, x0, ROUNDS, **hyper).iterates


def _regression() -> fedax.FederatedData:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(25, 3)).astype(np.float32)
    client = np.repeat(np.arange(5), [3, 8, 5, 2, 7])
    y = np.sum(x * rng.normal(size=(5, 3))[client], axis=1) + rng.normal(size=25)
    return fedax.FederatedData({"x": x, "y": y.astype(np.float32)}, np.bincount(client))


def _loss(params: Any, batch: Any, key: Any) -> Any:
    return 0.5 * (batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2


REGRESSION = _regression()  # five clients with 2 to 8 examples
LINEAR = recorded(fedax.Task(lambda key: {"w": jnp.zeros(3), "b": jnp.zeros(())}, _loss), 4)


def noisy(method: fedax.Algorithm, **options: Any) -> np.ndarray:
    """The iterates of a run on minibatches of two examples; the same seed draws the same minibatches."""
    options = {"work": fedax.Steps(4)} | options
    return path(method, task=LINEAR, data=REGRESSION, x0=None, batch_size=2, seed=3, **options)
