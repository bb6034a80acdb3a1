"""Condition numbers against their definitions, and step sizes against brute force and the proof's conditions."""

from collections import namedtuple

import numpy as np
import pytest
from numpy.testing import assert_allclose

from fedax.errors import ConfigError, DataError
from fedax.theory import (
    condition_numbers,
    fedmass_from_sequences,
    fedmass_parameters,
    interpolation_lr,
    least_squares_lr,
)


def root(h, power):
    values, vectors = np.linalg.eigh(h)
    kept = values > 1e-10 * values.max()
    return vectors[:, kept] * values[kept] ** power @ vectors[:, kept].T


def definitions(features, p):
    H = [x.T @ x / len(x) for x in features]
    M = [x.T @ (np.sum(x * x, 1)[:, None] * x) / len(x) for x in features]
    l = max(np.linalg.eigvalsh(root(h, -0.5) @ m @ root(h, -0.5)).max() for h, m in zip(H, M, strict=True))
    nonzero = np.concatenate([v[v > 1e-10 * v.max()] for v in map(np.linalg.eigvalsh, H)])
    mean = sum(q * h for q, h in zip(p, H, strict=True))
    S = sum(
        q * x.T @ (np.einsum("nd,de,ne->n", x, root(mean, -1), x)[:, None] * x) / len(x)
        for q, x in zip(p, features, strict=True)
    )
    values = np.linalg.eigvalsh(mean)
    tilde = np.linalg.eigvalsh(root(mean, -0.5) @ S @ root(mean, -0.5)).max()
    N = len(p)
    low = values[values > 1e-10 * values.max()].min()
    return (N, N * max(p), N * min(p), nonzero.max(), nonzero.min(), l, values.max(), low, tilde)


Operator = namedtuple("Operator", "shape T matrix")
Operator.__matmul__ = lambda self, v: self.matrix @ v


def test_condition_numbers_by_definition_dense_and_by_products():
    rng = np.random.default_rng(3)
    scale = np.linspace(1, 0.05, 8)
    full = [rng.normal(size=(n, 8)) * scale for n in (40, 12, 9)]
    flat = [x @ rng.normal(size=(8, 20)) for x in full]  # rank 8 in R²⁰
    wide = [rng.normal(size=(n, 30)) for n in (3, 5)]  # more parameters than samples
    for features, weights in ((full, None), (full, [1, 1, 2]), (flat, None), (wide, None)):
        p = np.array([len(x) for x in features]) if weights is None else np.array(weights)
        expected = definitions(features, p / p.sum())
        assert_allclose(condition_numbers(features, weights), expected, rtol=1e-7)
        operators = [Operator(x.shape, x.T, x) for x in features]
        assert_allclose(condition_numbers(operators, weights, dense=False), expected, rtol=1e-7)
    assert_allclose(condition_numbers(full, dense=False), condition_numbers(full), rtol=1e-9)


def test_the_statistical_condition_number_is_the_smaller():
    x = np.random.default_rng(0).normal(size=(40, 8)) * np.geomspace(1, 200**-0.5, 8)
    for features in ([x], [x[:15], x[15:]]):
        c = condition_numbers(features)
        assert 1 <= c.kappa_tilde <= c.kappa_1 and c.kappa <= c.kappa_1
    split = condition_numbers([np.array([[1.0, 0.0]]), np.array([[0.6, 0.8]])])  # ranges that differ
    assert (split.kappa_1, split.kappa_tilde) == pytest.approx((1, 2))


def test_geometric_step_sizes():
    x = np.random.default_rng(1).normal(size=(60, 6)) * np.linspace(1, 0.3, 6)
    for clients in (1, 4, 10**4):  # within the range of linear speed-up, and beyond
        c = condition_numbers([x])._replace(clients=clients)
        result = least_squares_lr(c)
        ends = np.array([c.lambda_min, c.lambda_max])[:, None]
        a = np.linspace(0, 2 * result.lr, 20001)
        spread = (c.sample_smoothness * ends + (clients - 1) * ends**2) / clients
        factors = np.max(1 - a * ends + 2 * a**2 * spread, axis=0)
        assert result.factor == pytest.approx(factors.min(), rel=1e-9) and result.factor == pytest.approx(
            factors[10000]
        )
        lr = clients / (2 * 3 * (c.sample_smoothness + c.smoothness * (clients - 1)))
        assert interpolation_lr(c, period=3) == pytest.approx((lr, 1 - lr * c.curvature))


def test_fedmass_parameters():
    c = condition_numbers([np.random.default_rng(2).normal(size=(30, 4)) * [1, 0.5, 0.3, 0.1] for _ in range(3)])
    X = (c.nu_max * c.kappa_tilde + 3 - c.nu_min) / 3
    spread = (c.nu_max * c.sample_smoothness + c.smoothness * (3 - c.nu_min)) / 3
    mu = c.lambda_min  # of H, as in the proof
    alpha = (2 * (c.nu_max * c.sample_smoothness + c.smoothness * (3 - c.nu_min)) / mu / 3 * X) ** -0.5
    for E in (1, 5):
        eta, a = 1 / spread / E, alpha / E
        assert 2 * a**2 / mu * X + eta * (eta * spread - 2) <= 1e-12  # what the proof asks
        expected = (eta, (eta - a**2 / mu) / (1 + a), (1 - a) / (1 + a))
        assert_allclose(fedmass_parameters(c, period=E), expected, rtol=1e-10)
    s = (c.sample_smoothness / mu * c.kappa_tilde) ** -0.5
    eta = 0.5 * 3 / (4 * (c.sample_smoothness + 2 * mu))
    theorem = (eta, eta * (1 - 1 / c.kappa_tilde) / (1 + s), (1 - s) / (1 + s))
    assert_allclose(fedmass_parameters(c, scale=0.5, form="theorem"), theorem, rtol=1e-9)
    m, h = fedmass_from_sequences(0.3, 0.2, 0.7), np.diag([1.0, 0.2])
    w = u = v = w2 = u2 = np.array([1.0, -2.0])
    for _ in range(20):
        v, w = 0.8 * v + 0.2 * u - 0.7 * h @ u, u - 0.3 * h @ u
        u = (0.2 * v + w) / 1.2
        w2, old, g = u2 - m.eta_1 * h @ u2, w2, h @ u2
        u2 = w2 + m.gamma * (w2 - old) + m.eta_2 * g
        assert_allclose(u2, u, rtol=1e-9)


def test_bad_input():
    x = np.eye(2)
    for bad in ({"form": "other"}, {"scale": 2.0}, {"period": 0}):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            fedmass_parameters(condition_numbers([x]), **bad)
    with pytest.raises(ConfigError, match="dense"):
        condition_numbers([Operator(x.shape, x.T, x)])
    for features in ([], [np.ones(3)], [x, np.ones((2, 3))], [x, 0 * x], [x, np.nan * x]):
        with pytest.raises(DataError):
            condition_numbers(features)
