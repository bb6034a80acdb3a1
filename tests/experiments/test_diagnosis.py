"""The diagnosis of a run folder or a configuration: its file, its output, and errors."""

import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.engine.saved import read_model, write_model
from fedax.errors import ConfigError, DataError
from fedax.experiments import build, execute, new_folder, read, summary
from fedax.experiments.diagnosis import _reworded, diagnose_run, rows, verdict, where
from fedax.experiments.report import render
from tests.experiments import run_cli

CONFIG = """
data = {name = "digits", clients = 3, partition = "dirichlet", alpha = 0.5}
work = {kind = "epochs", epochs = 1}
run = {rounds = 40, batch_size = 64, seeds = [7, 8]}
methods = [{name = "fedavg", lr = 0.1, label = "a <b> & c"}, {name = "scaffold", lr = 0.1}]
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A configuration, diagnosed: its folder and the output."""
    here = tmp_path_factory.mktemp("diagnosis")
    (here / "small.toml").write_text(CONFIG)
    result = run_cli("diagnose", str(here / "small.toml"), "--rounds", "2", "--out", str(here / "run"))
    assert result.exit_code == 0, result.output
    return here / "run", result.stdout


def test_a_configuration_is_run_briefly_with_its_first_seed(done):
    folder, printed = done
    record = read(folder)
    assert record.config["run"]["rounds"] == 2 and record.config["run"]["seeds"] == [7]
    assert [run.status for run in record.runs] == ["finished", "finished"]
    order = [
        "Verdict",
        "Take ",
        "Objective inconsistency: clients take",
        "Measured at",
        "What these figures cannot tell",
    ]
    assert sorted(order, key=printed.index) == order  # the verdict, the reasons, and last the figures
    assert re.search(r"χ²\(p‖w\) +0\.\d+ +0 ", printed) and f"Report: {folder}/report.html" in printed


def test_the_figures_are_those_of_the_function(done):
    folder, _ = done
    record = read(folder)
    experiment = build(record.config)
    label = "a <b> & c"
    model = read_model(
        folder / "models/a-b-c-seed7.safetensors", jax.eval_shape(experiment.task.init, jax.random.key(0))
    )
    options = {"work": experiment.work, "batch_size": 64, "seed": 7, "points": [None, model]}
    diagnosis = fedax.theory.diagnose(experiment.methods[label], experiment.task, experiment.data, **options)
    stored = json.loads((folder / "diagnosis.json").read_text())["methods"][0]
    assert stored == record.diagnosis[0] and stored["label"] == label
    assert stored["chi2"] == pytest.approx(diagnosis.chi2) and stored["advice"] == list(diagnosis.advice)
    losses = record.of(label)[0].history["train_loss"]
    assert [point["loss"] for point in stored["points"]] == pytest.approx([losses[0], losses[-1]], rel=1e-5)
    assert where(record.diagnosis) == "the initial model and the final one of seed 7"
    table = dict(rows(record.diagnosis))
    assert table["L, a client's largest curvature"][0] == " → ".join(f"{p.smoothness:.3g}" for p in diagnosis.points)
    assert table["Theorems' largest lr, β² as measured"] == [f"{diagnosis.max_lr:.3g}", "–"]
    assert table["with β² = 1, the loosest case"] == [f"{diagnosis.loosest_lr:.3g}", "–"] and table["χ²(p‖w)"][1] == "0"
    assert table["Cost of another objective"][1] == "0" and stored["verdict"] == diagnosis.verdict


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """``ran(names, seeds)``: the folder of two methods with so many seeds, which is made once."""

    @functools.cache
    def run(names, seeds):
        folder = tmp_path_factory.mktemp("two")
        config = CONFIG.replace("seeds = [7, 8]", f"seeds = {seeds}").replace("rounds = 40", "rounds = 1")
        (folder / "two.toml").write_text(config.replace("scaffold", names[1]).replace("a <b> & c", names[0]))
        assert run_cli("run", str(folder / "two.toml"), "--out", str(folder / "run")).exit_code == 0
        return folder / "run"

    return run


def ended(ran, losses, takes, names=("fedavg", "scaffold")):
    """A run folder's record of two methods with these final losses, one a seed, that were diagnosed."""
    record = read(ran(names, len(losses[0])))
    for label, values in zip(names, losses, strict=True):
        for run, value in zip(record.of(label), values, strict=True):
            for column in ("train_loss", "test_loss"):
                run.history[column][-1] = value
    for label, take in zip(names, takes, strict=True):
        record.diagnosis.append({"label": label, "verdict": f"So says {label}.", "take": take, "gained": 1.0})
    return record


@pytest.mark.parametrize(
    "losses, takes, sentence",
    [
        # within seed noise: the cheaper one, and what its figures promise was tried in vain
        (
            ([0.5, 0.52, 0.47], [0.49, 0.53, 0.465]),
            ("", ""),
            "Take fedavg: it is not distinguished from scaffold, and costs less",
        ),
        (
            ([0.5, 0.52, 0.47], [0.49, 0.53, 0.465]),
            ("scaffold", ""),
            "scaffold, which was tried here and did not do bet",
        ),
        # within it, and neither is cheaper: the one that ended best
        (
            ([0.5, 0.52, 0.47], [0.48, 0.54, 0.45]),
            ("", ""),
            "Take fednova: none of those that may be as good (fedavg) costs clearly less",
        ),
        # too close to matter: the cheaper one, by however little
        (
            ([0.5, 0.52, 0.47], [0.4999, 0.5199, 0.4699]),
            ("", ""),
            "Take fedavg: it is not distinguished from fednova, and costs less",
        ),
        # beyond it
        (
            ([0.5, 0.52, 0.47], [0.4, 0.42, 0.375]),
            ("scaffold", ""),
            "scaffold is best",
        ),
        (([0.5, 0.52, 0.47], [0.4, 0.42, 0.375]), ("scaffold", "fedavg"), "So says fedavg."),
        # one seed
        (([0.5], [0.4995]), ("", ""), "Take fedavg: it is not distinguished from scaffold"),
        (([0.5], [0.48]), ("", ""), "one seed does not tell"),
    ],
)
def test_of_methods_that_tie_the_cheapest_is_taken(ran, losses, takes, sentence):
    names = ("fedavg", "fednova") if "fednova" in sentence else ("fedavg", "scaffold")
    record = ended(ran, losses, takes, names)
    text = verdict(record)
    assert sentence in text and ("So says" in text) != ("was tried here" in text)
    (problem,) = summary.problems([record])
    assert summary.recommendation(problem) in text and summary.recommendation(problem) in summary.verdict(problem)


METHODS = ["fedavg", "fedprox", "fednova", "scaffold", "mime", "feddyn", "fedavg-m", "server-momentum"]
CASES = [(name, fedax.Steps(3), fedax.Full()) for name in METHODS]
CASES += [
    (name, work, cohort)
    for name in ("fedavg", "fednova", "scaffold")  # which work and cohorts tell apart
    for work, cohort in [
        (fedax.Steps(np.array([1, 9, 4])), fedax.Full()),
        (fedax.Steps(np.array([1, 9, 4])), fedax.Uniform(2)),
        (fedax.Steps(3), fedax.Uniform(2)),
    ]
]


@pytest.mark.parametrize(("name", "work", "cohort"), CASES)
def test_no_verdict_contradicts_itself(name, work, cohort):
    """Two sentences that recommend one method, and never call a feature of the method itself useless."""
    data, task = fedax.data.quadratics(clients=3, dimension=2, seed=1), fedax.tasks.quadratic(2)
    try:
        method = fedax.create(name, lr=0.01)
        points = [{"x": np.ones(2)}["x"], np.zeros(2)]
        diagnosis = fedax.theory.diagnose(method, task, data, work=work, participation=cohort, points=points)
    except fedax.ConfigError:
        pytest.skip("the method is not defined for this")
    sentences = re.split(r"(?<=[a-z)%])\. (?=[A-Z])", diagnosis.verdict.rstrip("."))
    assert len(sentences) <= 2, diagnosis.verdict
    assert not (diagnosis.take and "Keep " in diagnosis.verdict)
    useless = re.search(r"so (.*) would gain nothing", diagnosis.verdict)
    assert useless is None or f"({name})" not in useless[1], diagnosis.verdict
    text = _reworded(diagnosis.verdict, diagnosis.method)
    assert not text.startswith("Keep ")


def test_the_report_has_it(done):
    folder, _ = done
    page = (folder / "report.html").read_text()
    section = re.search(r'<section id="diagnosis">.*?</section>', page, re.S)[0]
    assert page.index("<p>Take ") < page.index("<dl") and section.startswith(
        '<section id="diagnosis"><h2>Diagnosis</h2>'
    )
    assert section.index("<li>Objective") < section.index("<table>") < section.index("cannot tell")
    assert "a &lt;b&gt; &amp; c" in section and "<b>" not in section
    assert section.count("<li>Objective inconsistency") == 1 and section.count("<li>No objective inconsistency") == 1
    record = read(folder)
    assert "Diagnosis of run" in render([record, record])
    record.diagnosis.clear()
    assert "<h2>Diagnosis" not in render([record])


def test_a_run_folder_is_diagnosed_as_it_is(done, tmp_path):
    folder, _ = done
    before = (folder / "metrics.jsonl").read_bytes()
    content = json.loads((folder / "diagnosis.json").read_text())
    (folder / "diagnosis.json").unlink()
    bad = folder / "models/scaffold-seed7.safetensors"
    like = fedax.tasks.softmax_regression(64, 10).init(None)
    write_model(bad, jax.tree.map(lambda leaf: np.full(leaf.shape, np.nan, np.float32), like))
    result = run_cli("diagnose", str(folder))
    assert result.exit_code == 0, result.output
    assert (folder / "metrics.jsonl").read_bytes() == before
    again = json.loads((folder / "diagnosis.json").read_text())
    assert again["methods"][0] == content["methods"][0]
    assert again["methods"][1]["models"] == ["the initial model"]
    assert "scaffold has no finite final model of seed 7" in result.stdout
    bad.unlink()
    assert "scaffold has no finite final model of seed 7" in run_cli("diagnose", str(folder)).stdout
    for arguments, message in (
        (["--rounds", "3"], "rounds = 3: a run folder is diagnosed as it is"),
        (["--set", "run.rounds=3"], "set = "),
        (["--out", "x"], "out = "),
    ):
        result = run_cli("diagnose", str(folder), *arguments)
        assert result.exit_code == 2 and message in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["absent.toml"], "config = 'absent.toml'"),
        (["."], "no run folder"),
        (["small.toml", "--rounds", "0"], "run.rounds = 0"),
        (["small.toml", "--set", "methods.scaffold.lr=-1"], "methods.scaffold.lr = -1"),
    ],
)
def test_bad_input_is_exit_code_2_and_one_line(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(CONFIG)
    result = run_cli("diagnose", *arguments)
    assert result.exit_code == 2 and message in result.stderr and result.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_help_has_examples():
    assert "fedax diagnose runs/digits-1" in run_cli("diagnose", "--help").stdout


def test_a_method_that_diverges_is_exit_code_1(tmp_path):
    (tmp_path / "small.toml").write_text(CONFIG)
    arguments = ["--rounds", "2", "--out", str(tmp_path / "run"), "--set", "methods.scaffold.lr=1e38"]
    result = run_cli("diagnose", str(tmp_path / "small.toml"), *arguments)
    assert result.exit_code == 1 and "scaffold has no finite final model" in result.stdout
    assert read(tmp_path / "run").diagnosis


def test_models_are_read_back_or_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    params = {"layers": [{"b": np.arange(2.0)}, {"b": np.ones((1, 2))}], "scale": np.float32(3)}
    write_model(path, params)
    back = read_model(path, params)
    assert jax.tree.structure(back) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, back, params)
    write_model(tmp_path / "one", np.arange(3.0))
    np.testing.assert_array_equal(read_model(tmp_path / "one", np.zeros(3)), np.arange(3.0))
    narrow = {"w": jnp.array([1.5, -2.0], jnp.bfloat16)}
    write_model(tmp_path / "narrow", narrow)
    back = read_model(tmp_path / "narrow", narrow)["w"]
    assert back.dtype == jnp.bfloat16 and back.tolist() == [1.5, -2.0]
    write_model(tmp_path / "whole", np.arange(3))
    with pytest.raises(DataError, match=r"type 'I64'; .* F64, F32, F16, BF16"):
        read_model(tmp_path / "whole", np.zeros(3))
    with pytest.raises(DataError, match=r"layers.1.b is \(1, 2\) .*\(2, 1\)"):
        read_model(path, params | {"layers": [{"b": np.zeros(2)}, {"b": np.zeros((2, 1))}]})
    with pytest.raises(DataError, match=r"scale is .* in it, and None"):
        read_model(path, {"layers": params["layers"]})
    with pytest.raises(ConfigError, match="No such file"):
        read_model(tmp_path / "absent", params)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match="no safetensors file"):
        read_model(path, params)


TOP = {"name": "error-feedback", "of": {"name": "top-k", "share": 0.4}}


def test_a_pace_is_diagnosed_with_the_clock_of_its_configuration(tmp_path):
    config = {
        "data": {"name": "quadratics", "clients": 5, "dimension": 3},
        "work": {"kind": "steps", "steps": 1},
        "clock": {"step": [1.0, 2.0, 4.0, 8.0, 16.0], "up": 100.0},
        "pace": {"concurrency": 5, "start": "idle"},
        "run": {"rounds": 400, "seeds": 1, "evaluate_every": 400, "compress": TOP},
        "methods": [{"name": "fedavg", "lr": 0.02}, {"name": "scaffold", "lr": 0.02}],
    }
    experiment = build(config)
    record = execute(experiment, new_folder(tmp_path / "run", "run"), drawn=False)
    plain, scaffold = diagnose_run(experiment, record)
    options = {name: experiment.options[name] for name in ("pace", "clock", "compress")}
    method = experiment.methods["fedavg"]
    due = fedax.theory.diagnose(method, experiment.task, experiment.data, work=experiment.work, **options)
    assert plain["arrivals"] == pytest.approx(due.arrivals) and plain["chi2"] == pytest.approx(due.chi2)
    assert plain["arrivals"] == sorted(plain["arrivals"], reverse=True) and scaffold["chi2"] == 0.0
    assert 'pace.weights = "corrected"' in plain["verdict"]
    table = dict(rows([plain, scaffold]))
    at = [*table].index("Cost of another objective")
    assert [*table][at + 1 : at + 3] == ["of arrivals alone", "of unequal work alone"]
    assert table["of arrivals alone"][0] == table["Cost of another objective"][0] != "–"
    assert "of arrivals alone" not in dict(rows([{**plain, "arrivals": None}]))
    assert "fast clients answer more often" in render([read(record.folder)])
