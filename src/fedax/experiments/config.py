"""A configuration, from TOML to the objects that run: everything is checked before anything long begins.

The sections' own settings are the fields of the classes below. All other keys of a section are the parameters of what
it names: the partition, the task, the work, the participation, the method, with the names and defaults of the Python
functions of that name.
"""

import dataclasses
import difflib
import functools
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import pydantic

import fedax
from fedax.columns import better, measured_names
from fedax.data import FEDERATIONS, PARTITIONS, SETS, by_column, by_value, folder
from fedax.engine.places.fleet import Fleet
from fedax.engine.places.site import Problem
from fedax.engine.private import is_kept, public
from fedax.engine.saved import read_model
from fedax.engine.secret import is_drawn
from fedax.errors import ConfigError, DataError, unknown
from fedax.experiments import own, toml
from fedax.experiments.alone import LOCAL_ONLY, LocalOnly
from fedax.experiments.defaults import OWN_TABLES, are_small, unequal_penalties, usual_seeds, usual_task
from fedax.federation import PARTICIPATION, WORK
from fedax.federation.census import Census
from fedax.files import regular, slug
from fedax.metrics import METRICS
from fedax.numbers import check_number
from fedax.registry import Component, within
from fedax.tasks import TASKS
from fedax.tracking import TRACKERS, Tracker
from fedax.wire import AVERAGES
from fedax.wire.compressed import Compression
from fedax.wire.wire import Wire

Table = dict[str, Any]


FROM_DATA = ("features", "shape", "classes", "vocabulary", "d")  # arguments of tasks that come from the data set

PYTHON = "python"  # the data of a run that was made in Python, which no file describes

_PART = ("trainable", "lora")  # settings of the section task that say which part is learned

_PARTS = ("regularizer", "compress")  # hyper-parameters that tables make something else than schedules of
_WIRE = ("guard", "aggregate", "faults", "compress", "secure")  # settings of the section run that belong to the wire

_RECIPES = pathlib.Path(__file__).parent / "recipes"
_MOST_SEEDS = 1000

Count = pydantic.PositiveInt
Seed = pydantic.NonNegativeInt


class _Section(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True)


class _Open(_Section):
    """A section whose other keys are the parameters of what it names."""

    model_config = pydantic.ConfigDict(extra="allow", strict=True)

    @property
    def parameters(self) -> Table:
        return dict(self.model_extra or {})


class SplitSection(_Section):
    """Which share of each client's examples is held out, to choose by and to report."""

    train: pydantic.NonNegativeFloat | None = None  # what the others leave
    val: pydantic.NonNegativeFloat = 0.0
    test: pydantic.NonNegativeFloat = 0.0
    stratify: bool | str = False
    seed: Seed = 0


class DataSection(_Open):
    """Which data, how they are dealt to the clients, and what of them is held out."""

    name: str
    clients: Count | None = None
    partition: str | None = None
    seed: Seed = 0
    weights: Literal["sizes", "uniform"] = "sizes"
    split: SplitSection | None = None


class TaskSection(_Open):
    """What is learned, from which model on, and which part of it."""

    name: str | None = None
    start: str | None = None  # the file of a model
    trainable: str | list[str] | None = None
    lora: Table | None = None


class WorkSection(_Open):
    """How much each client does in a round."""

    kind: str


class ParticipationSection(_Open):
    """Who takes part in a round, and who of them does not answer."""

    kind: str = "full"
    dropout: Any = None  # a rate, or one for each client
    available: list[Any] | None = None  # of each round, a truth value for each client


class RunSection(_Section):
    """How long, with which minibatches, how often, and what is measured."""

    rounds: Count
    batch_size: Count | None = None
    seeds: Any = None  # how many, or which; not said: see :func:`fedax.experiments.defaults.seeds`
    split_seeds: bool | None = None  # each seed deals the data anew; not said: where own tables are small
    judge: str | None = None  # the column by which methods are compared
    metrics: list[str | Table] | None = None  # besides the task's own
    patience: Count | Table | None = None  # the run ends after so many evaluations without a better validation loss
    baselines: bool | Table | None = None  # also train each client alone, and one model on all data in one place
    evaluate_every: Count | None = None
    grad_norm: bool = False
    density: pydantic.NonNegativeFloat | None = None
    chunk_size: Count | None = None
    guard: bool | Table | None = None
    aggregate: str | Table | None = None
    faults: Table | None = None
    compress: str | Table | None = None  # of uploads; or tables up and down
    secure: Table | None = None


class PrivacySection(_Section):
    """Differential privacy of clients; the arguments of :class:`fedax.DP`."""

    clip: Any
    noise: Any
    delta: Any
    epsilon: Any = None
    adaptive: bool | Table | None = None  # true: with the defaults of fedax.AdaptiveClip
    by_leaf: Any = False
    bands: Any = 1
    noise_seed: Any = None


class MethodSection(_Open):
    """One method to run."""

    name: str
    label: str | None = None


class TrackSection(_Open):
    """Where the runs are tracked too; see :mod:`fedax.tracking`."""

    name: str


class SweepSection(_Section):
    """What :mod:`fedax.experiments.tuning` varies, and by what it judges; ``fedax run`` leaves it aside."""

    criterion: str | None = None
    better: Literal["lower", "higher"] | None = None
    last: Count = 1
    search: Literal["grid", "random"] = "grid"
    points: Count | None = None  # of a random search, for each method
    seed: Seed = 0  # of a random search
    grid: Table = {}  # setting -> values


class ExperimentSection(_Section):
    """A whole configuration."""

    name: str | None = None
    data: DataSection
    task: TaskSection = TaskSection()
    work: WorkSection = WorkSection(kind="epochs", epochs=1)  # type: ignore[call-arg]
    participation: ParticipationSection = ParticipationSection()
    run: RunSection
    privacy: PrivacySection | None = None
    methods: list[MethodSection] = pydantic.Field(min_length=1, max_length=1000)
    track: TrackSection | None = None
    sweep: SweepSection | None = None


class _WrittenData(DataSection):
    weights: Literal["sizes", "uniform", "given"]  # type: ignore[assignment]


class _WrittenTask(TaskSection):
    name: str


class _WrittenParticipation(ParticipationSection):
    kind: str


class _WrittenRun(RunSection):
    split_seeds: bool = False
    evaluate_every: Count | list[Count] | None = None  # type: ignore[assignment]
    seeds: list[Seed] = pydantic.Field(min_length=1, max_length=_MOST_SEEDS)


class _WrittenMethod(MethodSection):
    label: str


class _WrittenSweep(SweepSection):
    criterion: str
    better: Literal["lower", "higher"]
    search: Literal["grid", "random"]


class WrittenSection(ExperimentSection):
    """The configuration of a run folder, in which every default is filled in."""

    name: str
    data: _WrittenData
    task: _WrittenTask
    work: WorkSection
    participation: _WrittenParticipation
    run: _WrittenRun
    methods: list[_WrittenMethod] = pydantic.Field(min_length=1, max_length=1000)  # type: ignore[assignment]
    sweep: _WrittenSweep | None = None


SELECTORS: dict[str, type[_Open]] = {
    "data.partition": DataSection,
    "task.name": TaskSection,
    "work.kind": WorkSection,
    "participation.kind": ParticipationSection,
    "track.name": TrackSection,
}


@dataclass(frozen=True)
class Experiment:
    """A configuration that has passed every check, and the objects that it stands for.

    Attributes:
        config: the configuration with all defaults filled in, as it is written to config.toml.
        data: the clients' examples; of real clients their census.
        val: held-out examples to choose by, by client; or ``None``.
        test: held-out examples to report, by client or in one pytree; or ``None``.
        classes: names of the classes, or ``None`` where the examples have none.
        task: what is learned; one object for all runs, so that JAX compiles once a method.
        work: local work.
        participation: who takes part.
        methods: label -> method.
        options: the section ``run`` as arguments of :func:`fedax.simulate`, without the seeds.
        fleet: the nodes of real clients; ``None`` in a simulation.
        model: the section ``task`` with what comes from the data.
        code: the files of own methods and of the own task, by what stands before the colon in their names.
        track: what follows the runs, see :mod:`fedax.tracking`; ``None``: nothing does.
        whole: the clients' examples before they are split, where all seeds have the same of them; else ``None``.
    """

    config: Table
    data: fedax.FederatedData | Census
    val: fedax.FederatedData | None
    test: fedax.FederatedData | Table | None
    classes: list[str] | None
    task: fedax.Task
    work: fedax.Work
    participation: fedax.Participation
    methods: dict[str, fedax.Algorithm]
    options: dict[str, Any]
    fleet: Fleet | None
    model: Table
    code: dict[str, own.Source] = field(default_factory=dict)
    track: Tracker | None = None
    whole: fedax.FederatedData | None = None

    def problem(self, label: str) -> Table:
        """What a node needs to make the method of this label, its task and its wire: see :func:`problem_of`."""
        (method,) = (each for each in self.config["methods"] if each["label"] == label)
        return self._problem(method)

    def problem_alone(self, lr: float) -> Table:
        """The same for the baseline where each client trains alone."""
        found = self._problem({"name": LOCAL_ONLY, "label": LOCAL_ONLY, "lr": lr})
        metrics = {name: value for name, value in found["run"].items() if name == "metrics"}
        return {name: part for name, part in found.items() if name != "privacy"} | {"run": metrics}

    def _problem(self, method: Table) -> Table:
        run = {name: self.config["run"][name] for name in (*_WIRE, "metrics") if name in self.config["run"]}
        private = {"privacy": self.config["privacy"]} if "privacy" in self.config else {}
        named = [table["name"].rpartition(":")[0] for table in (self.model, method)]
        code = {place: source.digest for place, source in self.code.items() if place in named}
        return {"task": self.model, "method": method, "run": run} | private | ({"code": code} if code else {})

    @property
    def keeps_noise(self) -> bool:
        """Whether the runs are private, and their noise that of a secret."""
        return is_drawn(self.options.get("privacy"))

    @property
    def public(self) -> list[str] | None:
        """Of private runs the columns with nothing but what ε covers, and public data; ``None``: they are none."""
        if not is_kept(self.options.get("privacy")):
            return None
        parts = {part: each for part, each in (("val", self.val), ("test", self.test)) if each is not None}
        held = self.data.held if isinstance(self.data, Census) else {}
        return list(public(["round", *columns([self]), "epsilon"], parts, held))

    def split(
        self, seed: int
    ) -> tuple[fedax.FederatedData | Census, fedax.FederatedData | None, fedax.FederatedData | Table | None]:
        """The clients' data and the held-out examples, ``(data, val, test)``, of a run with this seed.

        They are the same for all seeds, unless ``run.split_seeds`` asks for a split of each: that of data.seed + seed
        and data.split.seed + seed. ``data``, ``val`` and ``test`` are those of the first seed.
        """
        if self._first(seed):
            return self.data, self.val, self.test
        if self.fleet is not None:
            return self.nodes(seed).census, self.val, self.test
        data = self.config["data"]
        if self.whole is not None:
            return _parts(self.whole, self.test, split_of_seed(SplitSection(**data["split"]), seed))
        found = _data(_of_seed(DataSection(**data), seed))
        return found.data, found.val, found.test

    def nodes(self, seed: int) -> Fleet:
        """The nodes, with their rows dealt as a run with this seed has them: :meth:`split` says how."""
        assert self.fleet is not None
        return self.fleet if self._first(seed) else _dealt_by(self.config["data"].get("split"), self.fleet, seed)

    def over(self, fleet: Fleet) -> "Experiment":
        """The same on clients at nodes, who have all rows and deal them as :meth:`split` has them here."""
        split, run = self.config["data"].get("split"), self.config["run"]
        found = _dealt_by(split, fleet, run["seeds"][0] if run["split_seeds"] else 0)
        test = None if found.deal is not None and split["test"] else self.test
        return dataclasses.replace(self, data=found.census, val=None, test=test, fleet=found)

    def undealt(self) -> fedax.FederatedData:
        """The clients' data of a simulation before they are split."""
        run, section = self.config["run"], DataSection(**self.config["data"])
        if section.split is None:
            assert isinstance(self.data, fedax.FederatedData)
            return self.data
        found = _unsplit(_of_seed(section, run["seeds"][0] if run["split_seeds"] else 0))[1]
        assert isinstance(found, fedax.FederatedData)
        return found

    def _first(self, seed: int) -> bool:
        run = self.config["run"]
        return not run["split_seeds"] or seed == run["seeds"][0]


def read_toml(source: str | pathlib.Path) -> Table:
    """The tables of a TOML file, or of a recipe by its name.

    Args:
        source: a file, or where there is none, one of :func:`recipes`.

    Raises:
        ConfigError: there is neither, or it is no TOML; the message has the line.
    """
    path = pathlib.Path(source)
    known = recipes()
    if str(source) in known and not path.exists():
        path = _RECIPES / f"{source}.toml"
    near = difflib.get_close_matches(str(source)[-100:], known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "give a TOML file, or a recipe (fedax list recipes)"
    try:
        regular(path)
        return toml.loads(path.read_bytes())
    except DataError as error:
        raise ConfigError("config", str(source), f"{str(error).removeprefix(f'{path}: ')}; {hint}") from error
    except OSError as error:
        raise ConfigError("config", str(source), f"cannot be read ({error.strerror}); {hint}") from error
    except ValueError as error:
        raise ConfigError("config", str(source), f"is no TOML: {error}") from error


def recipes() -> dict[str, str]:
    """The papers' experiments that come with fedax: name -> where in which paper.

    Example:
        >>> recipes()["fednova-figure-2-equal"]
        'Wang et al. 2020 (FedNova), Figure 2, left'
    """
    lines = {path.stem: path.read_text(encoding="utf-8").partition("\n")[0] for path in sorted(_RECIPES.glob("*.toml"))}
    return {name: line.lstrip("# ").partition(": ")[0] for name, line in lines.items()}


def override(config: Table, setting: str) -> None:
    """Apply one ``key=value`` to a configuration, in place.

    Args:
        config: as of :func:`read_toml`.
        setting: ``section.key=value``; the value is TOML, or else a plain word. ``methods.<name or label>.key`` sets
            one method's, ``methods.*.key`` that of all. Another partition, task, work or participation drops the
            parameters of the former one.

    Example:
        >>> config = {"run": {"rounds": 9}, "methods": [{"name": "fedavg"}, {"name": "fedprox"}]}
        >>> for setting in ("run.rounds=3", "data.partition=iid", "methods.*.lr=0.1", "methods.fedprox.prox=1"):
        ...     override(config, setting)
        >>> config["run"], config["data"], config["methods"][1]
        ({'rounds': 3}, {'partition': 'iid'}, {'name': 'fedprox', 'lr': 0.1, 'prox': 1})
    """
    path, equals, text = setting.partition("=")
    path = path.strip()
    if not equals or not all(path.split(".")):
        raise ConfigError("set", setting, "give section.key=value, such as run.rounds=20 or methods.fedavg.lr=0.1")
    put(config, path, value_of(text))


def value_of(text: str) -> Any:
    """What is written in TOML, or else a plain word.

    Example:
        >>> value_of("[1, 2]"), value_of(" iid")
        ([1, 2], 'iid')
    """
    try:
        return toml.loads(f"value = {text.strip()}".encode())["value"]
    except UnicodeEncodeError as error:  # of a file's name, which no configuration could hold
        raise ConfigError("set", text, "this is not in UTF-8; rename it, or give a pattern such as *.csv") from error
    except ValueError:
        return text.strip()


def put(config: Table, path: str, value: Any) -> None:
    """Set one setting of a configuration, in place; ``path`` and what happens are those of :func:`override`."""
    keys = path.split(".")
    tables = [config]
    if keys[0] == "methods":
        if len(keys) < 3:
            raise ConfigError("set", path, "name the method too: methods.fedavg.lr=0.1, or methods.*.lr=0.1 for all")
        rows = config.get("methods", [])
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ConfigError("methods", rows, "give tables: [[methods]] and the settings of each below it")
        called = [str(row.get("label", own.label_of(str(row.get("name"))))) for row in rows]
        wanted = zip(rows, called, strict=True)
        tables = [row for row, label in wanted if keys[1] in ("*", row.get("name"), label)]
        if not tables:
            raise unknown(f"methods.{keys[1]}", keys[1], called)
        keys = keys[2:]
    elif keys[0] not in ExperimentSection.model_fields:
        raise unknown(path, keys[0], ExperimentSection.model_fields)
    for table in tables:
        for key in keys[:-1]:
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                raise ConfigError("set", path, f"{key} is a value, no section")
        section = SELECTORS.get(path)
        if section is not None and table.get(keys[-1]) != value:
            stale = set(table) - set(section.model_fields)
            by_value = isinstance(value, str) and value in PARTITIONS and PARTITIONS.get(value).make is by_column
            for name in stale | ({"clients"} if by_value else set()):
                table.pop(name, None)
        table[keys[-1]] = value


def check(config: Mapping[str, Any], form: type[ExperimentSection] = ExperimentSection) -> ExperimentSection:
    """The form of a configuration: sections, names, types and ranges of the settings.

    Raises:
        ConfigError: for the first thing that is wrong.
    """
    given = config.get("data")
    if form is ExperimentSection and isinstance(given, Mapping) and given.get("name") == PYTHON:
        way_out = (
            "this run was made in Python, of objects that no file holds: the fedax.compare(…, out=…) that began it "
            "goes on with it; fedax report and fedax.load read it"
        )
        raise ConfigError("data.name", PYTHON, way_out)
    try:
        return form.model_validate(config)
    except pydantic.ValidationError as error:
        raise _clear(error.errors()[0]) from None


def build(config: Mapping[str, Any], fleet: Fleet | None = None, allow_code: bool | own.Code = False) -> Experiment:
    """Check a configuration wholly, load its data, and make all its objects.

    Args:
        config: tables, as of :func:`read_toml`.
        fleet: the nodes of real clients, whose data are the data set ``nodes``.
        allow_code: whether own code that the configuration names (``name = "mine.py:Class"``) may run. Files are looked
            for in the current folder, unless :func:`fedax.experiments.own.configured` says more.

    Raises:
        ConfigError, DataError: whatever cannot be used, with the setting's dotted name.

    Example:
        >>> experiment = build({
        ...     "data": {"name": "digits", "clients": 4, "partition": "iid"},
        ...     "run": {"rounds": 2, "batch_size": 32},
        ...     "methods": [{"name": "fedavg", "lr": 0.1}],
        ... })
        >>> experiment.data, list(experiment.methods), experiment.config["task"]["name"]
        (FederatedData(4 clients, 1442 examples, 360 to 361 a client), ['fedavg'], 'softmax_regression')
    """
    return build_all([config], fleet, allow_code)[0]


def problem_of(table: Table, allowed: Sequence[str] = ()) -> Problem:
    """The method, the task and the wire of :meth:`Experiment.problem`, wherever it is read.

    Args:
        table: plain JSON.
        allowed: files and modules of own code that may run here.

    Raises:
        NodeError: it needs other code.

    Example:
        >>> experiment = build({
        ...     "data": {"name": "digits", "clients": 4},
        ...     "run": {"rounds": 2, "guard": True},
        ...     "methods": [{"name": "fedavg", "lr": 0.1}],
        ... })
        >>> problem = problem_of(experiment.problem("fedavg"))
        >>> problem.method == experiment.methods["fedavg"], problem.task == experiment.task, problem.wire.guard
        (True, True, Guard())
    """
    code = own.of_owner(allowed, table.get("code", {}))
    task, _ = _made_task(table["task"], code)
    task = _with_metrics(task, table["run"])
    if table["method"]["name"] == LOCAL_ONLY:
        method: fedax.Algorithm = LocalOnly(check_number("lr", table["method"]["lr"], 0, open_low=True))
    else:
        method, _ = _method(MethodSection(**table["method"]), table["method"]["label"], code)
    given = {name: part for name, part in _options(table["run"]).items() if name in _WIRE}
    guard = given.get("guard")
    privacy = _private(PrivacySection(**table["privacy"])).get("privacy") if "privacy" in table else None
    guard = fedax.Guard() if guard is True else guard or None
    how = Compression.of(given.get("compress"))
    wire = Wire(given.get("faults"), guard, given.get("aggregate"), privacy, how.down, secure=given.get("secure"))
    return Problem(method, task, wire, how.up)


def check_settings(config: Mapping[str, Any], allow_code: bool | own.Code = False) -> None:
    """Check all of a configuration that needs no data.

    Raises:
        ConfigError: the first thing that cannot be used.
    """
    _settings(check(config), own.code_of(allow_code))


def build_all(
    configs: Sequence[Mapping[str, Any]], fleet: Fleet | None = None, allow_code: bool | own.Code = False
) -> list[Experiment]:
    """:func:`build` of configurations that have data and task in common: all are checked, then data are loaded once."""
    # What needs no data comes first, so that a misspelt method does not wait for a large file.
    code = own.code_of(allow_code)
    settings = [_settings(check(config), code) for config in configs]
    first = check(configs[0])
    if first.task.name is not None:
        code.task(first.task.name)
    track, track_config = _track(first.track)
    seeds = settings[0].run["seeds"] if first.run.split_seeds else [0]
    pooled, data, val, test, data_config, nodes, whole = _data(_of_seed(first.data, seeds[0]), fleet)
    if first.run.split_seeds and not {"seed", "split"} & data_config.keys():
        raise ConfigError("run.split_seeds", True, "these clients are given, not drawn; leave it out")
    census = data if isinstance(data, Census) else Census.of(data)
    classes = fleet.classes if fleet is not None else _number_of_classes(pooled, data)
    usual = usual_task(data_config["name"], census)
    task, model, task_config = _task(first.task, data_config["name"], usual, census, classes, code)
    task, start = _started(first.task.start, task)
    task_config |= {"start": first.task.start} if first.task.start is not None else {}
    begun = {} if start is None else {"params": start}
    task = _with_metrics(task, settings[0].run)
    if whole is not None and first.data.split and first.run.split_seeds is None and repeats(first, whole, task, fleet):
        settings = [_repeated(made, first.run.seeds) for made in settings]
        if (seeds := settings[0].run["seeds"])[0]:
            data, val, test = _parts(whole, test, split_of_seed(first.data.split, seeds[0]))
    elif first.run.seeds is None and first.data.split is not None and data_config["name"] in OWN_TABLES:
        number = usual_seeds(repeated=False, methods=len(first.methods))
        settings = [made._replace(run=made.run | {"seeds": [*range(number)]}) for made in settings]
    sizes = []
    for seed in seeds:
        if whole is not None and first.data.split is not None:
            split = data if seed == seeds[0] else _parts(whole, test, split_of_seed(first.data.split, seed))[0]
        else:
            split = data if seed == seeds[0] else _data(_of_seed(first.data, seed), fleet).data
        if isinstance(split, fedax.FederatedData):
            split.check(task)
        sizes.append(split.sizes)
    if "seed" in data_config:
        data_config["seed"] = first.data.seed
    if first.data.split is not None:
        data_config["split"]["seed"] = first.data.split.seed
    named = None if isinstance(data, Census) else class_names(data)

    def experiment(made: _Settings) -> Experiment:
        for each in sizes:
            within("work", functools.partial(made.work.validate, each))
        within("participation", lambda: made.participation.validate(data.num_clients, made.run["rounds"]))
        within("participation", lambda: made.participation.bind(data.weights))
        resolved = {
            "name": first.name or data_config["name"],
            "data": data_config,
            "task": task_config,
            "work": made.work_config,
            "participation": made.participation_config,
            "run": made.run,
            **({} if first.privacy is None else {"privacy": first.privacy.model_dump(exclude_none=True)}),
            "methods": made.methods_config,
        } | track_config
        if (faults := made.options.get("faults")) is not None:
            within("run.faults", lambda: faults.of(data.num_clients))
        return Experiment(
            resolved,
            data,
            val,
            test,
            named,
            task,
            made.work,
            made.participation,
            made.methods,
            made.options | begun,
            nodes,
            model,
            code.sources,
            track,
            whole if made.run["split_seeds"] else None,
        )

    found = [experiment(each) for each in settings]
    if (judge := first.run.judge) is not None:
        configs = [each.config for each in found]
        check_judge("run.judge", judge, columns(found), found[0].task.metrics, configs)
    if first.run.patience is not None:
        _check_patience(found)
    if first.run.baselines:
        _check_baselines(first.run.baselines, found[0], settings[0].methods_config[0])
    return found


def columns(experiments: Sequence[Experiment]) -> list[str]:
    """The columns, besides the costs, that all methods of some experiments on the same data have."""
    first, run = experiments[0], experiments[0].config["run"]
    at_nodes = {part for part, n in first.data.held.items() if n} if isinstance(first.data, Census) else ()
    return measured_names(
        first.task.metrics,
        val=first.val is not None or "val" in at_nodes,
        test=first.test is not None or "test" in at_nodes,
        grad_norm=run["grad_norm"],
        objective=all("regularizer" in method for each in experiments for method in each.config["methods"]),
        density="density" in run,
    )


def check_judge(
    field: str, judge: str, there: Sequence[str], metrics: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]
) -> None:
    """Check that methods can be compared by a column; ``there``: those that all of them have.

    Raises:
        ConfigError: they cannot.
    """
    if judge not in there:
        raise unknown(field, judge, there)
    if better(judge, metrics) is None:
        raise ConfigError(field, judge, "its name does not tell which way is better; take another column")
    if judge == "objective" and any(map(unequal_penalties, configs)):
        raise ConfigError(field, judge, "the methods have different regularizers; take test_loss or train_loss")


def _check_patience(experiments: Sequence[Experiment]) -> None:
    column, there = experiments[0].options["until"].column, columns(experiments)
    if column not in there:
        way_out = "there is no validation part to stop by: hold one out, [data.split] with val = 0.15"
        if column != "val_loss":
            raise unknown("run.patience.column", column, there)
        raise ConfigError("run.patience", experiments[0].config["run"]["patience"], way_out)


def measured_by_client(experiment: Experiment) -> bool:
    """Whether there are held-out test examples of each client, here or at the nodes that have dealt their rows."""
    if isinstance(experiment.test, fedax.FederatedData):
        return True
    return experiment.test is None and experiment.fleet is not None and bool(experiment.fleet.tested)


def _check_baselines(asked: bool | Table, experiment: Experiment, method: Table) -> None:
    if isinstance(asked, dict):
        if differ := asked.keys() - {"lr"}:
            raise unknown(f"run.baselines.{min(differ)}", min(differ), ["lr"])
        check_number("run.baselines.lr", asked.get("lr", 1.0), 0, open_low=True, fixed=True)
    if not measured_by_client(experiment):
        way_out = "they are measured at each client: hold a part of its examples out, [data.split] with test = 0.15"
        raise ConfigError("run.baselines", asked, way_out)
    given = asked.get("lr") if isinstance(asked, dict) else None
    if given is None and not isinstance(method.get("lr"), int | float):
        way_out = f"{method['label']} has no constant lr for them to take: name one, baselines = {{lr = 0.1}}"
        raise ConfigError("run.baselines", asked, way_out)


def datasets() -> dict[str, str]:
    """All data sets that a configuration may name: name -> one line."""
    return SETS.available() | FEDERATIONS.available()


def data_set(name: str, field: str = "data.name") -> Component:
    """The data set of this name, in any spelling; the error for another one names ``field``."""
    if name in FEDERATIONS or name in SETS:
        return (FEDERATIONS if name in FEDERATIONS else SETS).get(name)
    raise unknown(field, name, datasets())


def tasks() -> dict[str, str]:
    """All tasks that a configuration may name: name -> one line."""
    return fedax.tasks.available()


# ---- sections


class _Settings(NamedTuple):
    """What needs no data, made; and as it is written to config.toml."""

    methods: dict[str, fedax.Algorithm]
    methods_config: list[Table]
    work: fedax.Work
    work_config: Table
    participation: fedax.Participation
    participation_config: Table
    run: Table
    options: Table


def _settings(sections: ExperimentSection, code: own.Code | None = None) -> _Settings:
    names = labels(sections.methods)
    code = code or own.configured(False)
    made = [_method(section, label, code) for section, label in zip(sections.methods, names, strict=True)]
    work, work_config = WORK.bind(sections.work.kind, sections.work.parameters, section="work", key="kind")
    chosen = sections.participation
    participation, participation_config = PARTICIPATION.bind(
        chosen.kind, chosen.parameters, section="participation", key="kind"
    )
    absent = {name: value for name in ("dropout", "available") if (value := getattr(chosen, name)) is not None}
    if absent:
        drawn = participation
        participation = within("participation", lambda: fedax.Dropout(drawn, chosen.dropout, chosen.available))
        participation_config |= absent
    methods = dict(zip(names, (method for method, _ in made), strict=True))
    configs = [config for _, config in made]
    run = _run(sections.run)
    _metrics(run)
    return _Settings(methods, configs, work, work_config, participation, participation_config, run,
                     _options(run) | _private(sections.privacy))  # fmt: skip


def _options(run: Table) -> Table:
    """The section ``run`` as arguments of :func:`fedax.simulate`, without the seeds."""
    apart = ("seeds", "split_seeds", "judge", "metrics", "patience", "baselines")
    options = {name: value for name, value in run.items() if name not in apart}
    if (patience := run.get("patience")) is not None:
        given = patience if isinstance(patience, dict) else {"evaluations": patience}
        options["until"] = call("run.patience", fedax.Patience, given)
    if isinstance(guard := run.get("guard"), dict):
        options["guard"] = call("run.guard", fedax.Guard, guard)
    if (aggregate := run.get("aggregate")) is not None:
        given = {"name": aggregate} if isinstance(aggregate, str) else dict(aggregate)
        options["aggregate"], _ = AVERAGES.bind(given.pop("name", None), given, section="run.aggregate")
    if (faults := run.get("faults")) is not None:
        options["faults"] = call("run.faults", fedax.Faults, faults)
    if (compress := run.get("compress")) is not None:
        given = {"name": compress} if isinstance(compress, str) else compress
        options["compress"] = within("run", lambda: Compression.of(given))
    if (secure := run.get("secure")) is not None:
        options["secure"] = call("run.secure", fedax.SecureSum, secure)
    return options


def _private(section: PrivacySection | None) -> Table:
    """The section ``privacy`` as an argument of :func:`fedax.simulate`."""
    if section is None:
        return {}
    given = section.model_dump()
    if (adaptive := given["adaptive"]) is not None:
        table = adaptive if isinstance(adaptive, dict) else {}
        given["adaptive"] = call("privacy.adaptive", fedax.AdaptiveClip, table) if adaptive is not False else None
    return {"privacy": fedax.DP(**given)}


def _track(section: TrackSection | None) -> tuple[Tracker | None, Table]:
    if section is None:
        return None, {}
    tracker, config = TRACKERS.bind(section.name, section.parameters, section="track")
    return tracker, {"track": config}


def _run(section: RunSection) -> Table:
    given = section.model_dump(exclude_none=True)
    seeds = seeds_of("run.seeds", 1 if section.seeds is None else section.seeds)
    return {**given, "seeds": seeds, "split_seeds": bool(section.split_seeds)}


def repeats(
    config: ExperimentSection, whole: fedax.FederatedData | None, task: fedax.Task, fleet: Fleet | None
) -> bool:
    """Whether each seed is to have a split of its own, where the configuration does not say it."""
    compares = config.data.name in OWN_TABLES and config.data.split is not None and len(config.methods) > 1
    if not compares or whole is None or fleet is not None or config.sweep is not None:
        return False
    return are_small(whole.num_examples, count_parameters(task))


def count_parameters(task: fedax.Task) -> int:
    """How many numbers the model has."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(task.entire.form()))


def _repeated(made: "_Settings", seeds: Any) -> "_Settings":
    """Settings by which each seed has a split of its own."""
    chosen = [*range(usual_seeds(repeated=True))] if seeds is None else made.run["seeds"]
    return made._replace(run=made.run | {"seeds": chosen, "split_seeds": True})


def seeds_of(field: str, given: Any) -> list[int]:
    """The seeds, of how many there are (0, 1, …) or of a list of them."""
    seeds = list(range(given)) if type(given) is int and given <= _MOST_SEEDS else given
    good = isinstance(seeds, list) and seeds and all(type(seed) is int and 0 <= seed < 2**31 for seed in seeds)
    if not good or len(seeds) > _MOST_SEEDS or len(set(seeds)) != len(seeds):
        way_out = f"give a number of seeds from 1 to {_MOST_SEEDS}, or a list of different ones from 0 on"
        raise ConfigError(field, given, way_out)
    return seeds


def _metrics(run: Table) -> dict[str, Any]:
    """The metrics that the section ``run`` asks for, by the names of their columns."""
    found: dict[str, Any] = {}
    for entry in run.get("metrics", ()):
        given = {"name": entry} if isinstance(entry, str) else dict(entry)
        metric, _ = METRICS.bind(given.pop("name", None), given, section="run.metrics")
        if metric.name in found:
            raise ConfigError("run.metrics", metric.name, "this is asked for twice; leave one out")
        found[metric.name] = metric
    return found


def _with_metrics(task: fedax.Task, run: Table) -> fedax.Task:
    metrics = _metrics(run)
    return within("run", lambda: task.with_metrics(**metrics)) if metrics else task


def hyperparameters_of(section: MethodSection, label: str, code: own.Code) -> Table:
    """The method's hyper-parameters with their defaults."""
    return code.method(section.name, f"methods.{label}.name").arguments


def made_method(section: MethodSection, code: own.Code) -> fedax.Algorithm:
    """One method, as a configuration would have it."""
    return _method(section, own.label_of(section.name), code)[0]


def _method(section: MethodSection, label: str, code: own.Code) -> tuple[fedax.Algorithm, Table]:
    place = f"methods.{label}"
    component = code.method(section.name, f"{place}.name")
    given = section.parameters
    component.check(given, component.arguments, f"{place}.")
    schedules = {name for name, value in given.items() if isinstance(value, dict) and name not in _PARTS}
    made = {name: _schedule(f"{place}.{name}", given[name]) if name in schedules else given[name] for name in given}
    if own.is_own(component):
        method = within(place, lambda: own.made(component, made))
        defaults = {name: own.plain(value) for name, value in component.arguments.items()}
    else:
        method = within(place, lambda: fedax.create(section.name, **made))
        defaults = component.arguments
    defaults = {name: value for name, value in defaults.items() if value is not None}
    return method, {"name": section.name, "label": label, **defaults, **given}


def _schedule(field: str, table: Table) -> fedax.Schedule:
    for name, value in table.items():
        if name != "at":
            check_number(f"{field}.{name}", value)
    if "at" not in table:
        return call(field, fedax.PowerDecay, table)
    at = table["at"]
    if not isinstance(at, dict) or not all(round_.isdecimal() for round_ in at):
        raise ConfigError(f"{field}.at", at, "give factors by round, such as {600 = 0.2, 900 = 0.2}")
    for round_, factor in at.items():
        check_number(f"{field}.at.{round_}", factor, 0, open_low=True)
    return call(field, fedax.Piecewise, {**table, "at": {int(round_): factor for round_, factor in at.items()}})


def labels(methods: Sequence[MethodSection]) -> list[str]:
    """Each method's label; of methods that come several times, with the settings in which they differ."""
    found: list[str] = []
    unlabelled: dict[str, list[MethodSection]] = {section.name: [] for section in methods}
    for section in methods:
        if not section.label:
            unlabelled[section.name].append(section)
    differ = {name: _differing(same) for name, same in unlabelled.items()}
    for section in methods:
        label = section.label or own.label_of(section.name)
        if not section.label:
            given = section.parameters
            label += "".join(f" {key}={given[key]}" for key in differ[section.name] if key in given)
        found.append(label)
    seen = set()
    for i, label in enumerate(found):
        if slug(label) in seen:  # file names are made of them
            raise ConfigError(f"methods[{i}].label", label, "two methods have this label; give each its own label")
        seen.add(slug(label))
    return found


def _differing(same: Sequence[MethodSection]) -> list[str]:
    """The settings that are not the same in all."""
    given = [section.parameters for section in same]
    keys = dict.fromkeys(key for each in given for key in each)
    return [key for key in keys if len({repr(each.get(key)) for each in given}) > 1]


Held = fedax.FederatedData | Table | None


class _Data(NamedTuple):
    """The data of a configuration: the data set, where it comes in one; the parts; and the section as it is written.

    ``fleet``: the nodes that have dealt their rows, or ``None``.
    """

    pooled: Any
    data: fedax.FederatedData | Census
    val: fedax.FederatedData | None
    test: Held
    config: Table
    fleet: Fleet | None = None
    whole: fedax.FederatedData | None = None  # before the split, where no seed draws it


def _data(section: DataSection, fleet: Fleet | None = None) -> _Data:
    pooled, data, test, config = _unsplit(section, fleet)
    if section.split is None:
        return _Data(pooled, data, None, test, config, fleet)
    given = _shares(section.split)
    if test is not None and given["test"]:
        way_out = "there are held-out examples already; leave it out, and split off val alone"
        raise ConfigError("data.split.test", given["test"], way_out)
    if fleet is not None:
        found = _dealt_by(given, fleet)
        return _Data(pooled, found.census, None, test, {**config, "split": given}, found)
    assert isinstance(data, fedax.FederatedData)
    train, val, test = _parts(data, test, section.split)
    given_clients = pooled is None and "seed" not in config
    return _Data(pooled, train, val, test, {**config, "split": given}, None, data if given_clients else None)


def _shares(section: SplitSection) -> Table:
    """The arguments of :func:`fedax.data.split`."""
    given = section.model_dump()
    if given["train"] is None:
        given["train"] = round(1 - given["val"] - given["test"], 12)
    return given


def _parts(
    data: fedax.FederatedData, test: Held, section: SplitSection
) -> tuple[fedax.FederatedData, fedax.FederatedData | None, Held]:
    """The clients' examples in parts; ``test``: held-out examples that there are without it, which stay."""
    given = _shares(section)
    parts = within("data.split", lambda: fedax.data.split(data, **given))
    for name in ("val", "test"):
        if given[name] and getattr(parts, name) is None:
            way_out = f"no client has enough examples for one, the largest {data.sizes.max()}; ask for a larger share"
            raise ConfigError(f"data.split.{name}", given[name], f"{way_out}, or 0")
    return parts.train, parts.val, parts.test if given["test"] or test is None else test


def _dealt_by(split: Table | None, fleet: Fleet, seed: int = 0) -> Fleet:
    """The nodes whose rows are dealt by a split with all its settings, of a training seed."""
    if split is None or (not split["val"] and not split["test"]):
        return fleet
    return fleet.dealt({**split, "seed": split["seed"] + seed})


def _unsplit(section: DataSection, fleet: Fleet | None = None) -> tuple[Any, fedax.FederatedData | Census, Held, Table]:
    """``-> (data set, clients' data, held-out examples, configuration)``; no data set where one is generated."""
    if section.name == "nodes":
        return _at_nodes(section, fleet)
    pool = data_set(section.name)
    if pool.name in FEDERATIONS:
        return _in_clients(section, pool)
    partition = PARTITIONS.get(section.partition or "iid", "data.partition")
    counted = "clients" in partition.arguments
    if counted and section.clients is None:
        raise ConfigError("data.clients", None, "this is missing; give the number of clients")
    pooled = fedax.data.load(pool.name)
    if partition.make is by_column:
        parts, parameters = _by_column(section, pooled)
    else:
        given, named = section.parameters, {}
        first: Any = pooled.train["y"]
        if partition.make is by_value and "column" in given:
            named["column"] = given.pop("column")
            if named["column"] not in pooled.groups:
                raise unknown("data.column", named["column"], pooled.groups)
            first = pooled.groups[named["column"]]
        first = len(first) if "n" in partition.arguments else first
        given |= {"seed": section.seed} | ({"clients": section.clients} if section.clients is not None else {})
        parts, parameters = partition.bind(given, first, section="data")
        parameters |= named
    data = _weighted(fedax.FederatedData.from_partition(pooled.train, parts), section.weights)
    config = {"name": pool.name, "partition": partition.name, **parameters, "weights": section.weights}
    return pooled, data, pooled.test, config


def _at_nodes(section: DataSection, fleet: Fleet | None) -> tuple[None, Census, Table | None, Table]:
    """:func:`_data` of real clients; held-out examples are at the nodes, or in a folder at the server."""
    if fleet is None:
        raise ConfigError(
            "data.name", "nodes", "these are real clients: fedax deploy run; to simulate, name a data set"
        )
    for name in ("partition", "clients"):
        if getattr(section, name) is not None:
            raise ConfigError(f"data.{name}", getattr(section, name), "the data are at the nodes; leave it out")
    if differ := section.parameters.keys() - {"test"}:
        raise unknown(f"data.{min(differ)}", min(differ), ["name", "test", "weights"])
    folder_, census = section.parameters.get("test"), fleet.whole.census
    test = None if folder_ is None else within("data", lambda: fedax.FederatedData.open(folder_).examples)
    n = census.num_clients
    if section.weights == "uniform":
        census = census._replace(weights=np.full(n, 1 / n))
    fleet.whole.census = census
    config = {"name": "nodes", **section.parameters, "weights": section.weights}
    return None, census, test, config


def _in_clients(section: DataSection, federation: Component) -> tuple[None, fedax.FederatedData, Held, Table]:
    """:func:`_data` that come in clients."""
    if section.partition is not None:
        raise ConfigError("data.partition", section.partition, f"{federation.name} comes in clients; leave it out")
    given = section.parameters
    if "seed" in federation.arguments or "seed" in section.model_fields_set:
        given = given | {"seed": section.seed}
    if section.clients is not None:
        given["clients"] = section.clients
    made, parameters = federation.bind(given, section="data")
    data, test = made if isinstance(made, tuple) else (made, None)
    data = data if federation.make is folder and section.weights == "sizes" else _weighted(data, section.weights)
    return None, data, test, {"name": federation.name, **parameters, "weights": section.weights}


def split_of_seed(split: SplitSection, seed: int) -> SplitSection:
    """The split of a run with this seed, where each has its own: data.split.seed + seed."""
    return split.model_copy(update={"seed": split.seed + seed})


def _of_seed(section: DataSection, seed: int) -> DataSection:
    """The section with the split of a training seed."""
    drawn = section.name not in FEDERATIONS or "seed" in FEDERATIONS.get(section.name).arguments
    update: Table = {"seed": section.seed + seed} if drawn else {}
    if section.split is not None:
        update["split"] = split_of_seed(section.split, seed)
    return section.model_copy(update=update) if seed else section


def _by_column(section: DataSection, pooled: Any) -> tuple[list[np.ndarray], Table]:
    given = section.parameters
    for name in given:
        if name not in ("column", "group_size"):
            raise unknown(f"data.{name}", name, ["column", "group_size", *DataSection.model_fields])
    if not pooled.groups:
        raise ConfigError("data.partition", "column", f"{section.name} has no columns of clients; choose another one")
    if "column" not in given:
        raise ConfigError("data.column", None, f"this is missing; there are: {', '.join(pooled.groups)}")
    if given["column"] not in pooled.groups:
        raise unknown("data.column", given["column"], pooled.groups)
    group_size = given.get("group_size", 1)
    parts = within("data", lambda: by_column(pooled.groups[given["column"]], group_size))
    if section.clients not in (None, len(parts)):
        raise ConfigError("data.clients", section.clients, f"the column has {len(parts)} clients; leave it out")
    return parts, given


def _weighted(data: fedax.FederatedData, weights: str) -> fedax.FederatedData:
    return data.with_weights(None if weights == "sizes" else np.full(data.num_clients, 1 / data.num_clients))


def _number_of_classes(pooled: Any, data: fedax.FederatedData | Census) -> int | None:
    if pooled is not None:
        return None if pooled.classes is None else int(pooled.classes)
    if isinstance(data, Census):
        return None
    if data.transform is not None and data.transform.label is not None:
        return None if data.transform.classes is None else len(data.transform.classes)
    labels = data.examples.get("y")
    whole = labels is not None and labels.dtype.kind in "iub"
    return int(labels.max()) + 1 if whole else None


def _task(
    section: TaskSection, data_name: str, usual: str | None, census: Census, classes: int | None, code: own.Code
) -> tuple[fedax.Task, Table, Table]:
    """The task; its section with what comes from the data; and the section as it is written to config.toml."""
    name = section.name or usual
    if name is None:
        raise ConfigError("task.name", None, f"this is missing; name one: {', '.join(TASKS)}")
    component, example = code.task(name), census.example
    derived: Table = {}
    if "x" in example:
        shape = list(example["x"].shape)
        derived = {"features": int(np.prod(shape)), "shape": shape, "classes": classes, "vocabulary": classes}
    elif "e" in example:
        derived = {"d": example["e"].shape[0]}
    wanted = [key for key in component.arguments if key in FROM_DATA]
    for key in wanted:
        if derived.get(key) is None:
            raise ConfigError("task.name", name, f"this does not fit {data_name}; try {usual or 'another'!r}")
        if key in section.parameters:
            raise ConfigError(f"task.{key}", section.parameters[key], "this comes from the data set; leave it out")
    part = {key: value for key in _PART if (value := getattr(section, key)) is not None}
    model = {"name": component.name, **section.parameters, **{key: derived[key] for key in wanted}, **part}
    task, parameters = _made_task(model, code)
    written = {key: value for key, value in parameters.items() if key not in wanted}
    return task, model, {"name": component.name, **written, **part}


def _made_task(model: Table, code: own.Code) -> tuple[fedax.Task, Table]:
    given = {key: tuple(value) if key == "shape" else value for key, value in model.items() if key != "name"}
    part: Table = {key: given.pop(key) for key in _PART if key in given}
    task, parameters = code.task(model["name"]).bind(given, section="task")
    if len(part) == 2:
        raise ConfigError("task.trainable", part["trainable"], "there is task.lora too; give one of them")
    if part:
        rule = call("task.lora", fedax.tasks.LoRA, part["lora"]) if "lora" in part else part["trainable"]
        task = within("task", lambda: fedax.tasks.partial(task, rule))
    return task, parameters


def _started(path: str | None, task: fedax.Task) -> tuple[fedax.Task, Any]:
    """The task that goes on from the model in a file, and its initial parameters if they are not in it already."""
    if path is None:
        return task, None
    start = within("task.start", lambda: read_model(pathlib.Path(path), task.entire.form()))
    return (task, start) if task.entire is task else (task.from_whole(start), None)


def class_names(data: fedax.FederatedData) -> list[str] | None:
    """What the classes of clients' examples are called; ``None`` where they have none."""
    labels = data.examples.get("y")
    if labels is None or labels.ndim != 1:
        return None
    if data.transform is not None and data.transform.label is not None:
        return None if data.transform.classes is None else list(data.transform.classes)
    values = np.unique(labels)
    return [f"{value:g}" for value in values] if len(values) <= 100 else None


def call(section: str, make: Callable[..., Any], given: Table) -> Any:
    """``make(**given)``; errors are reported as settings of ``section``."""
    return Component(section, make, "").bind(given, section=section)[0]


# ---- pydantic's errors


_MISSING = {
    "data": '[data] with name = "digits"',
    "run": "[run] with rounds = 50",
    "run.rounds": "rounds = 50",
    "privacy.clip": "clip = 1.0, the largest norm of an upload",
    "privacy.noise": "noise = 1.0, in units of the clip; fedax privacy finds it for a budget",
    "privacy.delta": "delta = 1e-5, below one over the number of clients",
    "methods": '[[methods]] with name = "fedavg"',
}


def _clear(error: Any) -> ConfigError:
    """One of pydantic's errors in fedax's form."""
    loc, kind = error["loc"], error["type"]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")
    if kind == "extra_forbidden":
        inner = {"run": RunSection, "sweep": SweepSection, "data": SplitSection}
        model: Any = ExperimentSection if len(loc) == 1 else inner[loc[0]]
        return unknown(field, str(loc[-1]), model.model_fields)
    if kind in ("missing", "too_short"):
        return ConfigError(field, None, f"this is missing; add {_MISSING.get(field, 'it')}")
    if kind == "model_type":
        return ConfigError(field, error["input"], f"give a table: [{field}] and its settings below it")
    return ConfigError(field, error["input"], error["msg"][0].lower() + error["msg"][1:])
