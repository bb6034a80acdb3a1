"""The identity of a run, as text that is the same in every process: a run continues from its own checkpoints only.

Programs are compared by what JAX traces, including the constants that they close over. Two things go unnoticed: a
change of a function that Python calls rather than JAX, such as ``until`` or a callback from compiled code, and changes
of a large memory-mapped file that keep its size and time and miss the samples.
"""

import dataclasses
import datetime
import functools
import hashlib
import os
import re
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

import fedax
from fedax.contract.algorithm import layers_of, without_layers
from fedax.contract.compression import ArrayForm, Compressor
from fedax.contract.schedule import SCHEDULES, Schedule
from fedax.contract.settings import Settings, plain
from fedax.contract.staleness import Staleness
from fedax.contract.types import Array, Tree, Unknown
from fedax.contract.vector import Vector
from fedax.engine.declared import value_of
from fedax.engine.devices import in_precision
from fedax.engine.options import OF_WIRE, OPTIONS, Options
from fedax.errors import of_a_library
from fedax.federation.census import Census
from fedax.federation.clock import Distribution
from fedax.metrics import Metric
from fedax.tasks.factory import made_with
from fedax.tasks.task import Task
from fedax.tasks.trainable import Partial
from fedax.wire.compressed import Compressed

FILES = "files"  # the entry that tells sizes and times of memory-mapped files

_PROGRAM = "program of "
_BLOCK = 2**24  # bytes that are hashed at a time
_SAMPLES = 256  # blocks of a memory-mapped array that are looked at
_SAMPLE = 2**16  # bytes of each


def fingerprint(
    options: Options,
    hyper: Tree,
    task: Task,
    census: Census,
    examples: Mapping[str, Tree],
    precision: str | None,
    x: Vector,
    round_program: str,
) -> dict[str, str]:
    """Name -> text of everything that defines a run.

    Args:
        options: of the run, with the clock and the pace that it has.
        hyper: method, work, participation and wire.
        task: as of :func:`fedax.simulate`.
        census: of the clients.
        examples: "data", "val" and "test" -> examples, of those that are here.
        precision: of products, as of :class:`fedax.Place`.
        x: the initial model.
        round_program: :func:`digest` of a round.
    """
    # What a task draws is the same on every machine but for last bits: the program that draws it tells it.
    drawn = not task.frozen or (isinstance(task, Partial) and task.drawn)
    texts = {
        "data": f"{census.num_clients} clients, {int(census.sizes.sum())} examples",
        "sizes and weights": f"{_hashed(census.sizes)} {_hashed(census.weights)}",
        "model": f"{jax.tree.map(lambda leaf: f'{leaf.dtype}{list(leaf.shape)}', x.tree)}",
        "params": "task.init" if options.params is None and drawn else _hashed(*jax.tree.leaves(x.tree)),
        "task": _task(task),
    }
    for name, each in OPTIONS.items():
        value = value_of(options, name)
        if each.option.fingerprint == "always" or (each.option.fingerprint and value is not None):
            key = name.rpartition(".")[2]
            texts |= {key: value} if isinstance(value, str) else _texts(key, value)
    texts |= {f"task.metrics[{name!r}]": _without_addresses(repr(each)) for name, each in task.whole_metrics.items()}
    if frozen := jax.tree_util.tree_leaves_with_path(task.frozen):
        names = ", ".join(jax.tree_util.keystr(at) for at, _ in frozen)
        texts["frozen"] = f"{names} {'of task.init' if drawn else _hashed(*(leaf for _, leaf in frozen))}"
    texts |= {f"client {name}": text for name, text in zip(census.names, census.digests, strict=False)}
    texts |= contents(examples)
    leaves = (leaf for tree in examples.values() for leaf in jax.tree.leaves(tree))
    files = [file for file in map(_file_stamp, leaves) if file is not None]
    texts |= {FILES: "; ".join(dict.fromkeys(files))[:4000]} if files else {}
    texts |= settings_of(hyper)
    with in_precision(precision):
        programs = _task_programs(task.trained, x.tree, census.examples(2))
    return texts | programs | {f"{_PROGRAM}a round": round_program}


def _task(task: Task) -> str:
    """A task's name and, of one of fedax's own, its settings."""
    settings = made_with(task)
    return task.name + (f"({', '.join(f'{name}={value}' for name, value in settings.items())})" if settings else "")


def versions() -> dict[str, str]:
    """The versions of the packages that a run depends on."""
    return {"fedax": fedax.__version__, "jax": jax.__version__, "numpy": np.__version__}


def same_versions(was: Mapping[str, str]) -> bool:
    """Whether programs can be compared with those of a run under these :func:`versions`."""
    now = versions()
    return all(was.get(name) == now[name] for name in ("fedax", "jax"))


def differences(was: Mapping[str, Unknown], now: Mapping[str, str], same_versions: bool) -> list[str]:
    """The entries in which two runs differ.

    Args:
        was, now: each an :func:`fingerprint`, or a part of one.
        same_versions: whether programs can be compared; else a warning says that they are not.

    Example:
        >>> differences({"seed": "0", "program of a round": "ab"}, {"seed": "1", "program of a round": "cd"}, True)
        ['seed was 0, is 1']
    """
    names = [name for name in dict.fromkeys([*now, *was]) if was.get(name) != now.get(name)]
    programs = [name for name in names if name.startswith(_PROGRAM)]
    # Where settings differ the programs often do too, and tell the user nothing new.
    reported = [name for name in names if name not in programs] or (programs if same_versions else [])
    if programs and not reported:
        text = "the run was begun with another version of JAX or fedax, so that its programs cannot be compared"
        warnings.warn(f"{text}; that loss, metrics and method are still the same is for you to know", stacklevel=2)
    return [f"{name} was {was.get(name)}, is {now.get(name)}" for name in reported]


# ---- data


def contents(trees: Mapping[str, Tree]) -> dict[str, str]:
    """Name -> type, shape of an example and digest of each array; of memory-mapped arrays, samples are looked at.

    Example:
        >>> contents({"data": {"x": np.zeros((3, 2))}})
        {"data['x']": 'float64[2] 17b0761f87b081d5'}
    """
    texts = {}
    for name, tree in trees.items():
        for at, leaf in jax.tree_util.tree_leaves_with_path(tree):
            array = np.asarray(leaf)
            content = _hashed(array) if _file_stamp(leaf) is None else f"{_sampled(array)} (sampled)"
            texts[f"{name}{jax.tree_util.keystr(at)}"] = f"{array.dtype}{list(array.shape[1:])} {content}"
    return texts


def _hashed(*arrays: Array) -> str:
    """A digest of all bytes of some arrays."""
    hasher = hashlib.sha256()
    for array in map(np.asarray, arrays):
        rows = max(1, _BLOCK * len(array) // max(1, array.nbytes)) if array.ndim else 1
        for start in range(0, len(array) if array.ndim else 1, rows):
            hasher.update(_bytes(array[start : start + rows] if array.ndim else array))
    return hasher.hexdigest()[:16]


def _sampled(array: np.ndarray) -> str:
    """A digest of evenly spread rows of a memory-mapped array, or of all its rows where they are few."""
    rows = max(1, _SAMPLE * len(array) // max(1, array.nbytes))
    if len(array) <= _SAMPLES * rows:
        return _hashed(array)
    starts = np.linspace(0, len(array) - rows, _SAMPLES).astype(int)
    return _hashed(*(array[start : start + rows] for start in starts))


def _bytes(array: np.ndarray) -> Unknown:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _file_stamp(leaf: Unknown) -> str | None:
    """Size and time of the file that an array is mapped from, or ``None``."""
    while leaf is not None:
        if isinstance(leaf, np.memmap) and leaf.filename is not None:
            about = os.stat(leaf.filename)
            seconds, rest = divmod(about.st_mtime_ns, 10**9)
            changed = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
            return f"{about.st_size} bytes of {changed:%Y-%m-%d %H:%M:%S}.{rest:09} UTC"
        leaf = getattr(leaf, "base", None)
    return None


# ---- settings


def settings_of(hyper: Tree) -> dict[str, str]:
    """Name -> text of the settings of method, work, participation and, where there are any, of the wire."""
    method, work, participation, wire = hyper
    up = next((layer.up for layer in layers_of(method) if isinstance(layer, Compressed)), None)
    parts = {"method": without_layers(method), "work": work, "participation": participation}
    optional = {name: getattr(wire, name) for name in OF_WIRE if name != "compress"}
    optional |= {"compress.up": up, "compress.down": wire.down}
    parts |= {name: part for name, part in optional.items() if part is not None}
    if wire.privacy is not None and wire.privacy.noise_seed is None:
        parts["privacy.noise_seed"] = "none: a secret"
    return {key: text for name, part in parts.items() for key, text in _texts(name, part).items()}


def _texts(name: str, value: Unknown) -> dict[str, str]:
    """A part of the settings and, where it is a dataclass, its fields."""
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
        parts = value.arguments() if isinstance(value, Settings) else fields
        inner = [_texts(f"{name}.{key}", part) for key, part in parts.items()]
        texts = {name: type(value).__name__} | {key: text for each in inner for key, text in each.items()}
        if isinstance(value, Schedule) and SCHEDULES.name_of(value) is None:  # those of fedax are their numbers
            texts[f"{_PROGRAM}{name}"] = digest(jax.make_jaxpr(value)(jax.ShapeDtypeStruct((), jnp.int32)))
        if not of_a_library(type(value).__module__) and (seen := _of_host(value)) is not None:
            texts[f"{_PROGRAM}{name}"] = " ".join(f"{number:.6g}" for number in np.ravel(seen))
        return texts
    if isinstance(value, np.ndarray | jax.Array):
        array = np.asarray(value)
        return {name: f"{array.tolist()}" if array.size < 10 else f"{_hashed(array)}{array.shape}"}
    text = _without_addresses(repr(plain(value)))
    if isinstance(value, list) and len(text) > 200:
        text = f"{hashlib.sha256(text.encode()).hexdigest()[:16]} ({len(value)} entries)"
    return {name: text}


def _of_host(part: Unknown) -> Unknown:
    """What a part of the user's own answers to a few questions, of one that Python calls and JAX does not trace."""
    try:
        if isinstance(part, Staleness):
            return part.weight(np.arange(20))
        if isinstance(part, Distribution):
            return part.quantile(np.linspace(0.05, 0.95, 19))
        if isinstance(part, Compressor):
            return [part.bits(ArrayForm.of(jax.ShapeDtypeStruct((d,), jnp.float32))) for d in (10, 1000)]
    except Exception:
        pass
    return None


def _without_addresses(text: str) -> str:
    """The text without addresses of functions, which are others in another process."""
    return re.sub(r" at 0x[0-9a-f]+", "", text) if " at 0x" in text else text


# ---- programs

_known_programs: weakref.WeakKeyDictionary[Task, dict[Unknown, dict[str, str]]] = weakref.WeakKeyDictionary()


def _task_programs(task: Task, params: Tree, examples: Tree) -> dict[str, str]:
    """The digests of a task's programs, traced once: JAX, too, assumes that a task's functions do not change."""
    leaves, structure = jax.tree.flatten((params, examples))
    known = _known_programs.setdefault(task, {})
    at = (structure, jax.default_matmul_precision.value, *((leaf.shape, leaf.dtype) for leaf in leaves))
    if at not in known:
        key = jax.eval_shape(lambda: jax.random.key(0))
        traced = {"task.init": jax.make_jaxpr(task.init)(key)}

        def trace(function: Callable[..., Unknown], *arguments: Unknown) -> Unknown:
            """With what is frozen as an argument: its numbers stand elsewhere."""
            program = lambda frozen, *given: function(task.bound(frozen), *given)  # noqa: E731
            return jax.make_jaxpr(program)(task.frozen, params, examples, *arguments)

        def losses(bound: Task, tree: Tree, batch: Tree, key: Array) -> tuple[Array, Array]:
            return bound.loss(tree, batch, key), bound.loss(tree, batch, None)

        traced["task.loss"] = trace(losses, key)
        if task.augment is not None:
            traced["task.augment"] = trace(lambda bound, tree, batch, key: bound.augment(batch, key), key)
        for name, metric in task.metrics.items():
            if not isinstance(metric, Metric):
                traced[f"task.metrics[{name!r}]"] = trace(lambda bound, *given: bound.metrics[name](*given))  # noqa: B023
        if task.whole_metrics and task.outputs is not None:
            traced["task.outputs"] = trace(lambda bound, *given: bound.outputs(*given))
        known[at] = {f"{_PROGRAM}{name}": digest(program) for name, program in traced.items()}
    return known[at]


def digest(program: Unknown) -> str:
    """A digest of a traced program: its operations, their parameters, and constants.

    Names of variables, source locations and addresses do not enter, so it is the same in another process.

    Example:
        >>> trace = lambda factor: jax.make_jaxpr(lambda x: factor * jnp.sin(x))(1.0)
        >>> digest(trace(2.0)) == digest(trace(2.0)), digest(trace(2.0)) == digest(trace(3.0))
        (True, False)
    """
    return _digest(program, {})


def is_program(value: Unknown) -> bool:
    """Whether a value is a traced program, with its constants or without."""
    return hasattr(value, "eqns")


def _digest(program: Unknown, known: dict[int, str]) -> str:
    """``known``: digests of inner programs by their ids, as one may occur many times."""
    if id(program) not in known:
        hasher = hashlib.sha256()
        for piece in _pieces(program, known):
            hasher.update(piece if isinstance(piece, bytes) else piece.encode())
            hasher.update(b"\0")
        known[id(program)] = hasher.hexdigest()[:16]
    return known[id(program)]


def _pieces(program: Unknown, known: dict[int, str]) -> Iterator[str | bytes]:
    bare: Unknown = getattr(program, "jaxpr", None)  # without its constants; JAX 0.12 has one class of both
    apart = bare is not None and bare is not program
    if apart:
        yield _digest(bare, known)
    for constant in getattr(program, "consts", ()):
        yield _value(constant, known)
    if apart:
        return
    numbers: dict[Unknown, int] = {}

    def name(variable: Unknown) -> str:
        if isinstance(variable, Literal):
            return f"{_form(variable.aval)} {_value(variable.val, known)}"
        return f"{numbers.setdefault(variable, len(numbers))} {_form(variable.aval)}"

    yield from map(name, (*program.constvars, *program.invars))
    for equation in program.eqns:
        yield equation.primitive.name
        yield from map(name, equation.invars)
        for key, value in sorted(equation.params.items()):
            yield f"{key} {_value(value, known)}"
        yield from map(name, equation.outvars)
    yield from map(name, program.outvars)


@functools.lru_cache(maxsize=4096)
def _form(aval: Unknown) -> str:
    return aval.str_short() if hasattr(aval, "str_short") else repr(aval)


def _value(value: Unknown, known: dict[int, str]) -> str:
    """A parameter of an operation, or a constant."""
    if is_program(value):
        return _digest(value, known)
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return f"{value.dtype} {_value(jax.random.key_data(value), known)}"
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.asarray(value)
        return f"{array.dtype}{array.shape} {_hashed(array)}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(sorted(f'{_value(k, known)}: {_value(v, known)}' for k, v in value.items()))}}}"
    if isinstance(value, tuple | list):
        return f"({', '.join(_value(each, known) for each in value)})"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(_value(each, known) for each in value))}}}"
    if isinstance(value, Callable):  # type: ignore[arg-type]
        return getattr(value, "__qualname__", type(value).__qualname__)
    return _without_addresses(repr(value))
