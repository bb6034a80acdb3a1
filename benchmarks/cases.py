"""The benchmark cases, their data and their initial models. NumPy only, so that every environment can read it."""

from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Case:
    """FedAvg with plain SGD in float32.

    Args:
        title: what is measured, in words.
        model: ``logistic``, ``softmax``, ``mlp``, ``cnn`` or ``resnet``.
        layers: shapes of the kernels, [in, out] of a dense layer, [h, w, in, out] of a convolution or of a dense layer
            behind one. Each but that of ``logistic`` has a bias, a convolution of ``resnet`` a scale and an offset.
        shape: of one example.
        sizes: [N] examples of each client.
        steps: [N] local steps of each client in a round.
        epoch: the minibatches of a round are one random permutation cut into pieces, the incomplete one left out;
            otherwise each is drawn with replacement.
        batch: examples in a minibatch; ``None`` is all of the client's.
        cohort: clients in a round, drawn uniformly and weighted by p_i / Σ p_j over the cohort; ``None`` is all.
        lr: of the local SGD.
        given: [N] weights p_i, up to a factor; ``None`` is the sizes.
    """

    title: str
    model: str
    layers: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...]
    sizes: np.ndarray
    steps: np.ndarray
    batch: int | None
    lr: float
    epoch: bool = False
    cohort: int | None = None
    given: np.ndarray | None = None

    @property
    def weights(self) -> np.ndarray:
        return self.sizes if self.given is None else self.given

    @property
    def classes(self) -> int:
        return max(2, self.layers[-1][-1])

    def examples(self) -> tuple[np.ndarray, np.ndarray]:
        """x [n, *shape] float32 and labels y [n] int64 of a linear teacher, the clients one after another."""
        rng = np.random.default_rng(1)
        x = rng.standard_normal((self.sizes.sum(), *self.shape), dtype=np.float32)
        flat = x.reshape(len(x), -1)
        teacher = rng.standard_normal((flat.shape[1], self.classes), dtype=np.float32)
        return x, (flat @ teacher).argmax(axis=1)

    def initial(self) -> list[np.ndarray]:
        """Kernel, scale and bias of each layer in turn; none is zero, so that a check sees them all."""
        rng = np.random.default_rng(2)
        arrays = []
        for shape in self.layers:
            arrays.append(rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[:-1])))
            if self.model == "resnet" and len(shape) == 4:
                arrays.append(rng.uniform(0.5, 1, shape[-1]))
            if self.model != "logistic":
                arrays.append(rng.standard_normal(shape[-1]) * 0.01)
        return [array.astype(np.float32) for array in arrays]

    def small(self) -> "Case":
        """The same model on few examples with full-batch gradients, unequal steps and unequal weights."""
        sizes, steps, given = np.full(4, 12), np.array([3, 1, 2, 5]), np.array([1, 2, 3, 4])
        return replace(self, sizes=sizes, steps=steps, batch=None, epoch=False, cohort=None, given=given)


def power_law(clients: int, low: float, high: float, exponent: float) -> np.ndarray:
    """Sizes at evenly spaced quantiles of the density proportional to n^-exponent on [low, high], shuffled."""
    u, a = (np.arange(clients) + 0.5) / clients, 1 - exponent
    sizes = ((1 - u) * low**a + u * high**a) ** (1 / a)
    return np.random.default_rng(0).permutation(sizes.astype(np.int64))


# ResNet-18's eight blocks: channels and stride. A block has a shortcut of its own where its shape changes.
RESNET18 = ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1))


def resnet18(channels: int, classes: int) -> tuple[tuple[int, ...], ...]:
    """The stem; first, second and shortcut of each block; the head."""
    layers: list[tuple[int, ...]] = [(3, 3, channels, 64)]
    below = 64
    for width, stride in RESNET18:
        layers += [(3, 3, below, width), (3, 3, width, width)]
        layers += [(1, 1, below, width)] if stride > 1 else []
        below = width
    return (*layers, (below, classes))


def cases() -> dict[str, Case]:
    mlp = ((3072, 200), (200, 200), (200, 10))
    cnn = ((3, 3, 3, 64), (3, 3, 64, 64), (3, 3, 64, 64), (3, 3, 64, 64), (2, 2, 64, 10))
    unequal = power_law(1000, 20, 2000, 1.7)
    ten = np.full(10, 500)
    return {
        "logistic": Case(
            title="logistic regression, d = 300, 32 clients, 4 steps, batch 4",
            model="logistic",
            layers=((300, 1),),
            shape=(300,),
            sizes=np.full(32, 1500),
            steps=np.full(32, 4),
            batch=4,
            lr=0.1,
        ),
        "unequal": Case(
            title="softmax regression, d = 60, 10 classes, 1,000 unequal clients, cohort 100, one epoch, batch 10",
            model="softmax",
            layers=((60, 10),),
            shape=(60,),
            sizes=unequal,
            steps=unequal // 10,
            batch=10,
            lr=0.05,
            epoch=True,
            cohort=100,
        ),
        **{
            f"mlp{batch}": Case(
                title=f"MLP 3072-200-200-10, 10 clients, 32 steps, batch {batch}",
                model="mlp",
                layers=mlp,
                shape=(3072,),
                sizes=ten,
                steps=np.full(10, 32),
                batch=batch,
                lr=0.01,
            )
            for batch in (16, 64)
        },
        "cnn": Case(
            title="CNN of 4 layers with 64 filters, 32 x 32 x 3, 10 clients, 5 steps, batch 16",
            model="cnn",
            layers=cnn,
            shape=(32, 32, 3),
            sizes=ten,
            steps=np.full(10, 5),
            batch=16,
            lr=0.002,
        ),
        "resnet": Case(
            title="ResNet-18 with group normalisation, 32 x 32 x 3, 4 clients, 2 steps, batch 16",
            model="resnet",
            layers=resnet18(3, 10),
            shape=(32, 32, 3),
            sizes=np.full(4, 100),
            steps=np.full(4, 2),
            batch=16,
            lr=0.002,
        ),
    }
