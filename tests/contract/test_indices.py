"""The random indices are permutations, and uniform."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from scipy import stats

from fedax.contract.indices import _scaled, independent, shuffled

from .. import mostly_long

DRAWS = 20_000
KEYS = jax.random.split(jax.random.key(11), DRAWS)
P_VALUE = 1e-4  # the keys are fixed: this is no chance of a red test, but the size of a bias that is seen


def uniform(counts):
    assert stats.chisquare(np.ravel(counts)).pvalue > P_VALUE


def pairs(draw, n):
    """How often two columns of ``draw`` hold each pair of numbers."""
    return np.bincount(draw[:, 0] * n + draw[:, 1], minlength=n * n).reshape(n, n)


@functools.partial(jax.jit, static_argnames=("length", "max_size"))
def permutation(n, key, epoch, *, length, max_size):
    return shuffled(jnp.arange(length) % n, n, key, epoch, max_size=max_size)


def test_every_size_up_to_fifty_and_every_epoch_is_a_permutation():
    epochs = functools.partial(permutation, length=50, max_size=50)
    tables = jax.vmap(jax.vmap(epochs, (None, None, 0)), (0, None, None))(jnp.arange(1, 51), KEYS[0], jnp.arange(3))
    for n, table in enumerate(np.asarray(tables), 1):
        assert (np.sort(table[:, :n], axis=1) == np.arange(n)).all()
        if n > 8:
            assert len(np.unique(table[:, :n], axis=0)) == 3  # each epoch has an order of its own


@pytest.mark.parametrize("n", [1000, 100_003])
def test_large_sizes_are_permutations_that_differ_by_key(n):
    one, two = (np.asarray(permutation(n, key, 0, length=n, max_size=n)) for key in KEYS[:2])
    assert (np.sort(one) == np.arange(n)).all() and (np.sort(two) == np.arange(n)).all()
    assert (one == two).mean() < 10 / n and (one == np.arange(n)).mean() < 10 / n
    assert abs(np.corrcoef(one, np.arange(n))[0, 1]) < 5 / math.sqrt(n)
    steps = np.diff(one)  # of independent numbers, neighbouring steps correlate by −1/2
    assert abs(np.corrcoef(steps[1:], steps[:-1])[0, 1] + 0.5) < 5 / math.sqrt(n)


def mixed(word):
    word = (word ^ word >> 16) * 0x7FEB352D % 2**32
    word = (word ^ word >> 15) * 0x846CA68B % 2**32
    return word ^ word >> 16


def in_python(x, n, key, epoch, max_size):
    """The shuffle of one position, written with Python's whole numbers."""
    first, last = (int(word) for word in jax.random.key_data(key))
    seed = mixed(first ^ mixed((last + (epoch + 1) * 0x9E3779B9) % 2**32))
    for i in range(6 + 2 * max(max_size - 1, 1).bit_length()):
        word = mixed((seed + i * 0x85EBCA6B) % 2**32)
        turn = min(int(np.float32(word >> 8) * (np.float32(n) * np.float32(2**-24))), n - 1)
        mirror = (turn - x) % n
        if mixed(max(x, mirror) ^ word) & 1:
            x = mirror
    return x


@pytest.mark.parametrize("branch", [0, 1], ids=["on a CPU", "elsewhere"])
@pytest.mark.parametrize(("n", "max_size"), [(7, 7), (1, 9), (90, 100)])
def test_it_is_the_same_permutation_on_every_platform(n, max_size, branch):
    epoch = np.arange(n) % 3
    draw = functools.partial(shuffled, max_size=max_size)
    traced = jax.make_jaxpr(draw)(np.arange(n), n, KEYS[3], epoch)
    (choice,) = (equation for equation in traced.eqns if equation.primitive.name == "cond")
    assert len(choice.params["branches"]) == 2
    # Everything before the choice, then this branch with what it is given.
    until = traced.jaxpr.replace(eqns=traced.eqns[: traced.eqns.index(choice)], outvars=choice.invars[1:])
    given = jaxpr_as_fun(ClosedJaxpr(until, traced.consts))(np.arange(n), n, KEYS[3], epoch)
    (found,) = jaxpr_as_fun(choice.params["branches"][branch])(*given)
    expected = [in_python(x, n, KEYS[3], int(e), max_size) for x, e in enumerate(epoch)]
    assert found.tolist() == expected == draw(np.arange(n), n, KEYS[3], epoch).tolist()


@pytest.mark.parametrize(("platform", "loops"), [("cpu", 1), ("cuda", 0), ("tpu", 0)])
def test_the_passes_are_a_loop_on_a_cpu_alone(platform, loops):
    """Unrolled and fused into what they index, they took XLA a minute to compile, of twelve clients."""

    def of_cohort(table, key):
        return table[shuffled(jnp.arange(3), 12, key, max_size=12)].sum()

    lowered = jax.jit(of_cohort).trace(np.ones(12), KEYS[0]).lower(lowering_platforms=(platform,))
    assert lowered.as_text().count("stablehlo.while") == loops


@pytest.mark.parametrize(("n", "max_size"), [(2, 2), (4, 4), (5, 100), (16, 16)])
def test_positions_and_pairs_of_positions_are_uniform_over_keys_and_epochs(n, max_size):
    draw = functools.partial(permutation, length=n, max_size=max_size)
    for draws in (
        jax.vmap(draw, (None, 0, None))(n, KEYS, 0),
        jax.vmap(draw, (None, None, 0))(n, KEYS[5], jnp.arange(DRAWS)),
    ):
        draws = np.asarray(draws)
        assert (np.sort(draws, axis=1) == np.arange(n)).all()
        for position in {0, n // 2, n - 1}:
            uniform(np.bincount(draws[:, position], minlength=n))
        for a, b in {(0, 1), (0, n - 1), (n // 2, n - 1)} if n > 2 else {(0, 1)}:
            uniform(pairs(draws[:, [a, b]], n)[~np.eye(n, dtype=bool)])


LARGE = [2**24 + 1, 2**25, 10**8, 2**27, 2**31 - 1]


@pytest.mark.parametrize("n", mostly_long(LARGE, 2**24 + 1, 2**27, 2**31 - 1))
def test_more_than_a_float32_can_count_are_uniform_too(n):
    draws = np.asarray(jax.vmap(lambda key: permutation(n, key, 0, length=2, max_size=n))(KEYS)).astype(np.int64)
    assert draws.min() >= 0 and draws.max() < n and (draws[:, 0] != draws[:, 1]).all()
    for position in draws.T:
        uniform(np.bincount(position % 8, minlength=8))
        uniform(np.bincount(position * 64 // n, minlength=64))
    uniform(pairs(draws * 8 // n, 8))
    assert len(np.unique(permutation(n, KEYS[0], 0, length=100_000, max_size=n))) == 100_000


@pytest.mark.parametrize("n", [1, 3, 2**16, 2**24 + 1, 10**8, 2**31 - 1])
def test_words_are_scaled_exactly(n):
    words = np.concatenate([[0, 1, 2**16 - 1, 2**16, 2**32 - 1], np.asarray(jax.random.bits(KEYS[1], 10_000))])
    expected = words.astype(np.uint64) * np.uint64(n) >> np.uint64(32)
    found = _scaled(jnp.asarray(words, jnp.uint32), jnp.uint32(n))
    assert (np.asarray(found) == expected).all()


def test_independent_draws_are_uniform_over_positions_keys_and_pairs():
    by_position = jax.jit(lambda n: independent(jnp.arange(2 * DRAWS), n, KEYS[0]))
    by_key = jax.jit(jax.vmap(lambda n, key: independent(jnp.arange(2), n, key), (None, 0)))
    assert set(np.unique(by_position(1))) == {0}
    assert by_position(100)[:7].tolist() == independent(jnp.arange(7), 100, KEYS[0]).tolist()
    for n in (2, 3, 7, 64):
        positions, keys = np.asarray(by_position(n)), np.asarray(by_key(n, KEYS))
        uniform(np.bincount(positions, minlength=n))
        uniform(np.bincount(keys[:, 0], minlength=n))
        uniform(pairs(keys, n))
        uniform(pairs(positions.reshape(-1, 2), n))
