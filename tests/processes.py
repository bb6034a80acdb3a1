"""Real processes in tests: those that a command has started, and whether they run. Linux only."""

import contextlib
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SOON = 90.0  # seconds: a timeout that is long enough on a busy machine


def wait_for(what: Callable[[], Any], seconds: float = SOON) -> None:
    """Wait until something is true."""
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)


def children(process: int, module: str = "") -> list[int]:
    """The children of a process whose command line names a module."""
    results = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == process and module.encode() in (folder / "cmdline").read_bytes():
                results.append(int(folder.name))
    return results


def descendants(process: int) -> list[int]:
    """The children of a process, and theirs."""
    return [each for child in children(process) for each in (child, *descendants(child))]


def is_listening(port: int) -> bool:
    """Whether something listens at this port of this machine."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def is_running(process: int) -> bool:
    """Whether a process runs."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def options(**given: object) -> list[str]:
    """Options of a command line; ``True`` stands for an option without a value.

    Example:
        >>> options(port=9443, log_level=True)
        ['--port=9443', '--log-level']
    """
    return [
        f"--{name.replace('_', '-')}" if value is True else f"--{name.replace('_', '-')}={value}"
        for name, value in given.items()
    ]
