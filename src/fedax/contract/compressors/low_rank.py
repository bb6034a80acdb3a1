"""Compressors that send matrices as products of thin ones."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp

from fedax.contract.compression import ArrayForm, Compressor, Message
from fedax.contract.settings import plain
from fedax.contract.types import Array, Tree
from fedax.numbers import check_count


class PowerSGD(Compressor):
    """Each matrix as the product of two thin ones: contractive in the mean, α ≥ r/⌊√d⌋.

    Of a matrix M [n, m] it sends P, an orthonormal basis of the columns of M Q for a random Q [m, r], and Mᵀ P; what is
    read is P Pᵀ M. An array with more axes is a matrix by its first one. What has fewer than two axes, or would be no
    smaller, goes whole.

    Source: Vogels et al. 2019, "PowerSGD", Algorithm 1, without its warm start and with Q of each message's own. The
    error is at most ‖M − M Π‖ for the projection Π onto the columns of Q, and E‖M Π‖² = (r/m)‖M‖²; by the rows'
    space it is r/min(n, m), and min(n, m) ≤ √d.

    Args:
        rank: r ≥ 1.

    Raises:
        ConfigError: no such rank.

    Example:
        >>> PowerSGD(1).encode(jax.random.key(0), jnp.outer(jnp.arange(3.0), jnp.ones(5)))[0].bits // 32
        8
    """

    rank: int = eqx.field(static=True, converter=plain, default=1)

    def __check_init__(self) -> None:
        check_count("rank", self.rank)

    def encode(self, key: Array, upload: Tree, memory: Tree = ()) -> tuple[Message, Tree]:
        form = ArrayForm.of(upload)
        parts = [self._factors(jax.random.fold_in(key, at), leaf) for at, leaf in enumerate(form.arrays(upload))]
        return Message(parts, self, form), memory

    def decode(self, message: Message) -> Tree:
        form, parts = message.form, message.parts
        leaves = [
            jnp.reshape(part[0] @ part[1].T, shape).astype(kind) if self._splits(shape) else part[0]
            for part, shape, kind in zip(parts, form.shapes, form.types, strict=True)
        ]
        return form.from_arrays(leaves)

    def bits(self, form: ArrayForm) -> int:
        numbers = [
            self.rank * (shape[0] + math.prod(shape[1:])) if self._splits(shape) else math.prod(shape)
            for shape in form.shapes
        ]
        return sum(8 * kind.itemsize * number for kind, number in zip(form.types, numbers, strict=True))

    def alpha(self, d: int) -> float:
        return min(1.0, self.rank / max(1, math.isqrt(d)))

    def _splits(self, shape: tuple[int, ...]) -> bool:
        return len(shape) >= 2 and self.rank * (shape[0] + math.prod(shape[1:])) < math.prod(shape)

    def _factors(self, key: Array, leaf: Array) -> tuple[Array, ...]:
        shape, kind = jnp.shape(leaf), jnp.result_type(leaf)
        if not self._splits(shape):
            return (leaf,)
        matrix = jnp.reshape(leaf, (shape[0], -1)).astype(jnp.promote_types(kind, jnp.float32))
        basis, _ = jnp.linalg.qr(matrix @ jax.random.normal(key, (matrix.shape[1], self.rank), matrix.dtype))
        return basis.astype(kind), (matrix.T @ basis).astype(kind)
