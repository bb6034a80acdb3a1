"""On what the training loss of a run is measured: all data, a sample, or nothing."""

import numpy as np
import pytest

import fedax
from fedax.engine.checks import sampled_rows

RNG = np.random.default_rng(5)
EXAMPLES = {"x": RNG.normal(size=(300, 6)).astype(np.float32), "y": RNG.integers(0, 3, 300)}
DATA = fedax.FederatedData(EXAMPLES, sizes=[20, 130, 150], weights=[0.5, 0.2, 0.3])
TASK = fedax.tasks.softmax_regression(6, 3)
OPTIONS = {"rounds": 2, "work": fedax.Steps(2), "batch_size": 10}


def run(train_loss=None, **more):
    return fedax.simulate(fedax.create("fedavg", lr=0.5), TASK, DATA, train_loss=train_loss, **OPTIONS, **more)


def mean_loss(params, rows):
    logits = EXAMPLES["x"][rows] @ np.asarray(params["w"]) + np.asarray(params["b"])
    return (np.log(np.exp(logits).sum(1)) - logits[np.arange(len(rows)), EXAMPLES["y"][rows]]).mean()


PLACES = {
    "device": {},
    "host": {"place": fedax.Place(client_memory="host")},
    "streamed": {"place": fedax.Place(stream=True)},
    "paced": {"pace": fedax.Async(2, 1), "clock": fedax.Clock(step=0.1)},
}


@pytest.mark.parametrize("place", PLACES)
def test_a_sample_has_a_column_of_its_own_and_changes_no_round(place):
    asynchronous = place == "paced"
    method = fedax.create("fedbuff" if asynchronous else "fedavg", lr=0.5)
    one, two, none = (
        fedax.simulate(method, TASK, DATA, train_loss=each, test=EXAMPLES, **OPTIONS, **PLACES[place])
        for each in ("full", "sample:40", "none")
    )
    assert "train_loss" not in two.history and not {"train_loss", "train_loss_sample"} & {*none.history}
    rows = sampled_rows(DATA, 40)
    assert two.history["train_loss_sample"][-1] == pytest.approx(mean_loss(two.params, rows), rel=1e-5)
    for other in (two, none):
        assert (np.asarray(other.params["w"]) == np.asarray(one.params["w"])).all()
        assert other.history["test_loss"].tolist() == one.history["test_loss"].tolist()
    assert "train_loss_sample=" in repr(two) and "test_loss=" in repr(none)


def test_full_is_the_default():
    assert run("full").history["train_loss"].tolist() == run().history["train_loss"].tolist()


def test_runs_side_by_side_have_the_same_sample():
    swept = fedax.sweep(
        lambda lr: fedax.create("fedavg", lr=lr), {"lr": [0.1, 0.5]}, TASK, DATA, seeds=[0, 1],
        train_loss="sample:40", **OPTIONS,
    )  # fmt: skip
    assert swept.criterion == "train_loss_sample"
    alone = run("sample:40", seed=1)
    assert swept.runs[1][1].history["train_loss_sample"] == pytest.approx(alone.history["train_loss_sample"], rel=1e-5)


def test_rows_are_drawn_by_the_weights_of_their_clients():
    rows = sampled_rows(DATA, 100)
    counts = np.histogram(rows, [0, 20, 150, 300])[0]
    assert counts.tolist() == [50, 20, 30] and (sampled_rows(DATA, 100) == rows).all()
    assert ((rows >= 0) & (rows < 300)).all()


def test_a_run_that_diverges_ends_whatever_its_loss_is_measured_on():
    penalised = fedax.tasks.softmax_regression(6, 3, l2=1.0)
    for train_loss, more in (("sample:40", {}), ("none", {"test": EXAMPLES})):
        with pytest.warns(fedax.errors.DivergedWarning):
            got = fedax.simulate(
                fedax.create("fedavg", lr=1e30),
                penalised,
                DATA,
                train_loss=train_loss,
                **OPTIONS | {"rounds": 9},
                **more,
            )
        assert got.status == "diverged" and got.history["round"][-1] < 9


@pytest.mark.parametrize(
    ("train_loss", "more", "hint"),
    [
        ("half", {}, "sample:N"),
        ("sample:0", {}, "sample:N"),
        ("sample:300", {}, "300 rows"),
        ("none", {}, "test data"),
        (7, {}, "sample:N"),
    ],
)
def test_what_cannot_be_is_refused(train_loss, more, hint):
    with pytest.raises(fedax.ConfigError, match=f"train_loss.*{hint}"):
        run(train_loss, **more)


def test_the_norm_of_the_gradient_needs_all_data():
    with pytest.raises(fedax.ConfigError, match="GradNorm"):
        fedax.simulate(
            fedax.create("fedavg", lr=0.5), TASK.with_metrics(grad_norm=fedax.metrics.GradNorm()), DATA,
            train_loss="sample:40", **OPTIONS,
        )  # fmt: skip


def test_a_run_is_not_continued_with_another_column(tmp_path):
    run(checkpoint=str(tmp_path))
    with pytest.raises(fedax.errors.CheckpointError, match="train_loss"):
        run("sample:40", checkpoint=str(tmp_path))
