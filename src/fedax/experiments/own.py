"""The user's own methods and tasks in a configuration: ``name = "mine.py:Class"``, or ``"package.module:function"``.

Such a name stands for code, and whoever runs it trusts its author. So nothing is imported unless the user has typed the
name at the command line, or has allowed the code that a file names.
"""

import functools
import hashlib
import importlib
import importlib.util
import inspect
import pathlib
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from fedax.algorithms import METHODS
from fedax.contract.algorithm import Algorithm
from fedax.contract.regularizers import regularizer
from fedax.errors import CodeError, ConfigError, DataError, NodeError, call, of_a_library, place_of, unknown
from fedax.files import regular, write_atomic
from fedax.registry import Component, Registry
from fedax.tasks import TASKS, Task

Path = pathlib.Path

FOLDER = "code"  # in a run folder, for copies of the files
_LARGEST = 1 << 24  # the most bytes of a file
_FORM = "give file.py:Class or package.module:Class, or a function instead of the class"


@dataclass(frozen=True)
class Source:
    """A file of the user's code, as it was when it was read.

    Attributes:
        name: of the file, or of its module.
        path: of the file.
        content: all bytes of the file.
        module: whether it is imported as a module of a package.
    """

    name: str
    path: Path
    content: bytes
    module: bool

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 of the content."""
        return hashlib.sha256(self.content).hexdigest()

    def __str__(self) -> str:
        return f"{self.path} (sha256 {self.digest[:16]}…)"


Find = Callable[[str, str], Source]


class Code:
    """The components that a configuration names: registered ones, and the user's own code.

    Args:
        find: ``find(field, name)`` returns the file of a name, or raises a ConfigError if it may not run.

    Attributes:
        sources: the files that were loaded, by the part of the name before the colon.
    """

    def __init__(self, find: Find):
        self._find = find
        self._components: dict[tuple[str, str], Component] = {}
        self.sources: dict[str, Source] = {}

    def method(self, name: str, field: str) -> Component:
        """The method of this name; errors are about ``field``."""
        return self._component(METHODS, name, field)

    def task(self, name: str, field: str = "task.name") -> Component:
        """The task of this name."""
        component = self._component(TASKS, name, field)
        return component._replace(make=_checked_task(component.make)) if is_own(component) else component

    def function(self, name: str, field: str) -> Callable[..., Any]:
        """A function in the user's code that makes no task."""
        if not is_code(name):
            raise ConfigError(field, name, "give file.py:function or package.module:function")
        found: Callable[..., Any] = _attribute(_load(self._source(field, name), field), name, field, "function")
        return found

    def _component(self, registry: Registry, name: str, field: str) -> Component:
        if not is_code(name):
            return registry.get(name, field)
        key = registry.kind, name
        if key not in self._components:
            source = self._source(field, name)
            value = _attribute(_load(source, field), name, field, registry.kind)
            if not inspect.isfunction(value):  # of a function it is checked what it makes
                registry.check(f"{field} = {name!r}", value)
            line = (inspect.getdoc(value) or "").partition("\n")[0]
            self._components[key] = _with_named_arguments(Component(name, value, line))
        return self._components[key]

    def _source(self, field: str, name: str) -> Source:
        source = self._find(field, name)
        for place, other in self.sources.items():
            if place != name.rpartition(":")[0] and other.name == source.name and other.digest != source.digest:
                hint = f"{other.path} has the same name, and a run folder keeps a copy of both; rename one"
                raise ConfigError(field, name, hint)
        self.sources[name.rpartition(":")[0]] = source
        return source


def is_code(name: object) -> bool:
    """Whether a name in a configuration stands for the user's own code.

    Example:
        >>> is_code("mine.py:FedAvgEMA"), is_code("fedavg")
        (True, False)
    """
    return isinstance(name, str) and ":" in name


def label_of(name: str) -> str:
    """The label of a method that was given none.

    Example:
        >>> label_of("mine.py:FedAvgEMA"), label_of("fedavg")
        ('FedAvgEMA', 'fedavg')
    """
    return name.rpartition(":")[2]


def names(config: Mapping[str, Any]) -> set[str]:
    """The names of own code in the tables of a configuration, which need not be checked yet."""
    rows, task = config.get("methods"), config.get("task")
    tables = [*(rows if isinstance(rows, list) else []), task]
    return {table["name"] for table in tables if isinstance(table, dict) and is_code(table.get("name"))}


def code_of(allowed: "bool | Code") -> Code:
    """The code that the argument ``allow_code`` of :func:`fedax.experiments.build` stands for."""
    return allowed if isinstance(allowed, Code) else configured(bool(allowed))


def configured(allowed: bool, folder: str | Path | None = None, typed: Collection[str] = ()) -> Code:
    """The code that a configuration may run.

    Args:
        allowed: whether all code that it names may run.
        folder: of the configuration's file; own files are looked for there, and then in the current folder. A run
            folder has copies in its folder ``code``.
        typed: names that the user has typed. They may run, and are looked for in the current folder.
    """

    def find(field: str, name: str) -> Source:
        place = _place(field, name)
        folders = [Path()] if name in typed or folder is None else [Path(folder), Path()]
        source = _of_file(field, name, place, folders) if place.endswith(".py") else _of_module(field, name, place)
        if allowed or name in typed:
            return source
        hint = f"it would run the code of {source}; read it, and allow it: --allow-code (in Python allow_code=True)"
        raise ConfigError(field, name, hint)

    return Code(find)


def of_owner(allowed: Sequence[str], wanted: Mapping[str, str]) -> Code:
    """The code that a node may run: files that its owner allows, if they are equal to the server's.

    Args:
        allowed: files, and modules of packages.
        wanted: the part of a name before the colon -> the digest of the server's file.
    """

    def find(field: str, name: str) -> Source:
        place = _place(field, name)
        sources = [owned(each) for each in allowed]
        for source in sources:
            if source.digest == wanted.get(place):
                return source
        short = f"{place} (sha256 {str(wanted.get(place))[:16]}…)"
        others = any(each.name == Path(place).name for each in sources)
        why = "the file here is another one" if others else "its owner has not allowed it"
        raise NodeError(
            f"this node does not run {short}: {why}; get the server's file, read it, and allow it in the "
            f"node's policy: runs.code = ['{Path(place).name}']"
        )

    return Code(find)


def here(files: Sequence[str]) -> Code:
    """The code that another process of this run has allowed: copies of files, by their names, and modules."""

    def find(field: str, name: str) -> Source:
        place = _place(field, name)
        sources = [owned(each) for each in files]
        return next(source for source in sources if source.name in (place, Path(place).name))

    return Code(find)


def owned(allowed: str) -> Source:
    """A file, or a module of a package, that the owner of a node allows.

    Raises:
        ConfigError: there is no such file or module.
    """
    if allowed.endswith(".py"):
        return _of_file("runs.code", allowed, allowed, [Path()])
    return _of_module("runs.code", allowed, allowed)


def write(folder: Path, sources: Iterable[Source]) -> None:
    """Copy files into the folder ``code``; modules of packages are not copied."""
    for source in sources:
        if not source.module:
            (folder / FOLDER).mkdir(exist_ok=True)
            write_atomic(folder / FOLDER / source.name, source.content)


def digests(sources: Iterable[Source]) -> dict[str, str]:
    """Name -> SHA-256 of some files."""
    return {source.name: source.digest for source in sources}


def check_same(folder: Path, was: Mapping[str, str], sources: Iterable[Source]) -> None:
    """Refuse to continue a run with other code than it began with.

    Raises:
        ConfigError: a file has changed.
    """
    for source in sources:
        if was.get(source.name) != source.digest:
            old = was.get(source.name, "another file")[:16]
            hint = (
                f"{source.path} is not what this run began with (sha256 was {old}…, is {source.digest[:16]}…), and a "
                f"run goes on by the same code only; {folder / FOLDER} has a copy of it: go on by the configuration "
                f"{folder / 'config.toml'}, or name another folder with --out"
            )
            raise ConfigError("out", str(folder), hint)


def made(component: Component, given: Mapping[str, Any]) -> Algorithm:
    """Make a user's method from the settings of a configuration; lists become tuples, regularizers objects."""
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    if isinstance(values.get("regularizer"), Mapping):
        values["regularizer"] = regularizer(values["regularizer"])
    kind = component.make.__name__
    method = call(kind, f"{kind}({', '.join(component.arguments)})", functools.partial(component.make, **values))
    if not isinstance(method, Algorithm):
        raise CodeError(kind, f"returned {type(method).__name__}", "return a fedax.Algorithm", place_of(component.make))
    call(f"{kind}.validate", "validate(self)", method.validate)
    return method


def is_own(component: Component) -> bool:
    """Whether a method or task is the user's: from a file or another package, or registered."""
    return not of_a_library(getattr(component.make, "__module__", None) or "")


def plain(value: Any) -> Any:
    """A default as a configuration can hold it; ``None`` for an object."""
    if isinstance(value, list | tuple) and all(isinstance(item, bool | int | float | str) for item in value):
        return list(value)
    missing = value is inspect.Parameter.empty or not isinstance(value, bool | int | float | str)
    return None if missing else value


# ---- files


def _place(field: str, name: str) -> str:
    """The file or module of a name: the part before the colon."""
    place, _, attribute = name.rpartition(":")
    module = place.endswith(".py") or all(part.isidentifier() for part in place.split("."))
    if not module or not attribute.isidentifier():
        raise ConfigError(field, name, _FORM)
    return place


def _of_file(field: str, name: str, place: str, folders: Sequence[Path]) -> Source:
    """The first file with this path in the folders; copies in run folders come first."""
    candidates = [folder / place for folder in folders]
    candidates[:0] = [folder / FOLDER / Path(place).name for folder in folders if (folder / "about.json").is_file()]
    try:
        path = next((path for path in candidates if path.exists()), None)
        if path is None:
            searched = ", ".join(dict.fromkeys(str(path.parent.absolute()) for path in candidates))
            raise ConfigError(field, name, f"there is no such file in {searched}")
        if regular(path) > _LARGEST:
            raise ConfigError(field, name, f"{path} has more than {_LARGEST} bytes; it is no file of code")
        return Source(path.name, path, path.read_bytes(), False)
    except (OSError, ValueError, DataError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(field, name, f"it cannot be read ({error})") from error


def _of_module(field: str, name: str, place: str) -> Source:
    """The file of a module; neither the module nor its packages are imported."""
    search_path, spec, parts = None, None, place.split(".")
    for k in range(len(parts)):
        full = ".".join(parts[: k + 1])
        finders = (finder.find_spec(full, search_path) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        if (spec := next((spec_found for spec_found in finders if spec_found is not None), None)) is None:
            hint = f"; of a file in this folder give {place}.py:{label_of(name)}" if len(parts) == 1 else ""
            raise ConfigError(field, name, f"no module {full} is installed{hint}")
        search_path = spec.submodule_search_locations
    if spec is None or not spec.has_location or spec.origin is None:
        raise ConfigError(field, name, f"the module {place} has no file")
    try:
        return Source(place, Path(spec.origin), Path(spec.origin).read_bytes(), True)
    except OSError as error:
        raise ConfigError(field, name, f"{spec.origin} cannot be read ({error.strerror})") from error


def _load(source: Source, field: str) -> Any:
    """Import a file; a file with the same content is imported only once."""
    module_name = f"_fedax_code_{source.digest[:16]}"
    try:
        if source.module:
            return importlib.import_module(source.name)
        if module_name not in sys.modules:
            spec = importlib.util.spec_from_file_location(module_name, source.path.absolute())
            assert spec is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[module_name] = module  # dataclasses look up their module there
            exec(compile(source.content, str(source.path.absolute()), "exec"), vars(module))
        return sys.modules[module_name]
    except BaseException as error:
        sys.modules.pop(module_name, None)
        if not isinstance(error, Exception | SystemExit):
            raise
        _refuse(source, field, error)


def _refuse(source: Source, field: str, error: BaseException) -> NoReturn:
    """Raise the error for a file that cannot be imported; it names the line."""
    if isinstance(error, SyntaxError) and error.filename == str(source.path.absolute()):
        what, place = f"is no Python ({error.msg})", f"{source.path}:{error.lineno}"
    else:
        what, line, at = f"raised {type(error).__name__}: {error}", None, error.__traceback__
        while at is not None:
            line = at.tb_lineno if at.tb_frame.f_code.co_filename == str(source.path.absolute()) else line
            at = at.tb_next
        place = str(source.path) if line is None else f"{source.path}:{line}"
    raise CodeError(f"{field}: {source.name}", what, "it has to be importable", place) from error


def _checked_task(make: Callable[..., Any]) -> Callable[..., Task]:
    """Wrap a user's function: its errors name its line, and it has to return a Task."""
    name = f"task {make.__name__}"

    @functools.wraps(make)
    def checked(**settings: Any) -> Task:
        task = call(name, f"{make.__name__}({', '.join(settings)})", functools.partial(make, **settings))
        if not isinstance(task, Task):
            raise CodeError(name, f"returned {type(task).__name__}", "return a fedax.Task", place_of(make))
        return task

    return checked


def _attribute(module: Any, name: str, field: str, kind: str) -> Any:
    wanted = label_of(name)
    value = getattr(module, wanted, None)
    # A function that the file only imports, such as os.system, is neither task nor method.
    foreign = getattr(value, "__module__", "") != module.__name__
    if value is None or (foreign and (kind != "method" or inspect.isroutine(value))):
        fits: dict[str, Callable[[Any], bool]] = {
            "method": lambda item: inspect.isfunction(item) or (isinstance(item, type) and issubclass(item, Algorithm)),
            "task": inspect.isfunction,
            "function": inspect.isfunction,
        }
        defined_here = {
            key: item for key, item in vars(module).items() if getattr(item, "__module__", "") == module.__name__
        }
        candidates = [key for key, item in defined_here.items() if fits[kind](item)]
        if candidates:
            raise unknown(field, wanted, candidates)
        raise ConfigError(field, name, f"there is no {wanted} in {module.__file__}, and no {kind} at all")
    return value


def _with_named_arguments(component: Component) -> Component:
    """Refuse a component with arguments that have no names, which cannot be settings."""
    for parameter in inspect.signature(component.make).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            what, hint = f"takes {parameter}", "name each argument: they are the settings of a configuration"
            raise CodeError(component.make.__name__, what, hint, place_of(component.make))
    return component
