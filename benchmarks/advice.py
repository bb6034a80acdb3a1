"""Is the advice of ``fedax diagnose`` right on problems that were not used to make its rules?

    FEDAX_DATA=~/data python benchmarks/advice.py                # all: hours of one core; what is measured stays
    FEDAX_DATA=~/data python benchmarks/advice.py --advice       # only ask for the advice anew
    python benchmarks/advice.py --page                           # only write the page anew

Ten problems: five kinds of trouble, each on the digits and on 2,000 pictures of Fashion-MNIST, 14 × 14. All methods
are tuned alike, on validation data, at full length and with two splits; then five more splits are trained and tested.
``fedax.theory.diagnose`` sees one run of FedAvg at its chosen lr, and no test data. Writes docs/results/advice.json and
the tables of docs/results/advice.md, which has the protocol.
"""

import argparse
import copy
import json
import math
import pathlib
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
PAGE, MEASURED = DOCS / "advice.md", DOCS / "advice.json"
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
        deal: ``(labels, rng) -> (parts, labels)``, rows of each client and the labels that they have.
        work, batch_size, participation: as of :func:`fedax.simulate`.
    """

    text: str
    deal: Callable[[np.ndarray, int], tuple[list[np.ndarray], np.ndarray]]
    work: Any
    batch_size: int
    participation: Any = None


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

# Of the study "choosing", to see what Mime's momentum does: with the base that the study had, and with momentum.
OF_THE_STUDY = ("digits", "digits-alike", "digits-half", "digits-tenth", "digits-short")
BASES = (PLAIN, "Mime, base SGD", "Mime, base momentum")


# ---- measure


def names() -> list[str]:
    """The problems: data set and kind."""
    return [f"{pool}: {kind}" for pool in POOLS for kind in KINDS]


def dealt(name: str, seeds: Iterable[int]) -> dict[int, Table]:
    """Seed -> data, val and test."""
    if name.startswith("choosing: "):
        made = {seed: _of_the_study(name, seed) for seed in seeds}
        return {seed: {"data": each.data, "val": each.val, "test": each.test} for seed, each in made.items()}
    pool, kind = name.split(": ")
    loaded, most, by_seed = fedax.data.load(pool), POOLS[pool], {}
    for seed in seeds:
        rows = np.arange(len(loaded.train["y"]))
        if most is not None:
            rows = np.sort(np.random.default_rng(seed).permutation(rows)[:most])
        train = {key: _small(value[rows]) for key, value in loaded.train.items()}
        if kind == "many-tiny":
            train = {key: value[: len(rows) // 10 * 10] for key, value in train.items()}
        parts, labels = KINDS[kind].deal(train["y"], seed)
        data = fedax.FederatedData.from_partition({**train, "y": labels}, parts)
        split = fedax.data.split(data, train=0.8, val=0.2, test=0.0, seed=seed)
        test = {key: _small(value[:most]) for key, value in loaded.test.items()}
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
    problem = KINDS[name.split(": ")[1]]
    size = None if problem.participation is None else round(problem.participation * data.num_clients)
    who = fedax.Full() if size is None else fedax.Systematic(size)
    return {"work": problem.work, "batch_size": problem.batch_size, "participation": who}


def _task(name: str, data: fedax.FederatedData) -> fedax.Task:
    if name.startswith("choosing: "):
        return _of_the_study(name, 0).task
    return fedax.tasks.softmax_regression(int(np.prod(data.examples["x"].shape[1:])), 10)


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

        tuned = trained(grid, splits)
        scores = [float(np.mean([_ends(run, "val_loss") for run in runs])) for runs in tuned.runs]
        best = tuned.points[int(np.argmin(scores))]
        ended = trained([best], finals).runs[0]
        results["test"][label] = [float(f"{_ends(run, 'test_loss'):.6g}") for run in ended]
        results["validation"][label], results["settings"][label] = min(scores), best
        results["gradients"][label] = float(np.mean([run.history["gradients"][-1] for run in ended]))
        results["edges"] += [label] if best["lr"] in (grid["lr"][0], grid["lr"][-1]) else []
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


def advised(problem: Table) -> str:
    """The method that the advice comes to; a smaller lr at the end where it says so, else FedAvg."""
    take, verdict = problem["advice"]["take"], problem["advice"]["verdict"]
    if take:
        return LABELS[take]
    return "FedAvg, decay" if "lr decay" in verdict or "lr that decays" in verdict else PLAIN


def strategies(measured: dict[str, Table]) -> dict[str, Callable[[Table], float]]:
    """Ways to choose a method: name -> (problem -> regret); of a random method the mean over the methods."""
    known = {
        "`fedax diagnose`, a finished run of FedAvg": lambda problem: regret(problem, advised(problem)),
        "a random method, tuned": lambda problem: float(np.mean([regret(problem, each) for each in problem["test"]])),
        "all tuned, lowest validation loss": lambda problem: regret(
            problem, min(problem["validation"], key=lambda each: problem["validation"][each])
        ),
    }
    always = {f"always {label}": (lambda problem, label=label: regret(problem, label)) for label in METHODS}
    return {**known, **always}


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
    for part, new in (parts | {"mime": mime_table(measured)}).items():
        begin, end = f"<!-- {part}: python benchmarks/advice.py --page -->\n", f"<!-- end of the {part} -->\n"
        before, _, rest = text.partition(begin)
        text = before + begin + new + end + rest.partition(end)[2]
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--advice", action="store_true", help="ask for the advice anew")
    parser.add_argument("--page", action="store_true", help="only write the page anew")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="of the problems")
    given = parser.parse_args()
    measured: dict[str, Table] = json.loads(MEASURED.read_text(encoding="utf-8")) if MEASURED.exists() else {}
    warnings.simplefilter("ignore", fedax.errors.DivergedWarning)
    for name in [] if given.page else given.only or [*names(), *(f"choosing: {name}" for name in OF_THE_STUDY)]:
        study = name.startswith("choosing: ")
        if name not in measured and not given.advice:
            measured[name] = measure(name, lambda text: print(text, flush=True), BASES if study else tuple(METHODS))
        if not study and name in measured and (given.advice or "advice" not in measured[name]):
            measured[name]["advice"] = advise(name, measured[name])
            print(name, measured[name]["advice"], flush=True)
        MEASURED.write_text(json.dumps(measured, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), measured), encoding="utf-8")


if __name__ == "__main__":
    main()
