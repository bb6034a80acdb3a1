"""What a user has named, a file, a folder or a name of fedax; a command that does not take it names one that does."""

import pathlib
import shlex

from fedax.data import FEDERATIONS, SETS
from fedax.data.tables import TABLES
from fedax.errors import ConfigError
from fedax.experiments import toml
from fedax.files import regular

_HERE = pathlib.Path(__file__).parent
_COMMANDS = {
    "configuration": "fedax run {}",
    "recipe": "fedax run {}",
    "study": "fedax study {}",
    "data set": "fedax compare {}",
    "table": "fedax compare {} --label COLUMN",
    "run folder": "fedax report {0} shows it, fedax run {0}/config.toml runs it again",
}


def check_named(field: str, source: str | pathlib.Path, *taken: str) -> None:
    """Raise a ConfigError with the right command if ``source`` is known to be something else than the kinds ``taken``.

    Example:
        >>> check_named("config", "momentum", "configuration", "recipe")
        Traceback (most recent call last):
        fedax.errors.ConfigError: config = 'momentum': it is a study: fedax study momentum
    """
    try:
        kind = _kind(str(source), pathlib.Path(source))
    except (OSError, ValueError):  # nothing can be called so
        return
    if kind is not None and kind not in taken:
        command = _COMMANDS[kind].format(shlex.quote(str(source)))
        raise ConfigError(field, str(source), f"it is a {kind}: {command}")


def _kind(name: str, path: pathlib.Path) -> str | None:
    """One of the kinds of :data:`_COMMANDS`; ``None``: not known."""
    if path.is_dir():
        return "run folder" if all((path / file).is_file() for file in ("config.toml", "metrics.jsonl")) else None
    if path.exists():
        if path.suffix.lower() == ".toml":
            return "study" if _has_parts(path) else "configuration"
        return "table" if name.lower().endswith(TABLES) else None
    if path.name == name:
        for kind, folder in (("study", "studies"), ("recipe", "recipes")):
            if (_HERE / folder / f"{name}.toml").is_file():
                return kind
    return "data set" if name in FEDERATIONS or name in SETS else None


def _has_parts(path: pathlib.Path) -> bool:
    try:
        regular(path)
        return "parts" in toml.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
