"""Messages between a server and the nodes of real clients, of JSON and arrays, and the transport that carries them.

Arrays are sent as a safetensors file, named by their paths in the tree, and are checked against the form that the
receiver expects. No message contains code.

JAX, which is slow to import, is imported where arrays are: what only passes messages on does without.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import safetensors
import safetensors.numpy

from fedax.errors import NodeError

SEVERAL = "several"  # the kind of a message of several parts


class Message(NamedTuple):
    """A question, or an answer.

    Attributes:
        head: plain JSON; ``{"error": why}`` in place of an answer that could not be given.
        tensors: a safetensors file, or nothing.
    """

    head: dict[str, Any]
    tensors: bytes = b""

    @property
    def size(self) -> int:
        """Its bytes: those of the head as JSON, and of the tensors."""
        return len(json.dumps(self.head)) + len(self.tensors)


class Failure(NamedTuple):
    """A failure instead of an answer.

    Attributes:
        text: what happened.
        gone: whether the node cannot be reached, and may come back.
    """

    text: str
    gone: bool


_Answer = TypeVar("_Answer", Message | Failure, Message | None)
Talk = Generator[list[tuple[int, Message | Failure]], Mapping[int, Message], None]

_LARGE = 4096  # the size in bytes from which on zeros are left out
_WHERE, _WHAT = " where", " what"  # suffixes of an array's name: the places of its nonzero numbers, and these


class Transport(Protocol):
    """Carries messages to nodes, which are known by number."""

    @property
    def sent(self) -> int:
        """Bytes sent to the nodes so far, as measured on the wire."""

    @property
    def received(self) -> int:
        """Bytes received from the nodes so far."""

    def nodes(self) -> list[int]:
        """The nodes that are there now."""

    def ask(self, messages: Mapping[int, Message], timeout: float) -> Iterator[tuple[int, Message | Failure]]:
        """Ask some nodes; their answers as they come, and a failure for each that gives none in ``timeout`` seconds."""

    def talk(self, timeout: float) -> "Talk":
        """Ask nodes without an end: the generator is sent messages, and yields what has come by its next look.

        A node has ``timeout`` seconds for each message. A look takes less than a second, also where nothing comes.
        """


def packed(trees: Mapping[str, Any]) -> bytes:
    """Some pytrees of arrays as one safetensors file; the bits of every type of number are kept.

    Of a large array that is nearly all zeros, such as the histogram of a metric, only the others are in it, and where
    they are.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> file = packed({"upload": {"w": jnp.ones(2, jnp.bfloat16)}, "ids": np.arange(2)})
        >>> unpacked(file, {"upload": {"w": jax.ShapeDtypeStruct((2,), jnp.bfloat16)}, "ids": np.zeros(2, int)}, "it")
        {'ids': array([0, 1]), 'upload': {'w': array([1, 1], dtype=bfloat16)}}
        >>> len(packed({"histogram": np.zeros(10_000)})) < 300
        True
    """
    from fedax.engine.checkpoint import stored_kind

    arrays = {}
    for name, leaf in arrays_of(trees).items():
        array = np.ascontiguousarray(leaf).reshape(np.shape(leaf))
        array = array.view(stored_kind(array.dtype))
        if (places := _nonzero(array)) is None:
            arrays[name] = array
        else:
            arrays[name + _WHERE], arrays[name + _WHAT] = places, array.reshape(-1)[places]
    return safetensors.numpy.save(arrays) if arrays else b""


def _nonzero(array: np.ndarray) -> np.ndarray | None:
    """The places of the nonzero numbers, if that saves much space, else ``None``; -0.0 counts as nonzero."""
    size = array.dtype.itemsize
    if array.nbytes < _LARGE or array.size >= 2**32 or size not in (1, 2, 4, 8):
        return None
    bits = array.reshape(-1).view(f"u{size}")
    if np.count_nonzero(bits) * (4 + size) > array.nbytes / 4:
        return None
    return np.flatnonzero(bits).astype(np.uint32)


def _whole(array: np.ndarray, where: np.ndarray, form: Any, what: str) -> np.ndarray:
    """The array that was sent as its nonzero numbers."""
    whole = np.zeros(math.prod(form.shape), array.dtype)
    at = where.astype(np.int64)
    valid = where.dtype == np.uint32 and where.ndim == 1 and array.shape == where.shape
    if not valid or (at.size and (at[-1] >= whole.size or (np.diff(at) <= 0).any())):
        raise NodeError(f"{what} has places that cannot be")
    whole[at] = array
    return whole.reshape(form.shape)


def unpacked(file: bytes, forms: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The pytrees of a file that :func:`packed` made, after a check of their forms.

    Args:
        file: received bytes, which may be anything.
        forms: the expected pytrees, of arrays or of ``jax.ShapeDtypeStruct``.
        what: what the file should be, for errors.

    Raises:
        NodeError: it is no such file, or an array is missing, too much, or of another shape or type.
    """
    import jax

    from fedax.engine.checkpoint import stored_kind

    try:
        found = safetensors.numpy.load(file) if file else {}
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise NodeError(f"{what}: no arrays ({str(error)[:200]})") from error
    wanted = arrays_of(forms)
    for name in wanted.keys() - found.keys():
        if name + _WHERE in found and name + _WHAT in found:
            sparse = found.pop(name + _WHAT), found.pop(name + _WHERE)
            found[name] = _whole(*sparse, wanted[name], f"{what}: {name}")
    if differ := sorted(wanted.keys() ^ found.keys()):
        there = "is missing" if differ[0] in wanted else "is there and should not be"
        raise NodeError(f"{what}: {differ[0]} {there} ({len(found)} arrays, expected {len(wanted)})")
    leaves = []
    for name, form in wanted.items():
        kind, array = np.dtype(form.dtype), found[name]
        if array.shape != tuple(form.shape) or array.dtype != stored_kind(kind):
            should = f"{kind}{list(form.shape)}"
            raise NodeError(f"{what}: {name} is {array.dtype}{list(array.shape)}, expected {should}")
        leaves.append(array.view(kind))
    whole: dict[str, Any] = jax.tree.unflatten(jax.tree.structure(dict(forms)), leaves)
    return whole


def arrays_of(trees: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves of some pytrees by name, as :func:`packed` names them."""
    import jax

    return {jax.tree_util.keystr(at): leaf for at, leaf in jax.tree_util.tree_leaves_with_path(dict(trees))}


def joined(messages: Sequence[Message]) -> Message:
    """Several messages to one node as one, of kind ``several``. An array that several of them have is sent once.

    Example:
        >>> model = packed({"model": np.ones(3)})
        >>> both = joined([Message({"kind": "evaluate"}, model), Message({"kind": "exchange"}, model)])
        >>> len(both.tensors) < 2 * len(model), [part.head["kind"] for part in parted(both, 2)]
        (True, ['evaluate', 'exchange'])
    """
    if len(messages) == 1:
        return messages[0]
    arrays: dict[str, np.ndarray] = {}
    known: dict[tuple[str, tuple[int, ...], bytes], str] = {}
    parts = []
    for message in messages:
        names = {}
        arrays_in = safetensors.numpy.load(message.tensors) if message.tensors else {}
        for name, array in sorted(arrays_in.items()):  # the library gives them in any order
            content = (array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).digest())
            names[name] = known.setdefault(content, str(len(known)))
            arrays[names[name]] = array
        parts.append({"head": message.head, "arrays": names})
    return Message({"kind": SEVERAL, "parts": parts}, safetensors.numpy.save(arrays) if arrays else b"")


def heads_of(message: Message) -> list[dict[str, Any]]:
    """The heads of all parts of a message, or its own.

    Example:
        >>> both = joined([Message({"kind": "evaluate"}), joined([Message({"kind": "hello"}), Message({"run": 1})])])
        >>> heads_of(both), heads_of(Message({"kind": "hello"}))
        ([{'kind': 'evaluate'}, {'kind': 'hello'}, {'run': 1}], [{'kind': 'hello'}])
    """
    found, pending = [], [message.head]
    while pending:
        head = pending.pop(0)
        parts = head.get("parts") if head.get("kind") == SEVERAL else None
        if isinstance(parts, list):
            inner = [part.get("head") for part in parts if isinstance(part, dict)]
            pending = [each for each in inner if isinstance(each, dict)] + pending
        else:
            found.append(head)
    return found


def parted(message: Message, number: int, what: str = "the message") -> list[Message]:
    """The messages that :func:`joined` made one of.

    Args:
        message: a received message, which may be anything.
        number: how many messages there have to be; 0: any number.
        what: what it should be, for errors.

    Raises:
        NodeError: it is no such message, or of another number.
    """
    if number == 1:
        return [message]
    try:
        if message.head["kind"] != SEVERAL:
            raise ValueError(f"it is of kind {message.head['kind']!r}")
        parts = message.head["parts"]
        arrays = safetensors.numpy.load(message.tensors) if message.tensors else {}
        found = []
        for part in parts:
            part_arrays = {str(name): arrays[at] for name, at in part["arrays"].items()}
            if not isinstance(part["head"], dict):
                raise ValueError("a part of it has no head")
            found.append(Message(part["head"], safetensors.numpy.save(part_arrays) if part_arrays else b""))
        if not found or len(found) != (number or len(found)):
            raise ValueError(f"it has {len(found)} parts, expected {number}")
    except (safetensors.SafetensorError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise NodeError(f"{what}: no arrays, or not those of {number or 'its'} parts ({str(error)[:200]})") from error
    return found


def asked_together(
    questions: Sequence[Mapping[int, Message]], ask: Callable[[dict[int, Message]], Iterable[tuple[int, _Answer]]]
) -> tuple[list[dict[int, _Answer | Failure]], np.ndarray]:
    """Ask nodes several questions at once: the answers to each, and [questions, 2] its share of the bytes, both ways.

    Args:
        questions: the messages of each, by node.
        ask: sends one message to each node, and gives the answers as they come.

    Example:
        >>> questions = [{1: Message({"k": 1})}, {1: Message({"k": 2}), 2: Message({"k": 3})}]
        >>> answers, shares = asked_together(questions, lambda messages: messages.items())
        >>> answers == questions, shares.sum(0).tolist()
        (True, [1.0, 1.0])
    """
    askers = {node: [k for k, each in enumerate(questions) if node in each] for node in itertools.chain(*questions)}
    messages = {node: joined([questions[k][node] for k in ks]) for node, ks in askers.items()}
    answers: list[dict[int, _Answer | Failure]] = [{} for _ in questions]
    sizes = np.zeros((len(questions), 2))
    for node, answer in ask(messages) if messages else ():
        parts: Sequence[_Answer | Failure] = [answer] * len(askers[node])
        if isinstance(answer, Message) and "error" not in answer.head:
            try:
                parts = parted(answer, len(parts), "the answer")
            except NodeError as error:
                parts = [Failure(str(error), False)] * len(parts)
        for k, part in zip(askers[node], parts, strict=True):
            answers[k][node] = part
            sizes[k] += questions[k][node].size, part.size if isinstance(part, Message) else 0
    return answers, sizes / np.maximum(sizes.sum(0), 1)
