"""Certificates of the link, keys of nodes and runs, and the check whether a link can be reached and trusted."""

import contextlib
import datetime
import functools
import ipaddress
import os
import re
import socket
import ssl
import urllib.request
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, SECP384R1
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey as _Key
from cryptography.hazmat.primitives.asymmetric.ec import generate_private_key as generate
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedax.errors import ConfigError, NodeError
from fedax.files import check_private, write_atomic, write_private
from fedax.sites.protocol.roster import private_key

_PRIVATE = re.compile(rb"-----BEGIN PRIVATE KEY-----.*?-----END PRIVATE KEY-----", re.DOTALL)
_PEM, _OPENSSH = serialization.Encoding.PEM, serialization.Encoding.OpenSSH
_NO_PASSWORD = serialization.NoEncryption()
_DAYS = 730  # for which a server's certificate is valid
_AHEAD = 30  # days before its end that it is renewed


def make_authority(folder: Path) -> None:
    """Make ``ca.pem``, ``ca.key`` and ``secret`` in a folder, the first valid for ten years, where they are missing.

    Raises:
        ConfigError: ``secret`` holds no key.
    """
    if not (folder / "secret").exists():
        _write_keys(folder / "secret", [generate(SECP256R1())])
    if not ((folder / "ca.pem").exists() and (folder / "ca.key").exists()):
        _new_authority(folder, [])
    elif not all(_public_pem(key) in (folder / "ca.pem").read_text() for key in _secrets(folder)):
        _write_authorities(folder, _authorities(folder))


def load_secret(folder: Path) -> _Key:
    """The key with which runs at a link sign, from ``secret`` of its folder.

    Raises:
        ConfigError: the folder is not that of a link, others than its owner can read the key, or it is none.
    """
    for name in ("ca.pem", "secret"):
        if not (folder / name).is_file():
            raise ConfigError("folder", str(folder), f"it has no {name}; give the folder of `fedax deploy link`")
    check_private(folder / "secret", "secret")
    return _secrets(folder)[0]


def _secrets(folder: Path) -> list[_Key]:
    """The keys of runs: the one that signs, and the one that will, where sites are given another."""
    if not (found := _keys_in((folder / "secret").read_bytes())):
        reason = "it holds no private key: remove it, start `fedax deploy link`, and give the new ca.pem to every site"
        raise ConfigError("secret", str(folder / "secret"), reason)
    return found


@functools.lru_cache(maxsize=8)
def _keys_in(content: bytes) -> list[_Key]:
    try:
        keys = [serialization.load_pem_private_key(each, None) for each in _PRIVATE.findall(content)]
    except ValueError:
        return []
    return [key for key in keys if isinstance(key, _Key)]


def make_server(folder: Path, hosts: Sequence[str], days: float = _DAYS) -> None:
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
    names = [_name_of(host) for host in hosts]
    with contextlib.suppress(Exception):  # whatever is wrong with one, a new one is made
        old = _server(folder)
        soon = _now() + datetime.timedelta(days=_AHEAD)
        known = any(_issued(each, old) for each in _authorities(folder)) and (folder / "server.key").exists()
        if known and old.not_valid_after_utc > soon and {*_names_in(old)} >= {*names}:
            return
    _new_server(folder, names, days)


def renew(folder: Path, authority: bool = False) -> datetime.datetime:
    """Make another certificate of the server, or another authority, for a link that may run meanwhile.

    With a new authority comes a new key of runs. Both are written into ``ca.pem`` beside the old ones, so that sites
    with this file trust all. The server's certificate stays that of the old authority, and runs sign with the old key,
    until it is renewed; then only the new ones are left.

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
    if not authority:
        renewed = _new_server(folder, _names_in(_server(folder)), _DAYS)
        _write_keys(folder / "secret", _secrets(folder)[-1:])
        _write_authorities(folder, [_signer(folder)[1]])
        return renewed.not_valid_after_utc
    newest = _authorities(folder)[0]
    if not _issued(newest, _server(folder)):
        reason = "one is new already; when all sites have its ca.pem, `fedax deploy link renew` without --ca takes it"
        raise ConfigError("ca", True, reason)
    _write_keys(folder / "secret", [*_secrets(folder), generate(SECP256R1())])
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
    key = generate(SECP384R1())
    certificate = _certificate(key, key, 3650)
    # In this order: a key without its certificate would sign certificates that nobody trusts.
    _write_authorities(folder, [certificate, *before])
    _write_keys(folder / "ca.key", [key])
    return certificate


def _new_server(folder: Path, names: Sequence[x509.GeneralName], days: float) -> x509.Certificate:
    key, (signer, authority) = generate(SECP384R1()), _signer(folder)
    certificate = _certificate(key, signer, days, authority.subject, names)
    _write_keys(folder / "server.key", [key])
    write_atomic(folder / "server.pem", certificate.public_bytes(_PEM))
    return certificate


def _certificate(
    key: _Key, signer: _Key, days: float, issuer: x509.Name | None = None, names: Sequence[x509.GeneralName] = ()
) -> x509.Certificate:
    """The certificate of a server by its names, or of an authority, which has no ``issuer``."""
    called = str(names[0].value)[:64] if names else "fedax link"
    subject, authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, called)]), issuer is None
    # to sign; not for contents, keys, data, agreement; to sign certificates and lists of them; neither way alone
    usage = x509.KeyUsage(True, False, False, False, False, authority, authority, False, False)
    builder = (
        x509.CertificateBuilder(issuer or subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(_now() - datetime.timedelta(days=1 - min(days, 0)))
        .not_valid_after(_now() + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
        .add_extension(usage, critical=True)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return builder.sign(signer, hashes.SHA384())


def _write_keys(path: Path, keys: Iterable[_Key]) -> None:
    form = _PEM, serialization.PrivateFormat.PKCS8, _NO_PASSWORD
    write_private(path, b"".join(key.private_bytes(*form) for key in keys))


def _public_pem(key: _Key) -> str:
    return key.public_key().public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()


def _write_authorities(folder: Path, authorities: Iterable[x509.Certificate]) -> None:
    """Write ``ca.pem``: the certificates, and the public keys of runs."""
    texts = [each.public_bytes(_PEM).decode() for each in authorities]
    write_atomic(folder / "ca.pem", "".join([*texts, *map(_public_pem, _secrets(folder))]))


def _server(folder: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())


def _authorities(folder: Path) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates((folder / "ca.pem").read_bytes())


def _signer(folder: Path) -> tuple[_Key, x509.Certificate]:
    """The key that signs, and its certificate."""
    key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(key, _Key)
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
        key = generate(SECP256R1())
        write_private(path, key.private_bytes(_PEM, serialization.PrivateFormat.OpenSSH, _NO_PASSWORD))
    if made or not public.exists():
        text = private_key(path).public_key().public_bytes(_OPENSSH, serialization.PublicFormat.OpenSSH)
        public.write_bytes(text + b"\n")
    return made


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
        context = Trust(ca)
    except OSError as error:  # ssl.SSLError is one
        reason = f"no certificate in PEM form ({error}); the link's folder has ca.pem"
        raise ConfigError("ca", str(ca), reason) from error
    try:
        with socket.create_connection((host, port), timeout=5) as plain:
            context.wrap_socket(plain, server_hostname=host).close()
    except ssl.SSLCertVerificationError as error:
        raise NodeError(f"the link at {address} cannot be trusted: {_reason(error, host, ca)}") from error
    except OSError as error:
        return str(error.strerror or error)
    return None


def by_proxy(address: str) -> str:
    """That requests to a link take a proxy, with the variable that says so and the way out; empty: they do not."""
    host = split(address)[0]
    proxies = urllib.request.getproxies_environment()
    scheme = next((scheme for scheme in ("https", "all") if proxies.get(scheme)), None)
    if scheme is None or urllib.request.proxy_bypass_environment(host, proxies):  # type: ignore[attr-defined]
        return ""
    names = [name for name in os.environ if name.lower() == f"{scheme}_proxy"]
    return f", by the proxy that the variable {min(names, key=str.isupper)} names; no_proxy={host} leaves it out"


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
        self._path = path
        self.load_verify_locations(path)

    def wrap_socket(self, sock: socket.socket, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        """Begin a connection."""
        with contextlib.suppress(OSError):  # ssl.SSLError is one
            self.load_verify_locations(self._path)
        sock.getpeername()  # raises where the other end has gone; ssl would leave out the handshake, or leak
        return super().wrap_socket(sock, *args, **kwargs)


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
    another = f"its certificate is not for {host}; start `fedax deploy link` with --host {host}"
    known = {  # OpenSSL's numbers
        9: "its certificate is not valid yet; set the clock of this machine",
        10: "its certificate has expired; `fedax deploy link`, started anew, renews it",
        62: another,
        64: another,
    }
    usual = f"its certificate is not signed by {ca} ({error.verify_message}); take ca.pem from the link's folder"
    return known.get(error.verify_code, usual)


def _issued(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _names_in(certificate: x509.Certificate) -> list[x509.GeneralName]:
    return list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)


def _name_of(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
