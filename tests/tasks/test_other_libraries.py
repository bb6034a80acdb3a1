"""Models of Equinox and Flax through ``classification``: with the same weights, the same run as a plain function."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import fedax
from fedax import tasks

RNG = np.random.default_rng(0)
FEATURES, HIDDEN, CLASSES = 6, 5, 3


def equinox_task(layers):
    first, last = layers
    model = eqx.nn.MLP(FEATURES, CLASSES, HIDDEN, depth=1, key=jax.random.key(1))
    model = eqx.tree_at(
        lambda m: [leaf for layer in m.layers for leaf in (layer.weight, layer.bias)],
        model,
        [first["w"].T, first["b"], last["w"].T, last["b"]],
    )
    params, static = eqx.partition(model, eqx.is_inexact_array)
    return tasks.classification(lambda key: params, lambda p, x, key: jax.vmap(eqx.combine(p, static))(x), CLASSES)


def linen_task(layers):
    class Model(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = linen.relu(linen.Dense(HIDDEN)(x))
            return linen.Dense(CLASSES)(x)

    model = Model()
    params = {"params": {f"Dense_{i}": {"kernel": v["w"], "bias": v["b"]} for i, v in enumerate(layers)}}
    fresh = model.init(jax.random.key(0), jnp.zeros((1, FEATURES)))
    assert jax.tree.map(jnp.shape, fresh) == jax.tree.map(jnp.shape, params)
    return tasks.classification(lambda key: params, lambda p, x, key: model.apply(p, x), CLASSES)


def nnx_task(layers):
    model = nnx.Sequential(
        nnx.Linear(FEATURES, HIDDEN, rngs=nnx.Rngs(0)), nnx.relu, nnx.Linear(HIDDEN, CLASSES, rngs=nnx.Rngs(1))
    )
    for layer, values in zip((model.layers[0], model.layers[2]), layers, strict=True):
        layer.kernel[...], layer.bias[...] = values["w"], values["b"]
    graph, params = nnx.split(model)
    return tasks.classification(
        lambda key: nnx.to_pure_dict(params), lambda p, x, key: nnx.merge(graph, restored(params, p))(x), CLASSES
    )


def restored(state, values):
    copy = jax.tree.map(lambda leaf: leaf, state)
    nnx.replace_by_pure_dict(copy, values)
    return copy


def plain_task(layers):
    def apply(params, x, key):
        return jax.nn.relu(x @ params[0]["w"] + params[0]["b"][None]) @ params[1]["w"] + params[1]["b"][None]

    return tasks.classification(lambda key: layers, apply, CLASSES)


@pytest.fixture(scope="module")
def train_loss():
    """From a model, written with some library, to the training losses of a short run."""
    layers = tasks.mlp(FEATURES, CLASSES, hidden=(HIDDEN,)).init(jax.random.key(0))
    data = fedax.FederatedData.from_clients(
        [{"x": RNG.normal(size=(n, FEATURES)).astype(np.float32), "y": RNG.integers(0, CLASSES, n)} for n in (4, 7)]
    )

    @functools.cache
    def run(make):
        return fedax.simulate(fedax.create("fedavg", lr=0.3), make(layers), data, rounds=6).history["train_loss"]

    return run


@pytest.mark.parametrize("make", [equinox_task, linen_task, nnx_task])
def test_same_weights_same_run(make, train_loss):
    np.testing.assert_allclose(train_loss(make), train_loss(plain_task), rtol=1e-4)
    assert train_loss(make)[-1] < 0.9 * train_loss(make)[0]
