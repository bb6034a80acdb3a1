"""fedax's messages as Flower's: a JSON text, and bytes for the tensors. Never pickle.

Flower sends a message, its table of records, each record and each array in separate requests, and handling requests
takes most of a round at the link. So the text and small tensors go inside the message, which makes one request out of
three. Large tensors go as an array, which Flower cuts into pieces.
"""

import json

import flwr.app
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    add_header_to_object_body,
    get_object_body,
    get_object_head_values_from_object_content,
)
from flwr.supercore.inflatable.inflatable_utils import inflatable_class_registry

from fedax.engine.places.nodes import Message

_SMALL = 1 << 20  # bytes
_LONGEST, _DEEPEST = 8 << 20, 64  # characters of a head, and levels of nesting in it
_FORM = "safetensors"  # how Flower's array names its bytes; Flower itself does not read them


class FlowerMessage(flwr.app.Message):
    """A message of Flower's that carries its records itself, where none of them is an array."""

    __qualname__ = "Message"  # the class name by which Flower decodes it at the other end

    @property
    def children(self) -> dict[str, InflatableObject] | None:
        """The parts that are sent in separate requests."""
        return None if self.has_content() and not self.content.array_records else super().children

    def deflate(self) -> bytes:
        """The message as bytes."""
        if self.children or not self.has_content():
            return super().deflate()
        proto = message_to_proto(self)
        proto.metadata.message_id = ""  # it is made from these bytes
        return add_header_to_object_body(proto.SerializeToString(deterministic=True), self)

    @classmethod
    def inflate(cls, object_content: bytes, children: dict[str, InflatableObject] | None = None) -> flwr.app.Message:
        """The message in bytes."""
        if get_object_head_values_from_object_content(object_content)[1]:
            return super().inflate(object_content, children)
        return message_from_proto(ProtoMessage.FromString(get_object_body(object_content, cls)))


inflatable_class_registry["Message"] = FlowerMessage


def pack(message: Message) -> RecordDict:
    """A message as records."""
    head: dict[str, str | bytes] = {"json": json.dumps(message.head)}
    if 0 < len(message.tensors) <= _SMALL:
        head["tensors"] = message.tensors
    records = RecordDict({"head": ConfigRecord(head)})  # type: ignore[arg-type]
    if len(message.tensors) > _SMALL:
        array = Array("uint8", (len(message.tensors),), _FORM, message.tensors)
        records["tensors"] = ArrayRecord({"0": array})
    return records


def unpack(records: RecordDict) -> Message:
    """The message in records.

    Raises:
        ValueError: they are not of the form that :func:`pack` makes.
    """
    try:
        record = records.config_records["head"]
        head, small = _head(str(record["json"])), record.get("tensors", b"")
        arrays = records.array_records.get("tensors")
        array = None if arrays is None else arrays["0"]
    except (KeyError, ValueError, RecursionError) as error:
        raise ValueError(f"no message of fedax: {type(error).__name__}: {error}") from error
    if not isinstance(head, dict) or (array is not None and array.stype != _FORM):
        raise ValueError("no message of fedax: its head is no JSON object, or its tensors are not safetensors")
    if not isinstance(small, bytes) or (small and array is not None):
        raise ValueError("no message of fedax: its tensors are no bytes, or there twice")
    return Message(head, small if array is None else array.data)


def _head(text: str) -> object:
    """The JSON of a head; a head that would take too much memory, or is nested too deep, is an error."""
    if len(text) > _LONGEST:
        raise ValueError(f"its head has {len(text)} characters, and {_LONGEST} are taken")
    parts = text.count("[") + text.count("{") + text.count('"') // 2
    if parts > 10_000 + len(text) // 5:  # each takes 50 bytes and more
        raise ValueError(f"its head has {parts} lists, tables and texts in {len(text)} characters")
    head = json.loads(text)
    layer = [head]
    for _ in range(_DEEPEST):
        layer = [inner for each in layer if isinstance(each, dict | list)
                 for inner in (each.values() if isinstance(each, dict) else each)]  # fmt: skip
    if layer:
        raise ValueError(f"its head is nested more than {_DEEPEST} deep")
    return head
