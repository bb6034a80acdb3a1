"""Progress of work under way: a bar in a terminal and in a notebook, lines elsewhere.

It never waits for the work, and never changes a number of it.
"""

import contextvars
import html
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedax.columns import HEARD, describe, heard_enough, show, shown
from fedax.errors import UNSEEN, ConfigError

if TYPE_CHECKING:
    from rich.console import Console

_LINES = 10.0  # the least seconds between two lines
_NOTEBOOK = 0.2  # the least seconds between two updates in a notebook


_chosen: contextvars.ContextVar[bool | None] = contextvars.ContextVar("fedax.show_progress", default=None)


class show_progress:  # called like a function
    """Show how far runs are, or do not: from now on, or as a context manager while it lasts.

    It is shown by a bar in a terminal and a notebook, elsewhere by a line every ten seconds, on the errors' stream.
    Without this it is shown in notebooks.

    Args:
        progress: ``True``, ``False``, or ``None``: in notebooks.

    Raises:
        ConfigError: another value.

    Example:
        >>> with show_progress():
        ...     wanted()
        True
        >>> wanted()
        False
    """

    def __init__(self, progress: bool | None = True):
        if progress not in (None, True, False):
            raise ConfigError("progress", progress, "give True, False, or None for: in notebooks")
        self._before = _chosen.set(progress)

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None:
        _chosen.reset(self._before)


def wanted() -> bool:
    """Whether progress is shown."""
    progress = _chosen.get()
    return in_notebook() if progress is None else progress


def in_notebook() -> bool:
    """Whether this runs in a cell of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def figures(row: Mapping[str, Any], decides: str | None = None) -> str:
    """A row of a history as a short text; ``decides``: the column by which methods are compared.

    Example:
        >>> figures({"round": 3, "train_loss": 0.25, "test_loss": 0.3, "test_accuracy": 0.5, "seconds": 1.0})
        'Train loss 0.25, Test accuracy 50.00 %'
    """
    texts = [f"{describe(name).label} {show(name, row[name])}" for name in shown(row, decides)]
    return ", ".join(texts if heard_enough(row) else [*texts, f"only {show(HEARD, row[HEARD])} of the weight heard"])


class Progress:
    """Shows the progress of some work, as a context manager.

    Args:
        total: the amount of work, in rounds.
        console: where to write; default: the notebook in whose cell this runs, or else stderr.

    Example:
        >>> import io
        >>> from rich.console import Console
        >>> file = io.StringIO()
        >>> with Progress(20, Console(file=file)) as progress:
        ...     progress.at("fedavg", 10, "Test loss 0.3")  # a line needs ten seconds
        ...     progress.tell("fedavg: round 20, Test loss 0.1", 20)
        >>> file.getvalue()
        'fedavg: round 20, Test loss 0.1\\n'
    """

    def __init__(self, total: int, console: "Console | None" = None):
        self.done = 0  # so far
        self._display: _NotebookCell | _TerminalBar | _LogLines
        if console is None and in_notebook():
            self._display = _NotebookCell(total)
            return
        from rich.console import Console

        if console is None:  # a log is no terminal, though FORCE_COLOR is set
            console = Console(stderr=True, highlight=False, force_terminal=sys.stderr.isatty())
        self._display = _TerminalBar(total, console) if console.is_terminal else _LogLines(total, console)

    def __enter__(self) -> "Progress":
        self._display.begin()
        return self

    def __exit__(self, *error: object) -> None:
        self._display.end()

    def at(self, name: str, done: int, figures: str, line: str = "") -> None:
        """Update the progress.

        Args:
            name: of the current part of the work.
            done: how much of the total is done.
            figures: its latest figures.
            line: the text for a log; default: name and figures.
        """
        self.done = done
        self._display.at(name, done, figures, line or f"{name}: {figures}")

    def tell(self, text: str, done: int, warning: str = "") -> None:
        """Print a line that stays; in notebooks it is left out, as the results follow.

        Args:
            text: the line.
            done: how much of the total is done.
            warning: the end of the line, in red.
        """
        self.done = done
        self._display.tell(text, warning, done)


class _TerminalBar:
    """Progress in a terminal: a bar."""

    def __init__(self, total: int, console: "Console"):
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
        from rich.text import Text

        class Left(TimeRemainingColumn):
            """The time that is left, once it is known."""

            def render(self, task: Any) -> Text:
                return super().render(task) if task.time_remaining else Text()

        self.console = console
        self.bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:3.0f} %"),
            Left(compact=True),
            TextColumn("{task.fields[figures]}", markup=False),
            console=console,
            transient=True,
        )
        self.task = self.bar.add_task("starting", total=total, figures="")
        self.begin, self.end = self.bar.start, self.bar.stop

    def at(self, name: str, done: int, figures: str, line: str) -> None:
        self.bar.update(self.task, completed=done, description=name.translate(UNSEEN), figures=figures)

    def tell(self, text: str, warning: str, done: int) -> None:
        _print(self.console, text, warning)


class _LogLines:
    """Progress in a log: a line at most every ten seconds."""

    def __init__(self, total: int, console: "Console"):
        self.console, self.total = console, total
        self.then = time.monotonic()
        self.base = self.then, 0  # time and amount since which the pace is measured

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def at(self, name: str, done: int, figures: str, line: str) -> None:
        now, left = time.monotonic(), ""
        if done <= self.base[1]:  # what was loaded or compiled until now tells nothing of the rest
            self.base = now, done
        if now - self.then < _LINES:
            return
        if done > self.base[1]:
            pace = (now - self.base[0]) / (done - self.base[1])
            left = f", about {duration(pace * (self.total - done))} left"
        _print(self.console, f"{line}{left}")
        self.then, self.base = now, (now, done)

    def tell(self, text: str, warning: str, done: int) -> None:
        _print(self.console, text, warning)
        self.then = time.monotonic()
        self.base = self.then, done


class _NotebookCell:
    """Progress below a notebook's cell; it is removed in the end."""

    def __init__(self, total: int):
        self.total, self.then = total, 0.0
        self.first: tuple[float, int] | None = None  # time and amount when something was first done

    def begin(self) -> None:
        from IPython.display import display

        self.handle = display({"text/plain": "", "text/html": ""}, raw=True, display_id=True)

    def end(self) -> None:
        self.handle.update({"text/plain": "", "text/html": ""}, raw=True)

    def at(self, name: str, done: int, figures: str, line: str) -> None:
        now = time.monotonic()
        if self.first is None and done:
            self.first = now, done
        if now - self.then < _NOTEBOOK and done < self.total:
            return
        self.then, share, left = now, done / max(self.total, 1), ""
        if self.first is not None and done > self.first[1]:
            pace = (now - self.first[0]) / (done - self.first[1])
            left = f"about {duration(pace * (self.total - done))} left"
        parts = [f"{100 * share:.0f} %", left, name, figures]
        text = " · ".join(html.escape(part) for part in parts if part)
        bar = f'<progress max="1" value="{share:.4f}" aria-label="{html.escape(name)}"></progress>'
        self.handle.update({"text/plain": line, "text/html": f"<div>{bar} {text}</div>"}, raw=True)

    def tell(self, text: str, warning: str, done: int) -> None: ...


def _print(console: "Console", text: str, warning: str = "") -> None:
    from rich.text import Text

    console.print(Text.assemble(text.translate(UNSEEN), (warning, "red")), soft_wrap=True)


def duration(seconds: float) -> str:
    """A duration as text.

    Example:
        >>> duration(9.6), duration(600), duration(9000)
        ('10 s', '10 min', '2.5 h')
    """
    if seconds < 6000:
        return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
