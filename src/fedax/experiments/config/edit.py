"""The tables of a configuration: read from a file or a recipe, and changed setting by setting."""

import difflib
import pathlib
from typing import Any

from fedax.data import PARTITIONS, by_column
from fedax.errors import ConfigError, DataError, unknown
from fedax.experiments import own, toml
from fedax.experiments.config.sections import SELECTORS, ExperimentSection, Table
from fedax.files import regular

_RECIPES = pathlib.Path(__file__).parents[1] / "recipes"


def read_toml(source: str | pathlib.Path) -> Table:
    """The tables of a TOML file, or of a recipe by its name.

    Args:
        source: a file; or, where there is no such file, the name of a recipe (:func:`recipes`).

    Raises:
        ConfigError: no such file or recipe, or no TOML; the message has the line.
    """
    path = pathlib.Path(source)
    known = recipes()
    if str(source) in known and not path.exists():
        path = _RECIPES / f"{source}.toml"
    similar = difflib.get_close_matches(str(source)[-100:], known, n=1)
    hint = f"did you mean {similar[0]!r}?" if similar else "give a TOML file, or a recipe (fedax list recipes)"
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
    """The experiments of papers that come with fedax: name -> paper and figure or table.

    Example:
        >>> recipes()["fednova-figure-2-equal"]
        'Wang et al. 2020 (FedNova), Figure 2, left'
    """
    lines = {path.stem: path.read_text(encoding="utf-8").partition("\n")[0] for path in sorted(_RECIPES.glob("*.toml"))}
    return {name: line.lstrip("# ").partition(": ")[0] for name, line in lines.items()}


def override(config: Table, setting: str) -> None:
    """Apply one ``key=value`` to a configuration, in place.

    Args:
        config: from :func:`read_toml`.
        setting: ``section.key=value``; the value is TOML, or else a plain word. ``methods.<name or label>.key`` changes
            one method, ``methods.*.key`` all of them. A new partition, task, work or participation drops the parameters
            of the old one.

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
    """The value of a TOML text; a text that is no TOML is taken as a plain word.

    Example:
        >>> value_of("[1, 2]"), value_of(" iid")
        ([1, 2], 'iid')
    """
    try:
        return toml.loads(f"value = {text.strip()}".encode())["value"]
    except UnicodeEncodeError as error:  # a file name with bytes that are not in UTF-8
        raise ConfigError("set", text, "this is not in UTF-8; rename it, or give a pattern such as *.csv") from error
    except ValueError:
        return text.strip()


def put(config: Table, path: str, value: Any) -> None:
    """Change one setting of a configuration, in place; ``path`` and the rules are those of :func:`override`."""
    keys = path.split(".")
    tables = [config]
    if keys[0] == "methods":
        if len(keys) < 3:
            raise ConfigError("set", path, "name the method too: methods.fedavg.lr=0.1, or methods.*.lr=0.1 for all")
        rows = config.get("methods", [])
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ConfigError("methods", rows, "give tables: [[methods]] and the settings of each below it")
        labels = [str(row.get("label", own.label_of(str(row.get("name"))))) for row in rows]
        labelled = zip(rows, labels, strict=True)
        tables = [row for row, label in labelled if keys[1] in ("*", row.get("name"), label)]
        if not tables:
            raise unknown(f"methods.{keys[1]}", keys[1], labels)
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
