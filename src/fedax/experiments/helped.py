"""Does a run help each client? Its models against two that a client could have without it, tuned as methods are.

- *own*: the method's personal models; of a method without, its shared model.
- *local only*: each client trains alone, from the initial model.
- *fine-tuned*: each client trains alone, from the run's shared model. Nothing of the run is trained again.

The last two have at most the run's gradients. Rate and passes are those with the lowest loss over all validation rows,
one choice for all clients of a seed: no passes, one, … half of them, all. A client is worse off only where the 95 %
interval of its own test rows says so; of clients without any difference, 2.5 % would be by chance.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

import fedax
from fedax.columns import PERSONAL, Direction, better, describe, show
from fedax.contract.personal import has_personal
from fedax.engine import processes
from fedax.engine.by_client import Models
from fedax.engine.checkpoint import write_tensors
from fedax.engine.devices import in_precision
from fedax.engine.history import Run
from fedax.engine.load import Shared, start
from fedax.engine.saved import read_model
from fedax.errors import ConfigError, DataError, unknown
from fedax.experiments import clients
from fedax.experiments.alone import LOCAL_ONLY, Measured, lengths, measure, trained
from fedax.experiments.clients import ClientTable, passes_of, read_table, write_table
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.runs import (
    FINE_TUNED,
    FINE_TUNED_FILE,
    FineTuned,
    Path,
    Record,
    locked,
    model_path,
    read_json,
    said,
    tensors_of,
    write_json,
)
from fedax.experiments.statistics import Paired, paired
from fedax.files import slug
from fedax.numbers import check_number
from fedax.sites.protocol.site import whole_task

OWN, TUNED = "own", "fine-tuned"
LEVEL = 0.05  # of the interval of each client
NOT_COVERED = "These figures of single clients, and the names, are not covered by ε: keep them where they are."
_FACTORS = (0.1, 1.0, 10.0)  # of the method's rate: those that are tried
_NAMED = 3  # the most clients that a sentence names
_MOST_BYTES = 1 << 30


class Choice(NamedTuple):
    """A rate, and how often a client goes over its rows: 0, the model is left as it is."""

    lr: float
    passes: int


class OfSeed(NamedTuple):
    """What was found with one seed.

    Attributes:
        measured: ``"own"``, ``"local only"``, ``"fine-tuned"`` -> how these models do.
        chosen: the last two -> what validation chose.
        most: the most passes that were tried.
    """

    measured: dict[str, Measured]
    chosen: dict[str, Choice]
    most: int


@dataclass(frozen=True, repr=False)
class Baselines:
    """A run, client by client, against training alone and against its shared model fine-tuned.

    Args:
        label: of the run.
        names: [N] of the clients.
        figure: by which clients are compared: ``"loss"``, or a metric that is a mean over examples.
        better: which way of the figure is, ``"lower"`` or ``"higher"``.
        personal: whether *own* are personal models.
        rates: the learning rates that were tried.
        seeds: what was found with each seed.
        private: whether the run is private.

    Example:
        >>> data, task = fedax.data.quadratics(clients=3, dimension=2), fedax.tasks.quadratic(2)
        >>> run = fedax.simulate(fedax.create("fedavg", lr=0.1), task, data, rounds=4)
        >>> found = baselines(run, data, val=data, test=data)
        >>> found.table()["name"].tolist(), found.side("local only").tolist()  # one row tells no chance
        (['client 0', 'client 1', 'client 2'], [0, 0, 0])
    """

    label: str
    names: list[str]
    figure: str
    better: Direction
    personal: bool
    rates: tuple[float, ...]
    seeds: tuple[OfSeed, ...]
    private: bool = False

    @property
    def column(self) -> str:
        """The column of the history that is compared."""
        return f"test_{self.figure}"

    @property
    def sign(self) -> int:
        """1 where lower is better, −1 where higher is."""
        return -1 if self.better == "higher" else 1

    def kinds(self) -> dict[str, str]:
        """What each kind of model is called."""
        return {
            OWN: f"{self.label}, {'own' if self.personal else 'shared'} model",
            LOCAL_ONLY: LOCAL_ONLY,
            TUNED: TUNED,
        }

    def figures(self, kind: str) -> dict[str, np.ndarray]:
        """The figures of a kind of models at each client, means over the seeds: such as ``test_loss`` -> [N]."""
        found = [each.measured[kind].figures for each in self.seeds]
        return {name: _mean([figures[name] for figures in found]) for name in found[0]}

    def against(self, kind: str) -> Paired:
        """The own model's figure less another's, at each client, with an interval over its test rows."""
        rows = [[each.measured[which].rows[self.column] for each in self.seeds] for which in (kind, OWN)]
        return paired(rows[0], rows[1], [each.measured[OWN].sizes["test"] for each in self.seeds], 1 - LEVEL)

    def worse(self, kind: str) -> list[str]:
        """The clients that are worse off than with another model, the worst first."""
        found = self.against(kind)
        low, mean = (found.low, found.mean) if self.sign == 1 else (-found.high, -found.mean)
        some = np.flatnonzero(low > 0)
        return [self.names[i] for i in some[np.argsort(-mean[some], kind="stable")]]

    def side(self, kind: str) -> np.ndarray:
        """[N] 1 of clients that are better off than with another model, −1 of those that are worse, else 0."""
        found = self.against(kind)
        return _side(self.better, found.low, found.high)

    def table(self) -> Any:
        """A row for each client, as a ``pandas.DataFrame``: what the file of ``fedax fine-tune`` has."""
        import pandas  # slow to import

        found = self.client_table()
        return pandas.DataFrame({"name": found.names, "n": found.sizes, **found.values})

    def client_table(self) -> ClientTable:
        """Clients with test rows: the figures of the three, and the paired differences with their intervals."""
        sizes = _mean([each.measured[OWN].sizes["test"].astype(float) for each in self.seeds])
        there = np.flatnonzero(sizes > 0)
        values = {}
        for kind in (OWN, LOCAL_ONLY, TUNED):
            for name, each in sorted(self.figures(kind).items(), key=lambda item: not item[0].startswith("test_")):
                values[named(name.removeprefix("test_"), kind)] = each[there]
        for kind in (LOCAL_ONLY, TUNED):
            for name, each in self.against(kind)._asdict().items():
                values[f"{named(self.figure, f'less {kind}')}{'' if name == 'mean' else f'_{name}'}"] = each[there]
        return ClientTable([self.names[i] for i in there], np.round(sizes[there]).astype(int), values)

    def summary(self) -> tuple[list[str], list[list[str]]]:
        """A table in texts, heads and rows: the three over the clients."""
        label, rows = describe(self.column).label.removeprefix("Test ").lower(), []
        sizes = _mean([each.measured[OWN].sizes["test"].astype(float) for each in self.seeds])
        for kind, name in self.kinds().items():
            of = self.figures(kind)
            there = np.flatnonzero((sizes > 0) & ~np.isnan(of[self.column]))
            values, cells = of[self.column][there], []
            if not len(there):
                rows.append([name, *["–"] * 6])
                continue
            worst = np.sort(self.sign * values)[::-1][: math.ceil(len(there) / 10)]
            spread = float(np.std(values, ddof=1)) if len(there) > 1 and np.isfinite(values).all() else math.nan
            cells += [float(np.nanmean(of[f"{part}_{self.figure}"])) for part in ("train", "val")]
            cells += [float(values.mean()), float(np.average(values, weights=sizes[there])), spread]
            cells += [self.sign * float(worst.mean())]
            rows.append([name, *("–" if math.isnan(each) else show(self.column, each) for each in cells)])
        heads = ["Model", f"Train {label}", "Validation", "Test", "Test, over rows", "Spread", "Worst tenth"]
        return heads, rows

    def sentences(self) -> list[str]:
        """In words: who is worse off, how many would be by chance, what was chosen, and what is not private."""
        said = []
        for kind, name in ((LOCAL_ONLY, "training alone"), (TUNED, "the shared model fine-tuned")):
            sides, found = self.side(kind), self.against(kind)
            worse, known = self.worse(kind), int((~np.isnan(found.low)).sum())
            be = "is" if len(worse) == 1 else "are"
            names = ", ".join(worse[:_NAMED]) + f" and {len(worse) - _NAMED} more" * (len(worse) > _NAMED)
            text = f"Against {name}: {len(worse)} of {known} clients {be} worse off{f' ({names})' if worse else ''}, "
            chance = LEVEL / 2 * known
            text += f"{int((sides == 1).sum())} better off; by chance alone "
            text += f"{chance:.2g}" if chance < 10 else f"{chance:.0f}"
            text += " would be worse off, and as many better off."
            said.append(text)
        rates = ", ".join(f"{rate:g}" for rate in self.rates)
        tries = f"rates {rates} and 0 to {self.seeds[0].most} passes over a client's rows"
        for kind in (LOCAL_ONLY, TUNED):
            choices = dict.fromkeys(each.chosen[kind] for each in self.seeds)
            texts = [f"lr {lr:g}, {passes} passes" if passes else "no pass" for lr, passes in choices]
            said.append(f"{kind.capitalize()}: {'; '.join(texts[:_NAMED])}{'; …' * (len(texts) > _NAMED)}.")
        said.append(f"Validation rows chose among {tries}, for all clients of a seed alike.")
        return said + [NOT_COVERED] * self.private

    def _repr_html_(self) -> str:
        heads, rows = self.summary()
        from fedax import notebook  # slow

        return notebook.table(heads, rows) + notebook.paragraph(*self.sentences())

    def __repr__(self) -> str:
        return f"Baselines of {self.label}: {self.sentences()[0]}"


def named(figure: str, kind: str) -> str:
    """The column of a figure of a kind of models, in the table of clients.

    Example:
        >>> named("loss", OWN), named("loss", "local only"), named("loss", "fine-tuned")
        ('loss', 'loss_local_only', 'loss_fine_tuned')
    """
    return figure if kind == OWN else f"{figure}_{kind.replace(' ', '_').replace('-', '_')}"


def sides(about: Mapping[str, Any], table: ClientTable, kind: str, way: Direction) -> np.ndarray:
    """:meth:`Baselines.side` of a table of :func:`found_in`."""
    column = named(about["figure"], f"less {kind}")
    return _side(way, *(table.values[f"{column}_{end}"] for end in ("low", "high")))


def _side(way: Direction, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    sign = 1 if way == "higher" else -1
    return sign * ((low > 0).astype(int) - (high < 0).astype(int))


def _mean(values: Sequence[np.ndarray]) -> np.ndarray:
    """The mean of what is known, over the seeds."""
    stacked = np.array(values)
    known = ~np.isnan(stacked)
    sums = np.where(known, stacked, 0).sum(0)
    return np.where(known.any(0), sums / np.maximum(known.sum(0), 1), np.nan)


# ---- Python


def baselines(
    run: Run,
    data: fedax.FederatedData,
    *,
    val: fedax.FederatedData,
    test: fedax.FederatedData,
    lr: float | Sequence[float] = (0.01, 0.1, 1.0),
    batch_size: int | None = None,
    seed: int = 0,
    figure: str = "loss",
) -> Baselines:
    """A finished run, client by client: against training alone, and against its shared model fine-tuned at each client.

    Both have the same rates, and at most the passes that take as many gradients as the run had. Rate and passes are
    chosen on all validation rows, one choice for all clients; nothing is chosen on test rows.

    Args:
        run: of :func:`fedax.simulate`, with any method. Of one with personal models these are compared.
        data: the clients' training data.
        val, test: held-out examples of the clients of the same names.
        lr: η > 0 of gradient descent; several are tried.
        batch_size, seed: as of the run.
        figure: by which clients are compared: the loss, or a metric of the task that is a mean over examples.

    Returns:
        :class:`Baselines`: its ``table()`` by client, ``summary()``, ``sentences()``.

    Raises:
        ConfigError: the run has no finite model, or is :meth:`fedax.Run.public`; a part is not by client; no such
            figure.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> def part(n):
        ...     x = {name: rng.normal(size=(n, 1)).astype(np.float32) for name in ("north", "south")}
        ...     slopes = {"north": 1.0, "south": -1.0}
        ...     return fedax.FederatedData.from_clients({k: {"x": v, "y": slopes[k] * v[:, 0]} for k, v in x.items()})
        >>> data, val, test = part(20), part(10), part(10)
        >>> run = fedax.simulate(fedax.create("fedavg"), fedax.tasks.linear_regression(1), data, rounds=20)
        >>> found = baselines(run, data, val=val, test=test)
        >>> found.worse("local only"), found.seeds[0].chosen["fine-tuned"].passes
        (['south', 'north'], 20)
    """
    if run.public_columns is not None and run.state is None:
        hint = "figures of single clients are not public; give the run itself, and keep what is found"
        raise ConfigError("run", run, hint)
    for name, held in (("data", data), ("val", val), ("test", test)):
        if not isinstance(held, fedax.FederatedData):
            raise ConfigError(name, held, "give examples by client, as a fedax.FederatedData")
    task = run._origin.trained or run._origin.task
    own = _own(whole_task(task), run, data, val, test)
    each = lr if isinstance(lr, Sequence) else (lr,)
    rates = tuple(check_number("lr", rate, 0, open_low=True, fixed=True) for rate in each)
    most = passes_of(int(run.history["gradients"][-1]), data, batch_size)
    options = {"batch_size": batch_size, "seed": seed}
    found = _of_seed(task, run.params, run._origin.params, own, data, val, test, rates, most, options)
    names = [data.name(i) for i in range(data.num_clients)]
    private = run.public_columns is not None
    known = _measures(found)
    if figure not in known:
        raise unknown("figure", figure, known)
    if (way := better(f"test_{figure}", run._origin.task.metrics)) is None:
        hint = f"neither it nor its name tells which way is better; take one of {known}"
        raise ConfigError("figure", figure, hint)
    return Baselines("run", names, figure, way, run._models is not None, rates, (found,), private)


def _own(task: fedax.Task, run: Run, data: Any, val: Any, test: Any) -> Measured:
    if run._models is not None:
        models, ids = run._models, run._models.numbers([data.name(i) for i in range(data.num_clients)])
        return measure(task, None, lambda some: models.some(ids[some]), data, train=data, val=val, test=test)
    if not clients.finite_model(run.params):
        raise ConfigError("run", run.status, "its model is not finite: lower its learning rate, and run it again")
    return measure(task, run.params, None, data, train=data, val=val, test=test)


def _of_seed(
    task: fedax.Task,
    params: Any,
    initial: Any,
    own: Measured,
    data: fedax.FederatedData,
    val: fedax.FederatedData,
    test: fedax.FederatedData,
    rates: Sequence[float],
    most: int,
    options: Mapping[str, Any],
) -> OfSeed:
    """Train alone from the initial model, and from the run's, ``params``."""
    measured, chosen = {OWN: own}, {}
    tuned_task, tuned = (task, params) if task.entire is task else (task.from_whole(params), None)
    for kind, of, begin in ((LOCAL_ONLY, task, initial), (TUNED, tuned_task, tuned)):
        models, chosen[kind] = _best(of, data, val, rates, most, dict(options) | {"params": begin})
        measured[kind] = measure(of, None, models, data, train=data, val=val, test=test)
    return OfSeed(measured, chosen, most)


def _best(
    task: fedax.Task,
    data: fedax.FederatedData,
    val: fedax.FederatedData,
    rates: Sequence[float],
    most: int,
    options: dict[str, Any],
) -> tuple[Models, Choice]:
    """The models with the lowest loss over all validation rows, and how they were trained."""
    x = start(task.trained, options["params"], options["seed"], Shared())[1].tree
    best: Models = lambda ids: jax.tree.map(lambda leaf: np.broadcast_to(leaf, (len(ids), *leaf.shape)), x)  # noqa: E731
    choice, least = Choice(0.0, 0), measure(task, None, best, data, val=val).rows["val_loss"].mean()
    for passes in lengths(most):
        for lr in rates:
            models = trained(task, data, lr, passes, **options)
            loss = measure(task, None, models, data, val=val).rows["val_loss"].mean()
            if loss < least:
                best, choice, least = models, Choice(lr, passes), loss
    return best, choice


# ---- run folders


def keep(
    experiment: Experiment, folder: Path, label: str, seed: int, run: Run, parts: Sequence[Any]
) -> Measured | None:
    """Write how the personal models of a finished run do, which are gone with it: figures and rows, no model."""
    data, val, test = parts
    if run._models is None or processes.count() > 1:
        return None
    held = {part: each for part, each in (("val", val), ("test", test)) if isinstance(each, fedax.FederatedData)}
    with in_precision(experiment.config["run"].get("precision")):
        found = measure(whole_task(experiment.task), None, run._models.some, data, train=data, **held)
    tensors = {f"{kind}/{name}": each for kind, of in found._asdict().items() for name, each in of.items()}
    path = _kept_path(folder, label, seed)
    path.parent.mkdir(exist_ok=True)
    write_tensors(path, tensors, "how clients' own models do", said(folder, path))
    return found


def kept(folder: Path, label: str, seed: int) -> Measured | None:
    """What :func:`keep` wrote; ``None`` if it is missing or cannot be used."""
    tensors = tensors_of(folder, _kept_path(folder, label, seed), _MOST_BYTES)
    found = Measured({}, {}, {})
    for name, leaf in tensors.items():
        kind, _, column = name.partition("/")
        found._asdict()[kind][column] = leaf
    return found if tensors else None


def _kept_path(folder: Path, label: str, seed: int) -> Path:
    return folder / "examples" / f"{slug(label)}-seed{seed}-personal.safetensors"


def table_path(folder: Path, label: str) -> Path:
    """The path of the table that :func:`fine_tune` writes."""
    return folder / FINE_TUNED / f"{slug(label)}.csv"


def fine_tune(experiment: Experiment, record: Record, label: str, rates: Sequence[float] | None = None) -> Baselines:
    """:func:`baselines` of a method in a run folder, over all its seeds; writes a table and the verdict there.

    Args:
        experiment: of the record's configuration.
        record: the run folder.
        label: of the method.
        rates: learning rates to try; default: a tenth of the method's, that, and ten times that.

    Raises:
        ConfigError: the clients are at nodes; there are no validation and test rows by client; no finished run.
        DataError: the file of a model cannot be read.
    """
    config, folder = record.config, record.folder
    if experiment.fleet is not None or config["data"]["name"] == "nodes":
        raise ConfigError("run", str(folder), "its rows are at real nodes: fine-tuning is of simulations")
    for part in ("val", "test"):
        if not isinstance(getattr(experiment, part), fedax.FederatedData):
            hint = f"it is chosen on validation rows and measured on test rows of each client: data.split.{part} = 0.15"
            raise ConfigError("run", str(folder), hint)
    (row,) = (row for row in config["methods"] if row["label"] == label)
    lr = row.get("lr")
    if rates is None:
        known = isinstance(lr, int | float) and not isinstance(lr, bool)
        rates = [float(f"{factor * lr:.4g}") for factor in _FACTORS] if known else [0.01, 0.1, 1.0]
    personal, form = has_personal(experiment.methods[label]), experiment.task.entire.form()
    by_names: dict[tuple[tuple[str, ...], int], OfSeed] = {}
    run = config["run"]
    for each in record.of(label):
        path = model_path(folder, label, each.seed)
        if not path.is_file():
            continue
        params = read_model(path, form, said(folder, path))
        if not clients.finite_model(params):
            continue
        data, val, test = (part for part in experiment.split(each.seed) if isinstance(part, fedax.FederatedData))
        most = passes_of(int(each.history["gradients"][-1]), data, run.get("batch_size"))
        options = clients.options_of(experiment, each.seed)
        with in_precision(run.get("precision")):
            own = kept(folder, label, each.seed) if personal else None
            if personal and own is None:
                hint = (
                    f"how the clients' own models of {label} did is not in it: run it again, with this version of fedax"
                )
                raise ConfigError("run", str(folder), hint)
            if own is None:
                own = measure(whole_task(experiment.task), params, None, data, train=data, val=val, test=test)
            given = experiment.task, params, options["params"], own, data, val, test, rates, most, options
            by_names[tuple(data.name(i) for i in range(data.num_clients)), each.seed] = _of_seed(*given)
    if not by_names:
        raise ConfigError("method", label, "no seed of it has a finished, finite model")
    names = list(dict.fromkeys(name for of, _ in by_names for name in of))  # a seed may leave clients out
    seeds = [_ordered(found, of, names) for (of, _), found in by_names.items()]
    judged = run.get("judge", "").removeprefix("test_").removesuffix(PERSONAL)
    way = record.better(f"test_{judged}") if judged in _measures(seeds[0]) else None
    figure = "loss" if way is None else judged
    private = config.get("privacy") is not None
    found = Baselines(label, names, figure, way or "lower", personal, tuple(rates), tuple(seeds), private)
    _write(folder, found)
    return found


def _ordered(seed: OfSeed, of: Sequence[str], names: Sequence[str]) -> OfSeed:
    """What was found of clients in another order, of which some may be missing."""
    places = {name: number for number, name in enumerate(of)}
    at = np.array([places.get(name, -1) for name in names])

    def ordered(found: Measured) -> Measured:
        sizes = {part: np.where(at < 0, 0, each[at]) for part, each in found.sizes.items()}
        figures = {name: np.where(at < 0, np.nan, each[at]) for name, each in found.figures.items()}
        rows = {}
        for name, values in found.rows.items():
            apart = np.split(values, np.cumsum(found.sizes[name.partition("_")[0]])[:-1])
            rows[name] = np.concatenate([apart[i] for i in at if i >= 0])
        return Measured(sizes, figures, rows)

    return seed._replace(measured={kind: ordered(each) for kind, each in seed.measured.items()})


def _measures(seed: OfSeed) -> list[str]:
    return [name.removeprefix("test_") for name in seed.measured[OWN].rows if name.startswith("test_")]


def _write(folder: Path, found: Baselines) -> None:
    path, place = table_path(folder, found.label), folder / FINE_TUNED_FILE
    heads, rows = found.summary()
    about = {"label": found.label, "figure": found.figure, "kinds": found.kinds(), "heads": heads, "rows": rows}
    with locked(folder):
        path.parent.mkdir(exist_ok=True)
        write_table(path, found.client_table())
        about |= {"sentences": found.sentences(), "table": clients.digest(path)}
        others = [each for each in _read(place) if each["label"] != found.label]
        write_json(place, {"methods": [*others, about]})


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    methods: list[dict[str, Any]] = read_json(path, FineTuned)["methods"]
    return methods


def found_in(record: Record) -> list[tuple[dict[str, Any], ClientTable]]:
    """What :func:`fine_tune` wrote of each method, in the methods' order: the verdict, and the table.

    Raises:
        DataError: a file that is damaged, edited or moved.
    """
    found = []
    for about in sorted(_read(record.folder / FINE_TUNED_FILE), key=lambda each: record.labels.index(each["label"])):
        path = table_path(record.folder, about["label"])
        table = read_table(path)
        if clients.digest(path) != about["table"]:
            raise DataError(f"{path}: edited or moved (its digest is another); fedax fine-tune writes it again")
        found.append((about, table))
    return found
