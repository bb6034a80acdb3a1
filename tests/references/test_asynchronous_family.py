"""The transcriptions of asynchronous methods, in synchronous rounds, obey their identities and fixed points (NumPy)."""

import numpy as np
import pytest

from . import asynchronous_family as asy
from . import close
from . import fedavg_family as fed
from . import quadratics as quad

BED = quad.test_bed()
X0 = np.array([1.0, -2.0, 0.5, 3.0])
LR = 0.1 / BED.L
NOISY = BED.minibatch_grads(batch=2)
ALL = fed.full_cohorts(BED.p, 12)
PART = [np.random.default_rng((1, r)).choice(7, 3, replace=False) for r in range(12)]
PART = [(ids, BED.p[ids] * 7 / 3) for ids in PART]  # the weights do not sum to one
each_cohorts = pytest.mark.parametrize("cohorts", [ALL, PART], ids=["all", "part"])


def rate(r):
    return LR / (1 + 0.1 * r)


def run(method, grads=NOISY, taus=BED.tau, cohorts=ALL, rounds=12, x0=X0, **hyper):
    return method(grads, BED.p, taus, cohorts, x0, rounds, **{"lr": rate, **hyper})


@each_cohorts
def test_fedbuff_and_fedasync_are_fedavg_and_fedprox(cohorts):
    close(run(asy.fedbuff, cohorts=cohorts, server_lr=0.7), run(fed.fedavg, cohorts=cohorts, server_lr=0.7))
    ours = run(asy.fedasync, cohorts=cohorts, mixing=0.7, prox=2.0)
    close(ours, run(fed.fedavg, cohorts=cohorts, server_lr=0.7, prox=2.0))


def test_ca2fl_and_area_are_fedavg_with_all_clients_and_not_without():
    plain = run(fed.fedavg)
    close(run(asy.ca2fl), plain)
    close(run(asy.area), plain)
    for method in (asy.ca2fl, asy.area):
        assert np.abs(run(method, cohorts=PART).iterates - run(fed.fedavg, cohorts=PART).iterates).max() > 0.01


@each_cohorts
def test_ringmaster_and_ace_are_fedavg_with_one_step(cohorts):
    plain = run(fed.fedavg, taus=np.ones(7, int), cohorts=cohorts)
    close(run(asy.ringmaster, taus=np.ones(7, int), cohorts=cohorts), plain)
    if cohorts is ALL:
        close(run(asy.ace, taus=np.ones(7, int)), plain)


def test_ringleader_is_ringmaster_with_all_clients():
    close(run(asy.ringleader), run(asy.ringmaster))


@each_cohorts
def test_a_delay_of_one_is_nesterovs_momentum(cohorts):
    """By its other form: m ← βm + g, x ← x − ε(g + βm), in which FedAvg's updates give the g."""
    ours = run(asy.delayed_nesterov, cohorts=cohorts, server_lr=0.8, server_momentum=0.6, every=1)
    x, m, expected = X0, np.zeros(4), [X0]
    for r in range(12):
        step = run(fed.fedavg, of_round(r), cohorts=cohorts[r:], rounds=1, x0=x, lr=rate(r))
        g = x - step.iterates[1]
        m = 0.6 * m + g
        x = x - 0.8 * (g + 0.6 * m)
        expected.append(x)
    close(ours, np.stack(expected))


def of_round(r):
    """The gradients of round r for a run that begins there."""
    return [lambda x, k, _, g=g: g(x, k, r) for g in NOISY]


def test_n_rounds_of_a_delayed_momentum_add_up_to_a_step_of_nesterovs_for_any_spread():
    """Under constant updates."""
    constant = [lambda x, k, r: np.full(4, 2.0)] * 7
    moved = {
        spread: np.diff(
            run(asy.delayed_nesterov, constant, taus=np.ones(7, int), lr=1.0, every=4, spread=spread).iterates, axis=0
        )
        for spread in (0.0, 1.0)
    }
    m = 0.0
    for four in moved[0.0].reshape(3, 4, 4).sum(axis=1):
        m = 0.9 * m + 2.0
        np.testing.assert_allclose(four, -0.7 * (2.0 + 0.9 * m), rtol=1e-12)
    np.testing.assert_allclose(moved[1.0][4:7], np.tile(-0.7 * (2.0 + 0.9 * 2.0) / 4, (3, 4)), rtol=1e-12)


def test_fadas_without_history_is_fedams():
    """β = 0: x ← x + γ Δ/(max over rounds of |Δ| + ε); the correction of the moments changes nothing then."""
    ours = run(asy.fadas, server_lr=0.3, beta1=0.0, beta2=0.0, eps=0.1)
    x, top, expected = X0, np.zeros(4), [X0]
    for r in range(12):
        delta = run(fed.fedavg, of_round(r), rounds=1, x0=x, lr=rate(r)).iterates[1] - x
        top = np.maximum(top, np.abs(delta))
        x = x + 0.3 * delta / (top + 0.1)
        expected.append(x)
    close(ours, np.stack(expected))
    close(ours, run(asy.fadas, server_lr=0.3, beta1=0.0, beta2=0.0, eps=0.1, bias_correction=True))


def test_what_is_kept_is_what_the_last_cohorts_left():
    last = {int(i): r for r, (ids, _) in enumerate(PART) for i in ids}
    assert len(last) == 7
    ca2fl, ace, area = (run(method, cohorts=PART) for method in (asy.ca2fl, asy.ace, asy.area))
    for i, r in last.items():
        one = [([i], [1.0])]
        y = run(fed.fedavg, of_round(r), cohorts=one, rounds=1, x0=ca2fl.iterates[r], lr=rate(r)).iterates[1]
        np.testing.assert_allclose(ca2fl.state["h"][i], y - ca2fl.iterates[r], atol=1e-12)
        y = run(fed.fedavg, of_round(r), cohorts=one, rounds=1, x0=area.iterates[r], lr=rate(r)).iterates[1]
        np.testing.assert_allclose(area.state["z"][i], y, atol=1e-12)
        mean = np.mean([NOISY[i](ace.iterates[r], k, r) for k in range(BED.tau[i])], axis=0)
        np.testing.assert_allclose(ace.state["u"][i], mean, atol=1e-12)
    np.testing.assert_allclose(area.iterates[-1], BED.p @ area.state["z"], atol=1e-12)


@pytest.mark.parametrize(
    ("method", "exact"), [(asy.ace, True), (asy.ca2fl, False), (asy.area, False)], ids=["ace", "ca2fl", "area"]
)
def test_who_is_heard_how_often_does_not_move_the_fixed_point(method, exact):
    """Client 0 nine times as often as the others: the optimum of F, or FedAvg's point with all clients."""
    order = [0 if r % 2 else 1 + r // 2 % 6 for r in range(6000)]
    lr = 0.02 / BED.L
    cohorts = [([i], [1.0]) for i in order]
    if method is asy.ca2fl:
        cohorts = [([i], [BED.p[i] * (2 if i == 0 else 12)]) for i in order]  # unbiased weights
    end = run(method, BED.grads(), cohorts=cohorts, rounds=6000, lr=lr).iterates[-1]
    target = BED.optimum() if exact else quad.fedavg_fixed_point(BED, lr, BED.tau)
    np.testing.assert_allclose(end, target, atol=1e-8)
    if not exact:
        assert np.linalg.norm(end - BED.optimum()) > 0.01
