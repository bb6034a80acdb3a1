"""Printing for the commands: output in any encoding, colours, tables."""

import codecs
import contextlib
import errno
import io
import os
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from fedax.cli import exits
from fedax.errors import UNSEEN

if TYPE_CHECKING:
    from rich.console import Console

_PLAIN = {"±": "+-", "★": "*", "×": "x", "–": "-", "−": "-", "•": "-", "·": "-", "‖": "||", "∇": "grad ", "∞": "inf",
          "→": "->", "≤": "<=", "≥": ">=", "≈": "~", "²": "^2"}  # fmt: skip


def open_output() -> None:
    """Prepare stdout and stderr: any encoding works, and a closed pipe does not end the command."""
    codecs.register_error("plain", _plain)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the shell, as by >&-
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
            continue
        try:
            number = stream.fileno()
        except io.UnsupportedOperation:  # main() called by a program that captures the output
            continue
        stream.flush()
        raw = io.BufferedWriter(_Pipe(number, "w", closefd=False))
        lines = stream.line_buffering or name == "stderr"
        setattr(sys, name, io.TextIOWrapper(raw, stream.encoding, "plain", line_buffering=lines))


def _plain(error: UnicodeError) -> tuple[str, int]:
    """The error handler "plain": replaces characters that the output's encoding lacks."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(map(_in_ascii, error.object[error.start : error.end])), error.end


def _in_ascii(character: str) -> str:
    """A replacement in ASCII for one character.

    Example:
        >>> [_in_ascii(c) for c in "±ψ…ö月"]
        ['+-', 'psi', '...', 'o', '?']
    """
    name = unicodedata.name(character, "")
    if character in _PLAIN or name.startswith("GREEK SMALL LETTER"):
        return _PLAIN.get(character) or name.split()[-1].lower()
    ascii_ = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return ascii_ or ("" if unicodedata.combining(character) else "?")


class _Pipe(io.FileIO):
    """An output stream that may fail: its reader closes the pipe, as ``head`` does, or the disk is full.

    After a failure the command goes on, and further output is discarded: ``failed`` is true. ``lost`` is the error,
    unless the reader has closed the pipe.
    """

    failed = False
    lost: OSError | None = None

    def write(self, text: Any) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self.failed = True
            if error.errno not in (errno.EPIPE, errno.EIO):  # closed; the terminal is gone
                self.lost = error
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return len(text)


def echo(text: object, err: bool = False, nl: bool = True) -> None:
    """Print a text without the control characters that it may have of files, of nodes or of a user's own code."""
    typer.echo(str(text).translate(UNSEEN), err=err, nl=nl)


def say(text: object) -> None:
    """Print a text as :func:`echo` does, on stderr."""
    echo(text, err=True)


def output_fails() -> bool:
    """Whether nobody gets the output: a command that does nothing but show something ends then."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return isinstance(raw, _Pipe) and raw.failed


def close_output(code: Any) -> Any:
    """The exit code of a command that ends: its own, or 2 if its output was lost."""
    with contextlib.suppress(ValueError):  # closed
        sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if not isinstance(raw, _Pipe) or raw.lost is None or code not in (None, 0, 1):
        return code
    echo(f"error: what the command says cannot be written: {exits.way_out_of(raw.lost)}", err=True)
    return 2


def open_console() -> "Console":
    """The console for results: a terminal, a file or a pipe."""
    from rich.console import Console
    from rich.segment import Segment

    class Quiet(Console):
        """A console that replaces control characters: names of methods, classes and clients may come from others."""

        def render(self, *args: Any, **options: Any) -> Any:
            for segment in super().render(*args, **options):
                yield segment if segment.control else Segment(segment.text.translate(UNSEEN), segment.style)

    if sys.stdout.isatty():
        return Quiet(highlight=False)
    # A file or a pipe has no width; rich would take 80. It is no terminal, though notebooks set FORCE_COLOR.
    return Quiet(highlight=False, width=120, force_terminal=False)


def two_columns(lines: Mapping[str, str]) -> Any:
    """A table of two columns: names and texts."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for left, right in lines.items():
        table.add_row(left, Text(right))
    return table


def table_of(heads: Sequence[str], title: str | None = None, texts: int = 1, wraps: bool = False) -> Any:
    """A table without rows; its first columns are ``texts``, the others figures, which wrap only if one says so."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for k, head in enumerate(heads):
        no_wrap = k >= texts and not wraps
        table.add_column(head, justify="left" if k < texts else "right", no_wrap=no_wrap, overflow="fold")
    return table


def print_table(console: "Console", table: Any) -> None:
    """Print a table; the last columns are left out if the terminal is too narrow, so that nothing is cut off.

    Columns may wrap unless they are ``no_wrap``.
    """
    from rich.measure import Measurement
    from rich.text import Text

    for column in table.columns:
        if column.no_wrap:
            cells = (column.header, *column.cells)
            column.min_width = max(Text.from_markup(cell).cell_len for cell in cells)
    dropped: list[str] = []
    wide = console.options.update(width=10_000)
    while len(table.columns) > 2 and Measurement.get(console, wide, table).minimum > console.width:
        dropped.insert(0, table.columns.pop().header)
    console.print(table)
    if dropped:
        console.print(f"[dim]No room here for {', '.join(dropped)}: see the report.[/]")


def bullets(sentences: list[str]) -> Any:
    """A list of sentences."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1))
    for sentence in sentences:
        table.add_row("•", Text(sentence))
    return table
