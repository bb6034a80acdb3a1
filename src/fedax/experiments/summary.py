"""From the rows of single runs to what is shown: means over seeds, spreads, the best, the words for a number."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedax.algorithms import hyperparameters
from fedax.experiments.runs import COSTS, LOSSES, MethodRun, Record

_NAMES = {
    "train_loss": "Train loss",
    "objective": "Objective F + ψ",
    "density": "Density",
    "test_loss": "Test loss",
    "grad_norm_sq": "Squared gradient norm ‖∇F(x)‖²",
    "round": "Rounds",
    "local_steps": "Local steps",
    "bytes_down": "Downloaded",
    "bytes_up": "Uploaded",
    "seconds": "Time",
}


@dataclass(frozen=True)
class Method:
    """One method over its seeds.

    Attributes:
        label: its name in the report.
        hyper: its hyper-parameters, as configured.
        runs: one a seed.
    """

    label: str
    hyper: dict[str, Any]
    runs: list[MethodRun]

    @property
    def status(self) -> str:
        """The worst of its seeds: ``"diverged"``, ``"unfinished"`` or ``"finished"``."""
        found = {run.status for run in self.runs}
        return next(status for status in ("diverged", "unfinished", "finished") if status in found)

    @property
    def status_text(self) -> str:
        """The status in words, with the round of the first divergence."""
        if self.status == "finished":
            return "finished"
        at = [int(run.history["round"][-1]) for run in self.runs if run.status == self.status]
        seeds = f" ({len(at)} of {len(self.runs)} seeds)" if len(self.runs) > 1 else ""
        if self.status == "diverged":
            return f"diverged by round {min(at)}{seeds}"
        return f"stopped at round {min(at)}{seeds}"

    @property
    def losses_text(self) -> str:
        """Which uploads were left out of all runs, and how many rounds were skipped; empty where none."""
        last = [{name: run.history[name][-1] for name in LOSSES if name in run.history} for run in self.runs]
        left_out, skipped = (sum(int(row.get(name, 0)) for row in last) for name in ("left_out", "skipped"))
        ids = sorted({id_ for row in last for id_ in row.get("bad_clients", ())})
        whose = f"client{'s' * (len(ids) > 1)} {', '.join(map(str, ids[:10]))}{', …' * (len(ids) > 10)}"
        said = [f"{left_out} upload{'s' * (left_out > 1)} of {whose} left out"] if left_out else []
        said += [f"{skipped} round{'s' * (skipped > 1)} skipped for want of clients"] if skipped else []
        return "; ".join(said)

    def values(self, column: str) -> np.ndarray:
        """[seeds, evaluations] as far as all seeds have come with a finite objective."""
        length = min(int(np.isfinite(run.history["train_loss"]).sum()) for run in self.runs)
        return np.stack([run.history[column][:length].astype(float) for run in self.runs])

    def final(self, column: str) -> np.ndarray:
        """[seeds] last values; empty unless all seeds finished."""
        if self.status != "finished":
            return np.zeros(0)
        return np.array([run.history[column][-1] for run in self.runs], dtype=float)

    def cost(self, column: str) -> float:
        """What a run cost in the end, the mean over seeds."""
        return float(np.mean([run.history[column][-1] for run in self.runs]))


def methods(records: Sequence[Record]) -> list[Method]:
    """The methods of one or several run folders, of sweeps at their best points; of several, labels tell the folder."""
    found = []
    for record in records:
        for settings in record.config["methods"]:
            runs = record.of(settings["label"])
            if runs:
                label = settings["label"] if len(records) == 1 else f"{settings['label']} · {record.folder.name}"
                found.append(Method(label, telling(_at(settings, runs[0].point)), runs))
    return found


def _at(settings: dict[str, Any], point: dict[str, Any]) -> dict[str, Any]:
    """A method's settings at a point of a sweep."""
    settings = copy.deepcopy(settings)
    for path, value in point.items():
        table, keys = settings, path.split(".")
        while len(keys) > 1 and isinstance(table.get(keys[0]), dict):
            table = table[keys.pop(0)]
        table[".".join(keys)] = value
    return settings


def telling(settings: dict[str, Any]) -> dict[str, Any]:
    """The hyper-parameters worth a line: numbers and schedules, and choices that are not the default."""
    default = hyperparameters(settings["name"])
    hyper = {k: v for k, v in settings.items() if k not in ("name", "label")}
    return {k: v for k, v in hyper.items() if not isinstance(v, bool | str) or v != default.get(k)}


def facts(config: dict[str, Any], sizes: Sequence[int], parameters: int) -> dict[str, str]:
    """What was chosen, in a few words each.

    Args:
        config: a whole configuration; of a sweep, what varies is shown with all its values.
        sizes: [N] examples of each client.
        parameters: of the model.
    """
    config = _varied(config)
    data, run, who = config["data"], config["run"], config["participation"]
    hidden = ("name", "clients", "seed", "weights")
    dealt = f"by {data['column']}" if "column" in data else None
    dealt = dealt or _settings({k: v for k, v in data.items() if k not in hidden}, "partition", "generated")
    cohort = f"{who['size']} a round, {who['kind']}" if "size" in who else "all in every round"
    if "trace" in who["kind"]:
        cohort = "as in the trace"
    if "dropout" in who:
        rate = who["dropout"]
        cohort += f", of whom {'some' if isinstance(rate, list) else f'{100 * rate:g} %'} drop out"
    elif "available" in who:
        cohort += ", as far as available"
    asked = {name: run[name] for name in ("guard", "aggregate", "faults") if run.get(name)}
    uploads = "; ".join(f"{name} {'on' if what is True else short(what)}" for name, what in asked.items())
    return {
        "Data": f"{data['name']}, {thousands(sum(sizes))} training examples",
        "Partition": dealt + (", all clients weigh the same" if data["weights"] == "uniform" else ""),
        "Clients": f"{len(sizes)}, {cohort}",
        "Task": f"{_settings(config['task'], 'name')}, {thousands(parameters)} parameters",
        "Local work": _settings(config["work"], "kind"),
        "Run": f"{run['rounds']} rounds, {_batch(run)}, {_seeds(run['seeds'])}",
    } | ({"Uploads": uploads} if uploads else {})


def _varied(config: dict[str, Any]) -> dict[str, Any]:
    config = copy.deepcopy(config)
    for path, values in config.get("sweep", {}).get("grid", {}).items():
        section, _, name = path.partition(".")
        if section != "methods":
            config[section][name] = axis(values)
    return config


def axis(values: Any) -> str:
    """The values of an axis of a sweep, in words.

    Example:
        >>> axis([5, 10]), axis({"low": 0.01, "high": 1.0, "points": 3})
        ('5 or 10', '0.01 to 1.0')
    """
    if isinstance(values, dict):
        return f"{values['low']} to {values['high']}"
    *some, last = map(short, values)
    return f"{', '.join(some)} or {last}" if some else last


def _settings(section: dict[str, Any], key: str, unnamed: str = "") -> str:
    rest = [f"{k.replace('_', ' ')} {short(v)}" for k, v in section.items() if k != key]
    return ", ".join([section.get(key, unnamed), *rest])


def _batch(run: dict[str, Any]) -> str:
    return f"batch {run['batch_size']}" if "batch_size" in run else "full gradients"


def _seeds(seeds: list[int]) -> str:
    return f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"


def short(value: Any) -> str:
    """A setting's value in words, cut off where it is long."""
    text = str(value)
    if isinstance(value, dict):  # a schedule, or a regularizer by its name
        rest = ", ".join(f"{key} {number}" for key, number in value.items() if key != "name")
        text = f"{value['name']} ({rest})" if "name" in value else rest
    return text if len(text) <= 40 else text[:39] + "…"


def thousands(number: int) -> str:
    """A whole number in groups of three digits."""
    return f"{number:,}".replace(",", "\u202f")


def order(clients: dict[str, Any]) -> np.ndarray:
    """The clients in the order of the drawings: the largest first."""
    return np.argsort(-np.asarray(clients["sizes"]), kind="stable")


def wide(values: np.ndarray) -> bool:
    """Whether finite values want a logarithmic scale: more than a factor of eight from lowest to highest."""
    return values.size > 0 and bool(values.min() > 0 and values.max() > 8 * values.min())


def table_order(columns: Sequence[str]) -> list[str]:
    """The columns as a table has them: what is measured on held-out data first."""
    return sorted(
        columns,
        key=lambda c: {"objective": 2, "train_loss": 2, "test_loss": 1, "grad_norm_sq": 3, "density": 4}.get(c, 0),
    )


def with_spread(m: Method, column: str) -> str:
    """Mean and standard deviation of the final values, with their unit; a dash where there are none."""
    values = m.final(column)
    if not values.size:
        return "–"
    text, noise = show(column, float(np.mean(values))), spread(values)
    if noise is None:
        return text
    number, _, unit = text.partition(" ")
    return f"{number} {show_spread(column, noise)} {unit}".strip()


def metrics(found: Sequence[Method]) -> list[str]:
    """The columns to compare, those that all methods have: the objective, held-out metrics, losses, gradient norm."""
    common = [c for c in found[0].runs[0].history if all(c in run.history for m in found for run in m.runs)]
    measured = [c for c in common if c not in (*COSTS, *LOSSES)]
    rank = {"objective": 0, "train_loss": 0, "test_loss": 2, "grad_norm_sq": 3, "density": 4}
    return sorted(measured, key=lambda column: rank.get(column, 1))


def metric_name(column: str) -> str:
    """A column's name for people."""
    return _NAMES.get(column) or column.replace("_", " ").capitalize()


def better(column: str) -> str | None:
    """Whether ``"lower"`` or ``"higher"`` is better; ``None`` where a name does not tell."""
    if column.endswith("loss") or column in ("objective", "grad_norm_sq", "test_error", "test_perplexity"):
        return "lower"
    return "higher" if "accuracy" in column else None


def best(found: Sequence[Method], column: str) -> Method | None:
    """The method with the best mean final value, of those whose seeds all finished; ``None`` if there are not two."""
    finals = [(float(np.mean(m.final(column))), m) for m in found if m.final(column).size]
    finals = [(value, m) for value, m in finals if math.isfinite(value)]
    if len(finals) < 2 or better(column) is None:
        return None
    choose = min if better(column) == "lower" else max
    return choose(finals, key=lambda pair: pair[0])[1]


def spread(values: np.ndarray) -> float | None:
    """Sample standard deviation over seeds; ``None`` of a single one."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def show(column: str, value: float) -> str:
    """A value of a column with its unit.

    Example:
        >>> show("test_accuracy", 0.93117), show("train_loss", 0.123456), show("bytes_up", 2.5e6), show("seconds", 0.51)
        ('93.12 %', '0.1235', '2.50 MB', '0.51 s')
        >>> show("local_steps", 12345.0), show("round", 50.0), show("train_loss", 3.2e-9)
        ('12.3 k', '50', '3.200e-09')
    """
    if not math.isfinite(value):
        return "not finite"
    if "accuracy" in column:
        return f"{100 * value:.2f} %"
    if column == "seconds":
        return f"{value:.2f} s" if value < 100 else f"{value / 60:.1f} min" if value < 6000 else f"{value / 3600:.1f} h"
    if column.startswith("bytes"):
        return _scaled(value, ("B", "kB", "MB", "GB", "TB"))
    if column in COSTS:
        return f"{value:.0f}" if value < 10_000 else _scaled(value, ("", "k", "M", "G", "T"))
    return f"{value:.4g}" if value == 0 or 1e-4 <= abs(value) < 1e6 else f"{value:.3e}"


def show_spread(column: str, value: float) -> str:
    """A standard deviation beside a mean, without the unit.

    Example:
        >>> show_spread("test_accuracy", 0.0041), show_spread("train_loss", 0.00123)
        ('± 0.41', '± 0.0012')
    """
    return f"± {100 * value:.2f}" if "accuracy" in column else f"± {value:.2g}"


def _scaled(value: float, units: Sequence[str]) -> str:
    power = 0
    while value >= 999.5 and power < len(units) - 1:
        value, power = value / 1000, power + 1
    digits = f"{value:#.3g}".rstrip(".") if power else f"{value:.0f}"
    return f"{digits} {units[power]}".strip()
