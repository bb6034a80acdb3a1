"""fedax's messages as Flower's records: a text, and bytes where there are tensors. Never pickle.

Flower carries every record, and every array in one, by requests of their own. So small tensors go in the text's record,
which halves the number of requests; large ones go as an array, which Flower cuts into pieces.
"""

import json

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedax.engine.places.nodes import Message

_SMALL = 1 << 20  # bytes
_FORM = "safetensors"  # how Flower's array names its bytes; Flower itself does not read them


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
        head, small = json.loads(str(record["json"])), record.get("tensors", b"")
        arrays = records.array_records.get("tensors")
        array = None if arrays is None else arrays["0"]
    except (KeyError, ValueError, RecursionError) as error:
        raise ValueError(f"no message of fedax: {type(error).__name__}: {error}") from error
    if not isinstance(head, dict) or (array is not None and array.stype != _FORM):
        raise ValueError("no message of fedax: its head is no JSON object, or its tensors are not safetensors")
    if not isinstance(small, bytes) or (small and array is not None):
        raise ValueError("no message of fedax: its tensors are no bytes, or there twice")
    return Message(head, small if array is None else array.data)
