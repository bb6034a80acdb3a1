"""Tests of experiments, and what several of them share."""

from typer.testing import CliRunner, Result

from fedax.cli import app


def run_cli(*arguments: str) -> Result:
    """The outcome of ``fedax <arguments>``, run in this process."""
    return CliRunner().invoke(app, arguments)
