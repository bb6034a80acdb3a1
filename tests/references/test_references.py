"""The transcriptions obey the closed forms, identities and negative results of the papers (pure NumPy)."""

import numpy as np
import pytest

from . import close
from . import fedavg_family as fed
from . import quadratics as quad

BED = quad.test_bed()
GRADS = BED.grads()
NOISY = BED.minibatch_grads(batch=2)
X0 = np.array([1.0, -2.0, 0.5, 3.0])
LR = 0.1 / BED.L
FAST = 0.3 / BED.L  # for runs to a fixed point
OPTIMUM = BED.optimum()

SOLVERS = {
    "sgd": {},
    "momentum": {"momentum": 0.6},
    "nesterov": {"momentum": 0.6, "nesterov": True},
    "proximal": {"prox": 2.0},
    "decayed": {"decay": 0.8},
    "all": {"momentum": 0.5, "nesterov": True, "prox": 1.0, "decay": 0.9},
}
each_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS.keys())
each_tau_eff = pytest.mark.parametrize("tau_eff", ["default", "ptau", "mean", 2.5])
FEDOPT = {
    "adagrad": (fed.fedadagrad, {"server_lr": 3.0, "beta1": 0.0, "eps": 0.1}),
    "adam": (fed.fedadam, {"server_lr": 0.3, "beta1": 0.5, "beta2": 0.9, "eps": 0.3}),
    "yogi": (fed.fedyogi, {"server_lr": 0.3, "beta1": 0.5, "beta2": 0.9, "eps": 0.3}),
}


def full(method, rounds, *, grads=GRADS, taus=BED.tau, bed=BED, x0=X0, **hyper):
    return method(grads, bed.p, taus, fed.full_cohorts(bed.p, rounds), x0, rounds, **hyper)


def random_taus(r):
    return np.random.default_rng((11, r)).integers(1, 13, size=7)


def random_cohorts(rounds, size=3):
    draws = [np.random.default_rng((12, r)).choice(7, size=size, replace=False) for r in range(rounds)]
    return fed.trace_cohorts(BED.p, draws)


def responses(lr, taus, **solver):
    """Q_i of each client on the test bed, by running the transcription's own solver."""
    return [
        quad.solver_response(H, lambda g, x, t=t: fed.local_solver(g, x, t, lr, **solver))
        for H, t in zip(BED.H, taus, strict=True)
    ]


def norms(lr, taus, **solver):
    return [fed.accumulation_norm(t, lr, **solver) for t in taus]


def error(run):
    return np.linalg.norm(run.iterates[-1] - OPTIMUM)


# The test bed.


def test_bed_is_the_specified_one():
    assert BED.H.shape == (7, 4, 4) and BED.e.shape == (7, 4)
    assert BED.tau.tolist() == [1, 3, 7, 2, 12, 5, 9]
    rows = np.array([len(b) for b in BED.b])
    assert rows.min() >= 6 and rows.max() <= 19
    close(BED.p, rows / rows.sum())
    close(BED.L, max(np.linalg.norm(H, 2) for H in BED.H))


def test_bed_gradients_objective_and_optimum_agree():
    for i, grad in enumerate(GRADS):
        close(grad(X0, 0, 0), BED.A[i].T @ (BED.A[i] @ X0 - BED.b[i]) / len(BED.b[i]))
        numeric = [(quad_loss(i, X0 + 1e-5 * unit) - quad_loss(i, X0 - 1e-5 * unit)) / 2e-5 for unit in np.eye(4)]
        close(grad(X0, 0, 0), numeric, 1e-8)
    close(sum(p * g(OPTIMUM, 0, 0) for p, g in zip(BED.p, GRADS, strict=True)), np.zeros(4))
    assert all(BED.objective(OPTIMUM) < BED.objective(OPTIMUM + 0.01 * v) for v in [*np.eye(4), *-np.eye(4)])
    assert max(np.linalg.norm(g(OPTIMUM, 0, 0)) for g in GRADS) > 0.5  # heterogeneous


def quad_loss(i, x):
    return np.sum((BED.A[i] @ x - BED.b[i]) ** 2) / (2 * len(BED.b[i]))


def test_minibatch_gradients_are_functions_of_client_round_and_step():
    for a, b in [((0, 1), (0, 1)), ((2, 1), (2, 1))]:
        close(NOISY[3](X0, *a), NOISY[3](X0, *b), 0)
    assert np.linalg.norm(NOISY[3](X0, 0, 1) - NOISY[3](X0, 1, 1)) > 1e-3
    assert np.linalg.norm(NOISY[3](X0, 0, 1) - NOISY[3](X0, 0, 2)) > 1e-3
    mean = np.mean([NOISY[3](X0, k, 0) for k in range(4000)], axis=0)
    assert np.linalg.norm(mean - GRADS[3](X0, 0, 0)) < 0.1 * np.linalg.norm(mean)


# Accumulation vectors.


@pytest.mark.parametrize("tau", [1, 2, 5, 17])
def test_accumulation_equals_the_closed_forms(tau):
    lr = 0.05
    cases = [
        ({}, quad.sgd_a(tau), quad.sgd_norm(tau)),
        ({"momentum": 0.9}, quad.momentum_a(tau, 0.9), quad.momentum_norm(tau, 0.9)),
        ({"momentum": 0.9, "nesterov": True}, quad.nesterov_a(tau, 0.9), quad.nesterov_norm(tau, 0.9)),
        ({"prox": 4.0}, quad.proximal_a(tau, 0.2), quad.proximal_norm(tau, 0.2)),
        ({"prox": 20.0}, quad.proximal_a(tau, 1.0), 1.0),
        ({"decay": 0.7}, quad.decayed_a(tau, 0.7), quad.decayed_norm(tau, 0.7)),
    ]
    for solver, vector, norm in cases:
        close(fed.accumulation(tau, lr, **solver), vector)
        close(fed.accumulation_norm(tau, lr, **solver), norm)
        close(quad.recursion_norm(tau, lr, **solver), norm)
    for solver in SOLVERS.values():
        close(fed.accumulation_norm(tau, lr, **solver), quad.recursion_norm(tau, lr, **solver))
    assert quad.momentum_norm(tau, 0.0) == quad.nesterov_norm(tau, 0.0) == tau
    assert quad.proximal_norm(tau, 0.0) == quad.decayed_norm(tau, 1.0) == tau


@each_solver
def test_change_is_minus_lr_times_accumulated_gradients(solver):
    seen = []

    def grad(y, k):
        seen.append(NOISY[2](y, k, 0))
        return seen[-1]

    y = fed.local_solver(grad, X0, 9, LR, **solver)
    close(y - X0, -LR * fed.accumulation(9, LR, **solver) @ np.stack(seen))


def test_solvers_by_hand():
    """Two steps from x = 1 with F = x²/2, η = 0.1: worked out on paper."""

    def run(**solver):
        return float(fed.local_solver(lambda y, k: y, np.float64(1), 2, 0.1, **solver))

    close(run(), 0.81)
    close(run(momentum=0.5), 0.76)  # u: 1, then 0.5 + 0.9
    close(run(momentum=0.5, nesterov=True), 0.85 - 0.1 * (0.85 + 0.5 * 1.35))
    close(run(prox=2.0), 0.83)  # 0.9 − 0.1 (0.9 + 2 (0.9 − 1))
    close(run(decay=0.5), 0.855)
    close(run(momentum=0.5, prox=2.0, decay=0.5), 0.9 - 0.1 * (0.5 * 1.4 - 0.2))


# Cohorts and effective steps.


def test_trace_cohorts_normalise_weights():
    (ids, omegas), (_, alone) = fed.trace_cohorts([0.1, 0.2, 0.3, 0.4], [[3, 1], [2]])
    assert ids == [3, 1]
    close(omegas, [2 / 3, 1 / 3])
    close(alone, [1.0])


def test_a_client_drawn_twice_is_refused():
    with pytest.raises(ValueError, match="drawn twice"):
        fed.fedavg(GRADS, BED.p, BED.tau, [([1, 1], [0.5, 0.5])], X0, 1, lr=LR)


def test_effective_steps_by_hand():
    args = ([0.5, 1.0], [4.0, 1.0], [10, 2])
    close(fed.effective_steps("default", *args), 2.0)
    close(fed.effective_steps("ptau", *args), 14 / 3)
    close(fed.effective_steps("mean", *args), 6.0)
    assert fed.effective_steps(3, *args) == 3.0


# Closed forms of FedAvg and FedProx.


def test_gradient_response_is_the_printed_matrix_and_needs_no_inverse():
    for prox in (0.0, 3.0):
        shifted = BED.H[1] + prox * np.eye(4)
        printed = (np.eye(4) - np.linalg.matrix_power(np.eye(4) - LR * shifted, 7)) @ np.linalg.inv(shifted)
        close(quad.gradient_response(BED.H[1], LR, 7, prox), printed)
    singular = np.diag([0.0, 2.0])
    close(quad.gradient_response(singular, 0.1, 3), np.diag([0.3, (1 - 0.8**3) / 2]))


@pytest.mark.parametrize("prox", [0.0, 3.0])
def test_solver_response_of_sgd_is_the_closed_form(prox):
    for H, t, Q in zip(BED.H, BED.tau, responses(LR, BED.tau, prox=prox), strict=True):
        close(Q, quad.gradient_response(H, LR, int(t), prox))


@pytest.mark.parametrize("prox", [0.0, 3.0])
def test_fedavg_and_fedprox_follow_eq_27(prox):
    iterates = full(fed.fedavg, 25, lr=LR, prox=prox).iterates
    for rounds in (0, 1, 2, 25):
        close(iterates[rounds], quad.fedavg_path(BED, LR, BED.tau, rounds, X0, prox))


@pytest.mark.parametrize("prox", [0.0, 3.0])
def test_fedavg_and_fedprox_end_at_eq_28_and_not_at_the_optimum(prox):
    run = full(fed.fedavg, 200, lr=FAST, prox=prox)
    close(run.iterates[-1], quad.fedavg_fixed_point(BED, FAST, BED.tau, prox), 1e-9)
    assert error(run) > 0.1


def test_more_prox_means_less_bias():
    bias = [np.linalg.norm(quad.fedavg_fixed_point(BED, LR, BED.tau, prox) - OPTIMUM) for prox in (0.0, 3.0, 1 / LR)]
    assert bias[0] > bias[1] > bias[2]
    close(quad.fedavg_fixed_point(BED, LR, BED.tau, 1 / LR), np.linalg.solve(*alpha_one()), 1e-9)


def alpha_one():
    """α = ημ = 1: y_{k+1} = x − ηg(y_k), and Q_i = η Σ_k (−ηH_i)^k has to be worked out anew."""
    matrix, vector = np.zeros((4, 4)), np.zeros(4)
    for p, H, e, t in zip(BED.p, BED.H, BED.e, BED.tau, strict=True):
        Q = LR * sum(np.linalg.matrix_power(-LR * H, k) for k in range(t))
        matrix, vector = matrix + p * Q @ H, vector + p * Q @ e
    return matrix, vector


def test_small_lr_makes_fedavg_optimize_the_surrogate():
    surrogate = BED.optimum(BED.p * BED.tau)
    far, near = (np.linalg.norm(quad.fedavg_fixed_point(BED, lr, BED.tau) - surrogate) for lr in (1e-4, 1e-5))
    close(far / near, 10.0, 0.05)
    assert near < 1e-3 < np.linalg.norm(surrogate - OPTIMUM)


def identity_bed(e, tau):
    one = np.eye(e.shape[1])
    p = np.full(len(e), 1 / len(e))
    return quad.Quadratics(A=(), b=(), H=np.stack([one] * len(e)), e=e, p=p, tau=tau)


def test_fedavg_ends_at_eq_29_and_eq_30():
    e = np.random.default_rng(3).normal(size=(5, 3))
    bed = identity_bed(e, np.array([1, 4, 2, 9, 6]))
    run = full(fed.fedavg, 120, grads=bed.grads(), taus=bed.tau, bed=bed, x0=np.zeros(3), lr=0.1)
    close(run.iterates[-1], quad.identity_fixed_point(e, bed.tau, 0.1, bed.p), 1e-9)
    close(quad.fedavg_fixed_point(bed, 0.1, bed.tau), quad.identity_fixed_point(e, bed.tau, 0.1, bed.p))
    tiny = quad.identity_fixed_point(e, bed.tau, 1e-8, bed.p)
    close(tiny, quad.small_lr_fixed_point(e, bed.tau, bed.p), 1e-6)
    close(quad.small_lr_fixed_point(e, bed.tau, bed.p), (bed.tau @ e) / bed.tau.sum())
    assert np.linalg.norm(tiny - bed.optimum()) > 0.1


def test_lower_bound_example():
    """Lemma 4, a = 3, τ = (2, 6): ‖∇F‖² ends at χ²κ² = 2.25."""
    example = quad.LowerBound(3.0, (2, 6))
    bed = example.federation()
    w = quad.implicit_weights(bed.p, norms(1e-3, bed.tau))
    close(w, [0.25, 0.75])
    close(quad.chi_square(bed.p, w), example.chi_square)
    close(example.chi_square * example.kappa_square, 2.25)
    close(example.limit, -1.5)
    for x in (-1.0, 0.0, 5.0):  # Assumption 3 holds with equality: β² = 1
        g = np.array([x - 3, x + 3])
        close(w @ g**2, (w @ g) ** 2 + example.kappa_square)
    close(quad.fedavg_fixed_point(bed, 1e-9, bed.tau), [example.limit], 1e-7)
    run = full(fed.fedavg, 400, grads=bed.grads(), taus=bed.tau, bed=bed, x0=np.zeros(1), lr=0.02)
    close(run.iterates[-1], quad.identity_fixed_point(bed.e, bed.tau, 0.02, bed.p), 1e-9)
    close(run.iterates[-1] ** 2, [2.25], 0.2)
    nova = full(fed.fednova, 400, grads=bed.grads(), taus=bed.tau, bed=bed, x0=np.ones(1), lr=0.02)
    assert abs(nova.iterates[-1][0]) < 0.2


# FedAvg: identities.


def test_one_step_is_minibatch_sgd():
    x = X0
    path = [x]
    for r in range(20):
        x = x - LR * sum(p * g(x, 0, r) for p, g in zip(BED.p, NOISY, strict=True))
        path.append(x)
    for prox in (0.0, 5.0):
        close(full(fed.fedavg, 20, grads=NOISY, taus=np.ones(7, int), lr=LR, prox=prox).iterates, path)


def test_server_lr_scales_the_first_step_and_keeps_the_fixed_point():
    plain, scaled = (full(fed.fedavg, 150, lr=FAST, server_lr=s).iterates for s in (1.0, 0.7))
    close(scaled[1] - X0, 0.7 * (plain[1] - X0))
    close(scaled[-1], plain[-1], 1e-9)
    assert np.linalg.norm(scaled[5] - plain[5]) > 1e-3


def test_taus_and_rates_may_change_with_the_round():
    table = np.stack([random_taus(r) for r in range(6)])
    close(full(fed.fedavg, 6, taus=table, lr=LR).iterates, full(fed.fedavg, 6, taus=random_taus, lr=LR).iterates)
    run = full(fed.fedavg, 6, taus=table, lr=lambda r: LR / (1 + r)).iterates
    x = X0
    for r in range(6):
        x = full(fed.fedavg, 1, taus=table[r], x0=x, lr=LR / (1 + r)).iterates[1]
        close(run[r + 1], x)


def test_partial_cohorts_average_only_their_clients():
    ids, omegas = [4, 1], [0.3, 1.1]
    run = fed.fedavg(GRADS, BED.p, BED.tau, [(ids, omegas)], X0, 1, lr=LR).iterates
    by_hand = X0 + sum(
        w * quad.gradient_response(BED.H[i], LR, int(BED.tau[i])) @ (BED.e[i] - BED.H[i] @ X0)
        for i, w in zip(ids, omegas, strict=True)
    )
    close(run[1], by_hand)


@each_solver
@pytest.mark.parametrize("method", [fed.fedavg, fed.fednova, fed.fednova_vr])
def test_relabelling_the_clients_changes_nothing(method, solver):
    order = np.array([3, 0, 6, 1, 5, 2, 4])
    cohorts = random_cohorts(8)
    place = np.argsort(order)
    moved = [([int(place[i]) for i in ids], w) for ids, w in cohorts]
    a = method(NOISY, BED.p, BED.tau, cohorts, X0, 8, lr=LR, **solver)
    b = method([NOISY[i] for i in order], BED.p[order], BED.tau[order], moved, X0, 8, lr=LR, **solver)
    close(a.iterates, b.iterates)


@pytest.mark.parametrize("shape", [(), (2, 2)])
def test_parameters_of_any_shape(shape):
    flat = quad.LowerBound(3.0, (2, 6)).federation() if shape == () else BED

    def reshaped(g):
        return lambda x, k, r: g(np.reshape(x, -1), k, r).reshape(shape)

    x0 = X0[:1] if shape == () else X0
    grads = flat.grads()
    for method in (fed.fedavg, fed.fednova, fed.fednova_vr, fed.fednova_vr_literal):
        a = full(method, 3, grads=grads, taus=flat.tau, bed=flat, x0=x0, lr=LR).iterates
        b = full(method, 3, grads=[reshaped(g) for g in grads], taus=flat.tau, bed=flat, x0=x0.reshape(shape), lr=LR)
        close(b.iterates, a.reshape(4, *shape))


# FedNova.


@each_solver
def test_equal_steps_make_fednova_fedavg(solver):
    taus = np.full(7, 6)
    cohorts = [(ids, 1.3 * w) for ids, w in random_cohorts(40)]  # omegas which do not sum to one
    args = (NOISY, BED.p, taus, cohorts, X0, 40)
    close(fed.fednova(*args, lr=LR, **solver).iterates, fed.fedavg(*args, lr=LR, **solver).iterates)


@each_solver
def test_fednova_ends_at_its_closed_form(solver):
    run = full(fed.fednova, 150, lr=FAST, **solver)
    predicted = quad.fednova_fixed_point(BED, responses(FAST, BED.tau, **solver), norms(FAST, BED.tau, **solver))
    close(run.iterates[-1], predicted, 1e-9)


@each_tau_eff
def test_fednova_ends_at_the_same_point_for_every_tau_eff(tau_eff):
    run = full(fed.fednova, 150, lr=FAST, prox=2.0, tau_eff=tau_eff)
    predicted = quad.fednova_fixed_point(BED, responses(FAST, BED.tau, prox=2.0), norms(FAST, BED.tau, prox=2.0))
    close(run.iterates[-1], predicted, 1e-9)


@each_tau_eff
def test_first_step_of_fednova_by_hand(tau_eff):
    """From closed forms only: −τ_eff Σ ω_i Q_i ∇F_i / ‖a_i‖₁ over a cohort whose weights do not sum to one."""
    ids, omegas, prox = [4, 1, 6], [0.3, 1.1, 0.2], 2.0
    a = {i: quad.proximal_norm(int(BED.tau[i]), LR * prox) for i in ids}
    pairs = list(zip(ids, omegas, strict=True))
    steps = {
        "default": sum(w * a[i] for i, w in pairs) / 1.6,
        "ptau": (0.3 * 12 + 1.1 * 3 + 0.2 * 9) / 1.6,
        "mean": 8.0,
        2.5: 2.5,
    }[tau_eff]
    total = sum(
        w / a[i] * quad.gradient_response(BED.H[i], LR, int(BED.tau[i]), prox) @ GRADS[i](X0, 0, 0) for i, w in pairs
    )
    run = fed.fednova(GRADS, BED.p, BED.tau, [(ids, omegas)], X0, 1, lr=LR, prox=prox, tau_eff=tau_eff, server_lr=0.5)
    close(run.iterates[1], X0 - 0.5 * steps * total)


def test_fednova_removes_the_bias_of_unequal_steps_but_not_the_drift():
    def distance(lr):
        a = norms(lr, BED.tau)
        return np.linalg.norm(quad.fednova_fixed_point(BED, responses(lr, BED.tau), a) - OPTIMUM)

    assert 8 < distance(LR) / distance(LR / 10) < 10.5  # O(η)
    assert distance(LR / 1000) < 1e-3 < distance(LR)
    surrogate = np.linalg.norm(BED.optimum(BED.p * BED.tau) - OPTIMUM)
    assert distance(LR) < 0.5 * surrogate


def test_fednova_steps_along_the_gradient_of_the_objective():
    """Whatever the steps of a round, a small step is along Σ p_i ∇F_i, of length η τ_eff."""
    lr = 1e-6
    taus = random_taus(0)
    step = full(fed.fednova, 1, taus=taus, lr=lr).iterates[1] - X0
    gradient = sum(p * g(X0, 0, 0) for p, g in zip(BED.p, GRADS, strict=True))
    close(step / (-lr * (BED.p @ taus)), gradient, 1e-4)


# Server momentum.


@pytest.mark.parametrize("solver", [{}, {"momentum": 0.6}], ids=["server", "hybrid"])
def test_fednova_with_server_momentum(solver):
    args = {"grads": NOISY, "lr": lambda r: LR / (1 + 0.1 * r), **solver}
    close(
        full(fed.fednova_server_momentum, 20, server_momentum=0.0, **args).iterates,
        full(fed.fednova, 20, **args).iterates,
    )
    close(
        full(fed.fednova_server_momentum, 20, server_momentum=0.7, taus=np.full(7, 6), **args).iterates,
        full(fed.slowmo, 20, server_momentum=0.7, taus=np.full(7, 6), **args).iterates,
    )
    close(
        full(fed.fednova_server_momentum, 20, server_momentum=0.7, server_lr=0.8, **args).iterates,
        full(fed.slowmo, 20, server_momentum=0.7, server_lr=0.8, tau_eff="default", **args).iterates,
    )
    run = full(fed.fednova_server_momentum, 150, server_momentum=0.3, lr=FAST, **solver)
    predicted = quad.fednova_fixed_point(BED, responses(FAST, BED.tau, **solver), norms(FAST, BED.tau, **solver))
    close(run.iterates[-1], predicted, 1e-9)


def test_server_momentum_by_hand():
    """A constant gradient 1, one client, one step, η = 1 then 0.5 then 0.5, β = 0.5, server_lr = 0.8."""
    args = ([lambda x, k, r: np.ones_like(x)], [1.0], [1], fed.full_cohorts([1.0], 3), np.zeros(1), 3)
    hyper = {"lr": lambda r: [1.0, 0.5, 0.5][r], "server_momentum": 0.5, "server_lr": 0.8}
    slow = [1.0, 0.5 * 1.5, 0.5 * 1.75]  # η_r u_r
    averaged = [1.0, 0.5 + 0.5, 0.5 + 0.5]  # v_r
    for method in (fed.slowmo, fed.fednova_server_momentum):
        close(method(*args, **hyper).iterates[:, 0], [0, *-0.8 * np.cumsum(slow)])
    close(fed.fedavgm(*args, **hyper).iterates[:, 0], [0, *-0.8 * np.cumsum(averaged)])


@pytest.mark.parametrize("method", [fed.fedavgm, fed.slowmo])
def test_server_momentum_on_fedavg(method):
    fedavg = full(fed.fedavg, 20, grads=NOISY, lr=LR, server_lr=0.8).iterates
    close(full(method, 20, grads=NOISY, lr=LR, server_lr=0.8, server_momentum=0.0).iterates, fedavg)
    run = full(method, 150, lr=FAST, server_momentum=0.5)
    close(run.iterates[-1], quad.fedavg_fixed_point(BED, FAST, BED.tau), 1e-9)


def test_slowmo_is_fedavgm_for_a_constant_rate_only():
    args = {"grads": NOISY, "server_momentum": 0.7, "server_lr": 0.8}
    close(full(fed.slowmo, 20, lr=LR, **args).iterates, full(fed.fedavgm, 20, lr=LR, **args).iterates)
    decaying = [full(m, 20, lr=lambda r: LR / (1 + r), **args).iterates for m in (fed.slowmo, fed.fedavgm)]
    assert np.linalg.norm(decaying[0][-1] - decaying[1][-1]) > 1e-2


# FedOpt.


def test_fedopt_by_hand():
    """A constant Δ̄ = 2 over two rounds: m, v and x worked out on paper."""
    args = ([lambda x, k, r: -2 * np.ones_like(x)], [1.0], [1], fed.full_cohorts([1.0], 2), np.zeros(1), 2)
    hyper = {"lr": 1.0, "server_lr": 0.1, "beta1": 0.5, "eps": 0.25}
    m = np.array([1.0, 1.5])
    v = {
        "adagrad": np.array([4.0625, 8.0625]),
        "adam": np.array([0.9 * 0.0625 + 0.4, 0.81 * 0.0625 + 0.36 + 0.4]),
        "yogi": np.array([0.0625 + 0.4, 0.0625 + 0.8]),
    }
    for name, (method, _) in FEDOPT.items():
        extra = {} if name == "adagrad" else {"beta2": 0.9}
        run = method(*args, **hyper, **extra)
        close(run.iterates[:, 0], [0, *np.cumsum(0.1 * m / (np.sqrt(v[name]) + 0.25))])
        close(run.state["m"], [1.5])
        close(run.state["v"], [v[name][1]])


def test_yogi_lowers_a_second_moment_which_is_too_large():
    args = ([lambda x, k, r: np.ones_like(x)], [1.0], [1], fed.full_cohorts([1.0], 1), np.zeros(1), 1)
    run = fed.fedyogi(*args, lr=1.0, server_lr=0.1, beta1=0.0, beta2=0.9, eps=2.0)
    close(run.state["v"], [4 - 0.1])


@pytest.mark.parametrize("method, hyper", FEDOPT.values(), ids=FEDOPT.keys())
def test_adaptive_servers_end_at_the_fixed_point_of_their_average(method, hyper):
    run = full(method, 200, lr=FAST, **hyper)
    close(run.iterates[-1], quad.fedavg_fixed_point(BED, FAST, BED.tau), 1e-9)
    assert error(run) > 0.1
    nova = full(method, 200, lr=FAST, tau_eff="default", **hyper)
    close(nova.iterates[-1], quad.fednova_fixed_point(BED, responses(FAST, BED.tau), norms(FAST, BED.tau)), 1e-9)


def test_adaptive_servers_on_fednova_equal_those_on_fedavg_for_equal_steps():
    for method, hyper in FEDOPT.values():
        args = {"grads": NOISY, "taus": np.full(7, 6), "lr": LR, **hyper}
        close(full(method, 20, **args).iterates, full(method, 20, tau_eff="default", **args).iterates)


# FedNova-VR.


def vrlsgd(rounds, K, lr, grads):
    """VRLSGD (Liang et al. 2019): x ← x − η(g − Λ_i), Λ_i ← Λ_i + (⟨Δ_j⟩ − Δ_i)/(ηK)."""
    x, duals = X0, np.zeros((7, 4))
    path = [x]
    for r in range(rounds):
        changes = []
        for i in range(7):
            y = x
            for k in range(K):
                y = y - lr * (grads[i](y, k, r) - duals[i])
            changes.append(y - x)
        mean = BED.p @ np.stack(changes)
        duals = duals + (mean - np.stack(changes)) / (lr * K)
        x = x + mean
        path.append(x)
    return np.stack(path)


def test_fednova_vr_is_vrlsgd_for_equal_steps():
    run = full(fed.fednova_vr, 40, grads=NOISY, taus=np.full(7, 6), lr=LR)
    close(run.iterates, vrlsgd(40, 6, LR, NOISY))


VR_SOLVERS = {
    "plain": (1.0, {}),
    "momentum": (0.4, {"momentum": 0.6}),
    "nesterov": (0.4, {"momentum": 0.6, "nesterov": True}),
}


@pytest.mark.parametrize("scale, solver", VR_SOLVERS.values(), ids=VR_SOLVERS.keys())
@pytest.mark.parametrize("taus", [BED.tau, random_taus], ids=["fixed", "random"])
def test_fednova_vr_reaches_the_optimum(taus, scale, solver):
    run = full(fed.fednova_vr, 150, taus=taus, lr=scale * FAST, **solver)
    close(run.iterates[-1], OPTIMUM, 1e-9)
    close(run.state["h"], np.stack([g(OPTIMUM, 0, 0) for g in GRADS]), 1e-9)  # h_i ends at ∇F_i(x*)
    assert error(full(fed.fednova, 150, taus=taus, lr=scale * FAST, **solver)) > 0.03


@pytest.mark.parametrize("scale, solver", VR_SOLVERS.values(), ids=VR_SOLVERS.keys())
def test_fednova_vr_reaches_the_optimum_with_three_of_seven_clients(scale, solver):
    rounds = 300
    run = fed.fednova_vr(GRADS, BED.p, random_taus, random_cohorts(rounds), X0, rounds, lr=scale * FAST, **solver)
    close(run.iterates[-1], OPTIMUM, 1e-9)


@each_solver
def test_fednova_vr_states(solver):
    """h̄ = Σ p_i h_i always; clients never drawn keep h_i = 0; h_i is the normalized raw gradient of its last round."""
    cohorts = fed.trace_cohorts(BED.p, [[0, 2], [2, 4, 5], [5, 0]])
    seen = {}

    def record(i):
        def grad(x, k, r):
            seen.setdefault((i, r), []).append(NOISY[i](x, k, r))
            return seen[(i, r)][-1]

        return grad

    run = fed.fednova_vr([record(i) for i in range(7)], BED.p, BED.tau, cohorts, X0, 3, lr=LR, **solver)
    h = run.state["h"]
    close(run.state["h_mean"], BED.p @ h)
    close(h[[1, 3, 6]], np.zeros((3, 4)), 0)
    for i, last in [(0, 2), (2, 1), (4, 1), (5, 2)]:
        a = fed.accumulation(BED.tau[i], LR, **solver)
        close(h[i], a @ np.stack(seen[(i, last)]) / a.sum())


def test_fednova_vr_first_round_is_fednova_and_a_warm_start_corrects_it():
    close(full(fed.fednova_vr, 1, lr=LR).iterates, full(fed.fednova, 1, lr=LR).iterates)
    warm = full(fed.fednova_vr, 1, x0=OPTIMUM, lr=LR, h0=[g(OPTIMUM, 0, 0) for g in GRADS])
    close(warm.iterates[1], OPTIMUM)
    assert np.linalg.norm(full(fed.fednova_vr, 1, x0=OPTIMUM, lr=LR).iterates[1] - OPTIMUM) > 1e-3


def test_fednova_vr_keeps_the_mean_of_any_warm_start():
    h0 = np.random.default_rng(5).normal(size=(7, 4))
    run = fed.fednova_vr(NOISY, BED.p, BED.tau, random_cohorts(2), X0, 2, lr=LR, h0=h0)
    close(run.state["h_mean"], BED.p @ run.state["h"])


@pytest.mark.parametrize("scale, solver", [(1.0, {}), (0.4, {"momentum": 0.6})], ids=["plain", "momentum"])
def test_algorithm_2_to_the_letter_stalls_half_way(scale, solver):
    literal = error(full(fed.fednova_vr_literal, 200, lr=scale * LR, **solver))
    uncorrected = error(full(fed.fednova, 200, lr=scale * LR, **solver))
    assert 0.4 < literal / uncorrected < 0.7


def test_algorithm_2_to_the_letter_agrees_for_two_rounds_only():
    """c_i differs first in the third round, where the literal d_i still holds the correction of the second."""
    letter, specified = (full(m, 3, lr=LR, momentum=0.6).iterates for m in (fed.fednova_vr_literal, fed.fednova_vr))
    close(letter[:3], specified[:3])
    assert np.linalg.norm(letter[3] - specified[3]) > 1e-3
    with pytest.raises(ValueError, match="all clients"):
        fed.fednova_vr_literal(GRADS, BED.p, BED.tau, random_cohorts(1), X0, 1, lr=LR)


def test_much_momentum_needs_a_smaller_rate():
    def last(lr, rounds=60):
        return np.linalg.norm(full(fed.fednova_vr, rounds, lr=lr, momentum=0.9).iterates[-1])

    assert last(0.5 / BED.L) > 1e3
    assert last(0.05 / BED.L) < 10
    assert error(full(fed.fednova_vr, 60, lr=0.5 / BED.L)) < 1
