"""What a server that does not wait optimizes: whose answers come, how late, and the weights that this gives clients.

Let f_i be the share of the answers that are client i's, ω_i its weight and E_i w the mean weight of their staleness.
For small steps the run ends at the optimum of Σ q_i F_i, q_i ∝ f_i ω_i E_i w, in the place of Σ p_i F_i. It is the
objective inconsistency of Wang et al. 2020 in time; all of it follows from the clients' speeds. Where clients take
unequal local steps, their number multiplies q_i, too, as it does in synchronous rounds.
"""

from dataclasses import dataclass

import numpy as np

from fedax.contract.algorithm import Algorithm
from fedax.contract.types import Unknown
from fedax.data.federated import FederatedData
from fedax.engine.asynchronous import timetable_of
from fedax.engine.job import make_job
from fedax.errors import ConfigError, complete
from fedax.federation.clock import Clock
from fedax.federation.pace import Async
from fedax.federation.work import Work
from fedax.tasks.task import Task


@dataclass(frozen=True, eq=False)
class Arrivals:
    """Whose answers come when, of a run with this pace and clock.

    Attributes:
        counts: [N] answers of each client that steps took.
        staleness: [N] their mean staleness; not-a-number for clients that were never heard.
        q: [N] the weights of the clients in the objective that is optimized, where all take equally many local steps;
            they sum to 1.
        chi_square: Σ (q_i − p_i)²/p_i over clients with p_i > 0: 0 where q are the data's weights.
        times: [rounds] when each step was taken, in seconds.
        dropped: answers that were thrown away.

    Example:
        >>> Arrivals(np.array([3, 1]), np.array([0.5, 2.0]), np.array([0.75, 0.25]), 0.25, np.arange(4.0), 0)
        Arrivals(4 answers of 2 clients, mean staleness 0.875, chi_square=0.25)
    """

    counts: np.ndarray
    staleness: np.ndarray
    q: np.ndarray
    chi_square: float
    times: np.ndarray
    dropped: int

    def __repr__(self) -> str:
        late = float(np.nansum(self.counts * np.nan_to_num(self.staleness)) / max(self.counts.sum(), 1))
        return (
            f"Arrivals({int(self.counts.sum())} answers of {np.count_nonzero(self.counts)} clients, "
            f"mean staleness {late:.3g}, chi_square={self.chi_square:.3g})"
        )


@complete
def arrivals(
    algorithm: Algorithm,
    task: Task,
    data: FederatedData,
    *,
    pace: Async,
    clock: Clock,
    rounds: int,
    work: Work | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    **options: Unknown,
) -> Arrivals:
    """The arrivals of a run, before it is run: nothing is trained.

    Args:
        algorithm, task, data, pace, clock, rounds, work, batch_size, seed: as of :func:`fedax.simulate`, R ≥ 1.
        options: others of its arguments, such as ``compress``, on which the bytes and so the times depend.

    Raises:
        ConfigError, DataError: as :func:`fedax.simulate`.

    Example:
        >>> import fedax
        >>> data, task = fedax.data.quadratics(clients=2, dimension=2), fedax.tasks.quadratic(2)
        >>> pace, clock = fedax.Async(2, start="idle"), fedax.Clock(step=[1.0, 3.0])
        >>> found = arrivals(fedax.create("fedavg"), task, data, pace=pace, clock=clock, rounds=400)
        >>> found.counts.tolist(), found.q.round(2).tolist(), round(found.chi_square, 2)
        ([300, 100], [0.75, 0.25], 0.25)
    """
    given: dict[str, Unknown] = {
        "rounds": rounds,
        "work": work,
        "batch_size": batch_size,
        "seed": seed,
        "pace": pace,
        "clock": clock,
    }
    job = make_job(algorithm, task, data, **given | options)
    if not job.rounds:
        raise ConfigError("rounds", rounds, "give a whole number of at least 1")
    if job.pacing is None or job.clock is None:
        raise ConfigError("pace", pace, "give fedax.Async(…)")
    n, p = data.num_clients, data.weights
    table = timetable_of(job)
    counts, late, weights = np.zeros(n), np.zeros(n), np.zeros(n)
    groups = table.groups(0, job.rounds)
    every = table.stacked(groups, len(groups), np.dtype(float))
    heard = every.heard < n
    for total, values in ((counts, 1.0), (late, every.staleness[heard]), (weights, every.weights[heard])):
        np.add.at(total, every.heard[heard], values)
    q = weights / weights.sum()
    with np.errstate(invalid="ignore"):
        staleness = late / counts
    dropped = int(table.late(job.rounds)["dropped"])
    known = p > 0
    chi_square = float(np.sum((q[known] - p[known]) ** 2 / p[known]))
    return Arrivals(counts.astype(int), staleness, q, chi_square, np.array(table.schedule.times[: job.rounds]), dropped)
