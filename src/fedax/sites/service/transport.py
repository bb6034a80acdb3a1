"""The run's side: a run at a link, and its questions to nodes."""

import concurrent.futures
import contextlib
import functools
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedax.errors import NodeError
from fedax.sites.protocol.messages import Failure
from fedax.sites.service.carry import Away, Caller, pauses
from fedax.sites.service.certificates import connection_problem, load_secret
from fedax.sites.service.letters import Letter, Refused, question
from fedax.sites.service.link import POLL
from fedax.sites.service.messages import Answer, SentQuestion, Talking, opened
from fedax.sites.service.signature import ANSWER, Keys, is_signed

RESUME = "start the run again with --resume"
_PATIENCE = 30.0  # seconds in which a link may come back
_OTHERS = 65.0  # seconds for which another run is waited for
_FRESH = 1.0  # seconds for which the list of nodes is not asked for again
_SPARE = 2.0  # seconds by which a question outlives the wait for its answer, so that this side gives up first
_TOGETHER = 16 << 20  # bytes of small parts in one request
_FETCHERS = 4  # answers that are fetched at a time


class LinkTransport(Talking):
    """A ``fedax.sites.protocol.messages.Transport`` over a link, in a run that has begun.

    Args:
        address: of the link, ``host:port``.
        folder: of the link, with ``ca.pem``, ``secret`` and ``nodes``.
    """

    def __init__(self, address: str, folder: Path):
        self.sent = self.received = 0
        self._link = f"the link at {address}"
        self._keys = Keys(folder / "nodes")
        self._caller = Caller(address, folder / "ca.pem", lambda: load_secret(folder))
        self._secret = lambda: load_secret(folder)
        self._waiting: dict[str, SentQuestion] = {}
        self._answers: dict[str, Answer] = {}
        self._news = threading.Condition()
        self._has: dict[str, bool] = {}  # answers that have come: whether they are here wholly
        self._here: tuple[float, list[int]] = (0.0, [])
        self._start, self._over = "", threading.Event()
        self._failed: Exception | None = None
        self._fetchers = concurrent.futures.ThreadPoolExecutor(_FETCHERS, "fetch")
        self._listener = threading.Thread(target=self._listen, daemon=True, name="answers")

    # ---- the run

    def begin(self, say: Callable[[str], None]) -> None:
        """Begin the run, once no other is under way; a killed one is for some seconds.

        Raises:
            NodeError: there is no link, it does not know this key, or another run is under way.
        """
        until, announced = time.monotonic() + _OTHERS, False
        while not self._patiently(self._enter):
            if time.monotonic() >= until:
                hint = "wait for its end, or use a link of its own"
                raise NodeError(f"another run is under way at {self._link}, and nodes do one thing at a time: {hint}")
            if not announced:
                say(f"another run is under way at {self._caller.address}: waiting up to {_OTHERS:g} s")
                announced = True
            time.sleep(1.0)
        self._start = self._caller.start
        self._listener.start()

    def _enter(self) -> bool:
        """Whether the link takes this run for the one that is under way."""
        try:
            self._caller.call("/questions", {"letters": []})
        except Refused as refused:
            if refused.status != 409:
                raise
            return False
        return True

    def end(self) -> None:
        """End the run."""
        self._over.set()
        if self._listener.is_alive():
            with contextlib.suppress(Away, Refused, NodeError):  # the link is gone, or has ended the run
                self._caller.call("/end", {}, seconds=5.0)
            self._listener.join(5.0)
        self._fetchers.shutdown(wait=False, cancel_futures=True)
        self._caller.close()

    # ---- questions

    def nodes(self) -> list[int]:
        """The nodes that are there now, in ascending order.

        Raises:
            NodeError: the link cannot be reached, or has ended the run.
        """
        self._check()
        if time.monotonic() - self._here[0] > _FRESH:
            self._note_here([each["number"] for each in self.registered() if each["here"] is True])
        return self._here[1]

    def registered(self) -> list[dict[str, Any]]:
        """The nodes that the link knows: number, name, whether it is ``here``, ``since`` when, since when ``known``."""
        listed: list[dict[str, Any]] = self._patiently(lambda: self._caller.call("/nodes", {}))[0]["nodes"]
        return listed

    def send(
        self, questions: Sequence[SentQuestion], timeout: float, waiting: dict[str, SentQuestion]
    ) -> list[tuple[int, Answer]]:
        """Bring questions to the link, as of :class:`Talking`."""
        shared: dict[bytes, bytes] = {}  # equal parts are one object
        parts = [[shared.setdefault(part, part) for part in each.parts] for each in questions]
        asked = {secrets.token_hex(16): each._replace(parts=own) for each, own in zip(questions, parts, strict=True)}
        waiting |= asked
        self._waiting |= asked
        refused = self._patiently(lambda: self._post(asked))
        for id in refused:
            self.forget(id)
        return [(waiting.pop(id).node, Failure(why, True)) for id, why in refused.items() if id in asked]

    def look(self, waiting: Mapping[str, SentQuestion], seconds: float) -> Sequence[tuple[str, Answer]]:
        """The answers that are there, as of :class:`Talking`.

        Raises:
            NodeError: the link cannot be reached, or has ended the run.
        """
        with self._news:
            self._news.wait_for(lambda: self._failed or self._answers.keys() & waiting.keys(), seconds)
            self._check()
            return [(id, self._answers.pop(id)) for id in self._answers.keys() & waiting.keys()]

    def forget(self, id: str) -> None:
        """Nobody waits for this answer any more."""
        with self._news:
            self._waiting.pop(id, None)
            self._answers.pop(id, None)

    def _post(self, ids: Iterable[str]) -> dict[str, str]:
        """Bring questions to the link, signed for its start, large parts first; why it does not take some."""
        refused: dict[str, str] = {}
        there: set[str] = set()
        batch: list[Letter] = []
        small: dict[str, bytes] = {}

        def post() -> None:
            table, _ = self._caller.call("/questions", {"letters": [each.sent for each in batch]}, small.values())
            self.sent += sum(each.size for each in batch)
            refused.update(table["refused"])
            batch.clear()
            small.clear()

        for id in ids:
            if (asked := self._waiting.get(id)) is None:
                continue
            until = self._caller.now() + asked.until - time.monotonic() + _SPARE
            run, start = self._caller.process, self._caller.start
            letter = question(self._secret(), asked.node, run, start, until, asked.parts, id)
            small |= self._caller.upload(letter, asked.parts, there)
            batch.append(letter)
            if sum(map(len, small.values())) > _TOGETHER:
                post()
        post()
        return refused

    # ---- answers

    def _listen(self) -> None:
        """Fetch answers as they come, in a thread of its own, which also shows the link that the run is there."""
        try:
            while not self._over.is_set():
                got = [id for id, whole in self._has.items() if whole]
                known = {"has": [*self._has], "got": got, "start": self._start}
                table, parts = self._patiently(functools.partial(self._await, known))
                for id in got:
                    self._has.pop(id, None)
                self._note_here(table["here"])
                for letter in table["letters"]:
                    self._take(letter, parts)
                if self._caller.start != self._start:  # the link was started anew, and has no question
                    self._start = self._caller.start
                    self._has.clear()
                    self._patiently(lambda: self._post([*self._waiting]))
        except Exception as error:  # it is raised where answers are waited for
            if not self._over.is_set():
                with self._news:
                    self._failed = error
                    self._news.notify_all()

    def _await(self, known: dict[str, Any]) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Wait at the link for answers; at the next try, after a failure, it does not wait: a proxy may have cut it."""
        try:
            return self._caller.call("/answers", known, seconds=POLL + 15)
        finally:
            known["start"] = ""

    def _take(self, letter: Letter, parts: dict[str, bytes]) -> None:
        """Look at an answer that has come; a large one is fetched at the same time as others."""
        asked, known = self._waiting.get(letter.id), self._keys.look().get(letter.node)
        self._has[letter.id] = True
        if asked is None or known is None or letter.node != asked.node or letter.run != self._caller.process:
            return  # nobody waits for it any more
        if not is_signed(known.key, ANSWER, letter.text, letter.signature):
            self._give(letter, Failure("the answer is not signed by the node", False))
            return
        if all(part.digest in parts for part in letter.parts):
            self._open(letter, parts)
        else:
            self._has[letter.id] = False
            self._fetchers.submit(self._open, letter, parts)

    def _open(self, letter: Letter, parts: dict[str, bytes]) -> None:
        answer: Answer
        try:
            contents = self._caller.contents(letter, parts)
            answer = Failure(letter.failed, True) if letter.failed else opened(contents)
        except ValueError as error:
            answer = Failure(str(error), False)
        except (Away, Refused, NodeError, RuntimeError):  # the link has gone, and the node answers again
            self._has.pop(letter.id, None)
            return
        self.received += letter.size
        self._give(letter, answer)
        self._has[letter.id] = True

    def _give(self, letter: Letter, answer: Answer) -> None:
        with self._news:
            if self._waiting.pop(letter.id, None) is not None:
                self._answers[letter.id] = answer
                self._news.notify_all()

    # ---- the link

    def _note_here(self, here: list[Any]) -> None:
        known = self._keys.look()
        self._here = time.monotonic(), [number for number in sorted(known) if number in here]

    def _patiently(self, call: Callable[[], Any]) -> Any:
        """What a call to the link gives, which may be gone for a while.

        Raises:
            NodeError: it stays away, or refuses.
        """
        until, waits = 0.0, pauses()
        while True:
            try:
                return call()
            except Refused as refused:
                why = {
                    403: "refuses the secret; take the file `secret` from its folder",
                    409: f"has ended this run: {refused}; {RESUME}",
                }.get(refused.status, f"refused a request (HTTP {refused.status}): {refused}")
                raise NodeError(f"{self._link} {why}") from refused
            except Away as error:
                until = until or time.monotonic() + _PATIENCE  # since the first failure: a transfer may take longer
                if time.monotonic() >= until:
                    raise NodeError(f"{self._link} cannot be reached ({error}); {RESUME}") from error
            self._over.wait(next(waits))

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed


@contextlib.contextmanager
def connect(
    address: str, folder: str | Path, say: Callable[[str], None] = print, run: bool = True
) -> Iterator[LinkTransport]:
    """A new run at a link, for as long as the context lasts; it ends with the context, also after an error.

    Args:
        address: of the link, ``host:port``.
        folder: of the link, with ``ca.pem``, ``secret`` and the folder ``nodes``.
        say: is called with lines for people.
        run: whether a run begins; without one, nodes can be listed and not asked.

    Raises:
        NodeError: there is no link, it is not the right one, it does not know the key, or another run is under way.
        ConfigError: the address or a file cannot be used.
    """
    folder = Path(folder)
    load_secret(folder)
    if reason := connection_problem(address, folder / "ca.pem"):
        raise NodeError(f"the link at {address} cannot be reached ({reason}); start it with `fedax deploy link`")
    made = LinkTransport(address, folder)
    try:
        if run:
            made.begin(say)
        yield made
    finally:
        made.end()
