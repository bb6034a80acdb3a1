"""Every command where the system refuses something: its output, its files, their names."""

import csv
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import sys

import pandas
import pytest
import typer

pytest.importorskip("starlette", reason="needs pip install 'fedax[deploy]'")

import fedax
from fedax import cli
from fedax.cli import status
from fedax.data import fit, plan, summarize
from fedax.data.tables import read_table
from fedax.experiments import build, execute, new_folder, read_toml, toml
from fedax.experiments.study import read_study
from fedax.experiments.study.results import keep
from fedax.sites.service import link

RECIPE = """
data = {name = "quadratics", clients = 2, dimension = 1}
run = {rounds = 1, seeds = 1}
work = {kind = "steps", steps = 1}
methods = [{name = "fedavg", lr = 0.1}]
"""
STUDY = 'name = "mine"\nparts = [{name = "a", recipe = "small.toml", claims = [["fedavg", "fedavg"]], text = "x."}]\n'
TRACE = "client,step,on,off,repeat\n0,0.1,,,\n1,0.3,0,1,2\n"  # of a clock
SITES = ("north", "south")
QUADRATICS = ["compare", "quadratics", "--rounds", "1", "--seeds", "1", "--methods", "fedavg"]
SWEEP = ["sweep", "small.toml", "--grid", "methods.*.lr=0.1,0.2"]
PACE = ["--set", "pace.concurrency=2", "--set", "pace.buffer=1"]
PRIVACY = ["--noise", "1.1", "--delta", "1e-6", "--rounds", "3", "--clients", "9", "--apart", "3"]
# What each command is called with, and whether it writes a file.
COMMANDS = {
    "run": (["small.toml", "--out", "new"], True),
    "compare": ([*QUADRATICS[1:], "--out", "new"], True),
    "sweep": ([*SWEEP[1:], "--out", "new"], True),
    "study": (["study.toml"], True),
    "predict": (["model", "north.csv", "--out", "new.csv"], True),
    "export": (["model", "--to", "numpy", "--out", "new"], True),
    "diagnose": (["ran"], True),
    "fine-tune": (["--help"], False),
    "check": (["--help"], False),
    "list": ([], False),
    "report": (["ran"], True),
    "cite": (["fednova"], False),
    "privacy": (PRIVACY, False),
    "data check": (["north.csv", "south.csv", "--label", "ill"], False),
    "data summarize": (["north.csv", "--plan", "plan.json", "--out", "new.json"], True),
    "data plan": (["north-first.json", "south-first.json", "--label", "ill", "--out", "new.json"], True),
    "data fit": (["plan.json", "north-second.json", "south-second.json", "--out", "new.json"], True),
    "data apply": (["transform.json", "north.csv", "--out", "new"], True),
    "deploy local": (["--help"], False),
    "deploy flower": (["new", "small.toml"], True),
    "deploy link": (["--folder", "new"], True),
    "deploy link renew": (["--help"], False),
    "deploy node": (["--help"], False),
    "deploy policy": (["new.toml"], True),
    "deploy run": (["--help"], False),
    "deploy status": (["--help"], False),
    "deploy node status": (["--key", "key"], False),
    "deploy tables": (["--help"], False),
    "deploy review": (["--key", "key", "--yes"], False),
}
MORE = {
    "run, trace": (["run", "small.toml", "--set", "clock.trace=trace.csv", "--out", "new"], True),
    "run, pace": (["run", "small.toml", "--set", "clock.trace=trace.json", *PACE, "--out", "new"], True),
    "run, best": (["run", "small.toml", "--checkpoint-best", "train_loss", "--out", "new"], True),
    "compare, preset": ([*QUADRATICS, "--set", "clock.preset=phones", "--out", "new"], True),
    "sweep, trace": ([*SWEEP, "--set", "clock.trace=trace.csv", "--out", "new"], True),
    "diagnose, configuration": (["diagnose", "small.toml", "--out", "new"], True),
    "report csv": (["report", "ran", "--format", "csv"], False),
    "report latex": (["report", "ran", "--format", "latex"], False),
    "report markdown": (["report", "ran", "--format", "markdown", "--out", "new.md"], True),
    "data summarize, first": (["data", "summarize", "north.csv", "--out", "new.json"], True),
    "version": (["--version"], False),
    "help": (["--help"], False),
}
SAID_BEFORE = [name for name, (given, _) in COMMANDS.items() if given == ["--help"]][1:]  # one help stands for all
CALLS = {name: ([*name.split(), *given], writes) for name, (given, writes) in COMMANDS.items()} | MORE
CALLS = {name: call for name, call in CALLS.items() if name not in SAID_BEFORE}
READ_MORE = ("run, trace", "run, pace", "compare, preset", "sweep, trace", "diagnose, configuration")
SAYING = [name for name in CALLS if name not in READ_MORE]  # those say and write what others do


def leaves(group, before=()):
    for name, command in group.commands.items():
        yield from leaves(command, (*before, name)) if hasattr(command, "commands") else [" ".join((*before, name))]


def test_these_are_all_commands():
    assert sorted(leaves(typer.main.get_command(cli.app))) == sorted(COMMANDS)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with all that commands read."""
    place = tmp_path_factory.mktemp("commands")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        (place / "small.toml").write_text(RECIPE)
        (place / "study.toml").write_text(STUDY)
        (place / "trace.csv").write_text(TRACE)
        (place / "trace.json").write_text('{"step": 0.1, "up": 1e6}')
        tables = read_toml("small.toml")
        execute(build(tables), new_folder("ran", "small"), drawn=False)
        study = read_study("study.toml")
        for job in study.jobs():
            above = place / "studies" / "mine" / "jobs" / job.key
            execute(build(job.config), new_folder(above / "run", "x"), drawn=False)
            (above / "seconds.txt").write_text("1.0")
            (place / "studies" / "mine" / "results").mkdir()
            keep(place / "studies" / "mine", job)
        frames = {}
        for name in SITES:
            (place / f"{name}.csv").write_text("age,ward,ill\n" + "40,A,no\n60,B,yes\n" * 10)
            frames[name] = read_table(place / f"{name}.csv")
        first = {name: summarize(frame, least=1) for name, frame in frames.items()}
        column_plan = plan(first, label="ill")
        second = {name: summarize(frame, column_plan, least=1) for name, frame in frames.items()}
        for name in SITES:
            first[name].save(f"{name}-first.json")
            second[name].save(f"{name}-second.json")
        column_plan.save("plan.json")
        transform = fit(column_plan, second)
        transform.save("transform.json")
        data = fedax.data.from_frames(frames, transform=transform)
        task = fedax.tasks.softmax_regression(data.examples["x"].shape[1], 2)
        fedax.simulate(fedax.create("fedavg", lr=0.1), task, data, rounds=1).save("model")
        (place / "key").touch()
        (place / "key.state" / "site").mkdir(parents=True)
    return place


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    """Where a command is called: its own, and with all that it reads."""
    monkeypatch.chdir(shutil.copytree(made, tmp_path / "here"))
    monkeypatch.setattr(cli.exits, "listen", lambda: None)

    def run(folder, *given, say, **more):
        folder.mkdir()
        (folder / "ca.pem").write_bytes(b"x")
        say("ready")

    monkeypatch.setattr(link, "run", run)
    return tmp_path / "here"


@pytest.fixture
def called(monkeypatch):
    """``called(arguments, output)``: the exit code and stderr; ``output`` is a file descriptor."""

    def call(arguments, output=None, encoding="utf-8"):
        read, write = os.pipe()
        output = os.open(os.devnull, os.O_WRONLY) if output is None else output
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["fedax", *map(str, arguments)])
            patch.setattr(sys, "stdout", open(output, "w", encoding=encoding, closefd=False))  # noqa: SIM115
            patch.setattr(sys, "stderr", open(write, "w", encoding=encoding, closefd=False))  # noqa: SIM115
            with pytest.raises(SystemExit) as ended:
                cli.main()
            sys.stdout.flush()  # as at the end of a process: nothing is left to be said
            sys.stderr.flush()
        os.close(output)
        os.close(write)
        with os.fdopen(read, "rb") as stream:
            return ended.value.code or 0, stream.read().decode()

    return call


def nobody():
    """A pipe that nobody reads."""
    read, write = os.pipe()
    os.close(read)
    return write


@pytest.mark.parametrize("name", SAYING)
def test_an_output_that_nobody_reads_changes_nothing(name, here, called):
    assert called(CALLS[name][0], nobody()) == (0, "")


@pytest.mark.parametrize("name", SAYING)
def test_an_output_that_is_full_is_an_error_and_the_work_is_done(name, here, called):
    before = {*here.rglob("*")}
    code, stderr = called(CALLS[name][0], os.open("/dev/full", os.O_WRONLY))
    assert (code, stderr.count("\n")) == (2, 1) and "No space left on device; make room" in stderr
    if any(word.startswith("new") for word in CALLS[name][0]):
        assert {*here.rglob("*")} > before


@pytest.mark.parametrize("output", [nobody, lambda: os.open("/dev/full", os.O_WRONLY)])
def test_what_is_shown_again_and_again_ends_with_its_output(here, called, monkeypatch, output):
    monkeypatch.setattr(status, "_EVERY", "no more")  # time.sleep refuses it
    (here / "link").mkdir()
    code, stderr = called(["deploy", "status", "--watch"], output())
    assert (code, stderr) == (2, "error: folder = 'link': it has no ca.pem; give the folder of `fedax deploy link`\n")


def test_without_any_output_the_exit_code_is_the_same(here, called, monkeypatch):
    monkeypatch.setattr(cli.exits, "way_out_of", None)  # and no traceback, for there is nowhere to write it
    assert called(["cite", "nobody"], nobody())[0] == 2


@pytest.fixture
def no_room():
    """No file may grow, as on a disk that is full."""
    handler, before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("name", [name for name in SAYING if CALLS[name][1]])
def test_a_disk_that_is_full_is_one_line(name, here, called, no_room):
    code, stderr = called(CALLS[name][0])
    assert (code, stderr.count("\n")) == (2, 1) and "File too large" in stderr, stderr


@pytest.mark.parametrize("name", [name for name in SAYING if not CALLS[name][1]])
def test_where_nothing_is_written_a_full_disk_does_no_harm(name, here, called, no_room):
    assert called(CALLS[name][0]) == (0, "")


@pytest.mark.parametrize("name", CALLS)
def test_an_output_in_ascii_and_folders_that_are_not(name, here, called):
    """Neither the locale's encoding nor UTF-8: a folder of Latin-1, and the files in it that it can have."""
    odd = pathlib.Path(os.fsdecode(b"Z\xfcrich"))
    odd.mkdir()
    words = [odd / word if (here / word).exists() or word.startswith("new") else word for word in CALLS[name][0]]
    for path in list(here.iterdir()):
        if path.name not in (odd.name, "studies", "trace.csv", "trace.json"):  # settings are in UTF-8
            shutil.move(path, odd)
    code, stderr = called(words, encoding="ascii")
    assert (code, stderr) == (0, "")


def test_clients_whose_files_are_not_in_utf_8_have_names_that_can_be_written(here, called, with_plots):
    odd = pathlib.Path(os.fsdecode(b"Z\xfcrich"))
    odd.mkdir()
    for k, name in enumerate((b"s\xfcd.csv", "ütli.csv".encode())):
        shutil.copy(f"{SITES[k]}.csv", odd / os.fsdecode(name))
    (here / "tables.toml").write_text(
        RECIPE.replace('"quadratics", clients = 2, dimension = 1', '"csv", label = "ill"')
    )
    given = ["run", "tables.toml", "--set"]
    code, stderr = called([*given, f"data.files={odd}/*.csv", "--out", "new"])
    assert code == 2 and stderr.count("\n") == 1 and "this is not in UTF-8" in stderr and not (here / "new").exists()
    assert called([*given, "data.files=Z*/*.csv", "--out", odd / "new"]) == (0, "")
    assert json.loads((odd / "new" / "about.json").read_text())["clients"]["names"] == ["s\\xfcd", "ütli"]
    assert "s\\xfcd" in (odd / "new" / "report.html").read_text()
    site = odd / os.fsdecode(b"s\xfcd.csv")
    assert called(["data", "summarize", site]) == called(["data", "apply", "transform.json", site]) == (0, "")


LONG = "x" * 300
TOO_LONG = {name: [re.sub("^new", LONG, word) for word in words] for name, (words, _) in CALLS.items()}
TOO_LONG = {name: words for name, words in TOO_LONG.items() if words != CALLS[name][0]} | {
    "run, config": ["run", LONG],
    "report, run": ["report", LONG],
    "predict, model": ["predict", LONG, "north.csv", "--out", "new.csv"],
    "export, model": ["export", LONG, "--to", "numpy"],
    "predict, source": ["predict", "model", f"{LONG}.csv", "--out", "new.csv"],
    "study": ["study", "study.toml", "--out", LONG],
    "study, name": ["study", LONG],
    "run, trace of CSV": ["run", "small.toml", "--set", f"clock.trace={LONG}.csv"],
    "run, trace of JSON": ["run", "small.toml", "--set", f"clock.trace={LONG}.json"],
    "diagnose, run": ["diagnose", LONG],
    "report, out": ["report", "ran", "--out", f"{LONG}.html"],
    "deploy local": ["deploy", "local", LONG],
    "summarize": ["data", "summarize", f"{LONG}.csv"],
    "node status": ["deploy", "node", "status", "--key", LONG],
    "review": ["deploy", "review", "--state", LONG],
    "status": ["deploy", "status", "--folder", LONG],
    "tables": ["deploy", "tables", "--link", "127.0.0.1:1", "--label", "ill", "--folder", LONG],
    "compare, files": ["compare", "csv", "--set", f"data.files={LONG}.csv", "--set", "data.label=ill"],
}


@pytest.mark.parametrize("name", TOO_LONG)
def test_a_name_that_is_too_long_is_one_line(name, here, called):
    before = {*here.rglob("*")}
    code, stderr = called(TOO_LONG[name])
    assert (code, stderr.count("\n")) == (2, 1) and "File name too long" in stderr, stderr
    assert {*here.rglob("*")} == before


def test_names_that_files_are_made_of_may_be_long(here, called, with_plots):
    """Of experiments, methods and clients: the files' own names are cut, and differ where the names do."""
    rows = [f"{{name = 'fedavg', label = '{label}'}}" for label in (LONG + "a", LONG + "b", LONG + "月" * 99)]
    text = f'name = "{LONG}"\nmethods = [{", ".join(rows)}]\n' + RECIPE.partition("methods")[0]
    (here / "long.toml").write_text(text)
    assert called(["run", "long.toml"]) == (0, "")
    (folder,) = (here / "runs").iterdir()
    assert len([*(folder / "models").iterdir()]) == 3
    assert called(["run", "long.toml", "--resume"]) == called(["report", folder]) == (0, "")


EVIL = "=cmd()|'/../x\x1b[2J<script>alert(1)</script>%&_$#{}\\\u202e"


def test_names_that_others_have_chosen_do_no_harm(here, called, tmp_path, with_plots):
    """Of an experiment, methods, columns, categories and classes: on the screen, in pages and in tables."""
    table = pandas.DataFrame(
        {EVIL: [40, 60] * 10, "w": [EVIL, "B"] * 10, f"ill {EVIL}": [f"{EVIL}no", f"{EVIL}yes"] * 10}
    )
    for k in range(2):
        table.to_csv(f"=cmd()<b>&{k}.csv", index=False)
    config = {"name": EVIL, "data": {"name": "csv", "files": "=*.csv", "label": f"ill {EVIL}", "split": {"test": 0.3}}}
    config |= {"run": {"rounds": 1, "seeds": 2}, "work": {"kind": "steps", "steps": 1}}
    config["methods"] = [{"name": "fedavg", "lr": 0.1, "label": label} for label in (EVIL, EVIL + "\n2")]
    (here / "evil.toml").write_text(toml.dumps(config))
    before = {path for path in tmp_path.rglob("*") if here / "new" not in path.parents}
    output = here / "said"
    for command in (["run", "evil.toml", "--out", "new"], ["report", "new"], ["diagnose", "new"]):
        code, wrong = called(command, os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
        assert code == 0, wrong
        shown = output.read_text()
        assert {c for c in shown if not c.isprintable()} <= {"\n", "\u202f", "\xa0"}
    page = (here / "new" / "report.html").read_text()
    assert "alert(1)" in page and "<script>alert" not in page and not {"\x1b", "\u202e"} & {*page}
    (model, *_) = (here / "new" / "models").iterdir()
    assert called(["predict", model, "=cmd()<b>&0.csv", "--out", "predicted.csv"])[0] == 0
    assert called(["report", "new", "--format", "csv", "--out", "figures.csv"])[0] == 0
    for path in (here / "predicted.csv", here / "figures.csv", *(here / "new" / "clients").iterdir()):
        with path.open(newline="") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        assert cells and not [each for each in cells if each.startswith(("=", "+", "@"))]
    new = {path for path in tmp_path.rglob("*") if here / "new" not in path.parents} - before
    assert new == {output, here / "new", here / "predicted.csv", here / "figures.csv"}
