"""What can be wrong with the input of a run, and is seen without compiling."""

import functools
import math
import os
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fedax.columns import TRAIN
from fedax.contract.algorithm import Algorithm
from fedax.contract.compression import Compressor, decoded
from fedax.contract.schedule import resolve
from fedax.contract.settings import Settings
from fedax.contract.types import Array, Tree, Unknown
from fedax.contract.vector import Vector
from fedax.data.federated import FederatedData
from fedax.engine import processes
from fedax.engine.declared import check_kinds
from fedax.engine.dry_run import same_structure
from fedax.engine.layers import Forms
from fedax.engine.loop import Hyper, draw_cohort, draw_steps, stage_key
from fedax.engine.options import TRAIN_LOSS, Options
from fedax.engine.plan import RunPlan
from fedax.errors import ConfigError, DataError, ExampleError, call, of_a_library
from fedax.federation.census import Census
from fedax.metrics.base import HostMetric, RunMetric
from fedax.numbers import MOST, check_count, check_room
from fedax.tasks.task import Task
from fedax.wire.averages import Aggregator
from fedax.wire.sums import is_change

_DRAWN = 50  # rounds whose draws by the user's own code are looked at
_MOST_LISTED = 10_000  # clients of which each row of a history has a figure


def check_parts(algorithm: Unknown, task: Unknown, data: Unknown, options: Options) -> None:
    """Everything that can be wrong with the input and be seen without data or a trace.

    Args:
        algorithm, task: as of :func:`fedax.simulate`.
        data: the census; or what was given in place of data.
        options: with their defaults.

    Raises:
        ConfigError: something of another kind, or out of its range.
    """
    required = (
        ("algorithm", algorithm, Algorithm, "give a method, for instance fedax.create('fedavg', lr=0.1)"),
        ("task", task, Task, _task_of(task)),
        ("data", data, Census, _data_of(data)),
    )
    for name, value, kind, hint in required:
        if not isinstance(value, kind):
            raise ConfigError(name, value, hint)
    check_kinds(options)
    algorithm.validate()
    assert options.work is not None and options.participation is not None
    options.work.validate(data.sizes)
    options.participation.validate(data.num_clients, check_count("rounds", options.rounds, 0, MOST))


def check_train_loss(field: str, asked: str | None) -> tuple[str, int]:
    """What the training loss is measured on, and how many rows of a sample.

    Raises:
        ConfigError: about ``field``: it is no such setting.

    Example:
        >>> check_train_loss("train_loss", "sample:100"), check_train_loss("train_loss", None)
        (('sample', 100), ('full', 0))
    """
    kind, _, number = (asked or "full").partition(":")
    if asked not in (None, "full", "none") and (kind != "sample" or not number.isdecimal() or int(number) == 0):
        raise ConfigError(field, asked, TRAIN_LOSS)
    return kind, int(number or 0)


def train_loss_of(options: Options, task: Task, census: Census, here: bool) -> tuple[str, int]:
    """The column of the training loss, empty where it is not measured, and the rows of a sample, 0: all.

    Raises:
        ConfigError: it is no such setting, or this run cannot have it.
    """
    asked = options.train_loss
    kind, number = check_train_loss("train_loss", asked)
    if kind == "full":
        return TRAIN[0], 0
    if not here:
        raise ConfigError("train_loss", asked, 'real clients measure it on all their data; leave it out, or "full"')
    if "grad_norm" in task.run_metrics:
        raise ConfigError("train_loss", asked, "GradNorm needs all training data; leave one of them out")
    if kind == "none":
        if not options.parts:
            raise ConfigError("train_loss", asked, "nothing would show how a run goes; give val or test data")
        return "", 0
    if processes.count() > 1:
        raise ConfigError("train_loss", asked, 'no process has all data; give "full" or "none"')
    if number >= (rows := int(np.sum(census.sizes))):
        raise ConfigError("train_loss", asked, f'there are {rows} rows; give fewer, or "full"')
    return TRAIN[1], number


def sampled_rows(data: FederatedData, number: int) -> np.ndarray:
    """[number] rows whose mean loss is that of all clients, Σ p_i F_i, on average; the same for the same data.

    Clients and their rows lie on a line, each row as long as its weight p_i/n_i. It is cut into equal parts, and a
    point is drawn in each.
    """
    draw = np.random.default_rng(0).uniform(size=number)
    ends = np.cumsum(np.asarray(data.weights, float))
    points = (np.arange(number) + draw) / number * ends[-1]
    clients = np.searchsorted(ends, points, side="right")
    share = (points - (ends - data.weights)[clients]) / np.asarray(data.weights, float)[clients]
    sizes = data.sizes[clients]
    return data.offsets[clients] + np.clip((share * sizes).astype(int), 0, sizes - 1)


def _task_of(given: Unknown) -> str:
    """How to make a task of what somebody took for one."""
    kind = given if isinstance(given, type) else type(given)
    libraries = {base.__module__.partition(".")[0] for base in kind.__mro__}
    if "torch" in libraries:
        return "of a PyTorch module make a task by fedax.tasks.from_torch(module, example, loss=…)"
    if found := {"flax", "equinox", "haiku"} & libraries:
        name = min(found).capitalize()
        return f"of a model of {name} make one by fedax.tasks.classification(init, apply, classes): see docs/tasks.md"
    return "give a fedax.Task, for instance one of fedax.tasks"


def _data_of(given: Unknown) -> str:
    """How to make federated data of what somebody took for it."""
    some = next(iter(given.values()), None) if isinstance(given, dict) else given
    libraries = {base.__module__.partition(".")[0] for base in type(some).__mro__}
    if {"pandas", "polars"} & libraries:
        return 'of tables make a fedax.FederatedData by fedax.data.from_frames({"name": table, …}, label=…)'
    if isinstance(given, str | os.PathLike):
        return "of files make a fedax.FederatedData, by fedax.data.from_csv(…) or FederatedData.open(folder)"
    return "give a fedax.FederatedData, such as FederatedData.from_clients makes it"


def check_batch_size(asked: Unknown, census: Census) -> int:
    batch_size = check_count("batch_size", asked, high=MOST)
    each = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(census.example))
    check_room(batch_size * each, batch_size=batch_size)
    return batch_size


def evaluation_rounds(rounds: int, every: Unknown) -> tuple[int, ...]:
    """The rounds after which the model is evaluated, besides the start; ``every`` as of :func:`fedax.simulate`."""
    if isinstance(every, Sequence | np.ndarray) and not isinstance(every, str):
        stops = sorted({check_count("evaluate_every", int(r) if isinstance(r, np.integer) else r) for r in every})
        return (*(r for r in stops if r < rounds), rounds) if rounds else ()
    step = max(1, math.ceil(rounds / 50)) if every is None else check_count("evaluate_every", every)
    check_room(600 * (rounds // step), rounds=rounds)  # bytes of a row
    return (*range(step, rounds, step), rounds) if rounds else ()


def check_examples(
    task: Task, census: Census, data: FederatedData | None, own: slice, parts: Mapping[str, Tree]
) -> None:
    if data is not None:
        data.check(task, own)
    for part, given in parts.items():
        try:
            if isinstance(given, FederatedData):
                given.check(task)
            _check_test(task, census, pooled_of(given))
        except ExampleError as error:
            whose = error.client if isinstance(given, FederatedData) else None
            raise ExampleError(f"{part}: {error.column}", error.example, error.what, whose) from None
        except DataError as error:
            raise DataError(f"{part}: {str(error).replace('clients[0]', 'it', 1)}") from None


def _check_test(task: Task, census: Census, test: Tree) -> None:
    if not same_structure(test, census.example):
        raise DataError(
            f"its structure {jax.tree.structure(test)} is not that of the clients' examples, "
            f"{jax.tree.structure(census.example)}"
        )
    if all(np.shape(leaf)[:1] == (0,) for leaf in jax.tree.leaves(test)):
        raise DataError("there is no example in it; give None for no held-out data")
    # A federation of one client has the same demands on its examples.
    FederatedData.from_clients([test])
    for (path, got), own in zip(
        jax.tree_util.tree_leaves_with_path(test), jax.tree.leaves(census.example), strict=True
    ):
        if np.shape(got)[1:] != own.shape:
            name = f"examples{jax.tree_util.keystr(path)}"
            raise DataError(f"{name}: examples of shape {np.shape(got)[1:]}, the clients' have {own.shape}")
    task.check_examples(jax.tree.map(np.asarray, test))


def pooled_of(part: Tree) -> Tree:
    """All examples of a part of the held-out data."""
    return part.examples if isinstance(part, FederatedData) else part


def labels_of(task: Task, examples: Tree) -> dict[str, Tree]:
    """Metric -> the sums of the labels alone, of those that need them."""
    made = {name: metric for name, metric in task.whole_metrics.items() if not isinstance(metric, HostMetric)}
    if not made or not isinstance(examples, Mapping) or "y" not in examples:
        return {}
    found = {name: metric.labels(np.asarray(examples["y"])) for name, metric in made.items()}
    return {name: sums for name, sums in found.items() if jax.tree.leaves(sums)}


def by_client_of(metric: RunMetric | None, parts: Mapping[str, Tree]) -> tuple[str, ...]:
    """The parts whose clients are to have figures of their own; ``metric``: the task's ``PerClient``, if it has it."""
    if metric is None:
        return ()
    found = [part for part, given in parts.items() if isinstance(given, FederatedData)]
    refused = functools.partial(ConfigError, "task.run_metrics['per_client']", metric)
    if not found:
        raise refused("give val or test as a fedax.FederatedData, held-out examples by client")
    for part in found:
        if (n := parts[part].num_clients) > _MOST_LISTED:
            raise refused(
                f"{n} clients of {part} are more than {_MOST_LISTED}: use fedax.evaluate when the run is over"
            )
    return tuple(found)


def check_host_metrics(task: Task, census: Census, parts: Mapping[str, Tree]) -> None:
    """No metric that needs all answers in one place, where held-out examples are at the nodes of real clients."""
    for name, metric in task.whole_metrics.items():
        if isinstance(metric, HostMetric) and any(n and part not in parts for part, n in census.held.items()):
            hint = (
                "it needs all answers on one host, and the held-out examples are at the nodes: take a metric that is "
                "made of sums, such as fedax.metrics.AUC(), or give the server held-out examples of its own"
            )
            raise ConfigError(f"task.metrics[{name!r}]", metric, hint)


def check_aggregator(aggregate: Aggregator | None, algorithm: Algorithm, x: Vector) -> None:
    """Check that another average than the mean can be taken of the method's uploads."""
    if aggregate is None:
        return
    method = resolve(algorithm, 0)
    refused = functools.partial(ConfigError, "aggregate", type(aggregate).__name__)
    kind = f"{type(algorithm).__name__}: "
    if jax.tree.leaves(jax.eval_shape(method.init_client, x)):
        raise refused(kind + "its clients keep something between rounds that assumes that their uploads entered a mean")
    if any(exchange.who == "one" for exchange in method.exchanges()):
        raise refused(kind + "one client of the cohort moves the model alone, and there is nothing to average")


def check_uploads(aggregate: Aggregator | None, algorithm: Algorithm, forms: Forms) -> None:
    """Check that uploads have no change of memory and, to be clipped, one update alone."""
    if aggregate is None:
        return
    warmup, exchanges = forms
    for number, upload in [(k, form.upload) for stage in (warmup, exchanges) for k, form in enumerate(stage)]:
        upload = jax.eval_shape(decoded, upload)
        changes = any(map(is_change, jax.tree.leaves(upload, is_leaf=is_change)))
        if changes or (not aggregate.gathers and (not isinstance(upload, Vector) or number)):
            hint = f"{type(algorithm).__name__} uploads more than an update of the model; use another, or none"
            raise ConfigError("aggregate", type(aggregate).__name__, hint)


def check_feedback(aggregate: Aggregator | None, up: Compressor) -> None:
    """Check that error feedback goes with the mean only."""
    if up.keeps and aggregate is not None:
        why = f"{type(up).__name__} keeps what a client's messages lacked, which assumes that they entered a mean"
        raise ConfigError("aggregate", type(aggregate).__name__, f"{why}; leave one of both out")


def check_draws(hyper: Hyper, census: Census, plan: RunPlan, key: Array, rounds: int) -> None:
    """Raise unless a participation and a work of the user's own draw what they should in the first rounds of a run.

    Raises:
        ConfigError: numbers that are no clients, or no weights, or no local steps; a client twice in a round.
        CodeError: they raise an error.
    """
    participation, work, n = hyper.participation, hyper.work, census.num_clients
    works = plan.steps is None  # else nobody asks how many steps are taken
    if not rounds or not (_is_own(participation) or (works and _is_own(work))):
        return
    weights, sizes = jnp.asarray(census.weights, float), jnp.asarray(census.sizes, jnp.int32)
    places, batch = participation.places(n), plan.batch_size

    def drawn(hyper: Hyper, index: Array) -> tuple[Array, Array, Array]:
        of_round = stage_key(key, index, "exchanges")
        cohort = call("participation", "draw(key, weights, index)", draw_cohort, hyper, weights, of_round, index)
        if problem := _no_cohort(cohort, places):
            raise ConfigError("participation", participation, problem)
        known = jnp.clip(cohort[0], 0, n - 1)
        if not works:
            return *cohort, jnp.ones_like(known)
        of_work = hyper.work.at(index), of_round, known, sizes[known], batch
        steps = call("work", "draw(key, ids, sizes, batch_size)", draw_steps, *of_work)
        if getattr(steps, "shape", None) != known.shape or steps.dtype.kind not in "iu":
            raise ConfigError(
                "work", work, f"draw gives no array of whole numbers {list(known.shape)}, one for each id"
            )
        return *cohort, steps

    look = jax.jit(lambda hyper, indices: jax.lax.map(functools.partial(drawn, hyper), indices))
    parts = Hyper(None, work, participation, None)  # type: ignore[arg-type]
    all_drawn = map(np.asarray, look(parts, jnp.arange(min(rounds, _DRAWN), dtype=jnp.int32)))
    largest = work.largest(census.sizes, batch) if works else 1
    for r, (ids, of_clients, steps) in enumerate(zip(*all_drawn, strict=True)):
        if problem := _cohort_problem(ids, of_clients, n):
            raise ConfigError("participation", participation, f"in round {r} {problem}")
        if (bad := steps[(ids < n) & ((steps < 1) | (steps > largest))]).size:
            hint = f"there have to be 1 to largest(sizes, batch_size), {largest}"
            raise ConfigError("work", work, f"in round {r} a client takes {bad[0]} local steps: {hint}")


def _is_own(part: Settings) -> bool:
    """Whether a part of a run, or one that it is made of, is of a class of the user's."""
    inner = (each for each in vars(part).values() if isinstance(each, Settings))
    return not of_a_library(type(part).__module__) or any(map(_is_own, inner))


def _no_cohort(drawn: Unknown, places: int) -> str:
    """Why something that was drawn is no cohort; empty if it is one."""
    arrays = drawn if isinstance(drawn, tuple) else ()
    shapes = {getattr(each, "shape", None) for each in arrays}
    shape = shapes.pop() if len(arrays) == 2 and len(shapes) == 1 else None
    if shape is None or len(shape) != 1 or shape[0] > places:
        return f"draw gives no two arrays of one length, at most {places}: the clients' ids and weights"
    if drawn[0].dtype.kind not in "iu":
        return f"draw gives ids of {drawn[0].dtype}: give whole numbers, and N for an empty place"
    return ""


def _cohort_problem(ids: np.ndarray, weights: np.ndarray, n: int) -> str:
    """What is wrong with a cohort of ``n`` clients; empty if nothing is."""
    there = ids < n
    if len(strange := ids[(ids < 0) | (ids > n)]):
        return f"client {strange[0]} of {n} is drawn: ids are 0 to {n - 1}, and {n} is an empty place"
    if len(np.unique(ids[there])) < there.sum():
        return "a client is drawn twice: give it one place, with the sum of the weights"
    if not (np.isfinite(weights[there]) & (weights[there] >= 0)).all():
        return f"weights are {weights.tolist()}: they have to be finite, and at least 0"
    return ""
