"""Every registered method is its independent NumPy transcription, iterate by iterate."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.participation import Cohort
from tests.references import fedavg_family as fed

from .bed import (
    BED,
    COHORTS,
    DATA,
    GRADS,
    LR,
    ORDER,
    QUADRATIC,
    RELABELLED,
    ROUNDS,
    UNEQUAL,
    X0,
    path,
    transcribed,
)
from .cases import CASES

each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def changing(value: float) -> tuple[fedax.Schedule, Callable[[int], float]]:
    """A rate that is halved in rounds 1 and 2: for fedax, and for the reference."""
    return fedax.Piecewise(value, {1: 0.5, 3: 2.0}), lambda r: value * (0.5 if 1 <= r < 3 else 1.0)


def close(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    assert np.isfinite(b).all() and np.abs(b[-1] - b[0]).max() > 0.05  # the run goes somewhere
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


def test_every_registered_method_has_a_case():
    assert {case.method for case in CASES.values()} == set(fedax.available())


@each_case
def test_full_participation(case):
    """Unequal τ_i and p_i, all clients; and with the clients in another order."""
    method = fedax.create(case.method, lr=LR, **case.hyper, **case.own)
    expected = transcribed(case.reference, lr=LR, **case.hyper)
    close(path(method), expected)
    close(path(method, data=RELABELLED, work=fedax.Steps(BED.tau[ORDER])), expected)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.partial])
def test_partial_participation_and_changing_rates(name):
    """Given cohorts of one to four clients; η and the server's rate are not the same in every round."""
    case = CASES[name]
    rates = {"lr": LR} | {field: value for field, value in case.hyper.items() if field == "server_lr"}
    ours, theirs = ({field: changing(value)[side] for field, value in rates.items()} for side in (0, 1))
    method = fedax.create(case.method, **case.hyper | case.own | ours)
    expected = transcribed(case.reference, COHORTS, **case.hyper | theirs)
    close(path(method, participation=fedax.Trace(COHORTS)), expected)
    moved = [np.argsort(ORDER)[cohort] for cohort in COHORTS]
    relabelled = {"data": RELABELLED, "work": fedax.Steps(BED.tau[ORDER])}
    close(path(method, participation=fedax.Trace(moved), **relabelled), expected)


class Given(fedax.Participation):
    """Three given clients a round with ω_i = p_i N/S, as ``Uniform`` would weigh them: Σω is not one."""

    ids: Any = eqx.field(converter=np.asarray)

    def draw(self, key: Any, weights: Any, index: Any) -> Cohort:
        ids = jnp.asarray(self.ids)[index]
        return Cohort(ids, weights[ids] * 7 / 3, jnp.asarray(3 / 7, weights.dtype))

    def places(self, num_clients: int) -> int:
        return 3


@pytest.mark.parametrize("name", ["fednova-sgd", "fednova-ptau", "fednova-vr"])
def test_weights_that_do_not_sum_to_one(name):
    case = CASES[name]
    ids = [[4, 1, 6], [0, 3, 5], [2, 6, 0], [1, 3, 2], [5, 4, 6]]
    assert max(abs(BED.p[cohort].sum() * 7 / 3 - 1) for cohort in ids) > 0.1
    cohorts = [(cohort, BED.p[cohort] * 7 / 3) for cohort in ids]
    expected = case.reference(GRADS, BED.p, BED.tau, cohorts, X0, ROUNDS, lr=LR, **case.hyper).iterates
    close(path(fedax.create(case.method, lr=LR, **case.hyper), participation=Given(ids)), expected)
    normalised = transcribed(case.reference, ids, lr=LR, **case.hyper)
    assert np.abs(expected - normalised).max() > 1e-2


def test_the_state_of_fednova_vr_is_the_reference_s():
    """h_i of every client and h̄, also of clients that are not drawn."""
    lr, reference_lr = changing(LR)
    run = fedax.simulate(
        fedax.create("fednova-vr", lr=lr, momentum=0.6),
        QUADRATIC,
        DATA,
        rounds=3,
        work=UNEQUAL,
        params=X0,
        participation=fedax.Trace(COHORTS),
    )
    cohorts = fed.trace_cohorts(BED.p, COHORTS)
    expected = fed.fednova_vr(GRADS, BED.p, BED.tau, cohorts, X0, 3, lr=reference_lr, momentum=0.6).state
    np.testing.assert_allclose(run.memory.tree, expected["h"], rtol=0, atol=2e-5)
    np.testing.assert_allclose(run.state.h.tree, expected["h_mean"], rtol=0, atol=2e-5)
    assert not np.any(run.memory.tree[2]) and np.any(expected["h"][0])  # client 2 was not drawn
