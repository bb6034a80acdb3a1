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


ALL = {"concurrency": N, "buffer": 1, "policy": "idle", "duration": fixed}


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
    assert list(run.started) == [3, 3, 3] and not run.dropped.any()


def test_all_that_finish_at_one_instant_are_heard_before_anyone_starts_and_the_earliest_start_first():
    run = queue.schedule(4, 4, concurrency=4, buffer=2, duration=equal, policy="idle", who=lambda n: 3 - n % 4)
    assert [s.heard for s in run.steps] == [
        ((3, 0, 0), (2, 1, 0)),
        ((1, 2, 1), (0, 3, 1)),
        ((3, 4, 0), (2, 5, 0)),
        ((1, 6, 1), (0, 7, 1)),
    ]
    close(run.times, [1, 1, 2, 2])


GRACE = {"concurrency": 4, "policy": "idle", "grace": 1.0, "duration": lambda n, i, t, b: [1.0, 1.5, 2.0, 2.1][i]}


def test_grace_hears_all_that_finish_by_its_end_and_starts_nobody_before():
    run = queue.schedule(4, 5, buffer=1, **GRACE)
    assert [s.heard for s in run.steps] == [
        ((0, 0, 0),),
        ((1, 1, 1),),
        ((2, 2, 2),),  # on the edge; those three begin again at 2
        ((3, 3, 3),),
        ((0, 4, 1),),  # began at version 3; 1 is back at 3.5, after the window from 2.1 to 3.1
    ]
    close(run.times, [1.0, 1.5, 2.0, 2.1, 3.0])


def test_a_step_is_taken_with_its_last_answer_also_within_a_window_and_over_two():
    run = queue.schedule(4, 3, buffer=2, **GRACE)
    # the window from 1 to 2 has three answers, that of 2 waits for client 3's; 0 and 1 are back at 3 and 3.5
    assert [s.heard for s in run.steps] == [((0, 0, 0), (1, 1, 0)), ((2, 2, 1), (3, 3, 1)), ((0, 4, 1), (1, 5, 1))]
    close(run.times, [1.5, 2.1, 3.5])


def test_nobody_is_waited_for_when_nobody_is_under_way():
    run = queue.schedule(4, 8, buffer=1, **{**GRACE, "grace": 9.0})
    close(run.times, [1.0, 1.5, 2.0, 2.1, 3.1, 3.6, 4.1, 4.2])


def test_steps_wait_for_the_server_and_so_do_those_who_start_after_them():
    took = [1.0, 1.2, 5.0]
    run = queue.schedule(3, 4, concurrency=3, buffer=1, policy="idle", duration=lambda n, i, t, b: took[i], seconds=0.5)
    # 0 at 1, over at 1.5; 1 at 1.2, over at 2; they start then, and are back at 2.5 and 3.2
    close(run.times, [1.5, 2.0, 3.0, 3.7])
    two = queue.schedule(3, 2, concurrency=3, buffer=2, policy="idle", duration=lambda n, i, t, b: took[i], seconds=0.5)
    # 0 at 1, and at once again; 1 at 1.2, over at 1.7; 0 at 2, and 1 at 1.7 + 1.2
    close(two.times, [1.7, 3.4])


def test_from_one_version_nobody_starts_again_before_all_others():
    drew = np.random.default_rng(0).random(2000)
    begun = []

    def duration(n, i, tau, nbytes):
        begun.append(i)
        return 1.0 + drew[-n]

    run = queue.schedule(3, 1, concurrency=7, buffer=7, duration=duration, who=lambda n: float(drew[n]))
    assert run.steps[0].heard[0][2] == 0
    rounds = np.array(begun[: len(begun) // 3 * 3]).reshape(-1, 3)
    assert (np.sort(rounds, axis=1) == [0, 1, 2]).all() and len({*map(tuple, rounds)}) > 1
    with pytest.raises(ValueError, match="cannot start"):
        queue.schedule(3, 1, concurrency=2, buffer=1, duration=equal, who=lambda n: 1)
    queue.schedule(3, 9, concurrency=1, buffer=1, duration=equal, who=lambda n: 1)  # each from a new version


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


def test_what_is_dropped_makes_no_version_and_leaves_the_memory():
    run = queue.run({"x": 0.0}, clients=2, concurrency=2, buffer=1, steps=6, policy="idle", memory=["a", "b"],
                    duration=lambda n, i, t, b: [1.0, 3.5][i], work=lambda x, i, n, kept: (1.0, n),
                    server=lambda s, a: {"x": s["x"] + 1}, max_staleness=2)  # fmt: skip
    assert [s.heard[0][0] for s in run.steps] == [0] * 6  # client 1 is heard at 3.5 with s = 3
    assert run.dropped[1] == 1 and run.memory[1] == "b"
    close(run.times, [1, 2, 3, 4, 5, 6])


def test_the_queue_refuses_what_cannot_be():
    with pytest.raises(ValueError, match="buffer"):
        queue.schedule(2, 1, concurrency=1, buffer=2, duration=equal)
    with pytest.raises(ValueError, match="buffer"):
        queue.schedule(2, 1, concurrency=3, buffer=2, duration=equal, policy="idle")
    with pytest.raises(ValueError, match="cannot start"):
        queue.schedule(3, 9, concurrency=2, buffer=1, duration=equal, policy="idle", who=lambda n: 0)
    with pytest.raises(ValueError, match="memory"):
        queue.schedule(3, 9, concurrency=2, buffer=1, duration=equal, memory=[0, 0, 0])


# Identities.

SYNCHRONOUS = {"concurrency": N, "buffer": N, "grace": 99.0, "policy": "idle", "duration": fixed}


@pytest.mark.parametrize("speeds", ["unlike", "equal"])
@pytest.mark.parametrize("method", ["fedbuff", "ca2fl", "ace", "area"])
def test_a_buffer_of_all_is_fedavg_at_equal_speeds_and_at_unlike_ones_in_a_long_window(method, speeds):
    c = clients(tau=[1, 3, 2, 5, 1, 4])
    alike = {"grace": 0.0, "duration": equal} if speeds == "equal" else {}
    run = asy.go(getattr(asy, method)(c, X0, lr=LR), c, steps=20, **SYNCHRONOUS | alike)
    grads = [lambda x, k, r, i=i: c.gradient(i, x) for i in range(N)]
    reference = fed.fedavg(grads, c.p, c.tau, fed.full_cohorts(c.p, 20), X0, 20, lr=LR)
    close(run.iterates, reference.iterates[1:])
    close(run.times, np.arange(1, 21) * (1.0 if speeds == "equal" else max(c.tau * SPEED)))
    assert all(s == 0 for step in run.steps for *_, s in step.heard)


def test_without_a_window_the_fast_of_a_buffer_of_all_are_heard_again_before_the_slow():
    c = clients()
    run = asy.go(asy.fedbuff(c, X0, lr=LR), c, steps=2, **{**SYNCHRONOUS, "grace": 0.0})
    assert [i for i, *_ in run.steps[0].heard] == [0, 1, 2, 0, 1, 3] != list(range(N))


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


@pytest.mark.parametrize("shorten, expected", [("divide", 0.3 / 5), ("cap", 0.2)])
def test_fadas_steps_less_where_an_answer_is_late(shorten, expected):
    m = asy.fadas(clients(), np.zeros(1), lr=LR, server_lr=0.3, beta1=0, beta2=0, eps=0, tau_c=4, shorten=shorten)
    late, soon = (m.server(m.state, [queue.Answer(0, 1.0, s, np.ones(1))])["x"] for s in (5, 4))
    close(late, [expected])
    close(soon, [0.3])


def test_delayed_nesterov_is_nesterov_every_n_steps_if_all_begin_together():
    c = clients(tau=2)
    for share in (0.0, 1 / N):
        method = asy.delayed_nesterov(c, X0, lr=LR, every=N, c=share)
        run = asy.go(method, c, steps=30 * N, **SYNCHRONOUS | {"buffer": 1})
        x, m = X0, 0
        for t in range(30):
            g = -sum(c.local(i, x, LR) - x for i in range(N)) / N
            # c spends a share of the old momentum's step before the N-th answer
            x = x - 0.7 * ((N - 1) * share * 0.9 * m)
            m = 0.9 * m + g
            x = x - 0.7 * ((1 - (N - 1) * share) * 0.9 * m + g)
            close(run.iterates[(t + 1) * N - 1], x)


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


@pytest.mark.parametrize("name", ["ca2fl", "area"])
def test_it_is_exact_under_drawn_schedules_too(name):
    c = clients()
    schedule = {"concurrency": 4, "buffer": 2, "policy": "idle", **drawn()}
    run = asy.go(getattr(asy, name)(c, X0, lr={"area": 0.1}.get(name, LR)), c, steps=4000, **schedule)
    close(run.iterates[-1], c.optimum(), 1e-8)


SLOW = 0.002


@pytest.mark.parametrize("weight", [asy.constant, asy.polynomial(0.5), asy.hinge(1.0, 3.0)])
def test_fedbuff_ends_at_the_predicted_wrong_point(weight):
    c = clients(tau=2)
    schedule = {**ALL, "buffer": 2, "steps": 6_000}
    run = asy.go(asy.fedbuff(c, X0, lr=SLOW, weight=weight), c, **schedule)
    s = asy.shares(run.steps[3000:], c.p, weight)
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
    run = queue.schedule(N, 16_000, taus=np.ones(N), **ALL)
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
