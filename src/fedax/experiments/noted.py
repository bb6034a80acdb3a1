"""What a run used of its tables, notes on what is odd there and in its results, and the options that change it."""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedax.columns import PERSONAL, describe, show
from fedax.data import Overview
from fedax.experiments.config.sections import PYTHON
from fedax.experiments.runs import Record
from fedax.experiments.summary import Method, ProblemResults, metrics

_READERS = ("csv", "parquet", "arrow", "heart")
_TOO_GOOD = {f"{part}_{name}": least for part in ("test", "val") for name, least in (("auc", 0.999), ("accuracy", 1.0))}


def overview_of(record: Record) -> Overview | None:
    """The columns of a run's tables by client; ``None`` if it had no tables, or its sites did not agree."""
    about = record.about.get("columns")
    return None if about is None else Overview.from_json(about)


def lines(config: Mapping[str, Any], overview: Overview | None, most: int = 12) -> list[str]:
    """A line for each column that looks odd, with the option that leaves it out; of more than ``most`` alike, one."""
    if overview is None:
        return []
    name, dropped = config["data"]["name"], config["data"].get("drop") or ()
    if name in _READERS:  # one list, because a second --set of the same key would replace the first
        return overview.lines(lambda column: _setting([*dropped, column]), most)
    if name == PYTHON:
        return overview.lines(most=most)
    if name == "nodes":
        return overview.lines(lambda column: f"fedax deploy tables … --drop {shlex.quote(column)}", most)
    return overview.lines(None, most)


_LINES = 12  # of a screen


def brief(config: Mapping[str, Any], overview: Overview | None) -> list[str]:
    """What will be used, and the most serious notes: 12 lines at most."""
    if overview is None:
        return []
    about = overview.about()
    notes = [f"note: {line}" for line in lines(config, overview, most=3)]
    left = _LINES - len(about)
    if len(notes) > left:
        notes = [*notes[: left - 1], f"and {len(notes) - left + 1} notes more, which the report shows"]
    return about + notes


def doubtful(problem: ProblemResults) -> list[str]:
    """A sentence where results on held-out examples are better than real data let them be, or no better than a guess.

    An AUC of 0.999 or an accuracy of 1 is mostly a column that is known only after the label, or rows that stand in
    training and in test. A guess is always the most frequent class.
    """
    methods = [m for m in (problem.chosen, problem.best, *problem.methods) if m is not None]
    for column, least in _TOO_GOOD.items():
        found = {}
        for m in methods:
            if (of := _delivered(column, m)) in metrics([m]) and m.final(of).size:
                found[m.label] = float(np.mean(m.final(of)))
        if good := [label for label, value in found.items() if value >= least]:
            what = f"{good[0]}: {describe(column).label} {show(column, found[good[0]])}"
            look = "look for a column that is known only after the label, and for rows that are in training and in test"
            return [f"Too good to be true? {what}; {look}."]
    majority, column = problem.records[0].about.get("majority"), _delivered("test_accuracy", methods[0])
    if majority is not None and column in metrics(methods[:1]) and methods[0].final(column).size:
        accuracy = float(np.mean(methods[0].final(column)))
        if accuracy <= majority["accuracy"]:
            guess = f"always class {majority['class']}, {show(column, majority['accuracy'])}"
            what = f"By accuracy, {show(column, accuracy)}, {methods[0].label} is no better than {guess}"
            return [f"{what}: judge it by AUC, recall and precision."]
    return []


def _delivered(column: str, m: Method) -> str:
    """The column of the models that a method gives clients."""
    return own if (own := f"{column}{PERSONAL}") in metrics([m]) else column


def _setting(columns: Sequence[str]) -> str:
    """The option that leaves columns out, quoted for a shell.

    Example:
        >>> print(_setting(["patient"]), _setting(["$HOME's"]))
        --set "data.drop=['patient']" --set 'data.drop=["$HOME'"'"'s"]'
    """
    if all(name.replace(" ", "_").isidentifier() for name in columns):
        return f'--set "data.drop={[*columns]}"'
    return f"--set {shlex.quote(f'data.drop={json.dumps([*columns])}')}"
