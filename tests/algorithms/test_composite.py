"""Regularisers and constraints: who finds the optimum of F + ψ over X, and who keeps its zeros."""

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.optimize

import fedax
from fedax.engine.evaluate import columns
from fedax.engine.make import make_job

from .. import mostly_long
from .bed import federation, limit

D = 8
FEW = [1, 4]  # the support of what the clients have in common
WEIGHT = 0.4
TASK = fedax.tasks.quadratic(D)


def _bed() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    common = np.zeros(D)
    common[FEW] = [2.0, -1.5]
    A = rng.normal(size=(7, 30, D))
    b = np.einsum("nij,nj->ni", A, common + 0.15 * rng.normal(size=(7, D)))
    p = rng.integers(5, 20, size=7) / 1.0
    return np.einsum("nij,nik->njk", A, A) / 30, np.einsum("nij,ni->nj", A, b) / 30, p / p.sum()


H, E, P = _bed()
DATA = federation(H, E, P)
H_MEAN, E_MEAN = np.einsum("n,nij->ij", P, H), P @ E
L = float(np.linalg.eigvalsh(H).max())


def objective(x: np.ndarray, weight: float = WEIGHT) -> float:
    return float(0.5 * x @ H_MEAN @ x - E_MEAN @ x + weight * np.abs(x).sum())


def lasso() -> np.ndarray:
    """The optimum of F + w‖x‖₁ by proximal gradient steps, to rounding."""
    x = np.zeros(D)
    for _ in range(20_000):
        u = x - (H_MEAN @ x - E_MEAN) / L
        x = np.sign(u) * np.maximum(np.abs(u) - WEIGHT / L, 0)
    return x


OPTIMUM = lasso()
SUPPORT = OPTIMUM != 0


def end(name: str, rounds: int, steps: int = 5, **hyper: Any) -> np.ndarray:
    options = {"task": TASK, "data": DATA, "params": np.full(D, 0.5), "work": fedax.Steps(steps)}
    return limit(fedax.create(name, **hyper), rounds, **options)


def dual_averaging(name: str, lr: float) -> dict[str, Any]:
    """Hyper-parameters with about the same length of a step; FedDA divides it by ε near its end."""
    hyper = {"regularizer": fedax.L1(WEIGHT), "lr": lr}
    return hyper if name == "feddualavg" else hyper | {"alpha": 0.3, "b": 0.9, "eps": 1.0}


def test_the_lasso_has_the_support_that_the_clients_have_in_common():
    assert np.flatnonzero(SUPPORT).tolist() == FEW
    gradient = H_MEAN @ OPTIMUM - E_MEAN
    np.testing.assert_allclose(gradient[SUPPORT], -WEIGHT * np.sign(OPTIMUM[SUPPORT]), atol=1e-12)
    assert np.abs(gradient[~SUPPORT]).max() < 0.9 * WEIGHT


@pytest.mark.parametrize("name", ["feddualavg", "fedda-mvr"])
def test_dual_averaging_keeps_the_zeros_and_comes_within_the_rate_of_the_optimum(name):
    rates = [0.1 / L, 0.05 / L]
    ends = [end(name, int(400 / (lr * L)), **dual_averaging(name, lr)) for lr in rates]
    for x in ends:
        assert ((x != 0) == SUPPORT).all()  # exactly
    gaps = [objective(x) - objective(OPTIMUM) for x in ends]
    assert 0 < gaps[1] < 0.6 * gaps[0] < 0.1 * abs(objective(OPTIMUM)) * rates[0]


def test_averaging_primal_models_loses_the_zeros():
    """FedAvg with a proximal step at the clients: each has zeros, elsewhere than the others."""
    x = end("fedavg", 2000, lr=0.1 / L, regularizer=fedax.L1(WEIGHT))
    assert (x != 0).sum() >= 2 * len(FEW) and (np.abs(x[~SUPPORT]) > 1e-3).any()
    assert np.linalg.norm(x - OPTIMUM) < 0.2  # though it is near


@pytest.mark.parametrize("name", ["feddualavg", "fedda", "fedavg"])
def test_one_step_a_round_is_exact(name):
    """Without local steps there is no drift, and for FedAvg no averaging of different zeros."""
    hyper = {"lr": 0.3 / L, "regularizer": fedax.L1(WEIGHT)} if name == "fedavg" else dual_averaging(name, 0.3 / L)
    x = end(name, 3000, steps=1, **hyper)
    np.testing.assert_allclose(x, OPTIMUM, atol=1e-9 if name != "fedavg" else 0.2)


CONSTRAINTS = {
    "box": (fedax.Box(-0.4, 0.6), {"bounds": [(-0.4, 0.6)] * D}),
    "non-negative": (fedax.NonNegative(), {"bounds": [(0, None)] * D}),
    "l2-ball": (fedax.L2Ball(0.8), {"constraints": {"type": "ineq", "fun": lambda x: 0.64 - x @ x}}),
    "simplex": (
        fedax.Simplex(1.0),
        {"bounds": [(0, None)] * D, "constraints": {"type": "eq", "fun": lambda x: x.sum() - 1}},
    ),
}


def constrained(options: dict[str, Any]) -> np.ndarray:
    """The optimum of F over X by SciPy."""
    result = scipy.optimize.minimize(
        lambda x: objective(x, 0.0),
        np.full(D, 1 / D),
        jac=lambda x: H_MEAN @ x - E_MEAN,
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
        **options,
    )
    assert result.success
    return result.x


MVR, MOMENTUM = ("mvr", "coordinate"), ("momentum", "norm")
CONSTRAINED = itertools.product(CONSTRAINTS, [MVR, MOMENTUM])


@pytest.mark.parametrize(
    "case", mostly_long(CONSTRAINED, ("box", MVR), ("non-negative", MOMENTUM), ("simplex", MVR)), ids=str
)
def test_fedda_with_one_local_step_reaches_the_constrained_optimum(case):
    kind, variant = case
    regularizer, options = CONSTRAINTS[kind]
    optimum = constrained(options)
    assert np.linalg.norm(np.linalg.solve(H_MEAN, E_MEAN) - optimum) > 0.5  # the constraint is felt
    fields = dict(zip(("gradient", "metric"), variant, strict=True))
    hyper = {"lr": 0.2 / L, "alpha": 0.5, "b": 0.9, "eps": 1.0, "regularizer": regularizer, **fields}
    x = end("fedda", 2000, steps=1, **hyper)
    np.testing.assert_allclose(x, optimum, atol=1e-5)
    np.testing.assert_allclose(end("fedda-distributed", 2000, steps=1, **hyper), x, atol=1e-12)


def test_objective_and_density_are_in_the_history():
    method = fedax.create("fedda-mvr", **dual_averaging("fedda-mvr", 0.1 / L))
    options = {"rounds": 30, "work": fedax.Steps(5), "params": np.full(D, 0.5)}
    above, any_size = (TASK.with_metrics(density=fedax.metrics.Density(least)) for least in (0.3, 0.0))
    history = fedax.simulate(method, above, DATA, **options).history
    run = fedax.simulate(method, any_size, DATA, **options)
    assert run.history["density"][0] == 1.0 and run.history["density"][-1] == np.mean(run.params != 0)
    assert history["density"][-1] == np.mean(np.abs(run.params) > 0.3) < run.history["density"][-1] + 1e-9
    expected = history["train_loss"][-1] + WEIGHT * np.abs(run.params).sum()
    np.testing.assert_allclose(history["objective"][-1], expected, rtol=1e-6)
    for name in ("fedavg", "fedda", "feddualavg"):
        assert "objective" not in columns(make_job(fedax.create(name), TASK, DATA, rounds=0, work=fedax.Steps(1)))
    ball = fedax.create("fedavg", regularizer=fedax.L2Ball(0.5))
    outside = fedax.simulate(ball, TASK, DATA, rounds=3, params=np.full(D, 0.5), work=fedax.Steps(5), evaluate_every=1)
    assert "objective" in columns(make_job(ball, TASK, DATA, rounds=0))
    assert np.isinf(outside.history["objective"][0]) and np.isfinite(outside.history["objective"][1:]).all()
    for wrong in (-0.1, "0.1", True):
        with pytest.raises(fedax.ConfigError, match=r"density\.threshold"):
            fedax.metrics.Density(wrong)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"name": "l1", "weight": -1.0}, "weight = -1.0"),
        ({"name": "l1"}, "regularizer.weight = None: .*takes weight"),
        ({"name": "l1", "radius": 1.0}, "regularizer.radius = 1.0"),
        ({"name": "l3"}, "regularizer.name = 'l3': did you mean 'l1'"),
        ({"weight": 1.0}, "give a fedax Regularizer"),
        ("l1", "give a fedax Regularizer"),
        (0.01, "give a fedax Regularizer"),
        ({"name": "box", "low": 1.0, "high": 0.0}, "high = 0.0"),
    ],
)
def test_regularizers_that_cannot_be(given, message):
    for name in ("fedda", "feddualavg", "fedavg"):
        with pytest.raises(fedax.ConfigError, match=message):
            fedax.create(name, regularizer=given)


def test_a_regularizer_from_a_table():
    assert fedax.create("fedda", regularizer={"name": "l1", "weight": 0.1}).regularizer.weight == 0.1
    assert isinstance(fedax.create("feddualavg").regularizer, fedax.Unconstrained)
    with pytest.raises(fedax.ConfigError, match="argument of fednova = 'regularizer'"):
        fedax.create("fednova", regularizer=fedax.L1(0.1))
    with pytest.raises(fedax.ConfigError, match=r"regularizer = .*linear solver"):
        fedax.create("fednova", solver=fedax.SGD(0.1, regularizer=fedax.L1(0.1)))
