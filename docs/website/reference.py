"""The API reference and that of the command: which page has which name. The text is that of docstrings and help."""

import importlib
import inspect
import re
from collections.abc import Iterable

# Of ``fedax.*``, by the package that has the code.
PLACES = {
    "run": (
        "Run and compare",
        "simulate, compare, sweep and evaluate; what they return.",
        ("engine", "experiments", "progress"),
    ),
    "algorithms": (
        "Methods",
        "make a method by its name; the parts of those that combine.",
        ("algorithms", "citations"),
    ),
    "contract": (
        "Write a method",
        "what a method is, what it may ask of a client, and the check of one of your own.",
        ("contract", "plugins", "conformance"),
    ),
    "federation": (
        "Participation, work and time",
        "who takes part in a round, how much each client does, and how long it takes.",
        ("federation",),
    ),
    "wire": ("On the way to the server", "robust averages, guards, and faults to study.", ("wire",)),
    "errors": ("Errors and warnings", "what fedax raises, and what each says.", ("errors",)),
}
MODULES = ("data", "tasks", "metrics", "theory", "figures", "experiments", "privacy", "tracking")
SPREAD = {"data": "data", "tasks": "tasks"}  # names of fedax itself that are documented with a module


def pages() -> dict[str, str]:
    """Page -> Markdown."""
    import fedax

    of = {package: page for page, (_, _, packages) in PLACES.items() for package in packages} | SPREAD
    groups: dict[str, list[str]] = {page: [] for page in (*PLACES, *MODULES)}
    for name in fedax.__all__:
        member = getattr(fedax, name)
        if not inspect.ismodule(member):
            groups[of[_package(member)]].append(f"fedax.{name}")
    for module in MODULES:
        found = importlib.import_module(f"fedax.{module}")
        groups[module] += [f"fedax.{module}.{name}" for name in _names(found)]
    written = {f"api/{page}.md": _page(page, names) for page, names in groups.items()}
    return {"api/index.md": _index(groups), **written, "api/command.md": command()}


def _names(module: object) -> list[str]:
    public = getattr(module, "__all__", None) or [
        name
        for name, member in vars(module).items()
        if not name.startswith("_") and getattr(member, "__module__", None) == module.__name__  # type: ignore[attr-defined]
    ]
    # What fedax itself offers, and what is a module, has its place already.
    import fedax

    return [
        name
        for name in public
        if not inspect.ismodule(member := getattr(module, name)) and getattr(fedax, name, None) is not member
    ]


def _package(member: object) -> str:
    return (getattr(member, "__module__", None) or type(member).__module__).split(".")[1]


def _title(page: str) -> str:
    return PLACES[page][0] if page in PLACES else f"fedax.{page}"


def _opening(page: str) -> str:
    if page in PLACES:
        return f"Here you find {PLACES[page][1]}"
    first = inspect.getdoc(importlib.import_module(f"fedax.{page}")) or ""
    return re.sub(r":\w+:`([^`]+)`", r"`\1`", first.split("\n\n")[0]).replace("``", "`")


def _page(page: str, names: Iterable[str]) -> str:
    parts = [f"# {_title(page)}", _opening(page), "All names: [API reference](index.md)."]
    return "\n\n".join([*parts, *(f"::: {name}" for name in _sorted(names))]) + "\n"


def _sorted(names: Iterable[str]) -> list[str]:
    """Functions first, then classes, each by name."""

    def key(name: str) -> tuple[int, str]:
        member = _get(name)
        return (0 if inspect.isfunction(member) else 1 if inspect.isclass(member) else 2, name.lower())

    return sorted(names, key=key)


def _get(name: str) -> object:
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


def _index(groups: dict[str, list[str]]) -> str:
    parts = [
        "# API reference",
        "Every public name of fedax, with a line each. The name leads to its arguments, errors and a runnable example. "
        "The command `fedax` has [a page of its own](command.md).",
    ]
    for page, names in groups.items():
        parts.append(f"## [{_title(page)}]({page}.md)")
        rows = [f"| [`{name}`]({page}.md#{name}) | {_line(name)} |" for name in _sorted(names)]
        parts.append("\n".join(["| name | what it is |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _line(name: str) -> str:
    """The first line of a docstring, for a cell of a table."""
    member = _get(name)
    documented = inspect.isfunction(member) or inspect.isclass(member)
    line = (inspect.getdoc(member) or "").split("\n")[0] if documented else f"a {type(member).__name__}"
    return re.sub(r":\w+:`([^`]+)`", r"`\1`", line).replace("``", "`").replace("|", "\\|").replace("*", "\\*")


def command() -> str:
    """The page of the command: what ``--help`` says."""
    import typer

    from fedax.cli import app

    root = typer.main.get_command(app)
    parts = [
        "# The command `fedax`",
        "Every command with its options, as `fedax COMMAND --help` prints them. "
        "[Experiments](../experiments.md) says how they work together.",
    ]
    return "\n\n".join(parts + _commands(root, "fedax", typer.Context(root))) + "\n"


def _commands(group: object, path: str, context: object) -> list[str]:
    parts = []
    for name, one in group.commands.items():  # type: ignore[attr-defined]
        if one.hidden:
            continue
        if hasattr(one, "commands"):
            parts += _commands(one, f"{path} {name}", context)
            continue
        first, _, rest = inspect.cleandoc(one.help or "").replace("\b", "").partition("\n\n")
        parts += [f"## `{path} {name}`", _escaped(" ".join(first.split()))]
        if rest.strip():
            parts.append(f"```text\n{re.sub(chr(10) + '{3,}', chr(10) * 2, rest.strip(chr(10)))}\n```")
        rows = []
        for parameter in one.params:
            record = parameter.get_help_record(context)
            if parameter.param_type_name == "argument":
                record = (" ".join(parameter.get_usage_pieces(context)), getattr(parameter, "help", "") or "")
            if record and "--help" not in record[0]:
                rows.append(f"| `{record[0]}` | {_escaped(' '.join((record[1] or '').split()))} |")
        if rows:
            parts.append("\n".join(["| option | what it does |", "|---|---|", *rows]))
    return parts


def _escaped(text: str) -> str:
    return re.sub(r"([|*_])", r"\\\1", text).replace("<", "&lt;")
