"""Tracking: the figures of a run in TensorBoard, MLflow, Weights & Biases, or a tool of your own.

A *tracker* is called when a run begins, with the method's label, the seed and the parameters, and gives a *log* for
this run. The log gets a row at each evaluation, and in the end the run's status::

    class Printed:
        def __init__(self, label, seed, params): ...
        def row(self, row): ...
        def end(self, status): ...

So a class with these three functions is a tracker. ``fedax.compare(track=…)``, the section ``track`` of a configuration
and :func:`fedax.simulate` (``callback=``, with a log) take it.

A row is that of the history: column -> value, with the round in ``round``. Of a private run it has the public columns
alone, :attr:`fedax.Run.public_columns`, and the parameters name no client. The ready-made trackers make each number of
a row one metric, under the name of its column, at the step ``round``; lists with a figure for each client are left out.
A run that continues from a checkpoint sends all its rows again. The ready-made trackers recognise the run by the
parameter ``run.id`` and replace its rows, or add the new ones, so that no row is there twice.

Tracking never ends a run: an error is reported by one warning, and the run goes on without tracking. Nothing leaves the
machine unless you ask for it: :class:`WandB` by its ``mode``, :class:`MLflow` by its ``uri``.
"""

import contextlib
import importlib.util
import os
import re
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol

from fedax.errors import ConfigError, TrackingWarning, caller_level
from fedax.files import slug
from fedax.registry import Registry

Row = Mapping[str, Any]
Params = Mapping[str, Any]


__all__ = ["Log", "MLflow", "TensorBoard", "WandB"]


class Writer(Protocol):
    """The log of one run, as a tracker returns it."""

    def row(self, row: Row, /) -> None:
        """One evaluation: column -> value."""

    def end(self, status: str, /) -> None:
        """The run's status, as of :class:`fedax.Run`; ``"unfinished"`` where it was stopped and may go on."""


Tracker = Callable[[str, int, Params], Writer]


class Log:
    """The tracking of one run; it can be a ``callback``. An error ends the tracking with a warning.

    Args:
        name: of the tracker, for warnings.
        open: returns the writer.

    Example:
        >>> class Printed:
        ...     def row(self, row):
        ...         print(row["round"], row["train_loss"])
        ...     def end(self, status):
        ...         print(status)
        >>> with Log("Printed", Printed) as log:
        ...     log.row({"round": 0, "train_loss": 2.5})
        0 2.5
        finished
    """

    def __init__(self, name: str, open: Callable[[], Writer]):
        self.name = name
        self.failed = False
        self._writer: Writer | None = None
        self._try(lambda: setattr(self, "_writer", open()))

    def row(self, row: Row) -> None:
        """Pass on one evaluation."""
        if (writer := self._writer) is not None:
            self._try(lambda: writer.row(row))

    __call__ = row

    def end(self, status: str = "finished") -> None:
        """Pass on the status of the run; later rows are ignored."""
        if (writer := self._writer) is not None:
            self._try(lambda: writer.end(status))
            self._writer = None

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end("finished" if kind is None else "unfinished")

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            self._writer, self.failed = None, True
            first = str(error).strip().partition("\n")[0]
            text = f"tracking by {self.name} failed ({type(error).__name__}: {first}); the run goes on without it"
            warnings.warn(text, TrackingWarning, stacklevel=caller_level())


def begin(tracker: Tracker, label: str, seed: int, params: Params) -> Log:
    """Call a tracker for a run that begins, and return its log.

    Example:
        >>> begin(print, "fedavg", 0, {"method.lr": 0.1}).failed
        fedavg 0 {'method.lr': 0.1}
        False
    """
    name = str(getattr(tracker, "__name__", type(tracker).__name__))
    log = Log(name, lambda: tracker(label, seed, params))
    return log._writer if isinstance(log._writer, Log) else log


@dataclass(frozen=True)
class TensorBoard:
    """A folder for TensorBoard: the curves of all runs, and their parameters in its tab HParams.

    A run is written to ``<folder>/<run folder>/<label>-seed<k>``. See it with ``tensorboard --logdir <folder>``.
    TensorBoard keeps seven digits of a number.

    Args:
        folder: where; made when the first run begins.

    Raises:
        ConfigError: tensorboardX is not installed.

    Source: the event files of https://www.tensorflow.org/tensorboard, by https://github.com/lanpa/tensorboardX.

    Example:
        >>> import fedax, tempfile
        >>> data, task = fedax.data.quadratics(clients=3, dimension=2), fedax.tasks.quadratic(2)
        >>> method, board = fedax.create("fedavg", lr=0.1), TensorBoard(tempfile.mkdtemp())
        >>> with board("fedavg", seed=0, params={"lr": 0.1}) as log:
        ...     run = fedax.simulate(method, task, data, rounds=4, callback=log)
    """

    folder: str | os.PathLike[str] = "tensorboard"

    def __post_init__(self) -> None:
        _installed("tensorboard", "tensorboardX")
        _path("folder", self.folder)

    def __call__(self, label: str, seed: int = 0, params: Params | None = None) -> Log:
        """The log of a run, which is a ``callback`` of :func:`fedax.simulate`."""
        return Log("TensorBoard", lambda: _TensorBoardWriter(Path(self.folder), label, seed, params or {}))


class _TensorBoardWriter:
    """Writes one run to event files."""

    def __init__(self, folder: Path, label: str, seed: int, params: Params):
        from tensorboardX import SummaryWriter
        from tensorboardX.summary import hparams

        mark = f".{params['run.id']}" if "run.id" in params else ""
        above = folder / slug(str(params["run.folder"])) if "run.folder" in params else folder
        place = _event_folder(above, f"{slug(label)}-seed{seed}", mark)
        self.writer = SummaryWriter(str(place), filename_suffix=mark)
        # Without the first summary, a list of parameters, TensorBoard collects those of all runs that it finds.
        _, start, self.over = hparams(_shown_params(label, seed, params), {})
        self.writer.file_writer.add_summary(start)
        self.writer.flush()

    def row(self, row: Row) -> None:
        for name, value in _numbers(row):
            self.writer.add_scalar(name, value, row["round"])
        self.writer.flush()

    def end(self, status: str) -> None:
        self.writer.add_text("status", status)
        if status in _GOOD:
            self.writer.file_writer.add_summary(self.over)
        self.writer.close()


def _event_folder(folder: Path, name: str, mark: str) -> Path:
    """The folder for a run's event files: the one that has its old files, which are removed, or else a free one."""
    number = 1
    while True:
        place = folder / (name if number == 1 else f"{name}-{number}")
        existing = list(place.glob("events.out.tfevents.*"))
        of_this_run = [path for path in existing if mark and path.name.endswith(mark)]
        if of_this_run or not existing:
            for path in of_this_run:
                path.unlink()
            return place
        number += 1


@dataclass(frozen=True)
class MLflow:
    """A store of MLflow: a run in it for each method and seed.

    See it with ``mlflow ui --backend-store-uri sqlite:///mlflow.db``. MLflow's own reports about its use are switched
    off, unless ``MLFLOW_DISABLE_TELEMETRY`` says otherwise.

    Args:
        uri: the store: a database in a file, ``sqlite:///<path>``; or a server, ``http://<host>:<port>``, to which the
            figures and parameters then go.
        experiment: its name in MLflow; default: that of the configuration, else ``fedax``.

    Raises:
        ConfigError: mlflow is not installed.

    Source: https://mlflow.org/docs/latest/ml/tracking.

    Example:
        >>> TRACKERS.get("mlflow").arguments  # the settings of a section [track] with name = "mlflow"
        {'uri': 'sqlite:///mlflow.db', 'experiment': None}
    """

    uri: str = "sqlite:///mlflow.db"
    experiment: str | None = None

    def __post_init__(self) -> None:
        _installed("mlflow", "mlflow")
        if not isinstance(self.uri, str) or not re.match(r"\w+:", self.uri):
            raise ConfigError(
                "uri", self.uri, "give sqlite:///<file>, or the address of a server, http://<host>:<port>"
            )
        _text("experiment", self.experiment)

    def __call__(self, label: str, seed: int = 0, params: Params | None = None) -> Log:
        """The log of a run, which is a ``callback`` of :func:`fedax.simulate`."""
        parameters = params or {}
        experiment = self.experiment or str(parameters.get("experiment", "fedax"))
        return Log("MLflow", lambda: _MLflowWriter(self.uri, experiment, label, seed, parameters))


class _MLflowWriter:
    """Writes one run to a store of MLflow, without the rows that are there already."""

    def __init__(self, uri: str, experiment: str, label: str, seed: int, params: Params):
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        self.client, self.last = MlflowClient(uri), -1
        with contextlib.suppress(MlflowException):  # it exists already; other errors show in the next line
            self.client.create_experiment(experiment)
        experiment_id = self.client.get_experiment_by_name(experiment).experiment_id
        if (mark := params.get("run.id")) is not None:
            for run in self.client.search_runs([experiment_id], f"tags.`fedax.run` = '{mark}'", max_results=1):
                self.run = run.info.run_id
                # Of private runs a tracker has public columns only.
                known = ("epsilon", "train_loss", "train_loss_sample", "val_loss")
                column = next((name for name in known if name in run.data.metrics), "test_loss")
                history = self.client.get_metric_history(self.run, column)
                self.last = max((point.step for point in history), default=-1)
                self.client.update_run(self.run, status="RUNNING")
                return
        tags = {} if mark is None else {"fedax.run": str(mark)}
        self.run = self.client.create_run(experiment_id, run_name=f"{label}, seed {seed}", tags=tags).info.run_id
        given = _shown_params(label, seed, params).items()
        self.client.log_batch(self.run, params=[Param(name, str(value)) for name, value in given])

    def row(self, row: Row) -> None:
        from mlflow.entities import Metric

        if row["round"] > self.last:
            now = int(1000 * time.time())
            metrics = [
                Metric(re.sub(r"[^\w.\-/ ]", "_", name), value, now, row["round"]) for name, value in _numbers(row)
            ]
            self.client.log_batch(self.run, metrics)

    def end(self, status: str) -> None:
        self.client.set_tag(self.run, "status", status)
        state = "FINISHED" if status in _GOOD else "KILLED" if status == "unfinished" else "FAILED"
        self.client.set_terminated(self.run, state)


@dataclass(frozen=True)
class WandB:
    """Weights & Biases: a run for each method and seed, all of one run folder in one group.

    Nothing is sent: the runs are written below ``<folder>/wandb``, and ``wandb sync`` sends them when you ask for it.
    ``mode="online"`` sends them as they go.

    Args:
        project: its name at Weights & Biases; default: that of the configuration, else ``fedax``.
        folder: where; it has to be there.
        mode: ``"offline"`` or ``"online"``.

    Raises:
        ConfigError: wandb is not installed.

    Source: https://docs.wandb.ai/ref/python.

    Example:
        >>> TRACKERS.get("wandb").arguments  # the settings of a section [track] with name = "wandb"
        {'project': None, 'folder': '.', 'mode': 'offline'}
    """

    project: str | None = None
    folder: str | os.PathLike[str] = "."
    mode: Literal["offline", "online"] = "offline"

    def __post_init__(self) -> None:
        _installed("wandb", "wandb")
        _text("project", self.project)
        _path("folder", self.folder)
        if self.mode not in ("offline", "online"):
            raise ConfigError("mode", self.mode, 'give "offline", with which nothing is sent, or "online"')

    def __call__(self, label: str, seed: int = 0, params: Params | None = None) -> Log:
        """The log of a run, which is a ``callback`` of :func:`fedax.simulate`."""
        return Log("WandB", lambda: _WandBWriter(self, label, seed, params or {}))


class _WandBWriter:
    """Writes one run to Weights & Biases."""

    def __init__(self, of: WandB, label: str, seed: int, params: Params):
        if of.mode == "offline":
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        place, mark = Path(of.folder), params.get("run.id")
        if not place.is_dir():  # wandb would use another folder
            raise NotADirectoryError(f"no folder: {place}")
        if of.mode == "offline" and mark is not None:  # else the run would be there twice
            for past in place.glob(f"wandb/offline-run-*-{mark}"):
                shutil.rmtree(past)
        self.run = wandb.init(
            project=of.project or slug(str(params.get("experiment", "fedax"))),
            group=params.get("run.folder"),
            name=f"{label}, seed {seed}",
            id=mark,
            config=_shown_params(label, seed, params),
            dir=str(place),
            mode=of.mode,
            resume=None if of.mode == "offline" or mark is None else "allow",
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )

    def row(self, row: Row) -> None:
        if row["round"] >= self.run.step:  # skips rows that a continued run has already
            self.run.log(dict(_numbers(row)), step=row["round"])

    def end(self, status: str) -> None:
        self.run.summary["status"] = status
        self.run.finish(exit_code=0 if status in _GOOD else 1)


_GOOD = ("finished", "worse", "stopped")  # statuses of completed runs


def _shown_params(label: str, seed: int, params: Params) -> dict[str, Any]:
    """The parameters that tools show: all but ``run.id``, which only identifies the run."""
    return {"label": label, "seed": seed, **{name: value for name, value in params.items() if name != "run.id"}}


def _numbers(row: Row) -> Iterator[tuple[str, float]]:
    """The numbers of a row, as (name, value).

    Example:
        >>> list(_numbers({"round": 3, "train_loss": 0.5, "bad_clients": [1, 2]}))
        [('train_loss', 0.5)]
    """
    return ((name, value) for name, value in row.items() if name != "round" and isinstance(value, int | float))


def _installed(tracker: str, package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ConfigError("track", tracker, f"it needs the package {package}: pip install 'fedax[track]'")


def _path(field: str, value: Any) -> None:
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise ConfigError(field, value, "give the path of a folder")


def _text(field: str, value: Any) -> None:
    if value is not None and not (isinstance(value, str) and value):
        raise ConfigError(field, value, "give a name")


TRACKERS = Registry("tracker")
TRACKERS.add("tensorboard", TensorBoard)
TRACKERS.add("mlflow", MLflow)
TRACKERS.add("wandb", WandB)
