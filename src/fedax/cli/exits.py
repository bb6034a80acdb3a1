"""The end of a command: errors, defects and signals, with their exit codes."""

import contextlib
import errno
import functools
import os
import pathlib
import re
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, get_type_hints

import typer
import typer.core

from fedax._start import keep_compiled
from fedax.errors import FedaxError, ProcessError, one_line

_LIKE_CTRL_C = {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}  # Windows has no SIGHUP


class _Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP; it ends a command like Ctrl-C, with its own exit code."""


def exit_code(error: KeyboardInterrupt) -> int:
    """128 plus the signal's number, as in shells."""
    return 128 + (error.args[0] if isinstance(error, _Terminated) else signal.SIGINT)


def listen() -> None:
    """Let SIGTERM and SIGHUP end the command like Ctrl-C; a second signal ends it at once."""
    for number in _LIKE_CTRL_C:
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, terminate)
    # Python's signal handlers wait until a compiled program returns; a thread that reads this pipe does not.
    read_end, write_end = os.pipe()
    if hasattr(os, "set_blocking"):  # Python 3.11 on Windows has none of pipes
        os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    threading.Thread(target=_end_at_second, args=(read_end,), daemon=True).start()


def terminate(signum: int, frame: Any) -> NoReturn:
    """The handler of SIGTERM and SIGHUP."""
    raise _Terminated(signum)


def _end_at_second(pipe: int) -> None:
    """End the process at the second signal; ``pipe`` delivers the signals' numbers."""
    first: float | None = None
    while number := os.read(pipe, 1):
        if number[0] not in {signal.SIGINT, *_LIKE_CTRL_C}:
            continue
        if first is None:
            first = time.monotonic()
            with contextlib.suppress(OSError):  # nobody reads it
                os.write(2, b"stopping; a second signal does it at once\n")
        # Two signals within half a second count as one: timeout(1) signals both a process and its group.
        elif time.monotonic() - first > 0.5:
            with contextlib.suppress(OSError):
                if os.isatty(1):
                    os.write(1, b"\x1b[?25h")  # the progress bar has hidden the cursor
            os._exit(128 + number[0])


def clear_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command: bad input ends in one line on stderr and exit code 2, a signal in its own exit code."""

    @functools.wraps(command)
    def checked(*args: Any, **kwargs: Any) -> None:
        keep_compiled()
        under_way.clear()
        try:
            command(*args, **kwargs)
        except typer.Exit:
            raise
        except KeyboardInterrupt as error:
            raise typer.Exit(exit_code(error)) from None
        except Exception as error:
            if isinstance(error, FedaxError) or _jax_starts():
                raise typer.Exit(report_error(error)) from None
            typer.echo(f"error: JAX does not start: {_why(error)}", err=True)
            raise typer.Exit(2) from None

    checked.__doc__ = _no_markup(command.__doc__ or "")
    return checked


def add_commands(group: typer.Typer, commands: Mapping[str, Callable[..., None]]) -> None:
    """Add commands by their names, which may have two words."""
    for name, command in commands.items():
        group.command(name, cls=_described(command))(clear_errors(command))


def _described(command: Callable[..., None]) -> type[typer.core.TyperCommand]:
    """The class of a command whose arguments and options have the help of its signature, literally.

    Older typer loses that of arguments with a new click.
    """
    helps = {
        name: _no_markup(each.help)
        for name, hint in get_type_hints(command, include_extras=True).items()
        for each in getattr(hint, "__metadata__", ())
        if getattr(each, "help", None)
    }

    class Described(typer.core.TyperCommand):
        def __init__(self, *args: Any, **options: Any):
            super().__init__(*args, **options)
            for each in self.params:
                if each.name in helps:
                    each.help = helps[each.name]  # type: ignore[attr-defined, unused-ignore]

    return Described


def _no_markup(text: str) -> str:
    """A text without markup for rich: [sweep] is a section."""
    return re.sub(r"\[(?=[a-z#/@])", r"\\[", text)


def _jax_starts() -> bool:
    try:
        import jax

        jax.devices()
    except Exception:  # an import that has failed once fails differently the second time
        return False
    return True


def _why(error: Exception) -> str:
    """An error of JAX in one line, with the environment variables that it quotes."""
    text = str(error).strip().partition("\n")[0]
    if not text:  # an AssertionError of JAX has no text
        return f"no device for JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')}"
    quoted = {name: value for name, value in os.environ.items() if name.startswith("JAX_")}
    blamed = [f"{name}={value}" for name, value in quoted.items() if f"'{value}'" in text or f'"{value}"' in text]
    return text + (f"; it was told so by {', '.join(blamed)}" if blamed else "")


_DEFECT = 70  # the exit code: EX_SOFTWARE of sysexits.h
_debug = False  # whether tracebacks are shown
under_way: list[pathlib.Path] = []  # the run folder that is being written


def show_tracebacks(wanted: bool) -> None:
    """Set whether errors are shown with their tracebacks."""
    global _debug
    _debug = wanted


def report_error(error: BaseException) -> int:
    """Print an error in one line on stderr, and return its exit code.

    Bad input and missing resources (memory, disk) have exit code 2. All else is a defect of fedax, and its traceback is
    written to a file.
    """
    if _debug:
        traceback.print_exception(error)
    if isinstance(error, FedaxError):
        typer.echo(f"error: {one_line(str(error), 5000)}", err=True)  # a file name may contain anything
        return 2
    what = one_line(shlex.join(["fedax", *sys.argv[1:]]), 200)
    if (hint := way_out_of(error)) is not None:
        typer.echo(f"error: {what}: {hint}; fedax --debug … shows where", err=True)
        return 2
    summary = one_line(f"{type(error).__name__}: {error}".partition("\n")[0], 300)
    where = _keep_traceback(error, what)
    typer.echo(f"error: {what}: {summary}; {where}; this is a defect of fedax, please report it", err=True)
    return _DEFECT


def way_out_of(error: BaseException) -> str | None:
    """The cause of an error outside of fedax, and what to do; ``None``: it is a defect of fedax."""
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)[:200]:
        return "there is not enough memory; take smaller batches, cohorts or models, or a machine with more"
    if isinstance(error, RecursionError):
        return "something is nested too deep for Python; make the configuration, the data or the model flatter"
    if isinstance(error, UnicodeEncodeError) and error.encoding in ("utf-8", sys.getfilesystemencoding()):
        name = one_line(error.object[max(0, error.start - 50) : error.end + 50], 200)
        return f"not in {error.encoding}: {name}; rename it, or set a locale of UTF-8 such as LC_ALL=C.UTF-8"
    if not isinstance(error, OSError):
        return None
    where = one_line(f": {error.filename}" if error.filename else "", 300)
    ways = {
        errno.ENOSPC: "make room on the disk",
        errno.EDQUOT: "make room within the quota",
        errno.EFBIG: "allow larger files, as by ulimit -f unlimited",
        errno.EMFILE: "allow more open files, as by ulimit -n 1024",
        errno.ENFILE: "close other programs",
        errno.EACCES: "get the permission, or name another place",
        errno.EPERM: "get the permission, or name another place",
        errno.EROFS: "name another place",
        errno.ENOENT: "see that it is there and stays there",
        errno.ENAMETOOLONG: "name it shorter",
    }
    hint = ways.get(error.errno or 0, "see that the disk and the network work")
    return f"{one_line(error.strerror or str(error), 300)}{where}; {hint}"


def _keep_traceback(error: BaseException, what: str) -> str:
    """Write a traceback to a new file, in the run folder if there is one; return a clause that says where."""
    import platform
    import tempfile

    from fedax import __version__
    from fedax.experiments.runs import TRACEBACK

    head = f"{what}\nfedax {__version__}, Python {platform.python_version()}, {platform.platform()}\n\n"
    text = head + "".join(traceback.format_exception(error))
    for folder in (*under_way, None):
        with contextlib.suppress(OSError):
            number, path = tempfile.mkstemp(".txt", TRACEBACK if folder else f"fedax-{TRACEBACK}", folder)
            with open(number, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
            return f"the traceback is in {path}"
    return "its traceback could be written nowhere, and fedax --debug … shows it"


def run_with_others(command: Callable[[], None]) -> None:
    """Run a command of several processes; a process that fails exits at once, so that the others notice."""
    from fedax.engine import processes, signals

    try:
        return command()
    except BaseException as error:
        # No exception: JAX would wait at exit for the others, which wait for this process.
        if isinstance(error, typer.Exit) and error.exit_code == 1:
            raise  # a method failed, in all processes alike
        if isinstance(error, typer.Exit):
            code = error.exit_code
        elif isinstance(error, KeyboardInterrupt):
            code = exit_code(error)
            if signals.kept(error):
                processes.part()
        else:
            code = report_error(error)
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(3 if isinstance(error, ProcessError) else code)
