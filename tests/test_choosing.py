"""The study of the choice of a method: its analysis, on results whose answer is known, and its page."""

import importlib.util
import math
import sys
from pathlib import Path

import numpy as np
import pytest

import fedax
from fedax.experiments.runs import MethodRun
from fedax.experiments.study import read_study

SPEC = importlib.util.spec_from_file_location("choosing", Path(__file__).parents[1] / "benchmarks" / "choosing.py")
assert SPEC is not None and SPEC.loader is not None
choosing = importlib.util.module_from_spec(SPEC)
sys.modules["choosing"] = choosing  # where a dataclass looks for its module
SPEC.loader.exec_module(choosing)

NOISE = np.array([0.0, 0.01, -0.01, 0.02, -0.02])


def point(**changes):
    point = {"gradient": 1.0, "dissimilarity": 4.0, "inconsistency_cost": 0.0, "left": 0.01, "move": 1.0, "noise": 0.0}
    point |= {"cohort_noise": 0.0, "descent": 1.0, "free_descent": 2.0, "drift_cost": 0.0, "noise_cost": 0.0}
    return point | {"cohort_cost": 0.0, "drift_cost_range": [0.0, 0.0]} | changes


def diagnosis(**changes):
    results = {"clients": 20, "constant": 4.0, "chi2": 0.0, "floor": 0.0, "lr": 0.1, "gained": 2.0, "smoothness": 1.0}
    return results | {"steps": [10, 10], "points": [point(), point(**changes)]}


def problem(drift=0.0, advice="FedAvg", **gaps):
    """FedAvg at 0.5 with noise that all share; the others by their gaps below it, with a little noise of their own."""
    own = np.random.default_rng(0).normal(scale=1e-3, size=(9, 5))
    labels = {"FedAvg": 0.0, "SCAFFOLD": 0.0, "FedAvg, decay": 0.0} | gaps
    test = {label: (0.5 - gap + NOISE + own[k]).tolist() for k, (label, gap) in enumerate(labels.items())}
    return {
        "cohort": 1.0,
        "gradients": 2.5,
        "steps": [10, 10],
        "start": 2.4,
        "test": test,
        "train": test,
        "validation": {label: float(np.mean(values)) for label, values in test.items()},
        "diagnosis": diagnosis(drift_cost=drift),
        "advice": dict.fromkeys(("verdict", "short", "compared", "tree"), advice),
    }


@pytest.fixture
def made(monkeypatch):
    """Twelve problems: SCAFFOLD wins by 0.2 where drift costs, nothing differs elsewhere, and all advice is right."""
    names = [f"p{k}" for k in range(12)]
    monkeypatch.setattr(choosing, "names", lambda: names)
    monkeypatch.setattr(choosing, "DRAWS", 50)
    results, turn = {}, {"rule": 0, "held out": 0}
    for name, half in choosing.halves(names).items():
        turn[half] += 1
        drifts = turn[half] % 2
        gaps = {"SCAFFOLD": 0.2 * drifts}
        results[name] = problem(0.1 * drifts + 1e-3 * turn[half], "SCAFFOLD" if drifts else "FedAvg", **gaps)
    return {name: results[name] for name in names}


def test_halves_are_fixed_and_equal():
    where = choosing.halves(choosing.names())
    assert sorted(where.values()).count("rule") == len(where) / 2 == 16
    rule = {"digits-alike", "digits-half", "fashion", "writers-tenth", "a9a", "synthetic-0"}
    assert {where[name] for name in rule} == {"rule"} and where["digits"] == where["a9a-alike-noisy-long"] == "held out"


def test_a_win_is_more_than_noise():
    one_problem = problem(**{"SCAFFOLD": 0.2, "FedAvg, decay": -0.2, "FedNova": 0.0})
    assert choosing.wins(one_problem) == {"SCAFFOLD": True, "FedAvg, decay": False, "FedNova": False}
    assert choosing.best_of(one_problem) == ("SCAFFOLD", {"SCAFFOLD"})
    assert choosing.regret(one_problem, "FedAvg") == pytest.approx(0.2 / 2.1, rel=0.02)
    assert choosing.regret(one_problem, "SCAFFOLD") == 0


def test_a_method_that_fails_is_never_right():
    one_problem = problem(SCAFFOLD=0.2)
    one_problem["test"]["SCAFFOLD"][2] = None
    assert not choosing.wins(one_problem)["SCAFFOLD"]
    best, tied = choosing.best_of(one_problem)
    assert best != "SCAFFOLD" and "SCAFFOLD" not in tied and choosing.regret(one_problem, "SCAFFOLD") == 1


def test_the_quantity_that_decides_is_found(made):
    predictors = {each.quantity: each for each in choosing.predictors(made, "SCAFFOLD")}
    drift = predictors["cost of drift"]
    assert drift.rule == drift.accuracy() == drift.auc() == 1 and drift.sign == 1
    assert 0.006 / 2 < drift.cut < 0.1 / 2  # a share of what training gains, which is 2
    assert predictors["χ²"].accuracy() == predictors["χ²"].auc() == 0.5  # the same everywhere
    assert choosing.predictors(made, "SCAFFOLD")[0].rule == 1
    assert choosing.predictors(made, "FedAvg, decay") == []  # which never wins


def test_a_quantity_by_chance_fails_on_the_other_half(made):
    for name, half in choosing.halves(list(made)).items():
        x = made[name]["diagnosis"]["points"][1]
        x["left"] = x["drift_cost"] if half == "rule" else 0.105 - x["drift_cost"]
    predictor = {each.quantity: each for each in choosing.predictors(made, "SCAFFOLD")}["loss still to be had"]
    assert predictor.rule == 1 and predictor.accuracy() == 0 and predictor.auc() == 0


def test_auc_is_that_of_all_pairs():
    rng = np.random.default_rng(1)
    x, won = rng.integers(4, size=30).astype(float), rng.random(30) < 0.4
    pairs = [(a > b) + (a == b) / 2 for a in x[won] for b in x[~won]]
    assert choosing.auc(x, won) == pytest.approx(np.mean(pairs))
    assert math.isnan(choosing.auc(x, np.ones(30, bool)))


def test_a_threshold_may_lie_above_what_wins():
    cut, sign = choosing.threshold(np.array([1.0, 2.0, 5.0, 6.0]), np.array([True, True, False, False]))
    assert (cut, sign) == (3.5, -1)


def test_intervals_are_those_of_the_binomial_and_of_the_mean():
    low, high = choosing.wilson(0, 16)
    assert low == 0 and high == pytest.approx(0.1936, abs=1e-4)
    x = np.random.default_rng(0).normal(size=400)
    low, high = choosing.bootstrap(lambda k: float(x[k].mean()), 400)
    assert (high - low) / 2 == pytest.approx(1.96 * x.std() / 20, rel=0.1) and low < x.mean() < high


def test_right_advice_is_told_from_wrong(made):
    def rates():
        rows = [line.split(" | ") for line in choosing.advice_table(made).splitlines()[2:]]
        return {row[0].lstrip("| "): row[1:] for row in rows}

    right = rates()
    request = "`fedax diagnose`, a finished run of FedAvg"
    assert right[request][4].startswith("6 of 6") and right[request][0].startswith("0.0 %")
    assert right["always FedAvg"][4].startswith("3 of 6") and right["always FedAvg"][1].startswith("4.8 (")
    assert right["always SCAFFOLD, the best on average of the rule half"][4].startswith("6 of 6")
    for each in made.values():
        each["advice"]["verdict"] = "FedAvg"
    wrong = rates()
    for k in (0, 2, 3, 4, 5, 6):  # all but the difference to the advice
        assert wrong[request][k] == wrong["always FedAvg"][k] == right["always FedAvg"][k]
    assert wrong["always FedAvg"][1] == "0.0 (0.0 to 0.0)"


def test_advice_for_fednova_is_fedavg_where_it_was_not_run():
    assert choosing.advised(problem(), "FedNova") == "FedAvg"
    assert choosing.advised(problem(FedNova=0.1), "FedNova") == "FedNova"


def test_the_tree_asks_in_its_order():
    def answer(cohort=1.0, steps=(10, 10), **costs):
        return choosing.tree(diagnosis(**costs) | {"steps": list(steps)}, cohort)

    assert answer() == "FedAvg"
    assert answer(inconsistency_cost=0.1) == "FedAvg"  # of cohorts, not of work
    assert answer(inconsistency_cost=0.1, drift_cost_range=[1, 2], steps=(1, 10)) == "FedNova"
    assert answer(drift_cost_range=[1, 2], noise_cost=0.1) == "SCAFFOLD"
    assert answer(drift_cost_range=[0.05, 2], noise_cost=0.1) == "FedAvg, decay"  # less than noise
    assert answer(cohort=0.1, cohort_cost=0.1) == "SCAFFOLD"
    assert answer(cohort=0.01, cohort_cost=0.1) == "FedAvg, decay"  # clients return too rarely
    assert answer(noise_cost=0.003) == "FedAvg"  # 0.15 % of what training gains


@pytest.mark.parametrize(
    ("noise", "cohorts", "size", "label"),
    [
        (0.0, None, 2, "FedAvg"),
        (3.0, None, 2, "FedAvg-M"),
        (3.0, None, 9, "FedAvg, decay"),
        (0.0, 1, 2, "FedAvg-M"),
        (0.0, 1, 9, "FedAvg, decay"),
    ],
)
def test_verdicts_are_read_as_they_are_written(noise, cohorts, size, label):
    """Quadratics that differ in their optimum alone, diagnosed there: no drift, and noise of a known size."""
    rng = np.random.default_rng(0)
    clients, each, lr = 40, 20, 0.1
    b = rng.normal(size=(clients, 1, 2)) * (1.0 if cohorts else 0.0) + noise * rng.normal(size=(clients, each, 2))
    b -= b.mean((0, 1))
    examples = {"x": np.eye(2)[rng.integers(2, size=clients * each)], "y": b.reshape(-1, 2)[:, 0]}
    data = fedax.FederatedData(examples, np.full(clients, each))
    task = fedax.tasks.linear_regression(2, bias=False)
    cohort = fedax.Full() if cohorts is None else fedax.Systematic(cohorts)
    run = fedax.simulate(
        fedax.create("fedavg", lr=lr), task, data, rounds=60, work=fedax.Steps(2), batch_size=size, participation=cohort
    )
    diagnosis = fedax.theory.diagnose(
        fedax.create("fedavg", lr=lr), task, data, work=fedax.Steps(2), batch_size=size, participation=cohort,
        points=[None, run.params],
    )  # fmt: skip
    assert choosing.named(diagnosis.take, diagnosis.verdict) == label, diagnosis.verdict


def test_the_study_is_as_the_page_says():
    study = read_study("choosing")
    assert len(study.parts) == 32
    for part in study.parts.values():
        assert part.section.tune.rounds == part.config["run"]["rounds"] == 60
        assert part.config["run"]["seeds"] == 5 and part.config["run"]["split_seeds"]
        assert part.config["run"]["judge"] == part.config["sweep"]["criterion"] == "val_loss"
        assert ("FedNova" in part.labels) == (part.config["work"]["kind"] != "steps")


def test_the_page_is_current():
    text = choosing.PAGE.read_text(encoding="utf-8")
    assert choosing.written(text, choosing.measured()) == text, "run python benchmarks/choosing.py"


def test_tables_of_results_replace_those_of_before(made, monkeypatch):
    monkeypatch.setattr(choosing, "problems_table", lambda result: "")
    blank = choosing.PAGE.read_text(encoding="utf-8")
    text = choosing.written(blank, made)
    assert "not been run" not in text and choosing.written(text, made) == text
    assert len(choosing.figure(made).axes[1].lines) == 4  # both halves, no gain, and what is worth a remedy


def test_a_method_at_random_is_right_as_often_as_chance_says(made):
    held = choosing.of_half(made, "held out")
    of_number = choosing.chances(held)
    # Three methods: where SCAFFOLD wins one of three is right, elsewhere all three are.
    assert of_number.sum() == pytest.approx(1) and of_number[:3].sum() == pytest.approx(0)
    assert of_number[6] == pytest.approx((1 / 3) ** 3) and of_number[3] == pytest.approx((2 / 3) ** 3)
    assert np.arange(7) @ of_number == pytest.approx(4)
    text = choosing.luck(made)
    assert "on 4.0 of 6" in text and "at least 6" in text and "probability 0.04" in text
    row = choosing.advice_table(made).splitlines()[-1].split(" | ")
    # Half of the problems, two of three methods, 0.2 of the 2.1 that training gains.
    assert row[0] == "| a tuned method at random" and row[1].startswith("3.2 %")


def test_always_each_method_has_a_row_the_least_regret_first(made):
    rows = [line.strip("| ").split(" | ") for line in choosing.advice_table(made).splitlines()[2:]]
    assert [row[0] for row in rows if row[0].startswith("always")][-1] in ("always FedAvg", "always FedAvg, decay")
    assert {row[0].partition(", the best")[0] for row in rows} >= {
        f"always {label}" for label in choosing.methods(made)
    }
    regrets = [float(row[1].split(" %")[0]) for row in rows[:-1]]
    assert regrets == sorted(regrets)


def test_regret_at_equal_gradients_leaves_out_the_costly_method_until_its_losses_are_kept():
    one_problem = problem(SCAFFOLD=0.1, Mime=0.2)
    bound = choosing.at_equal_gradients(one_problem)
    assert "Mime" not in bound["test"] and choosing.regret(bound, "SCAFFOLD") == 0 < choosing.regret(
        one_problem, "SCAFFOLD"
    )
    assert choosing._equal([one_problem], lambda problem: "Mime") == "–"
    kept = one_problem | {"equal": one_problem["test"]["FedAvg"]}
    assert choosing.regret(choosing.at_equal_gradients(kept), "SCAFFOLD") == 0
    assert choosing._equal([kept], lambda problem: "Mime") == choosing._equal([kept], lambda problem: "FedAvg") != "–"


@pytest.mark.parametrize(
    ("gradients", "expected"),
    [(range(0, 26, 2), 10 + (4 + 5) / 2), (range(0, 39, 3), 13), (range(0, 91, 7), 11), (range(0, 143, 11), 10)],
)
def test_losses_at_equal_gradients_are_those_of_rounds_with_as_many(monkeypatch, gradients, expected):
    """FedAvg takes 8 gradients until its last fifth, and 10 in all."""

    def trained(study, part, label, point, rounds, every):
        of = [0, 2, 4, 6, 8, 10] if label == "FedAvg" else [*gradients]
        history = {"gradients": np.array(of), "test_loss": np.arange(10.0, 10 + len(of))}
        return [MethodRun(label, "fedavg", seed, "diverged" if seed else "finished", history) for seed in (0, 1)]

    monkeypatch.setattr(choosing, "trained", trained)
    part = read_study("choosing").parts["digits"]
    given = {"settings": {"FedAvg": {}, "Mime": {}}, "gradients": 2.0}
    result = choosing.scores_at_equal_gradients(None, part, given)
    assert result == [expected, None]


def test_what_is_trained_again_has_the_seeds_of_the_study_and_as_many_rounds_as_asked():
    study = read_study("choosing", only=["digits"])
    runs = choosing.trained(study, study.parts["digits"], "Mime", {"lr": 0.1}, rounds=2, every=1)
    assert [run.seed for run in runs] == [0, 1, 2, 3, 4] and {run.method for run in runs} == {"mime"}
    assert all(run.history["round"].tolist() == [0, 1, 2] and "test_loss" in run.history for run in runs)


def test_what_mime_costs_is_said(made):
    for k, each in enumerate(made.values()):
        each["gradients"] = 2.0 + k
    said = "Mime took 2.0 to 13.0 times as many gradients as FedAvg, 7.5 times in the median.\n"
    assert choosing.costs(made) == said
    for k, each in enumerate(made.values()):
        own = problem(Mime=0.1 if k else -0.1)["test"]
        each |= {"test": own, "equal": (np.array(own["FedAvg"]) + (0.1 if k > 2 else -0.1)).tolist()}
    said += (
        "At equal gradients it beats FedAvg on 3 of 12 problems, and loses to it on 9; at equal rounds on\n11 and 1.\n"
    )
    assert choosing.costs(made) == said
