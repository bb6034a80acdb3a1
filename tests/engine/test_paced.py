"""A server at real nodes that does not wait: the simulation of what it recorded has the same numbers."""

import dataclasses
import itertools
import pathlib
from typing import Any

import jax
import numpy as np
import pytest

import fedax
from fedax.engine.places import fleet as fleets
from fedax.engine.places import paced
from fedax.engine.places.questions import Problem
from fedax.wire.compressed import Compression

from . import here
from .here import Timed
from .places import TEST
from .problem import DATA, LR, TASK, UNEQUAL

WHERE = [[0], [3, 1], [4, 2]]  # the first is ten times slower
SLOW = {7: 1.0, 8: 0.1, 9: 0.13}
ROUNDS = 12
OPTIONS: dict[str, Any] = {"rounds": ROUNDS, "work": UNEQUAL, "batch_size": 2, "seed": 3, "test": TEST}
COLUMNS = (
    "train_loss",
    "test_loss",
    "clients",
    "bytes_down",
    "bytes_up",
    "time",
    "staleness",
    "staleness_max",
    "dropped",
)
UNIFORM, IDLE = fedax.Async(4, 2), fedax.Async(4, 2, start="idle")


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(fleets, "_PAUSE", 0.0)


@pytest.fixture
def ends(monkeypatch) -> list[paced.Paced]:
    """The programs of runs that are over; nodes keep their memory."""
    found: list[paced.Paced] = []
    monkeypatch.setattr(paced.Paced, "forget", lambda self: found.append(self))
    return found


def takes() -> Any:
    """Seconds of an answer, other ones each time."""
    noise = itertools.cycle([1.0, 1.3, 0.9, 1.1, 0.7])
    return lambda number, message: SLOW[number] * next(noise)


def transport(method: Any, monkeypatch: Any, sites: Any = None, timed: Any = None, **options: Any) -> Timed:
    """The nodes, whose time is that of the server."""
    problem = Problem(method, TASK, here.wire_of(**options), Compression.of(options.get("compress")).up)
    at = Timed(sites or here.sites(DATA, WHERE, problem), timed or takes())
    monkeypatch.setattr(paced, "_now", lambda: at.now)
    return at


def run(method: Any, at: Timed, folder: pathlib.Path, **options: Any) -> fedax.Run:
    given = OPTIONS | {"evaluate_every": 4, "timeout": 50.0} | options
    return here.trained(method, TASK, DATA, at, checkpoint=folder, **given)


def replayed(method: Any, folder: pathlib.Path, **options: Any) -> fedax.Run:
    """The simulation of what was recorded."""
    clock = fedax.Clock.from_csv(folder / "arrivals.csv")
    return fedax.simulate(method, TASK, DATA, clock=clock, **OPTIONS | {"evaluate_every": 4} | options)


def alike(got: fedax.Run, want: fedax.Run) -> None:
    for column in COLUMNS:
        np.testing.assert_allclose(got.history[column], want.history[column], 1e-5, 1e-6, err_msg=column)
    for x, y in zip(jax.tree.leaves(got.params), jax.tree.leaves(want.params), strict=True):
        np.testing.assert_allclose(x, y, 1e-5, 1e-6)


CASES: dict[str, tuple[str, fedax.Async, dict[str, Any]]] = {
    "fedavg": ("fedavg", UNIFORM, {}),
    "fedbuff": ("fedbuff", fedax.Async(5, 3), {"work": fedax.RandomEpochs(1, 3)}),
    "grace": ("fedbuff", dataclasses.replace(IDLE, grace=0.3), {}),
    "ca2fl": ("ca2fl", IDLE, {}),
    "scaffold": ("scaffold", fedax.Async(5, 2, start="idle"), {}),
    "fedasync": ("fedasync", fedax.Async(3, 1), {}),
    "thrown away": ("fedavg", dataclasses.replace(IDLE, max_staleness=1), {}),
    "compressed": (
        "fedavg",
        IDLE,
        {"compress": {"up": fedax.ErrorFeedback(fedax.TopK(0.5)), "down": fedax.QSGD(8)}},
    ),
    "a guard": ("fedavg", UNIFORM, {"guard": True, "faults": fedax.Faults([4], sends=np.nan)}),
    "a median": ("fedavg", fedax.Async(5, 3), {"aggregate": fedax.CoordinateMedian()}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_simulation_of_its_arrivals_has_the_same_numbers(name, tmp_path, monkeypatch, ends):
    method, pace, options = CASES[name]
    method = fedax.create(method, lr=LR)
    at = transport(method, monkeypatch, **options)
    got = run(method, at, tmp_path, pace=pace, **options)
    want = replayed(method, tmp_path, pace=pace, **options)
    alike(got, want)
    assert got.history["staleness_max"][-1] >= 1 and (name != "thrown away" or got.history["dropped"][-1] > 0)
    assert got.left_out == want.left_out and (name != "a guard" or set(got.left_out) == {4})
    schedule = ends[-1]._schedule  # in a simulation those that are under way have the memory of the end of their work
    still = {schedule.clients[job] for job in schedule.under_way if schedule.versions[job] < ROUNDS}
    rest = [i for i in range(DATA.num_clients) if i not in still]
    if "compress" not in options:  # else there is that of the layers, too
        for x, y in zip(*(jax.tree.leaves(each) for each in (here.memory_of(got, at), want.memory)), strict=True):
            np.testing.assert_allclose(x[rest], np.asarray(y)[rest], 1e-5, 1e-6)
