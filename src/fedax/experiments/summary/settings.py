"""A configuration in words: what was chosen, a few words a setting."""

import copy
from collections.abc import Sequence
from typing import Any

from fedax.algorithms import hyperparameters
from fedax.data import FEDERATIONS
from fedax.errors import ConfigError
from fedax.experiments.config.sections import PYTHON


def telling(settings: dict[str, Any]) -> dict[str, Any]:
    """The hyper-parameters worth a line: numbers and schedules, and choices that are not the default."""
    try:
        default = hyperparameters(settings["name"])
    except ConfigError:  # one's own method, which a report does without
        default = {}
    hyper = {k: v for k, v in settings.items() if k not in ("name", "label")}
    return {k: v for k, v in hyper.items() if not isinstance(v, bool | str) or v != default.get(k)}


def facts(config: dict[str, Any], sizes: Sequence[int], parameters: int) -> dict[str, str]:
    """What was chosen, in a few words each.

    Args:
        config: a whole configuration; of a sweep, what varies is shown with all its values.
        sizes: [N] examples of each client.
        parameters: of the model.
    """
    config = varied(config)
    data, run, who = config["data"], config["run"], config["participation"]
    hidden = ("name", "clients", "seed", "weights")
    dealt = f"by {data['column']}" if "column" in data else None
    dealt = "as the sites have them" if data["name"] == "nodes" else dealt
    where = {"nodes": "at nodes", PYTHON: "given in Python"}.get(data["name"], data["name"])
    own = data["name"] in ("folder", "csv", "parquet", "arrow", "images", "hdf5")
    usual = "given" if own or data["name"] == PYTHON else "generated"
    if own:  # many have their default
        defaults = FEDERATIONS.get(data["name"]).arguments
        data = {name: value for name, value in data.items() if name == "name" or defaults.get(name) != value}
    if "split" in data:
        data = data | {"split": " / ".join(f"{data['split'][part]:g}" for part in ("train", "val", "test"))}
    dealt = dealt or _settings({k: v for k, v in data.items() if k not in hidden}, "partition", usual)
    cohort = f"{who['size']} a round, {who['kind']}" if "size" in who else "all in every round"
    if who["kind"] == "poisson":
        cohort = f"each with probability {who['rate']:g} a round"
    elif who["kind"] == "cyclic":
        cohort = f"{who['groups']} groups that take turns"
    elif "trace" in who["kind"]:
        cohort = "as in the trace"
    if "dropout" in who:
        rate = who["dropout"]
        cohort += f", of whom {'some' if isinstance(rate, list) else f'{100 * rate:g} %'} drop out"
    elif "available" in who:
        cohort += ", as far as available"
    asked = {name: run[name] for name in ("guard", "aggregate", "faults", "compress", "secure") if run.get(name)}
    uploads = "; ".join(f"{name} {'on' if what is True else short(what)}" for name, what in asked.items())
    private = config.get("privacy", {})
    hidden_by = ""
    if private:
        hidden_by = f"clip {in_words(private['clip'])}, noise {in_words(private['noise'])}, δ = {private['delta']:g}"
    return {
        "Data": f"{where}, {thousands(sum(sizes))} training examples",
        "Partition": dealt + (", all clients weigh the same" if data["weights"] == "uniform" else ""),
        "Clients": f"{len(sizes)}, {cohort}",
        "Task": f"{_settings(config['task'], 'name')}, {thousands(parameters)} parameters",
        "Local work": _settings(config["work"], "kind"),
        "Run": f"{run['rounds']} rounds, {_batch(run)}, {_seeds(config)}",
    } | {name: text for name, text in (("Uploads", uploads), ("Privacy", hidden_by)) if text}


def varied(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration; of a sweep with the values of its axes in words, but of methods, in the place of the first."""
    config = copy.deepcopy(config)
    for path, values in config.get("sweep", {}).get("grid", {}).items():
        section, _, name = path.partition(".")
        if section != "methods":
            *above, last = name.split(".")
            table = config[section]
            for key in above:  # above it may be an axis too
                table = table[key] if isinstance(table.get(key), dict) else {}
            table[last] = axis(values)
    return config


def in_words(value: Any) -> str:
    """A number, or the values of an axis that :func:`varied` has in its place."""
    return value if isinstance(value, str) else f"{value:g}"


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


def _seeds(config: dict[str, Any]) -> str:
    seeds = config["run"]["seeds"]
    return over(config, len(seeds)) if len(seeds) > 1 else f"seed {seeds[0]}"


def over(config: dict[str, Any], seeds: int) -> str:
    """What a standard deviation is over.

    Example:
        >>> over({"data": {"partition": "iid"}, "run": {"split_seeds": True}}, 3), over({"run": {}}, 3)
        ('3 seeds that also redraw the split', '3 seeds of training')
    """
    if not config["run"].get("split_seeds"):
        return f"{seeds} seeds of training"
    return f"{seeds} seeds that also redraw the {'split' if 'partition' in config['data'] else 'data'}"


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
