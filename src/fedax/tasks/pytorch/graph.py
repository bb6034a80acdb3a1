"""The graph of a PyTorch module in fedax: operators with named arguments, in the order in which they run.

Values have names. A node's arguments are numbers, texts, ``None``, ``Ref`` (a value's name), ``Dtype`` and tuples of
these. There are no in-place operators: ``functional`` replaces those of PyTorch by operators that return the result.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedax.errors import ConfigError
from fedax.tasks.pytorch.operators import find

FORMAT = 1  # of a description
DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class Ref:
    """A value of the graph, by its name."""

    name: str


@dataclass(frozen=True)
class Dtype:
    """A type of numbers, by NumPy's name."""

    name: str


@dataclass(frozen=True)
class Node:
    """A call of an operator.

    Attributes:
        target: PyTorch's name of the operator, such as ``aten.relu.default``.
        arguments: by the names of the operator's schema.
        outputs: the names of the results; a tuple of names for a list of results; ``None`` for a result without use.
        place: its place in the module, for errors.
    """

    target: str
    arguments: Mapping[str, Any]
    outputs: tuple[str | tuple[str, ...] | None, ...]
    place: str = ""


@dataclass(frozen=True)
class Input:
    """An argument of the module: its name, the axes' lengths (``None``: any), and the type of its numbers."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str


@dataclass(frozen=True)
class Graph:
    """A module's computation.

    Attributes:
        inputs: the module's arguments, in order.
        tensors: name of a value -> name of its parameter, buffer or constant.
        nodes: in the order in which they run.
        outputs: what the module returns: values, or plain numbers.
        shapes: of each output the axes' lengths, as of ``Input``; ``None`` for what is no tensor.
    """

    inputs: tuple[Input, ...]
    tensors: Mapping[str, str]
    nodes: tuple[Node, ...]
    outputs: tuple[Any, ...]
    shapes: tuple[tuple[int | None, ...] | None, ...]

    def __post_init__(self) -> None:
        known = {*(given.name for given in self.inputs), *self.tensors}
        if len(known) != len(self.inputs) + len(self.tensors):
            raise ConfigError("graph", "inputs", "two of them have the same name")
        for node in self.nodes:
            if (operator := find(node.target)) is None:
                hint = (
                    "fedax has no such operator; docs/tasks.md lists those that it has. Write this part of the "
                    "module with them, or the model in JAX"
                )
                raise ConfigError("operator", node.target, at(node, hint))
            if (wrong := operator.misfit(node.arguments)) is not None:
                raise ConfigError("operator", node.target, at(node, wrong))
            missing(node.arguments, known, node)
            known.update(names(node.outputs))
        missing(self.outputs, known, None)

    def kernels(self) -> set[str]:
        """The tensors that are weights of two-dimensional convolutions, and nothing else."""
        only_kernel: dict[str, bool] = {}
        for node in self.nodes:
            for name, value in node.arguments.items():
                for tensor in (self.tensors[ref] for ref in refs(value) if ref in self.tensors):
                    convolves = node.target.startswith("aten.conv2d.") and name == "weight"
                    only_kernel[tensor] = only_kernel.get(tensor, True) and convolves
        only_kernel |= {self.tensors[ref]: False for ref in refs(self.outputs) if ref in self.tensors}
        return {tensor for tensor, convolves in only_kernel.items() if convolves}

    def describe(self) -> dict[str, Any]:
        """The graph as JSON can hold it, without the places of files."""
        return {
            "inputs": [[given.name, list(given.shape), given.dtype] for given in self.inputs],
            "tensors": dict(self.tensors),
            "nodes": [
                [
                    node.target,
                    {name: _plain(value) for name, value in node.arguments.items()},
                    _plain(node.outputs),
                    node.place.partition(",")[0],
                ]
                for node in self.nodes
            ],
            "outputs": _plain(self.outputs),
            "shapes": _plain(self.shapes),
        }


def from_description(description: Any) -> Graph:
    """The graph that ``Graph.describe`` described.

    Raises:
        ConfigError: it is none, or has an operator that fedax does not have.
    """
    try:
        inputs = tuple(Input(_text(name), _shape(shape), _dtype(dtype)) for name, shape, dtype in description["inputs"])
        tensors = {_text(name): _text(tensor) for name, tensor in description["tensors"].items()}
        nodes = []
        for target, arguments, outputs, place in description["nodes"]:
            given = {_text(name): _value(value) for name, value in arguments.items()}
            nodes.append(Node(_text(target), given, _outputs(outputs), _text(place)))
        outputs = tuple(_value(value) for value in description["outputs"])
        if not all(isinstance(value, Ref | bool | int | float | None) for value in outputs):
            raise ValueError("an output that is neither a value nor a number")
        shapes = tuple(None if shape is None else _shape(shape) for shape in description["shapes"])
        if len(shapes) != len(outputs):
            raise ValueError("not as many shapes as outputs")
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
        raise ConfigError("graph", type(description).__name__, f"no description of a graph ({error})") from error
    return Graph(inputs, tensors, tuple(nodes), outputs, shapes)


def at(node: Node, text: str) -> str:
    """An error's text, with the node's place in the module."""
    return f"in {node.place}: {text}" if node.place else text


def missing(value: Any, known: set[str], node: Node | None) -> None:
    """Raise a ConfigError for a value that is used before there is one."""
    for name in refs(value):
        if name not in known:
            where = "the outputs" if node is None else node.target
            raise ConfigError("graph", name, f"{where} use this value, which nothing before has made")


def refs(value: Any) -> Iterator[str]:
    """The names of all values in an argument."""
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from refs(inner)
    elif isinstance(value, tuple):
        for inner in value:
            yield from refs(inner)


def names(outputs: Sequence[Any]) -> Iterator[str]:
    """The names among a node's outputs."""
    for output in outputs:
        if isinstance(output, tuple):
            yield from output
        elif output is not None:
            yield output


def functional(nodes: Sequence[Node], leaves: set[str], outputs: tuple[Any, ...]) -> tuple[list[Node], tuple[Any, ...]]:
    """The same computation without operators that change their first argument in place.

    ``aten.add_(y, x)`` becomes ``y = aten.add(y, x)``, and later uses of its result are uses of ``y``.

    Raises:
        ConfigError: a parameter, buffer or input is changed, or a value of which there is a view that is used later.
    """
    same: dict[str, str] = {}  # the result of an operator in place -> what it changed
    shares: dict[str, int] = {}  # values that share their numbers have the same mark
    marks = itertools.count()

    def renamed(value: Any) -> Any:
        return with_refs(value, lambda name: Ref(same.get(name, name)))

    last = {name: i for i, node in enumerate(nodes) for name in refs(node.arguments)}
    last |= dict.fromkeys(refs(outputs), len(nodes))
    done = []
    for i, node in enumerate(nodes):
        arguments = {name: renamed(value) for name, value in node.arguments.items()}
        operator = find(node.target)
        target = next(refs(arguments.get("self", ())), None)
        if operator is None and (functional_target := _without_underscore(node.target)) and target is not None:
            hint = "write it without changing a tensor in place"
            if target in leaves:
                what = "it changes a parameter, buffer or input, which fedax keeps constant; BatchNorm in training "
                raise ConfigError("operator", node.target, at(node, f"{what}does so: call module.eval(), or {hint}"))
            mark = shares.get(target)
            for name, other in shares.items():
                if other == mark and mark is not None and same.get(name, name) != target and last.get(name, -1) > i:
                    what = f"{name!r} has the same numbers as what is changed, and is used later"
                    raise ConfigError("operator", node.target, at(node, f"{what}; {hint}"))
            for name in names(node.outputs):
                same[name] = target
                if name in last:
                    last[target] = max(last.get(target, -1), last[name])
            done.append(replace(node, target=functional_target, arguments=arguments, outputs=(target,)))
            continue
        if operator is not None and operator.view:
            source = next(refs(tuple(arguments.values())), None)
            mark = shares.setdefault(source, next(marks)) if source is not None else next(marks)
            shares.update(dict.fromkeys(names(node.outputs), mark))
        done.append(replace(node, arguments=arguments))
    return done, renamed(outputs)


def _without_underscore(target: str) -> str | None:
    """``aten.add.Tensor`` of ``aten.add_.Tensor``, if fedax has it."""
    library, _, rest = target.partition(".")
    name, _, overload = rest.partition(".")
    changed = f"{library}.{name[:-1]}.{overload}"
    return changed if name.endswith("_") and find(changed) is not None else None


def with_refs(value: Any, made: Callable[[str], Any]) -> Any:
    """An argument with ``made(name)`` instead of each value of the graph."""
    if isinstance(value, Ref):
        return made(value.name)
    return tuple(with_refs(inner, made) for inner in value) if isinstance(value, tuple) else value


# ---- JSON: {"value": name}, {"dtype": name}, {"number": "inf"}; other values stay as they are


def _plain(value: Any) -> Any:
    if isinstance(value, Ref):
        return {"value": value.name}
    if isinstance(value, Dtype):
        return {"dtype": value.name}
    if isinstance(value, tuple):
        return [_plain(inner) for inner in value]
    return {"number": str(value)} if isinstance(value, float) and not math.isfinite(value) else value


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_value(inner) for inner in value)
    if isinstance(value, dict):
        ((kind, inner),) = value.items()
        if kind == "number":
            return float(_text(inner))
        return Ref(_text(inner)) if kind == "value" else Dtype(_dtype({"dtype": inner}[kind]))
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError("a number of more than 64 bits")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 1000 or not value.isprintable():
        raise ValueError("a name that is no text, or too long")
    return value


def _dtype(value: Any) -> str:
    if value not in DTYPES:
        raise ValueError("an unknown type of numbers")
    return str(value)


def _shape(value: Any) -> tuple[int | None, ...]:
    if not all(axis is None or (type(axis) is int and 0 <= axis < 2**62) for axis in value) or len(value) > 16:
        raise ValueError("axes that have no such length")
    return tuple(value)


def _outputs(value: Any) -> tuple[str | tuple[str, ...] | None, ...]:
    def one(output: Any) -> str | tuple[str, ...] | None:
        if isinstance(output, list):
            return tuple(_text(name) for name in output)
        return None if output is None else _text(output)

    return tuple(one(output) for output in value)
