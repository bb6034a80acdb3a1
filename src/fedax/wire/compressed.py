"""Compression of the uploads of any method: a layer around it, of which the method itself does not know."""

from collections.abc import Mapping
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from fedax.contract.algorithm import Algorithm, Exchange, Layer
from fedax.contract.compression import Compressor, is_message
from fedax.contract.compressors import Cast, Identity, Rotated, compressor
from fedax.contract.settings import Settings
from fedax.contract.types import Array, Tree, Unknown
from fedax.contract.vector import Vector
from fedax.errors import ConfigError
from fedax.wire.sums import is_change

_MESSAGE = 2**31 - 2  # folded into a client's key of an exchange: its gradients have the numbers of local steps

Leaves = tuple[jax.ShapeDtypeStruct, ...]  # arrays of one upload, each once


class Compression(Settings):
    """How uploads and downloads are compressed.

    Args:
        up: of uploads; ``None``: not at all.
        down: of downloads; unbiased or a :class:`fedax.Cast`, and without memory.

    Raises:
        ConfigError: no compressors, or one that downloads cannot have.

    Example:
        >>> from fedax.contract.compressors import TopK
        >>> Compression.of({"name": "top-k", "share": 0.1})
        Compression(up=TopK(share=0.1))
        >>> Compression.of({"up": {"name": "sign"}, "down": {"name": "cast"}})
        Compression(up=Sign(), down=Cast())
    """

    up: Compressor | None = None
    down: Compressor | None = None

    def __check_init__(self) -> None:
        if self.down is not None and (self.down.keeps or (self.down.omega(1) is None and not _casts(self.down))):
            hint = (
                "what all clients receive has no memory of what earlier messages lacked: give an unbiased compressor, "
                "such as QSGD(16) or Natural(), or Cast()"
            )
            raise ConfigError("compress.down", self.down, hint)

    @classmethod
    def of(cls, given: Unknown) -> "Compression":
        """From a compressor of uploads, from ``{"up": …, "down": …}``, or from tables of these; ``None``: none."""
        if given is None or isinstance(given, cls):
            return given or cls()
        if isinstance(given, Mapping) and given and set(given) <= {"up", "down"}:
            return cls(
                **{way: compressor(table, f"compress.{way}") for way, table in given.items() if table is not None}
            )
        return cls(compressor(given))


class CompressedMemory(NamedTuple):
    """A client's memory: the method's own, and for each exchange the compressor's, the error of the messages so far."""

    own: Tree
    residuals: tuple[Tree, ...]


class Compressed(Layer):
    """A method whose clients send each upload as one message.

    Where the compressor has a memory, the uploads of the warm-up are sent whole: their error could never be sent later.

    Args:
        inner: the method itself.
        up: the compressor.
        forms: for each exchange of a round, the arrays of its upload; none where clients only receive.
    """

    up: Compressor
    forms: tuple[Leaves, ...] = eqx.field(static=True)

    def init_client(self, x: Vector) -> Tree:
        own = self.inner.init_client(x)
        return CompressedMemory(own, tuple(map(self.up.init, self.forms))) if self.up.keeps else own

    def own_memory(self, memory: Tree) -> Tree:
        return memory.own if self.up.keeps else memory

    def _around(self, stage: str, number: int, exchange: Exchange) -> Exchange:
        def client(download: Tree, memory: Tree, oracle: Unknown) -> tuple[Tree, Tree]:
            kept = memory if self.up.keeps else CompressedMemory(memory, ())
            upload, own = exchange.client(download, kept.own, oracle)
            residuals = kept.residuals
            if exchange.server is not None and not (self.up.keeps and stage == "warmup"):
                key = jax.random.fold_in(oracle.key, _MESSAGE)
                upload, after = self.up.encode(key, upload, residuals[number] if self.up.keeps else ())
                if self.up.keeps:
                    residuals = (*residuals[:number], after, *residuals[number + 1 :])
            return upload, CompressedMemory(own, residuals) if self.up.keeps else own

        return exchange._replace(client=client)


def check_compressible(method: Algorithm, up: Compressor, uploads: list[Tree]) -> None:
    """Raise a ConfigError for a method whose uploads this compressor cannot compress.

    Args:
        method: the method.
        uploads: pytrees of ``jax.ShapeDtypeStruct``, of all its exchanges.
    """
    name = method.traits().name or type(method).__name__
    if hasattr(method, "compress"):
        raise ConfigError("compress", up, f"{name} compresses by itself: set its own field, compress")
    for upload in uploads:
        parts = jax.tree.leaves(upload, is_leaf=lambda part: is_message(part) or is_change(part))
        if any(map(is_message, parts)):
            raise ConfigError("compress", up, f"{name} sends messages of its own already; leave compress out")
        if any(map(is_change, parts)) and not (up.keeps or isinstance(up, Identity)):
            hint = (
                f"{name} uploads changes of what its clients keep, and its server adds them up: what a message lacks "
                f"would never come; give ErrorFeedback({up!r})"
            )
            raise ConfigError("compress", up, hint)
        for leaf in jax.tree.leaves(upload):
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise ConfigError("compress", up, f"{name} uploads {leaf.dtype}, and real numbers alone are compressed")


def encoded(down: Compressor, download: Tree, key: Array, known: list[tuple[Array, Tree]]) -> Tree:
    """A download with a message instead of each array of real numbers.

    Args:
        down: the compressor.
        download: a pytree.
        key: the round's, the same for all messages of the round, so that an array that is sent twice has one message.
        known: the arrays of the round so far, and their messages; new ones are added.
    """

    def message(leaf: Array) -> Tree:
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            return leaf
        found = next((each for array, each in known if array is leaf), None)
        if found is None:
            found = down.encode(key, leaf)[0]
            known.append((leaf, found))
        return found

    return jax.tree.map(message, download)


def _casts(how: Compressor) -> bool:
    return isinstance(how, Cast) or (isinstance(how, Rotated) and _casts(how.of))
