"""What a server that does not wait optimizes: whose answers come, how late, and the weights that this gives clients.

Let f_i be the share of the answers that are client i's, ω_i its weight and E_i w the mean weight of their staleness.
For small steps the run ends at the optimum of Σ q_i F_i, q_i ∝ f_i ω_i E_i w, instead of Σ p_i F_i. It is the
objective inconsistency of Wang et al. 2020 in time; all of it follows from the clients' speeds. Where clients take
unequal local steps, their number multiplies q_i, too, as it does in synchronous rounds.
"""

import math
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple

import numpy as np

from fedax.contract.algorithm import Algorithm
from fedax.data.federated import FederatedData
from fedax.engine.asynchronous import timetable_of
from fedax.engine.declared import takes
from fedax.engine.job import Job
from fedax.engine.make import make_job
from fedax.engine.options import Options
from fedax.errors import ConfigError
from fedax.federation.clock import Clock
from fedax.federation.pace import Async
from fedax.tasks.task import Task

_ANSWERS, _PARTS = 20_000, 10  # of the schedule that tells the long run: the fewest answers, and its parts


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


@dataclass(frozen=True)
class _Scheduled(Options):
    """The arguments of :func:`arrivals`.

    Args:
        algorithm: as of :func:`fedax.simulate`.
        task: as there.
        data: as there.
    """

    algorithm: Algorithm
    task: Task
    data: FederatedData
    _: KW_ONLY
    pace: Async = field()  # these two have to be given
    clock: Clock = field()


@takes(_Scheduled)
def arrivals(given: _Scheduled) -> Arrivals:
    """The arrivals of a run, before it is run: nothing is trained.

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
    data = given.data
    job = _paced(make_job(given.algorithm, given.task, data, **given.keywords))
    if not job.rounds:
        raise ConfigError("rounds", given.rounds, "give a whole number of at least 1")
    n, p = data.num_clients, data.weights
    table = timetable_of(job)
    heard = table.heard(job.rounds)
    counts, late, weights = (np.bincount(heard.clients, each, n) for each in (None, heard.staleness, heard.weights))
    q = weights / weights.sum()
    with np.errstate(invalid="ignore"):
        staleness = late / counts
    dropped = int(table.late(job.rounds)["dropped"])
    known = p > 0
    chi_square = float(np.sum((q[known] - p[known]) ** 2 / p[known]))
    return Arrivals(counts, staleness, q, chi_square, np.array(table.schedule.times[: job.rounds]), dropped)


class LongRun(NamedTuple):
    """The answers of a long schedule.

    Attributes:
        clients, weights: [steps, K] whose answers each step takes, and their weights.
        p: [N] the data's weights.
    """

    clients: np.ndarray
    weights: np.ndarray
    p: np.ndarray

    def shares(self, weights: np.ndarray) -> np.ndarray:
        """The shares of the clients, [N], in sums over answers of these weights, [steps, K].

        They sum to 1. As the schedule ends somewhere, they scatter; how much is seen from its parts, and that share of
        their distance from p is taken away. Clients that are never heard have 0.
        """
        n, p, known = len(self.p), self.p, self.p > 0
        number = self.clients.size
        cells = np.arange(number) * _PARTS // number * n + self.clients.ravel()
        parts = np.bincount(cells, weights.ravel(), _PARTS * n).reshape(-1, n)
        total = parts.sum(axis=0)
        shares: np.ndarray = total / total.sum()
        if ((total == 0) & known).any():
            return shares
        apart = np.sum((shares - p)[known] ** 2 / p[known])
        chance = np.sum(parts.var(axis=0, ddof=1)[known] / p[known]) * _PARTS / total.sum() ** 2
        return p + (shares - p) * (max(0.0, 1 - chance / apart) if apart else 0.0)


def long_run(algorithm: Algorithm, task: Task, data: FederatedData, options: Options) -> LongRun:
    """A schedule of 200 answers a client on average, 20,000 at least.

    Args:
        algorithm, task, data: as of :func:`fedax.simulate`.
        options: with ``pace`` and ``clock``; their rounds do not matter.

    Raises:
        ConfigError, DataError: as :func:`fedax.simulate`.
    """
    job = _paced(make_job(algorithm, task, data, **options.keywords | {"rounds": 1}))
    assert job.pacing is not None
    width = job.pacing.pace.buffer
    steps = max(job.pacing.horizon(data.num_clients, 1), math.ceil(_ANSWERS / width))
    heard = timetable_of(job._replace(rounds=steps)).heard(steps)
    return LongRun(heard.clients.reshape(-1, width), heard.weights.reshape(-1, width), data.weights)


def _paced(job: Job) -> Job:
    if job.pacing is None or job.clock is None:
        raise ConfigError("pace", None, "give fedax.Async(…)")
    return job
