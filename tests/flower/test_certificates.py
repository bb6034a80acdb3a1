"""Certificates and keys while a link, its nodes and a run are at work: renewed, removed, private, and never shown."""

import base64
import contextlib
import os
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs pip install 'fedax[flower]'")

import httpx
from cryptography import x509
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from typer.testing import CliRunner

from fedax.cli import app
from fedax.errors import ConfigError, NodeError
from fedax.flower import certificates, link, node
from fedax.flower.calls import secret_of
from fedax.flower.connections import Server

from .federation import PLACES, Federation, children, rows_of, wait_for

ROUNDS = 25
CONFIG = f"""
data = {{name = "digits", clients = 4, partition = "dirichlet", alpha = 0.5}}
run = {{rounds = {ROUNDS}, batch_size = 16, seeds = 1}}
methods = [{{name = "fedavg", lr = 0.1}}]
"""


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """A server with the certificate of a link's folder; its address."""

    async def nothing(scope: object, receive: object, send: object) -> None:
        raise RuntimeError("this is for connections only")

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = Server(nothing, ("127.0.0.1", port), (folder / "server.pem", folder / "server.key"))
    server.config.lifespan = "off"
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started)
        yield f"127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)


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
            assert certificates.greet(address, Path(each)) is None
        again = CliRunner().invoke(app, ["deploy", "link", "renew", "--folder", str(tmp_path), "--ca"])
        assert again.exit_code == 2 and "one is new already" in again.output
        certificates.renew(tmp_path)
        wait_for(lambda: number_at(address, trust) == number_in(tmp_path / "server.pem"))  # the same object as before
        assert (
            certificates.greet(address, Path(early)) is None
            and certificates.greet(address, tmp_path / "ca.pem") is None
        )
        with pytest.raises(NodeError, match=r"is not signed by .*late.pem"):
            certificates.greet(address, Path(late))
        assert (tmp_path / "ca.pem").read_text().count("BEGIN CERTIFICATE") == 1
        certificates.renew(tmp_path, authority=True)  # and once more
        assert certificates.greet(address, tmp_path / "ca.pem") is None


def test_a_folder_that_is_no_links(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"it has no ca.pem; give the folder"):
        certificates.renew(tmp_path)
    link.prepare(tmp_path, ["a"])
    link.prepare(tmp_path / "other", ["a"])
    shutil.copy(tmp_path / "other" / "ca.key", tmp_path)
    with pytest.raises(ConfigError, match=r"ca.key is not the key of ca.pem"):
        certificates.renew(tmp_path)


@pytest.mark.parametrize("name", ["ca.key", "server.key", "secret", "link.db"])
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_private_files_of_a_link(tmp_path: Path, name: str, mode: int) -> None:
    link.prepare(tmp_path / "link", ["127.0.0.1"])
    assert (tmp_path / "link").stat().st_mode & 0o777 == 0o700
    (path := tmp_path / "link" / name).touch()
    path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"{name}.*others can read it \(mode {mode:o}\).*chmod go= "):
        link.run(tmp_path / "link", ["127.0.0.1"], _free())
    if name == "secret":
        with pytest.raises(ConfigError, match=r"secret = .*chmod go= "):
            secret_of(tmp_path / "link")
    path.chmod(0o600)
    link.prepare(tmp_path / "link", ["127.0.0.1"])


def _free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.mark.parametrize("what", ["key", "state"])
def test_private_files_of_a_node(tmp_path: Path, what: str) -> None:
    certificates.make_node_key(tmp_path / "key")
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / what).chmod(0o750)
    with pytest.raises(ConfigError, match=rf"{what} = .*others can read it \(mode 750\).*chmod go= "):
        node.run(
            link="127.0.0.1:1", ca=tmp_path, key=tmp_path / "key", state=tmp_path / "state", factory="a:b", arguments={}
        )


def test_a_run_goes_on_while_all_is_renewed_and_one_node_is_removed(tmp_path: Path) -> None:
    """All secrets are looked for where they must not be, at the same time."""
    made = Federation(tmp_path, CONFIG)
    out = tmp_path / "run"
    own = {name: shutil.copy(made.link / "ca.pem", tmp_path / f"{name}.ca") for name in PLACES}
    secrets = {**_secrets(made.link), **_secrets(tmp_path)}
    try:
        made.start_link()
        for name in PLACES:
            made.start_node(name, ca=own[name])
        wait_for(lambda: all("this is node" in made.said(name) for name in PLACES), 180)
        before = [made.superlink(), *(made.supernode(name) for name in PLACES)]
        command = made.start_run(out, "--timeout", "15")
        rounds = lambda: max((row["round"] for row in rows_of(out)), default=0)  # noqa: E731
        wait_for(lambda: rounds() >= 2, 240)
        certificates.renew(made.link)
        certificates.renew(made.link, authority=True)
        _later(rounds, 2)
        for path in own.values():
            shutil.copy(made.link / "ca.pem", path)
        certificates.renew(made.link)
        secrets |= _secrets(made.link)
        _later(rounds, 3)
        assert [made.superlink(), *(made.supernode(name) for name in PLACES)] == before  # nothing was started again
        assert all(row["left_out"] == 0 for row in rows_of(out))
        for process in (os.getpid(), *(each.pid for each in made.commands.values())):
            for inner in (process, *children(process, "fedax")):
                _has_none(Path(f"/proc/{inner}/cmdline").read_bytes(), secrets)
        _is_closed(made.supernode("n0"))
        (made.link / "nodes" / "n2.pub").unlink()
        wait_for(lambda: "is no longer known" in made.said("link"))
        gone = rounds()
        assert made.commands.pop("n2").wait(120) == 2 and "does not know the key" in made.said("n2")
        assert command.wait(400) == 0, made.said("run")
        left_out = {row["round"]: row["left_out"] for row in rows_of(out)}
        assert max(left_out) == ROUNDS > gone + 3
        more = [left_out[k] - left_out[k - 1] for k in range(1, ROUNDS + 1)]
        assert more[: gone - 1] == [0] * (gone - 1) and more[gone + 2 :] == [2] * (ROUNDS - gone - 2)  # n2's clients
        shown = [path for path in tmp_path.rglob("*") if path.suffix in (".txt", ".log", ".json", ".jsonl", ".toml")]
        assert len(shown) > 10
        for path in shown:
            _has_none(path.read_bytes(), secrets)
    finally:
        made.end()


def _is_closed(supernode: int) -> None:
    """What a SuperNode serves to its worker on its own machine is not for others there."""
    command = Path(f"/proc/{supernode}/cmdline").read_bytes().decode().split("\0")
    port = next(each.removeprefix("--port=") for each in command if each.startswith("--port="))
    form = {"content-type": "application/protobuf"}
    asked = [path for _, path in PROTOBUF_REQUEST_TYPES if path.startswith("/v1/")]
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=form) as http:
        found = {path: http.post(path, headers={"flwr-task-token": "no"}).status_code for path in asked}
    assert len(found) > 20 and all(code in (401, 403, 404) for code in found.values()), found


def _later(rounds: object, more: int) -> None:
    assert callable(rounds)
    goal = rounds() + more
    wait_for(lambda: rounds() >= goal, 240)


def _secrets(folder: Path) -> dict[str, bytes]:
    """What must not be shown, by name: texts, and the lines of keys."""
    found = {}
    for path in folder.iterdir():
        if path.is_file() and (path.name in ("secret", "ca.key", "server.key") or path.name in PLACES):
            lines = path.read_bytes().splitlines()
            found |= {f"{path} {line!r}": line for line in lines if not line.startswith(b"---") and len(line) >= 20}
        elif path.is_dir() and (path / "secret").is_file() and path.suffix == ".state":
            content = (path / "secret").read_bytes()
            found[str(path)], found[f"{path} hex"] = base64.b64encode(content)[:20], content.hex()[:20].encode()
    return found


def _has_none(content: bytes, secrets: dict[str, bytes]) -> None:
    assert len(secrets) >= 6 and all(len(each) >= 20 for each in secrets.values())
    assert not [name for name, secret in secrets.items() if secret in content]
