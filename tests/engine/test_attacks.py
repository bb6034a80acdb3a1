"""What a server that does as it likes does not learn of nodes under the policy that ``fedax deploy policy`` writes.

Each test is an attack, through the function by which a node answers, with real configurations. It ends with what the
server could compute: it is compared with the client's update, or the row, that it is after.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import random
import re
import time
from collections.abc import Callable
from typing import Any

import hypothesis
import numpy as np
import pytest
import safetensors.numpy
import scipy.stats
from hypothesis import strategies as st

pytest.importorskip("cryptography", reason="needs pip install 'fedax[deploy]'")
pytest.importorskip("cryptography", reason="needs pip install 'fedax[deploy]'")
pytest.importorskip("uvicorn", reason="needs pip install 'fedax[deploy]'")

import fedax
from fedax.data import FederatedData
from fedax.sites.protocol import answered
from fedax.sites.protocol.agreement import digest_of, version_after
from fedax.sites.protocol.messages import Message, joined, packed

from . import evil, here
from .evil import (
    CONFIG,
    FEATURES,
    LR,
    Federation,
    Refused,
    Run,
    agree,
    combinations,
    config,
    fine,
    plain,
    recovered,
    rows_of,
    strict,
    updates,
    without_secure,
)

MODEL = [0.1, 0.2, 0.3, 0.4]
SIZES = (80, 60, 100, 90)


def one_each(folder: pathlib.Path, number: int = 3, policy: Any = None, **more: Any) -> Federation:
    """Nodes of one client each, under the strict policy."""
    clients = [[rows_of(SIZES[k], k + 1)] for k in range(number)]
    return Federation(folder, clients, strict() if policy is None else policy, **more)


def several(folder: pathlib.Path, policy: Any = None, clients: int = 3, n: int = 60, **more: Any) -> Federation:
    """One node of several clients, under a policy of sums over two at least."""
    rows = [rows_of(n + 10 * i, i + 1) for i in range(clients)]
    return Federation(folder, [rows], plain() if policy is None else policy, **more)


def own(nodes: Federation, model: Any = MODEL, **how: Any) -> np.ndarray:
    """[N, 4] the updates of all clients: what the attacker is after."""
    found: np.ndarray = updates([rows for each in nodes.clients for rows in each], model, **how)
    return found


def refused(text: str) -> Any:
    return pytest.raises(Refused, match=text)


def told(nodes: Federation, table: Any, **changes: Any) -> Any:
    """An agreement with this configuration, which a server would not derive itself."""
    return dataclasses.replace(Run(nodes, agreed=False).agreement, config=table, **changes)


def sums(ask: Callable[[int], np.ndarray], number: int, text: str) -> list[np.ndarray]:
    """The answers until one is refused; one has to be."""
    found = []
    with refused(text):
        for k in range(number):
            found.append(ask(k))
    assert len(found) < number
    return found


def nobody(nodes: Federation, found: Any, model: Any = MODEL, **how: Any) -> bool:
    """Whether no client's update is among the rows that an attacker has found, nor any multiple of it."""
    for secret in own(nodes, model, **how):
        for each in np.atleast_2d(found):
            if np.isfinite(each).all() and np.any(each):
                scale = each @ secret / (each @ each)
                if recovered(scale * each, secret):
                    return False
    return True


# ---- what holds, and with which tools


def test_the_tools_show_what_leaves(tmp_path):
    """A control: without rules the attacker has one client's update, and of secure sums the mean, as told by NumPy."""
    nodes = one_each(tmp_path, policy={})
    assert recovered(Run(nodes, without_secure()).exchange(0, MODEL), own(nodes)[0] / 3, 5)
    total = Run(nodes).secure(MODEL)
    assert recovered(total, own(nodes).mean(0), 5)
    assert nobody(nodes, total) and not nobody(nodes, own(nodes)[1])


# ---- agreements

THIRDS = [[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]]


def test_three_weightings_of_nodes_for_one_model(tmp_path):
    """Three secure sums with other weights would be solved for each node."""
    nodes = one_each(tmp_path)
    found = sums(lambda k: Run(nodes, weights=tuple(THIRDS[k])).secure(MODEL), 3, "secure.nodes = 2.*difference")
    assert nobody(nodes, combinations(found, THIRDS[: len(found)]))


def test_three_weightings_of_clients_for_one_model(tmp_path):
    """½ of two clients at a time: the difference of two sums and the third would be one client's."""
    nodes = several(tmp_path)
    pairs = [[0.5, 0.5, 0.0], [0.5, 0.0, 0.5], [0.0, 0.5, 0.5]]

    def ask(k: int) -> np.ndarray:
        return Run(nodes, without_secure(), weights=tuple(pairs[k])).exchange(0, MODEL)

    found = sums(ask, 3, "sums.clients = 2.*difference")
    assert len(found) == 2 and nobody(nodes, combinations(found, pairs[:2]))
    assert recovered(found[0] - found[1], (own(nodes)[1] - own(nodes)[2]) / 2, 3)  # of two clients, as allowed


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ((1.0, 0.0, 0.0), "secure.share|adds|add is not zero"),
        ((0.5, 0.5, 0.0), "add is not zero|secure.nodes = 2"),
        ((0.96, 0.02, 0.02), "secure.share"),
    ],
)
def test_weights_that_leave_one_node(tmp_path, weights, text):
    """All the weight of a secure sum on one node, or on two."""
    nodes = one_each(tmp_path)
    with refused(text):
        Run(nodes, weights=weights).secure(MODEL)


@pytest.mark.parametrize("weights", [(1.0, 0.0, 0.0), (0.6, 0.2, 0.2), (0.0, 0.501, 0.499)])
def test_weights_that_leave_one_client(tmp_path, weights):
    """Most of the weight on one client."""
    run = Run(several(tmp_path), without_secure(), weights=weights)
    with refused("sums.clients = 2"):
        run.exchange(0, MODEL)
    with refused("sums.clients = 2"):
        run.evaluate(0, MODEL)


def test_two_splits_that_differ_in_one_row(tmp_path):
    """Of 100 rows each of two runs leaves one out, another one: the sums differ by two rows."""
    nodes = several(tmp_path, plain(sums={"clients": 1}), clients=1, n=100)

    def split(k: int) -> dict[str, Any]:
        return {"train": 0.99, "val": 0.0, "test": 0.01, "stratify": False, "seed": k}

    found = sums(lambda k: Run(nodes, without_secure(), split=split(k)).exchange(0, MODEL), 3, "sums.examples = 50")
    assert len(found) == 1


def test_many_splits_that_differ_in_many_rows(tmp_path):
    """Halves of the rows in many ways: what they have in common is removed, until few rows are left."""
    nodes = several(tmp_path, plain(sums={"clients": 1, "examples": 30}), clients=1, n=100)

    def split(k: int) -> dict[str, Any]:
        return {"train": 0.7, "val": 0.0, "test": 0.3, "stratify": False, "seed": k}

    found = sums(lambda k: Run(nodes, without_secure(), split=split(k)).exchange(0, MODEL), 40, "sums.examples = 30")
    data = FederatedData.from_clients([nodes.clients[0][0]])
    weights = []
    for k in range(len(found)):
        train = fedax.data.split(data, **split(k), places=[0]).train
        weights.append(np.isin(data.examples["y"], train.examples["y"]))
    assert all(np.count_nonzero(a != b) >= 30 for a in weights for b in weights if a is not b)


def test_a_run_without_secure_sums(tmp_path):
    """One that does not ask for them, or calls them something else."""
    nodes = one_each(tmp_path)
    for table in (without_secure(), config(run={"secure": False}), config(run={"secure": None, "aggregate": "median"})):
        answer = agree(nodes, 0, told(nodes, table))
        assert "error" in answer.head and not answer.tensors
    with refused("secure.nodes = 2"):
        Run(nodes, without_secure())


def test_the_same_text_again(tmp_path):
    """The same agreement, sent again, is no second run: the same sum, and no new line."""
    nodes = several(tmp_path)
    run = Run(nodes, without_secure())
    first, lines = run.exchange(0, MODEL), nodes.lines(0)
    fine(agree(nodes, 0, run.agreement))
    assert run.exchange(0, MODEL).tolist() == first.tolist() and nodes.lines(0) == lines


def test_the_same_number_with_another_configuration(tmp_path):
    """Under the number of an old run: it is another run, whose questions count."""
    nodes = several(tmp_path)
    run = Run(nodes, without_secure())
    run.exchange(0, MODEL)
    other = Run(nodes, without_secure(method={"lr": LR / 2}), run=run.agreement.run)
    other.exchange(0, [0.0] * 4)
    lines = nodes.lines(0)
    assert len(lines) == 2 and run.digest in lines[0]["name"] and other.digest in lines[1]["name"]


@pytest.mark.parametrize(
    "changes",
    [
        {"sizes": (81, 60, 100)},
        {"sizes": (79, 60, 100)},
        {"sizes": (1, 60, 100), "weights": "sizes"},
        {"sizes": (100, 100, 100), "weights": "sizes"},
        {"sizes": (70, 70, 70)},
        {"names": ("n1c0", "n0c1", "n2c0")},
        {"names": ("other", "n1c0", "n2c0")},
    ],
)
def test_a_roster_that_is_wrong_about_the_node(tmp_path, changes):
    """Sizes that lie change weights, steps and splits; a client that is left out is hidden by nobody."""
    nodes = one_each(tmp_path)
    agreement = dataclasses.replace(Run(nodes, agreed=False).agreement, **changes)
    with refused("roster has not each of its clients once"):
        fine(agree(nodes, 0, agreement))
    assert not [*(nodes.state(0) / "agreements").iterdir()]


def test_a_roster_with_a_client_twice(tmp_path):
    """Its update would count twice."""
    nodes = one_each(tmp_path)
    text = json.loads(Run(nodes, agreed=False).agreement.text)
    text |= {"names": ["n0c0", "n0c0", "n2c0"]}
    with refused("not of its form"):
        fine(agree(nodes, 0, json.dumps(text)))


def test_a_roster_without_the_others(tmp_path):
    """A run of one node alone: its secure sum would be its own."""
    nodes = one_each(tmp_path)
    with pytest.raises((Refused, fedax.ConfigError)):
        Run(nodes, names=("n0c0",), sizes=(80,)).secure(MODEL, over=[0])
    agreement = dataclasses.replace(Run(nodes, agreed=False).agreement, names=("n0c0",), sizes=(80,))
    answer = agree(nodes, 0, agreement)
    assert "error" in answer.head and not answer.tensors
    run = Run(nodes)
    with refused("secure.nodes = 2"):
        run.secure(MODEL, over=[0], threshold=1)


def test_rounds_with_one_client(tmp_path):
    """Participation of one client in a round."""
    nodes = one_each(tmp_path)
    alone = config(participation={"kind": "uniform", "size": 1})
    with refused("one client"):
        fine(agree(nodes, 0, told(nodes, alone)))
    run = Run(several(other(tmp_path)), without_secure(participation={"kind": "uniform", "size": 1}))
    index = next(k for k in range(3) if run.rows(0, k))
    with refused("sums.clients = 2"):
        run.exchange(0, MODEL, index)


def test_other_cohorts_for_one_model(tmp_path):
    """Rounds of two of three clients: nine rounds with one model would be solved for each client."""
    nodes = several(tmp_path)
    table = without_secure(participation={"kind": "uniform", "size": 2}, run={"rounds": 9})
    run, weights, found = Run(nodes, table), [], []
    with refused("sums.clients = 2.*difference"):
        for index in range(9):
            found.append(run.exchange(0, MODEL, index))
            weights.append(np.isin(range(3), run.rows(0, index)) / 2)
    assert found and nobody(nodes, combinations(found, weights))


def test_steps_so_unequal_that_others_diverge(tmp_path):
    """Others' updates are no numbers, and 0 in a secure sum: one node's own would be left."""
    nodes = one_each(tmp_path)
    table = config(method={"lr": 1.4}, work={"steps": [5, 500, 500]}, run={"secure": {"clip": 1e6, "threshold": 3}})
    with refused("1 of 3 nodes have signed that what they add is not zero|2 of 3|add is not zero"):
        Run(nodes, table).secure(MODEL)


def test_steps_so_unequal_that_others_diverge_at_one_node(tmp_path):
    """The same within a node: a clip for privacy makes 0 of what is no number."""
    nodes = several(tmp_path)
    table = without_secure(
        method={"lr": 1.4}, work={"steps": [5, 300, 300]}, privacy={"clip": 1e6, "noise": 0.0, "delta": 1e-5}
    )
    run = Run(nodes, table)
    with refused("sums.clients = 2"):
        run.exchange(0, MODEL)
    # It tells that they diverge. So it counts as an answer, and nobody looks for the rate at which they do.
    assert [line["name"].startswith("refusal of") for line in nodes.lines(0)] == [True]


@pytest.mark.parametrize("faults", [{"clients": [1, 2], "sends": 0.0}, {"clients": [1, 2], "times": 0.0}])
def test_faults_that_silence_others(tmp_path, faults):
    """Others are made to send nothing."""
    nodes = one_each(tmp_path)
    with refused("leave out run.faults"):
        Run(nodes, config(run={"faults": faults}))
    with refused("leave out run.faults"):
        Run(several(other(tmp_path)), without_secure(run={"faults": faults}))


def test_a_guard_that_silences_others(tmp_path):
    """A guard with a low limit leaves out the larger updates, and tells whose: single sums, and bits of each client."""
    nodes = one_each(tmp_path)
    with refused("guard"):
        fine(agree(nodes, 0, told(nodes, config(run={"guard": {"largest": 0.3}}))))
    with refused("sums.clients = 2.*guard"):
        Run(several(other(tmp_path)), without_secure(run={"guard": {"largest": 0.3}}))


def test_a_guard_that_leaves_few_rows(tmp_path):
    """Where single clients may be summed, but not few rows: a guard leaves one small client."""
    nodes = Federation(tmp_path, [[rows_of(30, 1), rows_of(90, 8), rows_of(90, 9)]], plain(sums={"clients": 1}))
    largest = [abs(each).max() for each in own(nodes)]
    assert largest[0] < min(largest[1:])
    run = Run(nodes, without_secure(run={"guard": {"largest": float(np.mean([largest[0], min(largest[1:])]))}}))
    with refused("sums.examples = 50"):
        run.exchange(0, MODEL)
    assert len(nodes.lines(0)) == 1  # the refusal tells something, and counts
    assert Run(nodes, without_secure(run={"guard": {"largest": 1e10}})).exchange(0, MODEL).shape == (7,)


@pytest.mark.parametrize("clip", [1e30, 1e8, 1e-30])
def test_clips_that_round_to_nothing(tmp_path, clip):
    """A unit so large that small weights round to 0, or all; or so small that all updates reach it."""
    nodes = one_each(tmp_path)
    table = config(run={"secure": {"clip": clip, "threshold": 3}})
    for weights in ("uniform", (0.9, 0.05, 0.05), (0.8, 0.1, 0.1)):
        with contextlib.suppress(Refused, fedax.ConfigError):
            total = Run(nodes, table, weights=weights).secure(MODEL)
            assert nobody(nodes, total), weights


def test_a_unit_in_which_only_one_node_adds(tmp_path):
    """Weights .88, .06, .06, and a unit that is just small enough for the first: others add 0."""
    nodes = one_each(tmp_path)
    u = np.array([0.88, 0.06, 0.06])[:, None] * abs(own(nodes))
    unit = (u[0].max() + 2 * u[1:].max()) / 2  # the first has 1, the others 0
    assert np.rint(u[0] / unit).any() and not np.rint(u[1:] / unit).any()
    clip = unit / 0.88 * fedax.wire.secure.most(3, 16)
    table = config(run={"secure": {"clip": float(clip), "threshold": 3, "bits": 16}})
    with refused("add is not zero"):
        Run(nodes, table, weights=(0.88, 0.06, 0.06)).secure(MODEL)


@pytest.mark.parametrize("run", [{"rounds": 10**9}, {"rounds": 10**8, "evaluate_every": 1}, {"rounds": 1001}])
def test_runs_without_an_end(tmp_path, run):
    """So many rounds that a node would be busy for ever, or out of memory when it lists them."""
    nodes = one_each(tmp_path)
    agreement = told(nodes, config(run=run))
    began = time.process_time()
    with refused("rounds"):
        fine(agree(nodes, 0, agreement))
    assert time.process_time() - began < 20


def test_rounds_of_all_runs_together(tmp_path):
    """New runs instead of more rounds."""
    nodes = several(tmp_path, plain(runs={"rounds": 4}))
    Run(nodes, without_secure()).exchange(0, MODEL, 2)
    with refused("runs.rounds = 4"):
        Run(nodes, without_secure())


def test_other_versions(tmp_path):
    """A version with a defect."""
    nodes = one_each(tmp_path)
    honest = Run(nodes, agreed=False).agreement
    for versions in ({}, {**honest.versions, "fedax": "0.1"}, {**honest.versions, "more": 1}):
        with refused("versions are others"):
            fine(agree(nodes, 0, dataclasses.replace(honest, versions=versions)))


def test_frozen_parts_of_another_digest(tmp_path):
    """Frozen numbers that are not those of the agreement; and what was refused is not kept."""
    nodes = one_each(tmp_path)
    table = config(task={"trainable": "w"})
    frozen = {"b": np.float32(3)}
    run = Run(nodes, config(), agreed=False)
    for digest, given in (("0" * 32, frozen), (digest_of(frozen), {"b": np.float32(4)}), ("0" * 32, None)):
        agreement = dataclasses.replace(run.agreement, config=table, frozen=digest)
        tensors = b"" if given is None else packed({"frozen": given})
        answer = agree(nodes, 0, agreement, tensors)
        assert "error" in answer.head
    assert not (nodes.state(0) / "frozen").exists() and not [*(nodes.state(0) / "agreements").iterdir()]


def test_refused_agreements_keep_nothing(tmp_path):
    """A disk that fills up with what a node has refused."""
    nodes = one_each(tmp_path)
    run = Run(nodes, agreed=False)
    before = {path.name for path in nodes.state(0).rglob("*")}
    for changes in (
        {"weights": (1.0, 0.0, 0.0), "config": without_secure()},
        {"program": "0"},
        {"names": ("a", "b", "c")},
    ):
        with pytest.raises(Refused):
            fine(agree(nodes, 0, dataclasses.replace(run.agreement, **changes)))
    for text in ("", "{}", "[]", "null", "[" * 5000, '{"run": 1}', run.agreement.text[:-5]):
        with pytest.raises(Refused):
            fine(agree(nodes, 0, text))
    assert {path.name for path in nodes.state(0).rglob("*")} - before <= {"log.jsonl", "key"}


@pytest.mark.parametrize("name", ["method", "task", "privacy"])
def test_configurations_with_code(tmp_path, name):
    """A file of the server's choice, or of the node's, is run as a method."""
    allowed = {"methods": ["fedavg", "mine.py:Mine"], "tasks": ["linear_regression", "mine.py:Mine"]}
    nodes = one_each(tmp_path, policy=strict(runs=allowed))
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    run = Run(nodes, agreed=False)
    for place in ("mine.py", str(tmp_path / "mine.py"), "os"):
        table = config(**{name: {"name": f"{place}:Mine"}}, code={place: "0" * 64})
        answer = agree(nodes, 0, dataclasses.replace(run.agreement, config=table))
        assert "error" in answer.head or name == "privacy"
        assert not (tmp_path / "ran").exists()


def test_configurations_that_name_files(tmp_path):
    """A node reads a file of the server's choice, and quotes it: a clock's trace, a start, a folder of data."""
    nodes = one_each(tmp_path)
    secret = tmp_path / "patients.json"
    secret.write_text('{"Alice": 1}')
    for path in (secret, tmp_path / "none.json"):
        texts = []
        for more in (
            {"clock": {"trace": str(path)}},
            {"task": {"start": str(path)}},
            {"data": {"name": str(path)}},
            {"run": {"patience": {"column": str(path)}}},
            {"participation": {"kind": "trace", "trace": str(path)}},
        ):
            answer = agree(nodes, 0, told(nodes, config(**more)))
            texts.append(json.dumps(answer.head).replace(str(path), ""))
        assert "Alice" not in str(texts) and "No such file" not in str(texts), texts


ODD: list[Any] = [None, True, 0, -1, 1e308, float("nan"), "", "x" * 10_000, [], [[]], {}, {"name": {}}, [1, "a"]]


@pytest.mark.parametrize("section", ["method", "task", "work", "participation", "run", "privacy", "pace", "code"])
def test_configurations_of_odd_types(tmp_path, section):
    """Types that no file has, in each place: fixed words come back, and no other library's."""
    nodes = one_each(tmp_path)
    honest = Run(nodes, agreed=False).agreement
    for value in ODD:
        answer = agree(nodes, 0, dataclasses.replace(honest, config={**CONFIG, section: value}))
        assert not answer.tensors
        says_nothing(nodes, answer)
        if isinstance(CONFIG.get(section), dict):
            for name in CONFIG[section]:
                table = {**CONFIG, section: {**CONFIG[section], name: value}}
                says_nothing(nodes, agree(nodes, 0, dataclasses.replace(honest, config=table)))


def says_nothing(nodes: Federation, answer: Message) -> None:
    """That no cell, path or message of another library is in an answer."""
    text = json.dumps(answer.head)
    assert str(nodes.folder) not in text and "Traceback" not in text and "object has no attribute" not in text, text
    cells = {f"{each:.4g}" for clients in nodes.clients for rows in clients for each in rows["y"][:20].tolist()}
    assert not any(cell in text for cell in cells), text


# ---- questions


@pytest.mark.parametrize(
    "rows", [[0, 1], [2], [0, 0, 1], [], [0, 1, 2, 3], [-1, 0, 1], [True, 0, 2], [0.0, 1, 2], "012", None]
)
def test_rows_that_the_cohort_does_not_have(tmp_path, rows):
    """A subset of the cohort, others than it, or one twice."""
    nodes = several(tmp_path)
    run = Run(nodes, without_secure())
    size = len(rows) if isinstance(rows, list) else 3
    with refused("other clients are asked|not of its form"):
        run.exchange(0, MODEL, rows=rows, base=[0] * size, keep=[[]] * size)
    assert not nodes.lines(0)
    assert recovered(run.exchange(0, MODEL), own(nodes).mean(0), 4)


@pytest.mark.parametrize("guarded", [False, True])
def test_rows_that_are_left_out(tmp_path, guarded):
    """``out`` without a guard, or before the guard has looked."""
    nodes = several(tmp_path, plain(sums={"clients": 1}))
    run = Run(nodes, without_secure(run={"guard": True if guarded else None}))
    for out in ([0], [0, 1], [0, 1, 2, 0]):
        with refused("other clients are asked"):
            run.exchange(0, MODEL, out=out)
    assert not nodes.lines(0)


SCAFFOLD = {"name": "scaffold", "label": "scaffold", "lr": LR}


@pytest.mark.parametrize(
    "base", [[version_after("exchanges", 0, 0)], [10**6], [-1], [True], [0.0], ["0"], [], [0, 0], None]
)
def test_versions_of_memory_that_cannot_be(tmp_path, base):
    """Memory of the future, or none."""
    nodes = several(tmp_path, plain(sums={"clients": 1}), clients=1)
    run = Run(nodes, without_secure(method=SCAFFOLD))
    with refused("not of its form"):
        run.exchange(0, MODEL, base=base)


def test_memory_of_another_run(tmp_path):
    """A version that another run wrote."""
    nodes = several(tmp_path, plain(sums={"clients": 1}), clients=1)
    Run(nodes, without_secure(method=SCAFFOLD)).exchange(0, MODEL)
    other = Run(nodes, without_secure(method=SCAFFOLD))
    with refused("its memory is lost"):
        other.exchange(0, MODEL, 1, base=[version_after("exchanges", 0, 0)])


def test_keep_removes_no_memory_of_others(tmp_path):
    """Versions to keep that would remove those of other clients or runs; or that are no numbers."""
    nodes = several(tmp_path, plain(sums={"clients": 1}), clients=2)
    run, other = (Run(nodes, without_secure(method=SCAFFOLD)) for _ in range(2))
    other.exchange(0, MODEL)
    memory = nodes.state(0) / "memory"
    others = {path.parent for path in memory.rglob("*") if path.is_file()}
    run.exchange(0, MODEL)
    before = {path: path.read_bytes() for path in memory.rglob("*") if path.is_file()}
    assert len(before) == 4
    base = version_after("exchanges", 0, 0)
    for keep in ([[-1], ["../../x"]], [[True], [10**30]], [[None], [{}]]):
        with contextlib.suppress(Refused):
            run.exchange(0, MODEL, 1, base=[base, base], keep=keep)
    for path, content in before.items():
        assert path.read_bytes() == content
    fine(nodes.ask(0, {"kind": "forget", "agreement": run.digest}))
    assert {path.parent for path in memory.rglob("*") if path.is_file()} == others
    for name in ("..", "../agreements", "", "*", None, 7, ["a"]):
        with refused("not of its form"):
            fine(nodes.ask(0, {"kind": "forget", "agreement": name}))


NAMES: list[dict[str, Any]] = [
    {"round": 3}, {"round": -1}, {"round": 10**30}, {"round": True}, {"round": 0.0}, {"round": "0"}, {"exchange": 1},
    {"exchange": -1}, {"exchange": False}, {"exchange": "0"}, {"stage": "warmup"}, {"stage": "exchange"},
    {"stage": "__init__"}, {"stage": ["exchanges"]}, {"stage": "evaluation"}, {"stage": None}, {"agreement": "0" * 32},
    {"agreement": None}, {"agreement": "../" * 9}, {"agreement": ["a"]}, {"kind": "exchanges"}, {"kind": None},
    {"kind": ["exchange"]}, {"told": None}, {"told": []}, {"told": "rows"},
]  # fmt: skip


@pytest.mark.parametrize("change", NAMES, ids=str)
def test_an_exchange_has_one_name(tmp_path, change):
    """Under another name it would be answered again."""
    nodes = several(tmp_path)
    run = Run(nodes, without_secure())
    run.exchange(0, MODEL)
    tensors = packed({"download": run.download([9.0] * 4)})
    answer = nodes.ask(0, run.head(0) | change, tensors)
    assert not answer.tensors and answer.head.keys() & {"error", "repeated"}
    assert len(nodes.lines(0)) == 1
    says_nothing(nodes, answer)


def test_another_model_in_the_same_exchange(tmp_path):
    """The same name for another download, after a restart too."""
    nodes = several(tmp_path)
    run = Run(nodes, without_secure())
    first = run.exchange(0, MODEL)
    for again in (False, True):
        with refused("exchange 0 of round 0 .* was answered before, to another question"):
            run.exchange(0, [0.1, 0.2, 0.3, 0.4 + 1e-6])
        if not again:
            nodes.start(0)
    assert run.exchange(0, MODEL).tolist() == first.tolist()


def test_two_models_in_one_evaluation(tmp_path):
    """An evaluation of one round for two models; and in rounds without one."""
    nodes = several(tmp_path)
    run = Run(nodes, without_secure(run={"rounds": 5, "evaluate_every": 2}))
    run.evaluate(0, MODEL, 2)
    with refused("evaluation after round 2 .* was answered before"):
        run.evaluate(0, [0.0] * 4, 2)
    for index in (1, 3, 6, -1, 10**12, True, "0", None):
        with refused("not of its form"):
            run.evaluate(0, MODEL, index)
    for index in (0, 4, 5):
        run.evaluate(0, MODEL, index)
    assert len(nodes.lines(0)) == 4


def test_each_round_with_an_evaluation_counts(tmp_path):
    """``evaluate_every = 1``: as many questions as the owner allows."""
    nodes = several(tmp_path, plain(messages={"total": 10, "daily": 10}))
    run = Run(nodes, without_secure(run={"rounds": 50, "evaluate_every": 1}))
    found = sums(
        lambda k: np.array(run.evaluate(0, MODEL, k)["['train'][0]"]), 50, "messages.total = 10|messages.daily"
    )
    assert len(found) == 10


@pytest.mark.parametrize("told", [{}, {"session": 1}, {"session": 1, "offers": {}}, {"session": True}, {"session": -1}])
def test_a_secure_sum_asked_as_a_plain_one(tmp_path, told):
    """The sum of a run with secure sums, without masks."""
    nodes = one_each(tmp_path)
    run = Run(nodes)
    answer = nodes.ask(0, run.head(0, **told), packed({"download": run.download(MODEL)}))
    assert not answer.tensors and (answer.head.get("lost") or "error" in answer.head)
    answer = nodes.ask(0, run.of_evaluation(told=told), run.model(MODEL))
    assert not answer.tensors and (answer.head.get("lost") or "error" in answer.head)
    assert not nodes.lines(0)


def test_two_models_in_one_session(tmp_path, monkeypatch):
    """Two sums under one mask have their difference."""
    nodes = one_each(tmp_path)
    run = Run(nodes)
    run.secure(MODEL, session=5)
    with refused("in another way|in another message|to another question"):
        run.secure([0.0] * 4, session=5)
    # What the node masked goes again, and only for the very same message.
    with refused("another|roster|question"):
        run.secure(MODEL, session=6, download=packed({"download": run.download([1.0] * 4)}))


def test_joined_messages(tmp_path):
    """Messages in messages, without an end; each part of one counts."""
    nodes = several(tmp_path, plain(messages={"total": 2, "daily": 2}))
    run = Run(nodes, without_secure(run={"rounds": 3, "evaluate_every": 1}))
    parts = [Message(run.of_evaluation(k), run.model(MODEL)) for k in range(3)]
    answer = nodes.ask(0, *joined(parts))
    heads = [part["head"] for part in answer.head["parts"]]
    assert ["error" in head for head in heads] == [False, False, True] and "messages" in heads[2]["error"]
    answer = nodes.ask(0, nested(9).head)
    assert "not of its form" in json.dumps(answer.head) and len(json.dumps(answer.head)) < 10_000


def nested(deep: int) -> Message:
    message = Message({"kind": "hello"})
    for _ in range(deep):
        message = joined([message, Message({"kind": "hello"})])
    return message


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 3e38])
def test_models_that_are_no_numbers(tmp_path, number):
    """Figures of such a model are the bound, with noise; sums are no numbers, and tell nothing."""
    nodes = one_each(tmp_path)
    run = Run(nodes)
    with contextlib.suppress(Refused):
        assert nobody(nodes, run.secure([number, *MODEL[1:]]))
    try:
        assert np.isfinite(run.figures([number, *MODEL[1:]])).all()  # Σ p · bound, and noise
    except Refused as error:
        assert "it failed" in str(error) and not np.isfinite(number)
    node = several(other(tmp_path))
    with contextlib.suppress(Refused):
        assert nobody(node, Run(node, without_secure()).exchange(0, [number, *MODEL[1:]]))


def test_tensors_of_another_form(tmp_path):
    """Tensors that are none, too many, or of another shape: nothing is computed."""
    nodes = several(tmp_path)
    run = Run(nodes, without_secure())
    good = safetensors.numpy.load(packed({"download": run.download(MODEL)}))
    name = next(name for name in good if good[name].ndim)
    for tensors in (
        b"", b"\xff" * 100, safetensors.numpy.save({**good, "more": np.zeros(1)}),
        safetensors.numpy.save({**good, name: np.zeros(FEATURES + 1, np.float32)}),
        safetensors.numpy.save({**good, name: np.zeros(FEATURES, np.float64)}),
        (2**62).to_bytes(8, "little") + b"{}",
    ):  # fmt: skip
        answer = nodes.ask(0, run.head(0), tensors)
        assert "error" in answer.head and not answer.tensors
        says_nothing(nodes, answer)
    assert not nodes.lines(0)


# ---- noise


def noised(folder: pathlib.Path, clients: Any = None, **changes: Any) -> Federation:
    """One node with one client, whose figures have noise; without secure sums."""
    policy = strict(secure=None, **changes)
    return Federation(folder, [[rows_of(80, 1)] if clients is None else clients], policy)


def loss_of(rows: evil.Rows, model: Any = MODEL, bound: float = 3.0) -> float:
    each = (rows["x"] @ np.array(model[1:]) + model[0] - rows["y"]) ** 2
    return float(np.clip(each, 0, bound).mean())


def test_one_evaluation_under_many_agreements(tmp_path):
    """Noise that is averaged away: each agreement draws its own, and each counts."""
    nodes = noised(tmp_path, budget={"epsilon": 1.0})
    found = []
    with refused("budget.epsilon = 1"):
        for k in range(100):
            found.append(float(Run(nodes, without_secure(), run=k).evaluate(0, MODEL)["['train'][0]"]))
    truth, reach = loss_of(nodes.clients[0][0]), 3.0 / 80
    assert len({*found}) == len(found) > 3
    z = (np.array(found) - truth) / (20 * reach)
    assert scipy.stats.kstest(z, "norm").pvalue > here.SURE
    # The mean tells less of one row than ε = 1, δ = 1e-5: by numerics of our own (Balle and Wang 2018).
    mu, phi = np.sqrt(len(found)) / 20, scipy.stats.norm.cdf
    assert phi(-1 / mu + mu / 2) - np.e * phi(-1 / mu - mu / 2) <= 1e-5
    assert 20 * reach / np.sqrt(len(found)) > 2 * reach  # a row is far below the noise of the mean


def test_the_owner_changes_the_noise_between_two_questions(tmp_path):
    """One draw at two scales shows the figure: 2 a − b."""
    nodes = noised(tmp_path)
    runs = [Run(nodes, without_secure()) for _ in range(5)]  # by chance it is right in one of a hundred
    firsts = [float(run.evaluate(0, MODEL)["['train'][0]"]) for run in runs]
    for noise in (40.0, 10.0, 20.000001):
        nodes.start(0, policy=strict(secure=None, figures={"noise": noise}))
        right = []
        for run, first in zip(runs, firsts, strict=True):
            with refused("was answered before, to another question"):
                run.evaluate(0, MODEL)
            nearest = Run(nodes, without_secure())
            second = float(nearest.evaluate(0, MODEL)["['train'][0]"])
            found = (noise * first - 20 * second) / (noise - 20)
            right.append(recovered(found, [loss_of(nodes.clients[0][0])]))
        assert not all(right), noise
    nodes.start(0, policy=strict(secure=None))
    assert [float(run.evaluate(0, MODEL)["['train'][0]"]) for run in runs] == firsts


def test_one_row_is_added_between_two_questions(tmp_path):
    """The same question before and after: with the same noise, the difference would be the row."""
    row, away = loss_of(rows_of(1, 9)), []
    for k in range(6):  # by chance the difference is as near in one of forty
        (tmp_path / str(k)).mkdir()
        nodes = noised(tmp_path / str(k))
        rows = nodes.clients[0][0]
        more = {name: np.concatenate([each, rows_of(1, 9)[name]]) for name, each in rows.items()}
        run = Run(nodes, without_secure())
        first = float(run.evaluate(0, MODEL)["['train'][0]"])
        nodes.start(0, [more])
        with refused("others than when the run began"):
            run.evaluate(0, MODEL)
        again = Run(nodes, without_secure(), run=run.agreement.run)
        second = float(again.evaluate(0, MODEL)["['train'][0]"])
        away.append(abs((81 * second - 80 * first) - row))
        assert len(nodes.lines(0)) == 2
    assert max(away) > 3.0  # more than any row's loss
    # Of as many rows, one is another: the same text is the same agreement, which began with other rows.
    nodes.start(0, [{name: np.concatenate([each[:-1], rows_of(1, 9)[name]]) for name, each in rows.items()}])
    for ask in (lambda: fine(agree(nodes, 0, run.agreement)), lambda: run.evaluate(0, MODEL, 3)):
        with refused("others than when the run began"):
            ask()
    nodes.start(0, [rows])
    assert float(run.evaluate(0, MODEL)["['train'][0]"]) == first


def test_memory_is_exchanged_under_an_answer_with_noise(tmp_path):
    """An exchange without an upload writes the memory anew: the same question again would have the same noise."""
    policy = strict(secure=None, figures={"columns": ["train_loss"]}, updates={"clip": 50.0, "noise": 4.0})
    del policy["runs"]["methods"]
    nodes = Federation(tmp_path, [[rows_of(80, 1)]], policy)
    run = Run(nodes, without_secure(method={"name": "vrl-sgd", "label": "vrl-sgd"}))
    wrote = [version_after("exchanges", 0, number) for number in (0, 1)]
    run.exchange(0, MODEL)

    def listen(model: list[float]) -> None:
        head = run.head(0, 0, 1, base=[wrote[0]])
        fine(nodes.ask(0, head, packed({"download": run.download(model)})))

    def ask() -> np.ndarray:
        return run.exchange(0, MODEL, 1, base=[wrote[1]], keep=[[wrote[0]]])

    listen([0.0] * 4)
    first = ask()
    listen([9.0] * 4)
    with refused("was answered before, to another question"):
        ask()
    listen([0.0] * 4)
    assert ask().tolist() == first.tolist()


# ---- secure sums


def test_two_sets_of_nodes_for_one_model(tmp_path):
    """A sum over four nodes and one over three, in two rounds or two runs: their difference is one node's."""
    nodes = one_each(tmp_path, 4)
    table = config(run={"secure": {"clip": evil.CLIP, "threshold": 3}})
    run = Run(nodes, table)
    whole = run.secure(MODEL, 0, threshold=3)
    assert recovered(whole, own(nodes).mean(0), 4)
    with refused("secure.nodes = 2.*difference"):
        run.secure(MODEL, 1, survivors=[0, 1, 2], threshold=3)
    with refused("secure.nodes = 2.*difference"):
        run.secure(MODEL, 2, over=[0, 1, 2], threshold=3)
    with refused("secure.nodes = 2.*difference"):
        Run(nodes, table).secure(MODEL, 0, over=[0, 1, 2], threshold=3)
    assert recovered(Run(nodes, table).secure(MODEL, 1, threshold=3), own(nodes).mean(0), 4)  # the same again


@pytest.mark.parametrize(("over", "threshold"), [([0, 1], 2), ([0], 1), ([0, 1, 2], 2), ([0, 1, 2], 1), ([0, 1, 2], 4)])
def test_sums_over_too_few_nodes(tmp_path, over, threshold):
    """Over two nodes, or one, or with a threshold that two with the server reach."""
    nodes = one_each(tmp_path)
    with refused("secure.nodes = 2|secure.colluding|nodes are to stay|roster"):
        Run(nodes).secure(MODEL, over=over, threshold=threshold)


def test_survivors_that_are_too_few(tmp_path):
    """All are asked, and one alone is summed."""
    nodes = one_each(tmp_path)
    run = Run(nodes)
    for survivors in ([0, 1], [0]):
        with refused("secure.nodes = 2|have to stay|wants 2 others"):
            run.secure(MODEL, survivors=survivors)
    assert recovered(run.secure(MODEL), own(nodes).mean(0), 4)


def test_nodes_of_the_server(tmp_path):
    """Others that the server has made up, whose sums it knows."""
    nodes, mine = one_each(tmp_path), one_each(other(tmp_path))
    run, made = Run(nodes), Run(mine)
    run.keys = {0: run.keys[0], 1: made.keys[1], 2: made.keys[2]}
    with refused("roster|not known|no node|key"):
        run.secure(MODEL)


def test_two_agreements_in_one_sum(tmp_path):
    """Others are told of another run, in which they do next to nothing."""
    nodes = one_each(tmp_path)
    run, idle = Run(nodes), Run(nodes, config(method={"lr": 1e-12}))
    ask = nodes.ask

    def twisted(k: int, head: Any, tensors: bytes = b"") -> Message:
        return ask(k, head if k == 0 else head | {"agreement": idle.digest}, tensors)

    nodes.ask = twisted  # type: ignore[method-assign]
    with refused("another question|is not from it|roster"):
        run.secure(MODEL)


def test_a_restart_between_any_two_messages(tmp_path):
    """A node that was started again has no secrets of the sum, and masks nothing by old ones."""
    nodes = one_each(tmp_path)
    run, ask, model = Run(nodes), nodes.ask, MODEL
    outcomes = []
    for stop in range(13):
        left = [stop]

        def restarting(k: int, head: Any, tensors: bytes = b"", left: list[int] = left) -> Message:
            left[0] -= 1
            if left[0] == 0:
                nodes.start(k)
            return ask(k, head, tensors)

        nodes.ask = restarting  # type: ignore[method-assign]
        try:
            total = run.secure(model)
            assert recovered(total, own(nodes).mean(0), 4)
            outcomes.append("sum")
        except Refused as error:
            assert re.search("lost|adds|another", str(error)), error
            outcomes.append("lost")
    assert {*outcomes} == {"sum", "lost"}
    assert len([line for line in nodes.lines(0) if line["name"].startswith("exchange")]) == 1


# ---- figures


def test_figures_of_nodes_are_sums_with_noise(tmp_path):
    """Figures of one node, and of one row."""
    nodes = one_each(tmp_path)
    run = Run(nodes)
    found = run.figures(MODEL)
    truth = [loss_of(rows) for (rows,) in nodes.clients]
    reach = sum((20 * 3.0 / len(rows["y"]) / 3) ** 2 for (rows,) in nodes.clients) ** 0.5
    assert 0 < abs(found[0] - np.mean(truth)) < 5 * reach
    assert [line.get("loss") for line in nodes.lines(0) if line["name"].startswith("evaluation")] == [1 / 400]


@pytest.mark.parametrize("bits", [14, 6])
def test_a_histogram_that_is_the_rows(tmp_path, bits):
    """AUC over 60 held-out rows, with 2^14 bins: each row's score."""
    rng = np.random.default_rng(0)

    def rows(n: int) -> evil.Rows:
        return {"x": rng.normal(size=(n, FEATURES)).astype(np.float32), "y": rng.integers(0, 2, n).astype(np.int32)}

    columns = ["train_loss", "test_loss", "test_error", "test_accuracy", "test_auc"]
    policy = plain(sums={"clients": 1}, figures={"columns": columns, "bits": 6})
    table = without_secure(
        task={"name": "logistic_regression", "bias": True}, run={"metrics": [{"name": "auc", "bits": bits}]}
    )
    for k, rules in enumerate((policy, strict())):
        (tmp_path / f"{k}").mkdir()
        nodes = Federation(tmp_path / f"{k}", [[rows(60)]], rules, test=rows(60))
        with contextlib.suppress(fedax.ConfigError):
            try:
                run = Run(nodes, table, parts=("test",))
            except Refused as error:
                assert re.search("figures.bits = 6|figures.columns|secure.nodes", str(error))
                assert bits > 6 or k == 1
                continue
            assert bits <= 6 and k == 0
            counts = run.evaluate(0, MODEL)
            assert max(leaf.size for leaf in counts.values()) <= 2 * 2**6


def test_a_gradient_is_an_update(tmp_path):
    """The gradient of an evaluation over all clients, minus the sum of updates over all but one."""
    columns = {"columns": ["train_loss", "grad_norm_sq"]}
    nodes = several(tmp_path, plain(figures=columns, work={"steps": 1}))
    with refused("sums.clients = 2.*grad_norm"):
        Run(nodes, without_secure(run={"grad_norm": True}, work={"steps": 1}))
    one = several(other(tmp_path), plain(sums={"clients": 1}, figures=columns), clients=1)
    with refused("work.steps = 5"):  # a gradient is an update of one step
        Run(one, without_secure(run={"grad_norm": True}))
    with refused("figures.columns"):
        Run(one_each(other(tmp_path / "other")), config(run={"grad_norm": True}))


@pytest.mark.parametrize("share", [0.01, 0.1, 0.4])
def test_figures_of_few_held_out_rows(tmp_path, share):
    """A split that holds out few rows, whose loss is then theirs alone."""
    nodes = several(tmp_path, plain(sums={"clients": 1}), clients=1, n=100)
    split = {"train": 1 - share, "val": 0.0, "test": share, "stratify": False, "seed": 0}
    table = without_secure(run={"metrics": []})
    try:
        run = Run(nodes, table, split=split, parts=("test",))
    except Refused as error:
        assert "figures.columns" in str(error)  # the task's own metrics
        return
    with refused("sums.examples = 50.*held-out"):
        run.evaluate(0, MODEL)
    assert not nodes.lines(0)


@pytest.mark.parametrize("kind", ["clients", "alone"])
def test_tables_of_clients(tmp_path, kind):
    """Figures of each client, of a model of the server's choice."""
    split = {"train": 0.5, "val": 0.0, "test": 0.5, "stratify": False, "seed": 0}
    rows = [rows_of(200, k) for k in range(3)]
    for name, clients, policy, table, text in (
        ("strict", [[each] for each in rows], strict(), config(), "secure sums"),
        ("several", [rows], plain(), without_secure(), "sums.single"),
        ("noise", [rows[:1]], strict(secure=None), without_secure(), "figures.noise"),
    ):
        (tmp_path / name).mkdir()
        nodes = Federation(tmp_path / name, clients, policy)
        run = Run(nodes, table, split=split)
        answer = nodes.ask(0, {"kind": kind, "agreement": run.digest}, run.model(MODEL))
        assert not answer.tensors and text in answer.head["withheld"]


# ---- errors


def test_labels_that_do_not_fit(tmp_path):
    """A task that the labels do not fit: which labels there are is not said."""
    rng = np.random.default_rng(3)
    rows = {
        "x": rng.normal(size=(80, FEATURES)).astype(np.float32),
        "y": rng.choice([4711, 12, 8713], 80).astype(np.int32),
    }
    nodes = Federation(tmp_path, [[rows]], {})
    base = Run(Federation(other(tmp_path), [[rows_of(80, 1)]], {}), without_secure(), agreed=False).agreement
    base = dataclasses.replace(base, names=("n0c0",), sizes=(80,))
    for task in ("logistic_regression", "softmax_regression", "linear_regression"):
        for classes in (2, 3, 5000):
            section = {"name": task, "features": FEATURES} | ({"classes": classes} if "soft" in task else {})
            answer = agree(nodes, 0, dataclasses.replace(base, config={**without_secure(), "task": section}))
            text = json.dumps(answer.head)
            assert not re.search("4711|8713", text), text


def other(folder: pathlib.Path) -> pathlib.Path:
    found = folder / "other"
    found.mkdir()
    return found


BAD: list[tuple[str, Callable[[evil.Rows], evil.Rows]]] = [
    ("not finite", lambda rows: {**rows, "y": np.where(np.arange(len(rows["y"])) == 7, np.nan, rows["y"])}),
    ("another type", lambda rows: {**rows, "y": (rows["y"] * 1000).astype(np.int64)}),
    ("another shape", lambda rows: {**rows, "x": rows["x"][:, :2]}),
    ("no labels", lambda rows: {"x": rows["x"]}),
    ("more", lambda rows: {**rows, "z": np.arange(len(rows["y"]))}),
    ("huge", lambda rows: {**rows, "y": rows["y"] * np.float32(1e35)}),
]


@pytest.mark.parametrize(("name", "spoil"), BAD, ids=[name for name, _ in BAD])
def test_data_that_do_not_fit(tmp_path, name, spoil):
    """Whatever is wrong with a node's data, the server gets fixed words."""
    good = one_each(other(tmp_path), policy={})
    run = Run(good, without_secure(), agreed=False)
    bad = spoil(rows_of(80, 1))
    try:
        nodes = Federation(tmp_path, [[bad]], {})
    except (fedax.DataError, fedax.ConfigError):
        return  # the owner is told, before the node starts
    agreement = dataclasses.replace(run.agreement, names=("n0c0",), sizes=(80,))
    answers = [agree(nodes, 0, agreement)]
    head = run.head(0) | {"agreement": agreement.digest}
    answers.append(nodes.ask(0, head, packed({"download": run.download(MODEL)})))
    for answer in answers:
        text = json.dumps(answer.head)
        cells = {str(each) for array in bad.values() for each in np.asarray(array).ravel()[:50].tolist()}
        assert not any(cell in text for cell in cells if len(cell) > 4), text
        assert str(tmp_path) not in text


# ---- the disk


def full(monkeypatch: Any, which: str, times: int = 10**9) -> None:
    """A disk on which nothing can be written any more, for a while."""
    left = [times]
    real = getattr(os, which)

    def failing(*given: Any, **more: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(28, "No space left on device")
        return real(*given, **more)

    monkeypatch.setattr(os, which, failing)


def test_a_disk_that_is_full(tmp_path, monkeypatch):
    """An answer without a line would be given again, for another question."""
    nodes = several(tmp_path)
    run = Run(nodes, without_secure())
    run.exchange(0, MODEL)
    before = (nodes.state(0) / answered.FILE).read_bytes()
    for head, tensors in (
        (run.of_evaluation(), run.model(MODEL)),
        (run.head(0, 1), packed({"download": run.download(MODEL)})),
    ):
        with monkeypatch.context() as patch:
            full(patch, "fsync")
            answer = nodes.ask(0, head, tensors)
        assert "cannot write its record" in answer.head["error"] and not answer.tensors
        assert (nodes.state(0) / answered.FILE).read_bytes() == before
    run.evaluate(0, [0.0] * 4)
    assert (nodes.state(0) / answered.FILE).read_bytes().startswith(before) and len(nodes.lines(0)) == 2


def test_a_torn_line_that_cannot_be_removed(tmp_path, monkeypatch):
    """Half a line stays behind: the next one is whole, and all are read when the node starts again."""
    nodes = several(tmp_path)
    run = Run(nodes, without_secure())
    run.exchange(0, MODEL)
    with monkeypatch.context() as patch:
        full(patch, "fsync")
        full(patch, "truncate")
        with refused("cannot write its record"):
            run.evaluate(0, MODEL)
    path = nodes.state(0) / answered.FILE
    assert len(nodes.lines(0)) == 2  # the line of an answer that has not left
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 9)
    run.evaluate(0, [0.0] * 4)
    assert len(nodes.lines(0)) == 2
    nodes.start(0)
    with refused("was answered before"):
        run.evaluate(0, MODEL)
    with refused("was answered before"):
        run.exchange(0, [0.0] * 4)


def test_a_torn_tail(tmp_path, capsys):
    """The process died within a line: it is removed, and the owner is told; the lines before it hold."""
    nodes = several(tmp_path)
    run = Run(nodes, without_secure())
    run.exchange(0, MODEL)
    with (nodes.state(0) / answered.FILE).open("ab") as file:
        file.write(b'{"name": "exchange 0 of round 1')
    nodes.start(0)
    assert "not written whole" in capsys.readouterr().out
    with refused("was answered before"):
        run.exchange(0, [0.0] * 4)
    assert len(nodes.lines(0)) == 1


def test_a_log_that_cannot_be_written(tmp_path, monkeypatch):
    """What the owner cannot read in the log has not left."""
    nodes = several(tmp_path)
    run = Run(nodes, without_secure())
    path = nodes.state(0) / "log.jsonl"
    path.unlink()
    path.mkdir()
    answer = nodes.ask(0, run.head(0), packed({"download": run.download(MODEL)}))
    assert "error" in answer.head and not answer.tensors
    path.rmdir()
    assert recovered(run.exchange(0, MODEL), own(nodes).mean(0), 4)


# ---- random attacks


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    return evil.Oracle(tmp_path_factory.mktemp("oracle"))


@hypothesis.settings(max_examples=300, deadline=None, phases=[hypothesis.Phase.generate], derandomize=True)
@hypothesis.given(st.integers(0, 2**64))
def test_random_agreements_and_questions(oracle, number):
    """Whatever is agreed on and asked: ``python -m tests.fuzz attack 100000`` asks more."""
    oracle.attack(random.Random(number))


def test_random_attacks_are_answered(oracle):
    """That the last test was of answers, too; ``random.Random`` finds other ones than hypothesis."""
    for k in range(60):
        oracle.attack(random.Random(k))
    assert oracle.answers > oracle.asked / 20 and len(oracle.told) > 3


# ---- what is not held, as docs/deploy.md says


def test_not_held_other_weights_for_models_that_are_nearly_the_same(tmp_path):
    """Three weightings of nodes, for three models that differ by 1e-6: only noise would hold that."""
    nodes = one_each(tmp_path)
    models = [[MODEL[0] + 1e-6 * k, *MODEL[1:]] for k in range(3)]
    found = [Run(nodes, weights=tuple(THIRDS[k])).secure(models[k]) for k in range(3)]
    assert recovered(combinations(found, THIRDS)[0], own(nodes)[0], 4)


def test_not_held_one_row_added_without_noise(tmp_path):
    """The same run before and after a row is added shows what the row changes."""
    nodes = several(tmp_path, plain(sums={"clients": 1}), clients=1, n=80)
    old = own(nodes)[0]
    first = Run(nodes, without_secure()).exchange(0, MODEL)
    more = {name: np.concatenate([each, rows_of(1, 9)[name]]) for name, each in nodes.clients[0][0].items()}
    nodes.start(0, [more])
    second = Run(nodes, without_secure()).exchange(0, MODEL)
    assert recovered(second - first, own(nodes)[0] - old, 2)
