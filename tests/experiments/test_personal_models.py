"""Experiments with personal models: the setting ``personal`` of a method, and by which column each is judged."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

import fedax
from docs import study
from fedax.engine.history import ended_worse
from fedax.errors import ConfigError
from fedax.experiments import build, execute, read, summary
from fedax.experiments import study as studies
from fedax.experiments.config.experiment import columns, problem_of
from fedax.experiments.exported.card import card
from fedax.experiments.runner import check_methods
from fedax.experiments.runs import MethodRun
from fedax.experiments.statistics import target_of
from fedax.experiments.tuning import plan, tune

DIGITS = {
    "data": {"name": "digits", "clients": 5, "partition": "dirichlet", "alpha": 0.2, "split": {"val": 0.2}},
    "task": {"name": "mlp", "hidden": [4]},
    "run": {"rounds": 4, "batch_size": 32},
}
HEAD = {"name": "fedavg", "label": "head", "lr": 0.1, "personal": "1.*"}
BASE = {"name": "fedavg", "label": "base", "lr": 0.1}
MEAN = {"name": "mr-mtl", "lr": 0.1, "lam": 0.1}


def config(*methods, **run):
    return DIGITS | {"run": DIGITS["run"] | run, "methods": list(methods)}


def results(folder, *methods, **run):
    folder.mkdir()
    record = execute(build(config(*methods, **run)), folder, drawn=False)
    return record, summary.problems([record])[0]


# ---- the setting


@pytest.mark.parametrize(
    "given", ["1.*", ["1.b", "1.w"], {"leaves": "1.*", "order": "together"}, {"leaves": "1.*", "lr": 0.2, "steps": 3}]
)
def test_a_method_with_a_personal_part_is_that_of_python_and_is_written_whole(given):
    experiment = build(config(HEAD | {"personal": given}))
    made = experiment.methods["head"]
    settings = given if isinstance(given, dict) else {"leaves": given}
    same = fedax.PersonalPart(fedax.create("fedavg", lr=0.1), **settings)
    assert made == same and repr(made) == repr(same)
    (written,) = experiment.config["methods"]
    again = build(experiment.config)
    assert again.methods["head"] == same and again.config["methods"] == [written]
    assert problem_of(experiment.problem("head")).method == same


def test_fine_tuning_is_a_setting_of_any_method(tmp_path):
    tuned = {"name": "scaffold", "label": "tuned", "lr": 0.1, "fine_tune": {"lr": 0.05, "steps": 10}}
    experiment = build(config(tuned, BASE))
    same = fedax.FineTuned(fedax.create("scaffold", lr=0.1), lr=0.05, steps=10)
    assert experiment.methods["tuned"] == same
    again = build(experiment.config)
    assert again.methods["tuned"] == same and again.config["methods"] == experiment.config["methods"]
    _, problem = results(tmp_path / "run", tuned, BASE, judge="val_loss")
    assert summary.words.judged(problem)["by_personal_models"] == ["tuned"]
    with pytest.raises(ConfigError, match=r"methods\.tuned\.fine_tune\.lr"):
        build(config(tuned | {"fine_tune": {"lr": 0}}))


def test_a_personal_part_in_python_is_written_as_a_user_would(tmp_path):
    task = fedax.tasks.mlp(2, 2, hidden=(3,))
    data = fedax.FederatedData({"x": np.eye(4, 2, dtype=np.float32), "y": np.array([0, 1, 0, 1])}, [2, 2])
    part = fedax.PersonalPart(fedax.create("scaffold", lr=0.3), "1.*", lr=0.2)
    found = fedax.compare({"a": part}, task, data, rounds=1, seeds=1)
    row = found.records[0].config["methods"][0]
    assert (row["name"], row["lr"], row["personal"]) == (
        "scaffold",
        0.3,
        {"leaves": "1.*", "lr": 0.2, "order": "first"},
    )


@pytest.mark.parametrize(
    ("given", "field", "word"),
    [
        ({"lr": 0.1}, "personal.leaves", "missing"),
        ({"leaves": "1.*", "lr": -1}, "personal.lr", "in (0"),
        ({"leaves": "1.*", "leafs": "x"}, "personal.leafs", "leaves"),
        ({"leaves": "1.*", "start": 0}, "personal.start", "leaves"),
        ({"leaves": "1.*", "order": "last"}, "personal.order", "together"),
        ([], "personal.leaves", "head.*"),
    ],
)
def test_what_is_wrong_with_a_personal_part_is_named(given, field, word):
    with pytest.raises(ConfigError, match="head") as caught:
        build(config(HEAD | {"personal": given}))
    assert caught.value.field == f"methods.head.{field}" and word in str(caught.value)


def test_a_sweep_tries_settings_of_the_personal_part_and_chooses_by_it(tmp_path):
    table = config(HEAD | {"personal": {"leaves": "1.*"}}, MEAN)
    tuning = plan(table | {"sweep": {"grid": {"methods.head.personal.lr": [1e-4, 0.3], "methods.mr-mtl.lam": [0.1]}}})
    assert [method.lr for e in tuning.experiments["head"] for method in e.methods.values()] == [1e-4, 0.3]
    record, content = tune(tuning, tmp_path, drawn=False)
    best = record.trials("head")[0]
    assert best.point == {"personal.lr": 0.3}
    assert best.mean == best.runs[0].history["val_loss_personal"][-1]
    assert content["criterion"] == "val_loss"
    assert build(fedax.experiments.read_toml(tmp_path / "best.toml")).methods["head"].lr == 0.3


# ---- what judges


@pytest.fixture(scope="module")
def beside(tmp_path_factory):
    """A method with personal models beside one without."""
    return results(tmp_path_factory.mktemp("beside") / "run", HEAD, BASE)


def test_each_method_is_judged_by_the_models_that_it_gives_its_clients(beside):
    record, problem = beside
    head, base = problem.methods
    assert problem.judge == "val_loss" and problem.better == "lower"
    histories = {run.label: run.history for run in record.runs}
    assert head.final("val_loss") == histories["head"]["val_loss_personal"][-1]
    assert head.final("val_accuracy") == histories["head"]["val_accuracy_personal"][-1]
    assert base.final("val_loss") == histories["base"]["val_loss"][-1]
    assert head.final("bytes_up") == histories["head"]["bytes_up"][-1]
    assert problem.best is head
    # The test part of the data set belongs to no client, so personal models have no figures there.
    assert summary.metrics(problem.methods) == ["val_accuracy", "val_loss", "train_loss"]
    assert columns([build(record.config)]) == ["train_loss", "val_loss", "val_accuracy"]
    assert "Of head all figures" in " ".join(summary.legend(problem))
    written = json.loads((record.folder / "summary.json").read_text())
    assert written["judged"]["by_personal_models"] == ["head"]
    final = next(row for row in written["methods"] if row["label"] == "head")["final"]
    assert final["val_loss"]["mean"] == histories["head"]["val_loss"][-1]  # as it is in the history
    table = fedax.load(record.folder).table(target=2.2)
    assert list(table["judged_by"]) == ["val_loss_personal", "val_loss"]
    hits = histories["head"]["val_loss_personal"] <= 2.2
    assert table["rounds_to_target"][0] == histories["head"]["round"][hits.argmax()]


def test_where_all_have_personal_models_both_figures_are_told_and_the_personal_ones_decide(tmp_path):
    record, problem = results(tmp_path / "run", HEAD, MEAN)
    assert problem.judge == "val_loss_personal"
    assert {"val_loss", "val_loss_personal", "test_loss"} <= {*summary.metrics(problem.methods)}
    assert problem.methods[0].final("val_loss") == record.runs[0].history["val_loss"][-1]
    assert build(config(HEAD, MEAN, judge="val_accuracy")).config["run"]["judge"] == "val_accuracy"
    _, other = results(tmp_path / "other", HEAD, MEAN, judge="val_accuracy")
    assert other.judge == "val_accuracy_personal"


def test_a_column_that_tells_nothing_of_personal_models_cannot_judge_them():
    with pytest.raises(ConfigError, match="of each client") as caught:
        build(config(HEAD, BASE, judge="test_loss"))
    assert caught.value.field == "run.judge"
    both = config(HEAD, BASE, judge="test_loss")
    data = both["data"] | {"split": {"val": 0.2, "test": 0.2}}
    assert isinstance(build(both | {"data": data}).test, fedax.FederatedData)


def test_patience_best_models_and_the_end_of_a_run_go_by_personal_models(tmp_path):
    experiment = build(config(HEAD, rounds=8))
    given = {"val": experiment.val, "rounds": 8, "batch_size": 32, "work": fedax.Epochs(1)}
    part = fedax.PersonalPart(fedax.create("fedavg", lr=0.1), "1.*", lr=2.0)
    places = {name: fedax.Checkpoints(tmp_path / name, best=name) for name in ("val_loss", "val_loss_personal")}
    runs = [
        fedax.simulate(part, experiment.task, experiment.data, checkpoint=each, **given) for each in places.values()
    ]
    values = runs[0].history["val_loss_personal"]
    assert runs[0].best.value == runs[1].best.value == values.min()
    assert values.argmin() != runs[0].history["val_loss"].argmin()
    stops = [fedax.Patience(name, 1) for name in places]
    ends = [fedax.simulate(part, experiment.task, experiment.data, until=stop, **given) for stop in stops]
    assert [len(run.history["round"]) for run in ends] == [len(ends[0].history["round"])] * 2
    # The shared model with the first head of all gets worse while the personal models get better.
    gentle = fedax.PersonalPart(fedax.create("fedavg", lr=0.3), "1.*", lr=0.3)
    given |= {"work": fedax.Epochs(3)}
    run = fedax.simulate(gentle, experiment.task, experiment.data, **given)
    assert ended_worse(run.history["train_loss"]) and not ended_worse(run.history["train_loss_personal"])
    assert run.status == "finished"


def test_another_judge_afterwards_is_of_personal_models_too(beside):
    (problem,) = summary.problems(summary.judged_by([read(beside[0].folder)], "val_accuracy"))
    assert problem.judge == "val_accuracy" and problem.best.label == "head"
    assert problem.methods[0].of_examples("val_accuracy") is None  # only those of the shared model are stored


# ---- clients that take no part


def split_of(**split):
    """Four clients of 450, 449, 449 and 449 rows: of the runs without one of them three have the same shapes."""
    data = {"name": "digits", "clients": 4, "partition": "iid", "split": {"val": 0.2, "test": 0.2, **split}}
    return config(MEAN | {"lr": 0.01}, BASE | {"lr": 0.01}) | {"data": data, "task": {"name": "softmax_regression"}}


def test_a_share_of_the_clients_takes_no_part_and_is_measured_beside(tmp_path):
    experiment = build(split_of(clients=0.25))
    assert experiment.data.num_clients == 3 and experiment.data.unseen.test.num_clients == 1
    assert build(experiment.config).data.unseen.test.names == experiment.data.unseen.test.names
    assert {"unseen_loss", "unseen_accuracy"} <= {*columns([experiment])}
    table = split_of(clients=0.25) | {"run": DIGITS["run"] | {"judge": "unseen_loss"}}
    record = execute(build(table), tmp_path, drawn=False)
    (problem,) = summary.problems([record])
    mean = problem.methods[0]
    assert problem.judge == "unseen_loss"
    assert mean.final("unseen_loss") == record.runs[0].history["unseen_loss_personal"][-1]
    assert summary.facts(record.config, [1, 2, 3], 5)["Take no part"].startswith("25 % of the clients")


@pytest.fixture(scope="module")
def each_left_out(tmp_path_factory):
    table = split_of(clients="each")
    table["run"] = table["run"] | {"judge": "unseen_loss"}
    return execute(build(table), tmp_path_factory.mktemp("each"), drawn=False)


def test_each_client_is_left_out_once_and_their_figures_are_pooled(each_left_out):
    experiment = build(split_of(clients="each"))
    run = experiment.config["run"]
    assert (run["seeds"], run["split_seeds"]) == ([0, 1, 2, 3], True)
    splits = [experiment.split(seed) for seed in run["seeds"]]
    assert [train.unseen.test.names for train, *_ in splits] == [(f"client {i}",) for i in range(4)]
    by_name = {}
    for train, _, test in splits:  # the rows of a client are split alike in all runs
        for part in (train, test, train.unseen.train, train.unseen.test):
            for i in range(part.num_clients):
                by_name.setdefault((part.name(i), part.sizes[i]), set()).add(part.client(i)["x"].tobytes())
    assert all(len(rows) == 1 for rows in by_name.values()) and len(by_name) == 8
    again = build(experiment.config)
    assert again.config["run"]["seeds"] == run["seeds"]
    table = split_of(clients="each")
    some = build(table | {"run": table["run"] | {"seeds": [2, 1]}})  # listed by the user
    assert [some.split(seed)[0].unseen.test.names for seed in (2, 1)] == [("client 2",), ("client 1",)]
    record = each_left_out
    (problem,) = summary.problems([record])
    ends = [run.history["unseen_loss"][-1] for run in record.runs if run.label == "base"]
    base = problem.methods[1]
    assert base.final("unseen_loss").tolist() == ends and len({*ends}) == 4
    text = " ".join(summary.legend(problem))
    assert "4 runs, each without another client" in text
    assert problem.covered == ["the seeds of training", "the clients"] and problem.sure
    assert "another client in each run" in summary.facts(record.config, [1, 2, 3], 5)["Take no part"]


@pytest.mark.parametrize(
    ("split", "run", "field"),
    [
        ({"clients": 1.5}, {}, "data.split.clients"),
        ({"clients": "all"}, {}, "data.split.clients"),
        ({"clients": 0.25, "test": 0.0}, {}, "data.split.test"),
        ({"clients": "each"}, {"seeds": 3}, "run.seeds"),
        ({"clients": "each"}, {"split_seeds": False}, "run.split_seeds"),
    ],
)
def test_shares_of_clients_that_cannot_be_left_out_are_refused(split, run, field):
    table = split_of(**split)
    with pytest.raises(ConfigError) as caught:
        build(table | {"run": table["run"] | run})
    assert caught.value.field.startswith(field)


def test_other_columns_are_not_covered_where_each_client_is_left_out(each_left_out):
    (problem,) = summary.problems([each_left_out])
    assert problem.judge == "unseen_loss" and problem.sure
    (problem,) = summary.problems(summary.judged_by([read(each_left_out.folder)], "test_loss"))
    assert problem.judge == "test_loss" and not problem.sure and problem.star is None
    assert "judge by unseen_loss" in " ".join(summary.verdict(problem))


def test_each_seed_leaves_out_its_own_clients_side_by_side_too(tmp_path):
    data = {"name": "digits", "clients": 7, "partition": "iid", "split": {"test": 0.2, "clients": 0.15}}  # of 206 rows
    table = config(BASE | {"label": "a"}, split_seeds=True, seeds=[0, 1]) | {"data": data}
    experiment = build(table)
    checked = check_methods(experiment)
    assert checked.together["a"]
    record = execute(experiment, tmp_path, checked=checked, drawn=False)
    train, _, test = experiment.split(1)
    assert train.unseen.test.names != experiment.data.unseen.test.names
    same = fedax.simulate(
        fedax.create("fedavg", lr=0.1), experiment.task, train, test=test, seed=1, rounds=4, batch_size=32
    )
    np.testing.assert_allclose(record.of("a")[1].history["unseen_loss"], same.history["unseen_loss"], rtol=1e-4)


# ---- what is read, shown and compared afterwards


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Two methods with personal models, with a test part of each client."""
    data = DIGITS["data"] | {"split": {"val": 0.2, "test": 0.2}}
    record = execute(build(config(HEAD, MEAN, rounds=6) | {"data": data}), tmp_path_factory.mktemp("both"), drawn=False)
    return record, summary.problems([record])[0]


def test_a_run_that_patience_ended_by_personal_models_is_read_as_finished(tmp_path):
    part = HEAD | {"lr": 0.5, "personal": {"leaves": "1.*", "lr": 2.0}}
    record, _ = results(tmp_path / "run", part, rounds=8, patience=2)
    (run,) = record.runs
    shared, own = run.history["val_loss"], run.history["val_loss_personal"]
    assert len(own) < 9 and own[-2:].min() > own.min()
    assert shared[-2:].min() == shared.min()  # by the shared model's column it would have gone on
    assert run.status == "finished"


def test_a_target_of_a_metric_is_that_of_personal_models(both):
    _, problem = both
    assert target_of(problem, {"test_loss": 0.5}).column == "test_loss_personal"
    assert target_of(problem, {"train_loss": 0.5}).column == "train_loss_personal"


def test_the_best_points_of_a_sweep_are_compared_by_personal_models(tmp_path):
    grid = {"methods.head.lr": [0.1, 0.2], "methods.mr-mtl.lam": [0.1]}
    record, _ = tune(plan(config(HEAD, MEAN) | {"sweep": {"grid": grid}}), tmp_path, drawn=False)
    (problem,) = summary.problems([record])
    assert problem.judge == "val_loss_personal" and problem.better == "lower"


def test_pictures_and_names_of_a_run_are_of_personal_models(both):
    record, problem = both
    columns = summary.curve_order(problem)
    assert columns[0] == "test_loss_personal" and "val_loss_personal" in columns
    experiment = build(record.config)
    given = {"test": experiment.test, "val": experiment.val, "rounds": 1, "batch_size": 32, "work": experiment.work}
    run = fedax.simulate(experiment.methods["head"], experiment.task, experiment.data, **given)
    assert repr(run).endswith(f"train_loss_personal={run.history['train_loss_personal'][-1]:.6g})")
    assert run.plot().axes[0].get_ylabel() == "Test loss, personal models"


def test_the_card_of_a_shared_model_has_its_figures_alone(both):
    record, _ = both
    path = record.folder / "models" / "head-seed0.safetensors"
    text = card(path, fedax.load_model(path), "numpy")
    assert "| Test loss |" in text and "personal models |" not in text


def test_the_best_round_on_the_pages_of_studies_is_that_of_personal_models():
    val, own = np.array([3.0, 1.0, 2.0]), np.array([3.0, 2.0, 1.0])
    history = {"val_loss": val, "val_loss_personal": own, "test_loss": val + 10, "test_loss_personal": own + 20}
    run = MethodRun("ditto", "ditto", 0, "finished", history | {"round": np.arange(3)})
    for personal in (True, False):  # beside a method without; and where all have them
        method = summary.Method("ditto", {}, [run], personal=personal)
        assert study._at_best(method, "test_loss") == "21"


def test_a_part_of_a_study_is_judged_by_personal_models(both):
    record, _ = both
    judged = SimpleNamespace(section=SimpleNamespace(judge="test_accuracy"))
    assert studies.column_of(judged, record) == "test_accuracy_personal"
