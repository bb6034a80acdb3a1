"""The oracle: which examples a gradient sees, and how many gradients are counted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.contract.local import phases

from .. import LAST_BITS
from .probe import named, numbered, oracle_answers

SIZES = np.array([1, 3, 10, 601])  # the last is longer than a block of the full gradient, and no multiple of it
N, TOTAL = len(SIZES), int(SIZES.sum())
DATA, TASK = numbered(SIZES), named(TOTAL)
OWN = np.zeros((N, TOTAL), bool)
for _i, _rows in enumerate(np.split(np.arange(TOTAL), np.cumsum(SIZES)[:-1])):
    OWN[_i, _rows] = True
TAUS = np.array([2, 5, 1, 4])
UNEQUAL = fedax.Steps(TAUS)


def passes(batch_size):
    """What a full gradient counts as, for each client."""
    return np.ceil(SIZES / batch_size) if batch_size else np.ones(N)


def share(x, oracle):
    """Exact share of each example: rows sum to one."""
    return oracle.full_grad(x).tree


def sequence(*steps):
    """The shares of the minibatches k in ``steps``, one after another."""
    return lambda x, oracle: jax.lax.map(lambda k: oracle.grad(x, k).tree, jnp.array(steps))


@pytest.mark.parametrize("batch_size", [4, 400, None])
def test_a_full_gradient_counts_every_own_example_once(batch_size):
    answers, run = oracle_answers(share, (TOTAL,), TASK, DATA, batch_size=batch_size, work=UNEQUAL)
    np.testing.assert_allclose(answers, OWN / SIZES[:, None], rtol=1e-5)
    assert run.history["gradients"].tolist() == [0, passes(batch_size).sum()]


def test_without_a_batch_size_every_gradient_is_over_all_own_examples():
    ask = lambda x, o: jnp.stack([o.grad(x).tree, o.grad(x, 7).tree, o.grad_batches(x, 5).tree])  # noqa: E731
    answers, run = oracle_answers(ask, (3, TOTAL), TASK, DATA)
    np.testing.assert_allclose(answers, np.stack([OWN / SIZES[:, None]] * 3, axis=1), rtol=1e-5)
    assert run.history["gradients"].tolist() == [0, 3 * N] and run.history["local_steps"].tolist() == [0, 0]


@pytest.mark.parametrize("work", [fedax.Steps(1), fedax.Epochs(1)], ids=["independent", "epochs"])
def test_minibatches_are_named_by_client_round_exchange_and_step(work):
    ask, options = sequence(0, 1, 2, 3, 1, 0), {"batch_size": 4, "work": work}
    answers, _ = oracle_answers(ask, (6, TOTAL), TASK, DATA, times=2, **options)
    later, _ = oracle_answers(ask, (6, TOTAL), TASK, DATA, times=2, **options, rounds=2)
    other, _ = oracle_answers(ask, (6, TOTAL), TASK, DATA, times=2, **options, seed=1)
    for answer in (*answers, *later, *other):
        np.testing.assert_allclose(answer.sum(axis=2), 1, rtol=1e-6)
        np.testing.assert_allclose(answer * 4, np.round(answer * 4), atol=1e-5)  # four examples, each counted whole
        assert (answer * ~OWN[:, None] == 0).all()  # own examples only
        assert (answer[:, 4] == answer[:, 1]).all() and (answer[:, 5] == answer[:, 0]).all()  # the same k again
    big = [answer[3, k] for answer in (*answers, *later, *other) for k in range(4)]
    assert len({tuple(np.flatnonzero(one)) for one in big}) == len(big)  # any other k, exchange, round or seed differs
    # Clients of one size differ too, by which of their own examples they see.
    twins, _ = oracle_answers(ask, (6, 128), named(128), numbered([64, 64]), **options)
    assert (twins[0, 0, :64] != twins[1, 0, 64:]).any()


def test_without_a_step_it_is_the_first_minibatch():
    def ask(x, oracle):
        first = [oracle.grad(x), oracle.value_and_grad(x)[1], oracle.grad(x, 0), oracle.grad(x, 1)]
        return jnp.stack([gradient.tree for gradient in first])

    answers, _ = oracle_answers(ask, (4, TOTAL), TASK, DATA, batch_size=4, work=UNEQUAL)
    assert (answers[:, 0] == answers[:, 2]).all() and (answers[:, 1] == answers[:, 2]).all()
    assert (answers[:, 3] != answers[:, 2]).any()


def test_epochs_go_through_each_example_once_before_any_comes_again():
    batch, steps = 4, 40
    options = {"batch_size": batch, "work": fedax.Epochs(1)}
    answers, _ = oracle_answers(sequence(*range(steps)), (steps, 14), named(14), numbered([1, 3, 10]), **options)
    orders = []
    for i, rows in enumerate(np.split(np.arange(14), [1, 4])):
        seen = np.cumsum(np.round(answers[i][:, rows] * batch), axis=0)
        positions = batch * np.arange(1, steps + 1)
        assert (seen >= (positions // len(rows))[:, None]).all() and (seen <= -(-positions // len(rows))[:, None]).all()
        orders.append(seen)
    firsts = np.diff(orders[2], axis=0, prepend=0)[::5]  # 20 positions, two epochs: the first batch of every other one
    assert len(np.unique(firsts, axis=0)) > 4  # each epoch has an order of its own


def test_independent_minibatches_are_uniform_with_replacement():
    steps = 300
    answers, _ = oracle_answers(sequence(*range(steps)), (steps, 14), named(14), numbered([1, 3, 10]), batch_size=4)
    counts = np.round(answers[2][:, 4:] * 4)
    total = counts.sum(axis=0)
    assert total.sum() == 4 * steps and np.abs(total - 120).max() < 4 * np.sqrt(1200 * 0.1 * 0.9)
    assert (counts > 1).any()  # an example may come twice in one batch
    assert (counts.sum(axis=1) == 4).all()


def test_grad_batches_is_the_mean_over_the_first_minibatches():
    ask = lambda x, o: jnp.stack([o.grad_batches(x, 3).tree, sum(o.grad(x, k).tree for k in range(3)) / 3])  # noqa: E731
    answers, run = oracle_answers(ask, (2, TOTAL), TASK, DATA, batch_size=4, work=UNEQUAL)
    np.testing.assert_allclose(answers[:, 0], answers[:, 1], atol=LAST_BITS)
    assert run.history["gradients"].tolist() == [0, 6 * N]


def test_grad_batches_of_as_many_minibatches_as_steps():
    def ask(x, oracle):
        return jnp.stack([oracle.grad_batches(x, oracle.steps).tree, oracle.grad_batches(x, 5).tree])

    answers, run = oracle_answers(ask, (2, TOTAL), TASK, DATA, batch_size=4, work=UNEQUAL)
    longest = int(np.argmax(TAUS))
    np.testing.assert_allclose(answers[longest, 0], answers[longest, 1], atol=LAST_BITS)  # τ = 5
    one, _ = oracle_answers(lambda x, o: o.grad(x, 0).tree, (TOTAL,), TASK, DATA, batch_size=4, work=UNEQUAL)
    np.testing.assert_allclose(answers[2, 0], one[2], atol=LAST_BITS)  # τ = 1
    assert run.history["gradients"].tolist() == [0, TAUS.sum() + 5 * N]
    with pytest.raises(fedax.ConfigError, match=r"TypeError: .*or the oracle's steps"):
        oracle_answers(lambda x, o: o.grad_batches(x, jnp.asarray(2)).tree, (TOTAL,), TASK, DATA, batch_size=4)


def test_phases_count_what_is_asked_in_each():
    def ask(x, oracle):
        def phase(y, j):
            return fedax.local_steps(lambda z, k: z - oracle.grad(z, j * oracle.steps + k), y, oracle)

        number = jax.random.randint(oracle.round_key, (), 3, 4)  # 3, which only the run knows
        return phases(phase, x, number, oracle).tree

    ended, run = oracle_answers(ask, (TOTAL,), TASK, DATA, batch_size=4, work=UNEQUAL)
    np.testing.assert_allclose(ended.sum(axis=1), -3 * TAUS, rtol=1e-5)  # every minibatch's shares sum to one
    assert run.history["gradients"].tolist() == run.history["local_steps"].tolist() == [0, 3 * TAUS.sum()]


def test_the_loss_has_a_random_key_of_its_own_for_each_client_and_step():
    def loss(w, batch, key):
        noise = 0.0 if key is None else jax.random.normal(key)  # None in evaluation
        return w * (batch["id"] * 0.0 + noise)

    ask = lambda w, o: jnp.stack([o.grad(w, 0).tree, o.grad(w, 1).tree, o.grad(w, 0).tree])  # noqa: E731
    task = fedax.Task(lambda key: jnp.ones(()), loss)
    answers, run = oracle_answers(ask, (3,), task, numbered([2, 3]), batch_size=2)
    assert (answers[:, 0] == answers[:, 2]).all() and len(np.unique(answers)) == 4
    assert run.history["train_loss"].tolist() == [0, 0]


def test_keys_belong_to_client_round_and_exchange_and_the_round_key_to_all():
    def bits(x, oracle):
        words = [jax.random.bits(key, dtype=jnp.uint16) for key in (oracle.key, oracle.round_key)]
        return jnp.stack([*words, oracle.round, oracle.t(3)])

    options = {"times": 2, "work": fedax.Steps([1, 4, 2, 3])}
    rounds = [oracle_answers(bits, (4,), named(4), numbered([1] * 4), rounds=r, **options)[0] for r in (1, 2)]
    table = np.stack([np.stack(answers) for answers in rounds])  # [round, exchange, client, 4]
    assert len(np.unique(table[..., 0])) == 16  # oracle.key
    assert (table[..., 1] == table[:, :, :1, 1]).all() and len(np.unique(table[..., 1])) >= 2  # the shared coin
    assert (table[0, ..., 1] != table[1, ..., 1]).all()
    assert (table[..., 2] == np.array([0, 1])[:, None, None]).all()
    assert (table[..., 3] == np.array([3, 4 + 3])[:, None, None]).all()  # t = r·K + k with K = 4


def steps_then(x, oracle):
    def step(y, k):
        return y - oracle.grad(y, k) - oracle.grad(x, k) + 0 * oracle.full_grad(y)

    fedax.local_steps(step, x, oracle)
    fedax.local_steps(lambda y, k: y - oracle.grad_batches(y, 2), x, oracle)
    return oracle.grad(x).tree[0]


def by_round(x, oracle):
    full = lambda y: oracle.full_grad(y) + oracle.grad(y)  # noqa: E731
    return oracle.cond(oracle.round == 0, full, lambda y: oracle.grad_batches(y, 3), x).tree[0]


def by_client(x, oracle):
    mine = jnp.sum(oracle.full_grad(x).tree[1:4]) > 0.5  # client 1
    return oracle.cond(mine, lambda y: oracle.grad_batches(y, 5), lambda y: y, x).tree[0]


def steps_in_a_branch(x, oracle):
    run = lambda y: fedax.local_steps(lambda y, k: y - oracle.grad(y, k), y, oracle)  # noqa: E731
    return oracle.cond(oracle.round == 1, run, lambda y: oracle.grad(y), x).tree[0]


# What each asks in its first and in its other rounds (p: gradients of a full pass, m(b): of b minibatches), and its
# local steps then.
COUNTED = {
    "loops": (steps_then, 2 * [lambda p, m, t: t * (2 + p + m(2)) + 1], [lambda t: 2 * t, lambda t: 2 * t]),
    "branch by round": (by_round, [lambda p, m, t: p + 1, lambda p, m, t: m(3) + 0 * t], 2 * [lambda t: 0 * t]),
    "branch by client": (by_client, 2 * [lambda p, m, t: p + m(np.array([0, 5, 0, 0]))], 2 * [lambda t: 0 * t]),
    "loop in a branch": (
        steps_in_a_branch,
        [lambda p, m, t: 1 + 0 * t, lambda p, m, t: t],
        [lambda t: 0 * t, lambda t: t],
    ),
}


@pytest.mark.parametrize(
    ("case", "work", "batch_size"),
    [
        *((case, UNEQUAL, 4) for case in COUNTED),
        ("loops", fedax.Steps(3), 4),
        ("loop in a branch", fedax.Steps(3), 4),
        ("loops", UNEQUAL, None),
    ],
)
def test_gradients_and_local_steps_are_counted_as_they_are_done(case, work, batch_size):
    ask, gradients, steps = COUNTED[case]
    sizes = [1, 3, 10, 27]
    options = {"rounds": 2, "evaluate_every": 1, "place": fedax.Place(chunk_size=3)}
    _, run = oracle_answers(ask, (), named(41), numbered(sizes), batch_size=batch_size, work=work, **options)
    tau = TAUS if work is UNEQUAL else np.full(N, 3)
    full = np.ceil(np.array(sizes) / 4) if batch_size else np.ones(N)
    several = lambda b: np.asarray(b) if batch_size else np.minimum(b, 1)  # noqa: E731  (one gradient is over all data)
    assert np.diff(run.history["gradients"]).tolist() == [f(full, several, tau).sum() for f in gradients]
    assert np.diff(run.history["local_steps"]).tolist() == [f(tau).sum() for f in steps]


def test_a_branch_inside_the_local_loop_is_refused():
    def ask(x, oracle):
        step = lambda y, k: oracle.cond(k == 0, lambda z: oracle.grad(z, k), lambda z: z, y)  # noqa: E731
        return fedax.local_steps(step, x, oracle).tree[0]

    with pytest.raises(fedax.ConfigError, match=r"raised TypeError: oracle\.cond"):
        oracle_answers(ask, (), TASK, DATA)


# Models have one row of numbers for each example, y_i · id is what they answer: a minibatch is seen in what it answers.
ROWS = np.random.default_rng(0).normal(size=(TOTAL, 2))
ANSWERING = fedax.Task(
    lambda key: jnp.asarray(ROWS, jnp.float32),
    lambda w, batch, key: 0.5 * jnp.sum((w[batch["id"]] - 1.0) ** 2, axis=1),
    outputs=lambda w, batch: w[batch["id"]],
)


def own_loss(outputs, batch):
    return jnp.sum(jnp.abs(outputs), axis=1) * (batch["id"] % 3)


@pytest.mark.parametrize("batch_size", [4, None])
def test_losses_outputs_and_examples_are_those_of_the_gradient(batch_size):
    """Of each minibatch: which examples it has, by the gradient's share of each; the rest is computed from these."""
    width = batch_size or int(SIZES.max())

    def ask(x, oracle):
        seen = oracle.batch(2)["id"]
        same = oracle.outputs(x, 2) - x.tree[seen]
        value, gradient = oracle.value_and_grad(x, 2)
        own, mine = oracle.value_and_grad(x, 2, own_loss)
        found = [value, oracle.loss(x, 2), own, oracle.loss(x, 2, own_loss), jnp.abs(same).max()]
        apart = gradient.tree - oracle.grad(x, 2).tree, mine.tree - oracle.grad(x, 2, own_loss).tree
        found += [jnp.abs(each).max() for each in apart]
        share = gradient.tree[:, 0] / (x.tree[:, 0] - 1.0)
        return jnp.concatenate([jnp.stack(found), share, mine.tree.ravel(), seen.astype(float)])

    answers, run = oracle_answers(ask, (7 + 3 * TOTAL + width,), ANSWERING, DATA, batch_size=batch_size)
    for i, answer in enumerate(answers.astype(float)):
        (value, again, own, own_again, outputs, *apart), rest = answer[:7], answer[7:]
        share, mine, seen = rest[:TOTAL], rest[TOTAL : 3 * TOTAL].reshape(TOTAL, 2), rest[3 * TOTAL :].astype(int)
        if batch_size:
            np.testing.assert_allclose(np.bincount(seen, minlength=TOTAL) / batch_size, share, atol=1e-5)
        else:
            np.testing.assert_allclose(share, OWN[i] / SIZES[i], atol=1e-5)
        assert OWN[i][seen].all()
        np.testing.assert_allclose(value, share @ (0.5 * np.sum((ROWS - 1.0) ** 2, axis=1)), rtol=1e-4)
        np.testing.assert_allclose(own, share @ (np.abs(ROWS).sum(axis=1) * (np.arange(TOTAL) % 3)), rtol=1e-4)
        np.testing.assert_allclose(mine, share[:, None] * np.sign(ROWS) * (np.arange(TOTAL) % 3)[:, None], atol=1e-4)
        assert (again, own_again, outputs, *apart) == pytest.approx((value, own, 0, 0, 0), rel=1e-6)
    # Four gradients, and three forward passes, which count as one.
    assert run.history["gradients"].tolist() == [0, 5 * N]


@pytest.mark.parametrize("batch_size", [4, 400, None])
def test_the_full_loss_is_over_all_own_examples(batch_size):
    answers, run = oracle_answers(lambda x, oracle: oracle.full_loss(x), (), ANSWERING, DATA, batch_size=batch_size)
    each = 0.5 * np.sum((ROWS - 1.0) ** 2, axis=1)
    np.testing.assert_allclose(answers, OWN @ each / SIZES, rtol=1e-4)
    assert run.history["gradients"].tolist() == [0, np.ceil(passes(batch_size) / 3).sum()]


def test_forward_passes_in_local_steps_and_branches_are_counted():
    def ask(x, oracle):
        y = fedax.local_steps(lambda y, k: y * (1 + 0 * oracle.loss(y, k)), x, oracle)
        taken = oracle.cond(oracle.round % 2 == 0, lambda z: z * oracle.full_loss(z), lambda z: z, y)
        return taken.tree[0, 0]

    options = {"rounds": 2, "evaluate_every": 1, "work": UNEQUAL, "batch_size": 4}
    _, run = oracle_answers(ask, (), ANSWERING, DATA, **options)
    counts = [np.ceil((TAUS + passes(4)) / 3).sum(), np.ceil(TAUS / 3).sum()]
    assert np.diff(run.history["gradients"]).tolist() == counts


def test_what_the_oracle_cannot_give_is_an_error_that_says_what_there_is():
    with pytest.raises(fedax.ConfigError, match=r"task\.outputs = None: .*outputs=fn"):
        oracle_answers(lambda x, oracle: oracle.outputs(x), (1, 1), TASK, DATA)
    with pytest.raises(fedax.ConfigError, match=r"loss returned .*one number an example"):
        oracle_answers(lambda x, o: o.loss(x, 0, lambda out, batch: out), (), ANSWERING, DATA, batch_size=4)
    with pytest.raises(fedax.ConfigError, match=r"no 'gradient'; did you mean 'grad'.*full_grad, full_loss, grad,"):
        oracle_answers(lambda x, oracle: oracle.gradient(x), (), TASK, DATA)
