"""A server that does not wait, over real processes: one node is ten times slower, goes away, and is killed."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs pip install 'fedax[deploy]'")

from tests import long
from tests.experiments import run_cli

from .federation import PLACES, SOON, Federation, assert_replayed, is_running, rows_of, slowed, wait_for

CONFIG = """
data = {name = "digits", clients = 4, partition = "dirichlet", alpha = 0.5}
work = {kind = "random-epochs", low = 1, high = 2}
pace = {concurrency = 3, buffer = 2, start = "idle"}
run = {rounds = 10, batch_size = 16, seeds = 1, evaluate_every = 5}
methods = [{name = "ca2fl", lr = 0.1}, {name = "fedbuff", lr = 0.1}]
"""
QUICK, SLOW = 0.5, 5.0  # seconds


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    made = Federation(tmp_path_factory.mktemp("paced"), CONFIG)
    try:
        made.start_link()
        for name in PLACES:
            made.start_node(name, variables=variables(made, name))
        wait_for(lambda: all("this is node" in made.output(name) for name in PLACES))
        yield made
    finally:
        ends = made.end()
    assert not any(ends.values()), {name: made.output(name)[-500:] for name in ends if ends[name]}


def variables(federation: Federation, name: str) -> dict[str, str]:
    return slowed(federation.folder, SLOW if name == "n0" else QUICK)


def clients_of(lines: list[str]) -> list[str]:
    return [line.split(",")[1] for line in lines]


@long
def test_it_is_the_simulation_of_its_arrivals(federation: Federation) -> None:
    out = federation.folder / "whole"
    result = run_cli("deploy", *federation.arguments(out))
    assert result.exit_code == 0, result.output
    lines = assert_replayed(federation, out)
    each = [clients_of(lines).count(name) for name in "0123"]
    assert each[0] < min(each[1], each[2] + each[3])  # the slow node's client
    assert max(row["staleness_max"] for row in rows_of(out)) >= 2


@long
def test_a_node_that_goes_away_comes_back(federation: Federation) -> None:
    """What it was asked is asked again; the others go on meanwhile."""
    out = federation.folder / "away"
    command = federation.start_run(out, "--set=run.rounds=30", "--set=run.evaluate_every=30")
    wait_for(lambda: arrivals(out, "ca2fl") >= 4, 2 * SOON)
    federation.kill("n2")
    there = arrivals(out, "ca2fl")
    wait_for(lambda: arrivals(out, "ca2fl") >= there + 4, 2 * SOON)  # of the others
    federation.start_node("n2", variables=variables(federation, "n2"))
    assert command.wait(5 * SOON) == 0, federation.output("run")
    federation.config.write_text(CONFIG.replace("rounds = 10", "rounds = 30").replace("= 5}", "= 30}"))
    try:
        lines = assert_replayed(federation, out)
    finally:
        federation.config.write_text(CONFIG)
    assert {"2", "3"} <= {*clients_of(lines)[there + 4 :]}


def arrivals(out: Path, method: str) -> int:
    """How many answers are in the file of a run."""
    path = out / "arrivals" / f"{method}-seed0.csv"
    return len(path.read_text().splitlines()) - 1 if path.exists() else 0


@long
@pytest.mark.parametrize("what", ["server", "worker", "link"])
def test_killed_it_goes_on(federation: Federation, what: str) -> None:
    out = federation.folder / f"killed-{what}"
    command = federation.start_run(out)
    wait_for(lambda: arrivals(out, "ca2fl") >= 7, 2 * SOON)
    if what == "server":
        command.kill()
    elif what == "worker":
        os.kill(federation.worker("n0"), signal.SIGKILL)
    else:
        federation.kill("link")
        federation.start_link()
    for _ in range(3):
        if command.wait(4 * SOON) == 0:
            break
        time.sleep(1.0)
        command = federation.start_run(out, "--resume")
    assert command.wait(4 * SOON) == 0 and not is_running(command.pid), federation.output("run")
    assert_replayed(federation, out)
