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
from fedax.errors import CodeError, ConfigError

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


# ---- what is no parameter

X, Y = RNG.normal(size=(12, FEATURES)).astype(np.float32), RNG.integers(0, CLASSES, 12)
DATA = fedax.FederatedData({"x": X, "y": Y}, [6, 6])


class LinenNorm(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(CLASSES)(linen.BatchNorm(use_running_average=False)(linen.Dense(HIDDEN)(x)))


class NNXNet(nnx.Module):
    def __init__(self, middle):
        self.first = nnx.Linear(FEATURES, HIDDEN, rngs=nnx.Rngs(0))
        self.middle = middle
        self.last = nnx.Linear(HIDDEN, CLASSES, rngs=nnx.Rngs(1))

    def __call__(self, x):
        return self.last(self.middle(self.first(x)))


class EquinoxNorm(eqx.Module):
    linear: eqx.nn.Linear
    norm: eqx.nn.BatchNorm

    def __init__(self, key):
        self.linear, self.norm = eqx.nn.Linear(FEATURES, CLASSES, key=key), eqx.nn.BatchNorm(CLASSES, "b", mode="batch")

    def __call__(self, x, state):
        return self.norm(self.linear(x), state)


def linen_norm():
    def apply(params, x, key):
        return LinenNorm().apply(params, x, mutable=["batch_stats"])[0]

    return tasks.classification(lambda key: LinenNorm().init(key, jnp.zeros((1, FEATURES))), apply, CLASSES)


def nnx_net(middle):
    graph, params = nnx.split(NNXNet(middle))
    return tasks.classification(
        lambda key: params, lambda p, x, key: nnx.merge(graph, p, copy=True)(x), CLASSES, name="nnx"
    )


def equinox_norm():
    make = eqx.nn.make_with_state(EquinoxNorm)
    (_, static), (_, state) = eqx.partition(make(jax.random.key(0))[0], eqx.is_inexact_array), make(jax.random.key(0))

    def apply(params, x, key):
        over = jax.vmap(eqx.combine(params, static), axis_name="b", in_axes=(0, None), out_axes=(0, None))
        return over(x, state)[0]

    return tasks.classification(lambda key: eqx.filter(make(key)[0], eqx.is_inexact_array), apply, CLASSES)


def plain_constant(inside):
    """A constant among the parameters, inside of JAX's transformations."""
    apply = inside(lambda params, x: x @ params["w"] + jax.lax.stop_gradient(params["constant"])[None])
    params = {"w": jnp.zeros((FEATURES, CLASSES)), "constant": jnp.ones(CLASSES)}
    return tasks.classification(lambda key: params, lambda params, x, key: apply(params, x), CLASSES)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (linen_norm, ["batch_stats.BatchNorm_0.mean", "batch_stats.BatchNorm_0.var"]),
        (lambda: nnx_net(nnx.BatchNorm(HIDDEN, rngs=nnx.Rngs(2))), ["middle.mean.value", "middle.var.value"]),
        (lambda: plain_constant(lambda apply: apply), ["constant"]),
        (lambda: plain_constant(jax.jit), ["constant"]),
        (lambda: plain_constant(lambda apply: jax.jit(jax.checkpoint(apply))), ["constant"]),
    ],
    ids=["linen", "nnx", "plain", "jit", "checkpoint"],
)
def test_parameters_without_a_gradient_are_named(make, names):
    task = make()
    with pytest.warns(UserWarning, match=f"never get a gradient.*: {', '.join(names)}. Keep .*GroupNorm") as caught:
        for method in ("fedavg", "scaffold"):
            fedax.simulate(fedax.create(method, lr=0.1), task, DATA, rounds=1, batch_size=3)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_a_constant_that_is_no_parameter_is_no_warning():
    """Of a part of a model the rest is frozen; a term of all parameters in the loss is a gradient of all."""
    part = tasks.partial(plain_constant(jax.jit), "w")
    fedax.simulate(fedax.create("fedavg", lr=0.1), part, DATA, rounds=1, batch_size=3)
    ridge = tasks.classification(part.given.init, lambda p, x, key: x @ p["w"], CLASSES, l2=0.1)
    fedax.simulate(fedax.create("fedavg", lr=0.1), ridge, DATA, rounds=1, batch_size=3)


def test_what_is_no_parameter_is_refused_with_the_way_out():
    with pytest.raises(ConfigError, match=r"uint32.*nnx\.split\(net, nnx\.Param, \.\.\.\)"):
        fedax.simulate(
            fedax.create("fedavg"), nnx_net(nnx.Dropout(0.5, rngs=nnx.Rngs(2))), DATA, rounds=1, batch_size=3
        )
    with pytest.raises(CodeError, match=r"Equinox that has a state, at \.norm\..*GroupNorm.*test_other_libraries"):
        fedax.simulate(fedax.create("fedavg"), equinox_norm(), DATA, rounds=1, batch_size=3)


def test_dropout_of_nnx_by_the_key_of_the_run():
    graph, params, rest = nnx.split(NNXNet(nnx.Dropout(0.5)), nnx.Param, ...)

    def apply(params, x, key):
        net = nnx.merge(graph, params, rest, copy=True)
        rngs = None if key is None else nnx.Rngs(dropout=key)
        return net.last(net.middle(net.first(x), deterministic=key is None, rngs=rngs))

    task = tasks.classification(lambda key: params, apply, CLASSES).trained
    batch, own = {"x": X, "y": Y}, task.init(None)
    losses = [task.loss(own, batch, key) for key in (None, None, jax.random.key(0), jax.random.key(1))]
    np.testing.assert_array_equal(losses[0], losses[1])
    assert not np.array_equal(losses[2], losses[3])
