"""A literal event queue for asynchronous rounds: a heap of jobs under way, in NumPy float64, with no draws of its own.

Jobs and clients. N clients; M jobs are under way at a time. A job is one start of a client, with a running number
n = 0, 1, … It keeps the model and the version of its start. When it finishes it is *heard*: its answer is taken in,
or dropped.

Who is heard next: the job with the least finish time; of equal ones the one with the smaller n.

Windows. The first answer opens a window of g ≥ 0 seconds, the grace, and all that finish in it are heard (at its end
too), also those that finish at the same instant where g = 0. Nobody starts meanwhile. At the end of the window, or
with its last answer where nobody is under way any more, as many start as were heard, from the newest model.

Buffer. Each K answers taken in make a server step, within a window or over several. A step is over at
max(end of the step before, time of its K-th answer) + the server's own seconds, and those who start after a window in
which there was a step wait for it. The version is the number of server steps (or what `count` says of the state); the
staleness of an answer is the version when it is heard less the version at its start: 0 is fresh. An answer with more
than `max_staleness` is dropped: it takes no place in the buffer.

So K = M = N is the synchronous method with full participation where all are equally fast, and where the window is
long enough for the slowest.

Who starts (`policy`), asked by `who(n)`, which returns a client's number, or a float u in [0, 1) that picks the
⌊u · so many⌋-th of those that can start, by number:
- "uniform": any client that has not started from this version; when all have, all can again. One that is under way
  already may start as a second job, so clients with memory are refused.
- "idle": one that is not under way; who was just heard is one of them. With M = N they are the only ones.

Memory. A client keeps its memory with itself. A job reads it at its start, and it is written when the job is heard and
taken in: an answer that is dropped leaves it as it was.
"""

import heapq
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

Who = Callable[[int], int | float]  # of the start's number n: a client, or a number in [0, 1)
Duration = Callable[[int, int, int, int], float]  # of (n, client, local steps, bytes): seconds from start to finish
Work = Callable[[np.ndarray, int, int, Any], tuple[Any, Any]]  # of (model, client, n, memory): upload and new memory
Server = Callable[[dict, list["Answer"]], dict]  # of (state, answers in the order heard): the new state


class Answer(NamedTuple):
    """What the server takes in."""

    client: int
    weight: float  # ω of the client
    staleness: int
    upload: Any


class Step(NamedTuple):
    """A server step."""

    x: np.ndarray  # the model after it
    time: float  # seconds, when it is over
    heard: tuple[tuple[int, int, int], ...]  # (client, n, staleness) of the answers taken in, in the order heard


class Run(NamedTuple):
    """What `run` returns."""

    steps: list[Step]
    state: dict  # the server's last
    memory: list[Any]  # the clients' last, [N]
    started: np.ndarray  # [N], jobs of each client, begun before the last step
    taken: np.ndarray  # [N], answers taken in
    dropped: np.ndarray  # [N], answers dropped

    @property
    def iterates(self) -> np.ndarray:
        """The models after each step, [steps, *x.shape]."""
        return np.array([s.x for s in self.steps])

    @property
    def times(self) -> np.ndarray:
        """The seconds of each step, [steps]."""
        return np.array([s.time for s in self.steps])


def pick(answer: int | float, candidates: Sequence[int] | np.ndarray) -> int:
    """The client that `who` means: a number of [0, 1) picks among the candidates, an integer must be one of them."""
    if isinstance(answer, float | np.floating):
        return int(candidates[int(answer * len(candidates))])
    if int(answer) not in candidates:
        raise ValueError(f"client {answer} cannot start now")
    return int(answer)


def run(
    state: dict,
    *,
    clients: int,
    concurrency: int,
    buffer: int,
    steps: int,
    duration: Duration,
    work: Work,
    server: Server,
    who: Who = lambda n: 0.0,
    policy: str = "uniform",
    grace: float = 0.0,
    seconds: float = 0.0,
    max_staleness: float = np.inf,
    memory: Sequence[Any] | None = None,
    weights: Sequence[float] | None = None,
    count: Callable[[dict], int] | None = None,
    taus: Sequence[int] | None = None,
    nbytes: int = 0,
) -> Run:
    """`steps` ≥ 1 server steps from a state, whose model is `state["x"]`; it ends with the last of them.

    seconds: the server's own, of a step. weights: ω by client, 1 unless given. taus [N] and nbytes are only handed to
    `duration`.
    """
    if not 1 <= buffer <= concurrency or (policy == "idle" and concurrency > clients):
        raise ValueError("1 ≤ buffer ≤ concurrency, and concurrency ≤ clients unless any client may start")
    if policy == "uniform" and memory is not None:
        raise ValueError("a client with memory is under way once at a time")
    memory = [None] * clients if memory is None else list(memory)
    started, taken, dropped = (np.zeros(clients, dtype=np.int64) for _ in range(3))
    can = set(range(clients))  # who can start
    queue: list[tuple[float, int, int, int, np.ndarray, Any]] = []  # (finish, n, client, version, model, memory)
    waiting: list[tuple[int, Answer]] = []  # (n, answer) of those taken in since the last step
    records: list[Step] = []
    end = 0.0  # of the last step
    n = 0

    def version() -> int:
        return len(records) if count is None else count(state)

    def start(now: float) -> None:
        nonlocal n
        if not can:  # "uniform": all have started from this version
            can.update(range(clients))
        i = pick(who(n), sorted(can))
        can.remove(i)
        finish = now + duration(n, i, 0 if taus is None else int(taus[i]), nbytes)
        heapq.heappush(queue, (finish, n, i, version(), state["x"], memory[i]))
        started[i] += 1
        n += 1

    for _ in range(concurrency):
        start(0.0)
    while True:
        heard, close = 0, queue[0][0] + grace
        while queue and queue[0][0] <= close:
            now, number, i, began, x, kept = heapq.heappop(queue)
            heard += 1
            if policy == "idle":
                can.add(i)
            stale = version() - began
            if stale > max_staleness:
                dropped[i] += 1
                continue
            upload, memory[i] = work(x, i, number, kept)
            taken[i] += 1
            waiting.append((number, Answer(i, 1.0 if weights is None else float(weights[i]), stale, upload)))
            if len(waiting) == buffer:
                state = server(state, [answer for _, answer in waiting])
                end = max(end, now) + seconds
                took = tuple((answer.client, number, answer.staleness) for number, answer in waiting)
                records.append(Step(state["x"], end, took))
                if len(records) == steps:
                    return Run(records, state, memory, started, taken, dropped)
                waiting = []
                if policy == "uniform":
                    can.update(range(clients))
        now = close if queue else now
        for _ in range(heard):
            start(max(now, end))


def schedule(clients: int, steps: int, **arguments: Any) -> Run:
    """The schedule alone, with the arguments of `run`: a model that counts the server's steps, and no work."""
    return run(
        {"x": np.zeros(())},
        clients=clients,
        steps=steps,
        work=lambda x, i, n, kept: (None, kept),
        server=lambda state, answers: {"x": state["x"] + 1},
        **arguments,
    )
