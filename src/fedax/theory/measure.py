"""Measures the constants of the theorems at given models: curvature, noise, dissimilarity, the update of a round.

| here | symbol | how |
|---|---|---|
| smoothness | L | largest absolute eigenvalue of the clients' Hessians, by Krylov spaces of Hessian-vector products |
| variance | σ_i² | E‖g − ∇F_i‖² of a minibatch's g, exactly, from the gradients of all single examples |
| dissimilarity | ζ² | Σ p_i‖∇F_i − ∇F‖² |
| move | D | the mean update of a round, Σ c_iΔ_i, averaged over several rounds from the same model |
| bias | D − C | what drift adds to D: C is the same rounds with ∇F̃ − ∇F_i added to every gradient |
| noise, cohort_noise | V | E‖· − D‖² of a round's update, of minibatches and random work, and of who is drawn |
| costs | | each of these in units of F: see docs/theory.md, "What keeps a run from the optimum" |

Units are those of :mod:`fedax.theory.nova`; move, bias and noise have those of the model.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fedax.contract.local import Solver
from fedax.contract.oracle import Oracle
from fedax.contract.vector import Vector
from fedax.data.federated import FederatedData
from fedax.engine.by_client import sums
from fedax.errors import ConfigError
from fedax.numbers import check_count
from fedax.programs import compiled
from fedax.tasks.task import Task

_NUMBERS = 2**26  # the most numbers in a Krylov basis, or in the gradients of single examples, at a time
_COST = 5e8  # up to this many examples × parameters every client's curvature is measured
_ROUNDS = 4  # rounds that are simulated from one model; one if gradients are exact and work is fixed
_STUDENT = 3.18  # Student's t of 95 %, for _ROUNDS − 1 degrees of freedom
_WIDTH = 12  # dimension of a Krylov space before it is restarted
_PRODUCTS = 200  # the most Hessian-vector products for an eigenvalue
_GAIN_PRODUCTS = 20  # the most products for a cost; only one if examples × parameters are more than _COST


@dataclass(frozen=True)
class Point:
    """The measurements at one model.

    Attributes:
        loss: F.
        gradient: ‖∇F‖².
        surrogate_gradient: ‖Σ w_i∇F_i‖²; that of F where w is p, or not known.
        client_gradients: Σ w_i‖∇F_i‖².
        dissimilarity: ζ² = Σ p_i‖∇F_i − ∇F‖².
        smoothness: L, the largest over the clients looked at.
        objective_smoothness: L of F; ``None`` where not all clients are looked at.
        variance, largest_variance: Σ p_iσ_i² and max_i σ_i².
        move: ‖D‖, the length of the mean update of a round, without noise. ``None``, as all that follows, for a
            method without local steps.
        bias, bias_range: ‖D − C‖, the effect of drift on it, and its 95 % interval; ``None`` if the local solver is
            not linear; 0 if every client takes one step.
        free_move: ‖C‖, the same without drift.
        descent, free_descent: −⟨∇F, D⟩ and −⟨∇F, C⟩: by how much the mean update lowers F, to first order, and by how
            much it would without drift.
        noise, cohort_noise: root mean square of a round's update about D, the part of minibatches and random work,
            and the part of the sampled clients.
        free_cohort_noise: the latter with corrected steps: what remains with fresh control variates.
        left: ½∇FᵀH⁻¹∇F, what a run at this model can still gain; in units of F, as all that follows.
        inconsistency_cost: ½cᵀH⁻¹c, c = ∇F̃ − ∇F: how far above the optimum its other objective keeps it.
        drift_cost, drift_cost_range: the same of drift, about ½bᵀH⁻¹b with b = (D − C)/(ητ_eff); of ``bias_range``.
        noise_cost, cohort_cost, free_cohort_cost: V/(4ητ_eff) of the three noises: how far above the optimum they keep
            a run whose lr does not decay.
        arrival_cost, work_cost: as ``inconsistency_cost``, of whose answers come and count how much alone, and of
            unequal local steps alone; ``None`` where the server waits for all clients of a round.
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
    left: float
    inconsistency_cost: float
    move: float | None = None
    bias: float | None = None
    bias_range: tuple[float, float] | None = None
    free_move: float | None = None
    descent: float | None = None
    free_descent: float | None = None
    noise: float | None = None
    cohort_noise: float | None = None
    free_cohort_noise: float | None = None
    drift_cost: float | None = None
    drift_cost_range: tuple[float, float] | None = None
    noise_cost: float | None = None
    cohort_cost: float | None = None
    free_cohort_cost: float | None = None
    arrival_cost: float | None = None
    work_cost: float | None = None


class Rounds(NamedTuple):
    """How a round combines the clients' changes Δ_i into one update; one row for each draw of random work.

    Attributes:
        steps: [draws, N] τ_i.
        shares: [draws, N] c_i of the mean update Σ c_iΔ_i.
        weights: [draws, N] w_i of the surrogate whose gradient it follows, Σ c_iΔ_i ≈ −ητ_eff Σ w_i∇F_i; ``None``
            where the solver is not linear.
        length: ητ_eff, the mean over the draws.
        ids, ratios: [cohorts, S] the sampled clients, and ω_i/E ω_i; an id of N is an empty place. ``None``: all
            clients take part in every round.
    """

    steps: np.ndarray
    shares: np.ndarray
    weights: np.ndarray | None
    length: float
    ids: np.ndarray | None = None
    ratios: np.ndarray | None = None


class Bench:
    """Measures the constants of a problem, one model after another.

    Args:
        task, data, batch_size: as in :func:`fedax.simulate`; ``epochs``: whether minibatches run through permutations.
        rounds: how updates are computed.
        weights: [N] w of the surrogate objective.
        others: name of a cost in :class:`Point` -> [N] the weights of another surrogate, whose cost it is.
        solver: of the clients' local steps; ``None``: no local steps.
        sample: the number of clients whose curvature is measured; ``None``: all with examples × parameters ≤ 5·10⁸.
        seed, tolerance: as in :func:`fedax.theory.diagnose`.

    Attributes:
        seen: the clients whose curvature is measured.
        unconverged: the number of eigenvalues that did not converge.
        losses: [N] F_i at each measured model.
    """

    def __init__(
        self, task: Task, data: FederatedData, *, batch_size: int | None, epochs: bool, rounds: Rounds,
        weights: np.ndarray, solver: Solver | None, sample: int | None, seed: int, tolerance: float,
        others: Mapping[str, np.ndarray],
    ):  # fmt: skip
        self.task, self.data, self.batch_size, self.epochs, self.rounds = task, data, batch_size, epochs, rounds
        self.weights, self.solver, self.others = weights, solver, others
        self.key, self.tolerance, self.unconverged = jax.random.key(seed), tolerance, 0
        self.losses: list[np.ndarray] = []
        parameters = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(jax.eval_shape(task.init, self.key)))
        self.seen = _seen(data.sizes, parameters, sample)
        self._products = _GAIN_PRODUCTS if data.num_examples * parameters <= _COST else 1
        self._examples = jax.tree.map(jnp.asarray, data.examples)
        self._ends = data.offsets + data.sizes
        self._share = jnp.asarray(np.repeat(data.weights / data.sizes, data.sizes), float)  # weight of an example in F
        self._share_of_client = jnp.asarray(np.repeat(1 / data.sizes, data.sizes), float)  # weight of an example in F_i
        widest = max(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(data.examples))
        self._block = min(data.max_size, max(16, min(4096, 2**19 // max(widest, 1))))
        self._singles = max(1, min(self._block, _NUMBERS // parameters))
        self._batch_share = np.array([
            batch_variance(n, batch_size, tau, epochs=epochs)
            for n, tau in zip(data.sizes.tolist(), rounds.steps.max(0).tolist(), strict=True)
        ])  # fmt: skip

    def measure(self, x: Vector) -> Point:
        """Measure everything at one model; sums over clients are in float64."""
        p, w = self.data.weights, self.weights
        N, d = self.data.num_clients, x.size
        mean, surrogate, squares, variances, losses = np.zeros(d), np.zeros(d), np.zeros(N), np.zeros(N), np.zeros(N)
        others = {name: np.zeros(d) for name in self.others}
        drawn = self._rows_of_rounds(self.rounds.weights)
        towards = None if drawn is None else np.zeros((len(drawn), d))  # ∇F̃ of each round
        for i in range(N):
            value, gradient = self._gradient_of(x, i)
            if self._batch_share[i]:
                rows = self.data.offsets[i], self._ends[i]
                spread = _spread(self.task, x, gradient, self._examples, *rows, block=self._singles)
                variances[i] = self._batch_share[i] * float(spread) / self.data.sizes[i]
            g = np.asarray(gradient, np.float64)
            squares[i], losses[i] = g @ g, float(value)
            mean, surrogate = mean + p[i] * g, surrogate + w[i] * g
            others = {name: total + self.others[name][i] * g for name, total in others.items()}
            if towards is not None and drawn is not None:
                towards += drawn[:, i, None] * g
        self.losses.append(losses)
        everyone = len(self.seen) == N
        L = max(self._curvature(x, self.data.offsets[i], self._ends[i], self._share_of_client) for i in self.seen)
        return Point(
            loss=float(p @ losses),
            gradient=float(mean @ mean),
            surrogate_gradient=float(surrogate @ surrogate),
            client_gradients=float(w @ squares),
            dissimilarity=max(float(p @ squares - mean @ mean), 0.0),
            smoothness=L,
            objective_smoothness=self._curvature(x, 0, self.data.num_examples, self._share) if everyone else None,
            variance=float(p @ variances),
            largest_variance=float(variances.max()),
            left=self._gain(x, mean, L),
            inconsistency_cost=self._gain(x, surrogate - mean, L),
            **self._simulate_rounds(x, mean, towards, L)
            | {name: self._gain(x, total - mean, L) for name, total in others.items()},
        )

    def _gradient_of(self, x: Vector, i: int) -> Any:
        """F_i and ∇F_i."""
        rows = self.data.offsets[i], self._ends[i]
        return _gradient(self.task, x, self._examples, self._share_of_client, *rows, block=self._block)

    def _hessian(self, x: Vector, v: np.ndarray, weights: Any, start: Any, end: Any) -> np.ndarray:
        flat, unravel = ravel_pytree(x.tree)
        direction = unravel(jnp.asarray(v, flat.dtype))
        rows = np.int64(start), np.int64(end)  # of one type: one program for a client and for all of them
        image = _hessian_vector(self.task, x, direction, self._examples, weights, *rows, block=self._block)
        return np.asarray(image, np.float64)

    def _product(self, x: Vector) -> Callable[[np.ndarray], np.ndarray]:
        """v -> Hv, of F."""
        return lambda v: self._hessian(x, v, self._share, 0, self.data.num_examples)

    def _gain(self, x: Vector, gradient: np.ndarray, L: float) -> float:
        """A lower bound of ½gᵀH⁻¹g: how much a function with this gradient and F's curvature can decrease."""
        return newton_gain(self._product(x), gradient, L, self._products)

    def _bias_cost(self, x: Vector, bias: np.ndarray, length: float, L: float) -> float:
        """F − F* where ∇F holds the bias B of rounds of length ℓ = ητ_eff in balance; of small ones ½bᵀH⁻¹b, b = B/ℓ.

        A round takes 1 − exp(−ℓh) of the way along a direction of curvature h. So the model rests at a distance of
        B/(1 − exp(−ℓh)) ≈ B/(ℓh) + B/2 from the optimum, whose F is ½bᵀH⁻¹b + ½bᵀB + ⅛BᵀHB higher.
        """
        if not bias.any():
            return 0.0
        square, curved = float(bias @ bias), float(bias @ self._product(x)(bias))
        return self._gain(x, bias / length, L) + square / (2 * length) + max(curved, 0.0) / 8

    def _curvature(self, x: Vector, start: Any, end: Any, weights: Any) -> float:
        def product(v: np.ndarray) -> np.ndarray:
            return self._hessian(x, v, weights, start, end)

        value, converged = largest_eigenvalue(product, np.random.default_rng(0).normal(size=x.size), self.tolerance)
        self.unconverged += not converged
        return value

    def _rows_of_rounds(self, table: Any) -> Any:
        """The rows of a table for the simulated rounds."""
        random = bool(self._batch_share.any()) or len(self.rounds.steps) > 1
        return None if table is None else table[np.arange(_ROUNDS if random else 1) % len(table)]

    def _simulate_rounds(self, x: Vector, gradient: np.ndarray, towards: np.ndarray | None, L: float) -> dict[str, Any]:
        """Simulate rounds from ``x``, each with its own minibatches and work, with plain and corrected local steps."""
        if self.solver is None:
            return {}
        scheme = self.rounds
        steps, shares = map(self._rows_of_rounds, (scheme.steps, scheme.shares))
        rounds, single_steps = len(steps), bool((scheme.steps == 1).all())
        sums, free = np.zeros((2, rounds, x.size))
        cohorts = _Cohorts(scheme, self.data.num_clients, x.size)
        for i in range(self.data.num_clients):
            place = [jnp.int32(number) for number in (self.data.offsets[i], self.data.sizes[i])]
            correction = None if towards is None else towards - np.asarray(self._gradient_of(x, i)[1], np.float64)
            keys = jax.random.split(jax.random.fold_in(self.key, i), rounds)
            added = None if correction is None else jnp.asarray(correction, ravel_pytree(x.tree)[0].dtype)
            plain, corrected = _local(
                self.task, self.solver, x, self._examples, *place,
                (jnp.asarray(steps[:, i], jnp.int32), keys, added),
                max_size=self.data.max_size, batch_size=self.batch_size, epochs=self.epochs,
            )  # fmt: skip
            plain, corrected = (shares[:, i, None] * np.asarray(change, np.float64) for change in (plain, corrected))
            sums, free = sums + plain, free + corrected
            cohorts.add(i, plain, corrected)
        noise = _variance(sums) + cohorts.extra
        drawn, free_drawn = cohorts.variances()
        measured: dict[str, Any] = {
            "move": math.sqrt(_square(sums)[0]),
            "noise": math.sqrt(noise),
            "cohort_noise": math.sqrt(drawn),
            "noise_cost": noise / (4 * scheme.length),
            "cohort_cost": drawn / (4 * scheme.length),
            "descent": -float(gradient @ sums.mean(0)),
        }
        if towards is None:
            return measured
        apart = np.zeros_like(sums) if single_steps else sums - free
        square, low, high = _square(apart)
        scale = self._bias_cost(x, apart.mean(0), scheme.length, L) / (float(np.sum(apart.mean(0) ** 2)) or 1.0)
        measured |= {
            "bias": math.sqrt(square),
            "bias_range": (math.sqrt(low), math.sqrt(high)),
            "free_move": math.sqrt(_square(free)[0]),
            "free_descent": -float(gradient @ free.mean(0)),
            "free_cohort_noise": math.sqrt(free_drawn),
            "drift_cost": square * scale,
            "drift_cost_range": (low * scale, high * scale),
            "free_cohort_cost": free_drawn / (4 * scheme.length),
        }
        return measured


class _Cohorts:
    """The updates of sampled cohorts, accumulated client by client.

    Attributes:
        extra: the additional variance of minibatches in a cohort's update, compared with that of all clients.
    """

    def __init__(self, rounds: Rounds, clients: int, size: int):
        self.extra = 0.0
        self._ids = rounds.ids
        if self._ids is None or rounds.ratios is None:
            return
        number, places = self._ids.shape
        order = np.argsort(self._ids, axis=None, kind="stable")
        self._ends = np.searchsorted(self._ids.ravel()[order], np.arange(clients + 1))
        self._which, self._ratios = order // places, rounds.ratios.ravel()[order]
        self._updates, self._noise = np.zeros((2, number, size)), np.zeros(2)

    def add(self, i: int, *changes: np.ndarray) -> None:
        """Add client i's part of the update, [rounds, d], as if it took part in every round."""
        if self._ids is None:
            return
        here = slice(self._ends[i], self._ends[i + 1])
        number, ratios = len(self._updates[0]), self._ratios[here]
        spread = float(np.sum((ratios - 1) ** 2) + number - len(ratios)) / number  # E(ω/E ω − 1)²
        for k, change in enumerate(changes):
            np.add.at(self._updates[k], self._which[here], ratios[:, None] * change.mean(0))
            noise = spread * _variance(change)
            self.extra += noise if k == 0 else 0.0
            self._noise[k] += noise / len(change)  # this part is contained in the updates

    def variances(self) -> np.ndarray:
        """E‖update − its mean‖² from the sampling of clients alone, for plain and corrected steps."""
        if self._ids is None:
            return np.zeros(2)
        return np.maximum([_variance(updates) for updates in self._updates] - self._noise, 0.0)


def newton_gain(product: Callable[[np.ndarray], np.ndarray], gradient: np.ndarray, L: float, most: int = 20) -> float:
    """½gᵀH⁻¹g by conjugate gradients, which approach it from below.

    They end at a direction along which H is not positive; if that is the first one, the result is ‖g‖²/2L.

    Args:
        product: v -> Hv, both [d] in float64.
        gradient: g [d].
        L: largest absolute curvature.
        most: the largest number of products.

    Example:
        >>> round(newton_gain(lambda v: np.array([1.0, 4.0]) * v, np.array([2.0, 4.0]), 4.0), 9)
        4.0
    """
    from scipy.sparse import linalg  # slow to import

    g, gain = np.asarray(gradient, np.float64), 0.0

    def image(direction: np.ndarray) -> np.ndarray:
        product_of_direction = product(direction)
        if not direction @ product_of_direction > 0:
            raise _Enough
        return product_of_direction

    def stop_when_converged(x: np.ndarray) -> None:
        nonlocal gain
        gain, before = float(g @ x) / 2, gain
        if gain - before <= 1e-3 * gain:
            raise _Enough

    if not g.any():
        return 0.0
    with contextlib.suppress(_Enough):
        linalg.cg(
            linalg.LinearOperator((len(g),) * 2, image, dtype=float),
            g,
            rtol=0,
            maxiter=most,
            callback=stop_when_converged,
        )
    return gain or (float(g @ g) / (2 * L) if L > 0 else math.inf)


class _Enough(Exception):
    """Raised in a callback to end an iteration of SciPy."""


def _square(vectors: np.ndarray) -> tuple[float, float, float]:
    """An unbiased estimate of ‖E v‖² from a sample [n, d], with a 95 % interval by the jackknife; exact for n = 1."""
    products = vectors @ vectors.T
    n = len(products)
    if n == 1:
        return (float(products[0, 0]),) * 3
    np.fill_diagonal(products, 0.0)
    total = float(products.sum())
    value = total / (n * (n - 1))
    without = (total - 2 * products.sum(1)) / ((n - 1) * (n - 2))
    half = _STUDENT * math.sqrt((n - 1) / n * float(np.sum((without - without.mean()) ** 2)))
    return max(value, 0.0), max(value - half, 0.0), max(value + half, 0.0)


def _variance(vectors: np.ndarray) -> float:
    """E‖v − E v‖² from a sample [n, d]; 0 for n = 1."""
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
    last = (B - first) % n  # complete passes between the two have no variance
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
    """max |λ| of a symmetric operator, by Lanczos' method (ARPACK).

    Close eigenvalues do no harm: the value is right once the residual ‖Av − θv‖ is below tolerance·|θ|, long before
    the vector is.

    Args:
        product: v -> Av, both [d] in float64.
        start: [d], a random vector.
        tolerance: in (0, 1).
        most: the largest number of products.

    Returns:
        |θ|, and whether the tolerance was reached. If not, the largest ‖Av‖/‖v‖ that was seen, which is too low; not a
        number where a product is not finite.

    Example:
        >>> A = np.array([1.0, -3.0, 2.999])
        >>> value, reached = largest_eigenvalue(lambda v: A * v, np.ones(3))
        >>> round(value, 9), reached
        (3.0, True)
    """
    from scipy.sparse import linalg  # slow to import

    d, used, largest_ratio = len(start), 0, 0.0

    def image(v: np.ndarray) -> np.ndarray:
        nonlocal used, largest_ratio
        if used == most:
            raise _Enough
        image_of_v, used = product(v), used + 1
        largest_ratio = (
            max(largest_ratio, float(np.linalg.norm(image_of_v) / np.linalg.norm(v)))
            if np.isfinite(image_of_v).all()
            else math.nan
        )
        if not largest_ratio > 0:  # NaN, or the zero operator
            raise _Enough
        return image_of_v

    with contextlib.suppress(_Enough, linalg.ArpackNoConvergence):
        if d == 1:
            return abs(float(image(start)[0] / start[0])), True
        operator, width = linalg.LinearOperator((d, d), image, dtype=float), min(d, _WIDTH, max(5, _NUMBERS // d))
        (value,) = linalg.eigsh(operator, 1, v0=start, ncv=width, tol=tolerance, return_eigenvectors=False)
        return abs(float(value)), True
    return largest_ratio, largest_ratio == 0


def _seen(sizes: np.ndarray, parameters: int, sample: int | None) -> np.ndarray:
    """The clients whose curvature is measured: all, or a random sample."""
    order = np.random.default_rng(0).permutation(len(sizes))
    if sample is None:
        sample = max(1, int(np.sum(np.cumsum(sizes[order]) * parameters <= _COST)))
    elif check_count("sample", sample) > len(sizes):
        raise ConfigError("sample", sample, f"there are {len(sizes)} clients")
    return np.sort(order[:sample])


def _weighted(task: Task, tree: Any, examples: Any, weights: Any, start: Any, end: Any, block: int) -> Any:
    """The weighted sum of the rows' losses, and its gradient."""

    def values(rows: Any, there: Any) -> Any:
        def objective(tree: Any) -> Any:
            losses = task.loss(tree, rows[0], None)
            return jnp.sum(jnp.where(there, losses * rows[1].astype(losses.dtype), 0))

        return jax.value_and_grad(objective)(tree)

    return sums(values, (examples, weights), start, end - start, block)


@compiled(static=["task", "block"])
def _gradient(task: Task, x: Vector, examples: Any, weights: Any, start: Any, end: Any, *, block: int) -> Any:
    value, gradient = _weighted(task, x.tree, examples, weights, start, end, block)
    return value, ravel_pytree(gradient)[0]


@compiled(static=["task", "block"])
def _hessian_vector(
    task: Task, x: Vector, v: Any, examples: Any, weights: Any, start: Any, end: Any, *, block: int
) -> jax.Array:
    gradient = lambda tree: _weighted(task, tree, examples, weights, start, end, block)[1]  # noqa: E731
    return ravel_pytree(jax.jvp(gradient, (x.tree,), (v,))[1])[0]


@compiled(static=["task", "block"])
def _spread(task: Task, x: Vector, mean: Any, examples: Any, start: Any, end: Any, *, block: int) -> jax.Array:
    """Σ_j ‖∇f_j − mean‖² over the rows."""

    def single(example: Any) -> Any:
        batch = jax.tree.map(lambda leaf: leaf[None], example)
        gradient = jax.grad(lambda tree: task.loss(tree, batch, None)[0])(x.tree)
        return jnp.sum((ravel_pytree(gradient)[0] - mean) ** 2)

    def values(rows: Any, there: Any) -> Any:
        return jnp.sum(jnp.where(there, jax.vmap(single)(rows), 0))

    return sums(values, examples, start, end - start, block)


@compiled(static=["task", "max_size", "batch_size", "epochs"])
def _local(
    task: Task, solver: Solver, x: Vector, examples: Any, offset: Any, size: Any, rows: Any, *,
    max_size: int, batch_size: int | None, epochs: bool,
) -> Any:  # fmt: skip
    """One client's changes of the model [rounds, d], plain, and with the same minibatches and corrected gradients.

    ``rows``: [rounds] local steps and keys, and [rounds, d] corrections of the gradients or ``None``.
    """
    unravel = ravel_pytree(x.tree)[1]

    def one(row: Any) -> Any:
        steps, key, correction = row

        def change(correction: Any) -> jax.Array:
            oracle = Oracle(
                task, examples, offset=offset, size=size, max_size=max_size, batch_size=batch_size, epochs=epochs,
                steps=steps, round=0, start=0, key=key, round_key=key, client=0, num_clients=1,
            )  # fmt: skip
            return ravel_pytree((solver.run(x, oracle, correction) - x).tree)[0]

        plain = change(None)
        return plain, plain if correction is None else change(Vector(unravel(correction)))

    return jax.lax.map(one, rows)


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """The result of :func:`fedax.theory.diagnose`.

    Attributes:
        method: its name in the advice.
        clients: N.
        steps: the fewest and the most local steps of a client in a round.
        points: one :class:`~fedax.theory.measure.Point` a model.
        smoothness: L, the largest over the points.
        clients_seen: the number of clients whose curvature was measured.
        constant: κ² for β² = 1, the largest Σ w_i‖∇F_i − ∇F̃‖² of the points.
        line: another β² and κ² that fit the points, those of :func:`~fedax.theory.measure.dissimilarity_line`.
        weights: [N] w of the surrogate Σ w_i F_i that the method minimises for small η; ``None``: not known.
        arrivals: [N] the weights q of the clients' answers in the long run; ``None``: the server waits for all clients.
        chi2, chi2_range: χ²(p‖w); the lowest and the highest of single rounds, where work is random.
        floor: 2χ²κ² with the κ² of the last point, for which ‖∇F‖² ≤ 2‖∇F̃‖² + 2χ²κ² holds with β² = 1: what stays
            of the bound however long the run, if clients remain as unlike.
        lr: η in round 0.
        max_lr: the largest η of Theorems 1 to 3, for all clients in every round, with the β² of ``line``; ``None``
            where they do not cover the method.
        loosest_lr: the same with β² = 1, the loosest case.
        weight_square: E(Σω)² of the cohorts' weights, 1 where they always add up to one.
        gained: what training gains, to which costs are compared: F of the first model less that of the last, and what
            is left there.
        losses: [points, N] F_i.
        verdict: two sentences: what to take and why, and what comes next, or what it costs.
        take: the method that it says to take instead; empty: to stay with this one.
        advice: the reasons, with figures: on the objective, on drift, on noise, on clients that do not follow and rare
            classes, on η.
        unknown: what these figures cannot tell.

    Example:
        >>> import fedax
        >>> data, task = fedax.data.quadratics(clients=3, dimension=2), fedax.tasks.quadratic(2)
        >>> fedax.theory.diagnose(fedax.create("fedavg", lr=0.1), task, data).clients
        3
    """

    method: str
    clients: int
    steps: tuple[int, int]
    points: tuple[Point, ...]
    smoothness: float
    clients_seen: int
    constant: float
    line: tuple[float, float]
    weights: np.ndarray | None
    chi2: float | None
    chi2_range: tuple[float, float] | None
    floor: float | None
    lr: float
    max_lr: float | None
    loosest_lr: float | None
    weight_square: float
    gained: float
    losses: np.ndarray | None = None
    arrivals: np.ndarray | None = None
    verdict: str = ""
    take: str = ""
    advice: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
