"""A job: one run, with everything about it checked and made before anything is compiled."""

import functools
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from fedax.columns import TRAIN
from fedax.contract.types import Array, Tree, Unknown
from fedax.contract.vector import Vector
from fedax.data.federated import FederatedData
from fedax.engine import secret
from fedax.engine.layers import Forms, own_memory, own_state
from fedax.engine.load import Shared, start
from fedax.engine.loop import Federation, Hyper, State
from fedax.engine.plan import RunPlan
from fedax.engine.timetable import Pacing
from fedax.engine.turns import PersonalPlan
from fedax.federation.census import Census
from fedax.federation.clock import BoundClock
from fedax.tasks.task import Task

if TYPE_CHECKING:
    from fedax.privacy import Ledger


class Origin(NamedTuple):
    """What the model of a run belongs to.

    Attributes:
        task: the user's own.
        example: the form of one example, a pytree of ``jax.ShapeDtypeStruct``.
        labels: what the classes are called, in the order of the outputs; ``None``: by their numbers, or there are none.
        transform: makes examples of tables; ``None`` where they were no tables.
        trained: the task that was trained, if only a part of the user's own.
        params: the model that the run was told to begin at.
    """

    task: Task
    example: Tree
    labels: tuple[str | int, ...] | None
    transform: Unknown
    trained: Task | None = None
    params: Tree = None


class EvaluationPlan(NamedTuple):
    """When a model is evaluated, and on what.

    Attributes:
        stops: the rounds after which it is, in order; the last is R.
        held: part of the held-out data, "val" or "test" -> its examples on the device.
        parts: part -> the same as it was given: a pytree of examples, or those of clients.
        labels: part -> metric -> sums of the labels alone, where a metric needs them.
        by_client: the parts whose clients have figures of their own.
        grad_norm: whether the norm of the gradient is measured.
        density: the threshold from which on a parameter counts as nonzero; ``None``: they are not counted.
        personal: how personal models are evaluated; ``None``: the method has none.
        unseen: a job of the clients that take no part, for their personal models; ``None``: there are none.
        train: the column of the training loss; empty: it is not measured.
        sample: the rows on which it is measured; ``None``: all.
    """

    stops: tuple[int, ...]
    held: dict[str, Tree]
    parts: dict[str, Tree]
    labels: dict[str, dict[str, Tree]]
    by_client: tuple[str, ...]
    grad_norm: bool
    density: float | None
    personal: PersonalPlan | None = None
    unseen: "Job | None" = None
    train: str = TRAIN[0]
    sample: Federation | None = None


class Missed(NamedTuple):
    """A deadline by the clock.

    Attributes:
        late: who misses it, [N] in every round or [R, N] in each.
        seconds: of the deadline.
    """

    late: np.ndarray
    seconds: float


class Job(NamedTuple):
    """What a run needs.

    Attributes:
        hyper: the method, the work, the participation and the wire, pytrees of numbers.
        fed, key, x: the data on the device, the run's random key, the initial model.
        data: the data where they are on the host, and come to the device cohort by cohort, or ``None``.
        census: of the clients.
        own: the clients that belong to this process.
        plan: what is fixed before compilation.
        memory: where client memory is: "device", "host", or the folder of its file; on the device only of a job
            whose rounds are compiled, those of a job of one process whose data are there; or "nodes", with the data.
        forms: forms of the exchanges of the warm-up, and of a round.
        settings: gives what makes the run, by name, as text: the same for the same run. Made when it is first asked
            for, as all examples are read for it.
        rounds: R.
        evaluation: when the model is evaluated, and on what.
        until, min_heard, seed: as of :func:`fedax.simulate`.
        form: shapes and types of the task's own parameters; those of ``x`` are wider where they are bfloat16.
        origin: what the model of the run belongs to.
        ledger: what the run spends of privacy; ``None``: uploads are not private.
        spent: whether ``rounds`` are all that the budget of privacy allows, and more were asked for.
        pacing: how it is paced; ``None``: the server waits for all clients of a round.
        clock: how long clients take, of this run; ``None``: no time is counted.
        missed: with a deadline by the clock, who misses it; else ``None``.
    """

    hyper: Hyper
    fed: Federation
    key: Array
    x: Vector
    data: FederatedData | None
    census: Census
    own: slice
    plan: RunPlan
    memory: str
    forms: Forms
    settings: Callable[[], dict[str, str]]
    rounds: int
    evaluation: EvaluationPlan
    until: Callable[[dict[str, Unknown]], bool] | None
    min_heard: float
    seed: int
    form: Tree
    origin: Origin
    ledger: "Ledger | None" = None
    spent: bool = False
    pacing: Pacing | None = None
    clock: BoundClock | None = None
    missed: Missed | None = None

    def delivered(self, x: Vector, h: Tree = None) -> Tree:
        """A model as the run gives it away: whole, its parameters of the types that the task's ``init`` gives them.

        ``h``: the part of it that is a client's own.
        """
        learned = jax.tree.map(lambda leaf, own: leaf.astype(own.dtype), x.tree, self.form)
        return self.plan.task.whole_of(learned) if h is None else self.plan.task.whole_with(learned, h)

    def of_method(self, state: State) -> State:
        """The method's own part of a state: of what the server and the clients keep, that of no layer."""
        method = self.hyper.method  # with its layers; at nodes there is no memory but its versions
        memory = state.memory if self.memory == "nodes" else own_memory(method, state.memory)
        return state._replace(server=own_state(method, state.server), memory=memory)

    def epsilon(self, rounds: int) -> float:
        """The privacy that so many rounds spend, of uploads that are private."""
        dp = self.hyper.wire.privacy
        assert self.ledger is not None and dp is not None
        return self.ledger.epsilon(rounds, dp.delta)

    @property
    def sent_once(self) -> int:
        """Bytes that every client is sent once: what is frozen of the model."""
        return self.plan.num_clients * sum(int(leaf.nbytes) for leaf in jax.tree.leaves(self.plan.task.frozen))

    @property
    def hosted(self) -> bool:
        """Whether its rounds are a loop on the host."""
        return self.memory != "device"

    @property
    def alone(self) -> bool:
        """Whether it runs by itself: its rounds are a loop on the host, or it has personal models."""
        return self.hosted or self.evaluation.personal is not None

    def has(self, part: str) -> bool:
        """Whether there are held-out examples of a part, here or at the clients."""
        return part in self.evaluation.held or self.census.held.get(part, 0) > 0

    @property
    def measured(self) -> Federation:
        """The data on which the training loss is measured."""
        return self.fed if self.evaluation.sample is None else self.evaluation.sample

    @property
    def rounds_a_call(self) -> int:
        """So many rounds that counts of 32 bits hold what they do (a step asks some gradients, a full one more).

        One where the run may have to end after any.
        """
        if self.plan.stops:
            return 1
        places = self.hyper.participation.places(self.plan.num_clients)
        return max(1, 2**31 // (places * max(self.plan.max_steps, self.plan.max_size) * 64))


def with_seed(job: Job, params: Tree, seed: int, shared: Shared) -> Job:
    """The same job with another seed, and with noise of its own."""
    key, x = start(job.plan.task, params, seed, shared)
    return job._replace(
        hyper=secret.anew(job.hyper),
        key=key,
        x=x,
        seed=seed,
        settings=lambda: job.settings() | {"seed": str(seed)},
        clock=None if job.clock is None else job.clock._replace(seed=seed),
    )


def with_folder_secret(job: Job, folder: pathlib.Path, place: int) -> Job:
    """A private job with the secret that a folder keeps for it, :func:`secret.of_folder`; any other job as it is."""
    if not secret.is_drawn(job.hyper.wire.privacy):
        return job
    hyper, entry = secret.of_folder(job.hyper, job.seed, folder, place)
    return job._replace(hyper=hyper, settings=functools.cache(lambda: job.settings() | entry))
