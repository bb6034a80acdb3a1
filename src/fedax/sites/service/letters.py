"""Letters: signed questions of a run to a node, and a node's signed answers, as they travel through the link.

A letter names its parts, the head and the tensors of a message, by their digests. The link sees who writes to whom, and
keeps the parts; it can change nothing without breaking a signature. The same part, such as the model for all nodes, is
sent to the link once.
"""

import hashlib
import json
import re
import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from fedax.sites.service import LONGEST
from fedax.sites.service.signature import ANSWER, QUESTION, sign

SMALL = 1 << 20  # bytes of a part that travels within a request
_LONGEST = 4096  # bytes of a letter
_HEX = re.compile(r"[0-9a-f]{32}|[0-9a-f]{64}")
Table = dict[str, Any]


class Refused(Exception):
    """A request that the link refuses.

    Args:
        status: of HTTP.
        why: in words.
    """

    def __init__(self, status: int, why: str):
        super().__init__(why)
        self.status = status


class Part(NamedTuple):
    """A part of a message: the SHA-256 of its bytes, in hexadecimal digits, and their number."""

    digest: str
    size: int


class Letter(NamedTuple):
    """A letter, whose signature the receiver checks.

    Attributes:
        id: random; an answer has that of its question.
        node: the number of the node that is asked, or answers.
        run: the random name of the run.
        start: the random name of the link's start for which the question was signed.
        until: when the question is over, by the link's clock.
        parts: the head, and the tensors if there are any.
        failed: of an answer, why there is none now; else empty.
        text: what was signed.
        signature: of the text.
    """

    id: str
    node: int
    run: str
    start: str
    until: float
    parts: tuple[Part, ...]
    failed: str
    text: str
    signature: str

    @classmethod
    def read(cls, given: object) -> "Letter":
        """A letter as it came, which may be anything.

        Raises:
            ValueError: it is no letter.
        """
        match given:
            case [str(text), str(signature)] if len(text) + len(signature) <= _LONGEST:
                try:
                    about = json.loads(text)
                except RecursionError:
                    raise ValueError("no letter: it is nested too deep") from None
            case _:
                raise ValueError("no letter")
        match about:
            case {"id": str(id), "node": int(node), "run": str(run), "start": str(start),
                  "until": int() | float() as until, "parts": list(parts), "failed": str(failed)}:  # fmt: skip
                pass
            case _:
                raise ValueError("no letter")
        parts_ = tuple(Part(*each) for each in parts if isinstance(each, list) and len(each) == 2)
        whole = all(isinstance(d, str) and _HEX.fullmatch(d) and type(n) is int and 0 <= n < 2**40 for d, n in parts_)
        if not (whole and len(parts_) == len(parts) and 1 <= len(parts) <= 2 and parts_[0].size <= LONGEST):
            raise ValueError("no letter: its parts are none")
        if not all(_HEX.fullmatch(each) for each in (id, run, start)):
            raise ValueError("no letter: its names are none")
        return cls(id, node, run, start, until, parts_, failed, text, signature)

    @property
    def sent(self) -> list[str]:
        """How it is sent."""
        return [self.text, self.signature]

    @property
    def size(self) -> int:
        """Its bytes, with its parts."""
        return len(self.text) + len(self.signature) + sum(part.size for part in self.parts)

    def answered(self, key: EllipticCurvePrivateKey, parts: Sequence[bytes], failed: str = "") -> "Letter":
        """The answer to this question, signed by the node."""
        fields = {"id": self.id, "node": self.node, "run": self.run, "start": self.start, "until": self.until}
        return _written(key, ANSWER, parts, fields | {"failed": failed[:300]})


def question(
    key: EllipticCurvePrivateKey, node: int, run: str, start: str, until: float, parts: Sequence[bytes], id: str
) -> Letter:  # fmt: skip
    """A question of a run, signed."""
    fields = {"id": id, "node": node, "run": run, "start": start, "until": until, "failed": ""}
    return _written(key, QUESTION, parts, fields)


def _written(key: EllipticCurvePrivateKey, purpose: str, parts: Sequence[bytes], fields: Table) -> Letter:
    """A signed letter with these parts and fields."""
    text = json.dumps({**fields, "parts": [(hashlib.sha256(each).hexdigest(), len(each)) for each in parts]})
    return Letter.read([text, sign(key, purpose, text)])


def packed(table: Table, parts: Iterable[bytes] = ()) -> bytes:
    """The body of a request or a response: JSON, and parts behind it.

    Example:
        >>> unpacked(packed({"has": []}, [b"abc"]))[1].values()
        dict_values([b'abc'])
    """
    parts = list(parts)
    head = json.dumps({**table, "sizes": [len(each) for each in parts]}).encode()
    return b"".join([struct.pack("<I", len(head)), head, *parts])


def unpacked(body: bytes, longest: int = 64 << 20) -> tuple[Table, dict[str, bytes]]:
    """The JSON of a body, of ``longest`` bytes at most, and the parts behind it by their digests.

    Raises:
        ValueError: it is of another form.
    """
    try:
        (size,) = struct.unpack_from("<I", body)
        if size > longest:
            raise ValueError(f"its JSON has {size} bytes, and {longest} are taken")
        table, at, parts = json.loads(body[4 : 4 + size]), 4 + size, {}
        for length in table["sizes"]:
            content = body[at : at + length] if type(length) is int and length >= 0 else b""
            if len(content) != length:
                raise ValueError("a part is cut off")
            parts[hashlib.sha256(content).hexdigest()] = content
            at += length
    except (struct.error, LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return table, parts
