"""The layers against XLA's own operations and plain NumPy."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

from fedax.errors import ConfigError
from fedax.tasks.layers import (
    _FEW,
    _tiles_are_faster,
    conv2d,
    conv_and_pool,
    dense,
    dropout,
    group_norm,
    lstm,
    max_pool,
)

from .. import mostly_long

RNG = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape).astype(np.float32))


def reference(x, w, stride=1, padding="SAME"):
    return lax.conv_general_dilated(x, w, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def close(a, b, tolerance=1e-5):
    """Equal up to rounding, relative to the largest entry of each array."""
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert left.shape == right.shape
        np.testing.assert_allclose(left, right, rtol=0, atol=tolerance * float(np.abs(right).max()))


def pulled(layers, g, *inputs):
    """Of each layer the value and the gradients, with g behind it; all from one program."""

    @jax.jit
    def run(g, *inputs):
        results = []
        for layer in layers:
            out, pull = jax.vjp(layer, *inputs)
            results.append((out, pull(g)))
        return results

    return run(g, *inputs)


def shape_of(function, *inputs):
    return jax.eval_shape(function, *inputs).shape


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (3, 2), (5, 5)])
def test_convolution_and_its_gradients_are_those_of_xla(kernel):
    x, w = normal(2, 8, 7, 3), normal(*kernel, 3, 4)  # an even and an odd side: with stride 2 some rows stay unread
    pairs, g = [], []
    for stride, padding in itertools.product([1, 2], ["SAME", "VALID", ((1, 2), (0, 1))]):
        pairs.append([functools.partial(conv, stride=stride, padding=padding) for conv in (conv2d, reference)])
        g.append(normal(*shape_of(pairs[-1][1], x, w)))
    together = jax.jit(lambda g, x, w: [pulled(both, each, x, w) for both, each in zip(pairs, g, strict=True)])
    for one, other in together(g, x, w):
        close(one, other)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [(3, 3), (5, 5), (7, 7)])
def test_convolution_and_its_gradients_as_on_a_gpu(kernel, stride, monkeypatch):
    monkeypatch.setattr(lax, "platform_dependent", lambda *xs, cuda, **others: cuda(*xs))
    x, w = normal(2, 8, 7, 3), normal(*kernel, 3, 4)
    both = [functools.partial(conv, stride=stride) for conv in (conv2d, reference)]
    g = normal(*shape_of(both[1], x, w))
    close(*pulled(both, g, x, w))


@pytest.mark.parametrize(("side", "native"), [(3, False), (5, False), (7, True)])
def test_clients_side_by_side_on_a_gpu_have_products_and_not_grouped_convolutions(side, native):
    x, w = jax.ShapeDtypeStruct((4, 2, 8, 8, 3), jnp.float32), jax.ShapeDtypeStruct((4, side, side, 3, 4), jnp.float32)
    text = jax.jit(jax.vmap(conv2d)).trace(x, w).lower(lowering_platforms=("cuda",)).as_text()
    assert ("convolution" in text) is native and ("dot_general" in text) is not native


BY_TILES = [(6, 8, 8, 32, 40), (3, 9, 11, 64, 32), (4, 36, 33, 32, 32), (6, 14, 14, 32, 32)]
BY_TILES = [(shape, padding) for shape in BY_TILES for padding in ("SAME", "VALID")]


@pytest.mark.parametrize("case", mostly_long(BY_TILES, BY_TILES[0], BY_TILES[3], BY_TILES[4]), ids=str)
def test_convolution_by_tiles_and_its_gradients(case):
    # Even and odd sides; blocks of all examples, of one and of some.
    (examples, h, w, i, o), padding = case
    x, weights = normal(examples, h, w, i), normal(3, 3, i, o)
    assert _tiles_are_faster(x, weights)
    both = [functools.partial(conv, padding=padding) for conv in (conv2d, reference)]
    g = normal(*shape_of(both[1], x, weights))
    close(*pulled(both, g, x, weights))


@pytest.mark.parametrize(
    ("x", "weights"),
    [((1, 4, 4, 64), (3, 3, 64, 64)), ((9, 8, 8, 16), (3, 3, 16, 64)), ((9, 8, 8, 64), (3, 2, 64, 64))],
)
def test_tiles_are_for_3x3_kernels_between_many_channels_and_for_more_tiles_than_channels(x, weights):
    assert not _tiles_are_faster(jnp.zeros(x), jnp.zeros(weights))


@pytest.mark.parametrize(
    ("x", "weights"),
    [((3, 8, 8, 2), (3, 3, 2, 5)), ((2, 7, 9, 3), (3, 3, 3, 32)), ((2, 10, 8, 32), (3, 3, 32, 32))],
)
def test_convolution_and_pooling_are_what_they_are_one_after_the_other(x, weights):
    offset, x, weights = normal(weights[-1]), normal(*x), normal(*weights)
    g = normal(len(x), x.shape[1] // 2, x.shape[2] // 2, len(offset))

    def one_after_the_other(*inputs):
        x, weights, offset = inputs
        return max_pool(jax.nn.relu(reference(x, weights) + offset[None, None, None]))

    close(*pulled([conv_and_pool, one_after_the_other], g, x, weights, offset))


def net(conv, weights, x):
    for w in weights:
        x = jnp.tanh(conv(x, w))
    return (x**2).sum()


@pytest.mark.parametrize(("size", "filters"), [(3, 2), (5, 2), (3, 32)])  # the last: by tiles in the second layer
def test_local_steps_of_clients_with_their_own_weights(size, filters):
    clients, steps = 3, 4
    weights = [0.6 / size / i**0.5 * normal(clients, size, size, i, filters) for i in (1, filters)]
    x = normal(steps, clients, 4, 6, 6, 1)

    @jax.jit
    def vectorised(weights, x):
        def step(weights, x):
            gradient = jax.vmap(jax.grad(functools.partial(net, conv2d)))(weights, x)
            return jax.tree.map(lambda w, g: w - 0.01 * g, weights, gradient), None

        return lax.scan(step, weights, x)[0]

    gradient = jax.jit(jax.grad(functools.partial(net, reference)))
    examples, expected = np.asarray(x), []
    for i in range(clients):
        own = [np.asarray(w)[i] for w in weights]
        for k in range(steps):
            own = [
                w - np.float32(0.01) * np.asarray(g) for w, g in zip(own, gradient(own, examples[k, i]), strict=True)
            ]
        expected.append(own)
    close(vectorised(weights, x), [np.stack(leaves) for leaves in zip(*expected, strict=True)])


@pytest.mark.parametrize(("size", "filters"), [(3, 2), (5, 2), (3, 32)])
def test_hessian_vector_products_by_either_mode(size, filters):
    weights, x = [0.6 / size / i**0.5 * normal(size, size, i, filters) for i in (1, filters)], normal(4, 6, 6, 1)
    direction = jax.tree.map(lambda w: normal(*w.shape), weights)

    def forward_over_reverse(conv, weights, x, direction):
        return jax.jvp(jax.grad(functools.partial(net, conv, x=x)), (weights,), (direction,))[1]

    def reverse_over_reverse(conv, weights, x, direction):
        def slope(weights):
            gradient = jax.grad(functools.partial(net, conv, x=x))(weights)
            return sum(jax.tree.leaves(jax.tree.map(jnp.vdot, gradient, direction)))

        return jax.grad(slope)(weights)

    @jax.jit
    def products(*at):
        return (
            forward_over_reverse(reference, *at),
            forward_over_reverse(conv2d, *at),
            reverse_over_reverse(conv2d, *at),
        )

    expected, forward, reverse = products(weights, x, direction)
    close(forward, expected)
    close(reverse, expected)


def test_convolution_takes_the_wider_dtype_and_only_known_paddings():
    out = conv2d(normal(1, 4, 4, 1).astype(jnp.bfloat16), normal(3, 3, 1, 1))
    assert out.dtype == jnp.float32
    with pytest.raises(ConfigError, match=r"padding = 'same': .*'VALID', or \(\(top"):
        conv2d(normal(1, 4, 4, 1), normal(3, 3, 1, 1), padding="same")


@pytest.mark.parametrize("size", [2, 3])
def test_max_pool_is_the_window_maximum(size):
    x = normal(2, 7, 8, 3)
    window = (1, size, size, 1)

    def windows(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")

    close(*pulled([functools.partial(max_pool, size=size), windows], jax.jit(windows)(x), x))


def test_group_norm_normalises_each_group_of_each_example():
    x, scale, offset = 3 + 2 * normal(4, 3, 5, 6), normal(6), normal(6)
    parts = np.asarray(x).reshape(4, 15, 3, 2)
    parts = (parts - parts.mean((1, 3), keepdims=True)) / np.sqrt(parts.var((1, 3), keepdims=True) + 1e-5)
    norm = jax.jit(group_norm, static_argnames=["groups", "eps"])
    close(norm(x, scale, offset, groups=3), parts.reshape(x.shape) * np.asarray(scale) + np.asarray(offset))
    constant = np.broadcast_to(np.float32([0, 1] * 3), x.shape)  # in each group
    constant = norm(constant, scale, offset, groups=3, eps=0.75)
    close(constant, (np.array([-0.5, 0.5] * 3) * np.asarray(scale) + np.asarray(offset)) * np.ones(x.shape))


def test_lstm_step_by_step():
    x = normal(2, 4, 3)
    params = {"input": normal(3, 20), "state": normal(5, 20), "offset": normal(20)}
    w, v, offset = (np.asarray(params[name]) for name in ("input", "state", "offset"))

    def sigmoid(z):
        return 1 / (1 + np.exp(-z))

    c = h = np.zeros((2, 5))
    expected = []
    for t in range(4):
        i, f, g, o = np.split(np.asarray(x)[:, t] @ w + h @ v + offset, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        expected.append(h)
    close(jax.jit(lstm)(x, params), np.stack(expected, axis=1))


@pytest.mark.parametrize("layer", ["dense", "lstm", "3x3", "5x5", "tiles"])
def test_gradients_inside_shard_map(layer):
    if layer == "lstm":
        params = {"input": normal(3, 8), "state": normal(2, 8), "offset": normal(8)}
        x, run = normal(2, 4, 3), lambda params, x: lstm(x, params)
    elif layer == "dense":
        params, x, run = normal(5, 3), normal(4, 5), lambda w, x: dense(x, w, jnp.zeros(3))
    elif layer == "tiles":
        params, x, run = normal(3, 3, 32, 32), normal(4, 6, 6, 32), lambda w, x: conv2d(x, w)
    else:
        params, x, run = normal(int(layer[0]), int(layer[0]), 1, 2), normal(2, 6, 6, 1), lambda w, x: conv2d(x, w)

    def gradient(params, x):
        return jax.grad(lambda params: (run(params, x) ** 2).sum())(params)

    def one_device(params, x):
        params = jax.tree.map(lambda leaf: lax.pcast(leaf, "clients", to="varying"), params)
        return lax.psum(gradient(params, x), "clients")

    mesh = jax.make_mesh((1,), ("clients",), axis_types=(jax.sharding.AxisType.Auto,))
    sharded = jax.shard_map(
        one_device, mesh=mesh, in_specs=(PartitionSpec(), PartitionSpec("clients")), out_specs=PartitionSpec()
    )
    close(jax.jit(sharded)(params, x), jax.jit(gradient)(params, x))


DENSE = itertools.product([(6,), (2, 3)], [1, 10, _FEW, _FEW + 1])


@pytest.mark.parametrize("shape", mostly_long(DENSE, ((6,), 1), ((6,), _FEW + 1), ((2, 3), _FEW)), ids=str)
def test_dense_and_its_derivatives_in_every_mode(shape):
    leading, outputs = shape
    x, weights, offset = 0.2 * normal(*leading, 12), normal(12, outputs), normal(outputs)  # tanh not saturated
    at, direction, g = (x, weights, offset), (normal(*x.shape), normal(12, outputs), normal(outputs)), normal(outputs)

    def plain(x, weights, offset):
        return jnp.einsum("...i,io->...o", x, weights) + offset.reshape((1,) * len(leading) + (-1,))

    def derivatives(layer, at, direction, g):
        x, weights, offset = at

        def loss(*at):
            return jnp.einsum("...o,o->...", jnp.tanh(layer(*at)), g).mean()

        slope = jax.grad(loss, (0, 1, 2))
        curved = jax.grad(lambda *at: sum(map(jnp.vdot, slope(*at), direction)), (0, 1, 2))
        only_weights = jax.jvp(lambda w: layer(x, w, offset), (weights,), (direction[1],))
        return jax.jvp(layer, at, direction), only_weights, slope(*at), jax.jvp(slope, at, direction)[1], curved(*at)

    close(*jax.jit(lambda *given: [derivatives(layer, *given) for layer in (dense, plain)])(at, direction, g))

    @jax.jit
    def of_clients(offset, *several):
        return [jax.vmap(jax.grad(lambda w, x, layer=layer: (layer(x, w, offset) ** 2).sum()))(*several)
                for layer in (dense, plain)]  # fmt: skip

    close(*of_clients(offset, normal(5, 12, outputs), normal(5, *leading, 12)))  # with weights of their own


def test_dropout_keeps_the_mean_and_is_off_without_a_key():
    ones = jnp.ones(20_000)
    dropped = dropout(ones, 0.2, jax.random.key(1))
    assert float((dropped == 0).mean()) == pytest.approx(0.2, abs=0.01)
    assert float(dropped.mean()) == pytest.approx(1.0, abs=0.01)
    assert dropout(ones, 0.2, None) is ones
