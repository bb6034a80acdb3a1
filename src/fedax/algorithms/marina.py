"""MARINA: compressed differences of gradients, and now and then, by a coin that all clients share, whole gradients.

Gorbunov, Burlachenko, Li and Richtárik 2021, "MARINA: faster non-convex distributed learning with compression",
Algorithm 1.

| paper | here |
|---|---|
| x^k, g^k | ``server.x``, ``server.g`` |
| ∇f_i(x^{k−1}) | the client's memory |
| γ, p | lr, probability |
| c_k | ``whole`` |
| Q | compress |

    Client   c = 1 with probability p, and in round 0; the same for all
             m_i = ∇F_i(x) if c = 1, else Q(∇F_i(x) − ∇F_i(x_last))
    Server   g ← Σ p_i m_i if c = 1, else g + Σ p_i m_i;   x ← x − γ g
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedax.algorithms.parts import GradientState, unbiased, variance
from fedax.contract.algorithm import Algorithm, Round, Traits
from fedax.contract.compression import ArrayForm, Compressor, Message
from fedax.contract.compressors import Identity, RandomK
from fedax.contract.hyper import check, hyper
from fedax.contract.oracle import Oracle
from fedax.contract.packing import packed, unpacked
from fedax.contract.vector import Vector, zeros_like


class Upload(NamedTuple):
    """A vector, and whether it is the gradient itself."""

    vector: Vector
    whole: Any


class WholeOrNot(Compressor):
    """With probability p the vector unchanged, else compressed by another compressor.

    How much has to be sent depends on the coin. The bits are the expected ones, p · whole + (1 − p) · compressed, and 8
    that say which it is. A packed message has the length of the longer.

    Args:
        of: the other compressor, unbiased.
        probability: p in (0, 1]; ``None`` is 1/(1 + ω) by the ω of ``of``.

    Example:
        >>> WholeOrNot(RandomK(0.5), 0.25).bits(ArrayForm.of(jnp.zeros(100)))  # 0.25 · 3200 + 0.75 · 1664 + 8
        2056
    """

    of: Compressor = unbiased("MARINA", RandomK(0.1))
    probability: Any = hyper(None, "(0, 1]", off=True)

    def chance(self, d: int) -> Any:
        """p, for vectors of d numbers."""
        return 1 / (1 + variance(self.of, d)) if self.probability is None else self.probability

    def message(self, key: Any, whole: Any, x: Vector, difference: Vector) -> Message:
        """``x`` if ``whole``, else what ``of`` makes of the difference."""
        form = ArrayForm.of(x)
        parts = (whole, jnp.where(whole, form.vector(x), 0), self.of.encode(key, difference)[0].parts)
        return Message(parts, self, form)

    def decode(self, message: Message) -> Upload:
        (whole, x, parts), form = message.parts, message.form
        read: Vector = self.of.decode(Message(parts, self.of, form))
        vector = read.map(lambda a, b: jnp.where(whole, b, a), form.tree(x))
        return Upload(vector, jnp.asarray(whole, form.kind))

    def bits(self, form: ArrayForm) -> int:
        p = float(self.chance(form.size))
        return 8 + round(p * Identity().bits(form) + (1 - p) * self.of.bits(form))

    def validate(self) -> None:
        check(self)

    def length(self, form: ArrayForm) -> int:
        return 1 + max(form.size * form.kind.itemsize, self.of.length(form))

    def pack(self, parts: Any, form: ArrayForm) -> np.ndarray:
        whole, x, of = parts
        file = packed([np.asarray(x, form.kind)]) if whole else self.of.pack(of, form)
        file = np.append(np.array([1 if whole else 0], np.uint8), file)
        return np.pad(file, (0, self.length(form) - len(file)))

    def unpack(self, file: np.ndarray, form: ArrayForm) -> Any:
        file = np.asarray(file)
        if file.shape != (self.length(form),) or file.dtype != np.uint8 or file[0] > 1:
            raise ValueError(f"a message of {self.length(form)} bytes, the first of which is 1 or 0, is expected")
        forms = jax.eval_shape(lambda x: self.of.encode(jax.random.key(0), x)[0].parts, form.empty)
        x, of = np.zeros(form.size, form.kind), jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), forms)
        if file[0]:
            (x,), _ = unpacked(file[1 : 1 + x.nbytes], [(x.shape, x.dtype)])
        else:
            of = self.of.unpack(file[1 : 1 + self.of.length(form)], form)
        return np.bool_(file[0]), x, of


class MARINA(Algorithm):
    """MARINA: gradient descent with unbiased compression of how the clients' gradients change. No local steps.

    Published for p_i = 1/N; unequal p_i in the means are an extension. All clients take part. The gradients are exact:
    each round takes a pass over a client's data. The coin is tossed by the round's key.

    Args:
        lr: γ > 0, the server's step. The theory has 1/(L + L̃ √((1−p)ω/(pN))) with L̃² = Σ p_i L_i².
        probability: p in (0, 1], of a round with whole gradients; 1 is gradient descent. ``None`` is 1/(1 + ω), by the
            compressor's ω: of ``RandomK`` the share.
        compress: Q, unbiased, such as ``RandomK(0.1)``.

    Raises:
        ConfigError: numbers out of range, a compressor that is not unbiased.

    Source: Gorbunov et al. 2021, Algorithm 1 and Theorem 2.1.

    Example:
        >>> MARINA(lr=0.1, probability=0.2).probability
        0.2
    """

    code: WholeOrNot
    lr: Any = hyper(0.05, "(0, ∞)")

    def __init__(self, lr: Any = 0.05, probability: Any = None, compress: Any = RandomK(0.1)):
        self.lr = lr
        self.code = WholeOrNot(compress, probability)

    @property
    def probability(self) -> Any:
        return self.code.probability

    @property
    def compress(self) -> Compressor:
        return self.code.of

    def traits(self) -> Traits:
        return Traits("MARINA", "Gorbunov et al. 2021, Algorithm 1", "all", limit="F", exact="always")

    def init(self, x: Vector) -> GradientState:
        return GradientState(x, zeros_like(x))

    def init_client(self, x: Vector) -> Vector:
        return zeros_like(x)

    def download(self, server: GradientState) -> Vector:
        return server.x

    def client(self, download: Vector, memory: Vector, oracle: Oracle) -> tuple[Message, Vector]:
        gradient = oracle.full_grad(download)
        coin = jax.random.bernoulli(oracle.round_key, self.code.chance(download.size))
        whole = coin | (jnp.asarray(oracle.round) == 0)
        return self.code.message(oracle.key, whole, gradient, gradient - memory), gradient

    def server(self, server: GradientState, mean: Upload, round: Round) -> GradientState:
        g = mean.vector + jnp.where(mean.whole > 0.5, 0.0, 1.0) * server.g
        return GradientState(server.x - self.lr * g, g)
