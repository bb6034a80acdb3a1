"""Checks of a method's code: what it returns, that it is deterministic, keeps no state and uses its fields."""

import dataclasses
import functools
import inspect
import itertools
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedax.conformance.problem import FULL, STEPS, WEIGHTS, Fails, TestProblem, federation, flat
from fedax.contract.algorithm import Algorithm
from fedax.contract.compression import decoded
from fedax.contract.personal import has_personal
from fedax.engine.fingerprint import digest
from fedax.engine.places.device import one_round, prepare
from fedax.errors import FedaxError

_FAR = 1e-12  # a smaller change counts as no effect
_CALLBACKS = ("pure_callback", "io_callback", "debug_callback")


def check_descent(problem: TestProblem) -> str:
    run = problem.run(**FULL | {"steps": STEPS}, rounds=30)
    column = run.history.get("objective", run.history["train_loss"])
    text = f"objective {column[0]:.4g} → {column[-1]:.4g} in 30 rounds"
    if not np.isfinite(flat(run.params)).all():
        raise Fails(f"{text}: not finite; give a smaller lr, or see whether a sign is wrong")
    if not column[-1] < column[0]:
        hint = "an update is y − x and the server adds it; or lr is too large for smoothness 1"
        raise Fails(f"{text}: it does not fall; {hint}")
    return text


def check_structure(problem: TestProblem) -> str:
    got, want = (jax.tree.map(jnp.shape, tree) for tree in (problem.run().params, problem.start))
    if got != want:
        raise Fails(f"model() returns {got} where the task has {want}")
    return f"parameters {want}"


def check_types(problem: TestProblem) -> str:
    """Trace in float32 and bfloat16 while float64 is enabled, so that promotions show."""
    for kind in (jnp.float32, jnp.bfloat16):
        start = jax.tree.map(functools.partial(jnp.asarray, dtype=kind), problem.start)
        task = dataclasses.replace(problem.task, init=functools.partial(_at, start))
        rows = {key: leaf.astype(np.float32) if leaf.dtype == float else leaf for key, leaf in problem.data.items()}
        job = problem.job(task=task, data=federation(rows, WEIGHTS), params=start)
        for number, form in enumerate(job.forms[1]):
            read = jax.eval_shape(decoded, form.upload)  # what the server reads out of messages
            for what, tree in (("download", form.download), ("upload", read), ("memory", form.memory)):
                for at, leaf in jax.tree_util.tree_leaves_with_path(tree):
                    where = f"{what}{jax.tree_util.keystr(at)} of exchange {number}"
                    if leaf.ndim and leaf.dtype == jnp.float64:
                        hint = "a NumPy float64 makes it so: use Python numbers, or fedax.zeros_like"
                        raise Fails(f"{where} is float64 where the model is {jnp.dtype(kind)}; {hint}")
                    if what == "upload" and not jnp.issubdtype(leaf.dtype, jnp.floating):
                        raise Fails(f"{where} is {leaf.dtype}, of which no mean can be taken; upload floats")
    return "the state keeps its form in float32, bfloat16 and float64"


def _at(start: Any, key: Any) -> Any:
    return start


def check_determinism(problem: TestProblem) -> str:
    for _ in range(2):
        if (problem.model() != problem.base).any():
            raise Fails("two runs of one seed differ; draw random numbers from oracle.key or round.key only")
    if _program(problem)[0] != _program(problem)[0]:
        hint = "Python's or NumPy's random numbers, or something that is counted in Python, became a constant"
        raise Fails(f"traced twice, it is two programs: {hint}; take oracle.key, round.key and round.index")
    return "two runs are equal bit by bit, and two traces are one program"


def _program(problem: TestProblem) -> tuple[str, set[str]]:
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


def python_state(method: Algorithm) -> dict[str, str]:
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


def check_no_hidden_state(problem: TestProblem, before: dict[str, str]) -> str:
    after = python_state(problem.method)
    changed = [name for name in before if after.get(name) != before[name]]
    if changed or (more := {*after} - {*before}):
        name = min(changed or more)
        hint = "what changes goes into the server's state or the client's memory: elsewhere no other place finds it"
        raise Fails(f"{name} has changed while it ran; {hint}")
    if calls := _program(problem)[1] & {*_CALLBACKS}:
        hint = "what goes through Python is not counted, and not there on another machine"
        raise Fails(f"a round calls back into Python ({min(calls)}); {hint}")
    return "the method, its class and the variables of its module are as before; no calls into Python"


def check_fields(problem: TestProblem) -> str:
    """Each number, changed a little, has to change the model, or clients' own models."""
    without_effect: list[str] = []
    tested: list[str] = []
    parts: list[str] = []
    personal = has_personal(problem.method)

    def results(method: Algorithm) -> np.ndarray:
        run = problem.run(method=method)
        return flat((run.params, run.memory if personal else ()))

    base = results(problem.method)
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
            if np.abs(results(method) - base).max() > _FAR:
                break
        else:
            (parts if "." in name else without_effect).append(name)
    if without_effect:
        raise Fails(
            f"{', '.join(without_effect)}: another value changes nothing here; use it, or let None switch it off where "
            "it is not used"
        )
    text = f"{', '.join(tested)}: each changes the model" if tested else "no field is a number"
    return f"{text}, but for {', '.join(parts)} of a part that does without" if parts else text
