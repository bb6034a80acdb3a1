"""The transcriptions of control variates, primal-dual methods and client momentum agree with each other."""

import numpy as np
import pytest

from . import close
from . import fedavg_family as fed
from . import momentum_family as mom
from . import quadratics as quad

BED = quad.test_bed()
X0 = np.array([1.0, -2.0, 0.5, 3.0])
LR, FAST = 0.1 / BED.L, 0.3 / BED.L  # the second for runs to a fixed point
N, K = len(BED.p), 6
EQUAL = np.full(N, K)


def with_full(minibatch, full):
    """k=None is the full gradient; the warm-up's round is -1."""
    return lambda x, k, r, e=0: full(x, 0, 0) if k is None else minibatch(x, k, r + 1)


GRADS = [with_full(full, full) for full in BED.grads()]
NOISY = [with_full(*both) for both in zip(BED.minibatch_grads(batch=2), BED.grads(), strict=True)]


def random_taus(r):
    return np.random.default_rng((11, r)).integers(1, 13, size=N)


def decaying(r):
    return LR / (1 + 0.1 * r)


def growing(r):
    return 0.7 + 0.05 * r


def sampled(p, rounds, size=3):
    """Three of seven clients, ω_i = p_i N/S: the weights of a round do not sum to one."""
    draws = [np.random.default_rng((12, r)).choice(N, size=size, replace=False) for r in range(rounds)]
    return [(ids.tolist(), p[ids] * N / size) for ids in draws]


def run(method, rounds=20, *, grads=NOISY, taus=EQUAL, lr=LR, cohorts=fed.full_cohorts, **hyper):
    return method(grads, BED.p, taus, cohorts(BED.p, rounds), X0, rounds, lr=lr, **hyper)


RATES = {"lr": decaying, "server_lr": growing}


def normalised(cohorts):
    """The same with weights that sum to one."""
    return [(ids, omegas / sum(omegas)) for ids, omegas in cohorts]


everywhere = pytest.mark.parametrize("cohorts", [fed.full_cohorts, sampled])


def test_scaffold_led_scaffnew_and_fednova_vr_are_vrlsgd():
    close(run(mom.scaffold, **RATES), run(mom.fedgate, **RATES))
    close(run(mom.led, b=1 / K), run(mom.fedgate))
    close(run(fed.fednova_vr, **RATES), run(mom.fedgate, **RATES))
    close(run(mom.scaffnew, lr=decaying, probability=1 / K), run(mom.fedgate, lr=decaying))


@pytest.mark.parametrize("b", [0.5 / K, 1.5 / K])
def test_scaffnew_is_led(b):
    close(run(mom.scaffnew, probability=b), run(mom.led, b=b))


def test_options_of_scaffold_agree_with_one_step_and_full_gradients():
    hyper = {"grads": GRADS, "taus": np.ones(N, int), "cohorts": sampled}
    close(run(mom.scaffold, option=1, **hyper), run(mom.scaffold, option=2, **hyper))
    close(run(mom.scaffold, 1, option=1).state["c_i"], [g(X0, None, 0) for g in NOISY])


@pytest.mark.parametrize("taus", [EQUAL, random_taus])
def test_feddyn_is_fedpd(taus):
    close(run(mom.feddyn, taus=taus, lr=decaying, alpha=2.0), run(mom.fedpd, taus=taus, lr=decaying, alpha=2.0))


def test_phases_of_fedpd_without_other_clients_are_rounds():
    def alone(grad, rounds, **hyper):
        return mom.fedpd([grad], [1.0], [4], [([0], [1.0])] * rounds, X0, rounds, lr=LR, alpha=2.0, **hyper)

    joined = alone(lambda x, k, r: NOISY[0](x, k % 4, 3 * r + k // 4), 4, phases=[3] * 4)
    close(joined.iterates, alone(NOISY[0], 12).iterates[::3])


@everywhere
@pytest.mark.parametrize("method", [mom.fedavg_m, mom.fedavg_m_vr])
def test_fedavg_m_with_beta_one_is_fednova_and_fedavg(method, cohorts):
    for taus, other in [(BED.tau, fed.fednova), (random_taus, fed.fednova), (EQUAL, fed.fedavg)]:
        hyper = {"taus": taus, "cohorts": cohorts, **RATES}
        if method is mom.fedavg_m_vr:  # its means have the weights ω/Σω
            hyper = hyper | {"cohorts": lambda p, rounds: normalised(cohorts(p, rounds))}
        close(run(method, beta=1.0, **hyper), run(other, **hyper))


@everywhere
@pytest.mark.parametrize("method", [mom.scaffold_m, mom.scaffold_m_vr])
@pytest.mark.parametrize("warmup_batches", [None, 3])
def test_scaffold_m_with_beta_one_is_scaffold(method, cohorts, warmup_batches):
    hyper = {"cohorts": cohorts, "warmup_batches": warmup_batches, **RATES}
    close(run(method, beta=1.0, **hyper), run(mom.scaffold, **hyper))


@everywhere
@pytest.mark.parametrize("method", [mom.fedavg_m, mom.scaffold_m])
def test_the_reparameterised_form_is_the_published_one(method, cohorts):
    hyper = {"taus": random_taus, "cohorts": cohorts, "beta": 0.3, "server_lr": growing}
    left = run(method, lr=decaying, **hyper)
    right = run(method, lr=lambda r: 0.3 * decaying(r), form="reparameterised", **hyper)
    close(left, right)
    close(left.state["g"], 0.3 * right.state["g"])


def test_one_step_of_fedavg_m_is_momentum_and_of_fedavg_m_vr_storm():
    def mean(x, k, r):
        return sum(p * f(x, k, r) for p, f in zip(BED.p, NOISY, strict=True))

    beta, x_m, x_vr, old = 0.3, X0, X0, X0
    v, g = np.zeros(4), (mean(X0, 0, -1) + mean(X0, 1, -1)) / 2
    for r in range(20):
        v = (1 - beta) * v + beta * mean(x_m, 0, r)
        g = mean(x_vr, 0, r) + (1 - beta) * (g - mean(old, 0, r))
        x_m, x_vr, old = x_m - 0.5 * LR * v, x_vr - 0.5 * LR * g, x_vr
    hyper = {"taus": np.ones(N, int), "beta": beta, "server_lr": 0.5}
    close(run(mom.fedavg_m, **hyper).iterates[-1], x_m)
    close(run(mom.fedavg_m_vr, warmup_batches=2, **hyper).iterates[-1], x_vr)


def test_identical_clients_need_no_control_variates():
    alike = {"grads": [NOISY[0]] * N}
    close(run(mom.scaffold, **alike, **RATES), run(fed.fedavg, **alike, **RATES))
    close(run(mom.led, b=0.1, **alike), run(fed.fedavg, **alike))
    hyper = {"beta": 0.3, **RATES, **alike}
    close(run(mom.scaffold_m, **hyper), run(mom.fedavg_m, **hyper))
    close(run(mom.scaffold_m_vr, warmup_batches=2, **hyper), run(mom.fedavg_m_vr, warmup_batches=2, **hyper))


def test_first_rounds_before_any_state():
    ids, omegas = sampled(BED.p, 1)[0]
    both = {"taus": random_taus, "cohorts": lambda p, rounds: [(ids, omegas / sum(omegas) + p[ids])]}
    hyper = {"taus": random_taus, "cohorts": lambda p, rounds: normalised(sampled(p, rounds))}
    close(run(mom.feddyn, 1, alpha=2.0, **hyper), run(fed.fedavg, 1, prox=2.0, **both))
    close(run(mom.scaffold_m, 1, beta=0.3, **hyper), run(mom.fedavg_m, 1, beta=0.3, **hyper))
    close(run(mom.scaffold_m_vr, 1, beta=0.3, **hyper), run(mom.fedavg_m_vr, 1, beta=0.3, **hyper))


@everywhere
@pytest.mark.parametrize(
    ("method", "hyper"), [(mom.scaffold, {}), (mom.scaffold_m, {"beta": 0.3}), (mom.scaffold_m_vr, {"beta": 0.3})]
)
def test_warmup_and_the_mean_of_control_variates(method, hyper, cohorts):
    hyper = {"warmup_batches": 3, "taus": random_taus, "cohorts": cohorts, **hyper}
    start, end = run(method, 0, **hyper).state, run(method, **hyper).state
    close(start["c_i"], [np.mean([g(X0, b, -1) for b in range(3)], axis=0) for g in NOISY])
    for state in (start, end):
        close(state["c"], BED.p @ state["c_i"])
    close(start.get("g", 0), start["c"] if method is mom.scaffold_m_vr else 0)


def test_sums_of_dual_variables():
    close(BED.p * BED.tau @ run(mom.fedgate, taus=BED.tau).state["Lambda"], 0)
    close(BED.p @ run(mom.led, taus=BED.tau, b=0.1).state["y"], 0)
    close(BED.p @ run(mom.scaffnew, probability=0.3).state["h"], 0)
    dyn = run(mom.feddyn, taus=BED.tau, cohorts=sampled, alpha=2.0).state
    close(dyn["h"], BED.p @ dyn["lambda"])


UNEQUAL, SAMPLED = {"taus": random_taus}, {"taus": random_taus, "cohorts": sampled}
EXACT = [
    *[(mom.scaffold, {"option": o, **s}) for o in (1, 2) for s in (UNEQUAL, SAMPLED)],
    (mom.fedgate, {"server_lr": 1.2}),
    *[(mom.led, {"b": b / 12, **UNEQUAL}) for b in (0.5, 1.0)],
    (mom.led, {"b": 1.5 / K}),
    *[(mom.scaffnew, {"probability": q}) for q in (0.1, 1 / K)],
    *[(mom.feddyn, {"alpha": 1.5, **s}) for s in (UNEQUAL, SAMPLED)],
    (mom.fedpd, {"alpha": 1.5, **UNEQUAL}),
    *[(m, {"beta": 0.4, **s}) for m in (mom.scaffold_m, mom.scaffold_m_vr) for s in (UNEQUAL, SAMPLED)],
]


@pytest.mark.parametrize(("method", "hyper"), EXACT, ids=lambda v: getattr(v, "__name__", None))
def test_methods_which_reach_the_optimum(method, hyper):
    close(run(method, 250, grads=GRADS, lr=FAST, **hyper).iterates[-1], BED.optimum(), 1e-9)


def test_biased_fixed_points():
    def end(method, **hyper):
        return run(method, 250, grads=GRADS, lr=FAST, **hyper).iterates[-1]

    close(end(mom.fedgate, taus=BED.tau), BED.optimum(BED.p * BED.tau), 1e-9)
    for taus in (EQUAL, BED.tau):
        for method, local_lr in [(mom.fedavg_m, 0.4 * FAST), (mom.fedavg_m_vr, FAST)]:
            Q = [quad.gradient_response(H, local_lr, int(t)) for H, t in zip(BED.H, taus, strict=True)]
            close(end(method, taus=taus, beta=0.4), quad.fednova_fixed_point(BED, Q, taus), 1e-9)
    for wrong in (end(mom.fedgate, taus=random_taus), end(mom.fedpd, alpha=1.5, phases=[2] * 250)):
        assert 1e-2 < np.linalg.norm(wrong - BED.optimum()) < 100
