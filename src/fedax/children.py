"""Processes that fedax starts. They end when the process that started them ends, even by SIGKILL.

A child has the read end of a pipe, whose write end its parent holds as long as it lives. ``python -m fedax.children
MODULE ...`` watches for the end of that pipe, and runs a module, or a file, before which nothing else is imported.
"""

import functools
import os
import runpy
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

_PIPE = "FEDAX_PARENT"  # environment variable: the number of the pipe


def start(
    module: str, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None, **options: Any
) -> "subprocess.Popen[bytes]":
    """Start a module of Python as a process that ends with this one; Ctrl-C in a terminal does not reach it.

    Args:
        module: as ``python -m`` takes it, or the path of a file.
        arguments: of its command line.
        environment: variables in addition to this process's own.
        **options: of ``subprocess.Popen``.

    Example:
        >>> start("calendar", ["--help"], stdout=subprocess.DEVNULL).wait()
        0
    """
    command = [sys.executable, "-m", "fedax.children", module, *arguments]
    variables = {**os.environ, **(environment or {})}
    if os.name == "posix":  # elsewhere no pipe can be handed on so
        options["pass_fds"] = [_pipe()]
        variables[_PIPE] = str(_pipe())
    return subprocess.Popen(command, env=variables, start_new_session=True, **options)


@functools.cache
def _pipe() -> int:
    """The read end of a pipe that is open as long as this process runs."""
    read, write = os.pipe()
    os.register_at_fork(after_in_child=functools.partial(os.close, write))  # a fork must not hold it open
    return read


def _end_with_parent() -> None:
    if (number := os.environ.pop(_PIPE, None)) is None:
        return

    def watch() -> None:
        while os.read(int(number), 1):  # nobody writes: this waits for the end
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="watch-parent").start()


if __name__ == "__main__":
    _end_with_parent()
    module = sys.argv.pop(1)
    if module.endswith(".py"):
        sys.argv[0] = module
        runpy.run_path(module, run_name="__main__")
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
