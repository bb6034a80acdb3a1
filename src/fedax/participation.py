"""Participation: who takes part in a round, and with which weight."""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedax.errors import ConfigError
from fedax.indices import shuffled
from fedax.numbers import MOST, check_count, check_number, check_room


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
    """Draws the cohort of each round.

    Attributes:
        counts: whether clients are weighted by how many there are, as in :class:`Uniform`, so that the weights of those
            that are left grow by S/S' where S' of S are; else the sum of the weights is kept.
        may_fail: whether a cohort may be empty. Such a round is skipped.
    """

    counts: ClassVar[bool] = False
    may_fail: ClassVar[bool] = False

    def draw(self, key: Any, weights: Any, index: Any) -> Cohort:
        """The cohort of round ``index``; ``weights`` are p [N]."""
        raise NotImplementedError

    def places(self, num_clients: int) -> int:
        """S, the most clients that a cohort holds."""
        raise NotImplementedError

    def everyone(self, num_clients: int) -> bool:
        """Whether all N clients are in every cohort."""
        return False

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

    def everyone(self, num_clients: int) -> bool:
        return True


class Uniform(Participation):
    """``size`` clients, uniformly without replacement, ω_i = p_i·N/S: unbiased for Σ p_i v_i, but Σω ≠ 1 in general.

    "Scheme II" of Li et al. 2020 and of papers on FedNova; with p_i = 1/N it is the plain mean over the cohort.

    Args:
        size: S, 1 ≤ S ≤ N.

    Example:
        >>> Uniform(2).draw(jax.random.key(0), jnp.full(4, 0.25), 0).weights.tolist()
        [0.5, 0.5]
    """

    counts: ClassVar[bool] = True
    size: int = eqx.field(static=True)

    def __init__(self, size: int):
        self.size = check_count("size", size)

    def draw(self, key: Any, weights: Any, index: Any) -> Cohort:
        n = weights.shape[0]
        ids = _without_replacement(key, n, self.size)
        return Cohort(ids, weights[ids] * (n / self.size), jnp.asarray(self.size / n, weights.dtype))

    def places(self, num_clients: int) -> int:
        return self.size

    def everyone(self, num_clients: int) -> bool:
        return self.size == num_clients

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

    def everyone(self, num_clients: int) -> bool:
        return self.size == num_clients

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


class Dropout(Participation):
    """Clients that are drawn, and then do not answer; a round in which none does is skipped.

    With a ``rate`` each client drops out by chance, independently of all else. Over ``Full``, ``Uniform`` and
    ``Proportional``, ω_i becomes ω_i / (1 − q_i), so that Σ ω_i v_i stays unbiased for Σ p_i v_i; over
    ``UniformNormalized`` and ``Trace``, whose weights have the sum 1, they keep it. With ``available``, of which
    nothing is known in advance, the weights of those who are there are scaled as for clients that a
    :class:`fedax.Guard` leaves out, and the estimate is biased toward who is there often.

    Methods that keep a sum over all clients need one ``rate`` for all of them, or ``available``. What a client does in
    vain is not in the costs.

    Args:
        of: who is drawn.
        rate: q, the probability of dropping out, 0 ≤ q < 1; or one for each client, [N].
        available: in place of a rate, [R, N] booleans: whether a client answers in a round; at least a row a round.

    Source: inverse-probability weights, Horvitz and Thompson 1952.

    Example:
        >>> cohort = Dropout(Full(), 0.5).draw(jax.random.key(1), jnp.full(4, 0.25), 0)
        >>> cohort.ids.tolist(), cohort.weights.tolist(), cohort.share.tolist()
        ([4, 1, 2, 3], [0.0, 0.5, 0.5, 0.5], 0.5)
    """

    may_fail: ClassVar[bool] = True
    of: Participation
    rate: Any
    available: Any

    def __init__(self, of: Participation, rate: Any = None, available: Any = None):
        if not isinstance(of, Participation) or isinstance(of, Dropout):
            raise ConfigError("dropout.of", of, "give the participation that draws the clients, such as Uniform(10)")
        if (rate is None) == (available is None):
            raise ConfigError("dropout.rate", rate, "give a rate or a table of who is available, one of them")
        self.of, self.rate, self.available = of, rate, available
        if available is not None:
            self.available = np.asarray(available)
            if self.available.ndim != 2 or not self.available.size or self.available.dtype != bool:
                raise ConfigError("dropout.available", available, "give booleans [rounds, clients]")
        elif isinstance(rate, Sequence | np.ndarray) and not isinstance(rate, str) and np.ndim(rate) == 1:
            self.rate = np.array([float(check_number("dropout.rate", q, 0, 1, open_high=True)) for q in rate])
        elif rate is not None:
            check_number("dropout.rate", rate, 0, 1, open_high=True)

    @property
    def counts(self) -> bool:  # type: ignore[override]
        return self.of.counts

    def draw(self, key: Any, weights: Any, index: Any) -> Cohort:
        drawn, n = self.of.draw(key, weights, index), weights.shape[0]
        here, known = drawn.ids < n, jnp.minimum(drawn.ids, n - 1)
        if self.available is not None:
            return _without(drawn, here & jnp.asarray(self.available)[index, known], here, n, self.counts)
        rate = jnp.asarray(self.rate, weights.dtype)
        stays = 1 - (rate[known] if rate.ndim else rate)
        kept = here & (jax.random.uniform(jax.random.fold_in(key, n), known.shape) < stays)
        if isinstance(self.of, UniformNormalized | Trace):
            return _without(drawn, kept, here, n, counts=False)
        share = None if rate.ndim or drawn.share is None else drawn.share * stays
        return Cohort(jnp.where(kept, drawn.ids, n), jnp.where(kept, drawn.weights / stays, 0), share)

    def places(self, num_clients: int) -> int:
        return self.of.places(num_clients)

    def validate(self, num_clients: int, rounds: int) -> None:
        self.of.validate(num_clients, rounds)
        if self.available is not None:
            found, clients = self.available.shape
            if clients != num_clients or found < rounds:
                way_out = f"there are {num_clients} clients, and {rounds} rounds at most"
                raise ConfigError("dropout.available", f"{found} rounds of {clients} clients", way_out)
        elif np.ndim(self.rate) and len(self.rate) != num_clients:
            raise ConfigError("dropout.rate", f"{len(self.rate)} rates", f"give one for each of {num_clients} clients")


def left(weights: Any, kept: Any, present: Any, counts: bool) -> Any:
    """By how much the weights of those clients grow that are ``kept`` of those that were ``present``; 1 if none is."""
    before, after = [jnp.sum(there if counts else jnp.where(there, weights, 0)) for there in (present, kept)]
    return jnp.where(after > 0, before / jnp.where(after > 0, after, 1), 1.0).astype(weights.dtype)


def _without_replacement(key: Any, n: int, size: int) -> jax.Array:
    """The first ``size`` positions of a random permutation of n, in O(size): nothing of length n is sorted."""
    return shuffled(jnp.arange(size), n, key, max_size=n)


def _without(cohort: Cohort, kept: Any, present: Any, n: int, counts: bool) -> Cohort:
    grow = left(cohort.weights, kept, present, counts)
    weights = jnp.where(kept, cohort.weights * grow, 0)
    return Cohort(jnp.where(kept, cohort.ids, n), weights, None if cohort.share is None else cohort.share / grow)


def _normalized(ids: Any, weights: Any) -> Cohort:
    total = jnp.sum(weights)
    # A cohort of clients that all have weight 0 moves nothing.
    return Cohort(ids, weights / jnp.where(total > 0, total, 1.0), total)


def _check_size(size: int, num_clients: int) -> None:
    if size > num_clients:
        raise ConfigError("size", size, f"a cohort has at most all {num_clients} clients")
