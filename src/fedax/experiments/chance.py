"""How much of the difference of two methods may be chance: standard errors, intervals, and what they cover.

The runs of two methods with one seed are a pair: they have the same initial model, cohorts, minibatches and data. A
difference D_sk is that of seed s = 1 … S at test example k = 1 … n; D_s is its mean over the examples.

- *Each seed has a random split of its own.* The test and training parts of the splits overlap, so the usual error of a
  mean is too small. Nadeau & Bengio (2003, "Inference for the generalization error") take the variance
  (1/S + n_test/n_train) s² of the D_s, and S − 1 degrees of freedom: the corrected resampled t-test.
- *All seeds have the same test examples.* Seeds and examples are two sources of chance, and the error of the mean is
  clustered by both (Cameron, Gelbach & Miller 2011, "Robust inference with multiway clustering"): the variance is
  s²/S of the D_s plus that of the mean of D_k, the examples' differences averaged over the seeds. What both share would
  be subtracted there; it is left in, which is on the safe side. The examples of a client are drawn from its own, so
  their variance is within clients; from :data:`MANY_CLIENTS` clients on it is between clients, which covers that others
  might have taken part. Welch and Satterthwaite's degrees of freedom belong to the sum.
- *There are no test examples*, as where F itself is compared: s²/S, and the seeds of training alone are covered.

A closed form takes the place of resampling by draws: for a mean both estimate the same variance, it needs no seed of
its own, and Student's quantiles are wider than a bootstrap's where there are few.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedax.data import FEDERATIONS

MANY_CLIENTS = 20  # so many are looked at as a sample of clients
_ROUNDING = 1e-6  # relative; what differs by less in float32 is the same

SEEDS, SPLIT, DEALT, DRAWN = "the seeds of training", "the split", "how the data are dealt", "other data of this kind"
EXAMPLES, CLIENTS = "the test examples", "the clients"


@dataclass(frozen=True)
class Gap:
    """A method's value less another's.

    Attributes:
        mean: over the seeds.
        error: the standard error of the mean, ≥ 0.
        freedom: the degrees of freedom of Student's t.
        same: whether the two differ by rounding alone.

    Example:
        >>> gap = Gap(mean=2.0, error=0.5, freedom=9.0)
        >>> [round(end, 3) for end in gap.interval()], round(gap.p, 4)
        ([0.869, 3.131], 0.0031)
    """

    mean: float
    error: float
    freedom: float
    same: bool = False

    @property
    def p(self) -> float:
        """The two-sided p-value of Student's t; 1 of differences that are rounding."""
        from scipy import special  # scipy.stats has the same with ten times the work, and is slow to import

        if self.same or not self.mean:
            return 1.0
        return float(2 * special.stdtr(self.freedom, -abs(self.mean) / self.error)) if self.error else 0.0

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """The ends of the confidence interval."""
        from scipy import special

        half = self.error * float(special.stdtrit(self.freedom, 0.5 + confidence / 2)) if self.error else 0.0
        return self.mean - half, self.mean + half


def gap_of(
    one: np.ndarray,
    other: np.ndarray,
    overlap: float = 0.0,
    examples: tuple[np.ndarray, np.ndarray] | None = None,
    sizes: np.ndarray | None = None,
) -> Gap:
    """The difference of two methods, ``other`` less ``one``.

    Args:
        one, other: [S ≥ 2] values of the seeds that both have.
        overlap: n_test/n_train of random splits; 0 where the seeds have no splits of their own.
        examples: the same of each test example, [n] each, averaged over the seeds; ``None``: not known, or none.
        sizes: [N] how many of them each client has, in order; ``None``: they are nobody's in particular.

    Example:
        >>> a = np.array([1.0, 2.0, 3.0])
        >>> round(gap_of(a, a + [0.1, 0.2, 0.15]).p, 4), gap_of(a, a + 1).p, gap_of(a, a * (1 + 1e-9)).p
        (0.0351, 0.0, 1.0)
        >>> round(gap_of(a, a + [0.1, 0.2, 0.15], overlap=0.2).p, 4)
        0.0545
    """
    gaps, number = other - one, len(one)
    mean = float(gaps.mean())
    small = _ROUNDING * max(np.abs(one).max(), np.abs(other).max())
    same = bool(np.abs(gaps).max() <= small)
    of_seeds = 0.0 if np.ptp(gaps) <= small else (1 / number + overlap) * float(np.var(gaps, ddof=1))
    if examples is None:
        return Gap(mean, math.sqrt(of_seeds), number - 1, same)
    each = np.asarray(examples[1], float) - np.asarray(examples[0], float)
    of_examples, freedom = variance_of_mean(each, sizes)
    total = of_seeds + of_examples
    if total:
        freedom = total**2 / (of_seeds**2 / (number - 1) + (of_examples**2 / freedom if freedom else 0.0))
    return Gap(mean, math.sqrt(total), max(freedom, 1.0), same)


def variance_of_mean(each: np.ndarray, sizes: np.ndarray | None) -> tuple[float, float]:
    """The variance of the mean of some examples' values, and its degrees of freedom.

    Args:
        each: [n].
        sizes: [N], as of :func:`gap_of`. Clients of one example count as one client together.

    Returns:
        (0, 0) where there are not two examples; infinite where no variance can be estimated.

    Example:
        >>> values = np.array([1.0, 3.0, 10.0, 14.0])
        >>> variance, freedom = variance_of_mean(values, np.array([2, 2]))
        >>> variance, round(freedom, 2)
        (1.25, 1.47)
    """
    n = len(each)
    sizes = np.array([n]) if sizes is None else np.asarray(sizes)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    if len(sizes) >= MANY_CLIENTS:
        sums = np.bincount(owner, each - each.mean(), len(sizes))
        return float(len(sizes) / (len(sizes) - 1) * np.sum(sums**2)) / n**2, float(len(sizes) - 1)
    alone = sizes == 1
    if alone.any():  # of one example no variance can be told
        owner = np.where(alone[owner], len(sizes), owner)
        if alone.sum() == 1 and len(sizes) > 1:  # with those of another client
            owner[owner == len(sizes)] = int(np.argmax(sizes))
    _, owner, counts = np.unique(owner, return_inverse=True, return_counts=True)
    if counts.min() < 2:
        return math.inf, 1.0
    means = np.bincount(owner, each) / counts
    squares = np.bincount(owner, (each - means[owner]) ** 2)
    parts = counts * squares / (counts - 1) / n**2
    total = float(parts.sum())
    return total, float(total**2 / np.sum(parts**2 / (counts - 1))) if total else float(n - len(counts))


# ---- what a configuration covers


def fixed_part(config: Mapping[str, Any], column: str | None) -> str | None:
    """The held-out part that a column is measured on, where all seeds have the same examples of it; else ``None``.

    Example:
        >>> split = {"train": 0.7, "val": 0.15, "test": 0.15}
        >>> own = {"data": {"name": "csv", "split": split}, "run": {"split_seeds": True}}
        >>> fixed_part(own, "test_loss"), fixed_part(own | {"run": {}}, "test_loss"), fixed_part(own, "train_loss")
        (None, 'test', None)
    """
    part = part_of(column)
    return None if part is None or redrawn(config, part) else part


def part_of(column: str | None) -> str | None:
    """``"test"`` or ``"val"`` of a column of held-out examples; ``None`` of others."""
    return next((part for part in ("test", "val") if (column or "").startswith(f"{part}_")), None)


def redrawn(config: Mapping[str, Any], part: str) -> bool:
    """Whether each seed has other examples in a held-out part."""
    data = config["data"]
    if not config["run"].get("split_seeds"):
        return False
    return bool(data.get("split", {}).get(part)) or generated(data)


def generated(data: Mapping[str, Any]) -> bool:
    """Whether the data are drawn from a model, anew with each seed."""
    return "seed" in data and data["name"] in FEDERATIONS


def overlap(config: Mapping[str, Any], column: str) -> float:
    """n_test/n_train of a column, where each seed has a split of its own that differs in nothing else; else 0.

    A column of the training examples has that of all that is held out: so large a share of them the splits replace.
    """
    data, part = config["data"], part_of(column)
    split = data.get("split")
    if not config["run"].get("split_seeds") or not split or generated(data):
        return 0.0
    held_out = split["val"] + split["test"] if part is None else split[part]
    return float(held_out / split["train"])


def covered(config: Mapping[str, Any], column: str, examples: bool, clients: int) -> list[str]:
    """The sources of chance that the errors of a comparison cover.

    Args:
        config: a whole configuration.
        column: that decides.
        examples: whether the test examples' differences are known.
        clients: how many clients these belong to.

    Example:
        >>> covered({"data": {"name": "csv"}, "run": {}}, "test_loss", examples=True, clients=3)
        ['the seeds of training', 'the test examples']
    """
    data, part, found = config["data"], part_of(column), [SEEDS]
    if config["run"].get("split_seeds"):
        found += [DRAWN] if generated(data) else [DEALT] * ("partition" in data) + [SPLIT] * ("split" in data)
    if part is not None and not generated(data) and (redrawn(config, part) or examples):
        found.append(EXAMPLES)
    return found + [CLIENTS] * (examples and clients >= MANY_CLIENTS)
