"""Signals that ask a run to end, held back until it has made a checkpoint."""

import signal
import threading
import time

import numpy as np

from fedax.contract.types import Unknown
from fedax.engine import processes

# Of several at once the last of these counts. Windows has no SIGHUP, which comes when a terminal is closed.
_ENDING = (signal.SIGINT, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []), signal.SIGTERM)
ONE = 0.5  # seconds within which two signals are one: timeout(1) and others signal a process and its group too

_KEPT = "a checkpoint was made before; the same call goes on from it"


def kept(error: KeyboardInterrupt) -> bool:
    """Whether a checkpoint was made before; if so, by all processes, which end alike."""
    return _KEPT in getattr(error, "__notes__", ())


class Held:
    """SIGINT, SIGHUP, SIGTERM between :meth:`hold` and :meth:`release`: noted, and handled as ever when that is safe.

    What is ignored stays so, and outside of the main thread, which alone may handle signals, nothing is held.
    """

    def __init__(self) -> None:
        self._before: dict[int, Unknown] = {}
        self._noted: tuple[int, float] | None = None  # which, and when

    def hold(self) -> None:
        """From now on, note the first signal; a second one is handled at once."""
        if threading.current_thread() is not threading.main_thread():
            return
        for each in _ENDING:
            if (before := signal.getsignal(each)) not in (None, signal.SIG_IGN):
                self._before[each] = before
                signal.signal(each, self._note)

    def votes(self) -> np.ndarray:
        """Whether each of the signals was noted by this process, 0 or 1."""
        return np.array([self._noted is not None and self._noted[0] == each for each in _ENDING], np.int32)

    def deliver(self) -> None:
        """Handle what was noted, by any process in all: of several signals the last of the list."""
        asked = [each for each, votes in zip(_ENDING, processes.total(self.votes()), strict=True) if votes]
        if asked:
            try:
                self._handle(asked[-1])
            except KeyboardInterrupt as error:
                error.add_note(_KEPT)
                raise

    def release(self) -> None:
        """Handle signals as before; first what was noted and not delivered."""
        for each, before in self._before.items():
            signal.signal(each, before)
        if self._noted is not None:
            self._handle(self._noted[0])

    def _note(self, signum: int, frame: Unknown) -> None:
        if self._noted is None:
            self._noted = signum, time.monotonic()
        elif time.monotonic() - self._noted[1] > ONE:
            self._handle(signum)

    def _handle(self, signum: int) -> None:
        self._noted = None
        before = self._before.get(signum, signal.getsignal(signum))
        if callable(before):
            before(signum, None)
        else:  # the system's way, which is the end
            if signum in self._before:
                signal.signal(signum, before)
            signal.raise_signal(signum)
