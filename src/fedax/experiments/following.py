"""Progress displays for the runs of an experiment and the points of a sweep; they draw by :mod:`fedax.progress`."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fedax.columns import diverged, heard_enough
from fedax.engine.history import ended_worse
from fedax.engine.patience import Patience
from fedax.engine.private import judged
from fedax.experiments.config.experiment import Experiment, columns
from fedax.experiments.defaults import judge
from fedax.experiments.tuning import Tuning
from fedax.progress import Progress, figures

if TYPE_CHECKING:
    from rich.console import Console


def decides(experiment: Experiment) -> str | None:
    """The column by which methods are compared."""
    return judge(experiment.config, columns([experiment]))


def _until(experiment: Experiment) -> Callable[[Mapping[str, Any]], bool]:
    """A function that gets each row of one run in turn, and returns whether patience ends the run there."""
    until, least = experiment.options.get("until"), experiment.options.get("min_heard") or 1.0
    return until.fresh(experiment.task.metrics, least) if isinstance(until, Patience) else lambda row: False


class Runs:
    """Shows the progress of an experiment's runs, as a context manager; each finished run leaves a line."""

    def __init__(self, experiment: Experiment, console: "Console | None" = None):
        run = experiment.config["run"]
        self.experiment, self.rounds, self.decides = experiment, run["rounds"], decides(experiment)
        self.min_heard = experiment.options.get("min_heard") or 1.0
        self.until: dict[tuple[str, int], Callable[[Mapping[str, Any]], bool]] = {}
        self.objective: dict[tuple[str, int], list[float]] = {}  # values of the judging column, by run
        self.done: dict[tuple[str, int], int] = {}  # rounds done, by run
        self.total = len(experiment.methods) * len(run["seeds"]) * self.rounds
        self.progress = Progress(self.total, console)

    def __enter__(self) -> Callable[..., None]:
        self.progress.__enter__()
        return self.watch

    def __exit__(self, *error: object) -> None:
        self.progress.__exit__(*error)

    def watch(self, label: str, seed: int, row: Mapping[str, Any] | None) -> None:
        """The callback of :func:`fedax.experiments.execute`; rows of several seeds may be interleaved."""
        run, name = (label, seed), f"{label}, seed {seed}"
        if row is None:
            self.objective[run], self.done[run] = [], self.rounds  # a finished run sends no rows
            self.until[run] = _until(self.experiment)
            self.progress.at(name, self.progress.done, "compiling", f"{name}: begins")
            return
        shown_figures, at = figures(row, self.decides), f"round {row['round']}"
        column = judged(row, self.experiment.public)
        self.objective[run] += [row[column]] if column is not None and heard_enough(row, self.min_heard) else []
        failed = diverged(row)
        finished = self.until[run](row) or failed or row["round"] == self.rounds
        self.done[run] = self.rounds if finished else row["round"]
        done = sum(self.done.values())
        if finished:
            worse = not failed and bool(self.objective[run]) and ended_worse(self.objective[run])
            early = "" if row["round"] == self.rounds else "ended early, "
            text = f"{name}: " if failed else f"{name}: {early}{at}, {shown_figures}"
            warning = f"diverged by {at}" if failed else "; ended worse than it began" * worse
            self.progress.tell(text, done, warning)
        self.progress.at(name, done, shown_figures, f"{name}: {at} of {self.rounds}, {shown_figures}")
        if done == self.total:
            self.progress.at("writing the report", done, "")


class Points:
    """Shows the progress of a sweep, as a context manager; each finished method leaves a line."""

    def __init__(self, tuning: Tuning, console: "Console | None" = None):
        run = tuning.config["run"]
        self.experiments = {label: experiments[0] for label, experiments in tuning.experiments.items()}
        self.until: dict[tuple[str, str, int], Callable[[Mapping[str, Any]], bool]] = {}
        self.left = {label: len(points) * len(run["seeds"]) for label, points in tuning.points.items()}
        self.runs, self.rounds = dict(self.left), run["rounds"]
        self.seen: dict[tuple[str, str, int], int] = {}
        self.done = 0
        self.progress = Progress(sum(self.left.values()) * self.rounds, console)

    def __enter__(self) -> Callable[..., None]:
        self.progress.__enter__()
        self.progress.at("compiling", 0, "")
        return self.watch

    def __exit__(self, *error: object) -> None:
        self.progress.__exit__(*error)

    def watch(self, label: str, point: dict[str, Any], seed: int, row: Mapping[str, Any]) -> None:
        """The callback of :func:`fedax.experiments.tune`."""
        at = (label, repr(point), seed)
        if at not in self.until:
            self.until[at] = _until(self.experiments[label])
        finished = self.until[at](row) or row["round"] == self.rounds or diverged(row)
        now = self.rounds if finished else row["round"]
        self.done += now - self.seen.get(at, 0)
        self.seen[at] = now
        if finished:
            self.left[label] -= 1
            if not self.left[label]:
                self.progress.tell(f"{label}: {self.runs[label]} runs done", self.done)
        remaining = f"{self.left[label]} runs to go"
        self.progress.at(label, self.done, remaining, f"{label}: round {row['round']} of {self.rounds}, {remaining}")
