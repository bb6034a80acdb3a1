"""Two classes, one of them rare: which one the figures are about, and that each part has some of it."""

import json
import tomllib

import numpy as np
import pandas
import pytest
import sklearn.metrics as sk

import fedax
from fedax.errors import ConfigError
from fedax.experiments import (
    build,
    classes,
    clients,
    execute,
    new_folder,
    noted,
    predictions,
    summary,
    write_report,
)
from fedax.experiments.defaults import comparison
from fedax.experiments.summary import facts


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
    assert "drop" not in facts(record.config, [1], 1)["Partition"]  # an empty list


def test_an_accuracy_that_a_guess_has_too_is_said(done):
    _, record = done
    (problem,) = summary.problems([record])
    accuracy = np.mean((problem.chosen or problem.best).final("test_accuracy"))
    guess = record.about["majority"]["accuracy"]
    said = "no better than always class nein" in " ".join(noted.doubtful(problem))
    assert said == (accuracy <= guess)
    for other, worse in ((accuracy, True), (accuracy - 1e-6, False)):
        record.about["majority"]["accuracy"] = float(other)
        assert bool(noted.doubtful(problem)) == worse
    record.about["majority"]["accuracy"] = guess


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


# ---- decisions


def scores_of(experiment, record, label, seed, part):
    """Log-odds of ``ja``, and whether it is so."""
    model = fedax.load_model(record.folder / "models" / f"{label}-seed{seed}.safetensors")
    held = experiment.split(seed)[("train", "val", "test").index(part)]
    outputs = model.outputs(held.examples)
    return model, outputs[:, 1] - outputs[:, 0], held.examples["y"]


def test_decisions_are_those_of_the_threshold_with_the_best_f1_on_validation(done):
    experiment, record = done
    for seed in record.config["run"]["seeds"]:
        model, score, y = scores_of(experiment, record, "fedavg", seed, "val")
        found = classes.read(record.folder, "fedavg", seed)
        assert model.threshold == found.threshold and found.chosen.tolist() == np.bincount(y).tolist()
        precision, recall, _ = sk.precision_recall_curve(y, score)
        best = (2 * precision * recall / np.maximum(precision + recall, 1e-9)).max()
        p = 1 / (1 + np.exp(-score.astype(float)))
        assert sk.f1_score(y, p >= model.threshold) == pytest.approx(best, abs=0.02)  # scores in one bin are equal
        _, score, y = scores_of(experiment, record, "fedavg", seed, "test")
        p = 1 / (1 + np.exp(-score.astype(float)))
        said = p >= model.threshold
        assert found.confusion.tolist() == sk.confusion_matrix(y, said).tolist()
        assert found.recall.tolist() == sk.recall_score(y, said, average=None).tolist()
        defined = np.bincount(said, minlength=2) > 0
        due = sk.precision_score(y, said, average=None, zero_division=0)
        assert found.precision[defined].tolist() == due[defined].tolist()
        place = np.minimum((10 * p).astype(int), 9)
        assert np.abs(found.bins[0] - np.bincount(place, minlength=10)).sum() <= 2  # next to an end of a bin
        assert found.calibration_error == pytest.approx(fedax.metrics.CalibrationError(10)(y, score), abs=0.02)


def test_the_report_and_the_summary_have_them_by_class(done):
    _, record = done
    about = {each["label"]: each for each in json.loads((record.folder / "summary.json").read_text())["methods"]}
    found = [classes.read(record.folder, "fedavg", seed) for seed in record.config["run"]["seeds"]]
    of = about["fedavg"]["classes"]
    assert of["names"] == ["nein", "ja"] and of["recall"]["ja"] == pytest.approx(
        np.mean([each.recall[1] for each in found])
    )
    assert of["confusion"] == sum(each.confusion for each in found).tolist()
    page = (record.folder / "report.html").read_text()
    section = page.split('<section id="classes">')[1].split("</section>")[0]
    for text in (
        "Recall of ja",
        "Precision of nein",
        "decided for ja",
        "Probability of class ja",
        "90 to 100",
        "best F1",
    ):
        assert text in section, text
    for count in np.ravel(of["confusion"]):
        assert f">{count}<" in section.replace("\u202f", ""), count
    assert section.count("<details><summary>") + section.count(
        "<details open><summary>"
    ) == 2 and "class ja from a probability" in classes.text(record, "fedavg")


def test_predictions_have_the_decision_and_its_threshold(done, tmp_path):
    _, record = done
    model = fedax.load_model(record.folder / "models" / "fedavg-seed0.safetensors")
    rows = pandas.DataFrame(np.random.default_rng(1).normal(size=(300, 3)), columns=["x1", "x2", "x3"])
    rows.to_csv(tmp_path / "new.csv", index=False)
    predictions.predict_file(model, tmp_path / "new.csv", tmp_path / "out.csv")
    table = pandas.read_csv(tmp_path / "out.csv")
    assert [*table.columns] == ["prediction", "p nein", "p ja", "threshold", "decision", "doubts"]
    assert (table["threshold"] == model.threshold).all()
    due = np.where(table["p ja"] >= model.threshold, "ja", "nein")
    assert (table["decision"] == due).all() and {*due} == {"ja", "nein"}
    assert model.threshold < 0.5 and (table["prediction"] == np.where(table["p ja"] > 0.5, "ja", "nein")).all()
    model.save(tmp_path / "again.safetensors")
    assert fedax.load_model(tmp_path / "again.safetensors").threshold == model.threshold


def test_decisions_that_are_lost_or_damaged_are_made_again(done, tmp_path):
    experiment, record = done
    path = classes.path_of(record.folder, "fedprox", 2)
    content = path.read_bytes()
    path.write_bytes(content[:-3] + b"abc")
    assert classes.read(record.folder, "fedprox", 2) is None
    with pytest.warns(fedax.errors.DamagedWarning, match="fedprox-seed2"):
        execute(experiment, record.folder, drawn=False)
    assert path.read_bytes() == content
    path.unlink()
    write_report([record], tmp_path / "report.html")  # of the other seeds
    execute(experiment, record.folder, drawn=False)
    assert path.read_bytes() == content


def test_without_validation_or_of_many_classes_the_most_probable_class_counts(config, tmp_path):
    plain = config | {"data": config["data"] | {"split": {"test": 0.3}}, "methods": config["methods"][:1]}
    plain["run"] = {"rounds": 2, "seeds": 1, "split_seeds": False}
    experiment = build(plain)
    record = execute(experiment, new_folder(tmp_path / "plain", "run"))
    model, score, y = scores_of(experiment, record, "fedavg", 0, "test")
    found = classes.read(record.folder, "fedavg", 0)
    assert model.threshold is None and found.confusion.tolist() == sk.confusion_matrix(y, score > 0).tolist()
    rng = np.random.default_rng(0)
    for name in "ab":
        x = rng.normal(size=(90, 2))
        kind = np.array(["low", "mid", "<b>high"])[np.digitize(x[:, 0] + 0.3 * rng.normal(size=90), [-0.5, 0.5])]
        pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": kind}).to_csv(tmp_path / f"{name}.csv", index=False)
    plain["data"] = plain["data"] | {"files": f"{tmp_path}/?.csv"}
    experiment = build(plain | {"run": plain["run"] | {"metrics": []}})
    record = execute(experiment, new_folder(tmp_path / "three", "run"))
    model = fedax.load_model(record.folder / "models" / "fedavg-seed0.safetensors")
    test, found = experiment.test.examples, classes.read(record.folder, "fedavg", 0)
    assert found.confusion.tolist() == sk.confusion_matrix(test["y"], model.predict_proba(test).argmax(1)).tolist()
    assert np.isnan(found.threshold) and found.bins[0].sum() == len(test["y"])
    section = (record.folder / "report.html").read_text().split('<section id="classes">')[1].split("</section>")[0]
    assert (
        "decided for &lt;b&gt;high" in section
        and "<b>high" not in section
        and "Mean recall" in section
        and "Threshold" not in section
    )


def test_counts_without_a_class_choose_no_threshold():
    none, some = np.zeros((2, 22 << 3), int), np.ones((2, 22 << 3), int)
    none[0, 5] = 3
    assert np.isnan(classes.of_counts(none, some).threshold) and np.isnan(classes.of_counts(None, some).threshold)
    apart = np.zeros((2, 22 << 3), int)
    apart[0, 40], apart[1, 60] = 5, 5  # any threshold between: the middle
    ends = fedax.metrics.ranking.edges(3)
    assert classes.of_counts(apart, apart).threshold == pytest.approx(1 / (1 + np.exp(-ends[51])))
    all_positive = np.zeros((2, 22 << 3), int)
    all_positive[:, 30] = 1, 9  # the lowest score, and no beginning of the axis
    assert classes.of_counts(all_positive, all_positive).threshold == pytest.approx(1 / (1 + np.exp(-ends[30])))
