"""The layers that a run puts around a method: turns of personal models, compression of uploads, noise on their sums."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax

from fedax.contract.algorithm import Algorithm, layers_of
from fedax.contract.compression import Compressor, is_message
from fedax.contract.personal import has_personal
from fedax.contract.types import Array, Tree
from fedax.engine import private
from fedax.engine.dry_run import DryRun
from fedax.engine.memory import ClientMemory
from fedax.engine.plan import ExchangeForm, sent
from fedax.engine.turns import LastTurn
from fedax.wire.compressed import Compressed, check_compressible
from fedax.wire.privacy import Private
from fedax.wire.wire import Wire

Forms = tuple[list[ExchangeForm], list[ExchangeForm]]  # of the exchanges of the warm-up, and of a round


class Layered(NamedTuple):
    """A method with its layers.

    Attributes:
        method: with all layers, as the rounds run it.
        compressed: without the layer of noise.
        made: the dry run of ``method``.
    """

    method: Algorithm
    compressed: Algorithm
    made: DryRun


def layered(
    method: Algorithm,
    made: DryRun,
    up: Compressor | None,
    wire: Wire,
    trace: Callable[[Algorithm, Wire], DryRun],
    complete: Callable[[Private], Private] = lambda layer: layer,
) -> Layered:
    """Put the layers of a run around its method. Each layer is made for the forms of the exchanges inside of it.

    Args:
        method, wire: those of the run.
        made: the dry run of the method alone, on the wire :func:`inside` of the layers.
        up: the compressor of uploads; ``None``: they are not compressed.
        trace: makes the dry run of a method and a wire.
        complete: puts the numbers of a run into the layer of noise.

    Raises:
        ConfigError: the uploads cannot be compressed.
    """
    if has_personal(method):
        method = LastTurn(method)
        made = trace(method, inside(wire))
    if up is not None:
        method = _compressed(method, up, made.forms)
        made = trace(method, inside(wire))
    if wire.privacy is None:
        return Layered(method, method, made)
    noisy_method = complete(private.noise_layer(method, wire.privacy, made.forms))
    return Layered(noisy_method, method, trace(noisy_method, wire))


def inside(wire: Wire) -> Wire:
    """The wire inside of the layer of noise; secure sums need that layer's clip, and are left out with it."""
    return wire if wire.privacy is None else dataclasses.replace(wire, privacy=None, secure=None)


def _compressed(method: Algorithm, up: Compressor, forms: Forms) -> Compressed:
    """The method with compressed uploads; ``forms``: those of its own exchanges."""
    with_uploads = [form for stage in forms for form in stage if jax.tree.leaves(form.upload, is_leaf=is_message)]
    check_compressible(method, up, [form.upload for form in with_uploads])
    arrays = [[leaf for leaf, new in zip(sent(form.upload), form.distinct, strict=True) if new] for form in forms[1]]
    return Compressed(method, up, tuple(map(tuple, arrays)))


def compressors_of(method: Algorithm, wire: Wire) -> tuple[Compressor | None, Compressor | None]:
    """The compressors of a run's downloads, and of its uploads."""
    parts = jax.tree.leaves(method, is_leaf=is_compressor)
    return wire.down, next((part for part in parts if is_compressor(part)), None)


def is_compressor(part: Tree) -> bool:
    """Whether a part of a method is a compressor."""
    return isinstance(part, Compressor)


def known_forms(forms: Forms, method: Algorithm, wire: Wire) -> Forms:
    """Forms whose messages have the compressors of the method and of the wire, so that their bits are known."""
    down, up = compressors_of(method, wire)
    warmup, exchanges = ([form.by(down, up) for form in stage] for stage in forms)
    return warmup, exchanges


def own_state(method: Algorithm, server: Tree) -> Tree:
    """The method's own part of the server's state."""
    for layer in layers_of(method):
        server = layer.own_state(server)
    return server


def own_memory(method: Algorithm, memory: Tree) -> Tree:
    """The method's own part of the memory of all clients, or of some rows of it."""
    if isinstance(memory, ClientMemory):
        return memory if own_memory(method, memory.row) is memory.row else OwnMemory(method, memory)
    for layer in layers_of(method):
        memory = layer.own_memory(memory)
    return memory


class OwnMemory:
    """The method's own part of client memory that holds more; gives rows as :class:`ClientMemory` does."""

    def __init__(self, method: Algorithm, memory: ClientMemory):
        self._method, self._memory = method, memory

    def __len__(self) -> int:
        return len(self._memory)

    def __getitem__(self, ids: Array) -> Tree:
        return own_memory(self._method, self._memory[ids])
