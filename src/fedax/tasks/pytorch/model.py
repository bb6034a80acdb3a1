"""A module's graph with its numbers, run by JAX."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedax.errors import ConfigError, FedaxError
from fedax.tasks.pytorch.archive import Archive
from fedax.tasks.pytorch.graph import Graph, Node, at, with_refs
from fedax.tasks.pytorch.operators import find, plain
from fedax.tasks.pytorch.operators.images import BATCH_STATISTICS
from fedax.tasks.pytorch.operators.table import Kernel


@dataclass(frozen=True, eq=False)
class TorchModel:
    """A PyTorch module in JAX.

    Attributes:
        graph: the computation.
        parameters: name -> numbers, of what is trained, as ``init`` returns them. Tied parameters are here once,
            weights of two-dimensional convolutions as [kh, kw, i, o].
        constants: name -> numbers, of buffers, frozen parameters and constants.
        tied: the other names of tied parameters -> the name in ``parameters``.
        state: the names in the module's ``state_dict``, in its order.
    """

    graph: Graph
    parameters: Mapping[str, np.ndarray]
    constants: Mapping[str, np.ndarray]
    tied: Mapping[str, str]
    state: tuple[str, ...]

    def __post_init__(self) -> None:
        known = self.parameters.keys() | self.constants.keys()
        for name in {self.tied.get(name, name) for name in (*self.graph.tensors.values(), *self.state)} - known:
            raise ConfigError("tensors", name, "the graph needs this tensor, which is not given")
        for node in self.graph.nodes:
            if node.target.startswith("aten.batch_norm") and node.arguments.get("training") is True:
                raise ConfigError("operator", node.target, at(node, BATCH_STATISTICS))

    @functools.cached_property
    def kernels(self) -> frozenset[str]:
        """The parameters that are kept as [kh, kw, i, o]."""
        return kernels(self.graph, self.parameters, self.tied)

    def init(self, key: Any) -> dict[str, Any]:
        """The module's own parameters, whatever the key."""
        return {name: jnp.asarray(value) for name, value in self.parameters.items()}

    def apply(self, params: Mapping[str, Any], inputs: tuple[Any, ...], key: Any) -> tuple[Any, ...]:
        """What the module returns.

        Args:
            params: as ``init`` returns them.
            inputs: arrays [b, ...], as many as the module takes.
            key: for dropout; ``None`` in evaluation.

        Raises:
            ConfigError: an operator fails; the message names it and its place.
        """
        values: dict[str, Any] = {
            given.name: cast(x, given.dtype) for given, x in zip(self.graph.inputs, inputs, strict=True)
        }
        for name, tensor in self.graph.tensors.items():
            stored = self.tied.get(tensor, tensor)
            value = params[stored] if stored in params else jnp.asarray(self.constants[stored])
            values[name] = Kernel(value) if stored in self.kernels else value
        for i, node in enumerate(self.graph.nodes):
            _run(node, values, None if key is None else (key, i))
        return tuple(plain(with_refs(output, values.__getitem__)) for output in self.graph.outputs)


def cast(x: Any, dtype: str) -> Any:
    """An example's array as the module takes it: real numbers of the type that it was exported with.

    uint8 images become numbers from 0 to 1, as in all of fedax's tasks.
    """
    x = jnp.asarray(x)
    if dtype.startswith(("float", "bfloat")):
        scale = 255 if x.dtype == jnp.uint8 and x.ndim >= 3 else 1
        x = x.astype(jax.dtypes.canonicalize_dtype(jnp.dtype(dtype)))
        return x / scale if scale > 1 else x
    return x


def kernels(graph: Graph, parameters: Mapping[str, np.ndarray], tied: Mapping[str, str]) -> frozenset[str]:
    """The weights of two-dimensional convolutions among the parameters, if they are nothing else."""
    return frozenset(graph.kernels() & parameters.keys() - {*tied.values()})


def of_archive(archive: Archive) -> TorchModel:
    """The model of a file: names of one tensor are one parameter."""
    first: dict[int, str] = {}
    tied = {}
    for name in archive.trained:
        array = archive.tensors[name]
        leader = first.setdefault(id(array), name)
        if leader != name:
            tied[name] = leader
    parameters = {name: archive.tensors[name] for name in archive.trained if name not in tied}
    constants = {name: array for name, array in archive.tensors.items() if name not in archive.trained}
    for name in kernels(archive.graph, parameters, tied):
        parameters[name] = parameters[name].transpose(2, 3, 1, 0)
    return TorchModel(archive.graph, parameters, constants, tied, archive.state)


def _run(node: Node, values: dict[str, Any], key: Any) -> None:
    operator = find(node.target)
    assert operator is not None  # the graph has checked it
    try:
        arguments = {name: with_refs(value, values.__getitem__) for name, value in node.arguments.items()}
        rng = jax.random.fold_in(*key) if key is not None and operator.random else None
        returned = operator(arguments, rng)
        results = (returned,) if len(node.outputs) == 1 else returned
        for name, result in zip(node.outputs, results if node.outputs else (), strict=True):
            if isinstance(name, tuple):
                values.update(zip(name, result, strict=True))
            elif name is not None:
                values[name] = result
    except FedaxError:
        raise
    except Exception as error:  # JAX's error on arrays that do not fit, with the place in the module
        detail = " ".join(str(error).split())[:300]
        raise ConfigError("operator", node.target, at(node, f"{type(error).__name__}: {detail}")) from error
