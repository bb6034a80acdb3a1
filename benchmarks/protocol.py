"""The protocol of the benchmark and its contenders: a process each, one line of JSON a request, one a reply."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


class Contender:
    """One way to run one case."""

    def train(self, rounds: int) -> dict[str, float]:
        """Run from the initial model; ``seconds`` and local ``steps``, each a round."""
        raise NotImplementedError

    def losses(self, rounds: int) -> list[float]:
        """The objective before and after so many rounds from the initial model."""
        raise NotImplementedError

    def parameters(self) -> list[list[float]]:
        """The present model: kernels and biases in the layout of the case, flat."""
        raise NotImplementedError

    def warm_up(self, seconds: float) -> int:
        """The number of rounds that take about so long."""
        self.train(1)
        rounds = 1
        while (spent := rounds * self.train(rounds)["seconds"]) < seconds / 4:
            rounds *= 2
        return max(1, round(rounds * seconds / spent))


def serve(contender: Contender) -> None:
    """Answer requests ``{"call": name, "args": {...}}`` from stdin by calling that method, until stdin ends.

    Whatever else the process prints goes to stderr.
    """
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        reply = getattr(contender, request["call"])(**request["args"])
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


@contextlib.contextmanager
def process(python: str, script: str, *arguments: str) -> Iterator[Callable[..., Any]]:
    """Start a contender; yields ``call(name, **args)``. Between calls it waits for its stdin and takes no time."""
    command = [python, str(Path(__file__).with_name(script)), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:

        def call(name: str, **args: Any) -> Any:
            child.stdin.write(json.dumps({"call": name, "args": args}) + "\n")
            child.stdin.flush()
            if not (reply := child.stdout.readline()):
                raise SystemExit(f"the contender ended: {' '.join(command)}")
            return json.loads(reply)

        try:
            yield call
        finally:
            child.stdin.close()
