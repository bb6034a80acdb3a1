"""Checks of whole runs: resume, sweeps, client memory, costs, and where the method ends."""

import contextlib
import dataclasses
import tempfile
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedax.conformance.problem import (
    CLOSE,
    COHORTS,
    FULL,
    STEPS,
    TOTALS,
    WEIGHTS,
    Fails,
    NotPromised,
    TestProblem,
    federation,
    flat,
)
from fedax.contract.algorithm import Algorithm, Exchange
from fedax.contract.local import Solver, is_linear
from fedax.contract.vector import Vector
from fedax.data.federated import FederatedData
from fedax.engine.footprint import footprints
from fedax.engine.simulate import simulate
from fedax.engine.sweep import sweep
from fedax.errors import FedaxError
from fedax.federation.work import Steps
from fedax.progress import show_progress
from fedax.tasks.linear import quadratic
from fedax.wire.sums import is_change, without_marks


class _Killed(Exception):
    pass


def check_resume(problem: TestProblem) -> str:
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
                raise Fails(f"{what} differ after a stop; all that changes has to be in the server's state and memory")
    return "stopped after 4 of 6 rounds and gone on with: model, state and memory equal bit by bit"


def check_sweep(problem: TestProblem) -> str:
    leaves, structure = jax.tree.flatten(problem.method)
    if not leaves:
        raise NotPromised("it has no hyper-parameter that is a number")
    half = jax.tree.unflatten(structure, [leaf / 2 for leaf in leaves])
    try:
        half.validate()
    except FedaxError:
        half = problem.method
    methods = [problem.method, half]
    options = problem.options(WEIGHTS, STEPS, COHORTS, TOTALS)
    with show_progress(False):
        points = [{"k": 0}, {"k": 1}]
        result = sweep(lambda k: methods[k], points, problem.task, federation(problem.data, WEIGHTS), **options)
    if result.programs != 1:
        hint = "let numbers be fields without static=True, and choose between branches by strings"
        raise Fails(f"two values of its numbers take {result.programs} compiled programs; {hint}")
    hint = "hyper-parameters are traced: use jnp.where in place of if"
    for single, swept in zip((problem.base, problem.model(method=half)), result.runs, strict=True):
        text = problem.compare("alone and beside another point", single, flat(swept[0].params), hint)
    return text


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


def check_memory(problem: TestProblem) -> str:
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
            raise Fails("a Change is the change of what a client keeps, and its clients keep nothing")
        return "clients keep nothing"
    start = problem.method.init_client(Vector(jax.tree.map(jnp.asarray, problem.start)))
    ends = [np.asarray(leaf) for leaf in jax.tree.leaves(memory.memory)]
    starts = [np.asarray(leaf) for leaf in jax.tree.leaves(start)]
    still = [k for k, (end, first) in enumerate(zip(ends, starts, strict=True)) if (end == first).all()]
    if len(still) == len(ends):
        raise Fails("what clients keep never changes; return the new memory from client(), or keep nothing")
    if not changed:
        return f"clients keep {sum(each[0].size for each in ends)} numbers each; nothing of it is sent as a Change"
    moved = [np.tensordot(WEIGHTS, end - first, 1) for end, first in zip(ends, starts, strict=True)]
    sums = [np.tensordot(WEIGHTS, end, 1) for end in ends]
    state = [np.asarray(leaf) for leaf in jax.tree.leaves(memory.state)]
    worst = min((_apart(total, each) for total in sums for each in state), default=np.inf)
    if worst <= CLOSE:
        return f"Σ p_i · memory_i is in the server's state, to {worst:.1e}"
    frozen, shapes = tuple(map(tuple, stages)), tuple((leaf.shape, leaf.dtype) for leaf in changed[0])
    _, sent = problem.run(method=_Watched(problem.method, frozen, shapes)).state or ((), ())
    received = [np.asarray(leaf) for leaf in sent]
    worst = max(min((_apart(total, each) for each in moved), default=np.inf) for total in received if total.size > 1)
    if not worst <= CLOSE:
        raise Fails(
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


def check_costs(problem: TestProblem) -> str:
    """Compare the gradients that the program computes with those that the history counts."""
    computed = [0]

    def count(number: Any) -> None:
        computed[0] += 1

    @jax.custom_vjp
    def mark(params: Any) -> Any:
        return params

    def backward(_: Any, cotangent: Any) -> tuple[Any]:
        jax.debug.callback(count, jnp.ravel(jax.tree.leaves(cotangent)[0])[0])
        return (cotangent,)

    mark.defvjp(lambda params: (params, None), backward)
    loss, outputs = problem.task.loss, problem.task.outputs
    marked = dataclasses.replace(
        problem.task,
        loss=lambda params, batch, key: loss(mark(params), batch, key),
        outputs=None if outputs is None else lambda params, batch: outputs(mark(params), batch),
    )
    run = problem.run(task=marked, rounds=2, evaluate_every=2, newcomer_turns=0, **FULL)  # evaluation has no gradients
    jax.effects_barrier()
    counted = int(run.history["gradients"][-1]) - _forwards(problem)
    if counted != computed[0]:
        hint = "ask gradients of the oracle only, by oracle.cond where they depend on the round"
        raise Fails(f"{counted} gradients are counted, and {computed[0]} were computed; {hint}")
    text = f"{counted} gradients counted and computed in two rounds"
    if problem.own_task:  # footprints are traced on a task of real outputs
        return text
    cost = footprints(problem.method).cohort
    return f"{text}; {cost.down.models} models down and {cost.up.models} up a client and round"


def _forwards(problem: TestProblem) -> int:
    """The gradients that stand for forward passes in two rounds of five clients, who take three steps each."""
    warmup, exchanges = problem.job(work=Steps(3)).forms
    asked = [(each.asked, 2 if form is exchanges else 1) for form in (warmup, exchanges) for each in form]
    found = 0
    for calls, rounds in asked:
        if calls is not None:
            found += 5 * rounds * int(calls.gradients(3, 2, None) - calls.without_forwards.gradients(3, 2, None))
    return found


_P, _TAU = np.array([0.2, 0.5, 0.3]), [1, 5, 3]
_E = np.array([[1.0, 2.0], [-2.0, 0.5], [3.0, -1.0]])
_H = np.array([[[0.5, 0.2], [0.2, 0.9]], [[0.8, -0.2], [-0.2, 0.6]], [[1.0, 0.0], [0.0, 0.4]]])  # no common axes


def _ends(method: Algorithm, steps: Any) -> float:
    """How far from the optimum of F the method ends, as a share of how far the clients' optima are apart."""
    data = FederatedData({"H": _H, "e": _E}, np.ones(3, int), _P)
    options: dict[str, Any] = {"params": np.zeros(2), "rounds": 20_000, "evaluate_every": 20_000}
    with show_progress(False):
        run = simulate(method, quadratic(2), data, work=Steps(steps), **options)
    optima = np.linalg.solve(_H, _E[..., None])[..., 0]
    target = np.linalg.solve(np.tensordot(_P, _H, 1), _P @ _E)
    return float(np.abs(run.params - target).max() / np.ptp(optima, axis=0).max())


def check_optimum(problem: TestProblem) -> str:
    exact = problem.traits.exact
    if exact == "never":
        raise NotPromised("traits() does not say that it ends at the optimum of F")
    if problem.own_task:
        raise NotPromised("it is checked on quadratics")
    solver = getattr(problem.method, "solver", None)
    if isinstance(solver, Solver) and not is_linear(solver):
        raise NotPromised(
            "its theorems are about local steps that are linear in the gradients, which its solver's are not"
        )
    far = _ends(problem.method, 3 if problem.equal or exact == "equal steps" else _TAU)
    text = f"{far:.1e} of the clients' spread from the optimum after 20,000 rounds"
    if not far < 1e-6:
        hint = "the fixed point is another one: see what is weighted by p_i and what by the number of clients"
        raise Fails(f"{text}; {hint}, or change traits()")
    return text


def check_drift(problem: TestProblem) -> str:
    """Where a method tends to the optimum of F as η → 0, half of η leaves half of the distance."""
    if problem.traits.limit != "F" or problem.traits.exact != "never":
        raise NotPromised("traits() does not say that it ends near the optimum of F")
    if problem.own_task:
        raise NotPromised("it is checked on quadratics")
    with_paths, structure = jax.tree_util.tree_flatten_with_path(problem.method)
    if not any(jax.tree_util.keystr(at).endswith(".lr") for at, _ in with_paths):
        raise NotPromised("it has no rate of the name lr")

    def ends(factor: float) -> float:
        leaves = [leaf * factor if jax.tree_util.keystr(at).endswith(".lr") else leaf for at, leaf in with_paths]
        return _ends(jax.tree.unflatten(structure, leaves), 3 if problem.equal else _TAU)

    one, half = ends(1.0), ends(0.5)
    text = f"{one:.1e} and with half of lr {half:.1e} of the clients' spread from the optimum"
    if half > 1.5 * one:
        raise NotPromised(f"{text}: with half of lr it is not there yet after 20,000 rounds")
    if one > 1e-6 and not half < 0.65 * one:
        hint = "its limit is not that of F: see whether clients count for more that take more steps, or change traits()"
        raise Fails(f"{text}; {hint}")
    return text
