"""The models of the papers' experiments, as tasks.

Their parameters are dicts and lists of arrays in JAX's default float dtype. Weights start as ``initial`` says, offsets
at zero.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from fedax.errors import ConfigError
from fedax.metrics import Perplexity
from fedax.numbers import check_count, check_number, check_room
from fedax.tasks import checks
from fedax.tasks.classification import OF_NUMBERS, classification, scaling
from fedax.tasks.factory import ClassWeights, Factory, PerChannel, Real, image
from fedax.tasks.images import augmentation
from fedax.tasks.layers import conv2d, conv_and_pool, dense, dropout, group_norm, lstm
from fedax.tasks.losses import correct, cross_entropy, ridge
from fedax.tasks.task import Task

# ---- initial parameters: a model declares the distribution of each array, and one draw fills them all. One draw,
# because XLA compiles a generator for each: a network of twenty layers would take ten seconds to start.


@dataclasses.dataclass(frozen=True)
class UniformInit:
    """An array of this shape, to be drawn uniformly from ±bound."""

    shape: tuple[int, ...]
    bound: float


def he(*shape: int) -> UniformInit:
    """Weights [..., i, o] of a layer before a ReLU: variance 2/fan_in (He et al. 2015)."""
    return UniformInit(shape, math.sqrt(6 / math.prod(shape[:-1])))


def lecun(*shape: int) -> UniformInit:
    """Weights [..., i, o] before a ReLU and 2×2 max-pooling: variance 1/fan_in (LeCun et al. 1998).

    A ReLU halves the second moment, and the largest of four makes about twice as much of it again. So the layer passes
    on what comes in, whereas :func:`he`, which makes up for the ReLU alone, would double it.
    """
    return UniformInit(shape, math.sqrt(3 / math.prod(shape[:-1])))


def glorot(i: int, o: int) -> UniformInit:
    """Weights of a recurrent layer: variance 2/(i + o) (Glorot and Bengio 2010)."""
    return UniformInit((i, o), math.sqrt(6 / (i + o)))


def readout(i: int, o: int) -> UniformInit:
    """Weights of a last layer: ±1/√i, PyTorch's rule; small, so that a fresh model is unsure."""
    return UniformInit((i, o), 1 / math.sqrt(i))


def draw(key: Any, plan: PyTree[Any]) -> PyTree[Any]:
    """``plan`` with each :class:`UniformInit` drawn, in the default float dtype; its other leaves stay.

    Args:
        key: a JAX random key.
        plan: pytree of UniformInit and arrays.

    Example:
        >>> params = draw(jax.random.key(0), {"w": he(24, 2), "b": 0.0})
        >>> params["w"].shape, bool((abs(params["w"]) <= 0.5).all()), params["b"]
        ((24, 2), True, 0.0)
    """
    leaves, tree = jax.tree.flatten(plan)
    drawn = [leaf for leaf in leaves if isinstance(leaf, UniformInit)]
    ends = list(itertools.accumulate(math.prod(leaf.shape) for leaf in drawn))
    check_room(8 * ends[-1], parameters=ends[-1])
    values = jax.random.uniform(key, (ends[-1],), minval=-1.0)
    pieces = iter(jnp.split(values, ends[:-1]))
    filled = [
        leaf.bound * next(pieces).reshape(leaf.shape) if isinstance(leaf, UniformInit) else leaf for leaf in leaves
    ]
    return jax.tree.unflatten(tree, filled)


def _affine(weights: UniformInit) -> dict[str, Any]:
    """A layer's weights, and its offsets, which start at zero."""
    return {"w": weights, "b": jnp.zeros(weights.shape[-1])}


def _perceptron(sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Dense layers between these sizes, the last one linear."""
    *hidden, last = itertools.pairwise(sizes)
    return [_affine(he(*shape)) for shape in hidden] + [_affine(readout(*last))]


@Factory
def mlp(
    features: int,
    classes: int,
    hidden: Sequence[int] = (200, 200),
    l2: Real = 0.0,
    mean: PerChannel = None,
    std: PerChannel = None,
    class_weights: ClassWeights = None,
) -> Task:
    """Multilayer perceptron: dense layers with ReLU between them.

    Cross-entropy of the logits, + (l2/2)‖params‖²; the metric is ``accuracy``. The parameters are a list of
    ``{"w": [i, o], "b": [o]}``.

    Args:
        features: numbers in an x, at least 1; images are flattened.
        classes: at least 2.
        hidden: units of each hidden layer. The default is McMahan's "2NN"; (200,) is a two-layer network.
        l2: ≥ 0, part of each example's loss (weight decay).
        mean, std: subtracted and divided by; see :func:`fedax.tasks.classification`.
        class_weights: of each class; see there.

    Examples are ``{"x": [n, ...] real, uint8 or bool, "y": [n] whole numbers from 0 to classes − 1}``.

    Raises:
        ConfigError: arguments out of range.
        DataError: by a run, examples that do not fit.

    Source: McMahan et al. 2017, "Communication-efficient learning of deep networks from decentralized data".

    Example:
        >>> import fedax
        >>> task = fedax.tasks.mlp(784, 10, hidden=(50,))
        >>> [layer["w"].shape for layer in task.init(jax.random.key(0))]
        [(784, 50), (50, 10)]
    """
    check_count("features", features)
    _check_hidden(hidden)

    def init(key: Any) -> Any:
        return draw(key, _perceptron((features, *hidden, classes)))

    check = functools.partial(checks.features, count=features)
    return classification(init, _forward, classes, mean, std, l2, check, "mlp", class_weights)


@Factory
def mlp_regression(
    features: int,
    hidden: Sequence[int] = (200, 200),
    l2: Real = 0.0,
    mean: PerChannel = None,
    std: PerChannel = None,
    y_mean: Real = 0.0,
    y_std: Real = 1.0,
) -> Task:
    """Multilayer perceptron that predicts a number.

    ``f(params) = ((m(x) − y)/y_std)² + (l2/2)‖params‖²`` with the model m(x) = y_mean + y_std · net(x). The parameters
    are those of :func:`mlp` with one output.

    Args:
        features: numbers in an x, at least 1; images are flattened.
        hidden: units of each hidden layer; (): a linear model.
        l2: ≥ 0, part of each example's loss (weight decay).
        mean, std: subtracted from x and divided by; see :func:`fedax.tasks.classification`.
        y_mean, y_std: of the targets, about; with targets far from 0 or 1 in size, learning rates that work elsewhere
            work here too.

    Examples are ``{"x": [n, ...] real, uint8 or bool, "y": [n] real numbers}``.

    Raises:
        ConfigError: arguments out of range.
        DataError: by a run, examples that do not fit.

    Example:
        >>> import fedax
        >>> task = fedax.tasks.mlp_regression(8, hidden=(50,), y_mean=20.0, y_std=10.0)
        >>> params = task.init(jax.random.key(0))
        >>> task.outputs(params, {"x": jnp.zeros((2, 8))}).tolist()
        [20.0, 20.0]
    """
    check_count("features", features)
    _check_hidden(hidden)
    check_number("l2", l2, 0, fixed=True)
    check_number("y_mean", y_mean, fixed=True)
    check_number("y_std", y_std, 0, open_low=True, fixed=True)
    scale = scaling(mean, std)

    def init(key: Any) -> Any:
        return draw(key, _perceptron((features, *hidden, 1)))

    def net(params: Any, batch: Any) -> Any:
        return _forward(params, scale(batch["x"]))[:, 0]

    def outputs(params: Any, batch: Any) -> Any:
        return y_mean + y_std * net(params, batch)

    def loss(params: Any, batch: Any, key: Any) -> Any:
        return (net(params, batch) - (batch["y"] - y_mean) / y_std) ** 2 + ridge(params, l2)

    def check(examples: Any) -> None:
        x, y = checks.columns(examples, "x", "y")
        checks.features(x, features)
        checks.scaled(x, mean, std)
        checks.real("y", y)
        checks.shaped("y", y, ())

    return Task(init, loss, OF_NUMBERS, check, "mlp_regression", outputs, "regression")


def _check_hidden(hidden: Any) -> None:
    if not isinstance(hidden, tuple):
        raise ConfigError("hidden", hidden, "give the units of each hidden layer, such as (200, 200)")
    for units in hidden:
        check_count("hidden", units)


def _forward(params: Any, x: Any, key: Any = None) -> Any:
    x = x.reshape(x.shape[0], -1)  # an image is flattened once it is scaled
    for layer in params[:-1]:
        x = jax.nn.relu(dense(x, layer["w"], layer["b"]))
    return dense(x, params[-1]["w"], params[-1]["b"])


@Factory
def cnn(
    shape: Sequence[int],
    classes: int,
    filters: int = 32,
    l2: Real = 0.0,
    mean: PerChannel = None,
    std: PerChannel = None,
    init: Literal["lecun", "he"] = "lecun",
    class_weights: ClassWeights = None,
    crop: int | None = None,
    flip: bool | None = None,
) -> Task:
    """The 4-layer convolutional network of FedDA's experiments.

    Four times: 3×3 convolution with ``filters`` filters, ReLU, 2×2 max-pooling; then a linear layer. Cross-entropy,
    + (l2/2)‖params‖²; the metric is ``accuracy``. The paper says "4-layer convolutional neural network with 32
    filters at each layer" and no more: kernel, pooling and the absence of normalisation are this library's reading.

    Args:
        shape: (height, width, channels), both sides at least 16.
        classes: at least 2.
        filters: 32 for PathMNIST, 64 for CIFAR-10 and FEMNIST in the paper.
        l2: ≥ 0, part of each example's loss (weight decay).
        mean, std: subtracted and divided by; see :func:`fedax.tasks.classification`.
        class_weights: of each class; see there.
        crop, flip: random crops and mirror images in training; see :class:`fedax.tasks.CropAndFlip`.

        init: how the weights of the convolutions start, uniformly. ``"lecun"``, variance 1/fan_in: after ReLU and
            max-pooling each layer's numbers are as large as the ones before, so that a fresh network is unsure; with
            ten classes its loss is 2.30 to 2.42 on MNIST, Fashion-MNIST and CIFAR-10, and log 10 is 2.30. ``"he"``,
            variance 2/fan_in, is for ReLU without pooling; here it doubles them in each layer, and the loss starts at
            2.3 to 4.1. Studies and recipes that were published with it name it. Offsets start at 0, and the last layer
            at ±1/√fan_in.

    Examples are ``{"x": [n, *shape] real, uint8 or bool, "y": [n] whole numbers from 0 to classes − 1}``.

    Raises:
        ConfigError: arguments out of range.
        DataError: by a run, examples that do not fit.

    Source: "FedDA: faster framework of local adaptive gradient methods via restarted dual averaging", section 8.1;
    LeCun et al. 1998, "Efficient BackProp", and He et al. 2015 for the weights at the start.

    Example:
        >>> import fedax
        >>> task = fedax.tasks.cnn((28, 28, 3), 9)
        >>> sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(task.init, jax.random.key(0))))
        28937
    """
    height, width, channels = size = image(shape, smallest=16)
    check_count("filters", filters)
    if init not in (rules := {"lecun": lecun, "he": he}):
        raise ConfigError("init", init, 'give "lecun", or "he" for the weights of earlier studies')

    def start(key: Any) -> Any:
        convs = [_affine(rules[init](3, 3, i, filters)) for i in (channels, filters, filters, filters)]
        pixels = (height // 16) * (width // 16)
        return draw(key, {"convs": convs, "head": _affine(readout(pixels * filters, classes))})

    def apply(params: Any, x: Any, key: Any) -> Any:
        for layer in params["convs"]:
            x = conv_and_pool(x, layer["w"], layer["b"])
        return dense(x.reshape(x.shape[0], -1), params["head"]["w"], params["head"]["b"])

    check = functools.partial(checks.images, shape=size)
    return classification(start, apply, classes, mean, std, l2, check, "cnn", class_weights, augmentation(crop, flip))


# VGG's configuration A: channels of each convolution, cut where a pooling layer stands.
_VGG11 = ((64,), (128,), (256, 256), (512, 512), (512, 512))


@Factory
def vgg11(
    shape: Sequence[int],
    classes: int,
    drop: Real = 0.5,
    l2: Real = 0.0,
    mean: PerChannel = None,
    std: PerChannel = None,
    class_weights: ClassWeights = None,
    crop: int | None = None,
    flip: bool | None = None,
) -> Task:
    """VGG-11 for small images, without normalisation: the network of FedNova's CIFAR-10 experiments.

    Eight 3×3 convolutions with ReLU, a 2×2 max-pooling after the 1st, 2nd, 4th, 6th and 8th, then three dense layers
    (512, 512, classes) with dropout before the first two. Cross-entropy, + (l2/2)‖params‖²; metric ``accuracy``.

    Args:
        shape: (height, width, channels), both sides at least 32.
        classes: at least 2.
        drop: probability of dropout, 0 ≤ drop < 1; off in evaluation.
        l2: ≥ 0, part of each example's loss (weight decay).
        mean, std: subtracted and divided by; see :func:`fedax.tasks.classification`.
        class_weights: of each class; see there.
        crop, flip: random crops and mirror images in training; see :class:`fedax.tasks.CropAndFlip`.

    Examples are ``{"x": [n, *shape] real, uint8 or bool, "y": [n] whole numbers from 0 to classes − 1}``.

    Raises:
        ConfigError: arguments out of range.
        DataError: by a run, examples that do not fit.

    Source: Simonyan and Zisserman 2015, configuration A; the small head is that of FedNova's authors.

    Example:
        >>> import fedax
        >>> task = fedax.tasks.vgg11((32, 32, 3), 10)
        >>> sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(task.init, jax.random.key(0))))
        9750922
    """
    height, width, channels = size = image(shape, smallest=32)
    check_number("drop", drop, 0, 1, open_high=True, fixed=True)

    def init(key: Any) -> Any:
        convs = [_affine(he(3, 3, i, o)) for i, o in itertools.pairwise((channels, *itertools.chain(*_VGG11)))]
        pixels = (height // 32) * (width // 32)
        return draw(key, {"convs": convs, "head": _perceptron((pixels * 512, 512, 512, classes))})

    def apply(params: Any, x: Any, key: Any) -> Any:
        layers = iter(params["convs"])
        for block in _VGG11:
            for _ in block[:-1]:
                layer = next(layers)
                x = jax.nn.relu(conv2d(x, layer["w"]) + layer["b"][None, None, None])
            last = next(layers)
            x = conv_and_pool(x, last["w"], last["b"])
        x = x.reshape(x.shape[0], -1)
        keys = (None, None) if key is None else jax.random.split(key)
        for layer, one in zip(params["head"][:-1], keys, strict=True):
            x = jax.nn.relu(dense(dropout(x, drop, one), layer["w"], layer["b"]))
        return dense(x, params["head"][-1]["w"], params["head"][-1]["b"])

    check = functools.partial(checks.images, shape=size)
    return classification(init, apply, classes, mean, std, l2, check, "vgg11", class_weights, augmentation(crop, flip))


# ResNet-18's eight blocks: channels and stride.
_RESNET18 = ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1))


@Factory
def resnet18(
    shape: Sequence[int],
    classes: int,
    groups: int = 32,
    l2: Real = 0.0,
    mean: PerChannel = None,
    std: PerChannel = None,
    class_weights: ClassWeights = None,
    crop: int | None = None,
    flip: bool | None = None,
) -> Task:
    """ResNet-18 for small images, with group normalisation.

    A 3×3 convolution (in place of 7×7 and pooling, as is usual for CIFAR), eight residual blocks of two 3×3
    convolutions with 64, 128, 256 and 512 channels, the mean over the image, a linear layer. Each block's last scale
    starts at 0, so that a fresh block passes its input on (Goyal et al. 2017); without that the first steps overshoot.
    Cross-entropy, + (l2/2)‖params‖²; the metric is ``accuracy``.

    Why not BatchNorm: it makes an example's loss depend on the rest of its minibatch, so that F_i is no longer a mean
    over examples and no gradient is an unbiased one; its running statistics differ from client to client and are not
    parameters, so that averaging them is outside every method's theory; and with few labels a client it loses
    accuracy (Hsieh et al. 2020, "The non-IID data quagmire of decentralized machine learning", who use GroupNorm).

    Args:
        shape: (height, width, channels), both sides at least 8.
        classes: at least 2.
        groups: of channels, for the normalisation; a divisor of 64.
        l2: ≥ 0, part of each example's loss (weight decay).
        mean, std: subtracted and divided by; see :func:`fedax.tasks.classification`.
        class_weights: of each class; see there.
        crop, flip: random crops and mirror images in training; see :class:`fedax.tasks.CropAndFlip`.

    Examples are ``{"x": [n, *shape] real, uint8 or bool, "y": [n] whole numbers from 0 to classes − 1}``.

    Raises:
        ConfigError: arguments out of range.
        DataError: by a run, examples that do not fit.

    Source: He et al. 2016; Wu and He 2018 for the normalisation.

    Example:
        >>> import fedax
        >>> task = fedax.tasks.resnet18((32, 32, 3), 10)
        >>> sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(task.init, jax.random.key(0))))
        11173962
    """
    size = image(shape, smallest=8)
    check_count("groups", groups)
    if 64 % groups:
        raise ConfigError("groups", groups, "give a divisor of 64: 1, 2, 4, 8, 16, 32 or 64")

    def normed(kernel: int, i: int, o: int, scale: float = 1.0) -> dict[str, Any]:
        return {"w": he(kernel, kernel, i, o), "scale": jnp.full(o, scale), "offset": jnp.zeros(o)}

    def init(key: Any) -> Any:
        blocks, i = [], 64
        for o, stride in _RESNET18:
            shortcut = {"shortcut": normed(1, i, o)} if stride > 1 else {}  # it changes shape with the block
            blocks.append({"first": normed(3, i, o), "second": normed(3, o, o, scale=0.0)} | shortcut)
            i = o
        return draw(key, {"stem": normed(3, size[2], 64), "blocks": blocks, "head": _affine(readout(i, classes))})

    def conv(layer: Any, x: Any, stride: int = 1) -> Any:
        return group_norm(conv2d(x, layer["w"], stride), layer["scale"], layer["offset"], groups)

    def apply(params: Any, x: Any, key: Any) -> Any:
        x = jax.nn.relu(conv(params["stem"], x))
        for block, (_, stride) in zip(params["blocks"], _RESNET18, strict=True):
            y = conv(block["second"], jax.nn.relu(conv(block["first"], x, stride)))
            x = jax.nn.relu(y + (conv(block["shortcut"], x, stride) if stride > 1 else x))
        return dense(x.mean(axis=(1, 2)), params["head"]["w"], params["head"]["b"])

    check = functools.partial(checks.images, shape=size)
    return classification(
        init, apply, classes, mean, std, l2, check, "resnet18", class_weights, augmentation(crop, flip)
    )


@Factory
def char_lstm(vocabulary: int, embedding: int = 8, hidden: int = 256, layers: int = 2) -> Task:
    """Next-character prediction by an LSTM: the network of the Shakespeare experiments.

    An embedding, ``layers`` LSTM layers, a linear layer. An example's loss is the mean over its T characters of
    −log softmax(logits_t)[y_t], its ``accuracy`` the share of them with the highest score; ``perplexity`` is e to the
    power of the mean loss.

    Args:
        vocabulary: number of characters, at least 2.
        embedding: numbers a character is turned into.
        hidden: units of each LSTM layer.
        layers: at least 1.

    Examples are ``{"x": [n, T], "y": [n, T]}``, whole numbers from 0 to vocabulary − 1, y one character ahead of x.
    Forget gates start with an offset of 1, so that a fresh network remembers.

    Raises:
        ConfigError: arguments out of range.
        DataError: by a run, examples that do not fit.

    Source: McMahan et al. 2017, section 3; T = 80 there.

    Example:
        >>> import fedax
        >>> task = fedax.tasks.char_lstm(65, hidden=16, layers=1)
        >>> params = jax.eval_shape(task.init, jax.random.key(0))
        >>> jax.eval_shape(task.loss, params, {"x": jnp.zeros((2, 5), int), "y": jnp.ones((2, 5), int)}, None).shape
        (2,)
    """
    check_count("vocabulary", vocabulary, low=2)
    for field, value in (("embedding", embedding), ("hidden", hidden), ("layers", layers)):
        check_count(field, value)

    def init(key: Any) -> Any:
        def recurrent(i: int) -> dict[str, Any]:
            offset = jnp.zeros(4 * hidden).at[hidden : 2 * hidden].set(1.0)
            return {"input": glorot(i, 4 * hidden), "state": glorot(hidden, 4 * hidden), "offset": offset}

        plan = {
            "embedding": UniformInit((vocabulary, embedding), 1.0),
            "lstm": [recurrent(i) for i in (embedding, *(layers - 1) * (hidden,))],
            "head": _affine(readout(hidden, vocabulary)),
        }
        return draw(key, plan)

    def logits(params: Any, x: Any) -> Any:
        states = params["embedding"][x]
        for layer in params["lstm"]:
            states = lstm(states, layer)
        return dense(states, params["head"]["w"], params["head"]["b"])

    def outputs(params: Any, batch: Any) -> Any:
        return logits(params, batch["x"])

    def loss(params: Any, batch: Any, key: Any) -> Any:
        return cross_entropy(outputs(params, batch), batch["y"]).mean(axis=1)

    def accuracy(params: Any, batch: Any) -> Any:
        return correct(outputs(params, batch), batch["y"]).mean(axis=1)

    def check(examples: Any) -> None:
        x, y = checks.columns(examples, "x", "y")
        checks.tokens("x", x, vocabulary)
        checks.labels(y, vocabulary, each=x.shape[1:])

    metrics: dict[str, Any] = {"accuracy": accuracy, "perplexity": Perplexity()}
    return Task(init, loss, metrics, check, "char_lstm", outputs, "classification")
