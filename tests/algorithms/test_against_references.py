"""Every registered method is its independent NumPy transcription, iterate by iterate."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.federation.participation import Cohort
from tests.references import fedavg_family as fed

from .. import FORMS, mostly_long
from .bed import (
    BED,
    COHORTS,
    DATA,
    GRADS,
    LINEAR,
    LR,
    ORDER,
    QUADRATIC,
    REGRESSION,
    RELABELLED,
    ROUNDS,
    UNEQUAL,
    X0,
    minibatches,
    path,
    picked_clients,
    recorded_run,
    reference_path,
    regression_grads,
)
from .cases import CASES, Case, Cost

# One form of each method runs on minibatches and in cohorts below; with all clients here the other forms, of each form
# of exchange, and some variants of each family. All others are long.
SOME_VARIANTS = (
    "fedavg-momentum", "fedavg-decay", "fednova-prox", "fednova-number", "fednova-fedavgm", "fedavg-m-reparameterised",
    "bvr-l-sgd-average", "mimelite-sgd", "nesterov-restart", "fedda-momentum-coordinate", "fedda-mvr-l1-ball",
    "feddualavg",
)  # fmt: skip
ONE_EACH = {case.method: name for name, case in reversed(CASES.items()) if not case.variant}
HERE = [
    *SOME_VARIANTS,
    *(name for name, c in CASES.items() if not c.variant and c.method in FORMS and name not in ONE_EACH.values()),
]


def changing(value: float, rounds: int = 1) -> tuple[fedax.Schedule, Callable[[int], float]]:
    """A rate that is halved in rounds 1 and 2: for fedax, whose counter grows by ``rounds``, and the reference."""
    return fedax.Piecewise(value, {rounds: 0.5, 3 * rounds: 2.0}), lambda r: value * (0.5 if 1 <= r < 3 else 1.0)


def close(a: Any, b: Any, tolerance: float = 1e-10) -> None:
    assert np.isfinite(b).all() and np.abs(b[-1] - b[0]).max() > 0.01  # the run goes somewhere
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


def test_every_registered_method_has_a_case():
    assert {case.method for case in CASES.values() if not case.variant} == set(fedax.available())
    assert all(case.variant or case.cost for case in CASES.values())


def work(case: Case, order: Any = slice(None)) -> fedax.Work:
    """The steps of the clients, in this order."""
    return fedax.Steps(BED.tau[order] if case.steps is None else case.steps)


def expected(case: Case, cohorts: Any = None, **hyper: Any) -> np.ndarray:
    """What the reference says, with the client that the run will draw where one works alone."""
    if case.picks:
        participation = fedax.Full() if cohorts is None else fedax.Trace(cohorts)
        hyper |= {"chosen": picked_clients(DATA, work=work(case), participation=participation)}
    taus = BED.tau if case.steps is None else case.steps
    start = {"x0": case.start(X0)}
    return reference_path(case.reference, cohorts, taus=taus, **start | case.hyper | case.theirs | hyper)


@pytest.mark.parametrize("name", mostly_long(CASES, *HERE))
def test_full_participation(name):
    """Unequal τ_i and p_i, all clients; and with the clients in another order."""
    case = CASES[name]
    method = fedax.create(case.method, lr=LR, **case.hyper, **case.own)
    iterates = expected(case, lr=LR)
    close(path(method, work=work(case)), iterates)
    if not case.picks:
        close(path(method, data=RELABELLED, work=work(case, ORDER)), iterates)


@pytest.mark.usefixtures("float32")
@pytest.mark.parametrize("method", FORMS)
def test_float32(method):
    """Each form of exchange, within rounding."""
    case = CASES[ONE_EACH[method]]
    iterates = path(fedax.create(method, lr=LR, **case.hyper, **case.own), work=work(case))
    assert iterates.dtype == np.float32
    close(iterates, expected(case, lr=LR), 1e-5)


BY_STEP = ("mime-mvr", "mimelite-mvr")
UNEQUAL_FIVE = (1, 5, 2, 4, 3)
COHORTS_OF_FIVE = ((4, 1), (0, 3, 2), (2,), (1, 3), (0, 4))


def of_five(steps: Any, cohorts: Any) -> dict[str, Any]:
    """The options of a run on minibatches of two examples."""
    participation = fedax.Trace(cohorts) if cohorts else fedax.Full()
    return {"work": fedax.Steps(steps), "participation": participation, "batch_size": 2, "seed": 3}


@functools.cache
def drawn(steps: Any, cohorts: Any) -> np.ndarray:
    return minibatches(**of_five(steps, cohorts))


@functools.cache
def drawn_alone(steps: Any, cohorts: Any) -> list[int]:
    return picked_clients(REGRESSION, **of_five(steps, cohorts))


@pytest.mark.parametrize(
    "name", mostly_long([name for name, case in CASES.items() if not case.variant], *ONE_EACH.values())
)
def test_minibatches_cohorts_changing_rates_and_costs(name):
    """On minibatches of two examples, the same for both; unequal steps; cohorts of one to three clients where defined;
    η and the server's rate are not the same in every round."""
    case = CASES[name]
    steps, cohorts = case.steps or UNEQUAL_FIVE, COHORTS_OF_FIVE if case.partial else None
    rates = {"lr": 0.05} | {field: value for field, value in case.hyper.items() if field == "server_lr"}
    by_step = 5 if case.method in BY_STEP else 1  # η of the global step
    both = {field: changing(value, by_step if field == "lr" else 1) for field, value in rates.items()}
    ours, theirs = ({field: pair[side] for field, pair in both.items()} for side in (0, 1))
    method = fedax.create(case.method, **case.hyper | case.own | ours)
    run = recorded_run(method, LINEAR, REGRESSION, rounds=ROUNDS, **of_five(steps, cohorts))
    hyper = case.hyper | case.theirs | theirs
    if case.picks:
        hyper["chosen"] = drawn_alone(steps, cohorts)
    given = {"grads": regression_grads(drawn(steps, cohorts)), "p": REGRESSION.weights, "x0": case.start(np.zeros(4))}
    close(np.stack(run.history["model"]), reference_path(case.reference, cohorts, taus=steps, **given, **hyper))

    columns = ("bytes_down", "bytes_up", "local_steps", "gradients")
    rows = np.stack([run.history[column] for column in columns], axis=1)
    passes, taus = -(-REGRESSION.sizes // 2), np.broadcast_to(steps, 5)
    warm, one_model = case.cost.warmup, 5 * 32 * (case.cost.warmup != 0)
    assert rows[0].tolist() == [one_model, one_model, 0, passes.sum() if warm < 0 else 5 * warm]
    cohort = range(5) if cohorts is None else cohorts[1]  # of the second round
    expected = sum(of_one_client(case.cost, taus[i], passes[i]) for i in cohort)
    if case.picks:  # the client that runs local steps for the cohort has the model already
        expected += of_one_client(Cost(1, 1, gradients=2), taus[hyper["chosen"][1]], 0)
    assert (rows[2] - rows[1]).tolist() == expected.tolist()


def of_one_client(cost: Cost, tau: int, a_pass: int) -> np.ndarray:
    down, up = 32 * cost.down + 8 * cost.numbers_down, 32 * cost.up + 8 * cost.numbers_up
    up = up if cost.message is None else cost.message
    forwards = -(-cost.losses * a_pass // 3)
    return np.array([down, up, cost.loops * tau, cost.gradients * tau + cost.passes * a_pass + forwards])


class Given(fedax.Participation):
    """Three given clients a round with ω_i = p_i N/S, as ``Uniform`` would weigh them: Σω is not one."""

    ids: Any = eqx.field(converter=np.asarray)

    def draw(self, key: Any, weights: Any, index: Any) -> Cohort:
        ids = jnp.asarray(self.ids)[index]
        return Cohort(ids, weights[ids] * 7 / 3)

    def places(self, num_clients: int) -> int:
        return 3


AS_IF_THEY_DID = [
    "fedexp",
    "fednova-vr-all",
    "scaffold",
    "feddyn",
    "fedavg-m-vr",
    "scaffold-m",
    "scaffold-m-vr",
    "nesterov-both",
]
APART = ["fedavg-m", "mimelite-momentum", "mimelite-adam", "mimelite-mvr-previous", "ce-lsgd-average"]
BOTH = ["fednova-sgd", "fednova-ptau", "mime-momentum", "mime-mvr-previous"]


SOME_WEIGHTS = ("fedexp", "feddyn", "scaffold-m-vr", "mimelite-momentum", "ce-lsgd-average", "mime-momentum")


@pytest.mark.parametrize("name", mostly_long(AS_IF_THEY_DID + APART + BOTH, *SOME_WEIGHTS))
def test_weights_that_do_not_sum_to_one(name):
    """Methods that divide by Σω run as if the weights did; the others keep what the server knows out of the sum."""
    case = CASES[name]
    ids = [[4, 1, 6], [0, 3, 5], [2, 6, 0], [1, 3, 2], [5, 4, 6]]
    assert max(abs(BED.p[cohort].sum() * 7 / 3 - 1) for cohort in ids) > 0.1
    cohorts = [(cohort, BED.p[cohort] * 7 / 3) for cohort in ids]
    steps = BED.tau if case.steps is None else np.full(7, case.steps)
    iterates = case.reference(GRADS, BED.p, steps, cohorts, X0, ROUNDS, lr=LR, **case.hyper).iterates
    close(path(fedax.create(case.method, lr=LR, **case.hyper), participation=Given(ids), work=work(case)), iterates)
    normalised = reference_path(case.reference, ids, taus=steps, lr=LR, **case.hyper)
    assert (np.abs(iterates - normalised).max() > 1e-2) == (name not in AS_IF_THEY_DID)


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
    np.testing.assert_allclose(run.memory.tree, expected["h"], rtol=0, atol=1e-10)
    np.testing.assert_allclose(run.state.h.tree, expected["h_mean"], rtol=0, atol=1e-10)
    assert not np.any(run.memory.tree[2]) and np.any(expected["h"][0])  # client 2 was not drawn


# bfloat16 parameters: the model rounds, what is kept does not.

_EXACT = fedax.tasks.quadratic(4)
BFLOAT16 = fedax.Task(lambda key: jnp.zeros(4, jnp.bfloat16), _EXACT.loss)


def in_bfloat16(name: str, run: Callable[..., fedax.Run], memory: str) -> fedax.Run:
    case = CASES[name]
    method = fedax.create(case.method, lr=LR, **case.hyper, **case.own)
    options = {"rounds": ROUNDS, "work": work(case), "params": X0, "place": fedax.Place(client_memory=memory)}
    return run(method, BFLOAT16, DATA, **options)


def kept(run: fedax.Run, memory: Any) -> list[Any]:
    leaves = jax.tree.leaves((run.state, memory))
    assert all(leaf.dtype == jnp.float32 for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating))
    return leaves


@pytest.mark.usefixtures("float32")
@pytest.mark.parametrize("name", mostly_long(ONE_EACH.values(), *(ONE_EACH[method] for method in FORMS)))
def test_bfloat16_parameters(name):
    """The reference within bfloat16's rounding, from float32 state and memory."""
    run = in_bfloat16(name, recorded_run, "device")
    kept(run, run.memory)
    np.testing.assert_allclose(run.history["model"][-1], expected(CASES[name], lr=LR)[-1], rtol=0, atol=0.02)


@pytest.mark.usefixtures("float32")
@pytest.mark.parametrize("name", ["scaffold-m-vr", "fedpd"])  # a warm-up and cohorts; memory of two kinds
def test_bfloat16_parameters_wherever_the_memory_is(name):
    device = in_bfloat16(name, fedax.simulate, "device")
    for place in ("host", "file"):
        other = in_bfloat16(name, fedax.simulate, place)
        assert other.params.dtype == device.params.dtype == jnp.bfloat16
        memory = other.memory[np.arange(DATA.num_clients)]
        for a, b in zip(kept(other, memory), kept(device, device.memory), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
