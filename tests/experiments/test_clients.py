"""What the report says of each client: tables in the run folder, baselines, and the majority."""

import json

import numpy as np
import pytest

import fedax
from fedax.errors import ConfigError, DamagedWarning, DataError
from fedax.experiments import build, clients, execute, new_folder, read, write_report
from fedax.experiments.clients import ClientTable, read_table, spread_of, table_path, worst_text, write_table
from fedax.experiments.config.experiment import problem_of
from fedax.experiments.defaults import comparison, judge
from fedax.experiments.tuning import plan

from .. import LAST_BITS

RANDOM = np.random.default_rng(2)
NAMES = ("north", "south, upper", "west")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    there = tmp_path_factory.mktemp("sites")
    for name, n in zip(NAMES, (30, 40, 50), strict=True):
        a = RANDOM.normal(size=n)
        ill = a + RANDOM.normal(size=n) > 1.2
        ill[:6] = True
        rows = "".join(f"{value:.3f},{'yes' if own else 'no'}\n" for value, own in zip(a, ill, strict=True))
        (there / f"{name}.csv").write_text(f"a,ill\n{rows}")
    return {
        "data": {"name": "csv", "files": f"{there}/*.csv", "label": "ill",
                 "split": {"val": 0.2, "test": 0.3, "stratify": True}},
        "run": {"rounds": 3, "seeds": 2, "split_seeds": False, "baselines": True,
                "metrics": ["recall", {"name": "f1", "average": "macro"}]},
        "methods": [{"name": "fedavg", "label": "fedavg", "lr": 0.5}, {"name": "fedavg", "label": "slow", "lr": 0.1}],
    }  # fmt: skip


@pytest.fixture(scope="module")
def done(config, tmp_path_factory):
    experiment = build(config)
    folder = new_folder(tmp_path_factory.mktemp("out") / "run", "run")
    return experiment, execute(experiment, folder)


def descended(data, lr, steps):
    """Softmax regression by gradient descent, from zero."""
    w, b = np.zeros((data["x"].shape[1], 2)), np.zeros(2)
    for _ in range(steps):
        logits = data["x"] @ w + b
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        error = (p - np.eye(2)[data["y"]]) / len(p)
        w, b = w - lr * data["x"].T @ error, b - lr * error.sum(0)
    return {"w": w, "b": b}


def test_tables_are_those_of_the_models(done):
    experiment, record = done
    names = {f"{label}-seed{seed}.csv" for label in ("fedavg", "slow") for seed in (0, 1)}
    assert {path.name for path in (record.folder / "clients").iterdir()} == names
    table = read_table(table_path(record.folder, "fedavg", 1))
    model = fedax.load_model(record.folder / "models" / "fedavg-seed1.safetensors")
    due = fedax.evaluate(experiment.task, model.params, experiment.split(1)[2])  # each seed has its own
    assert table.names == list(NAMES) == due["name"].tolist() and table.sizes.tolist() == due["n"].tolist()
    assert list(table.values) == ["loss", "accuracy", "auc", "f1", "recall", "f1_macro"]
    for name, values in table.values.items():
        np.testing.assert_allclose(values, due[name], rtol=LAST_BITS, err_msg=name)


def test_tables_have_the_arrivals_of_a_server_that_does_not_wait(config, tmp_path):
    paced = {
        "clock": {"step": {"name": "lognormal", "median": 1.0, "sigma": 1.5}},
        "pace": {"concurrency": 3, "start": "idle"},
        "run": {"rounds": 12, "seeds": 2, "split_seeds": False},
        "methods": config["methods"][1:],
    }
    experiment = build(config | paced)
    record = execute(experiment, new_folder(tmp_path / "run", "run"))
    path = table_path(record.folder, "slow", 1)
    options = experiment.options | {"seed": 1, "work": experiment.work}
    due = fedax.arrivals(experiment.methods["slow"], experiment.task, experiment.split(1)[0], **options).counts
    before = path.read_text()
    assert before.startswith("name,n,arrivals,loss,accuracy,") and read_table(path).arrivals.tolist() == due.tolist()
    assert due.sum() == 12 and due.tolist() != [4, 4, 4] and "arrivals" not in read_table(path).values
    path.unlink()
    execute(experiment, record.folder)
    assert path.read_text() == before and not clients.damaged(read(record.folder))


def test_nodes_have_the_metrics_that_are_asked_for(done):
    experiment, _ = done
    assert list(problem_of(experiment.problem("slow")).task.metrics) == list(experiment.task.metrics)
    assert [*experiment.task.metrics] == ["accuracy", "auc", "f1", "recall", "f1_macro"]


def test_baselines_are_gradient_descent_alone_and_together(done):
    experiment, record = done
    for seed in (0, 1):
        data, _, test = experiment.split(seed)
        alone = [descended(data.client(i), 0.5, 3) for i in range(3)]
        each = {name: np.stack([own[name] for own in alone]) for name in ("w", "b")}
        pooled = descended(data.examples, 0.5, 3)
        due = {
            "local only": fedax.evaluate(experiment.task, None, test, each),
            "pooled": fedax.evaluate(experiment.task, pooled, test),
        }
        for label, table in due.items():
            result = read_table(table_path(record.folder, label, seed))
            np.testing.assert_allclose(result.values["loss"], table["loss"], rtol=1e-5)
            np.testing.assert_allclose(result.values["auc"], table["auc"], rtol=1e-6)
        assert abs(due["local only"]["loss"] - due["pooled"]["loss"]).max() > 1e-3


def test_tables_are_mended_and_nothing_runs_again(done):
    experiment, record = done
    path, other = table_path(record.folder, "fedavg", 0), table_path(record.folder, "pooled", 1)
    before = path.read_text(), other.read_text()
    path.write_text("name,n,loss\nnorth,3\n")
    other.unlink()
    warnings_given = clients.damaged(read(record.folder))
    assert len(warnings_given) == 1 and "fedavg-seed0.csv: no table of clients" in warnings_given[0]
    seen = []
    with pytest.warns(DamagedWarning, match=r"seed 0: .*fedavg-seed0.csv.*made again"):
        execute(experiment, record.folder, lambda label, seed, row: seen.append(row))
    assert (path.read_text(), other.read_text()) == before and seen == [None] * 4


def test_the_report_has_clients_baselines_and_the_majority(done):
    _, record = done
    page = (record.folder / "report.html").read_text()
    for text in ("Majority baseline, always class no: accuracy", "south, upper (", "Mean of the worst tenth",
                 "local only", "Test loss of each client", "Test AUC of each client"):  # fmt: skip
        assert text in page, text
    for figure in ("Test loss", "Test AUC"):  # a row for each method and baseline, a dot for each client
        text = page.split(f"<b>{figure} of each client</b>")[1].split('json">')[1].split("</script>")[0]
        drawn = json.loads(text)
        assert drawn["charts"][0]["y"]["words"] == ["pooled", "local only", "slow", "fedavg"], figure
        dots = [each for each in drawn["series"] if each["kind"] == "dots"]
        assert [each["k"] for each in dots] == [0, 1, -1, -1] and {len(each["texts"]) for each in dots} == {len(NAMES)}
    assert all(f"fedavg\\n{name} (" in page for name in NAMES)
    judged = json.loads((record.folder / "summary.json").read_text())["judged"]
    assert judged["column"] == "test_loss" and judged["best"] in ("fedavg", "slow")
    table = page.split("<table")[1].split("</table>")[0]
    assert "Test F1" in table and "Validation" not in table


def test_the_majority_baseline(done):
    experiment, record = done
    y = experiment.test.examples["y"]
    result = record.about["majority"]
    assert result == {"class": "no", "accuracy": pytest.approx(1 - y.mean()), "f1": 0.0, "auc": 0.5}
    flipped = [(name, 1 - own) for name, own in experiment.test.examples.items() if name == "y"]
    test = fedax.FederatedData(experiment.test.examples | dict(flipped), experiment.test.sizes)
    result = clients.majority(type(experiment)(**{**vars(experiment), "test": test}))
    share = 1 - y.mean()
    assert result["class"] == "yes" and result["f1"] == pytest.approx(2 * share / (1 + share))


def test_the_spread_over_clients():
    names = [f"c{i}" for i in range(22)]
    one = ClientTable(names, np.ones(22, int), {"auc": np.arange(22) / 20})
    other = ClientTable(names[::-1], np.ones(22, int), {"auc": np.arange(22)[::-1] / 20 + 0.02})
    one.values["auc"][3] = other.values["auc"][21 - 4] = other.values["auc"][21 - 3] = np.nan
    result = spread_of("m", [one, other], "auc", "higher")
    due = np.arange(22) / 20 + 0.01
    due[3], due[4] = np.nan, 0.2
    np.testing.assert_allclose(result.values, due)
    known = np.delete(due, 3)
    assert (result.mean, result.std) == (pytest.approx(known.mean()), pytest.approx(known.std(ddof=1)))
    assert result.worst_tenth == pytest.approx(np.sort(known)[:3].mean())
    assert spread_of("m", [one], "auc", "lower").worst == []  # one seed, and its test examples are not known
    assert spread_of("m", [one], "loss", "lower") is None and spread_of("m", [], "auc", "lower") is None


def test_a_worst_client_is_named_with_its_rows_and_only_where_it_is_worse_than_the_mean_beyond_chance():
    values = np.array([[0.2, 0.21, 0.2, 0.9], [0.21, 0.22, 0.8, 0.92], [0.2, 0.2, 0.1, 0.91], [0.2, 0.21, 0.7, 0.9]])
    tables = [ClientTable(["a", "b", "c", "d"], np.array([9, 9, 2, 40]), {"loss": row}) for row in values]
    result = spread_of("m", tables, "loss", "lower")
    assert result.worst == [("d", pytest.approx(0.9075), 40)] and "d (0.9075, 40 test rows)" in worst_text(
        result, "loss"
    )
    assert spread_of("m", tables, "loss", "lower", overlap=50.0).worst == []  # splits that overlap so say little
    far = {"d": np.array([0.9, 0.91]), "c": np.array([0.0, 0.4])}
    assert [name for name, *_ in spread_of("m", tables[:1], "loss", "lower", examples=far).worst] == ["d"]
    assert worst_text(spread_of("m", tables[:1], "loss", "lower"), "loss") == ""  # one seed, no test examples known


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "no table of clients"),
        ("name,n,loss\n", "clients follow"),
        ("name,n,auc\na,1,0.5\n", "its first line has to be"),
        ("name,n,loss,loss\na,1,1,1\n", "its first line has to be"),
        ("name,n,loss\na,1\n", "has not 3 columns"),
        ("name,n,arrivals\na,1,1\n", "its first line has to be"),
        ("name,n,arrivals,loss\na,1,-1,1\n", "arrivals that are no whole number"),
        (f"name,n,arrivals,loss\na,1,{2**70},1\n", "arrivals that are no whole number"),
        ("name,n,loss\na,0,1\n", "without examples"),
        ("name,n,loss\na,1,1\na,1,1\n", "two of one name"),
        ("name,n,loss\na,1,inf\n", "not finite"),
        ("name,n,loss\na,x,1\n", "invalid literal"),
        ('name,n,loss\n"a,1,1\n', "no table of clients"),
        (f"name,n,loss\n{'a' * 200_000},1,1\n", "no table of clients"),
        (b"name,n,loss\n\xff,1,1\n", "no table of clients"),
    ],
)
def test_tables_that_no_run_writes(tmp_path, text, match):
    path = tmp_path / "a.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=match) as caught:
        read_table(path)
    assert str(path) in str(caught.value)


def test_a_figure_that_is_not_defined_is_left_empty(tmp_path):
    table = ClientTable(['a "b", c', "d\n"], np.array([1, 2]), {"loss": np.array([0.1, np.nan])})
    write_table(tmp_path / "t" / "a.csv", table)
    result = read_table(tmp_path / "t" / "a.csv")
    assert result.names == table.names and np.isnan(result.values["loss"][1]) and result.values["loss"][0] == 0.1


@pytest.mark.parametrize(
    ("run", "split", "match"),
    [
        ({"patience": 3}, {"test": 0.2}, "run.patience = 3: .*no validation part"),
        ({"patience": {"column": "val_los"}}, {"val": 0.2}, "did you mean 'val_loss'"),
        ({"patience": {"evals": 2}}, {"val": 0.2}, "run.patience.evals"),
        ({"baselines": True}, {"val": 0.2}, "run.baselines = True: .*each client"),
        ({"baselines": {"rate": 1}}, {"test": 0.2}, "run.baselines.rate"),
        ({"baselines": {"lr": 0}}, {"test": 0.2}, "run.baselines.lr = 0"),
        ({"metrics": ["auk"]}, {}, "run.metrics.name = 'auk': did you mean 'auc'"),
        ({"metrics": ["recall", "Recall"]}, {}, "run.metrics = 'recall': .*twice"),
        ({"metrics": ["r2"]}, {}, r"run.metrics\['r2'\] = .*regression"),
        ({"metrics": [{"name": "f1", "average": "all"}]}, {}, "run.metrics.average = 'all'"),
    ],
)
def test_bad_settings(config, run, split, match):
    request = {"rounds": 2} | run
    with pytest.raises(ConfigError, match=match):
        build(config | {"run": request, "data": {**config["data"], "split": split or {"test": 0.2}}})


def test_hyper_parameters_are_chosen_by_validation_and_methods_compared_by_the_test(config):
    swept = config | {"run": {"rounds": 2}, "sweep": {"grid": {"methods.*.lr": [0.1, 0.5]}}}
    assert plan(swept).config["sweep"]["criterion"] == "val_loss"
    shown = {"data": {"name": "csv"}, "run": {}, "methods": [{"name": "fedavg"}]}
    assert judge(shown, ["train_loss", "val_loss", "test_loss"]) == "test_loss"
    assert judge(shown, ["train_loss", "val_loss"]) == "val_loss"
    assert comparison("csv", ["fedavg"])["run"]["baselines"] and "baselines" not in comparison("digits", ["x"])["run"]


def test_a_run_that_stopped_early_is_finished_and_is_not_run_again(config, tmp_path):
    patient = config | {
        "run": {"rounds": 30, "evaluate_every": 1, "patience": {"column": "val_accuracy", "evaluations": 2}},
        "methods": [{"name": "fedavg", "lr": 1e-9}],
    }
    experiment = build(patient)
    record = execute(experiment, folder := new_folder(tmp_path / "run", "run"))
    (run,) = record.runs
    assert run.status == "finished" and run.history["round"].tolist() == [0, 1, 2, 3]
    seen = []
    execute(experiment, folder, lambda label, seed, row: seen.append(row))
    assert seen == [None]
    write_report([read(folder)], folder / "again.html")
    assert "After at most 30 rounds" in (folder / "again.html").read_text()


def test_names_of_clients_that_look_missing_are_names(tmp_path):
    table = ClientTable(["NA", "nan", "None"], np.array([1, 2, 3]), {"loss": np.array([0.5, 0.25, 1.0])})
    write_table(tmp_path / "clients.csv", table)
    assert read_table(tmp_path / "clients.csv").names == ["NA", "nan", "None"]
