"""Notes on odd columns of a run's tables, with the option that leaves each one out."""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from fedax.data import Overview
from fedax.experiments.config.sections import PYTHON
from fedax.experiments.runs import Record

_READERS = ("csv", "parquet", "arrow", "heart")


def overview_of(record: Record) -> Overview | None:
    """The columns of a run's tables by client; ``None`` if it had no tables, or its sites did not agree."""
    about = record.about.get("columns")
    return None if about is None else Overview.from_json(about)


def lines(config: Mapping[str, Any], overview: Overview | None) -> list[str]:
    """A line for each column that looks odd, with the option that leaves it out if there is one."""
    if overview is None:
        return []
    name, dropped = config["data"]["name"], config["data"].get("drop") or ()
    if name in _READERS:  # one list, because a second --set of the same key would replace the first
        return overview.lines(lambda column: _setting([*dropped, column]))
    if name == PYTHON:
        return overview.lines()
    if name == "nodes":
        return overview.lines(lambda column: f"fedax deploy tables … --drop {shlex.quote(column)}")
    return overview.lines(None)


def _setting(columns: Sequence[str]) -> str:
    """The option that leaves columns out, quoted for a shell.

    Example:
        >>> print(_setting(["patient"]), _setting(["$HOME's"]))
        --set "data.drop=['patient']" --set 'data.drop=["$HOME'"'"'s"]'
    """
    if all(name.replace(" ", "_").isidentifier() for name in columns):
        return f'--set "data.drop={[*columns]}"'
    return f"--set {shlex.quote(f'data.drop={json.dumps([*columns])}')}"
