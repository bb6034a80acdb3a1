"""Evaluation: the exact training objective, its gradient, and metrics on held-out data, block by block."""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from fedax.columns import PER_CLIENT, TRAIN, held_column, measured_names, numbers
from fedax.contract.schedule import resolve
from fedax.contract.types import Array, Number, Tree, Unknown
from fedax.contract.vector import Vector
from fedax.engine import by_client, personal
from fedax.engine.job import Job
from fedax.engine.loop import Federation, State
from fedax.engine.patience import Patience
from fedax.engine.private import is_kept, public
from fedax.errors import unknown
from fedax.metrics.base import HostMetric, Metric
from fedax.programs import compiled
from fedax.tasks.losses import each_once
from fedax.tasks.task import Task

MOST_NAMES = 100  # clients that a row of the history names


def with_objective(found: dict[str, Unknown], penalty: Number) -> dict[str, Unknown]:
    """What was measured, with F(x) + ψ(x) where there is a ψ."""
    if penalty is not None and TRAIN[0] in found:
        found["objective"] = found["train_loss"] + penalty
    return found


@compiled()
def model_after(algorithm: Unknown, server: Tree, index: Number) -> tuple[Vector, Tree]:
    """The model after ``index`` rounds, and ψ of it."""
    method = resolve(algorithm, index)
    model = method.model(server)
    return model, method.penalty(model)


@compiled(static=["task", "column", "grad_norm", "mesh"])
def of_model(
    model: Vector,
    fed: Federation,
    held: Mapping[str, Tree],
    density: Number,
    train: Array,
    *,
    task: Task,
    column: str,
    grad_norm: bool,
    mesh: Mesh | None,
) -> dict[str, Unknown]:
    """What needs no method; so that methods that are compared have one program for it.

    ``held``: part of the held-out data -> its examples; of each there are :func:`held_out` in ``held``. ``column``: as
    ``train`` of :class:`fedax.engine.job.EvaluationPlan`.
    """
    task, found = task.bound(fed.frozen), dict[str, Unknown]()
    if column:
        sums = train_sums(model, fed, task=task, grad_norm=grad_norm, mesh=mesh) if train is None else train
        found[column] = sums[0]
    if grad_norm:
        gradient = Vector(sums[1])
        found["grad_norm_sq"] = gradient.dot(gradient)
    found["held"] = {part: held_out(task, model, examples, mesh) for part, examples in held.items()}
    if density is not None:
        found["density"] = sum(jnp.sum(jnp.abs(leaf) > density) for leaf in jax.tree.leaves(model.tree))
    return found


def columns(job: Job) -> list[str]:
    """What the rows of a job have besides the round and the costs."""
    return measured_names(
        job.plan.task.metrics,
        train=job.evaluation.train,
        val=job.has("val"),
        test=job.has("test"),
        unseen=job.has("unseen"),
        grad_norm=job.evaluation.grad_norm,
        objective=job.evaluation.train == TRAIN[0] and resolve(job.hyper.method, 0).penalty(job.x) is not None,
        density=job.evaluation.density is not None,
        per_client=job.evaluation.by_client,
    ) + personal.columns(job.plan.task, job.evaluation)


def check_until(job: Job) -> None:
    """Check the column by which a run ends early, where it has one.

    Raises:
        ConfigError: no number of an evaluation, or its name does not tell which way is better.
    """
    if isinstance(job.until, Patience):
        if job.until.column not in (known := numbers(columns(job))):
            raise unknown("patience.column", job.until.column, known)
        job.until.fresh(job.plan.task.metrics)


def public_columns(job: Job) -> tuple[str, ...] | None:
    """The columns of a private run that ε covers or that public data gave; ``None``: the run is not private."""
    if not is_kept(job.hyper.wire.privacy):
        return None
    return public(["round", *columns(job), "epsilon"], job.evaluation.parts, job.census.held)


def measured(
    job: Job,
    server: Tree,
    index: int,
    train: Tree = None,
    held: Mapping[str, Unknown] | None = None,
    more: Mapping[str, Unknown] = MappingProxyType({}),
) -> list[dict[str, Unknown]]:
    """The row of one job: what is measured of the model after ``index`` rounds.

    ``train_loss``, F(x); ``objective``, F(x) + ψ(x), where the method has a ψ; ``density`` and ``grad_norm_sq`` where
    asked; ``val_loss``, ``test_loss`` and the metrics of both. ``train``: the :func:`train_sums` of all data, where
    they are known; ``held``: of the parts that are at the clients :func:`held_out`, and the labels' sums; ``more``:
    figures that are made already.
    """
    model, penalty = model_after(job.hyper.method, server, index)
    about = job.evaluation
    asked = {"task": job.plan.task, "column": about.train, "grad_norm": about.grad_norm, "mesh": job.plan.mesh}
    found = with_objective(
        of_model(model, job.measured, job.evaluation.held, job.evaluation.density, train, **asked), penalty
    )
    labels = job.evaluation.labels
    for part, there in (held or {}).items():
        found["held"] = found["held"] | {part: there["figures"]}
        labels = labels | {part: there["labels"]}
    one = jax.tree.map(lambda leaf: np.asarray(leaf)[None], found)
    return rows(job, one, [labels], [{**on_host(job, model), **more}])


def rows(
    job: Job,
    found: Mapping[str, Unknown],
    labels: Sequence[Mapping[str, Unknown]],
    more: Sequence[Mapping[str, Unknown]],
) -> list[dict[str, Unknown]]:
    """The rows of jobs side by side, of which ``job`` is one.

    Args:
        found: figures, leaves [jobs, ...]; those of held-out data in ``held``.
        labels: of each job, part -> metric -> sums of the labels alone.
        more: of each job, figures that are made already.
    """
    task, size = job.plan.task, job.x.size
    table = {name: np.asarray(values, float) for name, values in found.items() if name != "held"}
    if "density" in table:
        table["density"] = table["density"] / size
    there: list[dict[str, Unknown]] = [
        {name: float(values[i]) for name, values in table.items()} for i in range(len(more))
    ]
    for i, (row, own) in enumerate(zip(there, more, strict=True)):
        for part, figures in found["held"].items():
            for name, figure in figures.items():
                row[held_column(part, name)] = _value(task, name, figure, i, labels[i][part])
        row |= own
    names = columns(job)
    # Of nodes that have held-out examples there may be none that was heard.
    return [{name: row.get(name, math.nan) for name in names} for row in there]


def _value(task: Task, name: str, figure: Tree, i: int, labels: Mapping[str, Unknown]) -> float:
    """What is shown of a figure of job ``i``: a mean as it is, of sums the metric's value."""
    metric = task.metrics.get(name)
    if not isinstance(metric, Metric):
        return float(figure[i])
    return metric.of_run(jax.tree.map(lambda leaf: leaf[i], figure), labels.get(name, ()))


def on_host(job: Job, model: Vector) -> dict[str, Unknown]:
    """What of held-out data is not made of sums on the devices: metrics on the host, and what each client has."""
    found: dict[str, Unknown] = {}
    task = job.plan.task
    special = [name for name, metric in task.metrics.items() if isinstance(metric, HostMetric)]
    for part, data in job.evaluation.parts.items():
        if special:
            for name, value in by_client.whole(task, model.tree, data, special).items():
                found[f"{part}_{name}"] = value
        if part in job.evaluation.by_client:
            for name, values in by_client.figures(task, model.tree, data).items():
                found[f"{part}_{name}{PER_CLIENT}"] = values
    return found


def excluded(exclusions: Tree) -> dict[str, Unknown]:
    """What the history says of :class:`fedax.engine.loop.Exclusions`; nothing where there can be none."""
    if not exclusions:
        return {}
    left_out = np.asarray(exclusions.left_out)
    ids = np.flatnonzero(left_out)[:MOST_NAMES].tolist()
    return {"left_out": int(left_out.sum()), "bad_clients": ids, "skipped": int(exclusions.skipped)}


def train_sums(model: Vector, fed: Federation, *, task: Task, grad_norm: bool, mesh: Mesh | None) -> tuple[Tree, ...]:
    """Σ p_i F_i(x) over the clients of ``fed`` and, where asked, its gradient."""

    task = task.bound(fed.frozen)

    def weigh(around: Tree, rows: Tree) -> Tree:
        """What examples count in F, p_i/n_i."""
        _, ends, each = around
        return each[jnp.searchsorted(ends, rows, side="right")]

    def objective(tree: Tree, batch: Tree, weights: Array) -> Tree:
        losses = task.loss(tree, batch, None)
        return jnp.sum(jnp.where(weights > 0, losses, 0) * weights.astype(losses.dtype))  # where: 0 · NaN is NaN

    around = (model.tree, fed.offsets + fed.sizes, fed.weights / fed.sizes)
    function = jax.value_and_grad(objective) if grad_norm else lambda *given: (objective(*given),)
    return _sum(lambda around, *block: function(around[0], *block), weigh, around, fed.examples, mesh)


def held_out(task: Task, model: Vector, examples: Tree, mesh: Mesh | None) -> dict[str, Unknown]:
    """Held-out examples: the means of ``loss`` and of per-example metrics, and the sums of whole-set metrics."""
    n = jax.tree.leaves(examples)[0].shape[0]

    def values(tree: Tree, batch: Tree, weights: Array) -> Tree:
        each = {name: metric for name, metric in task.metrics.items() if not isinstance(metric, Metric)}
        with each_once():
            means = {"loss": task.loss(tree, batch, None)} | {name: of(tree, batch) for name, of in each.items()}
            sums = task.metric_sums(tree, batch, (weights > 0).astype(jnp.int32))
        return {name: jnp.sum(jnp.where(weights > 0, v * weights, 0)) for name, v in means.items()} | sums

    weigh = lambda _, rows: jnp.full(rows.shape, 1 / n)  # noqa: E731
    return _sum(values, weigh, model.tree, examples, mesh, careful=True)


def _sum(
    f: Callable[..., Tree],
    weigh: Callable[..., Tree],
    around: Tree,
    examples: Tree,
    mesh: Mesh | None,
    careful: bool = False,
) -> Tree:
    """Σ over blocks of ``f(around, block of examples, their weights)``; rows beyond the end have weight 0.

    ``weigh(around, rows)`` gives weights. With a mesh, every device has everything and takes its share of the blocks.
    ``careful``: with what rounding loses from block to block added in the end (Kahan 1965).
    """
    n = jax.tree.leaves(examples)[0].shape[0]

    def of_first(some: Tree) -> Tree:
        return f(around, some, weigh(around, jnp.arange(jax.tree.leaves(some)[0].shape[0])))

    block = by_client.at_a_time(of_first, examples)
    if block == n:
        return f(around, examples, weigh(around, jnp.arange(n)))
    blocks = -(-n // block)

    def some(first: Number, step: int, around: Tree, examples: Tree) -> Tree:
        def part(i: Number) -> Tree:
            rows = i * block + jnp.arange(block)
            known = jnp.minimum(rows, n - 1)
            weights = jnp.where(rows < n, weigh(around, known), 0)
            return f(around, jax.tree.map(lambda leaf: leaf[known], examples), weights)

        zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(part, 0))
        last = -(-blocks // step)
        if careful:
            more = lambda i, so_far: _added(so_far[0], so_far[1], part(first + i * step))  # noqa: E731
            return jax.lax.fori_loop(0, last, more, (zero, zero))[0]
        add = lambda i, total: jax.tree.map(jnp.add, total, part(first + i * step))  # noqa: E731
        return jax.lax.fori_loop(0, last, add, zero)

    if mesh is None:
        return some(0, 1, around, examples)
    (axis,) = mesh.axis_names

    def share(around: Tree, examples: Tree) -> Tree:
        return jax.lax.psum(some(jax.lax.axis_index(axis), mesh.size, around, examples), axis)

    return jax.shard_map(share, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)(around, examples)


def _added(total: Tree, excess: Tree, more: Tree) -> tuple[Tree, Tree]:
    """A sum with one more term, and by how much it is larger than it should be."""

    def one(total: Array, excess: Array, more: Array) -> tuple[Array, Array]:
        if not jnp.issubdtype(total.dtype, jnp.floating):
            return total + more, excess
        due = more - excess
        new = total + due
        return new, (new - total) - due

    leaves, form = jax.tree.flatten(total)
    pairs = [one(*each) for each in zip(leaves, jax.tree.leaves(excess), jax.tree.leaves(more), strict=True)]
    return jax.tree.unflatten(form, [new for new, _ in pairs]), jax.tree.unflatten(form, [lost for _, lost in pairs])


class OneJob:
    """What programs of one job have in common."""

    def __init__(self, job: Job):
        self.job = job

    def measure(self, state: State, index: int) -> list[dict[str, Unknown]]:
        """The row after ``index`` rounds."""
        return measured(self.job, state.server, index, more=personal.measured(self.job, state, index))

    def exclusions(self, state: State) -> list[Tree]:
        """How often uploads were left out so far."""
        return [state.exclusions]

    def outcome(self, state: State, index: int, which: int) -> tuple[State | None, Tree]:
        """What the run keeps: the state, and the model."""
        return state, self.job.delivered(model_after(self.job.hyper.method, state.server, index)[0])

    def times(self, which: int) -> Unknown:
        """Rounds follow one another."""
        return None

    def pace(self, index: int, which: int) -> dict[str, Unknown]:
        """No answer is late where the server waits for all clients of a round."""
        return {}

    def traffic(self) -> dict[str, Unknown]:
        """Nothing goes over a network to a client of a simulation."""
        return {}
