"""The command ``fedax``. What is slow to import is imported where it is used."""

import os
import sys
import warnings
from collections.abc import Callable
from typing import Annotated

import typer

from fedax._start import collect_rarely
from fedax.cli import console, data, deploy, exits, lookup, read, train
from fedax.errors import UNSEEN

app = typer.Typer(
    help="Federated optimization in JAX: run, compare and report on experiments.",
    epilog="Begin with: fedax compare digits",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def main() -> None:
    """The entry point of the command."""
    collect_rarely()
    warnings.formatwarning = lambda message, *_: f"warning: {message}".translate(UNSEEN).replace("\n", " ") + "\n"
    os.environ["MPLBACKEND"] = "agg"  # a notebook may have set a backend that is not installed here
    console.open_output()
    exits.listen()
    try:
        app()
    except SystemExit as ended:
        code = ended.code
    except Exception as error:
        code = exits.report_error(error)
    else:  # app returned: another program has replaced it
        code = 0
    sys.exit(console.close_output(code))


def _show_version(wanted: bool) -> None:
    if wanted:
        import fedax

        console.echo(f"fedax {fedax.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    exits.show_tracebacks(debug)


COMMANDS: dict[str, Callable[..., None]] = {
    "run": train.run,
    "compare": train.compare,
    "sweep": train.sweep,
    "study": train.study,
    "predict": read.predict,
    "export": read.export,
    "fine-tune": read.fine_tune,
    "diagnose": read.diagnose,
    "check": lookup.check,
    "list": lookup.list_,
    "report": read.report,
    "cite": lookup.cite,
    "privacy": lookup.privacy,
}
exits.add_commands(app, COMMANDS)
exits.add_commands(deploy.group, deploy.COMMANDS)
exits.add_commands(data.group, data.COMMANDS)
app.add_typer(deploy.group, name="deploy")
app.add_typer(data.group, name="data")
