"""Participation: who takes part in a round, and with which weight."""

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedax.contract.indices import shuffled
from fedax.contract.settings import Settings, plain
from fedax.contract.types import Array
from fedax.errors import ConfigError
from fedax.numbers import MOST, check_count, check_number, check_room, has_truth_values

_BLOCKS = 1024  # of clients that systematic sampling puts in a new order in every round
_WHOLE = 2**31 - 1  # the length that stands for a probability of 1
_MANY = 2**20  # clients from which on sums of p_i in float32 would miss some


def _size(size: int) -> int:
    return check_count("size", size)


class Cohort(NamedTuple):
    """The clients of one round.

    Attributes:
        ids: [S] client numbers, each at most once; N where a place is empty.
        weights: [S] ω_i of the aggregate Σ ω_i v_i; 0 where a place is empty.

    Example:
        >>> of_three = Cohort(jnp.array([2, 0, 3]), jnp.array([0.5, 0.5, 0.0]))  # the last place is empty
        >>> [int(number) for number in of_three.ids if number < 3]
        [2, 0]
    """

    ids: Any
    weights: Any


class Sampling(NamedTuple):
    """How cohorts are sampled, as far as a guarantee of privacy depends on it; the same for all clients.

    Attributes:
        chance: the probability π in (0, 1] that a client is in a cohort and answers. With equal p the weights of a
            cohort are p/π.
        rate: Poisson sampling with this probability; ``None``: another design.
        cohort: the size of a cohort that is drawn uniformly without replacement; ``None``: another design.
        apart: for other designs: a client is in at most one of ``apart`` consecutive rounds.
    """

    chance: float
    rate: float | None = None
    cohort: int | None = None
    apart: int = 1


class Participation(Settings):
    """Draws the cohort of each round.

    Attributes:
        counts: whether clients are weighted by how many there are, as in :class:`Uniform`, so that the weights of those
            that are left grow by S/S' where S' of S are; else the sum of the weights is kept.
        may_fail: whether a cohort may be empty. Such a round is skipped.

    Example:
        >>> class TakeTurns(Participation):  # one client after the other
        ...     def draw(self, key, weights, index):
        ...         return Cohort(jnp.array([index % weights.shape[0]]), jnp.ones(1))
        ...
        ...     def places(self, num_clients):
        ...         return 1
        >>> TakeTurns().draw(None, jnp.array([0.25, 0.75]), 3).ids.tolist()
        [1]
    """

    counts: ClassVar[bool] = False
    may_fail: ClassVar[bool] = False

    @abc.abstractmethod
    def draw(self, key: Any, weights: Any, index: Any) -> Cohort:
        """The cohort of round ``index``; ``weights`` are p [N]."""

    def bind(self, weights: np.ndarray) -> "Participation":
        """Prepare for data with weights p [N]: compute once what all rounds share."""
        return self

    def sampling(self, num_clients: int) -> Sampling | None:
        """How clients of equal weights are drawn; ``None``: not in a way that a guarantee of privacy is known for."""
        return None

    @abc.abstractmethod
    def places(self, num_clients: int) -> int:
        """S, the most clients that a cohort holds."""

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
        return Cohort(jnp.arange(weights.shape[0]), weights)

    def sampling(self, num_clients: int) -> Sampling:
        return Sampling(1.0)

    def places(self, num_clients: int) -> int:
        return num_clients

    def everyone(self, num_clients: int) -> bool:
        return True


class Poisson(Participation):
    """Each client by itself with probability ``rate``, ω_i = p_i/q: unbiased for Σ p_i v_i, cohorts of random size.

    The sampling for which differential privacy is amplified most; a cohort may be empty. There is room for all that are
    drawn but in one of 10¹² rounds; of a cohort that is larger still, neighbours from a random place on are taken.

    Args:
        rate: q in [10⁻⁶, 1], which is drawn from 32 random bits.

    Raises:
        ConfigError: a rate out of range.

    Source: Abadi et al. 2016, "Deep learning with differential privacy"; weights of Horvitz and Thompson 1952.

    Example:
        >>> cohort = Poisson(0.5).draw(jax.random.key(1), jnp.full(4, 0.25), 0)
        >>> cohort.ids.tolist(), cohort.weights.tolist()
        ([1, 3, 4, 4], [0.5, 0.5, 0.0, 0.0])
    """

    may_fail: ClassVar[bool] = True
    rate: float = eqx.field(static=True)

    def __init__(self, rate: float):
        self.rate = float(check_number("rate", rate, 1e-6, 1, fixed=True))

    def draw(self, key: Any, weights: Any, index: Any) -> Cohort:
        n = weights.shape[0]
        drawn_key, first_key = jax.random.split(key)
        # 32 random bits a client: floats would round the probability.
        threshold = min(round(self.rate * 2**32), 2**32 - 1)
        drawn = jax.random.bits(drawn_key, (n,), jnp.uint32) < np.uint32(threshold)
        drawn = drawn | (self.rate == 1)
        size = self.places(n)
        if size == n:
            ids = jnp.nonzero(drawn, size=size, fill_value=n)[0]
        else:
            first = jax.random.randint(first_key, (), 0, n)
            ids = (jnp.nonzero(jnp.roll(drawn, -first), size=size, fill_value=n)[0] + first) % n
            ids = jnp.where(jnp.arange(size) < jnp.sum(drawn), ids, n)
        known = jnp.minimum(ids, n - 1)
        return Cohort(ids, jnp.where(ids < n, weights[known] / self.rate, 0))

    def sampling(self, num_clients: int) -> Sampling:
        return Sampling(self.rate, rate=self.rate)

    def places(self, num_clients: int) -> int:
        from scipy.stats import binom

        return max(1, min(num_clients, int(binom.isf(1e-12, num_clients, self.rate)) + 1))


class Cyclic(Participation):
    """Groups of clients take turns, ω_i = p_i·G: each client is there once in G rounds, for cohorts that are not drawn.

    The clients are dealt to G groups in a random order that stays; round r is that of group r mod G. Over G rounds the
    estimates add up to what all clients together would have given.

    Args:
        groups: G, from 1 to the number of clients.
        seed: ≥ 0, of the order in which they are dealt.

    Raises:
        ConfigError: values out of range; that there are so many clients is checked by the run.

    Source: Cho et al. 2023, "On the convergence of federated averaging with cyclic client participation".

    Example:
        >>> turns = [Cyclic(2).draw(None, jnp.full(4, 0.25), r) for r in range(3)]
        >>> [cohort.ids.tolist() for cohort in turns], turns[0].weights.tolist()
        ([[1, 2], [0, 3], [1, 2]], [0.5, 0.5])
    """

    groups: int = eqx.field(static=True, converter=plain)
    seed: int = eqx.field(static=True, converter=plain, default=0)

    def __check_init__(self) -> None:
        check_count("groups", self.groups)
        check_count("seed", self.seed, 0)

    def draw(self, key: Any, weights: Any, index: Any) -> Cohort:
        n, size = weights.shape[0], self.places(weights.shape[0])
        table = np.full(size * self.groups, n)
        table[:n] = np.random.default_rng(self.seed).permutation(n)
        ids = jnp.sort(jnp.asarray(table.reshape(size, self.groups).T)[jnp.asarray(index) % self.groups])
        there = ids < n
        return Cohort(ids, jnp.where(there, weights[jnp.minimum(ids, n - 1)] * self.groups, 0))

    def sampling(self, num_clients: int) -> Sampling:
        return Sampling(1 / self.groups, apart=self.groups)

    def places(self, num_clients: int) -> int:
        return -(-num_clients // self.groups)

    def everyone(self, num_clients: int) -> bool:
        return self.groups == 1

    def validate(self, num_clients: int, rounds: int) -> None:
        if self.groups > num_clients:
            raise ConfigError("groups", self.groups, f"there are {num_clients} clients; make at most as many groups")


class Uniform(Participation):
    """``size`` clients, uniformly without replacement, ω_i = p_i·N/S: unbiased for Σ p_i v_i, but Σω ≠ 1 in general.

    "Scheme II" of Li et al. 2020 and of papers on FedNova; with p_i = 1/N it is the plain mean over the cohort. Where
    the p_i differ much, Σω varies from round to round and so does the length of each step: take :class:`Systematic`.

    Args:
        size: S, 1 ≤ S ≤ N.

    Raises:
        ConfigError: something else; that S is at most N is checked by the run.

    Example:
        >>> Uniform(2).draw(jax.random.key(0), jnp.full(4, 0.25), 0).weights.tolist()
        [0.5, 0.5]
    """

    counts: ClassVar[bool] = True
    size: int = eqx.field(static=True, converter=_size)

    def draw(self, key: Any, weights: Any, index: Any) -> Cohort:
        n = weights.shape[0]
        ids = _without_replacement(key, n, self.size)
        return Cohort(ids, weights[ids] * (n / self.size))

    def sampling(self, num_clients: int) -> Sampling:
        drawn = Sampling(self.size / num_clients, cohort=self.size)
        return drawn if self.size < num_clients else Sampling(1.0)

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

    Raises:
        ConfigError: something else; that S is at most N is checked by the run.

    Example:
        >>> float(UniformNormalized(2).draw(jax.random.key(0), jnp.array([0.1, 0.2, 0.7]), 0).weights.sum())
        1.0
    """

    size: int = eqx.field(static=True, converter=_size)

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
    once, with the sum of its weights. From 2²⁰ clients on, probabilities are summed in float64 when a run begins.

    Args:
        size: S ≥ 1 draws; the cohort has at most S clients.

    Raises:
        ConfigError: something else, or more draws than there is memory for.

    Example:
        >>> cohort = Proportional(3).draw(jax.random.key(0), jnp.array([0.0, 1.0]), 0)
        >>> cohort.ids.tolist(), cohort.weights.round(3).tolist()
        ([1, 2, 2], [1.0, 0.0, 0.0])
    """

    size: int = eqx.field(static=True)

    def __init__(self, size: int):
        self.size = check_count("size", size, high=MOST)
        check_room(100 * self.size, size=self.size)

    def bind(self, weights: np.ndarray) -> "Participation":
        return self if len(weights) < _MANY else _Proportional(self.size, np.asarray(weights, float))

    def draw(self, key: Any, weights: Any, index: Any) -> Cohort:
        edges = jnp.cumsum(weights)
        # Scaling by the last edge, and the largest float below it, keep rounding from drawing a client of weight 0.
        uniform = jax.random.uniform(key, (self.size,), weights.dtype) * edges[-1]
        ids = jnp.sort(jnp.searchsorted(edges, uniform, side="right"))
        ids = jnp.minimum(ids, jnp.searchsorted(edges, edges[-1], side="left"))
        return _merged(ids, weights)

    def places(self, num_clients: int) -> int:
        return self.size


class _Proportional(Participation):
    """Proportional draws of known weights of many clients: of a block first, and then of a client in it.

    Attributes:
        size: S.
        block_ends: [B] where the blocks' shares of Σ p_i = 2³¹ − 1 end; a block is of W neighbours.
        ends: [B, W] where the clients' shares of 2³¹ − 1 end, from the start of the block.
    """

    size: int = eqx.field(static=True)
    block_ends: Any
    ends: Any

    def __init__(self, size: int, weights: np.ndarray):
        width = -(-len(weights) // _BLOCKS)
        sums = np.cumsum(np.append(weights, np.zeros(_BLOCKS * width - len(weights))).reshape(_BLOCKS, width), axis=1)
        self.size, self.block_ends = size, _shares(np.cumsum(sums[:, -1]))
        self.ends = _shares(sums)

    def arguments(self) -> dict[str, Any]:
        """Without the weights, which are those of the data."""
        return {"size": self.size}

    def draw(self, key: Any, weights: Any, index: Any) -> Cohort:
        ends = jnp.asarray(self.ends)
        points = jax.random.randint(key, (2, self.size), 0, _WHOLE)
        block = jnp.searchsorted(jnp.asarray(self.block_ends), points[0], side="right")
        ids = block * ends.shape[1] + _first_beyond(ends, block, points[1])
        return _merged(jnp.sort(ids), weights)

    def places(self, num_clients: int) -> int:
        return self.size


class Systematic(Participation):
    """``size`` different clients, drawn with probabilities in proportion to p_i: unbiased for Σ p_i v_i, and Σω = 1.

    A client is in a cohort with probability π_i = S p_i, and has the weight ω_i = p_i/π_i = 1/S. Where S p_i would
    exceed 1 the client is in every cohort with ω_i = p_i, and the others share the places that are left. Each client is
    drawn at most once, and the weights sum to 1 in every round, so that a step is as long in one round as in the next.
    This is the design to take where the p_i differ. With p_i = 1/N it is :class:`Uniform`.

    The clients stand in random order, with their π_i as lengths on a line; with one random start u the cohort is the
    clients at u, u + 1, …, u + S − 1. Beyond 1,024 clients, blocks of neighbours in a fixed random order change places
    instead of single clients, which costs a round nothing that grows with N; two clients of one block, one pair in
    about 1,024, are then rarely or never drawn together. The π_i are multiples of S/2³¹, and the Σ p_i v_i that is met
    is exact up to as much; a client with weight 0 is never drawn.

    Args:
        size: S, from 1 to the number of clients with p_i > 0 (or S = N: all of them).

    Raises:
        ConfigError: something else; that S is not too large is checked by the run.

    Source: Madow 1949, "On the theory of systematic sampling, II"; weights of Horvitz and Thompson 1952.

    Example:
        >>> cohort = Systematic(2).draw(jax.random.key(0), jnp.array([0.125, 0.125, 0.25, 0.5]), 0)
        >>> sorted(cohort.ids.tolist()), cohort.weights.tolist()
        ([2, 3], [0.5, 0.5])
    """

    size: int = eqx.field(static=True, converter=_size)

    def bind(self, weights: np.ndarray) -> "Participation":
        return _Systematic(self.size, np.asarray(weights, float))

    def draw(self, key: Any, weights: Any, index: Any) -> Cohort:
        return self.bind(weights).draw(key, weights, index)

    def places(self, num_clients: int) -> int:
        return self.size

    def everyone(self, num_clients: int) -> bool:
        return self.size == num_clients

    def validate(self, num_clients: int, rounds: int) -> None:
        _check_size(self.size, num_clients)


class _Systematic(Participation):
    """Systematic sampling on known weights. Lengths are whole numbers: sums of floats could draw a client twice.

    Attributes:
        size: S.
        one: the length that stands for π = 1.
        weight: ω of the clients that are not in every cohort; the others' weights p_i are larger.
        ids: [B, W] clients in a fixed random order, B blocks of W; N where there is none.
        ends: [B, W] where their lengths end, from the start of the block.
    """

    size: int = eqx.field(static=True)
    one: int = eqx.field(static=True)
    weight: Any
    ids: Any
    ends: Any

    def __init__(self, size: int, weights: np.ndarray):
        n, some = len(weights), np.flatnonzero(weights > 0)
        if len(some) < size < n:
            raise ConfigError("size", size, f"only {len(some)} clients have a weight above 0; draw at most as many")
        always = weights > 0 if size < n else np.ones(n, bool)
        if size < len(some):
            falling = some[np.argsort(-weights[some], kind="stable")]
            p = weights[falling]
            # The first k are in every cohort, where the next one's share of the S − k places that are left is below 1.
            left_over = np.cumsum(p[::-1])[::-1]
            k = int(np.argmax(np.append((size - np.arange(size)) * p[:size] < left_over[:size], True)))
            always[falling[k:]] = False
        self.size, self.one = size, (2**31 - 1) // size
        places = size - int(always.sum())
        rest = float(weights[~always].sum())
        self.weight = np.asarray(rest / places if places else 0.0)
        exact = np.where(always, self.one, weights / (rest or 1.0) * places * self.one)
        lengths = np.floor(exact).astype(np.int64)
        short = size * self.one - int(lengths.sum())
        lengths[np.argsort(lengths - exact, kind="stable")[:short]] += 1
        blocks = min(n, _BLOCKS)
        width = -(-n // blocks)
        order = np.full(blocks * width, n)
        order[:n] = np.random.default_rng(0).permutation(n)
        self.ids = order.reshape(blocks, width).astype(np.int32)
        ends = np.cumsum(np.append(lengths, 0)[self.ids], axis=1)
        self.ends = ends.astype(np.int32)

    def arguments(self) -> dict[str, Any]:
        """Without the weights, which are those of the data."""
        return {"size": self.size}

    def draw(self, key: Any, weights: Any, index: Any) -> Cohort:
        ids, ends = jnp.asarray(self.ids), jnp.asarray(self.ends)
        order_key, start_key = jax.random.split(key)
        blocks = shuffled(jnp.arange(ids.shape[0]), ids.shape[0], order_key, max_size=ids.shape[0])
        block_ends = jnp.cumsum(ends[blocks, -1])
        points = jax.random.randint(start_key, (), 0, self.one) + self.one * jnp.arange(self.size)
        at = jnp.searchsorted(block_ends, points, side="right")
        block = blocks[at]
        within = points - (block_ends[at] - ends[block, -1])
        drawn = ids[block, _first_beyond(ends, block, within)]
        return Cohort(drawn, jnp.maximum(weights[drawn], jnp.asarray(self.weight, weights.dtype)))

    def places(self, num_clients: int) -> int:
        return self.size

    def everyone(self, num_clients: int) -> bool:
        return self.size == num_clients


class Trace(Participation):
    """Given cohorts, one a round, ω_i = p_i / Σ_S p_j: for replaying what happened elsewhere.

    Args:
        cohorts: for each round the client numbers, without repetition; the run may have at most that many rounds.

    Raises:
        ConfigError: something else; that there are so many clients is checked by the run.

    Example:
        >>> Trace([[0, 2], [1]]).draw(None, jnp.array([0.2, 0.5, 0.3]), 1).ids.tolist()
        [1, 3]
    """

    _table: Any  # [rounds, clients of the largest], −1 where a place is empty
    _lengths: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, cohorts: Sequence[Sequence[int]]):
        if not isinstance(cohorts, Sequence | np.ndarray) or isinstance(cohorts, str) or not len(cohorts):
            raise ConfigError("cohorts", cohorts, "give a list of the client numbers of each round, at least of one")
        rows = [_array(cohort) for cohort in cohorts]
        for r, row in enumerate(rows):
            whole = row.ndim == 1 and row.size and np.issubdtype(row.dtype, np.integer)
            if not whole or has_truth_values(cohorts[r]) or not 0 <= row.min() <= row.max() <= MOST:
                raise ConfigError(f"cohorts[{r}]", cohorts[r], "give the numbers (from 0) of at least one client")
            if len(np.unique(row)) != len(row):
                raise ConfigError(f"cohorts[{r}]", cohorts[r], "name each client once")
        self._lengths = tuple(len(row) for row in rows)
        self._table = np.full((len(rows), max(self._lengths)), -1, np.int32)
        for r, row in enumerate(rows):
            self._table[r, : len(row)] = row

    @property
    def cohorts(self) -> list[list[int]]:
        """For each round the client numbers."""
        return [row[:length].tolist() for row, length in zip(self._table, self._lengths, strict=True)]

    def draw(self, key: Any, weights: Any, index: Any) -> Cohort:
        row = jnp.asarray(self._table)[index]
        there = row >= 0
        ids = jnp.where(there, row, weights.shape[0])
        return _normalized(ids, jnp.where(there, weights[jnp.where(there, row, 0)], 0.0))

    def places(self, num_clients: int) -> int:
        return max(self._lengths)

    def validate(self, num_clients: int, rounds: int) -> None:
        if len(self._lengths) < rounds:
            raise ConfigError("cohorts", f"{len(self._lengths)} cohorts", f"give one for each of the {rounds} rounds")
        if self._table.max() >= num_clients:
            worst = int(self._table.max())
            raise ConfigError("cohorts", worst, f"there are {num_clients} clients, numbered from 0")


class Dropout(Participation):
    """Clients that are drawn, and then do not answer; a round in which none does is skipped.

    With a ``rate`` each client drops out by chance, independently of all else. ω_i becomes ω_i / (1 − q_i), so that
    Σ ω_i v_i stays unbiased for Σ p_i v_i; over ``UniformNormalized`` and ``Trace``, whose weights have the sum 1, they
    keep it. With ``available``, of which nothing is known in advance, the weights of those who are there are scaled as
    for clients that a :class:`fedax.Guard` leaves out, and the estimate is biased toward who is there often.

    The work of clients that drop out is not in the costs.

    Args:
        of: who is drawn.
        rate: q, the probability of dropping out, 0 ≤ q < 1; or one for each client, [N].
        available: in place of a rate, [R, N] booleans: whether a client answers in a round; at least a row a round.

    Raises:
        ConfigError: something else; that there are so many clients and rounds is checked by the run.

    Source: inverse-probability weights, Horvitz and Thompson 1952.

    Example:
        >>> cohort = Dropout(Full(), 0.5).draw(jax.random.key(1), jnp.full(4, 0.25), 0)
        >>> cohort.ids.tolist(), cohort.weights.tolist()
        ([4, 1, 2, 3], [0.0, 0.5, 0.5, 0.5])
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
            self.available = _array(available)
            if self.available.ndim != 2 or not self.available.size or self.available.dtype != bool:
                raise ConfigError("dropout.available", available, "give booleans [rounds, clients]")
        elif isinstance(rate, Sequence | np.ndarray) and not isinstance(rate, str) and _array(rate).ndim == 1:
            self.rate = np.array([float(check_number("dropout.rate", q, 0, 1, open_high=True)) for q in rate])
        else:
            check_number("dropout.rate", rate, 0, 1, open_high=True, fixed=True)

    @property
    def counts(self) -> bool:  # type: ignore[override]
        return self.of.counts

    def bind(self, weights: np.ndarray) -> Participation:
        return Dropout(self.of.bind(weights), self.rate, self.available)

    def draw(self, key: Any, weights: Any, index: Any) -> Cohort:
        drawn, n = self.of.draw(key, weights, index), weights.shape[0]
        here, known = drawn.ids < n, jnp.minimum(drawn.ids, n - 1)
        if self.available is not None:
            return _reduced(drawn, here & jnp.asarray(self.available)[index, known], here, n, self.counts)
        rate = jnp.asarray(self.rate, weights.dtype)
        stays = 1 - (rate[known] if rate.ndim else rate)
        kept = here & (jax.random.uniform(jax.random.fold_in(key, n), known.shape) < stays)
        if isinstance(self.of, UniformNormalized | Trace):
            return _reduced(drawn, kept, here, n, counts=False)
        return Cohort(jnp.where(kept, drawn.ids, n), jnp.where(kept, drawn.weights / stays, 0))

    def sampling(self, num_clients: int) -> Sampling | None:
        drawn = self.of.sampling(num_clients)
        if drawn is None or self.available is not None or np.ndim(self.rate):
            return None
        return drawn._replace(chance=drawn.chance * (1 - self.rate))  # that they may drop out is not counted on

    def places(self, num_clients: int) -> int:
        return self.of.places(num_clients)

    def validate(self, num_clients: int, rounds: int) -> None:
        self.of.validate(num_clients, rounds)
        if self.available is not None:
            found, clients = self.available.shape
            if clients != num_clients or found < rounds:
                hint = f"there are {num_clients} clients, and {rounds} rounds at most"
                raise ConfigError("dropout.available", f"{found} rounds of {clients} clients", hint)
        elif np.ndim(self.rate) and len(self.rate) != num_clients:
            raise ConfigError("dropout.rate", f"{len(self.rate)} rates", f"give one for each of {num_clients} clients")


class WithoutLate(Participation):
    """Clients that are drawn, without those that are late; the others' weights grow as for a guard.

    Args:
        of: who is drawn.
        late: whether a client is late, [N] in every round, or [R, N] in each.
    """

    may_fail: ClassVar[bool] = True
    of: Participation
    late: Any

    def __init__(self, of: Participation, late: np.ndarray):
        self.of, self.late = of, late

    @property
    def counts(self) -> bool:  # type: ignore[override]
        return self.of.counts

    def bind(self, weights: np.ndarray) -> Participation:
        return WithoutLate(self.of.bind(weights), self.late)

    def draw(self, key: Any, weights: Any, index: Any) -> Cohort:
        drawn, n = self.of.draw(key, weights, index), weights.shape[0]
        here = drawn.ids < n
        kept = here & ~is_late(jnp.asarray(self.late), index, jnp.minimum(drawn.ids, n - 1))
        return _reduced(drawn, kept, here, n, self.counts)

    def places(self, num_clients: int) -> int:
        return self.of.places(num_clients)

    def validate(self, num_clients: int, rounds: int) -> None:
        self.of.validate(num_clients, rounds)


def is_late(late: Any, index: Any, ids: Any) -> Any:
    """Whether clients are late in a round, by an array as of :class:`WithoutLate`."""
    return late[ids] if late.ndim == 1 else late[index, ids]


def weight_growth(weights: Any, kept: Any, present: Any, counts: bool) -> Any:
    """The factor for the weights of the clients that are ``kept`` of those that were ``present``; 1 if none is kept."""
    before, after = [jnp.sum(there if counts else jnp.where(there, weights, 0)) for there in (present, kept)]
    return jnp.where(after > 0, before / jnp.where(after > 0, after, 1), 1.0).astype(weights.dtype)


def _without_replacement(key: Any, n: int, size: int) -> Array:
    """The first ``size`` positions of a random permutation of n, in O(size): nothing of length n is sorted."""
    return shuffled(jnp.arange(size), n, key, max_size=n)


def _first_beyond(ends: Any, block: Any, points: Any) -> Any:
    """In a block's row of ``ends`` [B, W], the first place whose end is beyond the point; all [S]."""
    place, high = jnp.zeros_like(block), jnp.full_like(block, ends.shape[1])
    for _ in range(ends.shape[1].bit_length()):
        middle = (place + high) // 2
        beyond = ends[block, middle] > points
        place, high = jnp.where(beyond, place, middle + 1), jnp.where(beyond, middle, high)
    return place


def _shares(sums: np.ndarray) -> np.ndarray:
    """Running sums along the last axis, as whole numbers of which the last is ``_WHOLE``, or 0."""
    whole = sums[..., -1:]
    return np.floor(sums / np.where(whole > 0, whole, 1) * _WHOLE).astype(np.int32)


def _merged(ids: Any, weights: Any) -> Cohort:
    """The cohort of [S] draws in order, 1/S each: a client that was drawn several times has one place."""
    size, n = len(ids), weights.shape[0]
    first = jnp.concatenate([jnp.ones(1, bool), ids[1:] != ids[:-1]])
    place = jnp.cumsum(first) - 1
    count = jnp.zeros(size, weights.dtype).at[place].add(1.0)
    merged = jnp.full(size, n, ids.dtype).at[place].set(ids)
    return Cohort(merged, count / size)


def _reduced(cohort: Cohort, kept: Any, present: Any, n: int, counts: bool) -> Cohort:
    grow = weight_growth(cohort.weights, kept, present, counts)
    weights = jnp.where(kept, cohort.weights * grow, 0)
    return Cohort(jnp.where(kept, cohort.ids, n), weights)


def _normalized(ids: Any, weights: Any) -> Cohort:
    total = jnp.sum(weights)
    # A cohort of clients that all have weight 0 moves nothing.
    return Cohort(ids, weights / jnp.where(total > 0, total, 1.0))


def _array(given: Any) -> np.ndarray:
    """An array; for lists of unequal lengths an array of no dimension, which the checks refuse."""
    try:
        return np.asarray(given)
    except ValueError:
        return np.empty((), object)


def _check_size(size: int, num_clients: int) -> None:
    if size > num_clients:
        raise ConfigError("size", size, f"a cohort has at most all {num_clients} clients")
