"""Learning a part of a model: some of its leaves, or low-rank changes of them. The rest is frozen."""

import fnmatch
import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedax.contract.vector import tensor_name
from fedax.errors import ConfigError
from fedax.metrics import Metric
from fedax.numbers import check_count, check_number
from fedax.tasks.losses import once
from fedax.tasks.task import Params, Task, check_params

Patterns = str | Sequence[str] | Callable[[str, Any], bool]

_MOST = 4  # parts of a task that are kept, so that the same one is compiled once


@dataclass(frozen=True)
class LoRA:
    """Low-rank adaptation: a matrix W stays, and W + (α/r)·A·B is used, with A [m, r] and B [r, n] learned.

    A is drawn with standard deviation 1/√m and B is zero, so that the model begins as it was.

    Args:
        rank: r ≥ 1.
        targets: patterns of the names of the matrices, as ``"*.w"`` or ``["encoder.*"]``; ``*`` stands for any text.
        alpha: α > 0; ``None``: r.
        also: patterns of leaves that are learned wholly, such as ``"head.*"``.

    Raises:
        ConfigError: by a run: no matrix has such a name, or a rank that is not below both sides of a matrix.

    Source: Hu et al. 2021, "LoRA: low-rank adaptation of large language models".

    Example:
        >>> import fedax
        >>> task = fedax.tasks.mlp(64, 10, hidden=(32,))
        >>> part = partial(task, LoRA(rank=2, targets="0.w", also="1.b"))
        >>> {name: leaf.shape for name, leaf in sorted(part.init(jax.random.key(0)).items())}
        {'0.w.a': (64, 2), '0.w.b': (2, 32), '1.b': (10,)}
    """

    rank: int
    targets: str | Sequence[str] = "*"
    alpha: float | None = None
    also: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "rank", check_count("rank", self.rank))  # of NumPy too
        if self.alpha is not None:
            check_number("alpha", self.alpha, 0, open_low=True)
        _patterns("targets", self.targets)
        _patterns("also", self.also)


@dataclass(frozen=True)
class AllBut:
    """The leaves that no pattern names, as a rule of :func:`partial`.

    Example:
        >>> rule = AllBut(("head.*",))
        >>> rule("body.w", None), rule("head.w", None)
        (True, False)
    """

    patterns: tuple[str, ...]

    def __call__(self, name: str, leaf: Any) -> bool:
        return not _matches(name, self.patterns)


def apart(task: Task, personal: str | Sequence[str], params: Params = None) -> Task:
    """The task that trains all leaves but each client's own ones, which it freezes.

    Raises:
        ConfigError: no leaf has such a name, or all have; the task learns a part already.
    """
    if task.entire is not task:
        hint = "the task learns a part of its model already, and what is frozen there is the same for all clients"
        raise ConfigError("leaves", personal, hint)
    patterns = _patterns("leaves", personal)
    names = [tensor_name(at) for at, _ in jax.tree_util.tree_leaves_with_path(task.form())]
    own = [name for name in names if _matches(name, patterns)]
    _check_each("leaves", patterns, names)
    if not 0 < len(own) < len(names):
        hint = "it names all leaves, so that nothing would be shared; there are: "
        raise ConfigError("leaves", personal, hint + ", ".join(names[:20]))
    return partial(task, AllBut(patterns), params)


@dataclass(frozen=True, eq=False)
class Partial(Task):
    """A task of which a part is learned, as :func:`partial` makes it.

    Its parameters are a dictionary, name -> leaf, of what is learned; ``whole_of(params)`` is the model. ``drawn`` says
    that the frozen values are those of the task's own initial model.
    """

    given: Task = None  # type: ignore[assignment]  # the fields before it have defaults
    kept: Any = ()
    joined: Callable[[Params, Any], Params] = lambda learned, frozen: learned
    rule: Any = None
    drawn: bool = False

    @property
    def frozen(self) -> Any:
        return self.kept

    @property
    def entire(self) -> Task:
        return self.given

    def with_metrics(self, **metrics: Any) -> Task:
        return _made(self.given.with_metrics(**metrics), self.init, self.kept, self.joined, self.rule, self.drawn)

    def bound(self, frozen: Any) -> Task:
        return Task(**_functions(self.given, self.init, lambda learned: self.joined(learned, frozen)))

    def whole_with(self, params: Params, frozen: Any) -> Params:
        return self.joined(params, frozen)

    def part_of(self, params: Params) -> Params:
        leaves = {tensor_name(at): leaf for at, leaf in jax.tree_util.tree_leaves_with_path(params)}
        names = list(jax.eval_shape(self.init, jax.random.key(0)))
        if isinstance(self.rule, LoRA):
            raise ConfigError("task.lora", self.rule, "what was learned cannot be told from the whole model")
        return {name: leaves[name] for name in names}

    def from_whole(self, params: Params) -> Task:
        return partial(self.given, self.rule, params)

    def with_frozen(self, frozen: Any) -> "Partial":
        """Return a copy with other frozen values; the same object for the same ones, as long as somebody has it."""
        for known in (self, *self._copies):
            if _same(known.kept, frozen):
                return known
        copy = _made(self.given, self.init, frozen, self.joined, self.rule)
        self._copies.add(copy)
        return copy

    @functools.cached_property
    def _copies(self) -> "weakref.WeakSet[Partial]":
        return weakref.WeakSet()


def _same(one: Any, other: Any) -> bool:
    """Whether two pytrees have the same arrays, bit for bit."""
    kind = [(jax.tree.structure(each), [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(each)])
            for each in (one, other)]  # fmt: skip
    if kind[0] != kind[1]:
        return False
    bits = ([np.ravel(leaf).view(np.uint8) for leaf in map(np.asarray, jax.tree.leaves(each))] for each in (one, other))
    return all(np.array_equal(a, b) for a, b in zip(*bits, strict=True))


def _functions(task: Task, init: Callable[[Any], Params], join: Callable[[Params], Params]) -> dict[str, Any]:
    """The arguments of a task whose model is joined from what is learned."""
    join = once(join)

    def loss(params: Params, batch: Any, key: Any) -> Any:
        return task.loss(join(params), batch, key)

    def measuring(metric: Any) -> Any:
        return metric if isinstance(metric, Metric) else lambda params, batch: metric(join(params), batch)

    def outputs(given: Callable[..., Any], params: Params, batch: Any) -> Any:
        return given(join(params), batch)

    metrics = {name: measuring(metric) for name, metric in task.metrics.items()} | task.run_metrics
    answers = None if task.outputs is None else functools.partial(outputs, task.outputs)
    same = {name: getattr(task, name) for name in ("check", "name", "kind", "augment")}
    return {"init": init, "loss": loss, "metrics": metrics, "outputs": answers, **same}


def _made(task: Task, init: Any, frozen: Any, joined: Any, rule: Any, drawn: bool = False) -> Partial:
    functions = _functions(task, init, lambda learned: joined(learned, frozen))
    return Partial(**functions, given=task, kept=frozen, joined=joined, rule=rule, drawn=drawn)


def partial(task: Task, trainable: Patterns | LoRA, params: Params = None) -> Partial:
    """The task in which a part of the parameters is learned and sent; the rest is frozen, and sent once.

    The same arguments give the same object.

    Args:
        task: with the whole model.
        trainable: which leaves are learned: patterns of their names, such as ``"head.*"`` or ``["*.b", "1.*"]`` (``*``
            stands for any text; a leaf is called by its path in the pytree); a function ``(name, leaf) -> bool``; or
            :class:`LoRA`.
        params: the whole model to begin with, such as one that was trained elsewhere. Default: the task's own initial
            model; what is frozen is then the same whatever the seed of the run.

    Raises:
        ConfigError: nothing would be learned; ``params`` are not the task's.

    Example:
        >>> import fedax
        >>> task = fedax.tasks.mlp(64, 10, hidden=(32,))
        >>> part = partial(task, "1.*")
        >>> sorted(part.init(jax.random.key(0))), part is partial(task, "1.*")
        (['1.b', '1.w'], True)
    """
    rule = trainable if callable(trainable) or isinstance(trainable, LoRA) else _patterns("trainable", trainable)
    key = (rule if callable(rule) else repr(rule), id(params))
    if key not in task.parts:
        task.parts[key] = params, _partial(task, rule, params)  # a reference to params, so that their id is not reused
        while len(task.parts) > _MOST:
            del task.parts[next(iter(task.parts))]
    part: Partial = task.parts[key][1]
    return part


def _partial(task: Task, rule: Any, params: Params) -> Partial:
    form = task.form()
    if params is not None:
        check_params(params, form)
    paths = jax.tree_util.tree_leaves_with_path(form)
    structure = jax.tree.structure(form)
    names = [tensor_name(at) for at, _ in paths]
    shapes = {name: leaf.shape for name, (_, leaf) in zip(names, paths, strict=True)}
    lora = rule if isinstance(rule, LoRA) else None
    chosen = (lambda name, leaf: _matches(name, lora.also)) if lora else _chooser(rule)
    learned = [name for name, (_, leaf) in zip(names, paths, strict=True) if chosen(name, leaf)]
    low = [] if lora is None else [name for name in names if name not in learned and _fits(lora, name, shapes[name])]
    if not learned and not low and (callable(rule) or lora):
        raise ConfigError("trainable", rule, f"this names nothing that could be learned; there are: {_some(names)}")
    if not callable(rule):
        for field, patterns in (("targets", lora.targets), ("also", lora.also)) if lora else (("trainable", rule),):
            _check_each(field, patterns, names)
    whole_model = jax.jit(task.init)(jax.random.key(0)) if params is None else params
    values = dict(zip(names, jax.tree.leaves(whole_model), strict=True))
    frozen = {name: np.asarray(values[name]) for name in names if name not in learned}

    def init(key: Any) -> dict[str, Any]:
        start = dict(zip(names, jax.tree.leaves(task.init(key)), strict=True)) if params is None else values
        parameters = {name: jnp.asarray(start[name]) for name in learned}
        for k, name in enumerate(low):
            assert lora is not None
            (m, n), kind = shapes[name], jnp.result_type(values[name])
            drawn = jax.random.normal(jax.random.fold_in(key, k), (m, lora.rank), kind)
            parameters |= {f"{name}.a": drawn / np.sqrt(m).astype(kind), f"{name}.b": jnp.zeros((lora.rank, n), kind)}
        return parameters

    def joined(learned_leaves: Params, rest: Any) -> Params:
        leaves = {name: jnp.asarray(leaf) for name, leaf in {**rest, **learned_leaves}.items() if name in shapes}
        for name in low:
            assert lora is not None
            scale = 1.0 if lora.alpha is None else lora.alpha / lora.rank
            change = scale * (learned_leaves[f"{name}.a"] @ learned_leaves[f"{name}.b"])
            leaves[name] = (leaves[name] + change).astype(leaves[name].dtype)
        return jax.tree.unflatten(structure, [leaves[name] for name in names])

    return _made(task, init, frozen, joined, rule, drawn=params is None)


def _chooser(rule: Any) -> Callable[[str, Any], bool]:
    return rule if callable(rule) else lambda name, leaf: _matches(name, rule)


def _matches(name: str, patterns: str | Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in _patterns("trainable", patterns))


def _check_each(field: str, patterns: str | Sequence[str], names: Sequence[str]) -> None:
    """Each pattern names some leaf: else a leaf that was meant would be left out in silence."""
    for pattern in _patterns(field, patterns):
        if not any(_matches(name, pattern) for name in names):
            raise ConfigError(field, pattern, f"it names no leaf; there are: {_some(names)}")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + ("" if len(names) <= 20 else ", …")


def _fits(lora: LoRA, name: str, shape: tuple[int, ...]) -> bool:
    if len(shape) != 2 or not _matches(name, lora.targets):
        return False
    if lora.rank >= min(shape):
        hint = f"{name} is a matrix of {shape[0]} × {shape[1]}: give a smaller rank, or targets without it"
        raise ConfigError("rank", lora.rank, hint)
    return True


def _patterns(field: str, given: Any) -> tuple[str, ...]:
    patterns = (given,) if isinstance(given, str) else given
    if (
        isinstance(patterns, Mapping)
        or not isinstance(patterns, Sequence)
        or not all(isinstance(p, str) for p in patterns)
    ):
        raise ConfigError(field, given, 'give patterns of names, such as "head.*" or ["*.b", "head.*"]')
    return tuple(patterns)
