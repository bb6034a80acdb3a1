"""Privacy of clients: how far one client can move a sum, what noise is added to it, and what is refused."""

import functools
import zlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.sharding import Mesh

import fedax
from fedax.algorithms import METHODS
from fedax.contract.compression import ArrayForm, decoded
from fedax.contract.vector import Vector, norm_of
from fedax.engine.make import make_job
from fedax.engine.places.host import draw_rounds
from fedax.engine.private import check as check_private
from fedax.engine.simulate import program
from fedax.federation.census import Census
from fedax.wire.privacy import DP, standard_normal
from fedax.wire.secure import FixedPoint
from fedax.wire.sums import is_change, without_marks
from fedax.wire.wire import Wire

from .. import LAST_BITS, long

pytest.importorskip("dp_accounting", reason="needs pip install 'fedax[privacy]'")
from fedax.privacy.accounting import NOISE_END

N, D, CLIP = 6, 4, 0.5
_RNG = np.random.default_rng(0)
TASK = fedax.tasks.softmax_regression(3, 2)
_X, _Y = 3 * _RNG.normal(size=(4 * N, 3)), _RNG.integers(0, 2, 4 * N)
DATA = fedax.FederatedData({"x": _X.astype(np.float32), "y": _Y.astype(np.int32)}, np.full(N, 4))
CHANCE = {"poisson": 0.7, "uniform": 0.5, "full": 1.0}
COHORTS = {"poisson": fedax.Poisson(0.7), "uniform": fedax.Uniform(3), "full": fedax.Full()}
PLACES = {
    "chunks": {"place": fedax.Place(chunk_size=2, client_memory="device")},
    "host": {"place": fedax.Place(client_memory="host", chunk_size=1)},
    "streamed": {"place": fedax.Place(stream=True, chunk_size=3)},
    "2 devices": {"place": fedax.Place(mesh=Mesh(np.array(jax.devices()[:2]), ("clients",)))},
}
WORST = 2  # the client that sends what it should not


class Recording(fedax.Algorithm):
    """A method that remembers all sums, and whose server goes on as if each were 0.1: so each depends on no other."""

    inner: fedax.Algorithm
    forms: tuple = eqx.field(static=True, default=())

    def init(self, x):
        return self.inner.init(x), tuple(form.tree(jnp.zeros(form.size)) for form in self.forms)

    def init_client(self, x):
        return self.inner.init_client(x)

    def model(self, server):
        return self.inner.model(server[0])

    def traits(self):
        return self.inner.traits()

    def exchanges(self):
        return self._stage(self.inner.exchanges(), len(self.inner.warmup()))

    def warmup(self):
        return self._stage(self.inner.warmup(), 0)

    def _stage(self, stage, first):
        return tuple(self._recorded(each, first + k) for k, each in enumerate(stage))

    def _recorded(self, exchange, number):
        def server(state, mean, round):
            own, heard = state
            own = exchange.server(own, jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.1), mean), round)
            return own, tuple(mean if k == number else each for k, each in enumerate(heard))

        download = exchange.download or self.inner.download
        return fedax.Exchange(
            exchange.client, None if exchange.server is None else server, lambda state: download(state[0]), exchange.who
        )


def private(clip=CLIP, noise=0.0, **options):
    """With noise that can be made again."""
    return DP(clip, noise, 1e-3, **{"noise_seed": 0} | options)


def refused(method):
    try:
        census = Census.of(DATA)
        check_private(Wire(privacy=private()), method, fedax.Full(), census, None)
        method.traits().refuse(missing="some")
    except fedax.ConfigError:
        return True
    return False


def sums(name, cohort, options, times):
    """Of each exchange, the warm-up's first, the numbers of the sum in which one client's upload is multiplied.

    In units in which the clip holds: an estimate counts 1, and so does a change, whatever the server divides by.
    """
    method = fedax.create(name) if "lr" not in fedax.hyperparameters(name) else fedax.create(name, lr=0.3)
    given = {"rounds": 1, "work": fedax.Steps(2), "batch_size": 2}
    warmup, exchanges = make_job(method, TASK, DATA, **given).forms
    forms = [jax.eval_shape(decoded, each.upload) for each in (*warmup, *exchanges)]
    plain = tuple(ArrayForm.of(without_marks(form)) for form in forms)
    given |= {"participation": COHORTS[cohort], "privacy": private(), "faults": fedax.Faults([WORST], times=times)}
    going = program(make_job(Recording(method, plain), TASK, DATA, **given | options))
    state, _ = going.advance(going.prepare()[0], 0, 1)
    results = []
    heard = going.job.of_method(state).server[1]
    for k, (form, mean) in enumerate(zip(forms, heard, strict=True)):
        expected = N if k < len(warmup) else N * CHANCE[cohort]
        scaled = [leaf * (N if is_change(part) else expected) for part, own in _pairs(form, mean) for leaf in own]
        results.append(np.concatenate([np.ravel(leaf) for leaf in scaled] or [np.zeros(0)]))
    return results


def _pairs(form, mean):
    """Each part of a form, and the leaves of the mean that stand for it."""
    leaves = iter(jax.tree.leaves(mean))
    for part in jax.tree.leaves(form, is_leaf=is_change):
        yield part, [np.asarray(next(leaves)) for _ in jax.tree.leaves(part)]


ACCEPTED = [name for name in METHODS if not refused(fedax.create(name))]

COMBINED = [(cohort, place) for cohort in ("poisson", "uniform") for place in PLACES]


@pytest.mark.skipif(len(jax.devices()) < 2, reason="needs 2 devices")
@pytest.mark.parametrize(
    ("name", "combined"),
    [(name, COMBINED[zlib.crc32(name.encode()) % len(COMBINED) :][:1]) for name in ("scaffold-m-vr", "mime")]
    + [pytest.param(name, COMBINED, marks=long) for name in ACCEPTED],
)
def test_one_client_moves_a_sum_by_at_most_the_clip(name, combined):
    """Whatever it sends, beside a federation without it; in the warm-up and in each exchange."""
    for cohort, place in combined:
        without = sums(name, cohort, PLACES[place], times=0.0)
        for times in (1.0, -1.0, 1e30, np.nan):
            moved = [
                np.linalg.norm(a - b) for a, b in zip(sums(name, cohort, PLACES[place], times), without, strict=True)
            ]
            assert max(moved) <= CLIP * (1 + 1e-5), (cohort, place, times)
            # It does send something: the test would see a clip that is too long.
            assert times != 1e30 or max(moved) > 0.99 * CLIP, (cohort, place, times)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30, 9e37, 3e38])
def test_no_size_of_numbers_escapes_a_norm(size):
    """The reciprocal of a float32 above 8e37 counts as 0: with a norm of 0 a client could send what it likes."""
    x = jnp.full((2, 100), size, jnp.float32)
    true = 10 * float(np.float32(size))
    wanted = true if true < float(np.finfo(np.float32).max) else np.inf
    found = jax.jit(jax.vmap(lambda leaf: norm_of([leaf])))(x).tolist()
    assert [*found, norm_of([x[0, :50], x[0, 50:]]).item()] == pytest.approx([wanted] * 3, rel=1e-5)

    def longest(each):
        return np.linalg.norm(np.asarray(jax.jit(jax.vmap(each))(x), np.float64), axis=1).max()

    for by_leaf in (False, True):
        privacy = DP(clip=1.0, noise=1.0, delta=1e-5, by_leaf=by_leaf)
        assert longest(lambda leaf, how=privacy: how.clipped(leaf, 1.0)[0]) <= 1 + 1e-6
        assert jax.vmap(lambda leaf, how=privacy: how.clipped(leaf, 1.0)[1])(x).tolist() == [true <= 1] * 2
    assert longest(fedax.ClippedMean(1.0).each) <= 1 + 1e-6
    fixed = FixedPoint(1.0, (jnp.float32(0.5),) * 2, places=2, bits=32)
    assert longest(lambda leaf: fixed.numbers(fixed.integers(leaf, 0.5, 0.5)) / 0.5) <= 1 + 1e-6
    inside = longest(lambda leaf: fedax.L2Ball(1.0).step(Vector(leaf), 1.0, 0.0).tree)
    assert inside <= 1 + 1e-6 or (size > 8e37 and np.isnan(inside))  # of a model that is lost; the run has diverged
    sent = fedax.QSGD(4)
    there = sent.restore(sent.compress(jax.random.key(0), x[0]), ArrayForm.of(x[0]))
    assert not np.isfinite(there).all() if np.isinf(wanted) else np.abs(there).max() > 0


def test_each_part_of_an_upload_shares_the_clip():
    upload = {"dx": jnp.array([3.0, 0.0]), "c": fedax.Change(jnp.array([0.0, 4.0]))}
    cut, short = private(2.5).clipped(upload, 2.5)
    np.testing.assert_allclose(cut["dx"], [1.5, 0])
    np.testing.assert_allclose(cut["c"].value, [0, 2])
    assert not short
    by_leaf, _ = private(2.5, by_leaf=True).clipped(upload, 2.5)
    np.testing.assert_allclose(by_leaf["dx"], [2.5 / 2**0.5, 0], 1e-6)
    same, short = private(5.5).clipped(upload, 5.5)
    np.testing.assert_array_equal(same["dx"], upload["dx"])
    assert short
    for bad in (np.nan, np.inf, -np.inf):
        zero, short = private(2.5).clipped(upload | {"dx": jnp.array([bad, 1.0])}, 2.5)
        assert not any(map(np.any, jax.tree.leaves(zero))) and not short


# ---- noise

WIDE = fedax.FederatedData({"e": _RNG.normal(size=(N, 1500)).astype(np.float32)}, np.ones(N, int))
WIDE_TASK = fedax.Task(
    init=lambda key: jnp.zeros(1500),
    loss=lambda x, batch, key: 0.5 * jnp.sum((x[None] - batch["e"]) ** 2, axis=1),
)


def wide(noise, rounds=1, name="fedavg", secret=None, **options):
    """x after some rounds, with clip 0.5 and cohorts of which 3 are expected."""
    given = {"participation": fedax.Poisson(0.5), "work": fedax.Steps(1), "evaluate_every": max(1, rounds)} | options
    return fedax.simulate(
        fedax.create(name, lr=0.1), WIDE_TASK, WIDE, rounds=rounds, privacy=private(noise=noise, **given.pop("dp", {})),
        **given,
    )  # fmt: skip


def noise_of(seed=0, index=0, number=0, like=None):
    """As the engine keys it: by seed, round and exchange, and by nothing else."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), index), 2)
    key = jax.random.fold_in(jax.random.fold_in(key, 0x6E6F6973), number)
    for _ in range(4):
        key = jax.random.fold_in(key, 0)
    # Box and Muller, in float64, of the same bits.
    a, b, c, turn = np.asarray(jax.random.bits(jax.random.split(key, 1)[0], (4, 750), jnp.uint32)).astype(float)
    radius = np.sqrt(-2 * np.log((a + (b + (c + 0.5) / 2**32) / 2**32) / 2**32))
    angle = 2 * np.pi * turn / 2**32
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])


@pytest.mark.parametrize("place", [{}, *(PLACES[name] for name in ("host", "2 devices"))])
def test_noise_is_added_once_and_is_that_of_seed_and_round(place):
    clipped, noised = wide(0.0, seed=3, **place), wide(0.8, seed=3, **place)
    want = 0.8 * CLIP / 3 * noise_of(seed=3)
    np.testing.assert_allclose(np.asarray(noised.params) - clipped.params, want, rtol=0, atol=LAST_BITS)


def test_noise_has_the_standard_deviation_that_is_accounted():
    clipped, noised = wide(0.0), wide(0.8)
    result = (np.asarray(noised.params) - clipped.params) / (0.8 * CLIP / 3)
    assert scipy.stats.kstest(result, "norm").pvalue > 0.01
    for wrong in (2 / 3, 1.5):
        assert scipy.stats.kstest(result * wrong, "norm").pvalue < 1e-6


def test_noise_of_changes_is_that_of_all_clients():
    """Of SCAFFOLD: c is a sum over N, the update one over the cohort that is expected."""
    clipped, noised = wide(0.0, name="scaffold"), wide(0.8, name="scaffold")
    for part, divided in (("x", 3), ("c", N)):
        value = getattr(noised.state, part).tree - getattr(clipped.state, part).tree
        assert scipy.stats.kstest(np.asarray(value) / (0.8 * CLIP / divided), "norm").pvalue > 0.01
    correlation = np.corrcoef(noised.state.x.tree - clipped.state.x.tree, noised.state.c.tree - clipped.state.c.tree)
    assert abs(correlation[0, 1]) < 7 / 1500**0.5


def test_noise_of_a_warm_up_is_that_of_all_clients():
    """Whatever the cohorts of the rounds are: here 3 of 6."""
    clipped, noised = (wide(noise, rounds=0, name="scaffold-m-vr") for noise in (0.0, 0.8))
    pairs = zip(jax.tree.leaves(noised.state), jax.tree.leaves(clipped.state), strict=True)
    moved = [float(np.std(a - b)) for a, b in pairs if np.any(a != b)]
    assert moved and moved == pytest.approx([0.8 * CLIP / N] * len(moved), rel=0.08)


def test_the_count_and_the_sum_together_cost_what_noise_says():
    """z⁻² = z_Δ⁻² + (2σ)⁻², Andrew et al. 2021, Theorem 1."""
    for sigma, expected in ((2.0, 100), (None, 100)):
        dp = private(noise=1.3, adaptive=fedax.AdaptiveClip(noise=sigma))
        of_sum, of_count = float(dp.noise_of_sum(expected)), float(dp.noise_of_count(expected))
        assert of_count == (expected / 20 if sigma is None else sigma)
        assert of_sum**-2 + (2 * of_count) ** -2 == pytest.approx(1.3**-2, rel=1e-6)
    for noise, of_count in ((0.0, 0.0), (0.1, 5.0)):
        dp = private(noise=noise, adaptive=fedax.AdaptiveClip())
        assert dp.noise_of_count(100) == of_count and dp.noise_of_sum(100) == pytest.approx(noise, rel=1e-3)


def test_rounds_and_seeds_have_their_own_noise():
    drawn = [noise_of(), noise_of(index=1), noise_of(seed=1), noise_of(number=1)]
    correlations = np.corrcoef(drawn) - np.eye(4)
    assert np.abs(correlations).max() < 7 / 1500**0.5
    one, two = (wide(0.8, rounds=r).params for r in (1, 2))
    assert not np.allclose(np.asarray(two) - one, one)


def test_an_empty_cohort_is_not_skipped():
    """That nobody came is private too: the step is one on noise alone."""
    run = wide(0.8, participation=fedax.Poisson(1e-6))
    assert run.history["clients"][-1] == 0
    assert "skipped" not in run.history
    assert np.std(run.params) > 1


def test_noise_of_bfloat16_is_that_of_float32_rounded():
    """So what follows says about its tail too."""
    drawn = {
        dtype: jax.jit(lambda key, dtype=dtype: standard_normal(key, (10**5,), dtype))(jax.random.key(1))
        for dtype in (jnp.bfloat16, jnp.float32)
    }
    assert drawn[jnp.bfloat16].dtype == jnp.bfloat16
    np.testing.assert_array_equal(drawn[jnp.bfloat16], drawn[jnp.float32].astype(jnp.bfloat16))


@pytest.mark.parametrize(
    ("dtype", "number"),
    [(jnp.float32, 2 * 10**7), (jnp.float64, 10**6), pytest.param(jnp.float64, 2 * 10**7, marks=long)],
)
def test_the_tail_of_the_noise_goes_on(dtype, number, monkeypatch):
    """float32 normal numbers of 23 bits end at 5.42, and what lies beyond gives an upload away; of 52 bits at 8.2."""
    if dtype == jnp.float64:
        with jax.enable_x64():
            return the_tail_goes_on(dtype, number, monkeypatch)
    the_tail_goes_on(dtype, number, monkeypatch)


def correlation(one, other):
    """As ``np.corrcoef`` has it, of many numbers in the time of one product."""
    one, other = one - one.mean(), other - other.mean()
    return one @ other / np.sqrt((one @ one) * (other @ other))


def the_tail_goes_on(dtype, number, monkeypatch):
    key = jax.random.key(1, impl="rbg")  # bits that take a quarter of the time: what is tried is what is made of them
    drawn = np.asarray(jax.jit(lambda key: standard_normal(key, (number,), dtype))(key))
    size = np.abs(drawn)
    for beyond in (3, 4, 5):
        expected = 2 * scipy.stats.norm.sf(beyond) * drawn.size
        assert abs((size > beyond).sum() - expected) < 5 * np.sqrt(expected) + 0.02 * expected, beyond
    assert scipy.stats.kstest(drawn[: 10**6].astype(float), "norm").pvalue > 1e-3
    halves = np.split(drawn, 2)  # the two numbers of one radius and angle
    most = max(2e-3, 5 / number**0.5)
    assert abs(correlation(*halves)) < most and abs(correlation(*map(np.square, halves))) < most
    # The rarest bits that there are, and the commonest.
    words = 4 if dtype == jnp.float64 else 3
    radius = [[0, 0, 2**32 - 1, 2**31], [0, 2**32 - 1, 2**32 - 1, 0]] + [[0] * 4] * (words - 2)
    bits = jnp.array([*radius, [0, 0, 0, 2**30], [0] * 4][: 2 * words - 2], jnp.uint32)
    monkeypatch.setattr(jax.random, "bits", lambda key, shape, kind: bits.reshape(shape))
    rare = np.asarray(standard_normal(jax.random.key(0), (8,), dtype), float)
    squares = np.log(2) * np.array([2 * (32 * words + 1), 2 * 32, 0, 2])  # u = 2⁻⁹⁷ or 2⁻¹²⁹, 2⁻³² (1 − 2⁻³²), 1 and ½
    np.testing.assert_allclose(np.hypot(rare[:4], rare[4:]), np.sqrt(squares), 2e-2, 1e-3)
    assert np.hypot(rare[0], rare[4]) > 1.1 * NOISE_END
    monkeypatch.undo()


def test_correlated_noise_is_that_of_its_matrix():
    from fedax.privacy.factorization import banded
    from fedax.privacy.factorization import noise_of as through

    cohorts, options = fedax.Cyclic(3), {"dp": {"bands": 3}, "participation": fedax.Cyclic(3)}
    rows = np.stack([noise_of(index=r) for r in range(4)])
    want = 0.8 * CLIP / 2 * through(banded(3, 4), rows).cumsum(0)[-1]
    # Gradients have no part in it: with lr near 0 the updates vanish.
    run = fedax.simulate(
        fedax.create("fedavg", lr=1e-12), WIDE_TASK, WIDE, rounds=4, participation=cohorts, work=fedax.Steps(1),
        privacy=private(noise=0.8, bands=3), evaluate_every=4, params=jnp.zeros(1500),
    )  # fmt: skip
    np.testing.assert_allclose(run.params, want, rtol=0, atol=1e-5)
    assert run.history["epsilon"][-1] == fedax.privacy.Ledger(0.8, N, apart=3, numbers=1500).epsilon(4, 1e-3)
    assert wide(0.8, rounds=4, **options).history["epsilon"][-1] == run.history["epsilon"][-1]


def test_an_adaptive_clip_follows_its_quantile():
    """Uploads have the norms 1 … 6; the sum tells the clip: (Σ min(norm, C))/6 along the one direction."""

    class Norms(fedax.Algorithm):
        def init(self, x):
            return x, jnp.zeros(())

        def model(self, server):
            return server[0]

        def client(self, download, memory, oracle):
            number = jnp.round(-oracle.full_grad(download[0] * 0).tree[0])
            return jnp.stack([number, 0.0 * number]), memory

        def server(self, server, mean, round):
            return server[0], mean[0]

    data = fedax.FederatedData({"H": np.ones((6, 1, 1)), "e": np.arange(1.0, 7)[:, None]}, np.ones(6, int))
    adaptive = fedax.AdaptiveClip(quantile=0.5, rate=0.2, noise=1e-3)
    for first in (0.5, 40.0):
        run = fedax.simulate(
            Norms(), fedax.tasks.quadratic(1), data, rounds=60, privacy=DP(first, 1e-4, 1e-3, adaptive=adaptive)
        )
        clip = [c for c in np.linspace(0, 7, 7001) if abs(np.minimum(np.arange(1, 7), c).mean() - run.state[1]) < 1e-3]
        assert clip and 2.6 < np.median(clip) < 4.5, (first, clip)


# ---- what is spent


def run_private(rounds=4, cohort="poisson", name="fedavg", make=fedax.simulate, checkpoint=None, **dp):
    return make(
        fedax.create(name, lr=0.1), TASK, DATA, rounds=rounds, work=fedax.Steps(2), batch_size=2, evaluate_every=2,
        participation=COHORTS[cohort] if isinstance(cohort, str) else cohort, privacy=private(**dp),
        **{} if checkpoint is None else {"checkpoint": checkpoint},
    )  # fmt: skip


def test_epsilon_is_a_column_and_what_the_ledger_says():
    from fedax.privacy import Ledger

    run = run_private(noise=1.2)
    ledger = Ledger(1.2, N, rate=0.7, places=N)
    np.testing.assert_allclose(run.history["epsilon"], [ledger.epsilon(r, 1e-3) for r in (0, 2, 4)])
    assert run_private(noise=0.0).history["epsilon"].tolist() == [0, np.inf, np.inf]
    # That column is the job's, which no round changes.
    job = functools.partial(run_private, make=make_job, noise=1.2)
    assert [job().epsilon(r) for r in (0, 2, 4)] == run.history["epsilon"].tolist()
    two = job(name="mime", cohort="full")
    np.testing.assert_allclose(two.epsilon(4), Ledger(1.2, N, exchanges=2).epsilon(4, 1e-3))
    warm = job(name="scaffold-m-vr", cohort="full")
    assert warm.epsilon(0) == Ledger(1.2, N, warmup=1).epsilon(0, 1e-3) > 0
    dropped = job(cohort=fedax.Dropout(fedax.Poisson(0.7), 0.5))  # it is not counted on
    assert dropped.epsilon(4) == run.history["epsilon"][-1]


def test_a_run_ends_where_its_budget_ends(tmp_path):
    run = run_private(rounds=1000, noise=1.2, epsilon=6.0, checkpoint=tmp_path)
    assert run.status == "stopped"
    assert run.history["epsilon"][-1] <= 6
    from fedax.privacy import Ledger

    last = int(run.history["round"][-1])
    assert Ledger(1.2, N, rate=0.7, places=N).epsilon(last + 1, 1e-3) > 6
    again = run_private(rounds=1000, noise=1.2, epsilon=6.0, checkpoint=tmp_path)
    np.testing.assert_array_equal(again.history["epsilon"], run.history["epsilon"])
    with pytest.raises(fedax.ConfigError, match=r"privacy\.epsilon = 0\.01: one round spends"):
        run_private(noise=1.2, epsilon=0.01)


def test_a_private_run_goes_on_with_the_same_noise(tmp_path):
    dp = {"noise": 1.2, "adaptive": fedax.AdaptiveClip(noise=2.0)}
    whole = run_private(rounds=4, name="scaffold", **dp)
    run_private(rounds=2, name="scaffold", checkpoint=tmp_path, **dp)
    rest = run_private(rounds=4, name="scaffold", checkpoint=tmp_path, **dp)
    np.testing.assert_array_equal(rest.params["w"], whole.params["w"])
    with pytest.raises(fedax.CheckpointError, match="privacy"):
        run_private(rounds=4, name="scaffold", checkpoint=tmp_path, noise=1.3)


def test_noises_and_clips_are_lanes_of_one_program():
    def point(noise, clip):
        return {"algorithm": fedax.create("fedavg", lr=0.1), "privacy": private(clip=clip, noise=noise)}

    options = {"rounds": 2, "work": fedax.Steps(2), "batch_size": 2, "participation": COHORTS["poisson"]}
    sweep = fedax.sweep(point, {"noise": [1.0, 2.0], "clip": [0.1, 1.0]}, TASK, DATA, **options)
    assert sweep.programs == 1
    for each, (run,) in zip(sweep.points, sweep.runs, strict=True):
        alone = fedax.simulate(**point(**each), task=TASK, data=DATA, **options)
        np.testing.assert_allclose(run.params["w"], alone.params["w"], 1e-5)
        np.testing.assert_array_equal(run.history["epsilon"], alone.history["epsilon"])


# ---- what is refused


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"guard": True}, "guard = .*: leave it out"),
        ({"aggregate": fedax.CoordinateMedian()}, "aggregate = .*not bounded by the clip"),
        ({"participation": fedax.Trace([[0]] * 4)}, "participation = .*Poisson, Uniform or Cyclic"),
        ({"participation": fedax.Proportional(2)}, "participation = .*no guarantee"),
        ({"participation": fedax.Systematic(2)}, "participation = .*no guarantee"),
        ({"participation": fedax.UniformNormalized(2)}, "participation = .*no guarantee"),
        ({"participation": fedax.Dropout(fedax.Full(), available=np.ones((4, N), bool))}, "participation = "),
        ({"participation": fedax.Dropout(fedax.Full(), [0.1] * N)}, "participation = "),
        ({"until": lambda row: False}, "until = .*clients' data"),
        ({"until": fedax.Patience("train_loss", 2)}, "until = .*must not depend"),
        ({"privacy": private(bands=3)}, r"privacy\.bands = 3: .*Cyclic\(3\)"),
        ({"privacy": private(bands=3), "participation": fedax.Cyclic(2)}, r"privacy\.bands = 3"),
        ({"privacy": private(noise=1.0, adaptive=fedax.AdaptiveClip())}, r"adaptive\.noise = None: .*too small"),
        ({"privacy": private(noise=1.0, adaptive=fedax.AdaptiveClip(noise=0.4))}, r"adaptive\.noise = 0\.4: .*half"),
        ({"privacy": 1.0}, r"privacy = 1\.0: give fedax\.DP"),
        ({"algorithm": fedax.create("ce-lsgd", lr=0.1)}, "privacy = .*CELSGD hears one client"),
        ({"data": DATA.with_weights(np.array([0.3, 0.1, 0.1, 0.1, 0.2, 0.2]))}, r"data\.weights = .*with_weights"),
    ],
)
def test_what_has_no_guarantee_is_refused(given, error):
    options = {
        "algorithm": fedax.create("fedavg", lr=0.1),
        "task": TASK,
        "data": DATA,
        "rounds": 4,
        "privacy": private(),
    }
    with pytest.raises(fedax.ConfigError, match=error):
        fedax.simulate(**options | given)


@pytest.mark.parametrize(
    "given",
    [{"clip": 0}, {"clip": -1.0}, {"noise": -0.1}, {"noise": np.nan}, {"delta": 0.0}, {"delta": 1.0}, {"epsilon": 0.0},
     {"bands": 0}, {"by_leaf": 1}, {"adaptive": True}, {"bands": 2, "adaptive": fedax.AdaptiveClip()}],
)  # fmt: skip
def test_settings_out_of_range(given):
    with pytest.raises(fedax.ConfigError, match=rf"^privacy\.{next(iter(given))} = "):
        DP(**{"clip": 1.0, "noise": 1.0, "delta": 1e-3} | given)


def test_what_a_method_hears_of_a_round_is_known_to_all():
    """Who came, with how many steps, is not in it."""
    seen = []

    class Curious(fedax.Algorithm):
        def init(self, x):
            return x

        def client(self, download, memory, oracle):
            return oracle.full_grad(download), memory

        def server(self, server, mean, round):
            told = [round.total, round.heard, round.shortfall, round.mean_steps, *round.weights, *round.data_weights]
            jax.debug.callback(lambda *each: seen.append([float(x) for x in each]), *told, *round.present)
            return server

    fedax.simulate(
        Curious(), TASK, DATA, rounds=5, participation=COHORTS["poisson"], work=fedax.RandomSteps(2.0, 1.0, 1, 4),
        privacy=private(),
    )  # fmt: skip
    jax.effects_barrier()
    assert len(seen) == 5 and all(each == seen[0] for each in seen)
    np.testing.assert_allclose(seen[0][:4], [1, 0.7, 0, 4], atol=1e-6)


@pytest.mark.parametrize("name", ["fedavg-m", "scaffold-m-vr", "fednova"])
def test_a_server_that_works_with_unequal_steps_is_told_the_largest_and_says_so(name):
    given = {"tau_eff": "mean"} if name == "fednova" else {}
    loose = {"privacy": fedax.DP(clip=1e6, noise=0.0, delta=1e-3)}
    options = {"rounds": 3, "work": fedax.Steps([1, 2, 3, 4, 5, 6]), "batch_size": 2}

    def end(server_lr, **more):
        return moved(fedax.simulate(fedax.create(name, lr=0.1, server_lr=server_lr, **given), TASK, DATA, **more))

    with pytest.warns(UserWarning, match=r"all clients take 6.*smaller server_lr"):
        private = end(3.5 / 6, **options, **loose)  # the mean over the largest makes up for it
    np.testing.assert_allclose(private, end(1.0, **options), LAST_BITS, 1e-7)
    fedax.simulate(fedax.create("mimelite", lr=0.1), TASK, DATA, **options, **loose)  # its server needs no steps here
    equally = options | {"work": fedax.Steps(3)}
    np.testing.assert_allclose(end(1.0, **equally, **loose), end(1.0, **equally), LAST_BITS, 1e-7)


# ---- the secret

KEPT = {"noise_seed": None}  # as users have it: noise and cohorts of a secret


def moved(run):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(run.params)])


def test_no_two_runs_have_the_same_noise():
    """Else runs with noises z and 2z of one seed give the mean without noise, and those of one z its differences."""
    one, other, double = (wide(noise, dp=KEPT, params=jnp.zeros(1500)) for noise in (5.0, 5.0, 10.0))
    clean = moved(wide(0.0, params=jnp.zeros(1500)))
    assert np.abs(2 * moved(one) - moved(double) - clean).max() > 1  # it was 3e-7
    for a, b in ((one, other), (one, double)):
        assert abs(np.corrcoef(moved(a) - clean, moved(b) - clean)[0, 1]) < 7 / 1500**0.5
    # What else the seed decides is the same.
    np.testing.assert_array_equal(one.history["clients"], other.history["clients"])
    same = [moved(wide(5.0, dp={"noise_seed": seed})) for seed in (0, 0, 8)]
    np.testing.assert_array_equal(same[0], same[1])
    assert np.abs(same[0] - same[2]).max() > 0.1


def test_the_noise_of_a_sweep_and_of_a_comparison():
    """All its runs have noise of their own, of lanes of one program too."""
    make = lambda lr: fedax.create("fedavg", lr=lr)  # noqa: E731
    given = {"privacy": private(noise=50.0, **KEPT), "work": fedax.Steps(1), "params": jnp.zeros(1500)}
    sweep = fedax.sweep(make, {"lr": [0.1, 0.2]}, WIDE_TASK, WIDE, rounds=1, seeds=[3, 4], **given)
    assert sweep.programs == 1
    between = np.corrcoef([moved(run) for runs in sweep.runs for run in runs]) - np.eye(4)
    assert np.abs(between).max() < 7 / 1500**0.5


def test_who_comes_is_a_secret_too(monkeypatch):
    """A published initial model gives a seed of 32 bits away: sampling hides only whom the seed alone does not draw."""
    drawn = []
    for content in (b"1" * 16, b"2" * 16, b"2" * 16):
        monkeypatch.setattr(fedax.engine.secret, "_of_this_process", lambda content=content: content)
        run = wide(1.0, rounds=20, dp=KEPT, evaluate_every=1)
        drawn.append(run.history["clients"].tolist())
    assert drawn[0] != drawn[1] == drawn[2]
    # And so it is where a server on the host draws them.
    given = {"participation": fedax.Poisson(0.5), "privacy": private(noise=1.0, **KEPT), "rounds": 20}
    job = make_job(fedax.create("fedavg", lr=0.1), WIDE_TASK, WIDE, **given)
    clients, _ = draw_rounds(job.hyper, job.fed, job.key, np.arange(20), plan=job.plan, stage="exchanges")
    assert np.cumsum(clients.present.sum(axis=1)).tolist() == drawn[2][1:]


def test_the_secret_of_a_folder(tmp_path):
    """It is there before a checkpoint is, so that a run that was killed before its first one has the same noise."""
    first = wide(1.0, rounds=2, dp=KEPT, checkpoint=tmp_path)
    key = tmp_path / "noise.key"
    assert key.stat().st_mode & 0o777 == 0o600
    for path in tmp_path.glob("round-*"):
        assert path.stat().st_mode & 0o777 == 0o600  # the state has what is made of it
        path.unlink()
    np.testing.assert_array_equal(moved(wide(1.0, rounds=2, dp=KEPT, checkpoint=tmp_path)), moved(first))
    with pytest.raises(fedax.CheckpointError, match="privacy"):
        wide(1.5, rounds=2, dp=KEPT, checkpoint=tmp_path)
    content = key.read_text()
    for changed, error in (
        (lambda: key.chmod(0o644), r"others can read it \(mode 644\).*chmod 600"),
        (lambda: key.write_text(content[:-5]), "damaged"),
        (lambda: key.write_text("0" * 32 + content[32:]), r"privacy\.secret was that of noise\.key"),
        (key.unlink, r"noise\.key: missing"),
    ):
        changed()
        with pytest.raises(fedax.CheckpointError, match=error):
            wide(1.0, rounds=3, dp=KEPT, checkpoint=tmp_path)
        key.unlink(missing_ok=True)
        key.touch(0o600)
        key.write_text(content)
    wide(1.0, rounds=3, dp=KEPT, checkpoint=tmp_path)


# ---- how a run ends


def labelled(times):
    """Clients of which one has losses of any size, and the same gradients: an offset that the model does not change."""
    offset = np.zeros((N, 1), np.float32)
    offset[WORST] = times
    return fedax.FederatedData({"e": WIDE.examples["e"][:, :4], "offset": offset}, np.ones(N, int))


OFFSET_TASK = fedax.Task(
    init=lambda key: jnp.ones(4),
    loss=lambda x, batch, key: 0.5 * jnp.sum((x[None] - batch["e"]) ** 2, axis=1) + batch["offset"][:, 0],
)


@pytest.mark.filterwarnings("ignore::fedax.errors.DivergedWarning")
def test_one_clients_losses_do_not_tell_how_a_run_ends():
    """Labels of 1e20 made a run diverge, with ε = 0, in 20 of 20 seeds."""
    for times in (0.0, 3.0, 1e20, np.float32(3e38), -1e30):
        run = fedax.simulate(
            fedax.create("fedavg", lr=0.1), OFFSET_TASK, labelled(times), rounds=3, privacy=private(noise=3.0, **KEPT)
        )
        assert (run.status, len(run.history["round"])) == ("finished", 4) and np.isfinite(run.history["epsilon"]).all()
    run = fedax.simulate(
        fedax.create("fedavg", lr=0.1), OFFSET_TASK, labelled(0.0), rounds=3, privacy=private(1e35, 1e6, **KEPT)
    )
    assert run.status == "diverged"  # its model has, which is public


def test_what_is_measured_on_clients_decides_nothing(tmp_path):
    """Neither when a run ends, nor which model is kept, nor which point is the best."""
    given = {"work": fedax.Steps(1), "privacy": private(noise=3.0, **KEPT), "rounds": 2}
    simulate = functools.partial(fedax.simulate, fedax.create("fedavg", lr=0.1), TASK, DATA, **given)
    open_ = {"x": _X[:5].astype(np.float32), "y": _Y[:5].astype(np.int32)}
    for held in ("val", "test"):
        stop, best = fedax.Patience(f"{held}_loss", 1), f"{held}_loss"
        with pytest.raises(fedax.ConfigError, match=rf"^until = .*{held}_loss is measured on"):
            simulate(**{held: DATA}, until=stop)
        with pytest.raises(fedax.ConfigError, match=rf"^checkpoint.best = '{held}_loss': .*measured"):
            simulate(**{held: DATA}, checkpoint=fedax.Checkpoints(tmp_path / "a", best=best))
        simulate(**{held: open_}, until=stop, checkpoint=fedax.Checkpoints(tmp_path / held, best=best))
    with pytest.raises(fedax.ConfigError, match=r"^checkpoint.best = 'train_loss'"):
        simulate(checkpoint=fedax.Checkpoints(tmp_path / "b", best="train_loss"))
    sweep = fedax.sweep(lambda lr: fedax.create("fedavg", lr=lr), {"lr": [0.1, 0.2]}, TASK, DATA, val=open_, **given)
    assert sweep.best() in ({"lr": 0.1}, {"lr": 0.2})
    with pytest.raises(fedax.ConfigError, match=r"^criterion = 'train_loss': .*private runs"):
        sweep.best("train_loss")
    assert sweep.best(lambda run: 1.0) in ({"lr": 0.1}, {"lr": 0.2})
