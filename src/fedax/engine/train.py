"""train: a run whose clients are real, and at nodes."""

import os
from collections.abc import Callable

from fedax.contract.algorithm import Algorithm
from fedax.contract.types import Unknown
from fedax.engine.checkpoint import Checkpoints
from fedax.engine.history import Run
from fedax.engine.job import Job, make_job
from fedax.engine.places.fleet import Fleet
from fedax.engine.places.remote import Remote
from fedax.engine.simulate import conduct
from fedax.tasks.task import Task


def train(
    algorithm: Algorithm,
    task: Task,
    fleet: Fleet,
    problem: dict[str, Unknown],
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    best: str | None = None,
    callback: Callable[[dict[str, Unknown]], None] | None = None,
    **options: Unknown,
) -> Run:
    """Train ``task`` with ``algorithm`` on the clients of a fleet, for some rounds.

    It is :func:`fedax.simulate` with messages to real clients: the same cohorts, minibatches and models, up to the
    order in which uploads are summed. Where a node does not answer in time, the round goes on without its clients as
    under :class:`fedax.Dropout`; with a method that is defined for rounds with all clients only, the run ends with an
    error. Checkpoints are made after every round, for nodes keep the memory of their clients as of the last two.

    Args:
        algorithm, task: as there.
        fleet: the nodes.
        problem: a configuration in plain JSON, of which the nodes make the same method, task and wire.
        checkpoint: a folder for checkpoints; ``None``: none are made, and a run that is stopped begins anew.
        best: as of :class:`fedax.Checkpoints`.
        callback: as there.
        options: ``rounds`` and the others of :func:`fedax.simulate`, but ``mesh``, ``client_memory`` and ``stream``.

    Returns:
        :class:`fedax.Run`; its ``memory`` has in the place of client memory where it is: the number of the run and the
        version of each client's memory at its node.

    Raises:
        ConfigError, CheckpointError: as there.
        NodeError: something speaks against the run at a node; a node answers something else than it was asked, or
            none answers; the link to the nodes is gone.
    """
    job = make_job(algorithm, task, fleet.census, **options)
    made: list[Remote] = []

    def make(job: Job, resumes: bool) -> Remote:
        made.append(Remote(job, fleet, problem, resumes))
        return made[0]

    kept = None if checkpoint is None else Checkpoints(checkpoint, rounds=1, minutes=None, best=best)
    run = conduct(job, make, callback, kept)
    made[0].forget()
    return run
