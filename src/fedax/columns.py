"""The columns of a history: what each measures, its unit, which way is better, and how its values are shown.

Everything that reads histories uses this table: evaluation, sweeps, checkpoints, tables, plots and reports.

A task's own metrics are the columns ``val_<metric>`` and ``test_<metric>``. Metrics of :mod:`fedax.metrics` say which
way is better. For others the words of the name decide: for ``accuracy``, ``precision``, ``recall``, ``f1``, ``auc`` and
``r2`` higher is better; for ``loss``, ``error``, ``perplexity``, ``brier``, ``mse``, ``rmse`` and ``mae`` lower is
better. A name without such a word, or with words of both kinds, does not decide; to pick a best value by it, the user
has to give the direction.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from fedax.errors import ConfigError

Direction = Literal["lower", "higher"]


@dataclass(frozen=True)
class HistoryColumn:
    """The properties of a column.

    Attributes:
        label: the name to show.
        kind: ``"measure"`` of the model; ``"clients"``: a measure at each client of the held-out data; ``"cost"`` so
            far; ``"privacy"`` spent; ``"exclusion"``: uploads that did not count; ``"pace"`` of a server that does not
            wait; ``"personal"``: how old clients' own models are; or ``"traffic"``: network bytes and waiting times
            with real clients, and how many of them answered.
        unit: ``"%"`` for shares that are shown as percentages, ``"B"``, ``"s"``, or nothing.
        better: which way is better; ``None`` where neither is, or it is not known.
        type: of its values; ``"whole"`` numbers are ≥ 0, ``"ids"`` are lists of clients, ``"reals"`` lists of numbers.
        scale: of its axis, ``"log"`` where the values are far apart.
    """

    label: str
    kind: Literal["measure", "clients", "cost", "privacy", "exclusion", "traffic", "pace", "personal"] = "measure"
    unit: Literal["", "%", "B", "s"] = ""
    better: Direction | None = None
    type: Literal["real", "whole", "ids", "reals"] = "real"
    scale: Literal["log", "linear"] = "log"


_TABLE = {  # in the order of a table's columns, after the metrics of the task
    "test_loss": HistoryColumn("Test loss", better="lower"),
    "val_loss": HistoryColumn("Validation loss", better="lower"),
    "train_loss": HistoryColumn("Train loss", better="lower"),
    "train_loss_sample": HistoryColumn("Train loss of a sample", better="lower"),
    "objective": HistoryColumn("Objective F + ψ", better="lower"),
    "grad_norm_sq": HistoryColumn("Squared gradient norm ‖∇F(x)‖²", better="lower"),
    "density": HistoryColumn("Density"),
    "round": HistoryColumn("Rounds", "cost", better="lower", type="whole"),
    "clients": HistoryColumn("Clients", "cost", better="lower", type="whole"),
    "local_steps": HistoryColumn("Local steps", "cost", better="lower", type="whole"),
    "gradients": HistoryColumn("Gradients", "cost", better="lower", type="whole"),
    "bytes_down": HistoryColumn("Downloaded", "cost", "B", "lower", "whole"),
    "bytes_up": HistoryColumn("Uploaded", "cost", "B", "lower", "whole"),
    "seconds": HistoryColumn("Time", "cost", "s", "lower"),
    "time": HistoryColumn("Clock time", "cost", "s", "lower"),
    "epsilon": HistoryColumn("Privacy spent ε", "privacy", better="lower"),
    "left_out": HistoryColumn("Uploads left out", "exclusion", better="lower", type="whole"),
    "bad_clients": HistoryColumn("Clients left out", "exclusion", type="ids"),
    "skipped": HistoryColumn("Rounds skipped", "exclusion", better="lower", type="whole"),
    "turn_age": HistoryColumn("Rounds since a client's last turn", "personal", scale="linear"),
    "newcomers": HistoryColumn("Clients without a turn", "personal", better="lower", type="whole", scale="linear"),
    "staleness": HistoryColumn("Mean staleness", "pace", better="lower", scale="linear"),
    "staleness_max": HistoryColumn("Largest staleness", "pace", better="lower", type="whole", scale="linear"),
    "dropped": HistoryColumn("Answers thrown away", "pace", better="lower", type="whole", scale="linear"),
    "heard": HistoryColumn("Weight of the clients heard", "traffic", "%", scale="linear"),
    "wire_down": HistoryColumn("Sent over the network", "traffic", "B", "lower", "whole"),
    "wire_up": HistoryColumn("Received over the network", "traffic", "B", "lower", "whole"),
    "waited": HistoryColumn("Waited for clients", "traffic", "s", "lower"),
}
_ROUNDING = 1e-7  # relative rounding of float32
_OF_WEIGHTS = 1e-6  # the rounding of a sum of weights
_PLACES = {name: place for place, name in enumerate(_TABLE)}
_HIGHER = {"accuracy", "precision", "recall", "f1", "auc", "r2"}
_LOWER = {"loss", "error", "perplexity", "brier", "mse", "rmse", "mae"}
_SPELT = {
    "auc": "AUC",
    "f1": "F1",
    "r2": "R²",
    "mse": "MSE",
    "rmse": "RMSE",
    "mae": "MAE",
    "val": "validation",
    "unseen": "unseen clients'",
}

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

PARTS = ("val", "test", "unseen")  # the held-out parts; unseen: test rows of clients that take no part in training
TRAIN = ("train_loss", "train_loss_sample")  # of all training data, or of a sample; a run has one of them, or none
PER_CLIENT = "_per_client"  # the suffix of columns with a figure for each client
PERSONAL = "_personal"  # the suffix of columns of personal models: each example is answered by its client's own

TIME = "time"  # a cost of runs with a clock, and of those at real nodes
COSTS = tuple(name for name, column in _TABLE.items() if column.kind == "cost" and name != TIME)  # of every run
TRAFFIC = ("wire_down", "wire_up", "waited")
HEARD = "heard"
PACE = tuple(name for name, column in _TABLE.items() if column.kind == "pace")
EXCLUSIONS = tuple(name for name, column in _TABLE.items() if column.kind == "exclusion")


def held_column(part: str, name: str) -> str:
    """The column of a metric on a held-out part; ``part`` ends in ``_personal`` where it is of personal models.

    Example:
        >>> held_column("test", "loss"), held_column("test_personal", "loss")
        ('test_loss', 'test_loss_personal')
    """
    return f"{part.removesuffix(PERSONAL)}_{name}{PERSONAL if part.endswith(PERSONAL) else ''}"


def heard_enough(figures: Mapping[str, Any], least: float = 1.0) -> Any:
    """Whether an evaluation counts: at least this share of the clients' weight was heard in it.

    Args:
        figures: a row of a history, or a whole one; in a simulation all clients are heard, and there is no such column.
        least: ``min_heard`` of the run, in (0, 1].

    Returns:
        A truth value; of a whole history [n].

    Example:
        >>> bool(heard_enough({"round": 3})), heard_enough({"heard": [1.0, 0.5]}).tolist()
        (True, [True, False])
    """
    return np.asarray(figures.get(HEARD, 1.0), float) >= least - _OF_WEIGHTS


def ever_heard(history: Mapping[str, Any], least: float = 1.0) -> bool:
    """Whether an evaluation counts that was made in training; of a run without rounds, that at the start.

    Example:
        >>> ever_heard({"round": [0, 5], "heard": [1.0, 0.5]}), ever_heard({"round": [0, 5], "heard": [0.5, 1.0]})
        (False, True)
    """
    return bool(np.atleast_1d(heard_enough(history, least))[-max(1, len(history["round"]) - 1) :].any())


def describe(name: str) -> HistoryColumn:
    """The column of this name; an unknown name is interpreted by its words.

    Example:
        >>> describe("bytes_up").unit, describe("test_top_5_accuracy").unit, describe("val_f1").label
        ('B', '%', 'Validation F1')
    """
    if name in _TABLE:
        return _TABLE[name]
    if name.endswith(PER_CLIENT):
        one = describe(name.removesuffix(PER_CLIENT))
        return replace(one, label=f"{one.label} of each client", kind="clients", type="reals")
    if name.endswith(PERSONAL):
        one = describe(name.removesuffix(PERSONAL))
        return replace(one, label=f"{one.label}, personal models")
    words = re.split(r"[^a-z0-9]+", name.lower())
    high, low = bool({*words} & _HIGHER), bool({*words} & _LOWER)
    way: Direction | None = None if high == low else "higher" if high else "lower"
    text = " ".join(_SPELT.get(word.lower(), word) for word in name.split("_"))
    label = text[:1].upper() + text[1:]
    if "accuracy" in words and not low:
        return HistoryColumn(label, unit="%", better=way, scale="linear")
    return HistoryColumn(label, better=way, scale="linear" if high and not low else "log")


def better(name: str, metrics: Mapping[str, object] | None = None) -> Direction | None:
    """Which way is better; ``None`` if neither the metric nor the name says so.

    Args:
        name: of the column.
        metrics: of the task; some of them say which way is better, or are "lower" or "higher" themselves.

    Example:
        >>> better("test_accuracy"), better("test_loss"), better("seconds"), better("test_score"), better("density")
        ('higher', 'lower', 'lower', None, None)
    """
    part, _, metric = name.removesuffix(PER_CLIENT).removesuffix(PERSONAL).partition("_")
    given = (metrics or {}).get(metric) if part in PARTS else None
    way = given if isinstance(given, str) else getattr(given, "better", None)
    return "lower" if way == "lower" else "higher" if way == "higher" else describe(name).better


def higher_is_better(name: str, field: str, metrics: Mapping[str, object] | None = None) -> bool:
    """Whether higher is better, if the user gave no direction.

    Raises:
        ConfigError: the name does not say; the error is about ``field``.

    Example:
        >>> higher_is_better("test_accuracy", "higher")
        True
    """
    if (way := better(name, metrics)) is None:
        raise ConfigError(field, None, f"the name {name} does not tell which way is better; give True or False")
    return way == "higher"


def diverged(row: Mapping[str, Any]) -> bool:
    """Whether a row of a history shows that its run diverged: its training loss is not finite.

    Of a run without one the validation or the test loss tells.

    Example:
        >>> diverged({"train_loss": math.inf}), diverged({"train_loss": 1.0, "test_loss": math.nan})
        (True, False)
    """
    column = next((name for name in (*TRAIN, "val_loss", "test_loss") if name in row), None)
    return column is not None and not math.isfinite(row[column])


def measured_names(
    metrics: Iterable[str],
    *,
    train: str = TRAIN[0],
    val: bool = True,
    test: bool = True,
    unseen: bool = False,
    grad_norm: bool = True,
    objective: bool = True,
    density: bool = True,
    per_client: Collection[str] = (),
) -> list[str]:
    """The measures that a run has, in the order of its history.

    Args:
        metrics: names of the task's metrics.
        train: the column of the training loss; empty: it is not measured.
        val, test, unseen: whether there are validation and test data, and those of unseen clients.
        grad_norm: whether ‖∇F‖² is measured.
        objective: whether F + ψ is measured, for a method with a regularizer.
        density: whether the share of components beyond a threshold is measured.
        per_client: the held-out parts with figures for each client.

    Example:
        >>> measured_names(["accuracy"], val=False, grad_norm=False, objective=False, density=False)
        ['train_loss', 'test_loss', 'test_accuracy']
    """
    parts = {"val": val, "test": test, "unseen": unseen}
    measures = ["loss", *metrics]
    held_out = {f"{part}_{name}": measured for part, measured in parts.items() for name in measures}
    more = {"objective": objective, "density": density}
    wanted = {train: bool(train), "grad_norm_sq": grad_norm, **held_out, **more}
    of_clients = [f"{part}_{name}{PER_CLIENT}" for part in parts if part in per_client for name in measures]
    return [name for name, measured in wanted.items() if measured] + of_clients


def choosing(names: Collection[str]) -> str:
    """The column by which rounds and hyper-parameters are chosen: the validation loss, if there is one.

    Example:
        >>> choosing(["train_loss", "val_loss", "test_loss"]), choosing(["train_loss", "test_loss"])
        ('val_loss', 'train_loss')
    """
    return deciding(next((name for name in ("val_loss", *TRAIN) if name in names), TRAIN[0]), names)


def deciding(column: str, names: Collection[str]) -> str:
    """The column that decides for a method where ``column`` is named: that of its personal models, if it has any.

    Everything that chooses or stops by a column asks this: comparisons, sweeps, patience, best models, targets.

    Args:
        column: such as ``"val_loss"``.
        names: all columns of the method's history.

    Example:
        >>> deciding("val_loss", ["val_loss"]), deciding("val_loss", ["val_loss", "val_loss_personal"])
        ('val_loss', 'val_loss_personal')
    """
    own = f"{column}{PERSONAL}"
    return own if own in names else column


def numbers(names: Iterable[str]) -> list[str]:
    """The columns with a number for each evaluation; others have lists, of clients or for each of them.

    Example:
        >>> numbers(["round", "test_loss", "test_loss_per_client", "bad_clients"])
        ['round', 'test_loss']
    """
    return [name for name in names if describe(name).type in ("real", "whole")]


def measures(names: Collection[str]) -> list[str]:
    """The columns that measure the model, in the order of a table: first those of personal models, then test metrics of
    the task.

    Example:
        >>> measures(["round", "train_loss", "test_loss", "test_accuracy", "seconds"])
        ['test_accuracy', 'test_loss', 'train_loss']
        >>> measures(["test_loss", "test_accuracy", "test_loss_personal", "test_accuracy_personal"])
        ['test_accuracy_personal', 'test_loss_personal', 'test_accuracy', 'test_loss']
    """
    measured = [name for name in names if describe(name).kind == "measure"]

    def place(name: str) -> tuple[bool, int, bool]:
        return not name.endswith(PERSONAL), _PLACES.get(name.removesuffix(PERSONAL), -1), name.startswith("val_")

    return sorted(measured, key=place)


def shown(names: Iterable[str], decides: str | None = None) -> list[str]:
    """The most important columns, for a short line: the deciding one, metrics, and the objective.

    Args:
        names: of the columns, in their order.
        decides: the column by which methods are compared.

    Example:
        >>> shown(["round", "train_loss", "test_loss", "test_accuracy"], "test_loss")
        ['train_loss', 'test_loss', 'test_accuracy']
    """
    measured = [name for name in names if describe(name).kind == "measure"]
    hidden = {"test_loss", "grad_norm_sq"} | ({"train_loss"} if "objective" in measured else set())
    return [name for name in measured if name == decides or name not in hidden]


def show(name: str, value: float) -> str:
    """A value with its unit.

    Example:
        >>> show("test_accuracy", 0.93117), show("train_loss", 0.123456), show("bytes_up", 2.5e6), show("seconds", 0.51)
        ('93.12 %', '0.1235', '2.50 MB', '0.51 s')
        >>> show("local_steps", 12345.0), show("round", 50.0), show("train_loss", 3.2e-9)
        ('12.3 k', '50', '3.200e-09')
        >>> show("epsilon", 3.0217), show("epsilon", math.inf)  # no noise, no privacy
        ('3.022', '∞')
    """
    column = describe(name)
    if column.kind == "privacy" and value == math.inf:
        return "∞"
    if not math.isfinite(value):
        return "not finite"
    if column.unit == "%":
        return f"{100 * value:.2f} %"
    if column.unit == "s":
        return f"{value:.2f} s" if value < 100 else f"{value / 60:.1f} min" if value < 6000 else f"{value / 3600:.1f} h"
    if column.unit == "B":
        return _scaled(value, ("B", "kB", "MB", "GB", "TB"))
    if column.type == "whole":
        return f"{value:.0f}" if value < 10_000 else _scaled(value, ("", "k", "M", "G", "T"))
    return f"{value:.4g}" if value == 0 or 1e-4 <= abs(value) < 1e6 else f"{value:.3e}"


def show_parts(name: str, mean: float, std: float | None = None) -> tuple[str, str, str]:
    """A mean, its standard deviation, and the unit, as texts; missing ones are empty.

    Args:
        name: of the column.
        mean: of several runs.
        std: their standard deviation; ``None`` or not a number where there is none.

    Example:
        >>> show_parts("test_accuracy", 0.93117, 0.0041), show_parts("train_loss", 0.5)
        (('93.12', '± 0.41', '%'), ('0.5', '', ''))
        >>> show_parts("test_auc", 0.94, 1.4e-16)  # rounding, no spread
        ('0.94', '± 0', '')
    """
    text = show(name, mean)
    number, _, unit = text.partition(" ")
    if not math.isfinite(mean):
        return text, "", ""
    if std is None or math.isnan(std):
        return number, "", unit
    std = 0.0 if std <= _ROUNDING * abs(mean) else std
    return number, f"± {100 * std:.2f}" if describe(name).unit == "%" else f"± {std:.2g}", unit


def raised(power: int) -> str:
    """A power of ten, in plain text.

    Example:
        >>> raised(-6)
        '10⁻⁶'
    """
    return "10" + str(power).translate(_RAISED)


def _scaled(value: float, units: Sequence[str]) -> str:
    power = 0
    while value >= 999.5 and power < len(units) - 1:
        value, power = value / 1000, power + 1
    digits = f"{value:#.3g}".rstrip(".") if power else f"{value:.0f}"
    return f"{digits} {units[power]}".strip()
