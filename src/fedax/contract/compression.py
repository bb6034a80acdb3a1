"""Compression of uploads: what a client sends in place of its numbers, and what the server reads out of that."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedax.contract.indices import independent, shuffled
from fedax.contract.packing import codes_of, numbers_of, packed, unpacked
from fedax.contract.settings import Settings
from fedax.contract.types import Array, Number, Tree, Unknown
from fedax.errors import ConfigError
from fedax.numbers import check_count, check_number
from fedax.registry import Registry


class Form(eqx.Module):
    """Of which arrays a message stands: structure, shapes and types, hashable. One that is there twice counts once.

    Attributes:
        structure: of the pytree.
        places: of each of its leaves, which array it is.
        shapes, types: of the arrays.

    Example:
        >>> form = Form.of({"w": jnp.zeros((2, 3)), "b": jnp.zeros(3)})
        >>> form.size, form.vector({"w": jnp.ones((2, 3)), "b": jnp.zeros(3)}).tolist()
        (9, [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
        >>> Form.of((x := jnp.ones(4), {"again": x})).size
        4
    """

    structure: Unknown = eqx.field(static=True)
    places: tuple[int, ...] = eqx.field(static=True)
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    types: tuple["np.dtype[Unknown]", ...] = eqx.field(static=True)

    @classmethod
    def of(cls, tree: Tree) -> "Form":
        """The form of a pytree of arrays, or of their shapes."""
        leaves, structure = jax.tree.flatten(tree)
        numbers = {id(leaf): number for number, leaf in enumerate({id(leaf): leaf for leaf in leaves}.values())}
        each = list({id(leaf): leaf for leaf in leaves}.values())
        types = tuple(np.dtype(jnp.result_type(leaf)) for leaf in each)
        return cls(structure, tuple(numbers[id(leaf)] for leaf in leaves), tuple(map(jnp.shape, each)), types)

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

    def from_arrays(self, arrays: Sequence[Array]) -> Tree:
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
    """What is sent in place of some arrays; :meth:`Compressor.encode` makes it, and the wire reads it.

    A method may put messages into its upload, inside of a :class:`fedax.Change` too; its server receives what was read
    out of them. In a simulation the parts are as it is easiest to compute with them; how many bits they take on a real
    wire is what ``how.bits(form)`` says.

    Attributes:
        parts: arrays.
        how: the compressor.
        form: of which arrays it stands.

    Example:
        >>> message, _ = TopK(0.5).encode(None, {"w": jnp.array([3.0, -1.0, 0.5, 4.0])})
        >>> message.decode()["w"].tolist(), message.bits
        ([3.0, 0.0, 0.0, 4.0], 68)
    """

    parts: Tree
    how: "Compressor"
    form: Form

    def decode(self) -> Tree:
        """What the server reads: a pytree of the message's form."""
        return self.how.decode(self)

    @property
    def bits(self) -> int:
        """On a real wire; the compressor's numbers have to be known, not traced."""
        return self.how.bits(self.form)


def is_message(part: Tree) -> bool:
    """Whether a part of an upload is a :class:`Message`."""
    return isinstance(part, Message)


def decoded(upload: Tree) -> Tree:
    """``upload`` with what the server reads in the place of each message."""
    return jax.tree.map(lambda part: part.decode() if is_message(part) else part, upload, is_leaf=is_message)


class Compressor(Settings):
    """Makes messages of pytrees of real arrays, all of whose d numbers are one vector x.

    C(x) is what is read out of the message. It is *unbiased*, E C(x) = x and E‖C(x) − x‖² ≤ ω‖x‖², or *contractive*,
    E‖C(x) − x‖² ≤ (1 − α)‖x‖². One of one's own gives :meth:`compress`, :meth:`restore`, :meth:`bits`, and
    :meth:`omega` or :meth:`alpha`; for real nodes also :meth:`pack` and :meth:`unpack`, unless its parts go as they
    are. A number that is not finite has to leave its mark: what is read out is not finite either, and a guard sees it.

    Example:
        >>> class Signs(Compressor):  # the sign of each number, times the mean of their sizes
        ...     def compress(self, key, x):
        ...         return jnp.sign(x) * jnp.mean(jnp.abs(x))
        ...
        ...     def bits(self, form):
        ...         return form.size + 32
        >>> Signs().encode(None, jnp.array([1.0, -3.0]))[0].decode().tolist()
        [2.0, -2.0]
    """

    keeps: ClassVar[bool] = False  # whether a client remembers something between two messages

    def init(self, upload: Tree) -> Tree:
        """What a client remembers before its first message; ``upload``: arrays, or their shapes."""
        return ()

    def encode(self, key: Array, upload: Tree, memory: Tree = ()) -> tuple[Message, Tree]:
        """The message of an upload, and what the client remembers after it.

        Args:
            key: random, another one for each message.
            upload: a pytree of real arrays.
            memory: what the client remembers.
        """
        form = Form.of(upload)
        return Message(self.compress(key, form.vector(upload)), self, form), memory

    def decode(self, message: Message) -> Tree:
        """What the server reads out of a message."""
        return message.form.tree(self.restore(message.parts, message.form))

    def compress(self, key: Array, x: Array) -> Tree:
        """The parts of the message of a vector [d]."""
        raise NotImplementedError

    def restore(self, parts: Tree, form: Form) -> Array:
        """C(x) [d] out of the parts; default: they are C(x)."""
        return parts

    def bits(self, form: Form) -> int:
        """Bits that a message takes on a real wire."""
        raise NotImplementedError

    def length(self, form: Form) -> int:
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

    def pack(self, parts: Tree, form: Form) -> np.ndarray:
        """The parts of one message as they go over a real wire, bytes [⌈bits/8⌉]; default: as they are."""
        return packed(jax.tree.leaves(parts))

    def unpack(self, file: np.ndarray, form: Form) -> Tree:
        """The parts out of bytes from elsewhere.

        Raises:
            ValueError: they are no such message.
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
        form = Form.of(upload)
        return Message(form.arrays(upload), self, form), memory

    def decode(self, message: Message) -> Tree:
        return message.form.from_arrays(message.parts)

    def bits(self, form: Form) -> int:
        return sum(8 * kind.itemsize * math.prod(shape) for shape, kind in zip(form.shapes, form.types, strict=True))

    def omega(self, d: int) -> float:
        return 0.0

    def alpha(self, d: int) -> float:
        return 1.0


class TopK(Compressor):
    """The k = ⌈share·d⌉ numbers that are largest in size, and 0 for the others: contractive, α = k/d.

    Of numbers that are equally large the first ones are sent. A message has k numbers and their places.

    Args:
        share: of all numbers, in (0, 1]; it counts in millionths, and k is at least 1.

    Raises:
        ConfigError: a share out of range.

    Source: Stich et al. 2018, "Sparsified SGD with memory", Definition 2.1.

    Example:
        >>> TopK(0.5).encode(None, jnp.array([1.0, -5.0, 2.0, 0.0]))[0].decode().tolist()
        [0.0, -5.0, 2.0, 0.0]
    """

    share: Number

    def __check_init__(self) -> None:
        check_number("share", self.share, 0, 1, open_low=True, fixed=True)

    def compress(self, key: Array, x: Array) -> Tree:
        return jnp.where(_largest(x, _count(self.share, x.size)), x, 0)

    def bits(self, form: Form) -> int:
        return int(_count(self.share, form.size)) * (8 * form.kind.itemsize + _place_bits(form.size))

    def alpha(self, d: int) -> Number:
        return _ratio(_count(self.share, d), d)

    def pack(self, parts: Tree, form: Form) -> np.ndarray:
        x = np.asarray(parts, form.kind)
        # Those that are not +0; were there fewer than k, zeros are among the largest.
        places = np.argsort(codes_of(x) == 0, kind="stable")[: _count(self.share, form.size)]
        places = np.sort(places)
        return packed([x[places]], places, _place_bits(form.size))

    def unpack(self, file: np.ndarray, form: Form) -> Tree:
        k = int(_count(self.share, form.size))
        (numbers,), places = unpacked(file, [((k,), form.kind)], k, _place_bits(form.size))
        if (np.diff(places) <= 0).any() or (places >= form.size).any():
            raise ValueError("the places of a message do not increase, or are too large")
        return _at(places, numbers, form)


class RandomK(Compressor):
    """k = ⌈share·d⌉ numbers at random places, times d/k, and 0 for the others: unbiased, ω = d/k − 1.

    A message has k numbers, and 64 bits out of which their places are drawn again. If any of the d numbers is not
    finite, none of the k is.

    Args:
        share: of all numbers, in (0, 1]; it counts in millionths, and k is at least 1.

    Raises:
        ConfigError: a share out of range.

    Source: Stich et al. 2018, Definition 2.1, scaled as in Condat et al. 2022, equation (5).

    Example:
        >>> sorted(RandomK(0.5).encode(jax.random.key(0), jnp.ones(4))[0].decode().tolist())
        [0.0, 0.0, 2.0, 2.0]
    """

    share: Number

    def __check_init__(self) -> None:
        check_number("share", self.share, 0, 1, open_low=True, fixed=True)

    def compress(self, key: Array, x: Array) -> Tree:
        seed = _seed(key)
        scale = jnp.where(jnp.all(jnp.isfinite(x)), _ratio(x.size, _count(self.share, x.size)), jnp.nan)
        return {"numbers": jnp.where(self._drawn(seed, x.size), x * scale.astype(x.dtype), 0), "seed": seed}

    def restore(self, parts: Tree, form: Form) -> Array:
        return parts["numbers"]

    def bits(self, form: Form) -> int:
        return int(_count(self.share, form.size)) * 8 * form.kind.itemsize + _SEED_BITS

    def omega(self, d: int) -> Number:
        return _ratio(d, _count(self.share, d)) - 1

    def pack(self, parts: Tree, form: Form) -> np.ndarray:
        places = np.flatnonzero(self._drawn(parts["seed"], form.size))
        return packed([np.asarray(parts["seed"], np.uint32), np.asarray(parts["numbers"], form.kind)[places]])

    def unpack(self, file: np.ndarray, form: Form) -> Tree:
        k = int(_count(self.share, form.size))
        (seed, numbers), _ = unpacked(file, [((2,), np.uint32), ((k,), form.kind)])
        return {"numbers": _at(np.flatnonzero(self._drawn(seed, form.size)), numbers, form), "seed": seed}

    def _drawn(self, seed: Array, d: int) -> Array:
        """[d] which places are drawn."""
        return shuffled(jnp.arange(d), d, _key_of(seed), max_size=d) < _count(self.share, d)


class QSGD(Compressor):
    """Each number as a whole multiple of ‖x‖/s, rounded at random: unbiased, ω = min(d/(4s²), √d/s).

    A number between two multiples becomes either, in such a way that its mean is right. A message has the norm of all
    numbers together, and one of 2s + 1 values for each.

    Args:
        levels: s, a whole number in [1, 65536].

    Raises:
        ConfigError: levels out of range.

    Source: Alistarh et al. 2017, "QSGD", Section 3.1. Its Lemma 3.1 has d/s² in place of d/(4s²), which the variance
    p(1 − p) ≤ 1/4 of rounding gives.

    Example:
        >>> QSGD(5).encode(jax.random.key(0), jnp.array([3.0, -4.0, 0.0]))[0].decode().round(4).tolist()
        [3.0, -4.0, 0.0]
    """

    levels: Number

    def __check_init__(self) -> None:
        check_number("levels", self.levels, 1, 2**16, fixed=True)
        if _is_known(self.levels) and float(self.levels) % 1:
            raise ConfigError("levels", self.levels, "give a whole number")

    def compress(self, key: Array, x: Array) -> Tree:
        norm = _norm(x)
        known = jnp.isfinite(norm) & (norm > 0)
        s = jnp.asarray(self.levels, x.dtype)
        size = jnp.where(known, jnp.minimum(jnp.abs(x) / jnp.where(known, norm, 1) * s, s), 0)
        low = jnp.floor(size)
        level = low + (jax.random.uniform(key, x.shape, x.dtype) < size - low)
        return {"norm": norm, "levels": jnp.where(x < 0, -level, level).astype(jnp.int32)}

    def restore(self, parts: Tree, form: Form) -> Array:
        norm = parts["norm"]
        return norm * (parts["levels"].astype(norm.dtype) / jnp.asarray(self.levels, norm.dtype))

    def bits(self, form: Form) -> int:
        return form.size * self._width + 8 * form.kind.itemsize

    def omega(self, d: int) -> Number:
        least = min if _is_known(self.levels) else jnp.minimum
        return least(d / (4 * self.levels**2), math.sqrt(d) / self.levels)

    def pack(self, parts: Tree, form: Form) -> np.ndarray:
        codes = np.asarray(parts["levels"], np.int64) + int(self.levels)
        return packed([np.asarray(parts["norm"], form.kind)], codes, self._width)

    def unpack(self, file: np.ndarray, form: Form) -> Tree:
        (norm,), codes = unpacked(file, [((), form.kind)], form.size, self._width)
        if norm < 0 or (codes > 2 * int(self.levels)).any():
            raise ValueError("the norm of a message is below 0, or there is no such level")
        return {"norm": norm, "levels": (codes - int(self.levels)).astype(np.int32)}

    @property
    def _width(self) -> int:
        return (2 * int(self.levels)).bit_length()


class Natural(Compressor):
    """Each number rounded at random to one of the two powers of two around it: unbiased, ω = 1/8.

    A message has the sign and the exponent of each number, 9 bits of one of 32.

    Source: Horváth et al. 2022, "Natural compression for distributed deep learning", Definition 1 and Theorem 1.

    Example:
        >>> Natural().encode(jax.random.key(0), jnp.array([1.0, -4.0, 0.0, 3.0]))[0].decode()[:3].tolist()
        [1.0, -4.0, 0.0]
    """

    def compress(self, key: Array, x: Array) -> Tree:
        # The exponent goes up where random bits below it carry over: with a probability that is the mantissa.
        whole = jnp.dtype(f"uint{8 * x.dtype.itemsize}")
        below = whole.type((1 << jnp.finfo(x.dtype).nmant) - 1)
        infinite = jax.lax.bitcast_convert_type(jnp.asarray(jnp.inf, x.dtype), whole)
        size = jax.lax.bitcast_convert_type(jnp.abs(x), whole)
        rounded = (size + (jax.random.bits(key, x.shape, whole) & below)) & ~below
        power = jax.lax.bitcast_convert_type(jnp.where(size >= infinite, infinite, rounded), x.dtype)
        return jnp.where(jnp.signbit(x), -power, power)

    def bits(self, form: Form) -> int:
        return form.size * _sign_and_exponent(form)

    def omega(self, d: int) -> float:
        return 1 / 8

    def pack(self, parts: Tree, form: Form) -> np.ndarray:
        codes = codes_of(np.asarray(parts, form.kind)) >> jnp.finfo(form.kind).nmant
        return packed([], codes, _sign_and_exponent(form))

    def unpack(self, file: np.ndarray, form: Form) -> Tree:
        _, codes = unpacked(file, [], form.size, _sign_and_exponent(form))
        return numbers_of(codes.astype(np.uint64) << np.uint64(jnp.finfo(form.kind).nmant), form.kind)


class Sign(Compressor):
    """The sign of each number, times the mean of their sizes, ‖x‖₁/d: contractive, α = 1/d for the worst x.

    For a given x it is α = ‖x‖₁²/(d‖x‖₂²), which is 2/π for many normal numbers. The sign of 0 is +.

    Source: Seide et al. 2014, "1-bit stochastic gradient descent", scaled as in Karimireddy et al. 2019, "Error
    feedback fixes SignSGD", Lemma 8.

    Example:
        >>> Sign().encode(None, jnp.array([1.0, -3.0]))[0].decode().tolist()
        [2.0, -2.0]
    """

    def compress(self, key: Array, x: Array) -> Tree:
        return {"size": jnp.mean(jnp.abs(x)), "negative": x < 0}

    def restore(self, parts: Tree, form: Form) -> Array:
        return jnp.where(parts["negative"], -parts["size"], parts["size"])

    def bits(self, form: Form) -> int:
        return form.size + 8 * form.kind.itemsize

    def alpha(self, d: int) -> float:
        return 1 / d

    def pack(self, parts: Tree, form: Form) -> np.ndarray:
        return packed([np.asarray(parts["size"], form.kind)], parts["negative"], 1)

    def unpack(self, file: np.ndarray, form: Form) -> Tree:
        (size,), codes = unpacked(file, [((), form.kind)], form.size, 1)
        if size < 0:
            raise ValueError("the size in a message is below 0")
        return {"size": size, "negative": codes == 1}


class Cast(Compressor):
    """Each number in a type of 16 bits: contractive while it is in the type's normal range.

    α = 1 − 2⁻¹⁶ for bfloat16, which has the range of float32, and 1 − 2⁻²² for float16, whose normal range is 6.1e-5 to
    65504: larger numbers become infinite, and smaller ones lose digits.

    Args:
        to: ``"bfloat16"`` or ``"float16"``.

    Raises:
        ConfigError: another type.

    Example:
        >>> Cast("bfloat16").encode(None, jnp.array([1.0, 3.14159]))[0].decode().tolist()
        [1.0, 3.140625]
    """

    to: str = eqx.field(static=True, default="bfloat16")

    def __check_init__(self) -> None:
        if self.to not in ("bfloat16", "float16"):
            raise ConfigError("to", self.to, "give 'bfloat16' or 'float16'")

    def compress(self, key: Array, x: Array) -> Tree:
        # Rounded by an operation of its own: compilers leave out a cast there and back.
        kind = jnp.finfo(self.to)
        return jax.lax.reduce_precision(x, kind.nexp, kind.nmant).astype(self.to)

    def restore(self, parts: Tree, form: Form) -> Array:
        return parts.astype(form.kind)

    def bits(self, form: Form) -> int:
        return 16 * form.size

    def alpha(self, d: int) -> float:
        return 1 - 2.0 ** (-2 * (jnp.finfo(self.to).nmant + 1))


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

    rank: int = eqx.field(static=True, default=1)

    def __check_init__(self) -> None:
        check_count("rank", self.rank)

    def encode(self, key: Array, upload: Tree, memory: Tree = ()) -> tuple[Message, Tree]:
        form = Form.of(upload)
        parts = [self._factors(jax.random.fold_in(key, at), leaf) for at, leaf in enumerate(form.arrays(upload))]
        return Message(parts, self, form), memory

    def decode(self, message: Message) -> Tree:
        form, parts = message.form, message.parts
        leaves = [
            jnp.reshape(part[0] @ part[1].T, shape).astype(kind) if self._splits(shape) else part[0]
            for part, shape, kind in zip(parts, form.shapes, form.types, strict=True)
        ]
        return form.from_arrays(leaves)

    def bits(self, form: Form) -> int:
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


class Rotated(Compressor):
    """Another compressor's message of the vector rotated at random, which makes its numbers of one size; its ω and α.

    Signs are turned around at random, then a Hadamard transform mixes all numbers; d is filled up with zeros to a power
    of two. A message is one of ``of``, and 64 bits out of which the signs are drawn again.

    Args:
        of: a compressor without memory, such as ``QSGD(4)``, or a table of one.

    Raises:
        ConfigError: ``of`` is no compressor, or has memory.

    Source: Suresh et al. 2017, "Distributed mean estimation with limited communication", Section 3.

    Example:
        >>> x = jnp.zeros(16).at[3].set(4.0)
        >>> Rotated(Sign()).encode(jax.random.key(0), x)[0].decode()[3].item()
        4.0
    """

    of: Compressor = eqx.field(converter=lambda given: compressor(given, "of"))

    def __check_init__(self) -> None:
        _check_of(self, "of")

    def compress(self, key: Array, x: Array) -> Tree:
        seed = _seed(key)
        filled = jnp.pad(x, (0, _power_of_two(x.size) - x.size))
        rotated = _hadamard(self._signs(seed, filled) * filled)
        return {"of": self.of.encode(jax.random.fold_in(key, 0), rotated)[0].parts, "seed": seed}

    def restore(self, parts: Tree, form: Form) -> Array:
        rotated = _hadamard(self.of.decode(Message(parts["of"], self.of, _filled(form))))
        return (self._signs(parts["seed"], rotated) * rotated)[: form.size]

    def bits(self, form: Form) -> int:
        return self.of.bits(_filled(form)) + _SEED_BITS

    def omega(self, d: int) -> Number | None:
        return self.of.omega(_power_of_two(d))

    def alpha(self, d: int) -> Number | None:
        return self.of.alpha(_power_of_two(d))

    def pack(self, parts: Tree, form: Form) -> np.ndarray:
        return np.concatenate([packed([parts["seed"]]), self.of.pack(parts["of"], _filled(form))])

    def unpack(self, file: np.ndarray, form: Form) -> Tree:
        (seed,), _ = unpacked(file[: _SEED_BITS // 8], [((2,), np.uint32)])
        return {"of": self.of.unpack(file[_SEED_BITS // 8 :], _filled(form)), "seed": seed}

    def _signs(self, seed: Array, x: Array) -> Array:
        """[D] −1 or 1."""
        return (1 - 2 * independent(jnp.arange(x.size), 2, _key_of(seed))).astype(x.dtype)


class ErrorFeedback(Compressor):
    """What a message lacks, e, is added to the client's next one: C(x + e) is sent, and e ← x + e − C(x + e).

    For contractive compressors, which without it lead to a wrong point, or to none. An unbiased ``of`` is scaled by
    1/(1 + ω), which makes it contractive. The memory is as large as the upload, and stays as it was where the new one
    would not be finite.

    Args:
        of: a compressor without memory, such as ``TopK(0.01)``, or a table of one.

    Raises:
        ConfigError: ``of`` is no compressor, or has memory.

    Source: Seide et al. 2014; Stich et al. 2018, Algorithm 1.

    Example:
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
        form = Form.of(upload)
        return [jnp.zeros(shape, kind) for shape, kind in zip(form.shapes, form.types, strict=True)]

    def encode(self, key: Array, upload: Tree, memory: Tree = ()) -> tuple[Message, Tree]:
        form = Form.of(upload)
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

    def bits(self, form: Form) -> int:
        return self.of.bits(form)

    def alpha(self, d: int) -> Number | None:
        """Of C, which is applied to x + e."""
        alpha, omega = self.of.alpha(d), self.of.omega(d)
        return 1 / (1 + omega) if alpha is None and omega is not None else alpha

    def pack(self, parts: Tree, form: Form) -> np.ndarray:
        return self.of.pack(parts, form)

    def unpack(self, file: np.ndarray, form: Form) -> Tree:
        return self.of.unpack(file, form)


_SEED_BITS = 64


def _is_known(number: Number) -> bool:
    """Whether a number has a value yet."""
    return not isinstance(number, jax.core.Tracer)


def _count(share: Number, d: int) -> Number:
    """⌈share·d⌉ ≥ 1 of a share in whole millionths: in integers, so that a program and its host agree."""
    if _is_known(share):
        millionths: Number = int(np.rint(np.float32(share) * np.float32(1e6)))
        most: Number = max
    else:
        millionths = jnp.rint(jnp.asarray(share, jnp.float32) * jnp.float32(1e6)).astype(jnp.int32)
        most = jnp.maximum
    millions, rest = divmod(d, 10**6)
    # Of millionths · rest, which 32 bits do not hold: thousands, and what is left.
    thousands, left = divmod(rest, 1000)
    whole, part = millionths * thousands // 1000, millionths * thousands % 1000
    return most(1, millionths * millions + whole - (-(part * 1000 + millionths * left) // 10**6))


def _ratio(a: Number, b: Number) -> Number:
    """a/b of whole numbers, one of which may be traced: two of 32 bits would divide to float32, whatever JAX has."""
    return a / b if _is_known(a) and _is_known(b) else jnp.asarray(a, float) / jnp.asarray(b, float)


def _place_bits(d: int) -> int:
    return (d - 1).bit_length()


def _sign_and_exponent(form: Form) -> int:
    return 8 * form.kind.itemsize - int(jnp.finfo(form.kind).nmant)


def _at(places: np.ndarray, numbers: np.ndarray, form: Form) -> np.ndarray:
    """[d] with numbers at places, and zeros."""
    x = np.zeros(form.size, form.kind)
    x[places] = numbers
    return x


def _largest(x: Array, k: Array) -> Array:
    """Which k numbers of [d] are largest in size; of equal ones the first."""
    whole = jnp.dtype(f"int{8 * x.dtype.itemsize}")
    size = jax.lax.bitcast_convert_type(jnp.abs(x), whole)  # of numbers ≥ 0 in the same order
    # Passes over the numbers, one a bit: many times faster than sorting them, or than a cumulative sum of equal ones.
    bound = _most(whole, 8 * whole.itemsize - 1, lambda bound: jnp.sum(size >= bound, dtype=jnp.int32) >= k)
    equal, rest = size == bound, k - jnp.sum(size > bound, dtype=jnp.int32)
    places = jnp.arange(x.size, dtype=jnp.int32)
    last = _most(places.dtype, x.size.bit_length(), lambda at: jnp.sum(equal & (places < at), dtype=jnp.int32) < rest)
    return (size > bound) | (equal & (places <= last))


def _most(kind: "np.dtype[Unknown]", bits: int, holds: Callable[[Array], Array]) -> Array:
    """The largest whole number of so many bits for which something holds that holds for all smaller ones too."""

    def add(at: Array, low: Array) -> Array:
        bound = low | jnp.left_shift(jnp.ones((), kind), bits - 1 - at.astype(kind))
        return jnp.where(holds(bound), bound, low)

    return jax.lax.fori_loop(0, bits, add, jnp.zeros((), kind))


def _norm(x: Array) -> Array:
    """‖x‖; scaled by the largest number first, as the square of 1e30 is no number in float32."""
    most = jnp.max(jnp.abs(x), initial=0)
    scale = jnp.where(most > 0, most, 1)
    return most * jnp.sqrt(jnp.sum((x / scale) ** 2))


def _seed(key: Array) -> Array:
    """64 bits that a message carries, [2]."""
    return jax.random.bits(key, (2,), jnp.uint32)


def _key_of(seed: Array) -> Array:
    return jax.random.wrap_key_data(jnp.asarray(seed), impl="threefry2x32")


def _power_of_two(d: int) -> int:
    return 1 << max(0, d - 1).bit_length()


def _filled(form: Form) -> Form:
    """Of the vector that is filled up to a power of two."""
    return Form.of(jax.ShapeDtypeStruct((_power_of_two(form.size),), form.kind))


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
        way_out = "of a compressor that has memory there is none" if kind == own else f"give {own}({kind}(…)) instead"
        raise ConfigError(field, inner, way_out)


COMPRESSORS = Registry("compress")
COMPRESSORS.add("top-k", TopK)
COMPRESSORS.add("random-k", RandomK)
COMPRESSORS.add("qsgd", QSGD)
COMPRESSORS.add("natural", Natural)
COMPRESSORS.add("sign", Sign)
COMPRESSORS.add("powersgd", PowerSGD)
COMPRESSORS.add("cast", Cast)
COMPRESSORS.add("rotated", Rotated)
COMPRESSORS.add("identity", Identity)
COMPRESSORS.add("error-feedback", ErrorFeedback)


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
    if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
        raise ConfigError(field, given, "give a fedax Compressor, such as fedax.TopK(0.1), or {name = 'top-k', …}")
    table = dict(given)
    found: Compressor = COMPRESSORS.bind(table.pop("name"), table, section=field)[0]
    return found
