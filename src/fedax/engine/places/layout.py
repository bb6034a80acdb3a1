"""The layout of a pytree with messages on a real wire: each message as its bytes, and the other arrays as they are."""

from typing import NamedTuple

import jax
import numpy as np

from fedax.contract.compression import ArrayForm, Compressor, Message, is_message
from fedax.contract.types import Tree, Unknown
from fedax.engine.plan import sent
from fedax.errors import NodeError


class Layout(NamedTuple):
    """Where a pytree has messages, and the forms of its leaves; hashable.

    Attributes:
        structure: that of the pytree; each message is one leaf.
        first: for each leaf, the place of the first leaf that is the same, which alone is sent.
        forms: for each leaf, the form of the arrays that a message stands for, or ``None``; and its own structure and
            arrays, as shapes and types.
        compressors: for each leaf, the compressor of a message, if it has no traced numbers; else ``None``.
    """

    structure: Unknown
    first: tuple[int, ...]
    forms: tuple[tuple[ArrayForm | None, Unknown, tuple[jax.ShapeDtypeStruct, ...]], ...]
    compressors: tuple[Compressor | None, ...]

    @classmethod
    def of(cls, tree: Tree, first: tuple[int, ...] | None = None) -> "Layout":
        """The layout of a pytree of ``jax.ShapeDtypeStruct`` and messages of these."""
        leaves, forms = sent(tree), []
        for leaf in leaves:
            arrays, structure = jax.tree.flatten(leaf.parts if is_message(leaf) else leaf)
            plain = tuple(jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays)
            forms.append((leaf.form if is_message(leaf) else None, structure, plain))
        whole = jax.tree.structure(tree, is_leaf=is_message)
        known = lambda leaf: leaf.how if is_message(leaf) and not jax.tree.leaves(leaf.how) else None  # noqa: E731
        first = tuple(range(len(leaves))) if first is None else first
        return cls(whole, first, tuple(forms), tuple(map(known, leaves)))

    @property
    def messages(self) -> bool:
        """Whether there are any messages."""
        return any(form is not None for form, _, _ in self.forms)

    def on_wire(self, compressor: Compressor, number: int) -> dict[str, Tree]:
        """The arrays on the wire for ``number`` such pytrees, as ``jax.ShapeDtypeStruct``."""
        forms: dict[str, Tree] = {}
        for place, (form, _, arrays) in enumerate(self.forms):
            if self.first[place] == place:
                if form is None:
                    forms[str(place)] = jax.ShapeDtypeStruct((number, *arrays[0].shape), arrays[0].dtype)
                else:
                    length = (self.compressors[place] or compressor).length(form)
                    forms[str(place)] = jax.ShapeDtypeStruct((number, length), np.uint8)
        return forms

    def packed(self, parts: list[Tree], compressor: Compressor, number: int) -> dict[str, np.ndarray]:
        """The arrays on the wire for the parts of some pytrees, [number, ...]."""
        arrays = {}
        for place, (form, _, _) in enumerate(self.forms):
            if self.first[place] == place:
                part = jax.tree.map(np.asarray, parts[place])
                if form is None:
                    arrays[str(place)] = part[:number]
                else:
                    single = [jax.tree.map(lambda leaf, k=k: leaf[k], part) for k in range(number)]
                    arrays[str(place)] = np.stack(
                        [(self.compressors[place] or compressor).pack(one, form) for one in single]
                    )
        return arrays

    def unpacked(self, arrays: dict[str, np.ndarray], compressor: Compressor, what: str) -> list[Tree]:
        """The parts, arrays [number, ...], from the arrays on the wire.

        Raises:
            NodeError: bytes that are no message; it calls them ``what``.
        """
        parts: list[Tree] = []
        for place, (form, _, _) in enumerate(self.forms):
            array = arrays.get(str(place))
            if self.first[place] != place:
                parts.append(parts[self.first[place]])
            elif form is None:
                parts.append(array)
            else:
                try:
                    decoded = [(self.compressors[place] or compressor).unpack(file, form) for file in np.asarray(array)]
                except ValueError as error:
                    raise NodeError(f"{what}: {error}") from error
                parts.append(jax.tree.map(lambda *leaves: np.stack(leaves), *decoded))
        return parts

    def parts(self, tree: Tree) -> list[Tree]:
        """The arrays of a pytree's leaves, and the parts of its messages."""
        return [leaf.parts if is_message(leaf) else leaf for leaf in sent(tree)]

    def whole(self, parts: list[Tree], compressor: Compressor) -> Tree:
        """The pytree that has these parts."""
        leaves = [
            part if form is None else Message(part, own or compressor, form)
            for part, (form, _, _), own in zip(parts, self.forms, self.compressors, strict=True)
        ]
        return jax.tree.unflatten(self.structure, leaves)

    def nothing(self, number: int) -> list[Tree]:
        """Parts of ``number`` pytrees of zeros."""
        zero = lambda leaf: np.zeros((number, *leaf.shape), leaf.dtype)  # noqa: E731
        return [jax.tree.unflatten(structure, list(map(zero, arrays))) for _, structure, arrays in self.forms]
