"""What a run spends of its privacy budget, and the least noise for a budget. The accountants are dp-accounting's."""

import contextlib
import functools
import logging
import math
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np

from fedax.errors import ConfigError
from fedax.numbers import MOST, check_count, check_number

# ---- privacy losses of many rounds from those of one
#
# dp-accounting makes the distribution of one loss. These are its own steps from there (Koskela et al. 2020; Gopi
# et al. 2021, "Numerical composition of differential privacy"): bounds by moments, a Fourier transform, and the sum of
# the tail. A run asks for each of its rows, so bounds are computed once, and no step is a loop.

_TAIL = 1e-15  # the probability that is left out at either end, and then counted as an infinite loss
_BIN = 64  # points that bounds are computed with at once
_ORDERS = np.geomspace(0.02, 2e4, 40)[:, None]


@dataclass(frozen=True, eq=False)
class Losses:
    """A distribution of privacy losses: (low + i) · grid with probability probs[i], infinite with ``infinite``."""

    grid: float
    low: int
    probs: np.ndarray
    infinite: float

    @functools.cached_property
    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Upper bounds of log E exp(λ loss) and of log E exp(−λ loss), for the orders λ."""
        binned = np.pad(self.probs.clip(0), (0, -len(self.probs) % _BIN)).reshape(-1, _BIN).sum(1)
        first = (self.low + _BIN * np.arange(len(binned))) * self.grid
        with np.errstate(divide="ignore"):
            logs = np.log(binned)
        return _log_sum(logs + _ORDERS * (first + (_BIN - 1) * self.grid)), _log_sum(logs - _ORDERS * first)


def losses_of(pld: Any) -> tuple[Losses, ...]:
    """The losses of dp-accounting's distribution of one round: for removing a client and, if other, for adding one."""
    directions = (pld._pmf_remove,) if pld._symmetric else (pld._pmf_remove, pld._pmf_add)
    dense = [each.to_dense_pmf() for each in directions]
    return tuple(Losses(d._discretization, d._lower_loss, np.asarray(d._probs), d._infinity_mass) for d in dense)


def composed_epsilon(parts: Sequence[tuple[Losses, int]], delta: float) -> float:
    """The least ε ≥ 0 with δ(ε) ≤ δ, of a composition: losses on one grid, and how often each is added."""
    from scipy.fft import irfft, next_fast_len, rfft

    grid = parts[0][0].grid
    upper, lower = (sum(count * losses.moments[k] for losses, count in parts) for k in (0, 1))
    log_tail = math.log(2 / _TAIL)
    last = math.ceil(min((upper + log_tail) / _ORDERS[:, 0]) / grid)
    first = math.floor(max(-(lower + log_tail) / _ORDERS[:, 0]) / grid)
    length = next_fast_len(last - first + 1, real=True)
    transform = np.ones(length // 2 + 1, complex)
    for losses, count in parts:  # what is outside of the bounds is wrapped around
        wrapped = np.pad(losses.probs, (0, -len(losses.probs) % length)).reshape(-1, length).sum(0)
        transform *= rfft(wrapped) ** count
    at = sum(count * losses.low for losses, count in parts)
    probs = np.roll(irfft(transform, length), (at - first) % length)
    infinite = _TAIL - math.expm1(sum(count * math.log1p(-losses.infinite) for losses, count in parts))
    return _least(infinite, np.arange(first, first + length) * grid, probs, delta)


def _least(infinite: float, losses: np.ndarray, probs: np.ndarray, delta: float) -> float:
    """With δ(ε) = infinite + Σ over losses l > ε of p · (1 − exp(ε − l)), which falls with ε."""
    if infinite > delta:
        return math.inf
    losses, probs = losses[losses >= 0], probs[losses >= 0]
    above = infinite + np.cumsum(probs[::-1])[::-1]  # of a loss and all that are larger
    below = np.cumsum((probs * np.exp(-losses))[::-1])[::-1]
    if not (much := np.flatnonzero(above > delta)).size:
        return 0.0
    # Up to the i-th loss from the one before it, δ(ε) = above_i − exp(ε) · below_i.
    losses, above, below = (each[: much[-1] + 1] for each in (losses, above, below))
    solved = np.log((above - delta) / below)
    within = solved <= losses
    return max(0.0, float(solved[np.argmax(within) if within.any() else -1]))


def _log_sum(logs: np.ndarray) -> np.ndarray:
    """log Σ exp along the last axis."""
    most = logs.max(-1, keepdims=True)
    return most[..., 0] + np.log(np.exp(logs - most).sum(-1))


# The grid on which privacy losses are discretised; dp-accounting's default. Losses grow as 1/noise², and so does the
# grid below _FULL: the number of points then stays the same, and epsilon the same to one part in a million.
_GRID = 1e-4
_FULL = 0.7
_COARSE = 10  # how much coarser the grid is on which a search begins; epsilon is then a little too large
_LARGE = 200.0  # an epsilon above which a grid of losses takes too much memory, and no digit matters
_MANY = 10**6  # a number of rounds above which it takes too much memory, too
_WITHIN = 2e-5  # of the logarithm of the noise
_SMALLEST, _LARGEST = 1e-6, 1e6  # of noises
_LEAST_DELTA = 1e-12  # what both accountants resolve
NOISE_REST = 2.0**-72  # the probability of what lies beyond the last radius of noise that is exact
NOISE_END = math.sqrt(-2 * math.log(NOISE_REST))  # that radius, 9.99


def weakness(delta: float, clients: int) -> str:
    """What is wrong with a δ that is not below one over the number of clients; empty: nothing.

    Example:
        >>> weakness(0.1, 50)
        'delta = 0.1 is not below 1/clients = 0.02: to publish the data of one client would satisfy it; give less'
        >>> weakness(0.001, 50)
        ''
    """
    if delta * clients < 1:
        return ""
    what = "to publish the data of one client would satisfy it"
    return f"delta = {delta:g} is not below 1/clients = {1 / clients:.3g}: {what}; give less"


@dataclass(frozen=True)
class Ledger:
    """The privacy that a run spends: (ε, δ)-differential privacy of clients, for all that the server releases.

    Every release is a sum of clients' parts, none longer than the clip, with Gaussian noise of standard deviation
    noise · clip added once. Who takes part in a round is one of three:

    - ``rate``: each client on its own with this probability (Poisson sampling). Neighbours: a client is added or
      removed. Privacy loss distributions (PLD).
    - ``cohort``: so many clients, uniformly without replacement. Neighbours: a client is replaced by another, which
      moves a sum by up to 2 · clip. Rényi differential privacy (RDP), but no more than without sampling.
    - neither: anybody, as long as no client takes part more than once in ``apart`` rounds in a row. Nothing is gained
      by sampling: one Gaussian mechanism for each participation, of which there are ⌈rounds/apart⌉. The noise may be
      correlated over ``apart`` rounds, by a banded strategy whose columns have norm 1 (:func:`banded`). Neighbours: a
      client is added or removed.

    Args:
        noise: standard deviation of the noise of a sum, in units of the clip: 0, or from 1e-6 to 1e6.
        clients: number N of clients.
        rate: probability q of taking part in a round, 1e-12 ≤ q ≤ 1.
        places: with ``rate``: the most clients that a cohort holds; others are left out at random. ``None``: all.
        cohort: clients in a round, 1 to N.
        apart: without ``rate`` and ``cohort``: a client takes part at most once in so many rounds in a row, ≥ 1.
        exchanges: releases in a round, all of the same cohort, ≥ 1.
        warmup: releases of all clients before the first round, ≥ 0.
        numbers: in a release. Noise of floating point has a last value, and behind it no density: the probability that
            a client is seen there is taken from δ, by this many numbers. 0: ideal noise.

    Raises:
        ConfigError: numbers out of range, or settings that do not go together.

    Example:
        >>> ledger = Ledger(1.0, 10_000, rate=0.01)
        >>> round(ledger.epsilon(1000, 1e-6), 4)
        2.1245
        >>> ledger.rounds(3.0, 1e-6)
        2061
        >>> ledger.relation, ledger.accountant
        ('add or remove a client', 'PLD')

    Sources: Mironov 2017, "Rényi differential privacy"; Koskela et al. 2020, "Computing tight differential privacy
    guarantees using FFT"; Doroshenko et al. 2022, "Connect the dots"; Wang et al. 2019, "Subsampled Rényi differential
    privacy and analytical moments accountant", Theorem 27 (without replacement); Choquette-Choo et al. 2023,
    "(Amplified) banded matrix factorization".
    """

    noise: float
    clients: int
    _: KW_ONLY
    rate: float | None = None
    places: int | None = None
    cohort: int | None = None
    apart: int = 1
    exchanges: int = 1
    warmup: int = 0
    numbers: int = 0

    def __post_init__(self) -> None:
        check_number("noise", self.noise, 0, _LARGEST, fixed=True)
        if 0 < self.noise < _SMALLEST:  # the accountants' numbers would overflow, and may come back as no loss at all
            raise ConfigError("noise", self.noise, f"give at least {_SMALLEST:g}, or 0 for no noise and no guarantee")
        check_count("clients", self.clients)
        if self.rate is not None:
            check_number("rate", self.rate, 1e-12, 1, fixed=True)
        for field, low, high in (("places", 1, None), ("cohort", 1, self.clients), ("apart", 1, MOST)):
            if getattr(self, field) is not None:
                check_count(field, getattr(self, field), low, high)
        check_count("exchanges", self.exchanges)
        check_count("warmup", self.warmup, 0)
        check_count("numbers", self.numbers, 0, None)
        if self.rate is not None and self.cohort is not None:
            raise ConfigError("cohort", self.cohort, "give either rate (Poisson sampling) or cohort (of a fixed size)")
        if self.apart > 1 and (self.rate is not None or self.cohort is not None):
            raise ConfigError("apart", self.apart, "it is for clients that are not sampled; leave rate and cohort out")
        if self.places is not None and self.rate is None:
            raise ConfigError("places", self.places, "it belongs to Poisson sampling; give rate, too")
        for field, kind in (("noise", float), ("rate", float), ("clients", int)):  # arrays cannot be looked up
            if getattr(self, field) is not None:
                object.__setattr__(self, field, kind(getattr(self, field)))

    @property
    def relation(self) -> str:
        """What two neighbouring federations differ in."""
        return "add or remove a client" if self.cohort is None else "replace a client"

    @property
    def accountant(self) -> Literal["PLD", "RDP"]:
        """The accountant: privacy loss distributions, or Rényi differential privacy."""
        return "PLD" if self.cohort is None else "RDP"

    def epsilon(self, rounds: int, delta: float) -> float:
        """The ε that so many rounds have spent.

        Where sampling by ``rate`` spends more than ε = 200, or goes on for more than a million rounds, the answer is a
        larger one: by RDP, and with ``places`` without the gain of sampling.

        Args:
            rounds: ≥ 0; the warm-up is counted besides.
            delta: δ, from 1e-12, below 1; less than 1/clients is customary.

        Returns:
            ε ≥ 0; infinite without noise.

        Raises:
            ConfigError: numbers out of range, or dp-accounting is not installed.

        Example:
            >>> Ledger(2.0, 100).epsilon(0, 1e-6)
            0.0
            >>> round(Ledger(2.0, 100, exchanges=2).epsilon(8, 1e-6), 4) == round(Ledger(0.5, 100).epsilon(1, 1e-6), 4)
            True
        """
        check_count("rounds", rounds, 0, MOST)
        return _epsilon(self, int(rounds), _delta(delta), 1)

    def tail(self, rounds: int) -> float:
        """The part of δ that the end of the noise takes, in so many rounds.

        Numbers are drawn in pairs, whose radius is exact up to T; beyond lie 2⁻⁷² of all
        (:func:`fedax.wire.privacy.standard_normal`). Where both of two sums that differ by Δ are possible, the ratio of
        their densities is that of ideal noise. In a release of d numbers all else has a probability of at most
        d 2⁻⁷² + √(d/2) Δ g(t) + Δ² g(Δ)/t, for each t ≤ Δ, with g(s) = T exp(−(T − s)²/2): the radius of pair i, which
        differs by Δ_i, lies from T − Δ_i to T with at most Δ_i g(Δ_i). Pairs with Δ_i ≤ t have Σ Δ_i ≤ √(d/2) Δ, the
        others Σ Δ_i ≤ Δ²/t.

        Args:
            rounds: ≥ 0; the warm-up is counted besides.

        Returns:
            From 0, without ``numbers``, to 1.

        Example:
            >>> [f"{Ledger(noise, 100, numbers=10**6).tail(1000):.0e}" for noise in (1.0, 0.5, 0.25)]
            ['3e-13', '6e-10', '1e-03']
        """
        if not self.numbers or not self.noise:
            return 0.0
        releases = rounds * self.exchanges + self.warmup
        shift = (1.0 if self.cohort is None and not self._is_cut else 2.0) / self.noise
        if shift >= NOISE_END:
            return 1.0

        def g(s: float) -> float:
            return NOISE_END * math.exp(-((NOISE_END - s) ** 2) / 2)

        spread = math.sqrt(self.numbers / 2) * shift
        shifted = [spread * g(shift)]  # no pair differs by more
        shifted += [spread * g(t) + shift**2 / t * g(shift) for t in (shift * k / 16 for k in range(1, 16))]
        return min(1.0, releases * (self.numbers * NOISE_REST + min(shifted)))

    @property
    def _is_cut(self) -> bool:
        """Whether clients of a Poisson cohort may be left out, so that one takes another's place."""
        return self.places is not None and self.places < self.clients

    def rounds(self, epsilon: float, delta: float) -> int:
        """The most rounds that spend no more than ε; 0 if not even one is within it, at most 999,999,999.

        Args:
            epsilon: the budget ε, > 0.
            delta: δ, from 1e-12, below 1.

        Raises:
            ConfigError: numbers out of range, or dp-accounting is not installed.

        Example:
            >>> Ledger(8.0, 100, apart=10).rounds(3.0, 1e-6)
            260
        """
        check_number("epsilon", epsilon, 0, open_low=True, fixed=True)
        delta = _delta(delta)
        most, step = 0, 1
        for coarser in self._grids:

            def fits(count: int, grid: int = coarser) -> bool:
                return _epsilon(self, count, delta, grid) <= epsilon

            most, step = _most(fits, most, step)
        return most

    @property
    def _grids(self) -> tuple[int, ...]:
        """How much coarser each grid of a search is, in order."""
        return (_COARSE, 1) if self.rate is not None else (1,)


def noise_for(epsilon: float, delta: float, rounds: int, clients: int, **design: Any) -> float:
    """The least noise with which a run stays within its budget, to one part in ten thousand.

    Args:
        epsilon: the budget ε, > 0.
        delta: δ, from 1e-12, below 1; less than 1/clients is customary.
        rounds: ≥ 0.
        clients: number of clients.
        design: ``rate``, ``places``, ``cohort``, ``apart``, ``exchanges``, ``warmup``, as :class:`Ledger` has them.

    Returns:
        Standard deviation of the noise of a sum, in units of the clip. ``Ledger(noise, clients, **design)``
        spends at most ε.

    Raises:
        ConfigError: numbers out of range, or dp-accounting is not installed.

    Example:
        >>> noise = noise_for(3.0, 1e-6, 1000, 10_000, rate=0.01)
        >>> round(noise, 3)
        0.865
        >>> Ledger(noise, 10_000, rate=0.01).epsilon(1000, 1e-6) <= 3.0
        True
    """
    check_number("epsilon", epsilon, 0, open_low=True, fixed=True)
    check_count("rounds", rounds, 0, MOST)
    delta = _delta(delta)
    ledger = Ledger(1.0, clients, **design)
    if rounds == ledger.warmup == 0:
        return 0.0

    from scipy.optimize import brentq

    guess, step = 0.0, 0.7  # logarithms
    for coarser in ledger._grids:

        def too_much(log_noise: float, grid: int = coarser) -> float:
            if not math.log(_SMALLEST) <= log_noise <= math.log(_LARGEST):
                raise ConfigError(
                    "epsilon", epsilon, f"no noise from {_SMALLEST:g} to {_LARGEST:g} spends about so much"
                )
            spent = _epsilon(Ledger(math.exp(log_noise), clients, **design), int(rounds), delta, grid)
            return math.log(min(max(spent, 1e-15), 1e15) / epsilon)

        low, high = _around(too_much, guess, step)
        guess, step = float(brentq(too_much, low, high, xtol=_WITHIN)), 1e-3
    while too_much(guess) > 0:
        guess += _WITHIN
    return math.exp(guess)


def _around(falling: Callable[[float], float], at: float, step: float) -> tuple[float, float]:
    """Two places, near to ``at`` if possible, between which a falling function changes its sign."""
    side = 1 if falling(at) > 0 else -1
    while (falling(at + side * step) > 0) == (side > 0):
        at, step = at + side * step, 2 * step
    return min(at, at + side * step), max(at, at + side * step)


def _most(fits: Callable[[int], bool], known: int, step: int) -> tuple[int, int]:
    """The most that fits, at least ``known``, and a step with which to go on from there; 0 always counts as fitting."""
    high = known + step
    while high <= MOST and fits(high):
        known, step = high, 2 * step
        high = known + step
    high = min(high, MOST + 1)
    while high - known > 1:
        middle = (known + high) // 2
        known, high = (middle, high) if fits(middle) else (known, middle)
    return known, 1 + known // 1000


def _delta(delta: Any) -> float:
    return float(check_number("delta", delta, _LEAST_DELTA, 1, open_high=True, fixed=True))


@functools.lru_cache(maxsize=16_384)
def _epsilon(ledger: Ledger, rounds: int, delta: float, coarser: int) -> float:
    if rounds == ledger.warmup == 0:
        return 0.0
    delta -= ledger.tail(rounds)
    if ledger.noise == 0 or delta <= 0:
        return math.inf
    with _quietly() as dp:
        noise = ledger.noise / math.sqrt(ledger.exchanges)  # of a round's exchanges together
        warmup_noise = ledger.noise / math.sqrt(ledger.warmup) if ledger.warmup else math.inf
        if ledger.cohort is not None:
            # dp-accounting has the noise in units of how far a sum can move; replacing a client moves it by two clips.
            sampled = _by_rdp(dp, (noise / 2, ledger.clients, ledger.cohort), rounds, warmup_noise / 2, delta)
            # RDP is loose for large cohorts.
            return min(sampled, _plain(dp, rounds, noise / 2, warmup_noise / 2, delta))
        if ledger.rate is None:
            return _plain(dp, -(-rounds // ledger.apart), noise, warmup_noise, delta)
        return _by_pld(dp, ledger, noise, rounds, warmup_noise, delta, coarser)


def _plain(dp: types.ModuleType, rounds: int, noise: float, warmup_noise: float, delta: float) -> float:
    """ε of a client that is in every round: one Gaussian mechanism, in closed form."""
    return float(dp.get_epsilon_gaussian((rounds / noise**2 + 1 / warmup_noise**2) ** -0.5, delta))


def _by_pld(
    dp: types.ModuleType, ledger: Ledger, noise: float, rounds: int, warmup_noise: float, delta: float, coarser: int
) -> float:
    """ε under Poisson sampling, by privacy loss distributions."""
    cut = ledger._is_cut
    above = _by_rdp(dp, (noise, ledger.rate), rounds, warmup_noise, delta)
    if above > _LARGE or rounds > _MANY:
        if not cut:
            return above
        # A client in a full cohort takes another's place: a sum moves by up to two clips.
        return _plain(dp, rounds, noise / 2, warmup_noise, delta)
    grid = _GRID * max(1.0, (_FULL / min(noise, warmup_noise)) ** 2) * coarser
    rest = [(_one_round(warmup_noise, 1.0, None, None, grid)[0], 1)] if math.isfinite(warmup_noise) else []
    if not rounds:
        return composed_epsilon(rest, delta)
    one = _one_round(noise, ledger.rate, *((ledger.clients, ledger.places) if cut else (None, None)), grid)
    return max(composed_epsilon([(direction, rounds), *rest], delta) for direction in one)


@functools.lru_cache(maxsize=8)
def _one_round(
    noise: float, rate: float | None, clients: int | None, places: int | None, grid: float
) -> tuple[Losses, ...]:
    """Privacy losses of one round of Poisson sampling; with ``places``, of a cohort that leaves clients out."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    if clients is None:
        made = pld.from_gaussian_mechanism(noise, value_discretization_interval=grid, sampling_prob=rate)
    else:
        made = pld.from_truncated_subsampled_gaussian_mechanism(
            clients, rate, places, noise, value_discretization_interval=grid
        )
    return losses_of(made)


def _by_rdp(dp: types.ModuleType, mechanism: tuple[Any, ...], rounds: int, warmup_noise: float, delta: float) -> float:
    orders, one = _renyi(*mechanism)
    spent = rounds * one + orders / (2 * warmup_noise**2)
    return float(dp.rdp.compute_epsilon(orders, spent, delta)[0])


@functools.lru_cache(maxsize=1024)
def _renyi(noise: float, *sampled: Any) -> tuple[np.ndarray, np.ndarray]:
    """Orders, and the Rényi divergences of one round, for a sampling rate, or for N and the size of a cohort."""
    import dp_accounting as dp

    gaussian = dp.GaussianDpEvent(noise)
    if len(sampled) == 1:
        accountant, event = dp.rdp.RdpAccountant(), dp.PoissonSampledDpEvent(*sampled, gaussian)
    else:
        accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
        event = dp.SampledWithoutReplacementDpEvent(*sampled, gaussian)
    accountant.compose(event)
    return accountant.orders, accountant.rdp


@contextlib.contextmanager
def _quietly() -> Iterator[types.ModuleType]:
    """dp-accounting without its log messages and warnings, which say nothing to a user."""
    try:
        import dp_accounting
    except ImportError as error:
        hint = "accounting needs dp-accounting, which cannot be imported: pip install 'fedax[privacy]'"
        raise ConfigError("privacy", "dp-accounting", hint) from error
    logger = logging.getLogger("absl")
    before, logger.disabled = logger.disabled, True
    try:
        with np.errstate(all="ignore"):
            yield dp_accounting
    finally:
        logger.disabled = before
