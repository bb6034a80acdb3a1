"""Certificates of the link, keys of the nodes, and the check whether a link can be reached and trusted."""

import contextlib
import datetime
import ipaddress
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedax.engine.places.roster import private_key, public_key
from fedax.errors import ConfigError, NodeError
from fedax.files import write_atomic, write_private

_PEM = serialization.Encoding.PEM
_NO_PASSWORD = serialization.NoEncryption()
_AHEAD = 30  # days before its end that a server's certificate is renewed


def make_authority(folder: Path) -> None:
    """Make ``ca.pem`` and ``ca.key`` in a folder, valid for ten years, where they are missing."""
    if not ((folder / "ca.pem").exists() and (folder / "ca.key").exists()):
        _new_authority(folder, [])


def make_server(folder: Path, hosts: Sequence[str], days: float = 730) -> None:
    """Make ``server.pem`` and ``server.key`` in a folder with an authority.

    They are kept where they are there, name all ``hosts``, are of an authority in ``ca.pem``, and end in more than 30
    days.

    Args:
        folder: where ``ca.pem`` and ``ca.key`` are.
        hosts: names and IP addresses by which the server is reached.
        days: how long the certificate is valid.

    Raises:
        ConfigError: ``ca.key`` is not the key of a certificate in ``ca.pem``.
    """
    if not ((folder / "server.key").exists() and _still_good(folder, hosts)):
        _new_server(folder, hosts, days)


def renew(folder: Path, authority: bool = False) -> datetime.datetime:
    """Make another certificate of the server, or another authority, for a link that may run meanwhile.

    A new authority is written first in ``ca.pem``, and the old one after it, so that sites with this file trust both.
    The server's certificate stays that of the old authority until it is renewed; then only the new authority is left in
    ``ca.pem``.

    Args:
        folder: of a link.
        authority: whether to make another authority.

    Returns:
        Until when the new certificate is valid.

    Raises:
        ConfigError: the folder is not that of a link, or the server's certificate is not of the authority that came
            last, so that another new one would be one too many.
    """
    for name in ("ca.pem", "ca.key", "server.pem", "server.key"):
        if not (folder / name).is_file():
            raise ConfigError("folder", str(folder), f"it has no {name}; give the folder of `fedax deploy link`")
    server = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
    if not authority:
        names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        renewed = _new_server(folder, [str(each.value) for each in names], days=730)
        write_atomic(folder / "ca.pem", _signer(folder)[1].public_bytes(_PEM).decode())
        return renewed.not_valid_after_utc
    newest = _authorities(folder)[0]
    if not _issued(newest, server):
        reason = "one is new already; when all sites have its ca.pem, `fedax deploy link renew` without --ca takes it"
        raise ConfigError("ca", True, reason)
    return _new_authority(folder, [newest]).not_valid_after_utc


def until(folder: Path) -> dict[str, float]:
    """When the certificates of a link's folder end, in seconds of Unix time, by the names of their files.

    A file that is not there, or holds none, is left out; of several in a file the first counts.
    """
    ends = {}
    for name in ("server.pem", "ca.pem"):
        with contextlib.suppress(OSError, ValueError):
            certificate = x509.load_pem_x509_certificate((folder / name).read_bytes())
            ends[name] = certificate.not_valid_after_utc.timestamp()
    return ends


def _new_authority(folder: Path, before: Sequence[x509.Certificate]) -> x509.Certificate:
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedax link")])
    usage = _usage(sign_certificates=True)
    certificate = (
        _begun(name, name, key.public_key(), days=3650)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    # In this order: a key without its certificate would sign certificates that nobody trusts.
    write_atomic(folder / "ca.pem", "".join(each.public_bytes(_PEM).decode() for each in (certificate, *before)))
    write_private(folder / "ca.key", _private_pem(key))
    return certificate


def _new_server(folder: Path, hosts: Sequence[str], days: float) -> x509.Certificate:
    signer, authority = _signer(folder)
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    server_use = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    certificate = (
        _begun(name, authority.subject, key.public_key(), days)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(server_use, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA384())
    )
    write_private(folder / "server.key", _private_pem(key))
    write_atomic(folder / "server.pem", certificate.public_bytes(_PEM).decode())
    return certificate


def _authorities(folder: Path) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates((folder / "ca.pem").read_bytes())


def _signer(folder: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """The key that signs, and its certificate."""
    key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    for each in _authorities(folder):
        if each.public_key() == key.public_key():
            return key, each
    raise ConfigError("folder", str(folder), "ca.key is not the key of ca.pem; restore one of them from a copy")


def make_node_key(path: Path) -> bool:
    """Make a node's key pair ``path`` and ``path.pub`` where it is missing.

    Returns:
        Whether it was made now.
    """
    public = path.with_name(f"{path.name}.pub")
    made = not path.exists()
    if made:
        path.parent.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP384R1())
        write_private(path, key.private_bytes(_PEM, serialization.PrivateFormat.OpenSSH, _NO_PASSWORD))
    if made or not public.exists():
        text = (
            private_key(path)
            .public_key()
            .public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        )
        public.write_bytes(text + b"\n")
    return made


def load_public(path: Path) -> bytes:
    """A node's public key, in the form in which Flower's SuperLink knows it.

    Raises:
        ConfigError: as :func:`public_key`.
    """
    public: bytes = public_key(path, "nodes").public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return public


def connection_problem(address: str, ca: Path) -> str | None:
    """Connect to a link by TLS, as any of its clients will, and return what is wrong.

    Args:
        address: ``host:port``.
        ca: the certificate of the authority that signed the link's.

    Returns:
        ``None`` if there is a link; the reason if there is none now, but may be later.

    Raises:
        NodeError: the link's certificate is not good; waiting does not help.
        ConfigError: the address or the file cannot be used.
    """
    host, port = split(address)
    try:
        context = ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            "ca", str(ca), f"no certificate in PEM form ({error}); the link's folder has ca.pem"
        ) from error
    try:
        with (
            socket.create_connection((host, port), timeout=5) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            pass
    except ssl.SSLCertVerificationError as error:
        raise NodeError(f"the link at {address} cannot be trusted: {_reason(error, host, ca)}") from error
    except OSError as error:  # ssl.SSLError is one
        return str(error.strerror or error)
    return None


class Trust(ssl.SSLContext):
    """A client's TLS context for a link; each new connection trusts the certificates that a file holds at that time.

    A certificate that the file no longer holds is trusted until the process ends.

    Args:
        path: ``ca.pem`` of the link's folder.

    Raises:
        OSError: it cannot be read, or holds no certificate. Later, what it held before counts.
    """

    def __new__(cls, path: Path) -> "Trust":
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, path: Path):
        self._path, self._known = path, b""
        self._look()

    def _look(self) -> None:
        content = self._path.read_bytes()
        if content != self._known:
            self.load_verify_locations(cadata=content.decode("ascii", "replace"))
            self._known = content

    def wrap_socket(self, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        """Begin a connection."""
        with contextlib.suppress(OSError):  # ssl.SSLError is one
            self._look()
        return super().wrap_socket(*args, **kwargs)


def split(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``.

    Raises:
        ConfigError: it is not of this form.

    Example:
        >>> split("[::1]:9443")
        ('::1', 9443)
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError("link", address, "give HOST:PORT, such as hospital.example:9443")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ConfigError("link", address, "give an address of IPv6 in brackets, such as [::1]:9443")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _reason(error: ssl.SSLCertVerificationError, host: str, ca: Path) -> str:
    match error.verify_code:  # OpenSSL's numbers
        case 10:
            return "its certificate has expired; `fedax deploy link`, started anew, renews it"
        case 9:
            return "its certificate is not valid yet; set the clock of this machine"
        case 62 | 64:
            return f"its certificate is not for {host}; start `fedax deploy link` with --host {host}"
    return f"its certificate is not signed by {ca} ({error.verify_message}); take ca.pem from the link's folder"


def _issued(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _still_good(folder: Path, hosts: Sequence[str]) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except Exception:  # whatever is wrong with it, a new one is made
        return False
    ends = certificate.not_valid_after_utc - datetime.timedelta(days=_AHEAD)
    known = any(_issued(each, certificate) for each in _authorities(folder))
    return known and ends > _now() and set(names) >= {_alternative(host) for host in hosts}


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - datetime.timedelta(days=1 - min(days, 0)))
        .not_valid_after(_now() + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, _NO_PASSWORD)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
