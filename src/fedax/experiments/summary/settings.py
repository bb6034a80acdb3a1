"""The settings of a configuration as short texts."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from fedax.algorithms import hyperparameters
from fedax.data import FEDERATIONS
from fedax.engine.options import OF_WIRE
from fedax.errors import ConfigError
from fedax.experiments.config.sections import PYTHON
from fedax.experiments.defaults import OWN_TABLES


def telling(settings: dict[str, Any]) -> dict[str, Any]:
    """The hyper-parameters worth a line: numbers and schedules, and choices that are not the default."""
    try:
        default = hyperparameters(settings["name"])
    except ConfigError:  # the user's own method; a report needs no code
        default = {}
    hyper = {k: v for k, v in settings.items() if k not in ("name", "label")}
    return {k: v for k, v in hyper.items() if not isinstance(v, bool | str) or v != default.get(k)}


def facts(config: dict[str, Any], sizes: Sequence[int], parameters: int) -> dict[str, str]:
    """The settings of an experiment, each in a few words.

    Args:
        config: a whole configuration; settings that a sweep varies are shown with all their values.
        sizes: [N] examples of each client.
        parameters: how many the model has.
    """
    config, left_out = varied(config), None
    data, run, participation = config["data"], config["run"], config["participation"]
    hidden = ("name", "clients", "seed", "weights")
    dealt = f"by {data['column']}" if "column" in data else None
    dealt = "as the sites have them" if data["name"] == "nodes" else dealt
    where = {"nodes": "at nodes", PYTHON: "given in Python"}.get(data["name"], data["name"])
    of_user = data["name"] in OWN_TABLES
    unnamed = "given" if of_user or data["name"] == PYTHON else "generated"
    if of_user:  # most settings have their default
        defaults = FEDERATIONS.get(data["name"]).arguments
        data = {k: value for k, value in data.items() if k == "name" or value not in (defaults.get(k), [], {})}
    if "split" in data:
        left_out = data["split"].get("clients")
        data = data | {"split": " / ".join(f"{data['split'][part]:g}" for part in ("train", "val", "test"))}
    dealt = dealt or _settings({k: v for k, v in data.items() if k not in hidden}, "partition", unnamed)
    cohort = (
        f"{participation['size']} a round, {participation['kind']}" if "size" in participation else "all in every round"
    )
    if participation["kind"] == "poisson":
        cohort = f"each with probability {participation['rate']:g} a round"
    elif participation["kind"] == "cyclic":
        cohort = f"{participation['groups']} groups that take turns"
    elif "trace" in participation["kind"]:
        cohort = "as in the trace"
    if "dropout" in participation:
        rate = participation["dropout"]
        cohort += f", of whom {'some' if isinstance(rate, list) else f'{100 * rate:g} %'} drop out"
    elif "available" in participation:
        cohort += ", as far as available"
    pace = config.get("pace", {})
    if pace:
        cohort = f"{pace['concurrency']} under way, answers a step: {pace.get('buffer', 1)}"
    late = {name: value for name, value in pace.items() if name not in ("concurrency", "buffer")}
    optional = {"Pace": _settings(late, "") if late else "", "Clock": _settings(config.get("clock", {}), "preset")}
    wire = {name: run[name] for name in OF_WIRE if run.get(name)}
    uploads = "; ".join(f"{name} {'on' if chosen is True else short(chosen)}" for name, chosen in wire.items())
    batches = f"batch {run['batch_size']}" if "batch_size" in run else "full gradients"
    seeds = over(config, len(run["seeds"])) if len(run["seeds"]) > 1 else f"seed {run['seeds'][0]}"
    hidden_by = ""
    if private := config.get("privacy"):
        hidden_by = f"clip {in_words(private['clip'])}, noise {in_words(private['noise'])}, δ = {private['delta']:g}"
    more = {"Uploads": uploads, "Privacy": hidden_by} | optional
    if left_out is not None:
        who = f"{100 * left_out:g} % of the clients" if left_out != "each" else "another client in each run"
        more = {"Take no part": f"{who}, evaluated beside"} | more
    return {
        "Data": f"{where}, {thousands(sum(sizes))} training examples",
        "Partition": dealt + (", all clients weigh the same" if data["weights"] == "uniform" else ""),
        "Clients": f"{len(sizes)}, {cohort}",
        "Task": f"{_settings(config['task'], 'name')}, {thousands(parameters)} parameters",
        "Local work": _settings(config["work"], "kind"),
        "Run": f"{run['rounds']} rounds, {batches}, {seeds}",
    } | {name: text for name, text in more.items() if text}


def varied(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration, with each setting that a sweep varies replaced by all its values, as text (not of methods)."""
    config = copy.deepcopy(config)
    for path, values in config.get("sweep", {}).get("grid", {}).items():
        section, _, name = path.partition(".")
        if section != "methods":
            *above, last = name.split(".")
            table = config[section]
            for key in above:  # an enclosing table may be an axis, too
                table = table[key] if isinstance(table.get(key), dict) else {}
            table[last] = axis(values)
    return config


def in_words(value: Any) -> str:
    """A number as text; a text by which :func:`varied` has replaced it stays."""
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
    return ", ".join(text for text in (section.get(key, unnamed), *rest) if text)


def over(config: dict[str, Any], seeds: int) -> str:
    """What a standard deviation is taken over, in words.

    Example:
        >>> over({"data": {"partition": "iid"}, "run": {"split_seeds": True}}, 3), over({"run": {}}, 3)
        ('3 seeds that also redraw the split', '3 seeds of training')
    """
    if config.get("data", {}).get("split", {}).get("clients") == "each":
        return f"{seeds} runs, each without another client"
    if not config["run"].get("split_seeds"):
        return f"{seeds} seeds of training"
    return f"{seeds} seeds that also redraw the {'split' if 'partition' in config['data'] else 'data'}"


def short(value: Any) -> str:
    """A setting's value as text; each entry of a list of names and tables is cut off at 40 characters.

    Example:
        >>> short([{"name": "clip", "max_delta": 1.0}, "sgd"]), short({"kind": "cosine", "value": 0.1, "rounds": 9})
        ('clip (max_delta 1.0), sgd', 'cosine, value 0.1, rounds 9')
    """
    if isinstance(value, list) and value and all(isinstance(each, str | dict) for each in value):
        return ", ".join(map(short, value))
    text = str(value)
    if isinstance(value, dict):  # a schedule, or a part by its name
        rest = ", ".join(str(of) if key == "kind" else f"{key} {of}" for key, of in value.items() if key != "name")
        text = " ".join(filter(None, (value.get("name"), f"({rest})" if rest and "name" in value else rest)))
    return text if len(text) <= 40 else text[:39] + "…"


def thousands(number: int) -> str:
    """A whole number in groups of three digits."""
    return f"{number:,}".replace(",", "\u202f")


def rates(tuned: Mapping[str, Any]) -> str:
    """How the learning rates were chosen, in words.

    Example:
        >>> rates({"fedavg": {"tried": [0.01, 0.1, 1.0], "lr": 0.1}})
        'the best of 0.01, 0.1 and 1 by validation loss for each method: fedavg 0.1; baselines likewise'
    """
    *some, last = (f"{rate:g}" for rate in sorted({rate for each in tuned.values() for rate in each["tried"]}))
    ends = ", ".join(f"{label} {each['lr']:g}" for label, each in tuned.items())
    return f"the best of {', '.join(some)} and {last} by validation loss for each method: {ends}; baselines likewise"
