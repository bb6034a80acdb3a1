"""Methods at a server that does not wait, beside their references over the reference queue, in float64.

The queue is given who starts (the program's own draws) and the clock's seconds; all else is its own.
"""

import dataclasses

import jax
import numpy as np
import pytest

import fedax
from fedax.federation.census import Census
from fedax.federation.pace import EventQueue
from tests import in_full, mostly_long
from tests.references import asynchronous as asy

N, D, LR, ROUNDS, SEED = 6, 3, 0.05, 20, 4
RNG = np.random.default_rng(0)
ROOTS = RNG.normal(size=(N, D, D))
H = np.einsum("nij,nkj->nik", ROOTS, ROOTS) / D + 0.3 * np.eye(D)
E = RNG.normal(size=(N, D))
P = np.array([0.3, 0.1, 0.2, 0.15, 0.05, 0.2])
DATA = fedax.FederatedData({"H": H, "e": E}, [1] * N, P)
X0 = np.linspace(-1, 1, D)
STEPS = np.array([2, 1, 3, 2, 4, 1])
SEVERAL, ONE = asy.Clients(H, E, P, STEPS), asy.Clients(H, E, P, np.ones(N, int))


def component(k):
    return lambda x, batch: x[k] + 0 * batch["e"][:, 0]


TASK = dataclasses.replace(fedax.tasks.quadratic(D), metrics={f"x{k}": component(k) for k in range(D)})
FIXED = fedax.Clock(step=[1.0, 1.31, 1.93, 2.77, 5.13, 0.71], latency=0.3, server=0.05)
RANDOM = fedax.Clock(step=fedax.Lognormal(1.0, 0.8, anew=True), server=0.05)
TIES = fedax.Clock(step=[1.0, 1.0, 2.0, 1.0, 1.0, 3.0])

# Each number of answers a step has a program of its own.
EACH = {
    "fixed": (fedax.Async(6, start="idle"), FIXED),
    "random": (fedax.Async(6, start="idle"), RANDOM),
    "ties": (fedax.Async(6, start="idle"), TIES),
    "a grace": (fedax.Async(6, grace=0.7, start="idle"), RANDOM),
}
TWO = {
    "two, fixed": (fedax.Async(5, 2, start="idle"), FIXED),
    "two, ties": (fedax.Async(5, 2, start="idle"), TIES),
    "two, a grace": (fedax.Async(5, 2, grace=0.9, start="idle"), RANDOM),
}
ANYONE = {"anyone": (fedax.Async(6), RANDOM), "anyone, two, a grace": (fedax.Async(5, 2, grace=0.9), FIXED)}
ALL = {
    "all": (fedax.Async(6, 6, start="idle"), RANDOM),
    "all, a grace": (fedax.Async(6, 6, grace=99.0, start="idle"), FIXED),
}


def compare(method, reference, paces, gradients=STEPS, staleness=None, rounds=ROUNDS, **options):
    """All models and times under several paces, and what clients keep; returns the references' runs."""
    found = {}
    for which, (pace, clock) in paces.items():
        given = {"rounds": rounds, "work": fedax.Steps(STEPS), "params": X0, "evaluate_every": 1, "seed": SEED}
        given |= {"pace": dataclasses.replace(pace, staleness=staleness), "clock": clock} | options
        with jax.enable_x64(True):
            run = fedax.simulate(method, TASK, DATA, test={"H": H[:1], "e": E[:1]}, **given)
        models = np.stack([run.history[f"test_x{k}"] for k in range(D)], axis=1)[1:]
        found[which] = wanted = over_the_queue(method, reference, pace, clock, gradients, rounds)
        iterates = wanted.iterates.reshape(rounds, -1, D)[:, 0]
        np.testing.assert_allclose(models, iterates, rtol=0, atol=1e-12, err_msg=which)
        assert run.history["time"][1:].tolist() == wanted.times.tolist(), which
        late = [late for step in wanted.steps for *_, late in step.heard]
        assert run.history["staleness_max"][-1] == max(late)
        assert run.history["staleness"][-1] == pytest.approx(np.mean(late), abs=1e-12)
        if reference.memory is not None:
            kept = memories(method, reference, pace, clock, gradients)
            np.testing.assert_allclose(run.memory.tree, kept, rtol=0, atol=1e-12, err_msg=which)
    return found


def over_the_queue(method, reference, pace, clock, gradients, steps=ROUNDS):
    bound = clock.bind(Census.of(DATA), SEED)
    limit = {} if pace.max_staleness is None else {"max_staleness": pace.max_staleness}  # else the reference's own
    pace = dataclasses.replace(pace, **{"max_staleness": method.pace().max_staleness} | limit)

    def seconds(number, client, *_):
        return float(bound.durations(number, client, gradients[client], 0, 0))

    schedule = EventQueue(pace, N, seconds, clock.server, SEED)
    schedule.until(steps)
    return asy.go(
        reference,
        SEVERAL,
        concurrency=pace.concurrency,
        buffer=pace.buffer,
        policy=pace.start,
        grace=pace.grace,
        seconds=clock.server,
        steps=steps,
        duration=seconds,
        who=schedule.clients.__getitem__,
        weights=N * P,
        **limit,
    )


def memories(method, reference, pace, clock, gradients):
    """What clients keep after the work that began before the last step; the queue goes on until it is heard."""
    wrote, kept = {}, list(reference.memory)

    def work(x, i, n, memory):
        upload, wrote[n] = reference.work(x, i, n, memory)
        return upload, wrote[n]

    longer = over_the_queue(method, reference._replace(work=work), pace, clock, gradients, 4 * ROUNDS)
    for version, step in enumerate(longer.steps):
        for client, n, late in step.heard:
            if version - late < ROUNDS:
                kept[client] = wrote[n]
    return kept


def latest(run):
    return max(late for step in run.steps for *_, late in step.heard)


def test_fedasync_by_its_weights_of_staleness():
    hyper = {"lr": LR, "alpha": 0.5, "rho": 0.4}
    method = fedax.create("fedasync", lr=LR, mixing=0.5, prox=0.4)
    compare(method, asy.fedasync(SEVERAL, X0, weight=asy.polynomial(0.5), **hyper), EACH | TWO | ANYONE)
    hinge = fedax.HingeStaleness(2.0, 3)
    found = compare(method, asy.fedasync(SEVERAL, X0, weight=asy.hinge(2.0, 3.0), **hyper), EACH, staleness=hinge)
    assert min(map(latest, found.values())) > 3
    equal = fedax.create("fedasync", lr=LR, mixing=0.5, prox=0.4, staleness=None)
    compare(equal, asy.fedasync(SEVERAL, X0, weight=asy.constant, **hyper), EACH)


OTHERS = {
    "three": (fedax.Async(5, 3), RANDOM),
    "more than there are": (fedax.Async(9, 4), RANDOM),
    "thrown away": (fedax.Async(6, start="idle", max_staleness=5), RANDOM),
}


def test_fedbuff():
    method = fedax.create("fedbuff", lr=LR, server_lr=0.8)
    reference = asy.fedbuff(SEVERAL, X0, lr=LR, server_lr=0.8, weight=asy.polynomial(0.5))
    found = compare(method, reference, EACH | TWO | ANYONE | ALL | OTHERS)
    assert latest(found["all, a grace"]) == 0 and min(latest(found[which]) for which in EACH | TWO) > 2
    assert [which for which, run in found.items() if run.dropped.any()] == ["thrown away"]


@in_full
@pytest.mark.parametrize("name", ["ca2fl", "area"])
def test_methods_that_count_by_all_clients_last_answers(name, full):
    """Short: steps of several answers, of which FedBuff's of one are tried."""
    hyper = {"server_lr": 0.8} if name == "ca2fl" else {}
    reference = getattr(asy, name)(SEVERAL, X0, lr=LR, **hyper)
    found = compare(fedax.create(name, lr=LR, **hyper), reference, (EACH if full else {}) | TWO | ALL)
    twice = [[client for client, *_ in step.heard] for step in found["all"].steps]
    assert any(len({*clients}) < len(clients) for clients in twice)  # in one step


def test_scaffold():
    """The library's own choice: c moves by p_i, and the model by the mean over the answers of a step."""

    def work(both, i, n, c_i):
        x, c = both
        y = x
        for _ in range(STEPS[i]):
            y = y - LR * (SEVERAL.gradient(i, y) - c_i + c)
        new = c_i - c + (x - y) / (LR * STEPS[i])
        return (y - x, new - c_i), new

    def server(state, answers):
        x, c = state["x"]
        mean = sum(a.weight * a.upload[0] for a in answers) / sum(a.weight for a in answers)
        return {"x": np.array([x + mean, c + sum(P[a.client] * a.upload[1] for a in answers)])}

    zero = np.zeros(D)
    compare(fedax.create("scaffold", lr=LR), asy.Method({"x": np.array([X0, zero])}, [zero] * N, work, server), TWO)


def test_a_median_over_the_answers_of_a_step():
    def server(state, answers):
        omega = np.array([a.weight for a in answers]) / 3
        middle = []
        for column in np.array([a.upload for a in answers]).T:
            rank = np.argsort(column)
            ends = np.cumsum(omega[rank]) / omega.sum()
            low, high = np.argmax(ends > 0.5 - 1e-6), np.argmax(ends > 0.5 + 1e-6)
            middle.append((column[rank][low] + column[rank][high]) / 2)
        return {"x": state["x"] + omega.sum() * np.array(middle)}

    reference = asy.fedbuff(SEVERAL, X0, lr=LR)._replace(server=server)
    three = {"three": OTHERS["three"]}
    compare(fedax.create("fedavg", lr=LR), reference, three, aggregate=fedax.CoordinateMedian())


@in_full
def test_ace(full):
    """A local step of rate −1 gives the gradient; there are no others."""
    reference = asy.ace(ONE, X0, lr=-1.0, server_lr=-LR, full_start=False)
    compare(fedax.create("ace", lr=LR), reference, (EACH if full else {}) | TWO | ALL, gradients=np.ones(N))


@pytest.mark.parametrize(("shorten", "correct"), [("divide", True), ("cap", False)])
def test_fadas(shorten, correct):
    hyper = {"server_lr": 0.4, "eps": 1e-3, "shorten": shorten, "bias_correction": correct}  # "cap" is felt above 2.5
    method = fedax.create("fadas", lr=LR, threshold=3, **hyper)
    reference = asy.fadas(SEVERAL, X0, lr=LR, tau_c=3, **hyper)
    found = compare(method, reference, TWO | ANYONE | ALL if correct else TWO)
    late = [max(s for *_, s in step.heard) for run in found.values() for step in run.steps]
    assert min(late) < 3 < max(late)


def test_ringmaster():
    reference = asy.ringmaster(SEVERAL, X0, lr=LR)
    compare(fedax.create("ringmaster", lr=LR), reference, EACH | TWO, gradients=np.ones(N))
    method, reference = fedax.create("ringmaster", lr=LR, threshold=4), asy.ringmaster(SEVERAL, X0, lr=LR, delay=4)
    found = compare(method, reference, EACH, gradients=np.ones(N))
    assert all(run.dropped.any() and latest(run) == 3 for run in found.values())


def test_ringleader():
    """All of the paper's, and what it leaves open: fewer clients under way, any client, answers at the same instant."""
    reference = asy.ringleader(SEVERAL, X0, lr=LR)._replace(extra=None)  # of which the version counts the answers
    paces = EACH | {"four": (fedax.Async(4, start="idle"), RANDOM), "anyone": ANYONE["anyone"]}
    found = compare(fedax.create("ringleader", lr=LR), reference, paces, gradients=np.ones(N), rounds=60)
    for which, run in found.items():
        moved = np.any(np.diff(run.iterates, axis=0, prepend=X0[None]) != 0, axis=1)
        assert 2 * N < moved.sum() < 60, which


@pytest.mark.parametrize(("name", "rounds"), [("ca2fl", 1500), ("ace", 1500), ("area", 6000), ("ringleader", 3000)])
def test_with_exact_gradients_it_ends_at_the_optimum_whatever_the_speeds(name, rounds):
    """With one local step; plain FedAvg ends elsewhere."""
    optimum = np.linalg.solve(np.einsum("n,nij->ij", P, H), np.einsum("n,ni->i", P, E))
    given = {"rounds": rounds, "work": fedax.Steps(1), "params": X0, "seed": SEED, "clock": FIXED}
    given |= {"pace": fedax.Async(6, start="idle")}
    with jax.enable_x64(True):
        exact, other = (
            np.asarray(fedax.simulate(fedax.create(each, lr=LR), TASK, DATA, **given | more).params)
            for each, more in ((name, {}), ("fedavg", {"rounds": 300}))
        )
    np.testing.assert_allclose(exact, optimum, rtol=0, atol=1e-8)
    assert np.abs(other - optimum).max() > 0.1


@pytest.mark.parametrize("every", mostly_long([1, 3], 3))
def test_delayed_nesterov(every):
    hyper = {"lr": LR, "server_lr": 0.7, "every": every}
    method = fedax.create("delayed-nesterov", server_momentum=0.9, spread=0.6, **hyper)
    compare(method, asy.delayed_nesterov(SEVERAL, X0, momentum=0.9, c=0.6 / every, **hyper), EACH | TWO)
