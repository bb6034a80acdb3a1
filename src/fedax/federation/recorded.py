"""Recorded arrivals: how long each piece of work took at real nodes, by its number, for a clock that replays them."""

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedax.errors import ConfigError, DataError

COLUMNS = ("number", "client", "version", "begun", "seconds")  # of a file with a row for each answer, as they came


class Recorded:
    """How long each piece of work took, by its number; one without an answer takes for ever.

    Args:
        clients: number -> the client's name.
        seconds: number -> seconds from its begin to its answer.

    Example:
        >>> Recorded({0: "a", 1: "b"}, {0: 2.0, 1: 0.5})
        Recorded(2 answers of 2 clients, c79b51c2)
    """

    anew = True

    def __init__(self, clients: Mapping[int, str], seconds: Mapping[int, float]):
        self.clients, self.seconds = dict(clients), dict(seconds)
        self._names: Sequence[str] = ()

    @classmethod
    def read(cls, path: Path, rows: Any) -> "Recorded":
        """From the rows of a file with :data:`COLUMNS`.

        Raises:
            DataError: a cell that is no number, a number of work that comes twice, or no row.
        """
        clients: dict[int, str] = {}
        seconds: dict[int, float] = {}
        for row in rows:
            try:
                number, client, took = int(row["number"]), str(row["client"]), float(row["seconds"])
                if number in clients or number < 0 or not 0 <= took < np.inf:
                    raise ValueError(f"number {number}, {took} seconds")
            except (TypeError, ValueError) as error:
                raise DataError(f"{path}, line {rows.line_num}: no answer of a run ({error})") from error
            clients[number], seconds[number] = client, took
        if not clients:
            raise DataError(f"{path}: no answer in it")
        return cls(clients, seconds)

    def bind(self, names: Sequence[str]) -> "Recorded":
        """The trace for clients with these names."""
        bound = Recorded(self.clients, self.seconds)
        bound._names = names
        return bound

    def of(self, numbers: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """The seconds of pieces of work of clients.

        Raises:
            ConfigError: the work was another client's.
        """
        numbers, ids = np.broadcast_arrays(numbers, ids)
        found = np.full(numbers.shape, np.inf)
        for at in np.ndindex(numbers.shape):
            number, name = int(numbers[at]), self._names[int(ids[at])]
            if (whose := self.clients.get(number, name)) != name:
                why = f"the recorded answer {number} is client {whose}'s, and here client {name} starts then"
                hint = "give the pace, the seed, the method and the clients of the run that was recorded"
                raise ConfigError("clock", repr(self), f"{why}: {hint}")
            found[at] = self.seconds.get(number, np.inf)
        return found

    def __repr__(self) -> str:
        digest = zlib.crc32(repr((self.clients, self.seconds)).encode())
        return f"Recorded({len(self.clients)} answers of {len({*self.clients.values()})} clients, {digest:08x})"
