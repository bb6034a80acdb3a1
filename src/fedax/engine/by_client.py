"""Evaluation client by client: the model's outputs come to the host in blocks, where metrics are computed exactly."""

import functools
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedax.contract.types import Array, Number, Tree, Unknown
from fedax.data.federated import FederatedData
from fedax.engine.load import Shared, start
from fedax.engine.memory import example_bytes
from fedax.errors import CodeError, ConfigError
from fedax.metrics.base import HostMetric, Metric, fitting
from fedax.programs import compiled
from fedax.tasks.losses import each_once
from fedax.tasks.task import Task

_BLOCK_ELEMENTS = 2**19  # numbers of input or output that are evaluated at a time
_BLOCK_BYTES = 2**28  # of what is computed of them, on each device
_CACHED = 2**24  # the same on a CPU, but for a few
_MODEL_BYTES = 2**26  # of clients' own models that are evaluated in one call
_BLOCK_ROWS = 2**16  # of their examples
_LEAST = 16  # examples, unless they take more than that


class ExampleResults(NamedTuple):
    """The loss and metrics of each of some examples, by name, and the outputs; ``None`` where no metric needs them."""

    values: dict[str, np.ndarray]
    outputs: np.ndarray | None


def evaluate(task: Task, params: Tree, data: FederatedData, params_per_client: Tree = None) -> Unknown:
    """How a model does at each client.

    Each figure is exactly that of the client's own examples: the mean of the loss and of metrics of each example; a
    metric of :mod:`fedax.metrics` of the client's labels and answers alone, by sorting where it ranks.

    Args:
        task: what was learned, with its metrics.
        params: the model, such as ``run.params``.
        data: the clients' examples, usually held-out ones.
        params_per_client: in place of ``params``, a model for each client: a pytree like ``params`` with leaves
            [N, ...].

    Returns:
        A ``pandas.DataFrame`` with a row for each client: ``name``, ``n``, ``loss`` and the metrics. Not-a-number where
        a metric is not defined, such as AUC at a client with one class only, or where a function of scikit-learn's
        raises ``ValueError``. ``table.attrs["mean"]`` has each column's mean, Σ p_i v_i over the clients where it is
        defined.

    Raises:
        ConfigError: parameters of another form than the task's.
        DataError: examples that do not fit the task.

    Example:
        >>> import fedax
        >>> data = fedax.FederatedData.from_clients(
        ...     {"north": {"x": np.eye(2), "y": np.ones(2)}, "south": {"x": np.eye(2), "y": -np.ones(2)}}
        ... )
        >>> table = evaluate(fedax.tasks.logistic_regression(2), {"w": np.array([1.0, 2.0])}, data)
        >>> table[["name", "n", "accuracy"]].to_dict("records")
        [{'name': 'north', 'n': 2, 'accuracy': 1.0}, {'name': 'south', 'n': 2, 'accuracy': 0.0}]
    """
    import pandas  # slow to import

    if not isinstance(task, Task):
        raise ConfigError("task", task, "give a fedax.Task, for instance one of fedax.tasks")
    if not isinstance(data, FederatedData):
        raise ConfigError("data", data, "give a fedax.FederatedData")
    data.check(task)
    several = params_per_client is not None
    n = data.num_clients
    if several and any(np.shape(leaf)[:1] != (n,) for leaf in jax.tree.leaves(params_per_client)):
        raise ConfigError("params_per_client", n, f"give leaves [{n}, ...], one model for each client")
    first = jax.tree.map(lambda leaf: leaf[0], params_per_client) if several else params
    x = start(task.trained, first, 0, Shared())[1].tree
    models = None
    if several:
        models = jax.tree.map(lambda leaf, like: np.asarray(leaf).astype(like.dtype), params_per_client, x)
    columns = figures(task.trained, x, data, models)
    names = [data.name(i) for i in range(n)]
    table = pandas.DataFrame({"name": names, "n": data.sizes, **columns})
    table.attrs["mean"] = {name: _mean(np.asarray(values), data.weights) for name, values in columns.items()}
    return table


def _mean(values: np.ndarray, weights: np.ndarray) -> float:
    known = ~np.isnan(values) & (weights > 0)
    return float(np.average(values[known], weights=weights[known])) if known.any() else float("nan")


Models = Callable[[np.ndarray], Tree]  # the models of some clients, by their numbers [S]: leaves [S, ...]


def figures(task: Task, params: Tree, data: FederatedData, models: Tree = None) -> dict[str, list[float]]:
    """Loss and metrics at each client, by name, [N].

    Args:
        task: one that is trained.
        params: the model; ``None``: see ``models``.
        data: the clients' examples.
        models: in place of ``params``, a model for each client, leaves [N, ...].
    """
    some = None if models is None else lambda ids: jax.tree.map(lambda leaf: leaf[ids], models)
    return {name: values.tolist() for name, values in measured(task, params, data, some)[0].items()}


def measured(
    task: Task, params: Tree, data: FederatedData, models: Models | None = None, whole: bool = True
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """As :func:`figures`, with ``models`` by their clients' numbers; and the loss and the metrics of each example, [n].

    ``whole``: whether there are metrics that are no means over examples, too, which take some 0.1 ms a client.
    """
    means = ["loss", *(name for name in task.metrics if name not in task.whole_metrics)]
    names = ("loss", *task.metrics) if whole else means
    columns = {name: np.full(data.num_clients, np.nan) for name in names}
    each = {name: np.zeros(data.num_examples) for name in means}
    for i, results in _clients(task, params, data, models):
        for name, values in results.values.items():
            columns[name][i] = np.mean(values, dtype=float)
            each[name][data.offsets[i] : data.offsets[i] + data.sizes[i]] = values
        if whole and results.outputs is not None:
            labels = data.client(i)["y"]
            for name in task.whole_metrics:
                columns[name][i] = _value(task, name, results.outputs, labels)
    return columns, each


def each_example(task: Task, params: Tree, data: Tree) -> dict[str, np.ndarray]:
    """The loss and the metrics of each example, by name, [n].

    Args:
        task, params: as of :func:`figures`.
        data: a pytree, or examples of clients, in turn.
    """
    examples = data.examples if isinstance(data, FederatedData) else data
    n = len(jax.tree.leaves(examples)[0])
    blocks = _blocks(task.trained, params, examples, range(n), _width(task.trained, params, examples))
    return _together(list(blocks)).values


def whole(task: Task, params: Tree, data: Tree, names: Sequence[str]) -> dict[str, float]:
    """Metrics of these names over all examples together: those of a pytree, or of all clients."""
    examples = data.examples if isinstance(data, FederatedData) else data
    n = len(jax.tree.leaves(examples)[0])
    parts = [results.outputs for results in _blocks(task, params, examples, range(n), _width(task, params, examples))]
    outputs = np.concatenate([part for part in parts if part is not None])
    return {name: _value(task, name, outputs, np.asarray(examples["y"]), alone=False) for name in names}


def _value(task: Task, name: str, outputs: np.ndarray, y: np.ndarray, alone: bool = True) -> float:
    """A metric of some examples; of a client's, which may have one class, not-a-number where it is not defined."""
    metric, y = task.metrics[name], fitting(y, outputs)
    with warnings.catch_warnings():
        if alone:
            warnings.simplefilter("ignore")
        if not isinstance(metric, HostMetric):
            assert isinstance(metric, Metric)
            return metric.exact(outputs, y)
        try:
            return metric.exact(outputs, y, kind=task.kind)
        except CodeError as error:
            if alone and isinstance(error.__cause__, ValueError):
                return float("nan")
            raise


def _clients(
    task: Task, params: Tree, data: FederatedData, models: Models | None
) -> Iterator[tuple[int, ExampleResults]]:
    """Each client's number and the results of its examples; with models those with few examples come first."""
    if models is not None:
        yield from _clients_with_models(task, data, models)
        return
    width = _width(task, params, data.examples)
    blocks = _blocks(task, params, data.examples, range(data.num_examples), width)
    rest = next(blocks)
    for i, size in enumerate(data.sizes):
        parts = [rest]
        while sum(len(part.values["loss"]) for part in parts) < size:
            parts.append(next(blocks))
        results = _together(parts)
        yield i, _cut(results, slice(0, size))
        rest = _cut(results, slice(size, None))


def _clients_with_models(task: Task, data: FederatedData, models: Models) -> Iterator[tuple[int, ExampleResults]]:
    """As :func:`_clients`; clients with about as many examples are evaluated together."""
    order, first = np.argsort(data.sizes, kind="stable"), models(np.array([0]))
    most = 1 << _width(task, jax.tree.map(lambda leaf: leaf[0], first), data.examples).bit_length() - 1
    room = max(1, _MODEL_BYTES // max(1, sum(leaf.nbytes for leaf in jax.tree.leaves(first))))
    done = 0
    while done < len(order):
        size = data.sizes[order[done]]
        width = 1 << int(size - 1).bit_length()
        if width > most:  # one client's examples are enough
            i, done = int(order[done]), done + 1
            model = jax.tree.map(lambda leaf: leaf[0], models(np.array([i])))
            own = range(data.offsets[i], data.offsets[i] + size)
            yield i, _together(list(_blocks(task, model, data.examples, own, most)))
            continue
        some = order[done : done + min(room, _BLOCK_ROWS // width or 1)]
        some = some[data.sizes[some] <= width]
        done += len(some)
        places = np.resize(some, 1 << (len(some) - 1).bit_length())  # few programs: of so many clients, 1, 2, 4, …
        within = np.minimum(np.arange(width), data.sizes[places, None] - 1)
        rows = data.offsets[places, None] + within
        batch = jax.tree.map(lambda leaf, rows=rows: np.asarray(leaf[rows]), data.examples)
        together = min(len(places), most // width)
        results = jax.tree.map(np.asarray, _of_models(models(places), task.frozen, batch, task=task, together=together))
        for k, i in enumerate(some):
            mine = jax.tree.map(lambda leaf, k=k, n=data.sizes[i]: leaf[k, :n], results)
            yield int(i), ExampleResults(mine["values"], mine.get("outputs"))


def _together(parts: list[ExampleResults]) -> ExampleResults:
    if len(parts) == 1:
        return parts[0]
    values = {name: np.concatenate([part.values[name] for part in parts]) for name in parts[0].values}
    outputs = [part.outputs for part in parts if part.outputs is not None]
    return ExampleResults(values, np.concatenate(outputs) if outputs else None)


def _cut(results: ExampleResults, rows: slice) -> ExampleResults:
    values = {name: leaf[rows] for name, leaf in results.values.items()}
    return ExampleResults(values, None if results.outputs is None else results.outputs[rows])


_widths: weakref.WeakKeyDictionary[Task, dict[Unknown, int]] = weakref.WeakKeyDictionary()


def _width(task: Task, params: Tree, examples: Tree) -> int:
    """How many examples are evaluated at a time."""
    kind = jax.dtypes.canonicalize_dtype  # as JAX would have it, without a warning
    two = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape[1:]), kind(leaf.dtype)), examples)
    leaves, structure = jax.tree.flatten((params, two))
    form = len(jax.tree.leaves(examples)[0]), structure, tuple((np.shape(leaf), leaf.dtype) for leaf in leaves)
    known = _widths.setdefault(task, {})
    if form not in known:  # it is traced
        evaluated = functools.partial(_of_batch, jax.tree.map(jnp.asarray, params), task.frozen, task=task)
        known[form] = at_a_time(evaluated, examples, jax.tree.leaves(jax.eval_shape(evaluated, two)))
    return known[form]


def sums(values: Callable[[Tree, Array], Tree], examples: Tree, offset: Array, size: Array, block: int) -> Tree:
    """Σ of ``values(batch, there)`` over blocks of one client's rows; ``there``: [b] whether there is such a row.

    The rows are offset … offset + size − 1 of ``examples``; it is for compiled programs.
    """

    def part(i: Number) -> Tree:
        rows = i * block + jnp.arange(block)
        there = rows < size
        return values(jax.tree.map(lambda leaf: leaf[offset + jnp.where(there, rows, 0)], examples), there)

    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(part, 0))
    return jax.lax.fori_loop(0, -(-size // block), lambda i, total: jax.tree.map(jnp.add, total, part(i)), zero)


def at_a_time(f: Callable[[Tree], Tree], examples: Tree, more: Sequence[Array] = ()) -> int:
    """How many examples a function of a block of them takes at a time, at most all; ``more``: arrays beside them.

    On a CPU small blocks are faster, as what is computed of them stays in the cache.
    """
    leaves = [*jax.tree.leaves(examples), *more]
    widest = max(int(np.prod(leaf.shape[1:])) for leaf in leaves)
    most = min(int(leaves[0].shape[0]), max(_LEAST, min(4096, _BLOCK_ELEMENTS // max(widest, 1))))
    each = max(1, example_bytes(f, examples))
    fast = most if jax.default_backend() != "cpu" else max(_LEAST, _CACHED // each)
    return max(1, min(most, fast, _BLOCK_BYTES // each))


def _blocks(task: Task, params: Tree, examples: Tree, rows: range, width: int) -> Iterator[ExampleResults]:
    """The results of some rows, block by block; the last block is padded with copies of its last row."""
    for first in range(rows.start, rows.stop, width):
        last = min(first + width, rows.stop)
        indices = np.minimum(np.arange(first, first + width), last - 1)
        whole = len(rows) == width == len(jax.tree.leaves(examples)[0])
        batch = examples if whole else jax.tree.map(lambda leaf, at=indices: np.asarray(leaf)[at], examples)
        padded = _of_block(params, task.frozen, batch, task=task)
        results = jax.tree.map(lambda leaf, n=last - first: np.asarray(leaf)[:n], padded)
        yield ExampleResults(results["values"], results.get("outputs"))


def _of_batch(params: Tree, frozen: Tree, batch: Array, *, task: Task) -> dict[str, Unknown]:
    task = task.bound(frozen)
    per_example = {name: metric for name, metric in task.metrics.items() if not isinstance(metric, Metric)}
    with each_once():
        values = {"loss": task.loss(params, batch, None)} | {
            name: metric(params, batch) for name, metric in per_example.items()
        }
        return {"values": values} | ({"outputs": task.answers(params, batch)[0]} if task.whole_metrics else {})


_of_block = compiled(static=["task"])(_of_batch)


@compiled(static=["task", "together"])
def _of_models(models: Tree, frozen: Tree, batches: Tree, *, task: Task, together: int) -> dict[str, Unknown]:
    """The results of the batch of each of some clients by its own model, so many clients at a time; leaves [S, ...]."""
    return jax.lax.map(
        lambda each: _of_batch(each[0], frozen, each[1], task=task), (models, batches), batch_size=together
    )
