"""The verdict covers the split and the test examples, not the seeds of training alone."""

import json

import numpy as np
import pytest
from scipy import stats

import fedax
from fedax.engine.checkpoint import write_tensors
from fedax.experiments import build, examples, execute, new_folder, summary
from fedax.experiments.chance import MANY_CLIENTS, covered, gap_of, overlap, variance_of_mean
from fedax.experiments.examples import path_of
from fedax.experiments.runs import said
from fedax.theory.diagnostics import MATERIAL
from tests.experiments import hospitals
from tests.experiments.test_report import fake, runs_of

SPLIT = {"train": 0.7, "val": 0.15, "test": 0.15, "seed": 0, "stratify": False}


def test_random_splits_overlap_so_their_error_is_larger():
    """Nadeau & Bengio 2003: (1/J + n_test/n_train) s², J − 1 degrees of freedom."""
    gaps = np.array([0.1, 0.3, 0.2, 0.5, -0.1])
    gap = gap_of(np.ones(5), 1 + gaps, overlap=0.15 / 0.7)
    error = np.sqrt((1 / 5 + 0.15 / 0.7) * gaps.var(ddof=1))
    low, high = stats.t.interval(0.95, 4, gaps.mean(), error)
    np.testing.assert_allclose(gap.interval(), (low, high))
    np.testing.assert_allclose(gap.p, 2 * stats.t.sf(gaps.mean() / error, 4))
    assert gap.p > gap_of(np.ones(5), 1 + gaps).p


def test_the_variance_of_test_examples_is_within_few_clients_and_between_many():
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(size=30), 5 + rng.normal(size=20)])
    within, freedom = variance_of_mean(values, np.array([30, 20]))
    parts = [0.6**2 * values[:30].var(ddof=1) / 30, 0.4**2 * values[30:].var(ddof=1) / 20]
    np.testing.assert_allclose(within, sum(parts))
    np.testing.assert_allclose(freedom, sum(parts) ** 2 / (parts[0] ** 2 / 29 + parts[1] ** 2 / 19))
    np.testing.assert_allclose(variance_of_mean(values, None), (values.var(ddof=1) / 50, 49))
    means = np.repeat(rng.normal(size=MANY_CLIENTS), 3)
    between, freedom = variance_of_mean(means, np.full(MANY_CLIENTS, 3))
    np.testing.assert_allclose((between, freedom), (means[::3].var(ddof=1) / MANY_CLIENTS, MANY_CLIENTS - 1))


@pytest.mark.parametrize(("sizes", "known"), [([1, 3], True), ([1, 1, 2], True), ([1, 1], True), ([1], False)])
def test_clients_of_one_example_count_together(sizes, known):
    variance, _ = variance_of_mean(np.arange(1.0, sum(sizes) + 1), np.array(sizes))
    assert np.isfinite(variance) == known and variance > 0


def test_seeds_that_agree_do_not_hide_the_noise_of_few_test_examples():
    """The star of two seeds: they agree to a hundredth, and the test examples do not."""
    rng = np.random.default_rng(1)
    gaps = rng.normal(0, 0.3, 85)
    gaps += 0.02 - gaps.mean()
    one, ends = np.array([0.5, 0.5001]), gaps.mean() + np.array([0.0, 0.0002])
    assert gap_of(one, one + ends).p < 0.01
    both = gap_of(one, one + ends, examples=(np.zeros(85), gaps), sizes=np.array([28, 28, 29]))
    assert both.p > 0.05 and both.interval()[0] < 0 < both.interval()[1]
    np.testing.assert_allclose(both.error, gaps.std() / np.sqrt(85), rtol=0.05)


def test_a_sure_difference_that_is_too_small_to_matter_is_a_tie(tmp_path):
    losses = {
        "a": runs_of(0.5, 0.5, 0.5),
        "b": runs_of(0.5 + 0.4 * MATERIAL, 0.5 + 0.5 * MATERIAL, 0.5 + 0.6 * MATERIAL),
    }
    (problem,) = summary.problems([fake(tmp_path / "small", losses, seeds=(0, 1, 2))])
    assert problem.p["b"] < 0.05 and problem.star is None and [problem.mark(m) for m in problem.methods] == ["≈", "≈"]
    assert "too small to matter, less than 0.2 %" in " ".join(summary.verdict(problem))
    assert summary.judged(problem)["too_small_to_matter"] == ["b"]
    losses["b"] = runs_of(0.6, 0.61, 0.62)
    (problem,) = summary.problems([fake(tmp_path / "large", losses, seeds=(0, 1, 2))])
    assert problem.star is problem.best and summary.judged(problem)["covered"] == ["the seeds of training"]


def test_without_the_values_of_the_test_examples_there_is_no_star_on_one_split(tmp_path):
    losses = {"a": runs_of(0.3, 0.31, 0.32), "b": runs_of(0.5, 0.51, 0.53)}
    record = fake(tmp_path / "run", losses, seeds=(0, 1, 2), columns=lambda label, loss: {"test_loss": loss})
    (problem,) = summary.problems([record])
    assert problem.judge == "test_loss" and problem.p["b"] < 0.01 and problem.star is None
    assert "do not cover the test examples" in " ".join(summary.verdict(problem))


def test_what_is_covered():
    own = {"data": {"name": "csv", "split": SPLIT}, "run": {"split_seeds": True}}
    assert covered(own, "test_loss", False, 0) == ["the seeds of training", "the split", "the test examples"]
    np.testing.assert_allclose([overlap(own, "test_loss"), overlap(own, "train_loss")], [0.15 / 0.7, 0.3 / 0.7])
    dealt = {"data": {"name": "digits", "partition": "iid"}, "run": {"split_seeds": True}}
    assert overlap(dealt, "test_loss") == 0 and "how the data are dealt" in covered(dealt, "test_loss", True, 1)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables") / "csv"
    hospitals.write(folder, hospitals=3, low=40, high=60)
    data = {"name": "csv", "files": str(folder), "label": "readmitted"}
    data |= {"split": {"val": 0.2, "test": 0.2, "seed": 5}}
    methods = [{"name": "fedavg", "lr": 0.1}, {"name": "fedavg", "label": "slow", "lr": 0.001}]
    return {"data": data, "run": {"rounds": 2, "batch_size": 16}, "methods": methods}


def test_small_tables_are_split_anew_by_each_seed_unless_told_otherwise(tables):
    run = lambda **more: build(tables | {"run": tables["run"] | more}).config["run"]  # noqa: E731
    assert run()["split_seeds"] and run()["seeds"] == [*range(10)]
    assert run(seeds=2)["split_seeds"] and run(seeds=2)["seeds"] == [0, 1]
    assert not run(split_seeds=False)["split_seeds"] and run(split_seeds=False)["seeds"] == [0, 1, 2]
    one = build(tables | {"methods": tables["methods"][:1]}).config["run"]  # there is nothing to compare
    assert not one["split_seeds"] and one["seeds"] == [0]
    experiment = build(tables | {"run": tables["run"] | {"seeds": [3, 1]}})
    for seed in (3, 1):  # data.split.seed + seed, as ever
        alone = build(tables | {"data": tables["data"] | {"split": tables["data"]["split"] | {"seed": 5 + seed}}})
        for own, other in zip(experiment.split(seed), (alone.data, alone.val, alone.test), strict=True):
            np.testing.assert_array_equal(own.examples["x"], other.examples["x"])


def test_methods_that_differ_by_rounding_have_no_difference_in_the_interval_either():
    a = np.array([1.0, 2.0, 3.0])
    gap = gap_of(a, a * (1 + 1e-8))
    assert gap.p == 1 and gap.interval() == (0, 0)


def test_shares_of_few_rows_that_agree_over_splits_by_chance_claim_nothing():
    rows, equal = np.random.default_rng(3), 0
    for _ in range(300):  # a family of 20 clients, one test row each, right with one in two
        one, other = rows.integers(0, 2, (2, 20, 3)).astype(float)
        gaps = [gap_of(a, b, overlap=0.15 / 0.7, tests=20) for a, b in zip(one, other, strict=True)]
        equal += min(gap.p for gap in gaps) < 0.05
        for gap in gaps:
            low, high = gap.interval()
            assert (low > 0 or high < 0) == (gap.p < 0.05)
    assert equal <= 15


def test_a_single_test_row_gives_no_interval():
    one, other = np.array([1.0, 1.1, 0.9]), np.array([1.5, 1.4, 1.6])
    gap = gap_of(one, other, examples=(np.array([1.0]), np.array([1.5])), sizes=np.array([1]))
    assert gap.p == 1 and gap.interval() == (-np.inf, np.inf)


def test_one_split_keeps_the_values_of_its_test_examples_and_mends_them(tables, tmp_path):
    config = tables | {"run": tables["run"] | {"split_seeds": False, "seeds": 2}}
    experiment, folder = build(config), new_folder(tmp_path / "run", "run")
    record = execute(experiment, folder)
    (problem,) = summary.problems([record])
    values = problem.methods[0].of_examples("test_loss")
    assert values.sizes.tolist() == experiment.test.sizes.tolist()
    np.testing.assert_allclose(values.values.mean(), problem.methods[0].final("test_loss").mean(), rtol=1e-5)
    judged = json.loads((folder / "summary.json").read_text())["judged"]
    assert judged["covered"] == ["the seeds of training", "the test examples"]
    assert set(judged["differences"]["slow" if judged["best"] != "slow" else "fedavg"]) == {"mean", "low", "high"}
    path = path_of(folder, "slow", 1)
    content = path.read_bytes()
    path.write_bytes(content[:-3])
    assert summary.problems([record])[0].star is None
    with pytest.warns(fedax.errors.DamagedWarning, match="made again"):
        execute(experiment, folder)
    assert path.read_bytes() == content


def test_another_column_decides_afterwards_as_if_the_run_had_been_judged_by_it(tables, tmp_path):
    config = tables | {"run": tables["run"] | {"split_seeds": False, "seeds": 2}}
    experiment, folder = build(config), new_folder(tmp_path / "run", "run")
    record = execute(experiment, folder)
    accurate = build(config | {"run": config["run"] | {"judge": "test_accuracy"}})
    (due,) = summary.problems([execute(accurate, new_folder(tmp_path / "accurate", "run"))])
    (found,) = summary.problems(summary.judged_by([record], "test_accuracy"))
    assert (found.judge, found.better, found.best.label) == ("test_accuracy", "higher", due.best.label)
    assert found.gaps == due.gaps and found.covered == due.covered == ["the seeds of training", "the test examples"]
    assert summary.problems([record])[0].judge == "test_loss"
    (by_auc,) = summary.problems(summary.judged_by([record], "test_auc"))  # it is no mean over examples
    assert by_auc.judge == "test_auc" and by_auc.gaps and not by_auc.sure
    summary.judged_by([record], "train_loss")
    refused = lambda judge: pytest.raises(fedax.errors.ConfigError, match=judge)  # noqa: E731
    with refused("judge = 'accuracy'.*test_accuracy"):
        summary.judged_by([record], "accuracy")
    with refused("judge = 'val_loss'.*a new run with run.judge"):
        summary.judged_by([record], "val_loss")

    path = path_of(folder, "slow", 1)  # as earlier versions have it
    content, values = path.read_bytes(), examples.read(folder, "slow", 1, "test_loss")
    tensors = {"test_loss": values.values.astype(np.float32), "sizes": values.sizes}
    write_tensors(path, tensors, "values of held-out examples", said(folder, path))
    assert summary.problems([record])[0].sure
    with refused("judge = 'test_accuracy'.*of slow.*--resume"):
        summary.judged_by([record], "test_accuracy")
    execute(experiment, folder)
    assert path.read_bytes() == content
    assert summary.problems(summary.judged_by([record], "test_accuracy"))[0].gaps == due.gaps


def test_the_best_points_of_a_sweep_are_not_judged_by_another_column(tmp_path):
    losses = {"a": runs_of(0.3, 0.31), "b": runs_of(0.5, 0.51)}
    record = fake(tmp_path / "run", losses)
    record.config["sweep"] = {"criterion": "train_loss", "better": "lower", "last": 1}
    with pytest.raises(fedax.errors.ConfigError, match=r"judge = 'test_accuracy'.*train_loss; run its best.toml"):
        summary.judged_by([record], "test_accuracy")
