"""Where the methods end, in float64: at the optimum if they can, else at the point that theory predicts."""

from typing import Any

import numpy as np
import pytest

import fedax
from tests.references import fedavg_family as fed
from tests.references import quadratics as quad

from .bed import BED, DATA, GRADS, QUADRATIC, SCALAR, UNEQUAL, X0, federation, limit
from .cases import SOLVERS

FAST = float(0.3 / BED.L)
OPTIMUM = BED.optimum()
SIZE = np.linalg.norm(OPTIMUM)
RANDOM = fedax.RandomSteps(6, 4, low=1, high=12)
SERVERS = {
    "momentum": {"server_momentum": 0.5},
    "slowmo": {"server_momentum": 0.5},
    "adagrad": {"server_lr": 3.0, "beta1": 0.0, "eps": 0.1},
    "adam": {"server_lr": 0.3, "beta1": 0.5, "beta2": 0.9, "eps": 0.3},
    "yogi": {"server_lr": 0.3, "beta1": 0.5, "beta2": 0.9, "eps": 0.3},
}


def close(a: Any, b: Any, tolerance: float = 1e-9) -> None:
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * SIZE)


def far_from_optimum(x: Any, distance: float = 0.05) -> None:
    assert np.linalg.norm(x - OPTIMUM) > distance * SIZE


def fednova_end(lr: float, **solver: Any) -> np.ndarray:
    """FedNova's fixed point, from the transcription's own solver."""
    clients = list(zip(BED.H, BED.tau, strict=True))
    Q = [quad.solver_response(H, lambda g, x, t=t: fed.local_solver(g, x, t, lr, **solver)) for H, t in clients]
    return quad.fednova_fixed_point(BED, Q, [fed.accumulation_norm(t, lr, **solver) for t in BED.tau])


# Biased methods end where the paper says.


@pytest.mark.parametrize("method, hyper", [("fedavg", {}), ("fedprox", {"prox": 3.0})], ids=["fedavg", "fedprox"])
def test_fedavg_and_fedprox_follow_eq_27_to_eq_28(method, hyper):
    algorithm = fedax.create(method, lr=FAST, **hyper)
    for rounds in (1, 7):
        close(limit(algorithm, rounds), quad.fedavg_path(BED, FAST, BED.tau, rounds, X0, **hyper), 1e-12)
    end = limit(algorithm, 200)
    close(end, quad.fedavg_fixed_point(BED, FAST, BED.tau, **hyper))
    far_from_optimum(end)


def test_float32_ends_at_eq_28_too():
    run = fedax.simulate(fedax.create("fedavg", lr=FAST), QUADRATIC, DATA, rounds=200, work=UNEQUAL, params=X0)
    assert run.params.dtype == np.float32
    close(run.params, quad.fedavg_fixed_point(BED, FAST, BED.tau), 1e-5)


@pytest.mark.parametrize("server", SERVERS)
def test_server_optimizers_end_where_fedavg_does(server):
    end = limit(fedax.create("fedavg", lr=FAST, server=server, **SERVERS[server]), 250)
    close(end, quad.fedavg_fixed_point(BED, FAST, BED.tau))


def test_eq_29_and_eq_30():
    """H_i = I: FedAvg ends at a mean of the e_i with weights p_i [1 − (1 − η)^τ_i], and p_i τ_i as η → 0."""
    round_ = federation(np.stack([np.eye(4)] * 7), BED.e, BED.p)
    method = fedax.create("fedavg", lr=0.1)
    close(limit(method, 100, data=round_), quad.identity_fixed_point(BED.e, BED.tau, 0.1, BED.p))
    slow = limit(fedax.create("fedavg", lr=1e-4), 30_000, data=round_)
    close(slow, quad.small_lr_fixed_point(BED.e, BED.tau, BED.p), 1e-3)
    assert np.linalg.norm(slow - BED.p @ BED.e) > 0.05


def test_lower_bound_example():
    """Lemma 4, F_1,2 = ½(x ∓ 3)², τ = (2, 6): FedAvg ends at −1.5 as η → 0, and FedNova at 0."""
    example = quad.LowerBound(3.0, (2, 6))
    bed = example.federation()
    options = {
        "task": SCALAR,
        "data": federation(bed.H, bed.e, bed.p),
        "work": fedax.Steps(bed.tau),
        "params": np.ones(1),
    }
    tiny = limit(fedax.create("fedavg", lr=2e-4), 20_000, **options)
    np.testing.assert_allclose(tiny, example.limit, rtol=1e-3)
    np.testing.assert_allclose(tiny**2, example.chi_square * example.kappa_square, rtol=1e-3)  # ‖∇F‖² = χ²κ² = 2.25
    fednova = limit(fedax.create("fednova", lr=2e-4), 20_000, **options)
    np.testing.assert_allclose(fednova, 0.0, atol=1e-3)


# FedNova.


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS.keys())
def test_fednova_ends_at_its_closed_form(solver):
    neutral = {"momentum": 0.0, "prox": 0.0, "decay": 1.0}
    end = limit(fedax.create("fednova", lr=FAST, **neutral | solver), 200)
    close(end, fednova_end(FAST, **solver))


@pytest.mark.parametrize("server", ["slowmo", "adam"])
def test_server_optimizers_on_fednova_end_where_fednova_does(server):
    close(limit(fedax.create("fednova", lr=FAST, server=server, **SERVERS[server]), 250), fednova_end(FAST))


def test_fednova_removes_the_bias_of_unequal_steps_but_not_the_drift():
    """Its distance from the optimum shrinks with η; that of FedAvg does not."""
    rates = [FAST / 2**k for k in range(3, 7)]
    ends = [limit(fedax.create("fednova", lr=lr), int(60 / lr)) for lr in rates]
    for lr, end in zip(rates, ends, strict=True):
        close(end, fednova_end(lr), 1e-8)
    distance = [np.linalg.norm(end - OPTIMUM) for end in ends]
    np.testing.assert_allclose(np.divide(distance[:-1], distance[1:]), 2.0, rtol=0.1)
    fedavg = limit(fedax.create("fedavg", lr=rates[-1]), int(60 / rates[-1]))
    far_from_optimum(fedavg)
    assert np.linalg.norm(fedavg - OPTIMUM) > 5 * distance[-1]


# FedNova-VR reaches the optimum.


@pytest.mark.parametrize("participation", [fedax.Full(), fedax.Uniform(3)], ids=["full", "three-of-seven"])
@pytest.mark.parametrize("momentum, lr", [(0.0, FAST), (0.6, 0.4 * FAST)], ids=["plain", "momentum"])
def test_fednova_vr_reaches_the_optimum_under_random_work(momentum, lr, participation):
    method = fedax.create("fednova-vr", lr=lr, momentum=momentum)
    options = {"work": RANDOM, "participation": participation}
    close(limit(method, 600, **options), OPTIMUM)


def test_algorithm_2_to_the_letter_would_not():
    letter = fed.fednova_vr_literal(GRADS, BED.p, BED.tau, fed.full_cohorts(BED.p, 300), X0, 300, lr=FAST)
    far_from_optimum(letter.iterates[-1])
    far_from_optimum(fednova_end(FAST))


# VRL-SGD.


def test_vrl_sgd_reaches_the_optimum_under_equal_steps_and_another_point_under_unequal_ones():
    method = fedax.create("vrl-sgd", lr=FAST)
    close(limit(method, 300, work=fedax.Steps(6)), OPTIMUM)
    end = limit(method, 300)
    close(end, BED.optimum(BED.p * BED.tau))
    far_from_optimum(end)
