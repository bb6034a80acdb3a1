"""The transcriptions of Nesterov accelerated FedAvg and FedMaSS obey their identities and fixed points (NumPy)."""

import numpy as np
import pytest

from . import accelerated_family as acc
from . import fedavg_family as fed
from . import quadratics as quad

BED = quad.test_bed()
X0 = np.array([1.0, -2.0, 0.5, 3.0])
LR, BETA, K = 0.1 / BED.L, 0.5, 4
ONES, EQUAL = np.full(7, 1), np.full(7, K)
NOISY = BED.minibatch_grads(batch=2)
ALL = fed.full_cohorts(BED.p, 12)
PART = [np.random.default_rng((1, r)).choice(7, 3, replace=False) for r in range(12)]
PART = [(ids, BED.p[ids] * 7 / 3) for ids in PART]  # the weights do not sum to one
NESTEROV, MASS, PLAIN_MASS = (acc.nesterov_fedavg, {}), (acc.fedmass, {"lr2": 0.3 * LR}), (acc.fedmass, {"lr2": 0.0})
MODES = [("paper", ALL), ("both", PART), ("restart", PART)]
each_method = pytest.mark.parametrize(("method", "more"), [NESTEROV, MASS], ids=["nesterov", "fedmass"])
each_mode = pytest.mark.parametrize(("sync", "cohorts"), MODES)
each_cohorts = pytest.mark.parametrize("cohorts", [ALL, PART], ids=["all", "part"])


def of_sync(sync, cohorts):
    """The weights of the sequences' means: ω/Σω where both are averaged."""
    return [(ids, omegas / sum(omegas)) for ids, omegas in cohorts] if sync == "both" else cohorts


def rate(t):
    return LR / (1 + 0.1 * t)


def beta(t):
    return BETA / (1 + 0.05 * t)


def run(method, grads=NOISY, taus=EQUAL, cohorts=ALL, rounds=12, x0=X0, **hyper):
    return method(grads, BED.p, taus, ALL * 20 if rounds > 12 else cohorts, x0, rounds, **{"lr": LR, **hyper})


def close(a, b):
    a, b = (v.iterates if isinstance(v, fed.Reference) else v for v in (a, b))
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-10)


def scaled(lr, K=K):
    """Gradients times lr(t), for methods that have a rate of the round."""
    return [lambda x, k, r, g=g: lr(r * K + k) * g(x, k, r) for g in NOISY]


@each_mode
def test_no_momentum_and_lr2_of_momentum_times_lr_are_fedavg(sync, cohorts):
    right = run(fed.fedavg, scaled(rate), cohorts=of_sync(sync, cohorts), lr=1.0)
    hyper = {"cohorts": cohorts, "sync": sync, "lr": rate}
    for method, more in (NESTEROV, PLAIN_MASS):
        close(run(method, **hyper, **more, momentum=0.0), right)
    if sync != "paper":
        close(run(acc.fedmass, **hyper, lr2=lambda t: beta(t) * rate(t), momentum=beta), right)


@each_cohorts
def test_restarts_are_rounds_of_nesterov_momentum(cohorts):
    """FedMaSS without lr2 too."""
    right = run(fed.fedavg, cohorts=cohorts, momentum=BETA, nesterov=True)
    close(run(acc.nesterov_fedavg, cohorts=cohorts, momentum=BETA, sync="restart"), right)
    close(run(acc.fedmass, cohorts=cohorts, lr2=0.0, momentum=BETA, sync="restart"), right)


@each_cohorts
def test_one_step(cohorts):
    hyper = {"taus": ONES, "lr": rate, "momentum": beta, "cohorts": cohorts}
    sgd = run(fed.fedavg, scaled(lambda t: rate(t) * (1 + beta(t)), 1), ONES, cohorts, lr=1.0)
    close(run(acc.nesterov_fedavg, sync="restart", **hyper), sgd)
    back = run(fed.fedavg, scaled(lambda t: rate(t) * (1 + beta(t)) - 0.3 * LR, 1), ONES, cohorts, lr=1.0)
    close(run(acc.fedmass, sync="restart", lr2=0.3 * LR, **hyper), back)
    for method, more in (NESTEROV, PLAIN_MASS) if cohorts is ALL else ():
        close(run(method, sync="paper", **more, **hyper), run(method, sync="both", **more, **hyper))


@pytest.mark.parametrize(("sync", "taus", "cohorts"), [("both", EQUAL, PART), ("paper", ONES, ALL)])
def test_fedmass_without_lr2_is_nesterov_with_w_for_v_and_u_for_w(sync, taus, cohorts):
    hyper = {"taus": taus, "cohorts": cohorts, "lr": rate, "momentum": beta, "sync": sync}
    mass, nesterov = run(acc.fedmass, lr2=0.0, **hyper), run(acc.nesterov_fedavg, **hyper)
    v, u = nesterov.state["v"], mass.state["u"]
    close(mass.iterates[-1], v if sync == "both" else BED.p @ v)
    close(u if sync == "both" else BED.p @ u, nesterov.iterates[-1])


def test_averaging_only_the_model_turns_the_clients_momentum():
    """m ← βm + g, y ← y − α (g + βm); after averaging m_i ← m_i − (w − y_i) / (αβ), which keeps v_i."""
    w, m = X0, np.zeros((7, 4))
    for r in range(12):
        y = np.stack([w] * 7)
        for k in range(K):
            g = np.stack([g(z, k, r) for g, z in zip(NOISY, y, strict=True)])
            m = BETA * m + g
            y = y - LR * (g + BETA * m)
        w = BED.p @ y
        m = m - (w - y) / (LR * BETA)
    close(run(acc.nesterov_fedavg, momentum=BETA).iterates[-1], w)


@each_method
def test_paper_sync_turns_the_clients_second_sequences_over(method, more):
    """Without gradients v_i − v̄ (u_i − ū) is multiplied by −(β + … + β^{K−1}) in a round: β ≤ ½ is safe."""
    first = [lambda x, k, r, g=g: (r == 0) * g(x, k, r) for g in NOISY]
    states = (run(method, first, rounds=R, momentum=beta, **more).state["u" if more else "v"] for R in (4, 5))
    before, after = (state - BED.p @ state for state in states)
    b = [beta(t) for t in range(4 * K, 5 * K)]
    close(after, -before * (b[3] * (1 + b[0] * (1 + b[1])) if more else b[0] * (1 + b[1] * (1 + b[2]))))


@each_mode
def test_three_sequences(sync, cohorts):
    """v ← (1−a)v + au − δg, w ← u − ηg, u ← (av + w)/(1+a); where only w is averaged, v_i must jump by (w − w_i)/a."""
    a, w, v, V = 0.4, X0, X0, np.stack([X0] * 7)
    U = V
    for r, (ids, omegas) in enumerate(of_sync(sync, cohorts)):
        for k in range(K):
            g = rate(r * K + k) * np.stack([g(z, k, r) for g, z in zip(NOISY, U, strict=True)])
            W = U - g
            V = (1 - a) * V + a * U - 0.8 * g
            U = (a * V + W) / (1 + a)
        before, w = w, w + omegas @ (W[ids] - w)
        if sync == "paper":
            V = V + (w - W) / a
        elif sync == "both":
            v = v + omegas @ (V[ids] - v)
            V = np.stack([v] * 7)
        else:
            w = before + omegas @ (U[ids] - before)
            V = np.stack([w] * 7)
        U = (a * V + w) / (1 + a)
    hyper = {"lr": rate, "lr2": lambda t: rate(t) * (1 - 0.8 * a) / (1 + a), "momentum": (1 - a) / (1 + a)}
    mass = run(acc.fedmass, cohorts=cohorts, sync=sync, **hyper)
    close(mass.iterates[-1], w)
    close(mass.state["u"], U if sync == "paper" else U[0])


@each_mode
@each_method
def test_common_minimiser_is_reached_and_the_origin_does_not_matter(method, more, sync, cohorts):
    common = quad.Quadratics(BED.A, [A @ X0 for A in BED.A], BED.H, BED.H @ X0, BED.p, BED.tau)
    hyper = {"momentum": BETA, "sync": sync, **more}
    close(run(method, common.minibatch_grads(batch=2), rounds=240, x0=-X0, **hyper).iterates[-1], X0)
    moved = [lambda x, k, r, g=g: g(x - 5.0, k, r) for g in NOISY]
    left = run(method, moved, cohorts=cohorts, x0=X0 + 5.0, **hyper)
    close(left.iterates - 5.0, run(method, cohorts=cohorts, **hyper))  # differences are averaged, not models


@each_method
def test_undefined_settings(method, more):
    for setting in ({"cohorts": PART}, {"taus": BED.tau}, {"sync": "none"}):
        with pytest.raises(ValueError, match=r"round 0|sync"):
            run(method, momentum=BETA, **more, **setting)
