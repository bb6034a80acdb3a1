"""The command ``fedax``. What is slow to import is imported where it is used."""

import codecs
import contextlib
import enum
import errno
import functools
import io
import os
import pathlib
import re
import shlex
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from fedax import cli_status, cli_tables, table_commands
from fedax._start import keep_compiled, share_gpu

if TYPE_CHECKING:
    from rich.console import Console

    from fedax.experiments import Experiment, Record, Tuning
    from fedax.experiments.own import Code

app = typer.Typer(
    help="Federated optimization in JAX: run, compare and report on experiments.",
    epilog="Begin with: fedax compare digits",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

Out = Annotated[
    pathlib.Path | None,
    typer.Option(help="Run folder; has to be new or empty.", show_default="runs/<name>-<number>"),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one setting of the configuration; may be repeated."),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with the last run of this configuration that was stopped.")
]
AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="Run the code that the configuration names, such as mine.py:Method.")
]
Rounds = Annotated[
    int | None, typer.Option(min=1, help="Make a checkpoint after every so many rounds.", show_default=False)
]
Minutes = Annotated[float, typer.Option(help="Make one as soon as so long has passed.")]


def main() -> None:
    """The entry point of the command."""
    from fedax.errors import UNSEEN

    warnings.formatwarning = lambda message, *_: f"warning: {message}".translate(UNSEEN).replace("\n", " ") + "\n"
    os.environ["MPLBACKEND"] = "agg"  # a notebook that calls the command has set its own, which may not be here
    _speak()
    _listen()
    try:
        app()
    except SystemExit as ended:
        code = ended.code
    except Exception as error:
        code = _told(error)
    else:  # of another program that has taken the place of app
        code = 0
    sys.exit(_heard(code))


_PLAIN = {"±": "+-", "★": "*", "×": "x", "–": "-", "−": "-", "•": "-", "·": "-", "‖": "||", "∇": "grad ", "∞": "inf",
          "→": "->", "≤": "<=", "≥": ">=", "≈": "~", "²": "^2"}  # fmt: skip


def _speak() -> None:
    """Let the output be of any encoding, and let nothing end because nobody reads it any more."""
    codecs.register_error("plain", _plain)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the shell, as by >&-
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
            continue
        try:
            number = stream.fileno()
        except io.UnsupportedOperation:  # main() in another program, which takes what is written
            continue
        stream.flush()
        raw = io.BufferedWriter(_Pipe(number, "w", closefd=False))
        lines = stream.line_buffering or name == "stderr"
        setattr(sys, name, io.TextIOWrapper(raw, stream.encoding, "plain", line_buffering=lines))


def _plain(error: UnicodeError) -> tuple[str, int]:
    """What is written in the place of characters that the output's encoding does not have."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(map(_in_ascii, error.object[error.start : error.end])), error.end


def _in_ascii(character: str) -> str:
    """
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
    """An output that may refuse what is said: its reader goes away, as ``head`` does, or its disk is full.

    The work goes on, and what is said is not heard. ``lost`` is the error, where nobody wanted it so.
    """

    lost: OSError | None = None

    def write(self, text: Any) -> int:
        try:
            return super().write(text)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):  # closed; the terminal is gone
                self.lost = error
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return len(text)


def _heard(code: Any) -> Any:
    """The exit code of a command that ends; 2 where all went well but what it said was lost."""
    with contextlib.suppress(ValueError):  # closed
        sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if not isinstance(raw, _Pipe) or raw.lost is None or code not in (None, 0, 1):
        return code
    typer.echo(f"error: what the command says cannot be written: {_way_out(raw.lost)}", err=True)
    return 2


_LIKE_CTRL_C = {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}  # Windows has no SIGHUP


class _Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP: an end like Ctrl-C, with an exit code of its own."""


def _exit_code(error: KeyboardInterrupt) -> int:
    """As shells have it, 128 and the signal's number."""
    return 128 + (error.args[0] if isinstance(error, _Terminated) else signal.SIGINT)


def _listen() -> None:
    """Let SIGTERM and SIGHUP end the command as Ctrl-C does, and a second signal at once, whatever is at work."""
    for each in _LIKE_CTRL_C:
        if signal.getsignal(each) == signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(each, _terminate)
    # Python's handlers wait for compiled programs; this pipe does not.
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    threading.Thread(target=_end_at_second, args=(told,), daemon=True).start()


def _terminate(signum: int, frame: Any) -> NoReturn:
    raise _Terminated(signum)


def _end_at_second(told: int) -> None:
    first: float | None = None
    while number := os.read(told, 1):
        if number[0] not in {signal.SIGINT, *_LIKE_CTRL_C}:
            continue
        if first is None:
            first = time.monotonic()
            with contextlib.suppress(OSError):  # nobody reads it
                os.write(2, b"stopping; a second signal does it at once\n")
        # Sooner it is the same: timeout(1), say, signals both a process and its group.
        elif time.monotonic() - first > 0.5:
            with contextlib.suppress(OSError):
                if os.isatty(1):
                    os.write(1, b"\x1b[?25h")  # the progress bar has hidden the cursor
            os._exit(128 + number[0])


def _clear_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Bad input ends in one line on stderr and exit code 2; a signal in its own."""

    @functools.wraps(command)
    def checked(*args: Any, **kwargs: Any) -> None:
        keep_compiled()
        _under_way.clear()
        from fedax.errors import FedaxError

        try:
            command(*args, **kwargs)
        except typer.Exit:
            raise
        except KeyboardInterrupt as error:
            raise typer.Exit(_exit_code(error)) from None
        except Exception as error:
            if isinstance(error, FedaxError) or _jax_starts():
                raise typer.Exit(_told(error)) from None
            typer.echo(f"error: JAX does not start: {_why(error)}", err=True)
            raise typer.Exit(2) from None

    # Not markup: [sweep] is a section.
    checked.__doc__ = _BRACKET.sub(r"\\[", command.__doc__ or "")
    return checked


_BRACKET = re.compile(r"\[(?=[a-z#/@])")  # where rich would see a tag


def _jax_starts() -> bool:
    try:
        import jax

        jax.devices()
    except Exception:  # of an import that failed once, the second time there are others
        return False
    return True


def _why(error: Exception) -> str:
    """An error of JAX's in one line, with the environment's settings that it quotes."""
    text = str(error).strip().partition("\n")[0]
    if not text:  # an assertion of its own
        return f"no device for JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')}"
    quoted = {name: value for name, value in os.environ.items() if name.startswith("JAX_")}
    blamed = [f"{name}={value}" for name, value in quoted.items() if f"'{value}'" in text or f'"{value}"' in text]
    return text + (f"; it was told so by {', '.join(blamed)}" if blamed else "")


_DEFECT = 70  # the exit code: EX_SOFTWARE of sysexits.h
_debug = False  # whether tracebacks are shown
_under_way: list[pathlib.Path] = []  # the run folder that is written now


def _told(error: BaseException) -> int:
    """Say an error in one line on stderr; the exit code that belongs to it.

    What the machine has not enough of, and what was put in that no run can take, are errors like bad input. All else
    is a defect of fedax, and its traceback goes into a file.
    """
    from fedax.errors import FedaxError, one_line

    if _debug:
        traceback.print_exception(error)
    if isinstance(error, FedaxError):
        typer.echo(f"error: {one_line(str(error), 5000)}", err=True)  # a file's name may have anything in it
        return 2
    what = one_line(shlex.join(["fedax", *sys.argv[1:]]), 200)
    if (way_out := _way_out(error)) is not None:
        typer.echo(f"error: {what}: {way_out}; fedax --debug … shows where", err=True)
        return 2
    said = one_line(f"{type(error).__name__}: {error}".partition("\n")[0], 300)
    where = _keep_traceback(error, what)
    typer.echo(f"error: {what}: {said}; {where}; this is a defect of fedax, please report it", err=True)
    return _DEFECT


def _way_out(error: BaseException) -> str | None:
    """What went wrong outside of fedax, and what to do; ``None``: nothing did."""
    from fedax.errors import one_line

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
    way_out = ways.get(error.errno or 0, "see that the disk and the network work")
    return f"{one_line(error.strerror or str(error), 300)}{where}; {way_out}"


def _keep_traceback(error: BaseException, what: str) -> str:
    """Write it to a new file, in the run folder where there is one; where it is, as a clause."""
    import platform

    from fedax import __version__
    from fedax.experiments.runs import TRACEBACK

    head = f"{what}\nfedax {__version__}, Python {platform.python_version()}, {platform.platform()}\n\n"
    text = head + "".join(traceback.format_exception(error))
    for folder in (*_under_way, None):
        with contextlib.suppress(OSError):
            number, path = tempfile.mkstemp(".txt", TRACEBACK if folder else f"fedax-{TRACEBACK}", folder)
            with open(number, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
            return f"the traceback is in {path}"
    return "its traceback could be written nowhere, and fedax --debug … shows it"


def _leaves_others(command: Callable[[], None]) -> None:
    """Run what several processes do together; one that fails ends at once, so that the others see it."""
    from fedax.engine import processes, signals
    from fedax.errors import ProcessError

    try:
        return command()
    except BaseException as error:
        # Not by an exception: at its exit JAX would wait for the others, who wait for this process.
        if isinstance(error, typer.Exit) and error.exit_code == 1:
            raise  # a method diverged or ended worse than it began, in all of them
        if isinstance(error, typer.Exit):
            code = error.exit_code
        elif isinstance(error, KeyboardInterrupt):
            code = _exit_code(error)
            if signals.kept(error):
                processes.part()
        else:
            code = _told(error)
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(3 if isinstance(error, ProcessError) else code)


def _show_version(wanted: bool) -> None:
    if wanted:
        import fedax

        typer.echo(f"fedax {fedax.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    global _debug
    _debug = debug


@app.command()
@_clear_errors
def run(
    config: Annotated[str, typer.Argument(help="Configuration: a TOML file, or a recipe.", show_default=False)],
    out: Out = None,
    settings: Set = None,
    resume: Resume = False,
    allow_code: AllowCode = False,
    checkpoint_rounds: Rounds = None,
    checkpoint_minutes: Minutes = 10.0,
    checkpoint_best: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Keep the model at its best too, as by test_loss.", show_default=False),
    ] = None,
    distributed: Annotated[
        bool, typer.Option("--distributed", help="Run with the other processes of SLURM, MPI or Kubernetes.")
    ] = False,
    coordinator: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Elsewhere: where process 0 is.", show_default=False)
    ] = None,
    num_processes: Annotated[int | None, typer.Option(help="How many there are.", show_default=False)] = None,
    process_id: Annotated[int | None, typer.Option(help="Which this is, from 0.", show_default=False)] = None,
) -> None:
    """Run the experiment of a configuration file, or a paper's.

    \b
    A small configuration:
      data = {name = "digits", clients = 10, partition = "dirichlet", alpha = 0.1}
      run = {rounds = 50, batch_size = 32, seeds = 3}
      methods = [{name = "fedavg", lr = 0.1}, {name = "fednova", lr = 0.1}]

    \b
    Examples:
      fedax run experiment.toml
      fedax run experiment.toml --set run.rounds=200 --set "methods.*.lr=0.05"
      fedax run fednova-figure-2-equal
      fedax run runs/digits-1/config.toml --out runs/again
      fedax run experiment.toml --resume
      srun --ntasks=4 fedax run experiment.toml --distributed
      fedax run experiment.toml --coordinator node1:7000 --num-processes 4 --process-id 0

    Exit code 1: a method diverged, ended worse than it began, or was stopped by its
    guard (the others are finished, all is written). It says nothing else.
    Exit code 2: an error, such as bad input, or a folder that cannot be written.
    Exit code 3: another process was lost.
    Exit code 70: a defect of fedax; the last line says where its traceback is.
    Exit code 129, 130 or 143: ended by SIGHUP, Ctrl-C or SIGTERM, after the round under
    way, with a checkpoint and a report; --resume goes on. A second one ends it at once.
    """
    from fedax import Checkpoints
    from fedax.errors import ConfigError

    given = {"coordinator": coordinator, "num_processes": num_processes, "process_id": process_id}
    missing = [name for name, value in given.items() if value is None]
    if 0 < len(missing) < 3:
        raise ConfigError(missing[0], None, "give --coordinator, --num-processes and --process-id together")

    kept: dict[str, Any] = {"rounds": checkpoint_rounds, "minutes": checkpoint_minutes, "best": checkpoint_best}
    Checkpoints("", **kept)  # refuses bad values before anything begins

    def configured() -> None:
        tables, code = _configured(config, settings, allow_code)
        _run(tables, code, out, resume, **kept)

    if not distributed and missing:
        return configured()

    def together() -> None:
        from fedax.engine.processes import connect

        connect(coordinator, num_processes, process_id)
        configured()

    _leaves_others(together)


@app.command()
@_clear_errors
def compare(
    dataset: Annotated[str, typer.Argument(help="One of: fedax list data.")] = "digits",
    methods: Annotated[
        str, typer.Option(help="Separated by commas; see: fedax list methods.")
    ] = "fedavg,fedprox,fednova",
    rounds: Annotated[int | None, typer.Option(help="Rounds of communication.", show_default="by data set")] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients.", show_default="by data set")] = None,
    alpha: Annotated[
        float | None, typer.Option(help="How alike the clients are (Dirichlet); small: unlike.", show_default="0.1")
    ] = None,
    by: Annotated[
        str | None, typer.Option(help="Natural clients: a column of the data set, such as writer.", show_default=False)
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Runs a method, each with another seed.", show_default="by data set")
    ] = None,
    settings: Set = None,
    out: Out = None,
) -> None:
    """Compare methods on a data set, with settings that suit it.

    Clients differ in their data and in how much they work, as in FedNova's
    experiments. All choices are shown, can be changed, and are kept in the
    run folder as config.toml.

    \b
    Examples:
      fedax compare digits
      fedax compare digits --methods fedavg,fednova-vr --alpha 0.5 --seeds 5
      fedax compare digits --set "methods.*.momentum=0.9"
      fedax compare mnist --by writer --set run.rounds=100
      fedax compare digits --methods mine.py:FedAvgEMA,fedavg
      fedax compare folder --set data.path=hospitals --set task.name=mlp

    Exit code 1: a method diverged, or ended worse than it began (the others are
    finished, all is written). It says nothing else.
    Exit code 2: an error, such as bad input, or a folder that cannot be written.
    Exit code 70: a defect of fedax; the last line says where its traceback is.
    Exit code 129, 130 or 143: ended by SIGHUP, Ctrl-C or SIGTERM, after the round under
    way, with a checkpoint and a report; the last line says how to go on.
    """
    from fedax.errors import ConfigError
    from fedax.experiments import override
    from fedax.experiments.config.data import data_set
    from fedax.experiments.defaults import comparison
    from fedax.experiments.own import configured
    from fedax.experiments.own import names as names_of

    dataset = data_set(dataset, "dataset").name
    names = [name.strip() for name in methods.split(",") if name.strip()]
    if not names:
        raise ConfigError("methods", methods, "give at least one method; see: fedax list methods")
    tables = comparison(dataset, names)
    if by is not None:
        override(tables, "data.partition=column")
        tables["data"]["column"] = by
    given = {"data.clients": clients, "data.alpha": alpha, "run.rounds": rounds, "run.seeds": seeds}
    shorthand = [f"{key}={value}" for key, value in given.items() if value is not None]
    for setting in [*shorthand, *(settings or [])]:
        override(tables, setting)
    code = configured(False, typed=names_of(tables))
    for row in tables["methods"]:
        if "lr" in row and "lr" not in code.method(row["name"], "methods").arguments:
            del row["lr"]
    _run(tables, code, out)


@app.command()
@_clear_errors
def sweep(
    config: Annotated[str, typer.Argument(help="Configuration: a TOML file, or a recipe.", show_default=False)],
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", metavar="KEY=VALUES", help="One more axis, or other values of one; may be repeated."),
    ] = None,
    out: Out = None,
    settings: Set = None,
    resume: Resume = False,
    allow_code: AllowCode = False,
    checkpoint_rounds: Rounds = None,
    checkpoint_minutes: Minutes = 10.0,
) -> None:
    """Try the methods of a configuration at many settings, and find the best.

    Hyper-parameters, work, participation, privacy, compression and the batch size
    may vary; what differs in numbers only runs side by side, with all seeds, in one
    compiled program.

    \b
    A configuration says what to try:
      [sweep]
      criterion = "test_loss"          # may be left out
      [sweep.grid]
      "methods.*.lr" = [0.01, 0.1, 1.0]
      "methods.fedprox.prox" = {low = 0.001, high = 1.0, points = 4}
      "work.steps" = [5, 10]
      "privacy.noise" = [0.5, 1.0]

    \b
    Examples:
      fedax sweep experiment.toml
      fedax sweep experiment.toml --grid "methods.*.lr=0.01,0.1,1"
      fedax sweep experiment.toml --set sweep.search=random --set sweep.points=20
      fedax sweep experiment.toml --resume

    Exit code 1: a method diverged, or ended worse than it began, wherever it was
    tried (all is written). It says nothing else.
    Exit code 2: an error, such as bad input, or a folder that cannot be written.
    Exit code 70: a defect of fedax; the last line says where its traceback is.
    Exit code 129, 130 or 143: ended by SIGHUP, Ctrl-C or SIGTERM, after the round under
    way, with a checkpoint and a report; --resume goes on. A second one ends it at once.
    """
    from fedax import Checkpoints
    from fedax.errors import ConfigError
    from fedax.experiments import plan, tune
    from fedax.experiments.config.edit import value_of
    from fedax.experiments.following import Points

    kept: dict[str, Any] = {"rounds": checkpoint_rounds, "minutes": checkpoint_minutes}
    Checkpoints("", **kept)  # refuses bad values before anything begins

    tables, code = _configured(config, settings, allow_code)
    axes: dict[str, Any] = {}
    for given in grid or []:
        key, equals, text = given.partition("=")
        if not equals:
            raise ConfigError("grid", given, "give KEY=VALUES, such as methods.*.lr=0.01,0.1,1")
        values = value_of(text)
        if isinstance(values, str):  # no TOML as it stands
            listed = value_of(f"[{text}]")
            values = listed if isinstance(listed, list) else [value_of(word) for word in text.split(",")]
        axes[key.strip()] = values if isinstance(values, list | dict) else [values]
    tuning = plan(tables, axes, code)
    console = _console()
    folder = _folder(console, out, tuning.config, f"{tuning.config['name']}-sweep", resume)
    with _writing(folder, "sweep", bool(code.sources)):
        _show_plan(console, tuning, folder)
        with Points(tuning, console) as watch:
            record, found = tune(tuning, folder, watch, **kept)
    _show_sweep(console, record, found)
    _show_report(console, record)


@app.command()
@_clear_errors
def study(
    name: Annotated[
        str, typer.Argument(help="A study: a TOML file, or one of fedax list studies.", show_default=False)
    ],
    out: Annotated[pathlib.Path | None, typer.Option(help="Folder of the study.", show_default="studies/NAME")] = None,
    part: Annotated[
        list[str] | None, typer.Option("--part", metavar="PART", help="Only this part; may be repeated.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes at a time.", show_default="one a core")] = None,
    hours: Annotated[
        float | None, typer.Option(min=0, help="Stop after so many; the same command goes on.", show_default=False)
    ] = None,
) -> None:
    """Do all experiments of a study: tune each method on validation data, then run it with all seeds.

    A study is cut into jobs of one core each: the tuning of one method, or one
    method with one seed. What is done stays done: the same command goes on after
    a stop, and does nothing where nothing is left.

    \b
    The folder has, when it ends and when it is stopped:
      results/      a line for each job: settings, rows, seconds of its core
      report.html   tables, curves, and what came out of each claim
      jobs/         the run folder of each job

    \b
    Examples:
      fedax study fednova
      fedax study momentum --hours 2
      fedax study momentum --part figure-1c
      fedax study mine.toml --jobs 1

    Exit code 0: all is done. Exit code 1: something is left.
    Exit code 2: an error, such as bad input or a job that failed.
    Exit code 70: a defect of fedax; the last line says where its traceback is.
    Exit code 129, 130 or 143: ended by SIGHUP, Ctrl-C or SIGTERM, with a checkpoint of
    each job.
    """
    import math

    from fedax.errors import ConfigError
    from fedax.experiments import study as studies
    from fedax.files import slug

    console = _console()
    share_gpu()  # before a schedule makes JAX look for devices
    found = studies.read_study(name, part or ())
    folder = out or pathlib.Path("studies") / slug(found.section.name)

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    for each in found.parts.values():  # before anything runs: what its design can tell
        if power := studies.design(each):
            say(f"{each.name}: {power}")
    done = False
    try:
        done = studies.carry_out(found, folder, jobs, math.inf if hours is None else hours, say)
    except OSError as error:
        raise ConfigError("out", str(folder), f"cannot write there ({error.strerror}); name another") from error
    finally:
        page = studies.write_page(found, folder)
    for sentence in studies.outcome(found, folder):
        say(sentence)
    if page is not None:
        say(str(page))
    if not done:
        raise typer.Exit(1)


@app.command()
@_clear_errors
def predict(
    model: Annotated[
        pathlib.Path, typer.Argument(help="A model: *.safetensors, as in a run folder's models.", show_default=False)
    ],
    source: Annotated[
        pathlib.Path, typer.Argument(help="New rows: .csv or .parquet; arrays: .npy.", show_default=False)
    ],
    out: Annotated[pathlib.Path, typer.Option(help="The .csv file to write; has to be new.", show_default=False)],
    decimal: Annotated[str, typer.Option(help="The decimal point of the .csv file.")] = ".",
    encoding: Annotated[str, typer.Option(help="Its encoding.")] = "utf-8",
    strict: Annotated[bool, typer.Option("--strict", help="Refuse rows that training had nothing like.")] = False,
) -> None:
    """Predict for new rows with a model that was trained.

    Writes a row for each row, in their order: the columns that the model leaves aside,
    such as an id; the prediction; the probability of each class; and doubts: cells that
    training had nothing like, because they cannot be read, lie far outside, are unknown
    categories, or are missing where none was. They are counted on the screen, too. Where
    the new rows have labels, the loss and the metrics are printed.

    \b
    Examples:
      fedax predict runs/hospitals-1/models/fednova-seed0.safetensors new.csv --out predicted.csv

    Exit code 2: an error, such as a column that is missing, or doubts with --strict. Exit code 70: a defect of
    fedax; the last line says where its traceback is.
    """
    from fedax import load_model
    from fedax.columns import describe, show
    from fedax.experiments.predictions import predict_file

    rows, found, doubts = predict_file(load_model(model), source, out, decimal, encoding, strict)
    typer.echo(f"{rows} predictions: {out}")
    if doubts:
        typer.echo(f"{doubts.doubtful} of {rows} rows have cells that training had nothing like (column doubts):")
        for line in doubts.lines():
            typer.echo(f"  {line}")
    if doubts is not None and doubts.unknown:
        typer.echo(f"Ranges of training are not known of: {', '.join(doubts.unknown)}. A new model will have them.")
    if found:
        figures = {f"test_{name}": value for name, value in found.items()}
        texts = [f"{describe(name).label.removeprefix('Test ')} {show(name, value)}" for name, value in figures.items()]
        typer.echo(f"The rows have labels: {', '.join(texts)}")


class Kind(enum.StrEnum):
    """What ``fedax list`` can list."""

    methods = "methods"
    data = "data"
    tasks = "tasks"
    partitions = "partitions"
    work = "work"
    participation = "participation"
    aggregates = "aggregates"
    compressors = "compressors"
    regularizers = "regularizers"
    trackers = "trackers"
    recipes = "recipes"
    studies = "studies"


@app.command()
@_clear_errors
def diagnose(
    source: Annotated[
        str, typer.Argument(help="Run folder; or a configuration: a TOML file, or a recipe.", show_default=False)
    ],
    rounds: Annotated[
        int | None, typer.Option(help="Rounds that a configuration is run for.", show_default="10")
    ] = None,
    out: Out = None,
    settings: Set = None,
    allow_code: AllowCode = False,
) -> None:
    """Say which method to take for a problem, what it gains and costs, and why.

    Measures at the initial and at the final models what keeps each method from the
    optimum: another objective, drift of the local steps, the noise of minibatches
    and of sampled cohorts, each in units of the loss. The verdict comes last on the
    screen, and first in the report, to which all is added. A configuration is
    run first, for few rounds and with its first seed.

    \b
    Examples:
      fedax diagnose experiment.toml
      fedax diagnose experiment.toml --rounds 30 --set work.kind=steps --set work.steps=10
      fedax diagnose runs/digits-1

    Exit code 1: a method diverged, or ended worse than it began (the others are
    finished, all is written). It says nothing else.
    Exit code 2: an error, such as bad input, or a folder that cannot be written.
    Exit code 70: a defect of fedax; the last line says where its traceback is.
    Exit code 129, 130 or 143: ended by SIGHUP, Ctrl-C or SIGTERM, as fedax run.
    """
    from fedax.errors import ConfigError
    from fedax.experiments import build, read, write_report
    from fedax.experiments.diagnosis import diagnose_run
    from fedax.experiments.own import configured

    if pathlib.Path(source).is_dir():
        for name, value in (("rounds", rounds), ("out", out), ("set", settings)):
            if value is not None and value != []:
                raise ConfigError(name, value, "a run folder is diagnosed as it is; leave this out")
        record = read(source)
        if "sweep" in record.config:
            way_out = "it has many points a method; run its best.toml, and diagnose that run"
            raise ConfigError("source", source, f"this is a sweep: {way_out}")
        experiment = build(record.config, allow_code=configured(allow_code, source))
    else:
        shorthand = [f"run.rounds={10 if rounds is None else rounds}", *(settings or [])]
        tables, code = _configured(source, shorthand, allow_code)
        seeds = tables["run"].get("seeds")
        tables["run"]["seeds"] = seeds[:1] if isinstance(seeds, list) else 1
        experiment = build(tables, allow_code=code)
        record = _train(experiment, out)
    console = _console()
    with console.status("diagnosing") as status:
        diagnose_run(experiment, record, lambda label: status.update(f"diagnosing {label}"))
    record = read(record.folder)
    try:
        write_report([record], record.folder / "report.html")
    except OSError as error:
        raise ConfigError("source", source, f"its report cannot be written ({error.strerror})") from error
    _show_diagnosis(console, record)
    _show_report(console, record)


@app.command()
@_clear_errors
def check(
    method: Annotated[str, typer.Argument(help="Your own, as mine.py:Class, or one of: fedax list methods.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A hyper-parameter; may be repeated."),
    ] = None,
) -> None:
    """Check that a method holds what fedax's own methods hold.

    The order of clients, their number, chunks, places and a stop in between do not
    change what it computes, it keeps no hidden state, its costs are counted, and more.

    \b
    Examples:
      fedax check mine.py:FedAvgEMA
      fedax check mine.py:FedAvgEMA --set lr=0.1 --set server=0.9

    Exit code 1: something does not hold. Exit code 2: an error, such as bad input.
    Exit code 70: a defect of fedax; the last line says where its traceback is.
    """
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")
    from fedax.conformance import check as conforms
    from fedax.errors import ConfigError
    from fedax.experiments.config.codec import made_method
    from fedax.experiments.config.edit import value_of
    from fedax.experiments.config.sections import MethodSection
    from fedax.experiments.own import configured

    given: dict[str, Any] = {}
    for setting in settings or []:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise ConfigError("set", setting, "give KEY=VALUE, such as lr=0.1")
        given[key.strip()] = value_of(text)
    made = made_method(MethodSection(name=method, **given), configured(False, typed=[method]))
    console = _console()
    with console.status("checking") as status:
        found = conforms(made, watch=lambda name: status.update(f"checking: {name}"))
    console.print(str(found), markup=False, highlight=False, soft_wrap=True)
    if not found.passed:
        raise typer.Exit(1)


@app.command("list")
@_clear_errors
def list_(kind: Annotated[Kind | None, typer.Argument(help="What to list; everything if left out.")] = None) -> None:
    """List what a configuration can name: methods, data sets, tasks, partitions,
    work, participation, robust averages, compressors, regularizers; recipes
    (experiments of papers) and studies (many of them, tuned).

    \b
    Examples:
      fedax list
      fedax list methods
    """
    from fedax.algorithms import METHODS
    from fedax.contract.compression import COMPRESSORS
    from fedax.contract.regularizers import REGULARIZERS
    from fedax.data import PARTITIONS
    from fedax.experiments import datasets, recipes
    from fedax.experiments.study import studies
    from fedax.federation import PARTICIPATION, WORK
    from fedax.tasks import TASKS
    from fedax.tracking import TRACKERS
    from fedax.wire import AVERAGES

    lines = {
        Kind.methods: METHODS.available,
        Kind.data: datasets,
        Kind.tasks: TASKS.available,
        Kind.partitions: PARTITIONS.available,
        Kind.work: WORK.available,
        Kind.participation: PARTICIPATION.available,
        Kind.aggregates: AVERAGES.available,
        Kind.compressors: COMPRESSORS.available,
        Kind.regularizers: REGULARIZERS.available,
        Kind.trackers: TRACKERS.available,
        Kind.recipes: recipes,
        Kind.studies: studies,
    }
    console = _console()
    for each in Kind if kind is None else [kind]:
        if kind is None:
            console.print(f"[bold]{each}[/]")
        console.print(_two_columns(lines[each]()))
        if kind is None and each is not Kind.studies:
            console.print()


class Form(enum.StrEnum):
    """In which ``fedax report`` can be written."""

    html = "html"
    csv = "csv"
    latex = "latex"
    markdown = "markdown"


@app.command()
@_clear_errors
def report(
    runs: Annotated[list[pathlib.Path], typer.Argument(help="One or several run folders.", show_default=False)],
    form: Annotated[Form, typer.Option("--format", help="A page, or tables for a paper or a program.")] = Form.html,
    target: Annotated[
        str | None,
        typer.Option(metavar="[COLUMN=]VALUE", help="Show what it cost to reach it.", show_default=False),
    ] = None,
    out: Annotated[
        pathlib.Path | None,
        typer.Option(help="File to write.", show_default="RUN/report.html, or comparison.html; tables are printed"),
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="Only what may be published of a private run, to RUN/public.html.")
    ] = False,
) -> None:
    """Draw the report of one run, or of several together; or print tables of them.

    A run that was stopped, or still goes on, has a report too. Methods are
    compared within a problem: runs with other data, tasks, work, participation,
    rounds or batch stand apart.

    Tables have means and standard deviations over the seeds, confidence
    intervals, paired differences to the best method, and costs; with a target
    also the rounds, local steps, gradients, bytes and seconds until it is
    reached. The LaTeX needs the package booktabs. Figures for a paper are in the
    run folder's plots, as PDF and SVG.

    A report shows figures that no noise hides. With --public it is a page, or a
    table, of what may be published of a private run: settings of the methods,
    what is measured on public examples, and the privacy that is spent.

    \b
    Examples:
      fedax report runs/digits-1
      fedax report runs/digits-1 runs/digits-2 --out both.html
      fedax report runs/digits-1 --format latex --target test_accuracy=0.9
      fedax report runs/digits-1 --format csv --out digits.csv
      fedax report runs/private-1 --public
    """
    from fedax.errors import ConfigError, one_line
    from fedax.experiments import read, summary, tables, write_report
    from fedax.experiments.runs import lost, write_atomic

    aim = None if target is None else _target(target)
    records = [read(folder) for folder in runs]
    for record in records:
        for sentence in lost(record):
            typer.echo(f"warning: {one_line(f'{record.folder}: {sentence}', 1000)}", err=True)
    page = records[0].folder / ("public.html" if public else "report.html")
    path = out or (page if len(records) == 1 else pathlib.Path("comparison.html"))
    text = ""
    if public:
        text = _public(records, form, target)
    elif form is not Form.html:
        made = {Form.csv: tables.to_csv, Form.latex: tables.to_latex, Form.markdown: tables.to_markdown}
        text = made[form](records, target=aim)
    try:
        if form is Form.html and not public:
            write_report(records, path, target=aim)
        elif form is Form.html or out is not None:
            write_atomic(path, text)
    except OSError as error:
        raise ConfigError("out", str(path), f"cannot be written ({error.strerror}); name another with --out") from error
    typer.echo(path if form is Form.html or out is not None else text.rstrip("\n"))
    if (number := len(summary.problems(records))) > 1:
        typer.echo(f"these runs are of {number} different problems, which the report keeps apart", err=True)


def _public(records: "list[Record]", form: Form, target: str | None) -> str:
    """What may be published of a run folder."""
    from fedax.errors import ConfigError
    from fedax.experiments.report.public import FORMS, public

    if target is not None:
        raise ConfigError("target", target, "what it cost to reach it is not public; leave it out with --public")
    if len(records) > 1:
        way_out = "with --public give one folder: its page says what all of its runs have spent together"
        raise ConfigError("runs", [str(record.folder) for record in records], way_out)
    return FORMS[form](public(records[0]))


def _target(text: str) -> float | dict[str, float]:
    """What is to be reached: a value of the column that decides, or of another."""
    from fedax.errors import ConfigError

    column, _, value = text.rpartition("=")
    try:
        number = float(value)
    except ValueError:
        raise ConfigError("target", text, "give a number, or COLUMN=NUMBER, such as test_accuracy=0.9") from None
    return {column.strip(): number} if column else number


@app.command()
@_clear_errors
def cite(
    methods: Annotated[
        list[str] | None, typer.Argument(help="Of: fedax list methods; fedax itself if left out.", show_default="fedax")
    ] = None,
) -> None:
    """Print the BibTeX of methods' papers, and of fedax.

    \b
    Examples:
      fedax cite
      fedax cite fednova scaffold > references.bib
    """
    from fedax.citations import cite as bibtex

    typer.echo(bibtex(*(methods or [])), nl=False)


@app.command()
@_clear_errors
def privacy(
    delta: Annotated[float, typer.Option(help="The δ of (ε, δ); less than 1/clients.", show_default=False)],
    rounds: Annotated[int, typer.Option(help="Rounds of the run.", show_default=False)],
    clients: Annotated[int, typer.Option(help="Number of clients.", show_default=False)],
    epsilon: Annotated[
        float | None, typer.Option(help="The budget ε: find the least noise for it.", show_default=False)
    ] = None,
    noise: Annotated[
        float | None, typer.Option(help="Or the noise, in units of the clip: find its ε.", show_default=False)
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Each client takes part with this probability (Poisson).", show_default=False)
    ] = None,
    cohort: Annotated[
        int | None, typer.Option(help="Or: so many clients a round, without replacement.", show_default=False)
    ] = None,
    apart: Annotated[
        int | None,
        typer.Option(help="Or: no sampling; a client takes part once in so many rounds.", show_default=False),
    ] = None,
    exchanges: Annotated[int, typer.Option(help="Noisy sums in a round; see the method's page.")] = 1,
    warmup: Annotated[int, typer.Option(help="Noisy sums over all clients before the first round.")] = 0,
    numbers: Annotated[
        int, typer.Option(help="Numbers in a sum, most often the model's: noise of floating point ends somewhere.")
    ] = 0,
    clip: Annotated[
        float | None, typer.Option(help="Also say how large the noise of the mean is.", show_default=False)
    ] = None,
) -> None:
    """Find the least noise for a privacy budget, or what a noise spends, before anything runs.

    The noise is the standard deviation of what is added to a sum of clipped
    uploads, in units of the clip. It is rounded up; the table is for the number shown.

    \b
    Examples:
      fedax privacy --epsilon 3 --delta 1e-6 --rounds 1000 --clients 10000 --rate 0.01
      fedax privacy --noise 1.1 --delta 1e-6 --rounds 1000 --clients 10000 --cohort 100
      fedax privacy --epsilon 8 --delta 1e-6 --rounds 1000 --clients 10000 --apart 8 --clip 0.5

    Exit code 2: an error, such as bad input. Exit code 70: a defect of fedax; the last
    line says where its traceback is.
    """
    from fedax.errors import ConfigError
    from fedax.numbers import check_number
    from fedax.privacy import Ledger, noise_for

    if (epsilon is None) == (noise is None):
        raise ConfigError("epsilon", epsilon, "give either --epsilon, a budget, or --noise")
    ways = {"rate": rate, "cohort": cohort, "apart": apart}
    sampling = {name: value for name, value in ways.items() if value is not None}
    if len(sampling) != 1:
        found = ", ".join(f"--{name} {value:g}" for name, value in sampling.items()) or "none of them"
        raise ConfigError("rate", rate, f"say who takes part by one of --rate, --cohort and --apart, not by {found}")
    if clip is not None:
        check_number("clip", clip, 0, open_low=True)
    how: dict[str, Any] = {**sampling, "exchanges": exchanges, "warmup": warmup, "numbers": numbers}
    if noise is None:
        assert epsilon is not None
        noise = _rounded_up(noise_for(epsilon, delta, rounds, clients, **how))
    ledger = Ledger(noise, clients, **how)
    spent = {count: ledger.epsilon(count, delta) for count in sorted({-(-rounds // 4), -(-rounds // 2), rounds})}
    lines = {
        "Noise": f"{noise:.5g} times the clip, on each sum",
        "Epsilon": f"{spent[rounds]:.4g} at delta {delta:g}, after {rounds} round{'s'[: rounds - 1]}",
        "Neighbours": ledger.relation,
        "Accountant": {"PLD": "privacy loss distributions (PLD)", "RDP": "Rényi (RDP)"}[ledger.accountant],
    }
    if clip is not None:
        size = clients * rate if rate else cohort or clients / (apart or 1)
        among = f"in a mean over {size:g} clients" + " (all of them in turn)" * bool(apart)
        lines["On the mean"] = f"{noise * clip / size:.4g} in each number, {among}, clip {clip:g}"
    console = _console()
    console.print(_two_columns(lines))
    table = {f"{count:6}": f"{value:#.4g}".rstrip(".") for count, value in spent.items()}
    console.print(_two_columns({"\nRounds": "\nEpsilon"} | table))
    if delta * clients > 1:
        typer.echo(f"delta is more than 1/clients = {1 / clients:.2g}: to publish one client's data would satisfy it")


def _rounded_up(noise: float) -> float:
    """To five digits, upwards."""
    import decimal

    return float(decimal.Context(prec=5, rounding=decimal.ROUND_UP).create_decimal(noise))


deploy = typer.Typer(
    cls=cli_status.Deploy,
    help="Train on real clients, over Flower: a link, a node at each site, and the run.",
    epilog="Begin with: fedax deploy local experiment.toml --nodes 3",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.add_typer(deploy, name="deploy")
cli_status.add(deploy, _clear_errors)

Timeout = Annotated[float, typer.Option(min=1.0, metavar="SECONDS", help="How long to wait for the answer of a node.")]
Link = Annotated[str, typer.Option(metavar="HOST:PORT", help="The link.", show_default=False)]


LogLevel = Annotated[
    str, typer.Option(envvar="FEDAX_LOG_LEVEL", metavar="error|warning|info", help="What is written to the logs.")
]
LogSize = Annotated[
    float, typer.Option(envvar="FEDAX_LOG_SIZE", min=0.01, metavar="MB", help="At this size a log is begun anew.")
]
LogKeep = Annotated[int, typer.Option(envvar="FEDAX_LOG_KEEP", min=1, help="How many older logs are kept.")]


def _set_logs(level: str, size: float, keep: int) -> None:
    """Tell the processes that are started from here how to keep logs."""
    from fedax.errors import ConfigError

    if level not in ("error", "warning", "info"):
        raise ConfigError("log_level", level, "give error, warning or info")
    os.environ.update(FEDAX_LOG_LEVEL=level, FEDAX_LOG_SIZE=str(size), FEDAX_LOG_KEEP=str(keep))


@deploy.command("local")
@_clear_errors
def deploy_local(
    config: Annotated[str, typer.Argument(help="Configuration: a TOML file, or a recipe.", show_default=False)],
    nodes: Annotated[int, typer.Option(min=1, help="How many nodes the clients are dealt to.")] = 3,
    out: Out = None,
    settings: Set = None,
    resume: Resume = False,
    allow_code: AllowCode = False,
    timeout: Timeout = 600.0,
    ray: Annotated[bool, typer.Option("--ray", help="Every client a node of Flower's simulation, on Ray.")] = False,
) -> None:
    """Try a deployment on this machine: the link and the nodes are processes here.

    The data set of the configuration is dealt to the nodes. TLS and keys are made
    for them. The run folder and the report are those of fedax run.

    \b
    Examples:
      fedax deploy local experiment.toml --nodes 3
      fedax deploy local experiment.toml --set run.rounds=5
      fedax deploy local experiment.toml --resume

    Exit codes: as fedax run. With 2, a node or the link could not go on; --resume does.
    """
    from fedax.experiments import build
    from fedax.flower import deploy as deployment

    share_gpu()  # with the nodes
    tables, code = _configured(config, settings, allow_code)
    experiment = build(tables, allow_code=code)
    deployment.check_local(experiment, nodes)
    say = lambda line: typer.echo(line, err=True)  # noqa: E731
    if ray:
        return _finish(_on_ray(experiment, out, resume, timeout, say))
    start = lambda ready, folder: deployment.local(ready, folder, nodes, timeout, say)  # noqa: E731
    _finish(_train(experiment, out, resume, "deploy local", start))


@deploy.command("link")
@_clear_errors
def deploy_link(
    folder: Annotated[pathlib.Path, typer.Option(help="For certificates, keys and the database.")] = pathlib.Path(
        "link"
    ),
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="A name or address by which nodes reach this machine; may be repeated.", show_default="its own name"
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port that nodes reach.")] = 9443,
    bind: Annotated[str, typer.Option(help="The address of this machine to listen at.")] = "0.0.0.0",
    connections: Annotated[int, typer.Option(min=1, help="How many connections there may be at a time.")] = 512,
    connections_each: Annotated[int, typer.Option(min=1, help="The same, from one address.")] = 128,
    log_level: LogLevel = "warning",
    log_size: LogSize = 10.0,
    log_keep: LogKeep = 5,
) -> None:
    """Run the link, where nodes and runs meet, until Ctrl-C.

    Makes what is missing in the folder: certificates, a secret, a database. Each
    node's public key belongs into its folder nodes/, and ca.pem to each node.

    \b
    Examples:
      fedax deploy link --host fed.example.org
      fedax deploy link --folder link --host 192.168.1.7 --port 9443
    """
    from fedax.flower import require

    require()
    from fedax.flower import link as links

    _set_logs(log_level, log_size, log_keep)
    hosts, limits = host or [socket.gethostname(), socket.getfqdn()], {"total": connections, "each": connections_each}
    links.run(folder, hosts, port, bind=bind, limits=limits, say=typer.echo)


@deploy.command("link renew")
@_clear_errors
def deploy_link_renew(
    folder: Annotated[pathlib.Path, typer.Option(help="The link's folder.")] = pathlib.Path("link"),
    ca: Annotated[
        bool, typer.Option("--ca", help="Make a new authority, which sites trust beside the old one.")
    ] = False,
) -> None:
    """Give a link another certificate, while it runs.

    With --ca, the file ca.pem has a new authority and the old one. Give it to every
    site; when all have it, the same command without --ca takes the new authority.

    \b
    Examples:
      fedax deploy link renew --folder link
      fedax deploy link renew --folder link --ca
    """
    from fedax.flower import require

    require()
    from fedax.flower import certificates

    until = f"{certificates.renew(folder, ca):%Y-%m-%d}"
    if ca:
        typer.echo(
            f"{folder / 'ca.pem'} has a new authority, valid until {until}, and the old one: give it to every site"
        )
        typer.echo(f"when all have it: fedax deploy link renew --folder {shlex.quote(str(folder))}")
    else:
        typer.echo(f"the link's certificate is new, and valid until {until}; new connections have it at once")


@deploy.command("node")
@_clear_errors
def deploy_node(
    link: Link,
    data: Annotated[
        pathlib.Path,
        typer.Option(help="Its table, .csv or .parquet; or its clients' arrays, as FederatedData.save writes them."),
    ],
    key: Annotated[pathlib.Path, typer.Option(help="Its private key; made where it is missing, with KEY.pub.")],
    ca: Annotated[pathlib.Path, typer.Option(help="The link's certificate, ca.pem of its folder.")] = pathlib.Path(
        "ca.pem"
    ),
    clients: Annotated[
        str | None,
        typer.Option(
            help="Its clients' names, separated by commas.",
            show_default="the table's, those of the data, or the key's name",
        ),
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="Of a table: not used, and nothing of it leaves; may be repeated.",
            show_default=False,
        ),
    ] = None,
    decimal: Annotated[str | None, typer.Option(help="The decimal point of a .csv file.", show_default=".")] = None,
    encoding: Annotated[str | None, typer.Option(help="Its encoding.", show_default="utf-8")] = None,
    drop_missing_labels: Annotated[
        bool, typer.Option("--drop-missing-labels", help="Leave rows of a table without a label out.")
    ] = False,
    review: Annotated[
        bool, typer.Option("--review", help="Of a table: its owner sees each summary before it leaves.")
    ] = False,
    test: Annotated[
        pathlib.Path | None, typer.Option(help="Held-out examples of this site.", show_default=False)
    ] = None,
    val: Annotated[
        pathlib.Path | None, typer.Option(help="The same, to choose by and not to report.", show_default=False)
    ] = None,
    policy: Annotated[
        pathlib.Path | None,
        typer.Option(help="A file with all rules of its owner: fedax deploy policy writes one.", show_default=False),
    ] = None,
    roster: Annotated[
        pathlib.Path | None,
        typer.Option(help="For secure sums: a folder with KEY.pub of each node of the federation.", show_default=False),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="The measures that may leave, separated by commas.", show_default="all")
    ] = None,
    max_rounds: Annotated[
        int | None, typer.Option(min=1, help="In how many rounds of all runs it takes part.", show_default="no limit")
    ] = None,
    noise: Annotated[
        float | None,
        typer.Option(help="Noise on figures that leave, in units of what one client can move.", show_default="none"),
    ] = None,
    bound: Annotated[
        float | None, typer.Option(help="With --noise: the largest loss; others are clipped.", show_default=False)
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="With --noise: what all figures may spend.", show_default="8, at δ = 1e-5")
    ] = None,
    split: Annotated[
        bool, typer.Option("--split/--no-split", help="Whether a run may hold out some of its rows, [data.split].")
    ] = True,
    trusted: Annotated[
        list[str] | None, typer.Option(metavar="HASH", help="An app of others that may run here.", show_default=False)
    ] = None,
    allow_code: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE", help="A method's or task's code that may run here; may be repeated.", show_default=False
        ),
    ] = None,
    state: Annotated[
        pathlib.Path | None, typer.Option(help="Folder for memory and logs.", show_default="KEY.state")
    ] = None,
    poll: Annotated[float, typer.Option(help="Seconds between questions for messages.")] = 3.0,
    wait: Annotated[
        float | None, typer.Option(help="Seconds to wait for a link that is gone.", show_default="for ever")
    ] = None,
    log_level: LogLevel = "warning",
    log_size: LogSize = 10.0,
    log_keep: LogKeep = 5,
) -> None:
    """Run the node of a site, with one client or several, until Ctrl-C.

    Data never leave it. What leaves is in the log of its folder, message by message.
    A table waits for the coordinator's fedax deploy tables.

    \b
    Examples:
      fedax deploy node --link fed.example.org:9443 --data hospital-7.csv --key node7
      fedax deploy node --link fed.example.org:9443 --data hospital-7.csv --key node7 --drop patient --review
      fedax deploy node --link fed.example.org:9443 --data wards --key node7 --clients icu,surgery
    """
    from fedax.flower import deploy as deployment

    _set_logs(log_level, log_size, log_keep)
    listed = lambda text: None if text is None else [each.strip() for each in text.split(",")]  # noqa: E731
    table = {"drop": drop, "decimal": decimal, "encoding": encoding, "review": review}
    rules: dict[str, dict[str, Any]] = {
        "runs": {"rounds": max_rounds, "split": None if split else False},
        "figures": {"columns": listed(columns), "noise": noise, "bound": bound},
        "budget": {"epsilon": epsilon},
    }
    deployment.node(
        link, ca, key, data, state=state, names=listed(clients),
        table=table | {"drop_missing_labels": drop_missing_labels}, test=test, val=val,
        policy=_policy(policy, rules), roster=roster, trusted=trusted or [], code=allow_code or [],
        poll=poll, wait=wait, say=typer.echo,
    )  # fmt: skip


def _policy(path: pathlib.Path | None, rules: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The tables of an owner's rules: of a file, or of options."""
    from fedax.engine.places.policy import Policy, read_table
    from fedax.errors import ConfigError

    given = {}
    for section, own in rules.items():
        if known := {name: value for name, value in own.items() if value is not None}:
            given[section] = known
    if path is None:
        return given
    if given:
        (section, own), *_ = given.items()
        name = next(iter(own))
        raise ConfigError(f"{section}.{name}", own[name], f"with --policy all rules are in the file: give it in {path}")
    table = read_table(path)
    Policy.of(table)
    return table


@deploy.command("policy")
@_clear_errors
def deploy_policy(
    out: Annotated[pathlib.Path, typer.Argument(help="The file to write.")] = pathlib.Path("policy.toml"),
) -> None:
    """Write a strict policy for a node, with an explanation of each rule, to be edited by the node's owner.

    \b
    Examples:
      fedax deploy policy
      fedax deploy node --link fed.example.org:9443 --data hospital-7.csv --key node7 --policy policy.toml
    """
    from fedax.engine.places.policy import STRICT
    from fedax.errors import ConfigError

    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(STRICT)
    except FileExistsError:
        raise ConfigError("out", str(out), "this file is there already; give another name") from None
    typer.echo(f"{out}: edit it, then fedax deploy node … --policy {shlex.quote(str(out))}")


@deploy.command("run")
@_clear_errors
def deploy_run(
    config: Annotated[str, typer.Argument(help="Configuration: a TOML file, or a recipe.", show_default=False)],
    link: Link,
    folder: Annotated[pathlib.Path, typer.Option(help="The link's folder, for ca.pem and the secret.")] = pathlib.Path(
        "link"
    ),
    nodes: Annotated[
        int | None, typer.Option(min=1, help="How many nodes to wait for.", show_default="those that are there")
    ] = None,
    test: Annotated[
        pathlib.Path | None, typer.Option(help="Held-out examples at the server.", show_default=False)
    ] = None,
    out: Out = None,
    settings: Set = None,
    resume: Resume = False,
    allow_code: AllowCode = False,
    timeout: Timeout = 600.0,
) -> None:
    """Run an experiment on the clients at the nodes of a link.

    The data are at the nodes; the configuration's own are for simulation, and left
    aside. A node that does not answer in time is left out of the round, where the
    method allows that.

    \b
    Examples:
      fedax deploy run experiment.toml --link fed.example.org:9443 --nodes 3
      fedax deploy run experiment.toml --link fed.example.org:9443 --resume

    Exit codes: as fedax run. With 2, a node or the link could not go on; --resume does.
    """
    from fedax.experiments import build
    from fedax.flower import deploy as deployment

    tables, code = _configured(config, settings, allow_code)
    tables = deployment.with_nodes_data(tables, test, code)
    say = lambda line: typer.echo(line, err=True)  # noqa: E731
    with deployment.fleet_at(link, folder, timeout, nodes, say) as fleet:
        record = _train(build(tables, fleet, code), out, resume, f"deploy run --link {shlex.quote(link)}")
    _finish(record)


for name, command in cli_tables.COMMANDS.items():
    deploy.command(name)(_clear_errors(command))


def _on_ray(
    experiment: "Experiment", out: pathlib.Path | None, resume: bool, timeout: float, say: Callable[[str], None]
) -> "Record":
    from fedax.experiments import read
    from fedax.experiments.runner import check_methods
    from fedax.flower import deploy as deployment

    console = _console()
    check_methods(experiment)
    folder = _folder(console, out, experiment.config, experiment.config["name"], resume)
    with _writing(folder, "deploy local --ray", bool(experiment.code)):
        _show_choices(console, experiment, folder)
        deployment.on_ray(experiment, folder, timeout, say)
    return read(folder)


for name, command in table_commands.COMMANDS.items():
    table_commands.data.command(name)(_clear_errors(command))
app.add_typer(table_commands.data, name="data")


def _finish(record: "Record") -> None:
    console = _console()
    _show_results(console, record)
    _show_report(console, record)


# ---- what run and compare share


def _configured(source: str, settings: list[str] | None, allow_code: bool) -> "tuple[dict[str, Any], Code]":
    """The tables of a configuration with the settings that were typed; and what of the code that it names may run."""
    from fedax.experiments import override, read_toml
    from fedax.experiments.own import configured, names

    tables = read_toml(source)
    in_file = names(tables)
    for setting in settings or []:
        override(tables, setting)
    return tables, configured(allow_code, pathlib.Path(source).parent, names(tables) - in_file)


def _run(tables: Mapping[str, Any], code: "Code", out: pathlib.Path | None, resume: bool = False, **kept: Any) -> None:
    import jax

    from fedax.engine import processes
    from fedax.errors import unknown
    from fedax.experiments import build, execute
    from fedax.experiments.config.experiment import columns
    from fedax.experiments.runner import check_methods

    experiment = build(tables, allow_code=code)
    if (best := kept.get("best")) is not None and best not in (known := columns([experiment])):
        raise unknown("checkpoint-best", best, known)
    if jax.process_index() > 0:  # the first of several processes writes and shows
        checked = check_methods(experiment)
        execute(experiment, pathlib.Path(processes.text_from_first("")), checked=checked, **kept)
        return
    _finish(_train(experiment, out, resume, **kept))


def _train(
    experiment: "Experiment",
    out: pathlib.Path | None,
    resume: bool = False,
    command: str = "run",
    nodes: Callable[["Experiment", pathlib.Path], contextlib.AbstractContextManager["Experiment"]] | None = None,
    **kept: Any,
) -> "Record":
    """Run an experiment with all that is shown of it; ``nodes``: gives it real clients, once it has a folder."""
    from fedax.engine import processes
    from fedax.experiments import execute
    from fedax.experiments.following import Runs
    from fedax.experiments.runner import check_methods

    console = _console()
    checked = check_methods(experiment)  # before there is a folder
    folder = _folder(console, out, experiment.config, experiment.config["name"], resume)
    with _writing(folder, command, bool(experiment.code)):
        processes.text_from_first(str(folder.absolute()))
        _show_choices(console, experiment, folder)
        with contextlib.nullcontext(experiment) if nodes is None else nodes(experiment, folder) as ready:
            checked = checked if nodes is None else check_methods(ready)
            with Runs(ready, console) as watch:
                if ready.fleet is not None:
                    from fedax.flower.status import follow

                    watch = follow(ready, folder, watch)
                record = execute(ready, folder, watch, checked, **kept)
    assert record is not None
    return record


def _folder(
    console: "Console", out: pathlib.Path | None, config: Mapping[str, Any], name: str, resume: bool
) -> pathlib.Path:
    """That of the run of this configuration that has begun, where it is asked for; else a new one."""
    from fedax.errors import ConfigError
    from fedax.experiments import begun_folder, new_folder

    folder = begun_folder(out, config, name) if resume or out is not None else None
    if folder is None and resume and (out is None or not out.exists()):  # it may have ended before it began
        raise ConfigError("resume", True, "no run of this configuration has begun there; leave --resume out")
    if folder is not None:
        console.print(f"Going on with {folder}", markup=False, highlight=False, soft_wrap=True)
    return folder or new_folder(out, name)


@contextlib.contextmanager
def _writing(folder: pathlib.Path, command: str, own_code: bool = False) -> Iterator[None]:
    """While a run folder is written: nobody else does; and what ends it early leaves a report and the way to go on."""
    from fedax.engine import processes, signals
    from fedax.experiments import locked

    # Whatever command began it.
    way_on = f"fedax {command} {shlex.quote(str(folder / 'config.toml'))} --out {shlex.quote(str(folder))} --resume"
    way_on += " --allow-code" * own_code
    with locked(folder):
        _under_way[:] = [folder.absolute()]
        try:
            yield
        except KeyboardInterrupt as error:
            if signals.kept(error):
                processes.part()
            _stopped(error, folder, f"to go on: {way_on}")
        except OSError as error:
            raise _unwritable(folder, error, f"once it can: {way_on}") from error


def _stopped(error: KeyboardInterrupt, folder: pathlib.Path, way_on: str) -> NoReturn:
    """The report of what there is, and how to go on."""
    from fedax.errors import FedaxError
    from fedax.experiments import read, write_report

    seen = f"what was done is in {folder}"
    with contextlib.suppress(FedaxError, OSError):  # no evaluation yet; no room on the disk
        write_report([read(folder)], folder / "report.html")
        seen = f"report: {folder / 'report.html'}"
    typer.echo(f"stopped; {seen}; {way_on}", err=True)
    raise typer.Exit(_exit_code(error)) from None


def _unwritable(folder: pathlib.Path, error: OSError, way_on: str) -> Exception:
    from fedax.errors import ConfigError

    where = f": {error.filename}" if error.filename else ""
    return ConfigError("out", str(folder), f"it cannot be written ({error.strerror or error}{where}); {way_on}")


def _show_report(console: "Console", record: "Record") -> None:
    """Where it is; and exit code 1 where a method failed."""
    from rich.markup import escape

    from fedax.engine.history import FAILED
    from fedax.experiments import summary

    path = escape(str(record.folder / "report.html"))
    console.print(f"\nReport: [bold]{path}[/]", highlight=False, soft_wrap=True)
    if any(each.status in FAILED for each in summary.methods([record])):
        raise typer.Exit(1)


def _console() -> "Console":
    from rich.console import Console
    from rich.segment import Segment

    class Quiet(Console):
        """Writes names that may be others', of methods, classes and clients, without what moves a cursor."""

        def render(self, *given: Any, **options: Any) -> Any:
            for segment in super().render(*given, **options):
                yield segment if segment.control else Segment(segment.text.translate(UNSEEN), segment.style)

    from fedax.errors import UNSEEN

    if sys.stdout.isatty():
        return Quiet(highlight=False)
    # A file or a pipe has no width; rich would take 80. It is no terminal, though notebooks set FORCE_COLOR.
    return Quiet(highlight=False, width=120, force_terminal=False)


def _two_columns(lines: Mapping[str, str]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for left, right in lines.items():
        table.add_row(left, Text(right))
    return table


def _print_table(console: "Console", table: Any) -> None:
    """Print a table without those of its last columns for which there is no room: no name and no number is cut.

    The first column may be wrapped, and others that are not ``no_wrap``.
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
        console.print(f"[dim]No room here for: {', '.join(dropped)}. The report has them.[/]")


def _show_plan(console: "Console", tuning: "Tuning", folder: pathlib.Path) -> None:
    from fedax.experiments.runner import count_parameters
    from fedax.experiments.summary import axis, facts

    first = next(iter(tuning.experiments.values()))[0]
    lines = facts(tuning.config, first.data.sizes.tolist(), count_parameters(first.task))
    methods = [f"{label} ({len(points)} point{'s'[: len(points) - 1]})" for label, points in tuning.points.items()]
    asked = tuning.config["sweep"]
    axes = "; ".join(f"{path} {axis(values)}" for path, values in asked["grid"].items())
    lines |= {
        "Sweep": f"{axes}; {asked['search']} search",
        "Judged by": f"{asked['criterion']}, {asked['better']} is better",
    }
    console.print(_two_columns({**lines, "Methods": ", ".join(methods), "Folder": str(folder)}))
    console.print()


_TOP = 3  # points of a method in the table


def _show_sweep(console: "Console", record: "Record", found: Mapping[str, Any]) -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from fedax.columns import describe, show
    from fedax.experiments import sweeps

    console.print(f"\n[bold]{escape(sweeps.about(record))}[/]")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("Method", overflow="fold")
    table.add_column("Best points", overflow="fold")
    table.add_column(describe(found["criterion"]).label, justify="right", no_wrap=True)
    for label in record.labels:
        trials = record.trials(label)
        for k, trial in enumerate(trials[:_TOP]):
            style = "[bold green]" if k == 0 and not trial.failed else "[dim]"
            cells = [label if k == 0 else "", sweeps.settings(trial.point), sweeps.score(record, trial)]
            if trial.failed and trial.failed < len(trial.runs):
                cells[2] += f", {trial.failed} of {len(trial.runs)} seeds {sweeps.failure(trial)}"
            table.add_row(escape(cells[0]), *(f"{style}{escape(cell)}[/]" for cell in cells[1:]))
    _print_table(console, table)
    for note in found["notes"]:
        console.print(f"[yellow]•[/] {escape(note)}")
    programs = found["programs"]
    compiled = f"{programs} compiled program{'s'[: programs - 1]}"
    console.print(
        f"\n{len(record.runs)} runs in {compiled}, {show('seconds', found['seconds'])}; all points: sweep.json"
    )
    for file, labels in found["best"].items():
        which = f"   [dim]# {escape(', '.join(labels))}[/]" if len(found["best"]) > 1 else ""
        path = escape(str(record.folder / file))
        console.print(f"The best again: [bold]fedax run {path}[/]{which}", soft_wrap=True)


def _show_choices(console: "Console", experiment: "Experiment", folder: pathlib.Path) -> None:
    from fedax.columns import better
    from fedax.experiments import noted
    from fedax.experiments.following import decides
    from fedax.experiments.runner import count_parameters
    from fedax.experiments.summary import facts, short, telling

    lines = facts(experiment.config, experiment.data.sizes.tolist(), count_parameters(experiment.task))
    if (column := decides(experiment)) is not None and len(experiment.methods) > 1:
        lines["Judged by"] = f"{column}, {better(column)} is better"
    methods = [
        f"{m['label']} ({', '.join(f'{k} {short(v)}' for k, v in telling(m).items())})"
        for m in experiment.config["methods"]
    ]
    console.print(_two_columns({**lines, "Methods": ", ".join(methods), "Folder": str(folder)}))
    console.print("[dim]To change any of it: --set run.rounds=200. All settings: config.toml in that folder.[/]\n")
    for line in noted.lines(experiment.config, experiment.data.overview):
        console.print(f"note: {line}", markup=False, highlight=False, soft_wrap=True)


def _show_results(console: "Console", record: "Record") -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from fedax.columns import better, describe, show, shown
    from fedax.experiments import clients, summary

    (problem,) = summary.problems([record])
    columns = shown(summary.table_order(problem), problem.judge)
    columns = [column for column in columns if column != "train_loss" or problem.judge in (None, column)]
    title, *legend = summary.legend(problem)
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    table.add_column("Method", overflow="fold")
    for column in columns:
        table.add_column(describe(column).label, justify="right", no_wrap=True)
        if column == problem.judge and problem.tail:
            table.add_column(f"Mean of its last {problem.tail}", justify="right", no_wrap=True)
    table.add_column("Traffic", justify="right", no_wrap=True)
    table.add_column("Time", justify="right", no_wrap=True)
    for m in problem.methods:
        cells = []
        for column in columns:
            cells.append(summary.with_spread(column, m.final(column)))
            if column == problem.judge:
                mark = problem.mark(m)
                cells[-1] = f"[bold green]{cells[-1]} ★[/]" if mark == "★" else f"{cells[-1]} {mark}".strip()
                if problem.tail:
                    cells.append(summary.with_spread(column, m.tail(column, problem.tail)))
        if m.status != "finished":
            cells[0] = f"[red]{summary.WORDS[m.status]}[/]"  # more is said below
        traffic = show("bytes_down", m.cost("bytes_down") + m.cost("bytes_up"))
        table.add_row(escape(m.label), *cells, traffic, show("seconds", m.cost("seconds")))
    _print_table(console, table)
    console.print(f"[dim]{escape(' '.join(legend))}[/]")
    for sentence in (*summary.verdict(problem), *summary.spending(problem)):
        console.print(escape(sentence))
    if (majority := record.about.get("majority")) is not None:
        console.print(escape(clients.majority_text(majority)), highlight=False)
    best = problem.best or problem.methods[0]
    for figure in clients.figures_of(record, problem.judge)[:1]:
        way = better(f"test_{figure}") or "lower"
        spread = clients.spread_of(best.label, clients.tables(record, best.label), figure, way)
        if spread is not None:
            console.print(escape(clients.worst_text(spread, figure)), highlight=False)
    for sentence in clients.left_out(record.folder):
        console.print(escape(sentence), highlight=False)


def _show_diagnosis(console: "Console", record: "Record") -> None:
    """The figures, then the reasons, and last, where a person looks, the verdict."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from fedax.experiments import diagnosis

    found = record.diagnosis
    table = Table(box=box.SIMPLE_HEAD, title=f"Measured at {escape(diagnosis.where(found))}", title_justify="left",
                  title_style="bold", pad_edge=False)  # fmt: skip
    table.add_column("")
    for method in found:
        table.add_column(escape(method["label"]), justify="right", overflow="fold")
    for name, cells in diagnosis.rows(found):
        table.add_row(name, *cells)
    console.print(table)
    console.print("[bold]What these figures cannot tell[/]")
    console.print(_bullets(diagnosis.unknown(found)))
    for method in found:
        console.print(f"\n[bold]{escape(method['label'])}[/]")
        console.print(_bullets(method["advice"]))
    console.print(f"\n[bold]Verdict[/]\n{escape(diagnosis.verdict(record))}\n", highlight=False)


def _bullets(sentences: list[str]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1))
    for sentence in sentences:
        table.add_row("•", Text(sentence))
    return table
