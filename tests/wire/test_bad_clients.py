"""Clients that send nonsense, or nothing: who is left out, what the others then weigh, and averages that bear it."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from jax.sharding import Mesh

import fedax
from tests import in_full, long, mostly_long
from tests.engine.methods import Server
from tests.engine.problem import DATA, LR, TASK, UNEQUAL, X0, P, flat, gradient

from .. import LAST_BITS

ROUNDS, N = 3, DATA.num_clients
NAN = fedax.Faults([1], sends=np.nan)
OTHERS = [0, 2, 3, 4]
WITHOUT_1 = fedax.Trace([OTHERS] * ROUNDS)  # ω_i = p_i over their sum, as what is left of all clients has


ELSEWHERE = {
    "chunks": {"place": fedax.Place(chunk_size=2)},
    "streamed": {"place": fedax.Place(stream=True, chunk_size=1)},
    "mesh": {"place": fedax.Place(mesh=Mesh(np.array(jax.devices()[:2]), ("clients",)))},
}


def run(name="fedavg", rounds=ROUNDS, lr=LR, **options):
    options = {"work": UNEQUAL, "batch_size": 2, "evaluate_every": 1} | options
    method = fedax.create(name, lr=lr) if isinstance(name, str) else name
    return fedax.simulate(method, TASK, DATA, rounds=rounds, **options)


def alike(one, other, rtol=1e-5, columns=("train_loss",)):
    for column in columns:
        np.testing.assert_allclose(one.history[column], other.history[column], rtol)
    everyone = np.arange(N)
    memory = [each.memory[everyone] if hasattr(each.memory, "kept") else each.memory for each in (one, other)]
    for a, b in ((one.params, other.params), (one.state, other.state), memory):
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
            np.testing.assert_allclose(x, y, rtol, LAST_BITS)


@jax.jit
def _draw(participation, key, index):
    return participation.draw(key, jnp.asarray(P, jnp.float32), index)


def drawn(participation, seed, index):
    """A cohort of round ``index``."""
    return _draw(participation, jax.random.key(seed), index)


def of_the_first_round(participation):
    """The first cohort of a run with seed 0."""
    return _draw(participation, jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 0), 0), 0)


ALIKE = ("fedavg", "fednova", "scaffold", "fednova-vr", "mime", "feddyn")


@pytest.mark.parametrize("name", mostly_long(ALIKE, "scaffold", "mime"))
def test_what_is_left_out_is_as_if_it_had_not_been_drawn(name):
    """Weights, sums over all clients and memory are those of the cohort without it."""
    hyper = {"work": fedax.Steps(2)} if name in ("mime", "feddyn") else {}
    one = run(name, guard=True, faults=NAN, **hyper)
    alike(one, run(name, participation=WITHOUT_1, **hyper))
    assert one.left_out == {1: ROUNDS}
    assert one.history["left_out"].tolist() == [0, 1, 2, 3]
    assert one.history["bad_clients"].tolist() == [[], [1], [1], [1]]
    assert one.history["skipped"].tolist() == [0] * 4


def test_a_warm_up_leaves_out_too():
    """What is summed over all clients is the sum of what they keep, from the warm-up on."""
    one = run("scaffold-m", guard=True, faults=NAN, work=fedax.Steps(2))
    assert np.isfinite(one.history["train_loss"]).all()
    assert one.left_out == {1: ROUNDS + 1}
    for kept, summed in zip(jax.tree.leaves(one.memory), jax.tree.leaves(one.state.c), strict=True):
        assert (kept[1] == 0).all()
        if kept.ndim == 2:
            np.testing.assert_allclose(summed, P @ np.asarray(kept), 1e-4)


@pytest.mark.parametrize("sends", [np.nan, np.inf, -np.inf, 1e30, -1e11])
def test_what_counts_as_nonsense(sends):
    assert run(guard=True, faults=fedax.Faults([1], sends=sends)).left_out == {1: ROUNDS}
    assert run(guard=fedax.Guard(largest=1e32), faults=fedax.Faults([1], sends=1e9), rounds=1).left_out == {}


def test_a_share_of_faulty_clients_is_rounded_up_but_for_the_last_bits():
    assert [len(fedax.Faults(share, 1.0).of(100)) for share in (0.07, 0.071, 0.001, 1.0)] == [7, 8, 1, 100]


def test_where_nobody_is_faulty_nothing_changes():
    plain, none = run(), run(faults=fedax.Faults([], sends=np.nan))
    assert none.history["train_loss"].tolist() == plain.history["train_loss"].tolist()


def test_without_a_guard_one_client_spoils_all():
    with pytest.warns(fedax.DivergedWarning):
        assert run(faults=NAN).status == "diverged"


def test_a_guard_that_finds_nothing_changes_nothing():
    one, other = (
        run("scaffold", participation=fedax.Uniform(3)),
        run("scaffold", participation=fedax.Uniform(3), guard=True),
    )
    alike(one, other, rtol=0)
    assert other.left_out == {}


@pytest.mark.parametrize(
    "participation",
    [fedax.Uniform(3), pytest.param(fedax.UniformNormalized(3), marks=long), fedax.Proportional(4)],
)
def test_the_others_weigh_more(participation):
    """One full step: Uniform's S becomes the number that is left; the others keep the sum of their weights."""
    cohort = of_the_first_round(participation)
    bad = int(cohort.ids[0])
    left = [(int(i), float(w)) for i, w in zip(cohort.ids, cohort.weights, strict=True) if i not in (bad, N)]
    if isinstance(participation, fedax.Uniform):
        weights = {i: P[i] * N / len(left) for i, _ in left}
    else:
        weights = {i: w * float(cohort.weights.sum()) / sum(w for _, w in left) for i, w in left}
    step = -LR * sum(w * gradient(i, X0) for i, w in weights.items())
    result = run(
        participation=participation, work=fedax.Steps(1), batch_size=None, rounds=1,
        guard=True, faults=fedax.Faults([bad], sends=1e30),
    )  # fmt: skip
    np.testing.assert_allclose(flat(result.params), X0 + step, 1e-5)


@pytest.mark.parametrize(("name", "where"), [("fedadam", "device"), ("mime", "streamed"), ("ce-lsgd", "device")])
def test_a_round_of_which_nothing_is_left_changes_nothing(name, where):
    """Not even the server's momentum."""
    options = {
        "guard": True,
        "faults": fedax.Faults(range(N), sends=np.inf),
        "place": fedax.Place(stream=where == "streamed"),
    }
    start, result = (run(name, rounds, work=fedax.Steps(2), **options) for rounds in (0, ROUNDS))
    warmup = int(name == "ce-lsgd")
    assert result.history["skipped"].tolist() == [warmup + r for r in range(4)]
    assert result.history["left_out"][-1] == N * (ROUNDS + warmup)
    for a, b in ((result.params, start.params), (result.state, start.state)):
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
            np.testing.assert_array_equal(x, y)
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(result.memory) if where != "streamed")


class BrokenAt(fedax.Algorithm):
    """A method of two exchanges, of which the client of six examples, number 4, sends NaN in one."""

    inner: fedax.Algorithm
    number: int = eqx.field(static=True)

    def init(self, x):
        return self.inner.init(x)

    def init_client(self, x):
        return self.inner.init_client(x)

    def warmup(self):
        return self.inner.warmup()

    def exchanges(self):
        exchanges = list(self.inner.exchanges())
        own = exchanges[self.number].client

        def client(download, memory, oracle):
            upload, memory = own(download, memory, oracle)
            return jax.tree.map(lambda leaf: jnp.where(oracle._size == 6, jnp.nan, leaf), upload), memory

        exchanges[self.number] = exchanges[self.number]._replace(client=client)
        return tuple(exchanges)


@pytest.mark.parametrize("where", mostly_long(["device", "streamed"], "streamed"))
def test_who_is_left_out_stays_out_of_the_round(where):
    method, options = (
        fedax.create("mime", lr=LR),
        {"work": fedax.Steps(2), "place": fedax.Place(stream=where == "streamed")},
    )
    result = run(BrokenAt(method, 0), guard=True, **options)
    alike(result, run(method, participation=fedax.Trace([[0, 1, 2, 3]] * ROUNDS), work=fedax.Steps(2)))
    assert result.left_out == {4: ROUNDS}


class Counting(fedax.Algorithm):
    """Two exchanges, in each of which a client changes what it keeps."""

    def init(self, x):
        return Server(x)

    def init_client(self, x):
        return jnp.zeros(2)

    def exchanges(self):
        first = fedax.Exchange(lambda s, m, o: (s.x, m + jnp.array([1.0, 0.0])), lambda s, mean, round: s)
        second = fedax.Exchange(lambda s, m, o: (s.x, m + jnp.array([0.0, 1.0])), lambda s, mean, round: s)
        return first, second


@pytest.mark.parametrize("where", ["device", "host", "streamed"])
def test_what_is_left_out_late_keeps_what_it_had_before_the_round(where):
    options = {
        "device": {},
        "host": {"place": fedax.Place(client_memory="host")},
        "streamed": {"place": fedax.Place(stream=True)},
    }[where]
    result = run(BrokenAt(Counting(), 1), guard=True, work=fedax.Steps(2), **options)
    kept = result.memory if where == "device" else result.memory[np.arange(N)]
    assert np.asarray(kept).tolist() == [[ROUNDS, ROUNDS]] * 4 + [[0, 0]]


@pytest.mark.parametrize("where", mostly_long(["device", "streamed"], "device"))
def test_one_client_that_moves_the_model_alone(where):
    """CE-LSGD: the round is lost where it is the bad one, who was heard before."""
    options = {"rounds": 12, "work": fedax.Steps(2), "place": fedax.Place(stream=where == "streamed")}
    result = run(BrokenAt(fedax.create("ce-lsgd", lr=LR), 1), guard=True, **options)
    times = result.left_out[4]
    assert result.left_out == {4: times}
    assert result.history["skipped"][-1] == times
    assert 0 < times < 12
    assert np.isfinite(result.history["train_loss"]).all()


def test_a_guard_may_stop_the_run(tmp_path):
    options = {"participation": fedax.Trace([[0, 2], [2, 3], [0, 1], [3, 4]]), "rounds": 4, "evaluate_every": 4}
    for _ in range(2):  # the second finds that it is over
        with pytest.warns(fedax.BadClientWarning, match=r"clients \[1\] sent .*out by round 3"):
            result = run(faults=NAN, guard=fedax.Guard(stop=True), checkpoint=tmp_path, **options)
        assert result.status == "failed"
        assert result.history["round"].tolist() == [0, 3]
    alike(result, run(participation=fedax.Trace([[0, 2], [2, 3], [0]]), evaluate_every=3), columns=())


@in_full
def test_a_run_with_losses_goes_on_bit_by_bit(tmp_path, full):
    options = {"participation": fedax.Dropout(fedax.Uniform(3), 0.4), "guard": True, "faults": NAN}
    for where in (*([{}] if full else []), {"place": fedax.Place(client_memory="host")}):
        folder = tmp_path / "-".join(["run", *where])
        whole = run("scaffold", rounds=6, **options, **where)
        run("scaffold", rounds=3, checkpoint=folder, **options, **where)
        again = run("scaffold", rounds=6, checkpoint=folder, **options, **where)
        alike(whole, again, rtol=0, columns=("train_loss", "left_out", "skipped", "clients"))
        assert whole.left_out == again.left_out
    with pytest.raises(fedax.CheckpointError, match=r"guard.largest was 10000000000.0, is 5.0"):
        run("scaffold", rounds=6, checkpoint=folder, **(options | {"guard": fedax.Guard(largest=5.0)}))


@long
def test_side_by_side():
    options = {"work": UNEQUAL, "batch_size": 2, "evaluate_every": 1, "rounds": ROUNDS, "guard": True, "faults": NAN}
    options["participation"] = fedax.Uniform(2)
    sweep = fedax.sweep(lambda lr: fedax.create("scaffold", lr=lr), {"lr": [0.01, LR]}, TASK, DATA, seeds=2, **options)
    for i, lr in enumerate([0.01, LR]):
        for seed in range(2):
            alone = run("scaffold", lr=lr, seed=seed, **options)
            together = sweep.runs[i][seed]
            for column in ("left_out", "skipped", "bad_clients"):
                assert together.history[column].tolist() == alone.history[column].tolist()
            np.testing.assert_allclose(together.history["train_loss"], alone.history["train_loss"], 1e-5)


# ---- clients that drop out


@pytest.mark.parametrize(
    ("participation", "rate"),
    [
        (fedax.Full(), 0.5),
        (fedax.Uniform(3), 0.5),
        (fedax.Proportional(3), 0.5),
        (fedax.Systematic(3), 0.5),
        (fedax.Uniform(3), [0.0, 0.9, 0.3, 0.5, 0.1]),
    ],
)
def test_dropping_out_leaves_the_estimate_unbiased(participation, rate):
    """Σ ω_i v_i over 100,000 cohorts has the mean Σ p_i v_i, within four standard errors."""
    values, p = jnp.asarray([3.0, -1.0, 10.0, 2.0, 7.0]), jnp.asarray(P, jnp.float32)
    dropout = fedax.Dropout(participation, rate).bind(P)

    def estimates(key):
        cohort = dropout.draw(key, p, 0)
        result = jnp.sum(cohort.weights * values.at[cohort.ids].get(mode="fill", fill_value=0))
        return result, jnp.sum(cohort.ids < N)

    result, number = jax.jit(jax.vmap(estimates))(jax.random.split(jax.random.key(1), 100_000))
    error = np.std(result, ddof=1) / np.sqrt(len(result))
    assert abs(np.mean(result) - P @ np.asarray(values)) < 4 * error
    if rate == 0.5 and not isinstance(participation, fedax.Proportional):
        assert np.mean(number) == pytest.approx(participation.places(N) / 2, rel=0.02)


def test_normalised_weights_stay_so():
    for participation in (fedax.UniformNormalized(4), fedax.Trace([[0, 1, 2]])):
        numbers = set()
        for seed in range(6):
            cohort = drawn(fedax.Dropout(participation, 0.5), seed, 0)
            there = [int(i) for i in cohort.ids if i < N]
            expected = [P[i] / P[there].sum() if i < N else 0 for i in cohort.ids]
            np.testing.assert_allclose(cohort.weights, expected, 1e-6)
            numbers.add(len(there))
        assert len(numbers) > 1


def test_who_is_available():
    """All clients, of whom some answer, are the cohorts that answer; a round in which none does is skipped."""
    cohorts = [[4, 1], [0, 3, 2], [], [2]]
    table = np.array([[i in cohort for i in range(N)] for cohort in cohorts])
    result = run("scaffold", rounds=4, participation=fedax.Dropout(fedax.Full(), available=table))
    assert result.history["skipped"].tolist() == [0, 0, 0, 1, 1]
    assert result.history["clients"].tolist() == [0, 2, 5, 5, 6]
    assert result.history["train_loss"][2] == result.history["train_loss"][3]
    whole = run("scaffold", rounds=2, participation=fedax.Trace(cohorts[:2]))
    np.testing.assert_allclose(result.history["train_loss"][:3], whole.history["train_loss"], 1e-5)
    some = drawn(fedax.Dropout(fedax.Uniform(4), available=table[:2]), 0, 1)
    there = [int(i) for i in some.ids if i < N]
    np.testing.assert_allclose(some.weights, [P[i] * N / len(there) if i < N else 0 for i in some.ids], 1e-6)


def test_no_one_drops_out():
    for participation in (fedax.Full(), fedax.Uniform(3), fedax.UniformNormalized(3)):
        for index in range(5):
            one, other = (drawn(each, index, index) for each in (participation, fedax.Dropout(participation, 0)))
            assert one.ids.tolist() == other.ids.tolist()
            np.testing.assert_allclose(other.weights, one.weights, 1e-6)
    one, other = (
        run("scaffold", participation=each) for each in (fedax.Uniform(3), fedax.Dropout(fedax.Uniform(3), 0))
    )
    alike(one, other, rtol=LAST_BITS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fedax.Dropout(fedax.Full()), "dropout.rate = None: give a rate or a table"),
        (lambda: fedax.Dropout(fedax.Full(), 0.5, [[True]]), "dropout.rate = 0.5: give a rate or a table"),
        (lambda: fedax.Dropout(fedax.Full(), 1.0), r"dropout.rate = 1.0: .*\[0, 1\)"),
        (lambda: fedax.Dropout(fedax.Full(), [0.1, -1]), r"dropout.rate = -1: give a number in \[0, 1\)"),
        (lambda: fedax.Dropout(fedax.Dropout(fedax.Full(), 0.5), 0.5), "dropout.of = Dropout"),
        (lambda: fedax.Dropout(fedax.Full(), available=[1, 0]), "dropout.available"),
        (
            lambda: run(participation=fedax.Dropout(fedax.Full(), [0.5])),
            "dropout.rate = '1 rates': .*each of 5",
        ),
        (
            lambda: run(participation=fedax.Dropout(fedax.Full(), available=np.ones((2, 5), bool))),
            "dropout.available = '2 rounds of 5 clients'",
        ),
        (lambda: run("vrl-sgd", participation=fedax.Dropout(fedax.Full(), 0.5)), "'clients may drop out': VRL-SGD is"),
        (lambda: run("vrl-sgd", guard=True), "'a guard may .*': VRL-SGD .*for full"),
        (lambda: run("vrl-sgd", participation=fedax.Uniform(3)), "'3 of 5 clients': VRL-SGD .*for full"),
        (lambda: run("vrl-sgd", participation=fedax.Proportional(5)), "'5 of 5 clients': VRL-SGD .*for full"),
        (lambda: fedax.Guard(largest=0), r"largest = 0: give a number in \(0, ∞\)"),
        (lambda: fedax.Guard(stop=1), "stop = 1: give True or False"),
        (lambda: run(guard=3), "guard = 3: give True or fedax.Guard"),
        (lambda: run(aggregate="median"), "aggregate = 'median': give CoordinateMedian"),
        (lambda: run(faults=[1]), r"faults = \[1\]: give fedax.Faults"),
        (lambda: fedax.Faults([1]), "sends = .*: give either sends or times"),
        (lambda: fedax.Faults([1], sends="nan"), "sends = 'nan': give a number"),
        (lambda: fedax.Faults(0, sends=1), r"clients = 0: give a number in \(0, 1\]"),
        (lambda: run(faults=fedax.Faults([5], sends=1)), "clients = 5: there are 5 clients, from 0"),
        (lambda: fedax.TrimmedMean(0.5), r"share = 0.5: give a number in \(0, 0.5\)"),
        (lambda: fedax.TrimmedMean(0.4999999), "next to one half nothing is left"),
        (lambda: fedax.TrimmedMean(np.float32(0.4999999)), "next to one half nothing is left"),
        (lambda: fedax.GeometricMedian(0), "steps = 0"),
        (lambda: fedax.ClippedMean(0), "norm = 0"),
        (lambda: run("scaffold", aggregate=fedax.CoordinateMedian()), "Scaffold: its clients keep something"),
        (
            lambda: run("ce-lsgd", aggregate=fedax.TrimmedMean(), work=fedax.Steps(2)),
            "CELSGD: one client of the cohort",
        ),
        (lambda: run("fednova", aggregate=fedax.ClippedMean(1.0)), "FedAvg uploads more than an update"),
        (
            lambda: run("mime", aggregate=fedax.ClippedMean(1.0), work=fedax.Steps(2)),
            "Mime uploads more than an update",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(fedax.ConfigError, match=message):
        make()


# ---- averages

# As a run has them: compiled whole.
averaged = jax.jit(lambda how, uploads, weights: how.average(uploads, weights))


UPLOADS = np.random.default_rng(0).normal(size=(9, 4, 2))
EQUAL = np.full(9, 0.2)  # which need not have the sum 1
UNEQUAL_WEIGHTS = np.array([3, 1, 2, 1, 1, 2, 1, 1, 2]) / 14


def test_medians_are_those_of_others():
    median = fedax.CoordinateMedian()
    np.testing.assert_allclose(averaged(median, UPLOADS, EQUAL), np.median(UPLOADS, axis=0), 1e-6)
    np.testing.assert_allclose(averaged(median, UPLOADS[:8], EQUAL[:8]), np.median(UPLOADS[:8], axis=0), 1e-6)
    copies = np.repeat(UPLOADS, np.rint(14 * UNEQUAL_WEIGHTS).astype(int), axis=0)
    np.testing.assert_allclose(averaged(median, UPLOADS, UNEQUAL_WEIGHTS), np.median(copies, axis=0), 1e-6)
    absent = np.concatenate([np.full((2, 4, 2), 99.0), UPLOADS]), np.append([0, 0], EQUAL)
    np.testing.assert_allclose(averaged(median, *absent), np.median(UPLOADS, axis=0), 1e-6)


def test_trimmed_means_are_those_of_others():
    ninth = fedax.TrimmedMean(2 / 9)
    np.testing.assert_allclose(averaged(ninth, UPLOADS, EQUAL), scipy.stats.trim_mean(UPLOADS, 2.1 / 9, axis=0), 1e-5)
    copies = np.repeat(UPLOADS, np.rint(14 * UNEQUAL_WEIGHTS).astype(int), axis=0)
    average = averaged(fedax.TrimmedMean(3 / 14), UPLOADS, UNEQUAL_WEIGHTS)
    np.testing.assert_allclose(average, scipy.stats.trim_mean(copies, 3.1 / 14, axis=0), 1e-5)
    spoilt = np.where(np.arange(9)[:, None, None] < 2, [[[np.nan, np.inf]]], UPLOADS)
    assert np.isfinite(averaged(ninth, spoilt, EQUAL)).all()


def test_the_geometric_median_is_where_the_distances_are_least():
    def distances(z):
        return np.sum(UNEQUAL_WEIGHTS * np.linalg.norm(UPLOADS.reshape(9, 8) - z, axis=1))

    tree = {"a": UPLOADS[:, :, 0], "b": UPLOADS[:, :, 1]}  # together one vector
    average = averaged(fedax.GeometricMedian(steps=200), tree, UNEQUAL_WEIGHTS)
    best = scipy.optimize.minimize(distances, np.zeros(8), method="BFGS", tol=1e-10).x.reshape(4, 2)
    np.testing.assert_allclose(np.stack([average["a"], average["b"]], axis=-1), best, atol=1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1e30, 1e30])
@pytest.mark.parametrize("aggregate", [fedax.CoordinateMedian(), fedax.TrimmedMean(0.4), fedax.GeometricMedian()])
def test_a_minority_does_not_move_them_far(aggregate, bad):
    lies = UPLOADS.copy()
    lies[[1, 4, 6]] = bad
    values = np.asarray(averaged(aggregate, lies, EQUAL))
    honest = np.delete(UPLOADS, [1, 4, 6], axis=0)
    assert (values >= honest.min(axis=0)).all()
    assert (values <= honest.max(axis=0)).all()


@pytest.mark.parametrize("where", ["chunks", "streamed", "mesh"])
def test_a_round_with_a_median(where):
    """Two rounds of two full steps, in NumPy; the weights have another sum than 1."""
    participation, x = fedax.Trace([[3, 1, 4], [1, 2, 4, 0]]), X0
    for cohort in ([3, 1, 4], [1, 2, 4, 0]):
        p = P[cohort] / P[cohort].sum()
        updates = []
        for i in cohort:
            y = x - LR * gradient(i, x)
            updates.append(y - LR * gradient(i, y) - x)
        order = np.argsort(updates, axis=0)
        ends = np.cumsum(p[order], axis=0)
        x = x + np.take_along_axis(np.array(updates), order, 0)[np.argmax(ends > 0.5, axis=0), np.arange(4)]
    result = run(
        rounds=2, work=fedax.Steps(2), batch_size=None, participation=participation, aggregate=fedax.CoordinateMedian(),
        **ELSEWHERE[where],
    )  # fmt: skip
    np.testing.assert_allclose(flat(result.params), x, 1e-5)


def test_the_weights_keep_their_sum():
    ids, weights = map(np.asarray, of_the_first_round(fedax.Uniform(3)))
    assert abs(weights.sum() - 1) > 0.05
    updates = -LR * np.array([gradient(i, X0) for i in ids])
    clipped = updates * np.minimum(1, 0.02 / np.linalg.norm(updates, axis=1))[:, None]
    point = averaged(fedax.GeometricMedian(steps=100), updates, weights)
    options = {"rounds": 1, "work": fedax.Steps(1), "batch_size": None, "participation": fedax.Uniform(3)}
    result = run(aggregate=fedax.ClippedMean(0.02), **options)
    np.testing.assert_allclose(flat(result.params), X0 + weights @ clipped, 1e-5)
    result = run(aggregate=fedax.GeometricMedian(steps=100), **options)
    np.testing.assert_allclose(flat(result.params), X0 + weights.sum() * np.asarray(point), 1e-4)


def test_a_lie_is_no_nonsense_and_a_median_bears_it():
    """A client that sends its update times −30 passes a guard."""
    options = {"rounds": 30, "work": fedax.Steps(2), "batch_size": None, "lr": 0.02, "evaluate_every": 30}
    options["faults"] = fedax.Faults([0], times=-30.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fedax.DivergedWarning)
        spoilt = run(guard=True, **options)
    borne = run(aggregate=fedax.CoordinateMedian(), **options)
    assert not spoilt.history["train_loss"][-1] < 2 * spoilt.history["train_loss"][0]
    assert borne.history["train_loss"][-1] < 0.5 * borne.history["train_loss"][0]


def test_a_trimmed_mean_of_very_many_clients():
    """Each of whom counts for less than sums of weights are rounded to."""
    n = 2**20
    values = np.linspace(-1.0, 1.0, n, dtype=np.float32)
    values[-n // 20 :] = 1e30  # which are cut off
    uploads, weights = jnp.asarray(values), jnp.full(n, 1 / n)
    mean = jax.jit(fedax.TrimmedMean(0.1).average)(uploads, weights).item()
    assert mean == pytest.approx(np.mean(np.sort(values)[n // 10 : -n // 10]), abs=1e-3)
