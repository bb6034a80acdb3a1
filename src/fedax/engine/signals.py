"""Signals that end a run, held back until it has made a checkpoint."""

import signal
import threading
import time

import numpy as np

from fedax.contract.types import Unknown
from fedax.engine import processes

# Of several at once the last one here counts. Windows has no SIGHUP, which comes when a terminal is closed.
_ENDING = (signal.SIGINT, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []), signal.SIGTERM)
ONE = 0.5  # seconds within which two signals count as one: timeout(1) signals both a process and its group

_NOTE = "a checkpoint was made before; the same call goes on from it"


def kept(error: KeyboardInterrupt) -> bool:
    """Whether a checkpoint was made before; if so, by all processes, which end alike."""
    return _NOTE in getattr(error, "__notes__", ())


class HeldSignals:
    """Holds SIGINT, SIGHUP and SIGTERM back between :meth:`hold` and :meth:`release`, until it is safe to handle them.

    Ignored signals stay ignored. Outside of the main thread, which alone may handle signals, nothing is held back.
    """

    def __init__(self) -> None:
        self._before: dict[int, Unknown] = {}
        self._noted: tuple[int, float] | None = None  # which, and when

    def hold(self) -> None:
        """From now on, note the first signal; a second one is handled at once."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _ENDING:
            if (before := signal.getsignal(number)) not in (None, signal.SIG_IGN):
                self._before[number] = before
                signal.signal(number, self._note)

    def votes(self) -> np.ndarray:
        """Whether each of the signals was noted by this process, 0 or 1."""
        return np.array([self._noted is not None and self._noted[0] == number for number in _ENDING], np.int32)

    def deliver(self) -> None:
        """Handle, in all processes, the signal that any of them noted; of several the last of the list."""
        signals_ = [number for number, votes in zip(_ENDING, processes.total(self.votes()), strict=True) if votes]
        if signals_:
            try:
                self._handle(signals_[-1])
            except KeyboardInterrupt as error:
                error.add_note(_NOTE)
                raise

    def release(self) -> None:
        """Restore the handlers; then handle a signal that was noted and not delivered."""
        for number, before in self._before.items():
            signal.signal(number, before)
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
        else:  # the system's default, which ends the process
            if signum in self._before:
                signal.signal(signum, before)
            signal.raise_signal(signum)
