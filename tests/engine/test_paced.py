"""A server at real nodes that does not wait: the simulation of what it recorded has the same numbers."""

import dataclasses
import itertools
import pathlib
from typing import Any

import jax
import numpy as np
import pytest

import fedax
from fedax.sites.protocol import fleet as fleets
from fedax.sites.protocol import paced
from fedax.sites.protocol import site as sites

from .. import long, mostly_long
from . import here
from .here import Timed
from .places import TEST
from .problem import DATA, LR, TASK, UNEQUAL

WHERE = [[3], [4, 1], [2, 0]]  # the first is ten times slower; the others have arrays of the same shapes
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


def transport(monkeypatch: Any, sites: Any = None, timed: Any = None) -> Timed:
    """The nodes, whose time is that of the server."""
    at = Timed(sites or here.sites(DATA, WHERE), timed or takes())
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
    """Where not all were heard in an evaluation, its loss is that of those who were."""
    missing = got.history["heard"] < 1
    for column in COLUMNS:
        if column == "train_loss":
            got.history[column][missing] = want.history[column][missing] = 0.0
        np.testing.assert_allclose(got.history[column], want.history[column], 1e-5, 1e-6, err_msg=column)
    for x, y in zip(jax.tree.leaves(got.params), jax.tree.leaves(want.params), strict=True):
        np.testing.assert_allclose(x, y, 1e-5, 1e-6)


CASES: dict[str, tuple[str, fedax.Async, dict[str, Any]]] = {
    "fedbuff": ("fedbuff", fedax.Async(5, 3), {"work": fedax.RandomEpochs(1, 3)}),
    "a grace": ("ca2fl", dataclasses.replace(IDLE, grace=0.3), {}),
    "a guard": ("fedavg", UNIFORM, {"guard": True, "faults": fedax.Faults([4], sends=np.nan)}),
    "compressed": (
        "fedavg",
        IDLE,
        {"compress": {"up": fedax.ErrorFeedback(fedax.TopK(0.5)), "down": fedax.QSGD(8)}},
    ),
    "scaffold": ("scaffold", fedax.Async(5, 2, start="idle"), {}),
    "fedasync": ("fedasync", fedax.Async(3, 1), {}),
    "thrown away": ("fedavg", dataclasses.replace(IDLE, max_staleness=1), {}),
    "a median": ("fedavg", fedax.Async(5, 3), {"aggregate": fedax.CoordinateMedian()}),
}
SHORT = ("fedbuff", "a grace", "a guard")


@pytest.mark.parametrize("name", mostly_long(CASES, *SHORT))
def test_the_simulation_of_its_arrivals_has_the_same_numbers(name, tmp_path, monkeypatch, ends):
    method, pace, options = CASES[name]
    method = fedax.create(method, lr=LR)
    at = transport(monkeypatch)
    got = run(method, at, tmp_path, pace=pace, **options)
    want = replayed(method, tmp_path, pace=pace, **options)
    assert (got.history["heard"] == 1).all()
    alike(got, want)
    assert got.history["staleness_max"][-1] >= 1 and (name != "thrown away" or got.history["dropped"][-1] > 0)
    assert got.left_out == want.left_out and (name != "a guard" or set(got.left_out) == {4})
    schedule = ends[-1]._schedule  # in a simulation those that are under way have the memory of the end of their work
    still = {schedule.clients[job] for job in schedule.under_way if schedule.versions[job] < ROUNDS}
    rest = [i for i in range(DATA.num_clients) if i not in still]
    if "compress" not in options:  # else there is that of the layers, too
        for x, y in zip(*(jax.tree.leaves(each) for each in (here.memory_of(got, at), want.memory)), strict=True):
            np.testing.assert_allclose(x[rest], np.asarray(y)[rest], 1e-5, 1e-6)


@pytest.mark.parametrize(
    "name, pace, grace, seed",
    [
        ("ca2fl", IDLE, 0.3, 0),
        ("ca2fl", IDLE, 0.1, 1),
        ("ca2fl", IDLE, 1.0, 2),
        ("fedbuff", UNIFORM, 0.1, 3),
        ("fedavg", dataclasses.replace(IDLE, max_staleness=1), 0.2, 4),
    ],
)
def test_who_starts_after_a_grace_has_the_model_of_its_end(name, pace, grace, seed, tmp_path, monkeypatch, ends):
    """The server learns that it is over from an answer that comes later, and that may make a step."""
    method, pace = fedax.create(name, lr=LR), dataclasses.replace(pace, grace=grace)
    rng = np.random.default_rng(seed)
    nodes = here.sites(DATA, [[4], [3, 0], [2, 1]])
    at = transport(monkeypatch, nodes, lambda number, message: SLOW[number] * rng.uniform(0.5, 2.0))
    asked, begin = [], paced.LiveEventQueue._begin

    def noted(self: paced.LiveEventQueue, job: int, client: int, now: float) -> None:
        asked.append(at.now > now + 1e-6)
        begin(self, job, client, now)

    monkeypatch.setattr(paced.LiveEventQueue, "_begin", noted)
    got = run(method, at, tmp_path, pace=pace)
    alike(got, replayed(method, tmp_path, pace=pace))
    assert sum(asked) >= 3  # of those who start it is known later than they start


class _Killed(BaseException):
    pass


@pytest.mark.parametrize(
    ("name", "kills"),  # at the first message after so many steps
    [("compressed", (2, 8)), *(pytest.param(name, (0, 2, 5, 8), marks=long) for name in ("compressed", "a grace"))],
    ids=str,
)
def test_a_run_whose_server_and_nodes_are_killed_goes_on(name, kills, tmp_path, monkeypatch, ends):
    """Whatever happened, what was recorded is the whole run; all clients' memory is that of their last answer."""
    method, pace, options = CASES[name]
    method, options = fedax.create(method, lr=LR), options | {"pace": pace, "evaluate_every": 3}
    at = transport(monkeypatch)
    begin, begun = paced.Paced._begin, []

    def noted(self: paced.Paced, state: Any, index: int) -> None:
        if not self._kept:
            begun.append((index, int((state.box["groups"] >= 0).sum())))
        begin(self, state, index)

    monkeypatch.setattr(paced.Paced, "_begin", noted)
    for kill in kills:

        def spy(number: int, message: Any, answer: Any, kill: int = kill) -> Any:
            steps = [int(path.name[6:15]) for path in tmp_path.glob("round-*")]
            if message.head["kind"] in ("exchange", "evaluate") and max(steps, default=0) >= kill:
                raise _Killed
            return answer

        at.spy = spy
        with pytest.raises(_Killed):
            run(method, at, tmp_path, **options)
        for number, site in at.sites.items():
            site.close()
            again = sites.Site(site.data, site._make, site.folder, site.names)
            at.sites[number] = again
    at.spy = None
    got = run(method, at, tmp_path, **options)
    missing = got.history["heard"] < 1  # a node that had been asked about another model of that step
    assert missing.sum() <= len(kills)
    alike(got, replayed(method, tmp_path, **options))
    rows = (tmp_path / "arrivals.csv").read_text().splitlines()[1:]
    assert len({row.split(",")[0] for row in rows}) == len(rows) >= ROUNDS * pace.buffer
    assert [index for index, _ in begun] == sorted(index for index, _ in begun) and begun[-1][0] >= 8
    assert max(groups for _, groups in begun) >= 2  # clients were under way with several older models


def test_a_node_that_goes_away_is_late(tmp_path, monkeypatch):
    method = fedax.create("scaffold", lr=LR)
    at = transport(monkeypatch)
    at.away = lambda number: number == 9 and 0.2 < at.now < 4.0
    got = run(method, at, tmp_path, pace=IDLE, rounds=60, evaluate_every=20, timeout=1.5)
    missing = got.history["heard"] < 1
    assert missing.any() and not missing[-1]
    alike(got, replayed(method, tmp_path, pace=IDLE, rounds=60, evaluate_every=20))
    rows = [row.split(",") for row in (tmp_path / "arrivals.csv").read_text().splitlines()[1:]]
    late = [float(row[4]) for row in rows if row[1] in ("2", "4")]
    assert max(late) > 3.5 and len(late) > 3  # it was away, and came back
    assert got.history["staleness_max"][-1] > 5


def test_no_answer_at_all_is_an_error(tmp_path, monkeypatch):
    method = fedax.create("fedbuff", lr=LR)
    at = transport(monkeypatch)
    at.away = lambda number: at.now > 1.0
    with pytest.raises(fedax.NodeError, match=r"in 2 s, in step \d+, of clients .*--resume"):
        run(method, at, tmp_path, pace=UNIFORM, timeout=2.0, rounds=100, evaluate_every=100)


def test_evaluations_do_not_hold_the_server_up(tmp_path, monkeypatch):
    """It goes on while the slow node answers, and rows are those of their round all the same."""
    method = fedax.create("fedavg", lr=LR)
    at = transport(monkeypatch)
    often, seldom = (
        run(method, at, tmp_path / str(every), pace=IDLE, evaluate_every=every, rounds=40) for every in (5, 40)
    )
    alike(often, replayed(method, tmp_path / "5", pace=IDLE, evaluate_every=5, rounds=40))
    assert often.history["time"][-1] < 2 * seldom.history["time"][-1]


def test_what_cannot_be_is_refused_before_nodes_are_asked(monkeypatch):
    method = fedax.create("fedavg", lr=LR)
    at = transport(monkeypatch)
    monkeypatch.setattr(at, "talk", None)
    corrected = dataclasses.replace(IDLE, weights="corrected")
    for pace, more, text in (
        (corrected, {}, "take a method that remembers"),
        (IDLE, {"secure": fedax.SecureSum(clip=1.0)}, "it sums a cohort"),
        (IDLE, {"participation": fedax.Uniform(2)}, "clients start as the pace says"),
        (fedax.Async(9, start="idle"), {}, "at most all 5 clients are under way"),
    ):
        with pytest.raises(fedax.ConfigError, match=text):
            here.trained(method, TASK, DATA, at, pace=pace, **OPTIONS | more)
    mime = fedax.create("mime", lr=LR)
    with pytest.raises(fedax.ConfigError, match="has several exchanges a round"):
        here.trained(mime, TASK, DATA, at, pace=IDLE, **OPTIONS)


def test_arrivals_that_are_lost_or_changed(tmp_path):
    path, names = tmp_path / "arrivals.csv", ["a", 'b,\u2028"c"']  # a sign at which str.splitlines ends a line
    trace = paced.ArrivalTrace(path, names)
    assert trace.restore((0, 0)) == []
    for number, client in ((1, 1), (0, 0), (2, 1)):
        trace.add(number, client, 0, 0.25, number + 0.5)
    place = trace.place
    trace.write()
    trace.add(3, 0, 1, 2.0, 0.5)  # after the checkpoint
    trace.write()
    again = paced.ArrivalTrace(path, names)
    assert again.restore(place) == [(1, 1.75), (0, 0.75), (2, 2.75)] and path.read_text().count("\n") == 4
    clock = fedax.Clock.from_csv(path)
    assert clock.latency.clients == {1: names[1], 0: "a", 2: names[1]}
    path.write_text(path.read_text().replace("0.25", "0.26"))
    with pytest.raises(fedax.CheckpointError, match="not the run's first 3 answers"):
        again.restore(place)
    path.unlink()
    with pytest.raises(fedax.CheckpointError, match="cannot be read"):
        again.restore(place)
