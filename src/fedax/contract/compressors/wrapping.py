"""Compressors around another one: random rotation, and error feedback."""

import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedax.contract.compression import ArrayForm, Compressor, Message, compressor
from fedax.contract.indices import independent
from fedax.contract.packing import SEED_BITS, key_of, packed, seed_of, unpacked
from fedax.contract.types import Array, Number, Tree
from fedax.errors import ConfigError


class Rotated(Compressor):
    """Another compressor's message of the vector rotated at random, which makes its numbers of one size; its ω and α.

    Signs are turned around at random, then a Hadamard transform mixes all numbers; d is filled up with zeros to a power
    of two. A message is one of ``of``, and a seed of 64 bits from which the signs are drawn again.

    Args:
        of: a compressor without memory, such as ``QSGD(4)``, or a table of one.

    Raises:
        ConfigError: ``of`` is no compressor, or has memory.

    Source: Suresh et al. 2017, "Distributed mean estimation with limited communication", Section 3.

    Example:
        >>> from fedax.contract.compressors import Sign
        >>> x = jnp.zeros(16).at[3].set(4.0)
        >>> Rotated(Sign()).encode(jax.random.key(0), x)[0].decode()[3].item()
        4.0
    """

    of: Compressor = eqx.field(converter=lambda given: compressor(given, "of"))

    def __check_init__(self) -> None:
        _check_of(self, "of")

    def compress(self, key: Array, x: Array) -> Tree:
        seed = seed_of(key)
        filled = jnp.pad(x, (0, _power_of_two(x.size) - x.size))
        rotated = _hadamard(self._signs(seed, filled) * filled)
        return {"of": self.of.encode(jax.random.fold_in(key, 0), rotated)[0].parts, "seed": seed}

    def restore(self, parts: Tree, form: ArrayForm) -> Array:
        rotated = _hadamard(self.of.decode(Message(parts["of"], self.of, _filled(form))))
        return (self._signs(parts["seed"], rotated) * rotated)[: form.size]

    def bits(self, form: ArrayForm) -> int:
        return self.of.bits(_filled(form)) + SEED_BITS

    def omega(self, d: int) -> Number | None:
        return self.of.omega(_power_of_two(d))

    def alpha(self, d: int) -> Number | None:
        return self.of.alpha(_power_of_two(d))

    def pack(self, parts: Tree, form: ArrayForm) -> np.ndarray:
        return np.concatenate([packed([parts["seed"]]), self.of.pack(parts["of"], _filled(form))])

    def unpack(self, file: np.ndarray, form: ArrayForm) -> Tree:
        (seed,), _ = unpacked(file[: SEED_BITS // 8], [((2,), np.uint32)])
        return {"of": self.of.unpack(file[SEED_BITS // 8 :], _filled(form)), "seed": seed}

    def _signs(self, seed: Array, x: Array) -> Array:
        """[D] −1 or 1."""
        return (1 - 2 * independent(jnp.arange(x.size), 2, key_of(seed))).astype(x.dtype)


class ErrorFeedback(Compressor):
    """What a message lacks, e, is added to the client's next one: C(x + e) is sent, and e ← x + e − C(x + e).

    For contractive compressors, which without it lead to a wrong point, or to none. An unbiased ``of`` is scaled by
    1/(1 + ω), which makes it contractive. The memory is as large as the upload, and stays as it was where the new one
    would not be finite.

    Args:
        of: a compressor without memory, such as ``TopK(0.01)``, or a table of one.

    Raises:
        ConfigError: ``of`` is no compressor, or has memory; when it is used, ``of`` says neither its ω nor its α.

    Source: Seide et al. 2014; Stich et al. 2018, Algorithm 1.

    Example:
        >>> from fedax.contract.compressors import TopK
        >>> how, x = ErrorFeedback(TopK(0.5)), jnp.array([3.0, 2.0])
        >>> first, memory = how.encode(None, x, how.init(x))
        >>> second, _ = how.encode(None, x, memory)
        >>> first.decode().tolist(), second.decode().tolist()
        ([3.0, 0.0], [0.0, 4.0])
    """

    keeps: ClassVar[bool] = True

    of: Compressor = eqx.field(converter=lambda given: compressor(given, "of"))

    def __check_init__(self) -> None:
        _check_of(self, "of")

    def init(self, upload: Tree) -> Tree:
        form = ArrayForm.of(upload)
        return [jnp.zeros(shape, kind) for shape, kind in zip(form.shapes, form.types, strict=True)]

    def encode(self, key: Array, upload: Tree, memory: Tree = ()) -> tuple[Message, Tree]:
        form = ArrayForm.of(upload)
        given = list(map(jnp.add, form.arrays(upload), memory))
        message = Message(self.of.encode(key, form.from_arrays(given))[0].parts, self, form)
        rest = list(map(jnp.subtract, given, form.arrays(self.decode(message))))
        fine = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in rest]))
        return message, [jnp.where(fine, new, old) for new, old in zip(rest, memory, strict=True)]

    def decode(self, message: Message) -> Tree:
        read, d = self.of.decode(message), message.form.size
        if self.of.alpha(d) is not None:
            return read
        return jax.tree.map(lambda leaf: leaf * jnp.asarray(self.alpha(d), leaf.dtype), read)

    def bits(self, form: ArrayForm) -> int:
        return self.of.bits(form)

    def alpha(self, d: int) -> Number | None:
        """α of C, which is applied to x + e.

        Raises:
            ConfigError: C says neither its ω nor its α.
        """
        alpha, omega = self.of.alpha(d), self.of.omega(d)
        if alpha is None and omega is None:
            raise ConfigError("of", self.of, "it has neither omega(d) nor alpha(d), one of which has to be known here")
        return alpha if omega is None or alpha is not None else 1 / (1 + omega)

    def pack(self, parts: Tree, form: ArrayForm) -> np.ndarray:
        return self.of.pack(parts, form)

    def unpack(self, file: np.ndarray, form: ArrayForm) -> Tree:
        return self.of.unpack(file, form)


def _power_of_two(d: int) -> int:
    return 1 << max(0, d - 1).bit_length()


def _filled(form: ArrayForm) -> ArrayForm:
    """The form of the vector, padded to a power of two."""
    return ArrayForm.of(jax.ShapeDtypeStruct((_power_of_two(form.size),), form.kind))


def _hadamard(x: Array) -> Array:
    """H x/√D of a vector whose length D is a power of two; it is its own inverse."""
    size, half = x.size, 1
    while half < size:
        pairs = x.reshape(-1, 2, half)
        x = jnp.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1)
        half *= 2
    return x.reshape(size) / jnp.asarray(math.sqrt(size), x.dtype)


def _check_of(outer: Compressor, field: str) -> None:
    inner: Compressor = getattr(outer, field)
    if inner.keeps:
        kind, own = type(outer).__name__, type(inner).__name__
        hint = "of a compressor that has memory there is none" if kind == own else f"give {own}({kind}(…)) instead"
        raise ConfigError(field, inner, hint)
