"""Private runs in a folder: the epsilon that they spent, the end at a budget, and the report."""

import html
import json
import math
import re
import warnings

import numpy as np
import pytest

import fedax
from fedax.engine.checkpoint import _check_figures
from fedax.errors import ConfigError, DataError
from fedax.experiments import build, execute, new_folder, plan, read, runs, summary, tables, tune
from fedax.experiments.report import render
from fedax.experiments.report.public import public, to_html
from fedax.experiments.runs.folder import sealed_row

pytest.importorskip("dp_accounting", reason="needs pip install 'fedax[privacy]'")

DELTA = 1e-4
CONFIG = {
    "name": "private",
    "data": {"name": "quadratics", "clients": 4, "dimension": 2, "weights": "uniform"},
    "task": {"name": "quadratic"},
    "work": {"kind": "steps", "steps": 2},
    "run": {"rounds": 12, "seeds": 1, "evaluate_every": 2},
    "privacy": {"clip": 1.0, "noise": 8.0, "delta": DELTA, "epsilon": 1.3},
    "methods": [{"name": "fedavg", "lr": 0.01}, {"name": "mime", "lr": 0.01}],
}


def ledger(exchanges, noise=8.0):
    return fedax.privacy.Ledger(noise, 4, exchanges=exchanges)


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    return execute(build(CONFIG), new_folder(tmp_path_factory.mktemp("private") / "run", "private"))


@pytest.fixture(scope="module")
def page(record):
    text = re.sub(r"<script>.*?</script>", " ", render([record]), flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def test_rows_tell_what_was_spent_and_where_the_budget_ended_the_run(record):
    for run, exchanges in zip(record.runs, (1, 2), strict=True):
        most = ledger(exchanges).rounds(1.3, DELTA)
        assert most < 12 and run.history["round"][-1] == most and run.spent and run.status in ("finished", "worse")
        for index, epsilon in zip(run.history["round"], run.history["epsilon"], strict=True):
            assert epsilon == pytest.approx(ledger(exchanges).epsilon(int(index), DELTA), rel=1e-9)
    lines = [json.loads(line) for line in (record.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["status"] for line in lines if line["label"] == "mime"][-2:] == ["ok", "spent"]
    content = json.loads((record.folder / "summary.json").read_text())["methods"]
    assert [each["epsilon"] for each in content] == [run.history["epsilon"][-1] for run in record.runs]


def test_a_run_that_its_budget_ended_is_over(record):
    before = (record.folder / "metrics.jsonl").read_bytes()
    seen = []
    execute(build(CONFIG), record.folder, lambda *row: seen.append(row), drawn=False)
    assert (record.folder / "metrics.jsonl").read_bytes() == before
    assert all(row is None for _, _, row in seen)  # none was run again
    assert not runs.lost(record)


def test_the_report_says_what_is_private(record, page):
    fedavg, mime = (show(run) for run in record.runs)
    most = [run.history["round"][-1] for run in record.runs]
    assert f"fedavg: spent epsilon = {fedavg} at delta = 0.0001; the budget ended the run after round {most[0]}" in page
    one = f"{ledger(1).epsilon(int(most[1]), DELTA):.4g}"
    assert f"mime {mime} 0.0001 {most[1]}, the budget's end {mime} by {most[1]} rounds of 2 exchanges {one}" in page
    for words in (
        "Each upload was clipped to norm 1. The sum of a cohort's uploads got Gaussian noise of 8 times the clip",
        "Neighbouring relation: add or remove a client. Accountant: PLD",
        "these 2 runs were on the same clients",
        "Losses and gradients that are measured on clients' training data",
        "The file noise.key in the run's folder, from which noise and cohorts are drawn",
    ):
        assert words in page


def show(run):
    return f"{run.history['epsilon'][-1]:.4g}"


def test_curves_against_what_was_spent(record):
    text = render([record])
    charts = (json.loads(each) for each in re.findall(r'application/json">(\{"axes.*?)</script>', text))
    (data,) = (chart for chart in charts if "epsilon" in chart["axes"])
    assert data["axes"]["epsilon"]["label"] == "Privacy spent, ε" and "uploads" not in data["axes"]
    np.testing.assert_allclose(data["series"][1]["x"]["epsilon"], record.runs[1].history["epsilon"], rtol=1e-3)
    assert 'data-axis="bytes"' in text and 'data-axis="epsilon"' in text
    read_back = fedax.load(record.folder)
    assert read_back.plot("epsilon", "train_loss").axes[0].get_xlabel() == "Privacy spent, ε"
    assert read_back.plot("uploads", "train_loss").axes[0].get_xlabel() == "Traffic, up only"


def test_tables_have_what_was_spent(record):
    ends = [run.history["epsilon"][-1] for run in record.runs]
    target = {"train_loss": 1e9}
    table = tables.table([record], target=target)
    assert table["epsilon"].tolist() == ends and table["epsilon_to_target"].tolist() == [0.0, 0.0]
    assert tables.to_csv([record]).splitlines()[0].endswith(",epsilon")
    text = tables.to_markdown([record], target=target)
    assert re.search(rf"\| ε *\|\n.*\n.*\| {show(record.runs[0])} *\|\n", text), text
    assert "at δ = 0.0001" in text and "Traffic (B) | Traffic" not in text and "| Uploaded" not in text
    assert "Privacy spent" in text.partition("Cost until")[2]


def test_compressed_uploads_are_an_axis(record):
    (problem,) = summary.problems([record])
    problem.records[0].config["run"]["compress"] = {"up": {"name": "top-k", "share": 0.1}}
    try:
        assert {"bytes", "uploads"} <= summary.axes(problem).keys()
    finally:
        del problem.records[0].config["run"]["compress"]
    assert "uploads" not in summary.axes(problem)


def rewritten(record, folder, epsilon):
    """The folder with another ε in its last row."""
    folder.mkdir()
    for name in ("config.toml", "about.json", "metrics.jsonl"):
        (folder / name).write_bytes((record.folder / name).read_bytes())
    *rows, last = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    rows.append(sealed_row(folder, json.loads(last) | {"epsilon": epsilon}))
    (folder / "metrics.jsonl").write_bytes(b"".join(rows))
    return folder


def test_an_epsilon_that_is_infinite_or_none(record, tmp_path):
    read_back = read(rewritten(record, tmp_path / "infinite", None))
    assert read_back.runs[1].history["epsilon"][-1] == math.inf
    assert "mime: spent epsilon = ∞ at delta" in " ".join(summary.spending(summary.problems([read_back])[0]))
    assert 'data-axis="epsilon"' not in render([read_back])
    for k, value in enumerate((-0.5, "1", [1.0])):
        with pytest.raises(DataError, match="'epsilon' is no number"):
            read(rewritten(record, tmp_path / str(k), value))


def test_a_public_run_has_no_such_axis():
    data, task = fedax.data.quadratics(clients=3, dimension=2), fedax.tasks.quadratic(2)
    run = fedax.simulate(fedax.create("fedavg", lr=0.1), task, data, rounds=2)
    with pytest.raises(ConfigError, match=r"x = 'epsilon': this run was not private"):
        run.plot("epsilon")


def test_a_sweep_that_its_budget_ends(tmp_path):
    config = CONFIG | {"methods": CONFIG["methods"][:1], "sweep": {"grid": {"methods.*.lr": [0.01, 0.02]}}}
    with pytest.raises(ConfigError, match=r"^sweep\.criterion = 'train_loss': .*private"):
        plan(config)
    config |= {"privacy": CONFIG["privacy"] | {"noise_seed": 0}}
    result, content = tune(plan(config), new_folder(tmp_path / "swept", "swept"))
    assert [trial.runs[0].spent for trial in result.trials("fedavg")] == [True, True]
    assert content["methods"][0]["points"] == 2
    assert "the budget ended the run" in render([result])


def test_clipping_alone_from_python(tmp_path):
    """A run without noise is reported as not private."""
    data, task = fedax.data.quadratics(clients=3, dimension=2), fedax.tasks.quadratic(2)
    given = {"rounds": 2, "seeds": 1, "privacy": fedax.DP(0.5, 0.0, DELTA), "out": tmp_path / "run"}
    comparison = fedax.compare(["fedavg"], task, data.with_weights(np.full(3, 1 / 3)), **given)
    assert comparison.table()["epsilon"].tolist() == [math.inf]
    assert "Without noise there is no guarantee" in render(comparison.records)


def test_a_checkpoint_whose_epsilon_cannot_be():
    costs = {"clients": 0, "local_steps": 0, "gradients": 0, "bytes_down": 0, "bytes_up": 0, "seconds": 0.0}
    for epsilon in (0.0, 1.5, math.inf):
        _check_figures("finished", [{"round": 0, "train_loss": 1.0, "epsilon": epsilon, **costs}], costs)
    for epsilon in (-0.1, math.nan, 1):
        with pytest.raises(ValueError, match="epsilon is"):
            _check_figures("finished", [{"round": 0, "train_loss": 1.0, "epsilon": epsilon, **costs}], costs)


def test_a_folder_keeps_its_secret(tmp_path):
    """The methods of a comparison have independent noise, and a run whose model is lost is repeated bit for bit."""
    folder = new_folder(tmp_path / "run", "private")
    config = CONFIG | {"methods": [{"name": "fedavg", "lr": 0.01}, {"name": "fedavg", "lr": 0.01, "label": "twin"}]}
    execute(build(config), folder, drawn=False)
    assert (folder / "noise.key").stat().st_mode & 0o777 == 0o600
    models = {path.name: fedax.load_model(path, fedax.tasks.quadratic(2)).params for path in folder.glob("models/*")}
    first, twin = models["fedavg-seed0.safetensors"], models["twin-seed0.safetensors"]
    assert np.abs(np.asarray(first) - twin).max() > 1e-3
    (folder / "models" / "twin-seed0.safetensors").unlink()
    with pytest.warns(fedax.errors.DamagedWarning, match="it is run again"):
        execute(build(config), folder, drawn=False)
    again = fedax.load_model(folder / "models" / "twin-seed0.safetensors", fedax.tasks.quadratic(2)).params
    np.testing.assert_array_equal(again, twin)
    fedax.load(folder).save(tmp_path / "copy")
    assert not (tmp_path / "copy" / "noise.key").exists() and (tmp_path / "copy" / "models").is_dir()
    (folder / "noise.key").unlink()
    with pytest.raises(ConfigError, match=r"^out = .*: its noise\.key is lost"):
        execute(build(config), folder, drawn=False)
    record = execute(
        build(config | {"privacy": CONFIG["privacy"] | {"noise_seed": 3}}), new_folder(tmp_path / "3", "b")
    )
    assert (
        "Not private: the noise was made of a number" in render([record]) and not (record.folder / "noise.key").exists()
    )
    assert summary.NOT_PRIVATE in summary.spending(summary.problems([record])[0])  # what the command prints, too


def test_a_delta_that_one_client_satisfies_is_warned_of(tmp_path):
    config = {
        "name": "weak",
        "data": {"name": "digits", "clients": 20, "partition": "iid", "weights": "uniform"},
        "participation": {"kind": "poisson", "rate": 0.1},
        "privacy": {"clip": 0.5, "noise": 2.0, "delta": 0.1},
        "run": {"rounds": 1},
        "methods": [{"name": "fedavg", "lr": 0.1}],
    }
    with pytest.warns(UserWarning, match=r"privacy\.delta = 0\.1 .*1/clients = 0\.05"):
        record = execute(build(config), new_folder(tmp_path / "weak", "weak"), drawn=False)
    text = " ".join(summary.spending(summary.problems([record])[0]))
    assert "Delta = 0.1 is not below 1/clients = 0.05" in text and "epsilon = 0 does not say" in text
    assert "is not below 1/clients = 0.05" in render([record])
    assert "is not below 1/clients = 0.05" in to_html(public(record))
    config["privacy"]["delta"] = 0.01
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "the run ended worse")
        record = execute(build(config), new_folder(tmp_path / "good", "good"), drawn=False)
    assert summary.weaknesses(record) == []
