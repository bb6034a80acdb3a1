"""Time in experiments: run folders, tables, targets, reports, sweeps, and runs that go on."""

import json
import re

import numpy as np
from typer.testing import CliRunner

import fedax
from fedax.cli import app
from fedax.experiments import tables

CLOCK = fedax.Clock(step=fedax.Lognormal(0.1, 1.0), up=1e3, server=0.5)
CONFIG = """
[data]
name = "quadratics"
clients = 4
dimension = 3

[work]
kind = "steps"
steps = 2

[clock]
step = {name = "lognormal", median = 0.1, sigma = 1.0}
up = 1e3
server = 0.5

[run]
rounds = 6
seeds = 2
evaluate_every = 2

[[methods]]
name = "fedavg"
lr = 0.1

[[methods]]
name = "scaffold"
lr = 0.1

[sweep]
[sweep.grid]
"methods.fedavg.lr" = [0.05, 0.1]
"""


def compared(**options):
    data, task = fedax.data.quadratics(clients=4, dimension=3), fedax.tasks.quadratic(3)
    options = {"rounds": 6, "seeds": 2, "work": fedax.Steps(2), "evaluate_every": 2, "clock": CLOCK} | options
    return fedax.compare({"fedavg": "fedavg", "scaffold": "scaffold"}, task, data, **options)


def test_a_comparison_has_time(tmp_path):
    found = compared(out=tmp_path / "run")
    frame = found.table(target={"train_loss": 1e9})
    data, task = fedax.data.quadratics(clients=4, dimension=3), fedax.tasks.quadratic(3)
    for label in ("fedavg", "scaffold"):
        runs = [
            fedax.simulate(
                fedax.create(label), task, data, rounds=6, evaluate_every=2, work=fedax.Steps(2), seed=seed, clock=CLOCK
            ).history["time"]
            for seed in (0, 1)
        ]
        (row,) = frame[frame["method"] == label].to_dict("records")
        assert row["time"] == np.mean([times[-1] for times in runs])
        assert row["time_to_target"] == np.mean([times[0] for times in runs])
    scaffold, fedavg = (frame[frame["method"] == name]["time"].item() for name in ("scaffold", "fedavg"))
    assert scaffold > fedavg  # it sends twice as much
    assert found.records[0].config["clock"] == {
        "step": {"name": "lognormal", "median": 0.1, "sigma": 1.0, "anew": False}, "up": 1000.0, "server": 0.5,
    }  # fmt: skip
    again = fedax.load(tmp_path / "run")
    assert again.table()["time"].tolist() == frame["time"].tolist()
    assert "Clock time" in again.to_markdown(target={"train_loss": 1e9}) and "time" in again.to_csv()
    assert again.plot("time").axes[0].get_xlabel().startswith("Clock time")
    assert "Clock time" in again._repr_html_()
    page = tmp_path / "report.html"
    again.report(page)
    assert 'data-axis="time"' in page.read_text() and "Clock time" in page.read_text()


def test_without_a_clock_no_table_has_time(tmp_path):
    found = compared(clock=None, out=tmp_path / "run")
    assert "time" not in found.table(target={"train_loss": 1e9}) and "clock" not in found.records[0].config
    assert "Clock time" not in found.to_markdown() + found._repr_html_()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert all("time" not in method["cost"] for method in summary["methods"])


def command(*words, code=0):
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exit_code == code, result.output
    return result.output


def test_from_the_command_line(tmp_path):
    config, folder = tmp_path / "config.toml", tmp_path / "run"
    config.write_text(CONFIG)
    text = command("run", config, "--out", folder)
    assert "Clock time" in text
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert all(row["time"] >= 0 for row in rows) and len({row["time"] for row in rows}) > 4
    summary = json.loads((folder / "summary.json").read_text())
    assert all(method["cost"]["time"] > 0 for method in summary["methods"])
    text = command("report", folder, "--format", "markdown", "--target", "train_loss=1000000")
    assert re.search(r"Clock time", text)
    assert "time" in command("report", folder, "--format", "csv").splitlines()[0].split(",")
    again = tables.table([fedax.load(folder).records[0]])
    assert again["time"].notna().all()


def test_a_deadline_by_the_clock(tmp_path):
    """All but one client are late, so that it ends worse, which the exit code says."""
    config, folder = tmp_path / "config.toml", tmp_path / "run"
    config.write_text(CONFIG.replace('kind = "steps"\nsteps = 2', 'kind = "deadline"\ntime = 0.12'))
    text = command("run", config, "--out", folder, code=1)
    assert "30 uploads of clients 0, 1, 2 left out" in text
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if row["round"] == 6]
    assert len(last) == 4 and all(0 < row["left_out"] == 6 * len(row["bad_clients"]) for row in last)
    assert command("run", folder / "config.toml", "--out", folder, "--resume", code=1).count("left out") == 2


def test_a_sweep_has_time(tmp_path):
    config, folder = tmp_path / "config.toml", tmp_path / "sweep"
    config.write_text(CONFIG)
    command("sweep", config, "--out", folder)
    assert all("time" in json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines())
