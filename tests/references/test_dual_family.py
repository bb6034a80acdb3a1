"""The transcriptions of dual averaging and local adaptivity obey their published identities and fixed points."""

import numpy as np
import pytest

from . import close
from . import dual_family as dual
from . import fedavg_family as fed
from . import momentum_family as mom
from . import quadratics as quad
from . import recursive_family as rec

BED = quad.test_bed()
X0, LR = np.array([1.0, -2.0, 0.5, 3.0]), 0.1 / BED.L
ONES, EQUAL, TAU = np.full(7, 1), np.full(7, 4), BED.tau
FULL, NOISY = BED.grads(), BED.minibatch_grads(batch=2)
SAME, SLOPES = [FULL[2]] * 7, np.random.default_rng(3).normal(size=(7, 4))
ALL = fed.full_cohorts(BED.p, 480)
PART = fed.trace_cohorts(BED.p, [np.random.default_rng((1, r)).choice(7, 3, replace=False) for r in range(12)])
PART = [(ids, 3 * w) for ids, w in PART]  # means of states and of dual steps divide by the sum of the weights
PSI = [dual.L1(0.3), dual.ElasticNet(0.2, 0.05), dual.NonNegative(), dual.L1Ball(0.4), dual.L2Ball(0.3)]
PSI += [dual.Simplex(0.8), dual.Box(np.array([-0.1, -0.2, 0.0, -0.3]), np.array([0.5, 0.1, 0.1, 0.4]))]
VARIANTS = [{"gradient": g, "metric": m} for g in ("mvr", "momentum") for m in ("coordinate", "norm")]
RULES = {"alpha": lambda t: 0.8 / (1 + 0.1 * t), "lr": lambda t: LR / (1 + 0.1 * t), "warmup_batches": 3}
LONG, ADAM = {"taus": ONES, "rounds": 48}, {"lr": 0.02, "beta1": 0.7, "beta2": 0.9, "eps": 0.05}
RATES = {"lr": lambda r: LR / (1 + r), "server_lr": lambda r: 0.3 + 0.1 * r}
each_psi = pytest.mark.parametrize("psi", PSI, ids=lambda psi: type(psi).__name__)
each_psi_or_none = pytest.mark.parametrize("psi", [None, *PSI], ids=lambda psi: type(psi).__name__)


def run(method, grads=NOISY, taus=EQUAL, cohorts=ALL, rounds=12, **hyper):
    return method(grads, BED.p, taus, cohorts, X0, rounds, **{"lr": LR, **hyper})


def linear(points, slopes=SLOPES):
    """Gradients that are slopes[i] everywhere; the points of evaluation are recorded by (client, step, round)."""
    return [lambda x, k, r, e=0, i=i: (points.setdefault((i, k, r), []).append(x), slopes[i])[1] for i in range(7)]


@pytest.mark.parametrize("h", [1.0, np.array([0.01, 3.0, 40.0, 0.7])])
@each_psi
def test_step_obeys_the_variational_inequality(psi, h):
    """⟨h (u − x), y − x⟩ ≤ s (ψ(y) − ψ(x)) for all y of X, its farthest point along h (u − x) among them."""
    rng = np.random.default_rng(0)
    for size in (0.05, 1.0, 30.0):
        u, s = size * rng.normal(size=4), rng.uniform(0.1, 2)
        x = psi.step(u, h, s)
        force = h * (u - x)
        for far in [x + 1e3 * force, *(100 * np.eye(4)), *(-100 * np.eye(4)), *size * rng.normal(size=(30, 4))]:
            y = psi.step(far, 1.0, 0.0)
            assert force @ (y - x) <= s * (psi.psi(y) - psi.psi(x)) + 1e-10 * (1 + force @ force)
            assert psi.psi(y) < np.inf


@each_psi_or_none
def test_fedda_of_one_step_is_fedda_distributed_and_alpha_one_leaves_one_gradient_rule(psi):
    metric = {"cohorts": PART, "b": 0.7, "eps": 0.4, "h0": 0.2, "lam": 0.6, "regularizer": psi}
    for variant in VARIANTS:
        hyper = {"taus": ONES, **metric, **variant, **RULES, "h0": "warmup"}
        left, right = run(dual.fedda, **hyper), run(dual.fedda_distributed, **hyper)
        close(left, right)
        close([left.state[name] for name in "vqh"], [right.state[name] for name in "vqh"], 1e-11)
    for kind in ("coordinate", "norm"):
        close(*(run(dual.fedda, gradient=g, metric=kind, alpha=1.0, **metric) for g in ("mvr", "momentum")))


@pytest.mark.parametrize("metric", ["coordinate", "norm"])
def test_special_cases_are_stem_fedavg_m_and_fedavg(metric):
    fixed = {"metric": metric, "b": 1.0, "eps": 0.1, "h0": 0.3, "lam": 0.4}  # H/λ = I
    close(run(dual.fedda, cohorts=PART, **fixed, **RULES), run(rec.stem, cohorts=PART, **RULES))
    late = [lambda x, k, r, g=g: g(x, k, r - 1) if r else np.zeros(4) for g in NOISY]
    left = run(dual.fedda, taus=ONES, alpha=0.3, gradient="momentum", **fixed)
    close(left, run(mom.fedavg_m, late, ONES, beta=0.3))  # the estimate is one round behind
    left, right = (run(dual.fedda, SAME, gradient="momentum", **fixed, **RULES, **work) for work in ({}, LONG))
    close(left, right.iterates[::4])
    for method in (dual.feddualavg, dual.proximal_fedavg):
        close(*(run(f, taus=TAU, cohorts=PART, **RATES) for f in (method, fed.fedavg)))


@pytest.mark.parametrize("h0", [0.0, 0.5, "warmup"])
@pytest.mark.parametrize("variant", VARIANTS)
@each_psi_or_none
def test_fedda_on_linear_losses(variant, psi, h0):
    """All gradients are c: z̄ = −(Σ η_t) c with the round's rates, q of (z̄/η_last)² or ‖z̄‖/η_last, s = Σ η_t."""
    c, points, lam, b, eps = SLOPES[0], {}, 0.7, 0.6, 0.3
    hyper = {"lam": lam, "b": b, "eps": eps, "h0": h0, "regularizer": psi, **variant, **RULES}
    out = run(dual.fedda, linear(points, [c] * 7), cohorts=PART, **hyper)
    x, norm = X0, variant["metric"] == "norm"
    q = {0.0: np.zeros(4), 0.5: np.full(4, 0.5 if norm else 0.25), "warmup": np.sqrt(c @ c) if norm else c * c}[h0]
    for r in range(12):
        h = eps + (q if norm else np.sqrt(q))
        sums = np.cumsum([RULES["lr"](4 * r + k) for k in range(4)])
        ys = [x] + [dual._prox(psi, x - lam * s * c / h, h, lam * s) for s in sums]
        for i in PART[r][0]:
            close([points[i, k, r] for k in range(4)], [[ys[k + 1], ys[k]] for k in range(4)])
        z = sums[-1] / RULES["lr"](4 * r + 3) * c
        q = b * q + (1 - b) * (np.sqrt(z @ z) if norm else z * z)
        x = ys[-1]
        close(out.iterates[r + 1], x)


def residual(x, grads, psi):
    """How far a proximal step of the whole objective carries x: zero at the optimum of F + ψ over X alone."""
    return x - dual._prox(psi, x - LR * sum(p * g(x, 0, 0) for p, g in zip(BED.p, grads, strict=True)), 1.0, LR)


@each_psi_or_none
def test_one_step_ends_at_the_constrained_optimum(psi):
    hyper = {"taus": ONES, "rounds": 240, "lr": 5 * LR, "regularizer": psi}
    adaptive = {"alpha": 0.5, "b": 0.5, "eps": 1.0, "warmup_batches": 1, **hyper}
    ends = [run(dual.fedda_distributed, FULL, **variant, **adaptive) for variant in VARIANTS]
    if not isinstance(psi, dual.ElasticNet | dual.L2Ball):  # whose curvature grows with s or ‖z‖: steps of 1/r
        ends.append(run(dual.feddualavg, FULL, **hyper))
    close([residual(end.iterates[-1], FULL, psi) for end in ends], 0, 1e-9)


def test_feddualavg_with_equal_hessians_ends_at_the_lasso_solution():
    grads = [lambda x, k, r, e=0, b=b: BED.H[0] @ x - b for b in BED.e]
    x = run(dual.feddualavg, grads, rounds=480, regularizer=PSI[0]).iterates[-1]  # lr so small that no sign changes
    assert 0 < np.count_nonzero(x) < 4
    close(residual(x, grads, PSI[0]), 0, 1e-10)


@each_psi
def test_feddualavg_on_linear_losses(psi):
    points, z, s = {}, X0, 0.0
    out = run(dual.feddualavg, linear(points), TAU, PART, regularizer=psi, **RATES)
    for r, (ids, omegas) in enumerate(PART):
        lr = RATES["lr"](r)
        for i in ids:
            ys = [psi.step(z - k * lr * SLOPES[i], 1.0, s + k * lr) for k in range(TAU[i])]
            close([points[i, k, r][0] for k in range(TAU[i])], ys)
        weights = RATES["server_lr"](r) * omegas * TAU[ids] * lr
        z, s = z - weights @ SLOPES[ids], s + weights.sum()
        close(out.iterates[r + 1], psi.step(z, 1.0, s))


@each_psi
def test_rounds_of_identical_clients_leave_no_trace(psi):
    dualavg, near = (run(f, SAME, regularizer=psi) for f in (dual.feddualavg, dual.proximal_fedavg))
    close(dualavg, run(dual.feddualavg, SAME, regularizer=psi, **LONG).iterates[::4])
    fixed = {"alpha": 0.3, "b": 1.0, "eps": 0.4, "lam": 0.4, "warmup_batches": 1}
    close(near, run(dual.fedda, SAME, regularizer=psi, **fixed, **LONG).iterates[::4])


def test_local_adapt_is_fedadam_with_adam_steps_at_the_clients():
    def client(g, seen):
        def direction(x, k, r):
            seen[:] = [*seen[:k], g(x, k, r)]
            age = np.arange(k, -1, -1)[:, None]
            m, v = (((1 - b) * b**age * np.array(seen) ** n).sum(0) for n, b in ((1, 0.7), (2, 0.9)))
            return m / (np.sqrt(v) + 0.05)

        return direction

    hyper = {"taus": TAU, "cohorts": PART, "server_lr": 0.3, **ADAM}
    close(run(dual.local_adapt, **hyper), run(fed.fedadam, [client(g, []) for g in NOISY], **hyper))


@pytest.mark.parametrize("correction", ["local", "joint"])
def test_corrections_of_local_adapt_on_linear_losses(correction):
    """P_j has the weight 1 − β₁^{τ−j} in C_i, as of the gradient j, and 1 − β₁^{j+1} in Δ_i, as of the step j."""
    j, tau, c = np.arange(12)[:, None, None], TAU[:, None], SLOPES
    P = (j < tau) / (np.sqrt(1 - 0.9 ** (j + 1)) * np.abs(c) + 0.05)
    C = (P * (1 - 0.7 ** np.maximum(tau - j, 0))).sum(0)
    change = (P * (1 - 0.7 ** (j + 1))).sum(0) * c / C / (BED.p @ (1 / C) if correction == "joint" else 1)
    left = run(dual.local_adapt, linear({}), TAU, correction=correction, server_lr=0.3, **ADAM)
    close(left, run(fed.fedadam, linear({}, change), ONES, server_lr=0.3, **ADAM))


@pytest.mark.parametrize("lag", [False, True])
def test_local_amsgrad_on_linear_losses(lag):
    """After n steps of a client m = (1−β₁ⁿ)c and v = (1−β₂ⁿ)c², whatever the rounds; v̂ changes at their ends."""
    out = run(dual.local_amsgrad, linear({}), TAU, PART, lag=lag, **ADAM)
    x, v_hat, done = X0, np.full(4, 0.05), np.zeros(7, int)
    for r, (ids, omegas) in enumerate(PART):
        old = v_hat
        done[ids] += TAU[ids]
        v_hat = np.maximum(old, omegas / 3 @ ((1 - 0.9 ** done[ids, None]) * SLOPES[ids] ** 2))
        for i, w in zip(ids, omegas, strict=True):
            m = 1 - 0.7 ** np.arange(done[i] - TAU[i] + 1, done[i] + 1)
            last = m[-1] / np.sqrt(old if lag else v_hat)
            x = x - w * 0.02 * SLOPES[i] * (m[:-1].sum() / np.sqrt(old) + last)
        close(out.iterates[r + 1], x)


@pytest.mark.parametrize("lag", [False, True])
@pytest.mark.parametrize(("grads", "K"), [(SAME, 4), (NOISY, 1)])
def test_local_amsgrad_of_identical_clients_or_one_step_is_amsgrad(grads, K, lag):
    x, m, v, v_hat = X0, np.zeros(4), np.zeros(4), np.full(4, 0.05)
    for t in range(12 * K):
        g = np.array([grad(x, t % K, t // K) for grad in grads])
        m, v = 0.7 * m + 0.3 * BED.p @ g, 0.9 * v + 0.1 * BED.p @ g**2
        new = np.maximum(v_hat, v) if t % K == K - 1 else v_hat
        x = x - 0.02 * m / np.sqrt(v_hat if lag else new)
        v_hat = new
    close(run(dual.local_amsgrad, grads, np.full(7, K), lag=lag, **ADAM).iterates[-1], x)
