"""Privacy losses of many rounds from those of one, for many numbers of rounds.

dp-accounting makes the distribution of one round's loss. These are its own steps from there (Koskela et al. 2020;
Gopi et al. 2021, "Numerical composition of differential privacy"): bounds by moments, a Fourier transform, and the sum
of the tail. They are here because a run asks for each of its rows: bounds are computed once, and no step is a loop.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

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


def of_round(pld: Any) -> tuple[Losses, ...]:
    """The losses of dp-accounting's distribution of one round: for removing a client and, if other, for adding one."""
    directions = (pld._pmf_remove,) if pld._symmetric else (pld._pmf_remove, pld._pmf_add)
    dense = [each.to_dense_pmf() for each in directions]
    return tuple(Losses(d._discretization, d._lower_loss, np.asarray(d._probs), d._infinity_mass) for d in dense)


def epsilon(parts: Sequence[tuple[Losses, int]], delta: float) -> float:
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
