"""Participation: who takes part in a round, and with which weight."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedax.errors import ConfigError
from fedax.indices import shuffled
from fedax.numbers import MOST, check_count, check_room


class Cohort(NamedTuple):
    """The clients of one round.

    Attributes:
        ids: [S] client numbers, each at most once; N where a place is empty.
        weights: [S] ω_i of the aggregate Σ ω_i v_i; 0 where a place is empty.
        share: the number with Σ_S p_i v_i = share · Σ ω_i v_i, or ``None`` where there is none.
    """

    ids: Any
    weights: Any
    share: Any


class Participation(eqx.Module):
    """Draws the cohort of each round."""

    def draw(self, key: Any, weights: Any, index: Any) -> Cohort:
        """The cohort of round ``index``; ``weights`` are p [N]."""
        raise NotImplementedError

    def places(self, num_clients: int) -> int:
        """S, the most clients that a cohort holds."""
        raise NotImplementedError

    def validate(self, num_clients: int, rounds: int) -> None:
        """Raise :class:`fedax.errors.ConfigError` where this does not fit N clients and so many rounds."""


class Full(Participation):
    """All N clients in every round, ω_i = p_i.

    Example:
        >>> Full().draw(None, jnp.array([0.25, 0.75]), 0).weights.tolist()
        [0.25, 0.75]
    """

    def draw(self, key: Any, weights: Any, index: Any) -> Cohort:
        return Cohort(jnp.arange(weights.shape[0]), weights, jnp.ones((), weights.dtype))

    def places(self, num_clients: int) -> int:
        return num_clients


class Uniform(Participation):
    """``size`` clients, uniformly without replacement, ω_i = p_i·N/S: unbiased for Σ p_i v_i, but Σω ≠ 1 in general.

    "Scheme II" of Li et al. 2020 and of papers on FedNova; with p_i = 1/N it is the plain mean over the cohort.

    Args:
        size: S, 1 ≤ S ≤ N.

    Example:
        >>> Uniform(2).draw(jax.random.key(0), jnp.full(4, 0.25), 0).weights.tolist()
        [0.5, 0.5]
    """

    size: int = eqx.field(static=True)

    def __init__(self, size: int):
        self.size = check_count("size", size)

    def draw(self, key: Any, weights: Any, index: Any) -> Cohort:
        n = weights.shape[0]
        ids = _without_replacement(key, n, self.size)
        return Cohort(ids, weights[ids] * (n / self.size), jnp.asarray(self.size / n, weights.dtype))

    def places(self, num_clients: int) -> int:
        return self.size

    def validate(self, num_clients: int, rounds: int) -> None:
        _check_size(self.size, num_clients)


class UniformNormalized(Participation):
    """``size`` clients, uniformly without replacement, ω_i = p_i / Σ_S p_j.

    The pseudo-code of McMahan et al. 2017 and FedNova (Algorithm 1). Biased for Σ p_i v_i unless p_i = 1/N.

    Args:
        size: S, 1 ≤ S ≤ N.

    Example:
        >>> float(UniformNormalized(2).draw(jax.random.key(0), jnp.array([0.1, 0.2, 0.7]), 0).weights.sum())
        1.0
    """

    size: int = eqx.field(static=True)

    def __init__(self, size: int):
        self.size = check_count("size", size)

    def draw(self, key: Any, weights: Any, index: Any) -> Cohort:
        ids = _without_replacement(key, weights.shape[0], self.size)
        return _normalized(ids, weights[ids])

    def places(self, num_clients: int) -> int:
        return self.size

    def validate(self, num_clients: int, rounds: int) -> None:
        _check_size(self.size, num_clients)


class Proportional(Participation):
    """``size`` draws with replacement with probabilities p_i, 1/S each: unbiased for Σ p_i v_i.

    "Scheme I" of Li et al. 2020; the sampling of FedProx and of FedNova's analysis. A client drawn several times runs
    once, with the sum of its weights. Methods that keep a sum over all clients (control variates) refuse it.

    Args:
        size: S ≥ 1 draws; the cohort has at most S clients.

    Example:
        >>> cohort = Proportional(3).draw(jax.random.key(0), jnp.array([0.0, 1.0]), 0)
        >>> cohort.ids.tolist(), cohort.weights.round(3).tolist()
        ([1, 2, 2], [1.0, 0.0, 0.0])
    """

    size: int = eqx.field(static=True)

    def __init__(self, size: int):
        self.size = check_count("size", size, high=MOST)
        check_room(100 * self.size, size=self.size)

    def draw(self, key: Any, weights: Any, index: Any) -> Cohort:
        n = weights.shape[0]
        edges = jnp.cumsum(weights)
        # Scaling by the last edge, and the largest float below it, keep rounding from drawing a client of weight 0.
        uniform = jax.random.uniform(key, (self.size,), weights.dtype) * edges[-1]
        ids = jnp.sort(jnp.searchsorted(edges, uniform, side="right"))
        ids = jnp.minimum(ids, jnp.searchsorted(edges, edges[-1], side="left"))
        first = jnp.concatenate([jnp.ones(1, bool), ids[1:] != ids[:-1]])
        place = jnp.cumsum(first) - 1
        count = jnp.zeros(self.size, weights.dtype).at[place].add(1.0)
        merged = jnp.full(self.size, n, ids.dtype).at[place].set(ids)
        return Cohort(merged, count / self.size, None)

    def places(self, num_clients: int) -> int:
        return self.size


class Trace(Participation):
    """Given cohorts, one a round, ω_i = p_i / Σ_S p_j: for replaying what happened elsewhere.

    Args:
        cohorts: for each round the client numbers, without repetition; the run may have at most that many rounds.

    Example:
        >>> Trace([[0, 2], [1]]).draw(None, jnp.array([0.2, 0.5, 0.3]), 1).ids.tolist()
        [1, 3]
    """

    table: Any
    lengths: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, cohorts: Sequence[Sequence[int]]):
        if not isinstance(cohorts, Sequence | np.ndarray) or isinstance(cohorts, str) or not len(cohorts):
            raise ConfigError("cohorts", cohorts, "give a list of the client numbers of each round, at least of one")
        rows = [np.asarray(cohort) for cohort in cohorts]
        for r, row in enumerate(rows):
            if row.ndim != 1 or not row.size or not np.issubdtype(row.dtype, np.integer) or row.min() < 0:
                raise ConfigError(f"cohorts[{r}]", cohorts[r], "give the numbers (from 0) of at least one client")
            if len(np.unique(row)) != len(row):
                raise ConfigError(f"cohorts[{r}]", cohorts[r], "name each client once")
        self.lengths = tuple(len(row) for row in rows)
        table = np.full((len(rows), max(self.lengths)), -1, np.int32)
        for r, row in enumerate(rows):
            table[r, : len(row)] = row
        self.table = table

    def draw(self, key: Any, weights: Any, index: Any) -> Cohort:
        row = jnp.asarray(self.table)[index]
        there = row >= 0
        ids = jnp.where(there, row, weights.shape[0])
        return _normalized(ids, jnp.where(there, weights[jnp.where(there, row, 0)], 0.0))

    def places(self, num_clients: int) -> int:
        return max(self.lengths)

    def validate(self, num_clients: int, rounds: int) -> None:
        if len(self.lengths) < rounds:
            raise ConfigError("cohorts", f"{len(self.lengths)} cohorts", f"give one for each of the {rounds} rounds")
        if self.table.max() >= num_clients:
            worst = int(self.table.max())
            raise ConfigError("cohorts", worst, f"there are {num_clients} clients, numbered from 0")


def _without_replacement(key: Any, n: int, size: int) -> jax.Array:
    """The first ``size`` positions of a random permutation of n, in O(size): nothing of length n is sorted."""
    return shuffled(jnp.arange(size), n, key, max_size=n)


def _normalized(ids: Any, weights: Any) -> Cohort:
    total = jnp.sum(weights)
    # A cohort of clients that all have weight 0 moves nothing.
    return Cohort(ids, weights / jnp.where(total > 0, total, 1.0), total)


def _check_size(size: int, num_clients: int) -> None:
    if size > num_clients:
        raise ConfigError("size", size, f"a cohort has at most all {num_clients} clients")
