"""Vector: the arithmetic of a vector space that keeps the dtypes of its leaves."""

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedax import Vector, zeros_like

A = {"w": np.array([1.0, -2.0, 4.0], np.float32), "b": np.array(3.0, np.float32)}
B = {"w": np.array([0.5, 8.0, -1.0], np.float32), "b": np.array(-2.0, np.float32)}


def vector(tree):
    return Vector(jax.tree.map(jnp.asarray, tree))


def same(got, want):
    assert jax.tree.structure(got.tree) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got.tree), jax.tree.leaves(want), strict=True):
        assert a.dtype == np.float32
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("op", [operator.add, operator.sub, operator.mul, operator.truediv])
def test_two_vectors_and_scalars_from_both_sides(op):
    x, y = vector(A), vector(B)
    same(op(x, y), jax.tree.map(op, A, B))
    for scalar in (2, 0.5, np.float32(0.5), np.float64(0.5), jnp.asarray(0.5), np.asarray(0.5)):
        same(op(x, scalar), jax.tree.map(lambda leaf, s=scalar: op(leaf, np.float32(s)), A))
        same(op(scalar, x), jax.tree.map(lambda leaf, s=scalar: op(np.float32(s), leaf), A))


def test_negation_power_map_dot_size_and_zero():
    x, y = vector(A), vector(B)
    same(-x, jax.tree.map(np.negative, A))
    same(x**2, jax.tree.map(np.square, A))
    same(x.map(jnp.maximum, y), jax.tree.map(np.maximum, A, B))
    same(zeros_like(x), jax.tree.map(np.zeros_like, A))
    assert float(x.dot(y)) == 0.5 - 16 - 4 - 6 and x.size == 4


@pytest.mark.parametrize(
    "op", [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow], ids=lambda op: op.__name__
)
def test_a_float64_scalar_leaves_float32_and_float64_leaves_as_they_are(op):
    with jax.enable_x64(True):
        x = Vector({"single": jnp.ones(2, jnp.float32), "double": jnp.ones((), jnp.float64)})
        for scalar in (np.float64(0.5), jnp.asarray(0.5), 0.5, 2):
            tree = op(x, scalar).tree
            assert (tree["single"].dtype, tree["double"].dtype) == (np.float32, np.float64)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x == x,
        lambda x: x != x,
        lambda x: x < x,
        lambda x: bool(x),
        lambda x: not x,
        lambda x: hash(x),
        lambda x: x * True,
        lambda x: False + x,
        lambda x: x + jnp.ones(3),
        lambda x: jnp.ones(3) + x,
        lambda x: x + np.ones(3),
        lambda x: np.ones(3) + x,
        lambda x: x + None,
    ],
)
def test_comparisons_truth_bool_and_bare_arrays_are_refused(wrong):
    with pytest.raises(TypeError):
        wrong(vector(A))


def test_vectors_of_another_structure_are_refused():
    with pytest.raises(ValueError, match=r"[Mm]ismatch|structure|match"):
        vector(A) + Vector({"w": jnp.ones(3)})


def test_a_vector_passes_through_jit_grad_and_vmap():
    x = vector(A)
    gradient = jax.jit(jax.grad(lambda v: v.dot(v)))(x)
    same(gradient, jax.tree.map(lambda leaf: 2 * leaf, A))
    many = jax.vmap(lambda s: s * x)(jnp.arange(3.0))
    assert many.tree["w"].shape == (3, 3) and many.tree["b"].tolist() == [0.0, 3.0, 6.0]
