"""Bounds, schedules and predicted speed-ups against transcriptions, recursions and brute force."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from fedax.errors import ConfigError, DataError
from fedax.theory import (
    asymptotic_alpha,
    best_alpha,
    condition_numbers,
    convex_bound,
    convex_lr,
    fedprox_rule,
    geometric_bound,
    interpolation_lr,
    iterations_to,
    least_squares_lr,
    max_lr,
    nesterov_strongly_convex,
    nova_lr,
    objective_bound,
    strongly_convex_bound,
    strongly_convex_lr,
    surrogate_bound,
    update_rule,
)

CONSTANTS = {"smoothness": 2.0, "variance": 3.0, "gap": 0.7, "dissimilarity": 1.5, "rounds": 400}


def test_the_bounds_of_normalised_averaging_are_the_printed_ones():
    rule = fedprox_rule([3, 9, 5], 0.2, [1, 2, 3])
    for lr in (0.01, None):
        eta = math.sqrt(3 / (17 / 3 * 400)) if lr is None else lr
        terms = [
            4 * 0.7 / (eta * rule.tau_eff * 400),
            4 * eta * 2 * 3 * rule.A / 3,
            6 * eta**2 * 4 * 3 * rule.B,
            12 * eta**2 * 4 * 1.5 * rule.C,
        ]
        bound = surrogate_bound(rule, **CONSTANTS, lr=lr)
        assert_allclose(bound, terms, rtol=1e-12)
        assert bound.total == pytest.approx(sum(terms))
    assert objective_bound(0.3, 2.0, dissimilarity=5.0, dissimilarity_factor=4.0) == pytest.approx((7.6, 3.0))
    expected = min(1 / (rule.longest * 3), 1 / rule.tau_eff) / 4
    assert max_lr(rule, smoothness=2.0, dissimilarity_factor=4.0) == pytest.approx(expected)
    assert nova_lr(clients=5, mean_steps=17 / 3, rounds=400) == pytest.approx(math.sqrt(15 / 17 / 400))


def test_varying_work_averages_and_keeps_the_rate():
    rules = [update_rule([np.ones(t), np.ones(2 * t)], normalized=True) for t in (2, 4)]
    bound = surrogate_bound(rules, **CONSTANTS, lr=0.01)
    taus = np.array([3.0, 6.0])
    A = taus @ [r.A for r in rules] / 9
    assert_allclose(bound[:2], (4 * 0.7 / (0.01 * 4.5 * 400), 4 * 0.01 * 2 * 3 * A / 2), rtol=1e-12)
    assert max_lr(rules, smoothness=1.0) == max_lr(rules[1], smoothness=1.0)
    same = [update_rule([np.ones(t), np.ones(2 * t)], normalized=True, tau_eff=5.0) for t in (2, 4)]
    C = np.mean([r.C for r in same])  # Theorem 3's plain average
    assert surrogate_bound(same, **CONSTANTS, lr=0.01).drift == pytest.approx(12 * 1e-4 * 4 * 1.5 * C)


def test_the_best_alpha_is_that_of_a_grid():
    for steps, constants in (([5, 50], CONSTANTS), ([20] * 5, {**CONSTANTS, "rounds": 10**6}), ([1, 2], CONSTANTS)):
        alpha, bound = best_alpha(steps, **constants)
        grid = [surrogate_bound(fedprox_rule(steps, a), **constants).total for a in np.linspace(0, 1, 401)]
        assert bound <= min(grid) * (1 + 1e-12) and bound == pytest.approx(min(grid), rel=1e-2)
        assert abs(alpha - np.argmin(grid) / 400) < 5e-3
    assert asymptotic_alpha(clients=9, mean_steps=2500, rounds=10**6) == pytest.approx(0.006)
    big = {"smoothness": 1, "variance": 1, "gap": 1, "dissimilarity": 1}
    results = [best_alpha([10**4] * 4, **big, rounds=R)[0] for R in (10**3, 8**2 * 10**3)]
    assert results[0] / results[1] == pytest.approx(2, rel=0.1)  # the order R^−⅙


def test_schedules_are_the_printed_ones():
    for mu, E in ((0.5, 3), (2.0, 100)):
        alpha = strongly_convex_lr(smoothness=2, curvature=mu, period=E)
        rounds = strongly_convex_lr(smoothness=2, curvature=mu, period=E, every=E)
        nesterov, beta = nesterov_strongly_convex(smoothness=2, curvature=mu, period=E)
        g = max(64 / mu, E)
        for t in (0, 7, 500):
            assert float(alpha(t)) == pytest.approx(4 / (mu * (g + t)), rel=1e-6)
            assert float(rounds(t)) == pytest.approx(4 / (mu * (g + E * t)), rel=1e-6)
            assert float(nesterov(t)) == pytest.approx(6 / (mu * (g + t)), rel=1e-6)
            s = t + 1 + g  # β_{t−1} at t + 1
            assert float(beta(t)) == pytest.approx(3 / (14 * s * (1 - 6 / s) * max(mu, 1)), rel=1e-6)
    assert convex_lr(clients=4, iterations=400, smoothness=2.5) == 0.1


QU = {"smoothness": 2.0, "period": 4, "variance": 3.0, "gradient": 1.3, "distance": 5.0}


def test_bounds_for_convex_losses_are_those_of_their_recursions():
    """The strongly convex one is the recursion's value, step by step; the theorem's form is up to 3 times larger."""
    for cohort, replacement in ((None, True), (4, True), (4, False)):
        given = {**QU, "clients": 8, "cohort": cohort, "replacement": replacement, "nu_max": 1.5}
        share = 0 if cohort is None else (1 if replacement else 4 / 7)
        V = 1.5**2 * 3 / 8 + share * 4 * 16 * 1.3 / 4
        r, keep = 5.0, 1.0
        for t in range(300):
            a = 4 / (0.5 * (128 + t))
            r, keep = (1 - 0.5 * a) * r + a**2 * V + 6 * a**3 * 2 * 16 * 1.3, keep * (1 - 0.5 * a)
            if t in (0, 6, 299):
                assert strongly_convex_bound(t + 1, curvature=0.5, **given) == pytest.approx(r, rel=1e-9)  # L/2 = 1
        a = 4 / (0.5 * (128 + 300))
        assert r <= 5 * keep + 8 * (a * V + 6 * a**2 * 2 * 16 * 1.3) <= 3 * r
        T, S = 10**6, cohort or 8
        expected = 5 / math.sqrt(S * T) + math.sqrt(S / T) * V + S / T * 6 * 2 * 16 * 1.3
        assert convex_bound(T, **given) == pytest.approx(expected, rel=1e-9)
        assert convex_bound(100, **given) == math.inf


def test_the_speed_up_of_the_theory_page_is_that_of_the_recursion():
    """Iterated here until the target; the theorem's form would promise 4.0, 13.8, 27.9, 34.5."""

    def iterations(clients):
        d, t = 1.0, 0
        while d / 2 > 1e-3:
            a = 4 / (0.1 * (320 + t))
            d, t = (1 - 0.1 * a) * d + a**2 / clients + 6 * a**3 * 25 * 0.1, t + 1
        return t

    constants = {"smoothness": 1.0, "curvature": 0.1, "period": 5, "variance": 1.0, "gradient": 0.1, "distance": 1.0}
    by_hand = [iterations(n) for n in (1, 4, 16, 64, 256)]
    assert by_hand == [
        iterations_to(1e-3, lambda t: strongly_convex_bound(t, clients=n, **constants))  # noqa: B023
        for n in (1, 4, 16, 64, 256)
    ]
    assert [round(by_hand[0] / T, 1) for T in by_hand[1:]] == [3.8, 10.4, 15.4, 17.0]


def test_speed_up_is_linear_in_the_clients():
    strong = [iterations_to(1e-5, lambda t: strongly_convex_bound(t, clients=n, curvature=0.5, **QU)) for n in (1, 4)]  # noqa: B023
    convex = [iterations_to(1e-3, lambda t: convex_bound(t, clients=n, **QU)) for n in (1, 4)]  # noqa: B023
    assert 3.8 < strong[0] / strong[1] <= 4.001 and 3.5 < convex[0] / convex[1] <= 4.001
    c = condition_numbers([np.random.default_rng(0).normal(size=(50, 5))])
    for rate in (interpolation_lr, least_squares_lr):
        T = []
        for n in (1, 4):
            factor = rate(c._replace(clients=n)).factor
            T.append(iterations_to(1e-9, lambda t: geometric_bound(t, smoothness=1, factor=factor, distance=2.0)))  # noqa: B023
            assert T[-1] == math.ceil(math.log(1e-9) / math.log(factor))
        assert 2 < T[0] / T[1] < 4


def test_bad_input():
    rule = fedprox_rule([1, 2], 0.0)
    for call, match in (
        (lambda: surrogate_bound(rule, **{**CONSTANTS, "variance": -1.0}), "variance = -1"),
        (lambda: max_lr(rule, smoothness=1.0, dissimilarity_factor=0.5), "dissimilarity_factor"),
        (lambda: strongly_convex_lr(smoothness=1, curvature=2, period=1), "curvature = 2"),
        (lambda: convex_lr(clients=4, iterations=10, smoothness=1.0), "at least 64"),
        (lambda: convex_bound(10, clients=4, cohort=5, **QU), "cohort = 5"),
        (lambda: iterations_to(0.5, lambda t: 1.0, most=100), "epsilon"),
    ):
        with pytest.raises(ConfigError, match=match):
            call()
    with pytest.raises(DataError, match="rules"):
        max_lr([], smoothness=1.0)
