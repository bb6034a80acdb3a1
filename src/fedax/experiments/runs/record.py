"""The content of a run folder in memory: the configuration, and the history of each method with each seed."""

import json
import math
import pathlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedax.columns import Direction, better, deciding
from fedax.engine.history import FAILED

Path = pathlib.Path


@dataclass(frozen=True)
class MethodRun:
    """One method with one seed.

    Attributes:
        label: the method's name in this experiment.
        method: its registered name.
        seed: of initial model, minibatches, cohorts.
        status: ``"finished"``, of a run that patience or its budget ended, too; ``"worse"``: so, but worse than it
            began; ``"diverged"``; ``"failed"``: its guard stopped it; or ``"unfinished"``: it was stopped, or is still
            running.
        spent: whether it ended before its last round because its privacy budget was spent.
        history: column -> [evaluations], not-a-number where a value was not finite.
        point: the settings that a sweep tried: hyper-parameters by name, settings of other sections by path.
    """

    label: str
    method: str
    seed: int
    status: str
    history: dict[str, np.ndarray]
    point: dict[str, Any] = field(default_factory=dict)
    spent: bool = False


@dataclass(frozen=True)
class Trial:
    """One point of a sweep at which all seeds have ended.

    Attributes:
        runs: one for each seed.
        scores: [seeds] the final criterion; not-a-number where the run failed: it diverged, ended worse than it began,
            or was stopped by its guard.
    """

    runs: list[MethodRun]
    scores: np.ndarray

    @property
    def point(self) -> dict[str, Any]:
        """The settings that were tried."""
        return self.runs[0].point

    @property
    def failed(self) -> int:
        """How many seeds failed."""
        return int(np.isnan(self.scores).sum())

    @property
    def mean(self) -> float:
        """The mean over the seeds that did not fail."""
        good = self.scores[~np.isnan(self.scores)]
        return float(good.mean()) if good.size else math.nan

    @property
    def std(self) -> float:
        """Sample standard deviation over the seeds that did not fail; not-a-number if there are not two."""
        good = self.scores[~np.isnan(self.scores)]
        return float(good.std(ddof=1)) if good.size > 1 else math.nan


@dataclass(frozen=True)
class Record:
    """The content of a run folder.

    Attributes:
        folder: its path.
        config: the content of config.toml.
        about: the content of about.json.
        runs: all runs that have begun, by method and seed as in the configuration; in a sweep at every point, by method
            and then as they began.
        diagnosis: the content of diagnosis.json, one table for each method; may be empty.
        doubts: sentences on what was edited or moved, or cannot be known.
    """

    folder: Path
    config: dict[str, Any]
    about: dict[str, Any]
    runs: list[MethodRun]
    diagnosis: list[dict[str, Any]]
    doubts: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self.config["name"]

    @property
    def labels(self) -> list[str]:
        """The methods' labels, in the order of the configuration."""
        return list(dict.fromkeys(run.label for run in self.runs))

    def better(self, column: str) -> Direction | None:
        """Which way is better, as the task's metrics said or the column's name tells; ``None``: neither does."""
        return better(column, self.about.get("better"))

    def of(self, label: str) -> list[MethodRun]:
        """All seeds of one method; in a sweep at its best point, or at the first one if none has ended."""
        runs = [run for run in self.runs if run.label == label]
        done = self.trials(label)
        return done[0].runs if done else [run for run in runs if run.point == runs[0].point]

    def trials(self, label: str) -> list[Trial]:
        """The points of a sweep at which all seeds of a method have ended, the best first; empty without a sweep.

        Points with a failed seed come last, as in the table of :func:`fedax.sweep`.
        """
        sweep = self.config.get("sweep")
        if sweep is None:
            return []
        points: dict[str, list[MethodRun]] = {}
        for run in self.runs:
            if run.label == label:
                points.setdefault(json.dumps(run.point), []).append(run)

        def end(run: MethodRun) -> float:
            return float(np.mean(run.history[deciding(sweep["criterion"], run.history)][-sweep["last"] :]))

        done = [
            Trial(runs, np.array([math.nan if run.status in FAILED else end(run) for run in runs]))
            for runs in points.values()
            if len(runs) == len(self.config["run"]["seeds"]) and all(run.status != "unfinished" for run in runs)
        ]
        sign = -1 if sweep["better"] == "higher" else 1
        return sorted(done, key=lambda trial: (math.isnan(trial.mean), trial.failed, sign * trial.mean))
