"""Federations on which the methods are tried, and runs that keep every iterate."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np

import fedax
from fedax.contract.schedule import resolve
from fedax.engine.drive import drive
from fedax.engine.load import Shared, federation_of, on_devices, one_type, start
from fedax.engine.loop import Federation, Hyper, State
from fedax.engine.make import make_job
from fedax.engine.places.device import prepare
from fedax.engine.plan import RunPlan, make_plan
from fedax.engine.simulate import SingleRun, program
from fedax.federation.census import Census
from fedax.wire.wire import Wire
from tests.contract.probe import named, numbered
from tests.references import fedavg_family as fed
from tests.references import quadratics as quad

BED = quad.test_bed()
GRADS = BED.grads()
X0 = np.array([1.0, -2.0, 0.5, 3.0])
LR = float(0.1 / BED.L)
ROUNDS = 5
COHORTS = [[4, 1, 6], [0, 3], [5], [2, 6, 0, 4], [1, 3]]  # every client at least once


class AnySteps(fedax.Steps):
    """Up to 12 steps of all clients, compiled as unequal ones: one program for all numbers of steps."""

    def __init__(self, steps: Any, clients: int = 7):
        super().__init__(np.broadcast_to(steps, clients))

    @property
    def clients(self) -> int:
        return len(self._each)

    def largest(self, sizes, batch_size):
        return 12

    def usual(self, sizes, batch_size):
        return np.full(len(sizes), 12)

    def equal(self, sizes, batch_size):
        return None


UNEQUAL = AnySteps(BED.tau)
ORDER = np.array([3, 0, 6, 1, 5, 2, 4])  # new place -> old number


def recorded(task: fedax.Task, parameters: int) -> fedax.Task:
    """The task with its parameters as metrics, so that a history holds the iterates."""

    def component(j: int) -> Any:
        def metric(params: Any, batch: Any) -> Any:
            flat, _ = jax.flatten_util.ravel_pytree(params)
            return jnp.broadcast_to(flat[j], len(jax.tree.leaves(batch)[0]))

        return metric

    return dataclasses.replace(task, metrics={f"x{j}": component(j) for j in range(parameters)})


QUADRATIC = recorded(fedax.tasks.quadratic(4), 4)
SCALAR = recorded(fedax.tasks.quadratic(1), 1)


def federation(H: np.ndarray, e: np.ndarray, p: np.ndarray) -> fedax.FederatedData:
    """Clients F_i(x) = ½ xᵀH_i x − e_iᵀx with weights p."""
    return fedax.FederatedData({"H": H, "e": e}, np.ones(len(p), int), p)


DATA = federation(BED.H, BED.e, BED.p)
RELABELLED = federation(BED.H[ORDER], BED.e[ORDER], BED.p[ORDER])


class MinimalJob(NamedTuple):
    """The parts of a job that the programs of a run need; a whole :class:`fedax.engine.job.Job` takes a dry run."""

    hyper: Hyper
    fed: Federation
    key: Any
    x: fedax.Vector
    plan: RunPlan


def programs_of(
    method: fedax.Algorithm, task: fedax.Task, data: Any, rounds: int, x0: Any, work: fedax.Work, **options: Any
) -> Any:
    """The programs of a run; without a dry run unless options change the messages."""
    if options.keys() - {"participation", "batch_size", "seed"}:
        return program(make_job(method, task, data, rounds=rounds, params=x0, work=work, **options))
    options = {"participation": fedax.Full(), "batch_size": None, "seed": 0} | options
    participation, census = options["participation"], Census.of(data)
    work.validate(data.sizes)
    participation.validate(data.num_clients, rounds)
    key, x = start(task, x0, options["seed"], Shared())
    method, wire = one_type((method, Wire()))
    plan = make_plan(census, task, x, work, options["batch_size"], participation, wire)
    method.traits().refuse(missing=plan.missing, unequal=plan.steps is None)
    fed = on_devices(federation_of(census, data, slice(0, data.num_clients)), plan.mesh)
    return SingleRun(MinimalJob(Hyper(method, work, participation.bind(data.weights), wire), fed, key, x, plan))


def first_state(programs: Any) -> State:
    """The state before round 0. Without a warm-up it is made operation by operation, which all methods share."""
    job = programs.job
    if not isinstance(programs, SingleRun) or resolve(job.hyper.method, 0).warmup():
        return programs.prepare()[0]
    state, _ = prepare(job.hyper, job.fed, job.key, job.x, job.plan)
    return jax.tree.map(jnp.copy, state)  # for the first round may use its memory, and not that of x


def model_of(programs: Any, state: State, index: int) -> np.ndarray:
    """The model after ``index`` rounds: [parameters]. A copy, for the next round may use the state's memory."""
    method = resolve(programs.job.hyper.method, index)
    return np.array(jax.flatten_util.ravel_pytree(method.model(state.server).tree)[0])


def path(
    method: fedax.Algorithm,
    *,
    task: fedax.Task = QUADRATIC,
    data: Any = DATA,
    rounds: int = ROUNDS,
    x0: Any = X0,
    work: fedax.Work = UNEQUAL,
    **options: Any,
) -> np.ndarray:
    """The iterates x^0 … x^R of a run, [R + 1, parameters], from its programs, without evaluation."""
    programs = programs_of(method, task, data, rounds, x0, work, **options)
    state = first_state(programs)
    iterates = [model_of(programs, state, 0)]
    for index in range(rounds):
        state, _ = programs.advance(state, index, index + 1)
        iterates.append(model_of(programs, state, index + 1))
    return np.stack(iterates)


class Recorded(SingleRun):
    """The program of a run whose history has the model after each round, and is not measured further."""

    def measure(self, state: State, index: int) -> list[dict[str, Any]]:
        return [{"train_loss": 0.0, "model": model_of(self, state, index)}]

    def outcome(self, state: State, index: int, which: int) -> tuple[State, Any]:
        return state, None


def recorded_run(method: fedax.Algorithm, task: fedax.Task, data: Any, **options: Any) -> fedax.Run:
    """A run by :func:`fedax.simulate`'s own loop, with all costs and, in the column ``model``, the iterates."""
    job = make_job(method, task, data, evaluate_every=1, **options)
    (run,) = drive(Recorded(job), [job], lambda which, row: None)
    return run


def simulated_path(
    method: fedax.Algorithm, *, task: fedax.Task = QUADRATIC, data: Any = DATA, x0: Any = X0, **options: Any
) -> np.ndarray:
    """The same by :func:`fedax.simulate`, from a history with the parameters for metrics."""
    options = {"rounds": ROUNDS, "work": UNEQUAL} | options
    one = jax.tree.map(lambda leaf: leaf[:1], data.examples)
    run = fedax.simulate(method, task, data, params=x0, test=one, evaluate_every=1, **options)
    return np.stack([run.history[f"test_x{j}"] for j in range(len(task.metrics))], axis=1)


def finished(
    method: fedax.Algorithm,
    rounds: int,
    *,
    task: fedax.Task = QUADRATIC,
    data: Any = DATA,
    params: Any = X0,
    work: fedax.Work = UNEQUAL,
    **options: Any,
) -> tuple[np.ndarray, Any]:
    """x^R of a run in float64, [parameters], and what clients keep: all rounds in one call, without evaluation."""
    programs = programs_of(method, task, data, rounds, params, work, **options)
    state, _ = programs.advance(first_state(programs), 0, rounds)
    return model_of(programs, state, rounds), state.memory


def limit(method: fedax.Algorithm, rounds: int, **options: Any) -> np.ndarray:
    """x^R of a run in float64, [parameters]; options as of :func:`finished`."""
    return finished(method, rounds, **options)[0]


def reference_path(
    reference: Any,
    cohorts: Any = None,
    *,
    taus: Any = BED.tau,
    x0: Any = X0,
    grads: Any = GRADS,
    p: Any = BED.p,
    **hyper: Any,
) -> np.ndarray:
    """The iterates of a NumPy reference, on the test bed by default; cohorts None is full participation."""
    of_rounds = fed.full_cohorts(p, ROUNDS) if cohorts is None else fed.trace_cohorts(p, cohorts)
    taus = np.full(len(p), taus) if isinstance(taus, int) else taus
    return reference(grads, p, taus, of_rounds, x0, ROUNDS, **hyper).iterates


def _regression() -> fedax.FederatedData:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(25, 3)).astype(np.float32)
    client = np.repeat(np.arange(5), [3, 8, 5, 2, 7])
    y = np.sum(x * rng.normal(size=(5, 3))[client], axis=1) + rng.normal(size=25)
    return fedax.FederatedData({"x": x, "y": y.astype(np.float32)}, np.bincount(client))


def _loss(params: Any, batch: Any, key: Any) -> Any:
    return 0.5 * (batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2


REGRESSION = _regression()  # five clients with 2 to 8 examples
LINEAR = recorded(fedax.Task(lambda key: {"w": jnp.zeros(3), "b": jnp.zeros(())}, _loss), 4)


def noisy(method: fedax.Algorithm, **options: Any) -> np.ndarray:
    """The iterates of a run on minibatches of two examples; the same seed draws the same minibatches."""
    options = {"work": fedax.Steps(4)} | options
    return path(method, task=LINEAR, data=REGRESSION, x0=None, batch_size=2, seed=3, **options)


# The minibatches that a run draws, so that a reference can be given the same.


class Spy(fedax.Algorithm):
    """Computes gradients on the minibatches 0 … steps − 1 in every exchange, and stores them in client memory."""

    who: tuple[str, ...] = eqx.field(static=True)
    steps: int = eqx.field(static=True)
    rounds: int = eqx.field(static=True)

    def init(self, x):
        return x

    def init_client(self, x):
        return jnp.zeros((self.rounds + 1, len(self.who), self.steps, x.size))

    def exchange(self, number, who, round_=None):
        def client(x, memory, oracle):
            rows = jax.lax.map(lambda k: oracle.grad(x, k).tree, jnp.arange(self.steps))
            return 0.0, memory.at[oracle.round if round_ is None else round_, number].set(rows)

        return fedax.Exchange(client, lambda server, mean, round: server, who=who)

    def exchanges(self):
        return tuple(self.exchange(number, who) for number, who in enumerate(self.who))

    def warmup(self):
        return (self.exchange(0, "cohort", self.rounds),)


def minibatches(
    who: tuple[str, ...] = ("cohort", "cohort"), data: Any = REGRESSION, steps: int = 5, **options: Any
) -> np.ndarray:
    """[N, ROUNDS + 1, exchanges, steps, n]: the weight of each example in each minibatch; the warm-up is last.

    A client that does not take part in an exchange has zeros there.
    """
    task, examples = named(int(data.sizes.sum())), numbered(data.sizes, data.weights)
    run = fedax.simulate(Spy(who, steps, ROUNDS), task, examples, rounds=ROUNDS, evaluate_every=ROUNDS, **options)
    return np.asarray(run.memory)


def picked_clients(data: Any, **options: Any) -> list[int]:
    """The client of every round that runs the second of two exchanges alone."""
    took_part = minibatches(("cohort", "one"), data, 1, **options)[:, :-1, -1].any(axis=(2, 3))
    assert (took_part.sum(axis=0) == 1).all()
    return [int(i) for i in took_part.argmax(axis=0)]


def regression_grads(weights: np.ndarray) -> list[Any]:
    """g_i(x, step, round, exchange) on those minibatches of ``REGRESSION``; x is [offset, slopes]."""
    A = np.column_stack([np.ones(len(REGRESSION.examples["x"])), REGRESSION.examples["x"]]).astype(np.float64)
    y = np.asarray(REGRESSION.examples["y"], np.float64)
    client = np.repeat(np.arange(len(REGRESSION.sizes)), REGRESSION.sizes)

    def grad(i: int) -> Any:
        def at(x: np.ndarray, k: int | None, r: int, exchange: int = 0) -> np.ndarray:
            batch = (client == i) / REGRESSION.sizes[i] if k is None else weights[i, r, exchange, k]
            assert np.isclose(batch.sum(), 1) and not batch[client != i].any()
            return A.T @ (batch * (A @ x - y))

        at.constant = np.mean(0.5 * y[client == i] ** 2)
        return at

    return [grad(i) for i in range(len(REGRESSION.sizes))]


class Averaged(fedax.Algorithm):
    """Wraps a method: the model is the mean of its iterates from round ``start`` on, taken after the last exchange."""

    inner: fedax.Algorithm
    start: int = eqx.field(static=True)

    def init(self, x):
        return self.inner.init(x), fedax.zeros_like(x), 0.0

    def init_client(self, x):
        return self.inner.init_client(x)

    def wrapped(self, exchange, last):
        download = exchange.download or self.inner.download

        def server(state, mean, round):
            inner, total, count = state
            inner, new = exchange.server(inner, mean, round), jnp.where(round.index >= self.start, 1.0, 0.0)
            if not last:
                return inner, total, count
            return inner, total + new * self.inner.model(inner), count + new

        return fedax.Exchange(exchange.client, server, lambda state: download(state[0]), exchange.who)

    def exchanges(self):
        *first, last = self.inner.exchanges()
        return (*(self.wrapped(exchange, False) for exchange in first), self.wrapped(last, True))

    def warmup(self):
        return tuple(self.wrapped(exchange, False) for exchange in self.inner.warmup())

    def model(self, state):
        return state[1] / jnp.maximum(state[2], 1.0)
