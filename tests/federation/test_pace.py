"""The schedule of asynchronous rounds: who starts when, whose answers make a step."""

import collections

import numpy as np
import pytest

import fedax
from fedax.errors import ConfigError
from fedax.federation.pace import EventQueue, LiveEventQueue


def fixed(seconds):
    return lambda number, client, group: seconds[client]


def heard(schedule):
    return [[schedule.clients[number] for number in step] for step in schedule.steps]


def staleness(schedule, step):
    return [step - schedule.versions[number] for number in schedule.steps[step]]


def test_two_clients_by_hand():
    """One takes a second, the other three. At 3 both answer; the one that started first is taken first."""
    schedule = EventQueue(fedax.Async(2, start="idle"), 2, fixed([1.0, 3.0]))
    schedule.until(8)
    assert schedule.times == [1, 2, 3, 3, 4, 5, 6, 6]
    assert heard(schedule) == [[0], [0], [1], [0], [0], [0], [1], [0]]
    assert [staleness(schedule, step) for step in range(4)] == [[0], [0], [2], [1]]


def test_equal_speeds_and_a_buffer_for_all_are_synchronous_rounds():
    for start in ("uniform", "idle"):
        schedule = EventQueue(fedax.Async(5, 5, start=start), 5, fixed([2.0] * 5), server=0.5)
        schedule.until(4)
        assert schedule.times == [2.5, 5, 7.5, 10]
        assert [sorted(step) for step in heard(schedule)] == [[0, 1, 2, 3, 4]] * 4
        assert all(len(starts.jobs) == 5 and starts.heard == starts.jobs for starts in schedule.starts)
        assert not any(any(staleness(schedule, step)) for step in range(4))


def test_a_grace_gathers_those_that_come_soon_after():
    """At 1.0 the first answers; the second comes .2 later and is waited for, the third is not."""
    schedule = EventQueue(fedax.Async(3, start="idle", grace=0.3), 3, fixed([1.0, 1.2, 2.0]))
    schedule.until(4)
    assert schedule.times == [1.0, 1.2, 2.0, pytest.approx(2.3)]  # those two began again at 1.3
    assert [schedule.versions[number] for number in schedule.steps[3]] == [2]


def test_nobody_is_waited_for_when_all_have_answered():
    schedule = EventQueue(fedax.Async(2, start="idle", grace=5.0), 2, fixed([1.0, 2.0]))
    schedule.until(4)
    assert schedule.times == [1.0, 2.0, 3.0, 4.0]


def test_late_answers_are_thrown_away_and_their_clients_start_anew():
    schedule = EventQueue(fedax.Async(2, start="idle", max_staleness=1), 2, fixed([1.0, 3.5]))
    schedule.until(9)
    assert [client for step in heard(schedule) for client in step] == [0] * 9
    assert {schedule.clients[number] for number in schedule.dropped} == {1} and len(schedule.dropped) == 2
    assert schedule.arrived == [1, 2, 3, 5, 6, 7, 9, 10, 11]


def test_from_one_version_nobody_is_drawn_twice_before_all_others():
    schedule = EventQueue(fedax.Async(6, 3), 4, fixed([1.0, 2.0, 3.0, 50.0]), seed=3)
    schedule.until(200)
    by_version = collections.defaultdict(list)
    for client, version in zip(schedule.clients, schedule.versions, strict=True):
        by_version[version].append(client)
    for clients in by_version.values():
        for first in range(0, len(clients), 4):
            part = clients[first : first + 4]
            assert len({*part}) == len(part)
    for starts in schedule.starts:
        clients = [schedule.clients[number] for number in starts.jobs]
        assert len({*clients}) == len(clients) <= 3


@pytest.mark.parametrize(("start", "concurrency"), [("uniform", 30), ("idle", 10)])
def test_clients_start_as_often_as_they_should(start, concurrency):
    """Any client: all alike, however slow. Of those that are idle: the slow ones seldom."""
    seconds = np.linspace(1, 9, 20)
    schedule = EventQueue(fedax.Async(concurrency, 5, start=start), 20, fixed(seconds), seed=1)
    schedule.until(4000)
    counts = np.bincount([client for step in heard(schedule) for client in step], minlength=20)
    if start == "uniform":
        assert np.abs(counts / 1000 - 1).max() < 0.13  # of 1000 each, four deviations
    else:
        assert counts[0] > 1.5 * counts[-1]


def test_no_client_is_under_way_twice_that_is_taken_from_the_idle_ones():
    schedule = EventQueue(fedax.Async(7, 2, start="idle"), 9, lambda number, client, group: 1 + (number * 37 % 11))
    for steps in range(1, 300):
        schedule.until(steps)
        under_way = [schedule.clients[number] for _, number in schedule._queue]
        assert len({*under_way}) == len(under_way) == 7


def test_who_is_off_begins_when_he_is_on_again():
    schedule = EventQueue(fedax.Async(1), 1, fixed([1.0]), begins=lambda client, time: max(time, 10.0))
    schedule.until(2)
    assert schedule.times == [11.0, 12.0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"concurrency": 0}, r"pace.concurrency = 0"),
        ({"concurrency": 3, "buffer": 4}, r"pace.buffer = 4: .*at most 3"),
        ({"concurrency": 3, "start": "fast"}, r"pace.start = 'fast': .*'uniform' or 'idle'"),
        ({"concurrency": 3, "grace": -1}, r"pace.grace = -1"),
        ({"concurrency": 3, "weights": "equal"}, r"pace.weights = 'equal': .*'corrected'"),
        ({"concurrency": 3, "staleness": 0.5}, r"staleness = 0.5: .*fedax.PolynomialStaleness"),
        ({"concurrency": 3, "max_staleness": -1}, r"pace.max_staleness = -1"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ConfigError, match=message):
        fedax.Async(**settings)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fedax.PolynomialStaleness(-1), "exponent = -1"),
        (lambda: fedax.HingeStaleness(slope=0), "slope = 0"),
        (lambda: fedax.HingeStaleness(after=-1), "after = -1"),
    ],
)
def test_bad_weights_of_staleness(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_pace_can_be_pasted_back():
    pace = fedax.Async(8, 4, fedax.HingeStaleness(2.0, 3), 0.5, "idle", "corrected", 9)
    assert repr(eval(repr(pace), vars(fedax))) == repr(pace)


def test_nobody_starts_before_the_step_is_over_whose_model_he_gets():
    """Two answers make a step at 1.5, which takes the server until 6.5; who answers at 1.8 waits for it."""
    schedule = EventQueue(fedax.Async(4, 2, start="idle"), 4, fixed([1.0, 1.5, 1.8, 9.0]), server=5.0)
    schedule.until(3)
    assert schedule.times == [6.5, 11.5, 16.5]
    assert heard(schedule) == [[0, 1], [2, 0], [1, 2]]  # the third began at 6.5, not at 1.8


@pytest.mark.parametrize("start", ["uniform", "idle"])
@pytest.mark.parametrize("grace", [0.0, 0.6])
@pytest.mark.parametrize("most", [None, 2])
def test_answers_that_come_from_outside_make_the_schedule_of_their_durations(start, grace, most):
    pace, n = fedax.Async(5, 3, grace=grace, start=start, max_staleness=most), 7
    seconds = np.random.default_rng(1).exponential(size=10_000) + np.arange(10_000) % 3 / 4
    queue = EventQueue(pace, n, lambda number, client, group: seconds[number], seed=4)
    queue.until(60)
    told = LiveEventQueue(pace, n, seed=4)
    heard = []
    while told.version < 60:
        number = min(told.under_way, key=lambda job: told.begun[job] + seconds[job])
        at = told.begun[number] + seconds[number]
        told.wait(at)  # others may have started at the end of a grace, and be done sooner
        if number == min(told.under_way, key=lambda job: told.begun[job] + seconds[job]):
            told.hear(number, at)
            heard.append(number)
    for name in ("steps", "times", "arrived"):
        assert getattr(told, name)[:60] == getattr(queue, name)[:60], name
    for name in ("clients", "versions"):
        assert getattr(told, name) == getattr(queue, name)[: len(told.clients)], name
    same = min(len(told.starts), len(queue.starts))
    assert told.starts[:same] == queue.starts[:same] and same >= 60
    assert len({*heard}) == len(heard) and not {*heard} & told.under_way.keys()
    assert all(number in told.dropped for number in heard if number in queue.dropped)
    with pytest.raises(ValueError, match="60 steps so far"):
        told.until(61)
