"""A literal event queue for asynchronous rounds: a heap of jobs under way, in NumPy float64, with no draws of its own.

Jobs and clients. N clients; M jobs are under way at a time. A job is one start of a client, with a running number
n = 0, 1, … It keeps the model and the version of its start. When it finishes it is *heard*: its answer is taken in,
or dropped.

Who is heard next: the job with the least finish time; of equal ones the one with the smaller n.

Buffer. K answers taken in make the server's step. The version is the number of server steps (or what `count` says of
the state); the staleness of an answer is the version when it is heard less the version at its start: 0 is fresh.

Without grace (g = 0) each job that is heard is followed at once by a new one, from the model of that moment. The answer
that fills the buffer is followed by a job from the new model, the K − 1 before it by jobs from the old one. So
K = M = N with equal speeds is *not* the synchronous method: all but one start from a model that is one step old.

With grace (g > 0) nobody starts between two steps. When the K-th answer is heard, at T, the server waits until T + g,
takes in all that finish by then (at T + g too; M at most) and steps at T + g, also where nobody is under way any more.
Then all of them are replaced, from the new model, in the order in which they were heard. K = M = N with any grace is
the synchronous method with full participation, whatever the speeds.

Who starts (`policy`), asked by `who(n)`, which returns a client's number, or a float u in [0, 1):
- "uniform": any client, ⌊u N⌋; one that is under way already may start again, as a second job.
- "idle": one that is not under way, the ⌊u · idle⌋-th of them by number; who was just heard is one of them.
- "again": the client that was just heard; `who` is asked for the first M only; None for clients 0 … M − 1.

Memory. A client keeps its memory with itself. A job reads it at its start (`read="start"`), and it is written when the
job is heard and taken in: an answer that is dropped leaves it as it was. Two jobs of one client (only with "uniform")
both read what was there at their starts, and the one heard later overwrites what the earlier wrote. With
`read="arrival"` the work is done with the memory at the time of hearing (and the model of the start), as by a client
that does one job after the other; then uploaded changes of a memory (new − old) add up to the memory, which they do
not with "start". The two are the same unless a client has two jobs.
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
    time: float  # seconds
    heard: tuple[tuple[int, int, int], ...]  # (client, n, staleness) of the answers taken in, in the order heard


class Run(NamedTuple):
    """What `run` returns."""

    steps: list[Step]
    state: dict  # the server's last
    memory: list[Any]  # the clients' last, [N]
    started: np.ndarray  # [N], jobs of each client
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
    who: Who | None = None,
    policy: str = "uniform",
    grace: float = 0.0,
    memory: Sequence[Any] | None = None,
    read: str = "start",
    weights: Sequence[float] | None = None,
    accept: Callable[[int, int], bool] = lambda client, staleness: True,
    count: Callable[[dict], int] | None = None,
    taus: Sequence[int] | None = None,
    nbytes: int = 0,
) -> Run:
    """`steps` server steps from a state, whose model is `state["x"]`.

    weights: ω by client, 1 unless given. accept(client, staleness): False drops an answer, which then neither fills
    the buffer nor makes a version. taus [N] and nbytes are only handed to `duration`.
    """
    if not 1 <= buffer <= concurrency or (policy != "uniform" and concurrency > clients):
        raise ValueError("1 ≤ buffer ≤ concurrency, and concurrency ≤ clients unless any client may start")
    memory = [None] * clients if memory is None else list(memory)
    started, taken, dropped = (np.zeros(clients, dtype=np.int64) for _ in range(3))
    busy = np.zeros(clients, dtype=np.int64)  # jobs under way by client
    queue: list[tuple[float, int, int, int, np.ndarray, Any]] = []  # (finish, n, client, version, model, memory)
    records: list[Step] = []
    n = 0

    def version() -> int:
        return len(records) if count is None else count(state)

    def start(now: float, after: int | None) -> None:
        nonlocal n
        if policy == "again" and (after is not None or who is None):
            i = n if after is None else after
        elif policy == "uniform":
            i = pick(who(n), range(clients))
        else:
            i = pick(who(n), np.flatnonzero(busy == 0))
        finish = now + duration(n, i, 0 if taus is None else int(taus[i]), nbytes)
        heapq.heappush(queue, (finish, n, i, version(), state["x"], memory[i]))
        busy[i] += 1
        started[i] += 1
        n += 1

    def hear() -> tuple[float, int, int, Answer | None]:
        """(time, n, client, answer) of the next job; no answer where it is dropped."""
        finish, number, i, began, x, kept = heapq.heappop(queue)
        busy[i] -= 1
        stale = version() - began
        if not accept(i, stale):
            dropped[i] += 1
            return finish, number, i, None
        upload, memory[i] = work(x, i, number, memory[i] if read == "arrival" else kept)
        taken[i] += 1
        return finish, number, i, Answer(i, 1.0 if weights is None else float(weights[i]), stale, upload)

    for _ in range(concurrency):
        start(0.0, None)
    while len(records) < steps:
        waiting: list[tuple[int, Answer]] = []
        replace: list[int] = []  # clients heard and not yet replaced
        while len(waiting) < buffer:
            now, number, i, answer = hear()
            if answer is not None:
                waiting.append((number, answer))
            if answer is None or (grace == 0 and len(waiting) < buffer):
                start(now, i)  # one that is dropped is replaced at once, also with grace
            else:
                replace.append(i)
        if grace > 0:
            now += grace
            while queue and queue[0][0] <= now:
                finish, number, i, answer = hear()
                if answer is None:
                    start(finish, i)
                else:
                    waiting.append((number, answer))
                    replace.append(i)
        state = server(state, [a for _, a in waiting])
        records.append(Step(state["x"], now, tuple((a.client, number, a.staleness) for number, a in waiting)))
        for i in replace:
            start(now, i)
    return Run(records, state, memory, started, taken, dropped)


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
