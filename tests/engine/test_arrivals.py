"""Where a run ends whose server does not wait: found by running it, and predicted from the schedule."""

import dataclasses
import functools

import numpy as np
import pytest

import fedax
from fedax.engine.arrivals import LongRun
from fedax.theory import weighted_optimum

from .. import mostly_long

N, D = 12, 3
RNG = np.random.default_rng(2)
_ROOTS = RNG.normal(size=(N, D, D))
H = np.einsum("nij,nkj->nik", _ROOTS, _ROOTS) / D + 0.5 * np.eye(D)
SPEED = np.sort(RNG.lognormal(0, 1.2, size=N))
E = RNG.normal(size=(N, D)) + np.linspace(-3, 3, N)[:, None]  # slow clients' data differ
P = RNG.dirichlet(np.full(N, 5.0))
DATA = fedax.FederatedData({"H": H.astype(np.float32), "e": E.astype(np.float32)}, [1] * N, P)
TASK, CLOCK = fedax.tasks.quadratic(D), fedax.Clock(step=SPEED)
STAR = weighted_optimum(H, E, P)
PACES = {
    "uniform": fedax.Async(6, 2),
    "uniform, late ones for less": fedax.Async(6, 2, fedax.PolynomialStaleness(0.5)),
    "idle": fedax.Async(6, 2, start="idle"),
    "all under way": fedax.Async(N, 2, start="idle"),
    "all under way, late ones for less": fedax.Async(N, 1, fedax.HingeStaleness(0.5, 2), start="idle"),
    "with a grace": fedax.Async(N, 1, grace=1.0, start="idle"),
}


def component(k):
    return lambda x, batch: x[k] + 0 * batch["e"][:, 0]


MEASURED = TASK.with_metrics(**{f"x{k}": component(k) for k in range(D)})


@functools.cache
def end(pace, lr, rounds):
    """The mean model of the second half of a run, whose oscillation is averaged out."""
    options = {"rounds": rounds, "work": fedax.Steps(1), "params": STAR, "pace": pace, "clock": CLOCK}
    some = {"H": H[:1].astype(np.float32), "e": E[:1].astype(np.float32)}
    run = fedax.simulate(fedax.create("fedavg", lr=lr), MEASURED, DATA, test=some, evaluate_every=20, **options)
    half = len(run.history["round"]) // 2
    return np.array([run.history[f"test_x{k}"][half:].mean() for k in range(D)])


@pytest.mark.parametrize(
    "which", mostly_long(PACES, "uniform", "uniform, late ones for less", "all under way", "with a grace")
)
def test_a_run_ends_where_it_is_predicted(which):
    pace, lr, rounds = PACES[which], 0.004, 6000
    found = fedax.arrivals(
        fedax.create("fedavg", lr=lr), TASK, DATA, pace=pace, clock=CLOCK, rounds=rounds, work=fedax.Steps(1)
    )
    assert found.q.sum() == pytest.approx(1) and found.counts.sum() == rounds * pace.buffer
    predicted = weighted_optimum(H, E, found.q)
    off = np.linalg.norm(predicted - STAR)
    x = end(pace, lr, rounds)
    assert np.linalg.norm(x - predicted) < 0.06 + 0.02 * off
    if found.chi_square > 0.05:
        assert np.linalg.norm(x - STAR) > 0.5 * off


def test_only_fair_starts_without_a_weight_of_staleness_are_right():
    given = {"clock": CLOCK, "rounds": 6000, "work": fedax.Steps(1)}
    found = {
        name: fedax.arrivals(fedax.create("fedavg"), TASK, DATA, pace=pace, **given) for name, pace in PACES.items()
    }
    assert found["uniform"].chi_square < 0.02 < found["uniform, late ones for less"].chi_square
    assert found["all under way"].chi_square > found["idle"].chi_square > 0.05
    assert found["all under way"].staleness[-1] > found["all under way"].staleness[0]  # the slowest, the fastest


@pytest.mark.parametrize("which", ["uniform, late ones for less", "all under way", "with a grace"])
def test_corrected_weights_bring_it_back(which):
    pace = dataclasses.replace(PACES[which], weights="corrected")
    found = fedax.arrivals(fedax.create("fedavg"), TASK, DATA, pace=pace, clock=CLOCK, rounds=6000, work=fedax.Steps(1))
    assert found.chi_square < 1e-12
    wrong = np.linalg.norm(end(PACES[which], 0.004, 6000) - STAR)
    assert np.linalg.norm(end(pace, 0.004, 6000) - STAR) < max(0.04, 0.1 * wrong)


def test_chance_is_taken_out_of_the_shares_of_a_long_run():
    rng, n = np.random.default_rng(0), 50
    p = rng.dirichlet(np.full(n, 20.0))

    def apart(chances):
        """χ² to p as counted and as told, and of what is told to the truth."""
        clients = rng.choice(n, size=(5000, 2), p=chances)
        told = LongRun(clients, p[clients], p).shares(p[clients])
        counted = np.bincount(clients.ravel(), p[clients].ravel(), n)
        truth = chances * p / np.sum(chances * p)
        assert told.sum() == pytest.approx(1)
        return [np.sum((q - to) ** 2 / p) for q, to in ((counted / counted.sum(), p), (told, p), (told, truth))]

    alike = apart(np.full(n, 1 / n))
    assert 3e-3 < alike[0] < 8e-3 and alike[1] < 0.2 * alike[0]
    biased = apart(np.geomspace(1, 3, n) / np.geomspace(1, 3, n).sum())
    assert 0.08 < biased[1] < biased[0] and biased[2] < 0.01
    never = LongRun(np.array([[0, 0]] * 20), np.ones((20, 2)), np.array([0.5, 0.5])).shares(np.ones((20, 2)))
    assert never.tolist() == [1.0, 0.0]


def test_bad_input():
    for rounds in (0, -1):
        with pytest.raises(fedax.ConfigError, match="rounds"):
            fedax.arrivals(fedax.create("fedavg"), TASK, DATA, pace=PACES["idle"], clock=CLOCK, rounds=rounds)
    with pytest.raises(fedax.ConfigError, match="pace"):
        fedax.arrivals(fedax.create("fedavg"), TASK, DATA, pace=None, clock=CLOCK, rounds=3)
