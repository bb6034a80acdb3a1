"""Certificates and keys: renewed while a server serves with them, and private; test_deploy.py renews them in a run."""

import contextlib
import errno
import os
import shutil
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs pip install 'fedax[deploy]'")

from cryptography import x509
from typer.testing import CliRunner

from fedax.cli import app
from fedax.errors import ConfigError, NodeError
from fedax.sites.service import certificates, link, node
from fedax.sites.service.connections import Limits, Listener
from fedax.sites.service.processes import free_port
from fedax.sites.service.signature import number_of, run_keys

from .federation import wait_for


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """A link with the certificate of a folder; its address."""
    port = free_port()
    with Listener(("127.0.0.1", port), Limits()) as listener:
        made = link.Link(folder, say=lambda line: None)
        with link.serving(made, listener, (folder / "server.pem", folder / "server.key")):
            yield f"127.0.0.1:{port}"


def number_at(address: str, trust: ssl.SSLContext) -> int:
    """The serial number of the certificate that a new connection gets."""
    with (
        socket.create_connection(certificates.split(address)) as plain,
        trust.wrap_socket(plain, server_hostname="127.0.0.1") as made,
    ):
        content = made.getpeercert(binary_form=True)
    assert content is not None
    return x509.load_der_x509_certificate(content).serial_number


def number_in(path: Path) -> int:
    return x509.load_pem_x509_certificate(path.read_bytes()).serial_number


def test_new_connections_have_a_new_certificate(tmp_path: Path) -> None:
    link.prepare(tmp_path, ["127.0.0.1", "fed.example.org"])
    ca, before = (tmp_path / "ca.pem").read_bytes(), number_in(tmp_path / "server.pem")
    trust = certificates.Trust(tmp_path / "ca.pem")
    with serving(tmp_path) as address:
        assert number_at(address, trust) == before
        result = CliRunner().invoke(app, ["deploy", "link", "renew", "--folder", str(tmp_path)])
        assert result.exit_code == 0 and "new connections have it at once" in result.output, result.output
        after = number_in(tmp_path / "server.pem")
        assert after != before and (tmp_path / "ca.pem").read_bytes() == ca
        wait_for(lambda: number_at(address, trust) == after)
        link.prepare(tmp_path, ["127.0.0.1", "fed.example.org"])  # it names both, so it is kept
        assert number_in(tmp_path / "server.pem") == after
        (tmp_path / "server.key").write_text("half of a key")
        time.sleep(2.5)
        assert number_at(address, trust) == after  # files that do not belong together change nothing


def test_a_connection_that_is_gone_before_its_handshake_is_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed leaves such ones; ssl would return an object without a handshake, or leak."""
    link.prepare(tmp_path, ["127.0.0.1"])
    connect = socket.create_connection
    with socket.create_server(("127.0.0.1", 0)) as server:

        def gone(*args: Any, **kwargs: Any) -> socket.socket:
            plain = connect(*args, **kwargs)
            other, _ = server.accept()
            other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() resets
            other.close()
            with contextlib.suppress(ConnectionResetError):
                plain.recv(1)
            return plain

        monkeypatch.setattr(socket, "create_connection", gone)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert certificates.connection_problem(address, tmp_path / "ca.pem") == os.strerror(errno.ENOTCONN)


def test_both_authorities_are_trusted_in_between(tmp_path: Path) -> None:
    link.prepare(tmp_path, ["127.0.0.1"])
    early, late = (shutil.copy(tmp_path / "ca.pem", tmp_path / f"{name}.pem") for name in ("early", "late"))
    trust = certificates.Trust(early)
    with serving(tmp_path) as address:
        result = CliRunner().invoke(app, ["deploy", "link", "renew", "--folder", str(tmp_path), "--ca"])
        assert result.exit_code == 0 and "give it to every site" in result.output, result.output
        assert (tmp_path / "ca.pem").read_text().count("BEGIN CERTIFICATE") == 2
        shutil.copy(tmp_path / "ca.pem", early)
        for each in (early, late, tmp_path / "ca.pem"):
            assert certificates.connection_problem(address, Path(each)) is None
        again = CliRunner().invoke(app, ["deploy", "link", "renew", "--folder", str(tmp_path), "--ca"])
        assert again.exit_code == 2 and "one is new already" in again.output
        certificates.renew(tmp_path)
        wait_for(lambda: number_at(address, trust) == number_in(tmp_path / "server.pem"))  # the same object as before
        assert (
            certificates.connection_problem(address, Path(early)) is None
            and certificates.connection_problem(address, tmp_path / "ca.pem") is None
        )
        with pytest.raises(NodeError, match=r"is not signed by .*late.pem"):
            certificates.connection_problem(address, Path(late))
        assert (tmp_path / "ca.pem").read_text().count("BEGIN CERTIFICATE") == 1
        certificates.renew(tmp_path, authority=True)  # and once more
        assert certificates.connection_problem(address, tmp_path / "ca.pem") is None


def test_a_folder_that_is_no_links(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"it has no ca.pem; give the folder"):
        certificates.renew(tmp_path)
    link.prepare(tmp_path, ["a"])
    link.prepare(tmp_path / "other", ["a"])
    shutil.copy(tmp_path / "other" / "ca.key", tmp_path)
    with pytest.raises(ConfigError, match=r"ca.key is not the key of ca.pem"):
        certificates.renew(tmp_path)


@pytest.mark.parametrize("name", ["ca.key", "server.key", "secret"])
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_private_files_of_a_link(tmp_path: Path, name: str, mode: int) -> None:
    link.prepare(tmp_path / "link", ["127.0.0.1"])
    assert (tmp_path / "link").stat().st_mode & 0o777 == 0o700
    (path := tmp_path / "link" / name).touch()
    path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"{name}.*\(mode {mode:o}\).*chmod go= "):
        link.run(tmp_path / "link", ["127.0.0.1"], free_port())
    if name == "secret":
        with pytest.raises(ConfigError, match=r"secret = .*chmod go= "):
            certificates.load_secret(tmp_path / "link")
    path.chmod(0o600)
    link.prepare(tmp_path / "link", ["127.0.0.1"])


@pytest.mark.parametrize("what", ["key", "state"])
def test_private_files_of_a_node(tmp_path: Path, what: str) -> None:
    certificates.make_node_key(tmp_path / "key")
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / what).chmod(0o750)
    with pytest.raises(ConfigError, match=rf"{what} = .*\(mode 750\).*chmod go= "):
        node.run(
            link="127.0.0.1:1", ca=tmp_path, key=tmp_path / "key", state=tmp_path / "state", factory="a:b", arguments={}
        )


def test_the_key_of_runs_is_in_the_file_that_sites_get(tmp_path: Path) -> None:
    """A new one is given to sites with a new authority, and runs sign with it when that is taken."""
    link.prepare(tmp_path, ["127.0.0.1"])
    keys = lambda: list(run_keys(tmp_path / "ca.pem"))  # noqa: E731
    signs = lambda: number_of(certificates.load_secret(tmp_path).public_key())  # noqa: E731
    (first,) = keys()
    assert signs() == first
    certificates.renew(tmp_path, authority=True)
    assert keys()[0] == signs() == first and len(keys()) == 2
    second = keys()[1]
    certificates.renew(tmp_path)
    assert keys() == [signs()] == [second] != [first]
    (tmp_path / "secret").unlink()
    link.prepare(tmp_path, ["127.0.0.1"])
    assert keys() == [signs()] and signs() not in (first, second)
    (tmp_path / "secret").write_text("a word")
    with pytest.raises(ConfigError, match=r"secret = .*: it holds no private key: remove it"):
        link.prepare(tmp_path, ["127.0.0.1"])


def test_a_file_without_a_key_of_runs(tmp_path: Path) -> None:
    link.prepare(tmp_path, ["127.0.0.1"])
    text = (tmp_path / "ca.pem").read_text()
    (tmp_path / "ca.pem").write_text(text.partition("-----BEGIN PUBLIC KEY")[0])
    with pytest.raises(NodeError, match=r"has no key of runs: take ca.pem from the link's folder"):
        run_keys(tmp_path / "ca.pem")
