"""A configuration that has passed every check, and the objects that it stands for."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax

import fedax
from fedax.columns import PARTS, PERSONAL, TRAIN, better, measured_names, measures, numbers
from fedax.contract.personal import has_personal
from fedax.data.federated import Unseen
from fedax.engine.checks import check_train_loss
from fedax.engine.job import Job
from fedax.engine.load import Shared
from fedax.engine.make import make_job
from fedax.engine.options import Options
from fedax.engine.private import is_kept, public
from fedax.engine.secret import is_drawn
from fedax.errors import ConfigError, unknown
from fedax.experiments import own
from fedax.experiments.alone import LOCAL_ONLY, LocalOnly
from fedax.experiments.config import codec
from fedax.experiments.config.data import (
    EACH,
    class_names,
    deal,
    dealt_by,
    leaves_out_each,
    number_of_classes,
    of_seed,
    parts_of,
    split_of_seed,
    unsplit,
)
from fedax.experiments.config.sections import (
    MOST_SEEDS,
    DataSection,
    ExperimentSection,
    MethodSection,
    RunSection,
    SplitSection,
    Table,
    check,
    labels,
    seeds_of,
)
from fedax.experiments.defaults import OWN_TABLES, are_small, unequal_penalties, usual_seeds, usual_task
from fedax.federation.census import Census
from fedax.metrics.base import HostMetric
from fedax.numbers import check_number
from fedax.registry import within
from fedax.sites.protocol.agreement import Made
from fedax.sites.protocol.fleet import Fleet
from fedax.tracking import Tracker


@dataclass(frozen=True)
class Experiment:
    """A configuration that has passed every check, and the objects that it stands for.

    Attributes:
        config: the configuration with all defaults filled in, as it is written to config.toml.
        data: the clients' examples; of real clients their census.
        val: held-out examples to choose by, by client; or ``None``.
        test: held-out examples to report, by client or in one pytree; or ``None``.
        classes: names of the classes, or ``None`` where the examples have none.
        task: the task; one object for all runs, so that JAX compiles each method once.
        work: how many local steps clients take.
        participation: who takes part.
        methods: label -> method.
        options: the section ``run`` as arguments of :func:`fedax.simulate`, without the seeds.
        fleet: the nodes of real clients; ``None`` in a simulation.
        model: the section ``task``, completed with what comes from the data.
        code: the files of the user's own methods and task, by the part of their names before the colon.
        track: the tracker of the runs, see :mod:`fedax.tracking`; ``None``: there is none.
        whole: the clients' examples before the split, where all seeds split the same examples; else ``None``.
        configured: whether ``config`` makes all of it again, at another machine too.
        withheld: metrics that are not measured, as an owner does not let them leave its node -> the clients there.
        tuned: label -> the rates that were tried for it, and the one that was taken; empty: as configured.
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
    configured: bool = True
    tuned: dict[str, Table] = field(default_factory=dict)
    withheld: dict[str, str] = field(default_factory=dict)

    def problem(self, label: str) -> Table:
        """The table from which a node derives the run of this label; see :func:`problem_of`."""
        (method,) = (row for row in self.config["methods"] if row["label"] == label)
        return self._problem(method)

    def problem_alone(self, lr: float, rounds: int) -> Table:
        """As :meth:`problem`, for the baseline where each client trains alone, a pass over its rows in each round."""
        found = self._problem({"name": LOCAL_ONLY, "label": LOCAL_ONLY, "lr": lr}, of_wire=False)
        own = codec.written_options(Options(rounds=rounds, work=fedax.Epochs(1), evaluate_every=max(1, rounds)))
        kept = {name: part for name, part in found.items() if name not in ("participation", "pace")}
        return kept | own | {"run": found["run"] | own["run"]}

    def _problem(self, method: Table, of_wire: bool = True) -> Table:
        told = codec.told_to_nodes(self.config, of_wire)
        measured = ("metrics", "grad_norm", "density")
        run = {name: each for name in measured if (each := self.config["run"].get(name)) not in (None, False)}
        told["run"] = told.get("run", {}) | run | ({"without": sorted(self.withheld)} if self.withheld else {})
        places = [table["name"].rpartition(":")[0] for table in (self.model, method)]
        code = {place: source.digest for place, source in self.code.items() if place in places}
        return {"task": self.model, "method": method} | told | ({"code": code} if code else {})

    @property
    def keeps_noise(self) -> bool:
        """Whether the runs are private, with noise that is derived from a secret key."""
        return is_drawn(self.options.get("privacy"))

    @property
    def public(self) -> list[str] | None:
        """The columns of private runs that ε covers, or that come from public data; ``None``: runs are not private."""
        if not is_kept(self.options.get("privacy")):
            return None
        parts = {part: data for part, data in (("val", self.val), ("test", self.test)) if data is not None}
        at_nodes = self.data.held if isinstance(self.data, Census) else {}
        return list(public(["round", *_measured([self]), "epsilon"], parts, at_nodes))

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
            return parts_of(self.whole, self.test, split_of_seed(SplitSection(**data["split"]), seed))
        dealt = deal(of_seed(DataSection(**data), seed))
        return dealt.data, dealt.val, dealt.test

    def nodes(self, seed: int) -> Fleet:
        """The nodes, with their rows split as a run with this seed needs them: see :meth:`split`."""
        assert self.fleet is not None
        return self.fleet if self._first(seed) else dealt_by(self.config["data"].get("split"), self.fleet, seed)

    def over(self, fleet: Fleet) -> "Experiment":
        """The same experiment on clients at nodes, who have all rows and split them as :meth:`split` does here."""
        split, run = self.config["data"].get("split"), self.config["run"]
        dealt = dealt_by(split, fleet, run["seeds"][0] if run["split_seeds"] else 0)
        test = None if dealt.split is not None and split["test"] else self.test
        return dataclasses.replace(self, data=dealt.census, val=None, test=test, fleet=dealt)

    def undealt(self) -> fedax.FederatedData:
        """The clients' data of a simulation before they are split."""
        run, section = self.config["run"], DataSection(**self.config["data"])
        if section.split is None:
            assert isinstance(self.data, fedax.FederatedData)
            return self.data
        clients = unsplit(of_seed(section, run["seeds"][0] if run["split_seeds"] else 0))[1]
        assert isinstance(clients, fedax.FederatedData)
        return clients

    def _first(self, seed: int) -> bool:
        run = self.config["run"]
        return not run["split_seeds"] or seed == run["seeds"][0]


def build(config: Mapping[str, Any], fleet: Fleet | None = None, allow_code: bool | own.Code = False) -> Experiment:
    """Check a whole configuration, load its data, and make all its objects.

    Args:
        config: tables, as of :func:`read_toml`.
        fleet: the nodes of real clients, for the data set ``nodes``.
        allow_code: whether code of the user's that the configuration names (``name = "mine.py:Class"``) may run. Files
            are looked for in the current folder; :func:`fedax.experiments.own.configured` can name others.

    Raises:
        ConfigError, DataError: a setting that cannot be used, by its dotted name.

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


def job_of(experiment: Experiment, label: str, shared: Shared) -> Job:
    """The checked job of a method; ``shared``: a cache for several jobs, as in ``make_job``."""
    parts: dict[str, Any] = {"work": experiment.work, "participation": experiment.participation}
    parts |= {"val": experiment.val, "test": experiment.test, "shared": shared} | experiment.options
    make = functools.partial(make_job, experiment.methods[label], experiment.task, experiment.data, **parts)
    return within(f"methods.{label}", make)


def within_deadline(experiment: Experiment, label: str) -> tuple[fedax.Work, fedax.Participation]:
    """Work and participation of a method's runs: with a deadline by the clock as that tells, of the first seed."""
    work = experiment.work
    if not isinstance(work, fedax.Deadline) or work.speed is not None:
        return work, experiment.participation
    hyper = job_of(experiment, label, Shared()).hyper
    return hyper.work, hyper.participation


def problem_of(table: Table, allowed: Sequence[str] = ()) -> Made:
    """Make the method, the task and the options from the table of :meth:`Experiment.problem`, at a node.

    Args:
        table: from :meth:`Experiment.problem`, as plain JSON.
        allowed: files and modules of the user's code that may run here.

    Raises:
        NodeError: the table names code that is not allowed here.

    Example:
        >>> experiment = build({
        ...     "data": {"name": "digits", "clients": 4},
        ...     "run": {"rounds": 2, "guard": True},
        ...     "methods": [{"name": "fedavg", "lr": 0.1}],
        ... })
        >>> problem = problem_of(experiment.problem("fedavg"))
        >>> problem.method == experiment.methods["fedavg"], problem.task == experiment.task, problem.options["guard"]
        (True, True, True)
    """
    code = own.of_owner(allowed, table.get("code", {}))
    task, _ = codec.made_task(table["task"], code)
    task = codec.without_metrics(codec.with_metrics(task, table["run"]), table["run"].get("without", ()))
    if table["method"]["name"] == LOCAL_ONLY:
        method: fedax.Algorithm = LocalOnly(check_number("lr", table["method"]["lr"], 0, open_low=True))
    else:
        method, _ = codec.method_of(MethodSection(**table["method"]), table["method"]["label"], code)
    return Made(method, task, codec.options_of(codec.told_to_nodes(table)))


def check_settings(config: Mapping[str, Any], allow_code: bool | own.Code = False) -> None:
    """Check all settings of a configuration that can be checked without data.

    Raises:
        ConfigError: the first thing that cannot be used.
    """
    settings_of(check(config), own.code_of(allow_code))


def build_all(
    configs: Sequence[Mapping[str, Any]], fleet: Fleet | None = None, allow_code: bool | own.Code = False
) -> list[Experiment]:
    """:func:`build` for configurations with the same data and task: all are checked, then the data are loaded once."""
    # Checks without data come first: the error for a misspelt method should not wait for a large file.
    code = own.code_of(allow_code)
    settings = [settings_of(check(config), code) for config in configs]
    first = check(configs[0])
    if first.task.name is not None:
        code.task(first.task.name)
    track, tracked = (None, None) if first.track is None else codec.TRACKS.bind("track", dict(first.track))
    track_config = {} if tracked is None else {"track": tracked}
    listed = leaves_out_each(first.data.split) and isinstance(first.run.seeds, list)  # the clients that are left out
    seeds = settings[0].run["seeds"] if first.run.split_seeds or listed else [0]
    pooled, data, val, test, data_config, nodes, whole = deal(of_seed(first.data, seeds[0]), fleet)
    if first.run.split_seeds and not {"seed", "split"} & data_config.keys():
        raise ConfigError("run.split_seeds", True, "these clients are given, not drawn; leave it out")
    census = data if isinstance(data, Census) else Census.of(data)
    classes = fleet.classes if fleet is not None else number_of_classes(pooled, data)
    usual = usual_task(data_config["name"], census)
    task, model, task_config = codec.task_of(first.task, data_config["name"], usual, census, classes, code)
    task, start = codec.started(first.task.start, task)
    task_config |= {"start": first.task.start} if first.task.start is not None else {}
    task = codec.with_metrics(task, settings[0].run)
    parts = [part for part, n in census.held.items() if n and not (part == "test" and test is not None)]
    withheld = {} if fleet is None else fleet.withheld(task.metrics, parts)
    task = codec.without_metrics(task, withheld)
    if leaves_out_each(first.data.split):
        assert isinstance(data, fedax.FederatedData) and data.unseen is not None
        numbers = one_by_one(first.run, data.num_clients + data.unseen.test.num_clients)
        settings, seeds = [made.with_run(seeds=numbers, split_seeds=True) for made in settings], numbers
    elif first.run.split_seeds is None and repeats(first, whole, task, fleet):
        numbers = [*range(usual_seeds(repeated=True))] if first.run.seeds is None else settings[0].run["seeds"]
        settings = [made.with_run(seeds=numbers, split_seeds=True) for made in settings]
        assert whole is not None and first.data.split is not None
        if (seeds := settings[0].run["seeds"])[0]:
            data, val, test = parts_of(whole, test, split_of_seed(first.data.split, seeds[0]))
    elif first.run.seeds is None and first.data.split is not None and data_config["name"] in OWN_TABLES:
        number = usual_seeds(repeated=False, methods=len(first.methods))
        settings = [made.with_run(seeds=[*range(number)]) for made in settings]
    if "seed" in data_config:
        data_config["seed"] = first.data.seed
    if first.data.split is not None:
        data_config["split"]["seed"] = first.data.split.seed
    resolved = {"name": first.name or data_config["name"], "data": data_config, "task": task_config}
    common = (data, val, test, class_names(data), task)
    initial = {} if start is None else {"params": start}
    experiments = [
        Experiment(
            resolved | made.config | track_config,
            *common,
            made.work,
            made.participation,
            made.methods,
            made.options | initial,
            nodes,
            model,
            code.sources,
            track,
            whole if made.run["split_seeds"] else None,
            withheld=withheld,
        )
        for made in settings
    ]
    sizes = []
    for seed in seeds:
        split = experiments[0].split(seed)[0]
        if isinstance(split, fedax.FederatedData):
            split.check(task)
        sizes.append(split.sizes)
    for made in settings:
        _check_clients(made, census, sizes, fleet)
    if (judge := first.run.judge) is not None:
        configs = [each.config for each in experiments]
        if judge in _measured(experiments) and judge not in (known := columns(experiments)):
            hint = "there is none of personal models: hold out examples of each client, [data.split] with test = 0.15"
            raise ConfigError("run.judge", judge, f"{hint}; or take {', '.join(known)}")
        check_judge("run.judge", judge, columns(experiments), experiments[0].task.metrics, configs)
    if first.run.patience is not None:
        _check_patience(experiments)
    if first.run.baselines:
        _check_baselines(first.run.baselines, experiments[0], settings[0].config["methods"][0])
    return experiments


def columns(experiments: Sequence[Experiment]) -> list[str]:
    """The columns by which methods of experiments on the same data can be compared, without the costs.

    Where some methods have personal models, and others none, these are the measures of the models that clients get; see
    :func:`fedax.columns.deciding`.
    """
    measured, personal = _measured(experiments), _of_personal_models(experiments[0])
    have = [has_personal(method) for experiment in experiments for method in experiment.methods.values()]
    if all(have):
        return [*measured, *(f"{name}{PERSONAL}" for name in personal)]
    return [name for name in measured if name in personal] if any(have) else measured


def _of_personal_models(experiment: Experiment) -> list[str]:
    """What of personal models is measured: on the training data, and on the clients' own held-out examples."""
    held = experiment.data.held if isinstance(experiment.data, Census) else {}
    given = {"val": experiment.val, "test": experiment.test, "unseen": getattr(experiment.data, "unseen", None)}
    parts = {part for part, each in given.items() if isinstance(each, fedax.FederatedData | Unseen) or held.get(part)}
    names = ["loss", *(name for name, each in experiment.task.metrics.items() if not isinstance(each, HostMetric))]
    return [TRAIN[0], *(f"{part}_{name}" for part in PARTS if part in parts for name in names)]


def _measured(experiments: Sequence[Experiment]) -> list[str]:
    """The measured columns, without the costs, that all methods of experiments on the same data have."""
    first = experiments[0]
    at_nodes = {part for part, n in first.data.held.items() if n} if isinstance(first.data, Census) else ()
    return measured_names(
        first.task.metrics,
        val=first.val is not None or "val" in at_nodes,
        test=first.test is not None or "test" in at_nodes,
        unseen=isinstance(first.data, fedax.FederatedData) and first.data.unseen is not None,
        grad_norm="grad_norm" in first.task.run_metrics,
        objective=all("regularizer" in method for experiment in experiments for method in experiment.config["methods"]),
        density="density" in first.task.run_metrics,
    )


def check_judge(
    field: str, judge: str, available: Sequence[str], metrics: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]
) -> None:
    """Check that methods can be compared by a column; ``available``: the columns that all methods have.

    Costs, and figures of each client, are no measure of a model.

    Raises:
        ConfigError: they cannot.
    """
    if judge not in (known := measures(available)):
        raise unknown(field, judge, known)
    if better(judge, metrics) is None:
        raise ConfigError(field, judge, "its name does not tell which way is better; take another column")
    if judge == "objective" and any(map(unequal_penalties, configs)):
        raise ConfigError(field, judge, "the methods have different regularizers; take test_loss or train_loss")


def _check_patience(experiments: Sequence[Experiment]) -> None:
    until, available = experiments[0].options["until"], numbers(columns(experiments))
    if (column := until.column) not in available:
        hint = "there is no validation part to stop by: hold one out, [data.split] with val = 0.15"
        if column != "val_loss":
            raise unknown("run.patience.column", column, available)
        raise ConfigError("run.patience", experiments[0].config["run"]["patience"], hint)
    within("run", lambda: until.fresh(experiments[0].task.metrics))


def measured_by_client(experiment: Experiment) -> bool:
    """Whether each client has held-out test examples, here or at nodes that split their rows."""
    if isinstance(experiment.test, fedax.FederatedData):
        return True
    return experiment.test is None and experiment.fleet is not None and bool(experiment.fleet.tested)


def _check_baselines(baselines: bool | Table, experiment: Experiment, method: Table) -> None:
    if isinstance(baselines, dict):
        if differ := baselines.keys() - {"lr"}:
            raise unknown(f"run.baselines.{min(differ)}", min(differ), ["lr"])
        rates = baselines.get("lr", 1.0)
        for rate in rates if isinstance(rates, list) and rates else [rates]:
            check_number("run.baselines.lr", rate, 0, open_low=True, fixed=True)
        if isinstance(rates, list) and experiment.fleet is None and not isinstance(experiment.val, fedax.FederatedData):
            raise ConfigError("run.baselines.lr", rates, "there is no validation part to choose by: give one number")
    if not measured_by_client(experiment):
        hint = "they are measured at each client: hold a part of its examples out, [data.split] with test = 0.15"
        raise ConfigError("run.baselines", baselines, hint)
    lr = baselines.get("lr") if isinstance(baselines, dict) else None
    if lr is None and not isinstance(method.get("lr"), int | float):
        hint = f"{method['label']} has no constant lr for them to take: name one, baselines = {{lr = 0.1}}"
        raise ConfigError("run.baselines", baselines, hint)


def tasks() -> dict[str, str]:
    """All tasks that a configuration can name: name -> one line about it."""
    return fedax.tasks.available()


def repeats(
    config: ExperimentSection, whole: fedax.FederatedData | None, task: fedax.Task, fleet: Fleet | None
) -> bool:
    """Whether each seed gets its own split, where the configuration does not say."""
    compares = config.data.name in OWN_TABLES and config.data.split is not None and len(config.methods) > 1
    if not compares or whole is None or fleet is not None or config.sweep is not None:
        return False
    return are_small(whole.num_examples, count_parameters(task))


def one_by_one(run: RunSection, clients: int) -> list[int]:
    """The seeds of the runs that leave out one client each, if the user does not list them.

    Raises:
        ConfigError: too many; a number of seeds, or one split for all of them, is asked for.

    Example:
        >>> one_by_one(RunSection(rounds=5), clients=3)
        [0, 1, 2]
    """
    if isinstance(run.seeds, list) and run.split_seeds is not False:
        return seeds_of("run.seeds", run.seeds)
    for name, given in (("seeds", run.seeds), ("split_seeds", None if run.split_seeds else run.split_seeds)):
        if given is not None:
            hint = 'with clients = "each" there is a run for each client, whose seed is its number; leave it out'
            raise ConfigError(f"run.{name}", given, hint)
    if clients > MOST_SEEDS:
        hint = f"these are {clients} runs of each method, at most {MOST_SEEDS}: leave out a share, clients = 0.2"
        raise ConfigError("data.split.clients", EACH, hint)
    return [*range(clients)]


def count_parameters(task: fedax.Task) -> int:
    """The number of parameters of the model."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(task.entire.form()))


# ---- sections


class CheckedSettings(NamedTuple):
    """The objects that need no data, and their sections as they are written to config.toml."""

    methods: dict[str, fedax.Algorithm]
    work: fedax.Work
    participation: fedax.Participation
    options: Table
    config: Table

    @property
    def run(self) -> Table:
        """The section ``run``."""
        return self.config["run"]

    def with_run(self, **changes: Any) -> "CheckedSettings":
        """The same settings with others of the section ``run``."""
        return self._replace(config=self.config | {"run": self.run | changes})


def _check_clients(made: CheckedSettings, census: Census, sizes: Sequence[Any], fleet: Fleet | None) -> None:
    """Check that settings fit the clients; ``sizes``: how many examples these have, of each seed."""
    for sizes_of_seed in sizes:
        within("work", functools.partial(made.work.validate, sizes_of_seed))
    within("participation", lambda: made.participation.validate(census.num_clients, made.run["rounds"]))
    within("participation", lambda: made.participation.bind(census.weights))
    if (clock := made.options.get("clock")) is not None and fleet is None:
        clock.bind(census, 0)
    if (faults := made.options.get("faults")) is not None:
        within("run.faults", lambda: faults.of(census.num_clients))


def settings_of(sections: ExperimentSection, code: own.Code) -> CheckedSettings:
    names = labels(sections.methods)
    pairs = [codec.method_of(section, label, code) for section, label in zip(sections.methods, names, strict=True)]
    work, work_config = codec.WORKS.bind("work", dict(sections.work))
    participation, participation_config = codec.PARTICIPATIONS.bind("participation", dict(sections.participation))
    seeds = seeds_of("run.seeds", 1 if sections.run.seeds is None else sections.run.seeds)
    run = sections.run.model_dump(exclude_none=True) | {"seeds": seeds, "split_seeds": bool(sections.run.split_seeds)}
    codec.metrics_of(run)
    config: Table = {"work": work_config, "participation": participation_config, "run": run}
    optional = {"privacy": sections.privacy, "clock": sections.clock, "pace": sections.pace}
    config |= {name: part.model_dump(exclude_none=True) for name, part in optional.items() if part is not None}
    config["methods"] = [written for _, written in pairs]
    methods = dict(zip(names, (method for method, _ in pairs), strict=True))
    options = codec.options_of({name: part for name, part in config.items() if name not in ("work", "participation")})
    check_train_loss("run.train_loss", options.get("train_loss"))
    return CheckedSettings(methods, work, participation, options, config)
