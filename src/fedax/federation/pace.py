"""Pace: when the server steps. By default it waits for all clients of a round; ``Async`` does not wait.

Who answers when follows from the clients' speeds alone, before any gradient is computed. So a run has a *schedule*: an
event queue on the host, in float64, which says who starts from which model, and whose answers make each step.
"""

import dataclasses
import heapq
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedax.contract.settings import Settings
from fedax.contract.staleness import Staleness
from fedax.errors import ConfigError
from fedax.numbers import MOST, check_answers, check_count, check_number

_ASKED = 20  # the greatest staleness whose weight is looked at before a run
_STARTS = ("uniform", "idle")
_WEIGHTS = ("given", "corrected")
_DRAWN = 4096  # random numbers that are drawn at a time


class Async(Settings):
    """The server steps whenever some answers have come, and clients that have answered are replaced at once.

    Some clients are under way at a time. The server's model has a version, the number of its steps. A client begins
    with the newest version, and its answer has a *staleness*: how many steps the server has taken in the meantime.

    Answers that come at the same instant are all taken before anyone starts anew, so that with equal speeds and
    ``concurrency = buffer = N`` this is the synchronous method.

    Args:
        concurrency: M ≥ 1, how many clients are under way at a time.
        buffer: K, 1 ≤ K ≤ M: the server steps when so many answers have come.
        staleness: how much late answers count, such as ``fedax.PolynomialStaleness(0.5)``; ``None``: as the method
            has it, else all the same.
        grace: seconds ≥ 0 that the server waits after an answer for others, before clients start anew.
        start: who starts: ``"uniform"``, any client, so that one may be under way twice, but none is drawn again from
            one version before all others; ``"idle"``, one that is not under way: with M = N the one that has answered.
        weights: ``"given"``, N p_i/K times the weight of the staleness; ``"corrected"``: divided by how often the
            client's answers come and how much they count, so that all count by p_i in the long run.
        max_staleness: answers with a greater staleness are thrown away; ``None``: none are.

    Raises:
        ConfigError: numbers out of range, a word that is not named here, or what is no ``fedax.Staleness``.

    Source: Nguyen et al. 2022 (a buffer of K); Xie, Koyejo and Gupta 2019 (K = 1).

    Example:
        >>> Async(concurrency=8, buffer=4, start="idle")
        Async(concurrency=8, buffer=4, start='idle')
    """

    concurrency: int
    buffer: int = 1
    staleness: Staleness | None = None
    grace: float = 0.0
    start: str = "uniform"
    weights: str = "given"
    max_staleness: int | None = None

    def __check_init__(self) -> None:
        check_count("pace.concurrency", self.concurrency, 1, MOST)
        check_count("pace.buffer", self.buffer, 1, MOST)
        if self.buffer > self.concurrency:
            hint = f"there are at most {self.concurrency} under way: give a buffer of at most the concurrency"
            raise ConfigError("pace.buffer", self.buffer, hint)
        if self.staleness is not None and not isinstance(self.staleness, Staleness):
            hint = "give fedax.PolynomialStaleness(0.5), fedax.HingeStaleness(…) or another fedax.Staleness"
            raise ConfigError("pace.staleness", self.staleness, hint)
        check_number("pace.grace", self.grace, 0, fixed=True)
        for field, value, known in (("start", self.start, _STARTS), ("weights", self.weights, _WEIGHTS)):
            if value not in known:
                raise ConfigError(f"pace.{field}", value, f"give {' or '.join(map(repr, known))}")
        if self.max_staleness is not None:
            check_count("pace.max_staleness", self.max_staleness, 0, MOST)
        if self.staleness is not None:
            most = _ASKED if self.max_staleness is None else min(_ASKED, self.max_staleness)
            check_answers("pace.staleness", self.staleness, self.staleness.weight, np.arange(most + 1))

    def with_most(self, most: int) -> "Async":
        """Return a copy that discards answers with a greater staleness."""
        return dataclasses.replace(self, max_staleness=most)

    def validate(self, num_clients: int) -> None:
        """Raise :class:`fedax.errors.ConfigError` where this does not fit so many clients."""
        if self.start == "idle" and self.concurrency > num_clients:
            hint = f"at most all {num_clients} clients are under way; or give start='uniform'"
            raise ConfigError("pace.concurrency", self.concurrency, hint)
        if self.buffer > num_clients:
            raise ConfigError("pace.buffer", self.buffer, f"there are {num_clients} clients")


class Starts(NamedTuple):
    """Clients that start together from one version, and the step after them, if one follows before others start.

    Attributes:
        version: the model that they begin with.
        jobs: the running numbers of their work.
        heard: the numbers of the work whose answers make the next step; ``()``: others start before it.
    """

    version: int
    jobs: tuple[int, ...]
    heard: tuple[int, ...]


class EventQueue:
    """Who starts when, and whose answers make each step, as far as it was asked for.

    It is a literal event queue. A piece of work has a running number, in the order of the starts; of answers at the
    same time the one that started first is taken first.

    Args:
        pace: the concurrency, the buffer, who starts.
        num_clients: N.
        duration: ``duration(number, client, group) -> seconds`` of a piece of work; ``group``: the position of its
            start among :attr:`starts`.
        server: the server's own seconds a step.
        seed: of the draws of who starts.
        begins: ``begins(client, time) -> time`` at which a client that is sent the model can begin; ``None``: at once.

    Attributes:
        starts: groups of at most K clients that start from one version, none twice.
        clients, versions: of each piece of work, who does it and from which version.
        times: [steps] when each step was taken, in seconds.

    Example:
        >>> both = EventQueue(Async(2, start="idle"), 2, lambda number, client, group: 1.0 + 2 * client)
        >>> both.until(4)
        >>> both.times, [[both.clients[n] for n in step] for step in both.steps]
        ([1.0, 2.0, 3.0, 3.0], [[0], [0], [1], [0]])
    """

    def __init__(
        self,
        pace: Async,
        num_clients: int,
        duration: Callable[[int, int, int], float],
        server: float = 0.0,
        seed: int = 0,
        begins: Callable[[int, float], float] | None = None,
    ):
        self._n, self._duration, self._server, self._begins = num_clients, duration, server, begins
        # Attributes of a module are slow to read.
        self._width, self._grace, self._most = pace.buffer, float(pace.grace), pace.max_staleness
        self._from_idle = pace.start == "idle"
        self._random = np.random.Generator(np.random.Philox(key=[seed, 0x61737963]))
        self._numbers: list[float] = []  # that are left of those drawn, the next one last
        self.clients: list[int] = []
        self.versions: list[int] = []
        self.times: list[float] = []
        self.steps: list[tuple[int, ...]] = []  # the answers of each step
        self.dropped: dict[int, int] = {}  # work whose answer was thrown away -> the group that was open then
        self.arrived: list[int] = []  # how many answers had come by each step, with those that were thrown away
        self.starts: list[Starts] = []
        self._together: list[int] = []  # the last group of starts, which may still grow
        self._here: set[int] = set()  # its clients
        self._queue: list[tuple[float, int]] = []
        self._buffer: list[int] = []
        self._free = 0.0  # when the server is done with its last step
        self._idle = list(range(num_clients)) if self._from_idle else []
        self._back: list[int] = []  # who has answered, and is idle when all answers of the instant are taken
        self._answers = 0
        self._dealt = 0  # how many of the shuffled clients were drawn
        self._deal()
        self._start(pace.concurrency, 0.0)

    @property
    def version(self) -> int:
        """How many steps there were so far."""
        return len(self.steps)

    def until(self, steps: int) -> None:
        """Go on to so many steps of the server."""
        while self.version < steps:
            self._next()

    def _next(self) -> None:
        """The next answer, and all that come with it; then as many start anew."""
        queue, heard = self._queue, self._answers
        now = queue[0][0]
        if not math.isfinite(now):
            hint = f"the recorded answers are over after {self.version} steps: ask for fewer rounds"
            raise ConfigError("rounds", self.version + 1, hint)
        last = now + self._grace
        while queue and queue[0][0] <= last:
            now, number = heapq.heappop(queue)
            self._take(number, now)
        if queue and self._grace:
            now = last  # else all have answered, and nobody is waited for
        self._start_anew(self._answers - heard, now)

    def _start_anew(self, number: int, now: float) -> None:
        """So many instead of those that have answered."""
        if self._from_idle:
            self._idle += self._back
            self._back.clear()
        self._start(number, max(now, self._free))  # from a model that is finished

    def _take(self, number: int, now: float) -> None:
        self._answers += 1
        if self._from_idle:
            self._back.append(self.clients[number])
        if self._most is not None and len(self.steps) - self.versions[number] > self._most:
            self.dropped[number] = len(self.starts)
            return
        self._buffer.append(number)
        if len(self._buffer) < self._width:
            return
        self._close(tuple(self._buffer))
        self._buffer = []
        self._free = max(self._free, now) + self._server
        self.times.append(self._free)
        self.arrived.append(self._answers)
        self._deal()

    def _close(self, heard: tuple[int, ...]) -> None:
        """End the group of starts with a step, or as it is full."""
        self.starts.append(Starts(len(self.steps), tuple(self._together), heard))
        self._together = []
        self._here.clear()
        if heard:
            self.steps.append(heard)

    def _start(self, number: int, now: float) -> None:
        version, here = len(self.steps), self._here
        for _ in range(number):
            client = self._draw()
            if len(self._together) == self._width or client in here:
                self._close(())
            here.add(client)
            job = len(self.clients)
            self.clients.append(client)
            self.versions.append(version)
            self._together.append(job)
            self._begin(job, client, now)

    def _begin(self, job: int, client: int, now: float) -> None:
        begin = now if self._begins is None else self._begins(client, now)
        heapq.heappush(self._queue, (begin + self._duration(job, client, len(self.starts)), job))

    def _draw(self) -> int:
        """The client that starts next."""
        if not self._numbers:
            self._numbers = self._random.random(_DRAWN)[::-1].tolist()
        number = self._numbers.pop()
        if self._from_idle:
            at = int(number * len(self._idle))
            self._idle[at], self._idle[-1] = self._idle[-1], self._idle[at]
            return self._idle.pop()
        if self._dealt == self._n:
            self._deal()
        # A shuffle of all clients that begins anew with each version, of which only what was moved is kept.
        dealt, moved = self._dealt, self._moved
        at = dealt + int(number * (self._n - dealt))
        client = moved.get(at, at)
        moved[at] = moved.get(dealt, dealt)
        self._dealt = dealt + 1
        return client

    def _deal(self) -> None:
        """Let all clients be drawn again."""
        self._moved: dict[int, int] = {}
        self._dealt = 0


class LiveEventQueue(EventQueue):
    """A schedule whose answers come from outside, as those of real clients do: :meth:`hear` tells of each.

    A simulation in which each piece of work takes as long as it took here, from its begin to its answer, has the same
    schedule.

    Args:
        pace, num_clients, seed: as of :class:`EventQueue`.

    Attributes:
        begun: of each piece of work, when it began, in seconds.
        under_way: work that has no answer yet, by its number -> its group, the position of its start among ``starts``.

    Example:
        >>> both = LiveEventQueue(Async(2, start="idle"), 2)
        >>> both.hear(1, 0.5)
        >>> both.until(1)
        >>> both.times, both.under_way, both.begun
        ([0.5], {0: 0, 2: 2}, [0.0, 0.0, 0.5])
    """

    def __init__(self, pace: Async, num_clients: int, seed: int = 0):
        self.begun: list[float] = []
        self.under_way: dict[int, int] = {}
        self._taken = 0  # answers since clients started last
        self._opened = self._now = 0.0  # when the first of these, and the last, came
        super().__init__(pace, num_clients, lambda number, client, group: math.inf, seed=seed)

    def hear(self, number: int, time: float) -> None:
        """Take the answer of a piece of work that is under way; it came later than all others so far."""
        self.wait(time)
        if not self._taken:
            self._opened = time
        self._taken += 1
        self._now = time
        del self.under_way[number]
        self._take(number, time)
        self.wait(time)

    def wait(self, time: float) -> None:
        """No other answer came until then: if the grace is over, clients start anew."""
        last = self._opened + self._grace
        if self._taken and (time > last or not self._grace or not self.under_way):
            taken, self._taken = self._taken, 0
            self._start_anew(taken, last if self.under_way and self._grace else self._now)

    def _next(self) -> None:
        raise ValueError(f"there were {self.version} steps so far")

    def _begin(self, job: int, client: int, now: float) -> None:
        self.begun.append(now)
        self.under_way[job] = len(self.starts)
