"""Early stopping: a run ends where a column has not improved for some evaluations."""

import dataclasses
import math
from collections.abc import Mapping

from fedax.columns import deciding, heard_enough, higher_is_better
from fedax.contract.types import Unknown
from fedax.errors import ConfigError
from fedax.numbers import check_count, check_number


@dataclasses.dataclass(frozen=True)
class Patience:
    """Stops a run when a column has not improved for some evaluations; give it as ``until`` of a run.

    Each run counts by itself, of runs side by side each one, and one that goes on from a checkpoint as if it had never
    stopped. The model in the end is that of the last round; :class:`fedax.Checkpoints` with ``best`` of the same column
    keeps the best one. Of real clients, an evaluation in which less than ``min_heard`` of the weight was heard does not
    count.

    Args:
        column: of the history, usually one of validation: chosen by the test's, test figures would flatter. Of a
            method with personal models it is theirs: ``"val_loss_personal"`` where ``"val_loss"`` is named.
        evaluations: ≥ 1, after so many without a better value the run ends.
        least: ≥ 0, by how much a value has to be better to count.
        higher: whether higher is better; ``None``: as the metric or the column's name tells.

    Raises:
        ConfigError: values out of range; by the run, before anything is compiled: no such column, a column of lists, or
            one whose name does not tell which way is better.

    Example:
        >>> stop = Patience("val_loss", evaluations=2).fresh()
        >>> [stop({"val_loss": value}) for value in (1.0, 0.8, 0.9, 0.8)]
        [False, False, False, True]
    """

    column: str = "val_loss"
    evaluations: int = 5
    least: float = 0.0
    higher: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.column, str):
            raise ConfigError("patience.column", self.column, "give the name of a column, such as 'val_loss'")
        object.__setattr__(self, "evaluations", check_count("patience.evaluations", self.evaluations))
        check_number("patience.least", self.least, 0, fixed=True)
        if self.higher is not None and not isinstance(self.higher, bool):
            raise ConfigError("patience.higher", self.higher, "give True or False")

    def __call__(self, row: Mapping[str, Unknown]) -> bool:
        """Never true: the counter that :meth:`fresh` makes for each run decides."""
        return False

    def fresh(self, metrics: Mapping[str, Unknown] | None = None, min_heard: float = 1.0) -> "PatienceCounter":
        """A new counter for a single run; ``metrics``: those of its task; ``min_heard``: as of a run.

        Raises:
            ConfigError: the name of the column does not tell which way is better.
        """
        higher = self.higher
        return PatienceCounter(
            self, higher_is_better(self.column, "patience.higher", metrics) if higher is None else higher, min_heard
        )


class PatienceCounter:
    """Counts for how many evaluations a run has waited for a better value."""

    def __init__(self, patience: Patience, upwards: bool, min_heard: float = 1.0):
        self.asked, self._sign, self._min_heard = patience, -1.0 if upwards else 1.0, min_heard
        self._best, self._waited = math.inf, 0

    def __call__(self, row: Mapping[str, Unknown]) -> bool:
        if not heard_enough(row, self._min_heard):
            return False
        value = self._sign * row[deciding(self.asked.column, row)]
        if value < self._best - self.asked.least:
            self._best, self._waited = value, 0
        else:
            self._waited += 1
        return self._waited >= self.asked.evaluations
