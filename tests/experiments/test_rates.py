"""Learning rates of a comparison that are chosen by validation: never one at which a seed fails; baselines alike."""

import numpy as np
import pytest

from fedax.errors import ConfigError
from fedax.experiments import build, clients, execute, new_folder, rates, read
from fedax.experiments.alone import lengths, measure, trained
from fedax.experiments.clients import table_path
from tests.experiments import run_cli

RANDOM = np.random.default_rng(7)


@pytest.fixture(scope="module")
def costs(tmp_path_factory):
    """Two sites with a cost to predict from columns of large numbers: a high rate makes it grow without end."""
    there = tmp_path_factory.mktemp("costs")
    for name in ("north", "south"):
        x = RANDOM.normal(size=(80, 2))
        y = 3 * x[:, 0] - x[:, 1] + 0.3 * RANDOM.normal(size=80)
        rows = "".join(f"{a:.4f},{b:.4f},{cost:.4f}\n" for (a, b), cost in zip(x, y, strict=True))
        (there / f"{name}.csv").write_text(f"a,b,cost\n{rows}")
    return there


def config(costs, lr, run=(), **data):
    split = {"val": 0.2, "test": 0.2}
    given = {"name": "csv", "files": f"{costs}/*.csv", "label": "cost", "split": split} | data
    methods = [{"name": "fedavg", "lr": lr}, {"name": "fednova", "lr": lr}]
    settings = {"rounds": 10, "batch_size": 16, "seeds": 3, "split_seeds": True, "baselines": True}
    return {"data": given, "run": settings | dict(run), "methods": methods}


@pytest.mark.parametrize(("lr", "best"), [(5.0, 0.5), (0.5, 0.5), (0.05, 0.5)])
def test_the_rate_with_the_best_validation_loss_is_taken(costs, lr, best):
    experiment = rates.chosen(build(config(costs, lr)))
    assert [row["lr"] for row in experiment.config["methods"]] == [best, best]
    assert experiment.config["run"]["baselines"] == {"lr": pytest.approx([lr / 10, lr, 10 * lr])}
    assert experiment.tuned["fednova"] == {"tried": pytest.approx([lr / 10, lr, 10 * lr]), "lr": best}


def test_the_value_of_a_schedule_is_chosen_likewise(costs):
    cosine = {"kind": "cosine", "value": 5.0, "rounds": 10}
    given = config(costs, 0.5)
    given["methods"][1] |= {"lr": cosine, "label": "cosine"}
    experiment = rates.chosen(build(given))
    assert [row["lr"] for row in experiment.config["methods"]] == [0.5, cosine | {"value": 0.5}]
    assert repr(build(experiment.config).methods) == repr(experiment.methods)
    assert experiment.tuned["cosine"] == {"tried": [0.5, 5.0, 50.0], "lr": 0.5}


def test_a_rate_at_which_one_seed_fails_is_not_taken(costs, monkeypatch):
    """Though its mean validation loss is the lowest."""

    class Run:
        def __init__(self, status, loss):
            self.status, self.history = status, {"val_loss": np.array([1.0, loss])}

    ends = [[Run("finished", 0.5)] * 3, [Run("finished", 0.1)] * 2 + [Run("worse", 0.1)], [Run("diverged", 0.0)] * 3]
    monkeypatch.setattr(rates, "_swept", lambda experiment, candidates, seeds: [of[: len(seeds)] for of in ends])
    experiment = build(config(costs, 0.1, run={"split_seeds": False}))
    assert rates.chosen(experiment).config["methods"][0]["lr"] == 0.01


def test_baselines_choose_among_the_same_rates_by_validation(costs, tmp_path):
    experiment = build(config(costs, 0.05, run={"baselines": {"lr": [0.0001, 0.05, 1e6]}}))
    record = execute(experiment, new_folder(tmp_path / "run", "run"), drawn=False)
    one = execute(build(config(costs, 0.05)), new_folder(tmp_path / "one", "run"), drawn=False)
    for label in clients.BASELINES:
        for seed in range(3):
            best, alone = (clients.read_table(table_path(each.folder, label, seed)) for each in (record, one))
            np.testing.assert_allclose(best.values["loss"], alone.values["loss"])  # that of 0.05: 1e6 is not finite
    table_path(record.folder, "pooled", 1).unlink()
    before = table_path(record.folder, "pooled", 0).read_text()
    execute(experiment, record.folder, drawn=False)
    assert clients.tables(read(record.folder), "pooled")[1].values["loss"].shape == (2,)
    assert table_path(record.folder, "pooled", 0).read_text() == before


def test_clients_that_train_alone_stop_where_validation_says(tmp_path):
    """Few rows of many columns: the more passes, the worse. They may stop after 40, 20, 10, 5, 2, or one."""
    for name in ("north", "south"):
        x = np.random.default_rng(len(name)).normal(size=(40, 13))
        rows = [",".join(f"{a:.4f}" for a in row) for row in x]
        (tmp_path / f"{name}.csv").write_text("\n".join([",".join([*"abcdefghijkl", "cost"]), *rows]))
    given = config(tmp_path, 0.1, run={"rounds": 40, "seeds": 1, "split_seeds": False})
    experiment = build(given | {"methods": given["methods"][:1]})
    record = execute(experiment, new_folder(tmp_path / "run", "run"), drawn=False)
    losses = {}
    for passes in lengths(40):
        options = {"batch_size": 16, "seed": 0}
        models = trained(experiment.task, experiment.data, 0.1, passes, **options)
        parts = {"val": experiment.val, "test": experiment.test}
        found = measure(experiment.task, None, models, experiment.data, **parts)
        losses[found.rows["val_loss"].mean()] = found.figures["test_loss"]
    assert [*lengths(40)] == [40, 20, 10, 5, 2, 1]
    taken = clients.tables(record, "local only")[0].values["loss"]
    np.testing.assert_allclose(taken, losses[min(losses)], rtol=1e-5)
    assert not np.allclose(taken, losses[next(iter(losses))], rtol=1e-3)  # of all passes


def test_a_baseline_that_is_not_finite_stops_nothing(costs, tmp_path):
    experiment = build(config(costs, 0.05, run={"baselines": {"lr": 1e9}}))
    record = execute(experiment, new_folder(tmp_path / "run", "run"), drawn=False)
    assert all(np.isnan(table.values["loss"]).all() for table in clients.tables(record, "pooled"))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"data": {"split": {"test": 0.2}}}, "no validation part"),
        ({"run": {"baselines": {"lr": [0.1, -1.0]}}}, r"run\.baselines\.lr = -1"),
    ],
)
def test_bad_input(costs, change, match):
    given = config(costs, 0.1, run=change.get("run", ()), **change.get("data", {}))
    with pytest.raises(ConfigError, match=match):
        rates.chosen(build(given))
    private = config(costs, 0.1, run={"baselines": False}) | {"privacy": {"clip": 1.0, "noise": 1.0, "delta": 1e-5}}
    private["participation"] = {"kind": "poisson", "rate": 0.5}
    with pytest.raises(ConfigError, match="spends privacy"):
        rates.chosen(build(private))


def test_the_command_says_what_it_chose_and_leaves_what_is_set(costs, tmp_path):
    given = ["compare", "csv", "--set", f"data.files={costs}/*.csv", "--set", "data.label=cost", "--rounds", "4",
             "--methods", "fedavg", "--seeds", "2"]  # fmt: skip
    result = run_cli(*given, "--out", str(tmp_path / "tuned"))
    assert result.exit_code == 0, result.output
    assert "0.01, 0.1 and 1 by validation loss" in " ".join(result.stdout.split())
    record = read(tmp_path / "tuned")
    assert record.about["tuned"]["fedavg"]["lr"] == record.config["methods"][0]["lr"]
    assert "by validation loss for each method" in (tmp_path / "tuned" / "report.html").read_text()
    for more in (["--no-tune"], ["--set", "methods.*.lr=0.1"]):
        result = run_cli(*given, *more, "--out", str(tmp_path / more[0]))
        assert "by validation loss" not in result.stdout and read(tmp_path / more[0]).config["methods"][0]["lr"] == 0.1
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    assert "not empty" in run_cli(*given, "--out", str(tmp_path / "full")).stderr
