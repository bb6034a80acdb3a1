"""train: a run whose clients are real, and at nodes."""

import dataclasses
import hashlib
import os
import pathlib
import secrets
from collections.abc import Callable, Sequence

from fedax.contract.algorithm import Algorithm
from fedax.contract.types import Unknown
from fedax.engine.checkpoint import Best, Checkpoints
from fedax.engine.declared import takes
from fedax.engine.history import Row, Run
from fedax.engine.job import Job
from fedax.engine.make import make_job
from fedax.engine.options import Options
from fedax.engine.simulate import conduct
from fedax.files import write_private
from fedax.sites.protocol.fleet import Fleet
from fedax.sites.protocol.paced import Paced
from fedax.sites.protocol.remote import Remote
from fedax.tasks.task import Task


@dataclasses.dataclass(frozen=True)
class _Trained(Options):
    """The arguments of :func:`train`.

    Args:
        algorithm: as there.
        task: as there.
        fleet: the nodes; they choose themselves where their clients run.
        problem: a configuration in plain JSON, of which the nodes make the same method, task and wire.
        checkpoint: a folder for checkpoints; ``None``: none are made, and a run that is stopped begins anew.
        best: as of :class:`fedax.Checkpoints`.
        arrivals: with a pace, the file of all arrivals, of which :meth:`fedax.Clock.from_csv` makes a clock; default:
            ``arrivals.csv`` in the folder of the checkpoints.
        callback: as there.
    """

    algorithm: Algorithm
    task: Task
    fleet: Fleet
    problem: dict[str, Unknown]
    _: dataclasses.KW_ONLY
    checkpoint: str | os.PathLike[str] | None = None
    best: str | None = None
    arrivals: str | os.PathLike[str] | None = None
    callback: Callable[[Row], None] | None = None


@takes(_Trained)
def train(given: _Trained) -> Run:
    """Train ``task`` with ``algorithm`` on the clients of a fleet, for some rounds.

    It is :func:`fedax.simulate` with messages to real clients: the same cohorts, minibatches and models, up to the
    order in which uploads are summed. Where a node does not answer in time, the round goes on without its clients as
    under :class:`fedax.Dropout`; with a method that is defined for rounds with all clients only, the run ends with an
    error. Checkpoints are made after every round, for nodes keep the memory of their clients as of the last two.

    With ``pace``, the server takes answers as they come; a node that is away is late. It needs no ``clock``.

    Returns:
        :class:`fedax.Run`; its ``memory`` has instead of client memory where it is: the number of the run and the
        version of each client's memory at its node.

    Raises:
        ConfigError, CheckpointError: as there.
        NodeError: something speaks against the run at a node; a node answers something else than it was asked, or
            none answers; the link to the nodes is gone.
    """
    job = make_job(given.algorithm, given.task, given.fleet.census, **given.keywords)
    folder = None if given.checkpoint is None else pathlib.Path(given.checkpoint)
    arrivals = folder / "arrivals.csv" if given.arrivals is None and folder is not None else given.arrivals
    file = None if arrivals is None else pathlib.Path(arrivals)
    kept = None if folder is None else Checkpoints(folder, rounds=1, minutes=None, best=given.best)
    made: list[Remote] = []

    def make(job: Job, resumes: bool, best: Sequence[Best | None]) -> Remote:
        number = _number(job, secrets.token_bytes(8) if folder is None else _kept(folder / "run.number"))
        about = job, given.fleet, given.problem, number, resumes
        made.append(Remote(*about) if job.pacing is None else Paced(*about, file))
        made[0].best = best
        return made[0]

    run = conduct(job, make, given.callback, kept)
    run.counts = made[0].counts
    made[0].forget()
    return run


def _kept(path: pathlib.Path) -> bytes:
    """Random bytes of a folder of checkpoints: a run that was stopped before its first one is the same run."""
    if not path.exists():
        write_private(path, secrets.token_bytes(8))
    return path.read_bytes()


def _number(job: Job, own: bytes) -> int:
    """The number of a run, by which nodes know it; another job in the same folder has another one."""
    settings = sorted((name, str(value)) for name, value in job.settings().items())
    return int.from_bytes(hashlib.sha256(own + repr(settings).encode()).digest()[:8], "big") >> 2
