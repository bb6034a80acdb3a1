"""A PT2 archive, which ``torch.export.save`` writes, read without PyTorch: a zip of a JSON graph and raw numbers.

Files are not trusted. Nothing in them is unpickled, the sizes that they declare are checked against their length before
memory is allocated, and sample inputs are never read. A file that cannot be read raises a DataError that names it.
"""

import json
import math
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np

from fedax.errors import ConfigError, DataError
from fedax.tasks.pytorch.graph import Dtype, Graph, Input, Node, Ref, functional, with_refs

_SCHEMA = 8  # the major version of the graph's schema; a minor one adds fields that have defaults
_TESTED = "PyTorch 2.13"
# torch/_export/serde/schema.py, ScalarType
_DTYPES = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    12: "bool",
    13: "bfloat16",
}
_DAMAGE = (
    *(OSError, EOFError, ValueError, OverflowError, NotImplementedError, RuntimeError, struct.error, zlib.error),
    *(zipfile.BadZipFile, LookupError, TypeError, AttributeError, RecursionError),
)


@dataclass(frozen=True, eq=False)
class Archive:
    """The content of a file.

    Attributes:
        graph: the computation.
        tensors: name -> numbers, of parameters, buffers and constants; names of one tensor have the same array.
        trained: the parameters that PyTorch trains.
        state: the names in the module's ``state_dict``, in its order.
    """

    graph: Graph
    tensors: Mapping[str, np.ndarray]
    trained: tuple[str, ...]
    state: tuple[str, ...]


def read(file: Path | BinaryIO, name: str, size: int) -> Archive:
    """Read an archive of ``size`` bytes.

    Raises:
        DataError: it is none, is of an untested version, or is damaged.
        ConfigError: the graph has an operator that fedax does not have.
    """
    try:
        with zipfile.ZipFile(file) as members:
            return _Reader(members, size).archive()
    except (ConfigError, DataError):
        raise
    except _DAMAGE as error:
        detail = str(error) if isinstance(error, ValueError | zipfile.BadZipFile) else type(error).__name__
        raise DataError(f"{name}: no archive of torch.export.save, or damaged ({detail[:200]!r})") from error


class _Reader:
    def __init__(self, members: zipfile.ZipFile, size: int):
        self.members, self.size = members, size
        infos = members.infolist()
        if not infos:
            raise ValueError("an empty zip file")
        self.root = infos[0].filename.partition("/")[0]
        self.infos = {info.filename: info for info in infos}
        if len(self.infos) != len(infos):
            raise ValueError("two members of the same name")
        if sum(info.file_size for info in infos) > size:
            raise ValueError("its members are longer than the file")

    def content(self, name: str) -> bytes:
        info = self.infos.get(f"{self.root}/{name}")
        if info is None:
            raise ValueError(f"there is no {name}; save it with torch.export.save")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise ValueError(f"{name} is packed or encrypted")
        return self.members.read(info)

    def json(self, name: str) -> Any:
        return json.loads(self.content(name))

    def archive(self) -> Archive:
        given, version, order = (self.content(name) for name in ("archive_format", "archive_version", "byteorder"))
        if (given, version, order) != (b"pt2", b"0", b"little"):
            raise ValueError(
                f"format {given[:20]!r}, version {version[:20]!r}, {order[:20]!r}: {_TESTED} writes others"
            )
        models = [name for name in self.infos if name.startswith(f"{self.root}/models/")]
        if len(models) != 1:
            raise ValueError(f"{len(models)} models, not one")
        model = PurePosixPath(models[0]).stem
        program = self.json(f"models/{model}.json")
        major = program["schema_version"]["major"]
        if major != _SCHEMA:
            by = str(program.get("torch_version"))[:30]
            raise ValueError(f"written by PyTorch {by} in schema {major!r}; fedax reads {_SCHEMA}, that of {_TESTED}")
        tensors: dict[str, np.ndarray] = {}
        trained, state = [], []
        seen: dict[Any, np.ndarray] = {}
        for kind in ("weights", "constants"):
            for name, meta in self.json(f"data/{kind}/{model}_{kind}_config.json")["config"].items():
                if _named(name) in tensors:
                    raise ValueError(f"two tensors {name!r}")
                tensors[name] = self.tensor(kind, name, meta, seen)
                if kind == "weights":
                    state.append(name)
                if meta["is_param"] is True and meta["tensor_meta"]["requires_grad"] is True:
                    trained.append(name)
        return Archive(_graph(program["graph_module"], tensors), tensors, tuple(trained), tuple(state))

    def tensor(self, kind: str, name: str, meta: Any, seen: dict[Any, np.ndarray]) -> np.ndarray:
        """The numbers of a tensor: a view of the bytes in the file, if they have its order."""
        if meta["use_pickle"] is not False:
            raise ValueError(f"{name!r} is pickled, which could run any code; fedax never unpickles")
        path, form = _named(meta["path_name"]), meta["tensor_meta"]
        dtype = _dtype(form["dtype"])
        sizes, strides = ([_whole(entry["as_int"]) for entry in form[key]] for key in ("sizes", "strides"))
        offset = _whole(form["storage_offset"]["as_int"])
        if form["layout"] != 7 or len(sizes) != len(strides) or len(sizes) > 16:
            raise ValueError(f"{name!r} is no dense tensor")
        key = (kind, path, dtype, *sizes, *strides, offset)
        if key in seen:
            return seen[key]
        numbers = np.frombuffer(self.content(f"data/{kind}/{path}"), np.dtype(dtype))  # JAX has told NumPy of bfloat16
        count = math.prod(sizes)
        reach = offset + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True)) + 1 if count else 0
        if reach > len(numbers) or count > len(numbers):
            raise ValueError(f"{name!r} declares {sizes}, but has {len(numbers)} numbers")
        if sum(array.nbytes for array in seen.values()) + count * numbers.itemsize > self.size:
            raise ValueError("its tensors are larger than the file")
        steps = [step * numbers.itemsize for step in strides]
        view = np.lib.stride_tricks.as_strided(numbers[offset:], sizes, steps, writeable=False)
        seen[key] = np.ascontiguousarray(view).reshape(sizes)
        return seen[key]


def _graph(module: Any, tensors: Mapping[str, np.ndarray]) -> Graph:
    graph, signature = module["graph"], module["signature"]
    inputs, leaves = [], {}
    for spec in signature["input_specs"]:
        ((kind, given),) = spec.items()
        if kind == "user_input":
            name = _named(_only(given["arg"], "as_tensor")["name"])
            meta = graph["tensor_values"][name]
            inputs.append(Input(name, _lengths(meta["sizes"]), _dtype(meta["dtype"])))
            continue
        if kind not in ("parameter", "buffer", "tensor_constant"):
            raise ConfigError("inputs", kind, "fedax takes tensors alone: make other arguments part of the module")
        name, tensor = _named(given["arg"]["name"]), given[f"{kind}_name"]
        if name in leaves:
            raise ValueError(f"two inputs {name!r}")
        if tensor not in tensors:
            raise ValueError(f"there is no tensor {tensor!r}")
        leaves[name] = tensor
    outputs = []
    for spec in signature["output_specs"]:
        ((kind, given),) = spec.items()
        if kind != "user_output":
            hint = "fedax keeps buffers constant: call module.eval() before the export, or do without"
            raise ConfigError("outputs", kind, hint)
        outputs.append(_argument(given["arg"]))
    nodes = _nodes(graph["nodes"], "")
    nodes, results = functional(nodes, {*leaves, *(given.name for given in inputs)}, tuple(outputs))
    known = (graph["tensor_values"].get(value.name) if isinstance(value, Ref) else None for value in outputs)
    shapes = tuple(None if meta is None else _lengths(meta["sizes"]) for meta in known)
    return Graph(tuple(inputs), leaves, tuple(nodes), results, shapes)


def _lengths(sizes: Any) -> tuple[int | None, ...]:
    """An axis' length, ``None`` where it is an expression."""
    if len(sizes) > 16:
        raise ValueError("more than 16 axes")
    return tuple(_whole(entry["as_int"]) if "as_int" in entry else None for entry in sizes)


def _nodes(given: Sequence[Any], inside: str) -> list[Node]:
    nodes = []
    for node in given:
        target = _named(node["target"]).removeprefix("torch.ops.")
        place = _place(node["metadata"])
        if target in _INLINE:
            nodes += _inlined(node, target, place, inside)
            continue
        arguments: dict[str, Any] = {}
        for entry in node["inputs"]:
            arguments[_named(entry["name"])] = _inner(entry["arg"], inside)
        outputs = tuple(_output(output, inside) for output in node["outputs"])
        nodes.append(Node(target, arguments, outputs, place))
    return nodes


# Operators whose argument is a graph, which then stands in their place: name -> what becomes of its results.
_INLINE = {"higher_order.wrap_with_set_grad_enabled": ("aten.detach.default", "aten.alias.default")}


def _inlined(node: Any, target: str, place: str, inside: str) -> list[Node]:
    enabled, body, *given = (entry["arg"] for entry in node["inputs"])
    graph = _only(body, "as_graph")["graph"]
    within = f"{inside}{_named(_only(body, 'as_graph')['name'])}/"
    if len(within) > 300 or len(given) != len(graph["inputs"]) or len(node["outputs"]) != len(graph["outputs"]):
        raise ValueError("a graph in a graph that does not fit")
    after = _INLINE[target][bool(_only(enabled, "as_bool"))]
    nodes = []
    for argument, formal in zip(given, graph["inputs"], strict=True):
        name = within + _named(_only(formal, "as_tensor")["name"])
        nodes.append(Node("aten.alias.default", {"self": _inner(argument, inside)}, (name,), place))
    nodes += _nodes(graph["nodes"], within)
    for result, output in zip(graph["outputs"], node["outputs"], strict=True):
        nodes.append(Node(after, {"self": _inner(result, within)}, (_output(output, inside),), place))
    return nodes


def _inner(argument: Any, inside: str) -> Any:
    return with_refs(_argument(argument), lambda name: Ref(inside + name))


def _argument(given: Any) -> Any:
    ((kind, value),) = given.items()
    match kind:
        case "as_none" | "as_device" | "as_layout" | "as_memory_format":
            return None
        case "as_tensor":
            return Ref(_named(value["name"]))
        case "as_tensors":
            return tuple(Ref(_named(entry["name"])) for entry in value)
        case "as_optional_tensor":
            return _argument(value)
        case "as_optional_tensors":
            return tuple(_argument(entry) for entry in value)
        case "as_int" | "as_bool" | "as_float":
            return _number(value)
        case "as_ints" | "as_bools" | "as_floats":
            return tuple(_number(entry) for entry in value)
        case "as_string":
            return _named(value, empty=True)
        case "as_scalar_type":
            return Dtype(_dtype(value))
        case "as_sym_int" | "as_sym_float" | "as_sym_bool":
            return _symbol(value)
        case "as_sym_ints" | "as_sym_floats" | "as_sym_bools":
            return tuple(_symbol(entry) for entry in value)
    raise ConfigError("argument", kind, "fedax takes tensors, numbers, texts and lists of them as arguments")


def _symbol(given: Any) -> Any:
    ((kind, value),) = given.items()
    return Ref(_named(value)) if kind == "as_name" else _number(value)


def _output(given: Any, inside: str) -> str | tuple[str, ...] | None:
    value = _argument(given)
    if isinstance(value, tuple):
        return tuple(inside + _named(entry.name) for entry in value)
    return inside + value.name if isinstance(value, Ref) else None


def _number(value: Any) -> Any:
    if isinstance(value, str):  # not finite
        return {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}[value]
    if not isinstance(value, bool | int | float) or (isinstance(value, int) and abs(value) >= 2**63):
        raise ValueError("an argument that is no number of 64 bits")
    return value


def _only(given: Any, kind: str) -> Any:
    ((kind_given, value),) = given.items()
    if kind_given != kind:
        raise ConfigError("argument", kind_given, "fedax takes tensors here: make other arguments part of the module")
    return value


def _named(value: Any, empty: bool = False) -> str:
    if not isinstance(value, str) or not (value or empty) or len(value) > 500 or not value.isprintable():
        raise ValueError("a name that is no text, or too long")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**48:
        raise ValueError("a length that is no whole number")
    return value


def _dtype(value: Any) -> str:
    if type(value) is not int or value not in _DTYPES:
        raise ConfigError("dtype", value, f"fedax takes {', '.join(_DTYPES.values())}")
    return _DTYPES[value]


def _place(metadata: Any) -> str:
    """A node's place: the module's path and class, and the line of its code, if they are in the file."""
    place = ""
    stack = str(metadata.get("nn_module_stack") or "").rpartition(";")[2].split(",")
    if len(stack) == 3:
        path, kind = stack[1].replace("L['self'].", "") or "the module itself", stack[2].rpartition(".")[2]
        place = f"{path} ({kind})"
    frames = [line for line in str(metadata.get("stack_trace") or "").splitlines() if line.lstrip().startswith("File")]
    module_frames = [frame for frame in frames if "/site-packages/torch/" not in frame.replace("\\\\", "/")]
    if module_frames:
        parts = module_frames[-1].split('"')
        line = parts[-1].partition("line ")[2].partition(",")[0]
        place += f", {PurePosixPath(parts[1]).name if len(parts) > 1 else ''}:{line}"
    return "".join(c for c in place if c.isprintable())[:200]
