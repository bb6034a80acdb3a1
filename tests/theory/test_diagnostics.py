"""The constants of one's own problem against exact values, enumeration and Monte Carlo; and what is said about them."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose

import fedax
from fedax.contract.indices import independent, shuffled
from fedax.engine.footprint import footprints
from fedax.engine.make import make_job
from fedax.errors import ConfigError
from fedax.theory import (
    accumulation_vector,
    chi_square,
    diagnose,
    fedprox_rule,
    fixed_point,
    max_lr,
    measure,
    weighted_optimum,
)
from fedax.theory.advice import CORRECTED, HALF, MOMENTUM, NORMALIZED, PLAIN, SMALL_BATCH, Case, removes, verdict
from fedax.theory.measure import (
    _seen,
    _square,
    batch_variance,
    dissimilarity_line,
    largest_eigenvalue,
    newton_gain,
)
from fedax.theory.reasons import cohort, drift
from fedax.theory.surrogate import expected_weights, view_of
from tests.algorithms.bed import limit
from tests.theory import sentence

SIZES, P = np.array([3, 1, 40, 9]), np.array([0.1, 0.2, 0.4, 0.3])
FEATURES, TAU = 6, np.array([2, 7, 3, 4])


def federation(features):
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(4), SIZES)
    x = rng.normal(size=(SIZES.sum(), features)) * np.array([1, 3, 2, 0.5])[client][:, None]
    y = np.sum(x * rng.normal(size=(4, features))[client], axis=1) + rng.normal(size=len(client))
    return fedax.FederatedData({"x": x, "y": y}, SIZES, P)


DATA = federation(FEATURES)
TASK = fedax.tasks.linear_regression(FEATURES, bias=False)
FEDAVG = fedax.create("fedavg", lr=0.003)
MODELS = [{"w": np.random.default_rng(k).normal(size=FEATURES)} for k in range(3)]
UNEQUAL = fedax.Steps(TAU)


def parts(i, w):
    """Gradients [n_i, d] of client i's examples, and its Hessian."""
    own = DATA.client(i)
    return 2 * (own["x"] @ w - own["y"])[:, None] * own["x"], 2 * own["x"].T @ own["x"] / len(own["y"])


@pytest.fixture(scope="module")
def diagnosis():
    with jax.enable_x64(True):
        return diagnose(FEDAVG, TASK, DATA, work=UNEQUAL, batch_size=4, points=MODELS)


def test_curvature_and_noise_are_the_exact_ones_on_least_squares(diagnosis):
    hessians = [parts(i, MODELS[0]["w"])[1] for i in range(4)]
    exact = max(np.linalg.eigvalsh(H)[-1] for H in hessians)
    whole = np.linalg.eigvalsh(np.tensordot(P, hessians, 1))[-1]
    assert diagnosis.clients_seen == 4
    for point, model in zip(diagnosis.points, MODELS, strict=True):
        assert_allclose([point.smoothness, point.objective_smoothness], [exact, whole], rtol=1e-5)
        single = [parts(i, model["w"])[0] for i in range(4)]
        variance = np.array([np.mean(np.sum((g - g.mean(0)) ** 2, axis=1)) / 4 for g in single])
        assert_allclose([point.variance, point.largest_variance], [P @ variance, variance.max()], rtol=1e-9)


def test_float32_and_blocks_keep_them_to_one_percent(diagnosis, monkeypatch):
    monkeypatch.setattr("fedax.theory.measure._NUMBERS", 7 * FEATURES)  # blocks of 7 examples, a Krylov space of 5
    again = diagnose(FEDAVG, TASK, DATA, work=UNEQUAL, batch_size=4, points=MODELS[:1]).points[0]
    for name in ("smoothness", "objective_smoothness", "variance", "gradient", "dissimilarity", "loss", "move", "left"):
        assert_allclose(getattr(again, name), getattr(diagnosis.points[0], name), rtol=1e-4)


def test_gradients_and_dissimilarity_are_those_of_the_definitions(diagnosis):
    w = P * TAU / (P @ TAU)
    kappa = []
    for point, model in zip(diagnosis.points, MODELS, strict=True):
        g = np.stack([parts(i, model["w"])[0].mean(0) for i in range(4)])
        assert_allclose(point.gradient, np.sum((P @ g) ** 2))
        assert_allclose(point.surrogate_gradient, np.sum((w @ g) ** 2))
        assert_allclose(point.client_gradients, w @ np.sum(g**2, axis=1))
        assert_allclose(point.dissimilarity, P @ np.sum((g - P @ g) ** 2, axis=1))
        kappa.append(w @ np.sum((g - w @ g) ** 2, axis=1))
        assert point.gradient <= 2 * point.surrogate_gradient + 2 * diagnosis.chi2 * kappa[-1]
        losses = [np.mean((DATA.client(i)["x"] @ model["w"] - DATA.client(i)["y"]) ** 2) for i in range(4)]
        assert_allclose(point.loss, P @ losses)
    assert_allclose(diagnosis.constant, max(kappa))
    assert_allclose(diagnosis.floor, 2 * chi_square(P, w) * kappa[-1])
    factor, constant = diagnosis.line
    for point in diagnosis.points:
        assert point.client_gradients <= factor * point.surrogate_gradient + constant + 1e-9


def test_the_line_is_the_lowest_of_a_grid():
    rng = np.random.default_rng(0)
    for _ in range(20):
        a = rng.exponential(size=rng.integers(1, 5))
        b = a + rng.exponential(size=len(a)) * 3
        factor, constant = dissimilarity_line(a, b)
        assert factor >= 1 and constant >= 0 and (b <= factor * a + constant + 1e-9).all()
        lines = [f * a.mean() + max(np.max(b - f * a), 0) for f in np.linspace(1, 30, 1000)]
        assert factor * a.mean() + constant <= min(lines) + 1e-9
    assert dissimilarity_line([2.0], [5.0]) == (1.0, 3.0) and dissimilarity_line([0.0, 0.0], [1.0, 2.0]) == (1.0, 2.0)


@pytest.mark.parametrize("spectrum", ["alone", "close", "equal", "negative", "zero"])
def test_eigenvalues(spectrum):
    rng = np.random.default_rng(0)
    values = np.linspace(0.0, 1.0, 80)
    values[:3] = {"alone": [5, 0, 0], "close": [2, 1.998, 1.99], "equal": [2, 2, 2], "negative": [-2, 1.99, 0]}.get(
        spectrum, [0, 0, 0]
    )
    values = 0 * values if spectrum == "zero" else values
    q = np.linalg.qr(rng.normal(size=(80, 80)))[0]
    value, converged = largest_eigenvalue(lambda v: q @ (values * (q.T @ v)), rng.normal(size=80))
    assert converged
    assert_allclose(value, np.abs(values).max(), rtol=1e-3)
    assert (
        not largest_eigenvalue(lambda v: q @ (values * (q.T @ v)), rng.normal(size=80), most=1)[1] or not values.any()
    )


def test_a_hessian_may_be_negative():
    task = fedax.Task(
        lambda key: jnp.zeros(2), lambda x, batch, key: batch["s"] @ jnp.array([[-3.0, 0], [0, 1.0]]) @ x**2
    )
    data = fedax.FederatedData({"s": np.ones((2, 2))}, [1, 1])
    assert_allclose(diagnose(FEDAVG, task, data).smoothness, 6.0, rtol=1e-5)


@pytest.mark.parametrize("epochs", [False, True])
@pytest.mark.parametrize("size, batch, steps", [(9, 4, 2), (9, 4, 7), (3, 4, 5), (3, 8, 2), (1, 2, 1)])
def test_noise_is_that_of_the_minibatches_as_they_are_drawn(epochs, size, batch, steps):
    values = np.random.default_rng(1).normal(size=size)
    position = jnp.arange(steps * batch)

    def rows(key):
        if not epochs:
            return independent(position, size, key)
        return shuffled(position % size, size, key, position // size, max_size=size)

    drawn = jax.jit(jax.vmap(rows))(jax.random.split(jax.random.key(0), 20_000))
    means = values[np.asarray(drawn)].reshape(-1, steps, batch).mean(2)
    expected = batch_variance(size, batch, steps, epochs=epochs) * values.var()
    assert_allclose(np.mean((means - values.mean()) ** 2), expected, rtol=0.04, atol=1e-12)


def test_full_gradients_have_no_noise():
    point = diagnose(FEDAVG, TASK, DATA, work=UNEQUAL).points[0]
    assert point.variance == point.largest_variance == point.noise == point.cohort_noise == 0
    assert point.bias_range == (point.bias, point.bias) and point.bias > 0


def rounds_of(method, model, tau, shares, towards):
    """D and C of full gradients, by hand: Σ c_iΔ_i of the local steps as they are, and corrected by ∇F̃ − ∇F_i."""
    gradients = [parts(i, model)[0].mean(0) for i in range(4)]
    corrections = [0 * gradients[0]] * 4, [towards @ gradients - g for g in gradients]
    diagnosis = []
    for correction in corrections:
        total = 0
        for i in range(4):
            y = model
            for _ in range(tau[i]):
                y = y - method.solver.lr * (parts(i, y)[0].mean(0) + correction[i] + method.solver.prox * (y - model))
            total = total + shares[i] * (y - model)
        diagnosis.append(total)
    return diagnosis, P @ gradients


@pytest.mark.parametrize("name", ["fedprox", "fednova"])
def test_the_bias_is_what_corrected_local_steps_do_not_have(name):
    tau = np.array([1, 7, 3, 4])
    method = fedax.create(name, lr=0.003, prox=2.0)
    with jax.enable_x64(True):
        point = diagnose(method, TASK, DATA, work=fedax.Steps(tau), points=MODELS, sample=1).points[-1]
    rule = fedprox_rule(tau, 0.006, P)
    norms = np.array([np.linalg.norm(accumulation_vector(method.solver, t), 1) for t in tau])
    shares, w = (P, rule.weights) if name == "fedprox" else (P * (P @ norms) / norms, P)
    (plain, free), gradient = rounds_of(method, MODELS[-1]["w"], tau, shares, w)
    assert_allclose([point.move, point.free_move], [np.linalg.norm(plain), np.linalg.norm(free)])
    assert_allclose(point.bias, np.linalg.norm(plain - free))
    assert_allclose([point.descent, point.free_descent], [-gradient @ plain, -gradient @ free])


def test_the_bias_is_of_second_order_though_steps_and_weights_differ():
    """The objective of unequal work is of first order, and no part of it."""
    bias = []
    for lr in (2e-4, 1e-4):
        with jax.enable_x64(True):
            point = diagnose(
                fedax.create("fedavg", lr=lr), TASK, DATA, work=UNEQUAL, points=MODELS[:1], sample=1
            ).points[0]
        bias.append(point.bias)
    assert 3.5 < bias[0] / bias[1] < 4


def test_newtons_gain_is_exact_in_as_many_products_as_there_are_curvatures():
    rng = np.random.default_rng(0)
    q = np.linalg.qr(rng.normal(size=(9, 9)))[0]
    H, g = q @ np.diag([1.0, 1, 1, 4, 4, 9, 9, 9, 25]) @ q.T, rng.normal(size=9)
    exact = g @ np.linalg.solve(H, g) / 2
    diagnosis = [newton_gain(lambda v: H @ v, g, 25.0, most) for most in (1, 2, 3, 4)]
    assert diagnosis == sorted(diagnosis) and diagnosis[0] < 0.95 * exact
    assert_allclose(diagnosis[-1], exact)
    assert newton_gain(lambda v: -v, np.array([2.0, 0.0]), 4.0) == 0.5 and newton_gain(lambda v: v, 0 * g, 1.0) == 0.0
    assert [newton_gain(lambda v: -v, np.array([2.0, 0.0]), L) for L in (0.5, 0.0)] == [4.0, np.inf]


def test_squares_of_means_are_found_without_bias_and_their_intervals_cover_them():
    rng = np.random.default_rng(0)
    mean = np.zeros(30)
    mean[0] = 1.0
    squares, covered = [], 0
    for _ in range(400):
        value, low, high = _square(mean + 0.3 * rng.normal(size=(4, 30)))
        squares.append(value)
        covered += low <= 1.0 <= high
    assert_allclose(np.mean(squares), 1.0, atol=0.08) and covered > 0.85 * 400


WIDE = federation(80)
LINEAR = fedax.Task(lambda key: jnp.zeros(80), lambda w, batch, key: batch["x"] @ w)  # no curvature


@functools.cache
def norms_of(momentum):
    """‖a_i‖₁ and ‖a_i‖₂, [4] each."""
    vectors = [accumulation_vector(fedax.SGD(0.5, momentum=momentum), t) for t in TAU]
    return [np.array([np.linalg.norm(a, k) for a in vectors]) for k in (1, 2)]


def without_curvature(participation, method, batch_size, seeds, data=WIDE):
    """Means of squares over seeds; per client its steady update [d] and the square of its noise."""
    points = [
        diagnose(
            method, LINEAR, data, work=UNEQUAL, batch_size=batch_size, seed=seed, sample=1, participation=participation
        ).points[0]
        for seed in range(seeds)
    ]
    l1, l2 = norms_of(method.solver.momentum)
    x = [data.client(i)["x"] for i in range(4)]
    steady = -0.5 * l1[:, None] * np.stack([rows.mean(0) for rows in x])
    noise = (0.5 * l2) ** 2 * np.array([rows.var(0).sum() / (batch_size or np.inf) for rows in x])
    mean = {
        name: np.mean([getattr(p, name) ** 2 for p in points]) for name in ("move", "bias", "noise", "cohort_noise")
    }
    return mean, steady, noise


def test_noise_and_move_are_exact_on_average_without_curvature():
    method = fedax.create("fedavg", lr=0.5, momentum=0.5)
    mean, steady, noise = without_curvature(fedax.Full(), method, 2, 15)
    assert_allclose(mean["noise"], P**2 @ noise, rtol=0.08)
    assert_allclose(mean["move"], np.sum((P @ steady) ** 2), rtol=0.08)
    assert mean["bias"] < 1e-9 * mean["move"] and mean["cohort_noise"] == 0


SETS = [list(pair) for pair in itertools.combinations(range(4), 2)]
EACH = fedax.Dropout(fedax.Full(), 0.4)


@pytest.mark.parametrize(
    "participation, cohorts",
    [
        (fedax.Uniform(2), [(1 / 6, np.isin(range(4), pair) * P * 2) for pair in SETS]),
        (fedax.UniformNormalized(2), [(1 / 6, np.isin(range(4), pair) * P / P[pair].sum()) for pair in SETS]),
        (fedax.Proportional(2), [(P[i] * P[j], (np.eye(4)[i] + np.eye(4)[j]) / 2) for i in range(4) for j in range(4)]),
        (
            fedax.Trace([[0, 1], [3], [2]]),
            [(1 / 3, np.array(w) / 3) for w in ([1, 2, 0, 0], [0, 0, 3, 0], [0, 0, 0, 3])],
        ),
        (
            EACH,
            [
                (0.6 ** sum(there) * 0.4 ** (4 - sum(there)), np.array(there) * P / 0.6)
                for there in itertools.product([0, 1], repeat=4)
            ],
        ),
    ],
    ids=["uniform", "normalized", "proportional", "trace", "dropout"],
)  # fmt: skip
def test_the_noise_of_cohorts_is_that_of_their_weights(participation, cohorts):
    mean, steady, noise = without_curvature(participation, fedax.create("fedavg", lr=0.5), 2, 5)
    chance, omega = np.array([c for c, _ in cohorts]), np.stack([w for _, w in cohorts])
    updates = omega @ steady
    centre = chance @ updates
    assert_allclose(mean["cohort_noise"], chance @ np.sum((updates - centre) ** 2, axis=1), rtol=0.15)
    assert_allclose(mean["noise"], (chance @ omega**2) @ noise, rtol=0.2)
    assert_allclose(mean["move"], np.sum(centre**2), rtol=0.15)


def test_whole_passes_leave_no_noise_without_curvature():
    point = diagnose(FEDAVG, LINEAR, WIDE, work=fedax.Epochs(2), batch_size=1).points[0]
    assert point.variance > 1 and point.noise < 1e-6 * point.move


# ---- weights


def test_weights_of_fixed_work(diagnosis):
    assert_allclose(diagnosis.weights, P * TAU / (P @ TAU))
    assert_allclose(diagnosis.chi2, chi_square(P, P * TAU))
    assert diagnosis.chi2_range is None and diagnosis.steps == (2, 7)
    rule, L = fedprox_rule(TAU, 0, P), diagnosis.smoothness
    assert diagnosis.line[0] > 1  # else the next two lines are one
    assert_allclose(diagnosis.max_lr, max_lr(rule, smoothness=L, dissimilarity_factor=diagnosis.line[0]))
    assert_allclose(diagnosis.loosest_lr, max_lr(rule, smoothness=L))
    with_prox = diagnose(fedax.create("fedprox", lr=0.003, prox=100.0), TASK, DATA, work=UNEQUAL)
    assert_allclose(with_prox.weights, fedprox_rule(TAU, 0.3, P).weights, rtol=1e-6)


def test_weights_of_random_work_are_those_of_the_mean_update():
    work = fedax.RandomEpochs(1, 9)
    diagnosis = diagnose(FEDAVG, TASK, DATA, work=work, batch_size=1)
    assert_allclose(diagnosis.weights, P * SIZES / (P @ SIZES), rtol=0.25)
    low, high = diagnosis.chi2_range
    assert low < diagnosis.chi2 < high
    assert any("50 draws" in text for text in diagnosis.unknown)
    coin = diagnose(FEDAVG, TASK, DATA, work=fedax.GeometricSteps(5.0), batch_size=1)
    assert coin.chi2 < 1e-20 and "all alike in each" in sentence(coin, "bjective")


def test_weights_of_cohorts():
    p = np.array([0.1, 0.2, 0.7])
    assert_allclose(expected_weights(fedax.UniformNormalized(1), p), np.full(3, 1 / 3))
    exact = np.zeros(3)
    for pair in itertools.combinations(range(3), 2):
        exact[list(pair)] += p[list(pair)] / p[list(pair)].sum() / 3
    assert_allclose(expected_weights(fedax.UniformNormalized(2), p), exact, rtol=0.02)
    assert_allclose(expected_weights(fedax.UniformNormalized(3), p), p)
    assert_allclose(expected_weights(fedax.UniformNormalized(2), np.full(5, 0.2)), 0.2, rtol=1e-12)
    assert_allclose(expected_weights(fedax.Trace([[0, 2], [1]]), p), np.array([0.125, 1, 0.875]) / 2)
    table = np.array([[True, False, True], [True, True, True]])
    some = expected_weights(fedax.Dropout(fedax.Full(), available=table), p)
    assert_allclose(some, np.array([0.1 / 0.8 + 0.1, 0.2, 0.7 / 0.8 + 0.7]) / 2, rtol=1e-6)
    pairs = expected_weights(
        fedax.Dropout(fedax.UniformNormalized(3), 0.5), p
    )  # each set but the empty one, alike often
    sets = [each for size in (1, 2, 3) for each in itertools.combinations(range(3), size)]
    exact = sum(p * np.isin(range(3), each) / p[list(each)].sum() for each in sets) / 7
    assert_allclose(pairs, exact, rtol=0.05)
    for unbiased in (fedax.Uniform(2), fedax.Proportional(2), fedax.Full(), fedax.Dropout(fedax.Uniform(2), 0.5)):
        assert_allclose(expected_weights(unbiased, p), p)


def test_cohorts_with_divided_weights_are_an_inconsistency_of_their_own():
    method = fedax.create("fednova", lr=0.003)
    diagnosis = diagnose(method, TASK, DATA, work=UNEQUAL, participation=fedax.UniformNormalized(1))
    assert_allclose(diagnosis.weights, 0.25)
    assert sentence(diagnosis, "bjective").startswith("Objective inconsistency: cohorts' weights are divided")
    assert diagnose(method, TASK, DATA, work=UNEQUAL, participation=fedax.Uniform(1)).chi2 == 0
    never = diagnose(method, TASK, DATA, work=UNEQUAL, participation=fedax.Trace([[0, 2], [3]]))
    assert never.weights[1] == 0 and never.chi2 == never.floor == np.inf


def test_a_client_of_no_weight_takes_no_part():
    data = fedax.FederatedData(DATA.examples, SIZES, [0.5, 0.0, 0.25, 0.25])
    diagnosis = diagnose(FEDAVG, TASK, data, work=UNEQUAL)
    assert_allclose(diagnosis.weights, np.array([1, 0, 0.75, 1]) / 2.75)
    assert_allclose(diagnosis.chi2, chi_square([2, 1, 1], [1, 0.75, 1]))


CENTRES = np.array([[-1.0], [0.5], [2.0]])
QUADRATICS = fedax.FederatedData({"H": np.ones((3, 1, 1)), "e": CENTRES}, [1, 1, 1], [0.2, 0.3, 0.5])
QUADRATIC = fedax.tasks.quadratic(1)
HYPER = {
    "fedavg-m": {"beta": 1.0},
    "fedglomo": {"beta": 1.0},
    "fedavg-m-vr": {"beta": 1.0},
    "scaffold": {"lr": 0.02},
    "feddyn": {"lr": 0.02},
}


@pytest.mark.parametrize(
    "name", ["fedavg", "fednova", "fedavg-m", "fedavg-m-vr", "fedglomo", "vrl-sgd", "feddualavg", "scaffold", "feddyn"]
)
def test_a_run_ends_at_the_optimum_of_the_weights(name):
    method = fedax.create(name, **{"lr": 0.002} | HYPER.get(name, {}))
    work = fedax.Steps([1, 6, 2])
    w = diagnose(method, QUADRATIC, QUADRATICS, work=work).weights
    end = limit(method, 1500, task=QUADRATIC, data=QUADRATICS, params=np.zeros(1), work=work)
    assert_allclose(end, weighted_optimum(np.ones((3, 1, 1)), CENTRES, w), atol=0.02)
    assert abs(weighted_optimum(np.ones((3, 1, 1)), CENTRES, [1, 18, 5])[0] - 1.0) > 0.05  # which these tell apart


@pytest.mark.parametrize("name", fedax.available())
def test_every_method_has_a_diagnosis(name):
    method = fedax.create(name)
    traits, diagnosis = method.traits(), diagnose(method, QUADRATIC, QUADRATICS, work=fedax.Steps(2))
    known = diagnosis.weights is not None
    assert known is bool(traits.limit), diagnosis.advice
    assert (
        sentence(diagnosis, "bjective").startswith("No objective inconsistency" if known else "What ")
        and diagnosis.unknown
    )
    assert (diagnosis.max_lr is not None) is isinstance(method, fedax.FedAvg)
    if traits.steps == "equal":
        with pytest.raises(ConfigError, match="equal local steps"):
            diagnose(method, QUADRATIC, QUADRATICS, work=fedax.Steps([1, 2, 3]))


def test_the_methods_that_the_advice_names_are_what_it_says_they_are():
    plain, normalized, *corrected = (fedax.create(name).traits() for name in (PLAIN, NORMALIZED, CORRECTED, HALF))
    assert (plain.limit, plain.exact) == ("steps", "never") and (normalized.limit, normalized.exact) == ("F", "never")
    assert [removes(each, False) for each in corrected] == [{"drift", "objective", "cohort"}] * 2
    assert all((each.cohorts, each.steps) == ("any", "any") for each in corrected)
    costs = {name: footprints(fedax.create(name)) for name in (PLAIN, NORMALIZED, CORRECTED, HALF, MOMENTUM)}
    traffic = {name: each.cohort.down.models + each.cohort.up.models for name, each in costs.items()}
    assert traffic == {PLAIN: 2, NORMALIZED: 2, CORRECTED: 4, HALF: 2, MOMENTUM: 3}
    assert {name: each.memory.models for name, each in costs.items()} == {
        PLAIN: 0,
        NORMALIZED: 0,
        CORRECTED: 1,
        HALF: 1,
        MOMENTUM: 0,
    }
    assert costs[NORMALIZED].cohort.up.numbers == 1


# ---- words


@pytest.fixture(scope="module")
def digits():
    pooled = fedax.data.load("digits")
    parts = fedax.data.dirichlet(pooled.train["y"], clients=16, alpha=0.1)
    return fedax.FederatedData.from_partition(pooled.train, parts), fedax.tasks.softmax_regression(64, 10)


def test_digits_with_unequal_epochs_are_inconsistent_and_with_equal_steps_are_not(digits):
    data, task = digits
    method = fedax.create("fedavg", lr=0.1)
    unequal = diagnose(method, task, data, work=fedax.Epochs(2), batch_size=32, sample=2)
    tau = np.maximum(1, 2 * data.sizes // 32)
    assert_allclose(unequal.chi2, chi_square(data.weights, data.weights * tau))
    first = sentence(unequal, "bjective")
    assert first.startswith(
        f"Objective inconsistency: clients take {tau.min()} to {tau.max()} steps a round, so FedAvg"
    )
    assert f"χ² = {unequal.chi2:.3g}" in first and "FedNova removes" in first and f"{unequal.floor:.3g}" in first
    assert "and 2 of 16 clients looked at" in unequal.unknown[0]
    equal = diagnose(method, task, data, work=fedax.Steps(10), batch_size=32, sample=1)
    assert equal.chi2 < 1e-20 and equal.floor < 1e-20
    assert sentence(equal, "bjective").startswith(
        "No objective inconsistency: every client takes 10 steps a round (χ² = 0)"
    )
    fednova = diagnose(fedax.create("fednova", lr=0.1), task, data, work=fedax.Epochs(2), batch_size=32, sample=1)
    assert sentence(fednova, "bjective").startswith(
        "No objective inconsistency"
    ) and "counts each by its weight" in sentence(fednova, "bjective")


def advice(lr=0.003, data=DATA, **options):
    return diagnose(fedax.create("fedavg", lr=lr), TASK, data, **{"work": UNEQUAL, "batch_size": 4} | options).advice


def test_advice_on_the_learning_rate():
    limit = diagnose(FEDAVG, TASK, DATA, work=UNEQUAL).max_lr
    low = advice(0.5 * limit)[-1]
    assert "meets the theorems' lr ≤" in low and "show no larger β²): keep it" in low
    assert "Try a larger one: 20 times as large" in advice(0.05 * limit)[-1]
    some = advice(0.05 * limit, participation=fedax.Proportional(2))[-1]
    assert "for all clients in every round; cohorts ask for less" in some and "Try a larger" not in some
    above = advice(2 * limit)[-1]
    assert "is 2 times the" in above and "keep lr while the loss falls" in above and "above 2" not in above
    assert "is above 2" in advice(60 * limit)[-1] and "If the loss jumps, take lr below 2/L" in advice(60 * limit)[-1]
    optimum = {"w": np.linalg.lstsq(DATA.examples["x"], DATA.examples["y"])[0]}
    fell = diagnose(fedax.create("fedavg", lr=9 * limit), TASK, DATA, work=UNEQUAL, points=[MODELS[0], optimum])
    assert "Keep it: the loss fell" in fell.advice[-1] and f"for β² = {fell.line[0]:.3g} as measured" in fell.advice[-1]
    rose = advice(9 * limit, points=[optimum, MODELS[0]])[-1]
    assert "Lower it: the loss went" in rose


def quadratics(spread, clients=6, d=4, seed=0):
    """Unlike Hessians and optima, ``spread`` of the latter; and a last coordinate that all want to be 0."""
    rng = np.random.default_rng(seed)
    q = [np.linalg.qr(rng.normal(size=(d, d)))[0] for _ in range(clients)]
    H = np.stack([each @ np.diag(rng.uniform(0.2, 1.0, d)) @ each.T for each in q])
    centres = 0.7 + spread * rng.normal(size=(clients, d))
    e = np.pad(np.einsum("ijk,ik->ij", H, centres), ((0, 0), (0, 1)))
    H = np.pad(H, ((0, 0), (0, 1), (0, 1)))
    H[:, -1, -1] = 1
    return fedax.FederatedData({"H": H, "e": e}, [1] * clients), H, e


@pytest.mark.parametrize("lr, steps", [(0.02, 5), (0.3, 20)])
def test_drift_that_moves_the_fixed_point_harms_by_as_much_as_is_said(lr, steps):
    data, H, e = quadratics(1.0)
    method, task = fedax.create("fedavg", lr=lr), fedax.tasks.quadratic(5)
    best = weighted_optimum(H, e)
    rests = fixed_point(H, e, method.solver, [steps] * 6)
    with jax.enable_x64(True):
        diagnosis = diagnose(method, task, data, work=fedax.Steps(steps), points=[np.zeros(5), rests])
        corrected = diagnose(
            fedax.create("scaffold", lr=lr), task, data, work=fedax.Steps(steps), points=[np.zeros(5), best]
        )
    lost = (rests - best) @ H.mean(0) @ (rests - best) / 2
    point = diagnosis.points[-1]
    assert_allclose(point.drift_cost, lost, rtol=0.4)
    assert_allclose(point.left, lost, rtol=1e-6)  # at rest all that is left is what drift took
    assert abs(point.descent) < 1e-6 * point.free_descent and point.move < 1e-9
    harms = bool(lost > 0.002 * (diagnosis.points[0].loss - point.loss + lost))
    assert harms is (lr > 0.02)  # with small steps little is lost
    if harms:
        assert diagnosis.take == "scaffold" and diagnosis.verdict.startswith("Take scaffold in place of FedAvg")
        assert "drift harms here" in sentence(diagnosis, "Client drift") and "lowers the loss" in sentence(
            diagnosis, "Client drift"
        )
        assert corrected.verdict.startswith("Keep Scaffold: without its corrections drift")
    else:
        assert diagnosis.take == "" and "drift does not harm here" in sentence(diagnosis, "Client drift")
        assert corrected.take == "fedavg"


@pytest.mark.parametrize("batch_size", [None, 4])
def test_one_step_a_round_has_no_drift_and_is_not_asked_for_control_variates(batch_size):
    for name in ("fedavg", "fednova", "scaffold"):
        diagnosis = diagnose(
            fedax.create(name, lr=0.01), TASK, DATA, work=fedax.Steps(1), batch_size=batch_size, points=MODELS
        )
        assert all(point.bias == 0 and point.drift_cost == 0 for point in diagnosis.points)
        assert not any("drift" in text.lower() for text in diagnosis.advice)
        assert diagnosis.take == "fedavg" if name == "scaffold" else diagnosis.take not in (NORMALIZED, CORRECTED)


@pytest.mark.parametrize("batch_size", [None, 4])
def test_identical_clients_have_no_drift_however_many_steps(batch_size):
    alike = {name: np.concatenate([DATA.client(2)[name]] * 4) for name in ("x", "y")}
    alike = fedax.FederatedData(alike, [40] * 4)
    diagnosis = diagnose(FEDAVG, TASK, alike, work=fedax.Steps(20), batch_size=batch_size, points=MODELS)
    assert all(point.bias < 1e-4 * point.free_move for point in diagnosis.points)
    assert "drift does not harm here" in sentence(diagnosis, "Client drift") and diagnosis.take != CORRECTED


def test_noise_of_minibatches_is_in_the_verdict():
    alike = {name: np.concatenate([DATA.client(2)[name]] * 4) for name in ("x", "y")}
    alike = fedax.FederatedData(alike, [40] * 4)
    optimum = {"w": np.linalg.lstsq(alike.examples["x"], alike.examples["y"])[0]}
    given = {"work": fedax.Steps(4), "batch_size": 1, "points": [MODELS[0], optimum]}
    diagnosis = diagnose(fedax.create("fedavg", lr=0.02), TASK, alike, **given)
    assert diagnosis.verdict.startswith("Take fedavg-m in place of FedAvg: its minibatches are noisy")
    assert "lr decay towards the end" in sentence(diagnosis, "Noise of minibatches")
    assert "too little for lr to decay yet" in sentence(
        diagnose(FEDAVG, TASK, alike, **given | {"batch_size": 40}), "Noise of mini"
    )


def words(diagnosis, batch_size=16, **changes):
    last = dataclasses.replace(diagnosis.points[-1], **{"inconsistency_cost": 0.0} | changes)
    diagnosis = dataclasses.replace(diagnosis, points=(*diagnosis.points[:-1], last))
    view = view_of(FEDAVG, fedax.Full())
    return Case(diagnosis, view, P, batch_size, fedax.Full())


def test_drift_whose_interval_holds_both_verdicts_is_not_told(diagnosis):
    sentences = words(diagnosis, drift_cost=0.1 * diagnosis.gained, drift_cost_range=(0.0, 0.5 * diagnosis.gained))
    assert "whether it harms cannot be told" in drift(sentences) and "larger batch" in drift(sentences)
    assert verdict(sentences)[1] == ""
    less = words(
        diagnosis,
        drift_cost=0.1 * diagnosis.gained,
        drift_cost_range=(0.1 * diagnosis.gained,) * 2,
        noise_cost=0.2 * diagnosis.gained,
    )
    assert "though less than noise" in drift(less) and "Keep FedAvg, and let lr decay" in verdict(less)[0]
    assert verdict(less)[0].startswith("First of all, train longer")  # the largest gain first
    helped = words(diagnosis, drift_cost=0.4 * diagnosis.gained, drift_cost_range=(0.3 * diagnosis.gained,) * 2)
    assert verdict(helped)[1] == CORRECTED
    worse = words(diagnosis, drift_cost=diagnosis.gained, drift_cost_range=(diagnosis.gained,) * 2, free_descent=-1.0)
    assert verdict(worse)[0].startswith("Keep FedAvg with fewer local steps") and verdict(worse)[1] == ""
    assert "not finite" in verdict(words(diagnosis, drift_cost=np.nan))[0]


COSTS = [0.0, 0.001, 0.05]  # shares of what training gains: nothing, too little, worth a remedy


@pytest.mark.parametrize("other, drifts", [*itertools.product(COSTS, COSTS)])
def test_a_remedy_counts_with_all_that_it_takes_away_and_no_more_than_was_measured(diagnosis, other, drifts):
    other, drifts = other * diagnosis.gained, drifts * diagnosis.gained
    case = words(diagnosis, inconsistency_cost=other, drift_cost=1.5 * drifts, drift_cost_range=(drifts, 2 * drifts),
                 left=diagnosis.gained, descent=1.0, free_descent=2.0, noise_cost=0.0)  # fmt: skip
    gain = {name: sum(case.removed(name).values()) for name in (CORRECTED, HALF, PLAIN)}
    assert_allclose(gain[CORRECTED], other + drifts)
    assert gain[HALF] == gain[CORRECTED] and gain[PLAIN] == 0
    text, take = verdict(case)
    worth = other + drifts > case.least
    assert (take == CORRECTED) is worth  # unequal work alone, too: it lost less than FedNova
    assert not (worth and "would gain nothing" in text + drift(case))
    assert not worth or f"{gain[take]:.3g}" in text
    little = dataclasses.replace(case.last, left=0.01 * diagnosis.gained)
    little = dataclasses.replace(case, f=dataclasses.replace(diagnosis, points=(*diagnosis.points[:-1], little)))
    assert sum(little.removed(CORRECTED).values()) <= 0.01 * diagnosis.gained * (1 + 1e-9)


@pytest.mark.parametrize("batch_size, takes", [(1, MOMENTUM), (8, MOMENTUM), (9, CORRECTED), (None, CORRECTED)])
@pytest.mark.parametrize("drifts, other", [(0.3, 0.0), (0.0, 0.3)])
def test_with_small_batches_momentum_is_named_and_else_control_variates(diagnosis, drifts, other, batch_size, takes):
    cost, drifts, other = 0.3 * diagnosis.gained, drifts * diagnosis.gained, other * diagnosis.gained
    case = words(diagnosis, batch_size, noise_cost=0.0, left=cost, inconsistency_cost=other, drift_cost=drifts,
                 drift_cost_range=(drifts,) * 2, descent=1.0, free_descent=2.0)  # fmt: skip
    text, take = verdict(case)
    assert take == takes and f"Take {takes} in place of FedAvg: " in text and f"{cost:.3g}" in text
    assert ("beta = 0.2 or 0.5" in text) is (take == MOMENTUM)
    assert ("alpha = 0.01 or 0.1" in text and "keep nothing, take fedavg-m" in text) is (take == CORRECTED)


def test_with_small_batches_momentum_comes_before_a_decay(diagnosis):
    noisy = {"noise_cost": 0.3 * diagnosis.gained, "drift_cost": 0.0, "drift_cost_range": (0.0, 0.0)}
    text, take = verdict(words(diagnosis, SMALL_BATCH, **noisy))
    assert take == MOMENTUM and "its minibatches are noisy" in text and text.count("beta = 0.2 or 0.5") == 1
    text, take = verdict(words(diagnosis, SMALL_BATCH + 1, **noisy))
    assert take == "" and "let lr decay" in text


def labelled(wrong=(), rare=None, names=None):
    """Six clients with examples of three classes on a line; some labels wrong at some, one class at one client."""
    rng = np.random.default_rng(0)
    y = np.tile(np.repeat(np.arange(3), 10), 6)
    x = np.stack([3.0 * (y == k) for k in range(3)], axis=1) + 0.1 * rng.normal(size=(180, 3))
    client = np.repeat(np.arange(6), 30)
    for i in wrong:
        y = np.where(client == i, rng.permutation(3)[rng.integers(3, size=180)], y)
    keep = np.ones(180, bool) if rare is None else (y != 2) | ((client == rare) & (np.arange(180) % 30 < 24))
    data = fedax.FederatedData({"x": x[keep], "y": y[keep]}, np.bincount(client[keep]), names=names)
    task, work = fedax.tasks.softmax_regression(3, 3), fedax.Steps(4)
    run = fedax.simulate(FAST, task, data, rounds=60, work=work, evaluate_every=60)
    return diagnose(FAST, task, data, work=work, points=[None, run.params])


FAST = fedax.create("fedavg", lr=0.3)


def test_clients_that_do_not_follow_and_rare_classes_are_named():
    def said(diagnosis, begin):
        return [text for text in diagnosis.advice if text.startswith(begin)]

    plain, wrong, rare = labelled(), labelled(wrong=[1, 4]), labelled(rare=2)
    assert not said(plain, "Clients that") and not said(plain, "Rare")
    (text,) = said(wrong, "Clients that")
    assert "clients 1, 4 (33 % of the weight)" in text and not said(wrong, "Rare")
    (text,) = said(rare, "Rare")
    assert "class 2 makes" in text and "is at client 2 alone" in text and not said(rare, "Clients that")
    (text,) = said(labelled(wrong=[1, 4], names=["a", "Süd", "c", "d", "Nord", "f"]), "Clients that")
    assert "follow: Süd, Nord (33 %" in text  # by their names, where they have some
    assert wrong.losses.shape == (2, 6) and wrong.advice[-1].startswith("lr = ")  # the rate comes last


def test_what_helps_against_the_noise_of_cohorts(diagnosis):
    noise = {"cohort_noise": 1.0, "cohort_cost": diagnosis.gained, "free_cohort_noise": 0.1}
    for free, helps in (
        (0.4 * diagnosis.gained, "or control variates help, of which fresh ones leave"),
        (0.6 * diagnosis.gained, "or momentum at the server help"),
    ):
        assert helps in cohort(words(diagnosis, **noise, free_cohort_cost=free))
    unknown = words(diagnosis, **noise | {"free_cohort_noise": None}, free_cohort_cost=0.0)
    assert "or momentum at the server help" in cohort(unknown)
    assert "1 (root mean square) about a mean of 0" in cohort(words(diagnosis, **noise, move=0.0))


def test_the_curvature_of_one_client_at_least_is_measured(monkeypatch):
    monkeypatch.setattr(measure, "_COST", 1030)
    assert [len(_seen(np.array(sizes), 10, None)) for sizes in ([104], [100, 3], [100, 4])] == [1, 2, 1]


def test_the_noise_of_minibatches_is_not_taken_for_that_of_cohorts():
    """Equal clients: whoever is drawn, the mean update is the same."""
    same = fedax.FederatedData({name: np.concatenate([DATA.client(2)[name]] * 8) for name in ("x", "y")}, [40] * 8)
    for batch_size in (1, None):
        diagnosis = diagnose(
            FEDAVG, TASK, same, work=fedax.Steps(2), batch_size=batch_size, participation=fedax.Uniform(1), sample=1
        )
        point = diagnosis.points[0]
        assert point.cohort_noise**2 <= (0.1 * point.noise**2 if batch_size else 1e-9 * point.move**2)


def test_uniform_cohorts_of_unequal_clients_are_told_of_systematic_ones():
    two = [P[list(pair)].sum() * 2 for pair in SETS]
    uneven = diagnose(FEDAVG, TASK, DATA, work=UNEQUAL, participation=fedax.Uniform(2), sample=1)
    assert_allclose(uneven.weight_square, np.mean(np.square(two)))
    sentence = next(text for text in uneven.advice if text.startswith("Weights of cohorts"))
    assert f"E(Σω)² = {uneven.weight_square:.4g}" in sentence and "fedax.Systematic(2)" in sentence
    assert 'participation.kind = "systematic"' in sentence
    dropping = diagnose(FEDAVG, TASK, DATA, work=UNEQUAL, participation=fedax.Dropout(fedax.Uniform(2), 0.1), sample=1)
    assert any("fedax.Systematic(2)" in text for text in dropping.advice)
    taken = diagnose(FEDAVG, TASK, DATA, work=UNEQUAL, participation=fedax.Systematic(2), sample=1)
    assert_allclose(taken.weight_square, 1.0, rtol=1e-6)
    alike = {name: np.concatenate([DATA.client(2)[name]] * 4) for name in ("x", "y")}
    alike = fedax.FederatedData(alike, [40] * 4, P)  # who is drawn matters only where the weights do not add up to one
    noise = [
        diagnose(FEDAVG, TASK, alike, work=fedax.Steps(3), participation=who, sample=1).points[0].cohort_cost
        for who in (fedax.Uniform(2), fedax.Systematic(2))
    ]
    assert noise[0] > 1e-4 and noise[1] < 1e-9 * noise[0]
    even = fedax.FederatedData(DATA.examples, SIZES, [0.25] * 4)
    for data, who in (
        (even, fedax.Uniform(2)),
        (DATA, fedax.Full()),
        (DATA, fedax.Uniform(4)),
        (DATA, fedax.Proportional(2)),
    ):
        diagnosis = diagnose(FEDAVG, TASK, data, work=UNEQUAL, participation=who, sample=1)
        assert not any("Systematic" in text for text in diagnosis.advice)


@pytest.mark.parametrize("name", ["fedavg", "fedavg-m", "server-momentum"])
def test_what_is_left_can_be_had_sooner_with_momentum(name):
    data, _, e = quadratics(1.0, d=3)
    given = {"work": fedax.Steps(1), "points": [np.zeros(4), 0.01 * e.mean(0)]}
    diagnosis = diagnose(fedax.create(name, lr=0.01), fedax.tasks.quadratic(4), data, **given)
    if name == "fedavg":
        assert diagnosis.take == MOMENTUM and diagnosis.verdict.startswith(
            "Take fedavg-m in place of FedAvg, or train longer"
        )
        assert f"{diagnosis.points[-1].left:.3g}" in diagnosis.verdict  # which is what it says that is left
    else:
        assert diagnosis.take == "" and "train longer or with a larger lr" in diagnosis.verdict


def test_the_noise_of_cohorts_is_in_the_verdict():
    """Clients that differ, one of them a round: that is what keeps a run from the optimum, and nothing else."""
    data, H, e = quadratics(1.0, clients=40)
    method, task = fedax.create("fedavg", lr=0.3), fedax.tasks.quadratic(5)
    given = {"work": fedax.Steps(1), "points": [np.zeros(5), weighted_optimum(H, e)]}
    diagnosis = diagnose(method, task, data, participation=fedax.Uniform(1), **given)
    everyone = diagnose(method, task, data, **given)
    assert everyone.verdict.startswith("Keep FedAvg: neither that clients are unlike nor noise costs it anything")
    assert diagnosis.verdict.startswith("Keep FedAvg, with larger cohorts") and "only some clients" in diagnosis.verdict
    runs = [
        fedax.simulate(
            method,
            task,
            data,
            rounds=600,
            work=fedax.Steps(1),
            participation=fedax.Uniform(1),
            evaluate_every=4,
            seed=seed,
        )
        for seed in range(2)
    ]
    above = np.mean([run.history["train_loss"][13:] for run in runs]) - diagnosis.points[-1].loss
    assert_allclose(diagnosis.points[-1].cohort_cost, above, rtol=0.25)
    some = diagnose(method, task, data, participation=fedax.Uniform(4), **given)
    last = diagnose(method, task, data, participation=fedax.Uniform(4), work=fedax.Steps(5)).points[-1]
    assert last.free_cohort_noise > 0.01
    costs = np.square([last.cohort_noise, last.free_cohort_noise]) / (4 * 0.3 * 5)
    assert_allclose([last.cohort_cost, last.free_cohort_cost], costs, rtol=1e-6)
    assert some.take == CORRECTED and "(here once in about 10 rounds)" in some.verdict


def test_nonlinear_solvers_are_not_known():
    method = fedax.create("fedavg", solver=fedax.Optax(optax.adam(0.01)))
    diagnosis = diagnose(method, TASK, DATA, work=UNEQUAL, batch_size=4)
    assert (
        diagnosis.weights is diagnosis.chi2 is diagnosis.floor is diagnosis.max_lr is diagnosis.points[0].bias is None
    )
    assert (
        "not known: its local solver is not linear" in sentence(diagnosis, "bjective") and diagnosis.points[0].move > 0
    )
    assert "Client drift cannot be told" in sentence(diagnosis, "Client drift") and diagnosis.take == ""


def test_a_regulariser_is_said_to_be_left_out():
    for weight in (0.1, None):
        hyper = {} if weight is None else {"regularizer": fedax.L1(weight)}
        diagnosis = diagnose(fedax.create("feddualavg", lr=0.01, **hyper), TASK, DATA, work=UNEQUAL)
        assert any("without the regulariser" in text for text in diagnosis.unknown) is (weight is not None)


def test_schedules_are_those_of_round_0():
    decayed = fedax.create("fedavg", lr=fedax.Piecewise(0.003, {0: 0.5, 5: 0.1}))
    assert diagnose(decayed, TASK, DATA).lr == pytest.approx(0.0015)
    assert diagnose(
        fedax.create("fedmass", lr=fedax.PowerDecay(0.3, 3.0, 1.0)), TASK, DATA, work=fedax.Steps(2)
    ).lr == (pytest.approx(0.1))


def test_the_default_point_is_where_simulate_starts():
    task = fedax.tasks.mlp(FEATURES, 3, hidden=(4,))
    data = fedax.FederatedData({"x": DATA.examples["x"], "y": np.arange(SIZES.sum()) % 3}, SIZES)
    start = make_job(FEDAVG, task, data, rounds=0, seed=3).x
    point, same = (diagnose(FEDAVG, task, data, seed=3, **at).points[0] for at in ({}, {"points": [start.tree]}))
    assert (point.loss, point.gradient) == (same.loss, same.gradient)
    losses = jax.jit(task.loss)(start.tree, data.examples, None)
    assert_allclose(point.loss, np.mean(losses), rtol=1e-5)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"points": []}, "points = .*at least one model"),
        ({"points": [np.zeros(3)]}, r"points\[0\]"),
        ({"points": [MODELS[0], {"w": np.zeros(2)}]}, r"points\[1\]\['w'\] = \(2,\)"),
        ({"points": [{"w": np.full(FEATURES, np.nan)}]}, "not finite"),
        ({"batch_size": 0}, "batch_size"),
        ({"tolerance": 1.5}, "tolerance"),
        ({"sample": 5}, "sample = 5: there are 4 clients"),
        ({"sample": 0}, "sample"),
        ({"seed": -1}, "seed"),
        ({"work": fedax.Steps([1, 2])}, "steps"),
        ({"work": 3}, "work = 3"),
        ({"participation": fedax.Uniform(9)}, "size"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ConfigError, match=message):
        diagnose(FEDAVG, TASK, DATA, **options)
