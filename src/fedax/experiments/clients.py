"""Figures of each client: tables in the run folder, two baselines, and the sentences that the report makes of them.

The baselines are no federated methods, and are not ranked with them. In ``local only`` each client trains its own model
on its own data; ``pooled`` is one model on the data of all clients in one place. Both start from the run's initial
model and have as many gradients as the method that asked for most, by stochastic gradient descent with the run's
minibatch size and the first method's learning rate; or, where methods are tuned, the best of the same rates. Where
there are validation rows, clients that train alone stop where these say so.
"""

import contextlib
import csv
import functools
import hashlib
import io
import json
import math
import pathlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

import fedax
from fedax.columns import PERSONAL, deciding, describe, show
from fedax.contract.personal import has_personal
from fedax.engine.devices import in_precision
from fedax.engine.load import Shared, start
from fedax.engine.make import make_job
from fedax.engine.saved import read_model
from fedax.errors import BadClientWarning, DamagedWarning, DataError, DivergedWarning
from fedax.experiments.alone import LOCAL_ONLY, LocalOnly, Measured, lengths, measure, trained
from fedax.experiments.chance import Gap, gap_of, variance_of_mean
from fedax.experiments.config.experiment import Experiment
from fedax.experiments.runs import Record, at_end, model_path, rows_of, said
from fedax.files import cell, quoting_of, regular, slug, text_of, write_atomic
from fedax.progress import show_progress
from fedax.sites.protocol.fleet import Figures, Fleet
from fedax.sites.protocol.remote import agreed
from fedax.sites.protocol.site import whole_task

Path = pathlib.Path

BASELINES = (LOCAL_ONLY, "pooled")
WORST = 3  # the most of the worst clients that are named
_LEVEL = 0.05  # of the tests whether they are worse than the mean
_MOST_BYTES = 1 << 28
_LEFT_OUT = "left-out.json"
_OF_ONE = ("auc", "average_precision", "f1", "precision", "recall")  # of two classes, metrics of the positive one


class ClientTable(NamedTuple):
    """Figures of each client.

    Attributes:
        names: [N] of the clients.
        sizes: [N] how many examples each client has.
        values: ``loss`` and metrics by name, [N] each; of personal models ``loss_personal`` and so on beside them.
        arrivals: [N] how many answers of each client the server took; ``None``: it waited for all clients of a round.
    """

    names: list[str]
    sizes: np.ndarray
    values: dict[str, np.ndarray]
    arrivals: np.ndarray | None = None

    def of(self, figure: str) -> np.ndarray:
        """[N] a figure of the models that clients get: their personal ones, where there are any."""
        return self.values[deciding(figure, self.values)]


# ---- files


def table_path(folder: Path, label: str, seed: int) -> Path:
    """The path of the table of a run, or of a baseline."""
    return folder / ("baselines" if label in BASELINES else "clients") / f"{slug(label)}-seed{seed}.csv"


def write_table(path: Path, table: ClientTable) -> None:
    """Write a table as CSV, completely or not at all; a figure that is not defined is an empty cell."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n", quoting=quoting_of(table.names))
    whole = [table.sizes] if table.arrivals is None else [table.sizes, table.arrivals]
    rows.writerow(["name", "n", "arrivals"][: 1 + len(whole)] + list(table.values))
    for i, (name, *numbers) in enumerate(zip(table.names, *whole, strict=True)):
        figures = [float(values[i]) for values in table.values.values()]
        texts = ["" if math.isnan(value) else f"{value:.9g}" for value in figures]
        rows.writerow([cell(name), *map(int, numbers), *texts])
    path.parent.mkdir(exist_ok=True)
    write_atomic(path, text.getvalue())


def read_table(path: Path) -> ClientTable:
    """The table that :func:`write_table` wrote.

    Raises:
        DataError: the file cannot be read, or is no such table.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "clients" / "fedavg-seed0.csv"
        >>> write_table(path, ClientTable(["north, a"], np.array([3]), {"loss": np.array([0.5])}))
        >>> read_table(path)
        ClientTable(names=['north, a'], sizes=array([3]), values={'loss': array([0.5])}, arrivals=None)
    """
    if (size := regular(path)) > _MOST_BYTES:
        raise DataError(f"{path}: {size} bytes; no run writes so large a table of clients")
    try:
        head, *rows = csv.reader(io.StringIO(path.read_bytes().decode("utf-8"), newline=""), strict=True)
        paced = head[2:3] == ["arrivals"]
        start = 3 if paced else 2  # of the figures
        if head[:2] != ["name", "n"] or head[start : start + 1] != ["loss"] or len({*head}) < len(head) or not rows:
            raise ValueError("its first line has to be name,n,loss and metrics, and clients follow")
        if any(len(row) != len(head) for row in rows):
            raise ValueError(f"a line that has not {len(head)} columns")
        names, sizes = [text_of(row[0]) for row in rows], [int(row[1]) for row in rows]
        if not all(0 < size < 2**53 for size in sizes) or not all(names) or len({*names}) < len(names):
            raise ValueError("a client without a name or without examples, or two of one name")
        columns = {
            name: np.array([float(row[k]) if row[k] else math.nan for row in rows])
            for k, name in enumerate(head)
            if k >= start
        }
        arrivals = np.array([int(row[2]) for row in rows]) if paced else None
        if any(np.isinf(values).any() for values in columns.values()):
            raise ValueError("a figure that is not finite")
        if arrivals is not None and (arrivals.dtype != int or (arrivals < 0).any()):
            raise ValueError("arrivals that are no whole number from 0 on")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, csv.Error) as error:
        raise DataError(f"{path}: no table of clients as a run writes it: {str(error)[:200]}") from error
    return ClientTable(names, np.array(sizes), columns, arrivals)


def tables(record: Record, label: str) -> list[ClientTable]:
    """The tables of a method or a baseline, one for each seed; damaged files are left out (see :func:`damaged`)."""
    return [*by_seed(record, label).values()]


def by_seed(record: Record, label: str) -> dict[int, ClientTable]:
    """:func:`tables`, by their seeds; of a method with personal models those that have figures of these."""
    read = {}
    personal = any(name.endswith(PERSONAL) for run in record.of(label) for name in run.history)
    for seed in record.config["run"]["seeds"]:
        if (path := table_path(record.folder, label, seed)).is_file() and _damage(path) is None:
            table = read_table(path)
            if not personal or f"loss{PERSONAL}" in table.values:
                read[seed] = table
    return read


def damaged(record: Record) -> list[str]:
    """Sentences about tables of a run folder that are damaged or missing."""
    files = [*(record.folder / "clients").glob("*.csv"), *(record.folder / "baselines").glob("*.csv")]
    sentences = [f"{problem}." for path in sorted(files) if (problem := _damage(path)) is not None]
    finished = (record.folder / "summary.json").exists() and files
    for label in record.labels if finished else ():
        for seed in record.config["run"]["seeds"]:
            path = table_path(record.folder, label, seed)
            if not path.exists() and model_path(record.folder, label, seed).exists():
                sentences.append(f"{label}, seed {seed}: its table of clients, {path.name}, is missing.")
    return sentences


def _damage(path: Path) -> str | None:
    try:
        read_table(path)
        was = at_end(path.parents[1]).get("tables", {}).get(f"{path.parent.name}/{path.name}")
    except DataError as error:
        return str(error)
    return None if was in (None, digest(path)) else f"{path}: edited or moved (its digest is another)"


def digests(folder: Path) -> dict[str, str]:
    """The digests of all tables in a run folder, by their paths there."""
    paths = sorted(path for place in ("clients", "baselines") for path in (folder / place).glob("*.csv"))
    return {path.relative_to(folder).as_posix(): digest(path) for path in paths}


def digest(path: Path) -> str:
    """The digest of a table."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


# ---- evaluation


def add_table(
    experiment: Experiment,
    folder: Path,
    label: str,
    seed: int,
    params: Any,
    test: Any,
    arrivals: np.ndarray | None = None,
    personal: Measured | None = None,
    names: Sequence[str] = (),
) -> None:
    """Write the table of a finished run.

    Args:
        experiment, folder, label, seed: of the run.
        params: its model.
        test: the test examples by client, or ``None`` if they are at nodes.
        arrivals: [N] as of :attr:`fedax.engine.history.Run.arrivals`.
        personal: how the clients' own models do, where the method has them and it is known.
        names: of the clients, in its order.
    """
    if personal is None and has_personal(experiment.methods[label]):
        what = "how its clients' own models do at each client is not known here, so no figures of clients are shown"
        record_left_out(folder, f"{label}: {what}.")
    if test is None:
        _add_table_of_nodes(experiment, folder, label, seed, params)
        return
    table = _evaluated(experiment, params, test)
    if personal is not None:
        places = {name: number for number, name in enumerate(names)}
        at = np.array([places.get(name, -1) for name in table.names])
        own = {name: np.where(at < 0, np.nan, each[at]) for name, each in personal.figures.items()}
        own = {name.removeprefix("test_"): each for name, each in own.items() if name.startswith("test_")}
        table.values.update({f"{name}{PERSONAL}": each for name, each in own.items()})
    write_table(table_path(folder, label, seed), table._replace(arrivals=arrivals))


def _evaluated(experiment: Experiment, params: Any, test: fedax.FederatedData) -> ClientTable:
    """The table of a model."""
    with in_precision(experiment.config["run"].get("precision")):
        table = fedax.evaluate(whole_task(experiment.task), params, test)
    figures = {name: table[name].to_numpy(float) for name in table.columns if name not in ("name", "n")}
    return ClientTable(list(table["name"]), table["n"].to_numpy(), figures)


def _add_table_of_nodes(experiment: Experiment, folder: Path, label: str, seed: int, params: Any) -> None:
    """:func:`add_table` for test examples that are at the nodes."""
    if experiment.config["run"].get("secure") is not None:
        record_left_out(folder, "The run has secure sums, so no figures of single clients leave their sites.")
        return
    fleet = experiment.nodes(seed)
    model = start(whole_task(experiment.task).trained, params, 0, Shared())[1]
    options = experiment.options | {"work": experiment.work, "participation": experiment.participation, "seed": seed}
    make = functools.partial(make_job, experiment.methods[label], experiment.task, fleet.census, **options)
    figures = fleet.figures(agreed(fleet, experiment.problem(label), seed, make), model)
    _write_table_of_nodes(folder, label, seed, fleet, figures)


def _write_table_of_nodes(folder: Path, label: str, seed: int, fleet: Fleet, received: Figures) -> None:
    """Write the figures that nodes sent, and why other nodes sent none."""
    for clients, why in received.withheld.items():
        record_left_out(folder, f"Clients {clients} are not in the tables of clients: {why}.")
    if not received.values:
        return
    columns = dict.fromkeys(name for values in received.values.values() for name in values)
    names, sizes = fleet.whole.census.names, [fleet.tested[i] for i in received.values]
    figures = {name: np.array([values.get(name, math.nan) for values in received.values.values()]) for name in columns}
    write_table(
        table_path(folder, label, seed), ClientTable([names[i] for i in received.values], np.array(sizes), figures)
    )


def record_left_out(folder: Path, sentence: str) -> None:
    """Record a sentence on what the tables of a run folder lack, and why."""
    if sentence not in (sentences := left_out(folder)):
        (folder / "clients").mkdir(exist_ok=True)
        write_atomic(folder / "clients" / _LEFT_OUT, json.dumps([*sentences, sentence], indent=1))


def left_out(folder: Path) -> list[str]:
    """Sentences on what the tables of clients of a run folder lack, and why."""
    try:
        sentences = json.loads((folder / "clients" / _LEFT_OUT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [str(sentence) for sentence in sentences] if isinstance(sentences, list) else []


def mend(experiment: Experiment, folder: Path, label: str, seed: int, personal: Measured | None) -> None:
    """Write the table of a finished run anew if it is missing or damaged; ``personal`` as of :func:`add_table`."""
    path = table_path(folder, label, seed)
    problem = _damage(path) if path.exists() else None
    if problem is not None:
        warnings.warn(f"{label}, seed {seed}: {problem}; it is made again", DamagedWarning, stacklevel=3)
    if problem is not None or not path.exists():
        model = model_path(folder, label, seed)
        params = read_model(model, experiment.task.entire.form(), said(folder, model))
        if finite_model(params):
            data, _, test = experiment.split(seed)
            arrivals = _arrivals(experiment, folder, label, seed, data)
            add_table(experiment, folder, label, seed, params, test, arrivals, personal)


def _arrivals(experiment: Experiment, folder: Path, label: str, seed: int, data: Any) -> np.ndarray | None:
    """How many answers of each client a finished run took, [N]; ``None``: its server waited."""
    if experiment.options.get("pace") is None:
        return None
    rounds = int(rows_of(folder, experiment.config)[label, seed].history["round"][-1])
    if not rounds:
        return np.zeros(data.num_clients, int)
    options = experiment.options | {"rounds": rounds, "seed": seed, "work": experiment.work}
    return fedax.arrivals(experiment.methods[label], experiment.task, data, **options).counts


def finite_model(params: Any) -> bool:
    """Whether all numbers of a model are finite."""
    return all(bool(np.isfinite(np.asarray(leaf, float)).all()) for leaf in jax.tree.leaves(params))


# ---- baselines


@contextlib.contextmanager
def report_shows() -> Iterator[None]:
    """Without the warnings of runs that end badly, which the report shows."""
    with warnings.catch_warnings():
        for category in (DivergedWarning, BadClientWarning):
            warnings.simplefilter("ignore", category)
        yield


def add_baselines(experiment: Experiment, folder: Path) -> None:
    """Run the baselines of all seeds whose tables are missing or damaged, and write the tables.

    Of several rates each baseline has the one with the lowest mean validation loss over the seeds. Clients that train
    alone stop where that is lowest: after all passes, half of them, … or one.
    """
    seeds, rates = experiment.config["run"]["seeds"], baseline_rates(experiment.config)
    for label in BASELINES:
        paths = {seed: table_path(folder, label, seed) for seed in seeds}
        missing = [seed for seed, path in paths.items() if not path.exists() or _damage(path) is not None]
        rounds = {seed: _passes(experiment, folder, seed) for seed in seeds} if missing else {}
        if experiment.fleet is not None:
            for seed in missing:
                _baseline_at_nodes(experiment, folder, label, seed, rounds[seed])
            continue
        stops = max((len([*lengths(each)]) for each in rounds.values()), default=1)
        stops = stops if label == LOCAL_ONLY and experiment.val is not None else 1
        tried = [(rate, 2**k) for rate in rates for k in range(stops)]
        found: dict[tuple[float, int], dict[int, ClientTable]] = {each: {} for each in tried}
        losses: dict[tuple[float, int], list[float]] = {each: [] for each in tried}
        for seed in seeds if missing and len(tried) > 1 else missing:
            data, val, test = experiment.split(seed)
            for rate, part in tried:
                parts: Any = [test] if len(tried) == 1 else [test, val]
                given = experiment, label, seed, data, parts, max(1, rounds[seed] // part), rate
                found[rate, part][seed], *chosen_by = _baseline(*given)
                losses[rate, part] += [float(np.average(each.values["loss"], weights=each.sizes)) for each in chosen_by]
        best = min(tried, key=lambda each: _mean(losses[each]))
        for seed in missing:
            write_table(paths[seed], found[best][seed])


def _mean(losses: Sequence[float]) -> float:
    """The mean of some losses; infinite where one is not finite."""
    mean = float(np.mean(losses)) if losses else 0.0
    return mean if math.isfinite(mean) else math.inf


def _passes(experiment: Experiment, folder: Path, seed: int) -> int:
    """The passes over the data with as many gradients as the method had that asked for most."""
    runs = rows_of(folder, experiment.config)
    gradients = max(int(run.history["gradients"][-1]) for (_, run_seed), run in runs.items() if run_seed == seed)
    return passes_of(gradients, experiment.split(seed)[0], experiment.config["run"].get("batch_size"))


def passes_of(gradients: int, data: Any, batch_size: int | None) -> int:
    """How many passes over the data of all clients take at most so many gradients of minibatches; at least one."""
    return max(1, gradients // int(fedax.Epochs(1).usual(data.sizes, batch_size).sum()))


def baseline_rates(config: Mapping[str, Any]) -> list[float]:
    """The learning rates of the baselines: those of ``run.baselines``, else the first method's; empty: no number."""
    baselines = config["run"].get("baselines")
    given = baselines.get("lr") if isinstance(baselines, Mapping) else None
    lr = config["methods"][0].get("lr") if given is None else given
    rates = lr if isinstance(lr, list) else [lr]
    return [float(rate) for rate in rates if isinstance(rate, int | float) and not isinstance(rate, bool)]


def _baseline(
    experiment: Experiment,
    label: str,
    seed: int,
    data: Any,
    parts: Sequence[fedax.FederatedData],
    rounds: int,
    lr: float,
) -> list[ClientTable]:
    """The tables of a baseline, one for each of some held-out parts."""
    task = experiment.task
    options = options_of(experiment, seed)
    if "per_client" in task.run_metrics:
        options["test"] = parts[0]  # which it asks for
    with report_shows(), show_progress(False):
        if label == "pooled":
            pooled = fedax.FederatedData(data.examples, [data.num_examples], _finite=True)
            options |= {"rounds": rounds, "evaluate_every": rounds, "work": fedax.Epochs(1)}
            pooled_run = fedax.simulate(fedax.create("fedavg", lr=lr), task, pooled, **options)
            if not finite_model(pooled_run.params):
                return [_undefined(part) for part in parts]
            return [_evaluated(experiment, pooled_run.params, part) for part in parts]
        models = trained(task, data, lr, rounds, **options)
    tables = []
    for part in parts:
        with in_precision(experiment.config["run"].get("precision")):
            measured = measure(task, None, models, data, test=part)
        own = np.flatnonzero(measured.sizes["test"])
        figures = {name.removeprefix("test_"): values[own] for name, values in measured.figures.items()}
        tables.append(ClientTable([data.name(i) for i in own], measured.sizes["test"][own], figures))
    return tables


def _undefined(part: fedax.FederatedData) -> ClientTable:
    """The table of a model that is not finite."""
    names = [part.name(i) for i in range(part.num_clients)]
    return ClientTable(names, np.asarray(part.sizes), {"loss": np.full(len(names), np.nan)})


def options_of(experiment: Experiment, seed: int) -> dict[str, Any]:
    """The options of a baseline's run."""
    run, params = experiment.config["run"], experiment.options.get("params")
    place = fedax.Place(precision=run.get("precision"))
    return {"seed": seed, "batch_size": run.get("batch_size"), "params": params, "place": place}


def _baseline_at_nodes(experiment: Experiment, folder: Path, label: str, seed: int, rounds: int) -> None:
    """A baseline for clients at nodes: each client trains alone at its node; there is no pooled baseline."""
    if label != LOCAL_ONLY:
        record_left_out(folder, "There is no baseline pooled: it is a model on the rows of all clients in one place.")
        return
    if experiment.config["run"].get("secure") is not None:
        return  # :func:`_add_table_of_nodes` has recorded why
    rates, fleet = baseline_rates(experiment.config), experiment.nodes(seed)
    if len(rates) > 1:  # validation rows of a client stay at its node: the rate of the first method
        rates = baseline_rates({**experiment.config, "run": {}}) or rates
    lr = rates[0]
    options = options_of(experiment, seed) | {"rounds": rounds, "evaluate_every": rounds, "work": fedax.Epochs(1)}
    job = make_job(LocalOnly(lr), experiment.task, fleet.census, **options)
    agreement = agreed(fleet, experiment.problem_alone(lr, rounds), seed, lambda: job)
    _write_table_of_nodes(folder, label, seed, fleet, fleet.figures(agreement, job.x, "alone"))


def majority(experiment: Experiment) -> dict[str, Any] | None:
    """Test metrics of a model that always predicts the commoner of two classes; ``None`` for other tasks.

    They are means over the seeds, as those of the methods: over each seed's own test examples.
    """
    run = experiment.config["run"]
    seeds = run["seeds"] if run["split_seeds"] else run["seeds"][:1]
    parts = [experiment.test] if len(seeds) == 1 else [experiment.split(seed)[2] for seed in seeds]
    tests = [part.examples if isinstance(part, fedax.FederatedData) else part for part in parts]
    if "auc" not in experiment.task.metrics or any(part is None or "y" not in part for part in tests):
        return None
    shares = np.array([np.mean(np.asarray(part["y"]) > 0) for part in tests if part is not None])
    high = bool(np.mean(shares) > 0.5)
    names = experiment.classes if experiment.classes and len(experiment.classes) == 2 else ["0", "1"]
    return {
        "class": names[high],
        "accuracy": float(np.mean(shares if high else 1 - shares)),
        "f1": float(np.mean(2 * shares / (1 + shares))) if high else 0.0,
        "auc": 0.5,
    }


def positive_class(record: Record) -> str | None:
    """The class that AUC, F1, precision and recall are about; ``None`` where there are not two with names."""
    classes = record.about["clients"]["classes"]
    return str(classes[-1]) if classes is not None and len(classes) == 2 else None


def positive_text(record: Record, columns: Sequence[str]) -> str:
    """Which class the metrics in these columns are of, in one line; empty where none is of one class."""
    positive = positive_class(record)
    of_one = dict.fromkeys(name for name in _OF_ONE if any(column.partition("_")[2] == name for column in columns))
    if positive is None or not of_one:
        return ""
    *first, last = (describe(name).label for name in of_one)
    return f"{', '.join(first)}{' and ' * bool(first)}{last} {'are' if first else 'is'} of class {positive}."


def majority_text(baseline: Mapping[str, Any]) -> str:
    """The majority baseline in one line.

    Example:
        >>> majority_text({"class": "0", "accuracy": 0.93, "f1": 0.0, "auc": 0.5})
        'Majority baseline, always class 0: accuracy 93.00 %, F1 0, AUC 0.5.'
    """
    f1 = f"{baseline['f1']:.4g}"
    accuracy = show("test_accuracy", baseline["accuracy"])
    return (
        f"Majority baseline, always class {baseline['class']}: accuracy {accuracy}, F1 {f1}, AUC {baseline['auc']:g}."
    )


# ---- what the report says


class Spread(NamedTuple):
    """How a figure is spread over the clients of one method; each client's value is its mean over the seeds.

    Attributes:
        label: of the method or the baseline.
        names: of the clients.
        sizes: [N] test examples of each client.
        values: [N]; not-a-number where the metric is not defined.
        mean, std: over the clients where the metric is defined.
        worst_tenth: the mean over the worst tenth of these clients, at least one.
        worst: the worst clients whose interval is beyond the mean of all clients, each with its value and its number of
            test examples.
        personal: whether they are of the clients' own models.
    """

    label: str
    names: list[str]
    sizes: np.ndarray
    values: np.ndarray
    mean: float
    std: float
    worst_tenth: float
    worst: list[tuple[str, float, int]]
    personal: bool = False


def spread_of(
    label: str,
    tables: Sequence[ClientTable],
    figure: str,
    way: str,
    overlap: float = 0.0,
    examples: Mapping[str, np.ndarray] | None = None,
) -> Spread | None:
    """How a figure is spread over the clients that all seeds have; ``None`` if no client has it.

    Args:
        label: of the method.
        tables: its tables, one for each seed.
        figure: a column of the tables.
        way: ``"lower"`` or ``"higher"`` is better.
        overlap: as of :func:`fedax.experiments.chance.gap_of`.
        examples: client -> the values of its test examples, where all seeds have the same; ``None``: not known.
    """
    tables = [table for table in tables if figure in table.values]
    if not tables:
        return None
    places = [{name: i for i, name in enumerate(table.names)} for table in tables]
    names = [name for name in tables[0].names if all(name in place for place in places)]
    rows = [[place[name] for name in names] for place in places]
    by_seed = np.array([table.values[figure][rows_of_table] for table, rows_of_table in zip(tables, rows, strict=True)])
    known = ~np.isnan(by_seed)
    values = np.where(known.any(0), np.where(known, by_seed, 0).sum(0) / np.maximum(known.sum(0), 1), np.nan)
    defined = np.flatnonzero(~np.isnan(values))
    if not defined.size:
        return None
    order = defined[np.argsort(values[defined] if way == "higher" else -values[defined], kind="stable")]
    tenth = order[: max(1, math.ceil(len(order) / 10))]
    std = float(np.std(values[defined], ddof=1)) if len(defined) > 1 else math.nan
    sizes = tables[0].sizes[rows[0]]
    sign, mean_of_seed = (1 if way == "lower" else -1), np.nanmean(by_seed[:, defined], axis=1)
    worst = []
    for i in order[:WORST]:
        gap = _apart(mean_of_seed, by_seed[:, i], overlap, (examples or {}).get(names[i]), len(defined))
        if gap is not None and gap.p < _LEVEL and sign * gap.mean > 0:
            worst.append((names[i], float(values[i]), int(sizes[i])))
    mean, worst_tenth = float(values[defined].mean()), float(values[tenth].mean())
    return Spread(label, names, sizes, values, mean, std, worst_tenth, worst, figure.endswith(PERSONAL))


def _apart(mean: np.ndarray, own: np.ndarray, overlap: float, examples: np.ndarray | None, tests: int) -> Gap | None:
    """A client's figure less the mean of all, by its seeds and test examples; ``None``: nothing tells its error."""
    examples = None if examples is None or len(examples) < 2 else examples
    if len(own) > 1 and np.isfinite(own).all():
        pair = None if examples is None else (np.zeros(len(examples)), examples)
        return gap_of(mean, own, overlap, pair, None, tests)
    if examples is None:
        return None
    variance, freedom = variance_of_mean(examples, None)
    return Gap(float(np.nanmean(own - mean)), math.sqrt(variance), freedom, tests=tests)


def figures_of(record: Record, judge: str | None) -> list[str]:
    """The figures of clients that are shown: the one by which methods are judged (or the loss), and a metric."""
    example = next((table for label in record.labels for table in tables(record, label)), None)
    if example is None:
        return []
    judged = (judge or "").removeprefix("test_").removesuffix(PERSONAL)
    known = [name for name in example.values if record.better(f"test_{name}") is not None]
    names = [name for name in known if not name.endswith(PERSONAL)]
    chosen = [judged] if judged in names else ["loss"]
    usual = [name for name in ("auc", "r2", "accuracy", *names) if name in names and name not in chosen]
    return chosen + usual[:1]


def worst_text(spread: Spread, figure: str) -> str:
    """The worst clients of a method in one line; empty: none is beyond chance."""
    if not spread.worst:
        return ""
    column = f"test_{figure}"
    number = "client" if len(spread.worst) == 1 else "clients"
    label = describe(column).label
    whose = f"personal models of {spread.label}" if spread.personal else spread.label
    return f"Worst {number} by {label[0].lower() + label[1:]}, {whose}: {named_worst(spread, column)}."


def named_worst(spread: Spread, column: str) -> str:
    """The worst clients, with their values and numbers of test examples."""
    return ", ".join(f"{name} ({show(column, value)}, {n} test rows)" for name, value, n in spread.worst)
