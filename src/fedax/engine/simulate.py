"""simulate: a whole run as one compiled program, with its history."""

import dataclasses
import os
import warnings
from collections.abc import Callable, Sequence

from fedax.columns import ever_heard
from fedax.contract.algorithm import Algorithm
from fedax.data.federated import FederatedData
from fedax.engine.asynchronous import Asynchronous
from fedax.engine.checkpoint import Best, Checkpointer, Checkpoints
from fedax.engine.declared import takes
from fedax.engine.drive import Program, drive
from fedax.engine.evaluate import OneJob, public_columns
from fedax.engine.history import Row, Run
from fedax.engine.job import Job
from fedax.engine.loop import Counters, State
from fedax.engine.make import make_job
from fedax.engine.options import Options
from fedax.engine.places.device import prepare, some_rounds
from fedax.engine.places.host import Hosted
from fedax.engine.plan import loops
from fedax.engine.private import of_public
from fedax.errors import ConfigError, caller_level
from fedax.programs import compiled
from fedax.progress import Progress, figures, wanted
from fedax.tasks.task import Task
from fedax.tracking import Log


@dataclasses.dataclass(frozen=True)
class _Simulated(Options):
    """The arguments of :func:`simulate`.

    Args:
        algorithm: a method, from :func:`fedax.create` or made by parts.
        task: what is learned, and what is measured of it; make it once and reuse the object. One that learns a part of
            a model, or low-rank changes of it, is made by :func:`fedax.tasks.partial`.
        data: the clients' data; their weights p_i define the objective.
        callback: called with each row of the history as it is made, and by a run that goes on from a checkpoint with
            those that it had. ``row.status`` is ``None``, and of the last one says how the run ended, unless ``until``
            did it, which is asked after. A log of :mod:`fedax.tracking` gets of a private run the public columns.
        checkpoint: a folder for checkpoints, or :class:`fedax.Checkpoints`. A run that finds its own there goes on from
            the newest, bit-identical to one that never stopped, on as many devices; on another number of devices or
            processes up to the order of summation. The number of rounds and the evaluations may be others than before;
            not the rounds with ``DP(bands=…)``, whose noise depends on them.
            SIGINT, SIGHUP, SIGTERM wait for the rounds under way, about two seconds or one round, and for a checkpoint;
            then they do what they do elsewhere, as ``KeyboardInterrupt`` for Ctrl-C. A second one does not wait.
    """

    algorithm: Algorithm
    task: Task
    data: FederatedData
    _: dataclasses.KW_ONLY
    callback: Callable[[Row], None] | None = None
    checkpoint: Checkpoints | str | os.PathLike[str] | None = None


@takes(_Simulated)
def simulate(given: _Simulated) -> Run:
    """Train ``task`` on ``data`` with ``algorithm`` for some rounds.

    All rounds between two evaluations are one call of one compiled program; another seed, another number of rounds or
    other numerical hyper-parameters of the same method compile nothing anew. On one machine two runs of one seed are
    bit-identical, unless they are private, with noise of their own; the chunk size changes results by summation order
    only.

    Returns:
        :class:`Run`; where the training loss stops being finite, the run ends there with status ``"diverged"``.

    Raises:
        ConfigError, DataError: input that cannot be used, before anything is compiled.
        CheckpointError: a checkpoint cannot be written, those that there are are all damaged, or are of another run:
            other data, another task, another method or other settings.
        ProcessError: of several processes another one is gone.

    Example:
        >>> import fedax
        >>> import numpy as np
        >>> data = fedax.FederatedData({"H": np.ones((2, 1, 1)), "e": np.array([[1.0], [3.0]])}, sizes=[1, 1])
        >>> run = simulate(fedax.create("fedavg", lr=0.5), fedax.tasks.quadratic(1), data, rounds=30)
        >>> round(float(run.params[0]), 4), run.history["round"][-1].item()
        (2.0, 30)
    """
    if given.callback is not None and not callable(given.callback):
        raise ConfigError("callback", given.callback, "give a function of one row of the history")
    job = make_job(given.algorithm, given.task, given.data, **given.keywords)
    checkpoint = given.checkpoint
    callback = _tracked(given.callback, job)
    if not wanted():
        return conduct(job, lambda job, *_: program(job), callback, checkpoint)
    name = type(given.algorithm).__name__
    with Progress(job.rounds) as shown:
        shown.at(name, 0, "compiling")

        def on_row(row: Row) -> None:
            shown.at(name, row["round"], figures(row), f"{name}: round {row['round']} of {job.rounds}, {figures(row)}")
            if callback is not None:
                callback(row)

        return conduct(job, lambda job, *_: program(job), on_row, checkpoint)


def _tracked(callback: Callable[[Row], None] | None, job: Job) -> Callable[[Row], None] | None:
    """A callback that is a log, or its function, gets of a private run what is public; another one gets all."""
    columns = public_columns(job)
    if callback is None or columns is None or not isinstance(getattr(callback, "__self__", callback), Log):
        return callback
    return lambda row: callback(Row(of_public(row, columns), row.status))


def conduct(
    job: Job,
    make: Callable[[Job, bool, Sequence[Best | None]], Program],
    callback: Callable[[Row], None] | None,
    checkpoint: Checkpoints | str | os.PathLike[str] | None,
) -> Run:
    """Run one job, from its start or its checkpoint.

    Args:
        job: what is run.
        make: gives its program; called with the job, with whether there is a checkpoint to go on from, and with a list
            of one entry, the best model so far.
        callback, checkpoint: as of :func:`simulate`.
    """
    watch = callback or (lambda row: None)
    if checkpoint is not None and not isinstance(checkpoint, Checkpoints):
        checkpoint = Checkpoints(checkpoint)
    if checkpoint is None:
        return drive(make(job, False, [None]), [job], lambda _, row: watch(row))[0]
    with Checkpointer(checkpoint, [job]) as checkpointer:
        made = make(checkpointer.jobs[0], checkpointer.found, checkpointer.best)
        run = drive(made, checkpointer.jobs, lambda _, row: watch(row), checkpointer)[0]
    if checkpoint.best is None or ever_heard(run.history, job.min_heard):
        run.best = checkpointer.best[0]
    else:
        text = f"in no evaluation in training {100 * job.min_heard:g} % of the clients' weight was heard (min_heard)"
        text += ": there is no best model, and the run keeps its last one"
        warnings.warn(text, UserWarning, stacklevel=caller_level())
    return run


def program(job: Job) -> Program:
    """The program of one job."""
    if job.pacing is not None:
        return Asynchronous(job)
    return Hosted(job) if job.hosted else SingleRun(job)


class SingleRun(OneJob):
    """The program of one job, with client memory on the device."""

    def prepare(self) -> tuple[State, Counters]:
        job = self.job
        return _prepare(job.hyper, job.fed, job.key, job.x, job.plan)

    def advance(self, state: State, start: int, stop: int) -> tuple[State, Counters]:
        job = self.job
        return _advance(job.hyper, job.fed, job.key, state, start, stop, job.plan)


_prepare = compiled(static=["plan"])(prepare)
_advance = compiled(static=["plan"], donate=["state"], options=loops)(some_rounds)
