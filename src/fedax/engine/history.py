"""The history of a run: its rows, what they cost, and how it ended."""

import dataclasses
import math
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import jax
import numpy as np

from fedax.columns import COSTS, HEARD, TIME, TRAFFIC, TRAIN, deciding, describe, measures, show
from fedax.contract.types import Tree, Unknown
from fedax.engine.checkpoint import Best
from fedax.engine.evaluate import excluded
from fedax.engine.job import Origin
from fedax.engine.loop import Counters, State
from fedax.engine.personal import PersonalModels
from fedax.engine.plan import ExchangeForm
from fedax.engine.private import of_public
from fedax.engine.saved import Model, client_file, model_of, save_as
from fedax.errors import ConfigError, unknown

if TYPE_CHECKING:
    from fedax.figures import Drawing

MOST_SAVED = 100  # clients of whom a run folder has own models
_PLOTTED = ("test_loss", "val_loss", *TRAIN, "epsilon")  # the first of these is drawn where no column is named
FAILED = ("diverged", "worse", "failed")  # the statuses of runs whose last model is of no use


class Row(dict[str, Unknown]):
    """An evaluation, column -> value, as callbacks get it.

    Attributes:
        status: of the last one of a run, as of :class:`Run`, unless its ``until`` ends it; else ``None``.

    Example:
        >>> Row({"round": 8}, "stopped").status, Row({"round": 8})["round"]
        ('stopped', 8)
    """

    def __init__(self, values: Mapping[str, Unknown], status: str | None = None):
        super().__init__(values)
        self.status = status


class Run:
    """The outcome of :func:`simulate`.

    Attributes:
        params: the delivered model, a pytree as the task's ``init`` gives it.
        state: the server's state after the last round; ``None`` in a sweep.
        memory: what the clients keep, leaves [N, ...]; where it is not on the device a ``ClientMemory``, of which
            ``memory[ids]`` gives rows; ``None`` in a sweep.
        history: column -> array with one entry an evaluation, the first at round 0. Columns: ``round``;
            ``train_loss``, F(x) = Σ p_i F_i(x); ``objective``, F(x) + ψ(x), of methods that have a ψ; ``density``,
            where asked; ``grad_norm_sq``, ‖∇F(x)‖², where asked; ``val_loss``, ``val_<metric>``, ``test_loss`` and
            ``test_<metric>``, of the held-out examples, and where asked the same with ``_per_client``, lists with a
            figure for each client; and the cost so far: ``clients`` (participations),
            ``local_steps``, ``gradients`` (minibatch gradients), ``bytes_down``, ``bytes_up`` (over all clients) and
            ``seconds`` (of training; compilation and evaluation are not in it; of runs side by side, each one's
            share). With privacy: ``epsilon``, what is spent. With a guard, and where clients may drop out:
            ``left_out``, how many uploads have been left out so far; ``bad_clients``, a list of those whose they were,
            of the first hundred; ``skipped``, how many rounds changed nothing for want of clients. Of real clients:
            ``heard``, the share of the weight of those whose nodes were heard in this evaluation; ``wire_down`` and
            ``wire_up``, bytes on the network as it is; ``waited``, seconds that the server waited for answers. With a
            clock: ``time``, simulated seconds; of real clients measured ones. With a pace: ``staleness``,
            ``staleness_max`` and ``dropped``; the version of the server's model is the ``round``.
        status: ``"finished"``; ``"stopped"`` where ``until`` was true before the last round, or the budget of privacy
            was spent; ``"worse"`` where it came to its last round, or patience ended it, with an objective above that
            at the start (see :func:`ended_worse`); ``"diverged"`` where the loss was no longer finite; ``"failed"``
            where a guard stopped it.
        left_out: client -> how often its uploads were left out; ``None`` in a sweep.
        arrivals: [N] how many answers of each client the server's steps took; ``None`` where it waits for all clients
            of a round.
        compile_seconds: time spent on tracing and compiling before round 1; not-a-number of a public run.
        public_columns: of a private run the columns in which nothing is that ε does not cover, and public data;
            ``None`` of another run. :meth:`public` has them alone.
        best: with ``Checkpoints(best=…)``, the ``round`` at which that column was best, its ``value`` and the model
            then, ``params``; else ``None``.

    Example:
        >>> import fedax
        >>> data, task = fedax.data.quadratics(clients=3, dimension=2), fedax.tasks.quadratic(2)
        >>> run = fedax.simulate(fedax.create("fedavg", lr=0.1), task, data, rounds=4, evaluate_every=2)
        >>> run.status, run.history["round"].tolist()
        ('finished', [0, 2, 4])
    """

    best: Best | None = None
    counts: Mapping[str, Unknown] = MappingProxyType({})  # of scores at nodes, by part: see fedax.metrics.AUC

    def __init__(
        self,
        rows: list[dict[str, Unknown]],
        state: State | None,
        params: Tree,
        status: str,
        compile_seconds: float,
        origin: Origin,
        public_columns: tuple[str, ...] | None = None,
        arrivals: np.ndarray | None = None,
        models: PersonalModels | None = None,
    ):
        self.params, self.arrivals, self._models = params, arrivals, models
        self.state = None if state is None else state.server
        self.memory = None if state is None else state.memory
        self.left_out = None if state is None else _times_left_out(state.exclusions)
        self.history = {name: column_of([row[name] for row in rows]) for name in rows[0]}
        self.status, self.compile_seconds = status, compile_seconds
        self.public_columns = public_columns
        self._origin = origin

    @property
    def model(self) -> Model:
        """The delivered model, which predicts."""
        return model_of(self._origin, self.params)

    def personal(self, client: int | str) -> Tree:
        """A client's own model after the last round, of a method that gives each client one.

        Args:
            client: its number, or its name.

        Returns:
            A pytree like :attr:`params`. A client that never took part takes ``newcomer_turns`` turns first.

        Raises:
            ConfigError: the method has no personal models, or the run kept no state; there is no such client.

        Example:
            >>> import fedax
            >>> data, task = fedax.data.quadratics(clients=3, dimension=2), fedax.tasks.quadratic(2)
            >>> run = fedax.simulate(fedax.create("ditto", lr=0.1), task, data, rounds=4)
            >>> run.personal(2).shape
            (2,)
        """
        if self._models is None:
            hint = "personal models are those of a run of ditto, mr-mtl, ifca, ... by fedax.simulate to its end"
            hint += ", in one process; those of real clients stay at their nodes, in their folders models"
            raise ConfigError("run.personal", client, hint)
        return self._models.of(client)

    def save(self, path: str | os.PathLike[str], best: bool = False) -> None:
        """Write the delivered model, and what it takes to predict with it, to a file for :func:`fedax.load_model`.

        Args:
            path: ``*.safetensors``; a file that is there is replaced. Tensors are called by their paths in the pytree.
            best: the best model, where ``Checkpoints(best=…)`` kept one.

        Raises:
            ConfigError: there is no best model.
            OSError: the file cannot be written.

        Example: see :class:`fedax.Model`.
        """
        save_run(self, path, best)

    def public(self) -> "Run":
        """What may be published of a private run: all of it is covered by ε, or made of public data.

        Returns:
            A run with the model, the best model where one was kept, the status, and the history's
            :attr:`public_columns`. It has no state, no client memory and no seconds; and its model none of what was
            counted in clients' tables: it predicts from arrays, and gives classes by their numbers from 0 on.

        Raises:
            ConfigError: the run is not private; or its noise was made of ``noise_seed``, which hides nothing.

        Example:
            >>> import fedax
            >>> data, task = fedax.data.quadratics(clients=3, dimension=2), fedax.tasks.quadratic(2)
            >>> data = data.with_weights(np.full(3, 1 / 3))
            >>> dp = fedax.DP(clip=1.0, noise=4.0, delta=1e-3)
            >>> run = fedax.simulate(fedax.create("fedavg", lr=0.1), task, data, rounds=4, privacy=dp)
            >>> run.public()
            Run(finished at round 4, epsilon=1.35228)
            >>> sorted(run.public().history)
            ['epsilon', 'round']
        """
        if self.public_columns is None:
            hint = "this run is not private; it is with privacy=fedax.DP(…) of noise above 0 and no noise_seed"
            raise ConfigError("privacy", None, hint)
        history = of_public(self.history, self.public_columns)
        rows = [dict(zip(history, values, strict=True)) for values in zip(*history.values(), strict=True)]
        origin = self._origin._replace(labels=None, transform=None)
        run = Run(rows, None, self.params, self.status, math.nan, origin, self.public_columns)
        run.best = self.best
        return run

    def to_pandas(self) -> Unknown:
        """The history as a ``pandas.DataFrame``."""
        import pandas  # slow to import

        return pandas.DataFrame(self.history)

    def plot(self, x: str = "rounds", column: str | None = None) -> "Drawing":
        """A curve of the history, as a Matplotlib figure; :func:`fedax.figures.write` writes it to a file.

        Args:
            x: what it is drawn against: ``"rounds"``, ``"bytes"``, ``"uploads"`` (bytes up only), ``"seconds"``,
                ``"time"`` (of a run with a clock), ``"gradients"``, ``"local_steps"``, or of a private run
                ``"epsilon"``.
            column: the measure; default: the test loss, or without a test part that of validation or of training, of
                personal models where the method has them; of a public run without any ``"epsilon"``.

        Raises:
            ConfigError: no such axis or column.

        Example:
            >>> import fedax
            >>> data, task = fedax.data.quadratics(clients=3, dimension=2), fedax.tasks.quadratic(2)
            >>> run = fedax.simulate(fedax.create("fedavg", lr=0.1), task, data, rounds=4)
            >>> run.plot("bytes").axes[0].get_ylabel()
            'Train loss'
        """
        from fedax.figures import Series, along, curves  # slow

        known = [*measures(self.history), *({"epsilon"} & self.history.keys())]
        column = deciding(next(name for name in _PLOTTED if name in known), known) if column is None else column
        if column not in known:
            raise unknown("column", column, known)
        gone = "diverged" if self.status == "diverged" else ""
        return curves(
            [
                Series(
                    "", along(self.history, x), np.array([self.history[column]], float), gone, self.history.get(HEARD)
                )
            ],
            x=x,
            column=column,
        )

    def _repr_html_(self) -> str:
        from fedax import notebook

        first, last = ({name: column[at] for name, column in self.history.items()} for at in (0, -1))
        names = [name for name in (*measures(self.history), *COSTS[1:], TIME, "epsilon") if name in self.history]
        rows = [[describe(name).label, show(name, first[name]), show(name, last[name])] for name in names]
        head = ["", "At the start", f"Round {last['round']}"]
        text = f"{self.status} at round {last['round']}"
        return notebook.paragraph(f"Run {text}.") + notebook.table(head, rows) + notebook.image(self.plot(), text)

    def __repr__(self) -> str:
        last = {name: column[-1] for name, column in self.history.items()}
        name = deciding(next(name for name in (*TRAIN, "val_loss", "test_loss", "epsilon") if name in last), last)
        return f"Run({self.status} at round {last['round']}, {name}={last[name]:.6g})"


def save_run(
    run: Run, path: str | os.PathLike[str], best: bool = False, of: str = "", threshold: float | None = None
) -> None:
    """Save a run's model as :meth:`Run.save` does, in a file that says what it is: ``of``; and its ``threshold``."""
    if best and run.best is None:
        raise ConfigError("best", True, "no best model was kept; run with Checkpoints(best='test_loss')")
    model = model_of(run._origin, run.best.params if best and run.best is not None else run.params)
    save_as(dataclasses.replace(model, threshold=threshold), path, of)


def save_personal(run: Run, folder: pathlib.Path, of: Callable[[pathlib.Path], str]) -> None:
    """Save each client's own model to a file in a folder, which says what it is; of many clients, none.

    Args:
        run: of any method.
        folder: made if there is something to save.
        of: as of :func:`save_run`, of the file.
    """
    models = run._models
    if models is None or len(models.names) > MOST_SAVED:
        return
    folder.mkdir(parents=True, exist_ok=True)
    shared = model_of(run._origin, run.params)
    for number, name in enumerate(models.names):
        path = folder / client_file(name)
        save_as(dataclasses.replace(shared, params=models.of(number)), path, of(path))


def tidy(runs: Iterable[tuple[Mapping[str, Unknown], Mapping[str, np.ndarray]]]) -> Unknown:
    """A ``pandas.DataFrame`` of histories with one value in each row: ``round``, ``column``, ``value``.

    Args:
        runs: what tells a run from the others, name -> value, which get columns before these; and its history.
    """
    import pandas  # slow to import

    frames = [pandas.DataFrame(columns=["round", "column", "value"])]
    for names, history in runs:
        frame = pandas.DataFrame(dict(history)).melt("round", var_name="column")
        for k, (name, value) in enumerate(names.items()):
            frame.insert(k, name, [value] * len(frame))
        frames.append(frame)
    return pandas.concat(frames[1:] or frames, ignore_index=True)


def ended_worse(objective: Sequence[float] | np.ndarray) -> bool:
    """Whether a run ended worse than it began, by more than noise.

    That is if it is no longer finite; or by more than one percent of the first value, and where one of the last
    evaluations (a tenth of all, at least three) is not above the first, also by more than their standard deviation.

    Args:
        objective: at each evaluation, the first at round 0.

    Example:
        >>> ended_worse([2.3, 1e30, 4e28]), ended_worse([2.3, 2.301]), ended_worse([0.7, 0.75, 0.69, 0.72])
        (True, False, False)
    """
    values = np.asarray(objective, float)
    if not np.isfinite(values[-1]):  # of clients' own models, where the shared one did not diverge; or it is undefined
        return bool(np.isfinite(values).any())
    first, last, tail = values[0], values[-1], values[1:][-tail_of(len(values)) :]
    with np.errstate(all="ignore"):  # numbers near the largest there are
        noise = float(np.std(tail, ddof=1)) if tail.size > 1 and tail.min() <= first else 0.0
        return bool(last - first > max(0.01 * abs(first), noise))


def tail_of(evaluations: int) -> int:
    """How many of a run's evaluations are its last ones: a tenth, at least three."""
    return max(3, round(evaluations / 10))


def column_of(values: Sequence[Unknown]) -> np.ndarray:
    """A column of the history as an array; lists become an array of objects."""
    if not isinstance(values[0], list):
        return np.asarray(values)
    column = np.empty(len(values), object)
    column[:] = values
    return column


def _times_left_out(exclusions: Tree) -> dict[int, int]:
    """Client -> the number of its uploads that were left out."""
    times = np.asarray(exclusions.left_out) if exclusions else np.zeros(0, np.int32)
    ids = np.flatnonzero(times)
    return dict(zip(ids.tolist(), times[ids].tolist(), strict=True))


class History:
    """The rows of a run so far, and its costs."""

    def __init__(
        self,
        forms: tuple[list[ExchangeForm], list[ExchangeForm]],
        sent_once: int = 0,
        epsilon: Callable[[int], float] | None = None,
    ):
        self._epsilon = epsilon
        self.rows: list[dict[str, Unknown]] = []
        self.costs = Costs(forms)
        self.costs.bytes_down += sent_once

    def add(
        self, index: int, figures: dict[str, Unknown], exclusions: Tree, pace: Mapping[str, Unknown] = {}
    ) -> dict[str, Unknown]:
        """Add the row after ``index`` rounds: the figures of the evaluation, exclusions, pace and costs so far."""
        spent = {} if self._epsilon is None else {"epsilon": float(self._epsilon(index))}
        self.rows.append({"round": index} | figures | spent | excluded(exclusions) | dict(pace) | self.costs.row())
        return self.rows[-1]

    def take(self, rows: list[dict[str, Unknown]], costs: dict[str, Unknown]) -> None:
        """Restore rows and costs from a checkpoint."""
        self.rows = list(rows)
        self.costs.take(costs)


class Costs:
    """The costs so far, in whole numbers of any size."""

    def __init__(self, forms: tuple[list[ExchangeForm], list[ExchangeForm]]):
        self.warmup, self.round = forms
        self.clients = self.local_steps = self.gradients = self.bytes_down = self.bytes_up = 0
        self.seconds = 0.0
        self.time: float | None = None  # of runs that have a clock
        self.traffic: dict[str, Unknown] = {}  # of real clients

    def add_traffic(self, traffic: dict[str, Unknown]) -> None:
        """Add network traffic; and the time that rounds took, which is measured at nodes."""
        if TIME in traffic:
            self.time = (self.time or 0.0) + traffic[TIME]
            traffic = {name: value for name, value in traffic.items() if name != TIME}
        self.traffic |= {name: value + self.traffic.get(name, 0) for name, value in traffic.items()}

    def add(self, counters: Counters, rounds: int, warmup: bool) -> None:
        """Add the counters of some rounds; ``rounds``: how many they were."""
        clients, local_steps, gradients, uploads = counters
        self.clients += clients
        self.local_steps += local_steps
        self.gradients += gradients
        for exchange in self.warmup if warmup else self.round:
            answered = rounds if exchange.one else clients
            self.bytes_down += answered * exchange.down
            self.bytes_up += (answered if uploads == () else uploads) * exchange.up

    def take(self, row: dict[str, Unknown]) -> None:
        """Restore the costs from a :meth:`row`."""
        self.traffic = {name: row[name] for name in TRAFFIC if name in row}
        for name in row.keys() - self.traffic.keys():
            setattr(self, name, row[name])

    def row(self) -> dict[str, Unknown]:
        time = {} if self.time is None else {TIME: self.time}
        return {name: getattr(self, name) for name in COSTS if name != "round"} | time | self.traffic


def count(histories: Sequence[History], counters: Counters, rounds: int, warmup: bool = False) -> None:
    """Add the counters of some rounds to the costs of runs side by side; their leaves: one number, or one a run."""
    columns = [np.asarray(leaf).ravel().tolist() for leaf in jax.tree.leaves(counters)]
    for history, counts in zip(histories, zip(*columns, strict=True), strict=True):
        history.costs.add(Counters(*counts), rounds, warmup)
