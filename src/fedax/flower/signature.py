"""A node's signature of each request: of its time, path and body. Flower's own signature covers the time only.

With Flower's signature alone, anyone who saw one request of a node could send others in its name for five minutes. So a
request has two more headers: the digest of its body, and a signature of time, path and digest. The link accepts each
signature once.
"""

import base64
import binascii
import datetime
import functools
import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import httpx
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

SIGNATURE, DIGEST = "fedax-signature", "fedax-digest"  # headers
HEADERS = (FLEET_HTTP_PUBLIC_KEY_HEADER.lower(), TIMESTAMP_HEADER.lower(), SIGNATURE, DIGEST)
_HASH = ec.ECDSA(hashes.SHA256())


class Signer(NodeAuthHttpInterceptor):
    """Replaces Flower's interceptor: signs whole requests."""

    def __init__(self, private_key: ec.EllipticCurvePrivateKey, public_key: ec.EllipticCurvePublicKey):
        super().__init__(private_key, public_key)
        self._key = private_key

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Flower's hook around one request."""

        def signed(inner: ProtobufRequestContext) -> httpx.Response:
            headers, digest = inner.request.headers, hashlib.sha256(inner.request.content).hexdigest()
            text = _text(headers[TIMESTAMP_HEADER], inner.request.url.path, digest)
            headers[DIGEST] = digest
            headers[SIGNATURE] = base64.b64encode(self._key.sign(text, _HASH)).decode()
            return call_next(inner)

        return super().intercept(context, signed)


class Signed(NamedTuple):
    """The signed fields of a node's request, from its headers.

    Attributes:
        key: the node's public key, as Flower's SuperLink knows it.
        at: when it was signed, in seconds of Unix time.
        digest: SHA-256 of the body, in hexadecimal digits.
        text: what was signed.
        signature: of the text; not checked yet.
    """

    key: bytes
    at: float
    digest: str
    text: bytes
    signature: bytes

    @classmethod
    def read(cls, headers: Mapping[str, str], path: str) -> "Signed":
        """Parse the headers, which may hold anything.

        Args:
            headers: those of :data:`HEADERS`.
            path: where the request goes.

        Raises:
            ValueError: one is missing, or not of its form.
        """
        try:
            key, time, signature, digest = (headers[name] for name in HEADERS)
            signed_at = datetime.datetime.fromisoformat(time)
            if signed_at.tzinfo is None or not (signature and digest):
                raise ValueError("a time without its zone, or no signature")
            return cls(
                base64.b64decode(key, validate=True),
                signed_at.timestamp(),
                digest,
                _text(time, path, digest),
                base64.b64decode(signature, validate=True),
            )
        except (KeyError, OverflowError, UnicodeError, binascii.Error) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error

    def is_of_key(self) -> bool:
        """Whether the key made the signature. Only for registered keys: checking a crafted one may take long."""
        try:
            _public(self.key).verify(self.signature, self.text, _HASH)
        except InvalidSignature:
            return False
        return True


@functools.lru_cache(maxsize=1024)
def _public(key: bytes) -> ec.EllipticCurvePublicKey:
    public = load_pem_public_key(key)
    assert isinstance(public, ec.EllipticCurvePublicKey)  # the link registers no others
    return public


def _text(time: str, path: str, digest: str) -> bytes:
    return f"fedax request\n{time}\n{path}\n{digest}".encode()
