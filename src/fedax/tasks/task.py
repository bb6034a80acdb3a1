"""Task: a model's initial parameters, a loss per example, and metrics."""

import dataclasses
import functools
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedax.columns import PER_CLIENT, PERSONAL
from fedax.contract.vector import spelled
from fedax.errors import CodeError, ConfigError, call, place_of
from fedax.metrics.base import HostMetric, Metric, RunMetric, check_labels, check_metrics, fitting
from fedax.tasks.losses import once

Params = Any
Examples = Any


@dataclass(frozen=True, eq=False)
class Task:
    """What the clients learn together: F_i(x) = mean of ``loss`` over client i's examples.

    Any JAX model fits: Equinox, Flax, a plain function. A task compares by identity, so make it once and pass the
    same object to every run: JAX then compiles once.

    Args:
        init: ``init(key) -> params``, a pytree of floating-point arrays: float32, bfloat16, or float64 where JAX has
            it enabled. Of bfloat16 parameters fedax keeps float32 ones, see ``trained``.
        loss: ``loss(params, batch, key) -> [b]``, one loss per example of the batch (a pytree of arrays [b, ...]).
            ``key`` is a JAX random key for dropout and the like; it is ``None`` in evaluation.
        metrics: name -> ``fn(params, batch) -> [b]``, one value per example; their mean over held-out data is
            reported. Or a metric of :mod:`fedax.metrics`, of the whole held-out data: of ``outputs`` and
            ``batch["y"]``. Any name but ``loss``, e.g. ``accuracy``. Those of a run alone, such as
            :class:`fedax.metrics.GradNorm`, are then in ``run_metrics``, and have columns of their own.
        check: ``check(examples)`` raises :class:`fedax.errors.DataError` for examples that do not fit the task
            (NumPy arrays, before anything is compiled).
        name: for reports.
        outputs: ``outputs(params, batch)``, what the model answers, for predictions and for metrics of a whole data
            set. Of classification the logits [b, C], or of two classes the log-odds of the second one, [b]; of
            regression the predictions, [b] or [b, k]. ``None``: the task has none.
        kind: ``"classification"`` or ``"regression"``, which says how ``outputs`` are read; else ``None``.
        augment: ``augment(batch, key) -> batch`` changes the examples of a minibatch before its gradient, such as
            :class:`fedax.tasks.CropAndFlip`. The key is one of client, round, exchange and step. Evaluation does
            without.

    Raises:
        ConfigError: one of them is no function; another kind; a metric of ``outputs`` where there are none; a metric
            called as the loss, or as a column that the history makes of others.

    Example:
        >>> task = Task(init=lambda key: jnp.zeros(3), loss=lambda w, batch, key: (batch["x"] @ w - batch["y"]) ** 2)
        >>> task.loss(jnp.zeros(3), {"x": jnp.ones((2, 3)), "y": jnp.array([1.0, 2.0])}, None).tolist()
        [1.0, 4.0]
    """

    init: Callable[[Any], Params]
    loss: Callable[[Params, Examples, Any], Any]
    metrics: Mapping[str, Callable[[Params, Examples], Any] | Metric] = field(default_factory=dict)
    check: Callable[[Examples], None] | None = None
    name: str = "task"
    outputs: Callable[[Params, Examples], Any] | None = None
    kind: Literal["classification", "regression"] | None = None
    augment: Callable[[Examples, Any], Examples] | None = None
    run_metrics: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.metrics, Mapping):
            raise ConfigError("metrics", self.metrics, "give a dictionary: name -> fn(params, batch) -> [b]")
        given: Mapping[str, Any] = self.metrics
        for name in given:
            if not isinstance(name, str) or name == "loss" or name.endswith((PERSONAL, PER_CLIENT)):
                hint = "it would be taken for another column of the history: give another name, a text"
                raise ConfigError("metrics", name, hint)
        of_runs = {metric.name: metric for metric in given.values() if isinstance(metric, RunMetric)}
        object.__setattr__(self, "run_metrics", of_runs)
        if of_runs:
            of_examples = {name: each for name, each in given.items() if not isinstance(each, RunMetric)}
            object.__setattr__(self, "metrics", of_examples)
        functions: dict[str, Any] = {"init": self.init, "loss": self.loss}
        optional = {"check": self.check, "outputs": self.outputs, "augment": self.augment}
        functions |= {name: function for name, function in optional.items() if function is not None}
        functions |= {f"metrics[{name!r}]": metric for name, metric in self.metrics.items()}
        for name, function in functions.items():
            if not callable(function):
                raise ConfigError(name, function, f"give a function, {_CALLED_AS[name.partition('[')[0]]}")
        if self.kind not in (None, "classification", "regression"):
            raise ConfigError("kind", self.kind, "give 'classification', 'regression' or None")
        check_metrics(self.metrics, self.outputs, self.kind)

    def with_metrics(self, **metrics: Callable[[Params, Examples], Any] | Metric | RunMetric) -> "Task":
        """This task with more metrics, or others of the same names.

        It is another object, of which JAX compiles anew; the same metrics give the same object.

        Args:
            metrics: name -> as of the class.

        Raises:
            ConfigError: as the class.

        Example:
            >>> import fedax
            >>> task = fedax.tasks.softmax_regression(4, 3).with_metrics(f1=fedax.metrics.F1("macro"))
            >>> list(task.metrics)
            ['accuracy', 'f1']
        """
        return measured_by(self, {**self.metrics, **self.run_metrics, **metrics})

    @property
    def whole_metrics(self) -> dict[str, Metric]:
        """The metrics that are computed from the whole held-out data at once."""
        return {name: metric for name, metric in self.metrics.items() if isinstance(metric, Metric)}

    def metric_sums(self, params: Params, batch: Examples, weights: Any) -> dict[str, Any]:
        """For each metric that is a function of sums, its sums over a batch; ``weights`` [b]: of the examples.

        Raises:
            ConfigError: there are no labels.
        """
        summable = {name: each for name, each in self.whole_metrics.items() if not isinstance(each, HostMetric)}
        if not summable:
            return {}
        outputs, y = self.answers(params, batch)
        return {name: metric.sums(outputs, y, weights) for name, metric in summable.items()}

    def answers(self, params: Params, batch: Examples) -> tuple[Any, Any]:
        """``outputs`` of a batch, and its labels.

        Raises:
            ConfigError: there are no labels.
        """
        if not isinstance(batch, Mapping) or "y" not in batch:
            names = list(self.whole_metrics)
            raise ConfigError("metrics", names, f"these compare outputs with batch['y']; the batch is {spelled(batch)}")
        assert self.outputs is not None
        outputs = self.outputs(params, batch)
        return outputs, fitting(batch["y"], outputs)

    def check_examples(self, examples: Examples) -> None:
        """Call ``check``, if there is one, and check that metrics of classes have labels that are classes.

        Raises:
            DataError: the examples do not fit the task or its metrics.
            CodeError: ``check`` fails itself.
        """
        if self.check is not None:
            call("task.check", _CALLED_AS["check"], self.check, examples)
        check_labels(self.metrics, self.kind, examples)

    def form(self) -> Params:
        """The parameters' shapes and types.

        Raises:
            ConfigError: ``init`` fails, or returns what are no parameters.
        """
        return jax.eval_shape(functools.partial(_initial, self), jax.random.key(0))

    @functools.cached_property
    def gradient(self) -> Callable[[Params, Examples, Any, Any], Params]:
        """``gradient(params, batch, weights, key)``: ∇ Σ_j weights_j loss_j over a batch; ``weights`` [b].

        JAX traces it once for each shape, however many programs it is in.
        """

        def objective(params: Params, batch: Examples, weights: Any, key: Any) -> Any:
            losses = self.loss(params, batch, key)
            return jnp.sum(losses * jnp.asarray(weights, losses.dtype))

        return jax.jit(jax.grad(objective))

    @property
    def frozen(self) -> Any:
        """Arrays that the functions need besides the parameters and that are not learned; see :func:`partial`."""
        return ()

    def bound(self, frozen: Any) -> "Task":
        """The task with these arrays in place of ``frozen``, which a compiled program then takes as arguments."""
        return self

    @property
    def entire(self) -> "Task":
        """The task of the whole model; this one, unless it learns only a part of the model."""
        return self

    def with_frozen(self, frozen: Any) -> "Task":
        """The task with these arrays instead of ``frozen``, for good.

        Raises:
            ConfigError: nothing is frozen.
        """
        raise ConfigError("task", self.name, "no part of it is frozen")

    def whole_of(self, params: Params) -> Params:
        """The whole model, from the parameters that are learned."""
        return self.whole_with(params, self.frozen)

    def whole_with(self, params: Params, frozen: Any) -> Params:
        """The whole model, with these values instead of ``frozen``."""
        return params

    def part_of(self, params: Params) -> Params:
        """The parameters that are learned, from the whole model.

        Raises:
            ConfigError: they cannot be recovered from it, as of LoRA.
        """
        return params

    def from_whole(self, params: Params) -> "Task":
        """The task that learns the same part of this whole model.

        Raises:
            ConfigError: all of it is learned; give it as ``params`` to the run.
        """
        raise ConfigError("task", self.name, "no part of it is frozen")

    @functools.cached_property
    def parts(self) -> dict[Any, Any]:
        """A cache of tasks that learn a part of this one, the last that :func:`fedax.tasks.partial` has made."""
        return {}

    @functools.cached_property
    def trained(self) -> "Task":
        """The task that fedax trains in place of this one; always the same object.

        It has a float32 parameter for each bfloat16 one, and casts it to bfloat16 for each call of this task's
        functions: the model computes in bfloat16, and updates, sums and stored values are float32. Its losses and
        metrics are float32 or wider. The values that this task's functions return are checked while they are traced.

        Raises:
            ConfigError: parameters of another type, or functions that do not return what they should.

        Example:
            >>> own = Task(lambda key: jnp.zeros(2, jnp.bfloat16), lambda w, batch, key: batch @ w)
            >>> own.trained.init(None).dtype, own.trained.loss(jnp.zeros(2), jnp.ones((3, 2), jnp.bfloat16), None).dtype
            (dtype('float32'), dtype('float32'))
        """
        narrow = jax.tree.map(lambda leaf: leaf.dtype == jnp.bfloat16, self.form())

        def init(key: Any) -> Params:
            return jax.tree.map(_wide, _initial(self, key))

        @once
        def cast(params: Params) -> Params:
            return jax.tree.map(lambda leaf, is_narrow: _rounded(leaf) if is_narrow else leaf, params, narrow)

        def loss(params: Params, batch: Examples, key: Any) -> Any:
            return _each("task.loss", "loss", self.loss, cast(params), batch, key)

        def measuring(name: str, metric: Callable[..., Any]) -> Callable[..., Any]:
            return lambda params, batch: _each(f"task.metrics[{name!r}]", "metrics", metric, cast(params), batch)

        def answering(function: Callable[..., Any], params: Params, batch: Examples) -> Any:
            returned = call("task.outputs", _CALLED_AS["outputs"], function, cast(params), batch)
            b = jax.tree.leaves(batch)[0].shape[0]
            if getattr(returned, "shape", ())[:1] != (b,) or not jnp.issubdtype(returned.dtype, jnp.floating):
                what = f"returned {spelled(returned)}"
                hint = f"return real numbers, one row for each of the {b} examples"
                raise CodeError("task.outputs", what, hint, place_of(function))
            return _wide(returned)

        metrics: dict[str, Any] = {
            name: metric if isinstance(metric, Metric) else measuring(name, metric)
            for name, metric in self.metrics.items()
        }
        outputs = None if self.outputs is None else functools.partial(answering, self.outputs)
        augment = None if self.augment is None else functools.partial(_augmented, self.augment)
        metrics |= self.run_metrics
        return _Trained(init, loss, metrics, self.check, self.name, outputs, self.kind, augment, self)


_MOST = 8  # copies of a task with other metrics that are kept, so that the same one is compiled once
_measured: weakref.WeakKeyDictionary[Task, dict[Any, Task]] = weakref.WeakKeyDictionary()


def measured_by(task: Task, metrics: Mapping[str, Any]) -> Task:
    """A task with these metrics in place of its own; the same ones give the same object."""
    key = tuple(metrics.items())
    try:
        hash(key)
    except TypeError:  # a metric of the user's that cannot be compared
        return dataclasses.replace(task, metrics=metrics)
    known = _measured.setdefault(task, {})
    if key not in known:
        known[key] = dataclasses.replace(task, metrics=metrics)
        while len(known) > _MOST:
            del known[next(iter(known))]
    return known[key]


@dataclass(frozen=True, eq=False)
class _Trained(Task):
    """The task that :attr:`Task.trained` gives."""

    of: Task = None  # type: ignore[assignment]  # the fields before it have defaults

    @property
    def frozen(self) -> Any:
        return self.of.frozen

    def bound(self, frozen: Any) -> Task:
        return self.of.bound(frozen).trained

    def whole_with(self, params: Params, frozen: Any) -> Params:
        return self.of.whole_with(params, frozen)


_CALLED_AS = {
    "init": "init(key) -> params",
    "loss": "loss(params, batch, key) -> [b]",
    "metrics": "fn(params, batch) -> [b]",
    "check": "check(examples)",
    "outputs": "outputs(params, batch)",
    "augment": "augment(batch, key) -> batch",
}


def _initial(task: Task, key: Any) -> Params:
    """The parameters of the task's ``init``, as arrays of a fixed type, checked to be ones that fedax can train."""
    params = call("task.init", _CALLED_AS["init"], task.init, key)
    for path, node in jax.tree_util.tree_leaves_with_path(params, is_leaf=_is_state):
        if _is_state(node):
            what = f"returned a layer of Equinox that has a state, at {jax.tree_util.keystr(path)}"
            hint = "fedax keeps parameters alone: in place of BatchNorm use GroupNorm or LayerNorm"
            raise CodeError("task.init", what, hint, place_of(task.init))
    leaves, form = jax.tree_util.tree_flatten_with_path(params)
    if not leaves:
        raise CodeError("task.init", "returned no array", "return a pytree of parameters", place_of(task.init))
    for path, leaf in leaves:
        name = f"task.init{jax.tree_util.keystr(path)}"
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic | int | float | complex):
            hint = "parameters are arrays alone; of an Equinox model take eqx.filter(model, eqx.is_inexact_array)"
            raise CodeError("task.init", f"returned a {type(leaf).__name__} at {name}", hint, place_of(task.init))
        _check_dtype(name, jnp.result_type(leaf), type(params))
    return jax.tree.unflatten(form, [jnp.asarray(leaf, jnp.result_type(leaf)) for _, leaf in leaves])


def check_params(params: Params, form: Params, field: str = "params") -> None:
    """Raise a ConfigError about ``field`` unless these are a model's parameters, finite and of this form."""
    structure, wanted = jax.tree.structure(params), jax.tree.structure(form)
    if structure != wanted:  # type: ignore[operator]
        raise ConfigError(field, structure, f"the task's are {wanted}")
    for (path, want), got in zip(jax.tree_util.tree_leaves_with_path(form), jax.tree.leaves(params), strict=True):
        name = f"{field}{jax.tree_util.keystr(path)}"
        if jnp.shape(got) != want.shape:
            raise ConfigError(name, jnp.shape(got), f"the task's shape is {want.shape}")
        if np.asarray(got).dtype.kind in "cOSUmM":
            raise ConfigError(name, got, "parameters are real numbers")
        if not np.isfinite(np.asarray(got, float)).all():
            raise ConfigError(name, got, "there are values that are not finite")


def _is_state(node: Any) -> bool:
    return isinstance(node, eqx.nn.StateIndex)


def _check_dtype(name: str, dtype: Any, of: type) -> None:
    """Raise a ConfigError unless parameters, in a pytree ``of`` this type, can have this type."""
    if dtype in (jnp.float32, jnp.float64, jnp.bfloat16):
        return
    if jnp.issubdtype(dtype, jnp.complexfloating):
        hint = "parameters are real: keep the real and the imaginary part as two arrays"
    elif jnp.issubdtype(dtype, jnp.floating):
        hint = "its range is too narrow to train in without scaling losses: use bfloat16 or float32"
    else:
        hint = "parameters are floating-point arrays; keep others out"
        if of.__module__.startswith("flax.nnx"):
            hint += ": graph, params, rest = nnx.split(net, nnx.Param, ...)"
    raise ConfigError(name, dtype, hint)


def _each(field: str, kind: str, function: Callable[..., Any], *args: Any) -> Any:
    """One value per example of a loss or metric, float32 or wider."""
    b = jax.tree.leaves(args[1])[0].shape[0]
    batch = spelled(args[1])
    about = f"the batch is {batch}"
    if kind == "loss" and args[2] is None:
        about = f"key is None in evaluation, {about}"
    values = call(field, _CALLED_AS[kind], function, *args, about=about)
    refused = functools.partial(CodeError, field, f"returned {spelled(values)}", place=place_of(function))
    one = "one loss" if kind == "loss" else "one value"
    if getattr(values, "shape", None) != (b,):
        raise refused(hint=f"return {one} per example, an array of shape [b], here [{b}]; {about}")
    allowed = (jnp.floating,) if kind == "loss" else (jnp.floating, jnp.integer, jnp.bool_)
    if not any(jnp.issubdtype(values.dtype, dtype) for dtype in allowed):
        raise refused(hint=f"return {one} per example, real numbers")
    return _wide(values)


def _augmented(function: Callable[..., Any], batch: Examples, key: Any) -> Examples:
    """What the user's ``augment`` makes of a batch: as many examples, of the same columns."""
    made = call("task.augment", _CALLED_AS["augment"], function, batch, key, about=f"the batch is {spelled(batch)}")
    rows = [[jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(each)] for each in (batch, made)]
    if jax.tree.structure(made) != jax.tree.structure(batch) or rows[0] != rows[1]:  # type: ignore[operator]
        hint = f"return the batch with other values, as {{**batch, 'x': ...}}; it is {spelled(batch)}"
        raise CodeError("task.augment", f"returned {spelled(made)}", hint, place_of(function))
    return made


def _rounded(leaf: Any) -> Any:
    # The type alone does not say so: on a GPU, XLA leaves out a cast to bfloat16 that is followed by one to float32.
    return lax.reduce_precision(leaf, 8, 7).astype(jnp.bfloat16)


def _wide(array: Any) -> Any:
    return array.astype(jnp.promote_types(array.dtype, jnp.float32))
