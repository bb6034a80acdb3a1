"""fedax.compare: the user's methods, tasks and clients, in a run folder that can be resumed, read and displayed."""

import gc
import html.parser
import json
import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import fedax
from fedax.cli import app
from fedax.experiments import comparison, described, read, tables
from fedax.experiments.config import codec
from fedax.federation import PARTICIPATION, WORK
from fedax.federation.participation import Cohort


class State(NamedTuple):
    x: fedax.Vector
    mean: fedax.Vector


class Averaged(fedax.Algorithm):
    """FedAvg that delivers a moving average of its models."""

    lr: Any
    decay: Any = 0.5

    def init(self, x):
        return State(x, x)

    def download(self, server):
        return server.x

    def client(self, x, memory, oracle):
        return fedax.local_steps(lambda y, k: y - self.lr * oracle.grad(y, k), x, oracle) - x, memory

    def server(self, server, mean, round):
        x = server.x + mean
        return State(x, self.decay * server.mean + (1 - self.decay) * x)

    def model(self, server):
        return server.mean


class Turns(fedax.Participation):
    """Two neighbours after each other."""

    def draw(self, key, weights, index):
        return Cohort((index + jnp.arange(2)) % weights.shape[0], jnp.array([0.5, 0.5]))

    def places(self, num_clients):
        return 2


class Stairs(fedax.Work):
    """One step for some clients, three for the others."""

    def draw(self, key, ids, sizes, batch_size):
        return 1 + 2 * (ids % 2)

    def largest(self, sizes, batch_size):
        return 3

    def usual(self, sizes, batch_size):
        return 1 + 2 * (np.arange(len(sizes)) % 2)


def huber(params, batch, key):
    gap = jnp.abs(batch["x"] @ params["w"] + params["b"] - batch["y"])
    return jnp.where(gap < 1, gap**2 / 2, gap - 0.5)


def miss(params, batch):
    return jnp.abs(batch["x"] @ params["w"] + params["b"] - batch["y"])


TASK = fedax.Task(
    lambda key: {"w": 0.1 * jax.random.normal(key, (3,)), "b": jnp.zeros(())},
    huber,
    {"miss_error": miss},
    name="huber <own>",
    outputs=lambda params, batch: batch["x"] @ params["w"] + params["b"],
    kind="regression",
)
NAMES = ["north & <b>", "$south_1$", "100 % east", "wést 🙂"]


def sites(seed, rows=12):
    rng = np.random.default_rng(seed)
    comparison_run = {}
    for k, name in enumerate(NAMES):
        x = rng.normal(size=(rows + 3 * k, 3)).astype(np.float32)
        y = x @ [1.0, -2.0, 0.5] + 0.3 * k + 0.1 * rng.normal(size=len(x))
        comparison_run[name] = {"x": x, "y": y.astype(np.float32)}
    return fedax.FederatedData.from_clients(comparison_run)


DATA, VAL, TEST = sites(0), sites(1, 5), sites(2, 5)
MEASURED = TASK.with_metrics(mae=fedax.metrics.MAE())
AVERAGED = "mine <i> & $x_1$"
METHODS = {
    AVERAGED: Averaged(0.1),
    "nova": fedax.create("fednova", lr=fedax.Piecewise(0.1, {4: 0.5})),
    "fedavg": "fedavg",
}
OPTIONS = {
    "rounds": 8,
    "evaluate_every": [1, 4],
    "batch_size": 4,
    "work": Stairs(),
    "participation": Turns(),
    "val": VAL,
    "test": TEST,
}


def compare(methods=METHODS, **changes):
    return fedax.compare(methods, TASK, DATA, **{"seeds": [3, 5], "metrics": ["mae"], **OPTIONS, **changes})


@pytest.fixture(scope="module")
def comparison_run(tmp_path_factory, plots):
    extra = {"judge": "test_miss_error", "baselines": {"lr": 0.05}}
    with plots():
        return compare(out=tmp_path_factory.mktemp("compare") / "run", **extra)


def rows(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = [{name: value for name, value in line.items() if name not in ("seconds", "sha256")} for line in lines]
    return sorted(kept, key=lambda row: (row["label"], row["seed"], row["round"]))


def same_numbers(one, other):
    assert [{name: type(value) for name, value in row.items()} for row in one] == [
        {name: type(value) for name, value in row.items()} for row in other
    ]
    for row, like in zip(one, other, strict=True):
        for name, value in row.items():
            assert value == pytest.approx(like[name], rel=1e-5) if isinstance(value, float) else value == like[name]


def test_every_run_is_that_of_simulate(comparison_run):
    (record,) = comparison_run.records
    assert comparison_run.labels == [AVERAGED, "nova", "fedavg"]
    for label, method in METHODS.items():
        for run in record.of(label):
            method = fedax.create(method) if isinstance(method, str) else method
            alone = fedax.simulate(method, MEASURED, DATA, seed=run.seed, **OPTIONS)
            assert run.status == alone.status and run.history.keys() == alone.history.keys()
            for name, column in alone.history.items():
                if name != "seconds":
                    np.testing.assert_allclose(run.history[name], column, rtol=1e-4, err_msg=name)
            model = comparison_run.model(label, run.seed)
            np.testing.assert_allclose(model.params["w"], alone.params["w"], rtol=1e-4, atol=1e-6)
    assert [run.seed for run in record.of("nova")] == [3, 5]


def test_the_folder_has_what_a_command_writes_and_is_read_as_such(comparison_run):
    folder = comparison_run.records[0].folder
    names = {path.name for path in folder.iterdir()}
    assert {"config.toml", "about.json", "metrics.jsonl", "summary.json", "report.html", "plots", "models"} <= names
    assert len(list((folder / "clients").iterdir())) == 6 and len(list((folder / "baselines").iterdir())) == 4
    assert "wést 🙂" in (folder / "clients" / "nova-seed3.csv").read_text()
    again = fedax.load(folder)
    assert (
        again.verdict == comparison_run.verdict
        and "error" in comparison_run.verdict
        and repr(again) == repr(comparison_run)
    )
    result = CliRunner().invoke(app, ["report", str(folder), "--out", str(folder.parent / "r.html")])
    assert result.exit_code == 0, result.output
    text = (folder.parent / "r.html").read_text()
    assert "mine &lt;i&gt; &amp; $x_1$" in text and "<i> & $x_1$" not in text and "given in Python" in text
    assert "Averaged, fednova, fedavg with 4 clients" in text and "the same fedax.compare(…) in Python" in text
    for command in ("run", "sweep"):
        result = CliRunner().invoke(app, [command, str(folder / "config.toml"), "--allow-code"])
        assert result.exit_code == 2 and "fedax.compare(…, out=…)" in result.stderr, result.output
    assert CliRunner().invoke(app, ["diagnose", str(folder)]).exit_code == 2
    config = comparison_run.records[0].config
    assert config["task"] == {"name": "python:huber <own>"} and config["work"] == {"kind": "python:Stairs"}
    assert config["methods"][:2] == [
        {"name": "python:Averaged", "label": AVERAGED, "lr": 0.1, "decay": 0.5},
        {"name": "fednova", "label": "nova", "lr": {"value": 0.1, "at": {"4": 0.5}}, "nesterov": False,
         "tau_eff": "default", "server_lr": 1.0},
    ]  # fmt: skip


def test_one_that_was_stopped_goes_on_with_the_same_call(tmp_path):
    whole = compare(out=tmp_path / "whole")

    class Impatient:
        """Presses Ctrl-C when the second method has a row."""

        def __init__(self, label, seed, params):
            self.label = label

        def row(self, row):
            if self.label == "nova" and row["round"] == 4:
                raise KeyboardInterrupt

        def end(self, status):
            pass

    with pytest.raises(KeyboardInterrupt) as stopped:
        compare(out=tmp_path / "run", track=Impatient)
    assert "the same call goes on with it" in stopped.value.__notes__[-1]
    part = rows(tmp_path / "run")
    assert 0 < len(part) < len(rows(tmp_path / "whole")) and not (tmp_path / "run" / "summary.json").exists()
    assert fedax.load(tmp_path / "run").labels[0] == AVERAGED  # it can be looked at meanwhile
    before = (tmp_path / "run" / "models" / "mine-i-x_1-seed3.safetensors").stat().st_mtime_ns
    comparison = compare(out=tmp_path / "run")
    assert (tmp_path / "run" / "models" / "mine-i-x_1-seed3.safetensors").stat().st_mtime_ns == before
    same_numbers(rows(tmp_path / "run"), rows(tmp_path / "whole"))
    assert comparison.verdict == whole.verdict
    again = compare(out=tmp_path / "run")  # over: nothing is run
    assert again.verdict == whole.verdict


MADE = TASK.outputs, TASK.kind
OTHERS = {
    "rounds": ({"rounds": 9}, "run.rounds was 8, is 9"),
    "methods": ({"methods": {**METHODS, "nova": fedax.create("fednova", lr=0.2)}}, "methods[1].lr"),
    "data": ({"data": sites(7)}, "data['x'] was"),
    "task": (
        {"task": fedax.Task(TASK.init, lambda *a: 2 * huber(*a), TASK.metrics, None, TASK.name, *MADE)},
        "task.loss",
    ),
}


@pytest.mark.parametrize("which", OTHERS)
def test_a_folder_with_something_else_is_refused(comparison_run, which, tmp_path_factory):
    changes, message = OTHERS[which]
    given = {"methods": METHODS, "task": TASK, "data": DATA, "seeds": [3, 5], "metrics": ["mae"], **OPTIONS} | changes
    place = tmp_path_factory.getbasetemp() / "refused"
    if not place.exists():
        compare(out=place)
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    with pytest.raises(fedax.ConfigError) as error:
        fedax.compare(given.pop("methods"), given.pop("task"), given.pop("data"), out=place, **given)
    assert (
        message in str(error.value)
        and "another folder with out=" in str(error.value)
        and "--out" not in str(error.value)
    )
    assert before == {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_a_folder_with_other_files_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "thesis.tex").write_text("all of it")
    with pytest.raises(fedax.ConfigError, match="not empty; name another with out="):
        compare(out=tmp_path)
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_without_a_folder_it_is_temporary_and_can_be_kept(tmp_path, plots):
    comparison = compare({"small": fedax.create("fedavg", lr=0.01), "large": "fedavg"}, seeds=2)
    place = comparison.records[0].folder
    assert place.is_dir() and not (place / "report.html").exists()
    with plots():
        comparison.save(tmp_path / "kept")
    comparison.report(tmp_path / "report.html")
    with pytest.raises(fedax.ConfigError, match=r"folder = .*not empty; .*with folder="):
        comparison.save(tmp_path / "kept")
    verdict = comparison.verdict
    del comparison
    gc.collect()
    assert not place.exists()
    assert fedax.load(tmp_path / "kept").verdict == verdict != ""
    kept = {path.name for path in (tmp_path / "kept").iterdir()}
    assert {"report.html", "plots", "config.toml", "models"} <= kept and ".lock" not in kept
    assert any((tmp_path / "kept" / "plots").iterdir())
    again = compare({"small": fedax.create("fedavg", lr=0.01), "large": "fedavg"}, seeds=2, out=tmp_path / "kept")
    assert again.verdict == verdict  # it is the folder of this comparison


def test_one_seed_no_held_out_data_and_a_method_that_diverges():
    methods = {
        "good": fedax.create("fedavg", lr=0.1),
        "too far": Averaged(1e38),
        "calm": fedax.create("fedavg", lr=0.01),
    }
    comparison = compare(methods, seeds=1, val=None, test=None, metrics=())
    assert (
        comparison.verdict.startswith("good ended best, train loss")
        and "one seed does not tell this from chance" in comparison.verdict
    )
    assert "too far: diverged by round" in comparison.verdict
    assert comparison.records[0].of("too far")[0].status == "diverged"
    assert "diverged" in comparison._repr_html_() and "★" not in comparison._repr_html_()


def test_several_folders_and_problems(comparison_run, tmp_path):
    folder = comparison_run.records[0].folder
    other = compare(["scaffold"], out=tmp_path / "other", participation=fedax.Uniform(2))
    same = compare({"late": Averaged(0.05)}, out=tmp_path / "same", judge="test_miss_error")
    both = fedax.load(folder, tmp_path / "same")
    assert len(both.problems) == 1 and len(both.labels) == 4 and both.verdict
    apart = fedax.load(folder, tmp_path / "other")
    assert len(apart.problems) == 2 and apart.problems[1].differs["participation.kind"] == "'uniform'"
    with pytest.raises(fedax.ConfigError, match=r"differ in participation\.kind"):
        apart.plot()
    with pytest.raises(fedax.ConfigError, match=r"fedax\.load"):
        apart.save(tmp_path / "never")
    assert apart._repr_html_().count("<table>") == 2
    assert other.labels == ["scaffold"] and same.verdict == ""


def test_of_other_data_and_losses_the_problems_are_others(tmp_path):
    compare(["fedavg"], out=tmp_path / "one", seeds=1)
    moved = sites(0)
    moved.examples["y"][:] += 1
    given = OPTIONS | {"metrics": ["mae"], "seeds": 1}
    fedax.compare(["fedavg"], TASK, moved, out=tmp_path / "data", **given)
    task = fedax.Task(TASK.init, lambda *a: 2 * huber(*a), TASK.metrics, None, TASK.name, *MADE)
    fedax.compare(["fedavg"], task, DATA, out=tmp_path / "task", **given)
    assert len(fedax.load(tmp_path / "one", tmp_path / "data", tmp_path / "task").problems) == 3


class Page(html.parser.HTMLParser):
    """The elements of a piece of HTML; unclosed ones are an error."""

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.text = [], [], ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.seen.append(tag)
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_what_a_notebook_shows(comparison_run):
    page = Page(comparison_run._repr_html_())
    assert {*page.seen} == {"p", "table", "thead", "tbody", "tr", "th", "td", "img"}
    for label in METHODS:
        assert label in page.text
    shown = [f"{run.history['test_miss_error'][-1]:.10g}" for run in comparison_run.records[0].of("nova")]
    mean = np.mean([float(value) for value in shown])
    assert (
        f"{mean:.4g}" in page.text
        and comparison_run.verdict in page.text
        and len(comparison_run._repr_html_()) < 150_000
    )
    run = fedax.simulate(Averaged(0.1), MEASURED, DATA, **OPTIONS)
    page = Page(run._repr_html_())
    assert page.seen.count("img") == 1 and f"{run.history['test_loss'][-1]:.4g}" in page.text
    assert "Round 8" in page.text and "finished" in page.text


def test_curves_are_those_of_the_histories(comparison_run):
    figure = comparison_run.plot("bytes", "test_miss_error")
    runs = comparison_run.records[0].of("nova")
    sent = np.mean([run.history["bytes_down"] + run.history["bytes_up"] for run in runs], axis=0)
    lines = {tuple(line.get_xdata()): line.get_ydata() for line in figure.axes[0].lines}
    np.testing.assert_allclose(lines[tuple(sent)], np.mean([run.history["test_miss_error"] for run in runs], axis=0))
    assert figure.axes[0].get_ylabel() == comparison_run.plot().axes[0].get_ylabel() == "Test miss error"
    with pytest.raises(fedax.ConfigError, match="did you mean 'test_loss'"):
        comparison_run.plot(column="testloss")
    with pytest.raises(fedax.ConfigError, match="bytes"):
        comparison_run.plot("byte")
    run = fedax.simulate(Averaged(0.1), MEASURED, DATA, **OPTIONS)
    np.testing.assert_allclose(run.plot(column="val_loss").axes[0].lines[0].get_ydata(), run.history["val_loss"])
    with pytest.raises(fedax.ConfigError, match="column"):
        run.plot(column="seconds")


def test_tables_are_those_of_the_folder(comparison_run, tmp_path):
    (record,) = comparison_run.records
    goal = float(record.of("nova")[0].history["test_miss_error"][-1])
    table = comparison_run.table(target=goal).set_index("method")
    assert table.loc["nova", "test_loss"] == pytest.approx(
        np.mean([run.history["test_loss"][-1] for run in record.of("nova")])
    )
    assert table.loc["nova", "reached"] >= 1 and list(table.index) == list(METHODS)
    np.testing.assert_array_equal(
        comparison_run.table(target={"test_miss_error": goal})["rounds_to_target"], table["rounds_to_target"]
    )
    assert comparison_run.to_csv(tmp_path / "t.csv", target=goal) is None
    assert (
        (tmp_path / "t.csv").read_text() == comparison_run.to_csv(target=goal) == tables.to_csv([record], target=goal)
    )
    assert (
        "\\toprule" in comparison_run.to_latex()
        and "\\&" in comparison_run.to_latex()
        and comparison_run.to_markdown().count("|") > 12
    )
    drawn = comparison_run.plot(target={"test_loss": 1.5}).axes[0]
    assert drawn.get_ylabel() == "Test loss" and any(set(line.get_ydata()) == {1.5} for line in drawn.lines)
    with pytest.raises(fedax.ConfigError, match="val_loss is drawn"):
        comparison_run.plot(column="val_loss", target={"test_loss": 1.5})


BAD = {
    "no method": ({"methods": {}}, "methods"),
    "a name, not a list": ({"methods": "fedavg"}, "methods"),
    "an unknown name": ({"methods": ["fedavgg"]}, "methods['fedavgg']"),
    "methods without labels": ({"methods": [Averaged(0.1)]}, "methods"),
    "a name twice": ({"methods": ["fedavg", "fedavg"]}, "methods"),
    "labels that are one file": ({"methods": {"a b": "fedavg", "a-b": "fednova"}}, "methods"),
    "a label of two lines": ({"methods": {"a\nb": "fedavg"}}, "methods"),
    "no label": ({"methods": {" ": "fedavg"}}, "methods"),
    "a class": ({"methods": {"a": Averaged}}, "methods['a']"),
    "no round": ({"rounds": 0}, "rounds"),
    "no seed": ({"seeds": 0}, "seeds"),
    "a seed twice": ({"seeds": [1, 1]}, "seeds"),
    "no seeds": ({"seeds": None}, "seeds"),
    "a method's argument": ({"lr": 0.1}, "lr"),
    "an argument that is not there": ({"evaluate_evry": 3}, "evaluate_evry"),
    "a callback": ({"callback": print}, "callback"),
    "a checkpoint": ({"checkpoint": "here"}, "checkpoint"),
    "any until": ({"until": lambda row: True}, "until"),
    "patience without its column": ({"until": fedax.Patience(), "val": None}, "until.column"),
    "a judge that is not there": ({"judge": "test_accuracy"}, "judge"),
    "a judge that says nothing": ({"judge": "density", "metrics": ["density"]}, "judge"),
    "a judge that is a cost": ({"judge": "seconds"}, "judge"),
    "a judge for each client": ({"judge": "test_loss_per_client", "metrics": ["per_client"]}, "judge"),
    "patience for each client": (
        {"until": fedax.Patience("test_loss_per_client"), "metrics": ["per_client"]},
        "until.column",
    ),
    "patience without a direction": ({"until": fedax.Patience("density"), "metrics": ["density"]}, "patience.higher"),
    "baselines without clients": ({"baselines": True, "test": TEST.examples}, "baselines"),
    "baselines without a rate": ({"baselines": True, "methods": {"a": METHODS["nova"]}}, "baselines"),
    "baselines of something else": ({"baselines": {"lr": 0.1, "rounds": 3}}, "baselines"),
    "an unknown metric": ({"metrics": ["aucc"]}, "metrics"),
    "a metric without a name": ({"metrics": [miss]}, "metrics"),
    "work": ({"work": 3}, "work"),
    "a cohort for all": ({"methods": {"a": "led"}}, "methods.a.participation"),
}


@pytest.mark.parametrize("which", BAD)
def test_what_cannot_be_used_is_refused_before_a_folder_is_made(which, tmp_path):
    changes, field = BAD[which]
    with pytest.raises(fedax.ConfigError) as error:
        compare(**changes, out=tmp_path / "run")
    assert error.value.field == field and not (tmp_path / "run").exists()


def test_wrong_data_and_tasks_are_named_as_everywhere(tmp_path):
    for task, data, field in ((huber, DATA, "task"), (TASK, DATA.examples, "data")):
        with pytest.raises(fedax.ConfigError) as error:
            fedax.compare(["fedavg"], task, data, rounds=1)
        assert error.value.field == field
    with pytest.raises(fedax.ConfigError, match="there is no model of nova"):
        compare({"nova": "fednova"}, seeds=[2]).model("nova", 1)


def test_a_configuration_tells_every_method_as_create_makes_it():
    for name in fedax.available():
        hyper = {"lr": 0.125} if "lr" in fedax.hyperparameters(name) else {}
        method = fedax.create(name, **hyper)
        for description in (described.method("a", method, False), described.method("a", method, False, name)):
            table = {key: value for key, value in description.items() if key not in ("name", "label")}
            assert repr(fedax.create(description["name"], **table)) == repr(method)
        assert description["name"] == name
    prox = described.method("a", fedax.create("fedprox", prox=1.0), False)
    assert prox["name"] == "fedprox" and prox["prox"] == 1.0


def test_so_it_does_of_work_and_participation():
    for work in (fedax.Steps(3), fedax.Steps([1, 2]), fedax.Epochs(2), fedax.RandomSteps(5.0, 2.0, 1, 9)):
        section = codec.WORKS.write(work)
        assert repr(WORK.bind(section.pop("kind"), section, section="work", key="kind")[0]) == repr(work)
    for who in (fedax.Full(), fedax.Uniform(3), fedax.Trace([[0, 1], [2]])):
        section = codec.PARTICIPATIONS.write(who)
        kind = section.pop("kind")
        assert repr(PARTICIPATION.bind(kind, section, section="participation", key="kind")[0]) == repr(who)
    away = codec.PARTICIPATIONS.write(fedax.Dropout(fedax.Uniform(2), [0.1] * 5000))
    assert away["kind"] == "uniform" and away["dropout"] == "array (5000,)"


def test_options_of_simulate_are_passed_on(tmp_path):
    start = {"w": np.ones(3, np.float32), "b": np.float32(2.0)}
    until = fedax.Patience(evaluations=1, least=10.0)
    task = fedax.tasks.partial(TASK.with_metrics(density=fedax.metrics.Density(0.1)), "w", start)
    given = {"until": until, "guard": fedax.Guard()}
    options = OPTIONS | given | {"seeds": 1, "out": tmp_path / "run"}
    comparison = fedax.compare({"a": "fedavg"}, task, DATA, **options)
    (run,) = comparison.records[0].of("a")
    alone = fedax.simulate(fedax.create("fedavg"), task, DATA, **given, **OPTIONS)
    assert run.history["round"].tolist() == alone.history["round"].tolist() == [0, 1]
    assert run.status == "finished" and comparison.model("a").params["b"] == 2.0
    config = read(tmp_path / "run").config
    assert config["task"] == {"name": "python:huber <own>", "trainable": ["w"]} and config["run"]["density"] == 0.1


def test_it_says_what_to_do_with_several_processes(monkeypatch):
    monkeypatch.setattr(comparison.processes, "count", lambda: 2)
    with pytest.raises(fedax.ConfigError, match="one process"):
        compare()


class Skill(fedax.metrics.Accuracy):
    """Its name does not say which way is better."""


def test_a_metric_says_which_way_is_better_where_its_name_does_not(tmp_path):
    data, test = _classified(), _classified(1).client(0)
    task = fedax.tasks.softmax_regression(3, 2).with_metrics(skill=Skill())
    methods = {"good": fedax.create("fedavg", lr=0.5), "bad": fedax.create("fedavg", lr=1e-4)}
    stop = fedax.Patience("test_skill", evaluations=2)
    options = {"rounds": 8, "evaluate_every": 1, "test": test, "until": stop, "seeds": 3}
    found = fedax.compare(methods, task, data, judge="test_skill", out=tmp_path / "run", **options)
    for each in (found, fedax.load(tmp_path / "run")):
        (problem,) = each.problems
        assert (problem.judge, problem.better, problem.best.label) == ("test_skill", "higher", "good")
        assert each.verdict.startswith("good ended best on these examples: test skill 0.925")
        assert "Next is bad" in each.verdict and "behind by" in each.verdict
        reached = each.table(target={"test_skill": 0.92}).set_index("method")["seconds_to_target"]
        assert reached["good"] > 0 and np.isnan(reached["bad"])


def _classified(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(120, 3)).astype(np.float32)
    return fedax.FederatedData({"x": x, "y": (x @ [1.0, -1.0, 0.5] > 0).astype(int)}, [40, 40, 40])
