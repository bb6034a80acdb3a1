"""The papers' experiments: a page for each family of recipes, from the heads of their files."""

import functools
import json
import re
from importlib import resources
from typing import Any

import numpy as np

from docs.website.pages import ROOT

FOLDER = resources.files("fedax.experiments") / "recipes"


def pages() -> dict[str, str]:
    """Page -> Markdown. Recipes whose names begin alike are on one page."""
    families: dict[str, list[str]] = {}
    for file in sorted(path.name for path in FOLDER.iterdir() if path.name.endswith(".toml")):
        families.setdefault(re.split(r"[-.]", file)[0], []).append(file.removesuffix(".toml"))
    return {f"recipes/{family}.md": _page(names) for family, names in families.items()}


def head(name: str) -> tuple[str, str, str]:
    """Of a recipe: where in which paper, what its paper says and leaves open, and the configuration.

    Example:
        >>> where, text, configuration = head("fednova-figure-5-random")
        >>> where, configuration.partition("\\n")[0]
        ('Wang et al. 2020 (FedNova), Figure 5, right', 'name = "fednova-figure-5-random"')
    """
    text = (FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    comments = re.match(r"(?:#.*\n)+", text)
    assert comments, name
    where, _, rest = " ".join(line.lstrip("# ") for line in comments[0].splitlines()).partition(": ")
    return where, rest, text[comments.end() :].strip("\n")


@functools.cache
def measured() -> dict[str, Any]:
    """Recipe -> its curves, as benchmarks/recipes.py has written them."""
    found: dict[str, Any] = json.loads((ROOT / "docs" / "recipes.json").read_text(encoding="utf-8"))
    return found


def figure(name: str) -> Any:
    """The drawing of a recipe's curves, to be written by :func:`fedax.figures.write`."""
    from fedax.figures import Series, curves

    found = measured()[name]
    methods = [Series(m["label"], m["rounds"], np.array(m["values"], float), m["gone"]) for m in found["methods"]]
    return curves(methods, column=found["column"])


def _page(names: list[str]) -> str:
    where = head(names[0])[0].split(",")[0]
    parts = [
        f"# {where}",
        f"After this page you can run {'these experiments' if len(names) > 1 else 'this experiment'} of the paper, and "
        "know what the paper leaves open and what is chosen here. [What came out](../results/recipes.md) has the "
        "results; [References](../references.md) has the paper.",
    ]
    for name in names:
        place, text, configuration = head(name)
        text = re.sub(r"docs/(\w+)\.md", r"[\1](../\1.md)", text[0].upper() + text[1:])
        parts += [
            f"## `{name}`",
            f"*{place}.* {_escaped(text)}",
            f"```bash\nfedax run {name}\n```",
            *([f"![Curves of {name}](../figures/recipe-{name}.svg)"] if name in measured() else []),
            f'??? note "The configuration"\n\n    ```toml\n{_indented(configuration)}\n    ```',
        ]
    return "\n\n".join(parts) + "\n"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())


def _escaped(text: str) -> str:
    return re.sub(r"([*_$])", r"\\\1", text).replace("<", "&lt;")
