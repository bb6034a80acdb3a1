"""Compression: the messages that clients send instead of arrays, and the protocol of the compressors.

The compressors are in :mod:`fedax.contract.compressors`, one family a file.
"""

import abc
import math
from collections.abc import Sequence
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedax.contract.packing import packed, unpacked
from fedax.contract.settings import Settings
from fedax.contract.types import Array, Number, Tree, Unknown
from fedax.contract.vector import spelled
from fedax.errors import CodeError, place_of
from fedax.registry import Registry

COMPRESSORS = Registry("compress")  # by name; fedax.contract.compressors fills it


class ArrayForm(eqx.Module):
    """The structure, shapes and types of a pytree of arrays; hashable. An array that occurs twice counts once.

    Attributes:
        structure: of the pytree.
        places: of each of its leaves, the number of its array.
        shapes, types: of the arrays.

    Example:
        >>> form = ArrayForm.of({"w": jnp.zeros((2, 3)), "b": jnp.zeros(3)})
        >>> form.size, form.vector({"w": jnp.ones((2, 3)), "b": jnp.zeros(3)}).tolist()
        (9, [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
        >>> ArrayForm.of((x := jnp.ones(4), {"again": x})).size
        4
    """

    structure: Unknown = eqx.field(static=True)
    places: tuple[int, ...] = eqx.field(static=True)
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    types: tuple["np.dtype[Unknown]", ...] = eqx.field(static=True)

    @classmethod
    def of(cls, tree: Tree) -> "ArrayForm":
        """The form of a pytree of arrays, or of their shapes."""
        leaves, structure = jax.tree.flatten(tree)
        positions = {id(leaf): number for number, leaf in enumerate({id(leaf): leaf for leaf in leaves}.values())}
        arrays = list({id(leaf): leaf for leaf in leaves}.values())
        types = tuple(np.dtype(jnp.result_type(leaf)) for leaf in arrays)
        return cls(structure, tuple(positions[id(leaf)] for leaf in leaves), tuple(map(jnp.shape, arrays)), types)

    @property
    def size(self) -> int:
        """d, how many numbers there are."""
        return sum(map(math.prod, self.shapes))

    @property
    def kind(self) -> "np.dtype[Unknown]":
        """The type of :meth:`vector`."""
        return np.dtype(jnp.result_type(*self.types)) if self.types else np.dtype(jnp.zeros(()).dtype)

    @property
    def empty(self) -> Tree:
        """A pytree of this form, of ``jax.ShapeDtypeStruct``."""
        return self.from_arrays([jax.ShapeDtypeStruct(*each) for each in zip(self.shapes, self.types, strict=True)])

    def arrays(self, tree: Tree) -> list[Array]:
        """The arrays of a pytree of this form, each once."""
        leaves = dict(zip(self.places, jax.tree.leaves(tree), strict=True))
        return [leaves[number] for number in range(len(self.shapes))]

    def from_arrays(self, arrays: Sequence[Unknown]) -> Tree:
        """The pytree of its arrays."""
        return jax.tree.unflatten(self.structure, [arrays[number] for number in self.places])

    def vector(self, tree: Tree) -> Array:
        """All numbers of a pytree of this form, [d]."""
        return jnp.concatenate([jnp.ravel(leaf) for leaf in self.arrays(tree)] or [jnp.zeros(0)])

    def tree(self, vector: Array) -> Tree:
        """The pytree of a vector [d]."""
        arrays, at = [], 0
        for shape, kind in zip(self.shapes, self.types, strict=True):
            arrays.append(jnp.reshape(vector[at : at + math.prod(shape)], shape).astype(kind))
            at += math.prod(shape)
        return self.from_arrays(arrays)


class Message(eqx.Module):
    """What is sent instead of some arrays: :meth:`Compressor.encode` makes it, and the wire decodes it.

    A method may put messages into its upload, also inside of a :class:`fedax.Change`; its server receives the decoded
    arrays. In a simulation the parts are in the form that is easiest to compute with; ``how.bits(form)`` says how many
    bits they take on a real wire.

    Attributes:
        parts: arrays.
        how: the compressor.
        form: the form of the arrays that it stands for.

    Example:
        >>> from fedax.contract.compressors import TopK
        >>> message, _ = TopK(0.5).encode(None, {"w": jnp.array([3.0, -1.0, 0.5, 4.0])})
        >>> message.decode()["w"].tolist(), message.bits
        ([3.0, 0.0, 0.0, 4.0], 68)
    """

    parts: Tree
    how: "Compressor"
    form: ArrayForm

    def decode(self) -> Tree:
        """The decoded arrays: a pytree of the message's form."""
        return self.how.decode(self)

    @property
    def bits(self) -> int:
        """Its size on a real wire; the compressor's numbers have to be known, not traced."""
        return self.how.bits(self.form)


def is_message(part: Tree) -> bool:
    """Whether a part of an upload is a :class:`Message`."""
    return isinstance(part, Message)


def decoded(upload: Tree) -> Tree:
    """``upload`` with each message decoded."""
    return jax.tree.map(lambda part: part.decode() if is_message(part) else part, upload, is_leaf=is_message)


class Compressor(Settings):
    """Makes messages of pytrees of real arrays, all of whose d numbers are one vector x.

    C(x) is the decoded message. It is *unbiased*, E C(x) = x and E‖C(x) − x‖² ≤ ω‖x‖², or *contractive*,
    E‖C(x) − x‖² ≤ (1 − α)‖x‖². A compressor of your own defines :meth:`compress`, :meth:`restore`, :meth:`bits`,
    and :meth:`omega` or :meth:`alpha`; for real nodes also :meth:`pack` and :meth:`unpack`, unless its parts are
    sent as they are. Where x has a number that is not finite, C(x) must have one too, so that a guard can see it.

    Example:
        >>> class Signs(Compressor):  # the sign of each number, times the mean of their sizes
        ...     def compress(self, key, x):
        ...         return jnp.sign(x) * jnp.mean(jnp.abs(x))
        ...
        ...     def bits(self, form):
        ...         return form.size + 32
        ...
        ...     def alpha(self, d):
        ...         return 1 / d
        >>> Signs().encode(None, jnp.array([1.0, -3.0]))[0].decode().tolist()
        [2.0, -2.0]
    """

    keeps: ClassVar[bool] = False  # whether a client has a memory from one message to the next

    def init(self, upload: Tree) -> Tree:
        """The client's memory before its first message; ``upload``: arrays, or their shapes."""
        return ()

    def encode(self, key: Array, upload: Tree, memory: Tree = ()) -> tuple[Message, Tree]:
        """The message of an upload, and the client's memory after it.

        Args:
            key: random, another one for each message.
            upload: a pytree of real arrays.
            memory: the client's.
        """
        form = ArrayForm.of(upload)
        return Message(self.compress(key, form.vector(upload)), self, form), memory

    def decode(self, message: Message) -> Tree:
        """The arrays that a message stands for, as the server receives them.

        Raises:
            CodeError: :meth:`restore` gives no vector of as many numbers.
        """
        x = self.restore(message.parts, message.form)
        if getattr(x, "shape", None) != (d := (message.form.size,)):
            what = f"gives {spelled(x)} for a vector {list(d)}"
            hint = "restore(parts, form) has to give form.size numbers; without it, compress(key, x) as many as x has"
            raise CodeError(f"{type(self).__name__}.restore", what, hint, place_of(type(self)))
        return message.form.tree(x)

    def compress(self, key: Array, x: Array) -> Tree:
        """The parts of the message of a vector [d]."""
        raise NotImplementedError

    def restore(self, parts: Tree, form: ArrayForm) -> Array:
        """C(x) [d] from the parts; default: they are C(x)."""
        return parts

    @abc.abstractmethod
    def bits(self, form: ArrayForm) -> int:
        """Bits that a message takes on a real wire."""

    def length(self, form: ArrayForm) -> int:
        """Bytes of a packed message; default: as many as its bits take."""
        return -(-self.bits(form) // 8)

    def omega(self, d: int) -> Number | None:
        """ω of an unbiased compressor of vectors of d numbers; ``None``: it is not unbiased.

        Traced where the compressor's numbers are.
        """
        return None

    def alpha(self, d: int) -> Number | None:
        """α ∈ [0, 1] of a contractive compressor; of an unbiased one, scaled by 1/(1 + ω), it is 1/(1 + ω)."""
        return None

    def pack(self, parts: Tree, form: ArrayForm) -> np.ndarray:
        """The parts of one message as they go over a real wire, bytes [⌈bits/8⌉]; default: as they are."""
        return packed(jax.tree.leaves(parts))

    def unpack(self, file: np.ndarray, form: ArrayForm) -> Tree:
        """The parts from received bytes, which may be anything.

        Raises:
            ValueError: the bytes are no such message.
        """

        def parts(upload: Tree) -> Tree:
            return self.encode(jax.random.key(0), upload, self.init(upload))[0].parts

        leaves, structure = jax.tree.flatten(jax.eval_shape(parts, form.empty))
        return jax.tree.unflatten(structure, unpacked(file, [(leaf.shape, leaf.dtype) for leaf in leaves])[0])


class Identity(Compressor):
    """All numbers as they are: ω = 0 and α = 1, to compare with.

    Example:
        >>> Identity().encode(None, jnp.array([0.1, -5.0]))[0].bits
        64
    """

    def encode(self, key: Array, upload: Tree, memory: Tree = ()) -> tuple[Message, Tree]:
        form = ArrayForm.of(upload)
        return Message(form.arrays(upload), self, form), memory

    def decode(self, message: Message) -> Tree:
        return message.form.from_arrays(message.parts)

    def bits(self, form: ArrayForm) -> int:
        return sum(8 * kind.itemsize * math.prod(shape) for shape, kind in zip(form.shapes, form.types, strict=True))

    def omega(self, d: int) -> float:
        return 0.0

    def alpha(self, d: int) -> float:
        return 1.0


def compressor(given: Unknown, field: str = "compress") -> Compressor:
    """A :class:`Compressor` as it is, or made from a table, as a configuration has it.

    Args:
        given: such as ``{"name": "top-k", "share": 0.1}``; the other keys are the compressor's arguments.
        field: what errors call it.

    Raises:
        ConfigError: an unknown name or key, a missing key, or something else.

    Example:
        >>> compressor({"name": "top-k", "share": 0.1})
        TopK(share=0.1)
    """
    if isinstance(given, Compressor):
        return given
    return COMPRESSORS.read(given, field, "give a fedax Compressor, such as fedax.TopK(0.1), or {name = 'top-k', …}")
