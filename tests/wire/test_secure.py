"""Sums of whole numbers: against NumPy, in any order and place, and whatever clients send."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import fedax
from fedax.contract.compressors import TopK
from fedax.wire.secure import FixedPoint, most

from .. import LAST_BITS, in_full
from ..engine.problem import DATA as PROBLEM
from ..engine.problem import LR, UNEQUAL, flat
from ..engine.problem import TASK as REGRESSION

rng = np.random.default_rng(0)
S, D = 7, 12
UPLOADS = rng.normal(size=(S, D)).astype(np.float32)


integers = jax.jit(lambda point, *given: point.integers(*given))
of_each = jax.jit(lambda point, *given: jax.vmap(point.integers)(*given))
numbers = jax.jit(lambda point, total: point.numbers(total))


def fixed(clip: float = 10.0, places: int = S, bits: int = 32, largest: Any = (1.0, 1.0)) -> FixedPoint:
    return FixedPoint(jnp.float32(clip), jnp.array(largest, jnp.float32), places, bits)


def whole(point: FixedPoint, upload: Any, weight: float = 1.0, data_weight: float = 1.0) -> Any:
    """Of one array, signed."""
    sent_integers = integers(point, jnp.asarray(upload), jnp.float32(weight), jnp.float32(data_weight))
    return np.asarray(sent_integers.value).view(np.int32)


@pytest.mark.parametrize("bits", [16, 24, 32])
@pytest.mark.parametrize("places", [1, 1000])
def test_numbers_of_a_client(bits, places):
    """Rounded to the nearest unit, clip/m; at most m; m·S stays below half of the group."""
    m = most(places, bits)
    assert m * places < 2 ** (bits - 1) <= (m + 1) * places * (1 + 2**-22)
    assert np.float32(m) == m
    v = UPLOADS[0] / np.linalg.norm(UPLOADS[0]) / 2
    units = whole(fixed(1.0, places, bits), v)
    assert np.abs(units - v.astype(float) * m).max() <= 0.5 + 1e-6 * m
    assert whole(fixed(1.0, places, bits), [0.5])[0] == pytest.approx(m / 2, abs=0.5)


@pytest.mark.parametrize("length", [0.5, 0.999, 1.0, 5.0, 1e30])
@pytest.mark.parametrize("bits", [16, 32])
def test_no_client_adds_more_than_clip(length, bits):
    """Rounding included: the norm of what is added is at most m units."""
    m = most(100, bits)
    for seed in range(20):
        v = np.random.default_rng(seed).normal(size=1000).astype(np.float32)
        v *= np.float32(length) / np.linalg.norm(v)
        units = whole(fixed(1.0, 100, bits), v).astype(float)
        assert np.linalg.norm(units) <= m * (1 + 1e-6)
        if length <= 0.9:
            np.testing.assert_allclose(np.linalg.norm(units), length * m, 1e-2)
        else:
            assert np.linalg.norm(units) >= (0.98 if length > 0.99 else length) * m - math.sqrt(1000) - 1


def test_rounding_never_lengthens():
    """Numbers that all round up: without the room for it their norm would be above the clip."""
    size, m = 400, most(100, 16)
    v = np.full(size, 1.0 / math.sqrt(size), np.float32)
    assert np.linalg.norm(np.ceil(v * m)) > m
    assert np.linalg.norm(whole(fixed(1.0, 100, 16), v).astype(float)) <= m


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_upload_that_is_not_finite_is_zero(bad):
    upload = {"w": jnp.array([1.0, bad]), "b": jnp.array(3.0)}
    sent_integers = integers(fixed(), upload, 1.0, 1.0)
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(sent_integers))


@pytest.mark.parametrize("bits", [16, 24, 32])
def test_the_worst_clients_do_not_overflow(bits):
    """All send as much as can be, in one number and of one sign: the sum is S·m, and is read so."""
    for sign in (1.0, -1.0):
        point = fixed(2.0, S, bits)
        each = of_each(point, jnp.full((S, 1), sign * 1e30), jnp.ones(S), jnp.ones(S))
        total = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0, dtype=leaf.dtype), each)
        assert numbers(point, total)[0] == pytest.approx(sign * 2.0 * S, rel=2e-3)


def test_the_sum_in_numpy():
    """Estimates by ω, changes by p, each in its own unit."""
    weights = np.array([0.1, 0.3, 0.05, 0.2, 0.15, 0.1, 0.1], np.float32)
    p = weights[::-1].copy()
    point = fixed(10.0, S, 32, (weights.max(), p.max()))
    each = of_each(point, {"x": jnp.array(UPLOADS), "c": fedax.Change(jnp.array(UPLOADS))}, weights, p)
    total = numbers(point, jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0, dtype=leaf.dtype), each))
    assert all(leaf.dtype == jnp.uint32 for leaf in jax.tree.leaves(each))
    unit = 10.0 / most(S, 32)
    for result, w in ((total["x"], weights), (total["c"].value, p)):
        exact = w.astype(float) @ UPLOADS.astype(float)
        np.testing.assert_allclose(result, exact, rtol=0, atol=S * w.max() * unit / 2 + 4e-7)


def test_types_stay():
    upload = {"a": jnp.ones(2, jnp.bfloat16), "b": jnp.ones(2)}
    total = numbers(fixed(), integers(fixed(), upload, 1.0, 1.0))
    assert {leaf.dtype for leaf in jax.tree.leaves(total)} == {jnp.dtype("float32")}
    with jax.enable_x64(True):
        upload = {"a": jnp.ones(2), "b": jnp.ones(2, jnp.float32)}
        total = numbers(fixed(), integers(fixed(), upload, 1.0, 1.0))
        assert (total["a"].dtype, total["b"].dtype) == (jnp.float64, jnp.float32)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [({"clip": 0.0}, "clip"), ({"clip": math.inf}, "clip"), ({"clip": 1.0, "bits": 20}, "bits"),
     ({"clip": 1.0, "bits": True}, "bits"), ({"clip": 1.0, "threshold": 1}, "threshold")],
)  # fmt: skip
def test_values_out_of_range(arguments, field):
    with pytest.raises(fedax.ConfigError, match=rf"^{field} = "):
        fedax.SecureSum(**arguments)


# ---- a whole run


class Server(NamedTuple):
    x: Any
    heard: Any


class Tells(fedax.Algorithm):
    """Clients send their one example, which no program computes in another way than another; the server adds up."""

    def init(self, x):
        return Server(x, fedax.zeros_like(x))

    def init_client(self, x):
        return fedax.zeros_like(x)

    def client(self, server, memory, oracle):
        own = oracle.full_grad(server.x)
        return Server(own, fedax.Change(own)), memory

    def server(self, server, mean, round):
        return Server(mean.x, server.heard + mean.heard)


N = 11
TASK = fedax.Task(
    init=lambda key: jnp.zeros(D), loss=lambda params, batch, key: 1 + jnp.sum(batch["x"] * params[None], axis=1)
)
DATA = fedax.FederatedData(
    {"x": rng.normal(size=(N, D)).astype(np.float32)}, [1] * N, np.arange(1, N + 1) / np.arange(1, N + 1).sum()
)
OPTIONS: dict[str, Any] = {"rounds": 2, "work": fedax.Steps(1), "batch_size": None, "evaluate_every": 1}
SECURE = fedax.SecureSum(clip=20.0)
FEDAVG = fedax.create("fedavg", lr=0.1)


def simulated(**more: Any) -> fedax.Run:
    return fedax.simulate(Tells(), TASK, DATA, **OPTIONS | {"secure": SECURE} | more)


def bits(run: fedax.Run) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves((run.params, run.state))]


@in_full
@pytest.mark.parametrize("participation", [fedax.Full(), fedax.Uniform(5)])
def test_the_same_bits_in_every_place(participation, full):
    """However the cohort is cut: chunks, devices, host memory, examples that are streamed."""
    devices = {"place": fedax.Place(mesh=Mesh(np.array(jax.devices()[:2]), ("clients",)))}
    expected = simulated(participation=participation, place=fedax.Place(chunk_size=4))
    cuts = (
        {"place": fedax.Place(chunk_size=1)},
        *([{"place": fedax.Place(chunk_size=N)}] if full else []),
        {"place": fedax.Place(stream=True)},
    )
    for more in (devices, *(() if participation == fedax.Full() else cuts)):
        assert bits(simulated(participation=participation, **more)) == bits(expected), more
    weights = DATA.weights.astype(np.float32)
    if participation == fedax.Full():
        np.testing.assert_allclose(expected.params, weights @ DATA.examples["x"], rtol=0, atol=LAST_BITS)
        units = np.round(DATA.examples["x"] * (weights / weights.max())[:, None] * np.float64(most(N, 32) / 20.0))
        exact = units.sum(0) * float(weights.max()) * 20.0 / most(N, 32)
        np.testing.assert_allclose(expected.params, exact, rtol=0, atol=LAST_BITS)


def test_float64():
    """Whole numbers stay of 32 bits, of which the sum is made modulo 2^32."""
    expected = simulated(rounds=1)
    with jax.enable_x64(True):
        run = simulated(rounds=1)
    assert run.params.dtype == np.float64
    np.testing.assert_allclose(run.params, expected.params, rtol=0, atol=LAST_BITS)


def test_bad_clients():
    """Their numbers count as zero where they are not finite, and as much as the clip allows where they are large."""
    faulty = [2, 5]
    good = np.array([i not in faulty for i in range(N)])
    run = simulated(faults=fedax.Faults(faulty, sends=math.nan))
    x = DATA.weights[good] @ DATA.examples["x"][good]
    np.testing.assert_allclose(run.params, x, rtol=0, atol=LAST_BITS)
    run = simulated(faults=fedax.Faults(faulty, sends=1e30))
    more = DATA.weights[faulty].sum() * 20.0 / math.sqrt(2 * D)  # both parts of an upload are shortened together
    np.testing.assert_allclose(run.params, x + more, rtol=1e-5)


def test_methods_are_what_they_were():
    """A clip that nobody reaches, and 32 bits: the same as without, to the numbers' own precision."""
    options: Any = {"rounds": 3, "work": UNEQUAL, "batch_size": 2, "participation": fedax.Uniform(3)}
    method = fedax.create("scaffold", lr=LR)
    plain = fedax.simulate(method, REGRESSION, PROBLEM, **options)
    run = fedax.simulate(method, REGRESSION, PROBLEM, secure=fedax.SecureSum(50.0), **options)
    np.testing.assert_allclose(flat(run.params), flat(plain.params), rtol=LAST_BITS, atol=LAST_BITS)
    assert run.history["bytes_down"].tolist() == plain.history["bytes_down"].tolist()


def test_bytes():
    """An estimate and a change of the same numbers are two sums; each number takes its bits."""
    results = {bits: simulated(secure=fedax.SecureSum(20.0, bits)).history["bytes_up"][-1] for bits in (16, 24, 32)}
    assert results == {bits: 2 * N * 2 * D * bits // 8 for bits in (16, 24, 32)}
    assert simulated(secure=None).history["bytes_up"][-1] == 2 * N * D * 4


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"aggregate": fedax.CoordinateMedian()}, "^secure = .*a robust average"),
        ({"guard": True}, "^secure = .*a guard looks at single"),
        ({"secure": fedax.SecureSum()}, r"^secure.clip = None: give the longest norm"),
        ({"secure": True}, r"^secure = True: give fedax.SecureSum"),
        ({"participation": fedax.Uniform(1)}, "^secure = .*with one client"),
    ],
)
def test_what_is_refused(more, text):
    with pytest.raises(fedax.ConfigError, match=text):
        fedax.simulate(FEDAVG, TASK, DATA, **OPTIONS | {"secure": SECURE} | more)


def test_too_few_bits():
    """A run asks with the numbers of an upload and the most clients of a round, of the warm-up all."""
    secure, many = fedax.SecureSum(1.0, 16), fedax.FederatedData({"x": np.zeros((8000, D))}, [1] * 8000)
    text = r"^secure.bits = 16: 12 numbers of 8000 .*24 or 32, or"
    for participation in (fedax.Full(), fedax.Uniform(8000)):
        with pytest.raises(fedax.ConfigError, match=text):
            fedax.simulate(FEDAVG, TASK, many, **OPTIONS | {"secure": secure, "participation": participation})
    with pytest.raises(fedax.ConfigError, match=r"^secure.bits = 32: 1000000000000000 .*fewer clients"):
        fedax.SecureSum(1.0).check(100, 10**15)
    fedax.SecureSum(1.0, 16).check(10, 10**6)


def test_methods_that_are_refused():
    with pytest.raises(fedax.ConfigError, match=r"^secure = .*CE-LSGD one client moves"):
        fedax.simulate(fedax.create("ce-lsgd", lr=0.1), TASK, DATA, **OPTIONS | {"secure": SECURE})


class Compressed(Tells):
    def client(self, server, memory, oracle):
        own, _ = TopK(0.5).encode(None, oracle.full_grad(server.x))
        return Server(own, fedax.Change(own)), memory


def test_compressed_uploads_are_refused():
    text = r"^secure = .*compressed, and read"
    for method, more in ((Compressed(), {}), (FEDAVG, {"compress": fedax.TopK(0.5)})):
        with pytest.raises(fedax.ConfigError, match=text):
            fedax.simulate(method, TASK, DATA, **OPTIONS | {"secure": SECURE} | more)


def test_with_privacy():
    """Its clip is the clip of the sums, and without noise both are the same to the unit."""
    pytest.importorskip("dp_accounting", reason="needs pip install 'fedax[privacy]'")
    same = DATA.with_weights(np.full(N, 1 / N))
    private: Any = {"privacy": fedax.DP(clip=3.0, noise=0.0, delta=1e-5)}
    plain = fedax.simulate(FEDAVG, TASK, same, **OPTIONS | private)
    run = fedax.simulate(FEDAVG, TASK, same, secure=fedax.SecureSum(), **OPTIONS | private)
    np.testing.assert_allclose(run.params, plain.params, rtol=0, atol=LAST_BITS)
    with pytest.raises(fedax.ConfigError, match=r"^secure.clip = 1.0: .*clips uploads"):
        fedax.simulate(FEDAVG, TASK, same, secure=fedax.SecureSum(1.0), **OPTIONS | private)
    private = {"privacy": fedax.DP(3.0, 1.0, 1e-5, adaptive=fedax.AdaptiveClip(noise=2.0))}
    with pytest.raises(fedax.ConfigError, match=r"^privacy.adaptive = .*clip that stays"):
        fedax.simulate(FEDAVG, TASK, same, secure=fedax.SecureSum(), **OPTIONS | private)
