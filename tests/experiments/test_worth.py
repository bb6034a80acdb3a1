"""Is a common model worth it? The verdict answers by clients that train alone, and by all rows in one place."""

import dataclasses
import html
import json
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from fedax.columns import better
from fedax.experiments import build, clients, execute, new_folder, read, summary
from fedax.experiments.diagnosis import diagnose_run, verdict
from fedax.experiments.report import write_report
from fedax.experiments.runs import finite
from fedax.experiments.summary.worth import versus
from tests.experiments import run_cli

RANDOM = np.random.default_rng(5)


def tables(folder, rules, rows, noise=0.0):
    """A file a client; its label is whether a · rule + noise is positive."""
    folder.mkdir()
    for k, rule in enumerate(rules):
        x = RANDOM.normal(size=(rows[k], 2))
        y = x @ rule + noise * RANDOM.normal(size=rows[k]) > 0
        lines = "".join(f"{a:.4f},{b:.4f},{'yes' if own else 'no'}\n" for (a, b), own in zip(x, y, strict=True))
        (folder / f"s{k}.csv").write_text(f"a,b,y\n{lines}")
    return folder


def ran(folder, methods=("fedavg", "scaffold"), seeds=4, split_seeds=True, rounds=30, name="run"):
    config = {
        "data": {"name": "csv", "files": f"{folder}/*.csv", "label": "y", "split": {"val": 0.15, "test": 0.3}},
        "run": {"rounds": rounds, "batch_size": 20, "seeds": seeds, "split_seeds": split_seeds, "baselines": True},
        "methods": [{"lr": 0.3} | (name if isinstance(name, dict) else {"name": name}) for name in methods],
    }
    return execute(build(config), new_folder(folder / name, "run"), drawn=False)


@pytest.fixture(scope="module")
def opposed(tmp_path_factory):
    """Clients whose labels follow opposite rules: no common model can serve them."""
    rules = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    return ran(tables(tmp_path_factory.mktemp("x") / "opposed", rules, [150] * 4))


OWN = {"name": "ditto", "personal_lr": 3.0, "lam": 0.001}


@pytest.fixture(scope="module")
def personal(opposed):
    """The same clients, beside a method that gives each a model of its own."""
    return ran(opposed.folder.parent, methods=("fedavg", OWN), seeds=3, name="personal")


@pytest.fixture(scope="module")
def alike(tmp_path_factory):
    """Clients of one rule with few rows each: a common model serves them all; the last has rows enough of its own."""
    rules = np.array([[1.0, 1.0]] * 5)
    place = tables(tmp_path_factory.mktemp("x") / "alike", rules, [24, 24, 24, 24, 24], noise=1.0)
    return ran(place, methods=("fedavg", "fedprox"), seeds=8)


def test_where_no_common_model_helps_the_first_sentence_says_so(opposed):
    (problem,) = summary.problems([opposed])
    first, second, third, *rest = summary.verdict(problem)
    alone = problem.against["local only"]
    assert first.startswith("No common model helps here: clients that train alone reach test loss")
    assert f"{alone.baseline:.4g}" in first and "95 % interval" in second and third.startswith("Train alone")
    assert alone.side(alone.gap) == -1 and len(alone.sides[1]) == 0 and alone.sides[-1]
    assert any(f"{len(alone.sides[-1])} lose (" in sentence for sentence in rest)
    assert summary.recommendation(problem) == third
    assert not any("Take " in sentence for sentence in [first, second, third, *rest])


def test_where_one_model_on_all_rows_does_better_federated_training_falls_short(opposed):
    (problem,) = summary.problems([opposed])
    pooled = dataclasses.replace(problem.against["pooled"], baseline=0.0)
    vars(problem)["against"] = problem.against | {"pooled": pooled}
    first, _, third, *_ = summary.verdict(problem)
    assert first.startswith("Federated training falls short here: ") and "run.rounds=" in third
    assert "No common model" not in first and third == summary.recommendation(problem)


def test_where_personal_models_help_and_no_common_one_does_the_verdict_leads_to_them(personal):
    (problem,) = summary.problems([personal])
    text = " ".join(summary.verdict(problem))
    alone, pooled = problem.against["local only"], problem.against["pooled"]
    assert summary.recommendation(problem).startswith("Take ditto") and summary.conclusion(problem)["take"] == "ditto"
    assert "No common model" not in text and not summary.conclusion(problem)["train_alone"]
    assert text.count("ersonal models are worth it") == 1 and "common model is worth it" not in text
    assert alone.personal and alone.column == pooled.column == "test_loss"
    assert alone.mean == pytest.approx(
        np.mean([run.history["test_loss_personal"][-1] for run in personal.of("ditto")]), rel=1e-5
    )
    assert f"test loss {alone.mean:.4g} against {alone.baseline:.4g}" in text
    assert summary.conclusion(problem)["baselines"]["local only"]["personal_models"]


@pytest.mark.parametrize("judge", ["test_auc", "val_loss"])
def test_whatever_judges_personal_models_are_compared_with_training_alone(personal, judge):
    (problem,) = summary.problems([personal])
    ditto = next(m for m in problem.methods if m.label == "ditto")
    found = versus(personal, ditto, problem.seeds, judge, 2)["local only"]
    figure = "auc" if judge == "test_auc" else "loss"
    tables = clients.tables(personal, "ditto")
    own = [np.average(table.values[f"{figure}_personal"], weights=table.sizes) for table in tables]
    assert found.personal and found.column == f"test_{figure}" and found.mean == pytest.approx(np.mean(own))


def test_figures_of_each_client_are_those_of_the_models_that_clients_get(personal):
    (problem,) = summary.problems([personal])
    for judge in (problem.judge, "test_loss_personal"):
        assert clients.figures_of(personal, judge) == ["loss", "auc"]
    for figure in ("loss", "auc"):
        found = summary.over_clients(personal, "ditto", figure)
        tables = clients.tables(personal, "ditto")
        assert found.values == pytest.approx(np.mean([table.values[f"{figure}_personal"] for table in tables], 0))
        assert found.personal and not summary.over_clients(personal, "fedavg", figure).personal
    shared = summary.over_clients(personal, "ditto", "loss", shared=True)
    assert shared.values == pytest.approx(np.mean([table.values["loss"] for table in tables], 0))
    write_report([personal], personal.folder / "report.html")
    text = html.unescape((personal.folder / "report.html").read_text(encoding="utf-8"))
    assert "Of ditto it is that of each client's personal model" in text


def test_where_personal_models_were_tried_and_do_worse_than_alone_they_are_not_recommended_anew(opposed):
    methods = OWN | {"personal_lr": 0.3, "lam": 9.0}, "fedavg"
    record = ran(opposed.folder.parent, methods=methods, seeds=3, name="tied")
    (problem,) = summary.problems([record])
    first, _, third, *_ = summary.verdict(problem)
    assert first.startswith("Neither a common model nor personal models help here") and "personal models 0" not in first
    assert third.startswith("Train alone, or give the personal models of ditto more") and "--methods" not in third
    assert verdict(record).startswith(f"{first} {third}")


def test_a_table_without_the_personal_models_is_not_shown_as_theirs(personal):
    folder = personal.folder
    path = clients.table_path(folder, "ditto", 0)
    kept = path.read_bytes()
    (folder / "examples" / "ditto-seed0-personal.safetensors").unlink()
    path.unlink()
    execute(build(personal.config), folder, drawn=False)
    assert [*clients.by_seed(personal, "ditto")] == [1, 2] and [*clients.by_seed(personal, "fedavg")] == [0, 1, 2]
    assert any(sentence.startswith("ditto: ") for sentence in clients.left_out(folder))
    path.write_bytes(kept)


def test_a_common_model_that_is_worth_it_is_called_so(alike):
    (problem,) = summary.problems([alike])
    text = summary.verdict(problem)
    assert text[0].startswith(f"{problem.best.label} ") and "Take " in " ".join(text)
    alone = problem.against["local only"]
    assert alone.label == problem.chosen.label and alone.mean < alone.baseline
    (sentence,) = (each for each in text if "clients that train alone" in each)
    assert sentence.startswith("A common model is worth it") == (alone.gap.p < 0.05)
    assert any("all rows in one place" in each for each in text)


@pytest.mark.parametrize("baseline", ["local only", "pooled"])
def test_baselines_are_compared_seed_by_seed_on_the_same_test_rows(opposed, baseline):
    (problem,) = summary.problems([opposed])
    found, label = problem.against[baseline], problem.chosen.label
    gaps, by_client = [], []
    for mine, other in zip(clients.tables(opposed, label), clients.tables(opposed, baseline), strict=True):
        assert mine.names == other.names and (mine.sizes == other.sizes).all()
        by_client.append(mine.values["loss"] - other.values["loss"])
        gaps.append(np.average(by_client[-1], weights=mine.sizes))
    assert found.gap.mean == pytest.approx(np.mean(gaps)) and found.mean == pytest.approx(
        np.mean([run.history["test_loss"][-1] for run in opposed.of(label)]), rel=1e-5
    )
    error = np.sqrt((1 / 4 + 0.3 / 0.55) * np.var(gaps, ddof=1))  # the splits overlap
    high = found.gap.interval()[1]
    assert high - found.gap.mean == pytest.approx(stats.t.ppf(1 - 0.025 / 4, 3) * error)  # two baselines, two methods
    one = found.clients["s1"]
    error = np.sqrt((1 / 4 + 0.3 / 0.55) * np.var([row[1] for row in by_client], ddof=1))
    assert one.interval()[1] - one.mean == pytest.approx(stats.t.ppf(1 - 0.025 / 8, 3) * error)  # of four


def test_one_seed_and_one_split_are_said(opposed):
    folder = opposed.folder.parent
    record = ran(folder, methods=["fedavg"], seeds=1, split_seeds=False, rounds=4, name="few")
    (problem,) = summary.problems([record])
    assert problem.against["local only"].gap is None
    text = " ".join(summary.verdict(problem))
    assert "Intervals" not in text  # there are none
    assert "one seed does not tell this from chance" in text and "No common model" not in text
    again = ran(folder, seeds=2, split_seeds=False, name="same")
    (problem,) = summary.problems([again])
    assert not problem.against["local only"].sure
    vars(problem)["against"] = {  # behind beyond the chance of training, but other test examples may say otherwise
        label: dataclasses.replace(found, gap=dataclasses.replace(found.gap, mean=9.0, error=0.0))
        for label, found in problem.against.items()
    }
    text = " ".join(summary.verdict(problem))
    assert "Whether a common model is worth it is not clear: " in text and "No common model" not in text
    assert "Train alone" not in text and not summary.conclusion(problem)["train_alone"]
    assert "on these test examples" in text and "clients, against training alone" not in text
    assert "all rows in one place do not cover the test examples" in text
    assert not summary.conclusion(problem)["baselines"]["local only"]["gain"]


@pytest.fixture
def failed(alike):
    """The same, where one method has ended worse than it began with one of the seeds."""
    record = read(alike.folder)
    run = record.of("fedavg")[3]
    run.history["train_loss"][-1] = 2 * run.history["train_loss"][0]
    object.__setattr__(run, "status", "worse")
    return record


def test_a_diagnosis_looks_at_all_seeds_and_says_the_same(failed):
    assert failed.config["run"]["split_seeds"]
    fedavg, fedprox = failed.diagnosis[:] = diagnose_run(build(failed.config), failed)
    assert fedavg["models"] == ["the initial model", "the final one of seed 3, of 8 the one that ended worst"]
    assert "1 of 8 seeds came to no good end at lr = 0.3: seed 3 (train loss" in fedavg["advice"][0]
    ends = [run.history["train_loss"][-1] for run in failed.of("fedprox")]
    assert f"seed {int(np.argmax(ends))}," in fedprox["models"][1] and "no good end" not in " ".join(fedprox["advice"])
    assert fedprox["points"][1]["loss"] == pytest.approx(max(ends), rel=1e-5)
    (problem,) = summary.problems([failed])
    text = verdict(failed)
    assert summary.recommendation(problem) in text and "fedavg did not come to a good end with every seed" in text
    assert text.count("Take ") == 1 and "Take fedprox." in text


def test_a_method_that_failed_with_a_seed_is_never_recommended(failed):
    (problem,) = summary.problems([failed])
    assert problem.chosen.label == "fedprox"
    text = summary.verdict(problem)
    assert "the only method that came to a good end with all seeds" in text[0] and text[1].startswith("Take fedprox.")
    assert "fedavg: ended worse than it began (1 of 8 seeds)." in text


def test_the_verdict_for_scripts(opposed, tmp_path):
    result = run_cli("report", str(opposed.folder), "--format", "json")
    (content,) = json.loads(result.stdout)["problems"]
    (problem,) = summary.problems([opposed])
    assert content["verdict"] == summary.verdict(problem) and content["train_alone"] and content["take"] is None
    assert content["recommendation"] in content["verdict"]
    alone = content["baselines"]["local only"]
    assert alone["difference"]["low"] > 0 and {*alone["clients"]} == {"s0", "s1", "s2", "s3"}
    assert sorted(alone["gain"] + alone["lose"] + alone["not_distinguished"]) == ["s0", "s1", "s2", "s3"]
    assert content["judged"]["column"] == "test_loss" and content["judged"]["seeds"] == [0, 1, 2, 3]
    assert [row["label"] for row in content["methods"]] == ["fedavg", "scaffold"]
    assert run_cli("report", str(opposed.folder), "--format", "json", "--out", str(tmp_path / "v.json")).exit_code == 0
    assert json.loads((tmp_path / "v.json").read_text())["problems"] == [content]
    assert "target" in run_cli("report", str(opposed.folder), "--format", "json", "--target", "0.3").stderr


@pytest.mark.parametrize("clients_of", [1, 2, 8])
def test_the_best_of_ten_that_equal_training_alone_is_seldom_called_better(monkeypatch, clients_of):
    """The method is chosen by the figures that it is compared by: uncorrected, this is wrong in 7 % and more."""
    random, seeds, names = np.random.default_rng(8), 10, [f"s{k}" for k in range(clients_of)]
    config = {"data": {"name": "quadratics", "seed": 0}, "run": {"split_seeds": True}}
    record, claims = SimpleNamespace(config=config, better=better), np.zeros(2)
    for _ in range(400):
        ends = random.normal(size=(11, seeds, clients_of))
        best = np.argmin(ends[:10].mean((1, 2)))
        tables = {
            label: [clients.ClientTable(names, np.full(clients_of, 9), {"loss": row}) for row in rows]
            for label, rows in {"best": ends[best], "local only": ends[10], "pooled": ends[10]}.items()
        }
        monkeypatch.setattr(clients, "by_seed", lambda _, label, tables=tables: dict(enumerate(tables[label])))
        method = SimpleNamespace(label="best", label_in_folder="best")
        found = versus(record, method, [*range(seeds)], "test_loss", 10)["local only"]
        claims += found.side(found.gap) != 0, len(found.sides[0]) < len(found.clients)
    assert (claims <= 0.05 * 400).all() and (clients_of > 1 or not found.clients)


def test_a_difference_of_nothing_and_figures_that_are_no_numbers_are_said(alike):
    record = read(alike.folder)
    for one, other in zip(record.of("fedavg"), record.of("fedprox"), strict=True):
        other.history.update(one.history)
    (problem,) = summary.problems([record])
    text = " ".join(summary.verdict(problem))
    assert ": no different." in text and "−0 " not in text
    for run in record.of("fedprox"):
        run.history["test_loss"] = np.full_like(run.history["test_loss"], np.nan)
    (problem,) = summary.problems([record])
    text = " ".join(summary.verdict(problem))
    assert "fedprox: test loss is not finite with some seeds" in text
    json.dumps(finite(summary.conclusion(problem)), allow_nan=False)


def test_where_all_methods_failed_a_diagnosis_says_nothing_else(alike):
    record = read(alike.folder)
    record.diagnosis[:] = diagnose_run(build(record.config), record)
    for run in [*record.of("fedavg"), *record.of("fedprox")]:
        object.__setattr__(run, "status", "worse")
    text = verdict(record)
    assert "Lower their learning rates first" in text and "Keep " not in text and "Take " not in text


def test_the_validation_part_is_named_where_it_decides(tmp_path):
    folder = tables(tmp_path / "val", np.array([[1.0, 0], [1, 0]]), [60, 60])
    config = {
        "data": {"name": "csv", "files": f"{folder}/*.csv", "label": "y", "split": {"val": 0.3, "test": 0.0}},
        "run": {"rounds": 3, "batch_size": 20, "seeds": 2, "split_seeds": True},
        "methods": [{"name": name, "lr": 0.3} for name in ("fedavg", "scaffold")],
    }
    (problem,) = summary.problems([execute(build(config), new_folder(folder / "run", "run"), drawn=False)])
    text = summary.verdict(problem)[-1]
    assert "the validation examples" in text and "test examples" not in text
