"""Conformance: checks that every method of fedax passes, and the user's own methods should; run on small problems.

The problem is a least-squares federation of five clients with different data, weights and local steps. It runs in
float64 with full local gradients, so that equal results are equal up to rounding.
"""

import contextlib
import dataclasses
import functools
import inspect
import itertools
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedax.contract.algorithm import Algorithm, Exchange
from fedax.contract.compression import decoded
from fedax.contract.vector import Vector
from fedax.data.federated import FederatedData
from fedax.engine.devices import Place
from fedax.engine.fingerprint import digest
from fedax.engine.footprint import footprints
from fedax.engine.history import Run
from fedax.engine.job import Job
from fedax.engine.make import make_job
from fedax.engine.places.device import one_round, prepare
from fedax.engine.simulate import simulate
from fedax.engine.sweep import sweep
from fedax.errors import ConfigError, FedaxError, unknown
from fedax.federation.participation import Cohort, Full, Participation, Uniform
from fedax.federation.work import Steps, Work
from fedax.progress import show_progress
from fedax.tasks.linear import quadratic
from fedax.tasks.task import Task
from fedax.wire.sums import is_change, without_marks

_ROUNDS = 6
_CLOSE = 1e-8  # relative to how far the model moves; rounding is about 1e-14
_FAR = 1e-12  # a smaller change counts as no effect
_COHORTS = [[0, 1, 2, 3, 4], [1, 3], [2], [4, 0, 3], [1, 2, 4], [0, 3]]  # repeated after six rounds
_TOTALS = [1.0, 1.0, 0.7, 1.4, 1.0, 0.9]  # Σω of these cohorts
_STEPS = np.array([2, 4, 1, 3, 2])
_WEIGHTS = np.array([0.1, 0.3, 0.15, 0.25, 0.2])
_ORDER = np.array([3, 0, 4, 2, 1])  # new place -> old number
_FULL: dict[str, Any] = {"cohorts": [[0, 1, 2, 3, 4]] * 6, "totals": [1.0] * 6, "steps": 3}
_CALLBACKS = ("pure_callback", "io_callback", "debug_callback")


class Check(NamedTuple):
    """The result of one check.

    Attributes:
        name: of the check.
        promise: what has to hold.
        status: ``"holds"``, ``"does not hold"``, or ``"not promised"``.
        found: the numbers, and what to do.
    """

    name: str
    promise: str
    status: str
    found: str


class Conformance:
    """The result of :func:`check`.

    Attributes:
        method: its repr.
        checks: in the order in which they were made.
    """

    def __init__(self, method: str, checks: Sequence[Check]):
        self.method, self.checks = method, tuple(checks)

    @property
    def passed(self) -> bool:
        """Whether all checks hold that the method promises to pass."""
        return not self.failed

    @property
    def failed(self) -> list[str]:
        """The names of the checks that do not hold."""
        return [check.name for check in self.checks if check.status == "does not hold"]

    @property
    def table(self) -> list[dict[str, str]]:
        """A row for each check, for instance for ``pandas.DataFrame``."""
        return [check._asdict() for check in self.checks]

    def __getitem__(self, name: str) -> Check:
        return next(check for check in self.checks if check.name == name)

    def __repr__(self) -> str:
        marks = {"holds": "holds", "does not hold": "FAILS", "not promised": "  -  "}
        width = max(len(check.name) for check in self.checks)
        lines = [f"{marks[check.status]}  {check.name:{width}}  {check.promise}" for check in self.checks]
        for k, check in enumerate(self.checks):
            lines[k] += f"\n{'':{width + 9}}{check.found}" if check.found else ""
        end = f"{len(self.failed)} of {len(self.checks)} do not hold: {', '.join(self.failed)}"
        return "\n".join([self.method, *lines, "everything holds" if self.passed else end])


def check(
    algorithm: Algorithm, only: Sequence[str] | None = None, watch: Callable[[str], None] | None = None
) -> Conformance:
    """Check that a method has the properties that all methods of fedax have.

    Clients can be reordered and split, and a client of weight zero changes nothing; chunks, places and an interruption
    do not change the result; the method has no state besides the server's and the clients'; its costs are counted; and
    its hyper-parameters have an effect. Properties that a method does not promise are reported as such.

    Args:
        algorithm: the method, with hyper-parameters for a problem of smoothness 1.
        only: the names of the checks to make; default: all.
        watch: called with the name of each check before it is made.

    Returns:
        :class:`Conformance`; ``passed`` says whether everything holds.

    Raises:
        ConfigError: no method, or hyper-parameters out of range.

    Example:
        >>> import fedax
        >>> fedax.check(fedax.create("fedavg", lr=0.1), only=["descent", "relabelling"])
        FedAvg(solver=SGD(lr=0.1), averaging=Weighted(), server=Plain())
        holds  descent      it runs, lowers a quadratic, and stays finite
                            objective 1.82 → 0.3789 in 30 rounds
        holds  relabelling  the order of the clients does not matter
                            clients in another order: models ... of their way apart
        everything holds
    """
    if not isinstance(algorithm, Algorithm):
        raise ConfigError("algorithm", algorithm, "give a method: an object of a class that is a fedax.Algorithm")
    algorithm.validate()
    names = list(_CHECKS) if only is None else list(only)
    for name in names:
        if name not in _CHECKS:
            raise unknown("only", name, _CHECKS)
    before = _python_state(algorithm)
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checks = list(_run_checks(algorithm, before, names, watch or (lambda name: None)))
    return Conformance(repr(algorithm), checks)


class _Fails(Exception):
    """A check that does not hold, and why."""


class _NotPromised(Exception):
    """A check that the method does not promise to pass, and why."""


def _run_checks(
    algorithm: Algorithm, before: dict[str, str], names: Sequence[str], watch: Callable[[str], None]
) -> Iterator[Check]:
    problem = _TestProblem(algorithm)
    for number, name in enumerate(names):
        promise, trial = _CHECKS[name]
        watch(name)
        try:
            text = trial(problem, before) if trial is _check_no_hidden_state else trial(problem)
            yield Check(name, promise, "holds", text)
        except _NotPromised as error:
            yield Check(name, promise, "not promised", str(error))
        except _Fails as error:
            yield Check(name, promise, "does not hold", str(error))
        except FedaxError as error:
            yield Check(name, promise, "does not hold", str(error))
            if number == 0:
                return
        except Exception as error:
            first = str(error).strip().partition("\n")[0][:300]
            yield Check(name, promise, "does not hold", f"it raised {type(error).__name__}: {first}")
            if number == 0:
                return


# ---- the test problem


class _Replay(Participation):
    """Given cohorts, repeated; as arrays, so that different cohorts share one compiled program."""

    ids: Any
    weights: Any

    def draw(self, key: Any, weights: Any, index: Any) -> Cohort:
        row = index % np.shape(self.ids)[0]
        return Cohort(jnp.asarray(self.ids)[row], jnp.asarray(self.weights, weights.dtype)[row])

    def places(self, num_clients: int) -> int:
        return int(np.shape(self.ids)[1])


def _replay(cohorts: Sequence[Sequence[int]], weights: np.ndarray, totals: Sequence[float] = _TOTALS) -> _Replay:
    n = len(weights)
    ids, omega = np.full((len(cohorts), n), n, np.int32), np.zeros((len(cohorts), n))
    for r, (cohort, total) in enumerate(zip(cohorts, totals, strict=True)):
        ids[r, : len(cohort)] = cohort
        omega[r, : len(cohort)] = total * weights[list(cohort)] / max(weights[list(cohort)].sum(), 1e-300)
    return _Replay(ids, omega)


def _zeros(kind: Any, key: Any) -> Any:
    return {"w": jnp.zeros(3, kind), "b": jnp.zeros((), kind)}


def _loss(params: Any, batch: Any, key: Any) -> Any:
    return 0.5 * (batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2


_TASK = Task(functools.partial(_zeros, None), _loss, name="least squares")
_START = {"w": np.array([1.0, -2.0, 0.5]), "b": np.array(0.3)}


def _examples(clients: int) -> dict[str, np.ndarray]:
    """[clients, 2, …] two examples for each client; the mean of all losses has smoothness 1."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(clients, 2, 3))
    y = np.einsum("nbj,nj->nb", x, rng.normal(size=(clients, 3))) + rng.normal(size=(clients, 2))
    rows = np.concatenate([x.reshape(-1, 3), np.ones((2 * clients, 1))], axis=1)
    scale = np.sqrt(np.linalg.eigvalsh(rows.T @ rows / len(rows)).max())
    return {"x": x / scale, "y": y / scale}


class _TestProblem:
    """A method on the test problem, with cached runs."""

    def __init__(self, method: Algorithm):
        self.method, self.traits = method, method.traits()
        self.all_clients, self.equal = self.traits.cohorts == "all", self.traits.steps == "equal"
        self.data = _examples(5)
        if not self.equal:
            with contextlib.suppress(ConfigError):  # the first run reports it
                self.equal = self._refuses_unequal()

    def run(
        self,
        *,
        examples: Any = None,
        weights: np.ndarray = _WEIGHTS,
        steps: Any = _STEPS,
        cohorts: Sequence[Sequence[int]] = _COHORTS,
        totals: Sequence[float] = _TOTALS,
        method: Algorithm | None = None,
        **options: Any,
    ) -> Run:
        """Run the method, with full participation if it needs that."""
        data = _federation(self.data if examples is None else examples, weights)
        options = self.options(weights, steps, cohorts, totals) | options
        task = options.pop("task", _TASK)
        with show_progress(False):
            return simulate(self.method if method is None else method, task, data, **options)

    def options(self, weights: np.ndarray, steps: Any, cohorts: Any, totals: Any) -> dict[str, Any]:
        who = Full() if self.all_clients else _replay(cohorts, weights, totals)
        work: Work = Steps(3 if self.equal else steps)
        options: dict[str, Any] = {"participation": who, "work": work, "rounds": _ROUNDS, "evaluate_every": _ROUNDS}
        return options | {"params": _START, "place": Place(chunk_size=len(weights))}

    def model(self, **options: Any) -> np.ndarray:
        """The final model of a run, as one vector."""
        return _flat(self.run(**options).params)

    def _refuses_unequal(self) -> bool:
        """Whether the hyper-parameters need equal steps, as a dual step of 1/τ by default."""
        try:
            self.job()
        except ConfigError:
            self.job(work=Steps(3))
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
        options = self.options(_WEIGHTS, _STEPS, _COHORTS, _TOTALS) | options
        task, data = options.pop("task", _TASK), options.pop("data", _federation(self.data, _WEIGHTS))
        return make_job(options.pop("method", self.method), task, data, **options)

    @functools.cached_property
    def random(self) -> bool:
        """Whether the method draws random numbers; nothing else in these runs is random."""
        return bool((self.model(seed=1) != self.base).any())

    def unless_random(self, run_check: Callable[[], str]) -> str:
        """Run a check that random methods need not pass: their random numbers depend on a client's place."""
        try:
            return run_check()
        except _Fails:
            if self.random:
                why = "it draws random numbers, or one client of the cohort, and another order draws others"
                raise _NotPromised(why) from None
            raise


def _compare(name: str, one: np.ndarray, other: np.ndarray, hint: str) -> str:
    """Fail unless two final models are equal; return how far they are apart, as text."""
    apart, moved = np.abs(other - one).max(), np.abs(one - _flat(_START)).max()
    text = f"{name}: models {apart / max(moved, 1e-300):.1e} of their way apart"
    if not apart <= _CLOSE * moved:
        raise _Fails(f"{text}; {hint}")
    return text


def _federation(examples: Any, weights: np.ndarray) -> FederatedData:
    rows = jax.tree.map(lambda leaf: np.reshape(leaf, (-1, *np.shape(leaf)[2:])), examples)
    return FederatedData(rows, np.full(len(weights), 2), weights)


def _flat(params: Any) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(params)])


# ---- the checks


def _check_descent(problem: _TestProblem) -> str:
    run = problem.run(**_FULL | {"steps": _STEPS}, rounds=30, evaluate_every=30)
    column = run.history.get("objective", run.history["train_loss"])
    text = f"objective {column[0]:.4g} → {column[-1]:.4g} in 30 rounds"
    if not np.isfinite(_flat(run.params)).all():
        raise _Fails(f"{text}: not finite; give a smaller lr, or see whether a sign is wrong")
    if not column[-1] < column[0]:
        hint = "an update is y − x and the server adds it; or lr is too large for smoothness 1"
        raise _Fails(f"{text}: it does not fall; {hint}")
    return text


def _check_structure(problem: _TestProblem) -> str:
    got, want = (jax.tree.map(jnp.shape, tree) for tree in (problem.run().params, _START))
    if got != want:
        raise _Fails(f"model() returns {got} where the task has {want}")
    return f"parameters {want}"


def _check_types(problem: _TestProblem) -> str:
    """Trace in float32 and bfloat16 while float64 is enabled, so that promotions show."""
    for kind in (jnp.float32, jnp.bfloat16):
        start = jax.tree.map(functools.partial(jnp.asarray, dtype=kind), _START)
        task = dataclasses.replace(_TASK, init=functools.partial(_zeros, kind))
        rows = {key: leaf.astype(np.float32) for key, leaf in problem.data.items()}
        job = problem.job(task=task, data=_federation(rows, _WEIGHTS), params=start)
        for number, form in enumerate(job.forms[1]):
            read = jax.eval_shape(decoded, form.upload)  # what the server reads out of messages
            for what, tree in (("download", form.download), ("upload", read), ("memory", form.memory)):
                for at, leaf in jax.tree_util.tree_leaves_with_path(tree):
                    where = f"{what}{jax.tree_util.keystr(at)} of exchange {number}"
                    if leaf.ndim and leaf.dtype == jnp.float64:
                        hint = "a NumPy float64 makes it so: use Python numbers, or fedax.zeros_like"
                        raise _Fails(f"{where} is float64 where the model is {jnp.dtype(kind)}; {hint}")
                    if what == "upload" and not jnp.issubdtype(leaf.dtype, jnp.floating):
                        raise _Fails(f"{where} is {leaf.dtype}, of which no mean can be taken; upload floats")
    return "the state keeps its form in float32, bfloat16 and float64"


def _check_determinism(problem: _TestProblem) -> str:
    for _ in range(2):
        if (problem.model() != problem.base).any():
            raise _Fails("two runs of one seed differ; draw random numbers from oracle.key or round.key only")
    if _program(problem)[0] != _program(problem)[0]:
        hint = "Python's or NumPy's random numbers, or something that is counted in Python, became a constant"
        raise _Fails(f"traced twice, it is two programs: {hint}; take oracle.key, round.key and round.index")
    return "two runs are equal bit by bit, and two traces are one program"


def _program(problem: _TestProblem) -> tuple[str, set[str]]:
    """Trace a round anew; return the digest of the program, and the names of its operations."""
    job = problem.job()
    plan = dataclasses.replace(job.plan, mesh=None)
    given = (job.hyper, job.fed, job.key)
    before, _ = jax.eval_shape(functools.partial(prepare, plan=plan), *given, job.x)
    program = jax.make_jaxpr(functools.partial(one_round, plan=plan, forms=[]))(*given, before, jnp.int32(0))
    return digest(program), set(_operations(program))


def _operations(program: Any) -> Iterator[str]:
    for equation in program.eqns:
        yield equation.primitive.name
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda each: hasattr(each, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _operations(inner)


def _python_state(method: Algorithm) -> dict[str, str]:
    """Snapshot of where a method could hide state: itself, its class, and the variables of its module."""
    state = {"the method": f"{method!r} {[repr(leaf) for leaf in jax.tree.leaves(method)]}"}
    for kind in type(method).__mro__:
        if kind.__module__.partition(".")[0] in ("fedax", "equinox", "builtins"):
            break
        members = {name: member for name, member in vars(kind).items() if not name.startswith("__")}
        state |= {f"{kind.__name__}.{name}": repr(member) for name, member in members.items() if not callable(member)}
        for name, function in members.items():
            for member in inspect.getclosurevars(function).nonlocals.items() if inspect.isfunction(function) else ():
                state[f"{member[0]} in {kind.__name__}.{name}"] = repr(member[1])
        module = vars(sys.modules.get(kind.__module__, sys))
        plain = (dict, list, set, int, float, np.ndarray, itertools.count)
        state |= {
            name: repr(member) for name, member in module.items() if isinstance(member, plain) and name[:2] != "__"
        }
    return {name: text[:10_000] for name, text in state.items()}


def _check_no_hidden_state(problem: _TestProblem, before: dict[str, str]) -> str:
    after = _python_state(problem.method)
    changed = [name for name in before if after.get(name) != before[name]]
    if changed or (more := {*after} - {*before}):
        name = min(changed or more)
        hint = "what changes goes into the server's state or the client's memory: elsewhere no other place finds it"
        raise _Fails(f"{name} has changed while it ran; {hint}")
    if calls := _program(problem)[1] & {*_CALLBACKS}:
        hint = "what goes through Python is not counted, and not there on another machine"
        raise _Fails(f"a round calls back into Python ({min(calls)}); {hint}")
    return "the method, its class and the variables of its module are as before; no calls into Python"


def _check_relabelling(problem: _TestProblem) -> str:
    place = np.argsort(_ORDER)
    rows = {name: leaf[_ORDER] for name, leaf in problem.data.items()}
    cohorts = [[int(place[i]) for i in reversed(cohort)] for cohort in _COHORTS]
    hint = "use no client's place: of round.weights and round.steps take sums and means, no single entry"
    given = {"examples": rows, "weights": _WEIGHTS[_ORDER], "cohorts": cohorts}

    def compared() -> str:
        _compare("equal steps, clients in another order", problem.known, problem.model(**given, steps=3), hint)
        return _compare("clients in another order", problem.base, problem.model(**given, steps=_STEPS[_ORDER]), hint)

    return problem.unless_random(compared)


def _check_splitting(problem: _TestProblem) -> str:
    """Split client 3 into clients 3 and 5."""
    which = np.array([0, 1, 2, 3, 4, 3])
    weights = _WEIGHTS[which] * np.where(which == 3, 0.5, 1.0)
    cohorts = [[*cohort, 5] if 3 in cohort else cohort for cohort in _COHORTS]
    rows = {name: leaf[which] for name, leaf in problem.data.items()}
    hint = (
        "the server has to use the mean with its weights, round.weights, round.data_weights and round.total, and no "
        "number of clients; what a client sends must not be scaled by it"
    )
    given = {"examples": rows, "weights": weights, "steps": _STEPS[which], "cohorts": cohorts}
    return problem.unless_random(lambda: _compare("one client as two", problem.base, problem.model(**given), hint))


def _six(problem: _TestProblem) -> dict[str, Any]:
    """Options with a sixth client, of weight 0, in every second round."""
    rows = {name: np.concatenate([leaf, 7.0 * leaf[1:2]]) for name, leaf in problem.data.items()}
    cohorts = [[*cohort, 5] if r % 2 == 0 else cohort for r, cohort in enumerate(_COHORTS)]
    weights = np.append(_WEIGHTS, 0.0)
    return {"examples": rows, "weights": weights, "steps": np.append(_STEPS, 3), "cohorts": cohorts}


def _check_weight_zero(problem: _TestProblem) -> str:
    hint = "its upload is in the mean with weight 0: count no clients, and weigh everything by round.weights"
    return problem.unless_random(
        lambda: _compare("with such a client", problem.base, problem.model(**_six(problem)), hint)
    )


def _check_unequal_steps(problem: _TestProblem) -> str:
    """Compare steps that are part of the program with the same numbers given when it runs."""
    if problem.equal:
        raise _NotPromised("with these hyper-parameters it is defined for equal steps only")
    steps = np.array([3, 3, 3, 3, 3, 1])  # the sixth has weight 0
    traced = problem.model(**_six(problem) | {"steps": steps})
    hint = "oracle.steps is a number or a traced one: loop by fedax.local_steps"
    text = problem.unless_random(lambda: _compare("τ = 3 compiled in, and given", problem.known, traced, hint))
    if problem.all_clients:
        return text
    gradients = {}
    for client in (2, 1):  # τ = 1 and 4
        run = problem.run(cohorts=[[client]] * 6, rounds=1, evaluate_every=1)
        gradients[_STEPS[client]] = run.history["gradients"][-1] - run.history["gradients"][0]
    a_step = (gradients[4] - gradients[1]) / 3
    constant = gradients[1] - a_step
    if a_step > 0 and constant < 0:
        raise _Fails(f"τ local steps take {a_step:g} τ − {-constant:g} gradients: the loop leaves a step out")
    return f"{text}; gradients of a client: {a_step:g} τ + {constant:g}"


def _check_identical_clients(problem: _TestProblem) -> str:
    rows = {name: np.repeat(leaf[:1], 5, axis=0) for name, leaf in problem.data.items()}
    five = problem.model(examples=rows, **_FULL)
    one = {name: leaf[:1] for name, leaf in rows.items()}
    single = problem.model(examples=one, weights=np.ones(1), **_FULL | {"cohorts": [[0]] * 6})
    hint = "the server has to use the mean of the uploads, not their sum"
    return problem.unless_random(lambda: _compare("five and one", single, five, hint))


def _check_chunks(problem: _TestProblem) -> str:
    hint = "the server must not use how many places there are: empty ones have round.present false"
    return _compare("two clients at a time", problem.base, problem.model(place=Place(chunk_size=2)), hint)


def _check_places(problem: _TestProblem) -> str:
    run = problem.run(place=Place(chunk_size=len(_WEIGHTS), client_memory="host", stream=True))
    hint = "client() has to use what it is given only"
    return _compare("data and memory on the host", problem.base, _flat(run.params), hint)


def _check_cohorts(problem: _TestProblem) -> str:
    if problem.all_clients:
        try:
            _federation_run(problem, Uniform(2))
        except ConfigError:
            raise _NotPromised("it is defined for all clients, and refuses cohorts") from None
        raise _Fails("traits() says cohorts='all', and a cohort of two was not refused")
    run = _federation_run(problem, Uniform(2))
    if not np.isfinite(_flat(run.params)).all():
        hint = "Σω is not 1 here: divide models and second moments by round.total, or say cohorts='all' in traits()"
        raise _Fails(f"two of five clients a round: not finite; {hint}")
    return f"two of five clients a round: loss {run.history['train_loss'][-1]:.4g} after 30 rounds"


def _federation_run(problem: _TestProblem, who: Participation) -> Run:
    return problem.run(participation=who, rounds=30, evaluate_every=30)


class _Killed(Exception):
    pass


def _check_resume(problem: _TestProblem) -> str:
    def stop(row: dict[str, Any]) -> None:
        if row["round"] == 4:
            raise _Killed

    whole = problem.run(evaluate_every=2)
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.suppress(_Killed):
            problem.run(evaluate_every=2, checkpoint=folder, callback=stop)
        again = problem.run(evaluate_every=2, checkpoint=folder)
    for what in ("params", "state", "memory"):
        for one, other in zip(*(jax.tree.leaves(getattr(run, what)) for run in (whole, again)), strict=True):
            if np.asarray(one).tobytes() != np.asarray(other).tobytes():
                raise _Fails(f"{what} differ after a stop; all that changes has to be in the server's state and memory")
    return "stopped after 4 of 6 rounds and gone on with: model, state and memory equal bit by bit"


def _check_sweep(problem: _TestProblem) -> str:
    leaves, structure = jax.tree.flatten(problem.method)
    if not leaves:
        raise _NotPromised("it has no hyper-parameter that is a number")
    half = jax.tree.unflatten(structure, [leaf / 2 for leaf in leaves])
    try:
        half.validate()
    except FedaxError:
        half = problem.method
    methods = [problem.method, half]
    options = problem.options(_WEIGHTS, _STEPS, _COHORTS, _TOTALS)
    with show_progress(False):
        points = [{"k": 0}, {"k": 1}]
        result = sweep(lambda k: methods[k], points, _TASK, _federation(problem.data, _WEIGHTS), **options)
    if result.programs != 1:
        hint = "let numbers be fields without static=True, and choose between branches by strings"
        raise _Fails(f"two values of its numbers take {result.programs} compiled programs; {hint}")
    hint = "hyper-parameters are traced: use jnp.where in place of if"
    for single, swept in zip((problem.base, problem.model(method=half)), result.runs, strict=True):
        text = _compare("alone and beside another point", single, _flat(swept[0].params), hint)
    return text


def _check_fields(problem: _TestProblem) -> str:
    """Each number, changed a little, has to change the model."""
    without_effect: list[str] = []
    tested: list[str] = []
    parts: list[str] = []
    with_paths, structure = jax.tree_util.tree_flatten_with_path(problem.method)
    for k, (at, leaf) in enumerate(with_paths):
        name = jax.tree_util.keystr(at).lstrip(".")
        if np.ndim(leaf):
            continue
        tested.append(name)
        for new in (leaf * 0.9, leaf * 0.5 + 0.05, leaf + 0.1):
            method = jax.tree.unflatten(structure, [each if j != k else new for j, (_, each) in enumerate(with_paths)])
            try:
                method.validate()
            except FedaxError:
                continue
            if np.abs(problem.model(method=method) - problem.base).max() > _FAR:
                break
        else:
            (parts if "." in name else without_effect).append(name)
    if without_effect:
        raise _Fails(
            f"{', '.join(without_effect)}: another value changes nothing here; use it, or let None switch it off where "
            "it is not used"
        )
    text = f"{', '.join(tested)}: each changes the model" if tested else "no field is a number"
    return f"{text}, but for {', '.join(parts)} of a part that does without" if parts else text


class _Watched(Algorithm):
    """Wraps a method, and sums all changes that its server has received."""

    inner: Algorithm
    forms: Any = eqx.field(static=True)  # for each exchange, which leaves of its upload are changes
    start: Any = eqx.field(static=True)

    def init(self, x: Vector) -> Any:
        return self.inner.init(x), [jnp.zeros(shape, kind) for shape, kind in self.start]

    def init_client(self, x: Vector) -> Any:
        return self.inner.init_client(x)

    def model(self, server: Any) -> Vector:
        return self.inner.model(server[0])

    def penalty(self, x: Vector) -> Any:
        return self.inner.penalty(x)

    def exchanges(self) -> tuple[Exchange, ...]:
        return self._stage(self.inner.exchanges(), self.forms[1])

    def warmup(self) -> tuple[Exchange, ...]:
        return self._stage(self.inner.warmup(), self.forms[0])

    def _stage(self, stage: tuple[Exchange, ...], forms: Any) -> tuple[Exchange, ...]:
        return tuple(self._exchange(each, form) for each, form in zip(stage, forms, strict=True))

    def _exchange(self, exchange: Exchange, changes: tuple[bool, ...]) -> Exchange:
        download = exchange.download or self.inner.download

        def server(state: Any, mean: Any, round: Any) -> Any:
            assert exchange.server is not None
            received = [leaf for leaf, is_one in zip(jax.tree.leaves(mean), changes, strict=True) if is_one]
            total = [old + new for old, new in zip(state[1], received, strict=True)] if received else state[1]
            return exchange.server(state[0], mean, round), total

        return Exchange(
            exchange.client,
            None if exchange.server is None else server,
            lambda state: download(state[0]),
            exchange.who,
        )


def _changes_of(form: Any) -> tuple[bool, ...]:
    """For each leaf of an upload without marks, whether it is part of a change."""
    marked = jax.tree.map(
        lambda part: jax.tree.map(lambda leaf: is_change(part), without_marks(part)), form.upload, is_leaf=is_change
    )
    return tuple(jax.tree.leaves(marked))


def _check_memory(problem: _TestProblem) -> str:
    forms = problem.job().forms
    stages = [[_changes_of(form) for form in stage] for stage in forms]
    leaves = [
        [leaf for leaf, one in zip(jax.tree.leaves(without_marks(form.upload)), _changes_of(form), strict=True) if one]
        for stage in forms
        for form in stage
    ]
    kept = jax.tree.leaves(forms[1][-1].memory)
    changed = [each for each in leaves if each]
    memory = problem.run()
    if not kept:
        if changed:
            raise _Fails("a Change is the change of what a client keeps, and its clients keep nothing")
        return "clients keep nothing"
    start = problem.method.init_client(Vector(jax.tree.map(jnp.asarray, _START)))
    ends = [np.asarray(leaf) for leaf in jax.tree.leaves(memory.memory)]
    starts = [np.asarray(leaf) for leaf in jax.tree.leaves(start)]
    still = [k for k, (end, first) in enumerate(zip(ends, starts, strict=True)) if (end == first).all()]
    if len(still) == len(ends):
        raise _Fails("what clients keep never changes; return the new memory from client(), or keep nothing")
    if not changed:
        return f"clients keep {sum(each[0].size for each in ends)} numbers each; nothing of it is sent as a Change"
    moved = [np.tensordot(_WEIGHTS, end - first, 1) for end, first in zip(ends, starts, strict=True)]
    sums = [np.tensordot(_WEIGHTS, end, 1) for end in ends]
    state = [np.asarray(leaf) for leaf in jax.tree.leaves(memory.state)]
    worst = min((_apart(total, each) for total in sums for each in state), default=np.inf)
    if worst <= _CLOSE:
        return f"Σ p_i · memory_i is in the server's state, to {worst:.1e}"
    frozen, shapes = tuple(map(tuple, stages)), tuple((leaf.shape, leaf.dtype) for leaf in changed[0])
    _, sent = problem.run(method=_Watched(problem.method, frozen, shapes)).state or ((), ())
    received = [np.asarray(leaf) for leaf in sent]
    worst = max(min((_apart(total, each) for each in moved), default=np.inf) for total in received if total.size > 1)
    if not worst <= _CLOSE:
        raise _Fails(
            f"the changes that were sent and those of the memory are {worst:.1e} apart; what is in fedax.Change(…) has "
            "to be the new memory minus the old one, and client() has to return the new one"
        )
    return f"the changes that were sent are those of the memory, to {worst:.1e}"


def _apart(one: np.ndarray, other: np.ndarray) -> float:
    """How far two arrays are from being proportional, as a share of the first; infinite for unlike shapes."""
    if one.shape != other.shape or one.size < 2 or not (one.any() and other.any()):
        return np.inf
    factor = np.vdot(other, one) / np.vdot(other, other)
    return float(np.abs(one - factor * other).max() / np.abs(one).max())


def _check_costs(problem: _TestProblem) -> str:
    """Compare the gradients that the program computes with those that the history counts."""
    computed = [0]

    def count(number: Any) -> None:
        computed[0] += 1

    @jax.custom_vjp
    def mark(losses: Any) -> Any:
        return losses

    def backward(_: Any, cotangent: Any) -> tuple[Any]:
        jax.debug.callback(count, cotangent[0])
        return (cotangent,)

    mark.defvjp(lambda losses: (losses, None), backward)
    task = dataclasses.replace(_TASK, loss=lambda params, batch, key: mark(_loss(params, batch, key)))
    run = problem.run(task=task, rounds=2, evaluate_every=2, **_FULL)
    jax.effects_barrier()
    counted = int(run.history["gradients"][-1])
    if counted != computed[0]:
        hint = "ask gradients of the oracle only, by oracle.cond where they depend on the round"
        raise _Fails(f"{counted} gradients are counted, and {computed[0]} were computed; {hint}")
    cost = footprints(problem.method).cohort
    models = f"{cost.down.models} models down and {cost.up.models} up a client and round"
    return f"{counted} gradients counted and computed in two rounds; {models}"


_H, _E, _P, _TAU = np.array([0.4, 0.7, 1.0]), np.array([1.0, -2.0, 3.0]), np.array([0.2, 0.5, 0.3]), [1, 5, 3]


def _check_optimum(problem: _TestProblem) -> str:
    exact = problem.traits.exact
    if exact == "never":
        raise _NotPromised("traits() does not say that it ends at the optimum of F")
    steps = 3 if problem.equal or exact == "equal steps" else _TAU
    data = FederatedData({"H": _H[:, None, None], "e": _E[:, None]}, np.ones(3, int), _P)
    options: dict[str, Any] = {"params": np.zeros(1), "rounds": 20_000, "evaluate_every": 20_000}
    with show_progress(False):
        run = simulate(problem.method, quadratic(1), data, work=Steps(steps), **options)
    target, spread = _P @ _E / (_P @ _H), np.ptp(_E / _H)
    far = abs(float(run.params[0]) - target) / spread
    text = f"{far:.1e} of the clients' spread from the optimum after 20,000 rounds"
    if not far < 1e-6:
        hint = "the fixed point is another one: see what is weighted by p_i and what by the number of clients"
        raise _Fails(f"{text}; {hint}, or change traits()")
    return text


_CHECKS: dict[str, tuple[str, Callable[..., str]]] = {
    "descent": ("it runs, lowers a quadratic, and stays finite", _check_descent),
    "model": ("model() has the structure of the task's parameters", _check_structure),
    "types": ("neither type nor structure of what is sent and kept change", _check_types),
    "determinism": ("one seed, one result", _check_determinism),
    "relabelling": ("the order of the clients does not matter", _check_relabelling),
    "splitting": ("a client counts as two of half its weight", _check_splitting),
    "weight zero": ("a client of weight zero changes nothing", _check_weight_zero),
    "unequal steps": ("it takes as many local steps as it is told", _check_unequal_steps),
    "identical clients": ("clients with the same data behave as one", _check_identical_clients),
    "chunks": ("how many clients run side by side does not matter", _check_chunks),
    "places": ("where data and memory are does not matter", _check_places),
    "cohorts": ("partial participation works, or is refused", _check_cohorts),
    "resume": ("a run that was stopped goes on bit-identically", _check_resume),
    "sweep": ("a point of a sweep is its single run", _check_sweep),
    "memory": ("what clients keep changes as they say", _check_memory),
    "costs": ("gradients are counted as they are computed", _check_costs),
    "optimum": ("it ends at the optimum of F where it says so", _check_optimum),
    "fields": ("every hyper-parameter does something", _check_fields),
    "no hidden state": ("nothing is kept in Python", _check_no_hidden_state),
}
