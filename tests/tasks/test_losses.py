"""The losses against optax's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from optax import softmax_cross_entropy_with_integer_labels

from fedax.tasks.losses import cross_entropy

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("shape", [(7, 10), (3, 4, 5), (2, 1)])
def test_cross_entropy_and_its_derivatives(shape):
    logits, direction = (np.float32(scale * RNG.normal(size=shape)) for scale in (5, 1))
    y = RNG.integers(0, shape[-1], shape[:-1])

    @jax.jit
    def both(logits, direction, y):
        def derivatives(loss):
            slope = jax.grad(lambda logits: (loss(logits, y) ** 2).sum())
            return loss(logits, y), *jax.jvp(slope, (logits,), (direction,))

        return derivatives(cross_entropy), derivatives(softmax_cross_entropy_with_integer_labels)

    for ours, theirs in zip(*both(logits, direction, y), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-5)


def test_cross_entropy_of_scores_far_apart():
    """No overflow: the loss is right also where exp of a score is infinite."""
    logits = jnp.array([[1e4, 0.0], [-1e4, -2e4], [3e38, -3e38]])
    assert cross_entropy(logits, jnp.array([1, 0, 0])).tolist() == [1e4, 0, 0]
    gradient = jax.jit(jax.grad(lambda logits: cross_entropy(logits, jnp.array([1, 0, 0])).sum()))(logits)
    assert gradient.tolist() == [[1, -1], [0, 0], [0, 0]]


def test_cross_entropy_of_clients_side_by_side():
    logits, y = np.float32(RNG.normal(size=(4, 6, 3))), RNG.integers(0, 3, (4, 6))
    each = jax.jit(jax.vmap(jax.grad(lambda logits, y: cross_entropy(logits, y).mean())))(logits, y)
    odds = np.exp(logits)
    expected = (odds / odds.sum(-1, keepdims=True) - np.eye(3)[y]) / 6
    np.testing.assert_allclose(each, expected, rtol=1e-5, atol=1e-6)
