"""Flower's simulation runs the same clients: every one a node of its own, behind an actor of Ray."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedax[flower]'")
pytest.importorskip("ray", reason="Ray is not installed: pip install 'flwr[simulation]==1.41.0'")


CONFIG = """
data = {name = "digits", clients = 4, partition = "dirichlet", alpha = 0.5}
run = {rounds = 2, batch_size = 16, seeds = 1}
participation = {kind = "uniform", size = 3}
methods = [{name = "scaffold", lr = 0.1}]
"""


def rows(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_clients_on_ray_give_the_numbers_of_a_simulation(tmp_path):
    (tmp_path / "experiment.toml").write_text(CONFIG)
    for command in (["run"], ["deploy", "local", "--ray"]):
        out = tmp_path / command[-1].strip("-")
        whole = [sys.executable, "-m", "fedax", *command, str(tmp_path / "experiment.toml"), "--out", str(out)]
        subprocess.run(whole, check=True, timeout=300, capture_output=True)
    simulated, deployed = rows(tmp_path / "run"), rows(tmp_path / "ray")
    assert [row["round"] for row in deployed] == [0, 1, 2]
    for one, other in zip(simulated, deployed, strict=True):
        for name in ("train_loss", "test_loss", "test_accuracy", "clients", "local_steps", "bytes_up", "bytes_down"):
            np.testing.assert_allclose(other[name], one[name], 1e-5, err_msg=name)
    assert not (tmp_path / "ray" / "deploy").exists()
