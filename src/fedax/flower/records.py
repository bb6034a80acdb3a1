"""fedax's messages as Flower's records: a text, and one array of bytes where there are tensors. Never pickle."""

import json

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedax.engine.places.nodes import Message

_FORM = "safetensors"  # how Flower's array names its bytes; Flower itself does not read them


def pack(message: Message) -> RecordDict:
    """A message as records."""
    records = RecordDict({"head": ConfigRecord({"json": json.dumps(message.head)})})
    if message.tensors:
        array = Array("uint8", (len(message.tensors),), _FORM, message.tensors)
        records["tensors"] = ArrayRecord({"0": array})
    return records


def unpack(records: RecordDict) -> Message:
    """The message in records.

    Raises:
        ValueError: they are not of the form that :func:`pack` makes.
    """
    try:
        head = json.loads(str(records.config_records["head"]["json"]))
        arrays = records.array_records.get("tensors")
        array = None if arrays is None else arrays["0"]
    except (KeyError, ValueError) as error:
        raise ValueError(f"no message of fedax: {type(error).__name__}: {error}") from error
    if not isinstance(head, dict) or (array is not None and array.stype != _FORM):
        raise ValueError("no message of fedax: its head is no JSON object, or its tensors are not safetensors")
    return Message(head, b"" if array is None else array.data)
