"""The schema of a configuration: its sections, and the names, types and ranges of their settings.

The fields of the classes below are the settings that a section always has. All other keys of a section are parameters
of the component that it names (partition, task, work, participation or method). They have the names and defaults of the
Python function that makes it.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_origin

import pydantic

import fedax
from fedax.contract.compression import Compressor
from fedax.engine.options import OPTIONS
from fedax.errors import ConfigError, unknown
from fedax.experiments import own
from fedax.files import slug
from fedax.registry import Component
from fedax.wire.averages import Aggregator

Table = dict[str, Any]

PYTHON = "python"  # the name of data that were given as Python objects, which no file describes
MOST_SEEDS = 1000

Count = pydantic.PositiveInt
Seed = pydantic.NonNegativeInt


class Section(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True)


class Open(Section):
    """A section that names a component; all keys that are no fields are the component's parameters."""

    model_config = pydantic.ConfigDict(extra="allow", strict=True)

    @property
    def parameters(self) -> Table:
        return dict(self.model_extra or {})


class SplitSection(Section):
    """The share of each client's examples that is held out: validation, to choose by, and test, to report.

    ``clients``: which clients take no part, a share of all; or ``"each"``, another one in each run.
    """

    train: pydantic.NonNegativeFloat | None = None  # default: what val and test leave
    val: pydantic.NonNegativeFloat = 0.0
    test: pydantic.NonNegativeFloat = 0.0
    stratify: bool | str = False
    clients: float | Literal["each"] | None = None
    seed: Seed = 0


class DataSection(Open):
    """The data set, how it is dealt to the clients, and what is held out."""

    name: str
    clients: Count | None = None
    partition: str | None = None
    seed: Seed = 0
    weights: Literal["sizes", "uniform"] = "sizes"
    split: SplitSection | None = None


class TaskSection(Open):
    """The task, the model that training starts from, and the part of the model that is trained."""

    name: str | None = None
    start: str | None = None  # the file of a model
    trainable: str | list[str] | None = None
    lora: Table | None = None


class WorkSection(Open):
    """The local work of clients in a round."""

    kind: str


class ParticipationSection(Open):
    """Who takes part in a round, and who of them does not answer."""

    kind: str = "full"
    dropout: Any = None  # a rate, or one for each client
    available: list[Any] | None = None  # [rounds, clients] truth values


# A setting's type by that of its value; what is not here is a table of arguments.
_TYPES: dict[Any, Any] = {
    int: Count,
    float: float,
    bool: bool,
    str: str,
    Aggregator: str | Table,
    Compressor: str | Table,  # of uploads; or tables up and down
    Callable: Count | Table,  # fedax.Patience, or after so many evaluations without a better validation loss
}


def _type_of(kinds: Sequence[Any]) -> Any:
    """The type of a setting whose values are of these types; a part of ``True`` is that with its defaults."""
    first = kinds[0] if get_origin(kinds[0]) is Literal else _TYPES.get(kinds[0], Table)
    return (bool | first if bool in kinds[1:] else first) | None


_of_run: dict[str, Any] = {
    each.path[1]: (_type_of(each.kinds), None) for each in OPTIONS.values() if each.path[:1] == ["run"]
}
_RunOptions: Any = pydantic.create_model("_RunOptions", __base__=Section, **_of_run | {"rounds": (Count, ...)})


class RunSection(_RunOptions):
    """The number of rounds, the minibatches and other options, the seeds, and what is measured."""

    seeds: Any = None  # how many, or which; the default depends on the data
    split_seeds: bool | None = None  # each seed deals the data anew; default: for small tables of the user's
    judge: str | None = None  # the column by which methods are compared
    metrics: list[str | Table] | None = None  # in addition to the task's
    baselines: bool | Table | None = None  # also train each client alone, and one model on all data in one place
    grad_norm: bool = False
    density: pydantic.NonNegativeFloat | None = None


def _arguments(make: Callable[..., Any], base: type[Section] = Section) -> Any:
    """A section with the arguments of a class after the settings of ``base``; what has a default may be left out."""
    fields = Component("", make, "").arguments.items()
    required = inspect.Parameter.empty
    types: dict[str, Any] = {name: (Any, ... if default is required else None) for name, default in fields}
    return pydantic.create_model("_Arguments", __base__=base, **types)


class _ClockSource(Section):
    """Where a clock's arguments come from."""

    preset: str | None = None
    trace: str | None = None  # a file, *.csv or *.json


_Privacy: Any = _arguments(fedax.DP)
_Clock: Any = _arguments(fedax.Clock, _ClockSource)
_Pace: Any = _arguments(fedax.Async)


class PrivacySection(_Privacy):
    """Differential privacy of clients; the arguments of :class:`fedax.DP`."""

    adaptive: bool | Table | None = None  # true: with the defaults of fedax.AdaptiveClip
    by_leaf: Any = False
    bands: Any = 1


class ClockSection(_Clock):
    """How long clients take; the arguments of :class:`fedax.Clock`, which replace those of a preset or a trace."""


class PaceSection(_Pace):
    """A server that does not wait; the arguments of :class:`fedax.Async`."""


class MethodSection(Open):
    """One method to run."""

    name: str
    label: str | None = None


class TrackSection(Open):
    """The tracker that follows the runs; see :mod:`fedax.tracking`."""

    name: str


class SweepSection(Section):
    """The settings that a sweep varies, and its criterion; ``fedax run`` ignores this section."""

    criterion: str | None = None
    better: Literal["lower", "higher"] | None = None
    last: Count = 1
    search: Literal["grid", "random"] = "grid"
    points: Count | None = None  # of a random search, for each method
    seed: Seed = 0  # of a random search
    grid: Table = {}  # setting -> values


class ExperimentSection(Section):
    """A whole configuration."""

    name: str | None = None
    data: DataSection
    task: TaskSection = TaskSection()
    work: WorkSection = WorkSection(kind="epochs", epochs=1)  # type: ignore[call-arg]
    participation: ParticipationSection = ParticipationSection()
    run: RunSection
    privacy: PrivacySection | None = None
    clock: ClockSection | None = None
    pace: PaceSection | None = None
    methods: list[MethodSection] = pydantic.Field(min_length=1, max_length=1000)
    track: TrackSection | None = None
    sweep: SweepSection | None = None


def _with_types(section: type[Section], **fields: Any) -> Any:
    """The section class with other types for some fields; a field without a default is required."""
    types: dict[str, Any] = {name: kind if isinstance(kind, tuple) else (kind, ...) for name, kind in fields.items()}
    return pydantic.create_model(section.__name__, __base__=section, **types)


# The configuration of a run folder, in which every default is filled in.
WRITTEN: type[ExperimentSection] = _with_types(
    ExperimentSection,
    name=str,
    data=_with_types(DataSection, weights=Literal["sizes", "uniform", "given"]),
    task=_with_types(TaskSection, name=str),
    work=WorkSection,
    participation=_with_types(ParticipationSection, kind=str),
    run=_with_types(
        RunSection,
        split_seeds=(bool, False),
        evaluate_every=(Count | list[Count] | None, None),
        seeds=pydantic.conlist(Seed, min_length=1, max_length=MOST_SEEDS),
    ),
    methods=pydantic.conlist(_with_types(MethodSection, label=str), min_length=1, max_length=1000),
    sweep=(
        _with_types(SweepSection, criterion=str, better=Literal["lower", "higher"], search=Literal["grid", "random"])
        | None,
        None,
    ),
)

SELECTORS: dict[str, type[Open]] = {
    "data.partition": DataSection,
    "task.name": TaskSection,
    "work.kind": WorkSection,
    "participation.kind": ParticipationSection,
    "track.name": TrackSection,
}


def check(config: Mapping[str, Any], schema: type[ExperimentSection] = ExperimentSection) -> ExperimentSection:
    """Check the sections, names, types and ranges of a configuration, and return it as objects.

    Raises:
        ConfigError: the first setting that is wrong.
    """
    data = config.get("data")
    if schema is ExperimentSection and isinstance(data, Mapping) and data.get("name") == PYTHON:
        hint = (
            "this run was made in Python, of objects that no file holds: the fedax.compare(…, out=…) that began it "
            "goes on with it; fedax report and fedax.load read it"
        )
        raise ConfigError("data.name", PYTHON, hint)
    try:
        return schema.model_validate(config)
    except pydantic.ValidationError as error:
        raise clear(error.errors()[0]) from None


def seeds_of(field: str, given: Any) -> list[int]:
    """The list of seeds, from a number of seeds (0, 1, …) or a list of them."""
    seeds = list(range(given)) if type(given) is int and given <= MOST_SEEDS else given
    good = isinstance(seeds, list) and seeds and all(type(seed) is int and 0 <= seed < 2**31 for seed in seeds)
    if not good or len(seeds) > MOST_SEEDS or len(set(seeds)) != len(seeds):
        hint = f"give a number of seeds from 1 to {MOST_SEEDS}, or a list of different ones from 0 on"
        raise ConfigError(field, given, hint)
    return seeds


def labels(methods: Sequence[MethodSection]) -> list[str]:
    """A label for each method; methods that occur several times get the settings in which they differ."""
    result: list[str] = []
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
        result.append(label)
    seen = set()
    for i, label in enumerate(result):
        if slug(label) in seen:  # file names are made of them
            raise ConfigError(f"methods[{i}].label", label, "two methods have this label; give each its own label")
        seen.add(slug(label))
    return result


def _differing(sections: Sequence[MethodSection]) -> list[str]:
    """The settings whose values are not the same in all sections."""
    given = [section.parameters for section in sections]
    keys = dict.fromkeys(key for settings in given for key in settings)
    return [key for key in keys if len({repr(settings.get(key)) for settings in given}) > 1]


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


def clear(error: Any) -> ConfigError:
    """A pydantic error as a ConfigError."""
    loc, kind = error["loc"], error["type"]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")
    if kind == "extra_forbidden":
        inner: dict[str, type[Section]] = {
            "run": RunSection,
            "privacy": PrivacySection,
            "clock": ClockSection,
            "pace": PaceSection,
        }
        inner |= {"sweep": SweepSection, "data": SplitSection}
        model: Any = ExperimentSection if len(loc) == 1 else inner[loc[0]]
        return unknown(field, str(loc[-1]), model.model_fields, error["input"])
    if kind in ("missing", "too_short"):
        return ConfigError(field, None, f"this is missing; add {_MISSING.get(field, 'it')}")
    if kind == "model_type":
        return ConfigError(field, error["input"], f"give a table: [{field}] and its settings below it")
    return ConfigError(field, error["input"], error["msg"][0].lower() + error["msg"][1:])
