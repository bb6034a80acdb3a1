"""What it costs that a server does not wait: as the diagnosis says it, worked out by hand, and as runs lose it."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

import fedax
from fedax.theory import chi_square, diagnose, weighted_optimum
from fedax.theory.advice import KEEPING
from tests import mostly_long
from tests.theory import sentence

N, D = 10, 3
RNG = np.random.default_rng(5)
ROOTS = RNG.normal(size=(N, D, D))
H = np.einsum("nij,nkj->nik", ROOTS, ROOTS) / D + 0.5 * np.eye(D)
E = RNG.normal(size=(N, D)) + np.linspace(-2, 2, N)[:, None]
SECONDS = np.geomspace(1.0, 11.0, N)  # a step; the slow ones have other data
P = RNG.dirichlet(np.full(N, 5.0))
TASK = fedax.tasks.quadratic(D)
STAR = weighted_optimum(H, E, P)
ALL = fedax.Async(N, 1, start="idle")  # who has answered starts again


def federation(e=E, p=P):
    return fedax.FederatedData({"H": H, "e": np.asarray(e)}, [1] * N, p)


def above(x, e=E, p=P):
    """F(x) − F*, of F = Σ p_i (½xᵀH_ix − e_iᵀx), written out."""
    values = lambda x: np.einsum("i,j,ijk,k->", p, x, H, x) / 2 - p @ e @ x  # noqa: E731
    return values(np.asarray(x)) - values(weighted_optimum(H, e, p))


def found(name="fedavg", pace=ALL, steps=1, seconds=SECONDS, e=E, lr=0.01, points=None, **hyper):
    options = {"work": fedax.Steps(steps), "points": [np.full(D, 5.0), STAR] if points is None else points}
    with jax.enable_x64(True):
        return diagnose(
            fedax.create(name, lr=lr, **hyper), TASK, federation(e), pace=pace, clock=fedax.Clock(step=seconds),
            **options,
        )  # fmt: skip


def at_its_end(**given):
    return found(points=[np.full(D, 5.0), weighted_optimum(H, E, np.maximum(found(**given).weights, 1e-9))], **given)


@pytest.mark.parametrize("steps", [1, list(range(1, N + 1))])
def test_the_cost_is_that_of_the_closed_form(steps):
    """With all under way client i answers every τ_i·s_i seconds, and pulls with weight p_i by τ_i steps: p_i/s_i."""
    w = P / SECONDS / np.sum(P / SECONDS)
    ends = weighted_optimum(H, E, w)
    diagnosis = found(steps=steps, points=[np.full(D, 5.0), ends])
    assert_allclose(diagnosis.weights, w, rtol=0.02)
    assert_allclose(diagnosis.arrivals, w if steps == 1 else w / steps / np.sum(w / steps), rtol=0.02)
    assert_allclose(diagnosis.chi2, chi_square(P, w), rtol=0.03)
    point = diagnosis.points[-1]
    assert_allclose([point.inconsistency_cost, point.left], above(ends), rtol=0.03)
    arrivals = weighted_optimum(H, E, diagnosis.arrivals)
    work = weighted_optimum(H, E, P * steps)
    apart = [found(steps=steps, points=[x]).points[0] for x in (arrivals, work)]
    assert_allclose(apart[0].arrival_cost, above(arrivals), rtol=0.03)
    assert_allclose(apart[1].work_cost, above(work), rtol=0.03, atol=1e-12)


@pytest.mark.parametrize(
    "pace",
    [ALL, fedax.Async(6, 2, fedax.PolynomialStaleness(1.0))],
    ids=["all under way", "late ones for less"],
)
def test_a_run_loses_what_is_said_and_corrected_weights_bring_it_back(pace):
    lr, rounds = 0.005, 6000
    some = {"H": H[:1], "e": E[:1]}
    task = TASK.with_metrics(**{f"x{k}": lambda x, batch, k=k: x[k] + 0 * batch["e"][:, 0] for k in range(D)})

    def end(**changes):
        how = fedax.Async(**{**pace.arguments(), **changes})
        run = fedax.simulate(
            fedax.create("fedavg", lr=lr), task, federation(), rounds=rounds, work=fedax.Steps(1), params=STAR,
            pace=how, clock=fedax.Clock(step=SECONDS), test=some, evaluate_every=20,
        )  # fmt: skip
        half = len(run.history["round"]) // 2
        return np.array([run.history[f"test_x{k}"][half:].mean() for k in range(D)])

    ends = end()
    diagnosis = found(pace=pace, lr=lr, points=[np.full(D, 5.0), ends])
    assert_allclose(diagnosis.points[-1].inconsistency_cost, above(ends), rtol=0.15)
    assert diagnosis.verdict.startswith('Keep FedAvg, with pace.weights = "corrected"') and diagnosis.take == ""
    assert ("fast clients answer more often" in diagnosis.verdict) is (pace is ALL)
    assert ("late answers count for less" in diagnosis.verdict) is (pace is not ALL)
    assert f"about {diagnosis.points[-1].inconsistency_cost:.3g}" in diagnosis.verdict
    assert all(name in diagnosis.verdict for name in KEEPING) and "waiting for all clients" in diagnosis.verdict
    assert above(end(weights="corrected")) < 0.05 * above(ends)
    right = found(pace=fedax.Async(**{**pace.arguments(), "weights": "corrected"}), lr=lr)
    assert right.chi2 < 1e-6 and sentence(right, "bjective").startswith(
        "No objective inconsistency: the answers of all clients"
    )
    assert "corrected" not in right.verdict


def test_speed_costs_little_unless_it_goes_with_the_data():
    """The same speeds, the same χ²: it is unlike data of slow clients that make asynchrony dear."""
    e = np.linspace(-2, 2, N)[:, None] * np.ones(D)
    unlike = found(e=e)
    shuffled = found(e=e, seconds=SECONDS[[4, 9, 0, 5, 8, 1, 6, 3, 2, 7]])
    alike = found(e=H @ np.ones(D), points=[np.zeros(D), np.ones(D)])  # all have the same optimum
    costs = [each.points[-1].inconsistency_cost for each in (unlike, shuffled, alike)]
    assert min(each.chi2 for each in (unlike, shuffled, alike)) > 0.3
    assert costs[1] < 0.25 * costs[0] and costs[2] < 1e-9
    assert "too little to act upon" in sentence(alike, "bjective") and "corrected" not in alike.verdict


HALF = fedax.Async(5, 2, fedax.PolynomialStaleness(0.5), start="idle")


@pytest.mark.parametrize("name, pace", [("fedavg", ALL), ("fedavg", HALF), ("scaffold", HALF)])
def test_equal_speeds_cost_nothing(name, pace):
    diagnosis = found(name, pace, seconds=1.0)
    assert diagnosis.points[-1].inconsistency_cost < 1e-3 * diagnosis.gained
    assert diagnosis.points[-1].arrival_cost < 1e-3 * diagnosis.gained
    assert "corrected" not in diagnosis.verdict and not any(name in diagnosis.take for name in KEEPING)
    assert not any(text.startswith("Objective") and "worth a remedy" in text for text in diagnosis.advice)


CENTRES = np.array([[-1.0], [0.5], [2.0]])
THREE = fedax.FederatedData({"H": np.ones((3, 1, 1)), "e": CENTRES}, [1] * 3, [0.2, 0.3, 0.5])
HYPER = {
    "fedasync": {"mixing": 0.1, "lr": 0.02},
    "ca2fl": {"lr": 0.01},
    "ace": {"lr": 0.02},
    "area": {"lr": 0.01},
    "scaffold": {"lr": 0.02},
    "feddyn": {"lr": 0.1, "alpha": 2.0},
}
# Others have optimizers at the server that scale each of its steps, or have no closed form.
KNOWN = mostly_long(
    ["fedavg", "fednova", "fedbuff", "ca2fl", "ace", "area", "ringmaster", "scaffold", "feddyn", "fedasync",
     "feddualavg", "delayed-nesterov", "slowmo"],
    "fednova", "ca2fl",
)  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_a_run_ends_at_the_optimum_of_the_weights(name):
    """All clients are under way and each answer is a step, so that FedNova has nothing to normalise by."""
    method, task = fedax.create(name, **{"lr": 0.002} | HYPER.get(name, {})), fedax.tasks.quadratic(1)
    given = {"work": fedax.Steps([1, 6, 2]), "pace": fedax.Async(3, 1, start="idle")}
    given["clock"] = fedax.Clock(step=[1.0, 3.0, 4.0])
    w = diagnose(method, task, THREE, **given).weights
    run = fedax.simulate(method, task, THREE, rounds=8000, evaluate_every=8000, **given)
    assert_allclose(run.params, weighted_optimum(np.ones((3, 1, 1)), CENTRES, w), atol=0.01)


def test_what_is_not_known_is_not_claimed():
    """Its mean of control variates is of models that are no longer there, so that it ends elsewhere."""
    given = {"work": fedax.Steps(2), "clock": fedax.Clock(step=[1.0, 3.0, 4.0])}
    for name in ("fednova-vr", "fedavg-m", "fedglomo"):
        method = fedax.create(name, lr=0.01)
        diagnosis = diagnose(method, fedax.tasks.quadratic(1), THREE, pace=fedax.Async(3, 1, start="idle"), **given)
        assert diagnosis.weights is None and "where the server does not wait" in sentence(diagnosis, "bjective")


def test_some_that_are_never_heard_cannot_be_corrected_for():
    """Then a server that knows what each client sent last is named, and waiting."""
    pace = fedax.Async(N, 1, start="idle", max_staleness=8)
    diagnosis = at_its_end(pace=pace)
    assert (diagnosis.arrivals[-2:] == 0).all() and diagnosis.chi2 == np.inf
    assert diagnosis.take == KEEPING[0] and "no pace.max_staleness" in diagnosis.verdict
    assert "wait for all clients of a round" in diagnosis.verdict and "corrected" not in diagnosis.verdict


def test_unequal_work_and_unequal_speed_are_told_apart():
    """Clients that work more are heard less often, so that one may hide the other."""
    steps = [1, 1, 1, 1, 1, 8, 8, 8, 8, 8]
    uniform = at_its_end(pace=fedax.Async(4, 2), steps=steps)  # all start alike: only work is unequal
    x = uniform.points[-1]
    assert x.arrival_cost < 0.05 * x.inconsistency_cost and x.work_cost > 0.5 * x.inconsistency_cost
    assert uniform.verdict.startswith("Keep FedAvg, with equal local steps for all clients, which costs no traffic")
    both = at_its_end(pace=fedax.Async(4, 2, fedax.PolynomialStaleness(1.0)), steps=steps[::-1])
    assert both.verdict.startswith("Keep FedAvg, with equal local steps for all clients") and both.take == ""
    assert "clients take 1 to 8 steps each time" in sentence(both, "bjective")
    scaffold = found("scaffold", steps=steps, lr=0.01)
    assert scaffold.chi2 == 0 and "fednova" not in scaffold.verdict


def test_bad_input():
    given = {"pace": ALL, "clock": fedax.Clock(step=SECONDS)}
    for changes, field in (
        ({"clock": None}, "clock"),
        ({"participation": fedax.Uniform(3)}, "participation"),
        ({"pace": fedax.Async(N + 1, 1, start="idle")}, "pace.concurrency"),
        ({"pace": 3}, "pace"),
    ):
        with pytest.raises(fedax.ConfigError, match=field):
            diagnose(fedax.create("fedavg"), TASK, federation(), **given | changes)
    with pytest.raises(fedax.ConfigError, match="pace"):
        diagnose(fedax.create("mime"), TASK, federation(), **given)
