"""The round: every part of a method's contract, against plain loops in NumPy, and its costs."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from tests.contract.probe import named, numbered

from .. import long
from . import methods
from .problem import ALL, COHORTS, DATA, FEATURES, LR, SIZES, TASK, TAUS, TRACE, UNEQUAL, P, federation, flat, gradient

N = len(SIZES)
M = 4 * (FEATURES + 1)  # bytes of a model
RATE = {"lr": fedax.PowerDecay(LR, 1.0, 0.5), "server_lr": fedax.Piecewise(1.0, {2: 0.5})}


class Case:
    """A method, its loop, and for each cohort the cost of a round: (bytes down, bytes up, gradients, local steps)."""

    def __init__(self, method, loop, cost, before=(0, 0, 0, 0)):
        self.method, self.loop, self.cost, self.before = method, loop, cost, before


def per_client(down, up, gradients, partial_down=None):
    """Costs that every client of a cohort has; ``gradients`` is a function of τ and of a full pass."""

    def cost(cohort, full, passes):
        each = down if full or partial_down is None else partial_down
        return each * len(cohort), up * len(cohort), gradients(TAUS[cohort], passes[cohort]).sum(), TAUS[cohort].sum()

    return cost


CASES = {
    "scaffold": Case(methods.Scaffold(LR, 0.9), methods.scaffold, per_client(2 * M, 2 * M, lambda t, p: t)),
    # The model of the second exchange was sent in the first.
    "mime": Case(methods.Mime(LR), methods.mime, per_client(2 * M, 2 * M, lambda t, p: p + 2 * t)),
    # Under full participation the new model is heard anyway, with the next round.
    "listening": Case(methods.Listening(LR), methods.listening, per_client(M, M, lambda t, p: t, 2 * M)),
    "warm": Case(methods.Warm(LR), methods.warm, per_client(2 * M, 2 * M, lambda t, p: t + 1), (N * M, N * M, N, 0)),
    "decaying": Case(methods.Decaying(**RATE), methods.decaying, per_client(M, M, lambda t, p: t)),
}


def hyper(case: Case) -> dict[str, Any]:
    return {"server_lr": 0.9} if case is CASES["scaffold"] else {}


def run(method: fedax.Algorithm, **options: Any) -> fedax.Run:
    return fedax.simulate(method, TASK, DATA, **({"rounds": 4, "work": UNEQUAL, "evaluate_every": 1} | options))


def rows(run: fedax.Run) -> np.ndarray:
    return np.stack([run.history[name] for name in ("bytes_down", "bytes_up", "gradients", "local_steps")], axis=1)


def close(run: fedax.Run, expected: Any, tolerance: float = 1e-5) -> None:
    x, memory = expected
    np.testing.assert_allclose(flat(run.params), x, rtol=0, atol=tolerance)
    if len(memory):
        np.testing.assert_allclose(flat(run.memory), memory, rtol=0, atol=tolerance)
    assert np.abs(x - methods.X0).max() > 0.02  # it went somewhere


@pytest.mark.parametrize(
    ("name", "cohorts"),
    [*((name, "trace") for name in CASES), pytest.param("scaffold", "full", marks=long), ("listening", "full")],
)
def test_rounds_equal_the_loop_and_cost_what_they_cost(name, cohorts):
    case, full = CASES[name], cohorts == "full"
    got = run(case.method, participation=fedax.Full() if full else TRACE, place=fedax.Place(chunk_size=2))
    drawn = ALL if full else COHORTS
    close(got, case.loop(drawn, LR, **hyper(case)))
    expected = [case.before] + [case.cost(cohort, full, np.ones(N)) for cohort in drawn]
    assert rows(got).tolist() == np.cumsum(expected, axis=0).tolist()
    first = N if name == "warm" else 0
    assert got.history["clients"].tolist() == (first + np.cumsum([0] + [len(cohort) for cohort in drawn])).tolist()


@pytest.mark.parametrize(("participation", "chunk_size"), [(fedax.Full(), 1), (TRACE, 5)])
def test_the_size_of_a_chunk_and_its_padding_change_nothing(participation, chunk_size):
    cohorts = COHORTS if participation is TRACE else ALL
    got = run(methods.Scaffold(LR, 0.9), participation=participation, place=fedax.Place(chunk_size=chunk_size))
    close(got, methods.scaffold(cohorts, LR, 0.9))


def test_equal_steps_and_float64():
    equal = np.full(N, 3)
    with jax.enable_x64(True):
        got = run(methods.Scaffold(LR, 0.9), participation=TRACE, place=fedax.Place(chunk_size=2), work=fedax.Steps(3))
        assert flat(got.params).dtype == flat(got.memory).dtype == np.float64
    close(got, methods.scaffold(COHORTS, LR, 0.9, equal), 1e-12)
    assert got.history["local_steps"].tolist() == [0, 6, 15, 18, 30]


def test_minibatch_gradients_are_counted_one_by_one():
    got = run(CASES["mime"].method, batch_size=2, rounds=1, participation=TRACE, place=fedax.Place(chunk_size=2))
    cost = CASES["mime"].cost(COHORTS[0], False, np.ceil(SIZES / 2))
    assert rows(got).tolist() == [[0, 0, 0, 0], list(cost)]


def test_one_client_of_the_cohort_walks_and_only_it_costs():
    walked, memory = [], np.zeros((N, 2))
    for r in range(1, 5):  # who it was is seen in its memory
        got = run(methods.OneWalks(LR), participation=TRACE, rounds=r)
        after = np.asarray(got.memory)
        (one,) = np.flatnonzero(after[:, 1] - memory[:, 1])
        assert one in COHORTS[r - 1]
        walked.append([i for i in COHORTS[r - 1] if i != one] + [int(one)])
        memory = after
    x, expected = methods.one_walks(walked, LR)
    np.testing.assert_allclose(flat(got.params), x, atol=1e-5)
    assert memory.tolist() == expected.tolist()
    # One exchange with all; then one client more hears the gradient (the model it has), sends its model, and steps.
    cost = [
        (M * len(cohort) + M, M * len(cohort) + M, len(cohort) + 2 * TAUS[cohort[-1]], TAUS[cohort[-1]])
        for cohort in walked
    ]
    assert rows(got).tolist() == np.cumsum([(0, 0, 0, 0), *cost], axis=0).tolist()


class OneThenAll(methods.OneWalks):
    """What one client was sent is no news to the others."""

    def exchanges(self):
        one = fedax.Exchange(self.gather, self.keep, who="one")
        return one, fedax.Exchange(lambda s, m, o: (o.full_grad(s.x), m), lambda s, mean, round: methods.Server(s.x))


def test_what_was_sent_to_one_client_still_has_to_be_sent_to_the_others():
    got = run(OneThenAll(LR), rounds=1)
    # x to one; then x and c to all five: who the one was is not known when the download is made.
    assert got.history["bytes_down"][1] == 11 * M
    assert got.history["bytes_up"][1] == 6 * M


def test_the_server_is_told_about_its_cohort():
    for r, cohort in enumerate(COHORTS, 1):
        got = run(methods.Watching(), participation=TRACE, rounds=r, place=fedax.Place(chunk_size=2))
        total, work = P[cohort].sum(), TAUS[cohort]
        mean = P[cohort] @ work / total
        expected = [r - 1, (r - 1) * TAUS.max(), N, 1, total, 1, len(cohort), work.sum(), mean, mean]
        np.testing.assert_allclose(got.state.row, expected, rtol=1e-5)
    got = run(methods.Watching(), participation=fedax.Uniform(2), rounds=1)
    index, t, n, total, heard, weights, present, *_ = np.asarray(got.state.row)
    assert (index, t, n, present) == (0, 0, N, 2)
    assert heard == pytest.approx(weights * 2 / N) and total == pytest.approx(weights) and total != pytest.approx(1)


WEIGHTS = np.array([0.1, 0.3, 0.0, 0.25, 0.35])
NAMED, ONE_EACH = named(N), numbered([1] * N, WEIGHTS)


@pytest.mark.parametrize(
    ("participation", "law"),
    [
        (fedax.Full(), lambda there: WEIGHTS),
        (fedax.Uniform(3), lambda there: WEIGHTS * there * N / 3),
        pytest.param(fedax.UniformNormalized(3), lambda there: WEIGHTS * there / (WEIGHTS @ there), marks=long),
        (fedax.Proportional(4), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_server_hears_the_sum_by_weight_and_memory_tells_who_was_there(participation, law):
    for seed in range(3):
        got = fedax.simulate(
            methods.Weighing(), NAMED, ONE_EACH, rounds=1, work=UNEQUAL, participation=participation, seed=seed
        )
        x, came = np.asarray(got.params), np.asarray(got.memory)[:, 0]
        alone = np.asarray(got.state.c.tree)
        assert sorted(np.unique(alone)) == [0, 1] and alone.sum() == 1
        there = came - alone  # once for the cohort's exchange, and once more for the one of the second
        assert set(there) <= {0.0, 1.0} and there.sum() == got.history["clients"][-1]
        assert (there[alone == 1] == 1).all() and (x[alone == 1] > 0).all()
        if law is None:
            np.testing.assert_allclose(x * 4, np.round(x * 4), atol=1e-5)
            assert x.sum() == pytest.approx(1) and ((x > 0) == (there > 0)).all() and there[2] == 0
        else:
            np.testing.assert_allclose(x, law(there), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("participation", [fedax.Full(), fedax.Uniform(3)], ids=["full", "uniform"])
def test_the_one_client_is_drawn_by_weight(participation):
    rounds = 4000
    options = {"work": UNEQUAL, "participation": participation, "evaluate_every": rounds}
    got = fedax.simulate(methods.Weighing(), NAMED, ONE_EACH, rounds=rounds, **options)
    share = np.asarray(got.state.c.tree) / rounds
    law = WEIGHTS
    if isinstance(participation, fedax.Uniform):
        triples = [np.isin(np.arange(N), (a, b, c)) for a in range(N) for b in range(a) for c in range(b)]
        law = np.mean([WEIGHTS * there / (WEIGHTS @ there) for there in triples], axis=0)
    assert (np.abs(share - law) <= 4 * np.sqrt(law * (1 - law) / rounds) + 1e-6).all()


def test_relabelling_the_clients_relabels_their_memory_and_nothing_else():
    order = np.array([3, 0, 4, 2, 1])
    data = fedax.FederatedData.from_clients([DATA.client(i) for i in order], P[order])
    work, where = fedax.Steps(TAUS[order]), np.argsort(order)
    cohorts = fedax.Trace([[where[i] for i in cohort] for cohort in COHORTS])
    got = fedax.simulate(
        methods.Scaffold(LR), TASK, data, rounds=4, work=work, participation=cohorts, place=fedax.Place(chunk_size=2)
    )
    x, memory = methods.scaffold(COHORTS, LR)
    close(got, (x, memory[order]))


@pytest.mark.parametrize(("name", "work"), [("fednova", UNEQUAL), ("fednova-vr", fedax.Steps(2))])
def test_a_cohort_without_weight_moves_nothing_and_empty_places_do_no_harm(name, work):
    data = federation(weights=np.array([0.0, 0.3, 0.3, 0.0, 0.4]))
    options = {"work": work, "participation": fedax.Trace([[0], [3, 0], [1], [2, 4, 1]])}
    idle, moved = (
        flat(fedax.simulate(fedax.create(name, lr=LR), TASK, data, rounds=r, **options).params) for r in (2, 4)
    )
    assert idle.tolist() == methods.X0.tolist()
    assert np.isfinite(moved).all() and np.abs(moved - idle).max() > 0.02


def test_the_servers_random_numbers_change_by_round_and_seed():
    path = [flat(run(methods.Drawing(), rounds=r, seed=seed).params)[0] for seed in (0, 1) for r in (0, 1, 2)]
    assert len(np.unique(np.round(np.diff(path)[[0, 1, 3, 4]], 5))) == 4


class Half(methods.Listening):
    """Sends half of the bits, both ways."""

    def exchanges(self):
        return (fedax.Exchange(self.client, self.server),)

    def download(self, server):
        return server.x.map(lambda leaf: leaf.astype(jnp.bfloat16))

    def client(self, x, memory, oracle):
        g = oracle.full_grad(x.map(lambda leaf: leaf.astype(jnp.float32)))
        return g.map(lambda leaf: leaf.astype(jnp.bfloat16)), memory

    def server(self, server, mean, round):
        return methods.Server(server.x - self.lr * mean)


def test_bytes_are_those_of_what_is_sent():
    got = run(Half(LR), rounds=1)
    assert (got.history["bytes_down"][1], got.history["bytes_up"][1]) == (N * M / 2, N * M / 2)
    exact = methods.X0 - LR * sum(p * gradient(i, methods.X0) for i, p in enumerate(P))
    np.testing.assert_allclose(flat(got.params), exact, atol=LR * 0.05)  # bfloat16 keeps three digits


class Counter(fedax.Algorithm):
    """State and memory that begin as plain Python numbers."""

    def init(self, x):
        return {"x": x, "rounds": 0}

    def init_client(self, x):
        return 0

    def client(self, server, memory, oracle):
        return None, memory + 1

    def server(self, server, mean, round):
        return {"x": server["x"], "rounds": server["rounds"] + 1}

    def model(self, server):
        return server["x"]


def test_state_and_memory_may_begin_as_python_numbers():
    got = run(Counter(), participation=TRACE)
    assert got.state["rounds"] == 4
    assert np.asarray(got.memory).tolist() == [sum(i in cohort for cohort in COHORTS) for i in range(N)]


class Misbehaving(methods.Listening):
    """Returns what ``upload``, ``keep`` and ``state`` make of the right values."""

    keep: Any = eqx.field(static=True, default=lambda memory: memory)
    state: Any = eqx.field(static=True, default=lambda server: server)
    who: str = eqx.field(static=True, default="cohort")

    def exchanges(self):
        return (fedax.Exchange(self.client, self.server, who=self.who),)

    def client(self, server, memory, oracle):
        return server.x, self.keep(memory)

    def server(self, server, mean, round):
        return self.state(methods.Server(mean))


@pytest.mark.parametrize(
    "wrong",
    [
        {"state": lambda server: server.x},
        {"state": lambda server: methods.Server(server.x.map(lambda leaf: leaf.astype(jnp.float16)))},
        {"state": lambda server: methods.Server(server.x.map(lambda leaf: leaf[None]))},
        {"keep": lambda memory: (memory, memory)},
        {"keep": lambda memory: memory.tree},
        {"keep": lambda memory: memory.map(jnp.sum)},
        {"keep": lambda memory: memory.map(lambda leaf: leaf.astype(jnp.int32))},
        {"who": "some"},
    ],
    ids=[
        "structure",
        "dtype",
        "shape",
        "memory's tuple",
        "memory's structure",
        "memory's shape",
        "memory's dtype",
        "who",
    ],
)
def test_a_method_that_changes_its_state_or_talks_to_nobody_is_refused(wrong):
    with pytest.raises(fedax.ConfigError, match=r"Misbehaving.*(state|memory)|who = 'some'"):
        run(Misbehaving(LR, **wrong))
