"""What pages tell their readers to type, typed: all blocks, literally and in their order, in an empty folder.

Blocks with ``>>>`` are doctests and are run as such. The tables below are all that a reader adds: files of their own,
names for the configurations that a page shows, and shorter runs.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pandas
import pytest
from typer.testing import CliRunner

import fedax
from fedax.cli import app
from fedax.data import Transform
from fedax.experiments import clients, read
from fedax.federation.census import Census
from fedax.sites.service import deploy
from fedax.sites.service.processes import free_port

ROOT = pathlib.Path(__file__).parent.parent
PAGES = {
    name: ROOT / "docs" / f"{name}.md"
    for name in (
        "getting-started",
        "data",
        "choosing",
        "experiments",
        "deploy",
        "secure-aggregation",
        "it",
        "privacy",
        "tasks",
        "time",
        "asynchronous",
        "clusters",
        "personal",
    )
} | {"README": ROOT / "README.md"}

# What is not typed, by how it begins, and why.
LEFT_OUT = {
    "python3 -m venv .venv": "installs; .ci/run does it",
    "pip install": "installs; .ci/run does it",
    'pip install -e ".[dev]" && pytest': "installs, and runs these tests",
    "fedax deploy local": "tests/sites/test_deploy.py runs it",
    "fedax run own.toml": "tests/experiments/test_own.py runs it",
    "fedax run experiment.toml --resume": "goes on with a run that was killed: tests/experiments/test_resume.py",
    "fedax deploy run link/tables/experiment.toml --link fed.example.org:9443 --resume": "the same over nodes: "
    "tests/sites/test_deploy.py",
    "fedax deploy run link/tables/experiment.toml --set": "over nodes with the strict policy, "
    "which need one another's keys: tests/sites/test_evil.py",
    "fedax deploy flower app": "needs a federation of Flower's: tests/sites/test_flower_app.py",
    "flwr run app": "the same",
    "fedax deploy node --socket": "the same",
    "flower-supernode": "the same",
    "fedax run runs/digits-sweep-1/best.toml": "comes after a sweep of an hour: tests/experiments/test_tuning.py",
    "fedax run fednova-figure": "takes minutes: benchmarks/ run it",
    "fedax diagnose experiment.toml": "trains first: tests/experiments/test_diagnosis.py",
    "fedax sweep experiment.toml": "its section [sweep] is an hour: tests/experiments/test_tuning.py",
    "fedax study momentum": "takes hours: tests/experiments/test_study.py",
    "fedax study speedup --on": "needs a cluster: tests/experiments/test_cluster.py",
    "dask scheduler": "the same",
    "FEDAX_DATA=/data dask worker": "the same",
    "fedax deploy run experiment.toml --link": "over nodes that deploy.md starts: tests/engine/test_secure.py",
    "fedax check mine.py:MyMethod": "tests/test_conformance.py has a method of its own",
    "useradd --system": "makes a user: tests/sites/test_it.py verifies the units",
    "python3 -m venv /opt/fedax": "installs; .ci/run does it",
    "cp packaging/fedax-link.service": "installs: tests/sites/test_it.py verifies the units",
    "systemctl enable": "the same",
    "podman build": "tests/sites/test_it.py builds it, where there is a tool",
    "podman run": "the same",
    "import math\n\nimport fedax\nimport optuna": "needs Optuna",
    "task = fedax.tasks.from_torch": "needs PyTorch: tests/tasks has it",
    "batch = torch.export.Dim": "needs PyTorch: tests/tasks has it",
}

# Everywhere.
CHANGED = {
    "9490": "{page}",
    "fed.example.org:9443": "127.0.0.1:{port}",
    "fed.example.org --port 9443": "127.0.0.1 --port {port}",
    'name = "fashion_mnist"': 'name = "digits"',
    "best.toml --set run.seeds=5": "best.toml --methods fedavg,scaffold",  # of four
}
SHORT = ["--set", "run.rounds=2", "--set", "run.seeds=1"]  # added to what trains
TRAINS = ("run", "sweep", "compare", "deploy run")

# (page, how a block begins) -> the file that the text around it calls it.
SAVED = {
    ("getting-started", "import pathlib"): "make_hospitals.py",
    ("data", '[data]\nname = "csv"'): "hospitals.toml",
    ("experiments", '[data]\nname = "digits"'): "experiment.toml",
    ("experiments", 'name = "paper"'): "paper.toml",
    ("secure-aggregation", "[data]"): "experiment.toml",
    ("deploy", "link ="): "node.toml",
    ("it", "link ="): "node7.toml",
    ("privacy", 'name = "private"'): "experiment.toml",
    ("time", 'name = "slow-clients"'): "experiment.toml",
    ("asynchronous", 'name = "without-waiting"'): "experiment.toml",
    ("tasks", "data = {"): "experiment.toml",
    ("personal", "[data]"): "experiment.toml",
}
# Commands that a page has in its text only -> after which block; so their configurations are run too.
IN_TEXT = {
    ("data", "hospitals.toml"): "fedax run hospitals.toml",
    ("experiments", "experiment.toml"): "fedax run experiment.toml",
    ("secure-aggregation", "experiment.toml"): "fedax run experiment.toml",
    ("privacy", "experiment.toml"): "fedax run experiment.toml",
    ("time", "experiment.toml"): "fedax run experiment.toml",
    ("asynchronous", "experiment.toml"): "fedax run experiment.toml",
    ("tasks", "experiment.toml"): "fedax run experiment.toml",
    ("personal", "experiment.toml"): "fedax run experiment.toml",
}
# What the page calls data, task and method.
NAMED = """
    import fedax, numpy as np
    np.save("x.npy", np.random.default_rng(0).normal(size=(60, 4)).astype("float32"))
    np.save("y.npy", (np.load("x.npy")[:, 0] > 0).astype(int))
    data = fedax.FederatedData({"x": np.load("x.npy"), "y": np.load("y.npy")}, sizes=[20, 20, 20])
    task, method = fedax.tasks.softmax_regression(features=4, classes=2), fedax.create("fedavg", lr=0.1)
"""


def table(rows: int, seed: int, label: str = "readmitted") -> pandas.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.normal(55 + 5 * seed, 12, rows).round(-1)  # the median of which is the same from counts of five rows
    labels = np.where(age + rng.normal(0, 8, rows) > 60, "yes", "no")
    result = pandas.DataFrame({"patient": [f"P{seed}-{i}" for i in range(rows)], "age": age, label: labels})
    result.insert(2, "ward", rng.choice(["A", "B", "C"], rows))
    result.loc[rng.permutation(rows)[: rows // 10], "age"] = np.nan
    return result


class Reader:
    """Somebody with an empty folder, who types what a page says."""

    def __init__(self, plots: Any) -> None:
        self.plots = plots
        self.page, self.folder, self.port, self.page_port = "", pathlib.Path.cwd(), free_port(), free_port()
        self.kept: dict[str, subprocess.Popen[bytes]] = {}
        self.names: dict[str, Any] = {}
        self.did: list[str] = []
        exec(textwrap.dedent(NAMED), self.names)

    def read(self, page: str) -> None:
        """Type all blocks of a page."""
        self.page = page
        text = PAGES[self.page].read_text(encoding="utf-8")
        for language, block in re.findall(r"^```(bash|python|toml)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            if block.startswith(">>>"):
                continue
            if language == "bash":
                for line in block.replace("\\\n", " ").splitlines():
                    self.type(line)
            elif any(block.startswith(start) for start in LEFT_OUT):
                self.did += [start for start in LEFT_OUT if block.startswith(start)]
            elif name := next((SAVED[key] for key in SAVED if key[0] == self.page and block.startswith(key[1])), None):
                pathlib.Path(name).write_text(self.here(block), encoding="utf-8")
                if command := IN_TEXT.get((self.page, name)):
                    self.type(command)
            elif language == "python":
                exec(block, self.names)

    def type(self, line: str) -> None:
        """One line at a shell."""
        if not line.strip() or line.startswith("#"):
            return
        if left := [start for start in LEFT_OUT if line.startswith(start)]:
            self.did += left
            return
        line = self.here(line).replace("fedax deploy status", f"fedax deploy status --link 127.0.0.1:{self.port}")
        if " --page" in line:
            self.start("page", words(line))
            return self.wait("page", ("Ctrl-C",))
        if line.startswith("fedax deploy link --"):
            self.start("link", words(line))
            return self.wait("link", ("is ready",))
        if line.startswith("fedax deploy node ") and not line.startswith("fedax deploy node status"):
            return self.site(line)
        if line.startswith("fedax data") and "hospital-7.csv" in line:
            for k in (7, 8, 9):
                self.run(words(line.replace("hospital-7", f"hospital-{k}")))
        elif line.startswith("fedax"):
            self.run(words(line))
        else:
            line = line.replace("python ", f"{sys.executable} ")
            subprocess.run(["bash", "-ec", line], check=True, cwd=self.folder)
            if line.startswith("cp node7.pub"):
                self.wait("link", ("node node7 is",))

    def here(self, text: str) -> str:
        """A text with the ports of this reader."""
        for old, new in CHANGED.items():
            text = text.replace(old, new.format(port=self.port, page=self.page_port))
        return text

    def run(self, arguments: list[str]) -> None:
        """A command that ends."""
        more = SHORT if " ".join(arguments).startswith(TRAINS) else []
        with self.plots() if self.page == "getting-started" or arguments[0] == "report" else nullcontext():
            result = CliRunner().invoke(app, [*arguments, *more])
        # So few rounds with noise of no seed may end worse than they began, which the command says.
        noisy = self.page == "privacy" and result.exit_code == 1 and "ended worse" in result.output
        assert result.exit_code == 0 or noisy, f"fedax {' '.join(arguments)}\n{result.output}\n{result.exception!r}"
        self.did.append(result.output)

    def site(self, line: str) -> None:
        """A node, in a folder that has ca.pem; the first time on the page deploy three sites start one."""
        shutil.copy("link/ca.pem", "ca.pem")
        first = self.page == "deploy" and "node7" not in self.kept
        names = ["node7", "node8", "node9"] if first else ["node7"]
        for name in names:
            if name in self.kept:
                self.end(name)
            own = line.replace("node7", name).replace("hospital-7", f"hospital-{name[-1]}")
            self.start(name, words(own))
        for name in names:
            self.wait(name, ("this is node", "does not know the key"))

    def start(self, name: str, arguments: list[str]) -> None:
        """A command that runs until it is ended."""
        with pathlib.Path(f"{name}.txt").open("wb") as output:
            self.kept[name] = subprocess.Popen(
                [sys.executable, "-m", "fedax", *arguments], stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def wait(self, name: str, ready: tuple[str, ...]) -> None:
        until = time.monotonic() + 180
        while not any(text in self.output(name) for text in ready):
            assert self.kept[name].poll() is None and time.monotonic() < until, self.output(name)
            time.sleep(0.05)

    def output(self, name: str) -> str:
        return pathlib.Path(f"{name}.txt").read_text(encoding="utf-8")

    def end(self, name: str) -> None:
        self.kept[name].terminate()
        assert self.kept.pop(name).wait(60) == 0, self.output(name)


def words(line: str) -> list[str]:
    """What a shell makes of a line that begins with fedax: quotes, comments and patterns."""
    script = f"fedax() {{ printf '%s\\0' \"$@\" >&3; }}; exec 3>&1; {line}"
    result = subprocess.run(["bash", "-ec", script], check=True, capture_output=True, text=True).stdout
    return result.split("\0")[:-1]


@pytest.fixture
def reader(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, plots: Any) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    path = os.pathsep.join(filter(None, sys.path))
    monkeypatch.setenv("PYTHONPATH", path)
    made = Reader(plots)
    try:
        yield made
    finally:
        for each in made.kept.values():
            each.terminate()
        for each in made.kept.values():
            each.wait(60)


def tables(label: str, rows: int = 60) -> None:
    """Tables of three hospitals, here and in the folder hospitals, and one of new patients."""
    os.mkdir("hospitals")
    for k in (7, 8, 9):
        table(rows, k - 7, label).to_csv(f"hospital-{k}.csv", index=False)
        shutil.copy(f"hospital-{k}.csv", "hospitals")
    table(5, 3, label).to_csv("new.csv", index=False)


def test_getting_started_and_choosing(reader):
    reader.read("getting-started")
    assert len(pandas.read_csv("predicted.csv")) == len(pandas.read_csv("hospitals/north.csv"))
    reader.read("choosing")


def test_data_tasks_and_readme(reader):
    tables("readmitted")
    reader.read("data")
    assert fedax.FederatedData.open("hospital-7").names == ("hospital-7",)
    shutil.copy("hospitals.toml", "experiment.toml")
    reader.read("README")
    assert len(pandas.read_csv("p.csv")) == 5
    text = pathlib.Path("hospitals.toml").read_text(encoding="utf-8").replace('"fedavg"', '"fednova"')
    pathlib.Path("experiment.toml").write_text(f'name = "hospitals"\n{text}', encoding="utf-8")
    reader.run(["run", "experiment.toml"])
    reader.read("tasks")
    assert len(pandas.read_csv("predicted.csv")) == 5


def test_experiments(reader):
    reader.read("experiments")
    assert pathlib.Path("digits.csv").stat().st_size and pathlib.Path("references.bib").exists()
    assert pathlib.Path("runs/paper-1/plots/test_accuracy-bytes.png").exists()
    table = pathlib.Path("table.tex").read_text(encoding="utf-8")
    assert "Judged by Test accuracy" in table and "Cost until test accuracy" in table


def test_privacy_and_secure_aggregation(reader):
    tables("readmitted")
    reader.read("secure-aggregation")
    reader.read("privacy")


def test_time(reader):
    reader.read("time")
    reader.run(["report", "runs/slow-clients-1", "--target", "train_loss=0.5"])
    assert any("Clock time" in each for each in reader.did)
    data = fedax.data.quadratics(clients=2, dimension=5)
    bound = reader.names["clock"].bind(Census.of(data), 0)
    assert bound.on([0, 1, 1], [5.0, 5000.0, 89_000.0]).tolist() == [5.0, 7200.0, 89_000.0]


def test_asynchronous(reader):
    reader.read("asynchronous")
    names = reader.names
    assert names["found"].chi_square > 0.01
    off = [np.linalg.norm(np.asarray(names[run].params) - names["star"]) for run in ("run", "back", "exact")]
    assert off[0] > 2 * off[1] and off[2] < 1e-3
    assert np.linalg.norm(names["predicted"] - np.asarray(names["run"].params)) < 0.2


def test_personal(reader):
    reader.read("personal")
    (folder,) = pathlib.Path("runs").glob("*")
    ditto, head = read(folder).runs
    assert {"test_loss_personal", "unseen_loss_personal"} <= ditto.history.keys() & head.history.keys()


def test_clusters(reader):
    reader.read("clusters")
    assert [run.status for run in read("runs/digits").runs] == ["finished"]


def test_deploy(reader):
    tables("readmitted")
    reader.read("deploy")
    assert len(pandas.read_csv("predicted.csv")) == 5
    assert Transform.load("link/tables/transform.json") == Transform.load("transform.json")  # over the link, by files
    for k in (7, 8, 9):
        assert Transform.load(f"node{k}.state/transform.json") == Transform.load("transform.json")
    assert fedax.FederatedData.open("pictures").num_clients == 3 and "this is node" in reader.output("node7")
    report = pathlib.Path("runs/tables-1/report.html").read_text(encoding="utf-8")
    assert '<section id="columns">' in report  # by site
    assert "There is no baseline pooled" in report
    assert any("There is no baseline pooled" in each for each in reader.did)
    assert_same_figures("runs/tables-1", "runs/compare-hospitals-1")
    reader.run(["predict", "runs/tables-1/models/fednova-seed0.safetensors", "hospital-9.csv", "--out", "own.csv"])
    own = pandas.read_csv("own.csv")
    assert len(own) == 60 and own["doubts"].isna().all()  # at a site, of its own rows, with the model that it was sent
    agreed = pathlib.Path("link/tables/transform.json")
    made = Transform.load(agreed)
    agreed.write_text(agreed.read_text(encoding="utf-8").replace("readmitted", "again"), encoding="utf-8")
    assert deploy._agreed(pathlib.Path("link"), made) is None  # what they have is not what was agreed here


def assert_same_figures(deployed: str, simulated: str) -> None:
    """The sites' tables, turned into numbers over the link, have the figures that they have where all are here."""
    one, other = read(pathlib.Path(deployed)), read(pathlib.Path(simulated))
    assert one.about["columns"] == other.about["columns"] is not None
    for run, same in zip(one.runs, other.runs, strict=True):
        for name in ("train_loss", "val_loss", "test_loss", "test_accuracy", "test_auc"):
            np.testing.assert_allclose(run.history[name], same.history[name], 1e-4, 1e-5, err_msg=name)
    for label in ("fednova", "local only"):
        (mine,), (others,) = clients.tables(one, label), clients.tables(other, label)
        assert mine.names == others.names == ["hospital-7", "hospital-8", "hospital-9"]
        assert mine.sizes.tolist() == others.sizes.tolist()
        np.testing.assert_allclose(mine.values["loss"], others.values["loss"], 1e-4, 1e-5)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_it(reader):
    tables("readmitted")
    reader.read("it")
    assert any("fedax_link_up 1\n" in each for each in reader.did)
    reader.wait("link", ("is no longer known",))
    reader.kept.pop("node7").wait(180)
    assert "does not know the key" in reader.output("node7")


def test_every_reason_is_used():
    texts = {name: path.read_text(encoding="utf-8") for name, path in PAGES.items()}
    for start in LEFT_OUT:
        assert any(f"\n{start}" in text for text in texts.values()), start
    for (page, start), _ in SAVED.items():
        assert f"```toml\n{start}" in texts[page] or f"```python\n{start}" in texts[page], (page, start)
    for (page, name), command in IN_TEXT.items():
        assert command.endswith(f" {name}") and (page, name) in {(key[0], to) for key, to in SAVED.items()}
