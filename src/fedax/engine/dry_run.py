"""The dry run: a round is traced and nothing is compiled.

It finds what is wrong with a task or a method that the user wrote, and counts the bytes of the exchanges.
"""

import functools
import itertools
from collections.abc import Collection, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from fedax.contract.algorithm import Algorithm, Exchange
from fedax.contract.schedule import resolve
from fedax.contract.types import Array, Tree, Unknown
from fedax.contract.vector import Vector, spelled, tensor_name
from fedax.engine.devices import in_precision
from fedax.engine.fingerprint import digest
from fedax.engine.loop import Federation, Hyper
from fedax.engine.places.device import first_state, one_round, prepare
from fedax.engine.plan import ExchangeForm, RunPlan
from fedax.errors import CodeError, ConfigError, call, of_a_library, place_of
from fedax.metrics import Metric
from fedax.wire.privacy import Private

_USUAL_BATCH = 32


class DryRun:
    """The result of a dry run.

    Args:
        forms: the forms of the exchanges of the warm-up, and of those of a round.
        idle: the names of the parameters that the task's loss does not depend on: their gradient is always 0.
        uses_steps: whether what a private server does depends on the number of local steps that it is told.
        programs: the traced programs of the start and of a round. They are kept until their digest is computed.
    """

    def __init__(
        self,
        forms: tuple[list[ExchangeForm], list[ExchangeForm]],
        idle: list[str],
        uses_steps: bool,
        *programs: Unknown,
    ):
        self.forms, self.idle, self.uses_steps = forms, idle, uses_steps
        self._programs = programs

    @functools.cached_property
    def digest(self) -> str:
        """A digest of both programs, computed when it is first needed: it takes about as long as tracing them."""
        found = " ".join(map(digest, self._programs))
        self._programs = ()
        return found


def dry_run(hyper: Hyper, fed: Federation, key: Array, x: Vector, plan: RunPlan) -> DryRun:
    """Trace the start and a round.

    Args:
        hyper: the method, the work, the participation and the wire.
        fed: the data, or their shapes and types.
        key, x, plan: as of the run.

    Raises:
        CodeError, ConfigError: a function of the task or of the method does not return what it should; a field that is
            no number is not declared static.
    """
    for path, leaf in _leaves(hyper):
        if isinstance(leaf, str) or callable(leaf):
            field = path[-1].name if hasattr(path[-1], "name") else jax.tree_util.keystr(path)
            hint = "give a number or an array" + ", or a schedule, as fedax.FromFunction(f) is" * callable(leaf)
            hint += f"; what is none is declared {field}: Any = equinox.field(static=True)"
            raise ConfigError(field, leaf, hint)
    with in_precision(plan.precision):
        types = jax.config.read("jax_enable_x64"), jax.default_matmul_precision.value
        return _dry_run(*_signature((hyper, fed, key, x)), plan, types)


def _signature(arguments: Unknown) -> tuple[Unknown, tuple[Tree, ...]]:
    """The structure of a pytree, and the shape and type of its leaves: all that tracing depends on."""
    leaves, structure = jax.tree.flatten(arguments)
    return structure, tuple(jax.eval_shape(lambda *given: tuple(map(jnp.asarray, given)), *leaves))


@functools.lru_cache(maxsize=256)
def _dry_run(structure: Unknown, leaves: tuple[Tree, ...], plan: RunPlan, types: tuple[bool, str | None]) -> DryRun:
    hyper, fed, key, x = jax.tree.unflatten(structure, leaves)
    algorithm = hyper.method
    _check_task(plan, fed.examples, x)
    idle = _check_gradient(plan, fed.examples, x, key)
    kind = type(algorithm)
    if any(not of_a_library(each.__module__) for each in kind.__mro__):
        algorithm = _checked(algorithm, x)
    hyper = hyper._replace(method=algorithm)
    warmup: list[ExchangeForm] = []
    forms: list[ExchangeForm] = []
    prepared = functools.partial(prepare, plan=plan, forms=warmup)
    start, (before, _) = jax.make_jaxpr(prepared, return_shape=True)(hyper, fed, key, x)
    rounds = functools.partial(one_round, plan=plan, forms=forms)
    given = (hyper, fed, key, before, jax.ShapeDtypeStruct((), jnp.int32))
    program, (after, _) = jax.make_jaxpr(rounds, return_shape=True)(*given)
    if same_structure(before, after):
        at_odds = [
            f"{jax.tree_util.keystr(path)} from {spelled(old)} to {spelled(new)}"
            for (path, old), new in zip(_leaves(before), jax.tree.leaves(after), strict=True)
            if (old.shape, old.dtype) != (new.shape, new.dtype)
        ]
        change = at_odds[0] if at_odds else None
    else:
        change = f".server from {spelled(before.server)} to {spelled(after.server)}"
    if change is not None:
        raise CodeError(
            kind.__name__,
            f"changes in a round its state{change}",
            "server() and client() have to return the form that init() and init_client() return",
            place_of(kind if kind.server is Algorithm.server else kind.server),
        )
    uses_steps = isinstance(hyper.method, Private) and any(
        any(_reached(traced, [leaf is hyper.method.steps for leaf in jax.tree.leaves(inputs)]))
        for traced, inputs in ((start, (*given[:3], x)), (program, given))
    )
    return DryRun((warmup, forms), idle, uses_steps, start, program)


def _leaves(tree: Tree) -> list[tuple[Tree, Tree]]:
    return jax.tree_util.tree_leaves_with_path(tree)


def _check_task(plan: RunPlan, examples: Tree, x: Vector) -> None:
    """Trace the loss and the metrics on a batch; the task checks what they return."""
    # No other axis has this length, so that it cannot be mistaken for the number of examples.
    others = {n for leaf in jax.tree.leaves((examples, x)) for n in leaf.shape[1:]} | {
        leaf.shape[0] for leaf in jax.tree.leaves(x) if leaf.ndim
    }
    b = next(b for b in itertools.count(_USUAL_BATCH) if b not in others)
    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((b, *leaf.shape[1:]), leaf.dtype), examples)
    jax.eval_shape(lambda tree, batch: plan.task.loss(tree, batch, None), x.tree, batch)
    for metric in plan.task.metrics.values():
        if not isinstance(metric, Metric):
            jax.eval_shape(metric, x.tree, batch)
    if plan.task.whole_metrics:
        jax.eval_shape(plan.task.answers, x.tree, batch)
        jax.eval_shape(plan.task.metric_sums, x.tree, batch, jax.ShapeDtypeStruct((b,), jnp.int32))


def _check_gradient(plan: RunPlan, examples: Tree, x: Vector, key: Array) -> list[str]:
    """Trace the gradient of a minibatch, as a round does; the names of the parameters whose gradient is always 0.

    Raises:
        CodeError: images of whole numbers from 0 to 255 are multiplied by weights.
    """
    b = plan.batch_size or plan.max_size
    kind = jax.dtypes.canonicalize_dtype  # as JAX would have it, without a warning
    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((b, *leaf.shape[1:]), kind(leaf.dtype)), examples)
    weights = jax.ShapeDtypeStruct((b,), kind(float)) if plan.batch_size is None else 1 / b
    program = jax.make_jaxpr(plan.task.gradient)(x.tree, batch, weights, key)
    n = len(jax.tree.leaves(x.tree))
    images = [leaf.dtype == jnp.uint8 and leaf.ndim >= 3 for leaf in jax.tree.leaves(batch)]
    if any(images):
        met: set[str] = set()
        _reached(program, [False] * n + images + [False] * 2, met, _MOVES)
        if met & {"dot_general", "conv_general_dilated"}:
            user = getattr(plan.task, "of", plan.task).entire
            hint = "divide by 255, as the tasks of fedax do; or give examples of float32, if these numbers are meant"
            what = "multiplies uint8 images by weights as they are, from 0 to 255"
            raise CodeError("task.loss", what, hint, place_of(user.loss))
    # Each example's loss is multiplied by its weight, and so is all that a gradient is made of.
    learned = _reached(program, [False] * (n + len(images)) + [True, False])
    return [tensor_name(at) for (at, _), is_learned in zip(_leaves(x.tree), learned, strict=True) if not is_learned]


def _reached(
    program: Unknown, given: Sequence[bool], met: set[str] | None = None, through: Collection[str] | None = None
) -> list[bool]:
    """Which results of a traced program depend on the given ones of its inputs.

    ``met``: takes the operations that one of them enters; ``through``: those whose results count, default: all.
    """
    program = getattr(program, "jaxpr", program)
    there = {variable for variable, is_given in zip(program.invars, given, strict=True) if is_given}

    def depends(atom: Unknown) -> bool:
        return not isinstance(atom, Literal) and atom in there

    for equation in program.eqns:
        if not any(entering := [depends(atom) for atom in equation.invars]):
            continue
        name, params = equation.primitive.name, equation.params
        inner = params.get("jaxpr", params.get("call_jaxpr"))
        inner = getattr(inner, "jaxpr", inner)  # without its constants
        if name != "scan" and inner is not None and len(inner.invars) == len(entering):
            leaving = _reached(inner, entering, met, through)
        else:
            moved = through is not None and name in through and (entering[0] or name == "concatenate")  # no index
            leaving = [through is None or moved] * len(equation.outvars)
            if met is not None:
                met.add(name)
        there |= {variable for variable, is_reached in zip(equation.outvars, leaving, strict=True) if is_reached}
    return [depends(atom) for atom in program.outvars]


# Operations that change the form of an array, and not its values.
_MOVES = {"convert_element_type", "reshape", "transpose", "broadcast_in_dim", "squeeze", "slice", "dynamic_slice"}
_MOVES |= {"gather", "rev", "pad", "concatenate", "copy", "copy_p"}


def _checked(algorithm: Algorithm, x: Vector) -> Algorithm:
    """The user's method with checks of its functions while they are traced; errors name the user's own line."""
    kind = type(algorithm)
    for name, alone in (("init", True), ("client", False), ("server", False)):
        if getattr(kind, name) is getattr(Algorithm, name) and (alone or kind.exchanges is Algorithm.exchanges):
            raise CodeError(kind.__name__, f"has no {name}()", f"define {_SIGNATURES[name]}", place_of(kind))
    named: Unknown = type(
        kind.__name__, (_CheckedMethod,), {"__module__": __name__}
    )  # what the engine says calls it by this name
    server, row = jax.eval_shape(first_state, named(algorithm, None), x)
    _check_model(named(algorithm, None), server, x)
    return named(algorithm, _structure_of(row))


def _check_model(algorithm: "_CheckedMethod", server: Tree, x: Vector) -> None:
    name, inner = type(algorithm).__name__, algorithm.inner
    if type(inner).model is Algorithm.model and not isinstance(server, Vector) and not hasattr(server, "x"):
        raise CodeError(
            f"{name}.init",
            f"returned {type(server).__name__}, which has no .x",
            "return the model, or a state with it as .x, for instance a NamedTuple, or define model(self, server)",
            place_of(inner.init),
        )
    # The hyper-parameters are shapes here; in a trace they are values, of which schedules make rates.
    model = jax.eval_shape(lambda method, server: resolve(method, 0).model(server), algorithm, server)
    if not isinstance(model, Vector) or _structure_of(model) != _structure_of(x):
        place = place_of(inner.init if type(inner).model is Algorithm.model else inner.model)
        hint = f"it has to be a Vector like the initial model, {spelled(x)}"
        raise CodeError(f"{name}.model", f"returned {spelled(model)}", hint, place)


def _structure_of(tree: Tree) -> tuple[Tree, ...]:
    """The structure of a pytree, and the shapes and types of its leaves."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)


class _CheckedMethod(Algorithm):
    """A method whose functions are checked.

    Attributes:
        inner: the method itself.
        memory: the form of a client's memory; ``None``: not known yet.
    """

    inner: Algorithm
    memory: Tree = eqx.field(static=True)

    def init(self, x: Vector) -> Tree:
        return self._call("init", x)

    def init_client(self, x: Vector) -> Tree:
        return self._call("init_client", x)

    def model(self, server: Tree) -> Vector:
        return self._call("model", server)

    def penalty(self, x: Vector) -> Tree:
        return self._call("penalty", x)

    def exchanges(self) -> tuple[Exchange, ...]:
        return self._stage("exchanges")

    def warmup(self) -> tuple[Exchange, ...]:
        return self._stage("warmup")

    def _call(self, name: str, *args: Unknown) -> Tree:
        return call(f"{type(self).__name__}.{name}", _SIGNATURES[name], getattr(self.inner, name), *args)

    def _stage(self, name: str) -> tuple[Exchange, ...]:
        found = self._call(name)
        if not isinstance(found, tuple | list) or not all(isinstance(each, Exchange) for each in found):
            raise CodeError(
                f"{type(self).__name__}.{name}",
                f"returned {type(found).__name__}",
                "return a tuple of exchanges: (fedax.Exchange(self.client, self.server),)",
                place_of(getattr(self.inner, name)),
            )
        return tuple(self._exchange(each, k + 1 == len(found)) for k, each in enumerate(found))

    def _exchange(self, exchange: Exchange, last: bool) -> Exchange:
        def checked_call(kind: str, function: Unknown, *args: Unknown) -> Tree:
            return call(self._name(kind, function), _SIGNATURES[kind], function, *args)

        def download(server: Tree) -> Tree:
            return checked_call("download", exchange.download or self.inner.download, server)

        def client(download: Tree, memory: Tree, oracle: Unknown) -> Tree:
            answer = checked_call("client", exchange.client, download, memory, oracle)
            self._check_answer(exchange, answer, last)
            return answer

        def server(server: Tree, mean: Tree, round: Unknown) -> Tree:
            state = checked_call("server", exchange.server, server, mean, round)
            if state is None:
                name, place = self._name("server", exchange.server), place_of(exchange.server)
                raise CodeError(name, "returned None", "return the new server state", place)
            return state

        return Exchange(client, None if exchange.server is None else server, download, exchange.who)

    def _name(self, kind: str, function: Unknown) -> str:
        return f"{type(self).__name__}.{getattr(function, '__name__', kind)}"

    def _check_answer(self, exchange: Exchange, answer: Tree, last: bool) -> None:
        name, place = self._name("client", exchange.client), place_of(exchange.client)
        # A tuple with names is an upload whose memory was forgotten.
        if not isinstance(answer, tuple) or len(answer) != 2 or hasattr(answer, "_fields"):
            what = f"{len(answer)} things" if type(answer) is tuple else f"{type(answer).__name__} alone"
            hint = "return (upload, memory), a tuple; memory is () where a client keeps nothing"
            raise CodeError(name, f"returned {what}", hint, place)
        _, memory = answer
        for leaf in jax.tree.leaves(answer):
            if not isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float):
                hint = "uploads and memory are pytrees of arrays and numbers"
                raise CodeError(name, f"returned {type(leaf).__name__}", hint, place)
        if last and _structure_of(memory) != self.memory:
            structure, leaves = self.memory
            own = spelled(jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*leaf) for leaf in leaves]))
            hint = f"init_client() returns {own}, and the last exchange has to return memory of this form"
            raise CodeError(name, f"returned the memory {spelled(memory)}", hint, place)


_SIGNATURES = {
    "init": "init(self, x) -> server state",
    "init_client": "init_client(self, x) -> memory",
    "model": "model(self, server) -> Vector",
    "penalty": "penalty(self, x) -> number or None",
    "exchanges": "exchanges(self) -> (Exchange(client, server), ...)",
    "warmup": "warmup(self) -> (Exchange(client, server), ...)",
    "download": "download(self, server) -> download",
    "client": "client(self, download, memory, oracle) -> (upload, memory)",
    "server": "server(self, server, mean, round) -> server",
}


def same_structure(a: Tree, b: Tree) -> bool:
    """Whether two pytrees differ at most in their leaves."""
    first: Unknown = jax.tree.structure(a)
    return bool(first == jax.tree.structure(b))
