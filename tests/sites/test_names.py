"""fedax uses what starlette, uvicorn, httpx and Flower promise: documented modules, no name with an underscore."""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src"
DOCUMENTED = {
    "starlette": {"applications", "exceptions", "requests", "responses", "routing"},
    "uvicorn": set[str](),
    "httpx": set[str](),
    "flwr": {"app", "clientapp", "serverapp"},
}


def undocumented(text: str) -> Iterator[str]:
    """What a module's source uses of these packages that they do not document."""
    names = dict[str, str]()  # what is imported, as it is called here
    tree = ast.parse(text)
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                for each in aliases:
                    names[each.asname or each.name.partition(".")[0]] = each.name
            case ast.ImportFrom(module=str(module), names=aliases, level=0):
                for each in aliases:
                    names[each.asname or each.name] = f"{module}.{each.name}"
    known = {name: full for name, full in names.items() if full.partition(".")[0] in DOCUMENTED}
    for full in known.values():
        package, *inner = full.split(".")
        modules = [part for part in inner if part == part.lower()]  # classes have capitals
        private = any(part.startswith("_") for part in inner)
        if private or len(modules) > 1 or (modules and modules[0] == inner[0] and inner[0] not in DOCUMENTED[package]):
            yield full
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            parts, inner_node = [node.attr], node.value
            while isinstance(inner_node, ast.Attribute):
                parts.append(inner_node.attr)
                inner_node = inner_node.value
            if (
                isinstance(inner_node, ast.Name)
                and inner_node.id in known
                and any(each.startswith("_") for each in parts)
            ):
                yield f"{known[inner_node.id]}.{'.'.join(reversed(parts))}"
        if isinstance(node, ast.ClassDef) and any(getattr(base, "id", "") in known for base in node.bases):
            yield from (f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)
                        and each.name.startswith("_") and not each.name.startswith("__"))  # fmt: skip
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "import_module":
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and str(first.value).partition(".")[0] in DOCUMENTED:
                yield str(first.value)


def test_no_private_names_of_other_packages() -> None:
    found = {f"{path.relative_to(SOURCES)}: {each}" for path in SOURCES.rglob("*.py")
             for each in undocumented(path.read_text(encoding="utf-8"))}  # fmt: skip
    assert not found
    used = {path.name for path in SOURCES.rglob("*.py") if "import httpx" in path.read_text(encoding="utf-8")}
    assert used  # else this looks in the wrong place


def test_what_would_be_found() -> None:
    for text in (
        "import httpx\nhttpx._client", "from httpx import _client", "import uvicorn.protocols.http.h11_impl",
        "from uvicorn.protocols.http.h11_impl import H11Protocol", "from starlette._utils import is_async_callable",
        "from flwr.supercore.run import Run", "import uvicorn\nclass A(uvicorn.Server):\n    pass\nuvicorn.server._x",
        "import importlib\nimportlib.import_module('flwr.supernode')",
    ):  # fmt: skip
        assert [*undocumented(text)], text
    for text in ("import httpx\nhttpx.Client()", "from starlette.routing import Route", "from flwr.app import Message"):
        assert not [*undocumented(text)], text
