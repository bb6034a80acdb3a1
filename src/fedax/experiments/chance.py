"""Standard errors and intervals for the difference of two methods, and the sources of chance that they cover.

The runs of two methods with one seed are a pair: they have the same initial model, cohorts, minibatches and data. D_sk
is the difference with seed s = 1 … S at test example k = 1 … n; D_s is its mean over the examples.

- *Each seed has a random split of its own.* The test and training parts of the splits overlap, so the usual error of a
  mean is too small. Nadeau & Bengio (2003, "Inference for the generalization error") take the variance
  (1/S + n_test/n_train) s² of the D_s, and S − 1 degrees of freedom: the corrected resampled t-test.
- *All seeds have the same test examples.* Seeds and examples are two sources of chance, and the error of the mean is
  clustered by both (Cameron, Gelbach & Miller 2011, "Robust inference with multiway clustering"): the variance is
  s²/S of the D_s plus that of the mean of D_k, the examples' differences averaged over the seeds. Their formula
  subtracts the part that both share; it is left in here, which errs on the safe side. A client's examples are drawn
  from its own distribution, so their variance is taken within clients. From :data:`MANY_CLIENTS` clients on it is taken
  between clients, which covers that other clients might have taken part. The sum has the degrees of freedom of Welch
  and Satterthwaite.
- *There are no test examples*, as where F itself is compared: s²/S, which covers only the seeds of training.

These closed forms are used instead of a bootstrap: for a mean both estimate the same variance, they need no random
numbers, and Student's quantiles are wider than those of a bootstrap with few seeds.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedax.data import FEDERATIONS

MANY_CLIENTS = 20  # from so many clients on, they are treated as a sample of clients
ROUNDING = 1e-6  # relative; float32 values that differ by less count as equal

SEEDS, SPLIT, DEALT, DRAWN = "the seeds of training", "the split", "how the data are dealt", "other data of this kind"
EXAMPLES, VALIDATION, CLIENTS = "the test examples", "the validation examples", "the clients"


@dataclass(frozen=True)
class Gap:
    """The difference of two methods: the value of one less that of another.

    Attributes:
        mean: over the seeds; 0 where ``same``.
        error: the standard error of the mean, ≥ 0; infinite where it cannot be estimated.
        freedom: the degrees of freedom of Student's t.
        same: whether the two differ only by rounding.
        tests: how many differences are judged together, ≥ 1. ``p`` and the interval are Bonferroni's over them, so that
            the interval leaves zero out exactly where p is below its level, and all intervals hold together.

    Example:
        >>> gap = Gap(mean=2.0, error=0.5, freedom=9.0)
        >>> [round(end, 3) for end in gap.interval()], round(gap.p, 4)
        ([0.869, 3.131], 0.0031)
        >>> three = Gap(mean=2.0, error=0.5, freedom=9.0, tests=3)
        >>> [round(end, 3) for end in three.interval()], round(three.p, 4)
        ([0.533, 3.467], 0.0093)
    """

    mean: float
    error: float
    freedom: float
    same: bool = False
    tests: int = 1

    @property
    def p(self) -> float:
        """The two-sided p-value of Student's t; 1 for differences that are only rounding."""
        from scipy import special  # scipy.stats has the same with ten times the work, and is slow to import

        if self.same or not self.mean:
            return 1.0
        alone = float(2 * special.stdtr(self.freedom, -abs(self.mean) / self.error)) if self.error else 0.0
        return min(1.0, self.tests * alone)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """The ends of the confidence interval."""
        from scipy import special

        outside = (1 - confidence) / self.tests
        half = self.error * float(special.stdtrit(self.freedom, 1 - outside / 2)) if self.error else 0.0
        return self.mean - half, self.mean + half


def gap_of(
    one: np.ndarray,
    other: np.ndarray,
    overlap: float = 0.0,
    examples: tuple[np.ndarray, np.ndarray] | None = None,
    sizes: np.ndarray | None = None,
    tests: int = 1,
) -> Gap:
    """The difference of two methods, ``other`` less ``one``.

    Args:
        one, other: [S ≥ 2] values of the seeds that both have.
        overlap: n_test/n_train of random splits; 0 if all seeds have the same split.
        examples: the values of both at each test example, [n] each, averaged over the seeds; ``None``: not known.
        sizes: [N] how many test examples each client has, in order; ``None``: they belong to no clients.
        tests: how many differences are judged together.

    Example:
        >>> a = np.array([1.0, 2.0, 3.0])
        >>> round(gap_of(a, a + [0.1, 0.2, 0.15]).p, 4), gap_of(a, a + 1).p, gap_of(a, a * (1 + 1e-9)).p
        (0.0351, 0.0, 1.0)
        >>> round(gap_of(a, a + [0.1, 0.2, 0.15], overlap=0.2).p, 4)
        0.0545
    """
    gaps, number = other - one, len(one)
    small = ROUNDING * max(np.abs(one).max(), np.abs(other).max())
    same = bool(np.abs(gaps).max() <= small)
    mean = 0.0 if same else float(gaps.mean())
    if np.ptp(gaps) > small:
        of_seeds = (1 / number + overlap) * float(np.var(gaps, ddof=1))
    else:  # equal over different splits: a share of so few examples that their chance cannot be seen
        of_seeds = math.inf if overlap and not same else 0.0
    if examples is None:
        return Gap(mean, math.sqrt(of_seeds), number - 1, same, tests)
    differences = np.asarray(examples[1], float) - np.asarray(examples[0], float)
    of_examples, freedom = variance_of_mean(differences, sizes)
    total = of_seeds + of_examples
    if math.isinf(total):
        freedom = 1.0
    elif total:
        freedom = total**2 / (of_seeds**2 / (number - 1) + (of_examples**2 / freedom if freedom else 0.0))
    return Gap(mean, math.sqrt(total), max(freedom, 1.0), same, tests)


def variance_of_mean(values: np.ndarray, sizes: np.ndarray | None) -> tuple[float, float]:
    """The variance of the mean of the examples' values, and its degrees of freedom.

    Args:
        values: [n] of the examples.
        sizes: [N], as in :func:`gap_of`. Clients with one example count together as one client.

    Returns:
        The variance is infinite where it cannot be estimated.

    Example:
        >>> values = np.array([1.0, 3.0, 10.0, 14.0])
        >>> variance, freedom = variance_of_mean(values, np.array([2, 2]))
        >>> variance, round(freedom, 2)
        (1.25, 1.47)
    """
    n = len(values)
    sizes = np.array([n]) if sizes is None else np.asarray(sizes)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    if len(sizes) >= MANY_CLIENTS:
        sums = np.bincount(owner, values - values.mean(), len(sizes))
        return float(len(sizes) / (len(sizes) - 1) * np.sum(sums**2)) / n**2, float(len(sizes) - 1)
    single = sizes == 1
    if single.any():  # one example gives no variance
        owner = np.where(single[owner], len(sizes), owner)
        if single.sum() == 1 and len(sizes) > 1:  # merge it with another client
            owner[owner == len(sizes)] = int(np.argmax(sizes))
    _, owner, counts = np.unique(owner, return_inverse=True, return_counts=True)
    if counts.min() < 2:
        return math.inf, 1.0
    means = np.bincount(owner, values) / counts
    squares = np.bincount(owner, (values - means[owner]) ** 2)
    parts = counts * squares / (counts - 1) / n**2
    total = float(parts.sum())
    return total, float(total**2 / np.sum(parts**2 / (counts - 1))) if total else float(n - len(counts))


# ---- what a configuration covers


def fixed_part(config: Mapping[str, Any], column: str | None) -> str | None:
    """The held-out part that a column is measured on, if all seeds have the same examples there; else ``None``.

    Example:
        >>> split = {"train": 0.7, "val": 0.15, "test": 0.15}
        >>> own = {"data": {"name": "csv", "split": split}, "run": {"split_seeds": True}}
        >>> fixed_part(own, "test_loss"), fixed_part(own | {"run": {}}, "test_loss"), fixed_part(own, "train_loss")
        (None, 'test', None)
    """
    part = part_of(column)
    return None if part is None or redrawn(config, part) else part


def part_of(column: str | None) -> str | None:
    """``"test"``, ``"val"`` or ``"unseen"`` for a column of held-out examples; ``None`` for others."""
    return next((part for part in ("test", "val", "unseen") if (column or "").startswith(f"{part}_")), None)


def redrawn(config: Mapping[str, Any], part: str) -> bool:
    """Whether the examples of a held-out part differ from seed to seed."""
    data = config["data"]
    if not config["run"].get("split_seeds"):
        return False
    if leaves_out_each(data):
        return part == "unseen"  # the rows of the others are split alike
    return bool(data.get("split", {}).get("clients" if part == "unseen" else part)) or generated(data)


def generated(data: Mapping[str, Any]) -> bool:
    """Whether the data are generated from a model, anew for each seed."""
    return "seed" in data and data["name"] in FEDERATIONS and not leaves_out_each(data)


def leaves_out_each(data: Mapping[str, Any]) -> bool:
    """Whether each seed leaves out another client of the same data."""
    return bool(data.get("split", {}).get("clients") == "each")


def overlap(config: Mapping[str, Any], column: str) -> float:
    """n_test/n_train for a column, if each seed has its own split of the same examples; else 0.

    For columns of the training examples n_test counts all held-out examples, since the splits replace that many.
    """
    data, part = config["data"], part_of(column)
    split = data.get("split")
    if not config["run"].get("split_seeds") or not split or generated(data):
        return 0.0
    if part == "unseen":
        left_out = 1 / max(2, len(config["run"]["seeds"])) if leaves_out_each(data) else split["clients"]
        return float(left_out / (1 - left_out))
    held_out = split["val"] + split["test"] if part is None else split[part]
    return float(held_out / split["train"])


def covered(config: Mapping[str, Any], column: str, examples: bool, clients: int) -> list[str]:
    """The sources of chance that the errors of a comparison cover.

    Args:
        config: a whole configuration.
        column: the deciding column.
        examples: whether differences at single test examples are known.
        clients: how many clients the test examples belong to.

    Example:
        >>> covered({"data": {"name": "csv"}, "run": {}}, "test_loss", examples=True, clients=3)
        ['the seeds of training', 'the test examples']
    """
    data, part, sources = config["data"], part_of(column), [SEEDS]
    if leaves_out_each(data):
        return [*sources, CLIENTS] if part == "unseen" else sources
    if config["run"].get("split_seeds"):
        sources += [DRAWN] if generated(data) else [DEALT] * ("partition" in data) + [SPLIT] * ("split" in data)
    if part is not None and not generated(data) and (redrawn(config, part) or examples):
        sources.append(VALIDATION if part == "val" else EXAMPLES)
    return sources + [CLIENTS] * (examples and clients >= MANY_CLIENTS)
