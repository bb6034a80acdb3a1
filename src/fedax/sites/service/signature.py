"""Signatures of requests, questions and answers, and the public keys by which they are checked.

Nodes and runs each sign with a key of theirs, the link with that of runs: ECDSA with SHA-256. What a text is for is
signed with it, so that none can be taken for another.
"""

import base64
import contextlib
import functools
import hashlib
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey, EllipticCurvePublicKey

from fedax.errors import ConfigError, NodeError
from fedax.sites.protocol.roster import public_key

REQUEST, QUESTION, ANSWER, GREETING = "request", "question", "answer", "greeting"  # what a signature is for
_HASH = ECDSA(hashes.SHA256())
_LOOK = 1.0  # seconds between looks into a folder of keys
_PUBLIC = re.compile(rb"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.DOTALL)


def sign(key: EllipticCurvePrivateKey, purpose: str, text: str) -> str:
    """A signature of a text, in base64; ``purpose``: one of this module's."""
    return base64.b64encode(key.sign(f"fedax {purpose}\n{text}".encode(), _HASH)).decode()


def is_signed(key: EllipticCurvePublicKey, purpose: str, text: str, signature: str) -> bool:
    """Whether the owner of a key has signed a text for a purpose. Only for known keys: a crafted one may take long."""
    try:
        key.verify(base64.b64decode(signature, validate=True), f"fedax {purpose}\n{text}".encode(), _HASH)
    except (InvalidSignature, ValueError):  # not base64, or characters that are none
        return False
    return True


def number_of(key: EllipticCurvePublicKey) -> int:
    """The number by which a key's owner is known: of 63 bits, from the key itself."""
    content = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return int.from_bytes(hashlib.sha256(content).digest()[:8]) >> 1


class Known(NamedTuple):
    """A node whose public key is in the link's folder.

    Attributes:
        name: of the key's file.
        key: the public key.
        since: when the file was last written, in Unix time.
    """

    name: str
    key: EllipticCurvePublicKey
    since: float


class Keys:
    """The nodes whose public keys are in a folder, which is looked into again every second.

    Args:
        folder: ``nodes`` of the link's folder.
        say: is called with lines for people, on nodes that are new or removed, and on files that hold no key.

    Attributes:
        known: by the nodes' numbers.
    """

    def __init__(self, folder: Path, say: Callable[[str], None] = lambda line: None):
        self._folder, self._say, self._next = folder, say, 0.0
        self._seen: dict[Path, int] = {}
        self.known: dict[int, Known] = {}

    def look(self) -> dict[int, Known]:
        """The nodes that are known now. A folder that is gone is no reason to forget them."""
        if time.monotonic() < self._next:
            return self.known
        self._next = time.monotonic() + _LOOK
        try:
            files = {path: path.stat().st_mtime_ns for path in sorted(self._folder.iterdir()) if path.suffix == ".pub"}
        except OSError:  # the folder is gone, or a file of it at this moment
            return self.known
        if files != self._seen:
            before, known = self.known, dict[int, Known]()
            for path, written in files.items():
                try:
                    key = public_key(path, "nodes")
                    known[number_of(key)] = Known(path.stem, key, written / 1e9)
                except ConfigError as error:
                    if self._seen.get(path) != written:
                        self._say(str(error))
            self._seen, self.known = files, known
            for number in known.keys() - before.keys():
                self._say(f"node {known[number].name} is {number}")
            for number in before.keys() - known.keys():
                self._say(f"node {before[number].name} is no longer known: its key was removed")
        return self.known


def run_keys(ca: Path) -> dict[int, EllipticCurvePublicKey]:
    """The public keys of runs in ``ca.pem``, by their numbers; questions are checked by them.

    Raises:
        NodeError: there is none.
    """
    if not (found := _keys_in(ca.read_bytes())):
        raise NodeError(f"{ca} has no key of runs: take ca.pem from the link's folder, of this version of fedax")
    return found


class RunKeys:
    """The public keys of runs in ``ca.pem``, which is read at each look.

    Args:
        ca: the file.

    Raises:
        NodeError: there is none in it.
    """

    def __init__(self, ca: Path):
        self._ca, self._known = ca, run_keys(ca)

    def look(self) -> dict[int, EllipticCurvePublicKey]:
        """The keys by their numbers; while the file is being replaced, those that it had before."""
        with contextlib.suppress(OSError, NodeError, ValueError):
            self._known = run_keys(self._ca)
        return self._known


@functools.lru_cache(maxsize=8)
def _keys_in(content: bytes) -> dict[int, EllipticCurvePublicKey]:
    keys = [serialization.load_pem_public_key(text) for text in _PUBLIC.findall(content)]
    return {number_of(key): key for key in keys if isinstance(key, EllipticCurvePublicKey)}


class Stamp(NamedTuple):
    """Who signed a request, when, and what its body is.

    Attributes:
        number: of the key.
        start: the random name of the link's start for which it was made.
        at: by the link's clock, in seconds.
        nonce: random; a request is taken once.
        digest: SHA-256 of the body, in hexadecimal digits.
    """

    number: int
    start: str
    at: float
    nonce: str
    digest: str

    def header(self, key: EllipticCurvePrivateKey, target: str) -> str:
        """The header ``authorization`` of a request; ``target``: its method and path."""
        fields = f"{self.number} {self.start} {self.at:.3f} {self.nonce} {self.digest}"
        return f"fedax {fields} {sign(key, REQUEST, request_text(fields, target))}"

    @classmethod
    def read(cls, header: str) -> "tuple[Stamp, str, str]":
        """The stamp of a header, which may hold anything; the text of it that was signed; and the signature.

        Raises:
            ValueError: it is not of this form.
        """
        scheme, number, start, at, nonce, digest, signature = header.split(" ")
        stamp = cls(int(number), start, float(at), nonce, digest)
        if scheme != "fedax" or not re.fullmatch(r"[0-9a-f]{32} [0-9a-f]{64}", f"{nonce} {digest}"):
            raise ValueError("it is of another form")
        return stamp, " ".join((number, start, at, nonce, digest)), signature


def request_text(fields: str, target: str) -> str:
    """What is signed of a request: the fields of its stamp, and where it goes."""
    return f"{fields}\n{target}"


def stamped(key: EllipticCurvePrivateKey, start: str, at: float, digest: str) -> Stamp:
    """A new stamp."""
    return Stamp(number_of(key.public_key()), start, at, secrets.token_hex(16), digest)
