"""FederatedData: the examples of all clients in one pytree of arrays, sorted by client."""

import copy
import json
import os
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedax.data.cells import naming
from fedax.data.formats import mapped, parse_json, reading
from fedax.data.overview import Overview
from fedax.data.transform import Transform
from fedax.errors import DataError, ExampleError
from fedax.files import regular
from fedax.numbers import beyond, has_truth_values, misfit
from fedax.tasks.task import Task

Examples = Any

_BLOCK = 2**26  # bytes that are checked at a time


class Unseen(NamedTuple):
    """Clients that take no part in training, as :func:`fedax.data.split` leaves them out.

    Attributes:
        train: their training rows, which serve their own models alone.
        test: their test rows.
    """

    train: "FederatedData"
    test: "FederatedData"


class FederatedData:
    """The data of N clients, and the weight of each in the objective F(x) = Σ_i p_i F_i(x).

    Args:
        examples: pytree of arrays with a common leading axis n, the first ``sizes[0]`` rows being client 0's, and
            so on.
        sizes: [N] whole numbers ≥ 1 that sum to n.
        weights: [N] p_i ≥ 0 that sum to one. Default: ``sizes / n``, every example counts the same. The objective
            belongs to the data: where a paper has 1/N, give ``np.full(N, 1 / N)``.
        names: [N] what the clients are called in errors, tables and reports, all different. Default: they are numbered.
        transform: what made the examples of a table, and knows the classes' names; it goes with the data.
        overview: the table's columns by client, of data that were read from tables; it goes with the data.

    Data of :func:`fedax.data.split` may have ``unseen``, clients that take no part in training.

    Arrays are not copied. Where they do not fit the memory, give memory maps, ``np.load("x.npy", mmap_mode="r")``: they
    are read once to be checked, and then as runs need them.

    Raises:
        DataError: empty clients, sizes or leading axes that do not match, values that are not finite or do not fit the
            type in which JAX computes (float32 and int32, unless it has 64 bits enabled), bad weights or names.

    Example:
        >>> data = FederatedData({"x": np.arange(6.0).reshape(3, 2), "y": np.zeros(3)}, sizes=[1, 2])
        >>> data.num_clients, data.num_examples, data.weights.round(2).tolist()
        (2, 3, [0.33, 0.67])
        >>> data.client(1)["x"].tolist()
        [[2.0, 3.0], [4.0, 5.0]]
    """

    def __init__(
        self,
        examples: Examples,
        sizes: Sequence[int] | np.ndarray,
        weights: Any = None,
        *,
        names: Sequence[str] | None = None,
        transform: Transform | None = None,
        overview: Overview | None = None,
        _finite: bool = False,
    ):
        columns = _columns("examples", examples)
        given = np.asarray(sizes)
        if given.ndim != 1 or given.size == 0 or not np.issubdtype(given.dtype, np.integer):
            raise DataError(f"sizes: need one whole number a client, got an array of {given.dtype} {given.shape}")
        self.sizes = given.astype(np.int64)
        self.names = None if names is None else _names(names, len(given))
        self.transform = transform
        self.overview = overview
        self.unseen: Unseen | None = None
        if (empty := np.flatnonzero(self.sizes < 1)).size:
            raise DataError(
                f"sizes: {self.name(empty[0])} has {self.sizes[empty[0]]} examples ({empty.size} such clients): "
                "every client needs at least one; leave empty clients out"
            )
        self.offsets = np.concatenate([[0], np.cumsum(self.sizes)[:-1]])
        n = int(self.sizes.sum())
        arrays = []
        for name, leaf in columns:
            array = _array(name, leaf)
            if array.ndim == 0 or array.shape[0] != n:
                hint = ""
                parts = list(examples.values() if isinstance(examples, Mapping) else [])
                parts = list(examples) if isinstance(examples, list | tuple) else parts
                if len(parts) == self.num_clients and all(isinstance(part, Mapping | list | tuple) for part in parts):
                    hint = "; if this is one entry a client, use FederatedData.from_clients with a list of them"
                raise DataError(f"{name}: shape {array.shape}, but the sizes of the clients sum to {n}{hint}")
            _check_numbers(name, leaf, array, self._whose)
            if not _finite:
                _check_range(name, leaf, array, self._whose)
            arrays.append(array)
        self.examples = jax.tree.unflatten(jax.tree.structure(examples), arrays)
        self.weights = _weights(weights, self.sizes)

    @classmethod
    def from_clients(
        cls,
        clients: Mapping[str, Examples] | Sequence[Examples],
        weights: Any = None,
        *,
        transform: Transform | None = None,
        overview: Overview | None = None,
    ) -> "FederatedData":
        """From one pytree of arrays [n_i, ...] a client; all need the same structure and trailing shapes.

        Args:
            clients: client's name -> its examples; or a list, of clients without names.
            weights, transform, overview: as of the class.

        Raises:
            DataError: no client, or clients with other arrays than the first.

        Example:
            >>> FederatedData.from_clients([{"x": np.zeros((2, 3))}, {"x": np.ones((1, 3))}]).sizes.tolist()
            [2, 1]
            >>> FederatedData.from_clients({"north": {"y": np.zeros(2)}, "south": {"y": np.ones(1)}}).names
            ('north', 'south')
        """
        names = None
        if isinstance(clients, Mapping):
            if clients and all(isinstance(part, np.ndarray | jax.Array) for part in clients.values()):
                raise DataError("clients: arrays, as of one client; give client's name -> its arrays, or a list")
            names, clients = [str(name) for name in clients], list(clients.values())
        if isinstance(clients, str | np.ndarray) or not isinstance(clients, Iterable):
            raise DataError(f"clients: a {type(clients).__name__}; give a list with one pytree of arrays a client")
        clients = list(clients)
        if not clients:
            raise DataError("clients: the list is empty; give one pytree of arrays a client")
        sizes: list[int | None] = []
        every: list[list[np.ndarray]] = []
        structure: Any = jax.tree.structure(clients[0])
        for i, client in enumerate(clients):
            columns = _columns(f"clients[{i}]", client)
            if structure != jax.tree.structure(client):
                raise DataError(f"clients[{i}]: {_difference(client, clients[0])}")
            arrays = [_array(name, leaf) for name, leaf in columns]
            lengths = {array.shape[0] if array.ndim else None for array in arrays}
            if len(lengths) != 1 or None in lengths:
                shapes = ", ".join(f"{name} {array.shape}" for (name, _), array in zip(columns, arrays, strict=True))
                raise DataError(f"clients[{i}]: its arrays have different leading axes: {shapes}")
            for (name, leaf), array, first in zip(columns, arrays, every[0] if every else arrays, strict=True):
                column = f"examples{name.removeprefix(f'clients[{i}]')}"
                _check_numbers(column, leaf, array, lambda row: (i, row))  # noqa: B023  (called at once)
                if array.shape[1:] != first.shape[1:]:
                    raise DataError(f"{name}: examples of shape {array.shape[1:]}, client 0 has {first.shape[1:]}")
                if _kind(array) != _kind(first):
                    hint = "give all clients the same type of numbers"
                    raise DataError(f"{name}: {array.dtype}, client 0 has {first.dtype}; {hint}")
            sizes.append(lengths.pop())
            every.append(arrays)
        pooled = [np.concatenate(arrays) for arrays in zip(*every, strict=True)]
        return cls(
            jax.tree.unflatten(structure, pooled),
            np.asarray(sizes),
            weights,
            names=names,
            transform=transform,
            overview=overview,
        )

    @classmethod
    def from_partition(
        cls, examples: Examples, parts: Mapping[str, np.ndarray] | Sequence[np.ndarray], weights: Any = None
    ) -> "FederatedData":
        """From pooled examples and, for each client, the indices of its examples.

        ``parts`` is a list, or client's name -> indices. An index may occur in several parts (the example is then
        copied) or in none (it is left out).

        Raises:
            DataError: indices that do not fit the examples; a client without an example.

        Example:
            >>> data = FederatedData.from_partition({"y": np.arange(4)}, [np.array([3]), np.array([0, 1])])
            >>> data.examples["y"].tolist()
            [3, 0, 1]
        """
        arrays = [_array(name, leaf) for name, leaf in _columns("examples", examples)]
        lengths = {array.shape[0] if array.ndim else None for array in arrays}
        if len(lengths) != 1 or None in lengths:
            raise DataError(f"examples: its arrays have leading axes {sorted(map(str, lengths))}; need one")
        n = len(arrays[0])
        names = None
        if isinstance(parts, Mapping):
            names, parts = [str(name) for name in parts], list(parts.values())
        for i, part in enumerate(parts):
            part = np.asarray(part)
            whole = part.ndim == 1 and (part.size == 0 or np.issubdtype(part.dtype, np.integer))
            if not whole or (part.size and (part.min() < 0 or part.max() >= n)):
                raise DataError(f"parts[{i}]: give a list of indices, whole numbers from 0 to {n - 1}")
        if not len(parts):
            raise DataError("parts: the list is empty; give one array of indices a client")
        order = np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])
        pooled = jax.tree.unflatten(jax.tree.structure(examples), [array[order] for array in arrays])
        return cls(pooled, [len(part) for part in parts], weights, names=names)

    def with_weights(self, weights: Any) -> "FederatedData":
        """The same examples with other weights p [N], which make another objective; ``None``: sizes / n.

        Example:
            >>> FederatedData({"y": np.zeros(3)}, sizes=[1, 2]).with_weights(np.array([0.5, 0.5])).weights.tolist()
            [0.5, 0.5]
        """
        other = copy.copy(self)
        other.weights = _weights(weights, self.sizes)
        return other

    def save(self, folder: str | os.PathLike) -> None:
        """Write a folder that :meth:`open` maps into memory: an .npy file for each array; ``unseen`` clients too.

        Args:
            folder: a new one. The examples have to be a dict of arrays.

        Raises:
            DataError: the folder is there already or cannot be made, or the examples have another form.
        """
        folder = pathlib.Path(folder)
        examples = self.examples
        if not isinstance(examples, dict) or not all(
            isinstance(name, str) and re.fullmatch(r"\w+", name) and isinstance(leaf, np.ndarray)
            for name, leaf in examples.items()
        ):
            raise DataError("examples: to be saved they have to be a dict of arrays, with letters and digits as names")
        for name, leaf in examples.items():
            if leaf.dtype.kind == "V":
                raise DataError(f"examples[{name!r}]: an .npy file cannot hold {leaf.dtype}; use .astype(np.float32)")
        if folder.exists():
            raise DataError(f"{folder}: this is there already; name a new folder")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
                whole = pathlib.Path(scratch) / "whole"
                (whole / "examples").mkdir(parents=True)
                np.save(whole / "sizes.npy", self.sizes)
                np.save(whole / "weights.npy", self.weights)
                if self.names is not None:
                    (whole / "names.json").write_text(json.dumps(self.names), encoding="utf-8")
                if self.transform is not None:
                    self.transform.save(whole / "transform.json")
                if self.overview is not None:
                    self.overview.save(whole / "overview.json")
                for name, leaf in examples.items():
                    np.save(whole / "examples" / f"{name}.npy", leaf)
                for part, data in () if self.unseen is None else self.unseen._asdict().items():
                    data.save(whole / "unseen" / part)
                os.rename(whole, folder)
        except OSError as error:
            raise DataError(f"{folder}: cannot be written ({error.strerror})") from error

    @classmethod
    def open(cls, folder: str | os.PathLike) -> "FederatedData":
        """What :meth:`save` wrote, mapped into memory: a run reads only the examples that it needs.

        What was saved had been checked; whether all values are finite is not looked at again.

        Raises:
            DataError: files are missing, broken, or do not fit together.

        Example:
            >>> with tempfile.TemporaryDirectory() as there:
            ...     FederatedData({"y": np.arange(3)}, sizes=[1, 2]).save(f"{there}/mine")
            ...     FederatedData.open(f"{there}/mine").client(1)["y"].tolist()
            [1, 2]
        """
        folder = pathlib.Path(folder)
        files = sorted((folder / "examples").glob("*.npy"))
        if not files:
            raise DataError(f"{folder}: no examples/*.npy in it; give a folder that FederatedData.save wrote")
        examples = {file.stem: mapped(file) for file in files}
        sizes, weights = (np.array(mapped(folder / f"{name}.npy")) for name in ("sizes", "weights"))
        transform_file = folder / "transform.json"
        transform = Transform.load(transform_file) if transform_file.exists() else None
        names = _saved_names(folder / "names.json", sizes.size)
        overview_file = folder / "overview.json"
        overview = Overview.load(overview_file) if overview_file.exists() else None
        with naming(folder):
            data = cls(examples, sizes, weights, names=names, transform=transform, overview=overview, _finite=True)
        if (unseen := folder / "unseen").exists():
            data.unseen = Unseen(*(cls.open(unseen / part) for part in Unseen._fields))
        return data

    @property
    def num_clients(self) -> int:
        """N."""
        return len(self.sizes)

    @property
    def num_examples(self) -> int:
        """n, over all clients."""
        return int(self.sizes.sum())

    @property
    def max_size(self) -> int:
        """The largest n_i."""
        return int(self.sizes.max())

    def client(self, i: int) -> Examples:
        """Client i's own examples, a pytree of arrays [n_i, ...]."""
        rows = slice(self.offsets[i], self.offsets[i] + self.sizes[i])
        return jax.tree.map(lambda leaf: leaf[rows], self.examples)

    def check(self, task: Task, clients: slice = slice(None)) -> None:
        """Whether the examples of these clients, neighbours, are such as ``task`` is for.

        Raises:
            DataError: they are not; the message names the client.
        """
        offsets, sizes = self.offsets[clients], self.sizes[clients]
        rows = slice(offsets[0], offsets[-1] + sizes[-1])
        try:
            task.check_examples(jax.tree.map(lambda leaf: leaf[rows], self.examples))
        except ExampleError as error:
            client, row = self._whose(int(offsets[0]) + error.example)
            raise ExampleError(error.column, row, error.what, client) from None

    def find(self, row: int) -> tuple[int, int]:
        """The client of the example ``row`` of all, and its index among the client's examples.

        Example:
            >>> FederatedData({"y": np.zeros(3)}, sizes=[1, 2]).find(2)
            (1, 1)
        """
        client = int(np.searchsorted(self.offsets, row, side="right")) - 1
        return client, int(row - self.offsets[client])

    def name(self, i: int) -> str:
        """The name of client i, or its number if clients have no names.

        Example:
            >>> FederatedData({"y": np.zeros(3)}, sizes=[1, 2]).name(1)
            'client 1'
        """
        return f"client {i}" if self.names is None else self.names[i]

    def _whose(self, row: int) -> tuple[int | str, int]:
        """:meth:`find`, with the client's name where it has one."""
        client, index = self.find(row)
        return client if self.names is None else self.names[client], index

    def __repr__(self) -> str:
        low, high = self.sizes.min(), self.sizes.max()
        return f"FederatedData({self.num_clients} clients, {self.num_examples} examples, {low} to {high} a client)"


def _saved_names(file: pathlib.Path, clients: int) -> tuple[str, ...] | None:
    if not file.exists():
        return None
    regular(file)
    with reading(file, "JSON"):
        names = parse_json(file.read_bytes())
    if not isinstance(names, list):
        raise DataError(f"{file}: not a list of names")
    with naming(file):
        return _names(names, clients)


def _columns(name: str, examples: Examples) -> list[tuple[str, Any]]:
    """The leaves of a pytree of arrays by name; lists of numbers and None raise an error."""
    _check_containers(name, examples)
    leaves = jax.tree_util.tree_leaves_with_path(examples)
    if not leaves:
        raise DataError(f"{name}: there is no array in it; give a pytree such as {{'x': ..., 'y': ...}}")
    return [(f"{name}{jax.tree_util.keystr(path)}", leaf) for path, leaf in leaves]


def _check_containers(name: str, tree: Any) -> None:
    if tree is None:
        raise DataError(f"{name}: None; give an array, or leave it out")
    if isinstance(tree, Mapping):
        for key, part in tree.items():
            _check_containers(f"{name}[{key!r}]", part)
    elif isinstance(tree, list | tuple):
        first = tree
        while isinstance(first, list | tuple) and first:
            first = first[0]
        if isinstance(first, bool | int | float | complex | str | np.generic):
            lengths = sorted({len(row) for row in tree if isinstance(row, list | tuple)})
            hint = "give an array: np.asarray(...)"
            if len(lengths) > 1:
                hint = f"its rows have {lengths[0]} to {lengths[-1]} entries: bring them to one length, in an array"
            raise DataError(f"{name}: a Python {type(tree).__name__}; {hint}")
        for k, part in enumerate(tree):
            _check_containers(f"{name}[{k}]", part)


def _difference(client: Examples, first: Examples) -> str:
    """How the form of a client's examples differs from that of the first client's."""
    if isinstance(client, Mapping) and isinstance(first, Mapping) and client.keys() != first.keys():
        show = lambda keys: ", ".join(map(repr, keys))  # noqa: E731
        return f"it has the columns {show(client)}, and client 0 has {show(first)}; give all clients the same"
    return f"its structure {jax.tree.structure(client)} is not that of client 0, {jax.tree.structure(first)}"


def check_is_array(name: str, leaf: Any) -> None:
    """Refuse what other libraries have in place of arrays, with the lines that convert it.

    Raises:
        DataError: it is a sparse matrix, a data set of PyTorch, or a table that :func:`fedax.data.from_frames` reads.
    """
    kind, package = type(leaf).__name__, type(leaf).__module__.partition(".")[0]
    if hasattr(leaf, "nnz") and hasattr(leaf, "toarray"):
        size = 4 * int(np.prod(leaf.shape, dtype=np.int64))
        hint = f"x = x.astype(np.float32).toarray(), which takes {_in_bytes(size)}"
        raise DataError(f"{name}: a sparse {kind} of shape {leaf.shape}; fedax computes with dense arrays: {hint}")
    if package in ("datasets", "polars", "pyarrow"):
        raise DataError(f"{name}: a {kind}; fedax.data.from_frames(table, label=…, client=…) reads it")
    if hasattr(leaf, "__getitem__") and not hasattr(leaf, "__array__") and not isinstance(leaf, Sequence):
        hint = "x, y = map(np.stack, zip(*(dataset[k] for k in range(len(dataset))))); data = {'x': x, 'y': y}"
        pictures = "of pictures with channels first also x = np.moveaxis(x, 1, -1)"
        raise DataError(f"{name}: a {kind}, not arrays: {hint}; {pictures}")
    if hasattr(leaf, "__iter__") and hasattr(leaf, "dataset"):
        raise DataError(f"{name}: a {kind}; give arrays of its .dataset, and batch_size to the run")


def _in_bytes(size: int) -> str:
    return f"{size / 1e9:.3g} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"


def _array(name: str, leaf: Any) -> np.ndarray:
    check_is_array(name, leaf)
    try:
        return np.asarray(leaf)
    except Exception as error:  # whatever the object's own conversion raises, such as a tensor's on a GPU
        raise DataError(f"{name}: a {type(leaf).__name__} that NumPy cannot read ({error})") from error


def _kind(array: np.ndarray) -> str:
    return "f" if jnp.issubdtype(array.dtype, jnp.floating) else array.dtype.kind.replace("u", "i")


def _check_numbers(name: str, leaf: Any, array: np.ndarray, find: Callable[[int], tuple[int | str, int]]) -> None:
    """Refuse an array that does not hold numbers; the error names the first example that has something else."""
    if array.dtype.kind in "biufc" or jnp.issubdtype(array.dtype, jnp.floating):
        return
    if array.dtype.kind in "mM":
        raise DataError(f"{name}: dates or times ({array.dtype}); give numbers")
    if array.dtype.kind not in "OSU":
        raise DataError(f"{name}: an array of type {array.dtype}; give numbers")
    number = bool | int | float | np.number | np.bool_
    at = next((at for at in np.ndindex(array.shape) if not isinstance(array[at], number)), None)
    if at is None:
        raise DataError(f"{name}: numbers stored as Python objects; use .astype(np.float32) or .astype(np.int32)")
    value = array[at]
    if isinstance(value, str | bytes):
        hint = "give numbers, of labels for instance np.unique(labels, return_inverse=True)[1]"
        what = f"is text, {value[:50]!r}; {hint}"
    elif np.ndim(value) or isinstance(value, list | tuple):
        what = f"is a {type(value).__name__} of {len(value)} entries in an array of objects; bring all to one shape"
    else:
        what = f"is {value!r:.50}; give numbers"
    client, row = find(at[0])
    raise ExampleError(_entry(name, leaf, at[1:]), row, what, client)


def _check_range(name: str, leaf: Any, array: np.ndarray, find: Callable[[int], tuple[int | str, int]]) -> None:
    """Refuse numbers that are not finite, or that JAX would make infinite, another whole number, or all of them 0."""
    kind = jax.dtypes.canonicalize_dtype(array.dtype)
    real = jnp.issubdtype(array.dtype, jnp.inexact)
    if not real and array.dtype == kind:
        return
    size = 0.0
    rows = max(1, _BLOCK * len(array) // max(1, array.nbytes))  # in blocks, since they may be mapped from a large file
    for start in range(0, len(array), rows):
        block = array[start : start + rows]
        if real and not np.isfinite(block).all():
            at = tuple(np.argwhere(~np.isfinite(block))[0].tolist())
            what = "NaN" if np.isnan(block[at]) else str(block[at])
            client, row = find(start + at[0])
            hint = "numbers have to be finite: clean the data first"
            raise ExampleError(_entry(name, leaf, at[1:]), row, f"is {what}; {hint}", client)
        if (place := misfit(block, kind)) is not None:
            client, row = find(start + place[0])
            more = f"is {block[place]}, {beyond(kind)}, or enable jax_enable_x64"
            raise ExampleError(_entry(name, leaf, place[1:]), row, more, client)
        if real and array.dtype != kind and block.size:
            size = max(size, float(np.abs(block).max()))
    if 0 < size < jnp.finfo(kind).tiny:
        raise DataError(f"{name}: all numbers are below {size:.2g}, so that {kind} has them as 0; multiply them")


def _entry(name: str, leaf: Any, at: tuple[int, ...]) -> str:
    """The name of a column, and the position of a number in an example."""
    if not at:
        return name
    if hasattr(leaf, "columns"):  # a table of pandas
        return f"{name}, column {leaf.columns[at[0]]!r}"
    return f"{name}, column {at[0]}" if len(at) == 1 else f"{name}, position {at}"


def _names(names: Any, clients: int) -> tuple[str, ...]:
    given = tuple(names) if isinstance(names, Iterable) and not isinstance(names, str) else (names,)
    if len(given) != clients or not all(map(_printable, given)):
        wrong = next((f", {name!r} among them" for name in given if not _printable(name)), "")
        hint = "give each of them one text that can be printed"
        raise DataError(f"names: {len(given)} for {clients} clients{wrong}; {hint}")
    if len({*given}) < clients:
        twice = next(name for k, name in enumerate(given) if name in given[:k])
        raise DataError(f"names: two clients are called {twice!r}; give each its own")
    return given


def _printable(name: Any) -> bool:
    return isinstance(name, str) and name.strip() != "" and name.isprintable()


def _weights(weights: Any, sizes: np.ndarray) -> np.ndarray:
    if weights is None:
        return sizes / sizes.sum()
    try:
        if has_truth_values(weights):
            raise TypeError
        p = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(f"weights: {weights!r}; give one number a client, or None for sizes / n") from None
    if p.shape != sizes.shape:
        raise DataError(f"weights: shape {p.shape}, but there are {len(sizes)} clients")
    if not np.isfinite(p).all() or (p < 0).any():
        bad = int(np.flatnonzero(~np.isfinite(p) | (p < 0))[0])
        raise DataError(f"weights: client {bad} has weight {p[bad]}; weights must be finite and at least 0")
    if abs(p.sum() - 1) > 1e-6:
        raise DataError(f"weights: they sum to {p.sum():.6g}, not to 1; divide by the sum: weights / weights.sum()")
    return p / p.sum()
