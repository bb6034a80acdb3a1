"""The schedule beside the reference queue, which was written without it: equal to the last bit."""

import numpy as np
import pytest

import fedax
from fedax.federation.pace import EventQueue
from tests import in_full
from tests.references import queue

N = 20
SPEED = np.random.default_rng(0).lognormal(0, 1, N)


def drawn(number, client):
    """Unlike speeds, and each piece of work another number: no two answers at one time."""
    return SPEED[client] * (0.5 + (number * 0.6180339887498949) % 1)


def tied(number, client):
    """1, 2 or 3 seconds: many answers at one time."""
    return float(1 + (number * 7 + client * 5 + number // 11) % 3)


@in_full
@pytest.mark.parametrize("duration", [drawn, tied])
@pytest.mark.parametrize(
    ("pace", "server"),
    [
        (fedax.Async(20, start="idle"), 0.0),
        (fedax.Async(8, 4, start="idle"), 0.3),
        (fedax.Async(30, 7), 0.0),  # more under way than there are clients
        (fedax.Async(12, 5, grace=0.7), 1.0),
        (fedax.Async(20, 20, start="idle", grace=2.5), 0.1),
        (fedax.Async(20, 3, start="idle", max_staleness=5), 0.0),
        (fedax.Async(9, 1, grace=0.25, max_staleness=7), 0.05),
    ],
    ids=repr,
)
def test_times_staleness_and_answers_are_those_of_the_queue(pace, server, duration, full):
    steps = (100_000 if full else 10_000) // pace.buffer
    schedule = EventQueue(pace, N, lambda number, client, group: duration(number, client), server, seed=5)
    schedule.until(steps)
    most = np.inf if pace.max_staleness is None else pace.max_staleness
    wanted = queue.schedule(
        N,
        steps,
        concurrency=pace.concurrency,
        buffer=pace.buffer,
        policy=pace.start,
        grace=pace.grace,
        seconds=server,
        max_staleness=most,
        duration=lambda n, i, tau, nbytes: duration(n, i),
        who=schedule.clients.__getitem__,  # refused where that client cannot start
    )
    assert schedule.times[:steps] == wanted.times.tolist()
    found = [
        (schedule.clients[job], job, step - schedule.versions[job])
        for step, heard in enumerate(schedule.steps[:steps])
        for job in heard
    ]
    assert found == [answer for step in wanted.steps for answer in step.heard]
    assert schedule.arrived[steps - 1] == wanted.taken.sum() + wanted.dropped.sum()
    assert (wanted.dropped.sum() > 0) == (pace.max_staleness is not None)
