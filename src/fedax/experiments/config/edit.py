"""The tables of a configuration: read from a file or a recipe, and changed setting by setting."""

import difflib
import pathlib
from typing import Any

from fedax.data import PARTITIONS, by_column
from fedax.errors import ConfigError, DataError, unknown
from fedax.experiments import own, toml
from fedax.experiments.config.sections import SELECTORS, ExperimentSection, Table
from fedax.experiments.named import check_named
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
    check_named("config", path, "configuration", "recipe")
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
            one method, ``methods.*.key`` all of them; a name chooses in other lists, too. A new partition, task, work
            or participation drops the parameters of the old one.

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


def pick(config: Table, methods: str) -> None:
    """Leave only some of the methods of a configuration, in place, and what its sweep tries of them.

    Args:
        config: from :func:`read_toml`.
        methods: labels or names, separated by commas.

    Raises:
        ConfigError: the configuration has no such method, or none is named.

    Example:
        >>> config = {"methods": [{"name": "fedavg"}, {"name": "fedprox", "label": "mu 1"}, {"name": "fednova"}]}
        >>> pick(config, "fednova,mu 1")
        >>> config["methods"]
        [{'name': 'fedprox', 'label': 'mu 1'}, {'name': 'fednova'}]
    """
    rows, wanted = _rows(config), {word.strip() for word in methods.split(",")} - {""}
    for word in sorted(wanted) or [methods]:
        if not any(word in _names(row) for row in rows):
            raise unknown("methods", word, map(_label, rows))
    config["methods"] = [row for row in rows if wanted & _names(row)]
    gone = {name for row in rows for name in _names(row)}.difference(*map(_names, config["methods"]))
    sweep: Any = config.get("sweep")
    grid = sweep.get("grid") if isinstance(sweep, dict) else None
    if isinstance(grid, dict):
        if isinstance(nested := grid.get("methods"), dict):  # keys that are written without quotes
            grid["methods"] = {name: axes for name, axes in nested.items() if name not in gone}
        of_method = {path: path.split(".")[1] for path in grid if path.startswith("methods.")}
        sweep["grid"] = {path: axis for path, axis in grid.items() if of_method.get(path) not in gone}


def _rows(config: Table) -> list[Table]:
    rows = config.get("methods", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError("methods", rows, "give tables: [[methods]] and the settings of each below it")
    return rows


def _label(row: Table) -> str:
    return str(row.get("label", own.label_of(str(row.get("name")))))


def _names(row: Table) -> set[str]:
    """What a method may be called by."""
    return {str(row.get("name")), _label(row)}


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
        rows = _rows(config)
        tables = [row for row in rows if keys[1] in {"*", *_names(row)}]
        if not tables:
            raise unknown(f"methods.{keys[1]}", keys[1], map(_label, rows))
        keys = keys[2:]
    elif keys[0] not in ExperimentSection.model_fields:
        raise unknown(path, keys[0], ExperimentSection.model_fields)
    for table in tables:
        for key in keys[:-1]:
            table = _below(table, key, path)
        if isinstance(table, list):
            raise ConfigError(path, value, f"name a setting of {keys[-1]} too")
        section = SELECTORS.get(path)
        if section is not None and table.get(keys[-1]) != value:
            stale = set(table) - set(section.model_fields)
            by_value = isinstance(value, str) and value in PARTITIONS and PARTITIONS.get(value).make is by_column
            for name in stale | ({"clients"} if by_value else set()):
                table.pop(name, None)
        table[keys[-1]] = value


def _below(table: Any, key: str, path: str) -> Any:
    """The table or list called ``key`` in a table; the entry of this name in a list. A name becomes a table with it."""
    if isinstance(table, list):
        entries = [{"name": entry} if isinstance(entry, str) else entry for entry in table]
        names = [entry.get("name") if isinstance(entry, dict) else entry for entry in entries]
        if key not in names:
            raise unknown(path, key, map(str, names))
        at: Any = names.index(key)
        found = entries[at]
    else:
        at, found = key, table.setdefault(key, {})
        found = {"name": found} if isinstance(found, str) else found
    if not isinstance(found, dict | list):
        raise ConfigError(path, found, f"{key} is a value, no section: leave out what stands after it")
    table[at] = found
    return found
