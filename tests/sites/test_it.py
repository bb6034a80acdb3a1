"""What docs/it.md promises of logs, services and containers."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs pip install 'fedax[deploy]'")

from typer.testing import CliRunner

from fedax.cli import app
from fedax.files import rotate, rotated
from fedax.sites.service import processes

from .federation import wait_for

ROOT = Path(__file__).parent.parent.parent
UNITS = sorted((ROOT / "packaging").glob("*.service"))


def test_a_log_gets_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDAX_LOG_SIZE", "0.001")
    monkeypatch.setenv("FEDAX_LOG_KEEP", "2")
    log = tmp_path / "log.jsonl"
    rotate(log)
    assert rotated(log) == []
    for k in range(4):
        log.write_text(f"{k}" * 999)
        rotate(log)
        assert log.exists()  # 999 bytes are not too many
        log.write_text(f"{k}" * 1000)
        rotate(log)
        assert not log.exists()
    log.write_text("4")
    assert [(path.name, path.read_text()[0]) for path in rotated(log)] == [
        ("log.jsonl.2", "2"), ("log.jsonl.1", "3"), ("log.jsonl", "4"),
    ]  # fmt: skip


def test_the_log_of_a_process_is_rotated_while_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDAX_LOG_SIZE", "0.002")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "chatty.py").write_text(
        "import time\nfor k in range(10_000):\n    print(f'{k:09}', flush=True)\n    time.sleep(0.001)\n"
    )
    process = processes.SupervisedProcess("chatty", [], log=(log := tmp_path / "chatty.log"))
    process.start()
    try:

        def turned() -> bool:
            process.keep()
            return (tmp_path / "chatty.log.2").exists() and log.stat().st_size > 0

        wait_for(turned)
    finally:
        process.stop(0)
    files = rotated(log)
    assert [path.name for path in files][-3:] == ["chatty.log.2", "chatty.log.1", "chatty.log"]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)
    text = "".join(path.read_text() for path in files)
    assert "\0" not in text and all(len(line) == 9 for line in text.splitlines()[1:-1])


def test_the_level_of_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(app, ["deploy", "link", "--folder", str(tmp_path / "link"), "--log-level", "debug"])
    assert result.exit_code == 2 and "log_level = 'debug': give error" in result.output
    assert not (tmp_path / "link").exists()


def test_what_the_page_says_of_limits() -> None:
    from fedax.sites.service import link
    from fedax.sites.service.connections import Limits

    text, usual = (ROOT / "docs" / "it.md").read_text(), Limits()
    for limit in (
        f"{usual.total} connections, {usual.each} from one address", f"{usual.head:.0f} seconds for a handshake",
        f"{usual.body:.0f} seconds and {usual.rate / 1000:.0f} kB/s", f"{link._BODIES[False] >> 20} MB for a node's",
        f"{link._BODIES[True] >> 20} MB for a run's", f"{link._MOST // 2} requests a minute",
    ):  # fmt: skip
        assert limit in text.replace("\n  ", " "), limit


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units(tmp_path: Path, unit: Path) -> None:
    text = unit.read_text()
    assert "ProtectSystem=strict" in text and "NoNewPrivileges=yes" in text
    for option in re.findall(r"(--[a-z-]+)", text):
        assert option in CliRunner().invoke(app, ["deploy", unit.stem.strip("@").split("-")[1], "--help"]).output
    copy = tmp_path / unit.name
    copy.write_text(text.replace("/opt/fedax/bin/fedax", sys.executable))  # which has to be there
    verified = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True)
    assert verified.returncode == 0 and unit.name not in verified.stderr, verified.stderr
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=25", copy], capture_output=True, text=True
    )
    if "unrecognized option" in judged.stderr:
        pytest.skip("this systemd-analyze does not judge files")
    assert judged.returncode == 0, judged.stdout[-300:]  # 2.5 of 10 at most


def test_a_link_on_a_read_only_system(tmp_path: Path) -> None:
    """As in the container: all is read-only but for its folder."""
    if subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode:
        pytest.skip("this user cannot mount")
    (data := tmp_path / "data").mkdir()
    (data / "tmp").mkdir()
    port = processes.free_port()
    script = f"""set -e
mount --bind {data} {data}
mount -o remount,bind,ro /
mount -o remount,bind,ro /dev/shm
if touch {tmp_path}/x; then exit 9; fi
cd {data}
exec {sys.executable} -m fedax deploy link --folder link --port {port} --bind 127.0.0.1
"""
    path = os.pathsep.join(filter(None, sys.path))
    variables = {"HOME": str(data), "TMPDIR": str(data / "tmp"), "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    with (tmp_path / "said").open("wb") as output:
        command = subprocess.Popen(
            ["unshare", "-m", "bash", "-c", script], stdout=output, stderr=output, env={**os.environ, **variables}
        )
    try:
        wait_for(lambda: command.poll() is not None or "is ready" in (tmp_path / "said").read_text(), 180)
        assert command.poll() is None, (tmp_path / "said").read_text()
    finally:
        command.terminate()
        assert command.wait(60) == 0
    assert (data / "link" / "secret").stat().st_mode & 0o777 == 0o600


def test_the_container(tmp_path: Path) -> None:
    text = (ROOT / "packaging" / "Containerfile").read_text()
    assert "\nUSER 10001:10001\n" in text and "://" not in text
    tool = next((name for name in ("podman", "docker") if _works(name)), None)
    if tool is None:
        pytest.skip("needs podman or docker, at work")
    built = subprocess.run(
        [tool, "build", "-q", "-f", "packaging/Containerfile", "-t", "fedax-test", "."], cwd=ROOT, capture_output=True
    )
    if built.returncode and b"FROM" in built.stderr + built.stdout:
        pytest.skip("the base image cannot be had")
    assert built.returncode == 0, built.stderr.decode()[-2000:]
    given = [tool, "run", "-d", "--rm", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "all", "fedax-test"]
    number = subprocess.run([*given, "deploy", "link"], check=True, capture_output=True, text=True).stdout.strip()
    try:
        logs = lambda: subprocess.run([tool, "logs", number], capture_output=True, text=True)  # noqa: E731
        wait_for(lambda: "is ready" in (result := logs()).stdout + result.stderr, 180)
        healthy = subprocess.run([tool, "exec", number, "fedax", "deploy", "status"], capture_output=True)
        assert healthy.returncode == 0
    finally:
        subprocess.run([tool, "kill", number], capture_output=True)


def _works(tool: str) -> bool:
    return shutil.which(tool) is not None and not subprocess.run([tool, "info"], capture_output=True).returncode
