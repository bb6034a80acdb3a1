"""A node: the process that asks the link for questions, and supervises the worker that answers them."""

import json
import os
import queue
import socket as sockets
import socketserver
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedax.errors import ConfigError, NodeError
from fedax.files import check_private, hold, write_atomic
from fedax.sites.protocol.roster import private_key
from fedax.sites.service import certificates
from fedax.sites.service.carry import Away, Caller, pauses
from fedax.sites.service.letters import Letter, Refused
from fedax.sites.service.link import POLL
from fedax.sites.service.processes import SupervisedProcess, ending, receive, send
from fedax.sites.service.signature import QUESTION, number_of

_REMIND = 60.0  # seconds between lines that say that the link is not there
_TAKEN = 40.0  # seconds after which a link has noticed that another process of this node is gone
_REMOVED = 3.0  # seconds for which a key that was known may be unknown, while its file is replaced
_BUSY = 2.0  # seconds between two requests for questions while one is answered
_KEPT = 64 << 20  # bytes of answers that are kept, besides the last
_UNTRUSTED = "this node does not know the key that signed the question: give it the link's new ca.pem"


def run(
    *,
    link: str | Path,
    ca: Path,
    key: Path,
    state: Path,
    factory: str,
    arguments: Mapping[str, Any],
    wait: float | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Run a node until SIGINT, SIGTERM or SIGHUP.

    Args:
        link: ``host:port``; or the path of a Unix socket, at which this user's processes ask, such as
            Flower's ClientApp.
        ca: the file ``ca.pem`` of the link's folder.
        key: the node's private key; it and ``key.pub`` are made where they are missing.
        state: a folder for what the node keeps; of one node only.
        factory: ``module:name`` of a function that makes the answering function, in the worker's process.
        arguments: its keyword arguments, plain JSON or paths.
        wait: seconds after which the node ends without a link, or with a key that no link knew before; ``None``: it
            waits for ever.
        say: is called with lines for people.

    Raises:
        NodeError: the link's certificate or the node's key is not good, the link could not be reached for ``wait``
            seconds, or the worker cannot work.
        ConfigError: an argument cannot be used, or others than its owner can read the key or the state.
    """
    if certificates.make_node_key(key):
        to_link = f"; give {key}.pub to the coordinator, who puts it into the link's folder nodes"
        say(f"made the key {key}{to_link if isinstance(link, str) else ''}")
    check_private(key, "key")
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    check_private(state, "state")
    busy = ConfigError("state", str(state), "another node uses this folder; give each node its own")
    lock = hold(state / "lock", busy)
    worker = Worker(factory, arguments)
    with lock, ending() as end:
        node: _Node | Door
        node = Door(link, worker, say) if isinstance(link, Path) else _Node(link, ca, key, state, worker, wait, say)
        try:
            node.start()
            while not end.wait(0.2):
                if node.failed is not None:
                    raise node.failed
                if (status := worker.process.keep()) == 2:
                    raise NodeError("the worker cannot work; its own line above says why")
                if status is not None:
                    say(f"the worker has ended (status {status}); it is started again")
        finally:
            node.stop()
            worker.process.stop(0)


class Gone(Exception):
    """The worker has ended before it had answered."""


class Worker:
    """The process that answers questions, one after the other; heads and tensors go through its input and output."""

    def __init__(self, factory: str, arguments: Mapping[str, Any]):
        given = [factory, json.dumps(dict(arguments), default=str)]
        pipe = subprocess.PIPE
        self.process = SupervisedProcess("fedax.sites.service.worker", given, stdin=pipe, stdout=pipe)

    def ask(self, parts: Sequence[bytes], over: threading.Event) -> list[bytes]:
        """The parts of the answer to a question.

        Raises:
            Gone: the worker has ended.
        """
        while (process := self.process.process) is None:
            if over.wait(0.02):
                raise Gone
        assert process.stdin is not None and process.stdout is not None
        try:
            send(process.stdin, parts)
            return receive(process.stdout)
        except (OSError, EOFError, ValueError) as error:  # ValueError: its pipes are closed
            while self.process.process is process and not over.wait(0.02):  # until its end has been noticed
                pass
            raise Gone from error


class Door:
    """A node at a Unix socket: whoever may open its file asks a question by each connection."""

    failed: Exception | None = None  # an error that it cannot go on with

    def __init__(self, path: Path, worker: Worker, say: Callable[[str], None]):
        self.path, self.worker, self.say = path, worker, say
        self.over, self._one = threading.Event(), threading.Lock()
        self._server: socketserver.ThreadingUnixStreamServer | None = None

    def start(self) -> None:
        """Listen, for this user's processes only."""
        door = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with suppress(OSError, EOFError, Gone):  # without an answer the connection is closed
                    question = receive(self.rfile)
                    with door._one:
                        answer = door.worker.ask(question, door.over)
                    send(self.wfile, answer)

        umask = os.umask(0o177)
        try:
            if self.path.is_socket() and not _listens(self.path):
                self.path.unlink()  # of a node that was killed
            self._server = socketserver.ThreadingUnixStreamServer(str(self.path), Handler)
        except OSError as error:
            raise ConfigError("socket", str(self.path), f"no socket can be made there ({error})") from error
        finally:
            os.umask(umask)
        self._server.daemon_threads, self._server.block_on_close = True, False
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.say(f"this node listens at {self.path}")

    def stop(self) -> None:
        """Listen no longer."""
        self.over.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self.path.unlink(missing_ok=True)


def _listens(path: Path) -> bool:
    with sockets.socket(sockets.AF_UNIX) as one:
        return one.connect_ex(str(path)) == 0


class _Node:
    """A node at a link: one thread asks for questions, and one has them answered and brings the answers."""

    failed: Exception | None = None  # an error that it cannot go on with

    def __init__(
        self, link: str, ca: Path, key: Path, state: Path, worker: Worker, wait: float | None,
        say: Callable[[str], None],
    ):  # fmt: skip
        self.link, self.key, self.worker, self.wait, self.say = link, key, worker, wait, say
        self._private = private_key(key)
        self.number = number_of(self._private.public_key())
        self._caller = Caller(link, ca, lambda: self._private)
        self._questions: queue.SimpleQueue[tuple[Letter, list[bytes]] | None] = queue.SimpleQueue()
        self._busy: set[str] = set()  # questions under way
        self._kept: dict[str, tuple[Letter, list[bytes]]] = {}  # the last answers, which may be asked for again
        self._known = state / "number"
        self.over = threading.Event()
        self._told = False  # whether the link has ever answered
        self._missing: float | None = None  # since when it does not
        self._reminder = 0.0

    def start(self) -> None:
        """Start both threads."""
        for work in (self._listen, self._work):
            threading.Thread(target=self._safely, args=(work,), daemon=True).start()

    def stop(self) -> None:
        """Let them end, after their last request; what the node was asked stays at the link."""
        self.over.set()
        self._questions.put(None)

    def _safely(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # the main thread raises it
            if not self.over.is_set():
                self.failed = error

    # ---- questions

    def _listen(self) -> None:
        waits, poll = pauses(), POLL
        while not self.over.is_set():
            began = time.monotonic()
            try:
                # At first it asks whether it is known; at work it says often what it has, to a link started anew.
                asks = {"has": [*self._busy], "seconds": 0 if not self._there() else _BUSY if self._busy else poll}
                table, parts = self._caller.call("/question", asks, seconds=POLL + 15)
                self._reached()
                waits = pauses()
                for letter in table["letters"]:
                    self._take(letter, parts)
            except Away as away:
                if (lasted := time.monotonic() - began) > 2 * _BUSY:  # a proxy may end requests that take so long
                    poll = min(poll, lasted / 2)
                self._note_missing(f"the link at {self.link} cannot be reached ({away})", self.wait)
                self.over.wait(next(waits))
            except Refused as refused:
                self._note_refusal(refused)
                self.over.wait(1.0)

    def _take(self, letter: Letter, parts: dict[str, bytes]) -> None:
        """Take a question, if it is one to this node that has not been taken."""
        mine = letter.node == self.number and letter.start == self._caller.start and letter.until > self._caller.now()
        if not mine or letter.id in self._busy:
            self.say("a question was not for this node, or too old: it is left alone")
            self.over.wait(1.0)
            return
        contents: list[bytes] = []
        if letter.id in self._kept:
            pass  # it is asked again, at a link that was started anew
        elif not self._caller.trusts(QUESTION, letter.text, letter.signature):
            self.say(_UNTRUSTED)
            self._keep(letter, [json.dumps({"error": _UNTRUSTED}).encode()])
        else:
            contents = self._caller.contents(letter, parts)
        self._busy.add(letter.id)
        self._questions.put((letter, contents))

    def _keep(self, question: Letter, answer: list[bytes], *failed: str) -> tuple[Letter, list[bytes]]:
        """Sign an answer, and keep it until it has been brought."""
        self._kept[question.id] = kept = question.answered(self._private, answer, *failed), answer
        return kept

    def _work(self) -> None:
        while (taken := self._questions.get()) is not None and not self.over.is_set():
            letter, parts = taken
            if letter.until < self._caller.now():  # nobody waits for its answer any more
                self._busy.discard(letter.id)
                continue
            if letter.id not in self._kept:
                try:
                    self._keep(letter, self.worker.ask(parts, self.over))
                except Gone:
                    if self.over.is_set():
                        return
                    self._keep(letter, [b"{}"], "the node's worker is gone")
            del parts, taken
            self._bring(letter)
            self._busy.discard(letter.id)
            while len(self._kept) > 1 and sum(each.size for each, _ in [*self._kept.values()][:-1]) > _KEPT:
                del self._kept[next(iter(self._kept))]

    def _bring(self, question: Letter) -> None:
        """Bring an answer to the link, as long as the question is there."""
        letter, parts = self._kept[question.id]
        waits = pauses()
        while not self.over.is_set() and question.until > self._caller.now():
            try:
                small = self._caller.upload(letter, parts, set())
                self._caller.call("/answer", {"letter": letter.sent}, small.values())
                return
            except Refused as refused:
                if refused.status == 404:  # it is answered, or the run is over, or asks again at a link started anew
                    return
                self.say(f"the link at {self.link} does not take an answer (HTTP {refused.status}): {refused}")
                if refused.status == 413:
                    letter, parts = self._keep(question, [json.dumps({"error": f"the answer: {refused}"}).encode()])
            except Away:
                pass  # the other thread says so
            self.over.wait(next(waits))

    # ---- the link

    def _reached(self) -> None:
        if not self._there():
            first = f"this is node {self.number} at {self.link}"
            self.say(f"the link at {self.link} is there" if self._told else first)
            write_atomic(self._known, str(self.number))
        self._told, self._missing, self._reminder = True, None, 0.0

    def _there(self) -> bool:
        return self._told and self._missing is None

    def _note_missing(self, text: str, patience: float | None, then: str = "") -> None:
        """Say that the node waits, or raise an error after ``patience`` seconds; ``None``: there is no end."""
        now = time.monotonic()
        self._missing = now if self._missing is None else self._missing
        if patience is not None and now - self._missing >= patience:
            raise NodeError(f"{text}{then or f', for {patience:g} s'}")
        if now >= self._reminder:
            self._reminder = now + _REMIND
            self.say(f"{text}; waiting for it")

    def _note_refusal(self, refused: Refused) -> None:
        """Handle a refusal of the link."""
        text, before = f"the link at {self.link} does not know the key {self.key}.pub", ""
        with suppress(OSError):
            before = self._known.read_text()
        match refused.status:
            case 403 if before == str(self.number):
                then = ": its coordinator has removed it. It can be put back; then start this node again"
                self._note_missing(f"{text} any more", _REMOVED, then)
            case 403:
                then = ": the coordinator has to put it into the link's folder nodes"
                self._note_missing(f"{text} yet; it has to be put into the link's folder nodes", self.wait, then)
            case 409:
                text = f"another node with the key {self.key} is at the link at {self.link}"
                self._note_missing(text, _TAKEN, ": end it, or give this node a key of its own")
            case 404 | 429:  # the run does not ask any more; or there were too many requests
                pass
            case status:
                raise NodeError(f"the link at {self.link} refuses this node (HTTP {status}): {refused}")
