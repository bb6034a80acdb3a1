"""Linear regression over unequal clients, for JAX and for NumPy."""

from typing import Any

import jax.numpy as jnp
import numpy as np

import fedax

FEATURES = 3
SIZES = np.array([3, 1, 4, 2, 6])
P = np.array([0.1, 0.3, 0.2, 0.25, 0.15])  # not n_i/n
TAUS = np.array([2, 5, 1, 3, 4])
UNEQUAL = fedax.Steps(TAUS)
COHORTS = [[4, 1], [0, 3, 2], [2], [3, 4, 0, 1]]  # ragged, not in the order of the numbers, nor of the steps
TRACE = fedax.Trace(COHORTS)
ALL = [list(range(5))] * 4
LR = 0.05


def federation(sizes: Any = SIZES, weights: Any = P, seed: int = 0) -> fedax.FederatedData:
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(len(sizes)), sizes)
    x = rng.normal(size=(len(client), FEATURES))
    y = np.sum(x * rng.normal(size=(len(sizes), FEATURES))[client], axis=1) + rng.normal(size=len(client))
    return fedax.FederatedData({"x": x, "y": y}, sizes, weights)


def residual(params: Any, batch: Any) -> Any:
    return batch["x"] @ params["w"] + params["b"] - batch["y"]


TASK = fedax.Task(
    init=lambda key: {"w": jnp.ones(FEATURES), "b": jnp.zeros(())},
    loss=lambda params, batch, key: 0.5 * residual(params, batch) ** 2,
    metrics={"error": lambda params, batch: jnp.abs(residual(params, batch))},
)
MEASURED = TASK.with_metrics(grad_norm=fedax.metrics.GradNorm())
DATA = federation()


# The same in NumPy float64; a model is [w, b], shape [4].

X0 = np.array([1.0, 1.0, 1.0, 0.0])


def flat(params: Any) -> np.ndarray:
    """A model, or the models of all clients, with the parameters on the last axis."""
    tree = params.tree if isinstance(params, fedax.Vector) else params
    return np.concatenate([np.asarray(tree["w"]), np.asarray(tree["b"])[..., None]], axis=-1)


def losses(v: np.ndarray, data: fedax.FederatedData = DATA, i: int | None = None) -> np.ndarray:
    examples = data.examples if i is None else data.client(i)
    return 0.5 * (examples["x"] @ v[:3] + v[3] - examples["y"]) ** 2


def gradient(i: int, v: np.ndarray, data: fedax.FederatedData = DATA) -> np.ndarray:
    """∇F_i(v)."""
    examples = data.client(i)
    r = examples["x"] @ v[:3] + v[3] - examples["y"]
    return np.append(examples["x"].T @ r, r.sum()) / len(r)


def objective(v: np.ndarray, data: fedax.FederatedData = DATA) -> float:
    """F(v) = Σ p_i F_i(v)."""
    return float(sum(p * losses(v, data, i).mean() for i, p in enumerate(data.weights)))


def objective_gradient(v: np.ndarray, data: fedax.FederatedData = DATA) -> np.ndarray:
    return sum(p * gradient(i, v, data) for i, p in enumerate(data.weights))
