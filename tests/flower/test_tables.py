"""From CSV files to real sites: the documented commands in their order, each a process of its own."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pandas
import pytest

pytest.importorskip("flwr", reason="needs pip install 'fedax[flower]'")

from typer.testing import CliRunner, Result

from fedax.cli import app
from fedax.data import from_csv
from fedax.experiments import clients, read
from fedax.flower import deploy, link, processes

from .federation import Federation, wait_for

HOSPITALS = {"hospital-2": 60, "hospital-9": 80, "hospital-10": 50}


class Sites(Federation):
    """A link, and a node for each of some folders of data."""

    def __init__(self, folder: Path, config: Path):
        self.folder, self.poll, self.port, self.config = folder, 0.1, processes.free_port(), config
        self.address, self.link, self.commands = f"127.0.0.1:{self.port}", folder / "link", {}
        link.prepare(self.link, ["127.0.0.1"])


def fedax_(*arguments: object) -> Result:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return result


def test_from_tables_to_sites(tmp_path: Path) -> None:
    rng, tables = np.random.default_rng(0), tmp_path / "tables"
    tables.mkdir()
    for k, (name, n) in enumerate(HOSPITALS.items()):
        size = rng.normal(size=n) + k / 2
        table = pandas.DataFrame({"size": size, "age": rng.normal(60, 9, n), "ward": rng.choice(["icu", "day"], n)})
        table["malignant"] = np.where(size + rng.normal(size=n) / 2 > 0.5, "yes", "no")
        table.loc[rng.random(n) < 0.2, "age"] = np.nan
        table.to_csv(tables / f"{name}.csv", index=False)
    plain, out = tmp_path / "simulated", tmp_path / "deployed"
    fedax_("compare", "csv", "--set", f"data.files={tables}", "--set", "data.label=malignant", "--methods",
           "fednova", "--rounds", 1, "--seeds", 1, "--out", plain)  # fmt: skip
    whole = from_csv(str(tables), label="malignant")
    whole.transform.save(tmp_path / "transform.json")
    sites = Sites(tmp_path, plain / "config.toml")
    agreed = sites.link / "tables"
    agreed.mkdir()
    shutil.copy(tmp_path / "transform.json", agreed)
    whole.overview.save(agreed / "overview.json")
    try:
        sites.start_link()
        for name in HOSPITALS:
            data = from_csv(str(tables / f"{name}.csv"), transform=str(tmp_path / "transform.json"))
            data.save(tmp_path / f"{name}.data")
            sites.make_key(name)
            sites.start_node(name)
        wait_for(lambda: all("this is node" in sites.said(name) for name in HOSPITALS))
        given = processes.options(link=sites.address, folder=sites.link, out=out, nodes=len(HOSPITALS))
        told = fedax_("deploy", "run", sites.config, *given).stdout
    finally:
        ends = sites.end()
    assert not any(ends.values()), ends
    assert "There is no baseline pooled" in told and "There is no baseline pooled" in (out / "report.html").read_text()
    one, other = read(out), read(plain)
    assert one.about["columns"] == other.about["columns"] is not None
    (agreed / "transform.json").write_text((agreed / "transform.json").read_text().replace("malignant", "benign"))
    assert deploy._agreed(sites.link, whole.transform) is None  # what they have is not what was agreed here
    for run, same in zip(one.runs, other.runs, strict=True):
        for name in ("train_loss", "val_loss", "test_loss", "test_accuracy", "test_auc"):
            np.testing.assert_allclose(run.history[name], same.history[name], 1e-4, 1e-5, err_msg=name)
    for label in ("fednova", "local only"):
        (mine,), (others,) = clients.tables(one, label), clients.tables(other, label)
        assert mine.names == others.names == [*HOSPITALS] and mine.sizes.tolist() == others.sizes.tolist()
        np.testing.assert_allclose(mine.values["loss"], others.values["loss"], 1e-4, 1e-5)
    # At a site, with the model that it was sent.
    predicted = tmp_path / "predicted.csv"
    model = out / "models" / "fednova-seed0.safetensors"
    fedax_("predict", model, tables / "hospital-9.csv", "--out", predicted)
    with predicted.open() as file:
        rows = list(csv.DictReader(file))
        assert len(rows) == HOSPITALS["hospital-9"] and not any(row["doubts"] for row in rows)
