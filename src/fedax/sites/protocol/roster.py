"""The roster: the public keys of a federation's nodes, on which their owners have agreed."""

import base64
import binascii
import hashlib
import os
import pathlib
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fedax.errors import ConfigError, NodeError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

_WAY_OUT = "each owner gives the node's file KEY.pub to all others, and names their folder: roster in node.toml"


class Roster:
    """The registered keys of the nodes, and the private one of this node, with which it signs.

    These are the keys by which the link knows the nodes; a node trusts only those in its own folder.

    Args:
        folder: has ``KEY.pub`` of each node, this one among them: public keys of elliptic curves, in OpenSSH's form. It
            is read when it is first needed.
        key: the file of this node's private key.
    """

    def __init__(self, folder: str | os.PathLike[str], key: str | os.PathLike[str]):
        self.folder, self.key = pathlib.Path(folder), pathlib.Path(key)

    @property
    def name(self) -> str:
        """The name of this node: the digest of its public key."""
        return _name(self._private.public_key())

    @property
    def digest(self) -> str:
        """A digest of all keys: it is the same at all nodes whose owners have agreed on the same nodes."""
        return hashlib.sha256("\n".join(sorted(self.names)).encode()).hexdigest()[:16]

    @property
    def names(self) -> dict[str, str]:
        """The name of each node -> the name of its file, for people."""
        return {name: file for name, (file, _) in self._known.items()}

    def signed(self, text: bytes) -> str:
        """A signature of this node: ECDSA with SHA-256, in base64."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        return base64.b64encode(self._private.sign(text, ec.ECDSA(hashes.SHA256()))).decode()

    def check(self, name: str, text: bytes, signature: str) -> None:
        """Check that a node of the roster has signed a text.

        Raises:
            NodeError: there is no such node, or the signature is not its.
        """
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        if name not in self._known:
            raise NodeError(f"a node that is not in its roster is to take part ({str(name)[:80]!r}); {_WAY_OUT}")
        file, public = self._known[name]
        try:
            public.verify(base64.b64decode(signature, validate=True), text, ec.ECDSA(hashes.SHA256()))
        except (InvalidSignature, binascii.Error, TypeError, ValueError):
            raise NodeError(f"what node {file!r} is said to have signed is not signed by it") from None

    @cached_property
    def _private(self) -> "EllipticCurvePrivateKey":
        return private_key(self.key)

    @cached_property
    def _known(self) -> "dict[str, tuple[str, EllipticCurvePublicKey]]":
        """The name of each node -> the name of its file, and its public key."""
        keys = {path.stem: public_key(path, "roster") for path in sorted(self.folder.glob("*.pub"))}
        found = {_name(public): (file, public) for file, public in keys.items()}
        if self.name not in found:
            raise ConfigError("roster", str(self.folder), f"the key of this node, {self.key}.pub, is not in it")
        return found


def private_key(path: pathlib.Path) -> "EllipticCurvePrivateKey":
    """A node's private key.

    Raises:
        ConfigError: the file is no private EC key in OpenSSH's form.
    """
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    key: EllipticCurvePrivateKey = _read(path, "key", "private", lambda content: load_ssh_private_key(content, None))
    return key


def public_key(path: pathlib.Path, field: str) -> "EllipticCurvePublicKey":
    """A node's public key; ``field``: what the command that reads it calls it.

    Raises:
        ConfigError: the file is no public EC key in OpenSSH's form.
    """
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    key: EllipticCurvePublicKey = _read(path, field, "public", load_ssh_public_key)
    return key


def _read(path: pathlib.Path, field: str, which: str, load: Callable[[bytes], Any]) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = load(path.read_bytes())
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(field, str(path), f"no {which} key in OpenSSH's form ({error})") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey):
        raise ConfigError(field, str(path), "give an elliptic-curve key: ssh-keygen -t ecdsa -b 384")
    return key


def _name(public: "EllipticCurvePublicKey") -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return hashlib.sha256(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()[:32]
