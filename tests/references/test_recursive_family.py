"""The transcriptions of the recursive and Mime methods obey their published identities and fixed points (NumPy)."""

import numpy as np
import pytest

from . import close
from . import fedavg_family as fed
from . import quadratics as quad
from . import recursive_family as rec

BED = quad.test_bed()
X0 = np.array([1.0, -2.0, 0.5, 3.0])
LR = 0.1 / BED.L
ONES, EQUAL, TAU = np.full(7, 1), np.full(7, 4), BED.tau
CHOSEN = np.random.default_rng(5).choice(7, size=400, p=BED.p)
FULL, MINIBATCH = BED.grads(), BED.minibatch_grads(batch=2)


def clients(minibatch):
    return [lambda x, k, *r, i=i: FULL[i](x, 0, 0) if k is None else minibatch(i, x, k, *r) for i in range(7)]


def shifted(i, x, k, r, e=0):
    return FULL[i](x, 0, 0) + (r >= 0) * np.random.default_rng((i, k, r + 1, e)).normal(size=4)


EXACT = clients(lambda i, x, *_: FULL[i](x, 0, 0))
NOISY = clients(lambda i, x, k, r, e=0: MINIBATCH[i](x, k, 2 * (r + 1) + e))
SHIFTED = clients(shifted)
SAME = [EXACT[2]] * 7
ALL = fed.full_cohorts(BED.p, 12)
PART = fed.trace_cohorts(BED.p, [np.random.default_rng((1, r)).choice(7, 3, replace=False) for r in range(12)])
ALL_THEN_PART = ALL[:1] + PART[1:]


def run(method, grads=NOISY, taus=EQUAL, cohorts=ALL, rounds=12, **hyper):
    cohorts = fed.full_cohorts(BED.p, rounds) if rounds > 12 else cohorts
    return method(grads, BED.p, taus, cohorts, X0, rounds, **{"lr": LR, **hyper})


WARM = {"warmup_batches": 3}
METHODS = {
    "mb_storm": (rec.mb_storm, {"beta": 0.3, **WARM}),
    "ce_lsgd-random": (rec.ce_lsgd, {"beta": 0.3, "chosen": CHOSEN, **WARM}),
    "ce_lsgd-average": (rec.ce_lsgd, {"beta": 0.3, "pick": "average", **WARM}),
    "bvr-random": (rec.bvr_l_sgd, {"period": 3, "chosen": CHOSEN}),
    "bvr-average": (rec.bvr_l_sgd, {"period": 3, "pick": "average"}),
    "stem-averaged": (rec.stem, {"alpha": 0.3, **WARM}),
    "stem-local": (rec.stem, {"alpha": 0.3, "prev": "local", **WARM}),
    "fedglomo": (rec.fedglomo, {"beta": 0.3}),
    "mime-sgd": (rec.mime, {}),
    "mime-momentum": (rec.mime, {"base": "momentum", "momentum": 0.7}),
    "mime-adam": (rec.mime, {"base": "adam", "beta1": 0.5, "beta2": 0.9, "eps": 1.0}),
    "mimelite-sgd": (rec.mime, {"lite": True}),
    "mime_mvr": (rec.mime_mvr, {"alpha": 0.3}),
    "mime_mvr-current": (rec.mime_mvr, {"alpha": 0.3, "ref": "current"}),
    "mimelite_mvr": (rec.mime_mvr, {"alpha": 0.3, "lite": True}),
}
NOT_LOCAL_SGD = ("mb_storm", "mime-momentum", "mime-adam", "mime_mvr-current")
# Without the weight of the newest gradient, nothing but differences of gradients has noise in these.
NO_NEW = {n: {k: 0.0} for n in METHODS for k in ("alpha", "beta") if k in METHODS[n][1]}
NO_NEW = {**NO_NEW, "fedglomo": {}, "mime_mvr": {}, "mime_mvr-current": {}, "bvr-random": {}, "mime-adam": {}}


@pytest.mark.parametrize("name", [n for n in METHODS if n not in NOT_LOCAL_SGD])
def test_identical_clients_and_full_gradients_give_fedavg(name):
    method, hyper = METHODS[name]
    cohorts = ALL if name == "stem-local" else PART  # a client's last round may be long ago
    close(run(method, SAME, cohorts=cohorts, **hyper), run(fed.fedavg, SAME, cohorts=cohorts))


@pytest.mark.parametrize("name", [n for n in METHODS if not n.startswith(("stem", "fedglomo", "mimelite"))])
def test_optimum_is_the_fixed_point(name):
    """With full gradients; at the optimum BVR-L-SGD and Mime have no noise from minibatches either."""
    method, hyper = METHODS[name]
    taus = EQUAL if method is rec.mime_mvr else TAU
    close(run(method, EXACT, taus, rounds=240, **{**hyper, "lr": 4 * LR}).iterates[-1], BED.optimum(), 1e-9)
    if name.startswith(("bvr", "mime")):
        close(run(method, rounds=150, **{**hyper, "lr": 2 * LR}).iterates[-1], BED.optimum(), 1e-9)


@pytest.mark.parametrize("name", NO_NEW)
def test_both_points_of_a_difference_have_the_same_minibatch(name):
    """Noise that is the same at every point leaves no trace."""
    method, hyper = METHODS[name]
    noisy, exact = (run(method, g, cohorts=PART, **{**hyper, **NO_NEW[name]}) for g in (SHIFTED, EXACT))
    close(noisy, exact)


def batches(r, e, taus=TAU, ids=range(7)):
    return {(i, k, r, e) for i in ids for k in range(taus[i])}


FULL_2, FULL_0 = ({(i, None, r, 0) for i in range(7)} for r in (2, -1))
WARM_UP = batches(-1, 0, 3 * ONES)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mb_storm", batches(2, 0) | WARM_UP),
        ("ce_lsgd-random", batches(2, 0) | batches(2, 1, ids=CHOSEN[2:3]) | WARM_UP),
        ("bvr-average", batches(2, 0) | batches(2, 1)),
        ("stem-local", batches(2, 0, EQUAL) | WARM_UP),
        ("fedglomo", batches(2, 0) | FULL_2),
        ("mime-adam", batches(2, 1) | FULL_2),
        ("mime_mvr", batches(2, 1) | FULL_2 | FULL_0),
        ("mimelite_mvr", batches(2, 0) | FULL_2 | FULL_0),
    ],
)
def test_minibatches_are_those_of_the_exchanges(name, expected):
    seen = set()

    def spy(i):
        return lambda x, k, r, e=0: (seen.add((i, k, r, e)), NOISY[i](x, k, r, e))[1]

    method, hyper = METHODS[name]
    run(method, [spy(i) for i in range(7)], EQUAL if method is rec.stem else TAU, rounds=4, **hyper)
    assert {s for s in seen if s[2] in (2, -1)} == expected


def test_mb_storm_without_memory_is_minibatch_sgd():
    def mean(i):
        return lambda x, k, r: np.mean([NOISY[i](x, j, r or -1) for j in range(TAU[i] if r else 3)], axis=0)

    close(run(rec.mb_storm, taus=TAU, beta=1.0, **WARM), run(fed.fedavg, [mean(i) for i in range(7)], taus=ONES))


@pytest.mark.parametrize("pick", ["random", "average"])
def test_ce_lsgd_is_mb_storm_for_one_step_and_bvr_l_sgd_for_beta_one_or_zero(pick):
    hyper, picking = {"cohorts": ALL_THEN_PART, "lr": lambda r: LR / (1 + r)}, {"pick": pick, "chosen": CHOSEN}
    for step in ({"taus": ONES, "beta": 0.3, **hyper}, {"taus": ONES, "beta": 0.3, **WARM, **hyper}):
        close(run(rec.ce_lsgd, **picking, **step), run(rec.mb_storm, **step))
    hyper = {"taus": TAU, **hyper, **picking}
    for period, beta in ((1, 1.0), (None, 0.0)):
        close(run(rec.bvr_l_sgd, EXACT, period=period, **hyper), run(rec.ce_lsgd, EXACT, beta=beta, **WARM, **hyper))


@pytest.mark.parametrize(("prev", "cohorts"), [("averaged", PART), ("local", ALL)])
def test_stem_of_one_step_is_mb_storm_one_round_behind(prev, cohorts):
    """STEM corrects d at the end of a round, MB-STORM v at the start of the next; STEM's means are convex."""
    late = [lambda x, k, r, e=0, g=g: g(x, k, max(r - 1, -1), e) for g in NOISY]
    hyper = {"taus": ONES, "lr": lambda t: LR / (1 + t), **WARM}
    right = run(rec.mb_storm, late, cohorts=cohorts[:1] + cohorts[:-1], beta=0.3, **hyper)
    close(run(rec.stem, cohorts=[(ids, 3 * w) for ids, w in cohorts], alpha=0.3, prev=prev, **hyper), right)


@pytest.mark.parametrize("prev", ["averaged", "local"])
def test_stem_forgets_its_error_once_a_step(prev):
    """d^{r+1} − Σ p_i ∇F_i(x_{i,K}) = Π_t (1 − a_{t+1}) (d^r − Σ p_i ∇F_i(old points of round r))."""
    hyper = {"lr": lambda t: LR / (1 + 0.1 * t), "alpha": lambda t: 0.5 / (1 + t), "prev": prev}
    start, end = (run(rec.stem, EXACT, rounds=n, **hyper) for n in (2, 3))
    old = start.state["last"] if prev == "local" else [start.iterates[-1]] * 7
    pairs = ((start.state["d"], old), (end.state["d"], end.state["last"]))
    before, after = (d - sum(p * g(z, 0, 0) for p, g, z in zip(BED.p, EXACT, zs, strict=True)) for d, zs in pairs)
    close(after, before * np.prod([1 - 0.5 / (1 + t) for t in range(8, 12)]))


@pytest.mark.parametrize("prev", ["averaged", "local"])
def test_stem_steps_by_the_global_step(prev):
    lr = [LR / (1 + t) for t in range(48)]
    right = run(fed.fedavg, [lambda x, k, r: lr[4 * r + k] * SAME[0](x, k, r)] * 7, lr=1.0)
    close(run(rec.stem, SAME, lr=lambda t: lr[t], alpha=0.3, prev=prev, **WARM), right)


@pytest.mark.parametrize(("beta", "cohorts"), [(0.3, ALL), (1.0, PART)])
def test_fedglomo_with_full_gradients_is_fedavg_and_for_unequal_steps_fednova(beta, cohorts):
    for right, taus in ((fed.fedavg, EQUAL), (fed.fednova, TAU)):
        hyper = {"taus": taus, "cohorts": [(ids, 2 * w) for ids, w in cohorts]}
        close(run(rec.fedglomo, EXACT, beta=beta, **hyper), run(right, EXACT, **hyper))


@pytest.mark.parametrize("method", ["fedglomo", "mime_mvr", "mimelite_mvr"])
def test_one_full_step_is_mb_storm(method):
    method, hyper = METHODS[method]
    setting = {"grads": EXACT, "taus": ONES, "cohorts": ALL_THEN_PART}
    close(run(method, **hyper, **setting), run(rec.mb_storm, beta=0.3, **WARM, **setting))


@pytest.mark.parametrize("lite", [False, True])
def test_memoryless_forms_are_mime_sgd_and_fedavg(lite):
    hyper = {"taus": TAU, "cohorts": PART, "server_lr": lambda r: 1 + 0.1 * r}
    right = run(fed.fedavg, **hyper) if lite else run(rec.mime, **hyper)
    close(run(rec.mime, base="momentum", momentum=0.0, lite=lite, **hyper), right)
    for ref in ("previous", "current"):
        close(run(rec.mime_mvr, alpha=1.0, lite=lite, ref=ref, **hyper), right)


@pytest.mark.parametrize("lite", [False, True])
@pytest.mark.parametrize("base", ["momentum", "adam"])
def test_mime_of_one_full_step_is_the_central_optimizer(lite, base):
    x, m, v = X0, np.zeros(4), np.zeros(4)
    for ids, omegas in PART:
        c = sum(w * EXACT[i](x, 0, 0) for i, w in zip(ids, omegas, strict=True))
        m = 0.3 * c + 0.7 * m
        x = x - LR * (m if base == "momentum" else m / (0.5 + np.sqrt(v)))
        v = 0.1 * c**2 + 0.9 * v
    hyper = {"base": base, "lite": lite, "momentum": 0.7, "beta1": 0.7, "beta2": 0.9, "eps": 0.5}
    close(run(rec.mime, EXACT, ONES, PART, **hyper).iterates[-1], x)


@pytest.mark.parametrize("lite", [False, True])
def test_mime_mvr_of_one_full_step_at_the_current_point_mixes_two_mean_gradients(lite):
    """All clients: m = ∇F(x^{r−1}), and the two gradients of the client at x^r cancel."""
    x = x_prev = X0
    for _ in ALL:
        c, c_prev = (sum(p * g(z, 0, 0) for p, g in zip(BED.p, EXACT, strict=True)) for z in (x, x_prev))
        x, x_prev = x - LR * (0.3 * c + 0.7 * c_prev), x
    close(run(rec.mime_mvr, EXACT, ONES, alpha=0.3, ref="current", lite=lite).iterates[-1], x)


@pytest.mark.parametrize(
    ("own", "lr", "method", "hyper"),
    [(a, LR, rec.mime_mvr, {"alpha": a, "ref": ref}) for a in (0.05, 1.0) for ref in ("previous", "current")]
    + [(1 - b, (1 - b) * LR, rec.mime, {"base": "momentum", "momentum": b}) for b in (0.0, 0.7)],
)
def test_mimelite_ends_where_clients_mix_their_own_and_the_mean_gradient(own, lr, method, hyper):
    """At rest m = ∇F(x), and −Δ_i is P_i(η, K) times own ∇F_i(x) + (1 − own) ∇F(x), up to a factor."""
    H, e = (own * v + (1 - own) * np.tensordot(BED.p, v, 1) for v in (BED.H, BED.e))
    limit = quad.fixed_point(H, e, [quad.gradient_response(h, 2 * lr, 4) for h in BED.H], BED.p)
    close(run(method, EXACT, rounds=400, lite=True, **{**hyper, "lr": 2 * LR}).iterates[-1], limit, 1e-9)
