"""The commands `fedax deploy`: a link, nodes and runs as real processes, compared with the same simulation."""

import collections
import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs pip install 'fedax[deploy]'")

import safetensors.numpy
import tomli_w

import fedax
from fedax import _start
from fedax.columns import COSTS, EXCLUSIONS, TIME, TRAFFIC
from fedax.data import FederatedData
from fedax.engine import secret
from fedax.experiments import read, runner
from fedax.sites.protocol.agreement import Agreement
from fedax.sites.protocol.messages import heads_of
from fedax.sites.protocol.remote import Remote
from fedax.sites.service import certificates, messages, node, processes, status, transport
from tests import long
from tests.experiments import run_cli
from tests.processes import options

from .. import LAST_BITS
from .federation import PLACES, SOON, Federation, children, dying, rows_of, same_models, same_rows, wait_for

CONFIG = """
data = {name = "digits", clients = 4, partition = "dirichlet", alpha = 0.5}
work = {kind = "random-epochs", low = 1, high = 2}
participation = {kind = "uniform", size = 3}
run = {rounds = 3, batch_size = 16, seeds = 1}
methods = [{name = "scaffold", lr = 0.1}, {name = "fedavg", lr = 0.1}]
"""


class Seen:
    """What goes over the wire, and where the clients' memory is in the end.

    Attributes:
        asked: kind -> how many messages to nodes.
        over: of each message, the bytes that it took more than its arrays.
        memory: of each run, by its label, the versions of the clients' memory.
        logs: the lines of the nodes' logs, once the run is over.
    """

    def __init__(self, patch: pytest.MonkeyPatch):
        self.asked: collections.Counter[str] = collections.Counter()
        self.over: list[int] = []
        self.memory: dict[str, Any] = {}
        self.logs: list[dict[str, Any]] = []
        train, question, opened = runner.train, transport.question, messages.opened

        def weighed(head: dict[str, Any], tensors: bytes, size: int) -> None:
            arrays = safetensors.numpy.load(tensors) if tensors else {}
            self.over.append(size - sum(array.nbytes for array in arrays.values()))

        def asked(key: Any, node: int, run: str, start: str, until: float, parts: list[bytes], *more: Any) -> Any:
            letter, inside = question(key, node, run, start, until, parts, *more), opened(parts)
            weighed(inside.head, inside.tensors, letter.size)
            self.asked.update(head["kind"] for head in heads_of(inside))
            return letter

        def came(parts: list[bytes]) -> Any:
            inside = opened(parts)
            weighed(inside.head, inside.tensors, 500 + sum(map(len, parts)))
            return inside

        def trained(*args: Any, **kwargs: Any) -> fedax.Run:
            run = train(*args, **kwargs)
            self.memory[type(args[0]).__name__] = run.memory
            return run

        patch.setattr(transport, "question", asked)
        patch.setattr(transport, "opened", came)
        patch.setattr(runner, "train", trained)
        patch.setattr(Remote, "forget", lambda self: None)  # so that it can be looked at


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    made = Federation(tmp_path_factory.mktemp("deployed"), CONFIG)
    try:
        made.start_all()
        yield made
    finally:
        ends = made.end()
    assert not any(ends.values()), {name: made.output(name)[-500:] for name in ends if ends[name]}


@pytest.fixture(scope="module")
def whole(federation: Federation) -> tuple[Path, Seen]:
    """The run, without interruption."""
    out = federation.folder / "whole"
    began = {name: len(federation.log(name)) for name in federation.places}
    with pytest.MonkeyPatch.context() as patch:
        seen = Seen(patch)
        result = run_cli("deploy", *federation.arguments(out))
    assert result.exit_code == 0, result.output
    seen.logs = [line for name, at in began.items() for line in federation.log(name)[at:]]
    return out, seen


@pytest.fixture(scope="module")
def simulated(federation: Federation) -> Path:
    """The same as a simulation."""
    out = federation.folder / "simulated"
    result = run_cli("run", str(federation.config), "--out", str(out))
    assert result.exit_code == 0, result.output
    return out


@contextlib.contextmanager
def then(what: Callable[[], Any], do: Callable[[], None]) -> Iterator[None]:
    """Do something in a thread, once something is true."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            if what():
                do()
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def memory_at(federation: Federation, run: np.ndarray) -> list[dict[str, bytes]]:
    """The clients' memory at the nodes, of the versions that a run ended with."""
    results = []
    for name, clients in federation.places.items():
        folder = federation.folder / f"{name}.state" / "site"
        agreements = [Agreement.of(json.loads(path.read_text())["text"]) for path in (folder / "agreements").iterdir()]
        names = {agreement.run: agreement.memory for agreement in agreements}
        for row, client in enumerate(clients):
            number, version = run[int(client)].tolist()
            content = (folder / "memory" / names[number] / f"{row}-{version}.safetensors").read_bytes()
            results.append(content[8 + int.from_bytes(content[:8], "little") :])  # its head names the run
    return results


def test_it_is_the_simulation_of_the_same_data(whole: tuple[Path, Seen], simulated: Path) -> None:
    real, plain = read(whole[0]), read(simulated)
    assert [run.label for run in real.runs] == ["scaffold", "fedavg"]
    for one, other in zip(real.runs, plain.runs, strict=True):
        assert one.history["round"].tolist() == [0, 1, 2, 3]
        assert one.history.keys() - other.history.keys() == {"heard", TIME, *TRAFFIC, *EXCLUSIONS}
        for name in other.history.keys() - {"seconds"}:
            if name in COSTS or other.history[name].dtype.kind != "f":
                assert one.history[name].tolist() == other.history[name].tolist(), name
            else:
                np.testing.assert_allclose(one.history[name], other.history[name], 1e-5, 1e-5, err_msg=name)
        file = f"{one.label}-seed0.safetensors"
        model, expected = (safetensors.numpy.load_file(each / "models" / file) for each in (whole[0], simulated))
        assert model.keys() == expected.keys()
        for name in expected:
            np.testing.assert_allclose(model[name], expected[name], 1e-5, 1e-5, err_msg=name)


def test_what_goes_over_the_wire(federation: Federation, whole: tuple[Path, Seen], record_property: Any) -> None:
    out, seen = whole
    record_property("most bytes over the arrays", max(seen.over))
    assert all(0 < over <= 10_000 for over in seen.over)
    rows = rows_of(out)
    assert all(row["heard"] == 1 and row["waited"] > 0 for row in rows)
    for label in ("scaffold", "fedavg"):
        own = [row for row in rows if row["label"] == label]
        for way in ("down", "up"):
            wire, plain = ([row[f"{name}_{way}"] for row in own] for name in ("wire", "bytes"))
            assert wire == sorted(wire) and wire[-1] > plain[-1] / 3  # a node's clients share a message
    assert (out / "report.html").exists()
    kinds = collections.Counter(line["kind"] for line in seen.logs)
    assert kinds == seen.asked and kinds["exchange"] >= 2 * 3 * 2
    assert all(line["came"] > 0 and line["left"] > 0 and "error" not in line for line in seen.logs)


def test_secrets_are_not_shown(federation: Federation, whole: tuple[Path, Seen]) -> None:
    _none_is_shown(federation, {**_secrets(federation.link), **_secrets(federation.folder)})


@long
def test_masked_sums_are_those_of_the_simulation(federation: Federation, only: Callable[[str], None]) -> None:
    """Over three processes: the same numbers, and the nodes' logs show each step of the protocol."""
    out, plain = federation.folder / "secure", federation.folder / "secure-simulated"
    only("fedavg")
    more = ["--set=run.secure={clip=10.0}", "--set=participation={kind='full'}"]
    before = len(federation.log("n0"))
    result = run_cli("deploy", *federation.arguments(out, *more))
    assert result.exit_code == 0, result.output
    assert run_cli("run", str(federation.config), "--out", str(plain), *more).exit_code == 0
    one, other = (safetensors.numpy.load_file(each / "models" / "fedavg-seed0.safetensors") for each in (out, plain))
    for name, leaf in other.items():
        np.testing.assert_allclose(one[name], leaf, rtol=0, atol=LAST_BITS, err_msg=name)
    kinds = collections.Counter(line["kind"] for line in federation.log("n0")[before:])
    assert (kinds["exchange"], kinds["evaluate"]) == (3, 4)  # the first evaluation is of the model before the rounds
    # All of them are secure sums; but for the first two, masks were offered with the shares of an earlier one.
    assert (kinds["offer"], kinds["agree"], kinds["unmask"]) == (2, 0, 3 + 4)


@long
def test_a_private_run_is_the_simulation_with_the_same_secret(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("dp_accounting", reason="needs pip install 'fedax[privacy]'")
    settings = {"clip": 0.3, "noise": 1.0, "delta": 1e-3, "adaptive.noise": 1.0}
    more = ["--set=data.weights=uniform", *(f"--set=privacy.{name}={value}" for name, value in settings.items())]
    monkeypatch.setattr(secret, "secrets", types.SimpleNamespace(token_bytes=bytes))  # zeros, of both runs
    real, plain = federation.folder / "private", federation.folder / "private-simulated"
    for arguments in (
        ["deploy", *federation.arguments(real, *more)],
        ["run", str(federation.config), "--out", str(plain), *more],
    ):
        result = run_cli(*arguments)
        assert result.exit_code == 0, result.output
        assert re.search(r"spent epsilon = [\d.]+ at delta = 0\.001", result.output)
    for one, other in zip(read(real).runs, read(plain).runs, strict=True):
        assert one.history["epsilon"].tolist() == other.history["epsilon"].tolist() and one.history["epsilon"][-1] > 0
        np.testing.assert_allclose(one.history["train_loss"], other.history["train_loss"], 1e-5, 1e-5)


@long
def test_killed_in_a_round_it_goes_on_bit_for_bit(federation: Federation, whole: tuple[Path, Seen]) -> None:
    reference, before = whole
    out, began = federation.folder / "killed", len(federation.log("n2"))

    def in_round_2() -> bool:  # a node hears of it with the evaluation of the model after round 1
        return any(line["kind"] == "exchange" and line["round"] == 2 for line in federation.log("n2")[began:])

    command = federation.start_run(out)
    wait_for(lambda: in_round_2() or command.poll() is not None)
    command.kill()
    assert federation.commands.pop("run").wait() == -signal.SIGKILL and len(rows_of(out)) in (4, 5, 6)
    with pytest.MonkeyPatch.context() as patch:
        seen = Seen(patch)
        result = run_cli("deploy", *federation.arguments(out, "--resume"))
    assert result.exit_code == 0 and "Going on with" in result.stdout, result.output
    assert same_rows(out, reference) and same_models(out, reference)
    assert memory_at(federation, seen.memory["Scaffold"]) == memory_at(federation, before.memory["Scaffold"])
    lines = [line for line in federation.log("n2")[began:] if line["kind"] == "exchange"]
    assert len({line["run"] for line in lines}) == 2  # one of each method: the resumed one is the same run


@long
def test_killed_before_it_asks_it_goes_on(federation: Federation, whole: tuple[Path, Seen]) -> None:
    out = federation.folder / "parts"
    command = federation.start("run", *federation.arguments(out), **dying(federation.folder, 6))
    assert command.wait(SOON) == -signal.SIGKILL
    del federation.commands["run"]
    result = run_cli("deploy", *federation.arguments(out, "--resume"))
    assert result.exit_code == 0, result.output
    assert same_rows(out, whole[0]) and same_models(out, whole[0])


@pytest.fixture
def only(federation: Federation) -> Iterator[Callable[[str], None]]:
    """Leaves one method in the configuration, for as long as the test lasts."""
    text = federation.config.read_text()

    def leave(method: str) -> None:
        federation.config.write_text(re.sub("methods = .*", f'methods = [{{name = "{method}", lr = 0.1}}]', text))

    yield leave
    federation.config.write_text(text)


def test_personal_models_after_kills_and_at_their_sites(federation: Federation, only: Callable[[str], None]) -> None:
    """The server and a node are killed: the same figures, bit for bit, and those of the simulation."""
    folder, more = federation.folder, ["--set=data.split={train=0.8,val=0.2}", "--set=run.rounds=4"]
    reference, out, plain = (folder / f"personal-{name}" for name in ("whole", "killed", "simulated"))
    only("ditto")
    result = run_cli("deploy", *federation.arguments(reference, *more))
    assert result.exit_code == 0, result.output
    command = federation.start_run(out, *more)
    wait_for(lambda: len(rows_of(out)) >= 2 or command.poll() is not None)
    command.kill()
    assert federation.commands.pop("run").wait() == -signal.SIGKILL and len(rows_of(out)) < 5
    federation.kill("n2")
    federation.start_node("n2")
    result = run_cli("deploy", *federation.arguments(out, *more, "--resume"))
    assert result.exit_code == 0, result.output
    assert same_rows(out, reference) and same_models(out, reference)
    assert run_cli("run", str(federation.config), "--out", str(plain), *more).exit_code == 0
    for one, other in zip(rows_of(out), rows_of(plain), strict=True):
        for name in ("train_loss_personal", "val_loss_personal", "val_accuracy_personal", "turn_age", "newcomers"):
            np.testing.assert_allclose(np.float64(one[name]), np.float64(other[name]), 1e-5, err_msg=name)

    new = folder / "new.npy"
    np.save(new, np.random.default_rng(0).integers(0, 16, (5, 8, 8, 1)).astype(np.uint8))

    def predict(place: Path, *client: str) -> Any:
        table = folder / f"predicted-{place.name}.csv"
        return run_cli("predict", str(place), str(new), "--out", str(table), *client), table

    result, _ = predict(out, "--client=3")
    assert result.exit_code == 2 and "client = '3'" in result.stderr and "at its site" in result.stderr
    result, _ = predict(folder / "n2.state", "--client=3")  # both runs have left one
    files = sorted((folder / "n2.state" / "site" / "models").glob("*/*/3.safetensors"))
    assert result.exit_code == 2 and len(files) == 2 and all(str(file) in result.stderr for file in files)
    assert len({*(_arrays(file) for file in files)}) == 1
    tables = []
    for place, *client in (
        (files[0],),
        (files[0].parent, "--client=3"),
        (plain, "--client=3"),
    ):
        result, table = predict(place, *client)
        assert result.exit_code == 0, result.output
        tables.append(np.genfromtxt(table, delimiter=",", skip_header=1))
    np.testing.assert_array_equal(tables[0], tables[1])
    np.testing.assert_allclose(tables[0], tables[2], 1e-4, 1e-5)


def _arrays(file: Path) -> bytes:
    content = file.read_bytes()
    return content[8 + int.from_bytes(content[:8], "little") :]  # the head names the run


SLOW = 5  # seconds; a program may have to be compiled in them
FULL = ["--set=participation={kind='full'}", "--set=work={kind='steps', steps=3}", "--set=run.rounds=1"]


@contextlib.contextmanager
def falls_asleep(federation: Federation, name: str, out: Path) -> Iterator[None]:
    """The worker of a node stops once a run is under way, and goes on when the context ends."""
    worker = federation.worker(name)
    try:
        with then(lambda: rows_of(out), lambda: os.kill(worker, signal.SIGSTOP)):
            yield
    finally:
        os.kill(worker, signal.SIGCONT)
    assert federation.worker(name) == worker  # what it has compiled stays


@long
def test_without_a_node_that_is_slow(federation: Federation, only: Callable[[str], None]) -> None:
    out = federation.folder / "slow"
    only("fedavg")
    more = [f"--timeout={SLOW}", *FULL, "--set=run.rounds=4"]  # the first exchange comes with the first evaluation
    with falls_asleep(federation, "n0", out):
        result = run_cli("deploy", *federation.arguments(out, *more))
    assert result.exit_code == 0, result.output
    first, *_, last = rows_of(out)
    assert first["heard"] == 1 and 0 < last["heard"] < 1
    assert last["left_out"] > 0 and last["clients"] < 4 * 4


@long
def test_a_method_for_all_clients_does_not_go_on_without_one(
    federation: Federation, only: Callable[[str], None]
) -> None:
    out = federation.folder / "all"
    only("led")
    more = [f"--timeout={SLOW}", *FULL]
    with falls_asleep(federation, "n2", out):
        result = run_cli("deploy", *federation.arguments(out, *more))
    assert result.exit_code == 2
    assert re.search(r"clients '2', '3': no answer in 5 s, in round 0, and LED is defined .*--resume", result.stderr)
    result = run_cli("deploy", *federation.arguments(out, *more, "--resume"))
    assert result.exit_code == 0, result.output
    assert rows_of(out)[-1]["round"] == 1 and rows_of(out)[-1]["clients"] == 4


@long
def test_a_node_with_other_data_and_limits(federation: Federation, whole: tuple[Path, Seen]) -> None:
    federation.commands["n1"].terminate()
    assert federation.commands["n1"].wait() == 0
    policy = {"figures": {"columns": ["train_loss"]}, "runs": {"rounds": 2}}
    told = federation.output("n1").count("this is node")
    federation.start_node("n1", data="n0.data", policy=policy)
    wait_for(lambda: federation.output("n1").count("this is node") > told)
    for k, (more, text) in enumerate((
        ([], r"clients? '1': .*runs.rounds = 2"),
        (["--set=run.grad_norm=true", "--set=run.rounds=1"], r"clients? '1': .*figures.columns = .*grad_norm_sq"),
    )):  # fmt: skip
        result = run_cli("deploy", *federation.arguments(federation.folder / f"refused-{k}", *more))
        assert result.exit_code == 2 and re.search(text, result.stderr), result.output
    before = {path: path.read_bytes() for path in whole[0].rglob("*") if path.is_file()}
    result = run_cli("deploy", *federation.arguments(whole[0], "--resume"))
    assert result.exit_code == 2 and "it holds a run of another problem" in result.stderr, result.output
    assert "client 1" in result.stderr
    assert before == {path: path.read_bytes() for path in whole[0].rglob("*") if path.is_file()}
    federation.commands["n1"].terminate()
    assert federation.commands["n1"].wait() == 0
    federation.start_node("n1")
    wait_for(lambda: federation.output("n1").count("this is node") > told + 1)


@long
def test_on_this_machine(tmp_path: Path, federation: Federation, only: Callable[[str], None]) -> None:
    out = tmp_path / "local"
    only("fedavg")
    command = ["deploy", "local", str(federation.config), "--nodes=2", f"--out={out}", "--set=run.rounds=1"]
    result = run_cli(*command, "--checkpoint-best=train_loss")
    assert result.exit_code == 0, result.output
    assert {path.name for path in (out / "models").glob("*.safetensors")} == {
        "fedavg-seed0.safetensors",
        "fedavg-seed0-best.safetensors",
    }
    assert sorted(path.name for path in (out / "deploy").iterdir()) == ["link.log", "node-0.jsonl", "node-1.jsonl"]
    assert [row["clients"] for row in rows_of(out)] == [0, 3] and (out / "report.html").exists()


ROUNDS = 150


@long
def test_a_run_goes_on_while_all_is_renewed_and_one_node_is_removed(
    federation: Federation, only: Callable[[str], None]
) -> None:
    """All secrets are looked for where they must not be, at the same time. n2 is locked out for good: the last test."""
    out, places = federation.folder / "renewed", [*PLACES]
    secrets = {**_secrets(federation.link), **_secrets(federation.folder)}
    only("fedavg")
    before = [federation.commands["link"].pid, *map(federation.worker, places)]
    command = federation.start_run(
        out, "--timeout", "15", *FULL, f"--set=run.rounds={ROUNDS}", "--set=run.evaluate_every=1"
    )

    def rounds() -> int:
        return max((row["round"] for row in rows_of(out)), default=0)

    def later(more: int) -> None:
        goal = rounds() + more
        wait_for(lambda: rounds() >= goal, 240)

    wait_for(lambda: rounds() >= 2, 240)
    certificates.renew(federation.link)
    certificates.renew(federation.link, authority=True)
    later(2)
    for name in places:
        shutil.copy(federation.link / "ca.pem", federation.folder / f"{name}.ca")
    certificates.renew(federation.link)
    secrets |= _secrets(federation.link)
    later(3)
    assert [federation.commands["link"].pid, *map(federation.worker, places)] == before  # nothing was started again
    assert all(row["left_out"] == 0 for row in rows_of(out))
    _none_is_shown(federation, secrets)
    (federation.link / "nodes" / "n2.pub").unlink()
    wait_for(lambda: "is no longer known" in federation.output("link"))
    gone = rounds()
    assert federation.commands.pop("n2").wait(120) == 2 and "does not know the key" in federation.output("n2")
    assert command.wait(400) == 0, federation.output("run")
    left_out = {row["round"]: row["left_out"] for row in rows_of(out)}
    assert max(left_out) == ROUNDS > gone + 3
    more = [left_out[k] - left_out[k - 1] for k in range(1, ROUNDS + 1)]
    assert more[: gone - 1] == [0] * (gone - 1) and more[gone + 2 :] == [2] * (ROUNDS - gone - 2)  # n2's clients
    _none_is_shown(federation, secrets)


def _none_is_shown(federation: Federation, secrets: dict[str, bytes]) -> None:
    """Neither in the command lines of processes, nor in what they print and write."""
    for process in (os.getpid(), *(each.pid for each in federation.commands.values())):
        for inner in (process, *children(process, "fedax")):
            with contextlib.suppress(FileNotFoundError):  # it has ended
                _has_none(Path(f"/proc/{inner}/cmdline").read_bytes(), secrets)
    kinds = (".txt", ".log", ".json", ".jsonl", ".toml")
    shown = [path for path in federation.folder.rglob("*") if path.suffix in kinds]
    assert len(shown) > 10
    for path in shown:
        _has_none(path.read_bytes(), secrets)


def _secrets(folder: Path) -> dict[str, bytes]:
    """What must not be shown, by name: texts, and the lines of keys."""
    results = {}
    for path in folder.iterdir():
        if path.is_file() and (path.name in ("secret", "ca.key", "server.key") or path.name in PLACES):
            lines = path.read_bytes().splitlines()
            results |= {f"{path} {line!r}": line for line in lines if not line.startswith(b"---") and len(line) >= 20}
    return results


def _has_none(content: bytes, secrets: dict[str, bytes]) -> None:
    assert len(secrets) >= 6 and all(len(each) >= 20 for each in secrets.values())
    assert not [name for name, secret in secrets.items() if secret in content]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("LEVEL", "SIZE", "KEEP"):
        monkeypatch.delenv(f"FEDAX_LOG_{name}", raising=False)
    (tmp_path / "tiny.toml").write_text(CONFIG)
    (tmp_path / "nodes.toml").write_text(re.sub("data = .*", 'data = {name = "nodes"}', CONFIG))
    (tmp_path / "empty").mkdir()
    (tmp_path / "ca.pem").write_text("not looked at")
    two = {"x": np.zeros((4, 2), np.float32), "y": np.arange(4)}
    FederatedData.from_clients([two, two]).save(tmp_path / "two")
    return tmp_path


def test_no_proxy_stands_before_this_machine(tmp_path):
    """A deployment on this machine, with all variables that name one."""
    (tmp_path / "tiny.toml").write_text(CONFIG.replace('{name = "scaffold", lr = 0.1}, ', ""))
    proxies = dict.fromkeys(["https_proxy", "http_proxy", "ALL_PROXY", "grpc_proxy"], "http://127.0.0.1:9")
    command = [sys.executable, "-m", "fedax", "deploy", "local", "tiny.toml", "--nodes=1", "--set=run.rounds=1"]
    ended = subprocess.run(command, env=os.environ | proxies, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_an_error_names_the_variable_of_a_proxy(monkeypatch):
    for name in [each for each in os.environ if each.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    assert certificates.by_proxy("fed.example.org:9443") == ""
    monkeypatch.setenv("ALL_PROXY", "http://user:word@127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    text = certificates.by_proxy("fed.example.org:9443")
    assert "ALL_PROXY names; no_proxy=fed.example.org" in text and "word" not in text
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    assert "https_proxy" in certificates.by_proxy("fed.example.org:9443") and certificates.by_proxy("127.0.0.1:1") == ""


def test_what_is_kept_of_no_proxy(monkeypatch):
    monkeypatch.setattr(os, "environ", environment := {"HOME": "/"})
    _start.reach_directly()
    assert environment == {"HOME": "/"}
    environment["NO_PROXY"] = "a.example, localhost"
    _start.reach_directly("192.168.1.7")
    assert environment["no_proxy"] == "a.example,localhost,127.0.0.1,::1,192.168.1.7"
    environment["no_proxy"] = "*"
    _start.reach_directly()
    assert environment["no_proxy"] == "*"


@pytest.mark.parametrize(
    ("bind", "reached"), [("::1", "::1"), (None, "::1"), (None, "127.0.0.1"), ("127.0.0.1", "127.0.0.1")]
)
def test_a_link_listens_at_addresses_of_ipv6_too(bind, reached, tmp_path):
    if ":" in reached and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    port = processes.free_port()
    given = options(folder=tmp_path / "link", port=port, host="127.0.0.1")
    command = [sys.executable, "-m", "fedax", "deploy", "link", *given]
    command += [] if bind is None else [f"--bind={bind}"]
    address = f"[{reached}]:{port}" if ":" in reached else f"{reached}:{port}"
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as link:
        try:
            assert "the link is ready" in link.stdout.readline()
            assert certificates.connection_problem(address, tmp_path / "link" / "ca.pem") is None
            certificates.make_node_key(tmp_path / "key")
            assert status.registered(address, tmp_path / "link") == []
        finally:
            link.terminate()


NODE = ["deploy", "node", "--link", "localhost:9443", "--key", "key"]
RUN = ["deploy", "run", "tiny.toml", "--link"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*NODE, "--data", "two", "--ca", "absent.pem"], "ca = 'absent.pem': no such file"),
        ([*NODE, "--data", "absent"], "absent"),
        ([*NODE, "--data", "empty"], "empty"),
        ([*NODE, "--data", "two", "--link", "nowhere"], "give HOST:PORT"),
        ([*NODE, "--data", "two", "--key", "tiny.toml"], "no private key"),
        ([*RUN, "localhost:9443"], "folder = 'link': it has no ca.pem"),
        (["deploy", "run", "absent.toml", "--link", "localhost:9443"], "config = 'absent.toml'"),
        (["deploy", "local", "tiny.toml", "--ray"], "flwr run"),
        (["deploy", "local", "tiny.toml", "--nodes", "5"], "nodes = 5: give 1 to 4"),
        (["deploy", "local", "tiny.toml", "--set", "run.split_seeds=true"], "run.split_seeds = True"),
        (["deploy", "local", "nodes.toml"], "data.name = 'nodes'"),
        (["deploy", "local", "tiny.toml", "--checkpoint-best", "train_los"], "did you mean 'train_loss'"),
        (["deploy", "local", "tiny.toml", "--resume"], "no run of this configuration has begun"),
        (["run", "nodes.toml"], "data.name = 'nodes': these are real clients: fedax deploy run"),
    ],
)
def test_bad_input_is_exit_code_2_and_one_line(here: Path, arguments: list[str], message: str) -> None:
    refused(here, arguments, message)


USUAL = {"data": "../two", "key": "key", "link": "localhost:9443", "ca": "../ca.pem"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": "absent"}, "site/absent"),
        ({"data": None}, "data = None: this is missing; give --data, or data in node.toml"),
        ({"data": 3}, "data = 3: "),
        ({"ca": None}, "ca = 'site/ca.pem': no such file"),
        ({"socket": "s"}, "give --link, or --socket"),
        ({"clients": ["a"]}, "there are 2 clients in site/../two"),
        ({"clients": ["a", "a"]}, "there are 2 clients in site/../two"),
        ({"clients": ["a", " "]}, "give each"),
        ({"clients": "a,b"}, "clients = 'a,b'"),
        ({"clients": ["a", 2]}, "clients[1] = 2"),
        ({"client": ["a"]}, "site/node.toml = 'client': did you mean 'clients'? There are: ca, clients, "),
        ({"test": "absent"}, "site/absent"),
        ({"review": "no"}, "review = 'no'"),
        ({"review": True}, "review = True: this is for tables"),
        ({"wait": -1}, "wait = -1"),
        ({"log_level": "debug"}, "log_level = 'debug'"),
        ({"log_size": 0}, "log_size = 0"),
        ({"roster": "absent"}, "roster = 'site/absent': no such folder"),
        ({"policy": "absent.toml"}, "policy = 'site/absent.toml': it cannot be read"),
        ({"policy": 3}, "policy = 3"),
        ({"policy": {"figure": {}}}, "policy = 'figure': did you mean 'figures'?"),
        ({"policy": {"runs": {"rounds": 0}}}, "runs.rounds = 0"),
        ({"policy": {"runs": {"code": "mine.py"}}}, "runs.code = 'mine.py': give a list"),
        ({"policy": {"runs": {"code": ["mine.py"]}}}, "'site/mine.py': there is no such file"),
    ],
)
def test_bad_settings_of_a_node_are_one_line(here: Path, settings: dict[str, Any], message: str) -> None:
    (here / "site").mkdir()
    given = {name: value for name, value in (USUAL | settings).items() if value is not None}
    (here / "site" / "node.toml").write_text(tomli_w.dumps(given))
    refused(here, ["deploy", "node", "site/node.toml"], message)


def test_a_file_that_is_no_toml(here: Path) -> None:
    refused(here, ["deploy", "node", "absent.toml"], "file = 'absent.toml': it cannot be read")
    refused(here, ["deploy", "node", "ca.pem"], "file = 'ca.pem': it cannot be read")


@pytest.fixture
def started(here: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[dict[str, Any], str]]:
    """``started(*arguments)``: with which arguments a node runs, and what was told on stderr."""
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(node, "run", lambda **given: calls.append(given))

    def start(*arguments: str) -> tuple[dict[str, Any], str]:
        with monkeypatch.context() as patch:
            patch.setattr(os, "environ", os.environ.copy())
            result = run_cli("deploy", "node", *arguments)
            calls[-1]["logs"] = [os.environ.get(f"FEDAX_LOG_{name}") for name in ("LEVEL", "SIZE", "KEEP")]
        assert result.exit_code == 0, result.output
        return calls[-1], result.stderr

    return start


def test_the_six_options_count_more_than_the_file(here: Path, started: Callable[..., Any]) -> None:
    (here / "site").mkdir()
    (here / "policy.toml").write_text("runs = {rounds = 3}")
    settings = USUAL | {"clients": ["a", "b"], "wait": 5, "log_keep": 2, "policy": {"sums": {"clients": 2}}}
    (here / "site" / "node.toml").write_text(tomli_w.dumps(settings))
    given, told = started("site/node.toml")
    assert not told and given["link"] == "localhost:9443" and given["wait"] == 5 and given["logs"][2] == "2"
    assert given["key"] == Path("site/key") and given["ca"] == Path("site/../ca.pem")
    assert given["state"] == Path("site/key.state") and given["arguments"]["data"] == Path("site/../two")
    assert given["arguments"]["names"] == ["a", "b"] and given["arguments"]["policy"] == {"sums": {"clients": 2}}
    more = ["--key", "other", "--link", "a.example:1", "--policy", "policy.toml", "--ca", "ca.pem", "--data", "two"]
    given, told = started("site/node.toml", *more)
    assert not told and given["link"] == "a.example:1" and given["ca"] == Path("ca.pem")
    assert given["key"] == Path("other") and given["state"] == Path("other.state")
    assert given["arguments"]["data"] == Path("two") and given["arguments"]["policy"] == {"runs": {"rounds": 3}}
    given, told = started("--data", "two", "--key", "key", "--socket", "node.sock")
    assert given["link"] == Path("node.sock") and given["arguments"]["names"] == ["key-0", "key-1"]


def test_code_is_a_rule_and_its_files_are_beside_the_policy(here: Path, started: Callable[..., Any]) -> None:
    (here / "rules").mkdir()
    for place in (here, here / "rules"):
        (place / "mine.py").touch()
    (here / "rules" / "policy.toml").write_text('[runs]\ncode = ["mine.py", "json"]\n')
    (here / "node.toml").write_text(
        tomli_w.dumps(USUAL | {"data": "two", "ca": "ca.pem", "policy": "rules/policy.toml"})
    )
    given, _ = started("node.toml")
    assert given["arguments"]["policy"] == {"runs": {"code": ["rules/mine.py", "json"]}}
    given, told = started("node.toml", "--allow-code", "mine.py")
    assert given["arguments"]["policy"] == {"runs": {"code": ["rules/mine.py", "json", "mine.py"]}}
    assert told.startswith('--allow-code: write runs.code = ["mine.py"] in the policy')


def test_options_that_go_act_as_before_and_say_where_they_went(here: Path, started: Callable[..., Any]) -> None:
    shutil.copytree(here / "two", here / "held")
    certificates.make_node_key(here / "key")
    (here / "nodes").mkdir()
    shutil.copy(here / "key.pub", here / "nodes")
    old = {
        "--clients=a, b": 'clients = ["a", "b"]', "--test=held": 'test = "held"', "--val=held": 'val = "held"',
        "--roster=nodes": 'roster = "nodes"', "--state=s": 'state = "s"', "--wait=9": "wait = 9.0",
        "--log-level=info": 'log_level = "info"', "--log-size=3": "log_size = 3.0", "--log-keep=4": "log_keep = 4",
        "--columns=train_loss": 'figures.columns = ["train_loss"]', "--max-rounds=7": "runs.rounds = 7",
        "--noise=20": "figures.noise = 20.0", "--bound=3": "figures.bound = 3.0", "--epsilon=8": "budget.epsilon = 8.0",
        "--no-split": "runs.split = false", "--allow-code=json": 'runs.code = ["json"]',
    }  # fmt: skip
    given, told = started(*NODE[2:], "--data", "two", *old)
    for option, line in old.items():
        name = option.partition("=")[0].replace("--no-", "--")
        where = "the policy" if "." in line.partition(" = ")[0] else "node.toml"
        assert f"{name}: write {line} in {where}; the option goes in the next release\n" in told
    assert told.count("\n") == len(old)
    arguments = given.pop("arguments")
    assert arguments["names"] == ["a", "b"] and arguments["test"] == arguments["val"] == Path("held")
    assert arguments["roster"] == (Path("nodes"), Path("key")) and given["state"] == Path("s")
    assert given["wait"] == 9 and given["logs"] == ["info", "3.0", "4"]
    assert arguments["policy"] == {
        "runs": {"rounds": 7, "split": False, "code": ["json"]}, "budget": {"epsilon": 8.0},
        "figures": {"columns": ["train_loss"], "noise": 20.0, "bound": 3.0},
    }  # fmt: skip


def test_options_of_tables_that_go_act_as_before(here: Path, started: Callable[..., Any]) -> None:
    (here / "a.csv").write_text("patient;age;ill\n" + "7;1,5;no\n8;2,5;yes\n" * 5)
    old = ["--drop", "patient", "--decimal", ",", "--encoding=utf-8", "--drop-missing-labels", "--review"]
    given, told = started(*NODE[2:], "--data", "a.csv", *old)
    assert given["arguments"]["names"] == ["a"] and given["arguments"]["table"] == {
        "read": {"decimal": ",", "encoding": "utf-8", "drop": ["patient"]}, "review": True, "drop_missing_labels": True,
    }  # fmt: skip
    assert told.count("the option goes in the next release") == 5 and "--review: write review = true in" in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--noise", "much"], "--noise"),
        (["--max-rounds"], "--max-rounds"),
        (["--colums", "a"], "No such option"),
        (["--noise", "2", "--policy", "policy.toml"], "figures.noise = 2.0: all rules"),
    ],
)
def test_options_that_cannot_be(here: Path, arguments: list[str], message: str) -> None:
    (here / "policy.toml").touch()
    result = run_cli(*NODE, "--data", "two", *arguments)
    assert result.exit_code == 2 and message in result.stderr, result.output


def test_the_environment_says_how_logs_are_kept(
    here: Path, started: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDAX_LOG_SIZE", "2.5")
    assert started(*NODE[2:], "--data", "two")[0]["logs"] == ["warning", "2.5", "5"]
    monkeypatch.setenv("FEDAX_LOG_SIZE", "large")
    refused(here, [*NODE, "--data", "two"], "log_size = 'large'")


def test_a_port_that_is_taken(here: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused(here, ["deploy", "link", "--port", str(port), "--bind", "127.0.0.1"], f"port = {port}: cannot be used")


def test_a_number_of_nodes_out_of_range(here: Path) -> None:
    result = run_cli("deploy", "local", "tiny.toml", "--nodes", "0")
    assert result.exit_code == 2 and "--nodes" in result.stderr and not (here / "runs").exists()


@pytest.mark.parametrize(
    "arguments", [["deploy", "local", "tiny.toml"], ["deploy", "link"], [*NODE, "--data", "two"], [*RUN, "localhost:1"]]
)
def test_without_the_packages(here: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "httpx" else find(name))
    refused(here, arguments, "httpx = None: a deployment needs this package: pip install 'fedax[deploy]'")


def refused(here: Path, arguments: list[str], message: str) -> None:
    before = sorted(here.rglob("*"))
    result = run_cli(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ") and message in result.stderr and result.stderr.count("\n") == 1
    assert not result.stdout
    assert sorted(here.rglob("*")) == before  # nothing was begun
