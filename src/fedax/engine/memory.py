"""Client memory outside of the device, in host memory or a memory-mapped file; and the memory that a run needs."""

import itertools
import math
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from fedax.contract.types import Array, Tree, Unknown
from fedax.engine.devices import device_bytes
from fedax.engine.fingerprint import is_program
from fedax.errors import ConfigError
from fedax.federation.census import Census
from fedax.numbers import host_bytes
from fedax.tasks.task import Task

_RESIDENT = 2**27  # bytes of a file's rows that may be resident before they are let go


class ClientMemory:
    """The memory of all clients, leaves [N, ...], outside of the device.

    ``memory[ids]`` gives the rows of some clients as NumPy arrays. A client that never took part has the first row, and
    takes no space: rows lie in the order in which their clients first came, so that what is written lies together.

    Args:
        number: N.
        row: the memory of a client before its first round, a pytree.
        folder: the folder of the file, which has no name and is gone with the object; ``None``: in host memory.
        room: the most clients whose rows can be written; default: all.
    """

    def __init__(self, number: int, row: Tree, folder: str | None = None, room: int | None = None):
        self.row, self._folder = jax.tree.map(np.asarray, row), folder
        leaves, self._structure = jax.tree.flatten(self.row)
        self.row_bytes = sum(leaf.nbytes for leaf in leaves)
        self.first = leaves
        self._files: list[int | None] = []
        self._maps: list[mmap.mmap] = []
        self._touched = 0
        self._room = number if room is None else room
        self._arrays = [self._array((self._room, *leaf.shape), leaf.dtype, folder) for leaf in leaves]
        self._slots, self._used = np.full(number, -1), 0  # after what may be refused

    def _array(self, shape: tuple[int, ...], dtype: Unknown, folder: str | None) -> np.ndarray:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if folder is None or size == 0:
            self._files.append(None)
            try:
                return np.empty(shape, dtype)
            except MemoryError as error:  # pages are taken when they are written, but the system promises no more
                raise ConfigError("client_memory", "host", f"{error}; give 'file', or a folder") from error
        try:
            with tempfile.TemporaryFile(dir=folder, prefix="fedax-memory-") as file:
                file.truncate(size)  # holes take no space until they are written
                self._maps.append(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ))
                descriptor = os.dup(file.fileno())
            self._files.append(descriptor)
            weakref.finalize(self, os.close, descriptor)
        except OSError as error:
            raise ConfigError("client_memory", folder, f"no file can be made there ({error.strerror})") from error
        return np.ndarray(shape, dtype, self._maps[-1])

    def __len__(self) -> int:
        return len(self._slots)

    def __getitem__(self, ids: Array) -> Tree:
        slots = self._slots[np.asarray(ids)]
        written = slots >= 0

        def rows(array: np.ndarray, first: np.ndarray) -> np.ndarray:
            if written.all():
                return np.asarray(array[slots])
            out = np.empty((*slots.shape, *first.shape), first.dtype)
            out[written], out[~written] = array[slots[written]], first
            return out

        leaves = [rows(array, first) for array, first in zip(self._arrays, self.first, strict=True)]
        return jax.tree.unflatten(self._structure, leaves)

    def put(self, ids: np.ndarray, rows: Tree) -> None:
        """Write the rows of some clients, each named once."""
        new = ids[self._slots[ids] < 0]
        self._slots[new] = self._used + np.arange(len(new))
        self._used += len(new)
        for array, file, leaf in zip(self._arrays, self._files, jax.tree.leaves(rows), strict=True):
            for which, part in _parts(leaf):
                slots = self._slots[ids[which]]
                if file is None:
                    array[slots] = part
                else:
                    self._write(file, slots, part)
            self._touched += leaf.nbytes
        if self._maps and self._touched > _RESIDENT:
            # The pages stay in the system's cache as long as there is room, but no longer belong to this process.
            for map_ in self._maps:
                map_.madvise(mmap.MADV_DONTNEED)
            self._touched = 0

    def _write(self, file: int, slots: np.ndarray, rows: np.ndarray) -> None:
        """Write rows by ``pwrite``: through the map, a full disk would kill the process, and new pages be zeroed."""
        cuts = np.flatnonzero(np.diff(slots) != 1) + 1
        for start, stop in itertools.pairwise([0, *cuts.tolist(), len(slots)] if len(slots) else []):
            content = np.ascontiguousarray(rows[start:stop]).reshape(-1).view(np.uint8).data
            at = int(slots[start]) * (len(content) // (stop - start))
            while content:
                try:
                    written = os.pwrite(file, content, at)
                except OSError as error:
                    raise OSError(error.errno, error.strerror, self._folder) from error
                content, at = content[written:], at + written

    def kept(self) -> tuple[np.ndarray, list[np.ndarray]]:
        """The clients whose rows were written, in the order of their first writing, and their rows leaf by leaf."""
        (seen,) = np.nonzero(self._slots >= 0)
        return seen[np.argsort(self._slots[seen])], [array[: self._used] for array in self._arrays]

    def fits(self, rows: Tree) -> bool:
        """Whether some clients' memory has the form of this one."""
        structure: Unknown = jax.tree.structure(rows)
        forms = [(leaf.shape[1:], leaf.dtype) for leaf in jax.tree.leaves(rows)]
        return bool(structure == self._structure) and forms == [(leaf.shape, leaf.dtype) for leaf in self.first]

    def blank(self) -> "ClientMemory":
        """Another memory like it, of clients before their first round."""
        return ClientMemory(len(self), self.row, self._folder, self._room)


def _parts(leaf: Array) -> list[tuple[Unknown, np.ndarray]]:
    """The parts of an array: which rows, and their values; device by device, as joining them would copy them again."""
    if isinstance(leaf, np.ndarray):
        return [(slice(None), leaf)]
    return [(part.index[0], np.asarray(part.data)) for part in leaf.addressable_shards if part.replica_id == 0]


def where(setting: str, number: int, row: Tree, devices: int, full: bool, on_device: bool = True) -> str:
    """Where client memory is to be: "device", "host", or the folder of a file.

    Args:
        setting: ``"auto"``, ``"device"``, ``"host"``, ``"file"`` (in the folder for temporary files) or a folder.
        number: N.
        row: a client's memory, or its shapes.
        devices: the number over which the cohort is spread; each holds all memory, unless every client takes part.
        full: whether every client takes part.
        on_device: whether it can be on the device.
    """
    if setting not in ("auto", "device", "host", "file"):
        if not isinstance(setting, str | os.PathLike) or not os.path.isdir(setting):
            raise ConfigError(
                "client_memory", setting, "give 'auto', 'device', 'host', 'file', or a folder that is there"
            )
        return str(setting)
    if setting == "device" and not on_device:
        raise ConfigError(
            "client_memory", setting, "examples that stream, and several processes, leave it 'host', 'file' or a folder"
        )
    size = number * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(row))
    if setting == "auto":
        copies = 1 if full or jax.default_backend() != "cpu" else devices
        fits = on_device and size * copies <= device_bytes() / 4
        setting = "device" if fits else "host" if size <= host_bytes() / 2 else "file"
    return tempfile.gettempdir() if setting == "file" else setting


_TRACED = 32  # examples; of fewer, layers may compute in another way, and what is made of the model counts more


def gradient_bytes(task: Task, params: Tree, census: Census, batch_size: int | None) -> int:
    """Bytes that a client's minibatch gradient takes: the parameters, the minibatch, and the most that is alive then.

    Args:
        task: what is learned.
        params: the parameters, or their shapes and types.
        census: of the clients.
        batch_size: B, or ``None`` for all local data, of which the largest client's count.

    Example:
        >>> import fedax
        >>> census = Census.of(fedax.data.quadratics(clients=3, dimension=100))
        >>> task = fedax.tasks.quadratic(100).trained
        >>> gradient_bytes(task, task.form(), census, 1) > 100 * 100 * 4  # an example is a matrix
        True
    """
    batch = census.examples(census.max_size if batch_size is None else batch_size)
    rows = jax.ShapeDtypeStruct((census.max_size,), jnp.zeros(()).dtype)
    # The arguments have the types that a client gives: JAX then traces the gradient once, for this and for the rounds.
    given = (params, batch, rows if batch_size is None else 1 / batch_size, jax.eval_shape(lambda: jax.random.key(0)))
    traced = jax.make_jaxpr(task.gradient)(*given)
    return sum(map(_bytes, traced.invars)) + _peak(traced)


def example_bytes(f: Callable[[Tree], Tree], examples: Tree) -> int:
    """Bytes that a function of a block of examples takes for each: the most that is alive at once of what it computes.

    Args:
        f: the function.
        examples: arrays [n, ...], or their shapes and types.

    Example:
        >>> example_bytes(lambda x: jnp.sin(x[:, None] * jnp.arange(10.0)[None]).sum(), jnp.ones(50))
        80
    """
    n: int = min(_TRACED, jax.tree.leaves(examples)[0].shape[0])
    kind = jax.dtypes.canonicalize_dtype  # as JAX would have it, without a warning
    some = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((n, *leaf.shape[1:]), kind(leaf.dtype)), examples)
    return _peak(jax.make_jaxpr(f)(some)) // n


def _peak(program: Unknown) -> int:
    """The most bytes that are alive at once of what a program computes, if its operations run in order.

    A loop holds what one pass does. Of branches the largest counts: those of ``platform_dependent`` are such, too.
    """
    last_use = {variable: k for k, each in enumerate(program.eqns) for variable in _variables(each.invars)}
    last_use |= dict.fromkeys(_variables(program.outvars), len(program.eqns))
    alive: dict[Unknown, int] = {}
    most = 0
    for k, equation in enumerate(program.eqns):
        inside = max(map(_peak, _inner(equation)), default=0)
        before = sum(alive.values())
        alive |= {variable: _bytes(variable) for variable in equation.outvars}
        most = max(most, before + inside, sum(alive.values()))
        for variable in {*equation.outvars, *_variables(equation.invars)}:
            if last_use.get(variable, -1) <= k:
                alive.pop(variable, None)
    return most


def _variables(of: Unknown) -> Iterator[Unknown]:
    return (variable for variable in of if not isinstance(variable, Literal))


def _inner(equation: Unknown) -> Iterator[Unknown]:
    """The programs in an operation."""
    for value in equation.params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            if is_program(each):
                yield each


def _bytes(variable: Unknown) -> int:
    form = variable.aval
    return math.prod(form.shape) * form.dtype.itemsize if hasattr(form, "shape") else 0
