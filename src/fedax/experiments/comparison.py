"""``fedax.compare``, the command ``fedax run`` as a function of Python objects; and ``fedax.load``."""

import contextlib
import dataclasses
import functools
import inspect
import pathlib
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import fedax
from fedax import notebook
from fedax.algorithms import METHODS
from fedax.columns import TIME, describe, numbers, show, shown
from fedax.contract.algorithm import Algorithm
from fedax.contract.settings import plain
from fedax.data.federated import FederatedData
from fedax.engine import processes
from fedax.engine.declared import takes
from fedax.engine.make import make_job
from fedax.engine.options import CommonOptions
from fedax.engine.patience import Patience
from fedax.engine.saved import Model, load_model
from fedax.errors import ConfigError, unknown
from fedax.experiments import described, summary, tables
from fedax.experiments.clients import baseline_rates
from fedax.experiments.config.data import class_names
from fedax.experiments.config.experiment import Experiment, check_judge
from fedax.experiments.config.sections import seeds_of
from fedax.experiments.following import Runs
from fedax.experiments.report import write_report
from fedax.experiments.runner import Checked, check_methods, draw, execute, run_folder, writing
from fedax.experiments.runs import KEY, LOCK, Record, model_path, new_folder, read
from fedax.experiments.statistics import Aim, target_of
from fedax.federation.participation import Full
from fedax.federation.work import Epochs
from fedax.files import check_ending, slug
from fedax.metrics import METRICS, Metric, RunMetric
from fedax.numbers import check_number
from fedax.progress import wanted
from fedax.tasks.task import Task
from fedax.tracking import Tracker

if TYPE_CHECKING:
    import pandas

    from fedax.figures import Drawing

Path = pathlib.Path

_NAME = "comparison"  # the name of the experiment
_LONGEST = 200  # the most characters of a label
_ELSEWHERE = {
    "algorithm": "methods={label: method}",
    "seed": "seeds=…",
    "callback": "the history of each run is in records[0].runs",
    "checkpoint": "out=…, a run folder, which the same call goes on with",
}


def _check_names(given: Mapping[str, Any]) -> None:
    names = [*inspect.signature(compare).parameters]
    for name, value in given.items():
        if name in _ELSEWHERE:
            raise ConfigError(name, value, f"compare has it by another way: {_ELSEWHERE[name]}")
        if name in fedax.hyperparameters("fedavg") and name not in names:
            hint = f"a method has its own: methods={{'fedavg': fedax.create('fedavg', {name}=…)}}"
            raise ConfigError(name, value, hint)
        if name not in names:
            raise unknown(name, name, names)


@dataclass(frozen=True)
class _Compared(CommonOptions):
    """The arguments of :func:`compare`.

    Args:
        methods: label -> method, or the name of one; or names alone. A name stands for the method with the defaults of
            :func:`fedax.create`.
        task: what is learned.
        data: the clients' data.
        rounds: R ≥ 1.
        until: a :class:`fedax.Patience`, by which a run ends.
        test: the same, for the final figures. Where they are given by client there are tables of them too.
        seeds: how many (0, 1, …), or which. With one seed no difference is told from chance.
        judge: the column by which methods are compared; default: the test loss, or without a test part that of
            validation, or the training objective.
        metrics: more than the task has: names of :func:`fedax.metrics.available`, metrics, or name -> metric.
        baselines: whether to train each client alone too, and one model on the data of all in one place; or ``{"lr":
            …}``, their learning rate. It needs ``test`` by client.
        out: run folder, in which all is kept; it has to be new or empty, or hold this same comparison, which then goes
            on where it was stopped. ``None``: a temporary one, which goes when the comparison does.
        track: follows the runs, as TensorBoard, MLflow or Weights & Biases do: see :mod:`fedax.tracking`.
        executor: of ``concurrent.futures``, such as ``ProcessPoolExecutor()`` or Dask's ``client.get_executor()``: each
            method with each seed is a job of one core there, and everything that it needs travels with it. Default: all
            runs in this process.
    """

    methods: Mapping[str, Algorithm | str] | Sequence[str]
    task: Task
    data: FederatedData
    _: dataclasses.KW_ONLY
    seeds: int | Sequence[int] = 3
    judge: str | None = None
    metrics: Mapping[str, Any] | Sequence[str | Metric | RunMetric] = ()
    baselines: bool | Mapping[str, float] = False
    out: str | Path | None = None
    track: Tracker | None = None
    executor: Executor | None = None


@takes(_Compared, _check_names)
def compare(given: _Compared) -> "Comparison":
    """Run several methods on the same problem with the same seeds, and compare them.

    Every method has the same clients, initial models, cohorts and minibatches: a seed fixes them. So methods are
    compared seed by seed, by a paired t-test; p and intervals hold for all pairs together (Bonferroni). Its error
    covers the seeds of training and the examples of ``test``, not another split of the data: these are given already
    split. The verdict says so. A method that diverges does not stop the others.

    Returns:
        :class:`Comparison`: the verdict, tables, figures.

    Raises:
        ConfigError, DataError: input that cannot be used, before anything runs; a folder that holds something else.
        ConfigError: with an executor, data of more than 32 MiB; and, after all others are done, jobs that failed.

    Example:
        >>> data, task = fedax.data.quadratics(clients=4, dimension=2), fedax.tasks.quadratic(2)
        >>> methods = {"small steps": fedax.create("fedavg", lr=0.01), "scaffold": "scaffold"}
        >>> found = compare(methods, task, data, rounds=20, seeds=2, work=fedax.Steps(5))
        >>> found.labels, found.records[0].of("scaffold")[0].status
        (['small steps', 'scaffold'], 'finished')
    """
    if processes.count() > 1:
        raise ConfigError("processes", processes.count(), "compare runs in one process; give each some of the methods")
    if given.until is not None and not isinstance(given.until, Patience):
        hint = "give fedax.Patience(…): of another function a run folder cannot tell the end"
        raise ConfigError("until", given.until, hint)
    work, participation = given.work or Epochs(1), given.participation or Full()
    options = dataclasses.replace(given, work=work, participation=participation).keywords
    seeds = given.seeds
    seed_list = seeds_of(
        "seeds", plain(list(seeds) if isinstance(seeds, Sequence) and not isinstance(seeds, str) else seeds)
    )
    named, task, data = _methods(given.methods), given.task, given.data
    if isinstance(task, Task):
        task = _with_metrics(task, given.metrics)
    # With FedAvg in place of the methods: an error in the problem itself should not name one of them.
    make_job(fedax.create("fedavg"), task, data, **options)
    if given.rounds == 0:
        raise ConfigError("rounds", 0, "give a whole number of at least 1")
    _check_baselines(given.baselines, given.test)
    experiment = _experiment(named, task, data, seed_list, options)
    checked = check_methods(experiment)
    experiment = _completed(experiment, named, checked, given.judge, given.baselines)
    temporary = _Temporary() if given.out is None else None
    folder = _with_argument_names(
        lambda: run_folder(temporary.path if temporary else Path(str(given.out)), experiment.config, _NAME)
    )
    with Runs(experiment) if wanted() else contextlib.nullcontext() as watch:
        record = _run(
            experiment, folder, watch=watch, checked=checked, track=given.track, drawn=temporary is None,
            executor=given.executor,
        )  # fmt: skip
    return Comparison((record,), temporary, task.entire)


def load(folder: str | Path, *more: str | Path) -> "Comparison":
    """Open a run folder, or several, as ``fedax run``, ``fedax compare`` and :func:`compare` write them.

    Args:
        folder: of a run that is over, was stopped, or still goes on.
        more: others, whose methods are compared with those of the first where they are of the same problem.

    Raises:
        ConfigError: no run folder, or one without a single evaluation.
        DataError: a file of it that cannot be read, or holds what no run writes.

    Example:
        >>> data, task = fedax.data.quadratics(clients=4, dimension=2), fedax.tasks.quadratic(2)
        >>> place = Path(tempfile.mkdtemp()) / "run"
        >>> _ = compare(["fedavg", "scaffold"], task, data, rounds=5, seeds=1, out=place)
        >>> load(place).labels
        ['fedavg', 'scaffold']
    """
    return Comparison(tuple(read(path) for path in (folder, *more)))


@dataclass(frozen=True, repr=False)
class Comparison:
    """Methods that were compared: what :func:`compare` and :func:`load` give.

    A notebook shows its verdict, its table and a figure.

    Args:
        records: the run folders, read.

    Example:
        >>> data, task = fedax.data.quadratics(clients=4, dimension=2), fedax.tasks.quadratic(2)
        >>> found = compare({"small": fedax.create("fedavg", lr=0.001), "large": "fedavg"}, task, data, rounds=9)
        >>> found.verdict.startswith("large is best: train loss")
        True
    """

    records: tuple[Record, ...]
    _place: Any = field(default=None, compare=False)  # the temporary folder, which is removed with this object
    _task: Task | None = field(default=None, compare=False)  # where the comparison was made in this process

    @functools.cached_property
    def problems(self) -> list[summary.ProblemResults]:
        """The methods, grouped by the problem that they were run on."""
        return summary.problems(self.records)

    @property
    def labels(self) -> list[str]:
        """The labels of the methods, in their order."""
        return [m.label for problem in self.problems for m in problem.methods]

    @property
    def verdict(self) -> str:
        """Sentences: by how much methods differ, which is best, what that covers, and which methods did not finish."""
        return "\n".join(" ".join(summary.verdict(problem)) for problem in self.problems)

    def table(self, target: Aim | None = None, confidence: float = 0.95) -> "pandas.DataFrame":
        """The comparison as a table, one row a method: see :func:`fedax.experiments.tables.table` for its columns.

        Args:
            target: a value of the column by which methods are judged, or ``{column: value}``: adds what it cost to
                reach it.
            confidence: of the intervals, in (0, 1).

        Raises:
            ConfigError: a target that cannot be, a confidence out of range.

        Example:
            >>> data, task = fedax.data.quadratics(clients=4, dimension=2), fedax.tasks.quadratic(2)
            >>> found = compare(["fedavg", "scaffold"], task, data, rounds=9, seeds=2)
            >>> found.table()["method"].tolist()
            ['fedavg', 'scaffold']
        """
        return tables.table(self.records, target=target, confidence=confidence)

    def rows(self) -> "pandas.DataFrame":
        """All histories as a tidy table, a value in each row: ``method``, ``seed``, ``round``, ``column``, ``value``.

        With several folders ``run`` comes first; of a sweep the settings of the point come after ``seed``.

        Example:
            >>> data, task = fedax.data.quadratics(clients=4, dimension=2), fedax.tasks.quadratic(2)
            >>> found = compare(["fedavg", "scaffold"], task, data, rounds=9, seeds=2)
            >>> ends = found.rows().query("column == 'train_loss' and round == 9")
            >>> ends[["method", "seed"]].values.tolist()
            [['fedavg', 0], ['fedavg', 1], ['scaffold', 0], ['scaffold', 1]]
        """
        return tables.rows(self.records)

    def to_markdown(self, target: Aim | None = None, confidence: float = 0.95) -> str:
        """The table as Markdown, rounded; arguments as of :meth:`table`."""
        return tables.to_markdown(self.records, target=target, confidence=confidence)

    def to_latex(self, target: Aim | None = None, confidence: float = 0.95) -> str:
        """The table as LaTeX, rounded; it needs the package booktabs. Arguments as of :meth:`table`."""
        return tables.to_latex(self.records, target=target, confidence=confidence)

    def to_csv(self, path: str | Path | None = None, target: Aim | None = None, confidence: float = 0.95) -> str | None:
        """The table as CSV with all digits: its text, or nothing where it is written to ``path``.

        Raises:
            ConfigError: as of :meth:`table`; the ending of ``path`` means another format.
        """
        if path is not None:
            check_ending(Path(path), ".csv")
        text = tables.to_csv(self.records, target=target, confidence=confidence)
        if path is None:
            return text
        Path(path).write_text(text, encoding="utf-8")
        return None

    def plot(self, x: str = "rounds", column: str | None = None, target: Aim | None = None) -> "Drawing":
        """The curves of all methods, as a Matplotlib figure; :func:`fedax.figures.write` writes it to a file.

        Lines are means over the seeds, bands go from the lowest to the highest seed.

        Args:
            x: what they are drawn against: ``"rounds"``, ``"bytes"``, ``"uploads"`` (bytes up only), ``"seconds"``,
                ``"time"`` (of runs with a clock), ``"gradients"``, ``"local_steps"``, or of private runs ``"epsilon"``.
            column: the measure; default: the one by which methods are judged.
            target: a value of it, or ``{column: value}``, drawn as a line across.

        Raises:
            ConfigError: no such axis or column; a target of another column; runs on different problems.

        Example:
            >>> data, task = fedax.data.quadratics(clients=4, dimension=2), fedax.tasks.quadratic(2)
            >>> found = compare(["fedavg", "scaffold"], task, data, rounds=9, seeds=2)
            >>> found.plot("bytes", "train_loss").axes[0].get_xlabel()
            'Traffic, down and up'
        """
        if len(self.problems) > 1:
            differ = ", ".join(self.problems[0].differs)
            hint = f"they are not compared: open those of one problem (they differ in {differ})"
            raise ConfigError("plot", f"{len(self.problems)} problems", hint)
        if isinstance(target, Mapping):
            aim = target_of(self.problems[0], target)
            if column not in (None, aim.column):
                raise ConfigError("target", target, f"this is of {aim.column}, and {column} is drawn")
            column, target = aim.column, aim.value
        return _plot(self.problems[0], x, column, target)

    def model(self, label: str, seed: int | None = None, task: Task | None = None) -> Model:
        """The model that a method has trained, which predicts.

        Args:
            label: of the method.
            seed: of the run; default: the first.
            task: what was learned, where a folder with an own task was loaded.

        Raises:
            ConfigError: no such method or seed; a run that is not over has no model yet; the task is missing.

        Example:
            >>> data, task = fedax.data.quadratics(clients=4, dimension=2), fedax.tasks.quadratic(2)
            >>> compare(["fedavg"], task, data, rounds=5, seeds=1).model("fedavg").params.shape
            (2,)
        """
        record = self._only("model")
        if label not in record.labels:
            raise unknown("label", label, record.labels)
        seeds = record.config["run"]["seeds"]
        seed = seeds[0] if seed is None else seed
        if not (path := model_path(record.folder, label, seed)).is_file():
            raise ConfigError("seed", seed, f"there is no model of {label} of this seed; the seeds: {seeds}")
        return load_model(path, task or self._task)

    def save(self, folder: str | Path) -> None:
        """Keep it as a run folder, with its report and plots, as the command ``fedax compare`` writes it.

        Args:
            folder: new or empty.

        Raises:
            ConfigError: it holds something, or cannot be written to; there are several run folders.
        """
        source = self._only("save").folder
        place = _with_argument_names(lambda: new_folder(folder, _NAME), "folder")
        shutil.copytree(source, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns(LOCK, KEY))
        draw(read(place))

    def report(self, path: str | Path) -> None:
        """Write the report, one HTML file that needs no network, to ``path``."""
        write_report(self.records, Path(path))

    def _only(self, what: str) -> Record:
        if len(self.records) > 1:
            raise ConfigError(
                what, f"{len(self.records)} run folders", "open the one that you mean: fedax.load(folder)"
            )
        return self.records[0]

    def _repr_html_(self) -> str:
        return "".join(_html(problem) for problem in self.problems)

    def __repr__(self) -> str:
        return f"Comparison({', '.join(self.labels)}): {self.verdict}".strip(": ")


# ---- display


def _plot(
    problem: summary.ProblemResults, x: str = "rounds", column: str | None = None, target: float | None = None
) -> "Drawing":
    known = summary.curve_order(problem)
    column = known[0] if column is None else column
    if column not in known:
        raise unknown("column", column, known)
    from fedax.experiments.charts import series
    from fedax.figures import curves

    return curves(series(problem.methods, column, x), x=x, column=column, target=target)


def _html(problem: summary.ProblemResults) -> str:
    """The verdict, a small table and the curves of one problem, for a notebook."""
    columns = shown(summary.table_order(problem), problem.judge)
    clocked = [TIME] if TIME in summary.costs_of(problem.methods) else []
    head = ["Method", *(describe(column).label for column in (*columns, "seconds", *clocked))]
    head.insert(-1 - len(clocked), "Traffic")
    rows = []
    for m in problem.methods:
        cells = [f"{summary.with_spread(column, m.final(column))}" for column in columns]
        if columns and columns[0] == problem.judge:
            cells[0] = f"{cells[0]} {problem.mark(m)}".strip()
        if m.status != "finished" and columns:
            cells[0] = summary.WORDS[m.status]
        traffic = show("bytes_down", m.cost("bytes_down") + m.cost("bytes_up"))
        rows.append([m.label, *cells, traffic, *(show(column, m.cost(column)) for column in ("seconds", *clocked))])
    differences = [f"{name} {value}" for name, value in problem.differs.items()]
    paragraphs = [notebook.paragraph(", ".join(differences))] if differences else []
    paragraphs += [notebook.paragraph(*summary.verdict(problem))] if summary.verdict(problem) else []
    figure = notebook.image(_plot(problem), f"curves of {', '.join(m.label for m in problem.methods)}")
    return "".join([*paragraphs, notebook.table(head, rows), notebook.paragraph(*summary.legend(problem)), figure])


# ---- arguments of compare


def _methods(given: Any) -> dict[str, tuple[Algorithm, str | None]]:
    """Label -> method, and its registered name if the user gave a name."""
    if isinstance(given, str | Algorithm) or not isinstance(given, Mapping | Sequence) or not given:
        raise ConfigError("methods", given, 'give them by label, such as {"mine": method, "fedavg": "fedavg"}')
    if not isinstance(given, Mapping):
        for name in given:
            if not isinstance(name, str):
                raise ConfigError("methods", name, 'give a label to what is no name: {"mine": method, …}')
        if len({*given}) < len(given):
            raise ConfigError("methods", list(given), "one is there twice; give labels, and what they differ in")
        given = {name: name for name in given}
    by_label: dict[str, tuple[Algorithm, str | None]] = {}
    slugs: dict[str, str] = {}
    for label, method in given.items():
        if not isinstance(label, str) or not label.strip() or len(label) > _LONGEST or not label.isprintable():
            raise ConfigError("methods", label, f"a label is a text of at most {_LONGEST} letters, and in one line")
        if (other := slugs.setdefault(slug(label), label)) != label:  # file names are made of them
            raise ConfigError("methods", label, f"this gives the same name of a file as {other!r}; take another label")
        if isinstance(method, str):
            name = METHODS.get(method, f"methods[{label!r}]").name
            by_label[label] = fedax.create(name), name
        elif isinstance(method, Algorithm):
            by_label[label] = method, None
        else:
            hint = "give a method, as of fedax.create('fedavg', lr=0.1), or the name of one"
            raise ConfigError(f"methods[{label!r}]", method, hint)
    return by_label


def _with_metrics(task: Task, metrics: Any) -> Task:
    """The task with more metrics."""
    if isinstance(metrics, str | Metric | RunMetric):
        metrics = [metrics]
    if not isinstance(metrics, Mapping):
        metrics_made = [
            METRICS.get(metric, "metrics").make() if isinstance(metric, str) else metric for metric in metrics
        ]
        for metric in metrics_made:
            if not isinstance(metric, Metric | RunMetric):
                raise ConfigError("metrics", metric, "give a name to a function: {'name': function}")
        metrics = {metric.name: metric for metric in metrics_made}
    return task.with_metrics(**metrics) if metrics else task


def _check_baselines(baselines: Any, test: Any) -> None:
    if baselines is False or baselines is None:
        return
    if not isinstance(test, FederatedData):
        raise ConfigError(
            "baselines", baselines, "they are measured at each client: give test as a fedax.FederatedData"
        )
    if isinstance(baselines, Mapping):
        if baselines.keys() != {"lr"}:
            raise ConfigError("baselines", baselines, 'give True, or {"lr": 0.1}')
        check_number("baselines.lr", baselines["lr"], 0, open_low=True, fixed=True)
    elif baselines is not True:
        raise ConfigError("baselines", baselines, 'give True, or {"lr": 0.1}')


def _experiment(
    named: Mapping[str, tuple[Algorithm, str | None]],
    task: Task,
    data: FederatedData,
    seeds: list[int],
    given: dict[str, Any],
) -> Experiment:
    """The experiment, with the configuration as far as it is known before the methods are checked."""
    model = described.task(task)
    config = {
        "name": _NAME,
        "data": described.data(data),
        "task": model,
        **described.sections(seeds, given, task),
        "methods": [described.method(label, method, False, name) for label, (method, name) in named.items()],
    }
    fields_of_experiment = ("work", "participation", "val", "test")
    options = {name: value for name, value in given.items() if name not in fields_of_experiment and value is not None}
    methods = {label: method for label, (method, _) in named.items()}
    return Experiment(
        config, data, given["val"], given["test"], class_names(data), task, given["work"], given["participation"],
        methods, options, None, model, configured=False,
    )  # fmt: skip


def _completed(
    experiment: Experiment,
    named: Mapping[str, tuple[Algorithm, str | None]],
    checked: Checked,
    judge: str | None,
    baselines: Any,
) -> Experiment:
    """The experiment with all that depends on the columns of the methods: the judge, baselines, regularizers."""
    config, task = experiment.config, experiment.task
    columns = [
        name for name in checked.columns[next(iter(named))] if all(name in each for each in checked.columns.values())
    ]
    penalised = [label for label, columns_of_method in checked.columns.items() if "objective" in columns_of_method]
    rows = [described.method(label, method, label in penalised, name) for label, (method, name) in named.items()]
    run = config["run"] | {name: value for name, value in (("judge", judge), ("baselines", baselines)) if value}
    completed = dataclasses.replace(experiment, config={**config, "run": run, "methods": rows})
    if judge is not None:
        check_judge("judge", judge, columns, task.metrics, [completed.config])
    if (until := experiment.options.get("until")) is not None:
        if until.column not in (known := numbers(columns)):
            raise unknown("until.column", until.column, known)
        until.fresh(task.metrics)  # which says where nothing tells which way is better
    if baselines and not baseline_rates(completed.config):
        label = next(iter(named))
        hint = f"{label} has no constant lr for them to take: name one, baselines={{'lr': 0.1}}"
        raise ConfigError("baselines", baselines, hint)
    return completed


# ---- the run


class _Temporary:
    """A temporary folder that is removed with this object."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="fedax-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def _run(experiment: Experiment, folder: Path, *, drawn: bool, **options: Any) -> Record:
    def stopped(error: KeyboardInterrupt) -> None:
        way_on = f"what was done is in {folder}: the same call goes on with it"
        error.add_note(way_on if drawn else "with out=… a comparison is kept, and the same call goes on with it")

    def run_in_folder() -> Record | None:
        with writing(folder, stopped):
            return execute(experiment, folder, drawn=drawn, **options)

    record = _with_argument_names(run_in_folder)
    assert record is not None
    return record


def _with_argument_names(call: Callable[[], Any], argument: str = "out") -> Any:
    """Return ``call()``; its errors name this argument instead of the command's option ``--out``."""
    try:
        return call()
    except ConfigError as error:
        field = argument if error.field == "out" else error.field
        raise ConfigError(field, error.value, error.hint.replace("--out", f"{argument}=")) from error.__cause__
