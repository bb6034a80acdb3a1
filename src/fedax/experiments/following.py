"""Progress displays for the runs of an experiment and the points of a sweep; they draw by :mod:`fedax.progress`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedax.engine.history import Row
from fedax.experiments.config.experiment import Experiment, columns
from fedax.experiments.defaults import judge
from fedax.experiments.tuning import Tuning
from fedax.progress import Progress, figures

if TYPE_CHECKING:
    from rich.console import Console


def decides(experiment: Experiment) -> str | None:
    """The column by which methods are compared."""
    return judge(experiment.config, columns([experiment]))


class Runs:
    """Shows the progress of an experiment's runs, as a context manager; each finished run leaves a line."""

    def __init__(self, experiment: Experiment, console: "Console | None" = None):
        run = experiment.config["run"]
        self.experiment, self.rounds, self.decides = experiment, run["rounds"], decides(experiment)
        self.done: dict[tuple[str, int], int] = {}  # rounds done, by run
        self.total = len(experiment.methods) * len(run["seeds"]) * self.rounds
        self.progress = Progress(self.total, console)

    def __enter__(self) -> Callable[..., None]:
        self.progress.__enter__()
        return self.watch

    def __exit__(self, *error: object) -> None:
        self.progress.__exit__(*error)

    def watch(self, label: str, seed: int, row: Row | None) -> None:
        """The callback of :func:`fedax.experiments.execute`; rows of several seeds may be interleaved."""
        run, name = (label, seed), f"{label}, seed {seed}"
        if row is None:
            self.done[run] = self.rounds  # a finished run sends no rows
            self.progress.at(name, self.progress.done, "compiling", f"{name}: begins")
            return
        shown_figures, at = figures(row, self.decides), f"round {row['round']}"
        self.done[run] = row["round"] if row.status is None else self.rounds
        done = sum(self.done.values())
        if row.status is not None:
            early = "" if row["round"] == self.rounds else "ended early, "
            text = f"{name}: " if row.status == "diverged" else f"{name}: {early}{at}, {shown_figures}"
            warnings = {"diverged": f"diverged by {at}", "worse": "; ended worse than it began"}
            self.progress.tell(text, done, (warnings | {"failed": "; stopped by its guard"}).get(row.status, ""))
        self.progress.at(name, done, shown_figures, f"{name}: {at} of {self.rounds}, {shown_figures}")
        if done == self.total:
            self.progress.at("writing the report", done, "")


class Points:
    """Shows the progress of a sweep, as a context manager; each finished method leaves a line."""

    def __init__(self, tuning: Tuning, console: "Console | None" = None):
        run = tuning.config["run"]
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

    def watch(self, label: str, point: dict[str, Any], seed: int, row: Row) -> None:
        """The callback of :func:`fedax.experiments.tune`."""
        at = (label, repr(point), seed)
        now = row["round"] if row.status is None else self.rounds
        self.done += now - self.seen.get(at, 0)
        self.seen[at] = now
        if row.status is not None:
            self.left[label] -= 1
            if not self.left[label]:
                self.progress.tell(f"{label}: {self.runs[label]} runs done", self.done)
        remaining = f"{self.left[label]} runs to go"
        self.progress.at(label, self.done, remaining, f"{label}: round {row['round']} of {self.rounds}, {remaining}")
