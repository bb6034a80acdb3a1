"""The user's methods and tasks in configurations: which run, which are refused, and resuming with the same code."""

import hashlib
import json
import pathlib
import subprocess
import sys
import tomllib

import pytest

import fedax
from fedax.errors import CodeError, NodeError
from fedax.experiments import build, own, plan, read
from fedax.experiments.config.experiment import problem_of
from tests.experiments import run_cli

MINE = '''
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import fedax
from fedax.contract.hyper import hyper


class State(NamedTuple):
    x: fedax.Vector
    mean: fedax.Vector


class FedAvgEMA(fedax.Algorithm):
    """FedAvg that delivers a moving average of its models."""

    lr: Any = hyper(0.05, "(0, ∞)")
    decay: Any = hyper(0.9, "[0, 1)")

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


class Clipped(fedax.Algorithm):
    """FedAvg whose clients clip their updates."""

    rate: Any
    most: Any = hyper(1.0, "(0, ∞)")
    form: tuple = (1, 2)
    solver: Any = fedax.SGD(0.1)
    regularizer: Any = None

    def init(self, x):
        return x

    def model(self, server):
        return server

    def client(self, x, memory, oracle):
        dx = fedax.local_steps(lambda y, k: y - self.rate * oracle.grad(y, k), x, oracle) - x
        norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(dx)))
        return dx * jnp.minimum(1.0, self.most / (norm + 1e-12)), memory

    def server(self, x, mean, round):
        return x + mean


def bowl(d: int, steep: float = 1.0):
    """A quadratic task."""
    inner = fedax.tasks.quadratic(d)
    return fedax.Task(inner.init, lambda params, batch, key: steep * inner.loss(params, batch, key))


def no_task():
    return 3


def broken():
    return 1 / 0


from os import system
'''

CONFIG = """
name = "own"
data = {name = "quadratics", clients = 4, dimension = 2}
task = {name = "mine.py:bowl", steep = 0.5}
run = {rounds = 6, evaluate_every = 2, seeds = 2}
work = {kind = "steps", steps = 2}
methods = [{name = "mine.py:FedAvgEMA", lr = 0.1, decay = 0.5}, {name = "mine.py:Clipped", rate = 0.1}]
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "own.toml").write_text(CONFIG)
    return tmp_path


def rows(folder):
    lines = (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()
    return [
        {name: value for name, value in json.loads(line).items() if name not in ("seconds", "sha256")} for line in lines
    ]


DIGEST = hashlib.sha256(MINE.encode()).hexdigest()


def test_a_run_that_was_killed_goes_on_by_the_same_code_and_elsewhere(here, monkeypatch):
    result = run_cli("run", "own.toml", "--allow-code", "--out", "whole")
    assert result.exit_code == 0, result.output
    folder, about = here / "whole", json.loads((here / "whole" / "about.json").read_text())
    assert (folder / "code" / "mine.py").read_text() == MINE and about["code"] == {"mine.py": DIGEST}
    assert all(made_of["code mine.py"] == DIGEST for made_of in about["made_of"].values())
    written = tomllib.loads((folder / "config.toml").read_text())
    assert written["methods"] == [
        {"name": "mine.py:FedAvgEMA", "label": "FedAvgEMA", "lr": 0.1, "decay": 0.5},
        {"name": "mine.py:Clipped", "label": "Clipped", "rate": 0.1, "most": 1.0, "form": [1, 2]},
    ]
    assert written["task"] == {"name": "mine.py:bowl", "steep": 0.5}

    killed = (
        "import os, signal\n"
        "from fedax.experiments import build, execute, new_folder, read_toml\n"
        "watch = lambda label, seed, row: row and (label, row['round']) == ('Clipped', 4) and os.kill(os.getpid(), 9)\n"
        "execute(build(read_toml('own.toml'), allow_code=True), new_folder('killed', 'own'), watch, rounds=1)\n"
    )
    assert subprocess.run([sys.executable, "-c", killed]).returncode == -9
    assert 4 < len(rows("killed")) < len(rows("whole"))

    # Other code is refused, by its file; then its own copy goes on, also where there is no other.
    (here / "mine.py").write_text(MINE.replace("1 - self.decay", "1.0 - self.decay"))
    refused = run_cli("run", "own.toml", "--allow-code", "--out", "killed", "--resume")
    assert refused.exit_code == 2 and "mine.py is not what this run began with" in refused.output
    (here / "mine.py").unlink()
    elsewhere = here / "elsewhere"
    elsewhere.mkdir()
    (here / "killed").rename(elsewhere / "killed")
    monkeypatch.chdir(elsewhere)
    refused = run_cli("run", "killed/config.toml", "--out", "killed", "--resume")
    assert refused.exit_code == 2 and "it would run the code of killed/code/mine.py" in refused.output
    result = run_cli("run", "killed/config.toml", "--out", "killed", "--resume", "--allow-code")
    assert result.exit_code == 0, result.output
    by_run = lambda folder: sorted(rows(folder), key=lambda row: (row["label"], row["seed"], row["round"]))  # noqa: E731
    assert by_run("killed") == by_run(folder)

    # Nothing of it has to be there for a report.
    (elsewhere / "killed" / "code" / "mine.py").unlink()
    result = run_cli("report", "killed")
    assert result.exit_code == 0 and "FedAvgEMA" in (elsewhere / "killed" / "report.html").read_text()


def test_what_stands_in_a_file_is_not_run_and_not_imported_unless_it_is_allowed(here):
    (here / "mine.py").write_text("open('seen', 'w')\n" + MINE)
    for command in (["run", "own.toml"], ["sweep", "own.toml", "--grid", "methods.FedAvgEMA.lr=0.1"],
                    ["diagnose", "own.toml"], ["deploy", "local", "own.toml"]):  # fmt: skip
        result = run_cli(*command)
        assert result.exit_code == 2, result.output
        message = "error: methods.FedAvgEMA.name = 'mine.py:FedAvgEMA': it would run the code of mine.py (sha256 "
        assert result.output.startswith(message) and "--allow-code" in result.output
    assert {path.name for path in here.iterdir()} == {"mine.py", "own.toml"}
    tables = {"data": {"name": "digits", "clients": 3}, "run": {"rounds": 1}, "methods": [{"name": "fedavg"}]}
    with pytest.raises(fedax.ConfigError, match=r"^task.name = 'mine.py:bowl': it would run"):
        build(tables | {"task": {"name": "mine.py:bowl"}})
    with pytest.raises(fedax.ConfigError, match=r"^methods.A.name = 'json.decoder:A': .*code of /"):
        build(tables | {"methods": [{"name": "json.decoder:A"}]})
    # One name that was typed does not allow another one.
    result = run_cli(
        "run", "own.toml", "--set", "task.name=mine.py:bowl", "--set", "methods.Clipped.name=mine.py:Other"
    )
    assert result.exit_code == 2 and "it would run" in result.output and not (here / "seen").exists()


def test_what_was_typed_needs_no_leave(here):
    quick = ["--rounds", "2", "--seeds", "1", "--clients", "4", "--set", "data.dimension=2"]
    typed = ["--methods", "mine.py:FedAvgEMA,fedavg", "--set", "task.name=mine.py:bowl"]
    quick += ["--set", "work.kind=steps", "--set", "work.steps=2"]
    result = run_cli("compare", "quadratics", *typed, *quick, "--set", "methods.FedAvgEMA.decay=0.25")
    assert result.exit_code == 0, result.output
    record = read("runs/compare-quadratics-1")
    assert record.labels == ["FedAvgEMA", "fedavg"] and record.config["methods"][0]["decay"] == 0.25
    (here / "known.toml").write_text(CONFIG.replace("mine.py:bowl", "quadratic").replace(", steep = 0.5", ""))
    other = (here / "known.toml").read_text().split("methods")[0] + 'methods = [{name = "fedavg", lr = 0.1}]'
    (here / "known.toml").write_text(other)
    result = run_cli("run", "known.toml", "--set", "run.seeds=1", "--set", "methods.*.name=mine.py:FedAvgEMA")
    assert result.exit_code == 0 and read("runs/own-1").config["methods"][0]["name"] == "mine.py:FedAvgEMA"


def test_a_sweep_of_own_methods_and_its_resume(here):
    command = ("sweep", "own.toml", "--allow-code", "--grid", "methods.FedAvgEMA.decay=0,0.5", "--set", "run.seeds=1")
    result = run_cli(*command, "--out", "swept")
    assert result.exit_code == 0, result.output
    assert len(read("swept").trials("FedAvgEMA")) == 2 and (here / "swept" / "code" / "mine.py").exists()
    (here / "swept" / "sweep.json").unlink()
    (here / "mine.py").write_text(MINE + "\n# changed\n")
    result = run_cli(*command, "--out", "swept", "--resume")
    assert result.exit_code == 2 and "mine.py is not what this run began with" in result.output
    result = run_cli("diagnose", "own.toml", "--rounds", "2", "--allow-code", "--out", "diagnosed")
    assert result.exit_code == 0 and "Verdict" in result.output


def test_nodes_run_what_their_owner_allows_and_is_the_servers(here):
    experiment = build(tomllib.loads(CONFIG), allow_code=True)
    table = json.loads(json.dumps(experiment.problem("FedAvgEMA")))
    assert table["code"] == {"mine.py": DIGEST}
    with pytest.raises(NodeError, match=r"mine.py \(sha256 .*not allowed it; .* runs.code = \['mine.py'\]"):
        problem_of(table)
    (here / "at-node").mkdir()
    file = here / "at-node" / "mine.py"
    file.write_text(MINE + "\n")
    with pytest.raises(NodeError, match=r"mine.py .*: the file here is another one; get"):
        problem_of(table, [str(file)])
    file.write_text(MINE)
    problem = problem_of(table, [str(file)])
    assert problem.method == experiment.methods["FedAvgEMA"] and isinstance(problem.task, fedax.Task)
    with pytest.raises(
        fedax.ConfigError, match=r"^task.name = 'system': .*: bowl, broken, no_task"
    ):  # which the file imports
        problem_of(table | {"task": {"name": "mine.py:system"}}, [str(file)])
    with pytest.raises(CodeError, match=r"is FedAvgEMA; a task is named by a function"):
        problem_of(table | {"task": {"name": "mine.py:FedAvgEMA"}}, [str(file)])


METHODS = "methods.A.name = 'bad.py:A': "


@pytest.mark.parametrize(
    "text, message",
    [
        (None, "there is no such file in "),
        ("x = (", r"bad.py is no Python .*never closed.*bad.py:1\)"),
        ("x = 1\ny = 1 / 0", r"bad.py raised ZeroDivisionError.*bad.py:2\)"),
        ("import sys; sys.exit(3)", "bad.py raised SystemExit: 3; "),
        ("import no_such_module", "No module named 'no_such_module'"),
        ("B = 1", "no A in .*bad.py, and no method"),
        ("import fedax\nclass AA(fedax.Algorithm):\n    pass", "^methods.A.name = 'A': .*There are: AA"),
        ("A = 3", "is int; a method is a class"),
        ("class A:\n    pass", "is the class A; a method is"),
        ("import fedax\nclass A(fedax.Algorithm):\n    lr: float", r"methods.A.lr = None: this is missing"),
        (
            "import fedax\nclass A(fedax.Algorithm):\n    def __init__(self, **more): ...",
            r"A takes \*\*more; name each",
        ),
        (
            "import fedax\nclass A(fedax.Algorithm):\n    def validate(self):\n        return 1 / 0",
            r"A.validate raised ZeroDiv.*bad.py:4\)",
        ),
    ],
)
def test_errors_of_files_name_the_line(here, text, message):
    if text is not None:
        (here / "bad.py").write_text(text)
    tables = tomllib.loads(CONFIG) | {"methods": [{"name": "bad.py:A"}]}
    with pytest.raises(fedax.ConfigError, match=message) as caught:
        build(tables, allow_code=True)
    assert "\n" not in str(caught.value)


FACTORY = """
import fedax, optax
from os import system

def clipped(lr: float = 0.1, norm: float = 1.0):
    return fedax.create("fedavg", solver=fedax.Optax(optax.chain(optax.clip_by_global_norm(norm), optax.sgd(lr))))

def three(lr=0.1):
    return 3
"""


def test_a_function_that_makes_a_method(here):
    (here / "factory.py").write_text(FACTORY)
    tables = tomllib.loads(CONFIG) | {"methods": [{"name": "factory.py:clipped", "norm": 0.5}]}
    experiment = build(tables, allow_code=True)
    assert isinstance(experiment.methods["clipped"], fedax.FedAvg)
    (row,) = experiment.config["methods"]
    assert row == {"name": "factory.py:clipped", "label": "clipped", "lr": 0.1, "norm": 0.5}
    for name, message in (
        ("three", "returned int; return a fedax.Algorithm .*factory.py:8"),
        ("cliped", "did you mean 'clipped'"),
        ("system", "no such name. There are: clipped, three"),
    ):
        with pytest.raises(fedax.ConfigError, match=message):
            build(tables | {"methods": [{"name": f"factory.py:{name}"}]}, allow_code=True)


@pytest.mark.parametrize(
    "name, message",
    [
        ("mine:A", r"no module mine .*give mine.py:A"),
        ("json.nothing:A", "no module json.nothing is installed"),
        ("json:A", "no such name. There are: .*dump"),
        ("a b:A", "give file.py:Class or package.module:Class"),
        ("mine.py:A.b", "give file.py:Class"),
        (":", "give file.py:Class"),
        ("/dev/null.py:A", "no such file"),
    ],
)
def test_names_that_cannot_be(here, name, message):
    with pytest.raises(fedax.ConfigError, match=message):
        build(tomllib.loads(CONFIG) | {"methods": [{"name": name, "label": "a"}]}, allow_code=True)


def test_settings_of_own_methods_and_tasks_are_checked_as_those_of_fedax(here):
    tables = tomllib.loads(CONFIG)

    def refused(message, task=None, **method):
        row = {"name": "mine.py:FedAvgEMA"} | method
        with pytest.raises(fedax.ConfigError, match=message):
            build(tables | {"methods": [row], "task": {"name": "mine.py:bowl"} | (task or {})}, allow_code=True)

    refused(r"^methods.FedAvgEMA.lr = -1: .*\(0, ∞\)", lr=-1)
    refused(r"^methods.FedAvgEMA.lrr = .*mean 'lr'", lrr=1)
    refused(r"^task\.stee = 1: did you mean 'steep'", {"stee": 1})
    refused(r"^task.d = 3: this comes from the data set", {"d": 3})
    refused(r"no_task returned int; return a fedax.Task", {"name": "mine.py:no_task"})
    refused(r"broken raised ZeroDiv.*mine.py:\d+\)", {"name": "mine.py:broken"})
    rows_ = [
        {"name": "mine.py:Clipped", "rate": {"value": 0.1, "at": {"2": 0.5}}, "form": [3, 4]},
        {"name": "mine.py:Clipped", "rate": 0.2, "regularizer": {"name": "l1", "weight": 0.1}},
    ]
    made = build(tables | {"methods": rows_}, allow_code=True).methods
    assert list(made) == ["Clipped rate={'value': 0.1, 'at': {'2': 0.5}} form=[3, 4]",
                          "Clipped rate=0.2 regularizer={'name': 'l1', 'weight': 0.1}"]  # fmt: skip
    first, second = made.values()
    assert isinstance(first.rate, fedax.Piecewise) and first.form == (3, 4) and second.regularizer == fedax.L1(0.1)
    tuning = plan(tables | {"methods": rows_[1:]}, {"methods.Clipped.most": [1, 2]}, allow_code=True)
    assert tuning.points == {"Clipped": [{"most": 1}, {"most": 2}]}
    (here / "again").mkdir()
    (here / "again" / "mine.py").write_text(MINE + "\n")
    other = [{"name": "mine.py:FedAvgEMA"}, {"name": "again/mine.py:Clipped", "rate": 1}]
    with pytest.raises(fedax.ConfigError, match=r"mine.py has the same name"):
        build(tables | {"methods": other}, allow_code=True)


def install(folder, name, points, text):
    """As pip leaves a package."""
    (folder / f"{name}.py").write_text(text)
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(points)


def test_installed_packages_add_methods_and_tasks_by_entry_points(here, monkeypatch):
    site = here / "site"
    site.mkdir()
    points = "[fedax.methods]\nfed-best = fedbest:FedAvgEMA\n[fedax.tasks]\nbowl = fedbest:bowl\n"
    install(site, "fedbest", points, MINE)
    assert "fed-best" not in fedax.available()
    monkeypatch.syspath_prepend(site)
    assert type(fedax.create("Fed_Best", lr=0.5)).__name__ == "FedAvgEMA" and "fedbest" in sys.modules
    assert fedax.available()["fed-best"] == "FedAvg that delivers a moving average of its models."
    assert "fed-best" in run_cli("list", "methods").output and "bowl" in run_cli("list", "tasks").output
    tables = tomllib.loads(CONFIG) | {"methods": [{"name": "fed-best", "lr": 0.2}], "task": {"name": "bowl"}}
    experiment = build(tables)  # as trusted as fedax is
    assert experiment.methods["fed-best"].lr == 0.2 and not experiment.code
    assert experiment.config["methods"][0]["decay"] == 0.9
    # A module that no entry point names is code all the same, whose file is not copied.
    named = tables | {"methods": [{"name": "fedbest:FedAvgEMA"}]}
    with pytest.raises(fedax.ConfigError, match=r"it would run the code of .*site/fedbest.py"):
        build(named)
    assert build(named, allow_code=True).problem("FedAvgEMA")["code"] == {"fedbest": DIGEST}

    install(site, "fedbad", "[fedax.methods]\nbad = fedbad:A\nworse = fedbad:B\n", "B = 3")
    assert "cannot be loaded" in fedax.available()["bad"] and "a method is a class" in fedax.available()["worse"]
    with pytest.raises(CodeError, match=r"^method bad .*fedbad cannot .*AttributeError"):
        fedax.create("bad")
    install(site, "fedtwice", "[fedax.methods]\nFedAvg = fedtwice:A\n", "")
    with pytest.raises(fedax.ConfigError, match=r"'FedAvg': .*fedtwice .*is taken"):
        fedax.available()
    fedax.create("fedavg")


def test_register_gives_names_to_classes_and_functions(here):
    source = own.owned("mine.py")
    mine = own._load(source, "name")
    assert fedax.register(mine.FedAvgEMA) is mine.FedAvgEMA and fedax.register("bowl2", aliases=["b2"])(mine.bowl)
    assert fedax.create("fedavgema", lr=0.5) == mine.FedAvgEMA(lr=0.5) and "FedAvgEMA" in fedax.available()
    assert isinstance(fedax.tasks.create("B2", d=2), fedax.Task) and "bowl2" in fedax.tasks.available()
    assert "FedAvgEMA" in run_cli("list", "methods").output
    tables = tomllib.loads(CONFIG) | {"methods": [{"name": "fedavgema"}], "task": {"name": "b2", "steep": 2.0}}
    assert build(tables).config["task"] == {"name": "bowl2", "steep": 2.0}
    fedax.register(mine.FedAvgEMA)  # once more, as a notebook does
    with pytest.raises(fedax.ConfigError, match=r"^name of a method = 'fedprox': there is one"):
        fedax.register("fedprox")(mine.FedAvgEMA)
    with pytest.raises(fedax.ConfigError, match=r"'fedavgema': there is one"):
        fedax.register("fedavgema")(mine.Clipped)
    with pytest.raises(fedax.ConfigError, match=r"^name of a method = 'a.py:b': give letters"):
        fedax.register("a.py:b")(mine.Clipped)
    with pytest.raises(fedax.ConfigError, match=r"^register = 3: give .*fedax.Algorithm"):
        fedax.register(3)


def test_check_is_a_command(here, monkeypatch):
    seen = []
    monkeypatch.setattr("fedax.conformance._CHECKS", {"lr": ("the lr", lambda bed: seen.append(bed.method.lr) or "ok")})
    result = run_cli("check", "mine.py:FedAvgEMA", "--set", "lr=0.25")
    assert result.exit_code == 0 and "everything holds" in result.output and seen == [0.25]
    result = run_cli("check", "mine.py:FedAvgEMA", "--set", "lr=-1")
    assert result.exit_code == 2 and "FedAvgEMA.lr = -1" in result.output
    monkeypatch.setattr("fedax.conformance._CHECKS", {"lr": ("the lr", lambda bed: 1 / 0)})
    result = run_cli("check", "fedavg")
    assert result.exit_code == 1 and "FAILS  lr  the lr" in result.output and "ZeroDivisionError" in result.output


def test_check_takes_a_reference_and_a_task(here, monkeypatch):
    seen = []
    look = lambda bed: seen.append((bed.reference.__name__, bed.task.name)) or "ok"  # noqa: E731
    monkeypatch.setattr("fedax.conformance._CHECKS", {"lr": ("the lr", look)})
    (here / "paper.py").write_text("def paper(method, clients, x):\n    return x\n")
    result = run_cli("check", "mine.py:FedAvgEMA", "--reference", "paper.py:paper", "--task", "softmax_regression")
    assert result.exit_code == 0 and seen == [("paper", "softmax_regression")], result.output
    result = run_cli("check", "mine.py:FedAvgEMA", "--reference", "paper.py:papr")
    assert result.exit_code == 2 and "reference = 'papr': did you mean 'paper'" in result.output
    result = run_cli("check", "mine.py:FedAvgEMA", "--reference", "paper")
    assert result.exit_code == 2 and "file.py:function" in result.output
    result = run_cli("check", "fedavg", "--task", "cnn")
    assert result.exit_code == 2 and "task.shape" in result.output
