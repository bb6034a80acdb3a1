"""Conformance: what fedax's own methods hold and an own method should, tried on small problems.

A least-squares federation of five clients with unlike data, weights and local steps, in float64 and with full local
gradients, so that what has to be equal is equal to rounding.
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
from fedax.engine.footprint import footprints
from fedax.engine.history import Run
from fedax.engine.identity import digest
from fedax.engine.job import Job, make_job
from fedax.engine.places.device import one_round, prepare
from fedax.engine.simulate import simulate
from fedax.engine.sweep import sweep
from fedax.errors import ConfigError, FedaxError, complete, unknown
from fedax.federation.participation import Cohort, Full, Participation, Uniform
from fedax.federation.work import Steps, Work
from fedax.tasks.linear import quadratic
from fedax.tasks.task import Task
from fedax.wire.sums import is_change, without_marks

_ROUNDS = 6
_CLOSE = 1e-8  # of what the model moves; rounding is some 1e-14
_FAR = 1e-12  # less is no effect
_COHORTS = [[0, 1, 2, 3, 4], [1, 3], [2], [4, 0, 3], [1, 2, 4], [0, 3]]  # of the first rounds, then again
_TOTALS = [1.0, 1.0, 0.7, 1.4, 1.0, 0.9]  # Σω of these
_STEPS = np.array([2, 4, 1, 3, 2])
_WEIGHTS = np.array([0.1, 0.3, 0.15, 0.25, 0.2])
_ORDER = np.array([3, 0, 4, 2, 1])  # new place -> old number
_FULL: dict[str, Any] = {"cohorts": [[0, 1, 2, 3, 4]] * 6, "totals": [1.0] * 6, "steps": 3}
_CALLBACKS = ("pure_callback", "io_callback", "debug_callback")


class Check(NamedTuple):
    """One thing that was tried.

    Attributes:
        name: in a word or two.
        promise: what has to hold.
        status: ``"holds"``, ``"does not hold"``, or ``"not promised"``.
        found: the numbers, and what to do.
    """

    name: str
    promise: str
    status: str
    found: str


class Conformance:
    """What :func:`check` found.

    Attributes:
        method: as text.
        checks: in the order in which they were made.
    """

    def __init__(self, method: str, checks: Sequence[Check]):
        self.method, self.checks = method, tuple(checks)

    @property
    def passed(self) -> bool:
        """Whether everything holds that the method promises."""
        return not self.failed

    @property
    def failed(self) -> list[str]:
        """The names of the checks that do not hold."""
        return [each.name for each in self.checks if each.status == "does not hold"]

    @property
    def table(self) -> list[dict[str, str]]:
        """One row a check, for instance for ``pandas.DataFrame``."""
        return [each._asdict() for each in self.checks]

    def __getitem__(self, name: str) -> Check:
        return next(each for each in self.checks if each.name == name)

    def __repr__(self) -> str:
        marks = {"holds": "holds", "does not hold": "FAILS", "not promised": "  -  "}
        wide = max(len(each.name) for each in self.checks)
        lines = [f"{marks[each.status]}  {each.name:{wide}}  {each.promise}" for each in self.checks]
        for k, each in enumerate(self.checks):
            lines[k] += f"\n{'':{wide + 9}}{each.found}" if each.found else ""
        end = f"{len(self.failed)} of {len(self.checks)} do not hold: {', '.join(self.failed)}"
        return "\n".join([self.method, *lines, "everything holds" if self.passed else end])


@complete
def check(
    algorithm: Algorithm, only: Sequence[str] | None = None, watch: Callable[[str], None] | None = None
) -> Conformance:
    """Try whether a method holds what fedax's own methods hold.

    That clients can be renamed and split, that one of weight zero changes nothing, that chunks, places and a stop in
    between do not change what it computes, that it has no state besides its server's and its clients', that what it
    sends and asks is counted, and that its hyper-parameters do something. What a method does not promise is said.

    Args:
        algorithm: the method, with hyper-parameters for a problem of smoothness 1.
        only: the checks that are made, by name; default: all.
        watch: is called with the name of each check before it is made.

    Returns:
        :class:`Conformance`; ``passed`` is whether everything holds.

    Raises:
        ConfigError: it is no method, or hyper-parameters are out of range.

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
    names = list(_TRIALS) if only is None else list(only)
    for name in names:
        if name not in _TRIALS:
            raise unknown("only", name, _TRIALS)
    before = _python_state(algorithm)
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(_checks(algorithm, before, names, watch or (lambda name: None)))
    return Conformance(repr(algorithm), found)


class _Fails(Exception):
    """A check that does not hold, and why."""


class _NotPromised(Exception):
    """A check that the method does not promise to pass, and why."""


def _checks(
    algorithm: Algorithm, before: dict[str, str], names: Sequence[str], watch: Callable[[str], None]
) -> Iterator[Check]:
    bed = _Bed(algorithm)
    for number, name in enumerate(names):
        promise, trial = _TRIALS[name]
        watch(name)
        try:
            text = trial(bed, before) if trial is _no_state else trial(bed)
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


# ---- the bed


class _Replay(Participation):
    """Cohorts that are given as arrays, so that all that are tried have one program; they come again and again."""

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
    """[clients, 2, …] two examples each; the mean of all losses has the smoothness 1."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(clients, 2, 3))
    y = np.einsum("nbj,nj->nb", x, rng.normal(size=(clients, 3))) + rng.normal(size=(clients, 2))
    rows = np.concatenate([x.reshape(-1, 3), np.ones((2 * clients, 1))], axis=1)
    scale = np.sqrt(np.linalg.eigvalsh(rows.T @ rows / len(rows)).max())
    return {"x": x / scale, "y": y / scale}


class _Bed:
    """A method, and what was run of it so far."""

    def __init__(self, method: Algorithm):
        self.method, self.traits = method, method.traits()
        self.all_clients, self.equal = self.traits.cohorts == "all", self.traits.steps == "equal"
        self.data = _examples(5)
        if not self.equal:
            with contextlib.suppress(ConfigError):  # it is said by the first run
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
        """A run, with full participation where the method asks for it."""
        data = _federation(self.data if examples is None else examples, weights)
        options = self.options(weights, steps, cohorts, totals) | options
        task = options.pop("task", _TASK)
        return simulate(self.method if method is None else method, task, data, progress=False, **options)

    def options(self, weights: np.ndarray, steps: Any, cohorts: Any, totals: Any) -> dict[str, Any]:
        who = Full() if self.all_clients else _replay(cohorts, weights, totals)
        work: Work = Steps(3 if self.equal else steps)
        options: dict[str, Any] = {"participation": who, "work": work, "rounds": _ROUNDS, "evaluate_every": _ROUNDS}
        return options | {"params": _START, "place": Place(chunk_size=len(weights))}

    def model(self, **options: Any) -> np.ndarray:
        """Where a run ends."""
        return _flat(self.run(**options).params)

    def _refuses_unequal(self) -> bool:
        """Whether its hyper-parameters want equal steps, as a step of the dual that is 1/τ by default."""
        try:
            self.job()
        except ConfigError:
            self.job(work=Steps(3))
            return True
        return False

    @functools.cached_property
    def base(self) -> np.ndarray:
        """Where the run ends to which others are compared."""
        return self.model()

    @functools.cached_property
    def known(self) -> np.ndarray:
        """The same where all take three steps, a number that is compiled in."""
        return self.model(steps=3)

    def job(self, **options: Any) -> Job:
        """A job that is traced and not run."""
        options = self.options(_WEIGHTS, _STEPS, _COHORTS, _TOTALS) | options
        task, data = options.pop("task", _TASK), options.pop("data", _federation(self.data, _WEIGHTS))
        return make_job(options.pop("method", self.method), task, data, **options)

    @functools.cached_property
    def random(self) -> bool:
        """Whether it draws random numbers of its own: nothing else in these runs is random."""
        return bool((self.model(seed=1) != self.base).any())

    def unless_random(self, tried: Callable[[], str]) -> str:
        """What is promised only where the method draws no random numbers: they belong to places, not to clients."""
        try:
            return tried()
        except _Fails:
            if self.random:
                why = "it draws random numbers, or one client of the cohort, and another order draws others"
                raise _NotPromised(why) from None
            raise


def _compare(name: str, one: np.ndarray, other: np.ndarray, way_out: str) -> str:
    """Both ends are the same, or the check fails."""
    apart, moved = np.abs(other - one).max(), np.abs(one - _flat(_START)).max()
    told = f"{name}: models {apart / max(moved, 1e-300):.1e} of their way apart"
    if not apart <= _CLOSE * moved:
        raise _Fails(f"{told}; {way_out}")
    return told


def _federation(examples: Any, weights: np.ndarray) -> FederatedData:
    rows = jax.tree.map(lambda leaf: np.reshape(leaf, (-1, *np.shape(leaf)[2:])), examples)
    return FederatedData(rows, np.full(len(weights), 2), weights)


def _flat(params: Any) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(params)])


# ---- what is tried


def _runs(bed: _Bed) -> str:
    run = bed.run(**_FULL | {"steps": _STEPS}, rounds=30, evaluate_every=30)
    column = run.history.get("objective", run.history["train_loss"])
    told = f"objective {column[0]:.4g} → {column[-1]:.4g} in 30 rounds"
    if not np.isfinite(_flat(run.params)).all():
        raise _Fails(f"{told}: not finite; give a smaller lr, or see whether a sign is wrong")
    if not column[-1] < column[0]:
        way_out = "an update is y − x and the server adds it; or lr is too large for smoothness 1"
        raise _Fails(f"{told}: it does not fall; {way_out}")
    return told


def _structure(bed: _Bed) -> str:
    got, want = (jax.tree.map(jnp.shape, tree) for tree in (bed.run().params, _START))
    if got != want:
        raise _Fails(f"model() returns {got} where the task has {want}")
    return f"parameters {want}"


def _types(bed: _Bed) -> str:
    """Traced with float32 where float64 is on: whatever is promoted shows."""
    for kind in (jnp.float32, jnp.bfloat16):
        start = jax.tree.map(functools.partial(jnp.asarray, dtype=kind), _START)
        task = dataclasses.replace(_TASK, init=functools.partial(_zeros, kind))
        rows = {key: leaf.astype(np.float32) for key, leaf in bed.data.items()}
        job = bed.job(task=task, data=_federation(rows, _WEIGHTS), params=start)
        for number, form in enumerate(job.forms[1]):
            read = jax.eval_shape(decoded, form.upload)  # what the server reads out of messages
            for what, tree in (("download", form.download), ("upload", read), ("memory", form.memory)):
                for at, leaf in jax.tree_util.tree_leaves_with_path(tree):
                    where = f"{what}{jax.tree_util.keystr(at)} of exchange {number}"
                    if leaf.ndim and leaf.dtype == jnp.float64:
                        way_out = "a NumPy float64 makes it so: use Python numbers, or fedax.zeros_like"
                        raise _Fails(f"{where} is float64 where the model is {jnp.dtype(kind)}; {way_out}")
                    if what == "upload" and not jnp.issubdtype(leaf.dtype, jnp.floating):
                        raise _Fails(f"{where} is {leaf.dtype}, of which no mean can be taken; upload floats")
    return "the state keeps its form in float32, bfloat16 and float64"


def _repeats(bed: _Bed) -> str:
    for _ in range(2):
        if (bed.model() != bed.base).any():
            raise _Fails("two runs of one seed differ; draw random numbers from oracle.key or round.key only")
    if _program(bed)[0] != _program(bed)[0]:
        way_out = "Python's or NumPy's random numbers, or something that is counted in Python, became a constant"
        raise _Fails(f"traced twice, it is two programs: {way_out}; take oracle.key, round.key and round.index")
    return "two runs are equal bit by bit, and two traces are one program"


def _program(bed: _Bed) -> tuple[str, set[str]]:
    """The digest of a round that is traced anew, and the names of its operations."""
    job = bed.job()
    plan = dataclasses.replace(job.plan, mesh=None)
    given = (job.hyper, job.fed, job.key)
    before, _ = jax.eval_shape(functools.partial(prepare, plan=plan), *given, job.x)
    program = jax.make_jaxpr(functools.partial(one_round, plan=plan, forms=[]))(*given, before, jnp.int32(0))
    return digest(program), set(_operations(program.jaxpr))


def _operations(program: Any) -> Iterator[str]:
    for equation in program.eqns:
        yield equation.primitive.name
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda each: hasattr(each, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _operations(inner)


def _python_state(method: Algorithm) -> dict[str, str]:
    """What a method could keep where it should keep nothing: itself, its class, and the variables of its module."""
    found = {"the method": f"{method!r} {[repr(leaf) for leaf in jax.tree.leaves(method)]}"}
    for kind in type(method).__mro__:
        if kind.__module__.partition(".")[0] in ("fedax", "equinox", "builtins"):
            break
        members = {name: each for name, each in vars(kind).items() if not name.startswith("__")}
        found |= {f"{kind.__name__}.{name}": repr(each) for name, each in members.items() if not callable(each)}
        for name, function in members.items():
            for each in inspect.getclosurevars(function).nonlocals.items() if inspect.isfunction(function) else ():
                found[f"{each[0]} in {kind.__name__}.{name}"] = repr(each[1])
        module = vars(sys.modules.get(kind.__module__, sys))
        plain = (dict, list, set, int, float, np.ndarray, itertools.count)
        found |= {name: repr(each) for name, each in module.items() if isinstance(each, plain) and name[:2] != "__"}
    return {name: text[:10_000] for name, text in found.items()}


def _no_state(bed: _Bed, before: dict[str, str]) -> str:
    after = _python_state(bed.method)
    changed = [name for name in before if after.get(name) != before[name]]
    if changed or (more := {*after} - {*before}):
        name = min(changed or more)
        way_out = "what changes goes into the server's state or the client's memory: elsewhere no other place finds it"
        raise _Fails(f"{name} has changed while it ran; {way_out}")
    if calls := _program(bed)[1] & {*_CALLBACKS}:
        way_out = "what goes through Python is not counted, and not there on another machine"
        raise _Fails(f"a round calls back into Python ({min(calls)}); {way_out}")
    return "the method, its class and the variables of its module are as before; no calls into Python"


def _relabelled(bed: _Bed) -> str:
    place = np.argsort(_ORDER)
    rows = {name: leaf[_ORDER] for name, leaf in bed.data.items()}
    cohorts = [[int(place[i]) for i in reversed(cohort)] for cohort in _COHORTS]
    way_out = "use no client's place: of round.weights and round.steps take sums and means, no single entry"
    given = {"examples": rows, "weights": _WEIGHTS[_ORDER], "cohorts": cohorts}

    def compared() -> str:
        _compare("equal steps, clients in another order", bed.known, bed.model(**given, steps=3), way_out)
        return _compare("clients in another order", bed.base, bed.model(**given, steps=_STEPS[_ORDER]), way_out)

    return bed.unless_random(compared)


def _split(bed: _Bed) -> str:
    """Client 3 becomes 3 and 5."""
    which = np.array([0, 1, 2, 3, 4, 3])
    weights = _WEIGHTS[which] * np.where(which == 3, 0.5, 1.0)
    cohorts = [[*cohort, 5] if 3 in cohort else cohort for cohort in _COHORTS]
    rows = {name: leaf[which] for name, leaf in bed.data.items()}
    way_out = (
        "the server has to use the mean with its weights, round.weights, round.data_weights and round.total, and no "
        "number of clients; what a client sends must not be scaled by it"
    )
    given = {"examples": rows, "weights": weights, "steps": _STEPS[which], "cohorts": cohorts}
    return bed.unless_random(lambda: _compare("one client as two", bed.base, bed.model(**given), way_out))


def _six(bed: _Bed) -> dict[str, Any]:
    """Five clients, and one of weight 0 in every second round."""
    rows = {name: np.concatenate([leaf, 7.0 * leaf[1:2]]) for name, leaf in bed.data.items()}
    cohorts = [[*cohort, 5] if r % 2 == 0 else cohort for r, cohort in enumerate(_COHORTS)]
    weights = np.append(_WEIGHTS, 0.0)
    return {"examples": rows, "weights": weights, "steps": np.append(_STEPS, 3), "cohorts": cohorts}


def _weightless(bed: _Bed) -> str:
    way_out = "its upload is in the mean with weight 0: count no clients, and weigh everything by round.weights"
    return bed.unless_random(lambda: _compare("with such a client", bed.base, bed.model(**_six(bed)), way_out))


def _unequal(bed: _Bed) -> str:
    """Steps that are known when the program is compiled, and the same numbers given when it runs."""
    if bed.equal:
        raise _NotPromised("with these hyper-parameters it is defined for equal steps only")
    steps = np.array([3, 3, 3, 3, 3, 1])  # the sixth has weight 0
    traced = bed.model(**_six(bed) | {"steps": steps})
    way_out = "oracle.steps is a number or a traced one: loop by fedax.local_steps"
    told = bed.unless_random(lambda: _compare("τ = 3 compiled in, and given", bed.known, traced, way_out))
    if bed.all_clients:
        return told
    gradients = {}
    for client in (2, 1):  # τ = 1 and 4
        run = bed.run(cohorts=[[client]] * 6, rounds=1, evaluate_every=1)
        gradients[_STEPS[client]] = run.history["gradients"][-1] - run.history["gradients"][0]
    each = (gradients[4] - gradients[1]) / 3
    more = gradients[1] - each
    if each > 0 and more < 0:
        raise _Fails(f"τ local steps take {each:g} τ − {-more:g} gradients: the loop leaves a step out")
    return f"{told}; gradients of a client: {each:g} τ + {more:g}"


def _identical(bed: _Bed) -> str:
    rows = {name: np.repeat(leaf[:1], 5, axis=0) for name, leaf in bed.data.items()}
    five = bed.model(examples=rows, **_FULL)
    one = {name: leaf[:1] for name, leaf in rows.items()}
    single = bed.model(examples=one, weights=np.ones(1), **_FULL | {"cohorts": [[0]] * 6})
    way_out = "the server has to use the mean of the uploads, not their sum"
    return bed.unless_random(lambda: _compare("five and one", single, five, way_out))


def _chunks(bed: _Bed) -> str:
    way_out = "the server must not use how many places there are: empty ones have round.present false"
    return _compare("two clients at a time", bed.base, bed.model(place=Place(chunk_size=2)), way_out)


def _places(bed: _Bed) -> str:
    run = bed.run(place=Place(chunk_size=len(_WEIGHTS), client_memory="host", stream=True))
    way_out = "client() has to use what it is given only"
    return _compare("data and memory on the host", bed.base, _flat(run.params), way_out)


def _cohorts(bed: _Bed) -> str:
    if bed.all_clients:
        try:
            _federation_run(bed, Uniform(2))
        except ConfigError:
            raise _NotPromised("it is defined for all clients, and refuses cohorts") from None
        raise _Fails("traits() says cohorts='all', and a cohort of two was not refused")
    run = _federation_run(bed, Uniform(2))
    if not np.isfinite(_flat(run.params)).all():
        way_out = "Σω is not 1 here: divide models and second moments by round.total, or say cohorts='all' in traits()"
        raise _Fails(f"two of five clients a round: not finite; {way_out}")
    return f"two of five clients a round: loss {run.history['train_loss'][-1]:.4g} after 30 rounds"


def _federation_run(bed: _Bed, who: Participation) -> Run:
    return bed.run(participation=who, rounds=30, evaluate_every=30)


class _Killed(Exception):
    pass


def _resumed(bed: _Bed) -> str:
    def stop(row: dict[str, Any]) -> None:
        if row["round"] == 4:
            raise _Killed

    whole = bed.run(evaluate_every=2)
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.suppress(_Killed):
            bed.run(evaluate_every=2, checkpoint=folder, callback=stop)
        again = bed.run(evaluate_every=2, checkpoint=folder)
    for what in ("params", "state", "memory"):
        for one, other in zip(*(jax.tree.leaves(getattr(run, what)) for run in (whole, again)), strict=True):
            if np.asarray(one).tobytes() != np.asarray(other).tobytes():
                raise _Fails(f"{what} differ after a stop; all that changes has to be in the server's state and memory")
    return "stopped after 4 of 6 rounds and gone on with: model, state and memory equal bit by bit"


def _swept(bed: _Bed) -> str:
    leaves, structure = jax.tree.flatten(bed.method)
    if not leaves:
        raise _NotPromised("it has no hyper-parameter that is a number")
    half = jax.tree.unflatten(structure, [leaf / 2 for leaf in leaves])
    try:
        half.validate()
    except FedaxError:
        half = bed.method
    methods = [bed.method, half]
    options = bed.options(_WEIGHTS, _STEPS, _COHORTS, _TOTALS)
    found = sweep(
        lambda k: methods[k], [{"k": 0}, {"k": 1}], _TASK, _federation(bed.data, _WEIGHTS), progress=False, **options
    )
    if found.programs != 1:
        way_out = "let numbers be fields without static=True, and choose between branches by strings"
        raise _Fails(f"two values of its numbers take {found.programs} compiled programs; {way_out}")
    way_out = "hyper-parameters are traced: use jnp.where in place of if"
    for single, swept in zip((bed.base, bed.model(method=half)), found.runs, strict=True):
        told = _compare("alone and beside another point", single, _flat(swept[0].params), way_out)
    return told


def _fields(bed: _Bed) -> str:
    """Each number, changed a little, changes the model; of what a rule allows, every choice changes the program."""
    idle: list[str] = []
    tried: list[str] = []
    parts: list[str] = []
    with_paths, structure = jax.tree_util.tree_flatten_with_path(bed.method)
    for k, (at, leaf) in enumerate(with_paths):
        name = jax.tree_util.keystr(at).lstrip(".")
        if np.ndim(leaf):
            continue
        tried.append(name)
        for new in (leaf * 0.9, leaf * 0.5 + 0.05, leaf + 0.1):
            method = jax.tree.unflatten(structure, [each if j != k else new for j, (_, each) in enumerate(with_paths)])
            try:
                method.validate()
            except FedaxError:
                continue
            if np.abs(bed.model(method=method) - bed.base).max() > _FAR:
                break
        else:
            (parts if "." in name else idle).append(name)
    if idle:
        raise _Fails(
            f"{', '.join(idle)}: another value changes nothing here; use it, or let None switch it off where it is not "
            "used"
        )
    told = f"{', '.join(tried)}: each changes the model" if tried else "no field is a number"
    return f"{told}, but for {', '.join(parts)} of a part that does without" if parts else told


class _Watched(Algorithm):
    """Another method, and the sum of all changes that its server has heard."""

    inner: Algorithm
    forms: Any = eqx.field(static=True)  # of the uploads, by exchange; where a change is
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
            heard = [leaf for leaf, is_one in zip(jax.tree.leaves(mean), changes, strict=True) if is_one]
            total = [old + new for old, new in zip(state[1], heard, strict=True)] if heard else state[1]
            return exchange.server(state[0], mean, round), total

        return Exchange(
            exchange.client,
            None if exchange.server is None else server,
            lambda state: download(state[0]),
            exchange.who,
        )


def _changes_of(form: Any) -> tuple[bool, ...]:
    """Of each leaf of an upload without marks, whether it is part of a change."""
    marked = jax.tree.map(
        lambda part: jax.tree.map(lambda leaf: is_change(part), without_marks(part)), form.upload, is_leaf=is_change
    )
    return tuple(jax.tree.leaves(marked))


def _changes(bed: _Bed) -> str:
    forms = bed.job().forms
    stages = [[_changes_of(form) for form in stage] for stage in forms]
    leaves = [
        [leaf for leaf, one in zip(jax.tree.leaves(without_marks(form.upload)), _changes_of(form), strict=True) if one]
        for stage in forms
        for form in stage
    ]
    kept = jax.tree.leaves(forms[1][-1].memory)
    changed = [each for each in leaves if each]
    memory = bed.run()
    if not kept:
        if changed:
            raise _Fails("a Change is the change of what a client keeps, and its clients keep nothing")
        return "clients keep nothing"
    start = bed.method.init_client(Vector(jax.tree.map(jnp.asarray, _START)))
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
    _, sent = bed.run(method=_Watched(bed.method, frozen, shapes)).state or ((), ())
    heard = [np.asarray(leaf) for leaf in sent]
    worst = max(min((_apart(total, each) for each in moved), default=np.inf) for total in heard if total.size > 1)
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


def _counted(bed: _Bed) -> str:
    """The gradients that are computed when the program runs, against those that the history counts."""
    told = [0]

    def count(number: Any) -> None:
        told[0] += 1

    @jax.custom_vjp
    def mark(losses: Any) -> Any:
        return losses

    def backward(_: Any, cotangent: Any) -> tuple[Any]:
        jax.debug.callback(count, cotangent[0])
        return (cotangent,)

    mark.defvjp(lambda losses: (losses, None), backward)
    task = dataclasses.replace(_TASK, loss=lambda params, batch, key: mark(_loss(params, batch, key)))
    run = bed.run(task=task, rounds=2, evaluate_every=2, **_FULL)
    jax.effects_barrier()
    counted = int(run.history["gradients"][-1])
    if counted != told[0]:
        way_out = "ask gradients of the oracle only, by oracle.cond where they depend on the round"
        raise _Fails(f"{counted} gradients are counted, and {told[0]} were computed; {way_out}")
    cost = footprints(bed.method).cohort
    models = f"{cost.down.models} models down and {cost.up.models} up a client and round"
    return f"{counted} gradients counted and computed in two rounds; {models}"


_H, _E, _P, _TAU = np.array([0.4, 0.7, 1.0]), np.array([1.0, -2.0, 3.0]), np.array([0.2, 0.5, 0.3]), [1, 5, 3]


def _exact(bed: _Bed) -> str:
    exact = bed.traits.exact
    if exact == "never":
        raise _NotPromised("traits() does not say that it ends at the optimum of F")
    steps = 3 if bed.equal or exact == "equal steps" else _TAU
    data = FederatedData({"H": _H[:, None, None], "e": _E[:, None]}, np.ones(3, int), _P)
    options: dict[str, Any] = {"params": np.zeros(1), "rounds": 20_000, "evaluate_every": 20_000}
    run = simulate(bed.method, quadratic(1), data, work=Steps(steps), progress=False, **options)
    target, spread = _P @ _E / (_P @ _H), np.ptp(_E / _H)
    far = abs(float(run.params[0]) - target) / spread
    told = f"{far:.1e} of the clients' spread from the optimum after 20,000 rounds"
    if not far < 1e-6:
        way_out = "the fixed point is another one: see what is weighted by p_i and what by the number of clients"
        raise _Fails(f"{told}; {way_out}, or change traits()")
    return told


_TRIALS: dict[str, tuple[str, Callable[..., str]]] = {
    "descent": ("it runs, lowers a quadratic, and stays finite", _runs),
    "model": ("model() has the structure of the task's parameters", _structure),
    "types": ("neither type nor structure of what is sent and kept change", _types),
    "determinism": ("one seed, one result", _repeats),
    "relabelling": ("the order of the clients does not matter", _relabelled),
    "splitting": ("a client counts as two of half its weight", _split),
    "weight zero": ("a client of weight zero changes nothing", _weightless),
    "unequal steps": ("it takes as many local steps as it is told", _unequal),
    "identical clients": ("clients with the same data behave as one", _identical),
    "chunks": ("how many clients run side by side does not matter", _chunks),
    "places": ("where data and memory are does not matter", _places),
    "cohorts": ("partial participation works, or is refused", _cohorts),
    "resume": ("a run that was stopped goes on bit-identically", _resumed),
    "sweep": ("a point of a sweep is its single run", _swept),
    "memory": ("what clients keep changes as they say", _changes),
    "costs": ("gradients are counted as they are computed", _counted),
    "optimum": ("it ends at the optimum of F where it says so", _exact),
    "fields": ("every hyper-parameter does something", _fields),
    "no hidden state": ("nothing is kept in Python", _no_state),
}
