"""Pytrees with messages in them on a real wire: each message as its bytes, and the other arrays as they are."""

from typing import NamedTuple

import jax
import numpy as np

from fedax.contract.compression import ArrayForm, Compressor, Message, is_message
from fedax.contract.types import Tree, Unknown
from fedax.engine.plan import sent
from fedax.errors import NodeError


class Layout(NamedTuple):
    """Where the messages of a pytree are, and what they stand for; hashable.

    Attributes:
        structure: of the pytree, of which each message is one leaf.
        first: of each leaf, the place of the first that is the same, which alone is sent.
        forms: of each leaf, the form of what a message stands for, or ``None``, and shapes and types of its arrays.
        hows: of each leaf, the compressor of a message that has one without numbers; else ``None``.
    """

    structure: Unknown
    first: tuple[int, ...]
    forms: tuple[tuple[ArrayForm | None, Unknown, tuple[jax.ShapeDtypeStruct, ...]], ...]
    hows: tuple[Compressor | None, ...]

    @classmethod
    def of(cls, tree: Tree, first: tuple[int, ...] | None = None) -> "Layout":
        """Of a pytree of ``jax.ShapeDtypeStruct`` and messages of these."""
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
        """Whether there are any."""
        return any(form is not None for form, _, _ in self.forms)

    def on_wire(self, how: Compressor, number: int) -> dict[str, Tree]:
        """What goes over the wire of ``number`` such pytrees, of ``jax.ShapeDtypeStruct``."""
        found: dict[str, Tree] = {}
        for place, (form, _, arrays) in enumerate(self.forms):
            if self.first[place] == place:
                if form is None:
                    found[str(place)] = jax.ShapeDtypeStruct((number, *arrays[0].shape), arrays[0].dtype)
                else:
                    length = (self.hows[place] or how).length(form)
                    found[str(place)] = jax.ShapeDtypeStruct((number, length), np.uint8)
        return found

    def packed(self, parts: list[Tree], how: Compressor, number: int) -> dict[str, np.ndarray]:
        """The same, of the parts of some pytrees, arrays [number, ...]."""
        found = {}
        for place, (form, _, _) in enumerate(self.forms):
            if self.first[place] == place:
                own = jax.tree.map(np.asarray, parts[place])
                if form is None:
                    found[str(place)] = own[:number]
                else:
                    each = [jax.tree.map(lambda leaf, k=k: leaf[k], own) for k in range(number)]
                    found[str(place)] = np.stack([(self.hows[place] or how).pack(one, form) for one in each])
        return found

    def unpacked(self, found: dict[str, np.ndarray], how: Compressor, what: str) -> list[Tree]:
        """The parts, arrays [number, ...], of what came over the wire.

        Raises:
            NodeError: ``what`` is no message.
        """
        parts: list[Tree] = []
        for place, (form, _, _) in enumerate(self.forms):
            own = found.get(str(place))
            if self.first[place] != place:
                parts.append(parts[self.first[place]])
            elif form is None:
                parts.append(own)
            else:
                try:
                    each = [(self.hows[place] or how).unpack(file, form) for file in np.asarray(own)]
                except ValueError as error:
                    raise NodeError(f"{what}: {error}") from error
                parts.append(jax.tree.map(lambda *leaves: np.stack(leaves), *each))
        return parts

    def parts(self, tree: Tree) -> list[Tree]:
        """What is in place of the leaves of a pytree: arrays, and parts of messages."""
        return [leaf.parts if is_message(leaf) else leaf for leaf in sent(tree)]

    def whole(self, parts: list[Tree], how: Compressor) -> Tree:
        """The pytree of its parts."""
        leaves = [
            part if form is None else Message(part, own or how, form)
            for part, (form, _, _), own in zip(parts, self.forms, self.hows, strict=True)
        ]
        return jax.tree.unflatten(self.structure, leaves)

    def nothing(self, number: int) -> list[Tree]:
        """Parts of ``number`` pytrees of zeros."""
        zero = lambda leaf: np.zeros((number, *leaf.shape), leaf.dtype)  # noqa: E731
        return [jax.tree.unflatten(structure, list(map(zero, arrays))) for _, structure, arrays in self.forms]
