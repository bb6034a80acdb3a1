"""Is the advice of ``fedax diagnose`` right on problems that were not used to make its rules?

    FEDAX_DATA=~/data python benchmarks/advice.py                # all: hours of one core; what is measured stays
    FEDAX_DATA=~/data python benchmarks/advice.py --advice       # only ask anew what it says of the twelve
    python benchmarks/advice.py --page                           # only write the page anew

Ten problems of five kinds, each on the digits and on 2,000 pictures of Fashion-MNIST (14 × 14), and twelve new ones, on
which a rule is tried that was made before, on the ten and the 32 of the study "choosing". All methods
are tuned alike, on validation data, at full length and with two splits; then five more splits are trained and tested.
``fedax.theory.diagnose`` sees one run of FedAvg at its chosen lr, and no test data. Writes docs/results/advice.json and
the tables of docs/results/advice.md, which has the protocol.
"""

import argparse
import copy
import json
import math
import pathlib
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

import fedax
from fedax.experiments import Experiment, build
from fedax.experiments.statistics import interval
from fedax.experiments.study import read_study

Table = dict[str, Any]

DOCS = pathlib.Path(__file__).parents[1] / "docs/results"
PAGE, MEASURED, STUDIED = DOCS / "advice.md", DOCS / "advice.json", DOCS.parent / "study/choosing.json"
ROUNDS, TUNED_WITH, SEEDS = 60, (1000, 1001), (0, 1, 2, 3, 4)
LAST = 3  # evaluations that are averaged

FEW, MANY = np.geomspace(0.03, 10, 6), np.geomspace(0.03, 10, 12)  # values of lr: every method has 12 points


def _decays(lr: float) -> Any:
    return fedax.create("fedavg", lr=fedax.Piecewise(lr, {ROUNDS // 2: 0.3, 3 * ROUNDS // 4: 0.3}))


def _by_name(name: str, **fixed: Any) -> Callable[..., Any]:
    return lambda **point: fedax.create(name, **fixed, **point)


# Label -> how it is made, and its second axis where it has one.
METHODS: dict[str, tuple[Callable[..., Any], Table]] = {
    "FedAvg": (_by_name("fedavg"), {}),
    "FedAvg, decay": (_decays, {}),
    "FedNova": (_by_name("fednova"), {}),
    "SCAFFOLD": (_by_name("scaffold"), {}),
    "FedDyn": (_by_name("feddyn"), {"alpha": [0.01, 0.1]}),
    "FedAvg-M": (_by_name("fedavg-m"), {"beta": [0.2, 0.5]}),
    "SCAFFOLD-M": (_by_name("scaffold-m"), {"beta": [0.2, 0.5]}),
    "Mime, base SGD": (_by_name("mime", base="sgd"), {}),
    "Mime, base momentum": (_by_name("mime", base="momentum"), {"momentum": [0.5, 0.9]}),
    "Server momentum": (_by_name("server-momentum"), {"server_momentum": [0.5, 0.9]}),
}
PLAIN = "FedAvg"
LABELS = {"fednova": "FedNova", "scaffold": "SCAFFOLD", "feddyn": "FedDyn", "fedavg-m": "FedAvg-M"}


class Problem(NamedTuple):
    """A problem: how its data are dealt, and how clients work.

    Attributes:
        text: what it is.
        deal: ``(labels, seed) -> (parts, labels)``, rows of each client and the labels that they have.
        work, batch_size: as of :func:`fedax.simulate`.
        participation: the share of clients in a round; ``None``: all.
        change: ``(x, parts) -> x``, the inputs as clients have them; ``None``: as they are.
        hidden: units of a hidden layer; 0: softmax regression.
    """

    text: str
    deal: Callable[[np.ndarray, int], tuple[list[np.ndarray], np.ndarray]]
    work: Any
    batch_size: int | None
    participation: Any = None
    change: Callable[[np.ndarray, list[np.ndarray]], np.ndarray] | None = None
    hidden: int = 0


def _large(y: np.ndarray, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    small = int(0.4 * len(y)) // 9
    return fedax.data.inner_dirichlet(y, [len(y) - 9 * small] + [small] * 9, alpha=0.3, seed=seed), y


def _noisy(y: np.ndarray, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    parts, rng, labels = (
        fedax.data.dirichlet_labels(y, clients=10, alpha=1.0, seed=seed),
        np.random.default_rng(seed),
        y.copy(),
    )
    for part in parts[:3]:
        wrong = part[rng.random(len(part)) < 0.5]
        labels[wrong] = rng.integers(10, size=len(wrong))
    return parts, labels


def _rare(y: np.ndarray, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    rng, rare, others = np.random.default_rng(seed), np.flatnonzero(y == 9), np.flatnonzero(y != 9)
    others = rng.permutation(others)[: 9 * len(y) // 10 // 10 * 10]
    parts = [others[part] for part in fedax.data.dirichlet_labels(y[others], clients=10, alpha=1.0, seed=seed)]
    parts[0] = np.concatenate([parts[0], rng.permutation(rare)[: len(y) // 50]])
    return parts, y


def _few(y: np.ndarray, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    return fedax.data.dirichlet_labels(y, clients=4, alpha=0.3, seed=seed), y


def _tiny(y: np.ndarray, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    return fedax.data.dirichlet_labels(y, clients=len(y) // 10, alpha=0.3, seed=seed), y


KINDS = {
    "one-large-client": Problem(
        "10 clients, of which one has 60 % of the examples; labels by Dirichlet(0.3); two epochs, batches of 16",
        _large, fedax.Epochs(2), 16,
    ),
    "noisy-labels": Problem(
        "10 clients, of which three have half of their labels replaced at random, in training and validation; labels "
        "by Dirichlet(1); 10 steps, batches of 16",
        _noisy, fedax.Steps(10), 16,
    ),
    "rare-class": Problem(
        "10 clients; one class is at one client alone, and makes 2 % of training and 10 % of the test; the others by "
        "Dirichlet(1); 10 steps, batches of 16",
        _rare, fedax.Steps(10), 16,
    ),
    "few-unequal": Problem(
        "4 clients that take 2, 5, 15 and 40 steps; labels by Dirichlet(0.3); batches of 16",
        _few, fedax.Steps([2, 5, 15, 40]), 16,
    ),
    "many-tiny": Problem(
        "clients of 10 examples each, 144 or 200, of which a tenth take part in a round; labels by Dirichlet(0.3); 5 "
        "steps, batches of 4",
        _tiny, fedax.Steps(5), 4, 0.1,
    ),
}  # fmt: skip
POOLS = {"digits": None, "fashion_mnist": 2000}
ROWS = 2000  # of another data set, where it has so many


def _dirichlet(clients: int, alpha: float) -> Any:
    return lambda y, seed: (fedax.data.dirichlet_labels(y, clients=clients, alpha=alpha, seed=seed), y)


def _sizes(y: np.ndarray, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    return fedax.data.power_law(len(y), clients=20, exponent=1.2, min_size=10, seed=seed), y


def _permuted(y: np.ndarray, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    parts, labels = fedax.data.iid(len(y), clients=10, seed=seed), y.copy()
    for part in parts[:3]:
        labels[part] = (y[part] + 1) % 10
    return parts, labels


def _conditioned(x: np.ndarray, parts: list[np.ndarray]) -> np.ndarray:
    flat = x.reshape(len(x), -1) / np.float32(255)
    return (flat * np.geomspace(1, 0.01, flat.shape[1])).astype(np.float32)


def _turned(x: np.ndarray, parts: list[np.ndarray]) -> np.ndarray:
    new = x.copy()
    for i, part in enumerate(parts):
        new[part] = np.rot90(x[part], i % 4, (1, 2)) * (1 - 0.5 * (i % 3) / 2)
    return new


# Problems that were written down, with the rule, before any of them was run: name -> problem.
NEW = {
    "fashion_mnist: label-skew": Problem(
        "20 clients, labels by Dirichlet(0.03); 10 steps, batches of 32",
        _dirichlet(20, 0.03), fedax.Steps(10), 32,
    ),
    "fashion_mnist: sizes": Problem(
        "20 clients alike, whose sizes fall by a power law; one epoch, batches of 10",
        _sizes, fedax.Epochs(1), 10,
    ),
    "digits: concept-shift": Problem(
        "10 clients alike, of which three call every class by the next one's label; 10 steps, batches of 16",
        _permuted, fedax.Steps(10), 16,
    ),
    "digits: ill-conditioned": Problem(
        "10 clients, labels by Dirichlet(1); features scaled from 1 down to 0.01; 10 steps, batches of 16",
        _dirichlet(10, 1.0), fedax.Steps(10), 16, None, _conditioned,
    ),
    "digits: batch-of-one": Problem(
        "10 clients, labels by Dirichlet(0.3); 20 steps, batches of one",
        _dirichlet(10, 0.3), fedax.Steps(20), 1,
    ),
    "mnist: two-shards": Problem(
        "20 clients of two shards each, half of them in a round; a hidden layer of 16; 10 steps, batches of 16",
        lambda y, seed: (fedax.data.shards(y, clients=20, per_client=2, seed=seed), y), fedax.Steps(10), 16, 0.5,
        hidden=16,
    ),
    "a9a: whole-gradients": Problem(
        "15 clients, labels by Dirichlet(0.5); 5 steps of the whole local gradient",
        _dirichlet(15, 0.5), fedax.Steps(5), None,
    ),
    "w8a: rare-label": Problem(
        "10 clients, 3 % of the examples with the rarer label, by Dirichlet(0.5); two epochs, batches of 20",
        _dirichlet(10, 0.5), fedax.Epochs(2), 20,
    ),
    "digits: feature-shift": Problem(
        "12 clients alike, whose pictures are turned by 0°, 90°, 180° or 270° and dimmed to 1, 3/4 or 1/2; 10 steps, "
        "batches of 16",
        lambda y, seed: (fedax.data.iid(len(y), clients=12, seed=seed), y), fedax.Steps(10), 16, None, _turned,
    ),
    "heart: hospitals": Problem(
        "the four hospitals of UCI's heart disease data; 10 steps, batches of 8",
        lambda y, seed: (list(np.split(np.arange(920), np.cumsum([303, 294, 123]))), y), fedax.Steps(10), 8,
    ),
    "mnist: few-long": Problem(
        "3 clients, labels by Dirichlet(0.3); 100 steps, batches of 32",
        _dirichlet(3, 0.3), fedax.Steps(100), 32,
    ),
    "fashion_mnist: cohorts-and-noise": Problem(
        "50 clients, labels by Dirichlet(0.3), of which a tenth take part in a round; 10 steps, batches of 2",
        _dirichlet(50, 0.3), fedax.Steps(10), 2, 0.1,
    ),
}  # fmt: skip
HURRIED = (PLAIN, "FedAvg-M", "SCAFFOLD")  # what docs/choosing.md compares in a hurry
TRIED = (PLAIN, "FedAvg, decay", "FedNova", "SCAFFOLD", "FedDyn", "FedAvg-M")  # on them: what advice may name

# Of the study "choosing", to see what Mime's momentum does: with the base that the study had, and with momentum.
OF_THE_STUDY = ("digits", "digits-alike", "digits-half", "digits-tenth", "digits-short")
BASES = (PLAIN, "Mime, base SGD", "Mime, base momentum")


# ---- measure


def names() -> list[str]:
    """The first ten problems: data set and kind."""
    return [f"{pool}: {kind}" for pool in POOLS for kind in KINDS]


def _problem(name: str) -> Problem:
    return NEW[name] if name in NEW else KINDS[name.split(": ")[1]]


def dealt(name: str, seeds: Iterable[int]) -> dict[int, Table]:
    """Seed -> data, val and test."""
    if name.startswith("choosing: "):
        made = {seed: _of_the_study(name, seed) for seed in seeds}
        return {seed: {"data": each.data, "val": each.val, "test": each.test} for seed, each in made.items()}
    pool, kind = name.split(": ")
    loaded, most, by_seed, problem = fedax.data.load(pool), POOLS.get(pool, ROWS), {}, _problem(name)
    examples = loaded.examples if isinstance(loaded, fedax.FederatedData) else loaded.train
    for seed in seeds:
        rows = np.arange(len(examples["y"]))
        if most is not None and pool != "heart":
            rows = np.sort(np.random.default_rng(seed).permutation(rows)[:most])
        train = {key: _small(value[rows]) for key, value in examples.items()}
        train["y"] = (train["y"] > 0).astype(np.int32) if pool in ("a9a", "w8a") else train["y"]
        if kind == "many-tiny":
            train = {key: value[: len(rows) // 10 * 10] for key, value in train.items()}
        parts, labels = problem.deal(train["y"], seed)
        x = train["x"] if problem.change is None else problem.change(train["x"], parts)
        data = fedax.FederatedData.from_partition({**train, "x": x, "y": labels}, parts)
        own = 0.2 if name in NEW else 0.0  # then the test is on clients' own examples
        split = fedax.data.split(data, train=0.8 - own, val=0.2, test=own, seed=seed)
        test = split.test if own else {key: _small(value[:most]) for key, value in loaded.test.items()}
        by_seed[seed] = {"data": split.train, "val": split.val, "test": test}
    return by_seed


def _small(values: np.ndarray) -> np.ndarray:
    """Pictures of 28 × 28 as 14 × 14, by the mean of four pixels; all else as it is."""
    if values.shape[1:3] != (28, 28):
        return values
    return values.reshape(-1, 14, 2, 14, 2).mean((2, 4)).round().astype(values.dtype)


def _of_the_study(name: str, seed: int) -> Experiment:
    """A problem of the study "choosing", with the split of a seed."""
    config = copy.deepcopy(read_study("choosing").parts[name.removeprefix("choosing: ")].config)
    config.pop("sweep", None)
    data = config["data"]
    data["seed"] = data.get("seed", 0) + seed
    data["split"]["seed"] = data["split"].get("seed", 0) + seed
    config["run"] |= {"seeds": 1, "split_seeds": False}
    config["methods"] = config["methods"][:1]
    return build(config)


def _options(name: str, data: fedax.FederatedData) -> Table:
    if name.startswith("choosing: "):
        made = _of_the_study(name, 0)
        given = {"work": made.work, "participation": made.participation}
        return given | {"batch_size": made.config["run"]["batch_size"]}
    problem = _problem(name)
    size = None if problem.participation is None else round(problem.participation * data.num_clients)
    who = fedax.Full() if size is None else fedax.Systematic(size)
    return {"work": problem.work, "batch_size": problem.batch_size, "participation": who}


def _task(name: str, data: fedax.FederatedData) -> fedax.Task:
    if name.startswith("choosing: "):
        return _of_the_study(name, 0).task
    features, hidden = int(np.prod(data.examples["x"].shape[1:])), _problem(name).hidden
    classes = 2 if name.split(": ")[0] in ("a9a", "w8a", "heart") else 10
    if hidden:
        return fedax.tasks.mlp(features, classes, hidden=(hidden,))
    return fedax.tasks.softmax_regression(features, classes)


def _ends(run: Any, column: str) -> float:
    return float(np.mean(run.history[column][-LAST:])) if run.status in ("finished", "worse") else math.inf


def measure(name: str, watch: Callable[[str], None], labels: Sequence[str] = tuple(METHODS)) -> Table:
    """Tune methods on two splits, and train and test them with five more."""
    splits, finals = dealt(name, TUNED_WITH), dealt(name, SEEDS)
    first = finals[SEEDS[0]]
    task, options = _task(name, first["data"]), _options(name, first["data"])
    results: Table = {"test": {}, "validation": {}, "settings": {}, "edges": [], "gradients": {}}
    for label in labels:
        make, second = METHODS[label]
        if label == "FedNova" and options["work"].equal(first["data"].sizes, options["batch_size"]) is not None:
            continue  # it is FedAvg
        grid = {"lr": [float(f"{value:.3g}") for value in (FEW if second else MANY)], **second}

        def trained(points: Any, given: dict[int, Table], make: Any = make) -> Any:
            return fedax.sweep(
                make, points, task, next(iter(given.values()))["data"], seeds=list(given), by_seed=given,
                rounds=ROUNDS, evaluate_every=ROUNDS // 10, val=next(iter(given.values()))["val"],
                test=next(iter(given.values()))["test"], **options,
            )  # fmt: skip

        scores, points, step = [], [], grid["lr"][1] / grid["lr"][0]
        while True:
            tuned = trained(grid, splits)
            scores += [float(np.mean([_ends(run, "val_loss") for run in runs])) for runs in tuned.runs]
            points += tuned.points
            best, tried = points[int(np.argmin(scores))], sorted({point["lr"] for point in points})
            ends = {tried[0]: tried[0] / step, tried[-1]: tried[-1] * step}
            if name not in NEW or best["lr"] not in ends:
                break
            grid["lr"] = [float(f"{ends[best['lr']]:.3g}")]  # a grid goes on beyond its end
        ended = trained([best], finals).runs[0]
        results["test"][label] = [float(f"{_ends(run, 'test_loss'):.6g}") for run in ended]
        results["validation"][label], results["settings"][label] = min(scores), best
        results["gradients"][label] = float(np.mean([run.history["gradients"][-1] for run in ended]))
        results["edges"] += [label] if best["lr"] in ends else []
        results["start"] = float(ended[0].history["test_loss"][0])
        watch(f"{name}, {label}: {best}, test {np.mean(results['test'][label]):.4f}")
    return results


def advise(name: str, problem: Table) -> Table:
    """What ``fedax.theory.diagnose`` says of one finished run of FedAvg, at its chosen lr."""
    given = dealt(name, SEEDS[:1])[SEEDS[0]]
    task, options = _task(name, given["data"]), _options(name, given["data"])
    method = fedax.create("fedavg", **problem["settings"][PLAIN])
    run = fedax.simulate(method, task, given["data"], rounds=ROUNDS, evaluate_every=ROUNDS, seed=SEEDS[0], **options)
    diagnosis = fedax.theory.diagnose(method, task, given["data"], points=[None, run.params], seed=SEEDS[0], **options)
    return {"take": diagnosis.take, "verdict": diagnosis.verdict}


# ---- what came out


def means(problem: Table) -> dict[str, float]:
    """Method -> its mean test loss."""
    return {label: float(np.mean(values)) for label, values in problem["test"].items()}


def regret(problem: Table, label: str) -> float:
    """Test loss above that of the best method, as a share of what the best gains over the initial model; at most 1."""
    mean = means(problem)
    least = min(mean.values())
    label = label if label in mean else PLAIN  # FedNova where it is FedAvg
    return min((mean[label] - least) / (problem["start"] - least), 1.0)


def advised(problem: Table, asked: str = "advice") -> str:
    """The method that the advice comes to, as it was when the problem was measured, or ``"now"``; else FedAvg.

    Where it says so, that is FedAvg with a smaller lr at the end.
    """
    take, verdict = problem[asked]["take"], problem[asked]["verdict"]
    if take:
        return LABELS[take]
    return "FedAvg, decay" if "lr decay" in verdict or "lr that decays" in verdict else PLAIN


def validated(problem: Table, labels: Sequence[str]) -> str:
    """The method with the lowest validation loss."""
    return min((label for label in labels if label in problem["validation"]), key=problem["validation"].__getitem__)


def strategies(measured: dict[str, Table]) -> dict[str, Callable[[Table], float]]:
    """Ways to choose a method: name -> (problem -> regret); of a random method the mean over the methods."""
    known = {
        "`fedax diagnose`, a finished run of FedAvg": lambda problem: regret(problem, advised(problem)),
        "a random method, tuned": lambda problem: float(np.mean([regret(problem, each) for each in problem["test"]])),
        "all tuned, lowest validation loss": lambda problem: regret(problem, validated(problem, [*METHODS])),
    }
    always = {f"always {label}": (lambda problem, label=label: regret(problem, label)) for label in METHODS}
    return {**known, **always}


TUNED = {
    "all six tuned, lowest validation loss": TRIED,
    "FedAvg, FedAvg-M and SCAFFOLD tuned, lowest validation loss": HURRIED,
}

# ---- a rule made on the 42 problems of this script and the study, tried on the twelve

SMALL = 8  # batches of at most so many examples


class Known(NamedTuple):
    """A problem that rules are made on: its results, and what one knows before a run.

    Attributes:
        name: what it is called; begins with the data set's.
        results: with the losses of the methods in ``TRIED`` alone.
        batch_size: of the local steps.
        share: of the clients that take part in a round.
        unequal: whether clients take unequal numbers of steps.
        named: what ``fedax diagnose`` named.
    """

    name: str
    results: Table
    batch_size: float
    share: float
    unequal: bool
    named: str


QUESTIONS: dict[str, Callable[[Known], bool]] = {
    "batches of at most 4": lambda known: known.batch_size <= 4,
    "batches of at most 8": lambda known: known.batch_size <= SMALL,
    "at most a ninth of the clients in a round": lambda known: known.share < 1 / 9,
    "not all clients in a round": lambda known: known.share < 1,
    "unequal steps": lambda known: known.unequal,
}


def ruled(problem: Problem) -> str:
    """The rule, made on the 42 problems by the least mean regret, each problem left out in turn."""
    return "FedAvg-M" if problem.batch_size is not None and problem.batch_size <= SMALL else "FedDyn"


def of_tried(problem: Table) -> Table:
    """A problem with the losses of the methods that advice may name alone."""
    return problem | {"test": {label: problem["test"][label] for label in TRIED if label in problem["test"]}}


def known(measured: dict[str, Table]) -> list[Known]:
    """The 32 problems of the study and the ten of this script."""
    study = json.loads(STUDIED.read_text(encoding="utf-8")).items()
    return [
        Known(
            name, of_tried(each), each["problem"].get("run.batch_size", 16), each["cohort"],
            each["steps"][0] != each["steps"][1], each["advice"]["verdict"],
        )
        for name, each in study
    ] + [
        Known(
            name, of_tried(measured[name]), _problem(name).batch_size or math.inf, _problem(name).participation or 1.0,
            "FedNova" in measured[name]["test"], advised(measured[name]),
        )
        for name in names()
    ]  # fmt: skip


def rules(problems: Sequence[Known]) -> dict[str, np.ndarray]:
    """Rule -> [problems] its regret: always one method, or one question with a method for each answer."""
    one = {label: np.array([regret(each.results, label) for each in problems]) for label in TRIED}
    made = {f"always {label}": lost for label, lost in one.items()}
    for question, ask in QUESTIONS.items():
        yes = np.array([ask(each) for each in problems])
        made |= {f"{question}: {a}, else {b}": np.where(yes, one[a], one[b]) for a in TRIED for b in TRIED if a != b}
    return made


def left_out(made: dict[str, np.ndarray], groups: Sequence[Any]) -> tuple[float, dict[str, int]]:
    """The mean regret on each group of problems of the rule that is best on the others; and how often each was that."""
    table, apart = np.array([*made.values()]), np.array(groups)
    best = [int(np.argmin(table[:, apart != group].mean(1))) for group in groups]
    lost = float(np.mean([table[k, i] for i, k in enumerate(best)]))
    return lost, {name: best.count(k) for k, name in enumerate(made) if k in best}


def between(values: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of a mean over problems, by bootstrap."""
    draws = values[np.random.default_rng(0).integers(len(values), size=(2000, len(values)))].mean(1)
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


def _percents(values: np.ndarray) -> str:
    low, high = between(values)
    return f"{100 * values.mean():.1f} ({100 * low:.1f} to {100 * high:.1f})".replace("-", "−")


def rules_table(measured: dict[str, Table]) -> str:
    """On the 42: the five best rules, always one method, and the verdict; and what choosing among them loses."""
    problems = known(measured)
    made = rules(problems)
    always = {name: lost for name, lost in made.items() if name.startswith("always")}
    best = sorted(made, key=lambda name: made[name].mean())[:5]
    shown = {name: made[name] for name in best} | always
    shown["`fedax diagnose`"] = np.array([regret(each.results, each.named) for each in problems])
    shown |= {
        text: np.array([regret(each.results, validated(each.results, some)) for each in problems])
        for text, some in TUNED.items()
    }
    rows = [
        [name, _percents(lost), f"{100 * lost.max():.0f} %"]
        for name, lost in sorted(shown.items(), key=lambda row: row[1].mean())
    ]
    pools = [re.split("[-_:]", each.name)[0] for each in problems]
    for apart, groups in (("problems", range(len(problems))), ("data sets", pools)):
        for text, some in (("rule", made), ("method for all", always)):
            lost, picked = left_out(some, groups)
            most = max(picked, key=lambda name: picked[name])
            often = f"{most}: for {picked[most]} of {len(problems)}"
            rows.append([f"the best {text} on the other {apart} ({often})", f"{100 * lost:.2f}", "–"])
    return _table(["chosen by", "mean regret, %", "worst"], rows)


def new_table(measured: dict[str, Table]) -> str:
    """On the new problems: the regret of each way to choose, and what it is above always SCAFFOLD."""
    done = [name for name in NEW if name in measured]
    if not done:
        return "None is done.\n"
    problems = [measured[name] for name in done]
    ways = {f"always {label}": [regret(each, label) for each in problems] for label in TRIED}
    ways["the rule"] = [regret(measured[name], ruled(NEW[name])) for name in done]
    ways["`fedax diagnose` as it was"] = [regret(each, advised(each)) for each in problems]
    ways["`fedax diagnose` now"] = [regret(each, advised(each, "now")) for each in problems]
    ways |= {text: [regret(each, validated(each, some)) for each in problems] for text, some in TUNED.items()}
    rows, base = [], np.array(ways["always SCAFFOLD"])
    for name, lost in sorted(ways.items(), key=lambda way: float(np.mean(way[1]))):
        more, (low, high) = np.array(lost) - base, between(np.array(lost) - base)
        told = "less" if high < 0 else "more" if low > 0 else "a tie"
        last = ["–", "–"] if name == "always SCAFFOLD" else [_percents(more), told]
        rows.append([name, _percents(np.array(lost)), f"{100 * max(lost):.1f} %", *last])
    head = ["chosen by", "mean regret, %", "worst", "points above always SCAFFOLD", "told"]
    return f"{len(done)} of {len(NEW)} problems are done.\n\n" + _table(head, rows)


def new_answers_table(measured: dict[str, Table]) -> str:
    """Each new problem: what it is, its losses, and what each way to choose named."""
    rows = []
    for name, problem in NEW.items():
        cells = ["–"] * (len(TRIED) + 3)
        if name in measured:
            mean, edges = means(measured[name]), measured[name]["edges"]
            best = min(mean, key=lambda label: mean[label])
            cells[:-3] = [
                f"{'**' * (label == best)}{mean[label]:.3f}{'**' * (label == best)}{'†' * (label in edges)}"
                if label in mean else "–" for label in TRIED
            ]  # fmt: skip
            told = [ruled(problem), *(advised(measured[name], asked) for asked in ("advice", "now"))]
            cells[-3:] = [f"{each} ({100 * regret(measured[name], each):.1f} %)" for each in told]
        rows.append([f"`{name}`", problem.text, *cells])
    asked = ["the rule (its regret)", "`fedax diagnose` as it was", "now"]
    return _table(["problem", "what it is", *TRIED, *asked], rows)


def predicted(verdict: str) -> float | None:
    """What a verdict says that control variates would gain at most; ``None``: it does not name them."""
    found = re.search(r"Take scaffold in place of FedAvg: .*?about ([\d.e+-]+) \(", verdict)
    return float(found[1]) if found else None


def gains(measured: dict[str, Table]) -> tuple[list[tuple[str, float, float]], list[tuple[str, float, float]]]:
    """Of the 42 and of the new problems: name, predicted cost and what SCAFFOLD gained over FedAvg at equal rounds."""
    study = json.loads(STUDIED.read_text(encoding="utf-8"))
    said = {f"choosing: {name}": (each["said"]["verdict"], each) for name, each in study.items()}
    said |= {name: (measured[name]["advice"]["verdict"], measured[name]) for name in names()}
    new = {name: (measured[name]["advice"]["verdict"], measured[name]) for name in NEW if name in measured}
    return tuple(
        [
            (name, cost, means(each)["FedAvg"] - means(each)["SCAFFOLD"])
            for name, (verdict, each) in some.items()
            if (cost := predicted(verdict)) is not None
        ]
        for some in (said, new)
    )  # type: ignore[return-value]


def predicted_table(measured: dict[str, Table]) -> str:
    """The predicted cost against the gain, by problem; and the factor of the 42, tried on the new ones."""
    old, new = gains(measured)
    factor = float(np.median([gain / cost for _, cost, gain in old]))
    rows = [
        [f"`{name}`", f"{cost:.3g}", f"{gain:.3g}".replace("-", "−"),
         f"{cost / gain:.1f}" if gain > 0 else "no gain", f"{factor * cost:.3g}"]
        for name, cost, gain in new
    ]  # fmt: skip
    told = []
    for what, some in (("the 42", old), ("the new problems", new)):
        ratios = np.array([gain / cost for _, cost, gain in some] or [math.nan])
        near = (ratios >= factor / 2) & (ratios <= factor * 2)
        told.append([
            what, f"{len(some)}", f"{np.median(ratios):.2f}", f"{(ratios <= 1).sum()}", f"{near.sum()}",
        ])  # fmt: skip
    head = ["of", "verdicts that name control variates", "gained / predicted, median", "at most 1"]
    text = _table([*head, f"within a factor of two of {factor:.2f}"], told)
    return (
        text
        + "\n"
        + _table(["problem", "predicted", "gained", "predicted / gained", f"predicted × {factor:.2f}"], rows)
    )


def advice_table(measured: dict[str, Table]) -> str:
    """Regret of each way to choose, on each data set."""
    groups = {
        pool: [measured[name] for name in names() if name in measured and name.startswith(pool)] for pool in POOLS
    }
    groups = {pool: problems for pool, problems in groups.items() if problems}
    head = ["chosen by", *(f"{pool}: mean regret, largest" for pool in groups)]
    rows = []
    for name, choose in strategies(measured).items():
        cells = []
        for problems in groups.values():
            values = [choose(problem) for problem in problems]
            cells.append(f"{100 * np.mean(values):.1f} %, {100 * max(values):.1f} %")
        rows.append([name, *cells])
    return _table(head, rows)


def answers_table(measured: dict[str, Table]) -> str:
    """For each problem the losses, the best, and what the advice names."""
    head = ["problem", *METHODS, "advice", "its regret"]
    rows = []
    for name in names():
        if name not in measured:
            continue
        problem, mean = measured[name], means(measured[name])
        best = min(mean, key=lambda label: mean[label])
        losses = []
        for label in METHODS:
            bold, edge = "**" * (label == best), "†" * (label in problem["edges"])
            losses.append(f"{bold}{mean[label]:.3f}{bold}{edge}" if label in mean else "–")
        rows.append([f"`{name}`", *losses, advised(problem), f"{100 * regret(problem, advised(problem)):.1f} %"])
    return _table(head, rows)


def mime_table(measured: dict[str, Table]) -> str:
    """What momentum at Mime's base gains over the default base: paired over the splits, with a 95 % interval."""
    rows = []
    for name, problem in measured.items():
        if name in NEW:
            continue
        gained = np.subtract(*(np.array(problem["test"][label]) for label in BASES[1:]))
        low, high = (100 * end / problem["start"] for end in interval(gained))
        conclusion = "more" if low > 0 else "less" if high < 0 else "cannot be told"
        mean = means(problem)
        point = problem["settings"][BASES[2]]["momentum"]
        rows.append([
            f"`{name}`", *(f"{mean[label]:.3f}" for label in BASES), f"{point:g}",
            f"{100 * gained.mean() / problem['start']:+.2f} ({low:+.2f} to {high:+.2f})".replace("-", "−"), conclusion,
        ])  # fmt: skip
    return _table(["problem", *BASES, "β", "momentum gains, % of the first loss", "told"], rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def problems_table() -> str:
    """What the kinds of problems are."""
    return _table(["problem", "what it is"], [[f"`{name}`", kind.text] for name, kind in KINDS.items()])


def written(text: str, measured: dict[str, Table]) -> str:
    """The page with its generated parts."""
    parts = {"problems": problems_table(), "advice": advice_table(measured), "answers": answers_table(measured)}
    parts |= {"rules": rules_table(measured), "new": new_table(measured), "new answers": new_answers_table(measured)}
    for part, new in (parts | {"predicted": predicted_table(measured), "mime": mime_table(measured)}).items():
        begin, end = f"<!-- {part}: python benchmarks/advice.py --page -->\n", f"<!-- end of the {part} -->\n"
        before, _, rest = text.partition(begin)
        text = before + begin + new + end + rest.partition(end)[2]
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--advice", action="store_true", help="ask anew what it says of the twelve")
    parser.add_argument("--page", action="store_true", help="only write the page anew")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="of the problems")
    given = parser.parse_args()
    measured: dict[str, Table] = json.loads(MEASURED.read_text(encoding="utf-8")) if MEASURED.exists() else {}
    warnings.simplefilter("ignore", fedax.errors.DivergedWarning)
    for name in [] if given.page else given.only or [*names(), *(f"choosing: {name}" for name in OF_THE_STUDY), *NEW]:
        study = name.startswith("choosing: ")
        if name not in measured and not given.advice:
            labels = BASES if study else TRIED if name in NEW else tuple(METHODS)
            measured[name] = measure(name, lambda text: print(text, flush=True), labels)
        if name in measured and not study and "advice" not in measured[name]:
            measured[name]["advice"] = advise(name, measured[name])
        if name in measured and name in NEW and (given.advice or "now" not in measured[name]):
            measured[name]["now"] = advise(name, measured[name])
            print(name, measured[name]["now"], flush=True)
        MEASURED.write_text(json.dumps(measured, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), measured), encoding="utf-8")


if __name__ == "__main__":
    main()
