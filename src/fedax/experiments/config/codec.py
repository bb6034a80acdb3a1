"""Codecs between objects and tables: each reads a setting of a configuration, and writes it again.

A :class:`Codec` reads a setting into an object and writes an object as a setting. The registries have the names of the
parts, and the class of a part has its arguments. Objects of fedax are written as a user would write them in a
configuration. What a file cannot hold, such as a function or a large array, is written as a short text that names it.
"""

import dataclasses
import inspect
import pathlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import equinox as eqx
import numpy as np
import optax

import fedax
from fedax.algorithms.server import SERVERS
from fedax.contract.algorithm import Layer
from fedax.contract.compression import COMPRESSORS, Compressor
from fedax.contract.regularizers import REGULARIZERS, Regularizer
from fedax.contract.schedule import SCHEDULES, Piecewise
from fedax.contract.settings import Settings, plain
from fedax.contract.staleness import STALENESS, Staleness
from fedax.engine.declared import Declared, value_of
from fedax.engine.options import OPTIONS
from fedax.engine.patience import Patience
from fedax.engine.saved import read_model
from fedax.errors import ConfigError
from fedax.experiments import own
from fedax.experiments.config.sections import (
    PYTHON,
    MethodSection,
    Table,
    TaskSection,
)
from fedax.federation import DISTRIBUTIONS, PARTICIPATION, PRESETS, WORK
from fedax.federation.census import Census
from fedax.federation.clock import Distribution
from fedax.federation.participation import Dropout
from fedax.metrics import METRICS
from fedax.numbers import check_number
from fedax.registry import Component, Registry, within
from fedax.tasks import TASKS
from fedax.tasks.task import measured_by
from fedax.tasks.trainable import LoRA
from fedax.tracking import TRACKERS
from fedax.wire import AVERAGES
from fedax.wire.averages import Aggregator
from fedax.wire.compressed import Compression

FROM_DATA = ("features", "shape", "classes", "vocabulary", "d")  # arguments of tasks that come from the data set

_MOST = 1000  # the most entries of a list, and characters of a text, that are written
_PART = ("trainable", "lora")  # settings of the section task that say which part of the model is trained
# Hyper-parameters whose tables are no schedules.
_NOT_SCHEDULES = ("regularizer", "compress", "server", "solver", "staleness")

_AROUND = {  # settings of a method that wrap it
    "personal": Component(
        "personal", fedax.PersonalPart, "", defaults={"leaves": inspect.Parameter.empty}, fixed={"start": None}
    ),
    "fine_tune": Component("fine_tune", fedax.FineTuned, ""),
}

# The functions of optax that a configuration names: optimizers, and what comes before one in a chain.
_SOLVERS = Registry("solver")
for _name in ("adabelief", "adadelta", "adagrad", "adam", "adamax", "adamw", "amsgrad", "lamb", "lars", "lion", "nadam",
              "nadamw", "novograd", "radam", "rmsprop", "sgd", "sign_sgd", "yogi", "adaptive_grad_clip", "centralize",
              "add_decayed_weights", "clip", "clip_by_global_norm", "normalize_by_update_norm", "trace"):  # fmt: skip
    _SOLVERS.add(_name, getattr(optax, _name))


class Codec(Protocol):
    """Reads a setting into an object, and writes an object as a setting."""

    def read(self, field: str, given: Any) -> Any:
        """The object; ``field`` is the dotted name of the setting, which a ConfigError names."""

    def write(self, part: Any) -> Any:
        """The setting as a table or value; arguments that are ``None`` are left out."""


@dataclass(frozen=True)
class ComponentCodec:
    """A registered component: a table with its name and its arguments; or the name alone.

    Attributes:
        registry: the registry of the components.
        key: the setting that holds the name.

    Example:
        >>> ComponentCodec(COMPRESSORS).read("run.compress", {"name": "top-k", "share": 0.1})
        TopK(share=0.1)
        >>> ComponentCodec(COMPRESSORS).write(fedax.TopK(0.1))
        {'name': 'top-k', 'share': 0.1}
    """

    registry: Registry
    key: str = "name"

    def bind(self, field: str, given: Mapping[str, Any]) -> tuple[Any, Table]:
        """The object, and its table: the registry's spelling of the name, and all arguments with their defaults."""
        arguments = {name: value for name, value in given.items() if name != self.key}
        return self.registry.bind(given.get(self.key), arguments, section=field, key=self.key)  # type: ignore[arg-type]

    def read(self, field: str, given: Any) -> Any:
        """The part."""
        if not isinstance(given, str | Mapping):
            raise ConfigError(field, given, f"give a name, or a table: {field} = {{{self.key} = …}}")
        return self.bind(field, {self.key: given} if isinstance(given, str) else given)[0]

    def write(self, part: Any) -> Table:
        """Its registered name and its arguments; an unregistered class is written as ``python:<class>``."""
        return {self.key: self.registry.name_of(part) or written_class(part), **_written_arguments(part)}


@dataclass(frozen=True)
class ArgumentsCodec:
    """An object of one class: a table of its arguments.

    Attributes:
        make: the class.
        short: the argument that a plain value sets, where the user gives no table.
        brief: whether arguments that have their default are left out when written.

    Example:
        >>> guard = ArgumentsCodec(fedax.Guard)
        >>> guard.read("run.guard", {"largest": 10.0}), guard.write(fedax.Guard(10.0))
        (Guard(largest=10.0), {'largest': 10.0, 'stop': False})
    """

    make: Callable[..., Any]
    short: str | None = None
    brief: bool = False

    def read(self, field: str, given: Any) -> Any:
        """The part; a truth value stays, of an option that takes one too."""
        if isinstance(given, bool):
            return given
        return call(field, self.make, given if self.short is None or isinstance(given, dict) else {self.short: given})

    def write(self, part: Any) -> Any:
        """Its arguments; of something else, such as a guard's ``True``, :func:`setting`."""
        if isinstance(self.make, type) and not isinstance(part, self.make):
            return setting(part)
        usual = Component("", self.make, "").arguments if self.brief else {}
        return {
            name: value for name, value in _written_arguments(part).items() if name not in usual or value != usual[name]
        }


class _CompressionCodec:
    """The compressor of the uploads; or a table with one for each direction, ``up`` and ``down``."""

    def read(self, field: str, given: Any) -> Any:
        return within(
            field.rpartition(".")[0], lambda: Compression.of({"name": given} if isinstance(given, str) else given)
        )

    def write(self, part: Any) -> Table:
        return _written_arguments(Compression.of(part))


class _ScheduleCodec:
    """Schedules by their ``kind``; without one, factors at given rounds or a power of the round."""

    def read(self, field: str, given: Any) -> Any:
        settings = dict(given)
        component = SCHEDULES.get(settings.pop("kind", "piecewise" if "at" in given else "power"), f"{field}.kind")
        for name, value in settings.items():
            if name != "at":
                check_number(f"{field}.{name}", value)
        if component.make is Piecewise and (at := settings.get("at")) is not None:
            if not isinstance(at, dict) or not all(round_.isdecimal() for round_ in at):
                raise ConfigError(f"{field}.at", at, "give factors by round, such as {600 = 0.2, 900 = 0.2}")
            for round_, factor in at.items():
                check_number(f"{field}.at.{round_}", factor, 0, open_low=True)
            settings["at"] = {int(round_): factor for round_, factor in at.items()}
        return component.bind(settings, section=field)[0]

    def write(self, part: Any) -> Table:
        kind = SCHEDULES.name_of(part)
        return ({} if kind in ("piecewise", "power") else {"kind": kind}) | _written_arguments(part)


@dataclass(frozen=True)
class _Chain:
    """Functions of optax, by name, one after the other; an argument is called ``<number>.<name>``."""

    names: tuple[str, ...]

    def __call__(self, **given: Any) -> optax.GradientTransformation:
        arguments: list[Table] = [{} for _ in self.names]
        for key, value in given.items():
            number, _, name = key.partition(".")
            arguments[int(number)][name] = value
        return optax.chain(*(getattr(optax, name)(**own) for name, own in zip(self.names, arguments, strict=True)))


@dataclass(frozen=True)
class _OptaxCodec:
    """A part made of optax: a function by its name, with its arguments; or a list of them, one after the other.

    Attributes:
        of: the class of the part.
    """

    of: Callable[..., Any]

    def read(self, field: str, given: Any, lr: Any = None) -> Any:
        """The part; ``lr``: the learning rate of its last function, where that has none itself."""
        many = isinstance(given, list) and len(given) > 0
        for row in given if many else [given]:
            if not isinstance(row, str | Mapping):
                hint = 'give a table, {name = "adamw", weight_decay = 0.01}, or a list of them, the optimizer last'
                raise ConfigError(field, row, hint)
        rows = [{"name": row} if isinstance(row, str) else dict(row) for row in (given if many else [given])]
        fields = [f"{field}[{k}]" if many else field for k in range(len(rows))]
        parts = [_SOLVERS.get(row.pop("name", None), f"{at}.name") for row, at in zip(rows, fields, strict=True)]
        if "learning_rate" not in parts[-1].arguments:
            hint = "it takes no step; let sgd, adam or another optimizer come after it, in a list"
            raise ConfigError(f"{fields[-1]}.name", parts[-1].name, hint)
        if lr is not None:
            if "learning_rate" in rows[-1]:
                hint = "the method has lr too; give one of them"
                raise ConfigError(f"{fields[-1]}.learning_rate", rows[-1]["learning_rate"], hint)
            rows[-1]["learning_rate"] = lr
        arguments: Table = {}
        for k, (component, row, at) in enumerate(zip(parts, rows, fields, strict=True)):
            if "learning_rate" in component.arguments and "learning_rate" not in row:
                instead = ", or the method's lr" if self.of is fedax.Optax else ""
                raise ConfigError(f"{at}.learning_rate", None, f"this is missing; give it{instead}")
            component.check(row, component.arguments, f"{at}.")
            for name, value in row.items():
                read = _argument_of_optax(f"{at}.{name}", value, component.arguments[name])
                arguments[f"{k}.{name}" if many else name] = read
        make = _Chain(tuple(component.name for component in parts)) if many else parts[0].make
        return within(field, lambda: self.of(make, **arguments))


def _argument_of_optax(field: str, value: Any, default: Any) -> Any:
    """An argument of a function of optax: a number or a schedule of the round, by its default a truth value."""
    if isinstance(value, dict):
        return SCHEDULE.read(field, value)
    if isinstance(default, bool) or isinstance(value, bool):
        if not isinstance(default, bool) or not isinstance(value, bool):
            raise ConfigError(field, value, "give true or false" if isinstance(default, bool) else "give a number")
        return value
    if isinstance(value, fedax.Schedule) or (isinstance(default, int) and isinstance(value, int)):
        return value
    return float(check_number(field, value, 0))


class _PrivacyCodec(ArgumentsCodec):
    """Differential privacy. Its own errors name the section; ``adaptive`` may be true or false."""

    def read(self, field: str, given: Any) -> Any:
        given = dict(given)
        if isinstance(adaptive := given.get("adaptive"), bool):
            adaptive = {} if adaptive else None
        if adaptive is not None:
            adaptive = ADAPTIVE.read(f"{field}.adaptive", adaptive)
        return self.make(**{**given, "adaptive": adaptive})


class _ClockCodec(ArgumentsCodec):
    """The clock: its arguments, which may replace those of a preset or of a trace, a file."""

    def read(self, field: str, given: Any) -> fedax.Clock:
        arguments = {name: value for name, value in given.items() if value is not None}
        preset, trace = arguments.pop("preset", None), arguments.pop("trace", None)
        if preset is not None and trace is not None:
            raise ConfigError(f"{field}.preset", preset, "there is a trace too; give one of them")
        base: Table = {}
        if preset is not None:
            base = PRESETS.get(preset, f"{field}.preset").make().arguments()
        if trace is not None:
            read = fedax.Clock.from_csv if trace.endswith(".csv") else fedax.Clock.from_json
            base = within(field, lambda: read(trace)).arguments()
        return fedax.Clock.of(base | arguments)


class _PaceCodec(ArgumentsCodec):
    """The pace of a server that does not wait, with its weights of staleness."""

    def read(self, field: str, given: Any) -> fedax.Async:
        staleness = given.get("staleness")
        if staleness is not None:
            staleness = ComponentCodec(STALENESS).read(f"{field}.staleness", staleness)
        return fedax.Async(**{**given, "staleness": staleness})


class _ParticipationCodec(ComponentCodec):
    """Participation: who is drawn; with ``dropout`` or ``available`` also who of these does not answer."""

    def bind(self, field: str, given: Mapping[str, Any]) -> tuple[Any, Table]:
        absent = {name: given[name] for name in ("dropout", "available") if given.get(name) is not None}
        drawn, table = super().bind(field, {k: v for k, v in given.items() if k not in ("dropout", "available")})
        if absent:
            return within(field, lambda: Dropout(drawn, absent.get("dropout"), absent.get("available"))), table | absent
        return drawn, table

    def write(self, part: Any) -> Table:
        if not isinstance(part, Dropout):
            return super().write(part)
        available = None if part.available is None else setting(np.asarray(part.available))
        if isinstance(available, str):  # a table too large to write
            available = [available]
        settings = {"dropout": setting(part.rate), "available": available}
        return self.write(part.of) | {name: value for name, value in settings.items() if value is not None}


class _PlainCodec:
    """A value that a file holds as it is."""

    def read(self, field: str, given: Any) -> Any:
        return given

    def write(self, part: Any) -> Any:
        return setting(part)


CLOCK = _ClockCodec(fedax.Clock, brief=True)
PACE = _PaceCodec(fedax.Async, brief=True)
ADAPTIVE = ArgumentsCodec(fedax.AdaptiveClip)
PARTICIPATIONS = _ParticipationCodec(PARTICIPATION, "kind")
PRIVACY = _PrivacyCodec(fedax.DP, brief=True)
SCHEDULE = _ScheduleCodec()
SERVER = _OptaxCodec(fedax.OptaxServer)
SOLVER = _OptaxCodec(fedax.Optax)
TRACKS = ComponentCodec(TRACKERS)
WORKS = ComponentCodec(WORK, "kind")

# The codecs of options by the type of their values; what is not here is a table of arguments, or a plain value.
_OF_OPTIONS: dict[Any, Codec] = {
    fedax.Work: WORKS,
    fedax.Participation: PARTICIPATIONS,
    fedax.Clock: CLOCK,
    fedax.Async: PACE,
    fedax.DP: PRIVACY,
    Aggregator: ComponentCodec(AVERAGES),
    Compressor: _CompressionCodec(),
    Callable: ArgumentsCodec(Patience, short="evaluations"),
}

# Objects that a hyper-parameter may be, besides a number or a word.
_OBJECTS: dict[Any, Codec] = {
    Regularizer: ComponentCodec(REGULARIZERS),
    Compressor: ComponentCodec(COMPRESSORS),
    Distribution: ComponentCodec(DISTRIBUTIONS),
    Staleness: ComponentCodec(STALENESS),
    **{SCHEDULES.get(name).make: SCHEDULE for name in SCHEDULES},
    fedax.AdaptiveClip: ADAPTIVE,
    LoRA: ArgumentsCodec(LoRA),
}


def setting(value: Any) -> Any:
    """A value as it is written in a configuration; a value that no file can hold becomes a text that names it.

    Example:
        >>> setting(fedax.L1(0.1)), setting(fedax.Piecewise(1.0, {5: 0.1})), setting(np.zeros((2000, 2)))
        ({'name': 'l1', 'weight': 0.1}, {'value': 1.0, 'at': {'5': 0.1}}, 'array (2000, 2)')
    """
    for kind, codec in _OBJECTS.items():
        if isinstance(value, kind):
            return codec.write(value)
    if hasattr(value, "shape") and np.size(value) > _MOST:
        return f"array {np.shape(value)}"
    value = plain(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(name): setting(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [setting(item) for item in value] if len(value) <= _MOST else f"{len(value)} entries"
    if isinstance(value, str):
        return value[:_MOST]
    return (repr(value) if isinstance(value, eqx.Module) else written_class(value))[:_MOST]


def written_class(thing: Any) -> str:
    """The name that a configuration gives to an object of a class that fedax does not know.

    Example:
        >>> written_class(1.5)
        'python:float'
    """
    return f"{PYTHON}:{type(thing).__name__}"


def arguments_of(part: Any) -> Table:
    """The arguments that make an equal object: name -> value."""
    if isinstance(part, Settings):
        return part.arguments()
    return {field.name: getattr(part, field.name, None) for field in dataclasses.fields(part) if field.init}


def call(section: str, make: Callable[..., Any], given: Table) -> Any:
    """``make(**given)``; its errors name the settings of ``section``."""
    return Component(section, make, "").bind(given, section=section)[0]


def _written_arguments(part: Any) -> Table:
    return {name: written for name, value in arguments_of(part).items() if (written := setting(value)) is not None}


# ---- sections


def codec_of(each: Declared) -> Codec:
    """The codec of an option, by the type of its values."""
    kind: Any = each.kinds[0]
    arguments = dataclasses.is_dataclass(each.kinds[0])
    return _OF_OPTIONS.get(kind) or (ArgumentsCodec(kind) if arguments else _PlainCodec())


def options_of(config: Mapping[str, Any]) -> Table:
    """The arguments of :func:`fedax.simulate` that a configuration has.

    Example:
        >>> options_of({"run": {"rounds": 3, "chunk_size": 2}, "clock": {"step": 2.0}})
        {'rounds': 3, 'place': Place(chunk_size=2, ...), 'clock': Clock(step=2.0)}
    """
    found: Table = {}
    for name, each in OPTIONS.items():
        if (given := each.within(config)) is not None:
            read = codec_of(each).read(".".join(each.path), given)
            whole, _, part = name.partition(".")
            if part:
                found[whole] = dataclasses.replace(found.get(whole, OPTIONS[whole].kinds[0]()), **{part: read})
            else:
                found[name] = read
    return found


def written_options(options: Any) -> Table:
    """The sections of a configuration that have these options.

    Example:
        >>> from fedax.engine.options import Options
        >>> options = Options(rounds=3, work=fedax.RandomEpochs(2, 5), guard=True, compress=fedax.TopK(0.1))
        >>> written_options(options)["work"], written_options(options)["run"]["compress"]
        ({'kind': 'random-epochs', 'low': 2, 'high': 5}, {'up': {'name': 'top-k', 'share': 0.1}})
        >>> written_options(Options(rounds=3, pace=fedax.Async(8, 4, fedax.PolynomialStaleness(0.5))))["pace"]
        {'concurrency': 8, 'buffer': 4, 'staleness': {'name': 'polynomial', 'exponent': 0.5}}
    """
    config: Table = {}
    for name, each in OPTIONS.items():
        if each.path and (value := value_of(options, name)) is not None:
            *above, last = each.path
            table = config.setdefault(above[0], {}) if above else config
            table[last] = codec_of(each).write(value)
    return config


def told_to_nodes(config: Mapping[str, Any], of_wire: bool = True) -> Table:
    """The sections of a configuration with the options of which nodes of real clients are told."""
    found: Table = {}
    for each in OPTIONS.values():
        if (each.option.at_nodes or (of_wire and each.option.of_wire)) and (given := each.within(config)) is not None:
            *above, last = each.path
            (found.setdefault(above[0], {}) if above else found)[last] = given
    return found


def metrics_of(run: Table) -> dict[str, Any]:
    """The metrics that the section ``run`` asks for, by the names of their columns."""
    metrics: dict[str, Any] = {}
    for entry in run.get("metrics", ()):
        metric = ComponentCodec(METRICS).read("run.metrics", entry)
        if metric.name in metrics:
            raise ConfigError("run.metrics", metric.name, "this is asked for twice; leave one out")
        metrics[metric.name] = metric
    if run.get("grad_norm"):
        metrics["grad_norm"] = fedax.metrics.GradNorm()
    if run.get("density") is not None:
        metrics["density"] = fedax.metrics.Density(run["density"])
    return metrics


def with_metrics(task: fedax.Task, run: Table) -> fedax.Task:
    metrics = metrics_of(run)
    return within("run", lambda: task.with_metrics(**metrics)) if metrics else task


def without_metrics(task: fedax.Task, names: Collection[str]) -> fedax.Task:
    """The task without metrics of these names."""
    kept = {name: metric for name, metric in {**task.metrics, **task.run_metrics}.items() if name not in names}
    return measured_by(task, kept) if {*names} & task.metrics.keys() else task


def hyperparameters_of(section: MethodSection, label: str, code: own.Code) -> Table:
    """The method's hyper-parameters with their defaults, and what it has of ``personal`` and ``fine_tune``."""
    known: Table = code.method(section.name, f"methods.{label}.name").arguments
    return known | {name: value for name, value in section.parameters.items() if name in _AROUND}


def made_method(section: MethodSection, code: own.Code) -> fedax.Algorithm:
    """One method, as a configuration would have it."""
    return method_of(section, own.label_of(section.name), code)[0]


def is_schedule(name: str, value: Any) -> bool:
    """Whether the value of a hyper-parameter is the table of a schedule.

    Example:
        >>> is_schedule("lr", {"value": 0.1, "at": {"9": 0.1}}), is_schedule("lr", 0.1)
        (True, False)
    """
    return isinstance(value, dict) and name not in _NOT_SCHEDULES


def method_of(section: MethodSection, label: str, code: own.Code) -> tuple[fedax.Algorithm, Table]:
    place = f"methods.{label}"
    component = code.method(section.name, f"{place}.name")
    given = section.parameters
    around = {name: given.pop(name) for name in _AROUND if name in given}
    component.check(given, component.arguments, f"{place}.")
    schedules = {name for name, value in given.items() if is_schedule(name, value)}
    arguments = {
        name: SCHEDULE.read(f"{place}.{name}", given[name]) if name in schedules else given[name] for name in given
    }
    if (solver := given.get("solver")) is not None:
        lr = None if own.is_own(component) else arguments.pop("lr", None)
        if lr is not None:
            check_number(f"{place}.lr", lr, 0, open_low=True)
        arguments["solver"] = SOLVER.read(f"{place}.solver", solver, lr)
    if isinstance(server := given.get("server"), dict | list):
        published = isinstance(server, dict) and server.get("name") in SERVERS
        codec: Any = ComponentCodec(SERVERS) if published else SERVER
        arguments["server"] = codec.read(f"{place}.server", server)
    if own.is_own(component):
        method = within(place, lambda: own.made(component, arguments))
        defaults = {name: own.plain(value) for name, value in component.arguments.items()}
    else:
        method = within(place, lambda: fedax.create(section.name, **arguments))
        replaced = () if solver is None else ("lr", "prox")  # by the solver
        defaults = {name: setting(value) for name, value in component.arguments.items() if name not in replaced}
    defaults = {name: value for name, value in defaults.items() if value is not None}
    written = {"name": section.name, "label": label, **defaults, **given}
    for name, arguments in around.items():
        method = _wrapped(f"{place}.{name}", _AROUND[name], method, arguments)
        written[name] = written_layer(method)
    return method, written


def _wrapped(field: str, component: Component, method: fedax.Algorithm, given: Any) -> Layer:
    """The method in a layer, of a table of its arguments; a part of the model may be given by its leaves alone."""
    if not isinstance(given, dict):
        if component is not _AROUND["personal"]:
            raise ConfigError(field, given, "give a table, such as {lr = 0.05, steps = 20}")
        given = {"leaves": given}
    arguments = {name: SCHEDULE.read(f"{field}.{name}", each) if isinstance(each, dict) else each
                 for name, each in given.items()}  # fmt: skip
    made: Layer = component.bind(arguments, method, section=field)[0]
    within(field, made.validate)
    return made


def written_layer(method: Layer) -> Table:
    """The setting of a method, ``personal`` or ``fine_tune``, that is this layer around it.

    Example:
        >>> written_layer(fedax.PersonalPart(fedax.create("fedavg"), "head.*"))
        {'leaves': 'head.*', 'lr': 0.05, 'order': 'first'}
    """
    return {name: value for name, value in _written_arguments(method).items() if name != "inner"}


def task_of(
    section: TaskSection, data_name: str, usual: str | None, census: Census, classes: int | None, code: own.Code
) -> tuple[fedax.Task, Table, Table]:
    """The task, its complete section with the values that come from the data, and its section for config.toml."""
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
    from_data = [key for key in component.arguments if key in FROM_DATA]
    for key in from_data:
        if derived.get(key) is None:
            raise ConfigError("task.name", name, f"this does not fit {data_name}; try {usual or 'another'!r}")
        if key in section.parameters:
            raise ConfigError(f"task.{key}", section.parameters[key], "this comes from the data set; leave it out")
    subset = {key: value for key in _PART if (value := getattr(section, key)) is not None}
    model = {"name": component.name, **section.parameters, **{key: derived[key] for key in from_data}, **subset}
    task, parameters = made_task(model, code)
    if census.transform is not None and census.transform.classes is not None and name in TASKS:
        other = 'task.name = "softmax_regression"'
        if component.name == "logistic_regression":
            hint = f"this is for labels -1 and +1, and classes of tables count from 0; {other} is the same model"
            raise ConfigError("task.name", name, f"{hint} of two classes")
        if task.kind == "regression":
            hint = f'this learns a number, and the label has classes; data.task = "regression" or {other}'
            raise ConfigError("task.name", name, hint)
    written = {key: value for key, value in parameters.items() if key not in from_data}
    return task, model, {"name": component.name, **written, **subset}


def made_task(model: Table, code: own.Code) -> tuple[fedax.Task, Table]:
    arguments = {key: tuple(value) if key == "shape" else value for key, value in model.items() if key != "name"}
    subset: Table = {key: arguments.pop(key) for key in _PART if key in arguments}
    task, parameters = code.task(model["name"]).bind(arguments, section="task")
    if len(subset) == 2:
        raise ConfigError("task.trainable", subset["trainable"], "there is task.lora too; give one of them")
    if subset:
        rule = call("task.lora", fedax.tasks.LoRA, subset["lora"]) if "lora" in subset else subset["trainable"]
        task = within("task", lambda: fedax.tasks.partial(task, rule))
    return task, parameters


def started(path: str | None, task: fedax.Task) -> tuple[fedax.Task, Any]:
    """The task that starts from the model in a file, and the initial parameters where the task does not hold them."""
    if path is None:
        return task, None
    params = within("task.start", lambda: read_model(pathlib.Path(path), task.entire.form()))
    return (task, params) if task.entire is task else (task.from_whole(params), None)
