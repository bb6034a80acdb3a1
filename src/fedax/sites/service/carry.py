"""Requests to a link: signed, with its time and the name of its start, and continued where a line breaks off."""

import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from fedax.errors import NodeError
from fedax.sites.service.certificates import Trust, by_proxy, connection_problem
from fedax.sites.service.letters import SMALL, Letter, Part, Refused, packed, unpacked
from fedax.sites.service.signature import GREETING, RunKeys, is_signed, stamped

_PIECE = 1 << 18  # bytes that are sent at a time
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds between two tries
_TRIES = 5  # of a transfer that does not get on
_EMPTY = hashlib.sha256().hexdigest()
_SLOW = 60.0  # seconds in which something has to come of a response that has begun
_MOST = 64 << 20  # bytes of a response, but for those of a large part
_FORMS: dict[str, dict[str, type]] = {  # what answers hold, by the path
    "/question": {"letters": list}, "/answers": {"letters": list, "here": list}, "/questions": {"refused": dict},
    "/nodes": {"nodes": list},
}  # fmt: skip


class Away(Exception):
    """The link cannot be reached at this moment."""


class Caller:
    """Makes requests to a link in the name of a node, or of a run.

    Args:
        address: of the link, ``host:port``.
        ca: the file ``ca.pem`` of the link's folder, or one to which the authority of a proxy was added.
        key: gives the private key.

    Attributes:
        process: the random name of this process.
        start: the random name of the link's start; empty: not known yet.
    """

    def __init__(self, address: str, ca: Path, key: Callable[[], EllipticCurvePrivateKey]):
        self.address, self.ca, self._key = address, ca, key
        self.process, self.start, self._ahead = secrets.token_hex(16), "", 0.0
        self._lock, self._runs = threading.Lock(), RunKeys(ca)
        trust: Any = Trust(ca)
        self._client = httpx.Client(
            base_url=f"https://{address}", verify=trust, timeout=httpx.Timeout(_SLOW, connect=10)
        )

    def close(self) -> None:
        """End all connections."""
        self._client.close()

    def now(self) -> float:
        """The link's clock, whatever this machine's is."""
        return time.monotonic() + self._ahead

    def trusts(self, purpose: str, text: str, signature: str) -> bool:
        """Whether the link or a run has signed a text, by the keys that ``ca.pem`` holds now, or held last."""
        return any(is_signed(key, purpose, text, signature) for key in self._runs.look().values())

    def hello(self) -> None:
        """Ask the link for its time and the name of its start, and check that it is the link that answers.

        Raises:
            Away, Refused: it does not.
            NodeError: another answers in its place.
        """
        stamp = stamped(self._key(), "-", 0.0, _EMPTY)
        began = time.monotonic()
        header = stamp.header(self._key(), "POST /hello")
        table, _ = _unpacked(self._send("POST", "/hello", b"", {"authorization": header}, 30.0), {})
        text, signature = str(table.get("text")), str(table.get("signature"))
        about = json.loads(text) if self.trusts(GREETING, text, signature) else {}
        if about.get("nonce") != stamp.nonce:
            raise NodeError(
                f"{self.address} is not the link of {self.ca}: its greeting is not signed with the link's key"
            )
        self.start, self._ahead = about["start"], about["now"] - (began + time.monotonic()) / 2

    def call(
        self, path: str, table: Mapping[str, Any], parts: Iterable[bytes] = (), seconds: float = 30.0
    ) -> tuple[dict[str, Any], dict[str, bytes]]:
        """What the link answers to a request: JSON, with its letters read, and parts by their digests.

        Args:
            path: what is asked.
            table, parts: what the request says.
            seconds: in which the answer begins.

        Raises:
            Away, Refused, NodeError: as of :meth:`hello`.
        """
        body = packed(dict(table), parts)
        digest = hashlib.sha256(body).hexdigest()
        came = self._signed("POST", f"{path}?as={self.process}", digest, lambda: body, seconds)
        return _unpacked(came, _FORMS.get(path, {}))

    def upload(self, letter: Letter, contents: Sequence[bytes], there: set[str]) -> dict[str, bytes]:
        """Bring the large parts of a letter to the link; the small ones, which go with the letter, by their digests.

        Args:
            letter, contents: the letter and its parts.
            there: the digests of large parts that were brought before; those of this letter are added.

        Raises:
            Away, Refused, NodeError: as of :meth:`hello`; the link cannot be reached, also after some tries.
        """
        parts = dict(zip(letter.parts, contents, strict=True))
        for part, content in parts.items():
            if part.size > SMALL and part.digest not in there:
                self._upload(part, memoryview(content))
                there.add(part.digest)
        return {part.digest: content for part, content in parts.items() if part.size <= SMALL}

    def _upload(self, part: Part, view: memoryview) -> None:
        """Bring a part to the link, piece by piece; it goes on where a connection has broken off."""
        have = 0

        def step() -> bool:
            nonlocal have
            for begin in (part.size, have):  # first without a body: what is there
                pieces = lambda begin=begin: (bytes(view[k : k + _PIECE]) for k in range(begin, part.size, _PIECE))  # noqa: E731
                path = f"/parts/{part.digest}?as={self.process}&at={begin}&size={part.size}"
                sent = self._signed("PUT", path, part.digest, pieces, _SLOW, part.size - begin)
                have = _unpacked(sent, {"have": int})[0]["have"]
            return have == part.size

        _onward(step, lambda: have)

    def download(self, part: Part) -> bytes:
        """Fetch a part from the link; it goes on where a connection has broken off.

        Raises:
            Away, Refused, NodeError: as of :meth:`upload`.
        """
        content = bytearray()

        def step() -> bool:
            path = f"/parts/{part.digest}?as={self.process}&at={len(content)}"
            self._signed("GET", path, _EMPTY, None, _SLOW, into=content, most=part.size)
            return len(content) >= part.size

        _onward(step, lambda: len(content))
        if hashlib.sha256(content).hexdigest() != part.digest:
            raise Away("what came is not what was said")
        return bytes(content)

    def contents(self, letter: Letter, given: Mapping[str, bytes]) -> list[bytes]:
        """The parts of a letter: those that came with it, and the others."""
        return [given[part.digest] if part.digest in given else self.download(part) for part in letter.parts]

    # ---- a request

    def _signed(
        self, method: str, path: str, digest: str, body: Callable[[], Any] | None, seconds: float,
        size: int | None = None, into: bytearray | None = None, most: int = _MOST,
    ) -> bytes:  # fmt: skip
        """Send a request with a new stamp; once more after a greeting, where the link has been started anew."""
        for again in (False, True):
            with self._lock:
                if not self.start or again:
                    self.hello()
            key = self._key()
            stamp = stamped(key, self.start, self.now(), digest)
            headers = {"authorization": stamp.header(key, f"{method} {path}")}
            if size is not None:
                headers["content-length"] = str(size)
            try:
                return self._send(method, path, body and body(), headers, seconds, into, most)
            except Refused as refused:
                if refused.status != 401 or again:
                    raise
        raise AssertionError

    def _send(
        self, method: str, path: str, body: Any, headers: Mapping[str, str], seconds: float,
        into: bytearray | None = None, most: int = _MOST,
    ) -> bytes:  # fmt: skip
        content = bytearray() if into is None else into
        try:
            timeout = httpx.Timeout(_SLOW, connect=10.0, read=seconds)
            with self._client.stream(method, path, content=body, headers=headers, timeout=timeout) as response:
                if response.status_code != 200:
                    why = next(response.iter_bytes(300), b"").decode(errors="replace")
                    if response.status_code >= 500:
                        raise Away(f"HTTP {response.status_code}: {why}")
                    raise Refused(response.status_code, why)
                for piece in response.iter_bytes():
                    if len(content) + len(piece) > most:
                        raise Away(f"this is no answer of a link: it has more than {most} bytes")
                    content += piece
                return bytes(content) if into is None else b""
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            raise Away(f"{connection_problem(self.address, self.ca) or reason}{by_proxy(self.address)}") from error


def _onward(step: Callable[[], bool], reached: Callable[[], int]) -> None:
    """Repeat a step until all is there; an error counts if no more is there than after the one before."""
    most, failed = -1, 0
    while True:
        error: Away | Refused = Away("the link keeps nothing of it")
        try:
            if step():
                return
        except Away as away:
            error = away
        except Refused as refused:
            if refused.status not in (400, 408, 409):  # else the connection was too slow, or is replaced by this one
                raise
            error = refused
        most, failed = max(most, reached()), 0 if reached() > most else failed + 1
        if failed > _TRIES:
            raise error
        time.sleep(_FIRST_PAUSE * 2**failed)


def _unpacked(body: bytes, form: Mapping[str, type]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The JSON of an answer, which holds values of these types under these names, and its parts."""
    try:
        table, parts = unpacked(body)
        if wrong := [name for name, kind in form.items() if not isinstance(table.get(name), kind)]:
            raise ValueError(f"it has no {wrong[0]}")
        if "letters" in form:
            table["letters"] = [Letter.read(each) for each in table["letters"]]
        return table, parts
    except ValueError as error:
        raise Away(f"this is no answer of a link: {error}") from error


def pauses() -> Iterator[float]:
    """Seconds between tries to reach a link, growing."""
    pause = _FIRST_PAUSE
    while True:
        yield pause
        pause = min(2 * pause, _LONGEST_PAUSE)
