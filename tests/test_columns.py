"""The table of columns: every column of a run is in it, and the direction of a metric follows from its name."""

import jax.numpy as jnp
import pytest

import fedax
from fedax.columns import (
    _TABLE,
    COSTS,
    EXCLUSIONS,
    PACE,
    TIME,
    TRAFFIC,
    better,
    describe,
    higher_is_better,
    measured_names,
    measures,
    show_parts,
)
from fedax.errors import ConfigError


def test_the_table_has_every_column_of_a_run():
    examples = {"x": jnp.ones((4, 2)), "y": jnp.zeros(4, int)}
    data = fedax.FederatedData(examples, [2, 2])
    task = fedax.tasks.softmax_regression(features=2, classes=2)
    run = fedax.simulate(
        fedax.create("feddualavg", lr=0.1, regularizer=fedax.L1(0.1)),
        task.with_metrics(grad_norm=fedax.metrics.GradNorm(), density=fedax.metrics.Density(0.1)),
        data,
        rounds=1,
        val=examples,
        test=examples,
        guard=True,
        clock=fedax.Clock(step=0.1),
    )
    task_metrics = {f"{part}_{name}" for part in ("val", "test") for name in ("accuracy", "auc", "f1")}
    apart = {"epsilon", *PACE, "turn_age", "newcomers"}  # of private runs; servers that do not wait; personal models
    of_real_clients = {name for name in _TABLE if describe(name).kind == "traffic"}
    assert of_real_clients == {"heard", *TRAFFIC}
    assert {*run.history} - task_metrics == {*_TABLE} - of_real_clients - apart - {"train_loss_sample"}
    assert [name for name in run.history if name not in (*COSTS, TIME, *EXCLUSIONS)] == measured_names(
        ["accuracy", "auc", "f1"]
    )
    for name, values in run.history.items():
        kind = {"whole": "i", "real": "f", "ids": "O"}[describe(name).type]
        assert values.dtype.kind == kind, name


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("test_accuracy", "higher"),
        ("test_Balanced-Accuracy", "higher"),
        ("test_auc", "higher"),
        ("test_inaccuracy", None),
        ("test_accuracy_loss", None),  # words of both kinds
        ("test_error", "lower"),
        ("test_perplexity", "lower"),
        ("test_score", None),
        ("test_fault", None),  # "au" of auc, "f" of f1: words count, not letters
        ("objective", "lower"),
        ("density", None),
        ("bytes_up", "lower"),
    ],
)
def test_which_way_is_better(name, way):
    assert better(name) == way
    if way is None:
        with pytest.raises(ConfigError, match=f"higher = None: the name {name} does not tell"):
            higher_is_better(name, "higher")
    else:
        assert higher_is_better(name, "higher") == (way == "higher")


def test_percentages_are_accuracies_only_and_never_on_a_logarithmic_axis():
    assert [describe(name).unit for name in ("test_accuracy", "test_auc", "test_accuracy_loss")] == ["%", "", ""]
    assert [describe(name).scale for name in ("test_accuracy", "test_auc", "test_mae")] == ["linear", "linear", "log"]


def test_a_table_begins_with_the_tasks_own_metrics():
    names = ["round", "train_loss", "grad_norm_sq", "test_loss", "test_b", "test_a", "objective", "density", "seconds"]
    assert measures(names) == ["test_b", "test_a", "test_loss", "train_loss", "objective", "grad_norm_sq", "density"]


def test_a_mean_that_is_not_finite_has_no_spread():
    assert show_parts("train_loss", float("nan"), 0.1) == ("not finite", "", "")
