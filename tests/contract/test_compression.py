"""Compressors: their declared constants, by sampling; their bytes in real messages; and values that are not finite."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.contract.compression import ArrayForm
from fedax.contract.compressors import COMPRESSORS, compressor
from fedax.contract.compressors.sparse import _count
from fedax.errors import CodeError, ConfigError

from .. import mostly_long

ALL = [
    fedax.Identity(), fedax.TopK(0.1), fedax.TopK(1.0), fedax.RandomK(0.3), fedax.QSGD(1), fedax.QSGD(3),
    fedax.QSGD(200), fedax.Natural(), fedax.Sign(), fedax.Cast(), fedax.Cast("float16"), fedax.PowerSGD(1),
    fedax.PowerSGD(2), fedax.Rotated(fedax.QSGD(2)), fedax.Rotated(fedax.TopK(0.2)),
    fedax.ErrorFeedback(fedax.TopK(0.1)), fedax.ErrorFeedback(fedax.RandomK(0.1)),
    fedax.ErrorFeedback(fedax.PowerSGD(1)), fedax.ErrorFeedback(fedax.Rotated(fedax.Sign())),
]  # fmt: skip

each = pytest.mark.parametrize("how", ALL, ids=repr)


def tree_of(random, scale=1.0):
    """Some arrays, of sizes that are no powers of two; some numbers are 0."""
    draw = lambda *shape: (random.normal(size=shape) ** 3 * (random.random(shape) < 0.9)).astype(np.float32)  # noqa: E731
    return {"w": draw(6, 7) * scale, "b": draw(5), "one": draw(), "k": draw(4, 3, 3, 2) / scale}


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]).astype(np.float64)


@functools.cache
def program(structure):
    """``(how, keys, upload) -> C(x)`` of each key, [draws, d]; one program for all numbers of a compressor."""
    del structure

    def run(how, keys, upload):
        def one(key):
            read = how.encode(key, upload, how.init(upload))[0].decode()
            return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(read)])

        return jax.vmap(one)(keys)

    return jax.jit(run)


# As a run has them: compiled whole. One program for all numbers of a compressor.
encode = jax.jit(lambda how, key, upload: how.encode(key, upload, how.init(upload)))
encode_more = jax.jit(lambda how, key, upload, memory: how.encode(key, upload, memory))
decode = jax.jit(lambda message: message.decode())


def over_the_wire(how, message):
    """The message that is read out of the bytes of one."""
    return fedax.Message(how.unpack(how.pack(message.parts, message.form), message.form), how, message.form)


def drawn(how, upload, draws=2000, seed=0):
    known = jax.tree.structure((how, upload)), tuple(np.shape(leaf) for leaf in jax.tree.leaves(upload))
    return np.asarray(program(known)(how, jax.random.split(jax.random.key(seed), draws), upload), np.float64)


@each
def test_a_compressor_is_what_it_declares(how):
    """E C(x) = x within the sampling error, and E‖C(x) − x‖² ≤ ω‖x‖², or (1 − α)‖x‖²."""
    random = np.random.default_rng(0)
    for trial in range(3):
        upload = tree_of(random, 10.0**trial)
        x, result = flat(upload), drawn(how, upload, seed=trial)
        d, square = x.size, np.sum(x**2)
        omega, alpha = how.omega(d), how.alpha(d)
        assert (omega is None) != (alpha is None) or isinstance(how, fedax.Identity)
        errors = np.sum((result - x) ** 2, axis=1)
        noise = 5 * errors.std() / math.sqrt(len(errors)) + 1e-5 * square
        if omega is not None:
            # Of an unbiased one, the mean of n is off by E‖C(x) − x‖²/n in the mean.
            assert np.sum((result.mean(axis=0) - x) ** 2) <= 6 * errors.mean() / len(result) + 1e-10 * square
            assert errors.mean() <= omega * square + noise
        if alpha is not None:
            assert errors.mean() <= (1 - alpha) * square + noise
            assert 0 < alpha <= 1


@pytest.mark.parametrize(
    ("how", "x", "least"),
    [
        (fedax.TopK(0.25), np.ones(64), 1.0),
        (fedax.RandomK(0.25), np.arange(64.0), 1.0),
        (fedax.QSGD(1), np.ones(400), 0.9),  # √d − 1 of √d
        (fedax.QSGD(100), np.r_[100.0, np.full(99, 0.5 / 99**0.5)] + np.r_[0, np.full(99, 0.45)], 0.9),
        (fedax.Natural(), np.full(8, 4 / 3), 1.0),
        (fedax.Sign(), np.r_[1.0, np.zeros(49)], 1.0),
        (fedax.Cast(), np.full(8, 1 + 2**-8), 0.99),
        (fedax.Cast("float16"), np.full(8, 1 + 2**-11), 0.99),
        (fedax.PowerSGD(1), np.eye(30), 0.99),
        (fedax.Rotated(fedax.QSGD(1)), np.r_[1.0, np.zeros(255)], 0.9),
    ],
    ids=repr,
)
def test_what_is_declared_is_reached(how, x, least):
    """There are vectors whose error is (nearly) ω‖x‖², or (1 − α)‖x‖²: a smaller ω, or a larger α, would be wrong."""
    x = x.astype(np.float32)
    errors = np.sum((drawn(how, x) - flat(x)) ** 2, axis=1).mean() / np.sum(flat(x) ** 2)
    bound = how.omega(x.size) if how.omega(x.size) is not None else 1 - how.alpha(x.size)
    assert least * bound * 0.97 <= errors <= bound * 1.03


@each
def test_a_message_goes_over_a_real_wire(how):
    """A message has ⌈bits/8⌉ bytes and is decoded to the same bits; another length is refused."""
    upload = tree_of(np.random.default_rng(1))
    upload["b"][0] = -0.0
    message, _ = encode(how, jax.random.key(7), upload)
    file = how.pack(message.parts, message.form)
    assert file.dtype == np.uint8 and file.shape == (-(-message.bits // 8),) == (
        -(-how.bits(ArrayForm.of(upload)) // 8),
    )
    again = over_the_wire(how, message)
    same = lambda a, b: np.asarray(a).tobytes() == np.asarray(b).tobytes()  # noqa: E731
    assert jax.tree.all(jax.tree.map(same, again.parts, message.parts))
    assert jax.tree.all(jax.tree.map(same, decode(again), decode(message)))
    for bad in (
        file[:-1],
        np.append(file, np.uint8(0)),
        file.astype(np.int32),
        file[None],
        "rubbish",
        np.zeros(0, np.uint8),
    ):
        with pytest.raises(ValueError):
            how.unpack(bad, message.form)


@pytest.mark.parametrize(
    ("how", "file"),
    [
        (fedax.TopK(0.4), [0] * 8 + [0b00100100]),  # place 1 twice
        (fedax.TopK(0.4), [0] * 8 + [0b00110100]),  # places 1 and 5, of 5
        (fedax.TopK(0.4), [0] * 8 + [0b00001001]),  # bits after the end
        (fedax.QSGD(2), [0] * 4 + [0b10100000, 0]),  # level 5 of 0 … 4
        (fedax.QSGD(2), [0, 0, 128, 191, 0, 0]),  # norm −1
        (fedax.Sign(), [0, 0, 128, 191, 0]),  # size −1
        (fedax.Sign(), [0, 0, 0, 0, 1]),
        (fedax.Natural(), [0] * 5 + [1]),
    ],
    ids=repr,
)  # fmt: skip
def test_rubbish_is_refused(how, file):
    form = ArrayForm.of(jnp.zeros(5))
    assert len(file) == -(-how.bits(form) // 8)
    with pytest.raises(ValueError):
        how.unpack(np.array(file, np.uint8), form)


def test_any_bytes_are_a_message_or_refused():
    random, form = np.random.default_rng(2), ArrayForm.of(jnp.zeros((5, 4)))
    for how in ALL:
        length = -(-how.bits(form) // 8)
        for _ in range(3):
            file = random.integers(0, 256, length).astype(np.uint8)
            try:
                parts = how.unpack(file, form)
            except ValueError:
                continue
            again = decode(fedax.Message(parts, how, form))
            assert again.shape == (5, 4) and how.pack(parts, form).tolist() == file.tolist()


@each
@pytest.mark.parametrize("bad", mostly_long([math.nan, math.inf, -math.inf], math.nan, -math.inf))
def test_numbers_that_are_not_finite_leave_their_mark(how, bad):
    """At any place, in a message and in the bytes of one; and the memory stays as it was."""
    upload = tree_of(np.random.default_rng(3))
    for name, at in (("w", (5, 6)), ("b", 0), ("k", (0, 1, 2, 1))):
        given = jax.tree.map(np.copy, upload)
        given[name][at] = bad
        message, memory = encode(how, jax.random.key(1), given)
        assert not np.isfinite(flat(decode(message))).all()
        assert not np.isfinite(flat(decode(over_the_wire(how, message)))).all()
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(memory))


def test_large_numbers_have_a_norm():
    values = drawn(fedax.QSGD(10), np.array([3e30, -4e30], np.float32), 5)
    np.testing.assert_allclose(values, np.tile([3e30, -4e30], (5, 1)), 1e-6)


def test_values_against_numpy():
    """A transcription of each; of random ones with the draws that are known."""
    x = np.array([0.5, -3.0, 2.0, 0.0, -2.0, 7.0], np.float32)
    read = lambda how: np.asarray(decode(encode(how, jax.random.key(5), x)[0]))  # noqa: E731
    assert read(fedax.TopK(0.5)).tolist() == [0, -3, 2, 0, 0, 7]  # of −2 and 2 the first
    size = np.abs(x).mean()
    np.testing.assert_allclose(read(fedax.Sign()), np.where(x < 0, -size, size), 1e-6)
    s, norm = 3, np.linalg.norm(x)
    up = np.asarray(jax.random.uniform(jax.random.key(5), x.shape)) < (a := np.abs(x) / norm * s) % 1
    np.testing.assert_allclose(read(fedax.QSGD(s)), np.sign(x) * (np.floor(a) + up) * norm / s, 1e-5)
    powers = 2.0 ** np.floor(np.log2(np.abs(x), where=x != 0, out=np.zeros(6)))
    values = np.abs(read(fedax.Natural()))
    assert ((values == powers) | (values == 2 * powers) | (x == 0)).all() and values[3] == 0 and values[4] == 2
    assert np.count_nonzero(read(fedax.RandomK(0.5))) in (2, 3)
    matrix = np.random.default_rng(0).normal(size=(9, 8)).astype(np.float32)
    q = np.asarray(jax.random.normal(jax.random.fold_in(jax.random.key(5), 0), (8, 2)))
    p = np.linalg.qr(matrix @ q)[0]
    message, _ = encode(fedax.PowerSGD(2), jax.random.key(5), matrix)
    np.testing.assert_allclose(decode(message), p @ p.T @ matrix, atol=1e-5)


def test_what_is_no_smaller_in_parts_goes_whole():
    for shape, numbers in (((2, 100), 102), ((100, 2), 102), ((2, 2), 4), ((7,), 7), ((3, 5, 4), 23)):
        assert fedax.PowerSGD(1).bits(ArrayForm.of(jnp.zeros(shape))) == 32 * numbers
    assert fedax.TopK(1.0).bits(ArrayForm.of(jnp.zeros(1))) == 32  # the place of the only number is known


def test_largest_numbers_against_a_stable_sort():
    """Of numbers of equal size the first; all k, with ties, zeros, and numbers that are not finite."""
    random = np.random.default_rng(6)
    x = np.r_[random.integers(-3, 4, 36), [np.inf, -np.inf, -0.0, 1e-30]].astype(np.float32)
    read = jax.jit(jax.vmap(lambda share: fedax.TopK(share).encode(None, x)[0].decode()))
    values = np.asarray(read((np.arange(40) + 1) / 40))
    order = np.argsort(-np.abs(x), kind="stable")
    for k, row in enumerate(values, 1):
        wanted = np.zeros(40, np.float32)
        wanted[order[:k]] = x[order[:k]]
        assert row.tolist() == wanted.tolist()


def test_a_rotation_is_one():
    """A message of all numbers gives x back; where one number is large, the sign says more of the rotated vector."""
    x = (np.random.default_rng(0).normal(size=1000) * np.r_[1000.0, np.ones(999)]).astype(np.float32)
    np.testing.assert_allclose(drawn(fedax.Rotated(fedax.Identity()), x, 2), np.tile(x, (2, 1)), atol=1e-2)
    rotated = lambda how: np.mean(np.sum((drawn(how, x, 50) - x) ** 2, axis=1)) / np.sum(x**2)  # noqa: E731
    assert rotated(fedax.Sign()) > 0.9 and rotated(fedax.Rotated(fedax.Sign())) < 0.1


def test_feedback_against_a_loop():
    """e ← x + e − C(x + e); an unbiased compressor is scaled by 1/(1 + ω)."""
    random = np.random.default_rng(4)
    for of, scale in ((fedax.TopK(0.2), 1), (fedax.RandomK(0.2), 0.2), (fedax.QSGD(2), 1 / (1 + 10 / 16))):
        how = fedax.ErrorFeedback(of)
        memory, e = how.init(np.zeros(10, np.float32)), np.zeros(10)
        for step in range(8):
            x, key = random.normal(size=10).astype(np.float32), jax.random.key(step)
            message, memory = encode_more(how, key, x, memory)
            c = np.asarray(decode(encode(of, key, (x + e).astype(np.float32))[0])) * scale
            e = x + e - c
            np.testing.assert_allclose(decode(message), c, atol=1e-5)
            np.testing.assert_allclose(memory[0], e, atol=1e-5)


def test_numbers_of_a_compressor_are_traced():
    """One program for all shares and levels, which counts as the host does."""
    x = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    shares = np.random.default_rng(1).random(200).astype(np.float32)
    sent_ = jax.jit(jax.vmap(lambda share: jnp.sum(fedax.TopK(share).encode(None, x)[0].decode() != 0)))(shares)
    assert sent_.tolist() == [_count(share, 1000) for share in shares]
    for d in (1, 7, 10**6, 12_345_678, 2**31 - 1):
        count = jax.jit(jax.vmap(lambda share, d=d: _count(share, d)))
        assert count(shares).tolist() == [_count(share, d) for share in shares]
        exact = [max(1, -(-round(float(share * np.float32(1e6))) * d // 10**6)) for share in shares]
        assert count(shares).tolist() == exact
    omegas = jax.jit(jax.vmap(lambda s: fedax.ErrorFeedback(fedax.QSGD(s)).alpha(50)))(jnp.array([1.0, 5.0]))
    np.testing.assert_allclose(omegas, [fedax.ErrorFeedback(fedax.QSGD(s)).alpha(50) for s in (1, 5)], 1e-6)


def test_sixteen_and_mixed_types():
    upload = {"a": jnp.arange(6, dtype=jnp.bfloat16), "b": jnp.ones((3, 4), jnp.float16), "c": jnp.ones(2)}
    for how in ALL[::3]:
        message, _ = encode(how, jax.random.key(0), upload)
        read = decode(message)
        assert jax.tree.map(lambda leaf: leaf.dtype, read) == jax.tree.map(lambda leaf: leaf.dtype, upload)
        assert len(how.pack(message.parts, message.form)) == -(-message.bits // 8)
    half = jnp.linspace(-1, 1, 9, dtype=jnp.bfloat16)
    message, _ = fedax.Natural().encode(jax.random.key(0), half)
    assert message.bits == 9 * 9 and message.decode().dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("make", "field"),
    [
        *((lambda share=share: fedax.TopK(share), "share") for share in (0, 1.5, "0.1", math.nan)),
        (lambda: fedax.TopK(fedax.PowerDecay(1.0)), "share"),
        (lambda: fedax.RandomK(0.0), "share"),
        *((lambda levels=levels: fedax.QSGD(levels), "levels") for levels in (0, 1.5, 2**17, None)),
        (lambda: fedax.PowerSGD(0), "rank"),
        (lambda: fedax.Cast("float8"), "to"),
        (lambda: fedax.Rotated(fedax.ErrorFeedback(fedax.Sign())), "of"),
        (lambda: fedax.ErrorFeedback(fedax.ErrorFeedback(fedax.Sign())), "of"),
        (lambda: fedax.ErrorFeedback("top-k"), "of"),
        (lambda: compressor({"name": "top-k"}), "compress.share"),
        (lambda: compressor({"name": "top"}), "compress.name"),
        (lambda: compressor({"name": "rotated", "of": {"name": "qsgd", "levels": 0}}), "compress.of.levels"),
        (lambda: compressor(0.1), "compress"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(make, field):
    with pytest.raises(fedax.ConfigError) as caught:
        make()
    assert caught.value.field == field


def test_by_name():
    table = {"name": "error-feedback", "of": {"name": "rotated", "of": {"name": "qsgd", "levels": 4}}}
    assert repr(compressor(table)) == "ErrorFeedback(of=Rotated(of=QSGD(levels=4)))"
    assert {type(how) for how in ALL} == {COMPRESSORS.get(name).make for name in COMPRESSORS.available()}


class Mine(fedax.Compressor):
    def compress(self, key, x):
        return jnp.concatenate([jnp.zeros(1), x])

    def bits(self, form):
        return 32 * form.size


def test_a_compressor_of_ones_own_has_to_restore_all_numbers_and_for_feedback_to_say_how_good_it_is():
    with pytest.raises(CodeError, match=r"Mine\.restore gives float32\[4\] for a vector \[3\]"):
        Mine().encode(None, jnp.ones(3))[0].decode()
    with pytest.raises(ConfigError, match=r"of = Mine\(\): .*omega.*alpha"):
        fedax.ErrorFeedback(Mine()).alpha(3)
