"""Evaluation: the exact training objective, its gradient, and metrics on held-out data, block by block."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from fedax.columns import measured_names
from fedax.contract.schedule import resolve
from fedax.contract.types import Array, Number, Tree, Unknown
from fedax.contract.vector import Vector
from fedax.engine.loop import Federation
from fedax.programs import compiled
from fedax.tasks.task import Task

MOST_NAMES = 100  # clients that a row of the history names
_BLOCK_ELEMENTS = 2**19  # numbers of input that are evaluated at a time


def with_objective(found: dict[str, Unknown], penalty: Number) -> dict[str, Unknown]:
    """What was measured, with F(x) + ψ(x) where there is a ψ."""
    if penalty is not None:
        found["objective"] = found["train_loss"] + penalty
    return found


@compiled()
def model_after(algorithm: Unknown, server: Tree, index: Number) -> tuple[Vector, Tree]:
    """The model after ``index`` rounds, and ψ of it."""
    method = resolve(algorithm, index)
    model = method.model(server)
    return model, method.penalty(model)


@compiled(static=["task", "grad_norm", "mesh"])
def of_model(
    model: Vector,
    fed: Federation,
    test: Tree,
    density: Number,
    train: Array,
    *,
    task: Task,
    grad_norm: bool,
    mesh: Mesh | None,
) -> dict[str, Unknown]:
    """What needs no method; so that methods that are compared have one program for it."""
    task = task.bound(fed.frozen)
    sums = train_sums(model, fed, task=task, grad_norm=grad_norm, mesh=mesh) if train is None else train
    found = {"train_loss": sums[0]}
    if grad_norm:
        gradient = Vector(sums[1])
        found["grad_norm_sq"] = gradient.dot(gradient)
    if test is not None:
        found |= {f"test_{name}": value for name, value in test_means(task, model, test, mesh).items()}
    if density is not None:
        found["density"] = sum(jnp.sum(jnp.abs(leaf) > density) for leaf in jax.tree.leaves(model.tree))
    return found


def columns(job: Unknown) -> list[str]:
    """What the rows of a job have besides the round and the costs."""
    return measured_names(
        job.plan.task.metrics,
        test=job.tested,
        grad_norm=job.grad_norm,
        objective=resolve(job.hyper.method, 0).penalty(job.x) is not None,
        density=job.density is not None,
    )


def measured(
    job: Unknown, server: Tree, index: int, train: Array = None, test: Mapping[str, Unknown] | None = None
) -> list[dict[str, Unknown]]:
    """The row of one job: what is measured of the model after ``index`` rounds.

    ``train_loss``, F(x); ``objective``, F(x) + ψ(x), where the method has a ψ; ``density`` and ``grad_norm_sq`` where
    asked; ``test_loss`` and ``test_<metric>`` of held-out data. ``train``: the :func:`train_sums` of all data, where
    they are known; ``test``: the same of means over held-out data that are at the clients.
    """
    model, penalty = model_after(job.hyper.method, server, index)
    asked = {"task": job.plan.task, "grad_norm": job.grad_norm, "mesh": job.plan.mesh}
    found = of_model(model, job.fed, job.test, job.density, train, **asked) | dict(test or {})
    return rows(job.plan.task, with_objective(found, penalty), job.x.size)


def excluded(exclusions: Tree) -> dict[str, Unknown]:
    """What the history says of :class:`fedax.engine.loop.Exclusions`; nothing where there can be none."""
    if not exclusions:
        return {}
    left_out = np.asarray(exclusions.left_out)
    ids = np.flatnonzero(left_out)[:MOST_NAMES].tolist()
    return {"left_out": int(left_out.sum()), "bad_clients": ids, "skipped": int(exclusions.skipped)}


def rows(task: Task, found: Mapping[str, Unknown], size: int) -> list[dict[str, Unknown]]:
    """The rows of one job, or of several whose figures have an axis; ``size``: of the model.

    What a compiled function returns is sorted by name, and density a count.
    """
    names = [name for name in measured_names(task.metrics) if name in found]
    columns = [np.ravel(np.asarray(found[name], float) / (size if name == "density" else 1)).tolist() for name in names]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def train_sums(model: Vector, fed: Federation, *, task: Task, grad_norm: bool, mesh: Mesh | None) -> tuple[Tree, ...]:
    """Σ p_i F_i(x) over the clients of ``fed`` and, where asked, its gradient."""

    def weigh(around: Tree, rows: Tree) -> Tree:
        """What examples count in F, p_i/n_i."""
        _, ends, each = around
        return each[jnp.searchsorted(ends, rows, side="right")]

    def objective(tree: Tree, batch: Tree, weights: Array) -> Tree:
        losses = task.loss(tree, batch, None)
        return jnp.sum(jnp.where(weights > 0, losses, 0) * weights.astype(losses.dtype))  # where: 0 · NaN is NaN

    around = (model.tree, fed.offsets + fed.sizes, fed.weights / fed.sizes)
    function = jax.value_and_grad(objective) if grad_norm else lambda *given: (objective(*given),)
    found: tuple[Tree, ...] = _sum(
        lambda around, *block: function(around[0], *block), weigh, around, fed.examples, mesh
    )
    return found


def test_means(task: Task, model: Vector, test: Tree, mesh: Mesh | None) -> dict[str, Unknown]:
    """Means over held-out data, ``loss`` and the task's metrics."""
    n = jax.tree.leaves(test)[0].shape[0]

    def values(tree: Tree, batch: Tree, weights: Array) -> Tree:
        columns = {"loss": task.loss(tree, batch, None)}
        columns |= {name: metric(tree, batch) for name, metric in task.metrics.items()}
        return {name: jnp.sum(jnp.where(weights > 0, v * weights, 0)) for name, v in columns.items()}

    found: dict[str, Unknown] = _sum(values, lambda _, rows: jnp.full(rows.shape, 1 / n), model.tree, test, mesh)
    return found


def _sum(f: Callable[..., Tree], weigh: Callable[..., Tree], around: Tree, examples: Tree, mesh: Mesh | None) -> Tree:
    """Σ over blocks of ``f(around, block of examples, their weights)``; rows beyond the end have weight 0.

    ``weigh(around, rows)`` gives weights. With a mesh, every device has everything and takes its share of the blocks.
    """
    leaves = jax.tree.leaves(examples)
    n = leaves[0].shape[0]
    widest = max(int(np.prod(leaf.shape[1:])) for leaf in leaves)
    block = min(n, max(16, min(4096, _BLOCK_ELEMENTS // max(widest, 1))))
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
        add = lambda i, total: jax.tree.map(jnp.add, total, part(first + i * step))  # noqa: E731
        return jax.lax.fori_loop(0, -(-blocks // step), add, zero)

    if mesh is None:
        return some(0, 1, around, examples)
    (axis,) = mesh.axis_names

    def share(around: Tree, examples: Tree) -> Tree:
        return jax.lax.psum(some(jax.lax.axis_index(axis), mesh.size, around, examples), axis)

    return jax.shard_map(share, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)(around, examples)
