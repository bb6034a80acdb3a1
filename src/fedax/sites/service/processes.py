"""Child processes that a command supervises, and messages to them."""

import io
import os
import random
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from fedax import children
from fedax.errors import NodeError
from fedax.files import rotate

_Stream = IO[bytes] | io.BufferedIOBase
_ENTRY = struct.Struct("<QQ")  # the sizes of a head and of tensors, between a node and its worker
_FIRST_PAUSE, _LONGEST_PAUSE, _STEADY = 0.5, 30.0, 60.0  # seconds before it is started again; of a run that counts


@contextmanager
def ending() -> Iterator[threading.Event]:
    """An event that SIGINT, SIGTERM and SIGHUP set, in the main thread; elsewhere nothing sets it."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup does
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: event.set()) for number in numbers}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def free_port() -> int:
    """A port of 127.0.0.1 that is free now, below those that systems give to outgoing connections."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 1000):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise NodeError("no port between 20000 and 32000 of this machine is free")


class SupervisedProcess:
    """A Python module that runs as a child process, and is started again when it ends, after growing pauses.

    It ends with this process, even if this one is killed. Ctrl-C in a terminal does not reach it, and its files can be
    read by this user only.

    Args:
        module, arguments: what ``python -m`` is given.
        log: the file that its output goes to, which is rotated; ``None``: it goes to this process's output.
        **pipes: ``stdin`` and ``stdout`` as of ``subprocess.Popen``, without a log.

    Attributes:
        process: the one that runs; ``None``: none does.
    """

    def __init__(self, module: str, arguments: Sequence[str], log: Path | None = None, **pipes: int):
        self.module, self.arguments, self.log, self.pipes = module, arguments, log, pipes
        self.process: subprocess.Popen[bytes] | None = None
        self._pause, self._due, self._began = _FIRST_PAUSE, 0.0, 0.0

    def keep(self) -> int | None:
        """Keep it running, called again and again: start it when it is due.

        Returns:
            Its exit status, once, after it has ended.
        """
        status = None
        if self.log is not None:
            rotate(self.log, held=True)
        if self.process is not None and (status := self.process.poll()) is not None:
            self._drop(self.process)
            if (now := time.monotonic()) - self._began > _STEADY:
                self._pause = _FIRST_PAUSE
            self._due, self._pause = now + self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        elif self.process is None and time.monotonic() >= self._due:
            self.start()
        return status

    def start(self) -> None:
        """Start it now."""
        given: dict[str, Any] = {"stdin": subprocess.DEVNULL, **self.pipes}
        with ExitStack() as files:
            if self.log is not None:
                number = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                given["stdout"] = given["stderr"] = files.enter_context(os.fdopen(number, "ab"))
            self.process = children.start(self.module, self.arguments, umask=0o077, **given)
        self._began = time.monotonic()

    def stop(self, grace: float = 5.0) -> None:
        """End it by SIGTERM, and after ``grace`` seconds by SIGKILL."""
        if (process := self.process) is None:
            return
        if grace > 0:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace)
        process.kill()
        process.wait()
        self._drop(process)

    def _drop(self, process: "subprocess.Popen[bytes]") -> None:
        """Forget a process that has ended."""
        for pipe in filter(None, (process.stdin, process.stdout)):
            with suppress(OSError):  # something is left that it has not read
                pipe.close()
        self.process = None


def send(file: _Stream, parts: Sequence[bytes]) -> None:
    """Write the parts of a message, between a node and its worker."""
    head, *tensors = parts
    file.write(_ENTRY.pack(len(head), sum(map(len, tensors))))
    file.writelines(parts)
    file.flush()


def receive(file: _Stream) -> list[bytes]:
    """Read the parts of a message.

    Raises:
        EOFError: the other side has ended.
    """
    sizes = _ENTRY.unpack(_exactly(file, _ENTRY.size))
    return [_exactly(file, size) for size in sizes if size]


def _exactly(file: _Stream, size: int) -> bytes:
    content = file.read(size)
    if len(content) < size:
        raise EOFError
    return content
