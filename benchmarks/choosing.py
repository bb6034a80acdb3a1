"""Which measured quantity predicts the best method, and is the advice of ``fedax diagnose`` right?

    fedax study choosing --out studies/choosing
    python benchmarks/choosing.py studies/choosing     # measure every part that has all its results
    python benchmarks/choosing.py                      # write the tables and the figure anew from what was measured

The first call reads the study's results and writes docs/study/choosing.json; parts that are in it already are not
measured again. It trains Mime once more for as many gradients as FedAvg takes, some minutes in all. Both write
docs/study/choosing.md between its marks, and docs/study/figures/choosing.svg. That page has the protocol.
"""

import argparse
import copy
import functools
import itertools
import json
import math
import pathlib
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedax.errors import DivergedWarning
from fedax.experiments import Record, build, execute, new_folder, read
from fedax.experiments.chance import gap_of
from fedax.experiments.diagnosis import diagnose_run, verdict
from fedax.experiments.runs import MethodRun, finite
from fedax.experiments.study import Study, StudyPart, read_study, record_of, results_of
from fedax.experiments.summary import LEVEL, holm, problems
from fedax.figures import Drawing, colour, marker
from fedax.theory.diagnostics import MATERIAL

Table = dict[str, Any]

DOCS = pathlib.Path(__file__).parents[1] / "docs"
PAGE, MEASURED, FIGURE = DOCS / "study/choosing.md", DOCS / "study/choosing.json", DOCS / "study/figures/choosing.svg"

PLAIN, NORMALIZED, CORRECTED, DECAY = "FedAvg", "FedNova", "SCAFFOLD", "FedAvg, decay"  # labels of the study
COSTLY = "Mime"  # takes more gradients than the others
COMPARED = (PLAIN, NORMALIZED, CORRECTED)  # by somebody in a hurry
SHORT = 10  # rounds that ``fedax diagnose`` runs a configuration for
OFTEN = 20  # rounds within which a client returns, in the tree
CLOSE = 0.01  # of what training gains: near enough to the best
DRAWS = 2000  # of the bootstrap
_ENDED = ("finished", "worse")  # worse than it began
_BEGIN, _END = "<!-- {}: python benchmarks/choosing.py -->\n", "<!-- end of the {} -->\n"

# What the theory names for each contrast with FedAvg, fixed before any run.
EXPECTED = {
    NORMALIZED: "cost of another objective",
    CORRECTED: "cost of drift",
    "FedDyn": "cost of drift",
    "SCAFFOLD-M": "cost of drift",
    "Mime": "cost of drift",
    "FedAvg-M": "cost of cohorts' noise",
    DECAY: "cost of both noises",
    "Server momentum": "loss still to be had",
}


# ---- what is measured


def halves(names: Sequence[str]) -> dict[str, str]:
    """StudyPart -> ``"rule"`` or ``"held out"``: in turns, in an order shuffled with seed 0.

    Example:
        >>> sorted(halves(list("abcd")).values())
        ['held out', 'held out', 'rule', 'rule']
    """
    order = np.random.default_rng(0).permutation(len(names))
    return {names[k]: ("rule", "held out")[place % 2] for place, k in enumerate(order.tolist())}


def scores(record: Record, column: str) -> dict[str, list[float | None]]:
    """Method -> the mean of its last evaluations with each seed; ``None`` of a run that diverged."""
    (problem,) = problems([record])
    return {
        m.label: [
            float(f"{np.mean(run.history[column][-max(problem.tail, 1) :]):.6g}") if run.status in _ENDED else None
            for run in sorted(m.runs, key=lambda run: run.seed)
        ]
        for m in problem.methods
    }


def scores_at_equal_gradients(study: Study, part: StudyPart, problem: Table) -> list[float | None]:
    """[seeds] Mime's test loss when it has taken as many gradients as FedAvg in the end; it is trained so long again.

    As FedAvg's it is the mean of evaluations over the last fifth of these gradients, or the last one before it.
    """
    rounds, settings = part.config["run"]["rounds"], problem["settings"]
    own = trained(study, part, PLAIN, settings[PLAIN], rounds, every=rounds // 5)
    fewer, every = math.ceil(rounds / problem["gradients"]) + 1, int(rounds / 10 / problem["gradients"])
    scores: list[float | None] = []
    for run, plain in zip(trained(study, part, COSTLY, settings[COSTLY], fewer, max(every, 1)), own, strict=True):
        early, last = plain.history["gradients"][-2:]
        gradients, losses = run.history["gradients"], run.history["test_loss"]
        there = (gradients >= early) & (gradients <= last)
        late = losses[there] if there.any() else losses[gradients <= last][-1:]
        scores.append(float(f"{np.mean(late):.6g}") if run.status in _ENDED else None)
    return scores


def trained(study: Study, part: StudyPart, label: str, point: Table, rounds: int, every: int) -> list[MethodRun]:
    """The runs of a method of a part at its point with the study's seeds, of so many rounds, in the order of seeds."""
    config = copy.deepcopy(study.run(part, label, 0, point).config)
    config["run"] |= {"rounds": rounds, "evaluate_every": every, "seeds": part.config["run"]["seeds"]}
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergedWarning)
        folder = new_folder(pathlib.Path(place) / "run", part.name)
        execute(build(config), folder, drawn=False)
        return sorted(read(folder).runs, key=lambda run: run.seed)


def _gradients(record: Record, label: str) -> float:
    """How many a method's runs took, on average."""
    return float(np.mean([run.history["gradients"][-1] for run in record.runs if run.label == label]))


def measure(study: Study, part: StudyPart, folder: pathlib.Path) -> Table | None:
    """All that is asked of one part; ``None`` where results are missing.

    The methods that somebody in a hurry compares are trained again at their chosen settings, on the study's seeds, as
    ``fedax run`` does it, and diagnosed as ``fedax diagnose`` does it. The column that decides there is the validation
    loss, so no test data are seen.
    """
    chosen = {label: study.choice(part, label)[0] for label in part.labels}
    record = record_of(study, part, folder)
    if record is None or None in chosen.values():
        return None
    seeds = part.config["run"]["seeds"]
    wanted = seeds if isinstance(seeds, int) else len(seeds)
    test = scores(record, "test_loss")
    if {*test} != {*part.labels} or any(len(values) < wanted for values in test.values()):
        return None
    compared = {label: chosen[label] or {} for label in COMPARED if label in chosen}
    tables, advice = diagnosed(study, part, compared)
    short, _ = diagnosed(study, part, {PLAIN: compared[PLAIN]}, rounds=SHORT)
    own, clients = tables[PLAIN], tables[PLAIN]["clients"]
    size = part.config.get("participation", {}).get("size", clients)
    tried = {label: study.tried(part, label)[0]["mean"] for label in chosen}
    return {
        "problem": part.section.set,
        "cohort": size / clients,
        "steps": own["steps"],
        "seeds": wanted,
        "start": float(record.runs[0].history["test_loss"][0]),
        "test": test,
        "train": scores(record, "train_loss"),
        "gradients": round(_gradients(record, COSTLY) / _gradients(record, PLAIN), 3),
        "validation": {label: mean for label, mean in tried.items() if mean is not None},  # else all points failed
        "settings": chosen,
        "diagnosis": _essentials(own),
        "said": {"verdict": own["verdict"], "short": short[PLAIN]["verdict"], "compared": advice},
        "advice": {
            "verdict": named(own["take"], own["verdict"]),
            "short": named(short[PLAIN]["take"], short[PLAIN]["verdict"]),
            "compared": first_named(advice, list(compared)),
            "tree": tree(own, size / clients),
        },
    }


def diagnosed(study: Study, part: StudyPart, points: dict[str, Table], rounds: int | None = None) -> tuple[Table, str]:
    """Run methods of a part at their points, and diagnose them: label -> its table; and the verdict on all.

    With ``rounds`` it is what ``fedax diagnose`` does with a configuration: so many rounds with the first seed.
    """
    config = copy.deepcopy(study.run(part, PLAIN, 0, points[PLAIN]).config)
    config["methods"] = [
        row for label, point in points.items() for row in study.run(part, label, 0, point).config["methods"]
    ]
    config["run"]["seeds"] = 1 if rounds else part.config["run"]["seeds"]
    if rounds:
        config["run"]["rounds"] = rounds
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergedWarning)
        folder = new_folder(pathlib.Path(place) / "run", part.name)
        execute(build(config), folder, drawn=False)
        record = read(folder)
        experiment = build(record.config)
        diagnose_run(experiment, record)
        record = read(folder)
        return {table["label"]: table for table in record.diagnosis}, verdict(record)


def _essentials(diagnosis: Table) -> Table:
    """The numbers of a diagnosis, shortly."""
    numbers = {name: diagnosis[name] for name in ("clients", "constant", "chi2", "floor", "lr", "gained", "smoothness")}
    numbers["steps"] = diagnosis["steps"]
    numbers["points"] = [diagnosis["points"][0], diagnosis["points"][-1]]
    return _short(finite(numbers))


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _short(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_short(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


# ---- what is advised


def named(take: str, text: str) -> str:
    """The study's label for what a verdict on FedAvg says to take.

    Advice that is no method of the study, such as fewer local steps, larger cohorts or longer training, keeps FedAvg.

    Example:
        >>> named("scaffold", "Take scaffold …"), named("", "Keep FedAvg, and let lr decay …"), named("", "Keep it …")
        ('SCAFFOLD', 'FedAvg, decay', 'FedAvg')
    """
    if take:
        return {"fednova": NORMALIZED, "scaffold": CORRECTED, "feddyn": "FedDyn", "fedavg-m": "FedAvg-M"}[take]
    return DECAY if "lr decay" in text or "lr that decays" in text else PLAIN


def first_named(text: str, labels: Sequence[str]) -> str:
    """What the verdict on several methods says to take.

    Example:
        >>> first_named("Take FedAvg: it ties with SCAFFOLD …", ["FedAvg", "SCAFFOLD"])
        'FedAvg'
    """
    match = re.search(f"Take ({'|'.join(map(re.escape, labels))}): ", text)
    return match[1] if match else PLAIN


def tree(diagnosis: Table, cohort: float) -> str:
    """The answer of the tree as docs/choosing.md had it before this study: its questions in order, the first yes.

    It goes by the costs of FedAvg's diagnosis. A question is answered by yes if the cost is worth a remedy: more than
    0.2 % of what training gains; drift has to cost more than noise, too. Where the tree names several methods it is the
    first.
    """
    x = diagnosis["points"][-1]
    least = MATERIAL * (diagnosis["gained"] or 0.0)
    noise, cohorts = x["noise_cost"] or 0.0, x["cohort_cost"] or 0.0
    if diagnosis["steps"][0] != diagnosis["steps"][1] and x["inconsistency_cost"] > least:
        return NORMALIZED
    if x["drift_cost_range"] is not None and x["drift_cost_range"][0] > max(least, noise + cohorts):
        return CORRECTED
    if cohorts > least:
        return CORRECTED if 1 / cohort <= OFTEN else DECAY
    return DECAY if noise > least else PLAIN


# ---- what came out


def means(problem: Table, column: str = "test") -> dict[str, float]:
    """Method -> its mean over the seeds; ∞ if a run diverged."""
    return {
        label: float(np.mean(values)) if None not in values else math.inf for label, values in problem[column].items()
    }


def _tests(problem: Table, pairs: Sequence[tuple[str, str]], column: str = "test") -> list[float]:
    """p of the paired t-tests of pairs of methods, corrected by Holm; 0 where one of two diverged, 1 where both did."""
    p_values = []
    for one, other in pairs:
        a, b = problem[column][one], problem[column][other]
        failed = (None in a) + (None in b)
        p_values.append(gap_of(np.array(a, float), np.array(b, float)).p if not failed else float(failed == 2))
    return holm(p_values)


def wins(problem: Table) -> dict[str, bool]:
    """Method -> whether it beats FedAvg by more than noise."""
    mean = means(problem)
    others = [label for label in problem["test"] if label != PLAIN]
    tests = _tests(problem, [(label, PLAIN) for label in others])
    return {label: mean[label] < mean[PLAIN] and p < LEVEL for label, p in zip(others, tests, strict=True)}


def best_of(problem: Table, column: str = "test") -> tuple[str, set[str]]:
    """The method with the lowest mean, and all that the test does not tell from it, itself included.

    All pairs of methods count in Holm's correction, as in fedax's reports.
    """
    mean = means(problem, column)
    best = min(mean, key=lambda label: mean[label])
    pairs = [(a, b) for k, a in enumerate(mean) for b in list(mean)[k + 1 :]]
    tests = dict(zip(pairs, _tests(problem, pairs, column), strict=True))
    return best, {best} | {a if b == best else b for (a, b), p in tests.items() if best in (a, b) and p >= LEVEL}


def regret(problem: Table, label: str) -> float:
    """Test loss above that of the best method, as a share of what the best gains over the initial model; at most 1."""
    mean = means(problem)
    least = min(mean.values())
    return float(min((mean[label] - least) / (problem["start"] - least), 1.0))


def advised(problem: Table, label: str) -> str:
    """A method as this problem has it: FedNova is FedAvg where it is not among the methods."""
    return label if label in problem["test"] else PLAIN


def without(problem: Table, label: str) -> Table:
    """A problem as if a method had not been run."""
    columns = ("test", "train", "validation")
    return problem | {name: {each: v for each, v in problem[name].items() if each != label} for name in columns}


def at_equal_gradients(problem: Table) -> Table:
    """A problem with the test losses that methods have at equal gradients; without Mime where they are not known.

    All other methods take one gradient a step, and so as many as FedAvg. Mime takes two, and a pass over the data.
    """
    if "equal" not in problem:
        return without(problem, COSTLY)
    return problem | {"test": problem["test"] | {COSTLY: problem["equal"]}}


def quantities(problem: Table) -> dict[str, float]:
    """What is measured of a problem: costs as a share of what training gains; "first" and "last" are the models."""
    diagnosis = problem["diagnosis"]
    first, last = diagnosis["points"]
    gained = diagnosis["gained"] or math.nan

    def costs(x: Table) -> dict[str, float]:
        noise, cohorts = x["noise_cost"] or 0.0, x["cohort_cost"] or 0.0
        return {
            "cost of drift": (x["drift_cost"] or 0.0) / gained,
            "cost of minibatches' noise": noise / gained,
            "cost of cohorts' noise": cohorts / gained,
            "cost of both noises": (noise + cohorts) / gained,
        }

    def share(x: Table, name: str) -> float:
        return x[name] ** 2 / (x["move"] ** 2 + x["noise"] ** 2 + x["cohort_noise"] ** 2)

    return {
        "χ²": diagnosis["chi2"] or 0.0,
        "2χ²κ²/‖∇F‖², first": (diagnosis["floor"] or 0.0) / first["gradient"],
        "cost of another objective": last["inconsistency_cost"] / gained if diagnosis["chi2"] else 0.0,
        "ζ/‖∇F‖, first": math.sqrt(first["dissimilarity"] / first["gradient"]),
        "ζ/‖∇F‖, last": math.sqrt(last["dissimilarity"] / last["gradient"]),
        "κ/‖∇F‖, first": math.sqrt(diagnosis["constant"] / first["gradient"]),
        "drift's part of the descent, first": 1 - first["descent"] / first["free_descent"],
        "drift's part of the descent, last": 1 - last["descent"] / last["free_descent"],
        **{f"{name}, first": value for name, value in costs(first).items()},
        **costs(last),
        "minibatches' part of a round, first": share(first, "noise"),
        "minibatches' part of a round, last": share(last, "noise"),
        "cohorts' part of a round, last": share(last, "cohort_noise"),
        "share of clients in a round": problem["cohort"],
        "most local steps": float(diagnosis["steps"][1]),
        "lr · L · steps": diagnosis["lr"] * diagnosis["smoothness"] * diagnosis["steps"][1],
        "loss still to be had": last["left"] / gained,
    }


# ---- how well it tells


def auc(x: np.ndarray, won: np.ndarray) -> float:
    """The chance that a problem that is won has the larger x of two; ties count half. Not-a-number without both kinds.

    Example:
        >>> auc(np.array([1.0, 2.0, 3.0, 3.0]), np.array([False, False, True, False]))
        0.8333333333333334
    """
    high, low = x[won], x[~won]
    if not len(high) or not len(low):
        return math.nan
    return float(np.mean((high[:, None] > low) + 0.5 * (high[:, None] == low)))


def balanced(x: np.ndarray, won: np.ndarray, cut: float, sign: int) -> float:
    """The mean of the rates at which wins and no wins are told by sign · x > sign · cut."""
    if won.all() or not won.any():
        return math.nan
    predicted = sign * x > sign * cut
    return float((np.mean(predicted[won]) + np.mean(~predicted[~won])) / 2)


def threshold(x: np.ndarray, won: np.ndarray) -> tuple[float, int]:
    """The cut and the sign with the best balanced accuracy; of equal ones that with the most room on both sides.

    Example:
        >>> threshold(np.array([0.0, 1.0, 4.0, 5.0]), np.array([False, False, True, True]))
        (2.5, 1)
    """
    values = np.unique(x)
    if len(values) < 2:
        return float(values[0]), 1
    ways = [(low + (high - low) / 2, high - low, sign) for low, high in itertools.pairwise(values) for sign in (1, -1)]
    cut, _, sign = max(ways, key=lambda way: (balanced(x, won, way[0], way[2]), way[1], way[2]))
    return float(cut), sign


def bootstrap(statistic: Callable[[np.ndarray], float], n: int) -> tuple[float, float]:
    """The 95 % interval of a statistic of the indices of n problems, drawn anew; draws without it are left out."""
    rng = np.random.default_rng(0)
    draws = np.array([statistic(rng.integers(n, size=n)) for _ in range(DRAWS)])
    draws = draws[np.isfinite(draws)]
    low, high = np.quantile(draws, [0.025, 0.975]) if len(draws) else (math.nan, math.nan)
    return float(low), float(high)


def wilson(hits: int, n: int) -> tuple[float, float]:
    """The 95 % interval of a rate (Wilson 1927).

    Example:
        >>> [round(end, 3) for end in wilson(8, 10)]
        [0.49, 0.943]
    """
    z = 1.959964
    middle, half = (hits + z * z / 2) / (n + z * z), z * math.sqrt(hits * (n - hits) / n + z * z / 4) / (n + z * z)
    return max(middle - half, 0.0), min(middle + half, 1.0)


@dataclass(frozen=True)
class Predictor:
    """How well a quantity tells where a method beats FedAvg.

    Attributes:
        quantity: its name.
        cut, sign: the method wins where sign · quantity > sign · cut.
        rule: balanced accuracy on the rule half, by which cut and sign were chosen.
        x: [problems] the quantity on the held-out half.
        won: [problems] whether the method won there.
    """

    quantity: str
    cut: float
    sign: int
    rule: float
    x: np.ndarray
    won: np.ndarray

    def accuracy(self, k: Any = slice(None)) -> float:
        """Balanced accuracy on the held-out half, or on some problems of it."""
        return balanced(self.x[k], self.won[k], self.cut, self.sign)

    def auc(self, k: Any = slice(None)) -> float:
        """AUC likewise."""
        return auc(self.sign * self.x[k], self.won[k])


def predictors(measured: dict[str, Table], label: str) -> list[Predictor]:
    """All quantities, the best on the rule half first; none where a half has no win, or nothing but wins.

    Problems where the method was not run are left out.
    """
    rule, held = (_outcomes(measured, label, half) for half in ("rule", "held out"))
    if any(won.all() or not won.any() for _, won in (rule, held)):
        return []
    candidates = []
    for name in rule[0][0]:
        x, y = (np.array([each[name] for each in side]) for side, _ in (rule, held))
        cut, sign = threshold(x, rule[1])
        candidates.append(Predictor(name, cut, sign, balanced(x, rule[1], cut, sign), y, held[1]))
    return sorted(candidates, key=lambda each: -each.rule)


def _outcomes(measured: dict[str, Table], label: str, half: str) -> tuple[list[dict[str, float]], np.ndarray]:
    """The quantities of each problem where a method was run, and whether it beat FedAvg."""
    there = [problem for problem in of_half(measured, half) if label in problem["test"]]
    return [quantities(problem) for problem in there], np.array([wins(problem)[label] for problem in there], bool)


def of_half(measured: dict[str, Table], half: str) -> list[Table]:
    """The problems of a half, in the order of the study."""
    where = halves(names())
    return [problem for name, problem in measured.items() if where[name] == half]


@functools.cache
def names() -> list[str]:
    """The study's parts."""
    return [part.name for part in read_study("choosing").section.parts]


def strategies(measured: dict[str, Table]) -> dict[str, Callable[[Table], str]]:
    """Ways to choose a method: name -> (problem -> label). None sees a problem's test loss."""
    rule = of_half(measured, "rule")
    always = lambda label: lambda problem: advised(problem, label)  # noqa: E731
    labels = methods(measured)
    best = min(labels, key=lambda label: np.mean([regret(problem, advised(problem, label)) for problem in rule]))
    ways: dict[str, Callable[[Table], str]] = {
        "`fedax diagnose`, a finished run of FedAvg": lambda problem: advised(problem, problem["advice"]["verdict"]),
        "`fedax diagnose`, ten rounds of FedAvg": lambda problem: advised(problem, problem["advice"]["short"]),
        "FedAvg, FedNova and SCAFFOLD compared, then diagnosed": lambda problem: problem["advice"]["compared"],
        "the tree of docs/choosing.md": lambda problem: advised(problem, problem["advice"]["tree"]),
        "all methods tuned, lowest validation loss": lambda problem: min(
            problem["validation"], key=lambda label: problem["validation"][label]
        ),
    }
    note = ", the best on average of the rule half"
    return ways | {f"always {label}{note if label == best else ''}": always(label) for label in labels}


def methods(measured: dict[str, Table]) -> list[str]:
    """All methods of the problems."""
    return list(dict.fromkeys(label for problem in measured.values() for label in problem["test"]))


# ---- tables


def written(text: str, measured: dict[str, Table]) -> str:
    """The page with its generated parts; those that need results stay as they are where there are none."""
    text = _put(text, "problems", problems_table(measured))
    if not any(of_half(measured, "rule")) or not any(of_half(measured, "held out")):
        return text
    for name, make in (
        ("wins", wins_table),
        ("expected quantities", expected_table),
        ("figure", _picture),
        ("best quantities", best_table),
        ("quantities", quantities_table),
        ("advice", advice_table),
        ("luck", luck),
        ("gradients", costs),
        ("answers", answers_table),
    ):
        text = _put(text, name, make(measured))
    return text


def _picture(measured: dict[str, Table]) -> str:
    return "![What diagnose says that a fault costs, against what its remedy gained](figures/choosing.svg)\n"


def problems_table(measured: dict[str, Table]) -> str:
    """What each part is, and in which half."""
    rows, where = [], halves(names())
    for part in read_study("choosing").parts.values():
        config = part.config
        data, work, run = config["data"], config["work"], config["run"]
        dealt = {key: data[key] for key in ("partition", "column", "alpha", "beta", "exponent") if key in data}
        local = [f"{work[key]}" for key in ("steps", "epochs") if key in work]
        local = [*local, f"{work['low']} to {work['high']}"] if "low" in work else local
        rows.append((
            f"`{part.name}`",
            where[part.name],
            data["name"],
            ", ".join(value if isinstance(value, str) else f"{key} {value:g}" for key, value in dealt.items()),
            f"{work['kind'].replace('-', ' ')} {', '.join(local)}",
            f"{run['batch_size']}",
            f"{config['participation']['size']}" if "participation" in config else "all",
            "MLP" if config.get("task", {}).get("name") == "mlp" else "linear",
        ))  # fmt: skip
    return _table(("problem", "half", "data", "dealt", "local work", "batch", "clients a round", "model"), rows)


def wins_table(measured: dict[str, Table]) -> str:
    """On how many problems each method beats FedAvg, loses to it, and is best."""
    rows = []
    for label in dict.fromkeys(label for problem in measured.values() for label in problem["test"]):
        there = [problem for problem in measured.values() if label in problem["test"]]
        better = sum(wins(problem).get(label, False) for problem in there)
        worse = sum(_loses(problem, label) for problem in there)
        best = [best_of(problem) for problem in there]
        loss = [regret(problem, label) for problem in there]
        rows.append((
            label, f"{len(there)}", "–" if label == PLAIN else f"{better}", "–" if label == PLAIN else f"{worse}",
            f"{sum(first == label for first, _ in best)}", f"{sum(label in tied for _, tied in best)}",
            _percent(float(np.mean(loss))), _percent(max(loss)),
        ))  # fmt: skip
    head = (
        "method", "problems", "better than FedAvg", "worse", "best", "not told from the best", "mean regret", "largest",
    )  # fmt: skip
    return _table(head, rows)


def _loses(problem: Table, label: str) -> bool:
    mean = means(problem)
    others = [each for each in problem["test"] if each != PLAIN]
    if label not in others:
        return False
    tests = dict(zip(others, _tests(problem, [(each, PLAIN) for each in others]), strict=True))
    return mean[label] > mean[PLAIN] and tests[label] < LEVEL


_TOLD = ("told by", "threshold", "rule half", "held-out half, balanced accuracy", "AUC")


def expected_table(measured: dict[str, Table]) -> str:
    """For each method the quantity that theory names."""
    return _contrasts(measured, lambda label, tried: next(each for each in tried if each.quantity == EXPECTED[label]))


def best_table(measured: dict[str, Table]) -> str:
    """For each method the quantity that is best on the rule half."""
    return _contrasts(measured, lambda label, tried: tried[0])


def _contrasts(measured: dict[str, Table], pick: Callable[[str, list[Predictor]], Predictor]) -> str:
    rows = []
    for label in EXPECTED:
        tried = predictors(measured, label)
        counts = [_outcomes(measured, label, half)[1] for half in ("rule", "held out")]
        cells = [", ".join(f"{won.sum()} of {len(won)}" for won in counts), *["–"] * len(_TOLD)]
        if tried:
            one = pick(label, tried)
            n = len(one.won)
            cells[1:] = (
                one.quantity, f"{'>' if one.sign > 0 else '<'} {one.cut:.2g}", _percent(one.rule),
                f"{_percent(one.accuracy())} {_range(bootstrap(one.accuracy, n))}",
                f"{one.auc():.2f} {_range(bootstrap(one.auc, n), 2)}",
            )  # fmt: skip
        rows.append((label, *cells))
    return _table(("better than FedAvg", "rule half, held-out half", *_TOLD), rows)


def quantities_table(measured: dict[str, Table]) -> str:
    """AUC on the held-out half of all quantities for all methods; the way is that of the rule half."""
    tried = {label: {each.quantity: each for each in predictors(measured, label)} for label in EXPECTED}
    rows = [
        (name, *(f"{by_name[name].auc():.2f}" if by_name else "–" for by_name in tried.values()))
        for name in quantities(next(iter(measured.values())))
    ]
    return _table(("quantity", *tried), rows)


def advice_table(measured: dict[str, Table]) -> str:
    """What each way to choose a method loses on the held-out half, and how often it finds one of the best."""
    held = of_half(measured, "held out")
    ways = strategies(measured)
    losses = {name: regrets(held, choose) for name, choose in ways.items()}
    first, rows = next(iter(losses.values())), []
    for name, choose in sorted(ways.items(), key=lambda way: float(losses[way[0]].mean())):
        labels, loss = [choose(problem) for problem in held], losses[name]
        hits = [
            sum(label in best_of(problem)[1] for problem, label in zip(held, labels, strict=True)),
            sum(label in best_of(problem, "train")[1] for problem, label in zip(held, labels, strict=True)),
            int(np.sum(loss <= CLOSE)),
        ]
        own = "–" if loss is first else _against(loss - first)
        rows.append((name, _spread(loss), own, _percent(float(loss.max())), _equal(held, choose),
                     *(f"{hit} of {len(held)} {_range(wilson(hit, len(held)))}" for hit in hits)))  # fmt: skip
    rows.append(_random_row(held, first))
    equal = "at equal gradients" if all("equal" in problem for problem in held) else f"without {COSTLY}"
    head = (
        "chosen by", "mean regret", "points above `fedax diagnose`", "largest regret", f"mean regret {equal}",
        "not told from the best", "the same by training loss", "within 1 %",
    )  # fmt: skip
    return _table(head, rows)


def regrets(held: Sequence[Table], choose: Callable[[Table], str]) -> np.ndarray:
    """[problems] what a way to choose loses."""
    return np.array([regret(problem, choose(problem)) for problem in held])


def _equal(held: Sequence[Table], choose: Callable[[Table], str]) -> str:
    """The mean regret at equal gradients; none of always Mime where its losses there were not kept."""
    if all("equal" not in problem and choose(problem) == COSTLY for problem in held):
        return "–"
    return _percent(float(regrets([at_equal_gradients(problem) for problem in held], choose).mean()))


def chances(held: Sequence[Table]) -> np.ndarray:
    """[0 … problems] the chance that a method drawn at random for each problem is one of the best on so many."""
    of_number = np.ones(1)
    for problem in held:
        tied = best_of(problem)[1]
        right = np.mean([label in tied for label in problem["test"]])
        of_number = np.convolve(of_number, [1 - right, right])
    return of_number


def _random_row(held: Sequence[Table], first: np.ndarray) -> tuple[str, ...]:
    """A tuned method, drawn at random for each problem from those that ran on it: means over the draws."""

    def mean(problem: Table) -> float:
        return float(np.mean([regret(problem, label) for label in problem["test"]]))

    def share(problem: Table, column: str) -> float:
        tied = best_of(problem, column)[1]
        return float(np.mean([label in tied for label in problem["test"]]))

    loss = np.array([mean(problem) for problem in held])
    equal = float(np.mean([mean(at_equal_gradients(problem)) for problem in held]))
    close = sum(float(np.mean([regret(problem, label) <= CLOSE for label in problem["test"]])) for problem in held)
    hits = [*(sum(share(problem, column) for problem in held) for column in ("test", "train")), close]
    most = max(regret(problem, label) for problem in held for label in problem["test"])
    return (
        "a tuned method at random", _spread(loss), _against(loss - first), _percent(most), _percent(equal),
        *(f"{hit:.1f} of {len(held)}" for hit in hits),
    )  # fmt: skip


def _spread(loss: np.ndarray) -> str:
    ends = bootstrap(functools.partial(_mean, loss), len(loss))
    return f"{_percent(float(loss.mean()))} ({100 * ends[0]:.1f} to {100 * ends[1]:.1f})"


def _against(gaps: np.ndarray) -> str:
    """A mean difference over the problems, with its interval, in points."""
    ends = bootstrap(functools.partial(_mean, gaps), len(gaps))
    mean, low, high = (f"{100 * value:.1f}".replace("-0.0", "0.0") for value in (float(gaps.mean()), *ends))
    return f"{mean} ({low} to {high})".replace("-", "−")


def luck(measured: dict[str, Table]) -> str:
    """What chance alone gives, in a sentence."""
    held = of_half(measured, "held out")
    of_number = chances(held)
    mean = float(np.arange(len(of_number)) @ of_number)
    hits = sum(advised(problem, problem["advice"]["verdict"]) in best_of(problem)[1] for problem in held)
    chance = of_number[hits:].sum()
    return (
        f"A tuned method that is drawn at random for each problem is not told from the best on {mean:.1f} of "
        f"{len(held)}\non average, and on at least {hits}, as the advice is, with probability {chance:.2f}.\n"
    )


def costs(result: dict[str, Table]) -> str:
    """How many gradients Mime took, in a sentence."""
    times = [problem["gradients"] for problem in result.values()]
    low, middle, high = (f"{value:.1f}" for value in np.quantile(times, [0, 0.5, 1]))
    text = f"{COSTLY} took {low} to {high} times as many gradients as FedAvg, {middle} times in the median.\n"
    kept = [problem for problem in result.values() if "equal" in problem]
    if not kept:
        return text
    better, worse = (
        [sum(map(count, problems)) for problems in (map(at_equal_gradients, kept), kept)]
        for count in (lambda problem: wins(problem)[COSTLY], lambda problem: _loses(problem, COSTLY))
    )
    return (
        f"{text}At equal gradients it beats FedAvg on {better[0]} of {len(kept)} problems, and loses to it on "
        f"{worse[0]}; at equal rounds on\n{better[1]} and {worse[1]}.\n"
    )


def _mean(values: np.ndarray, k: np.ndarray) -> float:
    return float(values[k].mean())


def answers_table(result: dict[str, Table]) -> str:
    """For each problem the best method, and what each way names."""
    rows, where = [], halves(names())
    for name, problem in result.items():
        best, tied = best_of(problem)
        cells = []
        for key in ("verdict", "short", "compared", "tree"):
            label = advised(problem, problem["advice"][key])
            cells.append(f"{label}{'' if label in tied else ' ✗'} ({_percent(regret(problem, label))})")
        rows.append((f"`{name}`", where[name], best, f"{len(tied) - 1}", *cells))
    return _table(("problem", "half", "best", "ties", "verdict", "ten rounds", "three compared", "tree"), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def _percent(value: float) -> str:
    return f"{100 * value:.{1 if abs(value) < 0.1 else 0}f} %"


def _range(ends: tuple[float, float], digits: int = 0) -> str:
    if not all(map(math.isfinite, ends)):
        return ""
    low, high = (f"{end:.2f}" if digits else f"{100 * end:.0f}" for end in ends)
    return f"({low} to {high})"


def _put(text: str, part: str, new: str) -> str:
    begin, end = _BEGIN.format(part), _END.format(part)
    result = re.search(re.escape(begin) + "(.*?)" + re.escape(end), text, re.DOTALL)
    if result is None:
        raise SystemExit(f"{PAGE.name} has no place for: {part}")
    return text[: result.start(1)] + new + text[result.end(1) :]


# ---- figure


PANELS = (
    (NORMALIZED, "cost of another objective"),
    (CORRECTED, "cost of drift"),
    (DECAY, "cost of both noises"),
)


def figure(result: dict[str, Table]) -> Drawing:
    """What diagnose says that a fault costs, against what its remedy gained in test loss; a point a problem."""
    from fedax.figures.drawing import legend, style

    with style():
        drawing = Drawing(figsize=(6.8, 2.4), layout="constrained")
        axes = drawing.subplots(1, len(PANELS))
    where, handles = halves(names()), {}
    with style():
        for place, (label, quantity) in zip(axes, PANELS, strict=True):
            for k, half in enumerate(("rule", "held out")):
                there = [result[name] for name in result if where[name] == half and label in result[name]["test"]]
                x = [100 * quantities(problem)[quantity] for problem in there]
                y = [100 * gain(problem, label) for problem in there]
                handles[half] = place.plot(x, y, marker(k), color=colour(k), markersize=3.5, clip_on=False)[0]
            place.axhline(0, color="#8591a0", linewidth=0.6)
            place.axvline(100 * MATERIAL, color="#8591a0", linewidth=0.6, linestyle=(0, (1.2, 1.3)))
            place.set_xscale("symlog", linthresh=0.01)
            place.set_xlim(left=0)
            place.set_yscale("symlog", linthresh=0.1)
            for axis in (place.xaxis, place.yaxis):
                axis.set_major_formatter(lambda value, _: f"{value:g}".replace("-", "−"))
            place.spines[["top", "right"]].set_visible(False)
            place.set_title(f"{label} against FedAvg")
            place.set_xlabel(f"{quantity[0].upper()}{quantity[1:]}, %")
        axes[0].set_ylabel("Gained in test loss, %")
        legend(drawing, list(handles.values()), [f"{half.replace(' ', '-')} half" for half in handles])
    return drawing


def gain(problem: Table, label: str) -> float:
    """By how much a method's test loss is below FedAvg's, as a share of what the best gains; from −1 to 1."""
    return regret(problem, PLAIN) - regret(problem, label)


# ----


def measured() -> dict[str, Table]:
    """StudyPart -> what was measured of it."""
    result: dict[str, Table] = json.loads(MEASURED.read_text(encoding="utf-8")) if MEASURED.exists() else {}
    return {name: result[name] for name in names() if name in result}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=pathlib.Path, help="of the study; default: only write the page anew")
    folder, result = parser.parse_args().folder, measured()
    if folder is not None:
        study = read_study("choosing")
        study.results = results_of(folder)
        for name, part in study.parts.items():
            problem = result.get(name) or measure(study, part, folder)
            if problem is not None and "equal" not in problem:
                result[name] = problem | {"equal": scores_at_equal_gradients(study, part, problem)}
                text = json.dumps(result, ensure_ascii=False, separators=(",", ":"))
                MEASURED.write_text(text + "\n", encoding="utf-8")
                print(name, problem["advice"], best_of(problem), flush=True)
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), result), encoding="utf-8")
    if result:
        sys.path.append(str(DOCS))
        from study import svg

        FIGURE.write_text(svg(figure(result)), encoding="utf-8")


if __name__ == "__main__":
    main()
