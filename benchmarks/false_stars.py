"""How often is a method called better than itself, and how often is a verdict true, on small data?

    python benchmarks/false_stars.py --json false_stars.json

Each data set is dealt to clients and split 70 / 15 / 15 as ``fedax compare`` does with tables: 30 rounds, batch
32, two to five epochs at random. What is compared with plain FedAvg:

- itself, with other seeds: the same splits, but other minibatches and other draws of the work;
- FedNova, whose true difference is the mean over all splits of this benchmark, with a standard error;
- itself with a tenth of the learning rate, which is truly worse.

The rules are: the paired t-test over three seeds of one split; the same with the error clustered by seed and example,
which is what fedax does with one split; and the corrected resampled t-test over ten splits, which it does by default
where data are small. A star needs p < 0.05; of the last two also that the difference is no trifle. Intervals are those
of Clopper and Pearson, 95 %. Data sets that are in the file already are not measured again.
"""

import argparse
import json
import math
import pathlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import sklearn.datasets
from scipy import stats

import fedax
from fedax.engine import by_client
from fedax.errors import DivergedWarning
from fedax.experiments.chance import Gap, gap_of
from fedax.experiments.summary import LEVEL
from fedax.theory.diagnostics import MATERIAL

SHARES = {"train": 0.7, "val": 0.15, "test": 0.15}
SPLITS, SEEDS, ROUNDS = 10, 3, 30
LANES = 300  # runs side by side
RULES = ("t-test, one split", "clustered, one split", "ten splits")
OTHERS = ("itself", "FedNova", "a tenth of η")


def problems() -> dict[str, tuple[fedax.FederatedData, float]]:
    """Name -> the clients' examples, and a learning rate."""
    made: dict[str, tuple[fedax.FederatedData, float]] = {}
    for name, load, clients, lr in (
        ("breast cancer, by size", "breast_cancer", 3, 0.1),
        ("wine, by alcohol", "wine", 3, 0.1),
        ("iris, at random", "iris", 4, 0.1),
        ("digits, 600 by label", "digits", 5, 0.1),
        ("diabetes, by age", "diabetes", 4, 0.02),
    ):
        x, y = getattr(sklearn.datasets, f"load_{load}")(return_X_y=True)
        x = ((x - x.mean(0)) / np.maximum(x.std(0), 1e-9)).astype(np.float32)
        regression = load == "diabetes"
        y = ((y - y.mean()) / y.std()).astype(np.float32) if regression else y.astype(np.int32)
        shuffled = np.random.default_rng(0).permutation(len(x))[:600]
        key = {"iris": np.zeros(len(x)), "digits": y}.get(load, x[:, 0])
        order = shuffled[np.argsort(key[shuffled], kind="stable")]
        parts = [{"x": x[rows], "y": y[rows]} for rows in np.array_split(order, clients)]
        made[name] = fedax.FederatedData.from_clients(parts), lr
    rng = np.random.default_rng(1)
    slope, parts = rng.normal(size=20), []
    for n in rng.integers(15, 60, 30):  # many small clients, which differ
        x = rng.normal(size=(n, 20)) + 0.5 * rng.normal(size=20)
        y = (x @ slope + 2 * rng.normal(size=n) > 0).astype(np.int32)
        parts.append({"x": x.astype(np.float32), "y": y})
    made["synthetic, 30 clients"] = fedax.FederatedData.from_clients(parts), 0.05
    return made


def task_of(data: fedax.FederatedData) -> fedax.Task:
    """Linear or softmax regression."""
    x, y = data.examples["x"], data.examples["y"]
    if y.dtype.kind == "f":
        return fedax.tasks.linear_regression(x.shape[1])
    return fedax.tasks.softmax_regression(x.shape[1], int(y.max()) + 1)


def compared(data: fedax.FederatedData, lr: float, comparisons: int) -> dict[str, Any]:
    """Of each rule and method the differences to FedAvg: mean, p, whether there is a star."""
    task = task_of(data)
    methods = {
        "FedAvg": (fedax.create("fedavg", lr=lr), 0),
        "itself": (fedax.create("fedavg", lr=lr), 1),
        "FedNova": (fedax.create("fednova", lr=lr), 0),
        "a tenth of η": (fedax.create("fedavg", lr=lr / 10), 0),
    }
    # Of the runs k = 0, 1, … of a method run k has split k // SEEDS where the split is one, else its own.
    results: dict[str, dict[str, list[Any]]] = {}
    for kind, number in (("one", SEEDS), ("ten", SPLITS)):
        for label, (method, stream) in methods.items():
            runs = list(_runs(data, task, method, kind, comparisons * number, stream))
            results.setdefault(kind, {})[label] = [runs[k : k + number] for k in range(0, len(runs), number)]
    overlap = SHARES["test"] / SHARES["train"]
    table: dict[str, Any] = {}
    for other in OTHERS:
        rows: dict[str, list[Any]] = {rule: [] for rule in RULES}
        for kind in ("one", "ten"):
            for one, two in zip(results[kind]["FedAvg"], results[kind][other], strict=True):
                ends, others = (np.array([run["test"] for run in each]) for each in (one, two))
                better = min(one, two, key=lambda each: np.mean([run["test"] for run in each]))
                gained = float(np.mean([run["start"] - run["test"] for run in better]))
                if kind == "ten":
                    rows["ten splits"].append(_row(gap_of(ends, others, overlap), gained))
                    continue
                values = [np.mean([run["each"] for run in each], axis=0) for each in (one, two)]
                rows["t-test, one split"].append(_row(gap_of(ends, others), 0.0))
                clustered = gap_of(ends, others, examples=(values[0], values[1]), sizes=one[0]["sizes"])
                rows["clustered, one split"].append(_row(clustered, gained))
        table[other] = rows
    return table


def _row(gap: Gap, gained: float) -> dict[str, Any]:
    low, high = gap.interval()
    star = bool(gap.p < LEVEL and abs(gap.mean) >= MATERIAL * gained)
    return {"mean": gap.mean, "low": low, "high": high, "p": gap.p, "gained": gained, "star": star}


def _runs(
    data: fedax.FederatedData, task: fedax.Task, method: fedax.Algorithm, kind: str, number: int, stream: int
) -> Iterator[dict[str, Any]]:
    """The ends of the runs of a method: test loss before and after, and where it is one split that of each example."""
    for first in range(0, number, LANES):
        parts = {}
        for k in range(first, min(first + LANES, number)):
            split = fedax.data.split(data, **SHARES, seed=k if kind == "ten" else 10**6 + k // SEEDS)
            parts[2 * k + stream] = {"data": split.train, "test": split.test}
        some = next(iter(parts.values()))["data"]
        options: dict[str, Any] = {"rounds": ROUNDS, "evaluate_every": ROUNDS, "batch_size": 32}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DivergedWarning)
            swept = fedax.sweep(
                lambda: method, [{}], task, some, seeds=list(parts), by_seed=parts, width=LANES,
                work=fedax.RandomEpochs(2, 5), **options,
            )  # fmt: skip
        for own, run in zip(parts.values(), swept.runs[0], strict=True):
            ends = run.history["test_loss"]
            row = {"start": float(ends[0]), "test": float(ends[-1]), "sizes": own["test"].sizes}
            if kind == "one":
                row["each"] = by_client.each_example(task, run.params, own["test"])["loss"]
            yield row


def share(stars: int, of: int) -> str:
    """A share in per cent, with its interval.

    Example:
        >>> share(5, 100)
        '5.0 % (1.6 to 11.3)'
    """
    low = 0.0 if not stars else float(stats.beta.ppf(0.025, stars, of - stars + 1))
    high = 1.0 if stars == of else float(stats.beta.ppf(0.975, stars + 1, of - stars))
    return f"{100 * stars / of:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def wrong(rows: list[dict[str, Any]], truth: float, error: float) -> int:
    """How many stars are given to the method that is truly worse, beyond two standard errors."""
    return sum(row["star"] and math.copysign(1.0, row["mean"]) * truth + 2 * error < 0 for row in rows)


def _stars(rows: list[dict[str, Any]], other: str) -> str:
    """The share of stars; against the truly worse method of those that the better one has, and the others' number."""
    if other == "itself":
        return share(sum(row["star"] for row in rows), len(rows))
    right, reverse = (sum(row["star"] and (row["mean"] > 0) == way for row in rows) for way in (True, False))
    return share(right, len(rows)) + (f", {reverse} the wrong way" if reverse else "")


def report(measured: dict[str, Any]) -> str:
    """The tables, in Markdown."""
    lines = [f"| | {' | '.join(RULES)} |", "|---|" + "---|" * len(RULES)]
    for other, what in (("itself", "the same method"), ("a tenth of η", "a tenth of the learning rate")):
        lines.append(f"| **Stars against {what}** |" + " |" * len(RULES))
        every: dict[str, list[Any]] = {rule: [] for rule in RULES}
        for name, table in measured.items():
            for rule in RULES:
                every[rule] += table[other][rule]
            cells = [_stars(table[other][rule], other) for rule in RULES]
            lines.append(f"| {name} | {' | '.join(cells)} |")
        cells = [f"{_stars(rows, other)} of {len(rows)}" for rows in every.values()]
        lines.append(f"| all | {' | '.join(cells)} |")
    lines += ["", f"| FedNova less FedAvg | truth, % of the gain | {' | '.join(RULES)} |", "|---|---|" + "---|" * 3]
    for name, table in measured.items():
        means = np.array([row["mean"] for row in table["FedNova"]["ten splits"]])
        gained = float(np.mean([row["gained"] for row in table["FedNova"]["ten splits"]]))
        truth, error = float(means.mean()), float(means.std(ddof=1)) / math.sqrt(len(means))
        cells = []
        for rule in RULES:
            rows = table["FedNova"][rule]
            cells.append(f"{sum(r['star'] for r in rows)} of {len(rows)}, {wrong(rows, truth, error)} wrong")
        lines.append(f"| {name} | {100 * truth / gained:+.2f} ± {100 * error / gained:.2f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path, default=pathlib.Path("false_stars.json"))
    parser.add_argument("--comparisons", type=int, default=80, help="of each data set")
    arguments = parser.parse_args()
    measured = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
    for name, (data, lr) in problems().items():
        if name not in measured:
            measured[name] = compared(data, lr, arguments.comparisons)
            arguments.json.write_text(json.dumps(measured))
            print(f"{name}: measured", flush=True)
    print(report(measured))


if __name__ == "__main__":
    main()
