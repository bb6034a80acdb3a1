"""Ranking metrics: AUC and average precision.

Outside of a run they are exact, by sorting. In a run they are computed from a histogram of the log-odds for each of the
two labels. A histogram is a sum over examples, so no rows leave a client, and no device sorts. The bins are the leading
bits of ``1 + |log-odds|`` as a float32: equally wide between two powers of two, twice as wide in the next. So they are
narrow near 0, where most scores are, and still distinguish confident predictions of an unbalanced problem. The bin is a
monotone function of the score without rounding, the same on all devices. Scores in one bin count as equal; ``bound``
computes the largest error of that from the histogram.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from fedax.metrics.base import (
    Array,
    Metric,
    Sums,
    are_probabilities,
    checked,
    counters,
    each_weight,
    functions_of,
    log_odds,
    number_of,
    of_two,
    second,
)
from fedax.numbers import check_count

_OCTAVES = 11  # all log-odds beyond ±2047 are in one bin
_ONE = 0x3F800000  # the bits of 1.0


def bin_of(score: Array, bits: int) -> Array:
    """The bin of each score, a float32, from 0 to 22·2^bits − 1; a monotone function.

    Example:
        >>> bin_of(np.array([-1e9, -0.5, 0.0, 0.5, 80.0], np.float32), bits=2).tolist()
        [0, 41, 44, 46, 69]
    """
    f, half = functions_of(score), _OCTAVES << bits
    size = 1 + f.abs(score.astype(np.float32))
    whole = size.view(np.int32) if f is np else jax.lax.bitcast_convert_type(size, jnp.int32)
    beyond = f.clip((whole - _ONE) >> (23 - bits), 0, half - 1)
    return f.where(score < 0, half - 1 - beyond, half + beyond)


def edges(bits: int) -> np.ndarray:
    """The log-odds between the bins, [22·2^bits + 1] from −∞ to ∞: a bin has the scores from its lower one on.

    Example:
        >>> edges(bits=1)[[0, 20, 21, 22, 23, 24, 44]].tolist()
        [-inf, -1.0, -0.5, 0.0, 0.5, 1.0, inf]
        >>> bits, scores = 9, np.random.default_rng(0).normal(size=1000).astype(np.float32)
        >>> bool((np.digitize(scores, edges(bits)[1:-1]) == bin_of(scores, bits)).all())
        True
    """
    sizes = (_ONE + (np.arange(1, _OCTAVES << bits, dtype=np.int32) << (23 - bits))).view(np.float32).astype(float) - 1
    return np.concatenate([[-np.inf], -sizes[::-1], [0.0], sizes, [np.inf]])


class _RankingMetric(Metric):
    """A metric of two histograms, one for each label."""

    bits: int
    better = "higher"
    kind = "classification"
    ranks = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "bits", check_count("bits", self.bits, 1, 14))  # of NumPy too

    def __call__(self, y_true: object, y_score: object, sample_weight: object = None) -> float:
        """As in :class:`fedax.metrics.Metric`; [n] scores of any scale are ranked as they are."""
        y, score, weights = checked(self, y_true, y_score, sample_weight)
        weights = np.ones(len(y)) if weights is None else weights
        if score.ndim > y.ndim and are_probabilities(y, score.astype(float)):
            if score.shape[-1] != 2:
                return self._mean_over_classes(score, y, weights)
            score = score[..., 1]
        return self.exact(score, y, weights)

    def exact(self, outputs: Array, y: Array, weights: Array = None) -> float:
        """The exact value, by sorting."""
        outputs, y = np.asarray(outputs, float), np.asarray(y)
        weights = np.ones(len(y)) if weights is None else np.asarray(weights, float)
        if of_two(outputs, y):
            weight_of_label = each_weight(weights, y).ravel()
            return self._exact_of_two(log_odds(outputs, y).ravel(), second(y).ravel(), weight_of_label)
        return self._mean_over_classes(_against_the_rest(outputs), y, weights)

    def _mean_over_classes(self, scores: np.ndarray, y: np.ndarray, weights: np.ndarray) -> float:
        """The mean over the classes, each against the rest."""
        weight_of_label, scores = each_weight(weights, y).ravel(), scores.reshape(-1, scores.shape[-1])
        return float(
            np.mean(
                [self._exact_of_two(s, (y.ravel() == c).astype(int), weight_of_label) for c, s in enumerate(scores.T)]
            )
        )

    def _exact_of_two(self, score: np.ndarray, y: np.ndarray, weights: np.ndarray) -> float:
        """The exact value for two classes; ``y`` is 0 or 1."""
        if np.isnan(score).any():
            return np.nan
        order = np.argsort(score, kind="stable")
        score, y, weights = score[order], y[order], weights[order]
        starts = np.append(0, np.flatnonzero(score[1:] != score[:-1]) + 1)
        groups = [np.add.reduceat(weights * (y == label), starts) for label in (0, 1)]
        with np.errstate(all="ignore"):
            return self._value_of_groups(*groups)

    def sums(self, outputs: Array, y: Array, weights: Array) -> Sums:
        """The histogram, [2, bins] or, for more than two classes, [C, 2, bins]; and the number of NaN scores."""
        f, size = functions_of(outputs), (2 * _OCTAVES) << self.bits
        weight = each_weight(weights, y)
        if of_two(outputs, y):
            scores, true, first = log_odds(outputs, y), second(y), 0
        else:
            classes = f.arange(number_of(outputs, y), dtype=np.int32)
            scores, true = _against_the_rest(outputs), (y[..., None] == classes).astype(np.int32)
            weight, first = f.broadcast_to(weight[..., None], scores.shape), 2 * size * classes
        undefined = scores != scores
        places = first + size * true + f.where(undefined, 0, bin_of(scores, self.bits))
        shape = (2, size) if of_two(outputs, y) else (number_of(outputs, y), 2, size)
        counts = counters(places, weight, int(np.prod(shape))).reshape(shape)
        return {"counts": counts, "lost": f.where(undefined, weight, 0).sum()}

    def value(self, sums: Sums, labels: Sums = ()) -> float:
        """Scores in one bin count as equal."""
        return float(np.mean([self._value_of_groups(*pair) for pair in self._pairs(sums)]))

    def bound(self, sums: Sums) -> float:
        """The largest possible error of the value, over all scores in the bins."""
        with np.errstate(all="ignore"):
            return float(np.mean([self._bound_of_groups(*pair) for pair in self._pairs(sums)]))

    def _pairs(self, sums: Sums) -> np.ndarray:
        counts = np.asarray(sums["counts"], float)
        counts = np.where(np.asarray(sums["lost"]) > 0, np.nan, counts)
        return counts.reshape(-1, *counts.shape[-2:])

    def _value_of_groups(self, negative: np.ndarray, positive: np.ndarray) -> float:
        """The value from groups of equal scores, the lowest first: the weight of each label in each group."""
        raise NotImplementedError

    def _bound_of_groups(self, negative: np.ndarray, positive: np.ndarray) -> float:
        raise NotImplementedError


def _against_the_rest(logits: Array) -> Array:
    """The log-odds of each class against all others."""
    f = functions_of(logits)
    most = logits.max(axis=-1, keepdims=True)
    parts = f.exp(logits - most)
    # For the largest class the others are summed, because 1 − p would be rounded to 0.
    which = f.arange(logits.shape[-1]) == f.argmax(logits, axis=-1)[..., None]
    others = f.where(which, 0, parts)
    rest = f.where(which, others.sum(axis=-1, keepdims=True), 1 + others.sum(axis=-1, keepdims=True) - others)
    return logits - most - f.log(rest)


@dataclass(frozen=True)
class AUC(_RankingMetric):
    """Area under the ROC curve: how often a positive example has a higher score than a negative one; ties count half.

    Of more than two classes, the mean over them of each against the rest. Not a number where a label does not occur.

    In a run it is that of a histogram (:mod:`fedax.metrics.ranking`). Pairs in one bin count half and are one or zero
    or half, so it is wrong by at most half their share, ``Σ_b P_b N_b / (2 P N)``: ``bound(sums)``.

    Args:
        bits: of the histogram: 2^bits bins for each doubling of 1 + |log-odds|, from 1 to 14; 22·2^bits in all, of two
            whole numbers each. The default takes 90 kB a class, for each of the models that are evaluated side by side.

    Raises:
        ConfigError: bits out of range.

    Example:
        >>> AUC()([0, 1, 0, 1], [0.1, 0.9, 0.5, 0.5]), AUC()([1, 1], [0.1, 0.9])
        (0.875, nan)
    """

    bits: int = 9

    def _value_of_groups(self, negative: np.ndarray, positive: np.ndarray) -> float:
        pairs = negative.sum() * positive.sum()
        return float(np.divide((positive * (np.cumsum(negative) - negative / 2)).sum(), pairs))

    def _bound_of_groups(self, negative: np.ndarray, positive: np.ndarray) -> float:
        return float(np.divide((positive * negative).sum(), 2 * negative.sum() * positive.sum()))


@dataclass(frozen=True)
class AveragePrecision(_RankingMetric):
    """Mean over the positive examples of the precision among those with their score or a higher one.

    Of more than two classes, the mean over them of each against the rest. Not a number where no example is positive.

    In a run it is that of a histogram (:mod:`fedax.metrics.ranking`). For the bound, let a bin have p positive and q
    negative examples, and the bins above it P⁺ and N⁺. The precision at its j-th positive example is t/(t + f), where
    of the positive ones P⁺ + j ≤ t ≤ P⁺ + p have that score or a higher one, and of the negative ones
    N⁺ ≤ f ≤ N⁺ + q. It rises with t and falls with f. So what the bin adds to the value, times the number of positive
    examples, is between ``Σ_j (P⁺ + j)/(P⁺ + j + N⁺ + q)`` and ``p (P⁺ + p)/(P⁺ + p + N⁺)``; the histogram's own
    figure, that of equal scores, is between them, and ``bound(sums)`` is its larger distance to one of the two totals.

    Args:
        bits: as of :class:`AUC`.

    Raises:
        ConfigError: bits out of range.

    Example:
        >>> AveragePrecision()([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]).__round__(4)
        0.8333
    """

    bits: int = 9

    def _value_of_groups(self, negative: np.ndarray, positive: np.ndarray) -> float:
        p, q = positive[::-1], negative[::-1]  # the highest first
        above, below = np.cumsum(p), np.cumsum(q)
        occupied = p > 0
        return float(np.divide((p[occupied] * above[occupied] / (above + below)[occupied]).sum(), p.sum()))

    def _bound_of_groups(self, negative: np.ndarray, positive: np.ndarray) -> float:
        from scipy.special import digamma  # slow to import

        if np.isnan(positive).any():
            return np.nan
        p, q = positive[::-1], negative[::-1]  # the highest first
        t, f = np.cumsum(p), np.cumsum(q)
        occupied = p > 0
        highest = (p * t / (t + f - q))[occupied].sum()
        # Σ_j (a + j)/(a + j + c) = p − c (ψ(a + p + c + 1) − ψ(a + c + 1)), where a = P⁺ and c = N⁺ + q.
        lowest = (p - f * (digamma(t + f + 1) - digamma(t - p + f + 1)))[occupied].sum()
        middle = self._value_of_groups(negative, positive) * p.sum()
        return float(np.divide(max(highest - middle, middle - lowest), p.sum()))
