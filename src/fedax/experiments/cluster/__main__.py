"""The process of one call: its core is the argument; the call comes by standard input, its result goes by output."""

import os
import pickle
import sys

if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {int(sys.argv[1])})
with os.fdopen(os.dup(1), "wb") as answer:
    os.dup2(2, 1)  # what a job prints is no part of the answer
    fn, args, kwargs = pickle.load(sys.stdin.buffer)
    pickle.dump(fn(*args, **kwargs), answer)
