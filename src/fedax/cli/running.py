"""Shared by the commands that run an experiment: options, the run folder, output."""

import contextlib
import pathlib
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedax.cli import exits
from fedax.cli.console import echo, open_console
from fedax.cli.show import show_choices, show_report, show_results
from fedax.errors import ConfigError, unknown

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from rich.console import Console

    from fedax.experiments import Experiment, Record
    from fedax.experiments.own import Code

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
On = Annotated[
    str | None,
    typer.Option(
        "--on", metavar="WHERE", help="processes:N, dask:tcp://host:port, slurm:PARTITION or ray.", show_default=False
    ),
]
Best = Annotated[
    str | None,
    typer.Option(
        "--checkpoint-best",
        metavar="COLUMN",
        help="Keep the model at its best too, as by test_loss.",
        show_default=False,
    ),
]
AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="Run the code that the configuration names, such as mine.py:Method.")
]

Methods = Annotated[
    str | None,
    typer.Option(metavar="LABELS", help="Only these of its methods, separated by commas.", show_default=False),
]


def read_config(
    source: str, settings: list[str] | None, allow_code: bool, methods: str | None = None
) -> "tuple[dict[str, Any], Code]":
    """The tables of a configuration with the typed settings, and the code that it may run; ``methods``: only these."""
    from fedax.experiments import override, read_toml
    from fedax.experiments.config.edit import pick
    from fedax.experiments.own import configured, names

    tables = read_toml(source)
    if methods is not None:
        pick(tables, methods)
    in_file = names(tables)
    for setting in settings or []:
        override(tables, setting)
    return tables, configured(allow_code, pathlib.Path(source).parent, names(tables) - in_file)


def run_experiment(
    tables: Mapping[str, Any],
    code: "Code",
    out: pathlib.Path | None,
    resume: bool = False,
    tune: "Callable[[Experiment], bool]" = lambda experiment: False,
    **kept: Any,
) -> None:
    """Run a configuration, in all processes, and show the results.

    ``tune``: whether learning rates are chosen first; ``kept``: as in ``execute``.
    """
    import jax

    from fedax.engine import processes
    from fedax.experiments import build, execute
    from fedax.experiments.runner import check_methods

    experiment = build(tables, allow_code=code)
    check_best(experiment, kept.get("best"))
    if jax.process_index() > 0:  # only the first process writes and shows
        checked = check_methods(experiment)
        execute(experiment, pathlib.Path(processes.text_from_first("")), checked=checked, **kept)
        return
    if tune(experiment):
        from fedax.experiments import rates
        from fedax.experiments.runs import new_folder

        if out is not None and out.exists() and not (out / "config.toml").exists():
            new_folder(out, experiment.config["name"])  # refuses what is no folder for a run, before anything is run
        with open_console().status("three learning rates of each method, by validation (--no-tune: as configured)"):
            experiment = rates.chosen(experiment, code)
    finish(carry_out(experiment, out, resume, **kept))


def check_best(experiment: "Experiment", best: str | None) -> None:
    """Refuse a ``--checkpoint-best`` that is no column of the experiment."""
    from fedax.experiments.config.experiment import columns

    if best is not None and best not in (known := columns([experiment])):
        raise unknown("checkpoint-best", best, known)


def engine_of(on: str | None) -> "Callable[[], contextlib.AbstractContextManager[Executor | None]]":
    """The engine that ``--on`` names, checked and not yet open; without one it opens as ``None``.

    It has to open before JAX starts: some engines fork.
    """
    if on is None:
        return contextlib.nullcontext
    from fedax.experiments.cluster import engine

    return engine(on)


def carry_out(
    experiment: "Experiment",
    out: pathlib.Path | None,
    resume: bool = False,
    command: str = "run",
    nodes: Callable[["Experiment", pathlib.Path], contextlib.AbstractContextManager["Experiment"]] | None = None,
    **kept: Any,
) -> "Record":
    """Run an experiment and show its progress; ``nodes``: a context manager that connects it to real clients."""
    from fedax.engine import processes
    from fedax.experiments import execute
    from fedax.experiments.following import Runs
    from fedax.experiments.runner import check_methods

    console = open_console()
    checked = check_methods(experiment)  # before the folder is made
    folder = open_folder(console, out, experiment.config, experiment.config["name"], resume)
    with writing(folder, command, bool(experiment.code)):
        processes.text_from_first(str(folder.absolute()))
        show_choices(console, experiment, folder)
        with contextlib.nullcontext(experiment) if nodes is None else nodes(experiment, folder) as ready:
            checked = checked if nodes is None else check_methods(ready)
            with Runs(ready, console) as watch:
                if ready.fleet is not None:
                    from fedax.sites.service.status import follow

                    watch = follow(ready, folder, watch)
                record = execute(ready, folder, watch, checked, **kept)
    assert record is not None
    return record


def finish(record: "Record") -> None:
    """Show the results of a run; exit code 1 if a method failed."""
    console = open_console()
    show_results(console, record)
    show_report(console, record)


def open_folder(
    console: "Console", out: pathlib.Path | None, config: Mapping[str, Any], name: str, resume: bool
) -> pathlib.Path:
    """The folder of a run of this configuration that has begun, if that is asked for; else a new one."""
    from fedax.experiments.runner import run_folder

    def say(folder: pathlib.Path) -> None:
        console.print(f"Going on with {folder}", markup=False, highlight=False, soft_wrap=True)

    return run_folder(out, config, name, resume, say)


@contextlib.contextmanager
def writing(folder: pathlib.Path, command: str, own_code: bool = False) -> Iterator[None]:
    """Hold the lock of a run folder; an early end leaves a report and says how to continue."""
    from fedax.experiments import runner

    def way_on() -> str:
        if not (folder / "config.toml").is_file():  # the last file of a beginning
            return "the same command again"
        # The same for every command that began the run.
        text = f"fedax {command} {shlex.quote(str(folder / 'config.toml'))} --out {shlex.quote(str(folder))} --resume"
        return text + " --allow-code" * own_code

    def stopped(error: KeyboardInterrupt) -> None:
        report = runner.draw_stopped(folder)
        seen = f"what was done is in {folder}" if report is None else f"report: {report}"
        echo(f"stopped; {seen}; to go on: {way_on()}", err=True)
        raise typer.Exit(exits.exit_code(error)) from None

    with runner.writing(folder, stopped):
        exits.under_way[:] = [folder.absolute()]
        try:
            yield
        except OSError as error:
            where = f": {error.filename}" if error.filename else ""
            hint = f"it cannot be written ({error.strerror or error}{where}); once it can: {way_on()}"
            raise ConfigError("out", str(folder), hint) from error
