"""Several runs over the same nodes, side by side: their messages to a node are sent as one.

A message to real clients takes a while, however small it is. So the methods and seeds of an experiment share messages,
as they share a compiled program in simulation. Each run is a function in a thread of its own, but only one of them runs
at a time, until it asks the nodes something. When all runs have asked, the joined messages are sent, and each run gets
its answers. So runs need not be thread-safe, and each computes the same numbers as alone.
"""

import collections
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from fedax.contract.types import Unknown
from fedax.engine.signals import HeldSignals
from fedax.sites.protocol.messages import Failure, Message, Talk, Transport, asked_together


class _Ended(BaseException):
    """Ends a run because another one has failed, or the command has to end."""


class _Lane:
    """One run, and the transport that it sees.

    Attributes:
        sent, received: its share of the bytes on the wire.
        over: whether it has nothing more to ask.
        messages, timeout: what it asks now, by the node's number, and the seconds for the answers.
    """

    def __init__(self, transport: Transport, work: Callable[[Transport], Unknown]):
        self.sent = self.received = 0
        self._transport, self._work = transport, work
        self._answers: queue.SimpleQueue[dict[int, Message | Failure] | None] = queue.SimpleQueue()  # None: to end
        self._stopped = threading.Semaphore(0)
        self.messages: Mapping[int, Message] = {}
        self.timeout, self.over = 0.0, False
        self.result: Unknown = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    # ---- seen by the run

    def nodes(self) -> list[int]:
        """The nodes that are there now."""
        return self._transport.nodes()

    def ask(self, messages: Mapping[int, Message], timeout: float) -> Iterator[tuple[int, Message | Failure]]:
        """Ask some nodes, together with the other runs."""
        if messages:
            yield from self._let_others(messages, timeout).items()

    def talk(self, timeout: float) -> Talk:
        """Ask nodes without an end; the messages are this run's alone."""
        talk = self._transport.talk(timeout)
        came = next(talk)
        while True:
            messages = yield came
            self._let_others({}, timeout)
            sent, received = self._transport.sent, self._transport.received
            came = talk.send(messages)
            self.sent += self._transport.sent - sent
            self.received += self._transport.received - received

    def _let_others(self, messages: Mapping[int, Message], timeout: float) -> dict[int, Message | Failure]:
        """The answers to messages, when all other runs have asked, too."""
        self.messages, self.timeout = messages, timeout
        self._stopped.release()
        if (answers := self._answers.get()) is None:
            raise _Ended
        return answers

    def _run(self) -> None:
        try:
            if self._answers.get() is not None:
                self.result = self._work(self)
        except BaseException as error:
            self.error = error
        self.over = True
        self._stopped.release()

    # ---- seen by those who run it

    def step(self, answers: dict[int, Message | Failure]) -> None:
        """Continue the run until it asks again, or is over; raises what it raises."""
        self._answers.put(answers)
        self._stopped.acquire()
        if self.error is not None:
            raise self.error

    def end(self) -> None:
        """End it where it waits."""
        self._answers.put(None)
        self._thread.join()


def side_by_side(transport: Transport, works: Sequence[Callable[[Transport], Unknown]]) -> list[Unknown]:
    """Run some functions side by side, each with a transport of its own to the same nodes; returns their results.

    An error of one ends all. SIGINT and SIGTERM are handled between two messages; a second one at once.

    Args:
        transport: carries the messages of all.
        works: the functions.

    Example:
        >>> class Echo:
        ...     sent = received = asked = 0
        ...     def nodes(self):
        ...         return [1]
        ...     def ask(self, messages, timeout):
        ...         self.asked += 1
        ...         yield from messages.items()
        >>> def work(transport, k):
        ...     return [answer.head for _, answer in transport.ask({1: Message({"k": k})}, 1.0)]
        >>> echo = Echo()
        >>> side_by_side(echo, [lambda there, k=k: work(there, k) for k in range(3)]), echo.asked
        ([[{'k': 0}], [{'k': 1}], [{'k': 2}]], 1)
    """
    lanes = [_Lane(transport, work) for work in works]
    signals = HeldSignals()
    signals.hold()
    try:
        for lane in lanes:
            lane.step({})
        while active := [lane for lane in lanes if not lane.over]:
            signals.deliver()
            answers = _ask_together(transport, active)
            for lane, lane_answers in zip(active, answers, strict=True):
                lane.step(lane_answers)
    finally:
        for lane in lanes:
            lane.end()
        signals.release()
    return [lane.result for lane in lanes]


def _ask_together(transport: Transport, lanes: Sequence[_Lane]) -> list[dict[int, Message | Failure]]:
    """The answers for each of some runs, whose messages to a node are joined into one."""
    # A node answers one part after the other, and each may take as long as it may alone.
    longest = max(collections.Counter(number for lane in lanes for number in lane.messages).values(), default=0)
    timeout = longest * max(lane.timeout for lane in lanes)
    sent, received = transport.sent, transport.received
    answers, shares = asked_together([lane.messages for lane in lanes], lambda each: transport.ask(each, timeout))
    for lane, (down, up) in zip(lanes, shares.tolist(), strict=True):
        lane.sent += int((transport.sent - sent) * down)
        lane.received += int((transport.received - received) * up)
    return answers
