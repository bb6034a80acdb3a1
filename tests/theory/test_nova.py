"""Accumulation vectors, update rules and fixed points against matrices, recursions and simulations of their own."""

import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose

from fedax.contract.local import SGD, Optax
from fedax.contract.regularizers import Unconstrained
from fedax.contract.schedule import PowerDecay
from fedax.errors import ConfigError, DataError
from fedax.theory import (
    accumulation_norms,
    accumulation_vector,
    chi_square,
    fedprox_rule,
    fixed_point,
    lower_bound_example,
    unit_fixed_point,
    update_rule,
    weighted_optimum,
)

CLOSED = [
    (SGD(0.1), lambda t: np.ones(t)),
    (SGD(0.1, momentum=0.9), lambda t: (1 - 0.9 ** (t - np.arange(t))) / 0.1),
    (SGD(0.1, prox=3.0), lambda t: 0.7 ** (t - 1 - np.arange(t))),
    (SGD(0.1, prox=10.0), lambda t: np.eye(t)[-1]),
    (SGD(0.1, decay=0.8), lambda t: 0.8 ** np.arange(t)),
    (SGD(PowerDecay(0.3, 2.0, 1.0), momentum=0.5), lambda t: (1 - 0.5 ** (t - np.arange(t))) / 0.5),
    (Optax(optax.sgd(0.1, momentum=0.9)), lambda t: (1 - 0.9 ** (t - np.arange(t))) / 0.1),
]


@pytest.mark.parametrize("solver, closed", CLOSED)
@pytest.mark.parametrize("steps", [1, 17])
def test_accumulation_vectors_have_the_papers_closed_forms(solver, closed, steps):
    a = accumulation_vector(solver, steps)
    assert a.dtype == np.float64
    assert_allclose(a, closed(steps), rtol=1e-12, atol=1e-15)


def test_all_options_together_equal_the_written_out_recursion():
    lr, rho, mu, delta, tau = 0.2, 0.6, 1.5, 0.9, 9
    a = []
    for at in range(tau):
        y = u = 0.0
        for k in range(tau):
            g = float(k == at)
            u = rho * u + g
            y = (1 - lr * mu) * y - lr * delta**k * (g + rho * u)
        a.append(-y / lr)
    solver = SGD(lr, momentum=rho, nesterov=True, prox=mu, decay=delta)
    assert_allclose(accumulation_vector(solver, tau), a, rtol=1e-12)


def test_a_rule_has_the_definitions_values():
    rng = np.random.default_rng(0)
    vectors, p = [rng.random(t) for t in (1, 4, 30)], np.array([0.2, 0.5, 0.3])
    for w, rule in (
        (None, update_rule(vectors, 10 * p)),
        (p, update_rule(vectors, p, normalized=True, tau_eff=7.0)),
    ):
        l1 = np.array([sum(a) for a in vectors])
        w, tau = (p * l1 / (p @ l1), p @ l1) if w is None else (w, 7.0)
        A = sum(3 * tau * w[i] ** 2 * (a @ a) / l1[i] ** 2 for i, a in enumerate(vectors))
        B = sum(w[i] * (a @ a - a[-1] ** 2) for i, a in enumerate(vectors))
        C = max(l1[i] * (l1[i] - a[-1]) for i, a in enumerate(vectors))
        chi2 = sum((p - w) ** 2 / w)
        assert_allclose(rule.weights, w, rtol=1e-12)
        assert_allclose(rule[1:6], (tau, chi2, A, B, C), rtol=1e-10, atol=1e-15)
        assert rule.slowdown == pytest.approx(35 / 3 / tau)
    assert accumulation_norms(vectors[2]) == pytest.approx((l1[2], np.sqrt(vectors[2] @ vectors[2]), vectors[2][-1]))


def test_fedprox_and_fedavg_have_the_appendix_closed_forms():
    rng = np.random.default_rng(1)
    tau, p, N = np.array([1, 9, 9, 38, 1, 38]), rng.dirichlet(np.ones(6)), 6
    mean = p @ tau
    fedavg = (mean, N * p**2 @ tau / mean, mean - 1 + (p @ tau**2 - mean**2) / mean, tau.max() * (tau.max() - 1))
    for a in (0.0, 0.03, 0.7, 1.0):
        rule = fedprox_rule(tau, a, p)
        if a:
            l1, l2 = (1 - (1 - a) ** tau) / a, (1 - (1 - a) ** (2 * tau)) / (1 - (1 - a) ** 2)
            assert_allclose(rule.weights, p * l1 / (p @ l1), rtol=1e-9)
            forms = (p @ l1, N * p**2 @ l2 / (p @ l1), p * l1 @ (l2 - 1) / (p @ l1), l1.max() * (l1.max() - 1))
        assert_allclose((rule.tau_eff, *rule[3:6]), forms if a else fedavg, rtol=1e-9, atol=1e-12)
        if a == 0.7:
            vectors = {t: accumulation_vector(SGD(0.5, prox=1.4), t) for t in (1, 9, 38)}
            other = update_rule([vectors[t] for t in tau], p)
            assert_allclose(np.hstack(other), np.hstack(rule), rtol=1e-9)
    near = fedprox_rule(tau, 1e-9, p)
    assert_allclose((near.tau_eff, *near[3:6]), fedavg, rtol=1e-6)
    assert fedprox_rule(tau, 1.0, p).chi2 == pytest.approx(0, abs=1e-15)  # consistent, at τ_eff = 1
    assert fedprox_rule([7] * 6, 0.2, p).chi2 == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("deviation", [20**0.5, 20.0])
def test_what_is_said_of_figure_4_holds_for_both_readings_of_its_steps(deviation):
    """The weight bias falls with α to 0, and the slowdown grows to τ̄ (Wang et al. 2020, section 4.2)."""
    for seed in range(100):
        steps = np.maximum(np.rint(np.random.default_rng(seed).normal(20, deviation, 30)), 1).astype(int)
        rules = [fedprox_rule(steps, alpha) for alpha in np.linspace(0, 1, 21)]
        bias, slowdown = np.array([(rule.chi2, rule.slowdown) for rule in rules]).T
        assert (np.diff(bias) <= 1e-15).all() and (np.diff(slowdown) > 0).all()
        assert bias[0] > 1e-3 and bias[-1] == pytest.approx(0, abs=1e-15)
        assert_allclose((slowdown[0], slowdown[-1]), (1, steps.mean()), rtol=1e-9)
        assert max(rule.A for rule in rules[1:-1]) < min(rules[0].A, rules[-1].A)


def quadratics():
    rng = np.random.default_rng(2)
    roots = rng.normal(size=(4, 3, 3))
    H = roots @ roots.swapaxes(1, 2) + 0.3 * np.eye(3)
    return H / np.linalg.eigvalsh(H).max(), rng.normal(size=(4, 3)), np.array([1, 3, 6, 2]), rng.dirichlet(np.ones(4))


def simulate(H, e, tau, factors, lr, mu=0.0, rho=0.0, beta=1.0):
    """The fixed point of x ← x + Σ factors Δ_i, an affine map, from its values at 0 and the unit vectors."""

    def round_(x):
        change = np.zeros(3)
        for Hi, ei, t, f in zip(H, e, tau, factors, strict=True):
            y, u = x.copy(), np.zeros(3)
            for _ in range(t):
                u = rho * u + beta * (Hi @ y - ei)
                y = y - lr * (u + mu * (y - x))
            change += f * (y - x)
        return change

    at0 = round_(np.zeros(3))
    return np.linalg.solve(np.stack([round_(v) - at0 for v in np.eye(3)], 1), -at0)


def test_fixed_points_are_those_of_simulated_methods():
    H, e, tau, p = quadratics()
    cases = [
        (SGD(0.4), False, simulate(H, e, tau, p, 0.4)),
        (SGD(0.4, prox=0.8), False, simulate(H, e, tau, p, 0.4, mu=0.8)),
        (SGD(0.4), True, simulate(H, e, tau, p / tau, 0.4)),
        (SGD(0.2 * 0.4), False, simulate(H, e, tau, p, 0.4, beta=0.2)),  # FedAvg-M at its limit g = −⟨Δ⟩/(ηK)
        (Optax(optax.sgd(0.1, momentum=0.5)), False, simulate(H, e, tau, p, 0.1, rho=0.5)),
    ]
    norms = np.array([sum((1 - 0.5 ** (t - k)) / 0.5 for k in range(t)) for t in tau])
    cases.append((SGD(0.1, momentum=0.5), True, simulate(H, e, tau, p / norms, 0.1, rho=0.5)))
    for solver, normalized, limit in cases:
        assert_allclose(fixed_point(H, e, solver, tau, p, normalized=normalized), limit, rtol=1e-9)


def test_fixed_points_of_the_appendix():
    H, e, tau, p = quadratics()
    P = [  # eq. 28, as printed
        (np.eye(3) - np.linalg.matrix_power(np.eye(3) - 0.3 * h - 0.3 * 0.5 * np.eye(3), t))
        @ np.linalg.inv(h + 0.5 * np.eye(3))
        for h, t in zip(H, tau, strict=True)
    ]
    left, right = sum(p[i] * P[i] @ H[i] for i in range(4)), sum(p[i] * P[i] @ e[i] for i in range(4))
    assert_allclose(fixed_point(H, e, SGD(0.3, prox=0.5), tau, p), np.linalg.solve(left, right), rtol=1e-9)
    unit = np.tile(np.eye(3), (4, 1, 1))
    assert_allclose(unit_fixed_point(e, tau, p, lr=0.3), fixed_point(unit, e, SGD(0.3), tau, p), rtol=1e-9)
    assert_allclose(unit_fixed_point(e, tau, p), weighted_optimum(unit, e, p * tau), rtol=1e-12)
    star = np.linalg.solve(np.einsum("i,ijk", p, H), p @ e)
    assert_allclose(weighted_optimum(H, e, p), star, rtol=1e-12)
    assert_allclose(fixed_point(H, e, SGD(0.3), [1] * 4, p), star, rtol=1e-9)
    drift = [np.linalg.norm(fixed_point(H, e, SGD(lr), tau, p, normalized=True) - star) for lr in (1e-3, 1e-4)]
    assert 9 < drift[0] / drift[1] < 11  # FedNova keeps a bias of order η alone
    assert_allclose(fixed_point(H, e, SGD(1e-7), tau, p), weighted_optimum(H, e, p * tau), rtol=1e-5)


def test_the_lower_bound_is_tight():
    for a, steps in ((3.0, (2, 6)), (-1.3, (5, 1)), (2.0, (4, 4))):
        example = lower_bound_example(a, steps)
        w = np.array(steps) / sum(steps)
        limit = unit_fixed_point([[a], [-a]], steps)[0]
        gradients = np.array([limit - a, limit + a])
        assert example.limit == pytest.approx(limit)
        assert example.gradient == pytest.approx(limit**2) == pytest.approx(example.chi2 * example.dissimilarity)
        assert example.dissimilarity == pytest.approx(w @ gradients**2 - (w @ gradients) ** 2)  # Assumption 3, β² = 1
    assert lower_bound_example(3.0, (2, 6)).gradient == 2.25


def test_bad_input():
    for solver, match in (
        (Optax(optax.adam(0.1)), "linear"),
        (SGD(0.1, regularizer=Unconstrained()), "linear"),
        (0.1, "solver"),
    ):
        with pytest.raises(ConfigError, match=match):
            accumulation_vector(solver, 3)
    with pytest.raises(ConfigError, match="steps = 0"):
        accumulation_vector(SGD(0.1), 0)
    with pytest.raises(ConfigError, match="steps"):
        fedprox_rule([1, 2.5], 0.1)
    with pytest.raises(ConfigError, match=r"alpha = 1\.5"):
        fedprox_rule([1, 2], 1.5)
    with pytest.raises(ConfigError, match="tau_eff"):
        update_rule([np.ones(2)], tau_eff=2.0)
    for bad in ([[1.0, -1.0]], [[]], [[0.0]], []):
        with pytest.raises(DataError):
            update_rule(bad)
    with pytest.raises(DataError, match=r"weights\[1\]"):
        chi_square([0.5, 0.5], [1.0, 0.0])
    with pytest.raises(DataError, match="per client, 2"):
        chi_square([0.5, 0.5, 0.0], [0.5, 0.5])
    with pytest.raises(DataError, match="clients × d"):
        weighted_optimum(np.eye(2), np.ones((3, 2)))
    with pytest.raises(ConfigError, match="per client, 2"):
        unit_fixed_point(np.ones((2, 1)), [1, 2, 3])
    with pytest.raises(DataError, match="singular"):
        weighted_optimum(np.zeros((1, 2, 2)), np.ones((1, 2)))
