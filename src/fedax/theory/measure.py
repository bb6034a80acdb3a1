"""The constants of the theorems, measured at given models: curvature, noise, dissimilarity, drift.

| here | symbol | how |
|---|---|---|
| smoothness | L | largest absolute eigenvalue of the clients' Hessians, by Krylov spaces of Hessian-vector products |
| variance | σ_i² | E‖g − ∇F_i‖² of a minibatch's g, exactly, from the gradients of all single examples |
| dissimilarity | ζ² | Σ p_i‖∇F_i − ∇F‖² |
| drift, move | | (Σ p_i‖y_i − ȳ‖²)^½ and ‖ȳ − x‖ after a round's local steps, ȳ = Σ p_i y_i |

Units are those of :mod:`fedax.theory.nova`; drift and move have those of the model.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fedax.data.federated import FederatedData
from fedax.errors import ConfigError
from fedax.local import Solver
from fedax.numbers import check_count
from fedax.oracle import Oracle
from fedax.tasks.task import Task
from fedax.vector import Vector

_NUMBERS = 2**26  # that a Krylov basis, or the gradients of single examples, may hold at a time
_COST = 5e8  # examples × parameters up to which every client's curvature is measured
_ROUNDS = 4  # of local steps, from which drift is measured
_PRODUCTS = 200  # Hessian-vector products after which an eigenvalue is given up


@dataclass(frozen=True)
class Point:
    """What was measured at one model.

    Attributes:
        loss: F.
        gradient: ‖∇F‖².
        surrogate_gradient: ‖Σ w_i∇F_i‖²; that of F where w is p, or not known.
        client_gradients: Σ w_i‖∇F_i‖².
        dissimilarity: ζ² = Σ p_i‖∇F_i − ∇F‖².
        smoothness: L, the largest over the clients looked at.
        objective_smoothness: L of F; ``None`` where not all clients are looked at.
        variance, largest_variance: Σ p_iσ_i² and max_i σ_i².
        drift, move: root mean square distance of the local models from their mean, and how far the mean moves (also
            the root of a mean square), in four rounds from here; ``None`` of a method without local steps.
        drift_noise, move_noise: of both the part that comes of the minibatches: the squares of drift and move are this
            squared, on average, and what they would be without noise. An estimate, from these rounds.
    """

    loss: float
    gradient: float
    surrogate_gradient: float
    client_gradients: float
    dissimilarity: float
    smoothness: float
    objective_smoothness: float | None
    variance: float
    largest_variance: float
    drift: float | None = None
    drift_noise: float | None = None
    move: float | None = None
    move_noise: float | None = None


class Bench:
    """A problem whose constants are measured at one model after the other.

    Args:
        task, data, batch_size: as of :func:`fedax.simulate`; ``epochs``: whether minibatches run through permutations.
        steps: [draws, N] local steps; drift is that of the first draw.
        weights: [N] w of the surrogate objective.
        solver: the clients' local steps; ``None`` where there are none.
        sample: clients whose curvature is measured; ``None``: as many as examples × parameters ≤ 5·10⁸ lets.
        seed, tolerance: as of :func:`fedax.theory.diagnose`.

    Attributes:
        seen: the clients whose curvature is measured.
        unconverged: eigenvalues that were given up.
    """

    def __init__(
        self, task: Task, data: FederatedData, *, batch_size: int | None, epochs: bool, steps: np.ndarray,
        weights: np.ndarray, solver: Solver | None, sample: int | None, seed: int, tolerance: float,
    ):  # fmt: skip
        self.task, self.data, self.batch_size, self.epochs, self.steps = task, data, batch_size, epochs, steps
        self.weights, self.solver = weights, solver
        self.key, self.tolerance, self.unconverged = jax.random.key(seed), tolerance, 0
        parameters = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(jax.eval_shape(task.init, self.key)))
        self.seen = _seen(data.sizes, parameters, sample)
        self._examples = jax.tree.map(jnp.asarray, data.examples)
        self._ends = data.offsets + data.sizes
        self._share = jnp.asarray(np.repeat(data.weights / data.sizes, data.sizes), float)  # of an example in F
        self._own = jnp.asarray(np.repeat(1 / data.sizes, data.sizes), float)  # in F_i
        widest = max(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(data.examples))
        self._block = min(data.max_size, max(16, min(4096, 2**19 // max(widest, 1))))
        self._singles = max(1, min(self._block, _NUMBERS // parameters))
        self._batch_share = np.array([
            batch_variance(n, batch_size, tau, epochs=epochs)
            for n, tau in zip(data.sizes.tolist(), steps.max(0).tolist(), strict=True)
        ])  # fmt: skip

    def measure(self, x: Vector) -> Point:
        """Everything at one model; sums over clients are in float64."""
        p, w = self.data.weights, self.weights
        N, d = self.data.num_clients, x.size
        mean, surrogate, squares, variances, loss = np.zeros(d), np.zeros(d), np.zeros(N), np.zeros(N), 0.0
        for i in range(N):
            rows = self.data.offsets[i], self._ends[i]
            value, gradient = _gradient(self.task, x, self._examples, self._own, *rows, block=self._block)
            if self._batch_share[i]:
                spread = _spread(self.task, x, gradient, self._examples, *rows, block=self._singles)
                variances[i] = self._batch_share[i] * float(spread) / self.data.sizes[i]
            g = np.asarray(gradient, np.float64)
            squares[i], loss = g @ g, loss + p[i] * float(value)
            mean, surrogate = mean + p[i] * g, surrogate + w[i] * g
        everyone = len(self.seen) == N
        return Point(
            loss=float(loss),
            gradient=float(mean @ mean),
            surrogate_gradient=float(surrogate @ surrogate),
            client_gradients=float(w @ squares),
            dissimilarity=max(float(p @ squares - mean @ mean), 0.0),
            smoothness=max(self._curvature(x, self.data.offsets[i], self._ends[i], self._own) for i in self.seen),
            objective_smoothness=self._curvature(x, 0, self.data.num_examples, self._share) if everyone else None,
            variance=float(p @ variances),
            largest_variance=float(variances.max()),
            **self._drift(x),
        )

    def _curvature(self, x: Vector, start: Any, end: Any, weights: Any) -> float:
        flat, unravel = ravel_pytree(x.tree)

        def product(v: np.ndarray) -> np.ndarray:
            direction = unravel(jnp.asarray(v, flat.dtype))
            image = _hessian_vector(self.task, x, direction, self._examples, weights, start, end, block=self._block)
            return np.asarray(image, np.float64)

        value, converged = largest_eigenvalue(product, np.random.default_rng(0).normal(size=x.size), self.tolerance)
        self.unconverged += not converged
        return value

    def _drift(self, x: Vector) -> dict[str, float]:
        """Several rounds' local steps from ``x``, with independent minibatches, whose spread is the noise."""
        if self.solver is None:
            return {}
        p, tau, rounds = self.data.weights, self.steps[0], _ROUNDS if self._batch_share.any() else 1
        means, square, noise = np.zeros((rounds, x.size)), 0.0, 0.0
        for i in range(self.data.num_clients):
            place = [jnp.int32(number) for number in (self.data.offsets[i], self.data.sizes[i], tau[i])]
            keys = jax.random.split(jax.random.fold_in(self.key, i), rounds)
            changes = np.stack([
                _local(
                    self.task, self.solver, x, self._examples, *place, key, max_size=self.data.max_size,
                    batch_size=self.batch_size, epochs=self.epochs,
                )
                for key in keys
            ]).astype(np.float64)  # fmt: skip
            means += p[i] * changes
            square += p[i] * float(np.sum(changes**2)) / rounds
            noise += p[i] * (1 - p[i]) * _variance(changes)
        move = float(np.sum(means**2)) / rounds
        return {
            "drift": math.sqrt(max(square - move, 0.0)),
            "drift_noise": math.sqrt(noise),
            "move": math.sqrt(move),
            "move_noise": math.sqrt(_variance(means)),
        }


def _variance(vectors: np.ndarray) -> float:
    """E‖v − E v‖², of a sample [n, d]; 0 of a single one."""
    return float(np.sum((vectors - vectors.mean(0)) ** 2)) / max(len(vectors) - 1, 1)


def batch_variance(size: int, batch_size: int | None, steps: int, *, epochs: bool) -> float:
    """E‖g − ∇F_i‖² of a minibatch's gradient g over the mean of ‖∇f_j − ∇F_i‖² of the n single examples.

    1/B for independent draws; 0 for full gradients. Minibatches that run through permutations consist of pieces of b
    examples, each drawn without replacement in a pass of its own: Σ b(n − b)/(B²(n − 1)), of which this is the mean
    over the round's minibatches; (n − B)/(B(n − 1)) where none runs over the end of a pass.

    Args:
        size, batch_size, steps: n, B (``None``: all of the client's data) and τ.
        epochs: whether minibatches run through permutations.

    Example:
        >>> batch_variance(9, 3, 3, epochs=False), batch_variance(9, 3, 3, epochs=True)
        (0.333..., 0.25)
    """
    n, B = size, batch_size
    if B is None or n == 1:
        return 0.0
    if not epochs:
        return 1 / B
    first = np.minimum(B, n - np.arange(steps) * B % n)
    last = (B - first) % n  # between the two are whole passes, which have no variance
    return float(np.mean(first * (n - first) + last * (n - last)) / (B * B * (n - 1)))


def dissimilarity_line(mean_gradients: Sequence[float], client_gradients: Sequence[float]) -> tuple[float, float]:
    """β² ≥ 1 and κ² ≥ 0 with b ≤ β²a + κ² at all points, a = ‖Σ w_i∇F_i‖² and b = Σ w_i‖∇F_i‖².

    Of all such lines the lowest at the mean of a, and of several the one with the least β²: of one point, β² = 1 and
    κ² = b − a. Both are lower bounds of constants that hold everywhere (Wang et al. 2020, Assumption 3).

    Args:
        mean_gradients, client_gradients: a and b, a number ≥ 0 for each point.

    Example:
        >>> dissimilarity_line([1.0, 3.0], [4.0, 8.0])
        (2.0, 2.0)
    """
    a, b = np.asarray(mean_gradients, float), np.asarray(client_gradients, float)

    def constant(factor: float) -> float:
        return max(float(np.max(b - factor * a)), 0.0)

    def at_mean(factor: float) -> float:
        return factor * float(a.mean()) + constant(factor)

    # The lowest line goes through two points, or through one with β² = 1 or κ² = 0.
    slopes = [(b[j] - b[i]) / (a[j] - a[i]) for i in range(len(a)) for j in range(i) if a[i] != a[j]]
    slopes += [float(np.max(b[a > 0] / a[a > 0]))] if (a > 0).any() else []
    candidates = sorted({1.0, *(float(slope) for slope in slopes if slope > 1)})
    least = min(map(at_mean, candidates))
    factor = next(f for f in candidates if at_mean(f) <= least * (1 + 1e-12))
    return factor, constant(factor)


def largest_eigenvalue(
    product: Callable[[np.ndarray], np.ndarray], start: np.ndarray, tolerance: float = 1e-3, most: int = _PRODUCTS
) -> tuple[float, bool]:
    """max |λ| of a symmetric operator: power iteration, restarted from the best vector of a Krylov space (Lanczos).

    Close eigenvalues do no harm: the value is right once the residual ‖Av − θv‖ is below tolerance·|θ|, long before
    the vector is.

    Args:
        product: v -> Av, both [d] in float64.
        start: [d], not orthogonal to what is sought; random.
        tolerance: in (0, 1).
        most: products at most.

    Returns:
        |θ|, and whether the tolerance was reached.

    Example:
        >>> A = np.array([1.0, -3.0, 2.999])
        >>> value, reached = largest_eigenvalue(lambda v: A * v, np.ones(3))
        >>> round(value, 9), reached
        (3.0, True)
    """
    d = len(start)
    width = min(d, max(5, min(24, _NUMBERS // d)))
    v, theta, used = start, 0.0, 0
    while used < most:
        basis, alphas, betas = np.empty((width, d)), list[float](), list[float]()
        basis[0] = v / np.linalg.norm(v)
        for k in range(min(width, most - used)):
            q, image, used = basis[: k + 1], product(basis[k]), used + 1
            if not np.isfinite(image).all():
                return math.nan, False
            alphas.append(float(image @ basis[k]))
            for _ in range(2):  # once leaves rounding errors that grow
                image = image - (q @ image) @ q
            values, vectors = np.linalg.eigh(np.diag(alphas) + np.diag(betas, 1) + np.diag(betas, -1))
            best, beta = int(np.argmax(np.abs(values))), float(np.linalg.norm(image))
            theta = abs(float(values[best]))
            if beta * abs(vectors[-1, best]) <= tolerance * theta or k + 1 == d:
                return theta, True
            if k + 1 < width:
                basis[k + 1] = image / beta
                betas.append(beta)
        v = vectors[:, best] @ q
    return theta, False


def accumulation_vectors(solver: Solver, lengths: Any) -> dict[int, np.ndarray]:
    """τ -> a for many τ: those of :func:`fedax.theory.accumulation_vector`, from one program.

    The impulses of all steps run side by side through the longest round, which is looked at after each τ.

    Args:
        solver: linear, and with numbers in the place of its schedules.
        lengths: the τ ≥ 1.

    Example:
        >>> from fedax.local import SGD
        >>> {t: a.round(9).tolist() for t, a in accumulation_vectors(SGD(0.1, momentum=0.5), [1, 3]).items()}
        {1: [1.0], 3: [1.75, 1.5, 1.0]}
    """
    ends = sorted({int(t) for t in lengths})
    with jax.enable_x64(True):
        x = Vector(jnp.zeros(ends[-1]))
        state, found = (x, solver.init(x)), {}
        for start, end in zip([0, *ends], ends, strict=False):
            state = _impulses(solver, x, state, start, end)
            found[end] = -np.asarray(state[0].tree)[:end] / float(solver.rate())
    return found


@jax.jit
def _impulses(solver: Solver, x: Vector, state: Any, start: Any, end: Any) -> Any:
    """Steps start … end − 1 of a model whose k-th component has a gradient, 1, in step k alone."""

    def step(k: Any, state: Any) -> Any:
        y, buffer = state
        return solver.step(y, buffer, x.map(lambda leaf: (jnp.arange(len(leaf)) == k).astype(leaf.dtype)), k, x)

    return jax.lax.fori_loop(start, end, step, state)


def _seen(sizes: np.ndarray, parameters: int, sample: int | None) -> np.ndarray:
    """The clients whose curvature is measured, drawn at random where that is not all."""
    order = np.random.default_rng(0).permutation(len(sizes))
    if sample is None:
        sample = max(1, int(np.sum(np.cumsum(sizes[order]) * parameters <= _COST)))
    elif check_count("sample", sample) > len(sizes):
        raise ConfigError("sample", sample, f"there are {len(sizes)} clients")
    return np.sort(order[:sample])


def _blocks(start: Any, end: Any, block: int, part: Callable[[Any, Any], Any]) -> Any:
    """Σ of ``part(rows, there)`` over blocks of the rows start … end − 1."""

    def one(b: Any) -> Any:
        rows = start + b * block + jnp.arange(block)
        there = rows < end
        return part(jnp.where(there, rows, start), there)

    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(one, 0))
    add = lambda b, total: jax.tree.map(jnp.add, total, one(b))  # noqa: E731
    return jax.lax.fori_loop(0, -(-(end - start) // block), add, zero)


def _weighted(task: Task, tree: Any, examples: Any, weights: Any, start: Any, end: Any, block: int) -> Any:
    """The weighted sum of the rows' losses, and its gradient."""

    def part(rows: Any, there: Any) -> Any:
        def objective(tree: Any) -> Any:
            losses = task.loss(tree, jax.tree.map(lambda leaf: leaf[rows], examples), None)
            return jnp.sum(jnp.where(there, losses * weights[rows].astype(losses.dtype), 0))

        return jax.value_and_grad(objective)(tree)

    return _blocks(start, end, block, part)


@functools.partial(jax.jit, static_argnames=("task", "block"))
def _gradient(task: Task, x: Vector, examples: Any, weights: Any, start: Any, end: Any, *, block: int) -> Any:
    value, gradient = _weighted(task, x.tree, examples, weights, start, end, block)
    return value, ravel_pytree(gradient)[0]


@functools.partial(jax.jit, static_argnames=("task", "block"))
def _hessian_vector(
    task: Task, x: Vector, v: Any, examples: Any, weights: Any, start: Any, end: Any, *, block: int
) -> jax.Array:
    gradient = lambda tree: _weighted(task, tree, examples, weights, start, end, block)[1]  # noqa: E731
    return ravel_pytree(jax.jvp(gradient, (x.tree,), (v,))[1])[0]


@functools.partial(jax.jit, static_argnames=("task", "block"))
def _spread(task: Task, x: Vector, mean: Any, examples: Any, start: Any, end: Any, *, block: int) -> jax.Array:
    """Σ_j ‖∇f_j − mean‖² over the rows."""

    def single(row: Any) -> Any:
        batch = jax.tree.map(lambda leaf: leaf[row][None], examples)
        gradient = jax.grad(lambda tree: task.loss(tree, batch, None)[0])(x.tree)
        return jnp.sum((ravel_pytree(gradient)[0] - mean) ** 2)

    return _blocks(start, end, block, lambda rows, there: jnp.sum(jnp.where(there, jax.vmap(single)(rows), 0)))


@functools.partial(jax.jit, static_argnames=("task", "max_size", "batch_size", "epochs"))
def _local(
    task: Task, solver: Solver, x: Vector, examples: Any, offset: Any, size: Any, steps: Any, key: Any,
    *, max_size: int, batch_size: int | None, epochs: bool,
) -> jax.Array:  # fmt: skip
    """One client's change of the model in a round."""
    oracle = Oracle(
        task, examples, offset=offset, size=size, max_size=max_size, batch_size=batch_size, epochs=epochs, steps=steps,
        round=0, start=0, key=key, round_key=key,
    )  # fmt: skip
    return ravel_pytree((solver.run(x, oracle) - x).tree)[0]
