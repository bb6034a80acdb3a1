"""A worker process of this machine: calls come by standard input, results go by standard output."""

import os
import pickle
import signal
import sys
from typing import Any, NoReturn


def _stop(signum: int, frame: Any) -> NoReturn:
    """End the call that is under way like Ctrl-C: it may make a checkpoint, and removes its temporary files."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _take_calls() -> None:
    with os.fdopen(os.dup(1), "wb") as results:
        os.dup2(2, 1)  # what a job prints is no part of its result
        while True:
            try:
                fn, args, kwargs = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            pickle.dump(fn(*args, **kwargs), results)
            results.flush()


signal.signal(signal.SIGTERM, _stop)
try:
    _take_calls()
except KeyboardInterrupt:
    sys.exit(128 + signal.SIGTERM)
