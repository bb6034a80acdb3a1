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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedax.errors import ConfigError, NodeError
from fedax.files import check_private, write_atomic, write_private
from fedax.sites.protocol.roster import private_key

_PEM = serialization.Encoding.PEM
_PRIVATE = re.compile(rb"-----BEGIN PRIVATE KEY-----.*?-----END PRIVATE KEY-----", re.DOTALL)
_Private = ec.EllipticCurvePrivateKey
_NO_PASSWORD = serialization.NoEncryption()
_AHEAD = 30  # days before its end that a server's certificate is renewed


def make_authority(folder: Path) -> None:
    """Make ``ca.pem``, ``ca.key`` and ``secret`` in a folder, the first valid for ten years, where they are missing.

    Raises:
        ConfigError: ``secret`` holds no key.
    """
    if not (folder / "secret").exists():
        write_private(folder / "secret", _private_pem(ec.generate_private_key(ec.SECP256R1())))
    if not ((folder / "ca.pem").exists() and (folder / "ca.key").exists()):
        _new_authority(folder, [])
    elif not all(_public_pem(key) in (folder / "ca.pem").read_text() for key in _secrets(folder)):
        _write_authorities(folder, _authorities(folder))


def load_secret(folder: Path) -> _Private:
    """The key with which runs at a link sign, from ``secret`` of its folder.

    Raises:
        ConfigError: the folder is not that of a link, others than its owner can read the key, or it is none.
    """
    for name in ("ca.pem", "secret"):
        if not (folder / name).is_file():
            raise ConfigError("folder", str(folder), f"it has no {name}; give the folder of `fedax deploy link`")
    check_private(folder / "secret", "secret")
    return _secrets(folder)[0]


def _secrets(folder: Path) -> list[_Private]:
    """The keys of runs: the one that signs, and the one that will, where sites are given another."""
    if not (found := _keys_in((folder / "secret").read_bytes())):
        raise ConfigError(
            "secret", str(folder / "secret"),
            "it holds no private key: remove it, start `fedax deploy link`, and give the new ca.pem to every site",
        )  # fmt: skip
    return found


@functools.lru_cache(maxsize=8)
def _keys_in(content: bytes) -> list[_Private]:
    try:
        keys = [serialization.load_pem_private_key(each, None) for each in _PRIVATE.findall(content)]
    except ValueError:
        return []
    return [key for key in keys if isinstance(key, _Private)]


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
    server = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
    if not authority:
        names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        renewed = _new_server(folder, [str(each.value) for each in names], days=730)
        write_private(folder / "secret", _private_pem(_secrets(folder)[-1]))
        _write_authorities(folder, [_signer(folder)[1]])
        return renewed.not_valid_after_utc
    newest = _authorities(folder)[0]
    if not _issued(newest, server):
        reason = "one is new already; when all sites have its ca.pem, `fedax deploy link renew` without --ca takes it"
        raise ConfigError("ca", True, reason)
    secrets = [*_secrets(folder), ec.generate_private_key(ec.SECP256R1())]
    write_private(folder / "secret", b"".join(map(_private_pem, secrets)))
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
    certificate = _certificate("fedax link", key, key, None, 3650)
    # In this order: a key without its certificate would sign certificates that nobody trusts.
    _write_authorities(folder, [certificate, *before])
    write_private(folder / "ca.key", _private_pem(key))
    return certificate


def _new_server(folder: Path, hosts: Sequence[str], days: float) -> x509.Certificate:
    signer, authority = _signer(folder)
    key = ec.generate_private_key(ec.SECP384R1())
    certificate = _certificate(hosts[0][:64], key, signer, authority, days, hosts)
    write_private(folder / "server.key", _private_pem(key))
    write_atomic(folder / "server.pem", certificate.public_bytes(_PEM).decode())
    return certificate


def _certificate(
    name: str, key: _Private, signer: _Private, issuer: x509.Certificate | None, days: float, hosts: Sequence[str] = ()
) -> x509.Certificate:
    """The certificate of a server, or of an authority, which has no ``issuer``."""
    subject, authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), issuer is None
    # to sign; not for contents, keys, data, agreement; to sign certificates and lists of them; neither way alone
    usage = x509.KeyUsage(True, False, False, False, False, authority, authority, False, False)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - datetime.timedelta(days=1 - min(days, 0)))
        .not_valid_after(_now() + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
        .add_extension(usage, critical=True)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName(list(map(_alternative, hosts))), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return builder.sign(signer, hashes.SHA384())


def _write_authorities(folder: Path, authorities: Sequence[x509.Certificate]) -> None:
    """Write ``ca.pem``: the certificates, and the public keys of runs."""
    texts = [each.public_bytes(_PEM).decode() for each in authorities]
    write_atomic(folder / "ca.pem", "".join([*texts, *map(_public_pem, _secrets(folder))]))


def _authorities(folder: Path) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates((folder / "ca.pem").read_bytes())


def _signer(folder: Path) -> tuple[_Private, x509.Certificate]:
    """The key that signs, and its certificate."""
    key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(key, _Private)
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
        key = ec.generate_private_key(ec.SECP256R1())
        write_private(path, key.private_bytes(_PEM, serialization.PrivateFormat.OpenSSH, _NO_PASSWORD))
    if made or not public.exists():
        text = (
            private_key(path)
            .public_key()
            .public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        )
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


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private_pem(key: _Private) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, _NO_PASSWORD)


def _public_pem(key: _Private) -> str:
    return key.public_key().public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
