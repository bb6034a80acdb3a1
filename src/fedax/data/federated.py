"""FederatedData: the examples of all clients in one pytree of arrays, sorted by client."""

import copy
import os
import pathlib
import re
import tempfile
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fedax.data.formats import regular
from fedax.errors import DataError

Examples = Any

_BLOCK = 2**26  # bytes that are looked at at a time


class FederatedData:
    """The data of N clients, and the weight of each in the objective F(x) = Σ_i p_i F_i(x).

    Args:
        examples: pytree of arrays with a common leading axis n, the first ``sizes[0]`` rows being client 0's, and
            so on.
        sizes: [N] whole numbers ≥ 1 that sum to n.
        weights: [N] p_i ≥ 0 that sum to one. Default: ``sizes / n``, every example counts the same. The objective
            belongs to the data: where a paper has 1/N, give ``np.full(N, 1 / N)``.

    Arrays are not copied. Where they do not fit the memory, give memory maps, ``np.load("x.npy", mmap_mode="r")``: they
    are read once to be checked, and then as runs need them.

    Raises:
        DataError: empty clients, sizes or leading axes that do not match, values that are not finite, bad weights.

    Example:
        >>> data = FederatedData({"x": np.arange(6.0).reshape(3, 2), "y": np.zeros(3)}, sizes=[1, 2])
        >>> data.num_clients, data.num_examples, data.weights.round(2).tolist()
        (2, 3, [0.33, 0.67])
        >>> data.client(1)["x"].tolist()
        [[2.0, 3.0], [4.0, 5.0]]
    """

    def __init__(
        self, examples: Examples, sizes: Sequence[int] | np.ndarray, weights: Any = None, *, _finite: bool = False
    ):
        leaves = jax.tree.leaves(examples)
        if not leaves:
            raise DataError("examples: there is no array in it; give a pytree such as {'x': ..., 'y': ...}")
        self.examples = jax.tree.map(np.asarray, examples)
        given = np.asarray(sizes)
        if given.ndim != 1 or given.size == 0 or not np.issubdtype(given.dtype, np.integer):
            raise DataError(f"sizes: need one whole number a client, got an array of {given.dtype} {given.shape}")
        self.sizes = given.astype(np.int64)
        if (empty := np.flatnonzero(self.sizes < 1)).size:
            raise DataError(
                f"sizes: client {empty[0]} has {self.sizes[empty[0]]} examples ({empty.size} such clients): "
                "every client needs at least one; leave empty clients out"
            )
        n = int(self.sizes.sum())
        for path, leaf in jax.tree_util.tree_leaves_with_path(self.examples):
            name = f"examples{jax.tree_util.keystr(path)}"
            if leaf.ndim == 0 or leaf.shape[0] != n:
                raise DataError(f"{name}: shape {leaf.shape}, but the sizes of the clients sum to {n}")
            if leaf.dtype.kind not in "biufc":
                raise DataError(f"{name}: an array of type {leaf.dtype}; give numbers")
            if np.issubdtype(leaf.dtype, np.inexact) and not _finite:
                _check_finite(name, leaf)
        self.weights = _weights(weights, self.sizes)
        self.offsets = np.concatenate([[0], np.cumsum(self.sizes)[:-1]])

    @classmethod
    def from_clients(cls, clients: Sequence[Examples], weights: Any = None) -> "FederatedData":
        """From one pytree of arrays [n_i, ...] a client; all need the same structure and trailing shapes.

        Example:
            >>> FederatedData.from_clients([{"x": np.zeros((2, 3))}, {"x": np.ones((1, 3))}]).sizes.tolist()
            [2, 1]
        """
        if not clients:
            raise DataError("clients: the list is empty; give one pytree of arrays a client")
        first: Any = jax.tree.structure(clients[0])
        sizes = []
        for i, client in enumerate(clients):
            if first != jax.tree.structure(client):
                raise DataError(f"clients[{i}]: its structure {jax.tree.structure(client)} is not that of client 0")
            leaves = jax.tree.leaves(client)
            lengths = {np.shape(leaf)[0] if np.ndim(leaf) else None for leaf in leaves}
            if len(lengths) != 1 or None in lengths:
                raise DataError(f"clients[{i}]: its arrays have leading axes {sorted(map(str, lengths))}; need one")
            for a, b in zip(leaves, jax.tree.leaves(clients[0]), strict=True):
                if np.shape(a)[1:] != np.shape(b)[1:]:
                    raise DataError(
                        f"clients[{i}]: examples of shape {np.shape(a)[1:]}, client 0 has {np.shape(b)[1:]}"
                    )
            sizes.append(lengths.pop())
        return cls(jax.tree.map(lambda *leaves: np.concatenate(leaves), *clients), np.asarray(sizes), weights)

    @classmethod
    def from_partition(cls, examples: Examples, parts: Sequence[np.ndarray], weights: Any = None) -> "FederatedData":
        """From pooled examples and, for each client, the indices of its examples.

        An index may occur in several parts (the example is then copied) or in none (it is left out).

        Example:
            >>> data = FederatedData.from_partition({"y": np.arange(4)}, [np.array([3]), np.array([0, 1])])
            >>> data.examples["y"].tolist()
            [3, 0, 1]
        """
        leaves = jax.tree.leaves(examples)
        if not leaves:
            raise DataError("examples: there is no array in it; give a pytree such as {'x': ..., 'y': ...}")
        lengths = {np.shape(leaf)[0] if np.ndim(leaf) else None for leaf in leaves}
        if len(lengths) != 1 or None in lengths:
            raise DataError(f"examples: its arrays have leading axes {sorted(map(str, lengths))}; need one")
        n = len(leaves[0])
        for i, part in enumerate(parts):
            part = np.asarray(part)
            whole = part.ndim == 1 and (part.size == 0 or np.issubdtype(part.dtype, np.integer))
            if not whole or (part.size and (part.min() < 0 or part.max() >= n)):
                raise DataError(f"parts[{i}]: give a list of indices, whole numbers from 0 to {n - 1}")
        if not len(parts):
            raise DataError("parts: the list is empty; give one array of indices a client")
        order = np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])
        return cls(jax.tree.map(lambda leaf: np.asarray(leaf)[order], examples), [len(part) for part in parts], weights)

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
        """Write a folder that :meth:`open` maps into memory: an .npy file for each array.

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
        if folder.exists():
            raise DataError(f"{folder}: this is there already; name a new folder")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
                whole = pathlib.Path(scratch) / "whole"
                (whole / "examples").mkdir(parents=True)
                np.save(whole / "sizes.npy", self.sizes)
                np.save(whole / "weights.npy", self.weights)
                for name, leaf in examples.items():
                    np.save(whole / "examples" / f"{name}.npy", leaf)
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
        examples = {file.stem: _mapped(file) for file in files}
        sizes, weights = (np.array(_mapped(folder / f"{name}.npy")) for name in ("sizes", "weights"))
        return cls(examples, sizes, weights, _finite=True)

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

    def __repr__(self) -> str:
        low, high = self.sizes.min(), self.sizes.max()
        return f"FederatedData({self.num_clients} clients, {self.num_examples} examples, {low} to {high} a client)"


def _mapped(file: pathlib.Path) -> np.ndarray:
    try:
        regular(file)
        return np.load(file, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror or error})") from error
    except (ValueError, TypeError, SyntaxError, OverflowError, EOFError, MemoryError, RecursionError) as error:
        raise DataError(f"{file}: not an array that fedax wrote ({error})") from error


def _check_finite(name: str, leaf: np.ndarray) -> None:
    rows = max(1, _BLOCK * len(leaf) // max(1, leaf.nbytes))  # some at a time: they may be mapped from a large file
    for start in range(0, len(leaf), rows):
        block = leaf[start : start + rows]
        if not np.isfinite(block).all():
            bad = start + int(np.argwhere(~np.isfinite(block))[0][0])
            raise DataError(f"{name}: example {bad} holds a value that is not finite; clean the data first")


def _weights(weights: Any, sizes: np.ndarray) -> np.ndarray:
    if weights is None:
        return sizes / sizes.sum()
    try:
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
