"""drive's parts: the clock of calls, the history and its costs, how a run ends."""

import math
import types

import numpy as np
import pytest

import fedax
from fedax.engine import drive
from fedax.engine.history import Costs, History, count, tail_of
from fedax.engine.loop import Counters, Exclusions
from fedax.engine.make import make_job

from .problem import DATA, TASK

TRAFFIC = (  # of the warm-up, and of a round
    [types.SimpleNamespace(down=5, up=7, one=False)],
    [types.SimpleNamespace(down=10, up=100, one=False), types.SimpleNamespace(down=1000, up=10000, one=True)],
)


def lane(until=None, **options):
    return drive.RunInProgress(make_job(fedax.create("fedavg", lr=0.05), TASK, DATA, rounds=4, until=until, **options))


def row(index=2, loss=1.0, left_out=0):
    return {"round": index, "train_loss": loss, "left_out": left_out, "bad_clients": [3]}


def test_the_clock_keeps_calls_to_two_seconds_once_it_knows_the_pace():
    clock = drive.CallLength(most=60)
    assert clock.end(0, 100) == 1
    clock.took(0.1, rounds=2)
    assert clock.end(1, 100) == 41 and clock.end(1, 30) == 30
    clock.took(1e-9, rounds=40)
    assert clock.end(41, 1000) == 101  # as many as counts of 32 bits hold
    clock.took(50.0, rounds=1)
    assert clock.end(101, 1000) == 102


def test_costs_are_those_of_the_exchanges_that_took_place():
    costs = Costs(TRAFFIC)
    costs.add(Counters(5, 0, 5), 1, warmup=True)
    assert costs.row() == {
        "clients": 5,
        "local_steps": 0,
        "gradients": 5,
        "bytes_down": 25,
        "bytes_up": 35,
        "seconds": 0,
    }
    costs.add(Counters(6, 12, 24), rounds=2, warmup=False)  # one client alone answers the second exchange of each round
    assert costs.bytes_down == 25 + 6 * 10 + 2 * 1000 and costs.bytes_up == 35 + 6 * 100 + 2 * 10000
    other = Costs(TRAFFIC)
    other.take(costs.row())
    assert other.row() == costs.row()


def test_counts_of_runs_side_by_side_go_to_each():
    histories = [History(TRAFFIC), History(TRAFFIC)]
    count(histories, Counters(np.array([[1], [2]]), np.array([[3], [4]]), np.array([[5], [6]])), rounds=1)
    assert [(h.costs.clients, h.costs.local_steps, h.costs.gradients) for h in histories] == [(1, 3, 5), (2, 4, 6)]


def test_a_row_has_figures_losses_and_costs_in_this_order():
    history = History(TRAFFIC)
    losses = Exclusions(np.array([0, 2, 1]), np.array(4))
    history.add(3, {"train_loss": 0.5, "objective": 0.75}, losses)
    assert list(history.rows[0].items())[:6] == [
        ("round", 3), ("train_loss", 0.5), ("objective", 0.75), ("left_out", 3), ("bad_clients", [1, 2]), ("skipped", 4)
    ]  # fmt: skip
    assert list(history.rows[0])[6] == "clients"
    other = History(TRAFFIC)
    other.take(history.rows, history.costs.row())
    other.add(4, {"train_loss": 0.4}, ())
    assert len(history.rows) == 1 and [row["train_loss"] for row in other.rows] == [0.5, 0.4]


@pytest.mark.parametrize(
    ("options", "given", "status", "over"),
    [
        ({}, row(), "finished", False),
        ({}, row(4), "finished", True),
        ({}, row(loss=math.inf), "diverged", True),
        ({}, row(left_out=1), "finished", False),
        ({"guard": fedax.Guard(stop=True)}, row(left_out=1), "failed", True),
        ({"guard": fedax.Guard(stop=True)}, row(left_out=1, loss=math.nan), "diverged", True),
        ({"until": lambda row: row["round"] == 2}, row(), "stopped", True),
        ({"until": lambda row: True}, row(4), "finished", True),
    ],
)
def test_who_is_done(options, given, status, over):
    one = lane(**options)
    one.history.rows.append(given)
    one.judge(given)
    assert one.ask(given) is over and one.status == status and one.over is over


@pytest.mark.parametrize(
    ("status", "losses", "ends", "message"),
    [
        ("finished", [1.0, 0.5], "finished", None),
        ("finished", [1.0, 2.0], "worse", "its objective was 1, is 2; try a smaller"),
        ("stopped", [1.0, 2.0], "stopped", None),
        ("diverged", [1.0, math.inf], "diverged", "the training loss is inf at round 1: stopped"),
        ("failed", [1.0, 0.5], "failed", r"clients \[3\] sent .*round 1: stopped, as asked"),
    ],
)
def test_what_is_said_in_the_end(status, losses, ends, message):
    one = lane()
    one.history.rows, one.status = [row(k, loss) for k, loss in enumerate(losses)], status
    ended, result = one.conclude()
    assert ended == ends and (result is None) is (message is None)
    if result is not None:
        with pytest.warns(result[1], match=message):
            drive.warnings.warn(*result, stacklevel=1)


def test_the_last_evaluations_are_a_tenth_and_at_least_three():
    assert [tail_of(evaluations) for evaluations in (1, 30, 44, 46, 105)] == [3, 3, 4, 5, 10]


def test_warnings_point_at_the_line_of_the_user():
    options = {"rounds": 8, "work": fedax.Steps(3)}
    for call in (
        lambda: fedax.simulate(fedax.create("fedavg", lr=0.9), TASK, DATA, **options),
        lambda: fedax.sweep(lambda: fedax.create("fedavg", lr=0.9), [{}], TASK, DATA, seeds=2, **options),
    ):
        with pytest.warns(fedax.DivergedWarning, match="ended worse") as caught:
            call()
        assert {each.filename for each in caught} == {__file__}


def test_times_and_traffic_of_real_clients_add_up():
    costs = lane().history.costs
    assert costs.row().keys().isdisjoint({"time", "wire_up"})
    costs.add_traffic({"wire_up": 3, "wire_down": 5, "time": 2.0})
    costs.add_traffic({"wire_up": 4, "wire_down": 0, "time": 0.5})
    assert {name: costs.row()[name] for name in ("wire_up", "wire_down", "time")} == {
        "wire_up": 7,
        "wire_down": 5,
        "time": 2.5,
    }
