"""Methods with a model for each client, and q-FedAvg: where they end, and what they are equal to."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.contract.local import local_steps
from tests.references import personal_family as own

from .bed import (
    BED,
    COHORTS,
    DATA,
    LR,
    QUADRATIC,
    ROUNDS,
    UNEQUAL,
    X0,
    AnySteps,
    federation,
    finished,
    limit,
    model_of,
    path,
    programs_of,
    reference_path,
)

H, E, P = BED.H, BED.e, BED.p
N, D = E.shape
FAST = float(0.3 / BED.L)
UNIFORM = fedax.Uniform(3)


def solved(lam, x):
    """The minimiser of F_i(v) + λ/2 ‖v − x‖² of each client, [N, d]."""
    return np.stack([np.linalg.solve(h + lam * np.eye(D), e + lam * x) for h, e in zip(H, E, strict=True)])


def joint(lam):
    """v_i and x with ∇F_i(v_i) + λ (v_i − x) = 0 and x = Σ p_i v_i: what pFedMe minimises."""
    inverse = [np.linalg.inv(h + lam * np.eye(D)) for h in H]
    a = np.eye(D) - lam * np.einsum("n,nij->ij", P, inverse)
    b = sum(p * inv @ e for p, inv, e in zip(P, inverse, E, strict=True))
    x = np.linalg.solve(a, b)
    return solved(lam, x), x


class PullToOwn(fedax.Algorithm):
    """Ditto as it is not: personal models pulled to the client's y in place of x."""

    lr: float
    personal_lr: float
    lam: float

    def init(self, x):
        return x

    def init_client(self, x):
        return x

    def client(self, x, memory, oracle):
        y = local_steps(lambda y, k: y - self.lr * oracle.grad(y, k), x, oracle)
        pulled = lambda v, k: v - self.personal_lr * (oracle.grad(v, k) + self.lam * (v - y))  # noqa: E731
        return y - x, local_steps(pulled, memory, oracle)

    def server(self, server, mean, round):
        return server + mean


def test_dittos_shared_model_is_fedavgs():
    for options in ({}, {"participation": UNIFORM}):
        ditto = path(fedax.create("ditto", lr=LR, personal_lr=FAST, lam=0.7), **options)
        np.testing.assert_allclose(ditto, path(fedax.create("fedavg", lr=LR), **options), rtol=0, atol=1e-12)


@pytest.mark.parametrize("steps", [1, 5])
def test_dittos_personal_models_end_at_the_pulled_optimum(steps):
    x, v = finished(fedax.create("ditto", lr=FAST, personal_lr=FAST / 2, lam=0.5), 3000, work=AnySteps(steps))
    np.testing.assert_allclose(v.tree, solved(0.5, x), atol=1e-10)
    if steps > 1:
        _, wrong = finished(PullToOwn(FAST, FAST / 2, 0.5), 3000, work=AnySteps(steps))
        assert np.abs(wrong.tree - solved(0.5, x)).max() > 1e-2


def test_ditto_without_a_pull_is_training_alone():
    _, v = finished(fedax.create("ditto", lr=LR, personal_lr=FAST, lam=0.0), 20)
    for i in range(N):
        y = X0
        for _ in range(20 * BED.tau[i]):
            y = y - FAST * (H[i] @ y - E[i])
        np.testing.assert_allclose(v.tree[i], y, atol=1e-12)


def test_a_strong_pull_is_the_shared_model():
    x, v = finished(fedax.create("ditto", lr=LR, personal_lr=1e-6, lam=1e6), 2000)
    np.testing.assert_allclose(v.tree, np.broadcast_to(x, (N, D)), atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"participation": UNIFORM}], ids=["all", "cohorts"])
@pytest.mark.parametrize("steps", [1, 7])
def test_mr_mtl_ends_at_pfedmes_optimum_for_any_steps_and_cohorts(steps, options):
    x, v = finished(fedax.create("mr-mtl", lr=FAST, lam=0.4), 6000, work=AnySteps(steps), **options)
    models, mean = joint(0.4)
    np.testing.assert_allclose(x, mean, atol=1e-10)
    np.testing.assert_allclose(v.tree, models, atol=1e-10)


class MeanOfTheDrawn(fedax.Algorithm):
    """MR-MTL as it is not: the shared model is the mean of the models of those who were drawn."""

    lr: float
    lam: float

    def init(self, x):
        return x

    def init_client(self, x):
        return x

    def client(self, x, memory, oracle):
        v = local_steps(lambda v, k: v - self.lr * (oracle.grad(v, k) + self.lam * (v - x)), memory, oracle)
        return v, v

    def server(self, server, mean, round):
        return mean / round.total


def test_the_mean_of_the_drawn_would_be_another_method():
    x = limit(MeanOfTheDrawn(FAST, 0.4), 6000, participation=UNIFORM)
    assert np.abs(x - joint(0.4)[1]).max() > 1e-2


def test_mr_mtls_shared_model_is_the_mean_of_all():
    x, v = finished(fedax.create("mr-mtl", lr=FAST, lam=0.4), 5, participation=UNIFORM)
    np.testing.assert_allclose(x, P @ v.tree, atol=1e-12)


def test_ifca_of_one_cluster_is_fedavg():
    np.testing.assert_allclose(
        path(fedax.create("ifca", lr=LR, clusters=1)), path(fedax.create("fedavg", lr=LR)), atol=1e-12
    )


# Two groups whose optima are far apart: with the models of two clients, one of each.
TWO_E = np.concatenate([E[:1] + 30.0 + 0.1 * E[:3], E[:1] - 30.0 + 0.1 * E[3:6]])
TWO_H = np.concatenate([H[:3], H[3:6]])
TWO = federation(TWO_H, TWO_E, np.full(6, 1 / 6))


class AllDivide(fedax.Algorithm):
    """IFCA as it is not (option I's divisor with option II's update): by all participants."""

    of: fedax.Algorithm

    def init(self, x):
        return self.of.init(x)

    def init_client(self, x):
        return self.of.init_client(x)

    def download(self, server):
        return self.of.download(server)

    def model(self, server):
        return self.of.model(server)

    def client(self, download, memory, oracle):
        return self.of.client(download, memory, oracle)

    def warmup(self):
        return self.of.warmup()

    def server(self, server, mean, round):
        return server._replace(models=server.models + mean.dx, shares=mean.chosen)


def groups(seed, method):
    """The models of a run on the two groups, and who chose which."""
    run = fedax.simulate(
        method, fedax.tasks.quadratic(D), TWO, rounds=1, params=np.zeros(D), work=fedax.Steps(5), seed=seed
    )
    return np.asarray(run.state.models.tree), np.asarray(run.memory)


def apart(method):
    """A seed with which the clusters begin at a client of each group."""
    return next(s for s in range(20) if {*groups(s, method)[1][:3]}.isdisjoint(groups(s, method)[1][3:]))


def test_ifca_finds_two_groups_and_each_groups_fixed_point():
    method = fedax.create("ifca", lr=FAST, clusters=2)
    options = {"params": np.zeros(D), "work": fedax.Steps(5), "seed": apart(method)}
    run = fedax.simulate(method, fedax.tasks.quadratic(D), TWO, rounds=3000, evaluate_every=3000, **options)
    chosen = np.asarray(run.memory)
    assert len({*chosen[:3]}) == len({*chosen[3:]}) == 1 and chosen[0] != chosen[3]
    wrong = fedax.simulate(AllDivide(method), fedax.tasks.quadratic(D), TWO, rounds=1, **options)
    right = fedax.simulate(method, fedax.tasks.quadratic(D), TWO, rounds=1, **options)
    assert np.abs(np.asarray(wrong.state.models.tree) - np.asarray(right.state.models.tree)).max() > 1e-2
    for rows in (slice(0, 3), slice(3, 6)):
        alone = federation(TWO_H[rows], TWO_E[rows], np.full(3, 1 / 3))
        end = limit(fedax.create("fedavg", lr=FAST), 3000, data=alone, params=np.zeros(D), work=fedax.Steps(5))
        model = np.asarray(run.state.models.tree)[chosen[rows.start]]
        np.testing.assert_allclose(model, end, atol=1e-8)
        for i in range(rows.start, rows.stop):
            np.testing.assert_allclose(run.personal(i), end, atol=1e-8)


def test_an_empty_cluster_stays_as_it_is():
    method = fedax.create("ifca", lr=0.1, clusters=2)
    server = method.init(fedax.Vector(jnp.arange(3.0)))
    upload = fedax.algorithms.personal.IFCAUpload(
        fedax.Vector(jnp.stack([jnp.ones(3) * 0.5, jnp.zeros(3)])), jnp.array([0.5, 0.0])
    )
    after = method.server(server, upload, None)
    np.testing.assert_allclose(after.models.tree, [[1.0, 2.0, 3.0], [0.0, 1.0, 2.0]])


def test_q_fedavg_with_q_0_is_fedavg():
    # The divisor needs losses: the quadratics' own are negative, and with q = 0 they count for nothing.
    np.testing.assert_allclose(
        path(fedax.create("q-fedavg", lr=LR, q=0.0)), path(fedax.create("fedavg", lr=LR)), atol=1e-12
    )


@pytest.mark.parametrize(("q", "end"), [(0.0, -0.6), (1.0, -0.22702), (5.0, -0.06293)])
def test_q_fedavg_ends_where_the_power_of_the_losses_is_least(q, end):
    """F = ½ (x ± 1)² with weights .8 and .2: (1 + x)/(1 − x) = (p₂/p₁)^(1/(2q + 1))."""
    task = fedax.Task(lambda key: jnp.zeros(()), lambda x, batch, key: 0.5 * (x - batch["a"]) ** 2)
    data = fedax.FederatedData({"a": np.array([-1.0, 1.0])}, [1, 1], np.array([0.8, 0.2]))
    run = fedax.simulate(
        fedax.create("q-fedavg", lr=0.01, q=q), task, data, rounds=4000, evaluate_every=4000, work=fedax.Steps(1)
    )
    x = float(run.params)
    assert x == pytest.approx(end, abs=2e-5)
    assert (1 + x) / (1 - x) == pytest.approx(0.25 ** (1 / (2 * q + 1)), abs=1e-9)


@pytest.mark.parametrize("cohorts", [None, COHORTS], ids=["all", "cohorts"])
def test_ifca_of_three_clusters_is_its_reference(cohorts):
    """From the models that its warm-up makes, each of which is one client's local steps."""
    method = fedax.create("ifca", lr=LR, clusters=3)
    participation = fedax.Full() if cohorts is None else fedax.Trace(cohorts)
    programs = programs_of(method, QUADRATIC, DATA, ROUNDS, X0, UNEQUAL, participation=participation)
    state = programs.prepare()[0]
    starts = np.array(state.server.models.tree)
    alone = {i: own.local_solver(lambda y, k, i=i: H[i] @ y - E[i], X0, BED.tau[i], LR) for i in range(N)}
    begun = [next(i for i, y in alone.items() if np.allclose(y, start, atol=1e-12)) for start in starts]
    assert len({*begun}) == 3
    models = []
    for index in range(ROUNDS):
        state, _ = programs.advance(state, index, index + 1)
        models.append(model_of(programs, state, index + 1))
    expected = reference_path(own.ifca, cohorts, lr=LR, clusters=3, starts=starts)
    np.testing.assert_allclose(models, expected[1:], atol=1e-10)


def test_q_fedavg_stays_where_it_is_after_a_cohort_without_weight():
    data = fedax.data.quadratics(clients=3, dimension=2, seed=1).with_weights(np.array([0.0, 0.5, 0.5]))
    paths = [
        fedax.simulate(
            fedax.create("q-fedavg", lr=0.1), fedax.tasks.quadratic(2), data, rounds=len(cohorts),
            participation=fedax.Trace(cohorts), work=fedax.Steps(2),
        ).params
        for cohorts in ([[1]], [[0], [1]])
    ]  # fmt: skip
    np.testing.assert_allclose(paths[1], paths[0], rtol=1e-6)


def test_ditto_has_one_rate_unless_told_otherwise():
    cases = (
        (fedax.create("ditto", lr=LR, lam=0.7), fedax.create("ditto", lr=LR, personal_lr=LR, lam=0.7)),
        (fedax.create("ditto", solver=fedax.SGD(LR)), fedax.create("ditto", solver=fedax.SGD(LR), personal_lr=LR)),
    )
    for one, other in cases:
        (x, v), (y, w) = finished(one, 5), finished(other, 5)
        np.testing.assert_array_equal(x, y)
        np.testing.assert_array_equal(v.tree, w.tree)
