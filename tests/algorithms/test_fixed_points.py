"""Where the methods end, in float64: at the optimum if they can, else at the point that theory predicts."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

import fedax
from tests.references import fedavg_family as fed
from tests.references import quadratics as quad

from .. import mostly_long
from .bed import (
    BED,
    DATA,
    GRADS,
    QUADRATIC,
    SCALAR,
    UNEQUAL,
    X0,
    AnySteps,
    Averaged,
    federation,
    finished,
    limit,
)
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


@pytest.mark.usefixtures("float32")
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
    slow = limit(fedax.create("fedavg", lr=1e-4), 20_000, data=round_)
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
    tiny = limit(fedax.create("fedavg", lr=2e-4), 14_000, **options)
    np.testing.assert_allclose(tiny, example.limit, rtol=1e-3)
    np.testing.assert_allclose(tiny**2, example.chi_square * example.kappa_square, rtol=1e-3)  # ‖∇F‖² = χ²κ² = 2.25
    fednova = limit(fedax.create("fednova", lr=2e-4), 14_000, **options)
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
    ends = [limit(fedax.create("fednova", lr=lr), int(12 / lr)) for lr in rates]
    for lr, end in zip(rates, ends, strict=True):
        close(end, fednova_end(lr), 1e-8)
    distance = [np.linalg.norm(end - OPTIMUM) for end in ends]
    np.testing.assert_allclose(np.divide(distance[:-1], distance[1:]), 2.0, rtol=0.1)
    fedavg = limit(fedax.create("fedavg", lr=rates[-1]), int(12 / rates[-1]))
    far_from_optimum(fedavg)
    assert np.linalg.norm(fedavg - OPTIMUM) > 5 * distance[-1]


# FedNova-VR reaches the optimum.


@pytest.mark.parametrize("momentum, lr", [(0.0, FAST), (0.6, 0.4 * FAST)], ids=["plain", "momentum"])
def test_fednova_vr_reaches_the_optimum_under_random_work_in_cohorts(momentum, lr):
    method = fedax.create("fednova-vr", lr=lr, momentum=momentum)
    close(limit(method, 600, work=RANDOM, participation=fedax.Uniform(3)), OPTIMUM)


def test_algorithm_2_to_the_letter_would_not():
    letter = fed.fednova_vr_literal(GRADS, BED.p, BED.tau, fed.full_cohorts(BED.p, 300), X0, 300, lr=FAST)
    far_from_optimum(letter.iterates[-1])
    far_from_optimum(fednova_end(FAST))


# Control variates reach the optimum of F, with unequal p_i.

SIX = AnySteps(6)
ONLY_SIX = fedax.Steps(6)  # for methods that need equal steps
THREE = fedax.Uniform(3)


@pytest.mark.parametrize(
    "name, hyper, rounds",
    [
        ("scaffold", {"option": 1}, 1200),
        ("scaffold", {"option": 2}, 1200),
        ("scaffold-m", {"beta": 0.3}, 1500),
        ("scaffold-m-vr", {"beta": 0.3}, 1500),
        ("feddyn", {"alpha": 1.0}, 3000),
    ],
)
def test_control_variates_reach_the_optimum_under_random_work_in_cohorts(name, hyper, rounds):
    """Three of seven clients a round; with all clients below."""
    close(limit(fedax.create(name, lr=0.3 * FAST, **hyper), rounds, work=RANDOM, participation=THREE), OPTIMUM)


@pytest.mark.parametrize(
    "name, hyper, work",
    [
        ("scaffold-m", {"beta": 0.3}, RANDOM),
        ("scaffold-m-vr", {"beta": 0.3}, RANDOM),
        ("mime", {}, SIX),
        ("mime", {"base": "momentum", "momentum": 0.7}, SIX),
        ("mime", {"base": "adam", "beta2": 0.9, "eps": 0.5}, SIX),
        ("mime-mvr", {"alpha": 0.3}, SIX),
        ("mime-mvr", {"alpha": 0.3, "ref": "current"}, SIX),
        ("mb-storm", {"beta": 0.3}, UNEQUAL),
        ("ce-lsgd", {"beta": 0.3, "pick": "random"}, UNEQUAL),
        ("ce-lsgd", {"beta": 0.3, "pick": "average"}, UNEQUAL),
        ("bvr-l-sgd", {"period": 3}, UNEQUAL),
        ("stem", {"alpha": 0.3}, fedax.Steps(1)),
        ("ringmaster", {}, UNEQUAL),
        ("ringleader", {}, UNEQUAL),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_exact_methods_reach_the_optimum(name, hyper, work):
    rounds = 3000 if name in ("mb-storm", "stem", "ringmaster", "ringleader") else 1000
    close(limit(fedax.create(name, lr=0.3 * FAST, **hyper), rounds, work=work), OPTIMUM)


@pytest.mark.parametrize(
    "name, hyper, work, factor",
    [
        ("feddyn", {"alpha": 1.0}, RANDOM, 1.0),
        ("fedpd", {"alpha": 1.0}, RANDOM, -1.0),
        ("scaffold", {"option": 1}, RANDOM, 1.0),
        ("scaffold", {"option": 2}, RANDOM, 1.0),
        ("fednova-vr", {}, RANDOM, 1.0),
        ("fedgate", {"server_lr": 0.7}, SIX, 1.0),
        ("scaffnew", {"probability": 1 / 4}, fedax.GeometricSteps(4.0), 1.0),
        ("led", {"b": 1 / 12}, RANDOM, -0.3 * FAST * 12),
        ("diana", {"compress": fedax.Identity()}, SIX, 1.0),
        ("ace", {}, SIX, 1.0),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_at_the_optimum_clients_keep_their_own_gradients(name, hyper, work, factor):
    """With the sign that the pages and the heads of the methods give: λ_i of FedDyn to +∇F_i(x*), of FedPD to −."""
    gradients = np.stack([np.asarray(H @ OPTIMUM - e) for H, e in zip(BED.H, BED.e, strict=True)])
    assert np.linalg.norm(gradients, axis=1).min() > 0.1  # so that signs tell
    end, kept = finished(fedax.create(name, lr=0.3 * FAST, **hyper), 3000, work=work)
    close(end, OPTIMUM)
    (memory,) = (leaf for leaf in map(np.asarray, jax.tree.leaves(kept)) if leaf.shape == gradients.shape)
    np.testing.assert_allclose(memory, factor * gradients, rtol=0, atol=1e-7 * np.abs(gradients).max())


@pytest.mark.parametrize("name", ["ace", "ca2fl", "area"])
def test_who_is_heard_does_not_move_where_methods_with_a_cache_end(name):
    """Three of seven clients a round: the optimum of F, or FedAvg's point with all clients, which is another."""
    lr = 0.3 * FAST
    end = limit(fedax.create(name, lr=lr), 3000, participation=THREE)
    fedavg = quad.fedavg_fixed_point(BED, lr, BED.tau)
    close(end, OPTIMUM if name == "ace" else fedavg)
    far_from_optimum(fedavg)


def test_bvr_l_sgd_has_no_noise_floor_on_finite_sums():
    """Full gradients every third round, minibatches of two rows between: the noise dies out with the differences."""
    rows = np.concatenate(BED.A), np.concatenate(BED.b)
    data = fedax.FederatedData({"x": rows[0], "y": rows[1]}, [len(b) for b in BED.b])
    loss = lambda params, batch, key: 0.5 * (batch["x"] @ params - batch["y"]) ** 2  # noqa: E731
    options = {"task": fedax.Task(lambda key: np.zeros(4), loss), "data": data, "work": SIX, "batch_size": 2}
    close(limit(fedax.create("bvr-l-sgd", lr=0.1 * FAST, period=3), 6000, **options), OPTIMUM)
    noisy = limit(fedax.create("mime", lr=0.1 * FAST), 6000, **options)
    assert np.linalg.norm(limit(fedax.create("scaffold", lr=0.1 * FAST), 6000, **options) - OPTIMUM) > 1e-3
    assert np.linalg.norm(noisy - OPTIMUM) < SIZE


# What is not exact ends at a predicted point, or nearer for smaller steps.


@pytest.mark.parametrize("beta", [0.2, 0.7])
def test_fedavg_m_ends_where_fedavg_with_beta_lr_does(beta):
    method = fedax.create("fedavg-m", lr=FAST, beta=beta)
    six = np.full(7, 6)
    close(limit(method, 1500, work=SIX), quad.fedavg_fixed_point(BED, beta * FAST, six))
    close(limit(method, 1500), fednova_end(beta * FAST))  # unequal steps: FedNova's


@pytest.mark.parametrize("beta", [0.2, 0.7])
def test_fedavg_m_vr_ends_where_fedavg_does_for_every_beta(beta):
    method = fedax.create("fedavg-m-vr", lr=0.3 * FAST, beta=beta)
    close(limit(method, 2500, work=SIX), quad.fedavg_fixed_point(BED, 0.3 * FAST, np.full(7, 6)))


@pytest.mark.parametrize(
    "name, hyper",
    [("mimelite", {}), ("mimelite", {"base": "momentum"}), ("mimelite-mvr", {}), ("stem", {}), ("fedglomo", {})],
)
def test_drift_that_remains_shrinks_with_the_rate(name, hyper):
    work = ONLY_SIX if name == "stem" else SIX
    distance = [
        np.linalg.norm(limit(fedax.create(name, lr=lr, **hyper), int(20 / lr), work=work) - OPTIMUM)
        for lr in (0.2 * FAST, 0.1 * FAST)
    ]
    assert distance[0] > 1e-5 * SIZE
    np.testing.assert_allclose(distance[0] / distance[1], 2.0, rtol=0.15)


def test_the_bias_of_stem_with_local_points_shrinks_with_alpha():
    ends = {
        (prev, alpha): np.linalg.norm(
            limit(fedax.create("stem", lr=0.3 * FAST, alpha=alpha, prev=prev), 800, work=ONLY_SIX) - OPTIMUM
        )
        for prev in ("averaged", "local")
        for alpha in (1.0, 0.3, 0.05)
    }
    assert ends["local", 0.05] < 0.5 * ends["local", 0.3] < 0.5 * ends["local", 1.0]
    np.testing.assert_allclose(ends["averaged", 0.3], ends["averaged", 1.0], rtol=0.5)
    np.testing.assert_allclose(ends["averaged", 1.0], ends["local", 1.0], rtol=1e-6)  # a = 1: no old point at all


def test_local_adapt_is_consistent_with_a_correction_only():
    """Without one it ends far from the optimum however small the rate."""

    def distance(correction: str | None, lr: float) -> float:
        hyper = {"server_lr": 0.02, "beta1": 0.5, "beta2": 0.9, "eps": 0.05, "correction": correction}
        return np.linalg.norm(limit(fedax.create("local-adapt", lr=lr, **hyper), 6000, work=SIX) - OPTIMUM)

    plain, local, joint = ([distance(c, lr) for lr in (0.02, 0.01)] for c in (None, "local", "joint"))
    assert min(plain) > 0.3 * SIZE and plain[1] > 0.9 * plain[0]
    np.testing.assert_allclose(joint, local, rtol=1e-3)
    assert 2.0 < joint[0] / joint[1] < 3.0 and joint[0] < 0.1 * plain[0]


@pytest.mark.parametrize("lag", [False, True])
def test_the_bias_of_local_amsgrad_shrinks_with_the_rate(lag):
    hyper = {"beta1": 0.5, "beta2": 0.9, "eps": 0.5, "lag": lag}
    ends = [limit(fedax.create("local-amsgrad", lr=lr, **hyper), 6000, work=ONLY_SIX) for lr in (0.02, 0.01)]
    distance = [np.linalg.norm(end - OPTIMUM) for end in ends]
    np.testing.assert_allclose(distance[0] / distance[1], 2.0, rtol=0.1)


def test_fedpd_with_skips_is_not_exact():
    far_from_optimum(limit(fedax.create("fedpd", lr=0.3 * FAST, alpha=1.0, skip=0.5), 1000, work=SIX), 1e-3)


def test_feddyn_delivers_the_mean_model_on_request():
    """Both end at the optimum; after one round the mean is FedAvg's with the proximal pull α."""
    for deliver in ("server", "mean"):
        close(limit(fedax.create("feddyn", lr=0.3 * FAST, alpha=1.0, deliver=deliver), 2000), OPTIMUM)
    mean = limit(fedax.create("feddyn", lr=FAST, alpha=1.0, deliver="mean"), 1)
    close(mean, limit(fedax.create("fedprox", lr=FAST, prox=1.0), 1), 1e-12)


# Heterogeneity: the optima of the clients are moved apart, the optimum of F stays at 0.


def apart(distance: float) -> quad.Quadratics:
    """The bed's clients with ∇F_i(0) = −e_i, Σ p_i e_i = 0, and optima so far from each other."""
    e = BED.e - BED.p @ BED.e
    optima = np.linalg.solve(BED.H, e[..., None])[..., 0]
    widest = np.linalg.norm(optima[:, None] - optima, axis=-1).max()
    return dataclasses.replace(BED, e=e * distance / widest)


HETEROGENEITY = {  # the rate of the FedAvg that ends at the same point; None is the optimum
    ("fedavg", ()): 1.0,
    ("fedavg-m", (("beta", 0.2),)): 0.2,
    ("fedavg-m", (("beta", 0.7),)): 0.7,
    ("fedavg-m-vr", (("beta", 0.2),)): 1.0,
    ("fedavg-m-vr", (("beta", 0.7),)): 1.0,
    ("scaffold", ()): None,
    ("scaffold-m", (("beta", 0.2),)): None,
    ("scaffold-m-vr", (("beta", 0.2),)): None,
}


def predicted(bed: quad.Quadratics, scale: float | None, lr: float) -> np.ndarray:
    return np.zeros(4) if scale is None else quad.fedavg_fixed_point(bed, scale * lr, np.full(7, 6))


@pytest.mark.parametrize("key", HETEROGENEITY, ids=lambda key: "-".join([key[0], *(str(v) for _, v in key[1])]))
def test_heterogeneity(key):
    """With full gradients, however far the optima are apart."""
    (name, hyper), lr, scale = key, 0.3 * FAST, HETEROGENEITY[key]
    work = RANDOM if scale is None else SIX
    for distance in (1.0, 100.0):
        bed = apart(distance)
        end = limit(fedax.create(name, lr=lr, **dict(hyper)), 1500, data=federation(bed.H, bed.e, bed.p), work=work)
        np.testing.assert_allclose(end, predicted(bed, scale, lr), rtol=0, atol=1e-9 * distance)
        assert scale is None or np.linalg.norm(end) > 1e-3 * distance


BETA = (("beta", 0.2),)


@pytest.mark.parametrize(
    "key",
    mostly_long(HETEROGENEITY, ("fedavg", ()), ("fedavg-m-vr", BETA), ("scaffold-m", BETA)),
    ids=lambda key: "-".join([key[0], *(str(v) for _, v in key[1])]),
)
def test_heterogeneity_with_noise(key):
    """Noise that is added to a quadratic's gradients moves the mean of the iterates nowhere."""
    (name, hyper), lr, bed = key, 0.3 * FAST, apart(100.0)
    noise = np.random.default_rng(0).normal(size=(7, 50, 4)) * 0.1
    noise -= noise.mean(axis=1, keepdims=True)
    examples = {"H": np.repeat(bed.H, 50, axis=0), "e": (bed.e[:, None] + noise).reshape(350, 4)}
    data = fedax.FederatedData(examples, np.full(7, 50), bed.p)
    method = Averaged(fedax.create(name, lr=lr, **dict(hyper)), start=1000)
    mean = limit(method, 9000, data=data, work=SIX, batch_size=1)
    np.testing.assert_allclose(mean, predicted(bed, HETEROGENEITY[key], lr), rtol=0, atol=1e-4 * 100)
    one = limit(method, 1001, data=data, work=SIX, batch_size=1)  # the mean of one iterate
    assert np.linalg.norm(one - mean) > 1e-4  # there is noise


# VRL-SGD.


def test_vrl_sgd_reaches_the_optimum_under_equal_steps_and_another_point_under_unequal_ones():
    method = fedax.create("vrl-sgd", lr=FAST)
    close(limit(method, 300, work=SIX), OPTIMUM)
    end = limit(method, 300)
    close(end, BED.optimum(BED.p * BED.tau))
    far_from_optimum(end)
