"""Hands the rows of an experiment's runs to a tracker."""

import contextlib
import hashlib
import json
import pathlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import fedax
from fedax.engine.private import of_public
from fedax.experiments.runs import begun
from fedax.tracking import Log, Params, Row, Tracker, begin

_LONGEST = 500  # the most characters of a parameter, a former limit of MLflow


class Logs:
    """The logs of the runs that are under way.

    Args:
        track: the tracker; it is not called again after its first failure. ``None``: there is no tracker.
        config: the whole configuration.
        folder: the run folder.
        public: the columns of private runs that may be tracked, see :func:`fedax.engine.private.public`; ``None``: all.
    """

    def __init__(
        self,
        track: Tracker | None,
        config: Mapping[str, Any],
        folder: pathlib.Path,
        public: Collection[str] | None = None,
    ):
        self.track, self.config, self.folder, self.public = track, config, folder, public
        self.logs: dict[tuple[str, int], Log] = {}

    def row(self, label: str, seed: int, row: Row) -> None:
        """Hand on one evaluation."""
        if (log := self.logs.get((label, seed))) is not None:
            log.row(of_public(row, self.public))
            self._stop_if_failed(log)

    @contextlib.contextmanager
    def of(self, runs: Sequence[tuple[str, int]]) -> Iterator[Callable[[Sequence[str]], None]]:
        """Track runs side by side; yields a function that takes their statuses in the end."""
        for label, seed in runs:
            if self.track is not None:
                parameters = params(self.config, self.folder, label, seed, self.public is not None)
                log = begin(self.track, label, seed, parameters)
                self.logs[label, seed] = log
                self._stop_if_failed(log)
        ended: list[str] = []
        try:
            yield ended.extend
        finally:
            for run, status in zip(runs, ended or ["unfinished"] * len(runs), strict=True):
                if run in self.logs:
                    log = self.logs.pop(run)
                    log.end(status)
                    self._stop_if_failed(log)

    def _stop_if_failed(self, log: Log) -> None:
        if log.failed:
            self.track = None
            self.logs.clear()


def params(config: Mapping[str, Any], folder: pathlib.Path, label: str, seed: int, private: bool = False) -> Params:
    """The parameters of a run as one flat table of numbers, truth values and texts; lists and tables become JSON.

    Args:
        config: the whole configuration.
        folder: the run folder.
        label, seed: of the run.
        private: whether to leave out what may identify clients: all about the data but its name, and lists with an
            entry for each client, such as the local steps.
    """
    about = begun(folder) or {}
    (method,) = (row for row in config["methods"] if row["label"] == label)
    text = "/".join([about.get("id") or about.get("started", ""), label, str(seed)])
    sections = {name: config[name] for name in ("data", "task", "work", "participation", "run")}
    if private:
        single = {name: _single(sections[name]) for name in ("work", "participation", "run")}
        sections |= {"data": {"name": config["data"]["name"]}} | single
    sections |= {"privacy": config["privacy"]} if "privacy" in config else {}
    if "clock" in config:
        sections["clock"] = _single(config["clock"]) if private else config["clock"]
    sections["method"] = {name: value for name, value in method.items() if name != "label"}
    flat = {f"{section}.{key}": _plain(value) for section, table in sections.items() for key, value in table.items()}
    general = {"experiment": config["name"], "label": label, "seed": seed, "fedax": fedax.__version__}
    identity = {"run.folder": folder.name, "run.id": hashlib.sha256(text.encode()).hexdigest()[:12]}
    return general | flat | identity


def _single(table: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are single values; lists may have an entry for each client.

    Example:
        >>> _single({"kind": "steps", "steps": [3, 8, 1]})
        {'kind': 'steps'}
    """
    return {name: value for name, value in table.items() if not isinstance(value, list | tuple | Mapping)}


def _plain(value: Any) -> bool | int | float | str:
    """A value as a tracker can show it, of at most 500 characters.

    Example:
        >>> _plain(0.5), _plain({"evaluations": 3}), len(_plain([0] * 1000))
        (0.5, '{"evaluations": 3}', 500)
    """
    if isinstance(value, bool | int | float | str):
        return value if not isinstance(value, str) else value[:_LONGEST]
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
