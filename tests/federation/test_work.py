"""Local work: τ_i by the formulas, over clients, rounds and draws."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax

SIZES = np.array([1, 3, 10, 15, 39, 40, 3000])
IDS = jnp.arange(len(SIZES))
KEY = jax.random.key(2)


_draw = jax.jit(lambda work, key, ids, sizes, batch_size: work.draw(key, ids, sizes, batch_size), static_argnums=4)


def drawn(work, batch_size=None, key=KEY, sizes=SIZES, ids=None):
    ids = jnp.arange(len(sizes)) if ids is None else ids
    steps = _draw(work, key, ids, jnp.asarray(sizes), batch_size)
    assert jnp.issubdtype(steps.dtype, jnp.integer) and steps.shape == ids.shape
    return np.asarray(steps)


def formula(e, sizes, batch_size):
    """max(1, ⌊e·n_i/B⌋) in exact arithmetic; e as written in decimals."""
    return [max(1, math.floor(Fraction(str(e)) * (int(n) if batch_size else 1) / (batch_size or 1))) for n in sizes]


@pytest.mark.parametrize("batch_size", [None, 1, 10, 64])
def test_epochs_follow_the_formula_exactly(batch_size):
    sizes = np.concatenate([SIZES, np.arange(1, 400)])
    for e in (1.0, 2.0, 0.1, 0.3, 0.57, 0.7, 1.5, 2.9, 5.0):
        work, want = fedax.Epochs(e), formula(e, sizes, batch_size)
        assert drawn(work, batch_size, None, sizes).tolist() == want and work.largest(sizes, batch_size) == max(want)
        assert work.equal(SIZES, batch_size) == (max(1, int(e)) if batch_size is None else None)
        assert work.equal(np.full(4, 30), batch_size) == formula(e, [30], batch_size)[0]
    assert fedax.Epochs(3).without_replacement() and fedax.Epochs(3).largest(sizes, 10) == 900


def test_random_epochs_stay_in_range_and_change_by_client_and_round():
    work, sizes = fedax.RandomEpochs(2, 5), np.full(2000, 30)
    sizes[:2] = 1, 3000
    one = drawn(work, 10, KEY, sizes)
    two = drawn(work, 10, jax.random.key(3), sizes)
    values, counts = np.unique(one[2:], return_counts=True)
    assert values.tolist() == [6, 9, 12, 15] and one[0] == 1 and one[1] in (600, 900, 1200, 1500)
    assert np.abs(counts / 1998 - 0.25).max() < 4 * math.sqrt(0.25 * 0.75 / 1998)
    assert (one == two).mean() == pytest.approx(0.25, abs=0.04)
    assert work.largest(sizes, 10) == 1500 and work.equal(np.full(4, 30), 10) is None and work.without_replacement()
    assert work.largest(sizes, None) == 5


def test_random_steps_have_the_moments_of_a_normal_and_are_clipped():
    ids = jnp.arange(20_000)
    free = drawn(fedax.RandomSteps(30, 5, 1, 96), ids=ids)
    error = 5 / math.sqrt(len(free))
    assert abs(free.mean() - 30) < 4 * error and free.std() == pytest.approx(math.sqrt(25 + 1 / 12), rel=0.03)
    clipped = drawn(fedax.RandomSteps(2, 3, 1, 4), ids=ids)
    below = lambda z: 0.5 * (1 + math.erf(z / math.sqrt(2)))  # noqa: E731
    law = {1: below(-0.5 / 3), 2: below(0.5 / 3) - below(-0.5 / 3), 3: below(1.5 / 3) - below(0.5 / 3)}
    law[4] = 1 - sum(law.values())
    for steps, chance in law.items():
        assert abs((clipped == steps).mean() - chance) < 4 * math.sqrt(chance * (1 - chance) / len(clipped))
    assert (drawn(fedax.RandomSteps(7, 0, 1, 9)) == 7).all()
    work = fedax.RandomSteps(30, 5, 1, 96)
    assert work.largest(SIZES, None) == 96 and work.equal(SIZES, None) is None and not work.without_replacement()


def test_geometric_steps_are_the_tosses_of_one_coin_for_all():
    work = fedax.GeometricSteps(4.0)
    rounds = np.stack([drawn(work, key=jax.random.key(r)) for r in range(2000)])
    assert (rounds == rounds[:, :1]).all()  # the same for all clients
    tosses = rounds[:, 0]
    for steps in (1, 2, 3):
        chance = 0.25 * 0.75 ** (steps - 1)
        assert abs((tosses == steps).mean() - chance) < 4 * math.sqrt(chance * (1 - chance) / len(tosses))
    assert abs(tosses.mean() - 4) < 4 * math.sqrt(12 / len(tosses))
    assert work.largest(SIZES, None) == 48 and work.equal(SIZES, None) is None and not work.without_replacement()
    cut = np.stack([drawn(fedax.GeometricSteps(4.0, high=2), key=jax.random.key(r)) for r in range(20)])
    assert cut.max() == 2 and (drawn(fedax.GeometricSteps(1.0)) == 1).all()


@pytest.mark.parametrize(
    "work", [fedax.RandomEpochs(1, 9), fedax.RandomSteps(30, 10, 1, 96)], ids=lambda w: repr(w)[:12]
)
def test_random_work_belongs_to_the_client_and_the_round_not_to_the_place(work):
    order = jnp.array([4, 0, 6])
    assert drawn(work, 1)[np.asarray(order)].tolist() == drawn(work, 1, sizes=SIZES[order], ids=order).tolist()
    assert drawn(work, 1).tolist() == drawn(work, 1).tolist() != drawn(work, 1, jax.random.key(9)).tolist()


def test_steps_for_all_and_for_each():
    assert drawn(fedax.Steps(5)).tolist() == [5] * 7 and fedax.Steps(5).equal(SIZES, 3) == 5
    each = fedax.Steps([4, 1, 2, 7, 3, 9, 5])
    assert drawn(each, ids=jnp.array([3, 0])).tolist() == [7, 4]
    assert each.largest(SIZES, 3) == 9 and each.equal(SIZES, 3) is None and not each.without_replacement()
    assert fedax.Steps(np.full(7, 3)).equal(SIZES, None) == 3


def test_a_deadline_gives_whole_steps_by_speed():
    work = fedax.Deadline(10.0, [0.1, 0.55, 0.99, 2.0, 0.3, 1.0, 33.3])
    assert drawn(work).tolist() == [1, 5, 9, 20, 3, 10, 333] and work.largest(SIZES, None) == 333
    assert fedax.Deadline(3.0, 2.0).equal(SIZES, None) == 6
    # 0.3 · 10 is below 3 in binary
    assert drawn(fedax.Deadline(0.3, [10.0, 1e3]), sizes=SIZES[:2]).tolist() == [3, 300]


@pytest.mark.parametrize(
    ("work", "tolerance"),
    [
        (fedax.Steps(5), 0),
        (fedax.Steps([4, 1, 2, 7, 3, 9, 5]), 0),
        (fedax.Epochs(2.5), 0),
        (fedax.Deadline(10.0, [0.1, 0.55, 0.99, 2.0, 0.3, 1.0, 33.3]), 0),
        (fedax.RandomEpochs(2, 5), 0.05),
        (fedax.RandomSteps(2, 3, 1, 4), 0.05),
        (fedax.RandomSteps(30, 5, 1, 96), 0.05),
    ],
    ids=lambda value: type(value).__name__,
)
def test_usual_work_is_the_mean_over_rounds(work, tolerance):
    keys = jax.random.split(KEY, 4000)
    rounds = jax.vmap(lambda key: work.draw(key, IDS, jnp.asarray(SIZES), 10))(keys)
    usual = np.asarray(work.usual(SIZES, 10))
    assert usual.shape == SIZES.shape
    assert abs(usual.mean() / np.asarray(rounds).mean() - 1) <= tolerance + 1e-6


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("make", "field"),
    [
        *((lambda v=v: fedax.Steps(v), "steps") for v in (0, -1, 2.5, True, "3", None, [], [1, 0], [[1]], [1.0, 2.0])),
        (lambda: fedax.Steps([1, [2]]), "steps"),
        *((lambda v=v: fedax.Epochs(v), "epochs") for v in (0, -1.0, True, "1", None, float("nan"), float("inf"))),
        (lambda: fedax.Epochs(np.array([1.0, 2.0])), "epochs"),
        (lambda: fedax.Epochs(fedax.Piecewise(1.0, {})), "epochs"),
        *((lambda v=v: fedax.RandomEpochs(v, 3), "low") for v in (0, 1.5, "1")),
        *((lambda v=v: fedax.RandomEpochs(2, v), "high") for v in (1, 0, 2.5, None)),
        (lambda: fedax.RandomSteps(0, 1, 1, 2), "mean"),
        (lambda: fedax.RandomSteps("5", 1, 1, 2), "mean"),
        (lambda: fedax.RandomSteps(5, -1, 1, 2), "std"),
        (lambda: fedax.RandomSteps(fedax.PowerDecay(5.0), 1, 1, 2), "mean"),
        (lambda: fedax.RandomSteps(5, fedax.PowerDecay(5.0), 1, 2), "std"),
        (lambda: fedax.RandomSteps(5, 1, 0, 2), "low"),
        (lambda: fedax.RandomSteps(5, 1, 3, 2), "high"),
        *((lambda v=v: fedax.GeometricSteps(v), "mean") for v in (0.5, "2", None, fedax.Piecewise(2.0, {}))),
        (lambda: fedax.GeometricSteps(5.0, high=0), "high"),
        *((lambda v=v: fedax.Deadline(v, 1.0), "time") for v in (0, -1, "1", None, 0.5)),
        *((lambda v=v: fedax.Deadline(10.0, v), "speed") for v in (0, [1.0, -1.0], "fast", float("nan"))),
        *((lambda v=v: fedax.Deadline(10.0, v), "speed") for v in ([[1.0]], [1.0, [2.0]], 1j, [True], [])),
        (lambda: fedax.Deadline(fedax.PowerDecay(5.0), 1.0), "time"),
        (lambda: fedax.Deadline(1e300, [1.0, 1e300]), "time"),
    ],
)
def test_work_that_cannot_be_done_is_refused(make, field):
    with pytest.raises(fedax.ConfigError) as caught:
        make()
    assert caught.value.field == field


@pytest.mark.parametrize("work", [fedax.Steps([1, 2]), fedax.Deadline(10.0, [1.0, 2.0])])
def test_one_number_a_client_has_to_fit_the_clients(work):
    work.validate(SIZES[:2])
    with pytest.raises(fedax.ConfigError, match=r"2 numbers.*each of the 7 clients"):
        work.validate(SIZES)


def test_a_client_that_would_never_finish_a_step_is_named():
    with pytest.raises(fedax.ConfigError, match=r"time = 10\.0: client 1 would finish no step"):
        fedax.Deadline(10.0, [1.0, 0.05])
