"""The test problem: a least-squares federation of five clients with different data, weights and local steps.

It runs in float64 with full local gradients, so that equal results are equal up to rounding.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedax.contract.algorithm import Algorithm
from fedax.data.federated import FederatedData
from fedax.engine.devices import Place
from fedax.engine.history import Run
from fedax.engine.job import Job
from fedax.engine.make import make_job
from fedax.engine.simulate import simulate
from fedax.errors import CodeError, ConfigError
from fedax.federation.participation import Cohort, Full, Participation
from fedax.federation.work import Steps, Work
from fedax.progress import show_progress
from fedax.tasks.task import Task

_ROUNDS = 6
CLOSE = 1e-8  # relative to how far the model moves; rounding is about 1e-14
COHORTS = [[0, 1, 2, 3, 4], [1, 3], [2], [4, 0, 3], [1, 2, 4], [0, 3]]  # repeated after six rounds
TOTALS = [1.0, 1.0, 0.7, 1.4, 1.0, 0.9]  # Σω of these cohorts
STEPS = np.array([2, 4, 1, 3, 2])
WEIGHTS = np.array([0.1, 0.3, 0.15, 0.25, 0.2])
FULL: dict[str, Any] = {"cohorts": [[0, 1, 2, 3, 4]] * 6, "totals": [1.0] * 6, "steps": 3}


class Fails(Exception):
    """A check that does not hold, and why."""


class NotPromised(Exception):
    """A check that the method does not promise to pass, and why."""


class _Replay(Participation):
    """Given cohorts, repeated; as arrays, so that different cohorts share one compiled program."""

    ids: Any
    weights: Any

    def draw(self, key: Any, weights: Any, index: Any) -> Cohort:
        row = index % np.shape(self.ids)[0]
        return Cohort(jnp.asarray(self.ids)[row], jnp.asarray(self.weights, weights.dtype)[row])

    def places(self, num_clients: int) -> int:
        return int(np.shape(self.ids)[1])


def _replay(cohorts: Sequence[Sequence[int]], weights: np.ndarray, totals: Sequence[float] = TOTALS) -> _Replay:
    n = len(weights)
    ids, omega = np.full((len(cohorts), n), n, np.int32), np.zeros((len(cohorts), n))
    for r, (cohort, total) in enumerate(zip(cohorts, totals, strict=True)):
        ids[r, : len(cohort)] = cohort
        omega[r, : len(cohort)] = total * weights[list(cohort)] / max(weights[list(cohort)].sum(), 1e-300)
    return _Replay(ids, omega)


def _outputs(params: Any, batch: Any) -> Any:
    return batch["x"] @ params["w"] + params["b"]


SHAPE: dict[str, Any] = {"features": 3, "classes": 3}  # of its data, as arguments of tasks
TASK = Task(
    lambda key: {"w": jnp.zeros(3), "b": jnp.zeros(())},
    lambda params, batch, key: 0.5 * (_outputs(params, batch) - batch["y"]) ** 2,
    name="least squares",
    outputs=_outputs,
    kind="regression",
)
_START = {"w": np.array([1.0, -2.0, 0.5]), "b": np.array(0.3)}


def _examples(clients: int) -> dict[str, np.ndarray]:
    """[clients, 2, …] two examples for each client; the mean of all losses has smoothness 1."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(clients, 2, 3))
    y = np.einsum("nbj,nj->nb", x, rng.normal(size=(clients, 3))) + rng.normal(size=(clients, 2))
    rows = np.concatenate([x.reshape(-1, 3), np.ones((2 * clients, 1))], axis=1)
    scale = np.sqrt(np.linalg.eigvalsh(rows.T @ rows / len(rows)).max())
    return {"x": x / scale, "y": y / scale}


def _fitted(task: Task, data: Any) -> tuple[Any, np.ndarray]:
    """Where runs of this task start, away from its first model, and targets for it, [clients, 2]."""
    rng = np.random.default_rng(7)
    rows = {name: np.reshape(leaf, (-1, *leaf.shape[2:])) for name, leaf in data.items()}
    params = task.init(jax.random.key(0))
    try:
        if task.kind == "classification" and task.outputs is not None:
            outputs = jax.eval_shape(task.outputs, params, rows)
            rows["y"] = rng.integers(0, 2 if outputs.ndim == 1 else outputs.shape[1], len(rows["y"]))
        task.check_examples(rows)
        jax.eval_shape(task.loss, params, rows, None)
    except Exception as error:
        hint = "the test problem has x, [b, 3], and y, [b]: classes where the task's kind is classification, else real"
        raise ConfigError("task", task.name, f"{hint} ({str(error).strip().partition(chr(10))[0]})") from error
    start = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64) + 0.5 * rng.normal(size=leaf.shape), params)
    return start, rows["y"].reshape(data["y"].shape)


class TestProblem:
    """A method on the test problem, with cached runs.

    Args:
        method: what is checked.
        task: another task for features x, [n, 3], and targets y, [n], of classes or real; ``None``: least squares.
        reference: the method's paper; see :mod:`fedax.conformance.reference`.

    Attributes:
        unequal: the error of a method that promises unequal steps and runs with equal ones only.
    """

    def __init__(self, method: Algorithm, task: Task | None = None, reference: Callable[..., Any] | None = None):
        self.method, self.traits, self.reference = method, method.traits(), reference
        self.all_clients, self.equal = self.traits.cohorts == "all", self.traits.steps == "equal"
        self.data, self.start, self.task, self.own_task = _examples(5), _START, task or TASK, task is not None
        if task is not None:
            self.start, self.data["y"] = _fitted(task, self.data)
        self.unequal: CodeError | None = None
        if not self.equal:
            with contextlib.suppress(ConfigError):  # the first run reports it
                self.equal = self._refuses_unequal()

    def run(
        self,
        *,
        examples: Any = None,
        weights: np.ndarray = WEIGHTS,
        steps: Any = STEPS,
        cohorts: Sequence[Sequence[int]] = COHORTS,
        totals: Sequence[float] = TOTALS,
        method: Algorithm | None = None,
        **options: Any,
    ) -> Run:
        """Run the method, with full participation if it needs that."""
        data = federation(self.data if examples is None else examples, weights)
        options = self.options(weights, steps, cohorts, totals) | options
        task = options.pop("task", self.task)
        with show_progress(False):
            return simulate(self.method if method is None else method, task, data, **options)

    def options(self, weights: np.ndarray, steps: Any, cohorts: Any, totals: Any) -> dict[str, Any]:
        who = Full() if self.all_clients else _replay(cohorts, weights, totals)
        work: Work = Steps(3 if self.equal else steps)
        options: dict[str, Any] = {"participation": who, "work": work, "rounds": _ROUNDS, "evaluate_every": _ROUNDS}
        return options | {"params": self.start, "place": Place(chunk_size=len(weights))}

    def model(self, **options: Any) -> np.ndarray:
        """The final model of a run, as one vector."""
        return flat(self.run(**options).params)

    def _refuses_unequal(self) -> bool:
        """Whether the hyper-parameters need equal steps, as a dual step of 1/τ by default."""
        try:
            self.job()
        except ConfigError as error:
            self.job(work=Steps(3))
            self.unequal = error if isinstance(error, CodeError) else None
            return True
        return False

    @functools.cached_property
    def base(self) -> np.ndarray:
        """The final model of the reference run."""
        return self.model()

    @functools.cached_property
    def known(self) -> np.ndarray:
        """The final model with three steps for all clients, a number that is part of the program."""
        return self.model(steps=3)

    def job(self, **options: Any) -> Job:
        """A job, which is traced but not run."""
        options = self.options(WEIGHTS, STEPS, COHORTS, TOTALS) | options
        task, data = options.pop("task", self.task), options.pop("data", federation(self.data, WEIGHTS))
        return make_job(options.pop("method", self.method), task, data, **options)

    def compare(self, name: str, one: np.ndarray, other: np.ndarray, hint: str) -> str:
        """Fail unless two final models are equal; return how far they are apart, as text."""
        apart, moved = np.abs(other - one).max(), np.abs(one - flat(self.start)).max()
        text = f"{name}: models {apart / max(moved, 1e-300):.1e} of their way apart"
        if not apart <= CLOSE * moved:
            raise Fails(f"{text}; {hint}")
        return text

    @functools.cached_property
    def random(self) -> bool:
        """Whether the method draws random numbers; nothing else in these runs is random."""
        return bool((self.model(seed=1) != self.base).any())

    def alike(self, name: str, one: np.ndarray, other: np.ndarray, hint: str) -> str:
        """:meth:`compare`, which random methods need not pass: their random numbers depend on a client's place."""
        try:
            return self.compare(name, one, other, hint)
        except Fails:
            if self.random:
                why = "it draws random numbers, or one client of the cohort, and another order draws others"
                raise NotPromised(why) from None
            raise


def federation(examples: Any, weights: np.ndarray) -> FederatedData:
    rows = jax.tree.map(lambda leaf: np.reshape(leaf, (-1, *np.shape(leaf)[2:])), examples)
    return FederatedData(rows, np.full(len(weights), 2), weights)


def flat(params: Any) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(params)])
