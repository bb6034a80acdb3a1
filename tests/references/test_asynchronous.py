"""The event queue and the asynchronous methods over it obey their identities, fixed points and predictions (NumPy)."""

import numpy as np
import pytest

from . import asynchronous as asy
from . import close, queue
from . import fedavg_family as fed

N, D = 6, 3
RNG = np.random.default_rng(3)
A = RNG.normal(size=(N, D, D))
A = np.einsum("nij,nkj->nik", A, A) / D + 0.5 * np.eye(D)
SPEED = np.array([1.0, 1.31, 1.93, 2.77, 5.13, 9.71])  # seconds a local step
B = RNG.normal(size=(N, D)) + np.linspace(-3, 3, N)[:, None]  # the slow have other data
X0 = np.array([1.0, -2.0, 0.5])
LR = 0.02


def clients(tau=1, p=None):
    return asy.Clients(A, B, np.full(N, 1 / N) if p is None else p, np.broadcast_to(tau, N))


def fixed(n, i, tau, nbytes):
    return tau * SPEED[i]


def equal(n, i, tau, nbytes):
    return 1.0


def drawn(seed=0, spread=0.2):
    """who and duration of one generator's draws by n."""
    u = np.random.default_rng(seed).random(size=(2, 200_000))
    return {"who": lambda n: float(u[0, n]), "duration": lambda n, i, t, b: t * SPEED[i] * (1 + spread * u[1, n])}


ALL = {"concurrency": N, "buffer": 1, "policy": "again", "duration": fixed}


# The queue.


def test_a_schedule_worked_by_hand():
    took = {0: 2.0, 1: 3.0, 2: 7.0}
    run = queue.schedule(3, 4, concurrency=2, buffer=2, duration=lambda n, i, t, b: took[i], who=lambda n: n % 3)
    # 0 and 1 start at 0; 0 is heard at 2 and n = 2 starts client 2 (till 9); 1 is heard at 3: a step; n = 3 starts 0
    assert [s.heard for s in run.steps] == [
        ((0, 0, 0), (1, 1, 0)),  # at 2 and 3
        ((0, 3, 0), (1, 4, 0)),  # 3 + 2 = 5, 5 + 3 = 8; n = 5 starts client 2 at 8 (till 15)
        ((2, 2, 2), (0, 6, 0)),  # 9, then n = 6: client 0 from 9 to 11
        ((1, 7, 0), (2, 5, 1)),  # 11 + 3 = 14; n = 5 at 15
    ]
    close(run.times, [3.0, 8.0, 11.0, 15.0])
    assert list(run.taken) == [3, 3, 2]
    assert list(run.started) == [4, 3, 3] and not run.dropped.any()


def test_of_equal_times_the_one_that_began_first_is_heard_first():
    run = queue.schedule(4, 3, concurrency=4, buffer=2, duration=equal, policy="again", who=lambda n: 3 - n)
    assert [s.heard for s in run.steps] == [
        ((3, 0, 0), (2, 1, 0)),
        ((1, 2, 1), (0, 3, 1)),
        ((3, 4, 2), (2, 5, 1)),  # 3 began again before the first step, 2 after it
    ]


def test_grace_takes_in_all_that_finish_by_its_end_and_starts_nobody_before():
    took = [1.0, 1.5, 2.0, 2.1]
    run = queue.schedule(4, 2, concurrency=4, buffer=1, grace=1.0, duration=lambda n, i, t, b: took[i], policy="again")
    assert run.steps[0].heard == ((0, 0, 0), (1, 1, 0), (2, 2, 0))  # at 1, 1.5 and, on the edge, 2
    assert run.steps[1].heard == ((3, 3, 1), (0, 4, 0))  # 3 at 2.1; the others began at 2, and 0 is back at 3
    close(run.times, [2.0, 3.1])


def test_idle_never_has_a_client_twice_under_way_and_uniform_has():
    def most(policy):
        under, worst = np.zeros(N, int), 0

        def duration(n, i, tau, nbytes):
            nonlocal worst
            under[i] += 1
            worst = max(worst, under[i])
            return 1.0 + SPEED[i]

        def work(x, i, n, kept):
            under[i] -= 1
            return 0.0, None

        who = np.random.default_rng(0).random(4000)
        queue.run({"x": 0.0}, clients=N, concurrency=4, buffer=2, steps=500, duration=duration, work=work,
                  server=lambda s, a: s, who=lambda n: float(who[n]), policy=policy)  # fmt: skip
        return worst

    assert most("idle") == 1
    assert most("uniform") > 1


def test_a_client_under_way_twice_reads_its_memory_at_the_start_or_at_the_arrival():
    def seen(read):
        log = []

        def work(x, i, n, kept):
            log.append((n, kept))
            return 0.0, n

        queue.run({"x": 0.0}, clients=1, concurrency=2, buffer=1, steps=5, duration=lambda n, *_: [3.0, 1.0][n % 2],
                  work=work, server=lambda s, a: s, who=lambda n: 0, memory=["-"], read=read)  # fmt: skip
        return log

    # n = 0 till 3, 1 till 1, then 2 from 1 to 4; at 3 n = 3 till 4; 2 began before 3 and is heard first
    assert seen("start") == [(1, "-"), (0, "-"), (2, 1), (3, 0), (5, 3)]
    assert seen("arrival") == [(1, "-"), (0, 1), (2, 0), (3, 2), (5, 3)]


def test_what_is_dropped_makes_no_version_and_leaves_the_memory():
    run = queue.run({"x": 0.0}, clients=2, concurrency=2, buffer=1, steps=6, policy="again", memory=["a", "b"],
                    duration=lambda n, i, t, b: [1.0, 3.5][i], work=lambda x, i, n, kept: (1.0, n),
                    server=lambda s, a: {"x": s["x"] + 1}, accept=lambda i, s: s < 3)  # fmt: skip
    assert [s.heard[0][0] for s in run.steps] == [0] * 6  # client 1 is heard at 3.5 with s = 3
    assert run.dropped[1] == 1 and run.memory[1] == "b"
    close(run.times, [1, 2, 3, 4, 5, 6])


def test_the_queue_refuses_what_cannot_be():
    with pytest.raises(ValueError, match="buffer"):
        queue.schedule(2, 1, concurrency=1, buffer=2, duration=equal, policy="again")
    with pytest.raises(ValueError, match="buffer"):
        queue.schedule(2, 1, concurrency=3, buffer=2, duration=equal, policy="idle", who=lambda n: 0)
    with pytest.raises(ValueError, match="cannot start"):
        queue.schedule(3, 9, concurrency=2, buffer=1, duration=equal, policy="idle", who=lambda n: 0)


# Identities.

SYNCHRONOUS = {"concurrency": N, "buffer": N, "grace": 0.5, "policy": "again", "duration": fixed}


@pytest.mark.parametrize("method", ["fedbuff", "ca2fl", "ace", "area"])
def test_a_buffer_of_all_with_grace_is_fedavg_whatever_the_speeds(method):
    c = clients(tau=[1, 3, 2, 5, 1, 4])
    run = asy.go(getattr(asy, method)(c, X0, lr=LR), c, steps=20, **SYNCHRONOUS)
    grads = [lambda x, k, r, i=i: c.gradient(i, x) for i in range(N)]
    reference = fed.fedavg(grads, c.p, c.tau, fed.full_cohorts(c.p, 20), X0, 20, lr=LR)
    close(run.iterates, reference.iterates[1:])
    close(run.times[0], max(c.tau * SPEED) + 0.5)
    assert all(s == 0 for step in run.steps for *_, s in step.heard)


def test_without_grace_a_buffer_of_all_is_a_step_late():
    c = clients()
    run = asy.go(asy.fedbuff(c, X0, lr=LR), c, steps=3, **{**SYNCHRONOUS, "grace": 0.0, "duration": equal})
    assert [[s for *_, s in step.heard] for step in run.steps] == [[0] * 6, [1] * 5 + [0], [1] * 5 + [0]]


def test_fadas_with_a_buffer_of_all_is_fedams():
    c = clients(tau=3)
    run = asy.go(asy.fadas(c, X0, lr=LR, server_lr=0.05, bias_correction=True), c, steps=30, **SYNCHRONOUS)
    x, m, v, top = X0, 0, 0, 0
    for t in range(1, 31):
        delta = sum(c.local(i, x, LR) - x for i in range(N)) / N
        m, v = 0.9 * m + 0.1 * delta, 0.99 * v + 0.01 * delta**2
        top = np.maximum(top, v)
        x = x + 0.05 / (1 - 0.9**t) * m / (np.sqrt(top) / np.sqrt(1 - 0.99**t) + 1e-8)
        close(run.iterates[t - 1], x)


@pytest.mark.parametrize("rule, expected", [("reciprocal", 0.3 / 5), ("min", 0.2)])
def test_fadas_steps_less_where_an_answer_is_late(rule, expected):
    m = asy.fadas(clients(), np.zeros(1), lr=LR, server_lr=0.3, beta1=0, beta2=0, eps=0, tau_c=4, rule=rule)
    late, soon = (m.server(m.state, [queue.Answer(0, 1.0, s, np.ones(1))])["x"] for s in (5, 4))
    close(late, [expected])
    close(soon, [0.3])


def test_delayed_nesterov_with_a_buffer_of_all_is_nesterov():
    c = clients(tau=2)
    for share in (0.0, 1 / N):
        method = asy.delayed_nesterov(c, X0, lr=LR, every=N, c=share)
        run = asy.go(method, c, steps=30, **SYNCHRONOUS)
        x, m = X0, 0
        for t in range(30):
            g = -sum(c.local(i, x, LR) - x for i in range(N)) / N
            # c spends a share of the old momentum's step before the N-th answer
            x = x - 0.7 * ((N - 1) * share * 0.9 * m)
            m = 0.9 * m + g
            x = x - 0.7 * ((1 - (N - 1) * share) * 0.9 * m + g)
            close(run.iterates[t], x)


def test_ringmaster_without_a_limit_is_asynchronous_sgd_and_with_one_drops_the_stale():
    c = clients()
    run = asy.go(asy.ringmaster(c, X0, lr=LR), c, steps=60, **ALL)
    x, time, model = X0, SPEED.copy(), [X0] * N
    for k in range(60):
        i = int(np.argmin(time))  # no two are equal
        x = x - LR * c.gradient(i, model[i])
        model[i], time[i] = x, time[i] + SPEED[i]
        close(run.iterates[k], x)
    assert not run.dropped.any()
    limited = asy.go(asy.ringmaster(c, X0, lr=LR, delay=4), c, steps=60, **ALL)
    assert limited.dropped.any() and max(s for step in limited.steps for *_, s in step.heard) == 3


def test_ringmaster_of_one_takes_fresh_gradients_only():
    c = clients()
    run = asy.go(asy.ringmaster(c, X0, lr=LR, delay=1), c, steps=40, **ALL)
    x = X0
    for k, step in enumerate(run.steps):
        x = x - LR * c.gradient(step.heard[0][0], x)
        close(run.iterates[k], x)


def test_ringleaders_tables_by_hand():
    c = asy.Clients(A[:3], B[:3], np.full(3, 1 / 3), np.ones(3, int))
    method = asy.ringleader(c, np.zeros(1), lr=3.0)
    a1, a2, a3, a4, a5, b1, b2, b3, c1, c2, c3 = np.random.default_rng(0).normal(size=11)
    heard = [(0, a1), (0, a2), (1, b1), (0, a3), (2, c1)]  # phase 1, and 2 makes the first step
    heard += [(2, c2), (0, a4), (0, a5), (1, b2)]  # phase 2: c2 and a5 come too late for this round
    heard += [(2, c3), (1, b3)]  # phase 1 again, from c2 and a5
    steps = {
        4: (a1 + a2 + a3) / 3 + b1 + c1,
        6: (a1 + a2 + a3 + a4) / 4 + b1 + c1,
        8: (a1 + a2 + a3 + a4) / 4 + (b1 + b2) / 2 + c1,
        10: a5 + b3 + (c2 + c3) / 2,
    }
    state, x = method.state, 0.0
    for k, (i, g) in enumerate(heard):
        state = method.server(state, [queue.Answer(i, 1.0, 0, np.full(1, g))])
        x = x - steps.get(k, 0.0)
        close(state["x"], [x])
    assert state["k"] == 4


def test_ringleader_serves_every_client_once_a_round_and_no_gradient_is_older_than_2n_minus_2_steps():
    c = clients()
    served, seen = [], [0]
    method = asy.ringleader(c, X0, lr=LR)
    oldest, table = 0, {}

    def work(x, i, n, kept):
        return (i, x), None

    def server(state, answers):
        nonlocal oldest
        (a,) = answers
        i, x = a.upload
        began = seen[-1] - a.staleness
        new = method.server(state, [a._replace(upload=c.gradient(i, x))])
        table.setdefault("now", {}).setdefault(i, []).append(began) if i not in state["done"] or not state["done"] \
            else table.setdefault("next", {}).setdefault(i, []).append(began)  # fmt: skip
        if new["k"] > state["k"]:
            served.append(i)
            oldest = max(oldest, *(state["k"] - b for bs in table["now"].values() for b in bs))
            seen.append(new["k"])
        if state["done"] and not new["done"]:
            table["now"], table["next"] = table.pop("next", {}), {}
        return new

    asy.go(method._replace(work=work, server=server), c, steps=2000, **ALL)
    rounds = np.array(served[: len(served) // N * N]).reshape(-1, N)
    assert (np.sort(rounds, axis=1) == np.arange(N)).all() and len(rounds) > 20
    assert N - 1 <= oldest <= 2 * N - 2


# Where it ends.


@pytest.mark.parametrize(
    "name, buffer, steps",
    [
        ("ca2fl", 1, 1500),
        ("ca2fl", 3, 1500),
        ("ace", 1, 6000),
        ("area", 1, 8000),
        ("area", 3, 8000),
        ("ringleader", 1, 9000),
    ],
)
def test_with_one_local_step_it_ends_at_the_optimum_under_unlike_speeds(name, buffer, steps):
    c = clients()
    method = getattr(asy, name)(c, X0, lr={"ringleader": 0.03, "area": 0.1}.get(name, LR))
    run = asy.go(method, c, steps=steps, **{**ALL, "buffer": buffer})
    close(run.iterates[-1], c.optimum(), 1e-8)
    fedbuff = asy.go(asy.fedbuff(c, X0, lr=LR, weight=asy.constant), c, steps=2000, **ALL)
    assert np.linalg.norm(asy.settled(fedbuff) - c.optimum()) > 0.5


@pytest.mark.parametrize("name", ["ca2fl", "ace", "area"])
def test_with_more_local_steps_it_ends_where_fedavg_does(name):
    c = clients(tau=[1, 3, 2, 5, 1, 4], p=np.array([0.1, 0.3, 0.2, 0.1, 0.2, 0.1]))
    run = asy.go(getattr(asy, name)(c, X0, lr=LR), c, steps=9000, **ALL)
    close(run.iterates[-1], c.fixed_point(LR), 1e-8)
    assert np.linalg.norm(c.fixed_point(LR) - c.optimum()) > 0.01  # and that is not the optimum: drift, not asynchrony


@pytest.mark.parametrize("policy", ["uniform", "idle"])
@pytest.mark.parametrize("name", ["ca2fl", "area"])
def test_it_is_exact_under_drawn_schedules_too_if_no_memory_is_read_twice(name, policy):
    c = clients()
    schedule = {"concurrency": 4, "buffer": 2, "policy": policy, **drawn()}
    method = getattr(asy, name)(c, X0, lr={"area": 0.1}.get(name, LR))
    run = asy.go(method, c, steps=4000, read="arrival", **schedule)
    close(run.iterates[-1], c.optimum(), 1e-8)
    if policy == "uniform":  # two jobs upload changes of one memory: the server's sum is no longer the clients'
        broken = asy.go(method, c, steps=4000, read="start", **schedule)
        assert np.linalg.norm(broken.iterates[-1] - c.optimum()) > 0.05


SLOW = 0.002


@pytest.mark.parametrize("weight", [asy.constant, asy.polynomial(0.5), asy.hinge(1.0, 3.0)])
def test_fedbuff_ends_at_the_predicted_wrong_point(weight):
    c = clients(tau=2)
    schedule = {**ALL, "buffer": 2, "steps": 12_000}
    run = asy.go(asy.fedbuff(c, X0, lr=SLOW, weight=weight), c, **schedule)
    s = asy.shares(run.steps[6000:], c.p, weight)
    distance = np.linalg.norm(c.optimum(s.q) - c.optimum())
    assert s.chi2 > 0.4 and distance > 0.5
    assert np.linalg.norm(asy.settled(run) - c.optimum(s.q)) < 0.01 * distance
    mended = asy.go(asy.fedbuff(c, X0, lr=SLOW, weight=weight), c, **schedule, weights=asy.corrected(s, c.p))
    assert np.linalg.norm(asy.settled(mended) - c.optimum()) < 0.01 * distance


@pytest.mark.parametrize("buffer", [1, 2, 4])
def test_a_client_that_starts_again_starts_near_its_own_last_step(buffer):
    """E[x | i starts] − E x = ½ c Δ_i, c = (2/K − 1)/K: 1 of K starts after the step with its own answer."""
    c, lr, own = clients(), 0.02, (2 / buffer - 1) / buffer
    run = asy.go(asy.fedbuff(c, X0, lr=lr, weight=asy.constant), c, steps=24_000 // buffer, **{**ALL, "buffer": buffer})
    q = asy.shares(run.steps[len(run.steps) // 2 :], c.p).q
    P = np.eye(D) - own * lr * c.A / 2
    near = np.linalg.solve(np.einsum("n,nij,njk->ik", q, P, c.A), np.einsum("n,nij,nj->i", q, P, c.b))
    distance = np.linalg.norm(c.optimum(q) - c.optimum())
    off, left = (np.linalg.norm(asy.settled(run) - x) / distance for x in (c.optimum(q), near))
    assert left < 2.5e-3
    if buffer == 1:
        assert off > 6e-3


def test_the_staleness_weight_alone_makes_a_fair_schedule_wrong():
    c = clients()
    schedule = {"concurrency": 4, "buffer": 2, "policy": "uniform", "steps": 20_000, **drawn()}
    run = queue.schedule(N, taus=c.tau, **schedule)
    fair, weighted = asy.shares(run.steps, c.p), asy.shares(run.steps, c.p, asy.polynomial(0.5))
    assert fair.chi2 < 1e-3 < 0.02 < weighted.chi2
    mended = asy.shares(run.steps, c.p, asy.polynomial(0.5), asy.corrected(weighted, c.p))
    close(mended.q, c.p)
    assert mended.chi2 < 1e-24


def test_fedasync_ends_where_its_shares_say_which_are_f_times_w_for_a_small_alpha_only():
    c, weight = clients(), asy.polynomial(0.5)
    for alpha, simple in ((0.02, True), (0.6, False)):
        run = asy.go(asy.fedasync(c, X0, lr=2 * SLOW / alpha, alpha=alpha, weight=weight), c, steps=16_000, **ALL)
        q = asy.mixing_shares(run.steps, N, alpha, weight)
        distance = np.linalg.norm(c.optimum(q) - c.optimum())
        assert np.linalg.norm(asy.settled(run, 0.3) - c.optimum(q)) < 0.01 * distance
        off = np.abs(q / asy.shares(run.steps, c.p, weight).q - 1).max()
        assert (off < 0.01) if simple else (off > 0.1)


def test_fedasync_with_constant_weights_has_fs_shares_for_any_alpha_and_none_at_one():
    run = queue.schedule(N, 16_000, **ALL)
    f = asy.shares(run.steps, np.full(N, 1 / N)).f
    close(asy.mixing_shares(run.steps, N, 0.6), f, 2e-3)
    assert np.abs(asy.mixing_shares(run.steps, N, 1.0) - f).max() > 0.05  # α = 1: the N models under way never mix


def test_fedasync_of_one_client_is_local_sgd():
    one = asy.Clients(A[:1], B[:1], np.ones(1), np.full(1, 3))
    run = asy.go(asy.fedasync(one, X0, lr=LR, alpha=1.0), one, steps=5, **{**ALL, "concurrency": 1})
    x = X0
    for _ in range(15):
        x = x - LR * one.gradient(0, x)
    close(run.iterates[-1], x)


def test_fedasyncs_weights():
    assert [asy.hinge(10, 4)(s) for s in (0, 4, 5)] == [1, 1, 1 / 11]
    assert [asy.polynomial(0.5)(s) for s in (0, 3)] == [1, 0.5]
