"""Two classes, one of them rare: which one the figures are about, and that each part has some of it."""

import tomllib

import numpy as np
import pandas
import pytest
import sklearn.metrics as sk

import fedax
from fedax.errors import ConfigError
from fedax.experiments import build, clients, execute, new_folder
from fedax.experiments.defaults import comparison


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Three hospitals where 4 % are readmitted ("ja"), as ``fedax compare`` would compare them."""
    folder, rng = tmp_path_factory.mktemp("tables"), np.random.default_rng(5)
    for name in "abc":
        x = rng.normal(size=(250, 3))
        score = x[:, 0] + 0.5 * x[:, 1] + rng.logistic(size=250) * 0.6
        table = pandas.DataFrame(x, columns=["x1", "x2", "x3"])
        table["y"] = np.where(score > np.quantile(score, 0.96), "ja", "nein")
        table.to_csv(folder / f"{name}.csv", index=False)
    config = comparison("csv", ["fedavg", "fedprox"])
    config["data"] |= {"files": f"{folder}/*.csv", "label": "y"}
    config["run"] |= {"rounds": 3, "baselines": False, "metrics": ["recall", "precision"]}
    return config


@pytest.fixture(scope="module")
def done(config, tmp_path_factory):
    experiment = build(config)
    return experiment, execute(experiment, new_folder(tmp_path_factory.mktemp("out") / "run", "run"))


def test_figures_are_of_the_rarer_class_and_say_so(done):
    experiment, record = done
    assert experiment.classes == ["nein", "ja"] and record.config["data"]["positive"] == "ja"
    assert tomllib.loads((record.folder / "config.toml").read_text())["data"]["positive"] == "ja"
    run = next(run for run in record.runs if (run.label, run.seed) == ("fedavg", 3))
    test, model = experiment.split(3)[2], fedax.load_model(record.folder / "models" / "fedavg-seed3.safetensors")
    true, said = (
        np.asarray(model.labels)[codes] for codes in (test.examples["y"], model.predict_proba(test.examples).argmax(1))
    )
    for name, of in (("f1", sk.f1_score), ("recall", sk.recall_score), ("precision", sk.precision_score)):
        due = of(true, said, pos_label="ja", zero_division=0)
        assert run.history[f"test_{name}"][-1] == pytest.approx(due), name
    text = "AUC, F1, Precision and Recall are of class ja."
    assert text in (record.folder / "report.html").read_text()
    assert clients.positive_text(record, ["test_loss", "test_accuracy"]) == ""


def test_the_positive_class_is_what_the_configuration_says(config):
    def of(said):
        return build(config | {"data": config["data"] | {"positive": said}})

    assert of("nein").classes == ["ja", "nein"] and of("ja").config["data"]["positive"] == "ja"
    again = build(of("nein").config)
    assert again.classes == ["ja", "nein"]
    with pytest.raises(ConfigError, match=r"positive = 'yes': the classes of 'y' are 'ja', 'nein'"):
        of("yes")


def test_the_majority_baseline_is_a_mean_over_the_splits_of_the_methods(done):
    experiment, record = done
    tests = [experiment.split(seed)[2].examples["y"] for seed in record.config["run"]["seeds"]]
    shares = [float(np.mean(y == 0)) for y in tests]
    assert len(shares) == 10 and record.config["run"]["split_seeds"] and len({*shares}) > 1
    baseline = record.about["majority"]
    assert baseline == {"class": "nein", "accuracy": pytest.approx(np.mean(shares)), "f1": 0.0, "auc": 0.5}


def test_parts_are_stratified_where_a_class_is_rare(done, config):
    experiment, record = done
    assert record.config["data"]["split"]["stratify"] == "rare"
    for seed in record.config["run"]["seeds"]:
        for part in experiment.split(seed):
            assert all((part.client(i)["y"] == 1).any() for i in range(part.num_clients))
    old = config | {"data": config["data"] | {"split": {"val": 0.15, "test": 0.15}}}
    (data, *_), whole = build(old).split(0), build(config | {"data": config["data"] | {"split": {}}}).data
    due = fedax.data.split(whole, 0.7, 0.15, 0.15)[0]
    assert data.examples["x"].tolist() == due.examples["x"].tolist()
